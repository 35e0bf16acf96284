"""Canary clients in live runs: the model keeps its law, correct runs are consistent, faulty ones contradicted."""

from __future__ import annotations

import dataclasses
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quietsum.aggregation import ClientSum
from quietsum.audit import ClientAudit, Conclusion, audit_run_clients
from quietsum.errors import CorruptState, PlanRefused, QuietsumError
from quietsum.federation import ClientCanaries
from quietsum.learning import PartyCanaries
from quietsum.mechanisms import ClippedSum, Mode, system_randomness
from quietsum.plan import PartyFacts, Plan, resolve
from quietsum.runs import Workspace
from quietsum.runs.run import resume_run, start
from quietsum.sampling import Poisson
from quietsum.tasks import as_task
from scenes import quietsum
from tiny import TinyTask, tiny_plan

COUNT = 200
CLIENT = {"noise_multiplier": 2.0, "delta": 1e-3, "max_norm": 0.5}


class Many(TinyTask):
    """Thirty sites of a few made-up points."""

    def parties(self) -> tuple[PartyFacts, ...]:
        known = TinyTask.parties(self)[0]
        return tuple(dataclasses.replace(known, name=f"p{at}", dataset=f"d{at}") for at in range(30))

    def rows(self, party: str) -> Any:
        return TinyTask.rows(self, "north")


def plan(*, canaries: int = COUNT, rounds: int = 60, client: dict[str, Any] | None = None, **changes: Any) -> Plan:
    privacy = {"style": "user", "client": {**CLIENT, "canaries": canaries, **(client or {})}, "record": None}
    values: dict[str, Any] = {
        "federation": {"rounds": rounds, "sampling": {"kind": "poisson", "rate": 0.25}}, "privacy": privacy,
        "training": {"sample_rate": 0.5, "local_steps": 1}, **changes,
    }  # fmt: skip
    return tiny_plan(**values)


def run(place: Path, name: str = "one", **changes: Any) -> ClientAudit:
    workspace = Workspace.at(place)
    start(plan(**changes), workspace=workspace, name=name, task=as_task(Many(public="made up")))
    return audit_run_clients(name, workspace)


def test_a_correct_run_is_consistent_and_its_owner_alone_has_the_record(tmp_path: Path) -> None:
    found = run(tmp_path)
    assert found.conclusion is Conclusion.CONSISTENT, found.sentence
    assert found.tests.steps == 60 and found.tests.canaries == COUNT and "canary clients" in found.sentence
    assert found.tests.claim.epsilon is not None and found.tests.lower_bound < found.tests.claim.epsilon
    assert found.estimate is not None and found.estimate_range is not None
    files = list((tmp_path / "runs" / "one" / "canaries" / "clients").iterdir())
    assert len(files) == 61 and {stat.S_IMODE(one.stat().st_mode) for one in files} == {0o600}
    told = quietsum("audit", "one", "--attack", "clients", "--workspace", tmp_path).stdout
    assert "The run itself carried these clients" in told and "per client" in told
    files[7].write_bytes(files[7].read_bytes()[:-1] + b"\0\1")
    with pytest.raises(CorruptState):
        audit_run_clients("one", Workspace.at(tmp_path))


def halve_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    release = ClippedSum.release

    def half(self: ClippedSum, total: Any, rng: Any) -> Any:
        return release(dataclasses.replace(self, noise_multiplier=self.noise_multiplier / 2), total, rng)

    monkeypatch.setattr(ClippedSum, "release", half)


def clip_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clip of the whole cohort's sum in place of one for each client."""
    release = ClippedSum.release

    def whole(self: ClippedSum, total: Any, rng: Any) -> Any:
        length = np.linalg.norm(total.astype(float)) / self.grid_norm
        return release(self, (total / max(1.0, length)).astype(total.dtype), rng)

    monkeypatch.setattr(ClippedSum, "release", whole)


def draw_twice_as_often(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = Poisson.draw
    monkeypatch.setattr(Poisson, "draw", lambda self, *rest: draw(Poisson(rate=2 * self.rate), *rest))


@pytest.mark.parametrize(
    ("fault", "seen"), [(halve_noise, "noise"), (clip_sum, "contribution"), (draw_twice_as_often, "draws")]
)
@pytest.mark.some(1)
def test_a_faulty_server_is_contradicted(
    fault: Any, seen: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault(monkeypatch)
    found = run(tmp_path)
    assert found.conclusion is Conclusion.CONTRADICTED
    assert seen in [one.name for one in found.tests.evidence if one.contradicts]
    quietsum("audit", "one", "--attack", "clients", "--workspace", tmp_path, code=5)


@pytest.mark.long
def test_no_correct_run_is_accused_in_twenty(tmp_path: Path) -> None:
    """More runs could show a false alarm rate above 1e-6."""
    for number in range(20):
        assert run(tmp_path, f"run-{number}").conclusion is not Conclusion.CONTRADICTED


@pytest.mark.parametrize("mode", [Mode.FAST, Mode.SECURE])
def test_with_next_to_no_noise_the_step_is_that_of_the_parties_alone(tmp_path: Path, mode: Mode) -> None:
    rng = system_randomness()
    fold = ClientSum(mechanism=ClippedSum(max_norm=0.5, noise_multiplier=1e-6, mode=mode), denominator=4.0, dimension=3)
    rows = np.array([[3.0, 0.0, 4.0], [0.1, -0.2, 0.0]])
    state, _ = fold.add_many(fold.start(), ("a", "b"), rows)
    alone = fold.finish(fold.add_many(fold.start(), ("a", "b"), rows)[0], rng)
    canaries = ClientCanaries(tmp_path, "one", count=40, rng=rng)
    found = canaries.carry(np.arange(canaries.inside), number=1, attempt=1).finish(fold, state, rng)
    assert found.kept == alone.kept and found.step.shape == (3,)
    np.testing.assert_allclose(found.step, alone.step, atol=1e-5)
    kept = PartyCanaries(tmp_path / "canaries" / "clients", "one: canary clients", count=40, rng=rng)
    (file,) = (tmp_path / "canaries" / "clients").glob("round-*.safetensors")
    from safetensors.numpy import load_file

    assert np.allclose(load_file(file)["released"][0], kept.included, atol=1e-4)  # 1 for those that are in: all drawn


def test_charges_are_those_of_a_plan_without_them_and_older_plans_keep_their_digest() -> None:
    facts = Many(public="made up").parties()
    with_them, without = (resolve(plan(canaries=count), facts, 2) for count in (COUNT, 0))
    assert with_them.all_charges() == without.all_charges()
    assert "canaries" not in str(without.plan.to_dict()["privacy"])
    assert Plan.from_dict(with_them.plan.to_dict()) == with_them.plan


def test_a_run_that_was_broken_off_goes_on_with_the_same_coins(tmp_path: Path) -> None:
    class Stop:
        def saw(self, event: Any) -> None:
            if event.kind == "round-finished" and event.round == 3:
                raise KeyboardInterrupt

    workspace, task = Workspace.at(tmp_path), as_task(Many(public="made up"))
    with pytest.raises(KeyboardInterrupt):
        start(plan(rounds=6), workspace=workspace, name="one", task=task, watchers=[Stop()])
    (coins,) = tmp_path.rglob("included.safetensors")
    before = coins.read_bytes()
    resume_run(workspace.find("one"), workspace=workspace, task=task)
    assert coins.read_bytes() == before and audit_run_clients("one", workspace).tests.steps == 6


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"client": {"noise_at": "party"}}, "noise_at = 'party'"),
        ({"client": {"adaptive": {"quantile": 0.5}}}, "adaptive clip"),
        ({"aggregation": {"secure": True}}, "aggregation.secure"),
        ({"federation": {"rounds": 2, "sampling": {"kind": "fixed-size", "size": 5}}}, "fixed size"),
        ({"canaries": 3}, "canaries = 3"),
    ],
)  # fmt: skip
def test_what_cannot_carry_them_is_refused_with_the_reason(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanRefused, match=message):
        resolve(plan(**changes), Many(public="made up").parties(), 2)


def test_a_run_without_them_has_no_such_audit(tmp_path: Path) -> None:
    with pytest.raises(QuietsumError, match="carried no canary clients"):
        run(tmp_path, canaries=0, rounds=1)
