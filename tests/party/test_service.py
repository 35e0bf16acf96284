"""A server may ask; the site decides. Whatever comes: one stated reply, and no row is read that was not paid for.

Every test looks at what its task was asked to do: :class:`Watched` notes each time that its data would be touched, with
the orders that it got. All replies of all tests are searched for ε, which a site never tells.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quietsum.errors import DataMissing, LedgerBroken, QuietsumError
from quietsum.ledger import Charge, Ledger
from quietsum.ledger.entries import Kind
from quietsum.ledger.keys import SigningKey
from quietsum.ledger.store import MemoryStore, Row, StoreFailed
from quietsum.party import wire
from quietsum.party.books import resolved_from, resolved_to
from quietsum.party.policy import AllowedTask, CoordinatorAddress, Policy, Rules, SiteDataset, SiteName, UnitPolicy
from quietsum.party.service import SiteService
from quietsum.plan import PartyFacts, Plan, ResolvedPlan, resolve
from quietsum.plan.orders import LocalOrders
from quietsum.privacy.events import Gaussian, PrivacyEvent, Repeated
from quietsum.privacy.units import PrivacyUnit
from quietsum.tasks import Metrics

FACTS = (
    PartyFacts(name="north", dataset="points-north", size=120),
    PartyFacts(name="south", dataset="points-south", size=80),
)
RECORD = {"noise_multiplier": 4.0, "delta": 1e-3, "max_grad_norm": 1.0}
CLIENT = {"noise_multiplier": 8.0, "delta": 1e-3, "max_norm": 1.0}
STYLES: dict[str, dict[str, Any]] = {
    "sample": {"style": "sample", "record": RECORD},
    "user": {"style": "user", "client": CLIENT},
    "hybrid": {"style": "hybrid", "record": RECORD, "client": CLIENT},
    "party": {"style": "user", "client": {**CLIENT, "noise_at": "party"}, "neighbours": "replace-one"},
}
UNIT = UnitPolicy(epsilon=30.0, delta=1e-3, run=10.0, smallest_noise=1.0, largest_clip=4.0)
UNITS: dict[str, dict[str, UnitPolicy | None]] = {
    "sample": {"record": UNIT},
    "user": {"record": None, "client": UNIT},
    "hybrid": {"record": UNIT, "client": UNIT},
    "party": {"record": None, "client": UNIT},
}
MODEL = np.zeros(3)
SENT: list[bytes] = []
"""Every reply of every site in these tests."""


@pytest.fixture(autouse=True)
def what_leaves(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    caplog.set_level(logging.DEBUG, logger="quietsum")
    SENT.clear()
    yield
    assert SENT, "a test that hears no site shows nothing"
    for reply in SENT:
        assert b'"epsilon"' not in reply
        header = reply[10 : 10 + int.from_bytes(reply[6:10], "big")].decode()
        if '"kind":"refused"' not in header:  # which may quote the plan that came, in words
            assert "epsilon" not in header and "ε" not in header


class Watched:
    """A task that notes when its data would be touched."""

    name, title, dimension = "points", "points", 3

    def __init__(self, fails: BaseException | None = None) -> None:
        self.touched: list[LocalOrders] = []
        self.fails = fails

    def parties(self) -> tuple[PartyFacts, ...]:
        return FACTS

    def initial(self) -> np.ndarray:
        return MODEL

    def evaluate(self, params: np.ndarray) -> Metrics:
        return Metrics(values={"none": 0.0}, on="nothing")

    def train(self, party: str, params: np.ndarray, orders: LocalOrders, rng: Any) -> np.ndarray:
        self.touched.append(orders)
        if self.fails is not None:
            raise self.fails
        return np.full(3, 0.25)


def plan(style: str = "sample", **changes: Any) -> ResolvedPlan:
    values: dict[str, Any] = {
        "task": {"name": "points"},
        "federation": {"rounds": 2, "spare_attempts": 1, "deadline": 20.0},
        "training": {"sample_rate": 0.25, "local_steps": 2},
        "privacy": STYLES[style],
        **changes,
    }
    return resolve(Plan.from_dict(values), FACTS, 3)


def policy(style: str = "sample", **changes: Any) -> Policy:
    values: dict[str, Any] = {
        "site": SiteName(name="north"),
        "coordinator": CoordinatorAddress(address="127.0.0.1:9092"),
        "dataset": SiteDataset(name="points-north", size=120),
        "tasks": (AllowedTask(name="points"),),
        "rules": Rules(aggregation=("mean", "noisy-sum", "party-noise")),
        **UNITS[style],
        **changes,
    }
    return Policy(**values)


def fresh() -> Ledger:
    return Ledger.begin(MemoryStore(), SigningKey.generate())


class Place:
    """A site's books, from which its process can be started again and again, and the task that its data is behind."""

    def __init__(self, held: Policy | None = None, fails: BaseException | None = None, store: Any = None) -> None:
        self.store, self.key = MemoryStore() if store is None else store, SigningKey.generate()
        self.ledger = Ledger.begin(self.store, self.key)
        self.task = Watched(fails)
        self.service = self.start(held or policy())

    def start(self, held: Policy) -> SiteService:
        self.ledger = Ledger.on(self.store, self.key)
        self.service = SiteService(held, self.ledger, task=lambda _: self.task)
        return self.service

    @property
    def reserved(self) -> list[Any]:
        return [entry.body for entry in self.ledger.entries() if entry.kind is Kind.RESERVE]

    @property
    def committed(self) -> int:
        return sum(entry.kind is Kind.COMMIT for entry in self.ledger.entries())


class Server:
    """A coordinator that may say anything: its ledger signs it."""

    def __init__(self, ledger: Ledger | None = None) -> None:
        self.ledger = ledger or fresh()

    def write(self, kind: str, body: Mapping[str, Any], vector: np.ndarray | None = None, **more: Any) -> bytes:
        return wire.write(kind, body, self.ledger, vector=vector, **more)[0]

    def say(self, place: Place, kind: str, body: Mapping[str, Any], vector: Any = None, **more: Any) -> wire.Letter:
        return hear(place, self.write(kind, body, vector, **more))

    def enrol(self, place: Place, resolved: Any, run: str = "first") -> wire.Letter:
        values = resolved_to(resolved) if isinstance(resolved, ResolvedPlan) else resolved
        return self.say(place, "enrol", {"run": run, "resolved": values})

    def train(
        self,
        place: Place,
        resolved: ResolvedPlan,
        number: Any = 1,
        attempt: Any = 1,
        *,
        run: str = "first",
        **more: Any,
    ) -> wire.Letter:
        body = {"run": run, "round": number, "attempt": attempt, "plan": resolved.plan.digest, **more}
        return self.say(place, "train", body, MODEL)


def hear(place: Place, content: bytes) -> wire.Letter:
    reply = place.service.answer(content)
    SENT.append(reply)
    return wire.read(reply, most=2**22)


def reason(letter: wire.Letter, kind: str = "refused") -> str:
    assert letter.kind == kind, (letter.kind, letter.body)
    assert letter.vector is None
    told: str = letter.body["reason"]
    return told


# ------------------------------------------------------------------------------------------------- how it goes well


@pytest.mark.parametrize("style", sorted(STYLES))
def test_a_plan_that_is_allowed_is_paid_for_and_answered(style: str) -> None:
    """The control of everything below: with these plans and policies, data is touched."""
    place, server, resolved = Place(policy(style)), Server(), plan(style)
    assert server.enrol(place, resolved).body == {"plan": resolved.plan.digest}
    assert not place.task.touched
    update = server.train(place, resolved)
    assert update.kind == "update" and update.vector is not None and update.vector.shape == (3,)
    assert len(place.task.touched) == 1
    assert place.committed == len(place.reserved) == (2 if style in ("user", "hybrid") else 1)
    assert [Charge.from_dict(one).unit for one in update.body["charges"]] == (
        {"sample": [PrivacyUnit.RECORD], "user": [], "hybrid": [PrivacyUnit.RECORD], "party": [PrivacyUnit.CLIENT]}[
            style
        ]
    )
    assert set(update.body) == {"round", "attempt", "charges"}


def test_a_greeting_says_who_and_nothing_else() -> None:
    place, server = Place(), Server()
    letter = server.say(place, "hello", {})
    assert letter.kind == "here" and letter.body["party"] == "north"
    assert set(letter.body) == {"party", "session", "signature"} and letter.knows is None


# ----------------------------------------------------------------------------------------------------- what is asked


def asked_before_enrolment(place: Place, server: Server, resolved: ResolvedPlan) -> wire.Letter:
    return server.train(place, resolved)


def enrolled_and(ask: Callable[[Place, Server, ResolvedPlan], wire.Letter]) -> Any:
    def then(place: Place, server: Server, resolved: ResolvedPlan) -> wire.Letter:
        assert server.enrol(place, resolved).kind == "enrolled"
        return ask(place, server, resolved)

    return then


def body_of(resolved: ResolvedPlan, **changes: Any) -> dict[str, Any]:
    return {"run": "first", "round": 1, "attempt": 1, "plan": resolved.plan.digest, **changes}


ASKED: dict[str, tuple[Any, str]] = {
    "for a run never enrolled": (asked_before_enrolment, "has not enrolled in this run"),
    "for another run": (enrolled_and(lambda p, s, r: s.train(p, r, run="second")), "has not enrolled in this run"),
    "for a round beyond the plan": (enrolled_and(lambda p, s, r: s.train(p, r, 3)), "2 rounds, this is round 3"),
    "for round 0": (enrolled_and(lambda p, s, r: s.train(p, r, 0)), "names no round"),
    "for a round before the first": (enrolled_and(lambda p, s, r: s.train(p, r, -1)), "names no round"),
    "for round true": (enrolled_and(lambda p, s, r: s.train(p, r, True)), "names no round"),
    "for round 1.0": (enrolled_and(lambda p, s, r: s.train(p, r, 1.0)), "names no round"),
    "for round '1'": (enrolled_and(lambda p, s, r: s.train(p, r, "1")), "names no round"),
    "for attempt 0": (enrolled_and(lambda p, s, r: s.train(p, r, 1, 0)), "names no attempt"),
    "for no attempt": (enrolled_and(lambda p, s, r: s.train(p, r, 1, None)), "names no attempt"),
    "by another plan": (enrolled_and(lambda p, s, r: s.train(p, r, plan="0" * 64)), "belongs to another plan"),
    "by no plan": (enrolled_and(lambda p, s, r: s.train(p, r, plan=None)), "belongs to another plan"),
    "without a model": (enrolled_and(lambda p, s, r: s.say(p, "train", body_of(r))), "is not 3 finite numbers"),
    "with a longer model": (
        enrolled_and(lambda p, s, r: s.say(p, "train", body_of(r), np.zeros(4))), "is not 3 finite numbers"),
    "with a shorter model": (
        enrolled_and(lambda p, s, r: s.say(p, "train", body_of(r), np.zeros(2))), "is not 3 finite numbers"),
    "without a run": (lambda p, s, r: s.say(p, "train", body_of(r, run=None), MODEL), "names no run"),
    "for a run without a name": (lambda p, s, r: s.say(p, "enrol", {"run": " "}), "names no run"),
    "for a run with a name too long": (lambda p, s, r: s.enrol(p, r, "x" * 190), "names no run"),
    "to enrol with nothing": (lambda p, s, r: s.say(p, "enrol", {"run": "first"}), "other parts than a plan"),
    "to enrol with no plan": (lambda p, s, r: s.enrol(p, None), "cannot be read"),
    "to enrol with a list": (lambda p, s, r: s.enrol(p, [{}, 1]), "cannot be read"),
    "to enrol with a text": (lambda p, s, r: s.enrol(p, "plan"), "other parts than a plan"),
    "something unknown": (lambda p, s, r: s.say(p, "rm -rf\n" * 10_000, {"run": "first"}), "is unknown here"),
    "for everything": (lambda p, s, r: s.say(p, "rows", {"run": "first"}), "a message of kind 'rows' is unknown here"),
}  # fmt: skip


@pytest.mark.parametrize("style", ["sample", "user"])
@pytest.mark.parametrize("what", ASKED)
def test_a_request_that_is_none_is_refused_before_data_is_touched(
    what: str, style: str, caplog: pytest.LogCaptureFixture
) -> None:
    ask, words = ASKED[what]
    place, server, resolved = Place(policy(style)), Server(), plan(style)
    told = reason(ask(place, server, resolved))
    assert words in told
    assert not place.task.touched
    assert any(record.name == "quietsum.party.service" and words in record.message for record in caplog.records)
    assert all("\n" not in record.message and record.exc_info is None for record in caplog.records)
    if server.enrol(place, resolved).kind == "enrolled":  # and nothing is broken by it
        assert server.train(place, resolved).kind == "update"


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_model_that_is_not_finite_is_left_unread(value: float) -> None:
    place, server, resolved = Place(), Server(), plan()
    server.enrol(place, resolved)
    told = reason(server.say(place, "train", body_of(resolved), np.array([0, value, 0])), "unreadable")
    assert told == "its numbers are not all finite" and not place.task.touched


@given(content=st.binary(max_size=300))
def test_garbage_gets_a_reply_that_answers_nothing(content: bytes) -> None:
    place = Place()
    for one in (content, wire.MAGIC + content):
        letter = hear(place, one)
        assert letter.kind == "unreadable" and letter.answers == ""


def test_messages_longer_than_the_policy_allows_are_not_read() -> None:
    place, server = Place(policy(rules=Rules(largest_message=1024))), Server()
    assert reason(server.say(place, "hello", {"more": "x" * 1000}), "unreadable").endswith("are allowed")


# ------------------------------------------------------------------------------------------------- tampered plans


def values_of(resolved: ResolvedPlan) -> dict[str, Any]:
    return copy.deepcopy(resolved_to(resolved))


def with_plan(resolved: ResolvedPlan, change: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    """The plan's own part changed, with the hash that belongs to it: what a coordinator can sign."""
    values = values_of(resolved)
    change(values["plan"])
    values["digest"] = Plan.from_dict(values["plan"]).digest
    return values


def changed(resolved: ResolvedPlan, **changes: Any) -> dict[str, Any]:
    return {**values_of(resolved), **changes}


def limits(resolved: ResolvedPlan, **changes: float) -> list[dict[str, Any]]:
    return [{**limit, **changes} for limit in values_of(resolved)["limits"]]


def parties(resolved: ResolvedPlan, **changes: Any) -> list[dict[str, Any]]:
    first, *others = values_of(resolved)["parties"]
    return [{**first, **changes}, *others]


def twice(resolved: ResolvedPlan) -> list[dict[str, Any]]:
    first, *others = values_of(resolved)["parties"]
    return [first, {**first, "size": 10_000}, *others]


def in_table(resolved: ResolvedPlan, table: str, **keys: Any) -> dict[str, Any]:
    return with_plan(resolved, lambda plan: plan[table].update(keys))


def staged(resolved: ResolvedPlan, noise: float) -> dict[str, Any]:
    def change(plan: dict[str, Any]) -> None:
        plan["schedule"] = [{"rounds": 1}, {"rounds": 1, "noise": noise}]
        plan["federation"]["spare_attempts"] = 0

    return with_plan(resolved, change)


def unpromised(resolved: ResolvedPlan) -> dict[str, Any]:
    def change(plan: dict[str, Any]) -> None:
        plan["privacy"]["style"] = "none"
        del plan["privacy"]["record"]

    return with_plan(resolved, change)


TAMPERED: dict[str, tuple[Callable[[ResolvedPlan], dict[str, Any]], str]] = {
    "noise lowered": (lambda r: changed(r, record_noise=2.0), "and states ε"),
    "noise far lowered": (lambda r: changed(r, record_noise=0.1), "is below 1"),
    "noise left out": (lambda r: changed(r, record_noise=None), "style and its noise per record do not fit"),
    "noise for clients added": (lambda r: changed(r, client_noise=2.0), "style and its noise per client do not fit"),
    "ε raised": (lambda r: changed(r, limits=limits(r, epsilon=11.0)), "is more than 10 for one run"),
    "ε below what it costs": (lambda r: changed(r, limits=limits(r, epsilon=0.01)), "and states ε"),
    "δ raised": (lambda r: changed(r, limits=limits(r, delta=1e-2)), "δ = 0.01 per record is more than 0.001"),
    "no limit": (lambda r: changed(r, limits=[]), "states no ε per record"),
    "another limit": (lambda r: changed(r, limits=limits(r, unit="client")), "states no ε per record"),  # type: ignore[arg-type]
    "an infinite ε": (lambda r: changed(r, limits=limits(r, epsilon="Infinity")), "cannot be read"),  # type: ignore[arg-type]
    "size changed": (lambda r: changed(r, parties=parties(r, size=121)), "public size is 120"),
    "dataset changed": (lambda r: changed(r, parties=parties(r, dataset="visits")), "its dataset is"),
    "name changed": (lambda r: changed(r, parties=parties(r, name="east")), "does not name this site"),
    "holder named": (lambda r: changed(r, parties=parties(r, holder="cloud")), "of one holder"),
    "site named twice": (lambda r: changed(r, parties=twice(r)), "more than once"),
    "no parties": (lambda r: changed(r, parties=[]), "declares no parties"),
    "dimension changed": (lambda r: changed(r, dimension=4), "its task has 3 parameters, the plan says 4"),
    "digest changed": (lambda r: changed(r, digest="0" * 64), "not the one whose hash came with it"),
    "rounds changed without the hash": (
        lambda r: changed(r, plan={**values_of(r)["plan"], "federation": {"rounds": 50}}), "not the one whose hash"),
    "rounds changed": (lambda r: in_table(r, "federation", rounds=5000), "and states ε"),
    "attempts added": (lambda r: in_table(r, "federation", spare_attempts=5000), "and states ε"),
    "steps added": (lambda r: in_table(r, "training", local_steps=5000), "and states ε"),
    "rate raised": (lambda r: in_table(r, "training", sample_rate=1.0), "and states ε"),
    "clip raised": (lambda r: with_plan(r, lambda p: p["privacy"]["record"].update(max_grad_norm=9.0)), "is above 4"),
    "quieter stages": (lambda r: staged(r, 0.01), "is below 1"),
    "impossible stages": (lambda r: staged(r, 1e-300), ""),
    "fast noise": (lambda r: in_table(r, "privacy", noise="fast"), "not floating-point safe"),
    "other batches": (lambda r: in_table(r, "training", batches="shuffled"), "batches"),
    "an unknown task": (lambda r: in_table(r, "task", name="os:system"), "does not allow task 'os:system'"),
    "options of a task": (lambda r: in_table(r, "task", options={"path": "/etc"}), "with these options"),
    "no promise": (lambda r: {**unpromised(r), "record_noise": None, "limits": []}, "the plan promises nothing"),
    "secure aggregation": (lambda r: in_table(r, "aggregation", secure=True), "secure"),
    "an unknown key": (lambda r: changed(r, trusted=True), "other parts than a plan"),
}  # fmt: skip


@pytest.mark.parametrize("what", TAMPERED)
def test_a_tampered_plan_is_refused_and_nothing_is_written(what: str, caplog: pytest.LogCaptureFixture) -> None:
    change, words = TAMPERED[what]
    place, server, resolved = Place(), Server(), plan()
    values = change(resolved)
    assert values != resolved_to(resolved)
    assert words in reason(server.enrol(place, values))
    told = [record for record in caplog.records if record.name == "quietsum.party.service"]
    assert told and words in caplog.text and not any(record.exc_info for record in told)
    after = reason(server.train(place, resolved, plan=values["digest"]))
    assert after == "the site has not enrolled in this run"
    assert not place.task.touched and place.ledger.head.sequence == 1
    assert server.enrol(place, resolved).kind == "enrolled"  # the plan as it was


@pytest.mark.parametrize("style", ["sample", "user", "hybrid"])
def test_another_plan_under_the_name_of_a_run_is_refused_and_cannot_be_trained(style: str) -> None:
    """Where clients are charged as a whole when the site enrols, nothing but the plan itself bounds its rounds."""
    place, server, resolved = Place(policy(style)), Server(), plan(style)
    longer = plan(style, federation={"rounds": 7, "spare_attempts": 3, "deadline": 20.0})
    assert server.enrol(place, resolved).kind == "enrolled"
    before = place.ledger.head
    assert "was opened with another plan" in reason(server.enrol(place, longer))
    assert "belongs to another plan" in reason(server.train(place, longer, 3))
    assert "this is round 3" in reason(server.train(place, resolved, 3))
    assert not place.task.touched and place.ledger.head == before
    assert server.train(place, resolved).kind == "update"


def test_a_plan_that_was_refused_by_the_books_is_not_enrolled_in() -> None:
    place, server = Place(policy(record=dataclasses.replace(UNIT, epsilon=plan().limits[0].epsilon / 2))), Server()
    assert reason(server.enrol(place, plan())) == "its budget does not allow this plan"
    assert reason(server.train(place, plan())) == "the site has not enrolled in this run"
    assert not place.task.touched and place.ledger.head.sequence == 1


def leaves(values: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    inner = values.items() if isinstance(values, dict) else enumerate(values) if isinstance(values, list) else ()
    for key, value in inner:
        yield from leaves(value, (*path, key))


def at(values: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        values = values[key]
    return values


numbers = st.sampled_from([0, 1, 2, 3, 7, 50, -1, 10**7, 0.5, 1.5, 1e-9, 1e-300, 1e300, 0.01, 0.9, 4.5, 16.0])
words = st.sampled_from(
    ["", "north", "south", "sample", "user", "hybrid", "none", "fast", "poisson", "rdp", "zero-out"]
)
others = st.sampled_from([None, True, False, [], {}, [1], {"kind": "poisson", "rate": 0.5}])
scaled = st.sampled_from([0.5, 0.999, 1.001, 2.0, 100.0]).map(lambda factor: ("times", factor))


class Bounds:
    """What the site's books say of a plan it has enrolled in, against what its task was really told to do."""

    def __init__(self, place: Place) -> None:
        self.place = place

    def hold(self) -> None:
        told = self.place.task.touched
        rounds = [body for body in self.place.reserved if body["round"] > 0]
        assert len(rounds) >= len(told)
        for orders, body in zip(told, rounds, strict=False):
            charged = {charge.unit: charge for charge in map(Charge.from_dict, body["charges"])}
            if orders.mechanism is not None:
                done: PrivacyEvent = orders.sampling.amplify(orders.mechanism.event())
                assert charged[PrivacyUnit.RECORD].event == Repeated(times=orders.steps, event=done)
                assert orders.mechanism.event().noise_multiplier >= UNIT.smallest_noise
                assert orders.mechanism.max_norm <= UNIT.largest_clip  # type: ignore[operator]
            if orders.client is not None:
                assert charged[PrivacyUnit.CLIENT].event == Repeated(times=1, event=orders.client.event())
        (run,) = self.place.ledger.runs()
        for guarantee in self.place.ledger.spent_by_party(run.run).values():
            assert guarantee.epsilon <= 10.0 * (1 + 1e-6)


@settings(max_examples=400)
@given(
    style=st.sampled_from(sorted(STYLES)),
    place=st.integers(0, 10**6),
    value=numbers | words | others | scaled,
    rehash=st.booleans(),
    drop=st.booleans(),
)
def test_any_field_of_a_plan_may_be_changed_and_the_charge_is_right_or_refused(
    style: str, place: int, value: Any, rehash: bool, drop: bool
) -> None:
    resolved = plan(style)
    values = values_of(resolved)
    paths = [path for path in leaves(values) if path]
    path = paths[place % len(paths)]
    if isinstance(value, tuple):
        old = at(values, path)
        value = old * value[1] if isinstance(old, float) else 5
    parent = at(values, path[:-1])
    if drop and isinstance(parent, dict):
        del parent[path[-1]]
    else:
        parent[path[-1]] = value
    if rehash:
        with contextlib.suppress(QuietsumError, LookupError, TypeError, AttributeError, ValueError):
            values["digest"] = Plan.from_dict(values["plan"]).digest
    site, server = Place(policy(style)), Server()
    try:
        letter = server.enrol(site, values)
    except QuietsumError:  # what cannot be written is not sent
        SENT.append(b"")
        return
    assert not site.task.touched
    if letter.kind == "refused":
        assert letter.body["reason"] and site.ledger.head.sequence == 1
        assert server.train(site, resolved).kind == "refused" and not site.task.touched
        return
    assert letter.kind == "enrolled", letter.body
    came = resolved_from(values)
    for number in range(1, min(came.plan.federation.rounds, 3) + 1):
        server.train(site, came, number)
    Bounds(site).hold()
    if came.client_level and not came.noise_at_party and not came.plan.schedule:
        whole, noise = Charge.from_dict(site.reserved[0]["charges"][0]), came.joint_mechanism()
        assert noise is not None and noise.event().noise_multiplier >= UNIT.smallest_noise
        assert whole.event == Repeated(times=came.attempts, event=noise.event())
        assert len(site.task.touched) <= came.attempts


def test_the_control_charges_that_are_not_what_was_done_are_found() -> None:
    """The check above fails where the books and the orders differ."""
    place, server, resolved = Place(), Server(), plan()
    server.enrol(place, resolved)
    server.train(place, resolved)
    Bounds(place).hold()
    place.task.touched[0] = dataclasses.replace(place.task.touched[0], steps=3)
    with pytest.raises(AssertionError):
        Bounds(place).hold()
    quiet = dataclasses.replace(resolved, record_noise=1.5).orders("north")
    place.task.touched[0] = quiet
    with pytest.raises(AssertionError):
        Bounds(place).hold()


# --------------------------------------------------------------------------------------------------- spent budgets

LIMIT = plan().limits[0].epsilon
SMALL = dataclasses.replace(UNIT, epsilon=1.01 * LIMIT, run=None)


def test_a_site_whose_lifetime_is_spent_refuses_the_next_plan(caplog: pytest.LogCaptureFixture) -> None:
    place, server, resolved = Place(policy(record=SMALL)), Server(), plan()
    server.enrol(place, resolved)
    for number in (1, 2):
        assert server.train(place, resolved, number).kind == "update"
    caplog.clear()
    letters = [server.enrol(place, resolved, run) for run in ("second", "third")]
    assert {reason(letter) for letter in letters} == {"its budget does not allow this plan"}
    assert "ε" not in str([letter.body for letter in letters]) and "lifetime of ε" in caplog.text
    assert reason(server.train(place, resolved, run="second")) == "the site has not enrolled in this run"
    assert len(place.task.touched) == 2


def test_a_site_whose_lifetime_is_spent_refuses_in_the_middle_of_a_run(caplog: pytest.LogCaptureFixture) -> None:
    """Two plans fit alone; what the first one spends is no longer there for the second."""
    place, server, resolved = Place(policy(record=SMALL)), Server(), plan()
    for run in ("first", "second"):
        assert server.enrol(place, resolved, run).kind == "enrolled"
    assert server.train(place, resolved, 1).kind == "update"
    assert server.train(place, resolved, 2).kind == "update"
    before = place.ledger.head
    letter = server.train(place, resolved, run="second")
    assert reason(letter) == "its budget is spent"
    assert "the next charge does not fit" in caplog.text
    assert len(place.task.touched) == 2 and place.ledger.head == before


def test_a_run_costs_no_more_attempts_than_its_plan_has() -> None:
    for style in sorted(STYLES):
        place, server, resolved = Place(policy(style)), Server(), plan(style)
        server.enrol(place, resolved)
        kinds = [server.train(place, resolved, 1, attempt).kind for attempt in range(1, 9)]
        assert kinds == ["update"] * 3 + ["refused"] * 5, style  # two rounds and a spare attempt
        assert server.train(place, resolved, 2).kind == "refused" and len(place.task.touched) == 3


def test_clients_are_charged_for_the_whole_plan_before_any_round() -> None:
    place, server, resolved = Place(policy("user")), Server(), plan("user")
    server.enrol(place, resolved)
    server.enrol(place, resolved)
    (charged,) = [Charge.from_dict(one) for body in place.reserved for one in body["charges"]]
    assert charged.unit is PrivacyUnit.CLIENT and charged.event == Repeated(
        times=3, event=Gaussian(noise_multiplier=8.0)
    )
    assert place.committed == 1


# ---------------------------------------------------------------------------------------------- once, and the same


def test_the_same_request_twice_gets_the_same_bytes() -> None:
    place, server, resolved = Place(), Server(), plan()
    server.enrol(place, resolved)
    content = server.write("train", body_of(resolved), MODEL)
    first = place.service.answer(content)
    assert place.service.answer(content) == first
    assert server.enrol(place, resolved).kind == "enrolled"  # a coordinator that asks again whether it is there
    assert place.service.answer(content) == first
    again = place.service.answer(server.write("train", body_of(resolved), MODEL))
    assert again == first
    assert len(place.task.touched) == len(place.reserved) == 1
    SENT.append(first)


def test_the_same_attempt_with_another_model_gets_nothing(caplog: pytest.LogCaptureFixture) -> None:
    place, server, resolved = Place(), Server(), plan()
    server.enrol(place, resolved)
    server.train(place, resolved)
    other = server.say(place, "train", body_of(resolved), MODEL + 1)
    assert "was answered before" in reason(other, "lost") and len(place.task.touched) == 1
    assert "came again, and is answered once" in caplog.text


def test_after_a_restart_a_request_is_lost_and_nothing_is_released_twice() -> None:
    place, server, resolved = Place(), Server(), plan()
    server.enrol(place, resolved)
    content = server.write("train", body_of(resolved), MODEL)
    assert hear(place, content).kind == "update"
    place.start(policy())
    assert "was answered before" in reason(hear(place, content), "lost")
    assert len(place.task.touched) == len(place.reserved) == 1
    assert server.train(place, resolved, 2).kind == "update"  # without enrolling again: the ledger knows the plan
    assert "was answered before" in reason(hear(place, content), "lost")
    assert server.train(place, resolved, 2, 2).kind == "update" and len(place.task.touched) == 3


def test_attempts_may_be_skipped_and_never_go_back() -> None:
    place, server, resolved = Place(), Server(), plan()
    server.enrol(place, resolved)
    assert server.train(place, resolved, 1, 3).kind == "update"
    for attempt in (1, 2):
        assert "was answered before" in reason(server.train(place, resolved, 1, attempt), "lost")
    assert len(place.task.touched) == 1


# ---------------------------------------------------------------------------------------------------- who may ask


@pytest.mark.parametrize("kind", ["hello", "enrol", "train", "farewell"])
def test_another_coordinator_than_the_first_is_refused(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    place, first, second, resolved = Place(), Server(), Server(), plan()
    assert second.say(place, "hello", {}).kind == "here"  # nobody is known yet
    first.enrol(place, resolved)
    body = {**body_of(resolved), "resolved": resolved_to(resolved)}
    told = reason(second.say(place, kind, body, MODEL))
    assert f"works for the coordinator whose ledger is {first.ledger.identity.ledger}" in told
    assert told in caplog.text
    place.start(policy())
    assert reason(second.say(place, kind, body, MODEL)) == told
    assert not place.task.touched
    assert first.train(place, resolved).kind == "update"


def test_a_pinned_coordinator_is_the_only_one() -> None:
    wanted, other, resolved = Server(), Server(), plan()
    pinned = CoordinatorAddress(address="127.0.0.1:9092", ledger=wanted.ledger.identity.ledger)
    place = Place(policy(coordinator=pinned))
    assert "names it under coordinator.ledger" in reason(other.say(place, "hello", {}))
    assert "names it under coordinator.ledger" in reason(other.enrol(place, resolved))
    wanted.enrol(place, resolved)
    assert wanted.train(place, resolved).kind == "update" and len(place.task.touched) == 1


def test_a_plan_that_the_first_coordinator_was_refused_makes_it_nobodys_coordinator() -> None:
    place, first, second = Place(), Server(), Server()
    assert first.enrol(place, changed(plan(), record_noise=0.1)).kind == "refused"
    assert second.enrol(place, plan()).kind == "enrolled"


def test_a_coordinator_whose_ledger_went_back_is_refused() -> None:
    """It shows a head, the site keeps it, and from then on nothing shorter or other will do."""
    store, key = MemoryStore(), SigningKey.generate()
    young = Server(Ledger.begin(store, key))
    place, resolved = Place(), plan()
    old = young.write("train", body_of(resolved), MODEL)
    young.ledger.declare_public(party="a", dataset="b", reason="made up")
    young.enrol(place, resolved)
    assert young.train(place, resolved).kind == "update"
    assert "its tail was cut off" in reason(hear(place, old))
    rewritten = MemoryStore()
    with rewritten.transaction():
        rewritten.append(next(store.rows(1)))
    other = Server(Ledger.on(rewritten, key))
    other.ledger.declare_public(party="a", dataset="b", reason="made up otherwise")
    assert "the ledger was rewritten" in reason(other.train(place, resolved, 2))
    assert len(place.task.touched) == 1


def test_a_site_whose_own_ledger_went_back_does_nothing_any_more(caplog: pytest.LogCaptureFixture) -> None:
    place, server, resolved = Place(), Server(), plan()
    server.enrol(place, resolved)
    kept = server.train(place, resolved).sender
    newer = Place()  # a ledger that has forgotten everything
    for knows in (kept, fresh().testimony()):
        letter = server.say(newer, "enrol", {"run": "first", "resolved": resolved_to(resolved)}, knows=knows)
        assert reason(letter) == "its own ledger is not in order"
    assert "a new one has forgotten what was spent" in caplog.text and not newer.task.touched


# --------------------------------------------------------------------------------------------------- other policies


def test_a_policy_edited_after_the_enrolment_counts_from_the_next_start() -> None:
    place, server, resolved = Place(), Server(), plan()
    server.enrol(place, resolved)
    assert server.train(place, resolved, 1).kind == "update"
    for stricter, words in (
        (policy(record=dataclasses.replace(UNIT, smallest_noise=9.0)), "is below 9"),
        (policy(record=dataclasses.replace(UNIT, run=0.1)), "for one run"),
        (policy(rules=Rules(aggregation=("noisy-sum",))), "aggregation by 'mean' is not allowed"),
        (policy(tasks=(AllowedTask(name="others"),)), "does not allow task 'points'"),
        (policy(record=dataclasses.replace(UNIT, epsilon=5.0, run=5.0)), "lifetime"),
    ):
        place.start(stricter)
        assert words in reason(server.train(place, resolved, 2))
        assert words in reason(server.enrol(place, resolved))
    assert len(place.task.touched) == 1
    place.start(policy())
    assert server.train(place, resolved, 2).kind == "update"


def test_a_larger_lifetime_in_the_policy_does_not_raise_that_of_the_ledger() -> None:
    place, server, resolved = Place(policy(record=SMALL)), Server(), plan()
    server.enrol(place, resolved)
    for number in (1, 2):
        server.train(place, resolved, number)
    place.start(policy())
    assert reason(server.enrol(place, resolved, "second")) == "its budget does not allow this plan"
    place.ledger.raise_budget(party="north", dataset="points-north", epsilon=30.0, reason="the owner says so")
    assert server.enrol(place, resolved, "second").kind == "enrolled"


# ------------------------------------------------------------------------------------------------------ what fails


@pytest.mark.parametrize(
    ("fails", "told"),
    [
        (ValueError("row 7, Ms Smith"), "its work failed (ValueError)"),
        (MemoryError("Ms Smith"), "its work failed (MemoryError)"),
        (SystemExit("Ms Smith"), "its work failed (SystemExit)"),
        (DataMissing("the file of Ms Smith"), "it has no data"),
        (StoreFailed("Ms Smith"), "its work failed (StoreFailed)"),
        (LedgerBroken("Ms Smith"), "its work failed (LedgerBroken)"),
        (wire.Unreadable("Ms Smith"), "its work failed (Unreadable)"),
    ],
)
def test_work_that_fails_is_charged_and_told_by_its_kind(
    fails: BaseException, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    place, server, resolved = Place(fails=fails), Server(), plan()
    server.enrol(place, resolved)
    assert reason(server.train(place, resolved), "lost") == told
    assert len(place.reserved) == 1 and not place.committed and "Smith" not in caplog.text
    assert "was answered before" in reason(server.train(place, resolved), "lost")
    place.task.fails = None
    assert server.train(place, resolved, 1, 2).kind == "update"


def test_with_noise_at_the_party_nobody_sees_that_its_work_failed() -> None:
    place, server, resolved = Place(policy("party"), fails=ValueError("Ms Smith")), Server(), plan("party")
    server.enrol(place, resolved)
    update = server.train(place, resolved)
    assert update.kind == "update" and update.vector is not None and update.vector.any()


def test_a_task_that_cannot_be_made_is_refused_before_anything_is_charged(caplog: pytest.LogCaptureFixture) -> None:
    place, server = Place(), Server()

    def broken(_: Plan) -> Any:
        raise FileNotFoundError("/data/Ms Smith")

    place.service = SiteService(policy(), place.ledger, task=broken)
    assert "its task cannot run here (FileNotFoundError)" in reason(server.enrol(place, plan()))
    assert place.ledger.head.sequence == 1 and "/data" in caplog.text  # in the site's own log


# ---------------------------------------------------------------------------------------------------- a full disk


class Full:
    """A store whose disk fills up: the n-th append fails, or the n-th end of a transaction, once or from then on."""

    def __init__(self, *, append: int = 0, end: int = 0, stays: bool) -> None:
        self.inner, self._append, self._end, self.stays = MemoryStore(), append, end, stays
        self.appends = self.ends = 0
        self.armed = False

    def _check(self, count: int, at: int) -> None:
        if self.armed and at and (count == at or (self.stays and count > at)):
            raise StoreFailed("the disk is full; nothing was recorded")

    def head(self) -> tuple[int, str] | None:
        return self.inner.head()

    def transaction(self) -> Any:
        @contextlib.contextmanager
        def inside() -> Iterator[None]:
            with self.inner.transaction():
                yield
                self.ends += self.armed
                self._check(self.ends, self._end)

        return inside()

    def append(self, row: Row) -> None:
        self.appends += self.armed
        self._check(self.appends, self._append)
        self.inner.append(row)

    def rows(self, start: int = 1) -> Iterator[Row]:
        return self.inner.rows(start)

    def close(self) -> None:
        self.inner.close()


def play(place: Place, resolved: ResolvedPlan) -> list[wire.Letter]:
    server = Server()
    told = [server.enrol(place, resolved)]
    told += [server.train(place, resolved, *key) for key in ((1, 1), (2, 1), (2, 2))]
    return [*told, server.say(place, "farewell", {"run": "first", "outcome": "finished"})]


def writes(style: str) -> Full:
    store = Full(stays=False)
    place = Place(policy(style), store=store)
    store.armed = True
    play(place, plan(style))
    return store


@pytest.mark.parametrize("stays", [False, True])
@pytest.mark.parametrize("style", ["sample", "hybrid"])
def test_a_full_disk_at_any_write_is_a_stated_outcome_and_nothing_leaves_unpaid(style: str, stays: bool) -> None:
    counted, resolved = writes(style), plan(style)
    assert counted.appends >= 9 and counted.ends >= 6
    cases = [{"append": n} for n in range(1, counted.appends + 1)] + [{"end": n} for n in range(1, counted.ends + 1)]
    failed = 0
    for case in cases:
        store = Full(**case, stays=stays)
        place = Place(policy(style), store=store)
        store.armed = True
        letters = play(place, resolved)
        kinds = [letter.kind for letter in letters]
        assert set(kinds) <= {"enrolled", "update", "refused", "lost", "noted"}, kinds
        failed += any(kind in ("refused", "lost") for kind in kinds)
        words = [letter.body["reason"] for letter in letters if "reason" in letter.body]
        assert stays or any("ledger could not be written" in one for one in words) or "lost" in kinds
        updates = [letter for letter in letters if letter.kind == "update"]
        store.armed = False
        ledger = Ledger.on(store, place.key)
        ledger.verify()
        paid = {(entry.body["round"], entry.body["attempt"]) for entry in ledger.entries() if entry.kind is Kind.COMMIT}
        assert {(letter.body["round"], letter.body["attempt"]) for letter in updates} <= paid
        reserved = sum(entry.kind is Kind.RESERVE and entry.body["round"] > 0 for entry in ledger.entries())
        assert len(place.task.touched) <= reserved
    assert failed == len(cases)
