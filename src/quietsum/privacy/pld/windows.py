"""Coarse losses, to plan fine ones: where the sum of losses matters for a question, and how finely to cut it.

A :class:`CoarseLoss` is a pair's loss at a few hundred points, by connecting the dots. Its moments at a ladder of
orders give Chernoff bounds, and these say which tilt and which window of the sum a question needs, and which losses of
a single step. A bad choice here makes a bound loose, never wrong: every grid, window and tilt gives valid bounds, and
:mod:`~quietsum.privacy.pld.convolution` charges what the choice leaves out.
"""

from __future__ import annotations

import dataclasses
import math
from fractions import Fraction
from typing import final

import numpy as np
import numpy.typing as npt

from quietsum.privacy.pairs import Pair
from quietsum.privacy.pld.grid import connect_dots, edge_index, log_sum
from quietsum.privacy.pld.losses import Array, Direction, few_atoms, loss_lattice, loss_points

__all__ = [
    "NEGLIGIBLE",
    "TILTS",
    "CoarseLoss",
    "CoarseLosses",
    "WindowPlan",
    "coarsen",
    "common_unit",
    "cut_points",
    "first_spacing",
    "plan_window",
]

NEGLIGIBLE = math.log(1e-7)
"""What a window may leave out, as log of a share of δ."""
_TRIMMED = math.log(1e-5)  # what the far tail of single losses may add
TILTS = 2.0 ** (np.arange(-21, 61) / 3)
"""The ladder of tilts c > 0, i.e. of Rényi orders c + 1."""
_ORDERS = np.concatenate([-(2.0 ** np.arange(8, -8, -1)), [0.0], TILTS])


@final
@dataclasses.dataclass(frozen=True, slots=True)
class CoarseLoss:
    """One pair seen coarsely: losses with log-masses, how often it is used, and the lattice of its atoms."""

    pair: Pair
    count: int
    loss: Array
    log_mass: Array
    lattice: tuple[float, float, bool] | None

    def weights(self, tilt: float) -> Array:
        """Masses times e^{tilt · loss}, adding up to one."""
        exponent = self.log_mass + tilt * self.loss
        return np.asarray(np.exp(exponent - log_sum(exponent)))

    def trim(self, log_delta: float) -> CoarseLoss:
        """Without the largest losses, where their mass, over all steps, is negligible: heavy tails spoil moments."""
        tail = np.cumsum(np.exp(self.log_mass[::-1]))
        kept = len(tail) - int(np.searchsorted(tail, math.exp(log_delta + _TRIMMED) / self.count))
        return dataclasses.replace(self, loss=self.loss[:kept], log_mass=self.log_mass[:kept])

    def log_moment(self) -> Array:
        """log E[e^{order · L}] at all orders of the ladder."""
        exponents = self.log_mass + _ORDERS[:, None] * self.loss
        top = exponents.max(axis=1, keepdims=True)
        return np.asarray(top[:, 0] + np.log(np.exp(exponents - top).sum(axis=1)))


def coarsen(pair: Pair, count: int, direction: Direction, *, reach: float, points: int) -> CoarseLoss:
    """``pair`` at about ``points`` losses out to ``reach`` standard deviations."""
    losses = loss_points(pair, direction, reach=reach, count=points)
    mass, _, _ = connect_dots(pair, direction, losses)
    return CoarseLoss(pair, count, losses[mass > 0], np.log(mass[mass > 0]), loss_lattice(pair, direction))


@final
class CoarseLosses:
    """The coarse losses of all pairs, trimmed for one δ at a time."""

    def __init__(self, whole: list[CoarseLoss]) -> None:
        self.whole = whole
        self.steps = sum(coarse.count for coarse in whole)
        self._trimmed: dict[float, tuple[list[CoarseLoss], Array]] = {}

    def trim(self, log_delta: float) -> tuple[list[CoarseLoss], Array]:
        """Coarse losses without tails that are negligible against δ, and log E[e^{order · S}] of their sum S."""
        if log_delta not in self._trimmed:
            parts = [coarse.trim(log_delta) for coarse in self.whole]
            moments = np.sum([coarse.count * coarse.log_moment() for coarse in parts], axis=0)
            self._trimmed = {log_delta: (parts, np.asarray(moments))}
        return self._trimmed[log_delta]

    def tilt_moments(self, log_delta: float) -> Array:
        """The moments at ``TILTS`` alone."""
        return self.trim(log_delta)[1][-len(TILTS) :]


@final
@dataclasses.dataclass(frozen=True, slots=True)
class WindowPlan:
    """A tilt, the window of the sum that a question needs, and the orders whose moments bound what lies outside.

    ``tilt_exponents`` are tilts (this one and that of the best Rényi bound) with log(e^{K − tilt·ε} / δ): a share of
    the mass tilted so is worth that much more as a share of δ.
    """

    tilt: float
    tilt_exponents: dict[float, float]
    orders: tuple[float, float]
    low: float
    high: float


def plan_window(log_moment: Array, steps: int, epsilon: float, log_delta: float, *, margin: float) -> WindowPlan:
    """The tilt with the narrowest window, among those that leave rounding error far below δ.

    With tilt c, E[e^{c(S−ε)}; S > high] ≤ e^{K(u) − (u−c)·high − cε} for each u > c, and likewise below; the window is
    the smallest one for which both are a negligible share of δ. e^{K(c) − cε} is what rounding is relative to.
    """
    floor = log_delta + NEGLIGIBLE
    gap = _ORDERS - TILTS[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        reached = (log_moment - (floor + epsilon * TILTS)[:, None]) / np.abs(gap)
    reached_up, reached_down = np.where(gap > 0, reached, np.inf), np.where(gap < 0, -reached, -np.inf)
    high = np.maximum(reached_up.min(axis=1), epsilon + margin)
    low = np.minimum(reached_down.max(axis=1), epsilon - margin)
    exponent = log_moment[-len(TILTS) :] - TILTS * epsilon - log_delta
    focus = int(np.argmin(exponent))
    cost = np.log(high - low) + 0.3 * np.maximum(0.0, exponent - 20 + math.log(steps))
    cost += 0.1 * np.abs(np.log(TILTS / TILTS[focus]))
    best = int(np.argmin(cost[:-1]))  # the last rung has no order above it
    return WindowPlan(
        tilt=float(TILTS[best]),
        tilt_exponents={float(TILTS[at]): float(exponent[at]) for at in (best, focus)},
        orders=(float(_ORDERS[np.argmin(reached_up[best])]), float(_ORDERS[np.argmax(reached_down[best])])),
        low=float(low[best]),
        high=float(high[best]),
    )


def first_spacing(losses: list[CoarseLoss], plan: WindowPlan, *, allowed: float) -> float:
    """A spacing h at which ε should come out to within about ``allowed``.

    Connecting dots adds and merging removes variance of order h² a step, worth (c + 1) T h²/8 in ε together; and cells
    should be finer than the bulk of a single loss.
    """
    steps = sum(coarse.count for coarse in losses)
    extent = plan.high - plan.low
    spacing = math.sqrt(4 * allowed / ((1 + min(plan.tilt_exponents)) * steps))
    for coarse in losses:
        weights = coarse.weights(plan.tilt)
        spread = math.sqrt(float(weights @ (coarse.loss - weights @ coarse.loss) ** 2))
        spacing = min(spacing, max(spread / 6, extent / (1 << 14)))
    return min(spacing, extent / 512)


def common_unit(losses: list[CoarseLoss]) -> tuple[float, bool]:
    """The largest spacing that holds the atoms of all pairs, 0 without one, and whether there is nothing but atoms."""
    units = [coarse.lattice[1] for coarse in losses if coarse.lattice is not None]
    if not units:
        return 0.0, False
    ratios = [Fraction(unit / units[0]).limit_denominator(1000) for unit in units]
    if any(abs(float(ratio) * units[0] - unit) > 1e-13 * unit for ratio, unit in zip(ratios, units, strict=True)):
        return 0.0, False
    unit = units[0] * math.gcd(*(r.numerator for r in ratios)) / math.lcm(*(r.denominator for r in ratios))
    return unit, all(coarse.lattice is not None and coarse.lattice[2] for coarse in losses)


def cut_points(coarse: CoarseLoss, plan: WindowPlan, spacing: float, offset: float) -> npt.NDArray[np.int64]:
    """Grid points to cut a pair's loss at: all where it matters for δ, ever fewer beyond, none where nothing counts."""
    loss, last = coarse.loss, len(coarse.loss) - 1
    low, high, bottom = -math.inf, math.inf, -math.inf
    for tilt, excess in plan.tilt_exponents.items():
        weights = coarse.weights(tilt)
        below, above = np.cumsum(weights), np.cumsum(weights[::-1])
        worth = math.exp(min(0.0, -excess))
        share = worth * min(1e-3, max(1e-9, 1e-5 / (coarse.count * spacing)))
        low = max(low, float(loss[max(0, int(np.searchsorted(below, share)) - 1)]))
        high = min(high, float(loss[min(last, last + 1 - int(np.searchsorted(above, share)))]))
        bottom = max(bottom, float(loss[max(0, int(np.searchsorted(below, 1e-9 * worth / coarse.count)) - 1)]))
    reach = min(bottom, low), float(loss[-1])
    core = reach if coarse.lattice is not None else (low, max(low, high))
    if few_atoms(coarse.pair):  # the points just below and just above each atom
        index = np.floor((loss[loss >= reach[0]] - offset) / spacing + 1e-9).astype(np.int64)
        return np.unique(np.concatenate([index - 1, index, index + 1, index + 2]))
    (low_core, high_core), (low_reach, high_reach) = (
        (math.floor((a - offset) / spacing) - 1, math.ceil((b - offset) / spacing) + 1) for a, b in (core, reach)
    )
    return edge_index((low_core, high_core), (low_reach, high_reach))
