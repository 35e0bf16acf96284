"""The table behind questions: whatever one line holds, the others are read as if it were not there."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from quietsum.errors import InvalidParameter
from quietsum.tasks.lines import LONGEST
from quietsum.tasks.questions import QuestionTask, oddities

OTHERS = ["f,40,x", 'm,50,"a, b"', "f,60,"] * 100
BROKEN = {
    "a quote that is never closed": 'f,"40,x',
    "a quote that is never closed, at the end": 'f,40,"x',
    "a letter behind a quote": 'f,40,"x"y',
    "half of a note of two lines": 'f,40,"first line\nsecond line"',
    "a note of four lines": 'f,40,"one\ntwo\nthree\nfour"',
    "a field beyond every limit": f"f,40,{'x' * LONGEST}y",
    "a quoted field beyond every limit": f'f,40,"{"x" * LONGEST}y"',
    "one field": "f",
    "a field too many": "f,40,x,y",
    "bytes that are no text": "f,40,\x00\udcff",
    "an end of line of old": "f,40,x\rf",
}


def total(folder: Path, lines: list[str]) -> np.ndarray:
    path = folder / "table.csv"
    path.write_bytes("\n".join(["sex,age,note", *lines, ""]).encode("utf-8", "surrogateescape"))
    task = QuestionTask(
        questions=[{"name": "all", "kind": "count"}, {"name": "age", "kind": "mean", "column": "age"}],
        columns=[{"name": "age", "kind": "number", "bounds": [0, 100]}],
        sites=[{"name": "bern", "size": 400}], tables={"bern": str(path)},
    )  # fmt: skip
    rows = task.rows("bern")
    return -task.gradients(task.initial(), rows.features, rows.labels).sum(axis=0)


@pytest.mark.parametrize("case", BROKEN)
@pytest.mark.parametrize("place", [0, 150, 300])
def test_one_line_moves_the_sum_by_one_at_most_whatever_it_holds(tmp_path: Path, case: str, place: int) -> None:
    without = total(tmp_path, OTHERS)
    moved = total(tmp_path, [*OTHERS[:place], BROKEN[case], *OTHERS[place:]]) - without
    assert np.linalg.norm(moved) <= 1 + 1e-9


@pytest.mark.parametrize("case", ["a quote that is never closed", "a field beyond every limit"])
def test_the_usual_reader_would_lose_all_lines_behind_it_or_fail(tmp_path: Path, case: str) -> None:
    (tmp_path / "table.csv").write_text("\n".join([BROKEN[case], *["f,40,x"] * 300]))
    csv.field_size_limit(LONGEST)
    with (tmp_path / "table.csv").open(newline="") as file:
        try:
            assert len(list(csv.reader(file))) < 10
        except csv.Error as error:
            assert "limit" in str(error)


def test_whole_lines_count_also_with_quotes_other_ends_of_lines_and_a_comma_more(tmp_path: Path) -> None:
    assert total(tmp_path, ['f,40,"x, ""y"""']) == pytest.approx(total(tmp_path, ["f,40,x"]))
    assert total(tmp_path, ["f,40,x\r", "", "f,40,x,"]) == pytest.approx(total(tmp_path, ["f,40,x"] * 2))


def test_the_holder_hears_of_lines_that_are_no_records(tmp_path: Path) -> None:
    for lines, told in ((OTHERS, 0), ([*OTHERS, BROKEN["a quote that is never closed"]], 1)):
        (tmp_path / "table.csv").write_text("\n".join(["sex,age,note", *lines]))
        found = oddities(tmp_path / "table.csv", (), 400)
        assert len(found) == told and all("no records" in one for one in found)


@pytest.mark.parametrize("weight", [1e308, 5e-324])
def test_weights_that_leave_nothing_to_a_question_are_refused(weight: float) -> None:
    with pytest.raises(InvalidParameter, match="weight"):
        QuestionTask(questions=[{"name": "one", "kind": "count", "weight": weight}] * 2)


def test_a_column_that_is_described_twice_is_refused_and_no_record_is_read_twice() -> None:
    age = {"name": "age", "kind": "number", "bounds": [0, 100]}
    with pytest.raises(InvalidParameter, match="twice"):
        QuestionTask(questions=[{"name": "age", "kind": "mean", "column": "age"}], columns=[age, age])


def test_a_long_name_in_one_record_makes_no_array_as_wide_as_itself(tmp_path: Path) -> None:
    """Names of a million letters for each of 50,000 records would be 200 GB, and memory that runs out is a message."""
    names = ["ada"] * 49_998 + ["b" * (LONGEST - 10), "ada"]
    (tmp_path / "table.csv").write_text("\n".join(["patient_id,age", *(f"{name},40" for name in names)]))
    task = QuestionTask(
        questions=[{"name": "all", "kind": "count"}], person="patient_id", tables={"bern": str(tmp_path / "table.csv")}
    )
    people = task.people("bern")
    assert people.nbytes < 1 << 20 and (np.flatnonzero(people != people[0]) == [49_998]).all()


def test_a_line_of_any_length_is_hashed_by_its_beginning_and_the_others_as_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table that is one endless line fits into no memory."""
    task = QuestionTask(questions=[{"name": "all", "kind": "count"}], tables={"bern": str(tmp_path / "table.csv")})
    (tmp_path / "table.csv").write_text("\n".join(["sex,age,note", *OTHERS[:3], "x" * 1000, *OTHERS[:3]]))
    whole = task.records_of("bern")[0]
    monkeypatch.setattr("quietsum.tasks.lines.LONGEST", 64)
    cut = task.records_of("bern")[0]
    assert len(set(cut.tolist())) == 4
    assert (np.flatnonzero(cut != whole) == [3]).all()
