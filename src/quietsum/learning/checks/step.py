"""A torch step taken apart for :mod:`quietsum.selfcheck`: tensors to arrays, one seam after the other.

The self-check knows arrays and vectors. :class:`CheckedStep` wraps a :class:`~quietsum.learning.step.PrivateStep` and
feeds it made-up rows of the data's shape; no protected record is read.
"""

from __future__ import annotations

import contextlib
import copy
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from quietsum.errors import InvalidParameter
from quietsum.learning.checks.count import CountUnderTest
from quietsum.learning.checks.numpy_step import MadeUp
from quietsum.learning.engines.protocol import Engine, is_on_card
from quietsum.learning.step import PrivateStep
from quietsum.mechanisms import RandomSource, system_randomness
from quietsum.privacy import Gaussian, Laplace, PoissonSampled, PrivacyEvent
from quietsum.selfcheck import Batch, Floats, Law, TrainerOutput
from quietsum.validate import whole_number

__all__ = ["CheckedStep", "CheckedTwin"]


@final
class CheckedStep:
    """A :class:`~quietsum.learning.step.PrivateStep` under test.

    ``make`` builds the step of a model and is called again for every restart, as a new process would, and for a copy
    of the model in float64, which separates rounding from faults. ``referee`` makes an engine for the naive sum.
    ``constants`` gives the numbers that steer a run for a number of records; those of the step itself are always among
    them. ``said`` is what a trainer lets out about a batch besides its gradient, a loss say. Dropout must be off
    (:func:`while_checking`), since a sum that changes cannot be replayed.

    With adaptive clipping the noisy count is a coordinate of the sum (:mod:`quietsum.learning.checks.count`), so that
    sensitivity, noise and event are checked of both together.
    """

    def __init__(
        self,
        make: Callable[[nn.Module], PrivateStep],
        model: nn.Module,
        *,
        rows: MadeUp,
        population: int,
        referee: Callable[[nn.Module], Engine] | None = None,
        constants: Callable[[int], Mapping[str, float]] | None = None,
        said: Callable[[tuple[Tensor, ...]], Mapping[str, float]] | None = None,
        name: str = "",
        charged: int = 0,
    ) -> None:
        self._said, self._model = said, model
        self._make, self._rows, self._referee, self._constants = make, rows, referee, constants
        self._step, self._charged = make(model), charged
        self.population = whole_number("population", population, 1)
        self.name = name or "private step"
        event = self._step.event()
        inner = event.event if isinstance(event, PoissonSampled) else event
        if not isinstance(inner, Gaussian | Laplace):
            raise InvalidParameter("event", type(inner).__name__, "cannot be checked", "use Gaussian or Laplace noise")
        self.law = Law.LAPLACE if isinstance(inner, Laplace) else Law.GAUSSIAN
        self._count = None if self._step.adaptive is None else CountUnderTest(self._step, self._step.adaptive)
        claim: Any = self._count or self._step
        self.sensitivity, self.noise_multiplier = float(claim.sensitivity), float(claim.noise_multiplier)
        self.rate = float(self._step.rate)
        self._naive = None if referee is None else referee(model)
        self._device, self._dtype = self._step.engine.parameters[0].device, self._step.engine.parameters[0].dtype

    @property
    def precision(self) -> float:
        """Of the coarsest parameter."""
        return max(float(torch.finfo(parameter.dtype).eps) for parameter in self._step.engine.parameters)

    @property
    def allowance(self) -> float:
        """Secure noise covers the rounding of the sum, and is that much wider than claimed."""
        if self._step.mechanism.mode != "secure":
            return 0.0
        mechanism = self._step.mechanism
        width, scale = mechanism.grid(self._step.engine.parameters)
        return width * scale / (mechanism.noise_multiplier * mechanism.sensitivity) - 1

    @property
    def grain(self) -> float:
        """Secure noise lies on the grid to which the sum was rounded."""
        mechanism = self._step.mechanism
        return mechanism.grid(self._step.engine.parameters)[0] if mechanism.mode == "secure" else 0.0

    @functools.cached_property
    def twin(self) -> CheckedTwin | None:
        """Copies of the model: one to shake, and one in float64 where model and loss can be run so."""
        like = self._copy()
        return None if like is None else CheckedTwin(like, self._copy(torch.float64) or like)

    def _copy(self, dtype: torch.dtype | None = None) -> CheckedStep | None:
        """The step of a copy of the model, in that precision if stated; None where it raises on made-up rows."""
        with contextlib.suppress(Exception):  # whatever a model raises that insists on its precision
            model = copy.deepcopy(self._model)
            model = model if dtype is None else model.to(dtype)
            step = CheckedStep(self._make, model, rows=self._rows, population=self.population, referee=self._referee)
            step._step.engine.clipped_sum(step._tensors(self._rows.draw(2, system_randomness())))
            return step
        return None

    def shaken(self, batch: Batch, width: float, rng: RandomSource) -> Floats:
        """The sum after every weight and every float of a row was moved by a random part ``width`` of itself.

        The weights come back, to the bit. It is asked of copies alone.
        """
        kept = [parameter.detach().clone() for parameter in self._model.parameters()]
        try:
            with torch.no_grad():
                for parameter in self._model.parameters():
                    moved = torch.from_numpy(rng.normals(parameter.numel())).view(parameter.shape)
                    parameter.mul_(1 + width * moved.to(parameter))
            with np.errstate(all="ignore"):
                rows = tuple(
                    part.astype(np.float64) * (1 + width * rng.normals(part.size).reshape(part.shape))
                    if part.dtype.kind == "f"
                    else part
                    for part in batch
                )
            return self.deterministic(rows)
        finally:
            with torch.no_grad():
                for parameter, value in zip(self._model.parameters(), kept, strict=True):
                    parameter.copy_(value)

    def examples(self, count: int, rng: RandomSource) -> Batch:
        """Made-up rows."""
        return self._rows.draw(count, rng)

    def _tensors(self, batch: Batch) -> tuple[Tensor, ...]:
        """On the model's device, and numbers in its precision."""
        parts = [torch.from_numpy(np.ascontiguousarray(part)).to(self._device) for part in batch]
        return tuple(part.to(self._dtype) if part.is_floating_point() else part for part in parts)

    def deterministic(self, batch: Batch) -> Floats:
        """Σ clipped, before the noise."""
        rows = self._tensors(batch)
        return self._append_count(flat(self._step.deterministic(rows)), rows)

    def _append_count(self, total: Floats, rows: tuple[Tensor, ...]) -> Floats:
        return total if self._count is None else np.append(total, self._count.count(rows))

    def noise(self) -> Floats:
        """What is added to that sum."""
        noise = flat(self._step.noise())
        return noise if self._count is None else np.append(noise, self._count.noise())

    def beside(self, draws: int) -> Floats:
        """The noise of the count alone."""
        return np.empty(0) if self._count is None else self._count.scores(draws)

    def release(self, batch: Batch) -> Floats:
        """The gradient that training sees, times the public expected batch."""
        rows, divisor = self._tensors(batch), float(self._step.expected_batch)
        if self._count is None:
            released = flat(self._step.gradient(rows))
            return np.multiply(released, divisor, out=released)
        gradient, count = self._count.release(rows)
        return np.append(gradient * divisor, count)

    def sample(self, population: int) -> NDArray[np.int64]:
        """One draw."""
        return np.asarray(self._step.sample(population), dtype=np.int64)

    def run(self, batches: Sequence[Batch]) -> TrainerOutput:
        """One charge and one release for each batch."""
        self._charged += len(batches)
        said: dict[str, float] = {}
        if self._said is not None:
            for batch in batches:
                said.update(self._said(self._tensors(batch)))
        releases = tuple(self.release(batch) for batch in batches)
        return TrainerOutput(releases=releases, charged=self._charged, said=said)

    def restart(self) -> CheckedStep:
        """Another one from the same settings; only the books go on."""
        return CheckedStep(
            self._make,
            self._model,
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
        if self._naive is None:
            return None
        rows = self._tensors(batch)
        scale = 1.0 if self._step.scaled is None else self._step.scaled.max_norm
        return self._append_count(flat(self._naive.clipped_sum(rows)) * scale, rows)


@final
class CheckedTwin:
    """A copy to shake and a copy to compare with, whose floats are no coarser; they may be the same."""

    def __init__(self, like: CheckedStep, finer: CheckedStep) -> None:
        self.shaken = like.shaken
        self.precision, self.deterministic, self.reference = finer.precision, finer.deterministic, finer.reference


def flat(parts: Sequence[Tensor]) -> Floats:
    """Tensors as one float64 vector, each number written once, and read from a card in one piece."""
    if parts and all(is_on_card(part) for part in parts):
        parts = [torch.cat([part.detach().reshape(-1) for part in parts]).cpu()]
    whole = torch.empty(sum(part.numel() for part in parts), dtype=torch.float64)
    start = 0
    for part in parts:
        whole[start : start + part.numel()].view(part.shape).copy_(part.detach())
        start += part.numel()
    return whole.numpy()
