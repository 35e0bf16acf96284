"""Exact tables of laws on the integers: weights in integer arithmetic, and a draw that looks them up.

The weights of a law are given as integers in units of 2⁻¹⁹², so no float takes part. A draw takes one random word: its
last bit is the sign, the rest is looked up among the cumulated weights, first through a guide that answers nearly all
of them at once, then by bisection, then, where 63 bits tie with a table entry, with 64 more.

A table ends somewhere. ``failure`` bounds the total variation distance between a draw and the ideal law (the tail cut
off, the last bit of every entry) and belongs to δ.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate
from typing import final

import numpy as np
from numpy.typing import NDArray

from quietsum.mechanisms.rng import RandomSource, Shape, dimensions

__all__ = ["BITS", "WeightTable", "exponential", "falling_weights"]

BITS = 192
"""Of a weight: 2¹⁹² is the weight of zero."""
_UNITS = 127  # of a cumulated probability: 63 for the first look, 64 for ties
_PIECE = 1 << 15


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class WeightTable:
    """Cumulated probabilities of |k| in units of 2⁻¹²⁷: ``first`` holds the upper 63 bits, ``rest`` the lower 64."""

    first: NDArray[np.uint64]
    rest: NDArray[np.uint64]
    guide: NDArray[np.int32]
    shift: int
    at_zero: float
    failure: float

    @classmethod
    def of(cls, weights: list[int]) -> WeightTable:
        """The table of |k| for a symmetric law with these weights, the last of which is the first one left out."""
        kept, beyond = weights[:-1], weights[-1]
        sums = list(accumulate(kept))
        total = 2 * sums[-1] - kept[0]  # both sides, zero once
        shift = BITS + 64
        inverse = (1 << shift + _UNITS) // total
        twice, zero = 2 * inverse, kept[0] * inverse
        parts = [value * twice - zero >> shift for value in sums]  # ⌊2^127 P(|k| ≤ …)⌋, within two units
        return cls._from_cumulated(parts, (1 << BITS) / total, _distance(kept, beyond, total))

    @classmethod
    def one_sided(cls, kept: list[int], beyond: int) -> WeightTable:
        """The table of k = 0, 1, … with the weights ``kept``; ``beyond`` is the first one left out, 0 if none is."""
        sums = list(accumulate(kept))
        shift = BITS + 64
        inverse = (1 << shift + _UNITS) // sums[-1]
        parts = [value * inverse >> shift for value in sums]
        return cls._from_cumulated(parts, (1 << BITS) / sums[-1], _distance(kept, beyond, sums[-1]))

    @classmethod
    def _from_cumulated(cls, parts: list[int], at_zero: float, failure: float) -> WeightTable:
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


def falling_weights(ratio: int, change: int) -> list[int]:
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
