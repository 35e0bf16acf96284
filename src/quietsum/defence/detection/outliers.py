"""Tests with a stated rate of false alarms: who differs from the others, who pulls the other way, who is too quiet.

Each is held to a chance ``rate`` that it names *anybody* where nothing is wrong, over all rows together, so more rows
make no more false alarms. What "nothing is wrong" means is different for each, and is the first thing to read:

* :func:`outlying`: the numbers are one Gaussian sample. The scale is that of the rows themselves, so sites that differ
  from each other widen it; four rows say little, and the threshold is accordingly far away.
* :func:`opposed`: every row's mean is not below zero, and its noise is Gaussian with a known deviation. Nothing is
  assumed about how the means differ.
* :func:`too_quiet`: every row is some vector plus Gaussian noise of at least a known deviation.
"""

from __future__ import annotations

import dataclasses
import math
from typing import final

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaincinv, ndtri, stdtrit

from quietsum.errors import InvalidParameter
from quietsum.validate import probability, whole_number

__all__ = ["FEWEST", "Outlier", "find_opposed", "naming_distance", "outlying", "too_quiet"]

FEWEST = 4
"""With fewer rows than this no party is named by comparison: of three, two may be the odd ones."""
MOST = 128
"""No more than so many are taken out of thousands of rows, which takes time; more that stand together may hide."""
_FINEST = 1e-6  # numbers that agree to so many digits do not differ: what rounding does is no finding

Vector = NDArray[np.float64]


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Outlier:
    """Row ``row`` has ``value``, beyond ``threshold``."""

    row: int
    value: float
    threshold: float


def outlying(values: Vector, *, rate: float, most: int | None = None, heavy: bool = False) -> list[Outlier]:
    """Rows of one Gaussian sample that do not belong to it, at most ``most`` of them.

    If omitted, ``most`` is a third of the rows, and no more than :data:`MOST`.

    The generalised extreme studentised deviate test (Rosner 1983, Technometrics 25(2)): take the most extreme row out,
    again and again; with m rows left after the j-th, row j lies outside where it is further than

        t(1 − rate / (4 (m + 1)), m − 1) · s · √(1 + 1/m)

    from the mean of those m, s their deviation (2 for the two sides and m + 1 for the rows are Grubbs' test, which this
    is for j = 1 alone; another 2 where there are further steps). The largest j for which that holds tells how many are
    named: several that stand together do not hide each other, as they would in a single pass.

    For independent Gaussian rows of one law somebody is named with a chance of at most ``rate``. For one step that is
    proven (the union bound over rows). The further steps, on rows whose extremes were taken out, add at most
    three quarters of it where ``most`` is a third of the rows; that is measured (tests/defence/test_outliers.py), and
    is why the rate is halved.

    ``heavy`` is for numbers with heavier tails: the threshold is then at least that of a logistic law of the same
    deviation, (√3/π) ln(4 (m + 1) / rate).

    >>> [found.row for found in outlying(np.array([1.0, 1.1, 0.9, 1.05, 0.95, 1.0, 9.0, 9.1]), rate=1e-3)]
    [7, 6]
    """
    values = np.asarray(values, dtype=np.float64)
    if values.ndim != 1 or not np.isfinite(values).all():
        raise InvalidParameter("values", values.shape, "are not finite numbers, one a row")
    probability("rate", rate)
    count = len(values)
    most = min(max(1, count // 3), MOST) if most is None else whole_number("most", most, 1)
    if count < FEWEST:
        return []
    left, taken, named, within = list(range(count)), list[int](), 0, (-np.inf, np.inf)
    for step in range(min(most, count - 3)):
        some = values[left]
        place = int(np.argmax(np.abs(some - some.mean())))
        rest, value = np.delete(some, place), float(some[place])
        size, centre = len(rest), float(rest.mean())
        fine = _FINEST * float(np.abs(some).max())
        far = naming_distance(size, rate, most, heavy=heavy) * max(float(rest.std(ddof=1)), fine)
        taken.append(left.pop(place))
        if abs(value - centre) > far:
            named, within = step + 1, (centre - far, centre + far)
    return [
        Outlier(row=row, value=float(values[row]), threshold=within[int(values[row] > within[1])])
        for row in taken[:named]
        if not within[0] <= values[row] <= within[1]
    ]


def naming_distance(size: int, rate: float, most: int = 2, *, heavy: bool = False) -> float:
    """How many deviations of ``size`` others a row must lie from their mean to be named by :func:`outlying`.

    >>> round(naming_distance(9, 0.05, most=1), 2), round(naming_distance(3, 1e-5), 1)
    (4.04, 1032.8)
    """
    chance = probability("rate", rate) / (2 * min(most, 2) * (size + 1))
    gaussian = -float(stdtrit(size - 1, chance)) * math.sqrt(1 + 1 / size)
    return max(gaussian, math.sqrt(3) / math.pi * math.log(1 / chance)) if heavy else gaussian


def find_opposed(scores: Vector, *, rate: float, deviation: Vector | float = 1.0) -> list[Outlier]:
    """Rows whose score is so far below zero that noise of this ``deviation`` alone would not bring one there.

    Guarantees: where every row has a mean of at least zero and Gaussian noise, somebody is named with a chance of at
    most ``rate`` (the union bound over rows), however the means differ.

    >>> [(found.row, round(found.threshold, 2)) for found in find_opposed(np.array([1.0, -6.0, 0.2]), rate=1e-3)]
    [(1, -3.4)]
    """
    scores = np.asarray(scores, dtype=np.float64)
    bounds = float(ndtri(probability("rate", rate) / max(1, len(scores)))) * np.broadcast_to(deviation, scores.shape)
    return [
        Outlier(row=int(row), value=float(scores[row]), threshold=float(bounds[row]))
        for row in np.flatnonzero(scores < bounds)
    ]


def too_quiet(squares: Vector, freedoms: Vector, *, rate: float) -> list[Outlier]:
    """Rows whose Σ update²/s² is smaller than a χ² of so many ``freedoms`` would be by itself.

    For every vector that a party adds to noise of deviation s, the squared length is a non-central χ², which is never
    stochastically smaller than the central one. Guarantees: somebody is named with a chance of at most ``rate``.

    >>> [found.row for found in too_quiet(np.array([100.0, 3.0]), np.array([100.0, 100.0]), rate=1e-6)]
    [1]
    """
    squares = np.asarray(squares, dtype=np.float64)
    bounds = 2 * gammaincinv(np.asarray(freedoms, dtype=np.float64) / 2, probability("rate", rate) / len(squares))
    return [
        Outlier(row=int(row), value=float(squares[row]), threshold=float(bounds[row]))
        for row in np.flatnonzero(squares < bounds)
    ]
