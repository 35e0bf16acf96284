"""The privacy ledger: spend first, release after.

``reserve`` writes what a round will cost before any party is asked, ``commit`` writes that its result may leave; both
are on disk when they return. A reservation that is never committed counts as spent, so a crash can only over-count.
Every entry is chained by hash to the one before it and every head is signed, so that a ledger which was changed, cut
or replaced is found by :meth:`Ledger.verify` and by any head kept elsewhere. The lifetime budgets of
:mod:`quietsum.ledger.books` are checked in the same transaction that writes the charge.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, final

from quietsum.errors import InvalidParameter, PlanRefused, QuietsumError
from quietsum.ledger.accounts import (
    Accounts,
    Reservation,
    RunState,
    check_raise,
    check_reason,
    entries_before_run,
    foresee_run,
    rounds_of,
)
from quietsum.ledger.books import Book, Outlook
from quietsum.ledger.chain.encoding import canonical, digest, head_message, label, message_to_sign
from quietsum.ledger.chain.entries import Entry, Head, Kind, Receipt, check_link
from quietsum.ledger.chain.journal import Additions, Clock, Journal, system_clock
from quietsum.ledger.chain.keys import SigningKey
from quietsum.ledger.chain.verify import Verification, verify_rows
from quietsum.ledger.chain.witnesses import Testimony, heads_from, heads_to
from quietsum.ledger.charges import Charge, Dataset, Terms, budget_to, require_charges
from quietsum.ledger.history import LedgerIdentity, RunSummary, summarize
from quietsum.ledger.pricing import FIRST, PRICING, Cost, Prices
from quietsum.ledger.state import BLIND
from quietsum.ledger.stores.location import seal_of
from quietsum.ledger.stores.protocol import LedgerStore
from quietsum.ledger.versions import Correction, corrections_due, is_due
from quietsum.privacy import Budget, Guarantee, Observer, PrivacyUnit
from quietsum.validate import positive, whole_number

__all__ = ["Ledger"]

ROOM, ROOM_EACH = 96 * 1024, 1024
"""Bytes that a reservation and its commit take in the database and its log at most, and more for each charge."""


@final
class Ledger:
    """An append-only, hash-chained, signed ledger.

    Guarantees: when :meth:`reserve` or :meth:`commit` has returned, the entry survives a crash of the machine; when
    one of them raised, nothing was written. No sequence of calls, from any number of processes, brings a run above
    its own limit or a dataset above its lifetime budget.

    >>> import tempfile
    >>> from quietsum import Budget, Gaussian, PoissonSampled, PrivacyUnit, Repeated
    >>> step = PoissonSampled(rate=0.1, event=Gaussian(noise_multiplier=2.0))
    >>> def charge(steps):
    ...     event = Repeated(times=steps, event=step)
    ...     return Charge(party="Basel", dataset="heart", unit=PrivacyUnit.RECORD, event=event)
    >>> folder = tempfile.TemporaryDirectory()
    >>> ledger = Ledger.open(folder.name + "/ledger.db", create=True)
    >>> _ = ledger.open_run(
    ...     "first", plan={"rounds": 2}, terms=Terms(limits=(Budget(epsilon=2.0, delta=1e-5),)),
    ...     planned=[charge(20)], datasets=[Dataset(party="Basel", dataset="heart", size=300)],
    ... )
    >>> receipt = ledger.reserve("first", 1, 1, [charge(10)])  # before anybody is asked
    >>> entry = ledger.commit(receipt)                         # before anything leaves
    >>> ledger.spending("first")[0]
    Guarantee(ε = 0.798467 per record at δ = 1e-05, exact: contour)
    >>> ledger.verify().entries
    5
    >>> ledger.close(); folder.cleanup()
    """

    def __init__(self, journal: Journal) -> None:
        """A ledger on an open journal; see :meth:`open` and :meth:`begin`."""
        self._journal, self._prices = journal, Prices()
        self._first = Prices(version=FIRST)

    def close(self) -> None:
        """Let go of the file; closing twice is fine."""
        self._journal.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._journal.save()
        self.close()

    # --------------------------------------------------------------------------------------- opening

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        create: bool = False,
        read_only: bool = False,
        trusted: bool = False,
        clock: Clock = system_clock,
    ) -> Self:
        """The ledger in the SQLite file ``path``, with its key beside it in ``<path>.key``.

        ``create`` makes file and key if there is neither; a key without its ledger is refused, since a ledger that
        began again would forget what was spent. ``read_only`` needs no key. If ``<path>.head`` holds a head, the ledger
        must contain it (:mod:`quietsum.ledger.chain.high_water_mark`). With ``read_only``, a server that a file beside
        it names is called only if the user trusts it (:mod:`quietsum.ledger.stores.trusted_servers`), or if
        ``trusted``.
        """
        return cls(Journal.open(Path(path), create=create, read_only=read_only, clock=clock, trusted=trusted))

    @classmethod
    def begin(cls, store: LedgerStore, key: SigningKey, *, clock: Clock = system_clock) -> Self:
        """A new ledger on an empty store of any kind."""
        return cls(Journal.begin(store, key, clock))

    @classmethod
    def on(cls, store: LedgerStore, key: SigningKey | None, *, clock: Clock = system_clock) -> Self:
        """The ledger that a store of any kind holds; without its key it can be read only."""
        return cls(Journal(store, key, clock))

    # --------------------------------------------------------------------------------------- writing

    def open_run(
        self,
        run: str,
        *,
        plan: Mapping[str, Any],
        terms: Terms,
        planned: Sequence[Charge],
        datasets: Sequence[Dataset],
        lifetimes: Sequence[Budget] = (),
    ) -> Entry:
        """Record a plan before anything is spent; refuse it where its whole forecast does not fit.

        ``planned`` has one charge a party and unit, with the whole plan's event. A dataset without a book gets one:
        with the budget in ``lifetimes`` for that unit, else with the plan's own limit. Datasets that say why they are
        public are recorded as such and have no gate. The same run with the same plan again (a resumed run) returns
        the first entry; with another plan it is refused.
        """
        run, planned, datasets = label("run", run), tuple(planned), tuple(datasets)
        plan_hash = digest(canonical(plan))
        self._correct()
        with self._journal.writing("open_run") as add:
            accounts = self._accounts
            known = accounts.runs.get(run)
            if known is not None:
                if known.plan_hash != plan_hash:
                    raise PlanRefused(
                        f"run {run!r} was opened with another plan (entry {known.entry}); a plan is frozen: "
                        "resume with the plan in the run's folder, or start a new run"
                    )
                return next(self.entries(known.entry))
            for kind, body in entries_before_run(
                accounts, run, terms, planned, datasets, lifetimes, rounds_of(plan), self._prices
            ):
                add(kind, body)
            add(Kind.RUN, {
                "run": run, "plan": plan, "plan_hash": plan_hash, "terms": terms.to_dict(),
                "datasets": [dataset.to_dict() for dataset in datasets],
                "planned": [charge.to_dict() for charge in planned], "pricing": PRICING,
            })  # fmt: skip
        return add.last

    def would_open(
        self,
        run: str,
        *,
        terms: Terms,
        planned: Sequence[Charge],
        datasets: Sequence[Dataset],
        lifetimes: Sequence[Budget] = (),
        rounds: int | None = None,
    ) -> tuple[Outlook, ...]:
        """What a new run would leave of each lifetime; raises what :meth:`open_run` would raise.

        Nothing is written, so a reader may ask as well.
        """
        with self._journal.lock:
            self._journal.follow()
            parts = (label("run", run), terms, tuple(planned), tuple(datasets), lifetimes, rounds, self._prices)
            return foresee_run(self._accounts, *parts)

    def reserve(
        self,
        run: str,
        round: int,
        attempt: int,
        charges: Sequence[Charge],
        *,
        seen: Mapping[str, Testimony] | None = None,
        also: Callable[[], None] | None = None,
    ) -> Receipt:
        """Write down what a round will cost, before any party is asked. On disk when it returns.

        ``seen`` are heads of other ledgers that came with the request; they are written with it. ``also`` is one more
        check of the caller's, made while no other process writes; what it raises ends the call.
        BudgetExhausted where the run's own limit or a lifetime would not hold; then nothing was written.
        """
        run, round = label("run", run), whole_number("round", round)
        attempt, charges = whole_number("attempt", attempt, 1), require_charges(charges)
        self._correct()

        def check() -> None:
            costs = self._accounts.costs(run, charges)
            self._accounts.check_reserve(run, round, attempt, costs)
            self._accounts.check_budgets(run, costs, self._prices)
            if also is not None:
                also()

        with self._journal.lock:  # first without the store's lock: prices take time, and others may write meanwhile
            self._journal.follow()
            check()
        self._journal.check_room(ROOM + 2 * ROOM_EACH * len(charges))  # for the commit, too
        with self._journal.writing("reserve") as add:
            check()
            body = {"run": run, "round": round, "attempt": attempt, "charges": [c.to_dict() for c in charges]}
            add(Kind.RESERVE, body)
            sequence = add.last.sequence
            self._witness(add, run, round, attempt, seen)
        return Receipt(run=run, round=round, attempt=attempt, head=add.head(), sequence=sequence)

    def refund(self, receipt: Receipt, party: str, reason: str) -> Entry:
        """Take a party's record-level charges back: it refused before it touched data. Only before the commit, once."""
        party = label("party", party)
        with self._journal.writing("refund") as add:
            _, reservation = self._find(receipt)
            self._accounts.check_refund(reservation, party, reason)
            add(Kind.REFUND, {
                "run": receipt.run, "round": receipt.round, "attempt": receipt.attempt, "reserve": receipt.sequence,
                "party": party, "reason": reason, "blind": _blind(),
            })  # fmt: skip
        return add.last

    def commit(self, receipt: Receipt, *, seen: Mapping[str, Testimony] | None = None) -> Entry:
        """Write down that a round's result may leave, with ε after it. On disk when it returns; once only.

        ``seen`` are heads of other ledgers that came with the replies, an empty mapping where none did; they are one
        entry, before the commit's own.
        """
        self._correct()
        with self._journal.writing("commit") as add:
            run, _ = self._find(receipt)
            self._witness(add, receipt.run, receipt.round, receipt.attempt, seen)
            add(Kind.COMMIT, {
                "run": receipt.run, "round": receipt.round, "attempt": receipt.attempt, "reserve": receipt.sequence,
                "spent": self._accounts.spent_lines(run, self._prices), "operator_only": bool(run.refunds),
                **({"blind": _blind()} if run.refunds else {}),
            })  # fmt: skip
        return add.last

    def raise_budget(
        self,
        *,
        party: str,
        dataset: str,
        epsilon: float,
        reason: str,
        unit: PrivacyUnit = PrivacyUnit.RECORD,
        delta: float | None = None,
    ) -> Entry:
        """Set a dataset's first lifetime budget, or raise it. ε never goes down, δ stays, and a reason is needed.

        Data that was declared public is protected again from then on; what was charged meanwhile counts.

        Guarantees from then on: the new (ε, δ), as if it had been the budget from the start. Whether to raise it should
        not be decided by what the models showed; see :mod:`quietsum.ledger.books`.
        """
        return self.raise_budgets([(party, dataset)], epsilon=epsilon, reason=reason, unit=unit, delta=delta)[0]

    def raise_budgets(
        self,
        accounts: Sequence[tuple[str, str]],
        *,
        epsilon: float,
        reason: str,
        unit: PrivacyUnit = PrivacyUnit.RECORD,
        delta: float | None = None,
    ) -> tuple[Entry, ...]:
        """:meth:`raise_budget` for each (party, dataset) of ``accounts``, with one entry each: all of them, or none."""
        named = [(label("party", party), label("dataset", dataset)) for party, dataset in accounts]
        if not named or len(set(named)) != len(named):
            raise InvalidParameter("accounts", named, "names none, or one twice", "name each dataset once")
        positive("epsilon", epsilon)
        if not isinstance(unit, PrivacyUnit):
            raise InvalidParameter("unit", unit, f"is not one of {[str(member) for member in PrivacyUnit]}")
        reason, entries = check_reason(reason), list[Entry]()
        with self._journal.writing("raise_budget") as add:
            budgets = [self._budget_to_raise(party, dataset, unit, epsilon, delta, reason) for party, dataset in named]
            for (party, dataset), budget in zip(named, budgets, strict=True):
                add(Kind.BUDGET, {"party": party, "dataset": dataset, **budget_to(budget), "reason": reason})
                entries.append(add.last)
        return tuple(entries)

    def _budget_to_raise(
        self, party: str, dataset: str, unit: PrivacyUnit, epsilon: float, delta: float | None, reason: str
    ) -> Budget:
        self._accounts.check_names(party, dataset)
        book = self._accounts.books.get((party, dataset, unit))
        present = None if book is None else book.budget
        if delta is None and present is None:
            known = sorted({f"{b.dataset} of {b.party}" for b in self._accounts.books.values() if b.budget})
            raise InvalidParameter(
                "dataset", dataset, f"of {party!r} has no budget per {unit} yet",
                "state delta to set its first one, or choose among: " + (", ".join(known) or "none yet"),
            )  # fmt: skip
        if delta is None:
            assert present is not None
            delta = present.delta
        budget = Budget(epsilon=positive("epsilon", epsilon), delta=delta, unit=unit)
        if book is not None:
            check_raise(book, budget.epsilon, budget.delta, reason)
        return budget

    def declare_public(self, *, party: str, dataset: str, reason: str) -> Entry:
        """Record why a dataset needs no protection: it has no gate until its next budget. What was charged stays."""
        party, dataset = label("party", party), label("dataset", dataset)
        reason = check_reason(reason)
        with self._journal.writing("declare_public") as add:
            self._accounts.check_names(party, dataset)
            add(Kind.PUBLIC, {"party": party, "dataset": dataset, "reason": reason})
        return add.last

    # --------------------------------------------------------------------------------------- reading

    @property
    def identity(self) -> LedgerIdentity:
        """The ledger's name and public key."""
        assert self._journal.state.key is not None
        return LedgerIdentity(ledger=self._journal.state.ledger, public_key=self._journal.state.key.hex)

    @property
    def head(self) -> Head:
        """The newest entry, signed. Keep it in a checkpoint, report or receipt: it anchors everything before it."""
        with self._journal.lock:
            self._journal.follow()
            return self._journal.head()

    @property
    def moved_to(self) -> str | None:
        """Where it goes on, where a move has sealed it here: it can be read then, and never again be written."""
        return seal_of(self._journal.store)

    def entries(self, start: int = 1) -> Iterator[Entry]:
        """Entries from ``start`` on, each checked against its own hash."""
        for row in self._journal.store.rows(whole_number("start", start, 1)):
            yield check_link(row, ledger=self._journal.state.ledger, previous=row.previous, sequence=row.sequence)

    def contains(self, head: Head) -> bool:
        """Whether ``head`` is a head that this ledger had: same name, same hash at its place, signed by its key."""
        if head.ledger != self.identity.ledger:
            return False
        row = next(iter(self._journal.store.rows(head.sequence)), None)
        if row is None or row.sequence != head.sequence or row.hash != head.hash:
            return False
        key = self._journal.state.key
        message = head_message(ledger=head.ledger, sequence=head.sequence, hash=head.hash)
        return key is not None and key.accepts(head.signature, message)

    def runs(self) -> tuple[RunSummary, ...]:
        """All runs in the order in which they were opened."""
        with self._journal.lock:
            self._journal.follow()
            return tuple(summarize(name, run) for name, run in self._accounts.runs.items())

    def pricing_of(self, run: str) -> int:
        """The version of prices by which a run was opened."""
        with self._journal.lock:
            self._journal.follow()
            return self._run(run).pricing

    def cost(self, run: str, charge: Charge) -> Cost:
        """What a charge of a run counts as by today's rules; in a run of older ones that may be more than it says."""
        with self._journal.lock:
            return self._run(run).cost(charge)

    def is_repriced(self, run: str) -> bool:
        """Whether newer rules may price something of a run otherwise than those that it was opened by."""
        with self._journal.lock:
            self._journal.follow()
            return any(share.repriced for share in self._run(run).shares.values())

    def run_entry(self, run: str) -> Entry:
        """The entry that opened a run: its plan, its terms and its datasets."""
        with self._journal.lock:
            self._journal.follow()
            return next(self.entries(self._run(run).entry))

    def next_attempt(self, run: str, round: int) -> int:
        """1 + the reservations so far of this round."""
        with self._journal.lock:
            self._journal.follow()
            return self._run(run).attempts.get(whole_number("round", round), 0) + 1

    def spending_by_party(self, run: str) -> Mapping[tuple[str, PrivacyUnit], Guarantee]:
        """ε of each party and unit in this run, if its schedule runs as planned. Every reservation counts."""
        with self._journal.lock:
            self._journal.follow()
            state = self._run(run)
            found = {}
            for account in sorted(state.shares):
                guarantee = self._accounts.price_account(state, account, self._prices)
                found[account] = dataclasses.replace(guarantee, observer=state.shares[account].observers[0])
            return found

    def spending(self, run: str) -> tuple[Guarantee, ...]:
        """ε per unit and observer, of the worst party, if the schedule runs as planned. Every reservation counts.

        Parties hold disjoint data, so the worst one's ε is every one's bound; a mean would hide it. An observer that
        some charge does not protect against is listed with an infinite ε.
        """
        parties = self.spending_by_party(run)
        with self._journal.lock:
            state = self._run(run)
            worst: dict[tuple[PrivacyUnit, Observer], Guarantee] = {}
            for unit in PrivacyUnit:
                accounts = [account for account in parties if account[1] is unit]
                for observer in Observer:
                    watched = [observer in state.shares[account].observers for account in accounts]
                    if not any(watched):
                        continue
                    for account, protected in zip(accounts, watched, strict=True):
                        found = dataclasses.replace(parties[account], observer=observer)
                        if not protected:
                            found = dataclasses.replace(found, epsilon=math.inf, method="not protected against it")
                        best = worst.get((unit, observer))
                        if best is None or found.epsilon > best.epsilon:
                            worst[unit, observer] = found
            return tuple(worst.values())

    def corrections(self) -> tuple[tuple[Correction, ...], int | None]:
        """What runs cost that were priced by older rules, with the entry that says so; None where none does yet.

        All ε that a ledger is asked for are by today's rules, whether or not that entry is written.
        """
        with self._journal.lock:
            self._journal.follow()
            accounts = self._accounts
            if accounts.corrected_at is not None:
                return accounts.corrections, accounts.corrected_at
            if self._journal.state.pricing != FIRST or not is_due(accounts, self._prices, self._first):
                return (), None
            return corrections_due(accounts, self._prices, self._first), None

    def public_datasets(self) -> Mapping[tuple[str, str], str]:
        """Datasets without a gate, by party and name, with the reason."""
        with self._journal.lock:
            self._journal.follow()
            return dict(self._accounts.public)

    def reservations(self, run: str) -> frozenset[tuple[int, int]]:
        """Round and attempt of everything that was ever reserved in a run."""
        with self._journal.lock:
            self._journal.follow()
            return frozenset(self._run(run).reserved)

    def drawing_sessions(self, party: str, dataset: str) -> Mapping[str, tuple[int, int]]:
        """For each run on a dataset in which groups were drawn: in how many sessions, and how many attempts it charged.

        An attempt is charged after its session was opened, so no more are counted than there were sessions: those of
        books from before sessions were written down count for nothing.
        """
        with self._journal.lock:
            self._journal.follow()
            return self._drawing_sessions({party: dataset})

    def budgets(self) -> Mapping[tuple[str, str, PrivacyUnit], Budget]:
        """The lifetime budgets alone, by party, dataset and unit; quick, since nothing is priced."""
        with self._journal.lock:
            self._journal.follow()
            return {key: book.budget for key, book in self._accounts.books.items() if book.budget is not None}

    def lifetime(self) -> tuple[Book, ...]:
        """All books, by party, dataset and unit."""
        with self._journal.lock:
            self._journal.follow()
            accounts = self._accounts
            return tuple(
                book.view(accounts.public.get((book.party, book.dataset), ""), self._prices)
                for _, book in sorted(accounts.books.items())
                if book.plans or book.budget is not None
            )

    def _repr_html_(self) -> str:
        from quietsum.ledger.notebook_view import show_ledger

        return show_ledger(self)

    def verify(self, anchors: Iterable[Head] = (), *, every_signature: bool = False) -> Verification:
        """Read everything again and recompute every ε; :class:`LedgerBroken` names the first bad entry.

        ``anchors`` are heads kept elsewhere; they find what a chain alone cannot: a cut tail, yesterday's file, a
        ledger rewritten with fresh hashes. The high-water mark beside the file counts as one. Signatures are checked
        of the last head, of all anchors, of every entry but reservations, refunds and commits, and of each 256th of
        those; with ``every_signature`` of all entries.
        """
        mark = None if self._journal.mark is None else self._journal.mark.read()
        return verify_rows(self._journal.store.rows(1), anchors=anchors, every_signature=every_signature, mark=mark)

    # --------------------------------------------------------------------------------------- other ledgers

    def witness(self, run: str, seen: Mapping[str, Testimony], *, refused: tuple[int, int] | None = None) -> None:
        """Keep heads of other ledgers that came without a round: at the end of a run, say. Known ones are left out.

        ``refused`` is the round and attempt that a site says no to: from then on its books take neither that attempt
        nor an earlier one of the round. :class:`~quietsum.errors.InvalidParameter` where it was reserved before.
        """
        run = label("run", run)
        round, attempt = (0, 0) if refused is None else refused
        with self._journal.writing("witness") as add:
            state = self._run(run)
            if refused is not None and (round, attempt) in state.reserved:
                raise InvalidParameter("attempt", attempt, f"of round {round} was reserved before", "it is not refused")
            fresh = {name: told for name, told in seen.items() if self._accounts.witnessed.get(name) != told}
            if fresh or (refused is not None and attempt > state.attempts.get(round, 0)):
                self._witness(add, run, whole_number("round", round), whole_number("attempt", attempt), fresh)

    def draw(
        self, run: str, seen: Mapping[str, Testimony], check: Callable[[Mapping[str, tuple[int, int]]], None]
    ) -> int:
        """Write down that a site opens one more session of a run in which groups are drawn; which one it is.

        It stands in the books as heads that came with session n of round 0, and is on disk when this returns.
        ``check`` gets what :meth:`drawing_sessions` returns for the run's dataset while no other process writes. It
        raises if there may be no more sessions; then nothing is written.
        """
        run = label("run", run)
        with self._journal.writing("draw") as add:
            state = self._run(run)
            if state.terms.enrolled != ():  # round 0 is the enrolment's there, or the run is a coordinator's
                raise InvalidParameter("run", run, "draws no groups", "open it as a site's own, without units enrolled")
            number = state.drawn + 1
            check(self._drawing_sessions(state.datasets))
            fresh = {name: told for name, told in seen.items() if self._accounts.witnessed.get(name) != told}
            self._witness(add, run, 0, number, fresh)
        return number

    def sign(self, message: bytes) -> str:
        """The ledger's signature under a ``message`` of its owner; no head is ever mistaken for one."""
        return self._journal.sign(message_to_sign(message))

    def _witness(
        self, add: Additions, run: str, round: int, attempt: int, seen: Mapping[str, Testimony] | None
    ) -> None:
        """Keep what ``seen`` says, unless something newer is known: another process of ours may have been quicker."""
        if seen is not None:
            kept = {name: told for name, told in seen.items() if self._accounts.succeeds(name, told)}
            body = {"run": run, "round": round, "attempt": attempt, "heads": heads_to(kept), "blind": _blind()}
            add(Kind.WITNESS, body)

    def testimony(self) -> Testimony:
        """This ledger's newest head with its public key, for the other side to keep."""
        return Testimony(public_key=self.identity.public_key, head=self.head)

    def other_heads(self) -> Mapping[str, Testimony]:
        """The newest head of each other ledger that this one has heard of, by the name of its keeper."""
        with self._journal.lock:
            self._journal.follow()
            return dict(self._accounts.witnessed)

    def receipts(self) -> Iterator[tuple[Entry, Mapping[str, Testimony]]]:
        """All heads of other ledgers in the order in which they came."""
        for entry in self.entries():
            if entry.kind is Kind.WITNESS:
                yield entry, heads_from(entry.body["heads"])

    # --------------------------------------------------------------------------------------- machinery

    def _drawing_sessions(self, datasets: Mapping[str, str]) -> dict[str, tuple[int, int]]:
        return {
            name: (run.drawn, min(run.drawn, len(run.reserved)))
            for name, run in self._accounts.runs.items()
            if run.drawn and not datasets.items().isdisjoint(run.datasets.items())
        }

    @property
    def _accounts(self) -> Accounts:
        return self._journal.state.accounts

    def _run(self, run: str) -> RunState:
        state = self._accounts.runs.get(label("run", run))
        if state is None:
            raise QuietsumError(f"run {run!r} is not in the ledger; `quietsum ledger show` lists the runs")
        return state

    def _correct(self) -> None:
        """State once what runs of older prices cost by today's, before anything is charged by these."""
        if not self._is_due():
            return
        with self._journal.writing("correct") as add:
            if not self._is_due():  # another process was quicker
                return
            lines = corrections_due(self._accounts, self._prices, self._first)
            private = self._accounts.correction_is_private
            add(Kind.CORRECTION, {
                "pricing": PRICING, "corrections": [line.to_dict() for line in lines], "operator_only": private,
                **({"blind": _blind()} if private else {}),
            })  # fmt: skip

    def _is_due(self) -> bool:
        with self._journal.lock:
            self._journal.follow()
            return self._journal.state.pricing == FIRST and is_due(self._accounts, self._prices, self._first)

    def _find(self, receipt: Receipt) -> tuple[RunState, Reservation]:
        if not isinstance(receipt, Receipt):
            raise InvalidParameter("receipt", receipt, "is not a receipt", "pass what reserve() returned")
        if receipt.head.ledger != self.identity.ledger:
            raise InvalidParameter("receipt", receipt.head.ledger, "is another ledger's", "use that ledger")
        return self._accounts.check_open(receipt.run, receipt.round, receipt.attempt, receipt.sequence)


def _blind() -> str:
    """Chance for a body that exports withhold: its hash then tells nothing, however few things it could say."""
    return os.urandom(BLIND).hex()
