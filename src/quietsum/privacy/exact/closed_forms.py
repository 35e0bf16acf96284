"""Closed forms of the Gaussian and of one Poisson-sampled Gaussian step, with their rounding errors.

**Gaussian.** N(μ, 1) against N(0, 1) has δ(ε) = Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ) (Balle, Wang 2018, Theorem 8). Steps
of Gaussian noise compose to one Gaussian: μ² adds up (Dong, Roth, Su 2022, Corollary 3.3). The formula is evaluated in
the log domain, so that δ = 1e-300 is as good as δ = 1e-3.

**One sampled step.** With H₀ the Gaussian's, remove: H(ε') = q H₀(ε), e^{ε'} = 1 + q (e^ε − 1). Add:
H(ε') = (1 − e^{ε'}(1 − q)) H₀(ε) with e^ε = q e^{ε'} / (1 − e^{ε'}(1 − q)), which is 0 once e^{ε'} ≥ 1/(1 − q) (Zhu,
Dong, Wang 2022, Theorem 11; Balle, Barthe, Gaboardi 2018).

The functions return estimates; :class:`GaussianCurve` and :class:`SingleStepCurve` return lower and upper bounds that
hold in floating point, by asking the curve, errors included, on both sides of the estimate.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable
from typing import final

from scipy.special import erfcx, log_ndtr

from quietsum.privacy.pairs import MixturePair
from quietsum.validate import finite_number, open_probability, positive

__all__ = [
    "GaussianCurve",
    "SingleStepCurve",
    "exponentials",
    "gaussian_delta",
    "gaussian_epsilon",
    "joint_mu",
    "log_gaussian_delta",
    "single_step_epsilon",
    "single_step_log_delta",
]

_ROUNDING = 2.0**-53
_ROOT_HALF = math.sqrt(0.5)
_TWO_OVER_ROOT_PI = 2 / math.sqrt(math.pi)


def log_gaussian_delta(mu: float, epsilon: float) -> float:
    """ln δ(ε) of N(μ, 1) against N(0, 1), for any real ε; good to some 1e-13 relative to δ.

    With a = μ/2 − ε/μ and g = erfcx both terms share the factor e^{−a²/2}: δ = e^{−a²/2} (g(y) − g(y + h)) / 2 with
    y = −a/√2 and h = μ/√2. Far in the tail, and for little μ, the two are nearly equal, so their difference is taken by
    series.
    """
    if epsilon < 0:  # the pair is its own mirror image: δ(ε) = 1 − e^ε + e^ε δ(−ε)
        return math.log(-math.expm1(epsilon) + math.exp(epsilon + log_gaussian_delta(mu, -epsilon)))
    upper = mu / 2 - epsilon / mu  # Φ(upper) − e^ε Φ(lower), and e^ε φ(lower) = φ(upper) exactly
    y, h = -upper * _ROOT_HALF, mu * _ROOT_HALF
    if y > 12:
        difference = _far_difference(y, h)
    elif h < 0.02:
        difference = _near_difference(y, h)
    elif upper > -1:
        log_first = float(log_ndtr(upper))
        return log_first + _log1mexp(math.log(0.5 * float(erfcx(y + h))) - 0.5 * upper * upper - log_first)
    else:
        difference = float(erfcx(y)) - float(erfcx(y + h))
    return -0.5 * upper * upper + math.log(0.5 * difference) if difference > 0 else -math.inf


def _near_difference(y: float, h: float) -> float:
    """g(y) − g(y + h) for small h by Taylor's series: g' = 2y g − 2/√π, g⁽ⁿ⁺¹⁾ = 2y g⁽ⁿ⁾ + 2n g⁽ⁿ⁻¹⁾."""
    older = float(erfcx(y))
    newer = 2 * y * older - _TWO_OVER_ROOT_PI
    power = h
    total = -newer * h
    for n in range(1, 9):
        older, newer = newer, 2 * y * newer + 2 * n * older
        power *= h / (n + 1)
        total -= newer * power
    return total


def _far_difference(y: float, h: float) -> float:
    """g(y) − g(y + h) for large y, term by term of √π g(y) = Σ_k (−1)^k (2k − 1)!! / (2^k y^{2k+1})."""
    step = math.log1p(h / y)
    factor, total = 1 / y, 0.0
    for k in range(11):
        total -= factor * math.expm1(-(2 * k + 1) * step)
        factor *= -(2 * k + 1) / (2 * y * y)
    return total * _TWO_OVER_ROOT_PI / 2


def _log1mexp(value: float) -> float:
    """ln(1 − e^value) for value < 0."""
    return math.log(-math.expm1(value)) if value > -0.693 else math.log1p(-math.exp(value))


def gaussian_delta(mu: float, epsilon: float) -> float:
    """δ(ε) of a Gaussian mechanism with μ = sensitivity / σ.

    >>> round(gaussian_delta(1.0, 1.0), 6)
    0.126937
    """
    positive("mu", mu)
    finite_number("epsilon", epsilon)
    return math.exp(log_gaussian_delta(mu, epsilon))


def gaussian_epsilon(mu: float, delta: float) -> float:
    """The smallest ε ≥ 0 with δ(ε) ≤ delta for μ = sensitivity / σ.

    Fifty steps at noise multiplier 4 are one Gaussian with μ = √50 / 4:

    >>> round(gaussian_epsilon(math.sqrt(50) / 4, 1e-5), 4)
    8.5959
    """
    positive("mu", mu)
    target = math.log(open_probability("delta", delta))
    if log_gaussian_delta(mu, 0.0) <= target:
        return 0.0
    low, high = 0.0, (mu * mu / 2 + mu * math.sqrt(-2 * target)) * (1 + 1e-12)  # Chernoff's bound
    if math.isinf(high):
        return math.inf
    while high - low > 1e-15 * high:  # bisection on a decreasing function, kept on the safe side
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if log_gaussian_delta(mu, middle) > target else (low, middle)
    return high


# ------------------------------------------------------------------------ one Poisson-sampled step


def single_step_log_delta(pair: MixturePair, epsilon: float) -> float:
    """ln δ(ε) of one step, the worse of both directions."""
    mu, rate = 1 / pair.sigma, pair.rate
    if epsilon < math.log1p(-rate):  # all losses of the remove direction lie above ln(1 − q)
        remove = math.log(-math.expm1(epsilon))
    else:
        inner = math.expm1(epsilon) / rate if epsilon < 700 else math.inf
        base = math.log1p(inner) if math.isfinite(inner) and inner > -1 else epsilon - math.log(rate)
        remove = math.log(rate) + log_gaussian_delta(mu, base) if inner > -1 else math.log(-math.expm1(epsilon))
    room = -math.expm1(epsilon + math.log1p(-rate)) if epsilon < 700 else -math.inf
    if room <= 0:
        return remove
    add = math.log(room) + log_gaussian_delta(mu, math.log(rate) + epsilon - math.log(room))
    return max(remove, add)


def single_step_epsilon(pair: MixturePair, delta: float) -> float:
    """The smallest ε ≥ 0 with δ(ε) ≤ delta.

    For γ = e^ε ≥ 1 the remove direction is the worse one: on any set S it gains q P(S) − (q + γ − 1) Q(S), adding gains
    (1 − γ(1 − q)) P(S) − γq Q(S), and the difference is (γ − 1)(1 − q)(P(S) − Q(S)) ≥ 0 where adding does best.
    """
    if delta >= pair.rate:
        return 0.0  # the unit is drawn with probability q ≤ δ
    base = gaussian_epsilon(1 / pair.sigma, delta / pair.rate)
    return base + math.log(pair.rate) if base > 700 else math.log1p(pair.rate * math.expm1(base))


# -------------------------------------------------------------------- bounds with rounding errors


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
