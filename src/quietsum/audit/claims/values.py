"""What a claim consists of: what is stated, what the settings really do, and what is to be said about the difference.

A reader of settings (:mod:`~quietsum.audit.claims.registry`) makes a :class:`Line` of each promise: the ε that is
stated, the unit that the mechanism really protects, and the privacy event of what it does. The event is priced, the
price is held against the stated ε, and a :class:`Remark` names each mistake with what to do instead.

**The benefit of the doubt.** Where a claim leaves the neighbouring relation open, it is priced under the one that costs
least. A claim that is false then is false under every other relation.
"""

from __future__ import annotations

import dataclasses
import enum
from typing import Any, final

from quietsum.keys import COUNT, NON_NEGATIVE, OPEN_FRACTION, Bound, choices, key, table, whole
from quietsum.privacy import Neighbours, Observer, PrivacyEvent, PrivacyUnit

__all__ = ["NOISE", "ClaimFile", "ClaimLine", "Remark", "RemarkKind", "Stated", "assumption", "mistake", "note"]


NOISE = Bound(least=0, most=1e9)
"""A noise multiplier, or a standard deviation: beyond, nothing but noise would be left."""


@table
class Stated:
    """What is promised, in any system's claim."""

    epsilon: float | None = key("The ε that is stated; if omitted, none is.", default=None, bound=NON_NEGATIVE)
    delta: float | None = key("The δ that it is stated at.", default=None, bound=OPEN_FRACTION)
    unit: PrivacyUnit | None = key("Whom it is said to protect; if omitted, whom the mechanism can.", default=None)
    neighbours: Neighbours | None = key(
        "Its neighbouring relation; if omitted, the one that costs least.", default=None
    )
    units: int | None = key(
        "How many protected units there are: records, people or clients.", default=None, bound=COUNT
    )
    records_per_unit: int | None = key("The most records of one person or client.", default=None, bound=whole(1, 1000))
    covers: str = key(
        "What the stated ε is about: the whole run, or one round of it.", default="run", bound=choices("run", "round")
    )
    sum_of: str = key(
        "What it was added up from, if it is a sum: rounds, units or parties.",
        default="",
        bound=choices("", "rounds", "units", "parties"),
    )
    trials: int = key("How many trainings were tried, the best of which was kept.", default=1, bound=COUNT)
    seeded: bool = key("Whether noise and draws come from a seed that is written down.", default=False)


@table
class ClaimFile:
    """A claim: which system, with which settings, and what is promised."""

    system: str = key("Whose settings these are: opacus, flower-local-dp, dp-sgd and others.")
    title: str = key("What it is, in a line.", default="")
    source: str = key("Where the settings stand.", default="")
    note: str = key("What else a reader should know.", default="")
    settings: dict[str, Any] = key("The settings, in the words of that system.", default_factory=dict, free=True)
    claim: Stated = key("What is promised.", default_factory=Stated)


class RemarkKind(enum.StrEnum):
    """How much a remark weighs."""

    MISTAKE = "mistake"
    """Why the stated ε is not what the settings give."""
    ASSUMPTION = "assumption"
    """What must be known or true before the claim can be said to hold."""
    NOTE = "note"
    """What does not change the answer."""


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Remark:
    """One thing to say about a claim: what, and what instead.

    A mistake that the figures forgive (the stated ε is large enough all the same) is shown as a note, unless it spoils
    the claim ``always``.
    """

    kind: RemarkKind
    name: str
    text: str
    instead: str = ""
    always: bool = False

    def to_dict(self) -> dict[str, str]:
        """Plain values, for JSON."""
        return {"kind": str(self.kind), "name": self.name, "text": self.text, "instead": self.instead}


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class ClaimLine:
    """One promise: what is stated, and the event of what really happens.

    ``least`` is an event that is certainly no more than what happens, if that is not known exactly: its lower bound
    counts, and the upper bound of ``event``. ``floor`` is a lower bound that an attack shows, in place of both. Without
    ``event`` no upper bound is known; without ``event`` and ``least`` nothing is promised.
    """

    label: str
    epsilon: float | None
    delta: float
    unit: PrivacyUnit
    neighbours: Neighbours
    observer: Observer = Observer.RECIPIENTS
    event: PrivacyEvent | None
    least: PrivacyEvent | None = None
    floor: float | None = None
    remarks: tuple[Remark, ...] = ()

    def remark(self, *more: Remark) -> ClaimLine:
        """The same line with ``more`` remarks."""
        return dataclasses.replace(self, remarks=(*self.remarks, *more))


def mistake(name: str, text: str, instead: str = "", *, always: bool = False) -> Remark:
    """A remark that says why a claim is wrong."""
    return Remark(kind=RemarkKind.MISTAKE, name=name, text=text, instead=instead, always=always)


def assumption(name: str, text: str, instead: str = "") -> Remark:
    """A remark that says what the answer hangs on."""
    return Remark(kind=RemarkKind.ASSUMPTION, name=name, text=text, instead=instead)


def note(name: str, text: str, instead: str = "") -> Remark:
    """A remark that changes nothing."""
    return Remark(kind=RemarkKind.NOTE, name=name, text=text, instead=instead)
