"""What a SuperLink's process writes down: lines with a time, and never more than a few MiB of them.

The process writes to a file that its parent has opened, tracebacks of the interpreter included, so the file is not
rotated by name: its end is copied beside it, and it starts again at nothing. That works while it is appended to.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import final

__all__ = ["MOST", "keep_short", "speak_plainly", "watch_length"]

MOST = 4 * 2**20
"""Bytes of the log, and as many of the one before."""


@final
class _Chatter(logging.Filter):
    """Leaves out what is said once for each message: it is most of the log, and says nothing."""

    def filter(self, record: logging.LogRecord) -> bool:
        words = str(record.msg)
        return record.levelno > logging.INFO or not words.startswith(("[Fleet.PushMessages]", "ControlServicer."))


def speak_plainly(loggers: Sequence[logging.Logger]) -> None:
    """Let ``loggers`` write lines with a time and without colours to standard error."""
    handler = logging.StreamHandler()
    handler.setLevel(logging.INFO)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    handler.addFilter(_Chatter())
    for logger in loggers:
        logger.handlers[:] = [handler]
        logger.propagate = False


def keep_short(log: Path, *, most: int = MOST) -> bool:
    """Where ``log`` has more than ``most`` bytes, move its last ones to a file beside it (``superlink.log.1``).

    Guarantees: only the owner can read that file; where it cannot be written, the log stays as it is. On a full
    disk room counts more than old lines: they go.
    """
    size = log.stat().st_size
    if size <= most:
        return False
    beside, fresh = log.with_name(log.name + ".1"), log.with_name(log.name + ".new")
    fresh.unlink(missing_ok=True)
    try:
        with log.open("rb") as whole, open(fresh, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as copy:
            whole.seek(size - most)
            copy.write(whole.read(most))
        fresh.replace(beside)
    except OSError as problem:
        fresh.unlink(missing_ok=True)
        if problem.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
    os.truncate(log, 0)
    return True


def watch_length(log: Path, *, seconds: float = 60.0) -> None:
    """Look after the length of ``log`` for as long as the process lives."""

    def watch() -> None:
        reported = False
        while True:
            try:
                keep_short(log)
            except OSError as problem:  # a full disk, say: the log stays whole, and grows
                if not reported:
                    logging.getLogger("quietsum").warning("the log could not be shortened: %s", problem.strerror)
                reported = True
            threading.Event().wait(seconds)

    threading.Thread(target=watch, daemon=True, name="the log's length").start()
