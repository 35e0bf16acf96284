"""A ledger moves from its SQLite file to a PostgreSQL server, or back, and is never two ledgers.

In this order, each step durable before the next:

1. the file's ledger is verified, with every head that was kept of it;
2. its writers wait (its lock is held until step 4 is done), and its rows are copied in one transaction;
3. both are read side by side: the same rows, to the last character, and the same head;
4. the file is sealed: a trigger in it refuses every further row, also from a process that has it open;
5. ``ledger.db.url`` is written, and points at the server;
6. ``ledger.db`` becomes ``ledger.db.moved``, read-only.

Up to step 4 only the file can be continued: nothing points at the copy. From step 4 on the file cannot, under any name
and by any process. Between 5 and 6 both are there, and neither is opened. So at no moment can both be continued, and a
crash leaves one of these states; the same command again finds out which, and goes on from there. A copy that an earlier
attempt left on the server is taken where it holds the same rows; anything else there is refused.

The way back is the same with the roles changed: the rows are copied to ``ledger.db.part`` while the writers of all
machines wait, the server's ledger is sealed for good in the same transaction, ``ledger.db.part`` becomes ``ledger.db``,
and ``ledger.db.url`` becomes ``ledger.db.url.moved``. ``ledger.db.moving`` holds the seal's words until then, so that
only the workspace that sealed the ledger can end what it began.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import secrets
import socket
import sqlite3
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import final

from quietsum import failpoints
from quietsum.errors import LedgerBroken, QuietsumError
from quietsum.files import rename
from quietsum.ledger.chain import keys
from quietsum.ledger.chain.entries import Head
from quietsum.ledger.chain.high_water_mark import Mark
from quietsum.ledger.chain.journal import first_key
from quietsum.ledger.chain.verify import Verification, verify_rows
from quietsum.ledger.stores import location
from quietsum.ledger.stores.postgres import PostgresStore, read_address
from quietsum.ledger.stores.protocol import LedgerStore, StoreFailed
from quietsum.ledger.stores.sqlite import SqliteStore

__all__ = ["Moved", "move_to_postgres", "move_to_sqlite"]


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Moved:
    """What a move did: where the ledger is now, and what was verified before it went."""

    place: str
    kept: Path
    found: Verification


def move_to_postgres(ledger: Path, conninfo: str, *, anchors: Iterable[Head] = ()) -> Moved:
    """Move the ledger in the file ``ledger`` to the schema that ``conninfo`` names; repeat it after a crash.

    Guarantees: at no moment can two ledgers be continued, and no entry is lost; see the module's first paragraph.
    """
    place = read_address(conninfo).name
    pointed = location.read_url(ledger)
    if pointed is not None and read_address(pointed).name != place:
        raise QuietsumError(f"{location.url_path(ledger)} points at another place; this ledger was moved there, or its "
                            "move was interrupted: repeat that one")  # fmt: skip
    if not ledger.exists():
        if pointed is not None:
            raise QuietsumError(f"the ledger is at {place} already; there is nothing to move")
        raise QuietsumError(f"there is no ledger at {ledger}; point --workspace at the folder that holds it")
    kept = location.path_after_move(ledger)
    if kept.exists():
        raise QuietsumError(f"{kept} is there already, from an earlier move; put it elsewhere and repeat")
    # Where the address is written already, others may have gone on: the file holds no more than a beginning.
    found = _verify(SqliteStore(ledger, read_only=True), ledger, anchors if pointed is None else None)
    failpoints.reach("ledger.move:before-copy")
    source = SqliteStore(ledger)
    try:
        target = PostgresStore(conninfo, create=True)
        try:
            with source.transaction():  # nobody else appends until the seal is on
                if source.read_seal() not in (None, place):
                    raise QuietsumError(f"{ledger} was sealed by a move to {source.read_seal()}; repeat that one")
                _copy(source, target)
                failpoints.reach("ledger.move:after-copy")
                _compare(source, target)
                if source.read_seal() is None:
                    source.seal(place)
                failpoints.reach("ledger.move:before-seal")
        finally:
            target.close()
    finally:
        source.close()
    failpoints.reach("ledger.move:after-seal")
    if pointed is None:
        location.write_url(ledger, conninfo)
    failpoints.reach("ledger.move:after-url")
    _put_away(ledger, kept)
    failpoints.reach("ledger.move:after-rename")
    return Moved(place=place, kept=kept, found=found)


def move_to_sqlite(ledger: Path, *, anchors: Iterable[Head] = ()) -> Moved:
    """Move the ledger from the server that ``ledger.db.url`` names back into a file; repeat it after a crash.

    Guarantees: as above. Other coordinators find the server's ledger sealed, and learn where it went.
    """
    conninfo = location.read_url(ledger)
    if conninfo is None:
        raise QuietsumError(f"{location.url_path(ledger)} does not exist: this ledger is on no server")
    note, part = ledger.with_name(ledger.name + ".moving"), ledger.with_name(ledger.name + ".part")
    kept = location.url_path(ledger).with_name(ledger.name + ".url.moved")
    ours = note.read_text(encoding="utf-8").strip() if note.exists() else None
    found = _verify(PostgresStore(conninfo, read_only=True), ledger, anchors)
    failpoints.reach("ledger.back:before-copy")
    source = PostgresStore(conninfo)
    try:
        with source.transaction():  # nobody else appends until the seal is on
            sealed = source.read_seal()
            if sealed is not None and sealed != ours:
                raise QuietsumError(f"the ledger in {source.name} was moved to {sealed}; repeat the move there")
            if ledger.exists() and sealed is None:
                raise LedgerBroken(f"is there twice: {ledger} and {source.name}", remedy="put the stray copy elsewhere")
            if sealed is None:
                ours = f"{ledger.absolute()} on {socket.gethostname()} ({secrets.token_hex(8)})"
                location.write_durably(note, ours)
                _fill(part, source)
                failpoints.reach("ledger.back:after-copy")
                source.seal(ours)
            failpoints.reach("ledger.back:before-seal")
    finally:
        source.close()
    failpoints.reach("ledger.back:after-seal")
    try:
        if not ledger.exists():
            rename(part, ledger)
        failpoints.reach("ledger.back:after-rename")
        rename(location.url_path(ledger), kept)
        failpoints.reach("ledger.back:after-url")
        note.unlink()
    except OSError as error:
        raise StoreFailed(f"the move cannot be ended here: {error.strerror}; run the same command again") from None
    return Moved(place=str(ledger), kept=kept, found=found)


def _fill(part: Path, source: LedgerStore) -> None:
    """A file with the same rows; one that an earlier attempt left is thrown away: it was never opened."""
    for suffix in ("", "-wal", "-shm", "-journal"):
        part.with_name(part.name + suffix).unlink(missing_ok=True)
    target = SqliteStore(part, create=True)
    try:
        with target.transaction():
            for row in source.rows():
                target.append(row)
        _compare(source, target)
    finally:
        target.close()


def _verify(store: LedgerStore, ledger: Path, anchors: Iterable[Head] | None) -> Verification:
    """Everything in order, the key at hand; without ``anchors`` also an older copy. The store is closed then."""
    try:
        mark = None if anchors is None else Mark(ledger).read()
        found = verify_rows(store.rows(), anchors=anchors or (), mark=mark)
        public = first_key(store)
    finally:
        store.close()
    keys.settle_key(ledger, public)
    keys.load_key(ledger, public)
    return found


def _copy(source: LedgerStore, target: PostgresStore) -> None:
    """Append what the target lacks, in one transaction; what it has must be the same."""
    with target.transaction():
        if target.read_seal() is not None:
            raise QuietsumError(
                f"{target.name} holds a ledger that was moved to {target.read_seal()}, and stays as it is; choose "
                "another schema (…?schema=name). Nothing was moved"
            )
        have = 0
        for ours, theirs in zip(source.rows(), target.rows(), strict=False):
            if ours != theirs:
                raise LedgerBroken(
                    f"in {target.name} is another one" if ours.sequence == 1 else f"is another one in {target.name}",
                    at=None if ours.sequence == 1 else ours.sequence,
                    remedy="choose an empty schema (…?schema=name); nothing was moved and nothing there was touched",
                )
            have = ours.sequence
        target.extend(source.rows(have + 1))


def _compare(source: LedgerStore, target: LedgerStore) -> None:
    """Every row of the file is on the server, read again after its commit."""
    for ours, theirs in itertools.zip_longest(source.rows(), target.rows()):
        if ours is None:  # an earlier attempt came as far as the address, and others have gone on from there
            return
        if ours != theirs:
            raise LedgerBroken("was not copied as it is", at=ours.sequence, remedy="nothing was moved; try again")


def _put_away(ledger: Path, kept: Path) -> None:
    """One plain file without a log beside it, read-only, under a name that is never opened."""
    try:
        connection = sqlite3.connect(ledger, isolation_level=None, timeout=10)
        try:
            mode = connection.execute("PRAGMA journal_mode = DELETE").fetchone()[0]
        finally:
            connection.close()
    except sqlite3.OperationalError:
        mode = "busy"
    if mode != "delete":
        raise StoreFailed(
            f"another process still has {ledger} open; it can write nothing there any more. End it, and run the same "
            "move again"
        )
    try:
        rename(ledger, kept)
        os.chmod(kept, stat.S_IRUSR)
    except OSError as error:
        raise StoreFailed(f"{ledger} cannot be renamed: {error.strerror}; run the same move again") from None
