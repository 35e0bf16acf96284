"""How bytes travel between a coordinator and its sites. Any carrier will do: Flower, or two lists in a test.

A transport knows nothing of rounds, models or budgets. It may lose, delay, repeat or reorder what it carries, and may
hand over what nobody of ours has sent; whoever receives checks signatures, sizes and keys
(:mod:`quietsum.wire`). What it must never do is to block longer than it was told: a round ends on time, also
where a site dies in the middle of its upload.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Protocol, final

__all__ = ["Answer", "Arrival", "Transport"]

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

    Guarantees that are relied on: no call blocks longer than it says, whatever the other side does; a message is
    handed over at most once by :meth:`arrived`; ``content`` is never longer than the limit that the transport was made
    with.
    """

    def nodes(self) -> Sequence[str]:
        """The nodes that are connected now, by the transport's own names for them. Quick."""
        ...

    def send(self, node: str, content: bytes, *, lasting: float) -> str:
        """Hand ``content`` over to ``node``; returns a name for the message. A reply is of use for ``lasting`` seconds.

        Whether and when it arrives is not told. :class:`~quietsum.errors.QuietsumError` where the carrier itself is
        gone.
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
