"""Tests of detection: false alarms come as often as stated, and no test can be satisfied by a wrong threshold."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats
from scipy.special import stdtrit

from quietsum.defence.detection.drift import Cusum, height, run_length
from quietsum.defence.detection.outliers import find_opposed, outlying, too_quiet
from quietsum.errors import InvalidParameter


def agrees(hits: int, times: int, rate: float) -> bool:
    """Whether a count is what the rate says or less, within what chance does once in ten thousand."""
    return hits <= stats.binom.isf(1e-4, times, rate)


@pytest.mark.parametrize("count", [4, 5, 8, 10, 50])
def test_a_gaussian_sample_has_outliers_no_more_often_than_stated(count: int) -> None:
    chance = np.random.default_rng(count)
    times, rate = 2000, 0.05
    hits = sum(bool(outlying(chance.normal(size=count), rate=rate)) for _ in range(times))
    assert agrees(hits, times, rate)
    assert hits > 0.3 * rate * times, "and the threshold is not so far away that nothing would ever be named"


def test_the_same_control_rejects_a_threshold_that_is_a_fifth_too_near() -> None:
    chance = np.random.default_rng(1)
    times, rate = 2000, 0.05

    def careless(values: np.ndarray) -> bool:
        rest = np.sort(np.abs(values - values.mean()))
        return bool(rest[-1] > 0.8 * values.std(ddof=1) * 2.29)  # Grubbs' bound for ten at 5 % is 2.290

    hits = sum(careless(chance.normal(size=10)) for _ in range(times))
    assert not agrees(hits, times, rate)


def test_for_one_outlier_the_test_is_grubbs_one() -> None:
    values = np.array([1.0, 1.2, 0.8, 1.1, 0.9, 1.05, 0.95, 1.0, 1.15, 2.2])
    for rate in (0.05, 1e-3, 1e-6):
        count = len(values)
        bound = stdtrit(count - 2, 1 - rate / (2 * count))
        critical = (count - 1) / math.sqrt(count) * math.sqrt(bound**2 / (count - 2 + bound**2))
        grubbs = np.abs(values - values.mean()).max() / values.std(ddof=1) > critical
        assert bool(outlying(values, rate=rate, most=1)) == grubbs


def test_two_that_stand_together_do_not_hide_each_other() -> None:
    values = np.array([1.0, 1.1, 0.9, 1.05, 0.95, 1.02, 0.98, 1.0, 5.0, 5.1])
    assert {found.row for found in outlying(values, rate=1e-4)} == {8, 9}
    assert not outlying(values, rate=1e-4, most=1), "a single pass would see none of them"


@pytest.mark.parametrize("values", [[], [1.0], [1.0, 2.0, 900.0], [2.0] * 6, [1.0] * 5 + [1.0 + 1e-12]])
def test_few_or_equal_numbers_have_no_outlier(values: list[float]) -> None:
    assert outlying(np.array(values), rate=0.01) == []


def test_numbers_that_are_none_are_refused() -> None:
    with pytest.raises(InvalidParameter, match="finite"):
        outlying(np.array([1.0, math.nan, 2.0, 3.0]), rate=0.01)


def test_whoever_points_nowhere_is_opposed_as_often_as_stated() -> None:
    chance = np.random.default_rng(3)
    times, rate = 4000, 0.05
    hits = sum(bool(find_opposed(chance.normal(size=10), rate=rate)) for _ in range(times))
    assert agrees(hits, times, rate)
    assert hits > 0.7 * rate * times
    assert not agrees(sum(bool(find_opposed(chance.normal(size=10), rate=rate, deviation=0.7)) for _ in range(times)),
                      times, rate), "noise of another size is noticed by this control"  # fmt: skip


def test_noise_of_the_stated_size_is_called_quiet_as_often_as_stated_and_two_thirds_of_it_always() -> None:
    chance = np.random.default_rng(5)
    times, rate, freedoms = 4000, 0.05, np.full(10, 30.0)
    draws = chance.chisquare(30, size=(times, 10))
    hits = sum(bool(too_quiet(row, freedoms, rate=rate)) for row in draws)
    assert agrees(hits, times, rate)
    assert hits > 0.7 * rate * times
    quiet = too_quiet((2 / 3) ** 2 * chance.chisquare(400, size=10), np.full(10, 400.0), rate=1e-5)
    assert len(quiet) == 10


def test_steps_on_a_line_drift_no_more_often_than_the_run_length_says() -> None:
    chance = np.random.default_rng(6)
    course, numbers = Cusum(0.01), 8000
    values = chance.normal(size=numbers) - 0.01 * np.arange(numbers)
    hits = sum(bool(course.add(value)) for value in values.tolist())
    assert agrees(hits, numbers, 0.01)
    assert run_length(height(1e-4)) == pytest.approx(1e4)


def test_a_jump_is_a_drift_within_a_few_rounds_and_a_slowing_decay_is_none() -> None:
    chance = np.random.default_rng(7)
    course = Cusum(1e-5)
    before = -0.05 * np.arange(30) + 0.1 * chance.normal(size=30)
    assert not any(course.add(value) for value in before.tolist())
    assert any(course.add(value) for value in (1.0 + 0.1 * chance.normal(size=6)).tolist())
    course = Cusum(1e-5)
    slowing = 3 * np.exp(-np.arange(200) / 10) + 0.02 * chance.normal(size=200)
    assert not any(course.add(value) for value in slowing.tolist())
