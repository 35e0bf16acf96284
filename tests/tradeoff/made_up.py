"""A small published task, for trade-offs in tests: two clouds, one of them further away than the noise."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from quietsum.learning.step import cross_entropy
from quietsum.tasks import Metrics, Settings


class Clouds:
    """Is the point in the far cloud?"""

    name, title, size, public, loss = "clouds", "two clouds", 400, "made up", staticmethod(cross_entropy)
    settings = Settings(learning_rate=1.0, optimizer="sgd", training={"batch_size": 100, "epochs": 2})

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(2, 2))

    def records(self) -> tuple[Tensor, ...]:
        return self._made(400, 0)

    def evaluate(self, model: nn.Module) -> Metrics:
        values, labels = self._made(100, 1)
        with torch.no_grad():
            right = (model(values).argmax(1) == labels).double().mean()
        return Metrics(values={"accuracy": float(right), "loss": 0.5}, on="100 made-up points")

    def _made(self, count: int, seed: int) -> tuple[Tensor, Tensor]:
        labels = torch.arange(count) % 2
        return torch.randn(count, 2, generator=torch.Generator().manual_seed(seed)) + 2.0 * labels[:, None], labels


class Split(Clouds):
    """The same with three paired splits."""

    name = "split clouds"

    def __init__(self, *, split: int = 0) -> None:
        from quietsum.errors import InvalidParameter

        if split not in (0, 1, 2):
            raise InvalidParameter("split", split, "does not exist", "choose 0 … 2")
        self.split = split

    def evaluate(self, model: nn.Module) -> Metrics:
        return Metrics(values={"accuracy": 0.5 + self.split / 10}, on=f"points of split {self.split}")


class Protected(Clouds):
    """Somebody's points."""

    public = ""


class Scoreless(Clouds):
    """A task whose only score is not defined."""

    def evaluate(self, model: nn.Module) -> Metrics:
        return Metrics(values={"auc": float("nan")}, on="one class")
