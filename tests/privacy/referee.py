"""The true ε of a Poisson-sampled Gaussian, found slowly and twice, to judge every accountant by.

With ℓ(x) = ln(1 − q + q e^{(2x−1)/2σ²}) the losses of one step are ℓ(x) for x ~ (1 − q) N(0, σ²) + q N(1, σ²)
("remove") and −ℓ(x) for x ~ N(0, σ²) ("add"). The truth is the larger ε of the two directions. Nothing here is
shared with the package, and no two of the methods share their mathematics:

* one step, and rate 1: closed forms in mpmath (Zhu, Dong, Wang 2022, Thm 11; Balle, Wang 2018, Thm 8);
* :func:`contour`: δ(ε) = 1/(2πi) ∫ φ(z)^T e^{−zε} / (z (z + 1)) dz (Alghamdi et al. 2023) by the trapezoid rule,
  in mpmath with 30 digits or in 80-bit floats, again with both steps halved to see the error;
* :func:`grid`: the exponentially tilted loss on a lattice, mass and e^{−loss} kept in every cell (Doroshenko et al.
  2022), composed by FFT on three lattices; Richardson's extrapolation shows the error, which is of second order.

In both, far outcomes are faded out by a factor Φ((X − x)/w), which lowers δ by at most T·P(x + w·N(0,1) > X); X is put
where that is 1e-12 δ. Without it a tiny bump of huge losses spoils the exponential tilt for small rates.

:func:`true_epsilon` runs what is affordable, takes the disagreement into ``error`` and refuses above 1e-6 relative.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np
import scipy.fft
import scipy.special

__all__ = ["NoVerdict", "Truth", "contour", "grid", "plan", "true_epsilon"]

DIGITS = 30
FADED = 1e-12  # the part of δ that fading out far outcomes may cost
NEGLIGIBLE = 45.0  # e^-45 = 3e-20: what is dropped anywhere, relative to what is kept
PI = np.longdouble("3.14159265358979323846264338327950288")


class NoVerdict(Exception):
    """The referee cannot vouch for a number at an affordable cost; it gives none."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Truth:
    """The true ε, how far it may be off, how it was found, and the direction that attains it."""

    epsilon: float
    error: float
    method: str
    direction: str


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
        return _power(self.direction, self.c)


def true_epsilon(
    sigma: float, rate: float, steps: int, delta: float, *, cost: float = 4e6, second_opinion: bool = True
) -> Truth:
    """The true ε with its error; raises :class:`NoVerdict` rather than return a doubtful number.

    ``cost`` is how many mpmath multiplications are affordable; above it 80-bit floats take over.
    """
    if rate == 1 or steps == 1:
        return _closed_form(sigma, rate, steps, delta)
    remove = _one_direction(plan(sigma, rate, steps, delta, "remove"), cost, second_opinion)
    other = plan(sigma, rate, steps, delta, "add")
    if other.epsilon < remove.epsilon - remove.error or other.epsilon <= 0:  # its upper bound is already smaller
        return remove
    add = _one_direction(other, cost, second_opinion)
    return max(remove, add, key=lambda truth: truth.epsilon)


def _one_direction(first: Plan, cost: float, second_opinion: bool) -> Truth:
    found: list[tuple[float, float, str]] = []
    try:
        epsilon, error = contour(first)
        found.append((epsilon, error, "contour, 80-bit"))
        precise = _refined(first, epsilon)
        if _nodes(precise) <= cost:
            found.insert(0, (*contour_mpmath(precise), "contour, mpmath"))
    except NoVerdict:
        pass
    if second_opinion or not found:
        try:
            found.append((*grid(_refined(first, found[0][0]) if found else first), "grid"))
        except NoVerdict:
            if not found:
                raise
    epsilon, _, method = found[0]
    error = max(abs(other - epsilon) for other, _, _ in found)
    if len(found) == 1 or error == 0:
        error = max(error, min(own for _, own, _ in found))
    elif "mpmath" not in method:
        error = max(error, found[0][1])
    method = " and ".join(name for _, _, name in found)
    if epsilon <= 0:
        # δ(0) ≤ δ: nothing is spent, as long as the root is clearly not positive.
        if error > abs(epsilon) > 0 and error > 1e-9:
            raise NoVerdict("the sign of epsilon is in doubt")
        return Truth(epsilon=0.0, error=0.0, method=method, direction=first.direction)
    if not error <= 1e-6 * epsilon:
        raise NoVerdict(f"error {error:.1e} at epsilon {epsilon:.6g} by {method}")
    return Truth(epsilon=epsilon, error=error, method=method, direction=first.direction)


# --------------------------------------------------------------------------------------- closed forms


def _closed_form(sigma: float, rate: float, steps: int, delta: float) -> Truth:
    with mpmath.workdps(DIGITS + 20):
        s, q, target = mpmath.mpf(sigma) / mpmath.sqrt(steps if rate == 1 else 1), mpmath.mpf(rate), mpmath.mpf(delta)

        def gaussian(epsilon: Any) -> Any:
            return mpmath.ncdf(1 / (2 * s) - epsilon * s) - mpmath.exp(epsilon) * mpmath.ncdf(-1 / (2 * s) - epsilon * s)

        def remove(epsilon: Any) -> Any:
            return q * gaussian(mpmath.log1p(mpmath.expm1(epsilon) / q))

        def add(epsilon: Any) -> Any:
            inside = 1 + mpmath.expm1(-epsilon) / q
            if inside <= 0:
                return mpmath.mpf(0)
            x = s * s * mpmath.log(inside) + mpmath.mpf(1) / 2
            mixture = (1 - q) * mpmath.ncdf(x / s) + q * mpmath.ncdf((x - 1) / s)
            return mpmath.ncdf(x / s) - mpmath.exp(epsilon) * mixture

        best_epsilon, direction = _mp_root(remove, target), "remove"
        if rate < 1 and (added := _mp_root(add, target)) > best_epsilon:
            best_epsilon, direction = added, "add"
        name = "analytic Gaussian, mpmath" if rate == 1 else "one step, mpmath"
        epsilon = float(best_epsilon)
        return Truth(epsilon=epsilon, error=epsilon * 2**-52, method=name, direction=direction)


def _mp_root(curve: Callable[[Any], Any], target: Any) -> Any:
    """Where the falling ``curve`` meets ``target``, or 0 where it starts below: bisection, nothing clever."""
    low, high = mpmath.mpf(0), mpmath.mpf(1) / 1024
    if curve(low) <= target:
        return low
    while curve(high) > target:
        low, high = high, 2 * high
    while high - low > high * mpmath.mpf(10) ** -(DIGITS - 5):
        middle = (low + high) / 2
        low, high = (middle, high) if curve(middle) > target else (low, middle)
    return (low + high) / 2


# ------------------------------------------------------------------------------------------- planning


def _power(direction: str, c: float) -> float:
    return c + 1 if direction == "remove" else -c


def _loss(sigma: Any, rate: Any, x: Any) -> Any:
    """ℓ(x), accurate where it is tiny and finite where its exponential is not."""
    u = (2 * x - 1) / (2 * sigma * sigma)
    small = np.minimum(u, 30)
    return np.where(
        u < 30, np.log1p(rate * np.expm1(small)), u + np.log(rate) + np.log1p((1 - rate) / rate * np.exp(-np.maximum(u, 30)))
    )


def _log_fade(p: Plan, x: Any) -> Any:
    fade, width = p.fade
    return 0.0 if math.isinf(fade) else scipy.special.log_ndtr(((fade - x) / width).astype(float))


def _x_step(p: Plan, t: float) -> float:
    """A trapezoid step in x at which aliasing is below 1e-20 for frequencies up to ``t``."""
    narrow = math.sqrt(1 / p.sigma**2 + max(0.0, -p.power) / (4 * p.sigma**4))
    fade, width = p.fade
    rough = 10 / width if p.power + 14 * p.sigma > fade - 14 * width else 0.0  # only where the fade-out is felt
    slope = _steepest(p) if t else 0.0
    return min(2 * math.pi / (abs(t) * slope + 14 * narrow + rough), 0.2 * p.sigma**2)


@functools.lru_cache(maxsize=64)
def _steepest(p: Plan) -> float:
    """The largest ℓ'(x) among the nodes that matter."""
    losses, _, _ = _tilted(p, _x_step(p, 0.0))
    x = float(np.max(_x_of(p, losses)))
    return 1 / (1 + (1 - p.rate) / p.rate * math.exp(min(700.0, -(2 * x - 1) / (2 * p.sigma**2)))) / p.sigma**2


def _x_range(p: Plan) -> tuple[float, float]:
    low, high = min(0.0, p.power) - 14 * p.sigma, max(0.0, p.power) + 14 * p.sigma
    fade, width = p.fade
    return low, min(high, fade + 14 * width + max(0.0, p.power) * (width / p.sigma) ** 2)


def _tilted(p: Plan, x_step: float) -> tuple[Any, Any, Any]:
    """Nodes: losses, their weights under the tilted law (they sum to 1), and Λ(c) = ln φ(c), in 80-bit floats."""
    sigma, rate, step = np.longdouble(p.sigma), np.longdouble(p.rate), np.longdouble(x_step)
    low, high = _x_range(p)
    if (high - low) / x_step > 5e6:
        raise NoVerdict("too many nodes in x")
    x = np.arange(math.floor(low / x_step), math.ceil(high / x_step) + 1).astype(np.longdouble) * step
    loss = _loss(sigma, rate, x)
    log_weight = np.longdouble(p.power) * loss - x * x / (2 * sigma * sigma) + _log_fade(p, x)
    top = log_weight.max()
    keep = log_weight > top - NEGLIGIBLE
    weight = np.exp(log_weight[keep] - top)
    total = weight.sum()
    log_phi = top + np.log(total * step / sigma) - np.log(2 * PI) / 2
    return p.sign * loss[keep], weight / total, log_phi


def _log_phi(p: Plan, c: float) -> float:
    """Λ(c) in double precision, for planning only."""
    at = dataclasses.replace(p, c=c)
    return float(_tilted(at, _x_step(at, 0.0))[2])


def plan(sigma: float, rate: float, steps: int, delta: float, direction: str) -> Plan:
    """The tilt that gives the best Rényi bound on ε, and that bound. Neither decides correctness, only speed."""
    p = Plan(
        sigma=sigma, rate=rate, steps=steps, delta=delta, direction=direction, c=1.0, epsilon=math.inf, window=math.inf
    )

    def bound(log_c: float) -> float:
        c = math.exp(log_c)
        try:
            lam = steps * _log_phi(p, c)
        except NoVerdict:
            return math.inf
        return (lam - math.log(delta) + c * math.log(c) - (c + 1) * math.log1p(c)) / c

    best = _minimise(bound, math.log(1e-3), math.log(1e6))
    return _refined(dataclasses.replace(p, c=math.exp(best)), bound(best))


def _refined(p: Plan, epsilon: float) -> Plan:
    """The saddle point for this ε, and the window outside of which less than e^-45 of the tilted law lies."""

    def height(log_c: float) -> float:
        c = math.exp(log_c)
        try:
            return p.steps * _log_phi(p, c) - c * epsilon - math.log(c) - math.log1p(c)
        except NoVerdict:
            return math.inf

    c = math.exp(_minimise(height, math.log(p.c) - 3, math.log(p.c) + 3))
    base = p.steps * _log_phi(p, c)

    def reach(log_theta: float, side: int) -> float:
        theta = math.exp(log_theta)
        if side < 0 and theta >= c:
            return math.inf
        try:
            growth = p.steps * _log_phi(p, c + side * theta) - base - side * theta * epsilon
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


# --------------------------------------------------------------------------------------- the contour


def contour(p: Plan, *, max_work: float = 3e7) -> tuple[float, float]:
    """(ε, error) by the contour integral in 80-bit floats; ε is negative where δ(0) is below δ."""
    epsilon, _ = _contour(p, 1.0, max_work)
    p = _refined(p, epsilon)
    epsilon, _ = _contour(p, 1.0, max_work)
    finer, slope = _contour(p, 0.5, max_work)
    rounding = p.steps * 1e-17 / slope
    return finer, abs(finer - epsilon) + rounding + abs(finer) * 1e-15 + FADED / slope


def _contour(p: Plan, fineness: float, max_work: float) -> tuple[float, float]:
    spacing = 2 * math.pi / p.window * fineness
    t = np.zeros(0, dtype=np.longdouble)
    log_ratio = np.zeros(0, dtype=np.clongdouble)
    work, lam = 0.0, np.longdouble(0)
    chunk = 32
    while True:
        new = (np.arange(len(t), len(t) + chunk)).astype(np.longdouble) * np.longdouble(spacing)
        losses, weights, log_phi = _tilted(p, _x_step(p, float(new[-1])) * fineness)
        lam = log_phi if not len(t) else lam
        work += len(losses) * chunk
        if work > max_work:
            raise NoVerdict("the contour integrand decays too slowly")
        if len(losses) * chunk > 2e7:
            parts = [np.exp(1j * (value * losses)) @ weights for value in new]
            ratio = np.array(parts)
        else:
            ratio = np.exp(1j * np.outer(new, losses)) @ weights
        size = np.abs(ratio)
        with np.errstate(divide="ignore"):
            logs = p.steps * np.log(np.maximum(size, np.longdouble(1e-4000))) + 1j * (p.steps * np.angle(ratio))
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
        if not slope < 0:
            raise NoVerdict("δ(ε) does not fall; the estimate of ε is far off")
        move = -value / slope
        epsilon = epsilon + move
        if abs(move) <= tolerance * max(abs(epsilon), 1e-6) * 100:
            return epsilon, -slope
    raise NoVerdict("no convergence in ε")


def _decay(p: Plan) -> float:
    """The frequency beyond which the integrand is negligible (found by doubling, then bisection)."""
    def log_size(t: float) -> float:
        losses, weights, _ = _tilted(p, _x_step(p, t))
        return p.steps * float(np.log(np.abs(np.exp(1j * (np.longdouble(t) * losses)) @ weights)))

    low, high = 0.0, 4 * math.pi / p.window
    while log_size(high) > -NEGLIGIBLE or log_size(1.37 * high) > -NEGLIGIBLE:
        low, high = high, 1.5 * high
    for _ in range(3):
        middle = (low + high) / 2
        low, high = (middle, high) if log_size(middle) > -NEGLIGIBLE else (low, middle)
    return 1.1 * high


def _nodes(p: Plan) -> float:
    """How many complex multiplications the contour costs in mpmath."""
    limit = _decay(p)
    losses, _, _ = _tilted(p, _x_step(p, limit))
    return len(losses) * limit * p.window / (2 * math.pi)


def contour_mpmath(p: Plan) -> tuple[float, float]:
    """(ε, error) by the contour integral, every operation in mpmath with 30 digits."""
    limit = _decay(p)
    with mpmath.workdps(DIGITS + 10):
        mpf = mpmath.mpf
        sigma, rate, c, power = mpf(p.sigma), mpf(p.rate), mpf(p.c), mpf(p.power)
        step = mpf(_x_step(p, limit))
        spacing = 2 * mpmath.pi / mpf(p.window)
        low, high = _x_range(p)
        fade, width = p.fade
        coarse = np.linspace(low, high, 4001)
        top = float(np.max(p.power * _loss(p.sigma, p.rate, coarse) - coarse**2 / (2 * p.sigma**2) + _log_fade(p, coarse)))
        weights, rotors = [], []
        for k in range(math.floor(low / float(step)), math.ceil(high / float(step)) + 1):
            x = k * step
            loss = mpmath.log1p(rate * mpmath.expm1((2 * x - 1) / (2 * sigma * sigma)))
            log_weight = power * loss - x * x / (2 * sigma * sigma)
            if not math.isinf(fade):
                log_weight += mpmath.log(mpmath.ncdf((fade - x) / mpf(width)))
            if log_weight > top - 1.5 * NEGLIGIBLE:
                weights.append(mpmath.exp(log_weight - top))
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


# ------------------------------------------------------------------------------------------- the grid


def grid(p: Plan, *, points: int = 2**22) -> tuple[float, float]:
    """(ε, error) by FFT on three lattices and Richardson's extrapolation."""
    p = _refined(p, _grid(p, points // 8))
    second_order = p.steps * (4 * p.window / points) ** 2 * p.c * (p.c + 1) / 8
    if second_order > 1e-3:
        raise NoVerdict(f"a lattice of {points} points is too coarse")
    coarse, middle, fine = (_grid(p, points // k) for k in (4, 2, 1))
    first, second = middle + (middle - coarse) / 3, fine + (fine - middle) / 3
    return second, abs(second - first) + abs(second) * 1e-14 + (p.steps + 1) * 1e-15 / p.c


def _grid(p: Plan, points: int) -> float:
    cell = p.window / points
    power, sign, sigma, rate = p.power, p.sign, p.sigma, p.rate
    losses, _, long_log_phi = _tilted(p, _x_step(p, 0.0) / 4)
    lowest, highest, log_phi = float(losses.min()), float(losses.max()), float(long_log_phi)
    cells = np.arange(math.floor(lowest / cell), math.ceil(highest / cell))
    pmf = np.zeros(points)
    scale = log_phi + math.log(sigma * math.sqrt(2 * math.pi))
    nodes, node_weights = np.polynomial.legendre.leggauss(4)
    x_low, x_high = sorted(float(_x_of(p, loss)) for loss in (losses.min(), losses.max()))
    for start in range(0, len(cells), 2**18):
        index = cells[start : start + 2**18]
        edges = np.append(index, index[-1] + 1) * cell
        x_edges = np.clip(_x_of(p, edges), x_low, x_high)
        left, width = x_edges[:-1], np.diff(x_edges)
        pieces = np.maximum(1, np.ceil(np.abs(width) / (0.05 * min(sigma, sigma**2)))).astype(int)
        owner = np.repeat(np.arange(len(index)), pieces)
        piece = np.arange(len(owner)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
        part = width[owner] / pieces[owner]
        begin = left[owner] + piece * part
        for node, weight in zip(nodes, node_weights, strict=True):
            x = begin + part * (node + 1) / 2
            loss = _loss(sigma, rate, x)
            # P's own density times e^{c·lattice point}, relative to φ(c)
            log_density = power * loss - x * x / (2 * sigma**2) + _log_fade(p, x) - scale
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
    with np.errstate(divide="ignore"):
        composed = np.exp(p.steps * np.log(spectrum))
    tilted = scipy.fft.irfft(composed, points)
    log_total = p.steps * (log_phi + math.log(total))

    # Unroll the circle around ε, then read ln δ at the lattice points next to ε.
    centre = round(p.epsilon / cell)
    lowest_offset = max(-(points // 2), -math.ceil(300 / (p.c + 1) / cell))
    offsets = np.arange(lowest_offset, points // 2)
    law = tilted[(centre + offsets) % points]
    above_centre = np.cumsum((law * np.exp(-p.c * offsets * cell))[::-1])[::-1]
    raw = np.cumsum((law * np.exp(-(p.c + 1) * offsets * cell))[::-1])[::-1]
    values = above_centre - np.exp(offsets * cell) * raw
    with np.errstate(divide="ignore", invalid="ignore"):
        log_delta = np.log(values) + log_total - p.c * centre * cell - math.log(p.delta)
    crossing = int(np.argmax((log_delta[:-1] > 0) & (log_delta[1:] <= 0)))
    near = slice(crossing - 2, crossing + 4)
    if crossing < 3 or not np.all(np.isfinite(log_delta[near])):
        raise NoVerdict("ε lies outside of the lattice")
    at = np.arange(-2, 4)
    root, polynomial = 0.5, np.polynomial.Polynomial.fit(at, log_delta[near], 5)
    for _ in range(30):
        root -= polynomial(root) / polynomial.deriv()(root)
    return float((centre + offsets[crossing] + root) * cell)


def _x_of(p: Plan, signed_loss: Any) -> Any:
    """The x at which the loss is taken; −∞ where no x has so small an ℓ."""
    inside = 1 + np.expm1(np.minimum(p.sign * signed_loss, 600.0)) / p.rate
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(inside > 0, p.sigma**2 * np.log(np.maximum(inside, 1e-4000)) + 0.5, -np.inf)
