"""Several processes on one ledger: nobody's charge is lost, and no budget is spent twice."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from ledger.build import STEP, STEPS, charge, open_run
from quietsum import Budget
from quietsum.ledger import Ledger
from quietsum.ledger.stores.protocol import Row
from quietsum.privacy import RenyiFilter

WRITER = """
import sys
from ledger.build import open_run, reserve
from quietsum.errors import BudgetExhausted
from quietsum.ledger import Ledger
path, run, dataset, rounds = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
done = refused = 0
with Ledger.open(path, create=True) as ledger:
    open_run(ledger, run, dataset=dataset, rounds=rounds, lifetime=1.5, limit=1.4)
    print("ready", flush=True)
    sys.stdin.readline()
    for number in range(1, rounds + 1):
        try:
            ledger.commit(reserve(ledger, run, number, dataset=dataset))
            done += 1
        except BudgetExhausted:
            refused += 1
print(done, refused)
"""


def start(path: Path, *arguments: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), "OPENBLAS_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path), *arguments],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def together(path: Path, *writers: tuple[str, ...]) -> list[tuple[int, int]]:
    """Let the writers go at the same moment; (done, refused) of each."""
    processes = [start(path, *arguments) for arguments in writers]
    for process in processes:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    found = []
    for process in processes:
        output, _ = process.communicate(timeout=120)
        assert process.returncode == 0
        done, refused = map(int, output.split())
        found.append((done, refused))
    return found


def test_writers_on_different_data_interleave_and_lose_nothing(tmp_path: Path) -> None:
    """They even begin the ledger together."""
    path = tmp_path / "ledger.db"
    found = together(path, ("a", "hearts", "6"), ("b", "lungs", "6"), ("c", "livers", "6"))
    assert found == [(6, 0)] * 3
    with Ledger.open(path) as ledger:
        assert ledger.verify(every_signature=True).stated == 18
        assert ledger.head.sequence == 1 + 3 * (2 + 12)
        order = [entry.body["run"] for entry in ledger.entries() if entry.kind == "reserve"]
        assert sorted(order) == ["a"] * 6 + ["b"] * 6 + ["c"] * 6


def test_writers_on_the_same_book_never_exceed_it_together(tmp_path: Path) -> None:
    """Each plan alone fits; the filter lets exactly as many rounds through as it has room for."""
    path = tmp_path / "ledger.db"
    Ledger.open(path, create=True).close()
    found = together(path, ("a", "hearts", "4"), ("b", "hearts", "4"))
    gate = RenyiFilter(budget=Budget(epsilon=1.5, delta=1e-5 * 0.999))
    room = 0
    while gate.allows(STEP, times=(room + 1) * STEPS):
        room += 1
    with Ledger.open(path) as ledger:
        ledger.verify()
        (book,) = ledger.lifetime()
        assert book.spent_fraction <= 1
        reserved = sum(run.attempts for run in ledger.runs())
    assert book.plans == 2
    assert 4 <= room < 8, "the test needs a budget for one plan and not for two"
    assert reserved == sum(done for done, _ in found) == room


def test_the_same_writers_without_a_shared_ledger_would_exceed_it(tmp_path: Path) -> None:
    """The control: with a ledger each, nothing holds them back."""
    (first,) = together(tmp_path / "one.db", ("a", "hearts", "4"))
    (second,) = together(tmp_path / "two.db", ("b", "hearts", "4"))
    assert first == second == (4, 0)
    gate = RenyiFilter(budget=Budget(epsilon=1.5, delta=1e-5))
    assert not gate.allows(STEP, times=8 * STEPS)


def test_a_large_ledger_is_followed_not_read_again(tmp_path: Path) -> None:
    """An act looks at the last known entry and at what is new, whatever the ledger's length."""
    with Ledger.open(tmp_path / "ledger.db", create=True) as ledger:
        open_run(ledger, rounds=100, limit=9.0)
        asked: list[int] = []
        store = ledger._journal.store
        rows = store.rows

        def watched(start: int = 1) -> Iterator[Row]:
            asked.append(start)
            return rows(start)

        store.rows = watched  # type: ignore[method-assign]
        for number in range(1, 20):
            before = ledger.head.sequence
            asked.clear()
            ledger.commit(ledger.reserve("first", number, 1, [charge()]))
            assert min(asked) >= before
