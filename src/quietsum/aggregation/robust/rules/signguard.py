"""SignGuard: updates whose length and share of signs are like those of most others (Xu, Huang, Song, Lan 2022).

1. M is the median length; S₁ holds the updates with 0.1 M < |g| < 3 M.
2. On one random run of a tenth of the coordinates, an update's features are its shares of +, 0 and − signs, each
   divided by the largest such share of any update. S₂ is the largest cluster of a mean shift over them.
   The Sim form adds the cosine with the last step, clipped to [0, its median c], over 5c (before the first step: the
   median cosine with the others); the Dist form adds 1/5 if the distance from the last step is at least 1.1 of its
   median.
3. The step is the mean over S₁ ∩ S₂ of the updates, each shortened to M at most.

Where the paper divides by zero or takes the mean of nothing: a sign that no update has is no feature; M = 0 keeps the
updates of zeros; for a bandwidth of zero see :mod:`~quietsum.aggregation.robust.rows.meanshift`; an empty S₁ ∩ S₂ has a
step of zeros, so that the model stays as it is. The run comes from the rule's random source, never from a seed;
it is a tenth of the coordinates, one at least. In a small model that is a handful, and shares of a handful of signs are
coarse; looking at more of them leaves out more honest updates (benchmarks/fraud_defence.py), since finer shares of ten
updates are never quite alike.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import final

import numpy as np
from numpy.typing import NDArray

from quietsum.aggregation.robust.judge import judge_rows
from quietsum.aggregation.robust.rows.blocks import LARGEST, NotFinite, lengths, mixture, signs
from quietsum.aggregation.robust.rows.distances import cosines, cosines_with
from quietsum.aggregation.robust.rows.meanshift import largest_cluster
from quietsum.aggregation.robust.rule import Facts, Matrix, Sent, Vector, Verdict
from quietsum.errors import InvalidParameter
from quietsum.validate import whole_number

__all__ = ["SignGuard"]

LAST = "last"
"""The slot of a rule's memory that holds the step of the round before."""

_NAMES = {"": "signguard", "sim": "signguard-sim", "dist": "signguard-dist"}
_TITLES = {"": "SignGuard", "sim": "SignGuard-Sim", "dist": "SignGuard-Dist"}


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class SignGuard:
    """SignGuard and its forms "sim" and "dist".

    ``share`` of the coordinates are looked at, ``shortest`` or all at least; lengths between ``low`` and ``high``
    times their median pass.
    """

    form: str = ""
    share: float = 0.1
    shortest: int = 1
    low: float = 0.1
    high: float = 3.0

    def __post_init__(self) -> None:
        if self.form not in _NAMES:
            raise InvalidParameter("form", self.form, "is unknown", "choose among '', 'sim' and 'dist'")
        whole_number("shortest", self.shortest, 1)

    @property
    def name(self) -> str:
        """As in ``run.toml``."""
        return _NAMES[self.form]

    @property
    def facts(self) -> Facts:
        """What is known of it."""
        return Facts(
            title=_TITLES[self.form],
            source="Xu, Huang, Song, Lan 2022",
            breakdown=(
                "no proof; the step is never longer than the median length, which honest updates bound while fewer "
                "than half are anything, and attackers must imitate the honest shares of signs"
            ),
            least=lambda attackers: 2 * attackers + 1,
            pairs=self.form == "sim",
            limits=(
                "an attacker who imitates the shares of signs is kept; noise on the updates hides the signs; with few "
                "updates there is nothing to count, and below four only lengths are judged"
            ),
        )

    def memory(self, registered: int, dimension: int) -> Mapping[str, Vector]:
        """The last step, for the forms that compare with it."""
        return {LAST: np.zeros(dimension)} if self.form else {}

    def combine(self, sent: Sent) -> Verdict:
        """The step. ``length`` and the features are reported for every update."""
        return judge_rows(self, sent, self._combine)

    def _combine(self, sent: Sent) -> Verdict:
        found = lengths(sent.updates)
        if np.isnan(found).any():
            raise NotFinite
        middle = float(np.median(found / 2)) * 2  # the mean of two lengths stays in range
        passed = (found > self.low * middle) & (found < self.high * middle) if middle > 0 else found == 0
        features = self._features(sent, found)
        alike = largest_cluster(features)
        kept = passed & alike
        count = int(np.count_nonzero(kept))
        weights = np.zeros(len(sent))
        weights[kept] = 1.0 / count if count else 0.0
        shorten = np.minimum(1.0, np.divide(middle, found, out=np.ones_like(found), where=found > 0))
        step = mixture(sent.updates, weights * shorten)
        names = ("positive", "zero", "negative", self.form)
        return Verdict(
            step=step, kept=kept, weights=weights, reasons=self._reasons(passed, alike, found, middle),
            statistics={"length": found, **{name: features[:, at] for at, name in enumerate(names) if name}},
            memory={LAST: step} if self.form else {},
        )  # fmt: skip

    def _features(self, sent: Sent, found: Vector) -> Matrix:
        dimension = sent.updates.shape[1]
        width = max(int(self.share * dimension), min(self.shortest, dimension))
        start = min(int(sent.rng.uniforms(1)[0] * (dimension - width + 1)), dimension - width)
        shares = signs(sent.updates, slice(start, start + width))
        largest = shares.max(axis=0)
        shares = np.divide(shares, largest, out=np.zeros_like(shares), where=largest > 0)
        if not self.form:
            return np.asarray(shares)
        last = sent.memory.get(LAST, np.zeros(dimension))
        extra = _near(sent, found, last) if self.form == "sim" else _far(sent, last)
        return np.asarray(np.concatenate([shares, extra[:, None]], axis=1))

    def _reasons(
        self, passed: NDArray[np.bool_], alike: NDArray[np.bool_], found: Vector, middle: float
    ) -> dict[int, str]:
        reasons = {}
        for row in np.flatnonzero(~(passed & alike)).tolist():
            parts = []
            if not passed[row]:
                bounds = f"{self.low:g} and {self.high:g} times the median {middle:.3g}"
                parts.append(f"its length {found[row]:.3g} is not between {bounds}")
            if not alike[row]:
                parts.append("its shares of signs are not like those of most updates")
            reasons[row] = "; ".join(parts)
        return reasons


def _near(sent: Sent, found: Vector, last: Vector) -> Vector:
    """clip(cosine, 0, median)/(5 · median): with the last step, or with the other updates before there is one."""
    if last.any():
        alike = cosines_with(sent.updates, found, last)
    elif len(sent) > 1:
        alike = np.array([np.median(np.delete(row, at)) for at, row in enumerate(cosines(sent.updates))])
    else:
        alike = np.ones(1)
    middle = float(np.median(alike))
    return np.clip(alike, 0, middle) / (5 * middle) if middle > 0 else np.zeros(len(sent))


def _far(sent: Sent, last: Vector) -> Vector:
    """1/5 for the updates at least 1.1 times the median distance from the last step."""
    distances = lengths(sent.updates, last)
    middle = float(np.median(distances / 2)) * 2
    return (distances >= min(1.1 * middle, LARGEST)) / 5.0
