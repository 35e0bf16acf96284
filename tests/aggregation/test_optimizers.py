"""Server optimizers against loops written from the papers, coordinate by coordinate."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from quietsum.aggregation import FedAdam, FedAvg, FedAvgM, ServerAdam, ServerState, server_optimizer
from quietsum.aggregation.optimizers import KINDS, ServerOptimizer, check_slots
from quietsum.errors import CorruptState, InvalidParameter

Floats = NDArray[np.float64]
UPDATES = np.random.default_rng(4).normal(size=(30, 5)) * np.array([1e-6, 1e-2, 1.0, 30.0, 0.0])
START = np.array([0.0, 1.0, -2.0, 5.0, 7.0])


def run(optimizer: ServerOptimizer) -> Floats:
    state = optimizer.start(START)
    for update in UPDATES:
        state = optimizer.step(state, update)
    return state.params


def test_fedavg_adds_up_updates_times_the_rate() -> None:
    np.testing.assert_allclose(run(FedAvg(learning_rate=0.3)), START + 0.3 * UPDATES.sum(axis=0), rtol=1e-12)


def test_fedavgm_is_the_loop_of_hsu_qi_and_brown() -> None:
    expected = START.copy()
    for coordinate in range(5):
        velocity = 0.0
        for update in UPDATES[:, coordinate]:
            velocity = 0.8 * velocity + update
            expected[coordinate] += 0.5 * velocity
    np.testing.assert_allclose(run(FedAvgM(learning_rate=0.5, momentum=0.8)), expected, rtol=1e-12)


def reddi(*, corrected: bool, begin: float = 1e-6) -> Floats:
    """Algorithm 2 of Reddi et al. 2021 with η = .1, β₁ = .9, β₂ = .99, τ = 1e-3; or Adam's bias-corrected form.

    v starts at ``begin``: τ², or 0 as Kingma and Ba have it.
    """
    expected = START.copy()
    for coordinate in range(5):
        first, second = 0.0, begin
        for number, update in enumerate(UPDATES[:, coordinate], start=1):
            first = 0.9 * first + 0.1 * update
            second = 0.99 * second + 0.01 * update**2
            m, v = (first / (1 - 0.9**number), second / (1 - 0.99**number)) if corrected else (first, second)
            expected[coordinate] += 0.1 * m / (math.sqrt(v) + 1e-3)
    return expected


def test_fedadam_is_algorithm_2_of_reddi_et_al_without_bias_correction() -> None:
    found = run(FedAdam(learning_rate=0.1, momentum=0.9, second=0.99, floor=1e-3))
    np.testing.assert_allclose(found, reddi(corrected=False), rtol=1e-12)
    assert not np.allclose(found, reddi(corrected=True), rtol=1e-3)  # the control: the reference can tell


def test_adam_is_algorithm_1_of_kingma_and_ba() -> None:
    found = run(ServerAdam(learning_rate=0.1, momentum=0.9, second=0.99, floor=1e-3))
    np.testing.assert_allclose(found, reddi(corrected=True, begin=0.0), rtol=1e-12)
    assert not np.allclose(found, reddi(corrected=False), rtol=1e-3)  # the control: the reference can tell


def test_adam_under_noise_walks_as_far_as_its_rate_times_the_root_of_the_rounds_and_fedadam_farther() -> None:
    """What the rate of a fresh plan goes by. 4,000 coordinates of noise alone, 60 rounds, at two scales of noise."""
    for scale in (1e-3, 10.0):
        walked = {}
        for kind in ("adam", "fedadam"):
            optimizer = server_optimizer(kind, learning_rate=0.4 / 60**0.5, floor=1e-6)
            state, rng = optimizer.start(np.zeros(4000)), np.random.default_rng(3)
            for _ in range(60):
                state = optimizer.step(state, scale * rng.normal(size=4000))
            walked[kind] = float(np.std(state.params))
        assert walked["adam"] == pytest.approx(0.4, rel=0.25)
        assert walked["fedadam"] > 1.4 * walked["adam"]


@pytest.mark.parametrize("count", [-1.0, 0.5, math.nan, math.inf])
def test_a_saved_count_of_steps_is_a_whole_number(count: float) -> None:
    fresh = ServerAdam().start(START)
    check_slots(ServerAdam().step(fresh, np.ones(5)), fresh)
    broken = ServerState(params=START, slots={**fresh.slots, "steps": np.array([count])})
    with pytest.raises(CorruptState, match="counts"):
        check_slots(broken, fresh)


def test_momentum_sums_a_geometric_series() -> None:
    state = FedAvgM(momentum=0.9).start(np.zeros(1))
    for _ in range(200):
        state = FedAvgM(momentum=0.9).step(state, np.ones(1))
    assert state.slots["velocity"] == pytest.approx([10.0])


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_changes_neither_the_state_before_nor_slots_of_others(kind: str) -> None:
    optimizer = server_optimizer(kind)
    state = optimizer.start(START).with_clip(0.7)
    copies = {name: vector.copy() for name, vector in state.slots.items()}
    after = optimizer.step(state, np.ones(5))
    np.testing.assert_array_equal(state.params, START)
    for name, vector in copies.items():
        np.testing.assert_array_equal(state.slots[name], vector)
    assert after.clip == state.clip == 0.7
    assert after.params.dtype == np.float64


def test_the_clip_is_a_slot_and_none_changes_nothing() -> None:
    state = ServerState(params=np.zeros(2))
    assert state.clip is None
    assert state.with_clip(None) is state
    assert state.with_clip(0.25).slots["clip"].tolist() == [0.25]


@pytest.mark.parametrize("clip", [0.0, -1.0, float("nan"), float("inf")])
def test_a_bound_is_a_positive_number(clip: float) -> None:
    with pytest.raises(InvalidParameter):
        ServerState(params=np.zeros(2)).with_clip(clip)


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("fedavg", {"learning_rate": 0.0}),
        ("fedavg", {"learning_rate": float("nan")}),
        ("fedavgm", {"momentum": 1.0}),
        ("fedavgm", {"momentum": -0.1}),
        ("fedadam", {"second": 1.0}),
        ("fedadam", {"floor": 0.0}),
        ("adam", {"second": 1.0}),
        ("adam", {"floor": 0.0}),
        ("adagrad", {}),
    ],
)
def test_numbers_that_make_no_optimizer_are_refused(kind: str, values: dict[str, float]) -> None:
    with pytest.raises(InvalidParameter):
        server_optimizer(kind, **values)


@pytest.mark.parametrize(
    ("state", "problem"),
    [
        (FedAvg().start(START), "holds nothing beside the model"),
        (FedAdam().start(START), "first, second"),
        (FedAvgM().start(START[:3]), "3 numbers"),
        (ServerState(params=START, slots={"velocity": np.zeros(1)}), "1 numbers"),
        (FedAvgM().start(START).with_clip(1.0), "clip"),
    ],
)
def test_a_saved_state_of_another_optimizer_or_size_is_refused(state: ServerState, problem: str) -> None:
    with pytest.raises(CorruptState, match=problem):
        check_slots(state, FedAvgM().start(np.zeros(5)))


def test_a_saved_state_of_the_same_form_is_taken() -> None:
    check_slots(FedAvgM().step(FedAvgM().start(START), np.ones(5)), FedAvgM().start(np.zeros(5)))


def test_an_overflow_is_seen_in_the_slots_too() -> None:
    with np.errstate(over="ignore"):
        after = FedAdam().step(FedAdam().start(np.zeros(1)), np.array([1e300]))
    assert np.isfinite(after.params).all()
    assert not after.finite


@pytest.mark.parametrize("kind", KINDS)
def test_the_running_mean_is_the_weighted_mean_of_all_models(kind: str) -> None:
    """Against a naive sum of d^(n − t)·(1 − d)·model_t over 1 − dⁿ; the models themselves are left as they are."""
    rng = np.random.default_rng(5)
    decay, updates = 0.8, rng.normal(size=(7, 4))
    plain, averaged = server_optimizer(kind), server_optimizer(kind, average=decay)
    state, other = plain.start(np.ones(4)), averaged.start(np.ones(4))
    models = []
    for update in updates:
        state, other = plain.step(state, update), averaged.step(other, update)
        models.append(state.params)
        assert np.array_equal(state.params, other.params)
        count = len(models)
        weights = [(1 - decay) * decay ** (count - 1 - place) for place in range(count)]
        naive = sum(weight * model for weight, model in zip(weights, models, strict=True)) / (1 - decay**count)
        assert np.allclose(other.model, naive, rtol=1e-12)
    assert not np.allclose(other.model, other.params)
    assert np.array_equal(state.model, state.params)


def test_before_the_first_step_the_model_is_the_first_one() -> None:
    assert np.array_equal(server_optimizer("fedavg", average=0.9).start(np.ones(2)).model, np.ones(2))


@pytest.mark.parametrize("decay", [-0.1, 1.0, float("nan")])
def test_a_decay_that_averages_nothing_or_never_begins_is_refused(decay: float) -> None:
    with pytest.raises(InvalidParameter):
        server_optimizer("fedavg", average=decay)
