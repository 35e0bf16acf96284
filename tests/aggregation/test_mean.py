"""The weighted mean of what arrived: public weights, no misshapen or non-finite update, memory of one update."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from quietsum.aggregation import WeightedMean
from quietsum.aggregation.mean import MeanState
from quietsum.errors import InvalidParameter, TooFewParties
from quietsum.mechanisms.rng import system_randomness

MEAN = WeightedMean(weights={"a": 3.0, "b": 1.0, "c": 4.0}, dimension=2)


RNG = system_randomness()


def folded(*updates: tuple[str, list[float]]) -> MeanState:
    state = MEAN.start()
    for party, values in updates:
        state = MEAN.add(state, party, np.array(values))
    return state


def test_the_mean_is_over_those_who_replied_with_their_declared_weights() -> None:
    combined = MEAN.finish(folded(("a", [1.0, 0.0]), ("c", [0.0, 7.0])), RNG)
    np.testing.assert_allclose(combined.step, [3 / 7, 4.0])
    assert combined.kept == ("a", "c")


def test_the_order_of_arrival_changes_nothing_but_rounding() -> None:
    updates = [("a", [0.1, -2.0]), ("b", [5.0, 1.0]), ("c", [-0.3, 0.2])]
    one, other = MEAN.finish(folded(*updates), RNG), MEAN.finish(folded(*updates[::-1]), RNG)
    np.testing.assert_allclose(one.step, other.step)


def test_nobody_replied_is_too_few_parties() -> None:
    with pytest.raises(TooFewParties, match="nothing to average"):
        MEAN.finish(MEAN.start(), RNG)


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


def test_rows_together_and_sums_merged_are_the_mean_of_all_of_them() -> None:
    rows = np.array([[0.1, -2.0], [5.0, 1.0], [-0.3, 0.2]])
    one_by_one = MEAN.finish(folded(*((name, list(row)) for name, row in zip("abc", rows, strict=True))), RNG)
    state, broken = MEAN.add_many(MEAN.start(), ("a", "b", "c"), rows)
    assert broken == {}
    np.testing.assert_allclose(MEAN.finish(state, RNG).step, one_by_one.step)
    first, second = (
        MEAN.add_many(MEAN.start(), ("a",), rows[:1])[0],
        MEAN.add_many(MEAN.start(), ("b", "c"), rows[1:])[0],
    )
    merged = MEAN.finish(MEAN.merge(first, pickle.loads(pickle.dumps(second))), RNG)
    np.testing.assert_allclose(merged.step, one_by_one.step)
    assert merged.kept == ("a", "b", "c")


def test_a_broken_row_among_many_is_named_and_left_out() -> None:
    state, broken = MEAN.add_many(MEAN.start(), ("a", "b"), np.array([[np.nan, 1.0], [2.0, 4.0]]))
    assert list(broken) == ["a"]
    combined = MEAN.finish(state, RNG)
    np.testing.assert_array_equal(combined.step, [2.0, 4.0])
    assert combined.kept == ("b",)


def test_a_merge_believes_no_weight_but_its_own() -> None:
    """A worker that says it has folded a weight of 1000 has the weight of the parties it names."""
    lying = MeanState(total=np.array([4.0, 4.0]), weight=1000.0, kept={"c": None})
    np.testing.assert_allclose(MEAN.finish(MEAN.merge(MEAN.start(), lying), RNG).step, [1.0, 1.0])


@pytest.mark.parametrize(
    ("other", "problem"),
    [
        (MeanState(total=np.zeros(2), weight=3.0, kept={"a": None}), "already replied"),
        (MeanState(total=np.zeros(2), weight=3.0, kept={"z": None}), "not registered"),
        (MeanState(total=np.zeros(3), weight=1.0, kept={"b": None}), "shape"),
        (MeanState(total=np.array([np.nan, 0.0]), weight=1.0, kept={"b": None}), "not finite"),
    ],
)
def test_a_merge_that_cannot_be_is_refused_and_changes_nothing(other: MeanState, problem: str) -> None:
    state = folded(("a", [1.0, 2.0]))
    with pytest.raises(InvalidParameter, match=problem):
        MEAN.merge(state, other)
    np.testing.assert_array_equal(MEAN.finish(state, RNG).step, [1.0, 2.0])


@pytest.mark.parametrize(
    "updates", [np.zeros((3, 2)), np.zeros(2), np.zeros((2, 2), dtype=np.float32), [[0.0, 0.0]] * 2]
)
def test_rows_of_another_form_are_refused(updates: object) -> None:
    with pytest.raises(InvalidParameter, match="updates"):
        MEAN.add_many(MEAN.start(), ("a", "b"), updates)  # type: ignore[arg-type]


def test_ten_thousand_parties_fold_without_a_quadratic_wait() -> None:
    """The state is used up as it grows; copying it for every party would take 10⁸ steps here."""
    names = [f"client-{index}" for index in range(10_000)]
    mean = WeightedMean(weights=dict.fromkeys(names, 1.0), dimension=1)
    state = before = mean.start()
    for name in names:
        state = mean.add(state, name, np.ones(1))
    assert state is before
    assert mean.finish(state, RNG).step == pytest.approx([1.0])
