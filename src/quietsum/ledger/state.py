"""What a ledger says, entry by entry: one set of rules for writing, following and verifying.

:class:`State` takes entries in, in order, and lets :class:`~quietsum.ledger.accounts.Accounts` judge them. The ledger
follows other writers with it, and :mod:`quietsum.ledger.chain.verify` replays everything through an empty one. Rules of
order are checked on every entry; ε and budgets, which cost time, when ``prices`` are given.
"""

from __future__ import annotations

import functools
import marshal
import math
from collections.abc import Mapping, Sequence
from typing import Any, final

from quietsum.errors import InvalidParameter, LedgerBroken, QuietsumError
from quietsum.ledger.accounts import Accounts, Reservation, RunState, check_raise, check_reason, rounds_of
from quietsum.ledger.books import Share
from quietsum.ledger.chain.encoding import canonical, digest, encode_plain, head_message, label, read_number
from quietsum.ledger.chain.entries import NOTHING, RESTORE, Entry, Kind
from quietsum.ledger.chain.keys import VerifyingKey
from quietsum.ledger.chain.witnesses import heads_from, heads_to
from quietsum.ledger.charges import Charge, Dataset, Terms, budget_from, budget_to
from quietsum.ledger.pricing import FIRST, Cost, CostTally, Prices, cost_of
from quietsum.ledger.versions import (
    Correction,
    corrections_due,
    is_due,
    list_bounded_parties,
    reads_differently,
    version_of,
)

__all__ = ["BLIND", "FORMAT", "State"]

FORMAT = 1
BLIND = 16
"""Bytes of chance in a body that exports withhold, so that its hash tells nothing."""
TOLERANCE = 1e-9
REMEMBERED = 4096
_KEYS: Mapping[Kind, frozenset[str]] = {
    Kind.GENESIS: frozenset({"format", "ledger", "public_key"}),
    Kind.RUN: frozenset({"run", "plan", "plan_hash", "terms", "datasets", "planned"}),
    Kind.BUDGET: frozenset({"party", "dataset", "unit", "epsilon", "delta", "reason"}),
    Kind.PUBLIC: frozenset({"party", "dataset", "reason"}),
    Kind.RESERVE: frozenset({"run", "round", "attempt", "charges"}),
    Kind.REFUND: frozenset({"run", "round", "attempt", "reserve", "party", "reason", "blind"}),
    Kind.COMMIT: frozenset({"run", "round", "attempt", "reserve", "spent", "operator_only"}),
    Kind.WITNESS: frozenset({"run", "round", "attempt", "heads", "blind"}),
    Kind.CORRECTION: frozenset({"pricing", "corrections", "operator_only"}),
}
_MAY: Mapping[Kind, str] = {Kind.RUN: "pricing"}
"""Keys that entries of later versions have as well."""
_LINE = frozenset({"party", "unit", "epsilon", "delta"})


@final
class State:
    """Everything that the entries so far say."""

    def __init__(self, prices: Prices | None = None, *, redacted: bool = False) -> None:
        self.sequence, self.hash = 0, NOTHING
        self.ledger, self.key = "", None  # type: tuple[str, VerifyingKey | None]
        self.accounts = Accounts()
        self.pricing = FIRST  # the version that the newest entry was priced by
        self.stated = 0
        self.withheld = 0
        self._unseen = False  # whether a refund was withheld
        self._refunded = False  # whether there was a refund, seen or not
        self._pending = 0  # reservations without a commit
        self._prices = prices
        self._first = None if prices is None else Prices(version=FIRST)
        self._redacted = redacted
        self._known: dict[bytes, tuple[tuple[Charge, Cost], ...]] = {}

    # ----------------------------------------------------------------------------------------- following

    def apply(self, entry: Entry) -> None:
        """Take the next entry in; LedgerBroken where it breaks a rule."""
        try:
            if (entry.kind is Kind.GENESIS) != (entry.sequence == 1):
                raise InvalidParameter("kind", entry.kind.value, "stands at the wrong place")
            _require_keys(entry)
            getattr(self, f"_{entry.kind.value}")(entry, entry.body)
        except LedgerBroken:
            raise
        except QuietsumError as error:
            raise LedgerBroken(f"({entry.kind}) breaks a rule: {error}", at=entry.sequence, remedy=RESTORE) from None
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as error:
            raise LedgerBroken(f"({entry.kind}) cannot be read: {error!r}", at=entry.sequence, remedy=RESTORE) from None
        self.sequence, self.hash = entry.sequence, entry.hash

    def require_signature(self, sequence: int, hash: str, signature: str) -> None:
        """The signature is the ledger's own under this head."""
        if not self.has_signature(sequence, hash, signature):
            raise LedgerBroken("is not signed with the ledger's key", at=sequence, remedy=RESTORE)

    def has_signature(self, sequence: int, hash: str, signature: str) -> bool:
        """Whether the ledger's key signed this head."""
        message = head_message(ledger=self.ledger, sequence=sequence, hash=hash)
        return self.key is not None and self.key.accepts(signature, message)

    def skip(self, entry: Entry) -> None:
        """Pass over an entry whose body was withheld from an export."""
        around = entry.kind in (Kind.WITNESS, Kind.CORRECTION)  # these stand outside of attempts
        for broken, problem in (
            (
                entry.kind not in (Kind.REFUND, Kind.COMMIT, Kind.WITNESS, Kind.CORRECTION),
                "has no body",
            ),
            (not around and self._pending < 1, "has no body, and no reservation is open"),
            (
                entry.kind in (Kind.COMMIT, Kind.CORRECTION) and not self._refunded,
                "has no body, and no refund stands before it",
            ),
        ):
            if broken:
                raise LedgerBroken(f"({entry.kind}) {problem}", at=entry.sequence, remedy="export the ledger again")
        if entry.kind is Kind.CORRECTION:
            self._check_version(FIRST + 1, entry.sequence, corrected=True)  # by that version, or by a later one
            self._apply_correction(entry, (), FIRST + 1)
        self.withheld += 1
        self._unseen = self._unseen or entry.kind is Kind.REFUND
        self._refunded = self._refunded or entry.kind is Kind.REFUND
        self._pending -= entry.kind is Kind.COMMIT
        self.sequence, self.hash = entry.sequence, entry.hash

    def _genesis(self, entry: Entry, body: Mapping[str, Any]) -> None:
        key = VerifyingKey(bytes.fromhex(body["public_key"]))
        if body["format"] != FORMAT or type(body["format"]) is not int:
            raise InvalidParameter("format", body["format"], "is unknown", "use the quietsum that wrote it")
        if body["ledger"] != key.ledger or body["public_key"] != key.hex:
            raise InvalidParameter("ledger", body["ledger"], "is not the name that belongs to its public key")
        self.ledger, self.key = key.ledger, key

    def _budget(self, entry: Entry, body: Mapping[str, Any]) -> None:
        place = _label(body, "party"), _label(body, "dataset")
        budget = budget_from(body)
        _require_same("budget", {name: body[name] for name in ("unit", "epsilon", "delta")}, budget_to(budget))
        self.accounts.check_names(*place)
        book = self.accounts.book(*place, budget.unit)
        check_raise(book, budget.epsilon, budget.delta, body["reason"])
        book.budget = budget
        self.accounts.protect(*place)

    def _public(self, entry: Entry, body: Mapping[str, Any]) -> None:
        place = _label(body, "party"), _label(body, "dataset")
        self.accounts.check_names(*place)
        self.accounts.declare(*place, check_reason(body["reason"]))

    def _run(self, entry: Entry, body: Mapping[str, Any]) -> None:
        _label(body, "run")
        pricing = version_of(body, entry.sequence)
        self._check_version(pricing, entry.sequence)
        terms = Terms.from_dict(body["terms"])
        _require_same("terms", body["terms"], terms.to_dict())
        planned = self._charges(body["planned"])
        datasets = tuple(Dataset(**values) for values in body["datasets"])
        _require_same("datasets", body["datasets"], [dataset.to_dict() for dataset in datasets])
        if body["plan_hash"] != digest(canonical(body["plan"])):
            raise InvalidParameter("plan_hash", body["plan_hash"], "is not the hash of the plan")
        charges = [charge for charge, _ in planned]
        self.accounts.check_run(
            body["run"], terms, charges, datasets, refunds_known=not self._blind, pricing=pricing
        )  # fmt: skip
        run = RunState(
            entry.sequence, body["plan_hash"], terms, {d.party: d.dataset for d in datasets}, pricing=pricing,
            bounded=list_bounded_parties(body["plan"], charges) if pricing == FIRST else frozenset(),
        )  # fmt: skip
        planned = self._as_read(run, planned)
        prices = self._prices_of(pricing)
        if prices is not None and not self._blind:
            self.accounts.check_plan(body["run"], terms, planned, prices, rounds_of(body["plan"]))
        self.pricing = pricing
        for dataset in datasets:
            self.accounts.know(dataset.party, dataset.dataset)
        for charge, cost in planned:
            account, tally = (charge.party, charge.unit), _tally_of(cost)
            repriced = pricing == FIRST and reads_differently(tally)
            run.shares[account] = Share(tally, terms, charge.observers, repriced=repriced, pricing=pricing)
            if repriced:
                self.accounts.repriced.append((body["run"], account))
            self.accounts.book(charge.party, charge.dataset, charge.unit).plans += 1
        self.accounts.runs[body["run"]] = run

    def _reserve(self, entry: Entry, body: Mapping[str, Any]) -> None:
        found = self._charges(body["charges"])
        if body["run"] in self.accounts.runs:
            found = self._as_read(self.accounts.runs[body["run"]], found)
        _require_whole(body, "round", "attempt")
        run = self.accounts.check_reserve(
            body["run"], body["round"], body["attempt"], found, refunds_known=not self._blind
        )
        prices = self._prices_of(self.pricing)
        if prices is not None and not self._blind:
            self.accounts.check_budgets(body["run"], found, prices)
        run.attempts[body["round"]] = body["attempt"]
        run.reserved.add((body["round"], body["attempt"]))
        self._pending += 1
        run.open[body["round"], body["attempt"]] = Reservation(entry.sequence, tuple(charge for charge, _ in found))
        for charge, cost in found:
            share = run.shares[charge.party, charge.unit]
            self.accounts.book(charge.party, charge.dataset, charge.unit).charge(body["run"], share, cost)

    def _refund(self, entry: Entry, body: Mapping[str, Any]) -> None:
        _require_whole(body, "round", "attempt", "reserve")
        _require_blind(body)
        run, reservation = self.accounts.check_open(body["run"], body["round"], body["attempt"], body["reserve"])
        for charge in self.accounts.check_refund(reservation, body["party"], body["reason"]):
            share = run.shares[charge.party, charge.unit]
            self.accounts.book(charge.party, charge.dataset, charge.unit).refund(body["run"], share, run.cost(charge))
        reservation.refunded += (body["party"],)
        run.refunds += 1
        self._refunded = True

    def _commit(self, entry: Entry, body: Mapping[str, Any]) -> None:
        _require_whole(body, "round", "attempt", "reserve")
        run, _ = self.accounts.check_open(body["run"], body["round"], body["attempt"], body["reserve"])
        if body["operator_only"] is not bool(run.refunds):
            raise InvalidParameter("operator_only", body["operator_only"], "does not match the run's refunds")
        if body["operator_only"]:
            _require_blind(body)
        prices = self._prices_of(self.pricing)
        if prices is not None:
            found = self.accounts.spent_lines(run, prices)
            if _accounts_of(body["spent"]) != _accounts_of(found):
                raise InvalidParameter("spent", body["spent"], "does not have one line for each account of this run")
            for line, stated in zip(found, body["spent"], strict=True):
                if not _same(line, stated):
                    raise LedgerBroken(
                        f"states ε = {stated['epsilon']} per {line['unit']} for {line['party']!r} at δ = "
                        f"{stated['delta']}, its charges cost {line['epsilon']} at δ = {line['delta']}",
                        at=entry.sequence,
                        remedy=RESTORE,
                    )
                self.stated += 1
        del run.open[body["round"], body["attempt"]]
        run.committed += 1
        self._pending -= 1

    def _witness(self, entry: Entry, body: Mapping[str, Any]) -> None:
        _require_whole(body, "round", "attempt")
        _require_blind(body)
        if body["run"] not in self.accounts.runs:
            raise InvalidParameter("run", body["run"], "is not in the ledger")
        heads = heads_from(body["heads"])
        _require_same("heads", body["heads"], heads_to(heads))
        self.accounts.check_witness(heads)
        self.accounts.witnessed |= heads
        run, attempt = self.accounts.runs[body["run"]], body["attempt"]
        if (
            run.terms.enrolled is not None and body["round"] > 0
        ):  # a site's own: reserved with this, or refused for good
            run.attempts[body["round"]] = max(attempt, run.attempts.get(body["round"], 0))
        elif run.terms.enrolled == ():  # of no round, nor of an enrolment: so many sessions with groups were opened
            run.drawn = max(attempt, run.drawn)

    def _correction(self, entry: Entry, body: Mapping[str, Any]) -> None:
        version = version_of(body, entry.sequence)
        self._check_version(version, entry.sequence, corrected=True)
        stated = tuple(Correction.from_dict(line) for line in body["corrections"])
        _require_same("corrections", body["corrections"], [line.to_dict() for line in stated])
        if body["operator_only"] is not self.accounts.correction_is_private:
            raise InvalidParameter("operator_only", body["operator_only"], "does not match the refunds of its runs")
        if body["operator_only"]:
            _require_blind(body)
        if self._prices is not None and self._first is not None:
            found = corrections_due(self.accounts, self._prices, self._first)
            if len(found) != len(stated) or not all(map(Correction.agrees, found, stated)):
                wrong = next((one for one in found if not any(map(one.agrees, stated))), None)
                told = "corrects what needs no correction" if wrong is None else (
                    f"is wrong about {wrong.party!r} per {wrong.unit} in run {wrong.run!r}: ε was stated as "
                    f"{wrong.before} and is {wrong.after}"
                )  # fmt: skip
                raise LedgerBroken(told, at=entry.sequence, remedy=RESTORE)
            self.stated += len(stated)
        self._apply_correction(entry, stated, version)

    def _apply_correction(self, entry: Entry, lines: tuple[Correction, ...], version: int) -> None:
        self.pricing = version
        self.accounts.corrections, self.accounts.corrected_at = lines, entry.sequence

    def _check_version(self, version: int, at: int, *, corrected: bool = False) -> None:
        """Versions only grow, and the first entry of a new one stands behind the correction where one is due."""
        if version < self.pricing:
            raise LedgerBroken("is priced by older rules than an entry before it", at=at, remedy=RESTORE)
        if corrected and (self.accounts.corrected_at is not None or version == self.pricing):
            raise LedgerBroken("corrects a second time, or what newer rules have priced", at=at, remedy=RESTORE)
        if self._prices is None or self._first is None or version == self.pricing:
            return
        if is_due(self.accounts, self._prices, self._first) is not corrected:
            problem = (
                "corrects nothing" if corrected else "is priced by newer rules, and no correction stands before it"
            )
            raise LedgerBroken(problem, at=at, remedy=RESTORE)

    def _prices_of(self, version: int) -> Prices | None:
        return self._first if version == FIRST else self._prices

    @property
    def computed(self) -> int:
        """How many different histories had to be priced."""
        return sum(prices.computed for prices in (self._prices, self._first) if prices is not None)

    @staticmethod
    def _as_read(run: RunState, found: tuple[tuple[Charge, Cost], ...]) -> tuple[tuple[Charge, Cost], ...]:
        """Charges of a run with what they count as by today's rules."""
        return tuple((charge, run.cost(charge)) for charge, _ in found) if run.bounded else found

    def _charges(self, values: Any) -> tuple[tuple[Charge, Cost], ...]:
        """Charges and costs; the rounds of a run charge the same, so they are read once."""
        key = marshal.dumps(values, 2)  # a quick fingerprint of plain values, within this process only
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= REMEMBERED:
                self._known.clear()
            charges = tuple(Charge.from_dict(line) for line in values)
            _require_same("charges", values, [charge.to_dict() for charge in charges])
            found = self._known[key] = tuple((charge, cost_of(charge)) for charge in charges)
        return found

    @property
    def _blind(self) -> bool:
        """In an export with refunds withheld, what was left of a budget is unknown."""
        return self._redacted and self._unseen


@functools.lru_cache(maxsize=1 << 12)
def _tally_of(cost: Cost) -> CostTally:
    """One tally for all runs with the same plan; it is only read."""
    return CostTally([cost])


def _same(found: Mapping[str, Any], stated: Mapping[str, Any]) -> bool:
    """Equal, or both finite and as close as two ways to add up; written as floats are."""
    if type(stated["delta"]) is not float or not (type(stated["epsilon"]) is float or stated["epsilon"] == "Infinity"):
        return False
    ours, theirs = read_number(found["epsilon"]), read_number(stated["epsilon"])
    if found["delta"] != stated["delta"]:
        return False
    return ours == theirs or (math.isfinite(ours) and abs(ours - theirs) <= TOLERANCE * abs(ours))


def _accounts_of(lines: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Party and unit of each line, where every line has the keys of one."""
    if any(line.keys() != _LINE for line in lines):
        raise InvalidParameter("spent", lines, f"has lines with other keys than {sorted(_LINE)}")
    return [(line["party"], line["unit"]) for line in lines]


def _require_keys(entry: Entry) -> None:
    """Exactly the keys of its kind; a commit that an export withholds has a blind as well."""
    wanted = _KEYS[entry.kind]
    if entry.body.keys() == wanted or (entry.kind in _MAY and entry.body.keys() == wanted | {_MAY[entry.kind]}):
        return
    if (
        entry.kind in (Kind.COMMIT, Kind.CORRECTION)
        and entry.body.get("operator_only") is True
        and entry.body.keys() == wanted | {"blind"}
    ):
        return
    raise InvalidParameter("body", sorted(entry.body), f"are not the keys of its kind: {', '.join(sorted(wanted))}")


def _require_whole(body: Mapping[str, Any], *names: str) -> None:
    for name in names:
        if type(body[name]) is not int or body[name] < 0:
            raise InvalidParameter(name, body[name], "is not a whole number")


def _require_blind(body: Mapping[str, Any]) -> None:
    blind = body["blind"]
    if not isinstance(blind, str) or len(blind) != 2 * BLIND or not set(blind) <= set("0123456789abcdef"):
        raise InvalidParameter("blind", blind, f"is not {2 * BLIND} hexadecimal digits")


def _require_same(name: str, stands: Any, read: Any) -> None:
    """What was read, written again, is what stands there: no other keys, types or spellings."""
    if encode_plain(stands) != encode_plain(read):
        raise InvalidParameter(name, stands, "is not written the way it is read")


def _label(body: Mapping[str, Any], name: str) -> str:
    if label(name, body[name]) != body[name]:
        raise InvalidParameter(name, body[name], "is not written the way names are")
    return str(body[name])
