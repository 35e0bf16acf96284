"""The checks themselves: each looks at columns and says what does not fit, where, in how many rows.

Outliers are found by declared bounds (``usual``) or by a robust z: (x − median) / (1.4826 · MAD), with MAD the median
of |x − median| (Hampel 1974; Iglewicz and Hoaglin 1993, section 3). Both medians stay at the site. In a normal column
of n values the share beyond a threshold t is about

    2 Φ(−t / √(1 + (1.361 t² + 1.571) / n)),

since 1.4826 · MAD has relative variance 1.361 / n (its efficiency is 36.75 %: Rousseeuw and Croux 1993) and the median
has variance π / 2n. That is the expected false-positive rate which is printed: close from a hundred values on, too high
for fewer, where a far value is part of its own scale. Columns with heavy tails have more.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quietsum.defence.validation.cleaning import clean
from quietsum.defence.validation.result import ERROR, MOST_SHOWN, WARNING, Problem, Result
from quietsum.defence.validation.schema import LARGEST_WHOLE, Label, Schema, SchemaColumn
from quietsum.defence.validation.tables import ColumnCells, Floats, Mask, Table, from_arrays
from quietsum.defence.validation.tasks import arrays_of
from quietsum.errors import DataUnfit, InvalidParameter

__all__ = ["ROW_BY_ROW", "as_table", "fitting", "robust_z", "share_beyond", "validate"]

_FEWEST = 30
"""With fewer values a median of deviations says little, and no outliers are reported."""
ROW_BY_ROW = frozenset({"type", "finite", "range", "allowed", "missing", "label"})
"""Checks that look at one row; the others compare rows, or look at the table as a whole."""
_NOUNS = {"number": "number", "integer": "whole number", "date": "date", "text": "text"}


def validate(rows: Any, schema: Schema | None = None) -> Result:
    """What of ``rows`` does not fit ``schema``: a :class:`Table`, a task's rows, arrays by name, or one (n, k) array.

    Rules of the schema's ``cleaning`` come first. Without a schema: are all numbers finite, and what stands out.

    Guarantees: nothing is raised for what rows hold. The result is for the site's operator; what leaves a site because
    of it would have to be charged.

    >>> from quietsum.defence.validation import SchemaColumn
    >>> found = validate({"age": np.array([34.0, 700.0])}, Schema(columns=(SchemaColumn(name="age", min=0, max=120),)))
    >>> found.ok, [(one.check, one.column, one.lines) for one in found.problems]
    (False, [('range', 'age', (1,))])
    """
    table, schema = as_table(rows, schema)
    read = len(table)
    if schema.cleaning:
        table = clean(table, schema)
    counts: dict[str, Any] = {"rows": len(table), "columns": len(table.cells), "rows_read": read}
    if table.cleaned:
        counts["cleaned"] = dict(table.cleaned)
    problems = [*table.flaws]
    for column in schema.columns:
        cells = table.cells.get(column.name)
        if cells is None:
            problems.append(Problem(check="columns", column=column.name, message="is not in the table"))
        else:
            problems += _of_column(table, column, cells, schema)
    problems += _of_rows(table, schema, counts)
    if schema.label is not None and schema.label.column in table.cells:
        problems += _of_label(table, schema.label, counts)
    problems += _outliers(table, schema, counts)
    counts["missing"] = {name: int(cells.missing.sum()) for name, cells in table.cells.items() if cells.missing.any()}
    return Result(problems=tuple(problems), counts=counts, unit=table.unit)


def as_table(rows: Any, schema: Schema | None) -> tuple[Table, Schema]:
    """A table as :func:`validate` takes it, with the schema that it is held to."""
    if isinstance(rows, Table):
        if schema is None:
            raise InvalidParameter("schema", None, "is missing", "pass the one that the table was read by")
        return rows, schema
    if isinstance(rows, Mapping):
        return from_arrays(rows, schema, label="label")
    if isinstance(rows, np.ndarray):
        return from_arrays({"x": rows}, schema)
    if (arrays := arrays_of(rows)) is not None:
        return from_arrays(arrays, schema, label="label")
    problem = "is no table"
    raise InvalidParameter("rows", type(rows).__name__, problem, "pass a Table, arrays by name, or a task's rows")


def fitting(rows: Any, schema: Schema) -> Mask:
    """Which rows fit by themselves: every value of its type, finite, in range, allowed, there, and a declared class.

    :class:`~quietsum.errors.DataUnfit` where a column of the schema is not there. Missing values do not count in
    columns that allow a share of them.

    Guarantees: whether a row fits depends on that row and the schema alone, so leaving out the others costs nothing.
    What compares rows (duplicates, keys, shares, outliers by a robust z) is not looked at.

    >>> from quietsum.defence.validation import SchemaColumn
    >>> fitting({"age": np.array([34.0, 700.0])}, Schema(columns=(SchemaColumn(name="age", min=0, max=120),))).tolist()
    [True, False]
    """
    table, schema = as_table(rows, schema)
    found = np.ones(len(table), dtype=bool)
    for column in schema.columns:
        cells = table.cells.get(column.name)
        if cells is None:
            raise DataUnfit(f"the data does not fit its schema: columns in {column.name}")
        found &= ~cells.wrong
        there = ~cells.missing & ~cells.wrong
        if not column.missing:
            found &= ~cells.missing
        if cells.numbers is not None:
            low, high = column.bounds
            with np.errstate(invalid="ignore"):
                fine = np.isfinite(cells.numbers) & (cells.numbers >= low) & (cells.numbers <= high)
                if column.type == "integer":
                    fine &= (cells.numbers == np.floor(cells.numbers)) & (np.abs(cells.numbers) <= LARGEST_WHOLE)
            found &= fine | ~there
        if column.allowed:
            found &= _among(cells, column.allowed)[0] | ~there
        if schema.label is not None and schema.label.classes and schema.label.column == column.name:
            found &= _among(cells, schema.label.classes)[0] | ~there
    return found


# -------------------------------------------------------------------------------------------------------- a column


def _problem(table: Table, cells: ColumnCells | None, where: Mask, column: SchemaColumn | None, **what: Any) -> Problem:
    places = np.flatnonzero(where)
    few = places[:MOST_SHOWN]
    examples: tuple[str, ...] = ()
    if cells is not None:
        examples = tuple(dict.fromkeys(cells.show(int(place), int(table.lines[place]), column) for place in few))
    return Problem(
        column="" if column is None else column.name,
        count=len(places),
        lines=tuple(int(line) for line in table.lines[few]),
        examples=examples,
        **what,
    )


def _of_column(table: Table, column: SchemaColumn, cells: ColumnCells, schema: Schema) -> Iterator[Problem]:
    if cells.wrong.any():
        yield _problem(table, cells, cells.wrong, column, check="type", message=f"is no {_NOUNS[column.type]}",
                       remedy=_hint(column, cells, schema))  # fmt: skip
    if cells.missing.mean() > column.missing if len(cells) else False:
        share = f"at most {100 * column.missing:.3g} % may lack one" if column.missing else "every row must have one"
        yield _problem(table, None, cells.missing, column, check="missing", message=f"has no value, and {share}",
                       remedy="fill in a public constant, leave the row out, or say missing = 0.05")  # fmt: skip
    if cells.numbers is not None:
        yield from _of_numbers(table, column, cells, cells.numbers)
    if column.allowed:
        yield from _of_allowed(table, column, cells)


def _hint(column: SchemaColumn, cells: ColumnCells, schema: Schema) -> str:
    """What the cells that are of no type may be, judged by their shape."""
    texts = [text.strip() for text in cells.raw.values()]
    if not texts:
        return "give it another type in the schema, or mend the table"
    if column.type == "date":
        return 'say how dates are written, format = "%d.%m.%Y" for instance'
    if schema.file.decimal == "." and all("," in text and _plain(text.replace(",", "")) for text in texts):
        return 'a decimal comma? say decimal = "," under [file]'
    if all(_plain(text.replace("'", "").replace(" ", "")) for text in texts):
        return "write numbers without marks between thousands"
    return "correct the cells, or name their word under file.missing if it stands for no value"


def _plain(text: str) -> bool:
    return bool(text) and text.isascii() and text.lstrip("+-").replace(".", "", 1).isdecimal()


def _of_numbers(table: Table, column: SchemaColumn, cells: ColumnCells, numbers: Floats) -> Iterator[Problem]:
    infinite = np.isinf(numbers)
    if infinite.any():
        yield _problem(table, cells, infinite, column, check="finite", message="is infinite, or beyond 1.8e308",
                       remedy="such a row counts as zero in training")  # fmt: skip
    finite = np.isfinite(numbers)
    if column.type == "integer":
        parts = finite & (numbers != np.floor(numbers))
        if parts.any():
            yield _problem(table, cells, parts, column, check="type", message="is no whole number",
                           remedy='say type = "number"')  # fmt: skip
        vast = finite & (np.abs(numbers) > LARGEST_WHOLE)
        if vast.any():
            yield _problem(table, cells, vast, column, check="type", message="is beyond 2^53 and loses digits",
                           remedy='a name rather than a number? say type = "text"')  # fmt: skip
    low, high = column.bounds
    outside = finite & ((numbers < low) | (numbers > high))
    if outside.any():
        yield _problem(table, cells, outside, column, check="range", message=f"lies {_range(column)}",
                       remedy="correct the cells, or the bounds in the schema if they are wrong")  # fmt: skip


def _range(column: SchemaColumn) -> str:
    low, high = (
        "…" if one is None else f"{one:g}" if isinstance(one, int | float) else str(one)
        for one in (column.min, column.max)
    )
    if "…" not in (low, high):
        return f"outside {low} … {high}"
    return f"below {low}" if high == "…" else f"above {high}"


def _of_allowed(table: Table, column: SchemaColumn, cells: ColumnCells) -> Iterator[Problem]:
    there = ~cells.missing & ~cells.wrong
    inside, nearly = _among(cells, column.allowed)
    other = there & ~inside
    if other.any():
        yield _problem(table, cells, other, column, check="allowed", message="is none of the allowed values",
                       remedy=_near(int((other & nearly).sum())))  # fmt: skip


def _among(cells: ColumnCells, values: tuple[Any, ...]) -> tuple[Mask, Mask]:
    """Which cells are one of ``values``, and which are but for spaces and letter case."""
    if cells.numbers is not None:
        inside = np.isin(cells.numbers, [float(one) for one in values])
        return inside, inside
    assert cells.texts is not None
    exact, loose = set(values), {str(one).strip().casefold() for one in values}
    kinds = {text: (text in exact, str(text).strip().casefold() in loose) for text in set(cells.texts.tolist())}
    pairs = np.array([kinds[text] for text in cells.texts.tolist()], dtype=bool).reshape(-1, 2)
    return pairs[:, 0], pairs[:, 1]


def _near(count: int) -> str:
    if count:
        return f"{count} of them {'differs' if count == 1 else 'differ'} by spaces or letter case alone"
    return "correct the cells, or declare what they hold"


# ------------------------------------------------------------------------------------------------- rows and labels


def find_repeats(hashes: NDArray[np.int64]) -> Mask:
    """Which rows repeat an earlier one."""
    found = np.ones(len(hashes), dtype=bool)
    found[np.unique(hashes, return_index=True)[1]] = False
    return found


def _of_rows(table: Table, schema: Schema, counts: dict[str, Any]) -> Iterator[Problem]:
    rules = schema.rows
    if len(table) < rules.least:
        yield Problem(check="rows", message=f"the table has fewer rows than {rules.least:,}",
                      remedy="a truncated file, a filter, or another table?")  # fmt: skip
    if rules.most is not None and len(table) > rules.most:
        yield Problem(check="rows", message=f"the table has more rows than {rules.most:,}, its declared size",
                      remedy="declare a larger size in the schema and the policy: it is public")  # fmt: skip
    again = find_repeats(table.hashes)
    counts["duplicates"] = int(again.sum())
    if again.any():
        much = again.mean() > rules.duplicates
        yield _problem(
            table, None, again, None, check="duplicates", message="a row repeats an earlier one exactly",
            severity=ERROR if much else WARNING,
            remedy="somebody behind two records has about twice the ε; leave copies out, or raise rows.duplicates",
        )  # fmt: skip
    for key in rules.keys:
        if all(name in table.cells for name in key):
            twice = find_repeats(_key_hashes(table, key))
            if twice.any():
                yield _problem(table, None, twice, None, check="keys",
                               message=f"a row has the same {' + '.join(key)} as an earlier one",
                               remedy="one record for each key, or take it out of rows.keys")  # fmt: skip


def _key_hashes(table: Table, key: tuple[str, ...]) -> NDArray[np.int64]:
    parts = []
    for name in key:
        cells = table.cells[name]
        values = cells.texts if cells.texts is not None else cells.numbers
        assert values is not None
        parts.append(values.tolist())
    return np.fromiter((hash(tuple(map(repr, one))) for one in zip(*parts, strict=True)), np.int64, count=len(table))


def _of_label(table: Table, label: Label, counts: dict[str, Any]) -> Iterator[Problem]:
    if not label.classes:
        return
    cells = table.cells[label.column]
    there = ~cells.missing & ~cells.wrong
    inside, nearly = _among(cells, label.classes)
    other = there & ~inside
    column = SchemaColumn(name=label.column, type="text" if cells.texts is not None else "number")
    if other.any():
        yield _problem(table, cells, other, column, check="label", message="is none of the declared classes",
                       remedy=_near(int((other & nearly).sum())))  # fmt: skip
    values = cells.texts if cells.texts is not None else cells.numbers
    assert values is not None
    total, found = int((there & inside).sum()), dict[str, int]()
    for name in label.classes:
        found[str(name)] = int((there & (values == name)).sum())
    counts["classes"] = found
    for name, count in found.items():
        low, high = label.bounds(name)
        share = count / total if total else 0.0
        if not low <= share <= high:
            side = "less" if share < low else "more"
            yield Problem(
                check="balance", column=label.column, count=count,
                message=f"class {name} has {side} than its declared share, {100 * low:.3g} … {100 * high:.3g} %",
                remedy="labels of another kind, a filter, or flipped labels? else declare other shares",
            )  # fmt: skip
        elif not count:
            yield Problem(check="balance", column=label.column, message=f"class {name} has no row at all",
                          severity=WARNING, remedy="declare shares if this must not be")  # fmt: skip
    if len([one for one in found.values() if one]) == 1 and len(table) > 1:
        yield Problem(check="balance", column=label.column, message="every row has the same class", severity=WARNING,
                      remedy="nothing can be learned about the others here")  # fmt: skip


# -------------------------------------------------------------------------------------------------------- outliers


def robust_z(values: Floats) -> Floats | None:
    """(x − median) / (1.4826 · MAD) of each value; None where more than half of them are equal.

    >>> z = robust_z(np.array([1.0, 2.0, 3.0, 4.0, 100.0]))
    >>> round(float(z[-1]), 1)
    65.4
    """
    centre = np.median(values)
    away = np.abs(values - centre)
    scale = 1.4826022185 * float(np.median(away))
    if not 0 < scale < math.inf:
        return None
    with np.errstate(over="ignore"):
        found: Floats = (values - centre) / scale
    return found


def share_beyond(threshold: float, size: int) -> float:
    """The share of a normal column's ``size`` values whose robust z lies beyond ``threshold``; see the module.

    >>> f"{share_beyond(6.0, 10**9):.1e}", f"{share_beyond(6.0, 50):.1e}"
    ('2.0e-09', '2.3e-05')
    """
    spread = math.sqrt(1 + (1.361 * threshold**2 + 1.571) / size)
    return math.erfc(threshold / spread / math.sqrt(2))


def _outliers(table: Table, schema: Schema, counts: dict[str, Any]) -> Iterator[Problem]:
    rule, reported = schema.outliers, dict[str, Any]()
    skipped = 0
    for column in schema.columns:
        cells = table.cells.get(column.name)
        judged = column.usual is not None or (
            rule.rule == "robust-z" and not column.allowed and column.type != "text"
            and not (schema.label is not None and schema.label.classes and schema.label.column == column.name)
        )  # fmt: skip
        if not judged or cells is None or cells.numbers is None:
            continue
        low, high = column.bounds
        there = np.isfinite(cells.numbers) & (cells.numbers >= low) & (cells.numbers <= high)  # else "range"
        far, rate = _far(cells.numbers, there, column, rule.threshold)
        if far is None:
            skipped += 1
            continue
        if not far.any():
            continue
        expected = None if rate is None else rate * int(there.sum())
        reported[column.name] = {"count": int(far.sum()), "expected": expected, "rate": rate}
        much = rule.most is not None and far.sum() > rule.most * there.sum()
        by = "lies outside its usual bounds" if rate is None else f"lies beyond {rule.threshold:g} robust deviations"
        if rule.most is not None:
            by += f"; at most {100 * rule.most:.3g} % may"
        chance = "" if expected is None else f"{_few(expected)} expected by chance in a normal column (rate {rate:.1e})"
        yield _problem(table, cells, far, column, check="outliers", message=by, remedy=chance,
                       severity=ERROR if much else WARNING)  # fmt: skip
    counts["outliers"] = reported
    if skipped:
        counts["outliers_not_judged"] = skipped


def _far(numbers: Floats, there: Mask, column: SchemaColumn, threshold: float) -> tuple[Mask | None, float | None]:
    """Which values are unusual, and which share would be by chance; None where that cannot be said."""
    far = np.zeros(len(numbers), dtype=bool)
    if column.usual is not None:
        low, high = column.usual
        far[there] = (numbers[there] < low) | (numbers[there] > high)
        return far, None
    if there.sum() < _FEWEST:
        return None, None
    with np.errstate(over="ignore", invalid="ignore"):
        found = robust_z(numbers[there])
    if found is None:
        return None, None
    far[there] = np.abs(found) > threshold
    return far, share_beyond(threshold, int(there.sum()))


def _few(expected: float) -> str:
    return "fewer than 0.1" if expected < 0.1 else f"about {expected:.1f}"
