"""Confusion on a public hold-out: which class is taken for which, and by whose update."""

from __future__ import annotations

import numpy as np
import pytest

from quietsum.defence.detection import Detector
from quietsum.defence.detection.confusion import confusing, confusion_matrix, find_confusions
from quietsum.errors import InvalidParameter


def counts(chance: np.random.Generator, right: list[float], rows: int = 100) -> np.ndarray:
    """A confusion matrix in which class c is recognised with chance ``right[c]``, else taken for any other."""
    classes = len(right)
    found = np.zeros((classes, classes), dtype=np.int64)
    for label, share in enumerate(right):
        chances = np.full(classes, (1 - share) / (classes - 1))
        chances[label] = share
        found[label] = chance.multinomial(rows, chances)
    return found


def test_a_class_that_is_suddenly_taken_for_another_is_named_with_both() -> None:
    chance = np.random.default_rng(1)
    before, after = counts(chance, [0.9] * 5), counts(chance, [0.9] * 5)
    after[3] = [0, 0, 0, 50, 50]
    (one,) = find_confusions(before, after, rate=1e-4, round=9)
    assert one.statistic == "share of class 3 taken for class 4"
    assert (one.value, str(one.subject_kind), one.above, one.holds()) == (0.5, "model", True, True)


def test_models_that_are_equally_good_are_confused_no_more_often_than_stated() -> None:
    chance, times, rate = np.random.default_rng(2), 1000, 0.2
    hits = sum(
        bool(find_confusions(counts(chance, [0.88] * 3, 60), counts(chance, [0.88] * 3, 60), rate=rate, round=1))
        for _ in range(times)
    )
    assert 0 < hits <= 1.2 * rate * times


def test_a_model_that_did_not_know_its_classes_yet_is_not_confused() -> None:
    chance = np.random.default_rng(5)
    before, after = counts(chance, [0.9, 0.9, 0.3]), counts(chance, [0.9, 0.1, 0.9])
    assert find_confusions(before, after, rate=1e-3, round=1) == []


def test_a_run_tells_of_a_confusion_that_lasts_and_of_none_that_mends_itself() -> None:
    chance = np.random.default_rng(6)
    detector = Detector(["a", "b"], dimension=1)
    good = counts(chance, [0.95] * 3)
    bad = good.copy()
    bad[1] = [70, 30, 0]
    course = [good, bad, good, bad, bad, bad]
    assert [len(detector.answers(number, each)) for number, each in enumerate(course, 1)] == [0, 0, 0, 0, 0, 1]


def test_a_party_whose_update_makes_a_class_vanish_is_named_and_one_that_is_as_bad_as_the_others_is_not() -> None:
    chance = np.random.default_rng(3)
    parties = {f"site-{place}": counts(chance, [0.8, 0.6, 0.9]) for place in range(10)}
    assert confusing(parties, rate=1e-3, round=2) == []
    parties["site-4"][1] = [95, 2, 3]
    (one,) = confusing(parties, rate=1e-3, round=2)
    assert (one.subject, one.statistic, str(one.subject_kind)) == ("site-4", "recall of class 1", "party")


def test_a_class_without_rows_says_nothing() -> None:
    empty = np.array([[0, 0], [5, 95]])
    assert find_confusions(empty, empty, rate=0.01, round=1) == []
    assert confusing({str(place): empty for place in range(6)}, rate=0.01, round=1) == []


def test_what_is_no_matrix_of_counts_is_refused() -> None:
    for wrong in (np.ones((2, 3)), np.array([[1, -1], [0, 1]]), np.full((2, 2), np.nan)):
        with pytest.raises(InvalidParameter, match="confusion"):
            find_confusions(wrong, wrong, rate=0.01, round=1)


def test_counting_equals_a_naive_count() -> None:
    chance = np.random.default_rng(4)
    labels, answers = chance.integers(0, 4, 200), chance.integers(0, 4, 200)
    naive = [[int(((labels == one) & (answers == other)).sum()) for other in range(4)] for one in range(4)]
    assert confusion_matrix(labels, answers, 4).tolist() == naive
