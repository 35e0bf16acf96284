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

from quietsum.aggregation.robust.geometry import squared_distances, steady_order
from quietsum.aggregation.robust.judge import finite_rows, judged
from quietsum.aggregation.robust.rule import Facts, Matrix, Sent, Vector, Verdict

__all__ = ["Bulyan"]

_COLUMNS = 1 << 15


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
        limits="honest updates far from the others are left out as well: sites with unlike data lose their say",
    )

    def memory(self, registered: int, dimension: int) -> Mapping[str, Vector]:
        """Nothing is remembered."""
        return {}

    def combine(self, sent: Sent) -> Verdict:
        """The step, and Krum's score of each row."""
        return judged(self, sent, finite_rows(self._combine))

    def _combine(self, sent: Sent) -> Verdict:
        count, attackers = len(sent), sent.attackers
        distances = squared_distances(sent.updates)
        near = np.sort(distances, axis=1)[:, 1 : max(count - attackers - 1, 2)]
        with np.errstate(over="ignore"):
            scores: Vector = near.sum(axis=1)
        order = steady_order(sent.updates)
        ranked = order[np.argsort(scores[order], kind="stable")]
        chosen = np.sort(ranked[: count - 2 * attackers])
        kept = np.zeros(count, dtype=np.bool_)
        kept[chosen] = True
        step = _around_median(sent.updates[chosen], max(len(chosen) - 2 * attackers, 1))
        told = "its distance to the updates nearest to it is among the largest"
        return Verdict(
            step=step, kept=kept, statistics={"krum_score": np.minimum(scores, np.finfo(np.float64).max)},
            reasons={int(row): told for row in np.flatnonzero(~kept)},
        )  # fmt: skip


def _around_median(chosen: Matrix, count: int) -> Vector:
    """In each column the mean of the ``count`` values nearest to the median."""
    step = np.empty(chosen.shape[1])
    for start in range(0, chosen.shape[1], _COLUMNS):
        part = np.asarray(chosen[:, start : start + _COLUMNS], dtype=np.float64) * 0.25  # no overflow in what follows
        part.sort(axis=0)  # of two values at the same distance it is the smaller one, wherever it stood
        away = np.abs(part - np.median(part, axis=0))
        nearest = np.argsort(away, axis=0, kind="stable")[:count]
        found = (np.take_along_axis(part, nearest, axis=0) / count).sum(axis=0)
        most = np.finfo(np.float64).max / 4
        step[start : start + _COLUMNS] = np.clip(found, -most, most) * 4
    return step
