"""How long an input is, released with noise, and how much faster or slower than usual weights should then move.

Adam moves every weight by about its learning rate, in any unit of the features. Weights on features of length 0.4 must
move further than those on features of length 4 to say the same, and weights on features of length 40 less far, or noise
alone fills the scores. Whether a table was standardised is a fact about protected rows, so it is asked: a fifth of the
steps that ask for classes (:mod:`quietsum.learning.defaults`) count instead how many records have an input of length
2^k, one record in one place, at the same sensitivity and for the same event.

Length means what one unit of the first layer sees: the root of the mean square of the record's numbers, times the root
of how many of them a unit takes. The pace is (4 / length)^¾, from 0.4 to 3; 4 is the length of what the shipped rate
was chosen on. Where no length stands out of the noise, and where inputs are no real numbers or a layer of
normalisation comes first, the pace is 1. Measured on features multiplied by 0.1, 1 and 10 in decision record 60.

>>> choose_pace(torch.tensor([0.0] * 6 + [900.0] + [0.0] * 10), seen=50.0)
2.8284271247461903
>>> choose_pace(torch.tensor([20.0] * 17), seen=50.0)
1.0
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from quietsum.learning.rows.records import Records

__all__ = ["PACES", "PLACES", "choose_pace", "count_lengths", "count_seen"]

_SHORTEST, _LONGEST = -6, 10
PLACES = _LONGEST - _SHORTEST + 1
"""Lengths 2⁻⁶ and below, 2⁻⁵ … 2¹⁰ and above."""
_USUAL, _POWER = 4.0, 0.75
PACES = (0.4, 3.0)


def count_seen(model: nn.Module, records: Records) -> int:
    """How many numbers a unit of the first layer takes; 0 where the length of an input says nothing about weights."""
    shape, dtype = records.schema[0]
    first = next(iter(model.parameters()), None)
    if (
        first is None
        or not first.requires_grad
        or first.dim() < 2
        or not dtype.is_floating_point
        or not math.prod(shape)
    ):
        return 0
    return first[0].numel()


def count_lengths(inputs: Tensor, seen: int) -> Tensor:
    """How many records have each length. Private: one record moves one number by 1. Those of length 0 count nowhere."""
    if not len(inputs):
        return torch.zeros(PLACES, dtype=torch.float64)
    power = inputs.detach().double().flatten(1).square().mean(1) * seen
    places = (power.log2() / 2).round().clamp(_SHORTEST, _LONGEST) - _SHORTEST
    sound = torch.isfinite(power) & (power > 0)
    return torch.bincount(places[sound].to(torch.int64), minlength=PLACES).to(torch.float64)


def choose_pace(counts: Tensor, seen: float) -> float:
    """The factor of the learning rate after noisy ``counts``, of which those up to ``seen`` are taken for noise."""
    there = counts > seen
    if not bool(there.any()):
        return 1.0
    powers = torch.arange(_SHORTEST, _LONGEST + 1, dtype=torch.float64)
    length = math.exp2(float((powers[there] * counts[there]).sum() / counts[there].sum()))
    return min(max(math.pow(_USUAL / length, _POWER), PACES[0]), PACES[1])
