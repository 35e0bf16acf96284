"""The curve of a report, by a second oracle: closed forms, dp-accounting, and attackers that are tried."""

from __future__ import annotations

import math

import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.pld import PLDAccountant
from scipy.stats import norm

from quietsum.ledger import Charge
from quietsum.privacy import Gaussian, Laplace, Neighbours, PoissonSampled, PrivacyEvent, PrivacyUnit, Repeated
from quietsum.report.facts.curves import RATES, find_mu, profile_of, trade_off
from quietsum.report.figures import percent, show_bound

ONE = Neighbours.ADD_REMOVE


def charge(event: PrivacyEvent | None, failure: float = 0.0) -> Charge:
    return Charge(party="a", dataset="d", unit=PrivacyUnit.RECORD, event=event, failure=failure)


def sampled(noise: float, rate: float, times: int) -> PrivacyEvent:
    return Repeated(times=times, event=PoissonSampled(rate=rate, event=Gaussian(noise_multiplier=noise)))


def gaussian_delta(mu: float, epsilon: float) -> float:
    """Balle, Wang 2018, Theorem 8, with σ = 1/μ."""
    return float(norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu))


def test_mu_of_gaussian_releases_is_the_closed_form() -> None:
    found = profile_of(charge(Repeated(times=20, event=Gaussian(noise_multiplier=5.0))), ONE)
    assert found is not None and found.mu == pytest.approx(math.sqrt(20) / 5)
    doubled = profile_of(charge(Gaussian(noise_multiplier=5.0)), Neighbours.REPLACE_ONE)
    assert doubled is not None and doubled.mu == pytest.approx(2 / 5)


def test_mu_from_the_points_alone_is_hardly_larger_than_the_closed_form() -> None:
    found = profile_of(charge(Repeated(times=20, event=Gaussian(noise_multiplier=5.0))), ONE)
    assert found is not None
    mu = find_mu(found.points, 1e-9)
    assert mu is not None and math.sqrt(20) / 5 <= mu < math.sqrt(20) / 5 * 1.005
    assert find_mu(found.points, 1e-12) is None  # the points do not reach so far down


@pytest.mark.parametrize(("noise", "rate", "times"), [(2.0, 0.25, 40), (1.0, 0.01, 1000), (0.8, 0.5, 3)])
def test_the_gaussian_curve_lies_above_the_true_one_everywhere(noise: float, rate: float, times: int) -> None:
    """Between the points, too, by the distributions of dp-accounting; a μ that is 3 % smaller is refuted."""
    found = profile_of(charge(sampled(noise, rate, times)), ONE)
    assert found is not None
    mu, slack = find_mu(found.points, 1e-5), 1e-5
    assert mu is not None
    event = dp_event.SelfComposedDpEvent(dp_event.PoissonSampledDpEvent(rate, dp_event.GaussianDpEvent(noise)), times)
    referee = PLDAccountant(value_discretization_interval=1e-3).compose(event)
    asked = np.linspace(0, found.points[-1][0], 61)
    true = np.array([referee.get_delta(one) for one in asked])
    above = np.array([gaussian_delta(mu, one) for one in asked])
    assert np.all(true <= np.maximum(above, slack) * (1 + 1e-3) + 1e-8)
    less = np.array([gaussian_delta(0.97 * mu, one) for one in asked])
    assert np.any(true > np.maximum(less, slack) * (1 + 1e-3) + 1e-8)


def test_the_points_are_those_of_another_library() -> None:
    found = profile_of(charge(sampled(2.0, 0.25, 40)), ONE)
    assert found is not None
    event = dp_event.SelfComposedDpEvent(dp_event.PoissonSampledDpEvent(0.25, dp_event.GaussianDpEvent(2.0)), 40)
    referee = PLDAccountant(value_discretization_interval=1e-3).compose(event)
    for epsilon, delta in found.points[:20]:
        assert delta == pytest.approx(referee.get_delta(epsilon), rel=2e-3, abs=1e-7)


def test_no_attacker_that_is_tried_beats_the_trade_off_curve() -> None:
    found = profile_of(charge(sampled(1.0, 0.5, 3)), ONE)
    assert found is not None
    rng = np.random.default_rng(3)
    absent = rng.normal(size=(400_000, 3))
    present = rng.normal(size=(400_000, 3)) + (rng.random((400_000, 3)) < 0.5)

    def loss(seen: np.ndarray) -> np.ndarray:
        return np.asarray(np.log(0.5 + 0.5 * np.exp(seen - 0.5)).sum(axis=1))

    out, into = loss(absent), loss(present)
    for rate in (0.01, 0.05, 0.1, 0.25, 0.5, 0.75):
        cut = np.quantile(out, 1 - rate)
        missed = float(np.mean(into <= cut))
        assert missed >= trade_off(found.points, rate) - 4e-3
        assert missed - trade_off(found.points, rate) < 0.05  # the other direction is a little easier


def test_the_control_a_curve_of_too_much_noise_is_beaten() -> None:
    found = profile_of(charge(sampled(1.5, 0.5, 3)), ONE)
    real = profile_of(charge(sampled(1.0, 0.5, 3)), ONE)
    assert found is not None and real is not None
    assert trade_off(found.points, 0.1) - trade_off(real.points, 0.1) > 0.1


def test_what_the_noise_lacks_is_added_to_each_point() -> None:
    plain, lacking = (
        profile_of(charge(sampled(2.0, 0.25, 4)), ONE),
        profile_of(charge(sampled(2.0, 0.25, 4), 1e-3), ONE),
    )
    assert plain is not None and lacking is not None
    for (epsilon, delta), (_, more) in zip(plain.points, lacking.points, strict=True):
        assert more == pytest.approx(delta + (1 + math.exp(epsilon)) * 1e-3)


def test_pure_privacy_and_no_protection() -> None:
    found = profile_of(charge(Laplace(noise_multiplier=1.0)), ONE)
    assert found is not None and found.mu is None
    assert trade_off(found.points, 0.0) <= 1.0
    assert trade_off(found.points, 0.1) == pytest.approx(1 - math.e * 0.1, abs=0.02)
    assert profile_of(charge(None), ONE) is None


def test_the_curve_is_convex_and_falls_from_one_to_nought() -> None:
    found = profile_of(charge(sampled(1.0, 0.01, 5000)), ONE)
    assert found is not None
    rates = [trade_off(found.points, rate) for rate in RATES]
    assert rates == sorted(rates, reverse=True) and rates[-1] == 0.0 and rates[0] <= 1.0


@pytest.mark.parametrize("value", [0.174028, 0.17405, 1.0, 1.00001, 2.9999971, 11.98, 1e-5, 1e-12, 314.159, 1e9])
def test_a_rounded_bound_is_still_a_bound(value: float) -> None:
    assert float(show_bound(value)) >= value * (1 - 1e-9)
    assert float(show_bound(value, up=False)) <= value * (1 + 1e-9)
    assert float(show_bound(value)) - value <= max(1.0001e-4, 1e-3 * value)


def test_a_share_is_rounded_away_from_the_promise() -> None:
    assert percent(0.55001) == "55.1 %" and percent(0.55) == "55.0 %" and percent(2.0) == "100.0 %"
