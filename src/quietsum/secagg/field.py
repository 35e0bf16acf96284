"""Arithmetic modulo the prime p = 2³¹ − 1, vectorised and exact: the field in which secrets are shared.

p is a Mersenne prime, so an element fits 31 bits, a product of two fits 62 bits of a ``uint64``, and nothing is ever
rounded. The product of two matrices is the one expensive step. It goes through float64 matrix multiplication, which
stays exact because both factors are cut into halves of at most 16 bits: every partial product is below 2³², so a sum of
up to 2²⁰ of them stays below 2⁵², and float64 holds integers exactly up to 2⁵³.

>>> import numpy as np
>>> int(product(np.array([[PRIME - 1]]), np.array([[PRIME - 1]]))[0, 0])  # (−1)·(−1)
1
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from quietsum.errors import InvalidParameter
from quietsum.mechanisms import RandomSource

__all__ = ["LONGEST_SUM", "PRIME", "Elements", "inverse", "powers", "product", "uniform"]

PRIME = (1 << 31) - 1
"""The Mersenne prime 2³¹ − 1."""

LONGEST_SUM = 1 << 20
"""The most terms that :func:`product` adds up in one cell."""

Elements: TypeAlias = NDArray[np.uint64]
"""Field elements, 0 … p − 1."""

_P = np.uint64(PRIME)
_HALF = np.uint64(16)
_LOW = np.uint64(0xFFFF)


def product(left: NDArray[np.integer], right: NDArray[np.integer]) -> Elements:
    """The matrix product modulo p of two matrices of field elements, exactly."""
    return multiply_halves(halves(left), halves(right))


def halves(matrix: NDArray[np.integer]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The upper 15 and the lower 16 bits of every element: what :func:`multiply_halves` multiplies."""
    whole = matrix.astype(np.uint64)
    return (whole >> _HALF).astype(np.float64), (whole & _LOW).astype(np.float64)


def multiply_halves(
    left: tuple[NDArray[np.float64], NDArray[np.float64]], right: tuple[NDArray[np.float64], NDArray[np.float64]]
) -> Elements:
    """The product modulo p of two matrices that :func:`halves` has cut."""
    if left[0].shape[1] > LONGEST_SUM:
        raise InvalidParameter("terms", left[0].shape[1], f"is more than the {LONGEST_SUM} that stay exact")
    upper = (left[0] @ right[0]).astype(np.uint64) % _P
    middle = ((left[0] @ right[1]).astype(np.uint64) + (left[1] @ right[0]).astype(np.uint64)) % _P
    lower = (left[1] @ right[1]).astype(np.uint64)
    # 2³² = 2 modulo p; the three terms are below 2³², 2⁴⁷ and 2⁵²
    return (upper * np.uint64(2) + (middle << _HALF) + lower) % _P


def powers(points: Elements, count: int) -> Elements:
    """The Vandermonde matrix: a row for every point x, with 1, x, x², … x^(count − 1)."""
    table = np.empty((count, points.size), dtype=np.uint64)
    table[0] = 1
    for exponent in range(1, count):
        table[exponent] = table[exponent - 1] * points % _P
    return table.T


def inverse(values: Elements) -> Elements:
    """1/x for every element, by Fermat: x^(p − 2). Zero has no inverse and is refused."""
    if not values.all():
        raise InvalidParameter("values", 0, "has no inverse modulo a prime", "pass elements that are not zero")
    result = np.ones_like(values)
    square = values.copy()
    exponent = PRIME - 2
    while exponent:
        if exponent & 1:
            result = result * square % _P
        square = square * square % _P
        exponent >>= 1
    return result


def uniform(rng: RandomSource, count: int) -> Elements:
    """Independent uniform field elements: 31 random bits each, drawn again where they spell p itself."""
    values = _bits(rng, count)
    while (outside := np.flatnonzero(values == _P)).size:
        values[outside] = _bits(rng, outside.size)
    return values


def _bits(rng: RandomSource, count: int) -> Elements:
    words = np.frombuffer(rng.bytes(4 * count), dtype=np.uint32)
    return (words & np.uint32(PRIME)).astype(np.uint64)
