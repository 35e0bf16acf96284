"""A bound that follows a quantile of norms, and what looking at them costs.

Andrew, Thakkar, McMahan, Ramaswamy (2021), "Differentially Private Learning with Adaptive Clipping", track the norm
below which a fraction γ of the units lies. In every step the number of units with a norm of at most C is noised, and C
moves towards the quantile:

    b̃ = ½ + ( Σ (b_i − ½) + N(0, σ_b²) ) / E,      b_i = 1 if ‖g_i‖ ≤ C else 0
    C ← C · exp(−η (b̃ − γ))

Each unit moves Σ (b_i − ½) by ½, with any content. Sum and count are one Gaussian release in d + 1 dimensions: with
noise σ_Δ on the sum the joint multiplier σ has σ⁻² = σ_Δ⁻² + (2 σ_b)⁻², so that σ_Δ = (σ⁻² − (2σ_b)⁻²)^(−1/2) (their
Theorem 1). The accountant counts σ; the sum gets σ_Δ > σ. At a constant σ the schedule of charges does not depend on
data, so no filter is needed.

Records are the units in :mod:`quietsum.learning.clipping`, clients in :mod:`quietsum.aggregation.clients`.

>>> rule = QuantileRule(count_noise=12.8)
>>> round(rule.sum_noise(1.0), 6)
1.000764
"""

from __future__ import annotations

import dataclasses
import math
from typing import final

import numpy as np
from numpy.typing import NDArray

from quietsum.errors import InvalidParameter
from quietsum.mechanisms.rng import RandomSource
from quietsum.validate import open_probability, positive

__all__ = ["BOUNDS", "QuantileRule", "within"]

BOUNDS = (1e-8, 1e8)
"""Where the bound stays under any noise."""
_UP = 1 + 1e-12
_LARGEST_MOVE = 4.0  # of ln C in one step; more is noise, and would overflow


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class QuantileRule:
    """The rule above. ``count_noise`` is σ_b; Andrew et al. use a twentieth of the expected number of units.

    Guarantees: the count's noise has exactly the law of a rounded normal on the half-integers, where the sum lies; its
    cost is inside ``joint_noise``, which never exceeds what was asked of ``sum_noise``.
    """

    count_noise: float
    quantile: float = 0.5
    learning_rate: float = 0.2

    def __post_init__(self) -> None:
        positive("count_noise", self.count_noise, "Andrew et al. use the expected number of units / 20")
        open_probability("clip_quantile", self.quantile, "0.5 is the median")
        positive("clip_learning_rate", self.learning_rate)

    def sum_noise(self, noise_multiplier: float) -> float:
        """σ_Δ, rounded up: what the sum gets so that sum and count together cost ``noise_multiplier``."""
        left = noise_multiplier**-2 - (2 * self.count_noise) ** -2
        if left <= 0:
            raise InvalidParameter(
                "count_noise", self.count_noise,
                f"alone costs more than the noise multiplier {noise_multiplier:g} of the whole step",
                f"use more than {noise_multiplier / 2:g}; a twentieth of the expected number of units is usual, so "
                "use larger batches or cohorts",
            )  # fmt: skip
        return float(left**-0.5) * _UP

    def joint_noise(self, sum_noise: float) -> float:
        """σ of the joint release of a sum with noise σ_Δ and the count."""
        joint: float = (sum_noise**-2 + (2 * self.count_noise) ** -2) ** -0.5
        return joint

    def next_bound(self, bound: float, *, doubled: int, expected: float, rng: RandomSource) -> float:
        """The bound for the next step. A release.

        ``doubled`` is 2 Σ (b_i − ½), a whole number. Units that were not drawn count as nothing, so the divisor is the
        public ``expected`` number of them.
        """
        noisy = doubled + int(rng.rounded_normals(2 * self.count_noise, 1)[0])  # in halves, exactly
        fraction = 0.5 + noisy / 2 / expected
        move = -self.learning_rate * (fraction - self.quantile)
        moved = bound * math.exp(max(-_LARGEST_MOVE, min(_LARGEST_MOVE, move)))
        return max(BOUNDS[0], min(BOUNDS[1], moved))


def within(rows: NDArray[np.float64], bound: float) -> int:
    """How many of the rows have a norm of at most ``bound``.

    Guarantees: each row is added up by itself, so whether it counts depends on that row and on ``bound`` alone.
    """
    limit = bound * bound
    with np.errstate(over="ignore", under="ignore"):
        return sum(float(np.add.reduce(np.square(row))) <= limit for row in rows)
