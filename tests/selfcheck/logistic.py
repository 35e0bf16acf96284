"""A private step of logistic regression in thirty lines of numpy, and broken ones: the self-check without torch."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from quietsum.mechanisms.rng import RandomSource, system_randomness
from quietsum.privacy.events import Gaussian, Laplace, PoissonSampled, PrivacyEvent
from quietsum.sampling import Poisson
from quietsum.selfcheck import Batch, Law, TrainerOutput, Twin

Floats = NDArray[np.float64]


def gradients(batch: Batch) -> Floats:
    features, labels = batch
    weights = np.linspace(-1.0, 1.0, features.shape[1])
    with np.errstate(all="ignore"):
        chance = 1 / (1 + np.exp(-features @ weights)) if len(labels) else labels
        return (chance - labels)[:, None] * features


def clipped(batch: Batch, norm: float, law: Law) -> Floats:
    each = gradients(batch)
    with np.errstate(all="ignore"):
        lengths = np.linalg.norm(each, ord=law.order, axis=1)
        good = np.isfinite(lengths)
        factors = np.where(good, np.minimum(1.0, norm / np.where(lengths > 0, lengths, 1.0)), 0.0)
    return (np.where(good[:, None], each, 0.0) * factors[:, None]).sum(axis=0)


@dataclasses.dataclass(kw_only=True)
class LogisticStep:
    """Correct as it stands. ``scale`` and ``total`` are there for tests to break."""

    rng: RandomSource = dataclasses.field(default_factory=system_randomness)
    name: str = "logistic regression in numpy"
    law: Law = Law.GAUSSIAN
    sensitivity: float = 1.5
    noise_multiplier: float = 1.1
    rate: float = 0.05
    population: int = 400
    precision: float = 2.3e-16
    allowance: float = 0.0
    twin: Twin | None = None
    beside_scale: float | None = None
    features: int = 10
    scale: float = 1.0
    total: Callable[[Batch, float, Law], Floats] = clipped
    says: Callable[[Batch, Floats], Mapping[str, float]] = lambda batch, release: {}
    charged: int = 0

    def examples(self, count: int, rng: RandomSource) -> Batch:
        return rng.normals((count, self.features)), rng.coins(0.5, count).astype(np.float64)

    def deterministic(self, batch: Batch) -> Floats:
        return self.total(batch, self.sensitivity, self.law)

    def noise(self) -> Floats:
        width = self.scale * self.noise_multiplier * self.sensitivity
        if self.law is Law.GAUSSIAN:
            return width * self.rng.normals(self.features)
        signs = np.where(self.rng.coins(0.5, self.features), 1.0, -1.0)
        return width * signs * -np.log(self.rng.uniforms(self.features))

    def beside(self, draws: int) -> Floats:
        return np.empty(0) if self.beside_scale is None else self.beside_scale * self.rng.normals(draws)

    def release(self, batch: Batch) -> Floats:
        return self.deterministic(batch) + self.noise()

    def sample(self, population: int) -> NDArray[np.int64]:
        return Poisson(rate=self.rate).draw(population, self.rng)

    def run(self, batches: Sequence[Batch]) -> TrainerOutput:
        self.charged += len(batches)
        releases = tuple(self.release(batch) for batch in batches)
        said: dict[str, float] = {}
        for batch, release in zip(batches, releases, strict=True):
            said.update(self.says(batch, release))
        return TrainerOutput(releases=releases, charged=self.charged, said=said)

    def restart(self) -> LogisticStep:
        return dataclasses.replace(self, rng=system_randomness() if not self.rng.for_tests else self.rng)

    def public_constants(self, population: int) -> Mapping[str, float]:
        return {"rate": self.rate, "noise_multiplier": self.noise_multiplier, "sensitivity": self.sensitivity}

    def event(self) -> PrivacyEvent:
        kind = Gaussian if self.law is Law.GAUSSIAN else Laplace
        return PoissonSampled(rate=self.rate, event=kind(noise_multiplier=self.noise_multiplier))

    def reference(self, batch: Batch) -> Floats | None:
        terms = [clipped(tuple(f[[i]] for f in batch), self.sensitivity, self.law) for i in range(len(batch[0]))]
        return np.sum(terms, axis=0) if terms else np.zeros(self.features)
