"""One row of the table, and what rows ask of a plan and its parties."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:  # the plan asks these modules, so at run time they know nothing of the plan
    from quietsum.plan.values import ClientPlan, PartyFacts, Plan, RecordPlan

__all__ = ["RefusalRow", "client_level", "client_of", "largest", "list_some", "name_stated", "record_of", "taking_part"]


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class RefusalRow:
    """One row. ``when`` says what it found in the plan and the parties, "" for nothing."""

    name: str
    when: Callable[[Plan, Sequence[PartyFacts]], str]
    why: str
    instead: str

    def message(self, plan: Plan, parties: Sequence[PartyFacts]) -> str:
        """What was found, why it is refused, what to do instead; "" where the row does not apply."""
        what = self.when(plan, parties)
        return f"{what}: {self.why}; {self.instead}" if what else ""


def taking_part(plan: Plan, parties: Sequence[PartyFacts]) -> tuple[PartyFacts, ...]:
    """The parties that the plan names, in the task's order; all of them where it names none."""
    wanted = set(plan.federation.named)
    return tuple(party for party in parties if not wanted or party.name in wanted)


def record_of(plan: Plan) -> RecordPlan:
    """What is promised to records; the defaults where nothing is."""
    from quietsum.plan.values import RecordPlan

    return plan.privacy.record or RecordPlan()


def client_of(plan: Plan) -> ClientPlan:
    """What is promised to clients; the defaults where nothing is."""
    from quietsum.plan.values import ClientPlan

    return plan.privacy.client or ClientPlan()


def client_level(plan: Plan) -> bool:
    """Whether the style protects clients as a whole."""
    return plan.privacy.style.clients


def largest(plan: Plan, parties: Sequence[PartyFacts]) -> int:
    """The records of the largest account: those of a holder are one data set."""
    sizes: Counter[str] = Counter()
    for party in taking_part(plan, parties):
        sizes[party.account] += party.size
    return max(sizes.values(), default=0)


def name_stated(plan: Plan, names: Iterable[str]) -> str:
    """Which of the keys of ``privacy.record`` are stated, as "privacy.record.epsilon and .delta"."""
    record = record_of(plan)
    found = [name for name in names if getattr(record, name) is not None]
    return " and ".join([f"privacy.record.{found[0]}", *(f".{name}" for name in found[1:])]) if found else ""


def list_some(items: Sequence[str], most: int = 5) -> str:
    """Some of the items in words, and how many more there are."""
    shown = list(items[:most]) + ([f"{len(items) - most} more"] if len(items) > most else [])
    return shown[0] if len(shown) == 1 else ", ".join(shown[:-1]) + f" and {shown[-1]}" if shown else ""
