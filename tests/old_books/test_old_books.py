"""Books of before entries carried a pricing version: they verify, show, resume and train on.

The folder beside this file was written by an earlier commit (:mod:`old_books.make`, :mod:`old_books.make_sites`). Every
test works on a copy.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import Result
from torch import nn
from typer.testing import CliRunner

from federation.world import NAMES, World
from old_books.make_sites import TEXT
from quietsum.cli.app import app
from quietsum.learning.config import PrivacyConfig
from quietsum.learning.trainer import PrivateTrainer
from quietsum.ledger import Ledger
from quietsum.runs import checkpoint as checkpoints
from quietsum.runs.folder import Workspace

HERE = Path(__file__).parent
RUNS = (
    "done", "stopped", "fixed-done", "fixed-stopped", "fixed-tight", "fixed-zero-out", "people-done", "people-stopped",
    "people-tight", "people-zero",
)  # fmt: skip


def copy(tmp_path: Path, name: str = "workspace") -> Path:
    """A copy of the books with the modes that git does not keep."""
    place = shutil.copytree(HERE / name, tmp_path / name)
    for path in (*place.rglob("*.key"), *place.rglob("ledger.db*"), *place.rglob("coordinator.db*")):
        path.chmod(0o600)
    return place


def call(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def train(place: Path, run: str, dataset: str, people: bool, resume: bool = True) -> PrivateTrainer:
    """The training that wrote the old books, gone on with."""
    rows = torch.from_numpy(np.linspace(-1, 1, 60, dtype=np.float32)).reshape(-1, 1)
    config = PrivacyConfig(
        epsilon=6.0, delta=1e-3, epochs=4, batch_size=20, public_size=60, max_records=2 if people else None,
        noise="fast",
    )  # fmt: skip
    trainer = PrivateTrainer(
        nn.Linear(1, 1), config, loss=lambda model, batch: ((model(batch[0]) - batch[1]) ** 2).mean(1),
        workspace=place, run=run, dataset=dataset,
    )  # fmt: skip
    try:
        names = [row // 5 for row in range(60)] if people else None
        data = torch.utils.data.TensorDataset(rows, 2 * rows)
        trainer.train(data, learning_rate=0.1, people=names, resume=resume)
    finally:
        trainer.close()
    return trainer


def test_an_old_ledger_and_its_old_export_verify(tmp_path: Path) -> None:
    place = copy(tmp_path)
    for arguments in (["--workspace", place], ["--workspace", place, "--every-signature"]):
        done = call("ledger", "verify", *arguments)
        assert done.exit_code == 0, done.output
    done = call("ledger", "verify", "--export", HERE / "export.jsonl")
    assert done.exit_code == 0, done.output


def test_one_altered_figure_in_an_old_export_is_still_found(tmp_path: Path) -> None:
    text = (HERE / "export.jsonl").read_text()
    spent = '"epsilon":4.221133592725608'
    assert spent in text or spent.replace('"', '\\"') in text
    path = tmp_path / "altered.jsonl"
    path.write_text(text.replace("4.221133592725608", "3.221133592725608"))
    assert call("ledger", "verify", "--export", path).exit_code == 4


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.some(6)
def test_an_old_run_is_shown(tmp_path: Path, run: str) -> None:
    done = call("show", run, "--workspace", copy(tmp_path), "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["run"] == run


def test_old_runs_are_listed_and_compared(tmp_path: Path) -> None:
    place = copy(tmp_path)
    done = call("runs", "--workspace", place, "--json")
    assert done.exit_code == 0, done.output
    assert {one["run"] for one in json.loads(done.stdout)["runs"]} == set(RUNS)
    assert call("compare", "done", "people-done", "--workspace", place).exit_code == 0


def test_an_old_run_goes_on_from_its_checkpoint_to_its_end(tmp_path: Path) -> None:
    place = copy(tmp_path)
    done = call("run", "--resume", "stopped", "--workspace", place)
    assert done.exit_code == 0, done.output
    last = checkpoints.latest_checkpoint(Workspace(path=place).find("stopped").checkpoints)
    assert last is not None and last.round == 4
    assert call("ledger", "verify", "--workspace", place).exit_code == 0


def test_an_old_training_goes_on_from_its_checkpoint_to_its_end(tmp_path: Path) -> None:
    place = copy(tmp_path)
    train(place, "train-stopped", "line-2", people=False)
    assert (place / "training" / "train-stopped" / "model.safetensors").is_file()
    assert call("ledger", "verify", "--workspace", place).exit_code == 0


def test_a_coordinator_and_its_sites_go_on_with_their_old_books(tmp_path: Path) -> None:
    place = copy(tmp_path, "sites")
    world = World(place, TEXT).join()
    world.round(2)
    world.ledger.verify()
    for name in NAMES:
        world.services[name].books.ledger.verify()
    assert not world.dropped


def test_old_books_of_sites_verify(tmp_path: Path) -> None:
    place = copy(tmp_path, "sites")
    for path in (place / "coordinator.db", *(place / name / "ledger.db" for name in NAMES)):
        with Ledger.open(path, read_only=True) as ledger:
            ledger.verify()
