"""Where alerts go on this machine: the terminal, Python's logging, a file of JSON lines. Servers are in
:mod:`quietsum.alerts.servers`.

A sink has a name for warnings, an audience, and :meth:`Sink.send`, which may raise what it likes and take as long as it
likes: :class:`~quietsum.alerts.sending.Sender` stands in between. It is handed what its audience may read and nothing
else.
"""

from __future__ import annotations

import json
import logging
import os
import stat
import sys
import textwrap
from pathlib import Path
from typing import Any, Protocol, TextIO, final

from quietsum.alerts.alert import Alert, Audience, Severity
from quietsum.files import PRIVATE

__all__ = ["JsonLines", "Log", "Refusal", "Sink", "Terminal", "append_line", "line_of"]

log = logging.getLogger("quietsum.alerts")
_LEVELS = {Severity.NOTICE: logging.INFO, Severity.WARNING: logging.WARNING, Severity.CRITICAL: logging.ERROR}


class Refusal(Exception):
    """A server has answered that it will never take this alert; sending it again would not help."""


class Sink(Protocol):
    """Something that takes alerts."""

    @property
    def name(self) -> str:
        """How warnings call it; no secret is in it."""
        ...

    @property
    def audience(self) -> Audience:
        """Who reads it."""
        ...

    @property
    def least(self) -> Severity:
        """What is less grave than this is not sent."""
        ...

    @property
    def waits(self) -> bool:
        """Whether it may take long, so that a thread of its own must do it."""
        ...

    @property
    def limited(self) -> bool:
        """Whether many alerts of one kind are held back and counted."""
        ...

    def send(self, alert: Alert, held_back: int) -> None:
        """Pass ``alert`` on. ``held_back`` others of its kind were not, since the last one."""
        ...


@final
class Terminal:
    """Lines on standard error, for the user of that terminal."""

    name, audience, waits, limited = "the terminal", Audience.OPERATOR, False, True

    def __init__(
        self, *, least: Severity = Severity.WARNING, stream: TextIO | None = None, fresh_line: bool = False
    ) -> None:
        """``fresh_line``: where somebody writes a line over and over again, begin below it."""
        self.least, self._stream, self._fresh = least, stream, fresh_line

    def send(self, alert: Alert, held_back: int) -> None:
        """Print it, above a progress bar where there is one."""
        stream = self._stream or sys.stderr  # looked up now: a live bar puts its own in place
        words = "notice" if alert.severity is Severity.NOTICE else "alert"
        text = f"{words}: {line_of(alert, held_back)}"
        before = "\n" if self._fresh and stream.isatty() else ""
        stream.write(before + textwrap.fill(text, 80, subsequent_indent="  ", break_on_hyphens=False) + "\n")
        stream.flush()


@final
class Log:
    """Records of the logger ``quietsum.alerts``, for services and programs."""

    name, audience, waits, limited = "the log", Audience.OPERATOR, False, True

    def __init__(self, *, least: Severity = Severity.WARNING) -> None:
        self.least = least

    def send(self, alert: Alert, held_back: int) -> None:
        """Log it, with the alert itself as ``record.alert``."""
        log.log(_LEVELS[alert.severity], "%s", line_of(alert, held_back), extra={"alert": alert})


@final
class JsonLines:
    """A file with one alert a line, for programs of the operator."""

    waits, limited = True, False  # whatever stands under that name may hold whoever opens it

    def __init__(
        self, path: Path, *, audience: Audience = Audience.OPERATOR, least: Severity = Severity.WARNING
    ) -> None:
        self.name, self.audience, self.least, self._path = f"the file {path.name}", audience, least, path

    def send(self, alert: Alert, held_back: int) -> None:
        """Append it."""
        values: dict[str, Any] = alert.to_dict()
        append_line(self._path, json.dumps(values, ensure_ascii=False, allow_nan=False))


def append_line(path: Path, line: str) -> None:
    """Append one line to a plain file that only this user may read; OSError for a pipe, a device, a full disk."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
    handle = os.open(path, flags, PRIVATE)
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(f"{path} is no plain file")
        content = line.encode() + b"\n"
        while content:
            content = content[os.write(handle, content) :]
    finally:
        os.close(handle)


def line_of(alert: Alert, held_back: int = 0) -> str:
    """``budget-low, round 12 of visits-2026: …`` in one line.

    >>> from quietsum.alerts.alert import AlertKind
    >>> line_of(Alert(kind=AlertKind.TEST, severity=Severity.NOTICE, sentence="hello", run="r1", round=3), 2)
    'test, round 3 of r1: hello (2 more of this kind were held back)'
    """
    where = "" if alert.round is None else f", round {alert.round}"
    where += f" of {alert.run}" if alert.run and where else f", {alert.run}" if alert.run else ""
    more = f" ({held_back} more of this kind were held back)" if held_back else ""
    return f"{alert.kind}{where}: {alert.sentence}{more}"
