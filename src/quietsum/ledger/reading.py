"""What can be asked of a ledger: what was spent and under which budget, who was told what, and whether all of it holds.

Nothing here writes. Answers follow the store, so they include what other processes have written meanwhile. The ε are
computed from the entries' events each time, never read from what an entry says of itself.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping
from types import TracebackType
from typing import Self

from quietsum.errors import QuietsumError
from quietsum.ledger.accounts import Accounts, RunState
from quietsum.ledger.books import Book
from quietsum.ledger.chain.encoding import head_message, label
from quietsum.ledger.chain.entries import Entry, Head, Kind, check_link
from quietsum.ledger.chain.journal import Journal
from quietsum.ledger.chain.verify import Verification, verify_rows
from quietsum.ledger.chain.witnesses import Testimony, heads_from
from quietsum.ledger.charges import Charge
from quietsum.ledger.pricing import FIRST, Cost, Prices
from quietsum.ledger.stores.opening import sealed_to
from quietsum.ledger.summaries import Identity, RunSummary, summary_of
from quietsum.ledger.versions import Correction, corrections_due, is_due
from quietsum.privacy import Budget, Guarantee, Observer, PrivacyUnit
from quietsum.validate import whole_number

__all__ = ["LedgerReading"]


class LedgerReading:
    """The half of :class:`~quietsum.ledger.ledger.Ledger` that changes nothing."""

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

    @property
    def identity(self) -> Identity:
        """The ledger's name and public key."""
        assert self._journal.state.key is not None
        return Identity(ledger=self._journal.state.ledger, public_key=self._journal.state.key.hex)

    @property
    def head(self) -> Head:
        """The newest entry, signed. Keep it in a checkpoint, report or receipt: it anchors everything before it."""
        with self._journal.lock:
            self._journal.follow()
            return self._journal.head()

    @property
    def moved_to(self) -> str | None:
        """Where it goes on, where a move has sealed it here: it can be read then, and never again be written."""
        return sealed_to(self._journal.store)

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
            return tuple(summary_of(name, run) for name, run in self._accounts.runs.items())

    def pricing_of(self, run: str) -> int:
        """The version of prices by which a run was opened."""
        with self._journal.lock:
            self._journal.follow()
            return self._run(run).pricing

    def cost(self, run: str, charge: Charge) -> Cost:
        """What a charge of a run counts as by today's rules; in a run of older ones that may be more than it says."""
        with self._journal.lock:
            return self._run(run).cost(charge)

    def repriced(self, run: str) -> bool:
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

    def spent_by_party(self, run: str) -> Mapping[tuple[str, PrivacyUnit], Guarantee]:
        """ε of each party and unit in this run, if its schedule runs as planned. Every reservation counts."""
        with self._journal.lock:
            self._journal.follow()
            state = self._run(run)
            found = {}
            for account in sorted(state.shares):
                guarantee = self._accounts.priced(state, account, self._prices)
                found[account] = dataclasses.replace(guarantee, observer=state.shares[account].observers[0])
            return found

    def spent(self, run: str) -> tuple[Guarantee, ...]:
        """ε per unit and observer, of the worst party, if the schedule runs as planned. Every reservation counts.

        Parties hold disjoint data, so the worst one's ε is every one's bound; a mean would hide it. An observer that
        some charge does not protect against is listed with an infinite ε.
        """
        parties = self.spent_by_party(run)
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

    def declared_public(self) -> Mapping[tuple[str, str], str]:
        """Datasets without a gate, by party and name, with the reason."""
        with self._journal.lock:
            self._journal.follow()
            return dict(self._accounts.public)

    def reservations(self, run: str) -> frozenset[tuple[int, int]]:
        """Round and attempt of everything that was ever reserved in a run."""
        with self._journal.lock:
            self._journal.follow()
            return frozenset(self._run(run).reserved)

    def drawn(self, party: str, dataset: str) -> Mapping[str, tuple[int, int]]:
        """For each run on a dataset in which groups were drawn: in how many sessions, and how many attempts it charged.

        An attempt is charged after its session was opened, so no more are counted than there were sessions: those of
        books from before sessions were written down count for nothing.
        """
        with self._journal.lock:
            self._journal.follow()
            return self._drawn({party: dataset})

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
                book.seen(accounts.public.get((book.party, book.dataset), ""), self._prices)
                for _, book in sorted(accounts.books.items())
                if book.plans or book.budget is not None
            )

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

    def testimony(self) -> Testimony:
        """This ledger's newest head with its public key, for the other side to keep."""
        return Testimony(public_key=self.identity.public_key, head=self.head)

    def witnessed(self) -> Mapping[str, Testimony]:
        """The newest head of each other ledger that was told to this one, by the name of whoever keeps it."""
        with self._journal.lock:
            self._journal.follow()
            return dict(self._accounts.witnessed)

    def receipts(self) -> Iterator[tuple[Entry, Mapping[str, Testimony]]]:
        """All heads of other ledgers in the order in which they came."""
        for entry in self.entries():
            if entry.kind is Kind.WITNESS:
                yield entry, heads_from(entry.body["heads"])

    # ------------------------------------------------------------------------------------- the machinery

    def _drawn(self, datasets: Mapping[str, str]) -> dict[str, tuple[int, int]]:
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
