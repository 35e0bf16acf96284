"""Shamir's secret sharing of 32-byte keys: any ``threshold`` shares rebuild a key, one share fewer says nothing at all.

A key is cut into nine limbs of 30 bits (the last has 16), little-endian; each limb is the constant term of a polynomial
of degree ``threshold`` − 1 over GF(2³¹ − 1) whose other coefficients are uniform, and a share is the values of the nine
polynomials at the holder's point (Shamir 1979). Everything is done for many keys at once: sharing is one product with a
Vandermonde matrix, and keys whose shares come from the same points are rebuilt with one row of Lagrange weights.

Guarantees: for every ``threshold`` − 1 shares and every key there is exactly one choice of coefficients that gives
these shares, and all choices are equally likely, so the shares leave the key as likely as before, to any computer
that looks at them. Shares carry no check of their own: the rebuilt key is compared with what its owner committed to
(the public key, or a hash), and :func:`disagreeing` names holders whose spare shares do not fit.

>>> shares = split(bytes(range(32)), threshold=3, points=(1, 2, 3, 4, 5))
>>> rebuild((5, 1, 4), shares[[4, 0, 3]], threshold=3) == bytes(range(32))
True
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from quietsum.errors import InvalidParameter
from quietsum.mechanisms import RandomSource, system_randomness
from quietsum.secagg import field
from quietsum.validate import whole_number

__all__ = [
    "LIMBS",
    "SECRET_BYTES",
    "Unfitting",
    "disagreeing",
    "rebuild",
    "rebuild_many",
    "share_bytes",
    "share_many",
    "shares_from_bytes",
    "split",
]  # fmt: skip

SECRET_BYTES = 32
LIMBS = 9
LIMB_BITS = 30
SHARE_BYTES = 4 * LIMBS
"""One share on the wire: nine little-endian 32-bit words."""

_LIMB = (1 << LIMB_BITS) - 1
_LITTLE = sys.byteorder == "little"


class Unfitting(InvalidParameter):
    """Shares that belong to no 32-byte key: at least one of them is wrong."""


def split(
    secret: bytes, *, threshold: int, points: Sequence[int], rng: RandomSource | None = None
) -> NDArray[np.uint32]:
    """One share of ``secret`` for each point: an array of shape (points, 9)."""
    shares: NDArray[np.uint32] = share_many((secret,), threshold=threshold, points=points, rng=rng)[0]
    return shares


def share_many(
    secrets: Sequence[bytes], *, threshold: int, points: Sequence[int], rng: RandomSource | None = None
) -> NDArray[np.uint32]:
    """Shares of several secrets, each under coefficients of its own: shape (secrets, points, 9).

    ``rng`` is a new source from the operating system if omitted.
    """
    threshold = _check(threshold, points, least=threshold)
    coefficients = np.empty((threshold, len(secrets) * LIMBS), dtype=np.uint64)
    coefficients[0] = _limbs(secrets).ravel()
    rng = rng or system_randomness()
    coefficients[1:] = field.uniform(rng, coefficients[1:].size).reshape(coefficients[1:].shape)
    return values_at(points, coefficients)


def values_at(points: Sequence[int], coefficients: field.Elements) -> NDArray[np.uint32]:
    """The polynomials with these coefficients (a column each, constant term first) at the points."""
    table = _vandermonde(tuple(points), coefficients.shape[0])
    values = field.multiply_halves(table, field.halves(coefficients))
    return np.ascontiguousarray(values.reshape(len(points), -1, LIMBS).transpose(1, 0, 2).astype(np.uint32))


def rebuild(points: Sequence[int], shares: NDArray[np.uint32], *, threshold: int) -> bytes:
    """The secret whose ``shares`` (points, 9) these are, from the first ``threshold`` of them."""
    return rebuild_many(points, np.asarray(shares)[None], threshold=threshold)[0]


def rebuild_many(points: Sequence[int], shares: NDArray[np.uint32], *, threshold: int) -> tuple[bytes, ...]:
    """Several secrets, all shared to the same holders: ``shares`` has shape (secrets, points, 9).

    Raises :class:`Unfitting` if the shares meet in something that is no 32-byte key.
    """
    threshold = _check(threshold, points, least=threshold)
    shares = _elements(shares, len(points))
    row = _lagrange(tuple(points[:threshold]), (0,))
    flat = shares[:, :threshold].transpose(1, 0, 2).reshape(threshold, -1)
    limbs = field.multiply_halves(row, field.halves(flat)).reshape(-1, LIMBS)
    return tuple(_secret(row) for row in limbs)


def disagreeing(points: Sequence[int], shares: NDArray[np.uint32], *, threshold: int) -> tuple[int, ...]:
    """The points whose spare shares do not lie on the polynomials through the first ``threshold`` shares.

    ``shares`` has shape (points, 9). An empty answer without spare shares says nothing. Where the rebuilt secret is
    known to be right, these are the holders that sent a wrong share.
    """
    threshold = _check(threshold, points, least=threshold)
    values = _elements(np.asarray(shares)[None], len(points))[0]
    spare = tuple(points[threshold:])
    if not spare:
        return ()
    expected = field.multiply_halves(_lagrange(tuple(points[:threshold]), spare), field.halves(values[:threshold]))
    wrong = (expected != values[threshold:]).any(axis=1)
    return tuple(point for point, differs in zip(spare, wrong, strict=True) if differs)


def share_bytes(one: NDArray[np.uint32]) -> bytes:
    """One share (nine elements) as it travels: 36 bytes."""
    return np.ascontiguousarray(one, dtype="<u4").tobytes()


def shares_from_bytes(raw: bytes) -> NDArray[np.uint32]:
    """Shares as they travelled, one after another: shape (shares, 9). What is no field element is refused."""
    if len(raw) % SHARE_BYTES:
        raise Unfitting("shares", len(raw), f"bytes are no whole number of shares of {SHARE_BYTES} bytes")
    if raw and max(memoryview(raw).cast("I") if _LITTLE else np.frombuffer(raw, dtype="<u4")) >= field.PRIME:
        raise Unfitting("shares", "…", "hold what is no element of the field", "leave out the share that holds it")
    return np.frombuffer(raw, dtype="<u4").astype(np.uint32).reshape(-1, LIMBS)


# --------------------------------------------------------------------------------------- limbs, weights, checks


def _limbs(secrets: Sequence[bytes]) -> field.Elements:
    rows = np.empty((len(secrets), LIMBS), dtype=np.uint64)
    for row, secret in zip(rows, secrets, strict=True):
        if len(secret) != SECRET_BYTES:
            raise InvalidParameter("secret", f"{len(secret)} bytes", f"must have {SECRET_BYTES} bytes")
        whole = int.from_bytes(secret, "little")
        row[:] = [(whole >> (LIMB_BITS * place)) & _LIMB for place in range(LIMBS)]
    return rows


def _secret(limbs: field.Elements) -> bytes:
    whole = sum(int(limb) << (LIMB_BITS * place) for place, limb in enumerate(limbs))
    if int(limbs.max()) > _LIMB or whole >> (8 * SECRET_BYTES):
        raise Unfitting("shares", "…", "belong to no 32-byte secret", "leave out the holder whose share is wrong")
    return whole.to_bytes(SECRET_BYTES, "little")


@functools.lru_cache(maxsize=32)
def _vandermonde(points: tuple[int, ...], count: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    return field.halves(field.powers(np.array(points, dtype=np.uint64), count))


@functools.lru_cache(maxsize=64)
def _lagrange(points: tuple[int, ...], at: tuple[int, ...]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Weights that turn values at ``points`` into the values at ``at``: ∏ (a − xⱼ) / (xᵢ − xⱼ) over j ≠ i, mod p."""
    prime = np.uint64(field.PRIME)
    x = np.array(points, dtype=np.uint64)
    targets = np.array(at, dtype=np.uint64)
    differences = (x[:, None] + prime - x[None, :]) % prime
    np.fill_diagonal(differences, 1)
    bottom = np.ones_like(x)
    for column in differences.T:
        bottom = bottom * column % prime
    bottom = field.inverse(bottom)
    rows = np.empty((targets.size, x.size), dtype=np.uint64)
    for row, target in zip(rows, targets, strict=True):
        gaps = (target + prime - x) % prime
        before = _running(gaps[:-1])
        after = _running(gaps[:0:-1])[::-1]
        row[:] = before * after % prime * bottom % prime
    return field.halves(rows)


def _running(values: field.Elements) -> field.Elements:
    """1, v₀, v₀v₁, … modulo p."""
    products = np.ones(values.size + 1, dtype=np.uint64)
    total = 1
    for place, value in enumerate(values.tolist(), start=1):
        total = total * value % field.PRIME
        products[place] = total
    return products


def _check(threshold: int, points: Sequence[int], *, least: int) -> int:
    threshold = whole_number("threshold", threshold, minimum=1)
    if len(points) < least:
        problem = f"are fewer than the threshold of {least}: they determine nothing"
        raise InvalidParameter("points", len(points), problem, "collect shares of more holders")
    if len(set(points)) != len(points):
        raise InvalidParameter("points", tuple(points), "repeat one another", "give every holder a point of its own")
    if not all(0 < point < field.PRIME for point in points):
        problem = "must lie in 1 … 2³¹ − 2: the value at 0 is the secret itself"
        raise InvalidParameter("points", tuple(points), problem, "count holders from 1")
    return threshold


def _elements(shares: NDArray[np.uint32], points: int) -> NDArray[np.uint32]:
    shares = np.asarray(shares)
    if shares.ndim != 3 or shares.shape[1:] != (points, LIMBS):
        raise Unfitting("shares", shares.shape, f"must have {points} rows of {LIMBS} elements for every secret")
    if shares.size and int(shares.max()) >= field.PRIME:
        raise Unfitting("shares", int(shares.max()), "is no element of the field", "leave out the share that holds it")
    return shares
