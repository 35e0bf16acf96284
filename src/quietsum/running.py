"""Run a plan from Python: :func:`run`, :func:`resume`, :func:`forecast`, and the :class:`Run` that they give.

The same path as ``quietsum run``: everything that can be refused is refused before anything is spent, every round is
reserved before a party is asked, and the folder of the run holds plan, events, checkpoints, model and report.

>>> import tempfile
>>> import quietsum as qs
>>> plan = qs.load_plan('''
... [federation]
... rounds = 2
... [training]
... sample_rate = 0.25
... [privacy]
... record = { epsilon = 1.0, delta = 1e-5, max_grad_norm = 0.5 }
... ''')
>>> qs.forecast(plan).whole[0].epsilon <= 1.0
True
>>> with tempfile.TemporaryDirectory() as folder:
...     done = qs.run(plan, workspace=folder)
...     len(done.model), done.report["outcome"]
(15, 'finished')
>>> done.outcome, done.guarantees[0].unit.value, sorted(done.metrics)[0]
('finished', 'record', 'accuracy')
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

if TYPE_CHECKING:
    import numpy as np

    from quietsum.errors import QuietsumError
    from quietsum.federation import Federation, RunEvent, Watcher
    from quietsum.plan import Forecast, Plan
    from quietsum.privacy import Guarantee
    from quietsum.runs import RunFolder, RunResult, Workspace
    from quietsum.tasks import AnyTask

__all__ = ["Run", "forecast", "resume", "run"]

log = logging.getLogger(__name__)

Place = str | os.PathLike[str] | None
"""A folder that holds runs and their ledger; ``quietsum-workspace`` in the current folder if omitted."""


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """A run that has ended.

    ``outcome`` is ``"finished"``, ``"budget"`` (the next round did not fit) or ``"too-few-parties"``; ``error`` is what
    stopped it, None if it finished. The model of the last round is kept in each case, and :func:`resume` goes on.

    Guarantees: ``guarantees`` state the cost of the whole plan, however much of it ran, for each unit and observer.
    They are a list because epsilons of different units are never added.
    """

    name: str
    path: Path
    outcome: str
    rounds: int
    guarantees: tuple[Guarantee, ...]
    metrics: Mapping[str, float]
    report: Mapping[str, Any]
    error: QuietsumError | None = None

    @property
    def model(self) -> np.ndarray:
        """The weights of the last round as one vector, read from ``model.safetensors`` and held to its hash."""
        from quietsum.runs import load_model

        params, _ = load_model(self.path / "model.safetensors")
        return params


def forecast(plan: Plan | str | os.PathLike[str]) -> Forecast:
    """What ``plan`` will cost, round by round and as a whole, before anything is spent: see ``quietsum plan``.

    Raises PlanRefused if the plan would break a promise. Nothing is charged and nothing is written.
    """
    from quietsum.plan import resolve
    from quietsum.tasks import task_of

    made = _plan(plan)
    task = task_of(made)
    return resolve(made, task.parties(), task.dimension).forecast()


def run(
    plan: Plan | str | os.PathLike[str],
    *,
    workspace: Place = None,
    name: str | None = None,
    watchers: Iterable[Watcher] = (),
    task: AnyTask | None = None,
    federation: Federation | None = None,
    workers: int = 1,
    device: str = "cpu",
    same_rows: str = "",
) -> Run:
    """Run ``plan`` (a :class:`Plan`, a path or a text) to its end, with every round paid for first.

    ``name`` is made up if omitted, ``task`` is the plan's own if omitted, and the parties live in this process, or in
    ``workers`` processes, if no ``federation`` is given. ``same_rows`` says why rows that are known under another name
    may be used again. Raises PlanRefused or BudgetExhausted if nothing may run; a run that stops later ends with a
    :class:`Run` whose ``error`` says why.
    """
    from quietsum.plan import resolve
    from quietsum.runs import Workspace, start
    from quietsum.tasks import as_task, task_of

    made, place = _plan(plan), Workspace.at(workspace)
    task = task_of(made, device=device) if task is None else as_task(task)
    resolved = resolve(made, task.parties(), task.dimension)

    def check_data() -> None:
        """Rows that have another name in these books are refused, unless ``same_rows`` says why."""
        from quietsum.ledger import check_rows
        from quietsum.party import dataset_readers

        remedy = 'say why with same_rows="…"'
        for known in check_rows(place.ledger, dataset_readers(task, resolved), reason=same_rows, remedy=remedy):
            log.warning("%s", known)

    with _recording(place, watchers) as recording:
        result = start(
            made, workspace=place, name=name, watchers=[recording], task=task, federation=federation, workers=workers,
            opened=recording.opened, allowed=check_data if federation is None and resolved.protected else None,
        )  # fmt: skip
    return _ended(result, place)


def resume(
    name: str = "latest",
    *,
    workspace: Place = None,
    watchers: Iterable[Watcher] = (),
    task: AnyTask | None = None,
    federation: Federation | None = None,
    workers: int = 1,
    device: str = "cpu",
) -> Run:
    """Go on after the last checkpoint of the run ``name``; ``"latest"`` is the newest of the workspace.

    Guarantees: those of the first start. A round that was reserved and not finished is made anew with fresh noise and
    charged again. Raises LedgerBroken if the ledger does not contain what the checkpoint was saved with.
    """
    from quietsum.runs import Workspace, resume as go_on
    from quietsum.tasks import as_task, task_of

    place = Workspace.at(workspace)
    folder = place.find(name)
    task = task_of(folder.plan(), device=device) if task is None else as_task(task)
    with _recording(place, watchers) as recording:
        result = go_on(
            folder, workspace=place, watchers=[recording], task=task, federation=federation, workers=workers,
            opened=recording.opened,
        )  # fmt: skip
    return _ended(result, place)


def _plan(source: Plan | str | os.PathLike[str]) -> Plan:
    from quietsum.plan import Plan, load_plan

    return source if isinstance(source, Plan) else load_plan(source)


def _ended(result: RunResult, place: Workspace) -> Run:
    from quietsum import report

    values = report.write(result.folder, place)
    return Run(
        name=result.folder.run, path=result.folder.path, outcome=result.outcome, rounds=result.round,
        guarantees=result.claims, metrics=dict(result.metrics.values), report=values, error=result.error,
    )  # fmt: skip


@contextlib.contextmanager
def _recording(place: Workspace, watchers: Iterable[Watcher]) -> Iterator[_Recording]:
    """What a run leaves in its folder and passes on as alerts, closed in order however the run ends."""
    from quietsum.runs import alerting

    with alerting(place) as alerts, contextlib.ExitStack() as stack:
        try:
            yield _Recording(stack, watchers, alerts)
        except Exception as error:
            alerts.failed(error)
            raise


@final
class _Recording:
    """The caller's watchers; once the run has a folder, also ``events.jsonl``, ``run.db`` and the alerts."""

    def __init__(self, stack: contextlib.ExitStack, watchers: Iterable[Watcher], alerts: Any) -> None:
        from quietsum.federation import guarded

        self._stack, self._alerts, self._watchers = stack, alerts, [*guarded(watchers)]

    def opened(self, folder: RunFolder) -> None:
        """Begin the files of ``folder``. Nothing is reserved yet, so a full disk ends the run here."""
        from quietsum.errors import CorruptState
        from quietsum.federation import guarded
        from quietsum.runs import JsonLines, Recorder

        kept: list[Any] = [self._stack.enter_context(JsonLines(folder.path / "events.jsonl"))]
        recorder: Recorder | None = None
        try:
            recorder = self._stack.enter_context(Recorder(folder.path / "run.db"))
            kept.append(recorder)
        except CorruptState as error:
            log.warning("%s; the run goes on without it", error)
        self._alerts.opened(recorder, None)
        self._watchers += guarded([*kept, self._alerts])  # alerts last: they come behind what happened

    def saw(self, event: RunEvent) -> None:
        """Pass ``event`` on. A watcher that failed is heard where no round is under way."""
        from quietsum.federation import RoundFinished, RunFinished, RunStarted

        for watcher in self._watchers:
            watcher.saw(event)
        if isinstance(event, RunStarted | RoundFinished | RunFinished):
            for watcher in self._watchers:
                watcher.check()
