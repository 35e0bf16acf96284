"""Which pixels are nuclei? 664 microscope pictures of 128 × 128 pixels (Data Science Bowl 2018; Caicedo 2019).

Segmentation under privacy: one record is one picture with its mask, however many nuclei it shows, and its loss is one
value,

    ℓ = mean pixel cross entropy + 1 − (2 Σ p·m + 1) / (Σ p + Σ m + 1)          (soft Dice after Milletari 2016)

The split is a public rule, a hash of the record's number in the file (:func:`split_group`), so it looks at no picture.
Every picture is brought to the same appearance by itself: bright ones are turned into negatives, then background 0 and
deviation 1.

The network is a small U-Net (Ronneberger 2015) with group norm on 64 × 64 pixels; its answer is brought back to 128.
"""

from __future__ import annotations

import functools
import hashlib
import os
from pathlib import Path
from typing import Final, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, binary_cross_entropy_with_logits, interpolate

from quietsum.tasks import scores
from quietsum.tasks.checks import check_options
from quietsum.tasks.datafiles import data_folder
from quietsum.tasks.gallery.files.nuclei import KNOWN, SIDE, Pictures, find_nuclei, read_nuclei
from quietsum.tasks.models import outputs
from quietsum.tasks.protocol import Metrics, Settings
from quietsum.tasks.roots import check_root, split_root

__all__ = ["NucleiTask", "SmallUNet", "nuclei_features", "segmentation_loss", "split_group"]

RECORDS: Final = 664  # published
SPLITS: Final = 10
_GROUPS: Final = 5  # group 0 is test, group 1 is validation while settings are chosen


def split_group(number: int, split: int = 0) -> int:
    """0 … 4: the group of record ``number`` in ``split``, from their SHA-256 alone.

    >>> [split_group(number) for number in range(8)]
    [4, 3, 0, 4, 1, 3, 1, 0]
    """
    return int.from_bytes(hashlib.sha256(f"nuclei {split} {number}".encode()).digest()[:8], "big") % _GROUPS


def nuclei_features(images: NDArray[np.uint8]) -> Tensor:
    """(n, 128, 128) bytes as (n, 1, 128, 128) half precision.

    Guarantees: picture i of the result depends on picture i and on public constants only.
    """
    gray = images.astype(np.float32) / 255
    gray = np.where(gray.mean((1, 2), keepdims=True) > 0.5, 1 - gray, gray)  # nuclei are dark on a bright ground
    gray = gray - np.median(gray, axis=(1, 2), keepdims=True)
    gray = gray / (gray.std(axis=(1, 2), keepdims=True) + 0.02)
    return torch.from_numpy(np.clip(gray, -5, 5)[:, None]).to(torch.float16)


def segmentation_loss(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    """Cross entropy plus soft Dice, one value per picture."""
    answers, wanted = model(batch[0]), batch[1].to(torch.float32)
    entropy = binary_cross_entropy_with_logits(answers, wanted, reduction="none").mean((1, 2))
    chance = torch.sigmoid(answers)
    overlap = (2 * (chance * wanted).sum((1, 2)) + 1) / (chance.sum((1, 2)) + wanted.sum((1, 2)) + 1)
    return entropy + 1 - overlap


@functools.cache
def _pictures(folder: Path) -> Pictures:
    return read_nuclei(folder, KNOWN)


@functools.cache
def _features(folder: Path) -> Tensor:
    return nuclei_features(_pictures(folder).images)


@final
class SmallUNet(nn.Module):
    """Three levels of 3 × 3 convolutions with group norm and tanh; (n, 1, h, w) to (n, h, w) scores."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.first, self.down, self.deep = _block(1, width), _block(width, 2 * width), _block(2 * width, 4 * width)
        self.up, self.last = _block(6 * width, 2 * width), _block(3 * width, width)
        self.answer = nn.Conv2d(width, 1, 1)

    def forward(self, values: Tensor) -> Tensor:
        """A score per pixel: above zero means nucleus."""
        fine = self.first(avg_pool2d(values.to(torch.float32), 2))
        middle = self.down(avg_pool2d(fine, 2))
        coarse = self.deep(avg_pool2d(middle, 2))
        middle = self.up(torch.cat([interpolate(coarse, scale_factor=2.0), middle], 1))
        fine = self.last(torch.cat([interpolate(middle, scale_factor=2.0), fine], 1))
        found: Tensor = interpolate(self.answer(fine), scale_factor=2.0, mode="bilinear", align_corners=False)
        return found.squeeze(1)


def _block(inputs: int, channels: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(inputs, channels, 3, padding=1), nn.GroupNorm(4, channels), nn.Tanh())


@final
class NucleiTask:
    """Which pixels are nuclei? ``network`` is ``unet``; ``split`` 0 … 9 holds other pictures out.

    With ``evaluate_on="validation"`` a quarter of the training pictures is scored instead of trained on.
    """

    name, title = "nuclei", "cell nuclei in microscope pictures, 128 × 128 pixels"
    loss = staticmethod(segmentation_loss)
    public = "the pictures were published under CC0 and show cells, not people"

    def __init__(
        self,
        *,
        network: str = "unet",
        evaluate_on: str = "test",
        split: int = 0,
        root: int | str = 0,
        folder: str | os.PathLike[str] | None = None,
    ) -> None:
        check_options(network, ("unet",), evaluate_on, split, SPLITS)
        self.network, self.evaluate_on, self.split = network, evaluate_on, split
        self.root_size = check_root(root, self.name, why_not="no public constants draw cells")
        self._folder = data_folder("nuclei_dsb2018") if folder is None else Path(folder)
        groups = np.array([split_group(number, split) for number in range(RECORDS)])
        self._scored = np.flatnonzero(groups == (0 if evaluate_on == "test" else 1))
        self._trained = np.flatnonzero(groups > (0 if evaluate_on == "test" else 1))

    @property
    def size(self) -> int:
        """How many pictures train: a count of record numbers, known before any picture is read."""
        return len(self._trained)

    @property
    def settings(self) -> Settings:
        """Batch, epochs, clip and learning rate, chosen on validation parts (benchmarks/utility.py --choose)."""
        training = {"batch_size": 256, "epochs": 60, "max_grad_norm": 0.5, "ema_decay": 0.95, "delta": 1e-4}
        return Settings(learning_rate=0.6, optimizer="momentum", training={**training, "clipping": "automatic"})

    @property
    def plain_settings(self) -> Settings:
        """Without privacy, chosen in the same way."""
        training = {"batch_size": 128, "epochs": 60, "max_grad_norm": 0.5, "ema_decay": 0.95}
        return Settings(learning_rate=0.05, optimizer="momentum", training=training)

    def model(self) -> nn.Module:
        """A fresh U-Net."""
        return SmallUNet()

    def example(self) -> tuple[Tensor, ...]:
        """A made-up picture without nuclei."""
        return torch.zeros(1, 1, SIDE, SIDE, dtype=torch.float16), torch.zeros(1, SIDE, SIDE, dtype=torch.uint8)

    def look_for_data(self, party: str) -> None:
        """:class:`~quietsum.errors.DataMissing` where the files are not there; nothing is read."""
        find_nuclei(self._folder)

    def records(self) -> tuple[Tensor, ...]:
        """The training pictures and their masks."""
        return self._select(self._trained)

    def sites(self) -> tuple[str, ...]:
        """For each training record, its group by original size: the sites of a federation."""
        everyone = _pictures(self._folder).sites()
        return tuple(everyone[number] for number in self._trained)

    def root(self) -> tuple[Tensor, ...]:
        """Some of the published records that would be scored, for trials at the server."""
        return split_root(self._read_scored(), self.root_size)[0]

    def evaluate(self, model: nn.Module) -> Metrics:
        """Mean Dice per picture, and the share of right pixels, on pictures held out."""
        values, masks = split_root(self._read_scored(), self.root_size)[1]
        found = (outputs(model, values, piece=64) > 0).numpy()
        right = float((found == (masks.numpy() > 0)).mean())
        part = "test" if self.evaluate_on == "test" else "validation"
        return Metrics(
            values={"dice": scores.dice(masks.numpy(), found), "pixel accuracy": right},
            on=f"{len(masks)} published {part} pictures held out",
        )

    def _read_scored(self) -> tuple[Tensor, ...]:
        """Records that need no protection: those that are scored, and those of the root set."""
        return self._select(self._scored)

    def _select(self, numbers: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        masks = _pictures(self._folder).masks[numbers]
        return _features(self._folder)[torch.from_numpy(numbers)], torch.from_numpy(masks)
