"""Rényi curves of Poisson-sampled integer sums, of whose noise only moments are known: Skellam, discrete Gaussians.

Let Q be the noisy sum without a unit, Q_x the sum with it, shifted by an integer vector x, and P = (1 − q) Q + q Q_x.
With the likelihood ratio ℓ = Q_x/Q and an integer order α,

    E_Q[(P/Q)^α] = Σ_k C(α, k) (1 − q)^{α−k} q^k E_Q[ℓ^k],    E_Q[ℓ^k] = e^{(k−1) D_k} ≤ e^{(k−1) ε(k)},

where ε(k) bounds D_k(Q_x‖Q) for every x in reach. The other direction, D_α(Q‖P), is never larger, since the noise is
symmetric. Several units are added or replaced one after the other, m links in all (2 for one unit that is replaced: it
leaves, another comes), and a chain of links is bounded by Hölder's inequality,

    D_α(P₀‖P_m) ≤ mα/(mα − m + 1) · D_{mα−m+1}(P₀‖P₁) + D_{mα/(m−1)}(P₁‖P_m),

which for a line in α, as Gaussians have, loses nothing. A group of m units that come or go has a second bound:
w₀ = (1 − q)^m in the place of 1 − q, and the mean of e^{(k−1) ε_j(k)} over the number j ≥ 1 that are drawn, ε_j being
for j times the norms. The smaller one counts. The proofs stand in docs/explanation/distributed-noise.md.

Between integers (α − 1) D_α is convex in α, so the chord bounds it. Sampling never makes worse, so every curve is also
bounded by that of the unsampled sum.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from scipy.special import gammaln

from quietsum.privacy.exact.contour import Array
from quietsum.privacy.pairs import (
    DiscreteGaussianSumPair,
    Pair,
    SampledSumPair,
    SkellamPair,
    VectorDiscreteGaussianPair,
)

__all__ = ["sampled_sum_curve"]

IntegerNoisePair: TypeAlias = SkellamPair | VectorDiscreteGaussianPair | DiscreteGaussianSumPair

_MOST_ORDER = 4096
"""Beyond it sums would be long: the unsampled curve is used."""
_MOST_UNITS = 512


def sampled_sum_curve(pair: SampledSumPair, alpha: Array, whole: Callable[[Pair, int], Array]) -> Array:
    """D_α for each order; ``whole(pair, n)`` gives D_2 … D_n of an unsampled pair."""
    links = pair.size * (2 if pair.replaced else 1)
    bound = _unsampled_curve(_scale_shift(pair.base, links), alpha, whole)
    single = dataclasses.replace(pair, size=1, replaced=False)
    bound = np.minimum(bound, _chain_curve(links, alpha, lambda orders: _chord_curve(single, orders, whole)))
    if pair.size > 1:
        group = dataclasses.replace(pair, replaced=False)
        both = 2 if pair.replaced else 1
        bound = np.minimum(bound, _chain_curve(both, alpha, lambda orders: _chord_curve(group, orders, whole)))
    return np.asarray(bound)


def _chain_curve(links: int, alpha: Array, one: Callable[[Array], Array]) -> Array:
    """D_α over ``links`` links, each of which has the curve ``one`` in both directions."""
    total, orders = np.zeros(alpha.shape), alpha
    for m in range(links, 1, -1):
        if float(orders.min()) * m > _MOST_ORDER:
            return np.full(alpha.shape, np.inf)
        first = m * (orders - 1) + 1
        total = total + m * orders / first * one(first)
        orders = m * orders / (m - 1)
    return np.asarray((total + one(orders)) * (1 + 1e-15 * links))


def _chord_curve(pair: SampledSumPair, alpha: Array, whole: Callable[[Pair, int], Array]) -> Array:
    """The curve at any orders from its values at whole ones, by chords of (α − 1) D_α; infinite beyond the last."""
    usable = alpha <= _MOST_ORDER
    if not usable.any():
        return np.full(alpha.shape, np.inf)
    low = np.floor(np.where(usable, alpha, 2.0)).astype(int)
    high = np.ceil(np.where(usable, alpha, 2.0)).astype(int)
    orders = tuple(sorted({int(n) for n in (*low.tolist(), *high.tolist()) if n > 1}))
    moments = np.zeros(_MOST_ORDER + 1)
    moments[list(orders)] = _log_moments(pair, orders, whole)
    part = np.where(usable, alpha, 2.0) - low
    chord = (1 - part) * moments[low] + part * moments[high]
    return np.asarray(np.where(usable, chord / (alpha - 1) * (1 + 1e-12), np.inf))


def _unsampled_curve(pair: Pair, alpha: Array, whole: Callable[[Pair, int], Array]) -> Array:
    """The unsampled curve at ⌈α⌉, which bounds it at α; beyond what is listed, at each order by itself."""
    orders = np.maximum(np.ceil(alpha), 2).astype(int)
    listed = orders <= 2 * _MOST_ORDER
    found = np.full(alpha.shape, np.inf)
    if listed.any():
        found[listed] = whole(pair, int(orders[listed].max()))[orders[listed] - 2]
    return found


def _log_moments(pair: SampledSumPair, orders: tuple[int, ...], whole: Callable[[Pair, int], Array]) -> Array:
    """ln E_Q[(P/Q)^n] for whole orders n, as ln(1 + Σ_{k≥2} C(n, k) w₀^{n−k} (1 − w₀)^k (M_k − 1)): nothing cancels."""
    most = max(orders)
    log_rest = pair.size * math.log1p(-pair.rate)  # ln w₀
    log_drawn = math.log(-math.expm1(log_rest))
    excess = _log_excess(pair, most, log_drawn, whole)
    log_factorials = gammaln(np.arange(most + 2) + 1.0)
    found = np.empty(len(orders))
    for index, n in enumerate(orders):
        k = np.arange(2, n + 1)
        choose = log_factorials[n] - log_factorials[k] - log_factorials[n - k]
        terms = choose + (n - k) * log_rest + k * log_drawn + excess[: n - 1]
        peak = float(terms.max())
        if math.isinf(peak):
            found[index] = math.inf if peak > 0 else 0.0
            continue
        total = peak + math.log(float(np.exp(terms - peak).sum()))
        # What rounding may have taken: of the logarithms of factorials and powers, and of the sum.
        total += 4e-16 * (4 * log_factorials[n] + n * (abs(log_rest) + abs(log_drawn)) + abs(peak) + n + 10)
        found[index] = np.logaddexp(0.0, total)
    return found


def _log_excess(pair: SampledSumPair, most: int, log_drawn: float, whole: Callable[[Pair, int], Array]) -> Array:
    """ln(M_k − 1) for k = 2 … most: M_k is the mean of e^{(k−1) ε_j(k)} over how many units, j ≥ 1, are drawn."""
    k = np.arange(2, most + 1)
    if pair.size == 1:
        return _log_expm1((k - 1) * whole(pair.base, most))
    found = np.full(k.shape, -np.inf)
    counts = range(1, pair.size + 1) if pair.size <= _MOST_UNITS else [pair.size]
    for j in counts:
        log_weight = 0.0
        if pair.size <= _MOST_UNITS:
            log_choose = math.lgamma(pair.size + 1) - math.lgamma(j + 1) - math.lgamma(pair.size - j + 1)
            log_weight = log_choose + j * math.log(pair.rate) + (pair.size - j) * math.log1p(-pair.rate) - log_drawn
            log_weight += 1e-15 * (4 * math.lgamma(pair.size + 1) + 10)
        found = np.logaddexp(found, log_weight + _log_expm1((k - 1) * whole(_scale_shift(pair.base, j), most)))
    return found


def _log_expm1(x: Array) -> Array:
    """ln(e^x − 1) for x ≥ 0."""
    with np.errstate(divide="ignore", over="ignore"):
        return np.where(x > 1, x + np.log1p(-np.exp(-np.maximum(x, 1.0))), np.log(np.expm1(np.minimum(x, 1.0))))


@functools.lru_cache(maxsize=1024)
def _scale_shift(base: IntegerNoisePair, times: int) -> Pair:
    """``base`` with its shift ``times`` as long."""
    if isinstance(base, SkellamPair):
        return dataclasses.replace(base, l1=base.l1 * times, l2=base.l2 * times)
    return dataclasses.replace(base, shift=base.shift * times)
