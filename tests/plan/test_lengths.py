"""No honest update is longer than its plan allows, and one that is was not made by the plan."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import scipy.stats

from quietsum.aggregation import ClientSum, WeightedMean
from quietsum.errors import InvalidParameter
from quietsum.learning.descent import private_steps
from quietsum.mechanisms.gaussian import ClippedSum, Mode
from quietsum.mechanisms.rng import system_randomness
from quietsum.party.work import release
from quietsum.plan.orders import LocalOrders
from quietsum.plan.resolution import lengths
from quietsum.plan.resolution.lengths import CHANCE, LARGEST, longest_update, response
from quietsum.sampling import Everyone, Poisson
from quietsum.tasks import Rows


def orders(**changes: Any) -> LocalOrders:
    values: dict[str, Any] = {
        "steps": 5, "sampling": Poisson(rate=0.1), "expected_batch": 10.0, "learning_rate": 0.5,
        "mechanism": ClippedSum(max_norm=1.0, noise_multiplier=1.0, mode=Mode.FAST),
    }  # fmt: skip
    return LocalOrders(**{**values, **changes})


class Aligned:
    """The worst rows there are: every gradient is as long as the clip and points the same way, whatever the model."""

    def gradients(self, params: np.ndarray, features: np.ndarray, labels: np.ndarray) -> np.ndarray:
        found = np.zeros((len(labels), len(params)))
        found[:, 0] = -100.0
        return found


def made(asked: LocalOrders, *, rows: int, dimension: int) -> np.ndarray:
    """An honest update, of the code that makes them."""
    return private_steps(
        Aligned(), np.zeros(dimension), Rows(features=np.zeros((rows, 1)), labels=np.zeros(rows)),
        steps=asked.steps, sampling=asked.sampling, mechanism=asked.mechanism, expected_batch=asked.expected_batch,
        learning_rate=asked.learning_rate, momentum=asked.momentum, proximal=asked.proximal, rng=system_randomness(),
    )  # fmt: skip


# ------------------------------------------------------------------------------------------------ two oracles


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
def test_the_response_to_a_gradient_is_the_geometric_sum_of_momentum(momentum: float) -> None:
    found = response(orders(momentum=momentum, steps=40))
    wanted = [-0.5 * sum(momentum**j for j in range(k + 1)) for k in range(40)]
    np.testing.assert_allclose(found, wanted, rtol=1e-12)


@pytest.mark.parametrize(("momentum", "proximal"), [(0.0, 0.3), (0.9, 0.2), (0.5, 3.0)])
def test_the_response_to_a_gradient_is_what_the_steps_do(momentum: float, proximal: float) -> None:
    """A gradient of one in the first step and of zero afterwards, through the code that trains."""
    asked = orders(momentum=momentum, proximal=proximal, steps=7, mechanism=None, sampling=Everyone())

    class Impulse:
        step = 0

        def gradients(self, params: np.ndarray, features: np.ndarray, labels: np.ndarray) -> np.ndarray:
            self.step += 1
            return np.full((1, 1), 1.0 if self.step == 1 else 0.0)

    for steps in range(1, 8):
        delta = private_steps(
            Impulse(), np.zeros(1), Rows(features=np.zeros((1, 1)), labels=np.zeros(1)), steps=steps,
            sampling=Everyone(), mechanism=None, expected_batch=1.0, learning_rate=0.5, momentum=momentum,
            proximal=proximal, rng=system_randomness(),
        )  # fmt: skip
        assert delta[0] == pytest.approx(response(asked)[steps - 1], rel=1e-12)


@pytest.mark.parametrize("dimension", [1, 15, 4810, 10**6])
def test_the_tail_of_the_noise_is_within_its_chance(dimension: int) -> None:
    tail = math.log(2 / CHANCE)
    reach = math.sqrt(dimension) + math.sqrt(2 * tail)
    assert scipy.stats.chi.sf(reach, dimension) <= CHANCE / 2 < scipy.stats.chi.sf(reach * 0.5, dimension)


@pytest.mark.parametrize(("rows", "rate"), [(10, 0.5), (240, 0.1), (2000, 0.01), (10**6, 1e-3), (24, 1.0)])
@pytest.mark.parametrize("steps", [1, 100])
def test_no_batch_is_larger_than_its_bound_but_for_its_chance(rows: int, rate: float, steps: int) -> None:
    most = lengths._largest_batch(Poisson(rate=rate), rows, math.log(2 / CHANCE) + math.log(steps))
    assert steps * scipy.stats.binom.sf(math.floor(most), rows, rate) <= CHANCE / 2


# ------------------------------------------------------------------------------------------- honest and hostile

PLANS: dict[str, dict[str, Any]] = {
    "plain": {},
    "one step of everybody": {"steps": 1, "sampling": Everyone(), "expected_batch": 100.0},
    "momentum": {"momentum": 0.9, "steps": 20},
    "a proximal term": {"proximal": 0.5, "steps": 20},
    "both": {"momentum": 0.9, "proximal": 0.1, "steps": 30},
    "much noise": {"mechanism": ClippedSum(max_norm=2.0, noise_multiplier=20.0, mode=Mode.FAST)},
    "little noise": {"mechanism": ClippedSum(max_norm=0.1, noise_multiplier=0.1, mode=Mode.FAST)},
    "secure noise": {"mechanism": ClippedSum(max_norm=1.0, noise_multiplier=1.0), "steps": 2},
}


@pytest.mark.parametrize("what", PLANS)
@pytest.mark.parametrize("dimension", [1, 100])
def test_honest_updates_of_the_worst_rows_are_never_left_out(what: str, dimension: int) -> None:
    asked = orders(**PLANS[what])
    limit = longest_update(asked, size=100, dimension=dimension)
    drawn = [float(np.linalg.norm(made(asked, rows=100, dimension=dimension))) for _ in range(150)]
    print(f"{what}, {dimension} parameters: the bound is {limit / max(drawn):.2f} times the longest of 150")
    assert max(drawn) <= limit <= 40 * max(drawn)  # and it is no bound that lets everything through
    twice = [float(np.linalg.norm(made(asked, rows=200, dimension=dimension))) for _ in range(20)]
    assert max(twice) <= limit  # a site with more rows than it has declared


def test_an_update_with_the_partys_own_noise_is_bounded_by_that_noise_alone() -> None:
    client = ClippedSum(max_norm=0.5, noise_multiplier=3.0, mode=Mode.FAST)
    limit = longest_update(orders(client=client, mechanism=None), size=10, dimension=50)
    drawn = [float(np.linalg.norm(release(client, np.full(50, 9.0), 50, system_randomness()))) for _ in range(300)]
    assert max(drawn) <= limit <= 3 * max(drawn)


def test_the_control_half_of_the_bound_would_leave_honest_updates_out() -> None:
    asked = orders(steps=1, sampling=Everyone(), expected_batch=100.0)
    limit = longest_update(asked, size=50, dimension=10_000)  # 2 · 50 rows are there
    drawn = [float(np.linalg.norm(made(asked, rows=100, dimension=10_000))) for _ in range(50)]
    assert min(drawn) > limit / 2


@pytest.mark.parametrize("asked", [orders(mechanism=None), orders(learning_rate=1e300, proximal=1e300)])
def test_where_nothing_bounds_an_update_only_what_no_model_holds_is_left_out(asked: LocalOrders) -> None:
    assert longest_update(asked, size=10, dimension=3) == LARGEST


def test_single_precision_of_a_large_model_is_allowed_for() -> None:
    small = longest_update(orders(), size=10, dimension=3)
    assert longest_update(orders(), size=10, dimension=3, model=1e6) > small + 1


@pytest.mark.parametrize("sent", [np.full(3, 1.7e308), np.array([0.0, -1e200, 0.0]), np.full(3, 10.0)])
def test_what_is_too_long_is_left_out_of_a_mean_alone_or_among_others(sent: np.ndarray) -> None:
    mean = WeightedMean(weights={"a": 1.0, "b": 3.0}, dimension=3, limits={"a": 1.0, "b": 1.0})
    assert "an honest one has at most 1" in mean.problem_with(sent, "a") and not mean.problem_with(np.zeros(3), "a")
    with pytest.raises(InvalidParameter, match="an honest one"):
        mean.add(mean.start(), "a", sent)
    state, broken = mean.add_many(mean.start(), ("a", "b"), np.stack([sent, np.full(3, 0.5)]))
    assert list(broken) == ["a"] and "an honest one" in broken["a"]
    np.testing.assert_array_equal(mean.finish(state, system_randomness()).step, np.full(3, 0.5))


def test_a_sum_that_its_parties_cannot_have_made_is_refused() -> None:
    mean = WeightedMean(weights={"a": 1.0, "b": 3.0}, dimension=3, limits={"a": 1.0, "b": 1.0})
    state = mean.add(mean.start(), "a", np.array([0.5, 0.0, 0.0]))
    state.total = state.total + 5.0
    with pytest.raises(InvalidParameter, match="longer than they can make it"):
        mean.merge(mean.start(), state)


@pytest.mark.parametrize("mode", list(Mode))
def test_noise_at_the_server_cuts_a_long_update_to_the_clip(mode: Mode) -> None:
    """Left out or cut, it moves the sum by no more than C: the sensitivity stays."""
    mechanism = ClippedSum(max_norm=0.5, noise_multiplier=1.0, mode=mode)
    fold = ClientSum(mechanism=mechanism, denominator=10.0, dimension=3)
    for sent in (np.full(3, 1.7e308), np.array([1e200, 0.0, -1e300]), np.full(3, 1e-300)):
        state = fold.add(fold.start(), "a", sent)
        unit = mechanism.grid_unit if mode is Mode.SECURE else 1.0
        assert np.linalg.norm(state.total * unit) <= 0.5 * (1 + 1e-9)
