"""Pictures from folders by class, ``folder/class/name.png``, or with sites ``folder/site/class/name.png``.

The names of the class folders are declared public by this layout: a holder who makes a folder for each class says
which there are. How many pictures lie in them is not looked at before they are trained on. PNG is read here, anything
else by Pillow if it is installed; colours become gray. A file that is no picture gets the label −1, so that it counts
as zero.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from quietsum.errors import DataMissing, InvalidParameter
from quietsum.tasks.gallery.files.png import LARGEST_PICTURE, read_gray, resize
from quietsum.tasks.table.records import Labelled, hash_record

__all__ = ["SUFFIXES", "check_pictures", "class_folders", "encode_pictures", "read_pictures"]

SUFFIXES: Final = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff")
_FORMATS: Final = ("JPEG", "BMP", "GIF", "TIFF")
"""Pillow goes by content, not by name, and hands PostScript to a program that executes it: no other format is tried."""
_MOST_FOLDERS: Final = 1000
_LARGEST: Final = 64 << 20  # bytes of one file


def check_pictures(path: Path) -> None:
    """Raise :class:`~quietsum.errors.DataMissing` if ``path`` is no folder; its files are not looked at."""
    try:
        there = path.is_dir()
    except (OSError, ValueError):
        there = False
    if not there:
        raise DataMissing(f"the folder {path} is not there; it holds a folder for each class")


def class_folders(path: Path) -> tuple[str, ...]:
    """The names of the folders in ``path``, which are the classes. Guarantees: no file is counted or opened."""
    check_pictures(path)
    found = sorted(one.name for one in path.iterdir() if one.is_dir() and not one.name.startswith("."))
    if len(found) < 2 or len(found) > _MOST_FOLDERS or not all(name.isprintable() for name in found):
        problem = f"holds {len(found)} folders" if found else "holds no folder"
        raise InvalidParameter("--from", str(path), problem, "name a folder that has one folder for each class")
    return tuple(found)


def read_pictures(path: Path, classes: Sequence[str], *, side: int, sites: Sequence[str], site: str) -> Labelled:
    """All pictures below ``path``, (n, 1, side, side) in [−1, 1]; with ``sites`` a folder of classes for each of them.

    Guarantees: what a file becomes depends on that file alone.
    """
    values, labels, places, hashes = [], [], [], []
    for name, folder in [(one, path / one) for one in sites] or [(site, path)]:
        for label, kind in enumerate(classes):
            for file in _files(folder / kind):
                picture, told = _picture(file, side)
                values.append(np.zeros((side, side)) if picture is None else picture)
                labels.append(-1 if picture is None else label)
                places.append(name)
                hashes.append(told)
    stacked = np.array(values, dtype=np.float32).reshape(len(values), 1, side, side)
    owners = np.empty(len(places), dtype=object)
    owners[:] = places
    return Labelled(
        values=stacked, labels=np.array(labels, dtype=np.int64), sites=owners, hashes=np.array(hashes, dtype=np.uint64)
    )


def encode_pictures(path: Path, *, side: int) -> NDArray[np.float32]:
    """The pictures in ``path`` in the order of their names, (n, 1, side, side); NaN for one that cannot be read."""
    found = [_picture(file, side)[0] for file in _files(path)]
    if not found:
        raise InvalidParameter("rows", str(path), "holds no picture", f"name a folder of {', '.join(SUFFIXES)} files")
    values = [np.full((side, side), np.nan) if one is None else one for one in found]
    return np.array(values, dtype=np.float32).reshape(len(values), 1, side, side)


def _files(folder: Path) -> Iterator[Path]:
    if folder.is_dir():
        yield from sorted(one for one in folder.iterdir() if one.suffix.lower() in SUFFIXES and one.is_file())


def _picture(file: Path, side: int) -> tuple[NDArray[np.float64] | None, int]:
    """One picture in [−1, 1], None if it cannot be read; and a hash of it."""
    try:
        if file.stat().st_size > _LARGEST:
            return None, hash_record(file.name.encode())
        told = hash_record(file.read_bytes())
        gray = read_gray(file) if file.suffix.lower() == ".png" else _by_pillow(file)
        found = None if gray is None else resize(gray, side) / 127.5 - 1
    except (DataMissing, OSError, ValueError, MemoryError, SyntaxError):
        return None, hash_record(file.name.encode())
    return found, told


def _by_pillow(file: Path) -> NDArray[np.uint8] | None:
    try:
        image: Any = importlib.import_module("PIL.Image")
    except ImportError:
        return None
    try:
        with image.open(file, formats=_FORMATS) as picture:
            if picture.width * picture.height > LARGEST_PICTURE:
                return None
            return np.asarray(picture.convert("L"), dtype=np.uint8)
    except Exception:  # whatever a broken file makes Pillow raise
        return None
