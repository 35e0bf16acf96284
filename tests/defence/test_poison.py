"""Attacks on rows."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, strategies as st

from quietsum.defence import Trigger, flip_labels, plant_backdoor
from quietsum.errors import InvalidParameter
from quietsum.mechanisms.rng import randomness_for_tests


@pytest.fixture(scope="module", autouse=True)
def seeds_are_allowed() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QUIETSUM_TEST_SEEDS", "1")
        yield


@pytest.mark.parametrize("kind", [np.int64, np.float64])
def test_labels_are_turned_round_or_moved_from_one_class_to_another(kind: type) -> None:
    labels: np.ndarray = np.array([0, 1, 2, 2], dtype=kind)
    cases: tuple[tuple[dict[str, int], list[int]], ...] = (
        ({}, [2, 1, 0, 0]),
        ({"source": 2}, [0, 1, 0, 0]),
        ({"source": 0, "target": 1}, [1, 1, 2, 2]),
        ({"target": 1}, [1, 1, 1, 1]),
    )
    for options, expected in cases:
        flipped = flip_labels(labels, classes=3, **options)
        assert flipped.tolist() == expected
        assert flipped.dtype == labels.dtype
    assert labels.tolist() == [0, 1, 2, 2]


def test_a_class_that_there_is_not_is_refused() -> None:
    with pytest.raises(InvalidParameter, match="target"):
        flip_labels(np.array([0, 1]), classes=2, target=2)


def test_a_trigger_takes_the_largest_number_of_each_example_where_no_value_is_stated() -> None:
    images = np.array([[[0.0, 0.0], [0.0, 3.0]], [[0.0, 7.0], [0.0, 0.0]]])
    assert Trigger(places=(0,)).stamp(images).tolist() == [[[3, 0], [0, 3]], [[7, 7], [0, 0]]]
    assert images[0, 0, 0] == 0
    with pytest.raises(InvalidParameter, match="outside"):
        Trigger(places=(4,)).stamp(images)


@given(places=st.integers(1, 9), attackers=st.integers(1, 12))
def test_the_parts_of_a_distributed_trigger_are_the_whole_and_none_is_empty(places: int, attackers: int) -> None:
    trigger = Trigger(places=tuple(range(places)))
    parts = [trigger.part(number, attackers) for number in range(attackers)]
    assert all(part.places for part in parts)
    assert {place for part in parts for place in part.places} == set(range(places))


def test_a_backdoor_is_in_the_stated_share_of_rows_and_nowhere_else() -> None:
    features, labels = np.zeros((4000, 5)), np.ones(4000, dtype=np.int64)
    stamped, told = plant_backdoor(
        features, labels, Trigger(places=(1, 2), value=9.0), target=0, share=0.3, rng=randomness_for_tests(0)
    )
    bearing = stamped[:, 1] == 9
    assert bearing.mean() == pytest.approx(0.3, abs=0.03)
    assert (told[bearing] == 0).all()
    assert (told[~bearing] == 1).all()
    assert (stamped[~bearing] == 0).all()
    assert (stamped[:, [0, 3, 4]] == 0).all()
