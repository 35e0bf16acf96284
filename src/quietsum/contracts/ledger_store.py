"""What every ledger store promises, as tests that anyone's store can run."""

from __future__ import annotations

import threading
import unittest
from collections.abc import Callable, Iterator

from quietsum.errors import QuietsumError
from quietsum.ledger import LedgerStore, Row

__all__ = ["LedgerStoreContract"]


class _Stop(Exception):
    """Raised by the tests inside a transaction."""


class LedgerStoreContract:
    """The suite. A subclass says how an empty store is made, and how the same rows are opened once more.

    ``again`` opens a second store on the rows of ``store``, as another process would; a store that lives in memory
    only leaves it as it is, and what needs a second store is skipped.
    """

    def make(self) -> LedgerStore:
        """A fresh, empty store."""
        raise NotImplementedError("say in a subclass how your store is made")

    def again(self, store: LedgerStore) -> LedgerStore | None:
        """A second, independent store on the same rows; None where there is no such thing."""
        return None

    # ------------------------------------------------------------------------------- words for the tests

    def _row(self, sequence: int, body: str = '{"a":1}') -> Row:
        return Row(sequence, "run", "2026-01-01T00:00:00.000000Z", body, "0" * 64, f"{sequence:064x}", "f" * 128)

    def _fill(self, count: int) -> LedgerStore:
        store = self.make()
        with store.transaction():
            for sequence in range(1, count + 1):
                store.append(self._row(sequence))
        return store

    def _second(self, store: LedgerStore) -> LedgerStore:
        other = self.again(store)
        if other is None:
            raise unittest.SkipTest("this store cannot be opened twice")
        return other

    # --------------------------------------------------------------------------------------------- rows

    def test_it_is_a_store_and_begins_empty(self) -> None:
        """The Protocol's methods are there; no rows, no head."""
        store = self.make()
        assert isinstance(store, LedgerStore)
        assert store.head() is None
        assert list(store.rows()) == []
        store.close()

    def test_rows_come_back_as_they_were_appended(self) -> None:
        """To the last character, also beyond ASCII, quotes and line breaks, and large ones."""
        bodies = [
            '{"a":1}',
            '{"name":"Zürich 🏥 \\u0000 \'quoted\'"}',
            '{"text":"' + "x" * 300_000 + '"}',
            "",
            "a\nb\r\nc",
        ]
        store = self.make()
        rows = [self._row(index, body) for index, body in enumerate(bodies, 1)]
        with store.transaction():
            for row in rows:
                store.append(row)
        assert list(store.rows()) == rows
        assert all(isinstance(row, Row) for row in store.rows())
        store.close()

    def test_head_is_the_last_row_also_inside_a_transaction(self) -> None:
        """A writer sees what it has just appended."""
        store = self._fill(2)
        assert store.head() == (2, f"{2:064x}")
        with store.transaction():
            store.append(self._row(3))
            assert store.head() == (3, f"{3:064x}")
        assert store.head() == (3, f"{3:064x}")
        store.close()

    def test_rows_start_where_asked(self) -> None:
        """Also beyond the end, where there are none, and across any batches that a store reads in."""
        store = self._fill(2500)
        assert [row.sequence for row in store.rows(2499)] == [2499, 2500]
        assert [row.sequence for row in store.rows()] == list(range(1, 2501))
        assert list(store.rows(2501)) == []
        store.close()

    def test_rows_may_be_left_half_read(self) -> None:
        """A reader that stops early keeps no writer from writing."""
        store = self._fill(5)
        assert next(iter(store.rows())).sequence == 1
        with store.transaction():
            store.append(self._row(6))
        assert store.head() == (6, f"{6:064x}")
        store.close()

    # --------------------------------------------------------------------------------------- append-only

    def test_a_row_that_does_not_follow_the_last_one_is_refused(self) -> None:
        """Neither a gap nor a second row of the same number; nothing of that transaction stays."""
        for sequence in (1, 2, 4, 0, -1):
            store = self._fill(2)
            self._refuse(store, self._row(sequence))
            assert [row.sequence for row in store.rows()] == [1, 2], sequence
            store.close()

    def test_rows_are_appended_inside_a_transaction_only(self) -> None:
        """Otherwise their writer would not know when they are durable."""
        store = self._fill(1)
        _catch(lambda: store.append(self._row(2)))
        assert store.head() == (1, f"{1:064x}")
        store.close()

    def _refuse(self, store: LedgerStore, row: Row) -> None:
        def write() -> None:
            with store.transaction():
                store.append(row)

        _catch(write)

    # -------------------------------------------------------------------------------------- transactions

    def test_a_transaction_that_fails_leaves_no_trace(self) -> None:
        """All of its rows or none, and the next one begins where the last good one ended."""
        store = self._fill(1)
        for failure in (_Stop, KeyboardInterrupt):
            try:
                with store.transaction():
                    store.append(self._row(2))
                    store.append(self._row(3))
                    raise failure
            except failure:
                pass
            assert [row.sequence for row in store.rows()] == [1]
        with store.transaction():
            store.append(self._row(2))
        assert store.head() == (2, f"{2:064x}")
        store.close()

    def test_an_empty_transaction_is_fine(self) -> None:
        """Looking under the lock and deciding not to write."""
        store = self._fill(1)
        with store.transaction():
            pass
        assert store.head() == (1, f"{1:064x}")
        store.close()

    def test_transactions_do_not_nest(self) -> None:
        """An inner one could not be undone alone."""
        store = self._fill(1)

        def nest() -> None:
            with store.transaction(), store.transaction():
                pass

        _catch(nest)
        with store.transaction():
            store.append(self._row(2))
        store.close()

    def test_threads_take_turns(self) -> None:
        """Eight writers that read the head and append the next row never collide."""
        store = self.make()
        errors: list[BaseException] = []

        def write() -> None:
            try:
                for _ in range(10):
                    with store.transaction():
                        head = store.head()
                        store.append(self._row(1 if head is None else head[0] + 1))
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=write) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not errors, errors
        assert [row.sequence for row in store.rows()] == list(range(1, 81))
        store.close()

    # -------------------------------------------------------------------------------------- a second store

    def test_a_second_store_sees_what_was_written_and_goes_on_from_there(self) -> None:
        """Durable means: for everybody, at once, in both directions."""
        store = self._fill(2)
        other = self._second(store)
        assert other.head() == (2, f"{2:064x}")
        with other.transaction():
            other.append(self._row(3))
        assert [row.sequence for row in store.rows()] == [1, 2, 3]
        with store.transaction():
            store.append(self._row(4))
        assert other.head() == (4, f"{4:064x}")
        other.close()
        store.close()

    def test_a_second_store_sees_nothing_of_a_transaction_under_way(self) -> None:
        """Rows appear when they are durable, not before."""
        store = self._fill(1)
        other = self._second(store)
        with store.transaction():
            store.append(self._row(2))
            assert other.head() == (1, f"{1:064x}")
        assert other.head() == (2, f"{2:064x}")
        other.close()
        store.close()

    def test_a_second_writer_waits_for_the_first(self) -> None:
        """Exclusive: between its start and its end no other writer appends."""
        store = self._fill(1)
        other = self._second(store)
        inside, order = threading.Event(), []

        def second() -> Iterator[None]:
            inside.wait(30)
            with other.transaction():
                order.append("second")
                head = other.head()
                assert head is not None
                other.append(self._row(head[0] + 1))
            yield

        thread = threading.Thread(target=lambda: list(second()))
        thread.start()
        with store.transaction():
            inside.set()
            store.append(self._row(2))
            thread.join(0.3)
            order.append("first")
        thread.join(60)
        assert order == ["first", "second"], order
        assert [row.sequence for row in store.rows()] == [1, 2, 3]
        other.close()
        store.close()

    # ------------------------------------------------------------------------------------------- closing

    def test_a_closed_store_refuses_and_may_be_closed_twice(self) -> None:
        """An error that says so, never a crash."""
        store = self._fill(1)
        store.close()
        store.close()
        _catch(store.head)
        _catch(lambda: list(store.rows()))
        self._refuse(store, self._row(2))


def _catch(action: Callable[[], object]) -> QuietsumError:
    """The error that teaches, which ``action`` raises."""
    try:
        action()
    except QuietsumError as error:
        return error
    raise AssertionError("no QuietsumError was raised")
