"""``make_private``: Poisson batches and private steps for a training loop written by hand.

An ordinary loader shuffles and cuts. Accounted as Poisson sampling that under-reports ε several times over (Chua et al.
2024), so :func:`make_private` takes the loader's data set and draws the batches itself.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from quietsum.errors import BudgetExhausted, InvalidParameter, QuietsumError
from quietsum.learning.checks.before_training import check_step
from quietsum.learning.checks.moved import FirstStep, refuse_dropped
from quietsum.learning.config import PrivacyConfig, plan_training
from quietsum.learning.defaults import has_classes, settle_config
from quietsum.learning.distributed.agreement import describe_training, match_processes
from quietsum.learning.distributed.processes import find_processes
from quietsum.learning.distributed.wrapped import refuse_wrapped
from quietsum.learning.engines.batch_mixing import refuse_mixing
from quietsum.learning.engines.protocol import Batch, Loss, trainable
from quietsum.learning.rehearsal import rehearse_model, rehearse_step
from quietsum.learning.rows.named import read_named
from quietsum.learning.rows.records import Records
from quietsum.learning.spending import Spending
from quietsum.learning.step import PrivateStep, build_step, cross_entropy
from quietsum.privacy import Guarantee

__all__ = ["PoissonLoader", "PrivateOptimizer", "make_private"]

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
    selfcheck: bool = True,
) -> tuple[nn.Module, PrivateOptimizer, PoissonLoader]:
    """For a loop written by hand. The optimizer computes the private gradient itself; ``backward()`` is not called.

    ``example``, ``check_labels`` and ``selfcheck`` are those of :class:`~quietsum.learning.trainer.PrivateTrainer`. The
    model is checked in the mode in which it is, and must be stepped in that mode: call ``model.train()`` before. What
    is trained is fixed here too: ``optimizer`` must hold every parameter that requires a gradient. Several processes of
    ``torch.distributed`` make one training together, if each runs the same loop.

    Guarantees: the weights that ``step()`` makes cost :meth:`PrivateOptimizer.guarantee`. Nothing else does. The batch
    in your hand is a copy of *private records*: no change to it reaches the step, but a loss, a count or a picture that
    you compute from it, or another change of the weights that depends on it, is covered by no noise.

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
    refuse_wrapped(model)
    refuse_mixing(model)
    trainable(model)
    _refuse_optimizer(model, optimizer, config)
    named = read_named(data, None, example, model=model, loss=loss, size_is_private=config.size_is_private)
    data, example, loss = named.data, named.example, named.loss
    processes = find_processes()
    records = Records.of(data, quiet=not processes.first, example=example, size_is_private=config.size_is_private)
    device = next(model.parameters()).device
    rehearse_model(model, loss, records, device, check_labels=check_labels)
    refuse_dropped(model, loss, records.make_up(device), trainable(model)[1])
    config = settle_config(config, len(records), labelled=loss is cross_entropy or has_classes(records))
    plan = plan_training(config, size=len(records))
    step = build_step(model, loss, config, plan)
    rehearse_step(step, records, device)
    if selfcheck:
        check_step(model, loss, config, plan, records, device)
    match_processes(processes, records, describe_training(model, loss, config, optimizer))
    processes.spread(list(model.state_dict().values()))
    step.processes = processes
    loader = PoissonLoader(records, step, Spending(plan), _AsChecked(model, optimizer, step))
    return model, PrivateOptimizer(optimizer, loader), loader


def _refuse_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer, config: PrivacyConfig) -> None:
    """What an optimizer cannot do in a private loop is said before anything is charged."""
    shown = type(optimizer).__name__
    if isinstance(optimizer, PrivateOptimizer):
        problem = "is private already, under a plan of its own"
        raise InvalidParameter("optimizer", shown, problem, "pass a torch optimizer to every make_private")
    if isinstance(optimizer, torch.optim.LBFGS):
        problem = "asks for the gradient several times a step, and each would be a release of its own"
        raise InvalidParameter("optimizer", shown, problem, "use SGD or Adam")
    mine, theirs = set(_trainable(model)), _parameters_of(optimizer)
    if theirs - mine:
        problem = "moves parameters that the model does not train"
        raise InvalidParameter("optimizer", shown, problem, "pass model.parameters() to it")
    if mine - theirs:
        problem = "holds only some of the parameters that require a gradient"
        remedy = "pass model.parameters() to it, or freeze the others with requires_grad_(False)"
        raise InvalidParameter("optimizer", shown, problem, remedy)
    if config.max_records is not None:
        problem = "is for PrivateTrainer, which knows the person of each record; a loop by hand bounds no people"
        remedy = "leave it out, or train with PrivateTrainer.train(…, people=…)"
        raise InvalidParameter("max_records", config.max_records, problem, remedy)
    if config.ema_decay is not None:
        problem = "is for PrivateTrainer; a loop by hand averages its own weights, which costs nothing"
        remedy = "leave it out, and update torch.optim.swa_utils.AveragedModel(model) after optimizer.step()"
        raise InvalidParameter("ema_decay", config.ema_decay, problem, remedy)


def _trainable(model: nn.Module) -> dict[int, nn.Parameter]:
    return {id(parameter): parameter for parameter in model.parameters() if parameter.requires_grad}


def _parameters_of(optimizer: torch.optim.Optimizer) -> set[int]:
    return {id(p) for group in optimizer.param_groups for p in group["params"] if p.requires_grad}


@final
class _AsChecked:
    """Model and optimizer as they were when they were checked, and whether they still are.

    What a step swallows, since it may tell of a record, must not swallow a mistake of the loop's author: every mode and
    every frozen parameter is looked at again before a batch is drawn and before it is used.
    """

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, step: PrivateStep) -> None:
        self.model, self._optimizer = model, optimizer
        self._modes = self._now()
        self._trainable = {id(parameter) for parameter in step.engine.parameters}
        self.device = step.engine.parameters[0].device

    def _now(self) -> dict[str, tuple[nn.Module, bool]]:
        return {name: (module, module.training) for name, module in self.model.named_modules()}

    def confirm(self) -> None:
        """Raise where the model or the optimizer is another one than was checked."""
        if torch.is_inference_mode_enabled():
            raise QuietsumError("no gradient can be computed in torch.inference_mode(); leave it for the training loop")
        refuse_mixing(self.model)
        if self._now() != self._modes:
            raise QuietsumError(
                "the model has other modules or another mode than when make_private checked it; call model.train() "
                "before make_private, and again after an evaluation in model.eval()"
            )
        if set(_trainable(self.model)) != self._trainable or _parameters_of(self._optimizer) != self._trainable:
            raise QuietsumError(
                "parameters were frozen, unfrozen, added or taken away since make_private; what is trained is fixed "
                "there: freeze before, and call make_private anew, with a plan of its own, to train others"
            )

    def refuse_gradients(self) -> None:
        """Raise where any parameter that may move holds a gradient."""
        parameters = [p for group in self._optimizer.param_groups for p in group["params"]]
        if any(parameter.grad is not None for parameter in (*parameters, *self.model.parameters())):
            raise QuietsumError(
                "the parameters hold a gradient that was not made private; leave out loss.backward(): "
                "optimizer.step() computes the clipped, noisy gradient itself"
            )


@final
class PoissonLoader:
    """Poisson batches, one epoch an iteration. Drawing one charges it, and it must be used before the next.

    Where a loader's workers read, some draws are charged and read ahead; a loop that is left early goes on with them.

    What is yielded is a copy, and private: see :func:`make_private`. Each of several processes
    gets its share of a batch.
    """

    def __init__(self, records: Records, step: PrivateStep, spending: Spending, checked: _AsChecked) -> None:
        self.step, self.spending, self.checked = step, spending, checked
        self._records = records
        self._batches: Generator[tuple[Any, Batch], None, None] | None = None
        self._used = spending.charged
        self.pending: Batch | None = None

    @property
    def is_at_end(self) -> bool:
        """Whether the step whose batch was handed out last is the last one of an epoch, or of the plan."""
        return self.left <= 0 or self._used % len(self) == 0

    def __len__(self) -> int:
        return self.spending.plan.steps_per_epoch

    @property
    def left(self) -> int:
        """Steps of the plan that can still be made. With workers some of them are charged already, and being read."""
        return self.spending.plan.steps - self._used

    def __iter__(self) -> Iterator[Batch]:
        if self.left <= 0:
            raise BudgetExhausted(
                f"the plan's {self.spending.plan.steps} steps are done, and another one would overspend; "
                "keep the model, or make a new plan"
            )
        for _ in range(min(len(self), self.left)):
            if self.pending is not None:
                raise QuietsumError(
                    "a batch was drawn and not used: choosing batches by what is in them is no longer Poisson "
                    "sampling; call optimizer.step() once for each batch"
                )
            self.checked.confirm()
            stage, _ = self.spending.plan.stage_at(self._used)
            self.step.retune(
                noise_multiplier=stage.noise_multiplier,
                max_norm=stage.max_norm if self.step.scaled is not None and self.step.adaptive is None else None,
            )
            self.pending = self._next()
            self._used += 1
            if not self.left:
                self._records.close()
            yield tuple(part.clone() for part in self.pending)

    def _next(self) -> Batch:
        """The next draw's rows; a loop that was left early goes on with those that were read ahead."""
        if self._batches is None:
            self._batches = self._records.read(self._draws(), self.checked.device)
        try:
            found = next(self._batches, None)
            if found is None:  # the end of an epoch in several processes
                self._batches = self._records.read(self._draws(), self.checked.device)
                found = next(self._batches)
            return found[1]
        except BaseException:  # what was charged and not handed out is lost
            self._batches, self._used = None, self.spending.charged
            raise

    def _draws(self) -> Iterator[NDArray[np.int64]]:
        """Each one charged before it is drawn, so that nothing is read ahead of its charge.

        Several processes share out those of an epoch at once, since each reads ahead as fast as it can.
        """
        if self.step.processes.count > 1:
            count = min(len(self) - self.spending.charged % len(self), self.spending.left)
            for _ in range(count):
                self.spending.charge(self.spending.plan.stage_at(self.spending.charged)[0], 1)
            yield from self.step.sample_many(len(self._records), count)
            return
        while self.spending.left > 0:
            self.spending.charge(self.spending.plan.stage_at(self.spending.charged)[0], 1)
            yield self.step.sample(len(self._records))


@final
class PrivateOptimizer(torch.optim.Optimizer):
    """A torch optimizer whose ``step`` takes the drawn batch, computes its private gradient and moves the weights.

    Groups and state are those of the optimizer that it wraps, so schedulers of ``torch.optim.lr_scheduler`` steer it.
    """

    def __init__(self, inner: torch.optim.Optimizer, loader: PoissonLoader) -> None:
        self.inner, self._loader, self._model = inner, loader, loader.checked.model
        self._confirmed = False
        super().__init__(inner.param_groups, inner.defaults)
        self._share()

    def _share(self) -> None:
        self.param_groups, self.state = self.inner.param_groups, self.inner.state

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Use the batch that the loader drew last."""
        if closure is not None:
            raise QuietsumError("a private step takes no closure: it computes the gradient itself, once a batch")
        batch, parameters = self._loader.pending, self._loader.step.engine.parameters
        if batch is None:
            raise QuietsumError("there is no drawn batch to use; iterate over the loader, and step once a batch")
        self._loader.checked.confirm()
        self._loader.checked.refuse_gradients()
        self._loader.pending = None
        with torch.enable_grad():  # under no_grad() every record would count as zero, in silence
            gradients = self._loader.step.gradient(batch)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        moves = all(float(group.get("lr", 1.0)) > 0 for group in self.param_groups)  # a warm-up begins at 0
        began = FirstStep(self._model) if moves and not self._confirmed else None
        self.inner.step()
        self.zero_grad()
        if began is not None:
            self._confirmed = began.confirm(known_rule=type(self.inner).__module__.startswith("torch.optim"))
        if self._loader.is_at_end:
            self._loader.step.processes.compare(parameters, now=True)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget gradients; always to None, so that one of zeros is not taken for one of yours."""
        self.inner.zero_grad(set_to_none=True)

    def state_dict(self) -> dict[str, Any]:
        """That of the torch optimizer. The plan and what is charged are not in it."""
        return self.inner.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Into the torch optimizer."""
        self.inner.load_state_dict(state_dict)
        self._share()

    def guarantee(self) -> Guarantee:
        """What may be said about the model."""
        return self._loader.spending.claim()

    def get_privacy_spent(self) -> tuple[float, float]:
        """(ε, δ) per record so far, if the schedule runs as planned."""
        spent = self._loader.spending.so_far()
        return spent.epsilon, spent.delta

    def get_epsilon(self, delta: float | None = None) -> float:
        """ε per record so far, if the schedule runs as planned, at ``delta``; at the plan's own δ if omitted."""
        return self._loader.spending.so_far(delta).epsilon
