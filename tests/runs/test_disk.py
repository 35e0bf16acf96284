"""A disk that fills up, at each write of a run: a clear error, the last checkpoint untouched, and the run goes on.

The failures are made where Python writes: writing, syncing and renaming a file. SQLite's own writes are made to fail in
ledger/test_storage.py.
"""

from __future__ import annotations

import dataclasses
import errno
import io
import os
import pathlib
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import Result

from quietsum.files import NoRoom, write_atomically
from quietsum.ledger import Ledger
from quietsum.ledger.history import RunHistory
from quietsum.party import site_task
from quietsum.plan import load_plan
from quietsum.runs import checkpoint as checkpoints, progress
from quietsum.runs.checkpoint import RunCheckpoint
from quietsum.runs.folder import Workspace
from quietsum.runs.run import start
from quietsum.tasks import task_named
from scenes import invoke, tiny_toml
from tiny import look_unnoted, touches

TINY = tiny_toml(
    options='{ diary = "diary" }', federation="spare_attempts = 1", record="{ noise_multiplier = 3.0, delta = 1e-3 }"
)
RUN = Path("quietsum-workspace/runs/run")


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("QUIETSUM_WORKSPACE", raising=False)
    Path("run.toml").write_text(TINY, encoding="utf-8")


def words(text: str) -> str:
    return " ".join(text.split())


def steps_paid() -> dict[str, int]:
    with Ledger.open("quietsum-workspace/ledger.db") as ledger:
        ledger.verify()
        if "run" not in {run.run for run in ledger.runs()}:
            return {}
        paid = RunHistory(ledger, "run").read().paid
    return {party: sum(events.values()) for (party, _), events in paid.items()}


class Disk:
    """Counts the acts of one kind and fails at the ``full_at``-th of them."""

    def __init__(self, full_at: int = 0) -> None:
        self.full_at, self.acts = full_at, 0

    def act(self) -> None:
        self.acts += 1
        if self.acts == self.full_at:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def syncing(patch: pytest.MonkeyPatch, disk: Disk) -> None:
    honest = os.fsync

    def fsync(handle: int) -> None:
        disk.act()
        honest(handle)

    patch.setattr(os, "fsync", fsync)


def renaming(patch: pytest.MonkeyPatch, disk: Disk) -> None:
    honest = os.replace

    def replace(old: Any, new: Any) -> None:
        disk.act()
        honest(old, new)

    patch.setattr(os, "replace", replace)


def writing(patch: pytest.MonkeyPatch, disk: Disk) -> None:
    """Files that are written as a whole: what has a neighbour that ends in ``.part``."""
    honest = pathlib.Path.open

    class Full(io.BufferedWriter):
        def write(self, content: Any) -> int:
            disk.act()
            return super().write(content)

    def open_(self: Path, mode: str = "r", *more: Any, **options: Any) -> Any:
        if mode == "wb" and self.name.endswith(".part"):
            return Full(io.FileIO(self, "w"))
        return honest(self, mode, *more, **options)

    patch.setattr(pathlib.Path, "open", open_)


WAYS: tuple[Callable[[pytest.MonkeyPatch, Disk], None], ...] = (syncing, renaming, writing)


def on_disk(way: Callable[[pytest.MonkeyPatch, Disk], None], full_at: int, *command: str) -> tuple[Result, Disk]:
    disk = Disk(full_at)
    with pytest.MonkeyPatch.context() as patch:
        way(patch, disk)
        return invoke(*command), disk


@dataclasses.dataclass
class Story:
    """One run whose ``full_at``-th act found the disk full, and what became of it."""

    full_at: int
    first: Result
    leftovers: list[str]
    verified: bool
    again: Result
    paid: dict[str, int]
    touched: dict[str, int]
    files: set[str]

    def __repr__(self) -> str:
        return f"{self.full_at}: {self.first.exception!r} {words(self.first.stderr)}"


@pytest.fixture(scope="module", params=WAYS, ids=lambda way: way.__name__)
def stories(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Story]:
    """A run for each act of this kind that a run consists of."""
    found: list[Story] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(site_task, "read_records", site_task.read_records)  # as it was, afterwards
        look_unnoted()
        patch.delenv("QUIETSUM_WORKSPACE", raising=False)
        patch.chdir(tmp_path_factory.mktemp("quiet"))
        Path("run.toml").write_text(TINY, encoding="utf-8")
        quiet, disk = on_disk(request.param, 0, "run", "run.toml", "--name", "run")
        assert quiet.exit_code == 0 and disk.acts >= 9  # plan, run.json, four checkpoints, model, two reports
        for full_at in range(1, disk.acts + 1):
            patch.chdir(tmp_path_factory.mktemp("full"))
            Path("run.toml").write_text(TINY, encoding="utf-8")
            first, _ = on_disk(request.param, full_at, "run", "run.toml", "--name", "run")
            leftovers = sorted(str(path) for path in Path("quietsum-workspace").rglob("*.part"))
            for name in leftovers:  # a draft is named by its process, and the next one is another process
                shutil.rmtree(name) if Path(name).is_dir() else Path(name).unlink()
            if RUN.exists():
                checkpoints.latest_checkpoint(RUN / "checkpoints")  # none, or one that is whole
                again = invoke("run", "--resume", "run")
            else:  # nothing but an entry in the ledger, which costs nothing
                again = invoke("run", "run.toml", "--name", "run")
            with Ledger.open("quietsum-workspace/ledger.db") as ledger:
                verified = ledger.verify().entries >= 1
            files = {path.name for path in RUN.iterdir()} if RUN.exists() else set()
            found.append(Story(full_at, first, leftovers, verified, again, steps_paid(), touches(Path("diary")), files))
    return found


@pytest.mark.long
@pytest.mark.some(1)
def test_a_full_disk_at_any_write_is_told_in_words(stories: list[Story]) -> None:
    # Also where the ledger's key gets its name: the first file that is renamed in a workspace.
    for story in stories:
        assert story.first.exception is None or isinstance(story.first.exception, SystemExit), story
        if story.first.exit_code:  # the folder of a new ledger is synced where the system can
            assert story.first.exit_code == 1, story
            assert "disk is full" in story.first.stderr or "No space left" in story.first.stderr, story
    assert sum(story.first.exit_code == 1 for story in stories) >= 9


@pytest.mark.some(1)
def test_a_full_disk_leaves_nothing_half_written(stories: list[Story]) -> None:
    # A run folder is there as a whole or not at all, so its draft must go when the plan finds no room in it.
    assert [story.leftovers for story in stories if story.leftovers] == []


@pytest.mark.some(1)
def test_after_a_full_disk_the_run_goes_on_and_costs_one_more_attempt_at_most(stories: list[Story]) -> None:
    for story in stories:
        assert story.verified
        assert story.again.exit_code == 0, (story, story.again.output)
        assert {"report.html", "report.json", "model.safetensors"} <= story.files
        for party in ("north", "south"):
            assert 3 <= story.touched[party] <= story.paid[party] <= 4, story
    assert any(story.paid["north"] == 4 for story in stories)  # the control: some of them did cost one more


def test_what_was_there_before_a_failed_write_is_untouched() -> None:
    path = Path("file")
    path.write_bytes(b"old")
    for way in WAYS:
        with pytest.MonkeyPatch.context() as patch:
            way(patch, Disk(1))
            with pytest.raises(NoRoom, match="the disk is full"):
                write_atomically(path, b"new")
        assert path.read_bytes() == b"old"
        assert sorted(one.name for one in Path().iterdir()) == ["file", "run.toml"]
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"


def test_a_failed_checkpoint_leaves_the_one_before_it_and_costs_one_more_attempt() -> None:
    full: dict[str, RunCheckpoint | None] = {}
    honest = write_atomically

    def no_room(path: Path, content: bytes) -> None:
        if path.name == "round-000002.safetensors":
            full["round 1"] = checkpoints.latest_checkpoint(path.parent)
            raise NoRoom(f"{path} could not be written: the disk is full")
        honest(path, content)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoints, "write_atomically", no_room)
        result = invoke("run", "run.toml", "--name", "run")
    assert result.exit_code == 2 and "the disk is full" in result.stderr
    kept = checkpoints.latest_checkpoint(RUN / "checkpoints")
    assert kept is not None and kept.round == 1
    before = full["round 1"]
    assert before is not None
    np.testing.assert_array_equal(kept.state.params, before.state.params)
    assert steps_paid() == {"north": 2, "south": 2}
    assert invoke("run", "--resume", "run").exit_code == 0
    assert steps_paid() == {"north": 4, "south": 4}  # an unbroken run pays for three


def test_a_report_that_found_no_room_is_written_by_resuming_and_costs_nothing() -> None:
    def no_room(path: Path, content: bytes) -> None:
        raise NoRoom(f"{path} could not be written: the disk is full")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys.modules["quietsum.report.contents"], "write_atomically", no_room)
        result = invoke("run", "run.toml", "--name", "run")
    assert result.exit_code == 2 and "report.json" in result.stderr
    assert (RUN / "model.safetensors").is_file() and not (RUN / "report.json").exists()
    paid = steps_paid()
    assert invoke("run", "--resume", "run").exit_code == 0
    assert steps_paid() == paid == {"north": 3, "south": 3}
    assert (RUN / "report.json").is_file()


def test_events_that_find_no_room_end_in_a_clear_error_and_the_run_goes_on_later() -> None:
    # events.jsonl is for the operator. A full disk there must not end in a traceback.
    honest = progress.EventLines.saw

    def no_room(self: Any, event: Any) -> None:
        if self._own and event.kind == "round-finished" and event.round == 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        honest(self, event)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(progress.EventLines, "saw", no_room)
        result = invoke("run", "run.toml", "--name", "run")
    assert result.exception is None or isinstance(result.exception, SystemExit), repr(result.exception)
    assert result.exit_code in (0, 1) and "Traceback" not in result.output
    assert invoke("run", "--resume", "run").exit_code == 0
    assert max(steps_paid().values()) <= 4


# ------------------------------------------------------------------- files that nothing needs, garbled


def stopped() -> None:
    class Stop:
        def saw(self, event: Any) -> None:
            if event.kind == "round-finished" and event.round == 1:
                raise KeyboardInterrupt

    plan = load_plan(TINY)
    task = task_named(plan.task.name, plan.task.options)
    with pytest.raises(KeyboardInterrupt):
        start(plan, workspace=Workspace.at(), name="run", task=task, watchers=[Stop()])


@pytest.mark.parametrize("content", [b"", b"SQLite format 3\x00 and then nothing", b"nonsense" * 500])
@pytest.mark.parametrize("name", ["run.db", "events.jsonl", "report.json", "model.safetensors"])
def test_a_garbled_file_that_nothing_needs_is_replaced_or_the_error_says_what_to_do(name: str, content: bytes) -> None:
    stopped()
    (RUN / name).write_bytes(content)
    result = invoke("run", "--resume", "run")
    if result.exit_code:
        told = words(result.stderr)
        assert result.exit_code == 4 and ("move it away" in told or "delete it" in told), result.output
        assert steps_paid() == {"north": 1, "south": 1}  # nothing was asked of anybody
        (RUN / name).unlink()
        result = invoke("run", "--resume", "run")
    assert result.exit_code == 0, result.output
    assert steps_paid() == {"north": 3, "south": 3}


@pytest.mark.parametrize("name", ["run.db", "events.jsonl", ".lock"])
def test_a_run_goes_on_without_the_files_that_nothing_needs(name: str) -> None:
    stopped()
    (RUN / name).unlink(missing_ok=True)
    result = invoke("run", "--resume", "run")
    assert result.exit_code == 0, result.output
    assert steps_paid() == {"north": 3, "south": 3}


def test_a_folder_in_the_place_of_a_file_is_a_clear_error() -> None:
    # As with run.db: an error that names the file, no traceback.
    stopped()
    (RUN / "events.jsonl").unlink(missing_ok=True)
    (RUN / "events.jsonl").mkdir()
    result = invoke("run", "--resume", "run")
    assert result.exception is None or isinstance(result.exception, SystemExit), repr(result.exception)
    assert result.exit_code == 2 and "events.jsonl" in result.stderr


def test_without_its_folder_of_checkpoints_a_run_is_refused_before_it_is_charged() -> None:
    # Otherwise a round is reserved, run and thrown away each time somebody tries to go on.
    stopped()
    for path in (RUN / "checkpoints").iterdir():
        path.unlink()
    (RUN / "checkpoints").rmdir()
    paid = steps_paid()
    result = invoke("run", "--resume", "run")
    assert result.exit_code == 0 or steps_paid() == paid, result.output
