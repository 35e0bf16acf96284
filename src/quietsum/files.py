"""Files that are there as a whole or not at all: the one place where quietsum writes what must outlive a crash.

A file is written to a neighbour in the same folder first, synced, given its name, and then the folder is synced, so
that the name outlives a power cut, too. A folder is made in the same way (:func:`draft_folder`). If the system refuses,
one kind of error says which file and why: :class:`DiskFull` if it may work later (a full disk, a quota, a failing
cable: exit code 1), :class:`NoRoom` if somebody has to change something (a missing permission, a read-only medium:
exit code 2).

A writer that is killed leaves a hidden file ``.name.PID.part``, which nothing reads.

Three things are written elsewhere, since they follow other rules. Append-only logs (:mod:`quietsum.alerts.auditlog`,
events of a run, logs of services) grow line by line, and readers expect a torn last line. SQLite writes and syncs its
own files (:mod:`quietsum.ledger.stores.sqlite`). The ledger's high-water mark is written in place, since it may be late
but not slow (:mod:`quietsum.ledger.chain.high_water_mark`).
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import shutil
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
    "draft_file",
    "draft_folder",
    "no_room",
    "read_file",
    "read_memory",
    "reason_of",
    "remember",
    "rename",
    "state_file",
    "sync_folder",
    "write_atomically",
    "write_new",
    "write_output",
]

PRIVATE = 0o600
"""The permissions of a file that only its owner may read."""
LARGEST = 1 << 26
"""Bytes of the largest text that is read whole: reports, facts of a run, many times what they are."""
RESUME = "make room, then use --resume"
"""What to do after a disk was full."""


class NoRoom(QuietsumError):
    """The file could not be written. What was there before is untouched."""


class DiskFull(NoRoom):
    """The file could not be written because the disk is full or fails: it may work later."""

    exit_code = 1


def no_room(problem: str, error: OSError) -> NoRoom:
    """The error to raise for what the system refused: :class:`DiskFull` if it may pass, else :class:`NoRoom`."""
    return DiskFull(problem) if may_pass(error) else NoRoom(problem)


def reason_of(error: OSError) -> str:
    """The system's reason in words."""
    reason = error.strerror or str(error)
    return f"the disk is full ({reason})" if error.errno in (errno.ENOSPC, errno.EDQUOT) else reason


def read_file(path: Path, limit: int = LARGEST) -> bytes:
    """Read a plain file of at most ``limit`` bytes; raises OSError for any other.

    For files that others may have put there: a pipe or a device of that name would block the reader for ever, or fill
    the memory.
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
    path: Path,
    content: bytes,
    *,
    mode: int | None = None,
    replace: bool = True,
    sync: bool = True,
    remedy: str = RESUME,
) -> None:
    """Write ``content`` to ``path``. Raises FileExistsError if something is there and ``replace`` is False.

    Guarantees: after a crash at any moment ``path`` holds its old content or the new one, never a part of either; when
    this returns, the new one is on disk. Without ``sync`` a power cut may take the file or leave a part of it, so it is
    for files that can be made again and are checked when they are read.
    """
    with draft_file(path, mode=mode, replace=replace, sync=sync, remedy=remedy) as file:
        file.write(content)


@contextlib.contextmanager
def draft_file(
    path: Path, *, mode: int | None = None, replace: bool = True, sync: bool = True, remedy: str = RESUME
) -> Iterator[IO[bytes]]:
    """Open a file that becomes ``path`` when the block ends well, with the guarantees of :func:`write_atomically`."""
    neighbour = _neighbour(path)
    try:
        try:
            with neighbour.open("wb") as file:
                if mode is not None:
                    os.chmod(neighbour, mode)  # before there is anything to read
                yield file
                if sync:
                    file.flush()
                    reach("file:written")
                    os.fsync(file.fileno())
            if sync:
                reach("file:synced")
            if replace or not _link(neighbour, path):
                os.replace(neighbour, path)
            if sync:
                reach("file:renamed")
                sync_folder(path.parent)
        except BaseException:
            with contextlib.suppress(OSError):
                neighbour.unlink()
            raise
    except FileExistsError:
        raise
    except OSError as error:
        problem = f"{path} cannot be written: {reason_of(error)}; what was there before is untouched; {remedy}"
        raise no_room(problem, error) from None


def _neighbour(path: Path) -> Path:
    """The draft of ``path``; each thread has its own, and a process overwrites that of a dead one with its number."""
    thread = "" if threading.current_thread() is threading.main_thread() else f"-{threading.get_ident()}"
    return path.with_name(f".{path.name}.{os.getpid()}{thread}.part")


def _link(draft: Path, path: Path) -> bool:
    """Give ``draft`` its name; unlike a rename, this never replaces a file that has just appeared.

    Returns False on a file system without links, where nothing was done.
    """
    try:
        os.link(draft, path)
    except FileExistsError:
        raise
    except OSError as error:
        if may_pass(error):
            raise
        if os.path.lexists(path):
            raise FileExistsError from None
        return False
    draft.unlink()
    return True


def write_new(path: Path, content: bytes, *, mode: int = PRIVATE, failpoint: str = "file:created") -> None:
    """Write a new file, never readable by more than ``mode`` says, on disk when this returns.

    For names that nothing looks for yet: after a crash a part of it may be there. Raises FileExistsError if something
    is there; after any other error nothing is left.
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
        raise no_room(f"{path} cannot be written: {reason_of(error)}; make room and try again", error) from None


@contextlib.contextmanager
def draft_folder(folder: Path, *, mode: int = 0o777, failpoint: str = "") -> Iterator[Path]:
    """Make a hidden folder that becomes ``folder`` when the block ends well.

    Guarantees: after a crash at any moment ``folder`` is there with all that was put into it, or not at all. What
    processes that died have left of it is removed by the next one. Raises FileExistsError if something other than an
    empty folder is there; :class:`NoRoom` or :class:`DiskFull` if the system refuses, also inside the block.

    The files in it are synced by their own writers, the names in it and in its folders here. ``failpoint`` begins the
    names of its failpoints; without it there are none.
    """
    try:
        if os.path.lexists(folder) and not (folder.is_dir() and not any(folder.iterdir())):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(folder))
        folder.parent.mkdir(parents=True, exist_ok=True)
        _clear_drafts(folder)
        draft = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.part")
        draft.mkdir(mode=mode)
        alive = _hold(draft)
        try:
            yield draft
            for inner in (*(found for found in draft.iterdir() if found.is_dir()), draft):
                sync_folder(inner)
            if failpoint:
                reach(f"{failpoint}:staged")
            try:
                draft.rename(folder)  # the system refuses if a file, or a folder with content, is there by now
            except OSError:
                if os.path.lexists(folder):
                    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(folder)) from None
                raise
            sync_folder(folder.parent)
            if failpoint:
                reach(f"{failpoint}:renamed")
        finally:
            shutil.rmtree(draft, ignore_errors=True)
            if alive is not None:
                os.close(alive)
    except FileExistsError:
        raise
    except OSError as error:
        raise no_room(f"{folder} cannot be made: {reason_of(error)}; nothing of it is left, try again", error) from None


def _clear_drafts(folder: Path) -> None:
    """Remove what processes that died have left of a ``folder`` of this name: there may be private keys in it."""
    ours = re.compile(rf"\.{re.escape(folder.name)}\.[a-z0-9_]{{8}}\.part")
    with contextlib.suppress(OSError):  # a place that cannot be listed: then it stays
        for left in [one for one in folder.parent.iterdir() if ours.fullmatch(one.name) and not one.is_symlink()]:
            handle = _hold(left)
            if handle is not None:  # no process is still filling it
                shutil.rmtree(left, ignore_errors=True)
                os.close(handle)


def _hold(draft: Path) -> int | None:
    """A lock that ends with the process; None if another process has it, or if the system has no such lock."""
    try:
        import fcntl

        handle = os.open(draft, os.O_RDONLY)
    except (ImportError, OSError):
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        return None
    return handle


def write_output(path: Path, content: str | bytes) -> None:
    """Write what a user asked to have in a file: as a whole if it is a file, straight into a device or a pipe."""
    data = content.encode() if isinstance(content, str) else content
    try:
        kind = path.stat().st_mode
    except FileNotFoundError:
        kind = stat.S_IFREG
    except OSError as error:
        raise no_room(f"{path} cannot be written: {reason_of(error)}; choose another place", error) from None
    if stat.S_ISREG(kind):
        target = path.resolve() if path.is_symlink() else path
        kept = stat.S_IMODE(target.stat().st_mode) if target.exists() else None
        write_atomically(target, data, mode=kept, remedy="make room, or choose another place")
        return
    try:
        path.write_bytes(data)
    except OSError as error:
        raise no_room(f"{path} cannot be written: {reason_of(error)}; choose another place", error) from None


def check_output(path: Path) -> None:
    """Raise OSError if :func:`write_output` could not write; nothing is left behind, and what is there stays.

    To be called before long work that ends in this file.
    """
    if not path.exists() or path.is_file():
        target = path.resolve() if path.is_symlink() else path
        neighbour = _neighbour(target)
        with neighbour.open("wb"):
            neighbour.unlink()
    elif path.is_dir() or not os.access(path, os.W_OK):
        number = errno.EISDIR if path.is_dir() else errno.EACCES
        raise OSError(number, os.strerror(number))


def check_room(folder: Path, count: int) -> None:
    """Raise :class:`DiskFull` if ``folder`` has no room for ``count`` more bytes.

    To be called before something is reserved, for all that must be written before it is released: a disk that is full
    already then costs no charge. Another program may fill it the moment after.
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
        if error.errno in (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL):  # a file system that cannot tell
            return
        problem = (
            f"{folder} has no room for the next {count:,} bytes: {reason_of(error)}; nothing was charged; {RESUME}"
        )
        raise no_room(problem, error) from None


def rename(old: Path, new: Path) -> None:
    """Give ``old`` the name ``new``, in the same folder; durable when this returns."""
    os.replace(old, new)
    sync_folder(new.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in ``folder`` durable if the system can. Raises OSError if the disk fails while it does so."""
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
"""What a system answers that does not sync folders, or does not let us sync this one."""


# ------------------------------------------------------------------------------------------- the user's own memory


def state_file(name: str) -> Path | None:
    """``$XDG_STATE_HOME/quietsum/NAME``, or that in ``~/.local/state``; None for a user without a home."""
    state = os.environ.get("XDG_STATE_HOME", "")
    try:
        folder = Path(state) if os.path.isabs(state) else Path.home() / ".local" / "state"
    except RuntimeError:
        return None
    return folder / "quietsum" / name


def read_memory(name: str) -> frozenset[str]:
    """The lines that this user's file ``name`` holds; none if it cannot be read."""
    path = state_file(name)
    try:
        return frozenset() if path is None else frozenset(read_file(path).decode().splitlines())
    except (OSError, UnicodeDecodeError):
        return frozenset()


def remember(name: str, line: str) -> None:
    """Add ``line`` to this user's file ``name``. A convenience: if it cannot be written, nothing is lost."""
    path, known = state_file(name), read_memory(name)
    if path is None or line in known:
        return
    with contextlib.suppress(OSError, NoRoom):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomically(path, "".join(f"{one}\n" for one in sorted({*known, line})).encode(), mode=PRIVATE)
