"""Which tilt, which window, which grid: planning a sum of losses and refining it until its bounds are close.

Nothing here can make a bound wrong, only loose: every grid, window and tilt gives valid bounds, and
:mod:`~quietsum.privacy.convolution` charges whatever a bad choice leaves out. An *outline* of each pair (a few hundred
losses, connected by dots) gives moments at a ladder of orders. From them Chernoff bounds say where the sum of losses
matters for the question; a model of the discretisation error gives a first grid, the measured gap gives the next.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Protocol, final

import numpy as np
import numpy.typing as npt

from quietsum.privacy.convolution import LossSum, sum_losses
from quietsum.privacy.gridlaws import SNAP, GridLaw, dominating_law, dots, edge_index, log_sum, merged_law
from quietsum.privacy.losses import Array, Direction, cell_masses, loss_lattice, loss_points
from quietsum.privacy.pairs import Pair

__all__ = ["AtDelta", "AtEpsilon", "Bounds", "Question", "refine"]

_SLACK = math.log(1e-7)  # what window and truncation may add to δ, as a share of it
_TRIM = math.log(1e-5)  # what the far tail of single losses may add
_TILTS = 2.0 ** (np.arange(-21, 61) / 3)
_ORDERS = np.concatenate([-(2.0 ** np.arange(8, -8, -1)), [0.0], _TILTS])


@final
@dataclasses.dataclass(frozen=True, slots=True)
class Bounds:
    """Lower and upper bound on what was asked, and the grid spacing they were found on."""

    lower: float
    upper: float
    spacing: float


@final
@dataclasses.dataclass(frozen=True, slots=True)
class _Outline:
    """One pair seen coarsely: losses with log-masses, how often it is used, and its lattice."""

    pair: Pair
    count: int
    loss: Array
    log_mass: Array
    lattice: tuple[float, float, bool] | None

    def weights(self, tilt: float) -> Array:
        exponent = self.log_mass + tilt * self.loss
        return np.asarray(np.exp(exponent - log_sum(exponent)))

    def trimmed(self, log_delta: float) -> _Outline:
        """Without the largest losses, whose mass, over all steps, is negligible against δ; a heavy tail spoils moments."""
        tail = np.cumsum(np.exp(self.log_mass[::-1]))
        kept = len(tail) - int(np.searchsorted(tail, math.exp(log_delta + _TRIM) / self.count))
        return dataclasses.replace(self, loss=self.loss[:kept], log_mass=self.log_mass[:kept])

    def log_moment(self) -> Array:
        """log E[e^{order · L}] at all ``_ORDERS``."""
        exponents = self.log_mass + _ORDERS[:, None] * self.loss
        top = exponents.max(axis=1, keepdims=True)
        return np.asarray(top[:, 0] + np.log(np.exp(exponents - top).sum(axis=1)))


@final
@dataclasses.dataclass(frozen=True, slots=True)
class _Plan:
    """A tilt, the window of the sum that a question needs, and the orders whose moments bound what lies outside.

    ``lenses`` are tilts (this one and that of the best Rényi bound) with log(e^{K − tilt·ε} / δ): a share of mass, seen
    through a lens, is worth that much more as a share of δ.
    """

    tilt: float
    lenses: tuple[tuple[float, float], ...]
    orders: tuple[float, float]
    low: float
    high: float


class Question(Protocol):
    """ε at a δ, or δ at an ε: what the loop below needs to know of either."""

    def reach(self, steps: int) -> float:
        """How many standard deviations of a single loss can matter."""
        ...

    def guess(self, outlines: list[_Outline]) -> tuple[float, float]:
        """(ε, log δ), roughly."""
        ...

    def bounds(self, upper: LossSum, lower: LossSum, shift: float) -> tuple[float, float]:
        """Lower and upper bound; the losses of ``lower`` may be too large by ``shift``."""
        ...

    def narrowed(self, lower: float, upper: float, guess: tuple[float, float]) -> tuple[float, float]:
        """A better guess, once bounds are known."""
        ...

    def excess(self, lower: float, upper: float) -> float:
        """The gap between the bounds as a multiple of the tolerated one."""
        ...


@final
@dataclasses.dataclass(frozen=True, slots=True)
class AtDelta:
    """ε at ``delta``, to within tolerance · max(1, ε). ``log_delta`` is the log of δ less the mass at infinity."""

    delta: float
    tolerance: float
    log_delta: float

    def reach(self, steps: int) -> float:
        return min(38.0, math.sqrt(2 * (math.log(steps) - self.log_delta - _SLACK)) + 2)

    def guess(self, outlines: list[_Outline]) -> tuple[float, float]:
        order = _TILTS + 1
        log_moment = _total_moment([outline.trimmed(self.log_delta) for outline in outlines])
        renyi = (log_moment[-len(_TILTS) :] - self.log_delta - np.log(order)) / _TILTS + np.log(_TILTS / order)
        return 0.8 * max(0.0, float(renyi.min())), self.log_delta

    def bounds(self, upper: LossSum, lower: LossSum, shift: float) -> tuple[float, float]:
        return max(0.0, lower.lower_epsilon(self.delta) - shift), upper.upper_epsilon(self.delta)

    def narrowed(self, lower: float, upper: float, guess: tuple[float, float]) -> tuple[float, float]:
        return (lower if lower > 0 else min(guess[0], upper) / 2), self.log_delta

    def excess(self, lower: float, upper: float) -> float:
        return (upper - lower) / (self.tolerance * max(1.0, upper)) if math.isfinite(upper) else math.inf


@final
@dataclasses.dataclass(frozen=True, slots=True)
class AtEpsilon:
    """δ at ``epsilon``, to within a factor 1 + tolerance."""

    epsilon: float
    tolerance: float

    def reach(self, steps: int) -> float:
        return 38.0

    def guess(self, outlines: list[_Outline]) -> tuple[float, float]:
        """Between what one step alone reveals and a Chernoff bound, from moments of outlines trimmed to fit."""
        alone = max(
            log_sum(outline.log_mass + np.log(-np.expm1(np.minimum(self.epsilon - outline.loss, -1e-300))))
            for outline in outlines
        )
        log_delta = 0.0
        for _ in range(6):
            log_moment = _total_moment([outline.trimmed(log_delta) for outline in outlines])
            chernoff = float((log_moment[-len(_TILTS) :] - _TILTS * self.epsilon).min())
            log_delta, before = max(alone - 2, min(0.0, chernoff) - 8, -690.0), log_delta
            if before - log_delta < 2:
                break
        return self.epsilon, log_delta

    def bounds(self, upper: LossSum, lower: LossSum, shift: float) -> tuple[float, float]:
        return lower.lower_delta(self.epsilon + shift), upper.upper_delta(self.epsilon)

    def narrowed(self, lower: float, upper: float, guess: tuple[float, float]) -> tuple[float, float]:
        return self.epsilon, math.log(lower) if lower > 0 else guess[1] - 10

    def excess(self, lower: float, upper: float) -> float:
        if upper <= 1e-300:
            return 0.0
        return math.log(upper / lower) / self.tolerance if lower > 0 else math.inf


def refine(
    counts: Mapping[Pair, int],
    direction: Direction,
    question: Question,
    *,
    max_points: int,
    spacing: float | None = None,
    at_least: float = 0.0,
) -> Bounds:
    """Bounds for one direction, as close as ``question`` tolerates or ``max_points`` allow.

    A given ``spacing`` is kept as it is. The search ends early once the upper bound is below ``at_least``, when this
    direction can no longer be the worse one.
    """
    steps = sum(counts.values())
    reach, points = question.reach(steps), 513 if len(counts) <= 8 else 129
    whole = [_outline(pair, count, direction, reach, points) for pair, count in counts.items()]
    guess, trimmed_for = question.guess(whole), math.nan
    unit, exact = _common_unit(whole)
    best, step, before = Bounds(0.0, math.inf, 0.0), spacing or 0.0, math.inf
    for attempt in range(8):
        if trimmed_for != guess[1]:
            outlines, trimmed_for = [outline.trimmed(guess[1]) for outline in whole], guess[1]
            log_moment = _total_moment(outlines)
            widest = max(float(np.ptp(outline.loss)) for outline in outlines) or 1.0
        plan = _plan(log_moment, steps, *guess, margin=1e-3 * widest)
        extent = plan.high - plan.low
        finest = max(extent, widest / 4) / max_points * 1.01
        if spacing is None:
            step = max(finest, step or _first_step(outlines, plan, question, guess[0], extent))
            step = unit if exact and unit >= finest else unit / math.ceil(unit / step) if unit > step else step
        lower, upper = _evaluate(outlines, direction, question, plan, step, guess, unit)
        best = Bounds(max(best.lower, lower), min(best.upper, upper), step)
        excess = question.excess(best.lower, best.upper)
        guess = question.narrowed(best.lower, best.upper, guess)
        no_better = attempt > 1 and excess > 0.9 * before
        if excess <= 1 or best.upper <= at_least or no_better or (attempt and step <= 1.3 * finest):
            break
        step, before = step * min(0.7, max(1 / 24, math.sqrt(0.7 / excess))) if spacing is None else spacing, excess
    return best


def _total_moment(outlines: list[_Outline]) -> Array:
    return np.asarray(np.sum([outline.count * outline.log_moment() for outline in outlines], axis=0))


def _outline(pair: Pair, count: int, direction: Direction, reach: float, points: int) -> _Outline:
    losses = loss_points(pair, direction, reach=reach, count=points)
    mass, _, _ = dots(pair, direction, losses)
    losses, log_mass = losses[mass > 0], np.log(mass[mass > 0])
    return _Outline(pair, count, losses, log_mass, loss_lattice(pair, direction))


def _plan(log_moment: Array, steps: int, epsilon: float, log_delta: float, *, margin: float) -> _Plan:
    """The tilt with the narrowest window, among those that leave rounding error far below δ.

    With tilt c, E[e^{c(S−ε)}; S > high] ≤ e^{K(u) − (u−c)·high − cε} for each u > c, and likewise below; the window is
    the smallest one for which both are a negligible share of δ. e^{K(c) − cε} is what rounding is relative to.
    """
    floor = log_delta + _SLACK
    moments = log_moment[-len(_TILTS) :]
    gap = _ORDERS - _TILTS[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        reached = (log_moment - (floor + epsilon * _TILTS)[:, None]) / np.abs(gap)
    reached_up, reached_down = np.where(gap > 0, reached, np.inf), np.where(gap < 0, -reached, -np.inf)
    high = np.maximum(reached_up.min(axis=1), epsilon + margin)
    low = np.minimum(reached_down.max(axis=1), epsilon - margin)
    exponent = moments - _TILTS * epsilon - log_delta
    focus = int(np.argmin(exponent))
    cost = np.log(high - low) + 0.3 * np.maximum(0.0, exponent - 20 + math.log(steps))
    cost += 0.1 * np.abs(np.log(_TILTS / _TILTS[focus]))
    best = int(np.argmin(cost[:-1]))  # the last rung has no order above it
    orders = float(_ORDERS[np.argmin(reached_up[best])]), float(_ORDERS[np.argmax(reached_down[best])])
    lenses = tuple((float(_TILTS[at]), float(exponent[at])) for at in {best, focus})
    return _Plan(float(_TILTS[best]), lenses, orders, float(low[best]), float(high[best]))


def _first_step(outlines: list[_Outline], plan: _Plan, question: Question, epsilon: float, extent: float) -> float:
    """A spacing at which the bounds should be about close enough.

    Connecting dots adds and merging removes variance of order h² a step, worth (c + 1) T h²/8 in ε together; and cells
    should be finer than the bulk of a single loss.
    """
    steps = sum(outline.count for outline in outlines)
    allowed = 1e-3 / max(question.excess(epsilon, epsilon + 1e-3), 1e-12)
    model = math.sqrt(4 * allowed / ((plan.tilt + 1) * steps))
    finest = extent / (1 << 14)
    for outline in outlines:
        weights = outline.weights(plan.tilt)
        spread = math.sqrt(float(weights @ (outline.loss - weights @ outline.loss) ** 2))
        model = min(model, max(spread / 6, finest))
    return min(model, extent / 512)


def _common_unit(outlines: list[_Outline]) -> tuple[float, bool]:
    """The largest spacing that holds the atoms of all pairs (0 where there is none), and whether there is nothing else."""
    lattices = [outline.lattice for outline in outlines]
    found = [lattice[1] for lattice in lattices if lattice is not None]
    if not found:
        return 0.0, False
    ratios = [Fraction(unit / found[0]).limit_denominator(1000) for unit in found]
    if any(abs(float(ratio) * found[0] - unit) > 1e-13 * unit for ratio, unit in zip(ratios, found, strict=True)):
        return 0.0, False
    unit = found[0] * math.gcd(*(r.numerator for r in ratios)) / math.lcm(*(r.denominator for r in ratios))
    return unit, all(lattice is not None and lattice[2] for lattice in lattices)


def _evaluate(
    outlines: list[_Outline],
    direction: Direction,
    question: Question,
    plan: _Plan,
    step: float,
    guess: tuple[float, float],
    unit: float,
) -> tuple[float, float]:
    worse: list[tuple[GridLaw, int]] = []
    better: list[tuple[GridLaw, int]] = []
    aligned = unit > 0 and abs(unit / step - round(unit / step)) < 1e-9
    for outline in outlines:
        offset = outline.lattice[0] if outline.lattice and aligned else 0.0
        index = _edges(outline, plan, step, offset)
        law = dominating_law(outline.pair, direction, spacing=step, offset=offset, index=index)
        atoms = outline.lattice[:2] if outline.lattice and not outline.lattice[2] else ()
        merged, lost = merged_law(
            outline.pair, direction, spacing=step, offset=offset, index=index, tilt=plan.tilt,
            atoms=(atoms[0], sum(atoms)) if atoms else (),
        )  # fmt: skip
        worse.append((law, outline.count))
        # rounding down loses ``lost`` a step; two-sided rounding loses about 3 √T spacings in all
        spread = 4 * step * math.sqrt(outline.count) < outline.count * lost
        better.append((dataclasses.replace(law, infinite=merged.infinite) if spread else merged, outline.count))
    points = _fast_length((plan.high - plan.low) / step + 2)
    floor = 0.999 * guess[0] if dict(plan.lenses)[plan.tilt] > 20 and guess[0] > 0 else -math.inf
    sums = [
        sum_losses(
            laws, tilt=plan.tilt, orders=plan.orders, start=_start(laws, plan, step), points=points, floor=floor
        )
        for laws in (worse, better)
    ]
    shift, log_error = _spread(better, plan.tilt, guess[1] - math.log(1e3) + plan.tilt * guess[0])
    lower = dataclasses.replace(sums[1], log_stray=float(np.logaddexp(sums[1].log_stray, log_error)))
    shift += SNAP * step * sum(outline.count for outline in outlines)
    return question.bounds(sums[0], lower, shift)


def _start(laws: list[tuple[GridLaw, int]], plan: _Plan, step: float) -> int:
    offset = math.fsum(count * law.offset for law, count in laws)
    return math.floor((plan.low - offset) / step)


def _fast_length(points: float) -> int:
    """A power of two, or three times one, that is at least ``points``."""
    power = 1 << max(8, math.ceil(math.log2(points)))
    return 3 * power // 4 if 3 * power // 4 >= points else power


def _edges(outline: _Outline, plan: _Plan, step: float, offset: float) -> npt.NDArray[np.int64]:
    """Grid points to cut one pair's loss at: all where it matters for δ, ever fewer beyond, none where nothing counts."""
    loss, last = outline.loss, len(outline.loss) - 1
    low, high, bottom = -math.inf, math.inf, -math.inf
    for tilt, excess in plan.lenses:
        weights = outline.weights(tilt)
        below, above = np.cumsum(weights), np.cumsum(weights[::-1])
        worth = math.exp(min(0.0, -excess))
        share = worth * min(1e-3, max(1e-9, 1e-5 / (outline.count * step)))
        low = max(low, float(loss[max(0, int(np.searchsorted(below, share)) - 1)]))
        high = min(high, float(loss[min(last, last + 1 - int(np.searchsorted(above, share)))]))
        bottom = max(bottom, float(loss[max(0, int(np.searchsorted(below, 1e-9 * worth / outline.count)) - 1)]))
    reach = min(bottom, low), float(loss[-1])
    core = reach if outline.lattice is not None else (low, max(low, high))
    (low_core, high_core), (low_reach, high_reach) = (
        (math.floor((a - offset) / step) - 1, math.ceil((b - offset) / step) + 1) for a, b in (core, reach)
    )
    return edge_index((low_core, high_core), (low_reach, high_reach))


def _spread(laws: list[tuple[GridLaw, int]], tilt: float, log_allowed: float) -> tuple[float, float]:
    """(η, log of an error): with connected dots L' among ``laws``, S ≥ S' − η but for an error of e^{log − tilt·ε} in δ.

    δ(ε) = E(1 − e^{ε−S})₊ ≥ E(1 − e^{ε+η−S'})₊ − P(S' > ε + η, S' − S > η), and by Markov's inequality the last term is at most
    e^{−tilt(ε+η) − sη} E[e^{tilt·S' + s(S'−S)}], which :meth:`GridLaw.log_spread` bounds for every s > 0.
    """
    if all(not law.width.any() for law, _ in laws):
        return 0.0, -math.inf
    total = math.fsum(count * law.log_moment(tilt) for law, count in laws)
    moved = [
        total + math.log(count * law.moved) + tilt * float(law.loss[0]) - law.log_moment(tilt)
        for law, count in laws if law.moved
    ]  # fmt: skip
    shift = math.inf
    widest = max(float(law.width[len(law.width) // 2]) for law, _ in laws) * math.sqrt(sum(count for _, count in laws))
    for order in 2.0 ** np.arange(-1, 6.5, 0.5) / widest:
        bound = math.fsum(count * law.log_spread(tilt, order) for law, count in laws)
        shift = min(shift, (bound - log_allowed) / order)
    return max(0.0, shift), log_sum(np.array([log_allowed, *moved]))
