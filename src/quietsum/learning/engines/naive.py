"""The referee: one example at a time, as one would write it on a blackboard.

    for each example:  g = ∇loss(example);  total += g · factor(‖g‖)

There is nothing to get wrong and nothing that is fast. Every other engine is tested against this loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

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

__all__ = ["NaiveEngine"]


@final
class NaiveEngine:
    """A loop over examples."""

    def __init__(
        self, model: nn.Module, loss: Loss, clip: Clip, *, micro_batch: int | None = None, why: str | None = None
    ) -> None:
        self._model, self._loss, self._clip, self._micro_batch = model, loss, clip, micro_batch
        self._why = why or "a loop over examples: slow, and the referee of the others"
        names, self._parameters = trainable(model)
        self._groups = clip.groups(names)
        self._norms: Tensor | None = None

    @property
    def name(self) -> str:
        """As in ``engine_for``."""
        return "naive"

    @property
    def why(self) -> str:
        """Why one would choose this."""
        return self._why

    @property
    def parameters(self) -> tuple[nn.Parameter, ...]:
        """The trainable ones."""
        return self._parameters

    def clipped_sum(self, batch: Batch) -> tuple[Tensor, ...]:
        """See :class:`quietsum.learning.engines.protocol.Engine`."""
        sums, self._norms = in_blocks(batch, self._micro_batch, self._parameters, len(self._groups), self._block)
        return sums

    @property
    def norms(self) -> Tensor | None:
        """Those of the last batch, (n, groups), if there was one."""
        return self._norms

    def small_norms(self) -> Tensor:
        """See :class:`quietsum.learning.engines.protocol.Engine`."""
        return count_small(self._norms, self._clip)

    def _block(self, batch: Batch, rows: int) -> Block:
        total = [torch.zeros_like(parameter, dtype=torch.float64) for parameter in self._parameters]
        norms = []
        for row in range(rows):
            example = tuple(part[row : row + 1] for part in batch)
            with torch.enable_grad():
                losses = losses_of(self._loss, self._model, example, 1)
            found = self._gradients(losses)
            sums, norm = clip_instances([part.detach()[None] for part in found], self._clip, self._groups)
            total = [whole + part for whole, part in zip(total, sums, strict=True)]
            norms.append(norm)
        return [whole.to(p.dtype) for whole, p in zip(total, self._parameters, strict=True)], torch.cat(norms)

    def _gradients(self, losses: Tensor) -> Sequence[Tensor]:
        try:
            return torch.autograd.grad(losses.sum(), self._parameters, allow_unused=True, materialize_grads=True)
        except RuntimeError as problem:
            if "use_reentrant" not in str(problem):
                raise
            what = "uses activation checkpointing with use_reentrant=True, which torch serves in loss.backward() alone"
            remedy = "pass use_reentrant=False to torch.utils.checkpoint"
            raise InvalidParameter("model", type(self._model).__name__, what, remedy) from problem
