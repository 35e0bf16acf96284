"""The books on trial: a few examples, their gradients by the books and by torch one after another.

What the engine cannot know by reading a model is tried on the first batch and on every new path: that a rule somebody
added gives torch's gradients, and that tensors which all examples share may be handed out with a row for each. Both are
facts about every single example, so both are checked on every single one of a few:

    the losses                the same as without any bookkeeping
    gradient of example i     by the books with the weights (0, …, 1, …, 0), against torch.autograd.grad of loss i
    norm of example i         not below torch's

The same random numbers are drawn on both sides. A difference raises, and nothing is trained on it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from quietsum.errors import InvalidParameter
from quietsum.learning.checks.frozen_randomness import replay_chance
from quietsum.learning.engines.protocol import Batch, joint_norm
from quietsum.learning.engines.shared.broadcast import NotCovered

__all__ = ["NothingFinite", "few_of", "refuse_rule", "replay_losses", "same_gradients", "same_losses", "sound_first"]

_FINE = {torch.float64: (1e-8, 1e-10), torch.float32: (1e-3, 1e-5)}
_ROUGH, _HALF = (2e-2, 2e-3), (0.1, 1e-2)
"""How far two sums may be apart: times the gradient of the parameter, and times that of all parameters."""


class NothingFinite(Exception):
    """No example has a finite gradient, so this batch shows nothing."""


def few_of(batch: Batch, count: int) -> Batch:
    """So many rows, the first ones, again and again where there are not enough."""
    places = torch.arange(count) % len(batch[0])
    return tuple(part[places.to(part.device)] for part in batch)


def sound_first(batch: Batch, losses: Tensor) -> Batch:
    """The same rows, those without a NaN or an infinity first: broken ones show nothing."""
    sound = torch.isfinite(losses)
    for part in batch:
        if part.is_floating_point():
            sound = sound & torch.isfinite(part.flatten(1) if part.dim() > 1 else part[:, None]).all(1)
    order = sound.to(torch.int8).argsort(descending=True, stable=True)
    return tuple(part[order.to(part.device)] for part in batch)


def replay_losses(run: Callable[[], Tensor], batch: Batch) -> Tensor:
    """The losses with the same random numbers every time; torch's own generators go on as if nothing had been drawn."""
    with replay_chance({part.device.index or 0 for part in batch if part.is_cuda}):
        return run()


def _within(losses: Tensor, half: bool) -> tuple[float, float]:
    if half or losses.dtype not in _FINE:
        return _HALF
    rough = losses.is_cuda or torch.get_float32_matmul_precision() != "highest"  # a card's convolutions use TF32
    return _ROUGH if rough and losses.dtype == torch.float32 else _FINE[losses.dtype]


def same_losses(ours: Tensor, plain: Tensor) -> bool:
    """Up to rounding; NaN is NaN."""
    within = 1e-8 if plain.dtype == torch.float64 else 1e-2
    return bool(torch.isclose(ours, plain, rtol=within, atol=within, equal_nan=True).all())


def same_gradients(
    plain: Tensor,
    parameters: Sequence[Tensor],
    weigh: Callable[[int], Sequence[Tensor]],
    norms: Tensor,
    order: int,
    *,
    half: bool = False,
) -> int | None:
    """The number of the first parameter whose gradient for some example is another one by the books; None: all agree.

    ``plain`` are the losses without bookkeeping; ``weigh(i)`` is the gradient of example i by the books, ``norms``
    what they say of its norm, ``half`` whether anything was rounded to half precision. Raises :class:`NothingFinite`
    if no example has a finite gradient, and :class:`~quietsum.learning.engines.shared.broadcast.NotCovered` for a norm
    that is too small.
    """
    (own, every), judged = _within(plain, half), 0
    for row in range(len(plain)):
        found = torch.autograd.grad(
            plain[row], parameters, retain_graph=True, allow_unused=True, materialize_grads=True
        )
        sizes = joint_norm([torch.linalg.vector_norm(part.double(), ord=order)[None] for part in found], order)
        whole = float(sizes)
        if not math.isfinite(whole):
            continue
        judged += 1
        for number, (one, two) in enumerate(zip(weigh(row), found, strict=True)):
            apart = float(torch.linalg.vector_norm(one.double() - two.double()))
            if not apart <= own * float(torch.linalg.vector_norm(two.double())) + every * whole:
                return number
        if not float(norms[row]) >= whole * (1 - own):
            raise NotCovered("the norm of an example is smaller by the books than by torch")
    if not judged:
        raise NothingFinite
    return None


def refuse_rule(layer: str) -> InvalidParameter:
    """What a rule of somebody's own deserves that gives other gradients than torch."""
    problem = "gives other gradients of single examples than torch.autograd does"
    return InvalidParameter(
        "rule", layer, problem, "correct the rule, or take it away: the layer is served without one"
    )
