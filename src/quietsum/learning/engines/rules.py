"""The table of rules: how each layer's per-example gradients come from what it was given and what came back.

A rule is one function, registered for a class. It gets the module, its input a and the gradient g at its output, both
with the examples first, and returns for each trainable parameter every example's gradient, in one of two forms:

    a tensor (n, …)                       the gradients themselves, for small parameters
    a pair (left, right) of (n, t, ·)     example i's gradient is Σ_t left_t right_tᵀ, and need not be formed

For a Linear layer the pair of the weight is (g, a), and the bias's gradient is Σ_t g_t. A pair is priced as in
:mod:`quietsum.learning.engines.layers`: by its ghost norm or by forming it, whichever is cheaper.

A rule holds for subclasses that keep the ``forward`` of its class, and for nothing that changed it. A rule of your own
is checked against torch's gradients of single examples at the first batch and whenever the model takes a new path
(:mod:`quietsum.learning.engines.trial`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.nn.modules.instancenorm import _InstanceNorm

from quietsum.errors import InvalidParameter
from quietsum.learning.engines import layers
from quietsum.learning.engines.convolution import ConvolutionUse, Geometry
from quietsum.learning.engines.hardware.room import Room
from quietsum.learning.engines.layers import Entries, Use
from quietsum.learning.engines.shared.broadcast import NotCovered
from quietsum.learning.engines.shared.vocabulary import LabelledStates, VocabularyUse

__all__ = ["Builder", "Gradients", "Rule", "builder_for", "is_own", "linear", "rule"]

Gradients: TypeAlias = Mapping[str, Tensor | tuple[Tensor, Tensor]]
"""By the parameter's name: (n, …), or a pair whose product over positions it is."""

Rule: TypeAlias = Callable[[Any, Tensor, Tensor], Gradients]
"""Module, input and output gradient to the gradients of every example."""

Builder: TypeAlias = Callable[[Entries, int], Use]
"""All calls of one layer in one batch to what it contributes."""

Make: TypeAlias = Callable[[Any, bool, bool], Builder | None]

R = TypeVar("R", bound=Rule)

_OURS: dict[Any, tuple[Make, bool, bool]] = {}
"""By the class's forward: rule, and two flags as in :class:`KnownLayer`."""

_RULES: dict[type[nn.Module] | str, Rule] = {}
"""What was added with :func:`rule`, by class or by the class's full name."""


class KnownLayer(NamedTuple):
    """How a module of known type is accounted for."""

    build: Builder
    free: bool  # any number of positions may lie between examples and features
    half: bool  # multiplies in half precision under autocast, and so do its norms


def rule(layer: type[nn.Module] | str) -> Callable[[R], R]:
    """Register a function as the rule of ``layer``, a class or its full name ("package.module.Class").

    The function takes (module, a, g) and returns, for each trainable parameter by its name, every example's gradient:
    a tensor (n, …), or a pair of (n, t, ·) whose product over positions it is. It must not change what it is given. A
    layer that is called several times in one forward pass is added up. The rule holds for engines made afterwards.

    Guarantees: before the rule is trusted in a model, the gradients of single examples are compared with torch's; one
    that gives others raises :class:`~quietsum.errors.InvalidParameter`.

    >>> class Scale(nn.Module):
    ...     def __init__(self, size):
    ...         super().__init__()
    ...         self.gain = nn.Parameter(torch.ones(size))
    ...     def forward(self, x):
    ...         return x * self.gain
    >>> @rule(Scale)
    ... def scale(module, a, g):
    ...     return {"gain": (a * g).flatten(1, -2).sum(1)}
    """
    known = isinstance(layer, str) or (isinstance(layer, type) and issubclass(layer, nn.Module))
    if not known or layer is nn.Module:
        remedy = "pass the class, or its full name as text: rule(MyLayer)"
        raise InvalidParameter("layer", layer, "is not a class of modules", remedy)

    def add(function: R) -> R:
        if not callable(function):
            raise InvalidParameter("rule", function, "is not a function of module, a and g", "decorate a function")
        _RULES[layer] = function
        return function

    return add


def is_own(module: nn.Module) -> bool:
    """Whether the rule of this module was added by :func:`rule`, and so is checked before it is trusted."""
    return _find_added(module) is not None


def _find_added(module: nn.Module) -> Rule | None:
    for layer, function in _RULES.items():
        for kind in type(module).__mro__:
            named = kind is layer or f"{kind.__module__}.{kind.__qualname__}" == layer
            if named and type(module).forward is getattr(kind, "forward", None):
                return function
    return None


def builder_for(module: Any, own: set[str]) -> KnownLayer | None:
    """How a module of known type is accounted for; None for an unknown one."""
    added = _find_added(module)
    if added is not None:
        names = [name for name, _ in module.named_parameters(recurse=False) if name in own]
        return KnownLayer(functools.partial(_by_rule, added, module, names), False, False)
    if not own <= {"weight", "bias"} or not set(module._parameters) <= {"weight", "bias"}:
        return None
    if module._parameters.get("weight") is None:
        return None
    make, free, half = _OURS.get(type(module).forward, (None, False, False))
    build = make(module, "weight" in own, "bias" in own) if make is not None else None
    return None if build is None else KnownLayer(build, free, half)


def _by_rule(function: Rule, module: nn.Module, names: Sequence[str], entries: Entries, rows: int) -> Use:
    """What a rule says of all calls: tensors are added up, pairs are lined up as positions."""
    said = [function(module, a.to(g.dtype) if a.is_floating_point() else a, g) for a, g in entries]
    uses: list[Use] = []
    for name in names:
        shape = module._parameters[name].shape  # type: ignore[union-attr]
        parts = [_one(one, name, shape, rows, type(module).__name__) for one in said]
        tensors = [part for part in parts if isinstance(part, Tensor)]
        pairs = [part for part in parts if not isinstance(part, Tensor)]
        if not pairs:
            uses.append(layers.InstanceUse([functools.reduce(torch.add, tensors)]))
        elif not tensors:
            left, right = (torch.cat([pair[side] for pair in pairs], 1) for side in (0, 1))
            uses.append(layers.MatrixUse(right, left, weight=True, bias=False, room=Room()))
        else:
            wrong = "gives a tensor at one call and a pair at another"
            raise InvalidParameter("rule", type(module).__name__, wrong, "return one form")
    return layers.SeveralUses(uses)


def _one(said: Gradients, name: str, shape: torch.Size, rows: int, layer: str) -> Tensor | tuple[Tensor, Tensor]:
    """The gradients of one parameter, if their shapes are what they must be."""
    part = said.get(name) if isinstance(said, Mapping) else None
    if isinstance(part, Tensor) and part.shape == (rows, *shape):
        return part
    if isinstance(part, tuple | list) and len(part) == 2 and all(isinstance(one, Tensor) for one in part):
        left, right = part
        sizes = left.dim() == right.dim() == 3 and left.shape[:2] == right.shape[:2] and left.shape[0] == rows
        if sizes and (left.shape[2], right.shape[2]) == tuple(shape):
            return left, right
    problem = f"does not give the gradient of {name!r} for each example"
    remedy = f"return {{{name!r}: a tensor of shape {(rows, *shape)}, or a pair of (n, t, ·) for a matrix}}"
    raise InvalidParameter("rule", layer, problem, remedy)


# ------------------------------------------------------------------------------------- the layers that we know


def _register(*kinds: Any, free: bool = False, half: bool = False) -> Callable[[Make], Make]:
    def add(make: Make) -> Make:
        _OURS.update({kind.forward: (make, free, half) for kind in kinds})
        return make

    return add


@_register(nn.Linear, free=True, half=True)
def _linear(module: nn.Linear, weight: bool, bias: bool) -> Builder:
    build = linear(weight, bias)

    def build_either(entries: Entries, rows: int) -> Use:
        noted = [type(a) is LabelledStates for a, _ in entries]
        if not any(noted):
            return build(entries, rows)
        if len(entries) > 1:
            raise NotCovered("the output layer of a vocabulary is used several times")
        a, g = entries[0]
        return VocabularyUse(a, g, module, weight=weight, bias=bias)  # type: ignore[arg-type]  # looked at above

    return build_either


def linear(weight: bool, bias: bool) -> Builder:
    """A product with a matrix, at one or several positions."""
    room = Room()

    def build(entries: Entries, rows: int) -> Use:
        own = False
        if len(entries) == 1:
            a, g = entries[0]
            if a.dim() == 2:
                g = layers.in_full(g)
                return layers.OuterUse(a if a.dtype is g.dtype else a.to(g.dtype), g, weight=weight, bias=bias)
            own = a.grad_fn is not None
            a, g = a.reshape(rows, -1, a.shape[-1]), g.reshape(rows, -1, g.shape[-1])
        elif all(a.dim() == 2 for a, _ in entries):
            entries = [(a, layers.in_full(g)) for a, g in entries]
            a, g = (_stack(room, f"stack {side}", [pair[side] for pair in entries]) for side in (0, 1))
        else:
            a = torch.cat([a.reshape(rows, -1, a.shape[-1]) for a, _ in entries], 1)
            g = torch.cat([g.reshape(rows, -1, g.shape[-1]) for _, g in entries], 1)
        if a.dtype is not g.dtype:
            a, own = a.to(g.dtype), True
        return layers.MatrixUse(a, g, weight=weight, bias=bias, room=room, own=own)

    return build


def _stack(room: Room, name: str, parts: Sequence[Tensor]) -> Tensor:
    """(n, calls, features) of several calls, laid out call by call; steps of one sequence lie there already."""
    first, second = parts[0], parts[1]
    base, strides = first._base, first.stride()
    apart = second.storage_offset() - first.storage_offset()
    if base is not None and apart > 0:
        places = range(first.storage_offset(), first.storage_offset() + len(parts) * apart, apart)
        if all(
            part._base is base
            and part.storage_offset() == place
            and part.stride() == strides
            and part.shape == first.shape
            for part, place in zip(parts, places, strict=True)
        ):
            shape = (len(first), len(parts), first.shape[1])
            return first.detach().as_strided(shape, (strides[0], apart, strides[1]))
    whole = room.take(name, (len(parts), *parts[0].shape), parts[0].detach())
    torch.stack([part.detach() for part in parts], 0, out=whole)
    return whole.transpose(0, 1)


@_register(nn.Conv1d, nn.Conv2d)
def _convolution(module: nn.Conv1d | nn.Conv2d, weight: bool, bias: bool) -> Builder:
    geometry, dims, room = Geometry(module), module.weight.dim(), Room()

    def build(entries: Entries, rows: int) -> Use:
        if any(x.dim() != dims for x, _ in entries):
            raise NotCovered(f"a {type(module).__name__} was given an example without a batch dimension")
        return ConvolutionUse(module, geometry, entries, weight=weight, bias=bias, room=room)

    return build


@_register(nn.Embedding, free=True)
def _embedding(module: nn.Embedding, weight: bool, bias: bool) -> Builder:
    def build(entries: Entries, rows: int) -> Use:
        shape, padding = module.weight.shape, module.padding_idx
        if len(entries) == 1 and rows > 1 and entries[0][0].stride(0) == 0:  # one list of tokens for all examples
            tokens, g = entries[0]
            return layers.SharedLookupUse(tokens[0].reshape(-1), g.flatten(1, -2), shape=shape, padding=padding)
        if len(entries) == 1 and entries[0][0].dim() == 1:
            tokens, g = entries[0]
            return layers.EmbeddingUse(tokens.unsqueeze(1), g.unsqueeze(1), shape=shape, padding=padding)
        tokens = torch.cat([t.reshape(rows, -1) for t, _ in entries], 1)
        g = torch.cat([g.reshape(rows, -1, g.shape[-1]) for _, g in entries], 1)
        return layers.EmbeddingUse(tokens, g, shape=shape, padding=padding)

    return build


@_register(nn.LayerNorm, free=True)
def _layer_norm(module: nn.LayerNorm, weight: bool, bias: bool) -> Builder:
    return _over_last(module, F.layer_norm, weight, bias)


@_register(nn.RMSNorm, free=True)
def _rms_norm(module: nn.RMSNorm, weight: bool, bias: bool) -> Builder:
    return _over_last(module, F.rms_norm, weight, bias)


def _over_last(module: Any, function: Callable[..., Tensor], weight: bool, bias: bool) -> Builder:
    shape = torch.Size(module.normalized_shape)

    def build(entries: Entries, rows: int) -> Use:
        if any(x.dim() <= len(shape) for x, _ in entries):
            raise NotCovered(f"a {type(module).__name__} normalises over the examples' dimension")
        normalise = functools.partial(function, normalized_shape=shape, eps=module.eps)
        return layers.affine_use(entries, normalise, shape=shape, weight=weight, bias=bias)

    return build


@_register(nn.GroupNorm)
def _group_norm(module: nn.GroupNorm, weight: bool, bias: bool) -> Builder:
    return _over_channels(module, lambda x: F.group_norm(x, module.num_groups, eps=module.eps), 0, weight, bias)


@_register(nn.InstanceNorm1d)  # one forward for all three
def _instance_norm(module: _InstanceNorm, weight: bool, bias: bool) -> Builder | None:
    dims = {nn.InstanceNorm1d: 3, nn.InstanceNorm2d: 4, nn.InstanceNorm3d: 5}.get(type(module))
    if dims is None or module.track_running_stats:
        return None
    return _over_channels(module, lambda x: F.instance_norm(x, eps=module.eps), dims, weight, bias)


def _over_channels(
    module: nn.Module, normalise: Callable[[Tensor], Tensor], dims: int, weight: bool, bias: bool
) -> Builder:
    def build(entries: Entries, rows: int) -> Use:
        if dims and any(x.dim() != dims for x, _ in entries):
            raise NotCovered(f"a {type(module).__name__} was given an example without a batch dimension")
        return layers.affine_use(entries, normalise, shape=None, weight=weight, bias=bias)

    return build


# --------------------------------------------------------------- layers of libraries that need not be installed


@rule("transformers.pytorch_utils.Conv1D")
def _gpt2_linear(module: Any, a: Tensor, g: Tensor) -> Gradients:
    """A Linear layer of GPT-2, whose weight lies the other way round."""
    a, g = a.reshape(len(a), -1, a.shape[-1]), g.reshape(len(g), -1, g.shape[-1])
    return {"weight": (a, g), "bias": g.sum(1)}
