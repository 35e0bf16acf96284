"""Integers with exactly the law of round(s · N(0, 1)): a quick answer nearly always, the right one always.

The tail probability U of a normal is read lazily as an infinite string of random bits. Sixty-three of them pin the
normal down to a few ulps, which decides the rounding unless s · X lies within a margin of a half-integer that covers
every rounding error. Then 128 more bits are read, and U is compared with the tail probability Q((k + ½)/s) of that very
boundary, in integer arithmetic. So no float ever decides a draw that it cannot decide.

Guarantees: each draw is an independent integer k with P(k) = Φ((k + ½)/s) − Φ((k − ½)/s), up to a total variation
distance of :data:`FAILURE_PER_DRAW`: what is left when even 191 bits of U tie with a boundary. Since
round(x + N) = x + round(N) for integer x, adding such a draw to an integer is post-processing of the Gaussian
mechanism.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from quietsum.errors import InvalidParameter
from quietsum.validate import positive

__all__ = ["FAILURE_PER_DRAW", "LARGEST_SCALE", "MARGIN", "round_words", "rounded_normals", "tail_bits"]

FAILURE_PER_DRAW = 2.0**-128
"""Total variation distance of one draw from the ideal law.

A draw can err only where its 191 bits agree with a boundary's tail probability to within 2⁻¹⁹⁰. There are at most
2 · 17 · 2⁴⁰ + 1 < 2⁴⁷ boundaries in reach, of which each is hit with probability 2⁻¹⁸⁹ or less, and bits that run out
beyond 15.8 standard deviations have probability 2⁻¹⁹¹: together less than 2⁻¹⁴¹.
"""

LARGEST_SCALE = 2.0**40

MARGIN = 2.0**-45
"""How far scipy's ndtri(u) may lie from Φ⁻¹(u), divided by 1 + |Φ⁻¹(u)|, u's own last bit included.

A test against mpmath holds that this is more than sixteen times what is needed
(tests/mechanisms/noise/test_rounded_normal.py). A wider margin costs time only.
"""

_BITS = 192  # of U, the leading one being zero since U < 1/2
_CHUNK = 1 << 15
_TAIL = 1 << 52  # of 2^63: below it, fewer than 53 leading bits are left in the first word
_LEAST = 1 << 11  # below it even the second word may leave too few; once in 2^52 draws
_REACH = 17.0  # Q(17) < 2^-212


def rounded_normals(
    scale: float, count: int, words: Callable[[int], NDArray[np.uint64]], *, margin: float = MARGIN
) -> NDArray[np.int64]:
    """``count`` draws of round(scale · N(0, 1)) from a source of random 64-bit words.

    ``margin`` is for tests: with a wide one every draw takes the slow path, to the same result on the same bits.
    """
    scale = _scale(scale)
    drawn = np.empty(count, dtype=np.int64)
    for start in range(0, count, _CHUNK):  # pieces that stay in the processor's cache
        part = drawn[start : start + _CHUNK]
        _draw(part, words(part.size), scale, words, margin)
    return drawn


def round_words(
    first: NDArray[np.uint64], scale: float, words: Callable[[int], NDArray[np.uint64]]
) -> NDArray[np.int64]:
    """The draws of :func:`rounded_normals` whose first words are known already; ``words`` gives those that follow.

    Guarantees: where the first words are fresh and uniform, the draws have the law of :func:`rounded_normals`. Bit 0 of
    a word is the sign, 1 for negative; the others are the first 63 of the tail probability U behind its leading zero.
    """
    drawn = np.empty(first.size, dtype=np.int64)
    for start in range(0, first.size, _CHUNK):
        part = slice(start, start + _CHUNK)
        _draw(drawn[part], first[part], _scale(scale), words, MARGIN)
    return drawn


def _draw(
    out: NDArray[np.int64],
    first: NDArray[np.uint64],
    scale: float,
    words: Callable[[int], NDArray[np.uint64]],
    margin: float,
) -> None:
    tails = first >> np.uint64(1)
    uniform = tails.astype(np.float64)
    uniform += 0.5
    more: dict[int, int] = {}  # the second word, where one was read
    small = np.flatnonzero(tails < _TAIL)
    if small.size:  # too few leading bits left: read on
        second = words(small.size)
        uniform[small] = tails[small].astype(np.float64) + (second.astype(np.float64) + 0.5) * 2.0**-64
        more = dict(zip(small.tolist(), second.tolist(), strict=True))
    uniform *= 2.0**-64
    values = ndtri(uniform, out=uniform)
    np.negative(values, out=values)
    unsure = values * (scale * margin)
    unsure += scale * margin
    values *= scale
    rounded = np.floor(values + 0.5)
    out[:] = rounded
    values -= rounded  # exact: the two are close to each other
    unsure += np.abs(values, out=values)
    for index in np.flatnonzero((unsure >= 0.5) | (tails < _LEAST)).tolist():
        bits = [more[index], *words(1).tolist()] if index in more else words(2).tolist()
        out[index] = decide(int(out[index]), scale, (int(tails[index]) << 128) | (bits[0] << 64) | bits[1])
    np.negative(out, out=out, where=(first & np.uint64(1)).astype(np.bool_))


def decide(candidate: int, scale: float, uniform: int) -> int:
    """The k with Q((k + ½)/s) ≤ U < Q((k − ½)/s) for U = uniform / 2¹⁹², searched from ``candidate``."""
    while candidate > 0 and uniform >= tail_bits(2 * candidate - 1, scale):
        candidate -= 1
    while uniform < tail_bits(2 * candidate + 1, scale):
        candidate += 1
    return candidate


def tail_bits(halves: int, scale: float) -> int:
    """⌊2¹⁹² Q(x)⌋ for x = halves / (2 · scale) and Q the normal tail probability, within one unit.

    Q(x) = 1/2 − (2π)^{−1/2} Σ_n (−1)ⁿ x^{2n+1} / (2ⁿ n! (2n + 1)) (Abramowitz, Stegun 26.2.10) in fixed point. Terms
    grow to e^{x²/2} before they fall, and so do their rounding errors, hence x²/2 · log₂ e more bits, and 64 to spare.
    """
    top, bottom = scale.as_integer_ratio()
    top *= 2
    if halves * bottom > _REACH * top:
        return 0
    rough = halves * bottom / top
    bits = _BITS + 64 + math.ceil(0.7214 * rough * rough)
    x = (halves * bottom << bits) // top
    square = x * x >> bits
    term, total, n = x, 0, 0
    while term:
        total += term // (2 * n + 1) if n % 2 == 0 else -(term // (2 * n + 1))
        n += 1
        term = (term * square >> bits) // (2 * n)
    return ((1 << bits - 1) - (total * _root_two_pi(bits) >> bits)) >> bits - _BITS


@functools.lru_cache(maxsize=512)
def _root_two_pi(bits: int) -> int:
    """⌊2^bits / √(2π)⌋, π by Machin's formula."""
    guard = bits + 32
    pi = 4 * (4 * _inverse_tangent(5, guard) - _inverse_tangent(239, guard))
    return math.isqrt((1 << 3 * guard) // (2 * pi)) >> 32


def _inverse_tangent(divisor: int, bits: int) -> int:
    """2^bits · arctan(1 / divisor)."""
    term = (1 << bits) // divisor
    total, n = 0, 0
    while term:
        total += term // (2 * n + 1) if n % 2 == 0 else -(term // (2 * n + 1))
        term //= divisor * divisor
        n += 1
    return total


def _scale(value: float) -> float:
    scale = positive("scale", value, "the noise's standard deviation in grid units")
    if scale > LARGEST_SCALE:
        raise InvalidParameter("scale", value, "exceeds 2^40 grid units", "choose a coarser grid")
    return scale
