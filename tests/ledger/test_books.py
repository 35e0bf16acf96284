"""Lifetime budgets: exact for one plan, a filter from the second on, and no way around."""

from __future__ import annotations

import math
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest

from ledger.build import RECORD, STEP, STEPS, charge, memory_ledger, open_run, play, reserve
from quietsum import Budget, ExactAccountant, Gaussian, Neighbours, PrivacyUnit
from quietsum.errors import BudgetExhausted, InvalidParameter, PlanRefused
from quietsum.ledger import Book, Dataset, Ledger, Receipt, Terms
from quietsum.ledger.pricing import FAILURE_SHARE, CostTally, Prices, cost_of
from quietsum.privacy import ApproximateDP, RenyiFilter, gaussian_rdp
from quietsum.privacy.renyi.filters import _rdp_budget  # the formula, asked for directly


def book(ledger: Ledger) -> Book:
    (found,) = ledger.lifetime()
    return found


def plan_epsilon(rounds: int = 4) -> float:
    return ExactAccountant().compose(STEP, rounds * STEPS).epsilon(delta=1e-5).epsilon


def test_the_first_plan_may_use_the_whole_budget_exactly() -> None:
    ledger = memory_ledger()
    exact = plan_epsilon()
    open_run(ledger, limit=exact, lifetime=exact)
    play(ledger, rounds=(1, 2, 3, 4))
    assert book(ledger).spent_fraction == pytest.approx(1.0, rel=1e-9)
    with pytest.raises(BudgetExhausted):
        open_run(memory_ledger(), limit=3.0, lifetime=exact * 0.999)


def test_without_a_stated_lifetime_the_plans_own_limit_is_the_budget() -> None:
    ledger = memory_ledger()
    open_run(ledger, limit=2.5, lifetime=None)
    found = book(ledger).budget
    assert found is not None and (found.epsilon, found.delta) == (2.5, 1e-5)


def test_a_second_plan_starts_from_what_the_first_one_spent() -> None:
    ledger = memory_ledger()
    lifetime = 3.2
    open_run(ledger, lifetime=lifetime)
    play(ledger, rounds=(1, 2, 3, 4))
    open_run(ledger, "second", rounds=2)
    play(ledger, "second", rounds=(1, 2))
    with pytest.raises(BudgetExhausted) as refusal:
        open_run(ledger, "third", rounds=40, limit=5.0)
    assert open_run(memory_ledger(), "third", rounds=40, limit=5.0), "the control: alone it fits"
    found = book(ledger)
    assert found.plans == 2 and 0 < found.spent_fraction < 1
    assert found.guarantee is not None and found.guarantee.epsilon == lifetime
    assert found.guarantee.method == "Rényi filter"
    assert "'heart' of 'Basel'" in str(refusal.value)


def test_the_gate_from_the_second_plan_on_is_the_renyi_filter_of_the_budget() -> None:
    """Two oracles: RenyiFilter itself, and the formula for unsampled Gaussians by hand."""
    noise = Gaussian(noise_multiplier=20.0)
    budget = Budget(epsilon=3.0, delta=1e-5)
    gate = Prices().gate(budget)
    inner = Budget(epsilon=3.0, delta=1e-5 * (1 - FAILURE_SHARE))
    assert gate.order == pytest.approx(RenyiFilter(budget=inner).order, rel=0.01)
    filter = RenyiFilter(budget=inner, order=gate.order)
    assert (gate.order, gate.divergence) == (filter.order, filter.rdp_budget)
    import numpy as np

    by_hand = _rdp_budget(np.array([gate.order]), inner)[0] / gaussian_rdp(gate.order, 20.0)
    fits = math.floor(by_hand)
    for count, expected in ((fits, True), (fits + 1, False)):
        tally = CostTally([cost_of(charge(count, step=noise))])
        assert (gate.usage(tally, Neighbours.ADD_REMOVE, Prices()) <= 1) is expected
        assert filter.allows(noise, times=count) is expected


def test_a_first_plan_that_does_not_fit_the_filter_closes_the_book_even_when_it_stopped_early() -> None:
    """Otherwise what was seen would choose between two analyses, and neither would cover both."""
    exact = plan_epsilon()
    ledger = memory_ledger()
    open_run(ledger, limit=exact, lifetime=exact)
    play(ledger, rounds=(1,))
    with pytest.raises(BudgetExhausted, match="leaves no room for a second one"):
        open_run(ledger, "second", rounds=1)
    roomy = memory_ledger()
    open_run(roomy, limit=exact, lifetime=exact * 1.3)
    play(roomy, rounds=(1,))
    open_run(roomy, "second", rounds=1)


def test_a_run_that_stopped_early_is_charged_what_it_reserved() -> None:
    ledger = memory_ledger()
    lifetime = plan_epsilon() * 1.25
    open_run(ledger, lifetime=lifetime)
    play(ledger, rounds=(1,))
    open_run(ledger, "second", rounds=3)  # would not fit beside four rounds
    full = memory_ledger()
    open_run(full, lifetime=lifetime)
    play(full, rounds=(1, 2, 3, 4))
    with pytest.raises(BudgetExhausted):
        open_run(full, "second", rounds=3)


def test_two_open_plans_meet_the_gate_at_every_reservation() -> None:
    """Both were let in when nothing was spent; together they never exceed the filter."""
    ledger = memory_ledger()
    lifetime = plan_epsilon() * 1.2
    for run in ("first", "second"):
        open_run(ledger, run, lifetime=lifetime)
    refused = 0
    for number in (1, 2, 3, 4):
        for run in ("first", "second"):
            try:
                reserve(ledger, run, number)
            except BudgetExhausted as error:
                refused += 1
                assert "quietsum ledger raise" in str(error)
    assert refused >= 2
    found = book(ledger)
    assert found.spent_fraction <= 1
    filter = RenyiFilter(budget=Budget(epsilon=lifetime, delta=1e-5))
    reserved = sum(run.attempts for run in ledger.runs())
    assert filter.allows(STEP, times=reserved * STEPS)
    assert not filter.allows(STEP, times=(reserved + 1) * STEPS)


def test_deleting_a_runs_folder_refunds_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "first"
    folder.mkdir(parents=True)
    with Ledger.open(tmp_path / "ledger.db", create=True) as ledger:
        open_run(ledger, limit=1.1, lifetime=None)
        play(ledger)
    shutil.rmtree(folder)
    with Ledger.open(tmp_path / "ledger.db") as ledger:
        with pytest.raises(BudgetExhausted):
            open_run(ledger, "second", limit=1.1)
        assert book(ledger).spent_fraction > 0


def test_a_refusal_names_what_is_left_what_would_fit_and_what_to_type() -> None:
    ledger = memory_ledger()
    open_run(ledger, parties=("St. Gallen",), lifetime=2.0)
    play(ledger, rounds=(1, 2), party="St. Gallen")
    with pytest.raises(BudgetExhausted) as refusal:
        open_run(ledger, "second", rounds=20, parties=("St. Gallen",))
    text = str(refusal.value)
    for part in ("'heart' of 'St. Gallen'", "ε = 2 per record at δ = 1e-05", "% of it is left", "20 rounds would fit"):
        assert part in text
    found = re.search(r"about (\d+) of the plan's 20 rounds", text)
    assert found is not None
    rounds = int(found[1])
    words = shlex.split(text[text.index("quietsum ledger raise") :])
    assert words[:7] == ["quietsum", "ledger", "raise", "--party", "St. Gallen", "--dataset", "heart"]
    open_run(ledger, "less", rounds=rounds, parties=("St. Gallen",))
    with pytest.raises(BudgetExhausted):
        open_run(ledger, "one more", rounds=rounds + 1, parties=("St. Gallen",))
    options = dict(zip(words[3::2], words[4::2], strict=True))
    ledger.raise_budget(
        party=options["--party"], dataset=options["--dataset"], epsilon=float(options["--epsilon"]), reason="board"
    )
    open_run(ledger, "second", rounds=20, parties=("St. Gallen",))
    ledger.verify()


def test_a_first_plan_that_is_too_large_hears_how_much_of_it_would_fit() -> None:
    ledger = memory_ledger()
    lifetime = plan_epsilon(7) * 1.0001
    with pytest.raises(BudgetExhausted, match="about 7 of the plan's 20 rounds would fit") as refusal:
        open_run(ledger, rounds=20, lifetime=lifetime)
    wanted = re.search(r"--epsilon ([\d.]+)", str(refusal.value))
    assert wanted is not None
    assert plan_epsilon(20) <= float(wanted[1]) <= plan_epsilon(20) * 1.02
    assert ledger.head.sequence == 1, "nothing was written, not even the budget"
    open_run(ledger, rounds=7, lifetime=lifetime)


# --------------------------------------------------------------------------------------------- raising


def test_a_budget_goes_up_with_a_reason_and_never_down() -> None:
    ledger = memory_ledger()
    open_run(ledger, lifetime=2.0)
    place: dict[str, Any] = {"party": "Basel", "dataset": "heart"}
    for reason in ("", "   ", None):
        with pytest.raises(InvalidParameter, match="reason"):
            ledger.raise_budget(**place, epsilon=4.0, reason=reason)  # type: ignore[arg-type]
    for epsilon in (math.nan, math.inf, -1.0, 0.0, "4"):
        with pytest.raises(InvalidParameter, match="epsilon"):
            ledger.raise_budget(**place, epsilon=epsilon, reason="board")  # type: ignore[arg-type]
    with pytest.raises(InvalidParameter, match="below the present budget"):
        ledger.raise_budget(**place, epsilon=1.9, reason="board")
    with pytest.raises(InvalidParameter, match="δ belongs to the dataset"):
        ledger.raise_budget(**place, epsilon=4.0, delta=1e-4, reason="board")
    with pytest.raises(InvalidParameter, match="heart of Basel"):
        ledger.raise_budget(party="Basel", dataset="haert", epsilon=4.0, reason="board")
    ledger.raise_budget(**place, epsilon=4.0, delta=1e-5, reason="board, 3 May")
    ledger.raise_budget(**place, epsilon=4.0, reason="confirmed")
    found = book(ledger).budget
    assert found is not None and (found.epsilon, found.delta) == (4.0, 1e-5)
    assert [entry.body["reason"] for entry in ledger.entries() if entry.kind == "budget"][1:] == [
        "board, 3 May",
        "confirmed",
    ]


def test_a_dataset_can_get_its_budget_before_its_first_run() -> None:
    ledger = memory_ledger()
    ledger.raise_budget(party="Basel", dataset="heart", epsilon=1.5, delta=1e-6, reason="policy")
    with pytest.raises(BudgetExhausted):
        open_run(ledger, rounds=40, limit=4.0, lifetime=20.0)
    open_run(ledger)


def test_delta_belongs_to_the_dataset() -> None:
    """A plan at δ = 1e-3 is held against the dataset's δ = 1e-9, where it costs more."""
    ledger = memory_ledger()
    ledger.raise_budget(party="Basel", dataset="heart", epsilon=1.2, delta=1e-9, reason="policy")
    at_plan, at_dataset = (ExactAccountant().compose(STEP, 20).epsilon(delta=d).epsilon for d in (1e-3, 1e-9))
    assert at_plan < 1.2 < at_dataset
    with pytest.raises(BudgetExhausted):
        open_run(ledger, limit=1.2, delta=1e-3)


# ------------------------------------------------------------------------------------------ public data


def test_public_data_has_no_gate_and_says_why() -> None:
    ledger = memory_ledger()
    for index in range(12):
        open_run(ledger, f"run {index}", public="published in 1988", limit=2.0, lifetime=None)
        play(ledger, f"run {index}", rounds=(1, 2, 3, 4))
    found = book(ledger)
    assert (found.budget, found.public, found.plans) == (None, "published in 1988", 12)
    assert found.guarantee is None
    assert ledger.spending("run 3")[0].epsilon > 0, "what a run costs is still said"
    ledger.verify()


def test_style_none_is_refused_on_protected_data_and_infinite_on_public_data() -> None:
    ledger = memory_ledger()
    with pytest.raises(PlanRefused, match="declare-public"):
        open_run(ledger, step=None)
    open_run(ledger, step=None, public="published in 1988")
    ledger.commit(reserve(ledger, step=None))
    assert ledger.spending("first")[0].epsilon == math.inf
    assert list(ledger.entries())[-1].body["spent"][0]["epsilon"] == "Infinity"
    ledger.verify()


def test_a_task_cannot_lift_a_budget_but_the_owner_can() -> None:
    ledger = memory_ledger()
    open_run(ledger, lifetime=None, limit=2.0)
    play(ledger)
    with pytest.raises(PlanRefused, match="protected by a budget"):
        open_run(ledger, "second", public="trust me")
    with pytest.raises(InvalidParameter, match="reason"):
        ledger.declare_public(party="Basel", dataset="heart", reason="")
    ledger.declare_public(party="Basel", dataset="heart", reason="released by its owner")
    open_run(ledger, "second")
    ledger.verify()


def test_a_budget_ends_what_a_task_once_called_public() -> None:
    """Of a budget and a declaration the later one counts."""
    ledger = memory_ledger()
    open_run(ledger, public="the task said so", limit=2.0)
    play(ledger, rounds=(1, 2))
    assert book(ledger).budget is None  # the control: no gate so far
    ledger.raise_budget(party="Basel", dataset="heart", epsilon=2.5, delta=1e-5, reason="its owner disagrees")
    found = book(ledger)
    assert (found.public, found.plans) == ("", 1)
    assert found.budget is not None and found.budget.epsilon == 2.5
    assert found.guarantee is not None
    assert found.guarantee.epsilon == pytest.approx(plan_epsilon(2), rel=1e-9), "what was charged before counts"
    with pytest.raises(PlanRefused, match="without protection"):
        open_run(ledger, "raw", step=None)
    with pytest.raises(PlanRefused, match="protected by a budget"):
        open_run(ledger, "claimed", public="the task says so again")
    open_run(ledger, "second", rounds=2)
    play(ledger, "second", rounds=(1, 2))
    with pytest.raises(BudgetExhausted):
        open_run(ledger, "third", rounds=40, limit=5.0)
    ledger.declare_public(party="Basel", dataset="heart", reason="its owner thought again")
    assert book(ledger).public == "its owner thought again"
    open_run(ledger, "third", rounds=40, limit=5.0)
    ledger.verify()


def test_a_run_that_goes_on_after_its_data_got_a_budget_meets_it() -> None:
    ledger = memory_ledger()
    open_run(ledger, public="the task said so", rounds=20, limit=3.0)
    play(ledger, rounds=(1, 2))
    epsilon = plan_epsilon(3) * 1.001
    ledger.raise_budget(party="Basel", dataset="heart", epsilon=epsilon, delta=1e-5, reason="owner")
    reserve(ledger, round=3)
    with pytest.raises(BudgetExhausted, match="lifetime"):
        reserve(ledger, round=4)
    ledger.verify()


def test_a_budget_below_what_was_charged_in_public_claims_nothing() -> None:
    """Neither the budget nor a filter covers it, so no ε is stated, and nothing more fits."""
    ledger = memory_ledger()
    for run in ("first", "second"):
        open_run(ledger, run, public="the task said so", limit=3.0)
        play(ledger, run, rounds=(1, 2, 3, 4))
    ledger.raise_budget(party="Basel", dataset="heart", epsilon=0.5, delta=1e-5, reason="owner")
    found = book(ledger)
    assert found.guarantee is not None and found.guarantee.epsilon == math.inf
    assert found.spent_fraction == 1
    with pytest.raises(BudgetExhausted):
        open_run(ledger, "third", rounds=1)
    ledger.raise_budget(party="Basel", dataset="heart", epsilon=9.0, reason="owner")
    roomy = book(ledger).guarantee
    assert roomy is not None and roomy.epsilon == 9.0
    raw = memory_ledger()
    open_run(raw, step=None, public="the task said so")
    play(raw, rounds=(1,), step=None)
    raw.raise_budget(party="Basel", dataset="heart", epsilon=9.0, delta=1e-5, reason="owner")
    with pytest.raises(BudgetExhausted, match="released without protection while it was public"):
        open_run(raw, "third", rounds=1)
    raw.verify()


# -------------------------------------------------------------------------------------- units, relations


def test_each_unit_has_its_own_book() -> None:
    ledger = memory_ledger()
    client = PrivacyUnit.CLIENT
    ledger.open_run(
        "first",
        plan={},
        terms=Terms(limits=(Budget(epsilon=3.0, delta=1e-5), Budget(epsilon=9.0, delta=1e-4, unit=client))),
        planned=[charge(20), charge(4, unit=client)],
        datasets=[Dataset(party="Basel", dataset="heart", size=9)],
    )
    ledger.commit(ledger.reserve("first", 1, 1, [charge(5), charge(1, unit=client)]))
    assert [(found.unit, found.plans) for found in ledger.lifetime()] == [(client, 1), (RECORD, 1)]
    assert {guarantee.unit for guarantee in ledger.spending("first")} == {RECORD, client}
    ledger.verify()


def test_plans_under_different_relations_are_not_added_up() -> None:
    ledger = memory_ledger()
    open_run(ledger)
    play(ledger)
    terms = Terms(neighbours=Neighbours.REPLACE_ONE, limits=(Budget(epsilon=9.0, delta=1e-5),))
    with pytest.raises(PlanRefused, match="cannot be added up"):
        open_run(ledger, "second", terms=terms)
    open_run(memory_ledger(), "second", terms=terms)


def test_an_event_without_a_renyi_divergence_may_be_the_only_plan_but_not_one_of_two() -> None:
    ledger = memory_ledger()
    loose = ApproximateDP(epsilon=0.01, delta=1e-9)
    open_run(ledger, step=loose)
    reserve(ledger, step=loose)
    with pytest.raises(BudgetExhausted, match="leaves no room"):
        open_run(ledger, "second")


def test_failures_have_a_share_of_delta_of_their_own_under_the_filter() -> None:
    gate = Prices().gate(Budget(epsilon=2.0, delta=1e-5))
    assert (1 + math.exp(2.0)) * gate.failure <= 1e-5 * FAILURE_SHARE * (1 + 1e-12)
    fits, not_ = (CostTally([cost_of(charge(failure=gate.failure * f))]) for f in (0.9, 1.1))
    assert gate.usage(fits, Neighbours.ADD_REMOVE, Prices()) <= 1
    assert gate.usage(not_, Neighbours.ADD_REMOVE, Prices()) == math.inf


def test_a_books_total_is_that_of_all_its_runs_through_charges_and_refunds() -> None:
    """However it is kept: alone, together, and after one run has got everything back."""
    ledger = memory_ledger()
    state = ledger._journal.state.accounts
    for run in ("first", "second", "third"):
        open_run(ledger, run)
    held = state.book("Basel", "heart", RECORD)

    def agrees() -> bool:
        total = CostTally()
        for run in state.runs.values():
            total.merge(run.shares["Basel", RECORD].tally)
        return total.key() == held.total.key()

    assert agrees()
    receipts: list[Receipt] = []
    for run in ("first", "second", "third", "first"):
        receipts.append(reserve(ledger, run, round=len(receipts) + 1))
        assert agrees()
    for receipt in receipts:
        ledger.refund(receipt, "Basel", "refused")
        assert agrees()
    assert not held.charged and held.total.key() == CostTally().key()
    reserve(ledger, "third", round=9)
    assert agrees() and list(held.charged) == ["third"]
    ledger.verify()
