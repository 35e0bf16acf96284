"""Privacy losses: how much of P and of Q falls between two values of the loss L = log dP/dQ.

For a dominating pair (P, Q) of :mod:`quietsum.privacy.pairs` and increasing edges ℓ_0 < … < ℓ_n,
:func:`cell_masses` gives the mass that P and Q put on the cells (−∞, ℓ_0], (ℓ_0, ℓ_1], …, (ℓ_n, ∞). That is all a
privacy-loss distribution needs. Direction ``"remove"`` is the pair as written; ``"add"`` swaps P and Q, whose
loss is −L (an atom exactly on an edge may then fall on its other side, which no bound depends on).

Masses keep their *relative* accuracy far out in the tails: a normal cell is the difference of two tails from the nearer
side, or, where it is narrow, a five-point Gauss rule on the density; nothing is ever one minus something close to one.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Literal, final

import numpy as np
import numpy.typing as npt
from scipy.special import erf, gammaln, logsumexp, ndtr

from quietsum.errors import UnsupportedEvent
from quietsum.privacy import pairs as pr

__all__ = [
    "Array",
    "CellMasses",
    "Direction",
    "cell_masses",
    "few_atoms",
    "loss_lattice",
    "loss_points",
    "refuse_unsupported",
    "symmetric",
]

Array = npt.NDArray[np.float64]
Direction = Literal["remove", "add"]

_RULE = list(zip(*np.polynomial.legendre.leggauss(5), strict=True))
_FEW = 256
_ENUMERATED = 2_000.0  # discrete Gaussians up to this sigma are summed atom by atom


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


def refuse_unsupported(pair: pr.Pair) -> None:
    """Raise :class:`~quietsum.errors.UnsupportedEvent` where a pair has no loss distribution, only moments."""
    match pair:
        case (
            pr.VectorDiscreteGaussianPair() | pr.DiscreteGaussianSumPair() | pr.SkellamPair() | pr.SampledSumPair()
        ):  # fmt: skip
            raise UnsupportedEvent(
                f"{type(pair).__name__}: for a sum in several dimensions only Rényi moments are bounded, not the "
                "privacy loss itself; use RenyiAccountant or ConcentratedAccountant"
            )
        case pr.ZcdpPair():
            raise UnsupportedEvent(
                "ZcdpPair: zCDP states a Rényi curve and no loss distribution; use ConcentratedAccountant "
                "or RenyiAccountant"
            )
        case pr.SampledPair(base=base):
            refuse_unsupported(base)
        case (
            pr.GaussianPair() | pr.MixturePair() | pr.OppositePair() | pr.EnvelopePair() | pr.MergedPair()
            | pr.LaplacePair() | pr.DiscreteLaplacePair() | pr.DiscreteGaussianPair() | pr.ResponsePair()
            | pr.ApproximatePair()
        ):  # fmt: skip
            return
        case _:
            raise UnsupportedEvent(f"{type(pair).__name__} has no privacy loss known here; use RenyiAccountant")


def symmetric(pair: pr.Pair) -> bool:
    """Whether both directions have the same loss distribution."""
    return not isinstance(pair, pr.MixturePair | pr.MergedPair | pr.SampledPair)


def cell_masses(pair: pr.Pair, edges: Array, direction: Direction = "remove") -> CellMasses:
    """Masses of P and Q on the cells that ``edges`` (increasing losses) cut.

    >>> halves = cell_masses(pr.GaussianPair(1.0), np.array([0.0]))
    >>> [round(float(mass), 4) for mass in (*halves.p, *halves.q)]
    [0.3085, 0.6915, 0.6915, 0.3085]
    """
    if direction == "remove":
        return _cells(pair, edges)
    swapped = _cells(pair, -edges[::-1])
    return CellMasses(swapped.q[::-1], swapped.p[::-1], swapped.q_infinite, swapped.p_infinite)


def loss_points(pair: pr.Pair, direction: Direction, *, reach: float, count: int) -> Array:
    """At most about ``count`` increasing losses that span all but a ``reach``-sigma tail, with atoms well inside."""
    points = np.unique(_points(pair, reach, count))
    margin = 1e-6 * float(np.ptp(points)) or 1e-6
    points = np.concatenate([[points[0] - margin], points, [points[-1] + margin]])
    return points if direction == "remove" else -points[::-1]


def few_atoms(pair: pr.Pair) -> bool:
    """Whether the loss takes finitely many values, so few that :func:`loss_points` names them all."""
    match pair:
        case pr.SampledPair(base=base):
            return few_atoms(base)
        case pr.DiscreteLaplacePair(shift=shift):
            return shift < _FEW
        case pr.ResponsePair() | pr.ApproximatePair():
            return True
        case pr.DiscreteGaussianPair(sigma=sigma):
            return sigma <= _ENUMERATED and len(atoms_of(pair)[0]) <= _FEW
        case _:
            return False


def loss_lattice(pair: pr.Pair, direction: Direction) -> tuple[float, float, bool] | None:
    """(offset, unit, all): the atoms lie on offset + unit·ℤ, and ``all`` says that there is nothing but atoms.

    Where there is more, the atoms are two, at offset and offset + unit. None where there are no atoms or where they
    lie on no lattice.
    """
    found = _lattice(pair)
    if found is None or direction == "remove":
        return found
    return -(found[0] + found[1]), found[1], found[2]


# ------------------------------------------------------------------------------------- one pair at a time


def _cells(pair: pr.Pair, edges: Array) -> CellMasses:
    match pair:
        case pr.GaussianPair(sigma=sigma):  # L = (x − 1/2) / σ²
            middle = sigma * edges
            return CellMasses(normal_cells(middle - 0.5 / sigma), normal_cells(middle + 0.5 / sigma))
        case pr.MixturePair(sigma=sigma):
            weights = np.exp(_log_binomial(pair.rate, pair.size))
            at = _mixture_inverse(pair, edges)
            q_mass = normal_cells(at / sigma)
            p_mass = weights[0] * q_mass
            for drawn in range(1, pair.size + 1):
                p_mass += weights[drawn] * normal_cells((at - drawn) / sigma)
            return CellMasses(p_mass, q_mass)
        case pr.OppositePair(sigma=sigma, rate=rate):
            at = _opposite_inverse(pair, edges)
            low, middle, high = (normal_cells((at - shift) / sigma) for shift in (-1, 0, 1))
            return CellMasses((1 - rate) * middle + rate * high, (1 - rate) * middle + rate * low)
        case pr.EnvelopePair() | pr.MergedPair():
            return _envelope_cells(pair, edges)
        case pr.LaplacePair(scale=scale):
            return laplace_cells(1 / scale, edges)
        case pr.DiscreteLaplacePair():
            return discrete_laplace_cells(pair, edges)
        case pr.DiscreteGaussianPair(sigma=sigma):
            return smooth_discrete_cells(pair, edges) if sigma > _ENUMERATED else atom_cells(pair, edges)
        case pr.ResponsePair():
            return atom_cells(pair, edges)
        case pr.ApproximatePair(delta=delta):
            return dataclasses.replace(atom_cells(pair, edges), p_infinite=delta, q_infinite=delta)
        case pr.SampledPair(rate=rate, base=base):  # L' = log(1 − q + q e^L), so L = log((e^{L'} − (1 − q)) / q)
            cells = _cells(base, _log_excess(edges, rate) - math.log(rate))
            q_mass = cells.q.copy()  # where P is zero, L = −∞ becomes L' = log(1 − q)
            q_mass[np.searchsorted(edges, math.log1p(-rate))] += cells.q_infinite
            return CellMasses((1 - rate) * q_mass + rate * cells.p, q_mass, rate * cells.p_infinite)
        case _:
            refuse_unsupported(pair)
            raise AssertionError(pair)


def _points(pair: pr.Pair, reach: float, count: int) -> Array:
    match pair:
        case pr.GaussianPair(sigma=sigma):
            limit = 0.5 / sigma**2 + reach / sigma
            return np.linspace(-limit, limit, count)
        case pr.MixturePair(sigma=sigma, rate=rate, size=size):
            at = np.linspace(-reach * sigma, size + reach * sigma, count)
            shifts = np.arange(size + 1.0)[:, None]
            exponents = _log_binomial(rate, size)[:, None] + (shifts * at - shifts**2 / 2) / sigma**2
            return np.asarray(logsumexp(exponents, axis=0))
        case pr.OppositePair(sigma=sigma, rate=rate):
            at = np.linspace(-1 - reach * sigma, 1 + reach * sigma, count)
            up, down = (math.log(rate) + (sign * at - 0.5) / sigma**2 for sign in (1, -1))
            return np.logaddexp(math.log1p(-rate), up) - np.logaddexp(math.log1p(-rate), down)
        case pr.EnvelopePair(sigma=sigma, rate=rate, near=near) | pr.MergedPair(sigma=sigma, rate=rate, near=near):
            at = np.linspace(0.5 * (1 + near), 1 + reach * sigma, count // 2)
            far, half = (math.log(rate) + shift * (at - shift / 2) / sigma**2 for shift in (1.0, near))
            losses = np.maximum(np.logaddexp(math.log1p(-rate), far) - np.logaddexp(math.log1p(-rate), half), 0.0)
            if isinstance(pair, pr.MergedPair):
                return np.append(_rest_of_merged(pair)[2], losses)
            return np.concatenate([-losses[::-1], [0.0], losses])
        case pr.LaplacePair(scale=scale):
            return np.linspace(-1 / scale, 1 / scale, count)
        case pr.DiscreteLaplacePair(scale=scale, shift=shift):
            return (2 * np.unique(np.linspace(0, shift, min(max(count, _FEW), shift + 1)).round()) - shift) / scale
        case pr.DiscreteGaussianPair(sigma=sigma, shift=shift) if sigma > _ENUMERATED:
            at = np.linspace(-reach * sigma, shift + reach * sigma, count).round()
            return shift * (2 * at - shift) / (2 * sigma**2)
        case pr.SampledPair(rate=rate, base=base):
            points = np.append(-np.inf, _points(base, reach, count))
            return np.logaddexp(math.log1p(-rate), math.log(rate) + points)
        case _:
            losses = atoms_of(pair)[0]
            chosen = np.unique(np.linspace(0, len(losses) - 1, min(max(count, _FEW), len(losses))).round().astype(int))
            return np.asarray(losses[chosen])


def _lattice(pair: pr.Pair) -> tuple[float, float, bool] | None:
    match pair:
        case pr.LaplacePair(scale=scale):
            return -1 / scale, 2 / scale, False
        case pr.DiscreteLaplacePair(scale=scale, shift=shift):
            return -shift / scale, 2 / scale, True
        case pr.DiscreteGaussianPair(sigma=sigma, shift=shift):
            return -(shift**2) / (2 * sigma**2), shift / sigma**2, True
        case pr.ResponsePair() | pr.ApproximatePair():
            losses = atoms_of(pair)[0]
            unit = float(losses[1] - losses[0]) if len(losses) > 1 else 1.0
            return (float(losses[0]), unit, True) if unit > 1e-9 else None
        case pr.SampledPair(base=base):  # two atoms always lie on a lattice, more hardly ever do
            inner = _lattice(base)
            if inner is None or not (few_atoms(base) or isinstance(base, pr.LaplacePair)):
                return None
            if isinstance(base, pr.ApproximatePair) and base.delta:
                return None
            atoms = np.unique(_points(pair, 1.0, 2)[1:])
            return (float(atoms[0]), float(atoms[1] - atoms[0]), inner[2]) if len(atoms) == 2 else None
        case _:
            return None


# ---------------------------------------------------------------------------------------------- normal laws


@functools.lru_cache(maxsize=256)
def _log_binomial(rate: float, size: int) -> Array:
    """log of the Binomial(size, rate) probabilities of 0 … size."""
    drawn = np.arange(size + 1.0)
    choose = gammaln(size + 1) - gammaln(drawn + 1) - gammaln(size - drawn + 1)
    return np.asarray(choose + drawn * math.log(rate) + (size - drawn) * math.log1p(-rate))


def _log_excess(edges: Array, rate: float, size: int = 1) -> Array:
    """log(e^ℓ − (1 − rate)^size), −∞ where that is not positive; accurate for ℓ near 0 and for large ℓ."""
    log_none = size * math.log1p(-rate)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        near = np.log(np.maximum(np.expm1(np.minimum(edges, 1.0)) - math.expm1(log_none), 0.0))
        far = edges + np.log1p(-np.exp(log_none - np.maximum(edges, 1.0)))
    return np.asarray(np.where(edges > 1, far, near))


def _mixture_inverse(pair: pr.MixturePair, edges: Array) -> Array:
    """The x at which the loss of a binomial mixture is ℓ: closed for size 1, else Newton from above.

    The loss without the share in which no unit is drawn, log Σ_{j≥1} w_j e^{(jx − j²/2)/σ²}, is convex and increasing
    in x, and each of its terms alone gives a point to the right of the root; Newton falls monotonically from there.
    """
    block = max(256, 2_000_000 // pair.size)
    if len(edges) > block:
        return np.concatenate([_mixture_inverse(pair, edges[at : at + block]) for at in range(0, len(edges), block)])
    variance = pair.sigma**2
    target = _log_excess(edges, pair.rate, pair.size)
    shifts = np.arange(1.0, pair.size + 1)[:, None]
    logs = _log_binomial(pair.rate, pair.size)[1:, None] - shifts**2 / (2 * variance)
    at = np.asarray(np.min(variance * (target - logs) / shifts, axis=0))
    finite = np.isfinite(target)
    for _ in range(60 if pair.size > 1 and finite.any() else 0):
        exponents = logs + shifts * at[finite] / variance
        value = logsumexp(exponents, axis=0)
        slope = (np.exp(exponents - value) * shifts).sum(axis=0) / variance
        step = (value - target[finite]) / slope
        at[finite] -= step
        if np.max(np.abs(step)) <= 1e-14 * (pair.sigma + pair.size):
            break
    return at


def _rest_of_merged(pair: pr.MergedPair) -> tuple[float, float, float]:
    """(P, Q, loss) of the one answer that stands for all losses ≤ 0."""
    at = 0.5 * (1 + pair.near) / pair.sigma
    common, far, half = (float(ndtr(at - shift / pair.sigma)) for shift in (0.0, 1.0, pair.near))
    p_mass, q_mass = (1 - pair.rate) * common + pair.rate * far, (1 - pair.rate) * common + pair.rate * half
    return p_mass, q_mass, math.log1p(pair.rate * (far - half) / q_mass)


def _envelope_cells(pair: pr.EnvelopePair | pr.MergedPair, edges: Array) -> CellMasses:
    """Positive losses of the mixtures, their mirror image with P and Q swapped, and what remains at 0; or what remains
    of a merged pair, in one place.

    The losses are cut at the distinct |ℓ| of all edges; a cell of the mirror image, (−b, −a], is that of [a, b).
    """
    sigma, rate, near = pair.sigma, pair.rate, pair.near
    cuts = np.union1d(np.abs(edges), [0.0])
    at = _envelope_inverse(pair, cuts)
    common, far, half = (normal_cells((at - shift) / sigma)[1:] for shift in (0.0, 1.0, near))
    p_right, q_right = (1 - rate) * common + rate * far, (1 - rate) * common + rate * half
    size = len(edges) + 1
    right = np.searchsorted(edges, cuts, side="right")  # the cell just above each cut
    if isinstance(pair, pr.MergedPair):
        p_rest, q_rest, loss = _rest_of_merged(pair)
        cell = np.append(right, np.searchsorted(edges, loss))
        return CellMasses(_gather(cell, p_right, [p_rest], size), _gather(cell, q_right, [q_rest], size))
    middle = [(1 - rate) * float(erf(at[0] / sigma * math.sqrt(0.5)))]  # at[0]: where the loss is 0
    cell = np.concatenate([right, np.searchsorted(edges, -cuts), [np.searchsorted(edges, 0.0)]])
    p_both, q_both = np.append(p_right, q_right), np.append(q_right, p_right)
    return CellMasses(_gather(cell, p_both, middle, size), _gather(cell, q_both, middle, size))


def _gather(cell: npt.NDArray[np.intp], mass: Array, rest: list[float], size: int) -> Array:
    return np.asarray(np.bincount(cell, np.append(mass, rest), size), dtype=np.float64)


def _envelope_inverse(pair: pr.EnvelopePair | pr.MergedPair, losses: Array) -> Array:
    """The x at which the mixtures of an envelope have the loss ℓ ≥ 0.

    In u = e^{(x − 1/2)/2σ²} it solves q u² − q b e^ℓ u − (1 − q)(e^ℓ − 1) = 0 for near = 1/2, b = e^{1/8σ²}.
    """
    variance = pair.sigma**2
    with np.errstate(divide="ignore"):
        log_rise = losses + np.log(-np.expm1(-losses)) - math.log(pair.rate)  # ln((e^ℓ − 1)/q)
    if pair.near == 0:  # q e^{(x − 1/2)/σ²} = e^ℓ − 1 + q
        return np.asarray(0.5 + variance * np.logaddexp(0.0, log_rise))
    log_rise = log_rise + math.log1p(-pair.rate)
    assert pair.near == 0.5
    log_half = losses + 0.125 / variance - math.log(2)
    log_root = 0.5 * np.logaddexp(2 * log_half, log_rise)
    return np.asarray(0.5 + 2 * variance * np.logaddexp(log_half, log_root))


def _opposite_inverse(pair: pr.OppositePair, edges: Array) -> Array:
    """x = σ² (ℓ/2 + arsinh((1 − q)/q · e^{1/2σ²} · sinh(ℓ/2))), with the arsinh in logarithms where it is large."""
    size = np.abs(edges) / 2
    with np.errstate(divide="ignore"):
        log_sinh = size + np.log(-np.expm1(-2 * size) / 2)
    log_ratio = math.log1p(-pair.rate) - math.log(pair.rate) + 0.5 / pair.sigma**2 + log_sinh
    bent = np.where(log_ratio > 20, log_ratio + math.log(2), np.arcsinh(np.exp(np.minimum(log_ratio, 20.0))))
    return np.asarray(pair.sigma**2 * np.sign(edges) * (size + bent))


# ------------------------------------------------------------------ cells with a closed form, and atoms


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
    p_mass, q_mass = (_bin(inverse, np.array([row[column] for row in table]), len(losses)) for column in (1, 2))
    return losses, p_mass, q_mass


def _bin(cell: npt.NDArray[np.intp], mass: Array, size: int) -> Array:
    return np.asarray(np.bincount(cell, mass, size), dtype=np.float64)


def atom_cells(pair: pr.Pair, edges: Array) -> CellMasses:
    """The atoms of ``pair``, each in its cell; one just above an edge by rounding counts as on it."""
    losses, p_mass, q_mass = atoms_of(pair)
    cell = np.searchsorted(edges, losses - 1e-12 * np.abs(losses))
    size = len(edges) + 1
    return CellMasses(_bin(cell, p_mass, size), _bin(cell, q_mass, size))
