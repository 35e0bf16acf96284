"""Card payments of two days in September 2013, of which 492 in 284,807 were fraud (Dal Pozzolo et al. 2015, ULB).

Two forms are read, and give the same arrays to the last bit: the published ``creditcard.csv`` (150,828,752 bytes, known
by its MD5) and a small ``creditcard.npz`` with V in half precision, time, amount and label, which
:func:`pack_payments` makes from the first. The 28 columns V are principal components that the publishers computed;
they are rounded to half precision on reading, a relative error of at most 0.05 %.

The set names no cards, so the unit of protection is one *record*. It holds 1,081 exact copies of other rows: the person
behind such a pair has two records, and for them the guarantee of a pair holds: about twice the printed ε per record.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

import numpy as np
from numpy.typing import NDArray

from quietsum.errors import DataMissing, InvalidParameter
from quietsum.tasks.checks import check_images, check_labels
from quietsum.tasks.datafiles import load_npz, refuse_unknown
from quietsum.tasks.splits import places
from quietsum.validate import whole_number

__all__ = [
    "COLUMNS",
    "KNOWN",
    "KnownPayments",
    "Payments",
    "check_payments",
    "find_payments",
    "pack_payments",
    "payment_parts",
    "read_payments",
]

COLUMNS: Final = 28
SPLITS: Final = 10
_HEADER: Final = ("Time", *(f"V{number}" for number in range(1, COLUMNS + 1)), "Amount", "Class")
_WHERE: Final = (
    "put creditcard.csv of kaggle.com/mlg-ulb/creditcardfraud there, or creditcard.npz, and set QUIETSUM_DATA to the "
    "folder above; `quietsum datasets fraud` says where else the file is found"
)


@final
@dataclass(frozen=True, kw_only=True)
class KnownPayments:
    """How the published file is recognised: rows, MD5 of the csv, SHA-256 of each array."""

    rows: int
    md5: str
    sums: dict[str, str]


KNOWN: Final = KnownPayments(
    rows=284_807, md5="e90efcb83d69faf99fcab8b0255024de",
    sums={
        "V": "0c98d333f6a290623575b5702178acfe9bcfc0b5d1c279820b012f432593b8e8",
        "time": "93caacf48f57ddc736ab52f53f00babc058d2078736017a82c69c7c72a32b807",
        "amount": "8d6215e53f369bb4f2d60f96268e7bdb179cd800ad108dc84f904164f47ad236",
        "label": "f1f2b8f12551b17e2e06a2193ac7a865a18b67910c7c6030efb15728b261e9bf",
    },
)  # fmt: skip


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Payments:
    """Row i of each array is payment i. Printing them shows their number alone."""

    components: NDArray[np.float16]
    seconds: NDArray[np.int32]
    amounts: NDArray[np.float32]
    labels: NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        return f"Payments({len(self)} rows)"


def find_payments(folder: Path) -> Path:
    """Where the set lies in ``folder``; :class:`DataMissing` where it does not. Nothing is read."""
    for name in ("creditcard.csv", "creditcard.npz"):
        if (folder / name).is_file():
            return folder / name
    raise DataMissing(f"the card payments are not in {folder}: {_WHERE}")


def read_payments(folder: Path, known: KnownPayments = KNOWN) -> Payments:
    """The payments in ``folder``, from the csv where it is there, else from the npz; an altered file is refused."""
    source = find_payments(folder)
    if source.suffix == ".csv":
        found = _from_csv(source, known)
    else:
        found = _verify(source, load_npz(source, ("V", "time", "amount", "label")))
    kept: dict[str, NDArray[Any]] = {
        "V": found.components,
        "time": found.seconds,
        "amount": found.amounts,
        "label": found.labels,
    }
    for name, values in kept.items():
        shape = (known.rows, COLUMNS) if name == "V" else (known.rows,)
        refuse_unknown(source, name, values, shape, known.sums[name])
    return found


def _from_csv(path: Path, known: KnownPayments) -> Payments:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataMissing(f"{path} cannot be read ({error}); fetch it again") from None
    if hashlib.md5(content, usedforsecurity=False).hexdigest() != known.md5:
        raise DataMissing(
            f"{path} ({len(content)} bytes) is not creditcard.csv as published: it has another MD5, so it is truncated "
            "or altered; fetch it again, or write a task for your own data"
        )
    header, _, rows = content.partition(b"\n")
    if tuple(header.decode("utf-8", "replace").strip().replace('"', "").split(",")) != _HEADER:
        raise DataMissing(f"{path} does not begin with the columns Time, V1 … V28, Amount, Class; fetch it again")
    try:
        values = np.loadtxt(rows.decode().splitlines(), delimiter=",", quotechar='"', ndmin=2)
    except ValueError as error:
        raise DataMissing(f"{path} is no table of numbers ({error}); fetch it again") from None
    columns = {"V": values[:, 1:-2], "time": values[:, 0], "amount": values[:, -2], "label": values[:, -1]}
    return _verify(path, columns)


def _verify(path: Path, arrays: Mapping[str, NDArray[Any]]) -> Payments:
    """The arrays in their known types, or what is wrong with them."""
    components, seconds, amounts, labels = (np.asarray(arrays[name]) for name in ("V", "time", "amount", "label"))
    try:
        check_images("V", components, shape=(COLUMNS,))
        classes = check_labels("label", labels, classes=2, rows=len(components))
        for name, values in (("time", seconds), ("amount", amounts)):
            column = check_images(name, values, shape=())
            if len(column) != len(components):
                raise InvalidParameter(name, column.shape, f"does not fit {len(components)} rows", "one value per row")
            if (column < 0).any():
                raise InvalidParameter(name, f"{len(column)} rows", "holds a negative value", "look at the file")
    except InvalidParameter as error:
        raise DataMissing(f"{path}: {error}; fetch it again") from None
    with np.errstate(over="ignore"):
        return Payments(
            components=np.ascontiguousarray(components, dtype=np.float16), seconds=seconds.astype(np.int32),
            amounts=amounts.astype(np.float32), labels=classes.astype(np.uint8),
        )  # fmt: skip


def pack_payments(folder: Path, known: KnownPayments = KNOWN) -> Path:
    """Write ``creditcard.npz``, a tenth of the csv's size, beside the csv."""
    found = read_payments(folder, known)
    target = folder / "creditcard.npz"
    np.savez_compressed(
        target, V=found.components, time=found.seconds, amount=found.amounts, label=found.labels
    )  # fmt: skip
    return target


def payment_parts(payments: Payments, split: int) -> NDArray[np.int8]:
    """The part of each row in one of ten splits: 0 training (70 %), 1 validation (10 %), 2 test (20 %).

    The rule is public and looks at one row alone: a hash of its second and its amount in cents, for the test part also
    of the split's number. A row does not move when another comes or goes, and exact copies always lie in the same part,
    so that no test row has its twin in training. The validation part is the same in all ten splits: were it not, most
    of what settings are chosen on would be test rows of another split.
    """
    if whole_number("split", split) >= SPLITS:
        raise InvalidParameter("split", split, "does not exist", f"choose 0 … {SPLITS - 1}")
    cents = np.rint(payments.amounts.astype(np.float64) * 100).astype(np.uint64)
    validates = places(payments.seconds, cents) < 0.1
    tests = places(payments.seconds, cents, split + 1) < 2 / 9
    return np.where(validates, 1, np.where(tests, 2, 0)).astype(np.int8)


def check_payments(folder: Path) -> str:
    """One line of what is there, after its sums were compared."""
    found = read_payments(folder)
    return f"{len(found):,} payments with {int(found.labels.sum())} frauds"
