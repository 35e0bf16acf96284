"""A table in memory: columns as numbers or texts, each row with its line number, and what could not be read.

Every input (cells of a text file, arrays, the rows of a task) becomes :class:`ColumnCells` of the type that the schema
states. A cell that is not of its type is marked, not raised: one bad cell must not hide the next.
"""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from quietsum.defence.validation.result import MOST_SHOWN, Problem
from quietsum.defence.validation.schema import LARGEST_WHOLE, FileFormat, Label, RowRules, Schema, SchemaColumn, day
from quietsum.errors import InvalidParameter, printable

__all__ = [
    "ColumnCells",
    "Table",
    "cells_of",
    "cells_of_texts",
    "from_arrays",
    "in_columns",
    "join_cells",
    "quote_cell",
    "to_array",
]

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]
WIDEST = 256
"""Records of more numbers than this, images say, are judged by their mean, spread, least and largest value."""
MOST_CLASSES = 100


@final
@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class ColumnCells:
    """One column: ``numbers`` (NaN where there is none) or ``texts``; which are ``missing``, and which are ``wrong``.

    ``raw`` are the first wrong cells as they stand in the file, by line.
    """

    numbers: Floats | None = None
    texts: NDArray[np.object_] | None = None
    missing: Mask
    wrong: Mask
    raw: Mapping[int, str] = dataclasses.field(default_factory=dict, repr=False)

    def __len__(self) -> int:
        return len(self.missing)

    def __repr__(self) -> str:  # rows are private
        return f"Cells({len(self)} rows)"

    def select(self, kept: Mask) -> ColumnCells:
        """The rows where ``kept`` holds."""
        return dataclasses.replace(
            self,
            numbers=None if self.numbers is None else self.numbers[kept],
            texts=None if self.texts is None else self.texts[kept],
            missing=self.missing[kept],
            wrong=self.wrong[kept],
        )

    def show(self, place: int, line: int, column: SchemaColumn | None = None) -> str:
        """The cell at ``place`` for a terminal."""
        if line in self.raw:
            return quote_cell(self.raw[line])
        if self.texts is not None:
            return quote_cell(str(self.texts[place]))
        assert self.numbers is not None
        value = float(self.numbers[place])
        if column is not None and column.type == "date" and np.isfinite(value):
            try:
                moment = datetime.datetime.fromordinal(int(value)) + datetime.timedelta(days=value % 1)
                return moment.isoformat(" ", "seconds").removesuffix(" 00:00:00")
            except (ValueError, OverflowError):
                pass
        return f"{value:.6g}"


def quote_cell(text: str) -> str:
    """A cell in one short line, without anything that a terminal would obey."""
    short = printable(text[:200].encode("utf-8", "replace").decode())
    return f'"{short if len(short) <= 24 else short[:23] + "…"}"'


@final
@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Table:
    """Columns by name; ``lines`` are the rows' first lines in their file, or their numbers from 0 (``unit``).

    ``hashes`` are equal for rows that are equal in all columns, also those that the schema does not name. ``flaws`` are
    the problems met while reading. Printing a table shows its size alone.
    """

    cells: Mapping[str, ColumnCells]
    lines: NDArray[np.int64]
    hashes: NDArray[np.int64]
    flaws: tuple[Problem, ...] = ()
    unit: str = "line"
    cleaned: Mapping[str, int] = dataclasses.field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.lines)

    def __repr__(self) -> str:
        return f"Table({len(self)} rows, {len(self.cells)} columns)"

    def matrix(self, names: Sequence[str]) -> Floats:
        """The columns ``names`` side by side, (n, k), NaN where a number is missing or unreadable. Private."""
        found = []
        for name in names:
            cells = self.cells.get(name)
            if cells is None or cells.numbers is None:
                problem = "is not there" if cells is None else "holds texts"
                raise InvalidParameter("names", name, problem, "choose columns of numbers, integers or dates")
            found.append(cells.numbers)
        return np.stack(found, axis=1) if found else np.zeros((len(self), 0))

    def texts(self, name: str) -> list[str | None]:
        """A column of texts, None where one is missing. Private."""
        cells = self.cells.get(name)
        if cells is None or cells.texts is None:
            raise InvalidParameter("name", name, "is no column of texts", "choose another, or call matrix()")
        return [None if gone else str(text) for text, gone in zip(cells.texts, cells.missing, strict=True)]


# --------------------------------------------------------------------------------------------- cells of one column


def cells_of_texts(
    texts: Sequence[str],
    column: SchemaColumn,
    style: FileFormat,
    lines: Sequence[int],
    dates: dict[str, float] | None = None,
) -> ColumnCells:
    """Cells of a text file as the type that ``column`` states. ``dates`` remembers what was parsed before."""
    missing_words = frozenset(style.missing)
    if column.type == "text":
        found = np.empty(len(texts), dtype=object)
        found[:] = texts
        gone = np.fromiter((text.strip() in missing_words for text in texts), dtype=bool, count=len(texts))
        return ColumnCells(texts=found, missing=gone, wrong=np.zeros(len(texts), dtype=bool))
    numbers = None if column.type == "date" else _quickly(texts, style)
    if numbers is not None:
        nothing = np.isnan(numbers)
        return ColumnCells(numbers=numbers, missing=nothing, wrong=np.zeros(len(texts), dtype=bool))
    parse = _dates(column.format, {} if dates is None else dates) if column.type == "date" else _number(style)
    numbers, missing = np.full(len(texts), np.nan), np.zeros(len(texts), dtype=bool)
    wrong, raw = np.zeros(len(texts), dtype=bool), dict[int, str]()
    for place, text in enumerate(texts):
        if text in missing_words or text.strip() in missing_words:
            missing[place] = True
            continue
        try:
            numbers[place] = parse(text)
        except (ValueError, OverflowError):
            wrong[place] = True
            if len(raw) < MOST_SHOWN:
                raw[int(lines[place])] = text[:200]
    missing |= np.isnan(numbers) & ~wrong
    return ColumnCells(numbers=numbers, missing=missing, wrong=wrong, raw=raw)


def _quickly(texts: Sequence[str], style: FileFormat) -> Floats | None:
    """All cells at once where every one is a plain number; None where they need a closer look."""
    together = "".join(texts)
    if "_" in together or not together.isascii():  # Python reads 1_000 and digits of other scripts as numbers
        return None
    if style.decimal == ",":
        if "." in together:
            return None
        texts = [text.replace(",", ".") for text in texts]
    try:
        return np.array(list(map(float, texts)), dtype=np.float64)
    except ValueError:
        return None


def _number(style: FileFormat) -> Callable[[str], float]:
    def parse(text: str) -> float:
        if "_" in text or not text.isascii():
            raise ValueError
        if style.decimal == ",":
            if "." in text:
                raise ValueError
            text = text.replace(",", ".")
        return float(text)

    return parse


def _dates(form: str, known: dict[str, float]) -> Callable[[str], float]:
    def parse(text: str) -> float:
        found = known.get(text)
        if found is None:
            plain = text.strip()
            moment = datetime.datetime.strptime(plain, form) if form else datetime.datetime.fromisoformat(plain)
            found = known[text] = day(moment)
        return found

    return parse


def join_cells(parts: Sequence[ColumnCells]) -> ColumnCells:
    """Parts of one column, one after the other."""
    if len(parts) == 1:
        return parts[0]
    raw: dict[int, str] = {}
    for part in parts:
        raw.update(list(part.raw.items())[: max(0, MOST_SHOWN - len(raw))])
    numbers = [part.numbers for part in parts if part.numbers is not None]
    texts = [part.texts for part in parts if part.texts is not None]
    return ColumnCells(
        numbers=np.concatenate(numbers) if numbers else None,
        texts=np.concatenate(texts) if texts else None,
        missing=np.concatenate([part.missing for part in parts]),
        wrong=np.concatenate([part.wrong for part in parts]),
        raw=raw,
    )


def cells_of(values: Any, column: SchemaColumn, style: FileFormat) -> ColumnCells:
    """A column that is an array or a list of Python's own values, as the type that ``column`` states."""
    array = values if isinstance(values, np.ndarray) else to_array(values)
    lines = range(len(array))
    if array.dtype.kind == "M":
        nothing = np.isnat(array)
        days = array.astype("datetime64[us]").astype(np.int64) / 86_400e6 + datetime.date(1970, 1, 1).toordinal()
        return _of_type(np.where(nothing, np.nan, days), column, "date")
    if array.dtype.kind in "iu" and column.type == "text":  # names that are numbers
        return cells_of_texts([str(one) for one in array.tolist()], column, style, lines)
    if array.dtype.kind in "biuf":
        with np.errstate(over="ignore"):
            return _of_type(array.astype(np.float64), column, "number")
    texts = ["" if one is None else one if isinstance(one, str) else str(one) for one in array.tolist()]
    return cells_of_texts(texts, column, style, lines)


def _of_type(numbers: Floats, column: SchemaColumn, kind: str) -> ColumnCells:
    """Numbers for a column that states them; wrong as a whole for a column that states something else."""
    if (kind == "date") != (column.type == "date") or column.type == "text":
        blank = np.empty(len(numbers), dtype=object)
        blank[:] = ""
        every, none = np.ones(len(numbers), dtype=bool), np.zeros(len(numbers), dtype=bool)
        text = column.type == "text"
        return ColumnCells(numbers=None if text else np.full(len(numbers), np.nan), texts=blank if text else None,
                     missing=none, wrong=every)  # fmt: skip
    return ColumnCells(numbers=numbers, missing=np.isnan(numbers), wrong=np.zeros(len(numbers), dtype=bool))


def to_array(values: Iterable[Any]) -> NDArray[Any]:
    """A list of Python's own values, some of them None, as an array of one kind."""
    held = list(values)
    present = [one for one in held if one is not None]
    if present and all(type(one) is int for one in present) and max(map(abs, present)) > LARGEST_WHOLE:
        small = len(present) == len(held) and max(map(abs, present)) < 2**63
        return np.array(held, dtype=np.int64 if small else object)  # in floats they would lose digits
    if present and all(isinstance(one, bool | int | float | decimal.Decimal) for one in present):
        return np.array([np.nan if one is None else _float(one) for one in held], dtype=np.float64)
    if present and all(isinstance(one, datetime.date) for one in present):
        found = np.array([np.nan if one is None else day(one) for one in held])
        start = datetime.date(1970, 1, 1).toordinal()
        micro = np.where(np.isnan(found), 0, (found - start) * 86_400e6).astype("datetime64[us]")
        return np.where(np.isnan(found), np.datetime64("NaT"), micro)
    array = np.empty(len(held), dtype=object)
    array[:] = [one.decode("utf-8", "replace") if isinstance(one, bytes) else one for one in held]
    return array


def _float(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:  # a whole number of 400 digits
        return np.inf if value > 0 else -np.inf


# ------------------------------------------------------------------------------------------------- arrays and tasks


def in_columns(arrays: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
    """Arrays of one length as columns: one of (n, k) numbers is k columns, ``name.0`` … ; wider ones four summaries."""
    found: dict[str, NDArray[Any]] = {}
    sizes = {len(array) for array in arrays.values() if np.ndim(array) > 0}
    if len(sizes) > 1 or any(np.ndim(array) == 0 for array in arrays.values()):
        problem = "are not all of one length" if len(sizes) > 1 else "holds a single value"
        raise InvalidParameter("arrays", ", ".join(arrays), problem, "row i of every array is record i")
    for name, array in arrays.items():
        if array.dtype.kind not in "biufMUSO":
            raise InvalidParameter(name, str(array.dtype), "is no kind of values that is checked", "numbers or texts")
        if array.ndim == 1:
            found[name] = np.char.decode(array, "utf-8", "replace") if array.dtype.kind == "S" else array
        elif array.dtype.kind not in "biuf":
            raise InvalidParameter(name, str(array.shape), "is a table of texts", "give each column an array")
        else:
            found.update(_flat(name, array.reshape(len(array), math.prod(array.shape[1:]))))
    return found


def _flat(name: str, array: NDArray[Any]) -> dict[str, NDArray[Any]]:
    if array.shape[1] <= WIDEST:
        return {f"{name}.{place}": array[:, place] for place in range(array.shape[1])}
    with np.errstate(over="ignore", invalid="ignore"):
        values = array.astype(np.float64) if array.dtype.kind != "f" else array
        summaries = {"mean": values.mean(axis=1), "spread": values.std(axis=1),
                     "least": values.min(axis=1), "largest": values.max(axis=1)}  # fmt: skip
    return {f"{name} ({word})": np.asarray(one, dtype=np.float64) for word, one in summaries.items()}


def hashes_of(arrays: Iterable[NDArray[Any]]) -> NDArray[np.int64]:
    """Equal for equal rows; −0 is 0. 64 bits: two different rows among a million are alike by a chance of 3e-8."""
    held = list(arrays)
    if not held:
        return np.zeros(0, dtype=np.int64)
    total: NDArray[np.int64] | None = None
    for array in held:
        if array.dtype.kind in "biufM":
            plain = array + 0.0 if array.dtype.kind == "f" else array
            flat = np.ascontiguousarray(plain).reshape(len(array), math.prod(array.shape[1:]))
            raw = flat.view(np.uint8).reshape(len(flat), -1) if flat.size else np.zeros((len(flat), 0), dtype=np.uint8)
            one = np.fromiter((hash(row.tobytes()) for row in raw), dtype=np.int64, count=len(raw))
        else:
            one = np.fromiter((hash(str(value)) for value in array), dtype=np.int64, count=len(array))
        with np.errstate(over="ignore"):
            total = one if total is None else total * np.int64(1_000_003) ^ one
    assert total is not None
    return total


def from_arrays(arrays: Mapping[str, Any], schema: Schema | None = None, *, label: str = "") -> tuple[Table, Schema]:
    """Arrays by name as a table, and the schema that it is held to: the given one, or finite numbers and no more.

    Without a schema, ``label`` names the array whose values are classes; what classes there are is then read off it,
    so that balance can be counted and not judged.
    """
    held = {str(name): _as_array(str(name), array) for name, array in arrays.items()}
    columns = in_columns(held)
    if not columns:
        raise InvalidParameter("arrays", ", ".join(held) or None, "have no column", "pass (n, k) numbers, k at least 1")
    if schema is None:
        schema = _default_schema(columns, label)
    known = {column.name: column for column in schema.columns}
    style = schema.file
    cells = {name: cells_of(columns[name], one, style) for name, one in known.items() if name in columns}
    others, flaws = [name for name in columns if name not in known], list[Problem]()
    if others and style.other_columns == "refuse":
        flaws.append(unknown_columns([list(columns).index(name) for name in others], others))
    numbers = np.arange(len(next(iter(columns.values()))), dtype=np.int64)
    table = Table(cells=cells, lines=numbers, hashes=hashes_of(held.values()), flaws=tuple(flaws), unit="row")
    return table, schema


def _as_array(name: str, values: Any) -> NDArray[Any]:
    try:
        return values if isinstance(values, np.ndarray) else np.asarray(values)
    except (ValueError, TypeError, OverflowError):  # rows of different lengths, say
        problem = "is no array"
        raise InvalidParameter(name, type(values).__name__, problem, "pass as many values for each row") from None


def unknown_columns(places: Sequence[int], names: Sequence[str]) -> Problem:
    """Columns that the schema does not name; their names may be values of a first row, so they are examples."""
    numbers = ", ".join(str(place + 1) for place in places[:8]) + (", …" if len(places) > 8 else "")
    what = "1 column is" if len(places) == 1 else f"{len(places)} columns are"
    return Problem(
        check="columns", message=f"{what} not in the schema (number {numbers} from the left)",
        remedy='describe them, or say other_columns = "ignore" under [file]',
        examples=tuple(quote_cell(name) for name in names[:MOST_SHOWN]),
    )  # fmt: skip


def _default_schema(columns: Mapping[str, NDArray[Any]], label: str) -> Schema:
    """What holds for any task: numbers, finite and none missing."""
    found, classes = [], list[Any]()
    for name, array in columns.items():
        kind = "text" if array.dtype.kind in "USO" else "date" if array.dtype.kind == "M" else "number"
        found.append(SchemaColumn(name=name, type=kind))
    if label in columns and columns[label].dtype.kind in "biuf":
        values = np.unique(columns[label][np.isfinite(columns[label].astype(np.float64))])
        whole = (values == np.floor(values)).all()
        classes = [int(one) for one in values] if whole and len(values) <= MOST_CLASSES else []
    return Schema(
        columns=tuple(found), rows=RowRules(duplicates=1.0), label=Label(column=label, classes=tuple(classes))
        if classes else None,
    )  # fmt: skip
