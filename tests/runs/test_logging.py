"""Logs say what happens and never what is in the data: no record, no update, no key, at no level."""

from __future__ import annotations

import json
import logging
import re
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import Result
from typer.testing import CliRunner

from quietsum.cli.app import app
from quietsum.runs import checkpoint as checkpoints
from quietsum.tasks import Rows
from scenes import tiny_toml
from tiny import TinyTask

TINY = tiny_toml(task="sentinels:Site", sample_rate=1.0)
REFUSING = TINY.replace("rounds = 3", 'rounds = 3\nsimulate = { refusing = ["south"] }')
FEATURE, LABEL = 0.7310585786300049, 4711.1234567
"""Values of records that stand nowhere else."""


class Site(TinyTask):
    """Rows full of sentinels; south reads them, and fails over them as a loader may, with a record in its message."""

    def rows(self, party: str) -> Rows:
        count = self.sizes[party]
        if party == "south":
            raise ValueError(f"row 7 of {party} is not a number: [{FEATURE!r}, {LABEL!r}]")
        return Rows(features=np.full((count, 2), FEATURE), labels=np.full(count, LABEL))


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An empty folder, and the logger as a fresh process has it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("QUIETSUM_WORKSPACE", raising=False)
    module = types.ModuleType("sentinels")
    module.Site = Site  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "sentinels", module)
    logger = logging.getLogger("quietsum")
    handlers, level = list(logger.handlers), logger.level
    logger.handlers[:] = []
    yield
    logger.handlers[:] = handlers
    logger.setLevel(level)


def run(*more: str, text: str = TINY) -> Result:
    Path("run.toml").write_text(text, encoding="utf-8")
    result = CliRunner().invoke(app, ["run", "run.toml", "--name", "run", *more])
    assert result.exception is None or isinstance(result.exception, SystemExit), repr(result.exception)
    return result


# ---------------------------------------------------------------------------------------------- what is said


def test_with_v_the_log_says_who_was_left_out_and_why() -> None:
    result = run("-v", text=REFUSING)
    assert result.exit_code == 0, result.output
    lines = [line for line in result.stderr.splitlines() if "quietsum.federation.round" in line]
    assert len(lines) == 3
    assert all("INFO" in line and "south is left out" in line for line in lines)
    assert "south" not in "".join(line for line in result.stdout.splitlines() if line.startswith("round"))


def test_without_v_nothing_is_logged_and_alerts_are_told() -> None:
    told = run(text=REFUSING).stderr
    assert "INFO" not in told and "quietsum." not in told
    assert all(line.startswith(("alert: ", "  ")) for line in told.splitlines())
    assert "drop-outs" in told


def test_that_the_work_of_a_party_failed_is_told_to_the_owner_of_the_data_once_a_round_and_without_its_words() -> None:
    told = run().stderr
    assert "the work of south failed" in told and "for the owner of the data alone" in told
    assert "row 7" not in told and repr(FEATURE) not in told


def test_a_second_command_does_not_log_twice() -> None:
    run("-v")
    options = "options = { sizes = { west = 12, east = 8 } }"
    text = TINY.replace('name = "sentinels:Site"', f'name = "tiny:TinyTask"\n{options}')
    text = text.replace("rounds = 3", 'rounds = 3\nsimulate = { refusing = ["east"] }')
    Path("again.toml").write_text(text, encoding="utf-8")
    result = CliRunner().invoke(app, ["run", "again.toml", "--name", "again", "-v"])
    assert result.exit_code == 0, result.output
    # A handler that keeps the stderr of the first command would write into a closed file here.
    assert len([line for line in result.stderr.splitlines() if "east is left out" in line]) == 3


def test_the_library_adds_no_handler_and_prints_nothing_by_itself(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    from quietsum.runs.folder import Workspace
    from quietsum.runs.run import start
    from tiny import tiny_plan

    with caplog.at_level(logging.INFO, logger="quietsum"):
        plan = tiny_plan(federation={"simulate": {"refusing": ["south"]}})
        start(plan, workspace=Workspace(path=tmp_path), task=TinyTask())
    assert [record.name for record in caplog.records] == ["quietsum.federation.round"] * 3
    assert logging.getLogger("quietsum").handlers == []
    assert capfd.readouterr() == ("", "")


# ------------------------------------------------------------------------------------- what is never said


def secrets_of(folder: Path) -> dict[str, str]:
    """Every text that must be in no log: values of records, every number of every update and model, the key."""
    pem = (folder / "ledger.db.key").read_text()
    hidden = {"a feature": repr(FEATURE), "a label": repr(LABEL), "a rounded label": f"{LABEL:.3f}"}
    hidden |= {f"line {n} of the key": line for n, line in enumerate(pem.splitlines()[1:-1])}
    hidden["the key's banner"] = "PRIVATE KEY"
    for path in (folder / "runs/run/checkpoints").glob("*.safetensors"):
        state = checkpoints.load_checkpoint(path).state
        for index, value in enumerate(state.params.tolist()):
            if value:
                hidden[f"parameter {index} in {path.name}"] = repr(value)
    return hidden


@pytest.fixture
def everything(caplog: pytest.LogCaptureFixture) -> dict[str, str]:
    """All that a run at the most talkative level says, anywhere but in the files that are the model."""
    updates: list[float] = []
    from quietsum.party.work import Site as Party

    honest = Party.answer

    def kept(self: Any, key: Any, params: Any) -> Any:
        delta = honest(self, key, params)
        updates.extend(delta.tolist())
        return delta

    with pytest.MonkeyPatch.context() as patch, caplog.at_level(logging.DEBUG):
        patch.setattr(Party, "answer", kept)
        result = run("-vv")
    assert result.exit_code == 0, result.output
    folder = Path("quietsum-workspace")
    said = {
        "the log": "\n".join(f"{record.getMessage()} {record.exc_text} {record.args}" for record in caplog.records),
        "stdout": result.stdout,
        "stderr": result.stderr,
        "events.jsonl": (folder / "runs/run/events.jsonl").read_text(),
        "run.db": (folder / "runs/run/run.db").read_bytes().decode("utf-8", errors="replace"),
        "report.json": (folder / "runs/run/report.json").read_text(),
        "report.html": (folder / "runs/run/report.html").read_text(),
        "ledger.db": (folder / "ledger.db").read_bytes().decode("utf-8", errors="replace"),
    }
    assert len(updates) == 12  # of south, too: noise alone
    said["the updates"] = json.dumps(updates)  # for the control
    return said


def test_no_record_update_or_key_is_in_a_log_an_event_or_a_report(everything: dict[str, str]) -> None:
    hidden = secrets_of(Path("quietsum-workspace"))
    updates = json.loads(everything.pop("the updates"))
    hidden |= {f"update {index}": repr(value) for index, value in enumerate(updates)}
    for where, text in everything.items():
        assert text or where == "the log"
        for what, secret in hidden.items():
            assert secret not in text, f"{what} is in {where}"
        assert not re.search(r"array\(|ndarray|Rows\(|dtype", text), where


def test_the_control_a_secret_that_is_logged_is_found(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from quietsum.federation import replies

    honest = replies._drop

    def talkative(watchers: Any, number: int, party: str, reason: str, **more: Any) -> None:
        honest(watchers, number, party, f"{reason}: {FEATURE!r}", **more)

    monkeypatch.setattr(replies, "_drop", talkative)
    result = run("-v", text=REFUSING)
    assert repr(FEATURE) in result.stderr
    assert repr(FEATURE) in Path("quietsum-workspace/runs/run/events.jsonl").read_text()


def test_a_refusal_of_the_ledger_shows_no_key() -> None:
    run()
    key = Path("quietsum-workspace/ledger.db.key")
    pem = key.read_text()
    key.write_text(pem.replace("PRIVATE KEY", "PRIVATE KEYS"))
    result = CliRunner().invoke(app, ["run", "--resume", "run", "-vv"])
    assert result.exit_code == 4
    assert pem.splitlines()[1] not in result.output and "PRIVATE KEY" not in result.output


def test_a_traceback_of_a_users_mistake_is_never_printed_even_at_the_most_talkative_level() -> None:
    result = run("-vv")
    assert "Traceback" not in result.output and "row 7" not in result.output


def test_what_is_logged_stays_out_of_the_json_on_stdout() -> None:
    result = run("-vv", "--json", text=REFUSING)
    first = result.stdout.splitlines()[0]
    assert json.loads(first)["event"] == "run-started"
    assert "left out" in result.stderr and "left out" not in result.stdout
