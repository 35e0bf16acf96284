"""Closed forms of the Gaussian mechanism, in the log domain, so that δ = 1e-300 is as good as δ = 1e-3.

N(μ, 1) against N(0, 1) has δ(ε) = Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ) (Balle, Wang 2018, Theorem 8). Steps of Gaussian
noise compose to one Gaussian: μ² adds up (Dong, Roth, Su 2022, Corollary 3.3).
"""

from __future__ import annotations

import math

from scipy.special import erfcx, log_ndtr

from quietsum.errors import finite_number, open_probability, positive

__all__ = ["gaussian_delta", "gaussian_epsilon", "log_gaussian_delta"]

_ROOT_HALF = math.sqrt(0.5)


def log_gaussian_delta(mu: float, epsilon: float) -> float:
    """ln δ(ε) of N(μ, 1) against N(0, 1), for any real ε.

    Far in the tail both terms of the closed form are nearly equal; their ratio is then taken from scaled
    complementary error functions, where the common factor exp(−a²/2) has cancelled on paper.
    """
    upper = mu / 2 - epsilon / mu  # Φ(upper) − e^ε Φ(lower), and e^ε φ(lower) = φ(upper) exactly
    lower = -mu / 2 - epsilon / mu
    if upper > -1:
        log_first = float(log_ndtr(upper))
        log_ratio = epsilon + float(log_ndtr(lower)) - log_first
        return log_first + _log1mexp(log_ratio)
    first, second = float(erfcx(-upper * _ROOT_HALF)), float(erfcx(-lower * _ROOT_HALF))
    return -0.5 * upper * upper + math.log(0.5) + math.log(first - second)


def _log1mexp(value: float) -> float:
    """ln(1 − e^value) for value < 0."""
    if value >= 0:
        return -math.inf
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
    low, high = 0.0, max(1.0, mu * mu / 2 + mu * math.sqrt(-2 * target))
    while log_gaussian_delta(mu, high) > target:
        low, high = high, 2 * high
    while high - low > 1e-15 * high:  # bisection on a decreasing function, kept on the safe side
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if log_gaussian_delta(mu, middle) > target else (low, middle)
    return high
