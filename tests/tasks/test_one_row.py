"""The one-row check can fail: tasks that compute something on all rows do not pass it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from quietsum.learning.step import cross_entropy
from quietsum.tasks import Metrics, Settings
from tasks import one_row
from tasks.one_row import assert_row_local


class Honest:
    """Twenty records, five public rows; ``fault`` says what it does wrong."""

    name, title, public = "made-up", "made-up rows", ""
    loss = staticmethod(cross_entropy)

    def __init__(self, rows: Tensor, fault: str = "") -> None:
        self._rows, self._fault = rows, fault

    @property
    def size(self) -> int:
        return int((self._rows[:, 0] < 9).sum()) if self._fault == "size" else 20

    @property
    def settings(self) -> Settings:
        rate = float(self._rows.std()) if self._fault == "settings" else 1.0
        return Settings(learning_rate=rate, optimizer="sgd", training={})

    def model(self) -> nn.Module:
        made = nn.Linear(3, 2)
        if self._fault == "model":
            with torch.no_grad():
                made.bias[0] = self._rows.mean()
        return made

    def records(self) -> tuple[Tensor, ...]:
        rows = self._rows - self._rows.mean(0) if self._fault == "mean" else self._rows
        if self._fault == "outliers":
            rows = rows[rows[:, 0] < 9]
        return rows, torch.zeros(len(rows), dtype=torch.int64)

    def evaluate(self, model: nn.Module) -> Metrics:
        seen = self._rows if self._fault == "score" else torch.ones(5, 3)
        return Metrics(values={"mean": float(model(seen).mean().detach())}, on="five public rows")


def pair(fault: str) -> tuple[Honest, Honest]:
    rows = torch.randn(20, 3, generator=torch.Generator().manual_seed(0))
    altered = rows.clone()
    altered[4] += 10
    return Honest(rows, fault), Honest(altered, fault)


def test_a_task_that_looks_at_one_row_at_a_time_passes() -> None:
    assert_row_local(*pair(""), 4, modules=[one_row])


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("mean", "another record"), ("outliers", "number of records"), ("size", "size"), ("settings", "settings"),
        ("model", "first model"), ("score", "scores look at training"),
    ],
)  # fmt: skip
def test_a_task_that_computes_on_all_rows_is_caught(fault: str, said: str) -> None:
    with pytest.raises(AssertionError, match=said):
        assert_row_local(*pair(fault), 4)


def test_a_perturbation_that_cannot_be_seen_is_no_test() -> None:
    before, _ = pair("")
    with pytest.raises(AssertionError, match="did not change"):
        assert_row_local(before, before, 4)
