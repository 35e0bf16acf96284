"""Log moments K(c) = ln E_P[e^{cL}] on the real axis: the raw material of Rényi curves, of the choice of contour
and of Chernoff bounds. Rényi divergence of order α is K(α − 1)/(α − 1). All values are upper bounds, by about 1e-14.
"""

from __future__ import annotations

import functools
import math

import numpy as np

from quietsum.privacy.exact.contour import grid, half_precision
from quietsum.privacy.exact.envelopes import envelope_moments
from quietsum.privacy.exact.mixtures import ROUNDING, Array, Direction, ceiling, growth, log_ratio, window
from quietsum.privacy.pairs import EnvelopePair, GaussianPair, MergedPair, MixturePair, OppositePair, Pair

__all__ = ["LADDER", "STEPS", "ladder_moments", "log_moments", "step_moments"]

LADDER = 2.0 ** np.concatenate([np.arange(-20, -3), np.arange(-3, 30.25, 0.25)])
"""The abscissae between which contours are chosen: powers of 2^(1/4), and octaves where ε is in the thousands."""

STEPS = np.array([1.01, 1.03, 1.07, 1.12, 1.2, 1.3, 1.5, 2.0])
"""Factors by which an abscissa is raised to bound what aliasing adds there."""

_DIGITS = 34.0  # e^-34 = 2e-15: the rule's error, relative to φ(c)
_MOST_POINTS = 8192


def _reach_of(pair: MixturePair | OppositePair | EnvelopePair | MergedPair) -> float:
    """The largest c that can matter: where the drawn units take over, plus the Gaussian tail down to δ = 1e-30."""
    size = pair.size if isinstance(pair, MixturePair) else 1
    return (2 * pair.sigma * math.log(1 / pair.rate) + 13) * pair.sigma / size + 4


def log_moments(pair: MixturePair | OppositePair | EnvelopePair | MergedPair, direction: Direction, c: Array) -> Array:
    """Upper bounds on K(c) for an ascending vector of c > 0 by one shared trapezoid rule; +inf where its grid would be
    too long.

    The bounds exceed K by the rule's error (analytic in a strip, see :mod:`quietsum.privacy.exact.contour`) and by
    rounding, some 1e-14 together.
    """
    if isinstance(pair, EnvelopePair | MergedPair):
        return envelope_moments(pair, direction, c)
    values = np.full(c.shape, np.inf)
    usable = c.size
    while True:
        if usable <= 0:
            return values
        top = float(c[usable - 1])
        low, high = window(pair, direction, top)
        strip = min(6 * pair.sigma, 0.9 * ceiling(pair))
        if direction is Direction.ADD or isinstance(pair, OppositePair):
            strip = min(strip, ceiling(pair) / math.pi * math.sqrt(80 / max(top, 1.0)))
        length = 2 * math.pi * strip / (_DIGITS + growth(pair, direction, top, strip))
        # One window for all: peaks move from 0 to that of the largest c.
        low, high = min(low, -10 * pair.sigma), max(high, 10 * pair.sigma)
        if (points := (high - low) / length) < _MOST_POINTS:
            break
        usable -= 1 + int(2 * math.log2(points / _MOST_POINTS))
    x, step = grid(low, high, length)
    variance = pair.sigma**2
    noise, log_m, _ = log_ratio(pair, x, 0.0)
    base = x * x / (-2 * variance)
    if isinstance(pair, OppositePair):
        noise_back, log_back, _ = log_ratio(pair, -x, 0.0)
        slope, base_plus, noise = log_m - log_back, base + log_m, noise + noise_back + 8 * np.abs(log_back)
    elif direction is Direction.REMOVE:
        slope, base_plus = log_m, base + log_m
    else:
        slope, base_plus = -log_m, base
    exponent = np.multiply.outer(c[:usable], slope) + base_plus
    peak = exponent.max(axis=1)
    exponent -= peak[:, None]
    np.exp(exponent, out=exponent)
    mass = exponent.sum(axis=1)
    total = np.log(mass) + peak + math.log(step / math.sqrt(2 * math.pi * variance))
    # What rounding may have taken: of the exponents, on average over the mass, and of the sum.
    errors = exponent @ np.stack([-16 * base, noise + 8 * np.abs(log_m)], axis=1) / mass[:, None]
    rounding = errors[:, 0] + (c[:usable] + 1) * errors[:, 1] + x.size + 8 * (np.abs(peak) + np.abs(total)) + 100
    values[:usable] = np.maximum(total + 1.01 * ROUNDING * rounding + 4e-15, 0.0)  # K ≥ 0: convex with K(0) = K(−1) = 0
    return values


@functools.lru_cache(maxsize=4096)
def ladder_moments(pair: Pair, direction: Direction) -> Array:
    """K on :data:`LADDER`; +inf beyond the c that can matter for this pair."""
    if isinstance(pair, GaussianPair):
        return _gaussian(pair, LADDER)
    assert isinstance(pair, MixturePair | OppositePair | EnvelopePair | MergedPair)
    values = np.full(LADDER.shape, np.inf)
    usable = int(np.searchsorted(LADDER, _reach_of(pair), side="right"))
    values[:usable] = log_moments(pair, direction, LADDER[:usable])
    return values


@functools.lru_cache(maxsize=16384)
def step_moments(pair: Pair, direction: Direction, c: float) -> Array:
    """K at c · STEPS."""
    if isinstance(pair, GaussianPair):
        return _gaussian(pair, c * STEPS)
    assert isinstance(pair, MixturePair | OppositePair | EnvelopePair | MergedPair)
    return log_moments(pair, direction, c * STEPS)


def _gaussian(pair: GaussianPair, c: Array) -> Array:
    return np.asarray(c * (c + 1) * (half_precision(pair) * (1 + 1e-15)))
