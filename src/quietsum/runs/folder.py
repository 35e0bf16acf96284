"""A workspace and its run folders.

::

    quietsum-workspace/
      ledger.db  ledger.db.key  ledger.db.head      budgets belong to data, not to runs: nothing here is ever refunded
      alerts.toml                     whom to tell, where the operator has written one
      alerts.log  alerts.log.head     every alert, chained; the operator's alone
      runs/heart-20260301-101500/
        run.json                      which run this is, of which ledger, and whether it asks sites elsewhere
        task.json                     what its task says of itself: a look at the run does not make it
        plan.toml                     the plan as it was frozen, every default spelled out
        checkpoints/round-000020.safetensors
        checkpoints/operator-000020.safetensors       what a rule remembers of each party: the operator's alone
        run.db  events.jsonl          what the operator may see
        model.safetensors               the finished model as one vector, with what it cost
        weights.safetensors             the same as the state dict of a torch model, where the task has one
        report.html  report.json

Deleting a run folder loses a model and gives no budget back.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import json
import os
import re
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import final

from quietsum.errors import CorruptState, InvalidParameter, PlanRefused, QuietsumError
from quietsum.files import NoRoom, draft_folder, no_room, read_file, write_atomically
from quietsum.ledger import Head
from quietsum.plan import GuaranteeCard, Plan, load_plan
from quietsum.runs.facts import TaskFacts
from quietsum.runs.sealed import add_check, take_check
from quietsum.validate import whole_number

__all__ = ["FORMAT", "RunFolder", "Workspace"]

FORMAT = 1
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Workspace:
    """A folder with one ledger and any number of runs."""

    path: Path

    @classmethod
    def at(cls, path: str | os.PathLike[str] | None = None) -> Workspace:
        """The stated folder, else that of the environment variable QUIETSUM_WORKSPACE, else ``quietsum-workspace``."""
        return cls(path=Path(path or os.environ.get("QUIETSUM_WORKSPACE") or "quietsum-workspace"))

    @property
    def ledger(self) -> Path:
        """The file of the lifetime ledger."""
        return self.path / "ledger.db"

    @property
    def runs(self) -> Path:
        """The folder of the run folders."""
        return self.path / "runs"

    def folders(self) -> Iterator[RunFolder]:
        """All run folders, oldest name first; all else that lies there is left alone."""
        if self.runs.is_dir():
            for path in sorted(self.runs.iterdir()):
                if (path / "run.json").is_file():
                    with contextlib.suppress(CorruptState):
                        yield RunFolder.open(path)

    def find_damaged(self) -> list[tuple[str, str]]:
        """Folders that say they are runs and cannot be read: name and problem."""
        found: list[tuple[str, str]] = []
        for marker in sorted(self.runs.glob("*/run.json")):
            try:
                RunFolder.open(marker.parent)
            except CorruptState as error:
                found.append((marker.parent.name, str(error)))
        return found

    def has_runs(self) -> bool:
        """Whether runs lie here that a ledger must know of."""
        return any(True for _ in (*self.runs.glob("*/run.json"), *self._trainings()))

    def _trainings(self) -> list[Path]:
        """The checkpoints of trainings at one site, which pay from the same ledger."""
        return sorted(path for path in (self.path / "training").glob("*/checkpoint.safetensors") if path.is_file())

    def anchors(self) -> Iterator[tuple[Path, Head]]:
        """Every signed head that a run or a training has kept: in its checkpoints, its model and its report."""
        from quietsum.runs.checkpoint import head_of

        for path in self._trainings():
            yield path, head_of(path)
        for folder in self.folders():
            for path in (*sorted(folder.checkpoints.glob("round-*.safetensors")), folder.model):
                if path.is_file():
                    yield path, head_of(path)
            yield from folder.head_in_report()

    def newest_anchors(self) -> Iterator[tuple[Path, Head]]:
        """The newest signed head of each run and training: in its model, else in its last checkpoint or report.

        Enough to tell a ledger that was rolled back, cut or replaced: a run writes a head after its older ones were
        found in the ledger, so a ledger that holds the newest holds them all. :meth:`anchors` reads every one.
        """
        from quietsum.runs.checkpoint import head_of

        for path in self._trainings():
            yield path, head_of(path)
        for folder in self.folders():
            path = folder.model
            if not path.is_file():
                path = max(folder.checkpoints.glob("round-*.safetensors"), default=path)
            if path.is_file():
                yield path, head_of(path)
            else:
                yield from folder.head_in_report()

    def find(self, name: str) -> RunFolder:
        """The run called ``name``, or in the folder ``name``; ``latest`` is the newest one."""
        if name == "latest":
            newest = max(self.folders(), key=lambda folder: folder.sequence, default=None)
            if newest is None:
                raise InvalidParameter("run", name, f"does not exist in {self.path}", "start one with quietsum run")
            return newest
        for path in (self.runs / name, Path(name)):
            if path.is_dir():
                return RunFolder.open(path)
        known = ", ".join(folder.run for folder in self.folders()) or "none yet"
        raise InvalidParameter("run", name, f"does not exist in {self.path}", f"known runs: {known}")

    def free_name(self, plan: Plan, name: str | None = None) -> str:
        """``name`` if it may name a new run, or a new name after the task."""
        run = name or new_name(plan.task.name)
        if not _NAME.fullmatch(run) or run == "latest":
            raise InvalidParameter("name", run, "cannot name a run", "use letters, digits, dots, dashes, underscores")
        if (self.runs / run).exists():
            from quietsum.analytics import TASK

            asked = plan.task.name == TASK
            ways = f"quietsum ask --run {run} shows its answers" if asked else f"go on with --resume {run}"
            raise InvalidParameter("name", run, "is taken", f"{ways}, or choose another name")
        return run

    def create(
        self, plan: Plan, *, head: Head, facts: TaskFacts | None = None, name: str | None = None, sites: bool = False,
        card: GuaranteeCard | None = None,
    ) -> RunFolder:  # fmt: skip
        """A new run folder with its frozen plan, there as a whole or not at all; ``sites`` is whether it asks sites.

        The ``card`` is written beside it, for people (``guarantee.md``) and programs (``guarantee.json``).
        """
        run = self.free_name(plan, name)
        target = self.runs / run
        about = {
            "format": FORMAT, "run": run, "plan": plan.digest, "created": utc_now(),
            "ledger": head.ledger, "sequence": head.sequence, "sites": sites,
        }  # fmt: skip
        try:
            with draft_folder(target) as draft:
                (draft / "checkpoints").mkdir()
                write_atomically(draft / "plan.toml", plan.to_toml().encode())
                write_atomically(draft / "run.json", json.dumps(add_check(about), indent=2).encode() + b"\n")
                if facts is not None:
                    facts.write(draft)
                if card is not None:
                    write_atomically(draft / "guarantee.md", card.to_markdown().encode())
                    write_atomically(draft / "guarantee.json", json.dumps(card.to_dict(), indent=2).encode() + b"\n")
        except (OSError, NoRoom) as error:
            why = error.strerror if isinstance(error, OSError) and error.strerror else str(error).split(";")[0]
            problem = f"the run folder {target} could not be made: {why}; nothing was spent, start it again"
            raise (type(error)(problem) if isinstance(error, NoRoom) else no_room(problem, error)) from None
        return RunFolder.open(target)


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class RunFolder:
    """One run on disk. ``sequence`` is the ledger's entry that it began with: clocks jump, entries do not.

    ``sites`` says whether its rounds ask sites elsewhere; folders that do not say are of runs on one machine.
    """

    path: Path
    run: str
    ledger: str
    plan_digest: str
    created: str
    sequence: int
    sites: bool = False

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """The run in ``path``; a folder that is none of ours, or of another version, is refused with what it is."""
        marker = path / "run.json"
        if not marker.is_file():
            raise CorruptState(f"{path} is not a run folder of quietsum: it has no run.json")
        try:
            about = json.loads(read_file(marker))
            if about["format"] != FORMAT:
                raise CorruptState(
                    f"{path} was written in format {about['format']!r}, this quietsum reads {FORMAT}; "
                    "use the version that wrote it"
                )
            texts = {name: about[name] for name in ("run", "ledger", "plan", "created")}
            sequence, sites = whole_number("sequence", about["sequence"], 1), about.get("sites", False)
        except CorruptState:
            raise
        except (OSError, ValueError, LookupError, TypeError, RecursionError, QuietsumError) as error:
            raise CorruptState(f"{marker} cannot be read ({error}); restore it from a backup") from None
        if not all(isinstance(text, str) for text in texts.values()):
            raise CorruptState(f"{marker} holds values that are no texts; restore it from a backup")
        if not isinstance(sites, bool):  # a guess would ask the wrong ones
            raise CorruptState(f"{marker} does not say whether the run asks sites; restore it from a backup")
        try:
            take_check(about)
        except ValueError as error:
            raise CorruptState(f"{marker} is damaged: {error}; restore it from a backup") from None
        return cls(
            path=path, run=texts["run"], ledger=texts["ledger"], plan_digest=texts["plan"], created=texts["created"],
            sequence=sequence, sites=sites,
        )  # fmt: skip

    @property
    def checkpoints(self) -> Path:
        """The folder of the checkpoints."""
        return self.path / "checkpoints"

    @property
    def model(self) -> Path:
        """The finished model."""
        return self.path / "model.safetensors"

    @property
    def weights(self) -> Path:
        """The finished model as a state dict, where it is a torch model."""
        return self.path / "weights.safetensors"

    def head_in_report(self) -> Iterator[tuple[Path, Head]]:
        """The ledger's head in ``report.json``, where there is one."""
        report = self.path / "report.json"
        if report.is_file():
            try:
                yield report, Head.from_dict(json.loads(read_file(report))["ledger"]["head"])
            except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
                raise CorruptState(
                    f"{report} cannot be read ({error}); delete it: quietsum show makes no new one, "
                    "quietsum run --resume does"
                ) from None

    def plan(self) -> Plan:
        """The frozen plan; one that was edited after the run began is refused."""
        path = self.path / "plan.toml"
        if not path.is_file():
            raise CorruptState(f"{path} is gone; restore it from a backup: a run cannot go on without its frozen plan")
        try:
            plan = load_plan(path)
        except PlanRefused as problem:  # it was taken when the run began
            raise CorruptState(f"{problem}; a run's plan is frozen: restore it from a backup") from None
        if plan.digest != self.plan_digest:
            raise CorruptState(
                f"{self.path / 'plan.toml'} is not the plan that this run was started with; a run's plan is frozen: "
                "undo the edit, or start a new run with the new plan; if it was not edited, another version of "
                "quietsum started the run: use that one"
            )
        return plan

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Hold this run for one process; a second one is refused."""
        import fcntl

        with (self.path / ".lock").open("w") as file:
            for patience in (0.05, 0.05, 0.05, 0.0):  # who only looks (see :meth:`busy`) is gone in a moment
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except OSError:
                    if not patience:
                        raise QuietsumError(
                            f"run {self.run} is being written by another process; wait for it, or end it first"
                        ) from None
                    time.sleep(patience)
            yield

    def busy(self) -> bool:
        """Whether a process holds this run right now."""
        import fcntl

        try:
            handle = os.open(self.path / ".lock", os.O_RDONLY | os.O_NONBLOCK)  # a pipe there must hold nobody
            try:
                fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
            finally:
                os.close(handle)
        except BlockingIOError:
            return True
        except OSError:  # it was never held, or nobody may look
            return False
        return False


def new_name(task: str) -> str:
    """A name that sorts by time and does not repeat."""
    moment = datetime.datetime.now(datetime.UTC).strftime("%Y%m%d-%H%M%S")
    return f"{re.sub(r'[^A-Za-z0-9]+', '-', task).strip('-') or 'run'}-{moment}-{secrets.token_hex(2)}"


def utc_now() -> str:
    """The time of day, for people; nothing depends on it."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
