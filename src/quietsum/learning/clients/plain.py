"""Training without privacy, for comparison alone: the same model, loss, optimizer and batches, no clip and no noise.

What privacy costs is the distance between two runs that differ in nothing else. :func:`train_plainly` makes the other
one. It publishes all that its model remembers of the records, so it is refused unless the task says why they need no
protection.

Two settings cannot be the same. A private step moves by learning_rate · Σ clip_C(g)/E; where nearly every gradient is
clipped this is learning_rate · C times a mean of unit vectors. The plain step takes gradients as they are, so its
learning rate is that of the private one times min(1, C), as if gradients had length one. A task that knows better has
an attribute ``plain_settings``, chosen like its private ones without test rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from quietsum.errors import InvalidParameter, QuietsumError
from quietsum.learning.checks.frozen_randomness import replay_chance
from quietsum.learning.engines.protocol import trainable
from quietsum.learning.optimizers import AveragedWeights, optimizer_named
from quietsum.validate import positive, whole_number

__all__ = ["PlainSettings", "PlainTask", "PlainlyTuned", "fresh_model", "plain_learning_rate", "train_plainly"]

_USUAL = 1e-3
"""Adam's learning rate as Kingma and Ba suggest it."""


class PlainSettings(Protocol):
    """How a task is trained: what :class:`quietsum.tasks.Settings` holds."""

    @property
    def learning_rate(self) -> float | None:
        """The size of a step; None leaves it open."""
        ...

    @property
    def optimizer(self) -> str | None:
        """``sgd``, ``momentum``, ``adam`` or ``dp-adam``; None leaves it open."""
        ...

    @property
    def training(self) -> dict[str, Any]:
        """``batch_size`` and ``epochs``, and perhaps ``max_grad_norm`` and ``ema_decay``."""
        ...


class PlainTask(Protocol):
    """What is needed of a task here."""

    @property
    def name(self) -> str:
        """Its name."""
        ...

    @property
    def public(self) -> str:
        """Why the records need no protection; empty where they do."""
        ...

    @property
    def settings(self) -> PlainSettings:
        """How it is trained privately."""
        ...

    def model(self) -> nn.Module:
        """A fresh model."""
        ...

    def loss(self, model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        """One value per example."""
        ...

    def records(self) -> tuple[Tensor, ...]:
        """The training records."""
        ...


@runtime_checkable
class PlainlyTuned(Protocol):
    """A task that knows how it is best trained without privacy."""

    @property
    def plain_settings(self) -> PlainSettings:
        """Learning rate, optimizer, batch and epochs of the plain run."""
        ...


def fresh_model(task: PlainTask, seed: int) -> nn.Module:
    """The task's model with first weights that ``seed`` decides; torch's global generator is left as it was.

    First weights are public and never noise, so seeding them costs nothing. It pairs the plain run with private ones.
    """
    with replay_chance(seed=whole_number("seed", seed)):
        return task.model()


def plain_learning_rate(settings: PlainSettings) -> float:
    """The private learning rate times min(1, C); where it is open, that of Adam which is usual."""
    if settings.learning_rate is None:
        return _USUAL
    return float(settings.learning_rate) * min(1.0, float(settings.training.get("max_grad_norm", 1.0)))


def train_plainly(
    task: PlainTask,
    *,
    settings: PlainSettings | None = None,
    epochs: int | None = None,
    seed: int = 0,
    model: nn.Module | None = None,
    watch: Callable[[int, int], None] | None = None,
) -> nn.Module:
    """Train ``task`` on shuffled batches without clip and noise, and return the model.

    ``settings`` replaces the task's ``plain_settings``, or its private ones with :func:`plain_learning_rate`. ``model``
    is trained where it is, on a GPU for instance; without it a :func:`fresh_model` is. ``seed`` decides first weights
    and batches. ``watch(epoch, epochs)`` is called after each epoch.

    Guarantees: none at all. A task whose ``public`` is empty is refused before any record is read.
    """
    if not str(task.public).strip():
        raise QuietsumError(
            f"{task.name} has records that somebody needs protected, and training without privacy on protected records "
            "would publish them; compare on a public set of the same kind, or state in the task's `public` why it "
            "needs no protection"
        )
    chosen, rate = _choose(task, settings)
    known: Mapping[str, Any] = chosen.training
    count = whole_number("epochs", known.get("epochs", 10) if epochs is None else epochs, 1)
    batch = whole_number("batch_size", known.get("batch_size", 256), 1)
    rate = positive("learning_rate", rate)
    model = fresh_model(task, seed) if model is None else model
    _, parameters = trainable(model)
    optimizer = optimizer_named(chosen.optimizer or "adam").bind(parameters)
    decay = known.get("ema_decay")
    averages = None if decay is None else AveragedWeights(parameters, decay)
    device = parameters[0].device
    records = tuple(part.to(device) for part in task.records())
    if not records or not len(records[0]):
        raise InvalidParameter("records", task.name, "holds no records", "a plain run needs at least one")
    generator = torch.Generator().manual_seed(whole_number("seed", seed))
    was_training = model.training
    model.train()
    try:
        for epoch in range(1, count + 1):
            order = torch.randperm(len(records[0]), generator=generator).to(device)
            for rows in torch.split(order, batch):
                loss = task.loss(model, tuple(part[rows] for part in records)).mean()
                gradient = torch.autograd.grad(loss, parameters, allow_unused=True)
                moves = [
                    torch.zeros_like(p) if g is None else g.detach() for g, p in zip(gradient, parameters, strict=True)
                ]
                optimizer.step(moves, learning_rate=rate, noise_variance=0.0)
                if averages is not None:
                    averages.take()
            if watch is not None:
                watch(epoch, count)
    finally:
        model.train(was_training)
    if averages is not None:
        averages.swap()
    if not all(bool(torch.isfinite(parameter).all()) for parameter in parameters):
        raise InvalidParameter("learning_rate", rate, "made the weights overflow", "take smaller steps")
    return model


def _choose(task: PlainTask, settings: PlainSettings | None) -> tuple[PlainSettings, float]:
    """The settings of the plain run and its learning rate."""
    if settings is not None:
        return settings, _USUAL if settings.learning_rate is None else settings.learning_rate
    if isinstance(task, PlainlyTuned):
        rate = task.plain_settings.learning_rate
        return task.plain_settings, _USUAL if rate is None else rate
    return task.settings, plain_learning_rate(task.settings)
