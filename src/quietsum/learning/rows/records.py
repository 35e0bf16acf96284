"""Protected records by number: their public shape, and batches of them.

Training must know the shape of a record before it starts, and that shape is public. :class:`Records` takes it from a
made-up example, or from tensors. Every record is read and collated alone, so that no record can change what another one
becomes. Tensors lie on the card from the start where they fit (:mod:`quietsum.learning.rows.memory`); the workers of a
loader read ahead (:mod:`quietsum.learning.rows.workers`), never further than there are draws.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from typing import Any, Protocol, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    default_collate,
)

from quietsum.errors import InvalidParameter, QuietsumError
from quietsum.learning.engines.protocol import Batch, Loss
from quietsum.learning.rows.memory import Belt, carry, fits, free_memory, make_room
from quietsum.learning.rows.people import bound_people
from quietsum.learning.rows.workers import Alone, LoaderWorkers, Workers, one_row, schema_of

__all__ = ["LabelsOutOfRange", "MadeUpRows", "Records", "RecordsOfOtherShapes", "bound_records"]

MADE_UP_ROWS = 4  # of a made-up batch
_LOOKED_AT = 64  # records whose shape is compared before training


class MadeUpRows(Protocol):
    """What a rehearsal asks of records: rows that belong to no person, and what was rehearsed with them."""

    rehearsed: tuple[nn.Module, Loss] | None

    def make_up(self, device: torch.device | None = None, count: int = MADE_UP_ROWS) -> Batch:
        """Some rows of the right shape."""
        ...


@final
class Records:
    """Protected records by number. Printing them shows nothing.

    ``schema`` holds the shapes and types of a record, which are public: those of ``example``, a record that belongs to
    no person; or of the tensors, however many rows they have; or of the first record, where there must be one.

    Guarantees: with ``example``, and with tensors, no record is read, so that an empty set is treated like any other. A
    row of a batch is a function of its own record, as far as data set and collate function keep no memory: the collate
    function never sees two records at once. A record that cannot be read or collated, or that comes in another shape
    or type than ``schema``, counts as zero, in silence.
    """

    def __init__(
        self,
        dataset: Any,
        collate: Callable[[list[Any]], Any] | None = None,
        *,
        example: Any = None,
        workers: LoaderWorkers | None = None,
    ) -> None:
        tensors = tuple(dataset.tensors) if _plain(dataset) and collate is None else None
        self._collate = collate
        self._dataset, self._tensors = dataset, tensors
        first = self._first() if example is None else self._try_row("example", example)
        self.schema = schema_of(first)
        if tensors is not None and self.schema != schema_of(tensors):
            raise InvalidParameter("example", self.schema, f"is no record of {schema_of(tensors)}", "leave it out")
        self._begin(first[0].device, workers)

    def _begin(self, home: torch.device, how: LoaderWorkers | None) -> None:
        """``home`` is where the data set's own tensors lie, which may be a card."""
        self.rehearsed: tuple[nn.Module, Loss] | None = None
        self._alone = Alone(self._dataset, self._collate, self.schema)
        self._how, self._home = how, home
        self._workers: Workers | None = None
        self._belt = Belt()
        self._near: tuple[torch.device | None, Batch] | None = None

    @classmethod
    def of(cls, data: Any, *, quiet: bool = False, example: Any = None, size_is_private: bool = False) -> Records:
        """From a DataLoader, a Dataset or a tuple of tensors. A loader's batching is replaced, which is said once.

        Where the number of records is private there may be none, so their shape must not come from one of them: a data
        set that is no tensor then needs an ``example``.
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
            return cls._with_size(_choose(data), own, example, size_is_private, LoaderWorkers.of(data))
        if isinstance(data, Sequence) and data and all(isinstance(part, Tensor) for part in data):
            if len({len(part) for part in data}) != 1:
                raise InvalidParameter("data", [tuple(p.shape) for p in data], "has parts of unequal length")
            return cls._with_size(TensorDataset(*data), None, example, size_is_private)
        return cls._with_size(data, None, example, size_is_private)

    @classmethod
    def _with_size(
        cls, dataset: Any, collate: Any, example: Any, size_is_private: bool, workers: LoaderWorkers | None = None
    ) -> Records:
        known = _plain(dataset) and collate is None
        if size_is_private and example is None and not known:
            problem = "is missing: the number of records is private, so there may be none to read the shape off"
            remedy = "pass example=, one made-up record as the data set would return it; or pass tensors"
            raise InvalidParameter("example", None, problem, remedy)
        return cls(_indexable(dataset), collate, example=example, workers=workers)

    def __len__(self) -> int:
        return len(self._dataset)

    def __repr__(self) -> str:
        return f"Records(schema={self.schema})"

    def only(self, places: NDArray[np.int64]) -> Records:
        """The records at these places, as a set of its own."""
        other = object.__new__(Records)
        other._collate, other.schema = self._collate, self.schema
        if self._tensors is not None:
            chosen = torch.from_numpy(places)
            other._tensors = tuple(part[chosen] for part in self._tensors)
            other._dataset = TensorDataset(*other._tensors)
        else:
            other._tensors, other._dataset = None, Subset(self._dataset, places.tolist())
        other._begin(self._home, self._how)
        return other

    @property
    def tensors(self) -> Batch | None:
        """All records at once, where they lie in memory as tensors."""
        return self._tensors

    @property
    def places(self) -> Sequence[int] | None:
        """The numbers that these records have in a larger data set, if they are a part of one; None if not."""
        return self._dataset.indices if type(self._dataset) is Subset else None

    def batch(self, indices: NDArray[np.int64], device: torch.device | None = None) -> Batch:
        """The records with these numbers. One that cannot be read, or has another shape, is left out in silence."""
        with closing(self.read(iter((indices,)), device)) as batches:
            return next(batches)[1]

    def read(
        self, draws: Iterator[NDArray[np.int64]], device: torch.device | None = None, *, stay: bool = True
    ) -> Generator[tuple[NDArray[np.int64], Batch], None, None]:
        """Each draw with its batch on ``device``, in order. A record that cannot be read, or has another shape, is left
        out, in silence.

        Guarantees: a draw is taken from ``draws`` before any of its records is read, and a draw that is taken is read,
        whole, once. Where a loader has workers, some draws more are taken than are used; elsewhere none. Without
        ``stay`` no more than what was drawn is brought to a card.
        """
        if self._tensors is not None:
            near = self._settle(device, self._tensors) if stay else tuple(part.detach() for part in self._tensors)
            for drawn in draws:
                yield drawn, self._gather(near, drawn, device)
        elif self._how is None:
            for drawn in draws:
                yield drawn, self._belt.carry(self._read_here(drawn, device), device)
        else:
            if self._workers is None:
                self._workers = Workers(self._alone, self._how)
            with closing(self._workers.read(draws, device)) as batches:
                for drawn, rows in batches:
                    yield drawn, self._belt.carry(rows, device)

    def close(self) -> None:
        """End the processes that read ahead, if any. The next batch starts others."""
        if self._workers is not None:
            self._workers.close()

    def _settle(self, device: torch.device | None, tensors: Batch) -> Batch:
        """All records, on the card if they fit there."""
        if self._near is None or self._near[0] != device:
            there = device is not None and device.type != "cpu" and fits(tensors, free_memory(device))
            near = tuple(part.detach().to(device) if there else part.detach() for part in tensors)
            self._near = device, near
        return self._near[1]

    def _gather(self, near: Batch, drawn: NDArray[np.int64], device: torch.device | None) -> Batch:
        places, found = torch.from_numpy(drawn), []
        for part in near:
            chosen = carry(places, part.device)
            if device is None or device == part.device:
                found.append(part.index_select(0, chosen))
            else:
                room = make_room(len(drawn), tuple(part.shape[1:]), part.dtype, device, part.device)
                found.append(torch.index_select(part, 0, chosen, out=room))
        return self._belt.carry(tuple(found), device)

    def _read_here(self, drawn: NDArray[np.int64], device: torch.device | None) -> Batch:
        """Read in this process, one record after the other."""
        rows = tuple(make_room(len(drawn), shape, dtype, device, self._home) for shape, dtype in self.schema)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            there = [self._alone.fill(index, rows, place) for place, index in enumerate(drawn.tolist())]
        if all(there):
            return rows
        chosen = torch.tensor(there).to(rows[0].device)
        return tuple(part[chosen] for part in rows)

    def check_shapes(self) -> None:
        """Refuse, to the holder of the data, a set whose first records mostly have another shape than the schema.

        A few odd ones count as zero, in silence. If most do, nearly nothing would be learned from, and the reason is
        rather a collate function that pads to the longest, or a first record that is unlike all others.
        """
        looked = min(len(self), _LOOKED_AT) if self._tensors is None else 0
        if looked and 2 * len(self.batch(np.arange(looked))[0]) < looked:
            problem = f"differ in shape or type from {self.schema}, and such records count as zero"
            remedy = (
                "give all records one public shape, padded to a length that no record sets, or pass example=, a "
                "made-up record that is like them (this message is for you alone: do not pass it on)"
            )
            raise RecordsOfOtherShapes("data", "most records", problem, remedy)

    def _first(self) -> Batch:
        if self._tensors is not None:
            return self._tensors
        if not len(self._dataset):
            raise InvalidParameter("data", "the data set", "holds no records", "pass at least one, or an example=")
        return self._try_row("data", None)

    def _try_row(self, name: str, row: Any) -> Batch:
        """A batch of one: of ``row``, or of the first record."""
        try:
            parts = _parts((self._collate or default_collate)([self._dataset[0] if row is None else row]))
            if not all(one_row(part) for part in parts):
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

    def make_up(self, device: torch.device | None = None, count: int = MADE_UP_ROWS) -> Batch:
        """Some rows of the right shape that belong to no person: random numbers, and 0, 1, 0, 1 for whole ones."""
        generator = torch.Generator().manual_seed(0)
        rows = []
        for shape, dtype in self.schema:
            if dtype.is_floating_point:
                rows.append(torch.randn((count, *shape), generator=generator).to(dtype))
            else:
                pattern = torch.arange(count).remainder(2).to(dtype)
                rows.append(pattern.view(count, *([1] * len(shape))).expand(count, *shape).clone())
        return tuple(row.to(device) for row in rows)


def _plain(dataset: Any) -> bool:
    """Whether the records are the rows of its tensors. A subclass may return something else of them."""
    return type(dataset) is TensorDataset


def _choose(loader: DataLoader[Any]) -> Any:
    """The data set of a loader, or the part of it that the loader's sampler can ever draw; others are refused."""
    dataset, batches = _indexable(loader.dataset), loader.batch_sampler
    if batches is None:
        problem = "lets the data set return whole batches, and every record needs its own coin"
        raise InvalidParameter("batch_size", None, problem, "let the data set return one record, and pass a batch_size")
    sampler: Any = batches.sampler if type(batches) is BatchSampler else batches
    if isinstance(sampler, DistributedSampler):
        problem = "gives each process a shard, filled up with records that are in another one too: they count twice"
        remedy = "leave it out, and pass every process the whole data set: one draw is shared out among them"
        raise InvalidParameter("sampler", type(sampler).__name__, problem, remedy)
    whole = type(sampler) in (RandomSampler, SequentialSampler) and len(sampler.data_source) == len(dataset)
    if whole:
        return dataset
    if type(sampler) is SubsetRandomSampler:
        sampler = sampler.indices
    if not isinstance(sampler, Tensor | Sequence):
        problem = "chooses records in its own way, which Poisson sampling replaces: others would be trained on"
        remedy = "wrap the records that may be used in torch.utils.data.Subset, and leave the sampler out"
        raise InvalidParameter("sampler", type(sampler).__name__, problem, remedy)
    return _take(dataset, "sampler", sampler)


def _take(dataset: Any, name: str, indices: Sequence[Any] | Tensor) -> Any:
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
    return _take(_indexable(data.dataset), "data", data.indices) if type(data) is Subset else data


def _parts(collated: Any) -> Batch:
    parts = (collated,) if isinstance(collated, Tensor) else collated
    if not isinstance(parts, Sequence) or not parts or not all(isinstance(part, Tensor) for part in parts):
        problem = "does not come as tensors"
        raise InvalidParameter("batch", type(collated).__name__, problem, "let the data set return (inputs, label)")
    return tuple(parts)


class LabelsOutOfRange(InvalidParameter):
    """Some protected label is no class of the model. For the holder of the data alone; nothing was charged."""


class RecordsOfOtherShapes(InvalidParameter):
    """Most protected records count as zero by their shape. For the holder of the data alone; nothing was charged."""


def bound_records(records: Records, people: Sequence[Any] | NDArray[Any] | None, most: int | None) -> Records:
    """The records that are used: all of them, or where a bound is stated at most so many of each person."""
    if most is None and people is None:
        return records
    if most is None or people is None:
        missing, other = ("people", "max_records") if people is None else ("max_records", "people")
        remedy = "state both: PrivacyConfig(max_records=k), and train(…, people=one name per record)"
        raise InvalidParameter(missing, None, f"is missing beside {other}", remedy)
    if len(people) != len(records):
        problem = "does not name a person for each record"
        raise InvalidParameter("people", f"of length {len(people)}", problem, "pass as many names as records")
    return records.only(bound_people(people, most=most))
