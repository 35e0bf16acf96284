"""Questions as a stranger may send them in a plan: whatever stands in a place, a site refuses in a sentence."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from typing import Any

import pytest

from quietsum.analytics import Column
from quietsum.errors import QuietsumError
from quietsum.party.questions import SiteQuestions
from quietsum.tasks.questions import QuestionTask

COLUMNS: list[dict[str, Any]] = [
    {"name": "age", "kind": "number", "bounds": [0, 100], "cells": 4},
    {"name": "weeks", "kind": "number", "grid": [0, 10, 60]},
    {"name": "sex", "kind": "category", "categories": ["f", "m"]},
    {"name": "died", "kind": "category", "categories": ["0", "1"], "identifies_nobody": "two values"},
]
OPTIONS: dict[str, Any] = {
    "questions": [
        {"name": "a", "kind": "count", "where": {"sex": ["f"], "age": {"from": 25, "to": 50}}},
        {"name": "m", "kind": "mean", "column": "age"},
        {"name": "c", "kind": "contingency", "columns": ["age", "sex"]},
        {"name": "q", "kind": "quantiles", "column": "age", "at": [0.5]},
        {"name": "s", "kind": "survival", "time": "weeks", "event": "died", "event_value": "1", "group": "sex"},
    ],
    "columns": COLUMNS,
    "sites": [{"name": "bern", "size": 10, "dataset": "registry"}],
    "title": "five questions",
}
HOSTILE: list[Any] = [
    None, 5, -1, 1.5, math.nan, math.inf, True, "", "x", "\x1b]0;x\x07", [], ["x"], [["x"]], {}, {"a": 1}, [None],
    [{}], 10**400, {"from": {}, "to": []}, b"x", [5, 6],
]  # fmt: skip


def places(values: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    listed = values.items() if isinstance(values, dict) else enumerate(values) if isinstance(values, list) else ()
    for key, value in listed:
        yield (*above, key)
        yield from places(value, (*above, key))


@pytest.mark.parametrize("place", list(places(OPTIONS)), ids=lambda place: ".".join(map(str, place)))
def test_whatever_stands_in_a_plan_s_questions_is_read_or_refused_in_a_sentence(place: tuple[Any, ...]) -> None:
    site = SiteQuestions(
        table="table.csv", columns=tuple(Column.from_dict(one) for one in COLUMNS), epsilon=1.0, day=2.0
    )
    assert not list(site.problems(OPTIONS))
    for hostile in HOSTILE:
        options = copy.deepcopy(OPTIONS)
        inner: Any = options
        for key in place[:-1]:
            inner = inner[key]
        inner[place[-1]] = hostile
        assert all(isinstance(told, str) for told in site.problems(options))
        try:
            task = QuestionTask.from_options(options)
        except QuietsumError:
            continue
        assert isinstance(task.title, str) and task.example().features.shape[0] == 2
