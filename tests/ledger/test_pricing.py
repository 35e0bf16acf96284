"""From a charge to a claim and an attacker's advantage: one place, and each number by a second way."""

from __future__ import annotations

import dataclasses
import math

import pytest
from scipy.stats import norm

from ledger.build import RECORD, STEP, charge
from quietsum import ExactAccountant, Gaussian, Guarantee, Neighbours, PrivacyUnit
from quietsum.errors import UnsupportedEvent
from quietsum.ledger import WHOLE_PLAN, Charge, bound_advantage, claim_guarantees, price_charge, price_event
from quietsum.privacy import Laplace, OneInOneOut, PoissonSampled

ADD = Neighbours.ADD_REMOVE
NORMAL = Charge(party="a", dataset="d", unit=RECORD, event=Gaussian(noise_multiplier=2.0))


def promise(epsilon: float = 1.0, unit: PrivacyUnit = RECORD) -> Guarantee:
    return Guarantee(epsilon=epsilon, epsilon_lower=epsilon / 2, delta=1e-5, unit=unit, method="example")


def test_a_charge_costs_what_an_accountant_says_of_its_event() -> None:
    found = price_charge(charge(10), delta=1e-5, accounting="exact", neighbours=ADD)
    assert found.epsilon == ExactAccountant().compose(STEP, 10).epsilon(delta=1e-5).epsilon


def test_imperfect_noise_costs_more() -> None:
    exact, far = (
        price_charge(dataclasses.replace(charge(10), failure=failure), delta=1e-5, accounting="exact", neighbours=ADD)
        for failure in (0.0, 1e-6)
    )
    assert far.epsilon > exact.epsilon


def test_an_event_without_a_bound_is_infinite_only_where_a_record_may_let_another_in() -> None:
    batch = PoissonSampled(rate=0.1, event=Laplace(noise_multiplier=2.0))
    assert price_event(OneInOneOut(event=batch), delta=1e-5).epsilon == math.inf
    with pytest.raises(UnsupportedEvent):
        price_event(batch, delta=1e-5, neighbours=Neighbours.REPLACE_ONE)


def test_a_finished_run_claims_its_forecast_as_it_is() -> None:
    assert claim_guarantees([promise()], finished=True) == (promise(),)


@pytest.mark.parametrize(("finished", "spare"), [(False, 0), (True, 1), (False, 1)])
def test_a_run_that_may_have_been_cut_claims_the_whole_plan_without_a_lower_bound(finished: bool, spare: int) -> None:
    (found,) = claim_guarantees([promise()], finished=finished, spare_attempts=spare)
    assert (found.epsilon, found.epsilon_lower, found.method) == (1.0, 0.0, f"example; {WHOLE_PLAN}")


def test_the_advantage_is_that_of_the_curve_where_it_is_smaller() -> None:
    curve = 2 * norm.cdf(1 / 4) - 1  # two normal laws, one standard deviation of 2 apart by 1
    assert bound_advantage(promise(10.0), [NORMAL], neighbours=ADD) == pytest.approx(curve, rel=1e-9)
    assert bound_advantage(promise(1e-3), [NORMAL], neighbours=ADD) < curve  # (ε, δ) alone shows less


def test_the_worst_party_and_twice_the_distance_of_its_noise_count() -> None:
    curve = bound_advantage(promise(10.0), [NORMAL], neighbours=ADD)
    noisier = dataclasses.replace(NORMAL, event=Gaussian(noise_multiplier=8.0))
    inexact = dataclasses.replace(NORMAL, failure=1e-3)
    assert bound_advantage(promise(10.0), [NORMAL, noisier], neighbours=ADD) == curve
    assert bound_advantage(promise(10.0), [inexact], neighbours=ADD) == pytest.approx(curve + 2e-3, rel=1e-9)


def test_without_a_protected_charge_for_its_unit_only_epsilon_and_delta_speak() -> None:
    alone = (math.e - 1 + 2e-5) / (math.e + 1)
    other, bare = (dataclasses.replace(NORMAL, **change) for change in ({"unit": PrivacyUnit.CLIENT}, {"event": None}))
    for planned in ([], [other], [NORMAL, bare]):
        assert bound_advantage(promise(), planned, neighbours=ADD) == pytest.approx(alone, rel=1e-12)
