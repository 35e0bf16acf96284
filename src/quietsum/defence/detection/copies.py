"""Updates that are equal: to each other, or to the model's last step.

Every pair of n updates would be n²/2 comparisons of whole vectors. Two updates u, v with |u − v| ≤ c |v| have lengths
within c, and their directions have components along any vector r within 2 c |r| of each other. So directions are sorted
by their component along one r, and an update is compared only with those that lie so near: copies, and hardly anything
else, since r is drawn anew each time and known to no party.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from quietsum.aggregation import length_of
from quietsum.mechanisms import system_randomness

__all__ = ["SAME", "clusters", "find_copies_of"]

SAME = 1e-9
"""Updates that agree to this share of their length are copies."""

Vector = NDArray[np.float64]


def clusters(rows: Vector, lengths: Vector) -> list[tuple[int, ...]]:
    """Rows that equal one another, two or more in each; rows of zeros are not copies.

    >>> import numpy as np
    >>> rows = np.array([[1.0, 2.0], [-1.0, -2.0], [1.0, 2.0], [0.0, 0.0], [0.0, 0.0]])
    >>> clusters(rows, np.array([np.linalg.norm(row) for row in rows]))
    [(0, 2)]
    """
    places = np.flatnonzero((lengths > 0) & np.isfinite(lengths))
    if len(places) < 2:
        return []
    along = system_randomness().normals(rows.shape[1])
    along /= length_of(along)
    shares = np.array([(rows[place] / lengths[place]) @ along for place in places])
    order = np.argsort(shares, kind="stable")
    found: list[list[int]] = []
    nearby: list[list[int]] = []  # clusters, single rows too, that what comes next may equal
    before = -np.inf
    for place, share in zip(places[order].tolist(), shares[order].tolist(), strict=True):
        if share - before > 3 * SAME:  # 2 c, and rounding
            nearby = []
        before = share
        for cluster in nearby:
            if _equal(rows[place], rows[cluster[0]], lengths[place], lengths[cluster[0]]):
                cluster.append(place)
                break
        else:
            nearby.append([place])
            found.append(nearby[-1])
    return sorted(tuple(sorted(cluster)) for cluster in found if len(cluster) > 1)


def find_copies_of(rows: Vector, lengths: Vector, last: Vector | None) -> tuple[int, ...]:
    """Rows that equal ``last``, the model's last step."""
    size = 0.0 if last is None else length_of(last)
    if last is None or not 0 < size < np.inf:
        return ()
    return tuple(place for place, row in enumerate(rows) if _equal(row, last, float(lengths[place]), size))


def _equal(one: Vector, other: Vector, length: float, other_length: float) -> bool:
    if abs(length - other_length) > SAME * other_length:
        return False
    with np.errstate(over="ignore", invalid="ignore"):
        return length_of(one - other) <= SAME * other_length
