"""Stacks of dense layers, run without torch's graph.

A step of a small model is mostly overhead: torch notes every operation, then walks its notes backwards. For an
nn.Sequential of Linear layers and activations that reads the data both walks are known beforehand:

    forward    a₁ = x,  z_k = W_k a_k + b_k,  a_{k+1} = act(z_k)
    backward   g_k = (W_{k+1}ᵀ g_{k+1}) ⊙ act′(z_k)

so a :class:`DenseStack` does them itself and hands every layer its a_k and g_k, which is all that
:mod:`quietsum.learning.engines.layers` asks for. The activations here have derivatives that follow from their values.
Anything unusual (hooks, dropout, mixed precision, inputs that need gradients themselves) is left to torch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import NamedTuple, final

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from quietsum.learning.engines.layers import OuterUse, Use
from quietsum.learning.engines.shared.broadcast import NotCovered
from quietsum.learning.engines.tracing import Slot

__all__ = ["DenseStack", "stacks_in"]

_aten = torch.ops.aten


class _Activation(NamedTuple):
    run: Callable[[Tensor], Tensor]
    slope: Callable[[Tensor, Tensor], Tensor]  # (g, output) -> g ⊙ act′


_ACTIVATIONS: Mapping[type[nn.Module], _Activation] = {
    nn.ReLU: _Activation(torch.relu_, lambda g, out: _aten.threshold_backward.default(g, out, 0)),
    nn.Tanh: _Activation(torch.tanh_, _aten.tanh_backward.default),
    nn.Sigmoid: _Activation(torch.sigmoid_, _aten.sigmoid_backward.default),
}


class Pass(NamedTuple):
    """One run of a stack: its output, how often the data were written to by then, and what each layer was given."""

    out: Tensor
    version: int
    inputs: list[Tensor]


class _Layer(NamedTuple):
    linear: nn.Linear
    slot: Slot | None
    activation: _Activation | None


@final
class DenseStack:
    """An nn.Sequential of Linear layers, each with an activation or none behind it."""

    __slots__ = ("_hooked", "_layers", "_lowest", "_passes", "_watching", "module", "slots")

    def __init__(self, module: nn.Sequential, layers: list[_Layer]) -> None:
        self.module, self._layers = module, layers
        self._hooked = [
            hooks
            for child in module
            for hooks in (child._forward_hooks, child._forward_pre_hooks, child._backward_hooks)
        ]
        self._lowest = next(number for number, layer in enumerate(layers) if layer.slot is not None)
        self.slots = [layer.slot for layer in reversed(layers) if layer.slot is not None]
        self._passes: list[Pass] = []
        self._watching = False

    def lend(self) -> None:
        """From now on the module runs here; its layers are called only where torch must run them."""
        self.module.__dict__["forward"] = self._run

    def take_back(self) -> None:
        """The module is as it was."""
        self.module.__dict__.pop("forward", None)
        if self._watching:
            for slot in self.slots:
                slot.take_back()
            self._watching = False

    def outs(self) -> list[Tensor]:
        """Where gradients are wanted, one place for each pass."""
        return [done.out for done in self._passes]

    def forget(self) -> None:
        """Let go of everything noted."""
        self._passes = []

    def _run(self, x: Tensor) -> Tensor:
        if not self._fits(x):
            if not self._watching:
                self._watching = True
                for slot in self.slots:
                    slot.lend()
            by_torch: Tensor = nn.Sequential.forward(self.module, x)  # type: ignore[no-untyped-call]
            return by_torch
        version, inputs = x._version, []
        with torch.no_grad():
            for linear, told, activation in self._layers:
                inputs.append(x)
                x = F.linear(x, linear.weight, linear.bias)
                if activation is not None:
                    x = activation.run(x)
                if told is not None:
                    told.count += 1
        self._passes.append(Pass(x.requires_grad_(), version, inputs))
        return x

    def _fits(self, x: Tensor) -> bool:
        return (
            type(x) is Tensor
            and x.dim() == 2
            and not x.requires_grad
            and torch.is_grad_enabled()
            and not torch.is_autocast_enabled(x.device.type)
            and not any(self._hooked)
        )

    def uses(self, gradients: deque[Tensor | None], rows: int) -> list[tuple[tuple[int, ...], Use]]:
        """Walk each pass backwards from the gradient at its output: what the layers contribute, with their numbers."""
        given = [(done, g) for done in self._passes if (g := gradients.popleft()) is not None]
        walked = [self._walk(done, g, rows) for done, g in given]
        self._passes = []
        if not walked:
            return []
        entries = zip(*walked, strict=True) if len(walked) > 1 else ((pair,) for pair in walked[0])
        found = [(slot.parameters, slot.build(each, rows)) for slot, each in zip(self.slots, entries, strict=True)]
        if len(walked) == 1:  # what the walk has made is its own; torch may hand the gradient at the end to two places
            for (_, use), (_, g) in zip(found, walked[0], strict=True):
                if isinstance(use, OuterUse):
                    use.owned = g is not given[0][1]
        return found

    def _walk(self, done: Pass, g: Tensor, rows: int) -> list[tuple[Tensor, Tensor]]:
        """Activations and gradients of every layer with something to train, the last layer first."""
        inputs, out = done.inputs, done.out
        if inputs[0]._version != done.version:
            raise NotCovered("the input of a stack of layers was overwritten in place after it was used")
        if len(g) != rows:
            raise NotCovered("a stack of layers does not have the examples in its first dimension")
        found = []
        for number in range(len(self._layers) - 1, self._lowest - 1, -1):
            linear, slot, activation = self._layers[number]
            if activation is not None:
                g = activation.slope(g, out)
            out = inputs[number]
            if slot is not None:
                found.append((out, g))
            if number > self._lowest:
                g = g.mm(linear.weight)
        return found


def stacks_in(model: nn.Module, slots: list[Slot]) -> list[DenseStack]:
    """Every stack in the model whose layers have slots of their own."""
    by_module = {id(slot.module): slot for slot in slots if not slot.weight}
    found = []
    inside: set[int] = set()
    for module in model.modules():
        if id(module) in inside or type(module) is not nn.Sequential or "forward" in module.__dict__:
            continue
        layers = _layers(module, by_module)
        if layers is not None and any(layer.slot is not None for layer in layers):
            found.append(DenseStack(module, layers))
            inside.update(id(child) for child in module.modules())
    return found


def _layers(module: nn.Sequential, slots: Mapping[int, Slot]) -> list[_Layer] | None:
    layers: list[_Layer] = []
    for child in module:
        if "forward" in child.__dict__:
            return None
        if type(child) is nn.Linear:
            slot = slots.get(id(child))
            if slot is None and any(p.requires_grad for p in child.parameters()):
                return None
            layers.append(_Layer(child, slot, None))
        elif type(child) in _ACTIVATIONS and layers and layers[-1].activation is None:
            layers[-1] = layers[-1]._replace(activation=_ACTIVATIONS[type(child)])
        else:
            return None
    return layers or None
