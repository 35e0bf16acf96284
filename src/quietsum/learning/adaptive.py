"""Adaptive clipping: let the bound follow a quantile of the gradients' norms, and pay for looking.

How large should C be? Andrew, Thakkar, McMahan, Ramaswamy (2021), "Differentially Private Learning with Adaptive
Clipping", track the norm below which a fraction γ of the records lies. In every step the number of records with a norm
of at most C is noised, and C moves towards the quantile:

    b̃ = ½ + ( Σ (b_i − ½) + N(0, σ_b²) ) / E,      b_i = 1 if ‖g_i‖ ≤ C else 0
    C ← C · exp(−η (b̃ − γ))

Each record moves Σ (b_i − ½) by ½, whatever it holds. Gradient and count are one Gaussian release in d + 1 dimensions:
with gradient noise σ_Δ the joint multiplier σ has σ⁻² = σ_Δ⁻² + (2 σ_b)⁻², so that σ_Δ = (σ⁻² − (2σ_b)⁻²)^(−1/2)
(their Theorem 1). The accountant counts σ; the gradient gets σ_Δ > σ. At a constant σ the schedule of charges does not
depend on data, so no filter is needed.

>>> rule = QuantileClip(count_noise=12.8)
>>> round(rule.gradient_noise(1.0), 6)
1.000764
"""

from __future__ import annotations

import dataclasses
import math
from typing import final

from quietsum.errors import InvalidParameter, open_probability, positive
from quietsum.mechanisms.rng import RandomSource, system_randomness

__all__ = ["QuantileClip"]

_UP = 1 + 1e-12
_LARGEST_MOVE = 4.0  # of ln C in one step; more is noise, and would overflow
_BOUNDS = (1e-8, 1e8)


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class QuantileClip:
    """The rule above. ``count_noise`` is σ_b; Andrew et al. use a twentieth of the expected batch.

    Guarantees: the count's noise has exactly the law of a rounded normal on the half-integers, where the sum lies; its
    cost is inside ``joint_noise``, which never exceeds what was asked of ``gradient_noise``.
    """

    count_noise: float
    quantile: float = 0.5
    learning_rate: float = 0.2
    rng: RandomSource = dataclasses.field(default_factory=system_randomness, repr=False, compare=False)

    def __post_init__(self) -> None:
        positive("count_noise", self.count_noise, "Andrew et al. use expected batch / 20")
        open_probability("clip_quantile", self.quantile, "0.5 is the median")
        positive("clip_learning_rate", self.learning_rate)

    def gradient_noise(self, noise_multiplier: float) -> float:
        """σ_Δ, rounded up: what the gradient gets so that both together cost ``noise_multiplier``."""
        left = noise_multiplier**-2 - (2 * self.count_noise) ** -2
        if left <= 0:
            raise InvalidParameter(
                "count_noise", self.count_noise,
                f"alone costs more than the noise multiplier {noise_multiplier:g} of the whole step",
                f"use more than {noise_multiplier / 2:g}; expected batch / 20 is usual, so use larger batches",
            )  # fmt: skip
        return float(left**-0.5) * _UP

    def joint_noise(self, gradient_noise: float) -> float:
        """σ of the joint release of a gradient with noise σ_Δ and the count."""
        joint: float = (gradient_noise**-2 + (2 * self.count_noise) ** -2) ** -0.5
        return joint

    def next_norm(self, max_norm: float, *, small: int, batch: int, expected_batch: float) -> float:
        """The bound for the next step, from ``small`` of ``batch`` records within the present one. A release.

        Records that were not drawn count as nothing, so the divisor is the public ``expected_batch``.
        """
        doubled = 2 * small - batch + int(self.rng.rounded_normals(2 * self.count_noise, 1)[0])  # in halves, exactly
        fraction = 0.5 + doubled / 2 / expected_batch
        move = -self.learning_rate * (fraction - self.quantile)
        moved = max_norm * math.exp(max(-_LARGEST_MOVE, min(_LARGEST_MOVE, move)))
        return max(_BOUNDS[0], min(_BOUNDS[1], moved))
