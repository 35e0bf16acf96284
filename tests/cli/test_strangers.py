"""A workspace that a stranger made to hold or fill whoever looks at it: every look ends, and says what is wrong."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import pytest

from quietsum.errors import LedgerBroken
from quietsum.ledger import Ledger
from quietsum.ledger.chain.high_water_mark import Mark, mark_path
from quietsum.runs.record import scores_after
from scenes import invoke
from tiny import tiny_plan

LOOKS = (("runs",), ("show", "first"), ("ledger", "show"), ("ledger", "verify"))
ENDLESS = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n)"
FILES = (
    "ledger.db", "ledger.db-journal", "ledger.db-wal", "ledger.db.head", "ledger.db.snapshot", "ledger.db.url",
    "runs/first/run.json", "runs/first/plan.toml", "runs/first/task.json", "runs/first/run.db", "runs/first/.lock",
    "runs/first/report.json", "runs/first/model.safetensors", "runs/first/checkpoints/round-000003.safetensors",
    "training/other/checkpoint.safetensors",
)  # fmt: skip


@pytest.fixture(autouse=True)
def nobody_waits_for_ever() -> Iterator[None]:
    """Only to tell a test that hangs from one that does not; no outcome depends on how long it takes."""

    def late(number: int, frame: FrameType | None) -> None:
        raise TimeoutError("a look at a file never ended")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(120)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    (folder / "run.toml").write_text(tiny_plan().to_toml())
    result = invoke("run", folder / "run.toml", "--name", "first", "--workspace", folder / "ws")
    assert result.exit_code == 0, result.output
    return folder / "ws"


@pytest.fixture
def place(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made, tmp_path / "ws")
    return tmp_path / "ws"


def pipe(path: Path) -> None:
    os.mkfifo(path)


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def loop(path: Path) -> None:
    path.symlink_to(path.name)


def deep(path: Path) -> None:
    path.write_bytes(b"[" * 200_000)


def huge(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(5 << 30)  # takes no room: it is a hole


@pytest.mark.parametrize("kind", [pipe, device, loop, deep, huge], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("name", FILES)
@pytest.mark.some(20)
def test_a_pipe_a_device_or_a_hole_in_place_of_a_file_holds_nobody(
    place: Path, name: str, kind: Callable[[Path], None]
) -> None:
    path = place / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    kind(path)
    for command in LOOKS:
        result = invoke(*command, "--workspace", place)
        left = name == "ledger.db-journal" and "in the middle of a write" in result.stderr
        assert result.exit_code in (0, 1 if left else 0, 2, 4), (command, name, result.output)


@pytest.mark.parametrize(
    "spoil",
    [
        f"CREATE VIEW entries AS {ENDLESS} SELECT x AS sequence, '' AS kind, '' AS time, '' AS body, '' AS previous, "
        "'' AS hash, '' AS signature FROM n",
        "CREATE TABLE entries (sequence INTEGER PRIMARY KEY, kind, time, previous, hash, signature, "
        "body AS (printf('%.*c', 900000000, 'x')))",
    ],
)
def test_a_ledger_whose_table_is_a_program_is_not_run(place: Path, spoil: str) -> None:
    database = sqlite3.connect(place / "ledger.db")
    database.execute("ALTER TABLE entries RENAME TO others")
    database.execute(spoil)
    database.commit()
    database.close()
    for command in LOOKS:
        result = invoke(*command, "--workspace", place)
        assert result.exit_code == 4 and "is not what quietsum made" in result.stderr, result.output
    with pytest.raises(LedgerBroken, match="not what quietsum made"):
        Ledger.open(place / "ledger.db")


def test_an_entry_that_would_fill_the_memory_is_not_read(place: Path) -> None:
    (place / "ledger.db.snapshot").unlink(missing_ok=True)
    database = sqlite3.connect(place / "ledger.db")
    for (name,) in database.execute("SELECT name FROM sqlite_schema WHERE type = 'trigger'").fetchall():
        database.execute(f"DROP TRIGGER {name}")
    database.execute("UPDATE entries SET body = CAST(zeroblob(300000000) AS TEXT) WHERE sequence = 2")
    database.commit()
    database.close()
    result = invoke("ledger", "verify", "--workspace", place)
    assert result.exit_code == 4 and "entry 2" in result.stderr and "too big" in result.stderr, result.output


def test_a_record_of_rounds_that_is_a_program_is_not_run(place: Path) -> None:
    path = place / "runs" / "first" / "run.db"
    database = sqlite3.connect(path)
    database.execute("DROP TABLE measured")
    database.execute(f"CREATE VIEW measured AS {ENDLESS} SELECT x AS round, 'x' AS scores FROM n WHERE x < 0")
    database.commit()
    database.close()
    with pytest.raises(Exception, match="measured is no table but a view"):
        scores_after(path, 1)


def test_a_workspace_may_lie_in_a_folder_with_any_name(made: Path, tmp_path: Path) -> None:
    place = tmp_path / "50% of #1?mode=rwc"
    shutil.copytree(made, place)
    assert (
        scores_after(place / "runs" / "first" / "run.db", 3)
        == scores_after(made / "runs" / "first" / "run.db", 3)
        != []
    )
    for command in LOOKS:
        result = invoke(*command, "--workspace", place)
        assert result.exit_code == 0, result.output


def test_a_mark_that_is_a_link_writes_to_no_other_file(place: Path, tmp_path: Path) -> None:
    other = tmp_path / "letters"
    other.write_text("mine")
    with Ledger.open(place / "ledger.db", read_only=True) as ledger:
        head = ledger.head
    mark_path(place / "ledger.db").unlink()
    mark_path(place / "ledger.db").symlink_to(other)
    Mark(place / "ledger.db").advance(head)
    assert other.read_text() == "mine"


def test_the_control_an_honest_workspace_is_shown(place: Path) -> None:
    for command in LOOKS:
        assert invoke(*command, "--workspace", place).exit_code == 0
    assert json.loads(invoke("runs", "--json", "--workspace", place).stdout)["damaged"] == []
