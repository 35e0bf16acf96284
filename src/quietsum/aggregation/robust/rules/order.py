"""Rules that look at each coordinate alone: the median and the trimmed mean of n numbers, wherever they came from.

A block of columns is copied with the coordinate's n numbers side by side and sorted there: vector instructions sort
short contiguous runs several times faster than a selection along the far axis of the matrix.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import final

import numpy as np

from quietsum.aggregation.robust.judge import judge_rows
from quietsum.aggregation.robust.rows.blocks import LARGEST, NotFinite, each_block
from quietsum.aggregation.robust.rule import Facts, Matrix, Sent, Vector, Verdict

__all__ = ["CoordinateMedian", "TrimmedMean", "by_coordinate"]

_SORTED = 1 << 16  # numbers sorted at a time: half a MiB, within the cache of a core


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class CoordinateMedian:
    """The median of every coordinate (Yin, Chen, Ramchandran, Bartlett 2018); the mean of the middle two for even n."""

    name = "median"
    facts = Facts(
        title="coordinate median",
        source="Yin, Chen, Ramchandran, Bartlett 2018",
        breakdown="each coordinate stays between honest values while fewer than half of the updates are anything",
        least=lambda attackers: 2 * attackers + 1,
        limits=(
            "honest updates that differ much leave room between their values; attackers who stay inside the spread "
            "(LIE) shift every coordinate, and its error grows with the number of coordinates"
        ),
    )

    def memory(self, registered: int, dimension: int) -> Mapping[str, Vector]:
        """Nothing is remembered."""
        return {}

    def combine(self, sent: Sent) -> Verdict:
        """The median; every row is in it."""
        return judge_rows(self, sent, self._combine)

    def _combine(self, sent: Sent) -> Verdict:
        low, high = (len(sent) - 1) // 2, len(sent) // 2

        def middle(ordered: Matrix) -> Vector:
            one, other = ordered[:, low].astype(np.float64), ordered[:, high].astype(np.float64)
            found = (one + other) / 2
            return found if np.isfinite(found).all() else one / 2 + other / 2

        return Verdict(step=by_coordinate(sent.updates, middle), kept=np.ones(len(sent), dtype=np.bool_))


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class TrimmedMean:
    """The mean of every coordinate without its f smallest and f largest values (Yin et al. 2018)."""

    name = "trimmed-mean"
    facts = Facts(
        title="trimmed mean",
        source="Yin, Chen, Ramchandran, Bartlett 2018",
        breakdown="each coordinate stays between honest values while at most f updates, fewer than half, are anything",
        least=lambda attackers: 2 * attackers + 1,
        limits=(
            "only f values are cut at each end: f must be stated, and one attacker more breaks it; attackers who stay "
            "inside the spread (LIE) are averaged in"
        ),
    )

    def memory(self, registered: int, dimension: int) -> Mapping[str, Vector]:
        """Nothing is remembered."""
        return {}

    def combine(self, sent: Sent) -> Verdict:
        """The trimmed mean; every row counts as kept, since each is cut in some coordinates only."""
        return judge_rows(self, sent, self._combine)

    def _combine(self, sent: Sent) -> Verdict:
        first, last = sent.attackers, len(sent) - sent.attackers
        shares = np.full(last - first, 1.0 / (last - first))

        def inner(ordered: Matrix) -> Vector:
            kept = ordered[:, first:last]
            return np.asarray(kept.astype(np.float64, copy=False) @ shares)

        step = by_coordinate(sent.updates, inner)
        return Verdict(step=np.clip(step, -LARGEST, LARGEST), kept=np.ones(len(sent), dtype=np.bool_))


def by_coordinate(updates: Matrix, take: Callable[[Matrix], Vector]) -> Vector:
    """``take`` of each coordinate's numbers in order, a row a coordinate."""
    rows, dimension = updates.shape
    step = np.empty(dimension)
    broken: list[bool] = []

    def work(part: slice, _: int) -> None:
        ordered = np.ascontiguousarray(updates[:, part].T)
        ordered.sort(axis=1)
        # nan sorts to the end, so the ends tell whether all is finite
        broken.append(not (np.isfinite(ordered[:, 0]).all() and np.isfinite(ordered[:, -1]).all()))
        step[part] = take(ordered)

    each_block(rows, dimension, work, numbers=_SORTED)
    if any(broken):
        raise NotFinite
    return step
