"""A node's and a coordinator's calls against servers that behave badly: each ends, in bounded time and memory."""

from __future__ import annotations

import contextlib
import email.utils
import os
import socket
import threading
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.proto.fleet_pb2 import PullMessagesResponse
from flwr.proto.message_pb2 import Message, Metadata
from flwr.proto.recorddict_pb2 import RecordDict

from quietsum.federation.flower.flwr_calls import (
    MESSAGE_TYPE,
    SUPERLINK_NODE,
    Access,
    CallRefused,
    RunLost,
    Unreachable,
)
from quietsum.federation.flower.flwr_coordinator import CoordinatorEnd
from quietsum.federation.flower.flwr_node import NodeEnd
from quietsum.federation.flower.gate import REQUEST_LIMIT

KEY = ec.generate_private_key(ec.SECP384R1())


@contextlib.contextmanager
def server(behave: Callable[[socket.socket], None]) -> Iterator[str]:
    """A server on loopback that reads a request's head and then behaves; its address."""
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listening.accept()
                with connection, contextlib.suppress(OSError):
                    connection.settimeout(10)
                    connection.recv(65536)
                    behave(connection)

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield f"127.0.0.1:{listening.getsockname()[1]}"
    finally:
        with contextlib.suppress(OSError):
            listening.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        listening.close()


def says(status: str, body: bytes = b"", *more: str) -> Callable[[socket.socket], None]:
    head = "\r\n".join([f"HTTP/1.1 {status}", f"content-length: {len(body)}", "connection: close", *more, "", ""])
    return lambda connection: connection.sendall(head.encode() + body)


def endless(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
    for _ in range(10 * REQUEST_LIMIT // 65536):
        connection.sendall(bytes(65536))
    raise AssertionError("all of it was read")


def dripping(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
    for _ in range(600):
        connection.sendall(b"x")
        time.sleep(0.05)


@pytest.mark.parametrize(
    "behave",
    [
        endless,
        dripping,
        says("200 OK", b"\xff\xff no protobuf"),
        says("200 OK"),
        says("500 Internal Server Error"),
        says("503 Service Unavailable"),
        lambda connection: connection.sendall(b"\x00\x01 what is this \r\n\r\n"),
        lambda connection: None,
    ],
    ids=["endless", "dripping", "no protobuf", "empty", "500", "503", "no http", "hangs up"],
)
def test_a_server_that_makes_no_sense_is_unreachable(behave: Callable[[socket.socket], None]) -> None:
    with server(behave) as address:
        node = NodeEnd(address, KEY, None, seconds=1.0)
        with pytest.raises(Unreachable):
            node.activate()
        node.close()


def test_a_port_where_nobody_is_is_unreachable() -> None:
    with server(says("200 OK")) as address:
        pass
    with pytest.raises(Unreachable):
        NodeEnd(address, KEY, None, seconds=1.0).activate()


def test_a_closed_connection_is_unreachable() -> None:
    with server(says("200 OK")) as address:
        node = NodeEnd(address, KEY, None)
        node.close()
        with pytest.raises(Unreachable):
            node.activate()


def test_a_redirect_is_not_followed() -> None:
    elsewhere = says("307 Temporary Redirect", b"", "location: http://127.0.0.1:1/")
    with server(elsewhere) as address, pytest.raises(CallRefused):
        NodeEnd(address, KEY, None).activate()


def test_a_refusal_carries_flowers_number_and_the_difference_of_clocks() -> None:
    past = email.utils.formatdate(time.time() - 100, usegmt=True)
    known = says("412 Precondition Failed", b'{"code": 2004, "message": "no"}', f"date: {past}")
    with server(known) as address, pytest.raises(CallRefused) as caught:
        NodeEnd(address, KEY, None).activate()
    assert caught.value.unknown_key
    assert 95 < caught.value.skew < 130
    with server(says("401 Unauthorized", b"[1, 2]")) as address, pytest.raises(CallRefused) as caught:
        NodeEnd(address, KEY, None).activate()
    assert not caught.value.unknown_key


def test_a_run_whose_token_is_refused_is_lost() -> None:
    with server(says("401 Unauthorized")) as address:
        end = CoordinatorEnd(Access(address=address))
        with pytest.raises(RunLost):
            end.nodes()
        end.close()


@pytest.mark.parametrize(("sender", "kind"), [(SUPERLINK_NODE, MESSAGE_TYPE), (77, "")])
def test_a_message_of_another_node_is_of_no_kind_that_a_site_answers(sender: int, kind: str) -> None:
    data = Metadata(message_id="m", src_node_id=sender, message_type=MESSAGE_TYPE, group_id="1")
    found = PullMessagesResponse(messages_list=[Message(metadata=data, content=RecordDict())])
    node = NodeEnd("127.0.0.1:1", KEY, None)
    node._client = types.SimpleNamespace(PullMessages=lambda _: found)  # type: ignore[assignment]
    letter = node.receive()
    assert letter is not None
    assert letter.kind == kind


def descriptors() -> set[str]:
    found = set()
    for one in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the listing's own is gone by now
            found.add(os.readlink(f"/proc/self/fd/{one}"))
    return found


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="descriptors are listed on Linux only")
def test_a_connection_stays_open_until_the_thread_that_uses_it_is_done() -> None:
    """Closed under it, the number would go to the next file that is opened, and the thread would write into that."""
    asked, released = threading.Event(), threading.Event()

    def hangs(connection: socket.socket) -> None:
        asked.set()
        released.wait(20)

    with server(hangs) as address:
        end = NodeEnd(address, KEY, None, seconds=20.0)
        before = descriptors()
        failed: list[Exception] = []

        def work() -> None:
            try:
                end.activate()
            except Exception as error:
                failed.append(error)

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        assert asked.wait(10)
        (mine,) = {link for link in descriptors() - before if link.startswith("socket:")} & _clients(address)
        end.close()
        end.close()
        assert mine in descriptors() and thread.is_alive()
        with pytest.raises(Unreachable, match="closed"):
            end.activate()  # nobody begins anything new on it
        released.set()
        thread.join(10)
        assert not thread.is_alive() and isinstance(failed[0], Unreachable)
        assert mine not in descriptors()


def _clients(address: str) -> set[str]:
    """The sockets of this process that are connected with ``address``."""
    port = int(address.rpartition(":")[2])
    found = set()
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        words = line.split()
        if int(words[2].rpartition(":")[2], 16) == port:
            found.add(f"socket:[{words[9]}]")
    return found
