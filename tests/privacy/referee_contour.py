"""δ(ε) = 1/(2πi) ∫ φ(z)^T e^{−zε} / (z (z + 1)) dz on Re z = c (Alghamdi et al. 2023), by the trapezoid rule.

Once in 80-bit floats, with both steps halved to see the error, and once with every operation in mpmath.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np

from privacy.referee_plan import FADED, NEGLIGIBLE, PI, NoVerdict, Plan, extent, log_weight, refined, tilted, x_step

__all__ = ["contour", "contour_mpmath", "multiplications"]

DIGITS = 30


def contour(p: Plan, *, affordable: float = 8e6) -> tuple[float, float]:
    """(ε, error) in 80-bit floats; ε is negative where δ(0) < δ. Costs about six times ``affordable`` at most."""
    if multiplications(p) > affordable:
        raise NoVerdict("the contour integrand decays too slowly")
    epsilon, _ = _contour(p, 1.0)
    p = refined(p, epsilon)
    epsilon, _ = _contour(p, 1.0)
    finer, slope = _contour(p, 0.5)
    rounding = p.steps * 1e-17 / slope
    return finer, abs(finer - epsilon) + rounding + abs(finer) * 1e-15 + FADED / slope


def _contour(p: Plan, fineness: float) -> tuple[float, float]:
    spacing = 2 * math.pi / p.window * fineness
    t = np.zeros(0, dtype=np.longdouble)
    log_ratio = np.zeros(0, dtype=np.clongdouble)
    lam = np.longdouble(0)
    chunk = 32
    while True:
        new = (np.arange(len(t), len(t) + chunk)).astype(np.longdouble) * np.longdouble(spacing)
        losses, weights, log_phi = tilted(p, x_step(p, float(new[-1])) * fineness)
        lam = log_phi if not len(t) else lam
        ratio = np.array([np.exp(1j * (value * losses)) @ weights for value in new])
        size = np.abs(ratio)
        with np.errstate(divide="ignore"):
            logs = p.steps * np.log(np.maximum(size, np.longdouble("1e-4000"))) + 1j * (p.steps * np.angle(ratio))
        t, log_ratio = np.concatenate([t, new]), np.concatenate([log_ratio, logs])
        tail = float(logs.real.max()) - math.log1p(float(new[0]) / (p.c + 1)) if len(t) > chunk else 0.0
        if tail < -NEGLIGIBLE:
            break
        chunk = min(2 * chunk, 4096)
    z = np.longdouble(p.c) + 1j * t
    base = p.steps * lam - np.log(np.longdouble(p.delta))
    kernel = np.exp(log_ratio) / (z * (z + 1)) * (np.longdouble(spacing) / PI)
    kernel[0] /= 2

    def log_delta(epsilon: Any) -> tuple[Any, Any]:
        terms = kernel * np.exp(-1j * t * epsilon)
        value, slope = terms.real.sum(), -(z * terms).real.sum()
        return base - np.longdouble(p.c) * epsilon + np.log(value), slope / value

    epsilon, slope = _newton(log_delta, np.longdouble(p.epsilon), 1e-17)
    return float(epsilon), float(slope)


def _newton(log_delta: Callable[[Any], tuple[Any, Any]], start: Any, tolerance: float) -> tuple[Any, Any]:
    """The root of ln δ(ε)/δ and how steep it is there (|d ln δ / dε|)."""
    epsilon = start
    for _ in range(60):
        value, slope = log_delta(epsilon)
        if not (slope < 0 and abs(value) < math.inf):
            raise NoVerdict("δ(ε) does not fall; the estimate of ε is far off")
        move = -value / slope
        epsilon = epsilon + move
        if abs(move) <= tolerance * max(abs(epsilon), 1e-6) * 100:
            return epsilon, -slope
    raise NoVerdict("no convergence in ε")


def _decay(p: Plan) -> float:
    """The frequency beyond which the integrand is negligible (found by doubling, then bisection)."""

    def log_size(t: float) -> float:
        losses, weights, _ = tilted(p, x_step(p, t))
        return p.steps * float(np.log(np.abs(np.exp(1j * (np.longdouble(t) * losses)) @ weights)))

    low, high = 0.0, 4 * math.pi / p.window
    while log_size(high) > -NEGLIGIBLE or log_size(1.37 * high) > -NEGLIGIBLE:
        low, high = high, 1.5 * high
    for _ in range(3):
        middle = (low + high) / 2
        low, high = (middle, high) if log_size(middle) > -NEGLIGIBLE else (low, middle)
    return 1.1 * high


def multiplications(p: Plan) -> float:
    """How many complex multiplications the contour costs in mpmath."""
    limit = _decay(p)
    losses, _, _ = tilted(p, x_step(p, limit))
    return len(losses) * limit * p.window / (2 * math.pi)


def contour_mpmath(p: Plan) -> tuple[float, float]:
    """(ε, error) by the contour integral, every operation in mpmath with 30 digits."""
    limit = _decay(p)
    with mpmath.workdps(DIGITS + 10):
        mpf = mpmath.mpf
        sigma, rate, c, power = mpf(p.sigma), mpf(p.rate), mpf(p.c), mpf(p.power)
        step = mpf(x_step(p, limit))
        spacing = 2 * mpmath.pi / mpf(p.window)
        low, high = extent(p).low, extent(p).high
        fade, width = p.fade
        top = float(np.max(log_weight(p, np.linspace(low, high, 4001))))
        weights, rotors = [], []
        for k in range(math.floor(low / float(step)), math.ceil(high / float(step)) + 1):
            x = k * step
            loss = mpmath.log1p(rate * mpmath.expm1((2 * x - 1) / (2 * sigma * sigma)))
            log = power * loss - x * x / (2 * sigma * sigma)
            if not math.isinf(fade):
                log += mpmath.log(mpmath.ncdf((fade - x) / mpf(width)))
            if log > top - 1.5 * NEGLIGIBLE:
                weights.append(mpmath.exp(log - top))
                rotors.append(mpmath.expj(p.sign * loss * spacing))
        total = mpmath.fsum(weights)
        log_phi = top + mpmath.log(total * step / sigma) - mpmath.log(2 * mpmath.pi) / 2
        terms = [w / total for w in weights]
        z, kernel = [], []
        for k in range(math.ceil(limit / float(spacing)) + 1):
            ratio = mpmath.fsum(terms) if k else mpf(1)
            node = mpmath.mpc(c, k * spacing)
            kernel.append(ratio**p.steps / (node * (node + 1)) * spacing / mpmath.pi / (1 if k else 2))
            z.append(node)
            terms = [term * rotor for term, rotor in zip(terms, rotors, strict=True)]
        base = p.steps * log_phi - mpmath.log(mpf(p.delta))

        def log_delta(epsilon: Any) -> tuple[Any, Any]:
            shifted = [k * mpmath.expj(-node.imag * epsilon) for k, node in zip(kernel, z, strict=True)]
            value = mpmath.fsum(term.real for term in shifted)
            slope = -mpmath.fsum((node * term).real for node, term in zip(z, shifted, strict=True))
            return base - c * epsilon + mpmath.log(value), slope / value

        epsilon, slope = _newton(log_delta, mpf(p.epsilon), 1e-24)
        return float(epsilon), float(abs(epsilon)) * 2**-52 + FADED / float(slope)
