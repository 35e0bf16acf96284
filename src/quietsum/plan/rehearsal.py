"""Would the ledger let this plan in? The ledger's own answer, without a word written.

The plan is opened on a store that reads the workspace's ledger and forgets what is appended to it, so the gate that
answers is the gate that will stand in front of the run. Where there is no ledger yet, an empty one in memory answers.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, final

from quietsum.errors import BudgetExhausted, PlanRefused

if TYPE_CHECKING:
    from quietsum.ledger import Book, Ledger, LedgerStore, Row
    from quietsum.plan.resolved import ResolvedPlan

__all__ = ["Rehearsal", "rehearse"]


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Rehearsal:
    """The books of the plan's datasets as they stand, and why the plan is not let in (None: it is)."""

    books: tuple[Book, ...] = ()
    refusal: BudgetExhausted | PlanRefused | None = None


def rehearse(resolved: ResolvedPlan, ledger: str | os.PathLike[str]) -> Rehearsal:
    """Hold ``resolved`` against the ledger at that path. Nothing is written, and a missing ledger is fine."""
    with contextlib.closing(_copy(Path(ledger))) as copy:
        touched = {(facts.account, facts.dataset) for facts in resolved.parties}
        books = tuple(book for book in copy.lifetime() if (book.party, book.dataset) in touched)
        try:
            copy.open_run(
                f"rehearsal-{secrets.token_hex(8)}",
                plan=resolved.plan.to_dict(),
                terms=resolved.terms(),
                planned=resolved.planned(),
                datasets=resolved.datasets(),
                lifetimes=resolved.lifetimes(),
            )
        except (BudgetExhausted, PlanRefused) as refusal:
            return Rehearsal(books=books, refusal=refusal)
        return Rehearsal(books=books)


def _copy(path: Path) -> Ledger:
    from quietsum.ledger import Ledger, MemoryStore
    from quietsum.ledger.keys import SigningKey, load_key
    from quietsum.ledger.sqlite import SqliteStore

    if not path.exists():
        return Ledger.begin(MemoryStore(), SigningKey.generate())
    with Ledger.open(path, read_only=True) as known:
        key = load_key(path, known.identity.public_key)
    return Ledger.on(_Forgetful(SqliteStore(path, read_only=True)), key)


@final
class _Forgetful:
    """A store that shows what another one holds, and keeps what is appended in memory only."""

    def __init__(self, store: LedgerStore) -> None:
        self._store = store
        self._rows: list[Row] = []

    def head(self) -> tuple[int, str] | None:
        """Sequence and hash of the last row."""
        return (self._rows[-1].sequence, self._rows[-1].hash) if self._rows else self._store.head()

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Nothing to lock: nobody else sees what is appended."""
        yield

    def append(self, row: Row) -> None:
        """Add a row that is forgotten with this store."""
        self._rows.append(row)

    def rows(self, start: int = 1) -> Iterator[Row]:
        """The other store's rows, then those appended here."""
        mine = (row for row in self._rows if row.sequence >= start)
        return itertools.chain(self._store.rows(start), mine)

    def close(self) -> None:
        """Let go of the other store."""
        self._store.close()
