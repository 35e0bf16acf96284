"""The lines of a table in a text file, each read by itself: no line changes how another is read.

The first line names the columns; each other line is one record. A quote that is never closed ends with its line: the
usual reader would take all that follows for one field, and one record would move what is learned by many. Reading never
raises for what a line holds. A line that is no record (its quotes are not closed, it has fewer or more fields than the
first one, it is longer than :data:`LONGEST`) is found by :func:`is_record`, and counts as nothing.

>>> import io
>>> list(lines_of(io.StringIO('age,ward\\n34,"north, 2"\\n51,"south\\n40,west\\n')))
[['age', 'ward'], ['34', 'north, 2'], [], ['40', 'west']]
"""

from __future__ import annotations

import contextlib
import csv
import hashlib
import stat
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Protocol, final

import numpy as np
import numpy.typing as npt

from quietsum.errors import DataMissing, InvalidParameter

__all__ = [
    "LONGEST",
    "Lines",
    "check_file",
    "hashes_of_lines",
    "is_record",
    "lines_of",
    "open_lines",
    "place_of",
    "places_of",
    "read_header",
    "width_of",
]

_ENDS = ("\n", "\r")
LONGEST = 1 << 20
"""Characters of one line of a table."""


def check_file(path: Path) -> None:
    """Raise :class:`~quietsum.errors.DataMissing` if ``path`` is no file that can be read to its end; opens nothing.

    A folder, a pipe or a device is none: reading one might never end.
    """
    try:
        kind = path.stat().st_mode
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        why = getattr(error, "strerror", None) or "it is no path"
        place = "" if path.is_absolute() else "; a relative path counts from the folder where the command runs"
        raise DataMissing(f"the table {path} cannot be read ({why}){place}") from None
    if not stat.S_ISREG(kind):
        what = "a folder" if stat.S_ISDIR(kind) else "no regular file"
        raise DataMissing(f"the table {path} is {what}; name a CSV file")


class Lines(Protocol):
    """An open table, line by line."""

    def readline(self, limit: int, /) -> str:
        """The next line, or as much of it as ``limit`` characters; "" at the end."""
        ...


@contextlib.contextmanager
def open_lines(path: Path, encoding: str = "utf-8") -> Iterator[Lines]:
    """The text file at ``path``; a mark at its beginning is left out, and bytes that are no text become U+FFFD.

    Guarantees: bytes of one line of any kind change how no other line is read.
    """
    if encoding == "utf-16":
        with path.open("rb") as file:
            yield _Utf16(file)
    else:
        named = "utf-8-sig" if encoding == "utf-8" else encoding
        with path.open(encoding=named, errors="replace", newline="") as text:
            yield text


@final
class _Utf16:
    """The lines of a text in UTF-16, each decoded from its own first byte.

    A usual decoder counts bytes in pairs from the beginning of the file, so a record with a byte too many would shift
    all that follow. Here a line ends with the bytes of a line feed, wherever they stand; that changes no whole text but
    lines in which U+xx00 follows U+0Axx, which are cut in two.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        mark = file.read(2)
        big = mark == b"\xfe\xff"
        self._kept, self._place = b"" if big or mark == b"\xff\xfe" else mark, 0
        self._encoding, self._end = ("utf-16-be", b"\0\n") if big else ("utf-16-le", b"\n\0")

    def readline(self, limit: int, /) -> str:
        """See :class:`Lines`; of a line that is too long only its length is right."""
        most = 2 * limit
        while (found := self._kept.find(self._end, self._place)) < 0 and len(self._kept) - self._place < most:
            if not (more := self._file.read(1 << 16)):
                break
            self._kept, self._place = self._kept[self._place :] + more, 0
        end = min(len(self._kept) if found < 0 else found + len(self._end), self._place + most)
        line, self._place = self._kept[self._place : end], end
        return "\ufffd" * limit if len(line) == most else line.decode(self._encoding, "replace")


def read_header(path: Path, delimiter: str = ",", encoding: str = "utf-8") -> list[str]:
    """The names in a table's first line. Guarantees: nothing behind that line is looked at.

    Raises :class:`~quietsum.errors.InvalidParameter` if there are no names.
    """
    with open_lines(path, encoding) as file:
        header = next(lines_of(file, delimiter), [])
    if not any(name.strip() for name in header):
        raise InvalidParameter("table", str(path), "is empty", "its first line names the columns")
    return header


def lines_of(file: Lines, delimiter: str = ",") -> Iterator[list[str]]:
    """The fields of each line that is not empty; none if it cannot be read by itself."""
    csv.field_size_limit(LONGEST)
    while line := file.readline(LONGEST):
        if len(line) == LONGEST and not line.endswith(_ENDS):
            while (rest := file.readline(LONGEST)) and not rest.endswith(_ENDS):
                pass
            yield []
        elif text := line.rstrip("\r\n"):
            yield text.split(delimiter) if '"' not in text else _split_quoted(text, delimiter)


def width_of(header: Sequence[str]) -> int:
    """How many fields a record has: as many as the first line names."""
    return max((place for place, word in enumerate(header, start=1) if word.strip()), default=0)


def is_record(line: Sequence[str], width: int) -> bool:
    """Whether a line has so many fields, and nothing behind them."""
    return len(line) >= width and not any(line[width:])


def place_of(header: Sequence[str], name: str) -> int:
    """Where the column ``name`` stands; raises if it does not stand there once."""
    found = [place for place, word in enumerate(header) if word.strip() == name]
    if len(found) != 1:
        raise InvalidParameter("column", name, "is not in the table once", "its first line names the columns")
    return found[0]


def places_of(header: Sequence[str], names: Iterable[str]) -> list[int]:
    """Where each of ``names`` stands; one error names all those that do not stand there once."""
    words = [word.strip() for word in header]
    wrong = [name for name in names if words.count(name) != 1]
    if wrong:
        twice = [name for name in wrong if name in words]
        problem = "are not all in the table" if len(twice) < len(wrong) else "are in the table more than once"
        missing = ", ".join(wrong)
        raise InvalidParameter("columns", missing, problem, f"its first line has {', '.join(words) or 'no names'}")
    return [words.index(name) for name in names]


def hashes_of_lines(path: Path) -> npt.NDArray[np.uint64]:
    """A hash of each line but the first, by which a holder's ledger recognises rows that it knows already."""
    with path.open("rb") as file:
        lines = _beginnings(file)
        next(lines, b"")
        hashes = [int.from_bytes(hashlib.blake2b(line.strip(), digest_size=8).digest()) for line in lines]
    return np.array(hashes, dtype=np.uint64)


def _beginnings(file: IO[bytes]) -> Iterator[bytes]:
    """Each line, and no more than the beginning of one that is too long to be a record."""
    while line := file.readline(LONGEST):
        rest = line
        while len(rest) == LONGEST and not rest.endswith(b"\n"):
            rest = file.readline(LONGEST)
        yield line


def _split_quoted(line: str, delimiter: str) -> list[str]:
    try:
        return next(csv.reader([line], strict=True, delimiter=delimiter), [])
    except csv.Error:
        return []
