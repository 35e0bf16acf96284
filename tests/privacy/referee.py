"""The true ε of a Poisson-sampled Gaussian, found slowly and more than once, to judge every accountant by.

With ℓ(x) = ln(1 − q + q e^{(2x−1)/2σ²}) the losses of one step are ℓ(x) for x ~ (1 − q) N(0, σ²) + q N(1, σ²)
("remove") and −ℓ(x) for x ~ N(0, σ²) ("add"). The truth is the larger ε of the two directions. Nothing here is
shared with the package. Contour and lattice share only where outcomes are cut off and how far they are tilted:

* one step, and rate 1: closed forms in mpmath (Zhu, Dong, Wang 2022, Thm 11; Balle, Wang 2018, Thm 8);
* two steps: one-dimensional mpmath quadrature of the closed form;
* :mod:`privacy.referee_contour`: a contour integral, in mpmath with 30 digits and in 80-bit floats;
* :mod:`privacy.referee_grid`: an exponentially tilted lattice composed by FFT, with Richardson's extrapolation.

:func:`true_epsilon` runs what is affordable, adds what they disagree by beyond their own errors to ``error``, and
refuses to answer above 1e-6 relative.

>>> true_epsilon(1.0, 0.1, 100, 1e-5)
Truth(epsilon=7.0466026169..., error=..., method='contour in mpmath, contour, grid', direction='remove')
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any

import mpmath

from privacy.referee_contour import contour, contour_mpmath, multiplications
from privacy.referee_grid import grid, lattice_estimate
from privacy.referee_plan import NoVerdict, Plan, plan, refined

__all__ = ["NoVerdict", "Plan", "Truth", "contour", "grid", "plan", "true_epsilon"]

PRECISION = 50  # digits of the closed forms


@dataclasses.dataclass(frozen=True, kw_only=True)
class Truth:
    """The true ε, how far it may be off, how it was found (the first method's number), and the worse direction."""

    epsilon: float
    error: float
    method: str
    direction: str


def true_epsilon(
    sigma: float, rate: float, steps: int, delta: float, *, affordable: float = 2e6, second_opinion: bool = True
) -> Truth:
    """The true ε with its error; raises :class:`NoVerdict` rather than return a doubtful number.

    ``affordable`` is the number of mpmath multiplications (about 4 µs each); above it 80-bit floats have to do, and
    above four times as many the lattice alone.
    ``second_opinion=False`` leaves out the lattice where the contour already answered.
    """
    if rate == 1:
        return _closed_form("analytic Gaussian in mpmath", {"remove": _gaussian(sigma / mpmath.sqrt(steps))}, delta)
    if steps == 1:
        curves = {direction: _one_step(sigma, rate, direction) for direction in ("remove", "add")}
        return _closed_form("one step in mpmath", curves, delta)
    remove = _one_direction(plan(sigma, rate, steps, delta, "remove"), affordable, second_opinion)
    other = plan(sigma, rate, steps, delta, "add")
    if other.epsilon <= max(0.0, remove.epsilon - remove.error):  # already its Rényi upper bound is smaller
        return remove
    add = _one_direction(other, affordable, second_opinion)
    return max(remove, add, key=lambda truth: truth.epsilon)


def _one_direction(first: Plan, affordable: float, second_opinion: bool) -> Truth:
    found: list[tuple[float, float, str]] = []
    tilt = first
    with contextlib.suppress(NoVerdict):
        tilt = refined(first, lattice_estimate(first))
    with contextlib.suppress(NoVerdict):
        found.append((*contour(tilt, affordable=4 * affordable), "contour"))
        tilt = refined(first, found[0][0])
        if multiplications(tilt) <= affordable:
            found.insert(0, (*contour_mpmath(tilt), "contour in mpmath"))
    if second_opinion or not found:
        sizes = [2**21 if found else 2**22, 2**24]
        for points in sizes:
            with contextlib.suppress(NoVerdict):
                epsilon, error = grid(tilt, points=points)
                if error <= 1e-8 * abs(epsilon) or points == sizes[-1]:
                    found.append((epsilon, error, "grid"))
                    break
    if not found:
        raise NoVerdict("the contour decays too slowly, and the lattice is too coarse")
    if first.steps == 2:
        found.insert(0, (*_two_steps(first, found[0][0]), "two steps in mpmath"))
    epsilon, own, _ = found[0]
    error = own + max([0.0, *(abs(other - epsilon) - its for other, its, _ in found[1:])])
    method = ", ".join(name for _, _, name in found)
    if epsilon <= 0:  # δ(0) is below δ: nothing is spent
        if error > max(abs(epsilon), 1e-9):
            raise NoVerdict(f"the sign of ε = {epsilon:.3g} ± {error:.1g} is in doubt")
        return Truth(epsilon=0.0, error=max(0.0, epsilon + error), method=method, direction=first.direction)
    if not error <= 1e-6 * epsilon:
        raise NoVerdict(f"error {error:.1e} at ε = {epsilon:.6g} by {method}")
    return Truth(epsilon=epsilon, error=error, method=method, direction=first.direction)


# --------------------------------------------------------------------------------------- closed forms


def _gaussian(sigma: Any) -> Callable[[Any], Any]:
    s = mpmath.mpf(sigma)

    def curve(epsilon: Any) -> Any:
        return mpmath.ncdf(1 / (2 * s) - epsilon * s) - mpmath.exp(epsilon) * mpmath.ncdf(-1 / (2 * s) - epsilon * s)

    return curve


def _one_step(sigma: float, rate: float, direction: str) -> Callable[[Any], Any]:
    """δ(ε) of one step, for ε of either sign."""
    s, q, gaussian = mpmath.mpf(sigma), mpmath.mpf(rate), _gaussian(sigma)

    def remove(epsilon: Any) -> Any:
        inside = 1 + mpmath.expm1(epsilon) / q
        return q * gaussian(mpmath.log(inside)) if inside > 0 else -mpmath.expm1(epsilon)

    def add(epsilon: Any) -> Any:
        inside = 1 + mpmath.expm1(-epsilon) / q
        if inside <= 0:
            return mpmath.mpf(0)
        x = s * s * mpmath.log(inside) + mpmath.mpf(1) / 2
        mixture = (1 - q) * mpmath.ncdf(x / s) + q * mpmath.ncdf((x - 1) / s)
        return mpmath.ncdf(x / s) - mpmath.exp(epsilon) * mixture

    return remove if direction == "remove" else add


def _closed_form(name: str, curves: dict[str, Callable[[Any], Any]], delta: float) -> Truth:
    with mpmath.workdps(PRECISION):
        roots = {direction: float(_root(curve, mpmath.mpf(delta))) for direction, curve in curves.items()}
    direction = max(roots, key=roots.__getitem__)
    return Truth(epsilon=roots[direction], error=roots[direction] * 2**-52, method=name, direction=direction)


def _root(curve: Callable[[Any], Any], target: Any) -> Any:
    """Where the falling ``curve`` meets ``target``, or 0 where it starts below: bisection, nothing clever."""
    low, high = mpmath.mpf(0), mpmath.mpf(1) / 1024
    if curve(low) <= target:
        return low
    while curve(high) > target:
        low, high = high, 2 * high
    while high - low > high * mpmath.mpf(10) ** -20:
        middle = (low + high) / 2
        low, high = (middle, high) if curve(middle) > target else (low, middle)
    return (low + high) / 2


def _two_steps(p: Plan, start: float) -> tuple[float, float]:
    """(ε, error) of two steps: δ₂(ε) = E_P[δ₁(ε − L(x))], by secants on ln δ₂ from ``start``."""
    with mpmath.workdps(25):
        s, q = mpmath.mpf(p.sigma), mpmath.mpf(p.rate)
        one_step = _one_step(p.sigma, p.rate, p.direction)
        edges = [k * s / 2 for k in range(-26, 27)]
        if p.direction == "remove":
            edges = sorted([*edges, *(1 + edge for edge in edges)])

        def density(x: Any) -> Any:
            absent = mpmath.npdf(x, 0, s)
            return absent if p.direction == "add" else (1 - q) * absent + q * mpmath.npdf(x, 1, s)

        def log_delta(epsilon: Any) -> Any:
            def integrand(x: Any) -> Any:
                loss = p.sign * mpmath.log1p(q * mpmath.expm1((2 * x - 1) / (2 * s * s)))
                return density(x) * one_step(epsilon - loss)

            # Where the second step's δ₁ meets its end it is smooth but steep: panels shrink towards that point.
            loss_there = p.sign * epsilon - mpmath.log1p(-q)
            inside = 1 + mpmath.expm1(loss_there) / q
            steep = s * s * mpmath.log(inside) + mpmath.mpf(1) / 2 if inside > 0 else edges[0]
            extra = [steep, *(steep + sign * s / 2**k for k in range(1, 30, 2) for sign in (-1, 1))]
            panels = sorted(edges + [x for x in extra if edges[0] < x < edges[-1]])
            value, error = mpmath.quad(integrand, panels, method="gauss-legendre", maxdegree=4, error=True)
            errors.append(error / value)
            return mpmath.log(value / p.delta)

        errors: list[Any] = []
        low, high = mpmath.mpf(start), mpmath.mpf(start) * (1 + mpmath.mpf("1e-6")) + mpmath.mpf("1e-12")
        at_low, at_high = log_delta(low), log_delta(high)
        slope = abs((at_high - at_low) / (high - low))
        for _ in range(4):
            low, at_low, high = high, at_high, high - at_high * (high - low) / (at_high - at_low)
            if abs(high - low) < mpmath.mpf(10) ** -13 * abs(high):
                break
            at_high = log_delta(high)
        return float(high), float(abs(high - low) + errors[-1] / slope)
