"""The rules by the names that ``run.toml`` knows. The mean is not among them: it is a fold of its own, with weights."""

from __future__ import annotations

from quietsum.aggregation.robust.before import Before
from quietsum.aggregation.robust.rule import Rule
from quietsum.aggregation.robust.rules.bulyan import Bulyan
from quietsum.aggregation.robust.rules.clipped import CenteredClipping, NormBounded
from quietsum.aggregation.robust.rules.dnc import DivideAndConquer
from quietsum.aggregation.robust.rules.flame import Flame
from quietsum.aggregation.robust.rules.fltrust import FLTrust
from quietsum.aggregation.robust.rules.foolsgold import FoolsGold
from quietsum.aggregation.robust.rules.geometric import GeometricMedian
from quietsum.aggregation.robust.rules.krum import Krum, MultiKrum
from quietsum.aggregation.robust.rules.order import CoordinateMedian, TrimmedMean
from quietsum.aggregation.robust.rules.signguard import SignGuard
from quietsum.aggregation.robust.rules.trust import TrustedByTrial
from quietsum.errors import InvalidParameter

__all__ = ["RULES", "find_rule", "most_attackers"]

_RULES: tuple[Rule, ...] = (
    NormBounded(),
    CoordinateMedian(),
    TrimmedMean(),
    GeometricMedian(),
    Krum(),
    MultiKrum(),
    CenteredClipping(),
    SignGuard(),
    SignGuard(form="sim"),
    SignGuard(form="dist"),
    Bulyan(),
    DivideAndConquer(),
    FoolsGold(),
    Flame(),
    FLTrust(),
    TrustedByTrial(),
)

RULES: dict[str, Rule] = {rule.name: rule for rule in _RULES}
"""Every rule but the mean, with its defaults."""


def find_rule(name: str, before: str = "") -> Rule:
    """The rule that a plan names, with what it does to updates ``before`` the rule sees them.

    >>> find_rule("bulyan", "bucketing").facts.least(1)
    13
    """
    if before:
        return Before(rule=find_rule(name), kind=before)
    if name not in RULES:
        raise InvalidParameter("rule", name, "is unknown", f"choose among mean, {', '.join(RULES)}")
    return RULES[name]


def most_attackers(rule: Rule, parties: int) -> int:
    """The largest f that ``rule`` works with among ``parties``; −1 where it does not work with so few at all.

    >>> most_attackers(find_rule("median"), 10)
    4
    """
    found = -1
    while found < parties and rule.facts.least(found + 1) <= parties:
        found += 1
    return found
