"""The front door alone, with a small app behind it: what a connection may cost before anybody knows whose it is."""

from __future__ import annotations

import base64
import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn
import uvicorn.server
from cryptography.hazmat.primitives.asymmetric import ec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from quietsum.federation.flower import door
from quietsum.federation.flower.door import ADMIT, Door, DoorLimits, server_side
from quietsum.federation.flower.flwr_coordinator import gate_word
from quietsum.federation.flower.flwr_node import sign_message
from quietsum.federation.flower.flwr_server import verify_moment
from quietsum.federation.flower.gate import KEY_HEADER, SIGNATURE_HEADER, TIME_HEADER, FrontGate
from quietsum.identity.certificates import make_authority, make_server

QUICK = DoorLimits(handshake_seconds=2.0, head_seconds=2.0, request_seconds=2.0)
PATIENT = DoorLimits(handshake_seconds=60, head_seconds=60, request_seconds=60)
GET = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
MANY = b"POST / HTTP/1.1\r\n" + b"a: b\r\n" * 200_000
HUGE = b"POST / HTTP/1.1\r\na: " + bytes(b"x" * 2_000_000)
LINE = b"POST /" + b"x" * 2_000_000
EMPTY_LINES = b"\r\n" * 1_000_000
CHUNK = b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n1;" + b"x" * 2_000_000
TRAILER = b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n0\r\n" + b"a: b\r\n" * 200_000
PIPELINED = GET * 50_000
UPGRADE = b"GET / HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n" + bytes(2_000_000)
H2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(2_000_000)


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Takes a request's body and says 204; ``/mine`` shows who it is, ``/slow`` never answers."""
    if scope["path"] == "/mine":
        scope[ADMIT]("Basel")
    while (event := await receive()).get("more_body", False) or scope["path"] == "/slow":
        if event["type"] == "http.disconnect":
            return
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body", "body": b""})


@contextlib.contextmanager
def open_door(limits: DoorLimits, tls: ssl.SSLContext | None = None, serving: Any = app) -> Iterator[tuple[str, int]]:
    listening = socket.create_server(("127.0.0.1", 0), backlog=256)
    config = uvicorn.Config(serving, loop="asyncio", lifespan="off", log_level="critical", ws="none")
    config.timeout_keep_alive = 60
    running: list[Any] = []
    thread = threading.Thread(
        target=door.serve_door,
        args=(config, [(listening, tls, None)]),
        kwargs={"limits": limits, "started": running.append},
        daemon=True,
    )
    thread.start()
    try:
        yield listening.getsockname()
    finally:
        while not running:
            time.sleep(0.01)
        running[0].should_exit = True
        thread.join(30)
        assert not thread.is_alive()


def flood(connection: socket.socket, content: bytes) -> tuple[int, bytes]:
    """Send until the other side hangs up; how much it took, and what it said."""
    connection.settimeout(60)
    taken, said = 0, b""
    with contextlib.suppress(ConnectionError):
        for start in range(0, len(content), 8192):
            taken += connection.send(content[start : start + 8192])
    with contextlib.suppress(ConnectionError):
        while found := connection.recv(65536):
            said += found
    return taken, said


FLOODS = {
    "many headers": MANY,
    "one huge header": HUGE,
    "an endless address": LINE,
    "empty lines": EMPTY_LINES,
    "an endless chunk extension": CHUNK,
    "endless trailers": TRAILER,
    "requests in a row": PIPELINED,
    "an upgrade": UPGRADE,
    "another protocol": H2,
}


@pytest.mark.parametrize("content", FLOODS.values(), ids=FLOODS.keys())
def test_what_has_no_end_is_hung_up_on(content: bytes) -> None:
    """``flood`` ends only where the server ends the connection: there is no deadline in this door to help it."""
    with open_door(PATIENT) as place:
        with socket.create_connection(place) as stranger:
            flood(stranger, content)
        with socket.create_connection(place) as polite:
            polite.sendall(GET)
            assert b"204" in polite.recv(1000)


@pytest.mark.parametrize("content", [MANY, HUGE], ids=["many headers", "one huge header"])
def test_the_parser_never_sees_more_than_a_head_of_it(content: bytes) -> None:
    kind: Any = door.bound_protocol(DoorLimits())
    stored = _fed(kind, content)
    assert stored <= DoorLimits().head_bytes
    assert _fed(HttpToolsProtocol, content) >= 0.25 * len(content)  # without the bound all of it is kept


def _fed(kind: Any, content: bytes) -> int:
    """The bytes of headers that a protocol keeps of ``content``, in the pieces that TLS reads."""
    transport = _Transport()
    config = uvicorn.Config(app, loop="asyncio", lifespan="off", ws="none", log_level="critical")
    config.load()
    made = kind(config=config, server_state=uvicorn.server.ServerState(), app_state={}, _loop=_Loop())
    made.connection_made(transport)
    for start in range(0, len(content), 262144):
        if not transport.closed:
            made.data_received(content[start : start + 262144])
    made.data_received(
        b"\r\nz: z\r\nz: z\r\n"
    ) if not transport.closed else None  # the parser hands a header over at the next one
    return sum(len(name) + len(value) for name, value in made.headers or ())


class _Loop:
    """Timers that never fire."""

    def call_later(self, *_: Any) -> Any:
        return self

    def cancel(self) -> None:
        pass


class _Transport:
    closed = False

    def get_extra_info(self, *_: Any) -> None:
        return None

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    abort = close

    def write(self, _: bytes) -> None:
        pass

    def pause_reading(self) -> None:
        pass

    resume_reading = pause_reading


def test_a_hundred_headers_are_taken_and_one_more_is_not() -> None:
    with open_door(PATIENT) as place:
        for extra, wanted in ((0, True), (1, False)):
            with socket.create_connection(place, timeout=60) as caller:
                caller.sendall(b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * (100 + extra) + b"\r\n")
                with contextlib.suppress(ConnectionError):
                    assert (b"204" in caller.recv(1000)) is wanted


def test_a_head_of_just_under_its_bound_is_taken_again_and_again() -> None:
    """The count begins anew with each request of a connection."""
    head = b"GET / HTTP/1.1\r\nhost: x\r\na: " + b"x" * 60_000 + b"\r\n\r\n"
    with open_door(PATIENT) as place, socket.create_connection(place, timeout=60) as caller:
        for request in (head, GET, head, GET, head):
            caller.sendall(request)
            assert b"204" in caller.recv(1000)
        for _ in range(3000):  # 84 kB of small ones
            caller.sendall(GET)
            assert b"204" in caller.recv(1000)


def test_a_body_with_its_length_stated_passes_and_one_without_is_refused() -> None:
    with open_door(PATIENT) as place:
        for headers, body, wanted in (
            (b"content-length: 3000000", bytes(3_000_000), b"204"),
            (b"transfer-encoding: chunked", b"1\r\nx\r\n0\r\n\r\n", b"411"),
            (b"content-length: 1\r\ncontent-length: 2", b"x", b"400"),
            (b"content-length: -1", b"", b"400"),
        ):
            with socket.create_connection(place, timeout=60) as caller:
                caller.sendall(b"POST / HTTP/1.1\r\nhost: x\r\n" + headers + b"\r\n\r\n" + body)
                assert wanted in caller.recv(1000)


@pytest.mark.parametrize(
    ("before", "begun"), [(0, b""), (0, b"POST /v1/fl"), (1, b"GET / HTTP/1.1\r\na: b\r\n"), (2, b"")]
)
@pytest.mark.some(1)
def test_every_request_of_a_connection_has_the_same_patience(before: int, begun: bytes) -> None:
    with open_door(QUICK) as place, socket.create_connection(place, timeout=60) as silent:
        for _ in range(before):
            silent.sendall(GET)
            assert b"204" in silent.recv(1000)
        silent.sendall(begun)
        with contextlib.suppress(ConnectionError):
            assert silent.recv(100) == b""  # it ends; the socket's own time-out would raise


def test_headers_that_trickle_are_hung_up_on() -> None:
    with open_door(QUICK) as place, socket.create_connection(place, timeout=60) as slow:
        slow.sendall(GET)
        assert b"204" in slow.recv(1000)
        slow.sendall(b"GET / HTTP/1.1\r\n")
        with contextlib.suppress(ConnectionError):
            for _ in range(1200):
                slow.sendall(b"a: b\r\n"[:1])
                slow.settimeout(0.05)
                with contextlib.suppress(TimeoutError):
                    assert slow.recv(100) == b""
                    return
            raise AssertionError("it went on for a minute")


@pytest.mark.parametrize("request_", [b"POST /slow HTTP/1.1\r\ncontent-length: 9\r\n\r\n", b"GET /slow HTTP/1.1\n\n"])
def test_a_request_without_an_end_has_one(request_: bytes) -> None:
    with open_door(QUICK) as place, socket.create_connection(place, timeout=60) as caller:
        caller.sendall(request_)
        with contextlib.suppress(ConnectionError):
            assert b"200" not in caller.recv(100)


# ------------------------------------------------------------------------------------------- connections


def ended(connection: socket.socket) -> bool:
    """Whether the other side has ended it; waits for that."""
    connection.settimeout(60)
    try:
        return connection.recv(100) == b""
    except ConnectionError:
        return True


def test_the_oldest_stranger_of_an_address_makes_room_and_who_is_known_stays() -> None:
    few = DoorLimits(handshake_seconds=60, head_seconds=60, strangers_of_an_address=3)
    with open_door(few) as place, contextlib.ExitStack() as stack:

        def dial() -> socket.socket:
            return stack.enter_context(socket.create_connection(place, timeout=60))

        known = dial()
        known.sendall(b"GET /mine HTTP/1.1\r\n\r\n")
        assert b"204" in known.recv(1000)
        silent = [dial() for _ in range(10)]
        assert all(ended(one) for one in silent[:7])
        polite = dial()  # beside three that are silent, from the same address
        polite.sendall(GET)
        assert b"204" in polite.recv(1000)
        known.sendall(GET)
        assert b"204" in known.recv(1000)
        for one in silent[8:]:
            one.setblocking(False)
            with pytest.raises(BlockingIOError):
                one.recv(1)


def test_strangers_are_few_in_all_and_the_most_frequent_address_gives_way() -> None:
    here = Door(DoorLimits(strangers=6, strangers_of_an_address=4))
    guests = {}
    for origin, count in (("192.0.2.1", 2), ("192.0.2.2", 4), ("192.0.2.3", 2)):
        for number in range(count):
            left, right = socket.socketpair()
            guests[origin, number] = (here.enter(left, origin), right, left)
    assert here.strangers == 6
    assert [key for key, (_, right, _) in guests.items() if _cut(right)] == [("192.0.2.2", 0), ("192.0.2.2", 1)]
    for guest, right, left in guests.values():
        guest.leave()
        guest.leave()
        right.close()
        left.close()
    assert here.strangers == 0 and not here._strangers and not here._known


def _cut(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False


def test_a_name_has_its_share_of_connections_and_loses_the_oldest() -> None:
    few = DoorLimits(handshake_seconds=60, head_seconds=60, connections_of_a_name=2)
    with open_door(few) as place, contextlib.ExitStack() as stack:
        made = []
        for _ in range(3):
            one = stack.enter_context(socket.create_connection(place, timeout=60))
            one.sendall(b"GET /mine HTTP/1.1\r\n\r\n")
            assert b"204" in one.recv(1000)
            made.append(one)
        assert ended(made[0])
        for one in made[1:]:
            one.sendall(GET)
            assert b"204" in one.recv(1000)


@pytest.fixture
def certified(tmp_path: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    authority = make_authority()
    server = make_server(authority)
    (tmp_path / "crt").write_bytes(server.certificate)
    (tmp_path / "key").write_bytes(server.key)
    theirs = ssl.create_default_context(cadata=authority.certificate.decode())
    return server_side(str(tmp_path / "crt"), str(tmp_path / "key")), theirs


def test_a_handshake_that_does_not_come_to_its_end_is_given_up(
    certified: tuple[ssl.SSLContext, ssl.SSLContext],
) -> None:
    ours, theirs = certified
    with open_door(QUICK, ours) as place:
        for begun in (b"", b"\x16\x03\x01\x02\x00\x01", b"GET / HTTP/1.1\r\n\r\n"):
            with socket.create_connection(place, timeout=60) as silent:
                silent.sendall(begun)
                with contextlib.suppress(ConnectionError):
                    while silent.recv(1000):  # an alert may come first
                        pass
        with (
            socket.create_connection(place, timeout=60) as plain,
            theirs.wrap_socket(plain, server_hostname="localhost") as polite,
        ):
            polite.sendall(GET)
            assert b"204" in polite.recv(1000)


def test_tls_offers_no_old_version_no_second_protocol_and_no_renegotiation(
    certified: tuple[ssl.SSLContext, ssl.SSLContext],
) -> None:
    ours, theirs = certified
    theirs.set_alpn_protocols(["h2", "http/1.1"])
    with (
        open_door(PATIENT, ours) as place,
        socket.create_connection(place, timeout=60) as plain,
        theirs.wrap_socket(plain, server_hostname="localhost") as polite,
    ):
        assert polite.selected_alpn_protocol() == "http/1.1"
        assert polite.version() == "TLSv1.3"
    assert ours.minimum_version >= ssl.TLSVersion.TLSv1_2 and ours.options & ssl.OP_NO_RENEGOTIATION


# ------------------------------------------------------------------------------------- with the gate behind


def test_nothing_of_a_body_is_read_before_the_keys_holder_has_signed() -> None:
    """A public key is no secret: who only knows one is a stranger still, and may hand nothing over."""
    key = ec.generate_private_key(ec.SECP384R1())
    word, read, admitted = gate_word(key.public_key()), [], []

    async def behind(scope: Any, receive: Any, send: Any) -> None:
        read.append(len((await receive())["body"]))
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    def head(body: bytes, **more: bytes) -> bytes:
        lines = [b"POST /v1/fleet/push-object HTTP/1.1", b"content-length: %d" % len(body)]
        lines += [name.replace("_", "-").encode() + b": " + value for name, value in more.items()]
        return b"\r\n".join(lines) + b"\r\n\r\n" + body

    named = {KEY_HEADER.replace("-", "_"): word.encode()}
    time_, sign = TIME_HEADER.replace("-", "_"), SIGNATURE_HEADER.replace("-", "_")
    proof = base64.b64encode(sign_message(key, b"now"))
    gate = FrontGate(behind, private=("127.0.0.2", 1), secret="s", signed=verify_moment)
    assert gate._renew(f'["{word}"]'.encode())

    async def watched(scope: Any, receive: Any, send: Any) -> None:
        inner = scope[ADMIT]

        def admit(name: Any, most: Any = None) -> None:
            admitted.append(name)
            inner(name, most)

        scope[ADMIT] = admit
        await gate(scope, receive, send)

    with open_door(PATIENT, serving=watched) as place:
        for more, status in (
            ({}, b"412"),
            (named, b"401"),
            (named | {time_: b"now"}, b"401"),
            (named | {time_: b"then", sign: proof}, b"401"),
            (named | {time_: b"now", sign: b"?"}, b"401"),
            (named | {time_: b"now", sign: proof}, b"204"),
        ):
            with socket.create_connection(place, timeout=60) as caller:
                caller.sendall(head(b"x" * 10, **more))
                assert status in caller.recv(1000), more
        with socket.create_connection(place, timeout=60) as caller:
            caller.sendall(b"POST /v1/fleet/push-object HTTP/1.1\r\ncontent-length: 99999999\r\n")
            lines = (named | {time_: b"now", sign: proof}).items()
            caller.sendall(b"".join(name.replace("_", "-").encode() + b": " + value + b"\r\n" for name, value in lines))
            caller.sendall(b"\r\n")
            assert b"413" in caller.recv(1000)  # by what it declares, before a byte of it
    assert read == [10] and set(admitted) == {word}
