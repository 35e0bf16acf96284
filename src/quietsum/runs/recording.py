"""What a run writes down and passes on, apart from its books: files in its folder, watchers, alerts, a tracking store.

A :class:`Recording` is one watcher that stands for all of them. It is open before the run has a folder, so that an
error of the first line can be an alert, too; the files begin when the folder is there (:meth:`Recording.open`) and end
with the last round; alerts and the tracking store are left last, when the report is written.

Guarantees (rule 22): what fails here costs no charge and ends no round. Only a full disk ends a run, before anything is
reserved.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Self, TextIO, final

from quietsum.errors import CorruptState
from quietsum.federation import (
    GuardedWatcher,
    RoundFinished,
    RunEvent,
    RunFinished,
    RunStarted,
    Watcher,
    guard,
)
from quietsum.ledger import check_rows
from quietsum.party import dataset_readers
from quietsum.plan import ResolvedPlan
from quietsum.runs.coordinator_alerts import AlertWatcher, alerting
from quietsum.runs.folder import RunFolder, Workspace
from quietsum.runs.progress import EventLines
from quietsum.runs.record import Recorder
from quietsum.runs.tracking.watcher import MlflowWatcher
from quietsum.tasks import AnyTask

__all__ = ["Recording", "check_known_rows", "open_recording"]


@contextlib.contextmanager
def open_recording(
    workspace: Workspace,
    *,
    warn: Callable[[str], object],
    mlflow: str | None = None,
    alert_lines: TextIO | None = None,
) -> Iterator[Recording]:
    """Open the alerts of ``workspace`` and the MLflow store at the address ``mlflow``; send what is left at the end.

    ``warn`` is called with each warning. Alerts are written to ``alert_lines`` as JSON, or as words to standard error
    if omitted. Raises PlanRefused if ``alerts.toml`` is wrong.
    """
    with contextlib.ExitStack() as stack:
        tracker = None if mlflow is None else stack.enter_context(MlflowWatcher(mlflow))
        alerts = stack.enter_context(alerting(workspace, lines=alert_lines))
        yield Recording(alerts, tracker, warn=warn)


@final
class Recording:
    """A watcher for one run: pass it to ``start`` or ``resume``, and its :meth:`open` as ``opened``."""

    def __init__(self, alerts: AlertWatcher, tracker: MlflowWatcher | None, *, warn: Callable[[str], object]) -> None:
        self.alerts, self.warn = alerts, warn
        self._tracker = tracker
        self._watchers: list[GuardedWatcher] = []
        self._files = contextlib.ExitStack()

    @contextlib.contextmanager
    def show(self, watchers: Iterable[Watcher] = ()) -> Iterator[Self]:
        """Show the run to ``watchers``, too, and close its files at the end; an error that ends it may be an alert."""
        self._watchers = [*guard(watchers)]
        with self._files:
            try:
                yield self
            except Exception as error:
                self.alerts.fail(error)
                raise

    def open(self, folder: RunFolder) -> None:
        """Begin the files of ``folder``. Nothing is reserved yet, so a full disk ends the run here."""
        kept: list[Watcher] = [self._files.enter_context(EventLines(folder.path / "events.jsonl"))]
        recorder: Recorder | None = None
        try:
            recorder = self._files.enter_context(Recorder(folder.path / "run.db"))
            kept.append(recorder)
        except CorruptState as error:
            self.warn(f"{error}; the run goes on without it")
        if self._tracker is not None:
            self._tracker.open(folder)
            kept.append(self._tracker)
        self.alerts.open(recorder, self._tracker)
        self._watchers += guard([*kept, self.alerts])  # alerts last: they come behind what happened

    def saw(self, event: RunEvent) -> None:
        """Pass ``event`` on. A reader that has left is reported between two rounds, where nothing is reserved."""
        for watcher in self._watchers:
            watcher.saw(event)
        if isinstance(event, RunStarted | RoundFinished | RunFinished):
            for watcher in self._watchers:
                watcher.check()


def check_known_rows(
    workspace: Workspace, task: AnyTask, resolved: ResolvedPlan, *, reason: str, warn: Callable[[str], object]
) -> None:
    """Refuse rows that are known in ``workspace`` under another name, unless a ``reason`` is given.

    For runs whose operator holds the data, and hears of it alone. Raises PlanRefused.
    """
    if resolved.protected:
        remedy = 'say why with --same-rows "…" (same_rows="…" in Python)'
        for known in check_rows(workspace.ledger, dataset_readers(task, resolved), reason=reason, remedy=remedy):
            warn(known)
