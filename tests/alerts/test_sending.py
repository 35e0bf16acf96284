"""Whatever a sink does, nobody waits for it and nothing fails with it; too many alerts are counted."""

from __future__ import annotations

import collections
import logging
import threading
import time
from pathlib import Path

import pytest

from quietsum.alerts import (
    Alert,
    AlertKind as Kind,
    Audience,
    AuditLog,
    JsonLines,
    Limits,
    Log,
    Sender,
    Severity,
    Terminal,
    sending as module,
)
from quietsum.alerts.sinks import Refusal


def alert(number: int = 1, kind: Kind = Kind.DROP_OUTS) -> Alert:
    return Alert(kind=kind, severity=Severity.WARNING, sentence=f"alert {number}", run="r", round=number)


class Box:
    """A sink that does what it is told: work, raise, refuse or hang."""

    limited, least = True, Severity.WARNING

    def __init__(self, does: str = "work", *, waits: bool = True, audience: Audience = Audience.OPERATOR) -> None:
        self.name, self.does, self.waits, self.audience = f"a box that does {does}", does, waits, audience
        self.got: list[tuple[str, int]] = []
        self.tries, self.let_go = 0, threading.Event()

    def send(self, alert: Alert, held_back: int) -> None:
        self.tries += 1
        if self.does == "hang":
            self.let_go.wait(60)
        elif self.does == "refuse":
            raise Refusal("never")
        elif self.does == "raise" or (self.does == "recover" and self.tries == 1):
            raise OSError(28, "No space left on device")
        elif self.does == "system-exit":
            raise RuntimeError("worse")
        self.got.append((alert.sentence, held_back))


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_WAIT", 0.01)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]


def test_a_sink_that_hangs_delays_nobody_and_the_others_get_everything() -> None:
    hanging, working = Box("hang"), Box()
    sender = Sender([hanging, working], limits=Limits(per_kind=100, room=5))
    before = time.perf_counter()
    for number in range(50):
        sender.send(alert(number))
    spent = time.perf_counter() - before
    lost = sender.close(patience=0.2)
    assert spent < 5 and hanging.got == []  # a call that waited would have taken sixty seconds, and is the control
    assert len(working.got) + lost.get(working.name, 0) == 50
    assert lost[hanging.name] == 50
    hanging.let_go.set()


def test_a_queue_with_room_is_sent_in_order() -> None:
    box = Box()
    with Sender([box], limits=Limits(per_kind=100)) as sender:
        sender.send(*(alert(number) for number in range(40)))
    assert box.got == [(f"alert {number}", 0) for number in range(40)]


@pytest.mark.parametrize("waits", [True, False])
def test_a_sink_that_raises_is_warned_about_once_and_stops_nothing(
    caplog: pytest.LogCaptureFixture, waits: bool
) -> None:
    failing, working = Box("raise", waits=waits), Box(waits=False)
    with Sender([failing, working], limits=Limits(per_kind=100, patience=1)) as sender:
        for number in range(10):
            sender.send(alert(number))
    assert len(working.got) == 10 and failing.got == []
    told = warnings(caplog)
    assert len([one for one in told if "No space left" in one]) == 1
    assert f"10 alerts did not reach {failing.name}" in told


def test_a_server_that_comes_back_gets_what_it_missed(caplog: pytest.LogCaptureFixture) -> None:
    box = Box("recover")
    sender = Sender([box])
    sender.send(alert(1))
    for _ in range(500):
        if box.got:
            break
        time.sleep(0.01)
    sender.send(alert(2))
    assert sender.close() == {} and [one for one, _ in box.got] == ["alert 1", "alert 2"]
    assert len(warnings(caplog)) == 1


def test_what_a_server_refuses_for_good_is_not_sent_again() -> None:
    box = Box("refuse")
    sender = Sender([box])
    sender.send(alert(1), alert(2))
    assert sender.close() == {box.name: 2} and box.tries == 2


def test_alerts_of_one_kind_are_held_back_and_counted_at_each_sink_on_its_own() -> None:
    now = [0.0]
    box, others = Box(waits=False), Box(waits=False, audience=Audience.OTHERS)
    sender = Sender([box, others], limits=Limits(per_kind=2, seconds=60), clock=lambda: now[0])
    for number in range(10):
        sender.send(alert(number))
    sender.send(alert(99, Kind.RUN_ENDED))  # another kind has an allowance of its own
    now[0] = 61.0
    sender.send(alert(10), alert(11))
    assert box.got == [("alert 0", 0), ("alert 1", 0), ("alert 99", 0), ("alert 10", 8), ("alert 11", 0)]
    assert others.got == [
        ("the run has stopped before its schedule was done", 0)
    ]  # nothing was held back that others may count


def test_what_is_held_back_or_not_sent_is_in_the_audit_log_nevertheless(tmp_path: Path) -> None:
    kept = AuditLog(tmp_path / "alerts.log")
    with Sender([Box("raise", waits=False)], kept=kept, limits=Limits(per_kind=2)) as sender:
        sender.send(*(alert(number) for number in range(5)))
    events = collections.Counter(line.event for line in kept.lines())
    assert events == {"alert": 5, "held-back": 1, "not-sent": 1} and kept.verify() == 7


def test_a_log_that_cannot_be_written_is_a_warning_and_no_more(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    box = Box(waits=False)
    (tmp_path / "alerts.log").mkdir()
    with Sender([box], kept=AuditLog(tmp_path / "alerts.log")) as sender:
        sender.send(alert(1), alert(2))
        sender.note("run-started")
    assert len(box.got) == 2 and len(warnings(caplog)) == 1


def test_less_grave_alerts_than_a_sink_wants_are_not_sent() -> None:
    box = Box(waits=False)
    with Sender([box]) as sender:
        sender.send(Alert(kind=Kind.RUN_ENDED, severity=Severity.NOTICE, sentence="done"))
    assert box.got == []


def test_after_the_end_nothing_is_sent_and_closing_twice_is_harmless() -> None:
    box = Box()
    sender = Sender([box])
    sender.close()
    sender.send(alert())
    assert sender.close() == {} and box.got == []


# ------------------------------------------------------------------------------------ terminal, logging, file


def test_the_terminal_shows_whole_words_in_eighty_columns(capsys: pytest.CaptureFixture[str]) -> None:
    long = Alert(kind=Kind.LEDGER, severity=Severity.CRITICAL, sentence="word " * 40, run="visits", round=3)
    with Sender([Terminal()]) as sender:
        sender.send(long)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("alert: ledger-out-of-order, round 3 of visits: word") and max(map(len, lines)) <= 80


def test_logging_carries_the_alert_itself(caplog: pytest.LogCaptureFixture) -> None:
    with Sender([Log()]) as sender:
        sender.send(alert(3))
    record = caplog.records[0]
    assert (record.name, record.levelno) == ("quietsum.alerts", logging.WARNING)
    assert record.getMessage() == "drop-outs, round 3 of r: alert 3" and record.alert == alert(3).__class__(  # type: ignore[attr-defined]
        **{**alert(3).to_dict(), "time": record.alert.time}  # type: ignore[attr-defined]
    )


def test_a_pipe_in_place_of_the_file_holds_nobody(tmp_path: Path) -> None:
    import os

    os.mkfifo(tmp_path / "pipe")
    with Sender([JsonLines(tmp_path / "pipe")], limits=Limits(patience=1)) as sender:
        sender.send(alert())
    with Sender([JsonLines(tmp_path / "file")]) as sender:
        sender.send(alert(1), alert(2))
    assert len((tmp_path / "file").read_text().splitlines()) == 2
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o600
