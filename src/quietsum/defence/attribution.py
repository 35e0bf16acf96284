"""Who may have sent bad updates, if no single update is seen: a score for each party from what became of its groups.

In a round with random groups (:mod:`quietsum.federation.groups`) the rule leaves out the means of some groups. That
flags a group, in which most members may have done nothing. But groups are drawn anew in every round: a party in
flagged ones again and again, with other company each time, stands out.

Let n parties hold f attackers, let a group with one among its s members be flagged with probability TPR and one without
with FPR. An honest member's group has an attacker among the s − 1 others with probability
q = 1 − C(n − 1 − f, s − 1) / C(n − 1, s − 1), so it is flagged with q TPR + (1 − q) FPR; an attacker's with TPR. The
score is the posterior probability with prior f/n, rounds taken as independent:

    logit = log f/(n − f) + Σ_rounds log P[what became of its group | attacker] / P[… | honest].

TPR and FPR are assumed, not known; scores order parties well where the assumption is off and are then no probabilities.
They say *suspected*, and why; quarantine needs a person who looks (rejected is not malicious). All of it is a function
of what the operator has seen already: it costs no privacy, and it is for the operator alone (rule 5).

>>> flags = [Flag(members=("a", "b"), flagged=True), Flag(members=("c", "d"), flagged=False),
...          Flag(members=("a", "c"), flagged=True), Flag(members=("b", "d"), flagged=False)]
>>> [(one.party, round(one.score, 2)) for one in scores(flags, parties=4, attackers=1, rates=Rates())]
[('a', 0.47), ('b', 0.26), ('c', 0.26), ('d', 0.12)]
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any, final

from quietsum.validate import open_probability, whole_number

__all__ = ["Flag", "Rates", "Score", "scores"]


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Rates:
    """What is assumed of the rule: how often it flags a group with an attacker in it, and one without.

    The defaults are about the middle of what was measured of SignGuard between groups of digits (docs/benchmarks.md).
    """

    true_positive: float = 0.6
    false_positive: float = 0.25

    def __post_init__(self) -> None:
        for name in ("true_positive", "false_positive"):
            object.__setattr__(self, name, open_probability(name, getattr(self, name), "a rate between 0 and 1"))


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Flag:
    """One group in one round: whose updates were in its sum, and whether the rule left its mean out."""

    members: tuple[str, ...]
    flagged: bool


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Score:
    """How far one party is suspected: a posterior probability under the assumed rates, and what it rests on."""

    party: str
    score: float
    rounds: int
    flagged: int

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return dataclasses.asdict(self)


def scores(flags: Iterable[Flag], *, parties: int, attackers: int, rates: Rates) -> tuple[Score, ...]:
    """The scores of all who were in a group, the most suspected first, equal ones by name.

    ``parties`` and ``attackers`` are those of the plan. Where a rule flags no more groups with an attacker than
    without, no party stands out, and all have the prior.
    """
    n = whole_number("parties", parties, 2)
    f = min(max(whole_number("attackers", attackers, 0), 1), n - 1)
    logit: defaultdict[str, float] = defaultdict(float)
    seen: Counter[str] = Counter()
    flagged: Counter[str] = Counter()
    for flag in flags:
        honest = _chance_of_flag(n, f, len(flag.members), rates)
        sign = math.log(rates.true_positive / honest)
        if not flag.flagged:
            sign = math.log((1 - rates.true_positive) / (1 - honest))
        for party in flag.members:
            logit[party] += sign
            seen[party] += 1
            flagged[party] += flag.flagged
    prior = math.log(f / (n - f))
    found = (
        Score(party=party, score=_sigmoid(prior + logit[party]), rounds=seen[party], flagged=flagged[party])
        for party in seen
    )
    return tuple(sorted(found, key=lambda one: (-one.score, one.party)))


def _chance_of_flag(parties: int, attackers: int, size: int, rates: Rates) -> float:
    """The chance that an honest member's group is flagged."""
    others = max(min(size - 1, parties - 1), 0)  # a group without members flags no party
    clean = math.comb(parties - 1 - attackers, others) / math.comb(parties - 1, others)
    return (1 - clean) * rates.true_positive + clean * rates.false_positive


def _sigmoid(logit: float) -> float:
    return 1 / (1 + math.exp(-logit)) if logit > -700 else 0.0
