"""Old books stay good: prices have a version, and a correction is a new entry.

A price that turns out too low is put right in a new version of the prices. What was written before is not rewritten:

* A ``run`` entry says by which version it was priced (``pricing``; none means the first). What stands before the
  first entry of a newer version is verified by the older rules, to the digit.
* The first charge by newer rules on a ledger with runs that they price differently writes one ``correction``: for each
  account of those runs ε as it was stated and ε as it is. It is chained and signed like any entry, and both figures
  are computed again by each reader who verifies.
* From there on limits and lifetimes go by the new figures. Where one is exceeded, the next charge is refused.
* A command that only reads writes nothing: the new figures are computed and shown with those of before.

The first version priced a record of a person whose records were bounded as if no other record could come in
(:class:`~quietsum.privacy.events.OneInOneOut`), and each of several fixed-size batches as the worst single one
(:class:`~quietsum.privacy.old_rules.SingleBatch`). How an old run tells that its people were bounded: it charges people
beside records, or its plan is a training with ``max_records``.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, final

from quietsum.errors import InvalidParameter, LedgerBroken, UnsupportedEvent
from quietsum.ledger.chain.encoding import read_number, write_number
from quietsum.ledger.chain.entries import UPGRADE
from quietsum.ledger.charges import Charge
from quietsum.ledger.pricing import FIRST, PRICING, CostTally, Prices, as_priced_first
from quietsum.privacy import Neighbours, OneInOneOut, PrivacyUnit, reduce_event

if TYPE_CHECKING:
    from quietsum.ledger.accounts import Account, Accounts, RunState

__all__ = ["Correction", "corrections_due", "is_due", "list_bounded_parties", "reads_differently", "version_of"]

_CLOSE = 1e-9


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Correction:
    """ε of what a run had charged to one account: as older rules stated it, and as it is."""

    run: str
    party: str
    dataset: str
    unit: PrivacyUnit
    delta: float
    before: float
    after: float

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON-ready values that :meth:`from_dict` reads back."""
        values = dataclasses.asdict(self)
        return {
            **values,
            "unit": self.unit.value,
            "before": write_number(self.before),
            "after": write_number(self.after),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Correction:
        """The correction that :meth:`to_dict` wrote."""
        figures = {name: read_number(values[name]) for name in ("before", "after")}
        return cls(**{**values, **figures, "unit": PrivacyUnit(values["unit"])})

    def agrees(self, other: Correction) -> bool:
        """The same account, and figures as close as two ways to add up."""
        named = dataclasses.replace(other, before=self.before, after=self.after) == self
        return named and _close(self.before, other.before) and _close(self.after, other.after)


def version_of(body: Mapping[str, Any], at: int) -> int:
    """By which version an entry was priced; LedgerBroken, with what to do, for one of the future."""
    version = body.get("pricing", FIRST)
    if type(version) is not int or ("pricing" in body and version <= FIRST):
        raise InvalidParameter("pricing", version, "is no version of prices that an entry states")
    if version > PRICING:
        raise LedgerBroken(
            f"is priced by version {version} of the rules, and this quietsum knows {PRICING}", at=at, remedy=UPGRADE
        )
    return version


def list_bounded_parties(plan: Mapping[str, Any], planned: Iterable[Charge]) -> frozenset[str]:
    """The parties of a run of the first version whose people's records were bounded."""
    charges = tuple(planned)
    for charge in charges:
        if charge.event is not None and any(isinstance(leaf, OneInOneOut) for leaf in _leaves(charge)):
            raise InvalidParameter("event", charge.event, "was not known to the version that priced this entry")
    training = plan.get("training")
    if isinstance(training, Mapping) and training.get("max_records") is not None:
        return frozenset(charge.party for charge in charges)
    return frozenset(charge.party for charge in charges if charge.unit is PrivacyUnit.PERSON)


def _leaves(charge: Charge) -> Iterable[object]:
    from quietsum.ledger.pricing import cost_of

    return (event for event, _ in cost_of(charge).leaves)


def reads_differently(planned: CostTally) -> bool:
    """Whether older rules priced something of this as something else."""
    return any(as_priced_first(event) != event for event in planned.leaves)


def is_due(accounts: Accounts, prices: Prices, first: Prices) -> bool:
    """Whether some run of older rules has a price that newer ones change, and no correction says so yet."""
    if accounts.corrected_at is not None:
        return False
    return any(_differs(accounts.runs[run], account, prices, first) for run, account in accounts.repriced)


def _differs(run: RunState, account: Account, prices: Prices, first: Prices) -> bool:
    """By the pairs of single events, which lifetimes go by, or by ε of the whole plan."""
    planned, terms = run.shares[account].planned, run.terms
    if any(_pairs(event, terms.neighbours) != _pairs(as_priced_first(event), terms.neighbours)
           for event in planned.leaves):  # fmt: skip
        return True
    limit = terms.limit(account[1])
    if limit is None:
        return False
    key, asked = planned.key(), (terms.accounting, terms.neighbours, account[1], limit.delta)
    return not _close(prices.upper(key, *asked).epsilon, first.upper(key, *asked).epsilon)


@functools.lru_cache(maxsize=1 << 12)
def _pairs(event: Any, neighbours: Neighbours) -> object:
    try:
        return sorted(map(repr, reduce_event(event, neighbours, 1)))
    except UnsupportedEvent:
        return None


def corrections_due(accounts: Accounts, prices: Prices, first: Prices) -> tuple[Correction, ...]:
    """What a correction now states: a line for each account whose ε changes by what was charged so far."""
    found = []
    for name, account in sorted(accounts.repriced):
        run = accounts.runs[name]
        (party, unit), limit, tally = account, run.terms.limit(account[1]), run.shares[account].tally
        if limit is None or not tally.leaves:
            continue
        asked = (run.terms.accounting, run.terms.neighbours, unit, limit.delta)
        before, after = (one.upper(tally.key(), *asked).epsilon for one in (first, prices))
        if not _close(before, after):
            found.append(
                Correction(
                    run=name, party=party, dataset=run.datasets[party], unit=unit, delta=limit.delta,
                    before=before, after=after,
                )
            )  # fmt: skip
    return tuple(found)


def _close(one: float, other: float) -> bool:
    return one == other or (math.isfinite(one - other) and abs(one - other) <= _CLOSE * max(abs(one), abs(other)))
