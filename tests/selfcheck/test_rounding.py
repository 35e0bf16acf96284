"""Rounding is no fault and no fault is rounding: what the twin clears, and what it does not."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from quietsum.mechanisms.rng import RandomSource, randomness_for_tests
from quietsum.selfcheck import Batch, Law, run_selfcheck
from selfcheck.logistic import Floats, LogisticStep, clipped

REPLAYED = ("T1", "T2", "T5", "T9")


def coarse(batch: Batch, norm: float, law: Law, offset: float = 1e4) -> Floats:
    """Clipped terms in float32, each after a detour over a large number that depends on how many rows there are."""
    large = offset * (1 + 0.1 * len(batch[0]))
    terms = [clipped(tuple(part[[row]] for part in batch), norm, law) for row in range(len(batch[0]))]
    near = [(term + large).astype(np.float32).astype(np.float64) - large for term in terms]
    return np.sum(near, axis=0) if near else np.zeros(batch[0].shape[1])


def centred(batch: Batch, norm: float, law: Law) -> Floats:
    """Rows see each other: a fault in any precision."""
    good = np.nan_to_num(batch[0], posinf=0.0, neginf=0.0)
    middle = good.mean(axis=0) if len(good) else 0.0
    return clipped((batch[0] - 1e-3 * middle, batch[1]), norm, law)


@dataclasses.dataclass
class Copies:
    """A twin in numpy: ``exact`` in float64, ``near`` in float32."""

    exact: Callable[[Batch, float, Law], Floats]
    near: Callable[[Batch, float, Law, float], Floats]
    precision: float = 2.3e-16

    def deterministic(self, batch: Batch) -> Floats:
        return self.exact(batch, 1.5, Law.GAUSSIAN)

    def reference(self, batch: Batch) -> Floats | None:
        terms = [clipped(tuple(f[[i]] for f in batch), 1.5, Law.GAUSSIAN) for i in range(len(batch[0]))]
        return np.sum(terms, axis=0) if terms else np.zeros(batch[0].shape[1])

    def shaken(self, batch: Batch, width: float, rng: RandomSource) -> Floats:
        moved = 1 + width * rng.normals(1)[0]
        return self.near((batch[0] * moved, batch[1]), 1.5, Law.GAUSSIAN, 1e4 * moved)


def steady(batch: Batch, norm: float, law: Law, offset: float) -> Floats:
    return clipped(batch, norm, law)


def caught(total: Any, twin: Copies | None, seed: int = 1) -> tuple[str, ...]:
    step = LogisticStep(rng=randomness_for_tests(seed), precision=1.2e-7, total=total, twin=twin)
    return run_selfcheck(step, rng=randomness_for_tests(100 + seed), only=REPLAYED).caught_by


@pytest.mark.parametrize("seed", range(5))
def test_a_step_that_only_rounds_badly_is_cleared_by_its_twin(seed: int) -> None:
    assert caught(coarse, Copies(clipped, coarse), seed) == ()


def test_the_control_without_a_twin_it_is_accused() -> None:
    assert {"T2", "T9"} <= set(caught(coarse, None))


def test_a_fault_that_remains_in_float64_is_not_forgiven_however_badly_the_step_rounds() -> None:
    def both(batch: Batch, norm: float, law: Law, offset: float = 1e4) -> Floats:
        return coarse(batch, norm, law, offset) + centred(batch, norm, law) - clipped(batch, norm, law)

    assert "T2" in caught(both, Copies(centred, both))


def test_a_fault_in_float32_alone_is_not_forgiven_where_shaking_moves_nothing() -> None:
    assert "T2" in caught(centred, Copies(clipped, steady))


def test_a_twin_of_no_finer_precision_must_explain_by_shaking_alone() -> None:
    assert caught(coarse, Copies(coarse, coarse, precision=1.2e-7)) == ()
    assert "T2" in caught(centred, Copies(centred, steady, precision=1.2e-7))


def test_a_clip_that_is_too_long_is_not_rounding() -> None:
    def long(batch: Batch, norm: float, law: Law, offset: float = 1e4) -> Floats:
        return clipped(batch, 1.002 * norm, law)

    assert "T1" in caught(long, Copies(long, coarse))


@pytest.mark.parametrize(("scale", "caught_by"), [(1.0, ()), (0.5, ("T3",)), (0.0, ("T3",)), (1.2, ("T3",))])
def test_the_noise_of_a_count_beside_the_sum_is_looked_at(scale: float, caught_by: tuple[str, ...]) -> None:
    step = LogisticStep(rng=randomness_for_tests(3), beside_scale=scale)
    assert run_selfcheck(step, rng=randomness_for_tests(4), only=("T3",)).caught_by == caught_by
