"""Robust rules: how updates become one step where some of them may be anything, and what each rule cannot do."""

from __future__ import annotations

from quietsum.aggregation.robust.before import BEFORE, Before
from quietsum.aggregation.robust.fold import RobustFold, RobustState
from quietsum.aggregation.robust.registry import RULES, find_rule, most_attackers
from quietsum.aggregation.robust.rows.distances import beyond_memory, refuse_beyond_memory
from quietsum.aggregation.robust.rule import Facts, Matrix, Rule, Sent, Trial, Vector, Verdict, measure_memory
from quietsum.aggregation.robust.rules.clipped import CenteredClipping, NormBounded
from quietsum.aggregation.robust.rules.trust import TrustedByTrial

__all__ = [
    "BEFORE",
    "RULES",
    "Before",
    "CenteredClipping",
    "Facts",
    "Matrix",
    "NormBounded",
    "RobustFold",
    "RobustState",
    "Rule",
    "Sent",
    "Trial",
    "TrustedByTrial",
    "Vector",
    "Verdict",
    "beyond_memory",
    "find_rule",
    "measure_memory",
    "most_attackers",
    "refuse_beyond_memory",
]
