"""The chain on its store: opened, followed and lengthened, one exclusive transaction at a time.

A journal holds what the entries say (:class:`~quietsum.ledger.state.State`) and keeps it up to date without reading
everything again: before each act it takes in only what other writers have appended since. It writes as write-ahead logs
do. First the transaction begins, so that no other writer can append; then it follows, checks and appends; then the
store makes it durable; only then does its own state change, and the high-water mark moves.

The signature of the newest entry covers all entries before it through their hashes. So it is checked whenever
something was taken in, before anything is appended: a new entry signs everything under it, and what somebody wrote
without the key must never get a signature that way.
"""

from __future__ import annotations

import contextlib
import datetime
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self, final

from quietsum import failpoints
from quietsum.errors import LedgerBroken, QuietsumError
from quietsum.ledger.chain import keys
from quietsum.ledger.chain.encoding import head_message
from quietsum.ledger.chain.entries import NOTHING, RESTORE, Entry, Head, Kind, check_link, ledger_name, make_row
from quietsum.ledger.chain.high_water_mark import Mark
from quietsum.ledger.chain.snapshots import EVERY, SnapshotFile
from quietsum.ledger.state import FORMAT, State
from quietsum.ledger.stores import location
from quietsum.ledger.stores.missing import lost_ledger, require_nothing_left
from quietsum.ledger.stores.protocol import ChecksRoom, LedgerStore, StoreFailed

__all__ = ["Additions", "Clock", "Journal", "first_key", "system_clock"]

log = logging.getLogger(__name__)

Clock = Callable[[], datetime.datetime]


def system_clock() -> datetime.datetime:
    """Now. Times in a ledger are informative: one that jumps back is recorded as it is."""
    return datetime.datetime.now(datetime.UTC)


@final
class Journal:
    """A store with a genesis entry, the key that signs, and what all entries say."""

    def __init__(
        self,
        store: LedgerStore,
        key: keys.SigningKey | None,
        clock: Clock,
        mark: Mark | None = None,
        snapshots: SnapshotFile | None = None,
    ) -> None:
        self.store, self.lock, self.mark = store, threading.RLock(), mark
        self.state = State()
        self._signer, self._clock = key, clock
        self._signature = ""
        self._trusted = 0  # the newest entry whose signature was checked, or made here
        self._snapshots, self._packed = snapshots, 0  # the newest entry that a snapshot covers
        marked = None if mark is None else mark.read()  # before the entries: the mark never runs ahead of them
        self._restore()
        self.follow()
        if self.state.key is None:
            raise LedgerBroken("is empty", remedy=RESTORE)
        if mark is not None and marked is not None:
            self._check_mark(mark, marked)
        if key is not None and key.public.hex != self.state.key.hex:
            raise LedgerBroken("was begun with another key", remedy="use the key that belongs to it")

    # --------------------------------------------------------------------------------------- opening

    @classmethod
    def open(cls, path: Path, *, create: bool, read_only: bool, clock: Clock, trusted: bool = False) -> Self:
        """The ledger in a SQLite file, or where the file beside it points, with its key here."""
        mark, create = Mark(path), create and not read_only
        if create and not location.ledger_exists(path):
            require_nothing_left(path)
        store = location.open_store(path, create=create, read_only=read_only, trusted=trusted)
        try:
            if create and store.head() is None:
                if not path.exists():  # a server's tables that are empty, with a key that says they were not
                    require_nothing_left(path)
                _begin_file(store, path, clock)
            if read_only:
                return cls(store, None, clock, mark, SnapshotFile(path))
            public_key = first_key(store)
            keys.settle_key(path, public_key)
            journal = cls(store, keys.load_key(path, public_key), clock, mark, SnapshotFile(path))
            mark.advance(journal.head())
            journal.save()
            return journal
        except BaseException:
            store.close()
            raise

    @classmethod
    def begin(cls, store: LedgerStore, key: keys.SigningKey, clock: Clock) -> Self:
        """A new ledger on an empty store."""
        with store.transaction():
            if store.head() is not None:
                raise QuietsumError("this store holds a ledger already; open it instead of beginning a new one")
            _write_genesis(store, key, clock)
        return cls(store, key, clock)

    # --------------------------------------------------------------------------------------- reading

    def head(self) -> Head:
        """The newest entry that was taken in, signed."""
        state = self.state
        return Head(ledger=state.ledger, sequence=state.sequence, hash=state.hash, signature=self._signature)

    def _restore(self) -> None:
        """Begin with the state of a snapshot, where one can be trusted; else with nothing, and read everything."""
        found = None if self._snapshots is None else self._snapshots.read()
        if found is None:
            return
        try:
            first, there = (next(self.store.rows(place), None) for place in (1, found.sequence))
            if first is None or there is None or (there.sequence, there.hash) != (found.sequence, found.hash):
                return
            fresh = State()
            fresh.apply(check_link(first, ledger=ledger_name(first), previous=NOTHING, sequence=1))
            check_link(there, ledger=fresh.ledger, previous=there.previous, sequence=found.sequence)
            if fresh.key is None or not found.is_signed_by(fresh.key):
                return
            state = found.state(fresh.key)
        except (QuietsumError, OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            log.info("the ledger's snapshot is ignored, and all entries are read: %s", error)
            return
        self.state, self._signature, self._packed = state, there.signature, found.sequence

    def save(self) -> None:
        """Write a snapshot where many entries have come since the last one. Never fails; for writers only."""
        with self.lock:
            due = max(EVERY, self.state.sequence // 200)
            if self._snapshots is None or self._signer is None or self.state.sequence - self._packed < due:
                return
            if self._snapshots.write(self.state, self._signer):
                self._packed = self.state.sequence

    def follow(self) -> None:
        """Take in what other writers have appended, after a look at whether what we know is still there."""
        with self.lock:
            state = self.state
            rows = self.store.rows(max(1, state.sequence))
            if state.sequence:
                last = next(rows, None)
                known = (state.sequence, state.hash, self._signature)
                if last is None or (last.sequence, last.hash, last.signature) != known:
                    raise LedgerBroken(
                        "is not what it was a moment ago: the file was cut or replaced",
                        at=state.sequence,
                        remedy=RESTORE,
                    )
            for row in rows:
                name = state.ledger or ledger_name(row)
                state.apply(check_link(row, ledger=name, previous=state.hash, sequence=state.sequence + 1))
                self._signature = row.signature
            if state.sequence != self._trusted:  # also after an earlier look that ended here
                state.require_signature(state.sequence, state.hash, self._signature)
                self._trusted = state.sequence

    def _check_mark(self, mark: Mark, head: Head) -> None:
        """The ledger contains the newest head that was ever written here."""
        if head.ledger != self.state.ledger:
            raise LedgerBroken(
                f"is not the one that was here: {mark.path} holds the head of another one ({head.ledger})",
                remedy="put back the ledger that it belongs to; a new one would forget what was spent",
            )
        if not self.state.has_signature(head.sequence, head.hash, head.signature):
            raise LedgerBroken(
                f"did not sign its high-water mark {mark.path}",
                remedy="put the mark back from a copy, or move it away and verify with heads kept elsewhere",
            )
        row = next(iter(self.store.rows(head.sequence)), None)
        if row is None or (row.sequence, row.hash) != (head.sequence, head.hash):
            raise LedgerBroken(
                f"is missing, or is not the one that {mark.path} names: the tail was cut off, the ledger was "
                "rewritten, or this is an older copy",
                at=head.sequence,
                remedy="restore the newest copy, and run nothing on its datasets until then",
            )

    # --------------------------------------------------------------------------------------- writing

    def sign(self, message: bytes) -> str:
        """A signature of the ledger's key."""
        if self._signer is None:
            raise StoreFailed("this ledger was opened for reading only, so it signs nothing")
        return self._signer.sign(message)

    def check_room(self, count: int) -> None:
        """Raise where the store knows that it has no room for ``count`` more bytes."""
        if isinstance(self.store, ChecksRoom):
            self.store.check_room(count)

    @contextlib.contextmanager
    def writing(self, act: str) -> Iterator[Additions]:
        """One exclusive transaction. What is added is durable when this ends well, and nowhere when it does not."""
        if self._signer is None:
            raise StoreFailed("this ledger was opened for reading only; open it without read_only to write")
        with self.lock:
            with self.store.transaction():
                self.follow()
                add = Additions(self.store, self._signer, self.state, self._clock, act)
                yield add
                if add.entries:
                    failpoints.reach(f"ledger.{act}:after-append")
            for entry in add.entries:
                self.state.apply(entry)
                self._signature, self._trusted = entry.signature, entry.sequence
            if add.entries:
                failpoints.reach(f"ledger.{act}:after-sync")
                if self.mark is not None:
                    self.mark.advance(self.head())


@final
class Additions:
    """The entries of one transaction; calling it appends one more."""

    def __init__(self, store: LedgerStore, signer: keys.SigningKey, state: State, clock: Clock, act: str) -> None:
        self.entries: list[Entry] = []
        self._store, self._signer, self._clock, self._act = store, signer, clock, act
        self._ledger, self._sequence, self._hash = state.ledger, state.sequence, state.hash

    def __call__(self, kind: Kind, body: Mapping[str, Any]) -> None:
        """Append one entry."""
        if not self.entries:
            failpoints.reach(f"ledger.{self._act}:before-append")
        row = make_row(
            ledger=self._ledger,
            previous=self._hash,
            sequence=self._sequence + 1,
            kind=kind,
            body=body,
            time=_stamp(self._clock),
        )
        row = row._replace(signature=_sign(self._signer, row.sequence, row.hash))
        self._store.append(row)
        self.entries.append(check_link(row, ledger=self._ledger, previous=self._hash, sequence=row.sequence))
        self._sequence, self._hash = row.sequence, row.hash

    @property
    def last(self) -> Entry:
        """The newest entry of this transaction."""
        return self.entries[-1]

    def head(self) -> Head:
        """The newest entry of this transaction as a head."""
        entry = self.last
        return Head(ledger=self._ledger, sequence=entry.sequence, hash=entry.hash, signature=entry.signature)


# ------------------------------------------------------------------------------------------- beginnings


def _begin_file(store: LedgerStore, path: Path, clock: Clock) -> None:
    """Key, genesis entry, then the key's final name: a crash anywhere leaves nothing, or a ledger that opens."""
    with store.transaction():
        if store.head() is not None:  # another process was quicker
            return
        if keys.key_path(path).exists():
            raise lost_ledger(path, keys.key_path(path))
        key = keys.SigningKey.generate()
        failpoints.reach("ledger.create:before-key")
        keys.save_new_key(path, key)
        failpoints.reach("ledger.create:before-append")
        _write_genesis(store, key, clock)
        failpoints.reach("ledger.create:after-append")
    failpoints.reach("ledger.create:after-sync")


def first_key(store: LedgerStore) -> str:
    """The public key that the genesis entry names, where that entry is in order."""
    row = next(iter(store.rows(1)), None)
    if row is None:
        raise LedgerBroken("is empty: it was never begun, or it was emptied", remedy=RESTORE)
    state = State()
    state.apply(check_link(row, ledger=ledger_name(row), previous=NOTHING, sequence=1))
    assert state.key is not None
    return state.key.hex


def _write_genesis(store: LedgerStore, key: keys.SigningKey, clock: Clock) -> None:
    ledger = key.public.ledger
    body = {"format": FORMAT, "ledger": ledger, "public_key": key.public.hex}
    row = make_row(ledger=ledger, previous=NOTHING, sequence=1, kind=Kind.GENESIS, body=body, time=_stamp(clock))
    store.append(row._replace(signature=_sign(key, 1, row.hash)))


def _sign(key: keys.SigningKey, sequence: int, hash: str) -> str:
    return key.sign(head_message(ledger=key.public.ledger, sequence=sequence, hash=hash))


def _stamp(clock: Clock) -> str:
    return clock().astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
