"""A model and its vector are the same weights, to the bit, or an error."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from torch import nn

from quietsum.errors import InvalidParameter
from quietsum.learning.clients.vectors import ModelLayout


def network() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.GroupNorm(2, 2), nn.Flatten(), nn.Linear(8, 3))


def test_reading_and_writing_back_changes_no_bit() -> None:
    model, other = network(), network()
    layout = ModelLayout.of(model)
    vector = layout.read(model)
    assert vector.dtype == np.float64 and vector.shape == (layout.dimension,) == (20 + 4 + 27,)
    layout.write(other, vector)
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(one, two)
    np.testing.assert_array_equal(layout.read(other), vector)


def test_the_order_is_that_of_the_names() -> None:
    model = nn.Linear(2, 1)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0, 2.0]]))
        model.bias.fill_(3.0)
    layout = ModelLayout.of(model)
    assert layout.names == ("weight", "bias") and layout.read(model).tolist() == [1.0, 2.0, 3.0]


@given(st.lists(st.floats(-1e30, 1e30), min_size=3, max_size=3))
def test_a_vector_comes_back_in_the_weights_own_precision(values: list[float]) -> None:
    vector = np.array(values)
    for dtype, rounded in ((torch.float64, vector), (torch.float32, vector.astype(np.float32).astype(np.float64))):
        model = nn.Linear(2, 1, dtype=dtype)
        layout = ModelLayout.of(model)
        layout.write(model, vector)
        np.testing.assert_array_equal(layout.read(model), rounded)


def test_what_is_frozen_or_shared_is_not_written_twice() -> None:
    first = nn.Linear(2, 2)
    model = nn.Sequential(first, nn.Linear(2, 2), first)
    model.get_parameter("1.bias").requires_grad_(False)
    layout = ModelLayout.of(model)
    assert layout.names == ("0.weight", "0.bias", "1.weight") and layout.dimension == 4 + 2 + 4
    before = model.get_parameter("1.bias").clone()
    layout.write(model, np.zeros(10))
    assert torch.equal(model.get_parameter("1.bias"), before) and not model.get_parameter("2.weight").any()


@pytest.mark.parametrize(
    "vector",
    [np.zeros(2), np.zeros(4), np.zeros((3, 1)), np.zeros(0), np.array(["a", "b", "c"]), np.zeros(3, dtype=complex)],
)
def test_another_length_or_kind_is_an_error(vector: np.ndarray) -> None:
    model = nn.Linear(2, 1)
    with pytest.raises(InvalidParameter, match="vector of 3 numbers"):
        ModelLayout.of(model).write(model, vector)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e39])
def test_numbers_that_weights_cannot_hold_leave_the_model_as_it_was(bad: float) -> None:
    model = nn.Linear(2, 1)
    layout = ModelLayout.of(model)
    before = layout.read(model)
    with pytest.raises(InvalidParameter, match="cannot hold"):
        layout.write(model, np.array([1.0, 2.0, bad]))
    np.testing.assert_array_equal(layout.read(model), before)


def test_another_model_is_an_error() -> None:
    layout = ModelLayout.of(nn.Linear(2, 1))
    with pytest.raises(InvalidParameter, match="other trainable parameters"):
        layout.read(nn.Linear(1, 2))
    with pytest.raises(InvalidParameter, match="shapes"):
        layout.join([torch.zeros(2, 1), torch.zeros(1)])
    with pytest.raises(InvalidParameter, match="too few digits"):
        ModelLayout.of(nn.Linear(2, 1, dtype=torch.float16))
    with pytest.raises(InvalidParameter, match="no trainable parameter"):
        ModelLayout.of(nn.Flatten())


def test_a_vector_that_was_read_is_its_own() -> None:
    model = nn.Linear(2, 1)
    layout = ModelLayout.of(model)
    vector = layout.read(model)
    vector[:] = 7.0
    assert not (layout.read(model) == 7.0).any()
