"""Rows about what a robust rule needs besides updates: something that mixes them first, a root set to try them on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from quietsum.aggregation import RULES
from quietsum.plan.refusals.row import RefusalRow

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


def _no_root(plan: Plan, parties: Sequence[PartyFacts]) -> str:
    rule, task = plan.aggregation.rule, plan.task
    if rule not in RULES or not RULES[rule].facts.needs_trial or ":" in task.name or task.options.get("root"):
        return ""  # a task of one's own may hold a root set without being asked; a run looks for it before it starts
    return f"aggregation.rule = '{rule}' with task = '{task.name}' and no root set"


ROWS = (
    RefusalRow(
        name="rule-without-root",
        when=_no_root,
        why="this rule tries every update on a few unprotected rows, held by the server",
        instead="say [task] options = { root = 100 }, or choose a rule that compares updates with each other",
    ),
    RefusalRow(
        name="before-of-mean",
        when=_before_of_mean,
        why="a mean of mixed updates goes wherever a single one of them pulls it",
        instead='name a rule, for instance rule = "trimmed-mean", or leave before out',
    ),
    RefusalRow(
        name="bucketing-with-memory",
        when=_before_remembers,
        why="buckets are drawn anew in every round, so what is remembered would belong to no party",
        instead='say before = "nnm", or leave it out',
    ),
)
