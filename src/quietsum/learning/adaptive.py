"""Adaptive clipping: let the bound follow a quantile of the gradients' norms, and pay for looking.

How large should C be? Andrew, Thakkar, McMahan, Ramaswamy (2021), "Differentially Private Learning with Adaptive
Clipping", track the norm below which a fraction γ of the records lies. The rule, its noise and its cost are those of
:mod:`quietsum.mechanisms.quantile`; here the units are records and the sum is that of their gradients.

>>> rule = QuantileClip(count_noise=12.8)
>>> round(rule.gradient_noise(1.0), 6)
1.000764
"""

from __future__ import annotations

import dataclasses
from typing import final

from quietsum.mechanisms import QuantileRule, RandomSource, system_randomness

__all__ = ["QuantileClip", "QuantileRule"]


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class QuantileClip:
    """:class:`~quietsum.mechanisms.quantile.QuantileRule` for records. ``count_noise`` is σ_b, usually batch / 20.

    Guarantees: the count's noise has exactly the law of a rounded normal on the half-integers, where the sum lies; its
    cost is inside ``joint_noise``, which never exceeds what was asked of ``gradient_noise``.
    """

    count_noise: float
    quantile: float = 0.5
    learning_rate: float = 0.2
    rng: RandomSource = dataclasses.field(default_factory=system_randomness, repr=False, compare=False)

    def __post_init__(self) -> None:
        _ = self.rule  # which checks the numbers

    @property
    def rule(self) -> QuantileRule:
        """The same without randomness."""
        return QuantileRule(count_noise=self.count_noise, quantile=self.quantile, learning_rate=self.learning_rate)

    def gradient_noise(self, noise_multiplier: float) -> float:
        """σ_Δ, rounded up: what the gradient gets so that both together cost ``noise_multiplier``."""
        return self.rule.sum_noise(noise_multiplier)

    def joint_noise(self, gradient_noise: float) -> float:
        """σ of the joint release of a gradient with noise σ_Δ and the count."""
        return self.rule.joint_noise(gradient_noise)

    def next_norm(self, max_norm: float, *, small: int, batch: int, expected_batch: float) -> float:
        """The bound for the next step, from ``small`` of ``batch`` records within the present one. A release.

        Records that were not drawn count as nothing, so the divisor is the public ``expected_batch``.
        """
        return self.rule.next_bound(max_norm, doubled=2 * small - batch, expected=expected_batch, rng=self.rng)
