"""Writes the books of coordinators and their sites, of before the source tree was rebuilt, into ``before_sites``.

Four hospitals with ledgers of their own answered one round of three: in ``plain`` records and clients are protected
and updates come one by one, in ``secure`` one sum is opened under masks. They were made once, as
:mod:`old_books.make_before_rooms` made the books of one machine, and by the same commit, over its carrier in memory:

    git worktree add ../before MADE_BY
    PYTHONPATH=../before/src:../before/tests:tests python tests/old_books/make_before_sites.py
"""

from __future__ import annotations

import contextlib
import sqlite3
import sys
from pathlib import Path

from federation.sites import places_for
from federation.world import HYBRID, UNIT, World
from quietsum.party.policy import Rules
from quietsum.plan import load_plan

FOLDER = Path(__file__).parent / "before_sites"
SECURE = """
[task]
name = "heart"
[federation]
rounds = 3
spare_attempts = 4
deadline = 20.0
[training]
sample_rate = 0.2
local_steps = 1
[privacy]
style = "sample"
record = { noise_multiplier = 3.0, delta = 1e-4, noise_at = "distributed" }
[aggregation]
secure = true
drop_outs = 0.25
"""
TEXTS = {"plain": HYBRID, "secure": SECURE}


def world(folder: Path, kind: str) -> World:
    """The coordinator and its sites over the books in ``folder``, if there are any, else over new ones."""
    if kind == "plain":
        return World(folder, HYBRID)
    rules = Rules(aggregation=("mean", "distributed-noise"))
    return World(folder, SECURE, places=places_for(load_plan(SECURE), folder, rules=rules, record=UNIT))


def main() -> None:
    if FOLDER.exists():
        sys.exit("the books are there; they are made once")
    for kind in TEXTS:
        made = world(FOLDER / kind, kind).join()
        made.round(1)
        assert not made.dropped
        made.ledger.close()
        for service in made.services.values():
            service.books.ledger.close()
    for path in FOLDER.rglob("*.db"):
        with contextlib.closing(sqlite3.connect(path)) as ledger:
            ledger.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    for path in (*FOLDER.rglob(".lock"), *FOLDER.rglob("*.db-*")):
        path.unlink()


if __name__ == "__main__":
    main()
