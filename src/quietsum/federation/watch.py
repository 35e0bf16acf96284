"""What happens in a run, for those who watch: the live line, the log, the run's own database.

A watcher sees everything the operator may see. Events that say who took part are marked ``operator_only``; they never
enter a report for recipients or an exported ledger.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Protocol, final

from quietsum.defence import Finding
from quietsum.privacy import Guarantee

log = logging.getLogger(__name__)

__all__ = [
    "FindingReported",
    "GroupJudged",
    "PartyDropped",
    "PartyRejected",
    "PartySilent",
    "RoundFinished",
    "RoundStarted",
    "RunEvent",
    "RunFinished",
    "RunStarted",
    "Watcher",
    "event_to_dict",
    "guard",
    "tell",
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunEvent:
    """Something that happened in a run."""

    kind: ClassVar[str]
    operator_only: ClassVar[bool] = False


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class RunStarted(RunEvent):
    """A run begins, or goes on after its last checkpoint.

    ``metrics`` are the scores of the model that it begins or goes on with, ``chance`` those of one that knows nothing.
    """

    kind: ClassVar[str] = "run-started"
    run: str
    task: str
    style: str
    parties: int
    rounds: int
    first_round: int
    epsilon: float | None
    delta: float | None
    unit: str | None
    protected: bool
    note: str = ""
    metrics: Mapping[str, float] = dataclasses.field(default_factory=dict)
    chance: Mapping[str, float] = dataclasses.field(default_factory=dict)


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class RoundStarted(RunEvent):
    """The round's charge is reserved; the parties are asked now."""

    kind: ClassVar[str] = "round-started"
    round: int
    attempt: int


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class PartyDropped(RunEvent):
    """One party's update is not in this round's model, and why.

    In a secure round ``step`` is where it was lost and ``code`` one of :class:`quietsum.secagg.Reason`'s values; both
    are empty otherwise.
    """

    kind: ClassVar[str] = "party-dropped"
    operator_only: ClassVar[bool] = True
    round: int
    party: str
    reason: str
    refunded: bool
    step: str = ""
    code: str = ""


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class PartyRejected(RunEvent):
    """A robust rule left one party's update out of the step. That is no statement about the party."""

    kind: ClassVar[str] = "party-rejected"
    operator_only: ClassVar[bool] = True
    round: int
    party: str
    rule: str
    reason: str
    statistics: Mapping[str, float] = dataclasses.field(default_factory=dict)


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class FindingReported(RunEvent):
    """A detector has measured something beyond its threshold. That is a measurement, and no verdict."""

    kind: ClassVar[str] = "finding"
    operator_only: ClassVar[bool] = True
    round: int
    finding: Finding


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class GroupJudged(RunEvent):
    """What the rule between groups made of one group's mean: whether it is in the step, and what was measured on it.

    ``members`` are all that were drawn into the group, ``survivors`` those whose updates are in its sum. A mean that is
    left out says nothing about any one of them.
    """

    kind: ClassVar[str] = "group-judged"
    operator_only: ClassVar[bool] = True
    round: int
    group: int
    members: tuple[str, ...]
    survivors: tuple[str, ...]
    kept: bool
    rule: str
    reason: str = ""
    statistics: Mapping[str, float] = dataclasses.field(default_factory=dict)


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class PartySilent(RunEvent):
    """A party whose masked update is in the sum was lost at a later ``step``: it did not help to unmask it."""

    kind: ClassVar[str] = "party-silent"
    operator_only: ClassVar[bool] = True
    round: int
    party: str
    reason: str
    step: str
    code: str


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class RoundFinished(RunEvent):
    """A new model, with its metrics and what has been spent so far if the schedule runs as planned.

    ``spent`` tells by its size who has refused, since a refusal takes a charge back; ``reserved`` is the same as if
    no party had, and what others than the operator may see. ``limits`` holds the plan's own ε by unit, ``clip`` the
    bound of the next round where it adapts, ``rejected`` whom the robust rule left out, ``step_norm`` how far the model
    has moved.
    """

    kind: ClassVar[str] = "round-finished"
    operator_only: ClassVar[bool] = True
    round: int
    rounds: int
    asked: int
    kept: tuple[str, ...]
    metrics: Mapping[str, float]
    metrics_on: Mapping[str, str]
    spent: tuple[Guarantee, ...]
    limits: Mapping[str, float]
    clip: float | None = None
    reserved: tuple[Guarantee, ...] = ()
    rejected: tuple[str, ...] = ()
    step_norm: float | None = None


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class RunFinished(RunEvent):
    """The run has ended: ``finished``, ``budget``, ``too-few-parties`` or ``interrupted``."""

    kind: ClassVar[str] = "run-finished"
    outcome: str
    round: int
    reason: str


class Watcher(Protocol):
    """What looks on. It may keep and show, never steer."""

    def saw(self, event: RunEvent) -> None:
        """Take note of ``event``."""
        ...


@final
class GuardedWatcher:
    """A watcher that cannot end a round: what it raises is a warning, once, and then it is left alone.

    Guarantees (rule 22): nothing optional stands between a reservation and its release. Only a person who breaks the
    run off gets through. A reader that has left (`| head`) is kept in mind for :meth:`check`, between two rounds.
    """

    def __init__(self, watcher: Watcher) -> None:
        self._watcher: Watcher | None = watcher
        self._left: BrokenPipeError | None = None

    def saw(self, event: RunEvent) -> None:
        """Pass ``event`` on."""
        if self._watcher is None:
            return
        try:
            self._watcher.saw(event)
        except BrokenPipeError as error:
            self._watcher, self._left = None, error
        except Exception as error:
            log.warning("%s sees nothing more of this run: %s", type(self._watcher).__name__, error)
            self._watcher = None

    def check(self) -> None:
        """Raise BrokenPipeError where the reader has left; nothing is reserved at this moment."""
        if self._left is not None:
            raise self._left


def guard(watchers: Iterable[Watcher]) -> tuple[GuardedWatcher, ...]:
    """Each of the ``watchers``, so that it cannot end a round."""
    return tuple(watcher if isinstance(watcher, GuardedWatcher) else GuardedWatcher(watcher) for watcher in watchers)


def tell(watchers: Iterable[Watcher], event: RunEvent) -> None:
    """Show ``event`` to every watcher."""
    for watcher in watchers:
        watcher.saw(event)


def event_to_dict(event: RunEvent) -> dict[str, Any]:
    """``event`` as JSON-ready values."""
    values: dict[str, Any] = {"event": event.kind}
    for field in dataclasses.fields(event):
        value = getattr(event, field.name)
        if field.name in ("spent", "reserved"):
            value = [guarantee.to_dict() for guarantee in value]
        elif isinstance(value, Finding):
            value = value.to_dict()
        elif isinstance(value, Mapping):
            value = dict(value)
        elif isinstance(value, tuple):
            value = list(value)
        values[field.name] = value
    return values
