"""Moments of a likelihood ratio: ln E_Q[m^a] for m = dP/dQ, the raw material of Rényi curves.

Since E_Q[m] = 1, the moment equals 1 + E_Q[m^a − 1 − a (m − 1)], whose integrand is ≥ 0 for a > 1 and for a < 0. So
nothing cancels, and rates of 1e-12 or noise of 1e6 keep their relative accuracy. P is compared with Q by a = α, Q with
P by a = 1 − α.

Here: the sum itself, Gaussian mixtures (groups, opposite records) by the trapezoid rule, and pairs with few losses.
"""

from __future__ import annotations

import dataclasses
import functools
import math

import numpy as np
from scipy.special import gammaln

from quietsum.privacy.exact.contour import Array, Direction
from quietsum.privacy.pairs import (
    ApproximatePair,
    DiscreteLaplacePair,
    LaplacePair,
    MixturePair,
    OppositePair,
    Pair,
    ResponsePair,
)

__all__ = [
    "MOST_POINTS",
    "atomic_curve",
    "convex_bound",
    "divergence",
    "log_ratio_moments",
    "mixture_curve",
    "sampled_ratio",
]

MOST_POINTS = 8192
"""The longest trapezoid rule."""

_MOST_ATOMS = 20_000
_LOSS_CELLS = 2_048
_CLOSE = 0.1  # below this |a (m − 1)| a Taylor series is used


def divergence(moments: Array, alpha: Array) -> Array:
    """D_α from the log moment, with what rounding and quadrature may have lost; it grows as α nears 1."""
    less_one = alpha - 1
    return np.asarray(np.maximum(moments, 0.0) / less_one * (1 + 1e-12 + 2e-13 / less_one))


def log_ratio_moments(power: Array, excess: Array, log_ratio: Array, log_weight: Array, lost: float = 0.0) -> Array:
    """ln Σ w m^a for each power a > 1 or a < 0, given m − 1, ln m and ln w with Σ w ≤ 1 and Σ w (m − 1) = −lost.

    Computed as ln(1 + Σ w (m^a − 1 − a (m − 1)) − a·lost): by a Taylor series where a (m − 1) is small, as it stands
    elsewhere. Powers whose moment is too large for a float take the logarithm of the plain sum.
    """
    low = np.abs(power) <= 16
    if low.any() and not low.all():
        result = np.empty_like(power)
        for part in (low, ~low):
            result[part] = log_ratio_moments(power[part], excess, log_ratio, log_weight, lost)
        return result
    near = np.abs(excess) <= _CLOSE / max(float(np.abs(power).max()), 1.0)
    weight = np.exp(log_weight)
    k = np.arange(12)
    choose = np.cumprod((power[:, None] - k) / (k + 1), axis=1)[:, 1:]  # C(a, 2) … C(a, 12)
    close = excess[near]
    moments = np.multiply.accumulate(np.broadcast_to(close, (12, close.size)), axis=0)[1:] @ weight[near]
    total = choose @ moments + np.maximum(-power * lost, 0.0)
    far = ~near
    ratio, log_far, weight = log_ratio[far], log_weight[far], weight[far]
    moved = np.where(ratio > 1, np.exp(log_far + ratio) - weight, weight * np.minimum(excess[far], 2.0))
    total -= power * float(moved.sum())
    wide = np.maximum(power * ratio.max(initial=0.0), power * ratio.min(initial=0.0)) > 600  # m^a alone would overflow
    calm = ~wide if wide.any() else slice(None)
    total[calm] += np.expm1(np.multiply.outer(power[calm], ratio)) @ weight
    result = np.log1p(np.maximum(total, 0.0))
    if wide.any():
        result[wide] = _wide_moments(total[wide], np.multiply.outer(power[wide], ratio), log_far)
    return np.asarray(result)


def _wide_moments(total: Array, exponent: Array, log_weight: Array) -> Array:
    """ln(1 + total + Σ w (m^a − 1)) where m^a overflows, whether or not w m^a does."""
    joint = exponent + log_weight
    peak = joint.max(axis=1)
    fits = peak < 600
    result = np.empty_like(total)
    result[~fits] = peak[~fits] + np.log(np.exp(joint[~fits] - peak[~fits, None]).sum(axis=1))
    weight, some = np.exp(log_weight), exponent[fits]
    less_one = np.where(some > 1, np.exp(joint[fits]) - weight, weight * np.expm1(np.minimum(some, 1.0)))
    result[fits] = np.log1p(np.maximum(total[fits] + less_one.sum(axis=1), 0.0))
    return result


def sampled_ratio(x: Array, sigma: float, rate: float) -> tuple[Array, Array]:
    """m − 1 and ln m for m = 1 − q + q e^{(2x−1)/2σ²}."""
    exponent = (x - 0.5) / sigma**2
    excess = rate * np.expm1(np.minimum(exponent, 700.0))
    if float(exponent.max()) <= 700:
        return excess, np.log1p(excess)
    return excess, np.where(
        exponent <= 700, np.log1p(excess), np.logaddexp(math.log1p(-rate), exponent + math.log(rate))
    )


# ------------------------------------------------------------------ groups and replaced records


def convex_bound(log_share: Array, sigma: float, alpha: Array) -> Array:
    """E_Q[m^a] ≤ Σ_j b_j e^{α(α−1)j²/2σ²} for a mixture with shares b_j at shift j (Jensen), both directions."""
    distance = np.arange(log_share.size) / sigma
    exponent = np.multiply.outer(alpha * (alpha - 1), 0.5 * distance * distance) + log_share
    peak = exponent.max(axis=1)
    with np.errstate(invalid="ignore"):
        moments = peak + np.log(np.exp(exponent - peak[:, None]).sum(axis=1))
    return divergence(np.where(np.isfinite(peak), moments, np.inf), alpha)


def mixture_curve(pair: MixturePair | OppositePair, direction: Direction, alpha: Array) -> Array:
    """Groups (both directions differ) and opposite records by the trapezoid rule, or a closed bound if that is long."""
    if isinstance(pair, OppositePair):
        log_share = np.array([math.log1p(-pair.rate), -np.inf, math.log(pair.rate)])
    else:
        log_share = _log_binomial(pair.size, pair.rate)
    if pair.sigma < 1e-100:
        return np.full(alpha.shape, np.inf)
    pair = dataclasses.replace(pair, sigma=min(pair.sigma, 1e100))
    curve = convex_bound(log_share, pair.sigma, alpha)
    if direction is Direction.ADD:
        curve = np.minimum(curve, -float(log_share[0]))  # m ≥ (1 − q)^k
    ascending = np.argsort(alpha)
    while ascending.size:
        x, step = _quadrature_nodes(pair, direction, log_share, float(alpha[ascending[-1]]) - 1)
        if x.size:
            break
        ascending = ascending[: ascending.size * 9 // 10]
    else:
        return curve
    log_weight = x * x / (-2 * pair.sigma**2) + math.log(step / (math.sqrt(2 * math.pi) * pair.sigma))
    some = alpha[ascending]
    if isinstance(pair, OppositePair):
        excess, log_ratio = sampled_ratio(x, pair.sigma, pair.rate)
        back, log_back = sampled_ratio(-x, pair.sigma, pair.rate)
        log_ratio -= log_back
        with np.errstate(invalid="ignore"):
            excess = np.where(
                np.abs(log_ratio) < 1, (excess - back) * np.exp(-log_back), np.expm1(np.minimum(log_ratio, 700.0))
            )
        moments = log_ratio_moments(some, excess, log_ratio, log_weight + log_back)
    else:
        excess, log_ratio = _group_ratio(x, pair.sigma, log_share)
        moments = log_ratio_moments(some if direction is Direction.REMOVE else 1 - some, excess, log_ratio, log_weight)
    curve[ascending] = divergence(moments, some)
    return curve


def _quadrature_nodes(
    pair: MixturePair | OppositePair, direction: Direction, log_share: Array, top: float
) -> tuple[Array, float]:
    """Nodes that serve all c = α − 1 up to ``top``, none where that takes too many.

    The step makes the rule's error e^-34 (Trefethen, Weideman 2014, Theorem 5.1): m has no zero where |Im x| < πσ²/k,
    and on the strip |m| ≤ m(Re x) and |m| ≥ m(Re x) cos(k Im x / 2σ²), which bounds negative powers.
    """
    size = pair.size if isinstance(pair, MixturePair) else 1
    sigma, variance = pair.sigma, pair.sigma**2
    strip = min(6 * sigma, 0.9 * math.pi * variance / size)
    growth = strip * strip / (2 * variance)
    low, high = -10 * sigma, 10 * sigma
    if isinstance(pair, MixturePair) and direction is Direction.REMOVE:
        high += size * (top + 1)
    else:
        strip = min(strip, variance / size * math.sqrt(80 / max(top, 1.0)))
        growth = strip * strip / (2 * variance) - top * math.log(math.cos(size * strip / (2 * variance)))
        if isinstance(pair, OppositePair):
            high += 2 * top + 1
        else:
            low += _lowest_peak(sigma, log_share, top)
    step = 2 * math.pi * strip / (34 + growth)
    if (high - low) / step > MOST_POINTS:
        return np.zeros(0), step
    return low + step * np.arange(int((high - low) / step) + 2), step


def _lowest_peak(sigma: float, log_share: Array, top: float) -> float:
    """Where N(x) m(x)^−c is largest: −x is c times the mean shift given x, which grows with x."""
    j = np.arange(log_share.size)
    low, high = -top * (log_share.size - 1), 0.0
    while high - low > 0.1 * sigma:
        x = (low + high) / 2
        exponent = log_share + (j * x - j * j / 2) / sigma**2
        weight = np.exp(exponent - exponent.max())
        low, high = (x, high) if -x > top * float(j @ weight / weight.sum()) else (low, x)
    return low


@functools.lru_cache(maxsize=256)
def _log_binomial(size: int, rate: float) -> Array:
    j = np.arange(size + 1)
    choose = gammaln(size + 1) - gammaln(j + 1) - gammaln(size - j + 1)
    return np.asarray(choose + j * math.log(rate) + (size - j) * math.log1p(-rate))


def _group_ratio(x: Array, sigma: float, log_share: Array) -> tuple[Array, Array]:
    """m − 1 and ln m for m = Σ_j b_j e^{(2jx − j²)/2σ²}."""
    excess, log_ratio = np.zeros_like(x), np.full_like(x, log_share[0])
    for j in range(1, log_share.size):
        exponent = (j * x - j * j / 2) / sigma**2
        log_ratio = np.logaddexp(log_ratio, exponent + log_share[j])
        excess += math.exp(log_share[j]) * np.expm1(np.minimum(exponent, 600.0))
    small = np.abs(excess) < 1
    log_ratio = np.where(small, np.log1p(np.where(small, excess, 0.0)), log_ratio)
    return np.where(small, excess, np.expm1(np.minimum(log_ratio, 700.0))), log_ratio


# -------------------------------------------------------------------------------- discrete losses


def atomic_curve(base: Pair, rate: float, alpha: Array) -> Array:
    """Curves of (1 − q) Q + q P against Q, both directions, for pairs whose loss takes few values or is put on few."""
    loss, log_weight, hidden = _atoms(base)
    excess = rate * np.expm1(np.minimum(loss, 700.0))
    small = np.abs(excess) < 0.5
    log_ratio = loss
    if rate < 1:
        log_ratio = np.logaddexp(math.log1p(-rate), loss + math.log(rate))
        log_ratio = np.where(small, np.log1p(np.where(small, excess, 0.0)), log_ratio)
        if hidden:  # where P is zero and Q is not
            excess, log_ratio = np.append(excess, -rate), np.append(log_ratio, math.log1p(-rate))
            log_weight = np.append(log_weight, math.log(hidden))
    remove = log_ratio_moments(alpha, excess, log_ratio, log_weight)
    if rate == 1:
        return divergence(remove, alpha)  # these pairs are their own mirror images
    add = log_ratio_moments(1 - alpha, excess, log_ratio, log_weight, lost=rate * hidden)
    return divergence(np.maximum(remove, add), alpha)


def _atoms(pair: Pair) -> tuple[Array, Array, float]:
    """Finite losses, ln Q of each, and the Q-mass where P is zero.

    The continuous part of Laplace's loss is cut into cells, each with its Q- and P-mass put on its two ends (connect
    the dots; Doroshenko et al. 2022): moments are convex in dP/dQ, so they can only grow.
    """
    match pair:
        case ResponsePair(keep=keep, categories=categories):
            other = math.log1p(-keep) - math.log(categories - 1)
            odds = math.log(keep) - other
            neither = other + math.log(categories - 2) if categories > 2 else -math.inf
            return np.array([-odds, 0.0, odds]), np.array([math.log(keep), neither, other]), 0.0
        case ApproximatePair(epsilon=epsilon, delta=delta):
            rest = math.log1p(-delta) - math.log1p(math.exp(-epsilon)) if delta < 1 else -math.inf
            return np.array([-epsilon, epsilon]), np.array([rest, rest - epsilon]), delta
        case DiscreteLaplacePair(scale=scale, shift=shift):
            if shift > _MOST_ATOMS or shift / scale > 1e6:
                return _atoms(ApproximatePair(shift / scale))  # the worst pair of the same pure ε
            k = np.arange(shift + 1)
            log_weight = -k / scale + math.log(-math.expm1(-1 / scale))
            log_weight[0], log_weight[-1] = 0.0, -shift / scale  # everything beyond the ends
            return (2 * k - shift) / scale, log_weight - math.log1p(math.exp(-1 / scale)), 0.0
        case LaplacePair(scale=scale):
            reach = 1 / scale
            if reach > 1e6:
                return _atoms(ApproximatePair(reach))
            loss = np.linspace(-reach, reach, _LOSS_CELLS + 1)
            width = 2 * reach / _LOSS_CELLS
            cell = -(loss[:-1] + reach) / 2 + math.log(-math.expm1(-width / 2) / 2)
            upper = -math.log1p(math.exp(width / 2))  # the share of a cell's Q-mass that goes up is 1/(1 + e^{w/2})
            log_weight = np.full(loss.size, -math.inf)
            log_weight[:-1] = cell + upper + width / 2
            log_weight[1:] = np.logaddexp(log_weight[1:], cell + upper)
            log_weight[0] = np.logaddexp(log_weight[0], -math.log(2))
            log_weight[-1] = np.logaddexp(log_weight[-1], -reach - math.log(2))
            return loss, log_weight, 0.0
        case _:
            raise AssertionError(pair)
