"""The privacy ledger: append-only, hash-chained, signed, with budgets that outlive runs.

Start with :class:`Ledger`; :mod:`quietsum.ledger.books` says how lifetimes work and why that is sound, and
``docs/reference/ledger.md`` how to check a ledger by hand.
"""

from __future__ import annotations

from quietsum.ledger.books import Book
from quietsum.ledger.chain.entries import Entry, Head, Kind, Receipt
from quietsum.ledger.chain.verify import Verification
from quietsum.ledger.chain.witnesses import Testimony
from quietsum.ledger.charges import Charge, Dataset, Terms
from quietsum.ledger.ledger import Ledger
from quietsum.ledger.stores.protocol import LedgerStore, MemoryStore, Row, StoreFailed
from quietsum.ledger.summaries import Identity, RunSummary

__all__ = [
    "Book",
    "Charge",
    "Dataset",
    "Entry",
    "Head",
    "Identity",
    "Kind",
    "Ledger",
    "LedgerStore",
    "MemoryStore",
    "Receipt",
    "Row",
    "RunSummary",
    "StoreFailed",
    "Terms",
    "Testimony",
    "Verification",
]
