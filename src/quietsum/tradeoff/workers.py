"""Runs in several processes: jobs go in as JSON lines, answers come back as JSON lines.

A worker is a fresh interpreter with one thread, since a process that has loaded torch must not be forked and small
models gain nothing from more. It keeps its data between jobs. The command to start it is a parameter, so that a script
can send other jobs the same way; ``python -m quietsum.tradeoff.workers`` makes the runs of
:mod:`quietsum.tradeoff.sweep`.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any

from quietsum.errors import QuietsumError
from quietsum.validate import whole_number

__all__ = ["ONE_THREAD", "run_in_processes", "serve"]

ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
_COMMAND = (sys.executable, "-m", "quietsum.tradeoff.workers")


def run_in_processes(
    jobs: Sequence[Mapping[str, Any]],
    report: Callable[[Mapping[str, Any], Any], None],
    *,
    workers: int,
    command: Sequence[str] = _COMMAND,
    tolerant: bool = False,
) -> None:
    """Send every job to one of ``workers`` processes, and ``report(job, answer)`` what comes back, one at a time.

    The first job that fails stops the others and is raised, unless ``tolerant``: then ``report`` gets
    ``{"error": message}`` and the rest goes on. Every process that was started is ended.
    """
    waiting: queue.SimpleQueue[Mapping[str, Any]] = queue.SimpleQueue()
    for job in jobs:
        waiting.put(job)
    answers: queue.SimpleQueue[tuple[Mapping[str, Any], dict[str, Any]] | None] = queue.SimpleQueue()
    count = max(1, min(whole_number("workers", workers, 1), len(jobs)))
    processes = [
        subprocess.Popen(
            list(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8",
            env={**os.environ, **ONE_THREAD},
        )
        for _ in range(count)
    ]  # fmt: skip
    threads = [threading.Thread(target=_feed, args=(each, waiting, answers), daemon=True) for each in processes]
    try:
        for thread in threads:
            thread.start()
        finished = 0
        while finished < count:
            found = answers.get()
            if found is None:
                finished += 1
                continue
            job, answer = found
            if "error" in answer and not tolerant:
                raise QuietsumError(str(answer["error"]))
            report(job, answer.get("answer", answer))
    finally:
        while not waiting.empty():
            with contextlib.suppress(queue.Empty):
                waiting.get_nowait()
        for process in processes:
            process.kill()
            process.wait()
        for thread in threads:
            thread.join(timeout=10)


def _feed(process: subprocess.Popen[str], waiting: Any, answers: Any) -> None:
    """Give one process job after job until none is left, or until it dies."""
    assert process.stdin is not None and process.stdout is not None
    try:
        while True:
            try:
                job = waiting.get_nowait()
            except queue.Empty:
                return
            line = ""
            with contextlib.suppress(OSError, ValueError):
                process.stdin.write(json.dumps(job) + "\n")
                process.stdin.flush()
                line = process.stdout.readline()
            try:
                answers.put((job, json.loads(line)))
            except ValueError:
                code = process.poll()
                answers.put((job, {"error": f"a worker ended without an answer (exit code {code}); see above"}))
                return
    finally:
        answers.put(None)


def serve(work: Callable[[dict[str, Any]], Any], *, source: IO[str] | None = None, sink: IO[str] | None = None) -> None:
    """Answer jobs until the input ends: {"answer": …}, or {"error": message} for what was refused.

    All else that the work prints goes to stderr, so that it cannot be taken for an answer.
    """
    source, out = source or sys.stdin, sink or sys.stdout
    for line in source:
        with contextlib.redirect_stdout(sys.stderr):
            try:
                answered = {"answer": work(json.loads(line))}
            except QuietsumError as error:
                answered = {"error": str(error)}
            except Exception as error:  # a fault, reported in one line; the job's other runs may be fine
                answered = {"error": f"{type(error).__name__}: {error}"}
        out.write(json.dumps(answered) + "\n")
        out.flush()


def _work(values: dict[str, Any]) -> Any:
    from quietsum.tradeoff.sweep import Job, outcome_of

    return [outcome.to_dict() for outcome in outcome_of(Job(**values))]


if __name__ == "__main__":
    serve(_work)
