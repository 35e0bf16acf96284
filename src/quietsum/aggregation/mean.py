"""The weighted mean of the updates that arrived, as a fold: memory does not grow with the cohort.

Weights are *declared* numbers (a party's public size, or one for each). A weight computed from private rows would be a
release of its own.

>>> import numpy as np
>>> mean = WeightedMean(weights={"north": 3.0, "south": 1.0}, dimension=2)
>>> state = mean.start()
>>> for party, update in (("north", [1.0, 0.0]), ("south", [-1.0, 2.0])):
...     state = mean.add(state, party, np.array(update))
>>> mean.finish(state)
Combined(step=array([0.5, 0.5]), kept=('north', 'south'))
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import final

import numpy as np
from numpy.typing import NDArray

from quietsum.errors import InvalidParameter, TooFewParties, positive, whole_number

__all__ = ["Combined", "State", "WeightedMean"]

Vector = NDArray[np.float64]


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class State:
    """What has been folded so far: the weighted sum, the sum of weights, and whose updates they were."""

    total: Vector
    weight: float
    kept: tuple[str, ...]


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Combined:
    """The result of a fold: the step, and whose updates are in it (which only the operator may see)."""

    step: Vector
    kept: tuple[str, ...]


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class WeightedMean:
    """Σ w·update / Σ w over the parties that replied, with public weights.

    Guarantees: none of its own. Every update already carries its party's noise, so this is post-processing.
    """

    weights: Mapping[str, float]
    dimension: int
    needs_individuals = False

    def __post_init__(self) -> None:
        whole_number("dimension", self.dimension, 1)
        for party, weight in self.weights.items():
            positive(f"weights[{party!r}]", weight, "weights are declared sizes, or 1 for each party")

    def start(self) -> State:
        """Nothing folded yet."""
        return State(total=np.zeros(self.dimension), weight=0.0, kept=())

    def problem_with(self, update: object) -> str:
        """Why ``update`` cannot be used, or an empty text."""
        if not isinstance(update, np.ndarray):
            return f"is a {type(update).__name__}, not an array"
        if update.dtype != np.float64:
            return f"has type {update.dtype}, not float64"
        if update.shape != (self.dimension,):
            return f"has shape {update.shape}, not ({self.dimension},)"
        if not np.all(np.isfinite(update)):
            return "holds a value that is not finite"
        return ""

    def add(self, state: State, party: str, update: Vector) -> State:
        """``state`` with one more update; a misshapen or non-finite one raises and changes nothing."""
        if party not in self.weights:
            raise InvalidParameter("party", party, "is not registered", f"registered are {', '.join(self.weights)}")
        if party in state.kept:
            raise InvalidParameter("party", party, "has already replied in this round", "count each party once")
        if problem := self.problem_with(update):
            raise InvalidParameter("update", f"of {party}", problem)
        weight = self.weights[party]
        return State(total=state.total + weight * update, weight=state.weight + weight, kept=(*state.kept, party))

    def finish(self, state: State) -> Combined:
        """The mean; no updates at all raise :class:`~quietsum.errors.TooFewParties`."""
        if not state.kept:
            raise TooFewParties("no update arrived, so there is nothing to average; the round is charged all the same")
        return Combined(step=state.total / state.weight, kept=state.kept)
