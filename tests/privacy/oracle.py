"""φ(z) = E_P[e^{zL}] and δ(ε) of compositions in mpmath: slow, plain, and independent of the package.

``Step`` describes one mechanism in one direction. Integrals over x are trapezoid sums (40 digits) along a line of
the caller's choice, so that two lines can disagree; δ(ε) is the contour integral of Alghamdi et al. 2023 with a
spacing chosen from the moments, and is summed until the terms are below 1e-30 of the first.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import mpmath as mp

__all__ = ["Step", "chernoff", "delta", "log_phi", "phi"]

DIGITS = 40


@dataclasses.dataclass(frozen=True)
class Step:
    """One use of a mechanism: kind "remove", "add" or "opposite", of a group of ``size``; rate 1 is a Gaussian."""

    sigma: float
    rate: float
    kind: str = "remove"
    size: int = 1

    def ratio(self, x: Any) -> Any:
        """The likelihood ratio of the mixture to N(0, σ²)."""
        v = mp.mpf(self.sigma) ** 2
        if self.size == 1:
            return 1 - mp.mpf(self.rate) + mp.mpf(self.rate) * mp.exp((x - mp.mpf(1) / 2) / v)
        return mp.fsum(b * mp.exp((2 * j * x - j * j) / (2 * v)) for j, b in enumerate(_shares(self.size, self.rate)))

    def log_integrand(self, x: Any, z: Any) -> tuple[Any, Any]:
        """(ln of density times e^{zL}, L) at x."""
        normal = -x * x / (2 * mp.mpf(self.sigma) ** 2)
        forward = mp.log(self.ratio(x))
        if self.kind == "remove":
            return normal + (z + 1) * forward, forward
        if self.kind == "add":
            return normal - z * forward, -forward
        loss = forward - mp.log(self.ratio(-x))
        return normal + forward + z * loss, loss

    def window(self, c: Any) -> tuple[Any, Any]:
        """Where e^{cL} dP lives, with 16 σ to spare."""
        far = 16 * mp.mpf(self.sigma)
        if self.kind == "add":
            return -self.size * c - far, far
        return -far, (self.size * (c + 1) if self.kind == "remove" else 2 * c + 1) + far

    def turn(self) -> int:
        """On which side of the real axis e^{itL} shrinks for t > 0."""
        return -1 if self.kind == "add" else 1


@functools.lru_cache(maxsize=64)
def _shares(size: int, rate: float) -> list[Any]:
    with mp.workdps(DIGITS):
        q = mp.mpf(rate)
        return [mp.binomial(size, j) * q**j * (1 - q) ** (size - j) for j in range(size + 1)]


def phi(step: Step, z: Any, height: float = 0.3, digits: float = 72) -> Any:
    """φ(z) along the line at ``height`` of the way to where the ratio may vanish; 0 is the real line."""
    with mp.workdps(DIGITS):
        return _nodes(step, mp.re(z), height, digits).at(mp.im(z))


def log_phi(step: Step, z: Any, **line: float) -> Any:
    """ln φ(z)."""
    with mp.workdps(DIGITS):
        return mp.log(phi(step, z, **line))


@dataclasses.dataclass
class _Nodes:
    """Σ_j w_j e^{itL_j}: all that is needed for φ(c + it)."""

    weights: list[Any]
    losses: list[Any]
    scale: Any

    def at(self, t: Any) -> Any:
        """φ(c + it)."""
        if t < 0:
            return mp.conj(self.at(-t))
        return self.scale * mp.fsum(w * mp.exp(1j * t * loss) for w, loss in zip(self.weights, self.losses, strict=True))


@functools.lru_cache(maxsize=64)
def _nodes(step: Step, c: Any, height: float, digits: float) -> _Nodes:
    with mp.workdps(DIGITS):
        roof = mp.pi * mp.mpf(step.sigma) ** 2 / step.size
        y = step.turn() * min(2 * mp.mpf(step.sigma), height * roof)
        reach = abs(y)
        if step.kind != "remove":  # negative powers of the ratio grow away from the real line
            reach = min(abs(y), roof / mp.sqrt(1 + c))
            y = step.turn() * reach
        h = 2 * mp.pi * (reach or min(2 * mp.mpf(step.sigma), roof / 4 / mp.sqrt(1 + c))) / digits
        low, high = step.window(c)
        found = [
            step.log_integrand(mp.mpc(j * h, y), c) for j in range(int(mp.floor(low / h)), int(mp.ceil(high / h)) + 1)
        ]
        top = max(mp.re(log_weight) for log_weight, _ in found)
        kept = [(w, loss) for w, loss in found if mp.re(w) > top - 80]
        scale = h / (mp.sqrt(2 * mp.pi) * mp.mpf(step.sigma))
        return _Nodes([mp.exp(w) for w, _ in kept], [loss for _, loss in kept], scale)


# ----------------------------------------------------------------------------------------- compositions


def _total(parts: Sequence[tuple[Step, int]], c: Any) -> Any:
    return mp.fsum(count * mp.log(mp.re(phi(step, mp.mpf(c)))) for step, count in parts)


def chernoff(parts: Sequence[tuple[Step, int]], epsilon: float) -> tuple[Any, Any]:
    """(c, K(c) − cε − ln c(c + 1)) near its minimum: the saddle of the contour integral, by golden section."""
    with mp.workdps(DIGITS):

        def height(log_c: Any) -> Any:
            c = mp.exp(log_c)
            return _total(parts, c) - c * epsilon - mp.log(c * (c + 1))

        low, high = mp.log("0.01"), mp.log(2000)
        golden = (mp.sqrt(5) - 1) / 2
        for _ in range(12):
            left, right = high - golden * (high - low), low + golden * (high - low)
            low, high = (low, right) if height(left) < height(right) else (left, high)
        best = (low + high) / 2
        return mp.exp(best), height(best)


def delta(parts: Sequence[tuple[Step, int]], epsilon: float, c: float | None = None, fineness: float = 1.0) -> Any:
    """δ(ε) of ``parts`` (each step so many times), by the contour integral at abscissa ``c``."""
    with mp.workdps(DIGITS):
        at = mp.mpf(c) if c is not None else chernoff(parts, epsilon)[0]
        period = 200 / at + 40 * mp.sqrt(1 + 1 / at**2 + 2 * _total(parts, at) / at**2)
        spacing = 2 * mp.pi / (fineness * period)
        total, k, quiet = mp.mpf(0), 0, 0
        rotors = [[mp.exp(1j * spacing * loss) for loss in _nodes(step, at, 0.3, 72).losses] for step, _ in parts]
        weights = [list(_nodes(step, at, 0.3, 72).weights) for step, _ in parts]
        while quiet < 8:
            z = mp.mpc(at, k * spacing)
            value = mp.exp(-z * epsilon) / (z * (z + 1))
            for index, (step, count) in enumerate(parts):
                value *= (_nodes(step, at, 0.3, 72).scale * mp.fsum(weights[index])) ** count
                weights[index] = [w * r for w, r in zip(weights[index], rotors[index], strict=True)]
            total += mp.re(value) * (mp.mpf(1) / 2 if k == 0 else 1)
            quiet = quiet + 1 if abs(value) < mp.mpf(10) ** -30 * abs(total) else 0
            k += 1
            if k > 20_000:
                raise ValueError("the integrand decays too slowly for this oracle")
        return total * spacing / mp.pi
