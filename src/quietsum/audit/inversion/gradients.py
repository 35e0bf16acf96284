"""What somebody rebuilds of a record who sees the gradient of its loss: one update of one record.

**In closed form.** A dense layer z = W x + b at the front of a model has the gradients ∂W = g xᵀ and ∂b = g of one
record, so x = ∂Wᵀ ∂b / ‖∂b‖², exactly, for any layers behind it (Phong, Aono, Hayashi, Wang, Moriai 2018; Geiping,
Bauermeister, Dröge, Moeller 2020, proposition 3.1). Clipping scales both alike and hides nothing. Noise does.

**By search.** For other models, made-up inputs are moved until their gradient points where the seen one does, by the
cosine (Geiping et al. 2020, after Zhu, Liu, Han 2019, "Deep leakage from gradients"). The label is taken as known: it
can be read off the last layer's gradient (Zhao, Mopuri, Bilen 2020).

An attack succeeds on a record if what it rebuilt resembles that record more than any other of the same kind: guessing
reaches one in as many as there are. The attacker is the strongest there is, as the promise of differential privacy is
about that one: all other records of the batch are known and taken out of the sum, so what is left is one clipped
gradient and the noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from quietsum.audit.outcome import AttackOutcome
from quietsum.errors import InvalidParameter
from quietsum.mechanisms import ClippedSum, Mode, RandomSource, system_randomness
from quietsum.validate import optional, positive, whole_number

if TYPE_CHECKING:
    from torch import Tensor, nn

__all__ = ["attack_gradients", "count_identified", "invert_dense", "invert_update"]

Floats = NDArray[np.float64]


def invert_dense(weight: ArrayLike, bias: ArrayLike) -> Floats:
    """The input of a dense layer from the gradients of its weight (out, in) and bias (out) for one record.

    >>> invert_dense(np.outer([0.5, -2.0], [3.0, 1.0, 4.0]), [0.5, -2.0])
    array([3., 1., 4.])
    """
    slopes, steps = np.asarray(weight, dtype=np.float64), np.asarray(bias, dtype=np.float64)
    if slopes.ndim != 2 or steps.shape != slopes.shape[:1]:
        problem = f"does not fit a bias of shape {steps.shape}"
        raise InvalidParameter("weight", f"of shape {slopes.shape}", problem, "pass one dense layer's gradients")
    length = float(steps @ steps)
    return slopes.T @ steps / length if length > 0 else np.zeros(slopes.shape[1])


def invert_update(
    model: nn.Module, loss: Any, gradient: Sequence[Tensor], example: tuple[Tensor, ...], *, steps: int = 200,
    rate: float = 0.1, seed: int = 0,
) -> Tensor:  # fmt: skip
    """Search the input whose gradient points where ``gradient`` does, one tensor a parameter; zeros where it has none.

    ``example`` is a batch of one: an input of the right shape, whose values are not looked at, and the label. ``loss``
    gives one value per example.
    """
    import torch

    parameters = [one for one in model.parameters() if one.requires_grad]
    if len(gradient) != len(parameters):
        problem = f"do not fit a model of {len(parameters)}"
        raise InvalidParameter("gradient", f"{len(gradient)} tensors", problem, "pass one for each parameter")
    generator = torch.Generator().manual_seed(whole_number("seed", seed))
    found = torch.randn(example[0].shape, generator=generator).to(example[0]).requires_grad_()
    search = torch.optim.Adam([found], lr=positive("rate", rate))
    seen = torch.cat([part.detach().flatten() for part in gradient])
    for _ in range(whole_number("steps", steps, 1)):
        slopes = torch.autograd.grad(
            loss(model, (found, *example[1:])).sum(), parameters, create_graph=True, materialize_grads=True
        )
        own = torch.cat([part.flatten() for part in slopes])
        apart = 1 - torch.nn.functional.cosine_similarity(own, seen, dim=0)
        search.zero_grad()
        (found.grad,) = torch.autograd.grad(apart, [found])
        search.step()
    return found.detach()


def attack_gradients(
    model: nn.Module,
    loss: Any,
    records: tuple[Tensor, ...],
    *,
    max_norm: float | None = None,
    noise_multiplier: float | None = None,
    search: int | None = None,
    on: str = "",
    rng: RandomSource | None = None,
) -> AttackOutcome:
    """Rebuild each of ``records`` from its own update, and count how many are known again among all of them.

    The update is the record's gradient, clipped to ``max_norm`` and with the noise of ``noise_multiplier`` where these
    are stated; both or neither. A first dense layer is inverted in closed form; ``search`` says how many steps to
    search instead, for models that begin otherwise.
    """
    bound, noise = optional(positive, "max_norm", max_norm), optional(positive, "noise_multiplier", noise_multiplier)
    if (bound is None) != (noise is None):
        problem = "stands alone: a clip without noise hides nothing, and noise needs a clip"
        raise InvalidParameter("max_norm", max_norm, problem, "state both, or neither")
    if not records or len(records[0]) < 2:
        raise InvalidParameter("records", "fewer than two", "leave nothing to tell apart", "pass about a hundred")
    random = system_randomness() if rng is None else rng
    step = (
        None if bound is None or noise is None else ClippedSum(max_norm=bound, noise_multiplier=noise, mode=Mode.FAST)
    )
    rebuilt = np.stack([
        _rebuild(model, loss, tuple(part[row : row + 1] for part in records), step, search, random)
        for row in range(len(records[0]))
    ])  # fmt: skip
    count = len(records[0])
    truth = records[0].detach().double().cpu().numpy().reshape(count, -1)
    return AttackOutcome(
        attack="gradient inversion", on=on or f"{count} updates of one record", trials=count, chance=1 / count,
        successes=count_identified(rebuilt, truth),
    )  # fmt: skip


def count_identified(rebuilt: Floats, truth: Floats) -> int:
    """How many rows of ``rebuilt`` are most like their own row of ``truth``, by the correlation of what differs."""
    usual = truth.mean(axis=0)
    one, other = rebuilt - usual, truth - usual
    for rows in (one, other):
        rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-300)
    alike = one @ other.T
    own = np.diagonal(alike)
    beaten = (alike >= own[:, None]).sum(axis=1) > 1  # a tie is no success
    return int((~beaten & np.isfinite(own)).sum())


def _rebuild(
    model: nn.Module, loss: Any, record: tuple[Tensor, ...], step: ClippedSum | None, search: int | None,
    random: RandomSource,
) -> Floats:  # fmt: skip
    import torch

    named = [(name, one) for name, one in model.named_parameters() if one.requires_grad]
    parameters = [one for _, one in named]
    slopes = torch.autograd.grad(loss(model, record).sum(), parameters, materialize_grads=True)
    whole = torch.cat([part.flatten() for part in slopes]).double().cpu().numpy()
    if step is not None:
        whole = step.release(step.sum(step.bound(whole[None])), random)
    parts = np.split(whole, np.cumsum([one.numel() for one in parameters])[:-1])
    if search is None:
        weight, bias = _first_dense(model, record, [name for name, _ in named])
        return invert_dense(parts[weight].reshape(parameters[weight].shape), parts[bias])
    seen = [torch.from_numpy(part).reshape(one.shape).to(one) for part, one in zip(parts, parameters, strict=True)]
    return np.asarray(invert_update(model, loss, seen, record, steps=search).double().cpu().numpy().ravel())


def _first_dense(model: nn.Module, record: tuple[Tensor, ...], names: list[str]) -> tuple[int, int]:
    """Where weight and bias of the dense layer stand that reads the input itself."""
    from torch import nn as layers

    for name, layer in model.named_modules():
        if isinstance(layer, layers.Linear):
            front = f"{name}." if name else ""
            if layer.bias is not None and layer.in_features == record[0].numel() and f"{front}bias" in names:
                return names.index(f"{front}weight"), names.index(f"{front}bias")
            break
    problem = "does not begin with a dense layer that has a bias and reads the whole input"
    raise InvalidParameter("model", type(model).__name__, problem, "pass search=200 to search for the input instead")
