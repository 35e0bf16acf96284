"""What the pages read: a workspace's folders, runs and ledger, opened for reading, kept while they hold.

A page must not cost as much as a report, nor a thousand of them as a thousand times one. So what was read is kept with
a *stamp* of the files it came from (size, time of change, number of the file), and read again when the stamp differs.
Readers take turns: at any time one page at most is being worked out, so that requests cannot pile up work beside a run.

Guarantees: nothing is written, no key is read, and no task is made (rule 18). A name in an address is looked up among
the names that lie in the workspace; it never becomes part of a path.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Callable, Hashable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, final

from quietsum.errors import LedgerBroken, QuietsumError
from quietsum.ledger import Ledger, Terms, ledger_exists
from quietsum.privacy import Budget, Guarantee
from quietsum.report import Training, build_training, claim_of_training, list_run
from quietsum.runs import RunCourse, RunFolder, TaskFacts, Workspace, read_course

if TYPE_CHECKING:
    from quietsum.party import Policy
    from quietsum.plan import ForecastRow

__all__ = ["PageReader"]

MOST_KEPT = 4096
"""Values that are kept at a time; the oldest goes first."""
AHEAD = 30
"""Runs that are read ahead."""
FORECAST = 24
"""Rounds of which the forecast of a run is drawn."""

_Value = TypeVar("_Value")


@final
class PageReader:
    """The workspace, and the site where a ``policy`` is given, as the pages see them. Threads may share it."""

    def __init__(self, workspace: Workspace, *, policy: Policy | None = None) -> None:
        self.workspace, self.policy = workspace, policy
        self._lock = threading.RLock()
        self._kept: dict[Hashable, tuple[Hashable, Any]] = {}
        self._ledger: Ledger | None = None
        self._opened: Hashable = None

    @property
    def ledger_path(self) -> Path:
        """The ledger that is shown: the site's own where there is a policy, else the workspace's."""
        return self.workspace.ledger if self.policy is None else self.policy.path(self.policy.site.ledger)

    def read_ahead(self) -> None:
        """Open the ledger and read what the first page shows, before it is asked for; what is broken it will say."""
        with contextlib.suppress(QuietsumError, OSError):
            folders, _ = self.folders()
            with self.ledger() as ledger:
                self.keep_value("books", ledger.head.sequence, ledger.lifetime)
            for folder in folders[:AHEAD]:
                self.line(folder)

    def close(self) -> None:
        """Let go of the ledger."""
        with self._lock:
            if self._ledger is not None:
                self._ledger.close()
                self._ledger = None

    # -------------------------------------------------------------------------------------------- the ledger

    @contextlib.contextmanager
    def ledger(self) -> Iterator[Ledger]:
        """The ledger as it is now. Raises NoLedger where there is none, and LedgerBroken where it is out of order."""
        with self._lock:
            stamp = _stamp(self.ledger_path)[:2]  # which file it is; that it grows is no reason to open it anew
            if self._ledger is None or stamp != self._opened:
                self.close()
                self._ledger, self._opened = Ledger.open(self.ledger_path, read_only=True), stamp
            try:
                yield self._ledger
            except LedgerBroken:
                self.close()
                raise

    def has_ledger(self) -> bool:
        """Whether there is a ledger to read."""
        return ledger_exists(self.ledger_path)

    def limits(self, run: str) -> tuple[Budget, ...]:
        """The run's own limits, one a unit, as the ledger opened it with."""

        def read() -> tuple[Budget, ...]:
            with self.ledger() as ledger:
                return tuple(Terms.from_dict(ledger.run_entry(run).body["terms"]).limits)

        return self._keep(("limits", run), self._opened, read)

    # ---------------------------------------------------------------------------------------------- the runs

    def folders(self) -> tuple[list[RunFolder], list[tuple[str, str]]]:
        """All runs, the newest first, and those that cannot be read, as name and problem."""
        found: list[RunFolder] = []
        damaged: list[tuple[str, str]] = []
        with self._lock:
            for name in _names(self.workspace.runs):
                path = self.workspace.runs / name
                stamp = _stamp(path / "run.json")
                if stamp:
                    try:
                        found.append(self._keep(("folder", name), stamp, functools.partial(RunFolder.open, path)))
                    except QuietsumError as error:
                        damaged.append((name, str(error)))
        found.sort(key=lambda folder: (folder.sequence, folder.path.name), reverse=True)
        return found, damaged

    def trainings(self) -> list[Training]:
        """All trainings at one site, by name, the last one first."""
        place = self.workspace.path / "training"
        marks = ("options.json", "checkpoint.safetensors", "model.safetensors")
        names = [name for name in _names(place) if any((place / name / mark).is_file() for mark in marks)]
        return [Training(path=place / name, run=name) for name in reversed(names)]

    def find(self, name: str) -> RunFolder | Training | None:
        """The run or the training whose folder is called ``name``; None if there is none."""
        folders, _ = self.folders()
        found = next((folder for folder in folders if folder.path.name == name), None)
        return found or next((one for one in self.trainings() if one.run == name), None)

    def line(self, folder: RunFolder) -> dict[str, Any]:
        """The run in one line, as :func:`~quietsum.report.list_run` has it. Raises what that raises."""

        def read() -> dict[str, Any]:
            with self.ledger() as ledger:
                return {
                    **list_run(folder, self.workspace, ledger),
                    "folder": folder.path.name,
                    "created": folder.created,
                }

        return self._keep(("line", folder.path.name), self.stamp(folder), read)

    def stamp(self, folder: RunFolder) -> Hashable:
        """What changes when a run has gone on."""
        names = ("run.json", "plan.toml", "task.json", "run.db", "model.safetensors")
        return (*(_stamp(folder.path / name) for name in names), folder.busy())

    def course(self, folder: RunFolder) -> RunCourse:
        """The finished rounds of a run. Raises CorruptState where run.db cannot be read."""
        path = folder.path / "run.db"
        return self._keep(("course", folder.path.name), _stamp(path), lambda: read_course(path))

    def facts(self, folder: RunFolder) -> TaskFacts | None:
        """What the run's task says of itself."""
        path = folder.path / "task.json"
        return self._keep(("facts", folder.path.name), _stamp(path), lambda: TaskFacts.read(folder.path))

    def forecast(self, folder: RunFolder) -> tuple[ForecastRow, ...]:
        """What the plan of a run costs after some of its rounds, if it runs as planned; empty where it cannot be said.

        The first and the last round are among them.
        """

        def read() -> tuple[ForecastRow, ...]:
            from quietsum.plan import resolve

            plan, facts = folder.plan(), self.facts(folder)
            if facts is None:
                return ()
            with self.ledger() as ledger:
                pricing = ledger.pricing_of(folder.run)
            rounds = plan.federation.rounds
            at = sorted({1 + place * (rounds - 1) // (FORECAST - 1) for place in range(FORECAST)})
            return resolve(plan, facts.parties, facts.dimension, pricing=pricing).forecast(at=at).rows

        stamps = (_stamp(folder.path / "plan.toml"), _stamp(folder.path / "task.json"))
        return self._keep(("forecast", folder.path.name), stamps, read)

    # ----------------------------------------------------------------------------------------- the trainings

    def training(self, training: Training) -> dict[str, Any]:
        """Everything that the report of a training would say. Raises what making it raises."""
        names = ("model.safetensors", "checkpoint.safetensors", "scores.json", "audit.json")
        stamp = tuple(_stamp(training.path / name) for name in names)
        return self._keep(("training", training.run), stamp, lambda: build_training(training, self.workspace))

    def list_charged(self) -> list[dict[str, Any]]:
        """The trainings that the ledger knows, a line each: what was charged, and what their whole plan costs."""
        folders = {one.run: one for one in self.trainings()}
        if not folders or not self.has_ledger():
            return []
        with self.ledger() as ledger:
            return [
                {
                    "run": known.run,
                    "outcome": "finished" if folders[known.run].model.is_file() else "interrupted",
                    "claim": [one.to_dict() for one in self._claim(ledger, known)],
                }
                for known in reversed(ledger.runs())
                if known.run in folders
            ]

    def _claim(self, ledger: Ledger, known: Any) -> list[Guarantee]:
        return self._keep(("claim", known.run), known.attempts, lambda: claim_of_training(ledger, known))

    # ---------------------------------------------------------------------------------------------- keeping

    def keep_file(self, kind: str, path: Path, read: Callable[[], _Value]) -> _Value:
        """What ``read`` returns, kept until the file at ``path`` is another one."""
        return self._keep((kind, str(path)), _stamp(path), read)

    def keep_value(self, kind: str, stamp: Hashable, read: Callable[[], _Value]) -> _Value:
        """What ``read`` returns, kept until the ``stamp`` is another one."""
        return self._keep(kind, stamp, read)

    def _keep(self, key: Hashable, stamp: Hashable, read: Callable[[], _Value]) -> _Value:
        with self._lock:
            known = self._kept.get(key)
            if known is not None and known[0] == stamp:
                found: _Value = known[1]
                return found
            made = read()
            self._kept.pop(key, None)
            self._kept[key] = (stamp, made)
            while len(self._kept) > MOST_KEPT:
                del self._kept[next(iter(self._kept))]
            return made

    def say(self, error: Exception) -> str:
        """An error as a page may show it: where in the workspace, and never where on this machine."""
        text = str(error)
        places = {self.workspace.path, self.workspace.path.absolute(), self.workspace.path.resolve()}
        if self.policy is not None:
            places |= {self.policy.folder, self.policy.folder.absolute(), self.ledger_path.parent}
        for place in sorted(map(str, places), key=len, reverse=True):
            if len(place) > 1:
                text = text.replace(f"{place}/", "").replace(place, "the workspace")
        return text


def _stamp(path: Path) -> tuple[int, ...]:
    """Which file lies at ``path``, its size and when it was changed; empty if there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return ()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _names(folder: Path) -> list[str]:
    """The names of the folders in ``folder``, sorted; one with a control or half a letter in it names no run."""
    try:
        with os.scandir(folder) as entries:
            return sorted(entry.name for entry in entries if entry.name.isprintable() and entry.is_dir())
    except OSError:
        return []
