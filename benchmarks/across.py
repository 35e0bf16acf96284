"""What does a round across machines cost? Ours beside plain Flower: the same model and data, TLS and node keys in both.

    python benchmarks/across.py                     two models, ten rounds each: about six minutes
    python benchmarks/across.py --quick             the small model, four rounds
    python benchmarks/across.py --quick --only record --sites 3 50      fifty sites at one SuperLink, beside three
    python benchmarks/across.py --bytes             what goes over the wire, by a counter before the SuperLink's port

Three sites, a SuperLink and a coordinator, all on this machine over loopback, every process its own; softmax regression
in float64 with 7,850 and with 1,000,100 parameters, forty records a site, one step a round (``peers/across``).

* plain Flower: flower-superlink, flower-supernode, FedAvg in an app sent by ``flwr run``; no noise, no books;
* quietsum, no noise: ``quietsum superlink``, ``party serve``, ``run --on flower``, on records that are declared public.
  The same arithmetic; both ledgers are written as always;
* quietsum, noise per record: what people run. A gradient per record, secure noise, budgets in both ledgers.

A round is the time from the end of the one before to its own end, for rounds 2 … n. *Work alone* is that of all sites,
one after the other in one process. Start-up counts from the moment the SuperLink answers and keys are registered, until
round 1 begins. Memory is the largest sum over a process and its descendants, looked at twice a second; RSS counts a
page once for each process that maps it, PSS divides it among them.

Exit code 1 where a run of ours fails, weights disagree by more than float32 rounding, or a ledger does not verify. A
peer that cannot be run is said to be so, with the reason.
"""

from __future__ import annotations

import os

for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_variable] = "1"  # before numpy is imported

import argparse
import itertools
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import textwrap
import time
import tomllib
from pathlib import Path
from typing import Any

import numpy as np

ACROSS = Path(__file__).resolve().parent / "peers" / "across"
sys.path.insert(0, str(ACROSS))

import sites  # type: ignore[import-not-found]
from processes import Failed  # type: ignore[import-not-found]

from runs import PLAN, PROMISE, Asked, Found, flower, ours  # type: ignore[import-not-found]

ROWS = {"flower": "plain Flower 1.41.0", "public": "quietsum, no noise", "record": "quietsum, noise per record"}
FLOAT32 = 1.2e-7
"""Its rounding; weights may differ by so much, relative to the largest one."""


def main() -> int:
    """All runs, one after the other, then the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, help="10 if unsaid")
    parser.add_argument("--sites", type=int, nargs="+", default=[3], help="several numbers: one after the other")
    parser.add_argument("--models", nargs="+", choices=list(sites.SHAPES), default=list(sites.SHAPES))
    parser.add_argument("--only", nargs="+", choices=list(ROWS), default=list(ROWS))
    parser.add_argument("--quick", action="store_true", help="four rounds of the small model")
    parser.add_argument("--bytes", action="store_true", help="count bytes on the wire in place of time")
    told = parser.parse_args()
    rounds = told.rounds or (4 if told.quick or told.bytes else 10)
    if rounds < 2 or min(told.sites) < 1:
        parser.error("at least two rounds and one site: the first round is left out")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that every process is ended
    print(f"{time.strftime('%Y-%m-%d')}, Python {platform.python_version()}, {os.cpu_count()} cores", end="")
    print(f", load {os.getloadavg()[0]:.1f} when it began\n", flush=True)
    fine = True
    models = told.models[:1] if told.quick else told.models
    for model, number in itertools.product(models, told.sites):
        asked = Asked(model=model, sites=number, rounds=rounds, counted=told.bytes)
        found = {kind: measured(kind, asked) for kind in told.only}
        (print_wire if told.bytes else print_tables)(asked, found)
        fine &= judged(asked, found)
    print(f"load {os.getloadavg()[0]:.1f} when it ended")
    return 0 if fine else 1


def measured(kind: str, asked: Asked) -> Found:
    """One run in a folder of its own; a failure is a result, with its reason."""
    print(f"{ROWS[kind]}, {asked.model} model: running", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(prefix="across-") as folder:
        try:
            return flower(Path(folder), asked) if kind == "flower" else ours(Path(folder), asked, kind == "record")
        except (Failed, OSError, subprocess.TimeoutExpired) as failure:
            return Found(problem=" ".join(str(failure).split()))


def reference(asked: Asked) -> tuple[Any, float]:
    """The same rounds in this process, and the seconds that the sites' work takes in one, all of them together."""
    params, seconds = np.zeros(sites.dimension(asked.model)), []
    for i in range(asked.sites):
        sites.records(asked.model, i)
    for _ in range(asked.rounds):
        began = time.perf_counter()
        results = [sites.trained(asked.model, params, i) for i in range(asked.sites)]
        seconds.append(time.perf_counter() - began)
        params = sum(results) / asked.sites
    return params, statistics.median(seconds)


def private_work(asked: Asked) -> float:
    """The same with a gradient and noise per record, by the orders of the plan."""
    from quietsum.mechanisms.rng import system_randomness
    from quietsum.plan import Plan, resolve

    import sites_task  # type: ignore[import-not-found]  # isort: skip

    text = PLAN.format(options="{}", privacy=PROMISE, rounds=asked.rounds, sites=asked.sites, rate=0.1, step=sites.RATE)
    task = sites_task.Sites(model=asked.model, sites=asked.sites, protected=True)
    resolved = resolve(Plan.from_dict(tomllib.loads(text)), task.parties(), task.dimension)
    rng, params, seconds = system_randomness(), np.zeros(task.dimension), []
    for number in range(1, min(asked.rounds, 5) + 1):
        began = time.perf_counter()
        for name in asked.names:
            task.train(name, params, resolved.orders(name, number), rng)
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)


def apart(one: Found, asked: Asked) -> float | None:
    """How far the weights lie from those of one process, relative to the largest one; None where noise was added."""
    if one.weights is None:
        return None
    expected, _ = reference(asked)
    if one.weights.shape != expected.shape:
        return float("inf")
    return float(np.abs(one.weights - expected).max() / np.abs(expected).max())


def judged(asked: Asked, found: dict[str, Found]) -> bool:
    """Whether everything that must hold does."""
    fine = True
    for kind, one in found.items():
        if one.problem and kind != "flower":
            fine = False
        if (far := apart(one, asked)) is not None and not far <= FLOAT32:
            print(f"WRONG: {ROWS[kind]} has learned something else")
            fine = False
        if not one.verified:
            print(f"WRONG: {ROWS[kind]}: a ledger does not verify")
            fine = False
    return fine


def heading(asked: Asked) -> str:
    """Of one model's tables."""
    return f"### {sites.dimension(asked.model):,} parameters, {asked.sites} sites, {asked.rounds} rounds\n"


def print_tables(asked: Asked, found: dict[str, Found]) -> None:
    """Times and memory of one model."""
    alone = {"flower": reference(asked)[1]}
    alone["public"] = alone["flower"]
    print(heading(asked))
    print("| | a round, s (min – max) | work alone, s | over it, s | a party, s | CPU-s a round |")
    print("|---|---:|---:|---:|---:|---:|")
    for kind, one in found.items():
        if one.problem:
            print(f"| {ROWS[kind]} | could not be run, see below | | | | |")
            continue
        work = alone[kind] if kind in alone else private_work(asked)
        middle = statistics.median(one.seconds)
        span = f"{middle:.2f} ({min(one.seconds):.2f} – {max(one.seconds):.2f})"
        over = middle - work
        print(f"| {ROWS[kind]} | {span} | {work:.4f} | {over:.2f} | {over / asked.sites:.2f} | {one.processor:.2f} |")
    print("\n| RSS / PSS, MB | a site | SuperLink | coordinator |")
    print("|---|---:|---:|---:|")
    for kind, one in found.items():
        if not one.problem:
            largest = [max(one.memory[name] for name in asked.names), one.memory["superlink"]]
            largest.append(one.memory.get("coordinator", (float("nan"), float("nan"))))
            print(f"| {ROWS[kind]} | " + " | ".join(f"{rss:.0f} / {pss:.0f}" for rss, pss in largest) + " |")
    print("\n| seconds | SuperLink answers | sites and run, until round 1 | round 1 |")
    print("|---|---:|---:|---:|")
    for kind, one in found.items():
        if not one.problem:
            print(f"| {ROWS[kind]} | {one.answers:.1f} | {one.startup:.1f} | {one.first:.1f} |")
    print("\n```text", *(_said(asked, kind, one) for kind, one in found.items()), "```\n", sep="\n", flush=True)


def _said(asked: Asked, kind: str, one: Found) -> str:
    if one.problem:
        return textwrap.fill(f"{ROWS[kind]} could not be run: {one.problem}", 80)
    told = [] if (far := apart(one, asked)) is None else [f"weights differ from one process by {far:.0e}"]
    told += [one.spent] if one.spent else []
    if kind != "flower":
        told += ["ledgers verify on both sides" if one.verified else "A LEDGER DOES NOT VERIFY"]
    return f"{ROWS[kind]}: {'; '.join(told)}"


def print_wire(asked: Asked, found: dict[str, Found]) -> None:
    """Bytes of one model: all sites together, with TLS, polling and all else that passes the port."""
    model = sites.dimension(asked.model) * 8 * asked.sites
    print(heading(asked))
    print(f"The model, {asked.sites} times: {model / 1e6:,.2f} MB\n")
    print("| MB a round, all sites | to the SuperLink | from it |")
    print("|---|---:|---:|")
    for kind, one in found.items():
        told = "could not be run | " if one.problem else f"{one.wire[0] / 1e6:,.2f} | {one.wire[1] / 1e6:,.2f}"
        print(f"| {ROWS[kind]} | {told} |")
    print("\n```text", *(_said(asked, kind, one) for kind, one in found.items()), "```\n", sep="\n", flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
