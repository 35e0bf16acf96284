"""Alerts of one training: what a trainer passes on after each epoch, held against the rules.

    with Alerts.at("workspace") as alerts:
        PrivateTrainer(model, config, workspace="workspace", alerts=alerts).train(records, validation)

A trainer calls it when an epoch's charge is committed and its checkpoint written, and no method raises or waits: an
alert never costs an epoch.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self, final

from quietsum.alerts.alert import Alert, AlertKind, Severity, Subject
from quietsum.alerts.auditlog import AuditLog
from quietsum.alerts.rules import BudgetFact, Course, RoundFact, Thresholds, ledger_broken
from quietsum.alerts.sending import Sender
from quietsum.alerts.settings import find
from quietsum.alerts.sinks import Log, Terminal
from quietsum.errors import BudgetExhausted, InvalidParameter, LedgerBroken

__all__ = ["LOG", "Alerts"]

log = logging.getLogger(__name__)

LOG = "alerts.log"
"""The log of alerts in a workspace."""


@final
class Alerts:
    """A sender with rules, for a trainer. Without arguments alerts go to Python's logging.

    The budget of a run is what its plan means to use up, so four fifths of it are a notice; four fifths of a lifetime
    budget are a warning, and a budget that ends a training early is critical. Scores are those on public
    data: nothing here looks at a training record.
    """

    def __init__(self, sender: Sender | None = None, rules: Thresholds | None = None) -> None:
        self._sender, self._rules = sender or Sender([Log()]), rules or Thresholds()
        self._course, self._run, self._failed = Course(self._rules), "", False

    @classmethod
    def at(cls, workspace: str | os.PathLike[str], *, terminal: bool = False) -> Alerts:
        """As ``alerts.toml`` in ``workspace`` says, with its log there. ``terminal``: print instead of logging."""
        place = Path(workspace)
        found = find(place)
        sinks = [
            Terminal(least=sink.least, fresh_line=True) if isinstance(sink, Terminal) else sink
            for sink in found.sinks(service=not terminal)
        ]
        sender = Sender(sinks, kept=AuditLog(place / LOG), limits=found.settings.limits)
        return cls(sender, found.settings.rules)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Send what is left, within the stated patience."""
        self._sender.close()

    # -------------------------------------------------------------------------------------- for the trainer

    @contextlib.contextmanager
    def following(self, run: str) -> Iterator[None]:
        """One call of a training: an error that ends it is an alert where it is one, and goes on its way."""
        self._run = run
        try:
            yield
        except Exception as error:
            self._quietly(functools.partial(self._about, error), shown=True)
            raise

    def begin(
        self, metrics: Callable[[], Mapping[str, float]], chance: Callable[[], Mapping[str, float]], *, steps: int
    ) -> None:
        """A training begins, with the scores of its first model, and those of one that knows nothing."""

        def begin() -> list[Alert]:
            self._course = Course(self._rules, run=self._run)
            self._course.begin(metrics(), chance())
            self._sender.note("training-started", run=self._run, steps=steps)
            return []

        self._quietly(begin)

    def epoch(
        self,
        number: int,
        *,
        share: float | None,
        epsilon: float | None,
        metrics: Mapping[str, float],
        lifetimes: Callable[[], Iterable[BudgetFact]] = tuple,
    ) -> None:
        """An epoch is paid for and kept. ``share`` of the run's own ``epsilon`` is reserved."""

        def look() -> list[Alert]:
            found: list[Alert] = []
            if share is not None and epsilon is not None:
                found += self._course.budget(
                    BudgetFact(share=share, epsilon=epsilon, unit="record", planned=True, round=number)
                )
            found += self._course.budget(*lifetimes())
            return found + self._course.round(RoundFact(round=number, metrics=metrics))

        self._quietly(look)

    def end(self, outcome: str, reason: str = "") -> None:
        """The training is over: ``finished``, ``early`` where a callback has ended it, or ``budget``."""
        self._quietly(lambda: self._course.end(outcome, reason=reason))
        self._sender.note("training-finished", run=self._run, outcome=outcome)

    def _about(self, error: Exception) -> list[Alert]:
        match error:
            case BudgetExhausted():
                return self._course.budget_gone(str(error))
            case LedgerBroken():
                return [ledger_broken(str(error), run=self._run)]
            case InvalidParameter(parameter="learning_rate") if "overflow" in error.problem:
                told = f"the model is no longer finite: {error}"
                return [
                    Alert(
                        kind=AlertKind.DIVERGENCE, severity=Severity.CRITICAL, sentence=told, run=self._run,
                        subject_kind=Subject.MODEL, value=float("nan"),
                    )
                ]  # fmt: skip
        return []

    def _quietly(self, look: Callable[[], list[Alert]], *, shown: bool = False) -> None:
        """Look, and pass on what is found; any error is a warning, once."""
        try:
            self._sender.send(*look(), shown=shown)
        except Exception as error:
            if not self._failed:
                self._failed = True
                log.warning("alerts of this training cannot be looked for: %s", type(error).__name__)
