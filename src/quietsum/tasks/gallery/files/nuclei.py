"""Cell nuclei under many microscopes: 664 images and where the nuclei are (Data Science Bowl 2018, CC0, corrected).

Two forms are read. The official one is the folder ``stage1_train`` of 29,650 PNG files, one folder a picture with
``images/<name>.png`` and one ``masks/*.png`` a nucleus; it takes minutes to read. The prepared one is
``nuclei_dsb2018_128.npz`` with ``images`` (gray, 128 × 128 pixels, bytes), ``masks`` (1 where any nucleus is) and
``orig_hw``, the picture's size before. That size tells which laboratory's series a picture comes from, so it is the
natural site of a federation.

The prepared arrays are known by their SHA-256, the folder by the sizes and the number of nuclei of all its pictures.

No torch here: ``quietsum datasets`` verifies the file with numpy alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

import numpy as np
from numpy.typing import NDArray

from quietsum.errors import DataMissing, InvalidParameter
from quietsum.tasks.checks import check_images
from quietsum.tasks.datafiles import load_npz, refuse_unknown, sha256_of
from quietsum.tasks.gallery.files.png import read_gray, resize

__all__ = ["KNOWN", "SIDE", "Pictures", "check_nuclei", "find_nuclei", "pair_up", "read_nuclei", "read_official"]

FILE: Final = "nuclei_dsb2018_128.npz"
SIDE: Final = 128
KNOWN: Final[Mapping[str, tuple[tuple[int, ...], str]]] = {
    "images": ((664, SIDE, SIDE), "9655a356fea4a44daada2a60cf9e86da12af78a8c925b5d52113a0a119c0225b"),
    "masks": ((664, SIDE, SIDE), "7221b51b7b16def197dd95a50d7c829ad7edf08a073575abacad1c968e3f13a8"),
    "orig_hw": ((664, 2), "a38a89a51753b0a5d3b6da2d71db38af2d6318c4b077192365bdcbe430fe97d2"),
}
"""Shape and SHA-256 of each array."""
KNOWN_FOLDER: Final = (664, "16044a58b9d226db36a7a9ea268358456ed635281b71918edad62459b1a27a94")
"""How many pictures the official folder has, and the SHA-256 of their sizes and numbers of nuclei, in sorted order."""


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Pictures:
    """``images`` and ``masks`` (n, 128, 128), and ``sizes`` (n, 2), height and width before they were resize."""

    images: NDArray[np.uint8]
    masks: NDArray[np.uint8]
    sizes: NDArray[np.int64]

    def __repr__(self) -> str:
        return f"Pictures({len(self.images)} records)"

    def sites(self) -> tuple[str, ...]:
        """The group of each record: its original size, ``256x320`` say."""
        return tuple(f"{height}x{width}" for height, width in self.sizes.tolist())


def pair_up(images: NDArray[Any], masks: NDArray[Any], sizes: NDArray[Any]) -> Pictures:
    """The three arrays where they fit together: bytes, masks of zeros and ones, sizes above zero."""
    check_images("images", images, shape=(SIDE, SIDE))
    check_images("masks", masks, shape=(SIDE, SIDE))
    if len(masks) != len(images) or sizes.shape != (len(images), 2) or sizes.dtype.kind not in "iu":
        shapes = f"{images.shape}, {masks.shape} and {sizes.shape}"
        raise InvalidParameter(
            "images, masks and orig_hw", shapes, "do not fit together", "pass one of each per record"
        )
    if images.dtype != np.uint8:
        raise InvalidParameter("images", str(images.dtype), "are not bytes", "pass gray values of 0 … 255")
    wrong = np.flatnonzero(~np.isin(masks, (0, 1)).reshape(len(masks), -1).all(axis=1))
    if len(wrong):
        row = f"row {wrong[0]}"
        raise InvalidParameter("masks", row, "has labels other than 0 and 1", "1 is nucleus, 0 is background")
    empty = np.flatnonzero(masks.reshape(len(masks), -1).max(axis=1) == 0)
    if len(empty):
        row = f"row {empty[0]}"
        raise InvalidParameter("masks", row, "has no nucleus: the class is empty", "leave the picture out")
    if (sizes <= 0).any():
        raise InvalidParameter("orig_hw", "a size", "is not above zero", "it is height and width in pixels")
    return Pictures(images=images, masks=masks.astype(np.uint8), sizes=sizes.astype(np.int64))


def find_nuclei(folder: Path) -> Path:
    """Where the set lies in ``folder``; :class:`DataMissing` where it does not. Nothing is read."""
    if (folder / FILE).is_file():
        return folder / FILE
    if (folder / "stage1_train").is_dir():
        return folder / "stage1_train"
    raise DataMissing(
        f"the nuclei are not in {folder}: put the folder stage1_train of github.com/lopuhin/"
        f"kaggle-dsbowl-2018-dataset-fixes there, or {FILE}, and set QUIETSUM_DATA to the folder above"
    )


def read_nuclei(folder: Path, known: Mapping[str, tuple[tuple[int, ...], str]] = KNOWN) -> Pictures:
    """All pictures, verified. ``known`` is there for tests with small files."""
    path = find_nuclei(folder)
    if path.is_dir():
        return read_official(path, KNOWN_FOLDER)
    arrays = load_npz(path, list(known))
    try:
        found = pair_up(arrays["images"], arrays["masks"], arrays["orig_hw"])
    except InvalidParameter as error:
        raise DataMissing(f"{path}: {error}. The file is damaged or another set: fetch it again") from None
    for name, (shape, total) in known.items():
        refuse_unknown(path, name, arrays[name], shape, total)
    return found


def read_official(folder: Path, known: tuple[int, str] = KNOWN_FOLDER) -> Pictures:
    """The pictures of ``stage1_train`` in the order of their names, resize by bilinear weights."""
    images, masks, facts = [], [], []
    for place in sorted(entry for entry in folder.iterdir() if entry.is_dir()):
        gray = read_gray(place / "images" / f"{place.name}.png")
        union, count = np.zeros(gray.shape, dtype=np.bool_), 0
        for path in sorted((place / "masks").glob("*.png")):
            nucleus = read_gray(path)
            if nucleus.shape != gray.shape:
                raise DataMissing(f"{path} is not as large as its picture; fetch it again")
            union |= nucleus > 127
            count += 1
        images.append(np.rint(resize(gray, SIDE)).astype(np.uint8))
        masks.append((resize(union.astype(np.uint8), SIDE) >= 0.5).astype(np.uint8))
        facts.append((*gray.shape, count))
    if len(facts) != known[0]:
        raise DataMissing(f"{folder} has {len(facts)} pictures, the published set {known[0]}; fetch it again")
    lines = "\n".join(f"{height} {width} {count}" for height, width, count in sorted(facts))
    if sha256_of(lines.encode()) != known[1]:
        raise DataMissing(
            f"{folder} is not as published: sizes or numbers of nuclei differ; fetch it again, or write a task for "
            "your own pictures"
        )
    try:
        return pair_up(np.stack(images), np.stack(masks), np.array(facts)[:, :2])
    except InvalidParameter as error:
        raise DataMissing(f"{folder}: {error}. The folder is damaged: fetch it again") from None


def check_nuclei(folder: Path) -> str:
    """One line of what the folder holds, after verifying it."""
    pictures = read_nuclei(folder)
    return f"{len(pictures.images)} pictures with masks, {len(set(pictures.sites()))} original sizes"
