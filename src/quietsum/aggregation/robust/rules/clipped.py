"""Rules that shorten what is long and average the rest: the norm-bounded mean and centered clipping.

Neither leaves anything out. They bound by how much one update moves the step, and with it what a few attackers can do
in one round; what they do round after round adds up.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import final

import numpy as np

from quietsum.aggregation.robust.judge import judge_rows
from quietsum.aggregation.robust.rows.blocks import lengths, mixture, tame_rows
from quietsum.aggregation.robust.rule import Facts, Sent, Vector, Verdict
from quietsum.errors import InvalidParameter
from quietsum.validate import positive, whole_number

__all__ = ["CenteredClipping", "NormBounded"]

LAST = "last"
"""The slot of a rule's memory that holds the step of the round before."""


def _majority(attackers: int) -> int:
    return 2 * attackers + 1


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class NormBounded:
    """The mean of the updates, each shortened to ``bound``, or to the median length if omitted (Sun et al. 2019).

    With a constant ``bound`` nothing but a sum needs to be kept: see :meth:`stream`.
    """

    bound: float | None = None
    name = "norm-bounded"

    def __post_init__(self) -> None:
        if self.bound is not None:
            positive("bound", self.bound)

    @property
    def facts(self) -> Facts:
        """The mean of n vectors of length C at most moves by at most 2C/n when one of them changes or is left out."""
        said = (
            "the median length, which lies among honest ones while fewer than half are anything"
            if self.bound is None
            else f"{self.bound:g}"
        )
        return Facts(
            title="norm-bounded mean",
            source="Sun, Kairouz, Suresh, McMahan 2019",
            breakdown=(
                f"the step is never longer than {said}; within it, each attacker pulls as hard as the longest honest "
                "update"
            ),
            least=_majority,
            sensitivity=None if self.bound is None else f"2 · {self.bound:g} / n",
            limits="attackers of ordinary length are averaged in as they are (label flips, LIE, backdoors)",
        )

    def memory(self, registered: int, dimension: int) -> Mapping[str, Vector]:
        """Nothing is remembered."""
        return {}

    def combine(self, sent: Sent) -> Verdict:
        """The step; ``length`` is each update's."""
        return judge_rows(self, sent, self._combine)

    def _combine(self, sent: Sent) -> Verdict:
        updates, found = tame_rows(sent.updates, few=self.bound is None)
        bound = float(np.median(found / 2)) * 2 if self.bound is None else self.bound
        weights = np.minimum(1.0, np.divide(bound, found, out=np.ones_like(found), where=found > 0)) / len(sent)
        return Verdict(
            step=mixture(updates, weights), kept=np.ones(len(sent), dtype=np.bool_), weights=weights,
            statistics={"length": found},
        )  # fmt: skip

    def stream(self, rows: Iterable[Vector]) -> Vector:
        """The same step from rows that come one after another, of which only the sum is kept.

        >>> NormBounded(bound=1.0).stream(np.array([row]) for row in (0.5, 100.0, -7.0, -0.5))
        array([0.])
        """
        if self.bound is None:
            raise InvalidParameter("bound", None, "is the median of all lengths, so all rows are needed", "state one")
        total, count = np.zeros(1), 0
        for row in rows:
            kept, found = tame_rows(np.asarray(row)[None, :], few=False)
            total = total + kept[0] * min(1.0, self.bound / found[0] if found[0] > 0 else 1.0)
            count += 1
        if not count:
            raise InvalidParameter("rows", 0, "are none, so there is nothing to average")
        return np.asarray(total / count, dtype=np.float64)


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class CenteredClipping:
    """v ← v + (1/n) Σ (g_i − v) · min(1, τ/|g_i − v|), ``iterations`` times, from the step of the round before
    (Karimireddy, He, Jaggi 2021, eq. CClip).

    The radius τ is the median of |g_i − v| in each iteration if ``radius`` is omitted: the scale need not be known
    of updates, and fewer than half of the updates cannot move it beyond honest distances.
    """

    radius: float | None = None
    iterations: int = 3
    name = "centered-clipping"
    facts = Facts(
        title="centered clipping",
        source="Karimireddy, He, Jaggi 2021",
        breakdown=(
            "an iteration moves the centre by at most the radius, by default the median distance from it, which lies "
            "among honest ones while fewer than half are anything; the paper's proof asks for a radius that fits the "
            "honest spread and few attackers"
        ),
        least=_majority,
        limits=(
            "leans on the step of the round before, so it starts slowly and attackers who all push one way move it a "
            "little every round; made for parties that send momentum"
        ),
    )

    def __post_init__(self) -> None:
        whole_number("iterations", self.iterations, 1)
        if self.radius is not None:
            positive("radius", self.radius)

    def memory(self, registered: int, dimension: int) -> Mapping[str, Vector]:
        """The step of the round before; zeros at first."""
        return {LAST: np.zeros(dimension)}

    def combine(self, sent: Sent) -> Verdict:
        """The step; ``distance`` is each update's from the centre before the last iteration."""
        return judge_rows(self, sent, self._combine)

    def _combine(self, sent: Sent) -> Verdict:
        centre = sent.memory.get(LAST, np.zeros(sent.updates.shape[1]))
        updates, found = tame_rows(sent.updates, centre, few=self.radius is None)
        for iteration in range(self.iterations):
            if iteration:
                found = lengths(updates, centre)
            radius = float(np.median(found / 2)) * 2 if self.radius is None else self.radius
            shares = np.minimum(1.0, np.divide(radius, found, out=np.ones_like(found), where=found > 0)) / len(sent)
            centre = mixture(updates, shares, centre)
        return Verdict(
            step=centre, kept=np.ones(len(sent), dtype=np.bool_), statistics={"distance": found}, memory={LAST: centre}
        )
