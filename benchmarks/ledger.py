"""How fast is the ledger? Reservations a second with fsync, several writers, opening and verifying a large one.

The large ledger is what four hospitals write in runs of twenty rounds: every body is that of a real run, with its own
name and datasets; hashes and signatures are made for each entry. It is written in bulk, because nobody wants to wait
for a million fsyncs, and then opened and verified like any other: chain, rules, budgets and every ε.

``--entries N`` sets its size (default one million), ``--markdown`` prints the table for docs/benchmarks.md.
``--opening`` measures one thing only: opening ledgers of 10⁴, 10⁵ … N entries for reading, each time in a process of
its own: without a snapshot, when all entries are read, and with the one that a writer leaves. ``--ledgers DIR`` keeps
them there.
"""

from __future__ import annotations

import os

for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_variable] = "1"  # before numpy is imported

import argparse
import multiprocessing
import resource
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from quietsum import Budget, Gaussian, PoissonSampled, PrivacyUnit, Repeated
from quietsum.ledger import Charge, Dataset, Head, Ledger, MemoryStore, Row, Terms
from quietsum.ledger.chain.encoding import digest, entry_hash, head_message
from quietsum.ledger.chain.entries import NOTHING, Kind
from quietsum.ledger.chain.keys import SigningKey, key_path
from quietsum.ledger.chain.snapshots import snapshot_path
from quietsum.ledger.chain.verify import verify_file

PARTIES = {"Cleveland": 0.16, "Hungarian": 0.18, "Switzerland": 0.5, "Long Beach": 0.3}
ROUNDS, STEPS, NOISE = 20, 5, Gaussian(noise_multiplier=40.0)
RUN, DATASET = "RUN-NAME", "DATASET-NAME"


def charges(dataset: str, rounds: int) -> list[Charge]:
    return [
        Charge(
            party=party,
            dataset=dataset,
            unit=PrivacyUnit.RECORD,
            event=Repeated(
                times=rounds * STEPS, event=PoissonSampled(rate=rate, event=Gaussian(noise_multiplier=40.0))
            ),
            failure=rounds * 1e-16,
        )
        for party, rate in PARTIES.items()
    ]


def begin(ledger: Ledger, run: str, dataset: str, rounds: int = ROUNDS) -> None:
    ledger.open_run(
        run,
        plan={"federation": {"rounds": rounds}, "name": run},
        terms=Terms(limits=(Budget(epsilon=60.0, delta=1e-5),)),
        planned=charges(dataset, rounds),
        datasets=[Dataset(party=party, dataset=dataset, size=300) for party in PARTIES],
    )


# ------------------------------------------------------------------------------------------ small ledgers


def reservations(folder: Path, count: int) -> tuple[float, float]:
    """Reservations a second, and reserve + commit pairs a second, each synced to disk."""
    with Ledger.open(folder / "ledger.db", create=True) as ledger:
        begin(ledger, "run", "data", 2 * count)
        one = charges("data", 1)
        start = time.perf_counter()
        for number in range(1, count + 1):
            ledger.reserve("run", number, 1, one)
        single = count / (time.perf_counter() - start)
        start = time.perf_counter()
        for number in range(count + 1, 2 * count + 1):
            ledger.commit(ledger.reserve("run", number, 1, one))
        pairs = count / (time.perf_counter() - start)
    return single, pairs


def raw_syncs(folder: Path, count: int) -> float:
    """What the disk can do at best: small writes, each with its fsync, a second."""
    handle = os.open(folder / "raw", os.O_CREAT | os.O_WRONLY)
    start = time.perf_counter()
    for _ in range(count):
        os.write(handle, b"x" * 1500)
        os.fsync(handle)
    os.close(handle)
    return count / (time.perf_counter() - start)


def _writer(path: str, run: str, count: int, gate: multiprocessing.synchronize.Barrier) -> None:
    with Ledger.open(path) as ledger:
        begin(ledger, run, run, count)
        one = charges(run, 1)
        gate.wait()
        for number in range(1, count + 1):
            ledger.commit(ledger.reserve(run, number, 1, one))


def writers(folder: Path, count: int, processes: int) -> float:
    """Reserve + commit pairs a second of all writers together, on one ledger."""
    path = folder / "ledger.db"
    Ledger.open(path, create=True).close()
    spawn = multiprocessing.get_context("spawn")
    gate = spawn.Barrier(processes + 1)
    all_of_them = [
        spawn.Process(target=_writer, args=(str(path), f"run {index}", count, gate)) for index in range(processes)
    ]
    for process in all_of_them:
        process.start()
    gate.wait()
    start = time.perf_counter()
    for process in all_of_them:
        process.join()
        assert process.exitcode == 0
    elapsed = time.perf_counter() - start
    with Ledger.open(path) as ledger:
        assert ledger.verify().stated == processes * count * len(PARTIES)
    return processes * count / elapsed


# ---------------------------------------------------------------------------------------- a large ledger


def template() -> list[Row]:
    """The entries of one honest run, genesis left out."""
    ledger = Ledger.begin(MemoryStore(), SigningKey.generate())
    begin(ledger, RUN, DATASET)
    for number in range(1, ROUNDS + 1):
        ledger.commit(ledger.reserve(RUN, number, 1, charges(DATASET, 1)))
    return list(ledger._journal.store.rows(2))


def entries(key: SigningKey, first: Row, count: int) -> Iterator[Row]:
    """Run after run, chained and signed."""
    ledger, sequence, previous = key.public.ledger, 1, first.hash
    pattern = template()
    plan = next(digest_of for digest_of in (_plan_hash(row) for row in pattern) if digest_of)
    run = 0
    while sequence < count:
        run += 1
        shift = sequence - 1  # reservations are pointed at by their number
        name = f"run-{run:06d}"
        for row in pattern:
            if sequence >= count:
                return
            body = row.body.replace(RUN, name).replace(DATASET, f"data-{run:06d}")
            if row.kind == Kind.RUN:
                body = body.replace(plan, digest(f'{{"federation":{{"rounds":{ROUNDS}}},"name":"{name}"}}'))
            if row.kind == Kind.COMMIT:
                body = body.replace(f'"reserve":{row.sequence - 1},', f'"reserve":{row.sequence - 1 + shift},')
            sequence += 1
            made = entry_hash(
                ledger=ledger,
                previous=previous,
                sequence=sequence,
                kind=row.kind,
                body_hash=digest(body),
                time=row.time,
            )
            signature = key.sign(head_message(ledger=ledger, sequence=sequence, hash=made))
            yield Row(sequence, row.kind, row.time, body, previous, made, signature)
            previous = made


def _plan_hash(row: Row) -> str:
    if row.kind != Kind.RUN:
        return ""
    return row.body.split('"plan_hash":"')[1][:64]


def build(path: Path, count: int) -> None:
    Ledger.open(path, create=True).close()
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    key = SigningKey(load_pem_private_key(key_path(path).read_bytes(), password=None))  # type: ignore[arg-type]
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA synchronous = OFF")
    first = Row._make(connection.execute("SELECT * FROM entries").fetchone())
    assert first.previous == NOTHING
    (name, guard) = connection.execute(
        "SELECT name, sql FROM sqlite_schema WHERE type = 'trigger' AND name LIKE '%follow%'"
    ).fetchone()
    connection.execute(f"DROP TRIGGER {name}")
    connection.executemany("INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?, ?)", entries(key, first, count))
    connection.execute(guard)
    connection.commit()
    connection.close()


def timed(work: object) -> float:
    assert callable(work)
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def at_the_end(path: Path) -> tuple[float, float, Head]:
    """Seconds to open a large ledger, reservations a second at its end, and its head."""
    start = time.perf_counter()
    with Ledger.open(path) as ledger:
        opened = time.perf_counter()
        begin(ledger, "afterwards", "afterwards", 200)
        one = charges("afterwards", 1)
        ready = time.perf_counter()
        for number in range(1, 201):
            ledger.reserve("afterwards", number, 1, one)
        return opened - start, 200 / (time.perf_counter() - ready), ledger.head


def large(folder: Path, count: int) -> list[tuple[str, str]]:
    path = folder / "ledger.db"
    print(f"building {count:,} entries …", flush=True)
    print(f"built in {timed(lambda: build(path, count)):.1f} s", flush=True)
    rows = []
    with tempfile.TemporaryDirectory() as other:
        build(Path(other) / "ledger.db", min(count, 100_000))
        seconds = timed(lambda: Ledger.open(Path(other) / "ledger.db").close())
        rows.append((f"opening a ledger of {min(count, 100_000):,} entries", f"{seconds:.1f} s"))
    seconds, pace, head = at_the_end(path)
    rows.append((f"opening a ledger of {count:,} entries", f"{seconds:.1f} s"))
    rows.append(("reservations at its end, with fsync", f"{pace:,.0f} a second"))
    start = time.perf_counter()
    found = verify_file(path, anchors=[head])
    seconds = time.perf_counter() - start
    rows.append(
        (
            f"verify {found.entries:,} entries, {found.runs:,} runs: chain, rules, budgets, {found.stated:,} ε",
            f"{seconds:.1f} s ({found.entries / seconds:,.0f} entries a second)",
        )
    )
    rows.append(("size on disk", f"{path.stat().st_size / 1e6:,.0f} MB"))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    rows.append(("memory at its peak, opening and verifying in one process", f"{peak:,.0f} MB"))
    return rows


# ------------------------------------------------------------------------------------------------ opening

_OPEN = """
import sys, time
from quietsum.ledger import Ledger
wall, cpu = time.perf_counter(), time.process_time()
ledger = Ledger.open(sys.argv[1], read_only=sys.argv[2] == "reader")
print(time.perf_counter() - wall, time.process_time() - cpu, ledger.head.sequence)
"""


def opened(path: Path, who: str) -> tuple[float, float]:
    """Seconds, and seconds of the processor, that a fresh process takes to open a ledger."""
    command = [sys.executable, "-c", _OPEN, str(path), who]
    wall, cpu, _ = map(float, subprocess.run(command, check=True, capture_output=True, text=True).stdout.split())
    return wall, cpu


def openings(folder: Path, largest: int) -> list[tuple[str, str, str, str]]:
    rows = []
    for count in (size for size in (10_000, 100_000, 1_000_000) if size <= largest):
        path = folder / f"{count}" / "ledger.db"
        if not path.exists():
            print(f"building {count:,} entries …", flush=True)
            path.parent.mkdir(parents=True, exist_ok=True)
            build(path, count)
        snapshot = snapshot_path(path)
        snapshot.unlink(missing_ok=True)
        wall, cpu = opened(path, "reader")
        opened(path, "writer")  # which leaves the snapshot
        again = [opened(path, "reader") for _ in range(5)]
        short, less = (statistics.median(times) for times in zip(*again, strict=True))
        rows.append((
            f"{count:,}", f"{wall:.2f} s ({cpu:.2f} s)", f"{short:.2f} s ({less:.2f} s)",
            f"{snapshot.stat().st_size / 1e6:.1f} MB",
        ))  # fmt: skip
    return rows


def print_openings(folder: Path, largest: int) -> None:
    print(f"load {os.getloadavg()[0]:.1f}, Python {sys.version.split()[0]}, SQLite {sqlite3.sqlite_version}")
    rows = openings(folder, largest)
    print(
        "| entries | all of them read (processor) | with the snapshot (processor) | snapshot |\n|---:|---:|---:|---:|"
    )
    for row in rows:
        print(f"| {' | '.join(row)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--entries", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=500, help="rounds for the timings with fsync")
    parser.add_argument("--folder", type=Path, default=None, help="where to write; the disk that is measured")
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--opening", action="store_true", help="measure nothing but opening")
    parser.add_argument("--ledgers", type=Path, default=None, help="where large ledgers are kept; made where missing")
    options = parser.parse_args()
    if options.opening:
        with tempfile.TemporaryDirectory() as folder:
            print_openings(options.ledgers or Path(folder), options.entries)
        return
    rows: list[tuple[str, str]] = []
    place = {"dir": options.folder}
    with tempfile.TemporaryDirectory(**place) as folder:
        disk = raw_syncs(Path(folder), options.rounds)
        single, pairs = reservations(Path(folder), options.rounds)
    rows.append(("bare write + fsync, the disk's own pace", f"{disk:,.0f} a second"))
    rows.append(("reservations with fsync, four parties each", f"{single:,.0f} a second"))
    rows.append(("reserve + commit pairs with fsync", f"{pairs:,.0f} a second"))
    for processes in (1, 2):
        with tempfile.TemporaryDirectory(**place) as folder:
            found = writers(Path(folder), options.rounds, processes)
        rows.append(
            (f"pairs, {processes} writer{'s at once, together' if processes > 1 else ''}", f"{found:,.0f} a second")
        )
    with tempfile.TemporaryDirectory(**place) as folder:
        rows += large(Path(folder), options.entries)
    if options.markdown:
        print("| what | how fast |\n|---|---|")
        for name, value in rows:
            print(f"| {name} | {value} |")
    else:
        for name, value in rows:
            print(f"{name:<60} {value}")


if __name__ == "__main__":
    main()
