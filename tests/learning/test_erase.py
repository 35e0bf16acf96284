"""Rows that are not finite are erased in place only where the tensor is the step's own."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402

from quietsum.learning.clipping import Clip, Flat, PerLayer  # noqa: E402
from quietsum.learning.engines import protocol  # noqa: E402
from quietsum.learning.engines.hardware import erase as erasing  # noqa: E402
from quietsum.learning.engines.protocol import engine_for  # noqa: E402
from quietsum.learning.step import cross_entropy  # noqa: E402


class Small(nn.Module):
    """A layer on the data, layers with one input, a convolution on the data, and one gradient in two places."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.left, self.right = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 6)
        self.seen, self.again = nn.Conv1d(5, 4, 1), nn.Conv1d(4, 4, 3, padding=1)
        self.norm, self.head = nn.LayerNorm(6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(torch.tanh(self.first(x)))
        y = self.left(y) + self.right(y)
        return self.head(y.mean(1) + self.again(torch.relu(self.seen(x))).mean(1))


@pytest.fixture
def in_place(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The card's way on a processor: nothing is looked at, and rows are erased where they lie."""
    written: list[int] = []

    def kernel(part: Tensor, bad: Tensor) -> None:
        written.append(part.data_ptr())
        part[bad] = 0

    monkeypatch.setattr(protocol, "is_on_card", lambda part: True)
    monkeypatch.setattr(erasing, "kernel_for", lambda device: kernel)
    return written


@pytest.mark.parametrize("clip", [Flat(max_norm=0.1), PerLayer(max_norm=0.1)])
def test_the_sum_is_the_loops_and_neither_data_nor_weights_are_written_to(clip: Clip, in_place: list[int]) -> None:
    torch.manual_seed(0)
    model = Small().double()
    batch = (torch.randn(7, 5, 6, dtype=torch.float64), torch.arange(7) % 3)
    batch[0][2, 1, 3], batch[0][5] = float("nan"), 1e300
    kept, weights = batch[0].clone(), [part.detach().clone() for part in model.parameters()]
    engine = engine_for("bookkeeping", model, cross_entropy, clip)
    loop = torch.cat([part.flatten() for part in engine_for("naive", model, cross_entropy, clip).clipped_sum(batch)])
    for _ in range(5):
        found = torch.cat([part.flatten() for part in engine.clipped_sum(batch)])
    assert bool(torch.isfinite(found).all()) and float((found - loop).norm() / loop.norm()) < 1e-10
    assert torch.equal(batch[0].nan_to_num(7.0), kept.nan_to_num(7.0))
    assert all(torch.equal(one, two) for one, two in zip(weights, model.parameters(), strict=True))
    assert in_place and batch[0].data_ptr() not in in_place


def test_the_control_erasing_what_belongs_to_others_is_seen(in_place: list[int]) -> None:
    part = torch.tensor([[1.0], [2.0]])
    assert erasing.erase(part, torch.tensor([False, True]), own=True) is part and float(part[1]) == 0
    other: Any = torch.tensor([[1.0], [2.0]])
    assert float(erasing.erase(other, torch.tensor([False, True]))[1]) == 0 and float(other[1]) == 2


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a graphics card")
def test_the_kernel_is_there_and_right_on_a_card() -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    assert erasing.kernel_for(device) is not None
