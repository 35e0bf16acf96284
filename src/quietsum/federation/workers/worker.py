"""One worker process of a :class:`~quietsum.federation.workers.crew.Crew`: make the task once, then train and fold.

Here are both ends of its pipes: :class:`Worker`, for the process that starts it, and :func:`serve_jobs`, what it does.
It reads jobs as pickles from its input and writes one answer for each. The first job is a :class:`FirstJob`, answered
by :class:`Ready`; all others are pieces of a round, or one party's share of a masked sum. It ends when its input ends,
also in the middle of a job, and without a word where a task ends it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, final

from quietsum.aggregation import Fold
from quietsum.errors import QuietsumError
from quietsum.federation.messages import Federation, Lost, Reply, Sums, TrainRequest, Update

if TYPE_CHECKING:
    from quietsum.plan import ResolvedPlan

__all__ = [
    "Desk",
    "FirstJob",
    "Look",
    "Piece",
    "Ready",
    "ShareJob",
    "Worker",
    "WorkerAnswer",
    "end",
    "serve_jobs",
    "work",
]

_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
_SHARED = 0.95  # of a card's memory: the rest is what each process needs beside its tensors
_GRACE = 2.0  # seconds for a worker to end by itself


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class FirstJob:
    """The plan whose task a worker makes, where its model trains, and how much of that card's memory it may take."""

    resolved: ResolvedPlan
    device: str = "cpu"
    share: float = 1.0

    @classmethod
    def of(cls, resolved: ResolvedPlan, device: str, workers: int) -> FirstJob:
        """That of each of several workers: they and the process that started them divide a card evenly."""
        return cls(resolved=resolved, device=device, share=_SHARED / (workers + 1))


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Ready:
    """A worker's first word: who takes part, how long an update is, whether clients train side by side."""

    parties: tuple[str, ...]
    dimension: int
    many: bool


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Piece:
    """Some clients of a round, for one worker. ``nothing``: their own work ended a worker, so without their data."""

    request: TrainRequest
    parties: tuple[str, ...]
    fold: Fold[Any]
    nothing: bool = False


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class ShareJob:
    """One party's vector for a masked sum. Only its keeper asks for it, and it never goes further than there."""

    request: TrainRequest
    party: str


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Look:
    """Which of these parties would refuse, before any data is touched."""

    parties: tuple[str, ...]


# ---------------------------------------------------------------------------------------- the end that asks


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class WorkerAnswer:
    """What came back from a worker: a value, or in words why nothing did."""

    worker: Worker
    value: Any = None
    problem: str = ""
    sent: bool = True


@final
class Worker:
    """One process, and the thread that speaks with it. A process that fails once is never asked again."""

    def __init__(self, command: Sequence[str], answers: queue.SimpleQueue[WorkerAnswer]) -> None:
        paths = os.pathsep.join(path for path in sys.path if path)
        self.process = subprocess.Popen(
            list(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **_ONE_THREAD, "PYTHONPATH": paths},
        )
        self._answers, self._jobs = answers, queue.SimpleQueue[Any]()
        self.ready = False
        self.piece: Piece | None = None
        self.pieces = 0  # that it was ever given
        self.since = time.monotonic()
        self._thread = threading.Thread(target=self._speak, daemon=True)
        self._thread.start()

    def send(self, job: Any) -> None:
        """Give it a job; the answer comes through the queue of answers, once."""
        self.since = time.monotonic()
        self.piece = job if isinstance(job, Piece) else None
        self.pieces += self.piece is not None
        self._jobs.put(job)

    def _speak(self) -> None:
        into, out = self.process.stdin, self.process.stdout
        assert into is not None and out is not None
        while (job := self._jobs.get()) is not None:
            try:
                message = pickle.dumps(job, protocol=pickle.HIGHEST_PROTOCOL)
            except Exception as error:  # it says nothing about a client: no client's data is in it
                told = f"the request cannot be sent ({type(error).__name__})"
                self._answers.put(WorkerAnswer(worker=self, problem=told, sent=False))
                continue
            try:
                into.write(message)
                into.flush()
                del message
                self._answers.put(WorkerAnswer(worker=self, value=pickle.load(out)))
            except Exception as error:  # a dead process, or a message that is none
                code = self.process.poll()
                silent = code is None or self.piece is not None  # a task at work could tell a record by its code
                what = type(error).__name__ + ("" if silent else f", exit code {code}")
                self._answers.put(WorkerAnswer(worker=self, problem=f"its worker process failed ({what})"))
                return

    @property
    def busy(self) -> bool:
        """Whether an answer is due."""
        return self.piece is not None or not self.ready

    def end(self) -> None:
        """End the process, at once if it is busy; its thread ends with it."""
        self._jobs.put(None)
        end(self.process, gently=not self.busy)


def end(process: subprocess.Popen[bytes], *, gently: bool = False) -> None:
    """End ``process``; ``gently`` leaves it a moment to end by itself."""
    if gently and process.stdin is not None:
        with contextlib.suppress(OSError, ValueError):
            process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE)
    if process.poll() is None:
        process.kill()
    process.wait()


# -------------------------------------------------------------------------------------- the end that works


def work(piece: Piece, federation: Any) -> list[Reply]:
    """All replies of a piece, the updates among them folded into one sum where the fold allows."""
    fold = piece.fold
    folded, others = fold.start(), list[Reply]()
    asked = piece.request, piece.parties
    for reply in federation.nothing(*asked) if piece.nothing else federation.ask(*asked, fold):
        match reply:
            case Sums():
                folded = fold.merge(folded, reply.folded)
            case Update() if problem := fold.problem_with(reply.delta, reply.party):
                others.append(Lost(party=reply.party, reason=f"its update {problem}"))
            case Update() if fold.needs_individuals:
                others.append(reply)
            case Update():
                folded = fold.add(folded, reply.party, reply.delta)
            case _:
                others.append(reply)
    return [*others, Sums(parties=tuple(folded.kept), folded=folded)] if folded.kept else others


class Desk(Protocol):
    """What answers the jobs of a process."""

    @property
    def ready(self) -> bool:
        """Whether its first job is done. Until then its own words are shown, from then on only the kind of a
        failure."""
        ...

    def answer(self, job: Any) -> Any:
        """What goes back."""
        ...


@final
class _Training:
    """A federation of this process, made from the first job."""

    def __init__(self) -> None:
        self._federation: Any = None

    @property
    def ready(self) -> bool:
        return self._federation is not None

    def answer(self, job: Any) -> Any:
        match job:
            case Piece():
                return work(job, self._federation)
            case ShareJob():
                return self._federation.share(job.request, job.party)
            case Look():
                return self._federation.refusals(job.parties)
        self._federation, ready = _enlist(job)
        return ready


def serve_jobs(desk: Desk | None = None) -> None:
    """Answer jobs until the input ends; what the task prints goes to stderr, so that it is no answer."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that started this one
    source, sink = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    jobs: queue.SimpleQueue[Any] = queue.SimpleQueue()
    desk = _Training() if desk is None else desk

    def read() -> None:
        with contextlib.suppress(Exception):
            while True:
                jobs.put(pickle.load(source))
        os._exit(0)  # nobody is left to answer, also in the middle of a job

    threading.Thread(target=read, daemon=True).start()
    while True:
        job = jobs.get()
        try:
            message = pickle.dumps(desk.answer(job), protocol=pickle.HIGHEST_PROTOCOL)
        except QuietsumError as error:
            message = pickle.dumps(type(error).__name__ if desk.ready else str(error))
        except Exception as error:  # its words may tell of a record, so only its kind leaves
            message = pickle.dumps(type(error).__name__)
        except BaseException:  # the interpreter would print the words of a SystemExit
            os._exit(1)
        sink.write(message)
        sink.flush()


def _enlist(job: FirstJob) -> tuple[Federation, Ready]:
    """The federation of this process, with the task made anew."""
    from quietsum.federation.local import LocalFederation
    from quietsum.tasks import task_of

    task = task_of(job.resolved.plan, device=job.device, share=job.share)
    with contextlib.suppress(Exception):  # heard of where the run was started
        task.rehearse()  # loads what all parties share, so that no party's clock pays for it
    federation = LocalFederation.of(task, job.resolved, whole=False)
    parties = tuple(facts.name for facts in task.parties())
    return federation, Ready(parties=parties, dimension=task.dimension, many=task.trains_many)


if __name__ == "__main__":
    from quietsum.federation.workers.worker import (
        serve_jobs as serving,  # messages name the classes of the module, not of __main__
    )

    serving()
