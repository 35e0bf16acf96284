"""What would break a promise: one table of rows, each with a when, a why and an instead.

A plan is held against every row before anything starts, and all rows that apply are stated together. A row's ``when``
answers with what it found, in words, or with "" where the row does not apply; so a row can be read, tested and added on
its own. What a single value may hold is not decided here but by the value itself (:mod:`quietsum.plan.values`).

>>> from quietsum.plan import AggregationPlan, PartyFacts, Plan, PrivacyPlan, RecordPlan
>>> sites = [PartyFacts(name="north", dataset="visits", size=300), PartyFacts(name="south", dataset="visits", size=90)]
>>> promise = PrivacyPlan(record=RecordPlan(epsilon=1, noise_multiplier=2, delta=1e-4))
>>> for row in find_refusals(Plan(privacy=promise), sites):
...     print(row.name)
noise-with-target
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from quietsum.errors import PlanRefused
from quietsum.plan.refusals import clients, drills, general, groups, robust, secure, trials
from quietsum.plan.refusals.nearest import Change, nearest as _nearest
from quietsum.plan.refusals.robust import cohort_of
from quietsum.plan.refusals.row import RefusalRow, client_level, client_of, largest, record_of, taking_part

if TYPE_CHECKING:  # the plan asks this package, so at run time it knows nothing of the plan
    from quietsum.plan.values import PartyFacts, Plan

__all__ = [
    "REFUSALS",
    "Change",
    "RefusalRow",
    "check_plan",
    "cohort_of",
    "explain_refusal",
    "find_refusals",
    "nearest",
    "taking_part",
    "warnings",
]  # fmt: skip

REFUSALS: tuple[RefusalRow, ...] = (
    *general.ROWS, *robust.ROWS, *trials.ROWS, *secure.ROWS, *groups.ROWS, *clients.ROWS, *drills.ROWS,
)  # fmt: skip
"""The table. A test asks each row for a plan that it refuses and a neighbour that it lets pass."""


def check_plan(plan: Plan, parties: Sequence[PartyFacts]) -> None:
    """Raise :class:`~quietsum.errors.PlanRefused` with one line for each row that applies, and the nearest plans."""
    messages = [message for row in REFUSALS if (message := row.message(plan, parties))]
    if messages:
        raise explain_refusal(messages, plan, parties)


def explain_refusal(messages: Sequence[str], plan: Plan, parties: Sequence[PartyFacts]) -> PlanRefused:
    """The refusal of ``plan`` for these reasons, with the nearest plans in its last line and in its values."""
    near = nearest(plan, parties)
    told = [f"  nearest possible plan: {'; or '.join(str(change) for change in near)}"] if near else []
    return PlanRefused("\n".join([*messages, *told]), nearest=tuple(dict(change.keys) for change in near))


def nearest(plan: Plan, parties: Sequence[PartyFacts]) -> tuple[Change, ...]:
    """Up to three changes of the fewest keys after which no row applies; () where none is near."""
    return _nearest(plan, parties, REFUSALS)


def find_refusals(plan: Plan, parties: Sequence[PartyFacts]) -> tuple[RefusalRow, ...]:
    """The rows that apply."""
    return tuple(row for row in REFUSALS if row.when(plan, parties))


def warnings(plan: Plan, parties: Sequence[PartyFacts]) -> tuple[str, ...]:
    """What is allowed and still worth a sentence."""
    told = drills.list_drill_warnings(plan)
    delta, most = record_of(plan).delta, largest(plan, parties)
    if plan.privacy.style.records and delta is not None and most and delta > 1 / (10 * most):
        told.append(
            f"privacy.record.delta = {delta:g} is more than 1/(10 n) = {1 / (10 * most):g} for the {most:,} "
            "records of the largest data set; δ is the chance of the worst case, so keep it small against one in n"
        )
    if plan.privacy.style == "none":
        told += [
            f"style = 'none' spends without limit, and dataset '{party.dataset}' of party '{party.name}' is not "
            "declared public by the task; the ledger refuses it unless it was declared public there"
            for party in taking_part(plan, parties)
            if not party.public
        ]
    told += _about_clients(plan, len(taking_part(plan, parties)))
    told += secure.list_secure_warnings(plan, parties)
    told += robust.list_rule_warnings(plan, parties)
    told += groups.list_group_warnings(plan, parties)
    if plan.federation.sampling.kind != "everyone" and plan.privacy.style.records:
        told.append(
            "federation.sampling draws parties by chance; records gain nothing from that (the steps of a round share "
            "one draw), so every party is charged every round in full"
        )
    if plan.privacy.noise == "fast" and plan.privacy.style != "none":
        told.append("privacy.noise = 'fast' is not floating-point safe; the guarantee says so")
    return tuple(told)


def _about_clients(plan: Plan, count: int) -> list[str]:
    if not client_level(plan):
        return []
    client, told = client_of(plan), []
    if client.delta is not None and count and client.delta > 1 / (10 * count):
        told.append(
            f"privacy.client.delta = {client.delta:g} is more than 1/(10 N) = {1 / (10 * count):g} for {count:,} "
            "clients; δ is the chance of the worst case, so keep it small against one in N"
        )
    if client.noise_at == "server":
        told.append(
            "privacy.client.noise_at = 'server' protects clients against recipients of the model; the server itself "
            "sees each client's clipped update"
        )
    elif client.noise_at == "party" and plan.federation.sampling.kind != "everyone":
        told.append(
            "privacy.client.noise_at = 'party': a party that is not drawn adds no noise either, so the draw of parties "
            "amplifies nothing, and every party is charged every round in full"
        )
    return told
