"""What one worker process of a :class:`~quietsum.federation.crew.Crew` does: make the task once, then train and fold.

It reads jobs as pickles from its input and writes one answer for each. The first job is a resolved plan, answered by
:class:`Ready`; all others are pieces of a round. It ends when its input ends, also in the middle of a job.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pickle
import queue
import signal
import sys
import threading
from typing import TYPE_CHECKING, Any, final

from quietsum.aggregation import Fold
from quietsum.errors import QuietsumError
from quietsum.federation.messages import Federation, Lost, Reply, Sums, TrainRequest, Update

if TYPE_CHECKING:
    from quietsum.plan import ResolvedPlan

__all__ = ["Piece", "Ready", "serve", "work"]


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
    """Some clients of a round, for one worker."""

    request: TrainRequest
    parties: tuple[str, ...]
    fold: Fold[Any]


def work(piece: Piece, federation: Federation) -> list[Reply]:
    """All replies of a piece, the updates among them folded into one sum where the fold allows."""
    fold = piece.fold
    folded, others = fold.start(), list[Reply]()
    for reply in federation.ask(piece.request, piece.parties, fold):
        match reply:
            case Sums():
                folded = fold.merge(folded, reply.folded)
            case Update() if fold.needs_individuals:
                others.append(reply)
            case Update() if problem := fold.problem_with(reply.delta):
                others.append(Lost(party=reply.party, reason=f"its update {problem}"))
            case Update():
                folded = fold.add(folded, reply.party, reply.delta)
            case _:
                others.append(reply)
    return [*others, Sums(parties=tuple(folded.kept), folded=folded)] if folded.kept else others


def serve() -> None:
    """Answer jobs until the input ends; whatever the task prints goes to stderr, so that it is no answer."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that started this one
    source, sink = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    jobs: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def read() -> None:
        with contextlib.suppress(Exception):
            while True:
                jobs.put(pickle.load(source))
        os._exit(0)  # nobody is left to answer, also in the middle of a job

    threading.Thread(target=read, daemon=True).start()
    federation: Any = None
    while True:
        job = jobs.get()
        try:
            if isinstance(job, Piece):
                answer: Any = work(job, federation)
            else:
                federation, answer = _enlisted(job)
            message = pickle.dumps(answer, protocol=pickle.HIGHEST_PROTOCOL)
        except QuietsumError as error:
            message = pickle.dumps(str(error) if federation is None else type(error).__name__)
        except Exception as error:  # its words may tell of a record, so only its kind leaves
            message = pickle.dumps(type(error).__name__)
        sink.write(message)
        sink.flush()


def _enlisted(resolved: ResolvedPlan) -> tuple[Federation, Ready]:
    """The federation of this process, with the task made anew."""
    from quietsum.federation.local import LocalFederation
    from quietsum.tasks import TrainsMany, task_of

    task = task_of(resolved.plan)
    federation = LocalFederation.of(task, resolved)
    parties = tuple(facts.name for facts in task.parties())
    return federation, Ready(parties=parties, dimension=task.dimension, many=isinstance(task, TrainsMany))


if __name__ == "__main__":
    from quietsum.federation.worker import serve as serving  # messages name the classes of the module, not of __main__

    serving()
