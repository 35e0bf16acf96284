"""The gate alone, without Flower behind it: who gets through."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from quietsum.federation.flower.gate import (
    CALL_LIMIT,
    DISK_FULL,
    KEY_HEADER,
    OBJECT_LIMIT,
    REQUEST_LIMIT,
    ROSTER_PATH,
    SECRET_HEADER,
    FrontGate,
)

PRIVATE, PUBLIC = ("127.0.0.1", 4000), ("10.0.0.1", 4000)
SECRET = {SECRET_HEADER: "s3cret"}
BASEL = {KEY_HEADER: "basel"}
PULL, PUSH, PUSH_OBJECT = "/v1/fleet/pull-messages", "/v1/fleet/push-messages", "/v1/fleet/push-object"


async def through(scope: Any, receive: Any, send: Any) -> None:
    """What stands behind the gate: says how long the body was."""
    event = await receive()
    await send({"type": "http.response.start", "status": 299, "headers": []})
    await send({"type": "http.response.body", "body": str(len(event["body"])).encode()})


def call(
    gate: FrontGate,
    server: tuple[str, int],
    path: str,
    headers: dict[str, str] | list[tuple[str, str]],
    *pieces: bytes,
    method: str = "POST",
) -> tuple[int, bytes]:
    """The status and body of one request, whose own body comes in pieces; after the last the sender stays silent."""
    pairs = headers.items() if isinstance(headers, dict) else headers
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "server": server,
        "headers": [(name.encode(), value.encode()) for name, value in pairs],
    }
    events = [{"type": "http.request", "body": piece, "more_body": True} for piece in pieces]
    if events:
        events[-1]["more_body"] = False
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        if events:
            return events.pop(0)
        await asyncio.sleep(60)
        raise AssertionError

    async def send(event: Any) -> None:
        sent.append(event)

    asyncio.run(gate(scope, receive, send))
    return sent[0]["status"], sent[1]["body"]


def make_gate(**changes: Any) -> FrontGate:
    gate = FrontGate(through, **({"private": PRIVATE, "secret": "s3cret"} | changes))
    assert call(gate, PUBLIC, PULL, BASEL, b"")[0] == 503  # before there is a roster: come again
    assert call(gate, PRIVATE, ROSTER_PATH, SECRET, b'["basel"]')[0] == 200
    return gate


def test_the_world_reaches_nodes_calls_from_the_roster_and_nothing_else() -> None:
    gate = make_gate()
    assert call(gate, PUBLIC, PULL, BASEL, b"abc", b"de") == (299, b"5")
    assert call(gate, PUBLIC, PULL, {}, b"")[0] == 412
    assert call(gate, PUBLIC, PULL, {KEY_HEADER: "stranger"}, b"")[0] == 412
    assert call(gate, PUBLIC, PULL, [(KEY_HEADER, "basel"), (KEY_HEADER, "stranger")], b"")[0] == 412
    for path in (
        "/v1/control/start-run",
        "/v1/runtime/acquire-task",
        "/v1/fleet/get-fab",
        PULL + "/",
        "/",
        ROSTER_PATH,
    ):
        assert call(gate, PUBLIC, path, BASEL | SECRET, b"")[0] == 404
    assert call(gate, PUBLIC, PULL, BASEL, b"", method="GET")[0] == 404


def test_the_operators_side_asks_for_the_secret() -> None:
    gate = make_gate()
    assert call(gate, PRIVATE, "/v1/control/start-run", SECRET, b"") == (299, b"0")
    for headers in ({}, {SECRET_HEADER: ""}, {SECRET_HEADER: "s3cre"}, BASEL):
        assert call(gate, PRIVATE, "/v1/control/start-run", headers, b"")[0] == 404
    assert call(gate, PRIVATE, "/v1/control/start-run", [*SECRET.items(), (SECRET_HEADER, "x")], b"")[0] == 404


def test_a_new_roster_holds_at_once() -> None:
    gate = make_gate()
    assert call(gate, PRIVATE, ROSTER_PATH, SECRET, b'["porto"]')[0] == 200
    assert call(gate, PUBLIC, PULL, BASEL, b"")[0] == 412
    assert call(gate, PUBLIC, PULL, {KEY_HEADER: "porto"}, b"")[0] == 299
    assert call(gate, PRIVATE, ROSTER_PATH, SECRET, b"not a list")[0] == 400
    assert call(gate, PUBLIC, PULL, {KEY_HEADER: "porto"}, b"")[0] == 299  # what is no roster changes none


def test_an_empty_roster_is_a_roster() -> None:
    gate = make_gate()
    assert call(gate, PRIVATE, ROSTER_PATH, SECRET, b"[]")[0] == 200
    for headers in ({}, {KEY_HEADER: ""}, BASEL):
        assert call(gate, PUBLIC, PULL, headers, b"")[0] == 412


@pytest.mark.parametrize(
    ("server", "path", "headers", "limit"),
    [
        (PUBLIC, PULL, BASEL, CALL_LIMIT),
        (PUBLIC, PUSH, BASEL, CALL_LIMIT),
        (PUBLIC, PUSH_OBJECT, BASEL, OBJECT_LIMIT),
        (PRIVATE, PUSH_OBJECT, SECRET, REQUEST_LIMIT),
    ],
)
def test_a_body_is_bounded_in_bytes(server: Any, path: str, headers: dict[str, str], limit: int) -> None:
    assert call(make_gate(), server, path, headers, b"x" * limit)[0] == 299
    assert call(make_gate(), server, path, headers, b"x" * limit, b"x")[0] == 413


def test_a_body_is_bounded_in_time() -> None:
    assert call(make_gate(patience=0.05), PUBLIC, PULL, BASEL)[0] == 408


def test_below_the_floor_sites_hand_nothing_over_and_hear_all_the_same(caplog: pytest.LogCaptureFixture) -> None:
    left = [1000]
    gate = make_gate(free=lambda: left[0], floor=1000)
    for path in (PUSH, PUSH_OBJECT):
        assert call(gate, PUBLIC, path, BASEL, b"")[0] == 299  # the floor itself is enough
    left[0] = 999
    with caplog.at_level("WARNING", logger="quietsum"):
        for path in (PUSH, PUSH_OBJECT):
            assert call(gate, PUBLIC, path, BASEL)[0] == DISK_FULL  # without a look at the body
    assert [record.getMessage().count("make room") for record in caplog.records] == [1]  # not once for each
    assert call(gate, PUBLIC, PULL, BASEL, b"")[0] == 299
    for path in ("/v1/runtime/push-object", "/v1/runtime/push-messages"):  # nobody is asked for what cannot come in
        assert call(gate, PRIVATE, path, SECRET, b"")[0] == DISK_FULL
    assert call(gate, PRIVATE, "/v1/runtime/pull-messages", SECRET, b"")[0] == 299
    assert call(gate, PUBLIC, PUSH, {KEY_HEADER: "stranger"}, b"")[0] == 412  # strangers learn nothing of the disk
    left[0] = 1000
    assert call(gate, PUBLIC, PUSH, BASEL, b"")[0] == 299


def test_without_a_floor_nobody_looks_at_the_disk() -> None:
    assert call(make_gate(), PUBLIC, PUSH, BASEL, b"")[0] == 299


@pytest.mark.parametrize("kind", ["websocket"])
def test_there_are_no_websockets(kind: str) -> None:
    sent: list[Any] = []

    async def send(event: Any) -> None:
        sent.append(event)

    asyncio.run(make_gate()({"type": kind, "server": PRIVATE, "headers": []}, asyncio.sleep, send))  # type: ignore[arg-type]
    assert [event["type"] for event in sent] == ["websocket.close"]
