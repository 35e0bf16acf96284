"""A site's data held to its operator's schema, before a run trains on it; what leaves does not tell how that went.

Whether protected rows pass is a fact about them, and a refusal would be a message (rules 7 and 17). So at a site that
takes part the check is a part of the paid work: after the charge, before the first training of a run. Where rows do not
fit, the site's log says which checks failed in which columns, and what leaves is the plan's steps on no rows, with the
same keys, sizes and charges as any update. Only before a site has enrolled anywhere may it stay away for its rows'
sake, which is its operator's decision: ``on_failure = "refuse"``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, final

from quietsum.errors import DataUnfit, InvalidParameter
from quietsum.ledger.entries import Kind

if TYPE_CHECKING:
    from quietsum.defence.validation import Result
    from quietsum.ledger import Ledger
    from quietsum.party.policy import Policy

__all__ = ["DataCheck", "waited_for"]


@final
class DataCheck:
    """The check that a policy names; its schema is read when it is made.

    Guarantees: nothing is counted or kept between calls, and nothing that is raised or told holds a value of a row.
    """

    def __init__(self, policy: Policy) -> None:
        from quietsum.defence.validation import load_schema

        assert policy.data is not None
        self.rules = policy.data
        self.schema = load_schema(policy.path(self.rules.schema))
        self._table = policy.path(self.rules.table) if self.rules.table else None

    def look(self, task: object, party: str) -> Result:
        """What does not fit, for the operator's eyes: in the file that the policy names, or in the task's rows."""
        from quietsum.defence.validation import read_table, validate
        from quietsum.defence.validation.tasks import rows_of

        if self._table is None:
            return validate(rows_of(task, party), self.schema)
        try:
            return validate(read_table(self._table, self.schema), self.schema)
        except InvalidParameter as problem:  # about the file, which is not there or no table
            raise DataUnfit(str(problem)) from None

    def before_training(self, task: object, party: str, tell: Callable[[str], None]) -> None:
        """:class:`~quietsum.errors.DataUnfit` where rows do not fit; ``tell`` hears of it instead where they train."""
        found = self.look(task, party)
        if self.rules.on_failure != "warn":
            found.require()
        elif not found.ok:
            tell(found.summary)


def waited_for(ledger: Ledger) -> bool:
    """Whether a run that this site has enrolled in may still ask it: the last round was not asked for yet."""
    for entry in ledger.entries():
        if entry.kind is Kind.RUN:
            rounds = entry.body["plan"].get("federation", {}).get("rounds", 0)
            if ledger.next_attempt(str(entry.body["run"]), rounds) == 1:
                return True
    return False
