"""SQLite files that anybody may have written: what is looked at before anything in them is read.

A workspace may come from a stranger. A name such as ``ledger.db`` may then stand for a pipe, which blocks the process
that opens it for ever, and a table's name for a view, which is a program: one that counts without end is one line long.
So before a query, file and log must be plain files, and the tables ordinary tables whose values are stored and not
computed. A value may be as long as :data:`LONGEST` and no longer, also where the file says otherwise.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable
from pathlib import Path

__all__ = ["LONGEST", "for_reading", "harden", "odd_file", "odd_table"]

LONGEST = 1 << 28
"""Bytes of one value: many times the longest entry of a ledger, and a quarter of SQLite's own limit."""


def odd_file(path: Path) -> str:
    """What is no plain file at ``path`` or under the names that SQLite opens beside it; empty where all are."""
    for end in ("", "-wal", "-shm", "-journal"):
        name = path.with_name(path.name + end)
        if os.path.lexists(name) and not os.path.isfile(name):
            return f"{name.name} is no plain file"
    return ""


def harden(connection: sqlite3.Connection) -> None:
    """No function of the file's own schema is trusted, and no value is longer than :data:`LONGEST`."""
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LONGEST)
    connection.execute("PRAGMA trusted_schema = OFF")


def odd_table(connection: sqlite3.Connection, names: Iterable[str]) -> str:
    """Which of ``names`` is there and is no ordinary table, in words; empty where all are. No row is read."""
    for name in names:
        for kind in (row[2] for row in connection.execute(f"PRAGMA main.table_list({name})")):
            if kind != "table":
                return f"{name} is no table but a {kind}"
        if any(row[6] for row in connection.execute(f"PRAGMA main.table_xinfo({name})")):
            return f"{name} has columns that are computed"
    return ""


def for_reading(path: Path, tables: Iterable[str]) -> sqlite3.Connection:
    """A connection to a file that is only read; :class:`sqlite3.DatabaseError` where it is not what it should be."""
    problem = odd_file(path)
    if problem:
        raise sqlite3.DatabaseError(problem)
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
    try:
        harden(connection)
        problem = odd_table(connection, tables)
        if problem:
            raise sqlite3.DatabaseError(problem)
    except BaseException:
        connection.close()
        raise
    return connection
