"""The weighted mean of what arrived: public weights, no misshapen or non-finite update, memory of one update."""

from __future__ import annotations

import numpy as np
import pytest

from quietsum.aggregation import ServerMomentum, ServerState, WeightedMean
from quietsum.errors import InvalidParameter, TooFewParties

MEAN = WeightedMean(weights={"a": 3.0, "b": 1.0, "c": 4.0}, dimension=2)


def folded(*updates: tuple[str, list[float]]):
    state = MEAN.start()
    for party, values in updates:
        state = MEAN.add(state, party, np.array(values))
    return state


def test_the_mean_is_over_those_who_replied_with_their_declared_weights() -> None:
    combined = MEAN.finish(folded(("a", [1.0, 0.0]), ("c", [0.0, 7.0])))
    np.testing.assert_allclose(combined.step, [3 / 7, 4.0])
    assert combined.kept == ("a", "c")


def test_the_order_of_arrival_changes_nothing_but_rounding() -> None:
    updates = [("a", [0.1, -2.0]), ("b", [5.0, 1.0]), ("c", [-0.3, 0.2])]
    np.testing.assert_allclose(MEAN.finish(folded(*updates)).step, MEAN.finish(folded(*updates[::-1])).step)


def test_nobody_replied_is_too_few_parties() -> None:
    with pytest.raises(TooFewParties, match="nothing to average"):
        MEAN.finish(MEAN.start())


@pytest.mark.parametrize(
    ("update", "problem"),
    [
        (np.array([np.nan, 0.0]), "not finite"),
        (np.array([np.inf, 0.0]), "not finite"),
        (np.zeros(3), "shape"),
        (np.zeros((2, 1)), "shape"),
        (np.zeros(2, dtype=np.float32), "float64"),
        ([0.0, 0.0], "not an array"),
        (None, "not an array"),
    ],
)
def test_an_unusable_update_is_named_and_never_added(update: object, problem: str) -> None:
    assert problem in MEAN.problem_with(update)
    with pytest.raises(InvalidParameter, match=problem):
        MEAN.add(MEAN.start(), "a", update)  # type: ignore[arg-type]


def test_a_good_update_has_no_problem() -> None:
    assert MEAN.problem_with(np.zeros(2)) == ""


def test_a_party_counts_once_and_strangers_not_at_all() -> None:
    with pytest.raises(InvalidParameter, match="already replied"):
        folded(("a", [0.0, 0.0]), ("a", [1.0, 1.0]))
    with pytest.raises(InvalidParameter, match="not registered"):
        folded(("z", [0.0, 0.0]))


@pytest.mark.parametrize("weight", [0.0, -1.0, float("nan"), float("inf")])
def test_weights_are_positive_numbers(weight: float) -> None:
    with pytest.raises(InvalidParameter, match="weights"):
        WeightedMean(weights={"a": weight}, dimension=1)


def test_without_momentum_a_step_is_federated_averaging() -> None:
    state = ServerState(params=np.array([1.0]), velocity=np.array([9.0]))
    assert ServerMomentum().step(state, np.array([0.25])).params == pytest.approx([1.25])


def test_momentum_sums_a_geometric_series() -> None:
    state = ServerState(params=np.zeros(1), velocity=np.zeros(1))
    for _ in range(200):
        state = ServerMomentum(momentum=0.9).step(state, np.ones(1))
    assert state.velocity == pytest.approx([10.0])


@pytest.mark.parametrize("momentum", [1.0, -0.1, float("nan")])
def test_momentum_lies_between_zero_and_one(momentum: float) -> None:
    with pytest.raises(InvalidParameter):
        ServerMomentum(momentum=momentum)
