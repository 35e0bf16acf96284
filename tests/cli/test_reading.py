"""Commands that only look: they open the ledger once, for reading, without its key, wherever it lies."""

from __future__ import annotations

import json
import os
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from quietsum.errors import LedgerBroken
from quietsum.ledger import Ledger
from quietsum.ledger.chain.keys import key_path
from quietsum.ledger.stores.sqlite import SqliteStore
from quietsum.report import listing
from quietsum.runs import checkpoint as checkpoints
from quietsum.runs.folder import Workspace
from scenes import invoke, tiny_toml

TINY = tiny_toml(options='{ public = "made up for a test" }', rounds=2)
LOOKS = (
    ("runs",),
    ("runs", "--json"),
    ("show", "first"),
    ("compare", "first", "second"),
    ("ledger", "show"),
    ("ledger", "show", "--run", "first"),
    ("ledger", "verify"),
    ("ledger", "export", "out.jsonl"),
    ("plan", "run.toml"),
)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    (folder / "run.toml").write_text(TINY)
    for name in ("first", "second"):
        result = invoke("run", folder / "run.toml", "--name", name, "--workspace", folder / "quietsum-workspace")
        assert result.exit_code == 0, result.output
    return folder


@pytest.fixture
def workspace(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("QUIETSUM_WORKSPACE", raising=False)
    return tmp_path / "quietsum-workspace"


@pytest.fixture
def openings(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict[str, Any]]]:
    """With what each SQLite ledger was opened."""
    seen: list[dict[str, Any]] = []
    original = SqliteStore.__init__

    def opened(self: SqliteStore, path: Any, **options: Any) -> None:
        seen.append(options)
        original(self, path, **options)

    monkeypatch.setattr(SqliteStore, "__init__", opened)
    yield seen


@pytest.mark.parametrize("command", LOOKS, ids=" ".join)
def test_who_only_looks_opens_the_ledger_once_for_reading_and_without_its_key(
    workspace: Path, openings: list[dict[str, Any]], command: tuple[str, ...]
) -> None:
    key_path(workspace / "ledger.db").unlink()
    result = invoke(*command)
    assert result.exit_code == 0, result.output
    assert " is damaged" not in result.output and '"problem"' not in result.output
    assert len(openings) == 1 and openings[0]["read_only"] is True


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("command", LOOKS, ids=" ".join)
def test_on_read_only_media_a_ledger_with_its_log_is_read_whole(
    workspace: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    """A copy that was taken while somebody wrote: a log, and none of the shared memory that SQLite wants beside it."""
    copy = workspace.parent / "media"
    with Ledger.open(workspace / "ledger.db") as ledger:
        ledger.declare_public(party="x", dataset="y", reason="in the log alone")
        last = ledger.head.sequence
        shutil.copytree(workspace, copy)
    (copy / "ledger.db-shm").unlink()
    assert (copy / "ledger.db-wal").stat().st_size
    before = files(copy)
    real = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK and real(path, mode))
    result = invoke(*command, "--workspace", copy)
    assert result.exit_code == 0, result.output
    assert files(copy) == before
    with Ledger.open(copy / "ledger.db", read_only=True) as ledger:
        assert ledger.head.sequence == last


@pytest.mark.parametrize("command", LOOKS)
def test_who_only_looks_calls_no_server_because_a_file_says_so(
    workspace: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    pytest.importorskip("psycopg")
    for path in workspace.glob("ledger.db*"):
        path.unlink()
    with socket.create_server(("127.0.0.1", 0)) as ear:
        ear.settimeout(0)
        address = f"postgresql://ward@127.0.0.1:{ear.getsockname()[1]}/books?connect_timeout=2"
        (workspace / "ledger.db.url").write_text(address + "\n")
        result = invoke(*command)
        assert result.exit_code == 2 and "export QUIETSUM_LEDGER_URL=" in result.stderr, result.output
        with pytest.raises(BlockingIOError):
            ear.accept()
        if command == ("runs",):  # who says so is let through
            monkeypatch.setenv("QUIETSUM_LEDGER_URL", address)
            assert invoke(*command).exit_code == 1
            ear.accept()[0].close()


def test_a_listed_run_is_what_its_report_says_and_is_not_priced_anew(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = [listed_slowly(workspace, name, monkeypatch) for name in ("first", "second")]
    monkeypatch.setattr(listing, "look", None)  # the control above called it
    assert json.loads(invoke("runs", "--json").stdout)["runs"] == slow
    for values in slow:
        assert values["outcome"] == "finished" and values["round"] == 2 and values["metric"]


def listed_slowly(workspace: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    place = Workspace.at(workspace)
    with monkeypatch.context() as patch, Ledger.open(place.ledger, read_only=True) as ledger:
        patch.setattr(listing, "_borne_out", lambda *_: False)
        return listing.list_run(place.find(name), place, ledger)


def rewritten(workspace: Path, name: str, **values: Any) -> None:
    """Another header for a model: whoever has the folder can write one."""
    path = workspace / "runs" / name / "model.safetensors"
    params, about = checkpoints.read_model(path)
    checkpoints.save_model(path, params, {**about, **values})


def test_a_header_that_says_less_than_the_ledger_is_not_believed(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = listed_slowly(workspace, "first", monkeypatch)
    about = checkpoints.header_of(workspace / "runs" / "first" / "model.safetensors")
    changes: tuple[dict[str, Any], ...] = (
        {"guarantees": [{**one, "epsilon": one["epsilon"] / 2, "epsilon_lower": 0.0} for one in about["guarantees"]]},
        {"guarantees": [{**one, "delta": one["delta"] * 2} for one in about["guarantees"]]},
        {"guarantees": [{**one, "unit": "client"} for one in about["guarantees"]]},
        {"guarantees": []},
        {"guarantees": "none"},
        {"plan": "0" * 64},
    )
    for change in changes:
        rewritten(workspace, "first", **change)
        (found,) = (one for one in json.loads(invoke("runs", "--json").stdout)["runs"] if one["run"] == "first")
        assert found == right, change
        rewritten(workspace, "first", **about)


def test_a_listed_run_whose_head_is_not_in_the_ledger_is_exit_4(workspace: Path) -> None:
    ledger = workspace / "ledger.db"
    older = workspace.parent / "older.db"
    with Ledger.open(ledger, read_only=True) as known:
        assert known.head.sequence > 8
    other = workspace.parent / "other"
    shutil.copytree(workspace, other)
    for path in (*other.glob("ledger.db*"), *workspace.glob("ledger.db.snapshot")):
        if not path.name.endswith(".key"):
            path.unlink()
    older.unlink(missing_ok=True)
    cut(ledger)
    result = invoke("runs")
    assert result.exit_code == 4 and "does not contain the head" in result.stderr, result.output
    result = invoke("runs", "--workspace", other)
    assert result.exit_code == 4 and "is gone" in result.stderr, result.output


def cut(path: Path) -> None:
    """A rollback: the last three entries and the mark are gone."""
    import sqlite3

    connection = sqlite3.connect(path)
    triggers = connection.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'trigger'").fetchall()
    for name, _ in triggers:
        connection.execute(f"DROP TRIGGER {name}")
    connection.execute("DELETE FROM entries WHERE sequence > (SELECT MAX(sequence) - 3 FROM entries)")
    for _, sql in triggers:
        connection.execute(sql)
    connection.commit()
    connection.close()
    path.with_name(path.name + ".head").unlink()


def test_a_broken_ledger_is_the_trouble_of_the_whole_list(workspace: Path) -> None:
    with (workspace / "ledger.db").open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * 4096)
    for command in (("runs",), ("show", "first"), ("compare", "first", "second")):
        result = invoke(*command)
        assert result.exit_code == 4, result.output
    with pytest.raises(LedgerBroken):
        Ledger.open(workspace / "ledger.db", read_only=True)


def test_a_broken_ledger_hides_no_run_and_vouches_for_none(workspace: Path) -> None:
    (workspace / "ledger.db").write_bytes(b"\xff" * 8192)
    result = invoke("runs")
    assert result.exit_code == 4 and "error: " in result.stderr, result.output
    assert all(f"{name} was begun" in result.stdout for name in ("first", "second")), result.output
    assert "ε" not in result.stdout, result.output
    result = invoke("runs", "--json")
    values = json.loads(result.stdout)
    assert result.exit_code == 4 and values["runs"] == [] and "ledger" in values["ledger"], result.output


def test_a_list_with_a_damaged_run_or_another_ledger_ends_with_4_after_the_list(workspace: Path) -> None:
    (workspace / "runs" / "second" / "plan.toml").unlink()
    for command in (("runs",), ("runs", "--json")):
        result = invoke(*command)
        assert result.exit_code == 4 and "finished" in result.stdout and "is gone" in result.stdout, result.output
    for path in workspace.glob("ledger.db*"):
        path.unlink()
    other = workspace.parent / "other"
    other.mkdir()
    Ledger.open(other / "ledger.db", create=True).close()
    for path in other.glob("ledger.db*"):
        path.rename(workspace / path.name)
    result = invoke("runs")
    assert result.exit_code == 4 and "first is damaged" in result.stdout, result.output
