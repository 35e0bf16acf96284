"""Closed forms of the Gaussian mechanism, in the log domain, so that δ = 1e-300 is as good as δ = 1e-3.

N(μ, 1) against N(0, 1) has δ(ε) = Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ) (Balle, Wang 2018, Theorem 8). Steps of Gaussian
noise compose to one Gaussian: μ² adds up (Dong, Roth, Su 2022, Corollary 3.3).
"""

from __future__ import annotations

import math

from scipy.special import erfcx, log_ndtr

from quietsum.validate import finite_number, open_probability, positive

__all__ = ["gaussian_delta", "gaussian_epsilon", "log_gaussian_delta"]

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
