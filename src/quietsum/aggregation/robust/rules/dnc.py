"""DnC, divide and conquer: what many attackers have in common is the direction in which updates differ most.

Shejwalkar and Houmansadr 2021, algorithm 2: b coordinates are drawn, the rows are centred, v is the first right
singular vector, and the c·f rows with the largest (x − mean)·v squared are left out. That is done several times with
coordinates drawn anew, and the step is the mean of the rows that are left every time. With rows as an (n, b) matrix A,
scores are |A v|, where v is the first eigenvector of AᵀA, or σ |u|, where u is that of A Aᵀ: the smaller of the two
matrices is taken. Up to :data:`DENSE` rows or coordinates its first eigenvector is LAPACK's, beyond it Lanczos' to a
relative tolerance of :data:`TOLERANCE`, from a random start that no attacker knows.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, final

import numpy as np

from quietsum.aggregation.robust.judge import judge_rows, require_finite, steady_order
from quietsum.aggregation.robust.rows.blocks import LARGEST, mixture
from quietsum.aggregation.robust.rows.distances import gram
from quietsum.aggregation.robust.rule import Facts, Matrix, Sent, Vector, Verdict
from quietsum.validate import positive, whole_number

if TYPE_CHECKING:
    from quietsum.mechanisms import RandomSource

__all__ = ["DENSE", "TOLERANCE", "DivideAndConquer", "outlier_scores"]

DENSE = 1024
"""Rows and columns up to which all of a matrix is decomposed."""
TOLERANCE = 1e-10
"""Of the first eigenvalue: where Lanczos stops."""


def outlier_scores(rows: Matrix, rng: RandomSource | None = None) -> Vector:
    """The projection of each centred row on the direction in which the rows differ most, without its sign.

    >>> outlier_scores(np.array([[0.0, 1.0], [0.0, -1.0], [9.0, 0.0]])).round(1).tolist()
    [3.0, 3.0, 6.0]
    """
    largest = float(np.abs(rows).max(initial=0.0))
    if not largest > 0:
        return np.zeros(len(rows))
    centred = np.asarray(rows, dtype=np.float64) / largest
    centred -= centred.mean(axis=0)
    if len(rows) <= rows.shape[1]:
        value, vector = _first(gram(centred), rng)
        found = np.sqrt(max(value, 0.0)) * np.abs(vector)
    else:
        found = np.abs(centred @ _first(gram(centred.T), rng)[1])
    most = LARGEST / max(2 * float(found.max()), 1.0)  # in range, and still in order
    return np.asarray(found * min(largest, most), dtype=np.float64)


def _first(products: Matrix, rng: RandomSource | None) -> tuple[float, Vector]:
    """The largest eigenvalue of a symmetric matrix, and its vector."""
    from scipy.linalg import eigh
    from scipy.sparse.linalg import ArpackError, eigsh

    from quietsum.mechanisms import system_randomness

    last = len(products) - 1
    if last >= DENSE:
        start = (rng or system_randomness()).normals(len(products))
        with contextlib.suppress(ArpackError):  # no convergence, or all zeros: LAPACK takes longer and always answers
            values, vectors = eigsh(products, k=1, which="LA", tol=TOLERANCE, v0=start)
            return float(values[0]), vectors[:, 0]
    values, vectors = eigh(products, subset_by_index=[last, last])
    return float(values[0]), vectors[:, 0]


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
        return judge_rows(self, sent, require_finite(self._combine))

    def _combine(self, sent: Sent) -> Verdict:
        count, dimension = sent.updates.shape
        dropped = min(math.ceil(self.share * sent.attackers), count - 1)
        order = steady_order(sent.updates)
        left, worst = np.zeros(count), np.zeros(count)
        for _ in range(self.times):
            rows = sent.updates
            if dimension > self.coordinates:
                rows = rows[:, np.sort(sent.rng.permutation(dimension)[: self.coordinates])]
            scores = outlier_scores(rows[order], sent.rng)
            left[order[np.argsort(scores, kind="stable")[: count - dropped]]] += 1
            worst[order] = np.maximum(worst[order], scores)
        kept = left == left.max()  # those of every draw; of most draws where no row is left in all of them
        reason = "it stands out along the direction in which updates differ most"
        return Verdict(
            step=mixture(sent.updates, kept / kept.sum()), kept=kept, weights=kept / kept.sum(),
            statistics={"projection": worst}, reasons={int(row): reason for row in np.flatnonzero(~kept)},
        )  # fmt: skip
