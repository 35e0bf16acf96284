"""What ``make run`` shows: a federated history, honest to the last digit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from quietsum import ExactAccountant, Gaussian, PoissonSampled
from quietsum.cli.app import app
from quietsum.demo import BUDGET, DELTA, HOSPITALS, older_formula, run


def test_it_prints_a_table_a_plot_and_a_guarantee_and_writes_its_picture(tmp_path: Path) -> None:
    path = tmp_path / "history.svg"
    done = subprocess.run(
        [sys.executable, "-m", "quietsum.demo", str(path)],
        capture_output=True, timeout=60, check=True, encoding="utf-8", env=os.environ | {"PYTHONIOENCODING": "utf-8"},
    )  # fmt: skip
    assert ElementTree.parse(path).getroot().tag.endswith("svg")
    for words in ("Eastgate", "budget left", "no record of any hospital", "never added", "next: quietsum spend"):
        assert words in done.stdout
    shown = [line for line in done.stdout.splitlines() if not line.startswith("wrote ")]  # a path is as long as it is
    assert max(map(len, shown)) <= 80
    assert done.stderr == ""


def test_its_next_command_confirms_its_number(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(str(tmp_path / "history.svg"))
    shown = capsys.readouterr().out
    command = shown.split("next: quietsum ")[1].replace("\\\n", " ").split()
    spent = json.loads(CliRunner().invoke(app, [*command, "--json"]).stdout)["epsilon"]
    last = next(line for line in shown.splitlines() if line.startswith("    20 "))
    assert float(last.split()[1]) == pytest.approx(spent, abs=0.01)
    assert spent <= BUDGET


def test_delta_is_small_enough_for_all_records_together() -> None:
    records = sum(hospital.records for hospital in HOSPITALS)
    assert 10 * records * DELTA <= 1


def test_the_formula_of_older_documents_reports_less_than_the_truth() -> None:
    event = PoissonSampled(rate=0.1, event=Gaussian(noise_multiplier=1.0))
    for steps, claim in ((100, 5.30), (1000, 20.76)):
        older = older_formula(noise_multiplier=1.0, sample_rate=0.1, steps=steps, delta=1e-5)
        assert older == pytest.approx(claim, abs=0.01)
        assert older < ExactAccountant().compose(event, steps).epsilon(delta=1e-5).epsilon_lower


def test_the_picture_in_the_documentation_is_the_one_it_draws(tmp_path: Path) -> None:
    picture = Path(__file__).parents[2] / "docs" / "_static" / "history.svg"
    run(str(tmp_path / "history.svg"))
    space = "{http://www.w3.org/2000/svg}"
    drawn, shown = (ElementTree.parse(path).getroot() for path in (tmp_path / "history.svg", picture))
    assert drawn.findtext(f"{space}desc") == shown.findtext(f"{space}desc")
    assert [text.text for text in drawn.findall(f"{space}text")] == [
        text.text for text in shown.findall(f"{space}text")
    ]
