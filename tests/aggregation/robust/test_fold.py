"""A robust rule in a round: the same matrix whatever the order, and no step beyond what the rule was stated for."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from quietsum.aggregation.robust import RobustFold, find_rule
from quietsum.errors import InvalidParameter, TooFewParties
from quietsum.mechanisms.rng import system_randomness

NAMES = ("a", "b", "c", "d", "e")


def fold_of(**fields: object) -> RobustFold:
    values = {"rule": find_rule("median"), "registered": NAMES, "attackers": 2, "dimension": 3, **fields}
    return RobustFold(**values)  # type: ignore[arg-type]


def test_order_and_parts_of_arrival_change_nothing() -> None:
    fold, rng = fold_of(), np.random.default_rng(1)
    rows = dict(zip(NAMES, rng.normal(size=(5, 3)), strict=True))
    whole, broken = fold.add_many(fold.start(), NAMES, np.stack(list(rows.values())))
    one, other = fold.start(), fold.start()
    for name in ("e", "b"):
        one = fold.add(one, name, rows[name])
    for name in ("d", "a", "c"):
        other = fold.add(other, name, rows[name])
    merged = fold.finish(fold.merge(one, other), system_randomness())
    np.testing.assert_array_equal(merged.step, fold.finish(whole, system_randomness()).step)
    assert broken == {} and merged.kept == NAMES and merged.rejected == {}


def test_too_few_updates_for_the_stated_attackers_have_no_step() -> None:
    fold = fold_of()
    state, _ = fold.add_many(fold.start(), NAMES[:4], np.zeros((4, 3)))
    with pytest.raises(TooFewParties, match="4 updates arrived, and rule = 'median' needs 5 to withstand 2"):
        fold.finish(state, system_randomness())


def test_what_no_honest_party_sends_does_not_reach_the_rule() -> None:
    fold = fold_of(limits=dict.fromkeys(NAMES, 10.0))
    rows = np.array([[1.0, 0, 0], [np.nan, 0, 0], [100.0, 0, 0], [1.7e308, 1.7e308, 0]])
    state, broken = fold.add_many(fold.start(), NAMES[:4], rows)
    assert list(state.kept) == ["a"]
    assert "not finite" in broken["b"] and "at most 10" in broken["c"] and "at most 10" in broken["d"]
    with pytest.raises(InvalidParameter, match="has already replied"):
        fold.add(state, "a", rows[0])
    with pytest.raises(InvalidParameter, match="is not registered"):
        fold.add(state, "stranger", rows[0])


def test_whoever_folds_elsewhere_gets_neither_memory_nor_trial() -> None:
    fold = pickle.loads(pickle.dumps(fold_of(memory={"last": np.ones(3)}, trial=object())))
    assert fold.memory == {} and fold.trial is None and fold.registered == NAMES


def test_whoever_sends_what_no_honest_party_sends_ends_no_round() -> None:
    """He was one of the attackers, so fewer are left; whoever is merely missing is not counted off."""
    fold = fold_of(limits=dict.fromkeys(NAMES, 10.0))
    rows = np.array([[np.nan, 0, 0], [100.0, 0, 0], [1.0, 0, 0], [2.0, 0, 0], [3.0, 0, 0]])
    state, broken = fold.add_many(fold.start(), NAMES, rows)
    assert set(broken) == {"a", "b"} and fold.finish(state, system_randomness()).step[0] == 2.0
    one, other = fold.start(), fold.start()
    for name in ("a", "b"):
        fold.spoil(one, name)
    for name, row in zip(NAMES[2:], rows[2:], strict=True):
        other = fold.add(other, name, row)
    assert fold.finish(fold.merge(other, one), system_randomness()).step[0] == 2.0
    with pytest.raises(TooFewParties, match="3 updates arrived"):
        missing, _ = fold.add_many(fold.start(), NAMES[2:], rows[2:])
        fold.finish(missing, system_randomness())
    with pytest.raises(InvalidParameter, match="is not registered"):
        fold.spoil(one, "stranger")
