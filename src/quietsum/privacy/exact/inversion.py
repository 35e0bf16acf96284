"""δ(ε) from sampled log moments: one contour, its trapezoid sum, and the interval that certainly holds the truth.

Along Re z = c with nodes t_k = k·s the sum of e^{K(z) − zε} / (z (z + 1)) is Σ_m δ(ε + mp) e^{cmp}, p = 2π/s. Three
errors are bounded (docs/explanation/exact.md): the nodes left out, by a bound on |φ| beyond the last one; the terms
m ≠ 0, which are ≥ 0 and so only widen the lower side; and rounding. All is relative to e^{K(c) − cε}.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import final

import numpy as np

from quietsum.privacy.exact.contour import Spectrum
from quietsum.privacy.exact.mixtures import ROUNDING, Array, Direction
from quietsum.privacy.exact.moments import STEPS

__all__ = ["ContourLine", "Inversion", "log_weight"]


@final
@dataclasses.dataclass(frozen=True, slots=True)
class ContourLine:
    """One contour: Re z = c, nodes k·c/density for k < nodes."""

    direction: Direction
    c: float
    density: int
    nodes: int

    @property
    def s(self) -> float:
        """The distance of the nodes."""
        return self.c / self.density


def log_weight(c: Array) -> Array:
    """ln((c + 1)^{c + 1} / c^c): Chernoff's bound is δ(ε) ≤ e^{K(c) − cε} divided by this weight."""
    return np.asarray((c + 1) * np.log1p(c) - c * np.log(c))


@functools.lru_cache(maxsize=256)
def _frame(c: float, density: int, nodes: int) -> tuple[Array, Array, Array, Array]:
    """t_k, z_k, the trapezoid weights (s/π)/(z(z+1)), halved at k = 0, and their sizes."""
    s = c / density
    t = s * np.arange(nodes)
    z = c + 1j * t
    weights = (s / math.pi) / (z * (z + 1))
    weights[0] /= 2
    return t, z, weights, np.abs(weights)


@final
class Inversion:
    """δ(ε) along one line. ``tail`` bounds ln|φ| beyond the last node, ``above`` bounds K at c · STEPS."""

    def __init__(self, line: ContourLine, total: Spectrum, tail: float, above: Array) -> None:
        self.line = line
        self._t, self._z, self._weights, self._sizes = _frame(line.c, line.density, line.nodes)
        self._centre = float(total.log_phi[0].real)
        self._values = total.log_phi - self._centre
        # Rounding at a node: of its logarithm, of the exponential, of the weight (30 together), of the sum.
        self._errors = total.error + ROUNDING * (4 * np.abs(self._values) + line.nodes + 64)
        # Σ_{k ≥ N} 1/(ks)² ≤ 1/(s² (N − 1))
        self._left_out = math.exp(min(700.0, tail - self._centre)) / (math.pi * line.s * (line.nodes - 1))
        c = line.c * STEPS
        self._aliases = c, above - log_weight(c)

    def log_delta(self, epsilon: float) -> tuple[float, float]:
        """(ln of the trapezoid sum, its derivative in ε)."""
        value, slope = self._sum(epsilon)
        return (math.log(value) + self._exponent(epsilon) if value > 0 else -math.inf), slope

    def _exponent(self, epsilon: float) -> float:
        return self._centre - self.line.c * epsilon

    def _sum(self, epsilon: float) -> tuple[float, float]:
        terms = np.exp(self._values - 1j * (self._t * epsilon)) * self._weights
        value = float(terms.real.sum())
        return value, -float((terms * self._z).real.sum()) / value if value > 0 else math.nan

    def bounds(self, epsilon: float) -> tuple[float, float]:
        """(lower, upper) bound on ln δ(ε)."""
        value, _ = self._sum(epsilon)
        up, down = self.errors(epsilon)
        exponent = self._exponent(epsilon)
        room = ROUNDING * (8 * (abs(self._centre) + self.line.c * abs(epsilon)) + 32)
        most, least = max(value + up, 5e-324), value - down - 4 * ROUNDING * (value + down)
        log_most = math.log(most)
        upper = log_most + exponent + room + 8 * ROUNDING * abs(log_most)
        if least <= 0:
            return -math.inf, upper
        log_least = math.log(least)
        return log_least + exponent - room - 8 * ROUNDING * abs(log_least), upper

    def errors(self, epsilon: float) -> tuple[float, float]:
        """(how far δ may lie above the sum, how far below), as shares of e^{K(c) − cε}."""
        wobble = self._errors + (8 * ROUNDING * abs(epsilon)) * self._t
        if wobble.max() <= 1:
            rounding = float((np.exp(self._values.real) * self._sizes) @ np.expm1(wobble))
        else:
            exponent = self._values.real + np.where(wobble <= 1, np.log(np.expm1(np.minimum(wobble, 1.0))), wobble)
            rounding = float(np.exp(np.minimum(exponent, 700.0)) @ self._sizes)
        up = 1.01 * (rounding + self._left_out)
        return up, up + 1.01 * math.exp(min(700.0, self._log_aliases(epsilon) - self._exponent(epsilon)))

    def _log_aliases(self, epsilon: float) -> float:
        """A bound on ln Σ_{m≠0} δ(ε + mp) e^{cmp}: e^{−cp} per period below, Chernoff at higher abscissae above."""
        line = self.line
        period = 2 * math.pi / line.s
        below = -line.c * period - math.log(-math.expm1(-line.c * period))
        c, log_bound = self._aliases
        gain = (c - line.c) * period
        above = log_bound - c * epsilon - gain - np.log(-np.expm1(-gain))
        return float(np.logaddexp(below, above.min()))

    def root(self, log_delta: float, ceiling: float) -> float | None:
        """The ε < ``ceiling`` at which the sum equals δ: Newton's method, kept inside a bracket."""
        c = self.line.c
        curvature = max(0.0, -2 * float(self._values[1].real)) / self.line.s**2 + 1 / c**2 + 1 / (c + 1) ** 2
        epsilon = (self._centre - log_delta - math.log(c * (c + 1)) - 0.5 * math.log(2 * math.pi * curvature)) / c
        width = math.sqrt(curvature)
        low, high = -math.inf, ceiling + 1e-9 * (abs(ceiling) + 1 / c)
        if not epsilon < high:
            epsilon = high - width / 4
        for _ in range(64):
            value, slope = self.log_delta(epsilon)
            if value > log_delta:
                low = epsilon
            else:
                high = epsilon
            if not math.isfinite(value) or not slope < 0:
                proposal = -math.inf
            else:
                proposal = epsilon + (value - log_delta) / -slope
                if abs(proposal - epsilon) <= 1e-13 * (abs(epsilon) + 1 / c):
                    return proposal
            if not low < proposal < high:
                proposal = (low + high) / 2 if math.isfinite(low) else high - width
                width *= 2
            epsilon = proposal
            if high - low <= 1e-14 * (abs(high) + 1 / c):
                break
        return (low + high) / 2 if math.isfinite(low) else None  # rounding noise; bracket() decides whether it will do

    def bracket(self, centre: float, log_delta: float) -> tuple[float, float] | None:
        """(lower, upper) ε around the root, each verified by evaluation; None when the errors are too large.

        δ(ε) falls, so ln δ(upper) ≤ ln δ and ln δ(lower) ≥ ln δ are all there is to verify.
        """
        value, slope = self._sum(centre)
        up, down = self.errors(centre)
        if not up + down <= min(0.2, -slope * 2e-4 * max(1.0, centre)) * value:
            return None
        rounding = 4e-16 * (abs(centre) + 1 / self.line.c)
        rise, fall = 1.5 * up / value / -slope + rounding, 1.5 * down / value / -slope + rounding
        margin = 16 * ROUNDING * abs(log_delta)
        for _ in range(6):
            high_ok = self.bounds(centre + rise)[1] <= log_delta - margin
            low_ok = self.bounds(centre - fall)[0] >= log_delta + margin
            if high_ok and low_ok:
                return centre - fall, centre + rise
            rise, fall = (rise if high_ok else 4 * rise), (fall if low_ok else 4 * fall)
        return None
