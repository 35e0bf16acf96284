"""A sum of parties' noise shares under the self-check: what is opened at the floor, seen by those who know the rest.

Made-up rows are dealt to ``honest`` simulated parties. For records each party clips its rows, adds them up and makes
its share of the sum; for clients each row is one party's vector. The shares are added modulo 2³², as masked vectors
are, and decoded. That is the least noise that a released sum can hold: more survivors add more, and what colluders
added they subtract, so rows beyond the ``honest`` parties come without noise. The claim is that of the floor, and a
share calibrated to all who enrolled, noise used twice, or one party without noise is seen here.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from quietsum.learning import Field, MadeUp, Silent
from quietsum.mechanisms import DistributedNoise, RandomSource, clip_rows, system_randomness
from quietsum.privacy import PrivacyEvent, PrivacyUnit
from quietsum.sampling import Everyone, Poisson, Sampling
from quietsum.selfcheck import Batch, Floats, Law, TrainerOutput
from quietsum.validate import probability, whole_number

__all__ = ["CheckedShares", "Share"]

Share: TypeAlias = Callable[[DistributedNoise, int, Floats, RandomSource], NDArray[np.int64]]
"""What one party sends, from the claim, the party's number and its vector."""


def _as_claimed(claim: DistributedNoise, party: int, vector: Floats, rng: RandomSource) -> NDArray[np.int64]:
    return claim.share(vector, rng)


@final
class CheckedShares:
    """Shares under test, beside the :class:`~quietsum.mechanisms.distributed.DistributedNoise` they claim to be."""

    law = Law.GAUSSIAN
    allowance = 0.0
    twin = None  # floats are double

    def __init__(
        self,
        claim: DistributedNoise,
        *,
        rate: float,
        population: int,
        share: Share = _as_claimed,
        rng: RandomSource | None = None,
        name: str = "sum of shares",
        charged: int = 0,
    ) -> None:
        self.rate, self.population = probability("rate", rate), whole_number("population", population, 1)
        self._claim, self._share, self._charged, self.name = claim, share, charged, name
        self._rng = system_randomness() if rng is None else rng
        self._sampling: Sampling = Everyone() if self.rate == 1 else Poisson(rate=self.rate)
        self._records = claim.unit is not PrivacyUnit.CLIENT
        # Made-up batches are as long as they like; a ball that holds them all keeps their sums additive.
        room = claim.max_norm * 4 * population
        self._wide = dataclasses.replace(claim, ball=room, parties=None) if self._records else claim
        self.grain = 1 / claim.scale
        self.sensitivity = claim.l2_sensitivity * self.grain
        self.noise_multiplier = claim.deviation(claim.honest) / self.sensitivity
        rounded = math.sqrt(claim.dimension) * (claim.honest if self._records else 1) / claim.l2_sensitivity
        self.precision = max(float(np.finfo(np.float64).eps), rounded / 1000)
        self._rows = MadeUp(fields=(Field(shape=(claim.dimension,), dtype="float64"),))

    def examples(self, count: int, rng: RandomSource) -> Batch:
        """Gradients of made-up records, or updates of made-up clients."""
        return self._rows.draw(count, rng)

    def _vectors(self, batch: Batch) -> list[Floats]:
        """One vector a party, the honest ones first."""
        rows, honest = np.asarray(batch[0], dtype=np.float64), self._claim.honest
        if self._records:
            return [
                np.asarray(clip_rows(rows[party::honest], self._claim.max_norm).sum(axis=0)) for party in range(honest)
            ]
        return [*rows, *np.zeros((max(0, honest - len(rows)), self._claim.dimension))]

    def _open(self, parts: Sequence[NDArray[np.int64]]) -> Floats:
        """The sum as secure aggregation opens it: modulo 2³², then centred; one beyond the ring, as it is."""
        if len(parts) * self._wide.largest >= 1 << 31:
            return self._claim.decode(np.stack(parts).sum(axis=0))
        total = np.zeros(self._claim.dimension, dtype=np.uint32)
        for part in parts:
            total += (part & 0xFFFFFFFF).astype(np.uint32)
        return self._claim.decode(total.view(np.int32).astype(np.int64))

    # ------------------------------------------------------------------------------------------------- the seams

    def deterministic(self, batch: Batch) -> Floats:
        """The opened sum without noise, clients rounded to the nearest integer."""
        return self._open([self._wide.round_to_grid(vector, Silent()) for vector in self._vectors(batch)])

    def release(self, batch: Batch) -> Floats:
        """The opened sum, less what colluders know."""
        vectors, honest = self._vectors(batch), self._claim.honest
        shares = [self._share(self._wide, party, vector, self._rng) for party, vector in enumerate(vectors[:honest])]
        return self._open([*shares, *(self._wide.round_to_grid(vector, self._rng) for vector in vectors[honest:])])

    def noise(self) -> Floats:
        """The opened sum of parties that have nothing to send."""
        return self.release(self._rows.draw(0, self._rng))

    def beside(self, draws: int) -> Floats:
        """Nothing is released beside the sum."""
        return np.empty(0)

    def sample(self, population: int) -> NDArray[np.int64]:
        """One draw of records, or every client."""
        return self._sampling.draw(population, self._rng)

    def run(self, batches: Sequence[Batch]) -> TrainerOutput:
        """One charge and one opened sum for each batch."""
        self._charged += len(batches)
        return TrainerOutput(releases=tuple(self.release(batch) for batch in batches), charged=self._charged)

    def restart(self) -> CheckedShares:
        """Another one from the same claim, with randomness of its own."""
        return CheckedShares(
            self._claim,
            rate=self.rate,
            population=self.population,
            share=self._share,
            rng=self._rng if self._rng.for_tests else None,
            name=self.name,
            charged=self._charged,
        )

    def public_constants(self, population: int) -> Mapping[str, float]:
        """What steers the run: floor, grid and noise, none of which knows who came."""
        return {
            "rate": self.rate,
            "noise multiplier": self.noise_multiplier,
            "sensitivity": self.sensitivity,
            "honest": float(self._claim.honest),
            "scale": self._claim.scale,
        }

    def event(self) -> PrivacyEvent:
        """What the accountant hears: the floor's noise, on the records' own sampling."""
        return self._sampling.amplify(self._claim.event())

    def reference(self, batch: Batch) -> Floats | None:
        """One row at a time, clipped as in the textbook, nothing rounded."""
        total = np.zeros(self._claim.dimension)
        for row in batch[0]:
            length = float(np.linalg.norm(row))
            if np.isfinite(length):
                total += row * min(1.0, self._claim.max_norm / length) if length > 0 else 0.0
        return total
