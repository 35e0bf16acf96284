"""A SuperLink of our own: a child process that keeps messages, with a register of keys and a gate before it.

Its folder holds ``superlink.db`` (messages that wait: a reader of it reads what sites have sent, so it is the owner's
alone), ``superlink.log``, and ``access.json``, with which another process of the same operator finds it. A SuperLink
that died and is started on the same folder goes on where it was: sites and coordinators find it again by themselves.

Sites reach one socket, ``host:port``. All the rest is on loopback and asks for a secret; see
:class:`quietsum.federation.flower.gate.FrontGate` for why that is needed.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Self, final

from quietsum.errors import InvalidParameter, QuietsumError
from quietsum.federation.flower.gate import DISK_FLOOR
from quietsum.federation.flower.parcel import LIMIT
from quietsum.validate import whole_number

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric import ec

    from quietsum.federation.flower.flwr_calls import Access

__all__ = ["GivenUp", "SuperLink", "SuperLinkFailed", "is_loopback", "read_access"]

_READY_WITHIN = 180.0


class SuperLinkFailed(QuietsumError):
    """A SuperLink that does not start, or that has ended."""

    exit_code = 1


class GivenUp(SuperLinkFailed):
    """Somebody asked for the end while it was being started."""


@final
class SuperLink:
    """A running SuperLink; :meth:`close` ends it, and so does the end of this process, however it ends.

    ``certificate`` and ``key`` are the server's (PEM files), ``authority`` the file with the certificate that signed
    it. ``insecure=True`` does without all three, on a loopback host only. Port 0 takes a free one (see ``address``).
    ``clients`` holds the authorities (PEM) of which a caller must show a certificate; without it none is asked for.
    Where ``give_up`` is set while it starts, it is ended again, and :class:`GivenUp` says so.

    Guarantees: a site is heard only in its own name, only in reply, and with no more than ``limit`` bytes of content
    (somewhat more on the disk) for each message that was sent to it; while less than ``disk_floor`` bytes are free on
    the folder's disk, nothing is taken from sites at all. They try again until somebody has made room.
    """

    def __init__(
        self,
        folder: Path,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        certificate: Path | None = None,
        key: Path | None = None,
        authority: Path | None = None,
        insecure: bool = False,
        limit: int = LIMIT,
        disk_floor: int = DISK_FLOOR,
        clients: Path | None = None,
        give_up: threading.Event | None = None,
    ) -> None:
        limit, disk_floor = whole_number("limit", limit, 1), whole_number("disk_floor", disk_floor, 0)
        if insecure and not is_loopback(host):
            raise InvalidParameter(
                "insecure", True, f"would send models and updates in the clear to {host}", "use TLS: quietsum keys make"
            )
        if not insecure and (certificate is None or key is None or authority is None):
            raise InvalidParameter(
                "certificate", certificate, "is needed, with its key and its authority", "quietsum keys make makes them"
            )
        for file in (certificate, key, authority, clients):
            if file is not None and not file.is_file():
                raise InvalidParameter("certificate", str(file), "is no file", "check the path; quietsum keys show")
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if (free := shutil.disk_usage(folder).free) < disk_floor:
            raise SuperLinkFailed(
                f"{folder} is on a disk with {free // 2**20} MiB free, and {disk_floor // 2**20} MiB are to stay free; "
                "make room, or choose a folder on another disk"
            )
        self._folder = folder
        before = _read_access(folder)
        self._secret = str(before.get("secret") or secrets.token_urlsafe(32))
        public = _listening(host, port)
        try:
            private = _listening_again(before.get("address"))
        except BaseException:
            public.close()
            raise
        self.host, self.port = host, int(public.getsockname()[1])
        text = "" if insecure or certificate is None else certificate.read_text(encoding="ascii")
        self._access_words = {
            "address": "{}:{}".format(*private.getsockname()[:2]),
            "secret": self._secret,
            "certificate": text,
        }
        tls = ["--ssl-certfile", str(certificate), "--ssl-keyfile", str(key), "--ssl-ca-certfile", str(authority)]
        tls = ["--insecure"] if insecure else [*tls, "--enable-supernode-auth"]
        arguments = [*tls, "--isolation", "process", "--disable-runtime-dependency-installation"]
        arguments += ["--database", str(folder / "superlink.db")]
        words = {
            "arguments": arguments,
            "public": public.fileno(),
            "private": private.fileno(),
            "secret": self._secret,
            "folder": str(folder),
            "limit": limit,
            "disk_floor": disk_floor,
            "clients": None if clients is None else str(clients),
        }
        try:
            self._process = _start(folder / "superlink.log", words, (public.fileno(), private.fileno()))
        finally:
            public.close()
            private.close()
        try:
            _write_private(folder / "access.json", json.dumps(self._access_words))
            self._wait_until_ready(give_up or threading.Event())
        except BaseException:
            self.close()
            raise

    @property
    def address(self) -> str:
        """Where sites find it, if ``host`` is a name or an address that they can reach."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def access(self) -> Access:
        """What a coordinator's end needs."""
        from quietsum.federation.flower.flwr_calls import Access

        return Access(**self._access_words)

    @property
    def pid(self) -> int:
        """The child's process id."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the child is alive."""
        return self._process.poll() is None

    def admit(self, roster: Mapping[str, ec.EllipticCurvePublicKey]) -> None:
        """Let in the keys of ``roster``, by name, and no others.

        Guarantees: afterwards a node gets in if and only if its key is in ``roster``; before the first time no node
        does, and sites wait. Doing it twice changes nothing.
        """
        from quietsum.federation.flower.flwr_calls import CallRefused, Unreachable
        from quietsum.federation.flower.flwr_coordinator import Register, gate_word, public_key_to_bytes

        words = {gate_word(key) for key in roster.values()}
        if len(words) != len(roster):
            raise InvalidParameter("roster", sorted(roster), "holds one key under two names", "one key per party")
        register = Register(self.access)
        try:
            known = register.keys()
            for name, key in roster.items():
                if public_key_to_bytes(key) not in known:
                    register.add(name, key)
            register.admit(sorted(words))
        except (CallRefused, Unreachable) as problem:
            raise SuperLinkFailed(f"the SuperLink did not take the roster: {problem}") from None
        finally:
            register.close()

    def close(self) -> None:
        """End the child and all that it has started: asked first, killed after four seconds."""
        process = self._process
        if process.stdin is not None:
            with contextlib.suppress(OSError):
                process.stdin.close()
        if process.returncode is not None:
            return
        os.kill(process.pid, signal.SIGTERM)
        deadline = time.monotonic() + 4.0
        while time.monotonic() < deadline:
            if os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
                break
            time.sleep(0.05)
        os.killpg(
            process.pid, signal.SIGKILL
        )  # its own session, and its number is still its own: it was not waited for
        process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _wait_until_ready(self, give_up: threading.Event) -> None:
        from quietsum.federation.flower.flwr_calls import CallRefused, Unreachable
        from quietsum.federation.flower.flwr_coordinator import Register

        register = Register(self.access, seconds=2.0)
        deadline = time.monotonic() + _READY_WITHIN
        last = "it did not answer"
        try:
            while time.monotonic() < deadline:
                if self._process.poll() is not None:
                    raise SuperLinkFailed(f"the SuperLink ended while it started: {_tail(self._folder)}")
                try:
                    register.keys()
                    return
                except (CallRefused, Unreachable) as problem:
                    last = str(problem)
                if give_up.wait(0.1):
                    raise GivenUp("the SuperLink was ended while it started")
        finally:
            register.close()
        raise SuperLinkFailed(f"the SuperLink does not answer: {last}; its log says: {_tail(self._folder)}")


def read_access(folder: Path) -> Access:
    """The access to a SuperLink that another process of yours has started on ``folder``."""
    from quietsum.federation.flower.flwr_calls import Access

    found = _read_access(folder)
    if set(found) != {"address", "secret", "certificate"}:
        raise SuperLinkFailed(f"{folder} holds no access.json of a SuperLink; start one there first")
    return Access(**found)


def is_loopback(host: str) -> bool:
    """Whether ``host`` is this very machine, as an address or as ``localhost``.

    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("0.0.0.0"), is_loopback("example.org")
    (True, True, False, False)
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _listening(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=256)
    except OSError as problem:
        raise SuperLinkFailed(
            f"{host}:{port} cannot be listened on ({problem.strerror}); end what listens there, or choose another port "
            "or host"
        ) from None


def _listening_again(address: str | None) -> socket.socket:
    """The loopback port of last time where it is free, so that a coordinator finds its SuperLink again."""
    if address:
        with contextlib.suppress(OSError, ValueError):
            return socket.create_server(("127.0.0.1", int(address.rpartition(":")[2])), backlog=64)
    return socket.create_server(("127.0.0.1", 0), backlog=64)


def _start(log: Path, words: Mapping[str, object], sockets: tuple[int, int]) -> subprocess.Popen[bytes]:
    environment = os.environ | {
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_HOME": str(log.parent / "flower"),
        "OMP_NUM_THREADS": "1",
    }
    with _private(log, "ab") as out:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "quietsum.federation.flower.flwr_server"],
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=out,
            pass_fds=sockets,
            env=environment,
            start_new_session=True,
        )
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # it ended at once; the log says why
        process.stdin.write(json.dumps(words).encode() + b"\n")
        process.stdin.flush()
    return process


def _private(path: Path, mode: str) -> IO[bytes]:
    return open(path, mode, opener=lambda name, flags: os.open(name, flags, 0o600))


def _write_private(path: Path, text: str) -> None:
    fresh = path.with_suffix(".new")
    fresh.unlink(missing_ok=True)
    with _private(fresh, "xb") as file:
        file.write(text.encode())
    fresh.replace(path)


def _read_access(folder: Path) -> dict[str, str]:
    try:
        found = json.loads((folder / "access.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return {str(key): str(value) for key, value in found.items()} if isinstance(found, dict) else {}


def _tail(folder: Path) -> str:
    try:
        lines = (folder / "superlink.log").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return "(no log)"
    return re.sub(r"\x1b\[[0-9;]*m", "", " | ".join(lines[-5:]))[-600:] or "(nothing)"
