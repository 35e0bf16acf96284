"""Alerts of a site, for its own operator: budgets, refusals, a ledger out of order, runs that end.

Everything is looked at when a message has been answered and its reply is made: nothing stands between a charge and its
commit, and no alert depends on a record. Work that failed is no alert for the same reason: what it made the
code do must not show in when a reply leaves (rule 17).
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, final

from quietsum.alerts import (
    LOG,
    Alert,
    AlertKind,
    AuditLog,
    BudgetFact,
    Course,
    Sender,
    Severity,
    Subject,
    alert_of_refusal,
    ledger_broken,
)

if TYPE_CHECKING:
    from quietsum.ledger import Ledger
    from quietsum.party.policy import Policy

__all__ = ["SiteAlerts"]

log = logging.getLogger(__name__)

MOST_A_DAY = 200
"""So many alerts of one kind are raised by messages within :data:`DAY`; further ones are only counted."""
DAY = 86_400.0


@final
class SiteAlerts:
    """What one site's operator hears of. No method raises, and none waits for a server.

    What messages raise is bounded: a coordinator that asks for one impossible thing after another adds no more than
    :data:`MOST_A_DAY` lines of a kind to the log in a day.
    """

    def __init__(
        self, policy: Policy, ledger: Ledger, sender: Sender, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._days: dict[AlertKind, tuple[float, int]] = {}  # since when so many of a kind were raised
        self._policy, self._ledger, self._sender = policy, ledger, sender
        self._course = Course(policy.alerts.rules)
        self._facts: list[Alert] = []
        self._charged = True  # the first look is at what was spent before

    @classmethod
    def of(cls, policy: Policy, ledger: Ledger) -> SiteAlerts:
        """With the sinks that the policy names, and a log beside the site's ledger."""
        settings = policy.alerts
        kept = AuditLog(policy.path(policy.site.ledger).parent / LOG)
        return cls(
            policy, ledger, Sender(settings.sinks(policy.folder, service=True), kept=kept, limits=settings.limits)
        )

    def close(self) -> None:
        """Send what is left, within the stated patience."""
        self.look()
        self._sender.close()

    # ------------------------------------------------------------------ noted while a message is being answered

    def note_charge(self) -> None:
        """Something was charged: the budgets are worth a look."""
        self._charged = True

    def note_refusal(self, reason: str, *, run: str = "") -> None:
        """A request was refused."""
        self._raise(alert_of_refusal(self._policy.name, reason, run=run))

    def note_spent_budget(self, reason: str, *, run: str = "") -> None:
        """A request was refused because a budget does not suffice."""
        self._raise(
            Alert(
                kind=AlertKind.BUDGET_GONE, severity=Severity.CRITICAL, sentence=f"a budget is spent: {reason}",
                run=run, subject_kind=Subject.SITE, subject=self._policy.name,
            )
        )  # fmt: skip

    def note_broken_ledger(self, problem: str) -> None:
        """The site's ledger is not what was written, or cannot be."""
        self._raise(ledger_broken(problem))

    def note_end(self, run: str) -> None:
        """A run has ended, says its coordinator."""
        self._raise(
            Alert(
                kind=AlertKind.RUN_ENDED, severity=Severity.NOTICE, sentence="the run has ended, says its coordinator",
                run=run, subject_kind=Subject.SITE, subject=self._policy.name,
            )
        )  # fmt: skip

    def _raise(self, alert: Alert) -> None:
        now = self._clock()
        since, count = self._days.get(alert.kind, (now, 0))
        if now - since >= DAY:
            if count > MOST_A_DAY:
                self._facts.append(self._shorten(alert, f"{count - MOST_A_DAY} more of this kind within a day"))
            since, count = now, 0
        self._days[alert.kind] = since, count + 1
        if count < MOST_A_DAY:
            self._facts.append(alert)
        elif count == MOST_A_DAY:
            told = f"more than {MOST_A_DAY} of this kind within a day: from here on they are only counted"
            self._facts.append(self._shorten(alert, told))

    @staticmethod
    def _shorten(alert: Alert, sentence: str) -> Alert:
        return dataclasses.replace(alert, sentence=sentence, run="")

    # -------------------------------------------------------------------------------------- after the answer

    def look(self) -> None:
        """Pass on what was noted, and look at the budgets if something was charged."""
        facts, self._facts = self._facts, []
        charged, self._charged = self._charged, False
        try:
            if charged:
                facts += self._about_budgets()
        except Exception as error:  # the service says itself what is wrong with its ledger
            log.info("the budgets cannot be looked at: %s", type(error).__name__)
        self._sender.send(*facts)

    def _about_budgets(self) -> list[Alert]:
        mine, found = (self._policy.name, self._policy.dataset.name), list[Alert]()
        for book in self._ledger.lifetime():
            if (book.party, book.dataset) == mine and book.budget is not None and not book.public:
                found += self._course.budget(
                    BudgetFact(
                        share=book.spent_fraction, epsilon=book.budget.epsilon, unit=book.unit.value,
                        subject_kind=Subject.SITE, subject=book.party, dataset=book.dataset,
                    )
                )  # fmt: skip
        return found
