"""Lengths, distances, cosines and means of rows, whatever finite numbers they hold.

Squares of numbers beyond 1e154 are beyond float64. Here such a row is infinitely far from the others and its length is
still right, and a mean of finite rows is finite.
"""

from __future__ import annotations

import numpy as np

from quietsum.aggregation.fold import length_of
from quietsum.aggregation.robust.rule import Matrix, Vector

__all__ = ["cosines", "lengths", "means", "squared_distances", "steady_order", "unit_rows", "weighted_sum"]

_HALVED = 2.0**-10
"""Rows are made smaller by this before they are added up where their sum may be beyond float64; exact, unless tiny."""
_LARGE = 2.0**1000
_CANCELLED = 1e-6
"""A distance this small against the lengths has lost its digits in |x|² + |y|² − 2 x·y, and is computed anew."""


def lengths(updates: Matrix) -> Vector:
    """The length of each row, or the largest number where it is beyond float64."""
    with np.errstate(over="ignore", under="ignore"):
        found: Vector = np.sqrt(np.einsum("ij,ij->i", updates, updates, dtype=np.float64))
    for row in np.flatnonzero(~((found > 1e-150) & (found < 1e150))):
        found[row] = length_of(np.asarray(updates[row], dtype=np.float64))
    return np.minimum(found, np.finfo(np.float64).max)


def unit_rows(updates: Matrix) -> Matrix:
    """Each row over its length; a row of zeros stays one."""
    rows = np.asarray(updates, dtype=np.float64)
    largest = np.abs(rows).max(axis=1, initial=0.0, keepdims=True)
    small: Matrix = rows / np.where(largest > 0, largest, 1.0)
    size = np.linalg.norm(small, axis=1, keepdims=True)
    return np.asarray(small / np.where(size > 0, size, 1.0))


def cosines(updates: Matrix) -> Matrix:
    """cos(xᵢ, xⱼ) for every pair; 0 where a row is zero."""
    units = unit_rows(updates)
    return np.asarray(np.clip(units @ units.T, -1.0, 1.0))


def squared_distances(updates: Matrix) -> Matrix:
    """|xᵢ − xⱼ|² for every pair, infinite where it is beyond float64."""
    rows = np.asarray(updates, dtype=np.float64)
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        products = rows @ rows.T
        squares = products.diagonal()
        found = squares[:, None] + squares[None, :] - 2 * products
        found = np.where(np.isnan(found), np.inf, found)
        doubtful = found <= _CANCELLED * np.minimum(squares[:, None] + squares[None, :], _LARGE)
        for one, other in zip(*np.nonzero(np.triu(doubtful, 1)), strict=True):
            apart = rows[one] - rows[other]
            found[one, other] = found[other, one] = float(apart @ apart)
    np.fill_diagonal(found, 0.0)
    return np.asarray(found)


def means(updates: Matrix, rows: Matrix | None = None) -> Vector:
    """The mean of all rows, or of those that ``rows`` marks."""
    some = updates if rows is None else updates[rows]
    return weighted_sum(some, np.full(len(some), 1 / len(some)))


def weighted_sum(updates: Matrix, weights: Vector) -> Vector:
    """Σ wᵢ·xᵢ, finite wherever Σ |wᵢ| ≤ 1."""
    with np.errstate(over="ignore", invalid="ignore"):
        found = np.asarray(weights @ updates, dtype=np.float64)
        if np.isfinite(found).all():
            return found
        small = weights @ (np.asarray(updates, dtype=np.float64) * _HALVED)
    most = np.finfo(np.float64).max
    return np.asarray(np.clip(small, -most * _HALVED, most * _HALVED) / _HALVED, dtype=np.float64)


def steady_order(updates: Matrix) -> Matrix:
    """An order of the rows that depends on what they hold and not on where they stand, for ties and for draws."""
    first = [np.ascontiguousarray(row[:64]).tobytes() for row in updates]
    with np.errstate(over="ignore", invalid="ignore"):
        rest = [float(np.nan_to_num(np.sum(row, dtype=np.float64))) for row in updates]
    return np.array(sorted(range(len(updates)), key=lambda row: (first[row], rest[row])), dtype=np.int64)
