"""Log moments K(c) = ln E_P[e^{cL}] on the real axis: the raw material of Rényi curves, of the choice of contour
and of Chernoff bounds. Rényi divergence of order α is K(α − 1)/(α − 1).
"""

from __future__ import annotations

import functools
import math

import numpy as np

from quietsum.privacy.contour import Array, Direction, _window, log_ratio
from quietsum.privacy.pairs import GaussianPair, MixturePair, OppositePair, Pair

__all__ = ["LADDER", "ladder_moments", "log_moments"]

LADDER = 2.0 ** (np.arange(-40, 121) / 4)
"""The abscissae between which contours are chosen: powers of 2^(1/4)."""

STEPS = np.array([1.03, 1.07, 1.12, 1.2, 1.3, 1.5, 2.0])
"""Factors by which an abscissa is raised to bound what aliasing adds there."""

_MOST_POINTS = 8192


def _reach_of(pair: MixturePair | OppositePair) -> float:
    """The largest c that can matter: where the drawn units take over, plus the Gaussian tail down to δ = 1e-30."""
    sigma = pair.sigma / (pair.size if isinstance(pair, MixturePair) else 1)
    return 2 * sigma * sigma * math.log(1 / pair.rate) + 13 * sigma + 4


def log_moments(pair: MixturePair | OppositePair, direction: Direction, c: Array) -> Array:
    """K(c) for an ascending vector of c > 0 by one shared trapezoid rule; +inf where the grid would be too long.

    The rule's relative error is below 1e-14 (analytic in a strip, see :mod:`quietsum.privacy.contour`).
    """
    size = pair.size if isinstance(pair, MixturePair) else 1
    variance = pair.sigma**2
    values = np.full(c.shape, np.inf)
    strip = min(6 * pair.sigma, 0.9 * math.pi * variance / size)
    usable = c.size
    while usable > 0:
        top = float(c[usable - 1])
        low, high = _window(pair, direction, top)
        high = max(high, 10 * pair.sigma)
        low = min(low, -10 * pair.sigma)
        d = strip
        growth = d * d / (2 * variance)
        if direction is Direction.ADD or isinstance(pair, OppositePair):
            d = min(d, variance / size * math.sqrt(80 / max(top, 1.0)))
            growth = d * d / (2 * variance) - top * math.log(math.cos(size * d / (2 * variance)))
        step = 2 * math.pi * d / (34 + growth)
        points = int((high - low) / step) + 2
        if points <= _MOST_POINTS:
            break
        usable -= 1 + int(2 * math.log2(points / _MOST_POINTS))
    if usable <= 0:
        return values
    x = low + step * np.arange(points)
    _, log_m, _ = log_ratio(pair, x, 0.0)
    base = x * x / (-2 * variance)
    if isinstance(pair, OppositePair):
        _, log_back, _ = log_ratio(pair, -x, 0.0)
        exponent = np.multiply.outer(c[:usable], log_m - log_back) + (base + log_m)
    elif direction is Direction.REMOVE:
        exponent = np.multiply.outer(c[:usable] + 1, log_m) + base
    else:
        exponent = np.multiply.outer(-c[:usable], log_m) + base
    peak = exponent.max(axis=1)
    exponent -= peak[:, None]
    np.exp(exponent, out=exponent)
    total = np.log(exponent.sum(axis=1)) + peak + math.log(step / math.sqrt(2 * math.pi * variance))
    values[:usable] = np.maximum(total, 0.0)  # K ≥ 0: convex with K(0) = K(−1) = 0
    return values


@functools.lru_cache(maxsize=4096)
def ladder_moments(pair: Pair, direction: Direction) -> Array:
    """K on :data:`LADDER`; +inf beyond the c that can matter for this pair."""
    if isinstance(pair, GaussianPair):
        return LADDER * (LADDER + 1) / (2 * pair.sigma**2)
    assert isinstance(pair, MixturePair | OppositePair)
    values = np.full(LADDER.shape, np.inf)
    usable = int(np.searchsorted(LADDER, _reach_of(pair), side="right"))
    values[:usable] = log_moments(pair, direction, LADDER[:usable])
    return values


@functools.lru_cache(maxsize=16384)
def step_moments(pair: Pair, direction: Direction, rung: int) -> Array:
    """K at LADDER[rung] · STEPS."""
    c = float(LADDER[rung]) * STEPS
    if isinstance(pair, GaussianPair):
        return np.asarray(c * (c + 1) / (2 * pair.sigma**2))
    assert isinstance(pair, MixturePair | OppositePair)
    return log_moments(pair, direction, c)
