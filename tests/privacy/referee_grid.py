"""The loss on a lattice, composed by FFT: the referee's second opinion, and its only one for a handful of steps.

Each cell's mass is split between its two ends so that both its probability and its e^{−loss} are kept (Doroshenko et
al. 2022, "connect the dots"), which moves ln δ by about T·cell²·c(c + 1)/8 at most. The law is tilted by e^{c·loss}
before the FFT, so that rounding errors are relative to what matters. Three lattices and Richardson's extrapolation
show the error.
"""

from __future__ import annotations

import math

import numpy as np
import scipy.fft

from privacy.referee_plan import NoVerdict, Plan, log_weight, refined, step_loss, tilted, x_of, x_step

__all__ = ["grid", "lattice_estimate"]


def grid(p: Plan, *, points: int = 2**22) -> tuple[float, float]:
    """(ε, error) by FFT on three lattices and Richardson's extrapolation."""
    p = refined(p, _grid(p, points // 8))
    second_order = p.steps * (4 * p.window / points) ** 2 * p.c * (p.c + 1) / 8
    if second_order > 1e-3:
        raise NoVerdict(f"a lattice of {points} points is too coarse")
    coarse, middle, fine = (_grid(p, points // k) for k in (4, 2, 1))
    first, second = middle + (middle - coarse) / 3, fine + (fine - middle) / 3
    return second, abs(second - first) + abs(second) * 1e-14 + (p.steps + 1) * 1e-15 / p.c


def lattice_estimate(p: Plan) -> float:
    """A first idea of ε, good to a few digits."""
    return _grid(p, 2**18)


def _grid(p: Plan, points: int) -> float:
    cell = p.window / points
    sign, sigma, rate = p.sign, p.sigma, p.rate
    losses, _, long_log_phi = tilted(p, x_step(p, 0.0) / 4)
    lowest, highest, log_phi = float(losses.min()), float(losses.max()), float(long_log_phi)
    cells = np.arange(math.floor(lowest / cell), math.ceil(highest / cell))
    pmf = np.zeros(points)
    scale = log_phi + math.log(sigma * math.sqrt(2 * math.pi))
    nodes, node_weights = np.polynomial.legendre.leggauss(4)
    x_low, x_high = sorted(float(x_of(p, loss)) for loss in (losses.min(), losses.max()))
    for start in range(0, len(cells), 2**18):
        index = cells[start : start + 2**18]
        edges = np.append(index, index[-1] + 1) * cell
        x_edges = np.clip(x_of(p, edges), x_low, x_high)
        left, width = x_edges[:-1], np.diff(x_edges)
        pieces = np.maximum(1, np.ceil(np.abs(width) / (0.05 * min(sigma, sigma**2)))).astype(int)
        owner = np.repeat(np.arange(len(index)), pieces)
        piece = np.arange(len(owner)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
        part = width[owner] / pieces[owner]
        begin = left[owner] + piece * part
        for node, weight in zip(nodes, node_weights, strict=True):
            x = begin + part * (node + 1) / 2
            loss = step_loss(sigma, rate, x)
            # P's own density times e^{c·lattice point}, relative to φ(c)
            log_density = log_weight(p, x) - scale
            above = np.clip(sign * loss - index[owner] * cell, 0.0, cell)
            mass = np.abs(part) * weight / 2 * np.exp(log_density)
            upper = -np.expm1(-above) / -math.expm1(-cell)
            to_low = mass * (1 - upper) * np.exp(-p.c * above)
            to_high = mass * upper * np.exp(p.c * (cell - above))
            slots = index[owner] % points
            pmf += np.bincount(slots, to_low, points)
            pmf += np.bincount((slots + 1) % points, to_high, points)
    total = pmf.sum()
    spectrum = scipy.fft.rfft(pmf / total)
    with np.errstate(divide="ignore", invalid="ignore"):
        composed = np.where(spectrum == 0, 0, np.exp(p.steps * np.log(spectrum)))
    composed_law = scipy.fft.irfft(composed, points)
    log_total = p.steps * (log_phi + math.log(total))

    # Unroll the circle around ε, then read ln δ at the lattice points next to ε.
    centre = round(p.epsilon / cell)
    # Further to the left the rounding errors of the FFT drown everything.
    farthest = math.ceil(min(35 / p.c, 600 / (p.c + 1)) / cell)
    offsets = np.arange(max(-(points // 2), -farthest), points // 2)
    law = composed_law[(centre + offsets) % points]
    above_centre = np.cumsum((law * np.exp(-p.c * offsets * cell))[::-1])[::-1]
    raw = np.cumsum((law * np.exp(-(p.c + 1) * offsets * cell))[::-1])[::-1]
    values = above_centre - np.exp(np.minimum(offsets * cell, 700.0)) * raw  # beyond e^700 nothing is left of raw
    with np.errstate(divide="ignore", invalid="ignore"):
        log_delta = np.log(values) + log_total - p.c * centre * cell - math.log(p.delta)
    crossings = np.flatnonzero((log_delta[:-1] > 0) & (log_delta[1:] <= 0))
    crossing = int(crossings[-1]) if len(crossings) else 0
    near = slice(crossing - 2, crossing + 4)
    if crossing < 3 or not np.all(np.isfinite(log_delta[near])):
        raise NoVerdict("ε lies outside of the lattice")
    at = np.arange(-2, 4)
    root, polynomial = 0.5, np.polynomial.Polynomial.fit(at, log_delta[near], 5)
    for _ in range(30):
        root -= polynomial(root) / polynomial.deriv()(root)
    return float((centre + offsets[crossing] + root) * cell)
