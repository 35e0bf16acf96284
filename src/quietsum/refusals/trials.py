"""Rows about what a robust rule needs besides updates: something that mixes them first, a root set to try them on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from quietsum.aggregation.robust import RULES
from quietsum.refusals.row import Refusal

if TYPE_CHECKING:
    from quietsum.plan.values import PartyFacts, Plan

__all__ = ["ROWS"]


def _before_of_mean(plan: Plan, parties: Sequence[PartyFacts]) -> str:
    asked = plan.aggregation
    return f"aggregation.before = '{asked.before}' with rule = 'mean'" if asked.before and asked.rule == "mean" else ""


def _before_remembers(plan: Plan, parties: Sequence[PartyFacts]) -> str:
    asked = plan.aggregation
    if asked.before != "bucketing" or asked.rule not in RULES or not RULES[asked.rule].facts.remembers:
        return ""
    return f"aggregation.before = 'bucketing' with rule = '{asked.rule}', which remembers every party"


ROWS = (
    Refusal(
        name="before-of-mean",
        when=_before_of_mean,
        why="a mean of mixed updates goes wherever a single one of them pulls it",
        instead='name a rule, for instance rule = "trimmed-mean", or leave before out',
    ),
    Refusal(
        name="bucketing-with-memory",
        when=_before_remembers,
        why="buckets are drawn anew in every round, so what is remembered would belong to nobody",
        instead='say before = "nnm", or leave it out',
    ),
)
