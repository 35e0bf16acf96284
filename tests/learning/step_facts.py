"""What must be true of any private step, as functions that find the first broken fact; and steps that break one each.

A step is anything with the signature of :func:`quietsum.learning.private_steps`. It is run on a linear task (the
gradient of an example *is* its feature vector), with scripted randomness: the k-th call always gives the same coins
and the same noise, whatever the rows are, so two runs on neighbouring rows differ by the record alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from quietsum.mechanisms.gaussian import ClippedSum
from quietsum.sampling import Poisson

Floats = npt.NDArray[np.float64]
Step = Callable[..., Floats]


@dataclasses.dataclass
class Scripted:
    """A source whose answers depend on the number of the call alone; it writes down what it was asked for."""

    seed: int
    asked: list[tuple[str, object]] = dataclasses.field(default_factory=list)
    for_tests: bool = True

    def _stream(self) -> np.random.Generator:
        return np.random.default_rng([self.seed, len(self.asked)])

    def coins(self, probability: float, count: int) -> npt.NDArray[np.bool_]:
        self.asked.append(("coins", probability))
        return self._stream().random(10_000)[:count] < probability

    def normals(self, shape: Any) -> Floats:
        self.asked.append(("normals", shape))
        return self._stream().standard_normal(shape)

    def rounded_normals(self, scale: float, shape: Any) -> npt.NDArray[np.int64]:
        self.asked.append(("rounded_normals", (scale, shape)))
        return np.rint(scale * self._stream().standard_normal(shape)).astype(np.int64)


@dataclasses.dataclass(frozen=True)
class Linear:
    """loss = x · params, so that gradients are the rows themselves."""

    def gradients(self, params: Floats, features: Floats, labels: Floats) -> Floats:
        return features.copy()


@dataclasses.dataclass(frozen=True)
class Pile:
    features: Floats
    labels: Floats


def pile(features: Floats) -> Pile:
    return Pile(features=features, labels=np.zeros(len(features)))


RATE, EXPECTED, LEARNING_RATE, NORM = 0.5, 20.0, 0.25, 2.0


def run(step: Step, features: Floats, *, steps: int = 1, seed: int = 1, **changes: Any) -> tuple[Floats, Scripted]:
    source = Scripted(seed)
    settings: dict[str, Any] = {
        "steps": steps,
        "sampling": Poisson(rate=RATE),
        "mechanism": ClippedSum(max_norm=NORM, noise_multiplier=1.5),
        "expected_batch": EXPECTED,
        "learning_rate": LEARNING_RATE,
        "momentum": 0.0,
        "rng": source,
        **changes,
    }
    return step(Linear(), np.zeros(features.shape[1]), pile(features), **settings), source


def examples(seed: int, count: int = 40, wide: float = 3.0) -> Floats:
    return np.random.default_rng(seed).normal(scale=wide, size=(count, 4))


def clipped(row: Floats) -> Floats:
    if not np.isfinite(row).all():
        return np.zeros_like(row)
    norm = float(np.linalg.norm(row))
    return row * min(1.0, NORM / norm) if norm else row


def broken_fact(step: Step) -> str | None:
    """The name of the first fact that ``step`` breaks, None where all hold."""
    for fact in (one_record_moves_it_little, the_divisor_is_public, an_empty_batch_is_noise, the_noise_is_as_stated):
        try:
            fact(step)
        except AssertionError:
            return fact.__name__
    return None


def one_record_moves_it_little(step: Step) -> None:
    """Whatever one record is, taking it away moves the sum by at most the bound, and asks for the same randomness."""
    for seed in range(20):
        rows = examples(seed)
        for wild in (rows[-1], np.full(4, 1e9), np.array([np.nan, 0, 0, 0]), np.array([np.inf, -np.inf, 1, 1])):
            with_it, asked_with = run(step, np.vstack([rows[:-1], wild]), seed=seed)
            without, asked_without = run(step, rows[:-1], seed=seed)
            moved = np.linalg.norm(with_it - without) * EXPECTED / LEARNING_RATE
            assert moved <= NORM * (1 + 1e-9)
            assert asked_with.asked == asked_without.asked


def the_divisor_is_public(step: Step) -> None:
    """The step is (clipped sum of the drawn + noise) / expected batch, whatever was drawn."""
    for seed in range(10):
        rows = examples(seed)
        drawn = Scripted(seed).coins(RATE, len(rows))
        total = np.sum([clipped(row) for row in rows[drawn]], axis=0)
        noise, _ = run(step, rows, seed=seed)
        empty, _ = run(step, np.zeros_like(rows), seed=seed)  # the same coins and noise, nothing to sum
        np.testing.assert_allclose(noise - empty, -LEARNING_RATE * total / EXPECTED, atol=1e-6)


def an_empty_batch_is_noise(step: Step) -> None:
    """A draw of nobody is a step like any other: it asks for noise and moves by it."""
    for rows in (examples(1), np.zeros((0, 4))):
        moved, source = run(step, rows, steps=3, sampling=Poisson(rate=0.0))
        assert sum(kind == "rounded_normals" for kind, _ in source.asked) == 3
        assert (moved != 0).all()


def the_noise_is_as_stated(step: Step) -> None:
    """Sum of squares of N noises over their stated variance: within 6 standard deviations, √(2N), of N."""
    noise, count = 1.5, 3000
    moved = [
        run(step, np.zeros((5, 4)), seed=seed)[0] * EXPECTED / (LEARNING_RATE * NORM * noise) for seed in range(count)
    ]
    squares, degrees = float(np.sum(np.square(moved))), 4 * count
    assert abs(squares - degrees) < 6 * np.sqrt(2 * degrees)


# ------------------------------------------------------------------------------------ steps that break one fact each


def _mutant(*, mean_first: bool = False, own_size: bool = False, skip_empty: bool = False, noise: float = 1.0) -> Step:
    def step(
        task: Linear,
        params: Floats,
        rows: Pile,
        *,
        steps: int,
        sampling: Poisson,
        mechanism: ClippedSum,
        expected_batch: float,
        learning_rate: float,
        momentum: float,
        rng: Scripted,
    ) -> Floats:
        here = params
        used = dataclasses.replace(mechanism, noise_multiplier=mechanism.noise_multiplier * noise)
        for _ in range(steps):
            drawn = sampling.draw(len(rows.labels), rng)  # type: ignore[arg-type]
            if skip_empty and not len(drawn):
                continue
            gradients = task.gradients(here, rows.features[drawn], rows.labels[drawn])
            if mean_first and len(drawn):
                gradients = np.repeat(gradients.mean(axis=0, keepdims=True), len(drawn), axis=0)
            total = used.release(used.sum(used.bound(gradients)), rng)  # type: ignore[arg-type]
            here = here - learning_rate * total / (max(1, len(drawn)) if own_size else expected_batch)
        return here - params

    return step


UNCHANGED = _mutant()
MUTANTS: dict[str, tuple[Step, str]] = {
    "clips the mean of the batch": (_mutant(mean_first=True), "one_record_moves_it_little"),
    "divides by the batch that was drawn": (_mutant(own_size=True), "one_record_moves_it_little"),
    "skips empty batches": (_mutant(skip_empty=True), "an_empty_batch_is_noise"),
    "adds two thirds of the noise": (_mutant(noise=2 / 3), "the_noise_is_as_stated"),
}
