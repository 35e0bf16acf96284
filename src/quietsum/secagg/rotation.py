"""A random rotation that spreads a vector evenly over its coordinates, so that fewer bits hold the sum.

x ↦ H D x / √m, where D flips signs by public random bits, H is the Walsh–Hadamard matrix and m the length padded to a
power of two. The map keeps the norm, and every coordinate of the result is a sum of ±x_j/√m with independent signs,
so by Hoeffding's inequality |(H D x)_i / √m| exceeds ‖x‖ · √(2 ln(2m/β) / m) in some coordinate with probability β at
most (:func:`bound_largest`). The chooser of x must not know the signs; they may be known afterwards. With 32 bits
nothing is gained by it; with 16 to 24 it is what keeps the grid fine (Kairouz, Liu, Steinke 2021, section 4.2).

H is a Kronecker power, so it is applied in factors of 16 × 16 by matrix products, O(m log m) in all.

>>> import numpy as np
>>> seed = bytes(32)
>>> turned = rotate(np.array([3.0, 0.0, 4.0]), seed=seed)
>>> turned.size, round(float(turned @ turned), 9), rotate_back(turned, 3, seed=seed).round(9).tolist()
(4, 25.0, [3.0, 0.0, 4.0])
"""

from __future__ import annotations

import functools
import math

import numpy as np
from numpy.typing import NDArray

from quietsum.secagg import masks

__all__ = ["bound_largest", "error", "pad_to_power", "rotate", "rotate_back"]

_FACTOR = 4  # 2⁴: measured the fastest from 2³ to 2¹⁰


def pad_to_power(size: int) -> int:
    """The power of two from ``size`` on: how long a rotated vector is."""
    return 1 << max(size - 1, 0).bit_length()


def bound_largest(size: int, doubt: float) -> float:
    """The share of a vector's norm that a coordinate of the rotated vector exceeds with probability ``doubt`` at most.

    At most 1, since no coordinate exceeds the norm.
    """
    length = pad_to_power(size)
    return min(1.0, math.sqrt(2 * math.log(2 * length / doubt) / length))


def error(size: int) -> float:
    """How far the computed rotation of a vector may be from the exact one, over its norm.

    A product with the 16 × 16 matrix H computes each of its sums of 16 terms with an error of at most 16 u Σ|xⱼ|, with
    u = 2⁻⁵³; all 16 together with a norm of at most 16 u · 16 ‖x‖, over ‖H x‖ = 4 ‖x‖: 64 u relative to the result. So
    many factors, one division and the signs, which are exact, add up to this (Higham 2002, section 3.1).
    """
    factors = -(-(pad_to_power(size).bit_length() - 1) // _FACTOR)
    return (64 * factors + 2) * 2.0**-53 * 1.01


def rotate(vector: NDArray[np.float64], *, seed: bytes) -> NDArray[np.float64]:
    """``vector`` in the rotated basis of ``seed`` (32 public bytes), padded with zeros to a power of two."""
    length = pad_to_power(vector.size)
    values = np.zeros(length)
    np.multiply(vector, _signs(seed, vector.size), out=values[: vector.size])
    return _walsh_hadamard(values)


def rotate_back(turned: NDArray[np.float64], size: int, *, seed: bytes) -> NDArray[np.float64]:
    """The first ``size`` coordinates of the vector whose rotation is ``turned``; linear, so sums may be turned back."""
    back: NDArray[np.float64] = _walsh_hadamard(turned)[:size] * _signs(seed, size)
    return back


def _signs(seed: bytes, size: int) -> NDArray[np.float64]:
    """±1 by the bits of the keystream under ``seed``."""
    words = np.zeros(-(-size // 32), dtype=np.uint32)
    masks.add(words, seed)
    bits = np.unpackbits(words.astype("<u4").view(np.uint8), count=size, bitorder="little")
    signs: NDArray[np.float64] = 1.0 - 2.0 * bits.astype(np.float64)
    return signs


def _walsh_hadamard(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """H x / √m, which is its own inverse."""
    left = values.size.bit_length() - 1
    inner, current = 1, values
    while left:
        bits = min(_FACTOR, left)
        matrix = _hadamard(bits)
        if inner == 1:
            current = (current.reshape(-1, 1 << bits) @ matrix).ravel()
        else:
            current = np.matmul(matrix, current.reshape(-1, 1 << bits, inner)).ravel()
        inner <<= bits
        left -= bits
    return current / math.sqrt(values.size)


@functools.lru_cache(maxsize=_FACTOR + 1)
def _hadamard(bits: int) -> NDArray[np.float64]:
    matrix = np.ones((1, 1))
    for _ in range(bits):
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return matrix
