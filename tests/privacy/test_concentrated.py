"""zCDP: ρ adds up, both conversions are right, and whatever has no ρ is refused."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from dp_accounting.rdp import rdp_privacy_accountant as google
from hypothesis import given, strategies as st

from quietsum.errors import InvalidParameter, MixedUnits, UnsupportedEvent
from quietsum.privacy import events as ev
from quietsum.privacy.concentrated import ConcentratedAccountant, concentrated_delta, concentrated_epsilon, pair_rho
from quietsum.privacy.exact.closed_forms import gaussian_epsilon
from quietsum.privacy.pairs import DiscreteGaussianPair, Pair
from quietsum.privacy.units import Neighbours, PrivacyUnit

GAUSSIAN = ev.Gaussian(noise_multiplier=4.0)
RHOS = st.floats(1e-8, 1e4)
DELTAS = st.floats(1e-30, 0.5)


def fifty_steps(conversion: str = "tight") -> ConcentratedAccountant:
    return ConcentratedAccountant(conversion=conversion).compose(GAUSSIAN, times=50)  # type: ignore[arg-type]


def epsilon_by_mpmath(rho: float, delta: float) -> float:
    """The least of the Canonne–Kamath–Steinke bound over ever finer grids of orders."""
    with mpmath.workdps(40):

        def bound(log_above: mpmath.mpf) -> mpmath.mpf:
            alpha = 1 + mpmath.exp(log_above)
            return rho * alpha + mpmath.log(1 / (alpha * mpmath.mpf(delta))) / (alpha - 1) + mpmath.log(1 - 1 / alpha)

        centre, width = mpmath.mpf(0), mpmath.mpf(60)
        for _ in range(25):
            centre = min((centre + width * k / 20 for k in range(-20, 21)), key=bound)
            width /= 5
        return float(max(0, bound(centre)))


def test_fifty_steps_at_noise_four_cost_ten_by_the_standard_conversion_and_nine_by_the_tight_one() -> None:
    assert fifty_steps().rho == 1.5625
    assert fifty_steps("standard").epsilon(delta=1e-5).epsilon == pytest.approx(10.0452, abs=1e-4)
    assert fifty_steps().epsilon(delta=1e-5).epsilon == pytest.approx(9.2340, abs=1e-4)


def test_the_true_cost_of_those_steps_lies_below_both_conversions() -> None:
    truth = gaussian_epsilon(math.sqrt(50) / 4, 1e-5)
    assert truth == pytest.approx(8.596, abs=1e-3)
    assert truth < fifty_steps().epsilon(delta=1e-5).epsilon < fifty_steps("standard").epsilon(delta=1e-5).epsilon


@pytest.mark.parametrize("rho", [1e-6, 0.01, 1.5625, 300.0])
@pytest.mark.parametrize("delta", [0.3, 1e-5, 1e-30])
def test_the_tight_conversion_is_the_minimum_that_mpmath_finds(rho: float, delta: float) -> None:
    assert concentrated_epsilon(rho, delta)[0] == pytest.approx(epsilon_by_mpmath(rho, delta), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("rho", [0.01, 0.1, 1.5625, 20.0])
def test_google_finds_the_same_minimum_on_a_dense_grid_of_orders(rho: float) -> None:
    orders = 1.0 + np.geomspace(1e-2, 1e4, 20_000)
    theirs, _ = google.compute_epsilon(orders, rho * orders, 1e-5)
    ours, order = concentrated_epsilon(rho, 1e-5)
    assert ours == pytest.approx(theirs, rel=1e-6)
    assert order is not None
    assert order > 1


@given(RHOS, DELTAS)
def test_the_tight_conversion_is_never_above_the_standard_one(rho: float, delta: float) -> None:
    assert concentrated_epsilon(rho, delta)[0] <= concentrated_epsilon(rho, delta, "standard")[0] * (1 + 1e-12)


@pytest.mark.parametrize("conversion", ["tight", "standard"])
@given(rho=RHOS, delta=DELTAS)
def test_delta_and_epsilon_are_inverse_to_each_other(conversion: str, rho: float, delta: float) -> None:
    epsilon, _ = concentrated_epsilon(rho, delta, conversion)  # type: ignore[arg-type]
    found = concentrated_delta(rho, epsilon, conversion)  # type: ignore[arg-type]
    assert found <= delta * (1 + 1e-6)
    if epsilon > 0:
        assert found == pytest.approx(delta, rel=1e-6)


def test_below_rho_the_standard_conversion_shows_nothing() -> None:
    assert concentrated_delta(2.0, 1.0, "standard") == 1.0
    assert concentrated_delta(2.0, 1.0) < 1.0


# ------------------------------------------------------------------------------------------ what costs what


@pytest.mark.parametrize("epsilon", [0.01, 0.5, 2.0, 10.0])
def test_a_pure_event_costs_the_smallest_rho_that_bounds_its_worst_mechanism(epsilon: float) -> None:
    rho = ConcentratedAccountant().compose(ev.PureDP(epsilon=epsilon)).rho
    assert rho == pytest.approx(epsilon * math.tanh(epsilon / 2))
    assert rho < min(epsilon, epsilon**2 / 2)
    with mpmath.workdps(50):
        e = mpmath.mpf(epsilon)
        high, low = mpmath.exp(e) / (1 + mpmath.exp(e)), 1 / (1 + mpmath.exp(e))

        def slope(alpha: mpmath.mpf) -> mpmath.mpf:
            return mpmath.log(high**alpha * low ** (1 - alpha) + low**alpha * high ** (1 - alpha)) / (alpha - 1) / alpha

        slopes = [slope(1 + mpmath.mpf(10) ** (k / mpmath.mpf(4))) for k in range(-40, 13)]
        assert max(slopes) <= rho * (1 + 1e-12)
        assert max(slopes) == pytest.approx(rho, rel=1e-6)  # no smaller ρ would do


@pytest.mark.parametrize(("sigma", "shift"), [(0.4, 1), (1.0, 1), (3.0, 2)])
def test_the_discrete_gaussian_costs_no_more_than_its_rho_at_any_order(sigma: float, shift: int) -> None:
    rho = pair_rho(DiscreteGaussianPair(sigma, shift))
    assert rho == pytest.approx((shift / sigma) ** 2 / 2)
    x = np.arange(-400, 401)
    log_p, log_q = -((x - shift) ** 2) / (2 * sigma**2), -(x**2) / (2 * sigma**2)
    log_total = np.logaddexp.reduce(log_q)
    for alpha in (1.01, 1.5, 2.0, 7.3, 20.0):
        divergence = (np.logaddexp.reduce(alpha * log_p + (1 - alpha) * log_q) - log_total) / (alpha - 1)
        assert divergence <= alpha * rho * (1 + 1e-9)


@pytest.mark.parametrize(
    ("event", "epsilon"),
    [
        (ev.Laplace(noise_multiplier=2.0), 0.5),
        (ev.DiscreteLaplace(scale=4.0, sensitivity=2), 0.5),
        (ev.RandomizedResponse(keep_probability=0.75), math.log(3)),
        (ev.RandomizedResponse(keep_probability=0.5, categories=4), math.log(3)),
    ],
)
def test_mechanisms_with_a_pure_epsilon_cost_what_that_epsilon_costs(event: ev.PrivacyEvent, epsilon: float) -> None:
    assert ConcentratedAccountant().compose(event).rho == pytest.approx(epsilon * math.tanh(epsilon / 2))


def test_rho_adds_up_over_different_events_and_repetitions() -> None:
    accountant = ConcentratedAccountant()
    accountant.compose(GAUSSIAN, times=3).compose(ev.Zcdp(rho=0.25))
    accountant.compose(ev.Repeated(times=2, event=ev.Zcdp(rho=0.5)))
    accountant.compose(ev.DiscreteGaussian(sigma=2.0, sensitivity=1.5, dimension=10))
    assert accountant.rho == pytest.approx(3 / 32 + 0.25 + 1.0 + (1.5 / 2) ** 2 / 2)


def test_replacing_one_unit_costs_what_half_the_noise_costs_otherwise() -> None:
    replace = ConcentratedAccountant(neighbours=Neighbours.REPLACE_ONE).compose(ev.Gaussian(noise_multiplier=1.0))
    remove = ConcentratedAccountant().compose(ev.Gaussian(noise_multiplier=0.5))
    assert replace.rho == remove.rho == 2.0
    assert replace.epsilon(delta=1e-5).neighbours is Neighbours.REPLACE_ONE


def test_a_group_of_k_costs_k_squared_times_rho() -> None:
    grouped = ConcentratedAccountant().compose(ev.Group(size=3, event=GAUSSIAN))
    assert grouped.rho == pytest.approx(9 / 32)
    guarantee = grouped.epsilon(delta=1e-5)
    assert (guarantee.unit, guarantee.group_size) == (PrivacyUnit.PERSON, 3)


# ------------------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("event", "neighbours", "remedy"),
    [
        (ev.ApproximateDP(epsilon=1.0, delta=1e-6), Neighbours.ADD_REMOVE, "ExactAccountant"),
        (ev.PoissonSampled(rate=0.1, event=GAUSSIAN), Neighbours.ADD_REMOVE, "RenyiAccountant"),
        (ev.PoissonSampled(rate=0.1, event=GAUSSIAN), Neighbours.REPLACE_ONE, "RenyiAccountant"),
        (ev.PoissonSampled(rate=0.1, event=ev.Laplace(noise_multiplier=1)), Neighbours.ADD_REMOVE, "RenyiAccountant"),
        (ev.Skellam(variance=10.0, l1_sensitivity=2.0, l2_sensitivity=1.0), Neighbours.ADD_REMOVE, "RenyiAccountant"),
    ],
)
def test_an_event_without_a_rho_is_refused_with_a_remedy_and_changes_nothing(
    event: ev.PrivacyEvent, neighbours: Neighbours, remedy: str
) -> None:
    accountant = ConcentratedAccountant(neighbours=neighbours).compose(GAUSSIAN)
    before = accountant.rho
    assert not accountant.supports(event)
    with pytest.raises(UnsupportedEvent, match=remedy):
        accountant.compose(ev.Composed(events=(GAUSSIAN, event)))
    assert accountant.rho == before


def test_sampling_at_rate_one_is_no_sampling_and_is_accepted() -> None:
    event = ev.PoissonSampled(rate=1.0, event=GAUSSIAN)
    assert ConcentratedAccountant().supports(event)
    assert ConcentratedAccountant().compose(event).rho == 1 / 32


def test_an_unknown_pair_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedEvent, match="Pair has no known ρ"):
        pair_rho(Pair())


def test_nothing_composed_costs_nothing() -> None:
    accountant = ConcentratedAccountant()
    assert accountant.epsilon(delta=1e-5).epsilon == 0
    assert accountant.delta(epsilon=0.0) == 0


def test_more_than_a_float_holds_is_infinite_and_not_zero() -> None:
    tiny = ConcentratedAccountant().compose(ev.Gaussian(noise_multiplier=1e-200))
    assert tiny.epsilon(delta=1e-5).epsilon == math.inf
    assert tiny.delta(epsilon=1e6) == 1.0
    often = ev.Repeated(times=10**300, event=ev.Repeated(times=10**300, event=ev.Zcdp(rho=1.0)))
    assert ConcentratedAccountant().compose(often).rho == math.inf


def test_groups_of_different_sizes_do_not_mix() -> None:
    with pytest.raises(MixedUnits):
        ConcentratedAccountant().compose(GAUSSIAN).compose(ev.Group(size=2, event=GAUSSIAN))


@pytest.mark.parametrize("delta", [0.0, 1.0, -1.0, math.nan])
def test_delta_outside_of_its_range_is_named(delta: float) -> None:
    with pytest.raises(InvalidParameter, match="delta"):
        fifty_steps().epsilon(delta=delta)


def test_bad_settings_are_named() -> None:
    with pytest.raises(InvalidParameter, match="conversion"):
        ConcentratedAccountant(conversion="loose")  # type: ignore[arg-type]
    with pytest.raises(InvalidParameter, match="epsilon"):
        fifty_steps().delta(epsilon=-1.0)
    with pytest.raises(InvalidParameter, match="rho"):
        concentrated_epsilon(math.nan, 1e-5)
    with pytest.raises(InvalidParameter, match="event"):
        ConcentratedAccountant().compose("gaussian")  # type: ignore[arg-type]
