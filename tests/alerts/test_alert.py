"""Who hears what: nothing that names a party, or counts parties, leaves the operator."""

from __future__ import annotations

import itertools
import json
import math

import pytest

from quietsum.alerts import Alert, AlertKind as Kind, Audience, Sender, Severity, Subject, for_others
from quietsum.alerts.alert import SCORES
from quietsum.errors import InvalidParameter

SECRET = "Basel-7"
OUTWARD = {
    Kind.BUDGET_LOW,
    Kind.BUDGET_GONE,
    Kind.TOO_FEW,
    Kind.DIVERGENCE,
    Kind.CHANCE,
    Kind.RUN_ENDED,
    Kind.TEST,
}


class Inbox:
    """A sink that keeps what it is handed."""

    waits = limited = False
    least = Severity.NOTICE

    def __init__(self, audience: Audience) -> None:
        self.name, self.audience, self.got = "an inbox", audience, list[Alert]()

    def send(self, alert: Alert, held_back: int) -> None:
        self.got.append(alert)


def worst(kind: Kind, subject: Subject, severity: Severity = Severity.WARNING) -> Alert:
    """An alert that says the name of a party wherever a text may stand."""
    return Alert(
        kind=kind, severity=severity, sentence=f"{SECRET} was lost, 3 of 10", run="run-1", round=4,
        subject_kind=subject, subject=SECRET, statistic=f"accuracy_{SECRET}", value=0.25, threshold=0.5,
        false_positive_rate=0.01, evidence=SECRET,
    )  # fmt: skip


@pytest.mark.parametrize(("kind", "subject", "severity"), list(itertools.product(Kind, Subject, Severity)))
def test_no_alert_of_any_kind_subject_or_severity_carries_a_name_to_others(
    kind: Kind, subject: Subject, severity: Severity
) -> None:
    inside, outside = Inbox(Audience.OPERATOR), Inbox(Audience.OTHERS)
    with Sender([inside, outside]) as sender:
        sender.send(worst(kind, subject, severity))
    assert SECRET in json.dumps(inside.got[0].to_dict())  # the control: the operator hears it
    wanted = kind in OUTWARD and subject in (Subject.RUN, Subject.MODEL)
    assert len(outside.got) == wanted
    for alert in outside.got:
        assert SECRET not in json.dumps(alert.to_dict()) and "lost" not in alert.sentence
        assert for_others(alert) == alert  # said twice it is the same
        assert not alert.subject and not alert.evidence and alert.false_positive_rate is None


def test_only_what_was_charged_or_is_public_is_for_others_and_every_kind_is_decided() -> None:
    inside = {
        Kind.REJECTED,
        Kind.FINDING,
        Kind.DROP_OUTS,
        Kind.STEP_NORM,
        Kind.LEDGER,
        Kind.REFUSED,
    }
    assert inside | OUTWARD == set(Kind) and not inside & OUTWARD
    for kind in inside:
        assert worst(kind, Subject.RUN).audience is Audience.OPERATOR
        assert worst(kind, Subject.RUN).names_party == (kind is not Kind.LEDGER)


def test_a_run_that_stopped_for_want_of_parties_has_ended_for_others() -> None:
    told = for_others(worst(Kind.TOO_FEW, Subject.RUN))
    assert told is not None and told.kind is Kind.RUN_ENDED
    assert told.sentence == "the run has stopped before its schedule was done" and told.value is None


def test_a_score_goes_out_by_a_known_name_and_only_where_it_is_one() -> None:
    found = [
        for_others(
            Alert(
                kind=Kind.CHANCE,
                severity=Severity.WARNING,
                sentence="x",
                statistic=name,
                value=0.5,
                subject_kind=Subject.MODEL,
            )
        )
        for name in ("auc", "accuracy_Cleveland")
    ]
    assert [one and one.sentence.rpartition(": ")[2] for one in found] == ["auc 0.5", "its score 0.5"]
    assert [one and one.statistic for one in found] == ["auc", ""]
    assert "accuracy cleveland" not in SCORES
    gone = for_others(
        Alert(kind=Kind.DIVERGENCE, severity=Severity.WARNING, sentence="x", statistic="auc", value=math.nan)
    )
    assert gone is not None and gone.sentence == "the model gets worse: it cannot be measured any more"


def test_an_alert_is_read_back_as_it_was_written() -> None:
    alert = worst(Kind.FINDING, Subject.GROUP)
    assert Alert.from_dict(json.loads(json.dumps(alert.to_dict()))) == alert
    odd = Alert(kind=Kind.DIVERGENCE, severity=Severity.WARNING, sentence="x", value=math.inf)
    assert Alert.from_dict(json.loads(json.dumps(odd.to_dict(), allow_nan=False))) == odd


@pytest.mark.parametrize(
    "values",
    [{}, {"kind": "new", "severity": "warning", "sentence": "x", "time": "t"},
     {"kind": "test", "severity": "warning", "sentence": "", "time": "t"},
     {"kind": "test", "severity": "warning", "sentence": "x", "time": "t", "round": "4"},
     {"kind": "test", "severity": "warning", "sentence": "x", "time": "t", "value": "much"},
     {"kind": "test", "severity": "warning", "sentence": "x", "time": "t", "colour": "red"}],
)  # fmt: skip
def test_what_is_no_alert_is_refused(values: dict[str, object]) -> None:
    with pytest.raises(InvalidParameter):
        Alert.from_dict(values)


def test_no_text_of_an_alert_can_move_a_cursor_or_break_a_line() -> None:
    alert = Alert(
        kind=Kind.LEDGER, severity=Severity.CRITICAL, sentence="a\r\nBcc: x@y\x1b[2J b" + "c" * 9000, run="r\n1"
    )
    assert alert.sentence.startswith("a Bcc: x@y b") and len(alert.sentence) == 2000 and alert.run == "r 1"
