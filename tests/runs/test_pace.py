"""The bar of a long run: how much is done, how fast, how long still."""

from __future__ import annotations

import io
import re

from quietsum.runs.progress import Pace, Progress, bar
from runs.test_progress import FINISHED, STARTED, Terminal, round_finished


class Clock:
    """Ticks by itself: every reading is ``step`` seconds after the last."""

    def __init__(self, step: float) -> None:
        self.now, self.step = 0.0, step

    def __call__(self) -> float:
        self.now += self.step
        return self.now


def told(stream: io.StringIO, step: float) -> str:
    watcher = Progress(stream, clock=Clock(step))
    for event in (STARTED, *(round_finished(number) for number in range(1, 41)), FINISHED):
        watcher.saw(event)
    return stream.getvalue()


def test_a_terminal_sees_a_bar_with_rate_and_time_left_and_keeps_the_line_alone() -> None:
    text = re.sub(r"\x1b\[[0-9?;]*[A-Za-z]", "", told(Terminal(), 2.0))
    assert "━━━───────────────────────────  10 % · 10/s · 1 min 12 s left" in text  # after 4 of 40 rounds
    assert max(map(len, text.replace("\r", "\n").splitlines())) <= 80
    assert "round 40/40" in text and "100 %" not in text


def test_plain_lines_of_a_long_run_tell_the_pace_and_stay_narrow() -> None:
    text = told(io.StringIO(), 2.0)
    assert "10/s · 1 min 4 s left" in text.replace("\n  ", " ") and max(map(len, text.splitlines())) <= 80
    assert "left" not in text.rpartition("round")[2]


def test_plain_lines_of_a_short_run_say_nothing_that_changes_from_run_to_run() -> None:
    assert told(io.StringIO(), 0.001) == told(io.StringIO(), 0.002)


def test_a_slow_first_round_does_not_spoil_the_forecast() -> None:
    times = iter([0.0, 100.0, 101.0, 102.0])
    pace = Pace(lambda: next(times))
    assert pace.finish(1, 11, parties=50) == "0.5/s · 16 min 40 s left"
    assert pace.finish(2, 11, parties=50) == "50/s · 9 s left"
    assert pace.finish(11, 11, parties=50) == "50/s"


def test_a_clock_that_stands_still_is_no_error_and_a_bar_is_never_too_wide() -> None:
    pace = Pace(lambda: 5.0)
    assert "left" in pace.finish(1, 3, parties=10**6) and "left" in pace.finish(2, 3, parties=10**6)
    assert len(bar(3, 2, "x" * 200)) <= 80
