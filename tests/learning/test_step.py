"""A private step: bounded, additive, noisy to the stated scale, divided by what is public."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from quietsum import Gaussian, Laplace, PoissonSampled
from quietsum.errors import InvalidParameter
from quietsum.learning.clipping import Automatic, Clip, Flat, FlatL1, PerLayer, QuantileClip
from quietsum.learning.engines.protocol import Batch
from quietsum.learning.noise.gradient_noise import TorchNoise
from quietsum.learning.step import PrivateStep, ScaledLoss, cross_entropy
from quietsum.mechanisms.rng import randomness_for_tests

RATE, EXPECTED = 0.1, 16.0


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)).double()


def rows(count: int, seed: int = 1, scale: float = 1.0) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    inputs = scale * torch.randn(count, 6, generator=generator, dtype=torch.float64)
    return inputs, torch.randint(0, 3, (count,), generator=generator)


def made(clip: Clip | None = None, loss: Any = cross_entropy, **options: Any) -> PrivateStep:
    clip = Flat(max_norm=0.5) if clip is None else clip
    values = {"noise_multiplier": 1.3, "rate": RATE, "expected_batch": EXPECTED, "engine": "vmap", **options}
    return PrivateStep.build(network(), loss, clip, **values)


def flat(parts: tuple[Tensor, ...]) -> Tensor:
    return torch.cat([part.flatten() for part in parts])


def joined(one: Batch, other: Batch) -> Batch:
    return tuple(torch.cat(pair) for pair in zip(one, other, strict=True))


def test_the_step_states_the_event_of_its_own_sampler_and_noise() -> None:
    assert made().event() == PoissonSampled(rate=RATE, event=Gaussian(noise_multiplier=1.3))
    assert made(FlatL1(max_norm=0.5)).event() == PoissonSampled(rate=RATE, event=Laplace(noise_multiplier=1.3))


@pytest.mark.parametrize("clip", [Flat(max_norm=0.5), PerLayer(max_norm=0.5), Automatic(max_norm=0.5)])
@pytest.mark.parametrize("scale", [0.01, 1.0, 1e4])
def test_one_record_moves_the_sum_by_at_most_the_sensitivity(clip: Clip, scale: float) -> None:
    step = made(clip)
    few, one = rows(9), rows(1, seed=7, scale=scale)
    moved = float((flat(step.deterministic(joined(few, one))) - flat(step.deterministic(few))).norm())
    assert moved <= step.sensitivity * (1 + 1e-9) and step.sensitivity == 0.5


def test_the_control_without_a_clip_the_same_record_moves_it_further() -> None:
    step = made(Flat(max_norm=1e9))
    few, one = rows(9), rows(1, seed=7, scale=1e4)
    assert float((flat(step.deterministic(joined(few, one))) - flat(step.deterministic(few))).norm()) > 4 * 0.5


def test_laplace_steps_bound_the_l1_norm() -> None:
    step = made(FlatL1(max_norm=0.5))
    one = rows(1, seed=7, scale=10.0)
    assert float(flat(step.deterministic(one)).abs().sum()) == pytest.approx(0.5, rel=1e-9)


def test_sums_add_up_whatever_the_micro_batch() -> None:
    one, other = rows(9), rows(4, seed=3)
    whole = flat(made().deterministic(joined(one, other)))
    parts = flat(made().deterministic(one)) + flat(made().deterministic(other))
    assert torch.allclose(whole, parts, atol=1e-12)
    assert torch.allclose(whole, flat(made(micro_batch=5).deterministic(joined(one, other))), atol=1e-12)


def test_an_empty_batch_is_a_step_of_noise_alone() -> None:
    step = made()
    assert not flat(step.deterministic(rows(0))).any()
    assert bool((flat(step.gradient(rows(0))) != 0).all())


def test_a_record_that_is_not_finite_contributes_zero() -> None:
    step, few = made(), rows(5)
    for value in (math.nan, math.inf, 1e308):
        poison = (torch.full((1, 6), value, dtype=torch.float64), torch.tensor([0]))
        found = flat(step.deterministic(joined(few, poison)))
        assert bool(torch.isfinite(found).all())
        if not math.isfinite(value):
            assert torch.allclose(found, flat(step.deterministic(few)), atol=1e-12)


def test_a_label_outside_the_classes_contributes_zero_and_raises_nothing() -> None:
    step, few = made(), rows(5)
    for label in (-1, 3, 10**6):
        odd = (torch.ones(1, 6, dtype=torch.float64), torch.tensor([label]))
        assert torch.allclose(flat(step.deterministic(joined(few, odd))), flat(step.deterministic(few)), atol=1e-12)


def test_a_record_for_which_the_loss_raises_contributes_zero_and_erases_nobody() -> None:
    def fussy(model: nn.Module, batch: Batch) -> Tensor:
        if bool((batch[0] == 42.0).any()):
            raise ValueError("secret of a record")
        return cross_entropy(model, batch)

    step, few = made(loss=fussy, engine="naive"), rows(5)
    odd = (torch.full((1, 6), 42.0, dtype=torch.float64), torch.tensor([0]))
    assert torch.allclose(flat(step.deterministic(joined(few, odd))), flat(step.deterministic(few)), atol=1e-12)
    assert flat(step.deterministic(few)).norm() > 0.1  # the control: the others are there


def test_the_gradient_is_the_sum_over_the_public_batch_not_over_the_drawn_one() -> None:
    step = made(noise_multiplier=1e-6)
    for count in (1, 5, 40):
        batch = rows(count)
        wanted = flat(step.deterministic(batch)) / EXPECTED
        assert torch.allclose(flat(step.gradient(batch)), wanted, atol=1e-6)


def test_the_gradient_has_the_noise_that_the_event_states(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUIETSUM_TEST_SEEDS", "1")
    step = made(rng=randomness_for_tests(4))
    batch = rows(5)
    exact = flat(step.deterministic(batch)) / EXPECTED
    draws = torch.stack([flat(step.gradient(batch)) for _ in range(600)]) - exact
    expected = (1.3 * 0.5 / EXPECTED) ** 2
    ratio = float(draws.square().mean()) / expected
    assert abs(ratio - 1) < 6 * math.sqrt(2 / draws.numel())
    assert abs(ratio * 0.95 - 1) > 6 * math.sqrt(2 / draws.numel())  # the control: 5 % less variance is seen


def test_the_sampler_draws_at_the_stated_rate_and_never_the_same_batch() -> None:
    step = made()
    sizes = [step.sample(2000).size for _ in range(200)]
    mean, spread = 2000 * RATE, math.sqrt(2000 * RATE * (1 - RATE))
    assert abs(sum(sizes) / 200 - mean) < 6 * spread / math.sqrt(200)
    assert len(set(sizes)) > 10  # a fixed size would be no Poisson sample
    assert step.sample(2000).tolist() != step.sample(2000).tolist()


def test_dividing_the_loss_and_clipping_to_one_is_clipping_to_the_bound() -> None:
    for clip in (Flat(max_norm=0.3), PerLayer(max_norm=0.3)):
        direct, scaled = made(clip), made(clip, varying=True)
        assert isinstance(scaled.scaled, ScaledLoss)
        assert torch.allclose(flat(direct.deterministic(rows(9))), flat(scaled.deterministic(rows(9))), atol=1e-12)


def test_a_step_can_be_retuned_and_its_event_and_bound_follow() -> None:
    step = made(varying=True)
    step.retune(noise_multiplier=2.0, max_norm=0.1)
    assert step.event() == PoissonSampled(rate=RATE, event=Gaussian(noise_multiplier=2.0))
    assert step.sensitivity == 0.1
    one = rows(1, scale=100.0)
    assert float(flat(step.deterministic(one)).norm()) == pytest.approx(0.1, rel=1e-9)
    with pytest.raises(InvalidParameter, match="varying"):
        made().retune(noise_multiplier=2.0, max_norm=0.1)


def test_secure_steps_release_numbers_on_the_grid() -> None:
    step = made(mode="secure")
    released = flat(step.mechanism.add(step.deterministic(rows(5)))) / (0.5 * 2.0**-24)
    assert bool((released == released.round()).all())


def test_adaptive_clipping_needs_gaussian_noise() -> None:
    with pytest.raises(InvalidParameter, match="adaptive"):
        made(FlatL1(max_norm=0.5), adaptive=QuantileClip(count_noise=2.0))


@pytest.mark.parametrize("engine", ["auto", "bookkeeping", "vmap", "naive"])
def test_all_engines_make_the_same_step(engine: str) -> None:
    reference = flat(made(engine="naive").deterministic(rows(9)))
    assert torch.allclose(flat(made(engine=engine).deterministic(rows(9))), reference, atol=1e-10)


@pytest.mark.parametrize("clip", [Flat(max_norm=0.5), PerLayer(max_norm=0.5), Automatic(max_norm=0.5, stability=2.0)])
def test_a_rule_is_the_same_where_the_bound_may_change_and_after_it_did(clip: Clip) -> None:
    batch = rows(9)
    varying = made(clip, varying=True)
    assert torch.allclose(flat(varying.deterministic(batch)), flat(made(clip).deterministic(batch)), rtol=1e-12)
    varying.retune(noise_multiplier=1.0, max_norm=3.0)
    wide = made(dataclasses.replace(clip, max_norm=3.0))  # type: ignore[type-var]
    assert torch.allclose(flat(varying.deterministic(batch)), flat(wide.deterministic(batch)), rtol=1e-12)


def test_the_control_another_stability_is_another_rule() -> None:
    one, other = made(Automatic(max_norm=0.5, stability=2.0)), made(Automatic(max_norm=0.5))
    assert not torch.allclose(flat(one.deterministic(rows(9))), flat(other.deterministic(rows(9))), rtol=0.1)


def test_secure_noise_leaves_room_for_the_coarsest_parameter() -> None:
    noise = TorchNoise(noise_multiplier=1.0, sensitivity=1.0, mode="secure", expected_batch=1e4)
    fine, coarse = torch.zeros(3, dtype=torch.float64), torch.zeros(3, dtype=torch.float32)
    assert noise.grid([fine, coarse]) == noise.grid([coarse, fine]) == noise.grid([coarse, coarse])
    assert noise.grid([fine, fine])[1] < noise.grid([fine, coarse])[1]
