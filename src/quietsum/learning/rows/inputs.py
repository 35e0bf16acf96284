"""What people really pass: arrays, tables, torch's own optimizers and criteria, each turned into what training knows.

A private step needs records by number, a loss with one value per example, and a rule that moves weights once a gradient
is private. Scientists hold numpy arrays and DataFrames, ``nn.CrossEntropyLoss()`` and ``torch.optim.Adam``. What means
the same here is taken; the rest is refused in one sentence, before a record is read. Nothing is learnt from the records
on the way: types and names of columns decide, never what a column holds.

>>> import numpy as np
>>> [(tuple(part.shape), part.dtype) for part in as_records((np.zeros((4, 3)), np.array([0, 1, 1, 0])))]
[((4, 3), torch.float32), ((4,), torch.int64)]
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from quietsum.errors import InvalidParameter
from quietsum.learning.engines.protocol import Batch, Loss
from quietsum.learning.optimizers import SGD, Adam, OptimizerKind, optimizer_named
from quietsum.learning.step import cross_entropy

__all__ = ["CriterionLoss", "as_loss", "as_records", "as_rule", "join_labels", "rate_of", "refuse_shared"]

# ---------------------------------------------------------------------------------------------- arrays and tables


def as_records(data: Any, *, name: str = "data", dtype: torch.dtype = torch.float32) -> Any:
    """Tensors of a sequence of arrays, tables and tensors; anything else is returned as it is.

    Numbers of arrays and tables become ``dtype``, whole numbers of arrays and labels stay whole. Tensors are not
    touched.
    """
    if not isinstance(data, tuple | list) or not data or not any(_foreign(part) for part in data):
        return data
    if not all(_foreign(part) or isinstance(part, Tensor) or _labels_listed(part) for part in data):
        return data
    return tuple(
        part if isinstance(part, Tensor) else _tensor(f"{name}[{place}]", part, dtype)
        for place, part in enumerate(data)
    )


def join_labels(data: Any, rest: tuple[Any, ...], validation: Any = None) -> tuple[Any, Any]:
    """``train(X, y)`` as data and validation data: ``((X, y), None)`` where the second argument is labels.

    ``rest`` are further arguments by place, one at most; beside a ``validation`` that is named it holds the labels.
    """
    if len(rest) > 1 or (rest and validation is not None and not (_foreign(data) or isinstance(data, Tensor))):
        problem = "are more than inputs and labels" if len(rest) > 1 else "stands beside val_loader"
        remedy = "write train(X, y, val_loader=(X_val, y_val)), or train(loader, val_loader=other)"
        raise InvalidParameter("arguments", f"{1 + len(rest)} by place", problem, remedy)
    second = rest[0] if rest else validation
    found, left = _join(data, second)
    if validation is None or not rest:
        return found, left
    if left is not None:
        remedy = "write train(X, y, val_loader=(X_val, y_val))"
        raise InvalidParameter("y", type(second).__name__, "are no labels of the inputs", remedy)
    return found, validation


def _join(data: Any, second: Any) -> tuple[Any, Any]:
    if not (_foreign(data) or isinstance(data, Tensor)):
        return data, second
    if not (_foreign(second) or isinstance(second, Tensor) or _labels_listed(second)):
        return data, second
    if len(second) != len(data):
        problem = f"is as long as {len(second)} records, beside {len(data)} records of inputs"
        remedy = "train(X, y) takes one label for each row; with records to validate: train((X, y), (X_val, y_val))"
        raise InvalidParameter("y", type(second).__name__, problem, remedy)
    shapes = [tuple(getattr(part, "shape", ())) for part in (data, second)]
    if shapes[0] == shapes[1] and len(shapes[0]) > 1:
        problem = "has the shape of the inputs, so it may be labels or records to validate"
        raise InvalidParameter("y", type(second).__name__, problem, "say which: train((X, y)), or train((X,), (V,))")
    return (data, second), None


def refuse_shared(data: Any, validation: Any) -> None:
    """Refuse validation arrays that share memory with the training arrays, before either is copied."""
    for one in _arrays(validation):
        for other in _arrays(data)[:1]:
            if np.may_share_memory(one, other):
                problem = "holds training records: scores on protected records are a release without a charge"
                advice = "pass records that no one needs to protect, copy()d if they are others of the same array"
                raise InvalidParameter("val_loader", type(validation).__name__, problem, advice)


def _arrays(data: Any) -> list[NDArray[Any]]:
    parts = data if isinstance(data, tuple | list) else [data]
    return [_values(part) for part in parts if _foreign(part)]


def _values(part: Any) -> NDArray[Any]:
    return part if isinstance(part, np.ndarray) else np.asarray(part)


def _foreign(part: Any) -> bool:
    """An array or a table that is no tensor: numpy's, or one that knows how to become numpy's, as pandas' do."""
    return isinstance(part, np.ndarray) or (callable(getattr(part, "to_numpy", None)) and hasattr(part, "__len__"))


def _labels_listed(part: Any) -> bool:
    return isinstance(part, list) and bool(part) and all(type(one) in (int, float, bool) for one in part)


def _tensor(name: str, part: Any, dtype: torch.dtype) -> Tensor:
    columns = getattr(part, "columns", None)
    values = np.asarray(part) if columns is None or isinstance(part, np.ndarray) else _table(name, part, dtype)
    kind = values.dtype.kind
    if kind not in "biuf":
        problem = "does not hold numbers"
        remedy = (
            "write classes as 0, 1, 2, …, and words as numbers by a list that is public; a list made from the records "
            "would tell of them"
        )
        raise InvalidParameter(name, f"an array of {values.dtype}", problem, remedy)
    if not values.ndim:
        raise InvalidParameter(name, "one number", "is no array of records", "pass one row for each record")
    wanted = _numpy_type(dtype) if kind == "f" else np.dtype(np.int64)
    ready = np.ascontiguousarray(values, dtype=wanted)
    return torch.from_numpy(ready if ready.flags.writeable else ready.copy()).to(dtype if kind == "f" else torch.int64)


def _table(name: str, table: Any, dtype: torch.dtype) -> NDArray[Any]:
    """The columns of a table as numbers, side by side. Empty cells become NaN: such a record counts as zero."""
    pick = getattr(table, "iloc", None)
    columns = [pick[:, i] if pick is not None else table[column] for i, column in enumerate(table.columns)]
    words = [
        str(label) for label, column in zip(table.columns, columns, strict=True)
        if getattr(column.dtype, "kind", "f" if _is_numeric(column.dtype) else "O") not in "biuf"
    ]  # fmt: skip
    if words:
        problem = f"does not hold numbers in {', '.join(words)}"
        remedy = "drop these columns, or write them as numbers by a list that is public, not made from the records"
        raise InvalidParameter(name, "a table", problem, remedy)
    if not columns:
        raise InvalidParameter(name, "a table", "has no columns", "pass at least one")
    return np.stack([_column(column, _numpy_type(dtype)) for column in columns], axis=1)


def _column(column: Any, wanted: np.dtype[Any]) -> NDArray[Any]:
    try:
        return np.asarray(column.to_numpy(dtype=wanted, na_value=np.nan))
    except TypeError:  # a table of another library
        return np.asarray(column.to_numpy(), dtype=wanted)


def _is_numeric(kind: Any) -> bool:
    tell = getattr(kind, "is_numeric", None)
    return bool(tell()) if callable(tell) else False


def _numpy_type(dtype: torch.dtype) -> np.dtype[Any]:
    return np.dtype(np.float64 if dtype is torch.float64 else np.float32)


# --------------------------------------------------------------------------------------------------- optimizers


def as_rule(optimizer: Any, parameters: Sequence[nn.Parameter]) -> OptimizerKind:
    """The rule that ``optimizer`` means: a name, a rule of ours, or torch's ``SGD`` or ``Adam``, as class or instance.

    An instance keeps its momentum, betas and eps; what our rules do not do (weight decay, Nesterov, AMSGrad, …) is
    refused by name. Its step size is that of :func:`rate_of`.

    >>> as_rule(torch.optim.Adam, ())
    Adam(unbiased=False, beta1=0.9, beta2=0.999, floor=1e-08, unbiased_floor=0.0005)
    """
    if isinstance(optimizer, str):
        return optimizer_named(optimizer)
    rules: Mapping[type, OptimizerKind] = {torch.optim.SGD: SGD(), torch.optim.Adam: Adam()}
    if isinstance(optimizer, type) and optimizer in rules:
        return rules[optimizer]
    if type(optimizer) in rules:
        return _rule_of(optimizer, parameters)
    kind = optimizer if isinstance(optimizer, type) else type(optimizer)
    known = "'sgd', 'momentum', 'adam' or 'dp-adam'"
    if issubclass(kind, torch.optim.Optimizer):
        problem = "has no private rule of its own here"
        remedy = f"choose {known}, torch.optim.SGD or Adam; or use make_private, which takes any torch optimizer"
        raise InvalidParameter("optimizer", kind.__name__, problem, remedy)
    if isinstance(optimizer, type) or not callable(getattr(optimizer, "bind", None)):
        raise InvalidParameter("optimizer", kind.__name__, "is no rule that moves weights", f"choose {known}")
    rule: OptimizerKind = optimizer
    return rule


def rate_of(optimizer: Any) -> float | None:
    """The step size of an instance of a torch optimizer; None for names, classes and rules, which have none."""
    return float(optimizer.param_groups[0]["lr"]) if isinstance(optimizer, torch.optim.Optimizer) else None


def _rule_of(optimizer: torch.optim.Optimizer, parameters: Sequence[nn.Parameter]) -> OptimizerKind:
    name, groups = type(optimizer).__name__, optimizer.param_groups
    held = {id(one) for group in groups for one in group["params"]}
    if not {id(one) for one in parameters} <= held:
        problem = "does not hold all trainable parameters of this model"
        raise InvalidParameter("optimizer", name, problem, f"pass the class, torch.optim.{name}, or its name")
    if len(groups) != 1:
        problem = "has several groups of parameters, and here all weights move by one rule"
        raise InvalidParameter("optimizer", name, problem, "use make_private, which takes any torch optimizer")
    if optimizer.state:
        problem = "has made steps already, and its memory would be lost"
        raise InvalidParameter("optimizer", name, problem, f"pass the class, torch.optim.{name}")
    group = groups[0]
    for option in ("weight_decay", "dampening", "nesterov", "amsgrad", "maximize", "decoupled_weight_decay"):
        if group.get(option):
            problem = f"has {option} = {group[option]!r}, which the private rule of that name does not do"
            raise InvalidParameter("optimizer", name, problem, f"leave {option} out, or use make_private")
    if isinstance(optimizer, torch.optim.SGD):
        return SGD(momentum=float(group["momentum"]))
    beta1, beta2 = (float(beta) for beta in group["betas"])
    return Adam(beta1=beta1, beta2=beta2, floor=float(group["eps"]))


# ------------------------------------------------------------------------------------------------------- losses

_CLASSES = (nn.CrossEntropyLoss, nn.NLLLoss)
_NUMBERS = (nn.MSELoss, nn.L1Loss, nn.SmoothL1Loss, nn.HuberLoss, nn.BCEWithLogitsLoss)
_FUNCTIONS: Mapping[Callable[..., Any], type[nn.Module]] = {
    nn.functional.cross_entropy: nn.CrossEntropyLoss, nn.functional.nll_loss: nn.NLLLoss,
    nn.functional.mse_loss: nn.MSELoss, nn.functional.l1_loss: nn.L1Loss,
    nn.functional.smooth_l1_loss: nn.SmoothL1Loss, nn.functional.huber_loss: nn.HuberLoss,
    nn.functional.binary_cross_entropy_with_logits: nn.BCEWithLogitsLoss,
}  # fmt: skip


@final
class CriterionLoss:
    """A criterion of ``torch.nn`` with one value per example: its terms, summed or averaged within each record.

    Guarantees: a label that is no class costs zero, so that its record is silent rather than the reason of an error.
    """

    def __init__(self, criterion: nn.Module) -> None:
        self._sums = criterion.reduction == "sum"
        each: Any = copy.deepcopy(criterion)
        each.reduction = "none"
        self._each = each

    def __call__(self, model: nn.Module, batch: Batch) -> Tensor:
        """The loss of each example."""
        scores, labels = model(batch[0]), batch[1]
        each = self._each.to(scores.device)
        if isinstance(each, _CLASSES) and not labels.dtype.is_floating_point:
            valid = (labels >= 0) & (labels < scores.shape[1])
            terms = torch.where(valid, each(scores, torch.where(valid, labels, 0)), 0.0)
        elif isinstance(each, _CLASSES):
            terms = each(scores, labels)
        else:  # (n, 1) beside (n,) would be spread to (n, n), which mixes records
            if labels.shape[1:].numel() == scores.shape[1:].numel():
                labels = labels.reshape(scores.shape)
            elif labels.shape != scores.shape:
                problem = f"of shape {tuple(labels.shape[1:])} does not fit scores of shape {tuple(scores.shape[1:])}"
                remedy = "let the model return as many numbers as a label has"
                raise InvalidParameter("label", "one label", problem, remedy)
            terms = each(scores, labels.to(scores.dtype))
        terms = terms.flatten(1) if terms.dim() > 1 else terms.unsqueeze(1)
        return terms.sum(1) if self._sums else terms.mean(1)


def as_loss(loss: Any) -> Loss:
    """The loss with one value per example that ``loss`` means: a function of ours, or a criterion of ``torch.nn``.

    ``nn.CrossEntropyLoss()`` without options is the default loss; the others become :class:`CriterionLoss`.
    """
    if isinstance(loss, type) and issubclass(loss, (*_CLASSES, *_NUMBERS)):
        loss = loss()
    try:
        found = _FUNCTIONS.get(loss)
    except TypeError:  # it has no hash, so it is none of them
        found = None
    if found is not None:
        loss = found()
    if type(loss) in (*_CLASSES, *_NUMBERS):
        plain = type(loss) is nn.CrossEntropyLoss and loss.reduction != "sum"
        if plain and loss.weight is None and not loss.label_smoothing and loss.ignore_index < 0:
            return cross_entropy
        return CriterionLoss(loss)
    if isinstance(loss, nn.Module | type) or not callable(loss):
        known = ", ".join(f"nn.{kind.__name__}" for kind in (*_CLASSES, *_NUMBERS))
        problem = "cannot be asked for one value per example, which clipping needs"
        remedy = f"pass {known}, or your own loss(model, batch) that returns one value for each row"
        shown = loss.__name__ if isinstance(loss, type) else type(loss).__name__
        raise InvalidParameter("loss", shown, problem, remedy)
    ready: Loss = loss
    return ready
