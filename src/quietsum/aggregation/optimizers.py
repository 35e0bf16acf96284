"""What the server does with the averaged update: a step, with or without momentum.

>>> import numpy as np
>>> optimizer = ServerMomentum(momentum=0.5)
>>> state = ServerState(params=np.zeros(1), velocity=np.zeros(1))
>>> for _ in range(3):
...     state = optimizer.step(state, np.ones(1))
>>> state
ServerState(params=array([4.25]), velocity=array([1.75]))
"""

from __future__ import annotations

import dataclasses
from typing import final

import numpy as np
from numpy.typing import NDArray

from quietsum.errors import InvalidParameter, non_negative

__all__ = ["ServerMomentum", "ServerState"]

Vector = NDArray[np.float64]


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class ServerState:
    """The model and the optimizer's memory: all that a round starts from."""

    params: Vector
    velocity: Vector


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class ServerMomentum:
    """velocity ← momentum·velocity + update; params ← params + velocity (FedAvgM; Hsu, Qi, Brown 2019).

    With momentum 0 this is federated averaging (McMahan et al. 2017).
    """

    momentum: float = 0.0

    def __post_init__(self) -> None:
        if non_negative("momentum", self.momentum) >= 1:
            raise InvalidParameter("momentum", self.momentum, "must be less than 1", "0.9 is common, 0 is none")

    def step(self, state: ServerState, update: Vector) -> ServerState:
        """The state after one averaged update."""
        velocity = self.momentum * state.velocity + update
        return ServerState(params=state.params + velocity, velocity=velocity)
