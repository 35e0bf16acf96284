"""A model's answers to many records, in pieces, wherever the model lives."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

__all__ = ["input_gradient", "outputs"]

Floats = NDArray[np.float64]


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


def input_gradient(model: nn.Module) -> Callable[[Floats, int], tuple[Floats, Floats]]:
    """For a search for triggers: (rows, class) → the model's scores, and the gradient of Σ −ln p(class) at each row.

    >>> torch.nn.init.eye_((layer := nn.Linear(2, 2, bias=False)).weight).shape
    torch.Size([2, 2])
    >>> scores, slope = input_gradient(layer)(np.array([[3.0, 0.0]]), 1)
    >>> scores.tolist(), slope.round(2).tolist()
    ([[3.0, 0.0]], [[0.95, -0.95]])
    """

    def asked(rows: Floats, target: int) -> tuple[Floats, Floats]:
        kind = next(model.parameters())
        values = torch.from_numpy(rows).to(kind.device, kind.dtype).requires_grad_()
        was_training = model.training
        model.eval()
        try:
            scores = model(values)
            wanted = torch.full((len(rows),), target, device=kind.device)
            (slope,) = torch.autograd.grad(nn.functional.cross_entropy(scores, wanted, reduction="sum"), values)
        finally:
            model.train(was_training)
        return scores.detach().double().cpu().numpy(), slope.double().cpu().numpy()

    return asked
