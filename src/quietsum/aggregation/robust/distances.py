"""Distances between all pairs of updates, from one product of the matrix with itself.

|x − y|² = |x|² + |y|² − 2⟨x, y⟩ costs one matrix product for all pairs, and loses every digit where x and y are closer
to each other than to the origin, as honest updates late in training are. So the product is taken around one of the
rows, and every pair for which digits are still lost is taken again around a row of its own cluster, until none is.
Rows so long that their squares leave float64 are measured one by one.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from quietsum.aggregation.robust.blocks import each_block, lengths, shares
from quietsum.aggregation.robust.rule import Matrix, Vector

__all__ = ["central_row", "cosines", "gram", "pairwise_distances", "rough_distances"]

_LOST = 1e-4  # of |x|² + |y|²: below it, |x − y|² has fewer than eleven digits left
_SAMPLE, _CANDIDATES = 512, 24  # coordinates, and at most so many rows, that the first centre is chosen by
_TINIEST = float(np.finfo(np.float64).smallest_subnormal)
_SINGLE = (1e-24, 1e30)  # squares of a number, and of a row, that single precision is trusted with
_ALIKE = 0.05  # of |x|² + |y|²: closer rows are left to double precision
_PRODUCT = 1 << 19  # numbers in a block that is multiplied with itself
_SAFE = (1e-200, 1e200)  # squares outside are measured one by one


def pairwise_distances(updates: Matrix) -> Matrix:
    """|x_i − x_j| for all rows: (n, n), symmetric, zeros on the diagonal; at most the largest float64.

    nan where a row is not finite.

    >>> pairwise_distances(np.array([[1e8, 0.0], [1e8, 1e-8], [1e8, 3e-8]])) * 1e8
    array([[0., 1., 3.],
           [1., 0., 2.],
           [3., 2., 0.]])
    """
    count, row = len(updates), central_row(updates)
    centre = np.asarray(updates[row], dtype=np.float64)
    products = gram(updates, centre)
    squares = np.diagonal(products)
    strange = ~((squares > _SAFE[0]) & (squares < _SAFE[1]))
    for other in np.flatnonzero(squares == 0).tolist():  # copies of the centre are no strangers
        strange[other] = np.any(updates[other] != updates[row])
    if 2 * np.count_nonzero(strange) > count:
        found = np.stack([lengths(updates, np.asarray(one, dtype=np.float64)) for one in updates])
        return np.asarray(np.maximum(found, found.T))
    found, lost = _distances(products)
    for other in np.flatnonzero(strange).tolist():
        found[other, :] = found[:, other] = lengths(updates, np.asarray(updates[other], dtype=np.float64))
        lost[other, :] = lost[:, other] = False
    while lost.any():
        row = int(np.argmax(lost.sum(axis=1)))
        members = np.flatnonzero(lost[row] | (np.arange(count) == row))
        place = np.ix_(members, members)
        inner, still = _distances(gram(updates[members], np.asarray(updates[row], dtype=np.float64)))
        found[place] = np.where(lost[place], inner, found[place])
        lost[place] &= still
        lost[row, :] = lost[:, row] = False
    np.fill_diagonal(found, 0.0)
    return found


def _distances(products: Matrix) -> tuple[Matrix, NDArray[np.bool_]]:
    """Distances from products around a row, and the pairs that lost too many digits."""
    squares = np.diagonal(products)
    with np.errstate(all="ignore"):
        sums = squares[:, None] + squares[None, :]
        found = sums - 2 * products
        lost = found < _LOST * sums
        distances = np.sqrt(np.maximum(found, 0.0))
    np.fill_diagonal(lost, False)
    return (distances + distances.T) / 2, lost | lost.T


def central_row(updates: Matrix) -> int:
    """A row that half of the others are near to, judged by a sample of coordinates; any row would do, some better."""
    sample = np.asarray(updates[:, :: max(updates.shape[1] // _SAMPLE, 1)], dtype=np.float64)
    candidates = range(0, len(sample), -(-len(sample) // _CANDIDATES))
    with np.errstate(all="ignore"):
        middle = [_middle(sample - sample[row]) for row in candidates]
    return candidates[int(np.argmin(middle))]


def _middle(apart: Matrix) -> float:
    squares = np.einsum("ij,ij->i", apart, apart)
    return float(np.median(np.where(np.isnan(squares), np.inf, squares)))


def rough_distances(updates: Matrix) -> Matrix | None:
    """:func:`pairwise_distances` from products in single precision, in half the time; None where they are no good.

    For numbers of ordinary size and rows that are about as far from each other as from the centre. A block's products
    are summed in single precision and blocks in double, so a distance is off by about 1e-7 of itself.
    """
    row = central_row(updates)
    products = gram(updates, np.asarray(updates[row], dtype=np.float64), single=True)
    others = np.arange(len(updates)) != row
    squares = np.diagonal(products)
    low, high = _SINGLE[0] * updates.shape[1], _SINGLE[1]
    if not ((squares[others] > low) & (squares[others] < high)).all():
        return None
    sums = squares[:, None] + squares[None, :]
    found = sums - 2 * products
    if (found < _ALIKE * sums)[~np.eye(len(updates), dtype=np.bool_)].any():
        return None
    np.fill_diagonal(found, 0.0)
    return np.asarray(np.sqrt(found))


def gram(updates: Matrix, centre: Vector, *, single: bool = False) -> Matrix:
    """(X − centre)(X − centre)ᵀ, a block of columns at a time; ``single`` takes the products of a block in float32."""
    rows, dimension = updates.shape
    totals = np.zeros((shares(), rows, rows))

    if single and updates.dtype == np.float32:
        centre = centre.astype(np.float32)

    def add(part: slice, share: int) -> None:
        block = updates[:, part] - centre[part]
        if single:
            block = block.astype(np.float32, copy=False)
        totals[share] += block @ block.T

    each_block(rows, dimension, add, numbers=_PRODUCT, alone=True)
    return np.asarray(totals.sum(axis=0))


def cosines(updates: Matrix, found: Vector, other: Vector | None = None) -> Matrix:
    """Cosines of the rows, whose lengths were ``found``, with each other or with ``other``; 0 for a row of zeros."""
    rows, dimension = updates.shape
    sizes = np.where(found > 0, found, 1.0)[:, None]
    totals = np.zeros((shares(), rows, rows if other is None else 1))
    unit = None if other is None else other / max(float(lengths(other[None, :])[0]), _TINIEST)

    def add(part: slice, share: int) -> None:
        block = updates[:, part] / sizes
        totals[share] += block @ (block.T if unit is None else unit[part, None])

    each_block(rows, dimension, add, alone=True)
    return np.asarray(np.clip(totals.sum(axis=0), -1.0, 1.0))
