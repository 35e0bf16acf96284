"""Rényi curves of single steps: D_α for each pair, at any list of orders.

Sources: Gaussian and Laplace, Mironov 2017, Propositions 6 and 7; Poisson-sampled Gaussian, Mironov, Talwar, Zhang 2019
(integer orders by the binomial sum, fractional ones by quadrature instead of their alternating series); discrete
Gaussian, Canonne, Kamath, Steinke 2020, Theorem 4; Skellam, Agarwal, Kairouz, Liu 2021, Theorem 3.5; pure DP by its
worst pair; sampled sums of integers, :mod:`quietsum.privacy.renyi.sampled_sums`.
The rest are moments of likelihood ratios, see :mod:`quietsum.privacy.renyi.moments`.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import final

import numpy as np
from scipy.special import gammaln

from quietsum.errors import UnsupportedEvent
from quietsum.privacy.exact.contour import Array, Direction
from quietsum.privacy.exact.envelopes import envelope_moments
from quietsum.privacy.pairs import (
    ApproximatePair,
    DiscreteGaussianPair,
    DiscreteGaussianSumPair,
    DiscreteLaplacePair,
    EnvelopePair,
    GaussianPair,
    LaplacePair,
    MixturePair,
    OppositePair,
    Pair,
    ResponsePair,
    SampledPair,
    SampledSumPair,
    SkellamPair,
    VectorDiscreteGaussianPair,
    ZcdpPair,
)
from quietsum.privacy.renyi.moments import (
    MOST_POINTS,
    atomic_curve,
    convex_bound,
    divergence,
    log_ratio_moments,
    mixture_curve,
    sampled_ratio,
)
from quietsum.privacy.renyi.sampled_sums import sampled_sum_curve

__all__ = ["DEFAULT_ORDERS", "MOMENTS_ORDERS", "failure_of", "rdp_of", "require_rdp", "sum_distance"]

_LEAST = 1e-300  # no event that was composed costs exactly nothing


def _default_orders() -> tuple[float, ...]:
    """Geometric steps of α − 1 up to 0.1, twentieths to 2, tenths to 11, integers to 64, quarter octaves to 2048.

    The largest order puts the floor of ε at 0.003 for δ = 1e-6; the smallest serves ε in the thousands.
    """
    low = [round(1 + 0.005 * 1.2**k, 6) for k in range(16)] + [round(1.1 + 0.05 * k, 2) for k in range(18)]
    tenths = [round(2 + 0.1 * k, 1) for k in range(90)]
    above = [round(64 * 2 ** (k / 4)) for k in range(1, 21)]
    return (*low, *tenths, *(float(n) for n in (*range(11, 65), *above)))


DEFAULT_ORDERS = _default_orders()
MOMENTS_ORDERS = tuple(float(n) for n in range(2, 34))


def require_rdp(pair: Pair) -> None:
    """Raise :class:`~quietsum.errors.UnsupportedEvent` when no Rényi curve is known for ``pair``."""
    atomic = (LaplacePair, DiscreteLaplacePair, DiscreteGaussianPair, ResponsePair, ApproximatePair)
    others = (
        GaussianPair, MixturePair, OppositePair, EnvelopePair, VectorDiscreteGaussianPair, DiscreteGaussianSumPair,
        SkellamPair, SampledSumPair, ZcdpPair,
    )  # fmt: skip
    inner = pair.base if isinstance(pair, SampledPair) else pair
    if not isinstance(inner, atomic if inner is not pair else atomic + others):
        name = type(inner).__name__ + (" under sampling" if inner is not pair else "")
        raise UnsupportedEvent(f"no Rényi curve is known for {name}; state it as PureDP or Zcdp if it is one")


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
    if isinstance(pair, ApproximatePair) and pair.epsilon == 0:
        return np.zeros(len(orders))  # it fails, or it says nothing
    with np.errstate(over="ignore"):  # what is too large for a float costs infinitely much
        curve = np.maximum(_curve(pair, orders), _LEAST)
    curve.flags.writeable = False
    return curve


def _curve(pair: Pair, orders: tuple[float, ...]) -> Array:
    alpha = _order_array(orders)
    match pair:
        case GaussianPair(sigma=sigma):
            return _gaussian_curve(alpha, 1 / sigma)
        case DiscreteGaussianPair(sigma=sigma, shift=shift) | VectorDiscreteGaussianPair(sigma=sigma, shift=shift):
            return _gaussian_curve(alpha, shift / sigma)
        case ZcdpPair(rho=rho):
            return np.asarray(alpha * rho)
        case LaplacePair(scale=scale):
            return _laplace_curve(alpha, 1 / scale)
        case SampledSumPair():
            return sampled_sum_curve(pair, alpha, _whole_orders)
        case DiscreteGaussianSumPair():
            return _discrete_gaussian_sum_curve(pair, alpha)
        case SkellamPair(variance=variance, l1=l1, l2=l2):
            whole = np.ceil(alpha)  # shown for integer orders; divergences grow with the order
            one, two = l1 / variance, l2 / variance
            extra = np.minimum(((2 * whole - 1) * two * two + 6 * one / variance) / 4, 1.5 * one)
            return np.asarray(whole * two * l2 / 2 + extra)
        case MixturePair(size=1):
            return _sampled_gaussian_curve(pair.sigma, pair.rate, orders)
        case MixturePair():
            return np.maximum(mixture_curve(pair, Direction.REMOVE, alpha), mixture_curve(pair, Direction.ADD, alpha))
        case OppositePair():
            return mixture_curve(pair, Direction.REMOVE, alpha)
        case EnvelopePair():
            return _envelope_curve(pair, orders)
        case SampledPair(rate=rate, base=DiscreteGaussianPair(sigma=sigma, shift=shift)):
            return _sampled_gaussian_curve(sigma / shift, rate, orders, lattice=1 / shift)
        case SampledPair(rate=rate, base=base):
            return atomic_curve(base, rate, alpha)
        case _:
            return atomic_curve(pair, 1.0, alpha)


def _whole_orders(pair: Pair, most: int) -> Array:
    """D_2 … D_most of an unsampled pair."""
    return _curve(pair, tuple(range(2, most + 1)))


@functools.lru_cache(maxsize=64)
def _order_array(orders: tuple[float, ...]) -> Array:
    return np.array(orders)


def _envelope_curve(pair: EnvelopePair, orders: tuple[float, ...]) -> Array:
    """K(α − 1)/(α − 1) by quadrature, rounded up; where that takes too many points, two bounds that always hold.

    With φ the moment of the sampled Gaussian, E_P[e^{cL}] ≤ φ(c) + 1: losses above 0 are (at most) its own, and all
    others have e^{cL} ≤ 1. And sampling does not make worse: the Gaussian dominates.
    """
    alpha = _order_array(orders)
    above = np.logaddexp(0.0, (alpha - 1) * _sampled_gaussian_curve(pair.sigma, pair.rate, orders)) * (1 + 1e-12)
    ascending = np.argsort(alpha)
    moments = np.empty_like(alpha)
    moments[ascending] = envelope_moments(pair, Direction.REMOVE, alpha[ascending] - 1)
    curve = divergence(np.minimum(moments, above), alpha)
    return np.minimum(curve, _gaussian_curve(alpha, 1 / pair.sigma) * (1 + 1e-12))


def _gaussian_curve(alpha: Array, distance: float) -> Array:
    return np.asarray(alpha * (0.5 * distance * distance))


def sum_distance(sigma: float, shares: int) -> float:
    """c: the law of a sum of ``shares`` discrete Gaussians is within e^{±c} of the discrete Gaussian of that width."""
    apart = 0.0
    for k in range(1, min(shares, 10_000)):
        decay = math.exp(-2 * math.pi**2 * sigma**2 * k / (k + 1))
        twice = 2 * decay / -math.expm1(-2 * math.pi**2 * sigma**2 * 3 * k / (k + 1))
        if twice >= 1:
            return math.inf
        apart += 2 * math.atanh(twice)
        if k > 100 and decay == 0:
            break
    return (apart + 1e-300) * max(1.0, (shares - 1) / 9_999)  # later shares cost less each than the first ones


def _discrete_gaussian_sum_curve(pair: DiscreteGaussianSumPair, alpha: Array) -> Array:
    """αΔ²/2nσ² + c d (2α − 1)/(α − 1): the discrete Gaussian of variance nσ², and how far the sum is from it.

    By Poisson summation the weight of x in a sum of two discrete Gaussians of variances a and b is that of variance
    a + b times 1 + 2 Σ_j e^{−2π²vj²} cos(…), v = ab/(a + b), up to a constant, so the two laws lie within a factor
    e^{±2·artanh(2ρ)} of each other at every x, ρ = Σ_{j≥1} e^{−2π²vj²}. A factor at every point survives another sum.
    Adding one share after the other (v = kσ²/(k + 1) for the k-th), the factors make e^{±c} a coordinate (the argument
    of Kairouz, Liu, Steinke 2021, Theorem 5). With P ≤ e^{cd} P₀ and Q ≥ e^{−cd} Q₀,
    E_Q[(P/Q)^α] = Σ P^α Q^{1−α} ≤ e^{cd(2α−1)} Σ P₀^α Q₀^{1−α}.
    """
    apart = sum_distance(pair.sigma, pair.shares) * pair.dimension
    distance = pair.shift / pair.sigma / math.sqrt(pair.shares)
    return np.asarray((_gaussian_curve(alpha, distance) + apart * (2 * alpha - 1) / (alpha - 1)) * (1 + 1e-14))


def _laplace_curve(alpha: Array, reach: float) -> Array:
    """ln((α e^{(α−1)t} + (α−1) e^{−αt}) / (2α − 1)) / (α − 1), where e^x − 1 − x ≥ 0 keeps anything from cancelling."""
    up, down = (alpha - 1) * reach, -alpha * reach
    if float(up.max()) > 1:
        high = np.log(alpha / (2 * alpha - 1)) + up
        low = np.log((alpha - 1) / (2 * alpha - 1)) + down
        large = np.logaddexp(high, low)
    else:
        large = up
    small = np.minimum(up, 1.0)
    excess = (alpha * _exp_minus_1_minus_x(small) + (alpha - 1) * _exp_minus_1_minus_x(down)) / (2 * alpha - 1)
    return divergence(np.where(up > 1, large, np.log1p(excess)), alpha)


def _exp_minus_1_minus_x(x: Array) -> Array:
    """e^x − 1 − x ≥ 0."""
    near = np.clip(x, -0.1, 0.1)
    series = (
        near
        * near
        / 2
        * (1 + near / 3 * (1 + near / 4 * (1 + near / 5 * (1 + near / 6 * (1 + near / 7 * (1 + near / 8))))))
    )
    return np.where(np.abs(x) <= 0.1, series, np.expm1(x) - x)


# ------------------------------------------------------------------- the Poisson-sampled Gaussian


@final
@dataclasses.dataclass(frozen=True, slots=True)
class _BinomialTerms:
    """How a list of orders is split: integers from 12 on by binomial sums, the others by quadrature."""

    whole: Array  # indices into the orders
    rest: Array
    starts: Array  # of each integer order's terms in the flat arrays
    sizes: Array
    k: Array
    remaining: Array  # α − k
    log_choose: Array
    top: int
    slack: float  # rounding of log_choose
    whole_alpha: Array
    rest_alpha: Array


_FIRST, _LAST = 64, 32  # terms kept at either end of a long sum
_SHORT_UP_TO = 4.0  # the noise up to which its middle lies below both ends


@functools.lru_cache(maxsize=64)
def _binomial_terms(orders: tuple[float, ...], short: bool) -> _BinomialTerms:
    """With ``short``, sums of more than 128 terms keep both ends, and bound the middle by α times its two end terms.

    ln of term k has second differences ≥ 1/σ² − 1/k − 1/(α − k), which is > 0 between k = 64 and α − 31 for
    σ ≤ 4: a convex sequence lies below the larger of its ends.
    """
    alpha = np.array(orders)
    is_whole = (alpha >= 12) & (alpha == np.floor(alpha)) & (alpha <= 65536)
    whole = np.flatnonzero(is_whole)
    terms, weights = [], []
    for order in alpha[whole].astype(int).tolist():
        if short and order > 128:
            ends = [np.arange(2, _FIRST + 1), np.arange(order - _LAST + 1, order + 1)]
            terms.append(np.concatenate([*ends, [_FIRST, order - _LAST + 1]]))
            weights.append(np.concatenate([np.zeros(terms[-1].size - 2), np.full(2, math.log(order))]))
        else:
            terms.append(np.arange(2, order + 1))
            weights.append(np.zeros(order - 1))
    sizes = np.array([part.size for part in terms], dtype=int)
    k = np.concatenate(terms) if terms else np.zeros(0, int)
    a = np.repeat(alpha[whole], sizes)
    top = int(alpha[whole].max()) if whole.size else 1
    return _BinomialTerms(
        whole=whole,
        rest=np.flatnonzero(~is_whole),
        starts=np.cumsum(sizes) - sizes,
        sizes=sizes,
        k=k,
        remaining=a - k,
        log_choose=gammaln(a + 1) - gammaln(k + 1) - gammaln(a - k + 1) + (np.concatenate(weights) if terms else 0.0),
        top=top,
        slack=1e-15 * float(gammaln(top + 1)),
        whole_alpha=alpha[whole],
        rest_alpha=alpha[~is_whole],
    )


def _sampled_gaussian_curve(sigma: float, rate: float, orders: tuple[float, ...], lattice: float = 0.0) -> Array:
    """max over directions is the remove direction (Mironov, Talwar, Zhang 2019, Theorem 5).

    With a ``lattice`` the noise lives on its multiples only. The discrete Gaussian has the same integer moments
    E_Q[(P/Q)^k] = e^{k(k−1)/2σ²} as the continuous one, because k shifts end on the lattice, so both share the curve at
    integer orders.
    """
    if sigma < 1e-100:
        return np.full(len(orders), np.inf)
    sigma = min(sigma, 1e100)  # curves fall with the noise
    split = _binomial_terms(orders, sigma <= _SHORT_UP_TO)
    curve = np.empty(len(orders))
    if split.whole.size:
        # Σ_k C(α,k) (1−q)^{α−k} q^k e^{k(k−1)/2σ²} = 1 + Σ_{k≥2} C(α,k) (1−q)^{α−k} q^k (e^{k(k−1)/2σ²} − 1)
        k = np.arange(split.top + 1)
        v = k * (k - 1) / (2 * sigma**2)
        v[:2] = 1.0  # not used
        each = k * math.log(rate) + v + np.log(-np.expm1(-v))
        terms = split.log_choose + each[split.k] + split.remaining * math.log1p(-rate)
        peak = np.maximum.reduceat(terms, split.starts)
        total = np.add.reduceat(np.exp(terms - np.repeat(peak, split.sizes)), split.starts)
        slack = split.slack - 1e-15 * split.top * (math.log(rate) + math.log1p(-rate))
        curve[split.whole] = divergence(np.logaddexp(0.0, peak + np.log(total) + slack), split.whole_alpha)
    if split.rest.size:
        curve[split.rest] = _sampled_gaussian_quadrature(sigma, rate, split.rest_alpha, lattice)
    return curve


def _sampled_gaussian_quadrature(sigma: float, rate: float, alpha: Array, lattice: float) -> Array:
    """One trapezoid rule for all orders, or the sum over the lattice where that is coarser than the rule.

    The rule's error is below e^-34 of the integral, m^α being analytic where |Im x| < πσ² (Trefethen, Weideman 2014); a
    lattice finer than the rule is such a rule itself.
    """
    variance = sigma * sigma
    strip = min(6 * sigma, 0.9 * math.pi * variance)
    step = max(lattice, 2 * math.pi * strip / (34 + strip * strip / (2 * variance)))
    first, last = math.floor(-10 * sigma / step), math.ceil((10 * sigma + float(alpha.max())) / step)
    if last - first > MOST_POINTS:
        return convex_bound(np.array([math.log1p(-rate), math.log(rate)]), sigma, alpha)
    x = step * np.arange(first, last + 1)
    log_weight = x * x / (-2 * variance)
    log_weight -= math.log(float(np.exp(log_weight).sum()))
    excess, log_ratio = sampled_ratio(x, sigma, rate)
    return divergence(log_ratio_moments(alpha, excess, log_ratio, log_weight), alpha)
