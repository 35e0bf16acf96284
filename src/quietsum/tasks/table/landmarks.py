"""Landmarks in motion from an ``.npz`` file: joints of a body over the frames of a clip, MediaPipe's 33 for instance.

The file holds ``landmarks`` (clips, frames, joints, 2 or 3) and ``labels`` (clips), perhaps ``sites`` and ``people``,
one of each per clip. A clip is centred on the mean of its own first frame and clipped. One with a number that is not
finite, or with a label that is none of the classes, gets the label −1 and counts as zero.
"""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from quietsum.errors import DataMissing, InvalidParameter
from quietsum.tasks.lines import check_file
from quietsum.tasks.table.records import Labelled, hash_record

__all__ = ["check_landmarks", "encode_landmarks", "labels_of_landmarks", "read_landmarks", "shape_of_landmarks"]


def check_landmarks(path: Path) -> None:
    """Raise :class:`~quietsum.errors.DataMissing` if ``path`` is no file; it is not opened."""
    check_file(path)


def shape_of_landmarks(path: Path) -> tuple[int, int, int, frozenset[str]]:
    """(frames, joints, numbers of a joint) as the header of the array says, and the arrays' names.

    Guarantees: no clip is read, and how many there are is not part of the answer.
    """
    check_landmarks(path)
    try:
        with zipfile.ZipFile(path) as archive:
            names = frozenset(name.removesuffix(".npy") for name in archive.namelist())
            with archive.open("landmarks.npy") as file:
                major, _ = npy.read_magic(file)
                read = npy.read_array_header_1_0 if major == 1 else npy.read_array_header_2_0
                shape, _, kind = read(file)
    except Exception as error:  # zipfile, zlib, tokenize and numpy each have their own
        problem = f"is no .npz with landmarks ({type(error).__name__})"
        remedy = "write it with numpy.savez(path, landmarks=…, labels=…)"
        raise InvalidParameter("--from", str(path), problem, remedy) from None
    if len(shape) != 4 or shape[3] not in (2, 3) or kind.kind != "f" or "labels" not in names:
        problem = "holds no landmarks of shape (clips, frames, joints, 2 or 3) with labels"
        raise InvalidParameter("--from", str(path), problem, "write them as floats, with one label a clip")
    return int(shape[1]), int(shape[2]), int(shape[3]), names


def read_landmarks(
    path: Path, classes: Sequence[str], *, frames: int, joints: int, dims: int, largest: float, site: str,
    with_sites: bool, with_people: bool,
) -> Labelled:  # fmt: skip
    """All clips of ``path``, (n, dims, frames, joints), each centred by itself.

    Guarantees: what a clip becomes depends on that clip and on the declarations alone.
    """
    arrays = _arrays(path)
    motion = arrays["landmarks"]
    values, fine = _centre(path, motion, (frames, joints, dims), largest)
    count = len(motion)
    places = {name: place for place, name in enumerate(classes)}
    labels = np.array([places.get(one, -1) for one in _texts(arrays, "labels", count)], dtype=np.int64)
    sites = np.empty(count, dtype=object)
    sites[:] = _texts(arrays, "sites", count) if with_sites else [site] * count
    people = None
    if with_people:
        told = [hash_record(one.encode()) for one in _texts(arrays, "people", count)]
        people = np.array(told, dtype=np.uint64).view(np.int64)
    return Labelled(
        values=np.ascontiguousarray(values, dtype=np.float32), labels=np.where(fine, labels, -1), sites=sites,
        hashes=np.array([hash_record(one.tobytes()) for one in motion], dtype=np.uint64), people=people,
    )  # fmt: skip


def encode_landmarks(path: Path, *, frames: int, joints: int, dims: int, largest: float) -> NDArray[np.float32]:
    """The clips of a file, (n, dims, frames, joints), each centred by itself; NaN for one that is none."""
    arrays = _arrays(path)
    if "landmarks" not in arrays:
        raise InvalidParameter(
            "rows", str(path), "holds no landmarks", "write them with numpy.savez(path, landmarks=…)"
        )
    values, fine = _centre(path, arrays["landmarks"], (frames, joints, dims), largest)
    return np.where(fine[:, None, None, None], values, np.nan).astype(np.float32)


def _centre(
    path: Path, motion: NDArray[Any], shape: tuple[int, int, int], largest: float
) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Clips as a model reads them, and which of them hold numbers alone; the others are zero."""
    if motion.shape[1:] != shape or motion.dtype.kind != "f":
        problem = "holds clips of another shape than is declared"
        raise InvalidParameter("landmarks", str(path), problem, f"bring each to {shape} by itself")
    values = motion.astype(np.float32).transpose(0, 3, 1, 2)
    fine = np.asarray(np.isfinite(values).reshape(len(motion), -1).all(axis=1))
    values = np.where(fine[:, None, None, None], values, 0.0)
    return np.clip(values - values[:, :, :1].mean(axis=3, keepdims=True), -largest, largest), fine


def labels_of_landmarks(path: Path) -> list[str]:
    """The label of each clip. Private."""
    arrays = _arrays(path)
    return _texts(arrays, "labels", len(arrays["landmarks"]))


def _arrays(path: Path) -> dict[str, NDArray[Any]]:
    try:
        with np.load(path, allow_pickle=False) as held:
            return {name: held[name] for name in held.files}
    except Exception as error:  # zipfile, zlib, tokenize and numpy each have their own
        raise DataMissing(f"{path} is no .npz of plain arrays ({type(error).__name__})") from None


def _texts(arrays: dict[str, NDArray[Any]], name: str, count: int) -> list[str]:
    found = arrays.get(name)
    if found is None or found.shape != (count,):
        problem = "is not there" if found is None else "is not one for each clip"
        raise InvalidParameter(name, "…", problem, "write it with numpy.savez beside the landmarks")
    return [str(one).strip() for one in found.tolist()]
