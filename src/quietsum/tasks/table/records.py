"""Records with labels in memory: pictures or clips, each brought to the declared shape by itself."""

from __future__ import annotations

import dataclasses
import hashlib
from typing import final

import numpy as np
from numpy.typing import NDArray

__all__ = ["Labelled", "hash_record", "pick_records", "share_of"]


@final
@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Labelled:
    """Records: their ``values``, their ``labels`` (−1 for one that does not fit, which then counts as zero), the site
    and a ``hash`` of each, and the person where the file says it. Private; printing shows the number alone."""

    values: NDArray[np.float32]
    labels: NDArray[np.int64]
    sites: NDArray[np.object_]
    hashes: NDArray[np.uint64]
    people: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        return f"Labelled({len(self)} records)"


def pick_records(held: Labelled, kept: NDArray[np.bool_]) -> Labelled:
    """The records where ``kept`` holds."""
    return Labelled(
        values=held.values[kept], labels=held.labels[kept], sites=held.sites[kept], hashes=held.hashes[kept],
        people=None if held.people is None else held.people[kept],
    )  # fmt: skip


def share_of(held: Labelled, share: float) -> NDArray[np.bool_]:
    """Which records are held out: about ``share`` of them, each, or each person, by its own hash."""
    told = held.hashes if held.people is None else held.people.view(np.uint64)
    return np.asarray(told % np.uint64(1000) < np.uint64(round(1000 * share)))


def hash_record(content: bytes) -> int:
    """64 bits of a record."""
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest())
