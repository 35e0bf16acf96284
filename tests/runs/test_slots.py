"""What a checkpoint holds beside the model: every slot, each with its hash; and runs that go on from them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save

from quietsum.errors import CorruptState, LedgerBroken
from quietsum.federation import Federation
from quietsum.federation.watch import PartyDropped, RoundStarted, RunEvent
from quietsum.learning.checks.numpy_step import Silent
from quietsum.plan import Plan
from quietsum.privacy.units import PrivacyUnit
from quietsum.runs import checkpoint as checkpoints
from quietsum.runs.checkpoint import RunCheckpoint
from quietsum.runs.folder import Workspace
from quietsum.runs.record import Recorder, history
from quietsum.runs.run import resume_run, start
from quietsum.runs.sealed import take_check
from tiny import TinyTask, tiny_plan

ADAM = {"optimizer": {"kind": "fedadam", "learning_rate": 0.05}}
CORRECTED = {"optimizer": {"kind": "adam", "learning_rate": 0.05}}
MOMENTUM = {"optimizer": {"kind": "fedavgm", "momentum": 0.7}}


def task() -> TinyTask:
    return TinyTask(sizes={f"c{index}": 6 for index in range(8)}, public="made up for a test")


def user(aggregation: Mapping[str, object], *, adaptive: bool = False, style: str = "user") -> Plan:
    client: dict[str, object] = {"noise_multiplier": 1.0, "delta": 1e-3, "max_norm": 0.2}
    if adaptive:
        client["adaptive"] = {"count_noise": 1.0}
    record = {"noise_multiplier": 2.0, "delta": 1e-4, "max_grad_norm": 1.0} if style == "hybrid" else None
    return tiny_plan(
        privacy={"style": style, "record": record, "client": client},
        training={"sample_rate": 1.0},
        federation={"rounds": 7},
        aggregation=aggregation,
    )


class Forwarding(Federation):
    """Another federation, of which only the asking is passed on."""

    def __init__(self, inner: Federation) -> None:
        self.inner = inner

    def registered(self) -> Any:
        return self.inner.registered()

    def ask(self, *args: Any) -> Any:
        return self.inner.ask(*args)


class StopAfter:
    def __init__(self, rounds: int) -> None:
        self.rounds = rounds

    def saw(self, event: RunEvent) -> None:
        if event.kind == "round-finished" and event.round == self.rounds:  # type: ignore[attr-defined]
            raise KeyboardInterrupt


def stopped(place: Workspace, plan: Plan, after: int = 3, **more: Any) -> Any:
    with pytest.raises(KeyboardInterrupt):
        start(plan, workspace=place, name="run", task=task(), watchers=[StopAfter(after)], **more)
    return place.find("run")


def newest(place: Workspace) -> RunCheckpoint:
    found = checkpoints.latest_checkpoint(place.find("run").checkpoints)
    assert found is not None
    return found


@pytest.mark.parametrize("adaptive", [False, True], ids=["fixed", "adaptive"])
@pytest.mark.parametrize(
    ("aggregation", "slots"),
    [
        ({}, set()),
        (MOMENTUM, {"velocity"}),
        (ADAM, {"first", "second"}),
        (CORRECTED, {"first", "second", "steps"}),
    ],
    ids=["fedavg", "fedavgm", "fedadam", "adam"],
)
@pytest.mark.some(4)
def test_a_resumed_run_ends_in_the_bits_of_an_unbroken_one(
    tmp_path: Path, aggregation: dict[str, object], slots: set[str], adaptive: bool
) -> None:
    """Silent noise, so that the two can be compared at all."""
    plan = user(aggregation, adaptive=adaptive)
    whole, halves = Workspace(path=tmp_path / "whole"), Workspace(path=tmp_path / "halves")
    start(plan, workspace=whole, name="run", task=task(), rng=Silent())
    folder = stopped(halves, plan, rng=Silent())
    resume_run(folder, workspace=halves, task=task(), rng=Silent())
    one, other = newest(whole).state, newest(halves).state
    np.testing.assert_array_equal(one.params, other.params)
    assert np.all(one.params != 0)
    assert set(one.slots) == set(other.slots) == slots | ({"clip"} if adaptive else set())
    for name, vector in one.slots.items():
        np.testing.assert_array_equal(vector, other.slots[name])
    if adaptive:
        assert one.clip != 0.2  # it has moved


def rewritten(path: Path, change: Any, *, hashes: bool = False) -> None:
    """The checkpoint with other tensors or another header, as a hand with an editor would leave it."""
    with safe_open(path, framework="numpy") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
        about = take_check(json.loads(file.metadata()["quietsum"]))  # whoever edits it can leave the hash out
    change(tensors, about)
    if hashes:
        from quietsum.federation.messages import model_hash

        about["slots"] = {
            name.removeprefix("slots."): model_hash(vector) for name, vector in tensors.items() if name != "params"
        }
    path.write_bytes(save(tensors, metadata={"quietsum": json.dumps(about)}))


def _add(name: str, amount: float) -> Any:
    def change(tensors: dict[str, Any], about: dict[str, Any]) -> None:
        tensors[name] = tensors[name] + amount

    return change


def _drop(name: str) -> Any:
    return lambda tensors, about: tensors.pop(name)


def _put(name: str, vector: Any) -> Any:
    return lambda tensors, about: tensors.__setitem__(name, vector)


@pytest.mark.parametrize(
    ("change", "hashes", "problem"),
    [
        (_add("slots.first", 1e-9), False, "first is not what was saved"),
        (_add("slots.second", 1e-9), False, "second is not what was saved"),
        (_add("slots.clip", 1.0), False, "clip is not what was saved"),
        (_add("params", 1e-9), False, "model is not what was saved"),
        (_drop("slots.first"), False, "vectors that its header names"),
        (_put("slots.more", np.zeros(2)), False, "vectors that its header names"),
        (_put("slots.first", np.array([np.nan, 0.0])), True, "not a vector of finite"),
        (_put("slots.first", np.zeros(2, dtype=np.float32)), True, "not a vector of finite"),
        (_put("slots.more", np.zeros(2)), True, "does not fit"),
        (_drop("slots.clip"), True, "does not fit"),
        (_put("slots.first", np.zeros(3)), True, "first has 3 numbers"),
        (_put("slots.clip", np.array([-1.0])), True, "a bound is positive"),
        (lambda tensors, about: about.__setitem__("version", 1), False, "version 1, this quietsum reads 2"),
        (lambda tensors, about: about.pop("slots"), False, "slots"),
        (lambda tensors, about: about.__setitem__("slots", 7), False, "restore it"),
    ],
)
@pytest.mark.some(9)
def test_a_slot_that_was_touched_is_refused_before_anything_is_asked(
    tmp_path: Path, change: Any, hashes: bool, problem: str
) -> None:
    place = Workspace(path=tmp_path)
    folder = stopped(place, user(ADAM, adaptive=True))
    rewritten(sorted(folder.checkpoints.glob("*.safetensors"))[-1], change, hashes=hashes)
    with pytest.raises(CorruptState, match=problem):
        resume_run(folder, workspace=place, task=task())


def test_the_control_a_checkpoint_written_again_as_it_was_is_taken(tmp_path: Path) -> None:
    place = Workspace(path=tmp_path)
    folder = stopped(place, user(ADAM, adaptive=True))
    rewritten(sorted(folder.checkpoints.glob("*.safetensors"))[-1], lambda tensors, about: None, hashes=True)
    assert resume_run(folder, workspace=place, task=task()).outcome == "finished"


# ------------------------------------------------------------------------------------------- the privacy block


def test_the_block_of_a_user_run_tells_the_clients_history_and_epsilon(tmp_path: Path) -> None:
    place = Workspace(path=tmp_path)
    result = start(user({}), workspace=place, name="run", task=task())
    block = newest(place).privacy
    assert block["sample_history"] == []
    assert block["user_history"][0] == {"party": "c0", "noise_multiplier": 1.0, "sample_rate": 1.0, "steps": 7}
    assert block["cumulative_sample_epsilon"] == 0.0
    assert block["cumulative_user_epsilon"] == pytest.approx(result.claims[0].epsilon, rel=1e-6)
    assert {guarantee.unit for guarantee in result.claims} == {PrivacyUnit.CLIENT}


def test_the_block_of_a_hybrid_run_has_two_lines_and_two_deltas_never_a_sum(tmp_path: Path) -> None:
    place = Workspace(path=tmp_path)
    result = start(user({}, style="hybrid"), workspace=place, name="run", task=task())
    block = newest(place).privacy
    assert (block["target_delta"], block["target_user_delta"]) == (1e-4, 1e-3)
    assert block["sample_history"] and block["user_history"]
    worst = {
        unit: max(g.epsilon for g in result.claims if g.unit is unit)
        for unit in (PrivacyUnit.RECORD, PrivacyUnit.CLIENT)
    }
    assert block["cumulative_sample_epsilon"] == pytest.approx(worst[PrivacyUnit.RECORD], rel=1e-6)
    assert block["cumulative_user_epsilon"] == pytest.approx(worst[PrivacyUnit.CLIENT], rel=1e-6)


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("cumulative_user_epsilon", CorruptState),
        ("target_user_delta", CorruptState),
        ("user_history", LedgerBroken),
        ("sample_history", LedgerBroken),
    ],
)
def test_a_block_of_a_hybrid_run_that_was_edited_is_refused(tmp_path: Path, name: str, error: type[Exception]) -> None:
    place = Workspace(path=tmp_path)
    folder = stopped(place, user({}, style="hybrid"))

    def edit(tensors: dict[str, Any], about: dict[str, Any]) -> None:
        value = about["privacy"][name]
        about["privacy"][name] = value[1:] if isinstance(value, list) else value / 2

    rewritten(sorted(folder.checkpoints.glob("*.safetensors"))[-1], edit)
    with pytest.raises(error):
        resume_run(folder, workspace=place, task=task())


@pytest.mark.parametrize("value", [None, "1.0", True, float("inf")])
def test_an_epsilon_that_is_no_number_is_refused(tmp_path: Path, value: object) -> None:
    place = Workspace(path=tmp_path)
    folder = stopped(place, user({}))
    rewritten(
        sorted(folder.checkpoints.glob("*.safetensors"))[-1],
        lambda tensors, about: about["privacy"].__setitem__("cumulative_user_epsilon", value),
    )
    with pytest.raises(CorruptState):
        resume_run(folder, workspace=place, task=task())


# ------------------------------------------------------------------------------------------------------ run.db


def test_parties_left_out_are_written_once_a_round_also_when_the_round_never_ends(tmp_path: Path) -> None:
    import sqlite3

    path = tmp_path / "run.db"
    with Recorder(path) as recorder:
        recorder.saw(RoundStarted(round=1, attempt=1))
        for index in range(5000):
            recorder.saw(PartyDropped(round=1, party=f"c{index}", reason="gone", refunded=False))
        recorder.saw(RoundStarted(round=1, attempt=2))
        recorder.saw(PartyDropped(round=1, party="c0", reason="gone again", refunded=True))
    database = sqlite3.connect(path)
    counted = database.execute("SELECT attempt, count(*), sum(refunded) FROM left_out GROUP BY attempt").fetchall()
    database.close()
    assert counted == [(1, 5000, 0), (2, 1, 1)]


def test_rundb_holds_every_unit_and_the_bound_that_adapts(tmp_path: Path) -> None:
    import sqlite3

    place, path = Workspace(path=tmp_path), tmp_path / "run.db"
    with Recorder(path) as recorder:
        result = start(
            user({}, adaptive=True, style="hybrid"), workspace=place, name="run", task=task(), watchers=[recorder]
        )
    for unit in (PrivacyUnit.RECORD, PrivacyUnit.CLIENT):
        rows = history(path, "distance", unit)
        assert [number for number, _, _ in rows] == list(range(1, 8))
        worst = max(guarantee.epsilon for guarantee in result.claims if guarantee.unit is unit)
        assert rows[-1][1] == pytest.approx(worst, rel=1e-6)
    assert [epsilon for _, epsilon, _ in history(path, "distance", PrivacyUnit.PERSON)] == [None] * 7
    database = sqlite3.connect(path)
    clips = [clip for (clip,) in database.execute("SELECT clip FROM rounds ORDER BY round")]
    database.close()
    assert clips[-1] == newest(place).state.clip


# ----------------------------------------------------------------------------------- schedules, people, endings


def test_a_schedule_charges_each_round_for_its_own_noise_and_resumes(tmp_path: Path) -> None:
    values = user({}).to_dict()
    plan = Plan.from_dict({**values, "schedule": [{"rounds": 2, "noise": 3.0}, {"rounds": 5}]})
    place = Workspace(path=tmp_path)
    folder = stopped(place, plan)
    result = resume_run(folder, workspace=place, task=task())
    assert result.outcome == "finished"
    told = [row for row in newest(place).privacy["user_history"] if row["party"] == "c0"]
    assert {row["noise_multiplier"]: row["steps"] for row in told} == {3.0: 2, 1.0: 5}


class Peopled(TinyTask):
    """Two rows a person."""

    def people(self, party: str) -> Any:
        return np.array([f"{party}-{index // 2}" for index in range(self.sizes[party])])


def test_people_have_a_history_and_an_epsilon_of_their_own(tmp_path: Path) -> None:
    plan = tiny_plan(
        privacy={
            "record": {"noise_multiplier": 3.0, "delta": 1e-4, "max_grad_norm": 1.0},
            "person": {"id": "person", "max_records": 2, "delta": 1e-3},
        }
    )
    place = Workspace(path=tmp_path)
    result = start(plan, workspace=place, name="run", task=Peopled())
    assert result.outcome == "finished"
    block = newest(place).privacy
    assert block["target_person_delta"] == 1e-3
    assert len(block["person_history"]) == len(block["sample_history"]) == 2
    person, sample = block["cumulative_person_epsilon"], block["cumulative_sample_epsilon"]
    assert person > 0 and sample > 0 and person != sample  # two records leave, or one does and lets another in
    again = resume_run(place.find("run"), workspace=place, task=Peopled())
    assert again.outcome == "finished"


@pytest.mark.parametrize("fails", [False, True], ids=["finished", "interrupted"])
def test_a_federation_that_the_run_made_is_closed_whatever_happens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    from quietsum.federation.local import LocalFederation

    closed: list[int] = []
    honest = LocalFederation.of

    class Closing(Forwarding):
        def close(self) -> None:
            closed.append(1)

    monkeypatch.setattr(
        LocalFederation, "of", lambda task, resolved, workers=1, **more: Closing(honest(task, resolved, **more))
    )
    place = Workspace(path=tmp_path)
    if fails:
        stopped(place, user({}))
    else:
        start(user({}), workspace=place, name="run", task=task())
    assert closed == [1]


def test_a_federation_that_was_passed_stays_its_owners(tmp_path: Path) -> None:
    from quietsum.federation.local import LocalFederation
    from quietsum.plan import resolve

    class Passed(Forwarding):
        closed = False

        def close(self) -> None:
            self.closed = True

    plan = user({})
    passed = Passed(LocalFederation.of(task(), resolve(plan, task().parties(), 2)))
    start(plan, workspace=Workspace(path=tmp_path), name="run", task=task(), federation=passed)
    assert not passed.closed
