"""The geometric median: the point with the smallest sum of distances to all updates, by smoothed Weiszfeld steps.

z ← Σ w_i g_i / Σ w_i with w_i = 1 / max(ν, |g_i − z|) (Pillutla, Kakade, Harchaoui 2022, Algorithm 2). z stays a
mixture of the updates, so the products of all updates with each other, around one of them, are all that the steps need:
|g_k − Σ a_i g_i|² = K_kk − 2 (K a)_k + aᵀ K a. The matrix is read once for K and once for the result.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import final

import numpy as np

from quietsum.aggregation.robust.judge import judge_rows
from quietsum.aggregation.robust.rows.blocks import LARGEST, NotFinite, lengths, mixture
from quietsum.aggregation.robust.rows.distances import central_row, gram
from quietsum.aggregation.robust.rule import Facts, Matrix, Sent, Vector, Verdict
from quietsum.validate import positive, whole_number

__all__ = ["GeometricMedian"]

_FAR = 1e60  # a row so many times further than the middle one pulls in its direction alone, however far
_SAFE = (1e-200, 1e200)  # squares outside are computed in other units
_TILE = 256  # rows at a time
_STILL = 1e-13  # of the middle distance: a step shorter than this ends the search


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class GeometricMedian:
    """The geometric median; ν is ``smoothing`` times the middle distance from the most central update."""

    smoothing: float = 1e-6
    most: int = 10_000
    name = "geometric-median"
    facts = Facts(
        title="geometric median",
        source="Pillutla, Kakade, Harchaoui 2022",
        breakdown=(
            "no further from any point than 2(n − f)/(n − 2f) times the furthest honest update, while fewer than half "
            "are anything (follows from Minsker 2015, Lemma 2.1)"
        ),
        least=lambda attackers: 2 * attackers + 1,
        pairs=True,
        limits=(
            "every update pulls with the same force, so f attackers who agree move it f/n of the way that the honest "
            "spread allows (LIE, Min-Max)"
        ),
    )

    def __post_init__(self) -> None:
        positive("smoothing", self.smoothing)
        whole_number("most", self.most, 1)

    def memory(self, registered: int, dimension: int) -> Mapping[str, Vector]:
        """Nothing is remembered."""
        return {}

    def combine(self, sent: Sent) -> Verdict:
        """The step; ``distance`` is each update's from it, ``weights`` its share of it."""
        return judge_rows(self, sent, self._combine)

    def _combine(self, sent: Sent) -> Verdict:
        updates, everyone = sent.updates, np.ones(len(sent), dtype=np.bool_)
        around = _Around.row(updates, central_row(updates))
        medoid, apart = _medoid(around.products)
        if medoid != around.index and around.products[medoid, medoid] > 100 * apart[medoid] ** 2:
            around = _Around.row(updates, medoid)  # the first centre lies outside: go inside
            medoid, apart = _medoid(around.products)
        middle = float(apart[medoid])
        if not middle > 0:  # half of the updates are one and the same, which is a median
            weights = np.zeros(len(sent))
            weights[medoid] = 1.0
            step = updates[medoid].astype(np.float64)
            return Verdict(step=step, kept=everyone, weights=weights, statistics={"distance": lengths(updates, step)})
        weights, distances = self._weiszfeld(around.products, 1 / apart, self.smoothing * middle, middle)
        if around.scaled is None:
            step = mixture(updates, weights)
        else:
            centre = np.asarray(updates[around.index], dtype=np.float64)
            step = np.clip(centre + around.unit * mixture(around.scaled, weights), -LARGEST, LARGEST)
        found = np.minimum(distances * around.unit, LARGEST)
        return Verdict(step=step, kept=everyone, weights=weights, statistics={"distance": found})

    def _weiszfeld(self, products: Matrix, start: Vector, least: float, middle: float) -> tuple[Vector, Vector]:
        """The shares of the updates in their geometric median, and their distances from it."""
        squares = np.diagonal(products)
        shares = start / start.sum()  # of rows among others more; rows that are alike the same
        distances = np.zeros(len(products))
        for _ in range(self.most):
            towards = products @ shares
            distances = np.sqrt(np.maximum(squares - 2 * towards + shares @ towards, 0.0))
            pulls = 1 / np.maximum(distances, least)
            before, shares = shares, pulls / pulls.sum()
            change = shares - before
            if np.sqrt(max(float(change @ products @ change), 0.0)) <= _STILL * middle:
                break
        return shares, distances


def _medoid(products: Matrix) -> tuple[int, Vector]:
    """The row with the smallest middle distance from all rows, and every row's middle distance."""
    squares, apart = np.diagonal(products), np.empty(len(products))
    for start in range(0, len(products), _TILE):  # so that no second table of all pairs is needed
        tile = slice(start, start + _TILE)
        apart[tile] = np.median(np.maximum(squares[tile, None] + squares - 2 * products[tile], 0.0), axis=1)
    return int(np.argmin(apart)), np.sqrt(apart)


@final
@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class _Around:
    """The products of all updates with each other around the row ``index``.

    Where squares would leave float64, they are those of ``scaled``: differences from that row in units of ``unit``, of
    rows further than :data:`_FAR` units their direction alone.
    """

    index: int
    products: Matrix
    unit: float = 1.0
    scaled: Matrix | None = None

    @classmethod
    def row(cls, updates: Matrix, index: int) -> _Around:
        centre = np.asarray(updates[index], dtype=np.float64)
        products = gram(updates, centre)
        squares = np.diagonal(products)
        middle = float(np.median(squares))
        if _SAFE[0] < middle < _SAFE[1] and squares.max() < middle * _FAR**2:
            return cls(index=index, products=products)
        found = lengths(updates, centre)
        if np.isnan(found).any():
            raise NotFinite
        if not found.any():
            return cls(index=index, products=np.zeros_like(products))
        unit = float(np.median(found)) or float(found[found > 0].min())
        scaled = np.zeros(updates.shape)
        for row in np.flatnonzero(found).tolist():
            apart = np.asarray(updates[row], dtype=np.float64) / 4 - centre / 4
            apart /= np.abs(apart).max()
            scaled[row] = apart * (min(found[row] / unit, _FAR) / float(np.linalg.norm(apart)))
        return cls(index=index, products=gram(scaled), unit=unit, scaled=scaled)
