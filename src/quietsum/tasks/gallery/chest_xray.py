"""Normal or pneumonia? 5,856 chest X-rays of children, 28 × 28 pixels (PneumoniaMNIST; Kermany 2018, Yang 2023).

The set's own three parts are used: train for training, val for choosing settings (``evaluate_on="validation"``), test
for what is reported. With either choice the same 4,708 records train.

``network="scattering"``, the default, is linear on fixed features (:mod:`quietsum.tasks.gallery.scattering`, in
logarithms since exposure varies from picture to picture); ``mlp`` puts a small hidden layer on the same features;
``cnn`` learns its own.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Any, Final, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from quietsum.learning import cross_entropy
from quietsum.tasks import scores
from quietsum.tasks.checks import check_options
from quietsum.tasks.datafiles import data_folder
from quietsum.tasks.gallery.files.chest_xray import KNOWN, Images, find_xrays, read_xrays
from quietsum.tasks.gallery.scattering import FEATURES, Widen, linear_on_features, scattering_features
from quietsum.tasks.models import outputs
from quietsum.tasks.protocol import Metrics, Settings
from quietsum.tasks.roots import check_root, split_root

__all__ = ["ChestXrayTask", "xray_features"]

NETWORKS: Final = ("scattering", "mlp", "cnn")
_PARTS: Final = {"test": "test", "validation": "val"}


def xray_features(pixels: NDArray[np.uint8], network: str) -> Tensor:
    """What ``network`` reads of (n, 28, 28) pixels, in half precision.

    Guarantees: row i depends on image i and on public constants only.
    """
    images = torch.from_numpy(pixels.astype(np.float32) / 255)
    if network == "cnn":
        return (images[:, None] * 2 - 1).to(torch.float16)
    return scattering_features(images, logarithm=True)


@functools.cache
def _parts(folder: Path) -> dict[str, Images]:
    return read_xrays(folder, KNOWN)


@functools.cache
def _features(folder: Path, part: str, cnn: bool) -> Tensor:
    return xray_features(_parts(folder)[part].pixels, "cnn" if cnn else "scattering")


@final
class ChestXrayTask:
    """Does this X-ray show pneumonia? ``network`` is ``scattering`` (linear), ``mlp`` (same features) or ``cnn``.

    ``evaluate_on`` is ``test``, or ``validation`` while settings are chosen; ``split`` knows only the published 0.
    """

    name, title = "chest-xray", "chest X-rays of 28 × 28 pixels, normal or pneumonia"
    loss = staticmethod(cross_entropy)
    public = "PneumoniaMNIST is published under CC BY 4.0, without names"
    size = 4708
    without_sites = "the files name no hospital"

    def __init__(
        self,
        *,
        network: str = "scattering",
        evaluate_on: str = "test",
        split: int = 0,
        root: int | str = 0,
        folder: str | os.PathLike[str] | None = None,
    ) -> None:
        check_options(network, NETWORKS, evaluate_on, split)
        self.network, self.evaluate_on = network, evaluate_on
        self.root_size = check_root(root, self.name, why_not="no public constants draw an X-ray")
        self._folder = data_folder("pneumoniamnist") if folder is None else Path(folder)

    @property
    def settings(self) -> Settings:
        """Batch, epochs, clip and learning rate; chosen on the validation part."""
        training: dict[str, Any] = {"batch_size": 1024, "epochs": 60, "max_grad_norm": 0.1, "ema_decay": 0.97}
        training["delta"] = 1e-5
        if self.network == "scattering":  # benchmarks/utility.py --choose
            training = {**training, "epochs": 120, "clipping": "automatic"}
        rate = {"scattering": 0.5, "mlp": 0.5, "cnn": 2.0}[self.network]
        return Settings(learning_rate=rate, optimizer="momentum", training=training)

    @property
    def plain_settings(self) -> Settings:
        """Without privacy, chosen on the validation part (benchmarks/utility.py --choose --plain); cnn was guessed."""
        training = {"batch_size": 1024, "epochs": 120 if self.network == "scattering" else 60, "ema_decay": 0.97}
        rate = {"scattering": 0.0015, "mlp": 0.005, "cnn": 0.2}[self.network]
        return Settings(learning_rate=rate, optimizer="momentum", training=training)

    def model(self) -> nn.Module:
        """A fresh model; the linear one starts at zero."""
        if self.network == "scattering":
            return linear_on_features(2)
        if self.network == "mlp":
            return nn.Sequential(Widen(), nn.Linear(FEATURES, 16), nn.Tanh(), nn.Linear(16, 2))
        return nn.Sequential(
            Widen(), nn.Conv2d(1, 16, 5, 2, 2), nn.GroupNorm(4, 16), nn.Tanh(),
            nn.Conv2d(16, 32, 3, 2, 1), nn.GroupNorm(4, 32), nn.Tanh(),
            nn.Conv2d(32, 32, 3, 2, 1), nn.GroupNorm(4, 32), nn.Tanh(), nn.Flatten(), nn.Linear(512, 2),
        )  # fmt: skip

    def look_for_data(self, party: str) -> None:
        """:class:`~quietsum.errors.DataMissing` where the files are not there; nothing is read."""
        find_xrays(self._folder)

    def records(self) -> tuple[Tensor, ...]:
        """The 4,708 training records."""
        return self._part("train")

    def root(self) -> tuple[Tensor, ...]:
        """Some of the published records that would be scored, for trials at the server."""
        return split_root(self._read_scored(), self.root_size)[0]

    def evaluate(self, model: nn.Module) -> Metrics:
        """AUC, and accuracy at even odds, on the part that ``evaluate_on`` names."""
        values, labels = split_root(self._read_scored(), self.root_size)[1]
        answers = outputs(model, values).double()
        return Metrics(
            values={
                "auc": scores.roc_auc(labels.numpy(), (answers[:, 1] - answers[:, 0]).numpy()),
                "accuracy": scores.accuracy(labels.numpy(), answers.argmax(1).numpy()),
            },
            on=f"{len(labels)} published {self.evaluate_on} images",
            chance={"auc": 0.5, "accuracy": scores.majority(labels.numpy())},
        )

    def _read_scored(self) -> tuple[Tensor, ...]:
        """Records that need no protection: those that are scored, and those of the root set."""
        return self._part(_PARTS[self.evaluate_on])

    def _part(self, part: str) -> tuple[Tensor, Tensor]:
        labels = torch.from_numpy(_parts(self._folder)[part].labels)
        return _features(self._folder, part, self.network == "cnn"), labels
