"""Sites over a carrier that loses, repeats and forges, and sites that lie: each costs itself its place in the round.

The carrier is two lists (:mod:`federation.sites`), the clock is a number, and every site is a real one with its own
ledger on disk. A round ends at its deadline with all others in it, whatever one site sends or does not send.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from federation import sites
from federation.sites import Place, facts_of, policy_for
from federation.world import (
    HYBRID,
    NAMES,
    OTHERS,
    POISSON,
    RECORDS,
    UNIT,
    USERS,
    Repeating,
    Timed,
    World,
    kind_of,
)
from quietsum import wire
from quietsum.errors import LedgerBroken, PlanRefused, QuietsumError, TooFewParties
from quietsum.federation.local import LocalFederation
from quietsum.federation.remote import sites as known_sites
from quietsum.federation.remote.federation import DEADLINE, RemoteFederation
from quietsum.federation.remote.transport import Arrival
from quietsum.ledger import Ledger
from quietsum.ledger.chain.entries import Kind
from quietsum.ledger.chain.keys import load_key
from quietsum.ledger.stores.sqlite import SqliteStore
from quietsum.mechanisms.rng import randomness_for_tests, system_randomness
from quietsum.party.policy import AllowedTask, Rules, SiteDataset
from quietsum.party.service import SiteService
from quietsum.party.work import Site
from quietsum.plan import Plan, ResolvedPlan, load_plan
from quietsum.privacy.units import PrivacyUnit


@pytest.fixture(autouse=True)
def logs(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    caplog.set_level(logging.DEBUG, logger="quietsum")
    monkeypatch.setattr(known_sites, "time", SimpleNamespace(sleep=lambda seconds: None))


def test_all_sites_are_in_the_round_and_both_books_tell_the_same(tmp_path: Path) -> None:
    world = World(tmp_path).join()
    assert world.round().kept == NAMES and not world.dropped
    world.federation.leave("finished")
    (reserved,) = world.entries(Kind.RESERVE)
    for name in NAMES:
        (own,) = world.entries(Kind.RESERVE, name)
        assert [charge for charge in reserved["charges"] if charge["party"] == name] == own["charges"]
        ledger = world.services[name].books.ledger
        assert ledger.contains(world.ledger.other_heads()[name].head)
        assert all(world.ledger.contains(told.head) for told in ledger.other_heads().values())


# -------------------------------------------------------------------------------------------- here, gone, and back


def test_a_site_that_comes_late_is_in_the_round(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    world = World(tmp_path, start=OTHERS).join()
    assert "site va is not there; the rounds go on without it until it comes" in caplog.text
    assert world.round(1).kept == OTHERS
    assert world.dropped == {"va": "it had not replied by the deadline of 20 s; it was not there"}
    looks = world.carrier.looks

    def comes(look: int) -> None:
        if look == looks + 6:
            world.services["va"] = world.places["va"].start()
            world.carrier.sites["node-va"] = world.answers("va")

    world.carrier.before = comes
    assert set(world.round(2).kept) == set(NAMES) and not world.dropped
    assert [body["round"] for body in world.entries(Kind.RESERVE, "va")] == [2]


def test_a_site_that_leaves_is_lost_and_charged(tmp_path: Path) -> None:
    world = World(tmp_path).join()
    looks = world.carrier.looks

    def leaves(look: int) -> None:
        if look == looks + 1:
            del world.carrier.sites["node-va"]

    world.carrier.before = leaves
    assert world.round().kept == OTHERS and world.dropped == {"va": "its reply did not arrive"}
    assert not world.entries(Kind.REFUND) and not world.entries(Kind.RESERVE, "va")


def test_a_site_that_was_started_anew_before_it_answered_is_asked_again_and_answers_once(tmp_path: Path) -> None:
    world = World(tmp_path).join()
    asked: list[str] = []

    def falls_over(content: bytes) -> bytes:
        asked.append(kind_of(content))
        if asked.count("train") == 1 and asked[-1] == "train":
            world.restart("va")  # the process dies with the request in its hands, and another one starts
            return b""
        return world.services["va"].answer(content)

    world.carrier.sites["node-va"] = falls_over
    world.carrier.spoil = lambda node, reply: reply or None  # nothing comes back from the dead
    assert set(world.round().kept) == set(NAMES) and not world.dropped
    assert asked.count("train") == 2 and asked.count("enrol") == 1
    assert len(world.entries(Kind.RESERVE, "va")) == len(world.entries(Kind.COMMIT, "va")) == 1
    assert len(world.entries(Kind.RESERVE)) == 1


def test_a_site_that_was_started_anew_after_it_answered_releases_nothing_more(tmp_path: Path) -> None:
    world = World(tmp_path).join()
    lost: list[bytes] = []

    def loses(letter: wire.Letter, reply: bytes) -> bytes | None:
        if not lost:
            lost.append(reply)
            world.restart("va")
            return None
        return reply

    world.rogue(loses)
    assert world.round().kept == OTHERS
    assert world.dropped == {"va": "this attempt, or a later one, was answered before"}
    assert len(world.entries(Kind.RESERVE, "va")) == 1
    assert world.round(2).kept == NAMES


def test_an_enrolment_whose_answer_was_lost_costs_no_round(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.rogue(lambda letter, reply: None, kind="enrolled")
    world.join()
    world.carrier.spoil = lambda node, reply: reply
    assert set(world.round().kept) == set(NAMES) and not world.dropped


# --------------------------------------------------------------------------------------------------------- deadlines


@pytest.mark.parametrize("silent", [("va",), ("cleveland", "va")])
def test_a_site_that_never_answers_costs_the_round_its_deadline_and_no_more(
    tmp_path: Path, silent: tuple[str, ...]
) -> None:
    world = World(tmp_path).join()
    world.carrier.spoil = lambda node, reply: None if node.removeprefix("node-") in silent else reply
    began = world.clock.now
    result = world.round()
    assert world.clock.now - began == pytest.approx(20.0, abs=1e-6)
    assert set(result.kept) == set(NAMES) - set(silent)
    assert world.dropped == dict.fromkeys(silent, "it had not replied by the deadline of 20 s")
    assert not world.under_way or all(sent.kind == "hello" for sent in world.under_way.values())
    world.carrier.spoil = lambda node, reply: reply
    began = world.clock.now
    assert set(world.round(2).kept) == set(NAMES) and world.clock.now == began


def test_a_round_does_not_wait_for_its_deadline_where_a_site_stays_away(tmp_path: Path) -> None:
    world = World(tmp_path, RECORDS.replace("deadline = 20.0", "deadline = 500.0"), start=OTHERS).join()
    for number, lasts in ((1, known_sites.ABSENT), (2, known_sites.GRACE), (3, known_sites.GRACE)):
        began = world.clock.now
        assert world.round(number).kept == OTHERS
        assert world.dropped == {"va": "it was not connected for 60 s"}
        assert world.clock.now - began == pytest.approx(lasts, abs=1.0)


def test_a_site_that_is_too_busy_to_say_who_it_is_is_waited_for(tmp_path: Path) -> None:
    """A coordinator that was started anew knows nobody, and a site at work answers a greeting when it is done."""
    world = World(tmp_path, RECORDS.replace("deadline = 20.0", "deadline = 500.0"), start=OTHERS).join()
    busy_until = world.clock.now + 200.0
    world.services["va"] = world.places["va"].start()
    answer = world.answers("va")
    world.carrier.sites["node-va"] = lambda content: answer(content) if world.clock.now > busy_until else b""
    world.carrier.spoil = lambda node, reply: reply or None
    assert set(world.round().kept) == set(NAMES) and world.clock.now > busy_until


def test_a_site_at_work_is_waited_for_while_its_connection_comes_and_goes(tmp_path: Path) -> None:
    """It has the request: it may reply with the next connection, and it is charged in any case."""
    world = World(tmp_path, RECORDS.replace("deadline = 20.0", "deadline = 500.0")).join()
    late = world.clock.now + 100.0
    answer, held = world.carrier.sites["node-va"], list[bytes]()

    def slow(content: bytes) -> bytes:
        if kind_of(content) != "train":
            return answer(content)
        held.append(answer(content))
        return b""

    world.carrier.sites["node-va"] = slow
    world.carrier.spoil = lambda node, reply: reply or None
    nodes = world.carrier.nodes
    world.carrier.nodes = lambda: [node for node in nodes() if node != "node-va" or not held]  # type: ignore[method-assign]
    arrived = world.carrier.receive

    def arrives(wait: float) -> Any:
        found = arrived(wait)
        if held and world.clock.now > late:
            message = next(name for name, sent in world.under_way.items() if sent.kind == "train")
            return [*found, Arrival(message=message, content=held.pop())]
        return found

    world.carrier.receive = arrives  # type: ignore[method-assign]
    assert set(world.round().kept) == set(NAMES) and world.clock.now > late


def test_while_the_carrier_is_away_nobody_is_called_absent(tmp_path: Path) -> None:
    world = World(tmp_path, RECORDS.replace("deadline = 20.0", "deadline = 200.0"), start=OTHERS).join()
    nodes, began = world.carrier.nodes, world.clock.now

    def gone() -> Any:
        if world.clock.now - began < 60.0:
            raise QuietsumError("the carrier is gone")
        return nodes()

    world.carrier.nodes = gone  # type: ignore[method-assign]
    assert world.round().kept == OTHERS and world.clock.now - began == pytest.approx(120.0, abs=1.0)


def test_a_site_that_refused_and_went_is_not_asked_again_and_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(tmp_path).join()
    world.services["va"].books.ledger.close()
    stricter = dataclasses.replace(world.places["va"].policy, tasks=(AllowedTask(name="other"),))
    world.services["va"] = dataclasses.replace(world.places["va"], policy=stricter).start()
    assert world.round(1).kept == OTHERS and "does not allow task 'heart'" in world.dropped["va"]
    nodes = world.carrier.nodes()
    del world.carrier.sites["node-va"]
    world.carrier.nodes = lambda: nodes  # type: ignore[method-assign]  # the carrier has not noticed yet
    began, sent = world.clock.now, len(world.carrier.sent)
    assert world.round(2).kept == OTHERS and world.dropped == {"va": "its reply did not arrive"}
    assert world.clock.now - began < 1.0 and len(world.carrier.sent) - sent < 3 + 4
    assert caplog.text.count("no reply to 'enrol' for va") == 1


def test_while_sites_are_awaited_a_message_that_goes_astray_is_sent_again_after_a_pause(tmp_path: Path) -> None:
    world = World(tmp_path)
    answer, looks = world.carrier.sites["node-va"], list[bytes]()

    def flaky(content: bytes) -> bytes:
        if kind_of(content) == "enrol":
            looks.append(content)
        return answer(content)

    world.carrier.sites["node-va"] = flaky
    arrived = world.carrier.receive

    def arrives(wait: float) -> Any:
        found = arrived(wait)
        lost = {name for name, sent in world.under_way.items() if (sent.kind, sent.party) == ("enrol", "va")}
        if world.clock.now - began < 4.0:
            return [Arrival(message=one.message, problem="gone") if one.message in lost else one for one in found]
        return found

    began = world.clock.now
    world.carrier.receive = arrives  # type: ignore[method-assign]
    world.join()
    assert world.round().kept == NAMES and 2 <= len(looks) <= 4


def test_without_a_deadline_in_the_plan_a_round_ends_all_the_same(tmp_path: Path) -> None:
    world = World(tmp_path, RECORDS.replace("deadline = 20.0", "")).join()
    world.rogue(lambda letter, reply: None)
    began = world.clock.now
    assert world.round().kept == OTHERS and world.clock.now - began == pytest.approx(DEADLINE, abs=1e-6)


def test_an_answer_after_the_deadline_is_for_nobody(tmp_path: Path) -> None:
    """It comes with the next round's replies, and the message it belongs to is forgotten."""
    world = World(tmp_path).join()
    late: list[bytes] = []

    def keeps(letter: wire.Letter, reply: bytes) -> bytes | None:
        late.append(reply)
        return None

    world.rogue(keeps)
    world.round(1)
    world.rogue(lambda letter, reply: late[0])
    assert world.round(2).kept == OTHERS and "answers another request" in world.dropped["va"]


class Failing(Timed):
    """A carrier that is gone for a while, in one of its three calls."""

    call, until = "", 0.0

    def _fail(self, call: str) -> None:
        if call == self.call and self.clock.now < self.until:
            self.clock.now += 0.25
            raise QuietsumError("the carrier is gone")

    def nodes(self) -> Sequence[str]:
        self._fail("nodes")
        return super().nodes()

    def send(self, node: str, content: bytes, *, lasting: float) -> str:
        self._fail("send")
        return super().send(node, content, lasting=lasting)

    def receive(self, wait: float) -> Sequence[Arrival]:
        self._fail("arrived")
        return super().receive(wait)


@pytest.mark.parametrize("call", ["nodes", "send", "arrived"])
def test_a_carrier_that_fails_for_a_while_loses_time_and_no_round(
    tmp_path: Path, call: str, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(tmp_path)
    world.carrier = carrier = Failing(world.carrier.sites, world.clock)
    world.federation = RemoteFederation(carrier, roster=None, patience=5.0, clock=world.clock)
    carrier.call, carrier.until = call, world.clock.now + 3.0
    world.join()
    carrier.until = world.clock.now + 10.0
    assert set(world.round().kept) == set(NAMES)
    assert "the carrier is gone" in caplog.text
    began, carrier.until = world.clock.now, 1e9
    if call == "nodes":  # known sites are asked all the same
        assert set(world.round(2).kept) == set(NAMES)
        return
    with pytest.raises(TooFewParties, match="0 of 4 parties"):
        world.round(2)
    assert 20.0 <= world.clock.now - began < 21.0 and set(world.dropped) == set(NAMES)


# ------------------------------------------------------------------------------------------------ before the first


def test_too_few_sites_at_the_start_cost_nobody_anything(tmp_path: Path) -> None:
    world = World(tmp_path, RECORDS.replace("rounds = 3", "rounds = 3\nminimum_parties = 4"), start=OTHERS)
    began = world.clock.now
    with pytest.raises(TooFewParties, match="3 of 4 sites take part, the plan needs 4; no data was touched") as error:
        world.join()
    assert "not there: va" in str(error.value) and "quietsum party serve" in str(error.value)
    assert world.clock.now - began == pytest.approx(5.0)
    assert not world.entries(Kind.RESERVE) and not any(world.entries(Kind.RESERVE, name) for name in OTHERS)


def test_a_site_that_refuses_at_the_start_is_told_by_its_reason(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    text = RECORDS.replace("rounds = 3", "rounds = 3\nminimum_parties = 4")
    world = World(tmp_path, text)
    strict = dataclasses.replace(UNIT, smallest_noise=9.0)
    world.places["va"].policy = dataclasses.replace(world.places["va"].policy, record=strict)
    world.restart("va")
    words = "noise multiplier 3 per record is below 9"
    with pytest.raises(TooFewParties, match=words):
        world.join()
    told = {record.name for record in caplog.records if words in record.message}
    assert told == {"quietsum.party.service", "quietsum.federation.remote"}
    assert not world.entries(Kind.RESERVE) and not world.entries(Kind.RUN, "va")


REFUSED: dict[str, tuple[Callable[[ResolvedPlan], ResolvedPlan], str]] = {
    "a lowered noise": (lambda r: dataclasses.replace(r, record_noise=1.0), "the plan costs more than it states"),
    "no limits": (lambda r: dataclasses.replace(r, limits=()), "states no ε per record"),
    "another dimension": (lambda r: dataclasses.replace(r, dimension=3), "its task has"),
    "an unknown task": (
        lambda r: dataclasses.replace(
            r, plan=dataclasses.replace(r.plan, task=dataclasses.replace(r.plan.task, name="os:system"))
        ),
        "does not allow task 'os:system'",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_a_tampered_plan_is_refused_with_the_reason_in_both_logs(
    tmp_path: Path, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    change, words = REFUSED[what]
    world = World(tmp_path)
    with pytest.raises(TooFewParties, match="0 of 4 sites take part"):
        world.join(change(world.resolved))
    told = {record.name for record in caplog.records if words in record.message}
    assert told >= {"quietsum.party.service", "quietsum.federation.remote"}
    assert all(len(list(service.books.ledger.entries())) == 1 for service in world.services.values())


def test_a_roster_without_a_party_is_refused_before_anything_is_sent(tmp_path: Path) -> None:
    world = World(tmp_path, roster=dict.fromkeys(OTHERS, lambda signature, message: True))
    with pytest.raises(
        PlanRefused, match=r"party 'va' is not in the roster, which knows cleveland, .*quietsum keys admit"
    ):
        world.join()
    assert not world.carrier.sent


@pytest.mark.parametrize("key", ["drop_outs = 0.1", "stragglers = 0.1", 'refusing = ["va"]'])
def test_rehearsed_bad_luck_is_refused_across_machines(tmp_path: Path, key: str) -> None:
    world = World(tmp_path, RECORDS.replace("[training]", f"[federation.simulate]\n{key}\n[training]"))
    with pytest.raises(PlanRefused, match=r"federation\.simulate rehearses bad luck on one machine"):
        world.join()
    assert not world.carrier.sent


def test_data_that_one_holder_deals_out_is_refused_across_machines(tmp_path: Path) -> None:
    world = World(tmp_path)
    dealt = tuple(dataclasses.replace(facts, holder="cloud") for facts in world.resolved.parties)
    with pytest.raises(PlanRefused, match="across machines every site holds its own"):
        world.join(dataclasses.replace(world.resolved, parties=dealt))
    assert not world.carrier.sent


# ------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize("text", [RECORDS, HYBRID, USERS], ids=["sample", "hybrid", "user"])
def test_a_refusal_takes_the_record_charge_back_and_never_the_clients(tmp_path: Path, text: str) -> None:
    world = World(tmp_path, text).join()
    place = world.places["va"]
    place.policy = dataclasses.replace(place.policy, rules=Rules(aggregation=()))
    world.restart("va")  # its owner has changed the policy meanwhile
    world.round()
    assert "is not allowed, only by nothing" in world.dropped["va"] and len(world.dropped) == 1
    spent = world.ledger.spending_by_party("run")
    if PrivacyUnit.RECORD in {unit for _, unit in spent}:
        assert spent["va", PrivacyUnit.RECORD].epsilon == 0 < spent["cleveland", PrivacyUnit.RECORD].epsilon
        assert [body["party"] for body in world.entries(Kind.REFUND)] == ["va"]
    else:
        assert not world.entries(Kind.REFUND)
    if text is not RECORDS:
        assert spent["va", PrivacyUnit.CLIENT].epsilon == spent["cleveland", PrivacyUnit.CLIENT].epsilon > 0
    assert not [body for body in world.entries(Kind.RESERVE, "va") if body["round"] > 0]
    place.policy = dataclasses.replace(place.policy, rules=Rules(aggregation=("mean", "noisy-sum")))
    world.restart("va")
    world.round(2)
    assert not world.dropped


def test_a_refusal_after_the_update_takes_nothing_back(tmp_path: Path) -> None:
    """One message has one reply: whoever sends a second one is not heard."""
    world = World(tmp_path)
    world.carrier = Repeating(world.carrier.sites, world.clock)
    world.federation = RemoteFederation(world.carrier, roster=None, patience=5.0, clock=world.clock)
    world.join()
    first: list[bytes] = []

    def both(letter: wire.Letter, reply: bytes) -> bytes:
        first.append(reply)
        return reply if len(first) == 1 else world.signed(letter, kind="refused", body={"reason": "no"}, vector=None)

    world.rogue(both)
    assert "va" in world.round().kept and not world.entries(Kind.REFUND)


def test_a_refusal_in_words_that_end_lines_stays_in_its_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    world = World(tmp_path).join()
    words = "no\n2026-01-01 INFO all budgets are fine\r\x1b[2J" + "x" * 10_000
    world.rogue(lambda letter, reply: world.signed(letter, kind="refused", body={"reason": words}, vector=None))
    assert world.round().kept == OTHERS and len(world.dropped["va"]) < 600
    assert all(record.message.isprintable() and len(record.message) < 800 for record in caplog.records)


# ------------------------------------------------------------------------------------------------------ full disks


def test_a_full_disk_at_one_site_leaves_the_others_in_the_round(tmp_path: Path) -> None:
    class Disk(sqlite3.Connection):
        left = 10**9

        def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
            if sql.startswith(("INSERT", "COMMIT")):
                Disk.left -= 1
                if Disk.left < 0:
                    raise sqlite3.OperationalError("database or disk is full")
            return super().execute(sql, *values)

    outcomes = set()
    for left in range(12):
        folder = tmp_path / str(left)
        folder.mkdir()
        Disk.left = 10**9
        world = World(folder)
        path = world.places["va"].folder / "ledger.db"
        known = world.services["va"].books.ledger
        key = load_key(path, known.identity.public_key)
        known.close()
        ledger = Ledger.on(SqliteStore(path, factory=Disk), key)
        world.services["va"] = SiteService(world.places["va"].policy, ledger)
        Disk.left = left
        world.join()
        result = world.round()
        assert set(result.kept) >= set(OTHERS)
        reserved, committed = (len(world.entries(kind, "va")) for kind in (Kind.RESERVE, Kind.COMMIT))
        assert ("va" in result.kept) <= (committed == 1) and committed <= reserved
        if "va" not in result.kept:
            assert "its ledger could not be written" in world.dropped["va"]
        outcomes.add((reserved, committed, "va" in result.kept))
        ledger.verify()
        Disk.left = 10**9
        assert set(world.round(2).kept) == set(NAMES)  # there is room again
        ledger.close()
        for service in world.services.values():
            service.books.ledger.close()
        world.ledger.close()
    assert outcomes == {(0, 0, False), (1, 0, False), (1, 1, True)}


# -------------------------------------------------------------------------------------------------------- cohorts


@pytest.mark.parametrize("text", [RECORDS, USERS], ids=["sample", "user"])
def test_a_site_that_is_not_drawn_hears_nothing_of_the_round(tmp_path: Path, text: str) -> None:
    world = World(
        tmp_path, text.replace("rounds = 3", "rounds = 12").replace("deadline", f"{POISSON}\ndeadline")
    ).join()
    spared = 0
    for number in range(1, 13):
        world.clock.now += 60.0  # long enough for any greeting to be due
        before = len(world.carrier.sent)
        result = world.round(number)
        heard = {node.removeprefix("node-") for node, _ in world.carrier.sent[before:]}
        assert heard == set(result.asked)
        spared += len(NAMES) - len(result.asked)
        assert all(len(body["charges"]) == 4 for body in world.entries(Kind.RESERVE))  # everybody pays
    assert 0 < spared < 48
    drawn = {name: sum(body["round"] > 0 for body in world.entries(Kind.RESERVE, name)) for name in NAMES}
    assert sum(drawn.values()) == 48 - spared


def test_greetings_say_nothing_of_a_round(tmp_path: Path) -> None:
    world = World(tmp_path, USERS.replace("deadline", f"{POISSON}\ndeadline")).join()
    world.carrier.sites["node-stranger"] = lambda content: b"?"
    for number in (1, 2, 3):
        world.clock.now += 60.0
        world.round(number)
    greetings = [(node, content) for node, content in world.carrier.sent if kind_of(content) == "hello"]
    assert len(greetings) > len(NAMES)
    own = {f"node-{name}": service.books.ledger for name, service in world.services.items()}
    for node, content in greetings:
        letter = wire.read_letter(content, most=2**20)
        assert letter.body == {} and letter.vector is None and letter.answers == ""
        assert letter.knows is None or own[node].contains(letter.knows.head)  # at most what it told itself


def test_requests_say_the_round_and_no_more(tmp_path: Path) -> None:
    world = World(tmp_path).join()
    world.round()
    letters = [wire.read_letter(content, most=2**20) for _, content in world.carrier.sent]
    assert {tuple(sorted(letter.body)) for letter in letters if letter.kind == "train"} == {
        ("attempt", "plan", "round", "run")
    }
    assert "cohort" not in json.dumps([dict(letter.body) for letter in letters if letter.kind == "train"])


# --------------------------------------------------------------------------------------------------- the end of a run


def test_a_farewell_shows_every_site_the_last_head(tmp_path: Path) -> None:
    world = World(tmp_path).join()
    world.round()
    world.federation.leave("finished")
    (committed,) = [entry.sequence for entry in world.ledger.entries() if entry.kind is Kind.COMMIT]
    for name, service in world.services.items():
        told = service.books.last_seen(world.ledger.identity.ledger)
        assert told is not None and told.head.sequence >= committed
        assert service.books.ledger.contains(world.ledger.other_heads()[name].head)


@pytest.mark.parametrize("how", ["silent", "garbage", "gone", "refuses"])
def test_sites_that_do_not_hear_the_farewell_hold_nobody_up(tmp_path: Path, how: str) -> None:
    world = World(tmp_path).join()
    world.round()
    if how == "gone":
        world.carrier.close()
    else:
        said: dict[str, Any] = {"kind": "refused", "body": {"reason": "no"}}
        spoilt = {"silent": lambda letter: None, "garbage": lambda letter: b"?"}
        world.rogue(lambda letter, reply: spoilt.get(how, lambda x: world.signed(x, **said))(letter), kind="noted")
    began = world.clock.now
    world.federation.leave("finished")
    assert world.clock.now - began <= 5.5
    world.federation.close()
    world.ledger.verify()


def test_a_federation_that_never_joined_has_nobody_to_leave(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.federation.leave("refused")
    assert not world.carrier.sent


# ----------------------------------------------------------------------------------------------- our own ledger


def test_a_site_that_kept_a_head_which_our_ledger_lost_ends_the_run(tmp_path: Path) -> None:
    world = World(tmp_path).join()
    world.round()
    world.carrier.spoil = lambda node, reply: reply
    shorter = Ledger.open(tmp_path / "other.db", create=True)
    told = world.services["va"].books.last_seen(world.ledger.identity.ledger)
    assert told is not None and world.ledger.contains(told.head) and not shorter.contains(told.head)
    world.sites._ledger = _Forgetful(world.ledger)  # type: ignore[assignment]
    with pytest.raises(LedgerBroken, match="a head that it signed and a site has kept"):
        world.round(2)


class _Forgetful:
    """A ledger whose older entries are gone."""

    def __init__(self, inner: Ledger) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def contains(self, head: Any) -> bool:
        return False


# ---------------------------------------------------------------------------------------------------------- parity


def public_text(style: str) -> str:
    privacy = "record = { noise_multiplier = 3.0, delta = 1e-4 }" if style == "sample" else ""
    return f"{RECORDS[: RECORDS.index('[privacy]')]}[privacy]\nstyle = '{style}'\n{privacy}\n"


def seeded_places(plan: Plan, folder: Path) -> dict[str, Place]:
    """Sites that say their data is public, each with a seeded source of its own."""
    return {
        name: Place(
            policy_for(
                name, folder / name, plan, record=None,
                dataset=SiteDataset(name=facts.dataset, size=facts.size, public=facts.public),
            ),
            folder / name,
            {"rng": randomness_for_tests(seed=place)},
        )
        for place, (name, facts) in enumerate(sorted(facts_of(plan).items()))
    }  # fmt: skip


@pytest.mark.parametrize("style", ["none", "sample"])
def test_the_same_plan_and_seeds_give_the_same_model_as_in_one_process(
    tmp_path: Path, style: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Public data, since seeds protect nobody; one seeded source a site in both runtimes. Equal to the last bit."""
    monkeypatch.setenv("QUIETSUM_TEST_SEEDS", "1")
    text = public_text(style)
    world = World(tmp_path, text, places=seeded_places(load_plan(text), tmp_path)).join()
    sites = {
        name: Site(name, task=world.task, resolved=world.resolved, rng=randomness_for_tests(seed=place))
        for place, name in enumerate(NAMES)
    }
    alone = World(tmp_path / "alone", text, start=(), places=world.places)
    alone.ledger.open_run(
        "run", plan=world.plan.to_dict(), terms=world.resolved.terms(), planned=world.resolved.all_charges(),
        datasets=world.resolved.datasets(),
    )  # fmt: skip
    local = LocalFederation(sites, rng=system_randomness())
    for number in (1, 2, 3):
        before = world.state.params.copy()
        assert world.round(number).kept == alone.round(number, local).kept == NAMES
        assert world.state.params.tobytes() == alone.state.params.tobytes() != before.tobytes()


def test_the_control_another_seed_gives_another_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUIETSUM_TEST_SEEDS", "1")
    text, found = public_text("sample"), []
    for folder in (tmp_path / "a", tmp_path / "b"):
        places = seeded_places(load_plan(text), folder)
        places["va"].options["rng"] = randomness_for_tests(seed=3 if folder.name == "a" else 4)
        world = World(folder, text, places=places).join()
        world.round()
        found.append(world.state.params)
    first, second = found
    assert not np.array_equal(first, second)


# ----------------------------------------------------------------------------------------------- before a round


def test_a_round_is_not_reserved_while_too_few_sites_are_connected(tmp_path: Path) -> None:
    """A carrier that died would have every round of the plan paid for and nobody asked."""
    from quietsum.runs.folder import Workspace
    from quietsum.runs.run import resume_run, start

    plan = sites.plan_of(sites.PLAN.replace("rounds = 2", "rounds = 3\nminimum_parties = 2"))
    places = sites.places_for(plan, tmp_path)
    federation, carrier, _ = sites.remote(places)
    honest, rounds = federation.testimonies, []

    def leaving() -> Any:
        rounds.append(1)
        carrier.sites = {"node-va": carrier.sites["node-va"]}
        return honest()

    federation.testimonies = leaving  # type: ignore[method-assign]
    workspace = Workspace.at(tmp_path / "workspace")
    stopped = start(plan, workspace=workspace, federation=federation)
    assert (stopped.outcome, stopped.round) == ("too-few-parties", 1) and "nothing was reserved" in str(stopped.error)
    with Ledger.open(workspace.ledger, read_only=True) as ledger:
        assert ledger.reservations(stopped.folder.run) == {(1, 1)}
    again, _, _ = sites.remote(places)
    assert resume_run(stopped.folder, workspace=workspace, federation=again).outcome == "finished"
