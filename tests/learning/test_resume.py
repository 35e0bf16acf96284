"""Killed at any place, a training run goes on: the ledger is never below what ran, and no noise is drawn twice."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from quietsum import failpoints
from quietsum.errors import BudgetExhausted, CorruptState, InvalidParameter, LedgerBroken, PlanRefused, QuietsumError
from quietsum.learning.config import PrivacyConfig
from quietsum.learning.saving import read_checkpoint
from quietsum.learning.schedules import Growing
from quietsum.learning.step import PrivateStep
from quietsum.learning.trainer import PrivateTrainer
from quietsum.ledger import Ledger
from quietsum.ledger.history import RunHistory

ROWS, EPOCHS, STEPS = 100, 4, 5  # 5 steps an epoch


class Killed(BaseException):
    """What a kill looks like from inside."""


@pytest.fixture(autouse=True)
def no_hook_stays() -> Iterator[None]:
    yield
    failpoints.install(None)


def records() -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(ROWS) % 2
    return torch.randn(ROWS, 3, generator=generator) + 2.0 * labels[:, None], labels


def trainer(folder: Path, **values: Any) -> PrivateTrainer:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    config = PrivacyConfig(**{"epsilon": 4.0, "epochs": EPOCHS, "batch_size": 20, "ema_decay": 0.9, **values})
    return PrivateTrainer(model, config, workspace=folder, run="first", public="made up for a test", selfcheck=False)


def charged(folder: Path) -> int:
    """Steps in the ledger."""
    with Ledger.open(folder / "ledger.db", read_only=True) as ledger:
        paid = RunHistory(ledger, "first").read().paid
        return sum(sum(events.values()) for events in paid.values())


class Watch:
    """Kills at the n-th place, and counts the steps that really ran."""

    def __init__(self, at: int) -> None:
        self.at, self.places, self.steps = at, 0, 0

    def __call__(self, place: str) -> None:
        if not place.startswith("train:"):
            return
        self.places += 1
        self.steps += place == "train:step"
        if self.places == self.at:
            raise Killed


def killed_run(folder: Path, at: int, **values: Any) -> tuple[int, bool]:
    """Steps that ran before the kill, and whether it happened at all."""
    watch = Watch(at)
    failpoints.install(watch)
    one = trainer(folder, **values)
    try:
        one.train(records(), optimizer="momentum")
        return watch.steps, False
    except Killed:
        return watch.steps, True
    finally:
        failpoints.install(None)
        one.close()


def places() -> int:
    """Places in a whole run: reserve, steps, commit and checkpoint an epoch, then the model."""
    return EPOCHS * (STEPS + 3) + 1


@pytest.mark.parametrize("at", range(1, EPOCHS * (STEPS + 3) + 2))
@pytest.mark.some(8)
def test_killed_at_any_place_it_resumes_within_its_plan_and_the_ledger_shows_at_least_what_ran(
    tmp_path: Path, at: int
) -> None:
    ran, was = killed_run(tmp_path, at)
    assert was and charged(tmp_path) >= ran
    before = charged(tmp_path)
    saved = read_checkpoint(tmp_path / "training/first/checkpoint.safetensors")
    checkpointed = 0 if saved is None else int(saved.about["charged_steps"])
    again = trainer(tmp_path)
    watch = Watch(-1)
    failpoints.install(watch)
    model = tmp_path / "training/first/model.safetensors"
    if model.exists():  # killed after the end
        assert at == places()
        with pytest.raises(BudgetExhausted, match="keep the model"):
            again.train(records(), optimizer="momentum", resume=True)
    else:
        history = again.train(records(), optimizer="momentum", resume=True)
        assert history.stopped == "finished" and history.epochs and model.exists()
        assert history.lost_steps == before - checkpointed
        assert any("lost in a kill" in told for told in history.guarantee.warnings) is (history.lost_steps > 0)
        assert again.load(model) == history.guarantee
    again.close()
    assert charged(tmp_path) == EPOCHS * STEPS >= ran + watch.steps
    assert again.get_privacy_spent()[0] <= again.guarantee().epsilon <= 4.0
    with Ledger.open(tmp_path / "ledger.db", read_only=True) as ledger:
        ledger.verify()
        assert ledger.spending("first")[-1].epsilon >= again.get_privacy_spent()[0] * (1 - 1e-9)


def test_the_control_there_are_no_more_places_than_that(tmp_path: Path) -> None:
    _, was = killed_run(tmp_path, places() + 1)
    assert not was


def test_a_resumed_run_goes_on_with_the_weights_the_velocity_and_the_average_of_its_checkpoint(tmp_path: Path) -> None:
    killed_run(tmp_path, 2 * (STEPS + 4) + 3)  # in the third epoch
    saved = read_checkpoint(tmp_path / "training/first/checkpoint.safetensors")
    assert saved is not None and saved.about["charged_steps"] == 2 * STEPS
    again = trainer(tmp_path)
    seen: list[dict[str, torch.Tensor]] = []

    def look(place: str) -> None:
        if place == "train:reserved" and not seen:
            seen.append({name: value.clone() for name, value in again.model.state_dict().items()})
            assert again._optimizer is not None and again._averages is not None
            assert torch.equal(again._optimizer.state()["velocity.0"], saved.part("optimizer")["velocity.0"])
            assert torch.equal(again._averages.state()["mean.0"], saved.part("average")["mean.0"])

    failpoints.install(look)
    again.train(records(), optimizer="momentum", resume=True)
    again.close()
    for name, value in saved.part("model").items():
        assert torch.equal(seen[0][name], value)


def test_no_draw_and_no_noise_is_repeated_after_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same weights are trained on again after a kill; were the noise the same, it could be subtracted."""
    noises: list[np.ndarray] = []
    batches: list[bytes] = []
    honest_sample, honest_gradient = PrivateStep.sample, PrivateStep.gradient

    def sample(self: PrivateStep, population: int) -> np.ndarray:
        drawn = honest_sample(self, population)
        batches.append(drawn.tobytes())
        return drawn

    def gradient(self: PrivateStep, batch: Any) -> Any:
        exact = self.deterministic(batch)
        released = honest_gradient(self, batch)
        both = zip(released, exact, strict=True)
        noises.append(torch.cat([(r * self.expected_batch - e).flatten() for r, e in both]).numpy())
        return released

    monkeypatch.setattr(PrivateStep, "sample", sample)
    monkeypatch.setattr(PrivateStep, "gradient", gradient)
    torch.manual_seed(0)
    killed_run(tmp_path, 3)
    first = len(noises)
    torch.manual_seed(0)
    again = trainer(tmp_path)
    again.train(records(), optimizer="momentum", resume=True)
    again.close()
    assert first == 2 and len(noises) == first + (EPOCHS - 1) * STEPS
    values = np.concatenate(noises)
    assert len(np.unique(values)) == values.size
    assert len(set(batches)) == len(batches)


def test_no_file_of_a_run_holds_the_state_of_a_generator(tmp_path: Path) -> None:
    one = trainer(tmp_path)
    one.train(records())
    one.close()
    for path in (tmp_path / "training/first").glob("*.safetensors"):
        saved = read_checkpoint(path)
        assert saved is not None
        text = " ".join([*saved.tensors, *map(str, saved.about)])
        assert not any(word in text for word in ("rng", "seed", "generator", "state"))


def test_adaptive_and_scheduled_runs_resume_too(tmp_path: Path) -> None:
    runs: dict[str, dict[str, Any]] = {
        "adaptive": {"clipping": "adaptive", "count_noise": 4.0},
        "growing": {"schedule": Growing(noise=1.5, clip=0.5)},
        "secure": {"noise": "secure"},
    }
    for name, values in runs.items():
        killed_run(tmp_path / name, STEPS + 4 + 3, **values)
        again = trainer(tmp_path / name, **values)
        history = again.train(records(), optimizer="momentum", resume=True)
        again.close()
        assert history.guarantee.epsilon <= 4.0 and charged(tmp_path / name) == EPOCHS * STEPS


def test_a_real_kill_leaves_the_charge_in_the_ledger(tmp_path: Path) -> None:
    program = textwrap.dedent(
        f"""
        import os, sys
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        from pathlib import Path
        import test_resume as t
        from quietsum import failpoints
        watch = t.Watch(-1)
        def hook(place):
            watch(place)
            if watch.steps == 8:
                os.kill(os.getpid(), 9)
        failpoints.install(hook)
        t.trainer(Path({str(tmp_path)!r})).train(t.records(), optimizer="momentum")
        """
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == -9, done.stderr
    assert charged(tmp_path) == 2 * STEPS
    again = trainer(tmp_path)
    history = again.train(records(), optimizer="momentum", resume=True)
    again.close()
    assert history.guarantee.epsilon <= 4.0 and charged(tmp_path) == EPOCHS * STEPS


def test_killed_in_its_last_chunk_a_run_ends_with_the_average_of_its_last_checkpoint(tmp_path: Path) -> None:
    killed_run(tmp_path, (EPOCHS - 1) * (STEPS + 4) + 3)
    saved = read_checkpoint(tmp_path / "training/first/checkpoint.safetensors")
    assert saved is not None and charged(tmp_path) == EPOCHS * STEPS
    again = trainer(tmp_path)
    history = again.train(records(), records_of_others(), optimizer="momentum", resume=True)
    again.close()
    assert history.lost_steps == STEPS and "accuracy" in history.metrics
    assert history.guarantee.epsilon == again.plan.forecast.epsilon  # type: ignore[union-attr]
    for number, parameter in enumerate(again.model.parameters()):
        assert torch.equal(parameter, saved.part("average")[f"mean.{number}"])
    finished = trainer(tmp_path)
    with pytest.raises(BudgetExhausted, match="keep the model"):
        finished.train(records(), optimizer="momentum", resume=True)
    finished.close()


def records_of_others() -> tuple[torch.Tensor, ...]:
    return torch.randn(20, 3, generator=torch.Generator().manual_seed(1)), torch.arange(20) % 2


def test_a_run_of_one_chunk_that_was_killed_in_it_has_no_model_and_says_so(tmp_path: Path) -> None:
    killed_run(tmp_path, 3, epochs=1)
    again = trainer(tmp_path, epochs=1)
    with pytest.raises(BudgetExhausted, match="before its first checkpoint"):
        again.train(records(), optimizer="momentum", resume=True)
    again.close()


@pytest.mark.parametrize(
    "values",
    [{"ema_decay": None}, {"ema_decay": 0.8}, {"clipping": "automatic"}, {"noise": "fast"}, {"optimizer": "sgd"}],
)
@pytest.mark.some(3)
def test_what_a_checkpoint_depends_on_is_frozen_with_the_plan(tmp_path: Path, values: dict[str, Any]) -> None:
    killed_run(tmp_path, STEPS + 4 + 3)
    optimizer = values.pop("optimizer", "momentum")
    with pytest.raises(PlanRefused, match="another plan"):
        trainer(tmp_path, **values).train(records(), optimizer=optimizer, resume=True)
    control = trainer(tmp_path, engine="vmap", micro_batch=3)  # these change nothing but the time
    assert control.train(records(), optimizer="momentum", resume=True).stopped == "finished"
    control.close()


# ------------------------------------------------------------------------------------------ headers of saved files


def rewritten(path: Path, change: Any, *, sealed: bool = False) -> None:
    """The file with another header; ``sealed`` gives it the digest of what it then says."""
    from safetensors.torch import save

    from quietsum.learning import saving

    kept = read_checkpoint(path)
    assert kept is not None
    about = json.loads(json.dumps(kept.about))
    change(about)
    if sealed:
        about["digest"] = saving._digest(kept.tensors, about)
    path.write_bytes(save(kept.tensors, metadata={"quietsum": json.dumps(about)}))


def test_a_header_that_was_edited_is_refused(tmp_path: Path) -> None:
    killed_run(tmp_path, 2 * (STEPS + 4) + 3)
    path = tmp_path / "training/first/checkpoint.safetensors"
    original = path.read_bytes()
    rewritten(path, lambda about: about.update(charged_steps=STEPS))
    with pytest.raises(CorruptState, match="not what was saved"):
        trainer(tmp_path).train(records(), optimizer="momentum", resume=True)
    for change in (
        lambda about: about.pop("run"),
        lambda about: about.pop("head"),
        lambda about: about.update(head={}),
        lambda about: about.update(head=None),
        lambda about: about.pop("charged_steps"),
        lambda about: about.update(charged_steps=10**6),
        lambda about: about.update(clip="wide"),
    ):
        path.write_bytes(original)
        rewritten(path, change, sealed=True)
        with pytest.raises(CorruptState):
            trainer(tmp_path).train(records(), optimizer="momentum", resume=True)
    path.write_bytes(original)
    rewritten(path, lambda about: None, sealed=True)  # the control
    again = trainer(tmp_path)
    again.train(records(), optimizer="momentum", resume=True)
    again.close()
    model = tmp_path / "training/first/model.safetensors"
    rewritten(model, lambda about: about["guarantee"].update(epsilon=0.1))
    with pytest.raises(CorruptState, match="not what was saved"):
        again.load(model)


# ------------------------------------------------------------------------------------------------- what is refused


def test_a_run_is_not_begun_twice_and_a_resumed_one_keeps_its_plan(tmp_path: Path) -> None:
    killed_run(tmp_path, 12)
    with pytest.raises(InvalidParameter, match="begun already"):
        trainer(tmp_path).train(records())
    with pytest.raises(PlanRefused, match="another plan"):
        trainer(tmp_path, epsilon=5.0).train(records(), resume=True)
    with pytest.raises(InvalidParameter, match="not in the ledger"):
        trainer(tmp_path / "elsewhere").train(records(), resume=True)


def test_resume_without_a_ledger_is_refused() -> None:
    one = PrivateTrainer(nn.Linear(3, 2), PrivacyConfig(epsilon=4.0, batch_size=20))
    with pytest.raises(InvalidParameter, match="only a ledger remembers"):
        one.train(records(), resume=True)


def test_a_ledger_that_was_rolled_back_pays_for_nothing(tmp_path: Path) -> None:
    copy = tmp_path / "yesterday"
    killed_run(tmp_path / "now", 2)
    shutil.copytree(tmp_path / "now", copy)
    one = trainer(tmp_path / "now")
    one.train(records(), optimizer="momentum", resume=True)
    one.close()
    for path in (tmp_path / "now").glob("ledger.db*"):
        path.unlink()
    for path in copy.glob("ledger.db*"):
        shutil.copy(path, tmp_path / "now")
    with pytest.raises(LedgerBroken, match="rolled back"):
        trainer(tmp_path / "now").train(records(), optimizer="momentum", resume=True)


def test_a_deleted_ledger_is_not_begun_again_beside_finished_runs(tmp_path: Path) -> None:
    one = trainer(tmp_path)
    one.train(records())
    one.close()
    for path in tmp_path.glob("ledger.db*"):
        path.unlink()
    with pytest.raises(QuietsumError):
        trainer(tmp_path).train(records())
    assert not (tmp_path / "ledger.db").exists()


def test_a_damaged_checkpoint_is_refused(tmp_path: Path) -> None:
    killed_run(tmp_path, STEPS + 4 + 3)
    path = tmp_path / "training/first/checkpoint.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(CorruptState):
        trainer(tmp_path).train(records(), optimizer="momentum", resume=True)


def test_two_processes_do_not_train_one_run(tmp_path: Path) -> None:
    killed_run(tmp_path, 12)
    one = trainer(tmp_path)

    def second(place: str) -> None:
        if place == "train:reserved":
            failpoints.install(None)
            with pytest.raises(QuietsumError, match="another process"):
                trainer(tmp_path).train(records(), optimizer="momentum", resume=True)

    failpoints.install(second)
    one.train(records(), optimizer="momentum", resume=True)
    one.close()


def test_a_dataset_that_is_not_public_has_a_lifetime_that_a_second_plan_cannot_exceed(tmp_path: Path) -> None:
    def protected(run: str) -> PrivateTrainer:
        config = PrivacyConfig(epsilon=2.0, epochs=1, batch_size=20)
        return PrivateTrainer(nn.Linear(3, 2), config, workspace=tmp_path, run=run)

    first = protected("first")
    first.train(records())
    first.close()
    second = protected("second")
    with pytest.raises((PlanRefused, BudgetExhausted)):
        second.train(records())
    second.close()
