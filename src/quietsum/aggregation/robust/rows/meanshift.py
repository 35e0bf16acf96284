"""Flat-kernel mean shift (Comaniciu, Meer 2002) on a few hundred points in three or four dimensions.

It follows scikit-learn's ``MeanShift(bandwidth=estimate_bandwidth(points, quantile=0.5), bin_seeding=True,
cluster_all=False)`` step by step, so that labels agree, and needs numpy alone. Two things differ on purpose: points are
put into an order of their own first, so that the order of rows cannot matter, and the bandwidth is estimated from all
points up to :data:`MOST`, while scikit-learn's ``n_samples=50`` draws fifty by position.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from quietsum.aggregation.robust.rule import Matrix

__all__ = ["MOST", "bandwidth_of", "largest_cluster", "mean_shift"]

MOST = 2000
"""Points that the bandwidth is estimated from; of more, every k-th in lexicographic order."""

_ROUNDS = 300
_STOP = 1e-3  # of the bandwidth


def bandwidth_of(points: Matrix, quantile: float = 0.5) -> float:
    """The mean distance of a point to its ⌊n · quantile⌋-th nearest, itself counted.

    >>> bandwidth_of(np.array([[1.0, 1], [2, 1], [1, 0], [4, 7], [3, 5], [3, 6]]))  # doctest: +ELLIPSIS
    1.61...
    """
    some = points[:: -(-len(points) // MOST)]
    nearest = max(int(len(some) * quantile), 1)
    squares = _squares(some, some)
    squares.partition(nearest - 1, axis=1)
    return float(np.mean(np.sqrt(squares[:, nearest - 1])))


def mean_shift(points: Matrix, bandwidth: float) -> tuple[Matrix, NDArray[np.int64]]:
    """Centres, the most populous first, and for every point the nearest centre within ``bandwidth``, else −1."""
    found: dict[tuple[float, ...], int] = {}
    for seed in _seeds(points, bandwidth):
        centre, within = _climb(seed, points, bandwidth)
        if within:
            found[tuple(centre.tolist())] = within
    centres = np.array([centre for centre, _ in sorted(found.items(), key=lambda item: (item[1], item[0]))[::-1]])
    close = _squares(centres, centres) <= bandwidth * bandwidth
    unique = np.ones(len(centres), dtype=np.bool_)
    for index in range(len(centres)):
        if unique[index]:
            unique[close[index]] = False
            unique[index] = True
    centres = centres[unique]
    squares = _squares(points, centres)
    nearest = np.argmin(squares, axis=1)
    inside = np.sqrt(squares[np.arange(len(points)), nearest]) <= bandwidth
    return centres, np.where(inside, nearest, -1)


def largest_cluster(points: Matrix) -> NDArray[np.bool_]:
    """Which points are in the largest cluster; of equals, the one with more points around its centre.

    A bandwidth of zero, where each point coincides with about half of the others, or where there are fewer than four
    points, has no kernel: then it is the largest set of equal points, and all points if there is no single largest.
    """
    order = np.lexsort(points.T[::-1])
    ordered = points[order]
    bandwidth = bandwidth_of(ordered)
    if bandwidth > 0:
        labels = mean_shift(ordered, bandwidth)[1]
        member = labels == np.argmax(np.bincount(labels[labels >= 0]))
    else:
        _, groups, sizes = np.unique(ordered, axis=0, return_inverse=True, return_counts=True)
        single = np.count_nonzero(sizes == sizes.max()) == 1
        member = groups.reshape(-1) == np.argmax(sizes) if single else np.ones(len(points), dtype=np.bool_)
    found = np.empty(len(points), dtype=np.bool_)
    found[order] = member
    return found


def _seeds(points: Matrix, bandwidth: float) -> Matrix:
    """One seed for each cell of a grid of ``bandwidth`` that holds a point; the points, where each has its own cell."""
    cells = np.unique(np.round(points / bandwidth), axis=0)
    return points if len(cells) == len(points) else cells * bandwidth


def _climb(seed: Matrix, points: Matrix, bandwidth: float) -> tuple[Matrix, int]:
    """Where the mean of the points within ``bandwidth`` comes to rest, and how many points that are."""
    place, within = seed, 0
    for done in range(_ROUNDS + 1):
        near = points[np.sum((points - place) ** 2, axis=1) <= bandwidth * bandwidth]
        within = len(near)
        if not within:
            break
        before, place = place, np.mean(near, axis=0)
        if np.linalg.norm(place - before) <= _STOP * bandwidth or done == _ROUNDS:
            break
    return place, within


def _squares(points: Matrix, others: Matrix) -> Matrix:
    total, apart = np.zeros((2, len(points), len(others)))
    for column, other in zip(points.T, others.T, strict=True):
        np.subtract(column[:, None], other, out=apart)
        total += np.multiply(apart, apart, out=apart)
    return total
