"""Every write, fsync, rename and open of a two-round run fails in turn; then the run is gone on with.

Started with ``LD_PRELOAD`` of the shim beside this file: one warm process forks a child for each fault, so that a fault
costs a run of milliseconds. The oracle is in :func:`judged`: a command that met a fault ends with exit code 1 (or 4, or
0 where what failed was optional), or it was killed. Whoever goes on afterwards gets exit code 1, exit code 4, or the
answer of a run that nothing happened to; data is never touched more often than the ledger has charged.

    python injecting.py SHIM FOLDER [STRIDE] [OFFSET]     one JSON line for each fault
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import json
import os
import shutil
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

MODES = {
    1: "no room, once", 2: "I/O error, once", 3: "torn, then no room", 4: "killed before",
    5: "torn or done, then killed", 6: "no room from then on",
}  # fmt: skip
PLAN = """
[task]
name = "tiny:TinyTask"
options = {{ diary = "{diary}" }}
[federation]
rounds = 2
spare_attempts = 1
[training]
sample_rate = 0.5
local_steps = 1
[privacy]
record = {{ noise_multiplier = 3.0, delta = 1e-3 }}
"""
CRASHED = 70
ALIKE = ("guarantees", "round", "rounds", "outcome", "sentences", "limits", "summary", "parties", "noise_multiplier")
"""What a report says however many attempts it took and whatever noise was drawn."""


class Bench:
    """A folder to run in, and beside it what no fault reaches: the plan, the diary of touched data, the outputs."""

    def __init__(self, shim: ctypes.CDLL | None, folder: Path) -> None:
        self.shim, self.folder = shim, folder
        self.place, self.plan, self.diary = folder / "ws", folder / "run.toml", folder / "diary"
        self.said, self.told = folder / "said", folder / "told.json"

    def warm_up(self) -> None:
        """Run once in this very process: what it imports and computes once is then there in every child."""
        self.clear()
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            if self.run() or self.recovering():
                sys.exit("the run does not work without any fault")

    def clear(self) -> None:
        """As if nothing had ever run here."""
        shutil.rmtree(self.place, ignore_errors=True)
        for path in (self.diary, self.said, self.told):
            path.unlink(missing_ok=True)
        self.plan.write_text(PLAN.format(diary=self.diary))

    def forked(self, work: Callable[[], int], mode: int = 0, at: int = 0) -> int:
        """The exit code of ``work`` in a child; negative where a signal ended it."""
        pid = os.fork()
        if pid:
            return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        code = CRASHED
        try:
            with self._quiet():
                if self.shim is not None and mode >= 0:
                    self.shim.shim_arm(str(self.place).encode(), mode, at)
                try:
                    code = work()
                except BaseException:
                    traceback.print_exc()
                finally:
                    if self.shim is not None and mode >= 0:
                        self.shim.shim_disarm()
                        self._note()
        finally:
            os._exit(code)

    @contextlib.contextmanager
    def _quiet(self) -> Iterator[None]:
        with self.said.open("w") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
            with contextlib.redirect_stdout(file), contextlib.redirect_stderr(file):
                yield

    def _note(self) -> None:
        assert self.shim is not None
        values = {
            "calls": self.shim.shim_seen().decode(), "call": self.shim.shim_kind().decode(),
            "file": Path(self.shim.shim_place().decode()).name,
        }  # fmt: skip
        self.told.write_text(json.dumps(values))

    def command(self, *words: object) -> int:
        """A command of quietsum in this process; its exit code."""
        from quietsum.cli.app import app
        from tiny import look_unnoted

        look_unnoted()
        code = app([str(word) for word in words], standalone_mode=False)
        return code if isinstance(code, int) else 0

    def run(self) -> int:
        return self.command("run", self.plan, "--workspace", self.place, "--name", "run")

    def going_on(self) -> int:
        """What somebody does who finds the run broken off."""
        if (self.place / "runs" / "run" / "run.json").exists():
            return self.command("run", "--resume", "run", "--workspace", self.place)
        return self.run()

    def verify(self) -> int:
        return self.command("ledger", "verify", "--workspace", self.place, "--every-signature")

    def look(self) -> int:
        """The answer, into ``told``: what a report says, what was paid and how often data was touched."""
        from quietsum import report
        from quietsum.ledger import Ledger
        from quietsum.ledger.history import RunHistory
        from quietsum.runs.folder import Workspace
        from tiny import touches

        workspace = Workspace(path=self.place)
        values = report.build(workspace.find("run"), workspace)
        with Ledger.open(workspace.ledger, read_only=True) as ledger:
            paid = {party: sum(e.values()) for (party, _), e in RunHistory(ledger, "run").read().paid.items()}
        answer = {name: values[name] for name in ALIKE}
        self.told.write_text(json.dumps({"answer": answer, "paid": paid, "touched": touches(self.diary)}))
        return 0

    def recovering(self) -> int:
        """Going on, verifying and looking, one after the other."""
        code = self.going_on()
        if code:
            return code
        verified = self.verify()
        self.told.write_text(json.dumps({"verified": verified}))
        self.look()
        self.told.write_text(json.dumps({**self.found(), "verified": verified}))
        return 0

    def found(self) -> dict[str, Any]:
        values: dict[str, Any] = json.loads(self.told.read_text()) if self.told.exists() else {}
        return values


def judged(bench: Bench, mode: int, at: int, quiet: dict[str, Any]) -> dict[str, Any]:
    """One fault and its outcome; ``other`` is why it is none that is allowed."""
    bench.clear()
    first = bench.forked(bench.run, mode, at)
    where = bench.found()
    said = bench.said.read_text()
    result: dict[str, Any] = {
        "mode": MODES[mode], "at": at, "call": where.get("call", ""), "file": where.get("file", ""), "first": first,
        "outcome": "", "other": "",
    }  # fmt: skip

    def other(why: str) -> dict[str, Any]:
        return {**result, "outcome": "other", "other": f"{why}: {' '.join(said.split())[-700:]}"}

    if first not in ((-9,) if mode in (4, 5) else ()) and first not in (0, 1, 4):
        return other(f"the command ended with {first}")
    bench.told.unlink(missing_ok=True)
    again = bench.forked(bench.recovering, -1)
    said, found = bench.said.read_text(), bench.found()
    if again in (1, 4) and not found:
        return {**result, "outcome": f"exit {again}", "told": " ".join(said.split())[-300:]}
    if again != 0 or found["verified"] or "answer" not in found:
        return other(f"going on ended with {again}, verify with {found.get('verified')}")
    if found["answer"] != quiet["answer"]:
        return other(f"another answer: {found['answer']}")
    for party, times in quiet["touched"].items():
        touched, paid = found["touched"].get(party, 0), found["paid"][party]
        if not times <= touched <= paid <= times + 1:
            return other(f"{party} was touched {touched} times and charged {paid} times")
    return {**result, "outcome": "the same answer"}


def differs(mode: int, call: str) -> bool:
    """Whether this fault is another one than its neighbours: only writes tear, and only what takes room finds none."""
    if mode == 3:
        return call == "W"
    if mode == 5:
        return call != "o"  # opened to be read, and then killed: the same as killed before
    return call.isupper() if mode == 6 else True


def main() -> None:
    shim, folder = Path(sys.argv[1]), Path(sys.argv[2])
    stride = int(sys.argv[3]) if len(sys.argv) > 3 else 1
    offset = int(sys.argv[4]) if len(sys.argv) > 4 else 0
    library = ctypes.CDLL(str(shim))
    library.shim_kind.restype = library.shim_place.restype = library.shim_seen.restype = ctypes.c_char_p
    library.shim_arm.argtypes = [ctypes.c_char_p, ctypes.c_int, ctypes.c_long]
    bench = Bench(library, folder)
    bench.warm_up()
    bench.clear()
    bench.forked(bench.run)
    calls = str(bench.found()["calls"])
    bench.told.unlink()
    if bench.forked(bench.look, -1):
        sys.exit(bench.said.read_text())
    quiet = bench.found()
    print(json.dumps({"calls": calls, "quiet": quiet}), flush=True)
    faults = [(mode, at) for at, call in enumerate(calls, 1) for mode in MODES if differs(mode, call)]
    for mode, at in faults[offset::stride]:
        print(json.dumps(judged(bench, mode, at, quiet)), flush=True)


if __name__ == "__main__":
    main()
