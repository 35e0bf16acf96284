"""Every ledger store of ours keeps the stores' contract, and the contract catches stores that do not."""

from __future__ import annotations

import contextlib
import tempfile
import unittest
from collections.abc import Iterator
from pathlib import Path

import pytest

from ledger.postgres import server
from quietsum.contracts import LedgerStoreContract
from quietsum.ledger.stores.postgres import PostgresStore
from quietsum.ledger.stores.protocol import LedgerStore, MemoryStore, Row
from quietsum.ledger.stores.sqlite import SqliteStore


class TestMemoryStore(LedgerStoreContract):
    def make(self) -> LedgerStore:
        return MemoryStore()


class TestSqliteStore(LedgerStoreContract):
    def make(self) -> LedgerStore:
        self.folder = tempfile.TemporaryDirectory()  # lives as long as the test's instance
        return SqliteStore(Path(self.folder.name) / "ledger.db", create=True)

    def again(self, store: LedgerStore) -> LedgerStore | None:
        assert isinstance(store, SqliteStore)
        return SqliteStore(store.path)


class TestPostgresStore(LedgerStoreContract):
    def make(self) -> LedgerStore:
        self.address = server().schema()
        return PostgresStore(self.address, create=True)

    def again(self, store: LedgerStore) -> LedgerStore | None:
        return PostgresStore(self.address)


# ------------------------------------------------------------------------------ stores that break the contract


class Wrapped:
    """A store that passes everything on to one in memory; each control below breaks one promise."""

    def __init__(self) -> None:
        self.inner = MemoryStore()

    def head(self) -> tuple[int, str] | None:
        return self.inner.head()

    def transaction(self) -> contextlib.AbstractContextManager[None]:
        return self.inner.transaction()

    def append(self, row: Row) -> None:
        self.inner.append(row)

    def rows(self, start: int = 1) -> Iterator[Row]:
        return self.inner.rows(start)

    def close(self) -> None:
        self.inner.close()


class TrimsBodies(Wrapped):
    def append(self, row: Row) -> None:
        self.inner.append(row._replace(body=row.body.replace("\r\n", "\n")))


class KeepsHalfATransaction(Wrapped):
    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        error: BaseException | None = None
        with self.inner.transaction():
            try:
                yield
            except BaseException as caught:
                error = caught
        if error is not None:
            raise error


class Renumbers(Wrapped):
    def append(self, row: Row) -> None:
        head = self.inner.head()
        self.inner.append(row._replace(sequence=1 if head is None else head[0] + 1))


class WritesAnyTime(Wrapped):
    def append(self, row: Row) -> None:
        try:
            self.inner.append(row)
        except Exception:
            with self.inner.transaction():
                self.inner.append(row)


class ForgetsWhereToStart(Wrapped):
    def rows(self, start: int = 1) -> Iterator[Row]:
        return self.inner.rows(1)


class StaysOpen(Wrapped):
    def close(self) -> None:
        pass


class LetsEverybodyIn(Wrapped):
    """Two stores on the same rows, without a lock between them."""

    def transaction(self) -> contextlib.AbstractContextManager[None]:
        self.inner._writing = True
        return contextlib.nullcontext()


def contract_of(kind: type[Wrapped]) -> LedgerStoreContract:
    class Contract(LedgerStoreContract):
        def make(self) -> LedgerStore:
            return kind()

        def again(self, store: LedgerStore) -> LedgerStore | None:
            assert isinstance(store, Wrapped)
            other = kind()
            other.inner = store.inner
            return other

    return Contract()


def test_a_wrapper_that_changes_nothing_passes() -> None:
    """The control of the controls. One rows' list shared in memory shows what is under way, which files do not."""
    contract = contract_of(Wrapped)
    for name in dir(contract):
        if name.startswith("test_") and name != "test_a_second_store_sees_nothing_of_a_transaction_under_way":
            getattr(contract, name)()


@pytest.mark.parametrize(
    ("broken", "caught_by"),
    [
        (TrimsBodies, "test_rows_come_back_as_they_were_appended"),
        (KeepsHalfATransaction, "test_a_transaction_that_fails_leaves_no_trace"),
        (Renumbers, "test_a_row_that_does_not_follow_the_last_one_is_refused"),
        (WritesAnyTime, "test_rows_are_appended_inside_a_transaction_only"),
        (ForgetsWhereToStart, "test_rows_start_where_asked"),
        (StaysOpen, "test_a_closed_store_refuses_and_may_be_closed_twice"),
        (LetsEverybodyIn, "test_a_second_writer_waits_for_the_first"),
        (Wrapped, "test_a_second_store_sees_nothing_of_a_transaction_under_way"),
    ],
)
def test_a_broken_store_is_caught(broken: type[Wrapped], caught_by: str) -> None:
    with pytest.raises(AssertionError):
        getattr(contract_of(broken), caught_by)()


def test_the_contract_says_that_make_is_missing() -> None:
    with pytest.raises(NotImplementedError, match="subclass"):
        LedgerStoreContract().make()


def test_a_store_that_cannot_be_opened_twice_skips_what_needs_two() -> None:
    with pytest.raises(unittest.SkipTest):
        TestMemoryStore().test_a_second_writer_waits_for_the_first()
