"""What a coordinator remembers of its sites and of the messages under way: values without behaviour."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, final

from quietsum import wire
from quietsum.federation.messages import Answer, Lost, Question, Reply, TrainRequest

__all__ = ["Asking", "Found", "Known", "Sent", "lost", "reason_of"]


@final
@dataclasses.dataclass(kw_only=True)
class Known:
    """A site that has answered a greeting: where it is, and its process."""

    node: str
    session: str
    enrolled: bool = False
    rests: float = -math.inf
    """Until when it is not asked again: a message to it went astray."""


@final
@dataclasses.dataclass(kw_only=True)
class Sent:
    """A message under way: to whom, of which kind, and the hash by which its reply names it."""

    node: str
    kind: str
    digest: str
    party: str = ""
    session: str = ""


@final
@dataclasses.dataclass(frozen=True)
class Asking:
    """A round under way: its request, and the hash of the charges that each site must report.

    In a secure round it is one step of it: the ``question``, and the ``peers`` whose certificates go with the first.
    """

    request: TrainRequest
    expected: Mapping[str, str]
    question: Question | None = None
    peers: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    requests: list[str] = dataclasses.field(default_factory=list)

    def asked(self, party: str) -> int:
        """How often the request went to ``party``: a process of it that is gone may have touched the data."""
        return self.requests.count(party)


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Found:
    """What a party is done with."""

    party: str
    reply: Reply | Answer


def lost(sent: Sent, reason: str) -> Found:
    """Nothing usable came back to what was ``sent``."""
    return Found(party=sent.party, reply=Lost(party=sent.party, reason=reason))


def reason_of(letter: wire.Letter) -> str:
    """Why, in one line that a log can hold: what came is somebody else's text."""
    found = letter.body.get("reason")
    words = found[:500] if isinstance(found, str) else ""
    return "".join(sign if sign.isprintable() else " " for sign in words).strip() or "no reason given"
