"""Nothing optional stands between a reservation and its release: what is for people may fail and costs no charge."""

from __future__ import annotations

import errno
import io
import logging
import os
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from quietsum.federation.watch import RunEvent, guard
from quietsum.files import DiskFull, check_room
from quietsum.ledger import Ledger
from quietsum.ledger.history import RunHistory
from quietsum.runs import progress, record
from quietsum.runs.folder import Workspace
from quietsum.runs.run import start
from scenes import invoke
from tiny import TinyTask, tiny_plan

RUN = Path("quietsum-workspace/runs/run")


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("QUIETSUM_WORKSPACE", raising=False)
    Path("run.toml").write_text(tiny_plan().to_toml(), encoding="utf-8")


def paid(place: Path = Path("quietsum-workspace"), run: str = "run") -> dict[str, int]:
    with Ledger.open(place / "ledger.db", read_only=True) as ledger:
        ledger.verify()
        found = RunHistory(ledger, run).read().paid
    return {party: sum(events.values()) for (party, _), events in found.items()}


@pytest.mark.parametrize("kind", ["run-started", "round-started", "round-finished", "run-finished"])
@pytest.mark.parametrize(
    "error", [sqlite3.OperationalError("database or disk is full"), OSError(28, "full"), ValueError("x")]
)
def test_a_watcher_that_fails_is_a_warning_once_and_costs_nothing(
    kind: str, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    class Failing:
        def saw(self, event: RunEvent) -> None:
            if event.kind == kind:
                raise error

    class Seeing:
        def __init__(self) -> None:
            self.kinds: list[str] = []

        def saw(self, event: RunEvent) -> None:
            self.kinds.append(event.kind)

    seeing = Seeing()
    with caplog.at_level(logging.WARNING):
        result = start(tiny_plan(), workspace=Workspace.at(), name="run", task=TinyTask(), watchers=[Failing(), seeing])
    assert result.outcome == "finished" and paid() == {"north": 3, "south": 3}
    assert [one.getMessage() for one in caplog.records].count(f"Failing sees nothing more of this run: {error}") == 1
    assert seeing.kinds.count("round-finished") == 3  # the others go on seeing


def test_whoever_breaks_a_run_off_gets_through_a_guard() -> None:
    class Person:
        def saw(self, event: RunEvent) -> None:
            raise KeyboardInterrupt

    (watcher,) = guard([Person()])
    with pytest.raises(KeyboardInterrupt):
        watcher.saw(None)  # type: ignore[arg-type]


@pytest.mark.parametrize("full_at", range(1, 12))
@pytest.mark.some(5)
def test_a_run_db_that_cannot_be_written_costs_no_charge(monkeypatch: pytest.MonkeyPatch, full_at: int) -> None:
    honest, count = record.Recorder._put, 0

    def put(self: Any, statement: str, *values: object) -> None:
        nonlocal count
        count += 1
        if count >= full_at:
            raise self._no_room(sqlite3.OperationalError("database or disk is full"))
        honest(self, statement, *values)

    monkeypatch.setattr(record.Recorder, "_put", put)
    result = invoke("run", "run.toml", "--name", "run")
    assert result.exit_code == 0, result.output
    assert paid() == {"north": 3, "south": 3} and (RUN / "report.json").is_file()
    assert count <= full_at + 1  # it is left alone afterwards, by what records and by what alerts, each once refused


def test_events_that_find_no_room_cost_no_charge(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = progress.EventLines.saw

    def saw(self: Any, event: RunEvent) -> None:
        if self._own and event.kind == "round-started":
            raise OSError(28, os.strerror(28))
        honest(self, event)

    monkeypatch.setattr(progress.EventLines, "saw", saw)
    result = invoke("run", "run.toml", "--name", "run")
    assert result.exit_code == 0 and paid() == {"north": 3, "south": 3}


def test_a_reader_that_leaves_ends_the_run_between_two_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    def saw(self: Any, event: RunEvent) -> None:
        if not self._own and event.kind == "round-started":
            raise BrokenPipeError

    with monkeypatch.context() as patch:
        patch.setattr(progress.EventLines, "saw", saw)
        result = invoke("run", "run.toml", "--name", "run", "--json")
    assert result.exit_code == 141, result.output
    assert paid() == {"north": 1, "south": 1}
    assert invoke("run", "--resume", "run").exit_code == 0
    assert paid() == {"north": 3, "south": 3}  # the round under way was finished and kept


def test_a_damaged_run_db_is_a_warning_and_the_run_goes_on() -> None:
    assert invoke("run", "run.toml", "--name", "run").exit_code == 0
    for name in ("model.safetensors", "report.json", "report.html"):
        (RUN / name).unlink()
    (RUN / "run.db").write_bytes(b"SQLite format 3\x00 and then nothing")
    result = invoke("run", "--resume", "run")
    assert (
        result.exit_code == 0 and "run.db" in result.stderr and "goes on without it" in " ".join(result.stderr.split())
    )


# -------------------------------------------------------------------------------- a disk that is really full


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=40k", "tmpfs", str(place)], capture_output=True)
    if done.returncode:
        pytest.skip("no file system can be mounted here")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def resize(place: Path, size: str) -> None:
    subprocess.run(["mount", "-o", f"remount,size={size}", str(place)], check=True)


def test_no_room_is_told_before_anything_is_reserved(tiny_disk: Path) -> None:
    check_room(tiny_disk, 20_000)
    with pytest.raises(DiskFull, match="the disk is full"):
        check_room(tiny_disk, 200_000)
    assert list(tiny_disk.iterdir()) == []


@pytest.mark.parametrize("size", [*range(40, 320, 20)])
@pytest.mark.some(8)
def test_on_a_full_disk_a_run_ends_with_1_and_has_all_its_rounds_once_there_is_room(tiny_disk: Path, size: int) -> None:
    # The plan has no spare attempt: one charge for nothing, and its last round would not fit the budget.
    resize(tiny_disk, f"{size}k")
    place = tiny_disk / "ws"
    first = invoke("run", "run.toml", "--workspace", place, "--name", "run")
    assert first.exit_code in (0, 1), first.output
    assert first.exception is None or isinstance(first.exception, SystemExit), repr(first.exception)
    if first.exit_code:
        told = " ".join(first.stderr.split())
        assert "disk" in told and ("full" in told or "took no more" in told), told
    resize(tiny_disk, "20m")
    if first.exit_code and (place / "runs" / "run").exists():
        again = invoke("run", "--resume", "run", "--workspace", place)
    elif first.exit_code:
        again = invoke("run", "run.toml", "--workspace", place, "--name", "run")
    else:
        again = first
    assert again.exit_code == 0, again.output
    assert paid(place) == {"north": 3, "south": 3}


# ------------------------------------------------------------------------------ a disk that cannot be read now


@pytest.mark.parametrize("name", ["plan.toml", "ledger.db.url"])
def test_a_file_that_cannot_be_read_now_is_trouble_that_may_pass(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    assert invoke("run", "run.toml", "--name", "run").exit_code == 0

    def failing(honest: Callable[..., Any]) -> Callable[..., Any]:
        def opened(path: Any, *given: Any, **more: Any) -> Any:
            if str(path).endswith(name):
                raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
            return honest(path, *given, **more)

        return opened

    with monkeypatch.context() as patch:
        for module in (io, os):
            patch.setattr(module, "open", failing(module.open))
        refused = invoke("run", "--resume", "run")
    assert refused.exit_code == 1 and name in refused.stderr, refused.output
    assert invoke("run", "--resume", "run").exit_code == 0


@pytest.mark.parametrize("spoil", [b"[", b"\xff", b"rounds = 2\n", b""])
def test_a_frozen_plan_that_is_damaged_is_exit_4(spoil: bytes) -> None:
    assert invoke("run", "run.toml", "--name", "run").exit_code == 0
    path = RUN / "plan.toml"
    path.write_bytes(spoil + (path.read_bytes() if spoil else b""))
    for words in (("run", "--resume", "run"), ("show", "run")):
        refused = invoke(*words)
        assert refused.exit_code == 4 and "restore it" in refused.stderr, refused.output
