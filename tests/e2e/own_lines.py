"""A straight line in torch, for sites that hold their records in a file of their own. The coordinator holds none."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from quietsum.tasks import Metrics, Settings


class Lines:
    """Which side of a line is a point on?"""

    name, title, public, size = "lines", "points beside a line", "", 500
    settings = Settings(learning_rate=1.0, optimizer="sgd", training={})
    site_sizes: Mapping[str, int] = {"north": 300, "south": 200}

    def __init__(self, *, site: str = "", records: str = "") -> None:
        self.site, self.file = site, records

    def model(self) -> nn.Module:
        return nn.Linear(2, 2)

    def loss(self, model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        return nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")

    def example(self) -> tuple[Tensor, ...]:
        return torch.zeros(1, 2), torch.zeros(1, dtype=torch.int64)

    def _read(self) -> tuple[Tensor, Tensor]:
        assert self.file, "a record was asked for where none is"
        points = np.load(Path(self.file))
        return torch.from_numpy(points).float(), torch.from_numpy((points.sum(1) > 0).astype(np.int64))

    def records(self) -> tuple[Tensor, ...]:
        return self._read()

    def sites(self) -> list[str]:
        return [self.site] * len(self._read()[0])

    def evaluate(self, model: nn.Module) -> Metrics:
        points = torch.tensor([[1.0, 1.0], [2.0, -1.0], [-1.0, -1.0], [-2.0, 1.0]])
        with torch.no_grad():
            right = (model(points).argmax(1) == torch.tensor([1, 1, 0, 0])).double().mean()
        return Metrics(values={"accuracy": float(right)}, on="four made-up points")
