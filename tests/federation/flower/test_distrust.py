"""What a site says when it does not take what answers for its SuperLink, or is not taken in: words, and again."""

from __future__ import annotations

import contextlib
import datetime
import logging
import re
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from federation.flower.trial import make_keys, start_superlink, until
from quietsum.federation.flower import flwr_calls, flwr_node, node
from quietsum.federation.flower.node import serve_node
from quietsum.federation.flower.superlink import SuperLink
from quietsum.identity.certificates import make_authority, make_server

pytestmark = pytest.mark.slow
NAME = "coordinator.example.org"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("distrust")
    (made / "foreign").mkdir()
    make_keys(made / "foreign", [])
    return made


@pytest.fixture(scope="module")
def link(folder: Path) -> Iterator[SuperLink]:
    roster = make_keys(folder, ["Basel"])
    with start_superlink(folder) as made:
        made.admit(roster)
        yield made


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every name is this machine's."""
    real = socket.getaddrinfo

    def here(host: Any, *more: Any, **others: Any) -> Any:
        return real("127.0.0.1" if host == NAME else host, *more, **others)

    monkeypatch.setattr(socket, "getaddrinfo", here)


@contextlib.contextmanager
def site(address: str, key: Path, authority: Path) -> Iterator[None]:
    stop = threading.Event()
    running = threading.Thread(
        target=serve_node,
        args=(bytes,),
        kwargs={"address": address, "root_certificate": authority, "node_key": key, "stop": stop},
    )
    running.start()
    try:
        yield
    finally:
        stop.set()
        running.join(300)
        assert not running.is_alive()


@contextlib.contextmanager
def speaking_tls(folder: Path) -> Iterator[str]:
    """A server with the certificate in ``folder`` that shakes hands and no more."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.crt", folder / "server.key")
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listening.accept()
                with connection, contextlib.suppress(OSError):
                    connection.settimeout(10)
                    context.wrap_socket(connection, server_side=True).close()

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield f"127.0.0.1:{listening.getsockname()[1]}"
    finally:
        with contextlib.suppress(OSError):
            listening.shutdown(socket.SHUT_RDWR)
        listening.close()


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.usefixtures("names")
def test_a_certificate_for_another_name_is_told_with_the_name_that_was_dialled(
    folder: Path, link: SuperLink, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        caplog.at_level("INFO", logger="quietsum"),
        site(f"{NAME}:{link.port}", folder / "Basel.key", folder / "ca.crt"),
    ):
        until(lambda: said(caplog))
    (words,) = set(said(caplog))
    assert "certificate does not fit" in words
    assert f"not valid for '{NAME}'" in words
    assert "made out for" in words


def test_an_authority_that_did_not_sign_is_told(
    folder: Path, link: SuperLink, caplog: pytest.LogCaptureFixture
) -> None:
    foreign = folder / "foreign" / "ca.crt"
    with caplog.at_level("INFO", logger="quietsum"), site(link.address, folder / "Basel.key", foreign):
        until(lambda: said(caplog))
    (words,) = set(said(caplog))
    assert "was not signed by this ca.crt" in words
    assert "Compare ca.crt" in words


def test_the_right_name_and_authority_need_no_words(
    folder: Path, link: SuperLink, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", logger="quietsum"), site(link.address, folder / "Basel.key", folder / "ca.crt"):
        until(lambda: any("connected" in record.getMessage() for record in caplog.records))
    assert said(caplog) == []


@pytest.mark.parametrize(
    ("days_ago", "days", "word"), [(30, 10, "has expired"), (-30, 10, "not yet valid"), (5, 10, "does not answer")]
)
def test_a_certificate_that_does_not_fit_the_day_is_told(
    tmp_path: Path, folder: Path, link: SuperLink, caplog: pytest.LogCaptureFixture, days_ago: int, days: int, word: str
) -> None:
    begun = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=days_ago)
    authority = make_authority(now=min(begun, datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)))
    server = make_server(authority, days=days, now=begun)
    for name, content in (
        ("ca.crt", authority.certificate),
        ("server.crt", server.certificate),
        ("server.key", server.key),
    ):
        (tmp_path / name).write_bytes(content)
    with (
        speaking_tls(tmp_path) as address,
        caplog.at_level("INFO", logger="quietsum"),
        site(address, folder / "Basel.key", tmp_path / "ca.crt"),
    ):
        until(lambda: said(caplog))
    words = said(caplog)[0]
    assert word in words
    assert ("does not fit this day" in words) == (word != "does not answer")


def test_a_server_without_tls_is_told(folder: Path, link: SuperLink, caplog: pytest.LogCaptureFixture) -> None:
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listening.accept()
                with connection, contextlib.suppress(OSError):
                    connection.recv(100)
                    connection.sendall(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n")

    threading.Thread(target=serve, daemon=True).start()
    address = f"127.0.0.1:{listening.getsockname()[1]}"
    try:
        with caplog.at_level("INFO", logger="quietsum"), site(address, folder / "Basel.key", folder / "ca.crt"):
            until(lambda: said(caplog))
    finally:
        with contextlib.suppress(OSError):
            listening.shutdown(socket.SHUT_RDWR)
        listening.close()
    assert "does it speak TLS" in said(caplog)[0]


@pytest.mark.parametrize(("seconds", "word"), [(100.0, "ahead of"), (-400.0, "behind")])
def test_a_clock_that_is_too_far_off_is_told(
    folder: Path,
    link: SuperLink,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    seconds: float,
    word: str,
) -> None:
    real = flwr_calls.now
    for module in (flwr_calls, flwr_node):
        monkeypatch.setattr(module, "now", lambda: real() + seconds)
    with caplog.at_level("INFO", logger="quietsum"), site(link.address, folder / "Basel.key", folder / "ca.crt"):
        until(lambda: said(caplog))
    words = said(caplog)[0]
    found = re.search(rf"this machine's clock is (\d+) s {word} the coordinator's", words)
    assert found is not None
    assert abs(int(found[1]) - abs(seconds)) < 50


def test_it_is_said_once_and_then_every_few_minutes(
    folder: Path, link: SuperLink, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    foreign = folder / "foreign" / "ca.crt"
    tries: list[float] = []
    real = flwr_node.NodeEnd.activate

    def counted(self: flwr_node.NodeEnd) -> None:
        tries.append(0.0)
        real(self)

    monkeypatch.setattr(flwr_node.NodeEnd, "activate", counted)
    with caplog.at_level("INFO", logger="quietsum"):
        with site(link.address, folder / "Basel.key", foreign):
            until(lambda: len(tries) >= 4)
        assert len(said(caplog)) == 1
        monkeypatch.setattr(node, "_SAY_AGAIN", -1.0)  # the few minutes are over each time
        with site(link.address, folder / "Basel.key", foreign):
            until(lambda: len(said(caplog)) >= 4)
    assert len(set(said(caplog))) == 1
