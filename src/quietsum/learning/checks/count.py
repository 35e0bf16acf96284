"""Adaptive clipping under the self-check: gradient and noisy count as one release in d + 1 dimensions.

A step with :class:`~quietsum.learning.clipping.QuantileClip` releases a count beside its gradient: how many records lie
within the bound. Both are paid for together. With gradient noise σ_Δ C and count noise σ_b, weigh the count by
κ = σ_Δ C / σ_b; then every one of the d + 1 coordinates holds noise σ_Δ C, and one record moves all of them by at most
S = √(C² + (κ/2)²), half a count being what it may change. So the joint multiplier is σ_Δ C / S, which is
(σ_Δ⁻² + (2 σ_b)⁻²)^(−1/2), Theorem 1 of Andrew et al. (2021): found here from the parts, not asked of the rule.

The count is read off the bound that a step leaves behind, since that is what everybody sees. It lies on half-integers;
coins of our own make it continuous, so that it has the claimed law exactly (see
:mod:`quietsum.selfcheck.statistics`).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import final

import numpy as np
from numpy.typing import NDArray
from scipy import special
from torch import Tensor

from quietsum.learning.checks.numpy_step import Silent
from quietsum.learning.clipping import QuantileClip
from quietsum.learning.engines.protocol import Batch
from quietsum.learning.step import PrivateStep
from quietsum.mechanisms import system_randomness
from quietsum.selfcheck import Floats

__all__ = ["CountUnderTest"]

_LARGEST_COUNT = 1e4  # of made-up records in a batch


@final
class CountUnderTest:
    """The count that ``step`` releases, as one more coordinate of its sum.

    The step's rule is slowed down, so that the bound never runs into a stop and the count can be read off it; after
    every release the bound is put back, since a bound that moves cannot be replayed.
    """

    def __init__(self, step: PrivateStep, rule: QuantileClip) -> None:
        expected = step.expected_batch
        slow = 1 / (1 + (_LARGEST_COUNT + 100 * rule.count_noise) / expected)
        self._step, self._rule = step, dataclasses.replace(rule, learning_rate=slow)
        step.adaptive = self._rule
        self._bound, self._stated = float(step.sensitivity), float(step.noise_multiplier)
        self._noise = float(step.mechanism.noise_multiplier) * self._bound
        self.weight = self._noise / rule.count_noise
        self.sensitivity = math.hypot(self._bound, self.weight / 2)
        self.noise_multiplier = self._noise / self.sensitivity
        self._coins = system_randomness()

    def count(self, batch: Batch) -> float:
        """Σ (b_i − ½), weighed: the coordinate before its noise."""
        return self._halves(batch) / 2 * self.weight

    def _halves(self, batch: Batch) -> int:
        """2 Σ (b_i − ½), by a step whose count is left without noise."""
        self._step.adaptive = dataclasses.replace(self._rule, rng=Silent())
        try:
            return self._run_step(batch)[1]
        finally:
            self._step.adaptive = self._rule

    def release_with_sum(self, batch: Batch) -> tuple[Floats, int]:
        """The gradient that training sees, and the noisy count in halves that the next bound betrays."""
        gradient, seen = self._run_step(batch)
        return np.concatenate([part.detach().cpu().double().numpy().ravel() for part in gradient]), seen

    def _run_step(self, batch: Batch) -> tuple[Sequence[Tensor], int]:
        try:
            return self._step.gradient(batch), self._read(float(self._step.sensitivity))
        finally:
            self._step.retune(noise_multiplier=self._stated, max_norm=self._bound)

    def _read(self, bound: float) -> int:
        """The count in halves, from the rule C' = C exp(−η (½ + count / E − γ))."""
        fraction = self._rule.quantile - math.log(bound / self._bound) / self._rule.learning_rate
        return round(2 * self._step.expected_batch * (fraction - 0.5))

    def release(self, batch: Batch) -> tuple[Floats, float]:
        """The gradient, and the coordinate with its noise."""
        halves = self._halves(batch)
        gradient, seen = self.release_with_sum(batch)
        score = self._scores(np.array([seen - halves], dtype=np.int64))[0]
        return gradient, float(halves / 2 * self.weight + self._noise * score)

    def noise(self) -> float:
        """A fresh draw of the coordinate's noise."""
        return float(self._noise * self.scores(1)[0])

    def scores(self, draws: int) -> Floats:
        """Fresh noise of the count, as scores that are standard normal under the claim, exactly."""
        expected = self._step.expected_batch
        seen = [
            self._read(self._rule.next_norm(self._bound, small=0, batch=0, expected_batch=expected))
            for _ in range(draws)
        ]
        return self._scores(np.array(seen, dtype=np.int64))

    def _scores(self, halves: NDArray[np.int64]) -> Floats:
        """A rounded normal of scale 2 σ_b put back between its edges: u = P(K < k) + v · P(K = k), then Φ⁻¹(u)."""
        scale = 2 * self._rule.count_noise
        size = np.abs(halves).astype(np.float64)  # the lower tail, where floats are fine
        below, upto = special.ndtr(-(size + 0.5) / scale), special.ndtr(-(size - 0.5) / scale)
        place = below + self._coins.uniforms(halves.size) * (upto - below)
        return np.asarray(-np.where(halves < 0, -1.0, 1.0) * special.ndtri(np.maximum(place, 1e-300)))
