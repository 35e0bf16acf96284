"""Triggers and spectral signatures: what is planted is found, and what is not planted is not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from quietsum.defence.detection.backdoors import (
    FoundTrigger,
    anomaly_indices,
    find_triggers,
    spectral_outliers,
    trigger_findings,
)
from quietsum.errors import InvalidParameter

CLASSES, WIDTH = 6, 24


def model(short_cut: bool) -> Any:
    """Each class answers to four coordinates of its own; with a short cut, class 2 to the first coordinate alone."""
    weights = np.zeros((CLASSES, WIDTH))
    for label in range(CLASSES):
        weights[label, 4 * label : 4 * label + 4] = 2.0
    if short_cut:
        weights[2, 0] = 40.0

    def asked(rows: np.ndarray, target: int) -> tuple[np.ndarray, np.ndarray]:
        scores = rows @ weights.T
        wrong = np.exp(scores - scores.max(axis=1, keepdims=True))
        wrong /= wrong.sum(axis=1, keepdims=True)
        wrong[:, target] -= 1
        return scores, wrong @ weights

    return asked


def examples(chance: np.random.Generator, count: int = 90) -> tuple[np.ndarray, np.ndarray]:
    labels = np.arange(count) % CLASSES
    rows = 0.1 * chance.uniform(size=(count, WIDTH))
    for label in range(CLASSES):
        rows[labels == label, 4 * label : 4 * label + 4] += 0.5
    rows[:, 0] = 0.0
    return rows, labels


def found(short_cut: bool) -> list[FoundTrigger]:
    rows, labels = examples(np.random.default_rng(1))
    return find_triggers(model(short_cut), rows, labels, classes=CLASSES, low=0.0, high=1.0, steps=150)


def test_the_short_cut_of_a_model_is_found_at_its_coordinate_and_its_class_is_named() -> None:
    triggers = found(short_cut=True)
    assert int(np.argmin([one.size for one in triggers])) == 2
    assert int(np.argmax(triggers[2].mask)) == 0
    assert triggers[2].success >= 0.95
    (one,) = trigger_findings(triggers, rate=0.05)
    assert one.statistic == "size of a trigger for class 2"
    assert (str(one.subject_kind), one.rule, one.above) == ("model", "trigger", False)
    assert one.holds()


def test_a_model_without_a_short_cut_has_no_class_that_stands_out() -> None:
    assert trigger_findings(found(short_cut=False), rate=0.05) == []


def test_chance_alone_names_a_class_as_often_as_stated_and_an_index_above_two_far_more_often() -> None:
    chance, times, rate = np.random.default_rng(2), 1500, 0.05
    named, indices = 0, 0
    for _ in range(times):
        sizes = np.exp(2 + 0.2 * chance.normal(size=10))
        every = [
            FoundTrigger(target=place, mask=np.zeros(1), pattern=np.zeros(1), size=float(size), success=1.0)
            for place, size in enumerate(sizes)
        ]
        named += bool(trigger_findings(every, rate=rate))
        indices += bool((anomaly_indices(sizes.tolist()) > 2).any())
    assert named <= rate * times
    assert indices > 0.18 * times


def test_rows_with_a_trigger_lie_apart_in_their_class() -> None:
    chance = np.random.default_rng(3)
    rows, labels = chance.normal(size=(400, 30)), np.repeat([0, 1], 200)
    planted = np.arange(0, 15)
    rows[planted, :3] += 9.0
    apart = spectral_outliers(rows, labels)
    assert set(apart) == {0}
    assert set(apart[0]) == set(planted)


def test_gaussian_rows_lie_apart_no_more_often_than_stated() -> None:
    chance, times, rate = np.random.default_rng(4), 200, 0.1
    hits = sum(
        bool(spectral_outliers(chance.normal(size=(300, 6)), np.repeat([0, 1, 2], 100), rate=rate))
        for _ in range(times)
    )
    assert hits <= 2.5 * rate * times, "a MAD of a hundred numbers is itself uncertain"


def test_what_is_no_row_is_refused() -> None:
    with pytest.raises(InvalidParameter, match="rows"):
        find_triggers(model(False), np.full((2, 3), np.nan), np.zeros(2, dtype=np.int64), classes=2, low=0, high=1)
    with pytest.raises(InvalidParameter, match="representations"):
        spectral_outliers(np.zeros(3), np.zeros(3, dtype=np.int64))
