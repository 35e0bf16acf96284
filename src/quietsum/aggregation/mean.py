"""The weighted mean of the updates that arrived, as a fold: memory does not grow with the cohort.

Weights are *declared* numbers: a party's public size, or 1 for each. A weight that is computed from private rows would
be a release of its own. For a promise to whole clients see :mod:`quietsum.aggregation.clients`.

>>> import numpy as np
>>> from quietsum.mechanisms.rng import system_randomness
>>> mean = WeightedMean(weights={"north": 3.0, "south": 1.0}, dimension=2)
>>> state = mean.start()
>>> for party, update in (("north", [1.0, 0.0]), ("south", [-1.0, 2.0])):
...     state = mean.add(state, party, np.array(update))
>>> mean.finish(state, system_randomness())
Combined(step=array([0.5, 0.5]), kept=('north', 'south'), clip=None)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import final

import numpy as np

from quietsum.aggregation.fold import Combined, Vector, length_of, problem_with_update, refuse_twice, usable_rows
from quietsum.errors import InvalidParameter, TooFewParties
from quietsum.mechanisms import RandomSource
from quietsum.validate import positive, whole_number

__all__ = ["MeanState", "WeightedMean"]

_ROOM = 1 + 1e-9  # for rounding in the norm of a sum


@final
@dataclasses.dataclass(kw_only=True)
class MeanState:
    """What has been folded so far: the weighted sum, the sum of weights, and the parties in it."""

    total: Vector
    weight: float
    kept: dict[str, None]


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class WeightedMean:
    """Σ w·update / Σ w over the parties that replied, with public weights.

    Guarantees: none of privacy. Every update already carries its party's noise, so this is post-processing. No update
    longer than its party's limit (:mod:`quietsum.plan.resolution.lengths`) is in the mean, so none moves it by more
    than its weight times that.
    """

    weights: Mapping[str, float]
    dimension: int
    limits: Mapping[str, float] = dataclasses.field(default_factory=dict)
    needs_individuals = False
    needs_updates = True

    def __post_init__(self) -> None:
        whole_number("dimension", self.dimension, 1)
        for party, weight in self.weights.items():
            positive(f"weights[{party!r}]", weight, "weights are declared sizes, or 1 for each party")

    def start(self) -> MeanState:
        """Nothing folded yet."""
        return MeanState(total=np.zeros(self.dimension), weight=0.0, kept={})

    def problem_with(self, update: object, party: str = "") -> str:
        """Why ``update`` of ``party`` cannot be used, or an empty text."""
        problem = problem_with_update(update, self.dimension)
        if not problem and party in self.limits and isinstance(update, np.ndarray):
            problem = _too_long(update, self.limits[party])
        return problem

    def add(self, state: MeanState, party: str, update: Vector) -> MeanState:
        """``state`` with one more update; a misshapen or non-finite one raises and changes nothing."""
        self._check_registered((party,))
        refuse_twice((party,), state.kept)
        if problem := self.problem_with(update, party):
            raise InvalidParameter("update", f"of {party}", problem)
        weight = self.weights[party]
        with np.errstate(over="ignore", invalid="ignore"):  # a sum beyond float64 is caught when the model is made
            state.total += weight * update
        state.weight += weight
        state.kept[party] = None
        return state

    def add_many(self, state: MeanState, parties: Sequence[str], updates: Vector) -> tuple[MeanState, dict[str, str]]:
        """``state`` with the usable rows of ``updates``, and by party what is wrong with the others."""
        self._check_registered(parties)
        usable, broken = usable_rows(parties, updates, self.dimension, state.kept)
        for place in usable:
            if (limit := self.limits.get(parties[place])) is not None and (problem := _too_long(updates[place], limit)):
                broken[parties[place]] = problem
        usable = [place for place in usable if parties[place] not in broken]
        weights = np.array([self.weights[parties[index]] for index in usable])
        with np.errstate(over="ignore", invalid="ignore"):
            state.total += weights @ (updates[usable] if broken else updates)
        state.weight += float(weights.sum())
        state.kept.update(dict.fromkeys(parties[index] for index in usable))
        return state, broken

    def merge(self, one: MeanState, other: MeanState) -> MeanState:
        """Both together, ``one`` first; the weights are added up anew from the names."""
        self._check_registered(other.kept)
        refuse_twice(other.kept, one.kept)
        if problem := self.problem_with(other.total):
            raise InvalidParameter("sum", "of several parties", problem)
        longest = sum(self.weights[party] * self.limits.get(party, np.inf) for party in other.kept)
        if length_of(other.total) > longest * _ROOM:
            raise InvalidParameter("sum", "of several parties", "is longer than they can make it")
        with np.errstate(over="ignore", invalid="ignore"):
            one.total += other.total
        one.weight += sum(self.weights[party] for party in other.kept)
        one.kept.update(other.kept)
        return one

    def finish(self, state: MeanState, rng: RandomSource) -> Combined:
        """The mean, without noise. Raises :class:`~quietsum.errors.TooFewParties` if there is no update."""
        if not state.kept:
            raise TooFewParties("no update arrived, so there is nothing to average; the round is charged all the same")
        return Combined(step=state.total / state.weight, kept=tuple(state.kept))

    def _check_registered(self, parties: Iterable[str]) -> None:
        for party in parties:
            if party not in self.weights:
                known = ", ".join(list(self.weights)[:8]) + (", …" if len(self.weights) > 8 else "")
                raise InvalidParameter("party", party, "is not registered", f"registered are {known}")


def _too_long(update: Vector, limit: float) -> str:
    """The problem of an update that is longer than ``limit``; empty if it is not."""
    length = length_of(update)
    return "" if length <= limit else f"has length {length:.3g}, and an honest one has at most {limit:.3g}"
