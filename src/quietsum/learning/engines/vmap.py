"""The general engine: torch.func differentiates every example at once.

``vmap(grad(loss))`` runs the model as if on one example and lets torch carry the batch through every operation. It
needs no knowledge of layers, so it serves any model that torch can batch; it holds every example's whole gradient, so
it costs memory, and examples go through in chunks.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, final

import torch
from torch import Tensor, nn

from quietsum.errors import InvalidParameter
from quietsum.learning.clipping import Clip
from quietsum.learning.engines.protocol import (
    Batch,
    Block,
    Loss,
    clip_instances,
    count_small,
    in_blocks,
    losses_of,
    trainable,
)
from quietsum.learning.engines.recurrent import unroll
from quietsum.learning.rows.memory import free_memory

__all__ = ["NotBatchable", "VmapEngine"]

_TORCH_FUNC = ("vmap", "torch.func", "functorch", "Batching rule", "setup_context")  # its own complaints


def hush() -> None:
    """Leave out what torch says on each call of an operation through which it carries one example at a time."""
    warnings.filterwarnings("ignore", message="There is a performance drop because we have not yet implemented")


hush()


class NotBatchable(InvalidParameter):
    """torch.func cannot carry a batch through this model; a loop over examples can."""


def _reason(what: str) -> str:
    """torch's complaint in fewer words, where it is a usual one."""
    if "saved tensor hooks" in what:
        return "it uses activation checkpointing"
    if "data-dependent" in what or "dynamic" in what:
        return "it branches or indexes by the values of a tensor, as the routing of a mixture of experts does"
    return what


_CHUNK_BYTES = 1 << 28  # of gradients held at a time in main memory; on a card a fifth of what is free


@final
class VmapEngine:
    """torch.func.vmap over torch.func.grad, in chunks."""

    def __init__(
        self, model: nn.Module, loss: Loss, clip: Clip, *, micro_batch: int | None = None, why: str | None = None
    ) -> None:
        names, self._parameters = trainable(model)
        self._model, self._clip, self._why = model, clip, why
        self._groups = clip.groups(names)
        self._micro_batch = micro_batch
        self._bytes_each = sum(parameter.numel() * parameter.element_size() for parameter in self._parameters)
        whole = _LossOf(model, loss)
        self._state = {name: parameter for name, parameter in zip(names, self._parameters, strict=True)}
        places = _places(model, self._state)

        def one(values: dict[str, Tensor], *row: Tensor) -> Tensor:
            example = tuple(part[None] for part in row)
            swapped = {place: values[name] for place, name in places.items()}
            loss_of_it: Tensor = torch.func.functional_call(whole, swapped, example, tie_weights=False)
            return loss_of_it[0]

        self._gradient: Callable[..., dict[str, Tensor]] = torch.func.grad(one)
        self._norms: Tensor | None = None

    @property
    def name(self) -> str:
        """As in ``engine_for``."""
        return "vmap"

    @property
    def why(self) -> str:
        """Why this engine."""
        return self._why or "chosen by name: torch.func, which needs no knowledge of layers"

    @property
    def parameters(self) -> tuple[nn.Parameter, ...]:
        """The trainable ones."""
        return self._parameters

    def clipped_sum(self, batch: Batch) -> tuple[Tensor, ...]:
        """See :class:`quietsum.learning.engines.protocol.Engine`."""
        sums, self._norms = in_blocks(batch, self._chunk(), self._parameters, len(self._groups), self._block)
        return sums

    def _chunk(self) -> int:
        """How many examples go through at a time."""
        device, room = self._parameters[0].device, _CHUNK_BYTES
        if device.type == "cuda":
            room = max(room, free_memory(device) // 5)
        fitting = max(1, room // self._bytes_each)
        return fitting if self._micro_batch is None else min(fitting, self._micro_batch)

    def small_norms(self) -> Tensor:
        """See :class:`quietsum.learning.engines.protocol.Engine`."""
        return count_small(self._norms, self._clip)

    def _block(self, batch: Batch, rows: int) -> Block:
        values = {name: parameter.detach() for name, parameter in self._state.items()}
        dims = (None, *(0 for _ in batch))
        every: Any = torch.func.vmap(self._gradient, in_dims=dims, randomness="different")
        with torch.enable_grad(), unroll(self._model, None):
            try:
                found: dict[str, Tensor] = every(values, *batch)
            except InvalidParameter:
                raise
            except RuntimeError as problem:
                if not any(word in str(problem) for word in _TORCH_FUNC):
                    raise
                what = f"cannot be batched by torch.func: {_reason(str(problem).splitlines()[0])}"
                remedy = "use engine = 'auto' or 'naive', a loop over examples; or rewrite that operation"
                raise NotBatchable("model", type(self._model).__name__, what, remedy) from problem
        return clip_instances([found[name].detach() for name in self._state], self._clip, self._groups)


def _places(model: nn.Module, state: dict[str, nn.Parameter]) -> dict[str, str]:
    """Where each trainable parameter hangs, and its name: tied ones in several places, a shared module's in one.

    A module that is registered twice has two names and one set of parameters. Swapping them under both names would put
    the swapped ones back instead of the model's own.
    """
    names = {id(parameter): name for name, parameter in state.items()}
    return {
        f"model.{prefix}{own}": names[id(parameter)]
        for path, module in model.named_modules()
        for prefix in [f"{path}." if path else ""]
        for own, parameter in module._parameters.items()
        if id(parameter) in names
    }


class _LossOf(nn.Module):
    """Model and loss as one module, so that functional_call can swap the parameters of both."""

    def __init__(self, model: nn.Module, loss: Loss) -> None:
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self, *batch: Tensor) -> Tensor:
        return losses_of(self.loss, self.model, batch, len(batch[0]))
