"""The high-water mark: the newest signed head, in a small file beside the ledger.

A ledger that is put back from yesterday's copy verifies, because it was whole yesterday. ``<ledger>.head`` remembers
today's head: it is written after every append, by whichever process appended, and the ledger is refused where it does
not contain that head. Only the ledger is ever made durable first, so the mark never runs ahead of it; it may lag behind
by what was appended just before a crash. It is one block of 512 bytes, written in place: one sector is written as a
whole, and a rename would make some file systems flush, which costs as much as the entry itself.

What it does not find: somebody who puts back both files, or removes this one. A missing mark is fine (a copy of the
ledger alone can be read and continued), so heads kept elsewhere are still what stands against intent.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import final

from quietsum.errors import CorruptState, LedgerBroken
from quietsum.files import read_file
from quietsum.ledger.chain.entries import Head
from quietsum.ledger.chain.keys import key_path

__all__ = ["Mark", "mark_path"]

log = logging.getLogger(__name__)

BLOCK = 512
"""Bytes of the mark: one sector of any disk."""
LONGEST = 1 << 16
_HERE = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)  # no other file, and no pipe, is written to


def mark_path(ledger: Path) -> Path:
    """``ledger.db`` → ``ledger.db.head``."""
    return ledger.with_name(ledger.name + ".head")


@final
class Mark:
    """The mark of one ledger. It only ever moves forward, also with several writers."""

    def __init__(self, ledger: Path) -> None:
        self.path = mark_path(ledger)
        self._key = key_path(ledger)

    def read(self) -> Head | None:
        """The head that was marked; None where there is none, or an empty one that a power cut left behind."""
        try:
            text = self._read_block().strip(b"\0\n ")
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
                block = json.dumps(head.to_dict(), separators=(",", ":")).encode().ljust(BLOCK - 1) + b"\n"
                handle = os.open(self.path, os.O_WRONLY | os.O_CREAT | _HERE, 0o600)
                try:
                    os.pwrite(handle, block, 0)
                    if os.fstat(handle).st_size != BLOCK:
                        os.ftruncate(handle, BLOCK)
                finally:
                    os.close(handle)
        except OSError as error:
            log.warning("the ledger's high-water mark %s stays as it was: %s", self.path, error)

    def _read_block(self) -> bytes:
        """The block; read again where another process is just writing it."""
        for _ in range(3):
            block = read_file(self.path, LONGEST)
            if block.rstrip(b"\0\n ").endswith(b"}"):
                break
            time.sleep(0.001)
        return block

    def _further_than(self, head: Head) -> bool:
        """A quick look at what another writer left; :meth:`read` is what judges it."""
        try:
            known = json.loads(read_file(self.path, LONGEST))
            return bool(known["ledger"] == head.ledger and known["sequence"] >= head.sequence)
        except (FileNotFoundError, ValueError, LookupError, TypeError, RecursionError):
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
