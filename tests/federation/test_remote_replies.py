"""Replies that are forged, cut, replayed or somebody else's: each costs its sender its place in the round."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from federation.sites import Place
from federation.world import (
    NAMES,
    OTHERS,
    RECORDS,
    Repeating,
    World,
    kind_of,
)
from quietsum import wire
from quietsum.federation.remote import sites
from quietsum.federation.remote.federation import RemoteFederation
from quietsum.federation.remote.transport import Arrival
from quietsum.federation.round import limits_of
from quietsum.ledger import Ledger
from quietsum.ledger.chain.entries import Kind
from quietsum.ledger.chain.keys import SigningKey
from quietsum.ledger.stores.protocol import MemoryStore
from quietsum.party.service import SiteService


@pytest.fixture(autouse=True)
def logs(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    caplog.set_level(logging.DEBUG, logger="quietsum")
    monkeypatch.setattr(sites, "time", SimpleNamespace(sleep=lambda seconds: None))


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


def far_too_long(world: World, letter: wire.Letter) -> np.ndarray:
    """Ten times the length that an honest update may have."""
    limit = limits_of(world.resolved, 1, 0.0, ["va"])["va"]
    assert letter.vector is not None and np.linalg.norm(letter.vector) <= limit
    return 10 * limit * letter.vector / np.linalg.norm(letter.vector)


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
    "1.7e308": (lambda w, x, b: w.signed(x, vector=np.full_like(x.vector, 1.7e308)), "an honest one has at most"),
    "1e100": (lambda w, x, b: w.signed(x, vector=np.full_like(x.vector, -1e100)), "an honest one has at most"),
    "ten times the longest": (lambda w, x, b: w.signed(x, vector=far_too_long(w, x)), "an honest one has at most"),
    "an empty vector": (lambda w, x, b: w.signed(x, vector=np.zeros(0)), "its update"),
    "no numbers": (lambda w, x, b: w.signed(x, vector=unfinished(x)), "its numbers are not all finite"),
    "no charges": (lambda w, x, b: w.signed(x, body={**x.body, "charges": []}), "other events than the plan says"),
    "charges of another type": (lambda w, x, b: w.signed(x, body={**x.body, "charges": 7}), "cannot be read"),
    "charges without events": (lambda w, x, b: w.signed(x, body={**x.body, "charges": [{}]}), "cannot be read"),
    "charges left out": (lambda w, x, b: w.signed(x, body={"round": 1, "attempt": 1}), "cannot be read"),
    "no protection": (lambda w, x, b: w.signed(x, body=with_charges(x, event=None)), "other events than the plan says"),
    "another dataset": (lambda w, x, b: w.signed(x, body=with_charges(x, dataset="x")), "other events than the plan"),
    "another unit": (lambda w, x, b: w.signed(x, body=with_charges(x, unit="client")), "other events than the plan"),
    "more failure": (lambda w, x, b: w.signed(x, body=with_charges(x, failure=0.5)), "other events than the plan says"),
    "a number of 401 digits": (lambda w, x, b: w.signed(x, body={**x.body, "more": [10**400]}), "beyond 2^53"),
    "a round of 401 digits": (lambda w, x, b: w.signed(x, body={**x.body, "round": 10**400}), "beyond 2^53"),
    "charges of 401 digits": (lambda w, x, b: w.signed(x, body=with_charges(x, failure=10**400)), "beyond 2^53"),
    "a greeting": (lambda w, x, b: w.signed(x, kind="here"), "a 'here' is no reply to a train"),
    "an enrolment": (lambda w, x, b: w.signed(x, kind="enrolled", vector=None), "is no reply to a train"),
    "a farewell": (lambda w, x, b: w.signed(x, kind="noted", body={}, vector=None), "is no reply to a train"),
    "an order": (lambda w, x, b: w.signed(x, kind="train\n\x1b[31m" * 9), "is no reply to a train"),
    "that it lost it": (lambda w, x, b: w.signed(x, kind="lost", body={"reason": "a\nb"}, vector=None), "a b"),
    "that it lost it, without words": (lambda w, x, b: w.signed(x, kind="lost", body={"reason": 7}), "no reason given"),
    "that it could not read": (
        lambda w, x, b: w.signed(x, kind="unreadable", answers="", body={"reason": "too long"}),
        "it could not read the train: too long"),
}  # fmt: skip


@pytest.mark.parametrize("what", SPOILT)
@pytest.mark.some(12)
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

    def swap(node: str, reply: bytes) -> bytes:
        return kept["node-cleveland"] if node == "node-va" and kind_of(reply) == "update" else note(node, reply)

    world.carrier.spoil = swap
    assert world.round(3).kept == OTHERS and "answers another request" in world.dropped["va"]


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

    world.carrier.spoil = lambda node, reply: later(wire.read_letter(reply, most=2**26), reply)
    assert world.round(2).kept == NAMES
    greeting = next(message for message, sent in world.under_way.items() if sent.node == "node-va")
    assert world.sites._take(Arrival(message=greeting, content=held[0])) is None
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
    recorded = real(wire.write_letter("hello", {}, stranger)[0])

    def replay(content: bytes) -> bytes:
        seen.append(content)
        return recorded

    def relabel(content: bytes) -> bytes:
        """The recorded signature in a fresh reply: it was made for another request, and for another ledger."""
        body = wire.read_letter(recorded, most=2**20).body
        return wire.write_letter("here", body, stranger, answers=wire.read_letter(content, most=2**20).digest)[0]

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
