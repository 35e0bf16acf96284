"""How much memory a party's work takes, from the model and one made-up batch: said before anything is run.

What is counted, in bytes:

    weights      all of the model, frozen ones and buffers too
    trained      4 vectors of the trained weights in the model's precision (gradient, clipped sum, noise, step), and 2
                 of doubles (what was received, what is sent)
    a record     what the backward pass keeps of one record, twice: the books keep each layer's input and the slope of
                 its output

A batch is drawn by coins, so six deviations above its expectation are counted; no forward pass holds more than
2,048 records. Python and torch themselves come on top, a few hundred MB.

>>> found = measure_footprint(nn.Linear(100, 10), lambda model, batch: model(batch[0]).sum(1), (torch.zeros(1, 100),))
>>> found.weights, found.trained, found.record_bytes >= 2 * 400
(1010, 1010, True)
"""

from __future__ import annotations

import dataclasses
import math
from typing import final

import torch
from torch import Tensor, nn

from quietsum.learning.engines.batch_mixing import keep_unchanged
from quietsum.learning.engines.protocol import LARGEST_BLOCK, Batch, Loss, losses_of, trainable

__all__ = ["Footprint", "measure_footprint"]


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Footprint:
    """How many weights there are and are trained, and the bytes of weights, of a trained vector and of a record."""

    weights: int
    trained: int
    weight_bytes: int
    trained_bytes: int
    record_bytes: int

    def sum_needed(self, expected_batch: float, *, private: bool = True) -> int:
        """About how many bytes a step on batches of this expected size takes."""
        most = math.ceil(expected_batch + 6 * math.sqrt(max(expected_batch, 0.0)))
        vectors = (4 if private else 2) * self.trained_bytes + 2 * 8 * self.trained
        return self.weight_bytes + vectors + min(most, LARGEST_BLOCK) * self.record_bytes


def measure_footprint(model: nn.Module, loss: Loss, rows: Batch) -> Footprint:
    """The footprint of ``model``; ``rows`` are made up. Guarantees: the model stays as it is."""
    _, found = trainable(model)
    every = {id(one): one for one in (*model.parameters(), *model.buffers())}
    few, more = (_count_kept(model, loss, tuple(_repeat(part, count) for part in rows)) for count in (2, 6))
    own = sum(part[:1].numel() * part.element_size() for part in rows)
    return Footprint(
        weights=sum(one.numel() for one in every.values()),
        trained=sum(one.numel() for one in found),
        weight_bytes=sum(one.numel() * one.element_size() for one in every.values()),
        trained_bytes=sum(one.numel() * one.element_size() for one in found),
        record_bytes=2 * max(0, more - few) // 4 + own,
    )


def _repeat(part: Tensor, count: int) -> Tensor:
    return part[:1].expand(count, *part.shape[1:]).clone()


def _count_kept(model: nn.Module, loss: Loss, rows: Batch) -> int:
    """The bytes that the backward pass of ``rows`` keeps, each piece of memory once."""
    kept: dict[int, int] = {}
    device = next(model.parameters()).device

    def keep(one: Tensor) -> Tensor:
        kept[one.untyped_storage().data_ptr()] = one.untyped_storage().nbytes()
        return one

    with keep_unchanged(model), torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(keep, lambda one: one):
        losses = losses_of(loss, model, tuple(part.to(device) for part in rows), len(rows[0]))
        found = sum(kept.values())
        del losses
    return found
