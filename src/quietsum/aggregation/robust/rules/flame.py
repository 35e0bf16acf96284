"""FLAME-style clustering: the majority that points the same way, cut to the median length (Nguyen et al. 2022).

Updates are clustered by cosine distance with HDBSCAN at min_cluster_size = ⌊n/2⌋ + 1 and min_samples = 1. So large a
cluster exists once or not at all, so no cluster library is needed: HDBSCAN's answer is the first component of the graph
"nearer than h" that holds so many rows, as h grows (single linkage; with min_samples = 1 the mutual reachability of two
rows is their distance). The rows in it are cut to the median length of all rows and averaged.

FLAME's third step adds Gaussian noise to the result. It is left out: its size is chosen against backdoors from a
sensitivity that such a clustering does not have, so it is **not privacy** and no ε follows from it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import final

import numpy as np
from numpy.typing import NDArray

from quietsum.aggregation.robust.judge import judge_rows, require_finite
from quietsum.aggregation.robust.rows.blocks import lengths, mixture
from quietsum.aggregation.robust.rows.distances import cosines
from quietsum.aggregation.robust.rule import Facts, Matrix, Sent, Vector, Verdict

__all__ = ["Flame", "densest_majority"]


def densest_majority(distances: Matrix) -> NDArray[np.bool_]:
    """The rows of the first single-linkage component with more than half of all rows, as the distance grows.

    >>> points = np.array([0.0, 0.1, 0.2, 5.0, 9.0])
    >>> densest_majority(abs(points[:, None] - points[None, :])).tolist()
    [True, True, True, False, False]
    """
    count = len(distances)
    if count == 1:
        return np.ones(1, dtype=np.bool_)
    member = np.arange(count)  # the smallest row of each row's component
    edges, apart = _spanning_tree(distances)
    for place in np.argsort(apart, kind="stable"):
        one, other = sorted(member[edges[place]].tolist())
        member[member == other] = one
        if np.count_nonzero(member == one) > count // 2:
            return _within(distances, float(apart[place]), one)  # with every other edge of the same length
    return np.ones(count, dtype=np.bool_)


def _spanning_tree(distances: Matrix) -> tuple[NDArray[np.int64], Vector]:
    """The edges of a minimum spanning tree and their lengths (Prim)."""
    count = len(distances)
    reached = np.zeros(count, dtype=np.bool_)
    reached[0] = True
    near, source = distances[0].astype(np.float64), np.zeros(count, dtype=np.int64)
    edges, apart = np.zeros((count - 1, 2), dtype=np.int64), np.zeros(count - 1)
    for place in range(count - 1):
        following = int(np.argmin(np.where(reached, np.inf, near)))
        edges[place], apart[place] = (source[following], following), near[following]
        reached[following] = True
        closer = distances[following] < near
        near, source = np.where(closer, distances[following], near), np.where(closer, following, source)
    return edges, apart


def _within(distances: Matrix, limit: float, start: int) -> NDArray[np.bool_]:
    """What can be reached from ``start`` in steps of at most ``limit``."""
    found = np.zeros(len(distances), dtype=np.bool_)
    found[start] = True
    reached = np.array([start])
    while len(reached):  # every row is reached once, and its distances are looked at once
        near = (distances[reached] <= limit).any(axis=0)
        reached = np.flatnonzero(near & ~found)
        found[reached] = True
    return found


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Flame:
    """The mean of the majority that points the same way, each row cut to the median length."""

    name = "flame"
    facts = Facts(
        title="FLAME-style clustering, without its noise",
        source="Nguyen et al. 2022",
        breakdown="none proved; needs an honest majority, and no row counts for more than the median length",
        least=lambda attackers: 2 * attackers + 1,
        pairs=True,
        limits="FLAME's noise step is left out: it is no privacy. Attackers that keep within the spread of honest "
        "directions stay in the cluster, and honest ones outside the densest majority fall out of it in every round",
    )

    def memory(self, registered: int, dimension: int) -> Mapping[str, Vector]:
        """Nothing is remembered."""
        return {}

    def combine(self, sent: Sent) -> Verdict:
        """The step, the length of each row and its median cosine to the others."""
        return judge_rows(self, sent, require_finite(self._combine))

    def _combine(self, sent: Sent) -> Verdict:
        apart, size = cosines(sent.updates), lengths(sent.updates)
        middling = np.array([np.median(row) for row in apart])
        np.subtract(1, apart, out=apart)
        np.fill_diagonal(apart, 0.0)
        kept = densest_majority(apart)
        middle = float(np.median(size / 2)) * 2
        shares = kept / kept.sum()
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            cut = np.where(size > middle, middle / size, 1.0)
        reason = "its direction is not in the cluster of the majority"
        return Verdict(
            step=mixture(sent.updates, shares * cut), kept=kept, weights=shares,
            statistics={"length": size, "median_cosine": middling},
            reasons={int(row): reason for row in np.flatnonzero(~kept)},
        )  # fmt: skip
