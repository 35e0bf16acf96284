"""First options for a task from a table: from its header, from what the holder says, and from rows only if they are
public.

A header is not protected: it is the same for any people in the table. Types, ranges, categories, classes and sizes are
not in it, and are taken from what the holder *states*, from a ``data.toml`` that he has reviewed, or, if he declares
why no record in the table needs protection, from the rows (:func:`fill_from_public_rows`). What is left stays blank.

>>> parse_column("age=number 0..120"), parse_column("ward=category north 'south 2'")
({'name': 'age', 'kind': 'number', 'bounds': [0.0, 120.0]}, \
{'name': 'ward', 'kind': 'category', 'categories': ['north', 'south 2']})
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import re
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, final

from quietsum.analytics import Column
from quietsum.errors import DataMissing, InvalidParameter, printable
from quietsum.tasks.lines import LONGEST, check_file, is_record, lines_of, open_lines, read_header, width_of
from quietsum.tasks.table.options import MOST_COLUMNS

__all__ = ["TableDraft", "draft_table", "fill_from_public_rows", "parse_column", "parse_site", "toml_of"]

MOST_CATEGORIES: Final = 50
_MARKS: Final = (",", ";", "\t", "|")
_HOW: Final = 'write "age=number 0..120", "ward=category north south", "patient=identifier" or "note=ignore"'
_RANGE: Final = re.compile(r"(?P<low>[-+0-9.eE]+)\.\.(?P<high>[-+0-9.eE]+)")
_DATE: Final = re.compile(r"\d{4}-\d{1,2}-\d{1,2}|\d{1,2}[./]\d{1,2}[./]\d{2,4}")
_MISSING: Final = frozenset({"", "NA", "N/A", "n/a", "NaN", "nan", "null", "NULL", "None", "?"})


def parse_column(text: str) -> dict[str, Any]:
    """A column as the holder states it in one argument: its name, its kind and what belongs to it."""
    name, equals, rest = text.partition("=")
    try:
        words = shlex.split(rest)
    except ValueError:
        words = []
    if not equals or not name.strip() or not words:
        raise InvalidParameter("--declare", text, "declares nothing", _HOW)
    found: dict[str, Any] = {"name": name.strip(), "kind": words[0]}
    match words:
        case ["number", bounds] if pair := _RANGE.fullmatch(bounds):
            try:
                found["bounds"] = [float(pair["low"]), float(pair["high"])]
            except ValueError:
                raise InvalidParameter("--declare", text, "has a bound that is no number", _HOW) from None
        case ["category", _, *_]:
            found["categories"] = words[1:]
        case ["identifier" | "ignore"]:
            pass
        case _:
            raise InvalidParameter("--declare", text, "is not understood", _HOW)
    if words[0] != "ignore":
        Column.from_dict({**found, **_nobody(found)})
    return found


def parse_site(text: str) -> dict[str, Any]:
    """A site with its declared size, "north=1200".

    >>> parse_site("north=1200")
    {'name': 'north', 'size': 1200}
    """
    name, _, count = text.rpartition("=")
    if not name.strip() or not count.strip().isdecimal() or not 0 < int(count) <= 10**9:
        raise InvalidParameter("--site", text, "is no site with a size", 'write "north=1200", a round number')
    return {"name": name.strip(), "size": int(count)}


def _nobody(column: Mapping[str, Any]) -> dict[str, str]:
    """A column that the holder declares as a number or a category identifies no person, by any name."""
    personal = (
        column["kind"] in ("number", "category") and Column(name=column["name"], kind="identifier").looks_personal
    )
    return {"identifies_nobody": "declared by the holder"} if personal else {}


# --------------------------------------------------------------------------------------------------- the draft


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class TableDraft:
    """What is known of a table before anything is filled in. ``columns`` are those of the header that are read.

    A column or the label with an empty kind, and a site of size 0, are blanks.
    """

    name: str
    table: str
    label: Mapping[str, Any]
    columns: tuple[Mapping[str, Any], ...]
    sites: tuple[Mapping[str, Any], ...]
    site_column: str = ""
    person_column: str = ""
    model: str = "linear"
    delimiter: str = ","
    decimal: str = "."
    encoding: str = "utf-8"
    public: str = ""
    held_out: float = 0.0
    holdout: str = ""
    holdout_public: str = ""
    stated: str = ""
    left_out: tuple[tuple[str, str], ...] = ()
    """Columns whose public rows show neither a range nor a few values, each with why; no option of the plan."""

    @property
    def task(self) -> str:
        """The task's name in ``run.toml``."""
        return "table"

    def to_options(self) -> dict[str, Any]:
        """``[task.options]`` as plain values; what is at its default is left out."""
        found: dict[str, Any] = {}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name == "left_out":
                continue
            if field.default is dataclasses.MISSING or value != field.default or field.name == "model":
                found[field.name] = value
        return found

    def to_toml(self) -> str:
        """``[task.options]`` as a text, with a comment on each blank."""
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield "[task.options]"
        for name, value in self.to_options().items():
            if name == "model":
                yield _with(f"model = {toml_of(value)}", 'or "mlp", one hidden layer')
            elif name == "label":
                yield _with(f"label = {toml_of(value)}", _blank(value))
            elif name == "sites":
                yield '# Declared and public, round numbers above the rows: { name = "north", size = 1200 }'
                yield from _list("sites", value or [{"name": "?", "size": 0}],
                                 lambda one: "" if one["size"] else "fill in")  # fmt: skip
            elif name == "columns":
                yield "# From what is known without the data:"
                yield '#   { name = "age", kind = "number", bounds = [0, 120] }'
                yield '#   { name = "ward", kind = "category", categories = ["north", "south"] }'
                yield from _list("columns", value, _blank)
            else:
                yield f"{name} = {toml_of(value)}"


def _blank(column: Mapping[str, Any]) -> str:
    match column.get("kind", ""):
        case "":
            return "fill in"
        case "number" if not column.get("bounds"):
            return "fill in: bounds = [low, high]"
        case "category" if not column.get("categories"):
            return 'fill in: categories = ["one", "other"]'
    return ""


def _list(name: str, values: Sequence[Mapping[str, Any]], comment: Any) -> Iterator[str]:
    yield f"{name} = ["
    for one in values:
        yield _with(f"  {toml_of(one)},", comment(one))
    yield "]"


def _with(setting: str, comment: str) -> str:
    return f"{setting:<33} # {comment}" if comment else setting


def toml_of(value: Any) -> str:
    """A plain value as TOML, in one line."""
    match value:
        case Mapping():
            return "{ " + ", ".join(f"{name} = {toml_of(one)}" for name, one in value.items()) + " }"
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case float():
            return str(int(value)) if value == int(value) and abs(value) < 1e15 else repr(value)
        case str():
            return json.dumps(value, ensure_ascii=False)
    return "[" + ", ".join(toml_of(one) for one in value) + "]"


# ---------------------------------------------------------------------------------------- from the header alone


def draft_table(
    path: Path,
    *,
    label: str,
    site_column: str = "",
    person_column: str = "",
    stated: Sequence[Mapping[str, Any]] = (),
    sites: Sequence[Mapping[str, Any]] = (),
    encoding: str = "utf-8",
    delimiter: str = "",
    decimal: str = ".",
    model: str = "linear",
) -> TableDraft:
    """The draft for the table at ``path``. Guarantees: nothing behind its first line is looked at.

    ``stated`` are columns by the holder (:func:`parse_column`), ``sites`` those with sizes (:func:`parse_site`).
    """
    header, mark = _header(path, delimiter, encoding)
    for option, name in (("--label", label), ("--site-column", site_column), ("--person-column", person_column)):
        if name and name not in header:
            raise InvalidParameter(option, name, "is no column of the table", _columns(header))
    told = {str(one["name"]): dict(one) for one in stated}
    for name in told:
        if name not in header:
            raise InvalidParameter("--declare", name, "is no column of the table", _columns(header))
    columns = []
    for name in header:
        if name in (label, site_column, person_column):
            continue
        found = told.get(name) or {"name": name, "kind": _by_name(name)}
        if found["kind"] != "ignore":
            columns.append({**found, **_nobody(found)})
    if len(columns) > MOST_COLUMNS:
        problem = f"has {len(columns):,} columns, and a model reads at most {MOST_COLUMNS:,}"
        raise InvalidParameter("--from", str(path), problem, "keep the columns that say something")
    learned = told.get(label, {"name": label, "kind": ""})
    if learned["kind"] not in ("", "number", "category"):
        problem = "is what is learned, so it is a number or a category"
        raise InvalidParameter("--declare", label, problem, _HOW)
    name = re.sub(r"\W+", "-", path.stem).strip("-") or "table"
    return TableDraft(
        name=name, table=str(path), label={**learned, **_nobody(learned)}, columns=tuple(columns),
        sites=tuple(sites) or (() if site_column else ({"name": name, "size": 0},)),
        site_column=site_column, person_column=person_column, model=model, delimiter=mark, decimal=decimal,
        encoding=encoding, stated="by the holder",
    )  # fmt: skip


def _by_name(name: str) -> str:
    """ "identifier" for a column whose name says that it tells people apart; "" for any other."""
    return "identifier" if Column(name=name, kind="identifier").looks_personal else ""


def _columns(header: Sequence[str]) -> str:
    return f"its columns are {printable(', '.join(header[:12]))}{', …' if len(header) > 12 else ''}"


def _header(path: Path, delimiter: str, encoding: str) -> tuple[list[str], str]:
    try:
        check_file(path)
        _check_beginning(path, encoding)
        mark = delimiter or _delimiter(path, encoding)
        header = [name.strip() for name in read_header(path, mark, encoding)]
    except (DataMissing, OSError) as error:
        problem = f"cannot be read ({printable(str(error))})"
        raise InvalidParameter(
            "--from", str(path), problem, "name a CSV file whose first line names the columns"
        ) from None
    while header and not header[-1]:
        header.pop()
    if _looks_like_a_row(header):
        problem = "has numbers in its first line, which may be a row of somebody, and names go into the plan"
        raise InvalidParameter(
            "--from", str(path), problem, "add a line with names, or put a letter before each number"
        )
    counted = Counter(header)
    if twice := [name for name, count in counted.items() if count > 1]:
        problem = f"names the column {printable(twice[0])!r} {counted[twice[0]]} times"
        raise InvalidParameter("--from", str(path), problem, "give each column one name")
    if any(not name or not name.isprintable() for name in header):
        problem = "has a column without a printable name in its first line"
        raise InvalidParameter("--from", str(path), problem, "if it is a row, add a line with names")
    return header, mark


def _looks_like_a_row(header: Sequence[str]) -> bool:
    """Whether names are numbers, and not the whole ascending ones of a series: years, days, places.

    >>> _looks_like_a_row(["63", "Anna", "2.5", "yes"]), _looks_like_a_row(["sex", "2019", "2020", "2021"])
    (True, False)
    """
    numbers = [name for name in header if _number(name, ".") is not None or _number(name, ",") is not None]
    whole = [int(name) for name in numbers if name.isdecimal()]
    series = len(whole) == len(numbers) > 1 and all(one < other for one, other in itertools.pairwise(whole))
    return bool(numbers) and not series


def _check_beginning(path: Path, encoding: str) -> None:
    """Raise if the first line is no text in this encoding. Guarantees: nothing behind that line is looked at."""
    with path.open("rb") as file:
        line = file.readline(LONGEST)
    kind = {b"PK\x03\x04": "a workbook or another archive", b"PAR1": "a Parquet file"}.get(line[:4], "")
    if kind:
        raise InvalidParameter("--from", str(path), f"is {kind}", "save it as CSV")
    if len(line) == LONGEST and not line.endswith(b"\n"):
        problem = f"has a first line of more than {LONGEST:,} bytes"
        raise InvalidParameter("--from", str(path), problem, "keep the columns that say something")
    if encoding == "utf-16":
        return
    if line[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise InvalidParameter("--from", str(path), "begins as UTF-16 text", "say --encoding utf-16")
    if b"\0" in line:
        raise InvalidParameter("--from", str(path), "has NUL bytes in its first line", "export the table again")
    try:
        line.decode(encoding)
    except UnicodeDecodeError:
        raise InvalidParameter(
            "--from", str(path), f"has a first line that is no {encoding}", "say --encoding cp1252"
        ) from None


def _delimiter(path: Path, encoding: str) -> str:
    """The mark that cuts the first line into the most fields."""
    return max(_MARKS, key=lambda mark: len(read_header(path, mark, encoding)))


# -------------------------------------------------------------------------------------------- from public rows


def fill_from_public_rows(draft: TableDraft, path: Path, reason: str, *, held_out: float = 0.2) -> TableDraft:
    """``draft`` with its blanks filled in from the rows of ``path``, which need no protection for this ``reason``.

    Guarantees: none to anybody in those rows. A column that is neither a number nor has few values is left out.
    """
    found = _texts(path, draft)
    stated = [dict(column) for column in draft.columns]
    columns, left_out = [], []
    for column in stated:
        name = str(column["name"])
        filled = _fill_column(dict(column), found[name], draft.decimal)
        if filled is None:
            left_out.append((name, _why_not(found[name])))
        else:
            columns.append(filled)
    label = _fill_column(dict(draft.label), found[str(draft.label["name"])], draft.decimal, few=MOST_CATEGORIES)
    if label is None or (label["kind"] == "category" and len(label["categories"]) < 2):
        problem = "has too many values for classes, and they are no numbers" if label is None else "has one value only"
        raise InvalidParameter("--label", str(draft.label["name"]), problem, "name the column that is learned")
    sites = draft.sites
    if draft.site_column and not sites:
        counted = Counter(text.strip() for text in found[draft.site_column] if text.strip())
        sites = tuple({"name": name, "size": 0} for name in sorted(counted))
    counts = Counter(text.strip() for text in found[draft.site_column]) if draft.site_column else None
    rows = len(next(iter(found.values())))
    share = 1 - held_out
    sites = tuple(
        {**one, "size": one["size"] or max(1, round((rows if counts is None else counts[one["name"]]) * share))}
        for one in sites
    )
    return dataclasses.replace(
        draft, columns=tuple(columns), label=label, sites=sites, public=reason, held_out=held_out,
        stated="read off rows that need no protection", left_out=tuple(left_out),
    )  # fmt: skip


def _texts(path: Path, draft: TableDraft) -> dict[str, list[str]]:
    wanted = [*(str(one["name"]) for one in draft.columns), str(draft.label["name"])]
    wanted += [draft.site_column] if draft.site_column else []
    found: dict[str, list[str]] = {name: [] for name in wanted}
    with open_lines(path, draft.encoding) as file:
        lines = lines_of(file, draft.delimiter)
        header = [name.strip() for name in next(lines, [])]
        places, width = [header.index(name) for name in wanted], width_of(header)
        for line in lines:
            if is_record(line, width):
                for name, place in zip(wanted, places, strict=True):
                    found[name].append(line[place])
    return found


def _fill_column(
    column: dict[str, Any], texts: Sequence[str], decimal: str, *, few: int = MOST_CATEGORIES
) -> dict[str, Any] | None:
    """``column`` with its kind, and bounds or categories, as the rows show them; None if they show neither."""
    if column.get("kind") == "identifier" or not _blank(column):
        return column
    there = [text.strip() for text in texts if text.strip() not in _MISSING]
    numbers = [number for number in (_number(text, decimal) for text in there) if number is not None]
    values = Counter(there)
    mostly = len(numbers) >= 0.9 * len(there) and bool(there)
    if mostly and (len(set(numbers)) > 10 or column.get("kind") == "number"):
        low, high = _outward(min(numbers), math.floor), _outward(max(numbers), math.ceil)
        return {**column, "kind": "number", "bounds": [low, high if high > low else low + 1]}
    if not 1 < len(values) <= few or not all(text.isprintable() for text in values):
        return None
    return {**column, "kind": "category", "categories": sorted(values)}


def _why_not(texts: Sequence[str]) -> str:
    """Why a column of public rows is no feature by itself."""
    values = {text.strip() for text in texts if text.strip() not in _MISSING}
    if len(values) < 2:
        return "one value in every row" if values else "empty"
    if len(values) <= MOST_CATEGORIES:
        return "values that cannot be printed"
    dates = sum(bool(_DATE.match(value)) for value in values)
    return "dates" if dates >= 0.9 * len(values) else f"{len(values):,} different values, more than {MOST_CATEGORIES}"


def _number(text: str, decimal: str) -> float | None:
    try:
        found = float(text.replace(",", ".") if decimal == "," else text)
    except ValueError:
        return None
    return found if math.isfinite(found) else None


def _outward(value: float, away: Any) -> float:
    """Away from the middle, to a half of its first digit's unit: 28 … 77 becomes 25 … 80."""
    if value == 0:
        return 0.0
    unit = 10.0 ** math.floor(math.log10(abs(value))) / 2
    return float(f"{away(value / unit) * unit:.12g}")
