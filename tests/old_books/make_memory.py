"""Writes books of before the rebuild whose checkpoints hold more than a model: what a server remembers between rounds.

Two runs were stopped midway, one with Adam at the server and one whose clip follows the updates' norms. They were made
once, as :mod:`old_books.make_before_rooms` made the others, and by the same commit:

    git worktree add ../before MADE_BY
    PYTHONPATH=../before/src:tests python -m old_books.make_memory
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import sys
import tempfile
from pathlib import Path

from old_books.make_before_rooms import RECORDS, stopped

FOLDER = Path(__file__).parent / "memory"
ADAM = RECORDS.format(
    rounds=12, spare=0, more="",
    aggregation='rule = "mean"\noptimizer = { kind = "fedadam", learning_rate = 0.1 }',
)  # fmt: skip
ADAPTIVE = """\
[task]
name = "digits"

[federation]
rounds = 12
split = "iid"
parties = 40

[training]
sample_rate = 0.5
local_steps = 1
optimizer = { kind = "sgd", learning_rate = 0.5 }

[privacy]
style = "user"
client = { epsilon = 8.0, delta = 0.01, max_norm = 0.5, adaptive = { quantile = 0.5 } }
"""


def main() -> None:
    if FOLDER.exists():
        sys.exit("the books are there; they are made once")
    for name in ("QUIETSUM_WORKSPACE", "QUIETSUM_DATA"):
        os.environ.pop(name, None)
    with tempfile.TemporaryDirectory() as made, contextlib.chdir(made):
        Path("workspace").mkdir()
        for name, text in (("adam", ADAM), ("adaptive", ADAPTIVE)):
            Path(f"{name}.toml").write_text(text)
            stopped(f"{name}.toml", name)
        for path in Path().rglob("*.db"):
            with contextlib.closing(sqlite3.connect(path)) as books:
                books.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        for path in (*Path().rglob(".lock"), *Path().rglob("*.db-*")):
            path.unlink()
        shutil.copytree(made, FOLDER)


if __name__ == "__main__":
    main()
