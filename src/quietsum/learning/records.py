"""Protected records by number, and a rehearsal on made-up ones.

What training must know of the records before it starts is their shape, which is public. :class:`Records` reads it off
an example that belongs to nobody, or off tensors; and :func:`rehearse` tries model and loss on made-up rows of that
shape, so that a mistake is heard of before anything is charged.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Sequence
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, default_collate

from quietsum.errors import InvalidParameter, QuietsumError
from quietsum.learning.engine import Batch, Loss, losses_of
from quietsum.learning.mixing import mixes_examples
from quietsum.learning.step import PrivateStep, cross_entropy

__all__ = ["LabelsOutOfRange", "Records", "rehearse", "rehearse_step"]

_ROWS = 4  # of a made-up batch


@final
class Records:
    """Protected records by number. Printing them shows nothing.

    ``schema`` holds the shapes and types of a record, which are public: those of ``example``, a record that belongs to
    nobody; or of the tensors, however many rows they have; or of the first record, where there must be one.

    Guarantees: with ``example``, and with tensors, no record is read, so that an empty set is treated like any other.
    """

    def __init__(self, dataset: Any, collate: Callable[[list[Any]], Any] | None = None, *, example: Any = None) -> None:
        self._tensors = tuple(dataset.tensors) if isinstance(dataset, TensorDataset) and collate is None else None
        self._dataset, self._collate = dataset, collate
        self.schema = _schema(self._first() if example is None else self._tried("example", example))
        if self._tensors is not None and self.schema != _schema(self._tensors):
            raise InvalidParameter("example", self.schema, f"is no record of {_schema(self._tensors)}", "leave it out")

    @classmethod
    def of(cls, data: Any, *, quiet: bool = False, example: Any = None, size_is_private: bool = False) -> Records:
        """From a DataLoader, a Dataset or a tuple of tensors. A loader's batching is replaced, which is said once.

        Where the number of records is private there may be none, so their shape must not come from one of them: a data
        set that is no tensor then needs an ``example``, whatever it holds.
        """
        if isinstance(data, Records):
            return data
        if isinstance(data, DataLoader):
            if not quiet:
                warnings.warn(
                    "the loader's batches are replaced by Poisson batches of its data set: only they have the "
                    "amplification that is accounted for", stacklevel=3,
                )  # fmt: skip
            own = None if data.collate_fn is default_collate else data.collate_fn
            return cls._sized(data.dataset, own, example, size_is_private)
        if isinstance(data, Sequence) and data and all(isinstance(part, Tensor) for part in data):
            if len({len(part) for part in data}) != 1:
                raise InvalidParameter("data", [tuple(p.shape) for p in data], "has parts of unequal length")
            return cls._sized(TensorDataset(*data), None, example, size_is_private)
        return cls._sized(data, None, example, size_is_private)

    @classmethod
    def _sized(cls, dataset: Any, collate: Any, example: Any, size_is_private: bool) -> Records:
        known = isinstance(dataset, TensorDataset) and collate is None
        if size_is_private and example is None and not known:
            problem = "is missing: the number of records is private, so there may be none to read the shape off"
            remedy = "pass example=, one made-up record as the data set would return it; or pass tensors"
            raise InvalidParameter("example", None, problem, remedy)
        return cls(_indexable(dataset), collate, example=example)

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
                return row if _schema(parts) == self.schema else None
            except Exception:  # what a record raises is a fact about that record
                return None

    def _first(self) -> Batch:
        if self._tensors is not None:
            return self._tensors
        if not len(self._dataset):
            raise InvalidParameter("data", "the data set", "holds no records", "pass at least one, or an example=")
        return self._tried("data", None)

    def _tried(self, name: str, row: Any) -> Batch:
        """A batch of one: of ``row``, or of the first record."""
        try:
            return _parts((self._collate or default_collate)([self._dataset[0] if row is None else row]))
        except QuietsumError:
            raise
        except Exception as error:
            problem = f"gives no record that can be put into a batch ({type(error).__name__})"
            shown = type(self._dataset if row is None else row).__name__
            raise InvalidParameter(name, shown, problem, "return (inputs, label)") from None

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


def _schema(parts: Batch) -> tuple[tuple[tuple[int, ...], torch.dtype], ...]:
    return tuple((tuple(part.shape[1:]), part.dtype) for part in parts)


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


def rehearse(
    model: nn.Module, loss: Loss, records: Records, device: torch.device, *, check_labels: bool = True
) -> None:
    """Try model and loss on made-up rows, so that mistakes are heard of before a record is touched and paid for.

    Guarantees: with ``check_labels`` False nothing that is raised depends on what a record holds. With it, the labels
    of records in memory are compared with the model's classes: that error is for the holder of the data, who knows the
    records, and must not be passed on, since it tells of one of them.
    """
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
    if loss is cross_entropy and check_labels:
        _check_labels(model, records, rows)


def rehearse_step(step: PrivateStep, records: Records, device: torch.device) -> None:
    """Try the step's engine on made-up rows, one of them and several, and let it say aloud what it cannot do.

    In training a row that raises is silent, so a model that always raises would be trained on noise alone.
    """
    rows = records.made_up(device)
    for count in (1, _ROWS):
        try:
            step.engine.clipped_sum(tuple(part[:count] for part in rows))
        except QuietsumError:
            raise
        except Exception as error:
            problem = f"cannot be differentiated by the engine {step.engine.name} in a batch of {count}"
            remedy = f"it raises {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
            raise InvalidParameter("model", "the model", problem, remedy) from error


class LabelsOutOfRange(InvalidParameter):
    """Some protected label is no class of the model. For the holder of the data alone; nothing was charged."""


def _check_labels(model: nn.Module, records: Records, rows: Batch) -> None:
    """Labels must be classes. The holder of the data hears that some are not, and neither which nor how many."""
    with torch.no_grad():
        classes = int(model(rows[0]).shape[-1])
    if records.tensors is not None:
        labels = records.tensors[1]
        if bool((labels < 0).any()) or bool((labels >= classes).any()):
            problem = f"lie outside 0 … {classes - 1}, the classes of the model"
            remedy = "number the classes from 0, or widen the model (this is told to you alone: do not pass it on)"
            raise LabelsOutOfRange("labels", "some labels", problem, remedy)
