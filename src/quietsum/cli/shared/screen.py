"""What a terminal is made to do by texts that it shows: nothing.

Titles of tasks, reasons in a ledger, names in a folder that somebody sent: all of them end on a screen, and escape
sequences in them could move the cursor, hide a line or write to the clipboard. All that a command prints goes through
:class:`Screen`, which lets words, line ends and the few sequences through that quietsum's own tables and progress bars
use on a terminal. Texts that others choose lose those too, before they are printed (:func:`quietsum.errors.printable`).
"""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Iterator
from typing import Any, TextIO, cast, final

from quietsum.errors import CONTROLS

__all__ = ["Screen", "guard_screens"]

_OURS = re.compile(r"\x1b\[[0-9;]*[mABCDGHJK]|\x1b\[\?25[lh]|\r")
"""Colours, the cursor on its own lines, and its hiding: what tables, plots and progress bars write."""


@final
class Screen:
    """A text stream that passes on what is harmless. Everything but writing is the other stream's own."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write ``text`` without control characters; on a terminal with the sequences that are ours."""
        alive = self._stream.isatty()

        def keep(found: re.Match[str]) -> str:
            part = found[0]
            return part if part in "\n\t" or (_OURS.fullmatch(part) and (alive or part == "\r")) else ""

        self._stream.write(CONTROLS.sub(keep, text))
        return len(text)

    def writelines(self, lines: Any) -> None:
        """Write each of ``lines``."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def guard_screens() -> Iterator[None]:
    """Standard output and standard error are screens while this lasts."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (cast(TextIO, Screen(stream)) for stream in before)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
