"""The clipped client sum under the self-check: its rows are whole updates of made-up clients.

Each made-up client has an update, a number of examples behind it (from 1 to a million, which must not matter) and may
drop out on the way. :class:`CheckedClients` folds them as a round does, some together, some alone, and merges; a source
of silent noise shows the sum, a real one the release. What is looked at is the step that leaves, times the public
denominator; the log of a round, which names who was left out, is the operator's alone and no part of it (rule 5).

Under adaptive clipping the count of norms within the bound is one more coordinate. With noise σ_Δ C on the sum and σ_b
on the count, the count is weighed by κ = σ_Δ C / σ_b: then all d + 1 coordinates hold noise σ_Δ C, and one client moves
them by at most S = √(C² + (κ/2)²). So the joint multiplier is σ_Δ C / S = (σ_Δ⁻² + (2 σ_b)⁻²)^(−1/2), Theorem 1 of
Andrew et al. (2021), found here from the parts. The count is read off the bound that the round leaves behind, since
that is what everybody sees.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

import numpy as np
from numpy.typing import NDArray
from scipy import special

from quietsum.aggregation import ClientSum, Fold
from quietsum.errors import QuietsumError
from quietsum.learning import Field, MadeUp, Silent
from quietsum.mechanisms import Mode, QuantileRule, RandomSource, system_randomness
from quietsum.privacy import Gaussian, PrivacyEvent
from quietsum.sampling import Everyone, Poisson, Sampling
from quietsum.selfcheck import Batch, Floats, Law, TrainerOutput
from quietsum.validate import probability, whole_number

__all__ = ["CheckedClients", "Made"]

MOST_EXAMPLES = 10**6
_FARTHEST = 3.9  # of ln C in one round; beyond 4 the rule stops, and the count can no longer be read

Made = Callable[[ClientSum, Mapping[str, int]], Fold[Any]]
"""The fold under test, from the claim and the number of examples that each client has."""


def _as_claimed(claim: ClientSum, sizes: Mapping[str, int]) -> Fold[Any]:
    return claim


@final
class CheckedClients:
    """A fold of client updates under test, beside the :class:`~quietsum.aggregation.ClientSum` it claims to be."""

    law = Law.GAUSSIAN
    allowance = 0.0
    twin = None  # floats are double

    def __init__(
        self,
        claim: ClientSum,
        *,
        rate: float,
        population: int,
        made: Made = _as_claimed,
        rng: RandomSource | None = None,
        name: str = "client sum",
        charged: int = 0,
    ) -> None:
        self._claim, self._made, self._charged = claim, made, charged
        self._rng = system_randomness() if rng is None else rng
        self.rate, self.population = probability("rate", rate), whole_number("population", population, 1)
        self._sampling: Sampling = Everyone() if self.rate == 1 else Poisson(rate=self.rate)
        self.name = name
        mechanism, rule = claim.mechanism, claim.adaptive
        self._noise = mechanism.event().noise_multiplier * mechanism.max_norm
        self._weight = 0.0 if rule is None else self._noise / rule.count_noise
        self.sensitivity = math.hypot(mechanism.max_norm, self._weight / 2)
        self.noise_multiplier = self._noise / self.sensitivity
        grid = mechanism.grid_unit * claim.dimension**0.5 / (1000 * mechanism.max_norm)  # rows are cut to the grid
        self.precision = max(float(np.finfo(np.float64).eps), grid if mechanism.mode is Mode.SECURE else 0.0)
        self.grain = mechanism.grid_unit if mechanism.mode is Mode.SECURE else 0.0
        self._rows = MadeUp(
            fields=(
                Field(shape=(claim.dimension,), dtype="float64"),
                Field(shape=(), dtype="int64", below=MOST_EXAMPLES),
                Field(shape=(), dtype="int64", below=2),
            )
        )

    # ------------------------------------------------------------------------------------------- made-up clients

    def examples(self, count: int, rng: RandomSource) -> Batch:
        """Updates, examples behind them, and whether they arrive; of every four, one may drop out."""
        updates, sizes, arrives = self._rows.draw(count, rng)
        arrives[np.arange(count) % 4 != 1] = 1
        return updates, sizes + 1, arrives

    def _fold(self, batch: Batch) -> tuple[Fold[Any], Any]:
        """What a round does with such replies: some folded together elsewhere, some singly, merged, none lost."""
        updates, sizes, arrives = batch
        names = [f"client-{index}" for index in range(len(updates))]
        fold = self._made(self._claim, dict(zip(names, sizes.tolist(), strict=True)))
        there = np.flatnonzero(arrives).tolist()
        together, alone = there[: len(there) // 2], there[len(there) // 2 :]
        state, elsewhere = fold.start(), fold.start()
        if together:
            elsewhere, _ = fold.add_many(elsewhere, [names[index] for index in together], updates[together])
        for index in alone:
            if not fold.problem_with(updates[index]):
                state = fold.add(state, names[index], updates[index])
        return fold, fold.merge(state, elsewhere)

    def _release(self, batch: Batch, rng: RandomSource) -> tuple[Floats, int]:
        """The step times the public denominator, and the count in halves that the next bound betrays."""
        fold, state = self._fold(batch)
        combined = fold.finish(state, rng)
        rule = self._claim.adaptive
        halves = 0 if rule is None else self._read(rule, combined.clip)
        return np.asarray(combined.step * self._claim.denominator), halves

    def _read(self, rule: QuantileRule, clip: float | None) -> int:
        """The count in halves, from the rule C' = C exp(−η (½ + count / E − γ))."""
        moved = math.log((clip or math.nan) / self._claim.mechanism.max_norm)
        if not abs(moved) < _FARTHEST:
            raise QuietsumError("the bound moved to where its rule stops; check it with a smaller learning rate")
        fraction = rule.quantile - moved / rule.learning_rate
        return round(2 * self._claim.denominator * (fraction - 0.5))

    # ------------------------------------------------------------------------------------------------- the seams

    def deterministic(self, batch: Batch) -> Floats:
        """The release with silent noise."""
        total, halves = self._release(batch, Silent())
        return self._append_count(total, halves / 2 * self._weight)

    def release(self, batch: Batch) -> Floats:
        """Sum and count, with their noise."""
        total, seen = self._release(batch, self._rng)
        if self._claim.adaptive is None:
            return total
        _, halves = self._release(batch, Silent())
        score = float(self._scores(np.array([seen - halves], dtype=np.int64))[0])
        return self._append_count(total, halves / 2 * self._weight + self._noise * score)

    def _append_count(self, total: Floats, count: float) -> Floats:
        return total if self._claim.adaptive is None else np.append(total, count)

    def noise(self) -> Floats:
        """The release of a round in which no client replied."""
        return self.release(self._rows.draw(0, self._rng))

    def beside(self, draws: int) -> Floats:
        """Fresh noise of the count by itself, as standard normal scores; nothing where the bound is fixed."""
        if self._claim.adaptive is None:
            return np.empty(0)
        nobody = self._rows.draw(0, self._rng)
        halves = [self._release(nobody, self._rng)[1] for _ in range(draws)]
        return self._scores(np.array(halves, dtype=np.int64))

    def _scores(self, halves: NDArray[np.int64]) -> Floats:
        """A rounded normal of scale 2 σ_b put back between its edges: u = P(K < k) + v · P(K = k), then Φ⁻¹(u)."""
        assert self._claim.adaptive is not None
        scale = 2 * self._claim.adaptive.count_noise
        size = np.abs(halves).astype(np.float64)  # the lower tail, where floats are fine
        below, upto = special.ndtr(-(size + 0.5) / scale), special.ndtr(-(size - 0.5) / scale)
        place = below + system_randomness().uniforms(halves.size) * (upto - below)
        return np.asarray(-np.where(halves < 0, -1.0, 1.0) * special.ndtri(np.maximum(place, 1e-300)))

    def sample(self, population: int) -> NDArray[np.int64]:
        """One cohort."""
        return self._sampling.draw(population, self._rng)

    def run(self, batches: Sequence[Batch]) -> TrainerOutput:
        """One charge and one release for each cohort; an empty one is a step of noise."""
        self._charged += len(batches)
        return TrainerOutput(releases=tuple(self.release(batch) for batch in batches), charged=self._charged)

    def restart(self) -> CheckedClients:
        """Another one from the same claim, with randomness of its own."""
        return CheckedClients(
            self._claim,
            rate=self.rate,
            population=self.population,
            made=self._made,
            rng=self._rng if self._rng.for_tests else None,
            name=self.name,
            charged=self._charged,
        )

    def public_constants(self, population: int) -> Mapping[str, float]:
        """What steers the run: all of it from registered parties, whose number is declared."""
        return {
            "rate": self.rate,
            "noise multiplier": self.noise_multiplier,
            "sensitivity": self.sensitivity,
            "denominator": self._claim.denominator,
        }

    def event(self) -> PrivacyEvent:
        """What the accountant hears: sum and count as one release, on the cohort's own sampling."""
        mechanism, rule = self._claim.mechanism, self._claim.adaptive
        alone = mechanism.event()
        joint = alone if rule is None else Gaussian(noise_multiplier=rule.joint_noise(alone.noise_multiplier))
        return self._sampling.amplify(joint)

    def reference(self, batch: Batch) -> Floats | None:
        """One client at a time, clipped as in the textbook; sizes count for nothing, lost and broken ones for zero."""
        total, within = np.zeros(self._claim.dimension), 0.0
        bound = self._claim.mechanism.max_norm
        for update, _, arrives in zip(*batch, strict=True):
            length = float(np.linalg.norm(update))
            if arrives and np.isfinite(length):
                total += update * min(1.0, bound / length) if length > 0 else 0.0
                within += 0.5 if length <= bound else -0.5
        return self._append_count(total, within * self._weight)
