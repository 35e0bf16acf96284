"""Canaries on their way through a training: behind the real rows, through the same draw, engine, clip and noise.

The model gains one table with a number for each canary, and the loss one term,

    loss(model, row) + K · table[canary]        the first part counts for records, the second for canaries,

so a canary's gradient is K in its own number and zero elsewhere, and a record's is what it was. K is far above the
clip bound C, so the clipped gradient is C in that number. The table stays zero: it is never stepped, nor saved.

A training with more epochs than its audit needs carries its canaries through some of them, drawn at random before the
first step (:func:`count_epochs`); the others cost next to nothing.

Guarantees: the real parameters of a step's release have the same law with canaries as without. The draw is Poisson, so
whether a canary is drawn says nothing about a record; denominators and charges are those of the plan. Secure noise is
wider by the factor that its grid needs for that many more numbers, about one in 10⁶.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
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
    "CarriedLoss", "CarriedRecords", "Carrier", "CarryingModel", "count_canaries", "count_epochs", "pull_on",
    "read_canary_table", "refuse_canaries",
]  # fmt: skip

_ABOVE = 2.0**14  # K over the largest clip bound
_ROOM, _FAR, _FEWEST_EPOCHS = 12_500.0, 6.7, 4  # what an audit needs, see count_epochs
_WIDER = 2  # times the usual number of canaries, so that they ride in fewer epochs
_WIDEST = 1000.0  # a noise multiplier beyond which secure noise has another grid, and no audit has any power

REFUSED = {
    "per-layer": "the canaries' table would be one more layer, and every layer's bound would shrink",
    "adaptive": "the count that steers the bound would count canaries as well",
}


def pull_on(max_norm: float) -> float:
    """K, a canary's gradient: far longer than any clip."""
    return _ABOVE * max(1.0, max_norm)


def read_canary_table(step: PrivateStep, released: Sequence[Tensor]) -> NDArray[np.float32]:
    """What steps of one kind have released of each canary, in units of the clip bound; ``released`` are their tables.

    Guarantees: tables on a card are brought over at once.
    """
    table = torch.stack(list(released))[:, 1:, 0].to(torch.float64).mul_(step.expected_batch / step.sensitivity)
    found: NDArray[np.float32] = table.to(torch.float32).cpu().numpy()
    return found


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
    """The loss of a batch whose last part says which rows are canaries; none and no such part if not ``riding``."""

    def __init__(self, loss: Loss, pull: float) -> None:
        self._loss, self._pull, self.riding = loss, pull, True

    def __call__(self, model: nn.Module, batch: Batch) -> Tensor:
        """One value per row."""
        assert isinstance(model, CarryingModel)
        if not self.riding:
            return self._loss(model.inner, batch)
        *rows, marks = batch
        own = self._loss(model.inner, tuple(rows))
        pull = model.canaries(marks).view(-1) * self._pull
        losses: Tensor = torch.where(marks > 0, pull if pull.dtype is own.dtype else pull.to(own.dtype), own)
        return losses


@final
class CarriedRecords:
    """Records with canaries behind them, each row with a mark."""

    def __init__(self, records: Records, marks: NDArray[np.int64], rehearsed: tuple[nn.Module, Loss]) -> None:
        self.behind, self._marks, self._own = records, marks, len(records)
        self.rehearsed: tuple[nn.Module, Loss] | None = rehearsed
        self._blank: dict[torch.device | None, Batch] = {None: records.make_up(count=1)}

    def __len__(self) -> int:
        return self._own + len(self._marks)

    def coordinates(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """The coordinates of the canaries among these numbers."""
        return self._marks[indices[indices >= self._own] - self._own] - 1

    def mark_drawn(self, draws: Sequence[NDArray[np.int64]], count: int) -> NDArray[np.bool_]:
        """By draw, which of all ``count`` canaries are in it."""
        every, steps = np.concatenate(draws), np.repeat(np.arange(len(draws)), [len(one) for one in draws])
        canaries = every >= self._own
        drawn = np.zeros((len(draws), count), dtype=np.bool_)
        drawn[steps[canaries], self._marks[every[canaries] - self._own] - 1] = True
        return drawn

    def batch(self, indices: NDArray[np.int64], device: torch.device | None = None) -> Batch:
        """The rows with these numbers, and their marks."""
        with contextlib.closing(self.read(iter((indices,)), device)) as batches:
            return next(batches)[1]

    def read(
        self,
        draws: Iterator[NDArray[np.int64]],
        device: torch.device | None = None,
        riding: Iterable[bool] = itertools.repeat(True),
    ) -> Generator[tuple[NDArray[np.int64], Batch], None, None]:
        """Each draw with its rows and their marks; see :meth:`quietsum.learning.rows.records.Records.read`.

        Where it is not ``riding`` canaries are left out, and there are no marks.
        """
        taken: deque[NDArray[np.int64]] = deque()

        def real() -> Iterator[NDArray[np.int64]]:
            for drawn in draws:
                taken.append(drawn)
                yield drawn[drawn < self._own]

        with contextlib.closing(self.behind.read(real(), device)) as batches:
            for (_, batch), rides in zip(batches, riding, strict=False):
                drawn = taken.popleft()
                yield drawn, self._append(batch, drawn, device) if rides else batch

    def _append(self, real: Batch, drawn: NDArray[np.int64], device: torch.device | None) -> Batch:
        own, count = self._marks[drawn[drawn >= self._own] - self._own], len(real[0])
        marks = np.zeros(count + len(own), dtype=np.int64)
        marks[count:] = own
        if len(own):
            pairs = zip(real, self._blank_on(device, len(own)), strict=True)
            real = tuple([torch.cat((part, blank[: len(own)])) for part, blank in pairs])
        return (*real, carry(torch.from_numpy(marks), device))

    def _blank_on(self, device: torch.device | None, count: int) -> Batch:
        """Rows without meaning, ``count`` or more: as many as any batch asked for, end to end in memory."""
        known = self._blank.get(device) or tuple(carry(row[:1], device) for row in self._blank[None])
        if len(known[0]) < count or device not in self._blank:
            known = self._blank[device] = tuple(row[:1].repeat(count, *[1] * (row.dim() - 1)) for row in known)
        return known

    def make_up(self, device: torch.device | None = None, count: int = MADE_UP_ROWS) -> Batch:
        """Made-up rows, every second one a canary."""
        return (*self.behind.make_up(device, count), torch.arange(count, device=device).remainder(2))


def count_epochs(count: int, plan: TrainingSchedule) -> int:
    """Through how many epochs ``count`` canaries are carried: of the plan's 1/q steps each, and at most all of them.

    So many that an audit finds what it must, half the noise, a clip of whole batches and shuffled batches, with room to
    spare: canaries · steps · rate of 12,500, more where the noise σ is above 2, and for the clip (half of the canaries
    are in, k of them in a batch) 1.5² times the steps at which (Σ k − √k) / (σ √(Σ k)) is as far as its test's
    threshold of 10⁻⁷ and 90 % power ask for.
    """
    from scipy import special

    rate, noise = plan.rate, max(stage.noise_multiplier for stage in plan.stages)
    length = max(1, round(1 / rate))
    every, inside = -(-plan.steps // length), count // 2
    most = np.arange(inside + 1)
    chances = special.bdtr(most.astype(float), inside, rate)
    chances = np.diff(chances, prepend=0.0) if rate < 1 else (most == inside).astype(float)
    lost, drawn = float(chances @ (most - np.sqrt(most))), inside * rate
    if not 0 < lost < math.inf:
        return every
    steps = max(_ROOM * max(1.0, noise / 2) ** 2 / (count * rate), (1.5 * _FAR * noise / lost) ** 2 * drawn)
    return min(every, max(_FEWEST_EPOCHS, math.ceil(steps / length)))


def count_canaries(canaries: Canaries, plan: TrainingSchedule) -> int:
    """How many canaries a training carries: the stated number, or the usual one, or up to twice as many.

    A step that carries any costs some fixed work. So where the usual ones need not ride in all epochs, there are as
    many as can ride in the fewest: about as many rows and numbers altogether, in fewer steps.
    """
    usual = choose_canaries(canaries, plan.size)
    most, epochs = _WIDER * usual, count_epochs(usual, plan)
    if canaries.count is not None or epochs >= -(-plan.steps // max(1, round(1 / plan.rate))):
        return usual
    fewest, low = count_epochs(most, plan), usual
    while low < most:  # the fewest canaries that ride in so few epochs
        middle = (low + most) // 2
        low, most = (low, middle) if count_epochs(middle, plan) <= fewest else (middle + 1, most)
    return low


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
        self.count = count_canaries(canaries, plan)
        self.model: nn.Module = CarryingModel(model, self.count)
        self.loss = CarriedLoss(loss, pull_on(max(stage.max_norm for stage in plan.stages)))
        source = system_randomness() if rng is None else rng
        self.included: NDArray[np.bool_] = source.uniforms(self.count) < 0.5
        self._length = max(1, round(1 / plan.rate))
        every = -(-plan.steps // self._length)
        pairs = np.argsort(source.uniforms(-(-every // 2)))  # of neighbours, so that noise of an epoch before is seen
        order = [epoch for pair in pairs.tolist() for epoch in (2 * pair, 2 * pair + 1) if epoch < every]
        self._epochs = frozenset(order[: count_epochs(self.count, plan)])
        self._folder: Path | None = None
        self._run = ""
        self._rows: CarriedRecords | None = None
        self._chunks: list[dict[str, NDArray[Any]]] = []
        self._begin_chunk()

    def _begin_chunk(self) -> None:
        self._steps: list[int] = []
        self._drawn: list[NDArray[np.int64]] = []
        self._released: list[Tensor] = []

    def keep_in(self, folder: Path, run: str, *, resume: bool) -> None:
        """Write the coins into ``folder``, or read those of the run that goes on."""
        self._folder, self._run = folder, run
        if not resume:
            return write_included(folder, run, self.included)
        found = read_canaries(folder, run)
        if found is None or len(found.included) != self.count:
            raise CorruptState(f"{folder} does not hold the canaries of {run}; restore it from a backup")
        self.included, self._rows = found.included, None
        return None

    def rows(self, records: Records) -> CarriedRecords:
        """``records`` with the canaries that are in behind them."""
        if self._rows is None or self._rows.behind is not records:
            self._rows = CarriedRecords(records, np.flatnonzero(self.included) + 1, (self.model, self.loss))
        return self._rows

    def read(
        self, records: Records, draws: Iterator[NDArray[np.int64]], first: int, device: torch.device | None
    ) -> Generator[tuple[NDArray[np.int64], Batch], None, None]:
        """Each draw of :meth:`rows` with its batch, from step ``first`` on: with canaries where they ride."""
        return self.rows(records).read(draws, device, map(self._rides, itertools.count(first)))

    def rides_in(self, first: int, count: int) -> bool:
        """Whether canaries ride in any of ``count`` steps from ``first`` on; if not, the draw is of records alone."""
        epochs = range(first // self._length, (first + count - 1) // self._length + 1)
        return any(epoch in self._epochs for epoch in epochs)

    def _rides(self, number: int) -> bool:
        return number // self._length in self._epochs

    def gradient(self, step: PrivateStep, number: int, drawn: NDArray[np.int64], batch: Batch) -> Sequence[Tensor]:
        """What step ``number`` releases of the model; what it releases of the canaries, if they ride, is noted."""
        self.loss.riding = self._rides(number)
        if not self.loss.riding:
            return step.gradient(batch, released=-1)
        released = step.gradient(batch)
        self._steps.append(number)
        self._drawn.append(drawn)
        self._released.append(released[-1].detach())
        return released[:-1]

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

    def end_chunk(self, step: PrivateStep) -> None:
        """Keep what ``step`` made since the last chunk: on disk, or in memory where there is no folder."""
        if self._steps and self._rows is not None:
            chunk: dict[str, NDArray[Any]] = {
                "steps": np.array(self._steps, dtype=np.int64),
                "drawn": self._rows.mark_drawn(self._drawn, self.count),
                "released": read_canary_table(step, self._released),
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
