"""How well scores tell members from others: the true-positive rate at a low false-positive rate, and the AUC.

**At a false-positive rate α.** Of n others, k = ⌊α(n + 1)⌋ − 1 are accused: the threshold is the (k + 1)-th largest of
their scores, and who scores above it is called a member. The threshold is chosen by looking at those others, and its
own rate is known exactly all the same: for independent scores it is the (k + 1)-th smallest of n uniforms or less, a
Beta(k + 1, n − k) variable of mean (k + 1)/(n + 1) ≤ α, and the upper quantile of that law is Clopper and Pearson's
upper end for k of n. The members' share above it is binomial, given the threshold. A rate of 1 in 1000 needs 999
others; with fewer it is inconclusive.

**AUC**, the chance that a member scores above another: the share of all pairs. It is a U-statistic of two samples, so
with h the smaller of the two, P(AUC is off so far) ≤ exp(−h · KL) to each side (Hoeffding 1963, theorem 1 and section
5b), for scores of any law.

Both intervals take records as independent draws. They say how well the members of *this* model are distinguished from
others of their kind. The bound on ε (:mod:`quietsum.audit.membership.judge`) does not need that.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, final

import numpy as np
from numpy.typing import NDArray
from scipy import special

from quietsum.audit.outcome import CONFIDENCE, find_least_count, find_least_success
from quietsum.audit.shares import bound_share

__all__ = ["OperatingPoint", "bound_auc", "find_auc", "find_point"]

_EDGE = 1e-9  # of rounding

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class OperatingPoint:
    """How many members are spotted where a share ``rate`` of others is accused.

    ``claimed`` is the largest true-positive rate that the claim leaves any attacker there; None without a claim.
    """

    rate: float
    members: int
    spotted: int
    others: int
    accused: int
    claimed: float | None = None

    @property
    def measured(self) -> bool:
        """Whether there are enough others for this rate."""
        return (self.others + 1) * self.rate >= 1 - _EDGE and self.members > 0

    @property
    def share(self) -> float:
        """The members that were spotted."""
        return self.spotted / self.members if self.members else math.nan

    @property
    def interval(self) -> tuple[float, float]:
        """The exact interval of that share, with 95 % confidence."""
        return bound_share(self.spotted, self.members, confidence=CONFIDENCE)

    @property
    def most_accused(self) -> float:
        """What the false-positive rate is at most, with 97.5 % confidence."""
        return bound_share(self.accused, self.others, confidence=CONFIDENCE)[1]

    @property
    def leaks(self) -> bool:
        """Whether more members are spotted than others are accused, with 95 % confidence for both."""
        return self.measured and self.interval[0] > self.most_accused

    @property
    def smallest(self) -> float | None:
        """The smallest true-positive rate that would have been called a leak in nine of ten; None if none would."""
        if not self.measured or self.most_accused >= 1:
            return None
        count = find_least_count(self.members, self.most_accused, level=(1 - CONFIDENCE) / 2)
        return find_least_success(count, self.members)

    @property
    def sentence(self) -> str:
        """The point in plain words."""
        at = f"at a false-positive rate of {self.rate:.1%}"
        if not self.measured:
            needed = math.ceil(1 / self.rate - 1 - _EDGE)
            return f"{at}: inconclusive, as this takes {needed:,} others and there are {self.others:,}"
        low, high = self.interval
        claim = "" if self.claimed is None else f"; the claim leaves any attacker {_upwards(self.claimed)}"
        seen = "would have been seen nine times in ten"
        power = "no rate " + seen if self.smallest is None else f"{_upwards(self.smallest)} or more {seen}"
        return f"{at}: {self.share:.1%} of members spotted (between {low:.1%} and {high:.1%}){claim}; {power}"

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            **dataclasses.asdict(self), "measured": self.measured, "interval": list(self.interval),
            "share": self.share if self.members else None, "most_accused": self.most_accused, "leaks": self.leaks,
            "smallest": self.smallest, "sentence": self.sentence,
        }  # fmt: skip


def _upwards(share: float) -> str:
    return f"{math.ceil(share * 1000 - 1e-9) / 10:g} %"


def find_point(scores: Floats, included: Mask, rate: float, claimed: float | None = None) -> OperatingPoint:
    """The operating point at a false-positive rate of ``rate``.

    >>> scores = np.concatenate([np.arange(100.0), np.full(50, 99.5)])
    >>> point = find_point(scores, np.arange(150) >= 100, 0.01)
    >>> point.spotted, point.accused, point.leaks
    (50, 0, True)
    """
    members, others = scores[included], np.sort(scores[~included])[::-1]
    accused = max(0, math.floor(rate * (len(others) + 1) + _EDGE) - 1)
    spotted = int((members > others[accused]).sum()) if len(others) else 0
    return OperatingPoint(
        rate=rate, members=len(members), spotted=spotted, others=len(others), accused=accused, claimed=claimed
    )


def find_auc(scores: Floats, included: Mask) -> float:
    """The share of pairs in which the member scores above the other; a tie is half a pair.

    >>> find_auc(np.array([3.0, 1.0, 1.0, 0.0]), np.array([True, True, False, False]))
    0.875
    """
    members, others = scores[included], np.sort(scores[~included])
    below = np.searchsorted(others, members, side="left") + np.searchsorted(others, members, side="right")
    return float(below.sum() / (2 * len(members) * len(others))) if len(members) and len(others) else 0.5


def bound_auc(auc: float, members: int, others: int, *, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """The values of the AUC that are not refuted by an observed one: h · KL(seen ‖ true) ≤ ln(2 / (1 − confidence)).

    >>> [round(end, 3) for end in bound_auc(0.5, 500, 700)]
    [0.439, 0.561]
    """
    fewer = min(members, others)
    if not fewer:
        return 0.0, 1.0
    most = math.log(2 / (1 - confidence)) / fewer

    def apart(true: float) -> float:
        return float(special.rel_entr(auc, true) + special.rel_entr(1 - auc, 1 - true))

    ends = []
    for far in (0.0, 1.0):
        refuted, kept = far, auc  # the end of the interval lies between the two
        for _ in range(60) if apart(far) > most else ():
            middle = (refuted + kept) / 2
            refuted, kept = (middle, kept) if apart(middle) > most else (refuted, middle)
        ends.append(refuted)
    return ends[0], ends[1]
