"""Faults in turn: each call of a run on its files, each byte of what it leaves. All of them: benchmarks/faults.py.

Every fault ends in exit code 1, exit code 4, or the answer of a run that nothing happened to. A few of them are tried
here, spread over all calls, all kinds of fault and all files.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
pytestmark = pytest.mark.slow


@pytest.fixture
def folder() -> Iterator[Path]:
    """In memory, where there is such a place: the faults are made by the shim, not by the disk."""
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shared if os.access(shared, os.W_OK) else None) as name:
        yield Path(name)


@pytest.fixture
def shim(folder: Path) -> Path:
    if sys.platform != "linux" or shutil.which("gcc") is None:
        pytest.skip("the shim needs Linux and gcc")
    path = folder / "shim.so"
    subprocess.run(["gcc", "-O1", "-shared", "-fPIC", "-o", path, HERE / "shim.c", "-ldl"], check=True)
    return path


def lines(script: str, *words: object, preload: Path | None = None) -> list[dict[str, Any]]:
    environment = {**os.environ, "PYTHONPATH": str(HERE.parent), "OMP_NUM_THREADS": "1"}
    environment.pop("QUIETSUM_WORKSPACE", None)
    if preload is not None:
        environment["LD_PRELOAD"] = str(preload)
    command = [sys.executable, str(HERE / script), *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=550)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.long
def test_a_fault_at_any_call_is_exit_1_exit_4_or_the_same_answer(shim: Path, folder: Path) -> None:
    found = lines("injecting.py", shim, folder, 67, preload=shim)
    faults = [one for one in found if "outcome" in one]
    assert [one["other"] for one in faults if one["outcome"] == "other"] == []
    assert len(faults) > 25 and len({one["mode"] for one in faults}) == 6
    assert {one["first"] for one in faults} >= {1, -9}  # the control: faults are noticed


def test_the_oracle_sees_a_charge_that_is_missing(shim: Path, folder: Path) -> None:
    """The control: data that was touched more often than it was paid for is an outcome of its own."""
    lying = folder / "lying.py"
    lying.write_text(
        "from faults import injecting\n"
        "honest, judged = injecting.Bench.look, injecting.judged\n"
        "def look(self):\n"
        "    with self.diary.open('a') as file:\n"
        "        file.write('north\\nnorth\\n')\n"
        "    return honest(self)\n"
        "def lied(*given):\n"
        "    injecting.Bench.look = look\n"
        "    return judged(*given)\n"
        "injecting.MODES, injecting.judged = {1: 'no room, once'}, lied\n"
        "injecting.main()\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(HERE.parent), "LD_PRELOAD": str(shim)}
    command = [sys.executable, str(lying), str(shim), str(folder), "400"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [one["outcome"] for one in found if "outcome" in one] == ["other", "other"], done.stderr


@pytest.mark.long
def test_a_bit_turned_in_any_file_is_exit_4_exit_1_or_the_same_answer(folder: Path) -> None:
    found = lines("flipping.py", folder, 211)
    assert [one["other"] for one in found if "other" in one] == []
    files = {one["file"]: one["outcomes"] for one in found}
    assert {"ledger.db", "ledger.db.head", "runs/run/run.db", "runs/run/run.json"} <= files.keys()
    assert files["ledger.db"]["exit 4"] > 20  # the control: flips are noticed
