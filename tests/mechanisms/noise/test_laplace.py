from __future__ import annotations

import itertools
import math

import mpmath as mp
import numpy as np
import pytest
from numpy.typing import NDArray

from mechanisms.laws import FITS, MISSES, chi_square_p, ks_p
from quietsum.errors import InvalidParameter
from quietsum.mechanisms.noise.laplace import DiscreteLaplaceNoise, Geometric, RoundedLaplaceNoise, WideLaplace
from quietsum.mechanisms.rng import RandomSource, randomness_for_tests

N = 200_000
FACTORS = ((1.0, True), (0.95, False), (1.05, False))


@pytest.fixture
def rng(monkeypatch: pytest.MonkeyPatch) -> RandomSource:
    monkeypatch.setenv("QUIETSUM_TEST_SEEDS", "1")
    return randomness_for_tests(17)


@pytest.mark.parametrize("scale", [0.4, 1.0, 31.9, 70.0])
def test_rounded_laplaces_fit_their_law_and_not_that_of_another_scale(rng: RandomSource, scale: float) -> None:
    draws = RoundedLaplaceNoise(scale=scale).sample(N, rng)
    for factor, fits in FACTORS:
        p = chi_square_p(draws, RoundedLaplaceNoise(scale=scale * factor).pmf)
        assert p > FITS if fits else p < MISSES


@pytest.mark.parametrize("scale", [0.7, 64.0, 100.0])
def test_discrete_laplaces_made_of_digits_fit_their_law_and_not_that_of_another_scale(
    rng: RandomSource, scale: float
) -> None:
    draws = WideLaplace(scale).sample(N, rng)
    for factor, fits in FACTORS:
        p = chi_square_p(draws, DiscreteLaplaceNoise(scale=scale * factor).pmf)
        assert p > FITS if fits else p < MISSES


def laplace(draws: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.where(draws < 0, np.exp(-np.abs(draws)) / 2, 1 - np.exp(-np.abs(draws)) / 2)


@pytest.mark.parametrize("scale", [1e6 / 3, 2.0**50])
@pytest.mark.parametrize("kind", [RoundedLaplaceNoise, DiscreteLaplaceNoise])
@pytest.mark.some(1)
def test_wide_noise_fits_laplaces_law_and_not_that_of_another_scale(
    rng: RandomSource, scale: float, kind: type[RoundedLaplaceNoise | DiscreteLaplaceNoise]
) -> None:
    draws = (kind(scale=scale).sample(N, rng) + rng.uniforms(N) - 0.5) / scale
    for factor, fits in FACTORS:
        p = ks_p(draws / factor, laplace)
        assert p > FITS if fits else p < MISSES


def test_pmf_of_the_rounded_law_is_the_mass_of_laplaces_around_each_integer() -> None:
    noise = RoundedLaplaceNoise(scale=1.7)
    for k in (-9, -1, 0, 1, 2, 30):
        edges = [mp.mpf(k) - mp.mpf(1) / 2, mp.mpf(k) + mp.mpf(1) / 2]
        mass = mp.quad(
            lambda x: mp.exp(-abs(x) / mp.mpf("1.7")) / mp.mpf("3.4"), [edges[0], *([0] if k == 0 else []), edges[1]]
        )
        assert noise.pmf(k) == pytest.approx(float(mass), rel=1e-12)


@pytest.mark.parametrize("scale", [0.05, 1.0, 50.0, 300.0])
def test_the_failure_covers_the_distance_of_the_digits(scale: float) -> None:
    """The exact law of R + 4096 Q by the tables' own integers, against mpmath's."""
    mp.mp.prec = 400
    law = Geometric(scale)
    masses = []
    for table in law._digits:
        cumulated = [0] + [(int(a) << 64) | int(b) for a, b in zip(table.first, table.rest, strict=True)]
        masses.append([mp.mpf(b - a) / mp.mpf(2) ** 127 for a, b in itertools.pairwise(cumulated)])
    ratio = mp.exp(-1 / mp.mpf(scale))
    distance = mp.mpf(0)
    left = 1 - ratio
    for high in masses[1] if len(masses) == 2 else [mp.mpf(1)]:
        for low in masses[0]:
            distance += abs(low * high - left)
            left *= ratio
    beyond = left / (1 - ratio)
    assert (distance + beyond) / 2 <= law.failure < 2.0**-100


def test_the_largest_draw_is_the_reach() -> None:
    class Most:
        def words(self, count: int) -> NDArray[np.uint64]:
            return np.full(count, 2**64 - 1, dtype=np.uint64)

    for scale in (3.0, 1e5, 2.0**50):
        noise = RoundedLaplaceNoise(scale=scale)
        assert noise.sample(1, Most()).tolist() == [-noise.reach]  # type: ignore[arg-type]
        assert noise.reach < 2**62


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf, "8", True, 2.0**51])
def test_scales_outside_the_domain_are_refused(value: float) -> None:
    with pytest.raises(InvalidParameter, match="scale"):
        RoundedLaplaceNoise(scale=value)
