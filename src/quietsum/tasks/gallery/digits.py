"""Handwritten digits, 8 × 8 pixels: the 1,797 rows of UCI's optical recognition test set that scikit-learn carries.

Small enough that a private training run takes seconds. The split is a public rule: of each digit, in the order of the
file, every fourth row is held out. It looks at labels, which is harmless for published rows; for protected ones, split
by a rule that looks at one row at a time.

>>> task = DigitsTask()
>>> task.size, [tuple(part.shape) for part in task.records()]
(1352, [(1352, 64), (1352,)])
"""

from __future__ import annotations

import functools
from typing import final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from quietsum.errors import QuietsumError
from quietsum.learning import cross_entropy
from quietsum.tasks.checks import check_images, check_labels, check_options
from quietsum.tasks.protocol import Metrics, Settings
from quietsum.tasks.roots import check_root, root_rows
from quietsum.tasks.scores import majority

__all__ = ["DigitsTask", "choose_hold_out"]

_EVERY = 4
_ROWS = {"test": "hold-out", "validation": "validation"}


def choose_hold_out(labels: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which rows are held out: the fourth, eighth, … of each class, in the order of the file."""
    chosen = np.zeros(len(labels), dtype=np.bool_)
    for label in np.unique(labels):
        chosen[np.flatnonzero(labels == label)[_EVERY - 1 :: _EVERY]] = True
    return chosen


@functools.cache
def _rows() -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise QuietsumError(
            "digits come with scikit-learn, which is not installed: pip install 'quietsum[train]'"
        ) from None
    loaded = load_digits()
    pixels = check_images("digits", np.asarray(loaded.data, dtype=np.float64), shape=(64,))
    return pixels, check_labels("digits", np.asarray(loaded.target), classes=10, rows=len(pixels))


@final
class DigitsTask:
    """Which digit is it? ``network`` is ``mlp`` (64-64-10, tanh) or ``cnn``.

    With ``evaluate_on="validation"`` every fourth training row of each digit is scored instead of the held-out rows,
    and does not train, so that settings are chosen without those. ``root`` rows of those scored are kept for trials at
    the server instead, the same number of each digit (:mod:`quietsum.tasks.roots`).
    """

    name, title = "digits", "handwritten digits, 8 × 8 pixels"
    loss = staticmethod(cross_entropy)
    public = "the digits are published by UCI, and no writer of them can be harmed"
    without_sites = "the file names no writer"

    def __init__(self, *, network: str = "mlp", evaluate_on: str = "test", root: int | str = 0) -> None:
        check_options(network, ("mlp", "cnn"), evaluate_on, 0)
        self.network, self.evaluate_on = network, evaluate_on
        self._pixels, self._labels = _rows()
        self._trains, self._scored = ~choose_hold_out(self._labels), choose_hold_out(self._labels)
        if evaluate_on == "validation":
            self._scored = np.zeros_like(self._trains)
            self._scored[self._trains] = choose_hold_out(self._labels[self._trains])
            self._trains = self._trains & ~self._scored
        self.root_size = check_root(root, self.name, why_not="no public constants draw a digit")
        self._root = np.zeros_like(self._scored)
        self._root[self._scored] = root_rows(self._labels[self._scored], self.root_size)
        self._scored = self._scored & ~self._root

    @property
    def size(self) -> int:
        """How many rows train."""
        return int(self._trains.sum())

    @property
    def settings(self) -> Settings:
        """Chosen by cross-validation inside the training rows (benchmarks/mnist.py --choose)."""
        return Settings(
            learning_rate=1.0, optimizer="momentum",
            training={"batch_size": 128, "epochs": 20, "max_grad_norm": 0.1, "ema_decay": 0.97},
        )  # fmt: skip

    def model(self) -> nn.Module:
        """A fresh network."""
        if self.network == "mlp":
            return nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 10))
        return nn.Sequential(
            nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 16, 3, padding=1), nn.Tanh(), nn.MaxPool2d(2),
            nn.Conv2d(16, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.Tanh(), nn.Flatten(), nn.Linear(256, 10),
        )  # fmt: skip

    def records(self) -> tuple[Tensor, ...]:
        """Pixels, each record brought to mean 0 and deviation 1 by itself, and labels."""
        return self._tensors(self._trains)

    def root(self) -> tuple[Tensor, ...]:
        """Some of the published rows that would be scored."""
        return self._tensors(self._root)

    def evaluate(self, model: nn.Module) -> Metrics:
        """Accuracy on the held-out rows, or on those of the training rows that are left out."""
        pixels, labels = self._tensors(self._scored)
        with torch.no_grad():
            right = (model(pixels).argmax(-1) == labels).double().mean()
        what = f"{len(labels)} published {_ROWS[self.evaluate_on]} rows"
        return Metrics(values={"accuracy": float(right)}, on=what, chance={"accuracy": majority(labels.numpy())})

    def hold_out(self) -> tuple[Tensor, Tensor]:
        """The rows that :meth:`evaluate` scores."""
        return self._tensors(self._scored)

    def _tensors(self, chosen: NDArray[np.bool_]) -> tuple[Tensor, Tensor]:
        pixels = self._pixels[chosen]
        pixels = (pixels - pixels.mean(1, keepdims=True)) / (pixels.std(1, keepdims=True) + 1e-6)
        return torch.from_numpy(pixels).to(torch.float32), torch.from_numpy(self._labels[chosen])
