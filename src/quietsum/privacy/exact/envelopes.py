"""The envelope of fixed-size batches on the contour: its log moments, their errors, and how fast they fall.

An :class:`~quietsum.privacy.pairs.EnvelopePair` has three parts: the losses L > 0 of (P, Q), their mirror image, and an
atom at 0 (docs/explanation/fixed-size.md). With N the density of N(0, σ²), m₁ and m_h the ratios of the two mixtures to
it, and x₀ = (1 + h)/2 where the two cross,

    φ(z) = A + ∫_{x₀}^∞ N m_h [(m₁/m_h)^{z+1} + (m₁/m_h)^{−z}] dx,        A = (1 − q)(1 − 2 Φ(−x₀/σ)).

**Quadrature.** x = x₀ + w ln(1 + e^τ) sends τ ∈ ℝ to x > x₀; the integrand decays like e^τ on the left, so the
trapezoid rule is as good as on a whole line (Trefethen, Weideman 2014, Theorem 5.1). It is taken on Im τ = v, between
the real line and Im τ = 2v ≤ 0.45 π. There x has a real part ≥ x₀ and an imaginary part of at most 2vw; with
2vw ≤ πσ²/2 the ratio m₁/m_h turns counter-clockwise: the argument of 1 − q + q r e^{iθ} grows with r and with
θ ≤ π/2, and m₁ has the larger r and θ. So |e^{it ln(m₁/m_h)}| ≤ 1 on all three lines, and the error bound holds for
every t. (The second term is the complex conjugate of one with power −c + it.) At height v the integrand's absolute
values add up to at most e^{(vw)²/2σ²} / cos v times the real integral, as |dx| ≤ d(Re x) / cos v; a negative power c
of a mixture whose terms span an angle θ costs another cos(θ/2)^{−c}.

**Decay.** By parts, |φ(c + it)| ≤ A + V/t, where V adds the total variations of the densities of the positive and of
the negative losses, weighted with e^{cL}. And 1 − |φ(c + 2it)/φ(c)|² ≤ 4 (1 − |φ(c + it)/φ(c)|²) for every law
(1 − cos 2u ≤ 4 (1 − cos u)), which carries the bound down to smaller t.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import final

import numpy as np
from scipy.special import erf, ndtr

from quietsum.privacy.exact.mixtures import ROUNDING, Array, Direction, log_ratio
from quietsum.privacy.pairs import EnvelopePair, MergedPair, MixturePair

__all__ = ["envelope_atom", "envelope_moments", "envelope_spectrum", "envelope_tail", "least_epsilon"]

_DIGITS = 37.5  # e^-37.5 = 5e-17: quadrature error aimed at, relative to φ(c)
_TOP = 0.45 * math.pi  # the upper line of the strip
_LEFT = -45.0  # where the rule begins: what is left out is below e^-41
_REACH = 11.0  # standard deviations beyond the last peak: e^-60
_MOST_POINTS = 8192
_MOST_EXPONENTIALS = 1 << 23
_HALVINGS = np.arange(40)

Sided = EnvelopePair | MergedPair


def crossing(pair: Sided) -> float:
    """x₀, where the two mixtures have equal densities."""
    return 0.5 * (1 + pair.near)


def envelope_atom(pair: EnvelopePair) -> float:
    """The mass of both laws at loss 0: (1 − q)(1 − 2Φ(−x₀/σ)), what remains of 1 after P(x > x₀) + Q(x > x₀)."""
    return (1 - pair.rate) * float(erf(crossing(pair) / pair.sigma * math.sqrt(0.5)))


def least_epsilon(pair: EnvelopePair, delta: float) -> float:
    """A lower bound on the ε of one step: δ ≥ P(x > a) − e^ε Q(x > a) for every threshold a."""
    start = crossing(pair)
    at = np.linspace(start, 1 + 12 * pair.sigma, 4001)
    common, far, half = (ndtr((shift - at) / pair.sigma) for shift in (0.0, 1.0, pair.near))
    p_mass, q_mass = (1 - pair.rate) * common + pair.rate * far, (1 - pair.rate) * common + pair.rate * half
    enough = (p_mass * (1 - 1e-12) > delta) & (q_mass > 1e-290)  # beyond, floats have lost their digits
    if not enough.any():
        return 0.0
    odds = np.log((p_mass[enough] * (1 - 1e-12) - delta) / q_mass[enough])
    return max(0.0, float(odds.max()) - 1e-11)


def _shares(pair: Sided, direction: Direction) -> tuple[tuple[bool, ...], float, float]:
    """(whether each integral is a mirror image, an atom's mass, its loss): what φ consists of.

    An envelope has both integrals and the atom at 0. A merged pair has one of them, and what remains in one atom.
    """
    if isinstance(pair, EnvelopePair):
        return (False, True), envelope_atom(pair), 0.0
    at = crossing(pair) / pair.sigma
    common, far, half = (float(ndtr(at - shift / pair.sigma)) for shift in (0.0, 1.0, pair.near))
    p_mass, q_mass = (1 - pair.rate) * common + pair.rate * far, (1 - pair.rate) * common + pair.rate * half
    apart = -float(erf((1 - pair.near) / (2 * pair.sigma) * math.sqrt(0.5)))  # far − half
    loss = math.log1p(pair.rate * apart / q_mass)
    return ((False,), p_mass, loss) if direction is Direction.REMOVE else ((True,), q_mass, -loss)


@final
@dataclasses.dataclass(frozen=True, slots=True)
class _Points:
    """On Im τ = v: ln(N m_h dx/dτ) = base + i·turn and ln(m₁/m_h) = odds + i·angle, with errors / ROUNDING.

    ``error`` bounds what the rule and its ends leave out, relative to φ(c).
    """

    base: Array
    turn: Array
    odds: Array
    angle: Array
    base_noise: Array
    noise: Array
    step: float
    error: float


def _points(pair: Sided, c: float, *, shifted: bool) -> _Points:
    """The nodes for φ(c + it): on the line v = 0.225 π for all t, or on the real line for t = 0 and all powers ≤ c."""
    sigma, near, start = pair.sigma, pair.near, crossing(pair)
    if not 1e-5 < sigma < 1e6:
        raise OverflowError(f"noise of {sigma:g}")
    variance = sigma * sigma
    height = min(2 * sigma, 0.49 * math.pi * variance, 4 * variance / math.sqrt(max(c, 1.0)))  # of x at Im τ = _TOP
    width = height / _TOP
    line = _TOP / 2 if shifted else 0.0
    room = _TOP / 2 if shifted else _TOP
    step = math.floor(2 * math.pi * room / _DIGITS * 2**20) / 2**20  # few bits, so that all τ are exact
    grown = height**2 / (2 * variance) - math.log(math.cos(_TOP)) - c * math.log(math.cos(height / (2 * variance)))
    error = 1.01 * ((1.0 if shifted else math.exp(grown)) + math.exp(grown)) * math.exp(-_DIGITS)
    last = (max(c + 1, start) - start + _REACH * sigma) / width
    if (last - _LEFT) / step > _MOST_POINTS:
        raise OverflowError(f"{(last - _LEFT) / step:.0e} points in x")
    tau = step * np.arange(math.floor(_LEFT / step), math.ceil(last / step) + 1)
    small, cosine, sine = np.exp(-np.abs(tau)), math.cos(line), math.sin(line)
    log_sum = 0.5 * np.log1p(small * (2 * cosine + small))  # ln|1 + e^{−|τ| ± iv}|
    angle = np.arctan2(small * sine, 1 + small * cosine)
    right = tau > 0
    x = start + width * np.where(right, tau + log_sum, log_sum)
    y = width * np.where(right, line - angle, angle)
    log_slope = math.log(width) - np.where(right, log_sum, log_sum - tau)  # ln|dx/dτ|, dx/dτ = w / (1 + e^{−τ−iv})
    turn = np.where(right, angle, line - angle)
    theta = y / variance if shifted else 0.0
    noise, odds, bent = log_ratio(MixturePair(sigma, pair.rate), x, theta)
    noise_near = log_near = bent_near = np.zeros_like(x)
    if near:
        noise_near, log_near, bent_near = log_ratio(MixturePair(sigma / near, pair.rate), x / near, theta * near)
    wobble = 40 * (np.abs(x) + y) / variance  # x itself is rounded, which moves ln m by at most 1.5/σ² a unit
    noise_near = noise_near + wobble * near + 8 * (np.abs(log_near) + bent_near)
    own = 24 * (x * x + y * y) / variance + 16 * (np.abs(log_slope) + turn + 4)
    return _Points(
        base=(y * y - x * x) / (2 * variance) + log_near + log_slope,
        turn=-x * y / variance + bent_near + turn,
        odds=odds - log_near,
        angle=bent - bent_near,
        base_noise=noise_near + own,
        noise=noise + wobble + 8 * (np.abs(odds) + bent) + noise_near,
        step=step,
        error=error,
    )


def _scale(pair: Sided, step: float) -> float:
    return math.log(step / (math.sqrt(2 * math.pi) * pair.sigma))


def envelope_spectrum(pair: Sided, direction: Direction, c: float, s: float, nodes: int) -> tuple[Array, Array]:
    """(ln φ(c + iks), its error) for k = 0 … nodes − 1."""
    f = _points(pair, c, shifted=True)
    block = max(1, math.isqrt(nodes))
    blocks = -(-nodes // block)
    size = f.odds.size
    if (block + 2 * blocks) * size > _MOST_EXPONENTIALS:
        raise OverflowError(f"{nodes} nodes of {size} points")
    scale = _scale(pair, f.step)
    mirrors, mass, loss = _shares(pair, direction)
    powers = [-c if mirror else c + 1 for mirror in mirrors]
    reals = [f.base + power * f.odds + scale for power in powers]
    top = max(0.0, c * loss, *(float(real.max()) for real in reals))
    rotor = s * (1j * f.odds - f.angle)
    fine = np.exp(np.arange(block)[:, None] * rotor).T
    coarse = np.exp((block * np.arange(blocks))[:, None] * rotor)
    heavy = mass * math.exp(c * loss - top)
    total = heavy * np.exp(1j * (s * loss) * np.arange(nodes))
    still, moving = 100 * (1 + c * abs(loss)), 64 * abs(loss) * heavy
    for power, real, mirror in zip(powers, reals, mirrors, strict=True):
        magnitude = np.exp(real - top)
        noise = f.base_noise + abs(power) * f.noise
        if ROUNDING * (float(noise.max()) + s * nodes * float(f.noise.max())) > 0.05:
            raise OverflowError("exponents too large for their rounding errors to be small")
        part = ((coarse * (magnitude * np.exp(1j * (f.turn + power * f.angle)))) @ fine).ravel()[:nodes]
        total += part.conj() if mirror else part
        still += float(magnitude @ noise) + float(magnitude.sum()) * (3 * size + 100 + abs(top) + abs(scale))
        moving += float(magnitude @ f.noise)
    sizes = np.abs(total)
    absolute = 1.1 * ROUNDING * (still + moving * s * np.arange(nodes)) + (f.error + 1e-17) * 1.01 * sizes[0]
    relative = absolute / np.maximum(sizes, 1e-300)
    error = 1.5 * relative  # |ln(1 + η)| ≤ 1.39 |η| for |η| ≤ 1/2
    lost = relative >= 0.5
    if lost.any():  # only the size is known there: any phase lies within ln 3 of the largest value
        total = np.where(lost, sizes + absolute, total)
        error = np.where(lost, math.log(3.0), error)
    log_phi = np.log(total) + top
    return log_phi, error + 16 * ROUNDING * (np.abs(log_phi) + top + 4)


def envelope_moments(pair: Sided, direction: Direction, c: Array) -> Array:
    """Upper bounds on K(c) = ln φ(c) for an ascending vector of c > 0; +inf where the grid would be too long."""
    values = np.full(c.shape, np.inf)
    usable = c.size
    while usable > 0:
        try:
            f = _points(pair, float(c[usable - 1]), shifted=False)
            break
        except OverflowError:
            usable -= 1 + usable // 16
    if usable <= 0:
        return values
    orders = c[:usable]
    scale = _scale(pair, f.step)
    mirrors, atom, loss = _shares(pair, direction)
    powers = [-orders if mirror else orders + 1 for mirror in mirrors]
    exponents = [np.multiply.outer(power, f.odds) + (f.base + scale) for power in powers]
    top = np.maximum.reduce([np.maximum(0.0, orders * loss), *(part.max(axis=1) for part in exponents)])
    mass = atom * np.exp(orders * loss - top)
    rounding = 100 * mass * (1 + orders * abs(loss))
    for part, power in zip(exponents, powers, strict=True):
        part -= top[:, None]
        weights = np.exp(part)
        sums = weights.sum(axis=1)
        mass = mass + sums
        rounding = rounding + weights @ f.base_noise + np.abs(power) * (weights @ f.noise) + sums * (f.odds.size + 100)
    log_phi = np.log(mass) + top
    rounding = rounding / mass + 8 * (np.abs(top) + np.abs(log_phi) + abs(scale)) + 100
    values[:usable] = np.maximum(log_phi + 1.01 * ROUNDING * rounding + f.error + 1e-17, 0.0)  # K ≥ 0
    return values


def envelope_tail(pair: Sided, direction: Direction, c: float, t: float) -> float:
    """An upper bound on ln|φ(c + it')| for every t' ≥ t > 0."""
    variation, log_phi = _variation(pair, direction, c)
    _, atom, loss = _shares(pair, direction)
    # With ρ(t) = min(1, (A + V/t) / φ(c)): |φ(c + it)/φ(c)|² ≤ 1 − (1 − ρ(2^k t)²) / 4^k for every k.
    ratio = np.minimum(1.0, atom * math.exp(c * loss - log_phi) + variation / (t * 2.0**_HALVINGS))
    gain = (1 - ratio) * (1 + ratio) * (1 - 1e-12) / 4.0**_HALVINGS
    return log_phi + 0.5 * math.log1p(-min(float(gain.max()), 1 - 1e-16)) + ROUNDING * (16 * abs(log_phi) + 100)


@functools.lru_cache(maxsize=4096)
def _variation(pair: Sided, direction: Direction, c: float) -> tuple[float, float]:
    """(V / φ(c), K(c)), rounded up: V is what the densities of positive and of mirrored losses, times e^{cL}, vary by.

    The densities are g = N m_h (m₁/m_h)^a / L' with L' = (r₁ − h r_h)/σ², r the posterior shares of the drawn unit. So
    σ² (ln g)' = D with |D'| ≤ 1 + ((|a| + 1)/4 + 8)/σ², which bounds g between the points of a grid; between two points
    where D has one sign and is not near 0, g is monotone. Beyond the last point D < 0.
    """
    log_phi = float(envelope_moments(pair, direction, np.array([c]))[0])
    if not math.isfinite(log_phi):
        raise OverflowError(f"order {c:g} at noise {pair.sigma:g}")
    sigma, near, rate, start = pair.sigma, pair.near, pair.rate, crossing(pair)
    variance = sigma * sigma
    end = max(c + 1, start) + 3 + _REACH * sigma
    spacing = min(sigma, variance) / 16
    count = math.ceil((end - start) / spacing)
    if count > 4 * _MOST_POINTS:
        raise OverflowError(f"{count} points in x")
    spacing = (end - start) / count
    x = start + spacing * np.arange(count + 1)
    _, log_one, _ = log_ratio(MixturePair(sigma, rate), x, 0.0)
    share = np.exp(math.log(rate) + (x - 0.5) / variance - log_one)
    log_near, share_near = np.zeros_like(x), np.zeros_like(x)
    if near:
        _, log_near, _ = log_ratio(MixturePair(sigma / near, rate), x / near, 0.0)
        share_near = np.exp(math.log(rate) + near * (x - near / 2) / variance - log_near)
    slope = share - near * share_near
    bend = (share * (1 - share) - near**2 * share_near * (1 - share_near)) / slope
    total = 0.0
    for power in [-c if mirror else c + 1 for mirror in _shares(pair, direction)[0]]:
        log_g = -x * x / (2 * variance) + log_near + power * (log_one - log_near) + np.log(variance / slope)
        log_g -= math.log(math.sqrt(2 * math.pi) * sigma) + log_phi
        trend = -x + near * share_near + power * slope - bend
        steep = (1 + ((abs(power) + 1) / 4 + 8) / variance) * spacing
        g = np.exp(log_g)
        highest = np.maximum(g[1:], g[:-1]) * math.exp(steep * spacing / (8 * variance))
        least = np.minimum(np.abs(trend[1:]), np.abs(trend[:-1]))
        monotone = (trend[1:] * trend[:-1] > 0) & (least > steep)
        most = np.maximum(np.abs(trend[1:]), np.abs(trend[:-1])) + steep
        cells = np.where(monotone, np.abs(np.diff(g)), highest * most * spacing / variance)
        total += float(g[0] + g[-1] + cells.sum())
    return 1.001 * total, log_phi
