"""Rules that look at each coordinate alone: the median of n numbers, wherever they came from."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import final

import numpy as np

from quietsum.aggregation.robust.rule import Facts, Sent, Vector, Verdict

__all__ = ["CoordinateMedian"]


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class CoordinateMedian:
    """The median of every coordinate (Yin, Chen, Ramchandran, Bartlett 2018)."""

    name = "median"
    facts = Facts(
        title="coordinate median",
        source="Yin, Chen, Ramchandran, Bartlett 2018",
        breakdown="each coordinate stays between honest values while fewer than half of the updates are anything",
        least=lambda attackers: 2 * attackers + 1,
    )

    def memory(self, registered: int, dimension: int) -> Mapping[str, Vector]:
        """Nothing is remembered."""
        return {}

    def combine(self, sent: Sent) -> Verdict:
        """The median; every row is in it."""
        step = np.median(sent.updates, axis=0).astype(np.float64)
        return Verdict(step=step, kept=np.ones(len(sent), dtype=np.bool_))
