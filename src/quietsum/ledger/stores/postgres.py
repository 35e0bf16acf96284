"""Rows in a schema of a PostgreSQL database: one ledger for coordinators on several machines.

One writer at a time. A transaction takes the exclusive lock of the empty table ``turn`` before it takes its snapshot
(``LOCK TABLE`` needs none), and the server frees that lock only after the transaction before has become visible. So
every writer sees all entries of all writers before it, no two of them overlap, and among them PostgreSQL has nothing
that it could fail to serialise. A trigger takes the same lock for rows that somebody inserts by hand. Transactions are
``SERIALIZABLE`` all the same: should a stranger's writing ever collide with ours, the server undoes the whole
transaction, and it is not tried again here, so no entry can be lost or repeated. The lock is of a table of its own
because vacuuming ``entries`` would take turns with the writers, and so that they need no right but INSERT there.

Durable: ``synchronous_commit = on`` in every transaction, and a server with ``fsync`` or ``full_page_writes`` switched
off is refused, when the connection is made and again in each transaction. Where the connection breaks while COMMIT is
under way, it is not known yet whether the entry was recorded. The store connects again, takes the lock, which waits for
what is left of the first transaction, and looks whether the row is there. If the server stays away, it says that it
does not know (:class:`OutcomeUnknown`): the caller sends nothing, and the entry counts if it is there.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Protocol, final

from quietsum.errors import LedgerBroken, QuietsumError
from quietsum.ledger.stores.postgres_address import Address, take_schema, unreadable
from quietsum.ledger.stores.protocol import LONGEST, NoLedger, Row, StoreFailed, StoreMustWait, read_row

if TYPE_CHECKING:
    import psycopg

__all__ = ["OutcomeUnknown", "PostgresStore", "complete_address", "read_address"]

PATIENCE = 60.0  # seconds that a writer waits for the others, or for a server that restarts
IDLE = 120.0  # seconds after which the server gives up on a writer that is silent in the middle of a transaction
FEW, BATCH = 16, 1000
OLDEST = 140000  # as server_version_num has it

_COLUMNS = "sequence, kind, time, body, previous, hash, signature"


class OutcomeUnknown(StoreMustWait):
    """The connection broke during COMMIT and the server did not come back. The entry counts if it is there."""


def read_address(conninfo: str) -> Address:
    """The parts of a ``postgresql://`` URL or of ``host=… dbname=…``; no message shows what was given."""
    try:
        import psycopg
        from psycopg.conninfo import conninfo_to_dict
    except ImportError:
        raise QuietsumError("a ledger on PostgreSQL needs psycopg: pip install 'quietsum[postgres]'") from None
    schema, text = take_schema(conninfo)
    found: dict[str, Any] | None = None
    with contextlib.suppress(psycopg.Error):  # its words hold parts of the text, so they are not even a cause
        found = conninfo_to_dict(text)
    if found is None:
        raise unreadable()
    return Address.of(schema, {name: str(value) for name, value in found.items() if value is not None})


def complete_address(address: Address) -> dict[str, str]:
    """The address with what libpq adds to it from a service file and the environment. No server is called for that."""
    from psycopg import pq
    from psycopg.conninfo import make_conninfo

    wanted = ("host", "hostaddr", "sslmode", "channel_binding")
    # libpq completes an address, then looks at its values, then connects: a value that is none ends it in between
    text = make_conninfo("", **{**address.values, "target_session_attrs": "nowhere"})
    found = pq.PGconn.connect_start(text.encode())
    try:
        values = {option.keyword.decode(): option.val for option in found.info}
    finally:
        found.finish()
    return {name: value.decode() for name in wanted if (value := values.get(name))}


@final
class PostgresStore:
    """A store that several machines share. Guarantees: see :class:`~quietsum.ledger.stores.protocol.LedgerStore`.

    The one exception: after :class:`OutcomeUnknown` the rows may be there. So more may be counted than was sent, never
    less; the next process that opens the ledger sees which. Interrupting (Ctrl-C) a transaction at its very end is the
    same.
    """

    def __init__(
        self,
        conninfo: str,
        *,
        create: bool = False,
        read_only: bool = False,
        patience: float = PATIENCE,
        accept_lossy_server_in_tests: bool = False,
    ) -> None:
        self.address = read_address(conninfo)
        self.name = self.address.name
        self._schema = self.address.schema
        self._lock = threading.RLock()
        self._process = os.getpid()
        self._writing, self._closed = False, False
        self._last: Row | None = None
        self._patience, self._read_only, self._lossy = patience, read_only, accept_lossy_server_in_tests
        self._connection: psycopg.Connection[tuple[Any, ...]] | None = None
        self._begin_text = "; ".join((
            "BEGIN ISOLATION LEVEL SERIALIZABLE READ WRITE",
            "SET LOCAL synchronous_commit = on",
            "SET LOCAL statement_timeout = 0",
            f"SET LOCAL lock_timeout = {max(1, int(1000 * patience))}",
            f"SET LOCAL idle_in_transaction_session_timeout = {int(1000 * IDLE)}",
            f"LOCK TABLE {self._schema}.turn IN EXCLUSIVE MODE",
            "SELECT current_setting('fsync'), current_setting('full_page_writes'), "
            "current_setting('synchronous_commit'), current_setting('transaction_isolation')",
        ))  # fmt: skip
        with self._translate_errors():
            self._connect()
            try:
                self._prepare(create and not read_only)
            except BaseException:
                self._drop()
                raise

    # ------------------------------------------------------------------------------------------ opening

    def _connect(self) -> psycopg.Connection[tuple[Any, ...]]:
        """One connection, encrypted unless it stays on this machine, to a server that keeps what it confirms."""
        import psycopg

        settings = self.address.settings(read_only=self._read_only, completed=complete_address(self.address))
        connection = psycopg.connect(**settings, autocommit=True)
        try:
            self.address.check_encryption(connection.info.hostaddr, encrypted=bool(connection.pgconn.ssl_in_use))
            found = connection.execute(
                "SELECT current_setting('server_version_num')::int, current_setting('server_encoding'), "
                "current_setting('fsync'), current_setting('full_page_writes')"
            ).fetchone()
            assert found is not None
            version, encoding, sync, pages = found
            if version < OLDEST:
                raise QuietsumError(f"{self.name} runs PostgreSQL {version // 10000}; a ledger needs 14 or newer")
            if encoding != "UTF8":
                raise QuietsumError(f"the database {self.name} is encoded in {encoding}; make one with ENCODING 'UTF8'")
            if self._read_only:
                connection.execute("SET default_transaction_read_only = on")
            else:
                self._require_durable(sync, pages)
        except BaseException:
            connection.close()
            raise
        self._connection = connection
        return connection

    def _require_durable(self, sync: str, pages: str) -> None:
        for setting, value in (("fsync", sync), ("full_page_writes", pages)):
            if value != "on" and not self._lossy:
                raise StoreFailed(
                    f"{self.name} runs with {setting} = {value}: a power cut could make it forget what was spent; "
                    f"set {setting} = on in postgresql.conf and reload. Nothing was recorded"
                )

    def _prepare(self, create: bool) -> None:
        """Check whose schema this is before anything in it is touched; make the tables in an empty one."""
        if create and not _tables_in(self._run, self._schema):
            with self._alive().transaction():
                self._run("SET LOCAL synchronous_commit = on")
                self._run("SELECT pg_advisory_xact_lock(hashtext('quietsum'), hashtext(%s))", (self._schema,))
                if not _tables_in(self._run, self._schema):  # another process may have been quicker
                    _make_tables(self._run, self._schema)
        _check_tables(self._run, self._schema, self.name, read_only=self._read_only)

    # ------------------------------------------------------------------------------------- the Protocol

    def head(self) -> tuple[int, str] | None:
        """Sequence and hash of the last row."""
        found = self._read(f"SELECT {_COLUMNS} FROM {self._schema}.entries ORDER BY sequence DESC LIMIT 1")
        row = read_row(found[0], 1) if found else None
        return None if row is None else (row.sequence, row.hash)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Exclusive across threads, processes and machines; flushed to the server's disk when it ends well."""
        with self._lock:
            if self._writing:
                raise StoreFailed("a transaction is already under way; end it before the next one")
            if self._read_only:
                raise StoreFailed("this ledger was opened for reading only; open it without read_only to write")
            self._begin()
            self._writing, self._last = True, None
            try:
                yield
                self._commit()
            except BaseException:
                self._abandon()
                raise
            finally:
                self._writing = False

    def append(self, row: Row) -> None:
        """Add the next row."""
        with self._lock, self._translate_errors():
            self._require_writing()
            self._run(f"INSERT INTO {self._schema}.entries VALUES (%s, %s, %s, %s, %s, %s, %s)", tuple(row))
            self._last = row

    def extend(self, rows: Iterable[Row]) -> None:
        """Add many rows at once, as a move does; the same triggers look at each of them."""
        with self._lock, self._translate_errors():
            self._require_writing()
            with self._alive().cursor().copy(f"COPY {self._schema}.entries ({_COLUMNS}) FROM STDIN") as copy:
                for row in rows:
                    copy.write_row(row)
                    self._last = row

    def rows(self, start: int = 1) -> Iterator[Row]:
        """All rows from ``start`` on, a thousand at a time; no transaction stays open between them.

        LedgerBroken names the first one that cannot be read: where a thousand cannot, they are asked for one by one.
        """
        start, batch = min(start, LONGEST), FEW  # mostly one row is wanted, or what others have just appended
        while True:
            try:
                found = self._read(
                    f"SELECT {_COLUMNS} FROM {self._schema}.entries WHERE sequence >= %s ORDER BY sequence LIMIT %s",
                    (start, batch),
                )
            except LedgerBroken as broken:
                if batch == 1:
                    raise LedgerBroken(broken.problem, at=start, remedy=broken.remedy) from broken
                batch = 1
                continue
            for values in found:
                row = read_row(values, start)
                yield row
                start = row.sequence + 1
            if len(found) < batch:
                return
            batch = BATCH if batch > 1 else 1

    def seal(self, place: str) -> None:
        """Inside a transaction: refuse every further row, from any machine and for good. It goes on at ``place``."""
        with self._lock, self._translate_errors():
            self._require_writing()
            self._run(f"INSERT INTO {self._schema}.about VALUES ('moved', %s)", (place,))

    def read_seal(self) -> str | None:
        """Where the ledger goes on; None where it was not sealed."""
        found = self._read(f"SELECT value FROM {self._schema}.about WHERE name = 'moved'")
        return str(found[0][0]) if found else None

    def lost_guards(self) -> tuple[str, ...]:
        """The names of triggers that are missing or do not fire always."""
        found = self._read(
            "SELECT t.tgname::text FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid "
            "JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = %s AND t.tgenabled = 'A'",
            (self._schema,),
        )
        return tuple(sorted(set(GUARDS) - {name for (name,) in found}))

    def close(self) -> None:
        """End the connection; closing twice is fine."""
        self._closed = True
        self._drop()

    # --------------------------------------------------------------------------- transactions, step by step

    def _begin(self) -> None:
        """Wait for the turn. A connection that was lost since the last act is made anew: nothing was under way."""
        import psycopg

        with self._translate_errors():
            try:
                self._take_turn(self._alive())
            except psycopg.OperationalError:
                lost = self._is_lost()
                self._abandon()
                if not lost:
                    raise
                self._take_turn(self._reconnect())
            except BaseException:
                self._abandon()
                raise

    def _take_turn(self, connection: psycopg.Connection[tuple[Any, ...]]) -> None:
        cursor = connection.execute(self._begin_text.encode())
        while cursor.nextset():
            pass
        found = cursor.fetchone()
        assert found is not None
        sync, pages, commit, isolation = found
        self._require_durable(sync, pages)
        if (commit, isolation) != ("on", "serializable"):
            raise StoreFailed(
                f"{self.name} does not let a transaction be durable and serialisable; nothing was recorded"
            )

    def _commit(self) -> None:
        import psycopg

        with self._translate_errors():
            connection = self._alive()
            try:
                done = connection.execute("COMMIT", prepare=False).statusmessage
            except psycopg.Error as error:
                if not self._is_lost():
                    raise  # the server said no, and has undone everything
                self._find_out(error)
                return
        if done != "COMMIT":  # what PostgreSQL answers where a statement before had failed
            raise StoreFailed(
                f"{self.name} undid the transaction, because a part of it had failed; nothing was recorded"
            )

    def _find_out(self, error: Exception) -> None:
        """Return where the rows are there after all. The lock comes first: it waits for the first COMMIT to end."""
        import psycopg

        last = self._last
        try:
            if last is None:
                raise StoreFailed("no entry to look for")
            connection = self._reconnect()
            self._take_turn(connection)
            place = last.sequence
            found = connection.execute(
                f"SELECT hash FROM {self._schema}.entries WHERE sequence = %s".encode(), (place,)
            ).fetchone()
            connection.execute("ROLLBACK", prepare=False)
        except (psycopg.Error, QuietsumError) as again:
            self._drop()
            raise OutcomeUnknown(
                f"the connection to {self.name} broke while an entry was being recorded ({_words(error)}), and the "
                f"server did not say what became of it ({_words(again)}). Nothing may be sent; if the entry is "
                "there, it counts. Run the same command again when the server is back"
            ) from error
        if found is None or found[0] != last.hash:
            raise error

    def _abandon(self) -> None:
        """Undo what is under way; where that cannot be said, the server undoes it when the connection ends."""
        import psycopg

        if self._connection is not None and self._process == os.getpid():
            try:
                if self._connection.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
                    self._connection.execute("ROLLBACK", prepare=False)
            except BaseException:
                self._drop()

    # -------------------------------------------------------------------------------------- connections

    def _alive(self) -> psycopg.Connection[tuple[Any, ...]]:
        self._require_usable()
        if self._connection is None:
            if self._writing:
                raise StoreFailed(f"the connection to {self.name} was lost; nothing was recorded")
            return self._reconnect()
        return self._connection

    def _reconnect(self) -> psycopg.Connection[tuple[Any, ...]]:
        """A new connection, with the patience that a server's restart takes."""
        import psycopg

        self._drop()
        deadline, nap = time.monotonic() + self._patience, 0.05
        while True:
            try:
                return self._connect()
            except psycopg.OperationalError:
                if time.monotonic() + nap > deadline:
                    raise
            time.sleep(nap)
            nap = min(2 * nap, 1.0)

    def _is_lost(self) -> bool:
        return self._connection is None or self._connection.closed

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None and self._process == os.getpid():
            with contextlib.suppress(Exception):
                connection.close()

    def _require_usable(self) -> None:
        if self._closed:
            raise StoreFailed("this ledger is closed; open it again")
        if self._process != os.getpid():
            raise StoreFailed("this ledger was opened by another process; open it again after a fork")

    def _require_writing(self) -> None:
        self._require_usable()
        if not self._writing:
            raise StoreFailed("rows are appended inside a transaction only")

    def _run(self, statement: str, values: tuple[Any, ...] | None = None) -> psycopg.Cursor[tuple[Any, ...]]:
        return self._alive().execute(statement.encode(), values)

    def _read(self, statement: str, values: tuple[Any, ...] | None = None) -> list[tuple[Any, ...]]:
        """What a SELECT finds; outside of transactions once more where the connection was lost since."""
        import psycopg

        with self._lock, self._translate_errors():
            try:
                return self._run(statement, values).fetchall()
            except psycopg.OperationalError:
                if self._writing or not self._is_lost():
                    raise
                self._reconnect()
                return self._run(statement, values).fetchall()

    # ------------------------------------------------------------------------------------------- errors

    @contextlib.contextmanager
    def _translate_errors(self) -> Iterator[None]:
        """PostgreSQL's errors as lessons."""
        import psycopg

        try:
            yield
        except (psycopg.Error, UnicodeDecodeError) as error:
            raise _lesson(error, self.name, operational=isinstance(error, psycopg.OperationalError)) from error


# ---------------------------------------------------------------------------------------------------- tables

APPLICATION = "quietsum ledger"
VERSION = 1
TABLES = ("about", "entries", "turn")

_STATEMENTS = (
    """CREATE TABLE {schema}.about (
    name  text PRIMARY KEY,
    value text NOT NULL
)""",
    """CREATE TABLE {schema}.turn ()""",
    """CREATE TABLE {schema}.entries (
    sequence  bigint PRIMARY KEY CHECK (sequence >= 1),
    kind      text NOT NULL,
    time      text NOT NULL,
    body      text NOT NULL,
    previous  text NOT NULL,
    hash      text NOT NULL,
    signature text NOT NULL
)""",
    """CREATE FUNCTION {schema}.refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'a ledger is append-only: nothing in it is changed, deleted or truncated';
END $$""",
    """CREATE FUNCTION {schema}.wait() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    LOCK TABLE {schema}.turn IN EXCLUSIVE MODE;
    RETURN NULL;
END $$""",
    """CREATE FUNCTION {schema}.follow() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    place text;
BEGIN
    SELECT value INTO place FROM {schema}.about WHERE name = 'moved';
    IF FOUND THEN
        RAISE EXCEPTION 'a ledger is append-only: this one was moved to %', place;
    END IF;
    IF NEW.sequence IS DISTINCT FROM (SELECT COALESCE(MAX(sequence), 0) + 1 FROM {schema}.entries) THEN
        RAISE EXCEPTION 'a ledger is append-only: an entry follows the last one';
    END IF;
    RETURN NEW;
END $$""",
    """CREATE TRIGGER entries_are_never_changed BEFORE UPDATE OR DELETE OR TRUNCATE ON {schema}.entries
    FOR EACH STATEMENT EXECUTE FUNCTION {schema}.refuse()""",
    """CREATE TRIGGER what_is_said_stays BEFORE UPDATE OR DELETE OR TRUNCATE ON {schema}.about
    FOR EACH STATEMENT EXECUTE FUNCTION {schema}.refuse()""",
    """CREATE TRIGGER entries_wait_for_their_turn BEFORE INSERT ON {schema}.entries
    FOR EACH STATEMENT EXECUTE FUNCTION {schema}.wait()""",
    """CREATE TRIGGER entries_follow_each_other BEFORE INSERT ON {schema}.entries
    FOR EACH ROW EXECUTE FUNCTION {schema}.follow()""",
    """ALTER TABLE {schema}.about ENABLE ALWAYS TRIGGER what_is_said_stays""",
    """ALTER TABLE {schema}.entries ENABLE ALWAYS TRIGGER entries_are_never_changed""",
    """ALTER TABLE {schema}.entries ENABLE ALWAYS TRIGGER entries_wait_for_their_turn""",
    """ALTER TABLE {schema}.entries ENABLE ALWAYS TRIGGER entries_follow_each_other""",
)


GUARDS = tuple(text.split()[2] for text in _STATEMENTS if text.startswith("CREATE TRIGGER"))
"""The triggers of the two tables; each fires always, also for replicas."""


class _Run(Protocol):
    """A statement and its values, on an open connection."""

    def __call__(self, statement: str, values: tuple[Any, ...] | None = None, /) -> Any:
        """A cursor with what was found."""
        ...


def _tables_in(run: _Run, schema: str) -> dict[str, str]:
    """Names and persistence of what a schema holds; nothing where there is no such schema."""
    return dict(
        run(
            "SELECT relname::text, relpersistence::text FROM pg_class WHERE relkind IN ('r', 'p', 'v', 'm', 'f') "
            "AND relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = %s)",
            (schema,),
        ).fetchall()
    )


def _make_tables(run: _Run, schema: str) -> None:
    """An empty ledger, inside the caller's transaction; ``schema`` is a name that needs no quotes."""
    if run("SELECT 1 FROM pg_namespace WHERE nspname = %s", (schema,)).fetchone() is None:
        run(f"CREATE SCHEMA {schema}")
    for statement in _STATEMENTS:
        run(statement.format(schema=schema))
    run(f"INSERT INTO {schema}.about VALUES ('application', '{APPLICATION}'), ('version', '{VERSION}')")


def _check_tables(run: _Run, schema: str, name: str, *, read_only: bool) -> None:
    """Refuse what is no ledger, is a ledger of another format, or is one that a crash would empty."""
    known = _tables_in(run, schema)
    if not known:
        raise NoLedger(
            f"there is no ledger in {name}; the first `quietsum run` makes one. If there was one, restore the "
            "database from its backup"
        )
    if not known.keys() >= set(TABLES):
        raise LedgerBroken(
            f"in {name} has lost its tables, or the schema is another program's",
            remedy="name the right schema (…?schema=name), or restore the database; nothing was touched",
        )
    about = dict(run(f"SELECT name, value FROM {schema}.about").fetchall())
    if about.get("application") != APPLICATION:
        raise LedgerBroken(f"in {name} is another program's schema", remedy="name another one (…?schema=name)")
    if about.get("version") != str(VERSION):
        raise LedgerBroken(
            f"in {name} says that it is of format {about.get('version')}, this quietsum knows format {VERSION}",
            remedy="use the version of quietsum that wrote it; if no other one did, restore the database",
        )
    if known["entries"] != "p" and not read_only:
        raise StoreFailed(
            f"the table of {name} is not a logged one: a crash of the server would empty it; "
            f"ALTER TABLE {schema}.entries SET LOGGED. Nothing was recorded"
        )


# ---------------------------------------------------------------------------------------------------- errors

RESTORE_DATABASE = (
    "restore the database from a backup; never begin a new ledger for the same data, it would forget what was spent"
)

_SHUT = ("authentication failed", "no password supplied", "pg_hba.conf", "does not exist", "permission denied")
"""What a server says that runs and takes others; libpq gives no SQLSTATE while it connects."""


def _words(error: BaseException) -> str:
    """The server's words in one line, without the statement or anything that was sent."""
    diagnosis = getattr(error, "diag", None)
    text = getattr(diagnosis, "message_primary", None) or str(error)
    return " ".join(text.split()).partition(" Either provide the file")[0]  # libpq's advice is to check less


def _lesson(error: Exception, name: str, *, operational: bool) -> QuietsumError:
    """The error that a user sees for one of libpq's, by its SQLSTATE."""
    text, state = _words(error), getattr(error, "sqlstate", None) or ""
    if "append-only" in text:
        return StoreFailed(f"{text} (in {name}); nothing was recorded")
    if isinstance(error, UnicodeDecodeError) or state in ("XX001", "XX002", "22021", "22P02"):
        return LedgerBroken(f"in {name} is damaged ({text})", remedy=RESTORE_DATABASE)
    if state in ("42P01", "3F000", "42703"):
        return LedgerBroken(f"in {name} has lost its tables ({text})", remedy=RESTORE_DATABASE)
    if state == "55P03":
        return StoreMustWait(
            f"another coordinator has been writing to {name} for too long ({text}); nothing was recorded: "
            "wait for it, or find out why it hangs, and try again"
        )
    if state in ("40001", "40P01", "23505"):
        return StoreMustWait(
            f"somebody wrote to {name} without waiting for their turn ({text}); nothing was recorded: try again"
        )
    if state in ("53100", "53200", "58030"):  # disk full, out of memory, input or output failed
        return StoreMustWait(
            f"the server took no more for {name} ({text}); nothing was recorded, so nothing may be sent: "
            "make room there and run the same command again"
        )
    if state in ("42501", "25006"):
        return StoreFailed(
            f"{name} may not be written or read by this role, or is a standby ({text}); nothing was recorded: "
            "see docs/how-to/shared-ledger.md for the rights that a ledger needs"
        )
    if operational and ("certificate" in text or "SSL" in text) and "client certificate" not in text:
        return StoreFailed(
            f"{name} and this side do not come together over TLS ({text}); nothing was recorded, so nothing may be "
            "sent: see that the server has ssl = on, that sslrootcert=… in the address is the authority which signed "
            "its certificate, and that the address calls it by a name in there"
        )
    if state[:2] in ("28", "3D") or (operational and any(word in text for word in _SHUT)):
        return StoreFailed(
            f"{name} does not let this side in ({text}); nothing was recorded, so nothing may be sent: mend the user, "
            "the database or the password, or the server's pg_hba.conf"
        )
    if operational:
        return StoreMustWait(
            f"{name} does not answer, or ended the connection ({text}); nothing was recorded, so nothing may be sent: "
            "see that the server runs and can be reached, and run the same command again"
        )
    return StoreFailed(f"{name} refused to work ({text}); nothing was recorded")
