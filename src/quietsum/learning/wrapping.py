"""A person's own data and loop: records by number, Poisson batches in place of a loader's, made-up rows for rehearsal.

An ordinary loader shuffles and cuts. Accounted as Poisson sampling that under-reports ε several times over (Chua et al.
2024), so the loader's data set is taken and the batches are drawn here. :func:`make_private` does the same for a loop
written by hand.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, default_collate

from quietsum.errors import BudgetExhausted, InvalidParameter, QuietsumError
from quietsum.learning.adaptive import QuantileClip
from quietsum.learning.clipping import Automatic, Clip, Flat, FlatL1, PerLayer
from quietsum.learning.config import PrivacyConfig, Spending, TrainingPlan, plan_training
from quietsum.learning.engine import Batch, Loss, losses_of
from quietsum.learning.mixing import mixes_examples, refuse_mixing
from quietsum.learning.step import PrivateStep, cross_entropy
from quietsum.mechanisms.rng import RandomSource
from quietsum.privacy.guarantee import Guarantee

__all__ = ["PoissonLoader", "PrivateOptimizer", "Records", "build_step", "make_private", "rehearse"]

_ROWS = 4  # of a made-up batch


@final
class Records:
    """Protected records by number. Printing them shows nothing.

    ``schema`` holds the shapes and types of a record, read off the first one and public by declaration.
    """

    def __init__(self, dataset: Any, collate: Callable[[list[Any]], Any] | None = None) -> None:
        self._tensors = tuple(dataset.tensors) if isinstance(dataset, TensorDataset) else None
        self._dataset, self._collate = dataset, collate
        self.schema = tuple((tuple(part.shape[1:]), part.dtype) for part in self._first())

    @classmethod
    def of(cls, data: Any, *, quiet: bool = False) -> Records:
        """From a DataLoader, a Dataset or a tuple of tensors. A loader's batching is replaced, which is said once."""
        if isinstance(data, Records):
            return data
        if isinstance(data, DataLoader):
            if not quiet:
                warnings.warn(
                    "the loader's batches are replaced by Poisson batches of its data set: only they have the "
                    "amplification that is accounted for", stacklevel=3,
                )  # fmt: skip
            own = None if data.collate_fn is default_collate else data.collate_fn
            return cls(_indexable(data.dataset), own)
        if isinstance(data, Sequence) and data and all(isinstance(part, Tensor) for part in data):
            if len({len(part) for part in data}) != 1:
                raise InvalidParameter("data", [tuple(p.shape) for p in data], "has parts of unequal length")
            return cls(TensorDataset(*data))
        return cls(_indexable(data))

    def __len__(self) -> int:
        return len(self._dataset)

    def __repr__(self) -> str:
        return f"Records(schema={self.schema})"

    @property
    def tensors(self) -> Batch | None:
        """All records at once, where they lie in memory as tensors."""
        return self._tensors

    def batch(self, indices: NDArray[np.int64], device: torch.device | None = None) -> Batch:
        """The records with these numbers. One that cannot be read, or has another shape, is left out in silence."""
        if self._tensors is not None:
            chosen = torch.from_numpy(indices)
            return tuple(part[chosen].to(device) for part in self._tensors)
        rows = [row for index in indices.tolist() if (row := self._row(index)) is not None]
        if not rows:
            return tuple(torch.empty((0, *shape), dtype=dtype, device=device) for shape, dtype in self.schema)
        return tuple(part.to(device) for part in self._collated(rows))

    def _collated(self, rows: list[Any]) -> Batch:
        """The rows as one batch. What one record does to a collate function of one's own must not erase the others."""
        if self._collate is None:
            return _parts(default_collate(rows))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with contextlib.suppress(Exception):
                return _parts(self._collate(rows))
            kept = []
            for row in rows:
                with contextlib.suppress(Exception):
                    _parts(self._collate([row]))
                    kept.append(row)
            with contextlib.suppress(Exception):
                return _parts(self._collate(kept))
        raise QuietsumError(
            "the loader's collate_fn takes records one by one and not together; pad them to one public length"
        )

    def _row(self, index: int) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                row = self._dataset[index]
                if self._collate is not None:
                    return row
                parts = _parts(default_collate([row]))
                fits = tuple((tuple(part.shape[1:]), part.dtype) for part in parts) == self.schema
                return row if fits else None
            except Exception:  # what a record raises is a fact about that record
                return None

    def _first(self) -> Batch:
        if not len(self._dataset):
            raise InvalidParameter("data", "the data set", "holds no records", "pass at least one")
        if self._tensors is not None:
            return tuple(part[:1] for part in self._tensors)
        try:
            return _parts((self._collate or default_collate)([self._dataset[0]]))
        except QuietsumError:
            raise
        except Exception as error:
            problem = f"gives no record that can be put into a batch ({type(error).__name__})"
            raise InvalidParameter("data", type(self._dataset).__name__, problem, "return (inputs, label)") from None

    def made_up(self, device: torch.device | None = None) -> Batch:
        """A few rows of the right shape that belong to nobody: random numbers, and 0, 1, 0, 1 for whole ones."""
        generator = torch.Generator().manual_seed(0)
        rows = []
        for shape, dtype in self.schema:
            if dtype.is_floating_point:
                rows.append(torch.randn((_ROWS, *shape), generator=generator).to(dtype))
            else:
                pattern = torch.arange(_ROWS).remainder(2).to(dtype)
                rows.append(pattern.view(_ROWS, *([1] * len(shape))).expand(_ROWS, *shape).clone())
        return tuple(row.to(device) for row in rows)


def _indexable(data: Any) -> Any:
    if isinstance(data, IterableDataset) or not (hasattr(data, "__len__") and hasattr(data, "__getitem__")):
        problem = "has no records by number, and every record needs its own coin"
        raise InvalidParameter("data", type(data).__name__, problem, "pass a Dataset with __len__ and __getitem__")
    return data


def _parts(collated: Any) -> Batch:
    parts = (collated,) if isinstance(collated, Tensor) else collated
    if not isinstance(parts, Sequence) or not parts or not all(isinstance(part, Tensor) for part in parts):
        problem = "does not come as tensors"
        raise InvalidParameter("batch", type(collated).__name__, problem, "let the data set return (inputs, label)")
    return tuple(parts)


def rehearse(model: nn.Module, loss: Loss, records: Records, device: torch.device) -> None:
    """Try model and loss on made-up rows, so that mistakes are heard of before a record is touched and paid for."""
    rows = records.made_up(device)
    if loss is cross_entropy and (len(rows) != 2 or rows[1].dtype.is_floating_point or rows[1].dim() != 1):
        shapes = [(shape, str(dtype)) for shape, dtype in records.schema]
        raise InvalidParameter("data", shapes, "is not (inputs, whole-number label)", "pass your own loss for it")
    try:
        losses = losses_of(loss, model, rows, _ROWS)
    except QuietsumError:
        raise
    except Exception as error:
        problem = f"and the loss cannot read made-up records of shapes {[shape for shape, _ in records.schema]}"
        remedy = f"they raise {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        raise InvalidParameter("model", type(model).__name__, problem, remedy) from error
    if not losses.requires_grad:
        problem = "does not depend on any trainable parameter"
        raise InvalidParameter("loss", "the loss", problem, "check for detach() or no_grad() in model and loss")
    if mixes_examples(model, loss, rows):
        problem = "mixes examples: one record's loss moves when another record changes, so clipping bounds nothing"
        raise InvalidParameter("model", type(model).__name__, problem, "let every output depend on its own input alone")
    if loss is cross_entropy:
        _check_labels(model, records, rows)


def _check_labels(model: nn.Module, records: Records, rows: Batch) -> None:
    """Labels must be classes. The holder of the data hears that some are not, and neither which nor how many."""
    with torch.no_grad():
        classes = int(model(rows[0]).shape[-1])
    if records.tensors is not None:
        labels = records.tensors[1]
        if bool((labels < 0).any()) or bool((labels >= classes).any()):
            problem = f"lie outside 0 … {classes - 1}, the classes of the model"
            raise InvalidParameter("labels", "some labels", problem, "number the classes from 0, or widen the model")


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
) -> tuple[nn.Module, PrivateOptimizer, PoissonLoader]:
    """For a loop written by hand. The optimizer computes the private gradient itself; ``backward()`` is not called.

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
    records = Records.of(data)
    device = next(model.parameters()).device
    rehearse(model, loss, records, device)
    plan = plan_training(config, size=len(records))
    step = build_step(model, loss, config, plan)
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
