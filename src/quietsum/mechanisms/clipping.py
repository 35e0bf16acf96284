"""Clipping rows, twice: onto an integer grid where the norm is verified, and in plain floats.

A sum over rows has the sensitivity we claim only if (a) every row's norm is within the bound *as stored*, and (b)
adding a row changes no other row. Floats break both quietly: a norm in float64 may come out too small by an ulp, and
may come out differently when the batch has another shape or layout. So on the grid every step is either elementwise
(correctly rounded, hence the same wherever the row stands) or a sum of whole numbers below 2⁵³, which float64 adds
exactly in any order. Should a sum of squares exceed 2⁵³, some partial sum reaches 2⁵³ and, rounding being monotone, so
does the result: too long is never mistaken for short.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from quietsum.errors import InvalidParameter

__all__ = ["LARGEST_NORM", "MOST_COORDINATES", "SMALLEST_NORM", "clip_rows", "grid_rows"]

SMALLEST_NORM, LARGEST_NORM = 1e-100, 1e100
MOST_COORDINATES = 1 << 32
_TINIEST = 2.0**-900  # a row below it is zero on every grid: its norm is below 1e-250, a grid's width above 1e-108
_CHUNK = 1 << 15  # numbers that stay in the processor's cache


def grid_rows(rows: NDArray[np.float64], max_norm: float, grid_norm: int) -> NDArray[np.int64]:
    """Rows clipped to ``max_norm`` and cut toward zero onto the grid of width max_norm / grid_norm (at most 2²⁵ of it).

    Guarantees: every integer row has Σ kᵢ² ≤ grid_norm², verified exactly; a row that fails is shrunk until it holds.
    Non-finite rows are zero.
    """
    if rows.shape[1] > MOST_COORDINATES:
        raise InvalidParameter("vectors.shape", rows.shape, f"exceeds {MOST_COORDINATES} coordinates", "split it")
    bounded = np.zeros(rows.shape, dtype=np.int64)
    if rows.size:
        step = max(1, _CHUNK // rows.shape[1])
        for start in range(0, rows.shape[0], step):
            bounded[start : start + step] = _bound_rows(rows[start : start + step], max_norm, grid_norm)
    return bounded


def _bound_rows(rows: NDArray[np.float64], max_norm: float, grid_norm: int) -> NDArray[np.float64]:
    sizes = np.maximum(rows.max(axis=1), -rows.min(axis=1))
    nothing = ~((sizes >= _TINIEST) & (sizes <= np.finfo(np.float64).max))  # NaN compares as False
    if nothing.any():
        rows = np.where(nothing[:, None], 0.0, rows)
        sizes = np.where(nothing, 1.0, sizes)
    powers = np.ldexp(1.0, -np.frexp(sizes)[1])  # row · power lies inside (−1, 1), be it 1e308 or 1e-108
    norms = _norms(rows, powers)
    with np.errstate(over="ignore", under="ignore"):
        clipped = norms > max_norm * powers
        factors = np.where(clipped, grid_norm / np.maximum(norms, 0.5) * powers, grid_norm / max_norm)
        scaled = rows * factors[:, None]
    return _shrink_to_norm(np.trunc(scaled, out=scaled), grid_norm)  # toward zero, which never lengthens a row


def _norms(rows: NDArray[np.float64], powers: NDArray[np.float64]) -> NDArray[np.float64]:
    """The norm of each row · power: the root of an exact sum, over coordinates of as many bits as fit together.

    Good to a few digits only for vectors of one large and millions of small coordinates; :func:`_shrink_to_norm` does
    not rely on it.
    """
    bits = (53 - math.ceil(math.log2(rows.shape[1]))) // 2
    with np.errstate(under="ignore"):
        whole = rows * (powers * 2.0**bits)[:, None]
    np.rint(whole, out=whole)
    return np.sqrt(_squares(whole)) * 2.0**-bits


def _squares(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Σ kᵢ² of each row of whole numbers: exact below 2⁵³, and never below 2⁵³ when it is not."""
    return np.asarray(np.einsum("ij,ij->i", rows, rows), dtype=np.float64)


def _shrink_to_norm(rows: NDArray[np.float64], grid_norm: int) -> NDArray[np.float64]:
    """Rows of whole numbers, those beyond the norm shrunk toward zero until they are within it."""
    squares = _squares(rows)
    shrink = 1.0 - 2.0**-40
    while (beyond := np.flatnonzero(squares > grid_norm * grid_norm)).size:
        factors = grid_norm / np.sqrt(squares[beyond]) * shrink
        rows[beyond] = np.trunc(rows[beyond] * factors[:, None])
        squares[beyond] = _squares(rows[beyond])
        shrink *= shrink  # one pass is enough; should it ever not be, the next one shrinks more
    return rows


def clip_rows(rows: NDArray[np.float64], max_norm: float) -> NDArray[np.float64]:
    """Rows clipped to ``max_norm`` in float64, non-finite rows zero. Right up to rounding, which is not verified."""
    if rows.size == 0:
        return np.zeros(rows.shape)
    with np.errstate(all="ignore"):
        squares = np.einsum("ij,ij->i", rows, rows)
        factors = np.minimum(1.0, max_norm / np.sqrt(squares))
        odd = np.flatnonzero(~((squares > 1e-280) & (squares < 1e280)))
        bounded: NDArray[np.float64] = rows * factors[:, None]
    for index in odd.tolist():  # zero, tiny, huge or broken: rare, and scaled by its largest magnitude first
        row = rows[index]
        size = float(np.abs(row).max())
        if not math.isfinite(size) or size == 0:
            bounded[index] = 0.0
            continue
        direction = row / size
        norm = math.sqrt(float(direction @ direction))
        bounded[index] = direction * min(size, max_norm / norm)
    return bounded
