"""Is this ledger what was written? Read it all once, in order, and believe nothing that is stated.

Each row is checked for its place in the chain, replayed through the same rules that guarded its writing, and every ε it
states is computed again from the charges before it, starting from empty caches. Heads kept elsewhere (*anchors*) find
what no chain can find by itself: a tail that was cut off, a file from yesterday, a rewrite with fresh hashes.
Signatures are checked of the last head, which covers all entries through their hashes, of all anchors, of every
decision (what is not a reservation, refund or commit), and of each 256th entry; a signature takes longer than all the
rest, so all of them only where that is asked for.
Memory does not grow with the number of entries, only with that of runs and datasets.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, final

from quietsum.errors import CorruptState, InvalidParameter, LedgerBroken
from quietsum.ledger.chain.encoding import is_canonical
from quietsum.ledger.chain.entries import RESTORE, Entry, Head, Kind, check_link, ledger_name
from quietsum.ledger.chain.high_water_mark import Mark
from quietsum.ledger.chain.keys import key_warnings
from quietsum.ledger.pricing import Prices
from quietsum.ledger.state import State
from quietsum.ledger.stores.location import lost_guards, open_store, seal_of
from quietsum.ledger.stores.protocol import NoLedger, Row

__all__ = ["DECISIONS", "EACH", "Anchors", "Reading", "Verification", "read_anchors", "verify_file", "verify_rows"]

EACH = 256
"""Of reservations, refunds and commits, the signature of each so-manyth entry is checked."""
DECISIONS = frozenset({Kind.GENESIS, Kind.RUN, Kind.BUDGET, Kind.PUBLIC, Kind.CORRECTION})
"""Entries whose signature is always checked."""
_HEAD = {"ledger", "sequence", "hash", "signature"}


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
    marked: bool = False
    """Whether a high-water mark lay beside the file; it is in the chain."""
    withheld: int = 0
    """Bodies that an export left out; the chain covers them, their contents were not seen."""
    corrected_at: int | None = None
    """The entry that says what runs of older prices cost; what stands before it was checked by the older rules."""
    moved_to: str | None = None
    """Where the ledger goes on, where a move has sealed this one; None where it goes on here."""
    warnings: tuple[str, ...] = ()
    """What is not as it was made, though no entry is touched by it: a key that is missing or open, dropped triggers."""


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
        """All anchors are heads of this ledger; those of another are a mistake, or what a replaced ledger leaves."""
        named = {head.ledger for heads in self._heads.values() for head in heads}
        others = sorted(named - {ledger})
        if others:
            which = "some kept heads are" if ledger in named else "the kept heads are all"
            more = f" and {len(others) - 1} more" if len(others) > 1 else ""
            raise LedgerBroken(
                f"names ledger {ledger[:16]}…, and {which} of another ledger, {others[0][:16]}…{more}. Either they "
                "belong to that one: verify them there, where it is kept. Or this ledger was replaced, or rewritten "
                "with another key",
                at=1,
                remedy="then restore it from a copy",
            )

    def check_mark(self, ledger: str) -> None:
        """The high-water mark is a head of this ledger; it lies beside it, so it can be meant for no other."""
        for heads in self._heads.values():
            for head in heads:
                if head.ledger != ledger:
                    raise LedgerBroken(
                        f"names another ledger ({ledger}) than the mark beside it, of entry {head.sequence} "
                        f"({head.ledger}): it was replaced or rewritten with another key",
                        at=1,
                        remedy="put back the ledger that the mark belongs to",
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
            state.require_signature(entry.sequence, entry.hash, head.signature)
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


@final
class Reading:
    """One pass over a ledger: each entry in turn, then the conclusion."""

    def __init__(
        self,
        anchors: Iterable[Head],
        *,
        mark: Head | None = None,
        every_signature: bool = False,
        redacted: bool = False,
    ) -> None:
        self._prices = Prices()
        self.state = State(self._prices, redacted=redacted)
        self._kept, self._marked = Anchors(anchors), Anchors(() if mark is None else (mark,))
        self._every = every_signature
        self._signatures = 0
        self._last: Entry | None = None
        self._checked = False

    def take(self, entry: Entry, *, withheld: bool = False) -> None:
        """Judge the next entry, which follows the last one by its hash."""
        (self.state.skip if withheld else self.state.apply)(entry)
        if entry.sequence == 1:
            self._marked.check_mark(self.state.ledger)
            self._kept.check_name(self.state.ledger)
        for kept in (self._kept, self._marked):
            self._signatures += kept.check_entry(entry, self.state)
        self._last = entry
        self._checked = self._every or entry.kind in DECISIONS or entry.sequence % EACH == 0
        if self._checked:
            self._check_signature(entry)

    def _check_signature(self, entry: Entry) -> None:
        self.state.require_signature(entry.sequence, entry.hash, entry.signature)
        self._signatures += 1

    def conclude(self) -> Verification:
        """The last checks and the numbers."""
        entry, state = self._last, self.state
        if entry is None:
            raise LedgerBroken("is empty", remedy=RESTORE)
        for kept in (self._kept, self._marked):
            kept.check_end(entry.sequence)
        if not self._checked:
            self._check_signature(entry)
        return Verification(
            ledger=state.ledger, entries=entry.sequence, runs=len(state.accounts.runs),
            head=Head(ledger=state.ledger, sequence=entry.sequence, hash=entry.hash, signature=entry.signature),
            stated=state.stated, computed=state.computed, signatures=self._signatures,
            anchors=self._kept.count, marked=self._marked.count > 0, withheld=state.withheld,
            corrected_at=state.accounts.corrected_at,
        )  # fmt: skip


def verify_rows(
    rows: Iterable[Row], *, anchors: Iterable[Head] = (), every_signature: bool = False, mark: Head | None = None
) -> Verification:
    """Check everything that rows say; LedgerBroken names the first bad entry."""
    reading = Reading(anchors, mark=mark, every_signature=every_signature)
    state = reading.state
    for row in rows:
        name = state.ledger or ledger_name(row)
        entry = check_link(row, ledger=name, previous=state.hash, sequence=state.sequence + 1)
        if not is_canonical(row.body, entry.body):
            raise LedgerBroken("is not written in canonical JSON", at=entry.sequence, remedy=RESTORE)
        reading.take(entry)
    return reading.conclude()


def verify_file(
    path: str | os.PathLike[str],
    *,
    anchors: Iterable[Head] | Callable[[str], Iterable[Head]] = (),
    every_signature: bool = False,
) -> Verification:
    """Check the ledger of a workspace, opened once and read in one pass, without its key and without changing it.

    ``anchors`` may also be a function that finds them for the name that the ledger gives itself.

    Where a high-water mark lies beside it, the ledger must contain that head. A sealed ledger is checked like any
    other, and ``moved_to`` says that it is history.
    """
    try:
        store = open_store(Path(path), read_only=True)
    except NoLedger as error:
        if not tuple(anchors("") if callable(anchors) else anchors):
            raise
        raise LedgerBroken(f"is gone, and heads of it are kept elsewhere: {error}", remedy=RESTORE) from None
    try:
        mark = Mark(Path(path)).read()
        if callable(anchors):
            anchors = anchors(next(map(ledger_name, store.rows()), ""))
        found = verify_rows(store.rows(), anchors=anchors, every_signature=every_signature, mark=mark)
        warnings = (*key_warnings(Path(path)), *lost_guards(store))
        return dataclasses.replace(found, moved_to=seal_of(store), warnings=warnings)
    finally:
        store.close()


# ------------------------------------------------------------------------------------------ heads kept elsewhere


def read_anchors(path: str | os.PathLike[str]) -> tuple[Head, ...]:
    """All heads in a JSON or JSON-lines file; a file without any is an error, since it would anchor nothing."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidParameter("anchor", str(path), f"cannot be read ({error})", "name a JSON file") from None
    heads = tuple(dict.fromkeys(head for value in _values(text, str(path)) for head in _heads(value)))
    if not heads:
        raise InvalidParameter(
            "anchor", str(path), "holds no ledger head",
            "use a report.json, a receipt, or the head that `quietsum ledger show --json` prints",
        )  # fmt: skip
    return heads


def _values(text: str, path: str) -> Iterator[Any]:
    try:
        yield json.loads(text)
        return
    except (ValueError, RecursionError):
        pass
    try:
        yield from (json.loads(line) for line in text.splitlines() if line.strip())
    except (ValueError, RecursionError):
        raise InvalidParameter("anchor", path, "is not JSON", "use a report.json or a receipt") from None


def _heads(value: Any) -> Iterator[Head]:
    if isinstance(value, dict):
        if value.keys() >= _HEAD:
            try:
                yield Head.from_dict({key: value[key] for key in _HEAD})
            except CorruptState as error:
                raise InvalidParameter("anchor", value, f"is a damaged head: {error}") from None
        for part in value.values():
            yield from _heads(part)
    elif isinstance(value, list):
        for part in value:
            yield from _heads(part)
