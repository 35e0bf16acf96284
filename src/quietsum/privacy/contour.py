"""Log-moment functions on a vertical line of the complex plane, each with its error bounds.

For a pair (P, Q) with privacy loss L = ln dP/dQ let φ(z) = E_P[e^{zL}]. The exact accountant needs ln φ(c + it) at
equally spaced t, a bound on the error of each value, and a bound on |φ| beyond the last node. This file gives all three for
Gaussian pairs and for Gaussian mixtures; docs/explanation/exact.md carries the proofs.

**Quadrature.** φ is an integral over x of N(x) m(x)^a, m being the mixture's likelihood ratio. It is taken along the
shifted line x + iy with the trapezoid rule. Two things make the shift the right choice:

* m(x + iy) has argument ≥ 0 for 0 ≤ y < πσ²/k (all its terms turn counter-clockwise), so |e^{it ln m}| = e^{−t·arg m} ≤ 1
  there: one x-grid serves every t, however large, and the rule's error bound (Trefethen, Weideman 2014, Theorem
  5.1) between the lines 0, y and y + d does not grow with t.
* Along the same line |φ(c + it)| ≤ ∫ |N m^a| e^{−t·arg m} dx, which *decreases* in t. Evaluated at the last node it bounds
  everything beyond: the tail certificate.

**All t at once.** With t_k = k·s, φ_k = Σ_j w_j u_j^k; writing k = aB + b turns the N×M exponentials into a matrix product of
two thin factors with about √N·M exponentials each.

**Rounding.** Each φ_k comes with a first-order bound on its floating-point error, assuming IEEE double arithmetic and
elementary functions within 4 units in the last place (numpy's own bound).
"""

from __future__ import annotations

import dataclasses
import enum
import math
from typing import Any, final

import numpy as np
import numpy.typing as npt

from quietsum.privacy.pairs import GaussianPair, MixturePair, OppositePair, Pair

__all__ = ["Direction", "Spectrum", "directions", "has_contour", "log_tail", "spectrum"]

Array = npt.NDArray[Any]

ROUNDING = 2.0**-53
_DIGITS = 37.5  # e^-37.5 = 5e-17: quadrature error aimed at, relative to φ(c)
_REACH = 10.0  # windows reach this many σ beyond the last peak: e^-50


class Direction(enum.Enum):
    """Which of the two datasets P belongs to."""

    REMOVE = "remove"
    ADD = "add"


def has_contour(pair: Pair) -> bool:
    """Whether this file knows the pair."""
    return isinstance(pair, GaussianPair | MixturePair | OppositePair)


def directions(pair: Pair) -> tuple[Direction, ...]:
    """Both directions, or one where the pair is its own mirror image."""
    return (Direction.REMOVE, Direction.ADD) if isinstance(pair, MixturePair) else (Direction.REMOVE,)


@final
@dataclasses.dataclass(frozen=True, slots=True)
class Spectrum:
    """ln φ(c + i k s) for k = 0 … N−1 and a bound on the absolute error of each value."""

    log_phi: Array
    error: Array


# --------------------------------------------------------------------------- the likelihood ratio m


def log_ratio(pair: MixturePair | OppositePair, x: Array, theta: float | Array) -> tuple[Array, Array, Array]:
    """(|error| / ROUNDING, Re, Im) of ln m(x + iθσ²), where m = Σ_j b_j e^{(2jx − j²)/2σ²}.

    Written around m − 1 so that a small sampling rate keeps its relative accuracy. ``theta`` may be a column.
    """
    rate = pair.rate
    variance = pair.sigma * pair.sigma
    size = pair.size if isinstance(pair, MixturePair) else 1
    if size == 1:
        exponent = (x - 0.5) / variance
        if exponent.max() > 300:
            return _log_ratio_far(rate, exponent, theta)
        weight = rate * np.exp(exponent)
        real = weight * np.cos(theta) - rate
        imag = weight * np.sin(theta)
        noise = (weight * (6 + 2 * np.abs(exponent))) + 2 * rate
    else:
        log_weights = _log_binomial(size, rate)
        real = np.full(np.broadcast(x, theta).shape, -(-math.expm1(size * math.log1p(-rate))))
        imag = np.zeros_like(real)
        noise = np.full_like(real, 2 * rate * size)
        for j in range(1, size + 1):
            exponent = log_weights[j] + (2 * j * x - j * j) / (2 * variance)
            weight = np.exp(np.minimum(exponent, 300.0))
            if exponent.max() > 300:
                raise OverflowError("likelihood ratio of the group is too large for this range")
            real = real + weight * np.cos(j * theta)
            imag = imag + weight * np.sin(j * theta)
            noise = noise + weight * (6 + 3 * np.abs(exponent) + abs(log_weights[j]))
    excess = 2 * real + real * real + imag * imag  # |m|² − 1
    log_abs = 0.5 * np.log1p(excess)
    angle = np.arctan2(imag, 1 + real)
    error = noise * np.exp(-log_abs) + 6 * (np.abs(log_abs) + angle)
    return error, log_abs, angle


def _log_ratio_far(rate: float, exponent: Array, theta: float | Array) -> tuple[Array, Array, Array]:
    """The same where e^exponent would overflow: ln m = v + ln(q + (1 − q) e^{−v})."""
    positive = np.maximum(exponent, 0.0)
    small = np.exp(-np.abs(exponent))
    first = np.where(exponent > 0, rate, rate * small)
    second = np.where(exponent > 0, (1 - rate) * small, 1 - rate)
    real = first * np.cos(theta) + second
    imag = first * np.sin(theta)
    log_abs = positive + 0.5 * np.log(real * real + imag * imag)
    angle = np.arctan2(imag, real)
    return 12 + 4 * np.abs(exponent) + 6 * (np.abs(log_abs) + angle), log_abs, angle


def _log_binomial(size: int, rate: float) -> list[float]:
    return [
        math.lgamma(size + 1) - math.lgamma(j + 1) - math.lgamma(size - j + 1)
        + j * math.log(rate) + (size - j) * math.log1p(-rate)
        for j in range(size + 1)
    ]  # fmt: skip


# ------------------------------------------------------------------------------- windows and lines


def _window(pair: MixturePair | OppositePair, direction: Direction, c: float) -> tuple[float, float]:
    """An x-range outside which N(x) m(x)^a holds less than e^-48 of its integral (docs/explanation/exact.md)."""
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
    terms = [w + (2 * j * x - j * j) / (2 * variance) for j, w in enumerate(_log_binomial(pair.size, pair.rate))]
    top = max(terms)
    weights = [math.exp(term - top) for term in terms]
    return sum(j * weight for j, weight in enumerate(weights)) / sum(weights)


def _growth(pair: MixturePair | OppositePair, direction: Direction, c: float, y: float) -> float:
    """An upper bound on ln(∫|N m^a|(x + iy) dx / φ(c)): y²/2σ², and for negative powers −c ln cos(kθ/2).

    Positive coefficients give |m(x + iy)| ≤ m(x) and, within a sector of angle kθ < π, |m(x + iy)| ≥ cos(kθ/2) m(x).
    """
    growth = y * y / (2 * pair.sigma**2)
    if direction is Direction.ADD or isinstance(pair, OppositePair):
        size = pair.size if isinstance(pair, MixturePair) else 1
        half = size * y / (2 * pair.sigma**2)
        growth -= c * math.log(math.cos(half)) if half < math.pi / 2 - 1e-9 else -math.inf
    return growth


def _line(pair: MixturePair | OppositePair, direction: Direction, c: float) -> tuple[float, float, float]:
    """(y, x-step, relative quadrature error): the shifted line on which φ(c + it), t ≥ 0, is summed.

    The error has two parts, one from the real line below (distance y, no growth) and one from a line y + d above.
    """
    size = pair.size if isinstance(pair, MixturePair) else 1
    ceiling = math.pi * pair.sigma**2 / size
    y = min(2 * pair.sigma, 0.42 * ceiling)
    while True:
        step = 2 * math.pi * y / _DIGITS
        growth = _growth(pair, direction, c, y)
        best = math.inf
        for ratio in (1.1, 1.2, 1.35):
            if y * (1 + ratio) < 0.995 * ceiling:
                best = min(best, _growth(pair, direction, c, y * (1 + ratio)) - ratio * _DIGITS)
        if growth <= 2.2 and best <= -_DIGITS + 1.5:
            return y, step, 1.01 * (math.exp(-_DIGITS) + math.exp(best))
        y *= 0.8


def _integrand(
    pair: MixturePair | OppositePair, direction: Direction, c: float, x: Array, y: float | Array
) -> tuple[Array, Array, Array, Array, Array]:
    """On x + iy: Re and Im of ln(N m^a), Re and Im of the rotor ℓ in e^{itℓ}, and ℓ's error / ROUNDING.

    For ADD the complex conjugate is described (its line lies below the axis), which the caller undoes.
    """
    variance = pair.sigma**2
    theta = y / variance
    error, log_abs, angle = log_ratio(pair, x, theta)
    real = (y * y - x * x) / (2 * variance)
    imag = -x * theta
    if isinstance(pair, OppositePair):
        error_back, log_back, angle_back = log_ratio(pair, -x, theta)
        rotor_abs, rotor_angle = log_abs - log_back, angle + angle_back
        return (
            real + log_abs + c * rotor_abs,
            imag + angle + c * rotor_angle,
            rotor_abs,
            rotor_angle,
            error + error_back,
        )
    power = c + 1 if direction is Direction.REMOVE else -c
    return real + power * log_abs, imag + power * angle, log_abs, angle, error


# ---------------------------------------------------------------------------------- what is offered


def spectrum(pair: Pair, direction: Direction, c: float, s: float, nodes: int) -> Spectrum:
    """ln φ(c + iks), k = 0 … nodes−1, with error bounds."""
    if isinstance(pair, GaussianPair):
        t = s * np.arange(nodes)
        z = c + 1j * t
        values = z * (z + 1) / (2 * pair.sigma**2)
        return Spectrum(values, 8 * ROUNDING * np.abs(values))
    assert isinstance(pair, MixturePair | OppositePair)
    y, step, quadrature = _line(pair, direction, c)
    low, high = _window(pair, direction, c)
    x = low + step * np.arange(int((high - low) / step) + 2)
    real, imag, rotor_abs, rotor_angle, rotor_error = _integrand(pair, direction, c, x, y)
    top = float(real.max())
    magnitude = np.exp(real - top)
    weights = magnitude * np.exp(1j * imag)
    rotor = s * (1j * rotor_abs - rotor_angle)
    block = max(1, math.isqrt(nodes))
    blocks = -(-nodes // block)
    fine = np.exp(np.arange(block)[:, None] * rotor)
    coarse = np.exp((block * np.arange(blocks))[:, None] * rotor) * weights
    sums = (coarse @ fine.T).ravel()[:nodes]
    if direction is Direction.ADD:
        sums = sums.conj()
    scale = step / (math.sqrt(2 * math.pi) * pair.sigma)
    total = float(magnitude.sum())
    # Rounding: the exponent's own error, the matrix product, and t times the rotor's error.
    still = float(magnitude @ (2 * np.abs(real) + 3 * np.abs(imag) + (c + 1) * rotor_error)) + total * (x.size + 40 + abs(top))
    moving = float(magnitude @ (rotor_error + 6 * (np.abs(rotor_abs) + rotor_angle)))
    size = np.abs(sums)
    centre = size[0]
    absolute = ROUNDING * (still + moving * s * np.arange(nodes)) + (quadrature + 1e-20) * 1.01 * centre
    relative = absolute / np.maximum(size, 1e-300)
    lost = relative >= 0.5
    error = 1.5 * relative
    if lost.any():
        # Where φ drowns in rounding only its size is known: |φ| ≤ size + absolute, so any phase lies within
        # twice that, which an error of ln 3 on the logarithm stands for.
        sums = np.where(lost, size + absolute, sums)
        error = np.where(lost, math.log(3.0), error)
    log_phi = np.log(sums) + (top + math.log(scale))
    error = error + 8 * ROUNDING * (np.abs(log_phi) + abs(top) + 1)
    return Spectrum(log_phi, error)


def log_tail(pair: Pair, direction: Direction, c: float, t: float) -> float:
    """An upper bound on ln|φ(c + it')| for every t' ≥ t > 0."""
    if isinstance(pair, GaussianPair):
        return (c * (c + 1) - t * t) / (2 * pair.sigma**2) + 1e-14 * (1 + c * (c + 1) / pair.sigma**2)
    assert isinstance(pair, MixturePair | OppositePair)
    line, step, _ = _line(pair, direction, c)
    low, high = _window(pair, direction, c)
    x = low + step * np.arange(int((high - low) / step) + 2)
    size = pair.size if isinstance(pair, MixturePair) else 1
    quarter = math.pi * pair.sigma**2 / (2 * size)
    y = np.array([line * factor for factor in (1.0, 0.7, 0.5, 0.35, 0.25, 0.12, 0.06, 0.03, 0.01, 0.003)])[:, None]
    real, _, _, angle, _ = _integrand(pair, direction, c, x, y)
    exponent = real - t * angle
    top = exponent.max(axis=1)
    log_sum = top + np.log(np.exp(exponent - top[:, None]).sum(axis=1))
    log_sum += math.log(step / (math.sqrt(2 * math.pi) * pair.sigma))
    log_centre = _log_centre(pair, direction, c, x, step)
    best = log_centre  # |φ(c + it)| ≤ φ(c)
    for value, shift in zip(log_sum.tolist(), y[:, 0].tolist(), strict=True):
        # The integrand is analytic up to a distance d and its continuation bounded as in _growth.
        d = min(line, quarter - shift) if shift + line > quarter else line
        if d <= 0:
            continue
        error = 2.02 * math.exp(min(50.0, _growth(pair, direction, c, shift + d) - 2 * math.pi * d / step)) + 1e-13
        best = min(best, max(value, log_centre - 700) + math.log1p(error * math.exp(min(700.0, log_centre - max(value, log_centre - 700)))))
    return best


def _log_centre(pair: MixturePair | OppositePair, direction: Direction, c: float, x: Array, step: float) -> float:
    """ln φ(c) by the trapezoid rule on the real line."""
    real, *_ = _integrand(pair, direction, c, x, 0.0)
    top = float(real.max())
    return top + math.log(float(np.exp(real - top).sum()) * step / (math.sqrt(2 * math.pi) * pair.sigma))
