"""What a plan owes and to whom: datasets, charges and the terms of a run.

A *charge* says which party's dataset pays, for which unit, against whom the protection holds, and by which event.
*Terms* say how a run's charges become ε (one accountant, one relation) and how much the plan may cost itself.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, final

from quietsum.errors import InvalidParameter
from quietsum.ledger.chain.encoding import label
from quietsum.privacy import (
    Budget,
    Composed,
    Diagnostic,
    FixedSizeSampled,
    Group,
    Neighbours,
    Observer,
    PoissonSampled,
    PrivacyEvent,
    PrivacyUnit,
    Repeated,
    from_dict,
    require_event,
    to_dict,
)
from quietsum.validate import probability, whole_number

__all__ = ["ACCOUNTINGS", "Charge", "Dataset", "Terms", "budget_from", "budget_to", "draws_twice", "require_charges"]

ACCOUNTINGS = ("exact", "rdp", "moments")
"""How a run may be priced: the names that a plan may say."""


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Dataset:
    """A party's data by the name that the party declares, never by content.

    ``size`` is declared and public. ``public`` is the reason why its records need no protection; empty means protected.
    """

    party: str
    dataset: str
    size: int
    public: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "party", label("party", self.party))
        object.__setattr__(self, "dataset", label("dataset", self.dataset))
        object.__setattr__(self, "size", whole_number("size", self.size, 0))
        if not isinstance(self.public, str):
            raise InvalidParameter("public", self.public, "is not a text", "say why the data is public, or leave it ''")
        object.__setattr__(self, "public", self.public.strip())

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON-ready values."""
        return dataclasses.asdict(self)


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Charge:
    """One party's dataset pays for one event.

    ``event`` None is a release without protection: its ε is infinite. ``failure`` bounds how far, in total variation,
    the randomness really used may be from the event's ideal law; it is paid from δ.

    >>> from quietsum import Gaussian
    >>> charge = Charge(
    ...     party="Basel", dataset="heart", unit=PrivacyUnit.RECORD, event=Gaussian(noise_multiplier=2.0)
    ... )
    >>> Charge.from_dict(charge.to_dict()) == charge
    True
    """

    party: str
    dataset: str
    unit: PrivacyUnit
    event: PrivacyEvent | None
    observers: tuple[Observer, ...] = (Observer.SERVER, Observer.RECIPIENTS)
    failure: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "party", label("party", self.party))
        object.__setattr__(self, "dataset", label("dataset", self.dataset))
        if not isinstance(self.unit, PrivacyUnit):
            raise InvalidParameter("unit", self.unit, f"is not one of {[str(member) for member in PrivacyUnit]}")
        if self.event is not None:
            require_event("event", self.event, "pass an event, or None for an unprotected release")
        observers = tuple(self.observers)
        if not observers or len(set(observers)) < len(observers):
            raise InvalidParameter("observers", observers, "must name each observer once, and at least one")
        if not all(isinstance(observer, Observer) for observer in observers):
            raise InvalidParameter("observers", observers, f"are not among {[str(member) for member in Observer]}")
        object.__setattr__(self, "observers", tuple(sorted(observers, key=list(Observer).index)))
        object.__setattr__(self, "failure", probability("failure", self.failure) + 0.0)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON-ready values that :meth:`from_dict` reads back."""
        return {
            "party": self.party,
            "dataset": self.dataset,
            "unit": self.unit.value,
            "event": None if self.event is None else to_dict(self.event),
            "observers": [observer.value for observer in self.observers],
            "failure": self.failure,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Charge:
        """The charge that :meth:`to_dict` wrote."""
        event = values["event"]
        return cls(
            party=values["party"],
            dataset=values["dataset"],
            unit=PrivacyUnit(values["unit"]),
            event=None if event is None else from_dict(event),
            observers=tuple(Observer(observer) for observer in values["observers"]),
            failure=values["failure"],
        )


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Terms:
    """How a run is accounted for, and what it may cost by its own plan.

    ``limits`` hold at most one budget a unit: the forecast of the whole plan, spare attempts included. They are empty
    for a plan without protection.

    ``enrolled`` is set in the books that a site keeps of itself, and None in a coordinator's. Those units are charged
    for the whole plan at once, as round 0, since a site never hears of the rounds it was not drawn for (rule 1); the
    others when it is asked. Attempts that never reached the site are missing in its books, so theirs may skip numbers.
    """

    accounting: str = "exact"
    neighbours: Neighbours = Neighbours.ADD_REMOVE
    limits: tuple[Budget, ...] = ()
    enrolled: tuple[PrivacyUnit, ...] | None = None

    def __post_init__(self) -> None:
        if self.accounting not in ACCOUNTINGS:
            raise InvalidParameter("accounting", self.accounting, "is unknown", "choose 'exact', 'rdp' or 'moments'")
        if not isinstance(self.neighbours, Neighbours):
            raise InvalidParameter("neighbours", self.neighbours, f"is not one of {[str(n) for n in Neighbours]}")
        if not isinstance(self.limits, Iterable):
            raise InvalidParameter("limits", self.limits, "is not a list of budgets", "pass a tuple of Budget")
        limits = tuple(self.limits)
        if not all(isinstance(limit, Budget) for limit in limits):
            raise InvalidParameter("limits", limits, "holds what is no budget", "pass Budget(epsilon=..., delta=...)")
        if len({limit.unit for limit in limits}) < len(limits):
            raise InvalidParameter("limits", limits, "names a unit twice", "one budget a unit; units are never added")
        object.__setattr__(self, "limits", limits)
        if self.enrolled is not None:
            enrolled = tuple(self.enrolled)
            if not all(isinstance(unit, PrivacyUnit) for unit in enrolled) or len(set(enrolled)) < len(enrolled):
                raise InvalidParameter("enrolled", enrolled, "does not name units, each once", "pass PrivacyUnit")
            object.__setattr__(self, "enrolled", tuple(sorted(enrolled)))

    def limit(self, unit: PrivacyUnit) -> Budget | None:
        """What the plan may cost one ``unit``."""
        for limit in self.limits:
            if limit.unit is unit:
                return limit
        return None

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON-ready values that :meth:`from_dict` reads back."""
        return {
            "accounting": self.accounting,
            "neighbours": self.neighbours.value,
            "limits": [budget_to(limit) for limit in self.limits],
            **({} if self.enrolled is None else {"enrolled": [unit.value for unit in self.enrolled]}),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Terms:
        """The terms that :meth:`to_dict` wrote."""
        return cls(
            accounting=values["accounting"],
            neighbours=Neighbours(values["neighbours"]),
            limits=tuple(budget_from(limit) for limit in values["limits"]),
            enrolled=tuple(PrivacyUnit(unit) for unit in values["enrolled"]) if "enrolled" in values else None,
        )


def budget_to(budget: Budget) -> dict[str, Any]:
    """A budget as plain values."""
    return {"unit": budget.unit.value, "epsilon": budget.epsilon, "delta": budget.delta}


def budget_from(values: Mapping[str, Any]) -> Budget:
    """The budget that :func:`budget_to` wrote; other keys are ignored."""
    return Budget(epsilon=values["epsilon"], delta=values["delta"], unit=PrivacyUnit(values["unit"]))


def require_charges(charges: Iterable[object]) -> tuple[Charge, ...]:
    """``charges`` as a tuple; what is no charge is refused, a diagnostic by its name."""
    found = []
    for charge in charges:
        if isinstance(charge, Diagnostic):
            require_event("charges", charge)
        if not isinstance(charge, Charge):
            raise InvalidParameter(
                "charges", charge, "is no charge", "pass Charge(party=…, dataset=…, unit=…, event=…)"
            )
        found.append(charge)
    return tuple(found)


def draws_twice(event: PrivacyEvent, drawn: bool = False) -> bool:
    """Whether a draw stands around another draw somewhere in ``event``."""
    match event:
        case PoissonSampled(event=inner) | FixedSizeSampled(event=inner):
            return drawn or draws_twice(inner, True)
        case Repeated(event=inner) | Group(event=inner):
            return draws_twice(inner, drawn)
        case Composed(events=parts):
            return any(draws_twice(part, drawn) for part in parts)
    return False
