"""The check before a training: is the step of an unknown model what it claims to be?

:func:`refuse_unsound` tries a :class:`~quietsum.learning.checks.step.CheckedStep` on made-up rows and refuses one that
is not, :func:`wrap_task` wraps a task of the command line. The numpy descent has a bridge of its own, without torch,
in :mod:`quietsum.learning.checks.numpy_step`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from quietsum.errors import QuietsumError
from quietsum.learning.checks.frozen_randomness import draws_chance, still
from quietsum.learning.checks.numpy_step import MadeUp
from quietsum.learning.checks.step import CheckedStep
from quietsum.learning.clipping import Flat
from quietsum.learning.config import PrivacyConfig, TrainingSchedule, plan_training
from quietsum.learning.engines.batch_mixing import SteadyEngine, keep_unchanged
from quietsum.learning.engines.hardware.compiled import without_graphs
from quietsum.learning.engines.protocol import Loss, engine_for
from quietsum.learning.rows.records import Records
from quietsum.learning.step import PrivateStep, build_step, cross_entropy
from quietsum.mechanisms import RandomSource, system_randomness
from quietsum.privacy import Neighbours
from quietsum.selfcheck import CheckReport, one_step
from quietsum.validate import whole_number

__all__ = [
    "CheckableTask",
    "ClaimContradicted",
    "check_step",
    "constants_for",
    "refuse_unsound",
    "while_checking",
    "wrap_task",
]


_TRIED = (1, 2, 9, 64)
"""So many rows are tried to see whether a model draws random numbers."""


@contextlib.contextmanager
def while_checking(model: nn.Module, *, chance: bool = True) -> Iterator[nn.Module]:
    """The model without chance, and torch on one thread, since batches are tiny.

    Chance is held by :func:`~quietsum.learning.checks.frozen_randomness.still`. All of it comes back afterwards.
    Without ``chance`` only dropout is: for a model that draws none.
    """
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        with still(model, chance=chance), without_graphs():
            yield model
    finally:
        torch.set_num_threads(threads)


class ClaimContradicted(QuietsumError):
    """A step is not what it claims to be. Nothing was trained and nothing was charged."""

    exit_code = 5


def refuse_unsound(step: CheckedStep, model: nn.Module, *, rng: RandomSource | None = None) -> CheckReport:
    """The one-step self-check before a training: the report, or :class:`ClaimContradicted` with what is wrong.

    Chance is held where the step draws any on a few rows; one that draws it only on others fails a check of replays.
    """

    def run() -> None:
        for count in _TRIED:
            step.deterministic(step.examples(count, system_randomness()))

    with while_checking(model, chance=draws_chance(model, run)):
        report = one_step(step, rng=rng)
    if not report.passed:
        found = report.failures[0]
        lesson = found.lesson + _explain_rounding(model)
        raise ClaimContradicted(f"{report.step} fails its self-check in {found.test} ({found.name}): {lesson}")
    return report


def _explain_rounding(model: nn.Module) -> str:
    """What to try first on a card that may multiply in TF32: which kernel does depends on how many rows there are."""
    if not any(parameter.is_cuda for parameter in model.parameters()):
        return ""
    switches = []
    if torch.get_float32_matmul_precision() != "highest":
        switches.append('torch.set_float32_matmul_precision("highest")')
    if torch.backends.cudnn.allow_tf32 and any(isinstance(module, _ConvNd) for module in model.modules()):
        switches.append("torch.backends.cudnn.allow_tf32 = False")
    if not switches:
        return ""
    return (
        " This card may multiply in TF32, with 10 bits, and which product does may depend on how many rows a batch "
        f"has, so that a record moves what others add by rounding: try {' and '.join(switches)} first."
    )


def constants_for(config: PrivacyConfig, size: int) -> Callable[[int], Mapping[str, float]]:
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


def wrap_task(
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

    def make(some: nn.Module) -> PrivateStep:
        return PrivateStep.build(
            some,
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
        model,
        rows=MadeUp.like(tuple(part.numpy() for part in blank), below=classes),
        population=population,
        referee=lambda some: SteadyEngine(engine_for("naive", some, task.loss, clip), some, task.loss),
        name=f"{task.name}, engine {make(model).engine.name}",
    )
    return step, model


def check_step(
    model: nn.Module, loss: Loss, config: PrivacyConfig, plan: TrainingSchedule, records: Records, device: torch.device
) -> None:
    """Refuse a step that is not what it claims: its clip, noise and sampling are tried on made-up rows.

    Guarantees: no record is read, and parameters and buffers are afterwards what they were.
    """
    made_up = (part.float() if part.dtype is torch.bfloat16 else part for part in records.make_up())
    rows = tuple(part.cpu().numpy() for part in made_up)
    with keep_unchanged(model):
        classes = 2
        if loss is cross_entropy:
            with torch.no_grad(), while_checking(model):
                classes = int(model(records.make_up(device)[0]).shape[-1])
        step = CheckedStep(
            lambda some: build_step(some, loss, config, plan), model,
            rows=MadeUp.like(rows, below=classes), population=plan.size, name="the training step",
        )  # fmt: skip
        refuse_unsound(step, model)
