"""The course of a run is what its watcher wrote down; a file that is no such course is named."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from quietsum.errors import CorruptState
from quietsum.privacy import PrivacyUnit
from quietsum.runs import Recorder, RunCourse, count_drop_outs, read_course


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with Recorder(tmp_path / "run.db"):
        pass
    rows = [
        "INSERT INTO rounds (round, attempt, asked, kept, epsilon_record, epsilon_client, finished) VALUES "
        "(1, 1, 4, 4, 0.5, 2.0, 0), (1, 2, 4, 3, 0.6, 2.5, 1), (2, 1, 4, 4, 0.7, NULL, 1), "
        "(3, 1, NULL, NULL, NULL, NULL, 0)",
        "INSERT INTO metrics VALUES (1, 'auc', 0.7, 'rows'), (2, 'auc', 0.8, 'rows'), (3, 'auc', 0.9, 'rows')",
        "INSERT INTO left_out VALUES (1, 1, 'b', 'late', 0), (2, 1, 'b', 'gone', 0), (2, 1, 'a', 'late', 0)",
    ]
    database = sqlite3.connect(tmp_path / "run.db")
    for row in rows:
        database.execute(row)
    database.commit()
    database.close()
    return tmp_path / "run.db"


def test_a_round_that_was_repeated_counts_once_and_an_open_one_does_not(path: Path) -> None:
    found = read_course(path)
    assert [(one.round, one.kept) for one in found.rounds] == [(1, 3), (2, 4)]
    assert found.rounds[0].epsilon == {PrivacyUnit.RECORD: 0.6, PrivacyUnit.CLIENT: 2.5}
    assert found.rounds[1].epsilon == {PrivacyUnit.RECORD: 0.7}
    assert [one.scores for one in found.rounds] == [{"auc": 0.7}, {"auc": 0.8}]
    assert found.score() == "auc" and found.measured_on == {"auc": "rows"} and found.last == found.rounds[1]


def test_drop_outs_are_counted_by_round_with_the_last_reason(path: Path) -> None:
    assert count_drop_outs(path) == [("b", 2, "gone"), ("a", 1, "late")]


def test_where_there_is_no_file_there_is_no_course(tmp_path: Path) -> None:
    assert read_course(tmp_path / "run.db") == RunCourse() and count_drop_outs(tmp_path / "run.db") == []


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE rounds SET epsilon_record = -1.0", "UPDATE rounds SET asked = -4", "UPDATE metrics SET value = 9e999",
        "DROP TABLE metrics", "DROP TABLE rounds",
    ],
)  # fmt: skip
def test_a_file_that_is_no_course_is_named(path: Path, change: str) -> None:
    database = sqlite3.connect(path)
    database.execute(change)
    database.commit()
    database.close()
    with pytest.raises(CorruptState, match=r"run\.db cannot be read"):
        read_course(path)


def test_a_view_in_the_place_of_a_table_is_never_asked(path: Path) -> None:
    database = sqlite3.connect(path)
    database.execute("DROP TABLE rounds")
    database.execute(
        "CREATE VIEW rounds AS WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT * FROM n"
    )
    database.commit()
    database.close()
    with pytest.raises(CorruptState, match="is no table"):
        read_course(path)
