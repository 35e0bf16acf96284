"""Secure rounds with worker processes: keys and vectors live there, and this process sees masked bytes alone.

A *keeper* is a process that holds the keys of some parties and never runs the task. Each has a *trainer* of its own, a
:mod:`~quietsum.federation.workers.worker`, which makes the vectors and hands them to its keeper through a pipe that
no other reads. Two processes, since a task may end the one it runs in: then the keeper lives, with the keys of all
its parties, and masks noise alone in the name of the one that failed (rule 17). With keys and task in one process a
single record could take every party of that process out of the sum.

A party stays with its keeper for the whole run. A keeper that is lost takes its parties out of the round, by nothing
that their data did; a new one takes its place for the next round, with new identities.
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, final

import numpy as np
from numpy.typing import NDArray

from quietsum.aggregation import Fold
from quietsum.errors import PlanRefused, QuietsumError
from quietsum.federation.local import SimulatedLosses, too_late
from quietsum.federation.messages import Federation, Lost, PartyRefusal, Reply, StepAnswer, StepQuestion, TrainRequest
from quietsum.federation.workers.worker import FirstJob, Look, Ready, ShareJob, Worker, WorkerAnswer, end, serve_jobs
from quietsum.mechanisms import RandomSource, system_randomness
from quietsum.party import (
    AttemptKey,
    Contribution,
    SecureSite,
    contribution_of,
    on_no_rows,
    release,
    sessions_of,
    terms_of,
)
from quietsum.secagg import Identity, Refused, SessionTerms, Step
from quietsum.validate import positive, whole_number

if TYPE_CHECKING:
    from quietsum.plan import ResolvedPlan

__all__ = ["Enlist", "Keeper", "Keepers", "serve_as_keeper"]

log = logging.getLogger(__name__)

_COMMAND = (sys.executable, "-m", "quietsum.federation.workers.keepers")
_TRAINER = (sys.executable, "-m", "quietsum.federation.workers.worker")
_START = 600.0  # seconds for a process to make its task
_MARGIN = 1.0  # seconds beyond the deadline for a trainer that counts itself to say so

Vector = NDArray[np.float64]
Masked = NDArray[np.uint32]


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Enlist:
    """A keeper's first job: that of its trainer, and whose keys it keeps."""

    first: FirstJob
    parties: tuple[str, ...]
    patience: float
    trainer: tuple[str, ...] = _TRAINER


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Enlisted:
    """A keeper's first word: the public keys of its parties, and how large the task's model is there."""

    identities: Mapping[str, bytes]
    dimension: int


# ----------------------------------------------------------------------------------------- the process that asks


def _end_all(processes: list[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        end(process)


@final
class Keepers(Federation):
    """The parties of a resolved plan, their keys in ``workers`` processes and their data in as many others.

    Guarantees: every party of a cohort has one word at every step. Nothing that passes through this process holds a
    vector, a count or a key that is not masked, sealed or public. If a task ends the process that it runs in,
    its party's vector is in the sum, made of no rows, where anything is promised; no other party is lost with it.
    """

    carries_secure = True

    def __init__(
        self,
        resolved: ResolvedPlan,
        *,
        workers: int,
        device: str = "cpu",
        patience: float = 600.0,
        command: Sequence[str] = _COMMAND,
        trainer: Sequence[str] = _TRAINER,
    ) -> None:
        if resolved.secure is None:
            raise PlanRefused("keepers are for secure aggregation, and the plan does not ask for it; use Crew")
        self._resolved, self._command, self._trainer = resolved, tuple(command), tuple(trainer)
        self._names = tuple(facts.name for facts in resolved.parties)
        self._patience = positive("patience", patience, "seconds for one party's work")
        simulate = resolved.plan.federation.simulate
        self._losses = SimulatedLosses(simulate.drop_outs, simulate.stragglers, system_randomness())
        count = min(whole_number("workers", workers, 1), len(self._names))
        self._first = FirstJob.of(resolved, device, count)
        self._parties = tuple(self._names[place::count] for place in range(count))
        self._keepers: list[Worker | None] = [None] * count
        self._identities: dict[str, bytes] = {}
        self._answers: queue.SimpleQueue[WorkerAnswer] = queue.SimpleQueue()
        self._processes: list[subprocess.Popen[bytes]] = []
        self._end = weakref.finalize(self, _end_all, self._processes)
        try:
            self._fill(first=True)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End all processes. A second call does nothing."""
        for place, keeper in enumerate(self._keepers):
            if keeper is not None:
                keeper.end()
            self._keepers[place] = None
        self._end()

    @property
    def processes(self) -> tuple[int, ...]:
        """The process ids of the keepers; each has one child, its trainer."""
        return tuple(keeper.process.pid for keeper in self._keepers if keeper is not None)

    @property
    def counts_deadline(self) -> bool:
        """Where there is a deadline it is counted by the keepers, for each party alone."""
        return self._resolved.plan.federation.deadline is not None

    def registered(self) -> Sequence[str]:
        """All parties, in the order of the plan."""
        return self._names

    def ask(self, request: TrainRequest, cohort: Sequence[str], fold: Fold[Any]) -> Iterator[Reply]:
        """Never: no single update leaves a keeper."""
        raise PlanRefused("the plan asks for secure aggregation, so no party is asked for its update")

    # ------------------------------------------------------------------------------------------------- a round

    def identities(self, cohort: Sequence[str]) -> Mapping[str, bytes]:
        """The parties' keys; keepers that were lost are replaced before."""
        self._fill()
        return {name: self._identities[name] for name in cohort if name in self._identities}

    def exchange(self, question: StepQuestion) -> Iterator[StepAnswer | PartyRefusal | Lost]:
        """One word from each party; the keepers work at the same time."""
        if question.step is Step.OPEN:
            self._losses.draw(question.letters)
        letters = dict(question.letters)
        for name in tuple(letters):
            if fate := self._losses.at(name, question.step):
                del letters[name]
                yield Lost(party=name, reason=fate)
        request = question.request
        if question.step is not Step.SHARES:  # the model goes along with one step only
            question = dataclasses.replace(
                question, identities=question.identities if question.step is Step.OPEN else {}
            )
        waiting: dict[Worker, tuple[str, ...]] = {}
        for keeper, parties in zip(self._keepers, self._parties, strict=True):
            mine = {name: letters[name] for name in parties if name in letters}
            if not mine:
                continue
            if keeper is None:
                yield from (Lost(party=name, reason="its worker process is gone") for name in mine)
                continue
            params = request.params if question.step in (Step.OPEN, Step.SHARES) else request.params[:0]
            keeper.send(
                dataclasses.replace(question, letters=mine, request=dataclasses.replace(request, params=params))
            )
            waiting[keeper] = tuple(mine)
        while waiting:
            told = self._answers.get()
            if told.worker not in waiting:
                continue
            parties = waiting.pop(told.worker)
            problem = told.problem or _problem_with(told.value, parties)
            if not problem:
                yield from told.value
                continue
            log.warning("a worker process is lost: %s", problem)
            self._dismiss(told.worker)
            yield from (Lost(party=name, reason=problem) for name in parties)

    # ------------------------------------------------------------------------------------------------ processes

    def _fill(self, *, first: bool = False) -> None:
        """Start what is missing or has died, and wait for its first word; at the very first, raise what hinders it."""
        for keeper in [one for one in self._keepers if one is not None and one.process.poll() is not None]:
            self._dismiss(keeper)
        starting: dict[Worker, int] = {}
        for place, parties in enumerate(self._parties):
            if self._keepers[place] is None:
                keeper = Worker(self._command, self._answers)
                self._processes.append(keeper.process)
                self._keepers[place] = keeper
                starting[keeper] = place
                keeper.send(Enlist(first=self._first, parties=parties, patience=self._patience, trainer=self._trainer))
        end_of_it = time.monotonic() + _START + _MARGIN
        while starting:
            try:
                told = self._answers.get(timeout=max(end_of_it - time.monotonic(), 0.001))
            except queue.Empty:
                told = WorkerAnswer(worker=next(iter(starting)), problem=f"it was not ready within {_START:g} s")
            if starting.pop(told.worker, None) is None:
                continue
            problem = told.problem or (told.value if isinstance(told.value, str) else "") or self._unlike(told.value)
            if not problem:
                told.worker.ready = True
                self._identities.update(told.value.identities)
                continue
            self._dismiss(told.worker)
            if first:
                raise QuietsumError(f"a worker process cannot start: {problem}; use one worker, or mend this")
            log.warning("a worker process cannot be replaced: %s", problem)

    def _unlike(self, value: Any) -> str:
        if not isinstance(value, Enlisted):
            return "it answered something else"
        if value.dimension != self._resolved.dimension:
            return f"its task has {value.dimension} parameters, {self._resolved.dimension} here"
        return ""

    def _dismiss(self, keeper: Worker) -> None:
        place = self._keepers.index(keeper)
        self._keepers[place] = None
        for name in self._parties[place]:
            self._identities.pop(name, None)
        keeper.end()
        self._processes.remove(keeper.process)


def _problem_with(value: Any, parties: Sequence[str]) -> str:
    if isinstance(value, str):
        return f"its worker process failed ({value})"
    if not isinstance(value, list) or not all(isinstance(one, StepAnswer | PartyRefusal | Lost) for one in value):
        return "its worker process answered something else"
    told = sorted(one.party for one in value)
    return "" if told == sorted(parties) else "its worker process answered for others"


# --------------------------------------------------------------------------------------- the process that keeps


@final
class Keeper:
    """What a keeper process does: it answers for its parties, and asks its trainer for their vectors."""

    def __init__(self) -> None:
        self._parties: dict[str, SecureSite] = {}
        self._trainer: _Trainer | None = None
        self._terms: SessionTerms | None = None
        self._how: Contribution | None = None
        self._rng: RandomSource = system_randomness()

    @property
    def ready(self) -> bool:
        """Whether it was enlisted."""
        return self._trainer is not None

    def answer(self, job: Any) -> Any:
        """The first job enlists it; the others are steps of sessions."""
        if isinstance(job, StepQuestion):
            return [self._answer_one(name, job, letter) for name, letter in job.letters.items()]
        return self._enlist(job)

    def _enlist(self, job: Enlist) -> Enlisted:
        self._resolved = job.first.resolved
        trainer = _Trainer(job.first, job.trainer, job.patience)
        dimension = trainer.dimension
        self._parties = {
            name: SecureSite(name, identity=Identity.fresh(), contribute=self._contribution(name))
            for name in job.parties
        }
        self._trainer = trainer
        return Enlisted(identities={name: site.public for name, site in self._parties.items()}, dimension=dimension)

    def _answer_one(self, name: str, question: StepQuestion, letter: bytes) -> StepAnswer | PartyRefusal | Lost:
        site, key = self._parties[name], question.request.key[:3]
        try:
            if question.step is Step.OPEN:
                return self._open(name, question, letter)
            params = question.request.params if question.step is Step.SHARES else None
            return StepAnswer(party=name, content=site.answer(key, question.step, letter, params))
        except Refused as refusal:
            return Lost(party=name, reason=str(refusal))
        except _NoVector as error:
            return Lost(party=name, reason=str(error))

    def _open(self, name: str, question: StepQuestion, letter: bytes) -> StepAnswer | PartyRefusal | Lost:
        assert self._trainer is not None
        terms = self._terms
        key, model = question.request.key[:3], question.request.key[3]
        if terms is None or (terms.run, terms.round, terms.attempt, terms.model) != (*key, model):
            self._terms = terms = terms_of(self._resolved, key, model)
            self._how = contribution_of(self._resolved, question.request.round)
            self._refusals = self._trainer.refusals(tuple(question.letters))
        if name in self._refusals:
            return PartyRefusal(party=name, reason=self._refusals[name])
        content = self._parties[name].open(
            terms, letter, server=question.server, peers=question.identities, sessions=sessions_of(self._resolved)
        )
        return StepAnswer(party=name, content=content)

    def _contribution(self, name: str) -> Callable[[AttemptKey, Vector], Masked]:
        def make(key: AttemptKey, params: Vector) -> Masked:
            assert self._trainer is not None and self._terms is not None
            request = TrainRequest(run=key[0], round=key[1], attempt=key[2], params=params)
            found = self._trainer.share(request, name, length=self._terms.dimension)
            if isinstance(found, np.ndarray):
                return found
            if not self._resolved.protected:
                raise _NoVector(found)
            log.warning(
                "%s: %s, so what it adds holds nothing of its data. This is for the owner of the data alone",
                name, found,
            )  # fmt: skip
            return self._nothing(name, request)

        return make

    def _nothing(self, name: str, request: TrainRequest) -> Masked:
        """What no rows give, in this process, which has none."""
        assert self._how is not None
        resolved, orders = self._resolved, self._resolved.orders(name, request.round)
        delta = on_no_rows(None, resolved.dimension, request.params, orders, self._rng)
        if orders.client is not None:
            delta = release(orders.client, delta, resolved.dimension, self._rng)
        return self._how.of(name, delta, self._rng)


class _NoVector(QuietsumError):
    """Nothing is promised, and the party has no vector: its message says why by the kind of the failure."""


@final
class _Trainer:
    """A keeper's own worker. One that dies, hangs or answers nonsense is replaced, and the party is tried once more."""

    def __init__(self, first: FirstJob, command: Sequence[str], patience: float) -> None:
        self._first, self._command = first, tuple(command)
        deadline = first.resolved.plan.federation.deadline
        self._deadline = math.inf if deadline is None else deadline
        self._patience = min(patience, self._deadline + _MARGIN)
        self._answers: queue.SimpleQueue[WorkerAnswer] = queue.SimpleQueue()
        self._worker: Worker | None = None
        self._fresh = False
        self.dimension = self._start_trainer()

    def refusals(self, parties: tuple[str, ...]) -> Mapping[str, str]:
        """Who refuses before any data is touched."""
        found, _ = self._ask_trainer(Look(parties=parties), _START)
        return found if isinstance(found, dict) else {}

    def share(self, request: TrainRequest, party: str, *, length: int) -> Masked | str:
        """The party's vector of ``length`` numbers, or why there is none.

        A process that has worked for no other has the last word.
        """
        for _ in range(2):
            alone = self._fresh or self._worker is None
            found, problem = self._ask_trainer(ShareJob(request=request, party=party), self._patience)
            if isinstance(found, np.ndarray) and found.dtype == np.uint32 and found.shape == (length,):
                return found
            if isinstance(found, Lost):
                return found.reason
            self._end()
            if alone:
                break
        return problem or "its worker process answered something else"

    def _ask_trainer(self, job: Any, seconds: float) -> tuple[Any, str]:
        """What the trainer says, or what became of it."""
        if self._worker is None:
            try:
                self._start_trainer()
            except QuietsumError as error:
                return None, str(error)
        worker = self._worker
        assert worker is not None
        self._fresh = False if isinstance(job, ShareJob) else self._fresh
        worker.send(job)
        try:
            while (told := self._answers.get(timeout=seconds)).worker is not worker:
                pass
        except queue.Empty:
            self._end()
            late = isinstance(job, ShareJob) and seconds == self._deadline + _MARGIN
            return None, too_late(self._deadline) if late else f"its worker was silent for {seconds:g} s"
        if told.problem or isinstance(told.value, str):
            self._end()
            return None, told.problem or f"its worker process failed ({told.value})"
        return told.value, ""

    def _start_trainer(self) -> int:
        worker = Worker(self._command, self._answers)
        worker.send(self._first)
        try:
            while (told := self._answers.get(timeout=_START)).worker is not worker:
                pass
            problem = told.problem or (told.value if isinstance(told.value, str) else "")
        except queue.Empty:
            problem = f"it was not ready within {_START:g} s"
        if not problem and not isinstance(told.value, Ready):
            problem = "it answered something else"
        if problem:
            worker.end()
            raise QuietsumError(problem)
        worker.ready, self._worker, self._fresh = True, worker, True
        return int(told.value.dimension)

    def _end(self) -> None:
        if self._worker is not None:
            end(self._worker.process)
            self._worker = None


def serve_as_keeper() -> None:
    """A keeper process: answer until the input ends."""
    serve_jobs(Keeper())


if __name__ == "__main__":
    from quietsum.federation.workers.keepers import (
        serve_as_keeper as serving,  # messages name the classes of the module
    )

    serving()
