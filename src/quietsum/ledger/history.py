"""What one run has paid, read from its own entries, up to any point of the ledger.

A checkpoint or a report must be able to say what a run had cost *then*. :class:`RunHistory` reads the run's entries in
order, remembers where it is, and goes on from there; it needs the ledger's entries and nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import final

from quietsum.errors import LedgerBroken, QuietsumError
from quietsum.ledger.charges import Charge, Terms
from quietsum.ledger.entries import RESTORE, Kind
from quietsum.ledger.ledger import Ledger
from quietsum.ledger.spending import Prices, Tally, cost_of
from quietsum.privacy.events import PrivacyEvent
from quietsum.privacy.units import PrivacyUnit

__all__ = ["RunHistory"]

Account = tuple[str, PrivacyUnit]


@final
class RunHistory:
    """The charges of one run in the order of the ledger. Reservations count whether committed or not."""

    def __init__(self, ledger: Ledger, run: str) -> None:
        entry = next((known.sequence for known in ledger.runs() if known.run == run), None)
        if entry is None:
            raise QuietsumError(f"run {run!r} is not in the ledger; is this its workspace?")
        self.run = run
        self._ledger, self._next, self._prices = ledger, entry, Prices()
        self._terms = Terms()
        self._tallies: dict[Account, Tally] = {}
        self._gross: dict[Account, Tally] = {}
        self._reserved: dict[int, tuple[Charge, ...]] = {}
        self._committed: list[tuple[int, dict[Account, Tally]]] = []

    def read(self, until: int | None = None) -> RunHistory:
        """Take in the entries from where this left off, up to and including entry ``until``; returns itself."""
        for entry in self._ledger.entries(self._next):
            if until is not None and entry.sequence > until:
                break
            self._next = entry.sequence + 1
            if entry.body.get("run") != self.run:
                continue
            try:
                self._take(entry.sequence, entry.kind, entry.body)
            except (LookupError, TypeError, ValueError) as error:
                raise LedgerBroken(f"cannot be read: {error!r}", at=entry.sequence, remedy=RESTORE) from None
        return self

    def _take(self, sequence: int, kind: Kind, body: Mapping[str, object]) -> None:
        match kind:
            case Kind.RUN:
                self._terms = Terms.from_dict(body["terms"])  # type: ignore[arg-type]
            case Kind.RESERVE:
                charges = tuple(Charge.from_dict(values) for values in body["charges"])  # type: ignore[attr-defined]
                self._reserved[sequence] = charges
                for charge in charges:
                    for tallies in (self._tallies, self._gross):
                        tallies.setdefault((charge.party, charge.unit), Tally()).add(cost_of(charge))
            case Kind.REFUND:
                for charge in self._reserved[body["reserve"]]:  # type: ignore[index]
                    if charge.party == body["party"] and charge.unit is not PrivacyUnit.CLIENT:
                        self._tallies[charge.party, charge.unit].add(cost_of(charge), -1)
            case Kind.COMMIT:
                self._reserved.pop(body["reserve"], None)  # type: ignore[call-overload]
                now = {account: tally.copy() for account, tally in self._gross.items()}
                self._committed.append((int(str(body["round"])), now))

    @property
    def paid(self) -> dict[Account, dict[PrivacyEvent, int]]:
        """For each party and unit, how often each event was charged."""
        return {account: dict(tally.leaves) for account, tally in self._tallies.items()}

    def by_round(self, unit: PrivacyUnit = PrivacyUnit.RECORD) -> list[tuple[int, float]]:
        """(round, ε per ``unit`` of the worst party) after each commit, as if nobody had refused.

        Refunds are left out on purpose: this goes into reports, and a smaller ε would tell who took part (rule 5).
        """
        return [(number, self._worst(tallies, unit)) for number, tallies in self._committed]

    def epsilon(self, unit: PrivacyUnit) -> float:
        """ε of the worst party at the plan's own δ, refunds counted; 0 where nothing was charged."""
        return self._worst(self._tallies, unit)

    def _worst(self, tallies: Mapping[Account, Tally], unit: PrivacyUnit) -> float:
        limit = self._terms.limit(unit)
        if limit is None:  # style none: charged without protection
            return math.inf if any(account[1] is unit for account in tallies) else 0.0
        found = [
            self._prices.guarantee(
                tally.key(), self._terms.accounting, self._terms.neighbours, unit, limit.delta
            ).epsilon
            for account, tally in tallies.items()
            if account[1] is unit
        ]
        return max(found, default=0.0)
