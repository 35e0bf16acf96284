"""`quietsum run` with secure = true: heart at four hospitals, from the plan to the report."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest
from typer.testing import CliRunner

from quietsum.cli.app import app

CLIENTS = """
[task]
name = "heart"
[federation]
rounds = 3
spare_attempts = 3
[training]
sample_rate = 0.2
local_steps = 1
[privacy]
style = "user"
neighbours = "zero-out"
client = { noise_multiplier = 8.0, delta = 1e-4, max_norm = 1.0, noise_at = "distributed" }
[aggregation]
secure = true
drop_outs = 0.25
"""
LOST = CLIENTS.replace("spare_attempts = 3", "spare_attempts = 3\nsimulate = { drop_outs = 1.0 }")


def quietsum(*words: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, list(words))
    assert result.exit_code == code, result.output
    return str(result.output)


def ran(folder: Path, text: str, *, code: int = 0, workers: int = 1) -> tuple[Path, Path, str]:
    plan, workspace = folder / "run.toml", folder / "workspace"
    plan.write_text(text, encoding="utf-8")
    output = quietsum("run", str(plan), "--workspace", str(workspace), "--workers", str(workers), code=code)
    (run,) = (workspace / "runs").iterdir()
    return run, workspace, output


RECORDS = """
[task]
name = "heart"
[federation]
rounds = 3
[training]
sample_rate = 0.2
local_steps = 1
[privacy]
style = "sample"
record = { epsilon = 4.0, delta = 1e-4, noise_at = "distributed" }
[aggregation]
secure = true
drop_outs = 0.25
"""


@pytest.mark.parametrize(("text", "workers"), [(CLIENTS, 1), (RECORDS, 1), (RECORDS, 2)])
def test_a_run_ends_with_a_model_a_report_and_books_that_verify(tmp_path: Path, text: str, workers: int) -> None:
    run, workspace, output = ran(tmp_path, text, workers=workers)
    assert "round 3/3 · 4 of 4 parties" in output
    report = json.loads((run / "report.json").read_text())
    assert report["outcome"] == "finished"
    quietsum("ledger", "verify", "--workspace", str(workspace))
    quietsum("show", "--workspace", str(workspace))


def test_a_round_without_enough_parties_ends_in_exit_code_6_and_is_charged(tmp_path: Path) -> None:
    run, workspace, output = ran(tmp_path, LOST, code=6)
    assert "too few parties" in output and "It is charged" in output
    with sqlite3.connect(run / "run.db") as database:
        told = database.execute("SELECT party, reason, refunded FROM left_out").fetchall()
    assert told and all(not refunded for _, _, refunded in told)
    assert "0.0" not in quietsum("ledger", "show", "--workspace", str(workspace)).split("ε")[0]
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    dropped = [event for event in events if event["event"] == "party-dropped"]
    assert {event["code"] for event in dropped} == {"no-answer"} and all(event["step"] for event in dropped)


@pytest.mark.parametrize("file", ["model.safetensors", "report.json"])
def test_nothing_in_the_run_folder_names_who_took_part_but_what_the_operator_keeps(tmp_path: Path, file: str) -> None:
    run, _, _ = ran(tmp_path, CLIENTS)
    content = (run / file).read_bytes()
    assert b'"kept"' not in content and b"party-dropped" not in content
