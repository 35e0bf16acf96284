"""200 MiB from strangers at the port of a real SuperLink: its memory stays where it was, and rounds go on."""

from __future__ import annotations

import contextlib
import itertools
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from federation.flower.trial import Sites, collect, make_keys, start_superlink, transport, until
from quietsum.federation.flower.flwr_coordinator import gate_word
from quietsum.federation.flower.gate import KEY_HEADER

pytestmark = pytest.mark.slow
MIB = 2**20
FLOOD, MOST = 200 * MIB, 64 * MIB
STRANGERS = 12

HEAD = b"POST /v1/fleet/pull-messages HTTP/1.1\r\n"


def endless(head: bytes, again: bytes) -> Iterator[bytes]:
    """A request that does not end."""
    return itertools.chain([head], itertools.repeat(again * (65536 // len(again))))


def kinds(public_key: str) -> list[tuple[bytes, bytes]]:
    """What strangers say; the last ones know a public key of the roster, and cannot sign."""
    known = HEAD + f"{KEY_HEADER}: {public_key}\r\n".encode()
    return [
        (HEAD, b"a: b\r\n"),
        (HEAD + b"a: ", b"x" * 64),
        (b"POST /", b"x" * 64),
        (HEAD + b"transfer-encoding: chunked\r\n\r\n1;", b"x" * 64),
        (known, b"a: b\r\n"),
        (known + b"content-length: 200000000\r\n\r\n", b"x" * 64),
    ]


def memory(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no such process")


class Strangers:
    """Connections that send without end, one after the other, until they are told to stop."""

    def __init__(self, address: tuple[str, int], sayings: list[tuple[bytes, bytes]]) -> None:
        self.sent, self._lock = 0, threading.Lock()
        self._address, self._sayings = address, itertools.cycle(sayings)
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._shout, daemon=True) for _ in range(STRANGERS)]
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(60)

    def _shout(self) -> None:
        tls = ssl.create_default_context()
        tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
        while not self._stop.is_set():
            with self._lock:
                head, again = next(self._sayings)
            with (
                contextlib.suppress(OSError),
                socket.create_connection(self._address, timeout=60) as plain,
                tls.wrap_socket(plain) as connection,
            ):
                for piece in endless(head, again):
                    connection.sendall(piece)
                    with self._lock:
                        self.sent += len(piece)
                    if self._stop.is_set():
                        break


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
@pytest.mark.long
def test_two_hundred_mebibytes_from_strangers_stay_outside_and_rounds_go_on(tmp_path: Path) -> None:
    roster = make_keys(tmp_path, ["Basel"])
    with start_superlink(tmp_path) as link, contextlib.ExitStack() as stack:
        link.admit(roster)
        sites = Sites(tmp_path, link.address)
        stack.callback(sites.end)
        sites.start("Basel")
        carrier = stack.enter_context(transport(link))
        until(carrier.nodes)
        (node,) = carrier.nodes()

        def one_round(content: bytes) -> None:
            message = carrier.send(node, content, lasting=300)
            assert collect(carrier, 1, seconds=300)[message].content == b"Basel:" + content

        one_round(bytes(3_000_000))  # what a large message takes is taken before
        before = most = memory(link.pid)
        for _ in range(100):  # and some that say little
            stack.enter_context(trickling(("127.0.0.1", link.port)))
        strangers = Strangers(("127.0.0.1", link.port), kinds(gate_word(roster["Basel"])))
        stack.callback(strangers.end)
        rounds = 0
        begun = time.monotonic()
        while strangers.sent < FLOOD or rounds < 5:
            assert time.monotonic() - begun < 500, f"{strangers.sent / MIB:.0f} MiB sent, {rounds} rounds"
            one_round(b"%d" % rounds)
            rounds += 1
            most = max(most, memory(link.pid))
        print(f"{strangers.sent / MIB:.0f} MiB in {time.monotonic() - begun:.0f} s, {rounds} rounds, "
              f"{before / MIB:.0f} MiB before and {most / MIB:.0f} at most")  # fmt: skip
        assert most - before < MOST
        assert link.running


@contextlib.contextmanager
def trickling(address: tuple[str, int]) -> Iterator[socket.socket]:
    """A connection that begins a handshake and says no more."""
    with socket.create_connection(address, timeout=60) as silent:
        silent.sendall(b"\x16\x03\x01\x02\x00\x01")
        yield silent
