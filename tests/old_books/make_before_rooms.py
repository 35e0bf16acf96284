"""Writes the books of before the source tree was rebuilt in rooms, with the command line alone.

They were made once, by the commit that `MADE_BY` names, and are never made again: what later versions do with them is
the test. The script stays as the record of what they hold. It imports nothing of quietsum, so that it can be read and
run whatever modules are called. A site's books are not among them: only a running SuperLink makes them, and
:mod:`old_books.make_sites` has kept some.

    git worktree add ../before MADE_BY
    PYTHONPATH=../before/src python tests/old_books/make_before_rooms.py
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path

MADE_BY = "577ada2"
FOLDER = Path(__file__).parent / "before_rooms"
QUIETSUM = (sys.executable, "-m", "quietsum")
STOPPED_AFTER = 2

RECORDS = """\
[task]
name = "heart"

[federation]
rounds = {rounds}
spare_attempts = {spare}

[training]
sample_rate = 0.25
local_steps = 1
optimizer = {{ kind = "sgd", learning_rate = 0.4 }}

[privacy]
style = "sample"
record = {{ epsilon = 1.0, delta = 1e-5, max_grad_norm = 0.5, lifetime = {{ epsilon = 20.0, delta = 1e-5 }}{more} }}

[aggregation]
{aggregation}
"""

HYBRID = """\
[task]
name = "heart"

[federation]
rounds = 3

[training]
sample_rate = 1.0
local_steps = 1
optimizer = { kind = "sgd", learning_rate = 0.4 }

[privacy]
style = "hybrid"
record = { epsilon = 2.0, delta = 1e-5, max_grad_norm = 0.5, lifetime = { epsilon = 20.0, delta = 1e-5 } }
client = { epsilon = 8.0, delta = 0.02, max_norm = 0.5 }
"""

GROUPS = """\
[task]
name = "digits"

[federation]
rounds = 2
split = "iid"
parties = 12

[training]
sample_rate = 0.5
local_steps = 1
optimizer = { kind = "sgd", learning_rate = 0.5 }

[privacy]
style = "sample"
record = { epsilon = 4.0, delta = 1e-5, max_grad_norm = 1.0, lifetime = { epsilon = 20.0, delta = 1e-5 } }

[aggregation]
rule = "median"
weights = "equal"
attackers = 1
secure = true
groups = 3
"""

QUESTIONS = """\
title = "Visits at four places"

[privacy]
epsilon = 1.0
delta = 1e-5
lifetime = { epsilon = 4.0, delta = 1e-5 }

[[columns]]
name = "patient_id"
kind = "identifier"
[[columns]]
name = "age"
kind = "number"
bounds = [0, 100]
cells = 10
[[columns]]
name = "weeks"
kind = "number"
bounds = [0, 50]
cells = 5
[[columns]]
name = "died"
kind = "category"
categories = ["0", "1"]

[[questions]]
name = "patients"
kind = "count"
[[questions]]
name = "age"
kind = "mean"
column = "age"
[[questions]]
name = "alive"
kind = "survival"
time = "weeks"
event = "died"
event_value = "1"
weight = 4
"""
SITES = ("bern", "basel", "chur", "genf")
HERE = "/proc/self/cwd"  # a plan keeps the whole path of a table: this one is the same on every Linux machine

ALERTS = """\
[rules]
chance = { accuracy = 0.5 }
"""


def quietsum(*words: str) -> None:
    """One command in the working folder, which must succeed."""
    print("$ quietsum", *words, flush=True)
    subprocess.run([*QUIETSUM, *words], check=True)


def stopped(plan: str, name: str) -> None:
    """A run that gets Ctrl-C as soon as its checkpoint of round ``STOPPED_AFTER`` is there."""
    kept = Path("workspace") / "runs" / name / "checkpoints" / f"round-{STOPPED_AFTER:06}.safetensors"
    running = subprocess.Popen([*QUIETSUM, "run", plan, "--name", name, "--workspace", "workspace"])
    while running.poll() is None and not kept.is_file():
        with contextlib.suppress(subprocess.TimeoutExpired):
            running.wait(0.002)
    running.send_signal(signal.SIGINT)
    if running.wait(120) != 128 + signal.SIGINT:
        sys.exit(f"the run {name} was not stopped midway: exit code {running.returncode}")


def tables() -> str:
    """A small made-up table for each site, and the lines of ``questions.toml`` about them."""
    drawn = random.Random(577)
    lines = []
    for site in SITES:
        rows = [f"{site}{n},{drawn.randint(20, 95)},{drawn.randint(0, 49)},{drawn.randint(0, 1)}" for n in range(60)]
        Path(f"{site}.csv").write_text("\n".join(("patient_id,age,weeks,died", *rows)) + "\n")
        lines.append(f'[[sites]]\nname = "{site}"\nsize = 60\ntable = "{HERE}/{site}.csv"\n')
    return "".join(lines)


def write() -> None:
    """Everything, into the working folder."""
    inside = ("--workspace", "workspace")
    Path("workspace").mkdir()
    Path("workspace/alerts.toml").write_text(ALERTS)
    plans = {
        "finished": RECORDS.format(rounds=4, spare=1, more="", aggregation='rule = "mean"'),
        "stopped": RECORDS.format(rounds=12, spare=0, more="", aggregation='rule = "mean"'),
        "hybrid": HYBRID,
        "secure": RECORDS.format(
            rounds=2, spare=0, more=', noise_at = "distributed"', aggregation="secure = true\ndrop_outs = 0"
        ),
        "groups": GROUPS,
    }
    for name, text in plans.items():
        Path(f"{name}.toml").write_text(text)
        if name == "stopped":
            stopped(f"{name}.toml", name)
        else:
            quietsum("run", f"{name}.toml", "--name", name, *inside)
    quietsum("train", "--task", "digits", "--epsilon", "3", "--epochs", "2", *inside)
    Path("questions.toml").write_text(QUESTIONS + "\n" + tables())
    quietsum("ask", "questions.toml", "--name", "asked", *inside)
    quietsum("party", "new", "policy.toml", "--name", "Basel", "--size", "303")
    quietsum("ledger", "export", "export.jsonl", *inside)


def main() -> None:
    if FOLDER.exists():
        sys.exit("the books are there; they are made once")
    for name in ("QUIETSUM_WORKSPACE", "QUIETSUM_DATA"):
        os.environ.pop(name, None)
    with tempfile.TemporaryDirectory() as made, contextlib.chdir(made):
        write()
        for path in Path().rglob("*.db"):
            with contextlib.closing(sqlite3.connect(path)) as books:
                books.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        for path in (*Path().rglob(".lock"), *Path().rglob("*.db-*")):
            path.unlink()
        shutil.copytree(made, FOLDER)


if __name__ == "__main__":
    main()
