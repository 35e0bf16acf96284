"""Refining until two bounds are close: the loop around grids, and the two questions one can ask.

Each round plans a window (:mod:`~quietsum.privacy.pld.windows`), puts every pair on the grid from both sides
(:mod:`~quietsum.privacy.pld.grid`), sums (:mod:`~quietsum.privacy.pld.convolution`) and reads off a lower and an upper
bound; the gap between them sets the next, finer grid. Every round's bounds are valid, so the best of all is kept.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Protocol, final

import numpy as np

from quietsum.errors import InvalidParameter
from quietsum.privacy.pairs import Pair
from quietsum.privacy.pld.convolution import LossSum, sum_losses
from quietsum.privacy.pld.grid import SNAP, GridPmf, dominated_pmf, dominating_pmf, log_sum
from quietsum.privacy.pld.losses import Direction
from quietsum.privacy.pld.windows import (
    NEGLIGIBLE,
    TILTS,
    CoarseLoss,
    CoarseLosses,
    WindowPlan,
    coarsen,
    common_unit,
    cut_points,
    first_spacing,
    plan_window,
)

__all__ = ["AtDelta", "AtEpsilon", "BoundQuery", "Bounds", "refine"]


@final
@dataclasses.dataclass(frozen=True, slots=True)
class Bounds:
    """Lower and upper bound on what was asked, and the grid spacing that gave them."""

    lower: float
    upper: float
    spacing: float


class BoundQuery(Protocol):
    """ε at a δ, or δ at an ε: what the loop needs to know of either."""

    def reach(self, steps: int) -> float:
        """How many standard deviations of a single loss can matter."""
        ...

    def guess(self, losses: CoarseLosses) -> tuple[float, float]:
        """(ε, log δ), roughly."""
        ...

    def upper(self, total: LossSum) -> float:
        """The upper bound that a dominating sum gives."""
        ...

    def lower(self, total: LossSum, shift: float) -> float:
        """The lower bound that a dominated sum gives; its losses may be too large by ``shift``."""
        ...

    def narrow(self, found: Bounds, guess: tuple[float, float]) -> tuple[float, float]:
        """A better guess, once bounds are known."""
        ...

    def excess(self, found: Bounds) -> float:
        """The gap between the bounds as a multiple of the tolerated one."""
        ...

    def largest_gap(self, epsilon: float, slope: float) -> float:
        """The tolerated gap as a change of ε, where log δ falls by ``slope`` for each unit of ε."""
        ...


@final
@dataclasses.dataclass(frozen=True, slots=True)
class AtDelta:
    """ε at ``delta``, to within tolerance · max(1, ε). ``log_delta`` is the log of δ less the mass at infinity."""

    delta: float
    tolerance: float
    log_delta: float

    def reach(self, steps: int) -> float:
        """As far as δ reaches."""
        return min(38.0, math.sqrt(2 * (math.log(steps) - self.log_delta - NEGLIGIBLE)) + 2)

    def guess(self, losses: CoarseLosses) -> tuple[float, float]:
        """A bit less than a Rényi bound."""
        log_moment = losses.tilt_moments(self.log_delta)
        renyi = (log_moment - self.log_delta - np.log(TILTS + 1)) / TILTS + np.log(TILTS / (TILTS + 1))
        best = float(renyi.min())
        return max(0.0, 0.5 * best, best - 4 / float(TILTS[np.argmin(renyi)])), self.log_delta

    def upper(self, total: LossSum) -> float:
        """ε from above."""
        return total.upper_epsilon(self.delta)

    def lower(self, total: LossSum, shift: float) -> float:
        """ε from below."""
        return max(0.0, total.lower_epsilon(self.delta) - shift)

    def narrow(self, found: Bounds, guess: tuple[float, float]) -> tuple[float, float]:
        """The lower bound, or something smaller than before."""
        return (found.lower if found.lower > 0 else 0.75 * min(guess[0], found.upper)), self.log_delta

    def excess(self, found: Bounds) -> float:
        """Gap over tolerance · max(1, ε)."""
        gap = found.upper - found.lower if math.isfinite(found.upper) else math.inf
        return gap / (self.tolerance * max(1.0, min(found.upper, 1e300)))

    def largest_gap(self, epsilon: float, slope: float) -> float:
        """What was asked for."""
        return self.tolerance * max(1.0, epsilon)


@final
@dataclasses.dataclass(frozen=True, slots=True)
class AtEpsilon:
    """δ at ``epsilon``, to within a factor 1 + tolerance."""

    epsilon: float
    tolerance: float

    def reach(self, steps: int) -> float:
        """As far as a double can tell; how small δ is, we do not know yet."""
        return 38.0

    def guess(self, losses: CoarseLosses) -> tuple[float, float]:
        """Between what one step alone reveals and a Chernoff bound, from losses trimmed to fit."""
        alone = max(
            log_sum(coarse.log_mass + np.log(-np.expm1(np.minimum(self.epsilon - coarse.loss, -1e-300))))
            for coarse in losses.whole
        )
        log_delta = 0.0
        for _ in range(25):
            chernoff = float((losses.tilt_moments(log_delta) - TILTS * self.epsilon).min())
            log_delta, before = max(alone - 2, min(0.0, chernoff) - 8, -690.0), log_delta
            if before - log_delta < 2:
                break
        return self.epsilon, log_delta

    def upper(self, total: LossSum) -> float:
        """δ from above."""
        return total.upper_delta(self.epsilon)

    def lower(self, total: LossSum, shift: float) -> float:
        """δ from below."""
        return total.lower_delta(self.epsilon + shift)

    def narrow(self, found: Bounds, guess: tuple[float, float]) -> tuple[float, float]:
        """The lower bound, or something smaller than before."""
        return self.epsilon, math.log(found.lower) if found.lower > 0 else max(-690.0, guess[1] - 10)

    def excess(self, found: Bounds) -> float:
        """log(upper / lower) over the tolerance; what underflows is close enough."""
        if found.upper <= 1e-300:
            return 0.0
        return math.log(found.upper / found.lower) / self.tolerance if found.lower > 0 else math.inf

    def largest_gap(self, epsilon: float, slope: float) -> float:
        """A factor of δ is worth this much ε."""
        return self.tolerance / slope


def refine(
    counts: Mapping[Pair, int],
    direction: Direction,
    question: BoundQuery,
    *,
    max_points: int,
    spacing: float | None = None,
    at_least: float = 0.0,
) -> Bounds:
    """Bounds for one direction, as close as ``question`` tolerates or ``max_points`` allow.

    A given ``spacing`` is kept as it is. The search ends early once the upper bound is below ``at_least``, when this
    direction can no longer be the worse one.
    """
    reach, points = question.reach(sum(counts.values())), 513 if len(counts) <= 8 else 129
    known = CoarseLosses(
        [coarsen(pair, count, direction, reach=reach, points=points) for pair, count in counts.items()]
    )
    guess = question.guess(known)
    unit, exact = common_unit(known.whole)
    best, step, before, in_vain = Bounds(0.0, math.inf, 0.0), spacing or 0.0, math.inf, 0
    for attempt in range(8):
        losses, log_moment = known.trim(guess[1])
        widest = max(float(np.ptp(coarse.loss)) for coarse in losses) or 1.0
        plan = plan_window(log_moment, known.steps, *guess, margin=1e-3 * widest)
        finest = max(plan.high - plan.low, widest / 4) / max_points * 1.01
        if spacing is not None and finest > spacing:
            raise InvalidParameter(
                "grid",
                spacing,
                f"is too fine: here {max_points} points reach {finest:.2g}",
                "use a larger one, or None",
            )
        if spacing is None:
            slope = 1 + min(plan.tilt_exponents)
            step = max(finest, step or first_spacing(losses, plan, allowed=question.largest_gap(guess[0], slope)))
            step = unit if exact and unit >= finest else unit / math.ceil(unit / step) if unit > step else step
        lower, upper = _evaluate(losses, direction, question, plan, step, guess, unit, at_least)
        best = Bounds(max(best.lower, lower), min(best.upper, upper), step)
        excess = question.excess(best)
        guess, old_guess = question.narrow(best, guess), guess
        in_vain += excess > 0.9 * before
        stable = abs(guess[1] - old_guess[1]) < 3  # else the plan was at fault, not the grid
        if excess <= 1 or best.upper <= at_least or in_vain > 2 or (attempt and stable and step <= 1.3 * finest):
            break
        if spacing is None:
            step = 0.0 if not stable else step * _shrinkage(excess, before)
        before = excess
    return best


def _shrinkage(excess: float, before: float) -> float:
    """The gap falls with the square of the spacing, if it falls at all."""
    return 0.25 if excess > 0.9 * before else min(0.7, max(1 / 24, math.sqrt(0.7 / excess)))


def _evaluate(
    losses: list[CoarseLoss],
    direction: Direction,
    question: BoundQuery,
    plan: WindowPlan,
    step: float,
    guess: tuple[float, float],
    unit: float,
    at_least: float,
) -> tuple[float, float]:
    """Lower and upper bound from one grid; no lower one where the upper is below ``at_least`` anyway."""
    aligned = unit > 0 and abs(unit / step - round(unit / step)) < 1e-9
    points = _fast_length((plan.high - plan.low) / step + 2)
    floor = 0.999 * guess[0] if plan.tilt_exponents[plan.tilt] > 20 and guess[0] > 0 else -math.inf

    def sum_window(laws: list[tuple[GridPmf, int]]) -> LossSum:
        return sum_losses(laws, tilt=plan.tilt, orders=plan.orders, low=plan.low, points=points, floor=floor)

    offsets = [coarse.lattice[0] if coarse.lattice is not None and aligned else 0.0 for coarse in losses]
    cuts = [cut_points(coarse, plan, step, offset) for coarse, offset in zip(losses, offsets, strict=True)]
    worse: list[tuple[GridPmf, int]] = []
    for coarse, offset, index in zip(losses, offsets, cuts, strict=True):
        law = dominating_pmf(coarse.pair, direction, spacing=step, offset=offset, index=index)
        worse.append((law, coarse.count))
    upper = sum_window(worse)
    if question.upper(upper) <= at_least:
        return 0.0, question.upper(upper)
    better: list[tuple[GridPmf, int]] = []
    for coarse, offset, index, (law, count) in zip(losses, offsets, cuts, worse, strict=True):
        atoms: tuple[float, ...] = ()
        if coarse.lattice is not None and not coarse.lattice[2]:
            atoms = coarse.lattice[0], coarse.lattice[0] + coarse.lattice[1]
        merged, lost = dominated_pmf(
            coarse.pair, direction, spacing=step, offset=offset, index=index, tilt=plan.tilt, atoms=atoms
        )
        # rounding down loses ``lost`` a step; two-sided rounding loses about 3 √T spacings in all
        spread = 4 * step * math.sqrt(count) < count * lost
        better.append((dataclasses.replace(law, infinite=merged.infinite) if spread else merged, count))
    shift, log_error = _spread(better, plan.tilt, guess[1] - math.log(1e3) + plan.tilt * guess[0])
    shift += SNAP * step * sum(coarse.count for coarse in losses)
    lower = sum_window(better)
    lower = dataclasses.replace(lower, log_stray=float(np.logaddexp(lower.log_stray, log_error)))
    return question.lower(lower, shift), question.upper(upper)


def _fast_length(points: float) -> int:
    """A power of two, or three times one, that is at least ``points``."""
    power = 1 << max(8, math.ceil(math.log2(points)))
    return 3 * power // 4 if 3 * power // 4 >= points else power


def _spread(laws: list[tuple[GridPmf, int]], tilt: float, log_allowed: float) -> tuple[float, float]:
    """(η, λ): where ``laws`` connect dots, S ≥ S' − η but for an error of at most e^{λ − tilt·(ε+η)} in δ(ε).

    δ(ε) = E(1 − e^{ε−S})₊ ≥ E(1 − e^{ε+η−S'})₊ − P(S' > ε + η, S' − S > η), and by Markov's inequality the last term is
    at most e^{−tilt(ε+η) − sη} E[e^{tilt·S' + s(S'−S)}], which :meth:`GridPmf.log_spread` bounds for every s > 0. Steps
    whose mass was moved up to the first grid point are charged as errors altogether.
    """
    if all(not law.width.any() for law, _ in laws):
        return 0.0, -math.inf
    total = math.fsum(count * law.log_moment(tilt) for law, count in laws)
    moved = [
        total + math.log(count * law.moved) + tilt * float(law.loss[0]) - law.log_moment(tilt)
        for law, count in laws
        if law.moved
    ]
    shift = math.inf
    widest = max(float(law.width[len(law.width) // 2]) for law, _ in laws) * math.sqrt(sum(count for _, count in laws))
    for order in 2.0 ** np.arange(-1, 6.5, 0.5) / widest:
        bound = math.fsum(count * law.log_spread(tilt, order) for law, count in laws)
        shift = min(shift, (bound - log_allowed) / float(order))
    return max(0.0, shift), log_sum(np.array([log_allowed, *moved]))
