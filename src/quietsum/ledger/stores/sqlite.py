"""Rows in one SQLite file that anybody may query and that cannot be changed.

Write-ahead log with ``synchronous = FULL``: a transaction ends after its pages were synced to disk, so what the caller
sends afterwards was recorded before. ``BEGIN IMMEDIATE`` makes writers queue, across processes. Triggers refuse UPDATE
and DELETE and any row that does not follow the last one; they stop accidents, the hash chain finds intent. The schema
is documented in ``docs/reference/ledger.md`` and stable.
"""

from __future__ import annotations

import contextlib
import operator
import os
import shutil
import sqlite3
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, final

from quietsum import failpoints
from quietsum.databases import harden, odd_file, odd_table
from quietsum.errors import LedgerBroken, QuietsumError, may_pass
from quietsum.files import DiskFull, NoRoom, check_room, sync_folder
from quietsum.ledger.stores.missing import missing_ledger
from quietsum.ledger.stores.protocol import LONGEST, Row, StoreFailed, StoreMustWait, read_row

__all__ = ["APPLICATION", "SCHEMA", "VERSION", "SqliteStore"]

APPLICATION = 0x7153756D  # "qSum": what `file` and `PRAGMA application_id` tell
VERSION = 1
PATIENCE = 60.0  # seconds that a writer waits for the others
FEW, BATCH = 8, 1000  # rows that are read at once: at first, and from then on
_COLUMNS = "sequence, kind, time, body, previous, hash, signature"
_text = operator.methodcaller("decode", "utf-8", "surrogateescape")  # what is no UTF-8 is for `read_row` to judge

SCHEMA = """\
CREATE TABLE entries (
    sequence  INTEGER PRIMARY KEY CHECK (sequence >= 1),
    kind      TEXT NOT NULL,
    time      TEXT NOT NULL,
    body      TEXT NOT NULL,
    previous  TEXT NOT NULL,
    hash      TEXT NOT NULL,
    signature TEXT NOT NULL
) STRICT;
CREATE TRIGGER entries_are_never_changed BEFORE UPDATE ON entries
    BEGIN SELECT RAISE(ABORT, 'a ledger is append-only: entries are never changed'); END;
CREATE TRIGGER entries_are_never_deleted BEFORE DELETE ON entries
    BEGIN SELECT RAISE(ABORT, 'a ledger is append-only: entries are never deleted'); END;
CREATE TRIGGER entries_follow_each_other BEFORE INSERT ON entries
    WHEN NEW.sequence IS NOT (SELECT COALESCE(MAX(sequence), 0) + 1 FROM entries)
    BEGIN SELECT RAISE(ABORT, 'a ledger is append-only: an entry follows the last one'); END;
"""

_SEAL, _SEALED = "entries_go_on_elsewhere", "a ledger is append-only: this one was moved to "
_RESTORE = "restore it from a copy; never begin a new ledger for the same data, it would forget what was spent"


@final
class SqliteStore:
    """The store of a workspace. Guarantees: see :class:`~quietsum.ledger.stores.protocol.LedgerStore`."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        create: bool = False,
        read_only: bool = False,
        patience: float = PATIENCE,
        factory: type[sqlite3.Connection] = sqlite3.Connection,
    ) -> None:
        self.path = Path(path)
        self._lock = threading.RLock()
        self._process = os.getpid()
        self._writing = False
        self._patience, self._read_only = patience, read_only
        self._connection: sqlite3.Connection | None = None
        self._borrowed: tempfile.TemporaryDirectory[str] | None = None
        if not self.path.exists():
            if not create:
                raise missing_ledger(self.path, str(self.path))
            self._make_file()
        elif self.path.is_dir():
            raise QuietsumError(f"{self.path} is a folder; name the ledger file, such as {self.path / 'ledger.db'}")
        odd = odd_file(self.path)
        if odd:
            raise LedgerBroken(f"at {self.path} cannot be opened: {odd}", remedy=_RESTORE)
        try:
            with self._translate_errors():
                self._connection = self._connect(read_only, patience, factory)
                self._prepare(create and not read_only)
        except BaseException:
            self.close()
            raise

    # ------------------------------------------------------------------------------------------ opening

    def _make_file(self) -> None:
        """An empty file that only its owner can read; SQLite gives its log the same mode."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileExistsError):
                os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
                sync_folder(self.path.parent)
            failpoints.reach("ledger.create:after-file")
        except OSError as error:
            kind = StoreMustWait if may_pass(error) else StoreFailed
            raise kind(f"no ledger can be made at {self.path}: {error.strerror}; choose another folder") from None

    def _connect(self, read_only: bool, patience: float, factory: type[sqlite3.Connection]) -> sqlite3.Connection:
        where = f"{self.path.absolute().as_uri()}?mode={'ro' if read_only else 'rw'}"
        if read_only and not os.access(self.path.parent, os.W_OK):  # a copy on read-only media
            beside = [self.path.with_name(self.path.name + end) for end in ("-wal", "-journal")]
            logs = [log for log in beside if log.exists() and log.stat().st_size]
            if not logs:
                where += "&immutable=1"
            elif not self.path.with_name(self.path.name + "-shm").exists():
                where = f"{self._borrow_copy(logs).absolute().as_uri()}?mode=rw"
        connection = sqlite3.connect(
            where,
            uri=True,
            timeout=patience,
            isolation_level=None,
            check_same_thread=False,
            factory=factory,
        )
        connection.text_factory = _text
        harden(connection)
        return connection

    def _borrow_copy(self, logs: list[Path]) -> Path:
        """A copy of a file with a log that has not gone into it: SQLite cannot join the two where they lie."""
        self._borrowed = tempfile.TemporaryDirectory(prefix="quietsum-")
        try:
            for path in (self.path, *logs):
                shutil.copyfile(path, Path(self._borrowed.name) / path.name)
        except OSError as error:
            kind = StoreMustWait if may_pass(error) else StoreFailed
            raise kind(
                f"{self.path} lies on read-only media with a log beside it, and cannot be copied to read it: "
                f"{error.strerror}; name a folder with room for it in TMPDIR"
            ) from None
        return Path(self._borrowed.name) / self.path.name

    def _prepare(self, create: bool) -> None:
        """Check whose file this is before anything in it is touched; make the table in an empty one."""
        run = self._run
        run("BEGIN")  # one look at one moment: another process may be making the table right now
        application, version = self._pragma("application_id"), self._pragma("user_version")
        empty = not run("SELECT COUNT(*) FROM sqlite_schema").fetchone()[0]
        run("COMMIT")
        if empty and application in (0, APPLICATION):
            if not create:
                raise missing_ledger(self.path, str(self.path))
            self._sync_fully()
            with self.transaction():
                if not run("SELECT COUNT(*) FROM sqlite_schema").fetchone()[0]:
                    for statement in _statements(SCHEMA):
                        run(statement)
                    run(f"PRAGMA application_id = {APPLICATION}")
                    run(f"PRAGMA user_version = {VERSION}")
            failpoints.reach("ledger.create:after-tables")
            return
        if application != APPLICATION:
            raise LedgerBroken(
                f"at {self.path} is another program's database", remedy="name the ledger file; this one was not touched"
            )
        if version != VERSION:
            raise LedgerBroken(
                f"at {self.path} says that it is of format {version}, this quietsum knows format {VERSION}",
                remedy="use the version of quietsum that wrote it; if no other one did, restore it from a copy",
            )
        odd = odd_table(self._connection, ["entries"]) if self._connection is not None else ""
        if odd:
            raise LedgerBroken(f"at {self.path} is not what quietsum made: {odd}", remedy=_RESTORE)
        if not self._read_only:
            self._sync_fully()

    def _sync_fully(self) -> None:
        """A log that is synced at each commit, also in a copy that has lost its mode.

        Where the file system allows no such log, the journal that SQLite then keeps is synced with its folder. The last
        two make macOS flush the disk's own cache; elsewhere they change nothing.
        """
        mode = self._patiently("PRAGMA journal_mode = WAL").fetchone()[0]
        self._run(f"PRAGMA synchronous = {'FULL' if mode == 'wal' else 'EXTRA'}")
        self._run("PRAGMA fullfsync = 1")
        self._run("PRAGMA checkpoint_fullfsync = 1")

    def _pragma(self, name: str) -> int:
        return int(self._run(f"PRAGMA {name}").fetchone()[0])

    # ------------------------------------------------------------------------------------- the Protocol

    def head(self) -> tuple[int, str] | None:
        """Sequence and hash of the last row."""
        with self._lock, self._translate_errors():
            found = self._run(f"SELECT {_COLUMNS} FROM entries ORDER BY sequence DESC LIMIT 1").fetchone()
        if found is None:
            return None
        row = read_row(found, 1)
        return row.sequence, row.hash

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Exclusive across threads and processes; synced to disk when it ends well."""
        with self._lock:
            if self._writing:
                raise StoreFailed("a transaction is already under way; end it before the next one")
            self._patiently("BEGIN IMMEDIATE")
            self._writing = True
            try:
                yield
                with self._translate_errors():
                    self._run("COMMIT")
            except BaseException:
                with contextlib.suppress(sqlite3.Error, QuietsumError):
                    if self._connection is not None and self._connection.in_transaction:
                        self._run("ROLLBACK")
                raise
            finally:
                self._writing = False

    def _patiently(self, statement: str) -> sqlite3.Cursor:
        """Wait for other writers in short naps; SQLite's own way of waiting sleeps a tenth of a second at a time."""
        deadline, nap = time.monotonic() + self._patience, 0.0002
        with self._translate_errors():
            self._run("PRAGMA busy_timeout = 0")
            try:
                while True:
                    try:
                        return self._run(statement)
                    except sqlite3.OperationalError as error:
                        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
                        if code != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                            raise
                    time.sleep(nap * (0.5 + time.perf_counter_ns() % 997 / 997))  # out of step with the others
                    nap = min(2 * nap, 0.001)
            finally:
                self._run(f"PRAGMA busy_timeout = {int(1000 * self._patience)}")

    def check_room(self, count: int) -> None:
        """StoreMustWait where the disk has no room for ``count`` more bytes."""
        try:
            check_room(self.path.parent, count)
        except NoRoom as error:
            raise (StoreMustWait if isinstance(error, DiskFull) else StoreFailed)(str(error)) from None

    def append(self, row: Row) -> None:
        """Add the next row."""
        with self._lock, self._translate_errors():
            if not self._writing:
                raise StoreFailed("rows are appended inside a transaction only")
            self._run("INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?, ?)", tuple(row))

    def rows(self, start: int = 1) -> Iterator[Row]:
        """All rows from ``start`` on, a thousand at a time; LedgerBroken names the first one that cannot be read."""
        start, batch = min(start, LONGEST), FEW  # mostly one row is wanted, or what others have just appended
        while True:
            with self._lock:
                found, problem = self._some_rows(start, batch)
            for values in found:
                row = read_row(values, start)
                yield row
                start = row.sequence + 1
            if problem is not None:
                raise _lesson(problem, self.path, at=start) from problem
            if len(found) < batch:
                return
            batch = BATCH

    def _some_rows(
        self, start: int, batch: int
    ) -> tuple[list[tuple[Any, ...]], sqlite3.Error | UnicodeDecodeError | None]:
        """So many rows, or those before the first one that SQLite cannot read, with its complaint.

        Python is always one row ahead, so an error loses the row before it: then they are asked for one by one.
        """
        query = f"SELECT {_COLUMNS} FROM entries WHERE sequence >= ? ORDER BY sequence LIMIT ?"
        try:
            return self._run(query, (start, batch)).fetchall(), None
        except (sqlite3.Error, UnicodeDecodeError):
            found: list[tuple[Any, ...]] = []
        try:
            while len(found) < batch and (values := self._run(query, (start, 1)).fetchone()) is not None:
                found.append(values)
                start = read_row(values, start).sequence + 1
        except (sqlite3.Error, UnicodeDecodeError) as problem:
            return found, problem
        except LedgerBroken:
            pass  # the last one; whoever takes it says so
        return found, None

    # ------------------------------------------------------------------------------------------- moving

    def seal(self, place: str) -> None:
        """Inside a transaction: refuse every further row, from any process. It goes on at ``place``."""
        with self._lock, self._translate_errors():
            text = f"{_SEALED}{place}".replace("'", "''")
            self._run(f"CREATE TRIGGER {_SEAL} BEFORE INSERT ON entries BEGIN SELECT RAISE(ABORT, '{text}'); END")

    def read_seal(self) -> str | None:
        """Where the ledger goes on; None where it was not sealed."""
        with self._lock, self._translate_errors():
            found = self._run("SELECT sql FROM sqlite_schema WHERE type = 'trigger' AND name = ?", (_SEAL,)).fetchone()
        if found is None:
            return None
        _, sealed, place = str(found[0]).partition(_SEALED)
        if not sealed:
            raise LedgerBroken(f"at {self.path} has a seal that does not say where it goes on", remedy=_RESTORE)
        return place.removesuffix("'); END").replace("''", "'")

    def lost_guards(self) -> tuple[str, ...]:
        """The names of triggers that are not as they were made."""
        with self._lock, self._translate_errors():
            found = dict(self._run("SELECT name, sql FROM sqlite_schema WHERE type = 'trigger'").fetchall())
        made = {text.split()[2]: text.strip().removesuffix(";") for text in _statements(SCHEMA) if " TRIGGER " in text}
        return tuple(name for name, text in made.items() if found.get(name) != text)

    def close(self) -> None:
        """Close the file; closing twice is fine."""
        connection, self._connection = self._connection, None
        if self._process == os.getpid():
            if connection is not None:
                with contextlib.suppress(sqlite3.Error):
                    connection.close()
            if self._borrowed is not None:
                self._borrowed.cleanup()

    # ------------------------------------------------------------------------------------------- errors

    def _run(self, statement: str, values: tuple[Any, ...] = ()) -> sqlite3.Cursor:
        if self._connection is None:
            raise StoreFailed("this ledger is closed; open it again")
        if self._process != os.getpid():
            raise StoreFailed("this ledger was opened by another process; open it again after a fork")
        return self._connection.execute(statement, values)

    @contextlib.contextmanager
    def _translate_errors(self) -> Iterator[None]:
        """SQLite's errors as lessons."""
        try:
            yield
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise _lesson(error, self.path) from error


def _has_permissions(path: Path) -> bool:
    """Whether owner and permissions are in order, so that something else keeps SQLite from its files."""
    return path.is_file() and os.access(path, os.R_OK | os.W_OK) and os.access(path.parent, os.W_OK | os.X_OK)


def _lesson(error: sqlite3.Error | UnicodeDecodeError, path: Path, at: int | None = None) -> QuietsumError:
    """What SQLite's refusal means; ``at`` is the entry that was being read, where one was."""
    text = str(error)
    full = getattr(error, "sqlite_errorcode", None) or 0
    code = full & 0xFF
    where = f"at {path} is" if at is None else f"of {path} is missing or"
    if (
        code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_TOOBIG)
        or full == sqlite3.SQLITE_IOERR_SHORT_READ
        or isinstance(error, UnicodeDecodeError)  # its own complaint quotes bytes that are none of a text
        or "malformed" in text
        or "not a database" in text
    ):
        return LedgerBroken(f"{where} damaged ({text})", at=at, remedy=_RESTORE)
    if code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR) or "full" in text or "I/O" in text:
        return StoreMustWait(
            f"the disk took no more for {path} ({text}); nothing was recorded, so nothing may be sent: "
            "free some space and try again; a run goes on with --resume"
        )
    if code == sqlite3.SQLITE_BUSY or "locked" in text:
        return StoreMustWait(
            f"another process has been writing to {path} for too long ({text}); nothing was recorded: "
            "wait for it, or find out why it hangs, and try again"
        )
    if full in (sqlite3.SQLITE_READONLY_ROLLBACK, sqlite3.SQLITE_READONLY_RECOVERY):
        return StoreMustWait(
            f"{path} was left in the middle of a write, and who only looks undoes nothing ({text}): the next command "
            "that writes there does, quietsum run --resume say; then look again"
        )
    if code in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY) and _has_permissions(
        path
    ):  # SQLite had to do without, say
        return StoreMustWait(
            f"{path} cannot be opened now ({text}); nothing was recorded: see whether the disk is full"
        )
    if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM) or "readonly" in text:
        return StoreFailed(
            f"{path} cannot be written or opened ({text}); check owner and permissions of it and its folder"
        )
    if "append-only" in text:
        return StoreFailed(f"{text} (at {path}); nothing was recorded")
    if "no such table" in text or "has no column" in text or "no such column" in text:
        return LedgerBroken(f"at {path} has lost its table ({text})", remedy=_RESTORE)
    if code == sqlite3.SQLITE_ERROR:  # our statements are constants: one that fails so met tables that are not ours
        return LedgerBroken(f"{where} damaged ({text})", at=at, remedy=_RESTORE)
    return StoreFailed(f"{path} refused to work ({text}); nothing was recorded")


def _statements(script: str) -> Iterator[str]:
    """The script's statements, one by one: ``executescript`` would end the transaction."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
