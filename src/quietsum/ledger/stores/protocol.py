"""Where rows are kept: a small Protocol, and a store in memory for tests.

A store knows nothing of privacy. It keeps rows in order, lets one writer at a time append, and has made them durable
when its transaction ends. :class:`quietsum.contracts.LedgerStoreContract` is the shipped suite that every store passes.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol, final, runtime_checkable

from quietsum.errors import LedgerBroken, QuietsumError

__all__ = [
    "LONGEST",
    "ChecksRoom",
    "LedgerStore",
    "MemoryStore",
    "NoLedger",
    "Row",
    "StoreFailed",
    "StoreMustWait",
    "read_row",
]

LONGEST = 2**63 - 1
"""The largest number that a store can give an entry."""


class Row(NamedTuple):
    """One entry as it is stored: a number and six texts."""

    sequence: int
    kind: str
    time: str
    body: str
    previous: str
    hash: str
    signature: str


def read_row(values: Sequence[Any], at: int) -> Row:
    """The row that a store holds where entry ``at``, or a later one, is expected.

    Guarantees: for any values from the store, this is a whole number and six texts that can be encoded, in the order of
    the ledger; otherwise :class:`~quietsum.errors.LedgerBroken` names the entry. So nothing behind a store meets NULL,
    bytes, a number for a text, or bytes that are no UTF-8 (which a store passes on as lone surrogates).
    """
    row = Row._make(values)
    if type(row.sequence) is not int or row.sequence < at:
        raise LedgerBroken(f"calls itself entry {row.sequence!r}", at=at, remedy=_RESTORE)
    for name, value in zip(Row._fields[1:], row[1:], strict=True):
        if type(value) is not str:
            raise LedgerBroken(
                f"is damaged: its {name} is {_KINDS.get(type(value), 'something else')}, not a text",
                at=row.sequence,
                remedy=_RESTORE,
            )
        if not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value):
            raise LedgerBroken(f"is damaged: its {name} is no UTF-8", at=row.sequence, remedy=_RESTORE)
    return row


_KINDS: dict[type, str] = {type(None): "missing", bytes: "bytes", int: "a number", float: "a number"}
_RESTORE = "restore the ledger from an unaltered copy, and run nothing on its datasets until then"


class StoreFailed(QuietsumError):
    """The store could not do what was asked: disk full, locked, read-only. Nothing was written."""


class NoLedger(QuietsumError):
    """There is no ledger here, and nothing says that there was one."""


class StoreMustWait(StoreFailed):
    """A full disk, another writer that does not end, a server that does not answer: the same may work later."""

    exit_code = 1


@runtime_checkable
class ChecksRoom(Protocol):
    """A store that can say beforehand whether its disk is full."""

    def check_room(self, count: int) -> None:
        """Raise :class:`StoreMustWait` where there is no room for ``count`` more bytes."""
        ...


@runtime_checkable
class LedgerStore(Protocol):
    """An append-only list of rows.

    Guarantees that the ledger relies on: rows come back as they were appended; between the start and the end of a
    transaction no other writer, in this process or another one, appends; when a transaction has ended without an
    error its rows survive a crash of the machine; when it ended with one, none of its rows were kept.
    """

    def head(self) -> tuple[int, str] | None:
        """Sequence and hash of the last row, inside a transaction also of one appended there; None when empty."""
        ...

    def transaction(self) -> contextlib.AbstractContextManager[None]:
        """Exclusive until it ends; durable when it ends well, without a trace when it ends with an exception."""
        ...

    def append(self, row: Row) -> None:
        """Add the next row, inside a transaction; any other sequence than last + 1 is refused."""
        ...

    def rows(self, start: int = 1) -> Iterator[Row]:
        """All rows from sequence ``start`` on, in order, without holding them all in memory."""
        ...

    def close(self) -> None:
        """Let go of files and locks; closing twice is fine."""
        ...


@final
class MemoryStore:
    """A store that forgets everything with its process. For tests and for trying things out."""

    def __init__(self) -> None:
        self._rows: list[Row] = []
        self._lock = threading.RLock()
        self._writing = False
        self._closed = False

    def head(self) -> tuple[int, str] | None:
        """Sequence and hash of the last row."""
        self._require_open()
        return (self._rows[-1].sequence, self._rows[-1].hash) if self._rows else None

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Exclusive among threads."""
        with self._lock:
            self._require_open()
            if self._writing:
                raise StoreFailed("a transaction is already under way; end it before the next one")
            kept, self._writing = len(self._rows), True
            try:
                yield
            except BaseException:
                del self._rows[kept:]
                raise
            finally:
                self._writing = False

    def append(self, row: Row) -> None:
        """Add the next row."""
        self._require_open()
        if not self._writing:
            raise StoreFailed("rows are appended inside a transaction only")
        if row.sequence != len(self._rows) + 1:
            raise StoreFailed(f"row {row.sequence} does not follow row {len(self._rows)}; the ledger only grows")
        self._rows.append(row)

    def rows(self, start: int = 1) -> Iterator[Row]:
        """All rows from ``start`` on."""
        self._require_open()
        yield from self._rows[max(0, start - 1) :]

    def close(self) -> None:
        """Refuse everything from now on."""
        self._closed = True

    def _require_open(self) -> None:
        if self._closed:
            raise StoreFailed("this ledger store is closed; open it again")
