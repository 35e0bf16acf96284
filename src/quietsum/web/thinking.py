"""A process beside the pages that works out what may take long, and is ended when it takes too long.

Most plans are priced within a tenth of a second; a few, with hardly any noise, take many. A page must not wait for
them, and a thread cannot be ended. So questions go to a process of lower priority as lines of JSON, one at a time, and
its answers come back the same way. One that has not answered in :data:`PATIENCE` seconds is ended, and the next
question begins another.

    python -m quietsum.web.thinking        reads questions from standard input, until that is closed
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import threading
import time
from typing import Any, final

__all__ = ["Busy", "Thinker", "TooLong"]

PATIENCE = 3.0
"""Seconds for one answer."""
BEGINNING = 30.0
"""Seconds for a process to be ready."""
MOST = 4
"""Questions that wait at a time."""
LONGEST = 1 << 20


class TooLong(Exception):
    """The answer would have taken longer than a page may wait."""


class Busy(Exception):
    """Too many questions wait already."""


@final
class Thinker:
    """The process, begun with the first question or by :meth:`begin`."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._turn, self._waiting = threading.Lock(), threading.BoundedSemaphore(MOST)
        self._ready = self._closed = False

    def begin(self) -> None:
        """Begin the process, so that the first question need not wait for it."""
        with self._turn:
            self._open()

    def close(self) -> None:
        """End the process; no other is begun."""
        self._closed = True
        with self._turn:
            self._end()

    def ask(self, style: str, places: tuple[int, ...]) -> dict[str, Any]:
        """The answer to one question. Raises TooLong, or Busy if others wait already."""
        if not self._waiting.acquire(blocking=False):
            raise Busy
        try:
            with self._turn:
                process = self._open()
                if not self._ready:
                    self._read(process, BEGINNING)  # the line that says so
                    self._ready = True
                assert process.stdin is not None
                try:
                    process.stdin.write(json.dumps([style, list(places)]).encode() + b"\n")
                    process.stdin.flush()
                except OSError:
                    self._end()
                    raise TooLong from None
                found: dict[str, Any] = json.loads(self._read(process, PATIENCE))
                return found
        finally:
            self._waiting.release()

    def _open(self) -> subprocess.Popen[bytes]:
        if self._closed:
            raise Busy
        if self._process is None or self._process.poll() is not None:
            self._end()
            self._process = subprocess.Popen(
                [sys.executable, "-m", "quietsum.web.thinking"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL, start_new_session=True,  # Ctrl-C is for the pages, which end it themselves
            )  # fmt: skip
        return self._process

    def _end(self) -> None:
        process, self._process, self._ready = self._process, None, False
        if process is None:
            return
        process.kill()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        process.wait()

    def _read(self, process: subprocess.Popen[bytes], patience: float) -> bytes:
        assert process.stdout is not None
        number, end, content = process.stdout.fileno(), time.monotonic() + patience, b""
        while not content.endswith(b"\n"):
            left = end - time.monotonic()
            ready = select.select([number], [], [], max(0.0, left))[0]
            part = os.read(number, 1 << 16) if ready else b""
            if not part or len(content) > LONGEST:
                self._end()
                raise TooLong
            content += part
        return content


def _answer_all() -> None:
    with contextlib.suppress(OSError):
        os.nice(10)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from quietsum.web.pages.planner import SLIDERS, work_out

    work_out("record", tuple(one.values.index(one.start) for one in SLIDERS))  # loads what the first answer needs
    print("ready", flush=True)
    for line in sys.stdin:
        style, places = json.loads(line)
        print(json.dumps(work_out(style, tuple(places))), flush=True)


if __name__ == "__main__":
    _answer_all()
