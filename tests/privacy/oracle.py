"""φ(z) = E_P[e^{zL}] and δ(ε) of compositions: slow, plain, and independent of the package.

``Step`` describes one mechanism in one direction. Integrals over x are trapezoid sums in mpmath (40 digits) on a line
of the caller's choice, so that two lines can disagree; δ(ε) is the contour integral of Alghamdi et al. 2023, in
mpmath (:func:`delta_mp`) or, a thousand times faster, in numpy's long doubles (:func:`delta`).
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any

import mpmath as mp
import numpy as np

__all__ = ["Step", "delta", "delta_mp", "log_phi", "phi"]

DIGITS = 40
PI = np.longdouble("3.14159265358979323846264338327950288")


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
        turned = (w * mp.exp(1j * t * loss) for w, loss in zip(self.weights, self.losses, strict=True))
        return self.scale * mp.fsum(turned)


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


def delta_mp(parts: Sequence[tuple[Step, int]], epsilon: float, c: float) -> Any:
    """δ(ε) of ``parts`` (each step so many times) by the contour integral at abscissa ``c``, to 20 digits."""
    with mp.workdps(DIGITS):
        at = mp.mpf(c)
        moment = mp.fsum(count * mp.log(mp.re(phi(step, at))) for step, count in parts)
        spacing = 2 * mp.pi / (90 / at + 24 * mp.sqrt(2 * moment / (at * (at + 1))))
        total, k, quiet = mp.mpf(0), 0, 0
        nodes = [_nodes(step, at, 0.3, 72.0) for step, _ in parts]
        rotors = [[mp.exp(1j * spacing * loss) for loss in node.losses] for node in nodes]
        weights = [list(node.weights) for node in nodes]
        while quiet < 8:
            z = mp.mpc(at, k * spacing)
            value = mp.exp(-z * epsilon) / (z * (z + 1))
            for index, (_, count) in enumerate(parts):
                value *= (nodes[index].scale * mp.fsum(weights[index])) ** count
                weights[index] = [w * r for w, r in zip(weights[index], rotors[index], strict=True)]
            total += mp.re(value) * (mp.mpf(1) / 2 if k == 0 else 1)
            quiet = quiet + 1 if abs(value) < mp.mpf(10) ** -24 * abs(total) else 0
            k += 1
            if k > 5_000:
                raise ValueError("the integrand decays too slowly for this oracle")
        return total * spacing / mp.pi


def delta(parts: Sequence[tuple[Step, int]], epsilon: float, c: float) -> float:
    """The same in long doubles: 12 digits or more."""
    lines = [_long_nodes(step, c) for step, _ in parts]
    moment = float(sum(n * (np.log(line[0].sum()).real + line[2]) for (_, n), line in zip(parts, lines, strict=True)))
    spacing = np.longdouble(2 * math.pi / (70 / c + 20 * math.sqrt(2 * moment / (c * (c + 1)))))
    total, first, chunk = np.longdouble(0), 0, 64
    while True:
        t = spacing * np.arange(first, first + chunk).astype(np.longdouble)
        z = np.longdouble(c) + 1j * t
        exponent = -z * np.longdouble(epsilon) - np.log(z * (z + 1))
        for (_, count), (weights, losses, top) in zip(parts, lines, strict=True):
            exponent = exponent + count * (np.log(np.exp(1j * np.outer(t, losses)) @ weights) + top)
        values = np.exp(exponent).real
        if first == 0:
            values[0] /= 2
        total += values.sum()
        if np.exp(exponent.real).max() * chunk < 1e-19 * total:
            return float(total * spacing / PI)
        first, chunk = first + chunk, min(2 * chunk, 2048)
        if first > 400_000:
            raise ValueError("the integrand decays too slowly for this oracle")


@functools.lru_cache(maxsize=64)
def _long_nodes(step: Step, c: float) -> tuple[Any, Any, Any]:
    """(weights, losses, ln of their scale) of φ(c + it) along a shifted line."""
    long = np.longdouble
    sigma, rate = long(step.sigma), long(step.rate)
    roof = math.pi * step.sigma**2 / step.size
    height = min(2 * step.sigma, 0.28 * roof)
    if step.kind != "remove":
        height = min(height, 0.9 * roof / math.sqrt(1 + c))
    h = 2 * math.pi * height / 48
    low, high = (float(end) for end in step.window(mp.mpf(c)))
    x = long(h) * np.arange(math.floor(low / h), math.ceil(high / h) + 1).astype(long) + 1j * long(step.turn() * height)

    def log_ratio(at: Any) -> Any:
        if step.size == 1:
            far = (at - long(0.5)) / sigma**2
            large = far + np.log(rate + (1 - rate) * np.exp(-far))
            return np.where(far.real < 30, np.log(1 - rate + rate * np.exp(far)), large)
        terms = [
            np.log(long(mp.nstr(b, 25))) + (2 * j * at - j * j) / (2 * sigma**2)
            for j, b in enumerate(_shares(step.size, step.rate))
            if b
        ]
        top = np.max([term.real for term in terms], axis=0)
        return top + np.log(sum(np.exp(term - top) for term in terms))

    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        forward = log_ratio(x)
        normal = -x * x / (2 * sigma**2)
        if step.kind == "remove":
            exponent, loss = normal + (long(c) + 1) * forward, forward
        elif step.kind == "add":
            exponent, loss = normal - long(c) * forward, -forward
        else:
            loss = forward - log_ratio(-x)
            exponent = normal + forward + long(c) * loss
    top = float(exponent.real.max())
    keep = exponent.real > top - 55
    scale = np.log(long(h) / sigma) - np.log(2 * PI) / 2
    return np.exp(exponent[keep] - long(top)), loss[keep], top + scale
