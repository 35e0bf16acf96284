"""Bulyan: choose by distance, then trim each coordinate (El Mhamdi, Guerraoui, Rouault 2018).

With n updates and f that may be anything, the θ = n − 2f with the smallest Krum scores are chosen (a score is the sum
of the squared distances to the n − f − 2 nearest others). Then each coordinate is the mean of the β = θ − 2f chosen
values nearest to their median. The paper takes Krum's first choice θ times over, each time among those left; here, as
in Flower, the θ best of one scoring are taken, which needs one matrix of distances instead of θ.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import final

import numpy as np

from quietsum.aggregation.robust.judge import judge_rows, lowest, require_finite
from quietsum.aggregation.robust.rows.blocks import LARGEST
from quietsum.aggregation.robust.rows.distances import pairwise_distances
from quietsum.aggregation.robust.rule import Facts, Matrix, Sent, Vector, Verdict
from quietsum.aggregation.robust.rules.krum import krum_scores
from quietsum.aggregation.robust.rules.order import by_coordinate

__all__ = ["Bulyan"]


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Bulyan:
    """The trimmed mean around the median of the updates that Krum's scores choose."""

    name = "bulyan"
    facts = Facts(
        title="Bulyan",
        source="El Mhamdi, Guerraoui, Rouault 2018",
        breakdown="each coordinate stays near honest values while at most (n − 3)/4 of the updates are anything",
        least=lambda attackers: 4 * attackers + 3,
        pairs=True,
        limits="honest updates far from the others are left out as well: sites with unlike data lose their say",
    )

    def memory(self, registered: int, dimension: int) -> Mapping[str, Vector]:
        """Nothing is remembered."""
        return {}

    def combine(self, sent: Sent) -> Verdict:
        """The step, and Krum's score of each row."""
        return judge_rows(self, sent, require_finite(self._combine))

    def _combine(self, sent: Sent) -> Verdict:
        count, attackers = len(sent), sent.attackers
        roots = krum_scores(pairwise_distances(sent.updates), attackers)
        chosen = lowest(roots, count - 2 * attackers, sent.updates)
        kept = np.zeros(count, dtype=np.bool_)
        kept[chosen] = True
        near = max(len(chosen) - 2 * attackers, 1)
        step = by_coordinate(sent.updates[chosen], lambda ordered: _around_median(ordered, near))
        with np.errstate(over="ignore"):
            scores = np.minimum(roots**2, LARGEST)
        reason = "its distance to the updates nearest to it is among the largest"
        return Verdict(
            step=step, kept=kept, statistics={"krum_score": scores},
            reasons={int(row): reason for row in np.flatnonzero(~kept)},
        )  # fmt: skip


def _around_median(ordered: Matrix, count: int) -> Vector:
    """In each row of ascending numbers the mean of the ``count`` nearest to its median; the smaller of two as near.

    They stand side by side: the window moves up as long as its first number is further away than the one after it.

    >>> _around_median(np.array([[0.0, 2.0, 3.0, 4.0, 9.0], [1.0, 1.0, 5.0, 9.0, 9.0]]), 2)
    array([2.5, 3. ])
    """
    quarter = ordered.astype(np.float64) / 4  # differences and sums stay in range
    last = quarter.shape[1] - count
    middle = (quarter[:, (last + count - 1) // 2] + quarter[:, (last + count) // 2])[:, None] / 2
    start = np.count_nonzero(middle - quarter[:, :last] > quarter[:, count:] - middle, axis=1)
    window = np.take_along_axis(quarter, start[:, None] + np.arange(count), axis=1)
    return np.asarray(np.clip(window @ np.full(count, 1 / count), -LARGEST / 4, LARGEST / 4) * 4)
