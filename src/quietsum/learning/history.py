"""What may be known about a private training run: steps, ε, and scores on data that nobody protects."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, final

import torch
from torch import Tensor, nn

from quietsum.errors import InvalidParameter
from quietsum.learning.engines.protocol import Batch, Loss, losses_of
from quietsum.learning.step import cross_entropy
from quietsum.privacy import Guarantee

__all__ = ["UNPROTECTED", "Epoch", "History", "chance", "progress_line", "scores"]

UNPROTECTED = "validation data declared unprotected"


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Epoch:
    """What may be known after an epoch. ``metrics`` stand on ``metrics_on``, never on training records."""

    epoch: int
    epochs: int
    steps: int
    spent: Guarantee
    budget: float | None
    metrics: Mapping[str, float]
    metrics_on: str
    max_grad_norm: float


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class History:
    """All epochs of a run. ``stopped`` is "finished", or "budget" where another step would have overspent.

    ``lost_steps`` were charged and then lost in a kill: the weights know nothing of them, and the guarantee holds them.
    """

    epochs: tuple[Epoch, ...]
    stopped: str
    guarantee: Guarantee
    lost_steps: int = 0

    @property
    def metrics(self) -> Mapping[str, float]:
        """Those of the last epoch."""
        return self.epochs[-1].metrics if self.epochs else {}


def progress_line(epoch: Epoch) -> str:
    """One line for people: ``epoch 3/20 · ε 1.21 of 3 per record · accuracy 0.913 on the hold-out``."""
    limit = "" if epoch.budget is None else f" of {epoch.budget:g}"
    shown = -(-epoch.spent.epsilon * 100 // 1) / 100  # rounded up
    parts = [f"epoch {epoch.epoch:>{len(str(epoch.epochs))}}/{epoch.epochs}", f"ε {shown:.2f}{limit} per record"]
    if epoch.metrics:
        name, value = next(iter(epoch.metrics.items()))
        parts.append(f"{name} {value:.3f} on {epoch.metrics_on}")
    return " · ".join(parts)


def scores(model: nn.Module, loss: Loss, loader: Iterable[Any], device: torch.device) -> dict[str, float]:
    """Mean loss, and accuracy for the default loss, on records that nobody needs to protect."""
    batches: Iterable[Any] = [loader] if isinstance(loader, tuple) else loader
    total, right, count = 0.0, 0, 0
    for batch in batches:
        rows = tuple(part.to(device) for part in _rows(batch))
        total += float(losses_of(loss, model, rows, len(rows[0])).sum())
        if loss is cross_entropy:
            right += int((model(rows[0]).argmax(-1) == rows[1]).sum())
        count += len(rows[0])
    if not count:
        return {}
    return ({"accuracy": right / count} if loss is cross_entropy else {}) | {"loss": total / count}


def chance(loss: Loss, loader: Iterable[Any]) -> dict[str, float]:
    """The accuracy of a model that knows nothing but the largest class, for the default loss."""
    if loss is not cross_entropy:
        return {}
    counts: Counter[int] = Counter()
    for batch in [loader] if isinstance(loader, tuple) else loader:
        counts.update(_rows(batch)[1].tolist())
    return {"accuracy": max(counts.values()) / counts.total()} if counts else {}


def _rows(batch: Any) -> Batch:
    """The batch, if it is tensors with as many rows each."""
    parts = (batch,) if isinstance(batch, Tensor) else batch
    if not isinstance(parts, tuple | list) or not all(isinstance(part, Tensor) and part.dim() for part in parts):
        problem = "does not come as tensors of rows"
        raise InvalidParameter("val_loader", type(batch).__name__, problem, "let each batch be (inputs, labels)")
    if len({len(part) for part in parts}) != 1:
        problem = "has parts of unequal length"
        raise InvalidParameter("val_loader", [tuple(part.shape) for part in parts], problem, "one label for each row")
    return tuple(parts)
