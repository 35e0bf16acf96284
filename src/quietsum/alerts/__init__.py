"""Alerts: what somebody should know about a run, and how they hear of it.

``rules`` turns plain facts into alerts, ``sending`` passes them on to sinks without ever delaying a round, ``auditlog``
keeps all of them. The room is low, so that a trainer can use it as well as a coordinator and a site.
"""

from __future__ import annotations

from quietsum.alerts.alert import Alert, Audience, Kind, Severity, Subject, for_others, hash_of
from quietsum.alerts.auditlog import AuditLog
from quietsum.alerts.following import LOG, Alerts
from quietsum.alerts.rules import BudgetFact, Course, RoundFact, Thresholds, finding, ledger_broken, refused
from quietsum.alerts.sending import Limits, Sender
from quietsum.alerts.settings import Settings
from quietsum.alerts.sinks import JsonLines, Log, Sink, Terminal

__all__ = [
    "LOG",
    "Alert",
    "Alerts",
    "Audience",
    "AuditLog",
    "BudgetFact",
    "Course",
    "JsonLines",
    "Kind",
    "Limits",
    "Log",
    "RoundFact",
    "Sender",
    "Settings",
    "Severity",
    "Sink",
    "Subject",
    "Terminal",
    "Thresholds",
    "finding",
    "for_others",
    "hash_of",
    "ledger_broken",
    "refused",
]
