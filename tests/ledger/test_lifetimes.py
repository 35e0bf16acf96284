"""A larger lifetime never refuses what a smaller one takes, and keeps its promise all the same."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from ledger.build import RECORD, STEP, charge, memory_ledger, play
from quietsum import Budget, FixedSizeSampled, Gaussian, Laplace, Neighbours, PoissonSampled
from quietsum.errors import BudgetExhausted
from quietsum.ledger import Dataset, Ledger, Terms, ledger as writing
from quietsum.ledger.pricing import FAILURE_SHARE, PRICING, CostTally, Gate, Prices, cost_of
from quietsum.privacy import PureDP
from quietsum.privacy.events import OneInOneOut, PrivacyEvent
from quietsum.privacy.renyi.filters import _rdp_budget, best_order

ADD, REPLACE = Neighbours.ADD_REMOVE, Neighbours.REPLACE_ONE
EVENTS = [
    (ADD, STEP),
    (ADD, Gaussian(noise_multiplier=3.0)),
    (ADD, PoissonSampled(rate=0.25, event=Gaussian(noise_multiplier=1.0))),
    (REPLACE, FixedSizeSampled(rate=0.05, event=Gaussian(noise_multiplier=2.0))),
    (ADD, Laplace(noise_multiplier=3.0)),
    (ADD, PureDP(epsilon=0.2)),
    (ADD, OneInOneOut(event=STEP)),
]
DELTAS = (5e-3, 1e-5, 1e-9)
FAILURES = (0.0, 1e-36, 1e-30, 1e-20, 1e-11)
LIFETIMES = [float(epsilon) for epsilon in np.geomspace(0.05, 1000.0, 90)]


def planned(event: PrivacyEvent, failure: float, steps: int = 5) -> CostTally:
    return CostTally([cost_of(charge(steps, step=event, failure=failure))])


def times(gate: Gate, plan: CostTally, neighbours: Neighbours, prices: Prices) -> float:
    """How many plans like this one a gate lets through, in all."""
    used = max(gate.divergence_usage(plan, neighbours, prices), plan.failure / gate.failure if plan.failure else 0.0)
    return 1 / used if gate.usage(plan, neighbours, prices) <= 1 else 0.0


@pytest.mark.parametrize("at", range(len(EVENTS)), ids=lambda at: f"{EVENTS[at][1].kind}-{at}")
def test_a_larger_lifetime_takes_as_many_plans_as_a_smaller_one(at: int) -> None:
    (neighbours, event), prices = EVENTS[at], Prices()
    opened = 0
    for delta in DELTAS:
        for failure in FAILURES:
            plan, most = planned(event, failure), 0.0
            for epsilon in LIFETIMES:
                budget = Budget(epsilon=epsilon, delta=delta)
                found = times(prices.gate_after(budget, plan, neighbours), plan, neighbours, prices)
                assert found >= most * (1 - 1e-9), (delta, failure, epsilon)
                most = max(most, found)
            opened += most >= 2
    assert opened >= len(DELTAS) * (len(FAILURES) - 2)


def test_the_older_gate_closed_for_a_larger_lifetime() -> None:
    """The control: the check above finds it."""
    prices, plan = Prices(), planned(STEP, 1e-30)
    older = [
        times(prices._older_gate(Budget(epsilon=epsilon, delta=5e-3)), plan, ADD, prices)
        for epsilon in (8.0, 30.0, 100.0, 300.0)
    ]
    assert older[1] > older[0] > 2 and older[2:] == [0.0, 0.0]


@pytest.mark.parametrize("delta", DELTAS)
def test_a_later_plan_that_is_as_exact_as_ordinary_noise_is_taken_by_every_larger_lifetime(delta: float) -> None:
    """Also where the first plan was far more exact."""
    prices = Prices()
    for first in (planned(STEP, 1e-40), planned(STEP, 1e-36)):
        both = planned(STEP, 1e-29)
        both.merge(first)
        taken = [
            prices.gate_after(Budget(epsilon=epsilon, delta=delta), first, ADD).usage(both, ADD, prices) <= 1
            for epsilon in LIFETIMES
        ]
        assert taken == sorted(taken) and taken[-1]


def test_every_gate_keeps_the_promise_of_its_budget() -> None:
    """By hand: the conversion back to ε′ at the filter's part of δ, and what failures cost at that ε′."""
    prices = Prices()
    for neighbours, event in EVENTS:
        for delta in DELTAS:
            for failure in FAILURES:
                for epsilon in (0.1, 3.0, 30.0, 90.0, 600.0):
                    budget = Budget(epsilon=epsilon, delta=delta)
                    gate = prices.gate_after(budget, planned(event, failure), neighbours)
                    a, inner = gate.order, delta * (1 - FAILURE_SHARE)
                    effective = gate.divergence + math.log1p(-1 / a) - (math.log(inner) + math.log(a)) / (a - 1)
                    assert effective <= epsilon * (1 + 1e-9)
                    assert gate.failure * (1 + math.exp(effective)) <= delta * FAILURE_SHARE * (1 + 1e-6)


def test_the_best_order_falls_and_what_it_allows_grows_with_the_budget() -> None:
    for delta in (1e-12, 1e-5, 5e-3, 0.3):
        budgets = [Budget(epsilon=float(epsilon), delta=delta) for epsilon in np.geomspace(1e-4, 1000, 300)]
        orders = [best_order(budget) for budget in budgets]
        allowed = [
            float(_rdp_budget(np.array([order]), budget)[0]) for order, budget in zip(orders, budgets, strict=True)
        ]
        assert orders == sorted(orders, reverse=True) and allowed == sorted(allowed) and allowed[0] > 0
        for budget, order, found in list(zip(budgets, orders, allowed, strict=True))[::20]:
            others = np.array([1 + (order - 1) * factor for factor in (0.5, 0.9, 0.99, 1.01, 1.1, 2.0)])
            assert (_rdp_budget(others, budget) / others < found / order).all()


# --------------------------------------------------------------------------------------------------- in a ledger


def open_plan(
    ledger: Ledger, run: str, *, lifetime: float, failure: float, delta: float = 5e-3, rounds: int = 2
) -> None:
    ledger.open_run(
        run, plan={"federation": {"rounds": rounds}, "run": run},
        terms=Terms(limits=(Budget(epsilon=6.0, delta=delta),)),
        planned=[charge(rounds * 5, failure=failure)], datasets=[Dataset(party="Basel", dataset="heart", size=300)],
        lifetimes=(Budget(epsilon=lifetime, delta=delta),),
    )  # fmt: skip


@pytest.mark.parametrize("lifetime", [8.0, 30.0, 100.0, 300.0])
def test_a_second_plan_is_taken_however_large_the_lifetime(lifetime: float) -> None:
    ledger = memory_ledger()
    for run in ("first", "second", "third"):
        open_plan(ledger, run, lifetime=lifetime, failure=1e-26)
        play(ledger, run, rounds=(1, 2), failure=5e-27)
    assert ledger.verify().runs == 3
    (book,) = ledger.lifetime()
    assert book.guarantee is not None and book.guarantee.epsilon == lifetime and 0 < book.spent_fraction < 1


def test_where_only_the_noise_s_distance_from_its_law_is_too_large_the_refusal_says_so() -> None:
    ledger = memory_ledger()
    open_plan(ledger, "first", lifetime=20.0, failure=1e-30)
    play(ledger, "first", rounds=(1, 2), failure=5e-31)
    with pytest.raises(BudgetExhausted, match="A larger lifetime does not change that: plan fewer rounds"):
        open_plan(ledger, "second", lifetime=20.0, failure=1e-10)


def test_after_a_first_plan_without_failures_a_budget_can_be_raised_to_whatever_a_second_one_needs() -> None:
    ledger = memory_ledger()
    open_plan(ledger, "first", lifetime=8.0, failure=0.0)
    play(ledger, "first", rounds=(1, 2))
    book = ledger._journal.state.accounts.book("Basel", "heart", RECORD)
    huge, prices = CostTally([cost_of(charge(100_000))]), Prices()
    first = next(iter(book.charged.values()))
    assert prices.gate_after(Budget(epsilon=8.0, delta=5e-3), first.planned, ADD).usage(huge, ADD, prices) > 1
    assert prices.gate_after(Budget(epsilon=900.0, delta=5e-3), first.planned, ADD).usage(huge, ADD, prices) <= 1


def test_a_refusal_names_no_larger_lifetime_where_none_helps() -> None:
    ledger = memory_ledger()
    open_plan(ledger, "first", lifetime=30.0, failure=1e-26)
    play(ledger, "first", rounds=(1, 2), failure=5e-27)
    terms = Terms(limits=(Budget(epsilon=1e4, delta=5e-3),))
    with pytest.raises(BudgetExhausted, match="after its first plan no larger lifetime takes this one") as refusal:
        ledger.open_run(
            "huge", plan={"run": "huge"}, terms=terms, planned=[charge(100_000)],
            datasets=[Dataset(party="Basel", dataset="heart", size=300)],
        )  # fmt: skip
    assert "EPSILON" not in str(refusal.value)


def test_a_book_that_an_older_version_began_keeps_its_gate_and_verifies(monkeypatch: pytest.MonkeyPatch) -> None:
    """The grid of orders let a little more of some events through, and what it let through stays good."""
    prices, budget = Prices(), Budget(epsilon=1.0, delta=1e-5)

    def fits(gate: Gate, event: PrivacyEvent) -> int:
        return math.floor(1 / gate.usage(CostTally([cost_of(charge(1, step=event))]), ADD, prices))

    gates = prices._older_gate(budget), prices.gate(budget)
    events = (PureDP(epsilon=float(epsilon)) for epsilon in np.linspace(0.03, 0.06, 200))
    event, most = next((one, fits(gates[0], one)) for one in events if fits(gates[0], one) > fits(gates[1], one))

    def written() -> Ledger:
        ledger = memory_ledger()
        for run, steps in (("first", 10), ("second", most - 10)):
            ledger.open_run(
                run, plan={"run": run}, terms=Terms(limits=(dataclasses.replace(budget, epsilon=0.9),)),
                planned=[charge(steps, step=event)], datasets=[Dataset(party="Basel", dataset="heart", size=300)],
                lifetimes=(budget,),
            )  # fmt: skip
            ledger.commit(ledger.reserve(run, 1, 1, [charge(steps, step=event)]))
        return ledger

    with pytest.raises(BudgetExhausted):
        written()
    monkeypatch.setattr(writing, "PRICING", PRICING - 1)
    ledger = written()
    assert ledger.verify().runs == 2
    assert ledger.lifetime()[0].unit is RECORD and ledger.lifetime()[0].spent_fraction <= 1


def test_an_older_first_plan_that_closed_its_book_leaves_room_now() -> None:
    prices, plan, budget = Prices(), planned(STEP, 1e-30), Budget(epsilon=100.0, delta=5e-3)
    assert prices._older_gate(budget).usage(plan, ADD, prices) == math.inf
    assert prices.gate_after(budget, plan, ADD, PRICING - 1).usage(plan, ADD, prices) < 0.1
