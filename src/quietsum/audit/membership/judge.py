"""Membership scores of a finished model, held against what the model claims.

Three things are said of each attack. How well it tells members from others (:mod:`quietsum.audit.membership.rates`).
What that proves of ε: the one-run bound of :mod:`quietsum.audit.one_run`, with 95 % confidence, if and only if coins
decided who trains. And whether the claim can be: the same bound at one in a million, over all attacks and numbers of
guesses together (Bonferroni), against the claim's whole curve where an accountant gives it.

    the claim says     (ε, δ) for every δ; each is a line that the trade-off curve lies above, and the bound takes
                       the best of some
    we refute it       if so many right guesses have a chance of less than 1e-6 under it

A single (ε, δ) with δ above that chance cannot be refuted so: with probability δ all may come out.

An attack that fails refutes nothing, so "consistent" is said only where the game could have refuted the claim at all:
all guesses right would have, and a leak of ten times the false-positive rate would have been seen nine times in ten.
Otherwise the audit is inconclusive. The strongest model of a weak attack is one that passes.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from quietsum.audit.evidence import FALSE_ALARM
from quietsum.audit.membership.rates import OperatingPoint, bound_auc, find_auc, find_point
from quietsum.audit.one_run import CONFIDENCE, SHARES, Least, bound_guesses, count_correct, private_least, refutes
from quietsum.audit.outcome import STAYS, find_least_success
from quietsum.audit.verdict import Conclusion
from quietsum.errors import InvalidParameter
from quietsum.privacy import Accountant, Guarantee, Neighbours, PrivacyUnit, true_positive_rate
from quietsum.validate import flag, open_probability

__all__ = ["MembershipAudit", "MembershipScore", "judge_membership"]

RATES = (0.01, 0.001)
_MUST = 10  # times the false-positive rate is the leak that has to be seen
_NOTHING = 60.0  # an ε that promises nothing, and that no number of targets refutes
_CHANCES = (1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8, 1e-9, 1e-10, 1e-12)
"""The δ at which a claim's curve is looked up. A claim (ε, δ) leaves δ for all to be known, so one in a million needs
the curve where δ is far smaller."""

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class MembershipScore:
    """One attack. ``lower_bound`` is an ε that it refutes with 95 % confidence at the audit's δ; None without coins."""

    attack: str
    auc: float
    auc_interval: tuple[float, float]
    points: tuple[OperatingPoint, ...]
    lower_bound: float | None
    contradicts: bool

    @property
    def leaks(self) -> bool:
        """Whether its AUC or one of its rates distinguishes members from others, each with 95 % confidence."""
        return self.auc_interval[0] > 0.5 or any(point.leaks for point in self.points)

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "attack": self.attack, "auc": self.auc, "auc_interval": list(self.auc_interval),
            "points": [point.to_dict() for point in self.points], "lower_bound": self.lower_bound,
            "leaks": self.leaks, "contradicts": self.contradicts,
        }  # fmt: skip


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class MembershipAudit:
    """Membership attacks on one model. ``smallest`` is the smallest share of right guesses that would have refuted the
    claim in nine games of ten; None if none would. ``single`` says that the claim is one (ε, δ) and no curve, and
    :attr:`stays` who may read this.
    """

    epsilon: float | None
    delta: float
    targets: int
    members: int
    by_coins: bool
    single: bool
    scores: tuple[MembershipScore, ...]
    smallest: float | None

    stays = STAYS

    @property
    def lower_bound(self) -> float | None:
        """The largest of the attacks' lower bounds on ε, which hold together with 95 % confidence."""
        return max((one.lower_bound for one in self.scores if one.lower_bound is not None), default=None)

    @property
    def leaks(self) -> bool:
        """Whether an attack tells members from others."""
        return any(one.leaks for one in self.scores)

    @property
    def conclusion(self) -> Conclusion:
        """Contradicted, consistent or inconclusive."""
        if any(one.contradicts for one in self.scores):
            return Conclusion.CONTRADICTED
        return Conclusion.INCONCLUSIVE if self._lacking else Conclusion.CONSISTENT

    @property
    def _lacking(self) -> str:
        if not self.by_coins:
            return "members were not chosen by coins, so nothing is proved of the claim"
        if self.epsilon is None:
            return "there is no claim to hold it against"
        if self.smallest is None and self.single:
            return (
                f"δ = {self.delta:.3g} alone lets all be known more often than once in a million; pass the accountant"
            )
        if self.smallest is None:
            return f"{self.targets:,} targets could not refute this claim even if every guess were right"
        least = [one.points[0].smallest for one in self.scores]
        must = min(1.0, _MUST * self.scores[0].points[0].rate)
        if any(one is None or one > must for one in least):
            return f"{self.targets:,} targets are too few to see {must:.0%} of members spotted nine times in ten"
        return ""

    @property
    def sentence(self) -> str:
        """The conclusion in plain words."""
        who = f"{self.members:,} members among {self.targets:,} targets"
        if self.conclusion is Conclusion.CONTRADICTED:
            first = next(one for one in self.scores if one.contradicts)
            return (
                f"The audit contradicts the claim: {first.attack} tells {who} better than any attacker can if the "
                "claim is true, but for one chance in a million."
            )
        if self._lacking:
            return f"The audit is inconclusive about the claim: {self._lacking}."
        return (
            f"The audit is consistent with the claim: nothing that it rules out was seen on {who}, and "
            f"{math.ceil(1000 * (self.smallest or 1)) / 10:g} % right guesses would have been. A better attack may see "
            "more."
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        bound = None if self.lower_bound is None else {"epsilon": self.lower_bound, "confidence": CONFIDENCE}
        return {
            "stays": self.stays, "conclusion": self.conclusion.value, "sentence": self.sentence, "leaks": self.leaks,
            "targets": self.targets, "members": self.members, "by_coins": self.by_coins,
            "claim": {"epsilon": self.epsilon, "delta": self.delta}, "lower_bound": bound,
            "smallest": self.smallest, "attacks": [one.to_dict() for one in self.scores],
        }  # fmt: skip


def judge_membership(
    scores: Mapping[str, ArrayLike],
    included: ArrayLike,
    *,
    by_coins: bool,
    claim: Guarantee | Accountant | None = None,
    delta: float | None = None,
    rates: Sequence[float] = RATES,
) -> MembershipAudit:
    """Hold membership ``scores`` of each attack, one number a target, against who was ``included`` in the training.

    ``by_coins`` says that each target trained by a fair coin of its own (:func:`draw_members`), and that nothing else
    of the training depends on the coins, such as a rate that follows from the number of members. ``claim`` is what the
    training claims of a record, its guarantee, or better its accountant with ``delta``.

    Guarantees: if the claim is true, it is contradicted with a chance of at most 1e-6; each lower bound on ε is right
    with a chance of at least 95 %, all together. No assumption on the records or on the attack.
    """
    coins, member = flag("by_coins", by_coins), _mask(included)
    epsilon, delta, least = _read_claim(claim, delta, coins=coins)
    if not scores:
        raise InvalidParameter("scores", "none", "name no attack", "pass {'loss': score_by_loss(losses)}")
    if not rates:
        raise InvalidParameter("rates", rates, "are empty", "pass a false-positive rate such as 0.01")
    asked = tuple(open_probability("rates", rate, "pass rates such as 0.01") for rate in rates)
    limits = [None if claim is None else true_positive_rate(claim, rate) for rate in asked]
    tests = len(scores) * len(SHARES)
    found = tuple(
        _judge(name, _values(name, values, len(member)), member, coins, asked, limits, delta, least, tests)
        for name, values in scores.items()
    )
    smallest = None
    if least is not None and coins:
        count = _least_correct(least, len(member), FALSE_ALARM / tests)
        smallest = find_least_success(count, len(member))
    return MembershipAudit(
        epsilon=epsilon, delta=delta, targets=len(member), members=int(member.sum()), by_coins=coins, scores=found,
        single=isinstance(claim, Guarantee),
        smallest=smallest,
    )  # fmt: skip


def _judge(
    name: str, scores: Floats, member: Mask, coins: bool, rates: Sequence[float], limits: Sequence[float | None],
    delta: float, least: Least | None, tests: int,
) -> MembershipScore:  # fmt: skip
    auc = find_auc(scores, member)
    contradicts, bound = False, None
    if coins:
        counts = [count_correct(scores, member, share) for share in SHARES]
        bound = bound_guesses(counts, canaries=len(member), delta=delta, level=(1 - CONFIDENCE) / tests)
        contradicts = least is not None and any(
            refutes(least, guesses=guesses, correct=correct, canaries=len(member), level=FALSE_ALARM / tests)
            for guesses, correct in counts
        )
    return MembershipScore(
        attack=name, auc=auc, auc_interval=bound_auc(auc, int(member.sum()), int((~member).sum())),
        points=tuple(find_point(scores, member, *pair) for pair in zip(rates, limits, strict=True)),
        lower_bound=bound, contradicts=contradicts,
    )  # fmt: skip


def _least_correct(least: Least, targets: int, level: float) -> int:
    """The fewest right guesses of all targets that refute the claim; targets + 1 if none do."""
    low, high = targets // 2, targets + 1
    while low < high:
        middle = (low + high) // 2
        beyond = refutes(least, guesses=targets, correct=middle, canaries=targets, level=level)
        low, high = (low, middle) if beyond else (middle + 1, high)
    return low


def _read_claim(
    claim: Guarantee | Accountant | None, delta: float | None, *, coins: bool = True
) -> tuple[float | None, float, Least | None]:
    """ε, δ and the curve of a claim."""
    if claim is None:
        return None, open_probability("delta", 1e-5 if delta is None else delta), None
    if isinstance(claim, Guarantee):
        if delta is not None and delta != claim.delta:
            raise InvalidParameter("delta", delta, f"is not the {claim.delta:g} of the guarantee", "leave it out")
        stated, lines = claim, [(claim.epsilon, claim.delta)]
    elif isinstance(claim, Accountant):
        if delta is None:
            raise InvalidParameter("delta", delta, "is missing beside an accountant", "state the claim's own")
        stated = claim.epsilon(delta=open_probability("delta", delta))
        deltas = [chance for chance in _CHANCES if chance < stated.delta]
        found = [(claim.epsilon(delta=chance).epsilon, chance) for chance in deltas]
        lines = [(stated.epsilon, stated.delta), *found]
    else:
        problem = "is neither a guarantee nor an accountant"
        raise InvalidParameter("claim", type(claim).__name__, problem, "pass trainer.guarantee()")
    if stated.unit is not PrivacyUnit.RECORD or stated.group_size != 1:
        remedy = "pass the guarantee of one record; clients have audit_clients()"
        raise InvalidParameter("claim", f"per {stated.whom}", "is not about single records", remedy)
    if coins and stated.neighbours is Neighbours.REPLACE_ONE:
        problem = "is about records that are replaced, and the game leaves them out"
        raise InvalidParameter("claim", "replace-one", problem, "state the claim for add-or-remove-one")
    if stated.epsilon > _NOTHING:
        return None, stated.delta, None
    curve = [private_least(*line) for line in lines if line[0] <= _NOTHING]
    return stated.epsilon, stated.delta, lambda right: max(one(right) for one in curve)


def _mask(included: ArrayLike) -> Mask:
    member = np.asarray(included)
    if member.dtype != np.bool_ or member.ndim != 1 or not member.any() or member.all():
        problem = "does not say of each target whether it trained, or all or none did"
        raise InvalidParameter("included", "the mask", problem, "pass True or False for each target, and some of both")
    return member


def _values(name: str, values: ArrayLike, count: int) -> Floats:
    try:
        found = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise InvalidParameter("scores", name, "are not numbers", "pass one score per target") from None
    if found.shape != (count,) or not np.isfinite(found).all():
        problem = f"are not {count} finite numbers"
        raise InvalidParameter("scores", name, problem, "pass one score per target, the higher the likelier a member")
    return found
