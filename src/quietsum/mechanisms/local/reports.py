"""Files of reports: a header that states the protocol, one report a line, and an end that counts them.

CSV (``.csv``) or JSON lines (``.jsonl``), with the same facts:

    # {"quietsum_local": 1, "quietsum": "0.1.0", "protocol": "k-rr", "epsilon": 1.0, "domain": {…}, "parameters": {}}
    answer
    3
    …
    # {"end": 1000, "sha256": "…"}

The header states protocol, ε, the domain with its digest, hash parameters and version; the end states how many reports
there are and a digest of all lines before it, so that a file that was cut or changed on its way differs from a whole
one. The digest is no signature: who writes such a file can write any. Files are read and written in pieces, and a file
that is being written has its name only when it is whole.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, final

import numpy as np

from quietsum.errors import InvalidParameter, Unreadable
from quietsum.files import draft_file
from quietsum.mechanisms.local.choice import protocol_from_dict
from quietsum.mechanisms.local.protocol import LocalProtocol, Reports

__all__ = ["PIECE", "Header", "ReportsReader", "ReportsWriter", "pieces_of", "read_reports", "reports_file"]

PIECE = 1 << 15
"""Reports at once."""
_PIECE_BYTES = 1 << 24  # of them, where each is long
FORMAT = 1
_LONGEST = 1 << 26  # characters of a header: a domain of a million labels
_ONCE = "choose another name: reports are never overwritten, and new ones about the same answers cost their ε again"
_AGAIN = "ask for the file again, or privatize anew"


def pieces_of(layout: np.dtype[np.void]) -> int:
    """How many reports of this ``layout`` are worked on at once: fewer where each is long.

    >>> pieces_of(np.dtype([("answer", "<u4")])), pieces_of(np.dtype([("bits", "u1", (1 << 17,))]))
    (32768, 128)
    """
    return max(1, min(PIECE, _PIECE_BYTES // layout.itemsize))


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Header:
    """What the first line states. ``note`` is for people, the column's name say; ``version`` is the writer's own."""

    protocol: LocalProtocol
    note: str = ""
    version: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON-ready values."""
        return {"quietsum_local": FORMAT, "quietsum": self.version, "note": self.note, **self.protocol.to_dict()}

    def differs(self, other: Header) -> str:
        """In which words ``other`` is of another survey; empty where their reports may be added."""
        mine, theirs = self.protocol.to_dict(), other.protocol.to_dict()
        for key, word in (("protocol", "protocol"), ("epsilon", "ε"), ("parameters", "hash parameters")):
            if mine[key] != theirs[key]:
                return f"{word} {_short(theirs[key])} instead of {_short(mine[key])}"
        return "" if mine == theirs else "another domain"


def _short(value: object) -> str:
    return ", ".join(f"{key} {item}" for key, item in value.items()) if isinstance(value, dict) else str(value)


@final
class ReportsWriter:
    """Adds reports to a file that is being written."""

    def __init__(self, file: IO[bytes], header: Header, *, lines: bool) -> None:
        self._file, self._layout, self._lines = file, header.protocol.layout, lines
        self._digest, self.count = hashlib.sha256(), 0
        first = json.dumps(header.to_dict())
        names = self._layout.names or ()
        text = (f"{first}\n" if lines else f"# {first}\n{','.join(names)}\n").encode()
        self._digest.update(text)
        file.write(text)

    def add(self, reports: Reports) -> None:
        """Write one line for each of ``reports``."""
        step = pieces_of(self._layout)
        for start in range(0, reports.size, step):
            self._add(reports[start : start + step])

    def _add(self, reports: Reports) -> None:
        columns = [_texts(reports[name]) for name in self._layout.names or ()]
        if self._lines:
            names = [json.dumps(name) for name in self._layout.names or ()]
            quote = ['"' if reports[name].ndim > 1 else "" for name in self._layout.names or ()]
            parts = [
                [f"{name}: {mark}{text}{mark}" for text in column]
                for name, mark, column in zip(names, quote, columns, strict=True)
            ]
            rows = ["{" + ", ".join(row) + "}" for row in zip(*parts, strict=True)]
        else:
            rows = columns[0] if len(columns) == 1 else [",".join(row) for row in zip(*columns, strict=True)]
        text = ("\n".join(rows) + "\n").encode()
        self._digest.update(text)
        self._file.write(text)
        self.count += len(rows)

    def end(self) -> None:
        """Write the last line."""
        last = json.dumps({"end": self.count, "sha256": self._digest.hexdigest()})
        self._file.write((f"{last}\n" if self._lines else f"# {last}\n").encode())


def _texts(values: Any) -> list[str]:
    if values.ndim == 1:
        return [str(value) for value in values.tolist()]
    text, width = np.ascontiguousarray(values).tobytes().hex(), 2 * values.shape[1]
    return [text[start : start + width] for start in range(0, len(text), width)]


@contextlib.contextmanager
def reports_file(path: Path, header: Header) -> Iterator[ReportsWriter]:
    """A writer for ``path``, which appears when the block ends well and not before. Empty files are refused.

    Nothing is overwritten: reports that were handed out cannot be taken back, and new ones about the same answers cost
    their ε again.
    """
    if path.suffix not in (".csv", ".jsonl"):
        raise InvalidParameter("output", str(path), "is named neither .csv nor .jsonl", "name the kind of file")
    if path.exists() or path.is_symlink():
        raise InvalidParameter("output", str(path), "exists", _ONCE)
    if not path.parent.is_dir():
        raise InvalidParameter("output", str(path), "lies in no folder", "make the folder first")
    try:
        with draft_file(path, replace=False, remedy="make room, or choose another place") as file:
            writer = ReportsWriter(file, header, lines=path.suffix == ".jsonl")
            yield writer
            if not writer.count:
                raise InvalidParameter("output", str(path), "would hold no report", "there was no answer to report")
            writer.end()
    except FileExistsError:
        raise InvalidParameter("output", str(path), "has appeared meanwhile", _ONCE) from None


@final
class ReportsReader:
    """A file of reports, open. Iterating gives them in pieces; only after the last piece is the file known whole.

    ``count`` and ``digest`` are what its end states, known then.
    """

    def __init__(self, path: Path, file: IO[bytes]) -> None:
        self.path, self._file, self._lines = path, file, False
        self.digest, self.count = "", 0
        self._hashed = hashlib.sha256()
        self.header = self._read_header()

    def _fail(self, problem: str) -> Unreadable:
        return Unreadable(f"{self.path} {problem}; {_AGAIN}")

    @property
    def position(self) -> int:
        """How many bytes have been read."""
        return self._file.tell()

    def _read_header(self) -> Header:
        first = self._file.readline(_LONGEST)
        if not first:
            raise self._fail("is empty")
        self._hashed.update(first)
        text = first.removeprefix(b"# ")
        self._lines = text == first
        try:
            values = json.loads(text)
        except (ValueError, RecursionError):
            raise self._fail("is no file of local reports: its first line is no header") from None
        if not isinstance(values, dict) or "quietsum_local" not in values:
            raise self._fail("is no file of local reports: its first line is no header")
        if values["quietsum_local"] != FORMAT:
            raise Unreadable(f"{self.path} has another format than {FORMAT}; it needs another version of quietsum")
        try:
            protocol = protocol_from_dict(values)
        except Unreadable as error:
            raise Unreadable(f"{self.path}: {error}") from None
        note, version = (str(values.get(key, "")) for key in ("note", "quietsum"))
        if not self._lines:
            line = self._file.readline(1 << 16)
            self._hashed.update(line)
            names = line.decode("utf-8", "replace").rstrip("\n")
            if names != ",".join(protocol.layout.names or ()):
                raise self._fail("has not the columns of its protocol")
        return Header(protocol=protocol, note=note, version=version)

    def __iter__(self) -> Iterator[Reports]:
        digest, count, ended = self._hashed, 0, False
        layout = self.header.protocol.layout
        widest = 64 + sum(2 * layout[name].itemsize if layout[name].shape else 64 for name in layout.names or ())
        mark = b'{"end"' if self._lines else b"#"
        held: list[bytes] = []
        most = pieces_of(layout)
        while line := self._file.readline(widest + 160):
            if line.startswith(mark):
                if held:
                    yield self._parse(held)
                    count += len(held)
                self._check_end(line, count, digest.hexdigest())
                ended = True
                break
            digest.update(line)
            held.append(line)
            if len(held) == most:
                yield self._parse(held)
                count, held = count + most, []
        if not ended:
            raise self._fail("was cut: its last line, which counts the reports, is missing")
        if self._file.read(1):
            raise self._fail("goes on after its last line; give several files one by one")

    def _check_end(self, line: bytes, count: int, digest: str) -> None:
        try:
            values = json.loads(line.removeprefix(b"# "))
        except (ValueError, RecursionError):
            raise self._fail("was cut inside its last line") from None
        if values != {"end": count, "sha256": digest}:
            raise self._fail(f"is not what was written: header and {count:,} reports are not those that its end states")
        self.digest, self.count = digest, count

    def _parse(self, lines: list[bytes]) -> Reports:
        """Lines as reports."""
        layout = self.header.protocol.layout
        reports: Reports = np.empty(len(lines), dtype=layout)
        names = layout.names or ()
        try:
            if self._lines:
                rows = [json.loads(line) for line in lines]
                if any(not isinstance(row, dict) or tuple(row) != names for row in rows):
                    raise ValueError
                columns: list[Any] = [[row[name] for row in rows] for name in names]
            elif len(names) == 1:
                columns = [[line.rstrip(b"\n").decode("ascii") for line in lines]]
            else:
                split = [line.rstrip(b"\n").decode("ascii").split(",") for line in lines]
                if any(len(row) != len(names) for row in split):
                    raise ValueError
                columns = list(zip(*split, strict=True))
            for name, column in zip(names, columns, strict=True):
                kind = layout[name]
                if kind.shape:
                    width = 2 * kind.itemsize
                    if any(len(text) != width for text in column):
                        raise ValueError
                    packed = np.frombuffer(bytes.fromhex("".join(column)), dtype=np.uint8)
                    reports[name] = packed.reshape(len(lines), kind.itemsize)
                else:
                    if any(isinstance(value, bool | float) for value in column):
                        raise ValueError
                    numbers = [int(value) for value in column]
                    if min(numbers) < 0 or max(numbers) >= 1 << (8 * kind.itemsize):
                        raise ValueError
                    reports[name] = numbers
        except (ValueError, TypeError, RecursionError):
            raise self._fail("holds a line that is no report of its protocol") from None
        return reports


@contextlib.contextmanager
def read_reports(path: Path) -> Iterator[ReportsReader]:
    """Open a file of reports; a pipe or a folder under such a name is refused."""
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
    except OSError as error:
        raise InvalidParameter("reports", str(path), f"cannot be read ({error.strerror})", "check its name") from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise InvalidParameter("reports", str(path), "is no plain file", "name a file of reports")
    with os.fdopen(descriptor, "rb", buffering=1 << 20) as file:
        yield ReportsReader(path, file)
