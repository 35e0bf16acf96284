"""The front door in Python: a plan is forecast, run, stopped, resumed and reported, with the books of the command."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import quietsum as qs
from quietsum.cli.app import app
from quietsum.errors import CorruptState, InvalidParameter
from quietsum.ledger import Ledger

PLAN = """
[task]
name = "heart"
[federation]
rounds = 3
[training]
sample_rate = 0.25
[privacy]
record = { epsilon = 1.0, delta = 1e-5, max_grad_norm = 0.5 }
"""


class StopAfter:
    """A watcher that interrupts the run after a round, as Ctrl-C would."""

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds

    def saw(self, event: Any) -> None:
        if event.kind == "round-finished" and event.round == self.rounds:
            raise KeyboardInterrupt


def test_a_run_holds_its_guarantees_metrics_model_and_report(tmp_path: Path) -> None:
    done = qs.run(PLAN, workspace=tmp_path, name="first")
    assert (done.name, done.outcome, done.rounds, done.error) == ("first", "finished", 3, None)
    assert {str(one.unit) for one in done.guarantees} == {"record"}
    assert all(0.9 < one.epsilon <= 1.0 and one.delta == 1e-5 for one in done.guarantees)
    assert 0.4 < done.metrics["accuracy"] <= 1.0
    assert done.model.shape == (15,)
    assert done.report == json.loads((done.path / "report.json").read_text(encoding="utf-8"))


def test_a_forecast_states_what_the_run_then_claims_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    expected = qs.forecast(PLAN).whole
    assert list(tmp_path.iterdir()) == []
    assert [one.epsilon for one in qs.run(PLAN).guarantees] == [one.epsilon for one in expected]


def test_the_folder_and_the_ledger_are_those_that_the_commands_read(tmp_path: Path) -> None:
    done = qs.run(PLAN, workspace=tmp_path, name="first")
    names = {path.name for path in done.path.iterdir()}
    assert {"plan.toml", "events.jsonl", "run.db", "report.html", "report.json", "model.safetensors"} <= names
    for arguments in (["show", "first"], ["ledger", "verify"]):
        shown = CliRunner().invoke(app, [*arguments, "--workspace", str(tmp_path)])
        assert shown.exit_code == 0, shown.output


def test_a_stopped_run_goes_on_and_costs_what_an_unbroken_one_costs(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        qs.run(PLAN, workspace=tmp_path, name="stopped", watchers=[StopAfter(2)])
    done = qs.resume(workspace=tmp_path)
    assert (done.name, done.outcome, done.rounds) == ("stopped", "finished", 3)
    whole = qs.run(PLAN, workspace=tmp_path / "other")
    assert [one.epsilon for one in done.guarantees] == [one.epsilon for one in whole.guarantees]


def test_a_plan_that_breaks_a_promise_is_refused_and_leaves_no_run(tmp_path: Path) -> None:
    with pytest.raises(qs.PlanRefused, match="batch_size"):
        qs.run(PLAN.replace("sample_rate = 0.25", "batch_size = 3000"), workspace=tmp_path)
    with pytest.raises(qs.QuietsumError):
        qs.forecast(PLAN.replace("epsilon = 1.0", "epsilon = -1.0"))
    assert not (tmp_path / "runs").exists()


def test_a_damaged_model_is_not_handed_out(tmp_path: Path) -> None:
    done = qs.run(PLAN, workspace=tmp_path)
    path = done.path / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content))
    with pytest.raises(CorruptState):
        _ = done.model


def test_rows_that_are_known_under_another_name_need_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control is the second call: with a reason the same rows train."""
    from old_books.clinic import PointsTask

    class Renamed(PointsTask):
        def parties(self) -> Any:
            return tuple(dataclasses.replace(one, dataset=f"again-{one.name}") for one in super().parties())

    text = PLAN.replace('name = "heart"', 'name = "old_books.clinic:PointsTask"\noptions = { sizes = { aa = 40 } }')
    plan = qs.load_plan(text.replace("delta = 1e-5", "delta = 1e-3"))
    sizes = {"aa": 40}
    assert qs.run(plan, workspace=tmp_path, task=PointsTask(sizes=sizes)).outcome == "finished"
    with pytest.raises(qs.PlanRefused, match="same_rows"):
        qs.run(plan, workspace=tmp_path, task=Renamed(sizes=sizes))
    done = qs.run(plan, workspace=tmp_path, task=Renamed(sizes=sizes), same_rows="a second study, approved")
    assert done.outcome == "finished"


def test_a_caller_hears_of_the_folder_before_anything_is_reserved_and_of_each_warning(tmp_path: Path) -> None:
    folders: list[Path] = []
    warnings: list[str] = []

    def opened(folder: Any) -> None:
        folders.append(folder.path)
        (folder.path / "run.db").write_bytes(b"no database at all, and long enough to be read as one" * 20)
        with Ledger.open(tmp_path / "ledger.db", read_only=True) as ledger:
            assert not any(entry.kind == "reserve" for entry in ledger.entries())

    done = qs.run(PLAN, workspace=tmp_path, name="first", opened=opened, warn=warnings.append)
    assert folders == [done.path] and done.outcome == "finished"
    assert len(warnings) == 1 and "run.db cannot be used" in warnings[0] and "goes on without it" in warnings[0]
    with Ledger.open(tmp_path / "ledger.db", read_only=True) as ledger:
        assert any(entry.kind == "reserve" for entry in ledger.entries()), "the control"


def test_a_tracking_store_is_closed_after_the_report_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from quietsum.runs import recording

    order: list[str] = []

    class Store:
        def __init__(self, uri: str) -> None:
            order.append(uri)

        def __enter__(self) -> Store:
            return self

        def __exit__(self, *error: object) -> None:
            order.append(f"closed, report written: {next(tmp_path.glob('runs/*/report.json')).is_file()}")

        def open(self, folder: Any) -> None:
            order.append(folder.run)

        def saw(self, event: Any) -> None:
            if event.kind == "run-finished":
                order.append(f"finished, report written: {any(tmp_path.glob('runs/*/report.json'))}")

    monkeypatch.setattr(recording, "MlflowWatcher", Store)
    qs.run(PLAN, workspace=tmp_path, name="first", mlflow="sqlite:///here.db")
    assert order == [
        "sqlite:///here.db", "first", "finished, report written: False", "closed, report written: True",
    ]  # fmt: skip


def test_a_run_says_how_many_alerts_it_raised(tmp_path: Path) -> None:
    (tmp_path / "alerts.toml").write_text("[rules]\nmargin = 0.4\n", encoding="utf-8")  # nothing is far above chance
    assert qs.run(PLAN, workspace=tmp_path, name="loud").alerts > 0
    assert qs.run(PLAN, workspace=tmp_path / "other", name="quiet").alerts == 0, "the control"


def test_workers_on_a_card_that_is_not_there_are_refused_before_anything_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    plan = PLAN.replace("heart", "digits").replace("rounds = 3", 'rounds = 3\nsplit = "iid"\nparties = 4')
    with pytest.raises(InvalidParameter, match=r"device = 'cuda' is not there: torch finds no graphics card"):
        qs.run(plan, workspace=tmp_path / "none", workers=2, device="cuda")
    assert not (tmp_path / "none" / "ledger.db").exists()
