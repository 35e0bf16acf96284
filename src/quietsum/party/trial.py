"""A plan's task at a site: made with the site's own options, tried on made-up records before anything is charged."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, final

from quietsum.errors import PlanRefused
from quietsum.party.work import Task, calmly, rehearse

if TYPE_CHECKING:
    from quietsum.ledger import Charge
    from quietsum.party.policy import Policy
    from quietsum.party.secure import SecureSite
    from quietsum.plan import Plan, ResolvedPlan

__all__ = ["Enrolled", "own_task", "tried"]

log = logging.getLogger(__name__)


def own_task(policy: Policy, plan: Plan) -> Task:
    """The plan's task with this site's own options: where its files are is nobody else's business."""
    from quietsum.tasks import task_of

    here = policy.task(plan.task.name, plan.task.options).here
    options = {**plan.task.options, **here}
    return task_of(dataclasses.replace(plan, task=dataclasses.replace(plan.task, options=options)))


def tried(
    make: Callable[[], Task], resolved: ResolvedPlan, party: str, *, unseen: bool, interruptible: bool = True
) -> tuple[Task, bool]:
    """The task, made and tried on made-up records; :class:`~quietsum.errors.PlanRefused` where it cannot run here.

    With ``unseen`` no record of the site is read: nothing is paid yet, and even a refusal would tell of it. Beside the
    task: whether more is to be tried as soon as it is. Nothing that the task says goes further than the site's own log.
    """

    def attempted() -> tuple[Task, bool, bool]:
        task = make()
        fits = task.dimension == resolved.dimension
        return task, fits, fits and rehearse(task, resolved, party, unseen=unseen)

    try:
        task, fits, due = calmly(attempted, interruptible=interruptible)
    except (Exception, SystemExit) as error:
        log.warning("task %r cannot run here: %s", resolved.plan.task.name, error)
        raise PlanRefused("its task cannot run here") from None  # why, its own log says
    if not fits:
        log.warning("task %r has %d parameters here", resolved.plan.task.name, task.dimension)
        raise PlanRefused(f"its task has other parameters than the {resolved.dimension} that the plan says")
    return task, due


@final
class Enrolled:
    """A run that a site's process works for, with the task that it has made and the last reply that it gave.

    For secure rounds: ``masking`` holds the session that is open, ``peers`` the ledgers by which this run knows the
    others, ``charges`` what the last masked vector cost.
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

    def first(self) -> None:
        """Once its data is paid for: hold it to its schema, and try the task on records of the real shape.

        Nobody could look at them before. What does not pass is looked at again before the next round.
        """
        if self._check is not None:
            self._check()
            self._check = None
        if self._due:
            rehearse(self.task, self.resolved, self._party)
            self._due = False
