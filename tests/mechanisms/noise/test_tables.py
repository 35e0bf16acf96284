from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from fractions import Fraction

import mpmath as mp
import numpy as np
import pytest

from mechanisms.laws import FITS, MISSES, chi_square_p
from quietsum.errors import InvalidParameter
from quietsum.mechanisms.noise import discrete_gaussian, laplace, tables
from quietsum.mechanisms.noise.discrete_gaussian import DiscreteGaussianNoise
from quietsum.mechanisms.noise.laplace import DiscreteLaplaceNoise
from quietsum.mechanisms.rng import RandomSource, randomness_for_tests
from quietsum.privacy.events import DiscreteGaussian, DiscreteLaplace

N = 200_000


@pytest.fixture
def rng(monkeypatch: pytest.MonkeyPatch) -> RandomSource:
    monkeypatch.setenv("QUIETSUM_TEST_SEEDS", "1")
    return randomness_for_tests(31)


def gaussian_weight(sigma: float) -> Callable[[int], mp.mpf]:
    return lambda k: mp.exp(-(mp.mpf(k) ** 2) / (2 * mp.mpf(sigma) ** 2))


def laplace_weight(scale: float) -> Callable[[int], mp.mpf]:
    return lambda k: mp.exp(-abs(mp.mpf(k)) / mp.mpf(scale))


def normalised(weight: Callable[[int], mp.mpf], reach: int) -> Callable[[int], mp.mpf]:
    """The law with these weights by mpmath, summed as far as 400 bits can see."""
    total = weight(0) + 2 * mp.fsum(weight(k) for k in range(1, reach))
    return lambda k: weight(k) / total


@pytest.mark.parametrize("sigma", [0.4, 1.0, 8.0, 60.0])
def test_discrete_gaussians_fit_mpmaths_law_and_not_that_of_another_scale(rng: RandomSource, sigma: float) -> None:
    mp.mp.prec = 80
    draws = DiscreteGaussianNoise(sigma=sigma).sample(N, rng)
    for factor, fits in ((1.0, True), (0.95, False), (1.05, False)):
        law = normalised(gaussian_weight(sigma * factor), int(12 * sigma) + 10)
        p = chi_square_p(draws, lambda k, law=law: float(law(k)))  # type: ignore[misc]
        assert p > FITS if fits else p < MISSES


@pytest.mark.parametrize("scale", [0.4, 1.0, 9.0, 50.0])
def test_discrete_laplaces_fit_mpmaths_law_and_not_that_of_another_scale(rng: RandomSource, scale: float) -> None:
    mp.mp.prec = 80
    draws = DiscreteLaplaceNoise(scale=scale).sample(N, rng)
    for factor, fits in ((1.0, True), (0.95, False), (1.05, False)):
        law = normalised(laplace_weight(scale * factor), int(60 * scale) + 10)
        p = chi_square_p(draws, lambda k, law=law: float(law(k)))  # type: ignore[misc]
        assert p > FITS if fits else p < MISSES


@pytest.mark.parametrize("sigma", [1000.0, 2.0**16])
def test_large_tables_fit_too(rng: RandomSource, sigma: float) -> None:
    """At this size the law is the rounded normal's to within float accuracy."""
    from scipy import stats

    draws = DiscreteGaussianNoise(sigma=sigma).sample(N, rng) / sigma
    assert stats.kstest(draws + rng.uniforms(N) / sigma - 0.5 / sigma, "norm").pvalue > FITS
    assert stats.kstest(draws * 1.05, "norm").pvalue < MISSES
    assert stats.kstest(draws * 0.95, "norm").pvalue < MISSES


def table_distance(table: tables.WeightTable, law: Callable[[int], mp.mpf]) -> mp.mpf:
    """The exact total variation distance between a table and a law."""
    cumulated = [0] + [(int(a) << 64) | int(b) for a, b in zip(table.first, table.rest, strict=True)]
    assert cumulated[-1] == 1 << 127
    mine = [mp.mpf(b - a) / mp.mpf(2) ** 127 for a, b in itertools.pairwise(cumulated)]
    theirs = [law(k) * (2 if k else 1) for k in range(len(mine))]
    return (mp.fsum(abs(a - b) for a, b in zip(mine, theirs, strict=True)) + 1 - mp.fsum(theirs)) / 2


@pytest.mark.parametrize("sigma", [0.1, 0.7, 1.0, 8.0, 100.0])
@pytest.mark.some(1)
def test_the_failure_covers_the_distance_of_a_gaussian_table(sigma: float) -> None:
    mp.mp.prec = 400
    table, law = discrete_gaussian._gaussian_table(sigma), normalised(gaussian_weight(sigma), int(24 * sigma) + 24)
    failure = DiscreteGaussianNoise(sigma=sigma).failure
    assert table_distance(table, law) <= failure < 2.0**-115

    def another(k: int) -> mp.mpf:  # one part in 2^100 moved from zero
        return law(k) - mp.mpf(2) ** -100 if k == 0 else law(k)

    assert table_distance(table, another) > failure


@pytest.mark.parametrize("scale", [0.05, 0.7, 1.0, 8.0, 30.0])
def test_the_failure_covers_the_distance_of_a_laplace_table(scale: float) -> None:
    mp.mp.prec = 400
    distance = table_distance(laplace._laplace_table(scale), normalised(laplace_weight(scale), int(280 * scale) + 24))
    assert distance <= DiscreteLaplaceNoise(scale=scale).failure < 2.0**-110


def test_weights_stay_within_their_error_bound() -> None:
    mp.mp.prec = 400
    sigma = 300.0
    weights = tables.falling_weights(tables.exponential(1 / (2 * Fraction(sigma) ** 2)), (
        tables.exponential(1 / Fraction(sigma) ** 2)))  # fmt: skip
    ideal = gaussian_weight(sigma)
    for k in range(0, len(weights), 37):
        assert abs(weights[k] - ideal(k) * mp.mpf(2) ** tables.BITS) <= 2 * (k + 1) ** 2


@pytest.mark.parametrize("exponent", ["0", "1/7", "1", "1234/1000", "50", "399", "1/100000000000000000000"])
def test_exponentials_against_mpmath(exponent: str) -> None:
    mp.mp.prec = 600
    value = Fraction(exponent)
    ideal = mp.exp(-mp.mpf(value.numerator) / value.denominator) * mp.mpf(2) ** tables.BITS
    assert abs(tables.exponential(value) - ideal) <= 2


def test_pmf_is_that_of_the_law() -> None:
    mp.mp.prec = 100
    law = normalised(gaussian_weight(3.3), 60)
    noise = DiscreteGaussianNoise(sigma=3.3)
    for k in (0, 1, -1, 7, -20):
        assert noise.pmf(k) == pytest.approx(float(law(k)), rel=1e-13)
    assert DiscreteLaplaceNoise(scale=2.0).pmf(-3) == pytest.approx(math.tanh(0.25) * math.exp(-1.5), rel=1e-13)
    assert DiscreteGaussianNoise(sigma=1e-300).pmf(1) == 0.0


class Told:
    """A random source that says what it is told."""

    def __init__(self, *answers: list[int]) -> None:
        self.answers = list(answers)

    def words(self, count: int) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
        answer = self.answers.pop(0)
        assert len(answer) == count
        return np.array(answer, dtype=np.uint64)


def test_a_tie_with_an_entry_is_resolved_by_further_bits() -> None:
    noise = DiscreteGaussianNoise(sigma=2.0)
    table = discrete_gaussian._gaussian_table(2.0)
    word, rest = int(table.first[3]) << 1, int(table.rest[3])
    assert noise.sample(1, Told([word], [rest - 1])).tolist() == [3]  # type: ignore[arg-type]
    assert noise.sample(1, Told([word], [rest])).tolist() == [4]  # type: ignore[arg-type]
    assert noise.sample(1, Told([word | 1], [rest])).tolist() == [-4]  # type: ignore[arg-type]
    assert noise.sample(1, Told([word + 2])).tolist() == [4]  # type: ignore[arg-type]
    assert noise.sample(1, Told([word - 2])).tolist() == [3]  # type: ignore[arg-type]


def test_the_last_bits_lead_to_the_last_entry() -> None:
    table = discrete_gaussian._gaussian_table(2.0)
    last = table.first.size - 1
    drawn = DiscreteGaussianNoise(sigma=2.0).sample(1, Told([2**64 - 2], [2**64 - 1]))  # type: ignore[arg-type]
    assert drawn.tolist() == [last]


def test_guide_and_bisection_agree(rng: RandomSource) -> None:
    for sigma in (1.0, 50.0, 5000.0):
        table = discrete_gaussian._gaussian_table(sigma)
        words = rng.words(20_000) >> np.uint64(1)
        guided = table.guide[words >> np.uint64(table.shift)]
        searched = table._search(words, rng)
        sure = guided >= 0
        assert np.mean(sure) > 0.5
        assert np.array_equal(guided[sure], searched[sure])


def test_events_describe_the_noise() -> None:
    assert DiscreteGaussianNoise(sigma=4.0).event(2) == DiscreteGaussian(sigma=4.0, sensitivity=2.0)
    assert DiscreteLaplaceNoise(scale=4.0).event(2) == DiscreteLaplace(scale=4.0, sensitivity=2)


def test_noise_that_hardly_moves_anything_is_still_what_it_says(rng: RandomSource) -> None:
    assert not DiscreteGaussianNoise(sigma=1e-3).sample(1000, rng).any()
    assert not DiscreteLaplaceNoise(scale=1e-3).sample((10, 10), rng).any()
    assert DiscreteLaplaceNoise(scale=1e-3).sample((), rng).shape == ()


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf, "8", True, 1e16])
def test_scales_outside_the_domain_are_refused(value: float) -> None:
    with pytest.raises(InvalidParameter, match="sigma"):
        DiscreteGaussianNoise(sigma=value)
    with pytest.raises(InvalidParameter, match="scale"):
        DiscreteLaplaceNoise(scale=value)
    with pytest.raises(InvalidParameter):
        DiscreteGaussianNoise(sigma=1.0).sample(-1, None)  # type: ignore[arg-type]
