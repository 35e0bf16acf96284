"""A crew of worker processes: the cohort is shared out, every worker folds its own clients' updates, sums come back.

A worker is a fresh interpreter, since a process that has loaded torch must not be forked. It makes the task once, from
its name in the plan, and is then a :class:`~quietsum.federation.local.LocalFederation` of its own: it gets the model
and the names of some clients, trains them side by side where it can, and returns one sum with the names that are in
it. Messages travel as pickles through the pipes of the process: no other can write there.

If a worker fails, the round goes on, and no client is lost with another. When a worker died, hung or answered
nonsense, nothing of its piece had left it: it is ended, a new one takes its place, and its clients are asked again one
at a time. Who fails once more, in a process that had worked for others before, is asked a last time in one that has
not. So a client is given up only for what happens in a process that has worked for no other; its data may have been
touched, so it stays charged, and where anything is promised noise alone leaves in its name. Were a whole piece lost
with one client, this client would move the sum by many clipped updates, and the noise is made for one. For the same
reason the deadline of the plan is counted for each client alone.

Every process that was started is ended: by :meth:`Crew.close`, when the crew is forgotten, when this interpreter ends,
and, if it is killed, by the worker itself, whose input then ends.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import queue
import subprocess
import sys
import time
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, cast, final

from quietsum.aggregation import Fold
from quietsum.errors import InvalidParameter, QuietsumError
from quietsum.federation.local import fates, too_late
from quietsum.federation.messages import Federation, Lost, PartyRefusal, Reply, Sums, TrainRequest, Update
from quietsum.federation.workers.worker import FirstJob, Piece, Ready, Worker, WorkerAnswer, end
from quietsum.mechanisms import system_randomness
from quietsum.party import on_no_rows, release
from quietsum.validate import positive, whole_number

if TYPE_CHECKING:
    from quietsum.plan import ResolvedPlan

__all__ = ["Crew"]

log = logging.getLogger(__name__)

_COMMAND = (sys.executable, "-m", "quietsum.federation.workers.worker")
_START = 600.0  # seconds for a worker to make its task
_MARGIN = 1.0  # seconds beyond the deadline for a worker that counts itself to say so
_LARGEST_PIECE = 512  # clients; more are no faster, and would be asked again together
_PATIENT = 8  # a piece may take as many times the deadline of one client, before they are asked singly
_MOST_REPLACED = 256  # workers in a round, beside three for every client; a task that ends more of them is broken


def _end_all(processes: list[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        end(process)


@final
class Crew(Federation):
    """The parties of a resolved plan, in ``workers`` processes. On a ``device`` that is a card they share its memory.

    Guarantees: every party of a cohort has one reply, also if a worker fails, and whether it is an update depends
    on that party alone. No request is answered twice, also where a worker was replaced in between: a party is asked
    again only when the process that had begun its work is gone and had answered nothing, at most twice. Where the plan
    promises anything, one whose work ends its worker looks like others: it has released noise alone.
    Workers draw noise and batches from the operating system themselves; no randomness travels.

    A round in which no worker can be started any more, or hundreds had to be replaced, is an error: it is charged, and
    nothing of it is released, rather than a sum without those who were not to blame.
    """

    def __init__(
        self,
        resolved: ResolvedPlan,
        *,
        workers: int,
        device: str = "cpu",
        patience: float = 600.0,
        command: Sequence[str] = _COMMAND,
    ) -> None:
        self._resolved, self._command = resolved, tuple(command)
        self._names = tuple(facts.name for facts in resolved.parties)
        self._patience = positive("patience", patience, "seconds for one piece of work")
        self._deadline = resolved.plan.federation.deadline or math.inf
        self._wanted = whole_number("workers", workers, 1)
        self._first = FirstJob.of(resolved, device, self._wanted)
        self._answers: queue.SimpleQueue[WorkerAnswer] = queue.SimpleQueue()
        self._workers: list[Worker] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        self._end = weakref.finalize(self, _end_all, self._processes)
        self._answered: dict[tuple[str, str], tuple[int, int]] = {}
        self._many = False
        self._replaced = 0
        self._todo: deque[Piece] = deque()
        self._last: deque[Piece] = deque()
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

    @property
    def counts_deadline(self) -> bool:
        """Where there is a deadline it is counted here, for each party alone."""
        return math.isfinite(self._deadline)

    def registered(self) -> Sequence[str]:
        """All parties, in the order of the plan."""
        return self._names

    # ----------------------------------------------------------------------------------------------- a round

    def ask(self, request: TrainRequest, cohort: Sequence[str], fold: Fold[Any]) -> Iterator[Reply]:
        """Sums as they come in, and one word for everybody who is in none."""
        fresh: list[str] = []
        for name in cohort:
            if (request.round, request.attempt) <= self._answered.get((request.run, name), (0, 0)):
                asked = f"round {request.round}, attempt {request.attempt}"
                yield Lost(party=name, reason=f"{asked} or a later one was answered before")
                continue
            self._answered[request.run, name] = request.round, request.attempt
            fresh.append(name)
        self._fill()
        self._replaced = 0
        self._todo = deque(Piece(request=request, parties=part, fold=fold) for part in self._shares(fresh))
        self._last = deque()
        try:
            while self._todo or self._last or any(worker.piece is not None for worker in self._workers):
                self._give()
                if not self._workers or self._replaced > _MOST_REPLACED + 3 * len(cohort):
                    what = f"{self._replaced} worker processes were replaced" if self._workers else "no worker is left"
                    raise QuietsumError(
                        f"round {request.round}: {what}, so the task or the machine is broken. The round is charged "
                        "and nothing of it was released. Mend the task, or use one worker, then resume"
                    )
                yield from self._next()
        finally:
            self._todo, self._last = deque(), deque()
            for worker in [worker for worker in self._workers if worker.piece is not None]:  # nobody waits for these
                self._dismiss(worker)

    def _shares(self, names: Sequence[str]) -> Iterator[tuple[str, ...]]:
        """Pieces that keep all workers busy: large ones side by side, small ones where clients take their time."""
        at_once = _LARGEST_PIECE if self._many else 64 if math.isinf(self._deadline) else _PATIENT
        size = max(1, min(at_once, -(-len(names) // (self._wanted if self._many else 8 * self._wanted))))
        for start in range(0, len(names), size):
            yield tuple(names[start : start + size])

    def _give(self) -> None:
        """Work for those that are idle; a last attempt is for a process that has not worked yet."""
        for worker in tuple(self._workers):
            if worker.busy:
                continue
            if self._last and not worker.pieces:
                worker.send(self._last.popleft())
            elif self._todo:
                worker.send(self._todo.popleft())
            elif len(self._last) > sum(not other.ready for other in self._workers):
                self._dismiss(worker)
                self._fill()

    def _next(self) -> Iterator[Reply]:
        """What the next answer brings; a worker that was silent for too long is dismissed."""
        limits = {worker: worker.since + self._limit(worker) for worker in self._workers if worker.busy}
        worker = min(limits, key=lambda one: limits[one])
        try:
            answer = self._answers.get(timeout=max(limits[worker] - time.monotonic(), 0.001))
        except queue.Empty:
            answer = WorkerAnswer(worker=worker, problem=self._silence(worker))
        worker, piece = answer.worker, answer.worker.piece
        if worker not in self._workers:
            return  # it was dismissed before this answer came
        if not answer.sent and piece is not None:
            worker.piece = None
            yield from (Lost(party=name, reason=answer.problem) for name in piece.parties)
            return
        problem = answer.problem or _problem_with(answer.value, piece)
        if problem:
            log.warning("a worker process is replaced: %s", problem)
            self._dismiss(worker)
            self._replaced += 1
            if worker.ready:  # one that never got ready is not tried again in this round
                self._fill()
            if piece is not None and not self._ask_again(piece, alone=worker.pieces == 1):
                if self._without_data(piece, problem):
                    return
                yield from (self._give_up(name, piece, problem) for name in piece.parties)
            return
        worker.piece, worker.ready = None, True
        if piece is not None:
            yield from cast(list[Reply], answer.value)

    def _ask_again(self, piece: Piece, *, alone: bool) -> bool:
        """Whether the clients of a piece that failed get another chance. Its worker is gone, and nothing had left it.

        Several are asked one at a time; one that failed in a worker used before, once more in a new one.
        """
        if len(piece.parties) > 1:
            self._todo.extend(dataclasses.replace(piece, parties=(name,)) for name in piece.parties)
        elif not alone:
            self._last.append(piece)
        return len(piece.parties) > 1 or not alone

    def _without_data(self, piece: Piece, problem: str) -> bool:
        """Whether a client that ended its worker is asked for the plan's steps on no rows, which do not show that."""
        if piece.nothing or not self._resolved.protected:
            return False
        log.warning(
            "%s: %s, so what leaves holds nothing of its data. This is for the owner of the data alone",
            ", ".join(piece.parties), problem,
        )  # fmt: skip
        if self._resolved.orders(piece.parties[0], piece.request.round).mechanism is None:
            return False  # zeros, or the client's own noise, which can be made here
        self._todo.append(dataclasses.replace(piece, nothing=True))
        return True

    def _give_up(self, name: str, piece: Piece, problem: str) -> Reply:
        """What is heard of a client that cannot be asked: nothing, or noise alone where anything is promised."""
        resolved, rng = self._resolved, system_randomness()
        orders, simulate = resolved.orders(name, piece.request.round), resolved.plan.federation.simulate
        if not resolved.protected:
            return Lost(party=name, reason=problem)
        if fate := next(fates(1, drop_outs=simulate.drop_outs, stragglers=simulate.stragglers, rng=rng)):
            return Lost(party=name, reason=fate)
        delta = on_no_rows(None, resolved.dimension, piece.request.params, orders, rng)
        if orders.client is not None:
            delta = release(orders.client, delta, resolved.dimension, rng)
        return Update(party=name, delta=delta)

    def _limit(self, worker: Worker) -> float:
        """Seconds that ``worker`` may take for what it does; a piece that takes longer is asked for singly."""
        if worker.piece is None:
            return _START
        return min(self._patience, self._deadline * min(len(worker.piece.parties), _PATIENT) + _MARGIN)

    def _silence(self, worker: Worker) -> str:
        limit = self._limit(worker)
        if worker.piece is not None and limit < self._patience:
            return too_late(self._deadline)
        return f"its worker was silent for {limit:g} s"

    # ----------------------------------------------------------------------------------------------- workers

    def _fill(self) -> None:
        """Start what is missing or has died; new workers get ready while others work."""
        for worker in [worker for worker in self._workers if not worker.busy and worker.process.poll() is not None]:
            self._dismiss(worker)
        while len(self._workers) < self._wanted:
            worker = Worker(self._command, self._answers)
            self._workers.append(worker)
            self._processes.append(worker.process)
            worker.send(self._first)

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

    def _dismiss(self, worker: Worker) -> None:
        """End a worker that is of no use any more."""
        self._workers.remove(worker)
        worker.end()
        self._processes.remove(worker.process)


def _problem_with(value: Any, piece: Piece | None) -> str:
    """Why ``value`` is no answer to ``piece``; None is a worker's first word."""
    if piece is None:  # what it says then are words of the task
        return "" if isinstance(value, Ready) else "a new worker process could not make the task"
    if isinstance(value, str):
        return f"its worker process failed ({value})"
    if not isinstance(value, list) or not all(isinstance(one, Update | Sums | Lost | PartyRefusal) for one in value):
        return "its worker process answered something else"
    told = [name for one in value for name in (one.parties if isinstance(one, Sums) else (one.party,))]
    return "" if sorted(told) == sorted(piece.parties) else "its worker process answered for others"
