"""Would the ledger let this plan in? The ledger's own answer, without a word written.

The workspace's ledger is opened for reading, without its key, and asked what it would say to the run: the gate that
answers is the gate that will stand in front of it. Where there is no ledger yet, an empty one in memory answers.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, final

from quietsum.errors import BudgetExhausted, PlanRefused

if TYPE_CHECKING:
    from quietsum.ledger import Book, Ledger, Outlook
    from quietsum.plan.resolution.resolved import ResolvedPlan

__all__ = ["Rehearsal", "rehearse"]


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Rehearsal:
    """The books of the plan's datasets as they stand, what the plan would leave of their lifetimes, and why it is not
    let in (None: it is)."""

    books: tuple[Book, ...] = ()
    outlooks: tuple[Outlook, ...] = ()
    refusal: BudgetExhausted | PlanRefused | None = None


def rehearse(resolved: ResolvedPlan, ledger: str | os.PathLike[str]) -> Rehearsal:
    """Hold ``resolved`` against the ledger at that path.

    Nothing is written. A ledger that was never begun is fine, one that was lost is LedgerBroken.
    """
    with contextlib.closing(_open(Path(ledger))) as known:
        touched = {(facts.account, facts.dataset) for facts in resolved.parties}
        books = tuple(book for book in known.lifetime() if (book.party, book.dataset) in touched)
        try:
            outlooks = known.would_open(
                f"rehearsal-{secrets.token_hex(8)}",
                terms=resolved.terms(),
                planned=resolved.all_charges(),
                datasets=resolved.datasets(),
                lifetimes=resolved.lifetimes(),
                rounds=resolved.plan.federation.rounds,
            )
        except (BudgetExhausted, PlanRefused) as refusal:
            return Rehearsal(books=books, refusal=refusal)
        return Rehearsal(books=books, outlooks=outlooks)


def _open(path: Path) -> Ledger:
    from quietsum.ledger import Ledger, MemoryStore, NoLedger, SigningKey

    try:
        return Ledger.open(path, read_only=True)
    except NoLedger:
        return Ledger.begin(MemoryStore(), SigningKey.generate())
