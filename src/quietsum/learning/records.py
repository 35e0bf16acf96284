"""Protected records by number, and a rehearsal on made-up ones.

What training must know of the records before it starts is their shape, which is public. :class:`Records` reads it off
an example that belongs to nobody, or off tensors; and :func:`rehearse` tries model and loss on made-up rows of that
shape, so that a mistake is heard of before anything is charged. Every record is read and collated alone, so that no
record can change what another one becomes.
"""

from __future__ import annotations

import contextlib
import logging
import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    default_collate,
)

from quietsum.errors import InvalidParameter, QuietsumError
from quietsum.learning.engines.batch_mixing import unchanged, what_mixes, what_remembers
from quietsum.learning.engines.protocol import Batch, Loss, losses_of
from quietsum.learning.step import PrivateStep, cross_entropy

__all__ = ["LabelsOutOfRange", "Records", "RecordsOfOtherShapes", "rehearse", "rehearse_large", "rehearse_step"]

log = logging.getLogger(__name__)

_ROWS = 4  # of a made-up batch
_LOOKED_AT = 64  # records whose shape is compared before training


@final
class Records:
    """Protected records by number. Printing them shows nothing.

    ``schema`` holds the shapes and types of a record, which are public: those of ``example``, a record that belongs to
    nobody; or of the tensors, however many rows they have; or of the first record, where there must be one.

    Guarantees: with ``example``, and with tensors, no record is read, so that an empty set is treated like any other. A
    row of a batch is a function of its own record, as far as data set and collate function keep no memory: the collate
    function never sees two records at once. A record that cannot be read or collated, or that comes in another shape
    or type than ``schema``, counts as zero, in silence, whoever listens.
    """

    def __init__(self, dataset: Any, collate: Callable[[list[Any]], Any] | None = None, *, example: Any = None) -> None:
        self._tensors = tuple(dataset.tensors) if _plain(dataset) and collate is None else None
        self._rehearsed: tuple[nn.Module, Loss] | None = None
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
            own = None if data.collate_fn is default_collate else data.collate_fn
            if not quiet:
                alone = "" if own is None else "; its collate_fn is called with one record at a time"
                warnings.warn(
                    "the loader's batches are replaced by Poisson batches of its data set: only they have the "
                    f"amplification that is accounted for{alone}", stacklevel=3,
                )  # fmt: skip
            return cls._sized(_chosen(data), own, example, size_is_private)
        if isinstance(data, Sequence) and data and all(isinstance(part, Tensor) for part in data):
            if len({len(part) for part in data}) != 1:
                raise InvalidParameter("data", [tuple(p.shape) for p in data], "has parts of unequal length")
            return cls._sized(TensorDataset(*data), None, example, size_is_private)
        return cls._sized(data, None, example, size_is_private)

    @classmethod
    def _sized(cls, dataset: Any, collate: Any, example: Any, size_is_private: bool) -> Records:
        known = _plain(dataset) and collate is None
        if size_is_private and example is None and not known:
            problem = "is missing: the number of records is private, so there may be none to read the shape off"
            remedy = "pass example=, one made-up record as the data set would return it; or pass tensors"
            raise InvalidParameter("example", None, problem, remedy)
        return cls(_indexable(dataset), collate, example=example)

    def __len__(self) -> int:
        return len(self._dataset)

    def __repr__(self) -> str:
        return f"Records(schema={self.schema})"

    def only(self, places: NDArray[np.int64]) -> Records:
        """The records at these places, as a set of its own."""
        other = object.__new__(Records)
        other._collate, other.schema, other._rehearsed = self._collate, self.schema, None
        if self._tensors is not None:
            chosen = torch.from_numpy(places)
            other._tensors = tuple(part[chosen] for part in self._tensors)
            other._dataset = TensorDataset(*other._tensors)
        else:
            other._tensors, other._dataset = None, Subset(self._dataset, places.tolist())
        return other

    @property
    def tensors(self) -> Batch | None:
        """All records at once, where they lie in memory as tensors."""
        return self._tensors

    def batch(self, indices: NDArray[np.int64], device: torch.device | None = None) -> Batch:
        """The records with these numbers. One that cannot be read, or has another shape, is left out in silence."""
        if self._tensors is not None:
            chosen = torch.from_numpy(indices)
            return tuple(part[chosen].to(device) for part in self._tensors)
        rows = [row for index in indices.tolist() if (row := self._row(index, device)) is not None]
        if not rows:
            return tuple(torch.empty((0, *shape), dtype=dtype, device=device) for shape, dtype in self.schema)
        return tuple(torch.cat(parts) for parts in zip(*rows, strict=True))

    def _row(self, index: int, device: torch.device | None) -> Batch | None:
        """A batch of one record, which has seen no other; None where it is unlike the schema."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                parts = _parts((self._collate or default_collate)([self._dataset[index]]))
                if _schema(parts) != self.schema or not _one_row(parts):
                    return None
                return tuple(part.detach().to(device) for part in parts)
            except Exception:  # what a record raises is a fact about that record
                return None

    def check_shapes(self) -> None:
        """Refuse, to the holder of the data, a set whose first records mostly have another shape than the schema.

        A few odd ones count as zero, in silence. If most do, nearly nothing would be learned from, and the reason is
        rather a collate function that pads to the longest, or a first record that is unlike all others.
        """
        looked = range(min(len(self), _LOOKED_AT)) if self._tensors is None else range(0)
        fitting = sum(self._row(index, None) is not None for index in looked)
        if 2 * fitting < len(looked):
            problem = f"differ in shape or type from {self.schema}, and such records count as zero"
            remedy = (
                "give all records one public shape, padded to a length that no record sets, or pass example=, a "
                "made-up record that is like them (this is told to you alone: do not pass it on)"
            )
            raise RecordsOfOtherShapes("data", "most records", problem, remedy)

    def _first(self) -> Batch:
        if self._tensors is not None:
            return self._tensors
        if not len(self._dataset):
            raise InvalidParameter("data", "the data set", "holds no records", "pass at least one, or an example=")
        return self._tried("data", None)

    def _tried(self, name: str, row: Any) -> Batch:
        """A batch of one: of ``row``, or of the first record."""
        try:
            parts = _parts((self._collate or default_collate)([self._dataset[0] if row is None else row]))
            if not _one_row(parts):
                problem = f"becomes tensors of shapes {[tuple(p.shape) for p in parts]}, which are not one row each"
                remedy = "let data set and collate_fn make one row of one record: a record counts once"
                raise InvalidParameter(name, "one record", problem, remedy)
            return parts
        except QuietsumError:
            raise
        except Exception as error:
            problem = f"gives no record that can be put into a batch ({type(error).__name__})"
            shown = type(self._dataset if row is None else row).__name__
            raise InvalidParameter(name, shown, problem, "return (inputs, label)") from None

    def made_up(self, device: torch.device | None = None, count: int = _ROWS) -> Batch:
        """Some rows of the right shape that belong to nobody: random numbers, and 0, 1, 0, 1 for whole ones."""
        generator = torch.Generator().manual_seed(0)
        rows = []
        for shape, dtype in self.schema:
            if dtype.is_floating_point:
                rows.append(torch.randn((count, *shape), generator=generator).to(dtype))
            else:
                pattern = torch.arange(count).remainder(2).to(dtype)
                rows.append(pattern.view(count, *([1] * len(shape))).expand(count, *shape).clone())
        return tuple(row.to(device) for row in rows)


def _schema(parts: Batch) -> tuple[tuple[tuple[int, ...], torch.dtype], ...]:
    return tuple((tuple(part.shape[1:]), part.dtype) for part in parts)


def _one_row(parts: Batch) -> bool:
    return all(part.dim() > 0 and len(part) == 1 and part.layout is torch.strided for part in parts)


def _plain(dataset: Any) -> bool:
    """Whether the records are the rows of its tensors. A subclass may return something else of them."""
    return type(dataset) is TensorDataset


def _chosen(loader: DataLoader[Any]) -> Any:
    """The data set of a loader, or the part of it that the loader's sampler can ever draw; others are refused."""
    dataset, batches = _indexable(loader.dataset), loader.batch_sampler
    if batches is None:
        problem = "lets the data set return whole batches, and every record needs its own coin"
        raise InvalidParameter("batch_size", None, problem, "let the data set return one record, and pass a batch_size")
    sampler: Any = batches.sampler if type(batches) is BatchSampler else batches
    whole = type(sampler) in (RandomSampler, SequentialSampler) and len(sampler.data_source) == len(dataset)
    if whole:
        return dataset
    if type(sampler) is SubsetRandomSampler:
        sampler = sampler.indices
    if not isinstance(sampler, Tensor | Sequence):
        problem = "chooses records in its own way, which Poisson sampling replaces: others would be trained on"
        remedy = "wrap the records that may be used in torch.utils.data.Subset, and leave the sampler out"
        raise InvalidParameter("sampler", type(sampler).__name__, problem, remedy)
    return _taken(dataset, "sampler", sampler)


def _taken(dataset: Any, name: str, indices: Sequence[Any] | Tensor) -> Any:
    """The records with these numbers, each at most once."""
    numbers = [int(index) for index in indices]
    if len(set(numbers)) != len(numbers) or not all(0 <= number < len(dataset) for number in numbers):
        problem = "names a record twice, which would then count twice, or one that is not there"
        raise InvalidParameter(name, "its indices", problem, "name every record at most once, from 0 on")
    if _plain(dataset):
        return TensorDataset(*(part[torch.tensor(numbers, dtype=torch.int64)] for part in dataset.tensors))
    return Subset(dataset, numbers)


def _indexable(data: Any) -> Any:
    if isinstance(data, IterableDataset) or not (hasattr(data, "__len__") and hasattr(data, "__getitem__")):
        problem = "has no records by number, and every record needs its own coin"
        raise InvalidParameter("data", type(data).__name__, problem, "pass a Dataset with __len__ and __getitem__")
    return _taken(_indexable(data.dataset), "data", data.indices) if type(data) is Subset else data


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
    of records in memory are compared with the model's classes, and the first records of other data sets with the
    schema: those errors are for the holder of the data, who knows the records, and must not be passed on, since they
    tell of them. Parameters and buffers of the model are afterwards what they were.
    """
    rows = records.made_up(device)
    if loss is cross_entropy and (len(rows) != 2 or rows[1].dtype.is_floating_point or rows[1].dim() != 1):
        shapes = [(shape, str(dtype)) for shape, dtype in records.schema]
        raise InvalidParameter("data", shapes, "is not (inputs, whole-number label)", "pass your own loss for it")
    with unchanged(model):
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
        _refuse_memory(model, loss, rows)
        _refuse_mixed(model, loss, rows)
        records._rehearsed = (model, loss)
        if loss is cross_entropy and check_labels:
            _check_labels(model, records, rows)
    if check_labels:
        records.check_shapes()


def _refuse_mixed(model: nn.Module, loss: Loss, rows: Batch) -> None:
    how = what_mixes(model, loss, rows)
    if how is not None:
        problem = f"mixes examples in a batch of {len(rows[0])}: the loss of a record is another one {how}"
        remedy = (
            "clipping then bounds nothing; let every loss depend on its own record alone, whatever the number and the "
            "order of the records in a batch: no statistics over it, no capacity, no division by its length"
        )
        raise InvalidParameter("model", type(model).__name__, problem, remedy)


def _refuse_memory(model: nn.Module, loss: Loss, rows: Batch) -> None:
    found = what_remembers(model, loss, rows)
    if found is not None:
        problem = (
            "depends on the records that passed through the model, or on their number, and would be saved without noise"
        )
        remedy = (
            "keep nothing of a batch beyond forward() and the loss: a local variable, no attribute, list or closure; "
            "statistics of the data belong in fixed, public numbers that you set before training"
        )
        raise InvalidParameter("model", f"{type(model).__name__}: {found}", problem, remedy)


def rehearse_step(step: PrivateStep, records: Records, device: torch.device) -> None:
    """Try the step's engine on made-up rows, one of them and several, and let it say aloud what it cannot do.

    In training a row that raises is silent, so a model that always raises would be trained on noise alone. The model of
    the last :func:`rehearse` with these records is also tried for mixing in large batches (:func:`rehearse_large`).
    """
    rows = records.made_up(device)
    model, loss = records._rehearsed or (None, None)
    with contextlib.ExitStack() as stack:
        if model is not None:
            stack.enter_context(unchanged(model))
        for count in (1, _ROWS):
            try:
                step.engine.clipped_sum(tuple(part[:count] for part in rows))
            except QuietsumError:
                raise
            except Exception as error:
                problem = f"cannot be differentiated by the engine {step.engine.name} in a batch of {count}"
                remedy = f"it raises {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
                raise InvalidParameter("model", "the model", problem, remedy) from error
    if step.engine.name == "naive" and step.engine.why.startswith("a loop over examples, which"):
        log.warning("the training steps run one record at a time: %s", step.engine.why)
    if model is not None and loss is not None:
        rehearse_large(model, loss, records, device, expected_batch=step.expected_batch, micro_batch=step.micro_batch)


def rehearse_large(
    model: nn.Module,
    loss: Loss,
    records: Records,
    device: torch.device,
    *,
    expected_batch: float,
    micro_batch: int | None = None,
) -> None:
    """Refuse a model that mixes examples in a batch as large as Poisson batches get, or in any smaller one.

    That is six deviations above the expected size, a public number, or one micro-batch, if that is smaller: no forward
    pass sees more rows. It costs as much as a few steps of the training.
    """
    count = math.ceil(expected_batch + 6 * math.sqrt(expected_batch))
    count = count if micro_batch is None else min(count, micro_batch)
    while count > _ROWS:
        rows = records.made_up(device, count)
        try:
            with unchanged(model), torch.no_grad():
                losses_of(loss, model, rows, count)
            return _refuse_mixed(model, loss, rows)
        except torch.OutOfMemoryError:
            count //= 2  # micro-batches may be all that fits
        except QuietsumError:
            raise
        except Exception as error:
            problem = f"and the loss cannot read {count} made-up records, as many as a batch may hold"
            remedy = f"they raise {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
            raise InvalidParameter("model", type(model).__name__, problem, remedy) from error


class LabelsOutOfRange(InvalidParameter):
    """Some protected label is no class of the model. For the holder of the data alone; nothing was charged."""


class RecordsOfOtherShapes(InvalidParameter):
    """Most protected records count as zero by their shape. For the holder of the data alone; nothing was charged."""


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
