"""A plan's task at a site: made with the site's own options, tried on made-up records, and its records read.

Nothing is charged while a task is made and tried, so no protected record is read for that. Records are read here for
the holder's own use only: the fingerprints by which its ledger recognises a dataset (:mod:`quietsum.ledger`).
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, final

import numpy as np

from quietsum.errors import DataMissing, PlanRefused
from quietsum.learning import PartyCanaries, site_folder
from quietsum.ledger import Parts, as_array
from quietsum.party.work import calmly, rehearse_task
from quietsum.tasks import AnyTask, Task, as_task

if TYPE_CHECKING:
    from pathlib import Path

    from quietsum.ledger import Charge
    from quietsum.mechanisms import RandomSource
    from quietsum.party.policy import Policy
    from quietsum.party.secure import SecureSite
    from quietsum.plan import Plan, ResolvedPlan

__all__ = ["SiteRun", "dataset_readers", "make_task", "own_canaries", "read_records", "try_task"]

log = logging.getLogger(__name__)


def make_task(policy: Policy, plan: Plan) -> Task:
    """The plan's task with this site's own options: the paths of its files are known to the site only."""
    from quietsum.tasks import task_of

    here = policy.task(plan.task.name, plan.task.options).here
    options = {**plan.task.options, **here}
    return task_of(dataclasses.replace(plan, task=dataclasses.replace(plan.task, options=options)))


def try_task(
    make: Callable[[], AnyTask], resolved: ResolvedPlan, party: str, *, unseen: bool, interruptible: bool = True
) -> Task:
    """Make the task and try it on made-up records; raises :class:`~quietsum.errors.PlanRefused` if it cannot run here.

    With ``unseen`` no record of the site is read: nothing is paid yet, and even a refusal would reveal something of it.
    More is to be tried once it is paid for. What the task itself says goes to the site's own log.
    """

    def attempt() -> tuple[Task, bool]:
        task = as_task(make())
        fits = task.dimension == resolved.dimension
        if fits:
            rehearse_task(task, resolved, party, unseen=unseen)
        return task, fits

    try:
        task, fits = calmly(attempt, interruptible=interruptible)
    except (Exception, SystemExit) as error:
        log.warning("task %r cannot run here: %s", resolved.plan.task.name, error)
        raise PlanRefused("its task cannot run here") from None  # why, its own log says
    if not fits:
        log.warning("task %r has %d parameters here", resolved.plan.task.name, task.dimension)
        raise PlanRefused(f"its task has other parameters than the {resolved.dimension} that the plan says")
    return task


@final
class SiteRun:
    """A run that a site's process works for, with its task and the last reply.

    For secure rounds: ``masking`` holds the session that is open, ``peers`` the ledgers by which this run knows the
    other sites, ``charges`` the cost of the last masked vector. ``canaries`` are this site's own, where the plan has
    any.
    """

    def __init__(
        self, resolved: ResolvedPlan, task: Task, party: str, *, due: bool, check: Callable[[], None] | None = None
    ) -> None:
        self.resolved, self.task, self._party, self._due = resolved, task, party, due
        self._check = check
        self.answered: tuple[tuple[int, int, str], bytes] | None = None
        self.masking: SecureSite | None = None
        self.peers: dict[str, str] = {}
        self.charges: tuple[Charge, ...] = ()
        self.canaries: PartyCanaries | None = None

    def prepare(self) -> None:
        """Once the data is paid for: check it against its schema, and try the task on records of the real shape.

        Both are done once; what fails is done again before the next round.
        """
        if self._check is not None:
            self._check()
            self._check = None
        if self._due:
            rehearse_task(self.task, self.resolved, self._party)
            self._due = False


def own_canaries(folder: Path | None, run: str, resolved: ResolvedPlan, rng: RandomSource) -> PartyCanaries | None:
    """A site's canaries in the run that its books call ``run``: coins that this machine alone knows; None without any.

    What is recorded of them stays in ``folder``: the site's owner audits the run (:func:`quietsum.audit.audit_site`).
    """
    count = resolved.plan.training.canaries
    if not count:
        return None
    if folder is None:
        raise PlanRefused(f"training.canaries = {count}, and this site has no folder for what is recorded of them")
    return PartyCanaries(site_folder(folder, run, resolved.plan.digest), run, count=count, rng=rng)


# --------------------------------------------------------------------------------------------- the task's records


def read_records(task: AnyTask, party: str) -> Parts | None:
    """The records of ``party`` in parts; None if the task cannot show them, or fails.

    Raises :class:`~quietsum.errors.DataMissing` if there are no data at all.
    """
    try:
        return as_task(task).records_of(party)
    except DataMissing:
        raise
    except (Exception, SystemExit):  # that they cannot be read is reported when they are trained on
        return None


def dataset_readers(
    task: AnyTask, resolved: ResolvedPlan, party: str | None = None
) -> dict[str, Callable[[], Parts | None]]:
    """The protected datasets of a plan, or of one party of it, each with a function that reads it.

    Such a function raises :class:`~quietsum.errors.DataMissing` if the file is not there; nothing is reserved yet.
    """
    readers: dict[str, Callable[[], Parts | None]] = {}
    groups: dict[str, list[str]] = {}
    for facts in resolved.parties:
        if not facts.public and party in (None, facts.name):
            groups.setdefault(facts.dataset, []).append(facts.name)
    for dataset, names in groups.items():

        def read(names: list[str] = names) -> Parts | None:
            parts = [one for one in (read_records(task, name) for name in names) if one is not None]
            if not parts:
                return None
            flat = [[as_array(part) for part in one] for one in parts]
            return tuple(np.concatenate(column) for column in zip(*flat, strict=True))

        readers[dataset] = read
    return readers
