"""What the server does with the averaged update: plain steps, momentum, or steps scaled by coordinate.

An optimizer's memory lies in *slots* beside the model: named vectors that go into checkpoints with it. All of it is
post-processing of steps that were paid for, and all of it is float64.

* :class:`FedAvg` (McMahan, Moore, Ramage, Hampson, Agüera y Arcas 2017): params + η·update.
* :class:`FedAvgM` (Hsu, Qi, Brown 2019): velocity ← β·velocity + update; params + η·velocity.
* :class:`Averaged` around any of them: the model that is shown and kept is a running mean of the models of all rounds,
  average ← d·average + (1 − d)·params, divided by 1 − dⁿ. Noise of different rounds cancels in it, and it costs
  nothing (Polyak, Juditsky 1992; De et al. 2022 for private training).
* :class:`FedAdam` (Reddi et al. 2021, "Adaptive Federated Optimization", Algorithm 2): m ← β₁m + (1 − β₁)·update;
  v ← β₂v + (1 − β₂)·update²; params + η·m / (√v + τ). As they state it: no bias correction, and v starts at τ².
* :class:`ServerAdam` (Kingma, Ba 2015, Algorithm 1): the same with v from 0, and both m and v divided by what they lack
  at their start. In a run of some dozen rounds v of FedAdam never gets there, so its steps are up to three times as
  long as η; these keep to η for any number of rounds.

>>> import numpy as np
>>> optimizer = FedAvgM(momentum=0.5)
>>> state = optimizer.start(np.zeros(1))
>>> for _ in range(3):
...     state = optimizer.step(state, np.ones(1))
>>> state
ServerState(params=array([4.25]), slots={'velocity': array([1.75])})
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Protocol, final

import numpy as np
from numpy.typing import NDArray

from quietsum.errors import CorruptState, InvalidParameter
from quietsum.validate import non_negative, positive

__all__ = [
    "CLIP",
    "KINDS",
    "RULE",
    "Averaged",
    "FedAdam",
    "FedAvg",
    "FedAvgM",
    "ServerAdam",
    "ServerOptimizer",
    "ServerState",
    "server_optimizer",
]

Vector = NDArray[np.float64]

AVERAGE, WEIGHT = "average", "average_weight"
"""The slots of a running mean, and of how much of it is there by now."""
STEPS = "steps"
"""The slot that counts the steps of :class:`ServerAdam`, one number."""
RULE = "rule_"
"""Slots that begin so hold what a robust rule remembers from round to round. No optimizer touches them."""
CLIP = "clip"
"""The slot that holds the bound of the next round, one number, where it adapts. No optimizer touches it."""


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class ServerState:
    """The model and everything else that a round starts from: the optimizer's memory, the bound that adapts."""

    params: Vector
    slots: Mapping[str, Vector] = dataclasses.field(default_factory=dict)

    @property
    def model(self) -> Vector:
        """What is scored and kept: the running mean where there is one, else the params."""
        weight = float(self.slots[WEIGHT][0]) if WEIGHT in self.slots else 0.0
        return self.slots[AVERAGE] / weight if weight else self.params

    @property
    def finite(self) -> bool:
        """Whether every number is one."""
        return all(bool(np.isfinite(vector).all()) for vector in (self.params, *self.slots.values()))

    @property
    def clip(self) -> float | None:
        """The bound of the next round where it adapts."""
        return float(self.slots[CLIP][0]) if CLIP in self.slots else None

    @property
    def memory(self) -> dict[str, Vector]:
        """What the robust rule remembers, by its own names."""
        return {name.removeprefix(RULE): vector for name, vector in self.slots.items() if name.startswith(RULE)}

    def with_memory(self, memory: Mapping[str, Vector]) -> ServerState:
        """The same with what a robust rule remembers now; names that are not in ``memory`` stay."""
        if not memory:
            return self
        kept = {RULE + name: np.asarray(vector, dtype=np.float64) for name, vector in memory.items()}
        return ServerState(params=self.params, slots={**self.slots, **kept})

    def with_clip(self, clip: float | None) -> ServerState:
        """The same with another bound; None changes nothing."""
        if clip is None:
            return self
        positive(CLIP, clip)
        return ServerState(params=self.params, slots={**self.slots, CLIP: np.array([clip])})


class ServerOptimizer(Protocol):
    """From an averaged update to the next model."""

    def start(self, params: Vector) -> ServerState:
        """The state before the first step."""
        ...

    def step(self, state: ServerState, update: Vector) -> ServerState:
        """The state after one averaged update; slots that are not the optimizer's own stay."""
        ...


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class FedAvg:
    """params ← params + learning_rate · update."""

    learning_rate: float = 1.0

    def __post_init__(self) -> None:
        positive("learning_rate", self.learning_rate)

    def start(self, params: Vector) -> ServerState:
        """No memory."""
        return ServerState(params=params.copy())

    def step(self, state: ServerState, update: Vector) -> ServerState:
        """One step."""
        return ServerState(params=state.params + self.learning_rate * update, slots=state.slots)


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class FedAvgM:
    """velocity ← momentum · velocity + update; params ← params + learning_rate · velocity."""

    learning_rate: float = 1.0
    momentum: float = 0.9

    def __post_init__(self) -> None:
        positive("learning_rate", self.learning_rate)
        _below_one("momentum", self.momentum)

    def start(self, params: Vector) -> ServerState:
        """At rest."""
        return ServerState(params=params.copy(), slots={"velocity": np.zeros_like(params)})

    def step(self, state: ServerState, update: Vector) -> ServerState:
        """One step."""
        velocity = self.momentum * state.slots["velocity"] + update
        params = state.params + self.learning_rate * velocity
        return ServerState(params=params, slots={**state.slots, "velocity": velocity})


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class FedAdam:
    """m ← momentum·m + (1 − momentum)·u; v ← second·v + (1 − second)·u²; params + learning_rate·m / (√v + floor).

    As in Algorithm 2 of Reddi et al. 2021: v starts at floor², and neither m nor v is corrected for its start.
    """

    learning_rate: float = 1.0
    momentum: float = 0.9
    second: float = 0.99
    floor: float = 1e-3

    def __post_init__(self) -> None:
        _check_moments(self)

    def start(self, params: Vector) -> ServerState:
        """m = 0, v = floor²."""
        return ServerState(
            params=params.copy(), slots={"first": np.zeros_like(params), "second": np.full_like(params, self.floor**2)}
        )

    def step(self, state: ServerState, update: Vector) -> ServerState:
        """One step."""
        first = self.momentum * state.slots["first"] + (1 - self.momentum) * update
        second = self.second * state.slots["second"] + (1 - self.second) * np.square(update)
        params = state.params + self.learning_rate * first / (np.sqrt(second) + self.floor)
        return ServerState(params=params, slots={**state.slots, "first": first, "second": second})


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class ServerAdam:
    """m and v as in :class:`FedAdam`, from 0; params + learning_rate · m̂ / (√v̂ + floor).

    m̂ = m / (1 − momentumⁿ) and v̂ = v / (1 − secondⁿ) after n steps (Kingma, Ba 2015, Algorithm 1): both are weighted
    means of what was seen, so the first step moves each number by the learning rate.

    >>> optimizer = ServerAdam(learning_rate=0.1, floor=1e-9)
    >>> state = optimizer.start(np.zeros(2))
    >>> [optimizer.step(state, np.array(update)).params.round(6).tolist() for update in ([3.0, -0.02], [1.0, 1.0])]
    [[0.1, -0.1], [0.1, 0.1]]
    """

    learning_rate: float = 1.0
    momentum: float = 0.9
    second: float = 0.99
    floor: float = 1e-3

    def __post_init__(self) -> None:
        _check_moments(self)

    def start(self, params: Vector) -> ServerState:
        """Nothing seen."""
        zeros = np.zeros_like(params)
        return ServerState(params=params.copy(), slots={"first": zeros, "second": zeros.copy(), STEPS: np.zeros(1)})

    def step(self, state: ServerState, update: Vector) -> ServerState:
        """One step."""
        count = float(state.slots[STEPS][0]) + 1
        first = self.momentum * state.slots["first"] + (1 - self.momentum) * update
        second = self.second * state.slots["second"] + (1 - self.second) * np.square(update)
        mean, square = first / (1 - self.momentum**count), second / (1 - self.second**count)
        params = state.params + self.learning_rate * mean / (np.sqrt(square) + self.floor)
        slots = {**state.slots, "first": first, "second": second, STEPS: np.array([count])}
        return ServerState(params=params, slots=slots)


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Averaged:
    """Another optimizer, and a running mean of its models beside it.

    >>> optimizer = Averaged(inner=FedAvg(), decay=0.5)
    >>> state = optimizer.start(np.zeros(1))
    >>> for update in (1.0, 3.0):
    ...     state = optimizer.step(state, np.array([update]))
    >>> state.params, state.model  # 1 and 4, weighed 1 : 2
    (array([4.]), array([3.]))
    """

    inner: ServerOptimizer
    decay: float

    def __post_init__(self) -> None:
        if not _below_one("average", self.decay) > 0:
            raise InvalidParameter("average", self.decay, "averages nothing", "use the optimizer itself")

    def start(self, params: Vector) -> ServerState:
        """The inner optimizer's start, and an empty mean."""
        state = self.inner.start(params)
        return self._with(state, np.zeros_like(params), 0.0)

    def step(self, state: ServerState, update: Vector) -> ServerState:
        """The inner optimizer's step, taken into the mean."""
        after = self.inner.step(state, update)
        mean = self.decay * state.slots[AVERAGE] + (1 - self.decay) * after.params
        return self._with(after, mean, self.decay * float(state.slots[WEIGHT][0]) + 1 - self.decay)

    @staticmethod
    def _with(state: ServerState, mean: Vector, weight: float) -> ServerState:
        return ServerState(params=state.params, slots={**state.slots, AVERAGE: mean, WEIGHT: np.array([weight])})


KINDS = ("fedavg", "fedavgm", "fedadam", "adam")
"""What a plan may name."""


def server_optimizer(
    kind: str,
    *,
    learning_rate: float = 1.0,
    momentum: float = 0.9,
    second: float = 0.99,
    floor: float = 1e-3,
    average: float = 0.0,
) -> ServerOptimizer:
    """The optimizer that a plan names; numbers that its kind does not use are left aside. ``average`` 0 is none."""
    if average:
        plain = server_optimizer(kind, learning_rate=learning_rate, momentum=momentum, second=second, floor=floor)
        return Averaged(inner=plain, decay=average)
    match kind:
        case "fedavg":
            return FedAvg(learning_rate=learning_rate)
        case "fedavgm":
            return FedAvgM(learning_rate=learning_rate, momentum=momentum)
        case "fedadam":
            return FedAdam(learning_rate=learning_rate, momentum=momentum, second=second, floor=floor)
        case "adam":
            return ServerAdam(learning_rate=learning_rate, momentum=momentum, second=second, floor=floor)
    raise InvalidParameter("optimizer", kind, "is unknown", f"choose among {', '.join(KINDS)}")


def check_slots(state: ServerState, fresh: ServerState) -> None:
    """Refuse a saved state that is not of the form of ``fresh``, the one a new run of the same plan starts from."""
    if set(state.slots) != set(fresh.slots):
        raise CorruptState(
            f"it holds {_list_slots(state)} beside the model, the plan's optimizer needs {_list_slots(fresh)}; "
            "use the version that wrote it"
        )
    for name, vector in (("params", state.params), *state.slots.items()):
        wanted = fresh.params if name == "params" else fresh.slots[name]
        if vector.shape != wanted.shape:
            raise CorruptState(f"its {name} has {vector.size} numbers, the task needs {wanted.size}")
    steps = float(state.slots[STEPS][0]) if STEPS in state.slots else 0.0
    if not (steps >= 0 and steps.is_integer()):
        raise CorruptState(f"its optimizer counts {steps:g} steps, and that is a whole number from 0 on")
    if WEIGHT in state.slots and not 0 <= state.slots[WEIGHT][0] <= 1:
        raise CorruptState(f"the weight of its running mean is {state.slots[WEIGHT][0]:g}, not between 0 and 1")
    if state.clip is not None and not state.clip > 0:
        raise CorruptState(f"its bound is {state.clip:g}, and a bound is positive")


def _list_slots(state: ServerState) -> str:
    return ", ".join(sorted(state.slots)) or "nothing"


def _check_moments(kind: FedAdam | ServerAdam) -> None:
    positive("learning_rate", kind.learning_rate)
    _below_one("momentum", kind.momentum)
    _below_one("second", kind.second)
    positive("floor", kind.floor, "it keeps small coordinates from taking giant steps")


def _below_one(name: str, value: float) -> float:
    if non_negative(name, value) >= 1:
        raise InvalidParameter(name, value, "must be less than 1", "0.9 is common, 0 is none")
    return value
