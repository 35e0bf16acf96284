"""Everything that a step lets out besides its release, as numbers by name.

What is listened to: returned numbers, errors and their texts, standard output and error (of Python and of the process),
warnings, log records of every level and of every logger, files that are opened for writing or were open before, bytes
that the process wrote in all, environment variables, and calls that leave the process (sockets, commands, renames).
Texts become numbers: those that stand in them, the length of the rest, and a check sum of the rest. Of a message on a
socket its address is heard, and not what it says; shared memory and the process's own title are not heard.

Python tells of opened files by audit events, whose hooks cannot be taken back. Ours is added once, on first use, and
does nothing while no one listens.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import logging
import os
import re
import stat
import sys
import tempfile
import time
import warnings
import zlib
from collections.abc import Callable, Iterator
from typing import Any, Final, final

from quietsum.selfcheck.protocol import Batch, StepUnderTest

__all__ = ["Listener", "listening"]

_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|\bnan\b|\binf\b", re.IGNORECASE)
_NUMBERS, _READ = 16, 1 << 16  # numbers of a text, bytes that are read of a file
_BYTES, _PARTS = 16, 32  # of a file that is no text: its first bytes, and parts of which each gives a sum
_FOLDERS, _ENTRIES, _FILES = 40, 500, 8  # that are searched for changed files, entries of each, files that are read
_CLOCK = 20_000_000  # nanoseconds by which a file's time may lag behind
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_TRUNC
_LEAVES: Final = (
    "os.chmod", "os.chown", "os.exec", "os.kill", "os.link", "os.mkdir", "os.posix_spawn", "os.putenv", "os.remove",
    "os.rename", "os.rmdir", "os.setxattr", "os.spawn", "os.symlink", "os.system", "os.truncate", "os.unsetenv",
    "os.utime", "socket.bind", "socket.connect", "socket.sendmsg", "socket.sendto", "sqlite3.connect",
    "subprocess.Popen", "urllib.Request",
)  # fmt: skip

_ears: list[Callable[[str, tuple[Any, ...]], None]] = []
_hooked: list[bool] = []


def _hook(event: str, args: tuple[Any, ...]) -> None:
    for ear in _ears:
        ear(event, args)


@contextlib.contextmanager
def listening() -> Iterator[Listener]:
    """A listener, with every logger at DEBUG and both standard streams of the process turned to it, until the end."""
    listener = Listener()
    if not _hooked:
        sys.addaudithook(_hook)
        _hooked.append(True)
    with contextlib.ExitStack() as kept:
        kept.enter_context(_every_level())
        kept.enter_context(_record(listener.log))
        kept.enter_context(_streams())
        _ears.append(listener.notice)
        kept.callback(_ears.remove, listener.notice)
        yield listener


@contextlib.contextmanager
def _every_level() -> Iterator[None]:
    """Every logger at DEBUG, but torch's own, whose debugging changes what torch does."""
    manager = logging.root.manager
    known = [logger for logger in manager.loggerDict.values() if isinstance(logger, logging.Logger)]
    changed = [(logger, logger.level, logger.disabled) for logger in [logging.root, *known] if _quiet(logger)]
    disabled = manager.disable
    try:
        manager.disable = 0
        for logger, _, _ in changed:
            logger.setLevel(logging.DEBUG)
            logger.disabled = False
        yield
    finally:
        manager.disable = disabled
        for logger, level, was in changed:
            logger.setLevel(level)
            logger.disabled = was


def _quiet(logger: logging.Logger) -> bool:
    told = logger is logging.root or logger.level > logging.DEBUG or logger.disabled
    return told and logger.name.split(".")[0] != "torch"


@contextlib.contextmanager
def _record(log: list[str]) -> Iterator[None]:
    """Every log record's text, whichever handlers there are."""
    factory = logging.getLogRecordFactory()

    def record(*args: Any, **more: Any) -> logging.LogRecord:
        made = factory(*args, **more)
        with contextlib.suppress(Exception):  # a message that cannot be formatted is the logger's affair
            log.append(f"{made.name} {made.getMessage()}")
        return made

    try:
        logging.setLogRecordFactory(record)
        yield
    finally:
        logging.setLogRecordFactory(factory)


@contextlib.contextmanager
def _streams() -> Iterator[None]:
    """Descriptors 1 and 2 turned to a file in memory, which is then read like any file that is open."""
    if not hasattr(os, "memfd_create"):  # not on this system: what Python prints is heard all the same
        yield
        return
    sink = os.memfd_create("selfcheck")
    saved: dict[int, int] = {}
    try:
        for number in (1, 2):
            with contextlib.suppress(OSError):
                saved[number] = os.dup(number)
                os.dup2(sink, number)
        yield
    finally:
        for number, copy in saved.items():
            os.dup2(copy, number)
            os.close(copy)
        os.close(sink)


@final
class Listener:
    """What one step after another lets out."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self._opened: dict[str, bool] = {}
        self._events: list[str] = []
        self._sizes: dict[str, int] = {}

    def notice(self, event: str, args: tuple[Any, ...]) -> None:
        """One audit event: a file that is opened for writing, or a call that leaves the process."""
        if event == "open":
            path, mode, flags = (*args, None, None, None)[:3]
            if isinstance(path, (str, bytes)) and (
                any(letter in str(mode or "") for letter in "wax+") or int(flags or 0) & _WRITES
            ):
                added = "a" in str(mode or "") or bool(int(flags or 0) & os.O_APPEND)
                self._opened[os.fsdecode(path)] = added
        elif event in _LEAVES:
            self._events.append(f"{event} {args!r}")

    def hear(self, step: StepUnderTest, batch: Batch) -> dict[str, float]:
        """All that one step on ``batch`` lets out but its release."""
        self.log.clear()
        self._opened.clear()
        self._events.clear()
        start = time.time_ns() - _CLOCK
        screen, files, written, around = io.StringIO(), _open_files(), _count_written(), dict(os.environ)
        with (
            contextlib.redirect_stdout(screen),
            contextlib.redirect_stderr(screen),
            warnings.catch_warnings(record=True) as warned,
        ):
            warnings.simplefilter("always")
            try:
                outcome = step.run([batch])
                heard = {f"the returned {name}": float(value) for name, value in outcome.said.items()}
                heard["the number of releases"] = float(len(outcome.releases))
            except Exception as error:  # an error that depends on a record tells about it
                heard = _numbers("the error", f"{type(error).__name__} {error}")
        events, opened = list(self._events), dict(self._opened)
        heard |= {f"{name} by the process": after - before for (name, after), before in zip(
            _count_written().items(), written.values(), strict=True)}  # fmt: skip
        text = screen.getvalue() + "".join(str(warning.message) for warning in warned)
        heard |= _numbers("the printed text", text) | _numbers("the log", "\n".join(self.log))
        heard |= _numbers("a call", "\n".join(events))
        changed = {name: value for name, value in os.environ.items() if around.get(name) != value}
        heard |= _numbers("the environment", repr(changed) if changed else "")
        filed, explained = self._read_files(files, opened)
        if heard.get("bytes written by the process", 0.0) > explained:  # by a library that does not tell Python
            for place, path in enumerate(_find_changes(start)):
                content = _content(path, 0)
                filed |= _numbers(f"changed file {path}", "", content)
                if place < 2:  # its name may be another one each time
                    filed |= _numbers(f"changed file {place + 1}", "", content)
        return heard | filed

    def _read_files(self, before: dict[int, tuple[int, int]], opened: dict[str, bool]) -> tuple[dict[str, float], int]:
        """What was written to files opened by the step and to those that were open and have changed; its length."""
        heard: dict[str, float] = {}
        explained = 0
        for place, (path, added) in enumerate(list(opened.items())[:4]):
            start = self._sizes.get(path, 0) if added else 0
            content = _content(path, start)
            self._sizes[path] = (start + len(content)) if added else 0
            heard |= _numbers(f"file {place + 1}", f"{path} ", content)
            explained += len(content)
        for number, (size, changed) in _open_files().items():
            was = before.get(number)
            if was is not None and was != (size, changed):
                start = was[0] if size > was[0] else 0
                content = _content(f"/proc/self/fd/{number}", start)
                heard |= _numbers(f"descriptor {number}", "", content)
                explained += len(content)
        return heard, explained


def _open_files() -> dict[int, tuple[int, int]]:
    """Size and time of change of every ordinary file that is open; nothing where the system does not tell."""
    found: dict[int, tuple[int, int]] = {}
    with contextlib.suppress(OSError):
        for name in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                known = os.fstat(int(name))
                if stat.S_ISREG(known.st_mode):
                    found[int(name)] = (known.st_size, known.st_mtime_ns)
    return found


def _count_written() -> dict[str, float]:
    """Bytes and calls of all writing so far, as the system counts them."""
    with contextlib.suppress(OSError, ValueError, IndexError), open("/proc/self/io") as file:
        lines = dict(line.split(":") for line in file.read().splitlines())
        return {"bytes written": float(lines.get("wchar", 0)), "writes": float(lines.get("syscw", 0))}
    return {"bytes written": 0.0, "writes": 0.0}


def _find_changes(moment: int) -> list[str]:
    """The files that changed last in the working and the temporary folder, and in the newest folders within."""
    found: list[tuple[int, str]] = []
    for top in (os.getcwd(), tempfile.gettempdir()):
        within: list[tuple[int, str]] = []
        found += _find_changes_in(top, moment, within)
        for _, folder in sorted(within, reverse=True)[:_FOLDERS]:  # many others may lie there, from long ago
            found += _find_changes_in(folder, moment)
    return [path for _, path in sorted(found, reverse=True)[:_FILES]]


def _find_changes_in(folder: str, moment: int, within: list[tuple[int, str]] | None = None) -> list[tuple[int, str]]:
    """When and which files of ``folder`` changed since; its own folders are added to ``within``."""
    found: list[tuple[int, str]] = []
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in itertools.islice(entries, _ENTRIES):
            with contextlib.suppress(OSError):
                changed = entry.stat(follow_symlinks=False).st_mtime_ns
                if entry.is_dir(follow_symlinks=False):
                    if within is not None:
                        within.append((changed, entry.path))
                elif entry.is_file(follow_symlinks=False) and changed >= moment:
                    found.append((changed, entry.path))
    return found


def _content(path: str, start: int) -> bytes:
    with contextlib.suppress(OSError), open(path, "rb") as file:
        if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            file.seek(start)
            return file.read(_READ)
    return b""


def _numbers(name: str, text: str, content: bytes = b"") -> dict[str, float]:
    """A text as numbers; a file that is no text as its bytes. Nothing at all is no number.

    A check sum tells apart two contents that are the same each time. A loss that differs in its last bit from run to
    run gives another check sum each time; the sums of parts of the file still tell a large one from a small one.
    """
    if not text and not content:
        return {}
    heard: dict[str, float] = {}
    try:
        text += content.decode()
    except UnicodeDecodeError:
        heard = {f"byte {place + 1} of {name}": float(byte) for place, byte in enumerate(content[:_BYTES])}
        heard[f"the length of {name}"] = float(len(content))
        heard[f"the content of {name}"] = float(zlib.crc32(content))
        edges = [len(content) * part // _PARTS for part in range(_PARTS + 1)]
        for part, (start, end) in enumerate(itertools.pairwise(edges), start=1):
            heard[f"part {part} of {name}, its sum"] = float(sum(content[start:end]))
    rest = _NUMBER.sub("#", text)
    heard |= {
        f"{name}, its length": float(len(rest)),
        f"{name}, its words": float(zlib.crc32(rest.encode("utf-8", "replace"))),
    }
    found = _NUMBER.findall(text)[:_NUMBERS]
    return heard | {f"{name}, number {place + 1}": float(number) for place, number in enumerate(found)}
