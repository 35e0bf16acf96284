"""How long does it take to list many runs? Real ones, each with folder, checkpoints, model and report, in one ledger.

Every run is a federation of the heart task over a few rounds, made by the functions behind ``quietsum run``. Each has
its own ε, so that no two plans are alike. Then ``quietsum runs`` and ``quietsum show`` are started as a user starts
them, each in a process of its own, and timed from outside.

``--runs N`` sets how many there are (default 500), ``--workspace DIR`` keeps them there, and adds what is missing.
"""

from __future__ import annotations

import os

for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_variable] = "1"  # before numpy is imported

import argparse
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROUNDS = 3
PLAN = """
[task]
name = "heart"
[federation]
rounds = {rounds}
[training]
sample_rate = 0.25
local_steps = 1
[privacy]
record = {{ epsilon = {epsilon}, delta = 1e-3 }}
"""


def make(workspace: Path, count: int) -> None:
    """As many runs as are missing, finished, with their reports."""
    from quietsum import report
    from quietsum.plan import load_plan
    from quietsum.runs.folder import Workspace
    from quietsum.runs.record import Recorder
    from quietsum.runs.run import start

    place = Workspace.at(workspace)
    known = {folder.run for folder in place.folders()}
    for number in range(count):
        name = f"run-{number:04d}"
        if name in known:
            continue
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "run.toml"
            path.write_text(PLAN.format(rounds=ROUNDS, epsilon=1 + number / 1000), encoding="utf-8")
            plan = load_plan(path)
        result = start(plan, workspace=place, name=name)
        with Recorder(result.folder.path / "run.db"):
            pass
        report.write(result.folder, place)
        if number % 50 == 49:
            print(f"{number + 1} runs", flush=True)


def timed(*arguments: object) -> tuple[float, float]:
    """Seconds, and seconds of the processor, of one command; its output is thrown away."""
    command = [sys.executable, "-m", "quietsum", *map(str, arguments)]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    wall = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--runs", type=int, default=500)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--workspace", type=Path, default=None)
    parser.add_argument("--make", action="store_true", help="make the runs, and time nothing")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        place = options.workspace or Path(folder) / "workspace"
        make(place, options.runs)
        if options.make:
            return
        print(f"load {os.getloadavg()[0]:.1f}, Python {sys.version.split()[0]}\n")
        print(f"| with {options.runs} runs of {ROUNDS} rounds | seconds | of the processor |\n|---|---:|---:|")
        for command in (["runs"], ["runs", "--json"], ["show", "latest"], ["--version"]):
            where = [] if command == ["--version"] else ["--workspace", place]
            found = [timed(*command, *where) for _ in range(options.repeat)]
            wall, cpu = (statistics.median(times) for times in zip(*found, strict=True))
            print(f"| `quietsum {' '.join(command)}` | {wall:.2f} | {cpu:.2f} |", flush=True)


if __name__ == "__main__":
    main()
