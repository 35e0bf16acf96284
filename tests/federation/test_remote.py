"""Sites over a carrier that loses, repeats and forges, and sites that lie: each costs itself its place in the round.

The carrier is two lists (:mod:`federation.sites`), the clock is a number, and every site is a real one with its own
ledger on disk. A round ends at its deadline with all others in it, whatever one site sends or does not send.
"""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from federation.sites import Carrier, Place, facts_of, places_for
from quietsum.errors import LedgerBroken, PlanRefused, QuietsumError, TooFewParties
from quietsum.federation import remote as remotes
from quietsum.federation.local import LocalFederation
from quietsum.federation.messages import Federation
from quietsum.federation.remote import RemoteFederation
from quietsum.federation.round import RoundResult, first_state, run_round
from quietsum.federation.transport import Arrival
from quietsum.federation.watch import PartyDropped, RunEvent
from quietsum.ledger import Ledger
from quietsum.ledger.entries import Kind
from quietsum.ledger.keys import SigningKey
from quietsum.ledger.store import MemoryStore
from quietsum.mechanisms.rng import randomness_for_tests, system_randomness
from quietsum.party import wire
from quietsum.party.policy import Rules, SiteDataset, UnitPolicy
from quietsum.party.service import SiteService
from quietsum.party.work import Site
from quietsum.plan import Plan, ResolvedPlan, load_plan, resolve
from quietsum.privacy.units import PrivacyUnit
from quietsum.tasks import task_of

RECORDS = """
[task]
name = "heart"
[federation]
rounds = 3
spare_attempts = 4
deadline = 20.0
[training]
sample_rate = 0.2
local_steps = 2
[privacy]
style = "sample"
record = { noise_multiplier = 3.0, delta = 1e-4 }
"""
CLIENT = "client = { noise_multiplier = 4.0, delta = 1e-4, max_norm = 1.0 }"
POISSON = 'sampling = { kind = "poisson", rate = 0.5 }'
HYBRID = RECORDS.replace('"sample"', '"hybrid"') + CLIENT
USERS = RECORDS[: RECORDS.index("[privacy]")] + '[privacy]\nstyle = "user"\n' + CLIENT
UNIT = UnitPolicy(epsilon=40.0, delta=1e-4, run=20.0)
NAMES = ("cleveland", "hungarian", "switzerland", "va")
OTHERS = NAMES[:3]


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


class Timed(Carrier):
    """Where nothing arrives, the time that somebody waited has passed. ``before`` is told of every look."""

    def __init__(self, sites: Mapping[str, Callable[[bytes], bytes]], clock: Clock) -> None:
        super().__init__(sites)
        self.clock = clock
        self.looks = 0
        self.before: Callable[[int], None] = lambda look: None

    def arrived(self, wait: float) -> Sequence[Arrival]:
        self.looks += 1
        self.before(self.looks)
        found = super().arrived(wait)
        if not found:
            self.clock.now += wait
        return found


def kind_of(content: bytes) -> str:
    return wire.read(content, most=2**26).kind


class World:
    """Four hospitals, a coordinator with its ledger, and everything between them."""

    def __init__(self, folder: Path, text: str = RECORDS, *, start: Sequence[str] = NAMES, **options: Any) -> None:
        self.plan = load_plan(text)
        units = {"record": UNIT if "record =" in text else None, "client": UNIT if "client =" in text else None}
        self.places = places_for(self.plan, folder, **{**units, **options.pop("policy", {})})
        self.services = {name: self.places[name].start() for name in start}
        self.clock = Clock()
        self.carrier = Timed({f"node-{name}": self.answers(name) for name in start}, self.clock)
        self.task = task_of(self.plan)
        self.resolved: ResolvedPlan = resolve(self.plan, self.task.parties(), self.task.dimension)
        self.ledger = Ledger.open(folder / "coordinator.db", create=True)
        self.events: list[RunEvent] = []
        self.federation = RemoteFederation(
            self.carrier, roster=options.pop("roster", None), patience=5.0, clock=self.clock, **options
        )
        self.state = first_state(self.resolved, self.task.initial())

    def answers(self, name: str) -> Callable[[bytes], bytes]:
        return lambda content: self.services[name].answer(content)

    def restart(self, name: str) -> None:
        self.services[name].books.ledger.close()
        self.services[name] = self.places[name].start()

    def join(self, resolved: ResolvedPlan | None = None) -> World:
        told = self.resolved if resolved is None else resolved
        self.ledger.open_run(
            "run", plan=told.plan.to_dict(), terms=self.resolved.terms(), planned=self.resolved.planned(),
            datasets=self.resolved.datasets(),
        )  # fmt: skip
        self.federation.join("run", told, self.ledger)
        return self

    def saw(self, event: RunEvent) -> None:
        self.events.append(event)

    def round(self, number: int = 1, federation: Federation | None = None) -> RoundResult:
        self.events.clear()
        found = run_round(
            "run", number, self.state, resolved=self.resolved, federation=federation or self.federation,
            ledger=self.ledger, rng=system_randomness(), watchers=[self], clock=self.clock,
        )  # fmt: skip
        self.state = found.state
        return found

    @property
    def dropped(self) -> dict[str, str]:
        return {event.party: event.reason for event in self.events if isinstance(event, PartyDropped)}

    def entries(self, kind: Kind, name: str = "") -> list[Any]:
        ledger = self.services[name].books.ledger if name else self.ledger
        return [entry.body for entry in ledger.entries() if entry.kind is kind]

    def rogue(self, change: Callable[[wire.Letter, bytes], bytes | None], kind: str = "update", name: str = "va") -> None:
        """``name`` sends something else than its replies of this ``kind``."""

        def spoil(node: str, reply: bytes) -> bytes | None:
            letter = wire.read(reply, most=2**26)
            return change(letter, reply) if node == f"node-{name}" and letter.kind == kind else reply

        self.carrier.spoil = spoil

    def signed(self, letter: wire.Letter, name: str = "va", **changes: Any) -> bytes:
        """A reply with other contents, which the site's own ledger has signed."""
        values = {"kind": letter.kind, "body": letter.body, "answers": letter.answers, "vector": letter.vector, **changes}
        return wire.write(
            values["kind"], values["body"], self.services[name].books.ledger, answers=values["answers"],
            vector=values["vector"],
        )[0]  # fmt: skip


@pytest.fixture(autouse=True)
def logs(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    caplog.set_level(logging.DEBUG, logger="quietsum")
    monkeypatch.setattr(remotes.time, "sleep", lambda seconds: None)


def test_all_sites_are_in_the_round_and_both_books_tell_the_same(tmp_path: Path) -> None:
    world = World(tmp_path).join()
    assert world.round().kept == NAMES and not world.dropped
    world.federation.leave("finished")
    (reserved,) = world.entries(Kind.RESERVE)
    for name in NAMES:
        (own,) = world.entries(Kind.RESERVE, name)
        assert [charge for charge in reserved["charges"] if charge["party"] == name] == own["charges"]
        ledger = world.services[name].books.ledger
        assert ledger.contains(world.ledger.witnessed()[name].head)
        assert all(world.ledger.contains(told.head) for told in ledger.witnessed().values())


# --------------------------------------------------------------------------------------------------- spoilt replies


def with_charges(letter: wire.Letter, **changes: Any) -> dict[str, Any]:
    (charge,) = letter.body["charges"]
    return {**letter.body, "charges": [{**charge, **changes}]}


def flipped(reply: bytes, place: int) -> bytes:
    place %= len(reply)
    return reply[:place] + bytes([reply[place] ^ 1]) + reply[place + 1 :]


def unfinished(letter: wire.Letter) -> np.ndarray:
    assert letter.vector is not None
    return np.where(np.arange(len(letter.vector)) == 0, np.nan, letter.vector)


SPOILT: dict[str, tuple[Callable[[World, wire.Letter, bytes], bytes], str]] = {
    "garbage": (lambda w, x, b: b"\x00\xff garbage", "it is no message of quietsum"),
    "nothing": (lambda w, x, b: b"", "it is no message of quietsum"),
    "a page": (lambda w, x, b: b"<html>502 Bad Gateway</html>" * 100, "it is no message of quietsum"),
    "half of it": (lambda w, x, b: b[: len(b) // 2], "left out"),
    "all but the last byte": (lambda w, x, b: b[:-1], "it was cut off"),
    "a bit of the header": (lambda w, x, b: flipped(b, 40), "left out"),
    "a bit of the vector": (lambda w, x, b: flipped(b, -3), "its numbers are not those that were signed"),
    "far too much": (lambda w, x, b: b + bytes(2**21), "are allowed"),
    "a bit too much": (lambda w, x, b: b + b"\0", "something was added"),
    "brackets": (lambda w, x, b: wire.MAGIC + (2**20).to_bytes(4, "big") + b"[" * (2**20 + 64), "not canonical"),
    "another request": (lambda w, x, b: w.signed(x, answers="0" * 64), "it answers another request"),
    "no request": (lambda w, x, b: w.signed(x, answers=""), "it answers another request"),
    "another site's": (lambda w, x, b: w.signed(x, "cleveland"), "va answers with another ledger"),
    "another round": (lambda w, x, b: w.signed(x, body={**x.body, "round": 2}), "it is not about this round"),
    "another attempt": (lambda w, x, b: w.signed(x, body={**x.body, "attempt": 2}), "it is not about this round"),
    "no vector": (lambda w, x, b: w.signed(x, vector=None), "it is not about this round"),
    "a long vector": (lambda w, x, b: w.signed(x, vector=np.zeros(99)), "its update"),
    "an empty vector": (lambda w, x, b: w.signed(x, vector=np.zeros(0)), "its update"),
    "no numbers": (lambda w, x, b: w.signed(x, vector=unfinished(x)), "its numbers are not all finite"),
    "no charges": (lambda w, x, b: w.signed(x, body={**x.body, "charges": []}), "other events than the plan says"),
    "charges of another type": (lambda w, x, b: w.signed(x, body={**x.body, "charges": 7}), "cannot be read"),
    "charges without events": (lambda w, x, b: w.signed(x, body={**x.body, "charges": [{}]}), "cannot be read"),
    "charges left out": (lambda w, x, b: w.signed(x, body={"round": 1, "attempt": 1}), "cannot be read"),
    "no protection": (lambda w, x, b: w.signed(x, body=with_charges(x, event=None)), "other events than the plan says"),
    "another dataset": (lambda w, x, b: w.signed(x, body=with_charges(x, dataset="x")), "other events than the plan"),
    "another unit": (lambda w, x, b: w.signed(x, body=with_charges(x, unit="client")), "other events than the plan says"),
    "more failure": (lambda w, x, b: w.signed(x, body=with_charges(x, failure=0.5)), "other events than the plan says"),
    "a greeting": (lambda w, x, b: w.signed(x, kind="here"), "a 'here' is no reply to a train"),
    "an enrolment": (lambda w, x, b: w.signed(x, kind="enrolled", vector=None), "is no reply to a train"),
    "a farewell": (lambda w, x, b: w.signed(x, kind="noted", body={}, vector=None), "is no reply to a train"),
    "an order": (lambda w, x, b: w.signed(x, kind="train\n\x1b[31m" * 9), "is no reply to a train"),
    "that it lost it": (lambda w, x, b: w.signed(x, kind="lost", body={"reason": "a\nb"}, vector=None), "a b"),
    "that it lost it, without words": (lambda w, x, b: w.signed(x, kind="lost", body={"reason": 7}), "no reason given"),
    "that it could not read": (
        lambda w, x, b: w.signed(x, kind="unreadable", answers="", body={"reason": "too long"}), "it could not read the train: too long"),
}  # fmt: skip


@pytest.mark.parametrize("what", SPOILT)
def test_a_spoilt_reply_costs_its_site_alone(tmp_path: Path, what: str, caplog: pytest.LogCaptureFixture) -> None:
    change, words = SPOILT[what]
    world = World(tmp_path).join()
    world.rogue(lambda letter, reply: change(world, letter, reply))
    began = world.clock.now
    assert world.round().kept == OTHERS
    assert list(world.dropped) == ["va"] and words in world.dropped["va"]
    assert not world.entries(Kind.REFUND)  # its data may have been touched
    assert world.clock.now - began < 1.0  # nobody waits for a site that has spoken
    assert all(record.message.isprintable() for record in caplog.records)
    world.carrier.spoil = lambda node, reply: reply
    assert world.round(2).kept == NAMES  # it is asked again as if nothing had been


def test_the_control_a_reply_that_is_signed_again_as_it_is_counts(tmp_path: Path) -> None:
    world = World(tmp_path).join()
    world.rogue(lambda letter, reply: world.signed(letter))
    assert world.round().kept == NAMES


def test_a_replayed_update_is_left_out(tmp_path: Path) -> None:
    """The same bytes in the next round, and one site's update under the name of another."""
    world = World(tmp_path).join()
    kept: dict[str, bytes] = {}

    def note(node: str, reply: bytes) -> bytes:
        if kind_of(reply) == "update":
            kept[node] = reply
        return reply

    world.carrier.spoil = note
    world.round(1)
    old = dict(kept)
    world.rogue(lambda letter, reply: old["node-va"])
    assert world.round(2).kept == OTHERS and "answers another request" in world.dropped["va"]
    world.carrier.spoil = note
    world.carrier.spoil = lambda node, reply: kept["node-cleveland"] if _update_of(node, reply, "va") else note(node, reply)
    assert world.round(3).kept == OTHERS and "answers another request" in world.dropped["va"]


def _update_of(node: str, reply: bytes, name: str) -> bool:
    return node == f"node-{name}" and kind_of(reply) == "update"


class Repeating(Timed):
    """Hands everything over twice, the newest first, and makes up messages of its own."""

    def arrived(self, wait: float) -> Sequence[Arrival]:
        found = list(super().arrived(wait))
        made_up = [Arrival(message="nobody's", content=b"x"), Arrival(message="", problem="?")]
        return [*reversed(found), *made_up, *found]


def test_duplicated_reordered_and_foreign_replies_change_nothing(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.carrier = Repeating(world.carrier.sites, world.clock)
    world.federation = RemoteFederation(world.carrier, roster=None, patience=5.0, clock=world.clock)
    world.join()
    for number in (1, 2, 3):
        assert set(world.round(number).kept) == set(NAMES) and not world.dropped
    assert all(len(world.entries(Kind.RESERVE, name)) == 3 for name in NAMES)


def test_a_greeting_that_was_overtaken_is_no_alarm(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Its reply shows an older head than the update which came before it; that is how carriers are."""
    world = World(tmp_path).join()
    held: list[bytes] = []

    def slow(content: bytes) -> bytes:
        held.append(world.services["va"].answer(content))
        return held[-1]

    world.round(1)
    world.clock.now += 60.0
    world.carrier.sites["node-va"] = slow

    def later(letter: wire.Letter, reply: bytes) -> bytes | None:
        return None if letter.kind == "here" else reply

    world.carrier.spoil = lambda node, reply: later(wire.read(reply, most=2**26), reply)
    assert world.round(2).kept == NAMES
    greeting = next(message for message, sent in world.federation._sent.items() if sent.node == "node-va")
    assert world.federation._take(Arrival(message=greeting, content=held[0])) is None
    assert "tail was cut" not in caplog.text
    world.carrier.spoil = lambda node, reply: reply
    assert world.round(3).kept == NAMES


# ------------------------------------------------------------------------------------------------- whose name it is


def keyed(names: Sequence[str]) -> dict[str, SigningKey]:
    return {name: SigningKey.generate() for name in names}


def roster_of(keys: Mapping[str, SigningKey]) -> dict[str, Callable[[bytes, bytes], bool]]:
    def accepts(key: SigningKey) -> Callable[[bytes, bytes], bool]:
        return lambda signature, message: key.public.accepts(signature.hex(), message)

    return {name: accepts(key) for name, key in keys.items()}


def with_keys(world: World, keys: Mapping[str, SigningKey]) -> World:
    for name, place in world.places.items():
        place.options["node_key"] = lambda message, key=keys[name]: bytes.fromhex(key.sign(message))
        if name in world.services:
            world.restart(name)
    return world


def impostor(world: World, folder: Path, **options: Any) -> SiteService:
    """Another process that says it is va."""
    return Place(world.places["va"].policy, folder / "impostor", options).start()


def test_with_a_roster_a_node_that_claims_another_sites_name_is_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keys, wrong = keyed(NAMES), SigningKey.generate()
    world = with_keys(World(tmp_path, roster=roster_of(keys)), keys)
    asked: list[str] = []
    for node, node_key in (("a", None), ("b", lambda message: bytes.fromhex(wrong.sign(message)))):
        liar = impostor(world, tmp_path / node, node_key=node_key)

        def answer(content: bytes, liar: SiteService = liar) -> bytes:
            asked.append(kind_of(content))
            return liar.answer(content)

        world.carrier.sites = {f"node-0{node}": answer, **world.carrier.sites}  # greeted before the real one
    world.join()
    assert world.round().kept == NAMES
    assert set(asked) == {"hello"} and "says that it is va, and its node key does not" in caplog.text


def test_a_recorded_greeting_is_worth_nothing_to_another_node(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    keys = keyed(NAMES)
    world = with_keys(World(tmp_path, roster=roster_of(keys)), keys)
    stranger = Ledger.begin(MemoryStore(), SigningKey.generate())
    seen: list[bytes] = []
    real = world.carrier.sites.pop("node-va")
    recorded = real(wire.write("hello", {}, stranger)[0])

    def replay(content: bytes) -> bytes:
        seen.append(content)
        return recorded

    def relabel(content: bytes) -> bytes:
        """The recorded signature in a fresh reply: it was made for another request, and for another ledger."""
        body = wire.read(recorded, most=2**20).body
        return wire.write("here", body, stranger, answers=wire.read(content, most=2**20).digest)[0]

    world.carrier.sites.update({"node-replay": replay, "node-relabel": relabel})
    world.join()
    assert world.round().kept == OTHERS and all(kind_of(content) == "hello" for content in seen)
    assert "answers another request" in caplog.text and "its node key does not" in caplog.text


def test_without_a_roster_the_first_ledger_of_a_name_counts(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The control: for a trial on one machine what a node says is believed, and held to its ledger from then on."""
    world = World(tmp_path)
    world.join()
    world.carrier.sites["node-z"] = impostor(world, tmp_path).answer
    assert world.round().kept == NAMES
    world.clock.now += 60.0
    assert world.round(2).kept == NAMES
    assert "va answers with another ledger" in caplog.text


def test_a_node_that_is_nobody_in_the_plan_is_asked_nothing(tmp_path: Path) -> None:
    world = World(tmp_path, RECORDS.replace("rounds = 3", 'rounds = 3\nparties = ["cleveland", "hungarian"]'))
    world.join()
    assert world.round().kept == ("cleveland", "hungarian")
    for node, content in world.carrier.sent:
        assert kind_of(content) == "hello" or node in ("node-cleveland", "node-hungarian")


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
            raise_later.append(True)
            return b""
        return world.services["va"].answer(content)

    raise_later: list[bool] = []
    world.carrier.sites["node-va"] = falls_over
    world.carrier.spoil = lambda node, reply: reply or None  # nothing comes back from the dead
    assert set(world.round().kept) == set(NAMES) and not world.dropped
    assert asked.count("train") == 2 and asked.count("enrol") == 1 and raise_later
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
    assert not world.federation._sent or all(sent.kind == "hello" for sent in world.federation._sent.values())
    world.carrier.spoil = lambda node, reply: reply
    began = world.clock.now
    assert set(world.round(2).kept) == set(NAMES) and world.clock.now == began


def test_without_a_deadline_in_the_plan_a_round_ends_all_the_same(tmp_path: Path) -> None:
    world = World(tmp_path, RECORDS.replace("deadline = 20.0", "")).join()
    world.rogue(lambda letter, reply: None)
    began = world.clock.now
    assert world.round().kept == OTHERS and world.clock.now - began == pytest.approx(remotes.DEADLINE, abs=1e-6)


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

    def arrived(self, wait: float) -> Sequence[Arrival]:
        self._fail("arrived")
        return super().arrived(wait)


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


def test_a_site_that_refuses_at_the_start_is_told_by_its_reason(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
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
    "a lowered noise": (lambda r: dataclasses.replace(r, record_noise=1.0), "and states ε"),
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
    world = World(tmp_path, roster=roster_of(keyed(OTHERS)))
    with pytest.raises(PlanRefused, match=r"party 'va' is not in the roster, which knows cleveland, .*quietsum keys add"):
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
    spent = world.ledger.spent_by_party("run")
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


class FullPlace(Place):
    pass


def test_a_full_disk_at_one_site_leaves_the_others_in_the_round(tmp_path: Path) -> None:
    import sqlite3

    from quietsum.ledger.keys import load_key
    from quietsum.ledger.sqlite import SqliteStore

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
    world = World(tmp_path, text.replace("rounds = 3", "rounds = 12").replace("deadline", f"{POISSON}\ndeadline")).join()
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
    greetings = [content for _, content in world.carrier.sent if kind_of(content) == "hello"]
    assert greetings
    for content in greetings:
        letter = wire.read(content, most=2**20)
        assert letter.body == {} and letter.vector is None and letter.knows is None and letter.answers == ""


def test_requests_say_the_round_and_no_more(tmp_path: Path) -> None:
    world = World(tmp_path).join()
    world.round()
    letters = [wire.read(content, most=2**20) for _, content in world.carrier.sent]
    assert {tuple(sorted(letter.body)) for letter in letters if letter.kind == "train"} == {
        ("attempt", "plan", "round", "run")
    }
    assert "cohort" not in json.dumps([dict(letter.body) for letter in letters if letter.kind == "train"])


# ----------------------------------------------------------------------------------------------- our own ledger


def test_a_site_that_kept_a_head_which_our_ledger_lost_ends_the_run(tmp_path: Path) -> None:
    world = World(tmp_path).join()
    world.round()
    world.carrier.spoil = lambda node, reply: reply
    shorter = Ledger.open(tmp_path / "other.db", create=True)
    told = world.services["va"].books.last_seen(world.ledger.identity.ledger)
    assert told is not None and world.ledger.contains(told.head) and not shorter.contains(told.head)
    world.federation._ledger = _Forgetful(world.ledger)  # type: ignore[assignment]
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


@pytest.mark.parametrize("style", ["none", "sample"])
def test_the_same_plan_and_seeds_give_the_same_model_as_in_one_process(
    tmp_path: Path, style: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Public data, since seeds protect nobody; one seeded source a site in both runtimes. Equal to the last bit."""
    monkeypatch.setenv("QUIETSUM_TEST_SEEDS", "1")
    world = World(tmp_path, public_text(style), policy={"record": None, "dataset": None})
    assert all(facts.public for facts in world.resolved.parties)
    assert world.federation is not None


def _public_policies(plan: Plan) -> Iterator[SiteDataset]:
    for facts in facts_of(plan).values():
        yield SiteDataset(name=facts.dataset, size=facts.size, public=facts.public)
