"""The clipped sum of one batch without noise: what a party adds to a sum whose noise is distributed."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from quietsum.learning.descent import clipped_sum
from quietsum.mechanisms.rng import randomness_for_tests, system_randomness
from quietsum.sampling import Everyone, Poisson
from quietsum.tasks import Rows
from tiny import TinyTask

Floats = NDArray[np.float64]


@pytest.fixture(autouse=True)
def seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUIETSUM_TEST_SEEDS", "1")


def naive(task: TinyTask, params: Floats, rows: Rows, chosen: NDArray[np.int64], max_norm: float) -> Floats:
    total = np.zeros(len(params))
    for index in chosen:
        gradient = task.gradients(params, rows.features[[index]], rows.labels[[index]])[0]
        total += gradient * min(1.0, max_norm / np.linalg.norm(gradient))
    return total


@pytest.mark.parametrize("max_norm", [0.3, 1.0, 10.0])
def test_it_is_the_sum_of_clipped_gradients_of_the_drawn_batch(max_norm: float) -> None:
    task, params = TinyTask(), np.array([2.0, -1.0])
    rows, sampling = task.rows("north"), Poisson(rate=0.5)
    drawn = sampling.draw(len(rows), randomness_for_tests(3))
    found = clipped_sum(task, params, rows, sampling=sampling, max_norm=max_norm, rng=randomness_for_tests(3))
    assert 0 < len(drawn) < len(rows)
    np.testing.assert_allclose(found, naive(task, params, rows, drawn, max_norm), atol=len(rows) * max_norm * 2.0**-23)


def test_one_row_moves_it_by_at_most_the_bound_whatever_it_holds() -> None:
    task, params, rng = TinyTask(), np.zeros(2), system_randomness()
    rows = task.rows("north")
    for wild in (1e9, -1e-9, np.inf, np.nan, 0.1):
        features = rows.features.copy()
        features[5] = wild
        here, there = (
            clipped_sum(
                task, params, Rows(features=each, labels=rows.labels), sampling=Everyone(), max_norm=0.5, rng=rng
            )
            for each in (features, np.delete(np.vstack([features, [0.0, 0.0]]), 5, axis=0))
        )  # a row at the model's own place has no gradient
        assert np.linalg.norm(here - there) <= 0.5 * (1 + 1e-12)


def test_a_row_that_raises_counts_as_zero_and_erases_no_other() -> None:
    class Raises(TinyTask):
        def gradients(self, params: Floats, features: Floats, labels: Floats) -> Floats:
            if (features[:, 0] > 0.95).any():
                raise ValueError("the row says so")
            return super().gradients(params, features, labels)

    task, params = Raises(), np.zeros(2)
    rows = task.rows("north")
    found = clipped_sum(task, params, rows, sampling=Everyone(), max_norm=1.0, rng=system_randomness())
    np.testing.assert_allclose(found, naive(TinyTask(), params, rows, np.arange(11), 1.0), atol=1e-5)


def test_an_empty_batch_sums_to_zero() -> None:
    nobody = Rows(features=np.zeros((0, 2)), labels=np.zeros(0))
    rng = system_randomness()
    assert not clipped_sum(TinyTask(), np.zeros(2), nobody, sampling=Everyone(), max_norm=1.0, rng=rng).any()
