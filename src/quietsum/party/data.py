"""A site's data held to its operator's schema, before a run trains on it; what leaves does not tell how that went.

Whether protected rows pass is a fact about them, and a refusal would be a message (rules 7 and 17). So at a site that
takes part the check is a part of the paid work: after the charge, before the first training of a run. Where rows do not
fit, the site's log says which checks failed in which columns, and what leaves is the plan's steps on no rows, with the
same keys, sizes and charges as any update. Only before a site has enrolled anywhere may it stay away for its rows'
sake, which is its operator's decision: ``on_failure = "refuse"``.

``on_failure = "drop"`` leaves out the rows that do not fit by themselves, each by its own values and the schema's
constants. Then one broken record moves what leaves by no more than any other record, within its own ε.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, final

import numpy as np
from numpy.typing import NDArray

from quietsum.errors import DataUnfit, InvalidParameter, PlanRefused
from quietsum.ledger import Kind
from quietsum.tasks import AnyTask, Task

if TYPE_CHECKING:
    from quietsum.defence import Result
    from quietsum.ledger import Ledger
    from quietsum.party.policy import Policy

__all__ = ["SHOWS", "DataCheck", "is_awaited"]

log = logging.getLogger(__name__)

SHOWS = "quietsum data check --policy"
"""The command by which a site's operator sees lines and columns."""


@final
class DataCheck:
    """The check that a policy names; its schema is read when it is made.

    Guarantees: nothing is counted or kept between calls, and nothing that is raised or shown holds a value of a row.
    """

    def __init__(self, policy: Policy) -> None:
        from quietsum.defence import load_schema

        assert policy.data is not None
        self.rules = policy.data
        self.schema = load_schema(policy.path(self.rules.schema))
        self._table = policy.path(self.rules.table) if self.rules.table else None
        self._as_they_are = dataclasses.replace(self.schema, cleaning=())  # a task shows what it trains on

    def look(self, task: AnyTask | None, party: str) -> Result:
        """What does not fit, for the operator's eyes: in the file that the policy names, or in the task's rows."""
        from quietsum.defence import extract_rows, read_table, validate

        if self._table is None:
            if task is None:
                raise InvalidParameter("task", task, "is missing, and the policy names no table", "pass the task")
            return validate(extract_rows(task, party), self._as_they_are)
        try:
            return validate(read_table(self._table, self.schema), self.schema)
        except InvalidParameter as problem:  # about the file, which is not there or no table
            raise DataUnfit(str(problem)) from None

    @property
    def drops(self) -> bool:
        """Whether rows are left out one by one."""
        return self.rules.on_failure == "drop"

    def fits(self, rows: Any) -> NDArray[np.bool_]:
        """Which of a task's rows fit by themselves; each by its own values alone."""
        from quietsum.defence import fitting

        return fitting(rows, self._as_they_are)

    def check_task(self, task: Task) -> None:
        """Raise :class:`~quietsum.errors.PlanRefused` if rows should be left out and ``task`` cannot; reads no row."""
        if self.drops and not task.leaves_out:
            log.warning(
                "task %r trains by code of its own and cannot leave rows out; say another on_failure", task.name
            )
            raise PlanRefused("its task cannot run here")

    def before_training(self, task: Task, party: str, tell: Callable[[str], None]) -> None:
        """:class:`~quietsum.errors.DataUnfit` where rows do not fit; ``tell`` hears of it instead where they train."""
        found = self.look(task, party)
        match self.rules.on_failure:
            case "warn":
                if not found.ok:
                    tell(f"trained on all the same: {found.summary}")
            case "drop":
                self._leave_out(task, found, tell)
            case _:
                found.require(SHOWS)

    def _leave_out(self, task: Task, found: Result, tell: Callable[[str], None]) -> None:
        """Train on what fits, row by row. What compares rows is shown and decides nothing; a column that is not there
        leaves no row that could fit."""
        from quietsum.defence import ROW_BY_ROW

        if any(problem.check not in {*ROW_BY_ROW, "rows", "keys", "duplicates", "balance", "outliers"}
               for problem in found.errors):  # fmt: skip
            found.require(SHOWS)
        task.leave_out(self.fits)
        if not found.ok:
            tell(f"rows that do not fit by themselves are left out: {found.summary}")


def is_awaited(ledger: Ledger) -> bool:
    """Whether a run that this site has enrolled in may still ask it: for its last round, spare attempts included."""
    for entry in ledger.entries():
        if entry.kind is Kind.RUN:
            stated = entry.body["plan"].get("federation", {})
            rounds, spare = stated.get("rounds", 0), stated.get("spare_attempts", 0)
            if ledger.next_attempt(str(entry.body["run"]), rounds) <= 1 + spare:
                return True
    return False
