"""Losses on a grid: a mass function that dominates the pair, and one that the pair dominates.

*Dominating* (connect the dots; Doroshenko, Ghazi, Kamath, Kumar, Manurangsi 2022, arXiv 2207.04380). Cut the loss at
grid points. The P-mass p and Q-mass r of a cell (a, a + w] go to its two ends so that both are kept: the
upper end gets (p − r e^a) / (1 − e^{−w}). Since E[e^{−L'} | L] = e^{−L} and (1 − e^{ε−L})₊ is convex in e^{−L}, no δ(ε)
falls; the same holds after composition. What lies above the last edge goes to +∞, what lies below the first goes up
to it.

*Dominated*. Cut the loss anywhere and publish only the cell: that is post-processing, so the pair of masses (p, r) is
dominated by (P, Q). Its loss log(p/r) is then rounded *down* to the grid, which lowers δ once more. With edges half-way
between grid points log(p/r) misses the grid by O(w²) only; two corrections move each edge against that miss, and moving
the whole grid a little keeps the rest on the upper side. So rounding costs next to nothing, and the error stays
quadratic in the spacing where plain rounding down loses half a spacing a step. Where atoms sit between grid points that
trick is impossible; :meth:`GridPmf.log_spread` serves there.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import final

import numpy as np
import numpy.typing as npt

from quietsum.privacy.pairs import Pair
from quietsum.privacy.pld.losses import Array, Direction, cell_masses

__all__ = ["GridPmf", "dominated_pmf", "dominating_pmf", "edge_index"]

SNAP = 1e-9
"""A loss this share of a spacing below a grid point counts as being on it; the lower bound pays for it."""


@final
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GridPmf:
    """Mass e^{log_mass[i]} at loss offset + spacing · index[i], and ``infinite`` at +∞.

    ``width[i]`` is the widest cell whose mass may have come to point i, and ``moved`` the mass that came to the
    first point from anywhere below; both are zero in a dominated one.
    """

    spacing: float
    offset: float
    index: npt.NDArray[np.int64]
    log_mass: Array
    infinite: float
    width: Array
    moved: float = 0.0

    @property
    def loss(self) -> Array:
        """The losses themselves."""
        return grid_points(self.spacing, self.offset, self.index)

    def log_moment(self, order: float) -> float:
        """log E[e^{order · L}; L < ∞]."""
        return log_sum(self.log_mass + order * self.loss)

    def log_spread(self, tilt: float, order: float) -> float:
        """A bound on log E[e^{tilt·L' + order·(L' − L)}] for the true loss L behind this law's L', without ``moved``.

        Given L, L' takes two values w apart, so Hoeffding's lemma bounds its cumulants: E[e^{−L'}] = e^{−L} gives
        E[L'] ≤ L + w²/8, and with s = tilt + order, log E[e^{s(L' − L)}] ≤ s w²/8 + s² w²/8. What remains,
        E[e^{tilt·L}] on a cell, is at most E[e^{tilt·L'}] there because e^{tilt·L} is convex in e^{−L}.
        """
        power = tilt + order
        return log_sum(self.log_mass + tilt * self.loss + power * (power + 1) * self.width**2 / 8)


def grid_points(spacing: float, offset: float, index: npt.NDArray[np.int64]) -> Array:
    """offset + spacing · index."""
    return np.asarray(offset + spacing * index, dtype=np.float64)


def log_sum(values: Array) -> float:
    """log Σ e^values, −∞ for nothing."""
    top = float(np.max(values, initial=-np.inf))
    return top if not np.isfinite(top) else top + float(np.log(np.exp(values - top).sum()))


@functools.lru_cache(maxsize=8)
def _stretching(limit: int) -> npt.NDArray[np.int64]:
    """1, 2, 3, … with gaps that grow by one fortieth of the distance, up to ``limit`` or just beyond."""
    steps, at = [], 0
    while at < limit:
        at += 1 + at // 40
        steps.append(at)
    return np.array(steps, dtype=np.int64)


def edge_index(core: tuple[int, int], reach: tuple[int, int]) -> npt.NDArray[np.int64]:
    """Grid points to cut at: every one in ``core``, ever fewer out to ``reach`` (any subset of the grid is sound)."""
    low, high = core
    below = low - _stretching(1 << max(0, low - reach[0]).bit_length())
    above = high + _stretching(1 << max(0, reach[1] - high).bit_length())
    below, above = below[: np.searchsorted(-below, -reach[0]) + 1], above[: np.searchsorted(above, reach[1]) + 1]
    return np.concatenate([below[::-1], np.arange(low, high + 1), above])


def connect_dots(pair: Pair, direction: Direction, edges: Array) -> tuple[Array, float, float]:
    """Connect the dots at ``edges``: the masses at the edges, at +∞, and what came up to the first edge."""
    cells = cell_masses(pair, edges, direction)
    inside = cells.p[1:-1]
    with np.errstate(divide="ignore", over="ignore"):
        matched = np.exp(np.log(cells.q[1:-1]) + edges[:-1])  # r e^a without overflow; an r of zero sends all up
    up = np.clip((inside - matched) / -np.expm1(-np.diff(edges)), 0.0, inside)
    mass = np.append(inside - up, 0.0)
    mass[1:] += up
    mass[0] += cells.p[0]
    return mass, min(1.0, cells.p_infinite + float(cells.p[-1])), float(cells.p[0])


def dominating_pmf(
    pair: Pair, direction: Direction, *, spacing: float, offset: float, index: npt.NDArray[np.int64]
) -> GridPmf:
    """Connect the dots at the grid points ``index``: an upper bound on every δ(ε)."""
    mass, infinite, moved = connect_dots(pair, direction, grid_points(spacing, offset, index))
    widths = spacing * np.diff(index)
    width = np.maximum(np.append(0.0, widths), np.append(widths, 0.0))
    kept = mass > 0
    return GridPmf(
        spacing=spacing,
        offset=offset,
        index=index[kept],
        log_mass=np.log(mass[kept]),
        infinite=infinite,
        width=width[kept],
        moved=moved,
    )


def dominated_pmf(
    pair: Pair,
    direction: Direction,
    *,
    spacing: float,
    offset: float,
    index: npt.NDArray[np.int64],
    tilt: float,
    atoms: tuple[float, ...] = (),
) -> tuple[GridPmf, float]:
    """Cells about the grid points ``index``, merged and rounded down: a lower bound on every δ(ε).

    The grid's own offset is moved to where rounding throws least away, ``tilt`` saying which part of the law matters
    (masses weigh e^{tilt·L}); ``atoms`` are isolated in cells of their own. The second value is what is thrown away.
    """
    grid = grid_points(spacing, offset, index)
    p_mass, centre = _merge(pair, direction, (grid[1:] + grid[:-1]) / 2)
    weight = _tilt(p_mass, centre, tilt)
    heavy = int(np.argmax(weight))
    if weight[heavy] > 0.05:  # a bulk within one cell has its own place; let the grid pass through it
        grid, offset = grid + (centre - grid)[heavy], offset + float((centre - grid)[heavy])
    edges = _even_edges(pair, direction, grid, regular=np.diff(index) == 1)
    isolated = [atom + sign * 1e-12 * abs(atom) for atom in atoms for sign in (-1, 1)]
    law, lost = _round_down(pair, direction, np.union1d(edges, isolated), spacing, offset, tilt)
    for size in (16, 64):
        if lost > 0.01 * spacing and len(edges) > 2 * size and not atoms:
            low = _recut(pair, direction, grid[:size], edges[size - 1], up=True)
            high = _recut(pair, direction, grid[-size:], edges[-size], up=False)
            again = np.unique(np.concatenate([low, edges[size:-size], high]))
            other, less = _round_down(pair, direction, again, spacing, offset, tilt)
            law, lost = (other, less) if less < lost else (law, lost)
    return law, lost


def _even_edges(pair: Pair, direction: Direction, grid: Array, regular: npt.NDArray[np.bool_]) -> Array:
    """Edges between grid points, moved twice so that the cells' losses log(p/r) come close to the points."""
    edges = (grid[1:] + grid[:-1]) / 2
    limit = np.where(np.append(False, regular) & np.append(regular, False), np.median(np.diff(grid)) / 4, 0.0)
    for _ in range(2):
        miss = _merge(pair, direction, edges)[1] - grid
        miss = np.where(np.abs(miss) < limit, miss, 0.0)
        edges = edges - (miss[1:] + miss[:-1]) / 2
    return edges


def _round_down(
    pair: Pair, direction: Direction, edges: Array, spacing: float, offset: float, tilt: float
) -> tuple[GridPmf, float]:
    """The merged cells on the grid, moved up as a whole to where rounding down costs least, and that cost."""
    p_mass, centre = _merge(pair, direction, edges)
    p_mass, centre = p_mass[p_mass > 0], centre[p_mass > 0]
    weight = _tilt(p_mass, centre, tilt)
    # a grid moved up by t spacings loses E[(share − t) mod 1] = E[share mod 1] − t + P(share mod 1 < t) of one
    shares = np.mod((centre - offset) / spacing + SNAP, 1.0)
    order = np.argsort(shares)
    costs = np.cumsum(weight[order]) - weight[order] - shares[order]
    best = int(np.argmin(costs))
    up = float(shares[order[best]])
    offset += spacing * (up - SNAP) if up > 2 * SNAP else 0.0
    down = np.floor((centre - offset) / spacing + SNAP)
    law = GridPmf(
        spacing=spacing,
        offset=offset,
        index=down.astype(np.int64),
        log_mass=np.log(p_mass),
        infinite=cell_masses(pair, edges[:1], direction).p_infinite,
        width=np.zeros(len(down)),
    )
    return law, spacing * (float(weight @ shares) + float(costs[best]))


def _merge(pair: Pair, direction: Direction, edges: Array) -> tuple[Array, Array]:
    """P-masses of the cells and their losses log(p/r), which lie inside the cells; the lower edge where r is lost."""
    cells = cell_masses(pair, edges, direction)
    low, high = np.append(-np.inf, edges), np.append(edges, np.inf)
    with np.errstate(divide="ignore", invalid="ignore"):
        centre = np.log(cells.p) - np.log(cells.q)
        centre = np.where(cells.q > 0, centre, low)
    centre = np.where(cells.p > 0, np.clip(centre, low, high), np.where(np.isfinite(low), low, high))
    centre[-1] = edges[-1]  # so that the few far losses above the last edge widen no window
    nothing = ~np.isfinite(centre)  # a first or last cell that cannot be placed says nothing
    return np.where(nothing, 0.0, cells.p), np.where(nothing, edges[0], centre)


def _tilt(mass: Array, loss: Array, tilt: float) -> Array:
    with np.errstate(divide="ignore"):
        exponents = np.log(mass) + tilt * loss
    return np.asarray(np.exp(exponents - log_sum(exponents)))


def _recut(pair: Pair, direction: Direction, grid: Array, inner: float, *, up: bool) -> Array:
    """Edges for the outermost cells, one after the other, each so that log(p/r) comes just above a grid point.

    At an end of its support a density may rise or fall within one spacing, too steeply for the corrections above.
    """
    fine = np.linspace(grid[0], inner, 64 * len(grid)) if up else np.linspace(inner, grid[-1], 64 * len(grid))
    cells = cell_masses(pair, fine, direction)
    p_sum, q_sum = (np.cumsum(mass[:-1] if up else mass[:0:-1]) for mass in (cells.p, cells.q))
    found = list[float]()
    p_done, q_done, at = 0.0, 0.0, 0
    for target in grid if up else grid[::-1]:
        with np.errstate(divide="ignore", invalid="ignore"):
            reached = np.log(p_sum[at:] - p_done) - np.log(q_sum[at:] - q_done) >= target
        size = int(np.argmax(reached)) if up else int(np.count_nonzero(reached)) - 1  # it rises from below
        if not reached.any() or size < 0 or (up and size == 0 and not found):
            continue
        at += size
        p_done, q_done = p_sum[at], q_sum[at]
        found.append(float(fine[at] if up else fine[len(fine) - 1 - at]))
        at += 1
        if at >= len(fine):
            break
    return np.unique([*found, inner])
