"""The Gaussian mechanism in closed form, against mpmath with enough digits and dp-accounting."""

from __future__ import annotations

import math
from typing import Any

import dp_accounting
import mpmath
import pytest
from dp_accounting.pld.privacy_loss_mechanism import GaussianPrivacyLoss
from hypothesis import assume, given, strategies as st

from quietsum import ExactAccountant, Gaussian, InvalidParameter
from quietsum.privacy.exact.closed_forms import gaussian_delta, gaussian_epsilon, log_gaussian_delta


def true_log_delta(mu: float, epsilon: float) -> Any:
    """ln(Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ)) with digits to spare for the cancellation."""
    with mpmath.workdps(60 + int(abs(epsilon) + abs(math.log10(mu)))):
        m, e = mpmath.mpf(mu), mpmath.mpf(epsilon)
        return mpmath.log(mpmath.ncdf(m / 2 - e / m) - mpmath.exp(e) * mpmath.ncdf(-m / 2 - e / m))


@given(log_mu=st.floats(-9.0, 1.7), spread=st.floats(0.0, 38.0), sign=st.sampled_from([1, -1]), mean=st.booleans())
def test_delta_is_good_to_twelve_digits_for_every_noise_and_epsilon(
    log_mu: float, spread: float, sign: int, mean: bool
) -> None:
    """From μ = 1e-9 to 50, from the middle of the curve to 38 standard deviations out, negative ε too."""
    mu = 10**log_mu
    epsilon = sign * (spread * mu + (mu * mu / 2 if mean else 0.0))
    truth = true_log_delta(mu, epsilon)
    assume(truth > -700)
    found = log_gaussian_delta(mu, epsilon)
    assert abs(found - truth) < 1e-12 * (1 + abs(truth) / 100)


@pytest.mark.parametrize("mu", [1e-3, 0.3, 1.0, 4.0, 30.0])
@pytest.mark.parametrize("delta", [0.1, 1e-5, 1e-30, 1e-300])
def test_epsilon_inverts_delta_on_the_safe_side(mu: float, delta: float) -> None:
    epsilon = gaussian_epsilon(mu, delta)
    if epsilon == 0:
        assert true_log_delta(mu, 0.0) <= math.log(delta)
    else:
        assert log_gaussian_delta(mu, epsilon) <= math.log(delta) < log_gaussian_delta(mu, epsilon * (1 - 1e-12))
        assert abs(true_log_delta(mu, epsilon) - math.log(delta)) < 1e-11


@pytest.mark.parametrize(("mu", "delta"), [(0.25, 1e-5), (1.0, 1e-5), (math.sqrt(50) / 4, 1e-5), (5.0, 1e-9)])
def test_dp_accounting_agrees(mu: float, delta: float) -> None:
    epsilon = gaussian_epsilon(mu, delta)
    assert epsilon == pytest.approx(dp_accounting.get_epsilon_gaussian(1 / mu, delta), rel=1e-9)
    assert 1 / mu == pytest.approx(dp_accounting.get_sigma_gaussian(epsilon, delta), rel=1e-5)
    assert gaussian_delta(mu, 1.0) == pytest.approx(GaussianPrivacyLoss(1 / mu).get_delta_for_epsilon(1.0), rel=1e-9)


def test_two_thirds_of_the_noise_would_be_noticed() -> None:
    truth = float(mpmath.exp(true_log_delta(1.0, 1.0)))
    assert gaussian_delta(1.0, 1.0) == pytest.approx(truth, rel=1e-12)
    assert gaussian_delta(1.5, 1.0) != pytest.approx(truth, rel=0.5)


def test_negative_epsilon_mirrors_positive_epsilon() -> None:
    for mu in (1e-4, 1.0, 20.0):
        for epsilon in (1e-3, 0.5, 5.0):
            mirrored = 1 - math.exp(-epsilon) * (1 - gaussian_delta(mu, epsilon))
            assert gaussian_delta(mu, -epsilon) == pytest.approx(mirrored, rel=1e-10)


def test_steps_compose_to_one_gaussian() -> None:
    steps = ExactAccountant().compose(Gaussian(noise_multiplier=4.0), 30).compose(Gaussian(noise_multiplier=2.0), 5)
    mu = math.sqrt(30 / 16 + 5 / 4)
    assert steps.epsilon(delta=1e-6).epsilon == pytest.approx(gaussian_epsilon(mu, 1e-6), rel=1e-10)


def test_noise_beyond_all_measure_has_a_sound_answer() -> None:
    assert gaussian_epsilon(1e200, 1e-5) == math.inf
    assert gaussian_epsilon(1e-200, 1e-5) == 0.0
    assert gaussian_epsilon(1e150, 0.5) == pytest.approx(5e299, rel=1e-12)  # μ²/2: half of all losses lie above it
    assert gaussian_epsilon(1e6, 1e-5) == pytest.approx(5e11 + 4.265e6, rel=1e-8)
    assert log_gaussian_delta(1e-300, 1.0) == -math.inf


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf, "one"])
def test_bad_mu_is_refused(bad: Any) -> None:
    for attempt in (lambda: gaussian_delta(bad, 1.0), lambda: gaussian_epsilon(bad, 1e-5)):
        with pytest.raises(InvalidParameter) as error:
            attempt()
        assert error.value.parameter == "mu"


@pytest.mark.parametrize("bad", [0.0, 1.0, -1e-5, math.nan])
def test_bad_delta_is_refused(bad: float) -> None:
    with pytest.raises(InvalidParameter, match="delta"):
        gaussian_epsilon(1.0, bad)
    with pytest.raises(InvalidParameter, match="epsilon"):
        gaussian_delta(1.0, math.nan)
