"""Krum and Multi-Krum: the updates with the nearest neighbours (Blanchard, El Mhamdi, Guerraoui, Stainer 2017).

The score of an update is the sum of squared distances to its n − f − 2 nearest others, as in the paper and in Flower;
ByzFL sums n − f − 1. Krum's step is the update with the lowest score, Multi-Krum's the mean of the n − f lowest.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import final

import numpy as np

from quietsum.aggregation.robust.judge import judge_rows, lowest
from quietsum.aggregation.robust.rows.blocks import LARGEST, NotFinite, mixture
from quietsum.aggregation.robust.rows.distances import pairwise_distances, rough_distances
from quietsum.aggregation.robust.rule import Facts, Matrix, Rule, Sent, Vector, Verdict

__all__ = ["Krum", "MultiKrum", "krum_scores"]

_LARGE = 1 << 22  # numbers from which on single precision is tried first
_TILE = 256  # rows scored at a time
_CLEAR = 1e-5  # relative: a hundred times what single precision is off by


def _least(attackers: int) -> int:
    """n > 2f + 2 (the paper's condition); without attackers, any number will do."""
    return 2 * attackers + 3 if attackers else 1


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Krum:
    """The one update that lies closest to its n − f − 2 nearest others."""

    name = "krum"
    facts = Facts(
        title="Krum",
        source="Blanchard, El Mhamdi, Guerraoui, Stainer 2017",
        breakdown=(
            "the step is an update with honest ones near it while 2f + 2 < n; where honest updates agree, it is close "
            "to them"
        ),
        least=_least,
        pairs=True,
        limits=(
            "the step is a single update, so nothing averages out; sites whose data differ from the others' are never "
            "chosen; attackers who sit close together inside the honest spread win"
        ),
    )

    def memory(self, registered: int, dimension: int) -> Mapping[str, Vector]:
        """Nothing is remembered."""
        return {}

    def combine(self, sent: Sent) -> Verdict:
        """The update with the lowest score; ``score`` is each update's, as the root of its sum of squares."""
        return judge_rows(self, sent, lambda part: _closest(self, part, 1))


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class MultiKrum:
    """The mean of the n − f updates with the lowest scores of Krum."""

    name = "multi-krum"
    facts = Facts(
        title="Multi-Krum",
        source="Blanchard, El Mhamdi, Guerraoui, Stainer 2017",
        breakdown=(
            "every update in the mean has honest ones near it while 2f + 2 < n; where honest updates agree, the step "
            "is close to them"
        ),
        least=_least,
        pairs=True,
        limits=(
            "always leaves out f, also where all are honest; attackers who sit close together inside the honest "
            "spread (LIE) are kept, and honest sites whose data differ are not"
        ),
    )

    def memory(self, registered: int, dimension: int) -> Mapping[str, Vector]:
        """Nothing is remembered."""
        return {}

    def combine(self, sent: Sent) -> Verdict:
        """The mean of the n − f with the lowest scores; ``score`` as for :class:`Krum`."""
        return judge_rows(self, sent, lambda part: _closest(self, part, len(part) - part.attackers))


def krum_scores(distances: Matrix, attackers: int) -> Vector:
    """The root of each row's sum of squares of its n − f − 2 smallest distances to others (at least one).

    The root orders rows as the sum does, and stays in range.
    """
    count = len(distances)
    if count == 1:
        return np.zeros(1)
    neighbours = min(max(count - attackers - 2, 1), count - 1)
    scores = np.empty(count)
    for start in range(0, count, _TILE):  # so that no second table of all pairs is needed
        others = distances[start : start + _TILE].copy()
        others[np.arange(len(others)), np.arange(start, start + len(others))] = np.inf
        others.partition(neighbours - 1, axis=1)
        nearest = others[:, :neighbours]
        unit = nearest.max(axis=1, keepdims=True)
        unit[unit == 0] = 1.0
        sums = np.sum(np.sort((nearest / unit) ** 2, axis=1), axis=1)
        scores[start : start + _TILE] = unit[:, 0] * np.sqrt(sums)
    return np.minimum(scores, LARGEST)


def _scores(sent: Sent, count: int) -> Vector:
    """The scores, in single precision where that tells the ``count`` lowest from the others beyond doubt."""
    if sent.updates.size >= _LARGE and count < len(sent):
        rough = rough_distances(sent.updates)
        if rough is not None:
            scores = krum_scores(rough, sent.attackers)
            last, next_one = np.partition(scores, (count - 1, count))[count - 1 : count + 1]
            if next_one - last > _CLEAR * next_one:
                return scores
    distances = pairwise_distances(sent.updates)
    if np.isnan(distances).any():
        raise NotFinite
    return krum_scores(distances, sent.attackers)


def _closest(rule: Rule, sent: Sent, count: int) -> Verdict:
    scores = _scores(sent, count)
    chosen = lowest(scores, count, sent.updates)
    kept = np.zeros(len(sent), dtype=np.bool_)
    kept[chosen] = True
    weights = kept / len(chosen)
    step = mixture(sent.updates, weights) if count > 1 else sent.updates[chosen[0]].astype(np.float64)
    reason = "its score, the distance to its nearest others, is not among the lowest"
    return Verdict(
        step=step, kept=kept, weights=weights, statistics={"score": scores},
        reasons={int(row): reason for row in np.flatnonzero(~kept)},
    )  # fmt: skip
