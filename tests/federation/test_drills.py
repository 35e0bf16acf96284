"""Drills: attackers send what the attack makes, everybody else and all books stay as they are."""

from __future__ import annotations

import dataclasses
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from federation.crowd import crowd_plan, resolved_crowd
from federation.masked import FOUR, NONE, Watched, secure_plan
from federation.test_local import plain, request
from quietsum import report
from quietsum.defence import ATTACKS, DATA_ATTACKS
from quietsum.defence.attacks import DIRECTIONS
from quietsum.defence.rows import poison_task
from quietsum.errors import PlanRefused
from quietsum.federation import drills
from quietsum.federation.drills import Drill, refuse_drill
from quietsum.federation.local import LocalFederation
from quietsum.federation.messages import Federation, Lost, Reply, Sums, Update
from quietsum.ledger import Ledger
from quietsum.plan import AttackPlan, Plan, PrivacyPlan, Style, resolve
from quietsum.plan.attack import ATTACK_DIRECTIONS, ATTACK_KINDS
from quietsum.plan.refusals import warnings
from quietsum.runs import checkpoint as checkpoints
from quietsum.runs.folder import Workspace
from quietsum.runs.run import start
from quietsum.tasks import Rows, task_of
from tiny import TinyTask, tiny_plan

KINDS = ("CrowdTask", "CrowdTogether")


def attacked(plan: Plan, kind: str = "sign-flip", **keys: Any) -> Plan:
    return dataclasses.replace(plan, attack=AttackPlan(kind=kind, **keys))


def sent(plan: Plan, number: int = 1, workers: int = 1) -> dict[str, np.ndarray]:
    """What arrives in a round, by party."""
    task, resolved = resolved_crowd(plan)
    federation = LocalFederation.of(task, resolved, workers=workers)
    try:
        names = federation.registered()
        replies = list(federation.ask(request(number), names, plain(names)))
    finally:
        federation.close()
    assert all(isinstance(reply, Update) for reply in replies)
    assert len(replies) == len(names)
    return {reply.party: reply.delta for reply in replies if isinstance(reply, Update)}


def own(number: int) -> np.ndarray:
    return np.array([1.0, number, number**2])


def test_the_plan_knows_the_attacks_and_directions_that_there_are() -> None:
    assert set(ATTACK_KINDS) == {*ATTACKS, *DATA_ATTACKS}
    assert ATTACK_DIRECTIONS == DIRECTIONS


@pytest.mark.parametrize("kind", KINDS)
def test_without_an_attack_nothing_stands_between_parties_and_round(kind: str) -> None:
    task, resolved = resolved_crowd(crowd_plan(kind))
    federation = LocalFederation.of(task, resolved)
    assert type(federation) is LocalFederation
    replies = list(federation.ask(request(), federation.registered(), plain(federation.registered())))
    assert any(isinstance(reply, Sums) for reply in replies) is (kind == "CrowdTogether")
    with pytest.raises(PlanRefused, match="needs"):
        Drill(federation, resolved)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("parties", [3, ("c000", "c002", "c001")])
def test_attackers_send_what_the_attack_makes_and_others_what_they_made(kind: str, parties: Any) -> None:
    found = sent(attacked(crowd_plan(kind), parties=parties, strength=2.0))
    for number in range(20):
        np.testing.assert_array_equal(found[f"c{number:03}"], own(number) * (-2 if number < 3 else 1))


@pytest.mark.slow
def test_worker_processes_attack_as_one_process_does() -> None:
    one, two = (sent(attacked(crowd_plan(), kind="ipm", parties=4), workers=workers) for workers in (1, 2))
    honest = np.mean([own(number) for number in range(4, 20)], axis=0)
    for name, update in one.items():
        np.testing.assert_array_equal(two[name], update)
        np.testing.assert_allclose(update, -0.5 * honest if int(name[1:]) < 4 else own(int(name[1:])))


def test_only_the_stated_rounds_are_attacked() -> None:
    task, resolved = resolved_crowd(attacked(crowd_plan("CrowdTask"), from_round=2, to_round=2))
    federation = LocalFederation.of(task, resolved)
    for number, sign in ((1, 1), (2, -1), (3, 1)):
        replies = federation.ask(request(number), federation.registered(), plain(federation.registered()))
        found = {reply.party: reply.delta for reply in replies if isinstance(reply, Update)}
        assert found["c000"][0] == sign


def test_a_free_rider_repeats_the_last_change_of_the_model() -> None:
    task, resolved = resolved_crowd(attacked(crowd_plan("CrowdTask"), kind="free-rider", strength=0.0))
    federation = LocalFederation.of(task, resolved)
    names = federation.registered()
    for number, params, expected in ((1, np.zeros(3), np.zeros(3)), (2, np.arange(3.0), np.arange(3.0))):
        asked = dataclasses.replace(request(number), params=params)
        replies = federation.ask(asked, names, plain(names))
        found = {reply.party: reply.delta for reply in replies if isinstance(reply, Update)}
        np.testing.assert_array_equal(found["c000"], expected)


def test_who_is_lost_stays_lost_and_an_attacker_without_an_update_sends_none() -> None:
    task, resolved = resolved_crowd(attacked(crowd_plan("CrowdTask", fault="raise", at="c000"), parties=2))
    federation = LocalFederation.of(task, resolved)
    replies = list(federation.ask(request(), federation.registered(), plain(federation.registered())))
    assert [reply.party for reply in replies if isinstance(reply, Lost)] == ["c000"]
    found = {reply.party: reply.delta for reply in replies if isinstance(reply, Update)}
    assert "c000" not in found
    np.testing.assert_array_equal(found["c001"], -own(1))


def test_an_attack_that_fails_ends_no_round_that_is_paid_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> np.ndarray:
        raise ZeroDivisionError("no idea")

    monkeypatch.setattr(drills, "_attack_with", broken)
    found = sent(attacked(crowd_plan("CrowdTask"), parties=3))
    np.testing.assert_array_equal(found["c000"], own(0))
    assert "the attack of this drill failed (ZeroDivisionError: no idea)" in caplog.text


# ------------------------------------------------------------------------------------------------ whole runs


def drilled(tmp_path: Path, plan: Plan, name: str = "run") -> Any:
    return start(plan, workspace=Workspace(path=tmp_path), name=name, task=TinyTask(sizes=FOUR, public="made up"))


def test_attackers_are_charged_like_everybody_and_nobody_pays_more(tmp_path: Path) -> None:
    plan = tiny_plan(aggregation={"rule": "median", "attackers": 1})
    for name, one in (("calm", plan), ("drill", attacked(plan, kind="gaussian", strength=1e6))):
        drilled(tmp_path / name, one, "run")
    spent = {}
    for name in ("calm", "drill"):
        with Ledger.open(tmp_path / name / "ledger.db") as ledger:
            spent[name] = [(one.unit, one.epsilon, one.delta) for one in ledger.spending("run")]
    assert spent["calm"] == spent["drill"] != []


def test_a_median_withstands_what_ruins_a_mean(tmp_path: Path) -> None:
    base = tiny_plan(privacy={**NONE}, federation={"rounds": 8}, training={"sample_rate": 1.0})
    base = dataclasses.replace(base, attack=AttackPlan(kind="ipm", strength=20.0))
    found = {}
    for rule in ("mean", "median"):
        plan = dataclasses.replace(base, aggregation=dataclasses.replace(base.aggregation, rule=rule))
        task = TinyTask(sizes=FOUR, public="made up")
        result = start(plan, workspace=Workspace(path=tmp_path / rule), name="run", task=task)
        found[rule] = result.metrics.values["distance"]
    assert found["median"] < 0.1 < found["mean"]


class Around(TinyTask):
    """Ten sites whose points lie 0.3 away from the common mean, each in its own direction."""

    def rows(self, party: str) -> Rows:
        rows, angle = super().rows(party), 2 * np.pi * int(party[1:]) / len(self.sizes)
        return Rows(features=rows.features + 0.3 * np.array([np.cos(angle), np.sin(angle)]), labels=rows.labels)


@pytest.mark.parametrize("kind", ["sign-flip", "lie", "ipm", "min-max", "byzmean", "adaptive"])
def test_a_crafted_update_that_carries_a_mean_away_leaves_a_median_among_the_honest(kind: str, tmp_path: Path) -> None:
    """Two of ten attack, with a strength at which the mean leaves the honest sites by more than thrice their spread."""
    base = tiny_plan(privacy={**NONE}, federation={"rounds": 8}, training={"sample_rate": 1.0})
    base = dataclasses.replace(base, attack=AttackPlan(kind=kind, parties=2, strength=20.0))
    found = {}
    for rule, attackers in (("mean", None), ("median", 2)):
        aggregation = dataclasses.replace(base.aggregation, rule=rule, attackers=attackers)
        task = Around(sizes={f"c{at}": 12 for at in range(10)}, public="made up")
        plan = dataclasses.replace(base, aggregation=aggregation)
        result = start(plan, workspace=Workspace(path=tmp_path / rule), name="run", task=task)
        found[rule] = result.metrics.values["distance"]
    assert found["median"] < 0.3 and found["mean"] > 0.9


def test_a_drill_says_so_in_its_plan_its_model_its_database_and_its_report(tmp_path: Path) -> None:
    plan = attacked(tiny_plan(), kind="zero")
    result = drilled(tmp_path, plan)
    words = "DRILL: 1 party attacking by 'zero', so the model is good for nothing but judging the defence"
    assert result.resolved.warnings[0] == warnings(plan, TinyTask(public="made up").parties())[0] == words
    assert checkpoints.read_model(result.folder.model)[1]["drill"] == words
    values = report.build(result.folder, Workspace(path=tmp_path))
    assert words in values["warnings"]
    assert values["summary"].endswith("finished. This was a drill.")
    calm = drilled(tmp_path / "calm", tiny_plan())
    assert "drill" not in checkpoints.read_model(calm.folder.model)[1]


def test_the_database_of_a_drill_says_so(tmp_path: Path) -> None:
    from quietsum.federation.watch import RunStarted
    from quietsum.runs.record import Recorder, scores_after

    for note, rows in (("DRILL", [("DRILL",)]), ("", [])):
        path = tmp_path / f"{note or 'calm'}.db"
        with Recorder(path) as recorder:
            for _ in range(2):  # a run that goes on says it again
                recorder.saw(
                    RunStarted(
                        run="run", task="tiny", style="none", parties=4, rounds=1, first_round=1, epsilon=None,
                        delta=None, unit=None, protected=False, note=note,
                    )
                )  # fmt: skip
        assert sqlite3.connect(path).execute("SELECT * FROM drill").fetchall() == rows
        assert scores_after(path, 1) == []


def test_no_drill_is_run_where_sites_are_asked(tmp_path: Path) -> None:
    class Sites(Federation):
        remote = True

        def registered(self) -> tuple[str, ...]:
            return tuple(FOUR)

        def ask(self, *_: object) -> list[Reply]:
            raise AssertionError("somebody was asked")

    sites = Sites()
    plan = attacked(tiny_plan())
    with pytest.raises(PlanRefused, match="real sites would be asked"):
        start(plan, workspace=Workspace(path=tmp_path), task=TinyTask(sizes=FOUR, public="made up"), federation=sites)
    assert not (tmp_path / "ledger.db").exists()
    refuse_drill(tiny_plan())


# ------------------------------------------------------------------------------------------------------ rows


def test_rows_are_changed_at_attackers_alone() -> None:
    task: Any = task_of(Plan(privacy=PrivacyPlan(style=Style.NONE)))
    names = [facts.name for facts in task.parties()]
    changed: Any = poison_task(task, AttackPlan(kind="label-flip"), names[:1])
    for name in names:
        (before, labels), (after, flipped) = task.records_of(name), changed.records_of(name)
        assert (after == before).all()
        assert (flipped == (1 - labels if name == names[0] else labels)).all()
    assert type(changed) is type(task)
    assert poison_task(task, AttackPlan(kind="lie"), names[:1]) is task


@pytest.mark.parametrize("kind", ["label-flip", "backdoor", "distributed-backdoor"])
def test_torch_records_are_changed_at_attackers_alone(kind: str) -> None:
    plan = Plan.from_dict({
        "task": {"name": "digits"}, "federation": {"split": "dirichlet(0.5)", "parties": 6},
        "privacy": {"style": "none"},
    })  # fmt: skip
    task: Any = task_of(plan)
    names = [facts.name for facts in task.parties()]
    changed: Any = poison_task(
        task, AttackPlan(kind=kind, target=None if kind == "label-flip" else 3, share=0.5), names[:2]
    )
    assert changed.parties() == task.parties()
    for at, name in enumerate(names):
        (before, told), (after, now) = task.records_of(name), changed.records_of(name)
        if at >= 2:
            assert (before == after).all()
            assert (told == now).all()
        elif kind == "label-flip":
            assert (before == after).all()
            assert (now == 9 - told).all()
        else:
            bearing = (before != after).any(1)
            assert abs(float(bearing.double().mean()) - 0.5) < 0.05
            assert (now[bearing] == 3).all()
            moved = set(np.flatnonzero((before != after).any(0).numpy()))
            assert moved == ({0, 1, 2} if kind == "backdoor" else {0, 2} if at == 0 else {1})


def test_flipped_labels_reach_a_masked_sum(tmp_path: Path) -> None:
    class Leaning(TinyTask):
        """The gradient leans on labels, so that flipping them shows."""

        def gradients(self, params: Any, features: Any, labels: Any) -> Any:
            return np.where(labels[:, None] > 0, -1.0, 1.0) * np.ones((len(labels), 2))

    found = {}
    for name, attack in (("calm", None), ("drill", AttackPlan(kind="label-flip", parties=("north",)))):
        plan = dataclasses.replace(
            secure_plan(NONE, aggregation={"weights": "equal"}, training={"sample_rate": 1.0}), attack=attack
        )
        world = Watched(tmp_path / name, plan, task=Leaning)
        world.round()
        found[name] = world.state.params
    np.testing.assert_allclose(found["calm"], -0.5, atol=1e-3)
    np.testing.assert_allclose(found["drill"], -0.5 / 2, atol=1e-3)


def test_a_task_that_shows_no_rows_has_none_changed() -> None:
    task, resolved = resolved_crowd(attacked(crowd_plan(), kind="backdoor"))
    with pytest.raises(PlanRefused, match="trains by code of its own"):
        LocalFederation.of(task, resolved)
    assert resolve(resolved.plan, resolved.parties, 3).plan.attack is not None
