"""Tests with exact or conservative p-values, so that a threshold of one in ten million means what it says.

Textbook approximations fail first in the tails, and the tails are all we use. So draws are turned into *scores* that
are standard normal under the claim, exactly: continuous draws through their distribution function, counts through a
randomised one (u = P(K < k) + v · P(K = k) with v uniform is uniform; Rosenblatt 1952, Smith 1985). Then

* the sum of squares of n scores is χ² with n degrees of freedom;
* the product of one block of scores with another, ⟨a, b⟩ / ‖a‖, is standard normal, for every n;
* the largest gap to the normal distribution function obeys P(gap > g) ≤ 2 exp(−2 n g²) (Massart 1990).

An attacker's error rates are bounded by Clopper and Pearson's exact intervals (1934).

>>> round(clopper_pearson_upper(0, 100, 0.05), 4)  # the rule of three: none in a hundred is at most three in a hundred
0.0295
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import special

from quietsum.mechanisms import RandomSource
from quietsum.selfcheck.protocol import Floats, Law

__all__ = [
    "FALSE_ALARM",
    "best_error",
    "binomial_p",
    "binomial_scores",
    "block_p",
    "clopper_pearson_upper",
    "kolmogorov_p",
    "noise_scores",
    "normal_p",
    "spread_p",
]

FALSE_ALARM = 1e-7
"""The chance that one statistical test accuses a correct step. Five are run, so a whole check stays below 1e-6."""

_TINY = 1e-300
_NEAR_ONE = 1 - 2.0**-53


def noise_scores(draws: Floats, law: Law, scale: float) -> Floats:
    """Draws of the claimed law as standard normal scores; 37 stands for all that lies beyond a float's reach."""
    if law is Law.GAUSSIAN:
        return np.asarray(draws / scale)
    tails = 0.5 * np.exp(-np.abs(draws) / scale)
    return np.asarray(-np.sign(draws) * special.ndtri(np.maximum(tails, _TINY)))


def binomial_scores(counts: NDArray[np.int64], trials: int, chance: float, rng: RandomSource) -> Floats:
    """Counts of the claimed binomial law as standard normal scores, made continuous by coins of our own."""
    below = np.where(counts > 0, special.bdtr(np.maximum(counts - 1, 0).astype(float), trials, chance), 0.0)
    upto = np.where(counts >= trials, 1.0, special.bdtr(np.minimum(counts, trials).astype(float), trials, chance))
    position = below + rng.uniforms(counts.size).reshape(counts.shape) * np.maximum(upto - below, 0.0)
    return np.asarray(special.ndtri(np.clip(position, _TINY, _NEAR_ONE)))


def spread_p(scores: Floats, slack: float = 0.0) -> tuple[float, float]:
    """p-values of too small and of too large a spread: χ² of the sum of squares. ``slack`` forgives the larger."""
    total = float(np.sum(np.square(scores)))
    small = float(special.chdtr(scores.size, total))
    large = float(special.chdtrc(scores.size, total / (1 + slack) ** 2))
    return small, large


def normal_p(score: float) -> float:
    """Two-sided p-value of one standard normal score.

    >>> f"{normal_p(5.3267):.1e}"
    '1.0e-07'
    """
    return float(2 * special.ndtr(-abs(score)))


def block_p(first: Floats, second: Floats) -> float:
    """p-value of two blocks of scores being independent: ⟨a, b⟩ / ‖a‖ is standard normal given a, exactly."""
    length = float(np.linalg.norm(first))
    return normal_p(float(first.ravel() @ second.ravel()) / length) if length > 0 else 1.0


def kolmogorov_p(scores: Floats, slack: float = 0.0) -> tuple[float, float]:
    """The largest gap to the normal distribution function, and Massart's bound on its p-value (gap − ``slack``)."""
    ordered = special.ndtr(np.sort(scores, axis=None))
    n = ordered.size
    steps = np.arange(n + 1) / n
    gap = float(max(np.max(steps[1:] - ordered), np.max(ordered - steps[:-1])))
    return gap, float(min(1.0, 2 * np.exp(-2 * n * max(gap - slack, 0.0) ** 2)))


def binomial_p(count: int, trials: int, chance: float) -> float:
    """Two-sided exact p-value: twice the smaller tail."""
    if trials == 0:
        return 1.0
    low = float(special.bdtr(float(count), trials, chance)) if count < trials else 1.0
    high = float(special.bdtrc(float(count - 1), trials, chance)) if count > 0 else 1.0
    return min(1.0, 2 * min(low, high))


def clopper_pearson_upper(count: int, trials: int, alpha: float) -> float:
    """The largest chance that is not refuted at level ``alpha`` by ``count`` successes in ``trials``."""
    return 1.0 if count >= trials else float(special.betainccinv(count + 1, trials - count, alpha))


def best_error(law: Law, noise_multiplier: float, false_positives: float) -> float:
    """The least false-negative rate that the claim leaves an attacker who accuses that share wrongly.

    Gaussian noise: Φ(Φ⁻¹(1 − a) − 1/σ) (Dong, Roth, Su 2022, equation 6). Laplace noise is ε-private with
    ε = 1/noise_multiplier: max(0, 1 − e^ε a, e^−ε (1 − a)).
    """
    share = min(max(false_positives, 0.0), 1.0)
    if law is Law.GAUSSIAN:
        return float(special.ndtr(-special.ndtri(share) - 1 / noise_multiplier))
    epsilon = min(1 / noise_multiplier, 700.0)
    return float(max(0.0, 1 - np.exp(epsilon) * share, np.exp(-epsilon) * (1 - share)))
