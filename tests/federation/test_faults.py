"""One client fails, in every way there is: it alone is missing from the sum, and nobody hears of it, or its words.

Noise at the server is made for one clipped update. A client that could take others out of the sum with it would move
the sum by as many, so every other update must be there, bit for bit. What the failing client sends is an update like
any other: zeros at the client level, noise alone where the noise is its own or its records'.
"""

from __future__ import annotations

import dataclasses
import logging
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from federation.crowd import CrowdTask, crowd_plan, resolved_crowd
from federation.test_local import CLIENT, PARTY_NOISE, Heard
from quietsum.aggregation import Fold
from quietsum.errors import QuietsumError
from quietsum.federation.local import LocalFederation
from quietsum.federation.messages import Federation, Lost, Reply, Sums, TrainRequest, Update
from quietsum.federation.round import first_state, run_round
from quietsum.federation.watch import PartyDropped, RunEvent
from quietsum.federation.workers import crew as crews
from quietsum.federation.workers.crew import Crew
from quietsum.ledger import Ledger
from quietsum.mechanisms.rng import system_randomness
from quietsum.plan import ResolvedPlan

SERVER_NOISE: dict[str, object] = {"style": "user", "client": CLIENT}
RAISED = ("assert", "attribute", "memory", "key", "own")
WORDS = "Smith"
Make = Callable[[CrowdTask, ResolvedPlan], Federation]


class Overheard(Federation):
    """A federation, and what it replied."""

    def __init__(self, inner: Federation, *, counts: bool = True) -> None:
        self.inner, self.replies = inner, list[Reply]()
        self.counts = counts
        self.total: Any = None

    @property
    def counts_deadline(self) -> bool:
        return self.counts and self.inner.counts_deadline

    def registered(self) -> Sequence[str]:
        return self.inner.registered()

    def ask(self, request: TrainRequest, cohort: Sequence[str], fold: Fold[Any]) -> Iterator[Reply]:
        folded = fold.start()
        for reply in self.inner.ask(request, cohort, fold):
            self.replies.append(reply)
            if isinstance(reply, Sums):
                folded = fold.merge(folded, reply.folded)
            elif isinstance(reply, Update):
                folded = fold.add(folded, reply.party, reply.delta)
            self.total = folded.total.copy()
            yield reply
        honest = [name for name in cohort if name != "c003"]
        rows = np.array([[1.0, int(name[1:]), int(name[1:]) ** 2] for name in honest])
        self.of_all_others = fold.add_many(fold.start(), honest, rows)[0].total


@dataclasses.dataclass
class Outcome:
    kept: tuple[str, ...]
    dropped: dict[str, str]
    heard: Overheard
    told: str


def a_round(
    folder: Path, make: Make, fault: str, *, kind: str, privacy: Mapping[str, object], counts: bool = True, **more: Any
) -> Outcome:
    """One round of the crowd with its ledger; ``told`` is all that events, ledger and replies say."""
    task, resolved = resolved_crowd(crowd_plan(kind, privacy, fault=fault, **more))
    events: list[RunEvent] = []
    made = make(task, resolved)
    heard = Overheard(made, counts=counts)

    class Notes:
        def saw(self, event: RunEvent) -> None:
            events.append(event)

    try:
        with Ledger.open(folder / "ledger.db", create=True) as ledger:
            ledger.open_run(
                "run", plan=resolved.plan.to_dict(), terms=resolved.terms(), planned=resolved.all_charges(),
                datasets=resolved.datasets(),
            )  # fmt: skip
            result = run_round(
                "run", 1, first_state(resolved, task.initial()), resolved=resolved, federation=heard, ledger=ledger,
                rng=system_randomness(), watchers=[Notes()], clock=lambda: task.now, own_steps=True,
            )  # fmt: skip
            entries = [str(entry) for entry in ledger.entries()]
    finally:
        if isinstance(made, Crew):
            made.close()
    dropped = {event.party: event.reason for event in events if isinstance(event, PartyDropped)}
    return Outcome(kept=result.kept, dropped=dropped, heard=heard, told=f"{events} {entries} {heard.replies}")


def in_process(task: CrowdTask, resolved: ResolvedPlan) -> Federation:
    return LocalFederation.of(task, resolved, clock=lambda: task.now)


def two_workers(task: CrowdTask, resolved: ResolvedPlan) -> Federation:
    return Crew(resolved, workers=2, patience=1.5 if task.fault == "hang" else 60.0)


def only_the_culprit_is_missing(outcome: Outcome) -> None:
    """From the sum; it is told from nobody by who replied."""
    nobody_is_missing(outcome)
    np.testing.assert_array_equal(outcome.heard.total, outcome.heard.of_all_others)


def nobody_is_missing(outcome: Outcome) -> None:
    assert not outcome.dropped and len(outcome.kept) == 20
    assert not any(isinstance(reply, Lost) for reply in outcome.heard.replies)


@pytest.fixture(autouse=True)
def words_stay(caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> Iterator[None]:
    """No test of this file may let a record's words into a log or onto a screen."""
    caplog.set_level(logging.DEBUG, logger="quietsum")
    yield
    printed = capfd.readouterr()
    told = caplog.text + printed.out + printed.err
    assert WORDS not in told


def say_nothing(outcome: Outcome) -> None:
    assert WORDS not in outcome.told


# ----------------------------------------------------------------------------------------------- the matrix


@pytest.mark.parametrize("fault", (*RAISED, "exit"))
def test_the_control_every_fault_has_words_to_tell(fault: str) -> None:
    with pytest.raises(BaseException, match=WORDS):
        CrowdTask(fault=fault)._fail()


@pytest.mark.parametrize("kind", ["CrowdTask", "CrowdTogether"])
@pytest.mark.parametrize("fault", RAISED)
def test_in_one_process_only_the_client_that_failed_is_missing(tmp_path: Path, kind: str, fault: str) -> None:
    outcome = a_round(tmp_path, in_process, fault, kind=kind, privacy=SERVER_NOISE)
    only_the_culprit_is_missing(outcome)
    say_nothing(outcome)


@pytest.mark.parametrize("kind", ["CrowdTask", "CrowdTogether"])
@pytest.mark.parametrize("fault", (*RAISED, "short", "nan"))
def test_in_one_process_noise_at_the_party_hides_that_it_failed(tmp_path: Path, kind: str, fault: str) -> None:
    outcome = a_round(tmp_path, in_process, fault, kind=kind, privacy=PARTY_NOISE)
    nobody_is_missing(outcome)
    say_nothing(outcome)


@pytest.mark.parametrize(
    ("kind", "fault"),
    [("CrowdTask", fault) for fault in ("die", "hang", "exit", "assert", "attribute", "memory", "key")]
    + [("CrowdTogether", fault) for fault in ("die", "key")],
)
@pytest.mark.some(3)
def test_in_workers_only_the_client_that_failed_is_missing(tmp_path: Path, kind: str, fault: str) -> None:
    outcome = a_round(tmp_path, two_workers, fault, kind=kind, privacy=SERVER_NOISE)
    only_the_culprit_is_missing(outcome)
    say_nothing(outcome)


@pytest.mark.parametrize(("kind", "fault"), [("CrowdTask", "hang"), ("CrowdTask", "assert"), ("CrowdTogether", "die")])
@pytest.mark.some(1)
def test_in_workers_noise_at_the_party_hides_that_it_failed(tmp_path: Path, kind: str, fault: str) -> None:
    outcome = a_round(tmp_path, two_workers, fault, kind=kind, privacy=PARTY_NOISE)
    nobody_is_missing(outcome)
    say_nothing(outcome)


RECORD_NOISE: dict[str, object] = {
    "style": "sample",
    "record": {"noise_multiplier": 1.0, "delta": 1e-5, "max_grad_norm": 1.0},
}


@pytest.mark.parametrize("fault", (*RAISED, "missing", "short", "nan", "exit"))
def test_in_one_process_a_promise_to_records_hides_that_the_work_failed(tmp_path: Path, fault: str) -> None:
    outcome = a_round(tmp_path, in_process, fault, kind="CrowdTask", privacy=RECORD_NOISE)
    nobody_is_missing(outcome)
    say_nothing(outcome)
    (sent,) = [reply.delta for reply in outcome.heard.replies if isinstance(reply, Update) and reply.party == "c003"]
    assert sent.shape == (3,) and sent.all()  # three numbers of noise


@pytest.mark.parametrize("fault", ["die", "hang", "key"])
@pytest.mark.some(1)
def test_in_workers_a_promise_to_records_hides_that_the_work_failed(tmp_path: Path, fault: str) -> None:
    outcome = a_round(tmp_path, two_workers, fault, kind="CrowdTask", privacy=RECORD_NOISE)
    nobody_is_missing(outcome)
    say_nothing(outcome)


def test_the_owner_hears_of_a_failure_by_its_kind_and_line_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    a_round(tmp_path, in_process, "key", kind="CrowdTask", privacy=RECORD_NOISE, at="everybody")
    lines = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert len(lines) == 2 and all("KeyError in crowd.py, line" in line for line in lines)  # the first, and at ten
    assert "c000 failed" in lines[0] and "and 9 more failed" in lines[1]
    assert all("for the owner of the data alone" in line for line in lines)


def test_the_control_clients_that_are_not_asked_again_are_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Crew, "_ask_again", lambda *_, **__: False)
    outcome = a_round(tmp_path, two_workers, "die", kind="CrowdTogether", privacy=SERVER_NOISE)
    with pytest.raises(AssertionError):
        only_the_culprit_is_missing(outcome)


# ------------------------------------------------------------------------------------------------- deadlines

SHORT = {"deadline": 5.0}


@pytest.mark.parametrize("kind", ["CrowdTask", "CrowdTogether"])
def test_a_slow_client_makes_no_other_late(tmp_path: Path, kind: str) -> None:
    outcome = a_round(tmp_path, in_process, "slow", kind=kind, privacy=SERVER_NOISE, federation=SHORT)
    only_the_culprit_is_missing(outcome)


@pytest.mark.parametrize("kind", ["CrowdTask", "CrowdTogether"])
def test_noise_at_the_party_hides_that_it_was_late(tmp_path: Path, kind: str) -> None:
    nobody_is_missing(a_round(tmp_path, in_process, "slow", kind=kind, privacy=PARTY_NOISE, federation=SHORT))


def test_the_control_one_deadline_for_the_round_loses_those_behind_a_slow_client(tmp_path: Path) -> None:
    outcome = a_round(
        tmp_path, in_process, "slow", kind="CrowdTask", privacy=SERVER_NOISE, federation=SHORT, counts=False
    )
    assert len(outcome.kept) == 3


def test_without_a_deadline_a_slow_client_is_waited_for(tmp_path: Path) -> None:
    nobody_is_missing(a_round(tmp_path, in_process, "slow", kind="CrowdTask", privacy=SERVER_NOISE))


# --------------------------------------------------------------------------------------- asked again, and how often


def test_nobody_is_asked_again_but_those_whose_worker_is_gone(tmp_path: Path) -> None:
    diary = tmp_path / "diary"
    _, resolved = resolved_crowd(crowd_plan("CrowdTask", fault="die", diary=str(diary)))
    with Crew(resolved, workers=2) as made:
        assert set(Heard(made).reasons) == {"c003"}
        times = Counter(diary.read_text(encoding="utf-8").split())
        assert times.keys() == set(made.registered()) and sum(times.values()) <= 20 + 1 + 2
        assert times["c002"] == 2 and times["c003"] in (2, 3)  # one piece
        assert {times[name] for name in made.registered() if name not in ("c002", "c003")} == {1}
        again = Heard(made)  # not even those that failed are asked for the same attempt by a second request
        assert all("answered before" in reason for reason in again.reasons.values()) and not again.kept
        assert Counter(diary.read_text(encoding="utf-8").split()) == times


def test_a_client_that_ends_its_worker_later_takes_nobody_with_it() -> None:
    _, resolved = resolved_crowd(crowd_plan("CrowdTask", clients=8, fault="later"))
    with Crew(resolved, workers=1) as made:
        heard = Heard(made)
        assert not set(heard.reasons) - {"c003"} and len(heard.kept) >= 7


def test_a_round_in_which_too_many_workers_end_releases_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crews, "_MOST_REPLACED", 2 - 3 * 6)  # three for every client come on top
    _, resolved = resolved_crowd(crowd_plan("CrowdTask", clients=6, fault="die", at="everybody"))
    with Crew(resolved, workers=2) as made, pytest.raises(QuietsumError, match="3 worker processes were replaced"):
        Heard(made)


ONCE = """
import os, sys
if os.path.exists(sys.argv[1]):
    os._exit(1)
from quietsum.federation.workers.worker import serve_jobs
serve_jobs()
"""


def test_a_round_in_which_no_worker_can_start_releases_nothing(tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    _, resolved = resolved_crowd(crowd_plan("CrowdTask", fault="die"))
    with Crew(resolved, workers=1, command=(sys.executable, "-c", ONCE, str(flag))) as made:
        flag.touch()
        with pytest.raises(QuietsumError, match="no worker is left"):
            Heard(made)
