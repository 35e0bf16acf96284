"""A site's alerts: for its own operator, after the answer, and never in its way."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path
from typing import Any

import pytest

from party.asking import UNIT, Place, Server, fresh, plan, policy, reason
from quietsum.alerts import Alert, AlertKind as Kind, Audience, AuditLog, Sender, Severity, Subject
from quietsum.errors import PlanRefused
from quietsum.party import alerting
from quietsum.party.alerting import SiteAlerts
from quietsum.party.policy_file import load_policy
from quietsum.party.service import SiteService

SMALL = dataclasses.replace(UNIT, epsilon=1.01 * plan().limits[0].epsilon, run=None)
RULES = {"rules": {"budget": 0.6}}


class Inbox:
    """A sink that keeps what it gets, and how many charges were committed by then."""

    waits = limited = False
    least = Severity.NOTICE

    def __init__(self, place: Place, audience: Audience = Audience.OPERATOR, *, broken: bool = False) -> None:
        self.name, self.audience, self.broken, self.place = "an inbox", audience, broken, place
        self.got: list[Alert] = []
        self.open: list[int] = []

    def send(self, alert: Alert, held_back: int) -> None:
        self.got.append(alert)
        self.open.append(len(self.place.reserved) - self.place.committed)
        if self.broken:
            raise OSError(28, "No space left on device")

    @property
    def kinds(self) -> list[Kind]:
        return [alert.kind for alert in self.got]


def watched(audience: Audience = Audience.OPERATOR, **more: Any) -> tuple[Place, Inbox]:
    """A site with a budget for one run of the plan, and its alerts."""
    held = policy(record=SMALL, alerts=RULES)
    place = Place(held)
    inbox = Inbox(place, audience, **more)
    alerts = SiteAlerts(held, place.ledger, Sender([inbox]))
    place.service = SiteService(held, place.ledger, task=lambda _: place.task, alerts=alerts)
    return place, inbox


def talk(place: Place) -> list[str]:
    """A run to its end, a second one that the budget does not allow, and a plan that the policy refuses."""
    server, resolved = Server(), plan()
    letters = [server.enrol(place, resolved)]
    letters += [server.train(place, resolved, number) for number in (1, 2)]
    letters += [server.say(place, "farewell", {"run": "first"})]
    letters += [server.enrol(place, resolved, "second") for _ in range(3)]
    letters += [server.enrol(place, plan("user"), "third")]
    return [letter.kind for letter in letters]


SAID = ["enrolled", "update", "update", "noted", "refused", "refused", "refused", "refused"]


def test_budget_end_and_refusals_are_told_once_each_to_the_sites_operator() -> None:
    place, inbox = watched()
    assert talk(place) == SAID
    assert inbox.kinds == [Kind.BUDGET_LOW, Kind.RUN_ENDED, Kind.BUDGET_GONE, Kind.REFUSED]
    assert all(alert.subject_kind is Subject.SITE and alert.subject == "north" for alert in inbox.got)
    low, ended, gone, refused = inbox.got
    assert low.severity is Severity.WARNING and (low.value or 0) >= 0.6 and "points-north" in low.sentence
    assert ended.severity is Severity.NOTICE and gone.severity is Severity.CRITICAL and gone.run == "second"
    assert refused.run == "third" and "promises nothing per record" in refused.sentence


def test_rule_22_a_site_tells_nobody_while_a_charge_is_reserved() -> None:
    place, inbox = watched()
    talk(place)
    assert inbox.open == [0] * len(inbox.got) and inbox.got


def test_others_hear_nothing_from_a_site() -> None:
    place, inbox = watched(Audience.OTHERS)
    talk(place)
    assert inbox.got == []


def test_a_sink_that_fails_changes_no_answer() -> None:
    place, inbox = watched(broken=True)
    assert talk(place) == SAID and inbox.got  # the control: it was asked
    assert talk(Place(policy(record=SMALL))) == SAID


def test_a_ledger_that_was_rolled_back_is_told_once() -> None:
    place, inbox = watched()
    server, other = Server(), fresh().testimony()
    for _ in range(3):
        letter = server.say(place, "hello", {}, knows=other)
        assert reason(letter) == "its own ledger is not in order"
    assert inbox.kinds == [Kind.LEDGER] and inbox.got[0].severity is Severity.CRITICAL
    assert "is another one than this site had" in inbox.got[0].sentence


def test_a_coordinator_that_spams_raises_so_many_alerts_a_day_and_the_rest_are_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(alerting, "MOST_A_DAY", 3)
    now, place = [0.0], Place(policy())
    inbox = Inbox(place)
    alerts = SiteAlerts(policy(), place.ledger, Sender([inbox]), clock=lambda: now[0])
    place.service = SiteService(policy(), place.ledger, task=lambda _: place.task, alerts=alerts)
    server, before, numbers = Server(), len(list(place.ledger.entries())), itertools.count()

    def spam(count: int) -> list[str]:
        inbox.got.clear()
        for number in itertools.islice(numbers, count):  # never the same words twice
            assert server.say(place, f"nonsense {number}", {"run": f"run {number}"}).kind == "refused"
            assert server.enrol(place, {"plan": number}, f"run {number}").kind == "refused"
        return [alert.sentence for alert in inbox.got if alert.kind is Kind.REFUSED]

    first = spam(10)
    assert len(first) == 4 and "only counted" in first[-1]
    assert spam(10) == [], "the day is not over"
    alerts.note_end("first")
    alerts.look()
    assert inbox.kinds == [Kind.RUN_ENDED], "the control: another kind has a count of its own"
    now[0] = 86_400.0
    again = spam(1)
    assert "more of this kind within a day" in again[0] and len(again) == 2
    assert len(list(place.ledger.entries())) == before, "what is refused before a run is enrolled is in no ledger"


# ------------------------------------------------------------------------------------------------ policy.toml

POLICY = """
[site]
name = "Basel"
[coordinator]
address = "127.0.0.1:9092"
[dataset]
name = "visits"
size = 1000
[[tasks]]
name = "heart"
[record]
epsilon = 8.0
delta = 1e-5
"""


def test_a_policy_names_its_sinks_and_the_log_lies_beside_the_ledger(tmp_path: Path) -> None:
    (tmp_path / "policy.toml").write_text(
        f'{POLICY}\n[alerts.rules]\nbudget = 0.5\n[[alerts.jsonl]]\npath = "a.jsonl"\n'
    )
    held = load_policy(tmp_path / "policy.toml")
    assert held.alerts.rules.budget == 0.5
    alerts = SiteAlerts.of(held, fresh())
    alerts.note_refusal("the plan is another")
    alerts.close()
    assert "the plan is another" in (tmp_path / "a.jsonl").read_text()
    assert [line.event for line in AuditLog(tmp_path / "alerts.log").lines()] == ["alert"]


@pytest.mark.parametrize(
    ("table", "told"),
    [("[alerts.rulez]", "did you mean rules?"), ("[alerts.rules]\nbudget = 7", "rules.budget"),
     ('[[alerts.webhook]]\nurl = "https://h.example/"', 'say audience = "operator"')],
)  # fmt: skip
def test_a_policy_whose_alerts_make_no_sense_is_refused(tmp_path: Path, table: str, told: str) -> None:
    (tmp_path / "policy.toml").write_text(f"{POLICY}\n{table}\n")
    with pytest.raises(PlanRefused) as caught:
        load_policy(tmp_path / "policy.toml")
    assert told in str(caught.value) and "[alerts]" in str(caught.value)
