"""Files that are there as a whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path

from quietsum.errors import QuietsumError, may_pass
from quietsum.failpoints import reach

__all__ = ["DiskFull", "NoRoom", "no_room", "sync_folder", "write_atomically"]


class NoRoom(QuietsumError):
    """The file could not be written. What was there before is untouched."""


class DiskFull(NoRoom):
    """The same, for want of room: it may work later."""

    exit_code = 1


def no_room(problem: str, error: OSError) -> NoRoom:
    """The error for what the system refused, by its reason."""
    return DiskFull(problem) if may_pass(error) else NoRoom(problem)


def write_atomically(path: Path, content: bytes) -> None:
    """Write ``content`` to ``path``: to a neighbour first, synced, then renamed; the folder is synced last.

    Guarantees: after a crash at any moment ``path`` holds its old content or the new one, never a part of either.
    """
    neighbour = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with neighbour.open("wb") as file:
            file.write(content)
            file.flush()
            reach("file:written")
            os.fsync(file.fileno())
        reach("file:synced")
        os.replace(neighbour, path)
        reach("file:renamed")
        sync_folder(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            neighbour.unlink()
        why = "the disk is full" if error.errno == errno.ENOSPC else (error.strerror or str(error))
        raise no_room(
            f"{path} could not be written: {why}; what was there before is untouched; make room, then use --resume",
            error,
        ) from None


def sync_folder(folder: Path) -> None:
    """Make renames inside ``folder`` durable, where the system can."""
    flags = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0)
    descriptor = os.open(folder, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
