"""What travels between the server and a party. Values, no behaviour: any transport can carry them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, final, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from quietsum.aggregation import Fold
from quietsum.party import model_hash
from quietsum.secagg import Step

if TYPE_CHECKING:
    from quietsum.ledger import Ledger, Testimony
    from quietsum.plan import ResolvedPlan

__all__ = [
    "QUESTIONS",
    "Answer",
    "Closes",
    "CountsTime",
    "Exchanges",
    "Federation",
    "Joins",
    "KeepsBooks",
    "Lost",
    "Question",
    "Refusal",
    "Reply",
    "Sums",
    "TrainRequest",
    "Update",
    "model_hash",
]

Vector = NDArray[np.float64]


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainRequest:
    """Train on this model. The key names the attempt, so that a request delivered twice is recognised."""

    run: str
    round: int
    attempt: int
    params: Vector

    @property
    def key(self) -> tuple[str, int, int, str]:
        """(run, round, attempt, hash of the model)."""
        return self.run, self.round, self.attempt, model_hash(self.params)


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Update:
    """What a party releases: the change of the model, with its noise already in it."""

    party: str
    delta: Vector


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Sums:
    """Updates of several parties, already folded where they were made: a state of the round's own fold.

    ``parties`` are exactly those whose updates are in it; whoever had none that could be used is told as
    :class:`Lost`, one by one.
    """

    parties: tuple[str, ...]
    folded: Any


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Refusal:
    """A party said no *before* it touched its data: the only reply that takes a charge back."""

    party: str
    reason: str


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Lost:
    """Nothing usable came back, and the data may have been touched: charged all the same."""

    party: str
    reason: str


Reply = Update | Sums | Refusal | Lost


class Federation(Protocol):
    """Who is registered, and how to ask them. Who answers today is nobody's business but the operator's."""

    def registered(self) -> Sequence[str]:
        """The names of all parties of the run, in a fixed order. Public."""
        ...

    def ask(self, request: TrainRequest, cohort: Sequence[str], fold: Fold[Any]) -> Iterable[Reply]:
        """One reply for each party of ``cohort``, as they arrive.

        A federation may fold where the updates are made, from ``fold.start()``, and reply with :class:`Sums` for
        several parties at once; or leave ``fold`` alone and reply with one :class:`Update` each.
        """
        ...


QUESTIONS = (Step.OPEN, Step.ROSTER, Step.SHARES, Step.SURVIVORS, Step.AGREED)
"""What a secure round asks of each party, in this order. Draws of groups come behind the first, where there are any."""


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Question:
    """One step of secure aggregation: the bytes for each party that is still in the session.

    ``step`` says which of the server's it is. ``identities`` are the Ed25519 keys by which the cohort knows each
    other, ``server`` the one of the driver; both are stated once, with the first step. The model goes with the step
    that asks for masked inputs, and with no other. ``seconds`` is how long the step may take, None without a deadline.
    """

    request: TrainRequest
    step: Step
    letters: Mapping[str, bytes]
    server: bytes
    identities: Mapping[str, bytes]
    seconds: float | None = None


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Answer:
    """What a party says to one step: bytes of the protocol, signed and, where they hold its vector, masked."""

    party: str
    content: bytes


@runtime_checkable
class Exchanges(Protocol):
    """A federation that carries the steps of secure aggregation, and nothing but bytes in either direction."""

    def identities(self, cohort: Sequence[str]) -> Mapping[str, bytes]:
        """The public keys of those of ``cohort`` that can be asked at all."""
        ...

    def exchange(self, question: Question) -> Iterable[Answer | Refusal | Lost]:
        """Hand each party its bytes; one word from each, as they come, until the step's time is over.

        A :class:`Refusal` comes only from a party that was not asked for its masked input yet. Who is lost at one step
        is asked nothing at the next one.
        """
        ...


@runtime_checkable
class CountsTime(Protocol):
    """A federation that keeps the plan's deadline itself, counted for every party alone.

    Remote parties work at the same time, so one deadline serves the round. Where several share a process, they wait for
    each other: by one deadline a slow client would take those behind it out of the sum, and a promise to whole clients
    is kept only if each of them moves its own update and no other.
    """

    @property
    def counts_deadline(self) -> bool:
        """Whether it does; where it does not, the round counts."""
        ...


@runtime_checkable
class Joins(Protocol):
    """A federation that must know the run before its first round: across machines, the sites enrol in it."""

    def join(self, run: str, resolved: ResolvedPlan, ledger: Ledger) -> None:
        """Find the sites; :class:`~quietsum.errors.TooFewParties` before anything is charged where they do not come."""
        ...

    def ready(self) -> None:
        """Called before each round is reserved: :class:`~quietsum.errors.TooFewParties` where nobody could be asked.

        It must not depend on who would be drawn.
        """
        ...

    def leave(self, outcome: str) -> None:
        """Tell the sites that the run has ended, as far as they can be reached; nothing depends on it."""
        ...


@runtime_checkable
class KeepsBooks(Protocol):
    """A federation whose parties keep ledgers of their own."""

    def testimonies(self) -> Mapping[str, Testimony]:
        """Their newest heads, as they came with the replies of this round; none twice."""
        ...


@runtime_checkable
class Closes(Protocol):
    """A federation with something to end: worker processes, connections."""

    def close(self) -> None:
        """End it. A second call does nothing."""
        ...
