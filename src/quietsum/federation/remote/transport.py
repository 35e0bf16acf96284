"""How bytes travel between a coordinator and its sites. Any carrier will do: Flower, or two lists in a test.

A transport knows nothing of rounds, models or budgets. It may lose, delay, repeat or reorder what it carries, and may
hand over what no site of ours has sent; the receiver checks signatures, sizes and keys (:mod:`quietsum.wire`). What it
must never do is to block longer than it was given: a round ends on time, also where a site dies in the middle of its
upload. Every implementation runs :class:`quietsum.contracts.TransportContract`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, final

from quietsum.errors import QuietsumError

__all__ = ["Answer", "Arrival", "ListTransport", "Transport"]

Answer = Callable[[bytes], bytes]
"""What a site does with one message: the bytes of its reply. It never raises on account of what came."""


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Arrival:
    """What came of one message: the ``content`` of its reply, or the ``problem`` why there will be none."""

    message: str
    content: bytes = b""
    problem: str = ""


class Transport(Protocol):
    """The coordinator's end.

    Guarantees that are relied on: no call blocks longer than it says, also where the other side does nothing; a message
    is handed over at most once by :meth:`receive`; ``content`` is never longer than the limit that the transport was
    made with.
    """

    def nodes(self) -> Sequence[str]:
        """The nodes that are connected now, by the transport's own names for them. Quick."""
        ...

    def send(self, node: str, content: bytes, *, lasting: float) -> str:
        """Hand ``content`` over to ``node``; returns a name for the message. A reply is of use for ``lasting`` seconds.

        Whether and when it arrives is not known here. :class:`~quietsum.errors.QuietsumError` where the carrier itself
        is gone.
        """
        ...

    def receive(self, wait: float) -> Sequence[Arrival]:
        """Replies that are here, each once; where there are none yet, waits at most ``wait`` seconds for the first."""
        ...

    def forget(self, message: str) -> None:
        """No reply to this message is wanted any more; what is under way is dropped. Unknown names are fine."""
        ...

    def close(self) -> None:
        """Let go of connections and threads without waiting for anybody; a second call does nothing."""
        ...


class ListTransport:
    """Two lists in one process: for tests of what uses a transport, as `httpx.MockTransport` is for clients of HTTP.

    ``sites`` holds what each node answers. A message is answered when :meth:`receive` looks for replies, in the
    caller's thread. ``sent`` keeps every message with its node; ``spoil`` may change a reply on its way, or lose it by
    returning None.

    >>> transport = ListTransport({"north": lambda content: content.upper()})
    >>> _ = transport.send("north", b"hello", lasting=1.0)
    >>> transport.receive(0.1)
    (Arrival(message='0', content=b'HELLO', problem=''),)
    """

    def __init__(self, sites: Mapping[str, Answer], *, limit: int | None = None) -> None:
        self.sites: dict[str, Answer] = dict(sites)
        self.spoil: Callable[[str, bytes], bytes | None] = lambda node, content: content
        self.sent: list[tuple[str, bytes]] = []
        self.closed = False
        self._limit = limit
        self._waiting: dict[str, tuple[str, bytes]] = {}

    def nodes(self) -> Sequence[str]:
        """All sites that are in ``sites`` now."""
        return tuple(self.sites)

    def send(self, node: str, content: bytes, *, lasting: float) -> str:
        """Note the message; it is answered later."""
        if self.closed:
            raise QuietsumError("this transport was closed: make another one")
        name = str(len(self.sent))
        self.sent.append((node, content))
        self._waiting[name] = (node, content)
        return name

    def receive(self, wait: float) -> Sequence[Arrival]:
        """Have all messages answered that wait; returns at once."""
        waiting, self._waiting = self._waiting, {}
        found = (self._answer(name, node, content) for name, (node, content) in waiting.items())
        return tuple(one for one in found if one is not None)

    def forget(self, message: str) -> None:
        """Drop a message that was not answered yet."""
        self._waiting.pop(message, None)

    def close(self) -> None:
        """Take no more messages, and drop those that wait."""
        self.closed = True
        self._waiting.clear()

    def _answer(self, name: str, node: str, content: bytes) -> Arrival | None:
        if node not in self.sites:
            return Arrival(message=name, problem="the node is gone")
        reply = self.spoil(node, self.sites[node](content))
        if reply is None:
            return None
        if self._limit is not None and len(reply) > self._limit:
            return Arrival(message=name, problem=f"the reply is too large: {len(reply)} bytes")
        return Arrival(message=name, content=reply)
