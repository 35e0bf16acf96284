"""What is seen while a run goes on: one live line on a terminal, plain lines elsewhere, JSON lines for programs."""

from __future__ import annotations

import dataclasses
import io
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from quietsum import Guarantee, PrivacyUnit
from quietsum.cli.app import app
from quietsum.defence.detection import Finding
from quietsum.federation.watch import FindingReported, PartyDropped, RoundFinished, RunFinished, RunStarted
from quietsum.files import NoRoom
from quietsum.privacy import Observer
from quietsum.runs import progress
from quietsum.runs.folder import Workspace
from quietsum.runs.progress import EventLines, Progress, describe_spent, round_line
from quietsum.runs.run import start
from tiny import TinyTask, tiny_plan

HIDE, SHOW = "\x1b[?25l", "\x1b[?25h"


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


RECORD, CLIENT = PrivacyUnit.RECORD, PrivacyUnit.CLIENT


def guarantee(epsilon: float, unit: PrivacyUnit = RECORD, observer: Observer = Observer.SERVER) -> Guarantee:
    return Guarantee(epsilon=epsilon, delta=1e-5, unit=unit, observer=observer, method="test")


STARTED = RunStarted(
    run="run", task="tiny", style="sample", parties=20, rounds=40, first_round=1, epsilon=1.0, delta=1e-5,
    unit="record", protected=True,
)  # fmt: skip
FINISHED = RunFinished(outcome="finished", round=40, reason="")


def round_finished(number: int = 12, **changes: Any) -> RoundFinished:
    event = RoundFinished(
        round=number, rounds=40, asked=20, kept=tuple(f"site-{i}" for i in range(18)), metrics={"accuracy": 0.8712},
        metrics_on={"accuracy": "the public hold-out"}, spent=(guarantee(0.691),), limits={"record": 1.0},
    )  # fmt: skip
    return dataclasses.replace(event, **changes)


# ----------------------------------------------------------------------------------------------- the line


def test_the_line_says_round_parties_who_dropped_score_and_budget() -> None:
    assert round_line(round_finished(metrics={"auc": 0.87}), 2) == (
        "round 12/40 · 18 of 20 parties, 2 dropped · auc 0.87 · ε 0.70 of 1 per record"
    )


def test_the_line_tells_the_operator_how_many_the_rule_rejected() -> None:
    line = round_line(round_finished(rejected=("site-18", "site-19")))
    assert line == "round 12/40 · 18 of 20, 2 rejected · accuracy 0.87 · ε 0.70 of 1 per record"
    assert "site-18" not in line


def test_the_line_of_a_run_with_groups_counts_groups() -> None:
    line = round_line(round_finished(9, rounds=9), groups=(13, 20))
    assert line == "round 9/9 · 13 of 20 groups, 7 rejected · accuracy 0.87 · ε 0.70 of 1 per record"
    assert len(line) == 80
    assert "· 13 of 20 groups ·" in round_line(round_finished(), groups=(13, 20))  # what was rejected is the rest


@pytest.mark.parametrize("rounds", [5, 40, 1000])
@pytest.mark.parametrize("asked", [4, 20, 10_000])
@pytest.mark.parametrize("losses", [(0, 0), (3, 0), (0, 3), (3, 3)])
@pytest.mark.parametrize("groups", [None, (2, 4), (15, 20)])
@pytest.mark.parametrize("spent", [(guarantee(7.35),), (guarantee(0.7), guarantee(3.1, CLIENT))])
def test_the_line_is_one_line_of_80_columns_whatever_happened_in_the_round(
    rounds: int, asked: int, losses: tuple[int, int], groups: tuple[int, int] | None, spent: tuple[Guarantee, ...]
) -> None:
    dropped, rejected = losses
    event = round_finished(
        rounds, rounds=rounds, asked=asked, kept=("a",) * (asked - min(asked, dropped + rejected)),
        rejected=("b",) * rejected, spent=spent, limits={"record": 8.0, "client": 16.0},
        metrics={"balanced_accuracy": 0.5}, metrics_on={"balanced_accuracy": "a hold-out"},
    )  # fmt: skip
    line = round_line(event, dropped, groups=groups)
    assert len(line) <= 80, line
    assert "per record" in line and (len(spent) == 1 or "per client" in line)
    assert f" of {asked if groups is None else groups[1]}" in line
    assert groups or asked > 20 or len(spent) > 1 or not rejected or "3 rejected" in line


def test_findings_of_the_whole_run_stand_beside_the_bar_and_never_in_the_line_of_a_round() -> None:
    one = finding()
    events = [STARTED, one, one, round_finished(1), round_finished(4), FINISHED]
    assert "2 findings so far" in re.sub(r"\x1b\[[0-9?;]*[A-Za-z]", "", shown_on(Terminal(), events))
    assert "finding" not in shown_on(io.StringIO(), events)


def finding() -> FindingReported:
    found = Finding(
        time="2026-11-18T09:00:00+00:00", round=1, rule="norm", statistic="norm", value=9.0, threshold=3.0,
        false_positive_rate=0.01, subject_kind="party", subject="site-3",
    )  # fmt: skip
    return FindingReported(round=1, finding=found)


def test_a_line_without_losses_and_without_a_score_is_shorter() -> None:
    assert round_line(round_finished(metrics={}, metrics_on={}), 0) == (
        "round 12/40 · 18 of 20 parties · ε 0.70 of 1 per record"
    )


def test_spent_is_rounded_up_and_each_unit_has_its_own_text() -> None:
    both = [guarantee(0.6901, observer=observer) for observer in Observer]
    assert describe_spent(both, {"record": 1.0}) == "ε 0.70 of 1 per record"  # two observers who pay alike share a text
    two = [guarantee(0.2), guarantee(3.1, CLIENT)]
    assert describe_spent(two, {}) == "ε 0.20 per record · ε 3.10 per client"


def test_the_budget_stands_beside_the_unit_it_belongs_to() -> None:
    # The limit of a plan is per record. Beside a client's ε it would be a number of another unit.
    two = [guarantee(0.2), guarantee(3.1, CLIENT)]
    assert "3.10 of 1" not in describe_spent(two, {"record": 1.0})


def test_without_a_guarantee_the_line_says_so() -> None:
    assert describe_spent([guarantee(math.inf)], {}) == "NO PRIVACY GUARANTEE"
    assert describe_spent([], {}) == "NO PRIVACY GUARANTEE"
    assert "ε" not in round_line(round_finished(spent=(guarantee(math.inf),), limits={}), 0)


# ------------------------------------------------------------------------------------------------ streams


def shown_on(stream: io.StringIO, events: list[Any]) -> str:
    watcher = Progress(stream)
    for event in events:
        watcher.saw(event)
    return stream.getvalue()


def test_a_terminal_gets_one_live_line_that_is_written_over() -> None:
    rounds = [round_finished(number) for number in range(1, 41)]
    text = shown_on(Terminal(), [STARTED, *rounds, FINISHED])
    assert text.startswith(HIDE) or HIDE in text[:20]
    assert text.count("round  1/40") == 1 and "round 40/40" in text
    assert "\x1b[2K" in text  # the line before is wiped
    plain = re.sub(r"\x1b\[[0-9?;]*[A-Za-z]", "", text)
    assert len(plain.rstrip("\n").split("\r")[-1].splitlines()) <= 2  # one line stays, wrapped where it is long
    assert text.rindex(SHOW) > text.rindex("round 40/40")


def test_without_a_terminal_about_ten_plain_lines_are_printed_the_first_and_the_last_among_them() -> None:
    rounds = [round_finished(number) for number in range(1, 41)]
    lines = shown_on(io.StringIO(), [STARTED, *rounds, FINISHED]).splitlines()
    assert lines[0] == "accuracy is measured on the public hold-out"
    assert lines[1].startswith("ε is what has been spent so far, if the schedule runs as planned; parties")
    assert lines[2].endswith("are counted anew in every round")
    assert [line.split(" · ")[0] for line in lines[3:]] == [
        f"round {number:>2}/40" for number in (1, *range(4, 41, 4))
    ]  # fmt: skip
    assert not any("\x1b" in line or "\r" in line for line in lines)
    assert max(map(len, lines)) <= 80


def test_whoever_is_dropped_is_counted_in_the_next_line_and_only_there() -> None:
    dropped = [PartyDropped(round=1, party=f"site-{i}", reason="its line is dead", refunded=False) for i in range(2)]
    text = shown_on(io.StringIO(), [STARTED, *dropped, round_finished(1), round_finished(4), FINISHED])
    first, second = text.replace("\n  ", " ").split("round  ")[1:]
    assert "2 dropped" in first and "dropped" not in second
    assert "site-" not in text  # who it was is for -v and run.db


def test_long_lines_are_folded_where_there_is_no_terminal() -> None:
    event = round_finished(1, metrics={"balanced_accuracy_of_the_mean_of_all_sites": 0.5}, metrics_on={
        "balanced_accuracy_of_the_mean_of_all_sites": "a hold-out"
    }, spent=tuple(guarantee(123.2, unit) for unit in PrivacyUnit))  # fmt: skip
    lines = shown_on(io.StringIO(), [STARTED, event]).splitlines()
    assert max(map(len, lines)) <= 80 and lines[-1].startswith("  ")  # three units do not fit in one line


def test_a_failure_in_the_middle_gives_the_terminal_back(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # Whatever ends a run: the cursor must not stay hidden.
    terminal = Terminal()
    honest = progress.Progress
    monkeypatch.setattr(progress, "Progress", lambda *_: honest(terminal))
    from quietsum.runs import checkpoint as checkpoints

    write = checkpoints.save_checkpoint

    def no_room(folder: Path, checkpoint: Any, **keys: Any) -> Path:
        if checkpoint.round == 2:
            raise NoRoom("the disk is full")
        return write(folder, checkpoint, **keys)

    monkeypatch.setattr(checkpoints, "save_checkpoint", no_room)
    (tmp_path / "run.toml").write_text(tiny_plan().to_toml(), encoding="utf-8")
    result = CliRunner().invoke(app, ["run", str(tmp_path / "run.toml"), "--workspace", str(tmp_path)])
    text = terminal.getvalue()
    assert HIDE in text and text.rfind(SHOW) > text.rindex(HIDE)
    assert result.exit_code == 2 and "the disk is full" in result.stderr  # while it is live, rich swallows stderr


def test_the_control_a_run_that_ends_well_gives_the_terminal_back(tmp_path: Path) -> None:
    terminal = Terminal()
    start(tiny_plan(), workspace=Workspace(path=tmp_path), task=TinyTask(), watchers=[Progress(terminal)])
    text = terminal.getvalue()
    assert HIDE in text and text.rindex(SHOW) > text.rindex(HIDE)


# --------------------------------------------------------------------------------------------- JSON lines


def test_each_event_is_one_line_of_json_without_infinities(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    with EventLines(path) as lines:
        for event in (STARTED, round_finished(spent=(guarantee(math.inf),), limits={}), FINISHED):
            lines.saw(event)
    read = [json.loads(line, parse_constant=pytest.fail) for line in path.read_text().splitlines()]
    assert [line["event"] for line in read] == ["run-started", "round-finished", "run-finished"]
    assert read[1]["spent"][0]["epsilon"] == "Infinity"
    assert read[1]["spent"][0]["unit"] == "record"


def test_a_resumed_run_adds_to_its_events(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    for _ in range(2):
        with EventLines(path) as lines:
            lines.saw(FINISHED)
    assert len(path.read_text().splitlines()) == 2


def test_a_stream_that_is_not_ours_stays_open() -> None:
    stream = io.StringIO()
    with EventLines(stream) as lines:
        lines.saw(FINISHED)
    assert not stream.closed and stream.getvalue().endswith("\n")


# ------------------------------------------------------------------------------------------------------- a drill


@pytest.mark.parametrize("stream", [io.StringIO, Terminal])
def test_the_lines_of_a_drill_state_no_epsilon(stream: type[io.StringIO]) -> None:
    shown = {}
    for note in ("a drill: 2 of 20 parties attack", ""):
        out = stream()
        watcher = Progress(out)
        for event in (dataclasses.replace(STARTED, note=note), round_finished(1), round_finished(40), FINISHED):
            watcher.saw(event)
        shown[note] = out.getvalue()
    drill, control = shown.values()
    assert "ε" not in drill and "18 of 20 parties · accuracy 0.87 · a drill, no promise" in drill
    assert "ε 0.70 of 1 per record" in control and "if the schedule runs as planned" in control
