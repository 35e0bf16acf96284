"""Servers that drip, never stop talking or never answer: a delivery ends by its own limits, and no round waits for it.

Every server here would hold a client for ever that begins its timeout anew with each byte, or fill its memory; each
stops when the client hangs up. Outcomes are asserted, times are not.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import ssl
import threading
from pathlib import Path
from typing import Any

import pytest

from alerts.mailbox import GREETING, Behaviour, certificate, context_of, repeats, server, silent
from quietsum.alerts import Alert, AlertKind as Kind, Audience, Limits, Sender, Severity
from quietsum.alerts.connection import MOST, Connection
from quietsum.alerts.servers import Email, EmailSettings, Webhook, WebhookSettings
from quietsum.alerts.sinks import Refusal

ALERT = Alert(kind=Kind.TEST, severity=Severity.CRITICAL, sentence="hello", run="r")
SHORT, LONG = 0.3, 30.0


def mail(port: int, timeout: float, **more: Any) -> Email:
    usual = {"host": "127.0.0.1", "port": port, "security": "none", "sender": "q@b.example", "to": ("a@b.example",)}
    return Email(EmailSettings(**{**usual, "audience": Audience.OPERATOR, "timeout": timeout, **more}))


def hook(port: int, timeout: float, **more: Any) -> Webhook:
    usual = {"url": f"http://127.0.0.1:{port}/in", "audience": Audience.OPERATOR, "timeout": timeout}
    return Webhook(WebhookSettings(**{**usual, **more}))


ENDLESS: list[tuple[Any, Behaviour]] = [
    (mail, repeats(b"", b"220-welcome to the longest greeting\r\n" * 50)),
    (mail, repeats(GREETING, b"250-SIZE 1000000\r\n" * 100)),
    (hook, repeats(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 100)),
    (hook, repeats(b"", b"HTTP/1.1 100 Continue\r\nX-A: " + b"y" * 2000 + b"\r\n\r\n")),
    (hook, repeats(b"HTTP/1.1 200 OK\r\n", b"X-Header: " + b"y" * 2000 + b"\r\n")),
]
DRIPPING: list[tuple[Any, Behaviour]] = [
    (mail, repeats(b"", b"220-a\r\n", 0.01)),
    (mail, repeats(b"220 lo", b"c", 0.01)),
    (mail, repeats(GREETING, b"250-A\r\n", 0.01)),
    (hook, repeats(b"", b"HTTP/1.1 100 Continue\r\n\r\n", 0.01)),
    (hook, repeats(b"HTTP/1.1 200 OK\r\n", b"X-A: b\r\n", 0.01)),
    (hook, repeats(b"HTTP/1.1 200 OK\r\nX-A: ", b"b", 0.01)),
    (mail, silent),
    (hook, silent),
]


@pytest.mark.parametrize(("make", "behaviour"), ENDLESS)
def test_a_server_that_never_stops_talking_is_hung_up_on_after_so_many_bytes(make: Any, behaviour: Behaviour) -> None:
    with server(behaviour) as port, pytest.raises(ConnectionError, match=f"more than {MOST} bytes"):
        make(port, LONG).send(ALERT, 0)


@pytest.mark.parametrize(("make", "behaviour"), DRIPPING)
@pytest.mark.some(3)
def test_a_server_that_drips_or_says_nothing_is_hung_up_on_at_the_deadline_of_the_delivery(
    make: Any, behaviour: Behaviour
) -> None:
    with server(behaviour) as port, pytest.raises(OSError, match=r"not done after 0\.3 s"):
        make(port, SHORT).send(ALERT, 0)


def test_a_server_that_drips_and_comes_to_an_end_in_time_is_heard() -> None:
    """The control: the same drips are no trouble by themselves."""
    answer = b"HTTP/1.1 204 None\r\n"

    def drip(caller: socket.socket, over: threading.Event) -> None:
        request = b""
        while not request.endswith(b"}"):  # a call that is closed with unread bytes is reset
            request += caller.recv(1 << 16)
        for byte in answer + b"\r\n":
            caller.sendall(bytes([byte]))

    with server(drip) as port:
        hook(port, LONG).send(ALERT, 0)


def test_a_line_without_an_end_is_no_answer() -> None:
    with server(repeats(GREETING, b"250 " + b"x" * 4000)) as port, pytest.raises(Refusal, match="500"):
        mail(port, LONG).send(ALERT, 0)
    with server(repeats(b"HTTP/1.1 200 ", b"x" * 4000)) as port, pytest.raises(ConnectionError, match=r"bytes|sense"):
        hook(port, LONG).send(ALERT, 0)


def test_an_endless_body_is_not_read() -> None:
    with server(repeats(b"HTTP/1.1 200 OK\r\n\r\n", b"x" * 4096)) as port:
        hook(port, LONG).send(ALERT, 0)


@pytest.mark.parametrize("make", [mail, hook])
def test_a_handshake_that_drips_is_given_up_at_the_deadline(make: Any) -> None:
    """A record of TLS says that 16,000 bytes follow, and they come one by one."""
    more = {"security": "tls"} if make is mail else {}
    with server(repeats(b"\x16\x03\x03\x3e\x80\x02\x00\x3e\x7c", b"\x00", 0.01)) as port:
        if make is hook:
            more = {"url": f"https://127.0.0.1:{port}/"}
        with pytest.raises(OSError, match=r"not done after 0\.3 s"):
            make(port, SHORT, **more).send(ALERT, 0)


def test_after_starttls_the_same_deadline_and_limit_hold(tmp_path: Path) -> None:
    paths = certificate(tmp_path)
    context = context_of(paths)

    def talk(caller: socket.socket, over: threading.Event) -> None:
        caller.sendall(GREETING)
        caller.recv(1000)
        caller.sendall(b"250-localhost\r\n250 STARTTLS\r\n")
        caller.recv(1000)
        caller.sendall(b"220 go\r\n")
        with context.wrap_socket(caller, server_side=True) as secure:
            secure.recv(1000)
            while not over.is_set():
                secure.sendall(b"250-AUTH PLAIN\r\n" * 100)

    with server(talk) as port, pytest.raises(ConnectionError, match=f"{MOST} bytes"):
        mail(port, LONG, security="starttls", ca=str(paths[0])).send(ALERT, 0)


@pytest.mark.parametrize(("make", "behaviour"), [ENDLESS[1], DRIPPING[2], ENDLESS[3], DRIPPING[4], DRIPPING[7]])
def test_hostile_servers_cost_a_run_nothing_and_every_alert_is_counted(
    make: Any, behaviour: Behaviour, caplog: pytest.LogCaptureFixture
) -> None:
    with server(behaviour) as port:
        sender = Sender([make(port, SHORT)], limits=Limits(patience=SHORT))
        for _ in range(3):
            sender.send(ALERT)  # returns: a round would go on here
        assert sum(sender.close().values()) == 3
    assert [one for one in caplog.records if one.levelno >= logging.ERROR] == []


def test_every_call_has_what_is_left_of_one_deadline() -> None:
    """By a clock of its own: each drip is in time, their sum is not."""
    now = [0.0]

    def drip(caller: socket.socket, over: threading.Event) -> None:
        while not over.is_set():
            caller.sendall(b"x")

    with server(drip) as port:
        connection = Connection("127.0.0.1", port, seconds=10.0, clock=lambda: now[0])
        with contextlib.closing(connection):
            read = 0
            with pytest.raises(TimeoutError, match="not done after 10 s"):
                while True:
                    read += connection.read_into(bytearray(1))
                    now[0] += 1.0
            assert read == 10
            with pytest.raises(TimeoutError):
                connection.sendall(b"more")


def test_the_last_byte_within_the_limit_is_read_and_the_next_one_is_not() -> None:
    with server(repeats(b"", b"abcd", most=2)) as port:
        connection = Connection("127.0.0.1", port, seconds=LONG, most=4)
        with contextlib.closing(connection):
            connection.sendall(b"go")
            file = connection.makefile()
            assert file.read(4) == b"abcd"
            with pytest.raises(ConnectionError, match="more than 4 bytes"):
                file.read(1)


def test_a_name_without_a_server_is_trouble_and_no_more() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = int(listening.getsockname()[1])
    with pytest.raises(ConnectionError):
        Connection("127.0.0.1", port, seconds=LONG)
    with pytest.raises(OSError), server(silent) as other:
        Connection("127.0.0.1", other, seconds=SHORT, context=ssl.create_default_context())


def test_an_address_that_is_silent_or_of_an_unknown_family_leaves_time_for_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A name with an IPv6 address that leads nowhere is reached by IPv4."""
    waits: list[float] = []

    class Socket:
        def __init__(self, family: int, *_: int) -> None:
            if family == 0:
                raise OSError("Address family not supported by protocol")
            self.family = family

        def settimeout(self, seconds: float) -> None:
            waits.append(seconds)

        def connect(self, address: object) -> None:
            if self.family == 1:
                raise TimeoutError

        def close(self) -> None:
            pass

    found = [(family, 1, 6, "", ("there", 25)) for family in (0, 1, 2)]
    monkeypatch.setattr("quietsum.alerts.connection.socket.getaddrinfo", lambda *_, **__: found)
    monkeypatch.setattr("quietsum.alerts.connection.socket.socket", Socket)
    assert Connection("there", 25, seconds=12.0, clock=lambda: 0.0).problem == ""
    assert waits == [6.0, 12.0]
    found.pop()
    with pytest.raises(TimeoutError, match="not done after 12 s"):
        Connection("there", 25, seconds=12.0, clock=lambda: 0.0)
