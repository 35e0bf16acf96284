"""Reserve, refund, commit: what may happen, in which order, and what it is said to cost."""

from __future__ import annotations

import datetime
import math
import threading
from pathlib import Path
from typing import Any

import pytest

from ledger.build import BOTH, RECORD, STEP, STEPS, charge, memory_ledger, open_run, play, reserve
from quietsum import Budget, ExactAccountant, Gaussian, PldAccountant, PrivacyUnit, RenyiAccountant
from quietsum.errors import BudgetExhausted, InvalidParameter, LedgerBroken, PlanRefused, QuietsumError
from quietsum.ledger import Dataset, Ledger, MemoryStore, Terms
from quietsum.ledger.chain.entries import Head, Kind, Receipt
from quietsum.ledger.chain.keys import SigningKey
from quietsum.ledger.pricing import CostTally, Prices, cost_of
from quietsum.privacy import Observer


def epsilon(steps: int, delta: float = 1e-5) -> float:
    return ExactAccountant().compose(STEP, steps).epsilon(delta=delta).epsilon


# ------------------------------------------------------------------------------------------------- spending


def test_a_run_is_charged_what_two_other_accountants_find() -> None:
    """Exact by the contour, beside privacy-loss distributions; and below the Rényi bound."""
    ledger = memory_ledger()
    open_run(ledger)
    play(ledger, rounds=(1, 2, 3))
    found = ledger.spending("first")[0]
    other = PldAccountant().compose(STEP, 3 * STEPS).epsilon(delta=1e-5)
    assert other.epsilon_lower <= found.epsilon <= other.epsilon * (1 + 1e-6)
    assert found.epsilon == pytest.approx(epsilon(3 * STEPS), rel=1e-9)
    assert found.epsilon < RenyiAccountant().compose(STEP, 3 * STEPS).epsilon(delta=1e-5).epsilon
    assert (found.unit, found.delta, found.certified) == (RECORD, 1e-5, True)


@pytest.mark.parametrize("accounting", ["exact", "rdp", "moments"])
def test_the_terms_choose_the_accountant(accounting: str) -> None:
    from quietsum.privacy.accounting import accountant_for

    ledger = memory_ledger()
    open_run(ledger, terms=Terms(accounting=accounting, limits=(Budget(epsilon=8.0, delta=1e-5),)))
    play(ledger, rounds=(1,))
    expected = accountant_for(accounting).compose(STEP, STEPS).epsilon(delta=1e-5).epsilon
    assert ledger.spending("first")[0].epsilon == pytest.approx(expected, rel=1e-9)
    ledger.verify()


def test_an_uncommitted_reservation_counts_as_spent() -> None:
    ledger = memory_ledger()
    open_run(ledger)
    play(ledger, rounds=(1,))
    before = ledger.spending("first")[0].epsilon
    reserve(ledger, round=2)
    after = ledger.spending("first")[0].epsilon
    assert after == pytest.approx(epsilon(2 * STEPS), rel=1e-9)
    assert after > before


def test_a_second_attempt_is_charged_again() -> None:
    ledger = memory_ledger()
    open_run(ledger)
    assert [reserve(ledger, round=1).attempt, reserve(ledger, round=1).attempt] == [1, 2]
    assert ledger.next_attempt("first", 1) == 3
    assert ledger.spending("first")[0].epsilon == pytest.approx(epsilon(2 * STEPS), rel=1e-9)


def test_the_worst_party_speaks_for_the_run_not_the_mean() -> None:
    ledger = memory_ledger()
    loud = Gaussian(noise_multiplier=5.0)
    ledger.open_run(
        "first",
        plan={},
        terms=Terms(limits=(Budget(epsilon=9.0, delta=1e-5),)),
        planned=[charge(20), charge(4, party="Bern", step=loud)],
        datasets=[Dataset(party=p, dataset="heart", size=9) for p in ("Basel", "Bern")],
    )
    ledger.commit(ledger.reserve("first", 1, 1, [charge(5), charge(1, party="Bern", step=loud)]))
    parties = ledger.spending_by_party("first")
    mean = sum(found.epsilon for found in parties.values()) / 2
    (server, recipients) = ledger.spending("first")
    assert server.epsilon == recipients.epsilon == max(found.epsilon for found in parties.values()) > mean
    assert (server.observer, recipients.observer) == BOTH


def test_an_observer_whom_a_charge_does_not_hold_off_is_told_so() -> None:
    ledger = memory_ledger()
    one: dict[str, Any] = {"observers": (Observer.RECIPIENTS,), "unit": PrivacyUnit.CLIENT}
    ledger.open_run(
        "first",
        plan={},
        terms=Terms(limits=(Budget(epsilon=9.0, delta=1e-5, unit=PrivacyUnit.CLIENT),)),
        planned=[charge(9, **one), charge(9, party="Bern", unit=PrivacyUnit.CLIENT)],
        datasets=[Dataset(party=p, dataset="heart", size=9) for p in ("Basel", "Bern")],
    )
    ledger.reserve("first", 1, 1, [charge(1, **one), charge(1, party="Bern", unit=PrivacyUnit.CLIENT)])
    found = {guarantee.observer: guarantee.epsilon for guarantee in ledger.spending("first")}
    assert found[Observer.SERVER] == math.inf
    assert found[Observer.RECIPIENTS] < 9


# ------------------------------------------------------------------------------------ imperfect randomness


def priced(steps: int, failure: float, delta: float = 1e-5) -> float:
    tally = CostTally([cost_of(charge(steps, failure=failure))])
    return Prices().guarantee(tally.key(), "exact", Terms().neighbours, RECORD, delta).epsilon


@pytest.mark.parametrize("failure", [1e-12, 1e-9, 1e-7, 1e-6])
def test_a_samplers_distance_from_its_law_is_paid_from_delta(failure: float) -> None:
    """δ(ε) of the ideal law + (1 + e^ε) τ ≤ δ at the ε that is charged, and not at a slightly smaller one."""
    found = priced(20, failure)
    ideal = ExactAccountant().compose(STEP, 20)
    assert ideal.delta(epsilon=found) + (1 + math.exp(found)) * failure <= 1e-5 * (1 + 1e-9)
    less = found * (1 - 1e-4)
    assert ideal.delta(epsilon=less) + (1 + math.exp(less)) * failure > 1e-5
    assert found >= epsilon(20)


def test_a_guarantee_with_failures_keeps_the_lower_bound_of_its_events() -> None:
    """Two-sided for people, while entries state the upper side only."""
    key = CostTally([cost_of(charge(20, failure=1e-14))]).key()
    found = Prices().guarantee(key, "exact", Terms().neighbours, RECORD, 1e-5)
    ideal = ExactAccountant().compose(STEP, 20).epsilon(delta=1e-5)
    assert found.epsilon_lower == ideal.epsilon_lower <= ideal.epsilon <= found.epsilon <= ideal.epsilon * (1 + 1e-5)
    assert found.epsilon == Prices().upper(key, "exact", Terms().neighbours, RECORD, 1e-5).epsilon
    assert found.warnings == ()


def test_people_hear_of_the_failure_only_where_it_takes_a_thousandth_of_delta() -> None:
    def said(failure: float) -> tuple[str, ...]:
        key = CostTally([cost_of(charge(20, failure=failure))]).key()
        return Prices().guarantee(key, "exact", Terms().neighbours, RECORD, 1e-5).warnings

    ideal = ExactAccountant().compose(STEP, 20).epsilon(delta=1e-5).epsilon
    thousandth = 1e-8 / (1 + math.exp(ideal))
    assert said(1e-21) == said(thousandth * 0.9) == ()
    (warning,) = said(thousandth * 1.1)
    assert "of δ pays for the noise's distance" in warning


def test_no_failure_costs_nothing_more_and_a_large_one_costs_everything() -> None:
    assert priced(20, 0.0) == pytest.approx(epsilon(20), rel=1e-12)
    assert priced(20, 1e-5) == math.inf
    assert priced(20, 1.0) == math.inf


def test_a_round_whose_noise_fails_too_often_is_refused() -> None:
    ledger = memory_ledger()
    open_run(ledger)
    with pytest.raises(BudgetExhausted, match="ε = inf per record"):
        reserve(ledger, failure=1e-5)
    reserve(ledger, failure=1e-15)


def test_failures_add_up_and_are_taken_back_exactly() -> None:
    tally = CostTally()
    costs = [cost_of(charge(failure=failure)) for failure in (1e-10, 3e-10, 1e-10)]
    for cost in costs:
        tally.add(cost)
    assert 5e-10 <= tally.failure < 5e-10 * (1 + 1e-12)
    for cost in costs:
        tally.add(cost, -1)
    assert tally.key() == CostTally().key()


# --------------------------------------------------------------------------------------------- order rules


def test_rounds_follow_their_attempts() -> None:
    ledger = memory_ledger()
    open_run(ledger)
    for attempt in (2, 3):
        with pytest.raises(InvalidParameter, match="use attempt 1"):
            ledger.reserve("first", 1, attempt, [charge()])
    ledger.reserve("first", 1, 1, [charge()])
    with pytest.raises(InvalidParameter, match="use attempt 2"):
        ledger.reserve("first", 1, 1, [charge()])


def test_a_commit_needs_its_reservation_and_happens_once() -> None:
    ledger = memory_ledger()
    open_run(ledger)
    receipt = reserve(ledger)
    entry = ledger.commit(receipt)
    assert entry.kind is Kind.COMMIT
    assert entry.body["spent"] == [
        {"party": "Basel", "unit": "record", "epsilon": ledger.spending("first")[0].epsilon, "delta": 1e-5}
    ]
    with pytest.raises(QuietsumError, match="is committed"):
        ledger.commit(receipt)
    with pytest.raises(QuietsumError, match="is committed"):
        ledger.refund(receipt, "Basel", "too late")
    unknown = Receipt(run="first", round=7, attempt=1, head=receipt.head, sequence=receipt.sequence)
    with pytest.raises(QuietsumError, match="nothing is reserved"):
        ledger.commit(unknown)
    misplaced = Receipt(run="first", round=2, attempt=1, head=receipt.head, sequence=3)
    reserve(ledger, round=2)
    with pytest.raises(InvalidParameter, match="not where the reservation stands"):
        ledger.commit(misplaced)


def test_a_receipt_of_another_ledger_is_refused() -> None:
    ledger, other = memory_ledger(), memory_ledger()
    for one in (ledger, other):
        open_run(one)
    receipt = reserve(other)
    reserve(ledger)
    with pytest.raises(InvalidParameter, match="another ledger's"):
        ledger.commit(receipt)
    with pytest.raises(InvalidParameter, match="is not a receipt"):
        ledger.commit("receipt")  # type: ignore[arg-type]


def test_a_refund_takes_back_one_partys_record_charge_once() -> None:
    ledger = memory_ledger()
    open_run(ledger, parties=("Basel", "Bern"))
    receipt = ledger.reserve("first", 1, 1, [charge(), charge(party="Bern")])
    with pytest.raises(InvalidParameter, match="reason"):
        ledger.refund(receipt, "Bern", " ")
    ledger.refund(receipt, "Bern", "its own budget is gone")
    with pytest.raises(InvalidParameter, match="refunded already"):
        ledger.refund(receipt, "Bern", "again")
    with pytest.raises(InvalidParameter, match="no charge per record"):
        ledger.refund(receipt, "Chur", "never charged")
    spent = ledger.spending_by_party("first")
    assert spent["Bern", RECORD].epsilon == 0
    assert spent["Basel", RECORD].epsilon > 0
    assert ledger.commit(receipt).body["operator_only"] is True
    ledger.verify()


def test_client_charges_are_never_refunded() -> None:
    """They fall on every registered party, drawn or not."""
    ledger = memory_ledger()
    unit = PrivacyUnit.CLIENT
    ledger.open_run(
        "first",
        plan={},
        terms=Terms(limits=(Budget(epsilon=9.0, delta=1e-5, unit=unit),)),
        planned=[charge(9, unit=unit)],
        datasets=[Dataset(party="Basel", dataset="heart", size=9)],
    )
    receipt = ledger.reserve("first", 1, 1, [charge(1, unit=unit)])
    with pytest.raises(InvalidParameter, match="fall on every registered party"):
        ledger.refund(receipt, "Basel", "refused")


def test_a_run_is_opened_once_and_resumed_with_the_same_plan_only() -> None:
    ledger = memory_ledger()
    entry = open_run(ledger)
    before = ledger.head
    assert open_run(ledger) == entry
    assert ledger.head == before
    with pytest.raises(PlanRefused, match="another plan"):
        open_run(ledger, rounds=5)


def test_what_the_plan_does_not_contain_is_never_charged() -> None:
    """A plan is frozen: exact accounting holds for schedules fixed in advance only."""
    ledger = memory_ledger()
    open_run(ledger, rounds=2)
    other = Gaussian(noise_multiplier=50.0)  # cheap enough for the limit, but not what was planned
    cases: list[tuple[type[QuietsumError], str, dict[str, Any]]] = [
        (BudgetExhausted, "its plan contains none", {"step": other}),
        (BudgetExhausted, "for 11 × .* its plan contains 10", {"steps": 11}),
        (PlanRefused, "not among the run's datasets", {"dataset": "lungs"}),
        (PlanRefused, "not among the run's datasets", {"party": "Bern"}),
        (PlanRefused, "no limit per client", {"unit": PrivacyUnit.CLIENT}),
        (PlanRefused, "against", {"observers": (Observer.RECIPIENTS,)}),
        (PlanRefused, "without protection", {"step": None}),
    ]
    before = ledger.head
    for kind, message, options in cases:
        with pytest.raises(kind, match=message):
            reserve(ledger, **options)
    with pytest.raises(InvalidParameter, match="twice"):
        ledger.reserve("first", 1, 1, [charge(), charge()])
    with pytest.raises(QuietsumError, match="not in the ledger"):
        ledger.reserve("second", 1, 1, [charge()])
    assert ledger.head == before
    reserve(ledger)


def test_every_party_of_the_plan_is_charged_in_every_round() -> None:
    """Rule 1: whoever is drawn or answers. A reservation that leaves somebody out would give a round away."""
    ledger = memory_ledger()
    open_run(ledger, parties=("Basel", "Bern"))
    basel, bern = charge(), charge(party="Bern")
    cases: list[tuple[list[Any], str]] = [
        ([], "'Basel' nothing per record; every registered party"),
        ([basel], "'Bern' nothing per record"),
        ([bern], "'Basel' nothing per record"),
        ([basel, charge(0, party="Bern")], "charges 'Bern' for nothing"),
        ([charge(0), charge(0, party="Bern")], "charges 'Basel' for nothing"),
    ]
    before = ledger.head
    for charges, message in cases:
        with pytest.raises(QuietsumError, match=message):
            ledger.reserve("first", 1, 1, charges)
    assert ledger.head == before
    ledger.reserve("first", 1, 1, [bern, basel])  # the control, in any order


def test_a_round_states_its_share_of_the_failure_that_the_plan_stated() -> None:
    ledger = memory_ledger()
    ledger.open_run(
        "first",
        plan={},
        terms=Terms(limits=(Budget(epsilon=3.0, delta=1e-5),)),
        planned=[charge(20, failure=2e-9)],
        datasets=[Dataset(party="Basel", dataset="heart", size=9)],
    )
    for failure in (0.0, 1e-30, 4.99e-10):
        with pytest.raises(InvalidParameter, match="its share of what the plan stated"):
            reserve(ledger, failure=failure)
    reserve(ledger, round=1, failure=2e-9 * 5 / 20)
    reserve(ledger, round=2, failure=6e-10)  # more is fine: it costs more
    ledger.verify()


def test_a_plan_charges_all_its_parties_or_none() -> None:
    def opened(*planned: Any) -> None:
        memory_ledger().open_run(
            "first",
            plan={},
            terms=Terms(limits=(Budget(epsilon=3.0, delta=1e-5),)),
            planned=planned,
            datasets=[Dataset(party=party, dataset="heart", size=9) for party in ("Basel", "Bern")],
        )

    opened(charge(20), charge(20, party="Bern"))
    with pytest.raises(PlanRefused, match="charges 'Bern' nothing per record"):
        opened(charge(20))
    with pytest.raises(PlanRefused, match="for no event"):
        opened(charge(20), charge(0, party="Bern"))


def test_a_plan_with_protection_is_not_charged_without_any_even_on_public_data() -> None:
    ledger = memory_ledger()
    open_run(ledger, public="published in 1988")
    with pytest.raises(PlanRefused, match="a release without protection, the plan has something else"):
        reserve(ledger, step=None)
    reserve(ledger)


def test_the_runs_own_limit_stops_it_before_anything_is_asked() -> None:
    """Two spare steps are planned, so the plan's multiset would allow what the stated ε does not."""
    ledger = memory_ledger()
    limit = epsilon(4 * STEPS)
    open_run(ledger, limit=limit)
    play(ledger, rounds=(1, 2, 3, 4))
    assert ledger.spending("first")[0].epsilon <= limit * (1 + 1e-9)
    with pytest.raises(BudgetExhausted):
        reserve(ledger, round=4)
    with pytest.raises(PlanRefused, match="states ε"):
        open_run(memory_ledger(), limit=limit * 0.999)


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ({"parties": ()}, "at least one party"),
        ({"parties": ("Basel", "Basel")}, "named twice"),
        ({"step": None}, "without protection"),
        ({"parties": ("",)}, "party"),
        ({"parties": ("a\nb",)}, "usable name"),
        ({"dataset": "x" * 201}, "usable name"),
    ],
)
def test_a_plan_that_makes_no_sense_is_refused_and_nothing_is_written(what: dict[str, Any], message: str) -> None:
    ledger = memory_ledger()
    with pytest.raises(QuietsumError, match=message):
        open_run(ledger, **what)
    assert ledger.head.sequence == 1


def test_names_that_look_the_same_are_the_same_dataset() -> None:
    ledger = memory_ledger()
    open_run(ledger, parties=("Zu\u0308rich",), limit=1.1, lifetime=None)
    reserve(ledger, party="Zürich ")
    with pytest.raises(BudgetExhausted):
        open_run(ledger, "second", parties=("Zürich",), limit=1.1)


@pytest.mark.parametrize("party", ["basel", "BASEL", "Ｂasel"])
def test_a_name_that_differs_by_its_spelling_only_is_refused(party: str) -> None:
    """It would be a second budget for the same data. The known name is in the message."""
    ledger = memory_ledger()
    open_run(ledger)
    before = ledger.head
    with pytest.raises(PlanRefused, match="differs from the known 'Basel'"):
        open_run(ledger, "second", parties=(party,))
    with pytest.raises(PlanRefused, match="'Basel'"):
        ledger.raise_budget(party=party, dataset="heart", epsilon=9.0, delta=1e-5, reason="board")
    with pytest.raises(PlanRefused, match="'Basel'"):
        ledger.declare_public(party=party, dataset="heart", reason="released")
    with pytest.raises(PlanRefused, match="differs from the known 'Basel'"):
        open_run(memory_ledger(), parties=("Basel", party))
    with pytest.raises(PlanRefused, match="differs from the known 'heart'"):
        open_run(ledger, "second", dataset="HEART")
    assert ledger.head == before
    open_run(ledger, "second", parties=("Bern",), dataset="HEART")  # another party may call its data as it likes
    open_run(ledger, "third", parties=("Ваsel",))  # and letters of another alphabet are not looked into
    ledger.verify()


# ---------------------------------------------------------------------------------------- clocks, processes


def test_a_clock_that_jumps_back_is_recorded_as_it_is() -> None:
    times = iter(
        [datetime.datetime(2026, 5, day, tzinfo=datetime.UTC) for day in (9, 8, 7, 30, 1)]
        + [datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)] * 9
    )
    ledger = memory_ledger(clock=lambda: next(times))
    open_run(ledger)
    play(ledger)
    stamps = [entry.time for entry in ledger.entries()]
    assert stamps != sorted(stamps)
    assert ledger.verify().entries == len(stamps)


def test_two_ledgers_on_one_file_follow_each_other(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    with Ledger.open(path, create=True) as one, Ledger.open(path) as two:
        open_run(one)
        first = reserve(two)
        assert one.next_attempt("first", 1) == 2
        one.commit(first)
        with pytest.raises(QuietsumError, match="is committed"):
            two.commit(first)
        assert one.head == two.head
        assert two.verify([one.head]).anchors == 1


def test_threads_may_share_a_ledger(tmp_path: Path) -> None:
    errors: list[Exception] = []
    with Ledger.open(tmp_path / "ledger.db", create=True) as ledger:
        for index in range(4):
            open_run(ledger, f"run {index}", dataset=f"data {index}")

        def work(index: int) -> None:
            try:
                play(ledger, f"run {index}", rounds=(1, 2, 3), dataset=f"data {index}")
            except Exception as error:
                errors.append(error)

        threads = [threading.Thread(target=work, args=(index,)) for index in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not errors, errors
        assert ledger.verify().stated == 12


def test_a_store_that_is_cut_while_open_is_noticed_at_the_next_act() -> None:
    store = MemoryStore()
    ledger = Ledger.begin(store, SigningKey.generate())
    open_run(ledger)
    play(ledger)
    del store._rows[-2:]
    with pytest.raises(LedgerBroken, match="cut or replaced"):
        reserve(ledger, round=3)


def test_heads_and_receipts_travel_as_json() -> None:
    ledger = memory_ledger()
    open_run(ledger)
    receipt = reserve(ledger)
    assert Receipt.from_dict(receipt.to_dict()) == receipt
    assert Head.from_dict(ledger.head.to_dict()) == ledger.head == receipt.head
    assert ledger.contains(receipt.head)
    for broken in (None, {}, {**receipt.head.to_dict(), "hash": "xyz"}, {**receipt.head.to_dict(), "sequence": 0}):
        with pytest.raises(QuietsumError):
            Head.from_dict(broken)  # type: ignore[arg-type]


def test_a_head_is_contained_only_with_its_hash_place_name_and_signature() -> None:
    ledger = memory_ledger()
    open_run(ledger)
    head = ledger.head
    play(ledger)
    assert ledger.contains(head)
    values = head.to_dict()
    for change in (
        {"sequence": head.sequence - 1},
        {"sequence": 99},
        {"hash": "0" * 64},
        {"ledger": "0" * 32},
        {"signature": "0" * 128},
    ):
        assert not ledger.contains(Head.from_dict({**values, **change})), change


def test_runs_are_summed_up() -> None:
    ledger = memory_ledger()
    open_run(ledger)
    play(ledger)
    reserve(ledger, round=2)
    (run,) = ledger.runs()
    assert (run.run, run.rounds, run.attempts, run.committed) == ("first", 2, 3, 2)
    assert run.datasets == (("Basel", "heart"),)
