"""What an alert is, how grave it is, and who may read it.

Most alerts tell who took part: a site that was lost, an update that was rejected, a lifetime budget by the name of its
holder. That is for the operator alone (rule 5 of honest accounting: against its readers there is no amplification). The
few facts that were charged or are public may go to others: the share of the run's own ε that is *reserved* (the same
for every choice of who refused), a score on public data, and that the run has ended. Which is which is decided here, by
the alert's kind and subject, never by the code that raises it or by a setting; and what goes to others is written anew
from those facts (:func:`for_others`), so that no sentence, subject or evidence can carry a name along.
"""

from __future__ import annotations

import dataclasses
import datetime
import enum
import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any, final

from quietsum.errors import InvalidParameter, printable
from quietsum.validate import whole_number

__all__ = [
    "SCORES",
    "Alert",
    "AlertKind",
    "Audience",
    "Severity",
    "Subject",
    "as_number",
    "for_others",
    "hash_of",
    "moment",
]

SCORES: Mapping[str, bool] = {
    **dict.fromkeys(
        ("accuracy", "balanced accuracy", "pixel accuracy", "accuracy mean of sites", "auc", "auroc", "auprc",
         "average precision", "f1", "dice", "iou", "precision", "recall", "concordance", "r2"), True),
    **dict.fromkeys(("loss", "log loss", "cross entropy", "error", "perplexity", "mse", "rmse", "mae", "brier",
                     "bits per byte"), False),
}  # fmt: skip
"""Measures whose direction is known: whether more is better. Others see a score by one of these names alone:
a task may call a score ``accuracy_Basel``."""


class AlertKind(enum.StrEnum):
    """What happened."""

    BUDGET_LOW = "budget-low"
    """Four fifths of a budget are reserved, or the share that the settings say."""
    BUDGET_GONE = "budget-gone"
    """The next charge does not fit: nothing more is released."""
    REJECTED = "rejected-share"
    """A robust rule leaves out more updates than it should, or one party's far too often."""
    FINDING = "finding"
    """A detector has measured something beyond its threshold."""
    DROP_OUTS = "drop-outs"
    """Many parties were lost in the last rounds, or one several times in a row."""
    TOO_FEW = "too-few-parties"
    """A round failed, and with it the run."""
    DIVERGENCE = "divergence"
    """The model gets worse than it was at the start, or is no longer a number."""
    STEP_NORM = "step-norm"
    """The steps of the model grow beyond what they were. An operator's number, like every norm."""
    CHANCE = "no-better-than-chance"
    """The run has ended, and its model knows nothing."""
    LEDGER = "ledger-out-of-order"
    """The ledger is not what was written. Nothing runs until it is restored."""
    REFUSED = "request-refused"
    """A site has refused what a coordinator asked."""
    RUN_ENDED = "run-ended"
    """A run has ended. As planned it is a notice, and no alert."""
    TEST = "test"
    """Somebody tries whether alerts arrive."""


class Severity(enum.StrEnum):
    """How grave it is. A notice is written down and is no alert: healthy runs have them, too."""

    NOTICE = "notice"
    WARNING = "warning"
    CRITICAL = "critical"

    @property
    def rank(self) -> int:
        """0, 1, 2: the graver, the more."""
        return list(Severity).index(self)


class Subject(enum.StrEnum):
    """Whom or what it is about."""

    RUN = "run"
    MODEL = "model"
    PARTY = "party"
    GROUP = "group"
    SITE = "site"
    LEDGER = "ledger"


class Audience(enum.StrEnum):
    """Who reads a sink: the operator alone, or others as well."""

    OPERATOR = "operator"
    OTHERS = "others"


_OUTWARD = {
    AlertKind.BUDGET_LOW: "{share} of the run's ε is reserved",
    AlertKind.BUDGET_GONE: "the run has stopped: a budget is spent",
    AlertKind.TOO_FEW: "the run has stopped before its schedule was done",
    AlertKind.DIVERGENCE: "the model gets worse: {score}",
    AlertKind.CHANCE: "the model is no better than chance: {score}",
    AlertKind.RUN_ENDED: "the run has ended",
    AlertKind.TEST: "this is a test of quietsum's alerts",
}
"""Everything that others may know. A kind that is not here stays with the operator."""
_OUTWARD_SUBJECTS = (Subject.RUN, Subject.MODEL)
_WITH_SCORE = (AlertKind.BUDGET_LOW, AlertKind.DIVERGENCE, AlertKind.CHANCE)
_TEXTS = ("sentence", "time", "run", "subject", "statistic", "evidence")
_NUMBERS = ("value", "threshold", "false_positive_rate")
LAST_ROUND = 2**63 - 1  # what a database holds
LONGEST = 2000
"""Letters of a sentence; an error may quote much."""


def moment() -> str:
    """The time of day in UTC."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Alert:
    """One thing that somebody should know.

    ``statistic``, ``value`` and ``threshold`` are what was measured and what it was held against;
    ``false_positive_rate`` is how often that would happen by itself, where it is known; ``evidence`` is the hash of
    what it was measured on, kept by the holder of that. Texts are in one line and hold nothing that a terminal obeys.

    >>> Alert(kind=AlertKind.LEDGER, severity=Severity.CRITICAL, sentence="entry 17 was changed", time="now").audience
    <Audience.OPERATOR: 'operator'>
    """

    kind: AlertKind
    severity: Severity
    sentence: str
    time: str = dataclasses.field(default_factory=moment)
    run: str = ""
    round: int | None = None
    subject_kind: Subject = Subject.RUN
    subject: str = ""
    statistic: str = ""
    value: float | None = None
    threshold: float | None = None
    false_positive_rate: float | None = None
    evidence: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "kind", _one_of("kind", self.kind, AlertKind))
        object.__setattr__(self, "severity", _one_of("severity", self.severity, Severity))
        object.__setattr__(self, "subject_kind", _one_of("subject_kind", self.subject_kind, Subject))
        for name in _TEXTS:
            object.__setattr__(self, name, printable(str(getattr(self, name)))[:LONGEST])
        for name in _NUMBERS:
            number = getattr(self, name)
            object.__setattr__(self, name, None if number is None else as_number(name, number))
        if self.round is not None:
            object.__setattr__(self, "round", whole_number("round", self.round))
            if self.round > LAST_ROUND:
                raise InvalidParameter("round", self.round, "is beyond any run", "leave it out where there is none")
        if not self.sentence:
            raise InvalidParameter("sentence", "", "says nothing", "say what happened, in one sentence")
        if not self.time:
            raise InvalidParameter("time", "", "is no moment", "leave it out for now")

    @property
    def audience(self) -> Audience:
        """Who may hear of it at all; others hear :func:`for_others`, not this."""
        outward = self.kind in _OUTWARD and self.subject_kind in _OUTWARD_SUBJECTS
        return Audience.OTHERS if outward else Audience.OPERATOR

    @property
    def names_party(self) -> bool:
        """Whether it tells of single parties, or how many were there."""
        return self.audience is Audience.OPERATOR and self.kind is not AlertKind.LEDGER

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON, without what is not there; a number that is not finite is a text."""
        found: dict[str, Any] = {}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value is None or value == "":
                continue
            if isinstance(value, float) and not math.isfinite(value):
                value = str(value)
            found[field.name] = value.value if isinstance(value, enum.StrEnum) else value
        return found

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Alert:
        """The alert that :meth:`to_dict` wrote; InvalidParameter for anything else."""
        known = {field.name for field in dataclasses.fields(cls)}
        needed = {"kind", "severity", "sentence", "time"}
        if not isinstance(values, Mapping) or not set(values) <= known or not needed <= set(values):
            raise InvalidParameter("alert", "", "is none", "its keys are those of quietsum.alerts.Alert")
        for name in ("kind", "severity", "subject_kind", *_TEXTS):
            if not isinstance(values.get(name, ""), str):
                raise InvalidParameter(name, "", "is no text", "restore it")
        return cls(**dict(values))


def for_others(alert: Alert) -> Alert | None:
    """What others may know of ``alert``: words of ours around numbers that were charged or are public; else None.

    Guarantees (rule 5): no name of a party, no count of parties lost, refused or rejected, no reason and no evidence.
    Why a run stopped is not said either; that it did, others see.
    """
    if alert.audience is not Audience.OTHERS:
        return None
    value = alert.value if alert.kind in _WITH_SCORE else None
    named = alert.statistic.replace("_", " ").lower() in SCORES and alert.kind is not AlertKind.BUDGET_LOW
    score = "it cannot be measured any more"
    if value is not None and math.isfinite(value):
        score = f"{alert.statistic if named else 'its score'} {value:.3g}"
    share = "much" if value is None or not math.isfinite(value) else f"{100 * value:.0f} %"
    early = alert.kind is AlertKind.RUN_ENDED and alert.severity is not Severity.NOTICE
    return Alert(
        kind=AlertKind.RUN_ENDED if alert.kind is AlertKind.TOO_FEW else alert.kind,
        severity=Severity.CRITICAL if alert.kind is AlertKind.TOO_FEW else alert.severity,
        sentence=_OUTWARD[AlertKind.TOO_FEW if early else alert.kind].format(share=share, score=score),
        time=alert.time,
        run=alert.run,
        round=alert.round,
        subject_kind=alert.subject_kind,
        statistic=alert.statistic if value is not None and named else "",
        value=value,
        threshold=alert.threshold if value is not None else None,
    )


def hash_of(values: Mapping[str, Any]) -> str:
    """The SHA-256 of plain values, written in one way: what a detector keeps as evidence, and what chains the log."""
    text = json.dumps(values, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def as_number(name: str, value: Any) -> float:
    """A float, also one that is not finite, or the text that :meth:`Alert.to_dict` writes for it."""
    try:
        if not isinstance(value, bool | str) or value in ("inf", "-inf", "nan"):
            return float(value)
    except (TypeError, ValueError, OverflowError):
        pass
    raise InvalidParameter(name, "", "is no number that a float can hold", "leave it out where there is none")


def _one_of(name: str, value: object, kinds: type[enum.StrEnum]) -> Any:
    try:
        return kinds(str(value))
    except ValueError:
        raise InvalidParameter(name, value, "is unknown", f"choose among {', '.join(kinds)}") from None
