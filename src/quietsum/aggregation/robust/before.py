"""Mixing updates before a rule sees them, so that honest ones differ less.

* ``nnm``, nearest-neighbour mixing (Allouah, Farhadkhani, Guerraoui, Gupta, Pinot, Stephan 2023): each update is
  replaced by the mean of the n − f nearest to it, itself included.
* ``bucketing`` (Karimireddy, He, Jaggi 2022): updates are put into random buckets of two, and the rule sees the mean of
  each; an odd one stands alone.

Sites with unlike data send unlike updates, which rules that compare them take for outliers; a mean of several is more
like another mean of several. The price is stated in :class:`Before`'s facts: a bucket with one attacker is an
attacker's, and buckets are half as many as updates.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import final

import numpy as np

from quietsum.aggregation.robust.judge import judge_rows, require_finite, steady_order
from quietsum.aggregation.robust.rows.blocks import mixtures
from quietsum.aggregation.robust.rows.distances import pairwise_distances
from quietsum.aggregation.robust.rule import Facts, Matrix, Rule, Sent, Vector, Verdict
from quietsum.errors import InvalidParameter

__all__ = ["BEFORE", "Before"]

BEFORE = ("nnm", "bucketing")
"""The kinds of mixing that a plan may name."""
BUCKET = 2


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Before:
    """``rule`` on updates that were mixed by ``kind`` first.

    Guarantees: the facts are those of both together. A row is kept where it is part of a mixed row that the rule keeps;
    statistics are those of mixed rows, each stated for all rows in it, under names that begin with ``mixed_``.
    """

    rule: Rule
    kind: str

    def __post_init__(self) -> None:
        if self.kind not in BEFORE:
            raise InvalidParameter("before", self.kind, "is unknown", f"choose among {', '.join(BEFORE)}")
        if self.kind == "bucketing" and self.rule.facts.remembers:
            raise InvalidParameter(
                "before", self.kind, f"mixes parties anew in every round, and {self.rule.name} remembers each of them",
                'choose before = "nnm", or leave it out',
            )  # fmt: skip

    @property
    def name(self) -> str:
        """The rule's own name: what comes before it is another key of the plan."""
        return self.rule.name

    @functools.cached_property
    def facts(self) -> Facts:
        """The facts of both together."""
        inner, bucketing = self.rule.facts, self.kind == "bucketing"

        def least(attackers: int) -> int:
            if bucketing:  # as many buckets as the rule needs; one attacker spoils one bucket
                return BUCKET * (inner.least(attackers) - 1) + 1
            return max(inner.least(attackers), 2 * attackers + 1)

        first, paper = (
            (f"buckets of {BUCKET}", "Karimireddy, He, Jaggi 2022") if bucketing
            else ("mixing with the n − f nearest", "Allouah et al. 2023")
        )  # fmt: skip
        breakdown = (
            f"of the ⌈n/{BUCKET}⌉ bucket means as many may be anything as there are attackers: {inner.breakdown}"
            if bucketing
            else f"as long as fewer than half of the updates are anything: {inner.breakdown}"
        )
        return dataclasses.replace(
            inner, title=f"{inner.title} after {first}", source=f"{inner.source}; {paper}", breakdown=breakdown,
            least=least, needs_individuals=True, sensitivity=None, pairs=inner.pairs or not bucketing,
        )  # fmt: skip

    def memory(self, registered: int, dimension: int) -> Mapping[str, Vector]:
        """The memory of the rule."""
        return self.rule.memory(registered, dimension)

    def combine(self, sent: Sent) -> Verdict:
        """The rule's step on mixed rows, stated for the rows that were sent."""
        return judge_rows(self, sent, require_finite(self._combine))

    def _combine(self, sent: Sent) -> Verdict:
        mixing = self._nearest(sent) if self.kind == "nnm" else self._buckets(sent)
        mixed = mixtures(sent.updates, mixing)
        places = sent.places if self.kind == "nnm" else np.arange(len(mixed), dtype=np.int64)
        registered = sent.registered if self.kind == "nnm" else max(sent.registered, len(mixed))
        found = self.rule.combine(dataclasses.replace(sent, updates=mixed, places=places, registered=registered))
        part = mixing > 0
        kept = np.asarray(part[found.kept].any(axis=0))
        share = part / part.sum(axis=0)  # a row's number is the mean over the mixed rows that it is part of
        reasons = {row: f"no mixed update that it is part of was kept ({self.kind})" for row in np.flatnonzero(~kept)}
        with np.errstate(over="ignore", invalid="ignore"):
            statistics = {f"mixed_{name}": np.nan_to_num(values @ share) for name, values in found.statistics.items()}
        return Verdict(
            step=found.step, kept=kept, weights=None if found.weights is None else found.weights @ mixing,
            statistics=statistics, reasons={int(row): why for row, why in reasons.items()}, memory=found.memory,
        )  # fmt: skip

    @staticmethod
    def _nearest(sent: Sent) -> Matrix:
        """Row i holds the share of each update in the i-th mixed one."""
        count = len(sent)
        near = max(count - sent.attackers, 1)
        order = steady_order(sent.updates)
        distances = pairwise_distances(sent.updates)
        np.fill_diagonal(distances, -1.0)  # itself first, also among rows that are the same
        mixing = np.zeros((count, count))
        for row in range(count):
            mixing[row, order[np.argsort(distances[row, order], kind="stable")[:near]]] = 1 / near
        return mixing

    @staticmethod
    def _buckets(sent: Sent) -> Matrix:
        count = len(sent)
        drawn = steady_order(sent.updates)[sent.rng.permutation(count)]
        buckets = np.array_split(drawn, range(BUCKET, count, BUCKET))
        mixing = np.zeros((len(buckets), count))
        for row, members in enumerate(buckets):
            mixing[row, members] = 1 / len(members)
        return mixing
