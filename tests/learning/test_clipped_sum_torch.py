"""The same for torch: the clip and the batches of the noisy step, and no noise."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from quietsum.learning.clients.local import LocalSteps
from quietsum.learning.noise.gradient_noise import float_margin
from quietsum.mechanisms.rng import randomness_for_tests, system_randomness
from quietsum.plan.orders import LocalOrders
from quietsum.sampling import Everyone, Poisson


@pytest.fixture(autouse=True)
def seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUIETSUM_TEST_SEEDS", "1")


def steps() -> tuple[LocalSteps, np.ndarray, tuple[torch.Tensor, torch.Tensor]]:
    torch.manual_seed(1)
    model = nn.Linear(3, 2)
    rows = torch.randn(20, 3), torch.randint(0, 2, (20,))

    def loss(model: nn.Module, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        return nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")

    made = LocalSteps(model, loss)
    return made, made.layout.read(model), rows


def naive(
    made: LocalSteps, params: np.ndarray, rows: tuple[torch.Tensor, ...], bound: float, expected: float
) -> np.ndarray:
    """Each record by itself, by the steps without a mechanism: one of rate 1 moves by minus its gradient."""
    total = np.zeros(len(params))
    bound /= 1 + float_margin(torch.float32, expected)
    for index in range(len(rows[0])):
        one = rows[0][index : index + 1], rows[1][index : index + 1]
        orders = LocalOrders(steps=1, sampling=Everyone(), expected_batch=1.0, learning_rate=1.0)
        gradient = -made.run(one, params, orders, system_randomness())
        total += gradient * min(1.0, bound / float(np.linalg.norm(gradient)))
    return total


def test_it_is_the_sum_of_clipped_gradients_of_the_drawn_batch() -> None:
    made, params, rows = steps()
    orders = LocalOrders(steps=1, sampling=Poisson(rate=0.5), expected_batch=10.0, learning_rate=0.5)
    drawn = torch.from_numpy(orders.sampling.draw(20, randomness_for_tests(4)))
    found = made.clipped_sum(rows, params, orders, randomness_for_tests(4), max_norm=0.2)
    assert found.dtype == np.float64 and 0 < len(drawn) < 20
    np.testing.assert_allclose(found, naive(made, params, tuple(part[drawn] for part in rows), 0.2, 10.0), atol=1e-5)


def test_a_record_that_is_not_finite_counts_as_zero_and_moves_no_other() -> None:
    made, params, rows = steps()
    orders = LocalOrders(steps=1, sampling=Everyone(), expected_batch=20.0, learning_rate=0.5)
    broken = rows[0].clone()
    broken[3] = torch.nan
    found = made.clipped_sum((broken, rows[1]), params, orders, system_randomness(), max_norm=0.2)
    kept = [index for index in range(20) if index != 3]
    np.testing.assert_allclose(found, naive(made, params, tuple(part[kept] for part in rows), 0.2, 20.0), atol=1e-5)


def test_no_person_has_more_records_in_it_than_the_orders_allow() -> None:
    made, params, rows = steps()
    one = tuple(part[:1].repeat(20, *[1] * (part.dim() - 1)) for part in rows)
    orders = LocalOrders(steps=1, sampling=Everyone(), expected_batch=20.0, learning_rate=0.5, max_records=2)
    found = made.clipped_sum(one, params, orders, system_randomness(), max_norm=0.2, people=["same"] * 20)
    np.testing.assert_allclose(found, 2 * naive(made, params, tuple(part[:1] for part in rows), 0.2, 20.0), atol=1e-5)


def test_the_clip_leaves_room_for_the_rounding_of_large_sums_in_single_precision() -> None:
    made, params, rows = steps()
    one = tuple(part[:1] for part in rows)

    def length(steps: LocalSteps, expected: float) -> float:
        orders = LocalOrders(steps=1, sampling=Everyone(), expected_batch=expected, learning_rate=0.5)
        record = tuple(part.to(next(steps._model.parameters()).dtype) for part in one[:1])
        return float(
            np.linalg.norm(steps.clipped_sum((*record, one[1]), params, orders, system_randomness(), max_norm=0.01))
        )

    few, many = length(made, 10.0), length(made, 50_000.0)
    assert few == pytest.approx(0.01, rel=1e-3)
    assert many * (1 + float_margin(torch.float32, 50_000.0)) == pytest.approx(0.01, rel=1e-6)
    double = LocalSteps(nn.Linear(3, 2).double(), made._loss)
    assert length(double, 50_000.0) == pytest.approx(0.01, rel=1e-9)
