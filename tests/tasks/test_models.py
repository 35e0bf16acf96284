"""A model answers many records in pieces, without dropout, and is left as it was."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from quietsum.tasks.models import outputs


@pytest.mark.parametrize("piece", [1, 3, 7, 100])
def test_pieces_do_not_change_the_answers(piece: int) -> None:
    torch.manual_seed(0)
    model, values = nn.Linear(4, 2), torch.randn(7, 4)
    assert torch.allclose(outputs(model, values, piece), model(values).detach(), atol=1e-6)


def test_dropout_is_off_and_the_models_mode_comes_back() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.9))
    values = torch.ones(5, 4)
    for training in (True, False):
        model.train(training)
        assert torch.equal(outputs(model, values), model[0](values).detach()) and model.training is training
        assert not outputs(model, values).requires_grad


def test_the_mode_comes_back_after_an_error() -> None:
    model = nn.Linear(4, 2).train()
    with pytest.raises(RuntimeError):
        outputs(model, torch.ones(3, 5))
    assert model.training


def test_records_are_brought_to_the_device_of_the_model() -> None:
    seen = []

    class Elsewhere(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(1, device="meta"))

        def forward(self, values: torch.Tensor) -> torch.Tensor:
            seen.append(values.device.type)
            return torch.zeros(len(values))

    assert outputs(Elsewhere(), torch.ones(3, 2)).device.type == "cpu" and seen == ["meta"]
