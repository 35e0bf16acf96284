"""How long a page takes with 500 runs of 1000 rounds, and what an open page costs a run that goes on.

    python benchmarks/dashboard.py                    # about ten minutes: most of it makes the workspace
    python benchmarks/dashboard.py --runs 50 --rounds 100 --skip-cost

The workspace: one run is made by ``quietsum run``, as users do. The others are its folder under other names, each with
entries of its own in the ledger, which the ledger's own journal chains, signs and writes; what each round costs is
copied from the first run and not priced again, and the disk is not waited for. ``--entries`` is for how many rounds of
each of those the ledger has entries, if fewer. Pages are asked for over a socket from a process of their own: *cold* is
the first request for an address after the start, *warm* are five more.

What a page costs: the same run, first without a reader and then with a page whose news stream is open, in turn. Seconds
of processor time of the run, and of the dashboard meanwhile, since those of the wall depend on who else is at work.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import contextlib
import dataclasses
import http.client
import json
import platform
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from quietsum.files import write_atomically
from quietsum.ledger import Kind, Ledger
from quietsum.plan import load_plan, resolve
from quietsum.runs import RunFolder, TaskFacts, Workspace, add_check, take_check

HERE = Path(__file__).resolve().parent
PLAN = """
[task]
name = "heart"
[federation]
rounds = {rounds}
[training]
sample_rate = 0.05
local_steps = 1
[privacy]
record = {{ epsilon = {epsilon}, delta = 1e-5 }}
"""


def main() -> None:
    """Make the workspace, time the pages, time a run with and without a reader."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--runs", type=int, default=500)
    options.add_argument("--rounds", type=int, default=1000)
    options.add_argument("--entries", type=int)
    options.add_argument("--repeats", type=int, default=5)
    options.add_argument("--watched", type=int, default=300, help="rounds of the run that is watched")
    options.add_argument("--skip-cost", action="store_true")
    options.add_argument("--workspace", type=Path, help="use this one, made by an earlier call, or make it here")
    chosen = options.parse_args()
    print(f"python {platform.python_version()}, {os.cpu_count()} processors")
    with tempfile.TemporaryDirectory() as folder:
        place = chosen.workspace or Path(folder) / "workspace"
        if len(list(place.glob("runs/*/run.json"))) < chosen.runs:  # what was broken off goes on
            make(place, chosen.runs, chosen.rounds, min(chosen.rounds, chosen.entries or chosen.rounds))
        pages(place)
        if not chosen.skip_cost:
            cost(Path(folder), chosen.repeats, chosen.watched)


# ------------------------------------------------------------------------------------------- the workspace


def make(place: Path, runs: int, rounds: int, entries: int) -> None:
    """``runs`` runs of ``rounds`` rounds; the ledger has entries for the first ``entries`` rounds of each but one."""
    began = time.perf_counter()
    place.mkdir(parents=True, exist_ok=True)
    plan = place / "first.toml"
    plan.write_text(PLAN.format(rounds=rounds, epsilon=2.0), encoding="utf-8")
    if not (place / "runs").is_dir():
        words = ["run", str(plan), "--workspace", str(place), "--name", "run-0000"]
        subprocess.run([sys.executable, "-m", "quietsum", *words], check=True, stdout=subprocess.DEVNULL)
    workspace = Workspace(path=place)
    first = workspace.find("run-0000")
    facts = TaskFacts.read(first.path)
    assert facts is not None
    resolved = resolve(load_plan(first.path / "plan.toml"), facts.parties, facts.dimension)
    with waiting_for_no_disk(), Ledger.open(workspace.ledger) as ledger:
        kinds = (Kind.RESERVE, Kind.COMMIT)
        bodies = [(entry.kind, dict(entry.body)) for entry in ledger.entries() if entry.kind in kinds]
        known = {one.run for one in ledger.runs()}
        for number in range(1, runs + 1):
            if f"run-{number:04d}" in known or len(list(place.glob("runs/*/run.json"))) >= runs:
                continue
            name = f"run-{number:04d}"
            sequence = ledger.open_run(
                name, plan=resolved.plan.to_dict(), terms=resolved.terms(), planned=resolved.all_charges(),
                datasets=resolved.datasets(), lifetimes=resolved.lifetimes(),
            ).sequence  # fmt: skip
            with ledger._journal.writing("benchmark") as add:
                for kind, body in bodies[: 2 * entries]:
                    own = {"reserve": add.last.sequence} if kind is Kind.COMMIT else {}
                    add(kind, {**body, "run": name, **own})
            copy_folder(first, workspace.runs / name, name, sequence, ledger)
            if number % 50 == 0:
                print(f"  {number} runs, {time.perf_counter() - began:.0f} s", flush=True)
    print(f"workspace: {runs} runs of {rounds} rounds made in {time.perf_counter() - began:.0f} s")


def copy_folder(first: RunFolder, target: Path, name: str, sequence: int, ledger: Ledger) -> None:
    """The folder of the first run under another name, with the head that its model was saved with."""
    from safetensors import safe_open
    from safetensors.numpy import save

    shutil.copytree(first.path, target)
    about = json.loads((target / "run.json").read_text(encoding="utf-8"))
    about.pop("check", None)
    fresh = {
        key: value for key, value in about.items() if key in ("format", "run", "plan", "created", "ledger", "sites")
    }
    write_atomically(
        target / "run.json", json.dumps(add_check({**fresh, "run": name, "sequence": sequence})).encode(), sync=False
    )
    with safe_open(target / "model.safetensors", framework="numpy") as file:
        values = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        told = json.loads(file.metadata()["quietsum"])
    told = {**take_check(told), "run": name, "head": ledger.head.to_dict()}
    header = {"quietsum": json.dumps(add_check(told), sort_keys=True)}
    (target / "model.safetensors").write_bytes(save(values, header))


@contextlib.contextmanager
def waiting_for_no_disk() -> Iterator[None]:
    """Entries are written and signed as ever; that they are on disk is not waited for, which half a million would."""
    real = sqlite3.connect

    def connect(*words: object, **more: object) -> sqlite3.Connection:
        connection = real(*words, **more)  # type: ignore[call-overload]
        connection.execute("PRAGMA synchronous = OFF")
        made: sqlite3.Connection = connection
        return made

    sqlite3.connect = connect  # type: ignore[assignment]
    try:
        yield
    finally:
        sqlite3.connect = real


# ----------------------------------------------------------------------------------------------- the pages


@dataclasses.dataclass
class Server:
    """A dashboard in a process of its own."""

    port: int
    cookie: str
    process: subprocess.Popen[bytes]

    def get(self, address: str) -> tuple[float, int, bytes]:
        """Seconds, status and body of one request on a connection of its own."""
        began = time.perf_counter()
        connection = http.client.HTTPConnection("localhost", self.port, timeout=120)
        connection.request("GET", address, headers={"Cookie": self.cookie})
        answer = connection.getresponse()
        body = answer.read()
        taken = time.perf_counter() - began
        connection.close()
        return taken, answer.status, body


@contextlib.contextmanager
def serving(place: Path) -> Iterator[Server]:
    """``quietsum serve`` with the operator's pages."""
    words = [sys.executable, "-m", "quietsum", "serve", str(place), "--port", "0", "--operator", "--json"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        said = json.loads(process.stdout.readline())
        port = int(said["address"].rpartition(":")[2])
        connection = http.client.HTTPConnection("localhost", port, timeout=60)
        connection.request("GET", f"/?token={said['token']}")
        cookie = connection.getresponse().headers["set-cookie"].partition(";")[0]
        time.sleep(4)  # the planner's process begins beside the pages
        yield Server(port, cookie, process)
    finally:
        process.terminate()
        process.wait(20)


def pages(place: Path) -> None:
    """Each page, cold and warm."""
    names = [folder.path.name for folder in Workspace(path=place).folders()]
    some = [names[round(share * (len(names) - 1))] for share in (0.0, 0.1, 0.25, 0.4, 0.5, 0.6, 0.75, 0.9, 1.0)]
    with Ledger.open(place / "ledger.db", read_only=True) as ledger:
        last = ledger.head.sequence
    kinds = {
        "runs": ["/", *(f"/?page={number}" for number in range(2, 9)), "/?q=run-03"],
        "run": [f"/runs/{name}" for name in some],
        "rounds": [f"/runs/{name}/rounds" for name in some],
        "ledger": ["/ledger", *(f"/ledger?before={1 + round(share * last)}" for share in (0.01, 0.2, 0.5, 0.8, 0.99))],
        "parties": [f"/parties?run={name}" for name in some],
        "compare": ["/compare", f"/compare?run={some[0]}&run={some[-1]}", "&run=".join(["/compare?run=", *some])],
        "planner": ["/planner", *(f"/planner/answer?epsilon={place}" for place in range(5, 15))],
        "alerts": ["/alerts", "/alerts?all=1", "/alerts?all=1&page=3"],
        "questions, audits": ["/questions", "/audits"],
        "report": [f"/runs/{name}/report" for name in some],
    }
    print(f"\n{len(names)} runs, {last:,} entries in the ledger\n")
    print("| page | requests | cold p50 | cold p95 | cold, processor | warm p50 | warm p95 | warm, processor |")
    print("|---|--:|--:|--:|--:|--:|--:|--:|")
    with serving(place) as server:
        first, status, _ = server.get("/")
        for kind, addresses in kinds.items():
            begun = processor_seconds(server.process.pid)
            cold = [timed(server, address) for address in addresses]
            middle = processor_seconds(server.process.pid)
            warm = [timed(server, address) for _ in range(5) for address in addresses]
            ended = processor_seconds(server.process.pid)
            figures = (
                statistics.median(cold), p95(cold), (middle - begun) / len(cold),
                statistics.median(warm), p95(warm), (ended - middle) / len(warm),
            )  # fmt: skip
            row = [kind, len(addresses), *(f"{1e3 * value:.0f}" for value in figures)]
            print("| " + " | ".join(map(str, row)) + " |", flush=True)
    print("\nmilliseconds; processor: the mean cost of a request to the process, however busy the machine is")
    print(f"the very first request, which opens the ledger: {1e3 * first:.0f} ms (status {status})")


def timed(server: Server, address: str) -> float:
    """Seconds of one request, which must be answered."""
    taken, status, body = server.get(address)
    if status != 200:
        raise SystemExit(f"{address}: {status} {body[-400:]!r}")
    return taken


def p95(values: list[float]) -> float:
    """The value that 95 of 100 do not exceed."""
    return sorted(values)[min(len(values) - 1, int(0.95 * len(values)))]


# ------------------------------------------------------------------------------------------------ the cost


def cost(folder: Path, repeats: int, rounds: int) -> None:
    """Processor seconds of a run without a reader and with one, in turn."""
    place = folder / "watched"
    place.mkdir()
    plan = folder / "watched.toml"
    plan.write_text(PLAN.format(rounds=rounds, epsilon=2.0), encoding="utf-8")
    alone, watched, reading, walls = [], [], [], []
    one_run(place, plan, "warm-up")
    with serving(place) as server:
        for number in range(repeats):
            alone.append(one_run(place, plan, f"alone-{number}")[0])
            before = processor_seconds(server.process.pid)
            spent, wall = one_run(place, plan, f"watched-{number}", server)
            watched.append(spent)
            reading.append(processor_seconds(server.process.pid) - before)
            walls.append(wall)
    print(f"\na run of {rounds} rounds, processor seconds of its process, {repeats} times in turn")
    for name, values in (("without a reader", alone), ("with a page open", watched), ("the dashboard", reading)):
        print(f"  {name}: median {statistics.median(values):.2f}, {min(values):.2f} to {max(values):.2f}")
    print(f"  difference of the medians: {100 * (statistics.median(watched) / statistics.median(alone) - 1):+.1f} %")
    share = statistics.median(one / wall for one, wall in zip(reading, walls, strict=True))
    print(f"  the dashboard's share of one processor meanwhile: {100 * share:.1f} %")


def processor_seconds(pid: int) -> float:
    """User and system time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def one_run(place: Path, plan: Path, name: str, server: Server | None = None) -> tuple[float, float]:
    """Processor and wall seconds of one run; with a ``server``, a page and its stream are open all the while."""
    words = [sys.executable, "-m", "quietsum", "run", str(plan), "--workspace", str(place), "--name", name]
    began = time.perf_counter()
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL)
    reader = None
    if server is not None:
        reader = threading.Thread(target=read_along, args=(server, place, name, process))
        reader.start()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if reader is not None:
        reader.join()
    if process.returncode:
        raise SystemExit(f"the run {name} failed")
    return usage.ru_utime + usage.ru_stime, time.perf_counter() - began


def read_along(server: Server, place: Path, name: str, process: subprocess.Popen[bytes]) -> None:
    """A page as a browser has it: loaded once, then its stream until the end."""
    while not (place / "runs" / name / "run.db").exists() and process.returncode is None:
        time.sleep(0.05)
    server.get(f"/runs/{name}")
    server.get(f"/runs/{name}/live")


if __name__ == "__main__":
    main()
