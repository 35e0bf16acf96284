"""What tasks with torch models share: answers to many records, and one logit per record where there are two classes.

A model with one logit answers the log-odds of class 1. Where class 1 is rare its start can be set to a *public* guess
of how rare (:func:`start_at`): then the first noisy steps are not spent on learning that number. Where some rows are
public, a linear model can start at what those say (:func:`fit_public`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from quietsum.errors import InvalidParameter
from quietsum.learning import cross_entropy
from quietsum.tasks.predictions import Predictions, answer_rows, fit_shape
from quietsum.validate import open_probability, positive

__all__ = [
    "binary_cross_entropy", "fit_public", "input_gradient", "log_odds", "outputs", "predict_with", "scores_classes",
    "start_at",
]  # fmt: skip

_STEPS = 200

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

    def ask(rows: Floats, target: int) -> tuple[Floats, Floats]:
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

    return ask


def scores_classes(task: Any) -> bool:
    """Whether a model of ``task`` puts out scores of classes: it names them, or trains by a loss that says so."""
    named, loss = getattr(task, "classes", None), getattr(task, "loss", None)
    return named is not None or loss in (cross_entropy, binary_cross_entropy)


def predict_with(model: nn.Module, task: Any, rows: NDArray[Any]) -> Predictions:
    """What ``model`` answers for ``rows``: chances where ``task`` says that it scores classes, else what it puts out.

    One column of scores is the log-odds of the second of two classes, several are softened by softmax.
    """
    named, scored = getattr(task, "classes", None), scores_classes(task)
    kind = next((parameter.dtype for parameter in model.parameters()), torch.float32)
    if (example := getattr(task, "example", None)) is not None:
        first = example()[0]
        fit_shape(rows, tuple(first.shape[1:]))
        kind = first.dtype if first.is_floating_point() else kind

    def answer(some: NDArray[Any]) -> Floats:
        values = torch.from_numpy(np.ascontiguousarray(some))
        told = outputs(model, values.to(kind) if values.is_floating_point() else values).double()
        if not scored:
            return np.asarray(told.flatten(1).numpy() if told.dim() > 1 else told[:, None].numpy())
        told = told.reshape(len(told), 1) if told.dim() == 1 else told
        if told.dim() != 2:
            raise ValueError(f"the model answers {tuple(told.shape)}, which are no scores of classes")
        if told.shape[1] == 1:
            told = torch.cat([-told / 2, told / 2], dim=1)
        return np.asarray(told.softmax(dim=1).numpy())

    names = () if named is None else tuple(str(name) for name in named)
    return answer_rows(rows, answer, names, chances=scored)


# ------------------------------------------------------------------------------------------------- two classes


def binary_cross_entropy(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    """−ln p(label) of each example, for a model with one logit per record.

    A label other than 0 and 1 costs zero, so that its record is silent rather than the reason of an error.
    """
    logits, labels = model(batch[0]).squeeze(-1), batch[1]
    valid = (labels == 0) | (labels == 1)
    wanted = torch.where(valid, labels, 0).to(logits.dtype)
    losses = nn.functional.binary_cross_entropy_with_logits(logits, wanted, reduction="none")
    return torch.where(valid, losses, 0.0)


def start_at(last: nn.Linear, share: float, *, zero: bool = True) -> nn.Linear:
    """``last`` with its bias at the log-odds of a public ``share`` of class 1, and no weights yet where ``zero``.

    >>> round(start_at(nn.Linear(3, 1), 0.0025).bias.item(), 2)
    -5.99
    """
    share = open_probability("share", share, "pass a public guess of how often class 1 comes")
    if zero:
        nn.init.zeros_(last.weight)
    nn.init.constant_(last.bias, math.log(share / (1 - share)))
    return last


def fit_public(
    features: NDArray[np.float32], labels: NDArray[np.int64], *, l2: float
) -> tuple[NDArray[np.float64], float]:
    """Weights w and bias b of the logistic regression with the least mean loss + l2/2 · |w|², by Newton's method.

    Each step solves H·d = −g with H = Xᵀ diag(p(1−p)) X / n + l2·1 in float64, and is halved until the loss falls by
    a ten-thousandth of what the slope promises (Armijo 1966); the loss is strictly convex, so there is one answer.

    Guarantees: none at all. Weights that were fitted without noise tell of the rows, so pass rows that are public.

    >>> weights, bias = fit_public(np.array([[-1.0], [1.0], [1.0]], np.float32), np.array([0, 1, 1]), l2=0.1)
    >>> round(float(weights[0]), 2), round(bias, 2)
    (1.58, 0.42)
    """
    l2 = positive("l2", l2)
    if not len(labels) or features.ndim != 2 or len(features) != len(labels) or not np.isfinite(features).all():
        raise InvalidParameter("features", features.shape, f"do not fit {len(labels)} labels", "pass finite rows")
    rows = np.column_stack([features.astype(np.float64), np.ones(len(features))])
    wanted, pulls = np.asarray(labels, dtype=np.float64), np.full(rows.shape[1], l2)
    pulls[-1] = 1e-12  # the bias is free; where there is one class only, this keeps it finite
    found = np.zeros(rows.shape[1])

    def loss(values: NDArray[np.float64]) -> float:
        answers = rows @ values
        return float((np.logaddexp(0, answers) - wanted * answers).mean() + (pulls * values**2).sum() / 2)

    now = loss(found)
    for _ in range(_STEPS):
        chance = 0.5 * (1 + np.tanh(rows @ found / 2))
        slope = rows.T @ (chance - wanted) / len(rows) + pulls * found
        bend = (rows * (chance * (1 - chance))[:, None]).T @ rows / len(rows) + np.diag(pulls)
        move = -np.linalg.solve(bend, slope)
        promised, share = float(slope @ move), 1.0
        if promised > -1e-14:
            break
        while (then := loss(found + share * move)) > now + 1e-4 * share * promised and share > 1e-6:
            share /= 2
        if share <= 1e-6:
            break
        found, now = found + share * move, then
    return found[:-1], float(found[-1])


def log_odds(model: nn.Module, features: Tensor) -> NDArray[np.float64]:
    """The answers of a model with one logit per record, in pieces, on the device where the model is."""
    return np.asarray(outputs(model, features, piece=20_000).squeeze(-1).double().numpy(), dtype=np.float64)
