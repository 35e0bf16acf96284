"""FoolsGold: parties that always push the same way count as one (Fung, Yoon, Beschastnikh 2018, algorithm 1).

For every registered party the sum of all its updates is remembered. With cᵢⱼ the cosine between two such sums and
vᵢ = maxⱼ cᵢⱼ, honest parties that resemble a sybil are pardoned, cᵢⱼ ← cᵢⱼ·vᵢ/vⱼ where vⱼ > vᵢ; then αᵢ = 1 − maxⱼ cᵢⱼ,
divided by the largest, and αᵢ ← ln(αᵢ / (1 − αᵢ)) + ½ cut to [0, 1]. The step is Σ αᵢ·updateᵢ / Σ αᵢ: the paper leaves
the sum undivided, which makes the step's length depend on how many are trusted. Weights of features by their
importance are left out.

It looks for sybils and for nothing else: one attacker alone is never noticed, honest sites with like data are taken for
sybils, and sybils that add different noise are taken for honest ones.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import final

import numpy as np

from quietsum.aggregation.robust.judge import judge_rows, require_finite
from quietsum.aggregation.robust.rows.blocks import LARGEST, mixture
from quietsum.aggregation.robust.rows.distances import cosines
from quietsum.aggregation.robust.rule import Facts, Matrix, Sent, Vector, Verdict

__all__ = ["FoolsGold", "sybil_weights"]

_SURE = 0.99  # the authors' cap before the logit


def sybil_weights(similar: Matrix) -> Vector:
    """αᵢ from the (n, n) cosines of histories, each in [0, 1]; 1 for a single party.

    >>> sybil_weights(np.array([[1.0, 0.99, 0.1], [0.99, 1.0, 0.1], [0.1, 0.1, 1.0]])).round(2).tolist()
    [0.0, 0.0, 1.0]
    """
    count = len(similar)
    if count == 1:
        return np.ones(1)
    others = similar.copy()
    np.fill_diagonal(others, -np.inf)
    nearest, pardoned = others.max(axis=1), np.empty(count)
    with np.errstate(divide="ignore", invalid="ignore"):
        for row, own in enumerate(nearest):
            pardon = np.where(nearest > own, own / nearest, 1.0)
            pardon[~np.isfinite(pardon) | (np.arange(count) == row)] = 1.0
            pardoned[row] = (others[row] * pardon).max()
    trusted = np.clip(1 - pardoned, 0.0, 1.0)
    if not trusted.max() > 1e-12:
        return np.zeros(count)
    trusted = np.minimum(trusted / trusted.max(), _SURE)
    with np.errstate(divide="ignore"):
        return np.asarray(np.clip(np.log(trusted / (1 - trusted)) + 0.5, 0.0, 1.0))


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class FoolsGold:
    """A mean in which parties with the same history share one say."""

    name = "foolsgold"
    facts = Facts(
        title="FoolsGold",
        source="Fung, Yoon, Beschastnikh 2018",
        breakdown="none proved: made for any number of sybils that push the same way, and against nothing else",
        least=lambda attackers: attackers + 1,
        pairs=True,
        remembers=True,
        limits="a single attacker is never noticed; honest sites with like data are taken for sybils, and sybils that "
        "differ by noise for honest ones. It remembers one vector for every registered party",
    )

    def memory(self, registered: int, dimension: int) -> Mapping[str, Vector]:
        """The sum of each party's updates, one party after the other."""
        return {"history": np.zeros(registered * dimension)}

    def combine(self, sent: Sent) -> Verdict:
        """The step, and α of each row."""
        return judge_rows(self, sent, require_finite(self._combine))

    def _combine(self, sent: Sent) -> Verdict:
        count, dimension = sent.updates.shape
        before = sent.memory.get("history")
        history = np.zeros((sent.registered, dimension)) if before is None else before.reshape(-1, dimension).copy()
        with np.errstate(over="ignore"):
            history[sent.places] = np.clip(history[sent.places] + sent.updates, -LARGEST, LARGEST)
        weights = sybil_weights(cosines(history[sent.places]))
        if not weights.any():  # nothing tells any of them apart
            weights = np.ones(count)
        kept = weights > 0
        shares = weights / weights.sum()
        reason = "the sum of its updates so far points where another party's does"
        return Verdict(
            step=mixture(sent.updates, shares), kept=kept, weights=shares, statistics={"say": weights},
            reasons={int(row): reason for row in np.flatnonzero(~kept)}, memory={"history": history.ravel()},
        )  # fmt: skip
