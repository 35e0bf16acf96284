"""Log-moment functions on a vertical line of the complex plane, each with its error bounds.

For a pair (P, Q) with privacy loss L = ln dP/dQ let φ(z) = E_P[e^{zL}]. The exact accountant needs ln φ(c + it) at
equally spaced t, a bound on the error of each value, and a bound on |φ| beyond the last node. This file gives all
three for Gaussian pairs and for Gaussian mixtures; docs/explanation/exact.md carries the proofs. (The envelope of
fixed-size batches has a file of its own, :mod:`quietsum.privacy.exact.envelopes`.)

**Quadrature.** φ is an integral over x of N(x) m(x)^a, m being the mixture's likelihood ratio. It is taken along the
shifted line x + iy with the trapezoid rule. Two things make the shift the right choice:

* m(x + iy) has argument ≥ 0 for 0 ≤ y < πσ²/k (all its terms turn counter-clockwise), so |e^{it ln m}| = e^{−t·arg m}
  ≤ 1 there: one x-grid serves every t, however large, and the rule's error bound (Trefethen, Weideman 2014, Theorem
  5.1) between the lines 0, y and y + d does not grow with t.
* Along the same line |φ(c + it)| ≤ ∫ |N m^a| e^{−t·arg m} dx, which *decreases* in t. Evaluated at the last node it
  bounds everything beyond: the tail certificate.

**All t at once.** With t_k = k·s, φ_k = Σ_j w_j u_j^k; writing k = aB + b turns the N×M exponentials into a matrix
product of two thin factors with about √N·M exponentials each.

**Rounding.** Each φ_k comes with a bound on its floating-point error, assuming IEEE double arithmetic and elementary
functions within 4 units in the last place (numpy's own bound). The x_j have few enough bits to be exact.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import final

import numpy as np

from quietsum.privacy.exact.envelopes import envelope_spectrum, envelope_tail
from quietsum.privacy.exact.mixtures import ROUNDING, Array, Direction, ceiling, growth, integrand, window
from quietsum.privacy.pairs import EnvelopePair, GaussianPair, MergedPair, MixturePair, OppositePair, Pair

__all__ = [
    "Array",
    "Direction",
    "Spectrum",
    "directions",
    "grid",
    "half_precision",
    "has_contour",
    "log_tail",
    "spectrum",
]

_DIGITS = 37.5  # e^-37.5 = 5e-17: quadrature error aimed at, relative to φ(c)
_MOST_MEMBERS = 1000
_MOST_POINTS = 1 << 16
_MOST_EXPONENTIALS = 1 << 23  # in the two factors of a spectrum: 128 MiB


def has_contour(pair: Pair) -> bool:
    """Whether this file knows the pair, and can be quick about it."""
    if isinstance(pair, MixturePair):
        return pair.size <= _MOST_MEMBERS
    return isinstance(pair, GaussianPair | OppositePair | EnvelopePair | MergedPair)


def directions(pair: Pair) -> tuple[Direction, ...]:
    """Both directions, or one where the pair is its own mirror image."""
    return (Direction.REMOVE, Direction.ADD) if isinstance(pair, MixturePair | MergedPair) else (Direction.REMOVE,)


@final
@dataclasses.dataclass(frozen=True, slots=True)
class Spectrum:
    """ln φ(c + i k s) for k = 0 … N−1 (modulo 2πi) and a bound on the absolute error of each value."""

    log_phi: Array
    error: Array


def half_precision(pair: GaussianPair) -> float:
    """1/2σ²: ln φ(z) is z (z + 1) times that."""
    if not 1e-100 < pair.sigma < 1e100:
        raise OverflowError(f"noise of {pair.sigma:g}")
    return 0.5 / pair.sigma**2


def grid(low: float, high: float, step: float, most: int = _MOST_POINTS) -> tuple[Array, float]:
    """(x, step): the multiples, exact in floating point, of a step at most as long that cover [low, high]."""
    mantissa, exponent = math.frexp(step)
    step = math.ldexp(math.floor(math.ldexp(mantissa, 24)), exponent - 24)
    first, last = math.floor(low / step), math.ceil(high / step)
    if last - first > most or max(-first, last) >= 1 << 28:
        raise OverflowError(f"{last - first:.0e} points in x")
    return step * np.arange(first, last + 1), step


@functools.lru_cache(maxsize=16384)
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


def spectrum(pair: Pair, direction: Direction, c: float, s: float, nodes: int) -> Spectrum:
    """ln φ(c + iks), k = 0 … nodes−1, with error bounds."""
    k = np.arange(nodes)
    if isinstance(pair, GaussianPair):
        z = c + 1j * (s * k)
        values = z * (z + 1) * half_precision(pair)
        return Spectrum(values, 16 * ROUNDING * np.abs(values))
    if isinstance(pair, EnvelopePair | MergedPair):
        return Spectrum(*envelope_spectrum(pair, direction, c, s, nodes))
    assert isinstance(pair, MixturePair | OppositePair)
    y, step, quadrature = _line(pair, direction, c)
    x, step = grid(*window(pair, direction, c), step)
    block = max(1, math.isqrt(nodes))
    blocks = -(-nodes // block)
    if (block + blocks) * x.size > _MOST_EXPONENTIALS:
        raise OverflowError(f"{nodes} nodes of {x.size} points")
    f = integrand(pair, direction, c, x, y)
    real, still_noise = f.real, f.still
    top = float(real.max())
    magnitude = np.exp(real - top)
    rotor = s * (1j * f.odds - f.angle)
    fine = np.exp(np.arange(block)[:, None] * rotor)
    coarse = np.exp((block * np.arange(blocks))[:, None] * rotor) * (magnitude * np.exp(1j * f.imag))
    sums = (coarse @ fine.T).ravel()[:nodes]
    if direction is Direction.ADD and isinstance(pair, MixturePair):
        sums = sums.conj()
    # Rounding: of the exponents, of 3 complex exponentials, and of a complex inner product (2 √2 n).
    last = s * nodes
    if ROUNDING * (float(still_noise.max()) + last * float(f.noise.max())) > 0.05:
        raise OverflowError("exponents too large for their rounding errors to be small")
    still = float(magnitude @ still_noise) + float(magnitude.sum()) * (3 * x.size + 100 + abs(top))
    moving = float(magnitude @ f.noise)
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
        return ((c * (c + 1) - t * t) + 16 * ROUNDING * (c * (c + 1) + t * t)) * half_precision(pair)
    if isinstance(pair, EnvelopePair | MergedPair):
        return envelope_tail(pair, direction, c, t)
    assert isinstance(pair, MixturePair | OppositePair)
    low, high = window(pair, direction, c)
    few = high - low < 512 * _line(pair, direction, c)[1]
    real, angle, log_errors = (_cached_fan if few else _fan)(pair, direction, c)
    exponent = real - t * angle
    top = exponent.max(axis=1)
    rounding = ROUNDING * (real.shape[1] + 100 + 8 * np.abs(top))
    log_sum = top + np.log(np.exp(exponent - top[:, None]).sum(axis=1)) + rounding
    centre = log_sum[0]  # the line y = 0, where nothing decays: φ(c), itself a bound
    best = float(np.logaddexp(log_sum, centre + log_errors).min())
    return best + ROUNDING * (16 * abs(best) + 100)


_SHIFTS = np.array([0.0, 1.0, 0.6, 0.35, 0.2, 0.1, 0.04, 0.01])[:, None]


def _fan(pair: MixturePair | OppositePair, direction: Direction, c: float) -> tuple[Array, Array, Array]:
    """ln|N m^a| and the angle of m at several heights, both rounded to the safe side, with ln(relative errors).

    |N m^a| e^{−t·angle} extends from the line at height y to an analytic function of x. Its size at x ± iv is bounded
    as in :func:`growth` at y + v and its last factor by 1: for v ≤ y since both angles at y ± v are ≥ 0, and beyond
    since angles grow with the height as long as all terms of m lie within a quarter turn.
    """
    line, step, _ = _line(pair, direction, c)
    x, step = grid(*window(pair, direction, c), step)
    heights = line * _SHIFTS
    f = integrand(pair, direction, c, x, heights)
    scale = math.log(step / (math.sqrt(2 * math.pi) * pair.sigma))
    real = f.real + ROUNDING * (1.01 * f.still + 8 * abs(scale)) + scale
    angle = np.maximum(f.angle - np.where(_SHIFTS > 0, 1.01 * ROUNDING * f.noise, 0.0), 0.0)  # angles are ≥ 0
    roof = ceiling(pair)
    log_errors = []
    for y in heights[:, 0].tolist():
        d = max(min(line, roof / 2 - y), min(y, 0.99 * roof - y))
        log_error = growth(pair, direction, c, y + d) - math.log(math.expm1(2 * math.pi * d / step)) + math.log(2.02)
        log_errors.append(max(log_error, -44.0))  # more than what lies outside of the window
    return real, angle, np.array(log_errors)


_cached_fan = functools.lru_cache(maxsize=2048)(_fan)
