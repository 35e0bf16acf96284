"""Validation data, which the caller declares unprotected: scores on it, and its check before the first charge.

Passing a ``val_loader`` declares its records unprotected: scores on them are free and are printed, and so are errors
about them. :func:`check_validation` raises before the first charge if they cannot be scored, and refuses the training
records themselves, whose scores would be a release without a charge.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Subset, TensorDataset

from quietsum.errors import InvalidParameter, QuietsumError
from quietsum.learning.engines.protocol import Batch, Loss, losses_of
from quietsum.learning.rehearsal import scoring
from quietsum.learning.step import cross_entropy

__all__ = ["UNPROTECTED", "chance", "check_validation", "refuse_training_records", "score_model"]

UNPROTECTED = "validation data declared unprotected"


def score_model(model: nn.Module, loss: Loss, loader: Iterable[Any], device: torch.device) -> dict[str, float]:
    """Mean loss, and accuracy for the default loss, on records that need no protection."""
    batches: Iterable[Any] = [loader] if isinstance(loader, tuple) else loader
    total, right, count = 0.0, 0, 0
    for batch in batches:
        rows = tuple(part.to(device) for part in _rows(batch))
        total += float(losses_of(loss, model, rows, len(rows[0])).sum())
        if loss is cross_entropy:
            right += int((model(rows[0]).argmax(-1) == rows[1]).sum())
        count += len(rows[0])
    if not count:
        return {}
    return ({"accuracy": right / count} if loss is cross_entropy else {}) | {"loss": total / count}


def chance(loss: Loss, loader: Iterable[Any]) -> dict[str, float]:
    """The accuracy of a model that knows nothing but the largest class, for the default loss."""
    if loss is not cross_entropy:
        return {}
    counts: Counter[int] = Counter()
    for batch in [loader] if isinstance(loader, tuple) else loader:
        counts.update(_rows(batch)[1].tolist())
    return {"accuracy": max(counts.values()) / counts.total()} if counts else {}


def _rows(batch: Any) -> Batch:
    """The batch, if it is tensors with as many rows each."""
    parts = (batch,) if isinstance(batch, Tensor) else batch
    if not isinstance(parts, tuple | list) or not all(isinstance(part, Tensor) and part.dim() for part in parts):
        problem = "does not come as tensors of rows"
        raise InvalidParameter("val_loader", type(batch).__name__, problem, "let each batch be (inputs, labels)")
    if len({len(part) for part in parts}) != 1:
        problem = "has parts of unequal length"
        raise InvalidParameter("val_loader", [tuple(part.shape) for part in parts], problem, "one label for each row")
    return tuple(parts)


def check_validation(model: nn.Module, loss: Loss, val_loader: Any, train_loader: Any, device: torch.device) -> None:
    """Refuse a ``val_loader`` that cannot be scored, that can be read only once, or that holds training records."""
    shown = type(val_loader).__name__
    remedy = "pass a DataLoader, a list of batches (inputs, labels), or a tuple of tensors"
    if not isinstance(val_loader, Iterable) or isinstance(val_loader, Tensor | str | bytes):
        raise InvalidParameter("val_loader", shown, "holds no batches", remedy)
    if isinstance(val_loader, Iterator):
        problem = "can be read only once, and is scored after every epoch"
        raise InvalidParameter("val_loader", shown, problem, remedy)
    refuse_training_records(val_loader, train_loader)
    try:
        with torch.no_grad(), scoring(model):
            found = score_model(model, loss, val_loader, device)
    except QuietsumError:
        raise
    except Exception as error:  # whatever a model says to rows of another shape
        told = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        raise InvalidParameter("val_loader", shown, f"cannot be scored ({told})", remedy) from None
    if not found:
        raise InvalidParameter("val_loader", shown, "holds no records", "pass at least one, or None")


def refuse_training_records(val_loader: Any, train_loader: Any) -> None:
    """Refuse a ``val_loader`` that reads a record from where ``train_loader`` reads it."""
    if _shares_records(val_loader, train_loader):
        problem = "holds training records: scores on protected records are a release without a charge"
        advice = "pass records that no one needs to protect, clone()d if they are others from the same tensor; or None"
        raise InvalidParameter("val_loader", type(val_loader).__name__, problem, advice)


def _shares_records(val_loader: Any, train_loader: Any) -> bool:
    """Whether both read a record from the same place: the same data set, or overlapping memory."""
    (theirs, some), (mine, others) = _source(val_loader), _source(train_loader)
    if theirs is mine:
        return some is None or others is None or bool(some & others)
    validation, training = _inputs(theirs), _inputs(mine)
    if len(validation) == len(training) == 1 and _same(validation[0], training[0]):
        return some is None or others is None or bool(some & others)
    return any(_overlap(one, other) for one in validation for other in training)


def _source(data: Any) -> tuple[Any, set[int] | None]:
    """What is read in the end, and which of its records; None is all."""
    found = data.dataset if isinstance(data, DataLoader) else data
    places: list[int] | None = None
    while isinstance(found, Subset):
        own = [int(place) for place in found.indices]
        places = own if places is None else [own[place] for place in places]
        found = found.dataset
    return found, None if places is None else set(places)


def _inputs(data: Any) -> list[Tensor]:
    """The tensors in memory that hold the inputs, of the whole set or batch by batch."""
    if isinstance(data, TensorDataset):
        return [data.tensors[0]]
    if isinstance(data, tuple | list) and data and all(isinstance(part, Tensor) for part in data):
        return [data[0]]
    return [found for batch in data for found in _inputs(batch)] if isinstance(data, list) else []


def _same(one: Tensor, other: Tensor) -> bool:
    return (one.data_ptr(), one.shape, one.stride()) == (other.data_ptr(), other.shape, other.stride())


def _overlap(one: Tensor, other: Tensor) -> bool:
    """Whether the memory of the two overlaps, from the first number of each to the last."""
    if one.device != other.device or not one.numel() or not other.numel():
        return False
    (start, end), (first, last) = _extent(one), _extent(other)
    return start <= last and first <= end


def _extent(tensor: Tensor) -> tuple[int, int]:
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    last = tensor.data_ptr() + sum((length - 1) * stride for length, stride in steps) * tensor.element_size()
    return tensor.data_ptr(), last + tensor.element_size() - 1
