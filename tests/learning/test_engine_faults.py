"""Faults that engines once had, or that others have: each is a small model on which a sum went wrong in silence."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from learning.models import cross_entropy
from quietsum.errors import InvalidParameter
from quietsum.learning.clipping import Flat
from quietsum.learning.engines.protocol import engine_for

CLIP = Flat(max_norm=0.3)


def flat(parts: tuple[Tensor, ...]) -> Tensor:
    return torch.cat([part.flatten() for part in parts])


def against_the_loop(name: str, model: nn.Module, batch: tuple[Tensor, ...], loss: Any = cross_entropy) -> float:
    found = flat(engine_for(name, model, loss, CLIP).clipped_sum(batch))
    return float((found - flat(engine_for("naive", model, loss, CLIP).clipped_sum(batch))).norm())


class Sequences(nn.Module):
    """Positions, then an operation that writes into what a Linear layer returned."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way, self.first, self.last = way, nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        if self.way == "relu":
            h = torch.relu_(h)
        else:
            h[:, 0] = 0.0
        return self.last(h).mean(1)


@pytest.mark.parametrize("way", ["relu", "slice"])
@pytest.mark.parametrize("name", ["bookkeeping", "auto"])
def test_writing_into_a_view_of_an_output_loses_no_gradient(way: str, name: str) -> None:
    torch.manual_seed(0)
    model = Sequences(way).double()
    batch = (torch.randn(6, 5, 4, dtype=torch.float64), torch.randint(0, 3, (6,)))
    assert against_the_loop(name, model, batch) < 1e-12


class AddTable(nn.Module):
    """A module that no rule knows, with a second argument that is the same for all examples."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4, dtype=torch.float64))

    def forward(self, x: Tensor, table: Tensor) -> Tensor:
        return (x + table) * self.scale


class WithTable(nn.Module):
    def __init__(self, positions: int) -> None:
        super().__init__()
        self.add, self.last = AddTable(), nn.Linear(4, 3)
        self.register_buffer("table", torch.randn(positions, 4))

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.add(x, self.table)).mean(1)


@pytest.mark.parametrize("rows", [3, 5, 7])
def test_a_table_as_long_as_the_batch_is_not_taken_for_one_row_per_example(rows: int) -> None:
    torch.manual_seed(1)
    model = WithTable(5).double()
    batch = (torch.randn(rows, 5, 4, dtype=torch.float64), torch.randint(0, 3, (rows,)))
    engine = engine_for("bookkeeping", model, cross_entropy, CLIP)
    naive = engine_for("naive", model, cross_entropy, CLIP)
    other = tuple(torch.cat([part, part[:1]]) for part in batch)
    for some in (batch, other, batch):
        assert float((flat(engine.clipped_sum(some)) - flat(naive.clipped_sum(some))).norm()) < 1e-12


@pytest.mark.parametrize("inputs", [784, 20_000])
def test_squares_that_vanish_do_not_let_an_example_slip_under_the_clip(inputs: int) -> None:
    model = nn.Linear(inputs, 1, bias=False)
    batch = (torch.full((1, inputs), 2.5e-23), torch.full((1, 1), -9e18))

    def squared(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        return (model(batch[0]) - batch[1]).square().sum(1)

    for bound in (1e-3, 1e-2, 0.1):
        engine = engine_for("bookkeeping", model, squared, Flat(max_norm=bound))
        assert float(flat(engine.clipped_sum(batch)).double().norm()) <= bound * (1 + 1e-5)


def test_a_module_that_is_registered_twice_is_left_as_it_was() -> None:
    torch.manual_seed(2)
    block = nn.Linear(4, 4)
    model = nn.Sequential(block, nn.Tanh(), block, nn.Tanh(), nn.Linear(4, 3)).double()
    batch = (torch.randn(8, 4, dtype=torch.float64), torch.randint(0, 3, (8,)))
    before, weight = block.weight.detach().clone(), block.weight
    for _ in range(2):
        assert against_the_loop("vmap", model, batch) < 1e-12
    assert block.weight is weight and torch.equal(block.weight, before)
    copy.deepcopy(model).to(torch.float32)


def test_tied_weights_have_one_gradient_under_vmap() -> None:
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Linear(4, 3)).double()
    model[2].weight = model[0].weight
    batch = (torch.randn(8, 4, dtype=torch.float64), torch.randint(0, 3, (8,)))
    assert against_the_loop("vmap", model, batch) < 1e-12


def by_another_way(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    """The first layer's weight is used once more, outside its module."""
    first, last = model[0], model[2]  # type: ignore[index]
    hidden = torch.tanh(first(batch[0])) + nn.functional.linear(batch[0], first.weight)
    return nn.functional.cross_entropy(last(hidden), batch[1], reduction="none")


@pytest.mark.parametrize("name", ["opacus", "opacus-ghost"])
def test_opacus_is_refused_where_its_gradients_are_not_the_model_s(name: str) -> None:
    pytest.importorskip("opacus")
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    batch = (torch.randn(8, 4, dtype=torch.float64), torch.randint(0, 3, (8,)))
    assert against_the_loop(name, model, batch) < 1e-9  # the control: the same model used as it should be
    with pytest.raises(InvalidParameter, match="differs from plain gradients"):
        engine_for(name, model, by_another_way, CLIP).clipped_sum(batch)
    border = nn.Sequential(nn.Conv1d(2, 3, 3, padding=1, padding_mode="circular"), nn.Flatten(), nn.Linear(18, 3))
    images = (torch.randn(8, 2, 6), torch.randint(0, 3, (8,)))
    with pytest.raises(InvalidParameter, match="differs from plain gradients"):
        engine_for(name, border, cross_entropy, CLIP).clipped_sum(images)
