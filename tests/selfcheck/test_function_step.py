"""A step that is one function: a correct one passes, and each mistake is found by the test that should find it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from quietsum.errors import InvalidParameter
from quietsum.selfcheck import FunctionStep, run_selfcheck

Array = NDArray[np.float64]
RNG = np.random.default_rng()


def clip(each: Array, norm: float) -> Array:
    with np.errstate(all="ignore"):
        lengths = np.linalg.norm(each, axis=1)
        scales = np.where(lengths > 0, np.minimum(1.0, norm / lengths), 0.0)
    known = np.isfinite(lengths)
    return np.asarray((np.where(known[:, None], each, 0.0) * np.where(known, scales, 0.0)[:, None]).sum(axis=0))


def signs(features: Array, labels: Array) -> Array:
    return np.asarray(features * (2 * labels[:, None] - 1))


def honest(features: Array, labels: Array, *, noise_multiplier: float, max_grad_norm: float) -> Array:
    noise = noise_multiplier * max_grad_norm * RNG.standard_normal(features.shape[1])
    return np.asarray(clip(signs(features, labels), max_grad_norm) + noise)


def batch_clip(features: Array, labels: Array, *, noise_multiplier: float, max_grad_norm: float) -> Array:
    total = signs(features, labels).sum(axis=0, keepdims=True)
    return np.asarray(clip(total, max_grad_norm) + honest(features[:0], labels[:0], noise_multiplier=noise_multiplier,
                                                          max_grad_norm=max_grad_norm))  # fmt: skip


def half_noise(features: Array, labels: Array, *, noise_multiplier: float, max_grad_norm: float) -> Array:
    return honest(features, labels, noise_multiplier=noise_multiplier / 2, max_grad_norm=max_grad_norm)


def own_size(features: Array, labels: Array, *, noise_multiplier: float, max_grad_norm: float) -> Array:
    total = honest(features, labels, noise_multiplier=0.0, max_grad_norm=max_grad_norm) * 50 / max(1, len(features))
    return total + honest(features[:0], labels[:0], noise_multiplier=noise_multiplier, max_grad_norm=max_grad_norm)


def noisy_print(features: Array, labels: Array, *, noise_multiplier: float, max_grad_norm: float) -> Array:
    print(f"loss {float(np.nansum(np.clip(features, -1e9, 1e9))):.6f}")
    return honest(features, labels, noise_multiplier=noise_multiplier, max_grad_norm=max_grad_norm)


def step(function: Callable[..., Any], **more: Any) -> FunctionStep:
    return FunctionStep(function, noise_multiplier=1.1, max_norm=1.0, rate=0.05, population=1000, **more)


def test_a_correct_function_passes_every_test_that_has_an_answer() -> None:
    checked = step(honest)
    assert checked.tests == ("T1", "T2", "T3", "T5", "T6", "T11")
    report = run_selfcheck(checked, only=checked.tests)
    assert report.passed and [one.test for one in report.findings] == list(checked.tests)


@pytest.mark.parametrize(
    ("function", "accused"), [(batch_clip, "T1"), (half_noise, "T3"), (own_size, "T2"), (noisy_print, "T11")]
)
def test_a_mistake_is_found_by_its_test(function: Callable[..., Any], accused: str) -> None:
    report = run_selfcheck(step(function), only=(accused,))
    assert [one.test for one in report.failures] == [accused]


def coins(population: int, rate: float) -> NDArray[np.int64]:
    return np.flatnonzero(RNG.random(population) < rate)


def shuffled(population: int, rate: float) -> NDArray[np.int64]:
    return RNG.permutation(population)[: round(rate * population)]


@pytest.mark.parametrize(("draw", "passes"), [(coins, True), (shuffled, False)])
def test_draws_are_tested_where_the_trainer_shows_them(draw: Callable[..., Any], passes: bool) -> None:
    checked = step(honest, draw=draw)
    assert "T4" in checked.tests
    assert run_selfcheck(checked, only=("T4",)).passed is passes


@pytest.mark.parametrize("returned", [None, 3.0, np.zeros((2, 2)), np.zeros(3, dtype=np.int64), np.zeros(0), "text"])
def test_what_is_no_vector_of_floats_is_refused(returned: object) -> None:
    with pytest.raises(InvalidParameter, match="return the noisy sum"):
        step(lambda features, labels, *, noise_multiplier, max_grad_norm: returned)
