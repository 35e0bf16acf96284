"""Where the rows of a workspace's ledger are: in the file itself, or where the file beside it points.

``ledger.db`` is a ledger. ``ledger.db.url`` says in one line that the ledger is on a PostgreSQL server; key and
high-water mark stay beside it, on every coordinator's machine. Both at once would be two books for the same data, so
neither is opened then: that is also what an interrupted move looks like, until it is repeated.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol, runtime_checkable

from quietsum.errors import LedgerBroken, QuietsumError, may_pass
from quietsum.files import PRIVATE, DiskFull, NoRoom, read_file, write_atomically
from quietsum.ledger.stores.missing import missing_ledger, require_nothing_left
from quietsum.ledger.stores.protocol import LedgerStore, NoLedger, StoreFailed, StoreMustWait
from quietsum.ledger.stores.sqlite import SqliteStore
from quietsum.ledger.stores.trusted_servers import check_trust, remember_server

__all__ = [
    "ledger_exists",
    "lost_guards",
    "open_store",
    "path_after_move",
    "read_url",
    "seal_of",
    "url_path",
    "write_durably",
    "write_url",
]

LONGEST_URL = 1 << 16


def url_path(ledger: Path) -> Path:
    """``ledger.db`` → ``ledger.db.url``."""
    return ledger.with_name(ledger.name + ".url")


def path_after_move(ledger: Path) -> Path:
    """``ledger.db`` → ``ledger.db.moved``: what a move leaves behind, never opened as a ledger again."""
    return ledger.with_name(ledger.name + ".moved")


def ledger_exists(ledger: Path) -> bool:
    """Whether there is a ledger here, in a file or on a server.

    An empty file with nothing beside it is none: a start that failed, on a full disk say, leaves it, and the next one
    begins the ledger in it.
    """
    return (ledger.exists() and not _never_begun(ledger)) or url_path(ledger).exists()


def _never_begun(ledger: Path) -> bool:
    beside = (ledger.with_name(ledger.name + end) for end in ("-wal", "-journal", ".key", ".head"))
    return ledger.is_file() and not ledger.stat().st_size and not any(path.exists() for path in beside)


def open_store(ledger: Path, *, create: bool = False, read_only: bool = False, trusted: bool = False) -> LedgerStore:
    """The store of the ledger at this place. Guarantees: where two could be meant, none is opened.

    With ``read_only`` a server is called only if the user trusts it (:mod:`quietsum.ledger.stores.trusted_servers`), or
    if ``trusted``, which a command passes that goes on to write.

    Without ``create`` it has an entry: one that was lost is :class:`~quietsum.errors.LedgerBroken`, one that was never
    begun :class:`~quietsum.ledger.stores.protocol.NoLedger`.
    """
    url = read_url(ledger)
    store = _open(ledger, url, create, read_only, trusted)
    if not create:
        try:
            if next(store.rows(), None) is None:  # not the head: the first entry that cannot be read is named
                raise missing_ledger(ledger, str(ledger if url is None else url_path(ledger)))
        except BaseException:
            store.close()
            raise
    return store


def _open(ledger: Path, url: str | None, create: bool, read_only: bool, trusted: bool) -> LedgerStore:
    if url is None:
        if path_after_move(ledger).exists() and not ledger.exists():
            raise LedgerBroken(
                f"was moved away from {ledger}, and {url_path(ledger)}, which says where to, is gone",
                remedy="put that file back; a new ledger would forget what was spent",
            )
        return SqliteStore(ledger, create=create, read_only=read_only)
    if ledger.exists():
        raise LedgerBroken(
            f"is there twice: {ledger} and {url_path(ledger)}. A move was interrupted, or one of them is a stray",
            remedy="run the same `quietsum ledger move` again, which ends it; nothing is written until then",
        )
    from quietsum.ledger.stores.postgres import PostgresStore, read_address

    if read_only and not trusted:
        check_trust(url, place=read_address(url).name, file=url_path(ledger))
    try:
        store = PostgresStore(url, create=create, read_only=read_only)
    except NoLedger:
        require_nothing_left(ledger)
        raise
    if not read_only:
        remember_server(url)
    return store


@runtime_checkable
class Sealable(Protocol):
    """A store that a move may have closed for good."""

    def read_seal(self) -> str | None:
        """Where the ledger goes on; None where it was not sealed."""
        ...


def seal_of(store: LedgerStore) -> str | None:
    """Where the ledger in ``store`` goes on, where a move has sealed it there; None where it goes on there."""
    return store.read_seal() if isinstance(store, Sealable) else None


@runtime_checkable
class Guarded(Protocol):
    """A store whose tables refuse what a ledger must not be done."""

    def lost_guards(self) -> tuple[str, ...]:
        """The names of triggers that are missing, switched off or changed."""
        ...


def lost_guards(store: LedgerStore) -> tuple[str, ...]:
    """A warning where triggers of the store are gone: nothing but the chain then stands against accidents."""
    names = store.lost_guards() if isinstance(store, Guarded) else ()
    if not names:
        return ()
    listed = ", ".join(names)
    return (f"its triggers were dropped or changed ({listed}): the table takes changes and deletions by accident",)


def read_url(ledger: Path) -> str | None:
    """The address in ``ledger.db.url``; None where there is no such file."""
    path = url_path(ledger)
    try:
        text = read_file(path, LONGEST_URL).decode().strip()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, UnicodeDecodeError) as error:
        if isinstance(error, OSError) and may_pass(error):
            raise StoreMustWait(f"{path} cannot be read now ({error.strerror}); try again") from None
        why = error.strerror if isinstance(error, OSError) and error.strerror else type(error).__name__
        raise QuietsumError(f"{path} cannot be read ({why}); check its owner and contents") from None
    if not text:
        raise QuietsumError(f"{path} is empty; write the address of the ledger's database into it, in one line")
    return text


def write_url(ledger: Path, address: str) -> None:
    """Point ``ledger.db.url`` at a server; the caller vouches for it."""
    write_durably(url_path(ledger), address.strip())
    remember_server(address.strip())


def write_durably(path: Path, line: str) -> None:
    """A file of one line, on disk when this returns, there as a whole or not at all."""
    try:
        write_atomically(path, line.encode() + b"\n", mode=PRIVATE, remedy="run the move again")
    except NoRoom as error:
        raise (StoreMustWait if isinstance(error, DiskFull) else StoreFailed)(str(error)) from None
