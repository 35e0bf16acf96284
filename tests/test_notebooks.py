"""Each notebook runs from its first cell to its last, and is stored without what it showed somewhere else."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "notebooks"
RUNNER = Path(__file__).with_name("run_notebook.py")
SHOWN = {
    "account": {"price": "per record</b>", "calibrate": "ε = 1 needs a noise multiplier of", "curve": "data:image/svg"},
    "train": {"train": "Training, finished after 5 epochs", "score-code": "on public rows", "guarantee": "per record"},
    "federate": {"plan": "Plan: heart, 6 rounds", "forecast-code": "whole plan", "run-code": "finished after round 6",
                 "ledger-code": "(6 of 6 rounds committed)", "verify": "entries verified"},
}  # fmt: skip
"""What some cells of each notebook show, by the name of the cell."""


def cells_of(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return found


def problems_of(notebook: dict[str, Any]) -> list[str]:
    """What makes a file no notebook of ours: outputs, counts, names that come twice, no sentence about the gain."""
    cells = notebook["cells"]
    found = [f"{cell['id']} holds outputs" for cell in cells if cell.get("outputs") or cell.get("execution_count")]
    if (notebook["nbformat"], notebook["nbformat_minor"]) != (4, 5):
        found.append("it is not of format 4.5")
    if len({cell["id"] for cell in cells}) < len(cells) or not all(
        re.fullmatch(r"[\w-]{1,64}", c["id"]) for c in cells
    ):
        found.append("cells have no names of their own")
    if cells[0]["cell_type"] != "markdown" or "After this notebook you" not in "".join(cells[0]["source"]):
        found.append("it does not say what a reader gains")
    return found


def test_all_of_them_are_known_here_and_on_the_page() -> None:
    assert sorted(path.stem for path in FOLDER.glob("*.ipynb")) == sorted(SHOWN)
    page = (ROOT / "docs" / "tutorial" / "notebooks.md").read_text(encoding="utf-8")
    assert all(f"../notebooks/{name}.ipynb" in page for name in SHOWN)


@pytest.mark.parametrize("name", SHOWN)
def test_a_notebook_is_stored_without_outputs(name: str) -> None:
    notebook = json.loads((FOLDER / f"{name}.ipynb").read_text(encoding="utf-8"))
    assert problems_of(notebook) == []
    ran = json.loads(json.dumps(notebook))  # the control: the same, after somebody ran and saved it
    (code, *_) = (cell for cell in ran["cells"] if cell["cell_type"] == "code")
    code.update(outputs=[{"output_type": "stream", "name": "stdout", "text": ["1"]}], execution_count=1)
    assert problems_of(ran) == [f"{code['id']} holds outputs"]


def run(path: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, RUNNER, path], capture_output=True, text=True, cwd=folder, timeout=300)


@pytest.mark.parametrize("name", SHOWN)
def test_a_notebook_runs_and_shows_what_it_speaks_of(name: str, tmp_path: Path) -> None:
    if name == "train":
        pytest.importorskip("torch")
    path = FOLDER / f"{name}.ipynb"
    done = run(path, tmp_path)
    assert done.returncode == 0, done.stderr
    told = {line["cell"]: line for line in map(json.loads, done.stdout.splitlines())}
    assert list(told) == [cell["id"] for cell in cells_of(path) if cell["cell_type"] == "code"]
    for cell, text in SHOWN[name].items():
        assert text in told[cell]["printed"] + told[cell]["shown"], cell
    assert list(tmp_path.iterdir()) == []  # nothing is left in the folder of its reader


def test_the_control_a_cell_that_fails_ends_the_run(tmp_path: Path) -> None:
    cells = [{"cell_type": "code", "id": name, "source": [line]} for name, line in (("one", "1 + 1"), ("two", "1 / 0"))]
    (tmp_path / "bad.ipynb").write_text(json.dumps({"cells": cells}))
    done = run(tmp_path / "bad.ipynb", tmp_path)
    assert done.returncode != 0 and "ZeroDivisionError" in done.stderr
    assert json.loads(done.stdout) == {"cell": "one", "printed": "", "shown": "2"}
