"""People with several records: bound them before anything is drawn, and say what the whole person pays.

One patient with ten visits is not ten strangers. Under record-level privacy ε bounds what one *record* tells; a person
with k records is protected less, by how much depends on k. So k is bounded first: of every person at most ``k`` records
are kept, which of them depends on that person's own records alone, and then the cost to a whole person is that of a
group of k in every step (Charles et al. 2024 call this example-level sampling with a user-level bound):

    (Σ_j over the person's k records in the batch) moves the sum by at most Binomial(k, q) · C

whose dominating pair is a mixture of k + 1 Gaussians, and :class:`~quietsum.privacy.events.Group` has it exactly.

One record's own price rises by the bound: where a person holds more than k, a record that leaves lets another in. Under
add-or-remove it costs what a replaced record costs, so with k = 1 a record costs *more* than a whole person does:
taking a person out moves the sum by C, taking out one of several records of a person by up to 2C.

>>> bounded(["ada", "bob", "ada", "ada", "cy"], most=2).tolist()
[0, 1, 2, 4]
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from quietsum.errors import InvalidParameter, PlanRefused, UnsupportedEvent
from quietsum.ledger import price_event
from quietsum.privacy import Guarantee, Neighbours, PrivacyEvent, PrivacyUnit, person_event
from quietsum.validate import whole_number

if TYPE_CHECKING:  # torch is theirs: bounding people needs none
    from quietsum.learning.config import TrainingPlan
    from quietsum.learning.records import Records

__all__ = ["as_priced_today", "bounded", "bounded_records", "check_person", "person_event", "person_guarantee"]


def bounded(people: Sequence[Any] | NDArray[Any], *, most: int) -> NDArray[np.int64]:
    """The places of the records that are kept: of every person the first ``most``, in their order.

    Guarantees: whether a record is kept depends on records of the same person alone, so that a person who comes or goes
    changes at most ``most`` of the records kept. A single record that leaves may let the next one of its person in: at
    most one out and one in (:class:`~quietsum.privacy.events.OneInOneOut`). One that is replaced and keeps its person
    moves no other.
    """
    most = whole_number("max_records", most, 1, "a person without records is not in the data")
    names = np.asarray(people)
    if names.ndim != 1:
        raise InvalidParameter("people", names.shape, "is not one name per record", "pass a list with one entry a row")
    if names.dtype.kind == "f" and not np.all(np.isfinite(names)):
        problem = "hold values that are not finite, so that it is unknown whose records those are"
        raise InvalidParameter("people", "…", problem, "give every record the number of its person")
    if not len(names):
        return np.empty(0, dtype=np.int64)
    _, person = np.unique(names, return_inverse=True)
    order = np.argsort(person, kind="stable")
    starts = np.flatnonzero(np.diff(person[order], prepend=-1))
    rank = np.arange(len(order)) - np.repeat(starts, np.diff(starts, append=len(order)))
    return np.sort(order[rank < most]).astype(np.int64)


def bounded_records(records: Records, people: Sequence[Any] | NDArray[Any] | None, most: int | None) -> Records:
    """The records that are used: all of them, or where a bound is stated at most so many of each person."""
    if most is None and people is None:
        return records
    if most is None or people is None:
        missing, other = ("people", "max_records") if people is None else ("max_records", "people")
        remedy = "state both: PrivacyConfig(max_records=k), and train(…, people=one name per record)"
        raise InvalidParameter(missing, None, f"is missing beside {other}", remedy)
    if len(people) != len(records):
        problem = "does not name a person for each record"
        raise InvalidParameter("people", f"of length {len(people)}", problem, "pass as many names as records")
    return records.only(bounded(people, most=most))


def check_person(plan: TrainingPlan, *, size: int, declared: bool) -> None:
    """Refuse, before anything is charged, a plan whose price per person is not known.

    ``declared`` says that the number of records is declared and stays, whoever is replaced by whom.
    """
    if plan.neighbours is Neighbours.REPLACE_ONE and size > 1 and not declared:
        raise PlanRefused(
            f"max_records = {size} under replace-one: a person may be replaced by one with fewer records, and the "
            "number of records, which is taken as public here, would tell; declare public_size, or use zero-out"
        )
    try:
        person_guarantee(plan, size=size)
    except UnsupportedEvent as error:
        raise PlanRefused(f"max_records = {size} states a price per person, and there is none: {error}") from None


def as_priced_today(stated: Guarantee, about: Mapping[str, Any]) -> Guarantee:
    """The guarantee in the header of a model; one of before prices had a version is put right where they changed.

    Such a header has no ``pricing``, and has ``person`` where people's records were bounded.
    """
    if "pricing" in about or "person" not in about or stated.epsilon == 0:
        return stated
    from quietsum.learning.schedules import Stage, run_event  # torch's side: bounding people needs none

    plan = about["plan"]
    stages = [Stage(**stage) for stage in plan["stages"]]
    event = run_event(stages, plan["sample_rate"], plan["noise_type"], bounded=True)
    found = price_event(event, delta=stated.delta, accounting=plan["accounting"], neighbours=stated.neighbours)
    if found.epsilon == stated.epsilon:
        return stated
    told = (*found.warnings, f"corrected: ε = {stated.epsilon:.6g} was stated, by earlier prices", *stated.warnings)
    lower = found.epsilon_lower if stated.epsilon_lower else 0.0
    return dataclasses.replace(stated, epsilon=found.epsilon, epsilon_lower=lower, warnings=told)


def person_guarantee(plan: TrainingPlan, *, size: int) -> Guarantee:
    """ε of a person with at most ``size`` records, at the plan's δ, by the plan's accountant."""
    return event_guarantee(
        plan.event(), size=size, delta=plan.delta, accounting=plan.accounting, neighbours=plan.neighbours
    )


def event_guarantee(
    event: PrivacyEvent, *, size: int, delta: float, accounting: str = "exact",
    neighbours: Neighbours = Neighbours.ADD_REMOVE,
) -> Guarantee:  # fmt: skip
    """What ``event``, stated for one record, costs a person with ``size`` of them."""
    priced = person_event(event, size)
    return price_event(priced, delta=delta, accounting=accounting, neighbours=neighbours, unit=PrivacyUnit.PERSON)
