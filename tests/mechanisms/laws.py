"""Goodness-of-fit tests that all samplers share. Seeds are fixed, so an outcome never changes from run to run."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

FITS = 1e-3
"""A p-value above this fits."""
MISSES = 1e-9
"""A p-value below this does not."""


def ks_p(draws: NDArray[np.float64], cdf: Callable[[NDArray[np.float64]], NDArray[np.float64]]) -> float:
    """Kolmogorov and Smirnov's p-value."""
    from scipy import stats

    return float(stats.kstest(draws, cdf).pvalue)


def chi_square_p(draws: NDArray[np.int64], pmf: Callable[[int], float], *, cells: int = 60) -> float:
    """Pearson's p-value over integer cells, merged so that each expects 20 draws or more."""
    from scipy import stats

    reach = int(np.abs(draws).max()) + 1
    values = np.arange(-reach, reach + 1)
    chances = np.array([pmf(int(k)) for k in values])
    counts = np.bincount(draws + reach, minlength=values.size)
    cumulated = np.cumsum(chances)
    least = max(1.0 / cells, 20 / draws.size)
    edges = np.flatnonzero(np.diff(np.floor(cumulated / least))) + 1
    observed, expected = np.add.reduceat(counts, [0, *edges]), np.add.reduceat(chances, [0, *edges])
    kept = expected * draws.size >= 5
    observed, expected = np.append(observed[kept], observed[~kept].sum()), expected[kept]
    expected = np.append(expected, max(1 - expected.sum(), 0.0)) * draws.size
    if expected[-1] < 5:  # the far tail joins the last cell
        observed, expected = (
            np.append(observed[:-2], observed[-2:].sum()),
            np.append(expected[:-2], expected[-2:].sum()),
        )
    return float(stats.chisquare(observed, expected * (observed.sum() / expected.sum())).pvalue)
