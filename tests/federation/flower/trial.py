"""Builds what a test over a real SuperLink needs: certificates, keys, a SuperLink, sites in processes of their own."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec

from quietsum.federation.flower.coordinator import FlowerTransport
from quietsum.federation.flower.superlink import SuperLink
from quietsum.federation.remote.transport import Arrival
from quietsum.identity.certificates import make_authority, make_server
from quietsum.identity.nodekeys import make_node_key, read_public_key

ECHO = Path(__file__).with_name("echo_site.py")
PATIENCE = 300.0
"""Seconds: longer than anything takes on a busy machine. Nothing ends well or badly because of it."""
QUIET = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def make_keys(folder: Path, names: Sequence[str]) -> dict[str, ec.EllipticCurvePublicKey]:
    """Certificates and one key per name in ``folder``; the roster of public keys."""
    authority = make_authority()
    server = make_server(authority)
    (folder / "ca.crt").write_bytes(authority.certificate)
    (folder / "server.crt").write_bytes(server.certificate)
    (folder / "server.key").write_bytes(server.key)
    roster = {}
    for name in names:
        key = make_node_key()
        path = folder / f"{name}.key"
        path.write_bytes(key.private)
        path.chmod(0o600)
        roster[name] = read_public_key(key.public, where=name)
    return roster


def start_superlink(folder: Path, *, port: int = 0, **more: Any) -> SuperLink:
    return SuperLink(
        folder / "link",
        port=port,
        certificate=folder / "server.crt",
        key=folder / "server.key",
        authority=folder / "ca.crt",
        **more,
    )


class Sites:
    """Processes of sites; all of them are ended with it, each by its id."""

    def __init__(self, folder: Path, address: str) -> None:
        self._folder, self._address = folder, address
        self._all: list[subprocess.Popen[bytes]] = []

    def start(self, name: str, *more: str) -> subprocess.Popen[bytes]:
        log = self.log(name).open("ab")
        arguments = [sys.executable, str(ECHO), str(self._folder), name, self._address, *more]
        process = subprocess.Popen(arguments, stdout=log, stderr=log, env=os.environ | QUIET)
        log.close()
        self._all.append(process)
        return process

    def log(self, name: str) -> Path:
        return self._folder / f"{name}.log"

    def end(self) -> None:
        for process in self._all:
            if process.poll() is None:
                process.terminate()
        for process in self._all:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)
            if process.poll() is None:
                process.kill()
            process.wait()


@contextlib.contextmanager
def transport(link: SuperLink, **arguments: object) -> Iterator[FlowerTransport]:
    carrier = FlowerTransport(link.access, **arguments)  # type: ignore[arg-type]
    try:
        yield carrier
    finally:
        carrier.close()


def until(fact: Callable[[], object], *, seconds: float = PATIENCE) -> None:
    """Wait for something that happens in another process."""
    deadline = time.monotonic() + seconds
    while not fact():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)


def collect(carrier: FlowerTransport, count: int, *, seconds: float = PATIENCE) -> dict[str, Arrival]:
    """The next ``count`` arrivals by message."""
    found: dict[str, Arrival] = {}
    deadline = time.monotonic() + seconds
    while len(found) < count:
        assert time.monotonic() < deadline, f"only {len(found)} of {count} arrived"
        for arrival in carrier.receive(0.5):
            assert arrival.message not in found, "a message was handed over twice"
            found[arrival.message] = arrival
    return found


def answered(carrier: FlowerTransport, node: str, content: bytes) -> bytes:
    """The answer to ``content`` by a node that has just come back; sent again where a message met it on its way."""
    deadline = time.monotonic() + PATIENCE
    while True:
        message = carrier.send(node, content, lasting=PATIENCE)
        found = collect(carrier, 1)[message]
        if not found.problem:
            return found.content
        assert time.monotonic() < deadline, found.problem
        time.sleep(0.2)
