"""A lower bound on ε from one run: who can tell which canaries were in, and how well could anyone at most?

Each of m canaries is in by a fair coin. An attacker who sees the releases guesses r of the coins and is right c times.
If the run has the trade-off curve f, the chances p_i of being right i times satisfy, for every j,

    Σ_{i > j} (i/m) p_i  ≤  1 − f( Σ_{i ≥ j} ((r − i)/m) p_i )

(Mahloujifar, Melis, Chaudhuri 2024, "Auditing f-differential privacy in one run", arXiv 2410.22235; the game is that of
Steinke, Nasr, Jagielski 2023, arXiv 2305.08846). Suppose P(right ≥ c) were τ. Going down from c, each inequality gives
the least that the next sums can be; if both together exceed r/m, all that there is, then f is refuted at level τ. We
refute (ε, δ) by the curve of (ε, δ) itself, so the bound holds for mechanisms of any curve: a run that is
(ε, δ)-private gets a larger one at most once in 20.

Guesses go by the likelihood ratio of each canary's releases, so nothing of the draws is used, which an attacker does
not see. Four numbers of guesses are tried, at a quarter of the level
each.

>>> one_run_bound(guesses=1000, correct=1000, canaries=1000, delta=1e-6) > 4
True
>>> one_run_bound(guesses=1000, correct=510, canaries=1000, delta=1e-6)
0.0
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import special

from quietsum.learning import CanaryRecord

__all__ = [
    "CONFIDENCE",
    "SHARES",
    "bears_out",
    "bound_epsilon",
    "bound_from_scores",
    "bound_guesses",
    "bound_shares",
    "count_correct",
    "count_shares",
    "gaussian_least",
    "one_run_bound",
    "private_least",
    "refutes",
    "score_canaries",
]

CONFIDENCE = 0.95
SHARES = (1.0, 0.5, 0.2, 0.1)
"""Of the canaries, how many are guessed: a test each."""
_MOST = 60.0

Least = Callable[[float], float]
"""From a chance of being right the least chance of being wrong that a curve leaves beside it."""


def private_least(epsilon: float, delta: float) -> Least:
    """That of (ε, δ): x with min(δ + e^ε x, 1 − e^−ε (1 − δ − x)) = y."""

    def least(right: float) -> float:
        return max(0.0, math.exp(-epsilon) * (right - delta), 1 - delta - math.exp(epsilon) * (1 - right))

    return least


def gaussian_least(mu: float) -> Least:
    """That of μ-Gaussian differential privacy: Φ(Φ⁻¹(y) − μ)."""
    return lambda right: float(special.ndtr(special.ndtri(right) - mu))


def refutes(least: Least, *, guesses: int, correct: int, canaries: int, level: float) -> bool:
    """Whether so many correct guesses are rarer than ``level`` under the curve."""
    right, wrong = level * correct / canaries, level * (guesses - correct) / canaries
    for place in range(correct - 1, -1, -1):
        more = max(wrong, least(min(right, 1.0)))
        right += place / (guesses - place) * (more - wrong)
        wrong = more
        if right + wrong > guesses / canaries:
            return True
    return False


def one_run_bound(*, guesses: int, correct: int, canaries: int, delta: float, level: float = 1 - CONFIDENCE) -> float:
    """The largest ε that is refuted at ``delta``; 0 if none is."""

    def beyond(epsilon: float) -> bool:
        least = private_least(epsilon, delta)
        return refutes(least, guesses=guesses, correct=correct, canaries=canaries, level=level)

    low, high = 0.0, _MOST
    if not beyond(0.0):
        return 0.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if beyond(middle) else (low, middle)
    return low


def score_canaries(record: CanaryRecord, *, noise: NDArray[np.float64], rate: float) -> NDArray[np.float64]:
    """ln of the likelihood ratio of in to out, from the releases alone: Σ ln(1 − q + q exp((2y − 1)/2σ²))."""
    total = np.zeros(len(record.included))
    for released, sigma in zip(record.released, noise, strict=True):
        exponent = (2 * released.astype(np.float64) - 1) / (2 * sigma**2)
        total += np.logaddexp(math.log(rate) + exponent, math.log1p(-rate) if rate < 1 else -np.inf)
    return total


def bound_epsilon(record: CanaryRecord, *, noise: NDArray[np.float64], rate: float, delta: float) -> float:
    """The one-run lower bound on ε of one canary at ``delta``, with 95 % confidence."""
    return bound_from_scores(score_canaries(record, noise=noise, rate=rate), record.included, delta=delta)


def bound_from_scores(scores: NDArray[np.float64], included: NDArray[np.bool_], *, delta: float) -> float:
    """The same from the canaries' scores, which may be of several parties: each coin is independent of all others."""
    return bound_shares(count_shares(scores, included), canaries=len(scores), delta=delta)


def count_shares(scores: NDArray[np.float64], included: NDArray[np.bool_]) -> tuple[tuple[int, int], ...]:
    """How many canaries are guessed, and how many rightly, for each of the shares that are tried."""
    return tuple(count_correct(scores, included, share) for share in SHARES)


def bound_shares(counts: Sequence[tuple[int, int]], *, canaries: int, delta: float) -> float:
    """The bound that follows from :func:`count_shares`, of which each has its part of the error."""
    return bound_guesses(counts, canaries=canaries, delta=delta, level=(1 - CONFIDENCE) / len(SHARES))


def bears_out(epsilon: float, counts: Sequence[tuple[int, int]], *, canaries: int, delta: float) -> bool:
    """Whether :func:`bound_shares` gives ``epsilon``, up to a millionth: two looks at the curve in place of a search.

    Raises ValueError where these are no counts of so many canaries.
    """
    for guesses, correct in counts:
        if type(guesses) is not int or type(correct) is not int or not 0 <= correct <= guesses <= canaries:
            raise ValueError("its guesses are no counts of canaries")
    if len(counts) != len(SHARES) or not 0 <= epsilon <= _MOST:
        raise ValueError("its guesses are not those of each share")

    def beyond(value: float) -> bool:
        least, level = private_least(value, delta), (1 - CONFIDENCE) / len(SHARES)
        return any(
            refutes(least, guesses=guesses, correct=correct, canaries=canaries, level=level)
            for guesses, correct in counts
        )

    margin = 1e-6 * (1 + epsilon)
    if epsilon > margin and not beyond(epsilon - margin):
        return False
    return epsilon + margin >= _MOST or not beyond(epsilon + margin)


def count_correct(scores: NDArray[np.float64], included: NDArray[np.bool_], share: float) -> tuple[int, int]:
    """How many are guessed if a ``share`` is, the highest scores in and the lowest out, and how many rightly.

    Equal scores are ordered by a shuffle that knows nothing of the coins: members may come first, and that is no guess.
    """
    shuffled = np.random.default_rng(0).permutation(len(scores))
    order = shuffled[np.argsort(scores[shuffled], kind="stable")]
    half = max(1, round(len(scores) * share / 2))
    top, bottom = included[order[-half:]], included[order[: min(half, len(scores) - half)]]
    return len(top) + len(bottom), int(top.sum() + (~bottom).sum())


def bound_guesses(counts: Sequence[tuple[int, int]], *, canaries: int, delta: float, level: float) -> float:
    """The largest ε that one of the (guesses, right ones) refutes, each at ``level``."""
    return max(
        one_run_bound(guesses=guesses, correct=correct, canaries=canaries, delta=delta, level=level)
        for guesses, correct in counts
    )
