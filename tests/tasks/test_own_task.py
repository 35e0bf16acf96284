"""The task of docs/how-to/your-own-task.md works from the command line, in the folder where its file lies."""

from __future__ import annotations

import doctest
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "your-own-task.md"


def the_class() -> str:
    """The examples of the page up to the end of the class."""
    source = ""
    for example in doctest.DocTestParser().get_examples(PAGE.read_text(encoding="utf-8")):
        source += example.source
        if example.source.startswith("class VisitsTask"):
            return source
    raise AssertionError("the page shows no class")


def quietsum(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = Path(sys.executable).parent / "quietsum"
    return subprocess.run([command, *words], cwd=folder, capture_output=True, text=True, timeout=120)


def test_the_class_of_the_page_trains_from_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "visits.py").write_text(the_class(), encoding="utf-8")
    done = quietsum(tmp_path, "train", "--task", "visits:VisitsTask", "--epsilon", "3", "--epochs", "2")
    assert done.returncode == 0, done.stderr
    assert "500 visits of the demonstration year" in done.stdout and "ε 3.00 of 3 per record" in done.stdout
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    refused = quietsum(elsewhere, "train", "--task", "visits:VisitsTask", "--epsilon", "3")
    assert refused.returncode == 2 and "importable" in refused.stderr and "Traceback" not in refused.stderr


def test_a_file_beside_the_users_does_not_hide_an_installed_module(tmp_path: Path) -> None:
    (tmp_path / "visits.py").write_text(the_class(), encoding="utf-8")
    (tmp_path / "json.py").write_text("raise SystemExit('hidden')\n", encoding="utf-8")
    (tmp_path / "safetensors.py").write_text("raise SystemExit('hidden')\n", encoding="utf-8")
    done = quietsum(tmp_path, "train", "--task", "visits:VisitsTask", "--epsilon", "3", "--epochs", "1")
    assert done.returncode == 0, done.stderr
