"""A table from a file: CSV as it occurs in practice, npz, and Parquet where pyarrow is installed.

A text file is read once, in pieces, and nothing in it stops the reading: ragged lines, bytes that are no text, NUL,
cells of megabytes and quotation marks that are never closed become problems with their line numbers.
"""

from __future__ import annotations

import csv
import importlib
import os
import stat
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO, final

import numpy as np
from numpy.typing import NDArray

from quietsum.defence.validation.result import MOST_SHOWN, WARNING, Problem
from quietsum.defence.validation.schema import FileFormat, Schema, SchemaColumn
from quietsum.defence.validation.tables import (
    ColumnCells,
    Table,
    cells_of_texts,
    from_arrays,
    join_cells,
    quote_cell,
    to_array,
    unknown_columns,
)
from quietsum.errors import InvalidParameter, QuietsumError, may_pass

__all__ = ["DELIMITERS", "TextLines", "arrays_in", "check_readable", "open_text", "read_table", "records_in"]

DELIMITERS = (",", ";", "\t", "|")
_AT_ONCE = 16_384
_LONG = 1000
"""A row over more lines than this has a quotation mark that is not closed."""


def read_table(path: str | os.PathLike[str], schema: Schema) -> Table:
    """The table in the file at ``path``, as ``schema`` describes it: .npz, .parquet, anything else is text."""
    place = Path(path)
    check_readable(place)
    arrays = arrays_in(place)
    return _csv(place, schema) if arrays is None else from_arrays(arrays, schema)[0]


def arrays_in(path: Path) -> dict[str, NDArray[Any]] | None:
    """The arrays of an .npz or the columns of a .parquet file; None for a text file."""
    match path.suffix.lower():
        case ".npz":
            return _npz(path)
        case ".parquet" | ".pq":
            return _parquet(path)
    return None


def check_readable(path: Path) -> None:
    """Raise where ``path`` is no file that could be read to its end."""
    try:
        kind = path.stat().st_mode
    except OSError as error:
        raise InvalidParameter("table", str(path), f"cannot be read ({error.strerror})", "check the path") from None
    except ValueError:  # a NUL in the name
        raise InvalidParameter("table", str(path), "is no path", "check it") from None
    if not stat.S_ISREG(kind):
        problem = "is a folder" if stat.S_ISDIR(kind) else "is no regular file"
        raise InvalidParameter("table", str(path), problem, "name a CSV, npz or Parquet file")


# ------------------------------------------------------------------------------------------------------- text files


@final
class TextLines:
    """The lines of a text file, noting those with bytes that are no text and those with NUL."""

    def __init__(self, file: TextIO) -> None:
        self._file, self.number = file, 0
        self.not_text: list[int] = []
        self.nul: list[int] = []

    def __iter__(self) -> Iterator[str]:
        for line in self._file:
            self.number += 1
            if not line.isascii() and any("\ud800" <= letter <= "\udfff" for letter in line):
                self.not_text.append(self.number)
            if "\0" in line:
                self.nul.append(self.number)
            if self.number == 1 and len(line.rstrip()) == 5 and line.startswith("sep="):
                line = "\n"  # a spreadsheet's note of its delimiter, which is no row
            yield line


def open_text(path: Path, encoding: str) -> TextIO:
    """The text file at ``path``; bytes that are no text come as surrogates, a mark at its beginning is left out."""
    try:
        if encoding == "utf-8":
            with path.open("rb") as file:
                first = file.read(4)
            if first[:2] in (b"\xff\xfe", b"\xfe\xff"):
                problem = "begins as UTF-16 text"
                raise InvalidParameter("table", str(path), problem, 'say encoding = "utf-16" under [file]')
            if first == b"PK\x03\x04":
                problem = "is a workbook or another archive"
                raise InvalidParameter("table", str(path), problem, "save the sheet as CSV, or name an .npz file")
        name = "utf-8-sig" if encoding == "utf-8" else encoding
        errors = "replace" if encoding == "utf-16" else "surrogateescape"
        return path.open("r", encoding=name, errors=errors, newline="")
    except OSError as error:
        if may_pass(error):
            raise
        raise InvalidParameter("table", str(path), f"cannot be read ({error.strerror})", "check it") from None


def records_in(lines: TextLines, delimiter: str, long: list[int]) -> Iterator[tuple[int, list[str]]]:
    """Each record of a text file with its first line; a cell that is too long adds its line to ``long``."""
    reader = csv.reader(lines, delimiter=delimiter)
    while True:
        first = reader.line_num + 1
        try:
            record = next(reader)
        except StopIteration:
            return
        except csv.Error:
            long.append(first)
            continue
        except UnicodeError:  # UTF-16 that is none
            lines.not_text.append(first)
            return
        if reader.line_num - first >= _LONG:
            long.append(first)
        yield first, record


def _csv(path: Path, schema: Schema) -> Table:
    style, flaws, long, ragged = schema.file, list[Problem](), list[int](), list[int]()
    with open_text(path, style.encoding) as file:
        lines = TextLines(file)
        records = records_in(lines, style.delimiter, long)
        names = [column.name for column in schema.columns]
        if style.header:
            header = next((record for _, record in records if record), [])
            places, width = _places(header, schema, flaws), len(header)
        else:
            places, width = dict(zip(names, range(len(names)), strict=True)), len(names)
        columns = _Columns({one.name: one for one in schema.columns if one.name in places}, places, style)
        for line, record in records:
            if len(record) == width:
                columns.add(line, record)
            elif record:
                ragged.append(line)
        cells, numbers, hashes = columns.finish()
    flaws += _flaws(lines, long, ragged, width)
    return Table(cells=cells, lines=numbers, hashes=hashes, flaws=tuple(flaws))


@final
class _Columns:
    """Records taken one by one, turned into columns a few thousand at a time."""

    def __init__(self, columns: Mapping[str, SchemaColumn], places: Mapping[str, int], style: FileFormat) -> None:
        self._columns, self._places, self._style = columns, places, style
        self._records: list[list[str]] = []
        self._lines: list[int] = []
        self._hashes: list[int] = []
        self._done = 0
        self._parts: dict[str, list[ColumnCells]] = {name: [] for name in columns}
        self._dates: dict[str, dict[str, float]] = {name: {} for name in columns}

    def add(self, line: int, record: list[str]) -> None:
        """Take one record."""
        self._records.append(record)
        self._lines.append(line)
        self._hashes.append(hash(tuple(record)))
        if len(self._records) >= _AT_ONCE:
            self._turn()

    def _turn(self) -> None:
        turned = list(zip(*self._records, strict=True))
        lines = self._lines[self._done :]
        for name, column in self._columns.items():
            texts: Sequence[str] = turned[self._places[name]] if turned else ()
            self._parts[name].append(cells_of_texts(texts, column, self._style, lines, self._dates[name]))
        self._done += len(self._records)
        self._records = []

    def finish(self) -> tuple[dict[str, ColumnCells], NDArray[np.int64], NDArray[np.int64]]:
        """All columns, the rows' lines and their hashes."""
        if self._records or not self._done:
            self._turn()
        cells = {name: join_cells(parts) for name, parts in self._parts.items()}
        return cells, np.array(self._lines, dtype=np.int64), np.array(self._hashes, dtype=np.int64)


def _places(header: list[str], schema: Schema, flaws: list[Problem]) -> dict[str, int]:
    """Where each column of the schema stands; what is wrong with the header is added to ``flaws``.

    Names that the schema does not know are never quoted: without a header they are a row.
    """
    plain = [name.strip() for name in header]
    places = {}
    for column in schema.columns:
        at = [place for place, name in enumerate(plain) if name == column.name.strip()]
        if len(at) > 1:
            numbers = " and ".join(str(place + 1) for place in at[:4])
            flaws.append(Problem(
                check="header", column=column.name, message=f"is named {len(at)} times (columns {numbers})",
                remedy="give each column one name; the first is looked at",
            ))  # fmt: skip
        if at:
            places[column.name] = at[0]
            if header[at[0]] != column.name:
                flaws.append(Problem(
                    check="header", column=column.name, message="has spaces around its name in the header",
                    severity=WARNING, remedy="code that looks for the name may not find it",
                ))  # fmt: skip
    known = {column.name.strip() for column in schema.columns}
    others = [place for place, name in enumerate(plain) if name not in known]
    repeated = [place for place, name in enumerate(plain) if name not in known and plain.index(name) < place]
    if repeated:
        flaws.append(Problem(
            check="header", message=f"{len(repeated)} names of columns stand in the header twice",
            remedy="give each column one name",
            examples=tuple(quote_cell(plain[place]) for place in repeated[:MOST_SHOWN]),
        ))  # fmt: skip
    if not places:
        flaws.append(Problem(check="header", message="the first line names no column of the schema",
                             lines=(1,), count=1, remedy=_remedy_for(header, schema)))  # fmt: skip
    elif others and schema.file.other_columns == "refuse":
        flaws.append(unknown_columns(others, [plain[place] for place in others]))
    return places


def _remedy_for(header: list[str], schema: Schema) -> str:
    if len(header) == 1:
        for mark in DELIMITERS:
            if mark != schema.file.delimiter and mark in header[0]:
                return f"columns seem to be separated by {mark!r}: say delimiter = {_toml(mark)} under [file]"
    if len(header) == len(schema.columns):
        return "if there is no header, say header = false under [file]"
    return "check that this is the table that the schema describes"


def _toml(mark: str) -> str:
    return '"\\t"' if mark == "\t" else f'"{mark}"'


def _flaws(lines: TextLines, long: list[int], ragged: list[int], width: int) -> Iterator[Problem]:
    if lines.not_text:
        yield Problem(
            check="encoding", message="a line holds bytes that are no text in this encoding", count=len(lines.not_text),
            lines=tuple(lines.not_text[:MOST_SHOWN]), remedy='say encoding = "cp1252" under [file], or save as UTF-8',
        )  # fmt: skip
    if lines.nul:
        yield Problem(
            check="encoding", message="a line holds NUL bytes", count=len(lines.nul),
            lines=tuple(lines.nul[:MOST_SHOWN]),
            remedy="the file is damaged, or no text; export it again",
        )  # fmt: skip
    if long:
        yield Problem(
            check="lines",
            message=f"a line has a cell of more than {csv.field_size_limit():,} characters or {_LONG:,} lines",
            count=len(long), lines=tuple(long[:MOST_SHOWN]),
            remedy="a quotation mark is probably not closed; rows after it are not checked",
        )  # fmt: skip
    if ragged:
        yield Problem(
            check="lines", message=f"a line has more or fewer than {width} columns", count=len(ragged),
            lines=tuple(ragged[:MOST_SHOWN]), remedy="look for a separator inside a text without quotation marks",
        )  # fmt: skip


# ----------------------------------------------------------------------------------------------------- binary files


def _npz(path: Path) -> dict[str, NDArray[Any]]:
    """The arrays of an .npz; no pickled object is read."""
    try:
        with np.load(path, allow_pickle=False) as held:
            if not isinstance(held, np.lib.npyio.NpzFile):
                raise InvalidParameter("table", str(path), "is no .npz archive", "write it with numpy.savez")
            return {name: held[name] for name in held.files}
    except QuietsumError:
        raise
    except (ValueError, EOFError, LookupError, zipfile.BadZipFile, zlib.error, NotImplementedError, MemoryError,
            OverflowError, TypeError, SyntaxError) as error:  # fmt: skip
        problem = f"is no .npz of plain arrays ({type(error).__name__})"
        raise InvalidParameter("table", str(path), problem, "write it with numpy.savez, without objects") from None


def _parquet(path: Path) -> dict[str, NDArray[Any]]:
    try:
        parquet: Any = importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise QuietsumError(
            f"{path} is a Parquet file, and pyarrow is not installed: pip install pyarrow, or export it as CSV"
        ) from None
    try:
        table = parquet.read_table(str(path))
        return {str(name): to_array(table.column(place).to_pylist()) for place, name in enumerate(table.column_names)}
    except OSError as error:
        if may_pass(error):
            raise
        raise InvalidParameter("table", str(path), "is no Parquet file", "write it again") from None
    except Exception as error:  # pyarrow's own, which quote what they read
        problem = f"cannot be read as Parquet ({type(error).__name__})"
        raise InvalidParameter("table", str(path), problem, "write it again") from None
