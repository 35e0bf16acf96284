"""The front door of a SuperLink: what somebody who reaches the port may cost before he has shown who he is.

Flower's server (uvicorn) stores headers of any number and length, queues pipelined requests, waits for ever for the
first one, and does not count connections. So connections are accepted here, counted, and read through
:func:`bound_protocol`:

=====================  ==================================================================================
a connection           a stranger until the gate has checked a signature; few strangers an address and in
                       all, and the oldest of them makes room for the next one
TLS                    a handshake has seconds; TLS 1.2 at least, no renegotiation, HTTP/1.1 only; a site's
                       certificate where authorities for them are given
a request's head       64 KiB and 100 headers, counted before the parser keeps them; 8 KiB of address
a request              with its length in a header: no chunks, no trailers, no upgrade; one more may wait;
                       the same seconds for the first and for every later one
=====================  ==================================================================================

Guarantees: what strangers send is forgotten with their connection, and all of them together hold no more than
``strangers`` times some 250 KiB (buffers of TLS and one head). A stranger who opens connections without end pushes out
strangers of his own address first; a site needs one of them for as long as its handshake and its first head take.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import dataclasses
import ipaddress
import logging
import socket
import ssl
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, final

if TYPE_CHECKING:
    import uvicorn

__all__ = ["ADMIT", "Door", "DoorLimits", "Guest", "bound_protocol", "serve_door", "server_side"]

ADMIT = "quietsum.admit"
"""In a request's scope: what the gate calls with a name once it knows whose connection this is."""
READ_AT_ONCE = 64 * 1024
"""Bytes that TLS reads in one go, and so keeps for each connection (asyncio would take 256 KiB)."""
_WANTED = b'{"message": "this SuperLink hears sites with a certificate only: put node.crt beside node.key"}'
NO_CERTIFICATE = b"HTTP/1.1 403 \r\nconnection: close\r\ncontent-length: %d\r\n\r\n%s" % (len(_WANTED), _WANTED)
_log = logging.getLogger("quietsum")


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class DoorLimits:
    """What one connection, one address and one name may take. Seconds, bytes, and numbers of connections."""

    handshake_seconds: float = 10.0
    head_seconds: float = 20.0
    request_seconds: float = 300.0
    head_bytes: int = 64 * 1024
    headers: int = 100
    url_bytes: int = 8 * 1024
    strangers: int = 256
    strangers_of_an_address: int = 64
    connections_of_a_name: int = 8


@final
class Guest:
    """One connection, from its first packet to its end."""

    def __init__(self, door: Door, connection: socket.socket, origin: str) -> None:
        self.origin = origin
        self.name: str | None = None
        self._door, self._connection = door, connection
        self.transport: asyncio.Transport | None = None

    def admit(self, name: str, most: int | None = None) -> None:
        """This connection is ``name``'s and counts among strangers no more; of ``most``, the oldest makes room."""
        self._door.admit(self, name, most)

    def leave(self) -> None:
        """The connection has ended."""
        self._door.leave(self)

    def hang_up(self) -> None:
        """End it now. Before TLS is up there is no transport yet, and the handshake finds the line cut."""
        if self.transport is not None:
            self.transport.abort()
        else:
            with contextlib.suppress(OSError):
                self._connection.shutdown(socket.SHUT_RDWR)


@final
class Door:
    """Accepts connections, and keeps count of them by the address they come from and the name they have shown."""

    def __init__(self, limits: DoorLimits | None = None) -> None:
        self.limits = limits or DoorLimits()
        self._strangers: dict[str, dict[Guest, None]] = collections.defaultdict(dict)  # in the order of their coming
        self._known: dict[str, dict[Guest, None]] = collections.defaultdict(dict)

    @property
    def strangers(self) -> int:
        """How many connections have not shown who they are."""
        return sum(map(len, self._strangers.values()))

    def enter(self, connection: socket.socket, origin: str) -> Guest:
        """A new connection; where there are too many strangers, the oldest of the most frequent address goes."""
        guest = Guest(self, connection, origin)
        mine = self._strangers[origin]
        mine[guest] = None
        if len(mine) > self.limits.strangers_of_an_address:
            self._push_out(mine)
        elif self.strangers > self.limits.strangers:
            self._push_out(max(self._strangers.values(), key=len))
        return guest

    def admit(self, guest: Guest, name: str, most: int | None = None) -> None:
        """Take ``guest`` out of the strangers; a name that holds more than its share loses its oldest connection."""
        if guest.name == name:
            return
        self.leave(guest)
        guest.name = name
        mine = self._known[name]
        mine[guest] = None
        if len(mine) > (self.limits.connections_of_a_name if most is None else most):
            self._push_out(mine)

    def leave(self, guest: Guest) -> None:
        """A connection that has ended counts no more. Doing it twice changes nothing."""
        table, key = (self._strangers, guest.origin) if guest.name is None else (self._known, guest.name)
        table[key].pop(guest, None)
        if not table[key]:
            del table[key]

    def _push_out(self, guests: dict[Guest, None]) -> None:
        oldest = next(iter(guests))
        self.leave(oldest)
        oldest.hang_up()

    async def keep_open(
        self,
        listening: socket.socket,
        tls: ssl.SSLContext | None,
        make: Callable[[Guest], asyncio.BaseProtocol],
        *,
        origin: str | None = None,
    ) -> None:
        """Accept what comes, until cancelled. ``origin`` counts all of it as one address."""
        loop = asyncio.get_running_loop()
        listening.setblocking(False)
        arriving: set[asyncio.Task[None]] = set()
        while True:
            try:
                connection, peer = await loop.sock_accept(listening)
            except OSError as problem:  # out of descriptors, or who called has gone already
                _log.warning("a connection was not taken: %s", problem)
                await asyncio.sleep(0.1)
                continue
            guest = self.enter(connection, origin if origin is not None else origin_of(peer))
            task = loop.create_task(self._welcome(guest, connection, tls, make))
            arriving.add(task)
            task.add_done_callback(arriving.discard)

    async def _welcome(
        self,
        guest: Guest,
        connection: socket.socket,
        tls: ssl.SSLContext | None,
        make: Callable[[Guest], asyncio.BaseProtocol],
    ) -> None:
        seconds: dict[str, float] = {}
        if tls is not None:
            seconds = {"ssl_handshake_timeout": self.limits.handshake_seconds, "ssl_shutdown_timeout": 2.0}
        loop = asyncio.get_running_loop()
        try:
            await loop.connect_accepted_socket(lambda: make(guest), connection, ssl=tls, **seconds)
        except Exception as problem:  # no TLS, no certificate, too slow, gone
            self.leave(guest)
            _log.debug("a connection from %s came to nothing: %s", guest.origin, problem)
            if guest.transport is None:
                connection.close()


def origin_of(peer: Any) -> str:
    """What connections are counted by: an IPv4 address, or the network (/64) of an IPv6 address.

    >>> origin_of(("192.0.2.7", 5000)), origin_of(("2001:db8::7", 5000, 0, 0)), origin_of(("::ffff:192.0.2.7", 1, 0, 0))
    ('192.0.2.7', '2001:db8::', '192.0.2.7')
    """
    try:
        found = ipaddress.ip_address(str(peer[0]).partition("%")[0])
    except (ValueError, IndexError, TypeError):
        return str(peer)
    if found.version == 4:
        return str(found)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(found) >> 64 << 64, 64)).network_address)


def server_side(certificate: str, key: str, *, clients: str | None = None) -> ssl.SSLContext:
    """TLS as the server. ``clients`` is a file of authorities, one of which must have signed a caller's certificate.

    A caller without a certificate gets one sentence (403), and not a byte of his is looked at: ended in the handshake,
    as TLS has it, he would only see a line that was cut.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(["http/1.1"])
    context.load_cert_chain(certificate, key)
    if clients is not None:
        context.load_verify_locations(cafile=clients)
        context.verify_mode = ssl.CERT_OPTIONAL  # a wrong one ends the handshake; who has none reads why, see below
    return context


class _TurnedAway(Exception):
    """Raised inside the parser's callbacks: it stops parsing, and the protocol sees ``status``."""


def bound_protocol(limits: DoorLimits) -> type[asyncio.Protocol]:
    """uvicorn's protocol for one connection, with a bound on everything that is read before the gate is asked.

    Takes one more argument than uvicorn's: ``guest``, the connection in the door's count.
    """
    import httptools
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

    class Bounded(HttpToolsProtocol):
        def __init__(self, *arguments: Any, guest: Guest | None = None, **named: Any) -> None:
            super().__init__(*arguments, **named)
            self._guest = guest
            self._in_head, self._ended, self._head, self._count, self._status = True, False, 0, 0, 0
            self._deadline: asyncio.TimerHandle | None = None

        # ------------------------------------------------------------------------------- the connection

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            if self._guest is not None:
                self._guest.transport = transport
            self._end_in(limits.head_seconds)
            tls = transport.get_extra_info("ssl_object")
            if tls is not None and tls.context.verify_mode is ssl.CERT_OPTIONAL and not tls.getpeercert():
                transport.pause_reading()  # closed with something unread, the line would be cut before he has read it
                self._status = 403
                transport.write(NO_CERTIFICATE)
                self._end_in(1.0)

        def connection_lost(self, exc: Exception | None) -> None:
            self._end_in(None)
            if self._guest is not None:
                self._guest.leave()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            self._unset_keepalive_if_required()
            start = 0
            while start < len(data) and not self.transport.is_closing() and not self._status:
                size = limits.head_bytes - self._head if self._in_head else READ_AT_ONCE
                piece = data[start : start + size]
                start += len(piece)
                self._ended = False
                try:
                    self.parser.feed_data(piece)
                except httptools.HttpParserUpgrade:
                    self._turn_away(400)  # seen in on_headers_complete already, by whichever name the parser gives it
                except httptools.HttpParserError:
                    self._turn_away(self._status or 400)
                if self._in_head:
                    self._head = 0 if self._ended else self._head + len(piece)
                    if self._head >= limits.head_bytes:
                        self._status = 431
                        self.transport.abort()

        def _turn_away(self, status: int) -> None:
            self._status = status
            if status == 431:  # a flood gets no answer
                self.transport.abort()
            elif not self.transport.is_closing():
                self.transport.write(
                    f"HTTP/1.1 {status} \r\ncontent-length: 0\r\nconnection: close\r\n\r\n".encode("ascii")
                )
                self.transport.close()
                self._end_in(2.0)

        def _end_in(self, seconds: float | None) -> None:
            """There is one deadline at any time; this one takes the place of the last."""
            if self._deadline is not None:
                self._deadline.cancel()
            self._deadline = None if seconds is None else self.loop.call_later(seconds, self.transport.abort)

        # ------------------------------------------------------------------------------------ a request

        def on_message_begin(self) -> None:
            if self.pipeline:  # one may wait: a client has its answer before the server has closed its books on it
                self._refuse(400)
            self._count = 0
            super().on_message_begin()
            if self._guest is not None:
                scope: dict[str, Any] = self.scope  # type: ignore[assignment]
                scope[ADMIT] = self._guest.admit

        def on_url(self, url: bytes) -> None:
            super().on_url(url)
            if len(self.url) > limits.url_bytes:
                self._refuse(414)

        def on_header(self, name: bytes, value: bytes) -> None:
            self._count += 1
            if self._count > limits.headers:
                self._refuse(431)
            super().on_header(name, value)

        def on_headers_complete(self) -> None:
            if any(name == b"transfer-encoding" for name, _ in self.headers):
                self._refuse(411)  # a length must be stated: chunks have extensions and trailers without end
            if self.parser.should_upgrade():
                self._refuse(400)
            self._in_head, self._head = False, 0
            self._end_in(limits.request_seconds)
            super().on_headers_complete()

        def on_message_complete(self) -> None:
            self._in_head, self._ended = True, True
            super().on_message_complete()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            if self.transport.is_closing():
                self._end_in(2.0)
            elif self.cycle.response_complete:
                self._end_in(limits.head_seconds)  # the next request's patience begins here
            else:
                self._end_in(limits.request_seconds)

        def _refuse(self, status: int) -> None:
            self._status = status
            raise _TurnedAway

    return Bounded


def serve_door(
    config: uvicorn.Config,
    places: Sequence[tuple[socket.socket, ssl.SSLContext | None, str | None]],
    *,
    limits: DoorLimits | None = None,
    started: Callable[[Any], None] = lambda server: None,
) -> None:
    """Serve ``config``'s app on sockets that listen already, each with its TLS and its ``origin``, until SIGTERM."""
    import asyncio.sslproto as sslproto

    import uvicorn

    door = Door(limits)
    config.http = bound_protocol(door.limits)
    sslproto.SSLProtocol.max_size = READ_AT_ONCE

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets=[])
            if not self.should_exit:
                self._open = [asyncio.ensure_future(self._keep(*place)) for place in places]

        async def _keep(self, listening: socket.socket, tls: ssl.SSLContext | None, origin: str | None) -> None:
            def make(guest: Guest) -> asyncio.BaseProtocol:
                kind: Any = config.http_protocol_class
                state: Mapping[str, Any] = self.lifespan.state
                return kind(  # type: ignore[no-any-return]
                    config=config, server_state=self.server_state, app_state=state, guest=guest
                )

            try:
                await door.keep_open(listening, tls, make, origin=origin)
            finally:
                self.should_exit = True  # a server that accepts no more is none

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            for one in self._open:
                one.cancel()
            await asyncio.gather(*self._open, return_exceptions=True)
            await super().shutdown(sockets=[place[0] for place in places])

    server = Server(config)
    started(server)
    server.run(sockets=[])
