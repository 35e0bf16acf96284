"""Basic, advanced and optimal composition: the textbook formulas, and the exact one against two oracles."""

from __future__ import annotations

import itertools
import math

import mpmath
import numpy as np
import pytest
from dp_accounting.pld import common, privacy_loss_distribution
from hypothesis import given, strategies as st
from scipy.special import ndtr

from quietsum.errors import InvalidParameter, UnsupportedEvent
from quietsum.privacy import events as ev
from quietsum.privacy.classical import ClassicalAccountant, Rule, classical_gaussian_noise_multiplier
from quietsum.privacy.exact.closed_forms import gaussian_delta
from quietsum.privacy.units import Neighbours


def composed(*parts: tuple[float, int], rule: Rule = "optimal", delta: float = 0.0) -> ClassicalAccountant:
    """``count`` uses of each ε, all with the same δ."""
    accountant = ClassicalAccountant(rule=rule)
    for epsilon, count in parts:
        accountant.compose(ev.ApproximateDP(epsilon=epsilon, delta=delta), times=count)
    return accountant


def delta_by_listing(epsilons: list[float], epsilon: float) -> float:
    """h(ε) from its definition: every one of the 2ⁿ outcomes."""
    terms = []
    for signs in itertools.product((1, -1), repeat=len(epsilons)):
        loss = math.fsum(sign * e for sign, e in zip(signs, epsilons, strict=True))
        chance = math.prod(1 / (1 + math.exp(-sign * e)) for sign, e in zip(signs, epsilons, strict=True))
        terms.append(chance * max(0.0, -math.expm1(epsilon - loss)))
    return math.fsum(terms)


def delta_by_theorem(epsilon: float, count: int, i: int) -> float:
    """δ_i at (k − 2i)ε, term by term as Kairouz, Oh, Viswanath print it in Theorem 3.3."""
    with mpmath.workdps(60):
        e, k = mpmath.mpf(epsilon), count
        total = mpmath.fsum(
            mpmath.binomial(k, j) * (mpmath.exp((k - j) * e) - mpmath.exp((k - 2 * i + j) * e)) for j in range(i)
        )
        return float(total / (1 + mpmath.exp(e)) ** k)


# ------------------------------------------------------------------------------------------------- anchors


@pytest.mark.parametrize(
    ("epsilon", "basic", "advanced", "optimal"),
    [(0.1, 10.0, 5.850, 4.307), (0.5, 50.0, 56.429, 31.173), (1.0, 100.0, 219.81, 79.841)],
)
def test_a_hundred_pure_events_cost_what_each_rule_says(
    epsilon: float, basic: float, advanced: float, optimal: float
) -> None:
    found = [composed((epsilon, 100), rule=r).epsilon(delta=1e-5).epsilon for r in ("basic", "advanced", "optimal")]
    assert found == pytest.approx([basic, advanced, optimal], rel=1e-4)


@pytest.mark.parametrize(("epsilon", "claim"), [(0.5, 24.0), (1.0, 48.0)])
def test_advanced_composition_without_its_second_term_claims_less_than_the_truth(epsilon: float, claim: float) -> None:
    forgotten = epsilon * math.sqrt(2 * 100 * math.log(1e5))
    assert forgotten == pytest.approx(claim, abs=0.05)
    truth = composed((epsilon, 100)).epsilon(delta=1e-5)
    assert forgotten < truth.epsilon_lower


def test_at_large_epsilon_the_advanced_rule_is_worse_than_the_basic_one_and_says_so_honestly() -> None:
    assert composed((1.0, 100), rule="advanced").epsilon(delta=1e-5).epsilon > 100


# ----------------------------------------------------------------------------------------- the optimal rule


@pytest.mark.parametrize(("epsilon", "count"), [(0.01, 7), (0.5, 100), (1.0, 100), (3.0, 20), (0.05, 1000)])
def test_delta_is_the_one_of_theorem_3_3_at_every_multiple_of_epsilon(epsilon: float, count: int) -> None:
    accountant = composed((epsilon, count))
    for i in {0, 1, count // 4, count // 3, count // 2}:
        expected = delta_by_theorem(epsilon, count, i)
        found = accountant.delta(epsilon=(count - 2 * i) * epsilon)
        assert expected * (1 - 1e-12) - 1e-300 <= found  # never below
        assert found == pytest.approx(expected, rel=1e-6, abs=1e-250)


@pytest.mark.parametrize("epsilons", [[0.3], [1.0, 0.2], [0.5, 0.5, 0.1], [0.7, 0.2, 0.9, 0.05, 0.05, 2.0, 0.11, 0.13]])
@pytest.mark.parametrize("epsilon", [0.0, 0.1, 0.8, 2.5])
def test_delta_of_different_events_is_the_sum_over_all_outcomes(epsilons: list[float], epsilon: float) -> None:
    accountant = composed(*((e, 1) for e in epsilons))
    assert accountant.delta(epsilon=epsilon) == pytest.approx(delta_by_listing(epsilons, epsilon), rel=1e-9, abs=1e-15)


@pytest.mark.parametrize("parts", [[(0.5, 100)], [(0.1, 60), (0.3, 40)], [(1.0, 3), (0.25, 10), (0.01, 500)]])
@pytest.mark.parametrize("delta", [0.1, 1e-5, 1e-9])
def test_googles_distribution_of_two_point_losses_agrees(parts: list[tuple[float, int]], delta: float) -> None:
    total = None
    for epsilon, count in parts:
        two_point = common.DifferentialPrivacyParameters(epsilon, 0.0)
        pld = privacy_loss_distribution.from_privacy_parameters(two_point, value_discretization_interval=1e-4)
        pld = pld.self_compose(count)
        total = pld if total is None else total.compose(pld)
    assert total is not None
    ours = composed(*parts).epsilon(delta=delta)
    assert ours.epsilon == pytest.approx(total.get_epsilon_for_delta(delta), abs=2e-3)
    assert ours.epsilon_lower <= ours.epsilon <= ours.epsilon_lower + 1e-8


@given(st.lists(st.tuples(st.floats(1e-3, 3.0), st.integers(1, 30)), min_size=1, max_size=3), st.floats(1e-12, 0.3))
def test_the_optimal_rule_is_never_above_the_other_two_and_its_delta_is_the_inverse(
    parts: list[tuple[float, int]], delta: float
) -> None:
    optimal = composed(*parts)
    epsilon = optimal.epsilon(delta=delta).epsilon
    assert epsilon <= composed(*parts, rule="basic").epsilon(delta=delta).epsilon * (1 + 1e-12)
    assert epsilon <= composed(*parts, rule="advanced").epsilon(delta=delta).epsilon * (1 + 1e-12)
    assert optimal.delta(epsilon=epsilon) <= delta * (1 + 1e-6) + 1e-14
    if epsilon > 1e-3:
        assert optimal.delta(epsilon=epsilon * (1 - 1e-4)) > delta * (1 - 1e-6)


def test_failure_probabilities_compose_as_one_minus_the_product() -> None:
    accountant = composed((0.5, 10), delta=1e-3)
    told = 1 - (1 - 1e-3) ** 10
    assert accountant.delta(epsilon=5.0) == pytest.approx(told, rel=1e-12)
    assert told < composed((0.5, 10), rule="basic", delta=1e-3).delta(epsilon=5.0)
    hockey = delta_by_listing([0.5] * 10, 2.0)
    assert accountant.delta(epsilon=2.0) == pytest.approx(1 - (1 - 1e-3) ** 10 * (1 - hockey), rel=1e-9)
    assert accountant.delta(epsilon=accountant.epsilon(delta=0.05).epsilon) == pytest.approx(0.05, rel=1e-9)


def test_google_agrees_where_events_have_a_delta_of_their_own() -> None:
    one = common.DifferentialPrivacyParameters(0.2, 1e-7)
    pld = privacy_loss_distribution.from_privacy_parameters(one, value_discretization_interval=1e-4).self_compose(50)
    ours = composed((0.2, 50), delta=1e-7).epsilon(delta=1e-5)
    assert ours.epsilon == pytest.approx(pld.get_epsilon_for_delta(1e-5), abs=1e-3)
    assert ours.gap < 1e-9


@pytest.mark.parametrize("rule", ["optimal", "basic", "advanced"])
def test_no_epsilon_is_enough_once_the_deltas_alone_exceed_delta(rule: Rule) -> None:
    assert composed((0.5, 100), rule=rule, delta=1e-6).epsilon(delta=1e-5).epsilon == math.inf
    assert composed((0.0, 100), rule=rule, delta=1e-6).epsilon(delta=1e-5).epsilon == math.inf


@pytest.mark.parametrize("rule", ["optimal", "basic", "advanced"])
def test_events_that_only_fail_with_a_small_chance_cost_no_epsilon(rule: Rule) -> None:
    accountant = composed((0.0, 3), rule=rule, delta=1e-6)
    assert accountant.epsilon(delta=1e-5).epsilon == 0
    assert accountant.delta(epsilon=0.0) == pytest.approx(3e-6, rel=1e-5)


# -------------------------------------------------------------------------- where not all can be listed


def many_different(count: int) -> list[tuple[float, int]]:
    return [(0.05 + 0.4 * k / count, 1) for k in range(count)]


def test_too_many_different_epsilons_are_rounded_up_to_a_grid_close_above_the_truth() -> None:
    parts = many_different(21)  # 2²¹ combinations, just above what is listed
    accountant = composed(*parts)
    guarantee = accountant.epsilon(delta=1e-4)
    assert "rounded up to a grid" in guarantee.method
    assert guarantee.epsilon_lower == 0
    loss, log_chance = np.zeros(1), np.zeros(1)
    for epsilon, _ in parts:
        loss = np.concatenate((loss + epsilon, loss - epsilon))
        won, lost = -math.log1p(math.exp(-epsilon)), -math.log1p(math.exp(epsilon))
        log_chance = np.concatenate((log_chance + won, log_chance + lost))
    for epsilon in (0.5, 1.0, guarantee.epsilon):
        truth = float(np.sum(np.exp(log_chance) * np.maximum(0.0, -np.expm1(epsilon - loss))))
        assert truth <= accountant.delta(epsilon=epsilon) <= truth * 1.002


def test_a_hundred_different_epsilons_agree_with_google_on_the_grid() -> None:
    parts = many_different(100)
    total = None
    for epsilon, _ in parts:
        one = common.DifferentialPrivacyParameters(epsilon, 0.0)
        pld = privacy_loss_distribution.from_privacy_parameters(one, value_discretization_interval=2e-4)
        total = pld if total is None else total.compose(pld)
    assert total is not None
    ours = composed(*parts).epsilon(delta=1e-6).epsilon
    assert ours == pytest.approx(total.get_epsilon_for_delta(1e-6), rel=2e-3)


def test_when_even_a_grid_is_too_much_a_closed_form_answers_above_the_truth() -> None:
    accountant = composed((0.01, 5000), (0.010001, 5000))
    guarantee = accountant.epsilon(delta=1e-5)
    assert "closed form" in guarantee.method
    truth = composed((0.01, 10_000)).epsilon(delta=1e-5)  # a little less than what was composed
    assert "closed form" not in truth.method
    assert truth.epsilon < guarantee.epsilon < 1.25 * truth.epsilon
    assert accountant.delta(epsilon=guarantee.epsilon) == pytest.approx(1e-5, rel=1e-9)
    assert accountant.delta(epsilon=0.1) == 1.0
    assert accountant.delta(epsilon=101.0) == 0.0


def test_a_delta_below_the_reach_of_the_grid_falls_back_to_the_sum() -> None:
    accountant = composed(*many_different(30))
    total = math.fsum(epsilon for epsilon, _ in many_different(30))
    assert accountant.epsilon(delta=1e-300).epsilon == pytest.approx(total)
    assert accountant.delta(epsilon=total) == 0.0


# ------------------------------------------------------------------------------------------- what is a lower bound


@pytest.mark.parametrize(
    ("event", "is_worst"),
    [
        (ev.PureDP(epsilon=0.5), True),
        (ev.ApproximateDP(epsilon=0.5, delta=1e-9), True),
        (ev.RandomizedResponse(keep_probability=0.7), True),
        (ev.Repeated(times=3, event=ev.Composed(events=(ev.PureDP(epsilon=0.5), ev.PureDP(epsilon=0.1)))), True),
        (ev.RandomizedResponse(keep_probability=0.7, categories=3), False),
        (ev.Laplace(noise_multiplier=2.0), False),
        (ev.DiscreteLaplace(scale=2.0), False),
        (ev.Group(size=2, event=ev.PureDP(epsilon=0.1)), False),
        (ev.Composed(events=(ev.PureDP(epsilon=0.5), ev.Laplace(noise_multiplier=2.0))), False),
    ],
)
def test_only_events_that_are_their_own_worst_case_have_a_lower_bound(event: ev.PrivacyEvent, is_worst: bool) -> None:
    guarantee = ClassicalAccountant().compose(event, times=5).epsilon(delta=1e-5)
    assert (guarantee.epsilon_lower > 0) is is_worst


def test_once_a_mere_bound_was_composed_there_is_no_lower_bound_any_more() -> None:
    accountant = ClassicalAccountant().compose(ev.Laplace(noise_multiplier=2.0)).compose(ev.PureDP(epsilon=0.5))
    assert accountant.epsilon(delta=1e-5).epsilon_lower == 0


@pytest.mark.parametrize("rule", ["basic", "advanced"])
def test_the_loose_rules_claim_no_lower_bound(rule: Rule) -> None:
    assert composed((0.5, 5), rule=rule).epsilon(delta=1e-5).epsilon_lower == 0


# ------------------------------------------------------------------------------------------- the loose rules


def test_the_basic_rule_adds_epsilons_and_deltas() -> None:
    accountant = composed((0.5, 3), (0.2, 2), rule="basic", delta=1e-6)
    assert accountant.epsilon(delta=1e-5).epsilon == pytest.approx(1.9)
    assert accountant.delta(epsilon=1.95) == pytest.approx(5e-6)
    assert accountant.delta(epsilon=1.8) == 1.0


def test_the_advanced_rule_is_its_formula_for_different_epsilons_and_solves_back() -> None:
    accountant = composed((0.1, 30), (0.2, 20), rule="advanced", delta=1e-8)
    room = 1e-5 - 50 * 1e-8
    expected = math.sqrt(2 * math.log(1 / room) * (30 * 0.01 + 20 * 0.04))
    expected += 30 * 0.1 * math.expm1(0.1) + 20 * 0.2 * math.expm1(0.2)
    assert accountant.epsilon(delta=1e-5).epsilon == pytest.approx(expected)
    assert accountant.delta(epsilon=expected) == pytest.approx(1e-5)
    assert accountant.delta(epsilon=1.0) == 1.0


@pytest.mark.parametrize(("event", "epsilon"), [(ev.Laplace(noise_multiplier=2.0), 0.5), (ev.PureDP(epsilon=0.3), 0.3)])
def test_mechanisms_enter_with_their_pure_epsilon(event: ev.PrivacyEvent, epsilon: float) -> None:
    assert ClassicalAccountant(rule="basic").compose(event).epsilon(delta=1e-5).epsilon == pytest.approx(epsilon)


# ---------------------------------------------------------------------------------------------- edges, refusals


@pytest.mark.parametrize("rule", ["optimal", "basic", "advanced"])
def test_nothing_composed_costs_nothing(rule: Rule) -> None:
    accountant = ClassicalAccountant(rule=rule).compose(ev.PureDP(epsilon=1.0), times=0)
    assert accountant.epsilon(delta=1e-5).epsilon == 0
    assert accountant.delta(epsilon=0.0) == 0


@pytest.mark.parametrize("rule", ["optimal", "basic", "advanced"])
def test_what_no_float_holds_is_infinite_and_never_nothing(rule: Rule) -> None:
    huge = ClassicalAccountant(rule=rule).compose(ev.Laplace(noise_multiplier=5e-324))
    assert huge.epsilon(delta=1e-5).epsilon == math.inf
    assert huge.delta(epsilon=1e300) == 1.0
    certain = composed((1.0, 2), rule=rule, delta=1.0)
    assert certain.epsilon(delta=0.5).epsilon == math.inf
    assert certain.delta(epsilon=10.0) == 1.0


def test_sums_beyond_a_float_are_infinite() -> None:
    often = ev.Repeated(times=10**300, event=ev.Repeated(times=10**300, event=ev.PureDP(epsilon=1.0)))
    assert ClassicalAccountant(rule="basic").compose(often).epsilon(delta=1e-5).epsilon == math.inf


def test_epsilons_in_the_hundreds_do_not_overflow() -> None:
    for rule in ("optimal", "basic", "advanced"):
        epsilon = composed((800.0, 3), rule=rule).epsilon(delta=1e-5).epsilon
        assert epsilon == (math.inf if rule == "advanced" else pytest.approx(2400.0, abs=1e-3))


def test_a_delta_of_nearly_one_asks_for_nothing() -> None:
    assert composed((0.5, 100)).epsilon(delta=1 - 1e-13).epsilon == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize(
    "event",
    [
        ev.Gaussian(noise_multiplier=1.0),
        ev.Zcdp(rho=0.1),
        ev.DiscreteGaussian(sigma=2.0),
        ev.PoissonSampled(rate=0.1, event=ev.Gaussian(noise_multiplier=1.0)),
        ev.PoissonSampled(rate=0.1, event=ev.PureDP(epsilon=1.0)),
    ],
)
def test_events_without_an_epsilon_of_their_own_are_refused_and_change_nothing(event: ev.PrivacyEvent) -> None:
    accountant = composed((0.5, 1))
    assert accountant.supports(ev.PureDP(epsilon=1.0))
    assert not accountant.supports(event)
    with pytest.raises(UnsupportedEvent, match="RenyiAccountant or ExactAccountant"):
        accountant.compose(event)
    assert accountant.epsilon(delta=1e-5).epsilon == composed((0.5, 1)).epsilon(delta=1e-5).epsilon


def test_bad_settings_are_named() -> None:
    with pytest.raises(InvalidParameter, match="rule"):
        ClassicalAccountant(rule="magic")  # type: ignore[arg-type]
    with pytest.raises(InvalidParameter, match="delta"):
        composed((0.5, 1)).epsilon(delta=0.0)
    with pytest.raises(InvalidParameter, match="epsilon"):
        composed((0.5, 1)).delta(epsilon=math.nan)
    with pytest.raises(InvalidParameter, match="neighbours"):
        ClassicalAccountant(neighbours="replace")  # type: ignore[arg-type]


def test_replacing_one_unit_doubles_the_epsilon_of_laplace_noise() -> None:
    accountant = ClassicalAccountant(rule="basic", neighbours=Neighbours.REPLACE_ONE)
    assert accountant.compose(ev.Laplace(noise_multiplier=1.0)).epsilon(delta=1e-5).epsilon == 2.0


# ------------------------------------------------------------------------------------- the classical Gaussian


def test_the_classical_gaussian_formula_wastes_noise_at_one() -> None:
    assert classical_gaussian_noise_multiplier(1.0, 1e-5) == pytest.approx(4.8448, abs=1e-4)
    assert gaussian_delta(1 / 3.731, 1.0) == pytest.approx(1e-5, rel=2e-3)


@pytest.mark.parametrize(("epsilon", "true_delta"), [(10.0, 2.27e-5), (16.0, 3.4e-4)])
def test_the_classical_gaussian_formula_is_false_at_ten_and_so_refused(epsilon: float, true_delta: float) -> None:
    sigma = math.sqrt(2 * math.log(1.25 / 1e-5)) / epsilon  # what the formula would give
    naive = ndtr(1 / (2 * sigma) - epsilon * sigma) - math.exp(epsilon) * ndtr(-1 / (2 * sigma) - epsilon * sigma)
    assert naive == pytest.approx(gaussian_delta(1 / sigma, epsilon), rel=1e-6)
    assert naive == pytest.approx(true_delta, rel=0.02)
    assert naive > 1e-5
    with pytest.raises(InvalidParameter, match="proven for ε ≤ 1"):
        classical_gaussian_noise_multiplier(epsilon, 1e-5)


@given(st.floats(1e-6, 1.0), st.floats(1e-12, 0.999))
def test_where_it_is_allowed_the_classical_formula_holds(epsilon: float, delta: float) -> None:
    assert gaussian_delta(1 / classical_gaussian_noise_multiplier(epsilon, delta), epsilon) <= delta


@pytest.mark.parametrize(("epsilon", "delta"), [(0.0, 1e-5), (-1.0, 1e-5), (0.5, 0.0), (0.5, 1.0), (math.nan, 1e-5)])
def test_the_classical_formula_names_bad_input(epsilon: float, delta: float) -> None:
    with pytest.raises(InvalidParameter):
        classical_gaussian_noise_multiplier(epsilon, delta)
