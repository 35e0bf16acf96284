"""The workload as a task of quietsum: clients of a small torch model, trained alone or side by side."""

from __future__ import annotations

import workload  # type: ignore[import-not-found]  # isort: skip  # first: it decides about threads

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from quietsum.learning.clients.side_by_side import SideBySide
from quietsum.plan import PartyFacts
from quietsum.tasks import Metrics

torch.set_num_threads(1)

PUBLIC = "the records are made up"


def losses(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    """One value per example."""
    return nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")


class Softmax:
    """Softmax regression, many clients of twenty records."""

    name, title, dimension = "softmax", "softmax regression on made-up records", workload.DIMENSION

    def __init__(self, *, clients: int) -> None:
        self.clients = clients
        self._records: tuple[Tensor, ...] | None = None
        self._side_by_side = SideBySide(nn.Linear(workload.FEATURES, workload.CLASSES), losses)

    def parties(self) -> tuple[PartyFacts, ...]:
        """Clients of one holder."""
        names = [f"client-{i:05}" for i in range(self.clients)]
        return tuple(
            PartyFacts(name=name, dataset=self.name, size=workload.EACH, public=PUBLIC, holder=self.name)
            for name in names
        )

    def initial(self) -> Any:
        """Zeros."""
        return np.zeros(self.dimension)

    def evaluate(self, params: Any) -> Metrics:
        """Accuracy on a few thousand of the records, all of which are public."""
        features, labels = (part[:2000] for part in self.records())
        weight = torch.from_numpy(params).float().split([self.dimension - workload.CLASSES, workload.CLASSES])
        scores = features @ weight[0].view(workload.CLASSES, -1).T + weight[1]
        return Metrics(values={"accuracy": float((scores.argmax(1) == labels).double().mean())}, on="made-up records")

    def records(self) -> tuple[Tensor, ...]:
        """All of them, read once."""
        if self._records is None:
            self._records = tuple(torch.from_numpy(part) for part in workload.pool())
        return self._records

    def train(self, party: str, params: Any, orders: Any, rng: Any) -> Any:
        """One client by itself."""
        return self._side_by_side.alone(params, self.records(), _shard(party), orders, rng)

    def train_many(
        self, parties: Sequence[str], params: Any, orders: Sequence[Any], rng: Any
    ) -> Iterator[tuple[tuple[str, ...], Any]]:
        """Many clients at once."""
        shards = [_shard(party) for party in parties]
        for places, deltas in self._side_by_side.train(params, self.records(), shards, orders, rng):
            yield tuple(parties[place] for place in places), deltas


def _shard(party: str) -> Any:
    own = workload.rows(int(party.rpartition("-")[2]))
    return np.arange(own.start, own.stop)
