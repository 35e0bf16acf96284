"""Scores of membership: the higher, the more a record looks as if the model had trained on it.

**Loss threshold** (Yeom, Giacomelli, Fredrikson, Jha 2018): a model's loss on what it trained on is smaller, so the
score is −loss. It needs the model alone, and confuses easy records with known ones.

**RMIA**, robust membership inference with few reference models (Zarifzadeh, Liu, Shokri 2024, arXiv 2312.03262), asks
how much more probable a record x is under the model θ than under models in general, and how that compares with records
z of the population:

    score(x) = P_z( [p_θ(x) / p(x)] / [p_θ(z) / p(z)] ≥ γ )

p(x) is the mean over references of which half trained on x. Where all references are without x, the mean over those is
p_out, and p(x) = ((1 + a) p_out(x) + 1 − a) / 2, the paper's offline form, which interpolates what a model with x would
say. The score grows with p_θ(x)/p(x) alone, for any z: these set a threshold, and the order of the scores is that
of the ratio. Without z the score is ln p_θ(x)/p(x).

All is computed from losses that are −ln p, such as cross entropy: p of the record's own label is e^−loss.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from quietsum.errors import InvalidParameter
from quietsum.validate import positive, probability

if TYPE_CHECKING:
    from torch import Tensor, nn

__all__ = ["measure_losses", "score_by_loss", "score_by_references"]

Floats = NDArray[np.float64]


def measure_losses(model: nn.Module, loss: Any, records: tuple[Tensor, ...], *, piece: int = 1000) -> Floats:
    """The loss of each record, ``loss(model, batch)`` being one value per example, in eval mode."""
    import torch

    if not records or not len(records[0]):
        raise InvalidParameter("records", "none", "leave nothing to measure", "pass inputs and labels")
    device = next((one.device for one in model.parameters()), torch.device("cpu"))
    was_training, found = model.training, []
    model.eval()
    try:
        with torch.no_grad():
            for first in range(0, len(records[0]), piece):
                values = loss(model, tuple(part[first : first + piece].to(device) for part in records))
                if values.shape != (len(records[0][first : first + piece]),):
                    problem = f"gave {tuple(values.shape)} for {len(records[0][first : first + piece])} records"
                    raise InvalidParameter("loss", "the loss", problem, "return one value per example")
                found.append(values.double().cpu().numpy())
    finally:
        model.train(was_training)
    return _finite("losses", np.concatenate(found))


def score_by_loss(losses: ArrayLike) -> Floats:
    """−loss."""
    return -_finite("losses", losses)


def score_by_references(
    losses: ArrayLike,
    references: ArrayLike,
    *,
    inside: ArrayLike | None = None,
    population: tuple[ArrayLike, ArrayLike] | None = None,
    offline: float = 0.3,
    gamma: float = 1.0,
) -> Floats:
    """RMIA scores of n records from their ``losses`` (n) under the model and under ``references`` (models, n).

    ``inside`` (models, n) says which reference trained on which record; if omitted, none did on any. ``population`` is
    the same two arrays for records that no model trained on; without it the score is the logarithm of the ratio.

    >>> score_by_references([0.1, 2.0], [[1.0, 2.0], [0.2, 2.0]], inside=[[False, True], [True, False]]).round(2)
    array([0.42, 0.  ])
    """
    own, others = _finite("losses", losses), _finite("references", references)
    _require_models("references", others, own)
    ratios = -own - _expect(others, inside, probability("offline", offline))
    if population is None:
        return ratios
    mine, theirs = _finite("population", population[0]), _finite("population", population[1])
    _require_models("population", theirs, mine)
    usual = np.sort(-mine - _expect(theirs, None, offline)) + np.log(positive("gamma", gamma))
    return np.searchsorted(usual, ratios, side="right") / len(usual)


def _expect(references: Floats, inside: ArrayLike | None, offline: float) -> Floats:
    """ln p(x) of each record."""
    if inside is None:
        without = special.logsumexp(-references, axis=0) - np.log(len(references))
        return np.asarray(np.logaddexp(np.log1p(offline) + without, _log(1 - offline)) - np.log(2))
    member = np.asarray(inside, dtype=np.bool_)
    if member.shape != references.shape:
        problem = f"does not fit references of shape {references.shape}"
        raise InvalidParameter("inside", f"of shape {member.shape}", problem, "pass one row for each model")
    if not (member.any(axis=0) & (~member).any(axis=0)).all():
        problem = "leaves a record that all references trained on, or none did"
        raise InvalidParameter("inside", "the references", problem, "draw_references() pairs them")
    halves = []
    for part in (member, ~member):
        chances = np.where(part, -references, -np.inf)
        halves.append(special.logsumexp(chances, axis=0) - np.log(part.sum(axis=0)))
    return np.asarray(np.logaddexp(*halves) - np.log(2))


def _log(value: float) -> float:
    return float(np.log(value)) if value > 0 else -np.inf


def _require_models(name: str, references: Floats, own: Floats) -> None:
    if own.ndim != 1 or references.ndim != 2 or references.shape[1:] != own.shape or not references.size:
        problem = f"do not fit {own.shape} losses of the model"
        raise InvalidParameter(name, f"of shape {references.shape}", problem, "pass (models, records)")


def _finite(name: str, values: ArrayLike) -> Floats:
    try:
        found = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise InvalidParameter(name, "the values", "are not numbers", "pass one loss per record") from None
    if not found.size or not np.isfinite(found).all():
        problem = "are empty, or hold a value that is not finite"
        raise InvalidParameter(name, "the values", problem, "leave such records out before the game")
    return found
