"""Is this ledger what was written? Read it all once, in order, and believe nothing that is stated.

Each row is checked for its place in the chain, replayed through the same rules that guarded its writing, and every ε it
states is computed again from the charges before it, starting from empty caches. Heads kept elsewhere (*anchors*) find
what no chain can find by itself: a tail that was cut off, a file from yesterday, a rewrite with fresh hashes.
Memory does not grow with the number of entries, only with that of runs and datasets.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable
from typing import final

from quietsum.errors import LedgerBroken
from quietsum.ledger.encoding import head_message
from quietsum.ledger.entries import RESTORE, Entry, Head, check_link, ledger_name
from quietsum.ledger.spending import Prices
from quietsum.ledger.sqlite import SqliteStore
from quietsum.ledger.state import State
from quietsum.ledger.store import Row

__all__ = ["Anchors", "Verification", "verify_file", "verify_rows"]


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Verification:
    """What was checked, in numbers."""

    ledger: str
    entries: int
    runs: int
    head: Head
    stated: int
    """How many ε were stated, and found right."""
    computed: int
    """How many different histories that took."""
    signatures: int
    anchors: int
    withheld: int = 0
    """Bodies that an export left out; the chain covers them, their contents were not seen."""


@final
class Anchors:
    """Heads kept elsewhere, asked for as the chain passes by."""

    def __init__(self, heads: Iterable[Head]) -> None:
        self._heads: dict[int, set[Head]] = {}
        for head in heads:
            self._heads.setdefault(head.sequence, set()).add(head)
        self.count = sum(map(len, self._heads.values()))

    def at(self, sequence: int) -> set[Head]:
        """The anchors at one entry."""
        return self._heads.get(sequence, set())

    def check_name(self, ledger: str) -> None:
        """All anchors are heads of this ledger."""
        for heads in self._heads.values():
            for head in heads:
                if head.ledger != ledger:
                    raise LedgerBroken(
                        f"names another ledger ({ledger}) than the head kept at entry {head.sequence} ({head.ledger}): "
                        "it was replaced or rewritten with another key",
                        at=1,
                        remedy="restore the ledger, or check that the anchor belongs to it",
                    )

    def check_entry(self, entry: Entry, state: State) -> int:
        """The anchors at this entry match it and carry the ledger's signature; how many there were."""
        heads = self.at(entry.sequence)
        for head in heads:
            if head.hash != entry.hash:
                raise LedgerBroken(
                    "is not the one that a kept head points at: the ledger was rewritten",
                    at=entry.sequence,
                    remedy=RESTORE,
                )
            require_signature(state, entry.sequence, entry.hash, head.signature)
        return len(heads)

    def check_end(self, last: int) -> None:
        """No anchor lies beyond the end."""
        beyond = [sequence for sequence in self._heads if sequence > last]
        if beyond:
            raise LedgerBroken(
                f"is missing: a kept head is at entry {max(beyond)}, the ledger ends at {last}; its tail was cut off, "
                "or this is an older copy",
                at=last + 1,
                remedy=RESTORE,
            )


def require_signature(state: State, sequence: int, hash: str, signature: str) -> None:
    """The signature is the ledger's own under this head."""
    message = head_message(ledger=state.ledger, sequence=sequence, hash=hash)
    if state.key is None or not state.key.accepts(signature, message):
        raise LedgerBroken("is not signed with the ledger's key", at=sequence, remedy=RESTORE)


def verify_rows(rows: Iterable[Row], *, anchors: Iterable[Head] = (), every_signature: bool = False) -> Verification:
    """Check everything that rows say; LedgerBroken names the first bad entry."""
    kept, prices = Anchors(anchors), Prices()
    state = State(prices)
    signatures, entry = 0, None
    for row in rows:
        name = state.ledger or ledger_name(row)
        entry = check_link(row, ledger=name, previous=state.hash, sequence=state.sequence + 1)
        state.apply(entry)
        if entry.sequence == 1:
            kept.check_name(state.ledger)
        signatures += kept.check_entry(entry, state)
        if every_signature:
            require_signature(state, entry.sequence, entry.hash, entry.signature)
            signatures += 1
    return conclude(state, entry, kept, prices, signatures)


def verify_file(
    path: str | os.PathLike[str], *, anchors: Iterable[Head] = (), every_signature: bool = False
) -> Verification:
    """Check the ledger in a SQLite file, in one pass, without its key and without changing it."""
    store = SqliteStore(path, read_only=True)
    try:
        return verify_rows(store.rows(), anchors=anchors, every_signature=every_signature)
    finally:
        store.close()


def conclude(state: State, entry: Entry | None, kept: Anchors, prices: Prices, signatures: int) -> Verification:
    """The last checks and the numbers."""
    if entry is None:
        raise LedgerBroken("is empty", remedy=RESTORE)
    kept.check_end(entry.sequence)
    require_signature(state, entry.sequence, entry.hash, entry.signature)
    return Verification(
        ledger=state.ledger, entries=entry.sequence, runs=len(state.accounts.runs),
        head=Head(ledger=state.ledger, sequence=entry.sequence, hash=entry.hash, signature=entry.signature),
        stated=state.stated, computed=prices.computed, signatures=signatures + 1, anchors=kept.count,
        withheld=state.withheld,
    )  # fmt: skip
