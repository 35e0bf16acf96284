"""What one run has paid, read from its own entries, up to any point of the ledger.

A checkpoint or a report must be able to say what a run had cost *then*. :class:`RunHistory` reads the run's entries in
order, remembers where it is, and goes on from there; it needs the ledger's entries and nothing else.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, final

from quietsum.errors import LedgerBroken, QuietsumError
from quietsum.ledger.chain.entries import RESTORE, Kind
from quietsum.ledger.charges import Charge, Terms
from quietsum.ledger.pricing import FIRST, CostTally, Prices
from quietsum.privacy import Guarantee, Observer, PrivacyEvent, PrivacyUnit

if TYPE_CHECKING:
    from quietsum.ledger.accounts import RunState
    from quietsum.ledger.chain.export import ExportedLedger
    from quietsum.ledger.ledger import Ledger

__all__ = ["LedgerIdentity", "RunHistory", "RunSummary", "summarize"]

Account = tuple[str, PrivacyUnit]


@final
class RunHistory:
    """The charges of one run in the order of the ledger. Reservations count whether committed or not."""

    def __init__(self, ledger: Ledger | ExportedLedger, run: str) -> None:
        entry = next((known.sequence for known in ledger.runs() if known.run == run), None)
        if entry is None:
            raise QuietsumError(f"run {run!r} is not in the ledger; is this its workspace?")
        self.run = run
        self._ledger: Any = ledger
        self._next, self._prices = entry, Prices()
        self._first = Prices(version=FIRST)
        self._terms = Terms()
        self._tallies: dict[Account, CostTally] = {}
        self._gross: dict[Account, CostTally] = {}
        self._observers: dict[Account, tuple[Observer, ...]] = {}
        self._reserved: dict[int, tuple[Charge, ...]] = {}
        self._committed: list[tuple[int, dict[Account, CostTally]]] = []
        self.released = ""
        """The time of the newest commit, as the ledger has it; empty before the first."""

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
                self.released = entry.time if entry.kind is Kind.COMMIT else self.released
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
                    self._observers[charge.party, charge.unit] = charge.observers
                    for tallies in (self._tallies, self._gross):
                        tallies.setdefault((charge.party, charge.unit), CostTally()).add(
                            self._ledger.cost(self.run, charge)
                        )
            case Kind.REFUND:
                for charge in self._reserved[body["reserve"]]:  # type: ignore[index]
                    if charge.party == body["party"] and charge.unit is not PrivacyUnit.CLIENT:
                        self._tallies[charge.party, charge.unit].add(self._ledger.cost(self.run, charge), -1)
            case Kind.COMMIT:
                self._reserved.pop(body["reserve"], None)  # type: ignore[call-overload]
                now = {account: tally.copy() for account, tally in self._gross.items()}
                self._committed.append((int(str(body["round"])), now))

    @property
    def paid(self) -> dict[Account, dict[PrivacyEvent, int]]:
        """For each party and unit, how often each event was charged."""
        return {account: dict(tally.leaves) for account, tally in self._tallies.items()}

    @property
    def charged(self) -> dict[Account, dict[PrivacyEvent, int]]:
        """The same as if no party had refused: what may leave the operator's hands (rule 5)."""
        return {account: dict(tally.leaves) for account, tally in self._gross.items()}

    def by_round(self, unit: PrivacyUnit = PrivacyUnit.RECORD) -> list[tuple[int, float]]:
        """(round, ε per ``unit`` of the worst party) after each commit, as if no party had refused.

        Refunds are left out on purpose: this goes into reports, and a smaller ε would tell who took part (rule 5).
        """
        return [(number, self._worst(tallies, unit)) for number, tallies in self._committed]

    def list_charges_by_round(self, unit: PrivacyUnit) -> list[tuple[int, float, CostTally]]:
        """As :meth:`by_round`, with what the worst party was charged by then; rounds without a charge are left out."""
        found = []
        for number, tallies in self._committed:
            priced = [
                (self._price(tally, unit).epsilon, tally) for account, tally in tallies.items() if account[1] is unit
            ]
            if priced:
                found.append((number, *max(priced, key=lambda one: one[0])))
        return found

    def epsilon(self, unit: PrivacyUnit, *, as_stated_at: int | None = None, refunds: bool = True) -> float:
        """ε of the worst party at the plan's own δ, with ``refunds`` or as if there were none; 0 without a charge.

        ``as_stated_at`` is an entry: ε is that of the prices by which this run went then.
        """
        prices = self._prices
        if as_stated_at is not None and self._ledger.pricing_of(self.run) == FIRST:
            corrected = self._ledger.corrections()[1]
            if corrected is None or as_stated_at < corrected:
                prices = self._first
        return self._worst(self._tallies if refunds else self._gross, unit, prices)

    def gross_spending(self) -> tuple[Guarantee, ...]:
        """ε per unit and observer of the worst party, as if no party had refused; otherwise as :meth:`Ledger.spending`.

        Guarantees: a refund changes nothing in it, so that its size does not tell who took part (rule 5).
        """
        found = []
        for unit in PrivacyUnit:
            same = {(self._observers[one], tally.key()): tally for one, tally in self._gross.items() if one[1] is unit}
            priced = [(observers, self._price(tally, unit)) for (observers, _), tally in same.items()]
            for observer in Observer:
                if any(observer in observers for observers, _ in priced):
                    seen = [one if observer in observers else _without(one) for observers, one in priced]
                    worst = max(seen, key=lambda one: one.epsilon)
                    found.append(dataclasses.replace(worst, observer=observer))
        return tuple(found)

    def _price(self, tally: CostTally, unit: PrivacyUnit, prices: Prices | None = None) -> Guarantee:
        terms, limit = self._terms, self._terms.limit(unit)
        if limit is not None:
            return (prices or self._prices).guarantee(
                tally.key(), terms.accounting, terms.neighbours, unit, limit.delta
            )
        return Guarantee(  # style none: there is no δ to ask at
            epsilon=math.inf, epsilon_lower=math.inf, delta=0.0, unit=unit, neighbours=terms.neighbours,
            method="a release without protection",
        )  # fmt: skip

    def _worst(self, tallies: Mapping[Account, CostTally], unit: PrivacyUnit, prices: Prices | None = None) -> float:
        found = [self._price(tally, unit, prices).epsilon for account, tally in tallies.items() if account[1] is unit]
        return max(found, default=0.0)


def _without(one: Guarantee) -> Guarantee:
    return dataclasses.replace(one, epsilon=math.inf, method="not protected against it")


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class LedgerIdentity:
    """Who a ledger is: its name, which is derived from its public key, and the key in hexadecimal."""

    ledger: str
    public_key: str


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class RunSummary:
    """A run in a few numbers; ``sequence`` is the entry that opened it, ``pricing`` the version of its prices then."""

    run: str
    sequence: int
    plan_hash: str
    rounds: int
    attempts: int
    committed: int
    refunds: int
    datasets: tuple[tuple[str, str], ...]
    pricing: int


def summarize(name: str, run: RunState) -> RunSummary:
    """The numbers of one run."""
    return RunSummary(
        run=name,
        sequence=run.entry,
        plan_hash=run.plan_hash,
        rounds=len(run.attempts),
        attempts=len(run.reserved),
        committed=run.committed,
        refunds=run.refunds,
        datasets=tuple(sorted(run.datasets.items())),
        pricing=run.pricing,
    )
