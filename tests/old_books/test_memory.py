"""Runs of before the rebuild whose servers remembered something go on with it: Adam's moments, the clip that follows.

The folder ``memory`` was written by an earlier commit (:mod:`old_books.make_memory`). Every test works on a copy.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from old_books.test_before_rooms import call, succeeds
from quietsum.runs import Workspace, latest_checkpoint

MEMORY = Path(__file__).parent / "memory"
RUNS = ("adam", "adaptive")


@pytest.fixture
def books(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder: a copy of the books with the modes that git does not keep."""
    place = shutil.copytree(MEMORY, tmp_path / "memory")
    for path in (*place.rglob("ledger.db*"), *place.rglob("alerts.log*"), *place.rglob("run.db")):
        path.chmod(0o600)
    monkeypatch.chdir(place)
    return place


def memory_of(run: str) -> tuple[int, float | None, list[str]]:
    """The round of the last checkpoint, the clip that it holds, and the names of the vectors beside the model."""
    last = latest_checkpoint(Workspace(path=Path("workspace")).find(run).checkpoints)
    assert last is not None
    return last.round, last.state.clip, sorted(name for name, vector in last.state.slots.items() if vector.any())


def test_the_checkpoints_hold_what_the_server_remembers(books: Path) -> None:
    number, _, slots = memory_of("adam")
    assert number == 2 and len(slots) == 2
    number, clip, _ = memory_of("adaptive")
    assert number == 2 and clip is not None and clip != 0.5


@pytest.mark.parametrize("run", RUNS)
def test_a_run_with_a_memory_is_shown_and_goes_on_to_its_end(books: Path, run: str) -> None:
    before = json.loads(succeeds("show", run, "--workspace", "workspace", "--json").stdout)
    assert (before["run"], before["outcome"]) == (run, "interrupted")
    succeeds("run", "--resume", run, "--workspace", "workspace")
    after = json.loads(succeeds("show", run, "--workspace", "workspace", "--json").stdout)
    assert (after["outcome"], after["round"]) == ("finished", 12)
    assert {one["unit"]: one["epsilon"] for one in after["guarantees"]} == pytest.approx(
        {one["unit"]: one["epsilon"] for one in before["guarantees"]}, rel=1e-9
    )
    succeeds("ledger", "verify", "--workspace", "workspace", "--every-signature")


def test_the_control_a_checkpoint_whose_memory_was_altered_is_not_taken(books: Path) -> None:
    for path in Path("workspace/runs/adam/checkpoints").iterdir():
        content = bytearray(path.read_bytes())
        content[-5] ^= 1
        path.write_bytes(content)
    assert call("run", "--resume", "adam", "--workspace", "workspace").exit_code != 0
