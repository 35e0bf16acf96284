"""Every engine, clip and noise of ours passes the self-check, and so does the numpy descent; broken ones do not."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from quietsum.errors import InvalidParameter
from quietsum.learning.checks.before_training import (
    ClaimContradicted,
    constants_for,
    refuse_unsound,
    while_checking,
    wrap_task,
)
from quietsum.learning.checks.numpy_step import CheckedDescent, Field, MadeUp
from quietsum.learning.checks.step import CheckedStep
from quietsum.learning.clipping import Automatic, Clip, Flat, FlatL1, PerLayer
from quietsum.learning.config import PrivacyConfig, plan_training
from quietsum.learning.engines.protocol import Batch, Engine, engine_for
from quietsum.learning.step import PrivateStep, cross_entropy
from quietsum.learning.trainer import PrivateTrainer
from quietsum.mechanisms.gaussian import ClippedSum, Mode
from quietsum.mechanisms.rng import randomness_for_tests, system_randomness
from quietsum.selfcheck import TrainerOutput, one_step, run_selfcheck
from quietsum.tasks import task_named

ENGINES = ("bookkeeping", "vmap", "opacus", "opacus-ghost", "naive")
ROWS = MadeUp(fields=(Field(shape=(6,)), Field(shape=(), dtype="int64", below=3)))


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def network() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(0.3), nn.Linear(8, 3))


def bridge(
    engine: str = "vmap", clip: Clip | None = None, *, mode: str = "fast", seed: int = 1, **more: Any
) -> tuple[CheckedStep, nn.Module]:
    model, clip = network(), clip or Flat(max_norm=0.7)
    rng = randomness_for_tests(seed)

    def make(some: nn.Module) -> PrivateStep:
        return PrivateStep.build(
            some, cross_entropy, clip,
            noise_multiplier=1.1, rate=0.05, expected_batch=20.0, engine=engine, mode=mode, rng=rng,
        )  # fmt: skip

    def referee(some: nn.Module) -> Engine:
        return engine_for("naive", some, cross_entropy, clip)

    return CheckedStep(make, model, rows=ROWS, population=400, referee=referee, name=engine, **more), model


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.some(2)
def test_every_engine_passes_the_whole_check(engine: str) -> None:
    step, model = bridge(engine)
    with while_checking(model):
        report = run_selfcheck(step, rng=randomness_for_tests(2), seconds=0.2)
    assert report.passed, "\n".join(report.lines())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.long
def test_every_engine_passes_the_short_check_again_and_again(engine: str) -> None:
    for seed in range(4):
        step, model = bridge(engine, seed=seed)
        with while_checking(model):
            report = one_step(step, rng=randomness_for_tests(100 + seed))
        assert report.passed, "\n".join(report.lines())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("engine", ["bookkeeping", "vmap", "opacus", "opacus-ghost"])
@pytest.mark.long
def test_no_engine_is_accused_on_a_hundred_seeds(engine: str) -> None:
    """Ours by all eleven tests; the others by those that see an engine, since noise, draws and books are the same."""
    for seed in range(100):
        step, model = bridge(engine, seed=seed)
        rng = randomness_for_tests(1000 + seed)
        with while_checking(model):
            if engine == "bookkeeping":
                reports = [run_selfcheck(step, rng=rng, seconds=0.2)]
            else:
                reports = [one_step(step, rng=rng), run_selfcheck(step, rng=rng, only=("T2", "T9"))]
        assert all(report.passed for report in reports), "\n".join(line for r in reports for line in r.lines())


@pytest.mark.parametrize("clip", [PerLayer(max_norm=1.0), Automatic(max_norm=2.0), FlatL1(max_norm=1.0)])
@pytest.mark.some(1)
def test_every_clip_passes(clip: Clip) -> None:
    step, model = bridge(clip=clip)
    with while_checking(model):
        report = run_selfcheck(
            step, rng=randomness_for_tests(3), only=("T1", "T2", "T3", "T5", "T6", "T9"), seconds=0.2
        )
    assert report.passed, "\n".join(report.lines())


def test_secure_noise_passes_and_announces_how_much_wider_it_is() -> None:
    step, model = bridge(mode="secure")
    assert 0 < step.allowance < 0.01
    with while_checking(model):
        report = run_selfcheck(step, rng=randomness_for_tests(4), only=("T3", "T10"))
    assert report.passed, "\n".join(report.lines())


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.some(1)
def test_the_numpy_descent_passes(mode: Mode) -> None:
    task = task_named("heart")
    mechanism = ClippedSum(max_norm=1.0, noise_multiplier=1.1, mode=mode)
    for seed in range(2):
        step = CheckedDescent(
            task, task.initial(), mechanism=mechanism, rate=0.1, population=199, rng=randomness_for_tests(seed)
        )
        report = run_selfcheck(step, rng=randomness_for_tests(seed), seconds=0.2)
        assert report.passed, "\n".join(report.lines())


def test_a_descent_on_a_task_that_mixes_rows_is_caught() -> None:
    @dataclasses.dataclass(frozen=True)
    class Centred:
        def gradients(self, params: Any, features: Any, labels: Any) -> Any:
            return features - features.mean(axis=0)  # "normalises" protected rows by each other

    mechanism = ClippedSum(max_norm=1.0, noise_multiplier=1.1)
    step = CheckedDescent(Centred(), np.zeros(4), mechanism=mechanism, rate=0.1, population=50)
    assert {"T1", "T2"} <= set(run_selfcheck(step, only=("T1", "T2")).caught_by)


# ----------------------------------------------------------------------------------------- a broken engine


@dataclasses.dataclass
class Mixing:
    """An engine over a loss that looks at the whole batch."""

    inner: Engine
    name: str = "mixing"
    why: str = "a negative control"

    @property
    def parameters(self) -> tuple[nn.Parameter, ...]:
        return self.inner.parameters

    def clipped_sum(self, batch: Batch) -> tuple[Tensor, ...]:
        rows = len(batch[0])
        shifted = batch[0] - batch[0].nan_to_num().mean(0) if rows else batch[0]
        return self.inner.clipped_sum((shifted, *batch[1:]))

    def small_norms(self) -> Tensor:
        return self.inner.small_norms()


def test_an_engine_that_mixes_examples_is_refused_before_training() -> None:
    step, model = bridge()
    step._step.engine = Mixing(step._step.engine)
    with pytest.raises(ClaimContradicted, match="self-check in T1") as caught:
        refuse_unsound(step, model, rng=randomness_for_tests(5))
    assert caught.value.exit_code == 5


def test_a_sound_step_is_let_through_with_its_report() -> None:
    step, model = bridge()
    assert refuse_unsound(step, model, rng=randomness_for_tests(5)).passed


def test_a_trainer_that_returns_the_loss_of_protected_records_is_caught() -> None:
    model = network()

    def loss(batch: Batch) -> Mapping[str, float]:
        return {"train_loss": float(cross_entropy(model, batch).mean().detach())}

    step, checked_model = bridge(said=loss)
    with while_checking(checked_model), while_checking(model):
        assert run_selfcheck(step, rng=randomness_for_tests(6), only=("T11",)).caught_by == ("T11",)


def test_constants_that_count_the_records_are_caught() -> None:
    step, _ = bridge(constants=lambda population: {"steps": float(population // 20)})
    assert run_selfcheck(step, only=("T7",)).caught_by == ("T7",)
    declared, _ = bridge(constants=lambda population: {"steps": 20.0})
    assert run_selfcheck(declared, only=("T7",)).passed


# ----------------------------------------------------------------------------------------- the trainer itself


class Trained:
    """The step as ``PrivateTrainer`` makes it: a training of one step on a batch, seen from outside.

    With a batch size of the declared size the rate is 1 and the records are the batch. The weights' change times the
    divisor is the release; every number of the history is what the trainer says.
    """

    def __init__(self, leaks: bool = False) -> None:
        self._inner, self._model = bridge(clip=Flat(max_norm=1.0))
        self._leaks = leaks
        self._config = PrivacyConfig(
            noise_multiplier=1.1, delta=1e-3, max_grad_norm=1.0, batch_size=20, public_size=20, epochs=1
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def _train(self, batch: Any) -> tuple[Any, Mapping[str, float]]:
        trained, watched = copy.deepcopy(self._model), {}
        tensors = tuple(torch.from_numpy(np.ascontiguousarray(part)) for part in batch)
        if self._leaks:
            watched["loss"] = float(cross_entropy(trained, tensors).mean().detach())
        history = PrivateTrainer(trained, self._config, selfcheck=False).train(tensors, learning_rate=1.0)
        with torch.no_grad():
            pairs = zip(self._model.parameters(), trained.parameters(), strict=True)
            change = np.concatenate([((old - new) * 20.0).double().numpy().ravel() for old, new in pairs])
        return change, {**watched, **numbers(dataclasses.asdict(history))}

    def release(self, batch: Any) -> Any:
        return self._train(batch)[0] if len(batch[0]) else self._inner.release(batch)

    def run(self, batches: Any) -> TrainerOutput:
        made = [self._train(batch) if len(batch[0]) else (self._inner.release(batch), {}) for batch in batches]
        said = {name: value for _, found in made for name, value in found.items()}
        return TrainerOutput(releases=tuple(change for change, _ in made), charged=len(made), said=said)


def numbers(value: Any, name: str = "history") -> dict[str, float]:
    """Every number in a nest of mappings and sequences."""
    if isinstance(value, Mapping):
        return {k: v for key, part in value.items() for k, v in numbers(part, f"{name}.{key}").items()}
    if isinstance(value, tuple | list):
        return {k: v for key, part in enumerate(value) for k, v in numbers(part, f"{name}.{key}").items()}
    return {name: float(value)} if isinstance(value, int | float) else {}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.long
def test_what_the_trainer_changes_and_says_is_what_its_step_claims() -> None:
    step = Trained()
    with while_checking(step._model):
        report = run_selfcheck(step, rng=randomness_for_tests(8), only=("T3", "T6", "T11"), seconds=0.5)
    assert report.passed, "\n".join(report.lines())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.long
def test_a_loss_beside_the_trainers_history_is_caught() -> None:
    step = Trained(leaks=True)
    with while_checking(step._model):
        assert run_selfcheck(step, rng=randomness_for_tests(9), only=("T11",), seconds=0.5).caught_by == ("T11",)


@pytest.mark.parametrize("size", [20, 1000, 60_000])
def test_a_plan_of_a_declared_size_does_not_know_how_many_records_there_are(size: int) -> None:
    config = PrivacyConfig(epsilon=3.0, epochs=3, batch_size=10, public_size=size)
    step, _ = bridge(constants=constants_for(config, size))
    assert run_selfcheck(step, only=("T7",)).passed


def test_a_plan_of_a_counted_size_is_that_of_zero_out_neighbours() -> None:
    config = PrivacyConfig(noise_multiplier=1.1, delta=1e-5, epochs=3, batch_size=10)
    step, _ = bridge(constants=constants_for(config, 400))
    assert run_selfcheck(step, only=("T7",)).passed
    counted, _ = bridge(constants=lambda population: {"rate": plan_training(config, size=population).rate})
    assert run_selfcheck(counted, only=("T7",)).caught_by == ("T7",)


# --------------------------------------------------------------------------------------------- small parts


def test_dropout_and_threads_come_back_after_a_check() -> None:
    model, threads = network(), torch.get_num_threads()
    dropout = model.get_submodule("2")
    with pytest.raises(KeyError), while_checking(model):
        assert dropout.p == 0.0
        raise KeyError
    assert dropout.p == 0.3
    assert torch.get_num_threads() == threads


def test_with_dropout_on_the_check_says_why_it_cannot_replay() -> None:
    step, _ = bridge()
    report = run_selfcheck(step, rng=randomness_for_tests(7), only=("T1",))
    assert "dropout" in report.failures[0].lesson


def test_made_up_labels_need_a_range() -> None:
    with pytest.raises(InvalidParameter, match="classes"):
        Field(shape=(), dtype="int64")
    labels = MadeUp.like((np.zeros((1,), dtype=np.int64),), below=4).draw(500, system_randomness())[0]
    assert set(labels.tolist()) == {0, 1, 2, 3}  # one is missing with probability 4 · 0.75^500


def test_a_task_of_the_command_line_becomes_a_step() -> None:
    pytest.importorskip("sklearn")
    from quietsum.tasks.registry import trainable_task

    step, model = wrap_task(trainable_task("digits"), engine="bookkeeping")
    with while_checking(model):
        report = one_step(step)
    assert report.passed, "\n".join(report.lines())


class Capacity(nn.Module):
    """Room for sixteen rows: later ones come out as zeros, so that one record's coming drives another one out."""

    def forward(self, rows: Tensor) -> Tensor:
        return rows * (torch.arange(len(rows)) < 16).to(rows)[:, None]


@pytest.mark.parametrize("batch", [32, 128])
def test_a_layer_with_room_for_fewer_rows_than_a_batch_is_refused_before_training(batch: int) -> None:
    """By the replay alone, whatever else looks at the model: its engine computes whole batches."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), Capacity(), nn.Linear(8, 3))

    def make(some: nn.Module) -> PrivateStep:
        return PrivateStep.build(
            some, cross_entropy, Flat(max_norm=1.0), noise_multiplier=1.0, rate=batch / 4096, expected_batch=batch,
            engine="opacus",
        )  # fmt: skip

    step = CheckedStep(make, model, rows=ROWS, population=4096)
    with pytest.raises(ClaimContradicted, match=r"T[12]"):
        refuse_unsound(step, model, rng=randomness_for_tests(1))
