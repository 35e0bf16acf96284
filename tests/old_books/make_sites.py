"""Writes the old books of a coordinator and four sites into this folder, as :mod:`old_books.make` does for one machine.

One of three rounds is done. The plan draws two hospitals a round and protects records and clients under replace-one.

    git worktree add ../old MADE_BY
    PYTHONPATH=../old/src:../old/tests:tests python tests/old_books/make_sites.py
"""

from __future__ import annotations

import contextlib
import sqlite3
import sys
from pathlib import Path

from federation.world import HYBRID, World

MADE_BY = "74c3d71"
FOLDER = Path(__file__).parent / "sites"
TEXT = HYBRID.replace(
    "spare_attempts = 4", 'spare_attempts = 4\nminimum_parties = 1\nsampling = { kind = "fixed-size", size = 2 }'
).replace("[privacy]", '[privacy]\nneighbours = "replace-one"')


def main() -> None:
    if FOLDER.exists():
        sys.exit("the old books are there; they are made once")
    world = World(FOLDER, TEXT).join()
    world.round(1)
    world.ledger.close()
    for service in world.services.values():
        service.books.ledger.close()
    for path in FOLDER.rglob("*.db"):
        with contextlib.closing(sqlite3.connect(path)) as ledger:
            ledger.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    for path in (*FOLDER.rglob(".lock"), *FOLDER.rglob("*.db-*")):
        path.unlink()


if __name__ == "__main__":
    main()
