"""Client sums that look private and are not: each is the right one with one mistake that somebody really made."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from quietsum.aggregation import ClientSum, Combined
from quietsum.federation.checks.clients import Made
from quietsum.mechanisms.gaussian import ClippedSum, Mode
from quietsum.mechanisms.rng import RandomSource

Floats = NDArray[np.float64]


@dataclasses.dataclass
class Kept:
    """Updates as they came, for folds that do with them what they like."""

    rows: list[tuple[str, Floats]]

    @property
    def kept(self) -> dict[str, None]:
        return dict.fromkeys(name for name, _ in self.rows)


class Mutant:
    """The clipped client sum in plain floats, part by part, so that a part can be exchanged."""

    needs_individuals = needs_updates = False

    def __init__(self, claim: ClientSum, sizes: Mapping[str, int]) -> None:
        self.claim, self.sizes, self.dimension = claim, sizes, claim.dimension
        self.clip, self.sigma = claim.mechanism.max_norm, claim.mechanism.noise_multiplier

    def start(self) -> Kept:
        return Kept(rows=[])

    def problem_with(self, update: object, party: str = "") -> str:
        return self.claim.problem_with(update)

    def add(self, state: Kept, party: str, update: Floats) -> Kept:
        return Kept(rows=[*state.rows, (party, update)])

    def add_many(self, state: Kept, parties: Sequence[str], updates: Floats) -> tuple[Kept, dict[str, str]]:
        good = [(name, row) for name, row in zip(parties, updates, strict=True) if not self.problem_with(row)]
        return Kept(rows=[*state.rows, *good]), {}

    def merge(self, one: Kept, other: Kept) -> Kept:
        return Kept(rows=[*one.rows, *other.rows])

    def clipped(self, row: Floats) -> Floats:
        length = float(np.linalg.norm(row))
        return row if length <= self.clip else row * (self.clip / length)

    def total(self, state: Kept) -> Floats:
        return np.sum([self.clipped(row) for _, row in state.rows], axis=0) if state.rows else np.zeros(self.dimension)

    def noise(self, state: Kept, rng: RandomSource) -> Floats:
        return rng.normals(self.dimension) * self.sigma * self.clip

    def divisor(self, state: Kept) -> float:
        return self.claim.denominator

    def next_clip(self, state: Kept, rng: RandomSource) -> float | None:
        if self.claim.adaptive is None:
            return None
        doubled = sum(1 if np.linalg.norm(row) <= self.clip else -1 for _, row in state.rows)
        return self.claim.adaptive.next_bound(self.clip, doubled=doubled, expected=self.claim.denominator, rng=rng)

    def finish(self, state: Kept, rng: RandomSource) -> Combined:
        clip = self.next_clip(state, rng)
        step = (self.total(state) + self.noise(state, rng)) / self.divisor(state)
        return Combined(step=step, kept=tuple(state.kept), clip=clip)


class WeightsBySize(Mutant):
    """Weighs clients by their examples, relative to what is usual: a large one moves the sum by more than C."""

    def total(self, state: Kept) -> Floats:
        parts = [self.clipped(row) * self.sizes[name] / 5e5 for name, row in state.rows]
        return np.sum(parts, axis=0) if parts else np.zeros(self.dimension)


class NoiseByReplies(Mutant):
    """Every reply brings its share of the noise, so that drop-outs take noise away."""

    def noise(self, state: Kept, rng: RandomSource) -> Floats:
        return super().noise(state, rng) * math.sqrt(len(state.rows) / self.claim.denominator)


class NoiseForTheNextClip(Mutant):
    """Moves the bound first and scales the noise by the new one, which is not the bound that clipped."""

    def finish(self, state: Kept, rng: RandomSource) -> Combined:
        clip = self.next_clip(state, rng)
        assert clip is not None
        noise = rng.normals(self.dimension) * self.sigma * clip
        return Combined(step=(self.total(state) + noise) / self.divisor(state), kept=tuple(state.kept), clip=clip)


class DividesByReplies(Mutant):
    """Divides by how many replied, which tells whether one more did."""

    def divisor(self, state: Kept) -> float:
        return float(max(1, len(state.rows)))


class ClipsTheBatch(Mutant):
    """Clips the sum of all updates to as much as so many could have, instead of each update."""

    def total(self, state: Kept) -> Floats:
        if not state.rows:
            return np.zeros(self.dimension)
        whole = np.sum([row for _, row in state.rows], axis=0)
        most, length = self.clip * len(state.rows), float(np.linalg.norm(whole))
        return np.asarray(whole * min(1.0, most / max(length, 1e-300)))


class LetsNaNPass(Mutant):
    """Clips by min(1, C/‖u‖) and looks at nothing: a NaN stays a NaN."""

    def problem_with(self, update: object, party: str = "") -> str:
        return ""

    def total(self, state: Kept) -> Floats:
        with np.errstate(all="ignore"):
            return super().total(state)


class SkipsEmptyRounds(Mutant):
    """Where nobody replied there is nothing to hide, it thinks."""

    def noise(self, state: Kept, rng: RandomSource) -> Floats:
        return super().noise(state, rng) if state.rows else np.zeros(self.dimension)


class CountsAloud(Mutant):
    """The count that moves the bound gets no noise."""

    def next_clip(self, state: Kept, rng: RandomSource) -> float | None:
        from quietsum.learning.checks.numpy_step import Silent

        return super().next_clip(state, Silent())


class CountsReplies(Mutant):
    """Divides the count by how many replied, so that the bound tells how many that were."""

    def next_clip(self, state: Kept, rng: RandomSource) -> float | None:
        rule, claim = self.claim.adaptive, self.claim
        assert rule is not None
        small = sum(bool(np.linalg.norm(row) <= self.clip) for _, row in state.rows)
        fraction = small / max(1, len(state.rows)) + rule.count_noise * float(rng.normals(1)[0]) / claim.denominator
        return self.clip * math.exp(-rule.learning_rate * (fraction - rule.quantile))


class ForgetsTheJointCharge(Mutant):
    """Sum and count each at the noise that is charged for both together."""

    def noise(self, state: Kept, rng: RandomSource) -> Floats:
        assert self.claim.adaptive is not None
        return rng.normals(self.dimension) * self.claim.adaptive.joint_noise(self.sigma) * self.clip


MUTANTS: dict[str, tuple[Made, bool, str]] = {
    "weights by size": (WeightsBySize, False, "T1"),
    "noise scaled by replies": (NoiseByReplies, False, "T3"),
    "noise for the next clip": (NoiseForTheNextClip, True, "T3"),
    "denominator = replies": (DividesByReplies, False, "T2"),
    "clip per batch": (ClipsTheBatch, False, "T1"),
    "NaN passes": (LetsNaNPass, False, "T5"),
    "an empty round is skipped": (SkipsEmptyRounds, False, "T3"),
    "a count without noise": (CountsAloud, True, "T3"),
    "a count over the replies": (CountsReplies, True, "T2"),
    "sum and count charged as one, noised as two": (ForgetsTheJointCharge, True, "T3"),
}
"""By name: the mutant, whether its bound adapts, and a test that must accuse it."""


def claim(*, adapts: bool, secure: bool = True, noise: float = 1.0) -> ClientSum:
    """What all of them claim to be."""
    from quietsum.mechanisms.quantile import QuantileRule

    rule = QuantileRule(count_noise=1.0, learning_rate=0.5) if adapts else None
    sigma = noise if rule is None else rule.sum_noise(noise)
    mechanism = ClippedSum(max_norm=0.7, noise_multiplier=sigma, mode=Mode.SECURE if secure else Mode.FAST)
    return ClientSum(mechanism=mechanism, denominator=20.0, dimension=48, adaptive=rule)
