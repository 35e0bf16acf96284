"""Canaries at the parties of a federation: the update keeps its law, faulty parties are contradicted, and what is kept
stays with its holder."""

from __future__ import annotations

import json
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import quietsum.learning.descent as descent
from quietsum import report
from quietsum.audit import CanaryClaim, Conclusion, audit_run, judge_canaries, judge_parties
from quietsum.errors import CorruptState, InvalidParameter, PlanRefused, QuietsumError
from quietsum.federation import LocalFederation
from quietsum.learning import Batch, CanaryRound, canaries_of, cross_entropy
from quietsum.learning.noise.gradient_noise import TorchNoise
from quietsum.mechanisms import ClippedSum, Mode, system_randomness
from quietsum.plan import LocalOrders, Plan, resolve
from quietsum.report import check_report, render, sign_report
from quietsum.runs import Workspace
from quietsum.runs.run import resume_run, start
from quietsum.sampling import Everyone, Poisson
from quietsum.tasks import AnyTask, Metrics, Settings, Task, as_task
from quietsum.tasks.federated import FederatedTorch
from scenes import invoke, quietsum
from tiny import TinyTask, tiny_plan

COUNT = 200


class Clouds:
    """Two clouds of made-up points, half of them at each of two sites."""

    name, title, size, public, loss = "clouds", "two clouds", 400, "made up", staticmethod(cross_entropy)
    settings = Settings(learning_rate=0.5, optimizer="sgd", training={})

    def model(self) -> nn.Module:
        return nn.Linear(2, 2)

    def sites(self) -> list[str]:
        return ["north", "south"] * 200

    def records(self) -> Batch:
        labels = torch.arange(400) % 2
        return torch.randn(400, 2, generator=torch.Generator().manual_seed(0)) + 3.0 * labels[:, None], labels

    def evaluate(self, model: nn.Module) -> Metrics:
        return Metrics(values={"accuracy": 0.5}, on="nothing at all")


def task_of(kind: str) -> Task:
    return as_task(TinyTask(public="made up")) if kind == "numpy" else FederatedTorch(Clouds())


def plan(**changes: Mapping[str, object]) -> Plan:
    """Three hundred steps at two sites: 200 canaries each, half of them in, at rate 0.2 and σ 2."""
    values: dict[str, Mapping[str, object]] = {
        "federation": {"rounds": 30},
        "training": {"sample_rate": 0.2, "local_steps": 5, "canaries": COUNT},
        "privacy": {"record": {"noise_multiplier": 2.0, "delta": 1e-3, "max_grad_norm": 0.5}},
    }
    for table, keys in changes.items():
        values[table] = {**values.get(table, {}), **keys}
    return tiny_plan(**values)


def run(place: Path, kind: str = "numpy", name: str = "one", **changes: Mapping[str, object]) -> Workspace:
    workspace = Workspace.at(place)
    start(plan(**changes), workspace=workspace, name=name, task=task_of(kind))
    return workspace


KINDS = ["numpy", "torch"]


# ------------------------------------------------------------------------------------------ what they leave alone


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", [Mode.FAST, Mode.SECURE])
def test_with_next_to_no_noise_the_update_is_that_of_a_party_without_canaries(kind: str, mode: Mode) -> None:
    task = task_of(kind)
    orders = LocalOrders(
        steps=3, sampling=Everyone(), expected_batch=12.0, learning_rate=0.5, momentum=0.5, proximal=0.1,
        mechanism=ClippedSum(max_norm=0.5, noise_multiplier=1e-6, mode=mode), canaries=50,
    )  # fmt: skip
    carried = CanaryRound(np.arange(50) % 3 == 0, number=1, attempt=1)
    rng, params = system_randomness(), task.initial()
    alone = task.train("north", params.copy(), orders, rng)
    beside = task.train_with_canaries("north", params.copy(), orders, rng, carried)
    assert beside.shape == alone.shape and np.abs(alone).max() > 1e-2
    np.testing.assert_allclose(beside, alone, rtol=0, atol=2e-5)
    kept = carried.tensors()
    assert np.allclose(kept["released"], np.arange(50) % 3 == 0, atol=1e-3)  # 1 in the place of those that are in
    assert carried.more == 1.0 if mode is Mode.FAST or kind == "numpy" else carried.more >= 1.0


def test_canaries_change_neither_the_charges_nor_what_older_plans_are_known_by(tmp_path: Path) -> None:
    task = task_of("numpy")
    without = plan(training={"canaries": 0})
    assert "canaries" not in without.to_dict()["training"] and Plan.from_dict(without.to_dict()) == without
    charges = [
        resolve(one, task.parties(), task.dimension).all_charges() for one in (without, plan(training={"canaries": 16}))
    ]
    assert charges[0] == charges[1]
    first = Plan.from_dict({name: table for name, table in tiny_plan().to_dict().items()})
    assert first.digest == tiny_plan().digest


# ------------------------------------------------------------------------------------------ correct and faulty parties


@pytest.mark.parametrize("kind", KINDS)
def test_correct_parties_are_consistent_and_the_report_says_so_and_can_be_checked(kind: str, tmp_path: Path) -> None:
    workspace = run(tmp_path, kind)
    folder = workspace.find("one")
    values = report.build(folder, workspace)
    assert values["audit"]["made"] is False and "though the run carried canaries" in values["audit"]["text"]
    found = audit_run("one", workspace)
    assert found.conclusion is Conclusion.CONSISTENT, found.sentence
    assert (found.parties, found.canaries, found.steps) == (2, 2 * COUNT, 300) and "at 2 parties" in found.sentence
    assert found.claim.epsilon is not None and 0 <= found.lower_bound <= found.claim.epsilon
    values = sign_report(report.build(folder, workspace), workspace)
    assert values["audit"]["text"].startswith(found.sentence)
    assert "audit.json" in [one["file"] for one in values["artefacts"]]
    assert dict(check_report(render(values)).checked)["audit"].startswith("its conclusion, consistent")
    assert not {"north", "south"} & set(re.findall(r"\w+", json.dumps(values["audit"])))  # rule 5


def halve_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    release, add = ClippedSum.release, TorchNoise.add

    def half(self: ClippedSum, total: Any, rng: Any) -> Any:
        exact = total * (self.grid_unit if self.mode is Mode.SECURE else 1.0)
        return (release(self, total, rng) + exact) / 2

    def half_of(self: TorchNoise, sums: Any) -> tuple[Tensor, ...]:
        return tuple((noisy + part) / 2 for noisy, part in zip(add(self, sums), sums, strict=True))

    monkeypatch.setattr(ClippedSum, "release", half)
    monkeypatch.setattr(TorchNoise, "add", half_of)


def clip_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sum of a batch is clipped and not each gradient; numpy's loop alone."""

    def whole(task: Any, params: Any, features: Any, labels: Any, grid: ClippedSum) -> Any:
        return grid.sum(grid.bound(task.gradients(params, features, labels).sum(axis=0)))

    monkeypatch.setattr(descent, "_sum_bounded", whole)


def shuffle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each local epoch takes every row once."""
    rng = np.random.default_rng()
    left: dict[int, Any] = {}

    def draw(self: Poisson, population: int, source: Any) -> Any:
        if not len(left.get(population, ())):
            left[population] = rng.permutation(population)
        size = -(-population // round(1 / self.rate))
        batch, left[population] = left[population][:size], left[population][size:]
        return np.sort(batch)

    monkeypatch.setattr(Poisson, "draw", draw)


FAULTS = {
    ("half noise", "numpy"): (halve_noise, "noise"), ("half noise", "torch"): (halve_noise, "noise"),
    ("batch clip", "numpy"): (clip_batch, "contribution"), ("shuffled", "numpy"): (shuffle, "once an epoch"),
    ("shuffled", "torch"): (shuffle, "once an epoch"),
}  # fmt: skip


@pytest.mark.parametrize(("fault", "kind"), FAULTS)
@pytest.mark.some(2)
def test_faulty_parties_are_contradicted_by_the_test_that_is_made_for_it(
    fault: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, test = FAULTS[fault, kind]
    make(monkeypatch)
    monkeypatch.setattr("quietsum.learning.clients.local.refuse_unsound", lambda *_: None)  # which would have seen it
    run(tmp_path, kind)
    found = audit_run("one", Workspace.at(tmp_path))
    assert found.conclusion is Conclusion.CONTRADICTED
    assert test in [one.name for one in found.evidence if one.contradicts]
    assert quietsum("audit", "one", "--workspace", tmp_path, code=5).stdout.startswith("The audit contradicts")
    values = report.build(Workspace.at(tmp_path).find("one"), Workspace.at(tmp_path))
    assert values["warnings"][0] == values["audit"]["text"]


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_no_correct_federation_is_accused_in_twenty_runs(kind: str, tmp_path: Path) -> None:
    """A repetition could show a law of several parties together that is not quite the claimed one."""
    for number in range(20):
        run(tmp_path, kind, f"run-{number}")
        assert audit_run(f"run-{number}", Workspace.at(tmp_path)).conclusion is Conclusion.CONSISTENT


def test_the_noise_of_each_stage_is_claimed_for_its_own_rounds(tmp_path: Path) -> None:
    stages = {"schedule": [{"rounds": 10, "noise": 1.0}, {"rounds": 20, "noise": 1.7, "clip": 0.5}]}
    values = {**plan().to_dict(), **stages}
    workspace = Workspace.at(tmp_path)
    start(Plan.from_dict(values), workspace=workspace, name="one", task=task_of("numpy"))
    assert audit_run("one", workspace).conclusion is Conclusion.CONSISTENT


# ------------------------------------------------------------------------------------------------- together


def record(seed: int, *, rate: float, canaries: int = 40, steps: int = 60) -> Any:
    from audit.test_evidence import simulate

    return simulate(seed, rate=rate, canaries=canaries, steps=steps)


def test_one_record_alone_and_as_a_federation_of_one_are_the_same() -> None:
    claim = CanaryClaim(noise=2.0, rate=0.1, delta=1e-5, epsilon=3.0)
    assert judge_parties([(record(1, rate=0.1), claim)]) == judge_canaries(record(1, rate=0.1), claim)


def test_parties_of_unlike_rates_are_accused_as_rarely_as_one() -> None:
    """Small p-values of each test are as rare as they say, also where a test is made for each rate."""
    from scipy import stats

    runs, values = 200, {}  # type: ignore[var-annotated]
    for seed in range(runs):
        parts = [
            (record(10 * seed + place, rate=rate, canaries=12 + place, steps=40), rate)
            for place, rate in enumerate((0.1, 0.25, 0.1))
        ]
        claimed = [(one, CanaryClaim(noise=2.0, rate=rate, delta=1e-5)) for one, rate in parts]
        for one in judge_parties(claimed).evidence:
            values.setdefault(one.name, []).append(one.p)
    for name, found in values.items():
        for level in (0.3, 0.05):
            count = sum(p <= level for p in found)
            assert stats.binom.sf(count - 1, runs, level) > 1e-6, (name, level, count)


def test_two_parties_with_too_little_each_can_have_enough_together() -> None:
    claim = CanaryClaim(noise=2.0, rate=0.1, delta=1e-5)
    alone = judge_canaries(record(3, rate=0.1, canaries=40, steps=100), claim)
    together = judge_parties([(record(seed, rate=0.1, canaries=40, steps=100), claim) for seed in range(8)])
    assert alone.conclusion is Conclusion.INCONCLUSIVE and together.conclusion is Conclusion.CONSISTENT


# ------------------------------------------------------------------------------------ what is kept, and for whom


def test_the_record_is_for_its_owner_alone_and_an_altered_one_is_refused(tmp_path: Path) -> None:
    workspace = run(tmp_path)
    folder = workspace.runs / "one" / "canaries"
    files = sorted(folder.rglob("*.safetensors"))
    assert len(files) == 2 * 31 and {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
    audit_run("one", workspace)
    content = files[5].read_bytes()
    files[5].write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(CorruptState, match="is not what was written"):
        audit_run("one", workspace)
    with pytest.raises(CorruptState, match="make it again: quietsum audit one"):
        report.build(workspace.find("one"), workspace)
    files[5].write_bytes(content)
    north, south = sorted(folder.iterdir())
    (south / files[5].name).write_bytes((north / files[5].name).read_bytes())
    with pytest.raises(CorruptState, match="the record of another run"):
        audit_run("one", workspace)


def test_a_run_that_was_broken_off_goes_on_with_the_same_coins(tmp_path: Path) -> None:
    class Stop:
        def saw(self, event: Any) -> None:
            if event.kind == "round-finished" and event.round == 12:
                raise KeyboardInterrupt

    workspace = Workspace.at(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        start(plan(), workspace=workspace, name="one", task=task_of("numpy"), watchers=[Stop()])
    coins = [path.read_bytes() for path in sorted((workspace.runs / "one").rglob("included.safetensors"))]
    resume_run(workspace.find("one"), workspace=workspace, task=task_of("numpy"))
    assert coins == [path.read_bytes() for path in sorted((workspace.runs / "one").rglob("included.safetensors"))]
    found = audit_run("one", workspace)
    assert found.steps == 300 and found.conclusion is Conclusion.CONSISTENT


def test_a_record_that_cannot_be_written_costs_no_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from quietsum.learning import PartyCanaries

    def full(self: PartyCanaries, made: CanaryRound) -> None:
        raise OSError(28, "no space left on device")

    monkeypatch.setattr(PartyCanaries, "keep", full)
    workspace = run(tmp_path)
    found = audit_run("one", workspace)
    assert workspace.find("one").model.is_file() and found.steps == 0
    assert found.conclusion is Conclusion.INCONCLUSIVE


# ------------------------------------------------------------------------------------------------ what is refused


def test_runs_without_canaries_are_refused_with_how_to_get_them(tmp_path: Path) -> None:
    workspace = run(tmp_path, training={"canaries": 0})
    with pytest.raises(QuietsumError, match=r"carried no canaries.*training.canaries = 100 in run.toml"):
        audit_run("one", workspace)
    assert invoke("audit", "one", "--workspace", tmp_path).exit_code == 2
    with pytest.raises(QuietsumError, match="is no run of"):
        audit_run("other", workspace)


class Own:
    """A task that trains by code of its own."""

    name, title, dimension = "own", "its own", 2

    def __init__(self) -> None:
        self._tiny = TinyTask(public="made up")
        self.parties, self.initial, self.evaluate = self._tiny.parties, self._tiny.initial, self._tiny.evaluate

    def train(self, party: str, params: Any, orders: LocalOrders, rng: Any) -> Any:
        return np.zeros(2)


def test_who_cannot_carry_canaries_is_refused_before_anything_is_charged(tmp_path: Path) -> None:
    workspace = Workspace.at(tmp_path)
    own: AnyTask = Own()
    with pytest.raises(InvalidParameter, match="canaries cannot go through its steps"):
        start(plan(), workspace=workspace, name="own", task=own)
    task = task_of("numpy")
    resolved = resolve(plan(), task.parties(), task.dimension)
    with pytest.raises(PlanRefused, match="this federation was made without canaries"):
        start(plan(), workspace=workspace, task=task, federation=LocalFederation.of(task, resolved))
    with pytest.raises(InvalidParameter, match="leave --workers out"):
        start(plan(), workspace=workspace, name="many", task=task, workers=2)
    assert canaries_of(resolve(plan(training={"canaries": 0}), task.parties(), 2), tmp_path, "x") is None
