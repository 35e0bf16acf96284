"""The p-values are exact or conservative: against scipy.stats, against mpmath, and by their own distribution."""

from __future__ import annotations

import math

import mpmath as mp
import numpy as np
import pytest
from scipy import stats

from quietsum.mechanisms.rng import randomness_for_tests
from quietsum.selfcheck import Law
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
    cut = np.quantile(noise, 0.9)
    assert np.mean(noise + 1 <= cut) == pytest.approx(best_error(Law.GAUSSIAN, 0.8, 0.1), abs=5e-3)
    double = np.random.default_rng(7).laplace(0, 0.8, 400_000)
    for cut in (-1.0, 0.2, 0.5, 2.0):
        wrong, missed = float(np.mean(double > cut)), float(np.mean(double + 1 <= cut))
        assert missed >= best_error(Law.LAPLACE, 0.8, wrong) - 5e-3
    assert best_error(Law.LAPLACE, 0.001, 0.5) < 1e-300


def test_five_statistical_tests_stay_below_one_in_a_million() -> None:
    assert 5 * FALSE_ALARM <= 1e-6
