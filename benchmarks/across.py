"""What does a round across machines cost? Ours beside plain Flower: the same model and data, TLS and node keys in both.

    python benchmarks/across.py                     two models, ten rounds each: about six minutes
    python benchmarks/across.py --quick             the small model, four rounds
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

Exit code 1 where a run of ours fails, weights disagree by more than float32 rounding, or a ledger does not verify.
"""

from __future__ import annotations

import os

for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_variable] = "1"  # before numpy is imported

import argparse
import dataclasses
import json
import platform
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

ACROSS = Path(__file__).resolve().parent / "peers" / "across"
sys.path.insert(0, str(ACROSS))

import sites  # type: ignore[import-not-found]
from processes import Counter, Failed, Look, Stage, free_port  # type: ignore[import-not-found]

BIN = Path(sys.executable).parent
QUIETSUM = (sys.executable, "-m", "quietsum")
ROWS = {"flower": "plain Flower 1.41.0", "public": "quietsum, no noise", "record": "quietsum, noise per record"}
FLOAT32 = 1e-6
"""Relative to the largest weight."""


@dataclasses.dataclass(kw_only=True)
class Found:
    """What one run has shown."""

    problem: str = ""
    answers: float = 0.0
    startup: float = 0.0
    first: float = 0.0
    seconds: list[float] = dataclasses.field(default_factory=list)
    apart: float | None = None
    memory: dict[str, tuple[float, float]] = dataclasses.field(default_factory=dict)
    processor: float = 0.0
    wire: list[float] = dataclasses.field(default_factory=list)
    spent: str = ""
    verified: bool = True


@dataclasses.dataclass(frozen=True, kw_only=True)
class Asked:
    """One run to make."""

    model: str
    sites: int
    rounds: int
    counted: bool = False

    @property
    def names(self) -> list[str]:
        """The sites."""
        return [f"site-{i}" for i in range(self.sites)]

    @property
    def patience(self) -> float:
        """Seconds after which a run is given up."""
        return 120.0 + 40.0 * self.rounds


def main() -> int:
    """All runs, one after the other, then the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, help="10 if unsaid")
    parser.add_argument("--sites", type=int, default=3)
    parser.add_argument("--models", nargs="+", choices=list(sites.SHAPES), default=list(sites.SHAPES))
    parser.add_argument("--only", nargs="+", choices=list(ROWS), default=list(ROWS))
    parser.add_argument("--quick", action="store_true", help="four rounds of the small model")
    parser.add_argument("--bytes", action="store_true", help="count bytes on the wire in place of time")
    told = parser.parse_args()
    rounds = told.rounds or (4 if told.quick or told.bytes else 10)
    if rounds < 2 or told.sites < 1:
        parser.error("at least two rounds and one site: the first round is left out")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that every process is ended
    print(f"{time.strftime('%Y-%m-%d')}, Python {platform.python_version()}, {os.cpu_count()} cores", end="")
    print(f", load {os.getloadavg()[0]:.1f} when it began\n", flush=True)
    fine = True
    for model in told.models[:1] if told.quick else told.models:
        asked = Asked(model=model, sites=told.sites, rounds=rounds, counted=told.bytes)
        found = {kind: measured(kind, asked) for kind in told.only}
        (print_wire if told.bytes else print_tables)(asked, found)
        fine &= judged(found)
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


# ------------------------------------------------------------------------------------------------ plain Flower


def flower(folder: Path, asked: Asked) -> Found:
    """A SuperLink, SuperNodes and an app, as Flower's own commands start them."""
    if not (BIN / "flower-superlink").exists():
        raise Failed("Flower is not installed: pip install flwr==1.41.0")
    port, home, app = free_port(), folder / "flwr", folder / "app"
    home.mkdir()
    shutil.copytree(ACROSS / "app", app, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ACROSS / "sites.py", app / "across_app" / "sites.py")
    environment = {
        "FLWR_HOME": str(home), "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1",
        "PATH": f"{BIN}{os.pathsep}{os.environ.get('PATH', '')}", "NO_COLOR": "1",
    }  # fmt: skip
    found, times, weights = Found(), folder / "times.jsonl", folder / "weights.npy"
    with Stage(folder, environment) as stage:
        keys = _keys(stage, asked)
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "127.0.0.1:{port}"\n'
            f'root-certificates = "{keys / "ca.crt"}"\n',
            encoding="utf-8",
        )
        began = time.monotonic()
        stage.start(
            "superlink",
            [
                str(BIN / "flower-superlink"), "--ssl-certfile", str(keys / "server.crt"),
                "--ssl-keyfile", str(keys / "server.key"), "--ssl-ca-certfile", str(keys / "ca.crt"),
                "--enable-supernode-auth", "--disable-runtime-dependency-installation",
                "--host", "127.0.0.1", "--port", str(port), "--database", str(folder / "state.db"),
            ],
        )  # fmt: skip
        stage.until(lambda: _answers(port), "the SuperLink answers", 60)
        found.answers = time.monotonic() - began
        for name in asked.names:
            stage.call(str(BIN / "flwr"), "supernode", "register", str(keys / name / "node.pub"), "here")
        counter, door = _door(asked, port)
        with Look(stage, apart="flwr-serverapp", gauges=_gauges(counter)) as look:
            began_ = time.time()
            for i, name in enumerate(asked.names):
                stage.start(
                    name,
                    [
                        str(BIN / "flower-supernode"), "--root-certificates", str(keys / "ca.crt"),
                        "--auth-supernode-private-key", str(keys / name / "node.key"),
                        "--superlink", f"127.0.0.1:{door}", "--port", str(free_port()),
                        "--node-config", f"partition-id={i} num-partitions={asked.sites}",
                    ],
                )  # fmt: skip
            settings = f'rounds={asked.rounds} sites={asked.sites} model="{asked.model}" out="{folder}"'
            printed = stage.call(
                str(BIN / "flwr"), "run", str(app), "here", "--run-config", settings, "--format", "json"
            )
            try:
                stage.until(lambda: weights.exists() or look.vanished(5.0), "the app is done", asked.patience)
                if not weights.exists():
                    raise Failed("the ServerApp ended without a model")
            except Failed as failure:
                raise Failed(f"{failure}; flwr log says: {_flower_log(stage, printed)}") from None
        events = [json.loads(line) for line in times.read_text(encoding="utf-8").splitlines()]
        _times(found, events, began_, look, asked)
        found.apart = _apart(np.load(weights), asked)
    return found


def _flower_log(stage: Stage, printed: str) -> str:
    try:
        number = str(json.loads(printed)["run-id"])
        return stage.call(str(BIN / "flwr"), "log", number, "here", "--show").strip()[-800:]
    except (Failed, ValueError, KeyError, TypeError, subprocess.TimeoutExpired) as failure:
        return f"nothing ({failure})"


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


# -------------------------------------------------------------------------------------------------------- ours

PLAN = """
[task]
name = "sites_task:Sites"
options = {options}
[federation]
rounds = {rounds}
minimum_parties = {sites}
[training]
sample_rate = {rate}
local_steps = 1
optimizer = {{ kind = "sgd", learning_rate = {step} }}
[privacy]
{privacy}
[aggregation]
weights = "equal"
"""
POLICY = """
[site]
name = "{name}"
[coordinator]
address = "127.0.0.1:{port}"
root_certificate = "ca.crt"
node_key = "node.key"
[dataset]
name = "records-{number}"
size = {size}
{public}
[[tasks]]
name = "sites_task:Sites"
options = {options}
{budget}
"""
PROMISE = 'style = "sample"\nrecord = { epsilon = 8.0, delta = 1e-3 }'
BUDGET = "[record]\nepsilon = 8.0\ndelta = 1e-3\nsmallest_noise = 0.1\nlargest_clip = 1.0"
PUBLIC = 'public = "the records are made up"'


def ours(folder: Path, asked: Asked, protected: bool) -> Found:
    """The same with our commands; the ledgers are checked afterwards."""
    port, found, workspace = free_port(), Found(), folder / "workspace"
    options = f'{{ model = "{asked.model}", sites = {asked.sites}, protected = {str(protected).lower()} }}'
    privacy, rate = (PROMISE, 0.1) if protected else ('style = "none"', 1.0)
    told = {"rounds": asked.rounds, "sites": asked.sites, "rate": rate, "step": sites.RATE}
    (folder / "run.toml").write_text(PLAN.format(options=options, privacy=privacy, **told), encoding="utf-8")
    with Stage(folder, {"PYTHONPATH": str(ACROSS)}) as stage:
        keys = _keys(stage, asked)
        began = time.monotonic()
        link = ("superlink", "--keys", str(keys), "--listen", f"127.0.0.1:{port}", "--folder", "link")
        stage.start("superlink", [*QUIETSUM, *link])
        stage.until(lambda: "SuperLink at" in stage.said("superlink"), "the SuperLink answers", 60)
        found.answers = time.monotonic() - began
        counter, door = _door(asked, port)
        for i, name in enumerate(asked.names):
            (keys / name / "policy.toml").write_text(
                POLICY.format(
                    name=name, number=i, port=door, size=sites.EACH, options=options,
                    public="" if protected else PUBLIC, budget=BUDGET if protected else "",
                ),
                encoding="utf-8",
            )  # fmt: skip
        with Look(stage, gauges=_gauges(counter)) as look:
            began_, events = time.time(), list[dict[str, Any]]()
            for name in asked.names:
                stage.start(name, [*QUIETSUM, "party", "serve", "--policy", str(keys / name / "policy.toml")])
            command = (
                "run", "run.toml", "--on", "flower", "--keys", str(keys), "--superlink", "link",
                "--workspace", str(workspace), "--wait", "60", "--json",
            )  # fmt: skip
            run = stage.start("coordinator", [*QUIETSUM, *command], stdout=subprocess.PIPE)
            reader = threading.Thread(target=_read, args=(run, events), daemon=True)
            reader.start()
            stage.until(lambda: run.poll() == 0, "the run is done", asked.patience)
            reader.join()
        _times(found, events, began_, look, asked)
        for name in asked.names:
            stage.roots[name].terminate()
            stage.roots.pop(name).wait(20)
        for place in (workspace, *(keys / name for name in asked.names)):
            try:
                stage.call(*QUIETSUM, "ledger", "verify", "--workspace", str(place))
            except Failed as failure:
                found.verified = False
                print(failure, file=sys.stderr)
        _learned(found, events, workspace, asked, protected)
    return found


def _read(run: subprocess.Popen[bytes], events: list[dict[str, Any]]) -> None:
    """Every event with the time at which it came."""
    assert run.stdout is not None
    for line in run.stdout:
        events.append({**json.loads(line), "time": time.time()})


def _learned(found: Found, events: list[dict[str, Any]], workspace: Path, asked: Asked, protected: bool) -> None:
    from safetensors.numpy import load_file

    last = [event for event in events if event["event"] == "round-finished"][-1]
    if not protected:
        (model,) = (workspace / "runs").glob("*/model.safetensors")
        found.apart = _apart(load_file(model)["params"], asked)
        return
    spent = {f"ε {one['epsilon']:.3f} per {one['unit']} at δ {one['delta']:g}" for one in last["spent"]}
    found.spent = ", ".join(sorted(spent))


# ------------------------------------------------------------------------------------------------------- common


def _keys(stage: Stage, asked: Asked) -> Path:
    keys = stage.folder / "keys"
    names = [word for name in asked.names for word in ("--party", name)]
    stage.call(*QUIETSUM, "keys", "make", str(keys), *names)
    return keys


def _door(asked: Asked, port: int) -> tuple[Any, int]:
    """Where sites knock: at the SuperLink, or at the counter before it."""
    counter = Counter(port) if asked.counted else None
    return counter, counter.port if counter is not None else port


def _gauges(counter: Any) -> Any:
    return tuple if counter is None else lambda: tuple(counter.counts)


def _times(found: Found, events: list[dict[str, Any]], began: float, look: Look, asked: Asked) -> None:
    """Rounds from their events, and what was used between the end of the first and of the last."""
    started = [event["time"] for event in events if event["event"] == "round-started"]
    ended = [event["time"] for event in events if event["event"] == "round-finished"]
    if len(ended) != asked.rounds:
        raise Failed(f"{len(ended)} of {asked.rounds} rounds were whole")
    found.startup, found.first = started[0] - began, ended[0] - started[0]
    found.seconds = [float(gap) for gap in np.diff(ended)]
    found.processor, *found.wire = (value / (asked.rounds - 1) for value in look.between(ended[0], ended[-1]))
    found.memory = look.largest


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

    import tomllib

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


def _apart(weights: Any, asked: Asked) -> float:
    expected, _ = reference(asked)
    if weights.shape != expected.shape:
        return float("inf")
    return float(np.abs(weights - expected).max() / np.abs(expected).max())


def judged(found: dict[str, Found]) -> bool:
    """Whether everything that must hold does."""
    fine = True
    for kind, one in found.items():
        if one.problem and kind != "flower":
            fine = False
        if one.apart is not None and not one.apart <= FLOAT32:
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
    print("\n```text", *(_said(kind, one) for kind, one in found.items()), "```\n", sep="\n", flush=True)


def _said(kind: str, one: Found) -> str:
    if one.problem:
        return f"{ROWS[kind]} could not be run: {one.problem}"
    told = [] if one.apart is None else [f"weights differ from one process by {one.apart:.0e}"]
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
    print("\n```text", *(_said(kind, one) for kind, one in found.items()), "```\n", sep="\n", flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
