"""Two coordinators on one ledger: does a budget hold, is an entry lost, and what does sharing cost?

Two processes reserve at the same time from the budget of one dataset, on a PostgreSQL ledger and then on a SQLite one,
on the same machine and disk, each reservation durable before the next. The budget has room for seven tenths of what
they ask for. How many exactly is computed beforehand by the Rényi filter alone, without a ledger. The exit code is 1
where another number went through, where a receipt's entry is not in the ledger, or where the ledger does not verify.

The server is the one that QUIETSUM_TEST_POSTGRES names (its disk is then measured), else a fresh one that lies in a
temporary folder and is ended afterwards. ``--markdown`` prints the table for docs/benchmarks.md.
"""

from __future__ import annotations

import os

for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_variable] = "1"  # before numpy is imported

import argparse
import importlib.util
import json
import multiprocessing
import multiprocessing.connection
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quietsum import Budget, Gaussian, PoissonSampled, PrivacyUnit, Repeated
from quietsum.errors import BudgetExhausted
from quietsum.ledger import Charge, Dataset, Ledger, Terms
from quietsum.ledger.chain.keys import key_path
from quietsum.ledger.pricing import FAILURE_SHARE
from quietsum.ledger.stores.location import url_path
from quietsum.privacy import RenyiFilter
from quietsum.privacy.renyi.filters import best_order

STEP = PoissonSampled(rate=0.1, event=Gaussian(noise_multiplier=40.0))
DELTA = 1e-5
COORDINATORS = 2
ROOM = 0.7


def room_in(epsilon: float) -> int:
    """How many reservations fit a lifetime of ε: the filter's own answer, found by bisection."""
    budget = Budget(epsilon=epsilon, delta=DELTA * (1 - FAILURE_SHARE))
    gate = RenyiFilter(budget=budget, order=best_order(budget))
    low, high = 0, 1
    while gate.allows(STEP, times=high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if gate.allows(STEP, times=middle) else (low, middle)
    return low


def lifetime_for(count: int) -> float:
    """An ε with room for about so many."""
    low, high = 0.01, 20.0
    while high - low > 1e-3:
        middle = (low + high) / 2
        low, high = (middle, high) if room_in(middle) < count else (low, middle)
    return round(high, 3)


def charge(times: int) -> Charge:
    return Charge(party="Basel", dataset="heart", unit=PrivacyUnit.RECORD, event=Repeated(times=times, event=STEP))


@dataclass(frozen=True, kw_only=True)
class Work:
    """What one coordinator is told."""

    ledger: Path
    run: str
    count: int
    epsilon: float


def coordinator(work: Work, gate: multiprocessing.synchronize.Barrier, answer: Path) -> None:
    """Reserve one round after the other; write down which entries we were told of, and how long each took."""
    told: list[tuple[int, str]] = []
    seconds: list[float] = []
    refused = 0
    with Ledger.open(work.ledger) as ledger:
        lifetime = Budget(epsilon=work.epsilon, delta=DELTA)
        ledger.open_run(
            work.run,
            plan={"federation": {"rounds": work.count}, "name": work.run},
            terms=Terms(limits=(lifetime,)),
            planned=[charge(work.count)],
            datasets=[Dataset(party="Basel", dataset="heart", size=300)],
            lifetimes=(lifetime,),
        )
        gate.wait()
        one, begun, last = [charge(1)], time.perf_counter(), 0.0
        for number in range(1, work.count + 1):
            start = time.perf_counter()
            try:
                receipt = ledger.reserve(work.run, number, 1, one)
            except BudgetExhausted:
                refused += 1
                continue
            seconds.append(time.perf_counter() - start)
            last = time.perf_counter() - begun
            told.append((receipt.sequence, receipt.head.hash))
    answer.write_text(json.dumps({"told": told, "seconds": seconds, "refused": refused, "last": last}))


@dataclass(frozen=True, kw_only=True)
class Result:
    """What came of it."""

    store: str
    elapsed: float
    """Seconds until the last reservation that went through."""
    done: list[int]
    seconds: list[float]
    problems: list[str]

    @property
    def pace(self) -> float:
        """Reservations a second, of all coordinators together."""
        return sum(self.done) / self.elapsed

    def percentile(self, part: float) -> float:
        """Milliseconds that so large a part of the reservations took at most."""
        ordered = sorted(self.seconds)
        return 1000 * ordered[min(len(ordered) - 1, int(part * len(ordered)))]


def measure(store: str, folder: Path, address: str | None, total: int, epsilon: float, room: int) -> Result:
    """All coordinators at once, each with its own workspace where the ledger is on a server."""
    places = [folder / str(index) / "ledger.db" for index in range(COORDINATORS if address else 1)]
    for place in places:
        place.parent.mkdir(parents=True)
        if address:
            url_path(place).write_text(address + "\n")
    Ledger.open(places[0], create=True).close()
    for place in places[1:]:
        shutil.copy2(key_path(places[0]), key_path(place))
    spawn = multiprocessing.get_context("spawn")
    gate = spawn.Barrier(COORDINATORS + 1)
    answers = [folder / f"answer-{index}.json" for index in range(COORDINATORS)]
    processes = [
        spawn.Process(
            target=coordinator,
            args=(
                Work(ledger=places[index % len(places)], run=f"run {index}", count=total // COORDINATORS,
                     epsilon=epsilon),
                gate, answers[index],
            ),
        )
        for index in range(COORDINATORS)
    ]  # fmt: skip
    try:
        for process in processes:
            process.start()
        gate.wait(120)
        for process in processes:
            process.join()
    finally:
        for process in processes:
            if process.is_alive():
                process.kill()
    found = [json.loads(answer.read_text()) for answer in answers]
    return Result(
        store=store,
        elapsed=max(one["last"] for one in found),
        done=[len(one["told"]) for one in found],
        seconds=[second for one in found for second in one["seconds"]],
        problems=check(places[0], found, total, room),
    )


def check(place: Path, found: list[dict[str, Any]], total: int, room: int) -> list[str]:
    """What does not fit: the total, an entry that somebody was told of and is gone, one that nobody was told of."""
    problems = []
    done, refused = sum(len(one["told"]) for one in found), sum(one["refused"] for one in found)
    if done + refused != total:
        problems.append(f"{done} + {refused} answers to {total} questions")
    if done != room:
        problems.append(f"{done} reservations went through, the budget has room for {room}")
    with Ledger.open(place, read_only=True) as ledger:
        ledger.verify()
        there = {(entry.sequence, entry.hash) for entry in ledger.entries() if entry.kind == "reserve"}
    known = {(sequence, hash) for one in found for sequence, hash in one["told"]}
    if known != there:
        problems.append(f"{len(known - there)} entries were lost, {len(there - known)} were written unasked")
    if len(known) != done:
        problems.append("two coordinators were told of the same entry")
    return problems


def tests_server() -> Any:
    """The server that the tests would use; their folder is no package that a benchmark could import."""
    path = Path(__file__).parents[1] / "tests" / "ledger" / "postgres.py"
    spec = importlib.util.spec_from_file_location("tests_postgres", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.server()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--reservations", type=int, default=10_000, help="of all coordinators together")
    parser.add_argument("--folder", type=Path, default=None, help="where SQLite writes; the disk that is measured")
    parser.add_argument("--only", choices=("postgresql", "sqlite"), default=None)
    parser.add_argument("--markdown", action="store_true")
    options = parser.parse_args()
    server = tests_server()
    epsilon = lifetime_for(int(ROOM * options.reservations))
    room = room_in(epsilon)
    print(f"{COORDINATORS} coordinators ask for {options.reservations:,} reservations;", flush=True)
    print(f"a lifetime of ε {epsilon:g} per record has room for {room:,}", flush=True)
    results = []
    for store in ("postgresql", "sqlite"):
        if options.only in (None, store):
            with tempfile.TemporaryDirectory(dir=options.folder) as folder:
                address = server.schema() if store == "postgresql" else None
                results.append(measure(store, Path(folder), address, options.reservations, epsilon, room))
    if options.markdown:
        print("| ledger | reserved | a second | p50 | p99 |\n|---|---|---|---|---|")
        line = "| {} | {:,} ({}) | {:,.0f} | {:.1f} ms | {:.1f} ms |"
    else:
        line = "{:<11} {:>6,} reserved ({}), {:>5,.0f} a second, p50 {:.1f} ms, p99 {:.1f} ms"
    for result in results:
        shares = " + ".join(f"{done:,}" for done in result.done)
        print(line.format(result.store, sum(result.done), shares, result.pace, result.percentile(0.5),
                          result.percentile(0.99)))  # fmt: skip
    for result in results:
        for problem in result.problems:
            print(f"WRONG  {result.store}: {problem}")
    if any(result.problems for result in results):
        return 1
    print("no overspend, no lost entry, every ledger verified")
    return 0


if __name__ == "__main__":
    sys.exit(main())
