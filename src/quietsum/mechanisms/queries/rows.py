"""Rows within public bounds: each is clamped and put on a grid by itself, so that it moves no other.

A sum over rows moves by what we say only if each row's part is bounded *as it is stored* and depends on that row alone.
So rows become integers of a public grid one by one, are clipped there once more, and are added up without rounding.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from quietsum.errors import InvalidParameter
from quietsum.mechanisms.central.lattice import Lattice
from quietsum.privacy import Neighbours
from quietsum.validate import finite_number

__all__ = [
    "Bounds",
    "Missing",
    "bound_values",
    "check_bounds",
    "check_missing",
    "check_relation",
    "column",
    "grid_for",
    "list_values",
    "total",
]

Bounds: TypeAlias = tuple[float, float]
Missing: TypeAlias = Literal["refuse", "skip"] | float
"""What becomes of NaN and infinities: an error, nothing at all, or this number."""

_FINE = 20  # bits of the largest magnitude
_MOST_ROWS = 1 << 36


def check_bounds(bounds: object) -> Bounds:
    """Two finite numbers, the first below the second."""
    remedy = "state public bounds as (lowest, highest); never take them from the data"
    if not isinstance(bounds, tuple | list) or len(bounds) != 2:
        raise InvalidParameter("bounds", bounds, "are not two numbers", remedy)
    low, high = (finite_number("bounds", each, remedy) for each in bounds)
    if not low < high:
        raise InvalidParameter("bounds", (low, high), "are not in order", remedy)
    if not 1e-90 <= high - low <= 1e90:
        raise InvalidParameter("bounds", (low, high), "lie outside what a grid holds", "rescale the rows")
    return low, high


def check_missing(missing: object) -> Missing:
    """The rule for rows that are NaN or infinite."""
    if missing in ("refuse", "skip"):
        return missing
    return finite_number("missing", missing, "choose 'refuse', 'skip', or a number to stand for it")


def check_relation(neighbours: object) -> Neighbours:
    """The relation that a query's ε is stated for."""
    try:
        return Neighbours(str(neighbours))
    except ValueError:
        known = ", ".join(f"'{each}'" for each in Neighbours)
        raise InvalidParameter("neighbours", neighbours, "is unknown", f"choose one of {known}") from None


def list_values(name: str, values: object, remedy: str) -> list[Any]:
    """``values`` as a list."""
    if not isinstance(values, Iterable):
        raise InvalidParameter(name, type(values).__name__, "is not a list", remedy)
    return list(values)


def column(rows: ArrayLike, missing: Missing) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """The rows as float64, and which of them count.

    The message of a refusal names neither the row nor the number, since both are private.
    """
    try:
        given = np.asarray(rows)
    except ValueError:  # rows of different lengths
        given = np.empty((0, 0))
    if given.ndim != 1 or (given.dtype.kind not in "fiu" and given.size):
        kind = f"{given.dtype} of shape {given.shape}"
        raise InvalidParameter("rows", kind, "are not a list of numbers", "pass one number a row")
    values = given.astype(np.float64)
    good = np.isfinite(values)
    if good.all():
        return values, good
    if missing == "refuse":
        raise InvalidParameter(
            "rows", "NaN or an infinity", "is among the rows",
            "clean them by a rule that looks at one row at a time, or state missing='skip' or a number for them",
        )  # fmt: skip
    if missing == "skip":
        return np.where(good, values, 0.0), good
    return np.where(good, values, float(missing)), np.ones_like(good)


@final
@dataclass(frozen=True)
class Grid:
    """The grid of rows whose magnitude is at most ``largest`` steps of it."""

    lattice: Lattice
    largest: int


def grid_for(magnitude: float) -> Grid:
    """A grid of 2²⁰ steps or more to the largest magnitude."""
    lattice = Lattice(math.frexp(magnitude)[1] - 1 - _FINE)
    return Grid(lattice, lattice.steps_of(magnitude))


def bound_values(values: NDArray[np.float64], low: float, high: float, grid: Grid) -> NDArray[np.int64]:
    """Each value clamped to [low, high], in steps of the grid, and none beyond ``grid.largest``."""
    steps = grid.lattice.round(np.clip(values, low, high))
    return np.clip(steps, -grid.largest, grid.largest)


def total(steps: NDArray[np.int64]) -> int:
    """The exact sum."""
    if steps.size > _MOST_ROWS:
        raise InvalidParameter("rows", steps.size, "are too many for one exact sum", "add up parts of them")
    return int(steps.sum())
