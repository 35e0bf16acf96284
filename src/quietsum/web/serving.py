"""The process that serves the pages: one socket, few connections, and no patience with those that say nothing.

The socket is opened before anything is printed, so that the address is the true one and a taken port is an error of one
sentence. A connection that begins a request and does not end it, or says nothing at all, is closed after ten to twenty
seconds; more connections than :data:`MOST` are answered with 503.
"""

from __future__ import annotations

import contextlib
import dataclasses
import socket
from collections.abc import Generator, Iterable
from typing import TYPE_CHECKING, Any, final

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from quietsum.errors import InvalidParameter, QuietsumError, may_pass
from quietsum.web.access import DashboardAccess, is_loopback_host
from quietsum.web.app import create_app
from quietsum.web.reading import PageReader

if TYPE_CHECKING:
    import asyncio

__all__ = ["Dashboard", "open_dashboard"]

MOST = 64
"""Connections at a time."""
PATIENCE = 10.0
"""Seconds; a connection without a whole request in two of these is closed."""


class PatientlessProtocol(H11Protocol):
    """HTTP/1.1 on one connection, which is closed if it stays without a request."""

    _watch: asyncio.TimerHandle | None = None
    _idle = False

    def connection_made(self, transport: Any) -> None:
        """Begin to watch."""
        super().connection_made(transport)
        self._watch = self.loop.call_later(PATIENCE, self._look)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop watching."""
        if self._watch is not None:
            self._watch.cancel()
        super().connection_lost(exc)

    def _look(self) -> None:
        idle = self.cycle is None or self.cycle.response_complete
        if idle and self._idle:
            self.transport.close()
            return
        self._idle = idle
        self._watch = self.loop.call_later(PATIENCE, self._look)


class _Server(uvicorn.Server):
    """A server that leaves signals to the command that runs it."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Capture none."""
        yield


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Dashboard:
    """A dashboard whose socket is open: its ``address``, the ``token`` it asks for, and :meth:`run`."""

    address: str
    token: str
    server: uvicorn.Server
    listening: socket.socket

    @property
    def link(self) -> str:
        """The address with its token, where it has one."""
        return f"{self.address}/?token={self.token}" if self.token else f"{self.address}/"

    def run(self) -> None:
        """Serve until :meth:`stop`."""
        with self.listening:
            self.server.run(sockets=[self.listening])

    def stop(self) -> None:
        """Let :meth:`run` come to its end."""
        self.server.should_exit = True


def open_dashboard(
    reader: PageReader, *, host: str = "127.0.0.1", port: int = 8642, operator: bool = False, names: Iterable[str] = ()
) -> Dashboard:
    """Open the socket for the dashboard of ``reader``'s workspace; port 0 is any free one.

    ``names`` are further names under which a browser may ask for it. Raises QuietsumError if the address is taken.
    """
    listening = _listen(host, port)
    try:
        chosen = int(listening.getsockname()[1])
        access = DashboardAccess.for_address(host, chosen, operator=operator, names=names)
        config = uvicorn.Config(
            create_app(reader, access, ahead=True), http=PatientlessProtocol, ws="none", loop="asyncio", lifespan="on",
            log_level="warning", access_log=False, server_header=False, proxy_headers=False, limit_concurrency=MOST,
            timeout_keep_alive=15, timeout_graceful_shutdown=2, h11_max_incomplete_event_size=16 * 1024,
        )  # fmt: skip
        shown = "localhost" if is_loopback_host(host) and host in ("127.0.0.1", "localhost") else host
        shown = f"[{shown}]" if ":" in shown else shown
        if host in ("0.0.0.0", "::"):
            shown = next(iter(names), socket.gethostname())
        return Dashboard(
            address=f"http://{shown}:{chosen}", token=access.token, server=_Server(config), listening=listening
        )
    except BaseException:
        listening.close()
        raise


def _listen(host: str, port: int) -> socket.socket:
    if not 0 <= port <= 65535:
        raise InvalidParameter("port", port, "is no port", "choose one from 1024 to 65535, or 0 for any")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as error:
        raise InvalidParameter("host", host, f"is no address of this machine ({error})", "use 127.0.0.1") from None
    listening = socket.socket(family, kind, protocol)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(128)
    except OSError as error:
        listening.close()
        if may_pass(error):
            raise PortTaken(
                f"port {port} of {host} is taken, perhaps by another dashboard; end that one, or choose another --port"
            ) from None
        raise InvalidParameter("host", host, f"cannot be listened on ({error.strerror})", "use 127.0.0.1") from None
    return listening


class PortTaken(QuietsumError):
    """Another process listens there; it may end."""

    exit_code = 1
