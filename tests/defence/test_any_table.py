"""Whatever a table holds: an answer, or one of our errors, and never a traceback."""

from __future__ import annotations

import io
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from hypothesis.extra import numpy as hnp

from quietsum.defence.validation import (
    Cleaning,
    Label,
    RowRules,
    Schema,
    SchemaColumn,
    first_schema,
    fitting,
    parse_schema,
    read_table,
    validate,
)
from quietsum.errors import QuietsumError

SCHEMA = Schema(
    columns=(
        SchemaColumn(name="a", min=0, max=10),
        SchemaColumn(name="b", type="integer", missing=0.2),
        SchemaColumn(name="c", type="text", allowed=("x", "y")),
        SchemaColumn(name="d", type="date"),
        SchemaColumn(name="y", type="integer"),
    ),
    rows=RowRules(keys=(("a", "c"),)),
    label=Label(column="y", classes=(0, 1), least=0.2),
    cleaning=(
        Cleaning(column="a", when="unreadable", do="drop"),
        Cleaning(column="b", when="missing", do="fill", constant=1),
        Cleaning(column="a", when="outside", do="clamp", bounds=(-5, 50)),
    ),
)
LOOSE = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
CELLS = st.one_of(
    st.sampled_from(["", "NA", "nan", "inf", "-inf", "1e400", "9" * 400, "-" + "9" * 400, "0", "1", "x", "2026-01-01",
                     "9999-12-31T23:59:59+23:59", "0001-01-01T00:00+23:00", "\0", '"', "a\nb", "\r", "1_0", "１",
                     "\ud800", "\x1b[31m", "1,5", "--", "0x10", " 3 ", "é"]),
    st.text(max_size=5), st.integers().map(str), st.floats().map(str),
)  # fmt: skip


def both(path: Path) -> None:
    """Check the file, and describe it; a draft describes what it was made of without contradiction."""
    try:
        result = validate(read_table(path, SCHEMA), SCHEMA)
        assert result.counts["rows"] >= 0 and result.to_dict()["ok"] == result.ok
    except QuietsumError:
        pass
    try:
        text = first_schema(path)
    except QuietsumError:
        return
    schema = parse_schema(text)
    validate(read_table(path, schema), schema)


@LOOSE
@given(content=st.one_of(st.binary(max_size=400), st.binary(max_size=200).map(lambda some: b"a,b,c,d,y\n" + some)))
def test_any_bytes_are_answered(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "any.csv"
    path.write_bytes(content)
    both(path)


@LOOSE
@given(
    rows=st.lists(st.lists(CELLS, min_size=0, max_size=6), max_size=8),
    header=st.lists(st.sampled_from(["a", "b", "c", "d", "y", " a", ""]), max_size=7),
    delimiter=st.sampled_from([",", ";", "\t"]),
    encoding=st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "latin-1"]),
)
def test_any_cells_are_answered(
    rows: list[list[str]], header: list[str], delimiter: str, encoding: str, tmp_path: Path
) -> None:
    path = tmp_path / "any.csv"
    text = "\n".join(delimiter.join(row) for row in [header, *rows])
    path.write_bytes(text.encode(encoding, "replace"))
    both(path)


@LOOSE
@given(
    values=hnp.arrays(
        dtype=st.sampled_from([np.float64, np.float32, np.float16, np.int64, np.uint8, np.bool_]),
        shape=hnp.array_shapes(min_dims=1, max_dims=4, min_side=0, max_side=5),
    )
)
def test_any_array_is_answered(values: np.ndarray[Any, Any]) -> None:
    if values.ndim > 1 and 0 in values.shape[1:]:
        with pytest.raises(QuietsumError, match="have no column"):
            validate(values)
        return
    finite = np.isfinite(values).all() if values.dtype.kind == "f" else True
    assert validate(values).ok == bool(finite and len(values))


@pytest.mark.parametrize("made", ["empty", "one byte", "a header", "one row", "no pickle", "cut", "scalar", "ragged"])
def test_odd_files_are_answered(made: str, tmp_path: Path) -> None:
    buffer = io.BytesIO()
    match made:
        case "no pickle":
            np.savez(buffer, a=np.array([object()], dtype=object))
        case "cut":
            np.savez(buffer, a=np.zeros(100))
            buffer = io.BytesIO(buffer.getvalue()[:-40])
        case "scalar":
            np.savez(buffer, a=np.float64(3))
        case "ragged":
            np.savez(buffer, a=np.zeros(3), b=np.zeros(4))
    texts = {
        "empty": b"",
        "one byte": b"\xff",
        "a header": b"a,b,c,d,y\n",
        "one row": b"a,b,c,d,y\n1,2,x,2026-01-01,1\n",
    }
    path = tmp_path / ("t.csv" if made in texts else "t.npz")
    path.write_bytes(texts.get(made, buffer.getvalue()))
    both(path)
    if made in ("no pickle", "cut", "scalar", "ragged"):
        with pytest.raises(QuietsumError):
            read_table(path, SCHEMA)


def test_a_quotation_mark_that_is_never_closed_is_told_at_its_line(tmp_path: Path) -> None:
    path = tmp_path / "open.csv"
    path.write_text('a,b,c,d,y\n1,2,x,2026-01-01,1\n1,2,"x,2026-01-01,1\n' + "1,2,x,2026-01-01,1\n" * 20_000)
    result = validate(read_table(path, SCHEMA), SCHEMA)
    assert any(one.check == "lines" and one.lines[0] == 3 and "not closed" in one.remedy for one in result.errors)


ALONE = Schema(
    columns=(
        SchemaColumn(name="a", min=-3, max=3),
        SchemaColumn(name="b", type="integer", missing=0.5),
        SchemaColumn(name="c", type="text", allowed=("x", "y")),
        SchemaColumn(name="y", type="integer"),
    ),
    rows=RowRules(duplicates=1.0, least=0),
    label=Label(column="y", classes=(0, 1)),
)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.one_of(st.floats(), st.sampled_from([-3.0, 3.0, 0.5])),
            st.one_of(st.none(), st.floats(), st.integers(-(2**60), 2**60).map(float)),
            st.sampled_from(["x", "y", "X", "", "NA"]),
            st.sampled_from([0.0, 1.0, 2.0, 0.5, np.nan]),
        ),
        min_size=1,
        max_size=12,
    )
)
def test_whether_a_row_fits_is_what_the_check_says_of_it_alone_and_no_other_row_changes_it(rows: list[Any]) -> None:
    def columns(some: list[Any]) -> dict[str, Any]:
        a, b, c, y = zip(*some, strict=True)
        numbers = np.array([np.nan if one is None else one for one in b])
        return {"a": np.array(a), "b": numbers, "c": np.array(c, dtype=object), "y": np.array(y)}

    together = fitting(columns(rows), ALONE)
    for place, row in enumerate(rows):
        alone = validate(columns([row]), ALONE)
        errors = [one for one in alone.errors if (one.check, one.column) != ("missing", "b")]  # half may be missing
        assert together[place] == (not errors) == fitting(columns([row]), ALONE)[0], errors


@pytest.mark.parametrize(
    "rows",
    [
        {"a": [[1, 2], [3]]},
        {},
        {"a": 3},
        {"a": np.array([1j])},
        None,
        "a",
        [1, 2],
        (np.zeros(3), np.zeros(4)),
        object(),
    ],
)
def test_what_is_no_table_is_said_in_a_sentence(rows: Any) -> None:
    with pytest.raises(QuietsumError):
        validate(rows)


HUGE = st.sampled_from([10**400, -(10**400), 2**63, 10**308 * 2])
VALUES = st.one_of(
    st.integers(), HUGE, st.sampled_from([True, "", "a", "mean", "%", "%q", "1", [], [1], [2, 1]]), st.floats(),
    st.text(max_size=4), st.dates(), st.datetimes(),
    st.lists(st.one_of(st.floats(), st.integers(), HUGE, st.text(max_size=2)), max_size=3),
)  # fmt: skip
KEYS = {
    "file": ["delimiter", "decimal", "encoding", "header", "missing", "other_columns"],
    "rows": ["least", "most", "duplicates", "keys"],
    "label": ["column", "classes", "least", "most", "shares", "disagreement"],
    "outliers": ["rule", "threshold", "most"],
}


def with_column(table: str, found: Mapping[str, Any]) -> Mapping[str, Any]:
    """A table of a schema's file, which names a column where it is the label's."""
    return {"column": "a", **found} if table == "label" else found


COLUMN = ["type", "min", "max", "allowed", "missing", "usual", "format"]


@settings(max_examples=150, deadline=None)
@given(
    column=st.dictionaries(st.sampled_from(COLUMN), VALUES, max_size=3),
    kind=st.sampled_from(["number", "integer", "text", "date"]),
    tables=st.fixed_dictionaries(
        {},
        optional={
            name: st.dictionaries(st.sampled_from(keys), VALUES, max_size=2).map(partial(with_column, name))
            for name, keys in KEYS.items()
        },
    ),
    rule=st.one_of(
        st.none(), st.dictionaries(st.sampled_from(["when", "do", "bounds", "constant"]), VALUES, max_size=4)
    ),
)
def test_any_schema_is_read_or_refused_and_what_is_read_can_be_held_to(
    column: dict[str, Any], kind: str, tables: dict[str, Any], rule: dict[str, Any] | None
) -> None:
    from quietsum.defence.validation.schema_file import SchemaTable
    from quietsum.plan import value_of

    values: dict[str, Any] = {"columns": [{"name": "a", "type": kind, **column}, {"name": "b"}], **tables}
    if rule is not None:
        values["cleaning"] = [{"column": "a", "when": "missing", "do": "drop", **rule}]
    try:
        schema = value_of(SchemaTable, values, where="t", remedy="r")
    except QuietsumError:
        return
    texts = {"a": np.array(["1", "x", "", "2026-01-01"], dtype=object), "b": np.arange(4.0)}
    validate(texts, schema)
    validate({"a": np.array([1.0, np.nan, np.inf, 5.0]), "b": np.arange(4.0)}, schema)
