"""A model's answers to many records, in pieces, wherever the model lives."""

from __future__ import annotations

import torch
from torch import Tensor, nn

__all__ = ["outputs"]


def outputs(model: nn.Module, values: Tensor, piece: int = 2000) -> Tensor:
    """What ``model`` answers, on the CPU: ``piece`` records at a time on the device of its parameters, no dropout.

    >>> outputs(nn.Identity(), torch.arange(3.0), piece=2)
    tensor([0., 1., 2.])
    """
    device = next((parameter.device for parameter in model.parameters()), values.device)
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            pieces = values.split(piece)  # type: ignore[no-untyped-call]
            return torch.cat([model(some.to(device)).cpu() for some in pieces])
    finally:
        model.train(training)
