"""Records read by processes of their own, ahead of the steps that need them.

A data set that opens files or decodes pictures is slower than the step that learns from it, so a ``DataLoader`` has
workers. :class:`Workers` are as many processes, started as the loader would start them. What they differ in from the
loader's own is what may go wrong: torch's make the main program raise wherever it happens to be when one of them dies.
Here a death is a fact about a record, and stays here.

The memory that rows are written to is shared with all workers and cut into pieces, each for some rows of one draw:

    draw 1: [rows 0–127] [128–255] … [960–1003]   draw 2: [0–127] …        one piece is read by one worker

Beside each row stands a mark: not begun, begun, there, or left out. When a worker dies its piece is read again in a
process that was started for it alone; where that dies too, each half is, and so on. A record that ends its reader alone
is left out.
"""

from __future__ import annotations

import contextlib
import dataclasses
import mmap
import os
import random
import signal
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterator
from multiprocessing.connection import Connection, wait
from typing import Any, final

import numpy as np
import torch
import torch.multiprocessing
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, default_collate
from torch.utils.data._utils import worker as torch_worker

from quietsum.errors import QuietsumError
from quietsum.learning.engines.protocol import Batch
from quietsum.learning.rows.memory import make_room

__all__ = ["Alone", "LoaderWorkers", "Schema", "Workers", "schema_of"]

Schema = tuple[tuple[tuple[int, ...], torch.dtype], ...]
"""Shape and type of each part of a record. Public."""

_BEGUN, _THERE, _LEFT_OUT = 1, 2, 3  # marks of a row; 0 is not begun
_PIECE_ROWS, _PIECE_BYTES = 128, 1 << 25
_PIECES_EACH, _ALL_BYTES = 4, 1 << 30  # pieces for each worker; the most that they take together
_LEAST_PIECES = 32
_AHEAD = 8  # draws that are begun before the first of them is used
_FRUITLESS = 3  # workers in a row that die before they begin a record
_LOOK_UP = 2.0  # seconds after which a worker looks whether its program is still there


def schema_of(parts: Batch) -> Schema:
    """Shapes and types of the rows of a batch."""
    return tuple((tuple(part.shape[1:]), part.dtype) for part in parts)


@final
class Alone:
    """Reads records one by one.

    Guarantees: the collate function sees one record at a time. A record that raises, or that comes in another shape or
    type than ``schema``, is left out, in silence.
    """

    def __init__(self, dataset: Any, collate: Callable[[list[Any]], Any] | None, schema: Schema) -> None:
        self.dataset, self.collate, self.schema = dataset, collate, schema

    def fill(self, index: int, out: Batch, place: int) -> bool:
        """Write the record with this number into row ``place``; whether it is there now."""
        try:
            record = self.dataset[index]
            parts = self._split_plainly(record) if self.collate is None else None
            for part, made in zip(out, self._collate_alone(record) if parts is None else parts, strict=True):
                part[place] = made
        except Exception:  # what a record raises is a fact about that record
            return False
        return True

    def _split_plainly(self, record: Any) -> list[Any] | None:
        """The parts of a record that torch's own collate function would only stack; None for any other."""
        parts = [record] if type(record) is Tensor else record
        if type(parts) not in (list, tuple) or len(parts) != len(self.schema):
            return None
        for part, (shape, dtype) in zip(parts, self.schema, strict=True):
            if type(part) is Tensor:
                if part.shape != shape or part.dtype is not dtype or part.layout is not torch.strided:
                    return None
            elif not (type(part) is int and dtype is torch.int64 and not shape):
                return None
        return [part.detach() if type(part) is Tensor else part for part in parts]

    def _collate_alone(self, record: Any) -> list[Tensor]:
        collated = (self.collate or default_collate)([record])
        parts = (collated,) if isinstance(collated, Tensor) else tuple(collated)
        if schema_of(parts) != self.schema or not all(one_row(part) for part in parts):
            raise ValueError("not of the public shape")
        return [part.detach()[0] for part in parts]


def one_row(part: Any) -> bool:
    """Whether a part of a collated record is one row."""
    return isinstance(part, Tensor) and part.dim() > 0 and len(part) == 1 and part.layout is torch.strided


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class LoaderWorkers:
    """What a loader says about its workers."""

    count: int
    init: Callable[[int], None] | None = None
    context: Any = None
    generator: torch.Generator | None = None

    @classmethod
    def of(cls, loader: DataLoader[Any]) -> LoaderWorkers | None:
        """None where the loader has none."""
        if not loader.num_workers:
            return None
        return cls(
            count=loader.num_workers, init=loader.worker_init_fn, context=loader.multiprocessing_context,
            generator=loader.generator,
        )  # fmt: skip


# ------------------------------------------------------------------------------------------ shared memory


@final
class _Pieces:
    """Memory for some rows at a time, in so many pieces, that this process and its workers share."""

    def __init__(self, schema: Schema, workers: int, *, forked: bool) -> None:
        self.schema = schema
        sizes = [torch.empty(shape, dtype=dtype, device="meta") for shape, dtype in schema]
        row = sum(part.numel() * part.element_size() for part in sizes) + 1
        self.rows = max(1, min(_PIECE_ROWS, _PIECE_BYTES // row))
        self._places, end = [], self.rows  # the marks come first
        for part in sizes:
            start = -(-end // 64) * 64
            end = start + part.numel() * part.element_size() * self.rows
            self._places.append((start, end))
        self._each = -(-end // 64) * 64
        self.count = max(workers, min(max(_LEAST_PIECES, _PIECES_EACH * workers), _ALL_BYTES // self._each))
        size = self._each * self.count
        if forked:  # anonymous, so that no limit of /dev/shm is in the way
            self._region = torch.frombuffer(mmap.mmap(-1, size), dtype=torch.uint8)
        else:
            self._region = torch.empty(size, dtype=torch.uint8).share_memory_()  # type: ignore[no-untyped-call]

    def view(self, piece: int) -> tuple[Tensor, Batch]:
        """The marks of a piece, and its rows."""
        own = self._region[piece * self._each : (piece + 1) * self._each]
        parts = [
            own[start:end].view(dtype).view(self.rows, *shape)
            for (start, end), (shape, dtype) in zip(self._places, self.schema, strict=True)
        ]
        return own[: self.rows], tuple(parts)


# --------------------------------------------------------------------------------------- in a worker


def _serve(
    number: int, count: int, alone: Alone, pieces: _Pieces, line: Connection, init: Any, seed: int, parent: int | None
) -> None:
    """Read what is asked for, until there is no one left who asks: ``parent`` is that process, where it forked."""
    parent = os.getppid() if parent is None else parent
    with contextlib.suppress(ValueError):
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # who pressed it meant the program, which ends its workers
    torch.set_num_threads(1)
    _begin_chance(seed)
    torch_worker._worker_info = torch_worker.WorkerInfo(id=number, num_workers=count, seed=seed, dataset=alone.dataset)
    warnings.simplefilter("ignore")
    if init is not None:
        try:
            init(number)
        except Exception as error:
            line.send(type(error).__name__)
            return
    views = [pieces.view(piece) for piece in range(pieces.count)]
    while True:
        while not line.poll(_LOOK_UP):
            if os.getppid() != parent:
                os._exit(0)
        try:
            job = line.recv()
        except (EOFError, OSError):
            return
        if job is None:
            return
        ticket, piece, start, indices = job
        marks, rows = views[piece]
        for place, index in enumerate(indices, start):
            marks[place] = _BEGUN
            try:
                there = alone.fill(index, rows, place)
            except BaseException:  # SystemExit, say: this process ends when it is asked to
                there = False
            marks[place] = _THERE if there else _LEFT_OUT
        line.send(ticket)


def _begin_chance(seed: int) -> None:
    """Other chance in each worker, for what a data set does to pictures; it is none of privacy's."""
    random.seed(seed)
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)  # which data sets use


# ----------------------------------------------------------------------------------- in the main process


@dataclasses.dataclass(eq=False)
class _Job:
    """Some rows of one draw, and the piece that they are read into."""

    draw: _Draw
    place: int
    indices: list[int]
    piece: int
    done: bool = False


@dataclasses.dataclass(eq=False)
class _Draw:
    """One draw: which of its rows are not asked for yet, and the jobs of the others."""

    indices: NDArray[np.int64]
    asked: int = 0
    jobs: list[_Job] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(eq=False)
class _Worker:
    process: Any
    line: Connection
    jobs: dict[int, _Job] = dataclasses.field(default_factory=dict)


@final
class Workers:
    """Processes that read draws in order, some of them ahead.

    Guarantees: a row of a batch is its own record, read alone; a record that cannot be read, or ends the process that
    reads it, is left out, in silence, and leaves all others as they are. No record is read in this process. No more
    draws are taken from the iterator than it gives, and never more than :data:`_AHEAD` before the first is used.
    """

    def __init__(self, alone: Alone, how: LoaderWorkers) -> None:
        self._alone, self._how = alone, how
        context = how.context
        if context is None or isinstance(context, str):
            context = torch.multiprocessing.get_context(context)
        self._context: Any = context
        self._forks = context.get_start_method() == "fork"
        self._pieces = _Pieces(alone.schema, how.count, forked=self._forks)
        self._views = [self._pieces.view(piece) for piece in range(self._pieces.count)]
        self._free = deque(range(self._pieces.count))
        self._workers: list[_Worker] = []
        self._ticket, self._fruitless = 0, 0
        self._seed = int(torch.empty((), dtype=torch.int64).random_(generator=how.generator).item())
        self._owner = os.getpid()
        self._end = weakref.finalize(self, _stop, self._workers, self._owner)

    def close(self) -> None:
        """End the processes. The next draw starts others."""
        _stop(self._workers, self._owner)
        self._free = deque(range(self._pieces.count))

    def read(
        self, draws: Iterator[NDArray[np.int64]], device: torch.device | None
    ) -> Generator[tuple[NDArray[np.int64], Batch], None, None]:
        """Each draw with its rows, in the memory of this machine, from which ``device`` is near."""
        begun: deque[_Draw] = deque()
        try:
            self._ask(begun, draws)
            while begun:
                draw = begun[0]
                rows = self._collect(draw, begun, draws, device)
                begun.popleft()
                self._ask(begun, draws)  # the next ones are read while this one is used
                yield draw.indices, rows
        finally:
            if begun:  # what is still being read is not wanted any more
                self.close()

    def _ask(self, begun: deque[_Draw], draws: Iterator[NDArray[np.int64]]) -> None:
        """Give free pieces to the draws in order, and take new draws while pieces are left."""
        while self._free:
            draw = next((one for one in begun if one.asked < len(one.indices)), None)
            if draw is None:
                if len(begun) >= _AHEAD:
                    return
                drawn = next(draws, None)
                if drawn is None:
                    return
                begun.append(_Draw(drawn))
                continue
            end = draw.asked + self._pieces.rows
            job = _Job(draw, draw.asked, draw.indices[draw.asked : end].tolist(), self._free.popleft())
            draw.asked += len(job.indices)
            draw.jobs.append(job)
            self._give(job)

    def _collect(
        self, draw: _Draw, begun: deque[_Draw], draws: Iterator[NDArray[np.int64]], device: torch.device | None
    ) -> Batch:
        """The rows of a draw, once they are all there."""
        count = len(draw.indices)
        rows = tuple(make_room(count, shape, dtype, device) for shape, dtype in self._alone.schema)
        there = torch.ones(count, dtype=torch.bool)
        while draw.jobs or draw.asked < count:
            ready = [job for job in draw.jobs if job.done]
            for job in ready:
                draw.jobs.remove(job)
                marks, parts = self._views[job.piece]
                size = len(job.indices)
                for whole, part in zip(rows, parts, strict=True):
                    whole[job.place : job.place + size].copy_(part[:size])
                torch.eq(marks[:size], _THERE, out=there[job.place : job.place + size])
                self._free.append(job.piece)
            if ready:
                self._ask(begun, draws)
            elif draw.jobs:
                self._listen()
        if bool(there.all()):
            return rows
        return tuple(part[there] for part in rows)

    # ------------------------------------------------------------------------------------------ processes

    def _give(self, job: _Job) -> None:
        """To the worker with the least to do."""
        while len(self._workers) < self._how.count:
            self._workers.append(self._start(len(self._workers)))
        worker = min(self._workers, key=lambda one: len(one.jobs))
        self._ticket += 1
        worker.jobs[self._ticket] = job
        self._views[job.piece][0][: len(job.indices)] = 0
        with contextlib.suppress(OSError):  # it is dead, which _listen will see
            worker.line.send((self._ticket, job.piece, 0, job.indices))

    def _listen(self) -> None:
        """Wait until some worker has read its piece, or has died."""
        ends: dict[Any, _Worker] = {worker.line: worker for worker in self._workers}
        ends.update({worker.process.sentinel: worker for worker in self._workers})
        for worker in {id(ends[end]): ends[end] for end in wait(list(ends))}.values():
            if not _hear(worker):
                self._bury(worker)

    def _bury(self, worker: _Worker) -> None:
        """Put another worker in the place of a dead one, and read again what it was reading."""
        place = self._workers.index(worker)
        _end(worker)
        self._workers[place] = self._start(place)
        first = True
        for job in worker.jobs.values():
            if first:
                self._read_apart(job.piece, 0, job.indices)
                job.done = True
            else:
                self._give(job)
            first = False

    def _read_apart(self, piece: int, start: int, indices: list[int]) -> None:
        """Read some rows in a process that is started for them alone, and each half in another one if it dies."""
        marks = self._views[piece][0][start : start + len(indices)]
        for _ in range(_FRUITLESS):
            marks.zero_()
            worker = self._start(0)
            worker.jobs[0] = _Job(_Draw(np.empty(0, dtype=np.int64)), start, indices, piece)
            with contextlib.suppress(OSError):
                worker.line.send((0, piece, start, indices))
            while worker.jobs and _hear(worker, wait_for_it=True):
                pass
            _end(worker)
            if not worker.jobs:
                return
            if bool(marks.any()):
                break
        else:
            raise QuietsumError(
                "the workers that read records end before they read any; look at what they write to stderr, or use "
                "num_workers=0"
            )
        if len(indices) == 1:
            marks.fill_(_LEFT_OUT)
            return
        half = len(indices) // 2
        self._read_apart(piece, start, indices[:half])
        self._read_apart(piece, start + half, indices[half:])

    def _start(self, number: int) -> _Worker:
        ours, theirs = self._context.Pipe()
        self._seed = (self._seed + 1) % 2**63
        process = self._context.Process(
            target=_serve, daemon=True,
            args=(
                number, self._how.count, self._alone, self._pieces, theirs, self._how.init, self._seed,
                os.getpid() if self._forks else None,
            ),
        )  # fmt: skip
        try:
            process.start()
        except Exception as error:
            raise QuietsumError(
                f"the data set cannot be handed to the loader's workers ({type(error).__name__}); let it hold nothing "
                "that belongs to this process alone, or use num_workers=0"
            ) from error
        theirs.close()
        return _Worker(process, ours)


def _hear(worker: _Worker, *, wait_for_it: bool = False) -> bool:
    """Take what a worker has said; whether it lives."""
    if wait_for_it:
        wait([worker.line, worker.process.sentinel])
    try:
        while worker.line.poll():
            said = worker.line.recv()
            if isinstance(said, str):
                raise QuietsumError(f"the loader's worker_init_fn raises {said}; mend it, or use num_workers=0")
            worker.jobs.pop(said).done = True
    except (EOFError, OSError):
        return False
    return bool(worker.process.is_alive()) or worker.line.poll()


def _end(worker: _Worker) -> None:
    with contextlib.suppress(OSError):
        worker.line.send(None)
    worker.process.join(0.2)
    if worker.process.is_alive():
        worker.process.kill()
        worker.process.join()
    worker.line.close()


def _stop(workers: list[_Worker], owner: int) -> None:
    """End all of them; a process that is a copy of their owner leaves them alone."""
    if os.getpid() != owner:
        return
    for worker in workers:
        with contextlib.suppress(OSError):
            worker.line.send(None)
        if worker.jobs:
            worker.process.kill()
    for worker in workers:
        _end(worker)
    workers.clear()
