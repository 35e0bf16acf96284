"""A ledger in a notebook: each lifetime account with its budget and what is spent, and the head.

Only what ``quietsum ledger show`` prints: nothing is written, and no entry is left out because a notebook is narrow.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from quietsum.errors import QuietsumError
from quietsum.ledger.pricing import exceeds
from quietsum.notebook import show_table

if TYPE_CHECKING:
    from quietsum.ledger.books import Book
    from quietsum.ledger.ledger import Ledger

__all__ = ["say_budget", "say_spent", "show_ledger"]


def show_ledger(ledger: Ledger) -> str:
    """The table of ``ledger`` as HTML; of one that is closed or broken, what its store says."""
    try:
        books, head = ledger.lifetime(), ledger.head
    except QuietsumError as error:
        return show_table("Ledger", [("cannot be read", str(error))])
    rows = [
        (book.party, book.dataset, say_budget(book), say_spent(book), f"{book.plans:,}", book.public) for book in books
    ]
    runs = ", ".join(f"{run.run} ({run.committed} of {run.rounds} rounds committed)" for run in ledger.runs())
    notes = [
        f"runs: {runs}" if runs else "no run yet",
        f"head: entry {head.sequence}, {head.hash[:16]}…. quietsum ledger verify recomputes every ε.",
    ]
    heads = ("party", "dataset", "lifetime budget", "spent", "plans", "public because")
    if not any(book.public for book in books):
        rows, heads = [row[:-1] for row in rows], heads[:-1]  # type: ignore[misc,assignment]
    return show_table(f"Ledger {ledger.identity.ledger[:16]}…", rows, heads=heads, notes=notes)


def say_budget(book: Book) -> str:
    """The lifetime budget of an account in words."""
    if book.budget is None:
        return f"none per {book.unit}"
    return f"ε {book.budget.figure} per {book.unit}, δ {book.budget.delta:g}"


def say_spent(book: Book) -> str:
    """How much of a lifetime budget is gone."""
    if book.budget is None:
        return "no gate" if book.public else "no plan since"
    if book.plans == 0 or book.guarantee is None:
        return "nothing"
    if exceeds(book.guarantee.epsilon, book.budget.epsilon):
        return "more than that" + ("" if math.isinf(book.guarantee.epsilon) else f": ε {book.guarantee.epsilon:.3g}")
    return f"{100 * book.spent_fraction:.1f} %" + (" (filter)" if book.guarantee.method == "Rényi filter" else "")
