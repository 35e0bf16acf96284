"""A crew of worker processes: the cohort is shared out, every worker folds its own clients' updates, sums come back.

A worker is a fresh interpreter, since a process that has loaded torch must not be forked. It makes the task once, from
its name in the plan, and is then a :class:`~quietsum.federation.local.LocalFederation` of its own: it gets the model
and the names of some clients, trains them side by side where it can, and returns one sum with the names that are in
it. Messages travel as pickles through the pipes of the process: nobody else can write there.

Whatever happens to a worker, the round goes on. Clients of one that died, hung or answered nonsense are lost (their
data may have been touched, so they stay charged), a new worker takes its place, and every process that was started is
ended: by :meth:`Crew.close`, when the crew is forgotten, when this interpreter ends, and, if it is killed, by the
worker itself, whose input then ends.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
import os
import pickle
import queue
import subprocess
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, cast, final

from quietsum.aggregation import Fold
from quietsum.errors import InvalidParameter, QuietsumError, positive, whole_number
from quietsum.federation.messages import Lost, Refusal, Reply, Sums, TrainRequest, Update
from quietsum.federation.worker import Piece, Ready

if TYPE_CHECKING:
    from quietsum.plan import ResolvedPlan

__all__ = ["Crew"]

log = logging.getLogger(__name__)

_COMMAND = (sys.executable, "-m", "quietsum.federation.worker")
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
_START = 600.0  # seconds for a worker to make its task
_GRACE = 2.0  # seconds for a worker to end by itself
_LARGEST_PIECE = 512  # clients; more are no faster, and would be lost together


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class _Answer:
    """What came back from a worker: a value, or in words why nothing did."""

    worker: _Worker
    value: Any = None
    problem: str = ""


@final
class _Worker:
    """One process, and the thread that speaks with it. A process that fails once is never asked again."""

    def __init__(self, command: Sequence[str], answers: queue.SimpleQueue[_Answer]) -> None:
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
        self.since = time.monotonic()
        self._thread = threading.Thread(target=self._speak, daemon=True)
        self._thread.start()

    def send(self, job: Any) -> None:
        """Give it a job; the answer comes through the queue of answers, once."""
        self.since = time.monotonic()
        self.piece = job if isinstance(job, Piece) else None
        self._jobs.put(job)

    def _speak(self) -> None:
        into, out = self.process.stdin, self.process.stdout
        assert into is not None and out is not None
        while (job := self._jobs.get()) is not None:
            try:
                pickle.dump(job, into, protocol=pickle.HIGHEST_PROTOCOL)
                into.flush()
                self._answers.put(_Answer(worker=self, value=pickle.load(out)))
            except Exception as error:  # a dead process, or a message that is none
                code = self.process.poll()
                what = f"{type(error).__name__}" + ("" if code is None else f", exit code {code}")
                self._answers.put(_Answer(worker=self, problem=f"its worker process failed ({what})"))
                return

    @property
    def busy(self) -> bool:
        """Whether an answer is due."""
        return self.piece is not None or not self.ready

    def end(self) -> None:
        """End the process, at once if it is busy; its thread ends with it."""
        self._jobs.put(None)
        _end(self.process, gently=not self.busy)


def _end(process: subprocess.Popen[bytes], *, gently: bool = False) -> None:
    if gently and process.stdin is not None:
        with contextlib.suppress(OSError, ValueError):
            process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE)
    if process.poll() is None:
        process.kill()
    process.wait()


def _end_all(processes: list[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        _end(process)


@final
class Crew:
    """The parties of a resolved plan, in ``workers`` processes.

    Guarantees: every party of a cohort has one reply, whatever becomes of a worker. No request is answered twice, also
    where a worker was replaced in between. Workers draw noise and batches from the operating system themselves; no
    randomness travels.
    """

    def __init__(
        self,
        resolved: ResolvedPlan,
        *,
        workers: int,
        patience: float = 600.0,
        command: Sequence[str] = _COMMAND,
    ) -> None:
        self._resolved, self._command = resolved, tuple(command)
        self._names = tuple(facts.name for facts in resolved.parties)
        self._patience = positive("patience", patience, "seconds for one piece of work")
        self._deadline = resolved.plan.federation.deadline or math.inf
        self._wanted = whole_number("workers", workers, 1)
        self._answers: queue.SimpleQueue[_Answer] = queue.SimpleQueue()
        self._workers: list[_Worker] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        self._end = weakref.finalize(self, _end_all, self._processes)
        self._answered: dict[tuple[str, str], tuple[int, int]] = {}
        self._many = False
        self._begin()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End all workers. A second call does nothing."""
        for worker in self._workers:
            worker.end()
        self._workers.clear()
        self._end()

    @property
    def processes(self) -> tuple[int, ...]:
        """The process ids of the workers."""
        return tuple(worker.process.pid for worker in self._workers)

    def registered(self) -> Sequence[str]:
        """All parties, in the order of the plan."""
        return self._names

    # ----------------------------------------------------------------------------------------------- a round

    def ask(self, request: TrainRequest, cohort: Sequence[str], fold: Fold[Any]) -> Iterator[Reply]:
        """Sums as they come in, and one word for everybody who is in none."""
        over = time.monotonic() + self._deadline
        fresh: list[str] = []
        for name in cohort:
            if (request.round, request.attempt) <= self._answered.get((request.run, name), (0, 0)):
                asked = f"round {request.round}, attempt {request.attempt}"
                yield Lost(party=name, reason=f"{asked} or a later one was answered before")
                continue
            self._answered[request.run, name] = request.round, request.attempt
            fresh.append(name)
        self._fill()
        pieces = deque(Piece(request=request, parties=part, fold=fold) for part in self._shares(fresh))
        try:
            while pieces or any(worker.piece is not None for worker in self._workers):
                for worker in self._workers:
                    if pieces and not worker.busy:
                        worker.send(pieces.popleft())
                if not self._workers or time.monotonic() >= over:
                    reason = "its worker had not answered by the deadline" if self._workers else "no worker is left"
                    late = [worker.piece for worker in self._workers if worker.piece is not None]
                    yield from (Lost(party=name, reason=reason) for piece in (*late, *pieces) for name in piece.parties)
                    return
                yield from self._next(over)
        finally:
            for worker in [worker for worker in self._workers if worker.piece is not None]:  # nobody waits for these
                self._dismiss(worker)

    def _shares(self, names: Sequence[str]) -> Iterator[tuple[str, ...]]:
        """Pieces that keep all workers busy: large ones side by side, small ones where clients take their time."""
        at_once = _LARGEST_PIECE if self._many else 64
        size = max(1, min(at_once, -(-len(names) // (self._wanted if self._many else 8 * self._wanted))))
        for start in range(0, len(names), size):
            yield tuple(names[start : start + size])

    def _next(self, over: float) -> Iterator[Reply]:
        """What the next answer brings; a worker that was silent for too long is dismissed."""
        patience = {True: self._patience, False: _START}
        limits = {worker: worker.since + patience[worker.ready] for worker in self._workers if worker.busy}
        worker = min(limits, key=lambda one: limits[one])
        try:
            left = min(limits[worker], over) - time.monotonic()
            answer = self._answers.get(timeout=max(left, 0.001))
        except queue.Empty:
            if time.monotonic() < limits[worker]:
                return  # the deadline of the round has come
            answer = _Answer(worker=worker, problem=f"its worker was silent for {patience[worker.ready]:g} s")
        worker, piece = answer.worker, answer.worker.piece
        if worker not in self._workers:
            return  # it was dismissed before this answer came
        problem = answer.problem or _problem_with(answer.value, piece)
        if problem:
            log.warning("a worker process is replaced: %s", problem)
            self._dismiss(worker)
            if worker.ready:  # one that never got ready is not tried again in this round
                self._fill()
            yield from (Lost(party=name, reason=problem) for name in (piece.parties if piece else ()))
            return
        worker.piece, worker.ready = None, True
        if piece is not None:
            yield from cast(list[Reply], answer.value)

    # ----------------------------------------------------------------------------------------------- workers

    def _fill(self) -> None:
        """Start what is missing or has died; new workers get ready while others work."""
        for worker in [worker for worker in self._workers if not worker.busy and worker.process.poll() is not None]:
            self._dismiss(worker)
        while len(self._workers) < self._wanted:
            worker = _Worker(self._command, self._answers)
            self._workers.append(worker)
            self._processes.append(worker.process)
            worker.send(self._resolved)

    def _begin(self) -> None:
        """Start all workers and wait until they are ready, or raise what hinders them."""
        self._fill()
        try:
            while not all(worker.ready for worker in self._workers):
                try:
                    answer = self._answers.get(timeout=_START)
                except queue.Empty:
                    raise QuietsumError(f"no worker process was ready within {_START:g} s") from None
                if isinstance(answer.value, str) or answer.problem:
                    why = f"{answer.value or answer.problem}; use one worker, or mend this"
                    raise QuietsumError(f"a worker process cannot start: {why}")
                self._check(answer.value)
                self._many, answer.worker.ready = answer.value.many, True
        except BaseException:
            self.close()
            raise

    def _check(self, ready: Any) -> None:
        if not isinstance(ready, Ready) or not set(self._names) <= set(ready.parties):
            problem = "makes other parties in a worker process than here"
            raise InvalidParameter("task", self._resolved.plan.task.name, problem, "use one worker")
        if ready.dimension != self._resolved.dimension:
            problem = f"has {ready.dimension} parameters in a worker process, {self._resolved.dimension} here"
            raise InvalidParameter("task", self._resolved.plan.task.name, problem, "use one worker")

    def _dismiss(self, worker: _Worker) -> None:
        """End a worker that is of no use any more."""
        self._workers.remove(worker)
        worker.end()
        self._processes.remove(worker.process)


def _problem_with(value: Any, piece: Piece | None) -> str:
    """Why ``value`` is no answer to ``piece``; None is a worker's first word."""
    if isinstance(value, str):
        return f"its worker process failed ({value})"
    if piece is None:
        return "" if isinstance(value, Ready) else "its worker process speaks out of turn"
    if not isinstance(value, list) or not all(isinstance(one, Update | Sums | Lost | Refusal) for one in value):
        return "its worker process answered something else"
    told = [name for one in value for name in (one.parties if isinstance(one, Sums) else (one.party,))]
    return "" if sorted(told) == sorted(piece.parties) else "its worker process answered for others"
