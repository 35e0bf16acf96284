"""Intervals over seeds: they cover what they promise, and the usual mistakes do not."""

from __future__ import annotations

import math

import numpy as np
import pytest

from quietsum.errors import InvalidParameter
from quietsum.tradeoff.intervals import difference_interval, mean_interval, ratio_interval, student_quantile

TRIES = 6000
FIVE_SIGMA = 5 * math.sqrt(0.95 * 0.05 / TRIES)  # fails by chance once in 1.7 million


def pairs(runs: int, seed: int, spread: float = 0.05) -> tuple[np.ndarray, np.ndarray]:
    """Scores of many comparisons: plain ones around 0.9, private ones around 0.8, alike within a seed."""
    made = np.random.default_rng(seed)
    common, one, two = made.normal(size=(3, TRIES, runs))
    return 0.9 + spread * (common + one), 0.8 + spread * (common + 2 * two)


@pytest.mark.parametrize("runs", [2, 3, 10])
def test_students_interval_of_a_mean_covers_it_in_95_of_100_tables(runs: int) -> None:
    plain, _ = pairs(runs, 1)
    found = [mean_interval(row.tolist()) for row in plain]
    covered = np.mean([span is not None and span[0] <= 0.9 <= span[1] for span in found])
    assert abs(covered - 0.95) < FIVE_SIGMA


@pytest.mark.parametrize("runs", [3, 10])
def test_a_paired_difference_is_covered_in_95_of_100_tables(runs: int) -> None:
    plain, private = pairs(runs, 2)
    found = [difference_interval(b.tolist(), a.tolist()) for a, b in zip(plain, private, strict=True)]
    assert abs(np.mean([span is not None and span[0] <= -0.1 <= span[1] for span in found]) - 0.95) < FIVE_SIGMA


@pytest.mark.parametrize(("runs", "spread"), [(3, 0.01), (3, 0.05), (5, 0.05), (10, 0.1)])
def test_fiellers_interval_covers_the_ratio_of_means_in_95_of_100_tables(runs: int, spread: float) -> None:
    """Where no bounded interval exists the confidence set is unbounded; with x̄ this far from 0 it nearly always is."""
    plain, private = pairs(runs, 3, spread)
    found = [ratio_interval(b.tolist(), a.tolist()) for a, b in zip(plain, private, strict=True)]
    assert sum(span is None for span in found) < TRIES / 100
    covered = np.mean([span is None or span[0] <= 0.8 / 0.9 <= span[1] for span in found])
    assert abs(covered - 0.95) < FIVE_SIGMA


def test_two_standard_errors_of_three_runs_would_not_cover() -> None:
    """The negative control: 1.96 in place of Student's 4.30 covers four in five."""
    plain, _ = pairs(3, 4)
    half = 1.96 * plain.std(axis=1, ddof=1) / math.sqrt(3)
    assert np.mean(np.abs(plain.mean(axis=1) - 0.9) <= half) < 0.85


def test_fieller_agrees_with_inverting_the_test_ratio_by_ratio() -> None:
    """Another derivation: ρ is inside exactly when Student does not reject that y − ρx has mean zero."""
    plain, private = (part[0] for part in pairs(5, 5))
    low, high = ratio_interval(private.tolist(), plain.tolist()) or (0, 0)
    for ratio, inside in [(low - 1e-6, False), (low + 1e-6, True), (high - 1e-6, True), (high + 1e-6, False)]:
        gaps = private - ratio * plain
        statistic = abs(gaps.mean()) / (gaps.std(ddof=1) / math.sqrt(5))
        assert bool(statistic <= student_quantile(5)) is inside


def test_students_quantiles_are_those_of_the_tables() -> None:
    assert [round(student_quantile(n), 3) for n in (2, 3, 4, 11)] == [12.706, 4.303, 3.182, 2.228]
    assert student_quantile(3, 0.9) < student_quantile(3, 0.99)


def test_a_single_run_has_no_interval_and_equal_runs_have_a_point() -> None:
    assert mean_interval([0.9]) is None and ratio_interval([0.9], [0.8]) is None
    assert mean_interval([0.9, 0.9]) == pytest.approx((0.9, 0.9))
    assert ratio_interval([0.9, 0.9], [0.9, 0.9]) == pytest.approx((1.0, 1.0))


def test_a_plain_score_that_may_be_zero_gives_no_bounded_ratio() -> None:
    assert ratio_interval([0.1, 0.2, 0.3], [-0.5, 0.4, 0.2]) is None


@pytest.mark.parametrize("values", [[], [float("nan")], [1.0, float("inf")]])
def test_values_that_are_no_scores_are_refused(values: list[float]) -> None:
    with pytest.raises(InvalidParameter, match="no finite number"):
        mean_interval(values)


def test_values_that_do_not_pair_are_refused() -> None:
    with pytest.raises(InvalidParameter, match="do not pair"):
        difference_interval([1.0, 2.0], [1.0])
