"""What happened and when, for the operator alone: a file of JSON lines, each bound to the one before it.

Every alert lands here, sent or held back, with the beginning and the end of runs and what did not reach a sink. Line n
holds ``line`` (n), ``time``, ``event``, what there is to say, ``before`` (the hash of line n − 1) and ``hash``, the
SHA-256 of all the rest written as JSON with sorted keys and no spaces. So a line that was changed, taken out or put in
is found, by its number. A chain alone does not see a tail that is gone: the file ``….head`` beside the log holds the
number and hash of the last line, and each alert in a run's database the line that it is.

The log is chained on its own and is no part of the privacy ledger, whose schema and exports know nothing of it. No
command exports it. A user who can write both files can write another history: it is a record against accidents and
outsiders, not against its owner; copy its head elsewhere where that matters.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import stat
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, final

from quietsum.alerts.alert import Alert, hash_of, moment
from quietsum.errors import CorruptState, InvalidParameter, printable
from quietsum.failpoints import reach
from quietsum.files import PRIVATE, no_room, read_file, reason_of, write_atomically

__all__ = ["AuditLog", "Line"]

NOTHING = "0" * 64
"""What the first line stands behind."""
TORN, GONE = "torn", "gone"
"""Lines about the log itself: a half-written line was cut off; lines that the head knows of are no longer there."""
PATIENCE = 2.0
"""Seconds that a line waits for another process; no round waits for a log longer than that."""
LONGEST = 1 << 16
"""Bytes of one line; an alert has two thousand letters at most."""
_BEGIN = b'{"before":"'


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Line:
    """One line of the log."""

    line: int
    time: str
    event: str
    values: Mapping[str, Any]
    hash: str

    @property
    def alert(self) -> Alert | None:
        """The alert that was written down, where it is one."""
        if self.event != "alert":
            return None
        try:
            return Alert.from_dict(self.values)
        except InvalidParameter:
            return None


@final
class AuditLog:
    """The log at ``path``. Several processes may append to it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def head(self) -> Path:
        """The file that holds the number and hash of the last line."""
        return self.path.with_name(f"{self.path.name}.head")

    def append(self, event: str, values: Mapping[str, Any]) -> Line:
        """One more line, on disk when this returns; DiskFull or NoRoom where it cannot be written."""
        return self.extend([(event, values)])[-1]

    def extend(self, entries: Iterable[tuple[str, Mapping[str, Any]]]) -> list[Line]:
        """More lines, written at once and synced once: all are on disk when this returns, or none is.

        DiskFull or NoRoom where they cannot be written. What a killed process left of a line is cut off, and the next
        line says so; whole lines that it had written stay.
        """
        told = [(event, _plain(values)) for event, values in entries]
        if not told:
            return []
        try:
            with self._hold() as file:
                last, before, torn = self._end(file)
                if torn:
                    told.insert(0, (TORN, {"bytes": torn}))
                elif gone := self._gone(last, before):
                    told.insert(0, (GONE, gone))
                lines, content = [], b""
                for event, values in told:
                    line, text = _line(last + 1, event, values, before)
                    last, before = line.line, line.hash
                    lines.append(line)
                    content += text
                _put(file, content)
                reach("auditlog:appended")
                write_atomically(self.head, json.dumps({"line": last, "hash": before}).encode() + b"\n", mode=PRIVATE)
                return lines
        except OSError as error:
            raise no_room(f"{self.path} cannot be written: {reason_of(error)}; make room", error) from None

    def _gone(self, number: int, digest: str) -> dict[str, Any]:
        """What the head says was written and is not there; empty where nothing is missing."""
        try:
            kept = self._read_head()
        except CorruptState:
            return {"head": "unreadable"}
        if kept is None:
            return {"head": "gone"} if number else {}
        last, known = kept
        return {"last": last, "hash": known} if last > number or (last == number and known != digest) else {}

    @contextlib.contextmanager
    def _hold(self) -> Iterator[IO[bytes]]:
        """The file, held for one process; never a link, and never waited for longer than :data:`PATIENCE`."""
        import fcntl

        flags = os.O_RDWR | os.O_CREAT
        for name in ("O_NONBLOCK", "O_CLOEXEC", "O_NOFOLLOW"):
            flags |= getattr(os, name, 0)
        handle = os.open(self.path, flags, PRIVATE)
        with os.fdopen(handle, "r+b", buffering=0) as file:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise OSError(f"{self.path} is no plain file")
            end = time.monotonic() + PATIENCE
            while True:
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > end:
                        raise OSError(f"another process has held it for {PATIENCE:g} s") from None
                    time.sleep(0.01)
            yield file

    def _end(self, file: IO[bytes]) -> tuple[int, str, int]:
        """Number and hash of the last whole line; what stands behind it is cut off and counted."""
        size = file.seek(0, os.SEEK_END)
        if not size:
            return 0, NOTHING, 0
        file.seek(0)
        if not _BEGIN.startswith(first := file.read(len(_BEGIN))) and not first.startswith(_BEGIN):
            raise OSError("it is no log of alerts, and stays as it is; move it away")
        begin = max(0, size - 2 * LONGEST)
        file.seek(begin)
        tail = b""
        while len(tail) < size - begin and (part := file.read(size - begin - len(tail))):
            tail += part
        whole = tail.rfind(b"\n") + 1
        torn = len(tail) - whole
        if torn:
            file.truncate(size - torn)
        lines = tail[:whole].splitlines()
        if not lines:
            if begin:
                raise OSError(f"{self.path} ends in a line that none of its lines is as long as")
            return 0, NOTHING, torn
        try:
            last = json.loads(lines[-1])
            return int(last["line"]), str(last["hash"]), torn
        except (ValueError, LookupError, TypeError, OverflowError, RecursionError):
            # never stop writing things down: the chain goes on behind what is there, and verify names the line
            count = sum(1 for _ in self.path.open("rb"))
            return count, NOTHING, torn

    # ---------------------------------------------------------------------------------------------- reading

    def lines(self) -> Iterator[Line]:
        """Every line in order; CorruptState, with the line's number, at the first that is not what was written."""
        before = NOTHING
        for number, content in enumerate(self._contents(), start=1):
            line, before = self._check_line(number, content, before)
            yield line

    def verify(self) -> int:
        """How many lines there are; CorruptState where one was changed, taken out or put in, or the tail is gone."""
        kept = self._read_head()  # before the lines, which others may go on writing
        known = None if kept is None else kept[0]
        count, seen = 0, ""
        for line in self.lines():
            count, seen = line.line, line.hash if line.line == known else seen
            if line.event == GONE:
                raise CorruptState(
                    f"{self.path}, line {count}: when it was written, the lines before it were not those that the head "
                    f"knew ({line.values.get('last', 'which was not there')}): a tail was taken away; move the log away"
                )
        if kept is None:
            if count:
                problem = f"{self.head} is gone, so nothing says whether {self.path.name} is whole"
                raise CorruptState(f"{problem}; its {count} lines are in order")
            return 0
        last, digest = kept
        if last > count:
            raise CorruptState(
                f"{self.path} ends with line {count}, and line {last} was written: its tail is gone; restore it"
            )
        if seen != digest:
            raise CorruptState(f"{self.path}, line {last}: it is not the line that {self.head.name} was written for")
        return count

    def _contents(self) -> Iterator[bytes]:
        """The lines as they are written, one at a time: a log of any length is read in the memory of one line.

        A line longer than sixteen times :data:`LONGEST` comes in parts, and no part is a line of this log. What is
        appended while the log is being read is left for the next time.
        """
        if not os.path.lexists(self.path):
            return
        flags = os.O_RDONLY
        for name in ("O_NONBLOCK", "O_CLOEXEC"):
            flags |= getattr(os, name, 0)
        try:
            with os.fdopen(os.open(self.path, flags), "rb") as file:
                about = os.fstat(file.fileno())
                if not stat.S_ISREG(about.st_mode):
                    raise OSError("it is no plain file")
                left = about.st_size
                while left > 0 and (content := file.readline(min(16 * LONGEST, left))):
                    left -= len(content)
                    yield content
        except OSError as error:
            raise CorruptState(f"{self.path} cannot be read: {reason_of(error)}") from None

    def _check_line(self, number: int, content: bytes, before: str) -> tuple[Line, str]:
        where = f"{self.path}, line {number}"
        if not content.endswith(b"\n"):
            raise CorruptState(f"{where}: it is cut off; a process was killed while it wrote, or the tail is gone")
        try:
            values = json.loads(content)
            digest = str(values.pop("hash"))
            line = Line(
                line=int(values["line"]), time=_text(values["time"]), event=_text(values["event"]),
                values=_flat(values["values"]), hash=digest,
            )  # fmt: skip
            right, known = hash_of(values) == digest, str(values["before"])
        except (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise CorruptState(f"{where}: it is no line of this log ({type(error).__name__})") from None
        if not right:
            raise CorruptState(f"{where}: it was changed after it was written, its hash is another")
        if line.line != number or known != before:
            raise CorruptState(f"{where}: it does not follow the line before it; lines were taken out or put in")
        return line, digest

    def _read_head(self) -> tuple[int, str] | None:
        try:
            values = json.loads(read_file(self.head, LONGEST))
            return int(values["line"]), str(values["hash"])
        except FileNotFoundError:
            return None
        except (OSError, ValueError, LookupError, TypeError, OverflowError, RecursionError) as error:
            raise CorruptState(f"{self.head} cannot be read ({error}); restore it") from None


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("it is no text")
    return printable(value)


def _flat(values: object) -> dict[str, Any]:
    """What :func:`_plain` made: a name has a text, a number or nothing."""
    if not isinstance(values, dict) or not all(isinstance(one, str | int | float | None) for one in values.values()):
        raise TypeError("its values are not flat")
    return values


def _line(number: int, event: str, values: Mapping[str, Any], before: str) -> tuple[Line, bytes]:
    """A line and how it is written."""
    now = moment()
    found = {"line": number, "time": now, "event": event, "values": values, "before": before}
    found["hash"] = hash_of(found)
    content = json.dumps(found, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"
    return Line(line=number, time=now, event=event, values=values, hash=str(found["hash"])), content


def _put(file: IO[bytes], content: bytes) -> None:
    """Append ``content`` and sync it; the file is as long as it was where that fails."""
    start = file.seek(0, os.SEEK_END)
    try:
        left = memoryview(content)
        while left:  # a disk that is nearly full takes a part
            left = left[file.write(left) :]
        os.fsync(file.fileno())
    except OSError:
        with contextlib.suppress(OSError):
            file.truncate(start)
        raise


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values that JSON can hold, texts in one line."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, bool | int) or value is None:
            found[str(name)] = value
        elif isinstance(value, float):
            found[str(name)] = value if value == value and abs(value) != float("inf") else str(value)
        else:
            found[str(name)] = printable(str(value))[:4000]
    return found
