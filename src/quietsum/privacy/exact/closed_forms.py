"""Closed forms with their rounding errors: bounds on ε and δ that hold in floating point.

:mod:`~quietsum.privacy.gaussian` and :mod:`~quietsum.privacy.exact.single` evaluate formulas; here an estimate becomes
a lower and an upper bound by asking the curve, errors included, on both sides of it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable
from typing import final

from quietsum.privacy.exact.single import single_step_epsilon, single_step_log_delta
from quietsum.privacy.gaussian import gaussian_epsilon, log_gaussian_delta
from quietsum.privacy.pairs import MixturePair

__all__ = ["GaussianCurve", "SingleStepCurve", "exponentials", "joint_mu"]

_ROUNDING = 2.0**-53


@final
@dataclasses.dataclass(frozen=True, slots=True)
class GaussianCurve:
    """N(μ, 1) against N(0, 1).

    >>> lower, upper = GaussianCurve(1.0).epsilon_bounds(1e-5)
    >>> round(upper, 6), 0 <= upper - lower < 1e-12
    (4.377178, True)
    """

    mu: float

    def log_delta(self, epsilon: float) -> tuple[float, float]:
        """(lower, upper) bound on ln δ(ε)."""
        value, error = log_gaussian_delta(self.mu, epsilon), _error(self.mu, epsilon)
        return value - error, value + error

    def delta_bounds(self, epsilon: float) -> tuple[float, float]:
        """(lower, upper) bound on δ(ε)."""
        return exponentials(*self.log_delta(epsilon)) if 1e-9 < self.mu < 1e9 else _crude(self.mu, epsilon)

    def epsilon_bounds(self, delta: float) -> tuple[float, float]:
        """(lower, upper) bound on the smallest ε ≥ 0 with δ(ε) ≤ delta."""
        if 0.4 * self.mu <= delta:  # δ(0) ≤ μ/√2π
            return 0.0, 0.0
        highest = _highest(self.mu, delta)
        if not 1e-9 < self.mu < 1e9:
            return 0.0, highest
        return _around(self.log_delta, gaussian_epsilon(self.mu, delta), delta, highest)


@final
@dataclasses.dataclass(frozen=True, slots=True)
class SingleStepCurve:
    """One Poisson-sampled Gaussian step, the worse of both directions."""

    pair: MixturePair

    def log_delta(self, epsilon: float) -> tuple[float, float]:
        """(lower, upper) bound on ln δ(ε)."""
        value = single_step_log_delta(self.pair, epsilon)
        size = abs(epsilon)
        base = size - math.log(self.pair.rate) if size > 30 else math.log1p(math.expm1(size) / self.pair.rate)
        error = 8 * _error(1 / self.pair.sigma, base)
        return value - error, value + error

    def delta_bounds(self, epsilon: float) -> tuple[float, float]:
        """(lower, upper) bound on δ(ε)."""
        mu = 1 / self.pair.sigma
        return exponentials(*self.log_delta(epsilon)) if 1e-9 < mu < 1e9 else _crude(mu, epsilon)

    def epsilon_bounds(self, delta: float) -> tuple[float, float]:
        """(lower, upper) bound on the smallest ε ≥ 0 with δ(ε) ≤ delta."""
        mu = 1 / self.pair.sigma
        if self.pair.rate * min(1.0, 0.4 * mu) <= delta:
            return 0.0, 0.0
        highest = _highest(mu, delta)  # sampling only helps
        if not 1e-9 < mu < 1e9:
            return 0.0, highest
        return _around(self.log_delta, single_step_epsilon(self.pair, delta), delta, highest)


def joint_mu(steps: Iterable[tuple[float, int]]) -> float:
    """μ of Gaussian steps (σ, how often) taken together: μ² adds up.

    >>> joint_mu([(4.0, 50), (1.0, 0)])
    1.7677669529663689
    """
    known = [(sigma, count) for sigma, count in steps if count]
    least = min(sigma for sigma, _ in known)
    return math.sqrt(math.fsum(count * (least / sigma) ** 2 for sigma, count in known)) / least


def exponentials(log_lower: float, log_upper: float) -> tuple[float, float]:
    """(lower, upper) bound on a probability, from bounds on its logarithm."""
    return math.exp(min(0.0, log_lower)) * (1 - 1e-15), min(1.0, math.exp(min(0.0, log_upper)) * (1 + 1e-15) + 5e-324)


def _error(mu: float, epsilon: float) -> float:
    """What rounding does to ln δ: two nearly equal terms where μ is small, large exponents where it is not."""
    at = abs(mu / 2 - epsilon / mu) + 1
    return _ROUNDING * at * (64 / mu + 32 * (mu + abs(epsilon) / mu + at))


def _highest(mu: float, delta: float) -> float:
    """Chernoff's bound on ε: μ²/2 + μ √(2 ln 1/δ); infinite where no float is large enough."""
    return mu * (mu / 2 + math.sqrt(-2 * math.log(delta))) * (1 + 1e-12)


def _crude(mu: float, epsilon: float) -> tuple[float, float]:
    """Bounds on δ for noise so small or so large that the formulas lose all digits."""
    floor = max(0.0, -math.expm1(min(0.0, epsilon)))
    ceiling = 0.4 * mu if mu < 1 else 1.0
    return floor * (1 - 1e-15), min(1.0, max(0.0, floor * (1 + 1e-15) + ceiling))


def _around(
    log_delta: Callable[[float], tuple[float, float]], epsilon: float, delta: float, highest: float
) -> tuple[float, float]:
    """(lower, upper) ε around an estimate, moved apart until the curve, errors included, confirms both."""
    target = math.log(delta)
    room = 16 * _ROUNDING * abs(target)
    lower = upper = epsilon
    margin = 1e-15 * (1 + epsilon)
    while not log_delta(upper)[1] <= target - room:
        upper, margin = epsilon + margin, 4 * margin
        if upper >= highest:
            upper = highest
            break
    margin = 1e-15 * (1 + epsilon)
    while lower > 0 and not log_delta(lower)[0] >= target + room:
        lower, margin = max(0.0, epsilon - margin), 4 * margin
    return lower, upper
