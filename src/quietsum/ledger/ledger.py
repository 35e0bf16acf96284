"""The privacy ledger: spend first, release after.

``reserve`` writes what a round will cost before any party is asked, ``commit`` writes that its result may leave; both
are on disk when they return. A reservation that is never committed counts as spent, so a crash can only over-count.
Every entry is chained by hash to the one before it and every head is signed, so that a ledger which was changed, cut
or replaced is found by :meth:`Ledger.verify` and by any head kept elsewhere. The lifetime budgets of
:mod:`quietsum.ledger.books` are checked in the same transaction that writes the charge.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, final

from quietsum.errors import InvalidParameter, PlanRefused
from quietsum.ledger.accounts import Reservation, RunState, check_raise, check_reason, rounds_of
from quietsum.ledger.chain.encoding import canonical, digest, label, message_to_sign
from quietsum.ledger.chain.entries import Entry, Kind, Receipt
from quietsum.ledger.chain.journal import Additions, Clock, Journal, system_clock
from quietsum.ledger.chain.keys import SigningKey
from quietsum.ledger.chain.witnesses import Testimony, heads_to
from quietsum.ledger.charges import Charge, Dataset, Terms, budget_to, require_charges
from quietsum.ledger.openings import opening
from quietsum.ledger.pricing import FIRST, PRICING
from quietsum.ledger.reading import LedgerReading
from quietsum.ledger.state import BLIND
from quietsum.ledger.stores.protocol import LedgerStore
from quietsum.ledger.versions import corrections_due, is_due
from quietsum.privacy import Budget, PrivacyUnit
from quietsum.validate import positive, whole_number

__all__ = ["Ledger"]

ROOM, ROOM_EACH = 96 * 1024, 1024
"""Bytes that a reservation and its commit take in the database and its log at most, and more for each charge."""


@final
class Ledger(LedgerReading):
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
    >>> ledger.spent("first")[0]
    Guarantee(ε = 0.798467 per record at δ = 1e-05, exact: contour)
    >>> ledger.verify().entries
    5
    >>> ledger.close(); folder.cleanup()
    """

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

        ``create`` makes file and key where there is neither; a key without its ledger is refused, since a ledger that
        began again would forget what was spent. ``read_only`` needs no key. Where ``<path>.head`` remembers a head,
        the ledger must contain it (:mod:`quietsum.ledger.chain.high_water_mark`). Whoever only reads calls the server
        that a file beside it names if the user said so (:mod:`quietsum.ledger.stores.vouched`), or if ``trusted``.
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
            for kind, body in opening(
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
    ) -> None:
        """Raise what :meth:`open_run` would raise for a new run. Nothing is written, so a reader may ask as well."""
        with self._journal.lock:
            self._journal.follow()
            parts = (label("run", run), terms, tuple(planned), tuple(datasets), lifetimes, rounds, self._prices)
            for _ in opening(self._accounts, *parts):
                pass

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
        party, dataset, epsilon = label("party", party), label("dataset", dataset), positive("epsilon", epsilon)
        if not isinstance(unit, PrivacyUnit):
            raise InvalidParameter("unit", unit, f"is not one of {[str(member) for member in PrivacyUnit]}")
        reason = check_reason(reason)
        with self._journal.writing("raise_budget") as add:
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
            budget = Budget(epsilon=epsilon, delta=delta, unit=unit)
            if book is not None:
                check_raise(book, budget.epsilon, budget.delta, reason)
            add(Kind.BUDGET, {"party": party, "dataset": dataset, **budget_to(budget), "reason": reason})
        return add.last

    def declare_public(self, *, party: str, dataset: str, reason: str) -> Entry:
        """Record why nobody in a dataset needs protection: no gate until its next budget. What was charged stays."""
        party, dataset = label("party", party), label("dataset", dataset)
        reason = check_reason(reason)
        with self._journal.writing("declare_public") as add:
            self._accounts.check_names(party, dataset)
            add(Kind.PUBLIC, {"party": party, "dataset": dataset, "reason": reason})
        return add.last

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
        ``check`` gets what :meth:`drawn` says of the run's dataset while no other process writes, and raises if there
        is to be no more; then nothing was written.
        """
        run = label("run", run)
        with self._journal.writing("draw") as add:
            state = self._run(run)
            if state.terms.enrolled != ():  # round 0 is the enrolment's there, or the run is a coordinator's
                raise InvalidParameter("run", run, "draws no groups", "open it as a site's own, without units enrolled")
            number = state.drawn + 1
            check(self._drawn(state.datasets))
            fresh = {name: told for name, told in seen.items() if self._accounts.witnessed.get(name) != told}
            self._witness(add, run, 0, number, fresh)
        return number

    def sign(self, message: bytes) -> str:
        """The ledger's signature under a ``message`` of its owner; no head is ever mistaken for one."""
        return self._journal.sign(message_to_sign(message))

    def _witness(
        self, add: Additions, run: str, round: int, attempt: int, seen: Mapping[str, Testimony] | None
    ) -> None:
        """Keep what was told, unless something newer is known: another process of ours may have been quicker."""
        if seen is not None:
            kept = {name: told for name, told in seen.items() if self._accounts.succeeds(name, told)}
            body = {"run": run, "round": round, "attempt": attempt, "heads": heads_to(kept), "blind": _blind()}
            add(Kind.WITNESS, body)

    # ------------------------------------------------------------------------------------- the machinery

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
