"""What all pairs of updates have between them, distances and cosines, from products of the matrix with itself.

|x − y|² = |x|² + |y|² − 2⟨x, y⟩ costs one matrix product for all pairs, and loses every digit where x and y are closer
to each other than to the origin, as honest updates late in training are. So the product is taken around one of the
rows, and every pair for which digits are still lost is taken again around a row of its own cluster, or by itself where
few are left. Rows so long or so short that their squares leave float64 are measured in other units.

A table of pairs holds n² numbers. One such table and one of its bits are all that distances take; what a rule keeps
beside them is bounded by :data:`TABLES`, and :func:`refuse_beyond_memory` says before any work that it will not fit.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from quietsum.aggregation.robust.rows.blocks import LARGEST, each_block, lengths, shares, unit_rows
from quietsum.aggregation.robust.rule import Matrix, Vector
from quietsum.errors import InvalidParameter

__all__ = [
    "TABLES", "beyond_memory", "central_row", "cosines", "cosines_with", "gram", "pair_bytes", "pairwise_distances",
    "refuse_beyond_memory", "rough_distances", "this_memory",
]  # fmt: skip

TABLES = 4
"""Tables of n × n float64 that a rule which compares all pairs holds at most at a time."""

_LOST = 1e-4  # of |x|² + |y|²: below it, |x − y|² has fewer than eleven digits left
_SAMPLE, _CANDIDATES = 512, 24  # coordinates, and at most so many rows, that the first centre is chosen by
_TINIEST = float(np.finfo(np.float64).smallest_subnormal)
_SINGLE = (1e-24, 1e30)  # squares of a number, and of a row, that single precision is trusted with
_ALIKE = 0.05  # of |x|² + |y|²: closer rows are left to double precision
_PRODUCT = 1 << 19  # numbers in a block that is multiplied with itself
_SAFE = (1e-200, 1e200)  # squares outside are taken in other units
_UNIT = np.float64(2.0**600)  # what is too short times it, and what is too long over it, has squares in range
_MANY = 1024  # rows from which on a table is filled tile by tile, in place
_TILE = 256  # rows of a tile
_FEW = 8  # lost pairs a row, up to which each is measured by itself
_ASKED = 4096  # rows below which memory is not checked: a table of 128 MiB


def pairwise_distances(updates: Matrix) -> Matrix:
    """|x_i − x_j| for all rows: (n, n), symmetric, zeros on the diagonal; at most the largest float64.

    nan where a row is not finite.

    >>> pairwise_distances(np.array([[1e8, 0.0], [1e8, 1e-8], [1e8, 3e-8]])) * 1e8
    array([[0., 1., 3.],
           [1., 0., 2.],
           [3., 2., 0.]])
    """
    return _around(updates, central_row(updates))


def _around(updates: Matrix, row: int) -> Matrix:
    """:func:`pairwise_distances` from products around ``row``."""
    centre = np.asarray(updates[row], dtype=np.float64)
    table = gram(updates, centre)
    squares = np.diagonal(table).copy()
    short, long = np.flatnonzero(squares < _SAFE[0]), np.flatnonzero(~(squares < _SAFE[1]))
    lost = _to_distances(table)
    if len(long):
        inner = gram(updates, centre, unit=1 / _UNIT)
        unsure = _to_distances(inner)
        with np.errstate(over="ignore"):
            table[long] = np.minimum(inner[long] * _UNIT, LARGEST)
        table[:, long] = table[long].T
        lost[long], lost[:, long] = unsure[long], unsure[long].T
        broken = long[~np.isfinite(updates[long]).all(axis=1)]
        table[broken], table[:, broken] = np.nan, np.nan
        lost[broken], lost[:, broken] = False, False
    if len(short) > 1 and np.any(updates[short] != updates[row]):
        inner = gram(updates[short], centre, unit=_UNIT)
        place = np.ix_(short, short)
        lost[place] = _to_distances(inner)
        table[place] = inner / _UNIT
    _resolve(updates, table, lost)
    return table


def _resolve(updates: Matrix, table: Matrix, lost: NDArray[np.bool_]) -> None:
    """Measure every pair that lost digits again: a cluster around one of its rows, and by itself what is left over.

    A cluster's own centre is never lost, so each is smaller than the last; and a cluster within a cluster is a
    hundredth of its size, so a few follow one another before the numbers themselves are alike.
    """
    partners = np.count_nonzero(lost, axis=1)
    while (total := int(partners.sum())) > _FEW * len(updates):
        row = int(np.argmax(partners))
        members = np.flatnonzero(lost[row])
        members = np.insert(members, np.searchsorted(members, row), row)
        inner = _around(updates[members], int(np.searchsorted(members, row)))
        for start in range(0, len(members), _TILE):
            place = np.ix_(members[start : start + _TILE], members)
            table[place] = np.where(lost[place], inner[start : start + _TILE], table[place])
        lost[np.ix_(members, members)] = False
        partners[members] = np.count_nonzero(lost[members], axis=1)
    if total:
        ones, others = np.nonzero(np.triu(lost))
        many = max(_PRODUCT // updates.shape[1], 1)
        for start in range(0, len(ones), many):
            one, other = ones[start : start + many], others[start : start + many]
            table[one, other] = table[other, one] = _apart(updates[one], updates[other])


def _apart(ones: Matrix, others: Matrix) -> Vector:
    """|x − y| of rows side by side, in units of the largest difference of each."""
    with np.errstate(over="ignore"):
        apart = ones.astype(np.float64) - others
    unit = np.abs(apart).max(axis=1, initial=0.0)
    beyond = ~np.isfinite(unit)
    apart[beyond] = ones[beyond] / 2 - others[beyond] / 2
    unit[beyond] = np.abs(apart[beyond]).max(axis=1, initial=0.0)
    apart /= np.where(unit > 0, unit, 1.0)[:, None]
    with np.errstate(over="ignore"):
        found = unit * np.sqrt(np.einsum("ij,ij->i", apart, apart)) * np.where(beyond, 2.0, 1.0)
    return np.asarray(np.minimum(found, LARGEST))


def _to_distances(table: Matrix) -> NDArray[np.bool_]:
    """Products around a row become distances, in place; the pairs that lost too many digits are returned."""
    squares = np.diagonal(table).copy()
    lost = np.empty(table.shape, dtype=np.bool_)

    def work(tile: slice, _: int) -> None:
        sums = squares[tile, None] + squares
        part = table[tile]
        part *= -2
        part += sums
        sums *= _LOST
        np.less(part, sums, out=lost[tile])
        np.sqrt(np.maximum(part, 0.0, out=part), out=part)

    _each_tile(len(table), work)
    np.fill_diagonal(table, 0.0)
    np.fill_diagonal(lost, False)
    return lost


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
    table = gram(updates, np.asarray(updates[row], dtype=np.float64), single=True)
    squares = np.diagonal(table).copy()
    others = np.arange(len(updates)) != row
    low, high = _SINGLE[0] * updates.shape[1], _SINGLE[1]
    if not ((squares[others] > low) & (squares[others] < high)).all():
        return None
    alike: list[bool] = []

    def work(tile: slice, _: int) -> None:
        sums = squares[tile, None] + squares
        part = table[tile]
        part *= -2
        part += sums
        sums *= _ALIKE
        close = part < sums
        close[np.arange(len(close)), np.arange(tile.start, tile.stop)] = False
        alike.append(bool(close.any()))
        np.sqrt(np.maximum(part, 0.0, out=part), out=part)

    _each_tile(len(table), work)
    np.fill_diagonal(table, 0.0)
    return None if any(alike) else table


def cosines(updates: Matrix) -> Matrix:
    """The cosine of every two rows; 0 for a row of zeros.

    >>> cosines(np.array([[1.0, 0.0], [1e-200, 1e-200], [-1.7e308, 0.0], [0.0, 0.0]])).round(3).tolist()
    [[1.0, 0.707, -1.0, 0.0], [0.707, 1.0, -0.707, 0.0], [-1.0, -0.707, 1.0, 0.0], [0.0, 0.0, 0.0, 0.0]]
    """
    table = gram(updates)
    squares = np.diagonal(table).copy()
    if ((squares > _SAFE[0]) & (squares < _SAFE[1])).all():
        size = np.sqrt(squares)
    else:
        table = gram(unit_rows(updates))
        size = np.where(np.diagonal(table) > 0, 1.0, np.inf)

    def work(tile: slice, _: int) -> None:
        part = table[tile]
        part /= size[tile, None] * size  # the same number either way round
        np.clip(part, -1.0, 1.0, out=part)

    _each_tile(len(table), work)
    return table


def cosines_with(updates: Matrix, found: Vector, other: Vector) -> Vector:
    """The cosine of each row, whose length was ``found``, with ``other``; 0 for a row of zeros."""
    rows, dimension = updates.shape
    sizes = np.where(found > 0, found, 1.0)[:, None]
    totals = np.zeros((shares(), rows))
    unit = other / max(float(lengths(other[None, :])[0]), _TINIEST)

    def add(part: slice, share: int) -> None:
        totals[share] += (updates[:, part] / sizes) @ unit[part]

    each_block(rows, dimension, add, alone=True)
    return np.asarray(np.clip(totals.sum(axis=0), -1.0, 1.0))


# --------------------------------------------------------------------------------- tables of pairs


def gram(updates: Matrix, centre: Vector | None = None, *, single: bool = False, unit: float = 1.0) -> Matrix:
    """(X − centre)(X − centre)ᵀ · unit², a block of columns at a time; ``single`` takes a block's products in float32.

    Raises :class:`~quietsum.errors.InvalidParameter` where the table cannot fit.
    """
    rows, dimension = updates.shape
    refuse_beyond_memory(rows)
    if centre is not None and single and updates.dtype == np.float32:
        centre = centre.astype(np.float32)

    def block_of(part: slice) -> Matrix:
        block = updates[:, part]
        if unit < 1:  # first, so that differences of the longest stay in range
            block = block * unit
        if centre is not None:
            block = block - (centre[part] if unit >= 1 else centre[part] * unit)
        if unit > 1:
            block = block * unit
        return block.astype(np.float32 if single else np.float64, copy=False)

    if rows < _MANY:
        totals = np.zeros((shares(), rows, rows))

        def add(part: slice, share: int) -> None:
            block = block_of(part)
            totals[share] += block @ block.T

        each_block(rows, dimension, add, numbers=_PRODUCT, alone=True)
        with np.errstate(all="ignore"):
            total = totals.sum(axis=0)
            return np.asarray((total + total.T) / 2)

    total = np.zeros((rows, rows))
    width = max(_PRODUCT // rows, _TILE)
    for start in range(0, dimension, width):
        with np.errstate(all="ignore"):
            block = block_of(slice(start, min(start + width, dimension)))

        def fill(tile: slice, _: int, block: Matrix = block) -> None:  # what is right of the diagonal; then its mirror
            total[tile, tile.start :] += block[tile] @ block[tile.start :].T

        _each_tile(rows, fill, alone=True)
    for begin in range(0, rows, _TILE):
        tile = slice(begin, min(begin + _TILE, rows))
        square = total[tile, tile]
        below = np.tril_indices(len(square), -1)
        square[below] = square.T[below]
        total[tile.stop :, tile] = total[tile, tile.stop :].T
    return total


def _each_tile(rows: int, work: Callable[[slice, int], None], *, alone: bool = False) -> None:
    """``work`` on every slice of rows of a table of ``rows`` × ``rows``."""
    each_block(rows, rows, work, numbers=rows * _TILE, alone=alone)


def refuse_beyond_memory(rows: int) -> None:
    """Raise :class:`~quietsum.errors.InvalidParameter` where the pairs of ``rows`` cannot fit this machine's memory."""
    if problem := beyond_memory(rows):
        remedy = "draw fewer parties a round, or choose a rule that compares no pairs, signguard for instance"
        raise InvalidParameter("updates", f"{rows:,} rows", f"are compared two by two, {problem}", remedy)


def beyond_memory(rows: int) -> str:
    """What the pairs of ``rows`` take and what this machine has, in words; "" where they fit."""
    if rows < _ASKED or pair_bytes(rows) <= this_memory():
        return ""
    taken, there = pair_bytes(rows) / 2**30, this_memory() / 2**30
    return f"which takes {taken:,.0f} GiB of memory, and this machine has {there:,.0f}"


def pair_bytes(rows: int) -> int:
    """What comparing all pairs of ``rows`` takes at most, besides the updates: 8 bytes × n² × :data:`TABLES`.

    >>> pair_bytes(5_000) / 1e9
    0.8
    """
    return 8 * TABLES * rows * rows


def this_memory() -> int:
    """Bytes of memory of this machine, or of the container that it runs in."""
    found = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")] if hasattr(os, "sysconf") else []
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            limit = Path(path).read_text(encoding="ascii").strip()
        except OSError:
            continue
        if limit.isdigit():
            found.append(int(limit))
    return min(found, default=1 << 62)
