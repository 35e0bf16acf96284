"""What moves the weights once a gradient is private: SGD, momentum, Adam, Adam without its noise bias, averages.

Everything here sees noisy gradients only, so it is post-processing and free. Adam divides by the root of a running mean
of squares, and the squares of a private gradient hold the noise as well: E[g̃²] = E[g]² + (σC/E)². At usual noise the
second term is larger, and Adam then shrinks every step alike. DP-Adam subtracts the known variance before the root
(Tang, Shpilevskiy, Lécuyer 2024, "DP-AdamBC"), at no cost in ε:

    m̂ / √max(v̂ − (σC/E)², floor²)

>>> weight = torch.nn.Parameter(torch.zeros(1))
>>> optimizer = SGD(momentum=0.5).bind((weight,))
>>> for _ in range(2):
...     optimizer.step((torch.ones(1),), learning_rate=1.0, noise_variance=0.0)
>>> weight.item()
-2.5
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Protocol, TypeAlias, final

import torch
from torch import Tensor, nn

from quietsum.errors import CorruptState, InvalidParameter
from quietsum.validate import open_probability, positive, probability

__all__ = ["SGD", "Adam", "AveragedWeights", "BoundOptimizer", "OptimizerKind", "optimizer_named"]

Parameters: TypeAlias = Sequence[nn.Parameter]


class BoundOptimizer(Protocol):
    """An optimizer with its memory."""

    def step(self, gradient: Sequence[Tensor], *, learning_rate: float, noise_variance: float) -> None:
        """Move the weights; ``noise_variance`` is that of each coordinate of ``gradient``, a public number."""
        ...

    def state(self) -> dict[str, Tensor]:
        """Its memory as tensors by name."""
        ...

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """The memory that :meth:`state` returned."""
        ...


class OptimizerKind(Protocol):
    """A rule that is not yet tied to weights."""

    def bind(self, parameters: Parameters) -> BoundOptimizer:
        """The rule with an empty memory for ``parameters``."""
        ...


def optimizer_named(name: str) -> OptimizerKind:
    """``sgd``, ``momentum`` (0.9), ``adam`` or ``dp-adam``."""
    kinds: dict[str, OptimizerKind] = {
        "sgd": SGD(), "momentum": SGD(momentum=0.9), "adam": Adam(), "dp-adam": Adam(unbiased=True),
    }  # fmt: skip
    if name not in kinds:
        raise InvalidParameter("optimizer", name, "is not known", f"choose {', '.join(kinds)}")
    return kinds[name]


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class SGD:
    """velocity ← momentum · velocity + g; weights ← weights − learning_rate · velocity."""

    momentum: float = 0.0

    def __post_init__(self) -> None:
        if probability("momentum", self.momentum, "0 is plain descent") == 1:
            raise InvalidParameter("momentum", self.momentum, "never forgets a step", "stay below 1, for instance 0.9")

    def bind(self, parameters: Parameters) -> BoundOptimizer:
        """With zero velocity."""
        return _Momentum(self, parameters)


@final
class _Momentum:
    def __init__(self, kind: SGD, parameters: Parameters) -> None:
        self._kind, self._parameters = kind, tuple(parameters)
        self._velocity = [torch.zeros_like(p, requires_grad=False) for p in parameters] if kind.momentum else []

    @torch.no_grad()
    def step(self, gradient: Sequence[Tensor], *, learning_rate: float, noise_variance: float) -> None:
        moves: Sequence[Tensor] = gradient
        if self._velocity:
            torch._foreach_mul_(self._velocity, self._kind.momentum)
            torch._foreach_add_(self._velocity, list(gradient))
            moves = self._velocity
        torch._foreach_add_(list(self._parameters), list(moves), alpha=-learning_rate)

    def state(self) -> dict[str, Tensor]:
        return {f"velocity.{i}": part for i, part in enumerate(self._velocity)}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        _fill({f"velocity.{i}": part for i, part in enumerate(self._velocity)}, state)


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Adam:
    """Adam (Kingma, Ba 2015); with ``unbiased`` the noise's own variance is taken out of v̂ first.

    ``floor`` keeps the root away from zero where hardly more than noise was seen.
    """

    unbiased: bool = False
    beta1: float = 0.9
    beta2: float = 0.999
    floor: float = 1e-8
    unbiased_floor: float = 5e-4

    def __post_init__(self) -> None:
        open_probability("beta1", self.beta1, "0.9 is usual")
        open_probability("beta2", self.beta2, "0.999 is usual")
        positive("floor", self.floor)
        positive("unbiased_floor", self.unbiased_floor)

    def bind(self, parameters: Parameters) -> BoundOptimizer:
        """With empty moments."""
        return _Moments(self, parameters)


@final
class _Moments:
    def __init__(self, kind: Adam, parameters: Parameters) -> None:
        self._kind, self._parameters = kind, tuple(parameters)
        self._first = [torch.zeros_like(p, requires_grad=False) for p in parameters]
        self._second = [torch.zeros_like(p, requires_grad=False) for p in parameters]
        self._noise = torch.zeros((), dtype=torch.float64)  # the running mean of the noise's variance
        self._count = torch.zeros((), dtype=torch.int64)

    @torch.no_grad()
    def step(self, gradient: Sequence[Tensor], *, learning_rate: float, noise_variance: float) -> None:
        kind = self._kind
        self._count += 1
        count = int(self._count)
        first, second = 1 - kind.beta1**count, 1 - kind.beta2**count
        self._noise.mul_(kind.beta2).add_((1 - kind.beta2) * noise_variance)
        known = float(self._noise) / second  # the same mean as v̂ takes, so that it fits a schedule too
        moves: list[Tensor] = list(gradient)
        weights: list[Tensor] = list(self._parameters)
        torch._foreach_mul_(self._first, kind.beta1)
        torch._foreach_add_(self._first, moves, alpha=1 - kind.beta1)
        torch._foreach_mul_(self._second, kind.beta2)
        torch._foreach_addcmul_(self._second, moves, moves, value=1 - kind.beta2)
        roots = torch._foreach_div(self._second, second)
        if kind.unbiased:
            torch._foreach_sub_(roots, known)
            torch._foreach_clamp_min_(roots, kind.unbiased_floor**2)
            torch._foreach_sqrt_(roots)
        else:
            torch._foreach_sqrt_(roots)
            torch._foreach_add_(roots, kind.floor)
        torch._foreach_addcdiv_(weights, self._first, roots, value=-learning_rate / first)

    def _memory(self) -> dict[str, Tensor]:
        named = {"noise": self._noise, "count": self._count}
        for i, (mean, square) in enumerate(zip(self._first, self._second, strict=True)):
            named[f"first.{i}"], named[f"second.{i}"] = mean, square
        return named

    def state(self) -> dict[str, Tensor]:
        return self._memory()

    def restore(self, state: Mapping[str, Tensor]) -> None:
        _fill(self._memory(), state)


@final
class AveragedWeights:
    """An exponential moving average of the weights, which forgets the start: decay_t = min(decay, (1 + t)/(10 + t)).

    The average is a function of released weights, so it costs nothing; it removes much of the noise of the last steps.
    """

    def __init__(self, parameters: Parameters, decay: float) -> None:
        self.decay = open_probability("ema_decay", decay, "0.99 averages about the last hundred steps")
        self._parameters = tuple(parameters)
        self._means = [p.detach().clone() for p in parameters]
        self._count = torch.zeros((), dtype=torch.int64)

    @torch.no_grad()
    def take(self) -> None:
        """Take in the weights as they are now."""
        self._count += 1
        count = int(self._count)
        weight = 1 - min(self.decay, (1 + count) / (10 + count))
        torch._foreach_lerp_(self._means, [p.detach() for p in self._parameters], weight)

    @torch.no_grad()
    def swap(self) -> None:
        """Exchange weights and averages; twice is once nothing."""
        for parameter, mean in zip(self._parameters, self._means, strict=True):
            kept = parameter.detach().clone()
            parameter.copy_(mean)
            mean.copy_(kept)

    def _memory(self) -> dict[str, Tensor]:
        return {"count": self._count, **{f"mean.{i}": mean for i, mean in enumerate(self._means)}}

    def state(self) -> dict[str, Tensor]:
        """The averages as tensors by name."""
        return self._memory()

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """The averages that :meth:`state` returned."""
        _fill(self._memory(), state)


@torch.no_grad()
def _fill(memory: Mapping[str, Tensor], saved: Mapping[str, Tensor]) -> None:
    """Copy ``saved`` into ``memory``; both must hold the same names and shapes."""
    if set(memory) != set(saved) or any(memory[name].shape != saved[name].shape for name in memory):
        raise CorruptState("the saved optimizer belongs to another optimizer or model; resume with the same ones")
    for name, tensor in memory.items():
        tensor.copy_(saved[name])
