"""What travels between the server and its parties, and the :class:`Federation` that carries it.

Requests, replies, questions and answers are values without behaviour, so any transport can carry them.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, final

import numpy as np
from numpy.typing import NDArray

from quietsum.aggregation import Fold
from quietsum.errors import PlanRefused
from quietsum.party import model_hash
from quietsum.secagg import Step

if TYPE_CHECKING:
    from quietsum.ledger import Ledger, Testimony
    from quietsum.plan import ResolvedPlan

__all__ = [
    "QUESTIONS",
    "Federation",
    "Lost",
    "PartyRefusal",
    "Reply",
    "StepAnswer",
    "StepQuestion",
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

    ``parties`` are exactly those whose updates are in it; a party that had none that could be used is
    :class:`Lost`, one by one.
    """

    parties: tuple[str, ...]
    folded: Any


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class PartyRefusal:
    """A party said no *before* it touched its data: the only reply that takes a charge back."""

    party: str
    reason: str


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Lost:
    """Nothing usable came back, and the data may have been touched: charged all the same."""

    party: str
    reason: str


Reply = Update | Sums | PartyRefusal | Lost


QUESTIONS = (Step.OPEN, Step.ROSTER, Step.SHARES, Step.SURVIVORS, Step.AGREED)
"""What a secure round asks of each party, in this order. Draws of groups come behind the first, where there are any."""


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class StepQuestion:
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
class StepAnswer:
    """What a party says to one step: bytes of the protocol, signed and, where they hold its vector, masked."""

    party: str
    content: bytes


class Federation(abc.ABC):
    """Who is registered, and how to ask them: the one interface between a run and what carries its messages.

    An implementation states :meth:`registered` and :meth:`ask`. Everything else has a default for a federation without
    sites elsewhere, without ledgers of its parties, without secure rounds, and without anything to end.
    """

    remote: ClassVar[bool] = False
    """Whether its parties are sites elsewhere, which enrol in a run by :meth:`join` and hold the data alone."""
    carries_secure: ClassVar[bool] = False
    """Whether it implements :meth:`identities` and :meth:`exchange`, which secure rounds need."""

    @abc.abstractmethod
    def registered(self) -> Sequence[str]:
        """The names of all parties of the run, in a fixed order. Public."""

    @abc.abstractmethod
    def ask(self, request: TrainRequest, cohort: Sequence[str], fold: Fold[Any]) -> Iterable[Reply]:
        """One reply for each party of ``cohort``, as they arrive.

        A federation may fold where the updates are made, from ``fold.start()``, and reply with :class:`Sums` for
        several parties at once; or leave ``fold`` alone and reply with one :class:`Update` each.
        """

    @property
    def counts_deadline(self) -> bool:
        """Whether it keeps the plan's deadline itself, for every party alone; if False, the round does for all at once.

        Remote parties work at the same time, so one deadline serves the round. Parties that share a process wait for
        each other: by one deadline a slow client would take those behind it out of the sum, and a promise to whole
        clients is kept only if each of them moves its own update and no other.
        """
        return False

    # ------------------------------------------------------------------------------------------- a run's life

    def check_plan(self, resolved: ResolvedPlan) -> None:
        """Called before a run is opened: raises :class:`~quietsum.errors.PlanRefused` if these parties cannot run it.

        Nothing is asked and nothing is written yet, so a refusal leaves no trace in any budget.
        """
        return

    def join(self, run: str, resolved: ResolvedPlan, ledger: Ledger) -> None:
        """Called once before the first round: sites elsewhere enrol in the run.

        Raises :class:`~quietsum.errors.TooFewParties` if they do not come, before anything is charged.
        """
        return

    def ready(self) -> None:
        """Called before each round is reserved.

        Raises :class:`~quietsum.errors.TooFewParties` if no round could have a result. The answer must not depend on
        who would be drawn.
        """
        return

    def leave(self, outcome: str) -> None:
        """Called when the run has ended: sites elsewhere hear of it as far as they can be reached."""
        return

    def testimonies(self) -> Mapping[str, Testimony] | None:
        """The newest heads of the parties' own ledgers that came with this round's replies, none twice.

        Returns None if the parties keep no ledgers.
        """
        return None

    def close(self) -> None:
        """End worker processes or connections. A second call does nothing."""
        return

    # ------------------------------------------------------------------------------------------ secure rounds

    def identities(self, cohort: Sequence[str]) -> Mapping[str, bytes]:
        """The public Ed25519 keys of those of ``cohort`` that can be asked at all."""
        raise PlanRefused(f"{type(self).__name__} carries updates and no masked sums: it has no keys of parties")

    def exchange(self, question: StepQuestion) -> Iterable[StepAnswer | PartyRefusal | Lost]:
        """Hand each party its bytes; one word from each, as they come, until the step's time is over.

        A :class:`PartyRefusal` comes only from a party that was not asked for its masked input yet. A party that is
        lost at one step is asked nothing at the next one.
        """
        raise PlanRefused(f"{type(self).__name__} carries updates and no masked sums: it exchanges no letters")
