"""Secure aggregation as a plan asks for it: how many shares unmask, how small a cohort may get, who may collude.

The *floor* is the smallest cohort whose sum the parties help to unmask; they insist on it themselves, also if the
server lies. Of these, ``colluders`` are assumed to tell the server all they know, at least one, since each party
receives the model and knows its own share. h = floor − colluders honest inputs are left to hide one of them, and
distributed noise is calibrated to h and charged at h (rules 8 and 20). In groups all of this is said of one group, and
how many colluders it may hold is a question of chance (:mod:`quietsum.plan.groups`).

>>> from quietsum.plan import AggregationPlan, PartyFacts, Plan
>>> banks = [PartyFacts(name=f"bank-{i}", dataset=f"cards-{i}", size=1000) for i in range(5)]
>>> found = secure_plan(Plan(aggregation=AggregationPlan(secure=True, drop_outs=0.2)), banks)
>>> found.parameters.threshold, found.floor, found.honest
(4, 4, 3)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, final

from quietsum.plan.groups import Grouping, grouping
from quietsum.plan.values import PartyFacts, Plan

if TYPE_CHECKING:
    from quietsum.secagg import Parameters

__all__ = ["MAX_UPDATE", "SecurePlan", "cohort_size", "secure_plan"]

MAX_UPDATE = 100.0
"""The ball for updates that neither clip nor noise bounds, where a plan states none."""
_DROP_OUTS = 0.1  # what the choice of (k, t) allows for where a plan states neither drop-outs nor a threshold


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class SecurePlan:
    """The public parameters of every secure round of a run.

    ``simulated`` says that one holder deals out all parties: it knows every input, so what runs is the protocol and not
    its protection. ``bits`` is the width of a masked coordinate. ``minimum`` is the plan's ``minimum_parties``, which
    parties insist on as well, of a sum over all. ``grouping`` is None where there is one sum; otherwise ``floor``,
    ``honest`` and ``may_drop`` are those of one group.
    """

    parameters: Parameters
    bits: int = 32
    simulated: bool = False
    minimum: int = 1
    grouping: Grouping | None = None

    @property
    def cohort(self) -> int:
        """Parties that are asked in a round."""
        return self.parameters.parties

    @property
    def floor(self) -> int:
        """The smallest cohort whose sum parties help to unmask."""
        if self.grouping is not None:
            return self.parameters.survivors
        return min(max(self.parameters.survivors, self.minimum), self.cohort)

    @property
    def colluders(self) -> int:
        """Parties, of one group where there are groups, that are assumed to tell the server all they know."""
        return self.parameters.corrupt

    @property
    def seats(self) -> int:
        """Parties whose sum is opened if no party drops out: the cohort, or the smallest group."""
        return self.parameters.smallest

    @property
    def sums(self) -> str:
        """How many sums the server sees in a round, in words."""
        if self.grouping is None:
            return "one sum"
        return f"{self.grouping.count} sums, one of each random group of {self.seats},"

    @property
    def honest(self) -> int:
        """h: honest inputs in every sum, at the least."""
        return self.floor - self.colluders

    @property
    def may_drop(self) -> int:
        """Parties that a round, or a group of it, may lose."""
        return self.seats - self.floor


def cohort_size(plan: Plan, parties: Sequence[PartyFacts]) -> int:
    """How many parties a round asks; the registered ones where a coin decides for each."""
    return plan.federation.sampling.size or len(parties)


def secure_plan(plan: Plan, parties: Sequence[PartyFacts]) -> SecurePlan | None:
    """What ``plan`` asks for with these registered parties; None without secure aggregation.

    Omitted drop-outs are as many as the threshold allows. Raises :class:`~quietsum.errors.PlanRefused` if no
    parameters fit.
    """
    stated = plan.aggregation
    if not stated.secure:
        return None
    from quietsum.secagg import SPARSE_FROM, choose_groups, choose_parameters

    count, threshold = cohort_size(plan, parties), stated.threshold
    holders = {facts.account for facts in parties}
    simulated = len(holders) == 1 and len(parties) > 1
    seated = grouping(plan, count, in_shares=_in_shares(plan))
    if seated is not None:
        small = choose_groups(
            count, seated.count, corrupt=seated.inside, drop_outs=stated.drop_outs, adversary=stated.adversary,
            threshold=threshold,
        )  # fmt: skip
        return SecurePlan(
            parameters=small, bits=stated.bits, simulated=simulated, minimum=plan.federation.minimum_parties,
            grouping=seated,
        )  # fmt: skip
    omitted = stated.drop_outs is None
    lost = stated.drop_outs
    if lost is None:
        lost = 0.0 if threshold is not None and count < SPARSE_FROM else _DROP_OUTS
    found = choose_parameters(
        count, corrupt=stated.colluders, drop_outs=lost, adversary=stated.adversary, threshold=threshold
    )
    if omitted and found.complete:
        found = dataclasses.replace(found, may_drop=count - found.threshold)
    return SecurePlan(
        parameters=found,
        bits=stated.bits,
        simulated=simulated,
        minimum=plan.federation.minimum_parties,
    )


def _in_shares(plan: Plan) -> bool:
    """Whether parties add noise in shares, so that ε rests on how many honest ones a sum holds."""
    privacy = plan.privacy
    records = privacy.style.records and privacy.record is not None and privacy.record.noise_at == "distributed"
    return records or (
        privacy.style.clients and privacy.client is not None and privacy.client.noise_at == "distributed"
    )
