"""The tables of a shared ledger, and the triggers that keep them append-only.

The same columns as in SQLite. Triggers refuse UPDATE, DELETE, TRUNCATE and any row that does not follow the last one,
and make whoever inserts, quietsum or not, wait for its turn. They stop accidents; the hash chain finds intent. A row
``moved`` in ``about`` closes the ledger for good: it goes on elsewhere.
"""

from __future__ import annotations

from typing import Any, Protocol

from quietsum.errors import LedgerBroken
from quietsum.ledger.stores.protocol import NoLedger, StoreFailed

__all__ = ["APPLICATION", "GUARDS", "TABLES", "VERSION", "check_tables", "make_tables", "tables_in"]

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


class Run(Protocol):
    """A statement and its values, on an open connection."""

    def __call__(self, statement: str, values: tuple[Any, ...] | None = None, /) -> Any:
        """A cursor with what was found."""
        ...


def tables_in(run: Run, schema: str) -> dict[str, str]:
    """Names and persistence of what a schema holds; nothing where there is no such schema."""
    return dict(
        run(
            "SELECT relname::text, relpersistence::text FROM pg_class WHERE relkind IN ('r', 'p', 'v', 'm', 'f') "
            "AND relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = %s)",
            (schema,),
        ).fetchall()
    )


def make_tables(run: Run, schema: str) -> None:
    """An empty ledger, inside the caller's transaction; ``schema`` is a name that needs no quotes."""
    if run("SELECT 1 FROM pg_namespace WHERE nspname = %s", (schema,)).fetchone() is None:
        run(f"CREATE SCHEMA {schema}")
    for statement in _STATEMENTS:
        run(statement.format(schema=schema))
    run(f"INSERT INTO {schema}.about VALUES ('application', '{APPLICATION}'), ('version', '{VERSION}')")


def check_tables(run: Run, schema: str, name: str, *, read_only: bool) -> None:
    """Refuse what is no ledger, is a ledger of another format, or is one that a crash would empty."""
    known = tables_in(run, schema)
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
