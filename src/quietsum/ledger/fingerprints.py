"""Are these rows known here under another name? A keyed sketch that the holder keeps and shows to no other party.

Budgets hang on a dataset's name. The same rows under another name, or as another task, would have a fresh lifetime
without a word. So a holder keeps, beside its ledger, a sketch of each dataset's rows, and is warned when a new name
comes with rows of an old one. The warning is the holder's alone: what rows are the same as what others is a fact about
records. Nothing of this stands in a ledger, an export, a message, a report or a receipt, and it is asked by the
holder's own commands before anybody else is: ``quietsum run`` and ``train``, a
:class:`~quietsum.learning.trainer.PrivateTrainer` with a workspace, ``quietsum party check`` and ``serve``.

Each distinct row is hashed with a key of the holder's own (BLAKE2b, 64 bits), and the smallest :data:`KEPT` hashes are
kept: a *bottom-k sketch* (Broder 1997). Of two sets, the hashes below the smaller of both largest are a uniform sample
of their union, so the share of the smaller set that lies in the larger is estimated, and subsets, appended and
reordered rows are found like exact copies. Rows that were changed, scaled by another task say, are other rows: this
finds mistakes, not somebody who hides it.
"""

from __future__ import annotations

import hashlib
import json
import math
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, final

import numpy as np

from quietsum.errors import PlanRefused
from quietsum.files import PRIVATE, write_atomically

__all__ = ["KEPT", "Fingerprints", "Parts", "as_array", "check_rows", "overlap"]

KEPT = 1024
"""Hashes of a sketch: the share of common rows is known to within a few hundredths."""
_FEW = 20
"""With fewer different rows than this, only exactly the same set is called the same: coarse rows are alike anywhere."""
_SAME = 0.5
_SKETCHES = 16
"""Of one dataset: rows come and go, and an old state under a new name is still the same people."""
_FORMAT = "quietsum-rows-1"
_AT_ONCE = 4096

Sketch = tuple[int, ...]
Parts = tuple[Any, ...]
"""One dataset: arrays or tensors, of which row i together is record i."""


@final
class Fingerprints:
    """The sketches of one holder, in the file ``<ledger>.rows``, which only its owner may read.

    Guarantees: no row can be read from it, and without its key not even whether a known row is in a dataset. What is
    written is on disk when a call returns.
    """

    def __init__(self, ledger: Path) -> None:
        self.path = ledger.with_name(ledger.name + ".rows")
        self._values = self._read()

    def _read(self) -> dict[str, Any]:
        try:
            values = json.loads(self.path.read_text(encoding="utf-8"))
            if values["format"] == _FORMAT and len(bytes.fromhex(values["key"])) == 32:
                sketches = {
                    str(name): [tuple(int(one, 16) for one in sketch) for sketch in known]
                    for name, known in values["datasets"].items()
                }
                return {"key": values["key"], "datasets": sketches, "reasons": list(values["reasons"])}
        except FileNotFoundError:
            return {"key": secrets.token_hex(32), "datasets": {}, "reasons": []}
        except (IsADirectoryError, PermissionError, ValueError, LookupError, TypeError, AttributeError):
            pass  # other trouble of the disk may pass, and is raised as it is
        raise PlanRefused(
            f"{self.path} cannot be read: it says which rows are known here under which name; restore it, or remove it "
            "if that may be forgotten"
        )

    def sketch(self, parts: Parts) -> Sketch:
        """The smallest hashes of the distinct rows of ``parts``."""
        key = bytes.fromhex(self._values["key"])
        found = {int.from_bytes(hashlib.blake2b(row, digest_size=8, key=key).digest(), "big") for row in _rows(parts)}
        return tuple(sorted(found)[:KEPT])

    def same_as(self, name: str, sketch: Sketch, *, beside: Iterable[str] = ()) -> list[tuple[str, float]]:
        """Other datasets with these rows, and how much is shared. Those ``beside`` it, in one run, do not count."""
        others = {other: known for other, known in self._values["datasets"].items() if other not in {name, *beside}}
        found = [(other, max(overlap(sketch, one) for one in known)) for other, known in others.items() if known]
        return [(other, common) for other, common in found if common >= _SAME and not self._has_reason(name, other)]

    def _has_reason(self, name: str, other: str) -> bool:
        pairs = {frozenset((one.get("dataset"), one.get("same_as"))) for one in self._values["reasons"]}
        return frozenset((name, other)) in pairs

    def explain(self, name: str, other: str, reason: str) -> None:
        """Write down why ``name`` may hold rows of ``other``."""
        when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        self._values["reasons"].append({"dataset": name, "same_as": other, "reason": reason, "time": when})

    def keep(self, name: str, sketch: Sketch) -> None:
        """Know ``name`` by this sketch from now on, and by those of before."""
        known = self._values["datasets"].setdefault(name, [])
        if sketch and sketch not in known:
            self._values["datasets"][name] = [*known, sketch][-_SKETCHES:]

    def save(self) -> None:
        """Put everything on disk."""
        values = {
            "format": _FORMAT, **self._values,
            "datasets": {
                name: [[f"{one:x}" for one in sketch] for sketch in known]
                for name, known in self._values["datasets"].items()
            },
        }  # fmt: skip
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(self.path, (json.dumps(values) + "\n").encode(), mode=PRIVATE)


def overlap(one: Sketch, other: Sketch) -> float:
    """How much of the smaller set lies in the larger one, from their sketches; exact for sets that fit in one.

    >>> overlap((1, 2, 3, 4), (1, 2, 3, 4)), overlap(tuple(range(100)), tuple(range(50, 350)))
    (1.0, 0.5)
    """
    if not one or not other:
        return 0.0
    if min(len(one), len(other)) < _FEW:
        return float(one == other)
    edge = min(one[-1] if len(one) >= KEPT else math.inf, other[-1] if len(other) >= KEPT else math.inf)
    left, right = {value for value in one if value <= edge}, {value for value in other if value <= edge}
    fewer = min(len(left), len(right))
    return len(left & right) / fewer if fewer >= _FEW // 4 else 0.0


def _rows(parts: Parts) -> Iterator[bytes]:
    """Each record as bytes: the same numbers are the same bytes, in any precision."""
    arrays = [as_array(part) for part in parts]
    for start in range(0, len(arrays[0]), _AT_ONCE):
        some = [array[start : start + _AT_ONCE] for array in arrays]
        flat = [np.asarray(array.reshape(len(array), -1), dtype=np.float64) for array in some]
        for row in np.concatenate(flat, axis=1) + 0.0:  # −0.0 is 0.0
            yield row.tobytes()


def as_array(part: Any) -> np.ndarray[Any, Any]:
    """An array or a tensor, wherever it lies, as an array."""
    return np.asarray(part.detach().cpu().double().numpy() if hasattr(part, "detach") else part)


def check_rows(
    ledger: Path,
    datasets: Mapping[str, Callable[[], Any]],
    *,
    reason: str = "",
    remedy: str,
    write: bool = True,
) -> list[str]:
    """Compare the rows of each dataset with those known under other names; what was explained, in words.

    Raises :class:`~quietsum.errors.PlanRefused`, for the holder's eyes, where a name is new for rows that have another
    one and no ``reason`` is given. ``datasets`` are those of one run, by name; each is read once. What is found is kept
    for the next time, unless ``write`` is False.
    """
    books, told = Fingerprints(ledger), list[str]()
    for name, read in datasets.items():
        parts = read()
        if not parts:
            continue
        try:
            sketch = books.sketch(parts)
        except (TypeError, ValueError):  # no table of numbers
            continue
        for other, common in books.same_as(name, sketch, beside=datasets):
            what = f"dataset {name!r} holds {_much(common)} rows of {other!r}, which has a budget of its own here"
            if not reason.strip():
                raise PlanRefused(
                    f"{what}: spent under two names, they are protected by neither budget. Use the old name, or "
                    f"{remedy}. (Only you see this.)"
                )
            books.explain(name, other, reason.strip())
            told.append(f"{what}; your reason is kept in {books.path.name}")
        books.keep(name, sketch)
    if datasets and write:
        books.save()
    return told


def _much(common: float) -> str:
    return "the same" if common > 0.99 else f"about {100 * common:.0f} % of its"
