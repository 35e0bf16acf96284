"""Passes over a matrix of updates, a block of columns at a time, so that every block is read once and stays in cache.

All sums are float64, also over float32 updates. What may leave the range of float64 (squares of 1.7e308, or of
1e-200) is recognised by its result and computed again in units of its own size; the usual case pays nothing for it.
Large matrices are shared among threads, since numpy and BLAS release the interpreter while they work.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from quietsum.aggregation.robust.rule import Matrix, Vector

__all__ = [
    "LARGEST", "NotFinite", "each_block", "lengths", "mixture", "mixtures", "shares", "signs", "tame_rows", "unit_rows",
]  # fmt: skip


class NotFinite(Exception):
    """Raised by a rule's work that met a number that is not finite."""


LARGEST = float(np.finfo(np.float64).max)

_BLOCK = 1 << 18  # numbers in a block: 2 MiB of float64; BLAS uses no threads of its own for a product this small
_RUN = 1 << 14  # numbers of one row at a time, where each row is worked on alone
_LEAST_COLUMNS = 256  # a product with fewer at a time spends its time on reading
_SHARED = 1 << 22  # below so many numbers, threads cost more than they save
_MOST_THREADS = 4
_SAFE = (1e-280, 1e280)  # squares outside have left the range, or lost digits at its ends


def each_block(
    rows: int, dimension: int, work: Callable[[slice, int], None], *, numbers: int = _BLOCK, alone: bool = False
) -> int:
    """``work(columns, share)`` on every slice of columns; on several threads where the matrix is large.

    ``share`` says which thread works: sums that are kept a share and added in order do not depend on who was faster.
    ``alone`` leaves the threads to BLAS, unless BLAS has none.
    """
    width = max(numbers // max(rows, 1), 1)
    slices = [slice(start, min(start + width, dimension)) for start in range(0, dimension, width)]
    alone = alone and os.environ.get("OPENBLAS_NUM_THREADS") != "1"
    threads = 1 if alone or rows * dimension < _SHARED else min(shares(), len(slices))

    def go(share: int) -> None:
        with np.errstate(all="ignore"):
            for part in slices[share::threads]:
                work(part, share)

    if threads == 1:
        go(0)
    else:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(go, range(threads)))
    return threads


def shares() -> int:
    """How many threads a pass uses at most: the cores at hand, or fewer if OMP_NUM_THREADS says so."""
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # pragma: no cover - not on Linux
        cores = os.cpu_count() or 1
    asked = os.environ.get("OMP_NUM_THREADS", "")
    return max(1, min(cores, _MOST_THREADS, int(asked) if asked.isdigit() else _MOST_THREADS))


def lengths(updates: Matrix, centre: Vector | None = None) -> Vector:
    """|row − centre| of every row; at most the largest float64, and nan for a row that is not finite.

    >>> lengths(np.array([[3.0, 4.0], [1.7e308, -1.7e308], [3e-200, 4e-200], [0.0, 0.0]]))
    array([5.00000000e+000, 1.79769313e+308, 5.00000000e-200, 0.00000000e+000])
    """
    rows, dimension = updates.shape
    sums = np.zeros((shares(), rows))

    def alone(part: slice, share: int) -> None:  # whole rows, which lie in memory as they are read
        sums[share, part] = np.einsum("ij,ij->i", updates[part], updates[part])

    def apart(part: slice, share: int) -> None:
        origin = 0.0 if centre is None else centre[part]
        many = 4 * _RUN // (part.stop - part.start)  # a few rows at a time, of short ones many
        rest = np.empty((min(many, rows), part.stop - part.start))
        for row in range(0, rows, many):
            run = rest[: min(many, rows - row)]
            np.subtract(updates[row : row + many, part], origin, out=run)
            sums[share, row : row + many] += np.einsum("ij,ij->i", run, run)

    if centre is None and updates.dtype == np.float64 and updates.flags.c_contiguous:
        each_block(dimension, rows, alone, numbers=max(_SHARED // 2, dimension))
    else:
        each_block(rows, dimension, apart, numbers=rows * _RUN)
    with np.errstate(all="ignore"):
        squares = np.sum(sums, axis=0)
        unsafe = ~((squares > _SAFE[0]) & (squares < _SAFE[1]))
        found = np.sqrt(squares)
        for row in np.flatnonzero(unsafe).tolist():
            found[row] = _length(updates[row], centre)
    return np.asarray(found, dtype=np.float64)


def _length(row: Vector, centre: Vector | None) -> float:
    """|row − centre| in units of its largest entry."""
    quarter = np.asarray(row, dtype=np.float64) / 4  # the difference of two quarters is in range
    if centre is not None:
        quarter = quarter - centre / 4
    if centre is None or not quarter.any():  # dividing may have lost the last digits of subnormal numbers
        whole = np.asarray(row, dtype=np.float64) - (0.0 if centre is None else centre)
        largest = float(np.abs(whole).max(initial=0.0))
        if np.isfinite(largest):
            return min(largest * float(np.linalg.norm(whole / largest)), LARGEST) if largest > 0 else 0.0
    largest = float(np.abs(quarter).max(initial=0.0))
    if not np.isfinite(largest):
        return float("nan")
    return float(min(4 * (largest * float(np.linalg.norm(quarter / largest))), LARGEST)) if largest > 0 else 0.0


def tame_rows(updates: Matrix, centre: Vector | None = None, *, few: bool = True) -> tuple[Matrix, Vector]:
    """``updates`` and their :func:`lengths`; rows whose length is beyond float64 are shrunk by 2⁻⁶⁴.

    With ``few``, only if fewer than half are: else the median length is beyond, too, and nothing is shortened.

    For rules that use only the direction of so long a row. Raises :class:`NotFinite` for rows that are not finite.
    """
    found = lengths(updates, centre)
    if np.isnan(found).any():
        raise NotFinite
    beyond = found >= LARGEST
    if not beyond.any() or (few and 2 * np.count_nonzero(beyond) >= len(found)):
        return updates, found
    updates = updates.astype(np.float64)
    updates[beyond] *= 2.0**-64
    found[beyond] = lengths(updates[beyond], centre)
    return updates, found


def unit_rows(updates: Matrix) -> Matrix:
    """Each row over its length; a row of zeros stays one.

    >>> unit_rows(np.array([[3.0, 4.0], [1.7e308, -1.7e308], [0.0, 5e-324], [0.0, 0.0]])).round(3).tolist()
    [[0.6, 0.8], [0.707, -0.707], [0.0, 1.0], [0.0, 0.0]]
    """
    found = lengths(updates)
    odd = ~((found > _SAFE[0]) & (found < LARGEST))  # too long, or too short for a quotient of all digits
    units = np.asarray(updates / np.where(odd, 1.0, found)[:, None])
    for row in np.flatnonzero(odd & (found > 0)).tolist():
        whole = units[row] / np.abs(units[row]).max()
        units[row] = whole / np.linalg.norm(whole)
    return units


def mixture(updates: Matrix, weights: Vector, start: Vector | None = None) -> Vector:
    """``start`` + Σ weights[i] · row i, in float64; ``start`` counts 1 − Σ weights where it is given.

    Where rounding alone carries a sum of finite numbers past the largest float64, the result is that number.
    """
    rows, dimension = updates.shape
    step = np.empty(dimension)
    used = np.flatnonzero(weights)
    if 2 * len(used) > rows:
        used = np.arange(rows)
    few, shared = len(used) < rows, weights[used]
    rest = 1.0 - float(np.sum(weights))

    def add(part: slice, _: int) -> None:
        block = updates[used, part] if few else updates[:, part]
        step[part] = shared @ (block if block.dtype == np.float64 else block.astype(np.float64))
        if start is not None:
            step[part] += rest * start[part]

    each_block(rows, dimension, add)
    if np.isfinite(step).all():
        return step
    with np.errstate(all="ignore"):
        step[:] = (shared / 2) @ np.asarray(updates[used], dtype=np.float64)
        if start is not None:
            step += rest / 2 * start
    return np.clip(step, -LARGEST / 2, LARGEST / 2) * 2


def mixtures(updates: Matrix, weights: Matrix) -> Matrix:
    """:func:`mixture` for each row of ``weights``, in one product: (mixtures, dimension)."""
    rows, dimension = updates.shape
    found = np.empty((len(weights), dimension))
    for unit in (1.0, 0.5):  # by half where a sum of finite numbers leaves float64
        scaled = weights * unit if unit != 1 else weights

        def add(part: slice, _: int, scaled: Matrix = scaled) -> None:
            found[:, part] = scaled @ updates[:, part].astype(np.float64, copy=False)

        each_block(rows, dimension, add, numbers=max(_BLOCK, rows * _LEAST_COLUMNS), alone=True)
        if np.isfinite(found).all():
            break
    return found if unit == 1 else np.clip(found, -LARGEST / 2, LARGEST / 2) * 2


def signs(updates: Matrix, part: slice) -> Matrix:
    """The shares of a row's numbers in ``part`` that are above zero, zero, and below zero: (rows, 3)."""
    rows, width = len(updates), part.stop - part.start
    counts = np.zeros((shares(), 2, rows), dtype=np.int64)

    def add(inner: slice, share: int) -> None:
        start, stop = part.start + inner.start, part.start + inner.stop
        for row in range(rows):
            run = updates[row, start:stop]
            counts[share, 0, row] += np.count_nonzero(run > 0)
            counts[share, 1, row] += np.count_nonzero(run < 0)

    each_block(rows, width, add, numbers=rows * _RUN)
    above, below = counts.sum(axis=0)
    return np.asarray(np.stack([above, width - above - below, below], axis=1) / width)
