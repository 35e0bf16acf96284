"""OpenDP as a second opinion: on what a mechanism costs, and on how its draws are spread."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from mechanisms.central.laws import exponential_law, permute_and_flip_law
from mechanisms.laws import FITS
from quietsum import ExponentialMechanism, GaussianMechanism, LaplaceMechanism
from quietsum.mechanisms import DiscreteGaussianMechanism, DiscreteLaplaceMechanism, PermuteAndFlip
from quietsum.mechanisms.rng import RandomSource, randomness_for_tests
from quietsum.privacy import ClassicalAccountant, ConcentratedAccountant

dp = pytest.importorskip("opendp.prelude")
dp.enable_features("contrib")

DRAWS = 3000


@pytest.fixture
def rng(monkeypatch: pytest.MonkeyPatch) -> RandomSource:
    monkeypatch.setenv("QUIETSUM_TEST_SEEDS", "1")
    return randomness_for_tests(2)


def pure(mechanism: Any) -> float:
    return ClassicalAccountant(rule="basic").compose(mechanism.event()).epsilon(delta=1e-12).epsilon


@pytest.mark.parametrize(("epsilon", "sensitivity"), [(0.1, 1), (1.0, 3), (2.5, 7)])
def test_laplace_noise_costs_what_opendp_says(epsilon: float, sensitivity: int) -> None:
    ours = DiscreteLaplaceMechanism(epsilon=epsilon, sensitivity=sensitivity)
    theirs = dp.m.make_laplace(dp.atom_domain(T=int), dp.absolute_distance(T=int), scale=ours.scale)
    assert pure(ours) == pytest.approx(theirs.map(sensitivity), rel=1e-9)
    real = LaplaceMechanism(epsilon=epsilon, sensitivity=sensitivity)
    theirs = dp.m.make_laplace(
        dp.atom_domain(T=float, nan=False), dp.absolute_distance(T=float), scale=real.scale, k=-40
    )
    assert pure(real) == pytest.approx(theirs.map(float(sensitivity)), rel=1e-3)


@pytest.mark.parametrize(("sigma", "sensitivity"), [(2.0, 1), (30.0, 4)])
def test_gaussian_noise_costs_what_opendp_says(sigma: float, sensitivity: int) -> None:
    theirs = dp.m.make_gaussian(dp.atom_domain(T=int), dp.absolute_distance(T=int), scale=sigma)
    ours = DiscreteGaussianMechanism(sigma=sigma, sensitivity=sensitivity)
    assert ConcentratedAccountant().compose(ours.event()).rho == pytest.approx(theirs.map(sensitivity), rel=1e-9)
    real = GaussianMechanism(noise_multiplier=sigma / sensitivity, sensitivity=sensitivity)
    assert ConcentratedAccountant().compose(real.event()).rho == pytest.approx(theirs.map(sensitivity), rel=1e-9)


def test_choices_cost_what_opendp_says() -> None:
    space = dp.vector_domain(dp.atom_domain(T=int)), dp.linf_distance(T=int)
    flipped = dp.m.make_noisy_max(*space, dp.max_divergence(), scale=2.0)
    assert flipped.map(1) == pytest.approx(pure(PermuteAndFlip(epsilon=1, sensitivity=1)))
    rising = dp.linf_distance(T=int, monotonic=True)
    flipped = dp.m.make_noisy_max(space[0], rising, dp.max_divergence(), scale=2.0)
    assert flipped.map(1) == pytest.approx(pure(PermuteAndFlip(epsilon=0.5, sensitivity=1, monotone=True)))


def same(one: Any, other: Any) -> float:
    from scipy import stats

    return float(stats.ks_2samp(one, other).pvalue)


def test_draws_are_spread_as_opendps_are(rng: RandomSource) -> None:
    """OpenDP's draws cannot be seeded, so the threshold leaves one failure in a million runs."""
    laplace = dp.m.make_laplace(dp.atom_domain(T=int), dp.absolute_distance(T=int), scale=20.0)
    ours = DiscreteLaplaceMechanism(epsilon=0.05, sensitivity=1).release(np.zeros(DRAWS, dtype=np.int64), rng)
    assert same(ours, [laplace(0) for _ in range(DRAWS)]) > FITS * 1e-3
    assert same(ours * 2, [laplace(0) for _ in range(DRAWS)]) < 1e-9
    gaussian = dp.m.make_gaussian(dp.atom_domain(T=int), dp.absolute_distance(T=int), scale=20.0)
    normal = DiscreteGaussianMechanism(sigma=20, dimension=DRAWS, sensitivity=1).release(
        np.zeros(DRAWS, dtype=np.int64), rng
    )
    assert same(normal, [gaussian(0) for _ in range(DRAWS)]) > FITS * 1e-3


@pytest.mark.parametrize("kind", [ExponentialMechanism, PermuteAndFlip])
def test_opendps_choices_have_the_laws_that_ours_are_held_to(kind: Any) -> None:
    """The laws of test_selection.py, tried on OpenDP: exponential noise is permute-and-flip, Gumbel's the other."""
    from scipy import stats

    scores = [0, 1, 2, 3, 5]
    space = dp.vector_domain(dp.atom_domain(T=int)), dp.linf_distance(T=int)
    measure = dp.max_divergence() if kind is PermuteAndFlip else dp.zero_concentrated_divergence()
    theirs = dp.m.make_noisy_max(*space, measure, scale=2.0)
    counts = np.bincount([theirs(scores) for _ in range(DRAWS)], minlength=len(scores))
    laws = {ExponentialMechanism: exponential_law, PermuteAndFlip: permute_and_flip_law}
    law = laws[kind](np.array(scores, dtype=np.float64), 0.5)
    assert math.isclose(law.sum(), 1)
    assert stats.chisquare(counts, law * DRAWS).pvalue > FITS * 1e-3
