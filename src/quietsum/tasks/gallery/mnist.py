"""MNIST and Fashion-MNIST: 70,000 digits (LeCun, Cortes, Burges 1998) and 70,000 clothes (Xiao, Rasul, Vollgraf 2017).

Both have 28 × 28 pixels and ten classes, and both are read from files that you have: nothing is downloaded. MNIST lies
in ``$QUIETSUM_DATA/mnist``, either as the four files of the original page (``train-images-idx3-ubyte.gz`` and so on,
packed or unpacked) or as one ``mnist.npz`` with x_train, y_train, x_test and y_test. Fashion-MNIST lies in
``$QUIETSUM_DATA/fashion_mnist``, or where Debian's package ``dataset-fashion-mnist`` puts it. Pixels and labels are
compared with known SHA-256 sums (:mod:`quietsum.tasks.gallery.files.idx`).

The default model is linear on scattering features (:mod:`quietsum.tasks.gallery.scattering`), each record normalised by
itself; ``network="cnn"`` learns its own features and needs more ε for the same accuracy. With
``evaluate_on="validation"`` the last 10,000 training records are scored instead of trained on: that is how settings are
chosen.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Final, final

import numpy as np
import torch
from torch import Tensor, nn

from quietsum.learning import cross_entropy
from quietsum.tasks import datafiles, scores
from quietsum.tasks.checks import check_options
from quietsum.tasks.gallery.files.idx import FASHION, MNIST, IdxSet, find_part, read_part
from quietsum.tasks.gallery.scattering import Widen, linear_on_features, scattering_features
from quietsum.tasks.models import outputs
from quietsum.tasks.protocol import Metrics, Settings
from quietsum.tasks.roots import check_root, split_root

__all__ = ["FashionMnistTask", "MnistTask"]

_HELD_OUT: Final = 10000  # of the 60,000 training records, for choosing


def _set(fashion: bool) -> IdxSet:
    return FASHION if fashion else MNIST


@functools.cache
def _features(folder: Path, part: str, network: str, fashion: bool = False) -> Tensor:
    """What the model reads, each image by itself; computed once a process. Half precision: the model widens it."""
    pixels = read_part(folder, part, _set(fashion))
    images = torch.from_numpy(pixels.astype(np.float32) / 255)
    if network == "cnn":
        return (images[:, None] * 2 - 1).to(torch.float16)
    return scattering_features(images)


def _model(network: str) -> nn.Module:
    if network == "cnn":
        return nn.Sequential(
            Widen(), nn.Conv2d(1, 16, 8, 2, 3), nn.GroupNorm(4, 16), nn.Tanh(), nn.MaxPool2d(2, 1),
            nn.Conv2d(16, 32, 4, 2), nn.GroupNorm(4, 32), nn.Tanh(), nn.MaxPool2d(2, 1), nn.Flatten(),
            nn.Linear(512, 32), nn.Tanh(), nn.Linear(32, 10),
        )  # fmt: skip
    return linear_on_features(10)


class _Pictures:
    """What the two sets share: 60,000 training and 10,000 test images of ten classes, in the same form."""

    name = "pictures"
    loss = staticmethod(cross_entropy)
    size = 60000
    without_sites = "the files name no writer or shop"
    _fashion = False

    def __init__(
        self,
        *,
        network: str = "scattering",
        evaluate_on: str = "test",
        split: int = 0,
        root: int | str = 0,
        folder: str | os.PathLike[str] | None = None,
    ) -> None:
        check_options(network, ("scattering", "cnn"), evaluate_on, split)
        self.network, self.evaluate_on = network, evaluate_on
        self._folder = self._usual() if folder is None else Path(folder)
        self.root_size = check_root(root, self.name, why_not="no public constants draw such a picture")
        if evaluate_on == "validation":
            self.size = type(self).size - _HELD_OUT

    def _usual(self) -> Path:
        return datafiles.data_folder("mnist")

    def model(self) -> nn.Module:
        """A fresh model; the linear one starts at zero."""
        return _model(self.network)

    def look_for_data(self, party: str) -> None:
        """:class:`~quietsum.errors.DataMissing` where the files are not there; nothing is read."""
        for part in ("x_train", "y_train"):
            find_part(self._folder, part, _set(self._fashion))

    def records(self) -> tuple[Tensor, ...]:
        """The 60,000 training records, or the first 50,000 while settings are chosen."""
        values, labels = self._part("train")
        return values[: self.size], labels[: self.size]

    def root(self) -> tuple[Tensor, ...]:
        """Some of the published records that would be scored, for trials at the server."""
        return split_root(self._read_scored(), self.root_size)[0]

    def evaluate(self, model: nn.Module) -> Metrics:
        """Accuracy on the 10,000 published test images, or on the training images held out for choosing."""
        values, labels = split_root(self._read_scored(), self.root_size)[1]
        right = scores.accuracy(labels.numpy(), outputs(model, values).argmax(-1).numpy())
        what = f"{len(labels):,} published test images"
        if self.evaluate_on == "validation":
            what = f"{len(labels)} training images held out for choosing"
        return Metrics(values={"accuracy": right}, on=what, chance={"accuracy": scores.majority(labels.numpy())})

    def _read_scored(self) -> tuple[Tensor, ...]:
        """Records that need no protection: those that are scored, and those of the root set."""
        if self.evaluate_on == "test":
            return self._part("test")
        values, labels = self._part("train")
        return values[self.size :], labels[self.size :]

    def _part(self, which: str) -> tuple[Tensor, Tensor]:
        labels = torch.from_numpy(read_part(self._folder, f"y_{which}", _set(self._fashion)).astype(np.int64))
        return _features(self._folder, f"x_{which}", self.network, self._fashion), labels


@final
class MnistTask(_Pictures):
    """Which digit is it? ``network`` is ``scattering`` (linear on fixed features) or ``cnn`` (tanh, GroupNorm)."""

    name, title = "mnist", "handwritten digits, 28 × 28 pixels"
    public = "MNIST has been published since 1998, and no writer in it can be harmed"

    @property
    def settings(self) -> Settings:
        """Chosen on training rows held out, without the test rows (benchmarks/mnist.py --choose)."""
        return Settings(
            learning_rate=4.0, optimizer="momentum",
            training={"batch_size": 2048, "epochs": 27, "max_grad_norm": 0.1, "ema_decay": 0.98, "delta": 1e-6},
        )  # fmt: skip


@final
class FashionMnistTask(_Pictures):
    """Which garment is it? ``network`` is ``scattering`` (linear on fixed features) or ``cnn`` (tanh, GroupNorm)."""

    name, title = "fashion-mnist", "clothes, 28 × 28 pixels"
    public = "Fashion-MNIST shows clothes of a catalogue, published under the MIT licence"
    _fashion = True

    def _usual(self) -> Path:
        known = datafiles.DATASETS[self.name]
        return known.find_folder() or datafiles.data_folder(known.folders[0])

    @property
    def settings(self) -> Settings:
        """Batch, epochs, clip and learning rate to begin with."""
        return Settings(
            learning_rate=8.0, optimizer="momentum",
            training={"batch_size": 4096, "epochs": 40, "max_grad_norm": 0.1, "ema_decay": 0.98, "delta": 1e-6},
        )  # fmt: skip
