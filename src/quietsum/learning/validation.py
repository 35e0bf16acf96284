"""What a person passes in and nobody needs to protect, tried before anything is charged.

Whoever passes a ``val_loader`` declares its records unprotected: scores on them are free, are printed, and so is any
error about them. :func:`validated` hears of a mistake in them before the first charge, and refuses the training records
themselves, whose scores would be a release that nobody paid for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.utils.data import DataLoader, Subset, TensorDataset

from quietsum.errors import InvalidParameter, QuietsumError
from quietsum.learning.engines.protocol import Loss
from quietsum.learning.history import scores
from quietsum.learning.modes import scoring
from quietsum.learning.noise import TorchNoise

__all__ = ["more_noise", "refuse_coarse", "uncovered_norms", "validated"]

_WORTH_A_WORD = 1.05
"""Secure noise that is so many times what ε asks for is spoken of."""


def refuse_coarse(names: Sequence[str], parameters: Sequence[Tensor]) -> None:
    """Refuse trainable parameters in half precision."""
    for name, parameter in zip(names, parameters, strict=True):
        if parameter.dtype not in (torch.float32, torch.float64):
            problem = "has too few digits for sums of clipped gradients and their noise"
            raise InvalidParameter("model", f"{name}: {parameter.dtype}", problem, "use float32; autocast is fine")


def uncovered_norms(model: nn.Module) -> str:
    """What secure noise does not cover in this model; empty where there is nothing to say.

    It covers the rounding of sums. A norm over nearly equal values magnifies rounding beyond that.
    """
    kinds = (nn.GroupNorm, nn.LayerNorm, _InstanceNorm)
    names = sorted({type(module).__name__ for module in model.modules() if isinstance(module, kinds)})
    if not names or all(parameter.dtype == torch.float64 for parameter in model.parameters()):
        return ""
    return (
        f"secure noise covers the rounding of sums, not that of {', '.join(names)} in float32, where one record's "
        "arrival can move the last digits of the others' gradients; train such a model in float64"
    )


def more_noise(noise: TorchNoise, parameters: Sequence[Tensor]) -> str:
    """That secure noise has to be larger than ε asks for, where that is worth a word; else empty."""
    more = noise.more(parameters)
    if more < _WORTH_A_WORD:
        return ""
    return (
        f"the noise is {more:.2f} times what the clip needs, since sums of {noise.expected_batch:,.0f} gradients in "
        "single precision round by so much; train in float64, in smaller batches, or with noise = 'fast'"
    )


def validated(model: nn.Module, loss: Loss, val_loader: Any, train_loader: Any, device: torch.device) -> None:
    """Refuse a ``val_loader`` that cannot be scored, that can be read only once, or that holds training records."""
    shown = type(val_loader).__name__
    remedy = "pass a DataLoader, a list of batches (inputs, labels), or a tuple of tensors"
    if not isinstance(val_loader, Iterable) or isinstance(val_loader, Tensor | str | bytes):
        raise InvalidParameter("val_loader", shown, "holds no batches", remedy)
    if isinstance(val_loader, Iterator):
        problem = "can be read only once, and is scored after every epoch"
        raise InvalidParameter("val_loader", shown, problem, remedy)
    if _shared(val_loader, train_loader):
        problem = "holds training records: scores on protected records are a release that nobody has paid for"
        advice = "pass records that no one needs to protect, clone()d if they are others from the same tensor; or None"
        raise InvalidParameter("val_loader", shown, problem, advice)
    try:
        with torch.no_grad(), scoring(model):
            found = scores(model, loss, val_loader, device)
    except QuietsumError:
        raise
    except Exception as error:  # whatever a model says to rows of another shape
        told = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        raise InvalidParameter("val_loader", shown, f"cannot be scored ({told})", remedy) from None
    if not found:
        raise InvalidParameter("val_loader", shown, "holds no records", "pass at least one, or None")


def _shared(val_loader: Any, train_loader: Any) -> bool:
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
