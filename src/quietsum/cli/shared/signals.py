"""Ctrl-C, SIGTERM and SIGHUP as a command takes them, from its first line to its last; then as they were before.

Python's own answer to Ctrl-C, an exception at the line that is being run, gets lost where it meets an import that
swallows exceptions. So commands that go on for a while take signals themselves, and before they import anything large.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import final

__all__ = ["ENDING", "Interruption", "answering"]

ENDING = (signal.SIGINT, signal.SIGTERM)


@contextlib.contextmanager
def answering(answers: Mapping[signal.Signals, Callable[[signal.Signals], object]]) -> Iterator[None]:
    """Until this ends, each of these signals has its answer. Other threads than the main one hear no signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def answer_one(number: int, _: object) -> None:
        answers[signal.Signals(number)](signal.Signals(number))

    before = {number: signal.signal(number, answer_one) for number in answers}
    try:
        yield
    finally:
        for number, answer in before.items():
            signal.signal(number, answer)


@final
class Interruption:
    """Breaks off what is being done, by :class:`KeyboardInterrupt`, and remembers which signal it was."""

    def __init__(self) -> None:
        self._came: signal.Signals | None = None

    @contextlib.contextmanager
    def listen(self) -> Iterator[None]:
        """Ctrl-C and SIGTERM interrupt until this ends; what is ignored, as in the background of a script, stays so."""
        numbers = [number for number in ENDING if signal.getsignal(number) is not signal.SIG_IGN]
        with answering(dict.fromkeys(numbers, self._interrupt)):
            yield

    def check(self) -> None:
        """Interrupt now, where that was asked for and swallowed on the way."""
        if self._came is not None:
            raise KeyboardInterrupt

    @property
    def exit_code(self) -> int:
        """130 after Ctrl-C, 143 after SIGTERM: what a shell says of a process that such a signal ended."""
        return 128 + (self._came or signal.SIGINT)

    def _interrupt(self, number: signal.Signals) -> None:
        self._came = number
        raise KeyboardInterrupt
