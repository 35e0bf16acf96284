"""Shells, pipes and pictures: names of commands and runs are completed, and a picture is an SVG or a PNG."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from quietsum.charts import Chart, Series, check_picture_name, png
from quietsum.cli.shared.options import complete_run, complete_task
from quietsum.cli.shared.output import figure
from quietsum.errors import InvalidParameter
from quietsum.privacy import Budget, Guarantee, Neighbours, Observer, PrivacyUnit
from quietsum.runs.progress import describe_spent
from scenes import invoke

PNG = b"\x89PNG\r\n\x1a\n"


def completed(words: str, place: int) -> list[str]:
    asked = {"_QUIETSUM_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(place)}
    code = "from quietsum.cli.app import app; app(prog_name='quietsum')"
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **asked}, capture_output=True, text=True, check=False
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout.split()


def test_a_shell_completes_commands_options_and_names() -> None:
    assert completed("quietsum ru", 1) == ["run", "runs"]
    assert completed("quietsum run --res", 2) == ["--resume"]
    assert completed("quietsum tradeoff --task chest", 3) == ["chest-xray"]


@pytest.mark.usefixtures("empty_folder")
def test_runs_that_are_there_are_completed_and_no_folder_is_opened() -> None:
    assert complete_run("") == ["latest"]
    for name in ("heart-1", "heart-2", "digits-1"):
        Path("quietsum-workspace/runs", name).mkdir(parents=True)
    assert complete_run("heart") == ["heart-1", "heart-2"] and complete_run("l") == ["latest"]
    assert complete_task("fashion") == ["fashion-mnist"]


def chart() -> Chart:
    line = Series(label="spent", points=((1.0, 0.1), (10.0, 1.0)), bars=((0.05, 0.2), (0.8, 1.1)))
    return Chart(title="ε", x_label="round", y_label="ε per record", series=(line,), limit=("budget", 1.0), x_log=True)


def test_a_picture_that_is_named_png_is_one(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    assert png(chart()).startswith(PNG)
    words = ("curve", "-s", 1, "-q", 0.1, "-T", 100, "-d", 1e-5, "-o")
    told = invoke(*words, tmp_path / "epsilon.png")
    assert told.exit_code == 0 and (tmp_path / "epsilon.png").read_bytes().startswith(PNG)
    assert f"wrote {tmp_path / 'epsilon.png'}" in told.stdout
    assert invoke(*words, tmp_path / "epsilon.svg").exit_code == 0
    assert (tmp_path / "epsilon.svg").read_text().startswith("<svg")


def test_without_matplotlib_a_png_is_refused_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(InvalidParameter, match=r"pip install 'quietsum\[pictures\]'"):
        check_picture_name("output", "a.png")
    check_picture_name("output", "a.svg")  # the control: that needs nothing
    with pytest.raises(InvalidParameter, match="neither"):
        check_picture_name("output", "a.gif")


@pytest.mark.parametrize("epsilon", [0.17402783, 2.1996171, 8.0, 0.1, 1.5, 12.34567])
def test_a_budget_reads_like_the_bound_that_it_was_made_of(epsilon: float) -> None:
    shown = Budget(epsilon=epsilon, delta=1e-5).figure
    assert float(shown) == float(figure(epsilon)) >= epsilon - 1e-9


@pytest.mark.parametrize(("epsilon", "limit"), [(0.1740, 0.174028), (0.174028, 0.174028), (0.01234, 0.01235)])
def test_a_line_of_progress_never_looks_overspent(epsilon: float, limit: float) -> None:
    spent = Guarantee(
        epsilon=epsilon, epsilon_lower=0.0, delta=1e-5, unit=PrivacyUnit.RECORD, observer=Observer.SERVER,
        neighbours=Neighbours.ADD_REMOVE, method="test",
    )  # fmt: skip
    text = describe_spent([spent], {"record": limit})
    first, second = text.removeprefix("ε ").removesuffix(" per record").split(" of ")
    assert float(first) <= float(second), text
