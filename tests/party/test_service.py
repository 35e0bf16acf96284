"""A server may ask; the site decides. Whatever comes: one stated reply, and no row is read that was not paid for.

Every test looks at what its task was asked to do: :class:`Watched` notes each time that its data would be touched, with
the orders that it got. All replies of all tests are searched for ε, which a site never tells.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from party.asking import (
    MODEL,
    SENT,
    STYLES,
    UNIT,
    Place,
    Server,
    Watched,
    body_of,
    changed,
    fresh,
    hear,
    plan,
    policy,
    reason,
    searched,
)
from quietsum import wire
from quietsum.errors import DataMissing, LedgerBroken, PlanRefused
from quietsum.ledger import Charge, Ledger
from quietsum.ledger.chain.entries import Kind
from quietsum.ledger.chain.keys import SigningKey
from quietsum.ledger.stores.protocol import MemoryStore, Row, StoreFailed
from quietsum.party.books import write_resolved
from quietsum.party.policy import AllowedTask, CoordinatorAddress, Rules
from quietsum.party.requests import NOT_BOOKED
from quietsum.party.service import SiteService
from quietsum.plan import Plan, ResolvedPlan
from quietsum.privacy.events import Gaussian, Repeated
from quietsum.privacy.units import PrivacyUnit


@pytest.fixture(autouse=True)
def what_leaves(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    caplog.set_level(logging.DEBUG, logger="quietsum")
    SENT.clear()
    yield
    searched()


# ------------------------------------------------------------------------------------------------- how it goes well


@pytest.mark.parametrize("style", sorted(STYLES))
def test_a_plan_that_is_allowed_is_paid_for_and_answered(style: str) -> None:
    """The control of everything below: with these plans and policies, data is touched."""
    place, server, resolved = Place(policy(style)), Server(), plan(style)
    enrolled = server.enrol(place, resolved)
    assert set(enrolled.body) == {"plan", "charges"} and enrolled.body["plan"] == resolved.plan.digest
    assert [Charge.from_dict(one).unit for one in enrolled.body["charges"]] == (
        [PrivacyUnit.CLIENT] if style in ("user", "hybrid") else []
    )
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


def enlarged(resolved: ResolvedPlan, *path: str) -> dict[str, Any]:
    """The plan with a whole number of 401 digits at ``path``."""
    values = write_resolved(resolved)
    inner = values
    for name in path[:-1]:
        inner = inner[name]
    inner[path[-1]] = 10**400
    return values


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
    "for round 10**400": (enrolled_and(lambda p, s, r: s.train(p, r, 10**400)), "beyond 2^53"),
    "for attempt 10**400": (enrolled_and(lambda p, s, r: s.train(p, r, 1, 10**400)), "beyond 2^53"),
    "for attempt 2**63": (enrolled_and(lambda p, s, r: s.train(p, r, 1, 2**63)), "beyond 2^53"),
    "for attempt 2**40": (enrolled_and(lambda p, s, r: s.train(p, r, 1, 2**40)), "names no attempt"),
    "with a long number deep inside": (
        enrolled_and(lambda p, s, r: s.train(p, r, more=[{"a": [-(10**400)]}])), "beyond 2^53"),
    "to enrol for 10**400 rounds": (
        lambda p, s, r: s.enrol(p, enlarged(r, "plan", "federation", "rounds")), "beyond 2^53"),
    "to enrol with 10**400 parameters": (lambda p, s, r: s.enrol(p, enlarged(r, "dimension")), "beyond 2^53"),
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
@pytest.mark.some(25)
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


anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(["", "first", "x" * 300]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["plan", "digest", "x"]), inner),
    max_leaves=6,
)
fields = st.sampled_from(["run", "round", "attempt", "plan", "resolved", "outcome", "more"])


@given(kind=st.sampled_from(["enrol", "train", "farewell", "update", ""]), body=st.dictionaries(fields, anything))
def test_a_signed_message_with_any_content_is_refused_or_noted(kind: str, body: dict[str, Any]) -> None:
    """It passes every check of bytes and signatures, so it meets those behind them; none of them stumbles."""
    place, server = Place(), Server()
    server.enrol(place, plan())
    letter = server.say(place, kind, body, MODEL)
    assert letter.kind == "refused" or (letter.kind == "noted" and kind == "farewell")
    assert not place.task.touched and not place.reserved


def test_messages_longer_than_the_policy_allows_are_not_read() -> None:
    place, server = Place(policy(rules=Rules(largest_message=1024))), Server()
    assert reason(server.say(place, "hello", {"more": "x" * 1000}), "unreadable").endswith("are allowed")


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
    letter = server.train(place, resolved, run="second")
    assert reason(letter) == "its budget is spent"
    assert "the next charge does not fit" in caplog.text
    assert len(place.task.touched) == len(place.reserved) == 2


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


@pytest.mark.parametrize("style", sorted(STYLES))
def test_what_was_refused_before_the_site_enrolled_is_never_answered(style: str) -> None:
    """The coordinator has taken that charge back; a carrier that repeats the request changes nothing."""
    place, server, resolved = Place(policy(style)), Server(), plan(style)
    content = server.write("train", body_of(resolved), MODEL)
    assert reason(hear(place, content)) == "the site has not enrolled in this run"
    server.ledger.declare_public(party="south", dataset="roads", reason="any entry: its books have moved on")
    assert server.enrol(place, resolved).kind == "enrolled"
    place.start(policy(style))  # it has forgotten all that is not in its ledger
    assert "an older copy was put back" in reason(hear(place, content)) and not place.task.touched
    assert server.train(place, resolved, 1, 2).kind == "update"


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
    body = {**body_of(resolved), "resolved": write_resolved(resolved)}
    told = reason(second.say(place, kind, body, MODEL))
    assert "works for another coordinator" in told and first.ledger.identity.ledger not in told
    assert f"works for the coordinator whose ledger is {first.ledger.identity.ledger}" in caplog.text
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
    old = young.write("train", body_of(resolved, round=2), MODEL)
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
        letter = server.say(newer, "enrol", {"run": "first", "resolved": write_resolved(resolved)}, knows=knows)
        assert reason(letter) == "its own ledger is not in order"
    assert "a new one has forgotten what was spent" in caplog.text and not newer.task.touched


def test_a_ledger_that_is_not_in_order_is_said_once_again_when_it_changes_and_when_it_is_mended(
    caplog: pytest.LogCaptureFixture,
) -> None:
    place, server = Place(), Server()
    caplog.set_level("WARNING", logger="quietsum.party.service")
    others = fresh().testimony(), fresh().testimony()
    for _ in range(30):
        assert reason(server.say(place, "hello", {}, knows=others[0])) == "its own ledger is not in order"
    assert caplog.text.count("until the ledger is in order") == 1
    server.say(place, "hello", {}, knows=others[1])
    assert caplog.text.count("until the ledger is in order") == 2
    for _ in range(3):
        assert server.say(place, "hello", {}, knows=place.ledger.testimony()).kind == "here"
    assert caplog.text.count("the ledger is in order again") == 1
    server.say(place, "hello", {}, knows=others[1])
    assert caplog.text.count("until the ledger is in order") == 3


def test_two_coordinators_that_are_refused_in_turn_are_said_once_each(caplog: pytest.LogCaptureFixture) -> None:
    place, first, others = Place(), Server(), (Server(), Server())
    assert first.enrol(place, plan()).kind == "enrolled"
    for _ in range(10):
        for other in others:
            assert "works for another coordinator" in reason(other.say(place, "hello", {}))
    lines = [record for record in caplog.records if "another coordinator" in record.message]
    assert [record.levelname for record in lines].count("WARNING") == 2


# --------------------------------------------------------------------------------------------------- other policies


def test_a_policy_edited_after_the_enrolment_counts_from_the_next_start() -> None:
    place, server, resolved = Place(), Server(), plan()
    server.enrol(place, resolved)
    assert server.train(place, resolved, 1).kind == "update"
    for attempt, (stricter, words) in enumerate((
        (policy(record=dataclasses.replace(UNIT, smallest_noise=9.0)), "is below 9"),
        (policy(record=dataclasses.replace(UNIT, run=0.1)), "for one run"),
        (policy(rules=Rules(aggregation=("noisy-sum",))), "aggregation by 'mean' is not allowed"),
        (policy(tasks=(AllowedTask(name="others"),)), "does not allow task 'points'"),
        (policy(record=dataclasses.replace(UNIT, epsilon=5.0, run=5.0)), NOT_BOOKED),
    ), start=1):  # fmt: skip
        place.start(stricter)
        assert words in reason(server.train(place, resolved, 2, attempt))
        assert words in reason(server.enrol(place, resolved))
    assert len(place.task.touched) == 1
    place.start(policy())
    assert "was answered before" in reason(server.train(place, resolved, 2, attempt), "lost"), "no is no, for good"
    assert server.train(place, resolved, 2, attempt + 1).kind == "update"


def test_the_policy_is_asked_before_every_round() -> None:
    place, server, resolved = Place(), Server(), plan()
    server.enrol(place, resolved)
    assert server.train(place, resolved, 1).kind == "update"
    place.service.policy = policy(record=dataclasses.replace(UNIT, smallest_noise=9.0))
    assert "is below 9" in reason(server.train(place, resolved, 2))
    assert len(place.task.touched) == len(place.reserved) == 1


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


class Panic(BaseException):
    """What libraries written in Rust raise: no Exception."""


FAILS = (ValueError, MemoryError, SystemExit, DataMissing, StoreFailed, LedgerBroken, wire.UnreadableLetter, Panic)


@pytest.mark.parametrize("style", ["sample", "user", "hybrid", "party"])
@pytest.mark.parametrize("kind", FAILS)
def test_what_records_make_a_task_do_shows_nowhere_but_in_the_sites_own_log(
    kind: type[BaseException], style: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The control stands beside it: the reply of a site whose records are read has the same keys, sizes and charges."""
    replies, lengths = [], list[int]()
    for fails in (None, kind("row 7, Ms Smith")):
        place, server, resolved = Place(policy(style), fails=fails), Server(), plan(style)
        server.enrol(place, resolved)
        caplog.clear()
        reply = server.train(place, resolved)
        replies.append(reply)
        lengths.append(len(SENT[-1]))
        assert len(place.reserved) == place.committed and "Smith" not in caplog.text
        assert (f"{kind.__name__} in asking.py, line" in caplog.text) == (fails is not None)
        assert server.train(place, resolved, 1, 2).kind == "update"  # and nothing is broken by it
    good, bad = replies
    assert good.kind == bad.kind == "update" and good.body == bad.body
    assert good.vector is not None and bad.vector is not None
    assert good.vector.shape == bad.vector.shape and good.vector.dtype == bad.vector.dtype
    assert lengths[0] == lengths[1]
    if style != "user":  # there the server adds the noise, and it is trusted with updates
        assert bad.vector.all()


def test_a_failure_that_stays_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    place, server, resolved = Place(fails=ValueError("Ms Smith")), Server(), plan()
    server.enrol(place, resolved)
    for number, attempt in ((1, 1), (1, 2), (2, 1)):
        assert server.train(place, resolved, number, attempt).kind == "update"
    said = [record for record in caplog.records if "its work failed" in record.message]
    assert [record.levelname for record in said].count("WARNING") == 1


def test_files_that_are_not_there_are_said_before_anything_is_reserved() -> None:
    place, server, resolved = Place(), Server(), plan()
    assert server.enrol(place, resolved).kind == "enrolled"

    def gone(party: str) -> None:
        raise DataMissing(f"{party}.csv of Ms Smith is not there")

    place.task.look_for_data = gone
    assert reason(server.train(place, resolved)) == "it has no data"
    assert reason(server.enrol(place, resolved, "second")) == "it has no data"
    assert not place.reserved and not place.task.touched


@pytest.mark.parametrize("fails", [ValueError("Ms Smith"), SystemExit("Ms Smith"), Panic("Ms Smith")])
def test_with_noise_at_the_party_nobody_sees_that_its_work_failed(fails: BaseException) -> None:
    place, server, resolved = Place(policy("party"), fails=fails), Server(), plan("party")
    server.enrol(place, resolved)
    update = server.train(place, resolved)
    assert update.kind == "update" and update.vector is not None and update.vector.any()


class Talkative:
    """What a task says of its data when it should not have looked."""

    @property
    def dimension(self) -> int:
        raise Panic("row 17, Ms Smith")


@pytest.mark.parametrize("wrong", [PlanRefused("313 of 997 are ill"), Panic("Ms Smith"), KeyboardInterrupt()])
def test_what_a_task_says_before_anything_is_paid_stays_at_the_site(wrong: BaseException) -> None:
    place, server = Place(), Server()

    def make(_: object) -> Watched:
        raise wrong

    making: tuple[Any, ...] = (make, lambda _: Talkative())
    for task in making:
        place.service = SiteService(policy(), place.ledger, task=task, interruptible=False)
        assert reason(server.enrol(place, plan())) == "its task cannot run here" and not place.reserved


def give(task: Watched, _: object) -> Watched:
    return task


def test_ctrl_c_of_a_task_is_a_failure_like_any_other_where_the_owners_is_taken_otherwise() -> None:
    for style in ("sample", "party"):
        place, server, resolved = Place(policy(style), fails=KeyboardInterrupt()), Server(), plan(style)
        serve = functools.partial(SiteService, policy(style), place.ledger, task=functools.partial(give, place.task))
        place.service = serve(interruptible=False)
        server.enrol(place, resolved)
        assert server.train(place, resolved).kind == "update"
        place.service = serve()
        with pytest.raises(KeyboardInterrupt):  # the control: elsewhere it is the owner's
            server.train(place, resolved, 2)


def test_a_task_that_cannot_be_made_is_refused_before_anything_is_charged(caplog: pytest.LogCaptureFixture) -> None:
    place, server = Place(), Server()

    def broken(_: Plan) -> Any:
        raise FileNotFoundError("/data/Ms Smith")

    place.service = SiteService(policy(), place.ledger, task=broken)
    assert "its task cannot run here" in reason(server.enrol(place, plan()))
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
@pytest.mark.some(3)
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


@pytest.mark.parametrize("again", ["the disk has room again", "the site was told to allow more"])
def test_a_request_that_was_refused_is_refused_when_it_comes_again(again: str) -> None:
    """The coordinator took its charge back when it heard no; an answer to the same bytes would be behind its books."""
    store = Full(append=1, stays=False)
    place, server, resolved = Place(policy(), store=store), Server(), plan()
    server.enrol(place, resolved)
    body = {"run": "first", "round": 1, "attempt": 1, "plan": resolved.plan.digest}
    content = server.write("train", body, MODEL)
    if again == "the disk has room again":
        store.armed = True
        assert "could not be written" in reason(hear(place, content))
    else:
        place.service.policy = policy(tasks=(AllowedTask(name="another"),))
        assert "does not allow task" in reason(hear(place, content))
        place.service.policy = policy()
    store.armed = False
    assert reason(hear(place, content)) == "this request was refused before"
    assert not place.task.touched
    assert server.train(place, resolved, 1, 2).kind == "update", "the next attempt is another request"
