"""The discrete Gaussian law from an exact table, for counts and single queries.

Its weights obey a multiplication rule from one integer to the next, so the table is made in plain integer arithmetic
(:mod:`quietsum.mechanisms.noise.tables`). Wider noise comes by rejection (:mod:`quietsum.mechanisms.noise.rejection`);
for sums of vectors see :mod:`quietsum.mechanisms.gaussian`, and ``docs/decisions`` for why.

>>> from quietsum.mechanisms.rng import system_randomness
>>> noise = DiscreteGaussianNoise(sigma=8.0)
>>> noise.sample((2, 3), system_randomness()).dtype, noise.failure < 1e-30
(dtype('int64'), True)
>>> noise.event(sensitivity=1)
DiscreteGaussian(sigma=8.0, sensitivity=1.0, dimension=1)
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from fractions import Fraction
from typing import final

import numpy as np
from numpy.typing import NDArray

from quietsum.errors import InvalidParameter
from quietsum.mechanisms.noise.tables import WeightTable, exponential, falling_weights
from quietsum.mechanisms.rng import RandomSource, Shape
from quietsum.privacy import DiscreteGaussian
from quietsum.validate import positive, set_fields

__all__ = ["LARGEST_SIGMA", "DiscreteGaussianNoise"]

LARGEST_SIGMA = 2.0**16


@final
@dataclass(frozen=True, kw_only=True)
class DiscreteGaussianNoise:
    """Integer noise with P(k) ∝ exp(−k² / 2 sigma²) (Canonne, Kamath, Steinke 2020, Definition 1).

    Guarantees: independent draws, each within total variation distance ``failure`` of that law.
    """

    sigma: float

    def __post_init__(self) -> None:
        sigma = positive("sigma", self.sigma, "the standard deviation in steps of the grid")
        if sigma > LARGEST_SIGMA:
            remedy = "count in coarser steps, or use rounded normals, which need no table"
            raise InvalidParameter("sigma", sigma, f"exceeds {LARGEST_SIGMA:g}", remedy)
        set_fields(self, sigma=sigma)

    def sample(self, shape: Shape, rng: RandomSource) -> NDArray[np.int64]:
        """Independent draws in an array of this shape."""
        return _gaussian_table(self.sigma).sample(shape, rng)

    def pmf(self, k: int) -> float:
        """P(k) of the ideal law."""
        return math.exp(-0.5 * (k / self.sigma) * (k / self.sigma)) * _gaussian_table(self.sigma).at_zero

    @property
    def failure(self) -> float:
        """Total variation distance of one draw from the ideal law, to be charged to δ."""
        return _gaussian_table(self.sigma).failure

    @property
    def reach(self) -> int:
        """The largest magnitude that is ever drawn."""
        return _gaussian_table(self.sigma).reach

    def event(self, sensitivity: float) -> DiscreteGaussian:
        """The event of one integer that one unit moves by at most ``sensitivity``."""
        return DiscreteGaussian(sigma=self.sigma, sensitivity=sensitivity)


@functools.lru_cache(maxsize=8)
def _gaussian_table(sigma: float) -> WeightTable:
    """Weights w_k = exp(−k²/2σ²): w_{k+1} = w_k r_k with r_0 = exp(−1/2σ²) and r_{k+1} = r_k exp(−1/σ²)."""
    variance = Fraction(sigma) ** 2
    return WeightTable.of(falling_weights(exponential(1 / (2 * variance)), exponential(1 / variance)))
