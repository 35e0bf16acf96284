"""What a ledger says, entry by entry: one set of rules for writing, following and verifying.

:class:`State` takes entries in, in order, and lets :class:`~quietsum.ledger.accounts.Accounts` judge them. The ledger
follows other writers with it, and :mod:`quietsum.ledger.verify` replays everything through an empty one. Rules of order
are checked on every entry; ε and budgets, which cost time, when ``prices`` are given.
"""

from __future__ import annotations

import functools
import marshal
from collections.abc import Mapping
from typing import Any, final

from quietsum.errors import InvalidParameter, LedgerBroken, QuietsumError
from quietsum.ledger.accounts import Accounts, Reservation, RunState, check_raise, check_reason, rounds_of
from quietsum.ledger.books import Share
from quietsum.ledger.charges import Charge, Dataset, Terms, budget_from
from quietsum.ledger.encoding import canonical, digest, read_number
from quietsum.ledger.entries import NOTHING, RESTORE, Entry, Kind
from quietsum.ledger.keys import VerifyingKey
from quietsum.ledger.spending import Cost, Prices, Tally, cost_of

__all__ = ["FORMAT", "State"]

FORMAT = 1
TOLERANCE = 1e-9
REMEMBERED = 4096


@final
class State:
    """Everything that the entries so far say."""

    def __init__(self, prices: Prices | None = None, *, redacted: bool = False) -> None:
        self.sequence, self.hash = 0, NOTHING
        self.ledger, self.key = "", None  # type: tuple[str, VerifyingKey | None]
        self.accounts = Accounts()
        self.stated = 0
        self.withheld = 0
        self._prices = prices
        self._redacted = redacted
        self._known: dict[bytes, tuple[tuple[Charge, Cost], ...]] = {}

    # ----------------------------------------------------------------------------------------- following

    def apply(self, entry: Entry) -> None:
        """Take the next entry in; LedgerBroken where it breaks a rule."""
        try:
            if (entry.kind is Kind.GENESIS) != (entry.sequence == 1):
                raise InvalidParameter("kind", entry.kind.value, "stands at the wrong place")
            getattr(self, f"_{entry.kind.value}")(entry, entry.body)
        except LedgerBroken:
            raise
        except QuietsumError as error:
            raise LedgerBroken(f"({entry.kind}) breaks a rule: {error}", at=entry.sequence, remedy=RESTORE) from None
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
            raise LedgerBroken(f"({entry.kind}) cannot be read: {error!r}", at=entry.sequence, remedy=RESTORE) from None
        self.sequence, self.hash = entry.sequence, entry.hash

    def skip(self, entry: Entry) -> None:
        """Pass over an entry whose body was withheld from an export."""
        if entry.kind not in (Kind.REFUND, Kind.COMMIT):
            raise LedgerBroken(f"({entry.kind}) has no body", at=entry.sequence, remedy="export the ledger again")
        self.withheld += 1
        self.sequence, self.hash = entry.sequence, entry.hash

    def _genesis(self, entry: Entry, body: Mapping[str, Any]) -> None:
        key = VerifyingKey(bytes.fromhex(body["public_key"]))
        if body["format"] != FORMAT:
            raise InvalidParameter("format", body["format"], "is unknown", "use the quietsum that wrote it")
        if body["ledger"] != key.ledger:
            raise InvalidParameter("ledger", body["ledger"], "is not the name that belongs to its public key")
        self.ledger, self.key = key.ledger, key

    def _budget(self, entry: Entry, body: Mapping[str, Any]) -> None:
        budget = budget_from(body)
        book = self.accounts.book(body["party"], body["dataset"], budget.unit)
        check_raise(book, budget.epsilon, budget.delta, str(body["reason"]))
        book.budget = budget

    def _public(self, entry: Entry, body: Mapping[str, Any]) -> None:
        self.accounts.public[body["party"], body["dataset"]] = check_reason(body["reason"])

    def _run(self, entry: Entry, body: Mapping[str, Any]) -> None:
        terms = Terms.from_dict(body["terms"])
        planned = self._charges(body["planned"])
        datasets = tuple(Dataset(**values) for values in body["datasets"])
        if body["plan_hash"] != digest(canonical(body["plan"])):
            raise InvalidParameter("plan_hash", body["plan_hash"], "is not the hash of the plan")
        self.accounts.check_run(body["run"], terms, [charge for charge, _ in planned], datasets)
        if self._prices is not None and not self._blind:
            self.accounts.check_plan(body["run"], terms, planned, self._prices, rounds_of(body["plan"]))
        run = RunState(entry.sequence, body["plan_hash"], terms, {d.party: d.dataset for d in datasets})
        for charge, cost in planned:
            run.shares[charge.party, charge.unit] = Share(_planned(cost), terms, charge.observers)
            self.accounts.book(charge.party, charge.dataset, charge.unit).plans += 1
        self.accounts.runs[body["run"]] = run

    def _reserve(self, entry: Entry, body: Mapping[str, Any]) -> None:
        found = self._charges(body["charges"])
        run = self.accounts.check_reserve(body["run"], body["round"], body["attempt"], [charge for charge, _ in found])
        if self._prices is not None and not self._blind:
            self.accounts.check_budgets(body["run"], found, self._prices)
        run.attempts[body["round"]] = body["attempt"]
        run.open[body["round"], body["attempt"]] = Reservation(entry.sequence, tuple(charge for charge, _ in found))
        for charge, cost in found:
            share = run.shares[charge.party, charge.unit]
            self.accounts.book(charge.party, charge.dataset, charge.unit).charge(body["run"], share, cost)

    def _refund(self, entry: Entry, body: Mapping[str, Any]) -> None:
        run, reservation = self.accounts.check_open(body["run"], body["round"], body["attempt"], body["reserve"])
        for charge in self.accounts.check_refund(reservation, body["party"], body["reason"]):
            share = run.shares[charge.party, charge.unit]
            self.accounts.book(charge.party, charge.dataset, charge.unit).refund(body["run"], share, cost_of(charge))
        reservation.refunded += (body["party"],)
        run.refunds += 1

    def _commit(self, entry: Entry, body: Mapping[str, Any]) -> None:
        run, _ = self.accounts.check_open(body["run"], body["round"], body["attempt"], body["reserve"])
        if bool(body["operator_only"]) != bool(run.refunds):
            raise InvalidParameter("operator_only", body["operator_only"], "does not match the run's refunds")
        if self._prices is not None:
            stated = {(line["party"], line["unit"]): line for line in body["spent"]}
            found = {(line["party"], line["unit"]): line for line in self.accounts.spent_lines(run, self._prices)}
            if stated.keys() != found.keys():
                raise InvalidParameter("spent", sorted(stated), "are not the accounts of this run")
            for account, line in found.items():
                if not _same(line, stated[account]):
                    party, unit = account
                    raise LedgerBroken(
                        f"states ε = {stated[account]['epsilon']} per {unit} for {party!r}, its charges cost "
                        f"{line['epsilon']} at δ = {line['delta']}",
                        at=entry.sequence,
                        remedy=RESTORE,
                    )
                self.stated += 1
        del run.open[body["round"], body["attempt"]]
        run.committed += 1

    def _charges(self, values: Any) -> tuple[tuple[Charge, Cost], ...]:
        """Charges and costs; the rounds of a run charge the same, so they are read once."""
        key = marshal.dumps(values, 2)  # a quick fingerprint of plain values, within this process only
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= REMEMBERED:
                self._known.clear()
            charges = tuple(Charge.from_dict(line) for line in values)
            found = self._known[key] = tuple((charge, cost_of(charge)) for charge in charges)
        return found

    @property
    def _blind(self) -> bool:
        """In an export with refunds withheld nobody can tell what was left of a budget."""
        return self._redacted and self.withheld > 0


@functools.lru_cache(maxsize=1 << 12)
def _planned(cost: Cost) -> Tally:
    """One tally for all runs with the same plan; it is only read."""
    return Tally([cost])


def _same(found: Mapping[str, Any], stated: Mapping[str, Any]) -> bool:
    ours, theirs = read_number(found["epsilon"]), read_number(stated["epsilon"])
    return found["delta"] == stated["delta"] and (ours == theirs or abs(ours - theirs) <= TOLERANCE * abs(ours))
