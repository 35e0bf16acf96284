"""How often groups are drawn is counted in the site's own ledger, whatever the coordinator says in between.

Each draw is a try to seat this site among colluders. A lying coordinator opens session after session without ever
asking for an update, under one name of a run or many, before and after the site was restarted.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import party.asking as asking
from party.asking import Place, Server, fresh
from quietsum import failpoints
from quietsum.cli.sites.status import print_draws
from quietsum.errors import InvalidParameter, PlanRefused
from quietsum.ledger import Ledger, StoreFailed
from quietsum.ledger.chain.entries import Kind
from quietsum.ledger.chain.packing import pack, unpack
from quietsum.ledger.stores.protocol import MemoryStore
from quietsum.party.books import SiteBooks, name_in_books
from quietsum.party.peers import certificate, identity_of
from quietsum.party.policy import (
    AllowedTask,
    CoordinatorAddress,
    Policy,
    Rules,
    SiteDataset,
    SiteName,
    UnitPolicy,
)
from quietsum.party.secure import model_hash, sessions_of, terms_of
from quietsum.party.status import status_of
from quietsum.plan import PartyFacts, Plan, ResolvedPlan, resolve
from quietsum.plan.groups import SESSIONS
from quietsum.secagg import Identity, Server as Relay

NAMES = ["north", *(f"s{at:02d}" for at in range(1, 16))]
PLAN: dict[str, Any] = {
    "task": {"name": "points"},
    "federation": {"rounds": 2, "deadline": 20.0},
    "training": {"sample_rate": 0.25, "local_steps": 2},
    "privacy": {"style": "sample", "record": asking.RECORD},
    "aggregation": {"secure": True, "groups": 3, "rule": "median", "attackers": 0, "colluders": 2},
}
POLICY = Policy(
    site=SiteName(name="north"),
    coordinator=CoordinatorAddress(address="127.0.0.1:9092"),
    dataset=SiteDataset(name="points-north", size=120),
    tasks=(AllowedTask(name="points"),),
    rules=Rules(aggregation=("mean",), smallest_cohort=1),
    record=UnitPolicy(epsilon=30.0, delta=1e-3, run=10.0, smallest_noise=1.0, largest_clip=4.0),
)
MODEL = model_hash(np.zeros(3))


def asked(parties: int = 16, **changes: Any) -> ResolvedPlan:
    plan = Plan.from_dict({**PLAN, **changes})
    names = ["north", *(f"s{at:02d}" for at in range(1, parties))]
    return resolve(plan, [PartyFacts(name=name, dataset=f"points-{name}", size=120) for name in names], 3)


def allowed(resolved: ResolvedPlan) -> int:
    found = sessions_of(resolved)
    assert found is not None
    return found


def having(held: Policy, lost: int) -> Policy:
    return dataclasses.replace(held, rules=dataclasses.replace(held.rules, lost_sessions=lost))


class Liar:
    """A coordinator that opens sessions, with peers that it made up, and asks for no update."""

    def __init__(self, resolved: ResolvedPlan | None = None, **place: Any) -> None:
        self.resolved, self.server, self.boss = resolved or asked(), Server(), Identity.fresh()
        self.place = Place(POLICY, **place)
        self.tried = 0
        self.make_up_peers()

    def make_up_peers(self) -> None:
        ledgers = {name: fresh() for name in NAMES[1:]}
        self.keys = {name: identity_of(ledger) for name, ledger in ledgers.items()}
        self.told = {
            name: certificate(ledgers[name], ledgers[name].identity.public_key, name, key)
            for name, key in self.keys.items()
        }

    def open(self, run: str = "first") -> str:
        """Ask for one more session of a run; what the site says."""
        own = self.server.enrol(self.place, self.resolved, run).body["identity"]
        self.tried += 1
        public = {"north": bytes.fromhex(own["key"])} | {name: key.public for name, key in self.keys.items()}
        terms = terms_of(self.resolved, (run, 1, self.tried), MODEL)
        body = {
            "run": run, "round": 1, "attempt": self.tried, "plan": self.resolved.plan.digest, "step": "open",
            "model": MODEL, "server": self.boss.public.hex(), "peers": {"north": own, **self.told},
        }  # fmt: skip
        relay = Relay(terms=terms, identity=self.boss, identities=public)
        letter = self.server.say(self.place, "secure", body, payload=relay.open()["north"])
        return f"{letter.kind} {letter.body.get('reason', '')}"

    def farewell(self, run: str = "first") -> None:
        self.server.say(self.place, "farewell", {"run": run})

    def restart(self, held: Policy = POLICY) -> None:
        self.place.start(held)

    @property
    def drawn(self) -> int:
        return sum(sessions for sessions, _ in self.place.ledger.drawing_sessions("north", "points-north").values())


@pytest.fixture(autouse=True)
def no_hook() -> Iterator[None]:
    yield
    failpoints.install(None)


# --------------------------------------------------------------------------------------------------- one run


def test_a_farewell_gives_no_new_draws_and_no_new_peers() -> None:
    liar = Liar()
    most = allowed(liar.resolved)
    assert all(liar.open().startswith("secure") for _ in range(most))
    for _ in range(3):
        assert "groups were drawn as often" in liar.open()
        liar.farewell()
    liar.make_up_peers()
    assert "ledger" in liar.open()


def test_a_restarted_site_counts_on() -> None:
    liar = Liar()
    most = allowed(liar.resolved)
    for _ in range(most):
        assert liar.open().startswith("secure")
        liar.restart()
        liar.make_up_peers()  # a site that pins nobody takes the first that its process is shown
    assert "groups were drawn as often" in liar.open()
    liar.restart()
    assert "groups were drawn as often" in liar.open()
    assert liar.drawn == most


# -------------------------------------------------------------------------------------------------- many runs


def tries(liar: Liar) -> int:
    """How many sessions a coordinator gets that begins three runs' worth of runs, and restarts the site between."""
    found = 0
    for at in range(3 * allowed(liar.resolved)):
        found += liar.open(f"run-{at // 2}").startswith("secure")
        if at % 3 == 2:
            liar.farewell(f"run-{at // 2}")
        if at % 5 == 4:
            liar.restart()
    return found


def test_new_names_of_runs_give_no_new_draws() -> None:
    liar = Liar()
    assert tries(liar) == allowed(liar.resolved) == liar.drawn


def test_the_control_without_the_count_in_the_ledger_every_name_of_a_run_brings_more_draws(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(SiteBooks, "draw", lambda *_: None)
    liar = Liar()
    assert tries(liar) == 3 * allowed(liar.resolved)


def test_a_session_is_in_the_ledger_before_anything_of_it_leaves() -> None:
    """Killed right behind the entry, or right before it: never is a pledge out that was not counted."""
    liar = Liar()

    def crash(at: str) -> None:
        def hook(place: str) -> None:
            if place == at:
                raise KeyboardInterrupt

        failpoints.install(hook)

    for place, counted in (("party:before-draw", 0), ("party:drawn", 1)):
        crash(place)
        with pytest.raises(KeyboardInterrupt):
            liar.open(place)
        failpoints.install(None)
        liar.restart()
        assert liar.drawn == counted


def test_a_ledger_that_takes_no_entry_opens_no_session() -> None:
    class Full(MemoryStore):  # type: ignore[misc]  # final, but a disk that fills has to be played
        full = False

        def append(self, row: Any) -> None:
            if self.full:
                raise StoreFailed("the disk is full")
            super().append(row)

    store = Full()
    liar = Liar(store=store)
    assert liar.open().startswith("secure")
    store.full = True
    assert not liar.open().startswith("secure")
    store.full = False
    assert liar.drawn == 1


# ---------------------------------------------------------------------------------------- what charges pay for

LARGE = dataclasses.replace(POLICY, record=UnitPolicy(epsilon=30.0, delta=5e-3))


class Books:
    """A site's books, asked for sessions and updates; ``taken`` and ``charged`` are a plain count beside them."""

    def __init__(self, held: Policy = LARGE) -> None:
        self.place, self.server = Place(held), Server()
        self.books = SiteBooks(held, self.place.ledger)
        self.rounds: dict[str, int] = {}
        self.taken = self.charged = 0

    def draw(self, run: str, resolved: ResolvedPlan) -> bool:
        told = self.server.ledger.testimony()
        if run not in self.rounds:
            self.books.enrol(run, resolved, told)
            self.rounds[run] = 0
        try:
            self.books.draw(run, resolved, told)
        except PlanRefused:
            return False
        self.taken += 1
        return True

    def charge(self, run: str, resolved: ResolvedPlan) -> None:
        self.rounds[run] += 1
        self.books.reserve(run, resolved, self.rounds[run], 1, self.server.ledger.testimony())
        self.charged += 1

    def uncharged(self, resolved: ResolvedPlan, most: int = 40) -> int:
        """How many sessions new runs get that never ask for an update."""
        return sum(self.draw(f"lost-{resolved.plan.digest[:4]}-{at // 2}", resolved) for at in range(most))


def test_a_charged_attempt_pays_for_two_sessions_so_honest_runs_go_on_for_ever() -> None:
    resolved, site = asked(), Books()
    for run in map(str, range(12)):
        for _ in range(2):
            assert site.draw(run, resolved)  # lost
            assert site.draw(run, resolved)
            site.charge(run, resolved)
    assert site.uncharged(resolved) == allowed(resolved)


def test_over_a_dataset_s_life_draws_are_those_of_charged_attempts_and_of_one_plan() -> None:
    resolved, charged = asked(), 0
    for seed in range(3):
        site, rng = Books(), np.random.default_rng(seed)
        for _ in range(60):
            run = str(rng.integers(40))
            if site.draw(run, resolved) and rng.random() < 0.75 and site.rounds[run] < 2:
                site.charge(run, resolved)
            assert site.taken <= SESSIONS * site.charged + allowed(resolved)
        site.uncharged(resolved, 80)
        assert site.taken == SESSIONS * site.charged + allowed(resolved)
        charged += site.charged
    assert charged > 9


def test_two_processes_of_one_site_share_one_count() -> None:
    resolved, site = asked(), Books()
    told = site.server.ledger.testimony()
    both = [SiteBooks(LARGE, Ledger.on(site.place.store, site.place.key)) for _ in range(2)]
    taken = 0
    for at in range(3 * allowed(resolved)):
        run = f"run-{at % 3}"
        both[at % 2].enrol(run, resolved, told)
        with contextlib.suppress(PlanRefused):
            both[1 - at % 2].draw(run, resolved, told)
            taken += 1
    assert taken == allowed(resolved)


def mixed() -> list[ResolvedPlan]:
    stated = {**PLAN["aggregation"], "groups": 6}
    return [asked(48, aggregation={**stated, "colluders": colluders}) for colluders in (6, 5)]


def test_charges_of_draws_that_risk_little_buy_none_that_risk_more() -> None:
    """48 parties in six groups: made for five colluders in one, a draw risks 2.7e-5; made for four, twenty times it."""
    safe, risky = mixed()
    chances = [one.secure.grouping.chance for one in (safe, risky) if one.secure and one.secure.grouping]
    assert 20 * chances[0] < chances[1]
    site = Books()
    for run in map(str, range(10)):
        for _ in range(2):
            assert site.draw(run, safe)
            site.charge(run, safe)
    assert SESSIONS * site.charged - site.taken == 20  # by their number alone twenty more might be drawn
    assert site.uncharged(risky) == allowed(risky)


def test_the_chance_over_all_draws_is_what_was_charged_and_one_plan_s() -> None:
    """Whatever plans a coordinator mixes: the sum of the chances of all draws stays below what was printed."""
    plans = [
        asked(48, aggregation={**PLAN["aggregation"], "groups": 6, "colluders": colluders}) for colluders in (6, 5)
    ]
    chance = [one.secure.grouping.chance for one in plans if one.secure and one.secure.grouping]
    largest = max(one.secure.grouping.chance_of_run for one in plans if one.secure and one.secure.grouping)
    site, rng, spent, paid = Books(), np.random.default_rng(11), 0.0, 0.0
    for _ in range(120):
        kind = int(rng.integers(2))
        run = f"{kind}-{rng.integers(30)}"
        if site.draw(run, plans[kind]):
            spent += 3 * chance[kind]
            if rng.random() < 0.75 and site.rounds[run] < 2:
                site.charge(run, plans[kind])
                paid += 3 * SESSIONS * chance[kind]
        assert spent <= (paid + largest) * (1 + 1e-9)
    assert paid > 0


def test_a_site_that_allows_no_lost_sessions_draws_as_often_as_charges_pay_for() -> None:
    resolved = asked()
    strict, wide = (Books(having(LARGE, lost)) for lost in (0, 30))
    assert strict.uncharged(resolved) == SESSIONS
    assert wide.uncharged(resolved) == SESSIONS + 30
    with pytest.raises(InvalidParameter, match="lost_sessions"):
        Rules(lost_sessions=-1)


def test_a_site_s_operator_is_told_how_to_go_on(caplog: pytest.LogCaptureFixture) -> None:
    liar = Liar()
    for _ in range(allowed(liar.resolved)):
        liar.open()
    assert "rules.lost_sessions" not in liar.open("second")  # what the coordinator hears
    assert "set rules.lost_sessions in the policy above 2" in caplog.text
    liar.restart(having(POLICY, 3))
    assert liar.open("third").startswith("secure")


# ------------------------------------------------------------------------------------------------- in the books


def test_the_count_verifies_is_packed_with_the_rest_and_stands_for_no_attempt(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    resolved, server = asked(), Server()
    told = server.ledger.testimony()
    with Ledger.open(path, create=True) as ledger:
        books = SiteBooks(POLICY, ledger)
        books.enrol("first", resolved, told)
        books.draw("first", resolved, told)
        books.draw("first", resolved, told)
        name = name_in_books("first", told.ledger)
        assert unpack(pack(ledger._journal.state)).accounts.runs[name].drawn == 2
        ledger.verify()
        assert ledger.next_attempt(name, 0) == ledger.next_attempt(name, 1) == 1
        entries = [entry.body for entry in ledger.entries() if entry.kind is Kind.WITNESS]
        assert [(body["round"], body["attempt"]) for body in entries][-2:] == [(0, 1), (0, 2)]
    with Ledger.open(path) as again:
        assert again.drawing_sessions("north", "points-north") == {name: (2, 0)}
        assert again.drawing_sessions("north", "other") == {}


def test_an_enrolment_is_no_draw_and_pays_for_none() -> None:
    held = asking.policy("user")
    place, server = Place(held), Server()
    assert server.enrol(place, asking.plan("user")).kind == "enrolled"
    assert place.ledger.drawing_sessions("north", "points-north") == {} and place.reserved
    with pytest.raises(InvalidParameter, match="draws no groups"):
        place.ledger.draw(name_in_books("first", server.ledger.identity.ledger), {}, lambda _: None)


def test_the_list_of_entries_calls_a_session_by_its_name() -> None:
    from quietsum.report import describe_entry

    liar = Liar()
    liar.open()
    liar.open()
    ledger = liar.place.ledger
    told = [describe_entry(ledger, entry)[0] for entry in ledger.entries() if entry.kind is Kind.WITNESS]
    assert told[-2:] == ["groups drawn, session 1", "groups drawn, session 2"]


def test_a_site_s_status_says_how_often_groups_were_drawn(capsys: pytest.CaptureFixture[str]) -> None:
    resolved, site = asked(), Books()
    assert site.draw("first", resolved) and site.draw("first", resolved)
    site.charge("first", resolved)
    values = status_of(LARGE, site.place.ledger)
    assert values["draws"] == {"sessions": 2, "charged": 1}
    print_draws(values)
    assert capsys.readouterr().out == "random groups were drawn in 2 sessions, 1 of them charged\n"
    print_draws(status_of(asking.policy(), Place().ledger))
    assert capsys.readouterr().out == ""
