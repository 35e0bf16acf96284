"""Ask the questions of a file: a run of one round, and its model read as answers.

Everything that protects a record happens in :func:`quietsum.runs.run.start`. What is here comes after: the noisy sum
that the round has released is turned into answers, which are written to the run's folder. That costs nothing, so they
can be read again at any time from the folder alone.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from quietsum.analytics import TASK, Answer, QuestionFile, answers_of, choose_budget, deviation_of, plan_of
from quietsum.errors import CorruptState, InvalidParameter, QuietsumError
from quietsum.files import write_atomically
from quietsum.plan import Plan, ResolvedPlan, resolve
from quietsum.runs import checkpoint as checkpoints
from quietsum.runs.folder import RunFolder, Workspace
from quietsum.runs.run import start
from quietsum.tasks import QuestionTask, read_header

if TYPE_CHECKING:
    from quietsum.federation import Federation, Watcher

__all__ = ["FILE", "Asked", "answers_in", "ask", "local_plan", "task_in"]

FILE = "answers.json"


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Asked:
    """The answers of one run. ``error`` is what kept it from answering; then there are none."""

    folder: RunFolder
    resolved: ResolvedPlan
    answers: tuple[Answer, ...]
    level: float
    error: QuietsumError | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as they stand in ``answers.json``."""
        limit = choose_budget(self.resolved)
        return {
            "run": self.folder.run,
            "plan": self.resolved.plan.digest,
            "level": self.level,
            "privacy": {
                "epsilon": limit.epsilon, "delta": limit.delta, "unit": str(limit.unit),
                "neighbours": str(self.resolved.plan.privacy.neighbours),
                "noise": "one sum of all sites" if self.resolved.secure is not None else "each site's own sum",
                "deviation": deviation_of(self.resolved),
            },
            "charged": [
                {
                    "party": facts.name, "dataset": facts.dataset, "epsilon": one.epsilon, "delta": one.delta,
                    "unit": str(one.unit), **({"public": facts.public} if facts.public else {}),
                }
                for facts in self.resolved.parties
                for one in self.resolved.limits
            ],
            "answers": [one.to_dict() for one in self.answers],
        }  # fmt: skip


def local_plan(asked: QuestionFile, folder: Path) -> Plan:
    """The plan for tables of this machine, seen from ``folder``.

    What can be said of them without reading a record is said here: that one is not there, is empty, or lacks a column.
    """
    tables: dict[str, str] = {}
    for number, site in enumerate(asked.sites):
        where = f"sites[{number}].table"
        if not site.table:
            remedy = "name its CSV file, or ask sites elsewhere with --on flower"
            raise InvalidParameter(where, site.table, f"is missing for {site.name!r}", remedy)
        path = (folder / site.table).absolute()
        if not path.is_file():
            raise InvalidParameter(where, site.table, "is no file", f"seen from {folder.absolute()}; check the path")
        header = [word.strip() for word in read_header(path)]
        person = () if asked.privacy.person is None else (asked.privacy.person.column,)
        for name in dict.fromkeys((*person, *(name for question in asked.questions for name in question.reads))):
            if header.count(name) != 1:
                problem = f"has no column {name!r}" if name not in header else f"has two columns {name!r}"
                raise InvalidParameter(where, site.table, problem, f"its first line says {', '.join(header)[:200]}")
        tables[site.name] = str(path)
    return plan_of(asked, tables)


def ask(
    plan: Plan,
    *,
    workspace: Workspace,
    level: float = 0.95,
    name: str | None = None,
    watchers: Iterable[Watcher] = (),
    federation: Federation | None = None,
    allowed: Callable[[QuestionTask, ResolvedPlan], None] | None = None,
    opened: Callable[[RunFolder], None] | None = None,
) -> Asked:
    """Run the one round of ``plan`` and read its answers. ``federation``, ``allowed`` and ``opened`` are start's.

    A run whose sites did not all answer has no answers; what was charged stays charged.
    """
    task = QuestionTask.from_options(plan.task.options)
    resolved = resolve(plan, task.parties(), task.dimension)
    result = start(
        plan, workspace=workspace, name=name, watchers=watchers, task=task, federation=federation, opened=opened,
        allowed=None if allowed is None else lambda *_: allowed(task, resolved),
    )  # fmt: skip
    if result.error is not None:
        return Asked(folder=result.folder, resolved=resolved, answers=(), level=level, error=result.error)
    asked = answers_in(result.folder, level=level)
    write_atomically(
        asked.folder.path / FILE, json.dumps(asked.to_dict(), indent=2, ensure_ascii=False).encode() + b"\n",
        remedy=f"nothing is lost: make room, then use quietsum ask --run {asked.folder.run}",
    )  # fmt: skip
    return asked


def answers_in(folder: RunFolder, *, level: float = 0.95) -> Asked:
    """The answers of a finished run, read off its checkpoint. Nothing is written, and nothing is charged."""
    plan = folder.plan()
    task = task_in(plan, folder.run)
    resolved = resolve(plan, task.parties(), task.dimension)
    last = checkpoints.latest_checkpoint(folder.checkpoints, of_parties=False)
    if last is None or last.round != 1 or last.plan != plan.digest:
        raise InvalidParameter("run", folder.run, "has no answers: it did not finish", "ask again")
    if last.run != folder.run:
        raise CorruptState(
            f"the checkpoint in {folder.checkpoints} is that of run {last.run!r}, not of {folder.run!r}; restore the "
            "run's own from a backup"
        )
    total = last.state.model
    found = answers_of(task.design, total, deviation=deviation_of(resolved), level=level)
    return Asked(folder=folder, resolved=resolved, answers=found, level=level)


def task_in(plan: Plan, run: str) -> QuestionTask:
    """The questions of a plan; :class:`~quietsum.errors.InvalidParameter` where it asks none."""
    if plan.task.name != TASK:
        raise InvalidParameter("run", run, "asked no questions", "quietsum show tells what it did")
    options: Mapping[str, Any] = plan.task.options
    return QuestionTask.from_options(options)
