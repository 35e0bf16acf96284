"""Processes of a measurement: started, looked at from outside through /proc, and ended by their ids. Linux only.

A family is a process and all its descendants. Its resident set (RSS) counts pages that two members share twice; the
proportional one (PSS) divides such a page among all processes that map it, also those of other families.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

TICKS = os.sysconf("SC_CLK_TCK")
SUBREAPER = 36  # prctl: orphans of our descendants come to us, so that none is lost sight of


class Failed(Exception):
    """Something did not start, or ended in another way than it should."""


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


class Stage:
    """The processes of one measurement, each with a log; all of them are ended when it is left."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self.folder, self.environment = folder, {**os.environ, **environment}
        self.roots: dict[str, subprocess.Popen[bytes]] = {}
        ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)

    def __enter__(self) -> Stage:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def start(self, called: str, command: Sequence[str], **more: Any) -> subprocess.Popen[bytes]:
        """Start one; its words go into ``called.log``."""
        with self.log(called).open("ab") as out:
            more = {"stdout": out, "stderr": out, "stdin": subprocess.DEVNULL, **more}
            self.roots[called] = subprocess.Popen(command, env=self.environment, cwd=self.folder, **more)
        return self.roots[called]

    def call(self, *command: str) -> str:
        """Run one to its end and return what it printed."""
        done = subprocess.run(
            command, env=self.environment, cwd=self.folder, capture_output=True, text=True, timeout=120
        )
        if done.returncode:
            words = " ".join(Path(word).name for word in command[:4])
            raise Failed(f"{words} ended with {done.returncode}: {(done.stderr or done.stdout).strip()[-400:]}")
        return done.stdout

    def log(self, called: str) -> Path:
        """Where it writes."""
        return self.folder / f"{called}.log"

    def said(self, called: str, most: int = 100_000) -> str:
        """The end of its log."""
        return self.log(called).read_text(encoding="utf-8", errors="replace")[-most:]

    def until(self, true: Callable[[], object], what: str, seconds: float) -> None:
        """Wait for something; a process that ends meanwhile ends the waiting, with its last words."""
        end = time.monotonic() + seconds
        while not true():
            for called, process in self.roots.items():
                if process.poll() not in (None, 0):
                    raise Failed(f"{called} ended with {process.returncode}: {self.said(called, 600).strip()}")
            if time.monotonic() > end:
                last = "; ".join(f"{called}: {self.said(called, 300).strip()}" for called in self.roots)
                raise Failed(f"{what} had not happened after {seconds:.0f} s; {last}")
            time.sleep(0.02)

    def end(self) -> None:
        """Ask all, wait a while, and kill whatever of them and of their descendants is left."""
        known = {pid for process in self.roots.values() for pid in family(process.pid)}
        for process in self.roots.values():
            if process.poll() is None:
                process.terminate()
        for process in self.roots.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(8)
        ours = set(family(os.getpid())) - {os.getpid()}  # orphans have come to us
        for pid in known & ours:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for process in self.roots.values():
            process.wait()
        self.roots.clear()
        with contextlib.suppress(ChildProcessError):  # the orphans
            while os.waitpid(-1, os.WNOHANG) != (0, 0):
                pass


# ---------------------------------------------------------------------------------------------- looking at them


def family(root: int) -> list[int]:
    """``root`` and its descendants."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (found := _stat(int(entry))) is not None:
            children.setdefault(int(found[1]), []).append(int(entry))
    found_, waiting = list[int](), [root]
    while waiting:
        pid = waiting.pop()
        found_.append(pid)
        waiting += children.get(pid, [])
    return found_


def _stat(pid: int) -> list[str] | None:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None


def processor_seconds(pid: int) -> float:
    """Of the process and of those of its children that have ended."""
    found = _stat(pid)
    return 0.0 if found is None else sum(map(int, found[11:15])) / TICKS


def memory(pid: int) -> tuple[float, float]:
    """RSS and PSS in MB; PSS is not a number where the system does not tell it."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
        told = {line.split(":")[0]: float(line.split()[1]) / 1000 for line in lines}
        return 1.024 * told["Rss"], 1.024 * told["Pss"]
    except (OSError, KeyError, IndexError):
        pass
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6, float("nan")
    except (OSError, IndexError):
        return 0.0, 0.0


def words_of(pid: int) -> str:
    """The command line, for finding out what it is."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


class Look:
    """Looks at the families of a stage twice a second: their largest memory, and processor time over time."""

    def __init__(self, stage: Stage, *, apart: str = "") -> None:
        """``apart``: a descendant with this word in its command line is the family ``coordinator``."""
        self._stage, self._apart = stage, apart
        self.largest: dict[str, tuple[float, float]] = {}
        self.seen: list[tuple[float, float]] = []
        self._apart_seen = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Look:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(0.5):
            self._look()

    def _look(self) -> None:
        sums: dict[str, list[float]] = {}
        processor, now = 0.0, time.time()
        for called, process in list(self._stage.roots.items()):
            for pid in family(process.pid):
                apart = self._apart and self._apart in words_of(pid)
                if apart:
                    self._apart_seen = time.monotonic()
                total = sums.setdefault("coordinator" if apart else called, [0.0, 0.0])
                for place, value in enumerate(memory(pid)):
                    total[place] += value
                processor += processor_seconds(pid)
        for called, total in sums.items():
            before = self.largest.get(called, (0.0, 0.0))
            self.largest[called] = max(before[0], total[0]), max(before[1], total[1])
        self.seen.append((now, processor))

    def vanished(self, seconds: float) -> bool:
        """Whether the process apart was seen, and not any more for so long."""
        return bool(self._apart_seen) and time.monotonic() - self._apart_seen > seconds

    def processor(self, begin: float, end: float) -> float:
        """Processor seconds of all families between two moments."""
        import numpy as np

        times, values = zip(*self.seen, strict=True)
        return float(np.diff(np.interp([begin, end], times, values))[0])


# --------------------------------------------------------------------------------------------- counting bytes


class Counter:
    """Stands before a port and passes on every byte, counted: what goes up to it, and what comes down from it."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._seen: tuple[list[tuple[float, int]], list[tuple[float, int]]] = ([], [])
        self._door = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port = int(self._door.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def between(self, begin: float, end: float) -> list[int]:
        """Bytes up and down between two moments."""
        return [sum(length for when, length in list(seen) if begin < when <= end) for seen in self._seen]

    def close(self) -> None:
        """No more connections."""
        self._door.close()

    def _accept(self) -> None:
        while True:
            try:
                outer, _ = self._door.accept()
            except OSError:
                return
            try:
                inner = socket.create_connection(("127.0.0.1", self._to), timeout=30)
            except OSError:
                outer.close()
                continue
            for seen, source, sink in zip(self._seen, (outer, inner), (inner, outer), strict=True):
                threading.Thread(target=_pass, args=(source, sink, seen), daemon=True).start()


def _pass(source: socket.socket, sink: socket.socket, seen: list[tuple[float, int]]) -> None:
    source.settimeout(None)
    with contextlib.suppress(OSError):
        while piece := source.recv(1 << 16):
            seen.append((time.time(), len(piece)))
            sink.sendall(piece)
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_WR)
