"""Filters and odometers keep their promise when every next step depends on what was seen."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from dp_accounting.rdp import rdp_privacy_accountant as google
from hypothesis import given, settings, strategies as st
from scipy.special import ndtri

from quietsum.errors import BudgetExhausted, InvalidParameter, MixedUnits, UnsupportedEvent
from quietsum.privacy import events as ev
from quietsum.privacy.guarantee import Budget
from quietsum.privacy.renyi.accountant import RenyiAccountant
from quietsum.privacy.renyi.filters import RenyiFilter, RenyiOdometer
from quietsum.privacy.units import Neighbours, PrivacyUnit

BUDGET = Budget(epsilon=8.0, delta=1e-5)
STEP = ev.PoissonSampled(rate=0.01, event=ev.Gaussian(noise_multiplier=1.0))
EVENTS = st.one_of(
    st.floats(0.5, 50.0).map(lambda sigma: ev.Gaussian(noise_multiplier=sigma)),
    st.tuples(st.floats(0.7, 5.0), st.floats(1e-3, 0.5)).map(
        lambda pair: ev.PoissonSampled(rate=pair[1], event=ev.Gaussian(noise_multiplier=pair[0]))
    ),
    st.floats(1e-4, 1.0).map(lambda rho: ev.Zcdp(rho=rho)),
)


def gaussian(noise_multiplier: float) -> ev.Gaussian:
    return ev.Gaussian(noise_multiplier=noise_multiplier)


# ---------------------------------------------------------------------------------------------- the filter


@pytest.mark.parametrize("epsilon", [0.05, 1.0, 8.0, 60.0])
@pytest.mark.parametrize("delta", [1e-3, 1e-5, 1e-12])
def test_the_renyi_budget_converts_back_to_exactly_the_budget(epsilon: float, delta: float) -> None:
    gate = RenyiFilter(budget=Budget(epsilon=epsilon, delta=delta))
    with mpmath.workdps(40):
        alpha = mpmath.mpf(gate.order)
        by_hand = gate.rdp_budget + mpmath.log(1 - 1 / alpha) - mpmath.log(alpha * mpmath.mpf(delta)) / (alpha - 1)
    assert float(by_hand) == pytest.approx(epsilon, rel=1e-9)
    theirs, _ = google.compute_epsilon([gate.order], [gate.rdp_budget], delta)
    assert theirs == pytest.approx(epsilon, rel=1e-9)


def test_the_chosen_order_is_the_best_one_for_gaussian_noise() -> None:
    def steps(order: float | None) -> float:
        gate = RenyiFilter(budget=BUDGET, order=order)
        return gate.rdp_budget / gate.order

    best = steps(None)
    assert best >= max(steps(order) for order in np.geomspace(2.5, 50.0, 200).tolist()) * (1 - 1e-4)
    # as many steps as zCDP allows: the largest ρ that converts to the budget
    assert 39 / 32 < best < 40 / 32


def test_the_expected_event_steers_the_order_and_buys_more_of_it() -> None:
    run = ev.Repeated(times=5_000, event=ev.PoissonSampled(rate=0.001, event=gaussian(0.8)))
    budget = Budget(epsilon=2.0, delta=1e-6)

    def fits(gate: RenyiFilter) -> int:
        while gate.allows(run):
            gate.spend(run)
        return sum(gate.history.counts.values())

    plain, told = RenyiFilter(budget=budget), RenyiFilter(budget=budget, expected=run)
    assert told.order != plain.order
    assert fits(told) >= fits(plain)


def test_an_expected_event_that_costs_nothing_leaves_the_default_order() -> None:
    free = RenyiFilter(budget=BUDGET, expected=ev.PureDP(epsilon=0.0))
    assert free.order == RenyiFilter(budget=BUDGET).order


def test_a_fixed_schedule_that_fills_the_filter_stays_below_the_accountants_budget() -> None:
    gate = RenyiFilter(budget=BUDGET)
    while gate.allows(gaussian(4.0)):
        gate.spend(gaussian(4.0))
    assert gate.history.counts and sum(gate.history.counts.values()) == 39
    accountant = RenyiAccountant(orders=[gate.order])
    assert accountant.compose(gaussian(4.0), times=39).epsilon(delta=1e-5).epsilon <= 8.0
    assert accountant.compose(gaussian(4.0)).epsilon(delta=1e-5).epsilon > 8.0


def test_spending_follows_the_divergence_of_the_order() -> None:
    gate = RenyiFilter(budget=BUDGET, order=4.0)
    gate.spend(gaussian(2.0), times=3)
    assert gate.remaining_rdp == pytest.approx(gate.rdp_budget - 3 * 4.0 / (2 * 2.0**2), rel=1e-12)
    assert gate.spent_fraction == pytest.approx(1.5 / gate.rdp_budget, rel=1e-12)
    gate.spend(STEP, times=10)
    theirs = google._compute_rdp_poisson_subsampled_gaussian(0.01, 1.0, [4.0])
    assert gate.remaining_rdp == pytest.approx(gate.rdp_budget - 1.5 - 10 * float(theirs[0]), rel=1e-9)


def test_a_charge_too_many_is_refused_and_changes_nothing() -> None:
    gate = RenyiFilter(budget=BUDGET)
    gate.spend(gaussian(1.0))
    before = (gate.remaining_rdp, gate.spent_fraction, dict(gate.history.counts))
    assert not gate.allows(gaussian(0.5))
    with pytest.raises(BudgetExhausted, match="nothing was charged"):
        gate.spend(gaussian(0.5))
    assert (gate.remaining_rdp, gate.spent_fraction, dict(gate.history.counts)) == before
    gate.spend(gaussian(5.0))  # a smaller step still fits


def test_asking_is_free_and_free_events_are_always_allowed() -> None:
    gate = RenyiFilter(budget=BUDGET)
    for _ in range(3):
        assert gate.allows(gaussian(1.0))
    assert gate.spent_fraction == 0
    gate.spend(gaussian(1.0), times=0)
    gate.spend(ev.PoissonSampled(rate=0.0, event=gaussian(1.0)))
    assert gate.remaining_rdp == gate.rdp_budget


def test_an_event_without_any_privacy_never_fits() -> None:
    assert not RenyiFilter(budget=BUDGET).allows(gaussian(1e-140))


def test_the_promise_is_the_whole_budget_from_the_first_step_on() -> None:
    gate = RenyiFilter(budget=Budget(epsilon=3.0, delta=1e-6, unit=PrivacyUnit.CLIENT), neighbours=Neighbours.ZERO_OUT)
    for _ in range(2):
        promise = gate.guarantee()
        assert (promise.epsilon, promise.delta, promise.order) == (3.0, 1e-6, gate.order)
        assert (promise.unit, promise.neighbours) == (PrivacyUnit.CLIENT, Neighbours.ZERO_OUT)
        assert "Rényi filter at order" in str(promise)
        gate.spend(gaussian(10.0))


def test_replacing_one_unit_fills_the_filter_four_times_as_fast() -> None:
    remove, replace = (
        RenyiFilter(budget=BUDGET, neighbours=relation) for relation in (Neighbours.ADD_REMOVE, Neighbours.REPLACE_ONE)
    )
    remove.spend(gaussian(4.0), times=4)
    replace.spend(gaussian(4.0))
    assert remove.spent_fraction == pytest.approx(replace.spent_fraction)


# --------------------------------------------------------------------- adaptive choices, by simulation


def gaussian_losses(generator: np.random.Generator, sigma: np.ndarray) -> np.ndarray:
    """Privacy losses of one step with noise σ each, drawn on the dataset with the unit in it."""
    mean = 1 / (2 * sigma**2)
    return generator.normal(mean, 1 / sigma)


def test_a_run_that_picks_its_noise_by_what_it_saw_stays_within_the_budget() -> None:
    """An attacker spends big steps while the loss is high and stops once it is; δ is large enough to be measured."""
    budget = Budget(epsilon=1.5, delta=0.05)
    gate = RenyiFilter(budget=budget)
    generator, runs = np.random.default_rng(7), 40_000
    loss, spent, going = np.zeros(runs), np.zeros(runs), np.ones(runs, dtype=bool)
    for _ in range(60):
        sigma = np.where(loss > 0.3, 2.0, 6.0)  # greedy: less noise where luck already helps
        cost = gate.order / (2 * sigma**2)
        going &= (spent + cost <= gate.rdp_budget) & (loss < 1.5 * budget.epsilon)  # stops at its best moment
        loss += np.where(going, gaussian_losses(generator, sigma), 0.0)
        spent += np.where(going, cost, 0.0)
    moments = np.exp((gate.order - 1) * (loss - gate.rdp_budget))
    assert moments.mean() <= 1 + 4 * moments.std() / math.sqrt(runs)  # what the filter promises, at its order
    assert np.maximum(0.0, -np.expm1(budget.epsilon - loss)).mean() < budget.delta


def test_an_odometer_holds_at_all_times_at_once_where_a_fixed_schedules_bound_does_not() -> None:
    """400 Gaussian steps; the negative control is the exact (1 − δ)-quantile of each single time."""
    delta, sigma, runs, times = 0.05, 20.0, 4_000, 400
    generator = np.random.default_rng(11)
    losses = np.cumsum(gaussian_losses(generator, np.full((runs, times), sigma)), axis=1)
    steps = np.arange(1, times + 1)
    quantile = steps / (2 * sigma**2) + np.sqrt(steps) / sigma * ndtri(1 - delta)
    assert (losses[:, -1] > quantile[-1]).mean() == pytest.approx(delta, abs=0.015)
    assert (losses > quantile).any(axis=1).mean() > 3 * delta  # whoever picks his moment beats the quantile
    odometer = RenyiOdometer(delta=delta)
    readings = np.array([odometer.compose(gaussian(sigma)).epsilon().epsilon for _ in steps])
    assert (losses > readings).any(axis=1).mean() <= delta


# ------------------------------------------------------------------------------------------- the odometer


def reading_by_mpmath(orders: tuple[float, ...], spent: list[float], delta: float) -> float:
    with mpmath.workdps(40):

        def excess(epsilon: mpmath.mpf) -> mpmath.mpf:
            terms = [mpmath.exp((a - 1) * (epsilon - r)) for a, r in zip(orders, spent, strict=True)]
            return mpmath.log(mpmath.fsum(terms) / len(orders)) + mpmath.log(delta)

        low, high = mpmath.mpf(0), mpmath.mpf(1000)
        for _ in range(120):
            middle = (low + high) / 2
            low, high = (middle, high) if excess(middle) < 0 else (low, middle)
        return float(high)


@pytest.mark.parametrize("delta", [1e-3, 1e-5, 1e-10])
@pytest.mark.parametrize(("event", "times"), [(gaussian(4.0), 50), (STEP, 1), (STEP, 10_000)])
def test_the_reading_solves_villes_inequality(event: ev.PrivacyEvent, times: int, delta: float) -> None:
    gauge = RenyiOdometer(delta=delta).compose(event, times)
    spent = [RenyiAccountant(orders=[order]).compose(event, times).rdp_at(order) for order in gauge.orders]
    assert gauge.epsilon().epsilon == pytest.approx(reading_by_mpmath(gauge.orders, spent, delta), rel=1e-9)


@settings(max_examples=40)
@given(st.lists(st.tuples(EVENTS, st.integers(1, 500)), min_size=1, max_size=4), st.floats(1e-12, 0.1))
def test_a_reading_is_never_below_the_epsilon_of_the_same_events_as_a_fixed_schedule(
    parts: list[tuple[ev.PrivacyEvent, int]], delta: float
) -> None:
    gauge, accountant = RenyiOdometer(delta=delta), RenyiAccountant()
    last = 0.0
    for event, times in parts:
        reading = gauge.compose(event, times).epsilon().epsilon
        assert reading >= accountant.compose(event, times).epsilon(delta=delta).epsilon
        assert reading >= last  # and it never falls
        last = reading
    union = min(
        sum(RenyiAccountant(orders=[order]).compose(event, times).rdp_at(order) for event, times in parts)
        + math.log(len(gauge.orders) / delta) / (order - 1)
        for order in gauge.orders
    )
    assert last <= union * (1 + 1e-9)


def test_one_order_reads_what_mironovs_conversion_says() -> None:
    gauge = RenyiOdometer(delta=1e-5, orders=[5.0]).compose(gaussian(4.0), times=50)
    fixed = RenyiAccountant(orders=[5.0], conversion="mironov").compose(gaussian(4.0), times=50)
    assert gauge.epsilon().epsilon == pytest.approx(fixed.epsilon(delta=1e-5).epsilon, rel=1e-9)
    theirs = 50 * 5.0 / (2 * 16) + math.log(1e5) / 4
    assert gauge.epsilon().epsilon == pytest.approx(theirs, rel=1e-9)


def test_a_reading_wears_its_unit_and_says_that_it_holds_at_any_time() -> None:
    gauge = RenyiOdometer(delta=1e-5, unit=PrivacyUnit.CLIENT).compose(gaussian(4.0))
    reading = gauge.epsilon()
    assert (reading.unit, reading.delta, reading.epsilon_lower) == (PrivacyUnit.CLIENT, 1e-5, 0.0)
    assert "any time" in reading.method


def test_an_odometer_starts_at_zero_and_has_no_upper_end() -> None:
    gauge = RenyiOdometer(delta=1e-5, orders=[1e7])
    assert gauge.epsilon().epsilon == 0
    assert gauge.compose(STEP).epsilon().epsilon > 1e6  # D_α is about α/2σ² there, or not finite at all


# ------------------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    "event",
    [
        ev.ApproximateDP(epsilon=0.1, delta=1e-9),
        ev.PoissonSampled(rate=0.1, event=ev.ApproximateDP(epsilon=0.1, delta=1e-9)),
    ],
)
def test_events_with_a_delta_of_their_own_are_refused_and_never_charged_without_it(event: ev.PrivacyEvent) -> None:
    gate, gauge = RenyiFilter(budget=BUDGET), RenyiOdometer(delta=1e-5)
    for act in (gate.allows, gate.spend, gauge.compose):
        with pytest.raises(UnsupportedEvent, match="δ > 0"):
            act(event)
    assert gate.spent_fraction == 0
    assert gauge.epsilon().epsilon == 0


def test_groups_of_different_sizes_do_not_mix() -> None:
    gate, gauge = RenyiFilter(budget=BUDGET), RenyiOdometer(delta=1e-5).compose(gaussian(4.0))
    gate.spend(gaussian(4.0))
    for act in (gate.spend, gauge.compose):
        with pytest.raises(MixedUnits):
            act(ev.Group(size=2, event=gaussian(4.0)))


def test_an_order_too_low_for_the_budget_is_named() -> None:
    with pytest.raises(InvalidParameter, match=r"order = 2\.0 leaves nothing to spend"):
        RenyiFilter(budget=Budget(epsilon=1.0, delta=1e-5), order=2)


@pytest.mark.parametrize("order", [1.0, 0.5, -3.0, math.nan, math.inf, "two"])
def test_orders_must_be_finite_and_above_one(order: float) -> None:
    with pytest.raises(InvalidParameter, match="order"):
        RenyiFilter(budget=BUDGET, order=order)
    with pytest.raises(InvalidParameter, match="order"):
        RenyiOdometer(delta=1e-5, orders=[2.0, order])


def test_bad_settings_are_named() -> None:
    with pytest.raises(InvalidParameter, match="budget"):
        RenyiFilter(budget=8.0)  # type: ignore[arg-type]
    with pytest.raises(InvalidParameter, match="together with an expected event"):
        RenyiFilter(budget=BUDGET, order=4.0, expected=STEP)
    with pytest.raises(InvalidParameter, match="orders"):
        RenyiOdometer(delta=1e-5, orders=[])
    with pytest.raises(InvalidParameter, match="delta"):
        RenyiOdometer(delta=0.0)
    with pytest.raises(InvalidParameter, match="times"):
        RenyiFilter(budget=BUDGET).spend(STEP, times=-1)
    with pytest.raises(InvalidParameter, match="event"):
        RenyiFilter(budget=BUDGET).allows("gaussian")  # type: ignore[arg-type]
