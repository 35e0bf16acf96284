"""Files that are there as a whole or not at all: the one place where quietsum writes what must outlive a crash.

A file is written to a neighbour in the same folder first, synced, given its name, and then the folder is synced, so
that the name outlives a power cut, too. Where the system refuses, one kind of error says which file and why:
:class:`DiskFull` where it may work later (a full disk, a quota, a failing cable: exit code 1), :class:`NoRoom` where
somebody has to change something (a missing permission, a read-only medium: exit code 2).

What a killed writer leaves is a hidden file ``.name.PID.part``, which nothing reads. SQLite writes its own files; the
ledger's high-water mark is written in place, since it may be late but not slow
(:mod:`quietsum.ledger.chain.high_water_mark`).
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from quietsum.errors import QuietsumError, may_pass
from quietsum.failpoints import reach

__all__ = [
    "PRIVATE",
    "RESUME",
    "DiskFull",
    "NoRoom",
    "check_output",
    "check_room",
    "drafted",
    "no_room",
    "read_file",
    "rename",
    "sync_folder",
    "write_atomically",
    "write_new",
    "write_output",
]

PRIVATE = 0o600
LARGEST = 1 << 26
"""Bytes of the largest text that is read whole: reports, facts of a run, many times what they are."""
RESUME = "make room, then use --resume"


class NoRoom(QuietsumError):
    """The file could not be written. What was there before is untouched."""


class DiskFull(NoRoom):
    """The same, for want of room: it may work later."""

    exit_code = 1


def no_room(problem: str, error: OSError) -> NoRoom:
    """The error for what the system refused, by its reason."""
    return DiskFull(problem) if may_pass(error) else NoRoom(problem)


def why(error: OSError) -> str:
    """The system's reason in words."""
    reason = error.strerror or str(error)
    return f"the disk is full ({reason})" if error.errno in (errno.ENOSPC, errno.EDQUOT) else reason


def read_file(path: Path, limit: int = LARGEST) -> bytes:
    """What is in a plain file of at most ``limit`` bytes; OSError for any other.

    For files whose names others choose: a pipe or a device under such a name would hold whoever reads it for ever, or
    fill the memory.
    """
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "is no plain file", str(path))
        content = file.read(limit + 1)
    if len(content) > limit:
        raise OSError(errno.EINVAL, f"is larger than {limit:,} bytes", str(path))
    return content


def write_atomically(
    path: Path, content: bytes, *, mode: int | None = None, replace: bool = True, remedy: str = RESUME
) -> None:
    """Write ``content`` to ``path``; without ``replace`` FileExistsError where something is there.

    Guarantees: after a crash at any moment ``path`` holds its old content or the new one, never a part of either; when
    this returns, the new one is on disk.
    """
    with drafted(path, mode=mode, replace=replace, remedy=remedy) as file:
        file.write(content)


@contextlib.contextmanager
def drafted(path: Path, *, mode: int | None = None, replace: bool = True, remedy: str = RESUME) -> Iterator[IO[bytes]]:
    """A file to write to, which becomes ``path`` when the block ends well; see :func:`write_atomically`."""
    neighbour = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        try:
            with neighbour.open("wb") as file:
                if mode is not None:
                    os.chmod(neighbour, mode)  # before there is anything to read
                yield file
                file.flush()
                reach("file:written")
                os.fsync(file.fileno())
            reach("file:synced")
            if replace or not _linked(neighbour, path):
                os.replace(neighbour, path)
            reach("file:renamed")
            sync_folder(path.parent)
        except BaseException:
            with contextlib.suppress(OSError):
                neighbour.unlink()
            raise
    except FileExistsError:
        raise
    except OSError as error:
        problem = f"{path} cannot be written: {why(error)}; what was there before is untouched; {remedy}"
        raise no_room(problem, error) from None


def _linked(draft: Path, path: Path) -> bool:
    """Give ``draft`` its name: unlike a rename, this never takes the place of a file that has just appeared."""
    try:
        os.link(draft, path)
    except FileExistsError:
        raise
    except OSError as error:
        if may_pass(error):
            raise
        if os.path.lexists(path):  # a file system without links
            raise FileExistsError from None
        return False
    draft.unlink()
    return True


def write_new(path: Path, content: bytes, *, mode: int = PRIVATE, failpoint: str = "file:created") -> None:
    """A new file, never readable by more than ``mode`` says, on disk when this returns.

    For names that nothing looks for yet: after a crash it may be there in part. FileExistsError where something is
    there; whatever else goes wrong leaves nothing.
    """
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        try:
            with os.fdopen(handle, "wb") as file:
                if hasattr(os, "fchmod"):
                    os.fchmod(handle, mode)
                file.write(content)
                reach(failpoint)
                file.flush()
                os.fsync(handle)
        except BaseException:
            with contextlib.suppress(OSError):
                path.unlink()
            raise
    except FileExistsError:
        raise
    except OSError as error:
        raise no_room(f"{path} cannot be written: {why(error)}; make room and try again", error) from None


def write_output(path: Path, text: str) -> None:
    """What a user asked to have in a file: as a whole where that is a file, straight into a device or a pipe."""
    try:
        kind = path.stat().st_mode
    except FileNotFoundError:
        kind = stat.S_IFREG
    except OSError as error:
        raise no_room(f"{path} cannot be written: {why(error)}; choose another place", error) from None
    if stat.S_ISREG(kind):
        target = path.resolve() if path.is_symlink() else path
        kept = stat.S_IMODE(target.stat().st_mode) if target.exists() else None
        write_atomically(target, text.encode(), mode=kept, remedy="make room, or choose another place")
        return
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise no_room(f"{path} cannot be written: {why(error)}; choose another place", error) from None


def check_output(path: Path) -> None:
    """OSError where :func:`write_output` could not write; nothing is left behind, and what is there stays.

    To be asked before long work whose end it is.
    """
    if not path.exists() or path.is_file():
        target = path.resolve() if path.is_symlink() else path
        neighbour = target.with_name(f".{target.name}.{os.getpid()}.part")
        with neighbour.open("wb"):
            neighbour.unlink()
    elif path.is_dir() or not os.access(path, os.W_OK):
        number = errno.EISDIR if path.is_dir() else errno.EACCES
        raise OSError(number, os.strerror(number))


def check_room(folder: Path, count: int) -> None:
    """Raise :class:`DiskFull` where ``folder`` has no room for ``count`` more bytes.

    Asked before something is reserved, for all that must be written before it is released: a disk that is full already
    then costs no charge. Somebody else may fill it the moment after.
    """
    path = folder / f".room.{os.getpid()}-{threading.get_ident()}.part"
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT, PRIVATE)
        try:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(handle, 0, count)
        finally:
            os.close(handle)
            path.unlink()
    except OSError as error:
        if error.errno in (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL):  # a file system that cannot say
            return
        problem = f"{folder} has no room for the next {count:,} bytes: {why(error)}; nothing was charged; {RESUME}"
        raise no_room(problem, error) from None


def rename(old: Path, new: Path) -> None:
    """Give ``old`` the name ``new``, in the same folder and for good."""
    os.replace(old, new)
    sync_folder(new.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in ``folder`` durable, where the system can. A disk that fails while it does so is an error."""
    flags = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0)
    try:
        descriptor = os.open(folder, flags)
    except OSError as error:
        if error.errno in _CANNOT:
            return
        raise
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _CANNOT:
            raise
    finally:
        os.close(descriptor)


_CANNOT = (errno.EINVAL, errno.ENOTSUP, errno.EACCES, errno.EPERM, errno.EISDIR, errno.EROFS)
"""What a system says that does not sync folders, or not this one to us."""
