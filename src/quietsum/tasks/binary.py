"""What tasks with two classes share: one logit per record, its loss, and the scores of rows that nobody protects.

A model answers one number per record, the log-odds of class 1. Where class 1 is rare its start can be set to a *public*
guess of how rare (:func:`starting_at`): then the first noisy steps are not spent on learning that number.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from quietsum.errors import open_probability

__all__ = ["binary_cross_entropy", "log_odds", "starting_at"]

_PIECE = 20_000


def binary_cross_entropy(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    """−ln p(label) of each example, for a model with one logit per record.

    A label other than 0 and 1 costs zero, so that its record is silent rather than the reason of an error.
    """
    logits, labels = model(batch[0]).squeeze(-1), batch[1]
    valid = (labels == 0) | (labels == 1)
    wanted = torch.where(valid, labels, 0).to(logits.dtype)
    losses = nn.functional.binary_cross_entropy_with_logits(logits, wanted, reduction="none")
    return torch.where(valid, losses, 0.0)


def starting_at(last: nn.Linear, share: float, *, zero: bool = True) -> nn.Linear:
    """``last`` with its bias at the log-odds of a public ``share`` of class 1, and no weights yet where ``zero``.

    >>> round(starting_at(nn.Linear(3, 1), 0.0025).bias.item(), 2)
    -5.99
    """
    share = open_probability("share", share, "pass a public guess of how often class 1 comes")
    if zero:
        nn.init.zeros_(last.weight)
    nn.init.constant_(last.bias, math.log(share / (1 - share)))
    return last


def log_odds(model: nn.Module, features: Tensor) -> NDArray[np.float64]:
    """The model's answers, in pieces, on the device where the model is."""
    device = next(model.parameters()).device
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            found = [model(piece.to(device)).squeeze(-1).double().cpu() for piece in torch.split(features, _PIECE)]
    finally:
        model.train(was_training)
    return np.asarray(torch.cat(found).numpy(), dtype=np.float64)
