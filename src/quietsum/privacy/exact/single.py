"""One Poisson-sampled Gaussian step in closed form, both directions.

With H₀ the Gaussian's, remove: H(ε') = q H₀(ε), e^{ε'} = 1 + q (e^ε − 1). Add: H(ε') = (1 − e^{ε'}(1 − q)) H₀(ε) with
e^ε = q e^{ε'} / (1 − e^{ε'}(1 − q)), which is 0 once e^{ε'} ≥ 1/(1 − q) (Zhu, Dong, Wang 2022, Theorem 11; Balle,
Barthe, Gaboardi 2018).
"""

from __future__ import annotations

import math

from quietsum.privacy.gaussian import gaussian_epsilon, log_gaussian_delta
from quietsum.privacy.pairs import MixturePair

__all__ = ["single_step_epsilon", "single_step_log_delta"]


def single_step_log_delta(pair: MixturePair, epsilon: float) -> float:
    """ln δ(ε) of one step, the worse of both directions."""
    mu, rate = 1 / pair.sigma, pair.rate
    if epsilon < math.log1p(-rate):  # all losses of the remove direction lie above ln(1 − q)
        remove = math.log(-math.expm1(epsilon))
    else:
        inner = math.expm1(epsilon) / rate if epsilon < 700 else math.inf
        base = math.log1p(inner) if math.isfinite(inner) and inner > -1 else epsilon - math.log(rate)
        remove = math.log(rate) + log_gaussian_delta(mu, base) if inner > -1 else math.log(-math.expm1(epsilon))
    room = -math.expm1(epsilon + math.log1p(-rate)) if epsilon < 700 else -math.inf
    if room <= 0:
        return remove
    add = math.log(room) + log_gaussian_delta(mu, math.log(rate) + epsilon - math.log(room))
    return max(remove, add)


def single_step_epsilon(pair: MixturePair, delta: float) -> float:
    """The smallest ε ≥ 0 with δ(ε) ≤ delta.

    For γ = e^ε ≥ 1 the remove direction is the worse one: on any set S it gains q P(S) − (q + γ − 1) Q(S), adding gains
    (1 − γ(1 − q)) P(S) − γq Q(S), and the difference is (γ − 1)(1 − q)(P(S) − Q(S)) ≥ 0 where adding does best.
    """
    if delta >= pair.rate:
        return 0.0  # the unit is drawn with probability q ≤ δ
    base = gaussian_epsilon(1 / pair.sigma, delta / pair.rate)
    return base + math.log(pair.rate) if base > 700 else math.log1p(pair.rate * math.expm1(base))
