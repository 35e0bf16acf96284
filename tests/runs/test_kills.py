"""Nothing is lost: a run is killed at every step of a round, thousands of times, and goes on.

A child process runs or resumes and is killed with SIGKILL at the n-th failpoint it reaches. Whatever a party did is in
a diary that the party itself writes when it touches its data. However often the run dies, the ledger never shows less
than the diary, the chain verifies, and the run ends.
"""

from __future__ import annotations

import os
import signal
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from quietsum import failpoints
from quietsum.ledger import Ledger
from quietsum.ledger.history import RunHistory
from quietsum.plan import Plan
from quietsum.privacy.units import PrivacyUnit
from quietsum.runs.folder import Workspace
from quietsum.runs.run import resume_run, start
from tiny import TinyTask, tiny_plan, touches

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork and SIGKILL")

ENDED, KILLED = "ended", "killed"


def in_child(work: Callable[[], None], kill_at: int) -> tuple[str, str]:
    """Run ``work`` in a fork that dies at its ``kill_at``-th failpoint (0: never); how it ended, and where it died."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        code = 70
        try:
            reached = 0

            def hook(place: str) -> None:
                nonlocal reached
                reached += 1
                if reached == kill_at:
                    os.write(writer, place.encode())
                    os.kill(os.getpid(), signal.SIGKILL)

            failpoints.install(hook)
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        place = pipe.read().decode()
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return KILLED, place
    assert os.WEXITSTATUS(status) == 0, "the child failed; its traceback is above"
    return ENDED, place


class Story:
    """One workspace whose run is killed again and again."""

    def __init__(self, folder: Path, plan: Plan) -> None:
        self.folder, self.plan = folder, plan
        self.diary = folder / "diary"
        self.kills: Counter[str] = Counter()

    def go(self, kill_at: int = 0) -> str:
        ended, place = in_child(self._work, kill_at)
        if ended == KILLED:
            self.kills[place] += 1
        return ended

    def _work(self) -> None:
        place, task = Workspace(path=self.folder), TinyTask(diary=str(self.diary))
        if (self.folder / "runs" / "run" / "run.json").exists():
            resume_run(place.find("run"), workspace=place, task=task)
        else:
            start(self.plan, workspace=place, name="run", task=task)

    def check(self) -> dict[str, tuple[int, int]]:
        """For each party: how often it touched its data, and for how many steps it was charged."""
        with Ledger.open(self.folder / "ledger.db") as ledger:
            ledger.verify()
            paid = {
                party: sum(events.values())
                for (party, unit), events in RunHistory(ledger, "run").read().paid.items()
                if unit is PrivacyUnit.RECORD
            }
        touched = touches(self.diary)
        assert all(paid.get(party, 0) >= count for party, count in touched.items()), (touched, paid)
        return {party: (touched.get(party, 0), count) for party, count in paid.items()}


def story(folder: Path, *, rounds: int, spare: int) -> Story:
    folder.mkdir(parents=True, exist_ok=True)
    plan = tiny_plan(
        federation={"rounds": rounds, "spare_attempts": spare},
        privacy={"record": {"noise_multiplier": 30.0, "delta": 1e-3, "max_grad_norm": 1.0}},
    )
    return Story(folder, plan)


def places_of_a_run(folder: Path) -> int:
    """How many failpoints an unbroken run of two rounds passes."""
    quiet, count = story(folder, rounds=2, spare=0), 0

    def hook(place: str) -> None:
        nonlocal count
        count += 1

    failpoints.install(hook)
    try:
        quiet._work()
    finally:
        failpoints.install(None)
    return count


@pytest.mark.parametrize("apart", [5, pytest.param(1, marks=pytest.mark.long)])
def test_killed_once_at_each_step_a_run_costs_one_more_attempt_at_most(apart: int, tmp_path: Path) -> None:
    """At each fifth step, or at each."""
    steps = places_of_a_run(tmp_path / "quiet")
    assert steps > 40
    seen: Counter[str] = Counter()
    for kill_at in range(1, steps + 1, apart):
        one = story(tmp_path / f"kill-{kill_at}", rounds=2, spare=1)
        assert one.go(kill_at) == KILLED
        assert one.go() == ENDED
        for party, (touched, paid) in one.check().items():
            assert 2 <= touched <= paid <= 3, (kill_at, party)
        seen += one.kills
    assert sum(seen.values()) == len(range(1, steps + 1, apart))
    for place in () if apart > 1 else (
        "ledger.reserve:before-append", "ledger.reserve:after-append", "ledger.reserve:after-sync", "party:before-data",
        "party:before-send", "party:sent", "round:before-commit", "ledger.commit:after-append",
        "ledger.commit:after-sync", "run:before-checkpoint", "file:written", "file:synced", "file:renamed",
    ):  # fmt: skip
        assert seen[place], f"no kill at {place}"


@pytest.mark.slow
@pytest.mark.long
def test_after_two_thousand_kills_the_ledgers_still_show_no_less_than_what_left(tmp_path: Path) -> None:
    """A round passes about twenty failpoints, so children that live for 1 to 29 die in a round, or soon after one."""
    kills: Counter[str] = Counter()
    for number in range(100):
        one = story(tmp_path / f"run-{number}", rounds=30, spare=600)
        lives = number
        while True:
            lives = lives % 29 + 1
            if one.go(lives) == ENDED:
                break
        for touched, paid in one.check().values():
            assert 30 <= touched <= paid
        kills += one.kills
        if kills.total() >= 2000:
            return
    pytest.fail(f"only {kills.total()} kills: make the runs longer")


def test_the_control_a_ledger_that_forgets_a_reservation_is_caught(tmp_path: Path) -> None:
    """The check must fail when something is lost: here a party works although nothing was reserved for it."""
    one = story(tmp_path, rounds=1, spare=0)
    assert one.go() == ENDED
    one.check()
    TinyTask(diary=str(one.diary)).rows("north")
    with pytest.raises(AssertionError):
        one.check()
