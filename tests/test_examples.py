"""Every numbered example is short and runs to its end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "examples"
EXAMPLES = sorted(FOLDER.glob("[0-9]*.py"))
LAST = {
    "01_account": "an attacker finds a record in at most",
    "02_train": "per record at δ = 1e-05",
    "03_federation": "the model has 15 weights",
    "04_own_task": "finished: slope",
}


def test_all_of_them_are_known_here() -> None:
    assert [path.stem for path in EXAMPLES] == list(LAST)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs_and_has_fewer_than_sixty_lines(path: Path, tmp_path: Path) -> None:
    if "torch" in path.read_text(encoding="utf-8"):
        pytest.importorskip("torch")
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, cwd=tmp_path, timeout=300)
    assert done.returncode == 0, done.stderr
    assert LAST[path.stem] in done.stdout.strip().splitlines()[-1]
    assert len(path.read_text(encoding="utf-8").splitlines()) < 60
    assert list(tmp_path.iterdir()) == []
