"""Run a plan from Python: :func:`run`, :func:`resume`, :func:`forecast`, and the :class:`Run` that they give; then
:func:`load_model` to use what was trained.

The same path as ``quietsum run``: everything that can be refused is refused before anything is spent, every round is
reserved before a party is asked, and the folder of the run holds plan, events, checkpoints, model and report.

>>> import tempfile
>>> import numpy as np
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
...     len(done.model), done.report["outcome"], qs.load_model(done).predict(np.zeros((2, 15))).labels()
(15, 'finished', ['well', 'well'])
>>> done.outcome, done.guarantees[0].unit.value, sorted(done.metrics)[0]
('finished', 'record', 'accuracy')
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, final

if TYPE_CHECKING:
    import numpy as np

    from quietsum.errors import QuietsumError
    from quietsum.federation import Federation, Watcher
    from quietsum.plan import Forecast, Plan
    from quietsum.privacy import Guarantee
    from quietsum.runs import Recording, RunFolder, RunResult, Workspace
    from quietsum.tasks import AnyTask

__all__ = ["Run", "RunSession", "forecast", "load_model", "open_session", "resume", "run"]

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
    alerts: int = 0
    """How many alerts were raised; notices are not counted."""
    alerts_shown: int = 0
    """How many of them stand on standard error, in words."""

    @property
    def model(self) -> np.ndarray:
        """The weights of the last round as one vector, read from ``model.safetensors`` and held to its hash."""
        from quietsum.runs import read_model

        params, _ = read_model(self.path / "model.safetensors")
        return params

    def _repr_html_(self) -> str:
        from quietsum.charts import svg
        from quietsum.notebook import show_table
        from quietsum.privacy import bounds_of
        from quietsum.report import curve

        rows = [("outcome", f"{self.outcome} after round {self.rounds:,}")]
        rows += [
            (f"per {one.whom}", f"{bounds_of(one)} at δ = {one.delta:g}, {one.observer}") for one in self.guarantees
        ]
        rows += [] if self.guarantees else [("privacy", "NO PRIVACY GUARANTEE")]
        rows += [(str(name), f"{float(value):.3f}") for name, value in self.metrics.items()]
        rows += [("folder", str(self.path))]
        notes = [*self.report.get("warnings", ()), *([] if self.error is None else [str(self.error)])]
        chart = curve(self.report)
        picture = "" if chart is None else svg(chart, width=620, height=360)
        return show_table(f"Run {self.name}", rows, notes=notes, picture=picture)


def load_model(run: Run | str | os.PathLike[str] = "latest", *, workspace: Place = None) -> Any:
    """The finished model of ``run``: a :class:`Run`, a name in ``workspace``, or the folder of a run or a training.

    Returns the torch model with its weights, in eval mode, if the task has one, and a
    :class:`quietsum.runs.TrainedModel` with ``params`` and ``predict(rows)`` otherwise. Only a task of your own is
    imported; what lies in the folder is read as data. Raises InvalidParameter if the run has no finished model, and
    CorruptState if weights, header, plan and task do not belong together. Using a model costs nothing.
    """
    from quietsum.runs import Workspace, open_model

    name = str(run.path) if isinstance(run, Run) else os.fspath(run)
    found = open_model(name, Workspace.at(workspace))
    return found if found.module is None else found.module


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
    mlflow: str | None = None,
    opened: Callable[[RunFolder], object] | None = None,
    warn: Callable[[str], object] = log.warning,
) -> Run:
    """Run ``plan`` (a :class:`Plan`, a path or a text) to its end, with every round paid for first.

    ``name`` is made up if omitted, ``task`` is the plan's own if omitted, and the parties live in this process, or in
    ``workers`` processes, if no ``federation`` is given; on a ``device`` that is a graphics card these and this process
    share its memory evenly, and a party whose work does not fit is lost. ``same_rows`` says why rows that are known
    under another name may be used again. ``mlflow`` is the address of an MLflow store to which the run is also written.
    ``opened`` is called with the run's folder, before anything is reserved, and ``warn`` with each warning; they are
    logged if omitted. Raises PlanRefused or BudgetExhausted if nothing may run; a run that stops later ends with a
    :class:`Run` whose ``error`` says why.
    """
    with open_session(workspace, mlflow=mlflow, warn=warn) as here:
        return here.run(
            plan, name=name, watchers=watchers, task=task, federation=federation, workers=workers, device=device,
            same_rows=same_rows, opened=opened,
        )  # fmt: skip


def resume(
    name: str = "latest",
    *,
    workspace: Place = None,
    watchers: Iterable[Watcher] = (),
    task: AnyTask | None = None,
    federation: Federation | None = None,
    workers: int = 1,
    device: str = "cpu",
    mlflow: str | None = None,
    opened: Callable[[RunFolder], object] | None = None,
    warn: Callable[[str], object] = log.warning,
) -> Run:
    """Go on after the last checkpoint of the run ``name``; ``"latest"`` is the newest of the workspace.

    Guarantees: those of the first start. A round that was reserved and not finished is made anew with fresh noise and
    charged again. Raises LedgerBroken if the ledger does not contain what the checkpoint was saved with.
    """
    with open_session(workspace, mlflow=mlflow, warn=warn) as here:
        return here.resume(
            here.workspace.find(name), watchers=watchers, task=task, federation=federation, workers=workers,
            device=device, opened=opened,
        )  # fmt: skip


@contextlib.contextmanager
def open_session(
    workspace: Place = None,
    *,
    mlflow: str | None = None,
    warn: Callable[[str], object] = log.warning,
    alert_lines: TextIO | None = None,
) -> Iterator[RunSession]:
    """Open what outlives a run's last round: the alerts of ``workspace`` and the MLflow store at ``mlflow``.

    They are waited for when the block ends, so the result can be shown before. Alerts are written to ``alert_lines`` as
    JSON, or as words to standard error if omitted. Raises PlanRefused if ``alerts.toml`` is wrong.
    """
    from quietsum.runs import Workspace, open_recording

    place = Workspace.at(workspace)
    with open_recording(place, mlflow=mlflow, warn=warn, alert_lines=alert_lines) as kept:
        yield RunSession(place, kept)


@final
class RunSession:
    """One run with what is open around it; :func:`run` and :func:`resume` make one for themselves."""

    def __init__(self, workspace: Workspace, recording: Recording) -> None:
        self.workspace, self._recording = workspace, recording

    def run(
        self,
        plan: Plan | str | os.PathLike[str],
        *,
        name: str | None = None,
        watchers: Iterable[Watcher] = (),
        task: AnyTask | None = None,
        federation: Federation | None = None,
        workers: int = 1,
        device: str = "cpu",
        same_rows: str = "",
        opened: Callable[[RunFolder], object] | None = None,
    ) -> Run:
        """Run ``plan`` and write its report, as :func:`quietsum.run` does."""
        from quietsum.runs import check_known_rows, start
        from quietsum.tasks import task_of

        made = _plan(plan)
        warn = self._recording.warn
        check = partial(check_known_rows, self.workspace, reason=same_rows, warn=warn) if federation is None else None
        with self._recording.show(watchers) as kept:
            result = start(
                made, workspace=self.workspace, name=name, watchers=[kept], federation=federation, workers=workers,
                device=device, task=task_of(made, device=device) if task is None else task, allowed=check,
                opened=self._open(opened),
            )  # fmt: skip
        return self._report(result)

    def resume(
        self,
        folder: RunFolder,
        *,
        watchers: Iterable[Watcher] = (),
        task: AnyTask | None = None,
        federation: Federation | None = None,
        workers: int = 1,
        device: str = "cpu",
        opened: Callable[[RunFolder], object] | None = None,
    ) -> Run:
        """Go on with the run in ``folder`` and write its report, as :func:`quietsum.resume` does."""
        from quietsum.runs import resume_run
        from quietsum.tasks import task_of

        with self._recording.show(watchers) as kept:
            result = resume_run(
                folder, workspace=self.workspace, watchers=[kept], federation=federation, workers=workers,
                device=device, task=task_of(folder.plan(), device=device) if task is None else task,
                opened=self._open(opened),
            )  # fmt: skip
        return self._report(result)

    def _open(self, opened: Callable[[RunFolder], object] | None) -> Callable[[RunFolder], None]:
        def begin(folder: RunFolder) -> None:
            if opened is not None:
                opened(folder)
            self._recording.open(folder)

        return begin

    def _report(self, result: RunResult) -> Run:
        from quietsum import report

        values, alerts = report.write(result.folder, self.workspace), self._recording.alerts
        return Run(
            name=result.folder.run, path=result.folder.path, outcome=result.outcome, rounds=result.round,
            guarantees=result.claims, metrics=dict(result.metrics.values), report=values, error=result.error,
            alerts=alerts.raised, alerts_shown=alerts.shown,
        )  # fmt: skip


def _plan(source: Plan | str | os.PathLike[str]) -> Plan:
    from quietsum.plan import Plan, load_plan

    return source if isinstance(source, Plan) else load_plan(source)
