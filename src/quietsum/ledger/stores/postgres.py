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
under way, nobody knows yet whether the entry was recorded. The store connects again, takes the lock, which waits for
what is left of the first transaction, and looks whether the row is there. If the server stays away, it says that it
does not know (:class:`OutcomeUnknown`): the caller sends nothing, and the entry counts if it is there.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, final

from quietsum.errors import LedgerBroken, QuietsumError
from quietsum.ledger.stores.address import Address, take_schema, unreadable
from quietsum.ledger.stores.postgres_answers import lesson_of, words_of
from quietsum.ledger.stores.postgres_tables import GUARDS, check_tables, make_tables, tables_in
from quietsum.ledger.stores.protocol import LONGEST, Row, StoreFailed, StoreMustWait, read_row

if TYPE_CHECKING:
    import psycopg

__all__ = ["OutcomeUnknown", "PostgresStore", "completed", "read_address"]

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


def completed(address: Address) -> dict[str, str]:
    """The address with what libpq adds to it from a service file and the environment. Nobody is dialled for that."""
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
    less; whoever opens the ledger next sees which. Interrupting (Ctrl-C) a transaction at its very end is the same.
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
        with self._translated():
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

        settings = self.address.settings(read_only=self._read_only, completed=completed(self.address))
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
        if create and not tables_in(self._run, self._schema):
            with self._alive().transaction():
                self._run("SET LOCAL synchronous_commit = on")
                self._run("SELECT pg_advisory_xact_lock(hashtext('quietsum'), hashtext(%s))", (self._schema,))
                if not tables_in(self._run, self._schema):  # another process may have been quicker
                    make_tables(self._run, self._schema)
        check_tables(self._run, self._schema, self.name, read_only=self._read_only)

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
        with self._lock, self._translated():
            self._require_writing()
            self._run(f"INSERT INTO {self._schema}.entries VALUES (%s, %s, %s, %s, %s, %s, %s)", tuple(row))
            self._last = row

    def extend(self, rows: Iterable[Row]) -> None:
        """Add many rows at once, as a move does; the same triggers look at each of them."""
        with self._lock, self._translated():
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
        with self._lock, self._translated():
            self._require_writing()
            self._run(f"INSERT INTO {self._schema}.about VALUES ('moved', %s)", (place,))

    def sealed(self) -> str | None:
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

        with self._translated():
            try:
                self._take_turn(self._alive())
            except psycopg.OperationalError:
                lost = self._is_lost()
                self._abandon()
                if not lost:
                    raise
                self._take_turn(self._reconnected())
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

        with self._translated():
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
            connection = self._reconnected()
            self._take_turn(connection)
            place = last.sequence
            found = connection.execute(
                f"SELECT hash FROM {self._schema}.entries WHERE sequence = %s".encode(), (place,)
            ).fetchone()
            connection.execute("ROLLBACK", prepare=False)
        except (psycopg.Error, QuietsumError) as again:
            self._drop()
            raise OutcomeUnknown(
                f"the connection to {self.name} broke while an entry was being recorded ({words_of(error)}), and the "
                f"server did not say what became of it ({words_of(again)}). Nothing may be sent; if the entry is "
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
            return self._reconnected()
        return self._connection

    def _reconnected(self) -> psycopg.Connection[tuple[Any, ...]]:
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

        with self._lock, self._translated():
            try:
                return self._run(statement, values).fetchall()
            except psycopg.OperationalError:
                if self._writing or not self._is_lost():
                    raise
                self._reconnected()
                return self._run(statement, values).fetchall()

    # ------------------------------------------------------------------------------------------- errors

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        """PostgreSQL's errors as lessons."""
        import psycopg

        try:
            yield
        except (psycopg.Error, UnicodeDecodeError) as error:
            raise lesson_of(error, self.name, operational=isinstance(error, psycopg.OperationalError)) from error
