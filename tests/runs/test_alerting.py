"""Alerts of a run: what is raised, where it lands, and that no trouble with it ever reaches a round."""

from __future__ import annotations

import contextlib
import json
import re
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from alerts.mailbox import GREETING, Hook, MailServer, repeats, server, serving
from quietsum.alerts import Alert, AlertKind as Kind, Audience, AuditLog, Limits, Sender, Severity, Thresholds
from quietsum.alerts.settings import trust
from quietsum.defence.detection import Finding
from quietsum.errors import BudgetExhausted, CorruptState, InvalidParameter, LedgerBroken
from quietsum.federation.local import LocalFederation
from quietsum.federation.watch import (
    FindingReported,
    PartyDropped,
    PartyRejected,
    RoundFinished,
    RoundStarted,
    RunFinished,
    RunStarted,
)
from quietsum.mechanisms.rng import randomness_for_tests
from quietsum.plan import load_plan, resolve
from quietsum.plan.text.template import template
from quietsum.privacy.guarantee import Guarantee
from quietsum.privacy.units import Observer, PrivacyUnit
from quietsum.runs import checkpoint as checkpoints
from quietsum.runs.coordinator_alerts import AlertWatcher, alerting
from quietsum.runs.folder import Workspace
from quietsum.runs.run import start
from quietsum.tasks import task_of
from scenes import quietsum
from tiny import TinyTask, tiny_plan

HEART = template(task="heart", preset=None, style="sample").replace("rounds = 20", "rounds = 8")
LOSING = HEART.replace("rounds = 8", "rounds = 8\nsimulate = { refusing = ['va'] }")


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("QUIETSUM_WORKSPACE", "QUIETSUM_ALERTS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("QUIETSUM_TEST_SEEDS", "1")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


class Inbox:
    """A sink that keeps what it gets."""

    waits = limited = False
    least = Severity.NOTICE

    def __init__(self, audience: Audience = Audience.OPERATOR) -> None:
        self.name, self.audience, self.got = "an inbox", audience, list[Alert]()

    def send(self, alert: Alert, held_back: int) -> None:
        self.got.append(alert)

    @property
    def kinds(self) -> list[Kind]:
        return [alert.kind for alert in self.got if alert.severity is not Severity.NOTICE]


def rows(run: str = "r", workspace: str = "quietsum-workspace") -> list[tuple[Any, ...]]:
    with contextlib.closing(sqlite3.connect(Path(workspace) / "runs" / run / "run.db")) as database:
        return database.execute("SELECT kind, severity, round, subject_kind, subject FROM alerts").fetchall()


def log(workspace: str = "quietsum-workspace") -> AuditLog:
    return AuditLog(Path(workspace) / "alerts.log")


def raised(workspace: str = "quietsum-workspace") -> list[str]:
    found = [line.alert for line in log(workspace).lines()]
    return [one.kind.value for one in found if one is not None and one.severity is not Severity.NOTICE]


# ------------------------------------------------------------------------------------------- healthy, and not


def test_a_healthy_run_of_four_hospitals_raises_no_alert() -> None:
    Path("run.toml").write_text(HEART)
    done = quietsum("run", "run.toml", "--name", "r")
    assert "alert" not in done.output.lower()
    assert rows() == [] and raised() == []
    events = [line.event for line in log().lines()]
    assert events[0] == "run-started" and events[-1] == "run-finished"
    assert log().verify() == len(events)
    assert "no alerts" in quietsum("alerts", "r").stdout
    assert "the run has ended as planned" in " ".join(quietsum("alerts", "r", "--all").stdout.split())


def test_a_hospital_that_refuses_is_on_the_terminal_in_the_database_and_in_the_log() -> None:
    Path("run.toml").write_text(LOSING)
    done = quietsum("run", "run.toml", "--name", "r")
    assert "alert: drop-outs, round 3 of r: va was lost 3 times in a row" in done.stderr
    assert "alerts: 1; see quietsum alerts r" in done.stdout
    assert rows() == [("drop-outs", "warning", 3, "party", "va")] and raised() == ["drop-outs"]
    shown = quietsum("alerts", "latest").stdout
    assert "warning: drop-outs, round 3 of r: va was lost" in " ".join(shown.split())
    values = json.loads(quietsum("alerts", "--json").stdout)["alerts"]
    assert [(one["kind"], one["subject"], one["round"]) for one in values] == [("drop-outs", "va", 3)]
    assert "in order" in quietsum("alerts", "--verify").stdout


def test_the_run_and_the_command_count_the_same_alerts_those_that_the_terminal_held_back_too() -> None:
    Path("run.toml").write_text(
        HEART.replace("rounds = 8", "rounds = 8\nsimulate = { refusing = ['va', 'hungarian'] }")
    )
    Path("w").mkdir()
    Path("w/alerts.toml").write_text("[limits]\nper_kind = 1\n")
    done = quietsum("run", "run.toml", "--name", "r", "--workspace", "w")
    listed = json.loads(quietsum("alerts", "r", "--json", "--workspace", "w").stdout)["alerts"]
    shown = done.stderr.count("alert: ")
    assert len(listed) == len(rows(workspace="w")) == len(raised("w")) == 2 and shown == 1
    assert "alerts: 2, 1 of them shown above; see quietsum alerts r --workspace w" in done.stdout


def test_with_json_alerts_are_lines_among_the_events() -> None:
    Path("run.toml").write_text(LOSING)
    done = quietsum("run", "run.toml", "--name", "r", "--json")
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert [one["subject"] for one in told if one["event"] == "alert"] == ["va"] and "alert:" not in done.stderr


def test_a_report_and_an_exported_ledger_know_nothing_of_alerts() -> None:
    Path("run.toml").write_text(LOSING)
    quietsum("run", "run.toml", "--name", "r")
    quietsum("ledger", "export", "out.jsonl")
    folder = Path("quietsum-workspace/runs/r")
    for path in (Path("out.jsonl"), folder / "report.json", folder / "report.html"):
        assert not re.search(r"times in a row|va was lost", path.read_text(encoding="utf-8")), path
    assert "times in a row" in log().path.read_text(encoding="utf-8")  # the control


def test_too_few_parties_are_an_alert_for_the_operator_and_an_end_for_others() -> None:
    inside, outside = Inbox(), Inbox(Audience.OTHERS)
    plan = tiny_plan(federation={"simulate": {"drop_outs": 1.0}})
    watcher = AlertWatcher(Sender([inside, outside]))
    start(plan, workspace=Workspace(path=Path("w")), task=TinyTask(), watchers=[watcher])
    assert inside.kinds == [Kind.TOO_FEW] and outside.kinds == [Kind.RUN_ENDED]
    assert "north" not in json.dumps([one.to_dict() for one in outside.got])


# -------------------------------------------------------------------------------------------------- budgets


def test_a_lifetime_budget_is_told_at_four_fifths_and_when_it_is_gone() -> None:
    place, inbox = Workspace(path=Path("w")), Inbox()
    for name in ("first", "second"):
        with alerting(place) as watcher, contextlib.suppress(BudgetExhausted):
            watcher._sender.add(inbox)
            try:
                start(tiny_plan(), workspace=place, name=name, task=TinyTask(), watchers=[watcher])
            except BudgetExhausted as error:
                watcher.fail(error)
                raise
    assert inbox.kinds == [Kind.BUDGET_LOW, Kind.BUDGET_GONE] and raised("w") == ["budget-low", "budget-gone"]
    low = next(one for one in inbox.got if one.severity is Severity.WARNING)
    assert low.subject == "north, south" and low.threshold == 0.8 and (low.value or 0) >= 0.8


def test_other_datasets_of_the_workspace_are_not_told_again() -> None:
    place = Workspace(path=Path("w"))
    start(tiny_plan(), workspace=place, name="first", task=TinyTask())
    inbox = Inbox()
    with alerting(place) as watcher:
        watcher._sender.add(inbox)
        task = TinyTask(sizes={"west": 12, "east": 8}, public="made up")
        start(tiny_plan(), workspace=place, name="second", task=task, watchers=[watcher])
    assert inbox.kinds == []


def test_what_others_hear_of_a_budget_is_reserved_and_not_spent() -> None:
    inbox = Inbox(Audience.OTHERS)
    watcher = AlertWatcher(Sender([inbox]))
    spent, whole = (
        Guarantee(epsilon=one, delta=1e-5, unit=PrivacyUnit.RECORD, observer=Observer.SERVER, method="x")
        for one in (0.4, 0.9)
    )
    watcher.saw(begun())
    watcher.saw(over(1, spent=(spent,), reserved=(whole,), limits={"record": 1.0}))
    assert [(one.kind, one.value, one.sentence) for one in inbox.got] == [
        (Kind.BUDGET_LOW, 0.9, "90 % of the run's ε is reserved")
    ]


# ----------------------------------------------------------------------------------------------- the ledger


def test_a_ledger_out_of_order_is_an_alert_with_exit_code_4() -> None:
    Path("run.toml").write_text(HEART)
    quietsum("run", "run.toml", "--name", "r")
    for path in Path("quietsum-workspace").glob("ledger.db*"):
        path.unlink()
    quietsum("run", "run.toml", "--name", "s", code=4)
    assert raised() == ["ledger-out-of-order"] and "is gone" in quietsum("alerts").stdout


# ------------------------------------------------------------------- events, and nothing in between them


def begun(**more: Any) -> RunStarted:
    usual = {"run": "r", "task": "t", "style": "sample", "parties": 4, "rounds": 20, "first_round": 1, "epsilon": 1.0,
             "delta": 1e-5, "unit": "record", "protected": False}  # fmt: skip
    return RunStarted(**{**usual, **more})


def over(number: int, **more: Any) -> RoundFinished:
    usual: dict[str, Any] = {"rounds": 20, "asked": 4, "kept": ("a", "b"), "metrics": {}, "metrics_on": {},
                             "spent": (), "limits": {}}  # fmt: skip
    return RoundFinished(round=number, **{**usual, **more})


def test_rule_22_nothing_is_looked_at_or_sent_while_a_charge_is_reserved() -> None:
    inbox = Inbox()
    watcher = AlertWatcher(Sender([inbox]), Thresholds(in_a_row=1))
    watcher.saw(begun())
    watcher.saw(RoundStarted(round=1, attempt=1))
    watcher.saw(PartyDropped(round=1, party="c", reason="gone", refunded=False))
    watcher.saw(PartyRejected(round=1, party="d", rule="krum", reason="far"))
    watcher.saw(found())
    assert inbox.got == []
    watcher.saw(over(1))
    assert [one.kind for one in inbox.got] == [Kind.FINDING, Kind.DROP_OUTS]


def found() -> FindingReported:
    """What a detector tells in the middle of a round."""
    seen = Finding(
        round=1, rule="norm", statistic="norm", value=9.0, threshold=3.0, false_positive_rate=0.01,
        subject_kind="party", subject="d", time="2026-01-01T00:00:00+00:00",
    )  # fmt: skip
    return FindingReported(round=1, finding=seen)


def test_a_finding_is_passed_on_with_all_that_was_measured() -> None:
    inbox = Inbox()
    watcher = AlertWatcher(Sender([inbox]))
    watcher.saw(begun())
    watcher.saw(found())
    watcher.saw(RunFinished(outcome="interrupted", round=1, reason=""))  # the round was never finished
    alert = inbox.got[0]
    assert (alert.kind, alert.run, alert.subject, alert.value, alert.threshold) == (
        Kind.FINDING,
        "r",
        "d",
        9.0,
        3.0,
    )
    assert alert.false_positive_rate == 0.01 and alert.evidence == found().finding.evidence
    assert alert.time.startswith("2026-01-01") and alert.sentence == found().finding.sentence


def test_equal_updates_are_one_alert_until_somebody_new_sends_the_same() -> None:
    inbox = Inbox()
    watcher = AlertWatcher(Sender([inbox]))
    watcher.saw(begun())
    for number, names in enumerate((("a", "b", "c"), ("a", "b", "c"), ("a", "c"), ("b", "d")), start=1):
        seen = Finding(
            round=number, rule="copy", statistic="equal updates", value=len(names), threshold=1,
            false_positive_rate=1e-8, subject_kind="party", subject=", ".join(names), looked=dict.fromkeys(names, 1.0),
        )  # fmt: skip
        watcher.saw(FindingReported(round=number, finding=seen))
        watcher.saw(over(number))
    assert [(one.severity, one.subject) for one in inbox.got] == [
        (Severity.WARNING, "a, b, c"), (Severity.NOTICE, "a, b, c"), (Severity.NOTICE, "a, c"),
        (Severity.WARNING, "b, d"),
    ]  # fmt: skip


def test_a_round_syncs_the_log_as_often_with_ten_alerts_as_with_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import os

    watcher, synced, real = AlertWatcher(Sender(kept=AuditLog(tmp_path / "alerts.log"))), list[int](), os.fsync
    watcher.saw(begun())

    def fsync(handle: int) -> None:
        synced.append(handle)
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    counts = []
    for number, findings in enumerate((1, 10, 0), start=1):
        synced.clear()
        for _ in range(findings):
            watcher.saw(found())
        watcher.saw(over(number))
        counts.append(len(synced))
    assert counts[0] == counts[1] > counts[2] == 0


def test_the_same_finding_about_the_same_party_is_told_once_and_then_written_down_as_a_notice() -> None:
    inbox = Inbox()
    watcher = AlertWatcher(Sender([inbox]))
    watcher.saw(begun())
    for number in range(1, 6):
        watcher.saw(found())
        watcher.saw(over(number))
    assert [one.severity for one in inbox.got] == [Severity.WARNING] + [Severity.NOTICE] * 4


def test_banks_that_are_rejected_in_every_round_are_told_by_name() -> None:
    inbox = Inbox()
    watcher = AlertWatcher(Sender([inbox]))
    watcher.saw(begun(parties=10))
    honest = tuple(f"bank-{number}" for number in range(8))
    for number in range(1, 21):
        watcher.saw(over(number, asked=10, kept=honest, rejected=("bank-8", "bank-9")))
    assert [(one.kind, one.subject) for one in inbox.got] == [(Kind.REJECTED, "bank-8, bank-9")]


def test_a_model_that_overflows_and_one_that_knows_nothing_are_told() -> None:
    inbox = Inbox()
    watcher = AlertWatcher(Sender([inbox]))
    watcher.saw(begun(metrics={"accuracy": 0.5}, chance={"accuracy": 0.55}))
    watcher.saw(over(1, metrics={"accuracy": 0.56}, metrics_on={"accuracy": "x"}))
    watcher.saw(RunFinished(outcome="finished", round=1, reason=""))
    watcher.fail(InvalidParameter("learning_rate", 9.0, "made the model overflow in round 2", "smaller"))
    watcher.fail(LedgerBroken("is gone"))
    watcher.fail(ValueError("another"))
    assert inbox.kinds == [Kind.CHANCE, Kind.DIVERGENCE, Kind.LEDGER]


# ------------------------------------------------------------------------ no trouble ever reaches a round


def seeded(*watchers: Any, name: str = "run") -> bytes:
    """The model of a seeded run of four hospitals, one of which refuses."""
    plan = load_plan(LOSING)
    task = task_of(plan)
    resolved = resolve(plan, task.parties(), task.dimension)
    result = start(
        plan, workspace=Workspace(path=Path(name)), name="r", task=task, watchers=watchers, rng=randomness_for_tests(8),
        federation=LocalFederation.of(task, resolved, rng=randomness_for_tests(7)),
    )  # fmt: skip
    return np.asarray(checkpoints.read_model(result.folder.model)[0]).tobytes()


class Broken:
    """A sink that raises, hangs, or dies at every alert."""

    limited, audience, least = False, Audience.OPERATOR, Severity.NOTICE

    def __init__(self, how: str) -> None:
        self.name, self.how, self.waits, self.calls = f"a sink that does {how}", how, how == "hang", 0
        self.let_go = threading.Event()

    def send(self, alert: Alert, held_back: int) -> None:
        self.calls += 1
        if self.how == "hang":
            self.let_go.wait(60)
        raise OSError(28, "No space left on device") if self.how == "disk" else RuntimeError("broken")


@pytest.mark.parametrize("how", ["raise", "hang", "disk"])
def test_a_sink_that_raises_hangs_or_fills_the_disk_changes_no_bit_of_a_run(how: str) -> None:
    sink = Broken(how)
    sender = Sender([sink], limits=Limits(patience=0.1), kept=AuditLog(Path("no/such/folder/alerts.log")))
    watched = seeded(AlertWatcher(sender), name="watched")
    sender.close()
    sink.let_go.set()
    assert sink.calls >= 1  # the control: it was asked
    assert watched == seeded(name="alone")


def test_a_watcher_without_a_sender_in_between_would_stop_seeing() -> None:
    """The control: what the sender takes is what a bare watcher would fail by."""
    sink = Broken("raise")
    with pytest.raises(RuntimeError):
        sink.send(Alert(kind=Kind.TEST, severity=Severity.WARNING, sentence="x"), 0)


# ---------------------------------------------------------------------------------- servers, end to end


@contextlib.contextmanager
def settings(text: str, *, vouched: bool = True) -> Iterator[None]:
    Path("quietsum-workspace").mkdir(exist_ok=True)
    path = Path("quietsum-workspace/alerts.toml")
    path.write_text(text)
    if vouched:
        trust(path)
    yield


def test_a_run_goes_to_its_end_beside_servers_that_never_stop_talking_or_drip() -> None:
    Path("run.toml").write_text(LOSING)
    with (
        server(repeats(GREETING, b"250-SIZE 1000000\r\n" * 100)) as mail,
        server(repeats(b"HTTP/1.1 200 OK\r\n", b"X-A: b\r\n", 0.01)) as hook,
    ):
        text = f"""
        [limits]
        patience = 0.3
        [[email]]
        host = "127.0.0.1"
        port = {mail}
        security = "none"
        sender = "q@example.org"
        to = ["ann@example.org"]
        audience = "operator"
        [[webhook]]
        url = "http://127.0.0.1:{hook}/"
        audience = "operator"
        timeout = 0.2
        """
        with settings(text):
            done = quietsum("run", "run.toml", "--name", "r")
    assert "round 8/8" in done.output and raised() == ["drop-outs"] and len(rows()) == 1
    lost = {line.values["sink"]: line.values["count"] for line in log().lines() if line.event == "not-sent"}
    assert lost == {"mail by 127.0.0.1": 1, "the webhook at 127.0.0.1": 1} and log().verify()


def test_quietsum_run_tells_mail_webhook_and_file_what_each_may_hear() -> None:
    Path("run.toml").write_text(LOSING)
    with serving(MailServer()) as mail, serving(Hook()) as hook:
        text = f"""
        [[email]]
        host = "127.0.0.1"
        port = {mail.port}
        security = "none"
        sender = "q@example.org"
        to = ["ann@example.org"]
        audience = "operator"
        [[webhook]]
        url = "http://127.0.0.1:{hook.port}/"
        least = "notice"
        [[jsonl]]
        path = "mine.jsonl"
        """
        with settings(text):
            quietsum("run", "run.toml", "--name", "r")
    assert ["va was lost 3 times" in one.get_content() for _, _, one in mail.mails] == [True]
    posts = [json.loads(body)["alert"] for _, _, body in hook.posts]
    assert [one["kind"] for one in posts] == ["budget-low", "run-ended"] and "va" not in json.dumps(posts).split('"')
    assert "va was lost" in Path("quietsum-workspace/mine.jsonl").read_text()


def test_a_strangers_workspace_makes_a_run_call_nobody_and_a_look_neither() -> None:
    Path("run.toml").write_text(LOSING)
    with serving(Hook()) as hook, settings(f"webhook = {{ url = 'http://127.0.0.1:{hook.port}/' }}", vouched=False):
        told = quietsum("run", "run.toml", "--name", "r").output
        assert "quietsum alerts --test" in " ".join(told.split())
        for look in (["alerts"], ["alerts", "--verify"], ["alerts", "r", "--all"], ["show", "r"], ["runs"]):
            quietsum(*look)
        assert hook.posts == []
        assert "sent (for others)" in quietsum("alerts", "--test").stdout  # the control: the user says so
        assert len(hook.posts) == 1


def test_a_test_says_which_sink_does_not_work_and_trusts_nothing_then() -> None:
    with serving(Hook(404)) as hook, settings(f"webhook = {{ url = 'http://127.0.0.1:{hook.port}/' }}", vouched=False):
        assert "answers 404" in " ".join(quietsum("alerts", "--test", code=1).stderr.split())
        assert json.loads(quietsum("alerts", "--test", "--json", code=1).stdout)["trusted"] is False
    Path("quietsum-workspace/alerts.toml").unlink()
    assert "has no alerts.toml" in quietsum("alerts", "--test", code=2).stderr


def test_settings_that_are_wrong_stop_a_run_before_it_begins() -> None:
    Path("run.toml").write_text(HEART)
    with settings("[rules]\nbudgte = 0.5\n"):
        done = quietsum("run", "run.toml", "--name", "r", code=2)
    assert "did you mean rules.budget?" in done.stderr
    assert not Path("quietsum-workspace/ledger.db").exists()


def test_a_log_that_was_changed_or_cut_is_found_by_the_command() -> None:
    Path("run.toml").write_text(LOSING)
    quietsum("run", "run.toml", "--name", "r")
    path, head = log().path, log().head
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b"3 times in a row", b"0 times in a row"))
    assert re.search(r"line \d: it was changed", quietsum("alerts", "--verify", code=4).stderr)
    path.unlink()
    head.unlink()  # both gone: the run's own database remembers
    done = quietsum("alerts", "--verify", code=4)
    assert "does not hold an alert" in " ".join(done.stderr.split())
    path.write_bytes(whole)
    with pytest.raises(CorruptState):
        log().verify()


def test_the_command_says_what_is_not_there() -> None:
    assert "is not there" in quietsum("alerts", "--workspace", "none", code=2).stderr
    Path("w").mkdir()
    assert "no alerts" in quietsum("alerts", "--workspace", "w").stdout
    assert "does not exist" in quietsum("alerts", "x", "--workspace", "w", code=2).stderr
    quietsum("alerts", "--test", "--verify", "--workspace", "w", code=2)
