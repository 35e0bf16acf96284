"""Fault injection: every write, fsync, rename and open of a run fails in turn, and every byte has a bit turned.

    python benchmarks/faults.py                    everything
    python benchmarks/faults.py --stride 20        every twentieth fault and flip

A shim (tests/faults/shim.c, compiled with gcc) is loaded before libc, so that Python's and SQLite's calls are counted
alike. The n-th call on a file of the workspace finds no room, finds a broken disk, is torn, or is the last one of the
process; afterwards the run is gone on with, verified and shown. One oracle: exit code 1, exit code 4, or the answer of
a run that nothing happened to. Prints the tables of docs/benchmarks.md; ends with 1 where anything else came out.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[1] / "tests"
OUTCOMES = ("the same answer", "exit 1", "exit 4", "other")


def shim(folder: Path) -> Path:
    """The shim, compiled."""
    path = folder / "shim.so"
    source = TESTS / "faults" / "shim.c"
    subprocess.run(["gcc", "-O1", "-shared", "-fPIC", "-o", str(path), str(source), "-ldl"], check=True)
    return path


def lines(script: str, *words: object, preload: Path | None = None, name: str = "") -> Iterator[dict[str, Any]]:
    """What one of the two scripts prints, as it comes."""
    environment = {**os.environ, "PYTHONPATH": str(TESTS), "OMP_NUM_THREADS": "1"}
    if preload is not None:
        environment["LD_PRELOAD"] = str(preload)
    command = [sys.executable, str(TESTS / "faults" / script), *map(str, words)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        for count, line in enumerate(process.stdout):
            if count % 50 == 0:
                print(f"\r{name}: {count}", end="", file=sys.stderr)
            yield json.loads(line)
    print(file=sys.stderr)
    if process.returncode:
        sys.exit(f"{script} ended with {process.returncode}")


def table(head: str, rows: dict[str, Counter[str]]) -> None:
    """One table in Markdown, with a line for the sum."""
    print(f"\n| {head} | faults | {' | '.join(OUTCOMES)} |")
    print("|---|---|" + "---|" * len(OUTCOMES))
    for name, counts in {**rows, "all": sum(rows.values(), Counter())}.items():
        print(f"| {name} | {sum(counts.values()):,} | {' | '.join(f'{counts[one]:,}' for one in OUTCOMES)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stride", type=int, default=1, help="take every n-th fault")
    stride = parser.parse_args().stride
    others: list[str] = []
    rows: dict[str, Counter[str]] = defaultdict(Counter)
    ends: Counter[str] = Counter()
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shared if shared.is_dir() else None) as name:
        folder = Path(name)
        compiled = shim(folder)
        for found in lines("injecting.py", compiled, folder, stride, preload=compiled, name="faults"):
            if "outcome" in found:
                rows[found["mode"]][found["outcome"]] += 1
                ends["killed" if found["first"] < 0 else f"exit {found['first']}"] += 1
                others += [json.dumps(found)] if found["outcome"] == "other" else []
            else:
                print(f"a run of two rounds makes {len(found['calls'])} calls on its files")
        table("what happens at the n-th call", rows)
        print("\nThe command itself ended with: " + ", ".join(f"{end} {count:,}" for end, count in ends.most_common()))
        flips: dict[str, Counter[str]] = {}
        for found in lines("flipping.py", folder, stride, name="files"):
            if "other" in found:
                others.append(found["other"])
            else:
                label = Path(found["file"]).name + (", resumed" if found.get("resumed") else "")
                flips[f"{label}, {found['bytes']:,} bytes"] = Counter(found["outcomes"])
        table("one bit in each byte of", flips)
    print(f"\nother: {len(others)}")
    for one in others[:20]:
        print(f"  {one}")
    sys.exit(1 if others else 0)


if __name__ == "__main__":
    main()
