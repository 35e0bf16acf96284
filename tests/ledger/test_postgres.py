"""The shared store on a real PostgreSQL: durable or refused, append-only, one writer at a time, honest about COMMIT.

What every store promises is in tests/contracts/test_ledger_stores.py.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ledger.postgres import Wire, server
from quietsum.errors import LedgerBroken, QuietsumError
from quietsum.ledger.stores.postgres import OutcomeUnknown, PostgresStore, read_address
from quietsum.ledger.stores.postgres_address import Address
from quietsum.ledger.stores.protocol import Row, StoreFailed, StoreMustWait


def row(sequence: int) -> Row:
    return Row(sequence, "run", "2026-01-01T00:00:00.000000Z", "{}", "0" * 64, f"{sequence:064x}", "f" * 128)


def write(store: PostgresStore, *sequences: int) -> None:
    with store.transaction():
        for sequence in sequences:
            store.append(row(sequence))


def filled(count: int = 1, **options: float) -> tuple[PostgresStore, str]:
    address = server().schema()
    store = PostgresStore(address, create=True, **options)  # type: ignore[arg-type]
    write(store, *range(1, count + 1))
    return store, address


def schema_of(address: str) -> str:
    return address.split("schema=")[1]


def sequences(store: PostgresStore) -> list[int]:
    return [found.sequence for found in store.rows()]


# ------------------------------------------------------------------------------------------ addresses


@pytest.mark.parametrize(
    "address",
    [
        "postgresql://ward:hush-hush@db.example/books",
        "host=db.example user=ward password=hush-hush",
        "postgresql://ward@db.example/books?password=hush-hush",
        "postgresql://ward@db.example/books?sslpassword=hush-hush",
        "postgresql://ward:hush-hush/1@db.example/books",
        "postgresql://ward:12/hush-hush@db.example/books",
        "postgresql://ward:a@hush-hush@db.example/books",
        "postgresql://ward@db.example:hush-hush/books",
        "postgresql://ward@db.example/books?hush-hush=1",
        "hush-hush",
        "host=db.example password='hush-hush",
        "host=db.example\npassword=hush-hush",
    ],
)
def test_a_password_is_refused_and_never_shown(address: str) -> None:
    with pytest.raises(QuietsumError) as caught:
        read_address(address)
    assert "hush" not in str(caught.value) and "hush" not in repr(caught.value.__context__ or "")


def test_what_could_switch_off_a_guarantee_is_no_part_of_an_address() -> None:
    with pytest.raises(QuietsumError, match="does not take options"):
        read_address("host=/tmp options='-c synchronous_commit=off'")
    for schema in ("pg_catalog", "Quiet", "a b", "", "x;drop"):
        with pytest.raises(QuietsumError):
            read_address(f"postgresql:///books?schema={schema}")


def test_an_address_says_where_and_nothing_else() -> None:
    address = read_address("postgresql://ward@db.example:5433/books?sslmode=verify-full&schema=heart")
    assert address.name == "postgresql://ward@db.example:5433/books?schema=heart"
    assert read_address("service=books").name == "postgresql:service=books schema=quietsum"
    near = read_address("postgresql://ward:@/books?host=/run/pg")
    assert near.name == "postgresql://ward@/books?host=/run/pg&schema=quietsum"


def test_a_connection_to_another_machine_that_is_not_encrypted_is_refused() -> None:
    far = read_address("postgresql://ward@db.example/books")
    with pytest.raises(QuietsumError, match="not encrypted"):
        far.check_encryption("192.0.2.7", encrypted=False)
    far.check_encryption("192.0.2.7", encrypted=True)
    far.check_encryption("127.0.0.1", encrypted=False)
    for near in ("host=/run/postgresql", "host=localhost", "host=127.0.0.1", "host=::1", "dbname=books"):
        address = read_address(near)
        chosen = address.settings(read_only=False, completed=address.values)
        assert "sslmode" not in chosen and "gssencmode" not in chosen, near
    with pytest.raises(QuietsumError, match="sslmode=verify-full"):
        Address.of("quietsum", {"sslmode": "prefer"}).settings(read_only=True, completed={"host": "db.example"})


def test_without_psycopg_one_learns_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(QuietsumError, match=r"quietsum\[postgres\]"):
        PostgresStore("postgresql:///books")


def test_a_server_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(StoreFailed, match="does not answer"):
        PostgresStore(f"postgresql://ward@/books?host={tmp_path}")


def test_a_server_that_is_full_or_away_may_be_well_later_and_one_that_says_no_is_a_mistake(tmp_path: Path) -> None:
    store, address = filled()
    schema = schema_of(address)
    server().sql(
        f"CREATE FUNCTION {schema}.full() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION 'could not extend file: No space left on device' USING ERRCODE = '53100'; END $$",
        f"CREATE TRIGGER no_room BEFORE INSERT ON {schema}.entries EXECUTE FUNCTION {schema}.full()",
    )
    with pytest.raises(StoreMustWait, match="make room there") as full:
        write(store, 2)
    store.close()
    with pytest.raises(StoreMustWait, match="does not answer") as away:
        PostgresStore(f"postgresql://ward@/books?host={tmp_path}")
    with pytest.raises(StoreFailed, match="does not let this side in") as shut:
        PostgresStore(address.replace("postgres@", "nobody-we-know@"))
    with pytest.raises(StoreFailed, match="does not let this side in"):
        PostgresStore(address.replace("/postgres?", "/no-such-books?"))
    assert [found.value.exit_code for found in (full, away, shut)] == [1, 1, 2]
    assert OutcomeUnknown.exit_code == 1


# ---------------------------------------------------------------------------------- whose schema is this


def test_no_ledger_another_programs_schema_and_another_format_are_told_apart() -> None:
    import psycopg

    with pytest.raises(QuietsumError, match="there is no ledger"):
        PostgresStore(server().schema())
    other = server().schema()
    server().sql(f"CREATE SCHEMA {schema_of(other)}", f"CREATE TABLE {schema_of(other)}.patients (name text)")
    with pytest.raises(LedgerBroken, match="another program's"):
        PostgresStore(other, create=True)
    store, address = filled()
    store.close()
    about = f"{schema_of(address)}.about"
    with pytest.raises(psycopg.Error, match="append-only"):
        server().sql(f"UPDATE {about} SET value = '2'")
    server().sql(f"ALTER TABLE {about} DISABLE TRIGGER USER", f"UPDATE {about} SET value = '2' WHERE name = 'version'")
    with pytest.raises(QuietsumError, match="format 2"):
        PostgresStore(address)


def test_a_schema_that_an_administrator_made_is_used() -> None:
    address = server().schema()
    server().sql(f"CREATE SCHEMA {schema_of(address)}")
    PostgresStore(address, create=True).close()
    store = PostgresStore(address)
    assert store.head() is None and sequences(store) == []
    store.close()


# ------------------------------------------------------------------------------------------- durability


@contextlib.contextmanager
def configured(setting: str, value: str) -> Iterator[None]:
    if not server().ours:
        pytest.skip("the server's configuration is not ours to change")
    try:
        server().sql(f"ALTER SYSTEM SET {setting} = {value}")
        server().tell("stop")
        server().tell("start")
        yield
    finally:
        server().sql(f"ALTER SYSTEM RESET {setting}", "SELECT pg_reload_conf()")


@pytest.mark.parametrize("setting", ["fsync", "full_page_writes"])
def test_a_server_that_may_forget_is_refused(setting: str) -> None:
    store, address = filled()
    with configured(setting, "off"):
        with pytest.raises(StoreFailed, match=f"{setting} = off"):
            PostgresStore(address)
        with pytest.raises(StoreFailed, match=f"{setting} = off"):
            write(store, 2)
        assert PostgresStore(address, read_only=True).head() == (1, f"{1:064x}")
        write(PostgresStore(address, accept_lossy_server_in_tests=True), 2)


def test_a_setting_that_changes_between_two_acts_is_noticed() -> None:
    store, _ = filled()
    if not server().ours:
        pytest.skip("the server's configuration is not ours to change")
    try:
        server().sql("ALTER SYSTEM SET fsync = off", "SELECT pg_reload_conf()")
        heard(store, "off")
        with pytest.raises(StoreFailed, match="fsync = off"):
            write(store, 2)
        assert sequences(store) == [1]
    finally:
        server().sql("ALTER SYSTEM RESET fsync", "SELECT pg_reload_conf()")
    heard(store, "on")
    write(store, 2)


def heard(store: PostgresStore, value: str) -> None:
    """Wait until the store's own connection has heard of the server's new configuration."""
    for _ in range(600):
        if store._run("SELECT current_setting('fsync')").fetchone() == (value,):
            return
        time.sleep(0.05)
    raise AssertionError(f"fsync never became {value}")


def test_commits_are_synchronous_and_serialisable_whatever_the_defaults_say() -> None:
    store, _ = filled()
    store._run("SET synchronous_commit = off")
    store._run("SET default_transaction_isolation = 'read committed'")
    shown = "SELECT current_setting('synchronous_commit'), current_setting('transaction_isolation')"
    assert store._run(shown).fetchone() == ("off", "read committed")
    with store.transaction():
        assert store._run(shown).fetchone() == ("on", "serializable")


def test_a_table_that_a_crash_would_empty_is_refused() -> None:
    store, address = filled()
    store.close()
    server().sql(f"ALTER TABLE {schema_of(address)}.entries SET UNLOGGED")
    with pytest.raises(StoreFailed, match="SET LOGGED"):
        PostgresStore(address)


def test_what_was_confirmed_is_there_after_the_server_crashed() -> None:
    store, _ = filled(3)
    server().tell("crash")
    server().tell("start")
    assert sequences(store) == [1, 2, 3]  # it connects again by itself
    write(store, 4)


def test_a_server_that_restarts_in_the_middle_leaves_nothing_of_a_transaction() -> None:
    store, _ = filled()

    def interrupted() -> None:
        with store.transaction():
            store.append(row(2))
            server().tell("stop")
            server().tell("start")
            store.append(row(3))

    with pytest.raises(StoreFailed, match="nothing was recorded"):
        interrupted()
    assert sequences(store) == [1]
    write(store, 2)


# ------------------------------------------------------------------------------------------- append-only


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE {s}.entries SET body = 'x'",
        "DELETE FROM {s}.entries WHERE sequence = 2",
        "TRUNCATE {s}.entries",
        "INSERT INTO {s}.entries SELECT 4, kind, time, body, previous, hash, signature FROM {s}.entries LIMIT 1",
        "INSERT INTO {s}.entries SELECT * FROM {s}.entries WHERE sequence = 1 ON CONFLICT (sequence) DO UPDATE "
        "SET body = 'x'",
        "INSERT INTO {s}.entries SELECT s, kind, time, body, previous, hash, signature FROM {s}.entries, "
        "(VALUES (3), (5)) AS v (s) WHERE sequence = 1",
    ],
)
@pytest.mark.parametrize("role", ["origin", "replica"])
def test_triggers_stop_accidents(statement: str, role: str) -> None:
    import psycopg

    store, address = filled(2)
    with pytest.raises(psycopg.Error, match="append-only"):
        server().sql(f"SET session_replication_role = {role}", statement.format(s=schema_of(address)))
    assert sequences(store) == [1, 2]


def test_without_its_trigger_a_row_can_be_changed() -> None:
    """The control: it is the trigger that refuses."""
    store, address = filled(2)
    server().sql(
        f"DROP TRIGGER entries_are_never_changed ON {schema_of(address)}.entries",
        f"DELETE FROM {schema_of(address)}.entries WHERE sequence = 2",
    )
    assert sequences(store) == [1]


# ---------------------------------------------------------------------------------- one writer at a time


def test_a_row_by_hand_waits_for_its_turn() -> None:
    import psycopg

    store, address = filled()
    insert = (
        f"INSERT INTO {schema_of(address)}.entries SELECT 2, kind, time, body, previous, hash, signature "
        f"FROM {schema_of(address)}.entries WHERE sequence = 1"
    )
    with store.transaction():
        with pytest.raises(psycopg.errors.LockNotAvailable):
            server().sql("SET lock_timeout = 200", insert)
        store.append(row(2))
    assert sequences(store) == [1, 2]


def test_a_writer_that_does_not_get_its_turn_says_so() -> None:
    store, address = filled()
    other = PostgresStore(address, patience=0.2)
    with store.transaction(), pytest.raises(StoreFailed, match=r"writing to .* for too long"), other.transaction():
        pass
    write(other, 2)
    assert sequences(store) == [1, 2]


def test_a_writer_that_forgets_its_turn_is_refused_and_nothing_is_lost() -> None:
    """Its snapshot is older than the other's row; the server undoes it as a whole."""
    store, address = filled()
    hasty = PostgresStore(address)
    hasty._begin_text = "; ".join(part for part in hasty._begin_text.split("; ") if "LOCK TABLE" not in part)

    def collide() -> None:
        with hasty.transaction():
            assert hasty.head() == (1, f"{1:064x}")
            write(store, 2)
            hasty.append(row(2))

    with pytest.raises(StoreFailed, match="nothing was recorded"):
        collide()
    assert sequences(store) == sequences(hasty) == [1, 2]
    write(hasty, 3)


def test_a_serialisation_failure_records_nothing_and_repeats_nothing() -> None:
    store, _ = filled()

    def collide() -> None:
        with store.transaction():
            store.append(row(2))
            with store._translate_errors():
                store._run("DO $$ BEGIN RAISE EXCEPTION 'could not serialise' USING ERRCODE = '40001'; END $$")

    with pytest.raises(StoreFailed, match="nothing was recorded: try again"):
        collide()
    assert sequences(store) == [1]
    write(store, 2)


def test_a_part_that_failed_is_not_forgotten_at_the_end() -> None:
    """PostgreSQL answers such a COMMIT with ROLLBACK and no error."""
    store, _ = filled()

    def swallow() -> None:
        with store.transaction():
            store.append(row(2))
            with contextlib.suppress(StoreFailed):
                store.append(row(7))

    with pytest.raises(StoreFailed, match="nothing was recorded"):
        swallow()
    assert sequences(store) == [1]


WRITER = """
import sys
sys.path.insert(0, sys.argv[2])
from ledger.test_postgres import row
from quietsum.ledger.stores.postgres import PostgresStore
store = PostgresStore(sys.argv[1])
with store.transaction():
    store.append(row(2))
    print("inside", flush=True)
    sys.stdin.readline()
"""


def test_a_writer_that_is_killed_leaves_no_entry_and_no_lock() -> None:
    store, address = filled()
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, address, str(Path(__file__).parents[1])],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None and process.stdout.readline() == "inside\n"
        hurried = PostgresStore(address, patience=0.2)
        with pytest.raises(StoreFailed, match="too long"):
            write(hurried, 2)  # the control: it did hold the lock
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait(30)
    write(store, 2, 3)
    assert sequences(store) == [1, 2, 3]


FORK = """
import os, sys
from quietsum.errors import QuietsumError
from quietsum.ledger.stores.postgres import PostgresStore
store = PostgresStore(sys.argv[1])
child = os.fork()
if child == 0:
    refused = 0
    for act in (store.head, lambda: list(store.rows()), lambda: store.transaction().__enter__()):
        try:
            act()
        except QuietsumError as error:
            refused += "after a fork" in str(error)
    store.close()
    os._exit(0 if refused == 3 else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert store.head() is not None  # the parent's connection is as it was
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_forked_process_opens_the_ledger_again() -> None:
    _, address = filled()
    subprocess.run([sys.executable, "-c", FORK, address], check=True, timeout=60)


# --------------------------------------------------------------------------- a COMMIT without an answer


@pytest.fixture
def wire() -> Iterator[Wire]:
    found = Wire()
    yield found
    found.end()


def test_a_commit_whose_answer_was_lost_is_found_and_counts(wire: Wire) -> None:
    _, address = filled()
    store = PostgresStore(wire.of(address))
    wire.cut = "after"
    write(store, 2)
    assert wire.cut is None, "the wire was not cut"
    assert sequences(store) == [1, 2]
    write(store, 3)


def test_a_commit_that_never_arrived_recorded_nothing(wire: Wire) -> None:
    _, address = filled()
    store = PostgresStore(wire.of(address))
    wire.cut = "before"
    with pytest.raises(StoreFailed, match="nothing was recorded") as caught:
        write(store, 2)
    assert not isinstance(caught.value, OutcomeUnknown) and wire.cut is None
    assert sequences(store) == [1]
    write(store, 2)


@pytest.mark.parametrize(("cut", "there"), [("after", [1, 2]), ("before", [1])])
def test_where_the_server_stays_away_the_outcome_is_unknown(wire: Wire, cut: str, there: list[int]) -> None:
    direct, address = filled()
    store = PostgresStore(wire.of(address), patience=0.3)
    wire.cut, wire.away = cut, True
    with pytest.raises(OutcomeUnknown, match="if the entry is there, it counts"):
        write(store, 2)
    assert sequences(direct) == there


# ------------------------------------------------------------------------------------------------- roles


def test_a_reader_needs_select_and_a_writer_no_more_than_it_uses() -> None:
    store, address = filled()
    schema = schema_of(address)
    names = [f"{schema}_reader", f"{schema}_writer"]
    try:
        server().sql(
            *(f"CREATE ROLE {name} LOGIN" for name in names),
            f"GRANT USAGE ON SCHEMA {schema} TO {names[0]}, {names[1]}",
            f"GRANT SELECT ON {schema}.entries, {schema}.about TO {names[0]}, {names[1]}",
            f"GRANT INSERT ON {schema}.entries TO {names[1]}",
            f"GRANT UPDATE ON {schema}.turn TO {names[1]}",
        )
        as_role = [address.replace("postgres@", f"{name}@") for name in names]
        if not server().ours:
            pytest.skip("the server of QUIETSUM_TEST_POSTGRES may not let new roles in")
        reader = PostgresStore(as_role[0], read_only=True)
        assert sequences(reader) == [1]
        with pytest.raises(StoreFailed, match="reading only"), reader.transaction():
            pass
        with pytest.raises(StoreFailed, match="rights that a ledger needs"):
            write(PostgresStore(as_role[0]), 2)
        write(PostgresStore(as_role[1]), 2)
        assert sequences(store) == [1, 2]
    finally:
        for name in names:
            server().sql(f"DROP OWNED BY {name}", f"DROP ROLE {name}")
