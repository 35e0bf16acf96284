"""Canaries in real trainings: what they leave alone, what is kept, and that faulty trainers are contradicted."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from audit.faulty import BATCH, FAULTS, ROWS, faulty_trainers
from quietsum import failpoints
from quietsum.audit import CanaryClaim, Conclusion, audit_training, judge_canaries, read_audit
from quietsum.errors import CorruptState, InvalidParameter, PlanRefused, QuietsumError
from quietsum.learning import Batch, Canaries, PrivacyConfig, PrivateTrainer, choose_canaries, plan_training
from quietsum.learning.canaries.carrying import Carrier, count_canaries, count_epochs
from quietsum.learning.step import build_step, cross_entropy
from quietsum.ledger import Ledger
from quietsum.mechanisms import RandomSource, randomness_for_tests
from quietsum.runs import Workspace

COUNT = 500


@pytest.fixture(autouse=True)
def allow_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUIETSUM_TEST_SEEDS", "1")


def records(count: int = ROWS) -> Batch:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(count) % 2
    return torch.randn(count, 3, generator=generator) + 2.0 * labels[:, None], labels


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(3, 2)


def config(**values: Any) -> PrivacyConfig:
    plain = {"noise_multiplier": 2.0, "epochs": 20, "batch_size": BATCH, "delta": 1e-5, "noise": "fast"}
    return PrivacyConfig(**{**plain, **values})


def train(
    count: int = COUNT, data: Batch | None = None, rng: RandomSource | None = None, **values: Any
) -> PrivateTrainer:
    trainer = PrivateTrainer(network(), config(**values), audit=Canaries(count=count), selfcheck=False, rng=rng)
    trainer.train(records() if data is None else data, learning_rate=0.5, optimizer="sgd", progress=False)
    return trainer


def judge(trainer: PrivateTrainer, more: float = 1.0) -> Any:
    record = trainer.canaries
    assert record is not None
    return judge_canaries(record, CanaryClaim(noise=2.0 * more, rate=BATCH / ROWS, delta=1e-5, epsilon=3.0))


# ------------------------------------------------------------------------------------------ what they leave alone


@pytest.mark.parametrize("engine", ["bookkeeping", "vmap", "naive", "opacus", "opacus-ghost"])
@pytest.mark.parametrize("clipping", ["flat", "automatic"])
def test_a_canary_adds_the_clip_bound_in_its_own_coordinate_and_nothing_elsewhere(engine: str, clipping: str) -> None:
    made = config(engine=engine, clipping=clipping, max_grad_norm=0.7)
    plan = plan_training(made, size=ROWS)
    model, (inputs, labels) = network(), records(6)
    carrier = Carrier(Canaries(count=16), model, cross_entropy, plan, rng=randomness_for_tests(3))
    marks = torch.tensor([0, 4, 0, 0, 9, 0])
    carried = build_step(carrier.model, carrier.loss, made, plan).deterministic((inputs, labels, marks))
    alone = build_step(model, cross_entropy, made, plan).deterministic((inputs[marks == 0], labels[marks == 0]))
    for with_them, without in zip(carried[:-1], alone, strict=True):
        assert torch.allclose(with_them, without, rtol=1e-5, atol=1e-7)
    expected = torch.zeros(17)
    expected[[4, 9]] = 0.7
    assert torch.allclose(carried[-1].flatten(), expected, rtol=1e-5, atol=0)
    carrier.loss.riding = False  # an epoch without them
    step = build_step(carrier.model, carrier.loss, made, plan)
    *empty, table = step.deterministic((inputs[marks == 0], labels[marks == 0]))
    assert not table.any()
    for left, right in zip(empty, alone, strict=True):
        assert torch.allclose(left, right, rtol=1e-5, atol=1e-7)
    assert len(step.gradient((inputs, labels), released=-1)) == len(alone)


def test_charges_noise_and_model_are_those_of_a_training_without_canaries(tmp_path: Path) -> None:
    found = []
    for name, audit in (("plain", None), ("audited", Canaries(count=100))):
        made = config(noise_multiplier=None, epsilon=2.0, epochs=3, noise="secure")
        trainer = PrivateTrainer(
            network(), made, audit=audit, selfcheck=False, workspace=tmp_path, run=name, dataset=name, public="made up"
        )
        trainer.train(records(), learning_rate=0.5, progress=False)
        with Ledger.open(tmp_path / "ledger.db", read_only=True) as ledger:
            entry = ledger.run_entry(name)
        charges = [{key: value for key, value in one.items() if key != "dataset"} for one in entry.body["planned"]]
        found.append((trainer.guarantee(), trainer.plan, charges, list(trainer.model.state_dict())))
        trainer.close()
    assert found[0] == found[1]
    header = (tmp_path / "training" / "audited" / "model.safetensors").read_bytes()
    assert b"canaries" not in header


def test_classes_are_counted_and_weighed_without_canaries() -> None:
    """Chosen by the plan, the first steps count classes; canaries have made-up labels."""
    inputs, _ = records()
    labels = (torch.arange(ROWS) % 10 == 0).long()
    trainer = PrivateTrainer(
        network(), config(noise_multiplier=0.3, epochs=10), audit=Canaries(count=4000), selfcheck=False
    )
    trainer.train((inputs, labels), progress=False)
    assert trainer._balance is not None and trainer._balance.weights is not None
    shares = trainer._balance.counts[:2] / trainer._balance.counts[:2].sum()
    assert shares.tolist() == pytest.approx([0.9, 0.1], abs=0.05)
    record = trainer.canaries
    assert record is not None and len(record.steps) > 50
    assert record.steps.min() >= 10  # ten of the 200 steps counted classes
    part = (record.released - record.drawn)[record.drawn].mean()
    assert abs(part) < 0.01  # weights of classes do not touch a canary


@pytest.mark.parametrize("values", [
    {"clipping": "per-layer"}, {"clipping": "adaptive"}, {"noise_type": "laplace"}, {"noise_multiplier": 5000.0},
])  # fmt: skip
def test_what_canaries_cannot_test_is_refused_with_the_reason(values: dict[str, Any]) -> None:
    with pytest.raises(PlanRefused, match=r"cannot carry canaries, since .*; leave the audit out"):
        train(**values)


def test_canaries_of_a_long_training_ride_in_some_epochs_and_still_find_what_they_must() -> None:
    plan = plan_training(config(epochs=100), size=ROWS)
    assert count_epochs(COUNT, plan) == 25 and count_epochs(COUNT, plan_training(config(), size=ROWS)) == 20
    assert count_epochs(COUNT, plan_training(config(epochs=100, noise_multiplier=4.0), size=ROWS)) == 100
    assert count_epochs(100, plan_training(config(epochs=1000, batch_size=4), size=ROWS)) > 500  # few in a batch
    trainer = train(epochs=100, rng=randomness_for_tests(5))
    record = trainer.canaries
    assert record is not None and len(record.steps) == 25 * 20 and record.released.std() > 0
    epochs = np.unique(record.steps // 20)
    assert len(epochs) == 25 and (record.steps[:20] == 20 * epochs[0] + np.arange(20)).all()  # whole ones
    assert (epochs != np.arange(25)).any() and judge(trainer).conclusion is Conclusion.CONSISTENT


def test_more_canaries_ride_in_fewer_epochs_where_their_number_is_not_stated() -> None:
    many = plan_training(config(epochs=20, batch_size=256), size=20_000)
    count = count_canaries(Canaries(), many)
    assert 2000 < count <= 4000 and count_epochs(count, many) == 4 < count_epochs(2000, many)
    assert count_epochs(count - 1, many) == 5  # and no more than it takes
    short = plan_training(config(epochs=2, batch_size=256), size=20_000)
    assert count_canaries(Canaries(), short) == 2000, "who rides throughout would only cost more rows"
    assert count_canaries(Canaries(count=300), many) == 300


def test_canaries_ride_in_pairs_of_epochs_and_elsewhere_the_draw_is_of_records_alone() -> None:
    plan = plan_training(config(epochs=20, batch_size=256), size=20_000)
    seen = set()
    for _ in range(60):
        carrier = Carrier(Canaries(), network(), cross_entropy, plan)
        length = round(1 / plan.rate)
        riding = [epoch for epoch in range(20) if carrier.rides_in(epoch * length, length)]
        assert len(riding) == 4 and riding[0] % 2 == 0 and riding[1] == riding[0] + 1 and riding[3] == riding[2] + 1
        assert carrier.rides_in(0, 20 * length) and not carrier.rides_in((riding[0] - 1) * length, length - 1)
        seen.update(riding)
    assert seen == set(range(20)), "every epoch may be one of them"


@pytest.mark.parametrize("name", ["half noise", "batch clip", "shuffled batches"])
def test_a_long_faulty_training_is_contradicted_though_canaries_ride_in_some_epochs(name: str) -> None:
    fault, test = FAULTS[name]
    with faulty_trainers(fault):
        found = judge(train(epochs=100))
    assert test in [one.name for one in found.evidence if one.contradicts]


def test_the_number_of_canaries_is_about_a_twentieth_more_rows() -> None:
    assert choose_canaries(Canaries(), 569) == 56 and choose_canaries(Canaries(), 10) == 16
    assert choose_canaries(Canaries(count=300), 569) == 300
    assert choose_canaries(Canaries(), 100_000) == 2000
    with pytest.raises(InvalidParameter, match="canaries"):
        Canaries(count=3)
    with pytest.raises(InvalidParameter, match="pass audit=Canaries"):
        PrivateTrainer(network(), config(), audit=500)  # type: ignore[arg-type]


# -------------------------------------------------------------------------------------------- faulty trainers


@pytest.mark.parametrize("name", FAULTS)
def test_a_faulty_trainer_is_contradicted_by_the_test_that_is_made_for_it(name: str) -> None:
    fault, test = FAULTS[name]
    with faulty_trainers(fault):
        found = judge(train())
    assert found.conclusion is Conclusion.CONTRADICTED and found.sentence.startswith("The audit contradicts the claim")
    assert test in [one.name for one in found.evidence if one.contradicts]


def test_the_control_a_correct_trainer_is_consistent() -> None:
    trainer = train()
    found = judge(trainer)
    record = trainer.canaries
    assert record is not None and record.drawn.sum() * 2 >= 0.9 * COUNT * 20
    assert found.conclusion is Conclusion.CONSISTENT
    assert all(one.p > 1e-7 for one in found.evidence)
    assert 0 <= found.lower_bound <= trainer.guarantee().epsilon


def test_too_few_canaries_are_inconclusive_and_never_passed() -> None:
    found = judge(train(count=16, epochs=1))
    assert found.conclusion is Conclusion.INCONCLUSIVE and "inconclusive" in found.sentence


@pytest.mark.long
@pytest.mark.parametrize("name", ["half noise", "batch clip", "shuffled batches"])
def test_each_fault_is_contradicted_in_most_seeds(name: str) -> None:
    """σ = 2 and 500 canaries × 400 steps × rate 0.05 = 10⁴. A repetition could show a fault that hides by chance."""
    with faulty_trainers(FAULTS[name][0]):
        found = [judge(train(rng=randomness_for_tests(seed))).conclusion for seed in range(20)]
    assert found.count(Conclusion.CONTRADICTED) >= 18


@pytest.mark.long
def test_no_correct_trainer_is_accused_in_twenty_seeds() -> None:
    """A repetition could show a law that is not quite the claimed one."""
    found = [judge(train(rng=randomness_for_tests(seed))).conclusion for seed in range(20)]
    assert found == [Conclusion.CONSISTENT] * 20


# -------------------------------------------------------------------------------------- in a workspace, and killed


def begin(place: Path, run: str = "one", *, resume: bool = False, count: int = 200) -> PrivateTrainer:
    trainer = PrivateTrainer(
        network(), config(noise="secure"), audit=Canaries(count=count), selfcheck=False, workspace=place, run=run,
        public="made up",
    )  # fmt: skip
    try:
        trainer.train(records(), learning_rate=0.5, progress=False, resume=resume)
    finally:
        trainer.close()
    return trainer


def test_a_training_in_a_workspace_is_audited_against_the_plan_in_its_ledger(tmp_path: Path) -> None:
    begin(tmp_path)
    found = audit_training("one", Workspace.at(tmp_path))
    assert found.conclusion is Conclusion.CONSISTENT and found.steps == 400
    folder = tmp_path / "training" / "one"
    values = read_audit(folder, "one")
    assert values is not None and values["sentence"] == found.sentence and len(values["record"]) == 64
    for path in (folder / "canaries").iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    (folder / "audit.json").write_text(json.dumps({**values, "conclusion": "passed"}))
    with pytest.raises(CorruptState, match="make it again: quietsum audit one"):
        read_audit(folder, "one")


def test_steps_that_a_kill_has_lost_are_absent_and_the_others_still_count(tmp_path: Path) -> None:
    class Killed(BaseException):
        pass

    seen = 0

    def kill(place: str) -> None:
        nonlocal seen
        seen += place == "train:step"
        if seen == 130:
            raise Killed

    failpoints.install(kill)
    try:
        with pytest.raises(Killed):
            begin(tmp_path)
    finally:
        failpoints.install(None)
    included = begin(tmp_path, resume=True).canaries
    found = audit_training("one", Workspace.at(tmp_path))
    assert included is not None and len(included.steps) == 380 and found.steps == 380
    assert found.conclusion is Conclusion.CONSISTENT
    with pytest.raises(QuietsumError):
        begin(tmp_path, resume=True, count=300)  # another plan


def test_a_record_that_was_altered_or_belongs_to_another_run_is_refused(tmp_path: Path) -> None:
    begin(tmp_path)
    folder = tmp_path / "training" / "one" / "canaries"
    path = sorted(folder.glob("steps-*"))[3]
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(CorruptState, match="is not what was written"):
        audit_training("one", Workspace.at(tmp_path))
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(CorruptState, match="cannot be read"):
        audit_training("one", Workspace.at(tmp_path))
    path.write_bytes(content)
    begin(tmp_path, run="two")
    (tmp_path / "training" / "two" / "canaries" / path.name).write_bytes(content)
    with pytest.raises(CorruptState, match="the record of another run"):
        audit_training("two", Workspace.at(tmp_path))


def test_a_run_without_canaries_is_refused_with_how_to_get_them(tmp_path: Path) -> None:
    with pytest.raises(QuietsumError, match="so there is no run to audit"):
        audit_training("one", Workspace.at(tmp_path))
    trainer = PrivateTrainer(network(), config(epochs=1), selfcheck=False, workspace=tmp_path, run="bare", public="x")
    trainer.train(records(), learning_rate=0.5, progress=False)
    trainer.close()
    with pytest.raises(QuietsumError, match=r"carried no canaries.*quietsum train … --audit 500"):
        audit_training("bare", Workspace.at(tmp_path))
    with pytest.raises(QuietsumError, match="known: bare"):
        audit_training("other", Workspace.at(tmp_path))
