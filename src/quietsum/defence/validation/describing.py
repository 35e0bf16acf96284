"""A first ``data.toml`` from a table: what its rows look like, for the operator to correct.

It is a draft. Bounds and values that are read off protected rows are facts about people; in this file, at the site,
they do no harm, and anywhere else they are a release that nothing charged. So the draft says ``reviewed = false``, and
every check reminds of it until its operator has put what he knows in place of what was seen.
"""

from __future__ import annotations

import csv
import dataclasses
import datetime
import itertools
import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, final

import numpy as np

from quietsum.defence.validation.files import (
    DELIMITERS,
    TextLines,
    arrays_in,
    check_readable,
    open_text,
    read_table,
    records_in,
)
from quietsum.defence.validation.schema import LARGEST_WHOLE, MISSING, FileFormat, Schema, SchemaColumn
from quietsum.defence.validation.schema_file import parse_schema
from quietsum.defence.validation.tables import in_columns
from quietsum.errors import InvalidParameter

__all__ = ["ROWS_LOOKED_AT", "first_schema"]

ROWS_LOOKED_AT = 20_000
_MOST_VALUES = 12
_DATES = ("", "%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%d.%m.%Y %H:%M", "%d.%m.%Y %H:%M:%S", "%Y/%m/%d", "%Y%m%d")
_LABELS = re.compile(r"label|labels|class|target|outcome|y|diagnosis|fraud|is_fraud", re.IGNORECASE)
_KEYS = re.compile(r"(.*[_ -])?(id|key|nr|no|number|uuid)", re.IGNORECASE)


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class _Style:
    """How the file is written, as far as it shows."""

    delimiter: str = ","
    decimal: str = "."
    encoding: str = "utf-8"
    header: bool = True


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class _Seen:
    """One column as it looks."""

    name: str
    type: str
    low: Any = None
    high: Any = None
    values: tuple[Any, ...] = ()
    missing: float = 0.0
    format: str = ""
    unique: bool = False


def first_schema(path: str | Path, *, label: str = "") -> str:
    """A draft of ``data.toml`` for the table at ``path``, as a text. ``label`` names the column that is learned."""
    place = Path(path)
    check_readable(place)
    arrays = arrays_in(place)
    if arrays is None:
        style, columns, rows = _of_text(place)
    else:
        style, rows = _Style(), 0
        columns = [_of_array(name, array) for name, array in in_columns(arrays).items()]
    if not columns:
        raise InvalidParameter("table", str(path), "has no column", "name a table with a header and rows")
    names = [column.name for column in columns]
    if label and label not in names:
        raise InvalidParameter("label", label, "is no column of the table", "choose one of its columns")
    text = "\n".join(_write_lines(place.name, style, columns, rows, label or _guess_label(columns))) + "\n"
    parse_schema(text)
    return text


# ----------------------------------------------------------------------------------------------------- looking at text


def _of_text(path: Path) -> tuple[_Style, list[_Seen], int]:
    encoding = _encoding(path)
    with open_text(path, encoding) as file:
        first = "".join(itertools.islice(TextLines(file), 50))
    delimiter = _delimiter(first)
    with open_text(path, encoding) as file:
        records = [record for _, record in itertools.islice(_nonempty(TextLines(file), delimiter), ROWS_LOOKED_AT + 1)]
    if not records:
        raise InvalidParameter("table", str(path), "is empty", "name a table with a header and rows")
    header = _is_header(records[0])
    width = len(records[0])
    rows = [record for record in records[header:] if len(record) == width]
    names = _names(records[0]) if header else [f"column_{place + 1}" for place in range(width)]
    turned: Sequence[Sequence[str]] = list(zip(*rows, strict=True)) if rows else [()] * width
    comma = delimiter != "," and any(
        re.fullmatch(r"\s*-?\d+,\d+\s*", one) for column in turned for one in column[:1000]
    )
    style = _Style(delimiter=delimiter, decimal="," if comma else ".", encoding=encoding, header=header)
    seen = [_of_column(name, texts, style) for name, texts in zip(names, turned, strict=True)]
    return (style, seen, len(rows)) if len(records) <= ROWS_LOOKED_AT else _refine(path, style, seen)


def _refine(path: Path, style: _Style, columns: list[_Seen]) -> tuple[_Style, list[_Seen], int]:
    """The same columns with the bounds and values of all rows, where the first ones have shown their types."""
    stated = tuple(SchemaColumn(name=one.name, type=one.type, format=one.format, missing=1.0) for one in columns)
    form = FileFormat(**dataclasses.asdict(style), other_columns="ignore")
    table = read_table(path, Schema(columns=stated, file=form))
    found = []
    for one in columns:
        cells = table.cells.get(one.name)
        if cells is None or not len(cells):
            found.append(one)
            continue
        missing, values = float(cells.missing.mean()), tuple[Any, ...]()
        if cells.texts is not None:
            texts = sorted({_clear(text) for text in cells.texts[~cells.missing]}) if one.values else []
            values = tuple(texts) if len(texts) <= _MOST_VALUES else ()
            found.append(dataclasses.replace(one, missing=missing, values=values))
            continue
        assert cells.numbers is not None
        there = cells.numbers[np.isfinite(cells.numbers)]
        if one.type == "date" and len(there):
            first, last = (datetime.date.fromordinal(int(edge)) for edge in (there.min(), there.max()))
            year = first.replace(month=1, day=1), last.replace(month=12, day=31)
            found.append(dataclasses.replace(one, missing=missing, low=year[0], high=year[1]))
        elif len(there):
            whole = there[there == np.floor(there)]
            whole = np.unique(whole) if one.values and len(whole) == len(there) else whole[:0]
            values = tuple(int(value) for value in whole) if 0 < len(whole) <= _MOST_VALUES else ()
            low, high = _round_away(float(there.min()), math.floor), _round_away(float(there.max()), math.ceil)
            found.append(dataclasses.replace(one, missing=missing, low=low, high=high, values=values))
        else:
            found.append(one)
    return style, found, len(table)


def _nonempty(lines: TextLines, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    return ((line, record) for line, record in records_in(lines, delimiter, []) if record)


def _encoding(path: Path) -> str:
    with path.open("rb") as file:
        start = file.read(2)
    if start in (b"\xff\xfe", b"\xfe\xff"):
        return "utf-16"
    with open_text(path, "utf-8") as text:
        lines = TextLines(text)
        for _ in itertools.islice(lines, ROWS_LOOKED_AT):
            pass
    return "cp1252" if lines.not_text else "utf-8"


def _delimiter(text: str) -> str:
    """The mark that gives the same number of columns, and the most, in the first lines."""

    def score(mark: str) -> tuple[int, int]:
        try:
            widths = [len(record) for record in csv.reader(text.splitlines(keepends=True), delimiter=mark) if record]
        except csv.Error:
            return 0, 0
        if not widths or widths[0] < 2:
            return 0, 0
        return sum(width == widths[0] for width in widths) * widths[0], widths[0]

    return max(DELIMITERS, key=score)


def _is_header(record: list[str]) -> bool:
    """Names, each once and none a number."""
    plain = [name.strip() for name in record]
    return all(plain) and not any(_number(name) is not None for name in plain)


def _names(record: list[str]) -> list[str]:
    """The header's names, those that repeat left with a number of their own: the check tells of them."""
    found: list[str] = []
    for place, name in enumerate(_clear(name.strip()) for name in record):
        found.append(name if name and name not in found else f"column_{place + 1}")
    return found


def _number(text: str, decimal: str = ".") -> float | None:
    plain = text.strip()
    if not plain.isascii() or "_" in plain or (decimal == "," and "." in plain):
        return None
    try:
        found = float(plain.replace(",", ".") if decimal == "," else plain)
    except ValueError:
        return None
    return found if math.isfinite(found) else None


def _of_column(name: str, texts: Sequence[str], style: _Style) -> _Seen:
    there = [text for text in texts if text.strip() not in MISSING]
    missing = 1 - len(there) / len(texts) if texts else 0.0
    unique = len(there) > 1 and len(set(there)) == len(texts)
    numbers = [number for number in (_number(text, style.decimal) for text in there) if number is not None]
    if there and len(numbers) >= 0.9 * len(there):  # a word in a column of numbers is for the check to find
        return _of_numbers(name, numbers, missing, unique)
    for form in _DATES:
        days = [found for found in (_date(text, form) for text in there) if found is not None]
        if there and len(days) >= 0.9 * len(there):
            low, high = min(days).replace(month=1, day=1), max(days).replace(month=12, day=31)
            return _Seen(name=name, type="date", low=low, high=high, missing=missing, format=form)
    values = tuple(sorted({_clear(text) for text in there}))
    few = len(values) <= _MOST_VALUES and len(there) >= 5 * len(values)
    return _Seen(name=name, type="text", values=values if few else (), missing=missing, unique=unique)


def _date(text: str, form: str) -> datetime.date | None:
    try:
        if form:
            return datetime.datetime.strptime(text.strip(), form).date()
        return datetime.datetime.fromisoformat(text.strip()).date()
    except ValueError:
        return None


def _of_numbers(name: str, numbers: Sequence[float], missing: float, unique: bool = False) -> _Seen:
    whole = all(number == math.floor(number) for number in numbers)
    if whole and max(map(abs, numbers)) > LARGEST_WHOLE:
        return _Seen(name=name, type="text", missing=missing, unique=unique)
    values = sorted({int(number) for number in numbers}) if whole else []
    few = len(values) <= _MOST_VALUES and len(numbers) >= 5 * len(values)
    return _Seen(
        name=name, type="integer" if whole else "number", low=_round_away(min(numbers), math.floor),
        high=_round_away(max(numbers), math.ceil), values=tuple(values) if few else (), missing=missing,
        unique=unique and whole,
    )  # fmt: skip


def _of_array(name: str, array: Any) -> _Seen:
    if array.dtype.kind in "USO":
        return _of_column(name, ["" if one is None else str(one) for one in array[:ROWS_LOOKED_AT]], _Style())
    if array.dtype.kind == "M":
        return _of_moments(name, array)
    values = np.asarray(array[:ROWS_LOOKED_AT], dtype=np.float64)
    finite = values[np.isfinite(values)]
    missing = 1 - len(finite) / len(values) if len(values) else 0.0
    return _of_numbers(name, finite.tolist(), missing) if len(finite) else _Seen(name=name, type="number")


def _of_moments(name: str, array: Any) -> _Seen:
    there = array[~np.isnat(array)]
    if not len(there):
        return _Seen(name=name, type="date", missing=1.0)
    try:
        first, last = (moment.astype("datetime64[D]").item() for moment in (there.min(), there.max()))
        low, high = first.replace(month=1, day=1), last.replace(month=12, day=31)
    except (AttributeError, ValueError, OverflowError):  # beyond the calendar
        low = high = None
    return _Seen(name=name, type="date", low=low, high=high, missing=1 - len(there) / len(array))


def _round_away(value: float, away: Callable[[float], int]) -> float:
    """Away from the middle, to a half of its first digit's unit, so that few drafts quote a row: 28 … 77 is 25 … 80."""
    if value == 0:
        return 0.0
    unit = 10.0 ** math.floor(math.log10(abs(value))) / 2
    found = away(value / unit) * unit if unit else value
    return float(f"{found:.12g}") if math.isfinite(found) else value


def _guess_label(columns: Sequence[_Seen]) -> str:
    """The column that seems to be learned: by its name, else the last one with few values."""
    found = [column.name for column in columns if column.values and _LABELS.fullmatch(column.name)]
    if found:
        return found[-1]
    return columns[-1].name if 2 <= len(columns[-1].values) <= _MOST_VALUES else ""


# ------------------------------------------------------------------------------------------------------------ writing


def _write_lines(name: str, style: _Style, columns: Sequence[_Seen], rows: int, label: str) -> Iterator[str]:
    seen = f"the {rows:,} rows of {_clear(name)}" if rows else _clear(name)
    yield f"# What this site's table should hold. A draft, made from {seen}."
    yield "#"
    yield "# Bounds and values below were READ OFF ROWS. They are facts about the people in them: keep this file at"
    yield "# the site. Put what you know in their place (ages lie in 0 … 120 in any file), line by line,"
    yield "# and then set reviewed = true. Published, in a paper or a task's code, they are a release that no budget"
    yield "# was charged for."
    yield "#"
    yield f"#   quietsum data check {_clear(name)} --schema data.toml"
    yield ""
    yield "reviewed = false"
    yield ""
    yield "columns = ["
    for column in columns:
        yield f"  {{ {', '.join(_facts(column, label))} }},"
    yield "]"
    if style != _Style():
        yield ""
        yield "[file]"
        yield from (f"{key} = {_toml(value)}" for key, value in dataclasses.asdict(style).items()
                    if value != getattr(_Style(), key))  # fmt: skip
    yield ""
    yield "[rows]"
    yield "# most = 1000                # the declared, public size, as in policy.toml"
    yield "duplicates = 0.0             # the share of rows that may repeat an earlier one"
    keys = [column.name for column in columns if column.unique and _KEYS.fullmatch(column.name)]
    if keys:
        yield f"keys = [{', '.join(_toml(key) for key in keys)}]"
    if label:
        known = next(column for column in columns if column.name == label)
        yield ""
        yield "[label]"
        yield f"column = {_toml(label)}"
        if known.values:
            yield f"classes = [{', '.join(_toml(value) for value in known.values)}]"
            yield "least = 0.0                  # of the rows, for each class: declare what you expect"
            yield "most = 1.0"
    yield ""
    yield "[outliers]"
    yield 'rule = "robust-z"            # reported to you; refuses nothing unless you say most = 0.001'
    yield "threshold = 6.0"
    yield ""
    yield "# Rules that look at one row and at public constants; any other would have to be charged."
    yield "# [[cleaning]]"
    yield f'# column = {_toml(columns[0].name)}'  # fmt: skip
    yield '# when = "missing"             # or "unreadable", or "outside" with bounds = [0, 120]'
    yield '# do = "drop"                  # the row; or "fill" with constant = 54, or "clamp" to the bounds'


def _facts(column: _Seen, label: str) -> Iterator[str]:
    yield f"name = {_toml(column.name)}"
    yield f'type = "{column.type}"'
    if column.format:
        yield f"format = {_toml(column.format)}"
    if column.values and column.name != label:
        yield f"allowed = [{', '.join(_toml(value) for value in column.values)}]"
    elif column.low is not None and column.name != label:
        yield f"min = {_toml(column.low)}"
        yield f"max = {_toml(column.high)}"
    if column.missing > 0:
        yield f"missing = {min(1.0, math.ceil(column.missing * 100 + 1e-9) / 100):g}"


def _clear(text: str) -> str:
    """Letters that a TOML file may hold."""
    plain = text.encode("utf-8", "replace").decode()
    return "".join(letter if letter.isprintable() else "?" for letter in plain)


def _toml(value: Any) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case int() | datetime.date():
            return str(value)
        case float():
            return str(int(value)) if value == int(value) and abs(value) < 1e15 else repr(value)
    return json.dumps(str(value), ensure_ascii=False)
