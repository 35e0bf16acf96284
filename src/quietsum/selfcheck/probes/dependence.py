"""Does one part of the noise tell about another? Over all lags, all pairs, all combinations.

The law of a sample autocorrelation is known only roughly, and rough laws fail first in the tails. So a stream is split
by coins into two parts A and B. Given A, Σ a_t b_(t+L) is a sum of independent normal scores with known weights:
exactly normal with variance Σ a_t² over the places that count, for every lag L at once. A Fourier transform finds them.

The largest and smallest singular values of a matrix of normal scores obey P(s_max ≥ √R + √d + t) ≤ e^(−t²/2) and
P(s_min ≤ √R − √d − t) ≤ e^(−t²/2) (Davidson and Szarek 2001, Theorem II.13), for all R and d: a combination of
coordinates, or of releases, that has no noise is found without knowing which.
"""

from __future__ import annotations

import numpy as np
from scipy import fft, special

from quietsum.mechanisms import RandomSource
from quietsum.selfcheck.protocol import Floats
from quietsum.selfcheck.statistics import normal_p

__all__ = ["combinations_p", "lags_p", "magnitudes", "pairs_p", "persistence_p"]

_LONGEST = 1 << 17  # values of a stream whose lags are looked at


def lags_p(stream: Floats, rng: RandomSource) -> float:
    """The most correlated lag of a stream, forwards or backwards; Bonferroni over all lags."""
    stream = stream[:_LONGEST]
    n = stream.size
    if n < 4:
        return 1.0
    first = rng.coins(0.5, n)
    a, b = np.where(first, stream, 0.0), np.where(first, 0.0, stream)
    length = fft.next_fast_len(2 * n, real=True)
    both = np.conj(fft.rfft(np.stack([a, np.square(a)]), length)) * fft.rfft(np.stack([b, 1.0 - first]), length)
    products, weights = fft.irfft(both, length)
    products[0] = 0.0
    heavy = weights > 0.5
    if not heavy.any():
        return 1.0
    return min(1.0, 2 * n * normal_p(float(np.max(np.abs(products[heavy]) / np.sqrt(weights[heavy])))))


def magnitudes(scores: Floats) -> Floats:
    """|score| as a standard normal score of its own, so that signs do not hide what returns.

    Scores are brought to width 1 first, since magnitudes of wider noise are not centred.
    """
    width = float(np.sqrt(np.mean(np.square(scores))))
    beyond = 2 * special.ndtr(-np.abs(scores) / (width if width > 0 else 1.0))
    return np.asarray(-special.ndtri(np.clip(beyond, 1e-300, 1 - 2.0**-53)))


def pairs_p(columns: Floats) -> float:
    """The most correlated pair of columns; ⟨a, b⟩/‖a‖ is standard normal given a. Bonferroni over the pairs."""
    lengths = np.linalg.norm(columns, axis=0)
    table = columns.T @ columns
    table /= np.where(lengths > 0, lengths, 1.0)[:, None]
    np.fill_diagonal(table, 0.0)
    count = len(table) * (len(table) - 1)
    return min(1.0, count * normal_p(float(max(table.max(), -table.min())))) if count else 1.0


def combinations_p(scores: Floats, more: float) -> float:
    """Extreme singular values: a combination of columns, or of rows, that has too little noise or too much."""
    small, large = sorted(scores.shape)
    gram = scores @ scores.T if len(scores) == small else scores.T @ scores
    values = np.sqrt(np.maximum(np.linalg.eigvalsh(gram), 0.0))
    below = max(0.0, large**0.5 - small**0.5 - float(values[0]))
    above = max(0.0, float(values[-1]) / (1 + more) - large**0.5 - small**0.5)
    return float(min(1.0, 2 * np.exp(-(max(below, above) ** 2) / 2)))


def persistence_p(energies: Floats, others: Floats, degrees: tuple[float, float], more: float) -> float:
    """Do places that were loud in one half of the draws stay loud in the other? ``degrees`` of freedom in each half.

    Energies become normal scores A and B; given A, ⟨A − mean, B⟩/‖A − mean‖ is standard normal, and a common width
    drops out since the weights add to nothing.
    """
    if energies.size < 2:
        return 1.0
    first, second = (_score(part, degree) for part, degree in zip((energies, others), degrees, strict=True))
    weights = first - first.mean()
    length = float(np.linalg.norm(weights))
    return normal_p(float(weights @ second) / length / (1 + more) ** 3) if length > 0 else 1.0


def _score(energies: Floats, degrees: float) -> Floats:
    """χ² totals as standard normal scores, by whichever tail is the smaller."""
    low, high = special.chdtr(degrees, energies), special.chdtrc(degrees, energies)
    return np.asarray(np.where(low < high, 1.0, -1.0) * special.ndtri(np.clip(np.minimum(low, high), 1e-300, 0.5)))
