"""Rows about robust rules in a round whose size is left to chance, and what rows ask of such a plan.

A rule works with at least so many updates (:attr:`~quietsum.aggregation.robust.Facts.least`). Where a coin decides for
each party, or where drop-outs are rehearsed, a round may come short of that: then it has no step and is charged all the
same. The chance is Binomial and known before anything is spent.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from quietsum.aggregation import RULES, Rule, find_rule, most_attackers
from quietsum.plan.refusals.row import RefusalRow, taking_part

if TYPE_CHECKING:
    from quietsum.plan.values import PartyFacts, Plan

__all__ = ["LIKELY", "ROWS", "attackers_of", "cohort_of", "list_rule_warnings", "rule_of", "run_ends", "smallest_rate"]

LIKELY = 0.1
"""A plan that ends for want of updates with a larger chance than this is refused."""
_WORTH_A_SENTENCE = 1e-3


def rule_of(plan: Plan) -> Rule | None:
    """The plan's robust rule with what comes before it; None for the mean, and where both do not go together."""
    name, before = plan.aggregation.rule, plan.aggregation.before
    if name not in RULES or (before == "bucketing" and RULES[name].facts.remembers):
        return None
    return find_rule(name, before)


def cohort_of(plan: Plan, parties: Sequence[PartyFacts]) -> int:
    """How many parties a round asks; where a coin decides for each, how many are expected, rounded down."""
    count, drawn = len(taking_part(plan, parties)), plan.federation.sampling
    if drawn.kind == "poisson" and drawn.rate is not None:
        return math.floor(count * drawn.rate * (1 + 1e-12))
    return min(drawn.size or count, count)


def attackers_of(plan: Plan, parties: Sequence[PartyFacts]) -> int:
    """Updates of a round that may be anything: as stated, else a quarter or what the rule withstands; 0 for mean."""
    stated = plan.aggregation.attackers
    rule = rule_of(plan)
    if rule is None or stated is not None:
        return stated or 0
    cohort = cohort_of(plan, parties)
    return max(min(most_attackers(rule, cohort), cohort // 4), 0)


def _arrives(plan: Plan) -> float:
    """The chance that a party's update arrives in a round, as far as the plan says."""
    federation = plan.federation
    drawn = federation.sampling.rate if federation.sampling.kind == "poisson" else None
    return (
        (1.0 if drawn is None else drawn) * (1 - federation.simulate.drop_outs) * (1 - federation.simulate.stragglers)
    )


def _count_asked(plan: Plan, parties: Sequence[PartyFacts]) -> int:
    there = [party for party in taking_part(plan, parties) if party.name not in plan.federation.simulate.refusing]
    return min(plan.federation.sampling.size or len(there), len(there))


def _least(plan: Plan, parties: Sequence[PartyFacts]) -> int:
    rule = rule_of(plan)
    return 1 if rule is None else max(rule.facts.least(attackers_of(plan, parties)), 1)


def _below(least: int, count: int, chance: float) -> float:
    """P(Binomial(count, chance) < least).

    >>> round(_below(2, 3, 0.5), 12)
    0.5
    """
    from scipy.special import bdtr

    if least > count:
        return 1.0
    return float(bdtr(least - 1, count, chance)) if chance < 1 else 0.0


def run_ends(plan: Plan, parties: Sequence[PartyFacts]) -> tuple[float, float]:
    """The chance that a round brings fewer updates than the rule needs, and that more rounds do than may be repeated.

    (0, 0) for the mean, and where nothing is left to chance.
    """
    if rule_of(plan) is None or not taking_part(plan, parties) or plan.aggregation.secure:
        return 0.0, 0.0
    short = _below(_least(plan, parties), _count_asked(plan, parties), _arrives(plan))
    spare = plan.federation.spare_attempts
    from scipy.special import bdtrc

    return short, float(bdtrc(spare, plan.federation.rounds + spare, short)) if short < 1 else 1.0


def smallest_rate(plan: Plan, parties: Sequence[PartyFacts]) -> float | None:
    """The smallest rate, in hundredths, at which the run likely goes through with as many attackers; None if none."""
    import dataclasses

    stated = dataclasses.replace(plan.aggregation, attackers=attackers_of(plan, parties))
    for hundredths in range(1, 101):
        drawn = dataclasses.replace(plan.federation.sampling, rate=hundredths / 100)
        tried = dataclasses.replace(
            plan, aggregation=stated, federation=dataclasses.replace(plan.federation, sampling=drawn)
        )
        if hundredths / 100 > (plan.federation.sampling.rate or 0) and run_ends(tried, parties)[1] <= LIKELY:
            return hundredths / 100
    return None


def _short_cohort(plan: Plan, parties: Sequence[PartyFacts]) -> str:
    random = plan.federation.sampling.kind == "poisson" or _arrives(plan) < 1 or plan.federation.simulate.refusing
    if not random or rule_of(plan) is None or plan.aggregation.secure:
        return ""
    short, ends = run_ends(plan, parties)
    if ends <= LIKELY:
        return ""
    least, attackers = _least(plan, parties), attackers_of(plan, parties)
    return (
        f"aggregation.rule = '{plan.aggregation.rule}' with attackers = {attackers} needs {least} updates a round, and "
        f"{100 * short:.3g} % of rounds bring fewer: the run ends early with a chance of {100 * ends:.3g} %"
    )


ROWS: tuple[RefusalRow, ...] = (
    RefusalRow(
        name="short-cohort-for-rule",
        when=_short_cohort,
        why="a round with fewer updates than the rule needs has no step, and is charged all the same",
        instead="draw more parties, state fewer attackers, or pay for spare_attempts",
    ),
)


def list_rule_warnings(plan: Plan, parties: Sequence[PartyFacts]) -> list[str]:
    """What is allowed with a robust rule and still worth a sentence."""
    told = []
    short, ends = run_ends(plan, parties)
    if _WORTH_A_SENTENCE < ends <= LIKELY:
        told.append(
            f"aggregation.rule = '{plan.aggregation.rule}' needs {_least(plan, parties)} updates a round; "
            f"{100 * short:.2g} % of rounds bring fewer, and the run ends early with a chance of {100 * ends:.2g} %"
        )
    return told
