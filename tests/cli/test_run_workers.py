"""``quietsum run --workers``: the same run in several processes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scenes import invoke

HEART = """
[federation]
rounds = 2
[training]
sample_rate = 1.0
local_steps = 1
[privacy]
style = "user"
client = { epsilon = 8.0, delta = 0.02 }
"""


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("QUIETSUM_WORKSPACE", raising=False)
    Path("run.toml").write_text(HEART, encoding="utf-8")


def test_two_workers_run_a_plan_to_its_end() -> None:
    result = invoke("run", "run.toml", "--workers", 2, "--json")
    assert result.exit_code == 0, result.output
    events = [json.loads(line) for line in result.stdout.splitlines()]
    rounds = [event for event in events if event["event"] == "round-finished"]
    assert [len(event["kept"]) for event in rounds] == [4, 4]
    assert events[-1]["exit_code"] == 0


def test_the_number_reaches_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    from quietsum.runs import run

    asked = []

    def noted(*arguments: object, workers: int, **more: object) -> None:
        asked.append(workers)
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "start", noted)
    invoke("run", "run.toml", "--workers", 3)
    invoke("run", "run.toml")
    assert asked == [3, 1]


@pytest.mark.parametrize("number", [0, -1, 257, "two", "nan", 1.5])
def test_a_number_that_is_none_is_refused_before_anything_is_spent(number: object) -> None:
    result = invoke("run", "run.toml", "--workers", number)
    assert result.exit_code == 2 and "Traceback" not in result.output
    assert not Path("quietsum-workspace").exists()
