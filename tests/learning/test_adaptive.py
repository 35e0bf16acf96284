"""Adaptive clipping: the bound finds its quantile, and looking is paid for."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from quietsum import ExactAccountant, Gaussian, PoissonSampled
from quietsum.errors import InvalidParameter
from quietsum.learning.clipping import Flat, QuantileClip
from quietsum.learning.engines.protocol import Batch
from quietsum.learning.step import PrivateStep
from quietsum.mechanisms.rng import randomness_for_tests


@pytest.fixture(autouse=True)
def seeds_are_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUIETSUM_TEST_SEEDS", "1")


@pytest.mark.parametrize(("noise", "count"), [(1.0, 12.8), (0.7, 3.0), (4.0, 2.5)])
def test_gradient_and_count_together_cost_the_joint_multiplier(noise: float, count: float) -> None:
    rule = QuantileClip(count_noise=count)
    gradient = rule.gradient_noise(noise)
    assert gradient > noise and noise <= rule.joint_noise(gradient) <= noise * (1 + 1e-11)
    together = ExactAccountant().compose(Gaussian(noise_multiplier=gradient))
    together.compose(Gaussian(noise_multiplier=2 * count))  # each record moves the count by a half
    alone = ExactAccountant().compose(Gaussian(noise_multiplier=noise))
    assert together.epsilon(delta=1e-5).epsilon == pytest.approx(alone.epsilon(delta=1e-5).epsilon, rel=1e-6)


def test_the_control_gradient_noise_that_ignores_the_count_would_cost_more() -> None:
    both = ExactAccountant().compose(Gaussian(noise_multiplier=1.0)).compose(Gaussian(noise_multiplier=2 * 2.0))
    assert (
        both.epsilon(delta=1e-5).epsilon
        > 1.02 * ExactAccountant().compose(Gaussian(noise_multiplier=1.0)).epsilon(delta=1e-5).epsilon
    )


def test_a_count_that_costs_more_than_the_whole_step_is_refused() -> None:
    with pytest.raises(InvalidParameter, match="larger batches"):
        QuantileClip(count_noise=0.4).gradient_noise(1.0)


@pytest.mark.parametrize("quantile", [0.3, 0.5, 0.8])
def test_the_bound_finds_its_quantile(quantile: float) -> None:
    rule = QuantileClip(count_noise=10.0, quantile=quantile, rng=randomness_for_tests(3))
    norms = np.random.default_rng(0).lognormal(size=5000)
    draws = np.random.default_rng(1)
    bound, path = 0.01, []
    for _ in range(600):
        batch = norms[draws.random(5000) < 0.04]
        bound = rule.next_norm(bound, small=int((batch <= bound).sum()), batch=batch.size, expected_batch=200.0)
        path.append(bound)
    assert float((norms <= np.median(path[300:])).mean()) == pytest.approx(quantile, abs=0.06)


def test_an_empty_batch_moves_the_bound_by_noise_alone() -> None:
    rule = QuantileClip(count_noise=1.0, rng=randomness_for_tests(4))
    moved = [math.log(rule.next_norm(1.0, small=0, batch=0, expected_batch=100.0)) for _ in range(2000)]
    # η σ_b / E, and the twelfth that rounding to half-integers adds
    spread = 0.2 / 100 * math.sqrt(1.0 + 1 / 48)
    assert abs(np.mean(moved)) < 6 * spread / math.sqrt(2000)
    assert np.std(moved) == pytest.approx(spread, rel=6 / math.sqrt(4000))


def test_wild_noise_never_makes_the_bound_zero_or_infinite() -> None:
    rule = QuantileClip(count_noise=1e9, rng=randomness_for_tests(5))
    bound = 1.0
    for _ in range(200):
        bound = rule.next_norm(bound, small=1, batch=1, expected_batch=1.0)
        assert 1e-9 < bound < 1e9


def squares(model: nn.Module, batch: Batch) -> Tensor:
    """The gradient of example i is x_i whatever the weights are."""
    return model(batch[0]).squeeze(-1)


def adaptive_step(**options: Any) -> PrivateStep:
    torch.manual_seed(0)
    rng = randomness_for_tests(6)
    rule = QuantileClip(count_noise=3.0, rng=rng)
    model = nn.Linear(4, 1, bias=False).double()
    return PrivateStep.build(
        model, squares, Flat(max_norm=0.1), noise_multiplier=1.0, rate=0.1, expected_batch=60.0,
        adaptive=rule, rng=rng, **{"engine": "vmap", **options},
    )  # fmt: skip


def test_a_step_follows_the_norms_states_the_joint_event_and_keeps_its_noise_in_step_with_the_bound() -> None:
    step = adaptive_step()
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(60, 4, generator=generator, dtype=torch.float64)
    inputs = inputs / inputs.norm(dim=1, keepdim=True) * torch.linspace(1, 3, 60, dtype=torch.float64)[:, None]
    for _ in range(150):
        step.gradient((inputs,))
        assert step.event() == PoissonSampled(rate=0.1, event=Gaussian(noise_multiplier=1.0))
        assert step.mechanism.noise_multiplier > 1.0
        assert step.scaled is not None and step.scaled.max_norm == step.sensitivity
    assert step.sensitivity == pytest.approx(2.0, rel=0.25)  # the median of 1 … 3


def test_an_adaptive_step_clips_to_the_bound_of_the_moment() -> None:
    step = adaptive_step()
    long = torch.full((1, 4), 50.0, dtype=torch.float64)
    for _ in range(5):
        assert float(step.deterministic((long,))[0].norm()) == pytest.approx(step.sensitivity, rel=1e-9)
        step.gradient((long,))


@pytest.mark.parametrize("bad", [{"count_noise": 0.0}, {"quantile": 1.0}, {"learning_rate": -1.0}])
def test_bad_values_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(InvalidParameter):
        QuantileClip(**{"count_noise": 1.0, **bad})  # type: ignore[arg-type]


def test_a_record_that_raises_moves_the_count_by_a_half_like_any_other() -> None:
    """Were the others forgotten with it, one record would move the count by all of them."""

    def fussy(model: nn.Module, batch: Batch) -> Tensor:
        if bool((batch[0] == 42.0).any()):
            raise ValueError("secret of a record")
        return squares(model, batch)

    seen: list[int] = []
    step = adaptive_step(engine="naive")
    few = torch.full((9, 4), 1e-3, dtype=torch.float64)
    for loss, batch in ((squares, few), (fussy, torch.cat([few, torch.full((1, 4), 42.0, dtype=torch.float64)]))):
        assert step.scaled is not None
        step.scaled.loss = loss
        step.deterministic((batch,))
        seen.append(2 * step._small - len(batch))
    assert seen == [9, 8]
