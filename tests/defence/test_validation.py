"""What does not fit is found, in the right column and line; values of rows stand nowhere but in the examples."""

from __future__ import annotations

import datetime
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quietsum.defence.validation import (
    Cleaning,
    Label,
    Outliers,
    Problem,
    Result,
    RowRules,
    Schema,
    SchemaColumn,
    clean,
    load_schema,
    parse_schema,
    read_table,
    robust_z,
    share_beyond,
    validate,
)
from quietsum.errors import InvalidParameter, PlanRefused
from quietsum.tasks import Rows

SECRET = "Ms Smith"
VISITS = """
columns = [
  { name = "patient", type = "text" },
  { name = "age", type = "integer", min = 0, max = 120 },
  { name = "pressure", type = "number", min = 40, max = 300, missing = 0.5 },
  { name = "seen", type = "date", min = 2026-01-01, max = 2026-12-31 },
  { name = "ward", type = "text", allowed = ["north", "south"] },
  { name = "back", type = "text" },
]
[rows]
keys = ["patient"]
[label]
column = "back"
classes = ["no", "yes"]
least = 0.1
"""
GOOD = [f"P{i},{20 + i},{100 + i}.5,2026-02-{i + 1:02d},north,{'yes' if i % 3 == 0 else 'no'}" for i in range(12)]
HEADER = "patient,age,pressure,seen,ward,back"


def checked(folder: Path, lines: list[str], schema: str = VISITS, header: str = HEADER, **how: Any) -> Result:
    path = folder / "visits.csv"
    path.write_bytes("\n".join([header, *lines, ""]).encode(**how))
    held = parse_schema(schema)
    return validate(read_table(path, held), held)


def found(result: Result) -> set[tuple[str, str, tuple[int, ...]]]:
    return {(one.check, one.column, one.lines) for one in result.errors}


def test_a_table_that_is_what_was_stated_fits(tmp_path: Path) -> None:
    result = checked(tmp_path, GOOD)
    assert result.ok and not result.problems
    assert result.counts["rows"] == 12 and result.counts["classes"] == {"no": 8, "yes": 4}


def cell(place: int, text: str) -> list[str]:
    """The good table with one cell of its row on line 5 changed."""
    lines = [line.split(",") for line in GOOD]
    lines[3][place] = text
    return [",".join(line) for line in lines]


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        (cell(1, "unknown"), ("type", "age", (5,))),
        (cell(1, "23.5"), ("type", "age", (5,))),
        (cell(1, "1_000"), ("type", "age", (5,))),
        (cell(1, "٣٤"), ("type", "age", (5,))),  # digits of another script
        (cell(1, "700"), ("range", "age", (5,))),
        (cell(1, "-1"), ("range", "age", (5,))),
        (cell(1, ""), ("missing", "age", (5,))),
        (cell(1, "NA"), ("missing", "age", (5,))),
        (cell(1, "9" * 400), ("finite", "age", (5,))),
        (cell(1, "9007199254740993000"), ("type", "age", (5,))),
        (cell(2, "-inf"), ("finite", "pressure", (5,))),
        (cell(2, "1e999"), ("finite", "pressure", (5,))),
        (cell(2, SECRET), ("type", "pressure", (5,))),
        (cell(3, "03.02.2026"), ("type", "seen", (5,))),
        (cell(3, "2026-02-31"), ("type", "seen", (5,))),
        (cell(3, "1999-01-01"), ("range", "seen", (5,))),
        (cell(4, "east"), ("allowed", "ward", (5,))),
        (cell(4, "North"), ("allowed", "ward", (5,))),
        (cell(5, "maybe"), ("label", "back", (5,))),
        (cell(5, "Yes"), ("label", "back", (5,))),
        (cell(0, "P1"), ("keys", "", (5,))),
        ([*GOOD, GOOD[0]], ("duplicates", "", (14,))),
        ([*GOOD, "P99,1,2"], ("lines", "", (14,))),
        ([*GOOD, GOOD[0] + ",more"], ("lines", "", (14,))),
    ],
)
def test_each_kind_of_problem_is_found_in_its_column_and_line(
    tmp_path: Path, lines: list[str], problem: tuple[str, str, tuple[int, ...]]
) -> None:
    assert problem in found(checked(tmp_path, lines))


def test_a_line_number_is_that_of_the_file_also_after_quoted_newlines(tmp_path: Path) -> None:
    lines = ['"P\nof three\nlines",33,120,2026-02-02,north,no', *cell(1, "unknown")]
    assert found(checked(tmp_path, lines)) == {("type", "age", (8,))}


def test_missing_values_are_counted_against_their_declared_share(tmp_path: Path) -> None:
    half = [
        ",".join([*line.split(",")[:2], "" if i % 2 else "120", *line.split(",")[3:]]) for i, line in enumerate(GOOD)
    ]
    assert checked(tmp_path, half).ok  # half may be missing
    all_but_one = [",".join([*line.split(",")[:2], "", *line.split(",")[3:]]) for line in GOOD[1:]]
    assert {("missing", "pressure")} == {one[:2] for one in found(checked(tmp_path, [GOOD[0], *all_but_one]))}


def test_labels_out_of_balance_are_told_by_class(tmp_path: Path) -> None:
    result = checked(tmp_path, [line.replace("yes", "no") for line in GOOD])
    assert ("balance", "back", ()) in found(result)
    assert any("class yes has less than its declared share, 10 … 100 %" in one.message for one in result.errors)


# ------------------------------------------------------------------------------------------ tables of real people


def test_semicolons_a_mark_and_decimal_commas_are_read_when_they_are_stated(tmp_path: Path) -> None:
    style = '[file]\ndelimiter = ";"\ndecimal = ","\n'
    lines = [line.replace(".5", "#5").replace(",", ";").replace("#", ",") for line in GOOD]
    header = HEADER.replace(",", ";")
    assert checked(tmp_path, lines, VISITS + style, header, encoding="utf-8-sig").ok
    wrong = checked(tmp_path, lines, VISITS, header, encoding="utf-8-sig")
    assert any('say delimiter = ";" under [file]' in one.remedy for one in wrong.errors)
    half = checked(tmp_path, lines, VISITS + '[file]\ndelimiter = ";"\n', header)
    assert any('decimal = ","' in one.remedy for one in half.errors if one.column == "pressure")


@pytest.mark.parametrize(("encoding", "ok"), [("cp1252", True), ("latin-1", True), ("utf-8", False)])
def test_another_encoding_is_read_when_it_is_stated_and_told_when_it_is_not(
    tmp_path: Path, encoding: str, ok: bool
) -> None:
    lines = cell(0, "Zoë")
    result = checked(tmp_path, lines, VISITS + f'[file]\nencoding = "{encoding}"\n', encoding="cp1252")
    assert result.ok == ok and (ok or found(result) == {("encoding", "", (5,))})


def test_a_header_that_is_missing_wrong_or_double_is_told_and_not_quoted(tmp_path: Path) -> None:
    rows = checked(tmp_path, GOOD[1:], header=GOOD[0].replace("P0", SECRET))
    assert any("header = false" in one.remedy for one in rows.errors)
    spelt = checked(tmp_path, GOOD, header=HEADER.replace("age", "Age"))
    assert {("columns", "age", ()), ("columns", "", ())} <= found(spelt)
    twice = checked(tmp_path, [line + ",1" for line in GOOD], header=HEADER + ",age")
    assert ("header", "age", ()) in found(twice)
    assert SECRET not in repr(rows) + json.dumps(rows.to_dict()) + rows.summary


def test_without_a_header_the_order_of_the_schema_counts(tmp_path: Path) -> None:
    result = checked(tmp_path, GOOD[1:], VISITS + "[file]\nheader = false\n", header=GOOD[0])
    assert result.ok and result.counts["rows"] == 12


# ------------------------------------------------------------------------------------------- nothing of a row travels


def test_values_stand_in_examples_alone_and_these_are_in_no_text_that_travels(tmp_path: Path) -> None:
    result = checked(tmp_path, [*cell(2, SECRET), f"{SECRET},1,2"])
    wrong = next(one for one in result.errors if one.column == "pressure")
    assert wrong.examples == (f'"{SECRET}"',)
    kept = pickle.loads(pickle.dumps(wrong))
    assert kept == wrong and kept.examples == ()
    for text in (repr(result), repr(wrong), json.dumps(result.to_dict()), result.summary, str(kept)):
        assert SECRET not in text
    with pytest.raises(Exception, match="does not fit its schema: lines, type in pressure") as error:
        result.require()
    assert SECRET not in str(error.value) and "5" not in str(error.value)


def test_what_a_terminal_would_obey_is_not_shown(tmp_path: Path) -> None:
    result = checked(tmp_path, cell(2, "\x1b]0;owned\x07\x1b[31mred"))
    assert next(one for one in result.errors if one.column == "pressure").examples == ('"red"',)


# ------------------------------------------------------------------------------------------------ arrays and outliers


def test_rows_of_a_numpy_task_and_records_of_a_torch_task_are_checked() -> None:
    good = np.random.default_rng(0).normal(size=(200, 3))
    bad = good.copy()
    bad[7, 1], bad[9, 2] = np.nan, np.inf
    labels = np.arange(200) % 2
    assert validate(Rows(features=good, labels=labels.astype(np.float64))).ok
    expected = {("missing", "x.1", (7,)), ("finite", "x.2", (9,))}
    assert found(validate(Rows(features=bad, labels=labels.astype(np.float64)))) == expected
    assert found(validate((bad.astype(np.float32), labels))) == expected
    assert validate((bad, labels)).counts["classes"] == {"0": 100, "1": 100}


def test_images_are_judged_by_their_mean_spread_and_extremes() -> None:
    images = np.random.default_rng(0).normal(size=(100, 1, 20, 20)).astype(np.float32)
    images[3], images[5] = 50.0, images[4]
    result = validate((images, np.zeros(100, dtype=np.int64)))
    assert result.ok and result.counts["duplicates"] == 1
    assert ("x (mean)", (3,)) in {(one.column, one.lines) for one in result.problems}


def test_zero_is_zero_whatever_its_sign() -> None:
    assert validate(np.array([[0.0, 1.0], [-0.0, 1.0]])).counts["duplicates"] == 1


def test_robust_z_is_that_of_another_formula() -> None:
    values = np.random.default_rng(1).standard_t(3, size=501)
    centre = sorted(values)[250]
    scale = sorted(abs(value - centre) for value in values)[250] / 0.6744897501960817
    found = robust_z(values)
    assert found is not None
    np.testing.assert_allclose(found, [(value - centre) / scale for value in values], rtol=1e-8)
    assert robust_z(np.array([1.0, 1.0, 1.0, 2.0])) is None


@pytest.mark.parametrize("size", [100, 1000])
@pytest.mark.parametrize("threshold", [3.0, 3.5])
def test_the_expected_false_positive_rate_is_what_normal_columns_show(size: int, threshold: float) -> None:
    values = np.random.default_rng(2).standard_normal((400_000 // size, size))
    away = np.abs(values - np.median(values, axis=1, keepdims=True))
    seen = np.mean(away > threshold * 1.4826022185 * np.median(away, axis=1, keepdims=True))
    assert seen == pytest.approx(share_beyond(threshold, size), rel=0.25)
    assert seen != pytest.approx(share_beyond(threshold + 0.5, size), rel=0.25)  # the control


def test_outliers_are_told_and_refuse_only_where_a_share_is_declared() -> None:
    values = np.append(np.random.default_rng(3).normal(size=200), [99.0, -99.0])
    told = validate({"a": values}, Schema(columns=(SchemaColumn(name="a"),)))
    assert told.ok and [(one.check, one.lines) for one in told.problems] == [("outliers", (200, 201))]
    assert told.counts["outliers"]["a"]["rate"] == share_beyond(6.0, 202)
    strict = Schema(columns=(SchemaColumn(name="a"),), outliers=Outliers(most=0.001))
    assert not validate({"a": values}, strict).ok
    declared = Schema(columns=(SchemaColumn(name="a", usual=(-200.0, 200.0)),), outliers=Outliers(most=0.0))
    assert not validate({"a": values}, declared).problems


def test_more_rows_than_were_declared_do_not_fit() -> None:
    schema = Schema(columns=(SchemaColumn(name="a"),), rows=RowRules(most=3, duplicates=1.0, least=2))
    assert validate({"a": np.arange(3.0)}, schema).ok
    assert [one.check for one in validate({"a": np.arange(4.0)}, schema).errors] == ["rows"]
    assert [one.check for one in validate({"a": np.arange(1.0)}, schema).errors] == ["rows"]


# -------------------------------------------------------------------------------------------------------- row by row


def test_a_cleaning_rule_does_to_a_row_the_same_whatever_stands_beside_it() -> None:
    rules = (
        Cleaning(column="a", when="outside", do="clamp", bounds=(0, 10)),
        Cleaning(column="b", when="missing", do="fill", constant=5),
        Cleaning(column="c", when="outside", do="drop", bounds=(0, 1)),
    )
    schema = Schema(columns=tuple(SchemaColumn(name=name) for name in "abc"), cleaning=rules)
    rows = np.array([[99.0, np.nan, 0.5], [3.0, 2.0, 7.0], [-4.0, 1.0, 1.0]])

    def cleaned(some: Any) -> list[list[float]]:
        from quietsum.defence.validation import from_arrays

        table, _ = from_arrays({name: some[:, place] for place, name in enumerate("abc")}, schema)
        return [list(row) for row in clean(table, schema).matrix("abc")]

    assert cleaned(rows) == [[10.0, 5.0, 0.5], [0.0, 1.0, 1.0]]
    assert cleaned(rows) == [row for place in range(3) for row in cleaned(rows[place : place + 1])]


@pytest.mark.parametrize(
    ("rule", "why"),
    [
        ({"when": "outlier", "do": "drop"}, "compares rows"),
        ({"when": "robust-z", "do": "drop"}, "compares rows"),
        ({"when": "duplicates", "do": "drop"}, "compares rows"),
        ({"when": "missing", "do": "fill", "constant": "mean"}, "is computed from other rows"),
        ({"when": "missing", "do": "clamp"}, "clamps nothing"),
        ({"when": "outside", "do": "drop"}, "needs bounds"),
        ({"when": "missing", "do": "fill"}, "has no constant"),
        ({"when": "never", "do": "drop"}, "is unknown"),
    ],
)
def test_a_rule_that_compares_rows_is_refused_with_the_reason(rule: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidParameter, match=why) as error:
        Cleaning(column="a", **rule)
    assert "rule 7" in str(error.value) or "rows" not in why


# --------------------------------------------------------------------------------------------------------- data.toml


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('columns = [{ name = "a", tpye = "text" }]', "did you mean columns.type?"),
        ('colums = [{ name = "a" }]', "did you mean columns?"),
        ('columns = [{ name = "a", type = "float" }]', "choose number, integer, text, date"),
        ('columns = [{ name = "a", min = 3, max = 2 }]', "is above max"),
        ('columns = [{ name = "a", missing = true }]', "columns[0].missing"),
        ('columns = [{ name = "a" }, { name = "a" }]', "is described twice"),
        ('columns = [{ name = "age" }]\n[label]\ncolumn = "agee"', "did you mean 'age'?"),
        ('columns = [{ name = "a" }]\n[label]\ncolumn = "a"\nclasses = ["0"]', "is not a number"),
        ('columns = [{ name = "a" }]\n[[cleaning]]\ncolumn = "a"\nwhen = "outlier"\ndo = "drop"', "rule 7"),
        ('columns = [{ name = "a", type = "date", min = "2026-01-01" }]', "min"),
        ("columns = []", "columns"),
        ('columns = [{ name = "a" }]\n[file]\ndelimiter = "; "', "separates nothing"),
    ],
)
def test_a_wrong_schema_is_told_with_the_nearest_key(text: str, told: str) -> None:
    with pytest.raises(PlanRefused) as error:
        parse_schema(text)
    assert told in str(error.value)


def test_a_schema_is_read_from_a_file_and_equals_the_same_in_python(tmp_path: Path) -> None:
    path = tmp_path / "data.toml"
    path.write_text(VISITS, encoding="utf-8")
    columns = (
        SchemaColumn(name="patient", type="text"),
        SchemaColumn(name="age", type="integer", min=0, max=120),
        SchemaColumn(name="pressure", min=40, max=300, missing=0.5),
        SchemaColumn(name="seen", type="date", min=datetime.date(2026, 1, 1), max=datetime.date(2026, 12, 31)),
        SchemaColumn(name="ward", type="text", allowed=("north", "south")),
        SchemaColumn(name="back", type="text"),
    )
    label = Label(column="back", classes=("no", "yes"), least=0.1)
    assert load_schema(path) == Schema(columns=columns, rows=RowRules(keys=(("patient",),)), label=label)


def test_a_problem_has_no_default_that_hides_it() -> None:
    assert Problem(check="type", message="is no number").severity == "error"


def test_names_that_are_long_numbers_keep_their_digits() -> None:
    long = [2**60, 2**60 + 1]
    schema = Schema(columns=(SchemaColumn(name="id", type="text"),), rows=RowRules(keys=(("id",),)))
    for ids in (np.array(long), np.array(long, dtype=object), [str(one) for one in long]):
        assert validate({"id": ids}, schema).ok
    assert not validate({"id": [2**60, 2**60]}, schema).ok  # the control


def test_the_reference_states_every_key_with_its_default_and_meaning() -> None:
    """Its tables are written by: python -m quietsum.defence.validation reference"""
    from quietsum.defence.validation.schema_file import SchemaTable, schema_keys
    from quietsum.plan.text.reference import page

    text = (Path(__file__).parents[2] / "docs" / "reference" / "data-toml.md").read_text(encoding="utf-8")
    assert text.endswith(page(SchemaTable))
    assert all(f"| `{key}` |" in text for key in schema_keys())


@pytest.mark.parametrize("kind", [np.float32, np.float64, np.uint8])
def test_the_summaries_of_an_image_are_the_same_bits_whatever_stands_beside_it(kind: Any) -> None:
    """Rows are left out by them, so no other row may move them."""
    from quietsum.defence.validation.tables import in_columns

    images = (100 * np.random.default_rng(0).random((33, 3, 20, 20))).astype(kind)
    together = in_columns({"x": images})
    assert set(together) == {"x (mean)", "x (spread)", "x (least)", "x (largest)"}
    for place in range(33):
        for some in (slice(place, place + 1), slice(place, None), slice(max(0, place - 5), place + 1)):
            alone = in_columns({"x": images[some]})
            at = place - (some.start or 0)
            assert all(alone[name][at] == together[name][place] for name in together)


def test_a_date_has_no_classes() -> None:
    with pytest.raises(InvalidParameter, match="is a date"):
        Schema(
            columns=(SchemaColumn(name="visit", type="date", format="%Y-%m-%d"),),
            label=Label(column="visit", classes=("x",)),
        )
