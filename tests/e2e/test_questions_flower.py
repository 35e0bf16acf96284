"""quietsum ask --on flower: four sites answer under masks, each by its own policy, table and books."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from analytics.asking import COLUMNS, EVERY, SURVIVAL, _pairs, people, questions_of, toml_of, write_table
from quietsum.cli.app import app
from quietsum.ledger import Ledger

pytest.importorskip("flwr")
pytestmark = pytest.mark.slow

SIZES = {"bern": 300, "basel": 200, "zug": 250, "genf": 300}
POLICY = """
[site]
name = "{name}"
[coordinator]
address = "127.0.0.1:{port}"
root_certificate = "ca.crt"
node_key = "node.key"
[dataset]
name = "registry-{name}"
size = {size}
[rules]
aggregation = ["distributed-noise"]
secure = "required"
[record]
epsilon = 4.0
delta = 1e-5
[questions]
table = "table.csv"
epsilon = 2.0
day = 2.0
"""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def test_four_sites_answer_under_masks_and_their_books_show_it(tmp_path: Path) -> None:
    port, rng, keys = free_port(), np.random.default_rng(1), tmp_path / "keys"
    names = [word for name in SIZES for word in ("--party", name)]
    assert CliRunner().invoke(app, ["keys", "make", str(keys), *names]).exit_code == 0
    declared = "".join("[[questions.columns]]\n" + "\n".join(_pairs(one.to_dict())) + "\n" for one in COLUMNS)
    for name, size in SIZES.items():
        write_table(keys / name / "table.csv", people(size, rng))
        (keys / name / "policy.toml").write_text(POLICY.format(name=name, port=port, size=size) + declared)
    path = tmp_path / "questions.toml"
    path.write_text(toml_of(questions_of(SIZES, EVERY[0], SURVIVAL, tables=False, secure=True)))
    started: list[subprocess.Popen[bytes]] = []
    try:
        for name in SIZES:
            with (tmp_path / f"{name}.log").open("wb") as out:
                command = ["party", "serve", "--policy", str(keys / name / "policy.toml")]
                started.append(
                    subprocess.Popen([sys.executable, "-m", "quietsum", *command], stdout=out, stderr=out, cwd=tmp_path)
                )
        asking = ["ask", str(path), "--on", "flower", "--keys", str(keys), "--listen", f"127.0.0.1:{port}"]
        words = [sys.executable, "-m", "quietsum", *asking, "--workspace", str(tmp_path / "w"), "--json"]
        done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path, timeout=240, env={**os.environ})
        assert done.returncode == 0, done.stderr
    finally:
        for process in started:
            process.send_signal(signal.SIGTERM)
        end = time.monotonic() + 20
        for process in started:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.1, end - time.monotonic()))
            process.kill()
    told = json.loads(done.stdout)
    (count,) = told["answers"][0]["estimates"]
    assert abs(count["value"] - 1050) < 6 * told["answers"][0]["deviation"]
    assert told["privacy"]["noise"] == "one sum of all sites" and "p" in told["answers"][1]["test"]
    for name in SIZES:
        with Ledger.open(keys / name / "ledger.db", read_only=True) as ledger:
            paid = [one.epsilon for run in ledger.runs() for one in ledger.spending_by_party(run.run).values()]
            assert [epsilon for epsilon in paid if epsilon > 0] == [pytest.approx(2.0, abs=1e-3)]
            ledger.verify()
