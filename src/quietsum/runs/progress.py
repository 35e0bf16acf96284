"""Watchers for people and programs: a live bar and line on a terminal, plain lines elsewhere, JSON lines in a file."""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, Self, TextIO, final

from quietsum.federation import (
    FindingReported,
    GroupJudged,
    PartyDropped,
    RoundFinished,
    RunEvent,
    RunFinished,
    RunStarted,
    event_to_dict,
)
from quietsum.files import no_room
from quietsum.plan import NO_GUARANTEE
from quietsum.privacy import Guarantee

if TYPE_CHECKING:
    from rich.live import Live

__all__ = ["EventLines", "Pace", "Progress", "bar", "describe_spent", "round_line"]

DRILL = "a drill, no promise"
_LONG = 10.0  # seconds after which plain lines tell the pace
_WIDTH, _LEAST = 80, 40


def describe_spent(spent: Iterable[Guarantee], limits: Mapping[str, float], *, short: bool = False) -> str:
    """``ε 0.70 of 1 per record``, one a unit; both observers of one unit share a text where they agree.

    ``short`` leaves out every ε sign but the first: ``ε 0.70 of 1 per record, 3.10 of 8 per client``.
    """
    texts = []
    for guarantee in spent:
        if math.isinf(guarantee.epsilon):
            texts.append(NO_GUARANTEE)
        else:
            limit = limits.get(guarantee.unit.value)
            scale = 1e4 if limit and limit < 0.1 else 1e2  # both rounded up alike: what fits never looks overspent
            epsilon = f"{_up(guarantee.epsilon, scale):.{4 if scale > 1e2 else 2}f}"
            of = f" of {_up(limit, scale):g}" if limit else ""
            texts.append(f"ε {epsilon}{of} per {guarantee.whom}")
    each = list(dict.fromkeys(texts)) or [NO_GUARANTEE]
    return ", ".join([each[0], *(text.removeprefix("ε ") for text in each[1:])]) if short else " · ".join(each)


def _up(value: float, scale: float) -> float:
    return math.ceil(value * scale - 1e-7) / scale


def round_line(
    event: RoundFinished,
    dropped: int = 0,
    *,
    groups: tuple[int, int] | None = None,
    drill: bool = False,
    width: int = _WIDTH,
) -> str:
    """The one line that says how a run is doing, of at most 80 columns wherever two units have a guarantee or fewer.

    All counts are of this round: updates in the step, of so many parties asked, ``dropped`` before the rule saw them
    and rejected by it; of ``groups``, those in the step and those that the rule saw. ε is of all rounds so far;
    a ``drill`` promises nothing, so it has none.
    """
    number = f"round {event.round:>{len(str(event.rounds))}}/{event.rounds}"
    kept, asked, noun = (len(event.kept), event.asked, "parties") if groups is None else (*groups, "groups")
    rejected = len(event.rejected) if groups is None else asked - kept
    less = (f", {dropped} dropped" if dropped else "") + (f", {rejected} rejected" if rejected else "")
    metric = next((f"{name} {value:.2f}" for name, value in event.metrics.items()), "")
    long, short = (DRILL if drill else describe_spent(event.spent, event.limits, short=s) for s in (False, True))
    least = DRILL if drill else describe_spent(event.spent, {}, short=True)
    brief = f"{kept} of {asked}{less}" if groups is None else f"{kept} of {asked} groups"
    for parts in (
        (f"{kept} of {asked} {noun}{less}", metric, long),
        (brief, metric, long),
        (brief, metric, short),
        (brief, short),
        (brief, least),
        (f"{kept} of {asked} {noun}", least),
    ):
        line = " · ".join((number, *filter(None, parts)))
        if len(line) <= width:
            return line
    return line


@final
class Pace:
    """How fast a run goes. The first round loads what all others use, so it counts only as long as it is the only one.

    >>> now = iter([0.0, 9.0, 10.0, 11.0])
    >>> pace = Pace(lambda: next(now))
    >>> [pace.finish(number, 10, parties=100) for number in (1, 2, 3)]
    ['11/s · 1 min 21 s left', '100/s · 8 s left', '100/s · 7 s left']
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.began = self._since = clock()
        self._rounds = self._parties = 0
        self.now = self.began

    def finish(self, number: int, rounds: int, *, parties: int) -> str:
        """After round ``number``: parties a second and, where there is any, the time left."""
        self.now = self._clock()
        self._rounds += 1
        self._parties += parties
        taken = max(self.now - self._since, 1e-9)
        rate, left = self._parties / taken, (rounds - number) * taken / self._rounds
        if self.now - self.began and self._since == self.began:  # from here on without the first round
            self._since, self._rounds, self._parties = self.now, 0, 0
        each = f"{rate:,.0f}/s" if rate >= 10 else f"{rate:.2g}/s"
        return each + (f" · {_duration(left)} left" if number < rounds else "")


def _duration(seconds: float) -> str:
    whole = math.ceil(seconds)
    if whole < 60:
        return f"{whole} s"
    return f"{whole // 60} min {whole % 60} s" if whole < 3600 else f"{whole // 3600} h {whole % 3600 // 60} min"


def bar(number: int, rounds: int, pace: str, width: int = 30) -> str:
    """How much is done, in one line of at most 80 columns.

    >>> bar(6, 40, "8,924/s · 12 s left", 10)
    '━━────────  15 % · 8,924/s · 12 s left'
    """
    done = min(1.0, number / max(rounds, 1))
    full = round(width * done)
    return f"{'━' * full}{'─' * (width - full)} {math.floor(100 * done):>3} % · {pace}"[:80]


@final
class Progress:
    """A live bar and line on a terminal (rich); without one, a plain line for about every tenth round.

    Plain lines tell the pace once a run has taken longer than ten seconds; who runs it twice gets the same lines for
    short ones.
    """

    def __init__(self, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream or sys.stdout
        self._clock = clock
        self._pace = Pace(clock)
        self._live: Live | None = None
        self._dropped = self._found = 0
        self._groups: tuple[int, int] | None = None
        self._headed = self._drill = False

    def saw(self, event: RunEvent) -> None:
        """Show it."""
        match event:
            case RunStarted():
                self._dropped, self._found, self._groups = 0, 0, None
                self._drill = bool(event.note)  # only a drill has one
                self._pace = Pace(self._clock)
                self._start()
            case PartyDropped():
                self._dropped += 1
            case GroupJudged():
                kept, seen = self._groups or (0, 0)
                self._groups = kept + event.kept, seen + 1
            case FindingReported():
                self._found += 1
            case RoundFinished():
                self._round(event)
            case RunFinished():
                self.stop()

    def _start(self) -> None:
        self.stop()
        if self._stream.isatty():
            from rich.console import Console
            from rich.live import Live

            self._live = Live(console=Console(file=self._stream, highlight=False, emoji=False), auto_refresh=False)
            self._live.start()

    def _round(self, event: RoundFinished) -> None:
        width = self._width()
        line = round_line(event, self._dropped, groups=self._groups, drill=self._drill, width=width)
        self._dropped, self._groups = 0, None
        every = max(1, event.rounds // 10)
        pace = self._pace.finish(event.round, event.rounds, parties=event.asked)
        if self._live is not None:
            from rich.text import Text

            self._head(event, lambda text: self._live.console.print(Text(text)) if self._live else None)
            if event.round < event.rounds:  # what stays at the end is the line
                found = f" · {self._found} finding{'s' if self._found > 1 else ''} so far" if self._found else ""
                line = f"{bar(event.round, event.rounds, f'{pace}{found}', min(30, width // 2 - 10))}\n{line}"
            self._live.update(Text(line), refresh=True)
        elif event.round % every == 0 or event.round in (1, event.rounds):
            self._head(event, lambda text: self._stream.write(f"{text}\n"))
            if self._pace.now - self._pace.began > _LONG:
                fits = len(line) + len(pace) + 3 <= width
                line += f" · {pace}" if fits else f"\n  {pace}" if event.round < event.rounds else ""
            lines = (textwrap.fill(one, width, subsequent_indent="  ") for one in line.splitlines())
            self._stream.write("\n".join(lines) + "\n")
            self._stream.flush()

    def _head(self, event: RoundFinished, show: Callable[[str], object]) -> None:
        """On which data the score stands, and which numbers of a line are of the round; once a run."""
        if self._headed:
            return
        self._headed = True
        for name in list(event.metrics)[:1]:
            show(textwrap.fill(f"{name} is measured on {event.metrics_on[name]}", self._width()))
        if event.limits and not self._drill:
            told = (
                "ε is what has been spent so far, if the schedule runs as planned; parties (in the step, of those "
                "asked) are counted anew in every round"
            )
            show(textwrap.fill(told, self._width()))

    def _width(self) -> int:
        """What the terminal or COLUMNS leaves for a line, 80 at most; 80 in a pipe."""
        stated = os.environ.get("COLUMNS", "")
        if not (stated.isdecimal() and int(stated) >= _LEAST) and not self._stream.isatty():
            return _WIDTH
        return max(_LEAST, min(_WIDTH, shutil.get_terminal_size((_WIDTH, 24)).columns))

    def stop(self) -> None:
        """Leave the last line standing and give the terminal back."""
        if self._live is not None:
            self._live.stop()
            self._live = None


@final
class EventLines:
    """Every event as one line of JSON: what the operator may see, for programs. No record, update or key is in it."""

    def __init__(self, target: Path | IO[str]) -> None:
        self._own = isinstance(target, Path)
        self._file: IO[str]
        if not isinstance(target, Path):
            self._file = target
            return
        try:
            self._file = target.open("a", encoding="utf-8")
            target.chmod(0o600)
        except OSError as error:
            problem = f"{target} cannot be written: {error.strerror or error}; move it away or make room"
            raise no_room(problem, error) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._own:
            with contextlib.suppress(OSError):  # what did not fit was told when it was written
                self._file.close()

    def saw(self, event: RunEvent) -> None:
        """Append it."""
        try:
            self._file.write(json.dumps(_plain(event_to_dict(event)), allow_nan=False) + "\n")
            self._file.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            problem = f"events cannot be written: {error.strerror or error}; make room, then use --resume"
            raise no_room(problem, error) from None


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "Infinity" if value > 0 else None
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
