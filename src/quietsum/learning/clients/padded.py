"""The orders of clients side by side, and the rows they draw, lined up so that one operation serves all of them.

Clients hold unequal numbers of records and draw batches of unequal size. :func:`draw_padded` draws everybody's batch
and fills the short ones up; the mask says which rows count. :class:`Columns` lays the orders of many clients beside
each other, so that a learning rate is one number where all share it and a column where they do not.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from quietsum.errors import InvalidParameter
from quietsum.learning.engines.protocol import Batch
from quietsum.sampling import Poisson, Sampling
from quietsum.validate import non_negative, positive, whole_number

if TYPE_CHECKING:
    from quietsum.mechanisms import RandomSource

__all__ = ["Columns", "Orders", "PlainOrders", "draw_padded", "sound"]

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]


class Orders(Protocol):
    """A client's orders for one round; every number is public."""

    @property
    def steps(self) -> int:
        """How many steps."""
        ...

    @property
    def sampling(self) -> Sampling:
        """How the records of a step are drawn."""
        ...

    @property
    def expected_batch(self) -> float:
        """What sums are divided by."""
        ...

    @property
    def learning_rate(self) -> float:
        """The size of a step."""
        ...

    @property
    def momentum(self) -> float:
        """How much of the last step is kept."""
        ...

    @property
    def proximal(self) -> float:
        """How strongly a client is drawn back to the server's model."""
        ...

    @property
    def mechanism(self) -> object | None:
        """Clip and noise of single records: must be None here."""
        ...


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class PlainOrders:
    """The least that :class:`SideBySide` asks for, for scripts without a plan."""

    steps: int
    sampling: Sampling
    expected_batch: float
    learning_rate: float
    momentum: float = 0.0
    proximal: float = 0.0
    mechanism: None = None


@final
class Columns:
    """The orders of a chunk as columns, (k,).

    ``plain`` is learning_rate / expected_batch where every client takes plain steps of that one size, else None.
    """

    def __init__(self, orders: Sequence[Orders], device: torch.device) -> None:
        self._device = device
        self._columns: dict[str, Floats] = {}
        for name in ("steps", "expected_batch", "learning_rate", "momentum", "proximal"):
            self._columns[name] = np.array([getattr(each, name) for each in orders], dtype=np.float64)
        self.most_steps = int(self._columns["steps"].max())
        self.alike_steps = bool((self._columns["steps"] == self.most_steps).all())
        self.any_momentum, self.any_proximal = (bool(self._columns[name].any()) for name in ("momentum", "proximal"))
        size = self._columns["learning_rate"] / self._columns["expected_batch"]
        alike = self.alike_steps and not self.any_momentum and not self.any_proximal and bool((size == size[0]).all())
        self.plain = float(size[0]) if alike else None

    def of(self, name: str, like: Tensor) -> Tensor | float:
        """One column, shaped to stand beside ``like``, (k, …); one number where all clients share it."""
        column = self._columns[name]
        if (column == column[0]).all():
            return float(column[0])
        return torch.as_tensor(column, dtype=like.dtype, device=self._device).view(-1, *[1] * (like.dim() - 1))


def sound(orders: Orders) -> None:
    """Refuse orders that cannot be followed, and those that ask for a clip or noise of records."""
    if orders.mechanism is not None:
        problem = "bounds and noises single records, which clients side by side do not"
        raise InvalidParameter(
            "orders.mechanism", "a mechanism", problem, "use quietsum.learning.clients.local.local_steps"
        )
    whole_number("steps", orders.steps, 1)
    positive("expected_batch", orders.expected_batch, "pass sample_rate × declared size, which is public")
    positive("learning_rate", orders.learning_rate)
    non_negative("proximal", orders.proximal)
    if non_negative("momentum", orders.momentum) >= 1:
        raise InvalidParameter("momentum", orders.momentum, "never forgets a step", "stay below 1, for instance 0.9")


def _draws(shards: Sequence[Indices], samplings: Sequence[Sampling], rng: RandomSource) -> list[Indices]:
    """Which rows each client has in its batch. Coins of one rate are tossed for all clients in one go."""
    first = samplings[0]
    if isinstance(first, Poisson) and all(each == first for each in samplings):
        coins = rng.coins(first.rate, sum(own.size for own in shards))
        ends = np.cumsum([own.size for own in shards])[:-1]
        return [own[heads] for own, heads in zip(shards, np.split(coins, ends), strict=True)]
    return [own[each.draw(own.size, rng)] for own, each in zip(shards, samplings, strict=True)]


def draw_padded(
    records: Batch,
    shards: Sequence[Indices],
    samplings: Sequence[Sampling],
    rng: RandomSource,
    device: torch.device,
) -> tuple[Batch, Tensor, Tensor | None]:
    """Everyone's batch of one step, (k, width, …); the mask, (k, width); and whose batch is empty, (k,), or None.

    Guarantees: padding is a row that the client has in this batch already, so a row that was not drawn, however broken,
    can do nothing. Only an empty batch is padded with a row that was not drawn, and nothing of that may be kept.
    """
    drawn = _draws(shards, samplings, rng)
    counts = np.array([own.size for own in drawn])
    width = max(1, int(counts.max()))
    fillers = [
        own[0] if own.size else (shard[0] if shard.size else 0) for own, shard in zip(drawn, shards, strict=True)
    ]
    rows = np.repeat(np.array(fillers, dtype=np.int64)[:, None], width, axis=1)
    mask = np.arange(width) < counts[:, None]
    rows[mask] = np.concatenate(drawn)
    index = torch.from_numpy(rows).to(records[0].device)
    batch = tuple(part[index].to(device) for part in records)
    nobody = None if counts.all() else torch.from_numpy(counts == 0).to(device)
    return batch, torch.from_numpy(mask).to(device), nobody
