"""A torch model over Flower: two sites that alone hold their records, and a coordinator that holds none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from e2e.test_flower import free_port
from quietsum.cli.app import app
from quietsum.ledger import Kind, Ledger

pytest.importorskip("flwr")
pytestmark = pytest.mark.slow

SIZES = {"north": 300, "south": 200}
PLAN = """
[task]
name = "own_lines:Lines"
[federation]
rounds = 3
deadline = 300.0
[training]
sample_rate = 0.5
local_steps = 2
optimizer = { kind = "sgd", learning_rate = 1.0 }
[privacy]
style = "sample"
record = { epsilon = 8.0, delta = 1e-4, max_grad_norm = 1.0 }
"""
POLICY = """
[site]
name = "{name}"
[coordinator]
address = "127.0.0.1:{port}"
root_certificate = "ca.crt"
node_key = "node.key"
[dataset]
name = "lines-{name}"
size = {size}
[[tasks]]
name = "own_lines:Lines"
here = {{ site = "{name}", records = "{file}" }}
[record]
epsilon = 20.0
delta = 1e-4
"""


@pytest.mark.timeout(240)
def test_a_torch_model_trains_at_sites_whose_records_nobody_else_has(tmp_path: Path) -> None:
    port, keys = free_port(), tmp_path / "keys"
    made = CliRunner().invoke(app, ["keys", "make", str(keys), "--party", "north", "--party", "south"])
    assert made.exit_code == 0, made.output
    plan = tmp_path / "run.toml"
    plan.write_text(PLAN, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent), "OMP_NUM_THREADS": "1"}

    def start(called: str, *words: str) -> subprocess.Popen[bytes]:
        with (tmp_path / f"{called}.log").open("wb") as out:
            return subprocess.Popen(
                [sys.executable, "-m", "quietsum", *words], stdout=out, stderr=out, env=environment, cwd=tmp_path
            )

    processes = []
    try:
        for number, (name, size) in enumerate(SIZES.items()):
            file = keys / name / "points.npy"
            np.save(file, np.random.default_rng(number).normal(size=(size - 20, 2)))  # fewer than declared
            words = POLICY.format(name=name, port=port, size=size, file=file)
            (keys / name / "policy.toml").write_text(words, encoding="utf-8")
            processes.append(start(name, "party", "serve", "--policy", str(keys / name / "policy.toml")))
        run = start(
            "run", "run", str(plan), "--on", "flower", "--keys", str(keys), "--listen", f"127.0.0.1:{port}",
            "--workspace", "workspace", "--name", "lines", "--wait", "300",
        )  # fmt: skip
        processes.append(run)
        told = run.wait(550), (tmp_path / "run.log").read_text(encoding="utf-8")
        assert told[0] == 0, told[1][-3000:]
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait(300)
    assert "round 3/3 · 2 of 2 parties" in told[1], told[1][-3000:]
    for name in SIZES:
        with Ledger.open(keys / name / "ledger.db", read_only=True) as ledger:
            kinds = [entry.kind for entry in ledger.entries()]
            assert kinds.count(Kind.RESERVE) == kinds.count(Kind.COMMIT) == 3
