"""Masses on loss cells for the laws that have a closed form: normal, Laplace, and everything made of atoms.

Masses keep their *relative* accuracy far out in the tails: a normal cell is the difference of two tails from the nearer
side, or, where it is narrow, a five-point Gauss rule on the density; nothing is ever one minus something close to one.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import final

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr

from quietsum.privacy import pairs as pr

__all__ = [
    "Array",
    "CellMasses",
    "atom_cells",
    "atoms_of",
    "discrete_laplace_cells",
    "laplace_cells",
    "normal_cells",
    "smooth_discrete_cells",
]

Array = npt.NDArray[np.float64]

_RULE = list(zip(*np.polynomial.legendre.leggauss(5), strict=True))


@final
@dataclasses.dataclass(frozen=True, slots=True)
class CellMasses:
    """Masses of P and Q on the n + 1 cells between n edges, and where the loss is infinite.

    ``p_infinite`` is what P puts where Q is zero (L = +∞), ``q_infinite`` what Q puts where P is zero (L = −∞).
    """

    p: Array
    q: Array
    p_infinite: float = 0.0
    q_infinite: float = 0.0


def normal_cells(edges: Array) -> Array:
    """Standard normal mass of the cells between increasing ``edges`` (±∞ allowed), relatively accurate."""
    low, high = np.append(-np.inf, edges), np.append(edges, np.inf)
    right = low > 0
    low, high = np.where(right, -high, low), np.where(right, -low, high)  # from the nearer tail
    with np.errstate(invalid="ignore"):
        mass = ndtr(high) - ndtr(low)
        half = (high - low) / 2
        narrow = np.flatnonzero(half * (1 + np.abs(low)) < 0.25)  # false for infinite and NaN
    half, centre = half[narrow], (high[narrow] + low[narrow]) / 2
    density = sum(weight * np.exp(-0.5 * (centre + node * half) ** 2) for node, weight in _RULE)
    mass[narrow] = half / math.sqrt(2 * math.pi) * density
    return np.asarray(np.maximum(mass, 0.0))


def laplace_cells(limit: float, edges: Array) -> CellMasses:
    """Loss (2x − 1)/b for 0 < x < 1, and atoms at ±1/b for the x beyond."""
    below, above = np.append(-np.inf, edges), np.append(edges, np.inf)
    low, high = np.clip(below, -limit, limit), np.clip(above, -limit, limit)
    width = -np.expm1((low - high) / 2) / 2
    bottom = (below < -limit) & (above >= -limit)
    top = (below < limit) & (above >= limit)
    rare = math.exp(-limit) / 2
    return CellMasses(
        np.exp((high - limit) / 2) * width + 0.5 * top + rare * bottom,
        np.exp(-(low + limit) / 2) * width + rare * top + 0.5 * bottom,
    )


def discrete_laplace_cells(pair: pr.DiscreteLaplacePair, edges: Array) -> CellMasses:
    """Loss (2k − Δ)/s for 0 ≤ k ≤ Δ, the ends holding everything beyond; geometric sums in closed form."""
    scale, shift = pair.scale, pair.shift
    until = np.floor((scale * edges + shift) / 2 + 1e-9)
    below, above = np.append(-np.inf, until), np.append(until, np.inf)
    low, high = np.clip(below, 0, shift - 1), np.clip(above, 0, shift - 1)
    total = 1 + math.exp(-1 / scale)
    width = -np.expm1((low - high) / scale) / total
    bottom, top = (below < 0) & (above >= 0), (below < shift) & (above >= shift)
    rare = math.exp(-shift / scale) / total
    return CellMasses(
        np.exp((high - shift) / scale) * width + top / total + rare * bottom,
        np.exp(-(low + 1) / scale) * width + rare * top + bottom / total,
    )


def smooth_discrete_cells(pair: pr.DiscreteGaussianPair, edges: Array) -> CellMasses:
    """Discrete Gaussian of large sigma: Euler–Maclaurin sums about midpoints; the remainder is below rounding."""
    sigma, shift = pair.sigma, pair.shift
    until = np.floor(edges * (sigma**2 / shift) + shift / 2 + 1e-6) + 0.5

    def cells(centre: int) -> Array:
        at = np.append(np.append(-60.0, np.clip((until - centre) / sigma, -60, 60)), 60.0)
        density = np.exp(-0.5 * at**2) / math.sqrt(2 * math.pi)
        bend = at * density / (24 * sigma**2) + 7 * (3 * at - at**3) * density / (5760 * sigma**4)
        return np.asarray(np.maximum(normal_cells((until - centre) / sigma) + np.diff(bend), 0.0))

    return CellMasses(cells(shift), cells(0))


@functools.lru_cache(maxsize=64)
def atoms_of(pair: pr.Pair) -> tuple[Array, Array, Array]:
    """Increasing losses with the masses of P and Q on each."""
    if isinstance(pair, pr.ResponsePair):
        keep, other = pair.keep, (1 - pair.keep) / (pair.categories - 1)
        loss = math.log(keep) - math.log(other)
        rest = (pair.categories - 2) * other
        table = [(loss, keep, other), (-loss, other, keep), (0.0, rest, rest)]
    elif isinstance(pair, pr.ApproximatePair):
        odds = math.exp(-pair.epsilon)
        likely = (1 - pair.delta) / (1 + odds)
        table = [(pair.epsilon, likely, likely * odds)]
        table.append((-pair.epsilon, table[0][2], table[0][1]))
    else:
        assert isinstance(pair, pr.DiscreteGaussianPair)
        sigma, shift = pair.sigma, pair.shift
        around = np.arange(-math.ceil(39 * sigma) - 1, math.ceil(39 * sigma) + 2)
        at = np.union1d(around, around + shift).astype(float)
        total = np.exp(-0.5 * (around / sigma) ** 2).sum()
        p_mass, q_mass = (np.exp(-0.5 * ((at - centre) / sigma) ** 2) / total for centre in (shift, 0))
        return shift * (2 * at - shift) / (2 * sigma**2), p_mass, q_mass
    table = sorted(row for row in table if row[1] or row[2])
    losses, inverse = np.unique([row[0] for row in table], return_inverse=True)
    p_mass, q_mass = (_binned(inverse, np.array([row[column] for row in table]), len(losses)) for column in (1, 2))
    return losses, p_mass, q_mass


def _binned(cell: npt.NDArray[np.intp], mass: Array, size: int) -> Array:
    return np.asarray(np.bincount(cell, mass, size), dtype=np.float64)


def atom_cells(pair: pr.Pair, edges: Array) -> CellMasses:
    """The atoms of ``pair``, each in its cell; one just above an edge by rounding counts as on it."""
    losses, p_mass, q_mass = atoms_of(pair)
    cell = np.searchsorted(edges, losses - 1e-12 * np.abs(losses))
    size = len(edges) + 1
    return CellMasses(_binned(cell, p_mass, size), _binned(cell, q_mass, size))
