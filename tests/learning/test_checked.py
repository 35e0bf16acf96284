"""Correct models in float32 are not accused, however steep; faults in them are, and so are counts without noise."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from learning.mutants.catalogue import MUTANTS
from quietsum.errors import InvalidParameter
from quietsum.learning.checks.before_training import while_checking
from quietsum.learning.checks.numpy_step import Field, MadeUp, Silent
from quietsum.learning.checks.step import CheckedStep
from quietsum.learning.clipping import Flat, QuantileClip
from quietsum.learning.engines.protocol import Batch, Engine, engine_for
from quietsum.learning.step import PrivateStep, cross_entropy
from quietsum.mechanisms.rng import randomness_for_tests
from quietsum.selfcheck import one_step, run_selfcheck
from quietsum.selfcheck.probes import replay
from quietsum.selfcheck.probes.hostile import hostile_rows
from quietsum.selfcheck.probes.replay import equivalence, sensitivity, superposition

REPLAYED = ("T1", "T2", "T5", "T9")
ENGINES = ("bookkeeping", "vmap", "opacus", "opacus-ghost")


@pytest.fixture(autouse=True)
def seeds_and_one_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("QUIETSUM_TEST_SEEDS", "1")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class Last(nn.Module):
    """The last output of a recurrent network."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRU(2, 3, batch_first=True)

    def forward(self, rows: Tensor) -> Tensor:
        last: Tensor = self.cell(rows)[0][:, -1]
        return last


def group_norms() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 4), nn.GroupNorm(2, 4), nn.Linear(4, 3))


def deep_group_norms() -> nn.Module:
    deeper = [nn.Linear(4, 4), nn.GroupNorm(2, 4), nn.ReLU()]
    return nn.Sequential(nn.Linear(2, 4), nn.GroupNorm(2, 4), nn.ReLU(), *deeper, nn.Linear(4, 3))


def layer_norm() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2), nn.Tanh(), nn.Linear(2, 3))


def instance_norm() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 2, 2), nn.InstanceNorm2d(2, affine=True), nn.Flatten(), nn.Linear(8, 3))


def gru() -> nn.Module:
    return nn.Sequential(Last(), nn.LayerNorm(3), nn.Linear(3, 3))


STEEP: dict[Callable[[], nn.Module], tuple[int, ...]] = {
    group_norms: (2,), deep_group_norms: (2,), layer_norm: (2,), instance_norm: (1, 3, 3), gru: (3, 2)
}  # fmt: skip


def made(build: Callable[[], nn.Module], seed: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build()


def bridge(
    model: nn.Module, shape: tuple[int, ...], engine: str = "bookkeeping", wrap: Any = None, **more: Any
) -> CheckedStep:
    rows = MadeUp(fields=(Field(shape=shape), Field(shape=(), dtype="int64", below=3)))
    clip = Flat(max_norm=1.0)

    def make(some: nn.Module) -> PrivateStep:
        step = PrivateStep.build(
            some, cross_entropy, clip,
            noise_multiplier=1.1, rate=0.1, expected_batch=20.0, engine=engine, **more,
        )  # fmt: skip
        step.engine = step.engine if wrap is None else wrap(step.engine)
        return step

    def referee(some: nn.Module) -> Engine:
        return engine_for("naive", some, cross_entropy, clip)

    return CheckedStep(make, model, rows=rows, population=200, referee=None if "adaptive" in more else referee)


# ------------------------------------------------------------------------------------------- no false alarm


def accusations(seeds: range) -> list[str]:
    """What is said against steep and correct models, the five by turns."""
    said = []
    for seed in seeds:
        build, rng = list(STEEP)[seed % len(STEEP)], randomness_for_tests(seed)
        step = bridge(made(build, seed), STEEP[build])
        found = (
            sensitivity(step, rng, tries=12)[0],
            superposition(step, rng, few=False),
            hostile_rows(step, rng),
            equivalence(step, rng, tries=4),
        )
        said += [f"{build.__name__}, seed {seed}: {finding}" for finding in found if finding.failed]
    return said


def test_no_steep_model_is_accused_in_float32() -> None:
    assert accusations(range(10)) == []


@pytest.mark.slow
@pytest.mark.long
def test_no_steep_model_is_accused_in_float32_on_four_hundred_seeds() -> None:
    assert accusations(range(400)) == []


def test_a_row_that_float32_cannot_differentiate_is_rounding_and_in_float64_there_is_nothing_to_see() -> None:
    """A row as large as this one leaves torch's gradient of a group norm hardly a digit."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(2, 4), nn.GroupNorm(2, 4), nn.Linear(4, 2))
    step = bridge(model, (2,))
    batch = (np.array([[-6858.813, 4399.6895]], dtype=np.float32), np.array([1]))
    assert step.twin is not None and step.twin.precision < 1e-15
    exact, rounded = step.twin.deterministic(batch), step.deterministic(batch)
    rng = randomness_for_tests(1)
    moved = [step.twin.shaken(batch, 1e-6, rng) for _ in range(16)]
    error = float(np.linalg.norm(rounded - exact))
    assert error > 1e-3, "one can see it"
    assert 4 * max(float(np.linalg.norm(other - rounded)) for other in moved) > error, "and shaking shows it"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("engine", ENGINES)
def test_every_engine_has_a_twin_in_float64_that_leaves_the_model_alone(engine: str) -> None:
    model = made(deep_group_norms, 1)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    step = bridge(model, (2,), engine)
    batch = step.examples(5, randomness_for_tests(1))
    assert step.twin is not None and step.twin.precision < 1e-15
    still = step.twin.shaken(batch, 0.0, randomness_for_tests(2))
    assert np.array_equal(still, step.deterministic(batch))
    assert not np.array_equal(step.twin.shaken(batch, 1e-3, randomness_for_tests(2)), still)
    assert np.array_equal(step.twin.shaken(batch, 0.0, randomness_for_tests(2)), still), "the weights came back"
    assert step.twin.deterministic(batch) == pytest.approx(still, abs=1e-3)
    assert all(torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))


class Insists(nn.Module):
    """Reads float32 alone."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 3)

    def forward(self, rows: Tensor) -> Tensor:
        if rows.dtype != torch.float32:
            raise TypeError("never heard of it")
        found: Tensor = self.inner(rows)
        return found


def test_a_model_that_insists_on_float32_is_shaken_in_float32_and_one_without_a_copy_is_forgiven_nothing() -> None:
    step = bridge(Insists(), (2,), "vmap")
    assert step.twin is not None and step.twin.precision > 1e-8
    assert run_selfcheck(step, rng=randomness_for_tests(1), only=REPLAYED).passed

    class Alone(nn.Linear):
        def __deepcopy__(self, memo: Any) -> Any:
            raise TypeError("there is only one of me")

    assert bridge(Alone(2, 3), (2,)).twin is None


# ----------------------------------------------------------------------------------- faults in steep models


@dataclasses.dataclass
class Mixing:
    """Divides by the size of the batch; in float32 alone, if so told."""

    inner: Engine
    only_float32: bool = False
    name: str = "mixing"
    why: str = "a negative control"

    @property
    def parameters(self) -> tuple[nn.Parameter, ...]:
        return self.inner.parameters

    def clipped_sum(self, batch: Batch) -> tuple[Tensor, ...]:
        sums = self.inner.clipped_sum(batch)
        if self.only_float32 and batch[0].dtype == torch.float64:
            return sums
        return tuple(part / max(1, len(batch[0])) for part in sums)

    def small_norms(self) -> Tensor:
        return self.inner.small_norms()


@pytest.mark.parametrize("only_float32", [False, True])
@pytest.mark.parametrize("build", STEEP)
@pytest.mark.some(3)
def test_a_step_that_mixes_examples_is_caught_in_steep_models_too(
    build: Callable[[], nn.Module], only_float32: bool
) -> None:
    for seed in range(4):
        step = bridge(made(build, seed), STEEP[build], wrap=lambda engine: Mixing(engine, only_float32))
        assert superposition(step, randomness_for_tests(seed), few=False).failed


# ---------------------------------------------------------------------------------------- adaptive clipping


@dataclasses.dataclass
class Quieter:
    """A source whose rounded normals are narrower than asked for."""

    factor: float
    inner: Any = dataclasses.field(default_factory=lambda: randomness_for_tests(5))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def rounded_normals(self, scale: float, shape: Any) -> Any:
        return self.inner.rounded_normals(self.factor * scale, shape)


def adaptive(hidden: int = 8, count_noise: float = 3.0, rng: Any = None) -> tuple[CheckedStep, nn.Module]:
    model = made(lambda: nn.Sequential(nn.Linear(6, hidden), nn.Tanh(), nn.Linear(hidden, 3)), 1)
    rule = QuantileClip(count_noise=count_noise, rng=randomness_for_tests(6) if rng is None else rng)
    return bridge(model, (6,), adaptive=rule, rng=randomness_for_tests(7)), model


@pytest.mark.parametrize("count_noise", [0.7, 3.0, 30.0])
@pytest.mark.some(1)
def test_adaptive_clipping_passes_with_gradient_and_count_as_one_release(count_noise: float) -> None:
    step, model = adaptive(count_noise=count_noise)
    assert step.noise_multiplier == pytest.approx(1.1, rel=1e-9)
    assert step.sensitivity > 1.0
    with while_checking(model):
        report = run_selfcheck(step, rng=randomness_for_tests(1), seconds=0.2)
    assert report.passed, "\n".join(report.lines())


def test_the_count_of_a_batch_is_a_coordinate_and_the_bound_stays_where_it_was() -> None:
    step, _ = adaptive()
    batch = step.examples(7, randomness_for_tests(1))
    weight = 2 * (step.sensitivity**2 - 1) ** 0.5
    small = step._step.engine.small_norms() if step._step.deterministic(step._tensors(batch)) else 0
    assert step.deterministic(batch)[-1] == pytest.approx(weight * (int(small) - 3.5))
    for _ in range(3):
        step.release(batch)
    assert step._step.sensitivity == 1.0
    assert step.deterministic(step.examples(0, randomness_for_tests(1)))[-1] == 0


@pytest.mark.parametrize("hidden", [8, 6000])
@pytest.mark.parametrize("make_rng", [Silent, lambda: Quieter(0.5)], ids=["none", "half"])
@pytest.mark.some(1)
def test_a_count_without_its_noise_is_refused_before_training_however_large_the_model(
    hidden: int, make_rng: Callable[[], Any]
) -> None:
    step, model = adaptive(hidden, rng=make_rng())
    with while_checking(model):
        report = one_step(step, rng=randomness_for_tests(2))
    assert "T3" in report.caught_by
    assert "count" in next(finding.lesson for finding in report.failures if finding.test == "T3")


def test_the_control_the_same_large_model_with_its_noise_passes() -> None:
    step, model = adaptive(6000)
    with while_checking(model):
        report = one_step(step, rng=randomness_for_tests(2))
    assert report.passed, "\n".join(report.lines())


def test_a_joint_noise_multiplier_that_forgets_the_count_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(QuantileClip, "gradient_noise", lambda self, noise: noise)
    monkeypatch.setattr(QuantileClip, "joint_noise", lambda self, noise: noise)
    step, _ = adaptive(count_noise=30.0)
    assert run_selfcheck(step, rng=randomness_for_tests(3), only=("T8",)).caught_by == ("T8",)


# -------------------------------------------------------------------------------------------- large models


NEVER_DRAWN = {"pairs clipped in batches above 80"}  # at 24 records a batch; the long check looks beyond
REPLAY_MUTANTS = sorted(n for n in set(MUTANTS) - NEVER_DRAWN if {"T1", "T2", "T5"} & set(MUTANTS[n]().caught_by))


@pytest.mark.parametrize("name", REPLAY_MUTANTS)
@pytest.mark.some(5)
def test_what_is_left_out_for_large_models_lets_no_mutant_through(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "_LARGE", 1)
    monkeypatch.setattr(replay, "_FOLDED", 16)
    for seed in (1, 2):
        broken = MUTANTS[name]()
        broken.rng = randomness_for_tests(seed)
        report = one_step(broken, rng=randomness_for_tests(100 + seed))
        assert {"T1", "T2", "T5"} & set(broken.caught_by) <= set(report.caught_by), "\n".join(report.lines())


# ----------------------------------------------------------------------------------------- a model without chance


def test_only_known_dropout_is_switched_off_and_draws_of_ones_own_generator_are_left_alone() -> None:
    class Powers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.p, self.dropout, self.inner = 3.0, 0.25, nn.Dropout(0.3)
            self.cell = nn.LSTM(2, 2, num_layers=2, dropout=0.4)

    model, own = Powers(), torch.Generator().manual_seed(1)
    with while_checking(model):
        assert (model.p, model.dropout, model.inner.p, model.cell.dropout) == (3.0, 0.25, 0.0, 0.0)
        assert not torch.randn(5).any() and not torch.normal(torch.zeros(5), 1.0).any()
        assert torch.equal(torch.rand(2), torch.full((2,), 0.5))
        assert torch.randn(5, generator=own).any(), "noise is drawn so on a device"
        assert len(torch.randperm(9)) == 9
    assert (model.inner.p, model.cell.dropout) == (0.3, 0.4) and torch.randn(5).any()


def test_a_draw_that_is_held_still_does_not_hide_a_mixing_model() -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(2, 3)

        def forward(self, rows: Tensor) -> Tensor:
            hidden: Tensor = nn.functional.dropout(self.inner(rows), 0.5)
            return hidden - 0.5 * hidden.mean(0)

    for seed in (0, 1):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)  # some weights show it to T5 alone
            step = bridge(Mixed(), (2,), engine="opacus")  # its hooks do not ask whose rows are whose
            books, rows = engine_for("bookkeeping", Mixed(), cross_entropy, Flat(max_norm=1.0)), torch.randn(8, 2)
        with while_checking(step._model):
            assert {"T2", "T5"} <= set(one_step(step, rng=randomness_for_tests(1)).caught_by)
            for _ in range(6):  # the books refuse such a model whenever they look
                with pytest.raises(InvalidParameter, match="does not have example i in row i"):
                    books.clipped_sum((rows, torch.zeros(8, dtype=torch.int64)))
