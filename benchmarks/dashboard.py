"""How long a page takes with 500 runs of 1000 rounds, and what an open page costs a run that goes on.

    python benchmarks/dashboard.py --skip-cost        # a million entries: some minutes, most of them make the workspace
    python benchmarks/dashboard.py --only-cost        # what a page costs a run: 3 to 4 minutes, nothing else
    python benchmarks/dashboard.py --runs 50 --rounds 100 --repeats 2

The workspace: one run is made by ``quietsum run``, as users do. The others are its folder under other names, each with
entries of its own in the ledger: chained and signed one by one, but what each round costs is copied from the first run,
and the file is written run by run. ``--verify`` lets the ledger check them all. ``--entries`` is for how many rounds of
each of those the ledger has entries, if fewer. Pages are asked for over a socket from a process of their own: *cold* is
the first request for an address after the start, *warm* are five more.

What a page costs: the same run without a reader and with a page whose news stream is open, in pairs whose order turns.
Of each pair two ratios are taken, of the processor time of the run's own process and of the seconds on the wall; both
are given as geometric means with an interval that holds the mean in 95 of 100 cases (Student's t on their logarithms).
Seconds on the wall depend on what else the machine does, those of the processor hardly.
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
import math
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
from quietsum.ledger import Head, Kind, Ledger, Row
from quietsum.ledger.chain.encoding import digest, entry_hash, head_message
from quietsum.ledger.chain.keys import SigningKey, key_path
from quietsum.ledger.chain.verify import verify_file
from quietsum.runs import RunFolder, Workspace, add_check, take_check

HERE = Path(__file__).resolve().parent
FIRST = "run-0000"
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
    options.add_argument("--repeats", type=int, default=12, help="pairs of runs without and with a reader")
    options.add_argument("--watched", type=int, default=400, help="rounds of the run that is watched")
    options.add_argument("--skip-cost", action="store_true")
    options.add_argument("--only-cost", action="store_true")
    options.add_argument("--verify", action="store_true", help="check every entry of the workspace's ledger")
    options.add_argument("--workspace", type=Path, help="use this one, made by an earlier call, or make it here")
    chosen = options.parse_args()
    print(f"python {platform.python_version()}, {os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}")
    with tempfile.TemporaryDirectory() as folder:
        if not chosen.only_cost:
            place = chosen.workspace or Path(folder) / "workspace"
            if not place.is_dir():
                make(place, chosen.runs, chosen.rounds, min(chosen.rounds, chosen.entries or chosen.rounds))
            if chosen.verify:
                verify(place)
            pages(place)
        if not chosen.skip_cost:
            cost(Path(folder), chosen.repeats, chosen.watched)


# ------------------------------------------------------------------------------------------- the workspace


def make(place: Path, runs: int, rounds: int, entries: int) -> None:
    """``runs`` runs of ``rounds`` rounds; the ledger has entries for the first ``entries`` rounds of each but one."""
    began = time.perf_counter()
    place.mkdir(parents=True)
    plan = place / "first.toml"
    plan.write_text(PLAN.format(rounds=rounds, epsilon=2.0), encoding="utf-8")
    workspace = Workspace(path=place)
    words = ["run", str(plan), "--workspace", str(place), "--name", FIRST]
    subprocess.run([sys.executable, "-m", "quietsum", *words], check=True, stdout=subprocess.DEVNULL)
    print(f"  the first run, {time.perf_counter() - began:.0f} s", flush=True)
    first = workspace.find(FIRST)
    with contextlib.closing(Additions(workspace.ledger, 2 * entries)) as ledger:
        for number in range(1, runs):
            name = f"run-{number:04d}"
            sequence, head = ledger.add(name)
            copy_folder(first, workspace.runs / name, name, sequence, head)
            if number % 50 == 0:
                print(f"  {number} runs, {time.perf_counter() - began:.0f} s", flush=True)
    with Ledger.open(workspace.ledger) as opened:  # reads it all once and leaves a snapshot, as writers do
        last = opened.head.sequence
    print(f"workspace: {runs} runs of {rounds} rounds, {last:,} entries, made in {time.perf_counter() - began:.0f} s")


def verify(place: Path) -> None:
    """Every entry of the workspace's ledger: hashes, rules, budgets and every ε."""
    began = time.perf_counter()
    found = verify_file(place / "ledger.db")
    taken = time.perf_counter() - began
    print(f"verified: {found.entries:,} entries, {found.stated:,} stated ε, in {taken:.0f} s", flush=True)


class Additions:
    """Entries of further runs: those of the first run under another name, chained and signed one by one.

    Each is what the ledger's journal would have written. They go to the file run by run, not one by one, no price is
    computed anew and no disk is waited for. ``--verify`` shows that the ledger takes them for its own.
    """

    def __init__(self, path: Path, most: int) -> None:
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

        self.key = SigningKey(load_pem_private_key(key_path(path).read_bytes(), password=None))  # type: ignore[arg-type]
        self.connection = sqlite3.connect(path)
        self.connection.execute("PRAGMA synchronous = OFF")
        rows = map(
            Row._make, self.connection.execute(f"SELECT {', '.join(Row._fields)} FROM entries ORDER BY sequence")
        )
        kinds = (Kind.RUN, Kind.RESERVE, Kind.COMMIT)
        self.pattern = [row for row in rows if row.kind in kinds and f'"run":"{FIRST}"' in row.body][: 1 + most]
        last = "SELECT sequence, hash FROM entries ORDER BY sequence DESC LIMIT 1"
        self.sequence, self.hash = self.connection.execute(last).fetchone()

    def add(self, name: str) -> tuple[int, Head]:
        """All entries of a run; where it was opened, and the head after its last entry."""
        begun, shift = self.sequence + 1, self.sequence + 1 - self.pattern[0].sequence
        with self.connection:
            self.connection.executemany("INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?, ?)", self._rows(name, shift))
        signature = self.key.sign(self._message())
        return begun, Head(ledger=self.key.public.ledger, sequence=self.sequence, hash=self.hash, signature=signature)

    def _rows(self, name: str, shift: int) -> Iterator[Row]:
        for row in self.pattern:
            body = row.body.replace(f'"run":"{FIRST}"', f'"run":"{name}"')
            if row.kind == Kind.COMMIT:  # it points at the entry before it
                body = body.replace(f'"reserve":{row.sequence - 1},', f'"reserve":{row.sequence - 1 + shift},')
            self.sequence, previous = self.sequence + 1, self.hash
            self.hash = entry_hash(
                ledger=self.key.public.ledger, previous=previous, sequence=self.sequence, kind=row.kind,
                body_hash=digest(body), time=row.time,
            )  # fmt: skip
            signature = self.key.sign(self._message())
            yield Row(self.sequence, row.kind, row.time, body, previous, self.hash, signature)

    def _message(self) -> bytes:
        return head_message(ledger=self.key.public.ledger, sequence=self.sequence, hash=self.hash)

    def close(self) -> None:
        """Let the file go."""
        self.connection.close()


def copy_folder(first: RunFolder, target: Path, name: str, sequence: int, head: Head) -> None:
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
    told = {**take_check(told), "run": name, "head": head.to_dict()}
    header = {"quietsum": json.dumps(add_check(told), sort_keys=True)}
    (target / "model.safetensors").write_bytes(save(values, header))


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
    """What a run costs with a reader, beside one without, in pairs whose order turns."""
    place = folder / "watched"
    place.mkdir()
    plan = folder / "watched.toml"
    plan.write_text(PLAN.format(rounds=rounds, epsilon=2.0), encoding="utf-8")
    found: dict[str, list[tuple[float, float]]] = {"processor": [], "wall": []}
    reading, began = [], time.perf_counter()
    one_run(place, plan, "warm-up")
    with serving(place) as server:
        for number in range(repeats):
            taken: dict[bool, tuple[float, float]] = {}
            for watched in (False, True) if number % 2 else (True, False):
                before = processor_seconds(server.process.pid)
                taken[watched] = one_run(place, plan, f"{number}-{watched}", server if watched else None)
                if watched:
                    reading.append((processor_seconds(server.process.pid) - before) / taken[True][1])
            for values, with_it, without in zip(found.values(), taken[True], taken[False], strict=True):
                values.append((with_it, without))
    print(
        f"\na run of {rounds} rounds, {repeats} pairs in {time.perf_counter() - began:.0f} s, seconds of its process\n"
    )
    print("| | without a reader, median | with a page open, median | ratio | 95 % interval |")
    print("|---|--:|--:|--:|--:|")
    for name, pairs in found.items():
        ratio, low, high = mean_ratio(pairs)
        medians = [statistics.median(one[place] for one in pairs) for place in (1, 0)]
        print(f"| {name} | {medians[0]:.2f} | {medians[1]:.2f} | {ratio:.4f} | {low:.4f}–{high:.4f} |")
    print(f"\nthe dashboard's share of one processor meanwhile: {100 * statistics.median(reading):.1f} %")


def mean_ratio(pairs: list[tuple[float, float]]) -> tuple[float, float, float]:
    """The geometric mean of first over second, and its interval (Student's t on the logarithms, 95 %)."""
    from scipy.stats import t

    logs = [math.log(first / second) for first, second in pairs]
    middle = statistics.fmean(logs)
    spread = statistics.stdev(logs) / math.sqrt(len(logs)) if len(logs) > 1 else math.inf
    reach = float(t.ppf(0.975, max(1, len(logs) - 1))) * spread
    return math.exp(middle), math.exp(middle - reach), math.exp(min(reach + middle, 700.0))


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
    wall = time.perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    if reader is not None:
        reader.join()
    if process.returncode:
        raise SystemExit(f"the run {name} failed")
    return usage.ru_utime + usage.ru_stime, wall


def read_along(server: Server, place: Path, name: str, process: subprocess.Popen[bytes]) -> None:
    """A page as a browser has it: loaded once, then its stream until the end."""
    while not (place / "runs" / name / "run.db").exists() and process.returncode is None:
        time.sleep(0.05)
    server.get(f"/runs/{name}")
    server.get(f"/runs/{name}/live")


if __name__ == "__main__":
    main()
