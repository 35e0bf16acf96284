"""Finding wrong shares: Shamir's shares are a Reed–Solomon code, so spare ones tell which do not fit.

Of m shares with threshold t, up to e = ⌊(m − t)/2⌋ wrong ones are found for certain by Berlekamp and Welch's method:
there are polynomials E ≠ 0 of degree at most e and Q of degree below e + t with Q(xᵢ) = yᵢ·E(xᵢ) at every point, and
whichever pair solves these m linear equations, E is zero at each wrong share. The nine limbs are decoded at once, as
one random combination of them: a share that is wrong in any limb is right in the combination with probability 2⁻³¹.

Beyond that bound names would be guesses (liars who agree among themselves could frame others), so none are given. Who
knows a commitment to the secret can still find the secret itself, by trying sets of shares: :func:`candidates`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from quietsum.mechanisms import system_randomness
from quietsum.secagg import field, shamir

__all__ = ["candidates", "combine", "wrong"]

_P = np.uint64(field.PRIME)


def wrong(points: Sequence[int], shares: NDArray[np.uint32], *, threshold: int) -> tuple[int, ...]:
    """The places of wrong shares, all of them, if at most ⌊(m − t)/2⌋ of the m are wrong; otherwise none are named.

    ``shares`` has shape (m, limbs).
    """
    most = (len(points) - threshold) // 2
    values = combine(shares[None])
    if most < 1 or not shamir.disagreeing(points, values, threshold=threshold):
        return ()
    fits = _fitting(points, values[:, 0].astype(np.uint64), threshold, most)
    if len(fits) < threshold:
        return ()
    order = [*fits, *(at for at in range(len(points)) if at not in fits)]
    there = [points[at] for at in order]
    found = {*shamir.disagreeing(there, values[order], threshold=threshold)}
    return tuple(at for at, point in enumerate(points) if point in found) if len(found) <= most else ()


def combine(shares: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """One random combination of many secrets' shares (secrets, m, limbs), as shares (m, limbs) of one secret."""
    flat = shares.transpose(1, 0, 2).reshape(shares.shape[1], -1)
    weights = field.uniform(system_randomness(), flat.shape[1])
    made = np.zeros(shares.shape[1:], dtype=np.uint32)
    made[:, 0] = field.product(flat, weights[:, None])[:, 0]
    return made


def candidates(count: int, *, threshold: int) -> Iterator[tuple[int, ...]]:
    """Places of ``threshold`` shares out of ``count`` that may all be right: leaving out one, then two, and so on."""
    places = range(count)
    for left_out in range(1, count - threshold + 1):
        for gone in itertools.combinations(places, left_out):
            yield tuple(place for place in places if place not in gone)[:threshold]


def _fitting(points: Sequence[int], values: field.Elements, threshold: int, most: int) -> tuple[int, ...]:
    """Places that the error locator leaves, which are all right if at most ``most`` are wrong."""
    table = field.powers(np.array(points, dtype=np.uint64), threshold + most)
    locator = table[:, : most + 1]
    rows = np.concatenate((table, (_P - values)[:, None] * locator % _P), axis=1)
    solution = _null_vector(rows)[threshold + most :]
    return tuple(int(place) for place in np.flatnonzero(field.product(locator, solution[:, None])[:, 0]))


def _null_vector(rows: field.Elements) -> field.Elements:
    """A vector v ≠ 0 with rows · v = 0 modulo p; there are more columns than independent rows."""
    rows = rows.copy()
    pivots: list[int] = []
    free = rows.shape[1] - 1
    for column in range(rows.shape[1]):
        top = len(pivots)
        if top == rows.shape[0] or not (below := np.flatnonzero(rows[top:, column])).size:
            free = column
            break
        rows[[top, top + below[0]]] = rows[[top + below[0], top]]
        rows[top] = rows[top] * field.inverse(rows[top, column : column + 1]) % _P
        factors = rows[:, column].copy()
        factors[top] = 0
        rows = (rows + (_P - factors)[:, None] * rows[top][None, :]) % _P
        pivots.append(column)
    vector = np.zeros(rows.shape[1], dtype=np.uint64)
    vector[free] = 1
    for row, column in enumerate(pivots):
        vector[column] = (_P - rows[row, free]) % _P
    return vector
