"""Closed forms with their rounding errors: the truth in 60 digits lies between the bounds, and they are tight."""

from __future__ import annotations

import math
from typing import Any

import mpmath as mp
import pytest
from hypothesis import given, strategies as st

from quietsum.privacy.exact.closed_forms import GaussianCurve, SingleStepCurve, exponentials, joint_mu
from quietsum.privacy.pairs import MixturePair


def gaussian_delta(mu: Any, epsilon: Any) -> Any:
    return mp.ncdf(mu / 2 - epsilon / mu) - mp.exp(epsilon) * mp.ncdf(-mu / 2 - epsilon / mu)


def single_delta(sigma: float, rate: float, epsilon: float) -> Any:
    """The larger of both directions (Zhu, Dong, Wang 2022, Theorem 11)."""
    q, e, mu = mp.mpf(rate), mp.mpf(epsilon), 1 / mp.mpf(sigma)
    inside, room = 1 + mp.expm1(e) / q, 1 - mp.exp(e) * (1 - q)
    remove = q * gaussian_delta(mu, mp.log(inside)) if inside > 0 else -mp.expm1(e)
    add = room * gaussian_delta(mu, mp.log(q * mp.exp(e) / room)) if room > 0 else mp.mpf(0)
    return max(remove, add)


mus = st.floats(-8.5, 6).map(lambda power: 10**power)
rates = st.one_of(st.floats(-9, -0.001).map(lambda p: 10**p), st.floats(-12, -1).map(lambda p: 1 - 10**p))


@given(mu=mus, at=st.floats(-35, 7))
def test_gaussian_bounds_hold_the_truth(mu: float, at: float) -> None:
    epsilon = (mu / 2 - at) * mu
    with mp.workdps(80):
        truth = gaussian_delta(mp.mpf(mu), mp.mpf(epsilon))
        lower, upper = GaussianCurve(mu).log_delta(epsilon)
        assert lower <= mp.log(truth) <= upper
        low, high = GaussianCurve(mu).delta_bounds(epsilon)
        assert low <= truth <= high


@given(sigma=st.floats(-1.5, 6).map(lambda p: 10**p), rate=rates, at=st.floats(-30, 6), sign=st.booleans())
def test_bounds_of_one_sampled_step_hold_the_truth(sigma: float, rate: float, at: float, sign: bool) -> None:
    base = (0.5 / sigma - at) / sigma
    epsilon = base + math.log(rate) if base > 700 else math.log1p(rate * math.expm1(max(base, -600.0)))
    epsilon = epsilon if sign else -abs(epsilon)
    with mp.workdps(80):
        truth = single_delta(sigma, rate, epsilon)
        lower, upper = SingleStepCurve(MixturePair(sigma, rate)).delta_bounds(epsilon)
        assert lower <= truth <= upper


@given(mu=mus, power=st.floats(-30, -0.001))
def test_epsilon_bounds_of_the_gaussian_hold_and_are_tight(mu: float, power: float) -> None:
    delta = 10**power
    lower, upper = GaussianCurve(mu).epsilon_bounds(delta)
    with mp.workdps(80):
        assert gaussian_delta(mp.mpf(mu), mp.mpf(upper)) <= mp.mpf(delta)
        if lower > 0:
            assert gaussian_delta(mp.mpf(mu), mp.mpf(lower)) >= mp.mpf(delta)
    assert upper - lower <= 1e-9 * (1 + upper)


@given(sigma=st.floats(0.05, 100), rate=rates, power=st.floats(-30, -0.01))
def test_epsilon_bounds_of_one_sampled_step_hold_and_are_tight(sigma: float, rate: float, power: float) -> None:
    delta = 10**power
    lower, upper = SingleStepCurve(MixturePair(sigma, rate)).epsilon_bounds(delta)
    with mp.workdps(80):
        assert single_delta(sigma, rate, upper) <= mp.mpf(delta)
        if lower > 0:
            assert single_delta(sigma, rate, lower) >= mp.mpf(delta)
    assert upper - lower <= 1e-9 * (1 + upper)


def test_delta_close_to_one_leaves_the_estimate_little_to_stand_on_and_still_holds() -> None:
    """Where δ(ε) is flat, a tiny error of δ is a large one of ε; the bounds move apart by themselves."""
    lower, upper = GaussianCurve(100.0).epsilon_bounds(1 - 1e-9)
    with mp.workdps(60):
        assert gaussian_delta(mp.mpf(100), mp.mpf(upper)) <= mp.mpf(1 - 1e-9)
        assert gaussian_delta(mp.mpf(100), mp.mpf(lower)) >= mp.mpf(1 - 1e-9)
    assert lower < upper


@pytest.mark.parametrize("mu", [1e-300, 1e-12, 1e12, 1e300])
def test_noise_beyond_all_measure_gets_crude_bounds_that_hold(mu: float) -> None:
    for curve in (GaussianCurve(mu), SingleStepCurve(MixturePair(1 / mu, 0.3))):
        lower, upper = curve.delta_bounds(1.0)
        assert 0 <= lower <= upper <= 1
        lower, upper = curve.delta_bounds(-1.0)
        assert lower <= 1 - math.exp(-1) + 1e-12 <= upper + 1e-10
        low, high = curve.epsilon_bounds(1e-6)
        assert 0 <= low <= high
        if mu > 1:
            assert high >= 0.1 * mu
        else:
            assert high == 0


def test_a_unit_that_is_almost_never_drawn_costs_nothing() -> None:
    assert SingleStepCurve(MixturePair(0.5, 1e-7)).epsilon_bounds(1e-6) == (0.0, 0.0)


def test_noise_adds_up_in_squares_whatever_its_size() -> None:
    assert joint_mu([(4.0, 50)]) == pytest.approx(math.sqrt(50) / 4, rel=1e-15)
    assert joint_mu([(3e-200, 1), (4e-200, 1)]) == pytest.approx(math.hypot(1 / 3, 1 / 4) * 1e200, rel=1e-14)


def test_logarithms_become_probabilities() -> None:
    assert exponentials(-math.inf, -1e9) == (0.0, 5e-324)
    assert exponentials(-0.5, 3.0)[1] == 1.0
