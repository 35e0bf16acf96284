"""PneumoniaMNIST's file: 5,856 chest X-rays of children, 28 × 28 pixels, normal or pneumonia (MedMNIST v2, CC BY 4.0).

Two files are accepted. MedMNIST's own ``pneumoniamnist.npz`` is known by the MD5 that its authors publish. Any other
file with the same arrays is known by a SHA-256 over its records *in sorted order*, image and label together: copies
that were shuffled on their way are the same set of records, and one altered pixel or a swapped label is not.

No torch here: ``quietsum datasets`` verifies the file with numpy alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

import numpy as np
from numpy.typing import NDArray

from quietsum.errors import DataMissing, InvalidParameter
from quietsum.tasks.checks import check_images, check_labels
from quietsum.tasks.datafiles import load_npz

__all__ = ["KNOWN", "Images", "Known", "check_xrays", "find_xrays", "read_xrays", "sum_of_records"]

FILE: Final = "pneumoniamnist.npz"
OFFICIAL_MD5: Final = "28209eda62fecd6e6a2d98b1501bb15f"
SIDE: Final = 28
_WHERE: Final = (
    "fetch pneumoniamnist.npz from medmnist.com (the edition of 28 pixels), put it there and set QUIETSUM_DATA to the "
    "folder above"
)


@final
@dataclass(frozen=True, kw_only=True)
class Known:
    """What is published about one part: its records, how many of them are normal, and the sum of all of them."""

    records: int
    normal: int
    sum_of_records: str


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Images:
    """One part: ``pixels`` (n, 28, 28) of 0 … 255, and ``labels`` (n,), 1 for pneumonia."""

    pixels: NDArray[np.uint8]
    labels: NDArray[np.int64]

    def __repr__(self) -> str:  # no pixel of a child's lung belongs in a log
        return f"Images({len(self.labels)} records)"


KNOWN: Final[Mapping[str, Known]] = {
    "train": Known(
        records=4708,
        normal=1214,
        sum_of_records="2314d45df1c1cd156f60a5d892ee62bb7e211988582185ed111e0214f4e2bcd1",
    ),
    "val": Known(
        records=524,
        normal=135,
        sum_of_records="106be82596640d98e9b65de30213d696c0b8869fd4d7ed6ac336151e95f85da6",
    ),
    "test": Known(
        records=624,
        normal=234,
        sum_of_records="41c6f2db35a464895452dbde5daf4c71192483d09a7725805b65e76de8d0acfb",
    ),
}
"""The published parts. Sizes and counts are MedMNIST's own; the split is theirs too."""


def sum_of_records(pixels: NDArray[np.uint8], labels: NDArray[np.int64]) -> str:
    """A SHA-256 that does not change when records change places.

    >>> pixels, labels = np.arange(8, dtype=np.uint8).reshape(2, 2, 2), np.array([0, 1])
    >>> sum_of_records(pixels, labels) == sum_of_records(pixels[::-1], labels[::-1])
    True
    >>> sum_of_records(pixels, labels) == sum_of_records(pixels, labels[::-1])
    False
    """
    total = hashlib.sha256()
    for record in sorted(image.tobytes() + bytes([label]) for image, label in zip(pixels, labels, strict=True)):
        total.update(record)
    return total.hexdigest()


def find_xrays(folder: Path) -> Path:
    """Where the set lies in ``folder``; :class:`DataMissing` where it does not. Nothing is read."""
    path = folder / FILE
    if not path.is_file():
        raise DataMissing(f"PneumoniaMNIST is not in {folder}: {_WHERE}")
    return path


def read_xrays(folder: Path, known: Mapping[str, Known] = KNOWN) -> dict[str, Images]:
    """The parts train, val and test, verified. ``known`` is there for tests with small files."""
    path = find_xrays(folder)
    arrays = load_npz(path, [f"{part}_{what}" for part in known for what in ("images", "labels")])
    parts = {}
    for part, facts in known.items():
        parts[part] = _verify(path, part, arrays[f"{part}_images"], arrays[f"{part}_labels"], facts)
    if hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest() == OFFICIAL_MD5:
        return parts
    for part, facts in known.items():
        if sum_of_records(parts[part].pixels, parts[part].labels) != facts.sum_of_records:
            raise DataMissing(
                f"{path} is not PneumoniaMNIST as published: the records of {part} have another SHA-256; {_WHERE}, or "
                "write a task for your own images"
            )
    return parts


def check_xrays(folder: Path) -> str:
    """One line of what the folder holds, after verifying it."""
    parts = read_xrays(folder)
    sizes = " / ".join(str(len(images.labels)) for images in parts.values())
    return f"{sizes} images to train, validate and test"


def _verify(path: Path, part: str, pixels: NDArray[np.uint8], labels: NDArray[np.uint8], facts: Known) -> Images:
    try:
        check_images(f"{part}_images", pixels, shape=(SIDE, SIDE))
        found = check_labels(f"{part}_labels", labels, classes=2, rows=len(pixels))
    except InvalidParameter as error:
        raise DataMissing(f"{path}: {error}. The file is damaged or another set: {_WHERE}") from None
    if pixels.dtype != np.uint8:
        raise DataMissing(f"{path}: {part}_images are {pixels.dtype}, not bytes of 0 … 255; {_WHERE}")
    if len(found) != facts.records or int((found == 0).sum()) != facts.normal:
        raise DataMissing(
            f"{path}: {part} has {len(found)} records, {int((found == 0).sum())} of them normal, where the published "
            f"set has {facts.records} and {facts.normal}; it is truncated or another set: {_WHERE}"
        )
    return Images(pixels=pixels, labels=found)
