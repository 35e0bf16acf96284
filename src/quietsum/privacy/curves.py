"""Rényi curves of single steps: D_α for each pair, at any list of orders.

Sources: Gaussian and Laplace, Mironov 2017, Propositions 6 and 7; Poisson-sampled Gaussian, Mironov, Talwar, Zhang 2019
(integer orders by the binomial sum, fractional ones by quadrature instead of their alternating series); discrete Gaussian,
Canonne, Kamath, Steinke 2020, Theorem 4; Skellam, Agarwal, Kairouz, Liu 2021, Theorem 3.5; pure DP by its worst pair.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import final

import numpy as np
from scipy.special import gammaln

from quietsum.errors import UnsupportedEvent
from quietsum.privacy.contour import Array, Direction, log_ratio
from quietsum.privacy.moments import log_moments
from quietsum.privacy.pairs import (
    ApproximatePair,
    DiscreteGaussianPair,
    DiscreteLaplacePair,
    GaussianPair,
    LaplacePair,
    MixturePair,
    OppositePair,
    Pair,
    ResponsePair,
    SampledPair,
    SkellamPair,
    VectorDiscreteGaussianPair,
    ZcdpPair,
)

__all__ = ["DEFAULT_ORDERS", "MOMENTS_ORDERS", "failure_of", "rdp_of", "require_rdp"]


def _default_orders() -> tuple[float, ...]:
    """Fractional orders in geometric steps of α − 1 up to 12, all integers to 64, then quarter octaves to 2048.

    The largest order puts the floor of ε at 0.003 for δ = 1e-6; the smallest serves ε in the thousands.
    """
    fractional = [round(1 + 0.005 * 1.15**k, 6) for k in range(34)] + [round(1.5 + 0.05 * k * 1.02**k, 6) for k in range(75)]
    above = [int(round(64 * 2 ** (k / 4))) for k in range(1, 21)]
    return tuple([order for order in fractional if order < 12] + [float(n) for n in (*range(12, 65), *above)])


DEFAULT_ORDERS = _default_orders()
MOMENTS_ORDERS = tuple(float(n) for n in range(2, 34))


def require_rdp(pair: Pair) -> None:
    """Raise :class:`~quietsum.errors.UnsupportedEvent` when no Rényi curve is known for ``pair``."""
    known = (
        GaussianPair, MixturePair, OppositePair, LaplacePair, DiscreteLaplacePair, DiscreteGaussianPair,
        VectorDiscreteGaussianPair, SkellamPair, ResponsePair, ApproximatePair, ZcdpPair, SampledPair,
    )  # fmt: skip
    if not isinstance(pair, known):
        raise UnsupportedEvent(f"no Rényi curve is known for {type(pair).__name__}; state it as PureDP or Zcdp if it is one")


def failure_of(pair: Pair) -> float:
    """The probability with which ``pair`` reveals everything; it is taken off δ."""
    match pair:
        case ApproximatePair(delta=delta):
            return delta
        case SampledPair(rate=rate, base=base):
            return rate * failure_of(base)
        case _:
            return 0.0


@functools.lru_cache(maxsize=8192)
def rdp_of(pair: Pair, orders: tuple[float, ...]) -> Array:
    """D_α of one use of ``pair`` at each order (both directions, the larger)."""
    alpha = _alpha(orders)
    match pair:
        case GaussianPair(sigma=sigma):
            return np.asarray(alpha / (2 * sigma**2))
        case VectorDiscreteGaussianPair(sigma=sigma, shift=shift):
            return np.asarray(alpha * (shift / sigma) ** 2 / 2)
        case DiscreteGaussianPair(sigma=sigma, shift=shift):
            return np.asarray(alpha * (shift / sigma) ** 2 / 2)
        case ZcdpPair(rho=rho):
            return np.asarray(alpha * rho)
        case LaplacePair(scale=scale):
            high = np.log(alpha / (2 * alpha - 1)) + (alpha - 1) / scale
            low = np.log((alpha - 1) / (2 * alpha - 1)) - alpha / scale
            return _divide(np.logaddexp(high, low), alpha)
        case SkellamPair(variance=variance, l1=l1, l2=l2):
            whole = np.ceil(alpha)  # shown for integer orders; divergences grow with the order
            extra = np.minimum(((2 * whole - 1) * l2**2 + 6 * l1) / (4 * variance**2), 3 * l1 / (2 * variance))
            return np.asarray(whole * l2**2 / (2 * variance) + extra)
        case MixturePair(size=1):
            return _sampled_gaussian(pair, orders)
        case MixturePair():
            both = [_by_quadrature(pair, direction, alpha) for direction in Direction]
            return np.maximum(*both)
        case OppositePair():
            return _by_quadrature(pair, Direction.REMOVE, alpha)
        case _:
            return _by_atoms(pair, alpha)


@functools.lru_cache(maxsize=64)
def _alpha(orders: tuple[float, ...]) -> Array:
    return np.array(orders)


def _divide(moments: Array, alpha: Array) -> Array:
    return np.asarray(np.maximum(moments, 0.0) / (alpha - 1))


def _by_quadrature(pair: MixturePair | OppositePair, direction: Direction, alpha: Array) -> Array:
    ascending = np.argsort(alpha)
    moments = np.empty_like(alpha)
    moments[ascending] = log_moments(pair, direction, alpha[ascending] - 1)
    return _divide(moments * (1 + 1e-13) + 1e-15, alpha)  # the rule's own error, on the safe side


# ------------------------------------------------------------------- the Poisson-sampled Gaussian


@final
@dataclasses.dataclass(frozen=True, slots=True)
class _Plan:
    """How a list of orders is split: integers from 12 on by binomial sums, the others by quadrature."""

    whole: Array  # indices into the orders
    rest: Array
    starts: Array  # of each integer order's terms in the flat arrays
    k: Array
    remaining: Array  # α − k
    log_choose: Array
    top: int
    rest_alpha: Array


@functools.lru_cache(maxsize=64)
def _plan(orders: tuple[float, ...]) -> _Plan:
    alpha = np.array(orders)
    is_whole = (alpha >= 12) & (alpha == np.floor(alpha)) & (alpha <= 65536)
    whole = np.flatnonzero(is_whole)
    terms = [np.arange(2, int(alpha[i]) + 1) for i in whole]
    sizes = [part.size for part in terms]
    k = np.concatenate(terms) if terms else np.zeros(0, int)
    a = np.repeat(alpha[whole], sizes)
    return _Plan(
        whole=whole,
        rest=np.flatnonzero(~is_whole),
        starts=np.concatenate(([0], np.cumsum(sizes)[:-1])).astype(int) if terms else np.zeros(0, int),
        k=k,
        remaining=a - k,
        log_choose=gammaln(a + 1) - gammaln(k + 1) - gammaln(a - k + 1),
        top=int(alpha[whole].max()) if whole.size else 1,
        rest_alpha=alpha[~is_whole],
    )


def _sampled_gaussian(pair: MixturePair, orders: tuple[float, ...]) -> Array:
    """max over directions is the remove direction (Mironov, Talwar, Zhang 2019, Theorem 5)."""
    plan = _plan(orders)
    curve = np.empty(len(orders))
    if plan.whole.size:
        # Σ_k C(α,k) (1−q)^{α−k} q^k e^{k(k−1)/2σ²} = 1 + Σ_{k≥2} C(α,k) (1−q)^{α−k} q^k (e^{k(k−1)/2σ²} − 1)
        k = np.arange(plan.top + 1)
        v = k * (k - 1) / (2 * pair.sigma**2)
        with np.errstate(divide="ignore"):
            each = k * math.log(pair.rate) + v + np.log(-np.expm1(-v))
        terms = plan.log_choose + each[plan.k] + plan.remaining * math.log1p(-pair.rate)
        peak = np.maximum.reduceat(terms, plan.starts)
        sizes = np.diff(np.append(plan.starts, terms.size))
        total = np.add.reduceat(np.exp(terms - np.repeat(peak, sizes)), plan.starts)
        curve[plan.whole] = np.logaddexp(0.0, peak + np.log(total)) / (np.asarray(orders)[plan.whole] - 1)
        small = peak < -30  # logaddexp keeps only absolute accuracy there
        if small.any():
            index = plan.whole[small]
            curve[index] = np.log1p(np.exp(peak[small]) * total[small]) / (np.asarray(orders)[index] - 1)
    if plan.rest.size:
        curve[plan.rest] = _fractional(pair, plan.rest_alpha)
    return curve


def _fractional(pair: MixturePair, alpha: Array) -> Array:
    """E_Q[m^α] − 1 = E_Q[m^α − 1 − α (m − 1)], an integrand ≥ 0, so that tiny rates keep their accuracy."""
    variance = pair.sigma**2
    highest = float(alpha.max())
    strip = min(6 * pair.sigma, 0.9 * math.pi * variance)
    step = 2 * math.pi * strip / (34 + strip * strip / (2 * variance))
    points = int((20 * pair.sigma + highest) / step) + 2
    if highest**2 / (2 * variance) > 600 or points > 8192:
        return _by_quadrature(pair, Direction.REMOVE, alpha)
    x = -10 * pair.sigma + step * np.arange(points)
    _, log_m, _ = log_ratio(pair, x, 0.0)
    density = np.exp(x * x / (-2 * variance)) * (step / math.sqrt(2 * math.pi * variance))
    excess = np.expm1(np.multiply.outer(alpha, log_m)) @ density - alpha * float(np.expm1(log_m) @ density)
    return _divide(np.log1p(np.maximum(excess, 0.0)) * (1 + 1e-12), alpha)


# -------------------------------------------------------------------------------- discrete losses


def _by_atoms(pair: Pair, alpha: Array) -> Array:
    """Curves of pairs whose loss takes few values, or is rounded up to a grid: exact sums, both directions."""
    from quietsum.privacy.losses import atoms

    curve = np.zeros_like(alpha)
    for loss, log_mass in atoms(pair):
        exponent = np.multiply.outer(alpha - 1, loss) + log_mass
        peak = exponent.max(axis=1)
        moments = peak + np.log(np.exp(exponent - peak[:, None]).sum(axis=1))
        curve = np.maximum(curve, _divide(moments, alpha))
    return curve
