"""Intervals over repetitions: of a mean, of a paired difference, and of a ratio of paired means.

A mean of n runs has Student's interval x̄ ± t·s/√n with n − 1 degrees of freedom (Student 1908). Two runs with the same
seed share first weights and split, so their *difference* is averaged: what they have in common cancels.

The share of a score that is kept is a ratio of two means, ρ = E[y]/E[x]. Fieller (1954) turns it into a mean: y − ρx
has mean zero, so ρ belongs to the interval exactly when Student's test does not reject that. With the variances and
the covariance of the means, a = x̄² − t²·s_xx, b = x̄ȳ − t²·s_xy:

    ρ = ( b ± t √( x̄²·s_yy − 2x̄ȳ·s_xy + ȳ²·s_xx − t²(s_xx·s_yy − s_xy²) ) ) / a

It is exact for normal pairs at every n, where the delta method and a bootstrap of three runs are not. Where a ≤ 0 the
plain score itself may be zero, and no bounded interval exists.

>>> low, high = mean_interval([0.97, 0.98, 0.99])
>>> round(low, 4), round(high, 4)
(0.9552, 1.0048)
>>> low, high = ratio_interval([0.95, 0.96, 0.97], [0.97, 0.98, 0.99])
>>> round(low, 4), round(high, 4)
(0.9791, 0.9801)
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy.special import stdtrit

from quietsum.errors import InvalidParameter
from quietsum.validate import open_probability

__all__ = ["LEVEL", "Interval", "difference_interval", "mean_interval", "ratio_interval", "student_quantile"]

LEVEL = 0.95
Interval = tuple[float, float]


def student_quantile(runs: int, level: float = LEVEL) -> float:
    """The t with which x̄ ± t·s/√n covers the mean of normal values with probability ``level``.

    >>> round(student_quantile(3), 3), round(student_quantile(10), 3)
    (4.303, 2.262)
    """
    level = open_probability("level", level, "0.95 is usual")
    return float(stdtrit(runs - 1, 0.5 + level / 2))


def mean_interval(values: Sequence[float], level: float = LEVEL) -> Interval | None:
    """Student's interval of the mean; None for a single value, which has no spread."""
    found = _finite("values", values)
    if len(found) < 2:
        return None
    half = student_quantile(len(found), level) * float(found.std(ddof=1)) / math.sqrt(len(found))
    return float(found.mean()) - half, float(found.mean()) + half


def difference_interval(values: Sequence[float], others: Sequence[float], level: float = LEVEL) -> Interval | None:
    """The interval of the mean of values − others, pair by pair."""
    one, two = _pairs(values, others)
    return mean_interval((one - two).tolist(), level)


def ratio_interval(values: Sequence[float], others: Sequence[float], level: float = LEVEL) -> Interval | None:
    """Fieller's interval of mean(values) / mean(others), pair by pair; None for one pair, or where it has no end."""
    above, below = _pairs(values, others)
    count = len(above)
    if count < 2:
        return None
    y, x = float(above.mean()), float(below.mean())
    (yy, xy), (_, xx) = (np.cov(above, below, ddof=1) / count).tolist()
    t = student_quantile(count, level)
    a, b = x * x - t * t * xx, x * y - t * t * xy
    if a <= 0:
        return None
    inner = x * x * yy - 2 * x * y * xy + y * y * xx - t * t * (xx * yy - xy * xy)
    half = t * math.sqrt(max(0.0, inner))
    return (b - half) / a, (b + half) / a


def _pairs(values: Sequence[float], others: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    one, two = _finite("values", values), _finite("others", others)
    if len(one) != len(two):
        raise InvalidParameter("others", f"{len(two)} values", f"do not pair with {len(one)}", "one of each per seed")
    return one, two


def _finite(name: str, values: Sequence[float]) -> np.ndarray:
    found = np.asarray(values, dtype=np.float64)
    if found.ndim != 1 or not len(found) or not np.isfinite(found).all():
        problem = "is empty or holds something that is no finite number"
        raise InvalidParameter(name, list(values), problem, "pass one score per run")
    return found
