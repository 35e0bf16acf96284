"""Canaries on their way through a training: behind the real rows, through the same draw, engine, clip and noise.

The model gains one table with a number for each canary, and the loss one term,

    loss(model, row) + K · table[canary]        the first part counts for records, the second for canaries,

so a canary's gradient is K in its own number and zero elsewhere, and a record's is what it was. K is far above the
clip bound C, so the clipped gradient is C in that number. The table stays zero: it is never stepped, nor saved.

Guarantees: the real parameters of a step's release have the same law with canaries as without. The draw is Poisson, so
whether a canary is drawn says nothing about a record; denominators and charges are those of the plan. Secure noise is
wider by the factor that its grid needs for that many more numbers, about one in 10⁶.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from quietsum.errors import CorruptState, InvalidParameter, PlanRefused
from quietsum.learning.canaries.record import (
    Canaries,
    CanaryRecord,
    choose_canaries,
    read_canaries,
    write_included,
    write_steps,
)
from quietsum.learning.config import PrivacyConfig, TrainingSchedule
from quietsum.learning.engines.protocol import Batch, Loss
from quietsum.learning.rows.memory import carry
from quietsum.learning.rows.records import MADE_UP_ROWS, Records
from quietsum.learning.step import PrivateStep
from quietsum.mechanisms import RandomSource, system_randomness

__all__ = [
    "CarriedLoss", "CarriedRecords", "Carrier", "CarryingModel", "pull_on", "read_canary_table",
    "refuse_canaries",
]  # fmt: skip

_ABOVE = 2.0**14  # K over the largest clip bound
_WIDEST = 1000.0  # a noise multiplier beyond which secure noise has another grid, and no audit has any power

REFUSED = {
    "per-layer": "the canaries' table would be one more layer, and every layer's bound would shrink",
    "adaptive": "the count that steers the bound would count canaries as well",
}


def pull_on(max_norm: float) -> float:
    """K, a canary's gradient: far longer than any clip."""
    return _ABOVE * max(1.0, max_norm)


def read_canary_table(step: PrivateStep, released: Sequence[Tensor]) -> NDArray[np.float64]:
    """What a step has released of each canary, in units of the clip bound."""
    table: NDArray[np.float64] = released[-1].detach().to(torch.float64).cpu().numpy()[1:, 0]
    return table * (step.expected_batch / step.sensitivity)


@final
class CarryingModel(nn.Module):
    """A model with a table of canaries beside it; number 0 stands for records."""

    def __init__(self, inner: nn.Module, canaries: int) -> None:
        super().__init__()
        first = next(parameter for parameter in inner.parameters() if parameter.requires_grad)
        self.inner = inner
        self.canaries = nn.Embedding(canaries + 1, 1, device=first.device, dtype=first.dtype)
        nn.init.zeros_(self.canaries.weight)


@final
class CarriedLoss:
    """The loss of a batch whose last part says which rows are canaries."""

    def __init__(self, loss: Loss, pull: float) -> None:
        self._loss, self._pull = loss, pull

    def __call__(self, model: nn.Module, batch: Batch) -> Tensor:
        """One value per row."""
        assert isinstance(model, CarryingModel)
        *rows, marks = batch
        own = self._loss(model.inner, tuple(rows))
        pull = model.canaries(marks.unsqueeze(-1)).flatten() * self._pull
        losses: Tensor = torch.where(marks > 0, pull.to(own.dtype), own)
        return losses


@final
class CarriedRecords:
    """Records with canaries behind them, each row with a mark."""

    def __init__(self, records: Records, marks: NDArray[np.int64], rehearsed: tuple[nn.Module, Loss]) -> None:
        self._records, self._marks = records, marks
        self.rehearsed: tuple[nn.Module, Loss] | None = rehearsed
        self._row = records.make_up(count=1)

    def __len__(self) -> int:
        return len(self._records) + len(self._marks)

    def coordinates(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """The coordinates of the canaries among these numbers."""
        return self._marks[indices[indices >= len(self._records)] - len(self._records)] - 1

    def batch(self, indices: NDArray[np.int64], device: torch.device | None = None) -> Batch:
        """The rows with these numbers, and their marks."""
        with contextlib.closing(self.read(iter((indices,)), device)) as batches:
            return next(batches)[1]

    def read(
        self, draws: Iterator[NDArray[np.int64]], device: torch.device | None = None
    ) -> Generator[tuple[NDArray[np.int64], Batch], None, None]:
        """Each draw with its rows and their marks; see :meth:`quietsum.learning.rows.records.Records.read`."""
        taken: deque[NDArray[np.int64]] = deque()

        def real() -> Iterator[NDArray[np.int64]]:
            for drawn in draws:
                taken.append(drawn)
                yield drawn[drawn < len(self._records)]

        with contextlib.closing(self._records.read(real(), device)) as batches:
            for _, batch in batches:
                drawn = taken.popleft()
                yield drawn, self._append(batch, drawn[drawn >= len(self._records)], device)

    def _append(self, real: Batch, behind: NDArray[np.int64], device: torch.device | None) -> Batch:
        own = self._marks[behind - len(self._records)]
        marks = torch.zeros(len(real[0]) + len(own), dtype=torch.int64)
        marks[len(real[0]) :] = torch.from_numpy(own)
        parts = [
            torch.cat([part, carry(row, device).expand(len(own), *row.shape[1:])])
            for part, row in zip(real, self._row, strict=True)
        ]
        return (*parts, carry(marks, device))

    def make_up(self, device: torch.device | None = None, count: int = MADE_UP_ROWS) -> Batch:
        """Made-up rows, every second one a canary."""
        return (*self._records.make_up(device, count), torch.arange(count, device=device).remainder(2))


def refuse_canaries(config: PrivacyConfig, plan: TrainingSchedule) -> None:
    """Refuse a training whose claim canaries cannot test, with the reason."""
    reason = REFUSED.get(config.clipping)
    if reason is None and config.noise_type != "gaussian":
        reason = "the tests know Gaussian noise alone"
    if reason is None and max(stage.noise_multiplier for stage in plan.stages) > _WIDEST:
        reason = f"noise above {_WIDEST:g} times the clip hides any fault from every audit of this length"
    if reason is not None:
        kind = config.clipping if config.clipping in REFUSED else config.noise_type
        raise PlanRefused(
            f"audit: a training with {kind} steps cannot carry canaries, since {reason}; leave the audit out, or use "
            "clipping='flat' or 'automatic' with Gaussian noise"
        )


@final
class Carrier:
    """The canaries of one training: its model, loss and rows with them, and what was recorded.

    ``more`` is how many times the noise is that which its clip needs, for all steps alike.
    """

    def __init__(
        self,
        canaries: Canaries,
        model: nn.Module,
        loss: Loss,
        plan: TrainingSchedule,
        *,
        rng: RandomSource | None = None,
    ) -> None:
        self.count = choose_canaries(canaries, plan.size)
        self.model: nn.Module = CarryingModel(model, self.count)
        self.loss: Loss = CarriedLoss(loss, pull_on(max(stage.max_norm for stage in plan.stages)))
        source = system_randomness() if rng is None else rng
        self.included: NDArray[np.bool_] = source.uniforms(self.count) < 0.5
        self._folder: Path | None = None
        self._run = ""
        self._chunks: list[dict[str, NDArray[Any]]] = []
        self._begin_chunk()

    def _begin_chunk(self) -> None:
        self._steps: list[int] = []
        self._drawn: list[NDArray[np.bool_]] = []
        self._released: list[NDArray[np.float32]] = []

    def keep_in(self, folder: Path, run: str, *, resume: bool) -> None:
        """Write the coins into ``folder``, or read those of the run that goes on."""
        self._folder, self._run = folder, run
        if not resume:
            return write_included(folder, run, self.included)
        found = read_canaries(folder, run)
        if found is None or len(found.included) != self.count:
            raise CorruptState(f"{folder} does not hold the canaries of {run}; restore it from a backup")
        self.included = found.included
        return None

    def rows(self, records: Records) -> CarriedRecords:
        """``records`` with the canaries that are in behind them."""
        marks = np.flatnonzero(self.included).astype(np.int64) + 1
        return CarriedRecords(records, marks, (self.model, self.loss))

    def find_more(self, step: PrivateStep, plan: TrainingSchedule) -> float:
        """How many times the noise is that which its clip needs, from public numbers."""
        mechanism, parameters = step.mechanism, [one.detach() for one in step.engine.parameters]
        found = {
            mechanism.rescale(noise_multiplier=stage, sensitivity=mechanism.sensitivity).more(parameters)
            for stage in {one.noise_multiplier for one in plan.stages}
        }
        if max(found) > min(found) * (1 + 1e-9):
            raise InvalidParameter("schedule", "noise", "changes the noise's grid", "leave the audit out")
        return max(found)

    def take(
        self, step: PrivateStep, number: int, coordinates: NDArray[np.int64], released: Sequence[Tensor]
    ) -> Sequence[Tensor]:
        """Record what a step has released of the canaries; returns the rest, which is the model's."""
        drawn = np.zeros(self.count, dtype=np.bool_)
        drawn[coordinates] = True
        self._steps.append(number)
        self._drawn.append(drawn)
        self._released.append(read_canary_table(step, released).astype(np.float32))
        return released[:-1]

    def end_chunk(self) -> None:
        """Keep the steps since the last chunk: on disk, or in memory where there is no folder."""
        if self._steps:
            chunk: dict[str, NDArray[Any]] = {
                "steps": np.array(self._steps, dtype=np.int64),
                "drawn": np.array(self._drawn),
                "released": np.array(self._released),
            }
            if self._folder is None:
                self._chunks.append(chunk)
            else:
                write_steps(self._folder, self._run, chunk)
        self._begin_chunk()

    def record(self) -> CanaryRecord:
        """Everything that was recorded so far."""
        if self._folder is not None:
            found = read_canaries(self._folder, self._run)
            assert found is not None
            return found
        return CanaryRecord.join(self.included, self._chunks)
