"""Alerts of a coordinator: what happens in a run, held against the rules, and passed on.

:class:`AlertWatcher` is a watcher like the others, so it cannot end a round. What it hears while a charge is reserved
(a party that was lost or rejected, a finding) it only keeps; it looks at it, writes and sends when the round is over
and nothing is reserved. :func:`alerting` puts together what a workspace has: ``alerts.toml``, ``alerts.log`` and, once
there is one, the run's own database and its tracking store.
"""

from __future__ import annotations

import contextlib
import json
import logging
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TextIO, final

from quietsum.alerts import (
    LOG,
    Alert,
    AlertKind,
    Audience,
    AuditLog,
    BudgetFact,
    Course,
    RoundFact,
    Sender,
    Severity,
    Subject,
    Terminal,
    Thresholds,
    find,
    ledger_broken,
)
from quietsum.defence import Finding
from quietsum.errors import BudgetExhausted, InvalidParameter, LedgerBroken, QuietsumError
from quietsum.federation import (
    FindingReported,
    PartyDropped,
    RoundFinished,
    RoundStarted,
    RunEvent,
    RunFinished,
    RunStarted,
)
from quietsum.ledger import Book, Ledger, ledger_exists
from quietsum.runs.folder import Workspace
from quietsum.runs.record import Recorder
from quietsum.runs.tracking.watcher import MlflowWatcher

__all__ = ["AlertWatcher", "alerting"]

log = logging.getLogger(__name__)

REST = 50.0
"""After a look at the lifetime budgets, so many times as long none; when a run ends there is always one."""


@final
class AlertWatcher:
    """Turns what happens in a run into alerts.

    ``books`` tells the lifetime budgets of the workspace; those that this run charges are watched.
    """

    def __init__(
        self,
        sender: Sender,
        thresholds: Thresholds | None = None,
        *,
        books: Callable[[], Iterable[Book]] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock, self._rested = clock, 0.0
        self._sender, self._thresholds, self._books = sender, thresholds or Thresholds(), books
        self._course = Course(self._thresholds)
        self._run, self._round = "", 0
        self._lost: list[str] = []
        self._kept_back: list[Alert] = []
        self._told: set[tuple[str, ...]] = set()
        self._shares: dict[tuple[str, str, str], float] = {}
        self.raised = 0
        """Alerts so far; notices are not counted."""

    @property
    def shown(self) -> int:
        """Alerts that stand on the terminal; others were held back there, or are less grave than it shows."""
        return self._sender.count_sent(Terminal.name)

    def open(self, recorder: Recorder | None, tracker: MlflowWatcher | None) -> None:
        """The run's own places are there."""
        if recorder is not None:
            self._sender.add(_Rows(recorder))
        if tracker is not None:
            self._sender.add(_Tags(tracker))

    def saw(self, event: RunEvent) -> None:
        """Keep it, or look at it if nothing is reserved now."""
        match event:
            case RunStarted():
                self._begin(event)
            case RoundStarted():
                self._lost = []
            case PartyDropped():
                self._lost.append(event.party)
            case RoundFinished():
                self._finish(event)
            case RunFinished():
                self._end(event)
            case FindingReported():
                self._kept_back.append(self._alert_of(event.finding))

    def fail(self, error: BaseException) -> None:
        """The run has ended with ``error``, or did not begin: an alert where it is one. A command shows the error."""
        alerts: list[Alert] = []
        match error:
            case BudgetExhausted():
                alerts = self._course.budget_gone(str(error), round=self._round or None)
            case LedgerBroken():
                alerts = [ledger_broken(str(error), run=self._run, round=self._round or None)]
            case InvalidParameter(parameter="learning_rate") if "overflow" in error.problem:
                told = f"the model is no longer finite: {error}"
                kind, model = AlertKind.DIVERGENCE, Subject.MODEL
                alerts = [self._alert(kind, Severity.CRITICAL, told, subject_kind=model, value=float("nan"))]
        self._raise(alerts, shown=True)

    # ------------------------------------------------------------------------------------------------ events

    def _begin(self, event: RunStarted) -> None:
        self._run, self._round, self._told = event.run, event.first_round - 1, set()
        self._course = Course(self._thresholds, run=event.run, parties=event.parties)
        if event.first_round == 1:
            self._course.begin(event.metrics, event.chance)
        self._sender.note("run-started", run=event.run, first_round=event.first_round, rounds=event.rounds)
        self._shares = {_key(book): book.spent_fraction for book in self._lifetimes()}

    def _finish(self, event: RoundFinished) -> None:
        self._round = event.round
        alerts, self._kept_back = self._kept_back, []
        for guarantee in event.reserved:  # never spent, which tells who refused
            limit = event.limits.get(guarantee.unit.value)
            if limit:
                fact = BudgetFact(
                    share=guarantee.epsilon / limit, epsilon=limit, unit=guarantee.unit.value, planned=True,
                    round=event.round,
                )  # fmt: skip
                alerts += self._course.budget(fact)
        if self._clock() >= self._rested:
            alerts += self._about_lifetimes()
        alerts += self._course.round(
            RoundFact(
                round=event.round, asked=event.asked, lost=tuple(self._lost), rejected=event.rejected,
                kept=tuple(party for party in event.kept if party not in set(event.rejected)),
                metrics=event.metrics, step_norm=event.step_norm,
            )
        )  # fmt: skip
        self._lost = []
        self._raise(alerts)

    def _end(self, event: RunFinished) -> None:
        alerts, self._kept_back = self._kept_back, []
        alerts += self._about_lifetimes()
        alerts += self._course.end(event.outcome, round=event.round, reason=event.reason)
        self._raise(alerts)
        self._sender.note("run-finished", run=self._run, outcome=event.outcome, round=event.round)

    def _alert_of(self, seen: Finding) -> Alert:
        """What a detector found, in its own words; the same about the same subject again is a notice."""
        about = {(seen.rule, seen.statistic, str(seen.subject_kind), name) for name in seen.subjects}
        severity = Severity.NOTICE if about <= self._told else Severity.WARNING
        self._told |= about
        return Alert(
            kind=AlertKind.FINDING, severity=severity, sentence=seen.sentence, time=seen.time, run=self._run,
            round=seen.round, subject_kind=Subject(str(seen.subject_kind)), subject=seen.subject,
            statistic=f"{seen.rule}: {seen.statistic}", value=seen.value, threshold=seen.threshold,
            false_positive_rate=seen.false_positive_rate, evidence=seen.evidence,
        )  # fmt: skip

    # ----------------------------------------------------------------------------------------------- budgets

    def _about_lifetimes(self) -> list[Alert]:
        """Of the lifetime budgets that this run has charged."""
        charged = [
            book
            for book in self._lifetimes()
            if book.budget is not None and not book.public and book.spent_fraction > self._shares.get(_key(book), 0.0)
        ]
        return self._course.budget(
            *(
                BudgetFact(
                    share=book.spent_fraction, epsilon=book.budget.epsilon, unit=book.unit.value,
                    subject_kind=Subject.PARTY, subject=book.party, dataset=book.dataset, round=self._round,
                )
                for book in charged
                if book.budget is not None
            )
        )  # fmt: skip

    def _lifetimes(self) -> list[Book]:
        if self._books is None:
            return []
        begun = self._clock()
        try:
            found = list(self._books())
            self._rested = self._clock() + REST * (self._clock() - begun)
            return found
        except QuietsumError as error:  # the run itself says what is wrong with its ledger
            log.info("the lifetime budgets cannot be looked at: %s", error)
            self._books = None
            return []

    def _raise(self, alerts: list[Alert], *, shown: bool = False) -> None:
        self.raised += sum(alert.severity is not Severity.NOTICE for alert in alerts)
        self._sender.send(*alerts, shown=shown)

    def _alert(self, kind: AlertKind, severity: Severity, sentence: str, **more: Any) -> Alert:
        return Alert(kind=kind, severity=severity, sentence=sentence, run=self._run, round=self._round or None, **more)


def _key(book: Book) -> tuple[str, str, str]:
    return book.party, book.dataset, book.unit.value


@contextlib.contextmanager
def alerting(workspace: Workspace, *, service: bool = False, lines: TextIO | None = None) -> Iterator[AlertWatcher]:
    """A watcher with all sinks of ``workspace``; when the block ends, what is left is sent, within the stated patience.

    ``lines``: print alerts there as JSON, in place of words on the terminal. PlanRefused if ``alerts.toml`` is wrong.
    """
    found = find(workspace.path)
    sinks = [sink for sink in found.sinks(service=service) if lines is None or sink.name != "the terminal"]
    if lines is not None:
        sinks.append(_Printed(lines))
    with Sender(sinks, kept=AuditLog(workspace.path / LOG), limits=found.settings.limits) as sender:
        yield AlertWatcher(sender, found.settings.rules, books=_reader(workspace.ledger))


def _reader(ledger: Path) -> Callable[[], Iterable[Book]]:
    """The lifetime budgets of a ledger, which is opened and closed again: the run's own connection is the last one."""

    def books() -> Iterable[Book]:
        if not ledger_exists(ledger):
            return ()
        with Ledger.open(ledger, read_only=True) as opened:
            return opened.lifetime()

    return books


# -------------------------------------------------------------------------------------------------- sinks


@final
class _Rows:
    """Rows in the run's own database."""

    name, audience, least, waits, limited = "run.db", Audience.OPERATOR, Severity.WARNING, False, False

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def send(self, alert: Alert, held_back: int) -> None:
        self._recorder.alert(alert)


@final
class _Tags:
    """Tags of the run in its tracking store, which others read."""

    name, audience, least, waits, limited = "MLflow", Audience.OTHERS, Severity.WARNING, False, True

    def __init__(self, tracker: MlflowWatcher) -> None:
        self._tracker = tracker

    def send(self, alert: Alert, held_back: int) -> None:
        self._tracker.alert(alert)


@final
class _Printed:
    """Lines of JSON among those of the run's events."""

    name, audience, least, waits, limited = "standard output", Audience.OPERATOR, Severity.WARNING, False, False

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def send(self, alert: Alert, held_back: int) -> None:
        self._stream.write(json.dumps({"event": "alert", **alert.to_dict()}, allow_nan=False) + "\n")
        self._stream.flush()
