"""Noise on the integers from exact tables: the discrete Gaussian and the discrete Laplace law.

Both laws have weights that obey a multiplication rule from one integer to the next, so a table of them is made in plain
integer arithmetic, to 2⁻¹⁹²: no float takes part. A draw takes one random word: its last bit is the sign, the rest is
looked up among the cumulated weights, first through a guide that answers nearly all of them at once, then by bisection,
then, where 63 bits tie with a table entry, with 64 more.

What the table cannot do is to be infinite. ``failure`` bounds the total variation distance between a draw and the ideal
law (the tail cut off, the last bit of every entry) and belongs to δ. These laws serve counts and single queries;
for sums of vectors see :mod:`quietsum.mechanisms.gaussian`, and ``docs/decisions`` for why. Laplace noise that is wider
than a table of moderate size comes digit by digit (:mod:`quietsum.mechanisms.geometric`).

>>> from quietsum.mechanisms.rng import system_randomness
>>> noise = DiscreteGaussianNoise(sigma=8.0)
>>> noise.sample((2, 3), system_randomness()).dtype, noise.failure < 1e-30
(dtype('int64'), True)
>>> noise.event(sensitivity=1)
DiscreteGaussian(sigma=8.0, sensitivity=1.0, dimension=1)
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate
from typing import TYPE_CHECKING, final

import numpy as np
from numpy.typing import NDArray

from quietsum.errors import InvalidParameter
from quietsum.mechanisms.rng import RandomSource, Shape, dimensions
from quietsum.privacy import DiscreteGaussian, DiscreteLaplace
from quietsum.validate import positive

if TYPE_CHECKING:
    from quietsum.mechanisms.geometric import WideLaplace

__all__ = [
    "BITS",
    "LARGEST_LAPLACE_SCALE",
    "LARGEST_SIGMA",
    "DiscreteGaussianNoise",
    "DiscreteLaplaceNoise",
    "Table",
    "exponential",
]

LARGEST_SIGMA = 2.0**16
LARGEST_LAPLACE_SCALE = 2.0**50
_LARGEST_LAPLACE_TABLE = 512.0  # beyond it, digits

BITS = 192
"""Of a weight: 2¹⁹² is the weight of zero."""
_UNITS = 127  # of a cumulated probability: 63 for the first look, 64 for ties
_PIECE = 1 << 15


@final
@dataclass(frozen=True, kw_only=True)
class DiscreteGaussianNoise:
    """Integer noise with P(k) ∝ exp(−k² / 2 sigma²) (Canonne, Kamath, Steinke 2020, Definition 1).

    Guarantees: independent draws, each within total variation distance ``failure`` of that law.
    """

    sigma: float

    def __post_init__(self) -> None:
        sigma = positive("sigma", self.sigma, "the standard deviation in steps of the grid")
        if sigma > LARGEST_SIGMA:
            remedy = "count in coarser steps, or use rounded normals, which need no table"
            raise InvalidParameter("sigma", sigma, f"exceeds {LARGEST_SIGMA:g}", remedy)
        object.__setattr__(self, "sigma", sigma)

    def sample(self, shape: Shape, rng: RandomSource) -> NDArray[np.int64]:
        """Independent draws in an array of this shape."""
        return _gaussian_table(self.sigma).sample(shape, rng)

    def pmf(self, k: int) -> float:
        """P(k) of the ideal law."""
        return math.exp(-0.5 * (k / self.sigma) * (k / self.sigma)) * _gaussian_table(self.sigma).at_zero

    @property
    def failure(self) -> float:
        """Total variation distance of one draw from the ideal law, to be charged to δ."""
        return _gaussian_table(self.sigma).failure

    @property
    def reach(self) -> int:
        """The largest magnitude that is ever drawn."""
        return _gaussian_table(self.sigma).reach

    def event(self, sensitivity: float) -> DiscreteGaussian:
        """The event of one integer that one unit moves by at most ``sensitivity``."""
        return DiscreteGaussian(sigma=self.sigma, sensitivity=sensitivity)


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
        object.__setattr__(self, "scale", scale)

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
    def _law(self) -> Table | WideLaplace:
        if self.scale <= _LARGEST_LAPLACE_TABLE:
            return _laplace_table(self.scale)
        from quietsum.mechanisms.geometric import WideLaplace  # which is made of this module's tables

        return WideLaplace(self.scale)

    def event(self, sensitivity: int) -> DiscreteLaplace:
        """The event of one integer that one unit moves by at most ``sensitivity``."""
        return DiscreteLaplace(scale=self.scale, sensitivity=sensitivity)


# ------------------------------------------------------------------------------------------------ the tables


@functools.lru_cache(maxsize=8)
def _gaussian_table(sigma: float) -> Table:
    """Weights w_k = exp(−k²/2σ²): w_{k+1} = w_k r_k with r_0 = exp(−1/2σ²) and r_{k+1} = r_k exp(−1/σ²)."""
    variance = Fraction(sigma) ** 2
    return Table.of(_weights(exponential(1 / (2 * variance)), exponential(1 / variance)))


@functools.lru_cache(maxsize=8)
def _laplace_table(scale: float) -> Table:
    """Weights w_k = exp(−k/t): the ratio stays what it is."""
    return Table.of(_weights(exponential(1 / Fraction(scale)), 1 << BITS))


def _weights(ratio: int, change: int) -> list[int]:
    """2¹⁹² w_k for k = 0, 1, … until the weight is below 2⁻¹²⁸: w_{k+1} = w_k · ratio, then ratio ← ratio · change.

    In units of 2⁻¹⁹²: the first ratio is off by at most 2, as is the change, and each product is cut by at most 1, so
    the k-th ratio is off by at most 3k + 2, and the k-th weight by at most 2 (k + 1)².
    """
    weights, weight = [], 1 << BITS
    least = 1 << BITS - 128
    while weight >= least:
        weights.append(weight)
        weight = weight * ratio >> BITS
        ratio = ratio * change >> BITS
    weights.append(weight)  # the first one cut off, for the bound
    return weights


def exponential(exponent: Fraction) -> int:
    """⌊2¹⁹² e^{−exponent}⌋ within two units: Taylor's series of a small part of it, squared back."""
    if exponent > 400:
        return 0  # e^−400 is below 2^−577
    halvings = max(0, math.ceil(math.log2(max(float(exponent), 1e-300))) + 8)
    bits = BITS + 64 + halvings
    small = (exponent.numerator << bits) // (exponent.denominator << halvings)
    term, total, n = 1 << bits, 0, 0
    while term:
        total += term if n % 2 == 0 else -term
        n += 1
        term = (term * small >> bits) // n
    for _ in range(halvings):
        total = total * total >> bits
    return total >> bits - BITS


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Table:
    """Cumulated probabilities of |k| in units of 2⁻¹²⁷: ``first`` holds the upper 63 bits, ``rest`` the lower 64."""

    first: NDArray[np.uint64]
    rest: NDArray[np.uint64]
    guide: NDArray[np.int32]
    shift: int
    at_zero: float
    failure: float

    @classmethod
    def of(cls, weights: list[int]) -> Table:
        """The table of |k| for a symmetric law with these weights, the last of which is the first one left out."""
        kept, beyond = weights[:-1], weights[-1]
        sums = list(accumulate(kept))
        total = 2 * sums[-1] - kept[0]  # both sides, zero once
        shift = BITS + 64
        inverse = (1 << shift + _UNITS) // total
        twice, zero = 2 * inverse, kept[0] * inverse
        parts = [value * twice - zero >> shift for value in sums]  # ⌊2^127 P(|k| ≤ …)⌋, within two units
        return cls._cumulated(parts, (1 << BITS) / total, _distance(kept, beyond, total))

    @classmethod
    def one_sided(cls, kept: list[int], beyond: int) -> Table:
        """The table of k = 0, 1, … with the weights ``kept``; ``beyond`` is the first one left out, 0 if none is."""
        sums = list(accumulate(kept))
        shift = BITS + 64
        inverse = (1 << shift + _UNITS) // sums[-1]
        parts = [value * inverse >> shift for value in sums]
        return cls._cumulated(parts, (1 << BITS) / sums[-1], _distance(kept, beyond, sums[-1]))

    @classmethod
    def _cumulated(cls, parts: list[int], at_zero: float, failure: float) -> Table:
        parts[-1] = 1 << _UNITS
        octets = np.frombuffer(b"".join([part.to_bytes(16, "little") for part in parts]), dtype="<u8").reshape(-1, 2)
        first, rest = octets[:, 1].astype(np.uint64), octets[:, 0].astype(np.uint64)
        guide, shift = _guide(first)
        return cls(first=first, rest=rest, guide=guide, shift=shift, at_zero=at_zero, failure=failure)

    @property
    def reach(self) -> int:
        """The largest magnitude that is ever drawn."""
        return self.first.size - 1

    def sample(self, shape: Shape, rng: RandomSource) -> NDArray[np.int64]:
        """Independent draws with the table's law."""
        sizes, count = dimensions(shape)
        drawn = np.empty(count, dtype=np.int64)
        for start in range(0, count, _PIECE):
            self._draw(drawn[start : start + _PIECE], rng)
        return drawn.reshape(sizes)

    def _draw(self, out: NDArray[np.int64], rng: RandomSource) -> None:
        words = rng.words(out.size)
        self.look(words, out, rng)
        np.negative(out, out=out, where=(words & np.uint64(1)).astype(np.bool_))

    def look(self, words: NDArray[np.uint64], out: NDArray[np.int64], rng: RandomSource) -> None:
        """The entries that the upper 63 bits of ``words`` lead to; the last bits are left for signs."""
        uniform = words >> np.uint64(1)
        out[:] = self.guide[uniform >> np.uint64(self.shift)]
        unsure = np.flatnonzero(out < 0)
        if unsure.size:
            out[unsure] = self._search(uniform[unsure], rng)

    def _search(self, uniform: NDArray[np.uint64], rng: RandomSource) -> NDArray[np.int64]:
        """How many entries are ≤ the uniform, by bisection on 63 bits, and on 64 more where those tie."""
        below = np.searchsorted(self.first, uniform, side="left")
        found = np.searchsorted(self.first, uniform, side="right")
        for tie in np.flatnonzero(below != found):
            among = self.rest[below[tie] : found[tie]]
            found[tie] = below[tie] + np.count_nonzero(among <= rng.words(1)[0])
        return found.astype(np.int64)


def _guide(first: NDArray[np.uint64]) -> tuple[NDArray[np.int32], int]:
    """For every value of the leading bits: the one answer they leave possible, or −1 where they leave several."""
    leading = min(21, max(12, first.size.bit_length() + 4))
    shift = 63 - leading
    within = (first[first < np.uint64(1 << 63)] >> np.uint64(shift)).astype(np.int64)
    entries = np.bincount(within, minlength=1 << leading)  # that begin with these bits
    through = np.cumsum(entries)
    return np.where(entries == 0, through, -1).astype(np.int32), shift


def _distance(kept: list[int], beyond: int, total: int) -> float:
    """A bound on the total variation distance between the table's law and the ideal one.

    The tail: from the first weight left out they fall at least as fast as geometrically, at its ratio to the one
    before. The weights: each off by at most 2 (k + 1)² units. The entries: each cut by at most two units of 2⁻¹²⁷.
    Weights that differ from others by e in sum, relative to their own total, make laws that differ by at most e.
    """
    size = len(kept)
    off = 2 * (size + 1) ** 2
    tail = Fraction(2 * (beyond + off), total) / (1 - Fraction(beyond + off, kept[-1] - off))
    errors = Fraction(2 * size * off, total)
    cuts = Fraction(2 * size, 1 << _UNITS)
    return float(tail + errors + cuts) * (1 + 1e-15)
