"""The bridge from a torch step to :mod:`quietsum.selfcheck`: tensors to arrays, and a step taken apart.

The self-check knows arrays and vectors. :class:`CheckedStep` wraps a :class:`~quietsum.learning.step.PrivateStep` and
feeds it made-up rows of the data's shape; no protected record is read. :func:`refuse_unsound` is the check before a
training of an unknown model, :func:`checked_task` wraps a task of the command line. The numpy descent has a bridge of
its own, without torch, in :mod:`quietsum.learning.checked_descent`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from quietsum.errors import InvalidParameter, QuietsumError, whole_number
from quietsum.learning.checked_descent import MadeUp
from quietsum.learning.clipping import Flat
from quietsum.learning.config import PrivacyConfig, plan_training
from quietsum.learning.engine import Engine, engine_for
from quietsum.learning.step import PrivateStep
from quietsum.mechanisms.rng import RandomSource
from quietsum.privacy.events import Gaussian, Laplace, PoissonSampled, PrivacyEvent
from quietsum.privacy.units import Neighbours
from quietsum.selfcheck.report import CheckReport
from quietsum.selfcheck.seam import Batch, Floats, Law, Outcome
from quietsum.selfcheck.suite import one_step

__all__ = [
    "CheckableTask",
    "CheckedStep",
    "ClaimContradicted",
    "checked_task",
    "planned",
    "refuse_unsound",
    "while_checking",
]


@final
class CheckedStep:
    """A :class:`~quietsum.learning.step.PrivateStep` under test.

    ``make`` builds the step and is called again for every restart, as a new process would. ``referee`` is an engine
    for the naive sum. ``constants`` gives the numbers that steer a run for a number of records; those of the step
    itself are always among them. ``said`` is what a trainer lets out about a batch besides its gradient, a loss say.
    Dropout must be off (:func:`while_checking`), since a sum that changes cannot be replayed.
    """

    def __init__(
        self,
        make: Callable[[], PrivateStep],
        *,
        rows: MadeUp,
        population: int,
        referee: Engine | None = None,
        constants: Callable[[int], Mapping[str, float]] | None = None,
        said: Callable[[tuple[Tensor, ...]], Mapping[str, float]] | None = None,
        name: str = "",
        charged: int = 0,
    ) -> None:
        self._said = said
        self._make, self._rows, self._referee, self._constants = make, rows, referee, constants
        self._step, self._charged = make(), charged
        if self._step.adaptive is not None:  # a bound that moves cannot be replayed; the step at one bound can
            self._step.adaptive = None
        self.population = whole_number("population", population, 1)
        self.name = name or "private step"
        event = self._step.event()
        inner = event.event if isinstance(event, PoissonSampled) else event
        if not isinstance(inner, Gaussian | Laplace):
            raise InvalidParameter("event", type(inner).__name__, "cannot be checked", "use Gaussian or Laplace noise")
        self.law = Law.LAPLACE if isinstance(inner, Laplace) else Law.GAUSSIAN
        self.sensitivity, self.noise_multiplier = float(self._step.sensitivity), float(self._step.noise_multiplier)
        self.rate = float(self._step.rate)
        self._device = self._step.engine.parameters[0].device

    @property
    def precision(self) -> float:
        """Of the parameters' dtype."""
        return float(torch.finfo(self._step.engine.parameters[0].dtype).eps)

    @property
    def allowance(self) -> float:
        """Secure noise covers the rounding of the sum, and is that much wider than claimed."""
        if self._step.mechanism.mode != "secure":
            return 0.0
        width, scale = self._step.mechanism._grid(self._step.engine.parameters)
        return width * scale / (self.noise_multiplier * self.sensitivity) - 1

    def examples(self, count: int, rng: RandomSource) -> Batch:
        """Made-up rows."""
        return self._rows.draw(count, rng)

    def _tensors(self, batch: Batch) -> tuple[Tensor, ...]:
        return tuple(torch.from_numpy(np.ascontiguousarray(part)).to(self._device) for part in batch)

    def deterministic(self, batch: Batch) -> Floats:
        """Σ clipped, before the noise."""
        return flat(self._step.deterministic(self._tensors(batch)))

    def noise(self) -> Floats:
        """What is added to that sum."""
        return flat(self._step.noise())

    def release(self, batch: Batch) -> Floats:
        """The gradient that training sees, times the public expected batch."""
        return flat(self._step.gradient(self._tensors(batch))) * float(self._step.expected_batch)

    def sample(self, population: int) -> NDArray[np.int64]:
        """One draw."""
        return np.asarray(self._step.sample(population), dtype=np.int64)

    def run(self, batches: Sequence[Batch]) -> Outcome:
        """One charge and one release for each batch."""
        self._charged += len(batches)
        said: dict[str, float] = {}
        if self._said is not None:
            for batch in batches:
                said.update(self._said(self._tensors(batch)))
        releases = tuple(self.release(batch) for batch in batches)
        return Outcome(releases=releases, charged=self._charged, said=said)

    def restarted(self) -> CheckedStep:
        """Another one from the same settings; only the books go on."""
        return CheckedStep(
            self._make,
            rows=self._rows,
            population=self.population,
            referee=self._referee,
            constants=self._constants,
            said=self._said,
            name=self.name,
            charged=self._charged,
        )

    def public_constants(self, population: int) -> Mapping[str, float]:
        """What steers the run."""
        own = {
            "rate": self.rate,
            "expected batch": float(self._step.expected_batch),
            "noise multiplier": self.noise_multiplier,
            "sensitivity": self.sensitivity,
        }
        return own | (dict(self._constants(population)) if self._constants else {})

    def event(self) -> PrivacyEvent:
        """What the accountant hears."""
        return self._step.event()

    def reference(self, batch: Batch) -> Floats | None:
        """The referee's sum."""
        return None if self._referee is None else flat(self._referee.clipped_sum(self._tensors(batch)))


def flat(parts: Sequence[Tensor]) -> Floats:
    """Tensors as one float64 vector."""
    return np.concatenate([part.detach().cpu().double().numpy().ravel() for part in parts])


@contextlib.contextmanager
def while_checking(model: nn.Module) -> Iterator[nn.Module]:
    """The model with every dropout at 0 and torch on one thread (batches are tiny); all of it comes back afterwards."""
    kept = [
        (module, name, getattr(module, name))
        for module in model.modules()
        for name in ("p", "dropout")
        if isinstance(getattr(module, name, None), float)
    ]
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        for module, name, _ in kept:
            setattr(module, name, 0.0)
        yield model
    finally:
        torch.set_num_threads(threads)
        for module, name, value in kept:
            setattr(module, name, value)


class ClaimContradicted(QuietsumError):
    """A step is not what it claims to be. Nothing was trained and nothing was charged."""

    exit_code = 5


def refuse_unsound(step: CheckedStep, model: nn.Module, *, rng: RandomSource | None = None) -> CheckReport:
    """The one-step self-check before a training: the report, or :class:`ClaimContradicted` with what is wrong."""
    with while_checking(model):
        report = one_step(step, rng=rng)
    if not report.passed:
        found = report.failures[0]
        raise ClaimContradicted(f"{report.step} fails its self-check in {found.test} ({found.name}): {found.lesson}")
    return report


def planned(config: PrivacyConfig, size: int) -> Callable[[int], Mapping[str, float]]:
    """The constants of a training plan for any number of records, as :class:`CheckedStep` takes them.

    Under the zero-out relation neighbours have the same size, which is public, so the plan is always that of ``size``.
    """
    fixed = plan_training(config, size=size).neighbours is not Neighbours.ADD_REMOVE

    def constants(population: int) -> Mapping[str, float]:
        plan = plan_training(config, size=size if fixed else population)
        return {
            "sample rate": plan.rate,
            "divisor": plan.expected_batch,
            "steps": float(plan.steps),
            "delta": plan.delta,
            **{f"noise of stage {number}": stage.noise_multiplier for number, stage in enumerate(plan.stages)},
            **{f"norm of stage {number}": stage.max_norm for number, stage in enumerate(plan.stages)},
        }

    return constants


# ------------------------------------------------------------------------------------------------ a torch task


class CheckableTask(Protocol):
    """What is asked of a torch task: its model, its loss, and the shape of its records."""

    @property
    def name(self) -> str:
        """What to call it."""
        ...

    @property
    def size(self) -> int:
        """The declared number of records."""
        ...

    def model(self) -> nn.Module:
        """A fresh model."""
        ...

    def loss(self, model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        """One value per example."""
        ...

    def records(self) -> tuple[Tensor, ...]:
        """The records, of which only shapes and types are looked at."""
        ...


def checked_task(
    task: CheckableTask,
    *,
    engine: str = "auto",
    noise_multiplier: float = 1.1,
    rate: float = 0.05,
    max_norm: float = 1.0,
    mode: str = "fast",
) -> tuple[CheckedStep, nn.Module]:
    """A torch task's model and loss as a step under test, and the model, whose dropout the caller switches off.

    Of the records only shapes and types are used; made-up labels stay below the model's number of outputs.
    """
    model, clip, population = task.model(), Flat(max_norm=max_norm), whole_number("size", task.size, 1)
    blank = tuple(torch.zeros((1, *part.shape[1:]), dtype=part.dtype) for part in task.records())
    device = next(model.parameters()).device
    with torch.no_grad(), while_checking(model):
        outputs = model(blank[0].to(device))
    classes = int(outputs.shape[-1]) if outputs.dim() > 1 else 2

    def make() -> PrivateStep:
        return PrivateStep.build(
            model,
            task.loss,
            clip,
            noise_multiplier=noise_multiplier,
            rate=rate,
            expected_batch=rate * population,
            engine=engine,
            mode=mode,
        )

    step = CheckedStep(
        make,
        rows=MadeUp.like(tuple(part.numpy() for part in blank), below=classes),
        population=population,
        referee=engine_for("naive", model, task.loss, clip),
        name=f"{task.name}, engine {make().engine.name}",
    )
    return step, model
