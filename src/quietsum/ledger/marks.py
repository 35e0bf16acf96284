"""The high-water mark: the newest signed head, in a small file beside the ledger.

A ledger that is put back from yesterday's copy verifies, because it was whole yesterday. ``<ledger>.head`` remembers
today's head: it is replaced after every append, by whichever process appended, and the ledger is refused where it does
not contain that head. Only the ledger is ever made durable first, so the mark never runs ahead of it; it may lag behind
by what was appended just before a crash.

What it does not find: somebody who puts back both files, or removes this one. A missing mark is fine (a copy of the
ledger alone can be read and continued), so heads kept elsewhere are still what stands against intent.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import final

from quietsum.errors import CorruptState, LedgerBroken
from quietsum.ledger.entries import Head
from quietsum.ledger.keys import key_path

__all__ = ["Mark", "mark_path"]

log = logging.getLogger(__name__)


def mark_path(ledger: Path) -> Path:
    """``ledger.db`` → ``ledger.db.head``."""
    return ledger.with_name(ledger.name + ".head")


@final
class Mark:
    """The mark of one ledger. It only ever moves forward, whoever writes it."""

    def __init__(self, ledger: Path) -> None:
        self.path = mark_path(ledger)
        self._fresh = self.path.with_name(self.path.name + ".new")
        self._key = key_path(ledger)

    def read(self) -> Head | None:
        """The head that was marked; None where there is none, or an empty one that a power cut left behind."""
        try:
            text = self.path.read_bytes().strip(b"\0\n ")
        except FileNotFoundError:
            return None
        except OSError as error:
            raise LedgerBroken(
                f"has a high-water mark that cannot be read ({self.path}: {error.strerror})", remedy="check its owner"
            ) from None
        if not text:
            return None
        try:
            return Head.from_dict(json.loads(text))
        except (CorruptState, ValueError, RecursionError):
            raise LedgerBroken(
                f"has a high-water mark that is no head ({self.path})",
                remedy="put it back from a copy, or move it away and run quietsum ledger verify with a head kept "
                "elsewhere (--anchor)",
            ) from None

    def advance(self, head: Head) -> None:
        """Move the mark to ``head`` unless it is there or further on.

        What was appended is durable already, so a mark that cannot be written is a warning: the older one stays.
        """
        try:
            with self._alone():
                if self._further_than(head):
                    return
                handle = os.open(self._fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
                try:
                    os.write(handle, json.dumps(head.to_dict()).encode() + b"\n")
                finally:
                    os.close(handle)
                os.replace(self._fresh, self.path)
        except OSError as error:
            with contextlib.suppress(OSError):
                self._fresh.unlink()
            log.warning("the ledger's high-water mark %s stays as it was: %s", self.path, error)

    def _further_than(self, head: Head) -> bool:
        """A quick look at what another writer left; :meth:`read` is what judges it."""
        try:
            known = json.loads(self.path.read_bytes())
            return bool(known["ledger"] == head.ledger and known["sequence"] >= head.sequence)
        except (FileNotFoundError, ValueError, LookupError, TypeError):
            return False

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """One writer of the mark at a time, among threads and processes; the key's file is what is locked."""
        try:
            import fcntl
        except ImportError:  # where there is no such lock, two writers may set the mark back by one entry
            yield
            return
        handle = os.open(self._key, os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)
