"""DnC, divide and conquer: what many attackers have in common is the direction in which updates differ most.

Shejwalkar and Houmansadr 2021, algorithm 2: b coordinates are drawn, the rows are centred, v is the first right
singular vector, and the c·f rows with the largest (x − mean)·v squared are left out. That is done several times with
coordinates drawn anew, and the step is the mean of the rows that are left every time. With rows as an (n, b) matrix A,
A v = σ u for the first left singular vector u, which is an eigenvector of the small matrix A Aᵀ: scores are σ |u|.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import final

import numpy as np

from quietsum.aggregation.robust.geometry import means, steady_order
from quietsum.aggregation.robust.judge import finite_rows, judged
from quietsum.aggregation.robust.rule import Facts, Matrix, Sent, Vector, Verdict
from quietsum.errors import positive, whole_number

__all__ = ["DivideAndConquer", "outlier_scores"]


def outlier_scores(rows: Matrix) -> Vector:
    """The projection of each centred row on the direction in which the rows differ most, without its sign.

    >>> outlier_scores(np.array([[0.0, 1.0], [0.0, -1.0], [9.0, 0.0]])).round(1).tolist()
    [3.0, 3.0, 6.0]
    """
    largest = float(np.abs(rows).max(initial=0.0))
    if not largest > 0:
        return np.zeros(len(rows))
    small = np.asarray(rows, dtype=np.float64) / largest
    centred = small - small.mean(axis=0)
    values, vectors = np.linalg.eigh(centred @ centred.T)
    found = np.sqrt(max(float(values[-1]), 0.0)) * np.abs(vectors[:, -1])
    most = float(np.finfo(np.float64).max) / max(2 * float(found.max()), 1.0)  # in range, and still in order
    return np.asarray(found * min(largest, most), dtype=np.float64)


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class DivideAndConquer:
    """The mean of the rows that do not stand out along the first singular vector, in any of ``times`` draws.

    ``coordinates`` are looked at in each draw, and ``share`` times the stated attackers are left out of it.
    """

    times: int = 5
    coordinates: int = 10_000
    share: float = 1.0
    name = "dnc"
    facts = Facts(
        title="divide and conquer (DnC)",
        source="Shejwalkar, Houmansadr 2021",
        breakdown="the paper proves a bound for honest updates of bounded variance and attackers who push one way; "
        "attackers in unlike directions can pass, since a draw looks along one",
        least=lambda attackers: 2 * attackers + 1,
        limits="as many rows as are stated attackers are left out of each draw whether any attacks, and up to that "
        "many more with every further draw",
    )

    def __post_init__(self) -> None:
        whole_number("times", self.times, 1)
        whole_number("coordinates", self.coordinates, 1)
        positive("share", self.share)

    def memory(self, registered: int, dimension: int) -> Mapping[str, Vector]:
        """Nothing is remembered."""
        return {}

    def combine(self, sent: Sent) -> Verdict:
        """The step, and in how many draws each row was left."""
        return judged(self, sent, finite_rows(self._combine))

    def _combine(self, sent: Sent) -> Verdict:
        count, dimension = sent.updates.shape
        dropped = min(math.ceil(self.share * sent.attackers), count - 1)
        order = steady_order(sent.updates)
        left, worst = np.zeros(count), np.zeros(count)
        for _ in range(self.times):
            some = order
            rows = sent.updates[some]
            if dimension > self.coordinates:
                rows = rows[:, np.sort(sent.rng.permutation(dimension)[: self.coordinates])]
            scores = outlier_scores(rows)
            left[some[np.argsort(scores, kind="stable")[: count - dropped]]] += 1
            worst[some] = np.maximum(worst[some], scores)
        kept = left == left.max()  # those of every draw; of most draws where no row is left in all of them
        told = "it stands out along the direction in which updates differ most"
        return Verdict(
            step=means(sent.updates, kept), kept=kept, weights=kept / kept.sum(),
            statistics={"projection": worst}, reasons={int(row): told for row in np.flatnonzero(~kept)},
        )  # fmt: skip
