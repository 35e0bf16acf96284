"""Wide integer noise: the laws to forty digits, floats only where they can decide, and draws that fit."""

from __future__ import annotations

import decimal
import itertools
import math
from decimal import Decimal
from typing import Any

import mpmath as mp
import numpy as np
import pytest
from scipy import special, stats

from mechanisms.laws import FITS, MISSES, chi_square_p
from quietsum.errors import InvalidParameter
from quietsum.mechanisms.noise import rejection, skellam
from quietsum.mechanisms.noise.rejection import MARGIN, WideGaussian, WideSkellam
from quietsum.mechanisms.noise.skellam import SkellamNoise
from quietsum.mechanisms.rng import RandomSource, randomness_for_tests

N = 200_000


@pytest.fixture
def rng(monkeypatch: pytest.MonkeyPatch) -> RandomSource:
    monkeypatch.setenv("QUIETSUM_TEST_SEEDS", "1")
    return randomness_for_tests(77)


def proposal(k: int, square: mp.mpf, normaliser: mp.mpf) -> mp.mpf:
    """The chance of k among rounded normals, as the samplers write it."""
    inside = mp.quad(lambda u: mp.exp(-u * u / 2 / square) * mp.cosh(k * u / square), [-0.5, 0, 0.5])
    return mp.exp(-(mp.mpf(k) ** 2) / 2 / square) / mp.sqrt(2 * mp.pi * normaliser) * inside


@pytest.mark.parametrize("variance", [4096.0, 7321.3, 20_000.0])
def test_the_skellam_ratio_is_right_to_forty_digits_and_its_float_far_within_the_margin(variance: float) -> None:
    mp.mp.dps = 110
    law = WideSkellam(variance)
    low, top = law.span
    for k in (0, 1, int(law.scale), int(5 * law.scale), int(11 * law.scale), law.reach):
        ideal = mp.besseli(k, variance, maxterms=10**6) * mp.exp(-mp.mpf(variance))
        ratio = ideal / proposal(k, mp.mpf(law.scale) ** 2, mp.mpf(variance))
        assert abs(mp.mpf(str(law.exact(k))) / ratio - 1) < mp.mpf(10) ** -40
        assert abs(float(law.log_ratio(np.array([float(k)]))[0] - mp.log(ratio))) < MARGIN / 16
        assert low <= mp.log(ratio) <= top


@pytest.mark.parametrize("sigma", [64.0, 1234.5, 1e6])
def test_the_gaussian_ratio_is_right_to_forty_digits_and_its_float_far_within_the_margin(sigma: float) -> None:
    mp.mp.dps = 110
    law = WideGaussian(sigma)
    low, top = law.span
    square = mp.mpf(sigma) ** 2
    for k in (0, 1, int(sigma), int(5 * sigma), law.reach):
        ratio = mp.exp(-(mp.mpf(k) ** 2) / 2 / square) / mp.sqrt(2 * mp.pi * square) / proposal(k, square, square)
        assert abs(mp.mpf(str(law.exact(k))) / ratio - 1) < mp.mpf(10) ** -40
        assert abs(float(law.log_ratio(np.array([float(k)]))[0] - mp.log(ratio))) < MARGIN / 16
        assert low <= mp.log(ratio) <= top


@pytest.mark.parametrize("variance", [1e6, 3.3e9, 1e13, 2.0**70])
def test_floats_and_digits_agree_at_every_width(variance: float) -> None:
    for law in (WideSkellam(variance), WideGaussian(math.sqrt(variance))):
        low, top = law.span
        for k in (0, int(2.2 * law.scale), int(9 * law.scale), law.reach):
            exact = float(law.exact(k).ln())
            assert abs(float(law.log_ratio(np.array([float(k)]))[0]) - exact) < MARGIN / 16
            assert low <= exact <= top


@pytest.mark.parametrize("variance", [4096.0, 1e6, 1e13])
def test_no_draw_lies_beyond_the_reach_and_what_does_is_in_the_failure(variance: float) -> None:
    noise = WideSkellam(variance)
    if variance < 1e5:
        tail = 2 * stats.skellam.sf(noise.reach, variance / 2, variance / 2)
        assert tail <= noise.failure
        assert noise.reach < 15 * math.sqrt(variance)
    deviation = math.sqrt(variance)
    assert math.erfc(WideGaussian(deviation).reach / deviation / math.sqrt(2)) <= WideGaussian(deviation).failure
    assert noise.failure < 2.0**-110


class Told:
    """A source whose words and proposals are told."""

    def __init__(self, *answers: list[int]) -> None:
        self.answers = list(answers)

    def words(self, count: int) -> Any:
        answer = self.answers.pop(0)
        assert len(answer) == count
        return np.array(answer, dtype=np.uint64)


def test_where_64_bits_do_not_decide_64_more_do() -> None:
    law = WideSkellam(4096.0)
    k = 300
    with decimal.localcontext() as context:
        context.prec = 60
        chance = law.exact(k) * Decimal(-law.span[1]).exp() * Decimal(1 << 128)
    first, rest = int(chance) >> 64, int(chance) & (2**64 - 1)
    proposed = np.array([k], dtype=np.int64)
    assert rejection._accept(law, proposed, Told([first], [rest - 2**20])).tolist() == [k]  # type: ignore[arg-type]
    assert rejection._accept(law, proposed, Told([first], [rest + 2**20])).tolist() == []  # type: ignore[arg-type]
    assert rejection._accept(law, proposed, Told([first - 2**40])).tolist() == [k]  # type: ignore[arg-type]
    assert rejection._accept(law, proposed, Told([first + 2**40])).tolist() == []  # type: ignore[arg-type]


def test_with_a_wide_margin_every_draw_takes_the_slow_path_to_the_same_result(rng: RandomSource) -> None:
    law = WideSkellam(4096.0)
    proposed = rng.rounded_normals(law.scale, 40)
    words = rng.words(40).tolist()
    quick = rejection._accept(law, proposed, Told(words))  # type: ignore[arg-type]
    slow = rejection._accept(law, proposed, Told(words, *[[0]] * 40), margin=2.0)  # type: ignore[arg-type]
    assert np.array_equal(quick, slow)


def test_beyond_the_reach_nothing_is_kept() -> None:
    law = WideGaussian(64.0)
    proposed = np.array([law.reach + 1, -law.reach - 1, law.reach], dtype=np.int64)
    assert rejection._accept(law, proposed, Told([0, 0, 0])).tolist() == [law.reach]  # type: ignore[arg-type]


@pytest.mark.parametrize("variance", [0.05, 1.0, 30.5, 4095.0, 4096.0, 9000.0])
def test_skellam_draws_fit_their_law_and_not_that_of_another_variance(rng: RandomSource, variance: float) -> None:
    draws = SkellamNoise(variance=variance).sample(N, rng)
    for factor, fits in ((1.0, True), (0.9, False), (1.1, False)):
        p = chi_square_p(draws, lambda k, m=variance * factor: float(special.ive(abs(k), m)))  # type: ignore[misc]
        assert p > FITS if fits else p < MISSES


@pytest.mark.parametrize("variance", [1e8, 1e13])
def test_wide_draws_fit_the_normal_that_they_have_become(rng: RandomSource, variance: float) -> None:
    deviation = math.sqrt(variance)
    for draws in (SkellamNoise(variance=variance).sample(N, rng), WideGaussian(deviation).sample(N, rng)):
        assert stats.kstest(draws / deviation, "norm").pvalue > FITS
        assert stats.kstest(draws / deviation * 1.05, "norm").pvalue < MISSES


def test_wide_discrete_gaussians_fit_their_law(rng: RandomSource) -> None:
    draws = WideGaussian(64.0).sample(N, rng)
    total = math.sqrt(2 * math.pi) * 64.0
    assert chi_square_p(draws, lambda k: math.exp(-k * k / 8192) / total) > FITS
    assert chi_square_p(draws, lambda k: math.exp(-k * k / 8192 / 0.9) / total) < MISSES


def test_proposal_times_chance_is_the_law_and_the_proposal_alone_is_not() -> None:
    law = WideSkellam(4096.0)
    k = np.arange(0.0, 450.0)
    proposed = stats.norm.sf((k - 0.5) / law.scale) - stats.norm.sf((k + 0.5) / law.scale)
    wanted = special.ive(k, 4096.0)
    kept = wanted / (proposed * np.exp(law.log_ratio(k)))
    assert np.ptp(kept) < 1e-10
    assert np.ptp(wanted / proposed) > 1e-2


@pytest.mark.parametrize("variance", [0.3, 5.0, 700.0])
def test_a_skellam_table_is_within_its_failure_of_mpmaths_law(variance: float) -> None:
    mp.mp.prec = 400
    table = skellam._table(variance)
    cumulated = [0] + [(int(a) << 64) | int(b) for a, b in zip(table.first, table.rest, strict=True)]
    mine = [mp.mpf(b - a) / mp.mpf(2) ** 127 for a, b in itertools.pairwise(cumulated)]
    theirs = [mp.besseli(k, mp.mpf(variance)) * mp.exp(-mp.mpf(variance)) * (2 if k else 1) for k in range(len(mine))]
    distance = (mp.fsum(abs(a - b) for a, b in zip(mine, theirs, strict=True)) + 1 - mp.fsum(theirs)) / 2
    assert distance <= SkellamNoise(variance=variance).failure < 2.0**-110
    assert table.reach == len(mine) - 1


@pytest.mark.parametrize("variance", [0.0, -1.0, math.nan, math.inf, "8", 1e30])
def test_variances_outside_the_domain_are_refused(variance: float) -> None:
    with pytest.raises(InvalidParameter, match="variance"):
        SkellamNoise(variance=variance)


def test_a_variance_of_almost_nothing_draws_nothing(rng: RandomSource) -> None:
    assert not SkellamNoise(variance=1e-12).sample((10, 10), rng).any()
