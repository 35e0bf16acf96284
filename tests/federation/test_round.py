"""One round, rule by rule: spend first, ask, release after; replies never lower a charge."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quietsum.aggregation import Fold, ServerState, WeightedMean
from quietsum.errors import BudgetExhausted, DataMissing, InvalidParameter, TooFewParties
from quietsum.federation.local import LocalFederation
from quietsum.federation.messages import Federation, Lost, PartyRefusal, Reply, TrainRequest, Update
from quietsum.federation.round import run_round
from quietsum.federation.watch import PartyDropped, RunEvent
from quietsum.ledger import Ledger
from quietsum.mechanisms.rng import system_randomness
from quietsum.plan import Plan, ResolvedPlan, resolve
from tiny import TinyTask, tiny_plan, touches

START = ServerState(params=np.zeros(2))
MEAN = WeightedMean(weights={"north": 1.0, "south": 1.0}, dimension=2)


class Scripted(Federation):
    """A federation whose replies are written down beforehand."""

    def __init__(self, *replies: Reply, names: Sequence[str] = ("north", "south")) -> None:
        self.replies, self.names = replies, tuple(names)
        self.asked: list[tuple[str, ...]] = []

    def registered(self) -> Sequence[str]:
        return self.names

    def ask(self, request: TrainRequest, cohort: Sequence[str], fold: Fold[Any]) -> Iterable[Reply]:
        self.asked.append(tuple(cohort))
        return iter(self.replies)


class Notes:
    """A watcher that keeps everything."""

    def __init__(self) -> None:
        self.events: list[RunEvent] = []

    def saw(self, event: RunEvent) -> None:
        self.events.append(event)

    def reasons(self) -> dict[str, str]:
        return {event.party: event.reason for event in self.events if isinstance(event, PartyDropped)}


@dataclasses.dataclass
class Stage:
    """A ledger with one open run."""

    ledger: Ledger
    resolved: ResolvedPlan
    task: TinyTask
    notes: Notes

    def round(self, federation: object, number: int = 1, **more: object) -> ServerState:
        return run_round(
            "run", number, START, resolved=self.resolved, federation=federation,  # type: ignore[arg-type]
            ledger=self.ledger, rng=system_randomness(), watchers=[self.notes], **more,  # type: ignore[arg-type]
        ).state  # fmt: skip

    def epsilon(self, party: str) -> float:
        found = [g for (name, _), g in self.ledger.spending_by_party("run").items() if name == party]
        return found[0].epsilon if found else 0.0


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with Ledger.open(tmp_path / "ledger.db", create=True) as ledger:
        yield open_stage(ledger, tmp_path, tiny_plan())


def open_stage(ledger: Ledger, folder: Path, plan: Plan, run: str = "run") -> Stage:
    task = TinyTask(diary=str(folder / "diary"))
    resolved = resolve(plan, task.parties(), task.dimension)
    ledger.open_run(
        run, plan=plan.to_dict(), terms=resolved.terms(), planned=resolved.all_charges(), datasets=resolved.datasets()
    )
    return Stage(ledger=ledger, resolved=resolved, task=task, notes=Notes())


def update(party: str, *values: float) -> Update:
    return Update(party=party, delta=np.array(values or (1.0, 1.0)))


def test_a_round_averages_by_declared_size(stage: Stage) -> None:
    after = stage.round(Scripted(update("north", 1.0, 0.0), update("south", 0.0, 1.0)))
    np.testing.assert_allclose(after.params, [12 / 20, 8 / 20])


def test_rule_1_every_registered_party_is_charged_whoever_answers(stage: Stage) -> None:
    stage.round(Scripted(update("north")))
    assert stage.epsilon("south") == pytest.approx(stage.epsilon("north"))


@pytest.mark.parametrize(
    "south",
    [
        Lost(party="south", reason="its line is dead"),
        update("south", float("nan"), 0.0),
        update("south", 1.0),
        Update(party="south", delta=np.zeros(2, dtype=np.float32)),
    ],
    ids=["lost", "not finite", "misshapen", "wrong type"],
)
def test_rule_2_a_lost_or_unusable_reply_drops_the_party_and_stays_charged(stage: Stage, south: Reply) -> None:
    after = stage.round(Scripted(update("north", 1.0, 2.0), south))
    np.testing.assert_allclose(after.params, [1.0, 2.0])
    assert list(stage.notes.reasons()) == ["south"]
    assert stage.epsilon("south") == pytest.approx(stage.epsilon("north"))


def test_rule_2_only_a_refusal_before_data_was_touched_is_refunded(stage: Stage) -> None:
    stage.round(Scripted(update("north"), PartyRefusal(party="south", reason="maintenance")))
    assert stage.epsilon("south") == 0.0 < stage.epsilon("north")
    assert "maintenance" in stage.notes.reasons()["south"]


def test_rule_2_an_update_followed_by_a_refusal_is_not_refunded(stage: Stage) -> None:
    stage.round(Scripted(update("north"), update("south"), PartyRefusal(party="south", reason="changed its mind")))
    assert stage.epsilon("south") == pytest.approx(stage.epsilon("north"))
    assert "twice" in stage.notes.reasons()["south"]


def test_rule_2_a_refusal_followed_by_an_update_is_not_refunded(stage: Stage) -> None:
    stage.round(Scripted(update("north"), PartyRefusal(party="south", reason="no"), update("south", 9.0, 9.0)))
    assert stage.epsilon("south") == pytest.approx(stage.epsilon("north"))


def test_a_second_update_of_one_party_is_not_counted(stage: Stage) -> None:
    once = stage.round(Scripted(update("north"), update("south", 3.0, 3.0)))
    twice = stage.round(Scripted(update("north"), update("south", 3.0, 3.0), update("south", 99.0, 99.0)), 2)
    np.testing.assert_array_equal(once.params, twice.params)


def test_a_stranger_is_left_out(stage: Stage) -> None:
    after = stage.round(Scripted(update("north"), update("nobody", 50.0, 50.0)))
    np.testing.assert_array_equal(after.params, [1.0, 1.0])


def test_all_parties_refusing_is_too_few_parties_and_costs_nothing(stage: Stage) -> None:
    with pytest.raises(TooFewParties, match="0 of 2 parties"):
        stage.round(Scripted(*(PartyRefusal(party=name, reason="no") for name in ("north", "south"))))
    assert stage.epsilon("north") == stage.epsilon("south") == 0.0
    stage.ledger.verify()


def test_too_few_replies_are_a_stated_outcome_and_charged(tmp_path: Path) -> None:
    with Ledger.open(tmp_path / "ledger.db", create=True) as ledger:
        stage = open_stage(ledger, tmp_path, tiny_plan(federation={"minimum_parties": 2}))
        with pytest.raises(TooFewParties, match="the plan needs 2"):
            stage.round(Scripted(update("north"), Lost(party="south", reason="gone")))
        assert stage.epsilon("north") > 0


def test_nobody_is_asked_once_the_budget_is_gone(stage: Stage) -> None:
    for number in (1, 2, 3):
        stage.round(Scripted(update("north"), update("south")), number)
    federation = Scripted(update("north"), update("south"))
    with pytest.raises(BudgetExhausted):
        stage.round(federation, 3)
    assert federation.asked == []


def test_the_control_with_budget_left_the_parties_are_asked(stage: Stage) -> None:
    federation = Scripted(update("north"), update("south"))
    stage.round(federation)
    assert federation.asked == [("north", "south")]


def test_the_reservation_is_on_disk_before_the_first_question_and_the_commit_before_the_step(
    tmp_path: Path, stage: Stage
) -> None:
    seen: dict[str, list[str]] = {}

    class Looking(Scripted):
        def ask(self, request: TrainRequest, cohort: Sequence[str], fold: Fold[Any]) -> Iterator[Reply]:
            with Ledger.open(tmp_path / "ledger.db") as other:  # a second connection sees what was committed
                seen["asked"] = [entry.kind.value for entry in other.entries()]
            yield from (update("north"), update("south"))

    stage.round(Looking())
    assert seen["asked"][-1] == "reserve"
    assert [entry.kind.value for entry in stage.ledger.entries()][-1] == "commit"


# ------------------------------------------------------------------------------------------- deadlines


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Slow(Scripted):
    """Each reply takes the stated time."""

    def __init__(self, clock: Clock, *replies: tuple[float, Reply]) -> None:
        super().__init__(*(reply for _, reply in replies))
        self.clock, self.times = clock, [seconds for seconds, _ in replies]

    def ask(self, request: TrainRequest, cohort: Sequence[str], fold: Fold[Any]) -> Iterator[Reply]:
        for seconds, reply in zip(self.times, self.replies, strict=True):
            self.clock.now += seconds
            yield reply


def with_deadline(tmp_path: Path) -> Plan:
    return tiny_plan(federation={"deadline": 5.0})


def test_a_late_reply_is_left_out_and_charged(tmp_path: Path) -> None:
    with Ledger.open(tmp_path / "ledger.db", create=True) as ledger:
        stage, clock = open_stage(ledger, tmp_path, with_deadline(tmp_path)), Clock()
        after = stage.round(Slow(clock, (4.0, update("north")), (2.0, update("south", 9.0, 9.0))), clock=clock)
        np.testing.assert_array_equal(after.params, [1.0, 1.0])
        assert "after the deadline" in stage.notes.reasons()["south"]
        assert stage.epsilon("south") == pytest.approx(stage.epsilon("north"))


def test_whoever_was_not_heard_by_the_deadline_is_not_waited_for(tmp_path: Path) -> None:
    with Ledger.open(tmp_path / "ledger.db", create=True) as ledger:
        stage, clock = open_stage(ledger, tmp_path, with_deadline(tmp_path)), Clock()
        with pytest.raises(TooFewParties):
            stage.round(Slow(clock, (6.0, update("north")), (1.0, update("south"))), clock=clock)
        assert clock.now == 1006.0  # the second party was never waited for
        assert "had not replied" in stage.notes.reasons()["south"]


def test_a_clock_that_jumps_back_neither_ends_a_round_nor_extends_a_charge(tmp_path: Path) -> None:
    with Ledger.open(tmp_path / "ledger.db", create=True) as ledger:
        stage, clock = open_stage(ledger, tmp_path, with_deadline(tmp_path)), Clock()
        after = stage.round(Slow(clock, (-500.0, update("north")), (1.0, update("south"))), clock=clock)
        np.testing.assert_array_equal(after.params, [1.0, 1.0])


# ----------------------------------------------------------------------------------- the local runtime


def test_local_parties_touch_their_data_once_a_round(tmp_path: Path, stage: Stage) -> None:
    stage.round(LocalFederation.of(stage.task, stage.resolved))
    assert touches(tmp_path / "diary") == {"north": 1, "south": 1}


def test_a_simulated_refusal_touches_no_data_and_is_refunded(tmp_path: Path) -> None:
    with Ledger.open(tmp_path / "ledger.db", create=True) as ledger:
        stage = open_stage(ledger, tmp_path, tiny_plan(federation={"simulate": {"refusing": ["south"]}}))
        stage.round(LocalFederation.of(stage.task, stage.resolved))
        assert touches(tmp_path / "diary") == {"north": 1}
        assert stage.epsilon("south") == 0.0 < stage.epsilon("north")


def test_a_simulated_drop_out_touches_data_and_is_charged(tmp_path: Path) -> None:
    with Ledger.open(tmp_path / "ledger.db", create=True) as ledger:
        stage = open_stage(ledger, tmp_path, tiny_plan(federation={"simulate": {"drop_outs": 1.0}}))
        with pytest.raises(TooFewParties):
            stage.round(LocalFederation.of(stage.task, stage.resolved))
        assert touches(tmp_path / "diary") == {"north": 1, "south": 1}
        assert stage.epsilon("south") > 0


def test_rule_10_a_request_delivered_twice_is_not_answered_again_and_not_refunded(tmp_path: Path, stage: Stage) -> None:
    federation = LocalFederation.of(stage.task, stage.resolved)
    request = TrainRequest(run="run", round=1, attempt=1, params=np.zeros(2))
    first = list(federation.ask(request, ["north"], MEAN))
    again = list(federation.ask(request, ["north"], MEAN))
    assert isinstance(first[0], Update)
    assert isinstance(again[0], Lost)
    assert touches(tmp_path / "diary") == {"north": 1}


def test_rule_10_the_control_another_attempt_is_another_request(tmp_path: Path, stage: Stage) -> None:
    federation = LocalFederation.of(stage.task, stage.resolved)
    for attempt in (1, 2):
        request = TrainRequest(run="run", round=1, attempt=attempt, params=np.zeros(2))
        assert isinstance(next(iter(federation.ask(request, ["north"], MEAN))), Update)
    assert touches(tmp_path / "diary") == {"north": 2}


def test_rule_10_the_same_round_asked_by_two_processes_gets_different_noise(stage: Stage) -> None:
    request = TrainRequest(run="run", round=1, attempt=1, params=np.zeros(2))
    one, other = (
        next(iter(LocalFederation.of(stage.task, stage.resolved).ask(request, ["north"], MEAN))) for _ in range(2)
    )
    assert isinstance(one, Update)
    assert isinstance(other, Update)
    assert not np.array_equal(one.delta, other.delta)


@pytest.mark.parametrize(
    "error", [InvalidParameter("cholesterol", "Mrs Miller: 4711", "is not a number"), ValueError("4711")]
)
def test_rule_17_a_failure_while_reading_is_charged_and_shows_nowhere(tmp_path: Path, error: Exception) -> None:
    """Reading has begun, so the data was touched; and that something is wrong with it is the party's own business."""

    class Damaged(TinyTask):
        def rows(self, party: str):  # type: ignore[no-untyped-def]
            raise error

    task = Damaged()
    resolved = resolve(tiny_plan(), task.parties(), task.dimension)
    request = TrainRequest(run="run", round=1, attempt=1, params=np.zeros(2))
    (reply,) = LocalFederation.of(task, resolved).ask(request, ["north"], MEAN)
    assert isinstance(reply, Update) and reply.delta.shape == (2,) and reply.delta.all()


def test_data_that_is_not_there_is_a_refusal_where_the_task_says_so_without_reading(tmp_path: Path) -> None:
    class Nowhere(TinyTask):
        def rows(self, party: str):  # type: ignore[no-untyped-def]
            raise DataMissing("row 17 of points.csv ends in the middle")

    class Looks(Nowhere):
        def look_for_data(self, party: str) -> None:
            raise DataMissing("points.csv is not there; mount the data")

    request = TrainRequest(run="run", round=1, attempt=1, params=np.zeros(2))
    for task, kind in ((Looks(), PartyRefusal), (Nowhere(), Update)):  # what a reader says, it may have read
        resolved = resolve(tiny_plan(), task.parties(), task.dimension)
        (reply,) = LocalFederation.of(task, resolved).ask(request, ["north"], MEAN)
        assert isinstance(reply, kind)


@pytest.mark.parametrize("again", [(1, 1, 0.0), (1, 1, 5.0), (1, 2, 0.0)])
def test_rule_10_attempts_are_answered_in_order_once_whatever_model_comes(
    stage: Stage, again: tuple[int, int, float]
) -> None:
    federation = LocalFederation.of(stage.task, stage.resolved)

    def ask(number: int, attempt: int, value: float) -> Reply:
        request = TrainRequest(run="run", round=number, attempt=attempt, params=np.full(2, value))
        return next(iter(federation.ask(request, ["north"], MEAN)))

    assert isinstance(ask(1, 1, 0.0), Update)
    assert isinstance(ask(1, 2, 0.0), Update)
    assert isinstance(ask(*again), Lost)
    assert isinstance(ask(2, 1, 0.0), Update)


def test_rule_10_seeded_randomness_cannot_protect_data(monkeypatch: pytest.MonkeyPatch) -> None:
    from quietsum.mechanisms.rng import randomness_for_tests

    monkeypatch.setenv("QUIETSUM_TEST_SEEDS", "1")
    resolved = resolve(tiny_plan(), TinyTask().parties(), 2)
    with pytest.raises(InvalidParameter, match="seeded"):
        LocalFederation.of(TinyTask(), resolved, rng=randomness_for_tests(1))
