"""Robust rules: how updates become one step where some of them may be anything, and what each rule cannot do."""

from __future__ import annotations

from quietsum.aggregation.robust.before import BEFORE, Before
from quietsum.aggregation.robust.fold import RobustFold, RobustState
from quietsum.aggregation.robust.registry import RULES, most_attackers, rule_named
from quietsum.aggregation.robust.rule import Facts, Rule, Sent, Trial, Verdict

__all__ = [
    "BEFORE",
    "RULES",
    "Before",
    "Facts",
    "RobustFold",
    "RobustState",
    "Rule",
    "Sent",
    "Trial",
    "Verdict",
    "most_attackers",
    "rule_named",
]
