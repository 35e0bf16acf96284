"""Gaussian mixtures off the real line: the likelihood ratio m = dP/dQ at x + iy, with rounding errors and growth.

m(x) = Σ_j b_j e^{j(x − j/2)/σ²} is the ratio of a binomial mixture of shifts 0 … k to N(0, σ²). At x + iy its j-th term
is turned by the angle jθ, θ = y/σ². For kθ < π all terms point into one half-plane, so m has no zero there; that is
where :mod:`quietsum.privacy.exact.contour` integrates. Opposite pairs have the ratio m(x)/m(−x), with k = 1.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import math
from typing import Any, final

import numpy as np
import numpy.typing as npt

from quietsum.privacy.pairs import MixturePair, OppositePair

__all__ = ["ROUNDING", "Array", "Direction", "Integrand", "ceiling", "growth", "integrand", "log_ratio", "window"]

Array = npt.NDArray[Any]

ROUNDING = 2.0**-53
_REACH = 10.0  # windows reach this many σ beyond the last peak: e^-50


class Direction(enum.Enum):
    """Which of the two datasets P belongs to."""

    REMOVE = "remove"
    ADD = "add"


def log_ratio(pair: MixturePair | OppositePair, x: Array, theta: float | Array) -> tuple[Array, Array, Array]:
    """(|error| / ROUNDING, Re, Im) of ln m(x + iθσ²), where m = Σ_j b_j e^{j(x − j/2)/σ²}.

    Written around m − 1 so that a small sampling rate keeps its relative accuracy, and around (1 − q)^k where m is
    small. ``theta`` may be a column. The error counts, in units of ROUNDING: 3 for an exponent, 8 for each elementary
    function, 1 for each operation; what is written below is a little more.
    """
    rate = pair.rate
    variance = pair.sigma * pair.sigma
    size = pair.size if isinstance(pair, MixturePair) else 1
    if size == 1:
        exponent = (x - 0.5) / variance
        if exponent.max() > 300:
            return _log_ratio_far(pair, size, x, theta)
        weight = rate * np.exp(exponent)
        turned = weight * np.cos(theta)  # Re and Im of what the unit adds to m
        imag = weight * np.sin(theta)
        noise = weight * (52 + 5 * np.abs(exponent))
        lost, kept, lost_noise, kept_noise = rate, 1 - rate, 14 * rate, 14 * (1 - rate)
    else:
        none = size * math.log1p(-rate)  # ln b_0
        lost, kept = -math.expm1(none), math.exp(none)
        lost_noise, kept_noise = 40 * lost, (40 + 10 * abs(none)) * kept
        turned = imag = noise = np.zeros(np.broadcast_shapes(x.shape, np.shape(theta)))
        for j, (log_weight, weight_noise) in enumerate(_log_binomial(size, rate)):
            shift = (x - 0.5 * j) * j / variance
            exponent = log_weight + shift
            if exponent.max() > 300:
                return _log_ratio_far(pair, size, x, theta)
            if j > 0:
                weight = np.exp(exponent)
                turned = turned + weight * np.cos(j * theta)
                imag = imag + weight * np.sin(j * theta)
                noise = noise + weight * (52 + 2 * size + weight_noise + 2 * np.abs(exponent) + 6 * np.abs(shift))
    real = turned - lost
    flat = isinstance(theta, float) and theta == 0  # on the real line m is real
    excess = real if flat else 2 * real + real * real + imag * imag  # m − 1, or |m|² − 1
    log_abs = np.log1p(np.maximum(excess, -0.75)) * (1.0 if flat else 0.5)
    whole = 1 + real
    if excess.min() < -0.5:  # m is small: nothing may be taken from 1
        small = excess < -0.5
        whole = np.where(small, turned + kept, whole)
        log_abs = np.where(small, np.log(np.hypot(whole, imag)), log_abs)
        noise = noise + np.where(small, kept_noise, lost_noise)
    else:
        noise = noise + lost_noise
    angle = np.zeros_like(real) if flat else np.arctan2(imag, whole)
    return noise * np.exp(-log_abs) + 18 * (np.abs(log_abs) + angle), log_abs, angle


def _log_ratio_far(
    pair: MixturePair | OppositePair, size: int, x: Array, theta: float | Array
) -> tuple[Array, Array, Array]:
    """The same where e^exponent would overflow: the largest term is taken out of m."""
    variance = pair.sigma * pair.sigma
    terms = _log_binomial(size, pair.rate)
    exponents = [weight + (x - 0.5 * j) * j / variance for j, (weight, _) in enumerate(terms)]
    top = np.maximum.reduce(exponents)
    real = imag = total = np.zeros(np.broadcast_shapes(x.shape, np.shape(theta)))
    worst = 6 * (np.abs(x) + size) * size / variance + max(noise for _, noise in terms)
    for j, exponent in enumerate(exponents):
        weight = np.exp(exponent - top)
        real = real + weight * np.cos(j * theta)
        imag = imag + weight * np.sin(j * theta)
        total = total + weight
    rest = np.log(np.hypot(real, imag))
    log_abs = top + rest
    angle = np.arctan2(imag, real)
    noise = (52 + 2 * size + worst + 2 * np.abs(top)) * total  # weights of e^-600 may have lost all digits: no matter
    return noise * np.exp(-rest) + worst + 18 * (np.abs(log_abs) + np.abs(rest) + angle), log_abs, angle


@functools.lru_cache(maxsize=256)
def _log_binomial(size: int, rate: float) -> list[tuple[float, float]]:
    """(ln b_j, its error / ROUNDING) of Binomial(size, rate) for j = 0 … size."""
    drawn, spared = math.log(rate), math.log1p(-rate)
    found, choose, length = [(size * spared, 12 * abs(size * spared))], 0.0, 0.0
    for j in range(1, size + 1):
        factor = math.log((size - j + 1) / j)
        choose, length = choose + factor, length + abs(factor)
        parts = choose, j * drawn, (size - j) * spared
        found.append((math.fsum(parts), (12 + j) * length + 12 * (abs(parts[1]) + abs(parts[2]))))
    return found


# ------------------------------------------------------------------------------- where the mass is


@functools.lru_cache(maxsize=16384)
def window(pair: MixturePair | OppositePair, direction: Direction, c: float) -> tuple[float, float]:
    """An x-range outside which N(x) m(x)^a holds less than e^-51 of its integral (docs/explanation/exact.md)."""
    sigma = pair.sigma
    reach = _REACH * sigma
    if isinstance(pair, OppositePair):
        return -reach, 2 * c + 1 + reach
    if direction is Direction.REMOVE:
        return -reach, pair.size * (c + 1) + reach
    # N(x) m^-c is log-concave with curvature ≤ −1/σ²: ±10 σ around its peak, where −x = c σ² (ln m)'(x).
    low, high = -pair.size * c, 0.0
    for _ in range(40):
        middle = (low + high) / 2
        if high - low < 0.01 * sigma:
            break
        if -middle > c * _slope(pair, middle):
            low = middle
        else:
            high = middle
    return low - reach, high + reach


def _slope(pair: MixturePair, x: float) -> float:
    """σ² (ln m)'(x): the mean number of members drawn, given x."""
    variance = pair.sigma * pair.sigma
    if pair.size == 1:
        exponent = (x - 0.5) / variance
        if exponent > 0:
            return pair.rate / (pair.rate + (1 - pair.rate) * math.exp(-exponent))
        weight = pair.rate * math.exp(exponent)
        return weight / (1 - pair.rate + weight)
    terms = [w + (2 * j * x - j * j) / (2 * variance) for j, (w, _) in enumerate(_log_binomial(pair.size, pair.rate))]
    top = max(terms)
    weights = [math.exp(term - top) for term in terms]
    return sum(j * weight for j, weight in enumerate(weights)) / sum(weights)


def growth(pair: MixturePair | OppositePair, direction: Direction, c: float, y: float) -> float:
    """An upper bound on ln(∫|N m^a|(x + iy) dx / φ(c)): y²/2σ², and for negative powers −c ln cos(kθ/2).

    Positive coefficients give |m(x + iy)| ≤ m(x) and, within a sector of angle kθ < π, |m(x + iy)| ≥ cos(kθ/2) m(x).
    """
    grown = y * y / (2 * pair.sigma**2)
    if direction is Direction.ADD or isinstance(pair, OppositePair):
        size = pair.size if isinstance(pair, MixturePair) else 1
        half = size * y / (2 * pair.sigma**2)
        grown += -c * math.log(math.cos(half)) if half < math.pi / 2 - 1e-9 else math.inf
    return grown


def ceiling(pair: MixturePair | OppositePair) -> float:
    """Where m may have a zero: all its terms point into one half-plane for 0 ≤ y < πσ²/k."""
    height = math.pi * pair.sigma**2 / (pair.size if isinstance(pair, MixturePair) else 1)
    if not 1e-200 < height < 1e200:
        raise OverflowError(f"noise of {pair.sigma:g}")
    return height


# ------------------------------------------------------------------------------------- integrands


@final
@dataclasses.dataclass(frozen=True, slots=True)
class Integrand:
    """On x + iy: Q's density e^{base_real + i·base_imag} and ln(dP/dQ) = odds + i·angle, so that φ = ∫ Q (dP/dQ)^a dx.

    The powers are a = power + it. Errors, in units of ROUNDING: ``base_noise`` that of ln Q, ``noise`` of ln dP/dQ.
    """

    base_real: Array
    base_imag: Array
    odds: Array
    angle: Array
    power: float
    base_noise: Array
    noise: Array

    @property
    def real(self) -> Array:
        """ln|Q (dP/dQ)^power|."""
        return self.base_real + self.power * self.odds

    @property
    def imag(self) -> Array:
        """The argument of Q (dP/dQ)^power."""
        return self.base_imag + self.power * self.angle

    @property
    def still(self) -> Array:
        """The error of ln(Q (dP/dQ)^power); it grows by t·noise."""
        return self.base_noise + abs(self.power) * self.noise


def integrand(
    pair: MixturePair | OppositePair, direction: Direction, c: float, x: Array, y: float | Array
) -> Integrand:
    """What is integrated for φ(c + it).

    For ADD, Q = N and dP/dQ = m^-1 below the axis; its complex conjugate is described: m^a above the axis with
    a = −c + it, which the caller undoes.
    """
    variance = pair.sigma**2
    theta = y / variance
    error, log_abs, angle = log_ratio(pair, x, theta)
    base_real, base_imag = (y * y - x * x) / (2 * variance), -x * theta
    base_noise = (8 / variance) * (y * y + x * x)
    noise = error + 8 * (np.abs(log_abs) + angle)
    if isinstance(pair, OppositePair):
        error, log_back, angle_back = log_ratio(pair, -x, theta)
        back_noise = error + 8 * (np.abs(log_back) + angle_back)
        base_real, base_imag = base_real + log_back, base_imag - angle_back
        base_noise, noise = base_noise + back_noise, noise + back_noise
        log_abs, angle = log_abs - log_back, angle + angle_back
    power = c + 1 if direction is Direction.REMOVE or isinstance(pair, OppositePair) else -c
    return Integrand(base_real, base_imag, log_abs, angle, power, base_noise, noise)
