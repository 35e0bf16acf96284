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

**Rounding.** Each φ_k comes with a bound on its floating-point error, assuming IEEE double arithmetic and elementary functions
within 4 units in the last place (numpy's own bound). The x_j have few enough bits to be exact.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import math
from typing import Any, final

import numpy as np
import numpy.typing as npt

from quietsum.privacy.pairs import GaussianPair, MixturePair, OppositePair, Pair

__all__ = [
    "Direction",
    "Spectrum",
    "ceiling",
    "directions",
    "grid",
    "growth",
    "has_contour",
    "log_ratio",
    "log_tail",
    "spectrum",
    "window",
]

Array = npt.NDArray[Any]

ROUNDING = 2.0**-53
_DIGITS = 37.5  # e^-37.5 = 5e-17: quadrature error aimed at, relative to φ(c)
_REACH = 10.0  # windows reach this many σ beyond the last peak: e^-50
_MOST_MEMBERS = 1000
_MOST_POINTS = 1 << 16
_MOST_EXPONENTIALS = 1 << 23  # in the two factors of a spectrum: 128 MiB


class Direction(enum.Enum):
    """Which of the two datasets P belongs to."""

    REMOVE = "remove"
    ADD = "add"


def has_contour(pair: Pair) -> bool:
    """Whether this file knows the pair, and can be quick about it."""
    return isinstance(pair, GaussianPair | OppositePair) or (isinstance(pair, MixturePair) and pair.size <= _MOST_MEMBERS)


def directions(pair: Pair) -> tuple[Direction, ...]:
    """Both directions, or one where the pair is its own mirror image."""
    return (Direction.REMOVE, Direction.ADD) if isinstance(pair, MixturePair) else (Direction.REMOVE,)


@final
@dataclasses.dataclass(frozen=True, slots=True)
class Spectrum:
    """ln φ(c + i k s) for k = 0 … N−1 (modulo 2πi) and a bound on the absolute error of each value."""

    log_phi: Array
    error: Array


# --------------------------------------------------------------------------- the likelihood ratio m


def log_ratio(pair: MixturePair | OppositePair, x: Array, theta: float | Array) -> tuple[Array, Array, Array]:
    """(|error| / ROUNDING, Re, Im) of ln m(x + iθσ²), where m = Σ_j b_j e^{j(x − j/2)/σ²}.

    Written around m − 1 so that a small sampling rate keeps its relative accuracy, and around (1 − q)^k where m is small.
    ``theta`` may be a column. The error counts, in units of ROUNDING: 3 for an exponent, 8 for each elementary function,
    1 for each operation; what is written below is a little more.
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


# ------------------------------------------------------------------------------- windows and lines


def grid(low: float, high: float, step: float, most: int = _MOST_POINTS) -> tuple[Array, float]:
    """(x, step): the multiples, exact in floating point, of a step at most as long that cover [low, high]."""
    mantissa, exponent = math.frexp(step)
    step = math.ldexp(math.floor(math.ldexp(mantissa, 24)), exponent - 24)
    first, last = math.floor(low / step), math.ceil(high / step)
    if last - first > most or max(-first, last) >= 1 << 28:
        raise OverflowError(f"{last - first:.0e} points in x")
    return step * np.arange(first, last + 1), step


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


def _line(pair: MixturePair | OppositePair, direction: Direction, c: float) -> tuple[float, float, float]:
    """(y, x-step, relative quadrature error): the shifted line on which φ(c + it), t ≥ 0, is summed.

    The error has two parts, one from the real line below (distance y, no growth) and one from a line y + d above.
    """
    roof = ceiling(pair)
    y = min(2 * pair.sigma, 0.42 * roof)
    while True:
        step = 2 * math.pi * y / _DIGITS
        best = math.inf
        for ratio in (1.1, 1.2, 1.35):
            if y * (1 + ratio) < 0.995 * roof:
                best = min(best, growth(pair, direction, c, y * (1 + ratio)) - ratio * _DIGITS)
        if growth(pair, direction, c, y) <= 2.2 and best <= -_DIGITS + 1.5:
            return y, step, 1.01 * (math.exp(-_DIGITS) + math.exp(best))
        y *= 0.8


def ceiling(pair: MixturePair | OppositePair) -> float:
    """Where m may have a zero: all its terms point into one half-plane for 0 ≤ y < πσ²/k."""
    height = math.pi * pair.sigma**2 / (pair.size if isinstance(pair, MixturePair) else 1)
    if not 1e-200 < height < 1e200:
        raise OverflowError(f"noise of {pair.sigma:g}")
    return height


@final
@dataclasses.dataclass(frozen=True, slots=True)
class _Integrand:
    """On x + iy: N m^a = e^{real + i·imag} and the rotor ℓ = odds + i·angle of e^{itℓ}.

    The error of ln(N m^a e^{itℓ}) is at most ROUNDING · (still + t·moving).
    """

    real: Array
    imag: Array
    odds: Array
    angle: Array
    still: Array
    moving: Array


def _integrand(pair: MixturePair | OppositePair, direction: Direction, c: float, x: Array, y: float | Array) -> _Integrand:
    """For ADD the complex conjugate is described (its line lies below the axis), which the caller undoes."""
    variance = pair.sigma**2
    theta = y / variance
    error, log_abs, angle = log_ratio(pair, x, theta)
    normal = (y * y - x * x) / (2 * variance)
    reach = (y * y + x * x) / (2 * variance)
    moving = error + 8 * (np.abs(log_abs) + angle)
    if isinstance(pair, OppositePair):
        error_back, log_back, angle_back = log_ratio(pair, -x, theta)
        moving = moving + error_back + 8 * (np.abs(log_back) + angle_back)
        odds, turn = log_abs - log_back, angle + angle_back
        real, imag = normal + log_abs + c * odds, angle + c * turn - x * theta
        return _Integrand(real, imag, odds, turn, 16 * reach + (c + 1) * moving, moving)
    power = c + 1 if direction is Direction.REMOVE else -c
    real, imag = normal + power * log_abs, power * angle - x * theta
    return _Integrand(real, imag, log_abs, angle, 16 * reach + abs(power) * moving, moving)


# ---------------------------------------------------------------------------------- what is offered


def spectrum(pair: Pair, direction: Direction, c: float, s: float, nodes: int) -> Spectrum:
    """ln φ(c + iks), k = 0 … nodes−1, with error bounds."""
    k = np.arange(nodes)
    if isinstance(pair, GaussianPair):
        z = c + 1j * (s * k)
        values = z * (z + 1) / (2 * pair.sigma**2)
        return Spectrum(values, 16 * ROUNDING * np.abs(values))
    assert isinstance(pair, MixturePair | OppositePair)
    y, step, quadrature = _line(pair, direction, c)
    x, step = grid(*window(pair, direction, c), step)
    block = max(1, math.isqrt(nodes))
    blocks = -(-nodes // block)
    if (block + blocks) * x.size > _MOST_EXPONENTIALS:
        raise OverflowError(f"{nodes} nodes of {x.size} points")
    f = _integrand(pair, direction, c, x, y)
    top = float(f.real.max())
    magnitude = np.exp(f.real - top)
    rotor = s * (1j * f.odds - f.angle)
    fine = np.exp(np.arange(block)[:, None] * rotor)
    coarse = np.exp((block * np.arange(blocks))[:, None] * rotor) * (magnitude * np.exp(1j * f.imag))
    sums = (coarse @ fine.T).ravel()[:nodes]
    if direction is Direction.ADD and isinstance(pair, MixturePair):
        sums = sums.conj()
    # Rounding: of the exponents, of 3 complex exponentials, and of a complex inner product (2 √2 n).
    last = s * nodes
    if ROUNDING * (float(f.still.max()) + last * float(f.moving.max())) > 0.05:
        raise OverflowError("exponents too large for their rounding errors to be small")
    still = float(magnitude @ f.still) + float(magnitude.sum()) * (3 * x.size + 100 + abs(top))
    moving = float(magnitude @ f.moving)
    size = np.abs(sums)
    absolute = 1.1 * ROUNDING * (still + moving * s * k) + (quadrature + 1e-20) * 1.01 * size[0]
    relative = absolute / np.maximum(size, 1e-300)
    error = 1.5 * relative  # |ln(1 + η)| ≤ 1.39 |η| for |η| ≤ 1/2
    lost = relative >= 0.5
    if lost.any():
        # Where φ drowns in rounding only its size is known: |φ| ≤ size + absolute, so any phase lies within
        # twice that, which an error of ln 3 on the logarithm stands for.
        sums = np.where(lost, size + absolute, sums)
        error = np.where(lost, math.log(3.0), error)
    scale = math.log(step / (math.sqrt(2 * math.pi) * pair.sigma))
    log_phi = np.log(sums) + (top + scale)
    return Spectrum(log_phi, error + 16 * ROUNDING * (np.abs(log_phi) + abs(top) + abs(scale) + 4))


def log_tail(pair: Pair, direction: Direction, c: float, t: float) -> float:
    """An upper bound on ln|φ(c + it')| for every t' ≥ t > 0."""
    if isinstance(pair, GaussianPair):
        precision = 1 / (2 * pair.sigma**2)
        return (c * (c + 1) - t * t) * precision + 16 * ROUNDING * (c * (c + 1) + t * t) * precision
    assert isinstance(pair, MixturePair | OppositePair)
    low, high = window(pair, direction, c)
    few = high - low < 512 * _line(pair, direction, c)[1]
    real, angle, log_errors = (_fan if few else _fan.__wrapped__)(pair, direction, c)
    exponent = real - t * angle
    top = exponent.max(axis=1)
    rounding = ROUNDING * (real.shape[1] + 100 + 8 * np.abs(top))
    log_sum = top + np.log(np.exp(exponent - top[:, None]).sum(axis=1)) + rounding
    centre = log_sum[0]  # the line y = 0, where nothing decays: φ(c), itself a bound
    best = float(np.logaddexp(log_sum, centre + log_errors).min())
    return best + ROUNDING * (16 * abs(best) + 100)


_SHIFTS = np.array([0.0, 1.0, 0.7, 0.5, 0.35, 0.25, 0.12, 0.06, 0.03, 0.01, 0.003])[:, None]


@functools.lru_cache(maxsize=2048)
def _fan(pair: MixturePair | OppositePair, direction: Direction, c: float) -> tuple[Array, Array, Array]:
    """ln|N m^a| and the angle of m on lines at several heights, both rounded to the safe side, with ln(relative errors).

    |N m^a| e^{−t·angle} extends from the line at height y to an analytic function of x. Its size at x ± iv is bounded as in
    :func:`growth` at y + v and its last factor by 1: for v ≤ y since both angles at y ± v are ≥ 0, and beyond
    since angles grow with the height as long as all terms of m lie within a quarter turn.
    """
    line, step, _ = _line(pair, direction, c)
    x, step = grid(*window(pair, direction, c), step)
    heights = line * _SHIFTS
    f = _integrand(pair, direction, c, x, heights)
    scale = math.log(step / (math.sqrt(2 * math.pi) * pair.sigma))
    real = f.real + ROUNDING * (1.01 * f.still + 8 * abs(scale)) + scale
    angle = f.angle - np.where(_SHIFTS > 0, 1.01 * ROUNDING * f.moving, 0.0)
    roof = ceiling(pair)
    log_errors = []
    for y in heights[:, 0].tolist():
        d = max(min(line, roof / 2 - y), min(y, 0.99 * roof - y))
        log_error = growth(pair, direction, c, y + d) - math.log(math.expm1(2 * math.pi * d / step)) + math.log(2.02)
        log_errors.append(max(log_error, -44.0))  # more than what lies outside of the window
    return real, angle, np.array(log_errors)
