"""One Poisson-sampled Gaussian step, against the defining integral in mpmath and dp-accounting."""

from __future__ import annotations

import math
from typing import Any

import mpmath
import pytest
from dp_accounting.pld.privacy_loss_mechanism import AdjacencyType, GaussianPrivacyLoss
from hypothesis import given, strategies as st

from quietsum.privacy.exact.closed_forms import gaussian_epsilon, single_step_epsilon, single_step_log_delta
from quietsum.privacy.pairs import MixturePair

SETTINGS = [(1.0, 0.1), (0.5, 0.8), (0.3, 0.01), (5.0, 0.5), (2.0, 1e-5), (20.0, 0.99)]


def true_delta(pair: MixturePair, epsilon: float) -> tuple[Any, Any]:
    """∫ (P − e^ε Q)₊ for both directions; each integrand changes its sign once, where the loss equals ±ε."""
    with mpmath.workdps(40):
        q, s, e = mpmath.mpf(pair.rate), mpmath.mpf(pair.sigma), mpmath.mpf(epsilon)

        def where(loss: Any) -> Any:
            """The x at which ln(1 − q + q e^{(2x−1)/2σ²}) is ``loss``, −∞ where it is always more."""
            inner = (mpmath.exp(loss) - 1 + q) / q
            return s * s * mpmath.log(inner) + mpmath.mpf(1) / 2 if inner > 0 else -mpmath.inf

        def mass(x: Any, centre: int) -> Any:
            return mpmath.ncdf((x - centre) / s)

        x = where(e)
        remove = (1 - q) * (1 - mass(x, 0)) + q * (1 - mass(x, 1)) - mpmath.exp(e) * (1 - mass(x, 0))
        x = where(-e)
        add = mass(x, 0) - mpmath.exp(e) * ((1 - q) * mass(x, 0) + q * mass(x, 1))
        return remove, add


@pytest.mark.parametrize(("sigma", "rate"), SETTINGS)
@pytest.mark.parametrize("epsilon", [-3.0, -0.5, -1e-3, 0.0, 1e-3, 0.2, 1.0, 5.0, 20.0])
def test_delta_agrees_with_its_definition(sigma: float, rate: float, epsilon: float) -> None:
    pair = MixturePair(sigma, rate)
    truth = max(true_delta(pair, epsilon))
    if truth < mpmath.mpf(10) ** -25:
        return  # beyond the digits of the definition as written
    assert math.exp(single_step_log_delta(pair, epsilon)) == pytest.approx(float(truth), rel=1e-10)


@pytest.mark.parametrize(("sigma", "rate"), SETTINGS)
@pytest.mark.parametrize("delta", [0.3, 1e-2, 1e-5, 1e-12])
def test_epsilon_is_the_smallest_that_both_directions_allow(sigma: float, rate: float, delta: float) -> None:
    pair = MixturePair(sigma, rate)
    epsilon = single_step_epsilon(pair, delta)
    assert max(true_delta(pair, epsilon)) <= delta * (1 + 1e-9)
    if epsilon > 0:
        assert max(true_delta(pair, epsilon * (1 - 1e-7))) > delta


@pytest.mark.parametrize(("sigma", "rate"), SETTINGS)
def test_dp_accounting_agrees_in_its_worse_direction(sigma: float, rate: float) -> None:
    both = [
        GaussianPrivacyLoss(sigma, sampling_prob=rate, adjacency_type=each)
        for each in (AdjacencyType.REMOVE, AdjacencyType.ADD)
    ]
    pair = MixturePair(sigma, rate)
    for epsilon in (0.01, 0.5, 3.0):
        theirs = max(law.get_delta_for_epsilon(epsilon) for law in both)
        if theirs > 1e-12:
            assert math.exp(single_step_log_delta(pair, epsilon)) == pytest.approx(theirs, rel=1e-6)


def test_adding_is_the_worse_direction_where_delta_is_large() -> None:
    """Near ε = 0 both directions compete; the closed form must not take the remove direction for granted."""
    found = []
    for sigma, rate in ((0.3, 0.9), (1.0, 0.5), (0.1, 0.3)):
        for epsilon in (-2.0, -0.5, 0.01, 0.1, 0.3):
            remove, add = true_delta(MixturePair(sigma, rate), epsilon)
            found.append(bool(add > remove * (1 + mpmath.mpf(10) ** -6)))
            expected = float(max(remove, add))
            assert math.exp(single_step_log_delta(MixturePair(sigma, rate), epsilon)) == pytest.approx(
                expected, rel=1e-10
            )
    assert any(found) and not all(found)


@given(sigma=st.floats(0.05, 50.0), rate=st.floats(1e-8, 0.999), log_delta=st.floats(-60.0, -0.7))
def test_sampling_never_costs_more_than_not_sampling(sigma: float, rate: float, log_delta: float) -> None:
    delta = math.exp(log_delta)
    epsilon = single_step_epsilon(MixturePair(sigma, rate), delta)
    assert 0 <= epsilon <= gaussian_epsilon(1 / sigma, delta) * (1 + 1e-12)
    assert epsilon >= single_step_epsilon(MixturePair(sigma, rate / 2), delta) * (1 - 1e-9)
    if epsilon > 0:
        assert single_step_log_delta(MixturePair(sigma, rate), epsilon) <= log_delta + 1e-9


def test_a_rate_below_delta_costs_nothing_and_no_noise_costs_everything() -> None:
    assert single_step_epsilon(MixturePair(0.01, 1e-6), 1e-5) == 0.0
    assert single_step_epsilon(MixturePair(1e-200, 0.1), 1e-5) == math.inf
    little = single_step_epsilon(
        MixturePair(0.01, 0.1), 1e-5
    )  # the base costs 5,400, so ln q is all that sampling gives
    assert little == pytest.approx(gaussian_epsilon(100.0, 1e-4) + math.log(0.1), rel=1e-12)
    assert single_step_log_delta(MixturePair(0.01, 0.1), 800.0) == pytest.approx(math.log(0.1), abs=1e-6)
    assert single_step_log_delta(MixturePair(1.0, 0.1), -1e-9) <= single_step_log_delta(MixturePair(1.0, 0.1), -1e-3)
