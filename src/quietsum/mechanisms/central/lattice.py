"""Real numbers on a grid of step 2^e: exactly, at any size, and back.

The step is a power of two, so that dividing by it only changes a float's exponent: no digit is lost before the rounding
that we mean. Numbers are rounded to the nearest multiple, halves upwards, one by one. Hence for a and b that are D
steps apart the rounded ones are at most ⌈D⌉ steps apart, and in d coordinates the L1 distance grows by less than d
steps and the L2 distance by less than √d. Those few steps are part of the sensitivity that the noise is made for.

Numbers beyond 2⁶² steps are carried as Python's integers, so none is cut off, and none wraps around.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from quietsum.errors import InvalidParameter
from quietsum.mechanisms.central.sensitivity import L1, L2, Norm

__all__ = ["Lattice", "Steps", "above", "integers", "numbers"]

Steps: TypeAlias = NDArray[Any]
"""int64, or Python's integers where those do not suffice."""

_ROOM = 1 << 62
_EXACT = 1 << 53
_BITS = 14  # of accuracy: the rounding adds at most 2^-14 of itself to the sensitivity
_FEWEST = 4


def above(value: Fraction) -> float:
    """The smallest float that is at least ``value``."""
    try:
        nearest = float(value)
    except OverflowError:
        return math.inf
    return nearest if Fraction(nearest) >= value else math.nextafter(nearest, math.inf)


def numbers(value: object, name: str = "value") -> NDArray[Any]:
    """``value`` as an array of finite float64, or of integers where it has integers.

    The message names neither the number nor its place, since both are private.
    """
    given = _array(value, name)
    given = _as_listed(given, value)
    if given.dtype == object and given.size and all(type(entry) is int or _finite(entry) for entry in given.flat):
        return given  # Python's own numbers: integers beyond 64 bits, or beyond 53 among floats
    if given.dtype.kind not in "fiu" or given.dtype.itemsize > 8:
        kind = str(given.dtype) if isinstance(value, np.ndarray) else type(value).__name__
        raise InvalidParameter(name, kind, "does not hold real numbers of at most 64 bits", "pass floats or integers")
    if given.dtype.kind == "f":
        given = given.astype(np.float64)
        if not np.isfinite(given).all():
            raise InvalidParameter(
                name, "NaN or an infinity", "cannot be released",
                "bound every unit's part before they are summed, by a rule that looks at one unit at a time",
            )  # fmt: skip
    return given


def _as_listed(given: NDArray[Any], value: object) -> NDArray[Any]:
    """The numbers of a list that holds large integers among floats, or negative ones among those beyond 2⁶³, as listed.

    Of such a list numpy makes floats: integers beyond 2⁵³ are rounded, and neighbours come to lie 2,048 apart.
    """
    if given.dtype.kind != "f" or not isinstance(value, Sequence) or not given.size:
        return given
    if not np.isfinite(given).all() or np.abs(given).max() < _EXACT:
        return given
    listed = np.array(value, dtype=object)
    if listed.shape != given.shape:
        return given
    plain = [int(each) if isinstance(each, int | np.integer) else float(each) for each in listed.flat]
    found = np.empty(len(plain), dtype=object)
    found[:] = plain
    return found.reshape(listed.shape)


def _finite(value: object) -> bool:
    return type(value) is float and math.isfinite(value)


def _array(value: object, name: str) -> NDArray[Any]:
    try:
        return np.asarray(value)
    except ValueError:  # rows of different lengths
        raise InvalidParameter(name, type(value).__name__, "is not a rectangle of numbers") from None


def integers(value: object) -> tuple[NDArray[np.int64], bool]:
    """``value`` as int64 clamped to ±2⁶² (which moves no two values apart), and whether it was a single number."""
    given = _as_listed(_array(value, "value"), value)
    python = given.dtype == object and given.size and all(type(entry) is int for entry in given.flat)
    if given.dtype.kind not in "iu" and not python:
        kind = str(given.dtype) if isinstance(value, np.ndarray) else type(value).__name__
        raise InvalidParameter(
            "value", kind, "does not hold whole numbers", "round first, or use LaplaceMechanism or GaussianMechanism"
        )
    if given.dtype.kind == "u" or python:
        given = np.array([max(-_ROOM, min(_ROOM, int(entry))) for entry in given.flat], dtype=np.int64).reshape(
            given.shape
        )
    return np.clip(given.astype(np.int64), -_ROOM, _ROOM), given.ndim == 0


@final
@dataclass(frozen=True)
class Lattice:
    """The multiples of 2^exponent."""

    exponent: int

    @classmethod
    def for_noise(cls, sensitivity: Norm, noise_multiplier: float, size: int, widest: float) -> Lattice:
        """The grid for ``size`` coordinates with noise of ``noise_multiplier`` times the sensitivity.

        Public values alone decide. The step is 2⁻¹⁴ of the sensitivity or less, so fine that the noise has many steps
        and that rounding all coordinates adds little; coarser where the noise would be wider than ``widest`` steps.
        """
        spread = math.ceil(math.log2(size)) if size > 1 else 0
        if not isinstance(sensitivity, L1):
            spread = (spread + 1) // 2  # what √d adds
        bits = _BITS + spread + max(0, math.ceil(-math.log2(noise_multiplier)))
        most = math.floor(math.log2(widest) - math.log2(noise_multiplier)) - 2
        if not isinstance(sensitivity, L1 | L2):  # all coordinates move: the noise is that much wider in steps
            most -= math.ceil(math.log2(max(1, size)))
        return cls(math.frexp(sensitivity.bound)[1] - 1 - max(_FEWEST, min(bits, most)))

    @property
    def step(self) -> float:
        """The width of the grid."""
        return math.ldexp(1.0, self.exponent)

    def steps_of(self, sensitivity: float) -> int:
        """How many steps two numbers may be apart that were ``sensitivity`` apart before they were rounded."""
        return math.ceil(Fraction(sensitivity) / Fraction(2) ** self.exponent)

    def round(self, values: NDArray[Any]) -> Steps:
        """Each number as its nearest multiple, in steps; halves go up."""
        if values.dtype.kind != "f":
            if not values.size or max(abs(int(values.max())), abs(int(values.min()))) <= _EXACT:
                return self.round(values.astype(np.float64))
            exact = [entry if type(entry) is float else int(entry) for entry in values.flat]
            return np.array([_nearest(entry, self.exponent) for entry in exact], dtype=object).reshape(values.shape)
        if values.size and float(np.abs(values).max()) >= math.ldexp(1.0, 61 + self.exponent):
            return np.array([_nearest(float(entry), self.exponent) for entry in values.flat], dtype=object).reshape(
                values.shape
            )
        with np.errstate(under="ignore"):
            scaled = np.ldexp(values, -self.exponent)  # exact; what underflows is nearest to zero either way
        down = np.floor(scaled)
        return np.asarray(down + (scaled - down >= 0.5)).astype(np.int64)

    def back(self, steps: Steps) -> NDArray[np.float64]:
        """The numbers of these multiples, each to the nearest float (the largest one at most)."""
        if steps.dtype != object:
            return np.asarray(np.ldexp(steps.astype(np.float64), self.exponent))
        return np.array([_float(int(entry), self.exponent) for entry in steps.flat]).reshape(steps.shape)


def _nearest(value: float, exponent: int) -> int:
    return math.floor(Fraction(value) / Fraction(2) ** exponent + Fraction(1, 2))


def _float(steps: int, exponent: int) -> float:
    try:
        return float(Fraction(steps) * Fraction(2) ** exponent)
    except OverflowError:
        return math.copysign(np.finfo(np.float64).max, 1 if steps > 0 else -1)
