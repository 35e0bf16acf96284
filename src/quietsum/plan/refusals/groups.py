"""Rows about random groups: how many honest a group's sum holds, and how many groups a few attackers touch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from quietsum.aggregation import RULES, most_attackers
from quietsum.plan.refusals.robust import rule_of
from quietsum.plan.refusals.row import RefusalRow, taking_part

if TYPE_CHECKING:
    from quietsum.plan.groups import Grouping
    from quietsum.plan.values import PartyFacts, Plan

__all__ = ["ROWS", "has_groups", "hiding_enough", "list_group_warnings"]


def has_groups(plan: Plan) -> bool:
    """Whether masked sums are over random groups."""
    return plan.aggregation.secure and plan.aggregation.groups > 1


def _cohort(plan: Plan, parties: Sequence[PartyFacts]) -> int:
    count = len(taking_part(plan, parties))
    return min(plan.federation.sampling.size or count, count)


def _seat(plan: Plan, parties: Sequence[PartyFacts], groups: int | None = None) -> Grouping | None:
    """The groups that the plan asks for, or so many; None where there are none, or some would hold one party."""
    import dataclasses

    from quietsum.plan.groups import grouping
    from quietsum.plan.refusals.secure import distributing_key

    if groups is not None:
        plan = dataclasses.replace(plan, aggregation=dataclasses.replace(plan.aggregation, groups=groups))
    count = _cohort(plan, parties)
    if not has_groups(plan) or count < 2 * plan.aggregation.groups:
        return None
    return grouping(plan, count, in_shares=bool(distributing_key(plan)))


def _honest(plan: Plan, seated: Grouping) -> int:
    """Honest members that the smallest sum of a group holds, by what the plan states."""
    stated, size = plan.aggregation, seated.smallest
    lost = 0 if stated.drop_outs is None else math.floor(size * stated.drop_outs * (1 + 1e-12))
    if stated.drop_outs is None and stated.threshold is not None and size < 50:
        lost = max(size - stated.threshold, 0)
    return size - lost - seated.inside


def _few_seats(plan: Plan, parties: Sequence[PartyFacts]) -> str:
    count, groups = _cohort(plan, parties), plan.aggregation.groups
    if not has_groups(plan) or not count or count // groups >= 4:
        return ""
    most = count // 4
    near = f" ({most} groups of four or more would do)" if most > 2 else ""
    return f"aggregation.groups = {groups} of {count} parties leaves {count // groups} in a group{near}"


def hiding_enough(plan: Plan, parties: Sequence[PartyFacts]) -> int | None:
    """The most groups, fewer than the plan's, whose sums hold three honest members; None where none do."""
    from quietsum.secagg import FEWEST_IN_GROUP

    others = (_seat(plan, parties, groups) for groups in range(plan.aggregation.groups - 1, 2, -1))
    return next((one.count for one in others if one is not None and _honest(plan, one) >= FEWEST_IN_GROUP), None)


def _few_honest(plan: Plan, parties: Sequence[PartyFacts]) -> str:
    from quietsum.secagg import FEWEST_IN_GROUP

    seated = _seat(plan, parties)
    if seated is None or seated.smallest < 4 or _honest(plan, seated) >= FEWEST_IN_GROUP:
        return ""
    most = hiding_enough(plan, parties)
    near = f" ({most} groups would do)" if most else ""
    return (
        f"aggregation.groups = {seated.count} of {seated.parties} parties with colluders = {seated.colluders}: "
        f"{seated.inside} of them may sit in one group, and its smallest sum would hold "
        f"{max(_honest(plan, seated), 0)} honest{near}"
    )


def _contaminates(plan: Plan, parties: Sequence[PartyFacts]) -> str:
    from quietsum.plan.groups import CONTAMINATED, chances, most_in_bound, nearest_groups

    seated = _seat(plan, parties)
    if seated is None or rule_of(plan) is None:
        return ""
    count, groups, attackers = seated.parties, seated.count, max(seated.attackers, 1)
    found = chances(count, groups, attackers=attackers)
    if found.in_bound or plan.aggregation.attackers == 0:
        return ""
    near, most = nearest_groups(count, attackers), most_in_bound(count, groups)
    ways = [f"{near} groups, of {count // near} or so, would do"] if near and count // near >= 4 else []
    ways += [f"{groups} groups bear {most}"] if most else []
    return (
        f"aggregation.groups = {groups} with {attackers} attackers among {count} parties: they would sit in "
        f"{100 * found.share:.0f} % of the groups, {100 * CONTAMINATED:.0f} % is the bound, and in more than half of "
        f"them with chance {found.majority:.2g}" + (f" ({'; '.join(ways)})" if ways else "")
    )


def _with_mean(plan: Plan, parties: Sequence[PartyFacts]) -> str:
    alike = has_groups(plan) and plan.aggregation.rule == "mean"
    return f"aggregation.groups = {plan.aggregation.groups} with rule = 'mean'" if alike else ""


def _few_for_rule(plan: Plan, parties: Sequence[PartyFacts]) -> str:
    name, groups, rule = plan.aggregation.rule, plan.aggregation.groups, rule_of(plan)
    if not has_groups(plan) or rule is None:
        return ""
    least = rule.facts.least(0 if plan.aggregation.attackers == 0 else 1)
    return "" if least <= groups else f"aggregation.groups = {groups} with rule = '{name}', which needs {least} or more"


def _remembers(plan: Plan, parties: Sequence[PartyFacts]) -> str:
    name = plan.aggregation.rule
    keeps = has_groups(plan) and name in RULES and RULES[name].facts.remembers
    return f"aggregation.groups = {plan.aggregation.groups} with rule = '{name}'" if keeps else ""


ROWS: tuple[RefusalRow, ...] = (
    RefusalRow(
        name="groups-with-mean",
        when=_with_mean,
        why="the mean of the groups' means is the mean of all, and one sum over all tells less and has less noise",
        instead='leave groups out, or choose a robust rule, "median" say',
    ),
    RefusalRow(
        name="groups-too-small",
        when=_few_seats,
        why="one member always counts as a colluder, and fewer than three honest ones hide no update",
        instead="take fewer groups or more parties",
    ),
    RefusalRow(
        name="groups-few-honest",
        when=_few_honest,
        why="fewer than three honest members hide no update: one of them who tells, and the other's update is known",
        instead="take fewer and larger groups, allow fewer drop-outs, or count fewer colluders if that is true",
    ),
    RefusalRow(
        name="groups-contaminated",
        when=_contaminates,
        why="a rule between group means holds only while most groups hold no party that may send anything",
        instead="take more and smaller groups, or state fewer attackers if that is true",
    ),
    RefusalRow(
        name="groups-few-for-rule",
        when=_few_for_rule,
        why="the rule between the groups sees one mean a group",
        instead="take more groups, or a rule that needs fewer (median)",
    ),
    RefusalRow(
        name="groups-with-memory",
        when=_remembers,
        why="it keeps a record of each party, and groups are drawn anew in every round",
        instead="choose another rule",
    ),
)


def list_group_warnings(plan: Plan, parties: Sequence[PartyFacts]) -> list[str]:
    """What is allowed with groups and still worth a sentence."""
    seated, name, rule = _seat(plan, parties), plan.aggregation.rule, rule_of(plan)
    if seated is None or rule is None:
        return []
    told = []
    most = most_attackers(rule, seated.count)
    beyond = seated.touched.beyond(max(most, 0))
    if beyond > 0.01:
        told.append(
            f"aggregation.groups = {seated.count} with {seated.attackers} attackers: in {100 * beyond:.0f} % of rounds "
            f"more than {most} groups hold one, and rule = '{name}' withstands {most}; smaller groups make it rarer"
        )
    simulated = plan.federation.simulate.drop_outs
    if 0 < simulated < 1:
        lost = _lost_groups(plan, seated, simulated)
        if lost > 0.01:
            told.append(
                f"federation.simulate.drop_outs = {simulated:g} loses a group of {seated.smallest} with chance "
                f"{lost:.2g} a round: it is left out as a whole; a larger drop_outs keeps it, with more noise"
            )
    return told


def _lost_groups(plan: Plan, seated: Grouping, chance: float) -> float:
    """The chance that one group loses more members than it may."""
    from quietsum.secagg import FEWEST_IN_GROUP

    stated, size = plan.aggregation, seated.smallest
    if stated.drop_outs is not None:
        may = math.floor(size * stated.drop_outs * (1 + 1e-12))
    else:
        may = max(size - max(stated.threshold or 2 * size // 3 + 1, seated.inside + FEWEST_IN_GROUP), 0)
    kept = (math.comb(size, gone) * chance**gone * (1 - chance) ** (size - gone) for gone in range(may + 1))
    return max(0.0, 1 - math.fsum(kept))
