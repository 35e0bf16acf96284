"""What happens beside training: a bar for people, and calls of one's own after each epoch.

Everything here sees an :class:`~quietsum.learning.trainer.Epoch`: what is public after it, with scores on unprotected
records. So a hook may show, note or stop, and costs nothing. A run that stops early keeps the ε of its whole plan, as
when to stop may have been decided by what somebody saw.

>>> patient = EarlyStopping("loss", patience=2)
>>> [patient.is_done({"loss": value}) for value in (0.9, 0.5, 0.6, 0.55)]
[False, False, False, True]
"""

from __future__ import annotations

import contextlib
import math
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, TextIO, final

from quietsum.errors import InvalidParameter
from quietsum.validate import non_negative, whole_number

if TYPE_CHECKING:
    from quietsum.learning.trainer import Epoch

__all__ = ["EarlyStopping", "Screen", "StopTraining", "as_callbacks"]

_OFTEN = 0.1  # seconds between two drawings of the bar
_WIDTH = 80
_LOWER = ("loss", "error", "perplexity", "mae", "mse", "rmse")


class StopTraining(Exception):
    """What a callback raises to end training after this epoch. The model is kept, at the whole plan's ε."""


@final
class EarlyStopping:
    """A callback that ends training once a public score has not got better for ``patience`` epochs.

    ``metric`` is a name in ``Epoch.metrics``, which stand on unprotected records; a score on protected ones would be a
    release without a charge, and there is none. ``lower_is_better`` is taken from the name unless stated: losses and
    errors shall fall. ``least`` is how much better a score must be to count. Guarantees: the claim of a run that was
    stopped is that of its whole plan; stopping early saves time, not ε.
    """

    def __init__(
        self, metric: str = "loss", patience: int = 5, *, lower_is_better: bool | None = None, least: float = 0.0
    ) -> None:
        self.metric = metric
        self.patience = whole_number("patience", patience, 1)
        self.least = non_negative("least", least)
        self._sign = -1.0 if (metric.lower().endswith(_LOWER) if lower_is_better is None else lower_is_better) else 1.0
        self.begin()

    def begin(self) -> None:
        """Forget what was seen: a new training begins."""
        self._best, self._waited = -math.inf, 0

    def check(self, metrics: Mapping[str, float]) -> None:
        """Raises InvalidParameter if ``metrics``, those of a model before training, do not have the score."""
        if self.metric in metrics:
            return
        known = ", ".join(metrics) or "there is none: pass records that need no protection, or metrics="
        problem = "is no score of this training, and early stopping goes by public scores alone"
        raise InvalidParameter("metric", self.metric, problem, f"choose one of: {known}" if metrics else known)

    def is_done(self, metrics: Mapping[str, float]) -> bool:
        """Take in the scores of one epoch; True if it was one too many without a better one."""
        score = self._sign * metrics[self.metric]
        if score > self._best + (self.least if math.isfinite(self._best) else 0.0):
            self._best, self._waited = score, 0
        else:  # a score that is no number is no better
            self._waited += 1
        return self._waited >= self.patience

    def __call__(self, epoch: Epoch) -> None:
        """Raises :class:`StopTraining` if the score has not got better for too long."""
        if self.is_done(epoch.metrics):
            raise StopTraining(f"{self.metric} has not got better for {self.patience} epochs")


Callback = Callable[["Epoch"], object]


def as_callbacks(callbacks: Callback | Iterable[Callback]) -> tuple[Callback, ...]:
    """One callback or several, as several."""
    if callable(callbacks) and not isinstance(callbacks, type):
        return (callbacks,)
    found = tuple(callbacks) if isinstance(callbacks, Iterable) else (callbacks,)
    for one in found:
        if not callable(one) or isinstance(one, type):
            shown = one.__name__ if isinstance(one, type) else type(one).__name__
            problem = "cannot be called with an Epoch"
            raise InvalidParameter("callbacks", shown, problem, "pass functions, or objects such as EarlyStopping()")
    return found


@final
class Screen:
    """How far a training is: a bar with ε and time left on a terminal, one plain line an epoch elsewhere.

    ``wanted`` None shows the bar on a terminal and nothing elsewhere, True also the plain lines, False nothing. What
    cannot be written, to a pipe that was closed say, is left out: it stops no training.
    """

    def __init__(
        self, wanted: bool | None, steps: int, done: int = 0, *, stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._stream = sys.stderr if stream is None else stream
        terminal = wanted is not False and self._stream is not None and self._stream.isatty()
        self._bar, self._lines = terminal, bool(wanted) and not terminal
        self._steps, self._first, self._done = steps, done, done
        self._clock, self._line = clock, ""
        self._began, self._drawn = clock(), -math.inf

    def step(self) -> None:
        """One more step was made."""
        self._done += 1
        if self._bar and self._clock() - self._drawn >= _OFTEN:
            self._draw()

    def epoch(self, line: str) -> None:
        """An epoch is over; ``line`` says what may be known of it."""
        self._line = line
        if self._bar:
            self._draw()
        elif self._lines:
            self._write(f"{line}\n")

    def end(self) -> None:
        """Leave the last line standing."""
        if self._bar and math.isfinite(self._drawn):
            self._write(f"\r{self._line[:_WIDTH]:<{_WIDTH}}\n" if self._line else "\n")
        self._bar = False

    def _draw(self) -> None:
        self._drawn = now = self._clock()
        share, made = self._done / max(self._steps, 1), self._done - self._first
        left = "" if not made else f" {say_seconds((now - self._began) * (self._steps - self._done) / made)} left"
        full = round(10 * min(share, 1.0))
        shown = f"{'━' * full}{'─' * (10 - full)}{left} · {self._line}".rstrip(" ·")[:_WIDTH]
        self._write(f"\r{shown:<{_WIDTH}}")

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(text)
            self._stream.flush()


def say_seconds(seconds: float) -> str:
    """A time in words.

    >>> say_seconds(7.2), say_seconds(90), say_seconds(7260)
    ('8 s', '1 min 30 s', '2 h 1 min')
    """
    whole = math.ceil(seconds)
    if whole < 60:
        return f"{whole} s"
    return f"{whole // 60} min {whole % 60} s" if whole < 3600 else f"{whole // 3600} h {whole % 3600 // 60} min"
