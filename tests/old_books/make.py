"""Writes the old books into this folder: what quietsum wrote before entries carried a pricing version.

They were made once, by the commit that `MADE_BY` names, and are never made again: what later versions do with them is
the test. The script stays as the record of what they hold.

    git worktree add ../old MADE_BY
    PYTHONPATH=../old/src:tests python tests/old_books/make.py
"""

from __future__ import annotations

import contextlib
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from old_books import clinic
from quietsum import report
from quietsum.federation.watch import RunEvent
from quietsum.learning.config import PrivacyConfig
from quietsum.learning.trainer import PrivateTrainer
from quietsum.plan import Plan
from quietsum.runs.folder import RunFolder, Workspace
from quietsum.runs.record import Recorder
from quietsum.runs.run import start

MADE_BY = "74c3d71"
HERE = Path(__file__).parent


class Several:
    """Watchers of which some come later."""

    def __init__(self, watchers: list[Any]) -> None:
        self.watchers = watchers

    def saw(self, event: RunEvent) -> None:
        for watcher in self.watchers:
            watcher.saw(event)


class StopAfter:
    """A watcher that stops the run by hand, between rounds."""

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds

    def saw(self, event: RunEvent) -> None:
        if event.kind == "round-finished" and event.round == self.rounds:  # type: ignore[attr-defined]
            raise KeyboardInterrupt


def plan(task: str, sizes: dict[str, int], privacy: dict[str, Any], sampling: dict[str, Any] | None = None) -> Plan:
    return Plan.from_dict({
        "task": {"name": f"old_books.clinic:{task}", "options": {"sizes": sizes}},
        "federation": {"rounds": 4, "sampling": sampling or {"kind": "everyone"}},
        "training": {"sample_rate": 0.5, "local_steps": 1, "optimizer": {"kind": "sgd", "learning_rate": 0.5}},
        "privacy": privacy,
        "aggregation": {},
    })  # fmt: skip


def records(**more: Any) -> dict[str, Any]:
    record = {"epsilon": 2.0, "delta": 1e-3, "max_grad_norm": 1.0, **more.pop("record", {})}
    return {"style": "sample", "record": record, **more}


def clients(**more: Any) -> dict[str, Any]:
    client = {"epsilon": 6.0, "delta": 1e-2, "max_norm": 1.0, **more.pop("client", {})}
    return {"style": "user", "client": client, **more}


def run(place: Workspace, name: str, made: Plan, stop: int | None = None) -> None:
    task = getattr(clinic, made.task.name.partition(":")[2])(**made.task.options)
    watchers: list[Any] = [] if stop is None else [StopAfter(stop)]
    with contextlib.ExitStack() as stack:

        def opened(folder: RunFolder, *_: object) -> None:
            watchers.insert(0, stack.enter_context(Recorder(folder.path / "run.db")))

        with contextlib.suppress(KeyboardInterrupt):
            result = start(made, workspace=place, name=name, task=task, watchers=[Several(watchers)], opened=opened)
            report.write(result.folder, place)


def training(place: Workspace, name: str, dataset: str, people: bool, stop: bool) -> None:
    class Halt(Exception):
        pass

    def watch(epoch: Any) -> None:
        if stop and epoch.epoch == 2:
            raise Halt

    torch.manual_seed(1)
    rows = torch.from_numpy(np.linspace(-1, 1, 60, dtype=np.float32)).reshape(-1, 1)
    data = torch.utils.data.TensorDataset(rows, 2 * rows)
    config = PrivacyConfig(
        epsilon=6.0,
        delta=1e-3,
        epochs=4,
        batch_size=20,
        public_size=60,
        max_records=2 if people else None,
        noise="fast",
    )
    trainer = PrivateTrainer(
        nn.Linear(1, 1), config, loss=lambda model, batch: ((model(batch[0]) - batch[1]) ** 2).mean(1),
        workspace=place.path, run=name, dataset=dataset, watch=watch,
    )  # fmt: skip
    try:
        trainer.train(data, learning_rate=0.1, people=[row // 5 for row in range(60)] if people else None)
    except Halt:
        pass
    finally:
        trainer.close()


def main() -> None:
    place = Workspace(path=HERE / "workspace")
    if place.path.exists():
        sys.exit("the old books are there; they are made once")
    wide = {"lifetime": {"epsilon": 40.0, "delta": 1e-3}}
    wider = {"lifetime": {"epsilon": 90.0, "delta": 1e-2}}
    run(place, "done", plan("PointsTask", {"aa": 12, "ab": 8}, records()))
    run(place, "stopped", plan("PointsTask", {"ba": 12, "bb": 8}, records()), stop=2)
    two = {"kind": "fixed-size", "size": 2}
    for letter, name, stop, more in (
        ("c", "fixed-done", None, {"neighbours": "replace-one", "client": wider}),
        ("d", "fixed-stopped", 2, {"neighbours": "replace-one", "client": wider}),
        ("e", "fixed-tight", 2, {"neighbours": "replace-one"}),
        ("f", "fixed-zero-out", 2, {"neighbours": "zero-out"}),
    ):
        sites = {f"{letter}{number}": 6 for number in range(9)}
        run(place, name, plan("PointsTask", sites, clients(**more), two), stop=stop)
    person = {"person": {"id": "patient", "max_records": 2}}
    run(place, "people-done", plan("ClinicTask", {"ga": 20, "gb": 15}, records(**person, record=wide)))
    run(place, "people-stopped", plan("ClinicTask", {"ha": 20, "hb": 15}, records(**person, record=wide)), stop=2)
    run(place, "people-tight", plan("ClinicTask", {"ia": 20, "ib": 15}, records(**person)), stop=2)
    run(place, "people-zero", plan("ClinicTask", {"ja": 20}, records(**person, neighbours="zero-out")), stop=2)
    training(place, "train-done", "line", people=False, stop=False)
    training(place, "train-stopped", "line-2", people=False, stop=True)
    training(place, "train-people", "line-3", people=True, stop=True)
    command = [sys.executable, "-m", "quietsum", "ledger", "export", "--workspace", str(place.path)]
    subprocess.run([*command, str(HERE / "export.jsonl")], check=True)
    with contextlib.closing(sqlite3.connect(place.ledger)) as ledger:
        ledger.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    for path in (*place.path.rglob(".lock"), *place.path.glob("ledger.db-*"), *place.path.rglob("run.db-*")):
        path.unlink()


if __name__ == "__main__":
    main()
