"""One bit is turned in every byte of what a two-round run leaves; looking and going on must notice, or not be moved.

In process, each file's bytes in turn: the ledger is verified and the run is shown after every flip; where a bit sits in
a file that only resuming reads closely, an interrupted copy of the run is gone on with. The oracle: exit code 4, exit
code 1, or the same answer.

    python flipping.py FOLDER [STRIDE] [OFFSET]     one JSON line for each file and for each other outcome
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from faults.injecting import ALIKE, Bench

LOOKED_AT = (
    "ledger.db", "ledger.db.head", "ledger.db.key", "ledger.db.snapshot", "runs/run/run.db", "runs/run/run.json",
    "runs/run/task.json", "runs/run/plan.toml", "runs/run/model.safetensors", "runs/run/report.json",
    "runs/run/checkpoints/round-000002.safetensors",
)  # fmt: skip
GONE_ON_WITH = (
    "ledger.db.head", "ledger.db.key", "runs/run/run.db", "runs/run/run.json", "runs/run/task.json",
    "runs/run/plan.toml", "runs/run/checkpoints/round-000001.safetensors",
)  # fmt: skip

BESIDE = ("runs/run/run.db",)
"""Files that going on writes and does not depend on: every sixteenth byte is tried there, a second of work each."""


def exit_code(work: Callable[[], Any]) -> tuple[int, str]:
    """What a command would end with, as the command line decides it; 70 for what would be a traceback."""
    from quietsum.errors import QuietsumError, may_pass

    try:
        work()
        return 0, ""
    except QuietsumError as error:
        return error.exit_code, str(error)
    except OSError as error:
        return (1 if may_pass(error) else 2), str(error)
    except BaseException:
        return 70, traceback.format_exc()


def shown(place: Path) -> str:
    """What ``show`` says of the run, whatever was drawn."""
    from quietsum import report
    from quietsum.runs.folder import Workspace

    workspace = Workspace(path=place)
    values = report.build(workspace.find("run"), workspace)
    return json.dumps([values[name] for name in (*ALIKE, "metrics", "spent", "lifetime", "created", "plan")])


def verified(place: Path) -> str:
    """What ``ledger verify`` says."""
    from quietsum.ledger import Ledger
    from quietsum.runs.folder import Workspace

    with Ledger.open(place / "ledger.db", read_only=True) as ledger:
        found = ledger.verify({head for _, head in Workspace(path=place).anchors()}, every_signature=True)
    return str(found.entries)


@contextlib.contextmanager
def flipped(path: Path, byte: int, bit: int) -> Iterator[None]:
    with path.open("r+b") as file:
        file.seek(byte)
        honest = file.read(1)
        file.seek(byte)
        file.write(bytes([honest[0] ^ (1 << bit)]))
    try:
        yield
    finally:
        with path.open("r+b") as file:
            file.seek(byte)
            file.write(honest)


def looked_at(place: Path, name: str, stride: int, offset: int) -> dict[str, Any]:
    """Every flip of one file, looked at by ``verify`` and ``show``."""
    path = place / name
    honest = {"verify": verified(place), "show": shown(place)}
    outcomes: Counter[str] = Counter()
    size = path.stat().st_size
    for byte in range(offset % stride, size, stride):
        bit = (byte * 5 + 3) % 8
        with flipped(path, byte, bit):
            for command, look in (("verify", verified), ("show", shown)):
                said: list[str] = []
                code, told = exit_code(lambda look=look, said=said: said.append(look(place)))  # type: ignore[misc]
                outcome = f"exit {code}" if code in (1, 4) else "other"
                if code == 0:
                    outcome = "the same answer" if said == [honest[command]] else "other"
                    told = told or (said[0] if said else "")
                outcomes[outcome] += 1
                if outcome == "other":
                    print(
                        json.dumps({"other": f"{name} byte {byte} bit {bit}: {command} {code} {told[-600:]}"}),
                        flush=True,
                    )
    return {"file": name, "bytes": size, "flips": sum(outcomes.values()), "outcomes": outcomes}


def gone_on_with(bench: Bench, kept: Path, name: str, stride: int, offset: int, answer: Any) -> dict[str, Any]:
    """Every flip of one file of a run that was broken off after its first round: it is resumed."""
    outcomes: Counter[str] = Counter()
    size = (kept / name).stat().st_size
    for byte in range(offset % stride, size, stride):
        bit = (byte * 3 + 1) % 8
        shutil.rmtree(bench.place, ignore_errors=True)
        shutil.copytree(kept, bench.place)
        bench.diary.write_text("north\nsouth\n")
        path, problem = bench.place / name, ""
        data = bytearray(path.read_bytes())
        data[byte] ^= 1 << bit
        path.write_bytes(data)
        code = bench.forked(bench.going_on, -1)
        outcome = f"exit {code}" if code in (1, 4) else "other"
        problem = bench.said.read_text()
        if code == 0:
            bench.told.unlink(missing_ok=True)
            looked = bench.forked(bench.look, -1)
            found = bench.found()
            same = found.get("answer") == answer and all(
                2 <= found["touched"][party] <= paid <= 3 for party, paid in found["paid"].items()
            )
            outcome = "the same answer" if not looked and same else "other"
            problem = problem if outcome != "other" else f"{looked} {found} {bench.said.read_text()}"
        outcomes[outcome] += 1
        if outcome == "other":
            print(json.dumps({"other": f"{name} byte {byte} bit {bit}: resume {code} {problem[-600:]}"}), flush=True)
    return {"file": name, "bytes": size, "flips": sum(outcomes.values()), "outcomes": outcomes, "resumed": True}


def whole_run(bench: Bench) -> Path:
    """A finished run whose ledger is one file, without a log beside it."""
    import sqlite3

    bench.clear()
    if bench.forked(bench.run, -1):
        sys.exit(bench.said.read_text())
    with contextlib.closing(sqlite3.connect(bench.place / "ledger.db")) as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return bench.place


def broken_off(bench: Bench) -> Path:
    """A run that was ended by hand after its first round."""
    from quietsum.cli.app import app
    from quietsum.runs import progress

    def work() -> int:
        honest = progress.EventLines.saw

        def saw(self: Any, event: Any) -> None:
            honest(self, event)
            if event.kind == "round-finished":
                os._exit(0)  # the next event is not written any more

        progress.EventLines.saw = saw  # type: ignore[method-assign]
        app(["run", str(bench.plan), "--workspace", str(bench.place), "--name", "run"], standalone_mode=False)
        return 1

    bench.clear()
    if bench.forked(work, -1):
        sys.exit(bench.said.read_text())
    return bench.place


def main() -> None:
    folder = Path(sys.argv[1])
    stride = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    offset = int(sys.argv[3]) if len(sys.argv) > 3 else 0
    bench = Bench(None, folder)
    bench.warm_up()
    place = whole_run(bench)
    bench.told.unlink(missing_ok=True)
    if bench.forked(bench.look, -1):
        sys.exit(bench.said.read_text())
    answer = bench.found()["answer"]
    kept = folder / "whole"
    shutil.rmtree(kept, ignore_errors=True)
    shutil.copytree(place, kept)
    for name in LOOKED_AT:
        if (kept / name).exists():
            with contextlib.redirect_stderr(io.StringIO()):
                print(json.dumps(looked_at(kept, name, stride, offset)), flush=True)
    half = folder / "half"
    shutil.rmtree(half, ignore_errors=True)
    shutil.copytree(broken_off(bench), half)
    for name in GONE_ON_WITH:
        every = stride * 8 if stride > 1 else 16 if name in BESIDE else 1
        print(json.dumps(gone_on_with(bench, half, name, every, offset, answer)), flush=True)


if __name__ == "__main__":
    main()
