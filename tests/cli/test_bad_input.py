"""Whatever is wrong with a plan, a task, a workspace or a run: a lesson, a stable exit code, nothing half-written."""

from __future__ import annotations

import datetime
import json
import os
import shutil
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from quietsum.errors import DataMissing
from quietsum.ledger import Ledger
from quietsum.plan import load_plan
from quietsum.runs.folder import Workspace
from quietsum.runs.run import start
from quietsum.tasks import Rows, task_named
from scenes import invoke, tiny_toml
from tiny import TinyTask, touches

TINY = tiny_toml(options='{ diary = "diary" }', federation="spare_attempts = 1")


pytestmark = pytest.mark.usefixtures("empty_folder")


def listing() -> dict[str, bytes]:
    """Every file below this folder with its content, SQLite's shared memory and the log of alerts left aside."""
    aside = (".db-shm", ".db-wal", "alerts.log", "alerts.log.head")  # a ledger out of order is an alert
    paths = (path for path in Path().rglob("*") if path.is_file() and not path.name.endswith(aside))
    return {str(path): path.read_bytes() for path in sorted(paths)}


def words(text: str) -> str:
    return " ".join(text.split())


def refused(result: Result, code: int, told: str) -> None:
    """It ended with this code and this lesson, and without a traceback."""
    assert result.exception is None or isinstance(result.exception, SystemExit), repr(result.exception)
    assert result.exit_code == code, result.output
    assert told in words(result.stderr), result.stderr
    assert "Traceback" not in result.output


def plan_with(**changes: str) -> str:
    """The good plan with texts replaced; the marker must be there, or the case tests nothing."""
    text = TINY
    for old, new in changes.items():
        found = {"rounds": "rounds = 3", "epsilon": "epsilon = 2.0", "delta": "delta = 1e-3", "rate": "0.5",
                 "task": '"tiny:TinyTask"', "spare": "spare_attempts = 1", "steps": "local_steps = 1"}[old]  # fmt: skip
        assert found in text
        text = text.replace(found, new)
    return text


BAD_PLANS: dict[str, tuple[str | bytes, str]] = {
    "no TOML": ("[federation\nrounds = 3\n", "is not valid TOML"),
    "two equal keys": (plan_with(rounds="rounds = 3\nrounds = 4"), "is not valid TOML"),
    "an unknown key": (plan_with(rounds="round = 3"), "did you mean federation.rounds?"),
    "an unknown table": (TINY.replace("[federation]", "[federations]"), "did you mean federation?"),
    "an unknown task": (plan_with(task='"hart"'), 'did you mean "heart"?'),
    "a task that cannot be imported": (plan_with(task='"no_such_module:Task"'), "cannot be imported"),
    "a task that lacks everything": (plan_with(task='"tiny:Path"'), "it lacks"),
    "an option that the task does not know": (TINY.replace("diary =", "dairy ="), "dairy"),
    "epsilon is no number": (plan_with(epsilon="epsilon = nan"), "is not a finite number"),
    "epsilon is infinite": (plan_with(epsilon="epsilon = inf"), "is not a finite number"),
    "epsilon is negative": (plan_with(epsilon="epsilon = -2.0"), "must be greater than 0"),
    "epsilon is zero": (plan_with(epsilon="epsilon = 0.0"), "must be greater than 0"),
    "epsilon is a text": (plan_with(epsilon='epsilon = "two"'), "is not a number"),
    "epsilon is a truth value": (plan_with(epsilon="epsilon = true"), "is not a number"),
    "delta is one": (plan_with(delta="delta = 1.0"), "must be below 1"),
    "delta is zero": (plan_with(delta="delta = 0.0"), "must be greater than 0"),
    "delta is larger than one in n": (plan_with(delta="delta = 0.2"), "privacy.record.delta"),
    "delta is missing": (plan_with(epsilon="epsilon = 2.0 }\n#"), "delta"),
    "rounds are a fraction": (plan_with(rounds="rounds = 2.5"), "is not a whole number"),
    "rounds are zero": (plan_with(rounds="rounds = 0"), "federation.rounds"),
    "rounds are negative": (plan_with(rounds="rounds = -3"), "federation.rounds"),
    "rounds without end": (plan_with(rounds="rounds = 10000000000"), "federation.rounds"),
    "a rate above one": (plan_with(rate="1.5"), "training.sample_rate"),
    "a rate of zero": (plan_with(rate="0.0"), "training.sample_rate"),
    "a negative deadline": (plan_with(rounds="rounds = 3\ndeadline = -1.0"), "federation.deadline"),
    "both a noise and a target": (plan_with(epsilon="epsilon = 2.0, noise_multiplier = 1.0"), "noise_multiplier = 1"),
    "both a preset and a target": (TINY + 'preset = "performance"\n', "privacy.preset = 'performance'"),
    "an unknown preset": (TINY.replace("record = { epsilon = 2.0, delta = 1e-3 }", 'preset = "best"'), "preset"),
    "both a batch and a rate": (plan_with(rate="0.5\nbatch_size = 4"), "batch_size"),
    "both epochs and steps": (plan_with(steps="local_steps = 1\nlocal_epochs = 1"), "local_epochs"),
    "a batch larger than a site": (plan_with(rate="0.5").replace("sample_rate = 0.5", "batch_size = 9"), "'south' (8)"),
    "the same party twice": (plan_with(rounds='rounds = 3\nparties = ["north", "north"]'), "more than once"),
    "an unknown party": (plan_with(rounds='rounds = 3\nparties = ["nort"]'), "did you mean 'north'?"),
    "an unknown refusing party": (plan_with(rounds='rounds = 3\nsimulate = { refusing = ["suoth"] }'), "suoth"),
    "more parties needed than there are": (plan_with(rounds="rounds = 3\nminimum_parties = 3"), "minimum_parties = 3"),
    "a rule that nobody knows": (TINY + '[aggregation]\nrule = "krumm"\n', "krumm"),
    "client-level privacy": (TINY + 'style = "user"\n', "user"),
    "no promise at all": (TINY.replace("record = { epsilon = 2.0, delta = 1e-3 }", ""), "privacy"),
    "an empty file": ("", "is empty"),
    "only a comment": ("# later\n", "is empty"),
    "not UTF-8": ('[task]\nname = "hérz"\n'.encode("latin-1"), "is not UTF-8"),
    "a binary file": (b"\x89PNG\r\n\x1a\n\x00\x00", "is not UTF-8"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_PLANS)
def test_a_bad_plan_ends_with_2_and_leaves_no_trace(case: str) -> None:
    text, told = BAD_PLANS[case]
    Path("run.toml").write_bytes(text if isinstance(text, bytes) else text.encode())
    before = listing()
    refused(invoke("run", "run.toml"), 2, told)
    assert listing() == before
    assert not Path("quietsum-workspace").exists()


@pytest.mark.parametrize("case", ["no TOML", "an unknown key", "epsilon is no number", "an empty file", "not UTF-8"])
def test_plan_teaches_the_same_lesson_as_run(case: str) -> None:
    text, told = BAD_PLANS[case]
    Path("run.toml").write_bytes(text if isinstance(text, bytes) else text.encode())
    refused(invoke("plan", "run.toml"), 2, told)


def test_the_control_the_good_plan_runs() -> None:
    Path("run.toml").write_text(TINY, encoding="utf-8")
    result = invoke("run", "run.toml")
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("none.toml",), "quietsum new run.toml"),
        (("folder",), "is a directory"),
        (("run.toml", "--resume", "latest"), "alternatives"),
        ((), "alternatives"),
        (("--resume", "latest"), "start one with quietsum run"),
        (("--resume", "nobody"), "known runs: none yet"),
        (("--resume", "latest", "--name", "x"), "a run keeps its name"),
        (("run.toml", "--on", "moon"), "use --on local or --on flower"),
        (("run.toml", "--on", "flower"), "say --keys DIR"),
        (("run.toml", "--on", "flower", "--keys", "keys"), "--superlink DIR uses one that is running"),
        (("run.toml", "--on", "flower", "--keys", "keys", "--listen", "nowhere"), "quietsum keys"),
        (("run.toml", "--on", "flower", "--workers", "2"), "leave --workers out"),
        (("run.toml", "--keys", "keys"), "say --on flower"),
        (("run.toml", "--name", "../escape"), "cannot name a run"),
        (("run.toml", "--name", "a b"), "cannot name a run"),
        (("run.toml", "--name", "latest"), "cannot name a run"),
        (("run.toml", "--workspace", "file"), "file"),
        (("run.toml", "--wrokspace", "x"), "--workspace"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_bad_command_line_ends_with_2_and_leaves_no_trace(arguments: tuple[str, ...], told: str) -> None:
    Path("run.toml").write_text(TINY, encoding="utf-8")
    Path("folder").mkdir()
    Path("file").write_text("not a folder")
    before = listing()
    refused(invoke("run", *arguments), 2, told)
    assert listing() == before
    assert not Path("quietsum-workspace").exists()


def test_style_none_on_protected_data_ends_with_2_and_touches_nothing() -> None:
    text = TINY.replace("record = { epsilon = 2.0, delta = 1e-3 }", 'style = "none"')
    Path("run.toml").write_text(text, encoding="utf-8")
    refused(invoke("run", "run.toml"), 2, "declare-public")
    assert touches(Path("diary")) == {}
    assert not Path("quietsum-workspace/runs").exists()


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write everywhere")
def test_a_workspace_that_may_not_be_written_ends_with_2() -> None:
    Path("run.toml").write_text(TINY, encoding="utf-8")
    Path("locked").mkdir(mode=0o500)
    refused(invoke("run", "run.toml", "--workspace", "locked"), 2, "locked")
    assert list(Path("locked").iterdir()) == []


# --------------------------------------------------------------------------------------- tasks without data


def task_of_a_user(monkeypatch: pytest.MonkeyPatch, rows: Callable[[TinyTask, str], Rows]) -> None:
    """A run.toml whose task reads its rows like this."""
    module = types.ModuleType("my_module")
    module.Mine = type("Mine", (TinyTask,), {"rows": rows})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "my_module", module)
    Path("run.toml").write_text(plan_with(task='"my_module:Mine"'), encoding="utf-8")


def no_file(self: TinyTask, party: str) -> Rows:
    raise DataMissing("points.csv is not there; mount the data")


def test_data_that_is_not_there_is_said_at_the_start_and_nothing_is_opened_or_charged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    task_of_a_user(monkeypatch, no_file)
    result = invoke("run", "run.toml", "--name", "run")
    refused(result, 2, "points.csv is not there")
    with Ledger.open(Workspace.at().ledger) as ledger:
        assert not ledger.runs()
        ledger.verify()


@pytest.mark.parametrize(
    "error",
    [FileNotFoundError(2, "No such file or directory", "points.csv"), KeyError("north"), ValueError("no float: 61.5")],
    ids=lambda error: type(error).__name__,
)
def test_a_task_whose_rows_fail_drops_that_party_charged_and_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    # A user's loader raises whatever it likes. The party may have looked at its data, so it is lost and charged; the
    # exception's text may hold a record, so it must reach neither the screen nor a file.
    def rows(self: TinyTask, party: str) -> Rows:
        if party == "south":
            raise error
        return TinyTask.rows(self, party)

    task_of_a_user(monkeypatch, rows)
    result = invoke("run", "run.toml", "--name", "run", "-v")
    assert result.exception is None or isinstance(result.exception, SystemExit), repr(result.exception)
    assert result.exit_code == 0
    with Ledger.open(Workspace.at().ledger) as ledger:
        found = {party: one.epsilon for (party, _), one in ledger.spending_by_party("run").items()}
    assert found["south"] == found["north"] > 0
    printed = result.output + "".join(path.read_text(errors="replace") for path in Path().rglob("*.jsonl"))
    assert "61.5" not in printed


def test_a_task_with_two_parties_of_one_name_ends_with_2(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("twins")
    module.Twins = type(  # type: ignore[attr-defined]
        "Twins", (TinyTask,), {"parties": lambda self: TinyTask.parties(self) + TinyTask.parties(self)[:1]}
    )
    monkeypatch.setitem(sys.modules, "twins", module)
    Path("run.toml").write_text(plan_with(task='"twins:Twins"'), encoding="utf-8")
    refused(invoke("run", "run.toml"), 2, "north")
    assert not Path("quietsum-workspace").exists()


@pytest.mark.parametrize("size", [0, -1])
def test_a_task_that_declares_no_records_ends_with_2(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    Path("run.toml").write_text(
        TINY.replace('options = { diary = "diary" }', f"options = {{ sizes = {{ north = {size} }} }}"), encoding="utf-8"
    )
    refused(invoke("run", "run.toml"), 2, "north" if size == 0 else "size")
    assert not Path("quietsum-workspace").exists()


# ------------------------------------------------------------------------------- runs that cannot go on


@pytest.fixture
def stopped() -> Path:
    """A run that was stopped by hand after its first round."""

    class Stop:
        def saw(self, event: Any) -> None:
            if event.kind == "round-finished" and event.round == 1:
                raise KeyboardInterrupt

    plan = load_plan(TINY)
    task = task_named(plan.task.name, plan.task.options)
    with pytest.raises(KeyboardInterrupt):
        start(plan, workspace=Workspace.at(), name="run", task=task, watchers=[Stop()])
    return Path("quietsum-workspace/runs/run")


def edited_plan(folder: Path) -> None:
    path = folder / "plan.toml"
    path.write_text(path.read_text().replace("rounds = 3", "rounds = 30"))


def old_format(folder: Path) -> None:
    values = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**values, "format": 0}))


def foreign_folder(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir()
    (folder / "holiday.jpg").write_bytes(b"\xff\xd8")


def garbled_marker(folder: Path) -> None:
    (folder / "run.json").write_bytes(b"{\xff")


def marker_of_numbers(folder: Path) -> None:
    values = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**values, "run": 7}))


def plan_is_gone(folder: Path) -> None:
    (folder / "plan.toml").unlink()


def cut_checkpoint(folder: Path) -> None:
    newest = sorted((folder / "checkpoints").iterdir())[-1]
    newest.write_bytes(newest.read_bytes()[:-9])


def ledger_is_garbage(folder: Path) -> None:
    for path in Path("quietsum-workspace").glob("ledger.db-*"):
        path.unlink()
    Workspace.at().ledger.write_bytes(b"garbage" * 1000)


def ledger_is_empty(folder: Path) -> None:
    for path in Path("quietsum-workspace").glob("ledger.db-*"):
        path.unlink()
    Workspace.at().ledger.write_bytes(b"")


def ledger_is_gone(folder: Path) -> None:
    for path in Path("quietsum-workspace").glob("ledger.db*"):
        if not path.name.endswith(".key"):
            path.unlink()


def key_is_gone(folder: Path) -> None:
    Path("quietsum-workspace/ledger.db.key").unlink()


def key_is_garbage(folder: Path) -> None:
    Path("quietsum-workspace/ledger.db.key").write_text("open sesame")


def key_of_another_ledger(folder: Path) -> None:
    Ledger.open("other.db", create=True).close()
    shutil.copy("other.db.key", "quietsum-workspace/ledger.db.key")


def key_for_everybody(folder: Path) -> None:
    Path("quietsum-workspace/ledger.db.key").chmod(0o644)


@pytest.mark.parametrize(
    ("damage", "code", "told"),
    [
        (edited_plan, 4, "frozen"),
        (old_format, 4, "format 0"),
        (foreign_folder, 4, "is not a run folder of quietsum"),
        (garbled_marker, 4, "restore it"),
        (marker_of_numbers, 4, "restore it"),
        (plan_is_gone, 4, "restore it"),  # "write a fresh one with quietsum new" would be another plan
        (cut_checkpoint, 4, "delete it to go on"),
        (ledger_is_garbage, 4, "restore it from a copy"),
        (ledger_is_empty, 4, "put the ledger back"),
        (ledger_is_gone, 4, "put the ledger back"),  # its key and its runs are still there, so it is no new workspace
        (key_is_gone, 4, "put the key back"),
        (key_is_garbage, 4, "put the key back"),
        (key_of_another_ledger, 4, "put back the key that belongs to this ledger"),
        (key_for_everybody, 4, "chmod 600"),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
@pytest.mark.some(10)
def test_a_damaged_run_is_not_resumed_and_nothing_is_made_worse(
    stopped: Path, damage: Callable[[Path], None], code: int, told: str
) -> None:
    damage(stopped)
    before, touched = listing(), touches(Path("diary"))
    refused(invoke("run", "--resume", "run"), code, told)
    (stopped / ".lock").unlink(missing_ok=True)
    before.pop(str(stopped / ".lock"), None)
    assert listing() == before
    assert touches(Path("diary")) == touched


def test_the_control_the_undamaged_run_is_resumed(stopped: Path) -> None:
    result = invoke("run", "--resume", "run")
    assert result.exit_code == 0, result.output
    assert touches(Path("diary")) == {"north": 3, "south": 3}


@pytest.mark.parametrize(
    "damage", [ledger_is_garbage, ledger_is_gone, key_is_gone, key_of_another_ledger], ids=lambda one: one.__name__
)
def test_a_new_run_never_begins_a_new_ledger_over_a_damaged_one(stopped: Path, damage: Callable[[Path], None]) -> None:
    # A ledger that is gone while its key or its runs are there is a broken ledger (4), not a first use (2).
    damage(stopped)
    Path("run.toml").write_text(TINY, encoding="utf-8")
    before = listing()
    result = invoke("run", "run.toml", "--name", "second")
    refused(result, 4, "the ledger")
    assert listing() == before


# ------------------------------------------------------------------------------------------------- clocks


def test_a_clock_that_jumps_back_stops_no_run_and_loses_no_charge(stopped: Path) -> None:
    long_ago = datetime.datetime(1999, 12, 31, 23, 59, 59, tzinfo=datetime.UTC)

    class Jumping(datetime.datetime):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> datetime.datetime:  # type: ignore[override]
            return long_ago

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("quietsum.ledger.chain.journal.datetime.datetime", Jumping)
        result = invoke("run", "--resume", "run")
    assert result.exit_code == 0, result.output
    with Ledger.open("quietsum-workspace/ledger.db") as ledger:
        times = [entry.time for entry in ledger.entries()]
        ledger.verify()
        assert ledger.next_attempt("run", 3) == 2
    assert times != sorted(times)  # the control: it did jump back
