"""Trainers that do not do what they claim, each with the test of an audit that is made for it.

What such a trainer records and claims stays as it is; only its step is another one. The benchmark of the audit
(``benchmarks/canaries.py``) uses them as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor

import quietsum.learning.trainer as trainers
from quietsum.learning import Batch
from quietsum.learning.canaries.carrying import Carrier
from quietsum.learning.noise.gradient_noise import TorchNoise
from quietsum.learning.step import PrivateStep, build_step

ROWS, BATCH = 1000, 50
"""What the shuffled trainer cuts its epochs by."""


def halve_noise(step: PrivateStep, carrier: Carrier) -> None:
    whole = step.mechanism.add

    def add(sums: Any) -> tuple[Tensor, ...]:
        return tuple((noisy + part) / 2 for noisy, part in zip(whole(sums), sums, strict=True))

    _replace_add(step, add)


def repeat_noise(step: PrivateStep, carrier: Carrier) -> None:
    once = torch.cat([part.flatten() for part in step.noise()])

    def add(sums: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Whether the sums come one by one or end to end."""
        sizes = [part.numel() for part in sums]
        pieces = once[: sum(sizes)].split(sizes)
        return tuple(part + extra.view(part.shape) for part, extra in zip(sums, pieces, strict=True))

    _replace_add(step, add)


class _Mechanism:
    """The real mechanism with another way to add."""

    def __init__(self, real: TorchNoise, add: Callable[[Any], tuple[Tensor, ...]]) -> None:
        self._real, self.add = real, add

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def rescale(self, **values: Any) -> Any:
        return _Mechanism(self._real.rescale(**values), self.add)


def _replace_add(step: PrivateStep, add: Callable[[Any], tuple[Tensor, ...]]) -> None:
    step.mechanism = _Mechanism(step.mechanism, add)  # type: ignore[assignment]


def clip_batch(step: PrivateStep, carrier: Carrier) -> None:
    def clipped(batch: Batch) -> tuple[Tensor, ...]:
        parameters = step.engine.parameters
        whole = torch.autograd.grad(carrier.loss(carrier.model, batch).sum(), parameters, materialize_grads=True)
        norm = torch.sqrt(sum((part.square().sum() for part in whole), torch.zeros(())))
        return tuple(part * min(1.0, step.sensitivity / float(norm)) for part in whole)

    step._clip_batch = clipped  # type: ignore[method-assign]


def shuffle(step: PrivateStep, carrier: Carrier) -> None:
    rng, left = np.random.default_rng(), np.empty(0, np.int64)

    def sample(population: int) -> Any:
        nonlocal left
        if not len(left):
            left = rng.permutation(population)
        size = -(-population * BATCH // ROWS)
        batch, left = left[:size], left[size:]
        return batch

    step.sample = sample  # type: ignore[method-assign]


def count_twice(step: PrivateStep, carrier: Carrier) -> None:
    whole = step.deterministic
    step.deterministic = lambda batch: tuple(2 * part for part in whole(batch))  # type: ignore[method-assign]


def draw_together(step: PrivateStep, carrier: Carrier) -> None:
    """All records or none, at the right rate."""
    rng = np.random.default_rng()
    step.sample = lambda population: np.arange(population if rng.random() < step.rate else 0)  # type: ignore[method-assign]


FAULTS: dict[str, tuple[Callable[[PrivateStep, Carrier], None], str]] = {
    "half noise": (halve_noise, "noise"),
    "batch clip": (clip_batch, "contribution"),
    "shuffled batches": (shuffle, "once an epoch"),
    "noise used again": (repeat_noise, "replay"),
    "a record counts twice": (count_twice, "contribution"),
    "joint draws": (draw_together, "together"),
}


@contextmanager
def faulty_trainers(fault: Callable[[PrivateStep, Carrier], None]) -> Iterator[None]:
    """Trainers make a faulty step meanwhile; what they claim and record stays as it is."""
    carriers: list[Carrier] = []

    def make(*args: Any, **values: Any) -> Carrier:
        carriers.append(Carrier(*args, **values))
        return carriers[-1]

    def build(*args: Any) -> PrivateStep:
        step = build_step(*args)
        fault(step, carriers[-1])
        return step

    with mock.patch.object(trainers, "Carrier", make), mock.patch.object(trainers, "build_step", build):
        yield
