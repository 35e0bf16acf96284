"""A party's round: what it computes, what it costs, and what does not stay behind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from quietsum.errors import InvalidParameter
from quietsum.learning.checks.before_training import ClaimContradicted
from quietsum.learning.clients import local
from quietsum.learning.clients.local import LocalSteps, local_steps
from quietsum.learning.descent import private_steps
from quietsum.learning.engines.protocol import engine_for
from quietsum.learning.rows.records import Records
from quietsum.learning.step import cross_entropy
from quietsum.mechanisms.distributed import DistributedNoise
from quietsum.mechanisms.gaussian import ClippedSum, Mode
from quietsum.mechanisms.rng import RandomSource, randomness_for_tests, system_randomness
from quietsum.plan.orders import LocalOrders
from quietsum.sampling import Everyone, FixedSize, Poisson
from quietsum.tasks import Rows

Floats = NDArray[np.float64]
NOISE = ClippedSum(max_norm=0.5, noise_multiplier=1.0)
QUIET = ClippedSum(max_norm=0.5, noise_multiplier=1e-9, mode=Mode.FAST)


@pytest.fixture(autouse=True)
def _seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUIETSUM_TEST_SEEDS", "1")


class Points:
    """Least squares in numpy, y ≈ x·w: the referee."""

    def gradients(self, params: Floats, features: Floats, labels: Floats) -> Floats:
        return (features @ params - labels)[:, None] * features


def squared(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    return (model(batch[0]).squeeze(1) - batch[1]).square() / 2


def line() -> nn.Module:
    return nn.Linear(3, 1, bias=False, dtype=torch.float64)


def made(count: int = 40, seed: int = 0) -> tuple[Floats, Floats]:
    chance = np.random.default_rng(seed)
    features = chance.normal(size=(count, 3))
    return features, features @ np.array([1.0, -2.0, 0.5]) + chance.normal(size=count) / 10


def tensors(features: Floats, labels: Floats) -> tuple[Tensor, Tensor]:
    return torch.from_numpy(features), torch.from_numpy(labels)


def orders(**changes: Any) -> LocalOrders:
    values: dict[str, Any] = {
        "steps": 4, "sampling": Poisson(rate=0.3), "expected_batch": 12.0, "learning_rate": 0.2, "momentum": 0.6,
        "proximal": 0.3,
    }  # fmt: skip
    return LocalOrders(**{**values, **changes})


def both(told: LocalOrders, params: Floats, seed: int = 5) -> tuple[Floats, Floats]:
    """One round in torch and in numpy, on the same draws."""
    features, labels = made()
    ours = local_steps(
        line(), squared, tensors(features, labels), params, told, "auto", randomness_for_tests(seed=seed)
    )
    referee = private_steps(
        Points(), params, Rows(features=features, labels=labels), steps=told.steps, sampling=told.sampling,
        mechanism=told.mechanism, expected_batch=told.expected_batch, learning_rate=told.learning_rate,
        momentum=told.momentum, proximal=told.proximal, rng=randomness_for_tests(seed=seed),
    )  # fmt: skip
    return ours, referee


# ------------------------------------------------------------------------------------------ what it computes


def test_plain_steps_are_those_of_the_numpy_descent() -> None:
    ours, referee = both(orders(), np.array([0.3, 0.1, -0.2]))
    np.testing.assert_allclose(ours, referee, rtol=1e-12, atol=1e-15)
    for other in (orders(momentum=0.0), orders(proximal=0.0), orders(expected_batch=40.0), orders(steps=3)):
        different, _ = both(other, np.array([0.3, 0.1, -0.2]))
        assert np.abs(different - ours).max() > 1e-3, "every order matters"


def test_clipped_steps_are_those_of_the_numpy_descent_up_to_the_noise() -> None:
    """At a noise of 1e-9 the two differ by their noise alone; a bound of another size is seen."""
    start = np.array([0.3, 0.1, -0.2])
    everyone = {"sampling": Everyone(), "expected_batch": 40.0}  # no draw, so that noise cannot shift the draws
    ours, referee = both(orders(mechanism=QUIET, **everyone), start)
    np.testing.assert_allclose(ours, referee, atol=1e-8)
    wider = ClippedSum(max_norm=0.6, noise_multiplier=1e-9, mode=Mode.FAST)
    assert np.abs(both(orders(mechanism=wider, **everyone), start)[0] - ours).max() > 1e-3


def test_proximal_pull_is_half_of_mu_times_the_squared_distance() -> None:
    """One step from anywhere is plain; in the second, μ·(w − w_server) is added to the gradient."""
    features, labels = np.ones((1, 3)), np.zeros(1)
    start = np.array([1.0, 0.0, 0.0])
    told = {"sampling": Everyone(), "expected_batch": 1.0, "momentum": 0.0, "learning_rate": 0.1}
    first = np.array([1.0, 0.0, 0.0]) - 0.1 * np.ones(3)
    second = first - 0.1 * (np.full(3, first.sum()) + 2.0 * (first - start))
    for steps, end in ((1, first), (2, second)):
        delta = local_steps(
            line(), squared, tensors(features, labels), start, orders(steps=steps, proximal=2.0, **told), "auto",
            system_randomness(),
        )  # fmt: skip
        np.testing.assert_allclose(delta, end - start, rtol=1e-12)


@pytest.mark.parametrize("engine", ["auto", "bookkeeping", "vmap", "naive", "opacus"])
def test_engines_agree(engine: str) -> None:
    features, labels = made()
    told = orders(mechanism=QUIET, sampling=Everyone(), expected_batch=40.0)
    ours = local_steps(line(), squared, tensors(features, labels), np.zeros(3), told, engine, system_randomness())
    other = local_steps(line(), squared, tensors(features, labels), np.zeros(3), told, "naive", system_randomness())
    np.testing.assert_allclose(ours, other, atol=1e-7)


def test_no_records_are_noise_alone_or_no_step() -> None:
    nothing = tensors(np.zeros((0, 3)), np.zeros(0))
    assert not local_steps(line(), squared, nothing, np.zeros(3), orders(), "auto", system_randomness()).any()
    noisy = local_steps(line(), squared, nothing, np.zeros(3), orders(mechanism=NOISE), "auto", system_randomness())
    assert (noisy != 0).all()


# ---------------------------------------------------------------------------------------------- what it costs


@pytest.mark.parametrize("mode", list(Mode))
def test_the_noise_is_the_one_that_is_charged(mode: Mode) -> None:
    """Of one step without records: 3 · 3000 draws, whose variance is (learning rate · σ · C / b)² within 6 errors."""
    mechanism = ClippedSum(max_norm=0.5, noise_multiplier=2.0, mode=mode)
    told = orders(steps=1, mechanism=mechanism, momentum=0.0, proximal=0.0)
    steps, nothing = LocalSteps(line(), squared), tensors(np.zeros((0, 3)), np.zeros(0))
    rng = randomness_for_tests(seed=11)
    drawn = np.concatenate([steps.run(nothing, np.zeros(3), told, rng) for _ in range(3000)])
    scale = 0.2 * 2.0 * 0.5 / 12.0
    error = 6 * np.sqrt(2 / len(drawn))
    assert abs(np.mean((drawn / scale) ** 2) - 1) < error, "and secure noise is wider by a millionth at most"
    assert abs(np.mean((drawn / (scale * 2 / 3)) ** 2) - 1) > error, "noise at two thirds would be seen"


def test_one_record_moves_a_sum_by_the_bound_at_most() -> None:
    """A record of 10⁶ beside others; without the clip it would move the weights a million times further."""
    features, labels = made()
    features[7] = 1e6
    told = {"steps": 1, "sampling": Everyone(), "expected_batch": 40.0, "momentum": 0.0, "proximal": 0.0}
    rng = system_randomness()

    def moved(mechanism: ClippedSum | None) -> float:
        deltas = [
            local_steps(
                line(), squared, tensors(features[some], labels[some]), np.zeros(3),
                orders(mechanism=mechanism, **told), "auto", rng,
            )
            for some in (slice(None), np.arange(40) != 7)
        ]  # fmt: skip
        return float(np.linalg.norm(deltas[0] - deltas[1]))

    assert moved(QUIET) <= 0.2 * 0.5 / 40 * (1 + 1e-6)
    assert moved(None) > 1.0


@pytest.mark.parametrize("mechanism", [None, QUIET])
def test_a_broken_record_counts_as_zero_and_leaves_the_others_alone(mechanism: ClippedSum | None) -> None:
    features, labels = made()
    told = orders(mechanism=mechanism, sampling=Everyone(), expected_batch=40.0, proximal=0.0)
    rest = np.arange(40) != 3
    without = local_steps(
        line(), squared, tensors(features[rest], labels[rest]), np.zeros(3), told, "auto", system_randomness()
    )
    features[3, 1] = np.nan
    broken = local_steps(line(), squared, tensors(features, labels), np.zeros(3), told, "auto", system_randomness())
    np.testing.assert_allclose(broken, without, atol=1e-7)


def test_people_are_bounded_before_anything_is_drawn() -> None:
    """Of ada's 30 records the first two take part, whatever the batch; without the bound the result is another."""
    features, labels = made()
    people = ["ada"] * 30 + [f"person {number}" for number in range(10)]
    told = {"sampling": Everyone(), "expected_batch": 12.0}
    kept = np.r_[0, 1, 30:40]
    wanted = local_steps(
        line(), squared, tensors(features[kept], labels[kept]), np.zeros(3), orders(**told), "auto", system_randomness()
    )

    def run(most: int | None) -> Floats:
        return local_steps(
            line(), squared, tensors(features, labels), np.zeros(3), orders(max_records=most, **told), "auto",
            system_randomness(), people=people,
        )  # fmt: skip

    np.testing.assert_allclose(run(2), wanted, rtol=1e-12)
    assert np.abs(run(None) - wanted).max() > 1e-2


@pytest.mark.parametrize("people", [None, ["ada"] * 39])
def test_a_bound_on_people_needs_to_know_whose_records_they_are(people: Sequence[str] | None) -> None:
    with pytest.raises(InvalidParameter, match="not known whose"):
        local_steps(
            line(), squared, tensors(*made()), np.zeros(3), orders(max_records=2), "auto", system_randomness(), people
        )


def test_records_are_drawn_by_coins_or_all_of_them() -> None:
    told = orders(sampling=FixedSize(size=4, population=40), mechanism=NOISE)
    with pytest.raises(InvalidParameter, match="by its own coin"):
        local_steps(line(), squared, tensors(*made()), np.zeros(3), told, "auto", system_randomness())


def test_batch_norm_is_refused() -> None:
    with pytest.raises(InvalidParameter, match="GroupNorm"):
        LocalSteps(nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)), cross_entropy)
    LocalSteps(nn.Sequential(nn.Linear(3, 2), nn.GroupNorm(1, 2)), cross_entropy)


def test_an_overflow_is_an_error_that_teaches() -> None:
    with pytest.raises(InvalidParameter, match="smaller steps"):
        local_steps(
            line(), squared, tensors(*made()), np.zeros(3), orders(learning_rate=1e200, steps=9), "auto",
            system_randomness(),
        )  # fmt: skip


# -------------------------------------------------------------------------------------- nothing stays behind


class Counting(nn.Module):
    """A model with a buffer that every pass moves."""

    passes: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.inner = line()
        self.register_buffer("passes", torch.zeros(()))

    def forward(self, values: Tensor) -> Tensor:
        self.passes = self.passes + 1
        found: Tensor = self.inner(values)
        return found


@pytest.mark.parametrize("mechanism", [None, NOISE])
def test_a_model_carries_nothing_from_one_party_to_the_next(mechanism: ClippedSum | None) -> None:
    model = Counting()
    steps, told = LocalSteps(model, squared), orders(mechanism=mechanism, sampling=Everyone(), expected_batch=40.0)
    first = steps.run(tensors(*made()), np.zeros(3), told, randomness_for_tests(seed=1))
    steps.run(tensors(*made(seed=9)), np.ones(3), told, randomness_for_tests(seed=2))
    again = steps.run(tensors(*made()), np.zeros(3), told, randomness_for_tests(seed=1))
    np.testing.assert_array_equal(first, again)
    assert float(model.passes) == 0 and model.training


def test_no_grad_around_a_round_does_not_silence_its_records() -> None:
    with torch.no_grad():
        delta = local_steps(line(), squared, tensors(*made()), np.zeros(3), orders(), "auto", system_randomness())
    assert delta.any()


def test_the_engine_is_made_once_and_anew_for_another_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    made_for: list[float] = []
    real = engine_for

    def counted(name: str, model: nn.Module, loss: Any, clip: Any) -> Any:
        made_for.append(clip.max_norm)
        return real(name, model, loss, clip)

    monkeypatch.setattr(local, "engine_for", counted)
    steps = LocalSteps(line(), squared)
    for bound in (0.5, 0.5, 0.25, 0.25):
        mechanism = ClippedSum(max_norm=bound, noise_multiplier=1.0)
        steps.run(tensors(*made()), np.zeros(3), orders(mechanism=mechanism), system_randomness())
    assert made_for == [0.5, 0.25]


# ------------------------------------------------------------------------------------ the check before training


def digits_like() -> tuple[nn.Module, Records]:
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
    return model, Records.of((torch.zeros(50, 4), torch.zeros(50, dtype=torch.int64)))


@pytest.mark.parametrize("mode", list(Mode))
def test_the_local_step_passes_its_self_check(mode: Mode) -> None:
    model, records = digits_like()
    mechanism = ClippedSum(max_norm=0.5, noise_multiplier=1.0, mode=mode)
    steps = LocalSteps(model, cross_entropy)
    before = steps.layout.read(model)
    steps.check(records, orders(mechanism=mechanism))
    steps.check(records, orders())  # claims nothing
    steps.check(records, orders(distributed=in_shares(steps.layout.dimension)))
    np.testing.assert_array_equal(steps.layout.read(model), before)


def in_shares(dimension: int) -> DistributedNoise:
    return DistributedNoise(
        max_norm=0.5, noise_multiplier=1.0, honest=3, dimension=dimension, unit="record", ball=50.0, parties=5
    )


@pytest.mark.parametrize("shares", [False, True], ids=["noise at the party", "noise in shares"])
def test_a_step_whose_bound_does_not_hold_is_found(monkeypatch: pytest.MonkeyPatch, shares: bool) -> None:
    """The negative control: every record counts as often as the batch has rows."""
    model, records = digits_like()
    real = local._engine

    class Louder:
        def __init__(self, inner: Any) -> None:
            self.inner, self.name, self.why, self.parameters = inner, "louder", "", inner.parameters

        def clipped_sum(self, batch: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            rows = len(batch[0])
            return tuple(part * rows for part in self.inner.clipped_sum(batch))

    monkeypatch.setattr(local, "_engine", lambda *args: Louder(real(*args)))
    with pytest.raises(ClaimContradicted, match="local step"):
        steps = LocalSteps(model, cross_entropy)
        told = {"distributed": in_shares(steps.layout.dimension)} if shares else {"mechanism": NOISE}
        steps.check(records, orders(**told))


def test_random_sources_are_asked_for_every_draw() -> None:
    """Two rounds never share their noise."""
    steps, nothing = LocalSteps(line(), squared), tensors(np.zeros((0, 3)), np.zeros(0))
    rng: RandomSource = system_randomness()
    one, two = (steps.run(nothing, np.zeros(3), orders(mechanism=NOISE), rng) for _ in range(2))
    assert (one != two).all()
