"""What ε means: error rates, advantage and beliefs, against closed forms and other libraries."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from hypothesis import given, strategies as st
from scipy.special import ndtr, ndtri

from privacy.referee import contour, plan
from quietsum.errors import InvalidParameter
from quietsum.privacy import events as ev
from quietsum.privacy.attacker import attacker_advantage, posterior_odds, tradeoff_curve, true_positive_rate
from quietsum.privacy.classical import ClassicalAccountant
from quietsum.privacy.concentrated import ConcentratedAccountant
from quietsum.privacy.exact.accountant import ExactAccountant
from quietsum.privacy.guarantee import Guarantee

RATES = [1e-9, 1e-6, 1e-3, 0.05, 0.3, 0.5, 0.9, 0.999]


def pure(epsilon: float, delta: float = 0.0) -> Guarantee:
    return Guarantee(epsilon=epsilon, delta=delta, method="stated")


def gaussian(mu: float) -> ExactAccountant:
    return ExactAccountant().compose(ev.Gaussian(noise_multiplier=1 / mu))


def sampled(sigma: float, rate: float, steps: int) -> ExactAccountant:
    step = ev.PoissonSampled(rate=rate, event=ev.Gaussian(noise_multiplier=sigma))
    return ExactAccountant().compose(step, times=steps)


# --------------------------------------------------------------------------------- curves of accountants


@pytest.mark.parametrize("mu", [0.01, 0.2, 1.0, 4.0])
@pytest.mark.parametrize("rate", RATES)
def test_a_gaussian_attacker_reaches_its_closed_form_and_no_more(mu: float, rate: float) -> None:
    truth = float(ndtr(ndtri(rate) + mu))
    found = true_positive_rate(gaussian(mu), rate)
    assert truth * (1 - 1e-12) <= found <= truth * (1 + 1e-4)


def test_the_whole_curve_of_a_gaussian_lies_just_below_its_closed_form() -> None:
    rates = np.linspace(0.0, 1.0, 101)
    truth = ndtr(-ndtri(rates) - 1.0)
    found = tradeoff_curve(gaussian(1.0), rates)
    assert np.all(found <= truth + 1e-12)
    assert np.all(found >= truth - 1e-4)


def test_binary_randomised_response_has_the_curve_of_its_two_outcomes() -> None:
    accountant = ClassicalAccountant().compose(ev.RandomizedResponse(keep_probability=0.75))
    found = tradeoff_curve(accountant, [0.0, 0.1, 0.25, 0.5, 1.0])
    assert found == pytest.approx([1.0, 0.7, 0.25, 0.5 / 3, 0.0], abs=1e-4)
    assert np.all(found <= np.array([1.0, 0.7, 0.25, 0.5 / 3, 0.0]) + 1e-9)


@pytest.mark.parametrize(
    ("sigma", "rate", "steps", "expected", "interval"),
    [(1.2, 0.0032, 31_200, 0.00587, 1e-4), (1.0, 0.1, 1_000, 0.749, 2e-3)],
)
@pytest.mark.some(1)
def test_two_training_runs_show_what_an_attacker_gains_at_one_false_alarm_in_a_thousand(
    sigma: float, rate: float, steps: int, expected: float, interval: float
) -> None:
    found = true_positive_rate(sampled(sigma, rate, steps), 1e-3)
    assert found == pytest.approx(expected, rel=5e-3)
    theirs = privacy_loss_distribution.from_gaussian_mechanism(
        sigma, value_discretization_interval=interval, sampling_prob=rate
    ).self_compose(steps)
    epsilons = np.linspace(0.0, math.log(1e3), 200)
    bounds = np.asarray(theirs.get_delta_for_epsilon(epsilons)) + np.exp(epsilons) * 1e-3
    assert found == pytest.approx(float(bounds.min()), rel=2e-3)
    # and by the referee: the best line touches the true curve δ(ε)
    best = float(epsilons[np.argmin(bounds)])
    epsilon, error = contour(plan(sigma, rate, steps, found - math.exp(best) * 1e-3, "remove"))
    assert epsilon == pytest.approx(best, abs=3e-3)
    assert error < 1e-6


def test_an_accountant_says_more_than_one_point_of_its_curve() -> None:
    accountant = gaussian(1.0)
    point = accountant.epsilon(delta=1e-5)
    rates = np.array([1e-3, 0.1, 0.5])
    assert np.all(tradeoff_curve(accountant, rates) > tradeoff_curve(point, rates) + 1e-3)
    assert attacker_advantage(accountant) < attacker_advantage(point)


def test_any_accountant_bounds_the_attacker_and_a_looser_one_bounds_him_less() -> None:
    loose = ConcentratedAccountant().compose(ev.Gaussian(noise_multiplier=1.0))
    for rate in (1e-6, 1e-3, 0.1):
        assert float(ndtr(ndtri(rate) + 1.0)) < true_positive_rate(loose, rate) < 1


def test_nothing_composed_leaves_the_attacker_with_a_coin() -> None:
    assert attacker_advantage(ExactAccountant()) == 0
    assert tradeoff_curve(ExactAccountant(), RATES) == pytest.approx(1 - np.array(RATES), abs=1e-12)


def test_the_shape_of_the_rates_is_kept() -> None:
    assert tradeoff_curve(gaussian(1.0), [[0.1, 0.2], [0.3, 0.4]]).shape == (2, 2)
    assert tradeoff_curve(pure(1.0), 0.1).shape == ()


def test_asking_many_rates_gives_nearly_what_asking_one_gives_and_is_never_too_good() -> None:
    rates = np.geomspace(1e-6, 1.0, 300)
    together = 1 - tradeoff_curve(gaussian(1.0), rates)
    truth = ndtr(ndtri(rates) + 1.0)
    assert np.all(together >= truth * (1 - 1e-12))
    assert np.all(together <= truth * 1.01)


# ----------------------------------------------------------------------------------------- single guarantees


@given(st.floats(0.0, 20.0), st.floats(0.0, 0.5), st.floats(0.0, 1.0))
def test_a_guarantee_gives_the_two_lines_of_the_definition(epsilon: float, delta: float, rate: float) -> None:
    expected = max(0.0, 1 - delta - math.exp(epsilon) * rate, math.exp(-epsilon) * (1 - delta - rate))
    found = float(tradeoff_curve(pure(epsilon, delta), rate))
    assert found == pytest.approx(expected, abs=1e-12)
    assert true_positive_rate(pure(epsilon, delta), rate) == pytest.approx(1 - expected, abs=1e-12)


@given(st.floats(0.0, 20.0), st.floats(0.0, 0.5))
def test_the_advantage_of_a_guarantee_is_the_largest_gap_under_its_curve(epsilon: float, delta: float) -> None:
    kink = (1 - delta) / (1 + math.exp(epsilon))
    gaps = 1 - tradeoff_curve(pure(epsilon, delta), [kink, kink / 2, kink * 1.1]) - [kink, kink / 2, kink * 1.1]
    assert attacker_advantage(pure(epsilon, delta)) == pytest.approx(gaps.max(), abs=1e-9)
    assert gaps[0] == pytest.approx(gaps.max(), abs=1e-9)


@pytest.mark.parametrize("mu", [0.1, 1.0, 3.0])
def test_the_advantage_against_a_gaussian_is_its_total_variation(mu: float) -> None:
    assert attacker_advantage(gaussian(mu)) == pytest.approx(2 * float(ndtr(mu / 2)) - 1, rel=1e-9)


def test_an_infinite_epsilon_hides_nothing() -> None:
    assert attacker_advantage(pure(math.inf)) == 1.0
    assert true_positive_rate(pure(math.inf), 0.01) == 1.0
    assert true_positive_rate(pure(math.inf, 0.2), 0.0) == pytest.approx(0.2)
    belief = posterior_odds(pure(math.inf), 0.5)
    assert (belief.lowest, belief.highest, belief.odds) == (0.0, 1.0, math.inf)


# ------------------------------------------------------------------------------------------------- beliefs


@given(st.floats(0.0, 30.0), st.floats(0.0, 0.999))
def test_a_belief_moves_as_bayes_says_and_not_beyond(epsilon: float, prior: float) -> None:
    belief = posterior_odds(epsilon, prior)
    growth = math.exp(epsilon)
    assert belief.highest == pytest.approx(prior * growth / (1 + prior * (growth - 1)), rel=1e-9)
    assert belief.lowest == pytest.approx(prior / growth / (1 + prior * (1 / growth - 1)), rel=1e-9, abs=1e-15)
    assert belief.lowest <= prior * (1 + 1e-12) and prior <= belief.highest * (1 + 1e-12)


def test_one_in_a_thousand_becomes_one_in_fifty_at_epsilon_three() -> None:
    belief = posterior_odds(3.0, prior=0.001)
    assert belief.highest == pytest.approx(0.0197, abs=1e-4)
    assert belief.odds == pytest.approx(math.exp(3) / 999)


def test_a_belief_from_a_guarantee_states_what_delta_means() -> None:
    belief = posterior_odds(pure(1.0, 1e-5), prior=0.5)
    assert belief.delta == 1e-5
    assert "with probability at most 2e-05" in str(belief)
    assert "probability" not in str(posterior_odds(1.0, prior=0.5))
    assert dataclasses.replace(belief, delta=0.0) == posterior_odds(1.0, prior=0.5)


def test_the_odds_of_a_gaussian_exceed_twice_the_factor_as_rarely_as_stated() -> None:
    """Losses of N(1) against N(0) are N(1/2, 1) themselves, so the rare event can be counted exactly."""
    delta = 1e-3
    epsilon = gaussian(1.0).epsilon(delta=delta).epsilon
    beyond = float(ndtr(-(epsilon - 0.5)))
    assert beyond > delta  # e^ε itself is passed more often than δ, as a mere "failure probability" would not allow
    assert float(ndtr(-(epsilon + math.log(2) - 0.5))) <= 2 * delta


# ------------------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize("rates", [[-0.1], [1.1], [math.nan], [], ["many"], [[0.1], [0.2, 0.3]]])
def test_rates_that_are_no_rates_are_named(rates: list[object]) -> None:
    with pytest.raises(InvalidParameter, match="false_positive_rates"):
        tradeoff_curve(pure(1.0), rates)  # type: ignore[arg-type]


def test_other_bad_input_is_named() -> None:
    with pytest.raises(InvalidParameter, match="false_positive_rate"):
        true_positive_rate(pure(1.0), 2.0)
    with pytest.raises(InvalidParameter, match="prior"):
        posterior_odds(1.0, prior=-0.1)
    with pytest.raises(InvalidParameter, match="epsilon"):
        posterior_odds(-1.0, prior=0.5)
    asks: tuple[Callable[[Any], object], ...] = (attacker_advantage, lambda source: tradeoff_curve(source, [0.1]))
    for ask in asks:
        with pytest.raises(InvalidParameter, match="neither an accountant nor a guarantee"):
            ask(1.0)
