"""What parties owe: runs, books and open reservations, and the rules that every charge must keep.

:class:`Accounts` is asked before an entry is written, and again when it is read: the same checks, so that what would be
refused today is found in a ledger that somebody else wrote. Each check raises a
:class:`~quietsum.errors.QuietsumError` that says what to do instead, and changes nothing.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, final

from quietsum.errors import BudgetExhausted, CorruptState, InvalidParameter, PlanRefused, PlanUnderstates, QuietsumError
from quietsum.ledger.books import BookState, LifetimeExceeded, Outlook, Share, command_to_raise
from quietsum.ledger.chain.encoding import fold, write_number
from quietsum.ledger.chain.entries import Kind
from quietsum.ledger.chain.witnesses import Testimony, check_succession
from quietsum.ledger.charges import Charge, Dataset, Terms, budget_to, draws_twice
from quietsum.ledger.pricing import FIRST, PRICING, Cost, CostTally, Prices, cost_of, exceeds
from quietsum.ledger.versions import Correction
from quietsum.privacy import Budget, Guarantee, PrivacyUnit

if TYPE_CHECKING:
    from quietsum.ledger.chain.packing import Lazy

__all__ = [
    "Account",
    "Accounts",
    "Reservation",
    "RunState",
    "check_raise",
    "check_reason",
    "entries_before_run",
    "rounds_of",
]

Account = tuple[str, PrivacyUnit]
"""A party and what is protected there."""


@final
class Reservation:
    """Charges that may still be committed or refunded."""

    __slots__ = ("charges", "refunded", "sequence")

    def __init__(self, sequence: int, charges: tuple[Charge, ...]) -> None:
        self.sequence = sequence
        self.charges = charges
        self.refunded: tuple[str, ...] = ()


@final
class RunState:
    """One run while the ledger is read or written."""

    __slots__ = (
        "attempts", "bounded", "committed", "datasets", "drawn", "entry", "open", "plan_hash", "pricing", "refunds",
        "reserved", "shares", "terms",
    )  # fmt: skip

    def __init__(
        self,
        entry: int,
        plan_hash: str,
        terms: Terms,
        datasets: dict[str, str],
        *,
        pricing: int = PRICING,
        bounded: frozenset[str] = frozenset(),
    ) -> None:
        self.entry, self.plan_hash, self.terms, self.datasets = entry, plan_hash, terms, datasets
        self.pricing = pricing  # the version by which it was opened
        self.bounded = bounded  # parties whose records it charges as if no other could come in
        self.shares: dict[Account, Share] = {}
        self.attempts: dict[int, int] = {}  # the last one of each round
        self.reserved: set[tuple[int, int]] = set()
        self.open: dict[tuple[int, int], Reservation] = {}
        self.committed = 0
        self.refunds = 0
        self.drawn = 0  # sessions in which this site let groups be drawn

    def cost(self, charge: Charge) -> Cost:
        """A charge of this run as today's rules read it."""
        return cost_of(charge, bounded=charge.unit is PrivacyUnit.RECORD and charge.party in self.bounded)


@final
class Accounts:
    """All runs, books and declarations."""

    def __init__(self) -> None:
        self.runs: dict[str, RunState] | Lazy[str, RunState] = {}
        self.books: dict[tuple[str, str, PrivacyUnit], BookState] | Lazy[tuple[str, str, PrivacyUnit], BookState] = {}
        self.public: dict[tuple[str, str], str] = {}
        self.witnessed: dict[str, Testimony] = {}  # the newest head of each other ledger
        self.repriced: list[tuple[str, Account]] = []  # of runs by older rules, what those priced differently
        self.corrections: tuple[Correction, ...] = ()
        self.corrected_at: int | None = None  # the entry that states them
        self._names: dict[tuple[str, ...], str] = {}  # how a party, or a dataset of a party, is spelt

    def copy(self) -> Accounts:
        """Accounts in which declarations and budgets can be tried; runs and charges are shared."""
        other = Accounts()
        other.runs, other.books, other.public = self.runs, self.books.copy(), dict(self.public)
        other.witnessed, other.repriced = self.witnessed, self.repriced
        other.corrections, other.corrected_at = self.corrections, self.corrected_at
        other._names = dict(self._names)
        return other

    @property
    def correction_is_private(self) -> bool:
        """Whether figures of a correction would tell who refused a round."""
        return any(self.runs[run].refunds for run, _ in self.repriced)

    def costs(self, run: str, charges: Iterable[Charge]) -> tuple[tuple[Charge, Cost], ...]:
        """Charges of a run with what they count as."""
        state = self.runs.get(run)
        return tuple((charge, cost_of(charge) if state is None else state.cost(charge)) for charge in charges)

    # -------------------------------------------------------------------------------------------- names

    def check_names(self, party: str, dataset: str) -> None:
        """Refuse "basel" where "Basel" is known: two spellings would be two budgets."""
        for noun, key, name in (("party", (fold(party),), party), ("dataset", (party, fold(dataset)), dataset)):
            known = self._names.get(key, name)
            if known != name:
                raise PlanRefused(
                    f"{noun} {name!r} differs from the known {known!r} by its spelling only; write {known!r}, or "
                    "choose a name that cannot be mistaken for it"
                )

    def know(self, party: str, dataset: str) -> None:
        """Remember how a party and its dataset are spelt."""
        self._names[fold(party),] = party
        self._names[party, fold(dataset)] = dataset

    def book(self, party: str, dataset: str, unit: PrivacyUnit) -> BookState:
        """The book of one unit of a dataset, an empty one where there was none."""
        key = party, dataset, unit
        if key not in self.books:
            self.books[key] = BookState(party, dataset, unit)
        return self.books[key]

    def set_budget(self, party: str, dataset: str, budget: Budget) -> None:
        """Give one book a budget, leaving the book object that others hold unchanged."""
        self.books[party, dataset, budget.unit] = self.book(party, dataset, budget.unit).with_budget(budget)
        self.protect(party, dataset)

    def protect(self, party: str, dataset: str) -> None:
        """A budget was set: also data that was declared public is protected from now on."""
        self.public.pop((party, dataset), None)
        self.know(party, dataset)

    def declare(self, party: str, dataset: str, reason: str) -> None:
        """The data is public from now on, until its next budget."""
        self.public[party, dataset] = reason
        self.know(party, dataset)

    # -------------------------------------------------------------------------------------------- checks

    def check_run(
        self,
        run: str,
        terms: Terms,
        planned: Iterable[Charge],
        datasets: Sequence[Dataset],
        *,
        refunds_known: bool = True,
        pricing: int = PRICING,
    ) -> None:
        """A new run, one dataset a party, and a plan about exactly these datasets."""
        planned = tuple(planned)
        if pricing != FIRST:
            _check_bounded_records(planned)
        if run in self.runs:
            raise PlanRefused(f"run {run!r} is already in the ledger; give the new one another name")
        names: dict[str, str] = {}
        for dataset in datasets:
            self.check_names(dataset.party, dataset.dataset)
            if dataset.party in names:
                raise PlanRefused(f"party {dataset.party!r} is named twice; each party brings one dataset to a run")
            names[dataset.party] = dataset.dataset
            if terms.enrolled is not None:
                self._check_owner(dataset)
        if not names:
            raise PlanRefused("a run needs at least one party with a dataset")
        seen: set[Account] = set()
        for charge in planned:
            self.check_charge(charge, names, terms)
            if (charge.party, charge.unit) in seen:
                raise PlanRefused(
                    f"the plan charges {charge.party!r} twice per {charge.unit}; one charge a party and unit"
                )
            seen.add((charge.party, charge.unit))
            if charge.event is not None and not cost_of(charge).leaves:
                raise PlanRefused(f"the plan charges {charge.party!r} for no event per {charge.unit}; plan a round")
        self._check_units(run, seen, names, refunds_known)
        for unit in {unit for _, unit in seen}:
            for party in names:
                if (party, unit) not in seen:
                    raise PlanRefused(
                        f"the plan charges {party!r} nothing per {unit}, and others something; every party of a run "
                        "is charged"
                    )

    def _check_owner(self, mine: Dataset) -> None:
        """In a site's own books a dataset has one name before it, and one lifetime."""
        known = {(party, dataset) for party, dataset, _ in self.books} | set(self.public)
        for party in sorted(party for party, dataset in known if dataset == mine.dataset and party != mine.party):
            raise PlanRefused(
                f"dataset {mine.dataset!r} is kept under the name {party!r} here, and this plan calls its site "
                f"{mine.party!r}: a dataset has one lifetime; take part under one name"
            )

    def _check_units(self, run: str, seen: set[Account], names: Mapping[str, str], refunds_known: bool) -> None:
        """All runs that charge a protected dataset charge the same units.

        A release that one book does not see would go on behind its back, and a book that is opened after other runs
        does not know of theirs. So what holds per client "over all runs" must have been promised by all of them.
        Without ``refunds_known``, in an export, it is unknown which runs took all their charges back.
        """
        mine = ((party, dataset, unit) for party, dataset in names.items() for unit in PrivacyUnit)
        for party, dataset, unit in mine:  # not all books: a ledger may hold those of thousands of datasets
            book = self.books.get((party, dataset, unit))
            if book is None or (party, dataset) in self.public:
                continue
            if book.budget is not None and (party, unit) not in seen:
                raise PlanRefused(
                    f"dataset {dataset!r} of {party!r} has a budget per {unit}, and this plan would not be charged to "
                    f"it; promise something per {unit} as well (style hybrid protects records and clients)"
                )
            for other in book.charged if refunds_known else ():
                if other == run:
                    continue
                for each in PrivacyUnit:
                    theirs, ours = (party, each) in self.runs[other].shares, (party, each) in seen
                    if ours and not theirs:
                        raise PlanRefused(
                            f"dataset {dataset!r} of {party!r} was used by run {other!r}, which promised nothing per "
                            f"{each}; what all runs together cost a {each} can no longer be bounded: promise what "
                            "that run promised"
                        )
                    if theirs and not ours:
                        raise PlanRefused(
                            f"dataset {dataset!r} of {party!r} was used by run {other!r}, which promised something per "
                            f"{each}; this plan would go on behind the back of that book: promise something per {each}"
                        )

    def check_charge(self, charge: Charge, datasets: Mapping[str, str], terms: Terms) -> None:
        """A charge names a dataset of the run, and is protected unless the data is public."""
        if datasets.get(charge.party) != charge.dataset:
            raise PlanRefused(
                f"dataset {charge.dataset!r} of {charge.party!r} is not among the run's datasets; declare it first"
            )
        if charge.unit is not PrivacyUnit.CLIENT and charge.event is not None and draws_twice(charge.event):
            raise PlanRefused(
                f"the charge of {charge.party!r} per {charge.unit} multiplies two rates of drawing: the steps of a "
                "round share one draw of parties, so that draw amplifies nothing for records (multiplied rates report "
                "2.45 where 12.1 is true); charge the records' own sampling, every round, for all registered parties"
            )
        if charge.event is None:
            if (charge.party, charge.dataset) not in self.public:
                raise PlanRefused(
                    f"style none would release dataset {charge.dataset!r} of {charge.party!r} without protection; use "
                    'style = "sample", or, if its records need no protection: quietsum ledger declare-public '
                    f"--party {charge.party} --dataset {charge.dataset} --reason why"
                )
        elif terms.limit(charge.unit) is None:
            raise PlanRefused(
                f"the plan states no limit per {charge.unit} but charges one; state ε and δ per {charge.unit}"
            )

    def check_plan(
        self, run: str, terms: Terms, planned: Sequence[tuple[Charge, Cost]], prices: Prices, rounds: int | None
    ) -> None:
        """The whole plan fits its own limit and every lifetime; one error names all lifetimes that it does not fit."""
        refused: list[LifetimeExceeded] = []
        for charge, cost in planned:
            tally, limit = CostTally([cost]), terms.limit(charge.unit)
            if limit is not None and cost.protected:
                found = self._price(tally, terms, charge.unit, limit.delta, prices)
                if exceeds(found.epsilon, limit.epsilon):
                    remedy = "state what it costs, or add noise"
                    if math.isinf(found.epsilon):
                        remedy = "noise that small, as it is rounded, is proven to give no ε at all: state a smaller ε"
                    raise PlanUnderstates(
                        f"the plan costs {charge.party!r} ε = {found.epsilon:.6g} per {charge.unit} at δ = "
                        f"{limit.delta:g} and states ε = {limit.epsilon:.6g} per {charge.unit}; {remedy}"
                    )
            if (charge.party, charge.dataset) not in self.public:
                book = self.book(charge.party, charge.dataset, charge.unit)
                try:
                    book.admit_plan(run, tally, terms, prices, rounds)
                except LifetimeExceeded as error:
                    refused.append(error)
        if refused:
            raise BudgetExhausted(str(refused[0]) if len(refused) == 1 else _join_refusals(refused))

    def foresee(
        self, terms: Terms, planned: Sequence[Charge], lifetimes: Sequence[Budget], before: Accounts, prices: Prices
    ) -> tuple[Outlook, ...]:
        """What a plan that is let in leaves of each lifetime; ``before`` are the accounts without its first budgets."""
        found, alike = [], dict[tuple[object, ...], Outlook]()
        for charge in planned:
            if charge.event is None or (charge.party, charge.dataset) in self.public:
                continue
            known = before.books.get((charge.party, charge.dataset, charge.unit))
            fixes = known is None or known.budget is None
            stated = not fixes or any(budget.unit is charge.unit for budget in lifetimes)
            book, cost = self.book(charge.party, charge.dataset, charge.unit), cost_of(charge)
            key = (cost, book.budget, stated) if fixes and not book.charged else (charge.party, charge.dataset, cost)
            if key not in alike:
                alike[key] = book.foresee(CostTally([cost]), terms, prices, fixes=fixes, stated=stated)
            found.append(dataclasses.replace(alike[key], party=charge.party, dataset=charge.dataset))
        return tuple(found)

    def check_reserve(
        self,
        run: str,
        round: int,
        attempt: int,
        charges: Sequence[tuple[Charge, Cost]],
        *,
        refunds_known: bool = True,
    ) -> RunState:
        """An open run, the next attempt, and for every account of its plan a charge that the plan contains.

        Every registered party is charged every round, whether it is drawn, answers or not (rule 1). In a site's own
        books the units that it enrolled with are charged as a whole in round 0, and the others when it is asked.
        """
        state = self.runs.get(run)
        if state is None:
            raise QuietsumError(f"run {run!r} is not in the ledger; open it before its first round")
        expected, own = state.attempts.get(round, 0) + 1, state.terms.enrolled is not None
        skips = own and round > 0 and attempt > expected
        if isinstance(attempt, bool) or (attempt != expected and not skips):
            raise InvalidParameter(
                "attempt", attempt, f"is not the next one of round {round}", f"use attempt {expected}"
            )
        due = _due(state, round)
        seen: set[Account] = set()
        for charge, cost in charges:
            self.check_charge(charge, state.datasets, state.terms)
            account = charge.party, charge.unit
            if account in seen:
                raise InvalidParameter("charges", account, "appears twice", "compose the events of one round into one")
            seen.add(account)
            if account not in state.shares:
                raise PlanRefused(f"the plan of run {run!r} charges {charge.party!r} nothing per {charge.unit}")
            share = state.shares[account]
            if charge.observers != share.observers:
                raise PlanRefused(
                    f"this charge protects {charge.party!r} against {', '.join(charge.observers)}, the plan of "
                    f"run {run!r} against {', '.join(share.observers)}; a plan is frozen once it runs"
                )
            if account not in due:
                raise PlanRefused(
                    f"the charge of {charge.party!r} per {charge.unit} is due "
                    + ("round by round, not when the site enrols" if round == 0 else "once, when the site enrols")
                )
            share.check(charge, cost)
            if own and round == 0 and CostTally([cost]).key() != share.planned.key():
                raise PlanRefused(
                    f"a site enrols with the charge of the whole plan per {charge.unit}, not a part of it"
                )
        for party, unit in due:
            if (party, unit) not in seen:
                raise PlanRefused(
                    f"round {round} of run {run!r} charges {party!r} nothing per {unit}; every registered party is "
                    "charged every round, whether it takes part or not: state all charges of the plan"
                )
        self._check_units(run, set(state.shares), state.datasets, refunds_known)
        return state

    def succeeds(self, name: str, newer: Testimony) -> bool:
        """Whether ``newer`` is not behind what is known of ``name``, nor beside it."""
        try:
            check_succession(name, self.witnessed.get(name), newer)
        except CorruptState:
            return False
        return True

    def check_witness(self, heads: Mapping[str, Testimony]) -> None:
        """None of the other side's ledgers has gone back behind what is known of it."""
        for name, told in heads.items():
            check_succession(name, self.witnessed.get(name), told)

    def check_budgets(self, run: str, charges: Sequence[tuple[Charge, Cost]], prices: Prices) -> None:
        """The run's own limit and every lifetime still hold with these charges."""
        state = self.runs[run]
        for charge, cost in charges:
            share = state.shares[charge.party, charge.unit]
            after = share.tally.plus([cost])
            limit = state.terms.limit(charge.unit)
            for event, count in after.leaves.items():
                planned = share.planned.leaves.get(event, 0)
                if planned < count:
                    raise BudgetExhausted(
                        f"run {run!r} would charge {charge.party!r} for {count} × {event}, and its plan contains "
                        f"{planned or 'none'}; nothing was asked of anybody: plan spare attempts, or open a new run "
                        "for what is left of the lifetime"
                    )
            if limit is not None and cost.protected:
                found = self._price(after, state.terms, charge.unit, limit.delta, prices)
                if exceeds(found.epsilon, limit.epsilon):
                    raise BudgetExhausted(
                        f"this round would bring {charge.party!r} to ε = {found.epsilon:.6g} per {charge.unit} at δ = "
                        f"{limit.delta:g}; run {run!r} may cost ε = {limit.epsilon:.6g} per {charge.unit}. "
                        + (_OLDER if share.repriced else "")
                        + "Nothing was asked of anybody: stop here, or plan spare attempts next time"
                    )
            if (charge.party, charge.dataset) not in self.public:
                book = self.book(charge.party, charge.dataset, charge.unit)
                book.admit_charge(run, after, state.terms, cost, prices)

    def check_open(self, run: str, round: int, attempt: int, sequence: int) -> tuple[RunState, Reservation]:
        """A reservation that is neither committed nor foreign."""
        state = self.runs.get(run)
        if state is None or attempt > state.attempts.get(round, 0) or attempt < 1:
            raise QuietsumError(
                f"nothing is reserved for attempt {attempt} at round {round} of run {run!r}; reserve first"
            )
        reservation = state.open.get((round, attempt))
        if reservation is None:
            raise QuietsumError(
                f"attempt {attempt} at round {round} of run {run!r} is committed; that happens once, and "
                "nothing is refunded after it"
            )
        if reservation.sequence != sequence:
            raise InvalidParameter(
                "receipt", sequence, f"is not where the reservation stands (entry {reservation.sequence})",
                "use the receipt that reserve() returned",
            )  # fmt: skip
        return state, reservation

    def check_refund(self, reservation: Reservation, party: str, reason: str) -> list[Charge]:
        """The record-level charges that go back: only before a commit, only once, never what amplification rests on."""
        if not isinstance(reason, str) or not reason.strip():
            raise InvalidParameter("reason", reason, "is empty", "say why the party did not touch its data")
        if party in reservation.refunded:
            raise InvalidParameter("party", party, "was refunded already for this attempt", "refund once")
        found = [c for c in reservation.charges if c.party == party and c.unit is not PrivacyUnit.CLIENT]
        if not found:
            raise InvalidParameter(
                "party", party, "has no charge per record here that could go back",
                "charges per client fall on every registered party, whether it takes part or not",
            )  # fmt: skip
        return found

    # ------------------------------------------------------------------------------------------- prices

    @staticmethod
    def _price(tally: CostTally, terms: Terms, unit: PrivacyUnit, delta: float, prices: Prices) -> Guarantee:
        return prices.upper(tally.key(), terms.accounting, terms.neighbours, unit, delta)

    def price_account(self, run: RunState, account: Account, prices: Prices) -> Guarantee:
        """What one party has paid in a run, per unit, from both sides where the accountant can."""
        unit = account[1]
        terms, limit, tally = run.terms, run.terms.limit(unit), run.shares[account].tally
        if limit is not None:
            return prices.guarantee(tally.key(), terms.accounting, terms.neighbours, unit, limit.delta)
        epsilon = math.inf if tally.unprotected else 0.0  # style none has no δ to ask at
        method = "a release without protection" if tally.unprotected else "nothing was released"
        return Guarantee(
            epsilon=epsilon, epsilon_lower=epsilon, delta=0.0, unit=unit, neighbours=terms.neighbours, method=method
        )

    def spent_lines(self, run: RunState, prices: Prices) -> list[dict[str, Any]]:
        """ε of each party and unit as a commit entry states it."""
        lines = []
        for party, unit in sorted(run.shares):
            limit, tally = run.terms.limit(unit), run.shares[party, unit].tally
            if limit is not None:
                epsilon, delta = self._price(tally, run.terms, unit, limit.delta, prices).epsilon, limit.delta
            else:
                epsilon, delta = math.inf if tally.unprotected else 0.0, 0.0
            lines.append({"party": party, "unit": unit.value, "epsilon": write_number(epsilon), "delta": delta})
        return lines


_OLDER = "Its limit was stated by earlier prices, which were too low (quietsum ledger show tells both). "


def _join_refusals(refused: Sequence[LifetimeExceeded]) -> str:
    """The first problem in full, the other parties by name, and what would raise all of them."""
    others = [party for party in dict.fromkeys(error.party for error in refused) if party != refused[0].party]
    shown = ", ".join(repr(party) for party in others[:_NAMED])
    more = f" and {len(others) - _NAMED} more" if len(others) > _NAMED else ""
    groups: dict[tuple[PrivacyUnit, str], list[tuple[str, str]]] = {}
    for error in refused:
        if error.raised is not None:
            dataset, unit, epsilon = error.raised
            groups.setdefault((unit, epsilon), []).append((error.party, dataset))
    commands = "; ".join(command_to_raise(accounts, unit, epsilon) for (unit, epsilon), accounts in groups.items())
    remedy = f"Plan less, add noise, or allow more: {commands}" if commands else "Plan less, or add noise"
    also = f" The plan does not fit the lifetime of {shown}{more} either." if others else ""
    return f"{refused[0].problem}{also} {remedy}"


_NAMED = 12
"""So many parties are named in an error."""


def _check_bounded_records(planned: Sequence[Charge]) -> None:
    """A record beside a person: the person's records are bounded, so one that leaves may let another in."""
    people = {charge.party for charge in planned if charge.unit is PrivacyUnit.PERSON}
    for charge in planned:
        if charge.unit is not PrivacyUnit.RECORD or charge.party not in people or charge.event is None:
            continue
        if cost_of(charge) != cost_of(charge, bounded=True):
            raise PlanRefused(
                f"the plan charges {charge.party!r} per person and per record: a person's records are bounded, so a "
                "record that leaves may let another in; charge records for OneInOneOut(event=...)"
            )


def _due(state: RunState, round: int) -> list[Account]:
    """The accounts that a reservation of this round must charge."""
    enrolled = state.terms.enrolled
    if enrolled is None:
        return list(state.shares)
    if round == 0:
        if not enrolled:
            raise PlanRefused("the site's plan charges nothing when it enrols; its rounds begin with 1")
        return [account for account in state.shares if account[1] in enrolled]
    if enrolled and 0 not in state.attempts:
        raise PlanRefused("a site enrols, with round 0, before its first round")
    return [account for account in state.shares if account[1] not in enrolled]


def check_reason(reason: object) -> str:
    """A reason, without spaces around it."""
    if not isinstance(reason, str) or not reason.strip():
        raise InvalidParameter("reason", reason, "is empty", "say who decided it and why; it stays in the ledger")
    return reason.strip()


def check_raise(book: BookState, epsilon: float, delta: float, reason: str) -> None:
    """A budget goes up or stays, keeps its δ, and says why."""
    check_reason(reason)
    if book.budget is None:
        return
    if delta != book.budget.delta:
        raise InvalidParameter(
            "delta", delta, f"is not the dataset's δ = {book.budget.delta:g}",
            "δ belongs to the dataset and was fixed with its first budget",
        )  # fmt: skip
    if epsilon < book.budget.epsilon:
        raise InvalidParameter(
            "epsilon", epsilon, f"is below the present budget {book.budget.epsilon:g} per {book.unit}",
            "what was promised before plans were admitted cannot be taken back; plan less instead",
        )  # fmt: skip


def rounds_of(plan: Mapping[str, Any]) -> int | None:
    """How many rounds a plan says it has, for a message to people."""
    federation = plan.get("federation")
    rounds = federation.get("rounds") if isinstance(federation, Mapping) else None
    return rounds if isinstance(rounds, int) and not isinstance(rounds, bool) and rounds > 0 else None


# ---------------------------------------------------------------------------------------------------- opening a run


def entries_before_run(
    accounts: Accounts,
    run: str,
    terms: Terms,
    planned: Sequence[Charge],
    datasets: Sequence[Dataset],
    lifetimes: Sequence[Budget],
    rounds: int | None,
    prices: Prices,
) -> Iterator[tuple[Kind, dict[str, Any]]]:
    """Yield the entries that a new run writes before its own: declarations of public data, and first budgets.

    Raises :class:`~quietsum.errors.PlanRefused` or :class:`~quietsum.errors.BudgetExhausted`, after the last entry, if
    the run as a whole is not admitted. ``accounts`` are not changed: everything is tried on a copy.
    """
    yield from _entries_on(accounts.copy(), run, terms, planned, datasets, lifetimes, rounds, prices)


def foresee_run(
    accounts: Accounts,
    run: str,
    terms: Terms,
    planned: Sequence[Charge],
    datasets: Sequence[Dataset],
    lifetimes: Sequence[Budget],
    rounds: int | None,
    prices: Prices,
) -> tuple[Outlook, ...]:
    """What a new run would leave of each lifetime that it touches; raises what keeps it from being let in."""
    trial = accounts.copy()
    for _ in _entries_on(trial, run, terms, planned, datasets, lifetimes, rounds, prices):
        pass
    return trial.foresee(terms, planned, lifetimes, accounts, prices)


def _entries_on(
    trial: Accounts,
    run: str,
    terms: Terms,
    planned: Sequence[Charge],
    datasets: Sequence[Dataset],
    lifetimes: Sequence[Budget],
    rounds: int | None,
    prices: Prices,
) -> Iterator[tuple[Kind, dict[str, Any]]]:
    for dataset in _public_declarations(trial, datasets):
        yield Kind.PUBLIC, {"party": dataset.party, "dataset": dataset.dataset, "reason": dataset.public}
        trial.declare(dataset.party, dataset.dataset, dataset.public)
    for charge, budget, reason in _first_budgets(trial, planned, terms, lifetimes, run):
        place = {"party": charge.party, "dataset": charge.dataset}
        yield Kind.BUDGET, {**place, **budget_to(budget), "reason": reason}
        trial.set_budget(charge.party, charge.dataset, budget)
    trial.check_run(run, terms, planned, datasets)
    trial.check_plan(run, terms, [(c, cost_of(c)) for c in planned], prices, rounds)


def _public_declarations(accounts: Accounts, datasets: Iterable[Dataset]) -> list[Dataset]:
    """Datasets that the run declares public and the ledger does not know as such yet; ``accounts`` learn their names.

    Data with a budget is protected; a task alone cannot lift that, its owner can.
    """
    found = []
    for dataset in datasets:
        accounts.check_names(dataset.party, dataset.dataset)
        accounts.know(dataset.party, dataset.dataset)  # so that two parties of one run are held against each other
        if not dataset.public or (dataset.party, dataset.dataset) in accounts.public:
            continue
        books = [accounts.books.get((dataset.party, dataset.dataset, unit)) for unit in PrivacyUnit]
        if any(book is not None and book.budget is not None for book in books):
            raise PlanRefused(
                f"dataset {dataset.dataset!r} of {dataset.party!r} is protected by a budget, and the task says that "
                "it is public; if it really is: quietsum ledger declare-public "
                f"--party {dataset.party} --dataset {dataset.dataset} --reason why"
            )
        found.append(dataset)
    return found


def _first_budgets(
    accounts: Accounts, planned: Iterable[Charge], terms: Terms, lifetimes: Sequence[Budget], run: str
) -> Iterator[tuple[Charge, Budget, str]]:
    """The budget of each protected dataset that has none yet: a stated lifetime, else the plan's own limit."""
    for charge in planned:
        book = accounts.books.get((charge.party, charge.dataset, charge.unit))
        public = (charge.party, charge.dataset) in accounts.public
        if public or charge.event is None or (book is not None and book.budget is not None):
            continue
        stated = next((budget for budget in lifetimes if budget.unit is charge.unit), None)
        budget = stated or terms.limit(charge.unit)
        if budget is not None:
            why = "lifetime stated by" if stated else "no lifetime was stated, so the limit of"
            yield charge, budget, f"{why} its first plan, run {run}"
