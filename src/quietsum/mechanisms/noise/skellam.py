"""Skellam noise: the difference of two Poisson draws, closed under sums, so that many parties' shares make one law.

Variances below 4096 come from a table in integer arithmetic (:mod:`quietsum.mechanisms.noise.tables`), larger ones from
rejection (:mod:`quietsum.mechanisms.noise.rejection`). Neither draws a Poisson number, and no generator of numpy's
takes part.

>>> from quietsum.mechanisms.rng import system_randomness
>>> noise = SkellamNoise(variance=1e10)
>>> noise.sample(3, system_randomness()).dtype, noise.failure < 1e-30
(dtype('int64'), True)
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from fractions import Fraction
from typing import final

import numpy as np
from numpy.typing import NDArray

from quietsum.errors import InvalidParameter
from quietsum.mechanisms.noise.rejection import LARGEST_VARIANCE, LEAST_VARIANCE, WideSkellam
from quietsum.mechanisms.noise.tables import BITS, WeightTable
from quietsum.mechanisms.rng import RandomSource, Shape
from quietsum.validate import positive, set_fields

__all__ = ["SkellamNoise"]

_POISSON_BITS = 320
_POISSON_CUT = 240
_SLOT = 2 * _POISSON_BITS + 32  # bits of a sum of products, with room for 2^32 of them


@final
@dataclass(frozen=True, kw_only=True)
class SkellamNoise:
    """Integer noise with P(k) = e^{−variance} I_k(variance).

    Guarantees: independent draws, each within total variation distance ``failure`` of that law, none beyond ``reach``.
    """

    variance: float

    def __post_init__(self) -> None:
        variance = positive("variance", self.variance, "the variance in squared steps of the grid")
        if variance > LARGEST_VARIANCE:
            raise InvalidParameter("variance", variance, f"exceeds {LARGEST_VARIANCE:g}", "count in coarser steps")
        set_fields(self, variance=variance)

    def sample(self, shape: Shape, rng: RandomSource) -> NDArray[np.int64]:
        """Independent draws in an array of this shape."""
        return self._law.sample(shape, rng)

    @property
    def failure(self) -> float:
        """Total variation distance of one draw from the ideal law, to be charged to δ."""
        return self._law.failure

    @property
    def reach(self) -> int:
        """The largest magnitude that is ever drawn."""
        return self._law.reach

    @property
    def _law(self) -> WideSkellam | WeightTable:
        return _wide(self.variance) if self.variance >= LEAST_VARIANCE else _table(self.variance)


@functools.lru_cache(maxsize=8)
def _wide(variance: float) -> WideSkellam:
    return WideSkellam(variance)


@functools.lru_cache(maxsize=8)
def _table(variance: float) -> WeightTable:
    """Weights w_k = Σ_m p_m p_{m+k} of the difference, over w_0, in units of 2⁻¹⁹².

    The Poisson weights are within 2¹² units of 2⁻³²⁰ of the largest, and those left out sum to less than 2⁻²²⁰ of it,
    so each w_k is within 2 units.
    """
    poisson = _poisson(Fraction(variance) / 2)
    forward = sum(weight << _SLOT * m for m, weight in enumerate(poisson))
    backward = sum(weight << _SLOT * m for m, weight in enumerate(reversed(poisson)))
    products, middle = forward * backward, len(poisson) - 1  # one product of long integers holds all sums of products
    mask = (1 << _SLOT) - 1
    largest = products >> _SLOT * middle & mask
    weights: list[int] = []
    for k in range(len(poisson)):
        weights.append(((products >> _SLOT * (middle + k) & mask) << BITS) // largest)
        if weights[-1] < 1 << BITS - 128:
            break
    return WeightTable.of(weights)


def _poisson(mean: Fraction) -> list[int]:
    """λ^m / m! over its largest, in units of 2⁻³²⁰, for all m where that is at least 2⁻²⁴⁰ (and two more)."""
    mode = int(mean)
    least = 1 << _POISSON_BITS - _POISSON_CUT
    above: list[int] = []
    below: list[int] = []
    weight, m = 1 << _POISSON_BITS, mode
    while weight >= least or len(above) < 2:
        above.append(weight)
        m += 1
        weight = weight * mean.numerator // (mean.denominator * m)
    weight, m = 1 << _POISSON_BITS, mode
    while m > 0 and weight >= least:
        weight = weight * m * mean.denominator // mean.numerator
        m -= 1
        below.append(weight)
    return [*reversed(below), *above]
