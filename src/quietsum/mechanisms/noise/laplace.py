"""Laplace noise on the integers at any width: from a table, or digit by digit.

Narrow discrete Laplace noise comes from one table. For any width, the digits of a geometric number are independent: let
P(G ≥ n) = exp(−n / t) for n = 0, 1, … Write G = R + 4096 · Q. Then R and Q are independent, P(R = r) ∝ exp(−r / t) for
r < 4096, and Q is geometric again, of scale t / 4096. So G is drawn digit by digit, each from a table of some thousand
entries in integer arithmetic (:mod:`quietsum.mechanisms.noise.tables`), however large t is. Two laws follow:

* discrete Laplace, P(k) ∝ exp(−|k| / s): sign and magnitude, drawn anew where the sign of a zero is minus;
* *rounded* Laplace, round(s · L) for L of the standard Laplace law: ⌊2sE⌋ is geometric of scale 2s for E exponential,
  and round(sE) = ⌊(⌊2sE⌋ + 1) / 2⌋. Since round(x + N) = x + round(N) for integer x, adding it to an integer is
  post-processing of the Laplace mechanism.

>>> from quietsum.mechanisms.rng import system_randomness
>>> noise = RoundedLaplaceNoise(scale=1e9)
>>> noise.sample(3, system_randomness()).dtype, noise.failure < 1e-30
(dtype('int64'), True)
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from fractions import Fraction
from typing import final

import numpy as np
from numpy.typing import NDArray

from quietsum.errors import InvalidParameter
from quietsum.mechanisms.noise.tables import BITS, WeightTable, exponential, falling_weights
from quietsum.mechanisms.rng import RandomSource, Shape, dimensions
from quietsum.privacy import DiscreteLaplace
from quietsum.validate import positive, set_fields

__all__ = ["LARGEST_LAPLACE_SCALE", "DiscreteLaplaceNoise", "Geometric", "RoundedLaplaceNoise", "WideLaplace"]

LARGEST_LAPLACE_SCALE = 2.0**50
_LARGEST_TABLE = 512.0  # beyond it, digits
_BASE = 1 << 12
_LAST = 64  # a scale below it has one last digit without end
_PIECE = 1 << 15


@final
@dataclass(frozen=True, kw_only=True)
class DiscreteLaplaceNoise:
    """Integer noise with P(k) ∝ exp(−|k| / scale) (Ghosh, Roughgarden, Sundararajan 2012).

    Guarantees: independent draws, each within total variation distance ``failure`` of that law.
    """

    scale: float

    def __post_init__(self) -> None:
        scale = positive("scale", self.scale, "sensitivity / ε, in steps of the grid")
        if scale > LARGEST_LAPLACE_SCALE:
            raise InvalidParameter("scale", scale, f"exceeds {LARGEST_LAPLACE_SCALE:g}", "count in coarser steps")
        set_fields(self, scale=scale)

    def sample(self, shape: Shape, rng: RandomSource) -> NDArray[np.int64]:
        """Independent draws in an array of this shape."""
        return self._law.sample(shape, rng)

    def pmf(self, k: int) -> float:
        """P(k) = tanh(1 / 2 scale) · exp(−|k| / scale) of the ideal law."""
        return math.exp(-abs(k) / self.scale) * math.tanh(0.5 / self.scale)

    @property
    def failure(self) -> float:
        """Total variation distance of one draw from the ideal law, to be charged to δ."""
        return self._law.failure

    @property
    def reach(self) -> int:
        """The largest magnitude that is ever drawn."""
        return self._law.reach

    @property
    def _law(self) -> WeightTable | WideLaplace:
        return _laplace_table(self.scale) if self.scale <= _LARGEST_TABLE else WideLaplace(self.scale)

    def event(self, sensitivity: int) -> DiscreteLaplace:
        """The event of one integer that one unit moves by at most ``sensitivity``."""
        return DiscreteLaplace(scale=self.scale, sensitivity=sensitivity)


@final
@dataclass(frozen=True, kw_only=True)
class RoundedLaplaceNoise:
    """Integer noise with the law of round(scale · L), L of density exp(−|x|) / 2.

    Guarantees: independent draws, each within total variation distance ``failure`` of P(0) = 1 − exp(−1 / 2 scale),
    P(k) = sinh(1 / 2 scale) · exp(−|k| / scale).
    """

    scale: float

    def __post_init__(self) -> None:
        scale = positive("scale", self.scale, "the noise's scale in steps of the grid")
        if scale > LARGEST_LAPLACE_SCALE:
            raise InvalidParameter("scale", scale, f"exceeds {LARGEST_LAPLACE_SCALE:g}", "count in coarser steps")
        set_fields(self, scale=scale)

    def sample(self, shape: Shape, rng: RandomSource) -> NDArray[np.int64]:
        """Independent draws in an array of this shape."""
        sizes, count = dimensions(shape)
        drawn, minus = _geometric(2 * self.scale).draw(count, rng)
        drawn += 1
        drawn >>= 1
        np.negative(drawn, out=drawn, where=minus)
        return drawn.reshape(sizes)

    def pmf(self, k: int) -> float:
        """P(k) of the ideal law."""
        half = 0.5 / self.scale
        return -math.expm1(-half) if k == 0 else math.exp(-abs(k) / self.scale) * math.sinh(half)

    @property
    def failure(self) -> float:
        """Total variation distance of one draw from the ideal law, to be charged to δ."""
        return _geometric(2 * self.scale).failure

    @property
    def reach(self) -> int:
        """The largest magnitude that is ever drawn."""
        return (_geometric(2 * self.scale).reach + 1) // 2


# --------------------------------------------------------------------------------------- their laws


@functools.lru_cache(maxsize=8)
def _laplace_table(scale: float) -> WeightTable:
    """Weights w_k = exp(−k/t): the ratio stays what it is."""
    return WeightTable.of(falling_weights(exponential(1 / Fraction(scale)), 1 << BITS))


@final
@dataclass(frozen=True)
class WideLaplace:
    """P(k) ∝ exp(−|k| / scale) without a long table: what ``DiscreteLaplaceNoise`` draws from when it is wide."""

    scale: float

    @property
    def failure(self) -> float:
        """Total variation distance of one draw: of the magnitude's, at most twice where some are drawn anew."""
        return 2 * _geometric(self.scale).failure

    @property
    def reach(self) -> int:
        """The largest magnitude that is ever drawn."""
        return _geometric(self.scale).reach

    def sample(self, shape: Shape, rng: RandomSource) -> NDArray[np.int64]:
        """Independent draws in an array of this shape."""
        sizes, count = dimensions(shape)
        law = _geometric(self.scale)
        drawn, minus = law.draw(count, rng)
        again = np.flatnonzero(minus & (drawn == 0))
        while again.size:  # zero has one sign
            magnitudes, signs = law.draw(again.size, rng)
            drawn[again], minus[again] = magnitudes, signs
            again = again[signs & (magnitudes == 0)]
        np.negative(drawn, out=drawn, where=minus)
        return drawn.reshape(sizes)


@final
class Geometric:
    """Magnitudes with P(G ≥ n) = exp(−n / scale), each with a fair coin, from the tables of its digits."""

    def __init__(self, scale: float) -> None:
        left = Fraction(scale)
        digits: list[WeightTable] = []
        while left >= _LAST:
            digits.append(WeightTable.one_sided(_falling(left, _BASE), 0))
            left /= _BASE
        *kept, beyond = _falling(left, None)
        self._digits = (*digits, WeightTable.one_sided(kept, beyond))

    @property
    def failure(self) -> float:
        """Total variation distance of one draw from the ideal law: the digits' distances add up."""
        return math.fsum(digit.failure for digit in self._digits) * (1 + 1e-15)

    @property
    def reach(self) -> int:
        """The largest magnitude that is ever drawn."""
        return sum(digit.reach * _BASE**place for place, digit in enumerate(self._digits))

    def draw(self, count: int, rng: RandomSource) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """``count`` magnitudes, and a coin for each."""
        drawn = np.empty(count, dtype=np.int64)
        coins = np.empty(count, dtype=np.bool_)
        for start in range(0, count, _PIECE):  # pieces that stay in the processor's cache
            part = drawn[start : start + _PIECE]
            words = rng.words(part.size)
            coins[start : start + _PIECE] = words & np.uint64(1)
            self._digits[0].look(words, part, rng)
            digit = np.empty_like(part)
            for place, table in enumerate(self._digits[1:], start=1):
                table.look(rng.words(part.size), digit, rng)
                digit *= _BASE**place
                part += digit
        return drawn, coins


def _falling(scale: Fraction, count: int | None) -> list[int]:
    """2¹⁹² e^{−k/scale} for k = 0, 1, …, each within 3k units: ``count`` of them, or until one is below 2⁻¹²⁸."""
    ratio, weight = exponential(1 / scale), 1 << BITS
    weights = [weight]
    while len(weights) < count if count else weight >= 1 << BITS - 128:
        weight = weight * ratio >> BITS
        weights.append(weight)
    return weights


@functools.lru_cache(maxsize=8)
def _geometric(scale: float) -> Geometric:
    return Geometric(scale)
