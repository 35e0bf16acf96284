"""One connection to a server that may be hostile: one deadline and one number of bytes for a whole delivery.

A timeout of a socket begins anew with every byte, and :mod:`smtplib` and :mod:`http.client` read replies line by line
for as long as lines come: a server that drips a byte a second, or repeats ``250-`` or ``100 Continue`` for ever, would
hold a delivery and fill the memory. So both libraries are handed a :class:`Connection` in place of a socket. It counts
what it reads and gives every call only the time that is left of the whole delivery.

Guarantees: after ``seconds``, connecting and the handshake of TLS included, every call raises :class:`TimeoutError`;
once ``most`` bytes were read, the next read raises :class:`ConnectionError`. The one thing that Python cannot
interrupt is the system's own search for the server's address, which has limits of its own.
"""

from __future__ import annotations

import io
import socket
import ssl
import time
from collections.abc import Callable
from typing import Any, final

__all__ = ["MOST", "Connection", "Encrypting"]

MOST = 1 << 16
"""Bytes that a server may say in one delivery; real ones need a few hundred."""


@final
class Connection:
    """What smtplib and http.client need of a socket. ``problem`` says what ended it, where that was one of its limits.

    ``context``: encrypt it from the beginning; :meth:`encrypt` does so later.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        seconds: float,
        most: int = MOST,
        context: ssl.SSLContext | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.problem = ""
        self._host, self._seconds, self._left_to_read, self._clock = host, seconds, most, clock
        self._over, self._most = clock() + seconds, most
        self._socket = self._connect_to(port)
        if context is not None:
            self.encrypt(context)

    def _connect_to(self, port: int) -> socket.socket:
        """The first address of the server that answers. One that is silent leaves time for those after it."""
        problem: OSError = ConnectionError("it has no address")
        addresses = socket.getaddrinfo(self._host, port, type=socket.SOCK_STREAM)
        for tried, (family, kind, protocol, _, address) in enumerate(addresses):
            found = None
            try:
                found = socket.socket(family, kind, protocol)  # a family that this system lacks is no answer either
                found.settimeout(self._time_left() / (len(addresses) - tried))
                found.connect(address)
                self.problem = ""
                return found
            except OSError as error:
                if found is not None:
                    found.close()
                problem = self._explain(error)
        raise problem

    def encrypt(self, context: ssl.SSLContext) -> None:
        """Speak TLS from now on, with the server that the connection was made to."""
        try:
            self._socket.settimeout(self._time_left())
            self._socket = context.wrap_socket(self._socket, server_hostname=self._host)
        except BaseException as error:
            self._socket.close()
            if isinstance(error, TimeoutError):
                raise self._explain(error) from None
            raise

    def _time_left(self) -> float:
        left = self._over - self._clock()
        if left <= 0:
            raise self._late()
        return left

    def _late(self) -> TimeoutError:
        self.problem = f"the delivery was not done after {self._seconds:g} s"
        return TimeoutError(self.problem)

    def _explain(self, error: OSError) -> OSError:
        return self._late() if isinstance(error, TimeoutError) else error

    # ---------------------------------------------------------------------------- what the libraries ask of a socket

    def sendall(self, content: bytes) -> None:
        """Send all of it."""
        left = memoryview(content)
        while left:
            self._socket.settimeout(self._time_left())
            try:
                left = left[self._socket.send(left) :]
            except TimeoutError as error:
                raise self._explain(error) from None

    def read_into(self, buffer: Any) -> int:
        """Read what is there, at most what fits; 0 at the end."""
        if not self._left_to_read:
            self.problem = f"the server said more than {self._most} bytes"
            raise ConnectionError(self.problem)
        self._socket.settimeout(self._time_left())
        try:
            count = self._socket.recv_into(memoryview(buffer)[: self._left_to_read])
        except TimeoutError as error:
            raise self._explain(error) from None
        self._left_to_read -= count
        return count

    def makefile(self, mode: str = "rb", *_: Any) -> io.BufferedReader:
        """A file to read lines from; closing it leaves the connection open."""
        return io.BufferedReader(_Reader(self))

    def close(self) -> None:
        """Hang up."""
        self._socket.close()


@final
class Encrypting:
    """In place of a context, for :meth:`smtplib.SMTP.starttls`: the connection itself is encrypted and handed back."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._context = context

    def wrap_socket(self, connection: Connection, **_: Any) -> Connection:
        """Encrypt ``connection``, for the host that it was made for."""
        connection.encrypt(self._context)
        return connection


@final
class _Reader(io.RawIOBase):
    """What a :class:`Connection` reads, as a file."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return self._connection.read_into(buffer)
