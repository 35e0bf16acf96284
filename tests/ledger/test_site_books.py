"""The books that a site keeps of itself: enrolled for the whole plan, then charged when it is asked.

First the ledger's own rules for such books, then the same end to end, with sites that serve over a carrier made of a
list (:mod:`federation.killing`).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.special import ndtr

from federation import killing
from federation.killing import COORDINATOR, DELTA, NOISE, Coins, Story, plan_for, policy_of
from federation.reading import Pages, check
from ledger.build import STEP, charge, memory_ledger, open_run
from ledger.test_tampering import bodies, replace_rows, rewritten, rows_of
from quietsum import Budget, Gaussian, PoissonSampled, PrivacyUnit, Repeated
from quietsum.errors import BudgetExhausted, InvalidParameter, LedgerBroken, PlanRefused
from quietsum.ledger import Charge, Dataset, Ledger, Terms
from quietsum.ledger.chain.keys import load_key
from quietsum.ledger.chain.verify import verify_file
from quietsum.party.policy import Rules, UnitPolicy
from quietsum.plan import resolve
from quietsum.tasks import Rows
from tiny import TinyTask

RECORD, CLIENT = PrivacyUnit.RECORD, PrivacyUnit.CLIENT
RELEASE = Gaussian(noise_multiplier=4.0)
ROUNDS = 4


def whole(times: int = ROUNDS, event: Any = RELEASE) -> Charge:
    """The client's charge of ``times`` rounds."""
    return Charge(party="Basel", dataset="heart", unit=CLIENT, event=Repeated(times=times, event=event))


def site_ledger(
    ledger: Ledger | None = None,
    *,
    enrolled: Sequence[PrivacyUnit] | None = (CLIENT,),
    units: Sequence[PrivacyUnit] = (RECORD, CLIENT),
) -> Ledger:
    """A run of four rounds in the books of Basel."""
    ledger = ledger or memory_ledger()
    planned = {RECORD: charge(ROUNDS * 5), CLIENT: whole()}
    limits = tuple(Budget(epsilon=9.0, delta=1e-5, unit=unit) for unit in units)
    ledger.open_run(
        "first",
        plan={"federation": {"rounds": ROUNDS}},
        terms=Terms(limits=limits, enrolled=None if enrolled is None else tuple(enrolled)),
        planned=[planned[unit] for unit in units],
        datasets=[Dataset(party="Basel", dataset="heart", size=300)],
        lifetimes=[Budget(epsilon=20.0, delta=1e-5, unit=unit) for unit in units],
    )
    return ledger


def epsilons(ledger: Ledger) -> dict[PrivacyUnit, float]:
    return {unit: one.epsilon for (_, unit), one in ledger.spending_by_party("first").items()}


# ------------------------------------------------------------------------------------------------- rules of the ledger


def test_a_site_enrols_with_the_whole_plan_and_then_pays_when_it_is_asked() -> None:
    ledger = site_ledger()
    ledger.commit(ledger.reserve("first", 0, 1, [whole()]))
    enrolled = epsilons(ledger)
    assert enrolled[RECORD] == 0.0 and enrolled[CLIENT] > 0.0
    ledger.commit(ledger.reserve("first", 1, 1, [charge()]))
    assert epsilons(ledger)[CLIENT] == enrolled[CLIENT], "paid already"
    assert epsilons(ledger)[RECORD] > 0.0
    ledger.verify(every_signature=True)


@pytest.mark.parametrize("times", [1, ROUNDS - 1, ROUNDS + 1])
def test_a_site_enrols_with_the_whole_plan_and_nothing_else(times: int) -> None:
    ledger = site_ledger()
    with pytest.raises((PlanRefused, BudgetExhausted)):
        ledger.reserve("first", 0, 1, [whole(times)])
    with pytest.raises((PlanRefused, BudgetExhausted)):
        ledger.reserve("first", 0, 1, [whole(event=Gaussian(noise_multiplier=8.0))])
    assert epsilons(ledger)[CLIENT] == 0.0


def test_a_site_enrols_once() -> None:
    ledger = site_ledger()
    ledger.reserve("first", 0, 1, [whole()])
    for attempt in (1, 3):
        with pytest.raises(InvalidParameter, match="is not the next one"):
            ledger.reserve("first", 0, attempt, [whole()])
    with pytest.raises(BudgetExhausted):
        ledger.reserve("first", 0, 2, [whole()])


def test_no_round_comes_before_a_site_has_enrolled() -> None:
    ledger = site_ledger()
    with pytest.raises(PlanRefused, match="before its first round"):
        ledger.reserve("first", 1, 1, [charge()])
    clients = site_ledger(units=(CLIENT,))
    with pytest.raises(PlanRefused, match="before its first round"):
        clients.reserve("first", 1, 1, [])
    clients.reserve("first", 0, 1, [whole()])
    clients.commit(clients.reserve("first", 1, 1, []))
    clients.verify()


def test_every_unit_is_due_at_its_own_time() -> None:
    ledger = site_ledger()
    for wrong in ([], [charge()], [whole(), charge()]):
        with pytest.raises(PlanRefused, match=r"round by round|charges 'Basel' nothing per client"):
            ledger.reserve("first", 0, 1, wrong)
    ledger.reserve("first", 0, 1, [whole()])
    for wrong in ([], [whole(1)], [charge(), whole(1)]):
        with pytest.raises(PlanRefused, match=r"once, when the site enrols|nothing per record"):
            ledger.reserve("first", 1, 1, wrong)
    ledger.reserve("first", 1, 1, [charge()])


def test_a_site_whose_plan_protects_records_alone_has_no_round_zero() -> None:
    ledger = site_ledger(enrolled=(), units=(RECORD,))
    with pytest.raises(PlanRefused, match="rounds begin with 1"):
        ledger.reserve("first", 0, 1, [charge()])
    ledger.reserve("first", 1, 1, [charge()])


def test_a_site_may_miss_attempts_and_never_goes_back() -> None:
    ledger = site_ledger()
    ledger.reserve("first", 0, 1, [whole()])
    ledger.commit(ledger.reserve("first", 1, 3, [charge()]))
    assert ledger.next_attempt("first", 1) == 4
    for behind in (1, 2, 3):
        with pytest.raises(InvalidParameter, match="use attempt 4"):
            ledger.reserve("first", 1, behind, [charge()])
    ledger.reserve("first", 3, 7, [charge()])
    with pytest.raises(InvalidParameter):
        ledger.reserve("first", 2, True, [charge()])
    assert ledger.runs()[0].attempts == 3, "what was reserved is counted, not the numbers that were skipped"
    ledger.verify()


def test_a_coordinator_is_as_strict_as_it_was() -> None:
    ledger = memory_ledger()
    open_run(ledger)
    with pytest.raises(InvalidParameter, match="use attempt 1"):
        ledger.reserve("first", 1, 2, [charge()])
    both = site_ledger(enrolled=None)
    for wrong in ([charge()], [whole(1)], []):
        with pytest.raises(PlanRefused, match="every registered party"):
            both.reserve("first", 1, 1, wrong)
    both.reserve("first", 1, 1, [charge(), whole(1)])
    both.reserve("first", 0, 1, [charge(), whole(1)])  # a round like any other there


def test_enrolled_units_are_units_each_once() -> None:
    for wrong in (("client",), (CLIENT, CLIENT), (1,)):
        with pytest.raises(InvalidParameter, match="enrolled"):
            Terms(enrolled=wrong)  # type: ignore[arg-type]
    assert Terms(enrolled=(RECORD, CLIENT)) == Terms(enrolled=(CLIENT, RECORD))
    for terms in (Terms(), Terms(enrolled=()), Terms(enrolled=(CLIENT,))):
        assert Terms.from_dict(terms.to_dict()) == terms
    assert "enrolled" not in Terms().to_dict() and Terms(enrolled=()).to_dict()["enrolled"] == []


def test_nothing_that_a_site_enrolled_with_is_refunded() -> None:
    ledger = site_ledger()
    receipt = ledger.reserve("first", 0, 1, [whole()])
    with pytest.raises(InvalidParameter, match="no charge per record"):
        ledger.refund(receipt, "Basel", "we changed our mind")


@pytest.mark.parametrize(
    ("sequence", "change"),
    [
        (5, lambda body: {**body, "charges": [whole(1).to_dict()]}),
        (5, lambda body: {**body, "round": 1}),
        (7, lambda body: {**body, "charges": [*body["charges"], whole(1).to_dict()]}),
        (7, lambda body: {**body, "round": 0}),
        (4, lambda body: {**body, "terms": {**body["terms"], "enrolled": ["record"]}}),
        (4, lambda body: {**body, "terms": {k: v for k, v in body["terms"].items() if k != "enrolled"}}),
        (4, lambda body: {**body, "terms": {**body["terms"], "enrolled": ["client", "client"]}}),
    ],
)
def test_site_books_that_break_a_rule_are_found_even_with_fresh_hashes(
    tmp_path: Path, sequence: int, change: Any
) -> None:
    path = tmp_path / "ledger.db"
    with Ledger.open(path, create=True) as ledger:
        site_ledger(ledger)  # 2 to 4
        ledger.commit(ledger.reserve("first", 0, 1, [whole()]))  # 5, 6
        ledger.commit(ledger.reserve("first", 1, 2, [charge()]))  # 7, 8
    (tmp_path / "ledger.db.head").unlink()
    verify_file(path)
    rows = rows_of(path)
    key = load_key(path, bodies(rows[0])["public_key"])
    replace_rows(
        path, rewritten(rows, key, lambda row: change(bodies(row)) if row.sequence == sequence else bodies(row))
    )
    with pytest.raises(LedgerBroken):
        verify_file(path)


# ------------------------------------------------------------------------------- rule 1, end to end: drawn or not


class Nobody(Coins):
    """A draw of nobody, round after round."""

    def coins(self, probability: float, count: int) -> Any:
        return np.zeros(count, dtype=bool)


def gaussian_epsilon(noise: float, times: int, delta: float) -> float:
    """ε of ``times`` releases, by the closed form of the Gaussian mechanism (Balle and Wang 2018, theorem 8)."""
    mean = math.sqrt(times) / noise

    def excess(epsilon: float) -> float:
        return float(ndtr(mean / 2 - epsilon / mean) - math.exp(epsilon) * ndtr(-mean / 2 - epsilon / mean) - delta)

    return float(brentq(excess, 0.0, 100.0, xtol=1e-12))


@pytest.mark.parametrize("drawn", [True, False])
@pytest.mark.parametrize("trust", [True, False])
def test_a_site_shows_the_whole_plan_per_client_from_its_first_reply_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trust: bool, drawn: bool
) -> None:
    """Trusting the draw: the coordinator's own forecast. Not trusting it: as if asked in every round."""
    if not drawn:
        monkeypatch.setattr(killing, "Coins", Nobody)
    plan = plan_for("clients", rounds=3, spare=2)
    story = Story(tmp_path, "clients", plan=plan, trust=trust)
    shown: list[float] = []
    reply = story.notes.replied

    def looks(site: str, content: bytes) -> None:
        known = set(story.notes.enrolled)
        reply(site, content)
        if story.notes.enrolled - known:
            shown.append(Pages(story.homes[site] / "ledger.db").spent[site, CLIENT])

    monkeypatch.setattr(story.notes, "replied", looks)
    assert story.go().outcome == "finished"
    assert bool(story.notes.updates) == drawn
    pages = check(story)
    (whole_plan,) = resolve(plan, TinyTask().parties(), TinyTask.dimension).forecast(at=()).whole
    closed = gaussian_epsilon(NOISE, 5, DELTA)
    assert whole_plan.unit is CLIENT and whole_plan.epsilon < 0.6 * closed
    wanted = whole_plan.epsilon if trust else closed
    assert len(shown) == 2
    for found in (*shown, pages["north"].spent["north", CLIENT], pages["south"].spent["south", CLIENT]):
        assert found == pytest.approx(wanted, rel=1e-6)
    ran = pages[COORDINATOR].spent["north", CLIENT]
    assert ran < whole_plan.epsilon, "the coordinator counts the three rounds that it made, drawn or not"
    assert ran > 0


def test_a_draw_amplifies_a_client_and_never_its_records(tmp_path: Path) -> None:
    """Hybrid: each record pays its own steps whenever its site is asked; trust in the draw changes nothing (rule 4)."""
    found = {}
    for trust in (True, False):
        story = Story(tmp_path / str(trust), "hybrid", trust=trust)
        story.go()
        found[trust] = check(story)["south"].spent
    assert found[True]["south", RECORD] == found[False]["south", RECORD]
    assert found[True]["south", CLIENT] < found[False]["south", CLIENT]


# ------------------------------------------------------------------------------------ rule 2: what refusing costs


def outcome(story: Story) -> dict[str, Pages]:
    story.go()
    return check(story)


@pytest.mark.parametrize(
    "changes",
    [
        {"rules": Rules(aggregation=("noisy-sum",))},
        {"record": UnitPolicy(epsilon=0.01, delta=DELTA)},
        {"record": UnitPolicy(epsilon=9.0, delta=DELTA, run=0.01)},
        {"record": UnitPolicy(epsilon=9.0, delta=DELTA, smallest_noise=NOISE + 1)},
    ],
)
def test_a_refusal_costs_a_site_nothing_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    def stricter(site: str, style: str, **given: Any) -> Any:
        return policy_of(site, style, **given, **(changes if site == "north" else {}))

    monkeypatch.setattr(killing, "policy_of", stricter)
    story = Story(tmp_path, "records")
    with caplog.at_level(logging.WARNING, logger="quietsum"):
        pages = outcome(story)
    assert pages["north"].spent.get(("north", RECORD), 0.0) == 0.0 and not pages["north"].reserved
    assert story.notes.touched["north"] == 0 and {one.site for one in story.notes.updates} == {"south"}
    assert "refuse" in caplog.text
    refunds = [act for act in pages[COORDINATOR].acts if act[0] == "refund"]
    assert len(refunds) == 2 and pages[COORDINATOR].spent["north", RECORD] == 0.0
    assert pages[COORDINATOR].spent["south", RECORD] > 0.0


def test_a_failure_after_the_reservation_costs_what_an_answer_costs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it fails may depend on its data; a failure that were free would be an answer that nobody pays."""
    rows = killing.Watched.rows

    def fails(self: killing.Watched, party: str) -> Rows:
        found = rows(self, party)
        if party == "north":
            raise ValueError("row 7")
        return found

    quiet = outcome(Story(tmp_path / "quiet", "records"))
    monkeypatch.setattr(killing.Watched, "rows", fails)
    story = Story(tmp_path / "failing", "records")
    pages = outcome(story)
    assert story.notes.touched["north"] == 2 and {one.site for one in story.notes.updates} == {"north", "south"}
    assert pages["north"].reserved == {(1, 1), (2, 1)} == pages["north"].committed  # noise alone, as any answer
    assert pages["north"].spent == quiet["north"].spent and pages["north"].spent["north", RECORD] > 0.0
    assert pages[COORDINATOR].spent == quiet[COORDINATOR].spent, "and it is not refunded at the coordinator"


def test_a_plan_that_was_paid_for_as_a_whole_ends_with_its_attempts(tmp_path: Path) -> None:
    """A client's rounds charge nothing more, so a site counts them: it answers rounds and spare attempts, no more."""
    story = Story(tmp_path, "clients", plan=plan_for("clients", rounds=2, spare=1))
    story.go()
    ledger = Ledger.open(story.homes["north"] / "ledger.db")
    books = story.services["north"].books
    run = "run"
    coordinator = next(iter(ledger.other_heads().values()))
    resolved = books.find_plan(run, coordinator.ledger)
    done = len([key for key in check(story)["north"].reserved if key[0] > 0])
    for attempt in range(10, 10 + resolved.attempts - done):
        books.reserve(run, resolved, 2, attempt, coordinator)
    with pytest.raises((PlanRefused, BudgetExhausted), match="3 attempts"):
        books.reserve(run, resolved, 2, 99, coordinator)
    ledger.close()


def test_amplified_and_plain_are_not_mixed_up() -> None:
    """The control of the comparison above: one draw at rate one half is worth a good deal."""
    plain, drawn = memory_ledger(), memory_ledger()
    for ledger, event in ((plain, STEP.event), (drawn, PoissonSampled(rate=0.5, event=STEP.event))):
        open_run(ledger, step=event, limit=15.0)
        ledger.reserve("first", 1, 1, [charge(step=event)])
    assert epsilons(drawn)[RECORD] < 0.7 * epsilons(plain)[RECORD]


def test_a_sites_own_books_are_not_exported_where_a_draw_protects_it(tmp_path: Path) -> None:
    """An entry for each round that it was asked in tells when it was drawn."""
    from quietsum.errors import QuietsumError
    from quietsum.ledger.chain.export import export_ledger

    for enrolled, refused in ((("client",), True), ((), False)):
        ledger = memory_ledger()
        unit = PrivacyUnit.CLIENT if enrolled else PrivacyUnit.RECORD
        terms = Terms(
            limits=(Budget(epsilon=9.0, delta=1e-5, unit=unit),), enrolled=tuple(PrivacyUnit(u) for u in enrolled)
        )
        ledger.open_run(
            "first", plan={"rounds": 2}, terms=terms, planned=[charge(10, unit=unit)],
            datasets=[Dataset(party="Basel", dataset="heart", size=300)],
        )  # fmt: skip
        path = tmp_path / f"{unit}.jsonl"
        if refused:
            with pytest.raises(QuietsumError, match="hand out the coordinator's export"):
                export_ledger(ledger, path)
            assert not path.exists()
        else:
            assert export_ledger(ledger, path)[0] == 3
