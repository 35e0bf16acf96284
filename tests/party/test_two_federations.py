"""A site in two federations: two processes, two pinned coordinators, one ledger, so one lifetime."""

from __future__ import annotations

import dataclasses
import threading
from pathlib import Path

import pytest

from party.asking import FACTS, MODEL, UNIT, Server, Watched, plan, policy, reason
from quietsum import wire
from quietsum.ledger import Kind, Ledger
from quietsum.party.books import write_resolved
from quietsum.party.policy import CoordinatorAddress, SiteName
from quietsum.party.requests import NOT_BOOKED
from quietsum.party.service import SiteService
from quietsum.party.status import OVERDRAWN, status_of
from quietsum.plan import ResolvedPlan, resolve

LIMIT = plan().limits[0].epsilon
SMALL = dataclasses.replace(UNIT, epsilon=1.01 * LIMIT, run=None)


class Federation:
    """A coordinator, and the process that serves the site for it, with a ledger of its own opening."""

    def __init__(self, place: Path, address: str, *, pinned: bool = True) -> None:
        self.server, self.task = Server(), Watched()
        name = self.server.ledger.identity.ledger if pinned else ""
        where = CoordinatorAddress(address=address, ledger=name)
        self.policy = policy(record=SMALL, coordinator=where)
        self.ledger = Ledger.open(place, create=True)
        self.service = SiteService(self.policy, self.ledger, task=lambda _: self.task)

    def enrol(self, resolved: ResolvedPlan, server: Server | None = None) -> wire.Letter:
        return self._say("enrol", {"run": "spring", "resolved": write_resolved(resolved)}, None, server)

    def train(self, resolved: ResolvedPlan, number: int) -> wire.Letter:
        body = {"run": "spring", "round": number, "attempt": 1, "plan": resolved.plan.digest}
        return self._say("train", body, MODEL, None)

    def _say(self, kind: str, body: dict[str, object], vector: object, server: Server | None) -> wire.Letter:
        content = (server or self.server).write(kind, body, vector)  # type: ignore[arg-type]
        return wire.read_letter(self.service.answer(content), most=2**22)


def two(first: Path, second: Path) -> tuple[Federation, Federation]:
    return Federation(first, "one.example.org:9092"), Federation(second, "two.example.org:9092")


@pytest.mark.parametrize("shared", [True, False])
def test_what_one_federation_spends_is_gone_for_the_other(tmp_path: Path, shared: bool) -> None:
    """Runs of the same name, too. The control: with two ledgers there are two lifetimes, which is the mistake."""
    one, other = two(tmp_path / "ledger.db", tmp_path / ("ledger.db" if shared else "second.db"))
    resolved = plan()
    for federation in (one, other):
        assert federation.enrol(resolved).kind == "enrolled"
    for number in (1, 2):
        assert one.train(resolved, number).kind == "update"
    letter = other.train(resolved, 1)
    if shared:
        assert reason(letter) == "its budget is spent" and not other.task.touched
        assert [entry.kind for entry in other.ledger.entries()].count(Kind.RESERVE) == 2
    else:
        assert letter.kind == "update"


def test_each_process_works_for_its_own_coordinator_whoever_else_the_ledger_knows(tmp_path: Path) -> None:
    one, other = two(tmp_path / "ledger.db", tmp_path / "ledger.db")
    resolved = plan()
    for _ in range(2):  # before and after both are known
        assert one.enrol(resolved).kind == other.enrol(resolved).kind == "enrolled"
        assert "it works for another coordinator" in reason(one.enrol(resolved, other.server))
        assert "it works for another coordinator" in reason(other.enrol(resolved, one.server))
    assert one.train(resolved, 1).kind == "update", "heads of the other coordinator are no obstacle"
    assert len(one.service.books.coordinators()) == len(other.service.books.coordinators()) == 2


def test_one_that_pins_nobody_is_taken_by_whoever_enrolled_first_in_the_shared_ledger(tmp_path: Path) -> None:
    place = tmp_path / "ledger.db"
    loose = Federation(place, "two.example.org:9092", pinned=False)
    assert Federation(place, "one.example.org:9092").enrol(plan()).kind == "enrolled"
    assert "it works for another coordinator" in reason(loose.enrol(plan())), "so both are pinned"


def test_two_federations_at_once_never_spend_more_than_one_lifetime(tmp_path: Path) -> None:
    federations = two(tmp_path / "ledger.db", tmp_path / "ledger.db")
    resolved, kinds = plan(federation={"rounds": 6, "deadline": 20.0}), {}
    small = dataclasses.replace(UNIT, epsilon=1.2 * resolved.limits[0].epsilon, run=None)
    for federation in federations:
        held = dataclasses.replace(federation.policy, record=small)
        task = federation.task
        federation.service = SiteService(held, federation.ledger, task=lambda _, task=task: task)  # type: ignore[misc]
        assert federation.enrol(resolved).kind == "enrolled"
    together = threading.Barrier(2)

    def ask(federation: Federation) -> None:
        together.wait()
        kinds[federation] = [federation.train(resolved, number).kind for number in range(1, 7)]

    asking = [threading.Thread(target=ask, args=(federation,)) for federation in federations]
    for thread in asking:
        thread.start()
    for thread in asking:
        thread.join()
    told = [kind for federation in federations for kind in kinds[federation]]
    assert set(told) == {"update", "refused"}, told
    ledger = federations[0].ledger
    written = [entry.kind for entry in ledger.entries()]
    touched = sum(len(federation.task.touched) for federation in federations)
    assert touched == told.count("update") == written.count(Kind.RESERVE) == written.count(Kind.COMMIT)
    (budget,) = status_of(dataclasses.replace(federations[0].policy, record=small), ledger)["budgets"]
    assert budget["bound_epsilon"] <= small.epsilon and budget["held_by"] != OVERDRAWN and budget["plans"] == 2
    assert ledger.verify().entries == len(written)


def test_two_names_for_one_dataset_are_one_too_many(tmp_path: Path) -> None:
    """Both processes were started on a new ledger, which knew neither name yet."""
    one, other = two(tmp_path / "ledger.db", tmp_path / "ledger.db")
    renamed = dataclasses.replace(other.policy, site=SiteName(name="basel"))
    other.service = SiteService(renamed, other.ledger, task=lambda _: other.task)
    assert one.enrol(plan()).kind == "enrolled"
    facts = (dataclasses.replace(FACTS[0], name="basel"), FACTS[1])
    resolved = resolve(plan().plan, facts, 3)
    body = {"run": "spring", "resolved": write_resolved(resolved)}
    letter = wire.read_letter(other.service.answer(other.server.write("enrol", body, to="basel")), most=2**22)
    assert reason(letter) == NOT_BOOKED and [book.party for book in one.ledger.lifetime()] == ["north"]
    assert one.train(plan(), 1).kind == "update"
