"""Watchers for people and programs: a live line on a terminal, plain lines elsewhere, JSON lines in a file."""

from __future__ import annotations

import contextlib
import json
import math
import sys
import textwrap
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, Self, TextIO, final

from quietsum.federation.watch import PartyDropped, RoundFinished, RunEvent, RunFinished, RunStarted, to_dict
from quietsum.privacy.guarantee import Guarantee
from quietsum.runs.atomic import NoRoom

if TYPE_CHECKING:
    from rich.live import Live

__all__ = ["NO_GUARANTEE", "JsonLines", "Progress", "round_line", "spent_text"]

NO_GUARANTEE = "NO PRIVACY GUARANTEE"


def spent_text(spent: Iterable[Guarantee], limits: Mapping[str, float]) -> str:
    """``ε 0.70 of 1 per record``, one a unit; both observers of one unit share a text where they agree."""
    texts = []
    for guarantee in spent:
        epsilon = "∞" if math.isinf(guarantee.epsilon) else f"{math.ceil(guarantee.epsilon * 100 - 1e-9) / 100:.2f}"
        if math.isinf(guarantee.epsilon):
            texts.append(NO_GUARANTEE)
        else:
            limit = limits.get(guarantee.unit.value)
            texts.append(f"ε {epsilon}" + (f" of {limit:g}" if limit else "") + f" per {guarantee.whom}")
    return " · ".join(dict.fromkeys(texts)) or NO_GUARANTEE


def round_line(event: RoundFinished, dropped: int, *, data: bool = True) -> str:
    """The one line that says how a run is doing; without ``data`` somebody has said on which data it was measured."""
    metric = ""
    if event.metrics:
        name, value = next(iter(event.metrics.items()))
        metric = f" · {name} {value:.2f}" + (f" on {event.metrics_on[name]}" if data else "")
    left_out = f" · {dropped} left out" if dropped else ""
    number = f"{event.round:>{len(str(event.rounds))}}/{event.rounds}"
    return (
        f"round {number} · {len(event.kept)} of {event.asked} parties{metric} · "
        f"{spent_text(event.spent, event.limits)}{left_out}"
    )


@final
class Progress:
    """One live line on a terminal (rich); without one, a plain line for about every tenth round."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stdout
        self._live: Live | None = None
        self._dropped = 0
        self._headed = False

    def saw(self, event: RunEvent) -> None:
        """Show it."""
        match event:
            case RunStarted():
                self._dropped = 0
                self._start()
            case PartyDropped():
                self._dropped += 1
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
        dropped, self._dropped = self._dropped, 0
        every = max(1, event.rounds // 10)
        if self._live is not None:
            from rich.text import Text

            self._live.update(Text(round_line(event, dropped)), refresh=True)
        elif event.round % every == 0 or event.round in (1, event.rounds):
            if not self._headed and event.metrics:
                name = next(iter(event.metrics))
                self._stream.write(f"{name} is measured on {event.metrics_on[name]}\n")
                if event.limits:
                    self._stream.write("ε is what has been spent, if the schedule runs as planned\n")
                self._headed = True
            line = round_line(event, dropped, data=False)
            self._stream.write(textwrap.fill(line, 80, subsequent_indent="  ") + "\n")
            self._stream.flush()

    def stop(self) -> None:
        """Leave the last line standing and give the terminal back."""
        if self._live is not None:
            self._live.stop()
            self._live = None


@final
class JsonLines:
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
            raise NoRoom(f"{target} cannot be written: {error.strerror or error}; move it away or make room") from None

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
            self._file.write(json.dumps(_plain(to_dict(event)), allow_nan=False) + "\n")
            self._file.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            raise NoRoom(f"events cannot be written: {error.strerror or error}; make room, then use --resume") from None


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "Infinity" if value > 0 else None
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
