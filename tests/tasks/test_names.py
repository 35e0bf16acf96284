from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from quietsum.errors import InvalidParameter
from quietsum.tasks import Rows, task_named

MODULE = """
import numpy as np
from quietsum.plan import PartyFacts
from quietsum.tasks import Metrics, Rows

class Mine:
    name, title, dimension = "mine", "a task of mine", 2
    def __init__(self, *, scale=1.0):
        self.scale = scale
    def parties(self):
        return (PartyFacts(name="a", dataset="a-rows", size=3),)
    def initial(self):
        return np.zeros(2)
    def rows(self, party):
        return Rows(features=np.ones((3, 2)), labels=np.zeros(3))
    def gradients(self, params, features, labels):
        return self.scale * features
    def evaluate(self, params):
        return Metrics(values={"loss": 0.0}, on="nothing")

class Half:
    name = "half"
"""


def test_heart_is_found_by_name() -> None:
    assert task_named("heart").name == "heart"


@pytest.mark.parametrize(
    ("name", "lesson"), [("hearts", 'did you mean "heart"'), ("xyz", "my_module:MyTask"), (3, "known")]
)
def test_an_unknown_name_is_answered_with_the_nearest(name: str, lesson: str) -> None:
    with pytest.raises(InvalidParameter, match=lesson):
        task_named(name)


def test_a_users_class_is_a_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "their_task.py").write_text(MODULE)
    (tmp_path / "broken_task.py").write_text(MODULE + "1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    task = task_named("their_task:Mine", {"scale": 2.0})
    assert task.gradients(task.initial(), np.ones((1, 2)), np.zeros(1)).tolist() == [[2.0, 2.0]]
    for name, options, lesson in (
        ("their_task:Mine", {"scala": 1}, "keyword arguments"),
        ("their_task:Nobody", {}, "hold that class"),
        ("their_task:Half", {}, "lacks title, dimension, parties"),
        ("no_such_module:Mine", {}, "importable"),
        ("broken_task:Mine", {}, "division by zero"),
        (":", {}, "cannot be imported"),
    ):
        with pytest.raises(InvalidParameter, match=lesson):
            task_named(name, options)


def test_rows_of_unequal_length_are_refused() -> None:
    with pytest.raises(InvalidParameter, match="do not fit together"):
        Rows(features=np.zeros((3, 2)), labels=np.zeros(2))
    with pytest.raises(InvalidParameter, match="do not fit together"):
        Rows(features=np.zeros(3), labels=np.zeros(3))
