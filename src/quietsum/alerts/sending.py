"""Sending without waiting: nothing that a sink does stops or delays the code that raises an alert.

Guarantees (rule 22): :meth:`Sender.send` never raises and never waits for a server. Sinks that may take long have a
queue with a bound and a thread each, so that one that hangs holds up neither a round nor the other sinks. A sink that
fails is a warning, once, until it has worked again; its alerts wait in the queue, are tried again at growing intervals,
and are given up when the queue is full or the run has ended. Alerts of one kind that come too often are held back at
each sink and counted; the count goes out with the next one. The log that :mod:`quietsum.alerts.auditlog` keeps gets
every alert, held back or not, before any sink does.
"""

from __future__ import annotations

import collections
import dataclasses
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Protocol, Self, final

from quietsum.alerts.alert import Alert, AlertKind, Audience, for_others
from quietsum.alerts.fields import setting
from quietsum.alerts.sinks import Refusal, Sink, Terminal
from quietsum.errors import printable
from quietsum.validate import positive, whole_number

__all__ = ["Keeps", "Limits", "Sender"]

log = logging.getLogger(__name__)

FIRST_WAIT, LONGEST_WAIT = 1.0, 300.0


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Limits:
    """``[limits]``: how much is sent, and how long anybody waits for it."""

    per_kind: int = setting(5, "At each sink, so many alerts of one kind within seconds; more are counted, not sent.")
    seconds: float = setting(600.0, "The time within which per_kind counts.")
    room: int = setting(200, "So many alerts wait for a server that does not answer; more are given up.")
    patience: float = setting(10.0, "When a run has ended, so many seconds for what is not sent yet.")

    def __post_init__(self) -> None:
        whole_number("per_kind", self.per_kind, 1)
        whole_number("room", self.room, 1)
        positive("seconds", self.seconds)
        positive("patience", self.patience)


class Keeps(Protocol):
    """What keeps every alert: the audit log."""

    def extend(self, entries: Sequence[tuple[str, Mapping[str, Any]]]) -> object:
        """Write all of it down, each an event and its values."""
        ...


@final
class Sender:
    """Passes alerts on to sinks. Close it when the run has ended; it is a context manager, too."""

    def __init__(
        self,
        sinks: Iterable[Sink] = (),
        *,
        kept: Keeps | None = None,
        limits: Limits | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limits, self._clock, self._kept = limits or Limits(), clock, kept
        self._lines: list[_Direct | _Queued] = []
        self._complained = self._closed = False
        for sink in sinks:
            self.add(sink)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def add(self, sink: Sink) -> None:
        """One more sink, from the next alert on."""
        self._lines.append((_Queued if sink.waits else _Direct)(sink, self._limits, self._clock))

    def send(self, *alerts: Alert, shown: bool = False) -> None:
        """Take note of ``alerts`` and return at once. It never raises. ``shown``: the terminal says it anyway."""
        self._keep(("alert", alert.to_dict()) for alert in alerts)  # all at once: a round syncs the log once
        for alert in alerts:
            try:
                for line in self._lines:
                    if shown and line.sink.name == Terminal.name:
                        line.sent += 1
                    else:
                        line.put(alert)
            except Exception as error:  # rule 22: an alert is optional
                log.warning("an alert could not be passed on: %s", type(error).__name__)

    def count_sent(self, name: str) -> int:
        """How many alerts the sink of this name was handed; those that were held back or given up are not counted."""
        return sum(line.sent for line in self._lines if line.sink.name == name)

    def note(self, event: str, **values: Any) -> None:
        """Write something down beside the alerts, with its time; nothing is sent, and it never raises."""
        self._keep([(event, values)])

    def _keep(self, entries: Iterable[tuple[str, Mapping[str, Any]]]) -> None:
        if self._kept is None:
            return
        try:
            self._kept.extend(list(entries))
        except Exception as error:
            if not self._complained:
                self._complained = True
                log.warning("alerts are not written down any more: %s", _words(error))

    def close(self, patience: float | None = None) -> dict[str, int]:
        """Send what is left, wait at most ``patience`` seconds for all sinks together, and say what was not sent.

        Returns how many alerts each sink did not get, held back ones not counted. It never raises.
        """
        if self._closed:
            return {}
        self._closed = True
        over = time.monotonic() + (self._limits.patience if patience is None else patience)
        for line in self._lines:
            line.end()
        lost: dict[str, int] = {}
        told: list[tuple[str, Mapping[str, Any]]] = []
        for line in self._lines:
            held = line.wait(max(0.0, over - time.monotonic()))
            for kind, count in held.items():
                told.append(("held-back", {"sink": line.sink.name, "kind": kind.value, "count": count}))
            if line.lost:
                lost[line.sink.name] = line.lost
                told.append(("not-sent", {"sink": line.sink.name, "count": line.lost}))
                log.warning("%d alerts did not reach %s", line.lost, line.sink.name)
        self._keep(told)
        return lost


class _Allowance:
    """At most ``per_kind`` alerts of a kind within ``seconds``, and how many were held back since the last one."""

    def __init__(self, sink: Sink, limits: Limits, clock: Callable[[], float]) -> None:
        self._sink, self._limits, self._clock = sink, limits, clock
        self._sent: dict[AlertKind, collections.deque[float]] = {}
        self.held: collections.Counter[AlertKind] = collections.Counter()

    def admit(self, alert: Alert) -> tuple[Alert, int] | None:
        """What this sink's readers may have of ``alert``, with the number held back; None where nothing is sent."""
        shown = alert if self._sink.audience is Audience.OPERATOR else for_others(alert)
        if shown is None or shown.severity.rank < self._sink.least.rank:
            return None
        if not self._sink.limited:
            return shown, 0
        now, times = self._clock(), self._sent.setdefault(shown.kind, collections.deque())
        while times and now - times[0] >= self._limits.seconds:
            times.popleft()
        if len(times) >= self._limits.per_kind:
            self.held[shown.kind] += 1
            return None
        times.append(now)
        return shown, self.held.pop(shown.kind, 0)


@final
class _Direct:
    """A sink that is called at once. One that raises is a warning, once, and then left alone."""

    def __init__(self, sink: Sink, limits: Limits, clock: Callable[[], float]) -> None:
        self.sink, self.lost, self.sent, self._failed = sink, 0, 0, False
        self._allowance = _Allowance(sink, limits, clock)

    def put(self, alert: Alert) -> None:
        admitted = self._allowance.admit(alert)
        if admitted is None:
            return
        if not self._failed:
            try:
                self.sink.send(*admitted)
                self.sent += 1
                return
            except Exception as error:
                self._failed = True
                log.warning("%s gets no more alerts: %s", self.sink.name, _words(error))
        self.lost += 1

    def end(self) -> None:
        """Nothing is left to do."""

    def wait(self, seconds: float) -> collections.Counter[AlertKind]:
        return self._allowance.held


@final
class _Queued:
    """A sink with a queue and a thread of its own."""

    def __init__(self, sink: Sink, limits: Limits, clock: Callable[[], float]) -> None:
        self.sink, self.lost, self.sent, self._room = sink, 0, 0, limits.room
        self._allowance = _Allowance(sink, limits, clock)
        self._pending: collections.deque[tuple[Alert, int]] = collections.deque()
        self._change = threading.Condition()
        self._thread: threading.Thread | None = None
        self._ending = self._told = False

    def put(self, alert: Alert) -> None:
        admitted = self._allowance.admit(alert)
        if admitted is None:
            return
        with self._change:
            if len(self._pending) >= self._room or self._ending:
                self.lost += 1
                return
            self._pending.append(admitted)
            self._change.notify_all()
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="quietsum-alerts", daemon=True)
            self._thread.start()

    def end(self) -> None:
        with self._change:
            self._ending = True
            self._change.notify_all()

    def wait(self, seconds: float) -> collections.Counter[AlertKind]:
        if self._thread is not None:
            self._thread.join(min(seconds, threading.TIMEOUT_MAX))
        with self._change:
            self.lost += len(self._pending)
            self._pending.clear()
            self._told = True  # what a server says after the end is for nobody
        return self._allowance.held

    def _work(self) -> None:
        wait = FIRST_WAIT
        while True:
            with self._change:
                self._change.wait_for(lambda: self._pending or self._ending)
                if not self._pending:
                    return
                alert, held = self._pending[0]
                last = self._ending
            refused = False
            try:
                self.sink.send(alert, held)
            except Exception as error:  # whatever a server or a disk does is no business of the run
                refused = isinstance(error, Refusal)
                if not self._told:
                    self._told = True
                    log.warning("%s does not take alerts; the run goes on without: %s", self.sink.name, _words(error))
                if not refused:
                    if last:
                        return  # what is left is counted by wait()
                    with self._change:
                        self._change.wait_for(lambda: self._ending, timeout=wait)
                    wait = min(2 * wait, LONGEST_WAIT)
                    continue
                with self._change:
                    self.lost += 1
            with self._change:
                if not refused:
                    self.sent += 1
                    self._told, wait = not self._pending, FIRST_WAIT
                if self._pending and self._pending[0][0] is alert:  # the end may have come first
                    self._pending.popleft()


def _words(error: BaseException) -> str:
    """An error in one line that quotes no secret: sinks make their own words where a server's may hold one."""
    return printable(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)[:300]
