"""A person's own data and loop: Poisson batches in place of a loader's.

An ordinary loader shuffles and cuts. Accounted as Poisson sampling that under-reports ε several times over (Chua et al.
2024), so the loader's data set is taken and the batches are drawn here. :func:`build_step` makes the step that a
config asks for; :func:`make_private` is for a loop written by hand.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, final

import torch
from torch import nn

from quietsum.errors import BudgetExhausted, InvalidParameter, QuietsumError
from quietsum.learning.adaptive import QuantileClip
from quietsum.learning.clipping import Automatic, Clip, Flat, FlatL1, PerLayer
from quietsum.learning.config import PrivacyConfig, Spending, TrainingPlan, plan_training
from quietsum.learning.engine import Batch, Loss
from quietsum.learning.mixing import refuse_mixing
from quietsum.learning.records import Records, rehearse, rehearse_step
from quietsum.learning.step import PrivateStep, cross_entropy
from quietsum.mechanisms.rng import RandomSource
from quietsum.privacy.guarantee import Guarantee

__all__ = ["PoissonLoader", "PrivateOptimizer", "Records", "build_step", "make_private", "rehearse"]


def build_step(
    model: nn.Module, loss: Loss, config: PrivacyConfig, plan: TrainingPlan, rng: RandomSource | None = None
) -> PrivateStep:
    """The step that a config asks for, at the noise of the plan's first stage."""
    bound = config.max_grad_norm
    rules: dict[str, Clip] = {
        "flat": Flat(max_norm=bound), "per-layer": PerLayer(max_norm=bound), "automatic": Automatic(max_norm=bound),
        "adaptive": Flat(max_norm=bound),
    }  # fmt: skip
    clip = FlatL1(max_norm=bound) if config.noise_type == "laplace" else rules[config.clipping]
    adaptive = None
    if config.clipping == "adaptive":
        made: dict[str, Any] = {} if rng is None else {"rng": rng}
        adaptive = QuantileClip(
            count_noise=config.noise_of_count, quantile=config.clip_quantile, learning_rate=config.clip_learning_rate,
            **made,
        )  # fmt: skip
    return PrivateStep.build(
        model, loss, clip, noise_multiplier=plan.stages[0].noise_multiplier, rate=plan.rate,
        expected_batch=plan.expected_batch, engine=config.engine, mode=config.noise, micro_batch=config.micro_batch,
        varying=len({stage.max_norm for stage in plan.stages}) > 1, adaptive=adaptive, rng=rng,
    )  # fmt: skip


# --------------------------------------------------------------------------------------- a loop by hand


def make_private(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    data: Any,
    *,
    config: PrivacyConfig,
    loss: Loss = cross_entropy,
    example: Any = None,
    check_labels: bool = True,
) -> tuple[nn.Module, PrivateOptimizer, PoissonLoader]:
    """For a loop written by hand. The optimizer computes the private gradient itself; ``backward()`` is not called.

    ``example`` and ``check_labels`` are those of :class:`~quietsum.learning.trainer.PrivateTrainer`.

    >>> model = nn.Linear(2, 2)
    >>> data = (torch.randn(40, 2), torch.arange(40) % 2)
    >>> model, optimizer, loader = make_private(
    ...     model, torch.optim.SGD(model.parameters(), lr=0.5), data,
    ...     config=PrivacyConfig(epsilon=3.0, epochs=2, batch_size=8),
    ... )
    >>> for epoch in range(2):
    ...     for batch in loader:      # a Poisson batch, drawn and charged
    ...         optimizer.step()      # clip, noise, divide, move
    >>> optimizer.guarantee().epsilon <= 3.0
    True
    """
    refuse_mixing(model)
    records = Records.of(data, example=example, size_is_private=config.size_is_private)
    device = next(model.parameters()).device
    rehearse(model, loss, records, device, check_labels=check_labels)
    plan = plan_training(config, size=len(records))
    step = build_step(model, loss, config, plan)
    rehearse_step(step, records, device)
    mine = {id(parameter) for parameter in step.engine.parameters}
    theirs = {id(p) for group in optimizer.param_groups for p in group["params"] if p.requires_grad}
    if theirs - mine:
        problem = "moves parameters that the model does not train"
        raise InvalidParameter("optimizer", type(optimizer).__name__, problem, "pass model.parameters() to it")
    loader = PoissonLoader(records, step, Spending(plan), device)
    return model, PrivateOptimizer(optimizer, loader), loader


@final
class PoissonLoader:
    """Poisson batches, one epoch an iteration. Drawing one charges it, and it must be used before the next."""

    def __init__(self, records: Records, step: PrivateStep, spending: Spending, device: torch.device) -> None:
        self.step, self.spending = step, spending
        self._records, self._device = records, device
        self.pending: Batch | None = None

    def __len__(self) -> int:
        return self.spending.plan.steps_per_epoch

    def __iter__(self) -> Iterator[Batch]:
        if self.spending.left <= 0:
            raise BudgetExhausted(
                f"the plan's {self.spending.plan.steps} steps are done, and another one would overspend; "
                "keep the model, or make a new plan"
            )
        for _ in range(min(len(self), self.spending.left)):
            if self.pending is not None:
                raise QuietsumError(
                    "a batch was drawn and not used: choosing batches by what is in them is no longer Poisson "
                    "sampling; call optimizer.step() once for each batch"
                )
            stage, _ = self.spending.plan.stage_at(self.spending.charged)
            self.step.retune(
                noise_multiplier=stage.noise_multiplier,
                max_norm=stage.max_norm if self.step.scaled is not None and self.step.adaptive is None else None,
            )
            self.spending.charge(1)
            self.pending = self._records.batch(self.step.sample(len(self._records)), self._device)
            yield self.pending


@final
class PrivateOptimizer:
    """A torch optimizer whose ``step`` takes the drawn batch, computes its private gradient and moves the weights."""

    def __init__(self, inner: torch.optim.Optimizer, loader: PoissonLoader) -> None:
        self.inner, self._loader = inner, loader

    def step(self) -> None:
        """Use the batch that the loader drew last."""
        batch, parameters = self._loader.pending, self._loader.step.engine.parameters
        if batch is None:
            raise QuietsumError("there is no drawn batch to use; iterate over the loader, and step once a batch")
        if any(parameter.grad is not None for parameter in parameters):
            raise QuietsumError(
                "the parameters hold a gradient that was not made private; leave out loss.backward(): "
                "optimizer.step() computes the clipped, noisy gradient itself"
            )
        self._loader.pending = None
        for parameter, gradient in zip(parameters, self._loader.step.gradient(batch), strict=True):
            parameter.grad = gradient
        self.inner.step()
        self.zero_grad()

    def zero_grad(self) -> None:
        """Forget gradients."""
        self.inner.zero_grad(set_to_none=True)

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """Those of the torch optimizer: learning rates may be changed there."""
        return self.inner.param_groups

    def guarantee(self) -> Guarantee:
        """What may be said about the model."""
        return self._loader.spending.claim()

    def get_privacy_spent(self) -> tuple[float, float]:
        """(ε, δ) per record so far, if the schedule runs as planned."""
        spent = self._loader.spending.so_far()
        return spent.epsilon, spent.delta
