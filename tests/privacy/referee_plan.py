"""One direction of one setting, exponentially tilted: what the referee's two methods start from.

Over x ~ N(0, σ²) the moment E_P[e^{cL}] is E e^{kℓ(x)}, with k = c + 1 for "remove" and k = −c for "add". Everything
here only decides how much work is done where; the methods check by refinement that it was enough.

Far outcomes are faded out by a factor Φ((X − x)/w), which lowers δ by at most T·P(x + w·N(0,1) > X); X is put where
that is 1e-12 δ. Without it a tiny bump of huge losses spoils the exponential tilt for small rates.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.special

__all__ = ["FADED", "NEGLIGIBLE", "PI", "Extent", "NoVerdict", "Plan", "plan"]

FADED = 1e-12  # the part of δ that fading out far outcomes may cost
NEGLIGIBLE = 45.0  # e^-45 = 3e-20: what is dropped anywhere, relative to what is kept
PI = np.longdouble("3.14159265358979323846264338327950288")


class NoVerdict(Exception):
    """The referee cannot vouch for a number at an affordable cost; it gives none."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """One direction of one setting, with the tilt ``c`` and how wide a window of losses matters under it."""

    sigma: float
    rate: float
    steps: int
    delta: float
    direction: str
    c: float
    epsilon: float  # an estimate; from :func:`plan` a Rényi upper bound
    window: float

    @property
    def sign(self) -> int:
        """The loss is sign·ℓ(x)."""
        return 1 if self.direction == "remove" else -1

    @property
    def fade(self) -> tuple[float, float]:
        """(X, w) of the fade-out Φ((X − x)/w); "add" has bounded losses and needs none."""
        if self.direction == "add":
            return math.inf, 1.0
        width = self.sigma / 16
        log_leak = math.log(FADED * self.delta / self.steps)
        tail = -float(scipy.special.ndtri_exp(log_leak))
        return 1 + tail * math.hypot(self.sigma, width), width

    @property
    def power(self) -> float:
        """k in φ(c) = E e^{kℓ(x)} over x ~ N(0, σ²)."""
        return self.c + 1 if self.direction == "remove" else -self.c


def step_loss(sigma: Any, rate: Any, x: Any) -> Any:
    """ℓ(x), accurate where it is tiny and finite where its exponential is not."""
    u = (2 * x - 1) / (2 * sigma * sigma)
    near = np.log1p(rate * np.expm1(np.minimum(u, 30)))
    far = u + np.log(rate) + np.log1p((1 - rate) / rate * np.exp(-np.maximum(u, 30)))
    return np.where(u < 30, near, far)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Extent:
    """Where the tilted integrand lives, how fast its phase turns there and how sharp its features are."""

    low: float
    high: float
    steepest: float  # the largest ℓ'(x)
    sharpest: float  # the highest frequency of the weight itself


@functools.lru_cache(maxsize=256)
def extent(p: Plan) -> Extent:
    fade, width = p.fade
    low, high = min(0.0, p.power) - 14 * p.sigma, max(0.0, p.power) + 14 * p.sigma
    high = min(high, fade + 14 * width + max(0.0, p.power) * (width / p.sigma) ** 2)
    for margin in (4 * NEGLIGIBLE, 2 * NEGLIGIBLE, NEGLIGIBLE):
        x = np.linspace(low, high, 2001)
        logs = log_weight(p, x)
        kept = np.flatnonzero(logs > logs.max() - margin)
        low, high = float(x[max(0, kept[0] - 1)]), float(x[min(2000, kept[-1] + 1)])
    with np.errstate(over="ignore"):
        posterior = 1 / (1 + (1 - p.rate) / p.rate * np.exp(-(2 * x[kept] - 1) / (2 * p.sigma**2)))
    curvature = 1 / p.sigma**2 + max(0.0, -p.power) * float(np.max(posterior * (1 - posterior))) / p.sigma**4
    faded = 10 / width if high > fade - 8 * width else 0.0
    return Extent(
        low=low,
        high=high,
        steepest=float(np.max(posterior)) / p.sigma**2,
        sharpest=max(14 * math.sqrt(curvature) + faded, 10 * math.pi / p.sigma**2),
    )


def log_weight(p: Plan, x: Any) -> Any:
    """k·ℓ(x) − x²/2σ², faded: the tilted density up to a constant."""
    fade, width = p.fade
    power, sigma, rate = (x.dtype.type(value) for value in (p.power, p.sigma, p.rate))
    faded = 0.0 if math.isinf(fade) else scipy.special.log_ndtr(((fade - x) / width).astype(float))
    return power * step_loss(sigma, rate, x) - x * x / (2 * sigma * sigma) + faded


def x_step(p: Plan, t: float) -> float:
    """A trapezoid step in x at which aliasing is negligible for frequencies up to ``t``."""
    here = extent(p)
    return 2 * math.pi / (abs(t) * here.steepest + here.sharpest)


def tilted(p: Plan, step_in_x: float) -> tuple[Any, Any, Any]:
    """Nodes: losses, their weights under the tilted law (they sum to 1), and Λ(c) = ln φ(c), in 80-bit floats."""
    sigma, rate, step = np.longdouble(p.sigma), np.longdouble(p.rate), np.longdouble(step_in_x)
    low, high = extent(p).low, extent(p).high
    if (high - low) / step_in_x > 5e6:
        raise NoVerdict("too many nodes in x")
    x = np.arange(math.floor(low / step_in_x), math.ceil(high / step_in_x) + 1).astype(np.longdouble) * step
    loss = step_loss(sigma, rate, x)
    logs = log_weight(p, x)
    top = logs.max()
    keep = logs > top - NEGLIGIBLE
    weight = np.exp(logs[keep] - top)
    total = weight.sum()
    log_phi = top + np.log(total * step / sigma) - np.log(2 * PI) / 2
    return p.sign * loss[keep], weight / total, log_phi


def log_phi_at(p: Plan, c: float) -> float:
    """Λ(c) in double precision, for planning only."""
    at = dataclasses.replace(p, c=c)
    return float(tilted(at, x_step(at, 0.0))[2])


def plan(sigma: float, rate: float, steps: int, delta: float, direction: str) -> Plan:
    """The tilt that gives the best Rényi bound on ε, and that bound. Neither decides correctness, only speed."""
    p = Plan(
        sigma=sigma, rate=rate, steps=steps, delta=delta, direction=direction, c=1.0, epsilon=math.inf, window=math.inf
    )

    def bound(log_c: float) -> float:
        c = math.exp(log_c)
        try:
            lam = steps * log_phi_at(p, c)
        except NoVerdict:
            return math.inf
        return (lam - math.log(delta) + c * math.log(c) - (c + 1) * math.log1p(c)) / c

    best = _minimise(bound, math.log(1e-3), math.log(1e6))
    return refined(dataclasses.replace(p, c=math.exp(best)), bound(best))


def refined(p: Plan, epsilon: float) -> Plan:
    """The saddle point for this ε, and the window outside of which less than e^-45 of the tilted law lies."""

    def height(log_c: float) -> float:
        c = math.exp(log_c)
        try:
            return p.steps * log_phi_at(p, c) - c * epsilon - math.log(c) - math.log1p(c)
        except NoVerdict:
            return math.inf

    c = math.exp(_minimise(height, math.log(p.c) - 3, math.log(p.c) + 3))
    base = p.steps * log_phi_at(p, c)

    def reach(log_theta: float, side: int) -> float:
        theta = math.exp(log_theta)
        if side < 0 and theta >= c:
            return math.inf
        try:
            growth = p.steps * log_phi_at(p, c + side * theta) - base - side * theta * epsilon
        except NoVerdict:
            return math.inf
        return (growth + NEGLIGIBLE) / theta

    scale = math.log(c)
    up = min(reach(scale + k / 4, 1) for k in range(-16, 17))
    down = min(reach(scale + k / 4, -1) for k in range(-24, 0))
    down = min(down, (NEGLIGIBLE - math.log(p.delta)) / c)
    return dataclasses.replace(p, c=c, epsilon=float(epsilon), window=float(2 * max(up, down)))


def _minimise(curve: Callable[[float], float], low: float, high: float) -> float:
    points = np.linspace(low, high, 25)
    values = [math.inf] * len(points)
    for k, point in enumerate(points):
        values[k] = curve(float(point))
        if k > 6 and min(values[k - 5 : k + 1]) > min(values):
            break
    best = int(np.argmin(values))
    low, high = float(points[max(0, best - 1)]), float(points[min(24, best + 1)])
    golden = (math.sqrt(5) - 1) / 2
    for _ in range(20):
        left, right = high - golden * (high - low), low + golden * (high - low)
        low, high = (low, right) if curve(left) < curve(right) else (left, high)
    return (low + high) / 2


def x_of(p: Plan, signed_loss: Any) -> Any:
    """The x at which the loss is taken; −∞ where no x has so small an ℓ."""
    inside = 1 + np.expm1(np.minimum(p.sign * signed_loss, 600.0)) / p.rate
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(inside > 0, p.sigma**2 * np.log(np.maximum(inside, 1e-300)) + 0.5, -np.inf)
