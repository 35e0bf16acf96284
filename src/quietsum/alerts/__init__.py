"""Alerts: what somebody should know about a run, and how they hear of it.

``rules`` turns plain facts into alerts, ``sending`` passes them on to sinks without ever delaying a round, ``auditlog``
keeps all of them. The room is low, so that a trainer can use it as well as a coordinator and a site.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quietsum.doors import open_door

if TYPE_CHECKING:
    from quietsum.alerts.alert import (
        SCORES as SCORES,
        Alert as Alert,
        AlertKind as AlertKind,
        Audience as Audience,
        Severity as Severity,
        Subject as Subject,
        for_others as for_others,
        hash_of as hash_of,
        moment as moment,
    )
    from quietsum.alerts.auditlog import AuditLog as AuditLog, Line as Line
    from quietsum.alerts.following import LOG as LOG, Alerts as Alerts
    from quietsum.alerts.rules import (
        CHANCE_LEVELS as CHANCE_LEVELS,
        BudgetFact as BudgetFact,
        Course as Course,
        RoundFact as RoundFact,
        Thresholds as Thresholds,
        alert_of_refusal as alert_of_refusal,
        finding as finding,
        ledger_broken as ledger_broken,
    )
    from quietsum.alerts.sending import Limits as Limits, Sender as Sender
    from quietsum.alerts.settings import AlertSettings as AlertSettings, find as find, trust as trust
    from quietsum.alerts.sinks import (
        JsonLines as JsonLines,
        Log as Log,
        Sink as Sink,
        Terminal as Terminal,
        line_of as line_of,
    )
else:
    __getattr__, __dir__, __all__ = open_door(__name__)
