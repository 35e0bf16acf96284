"""The p-values are exact or conservative: against scipy.stats, against mpmath, and by their own distribution."""

from __future__ import annotations

import math

import mpmath as mp
import numpy as np
import pytest
from scipy import stats

from quietsum.mechanisms.rng import RandomSource, randomness_for_tests
from quietsum.selfcheck import Law
from quietsum.selfcheck.probes.dependence import combinations_p, lags_p, magnitudes, pairs_p, persistence_p
from quietsum.selfcheck.probes.shape import classes_p, intervals_p, largest_p, repeats_p, sums_p, tails_p
from quietsum.selfcheck.statistics import (
    FALSE_ALARM,
    best_error,
    binomial_p,
    binomial_scores,
    block_p,
    clopper_pearson_upper,
    kolmogorov_p,
    noise_scores,
    normal_p,
    spread_p,
)


def test_clopper_and_pearson_agree_with_scipy_and_with_mpmath() -> None:
    for count, trials, alpha in ((0, 50, 1e-8), (3, 200, 5e-8), (150, 400, 1e-7), (399, 400, 0.05)):
        found = clopper_pearson_upper(count, trials, alpha)
        interval = stats.binomtest(count, trials, alternative="less").proportion_ci(1 - alpha)
        assert found == pytest.approx(interval.high, rel=1e-6)
        with mp.workdps(30):
            tail = mp.fsum(mp.binomial(trials, k) * mp.mpf(found) ** k * (1 - mp.mpf(found)) ** (trials - k)
                           for k in range(count + 1))  # fmt: skip
        assert float(tail) == pytest.approx(alpha, rel=1e-6)
    assert clopper_pearson_upper(5, 5, 0.01) == 1.0


def test_tail_probabilities_hold_far_below_the_threshold() -> None:
    for score in (1.0, 5.3, 7.0):
        assert normal_p(score) == pytest.approx(2 * stats.norm.sf(score), rel=1e-10)
    scores = np.full(500, 0.7)
    assert spread_p(scores)[0] == pytest.approx(stats.chi2.cdf(500 * 0.49, 500), rel=1e-8)
    assert spread_p(1.4 * scores / 0.7)[1] == pytest.approx(stats.chi2.sf(500 * 1.96, 500), rel=1e-8)
    for count in (3, 40, 90):
        exact = min(1.0, 2 * min(stats.binom.cdf(count, 1000, 0.04), stats.binom.sf(count - 1, 1000, 0.04)))
        assert binomial_p(count, 1000, 0.04) == pytest.approx(exact, rel=1e-8)


def test_certain_counts_are_no_surprise_and_impossible_ones_are() -> None:
    assert binomial_p(10, 10, 1.0) == 1.0
    assert binomial_p(0, 10, 0.0) == 1.0
    assert binomial_p(9, 10, 1.0) == 0.0
    assert binomial_p(0, 0, 0.3) == 1.0
    scores = binomial_scores(np.full(200, 7), 7, 1.0, randomness_for_tests(1))
    assert min(spread_p(scores)) > 1e-4


@pytest.mark.parametrize(("trials", "chance"), [(20, 0.05), (400, 0.3), (5, 0.5), (1000, 0.001)])
def test_scores_of_binomial_counts_are_standard_normal_however_few(trials: int, chance: float) -> None:
    counts = np.random.default_rng(1).binomial(trials, chance, 20_000)
    scores = binomial_scores(counts, trials, chance, randomness_for_tests(2))
    assert stats.kstest(scores, "norm").pvalue > 1e-3
    off = binomial_scores(counts, trials, chance * 1.2, randomness_for_tests(2))
    assert stats.kstest(off, "norm").pvalue < 1e-9  # the control: another chance is seen


@pytest.mark.parametrize("law", list(Law))
def test_scores_of_noise_are_standard_normal(law: Law) -> None:
    generator = np.random.default_rng(3)
    draws = generator.normal(0, 2, 20_000) if law is Law.GAUSSIAN else generator.laplace(0, 2, 20_000)
    assert stats.kstest(noise_scores(draws, law, 2.0), "norm").pvalue > 1e-3
    assert stats.kstest(noise_scores(draws, law, 2.3), "norm").pvalue < 1e-9
    assert np.isfinite(noise_scores(np.array([-1e9, 0.0, 1e9]), law, 1.0)).all()


def test_p_values_of_correct_draws_are_uniform_or_larger() -> None:
    """Over 2000 repetitions of small samples: P(p ≤ t) ≤ t, within five standard errors, at every t we look at."""
    generator = np.random.default_rng(4)
    found: dict[str, list[float]] = {"spread": [], "block": [], "gap": []}
    for _ in range(2000):
        scores = generator.standard_normal((7, 3))
        found["spread"].append(2 * min(spread_p(scores)))
        found["block"].append(block_p(scores[:3], scores[3:6]))
        found["gap"].append(kolmogorov_p(scores)[1])
    for name, values in found.items():
        for level in (0.5, 0.1, 0.02):
            share = np.mean(np.array(values) <= level)
            assert share <= level + 5 * math.sqrt(level / 2000), name


def test_the_gap_bound_is_above_the_exact_p_value() -> None:
    scores = np.random.default_rng(5).standard_normal(300) * 1.2
    gap, bound = kolmogorov_p(scores)
    exact = stats.kstest(scores, "norm")
    assert gap == pytest.approx(exact.statistic, abs=1e-12)
    assert bound >= exact.pvalue * (1 - 1e-9)


def test_the_best_attacker_on_a_gaussian_and_on_laplace_noise() -> None:
    """Two oracles: the closed form by scipy, and the likelihood-ratio test on noise."""
    assert best_error(Law.GAUSSIAN, 0.8, 0.1) == pytest.approx(stats.norm.cdf(stats.norm.ppf(0.9) - 1.25), rel=1e-12)
    noise = np.random.default_rng(6).normal(0, 0.8, 400_000)
    quantile = np.quantile(noise, 0.9)
    assert np.mean(noise + 1 <= quantile) == pytest.approx(best_error(Law.GAUSSIAN, 0.8, 0.1), abs=5e-3)
    double = np.random.default_rng(7).laplace(0, 0.8, 400_000)
    for cut in (-1.0, 0.2, 0.5, 2.0):
        wrong, missed = float(np.mean(double > cut)), float(np.mean(double + 1 <= cut))
        assert missed >= best_error(Law.LAPLACE, 0.8, wrong) - 5e-3
    assert best_error(Law.LAPLACE, 0.001, 0.5) < 1e-300


def test_five_statistical_tests_stay_below_one_in_a_million() -> None:
    assert 5 * FALSE_ALARM <= 1e-6


# --------------------------------------------------------------------------- shape and dependence of a stream


def p_values(scores: np.ndarray, rng: RandomSource) -> dict[str, float]:
    """All statistics of a matrix of scores, releases by coordinates."""
    squares = np.square(scores)
    by_place, by_release, half = squares.sum(axis=0), squares.sum(axis=1), len(scores) // 2
    return {
        "tails": tails_p(scores, 0.0),
        "largest": largest_p(scores, 0.0),
        "repeats": repeats_p(np.round(scores, 3), 1e-3),
        "near repeats": repeats_p(scores, 2e-4, 1e-4),
        "stretches": intervals_p(by_place, len(scores), 0.0),
        "classes": classes_p(by_release, scores.shape[1], 0.0),
        "sums": sums_p(scores, 0.0),
        "lags": lags_p(scores.ravel(), rng),
        "magnitudes": lags_p(magnitudes(scores).ravel(), rng),
        "pairs": pairs_p(scores),
        "combinations": combinations_p(scores, 0.0),
        "persistence": persistence_p(
            squares[:half].sum(axis=0), squares[half:].sum(axis=0), (half, len(scores) - half), 0.0
        ),
    }


def test_p_values_of_shape_and_dependence_are_uniform_or_larger(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over 3000 repetitions P(p ≤ t) ≤ t, within five standard errors, down to t = 0.003."""
    monkeypatch.setenv("QUIETSUM_TEST_SEEDS", "1")
    generator, rng = np.random.default_rng(8), randomness_for_tests(8)
    found: dict[str, list[float]] = {}
    for _ in range(3000):
        for name, value in p_values(generator.standard_normal((24, 5)), rng).items():
            found.setdefault(name, []).append(value)
    for name, values in found.items():
        for level in (0.5, 0.1, 0.02, 0.003):
            share = np.mean(np.array(values) <= level)
            assert share <= level + 5 * math.sqrt(level / 3000), (name, level, share)


def test_each_statistic_sees_what_it_is_for_in_few_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: the same p-values are far below the limit of the self-check where something is wrong."""
    monkeypatch.setenv("QUIETSUM_TEST_SEEDS", "1")
    rng, normal = randomness_for_tests(9), np.random.default_rng(9).standard_normal((2000, 20))
    wrong = {
        "tails": np.where(np.random.default_rng(1).random(normal.shape) < 0.5, 0.75, 1.2) * normal,
        "largest": np.where(np.abs(normal) > 3, 0.5, normal),
        "stretches": normal * np.where(np.arange(20) >= 17, 0.85, 1.0),
        "classes": normal * np.where(np.arange(2000) % 3, 1.0, 0.9)[:, None],
        "sums": 0.95 * normal + 0.31 * normal[:, :1],
        "lags": np.concatenate([normal[:1000], -normal[:1000]]),
        "magnitudes": np.concatenate([normal[:1000], np.abs(normal[:1000])]),
        "pairs": np.concatenate([normal[:, :19], 0.5 * normal[:, :1] + 0.87 * normal[:, 19:]], axis=1),
        "combinations": normal - normal.mean(axis=1, keepdims=True),
        "persistence": normal * np.where(np.random.default_rng(2).random(20) < 0.5, 0.9, 1.09),
    }
    for name, scores in wrong.items():
        assert p_values(scores, rng)[name] < FALSE_ALARM / 40, name


def test_equal_values_on_an_honest_grid_are_expected_and_on_a_coarser_one_are_not() -> None:
    values = np.random.default_rng(10).standard_normal(60_000)
    fine, coarse = np.round(values * 2**24) / 2**24, np.round(values * 2**17) / 2**17
    assert repeats_p(values, 1e-15) == 1.0
    assert repeats_p(fine, 1e-15) < 1e-9 < 1e-3 < repeats_p(fine, 2.0**-24)
    assert repeats_p(coarse, 2.0**-24) < 1e-9
    shaken = coarse + 1e-9 * np.random.default_rng(11).standard_normal(coarse.size)
    assert repeats_p(values, 2e-8, 1e-8) > 1e-3
    assert repeats_p(shaken, 1e-15) == 1.0
    assert repeats_p(shaken, 2e-8, 1e-8) < 1e-9
