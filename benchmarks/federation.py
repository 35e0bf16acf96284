"""How many clients a second? Ours beside Flower on Ray and pfl: the same model, the same data, the same final weights.

    python benchmarks/federation.py --environments DIR [--install]      rounds beside Flower and pfl
    python benchmarks/federation.py --memory                                         peak memory, 100 to 10,000 clients
    python benchmarks/federation.py --private                                        10,000 clients x 20 rounds, ε 8
    python benchmarks/federation.py --device cuda                                    side by side on a graphics card

The work is softmax regression 784 → 10 (7,850 parameters), twenty records a client, full batches, every client in every
round (``benchmarks/peers/workload.py``). Each framework runs in a process and an environment of its own, one after the
other; ``--install`` makes the peers' environments with plain pip. The first round loads and compiles and is left out;
the figure is the median of the others. A round of ours is the whole of it: reservation and commit in the ledger,
cohort, training, fold, server step. Flower and pfl keep no ledger. Weights after six rounds must agree to float32
rounding.

The part for graphics cards needs torch and numpy, and the files of this repository beside it.
"""

from __future__ import annotations

import os

for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_variable] = "1"  # before numpy is imported

import argparse
import functools
import json
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
PEERS = HERE / "peers"
NEEDS = {"flower": ("flwr[simulation]==1.41.0", "torch==2.13.0"), "pfl": ("pfl==0.6.0", "torch==2.13.0")}
SCRIPTS = {"quietsum": "with_quietsum.py", "flower": "with_flower.py", "pfl": "with_pfl.py"}
ROWS = (
    ("quietsum", "quietsum", 1),
    ("quietsum, 2 workers", "quietsum", 2),
    ("pfl 0.6.0", "pfl", 1),
    ("Flower 1.41.0 + Ray, 2 actors", "flower", 2),
)
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "RAY_USAGE_STATS_ENABLED": "0"}


def main() -> None:
    """One of the four questions."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--environments", type=Path, help="a folder with environments flower/ and pfl/")
    parser.add_argument("--install", action="store_true", help="make those environments first")
    parser.add_argument("--clients", type=int, nargs="+", default=[100, 1000])
    parser.add_argument("--steps", type=int, nargs="+", default=[1, 5], help="local steps a round")
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--private", action="store_true")
    parser.add_argument("--workers", type=int, default=1, help="worker processes of --private")
    parser.add_argument("--device", default="cpu")
    told = parser.parse_args()
    if told.device != "cpu":
        return on_a_card(told.device)
    print(f"{time.strftime('%Y-%m-%d')}, Python {platform.python_version()}, {os.cpu_count()} cores", end="")
    print(f", load {os.getloadavg()[0]:.1f} when it began\n")
    if told.memory:
        return memory()
    if told.private:
        return private(told.workers)
    if told.install:
        install(told.environments or Path("environments"))
    for steps in told.steps:
        for clients in told.clients:
            rounds(told.environments, clients, steps)
    return None


# ---------------------------------------------------------------------------------------- beside the others


def install(environments: Path) -> None:
    """The peers' environments."""
    for name, needs in NEEDS.items():
        if not (environments / name).exists():
            subprocess.run([sys.executable, "-m", "venv", str(environments / name)], check=True)
        subprocess.run([str(environments / name / "bin" / "pip"), "install", "--quiet", *needs], check=True)


def python_of(name: str, environments: Path | None) -> str | None:
    """The interpreter of one framework, if it is there."""
    if name == "quietsum":
        return sys.executable
    found = None if environments is None else (environments / name / "bin" / "python").absolute()
    return str(found) if found is not None and found.exists() else None


def run(name: str, python: str, out: Path, **told: Any) -> dict[str, Any]:
    """One framework in its own process; its times, and its weights in ``out``."""
    options = [text for key, value in told.items() for text in (f"--{key}", str(value))]
    command = [python, str(PEERS / SCRIPTS[name]), *options, "--out", str(out)]
    environment = {**os.environ, **QUIET, "PYTHONPATH": str(PEERS)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=PEERS, timeout=1800)
    if done.returncode:
        raise SystemExit(f"{name} failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    found: dict[str, Any] = json.loads((out / "result.json").read_text(encoding="utf-8"))
    return found


def rounds(environments: Path | None, clients: int, steps: int) -> None:
    """One table: seconds of a round, clients a second, and how far the weights lie apart."""
    import numpy as np

    print(f"### {clients:,} clients a round, {steps} local step{'s' if steps > 1 else ''}\n")
    print("| | a round, ms | clients a second | time, quietsum = 1 | weights differ by |")
    print("|---|---:|---:|---:|---:|")
    wanted = {"pfl": 1.0, "flower": 10.0}
    verdicts: list[str] = []
    ours: float | None = None
    reference: Any = None
    with tempfile.TemporaryDirectory() as folder:
        for label, name, workers in ROWS:
            python = python_of(name, environments)
            if python is None:
                print(f"| {label} | no environment | | | |")
                continue
            out = Path(folder) / f"{name}-{workers}"
            found = run(name, python, out, clients=clients, steps=steps, workers=workers)
            middle = statistics.median(found["seconds"][1:])
            weights = np.load(out / "weights.npy")
            reference = weights if reference is None else reference
            apart = float(np.abs(weights - reference).max() / np.abs(reference).max())
            ours = ours or middle
            told = f"| {label} | {1e3 * middle:,.0f} | {clients / middle:,.0f} | {middle / ours:.1f} | {apart:.0e} |"
            print(told, flush=True)
            if apart > 1e-5:
                raise SystemExit(f"{label} has learned something else")
            if name in wanted:
                met = "met   " if middle / ours >= wanted[name] else "missed"
                verdicts.append(f"{met} {label} / quietsum: {middle / ours:.1f}, wanted ≥ {wanted[name]:g}")
    print("\n```text", *verdicts, "```\n", sep="\n")


def memory() -> None:
    """Peak memory of one process: 10,000 clients a round must not need more than 100."""
    print("| clients a round | peak memory, MB | a round, ms |")
    print("|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as folder:
        for clients in (100, 1000, 10_000):
            found = run("quietsum", sys.executable, Path(folder) / str(clients), clients=clients, rounds=2)
            middle = statistics.median(found["seconds"][1:])
            print(f"| {clients:,} | {found['peak_mb'][0]:,.0f} | {1e3 * middle:,.0f} |", flush=True)


# ------------------------------------------------------------------------------------- private, end to end

PLAN = """
[task]
name = "softmax_task:Softmax"
options = {{ clients = {clients} }}

[federation]
rounds = 20

[training]
sample_rate = 1.0
local_steps = 1
optimizer = {{ kind = "sgd", learning_rate = 0.05 }}

[privacy]
style = "user"
client = {{ epsilon = 8.0, delta = 1e-5, max_norm = 0.5 }}

[aggregation]
weights = "equal"
"""


def private(workers: int, clients: int = 10_000) -> None:
    """``quietsum run``: resolving the plan, 20 rounds of 10,000 clients, ledger, checkpoints, report."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.toml"
        path.write_text(PLAN.format(clients=clients), encoding="utf-8")
        command = [sys.executable, "-m", "quietsum", "run", str(path), "--workspace", folder, "--json"]
        if workers > 1:
            command += ["--workers", str(workers)]
        began = time.perf_counter()
        done = subprocess.run(
            command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(PEERS)}, cwd=folder,
        )  # fmt: skip
        seconds, peak = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
        if done.returncode:
            raise SystemExit(f"quietsum run failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
        events = [json.loads(line) for line in done.stdout.splitlines()]
        last = [event for event in events if event["event"] == "round-finished"][-1]
        verified = subprocess.run(
            [sys.executable, "-m", "quietsum", "ledger", "verify", "--workspace", folder],
            capture_output=True,
            text=True,
        )
    spent = {f"ε {one['epsilon']:.3f} per {one['unit']}, against the {one['observer']}" for one in last["spent"]}
    trained = sum(len(event["kept"]) for event in events if event["event"] == "round-finished")
    print(f"{clients:,} clients × {last['round']} rounds, {workers} process{'es' if workers > 1 else ''}")
    print(f"  {seconds:.1f} s from start to report: {trained / seconds:,.0f} clients a second, peak {peak:,.0f} MB")
    for text in sorted(spent):
        print(f"  {text}")
    print(f"  accuracy {last['metrics']['accuracy']:.3f} on {last['metrics_on']['accuracy']}")
    print(f"  quietsum ledger verify: {'fine' if verified.returncode == 0 else 'BROKEN'}")


# ----------------------------------------------------------------------------------------------- on a card


def _bare_packages() -> None:
    """Where quietsum's other dependencies are missing: its torch modules alone, and no randomness."""
    source = HERE.parent / "src"
    for name in [name for name in sys.modules if name.split(".")[0] == "quietsum"]:
        del sys.modules[name]
    for name in ("quietsum", "quietsum.learning", "quietsum.mechanisms", "quietsum.privacy"):
        package = types.ModuleType(name)
        package.__path__ = [str(source / name.replace(".", "/"))]
        sys.modules[name] = package
    bare = types.ModuleType("quietsum.mechanisms.rng")
    bare.RandomSource = object  # type: ignore[attr-defined]  # full batches draw nothing
    sys.modules[bare.__name__] = bare


def on_a_card(device: str) -> None:
    """1000 clients side by side beside one at a time, on the same card."""
    import numpy as np
    import torch
    from torch import nn

    try:
        from quietsum.learning.clients.side_by_side import SideBySide
    except ImportError:
        _bare_packages()
        from quietsum.learning.clients.side_by_side import SideBySide
    from quietsum.learning.clients.padded import PlainOrders
    from quietsum.sampling import Everyone

    sys.path.insert(0, str(PEERS))
    import workload  # type: ignore[import-not-found]

    torch.manual_seed(0)
    torch.backends.cudnn.allow_tf32 = False  # so that both ways can be compared to float32 rounding

    def losses(model: nn.Module, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        return nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")

    def seconds(what: Callable[[], object], times: int) -> float:
        what()
        found = []
        for _ in range(times):
            torch.cuda.synchronize()
            began = time.perf_counter()
            what()
            torch.cuda.synchronize()
            found.append(time.perf_counter() - began)
        return statistics.median(found)

    convolutional = nn.Sequential(
        nn.Unflatten(1, (1, 28, 28)), nn.Conv2d(1, 16, 8, 2, padding=3), nn.ReLU(), nn.MaxPool2d(2, 1),
        nn.Conv2d(16, 32, 4, 2), nn.ReLU(), nn.MaxPool2d(2, 1), nn.Flatten(), nn.Linear(512, 32), nn.ReLU(),
        nn.Linear(32, 10),
    )  # fmt: skip
    models = {"softmax regression": nn.Linear(784, 10), "small CNN": convolutional}
    records = tuple(torch.from_numpy(part).to(device) for part in workload.pool())
    shards = [np.arange(workload.rows(i).start, workload.rows(i).stop) for i in range(1000)]
    name = torch.cuda.get_device_name()
    print(f"{time.strftime('%Y-%m-%d')}, torch {torch.__version__}, {name}, 1,000 clients of 20 records\n")
    print(
        "| model | parameters | local steps | one at a time, clients/s | side by side, clients/s | faster | differ by |"
    )
    print("|---|---:|---:|---:|---:|---:|---:|")
    rng: Any = None  # full batches draw nothing
    for label, model in models.items():
        by = SideBySide(model.to(device), losses)
        params = np.concatenate([part.detach().cpu().double().numpy().ravel() for part in model.parameters()])
        for steps in (1, 5):
            orders = [PlainOrders(steps=steps, sampling=Everyone(), expected_batch=20.0, learning_rate=0.1)] * 1000
            together = functools.partial(_together, by, params, records, shards, orders, rng)
            alone = functools.partial(_alone, by, params, records, shards[:50], orders, rng)
            many, few = seconds(together, 11) / 1000, seconds(alone, 5) / 50
            apart = np.abs(together()[:50] - alone()).max() / np.abs(alone()).max()
            print(
                f"| {label} | {len(params):,} | {steps} | {1 / few:,.0f} | {1 / many:,.0f} | {few / many:.0f}× | "
                f"{apart:.0e} {by.why_alone(records, rng)}|", flush=True,
            )  # fmt: skip


def _together(by: Any, params: Any, records: Any, shards: Any, orders: Any, rng: Any) -> Any:
    import numpy as np

    found = np.empty((len(shards), len(params)))
    for places, deltas in by.train(params, records, shards, orders, rng):
        found[places] = deltas
    return found


def _alone(by: Any, params: Any, records: Any, shards: Any, orders: Any, rng: Any) -> Any:
    import numpy as np

    return np.stack([by.alone(params, records, own, orders[0], rng) for own in shards])


if __name__ == "__main__":
    main()
