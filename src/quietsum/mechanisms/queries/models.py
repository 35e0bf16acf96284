"""Draws from models that learnt from protected records: a next token, a sample of a posterior.

>>> PrivateNextToken(epsilon=8.0, vocabulary=50).release([0.0] * 49 + [1.0]) in range(50)
True
>>> PosteriorSample(bounds=(-2.0, 0.0)).event()
PureDP(epsilon=2.0)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from quietsum.errors import InvalidParameter
from quietsum.mechanisms.central.additive import target
from quietsum.mechanisms.central.lattice import above
from quietsum.mechanisms.central.selection import choose_index
from quietsum.mechanisms.queries.rows import Bounds, bound_values, check_bounds, check_relation, grid_for
from quietsum.mechanisms.rng import RandomSource, choose_source
from quietsum.privacy import Neighbours, PrivacyEvent, PureDP, RandomizedResponse, Repeated
from quietsum.validate import whole_number

__all__ = ["PosteriorSample", "PrivateNextToken"]

_LARGEST_TOKEN_EPSILON = 30.0
_FAILURE = 2.0**-186  # per candidate, as for the exponential mechanism


@final
@dataclass(frozen=True, kw_only=True)
class PrivateNextToken:
    """A token from λ · (the model's distribution) + (1 − λ) · uniform (Majmudar et al. 2022, arXiv 2205.13621).

    At any output, each token has a chance of at least (1 − λ)/V, so one token costs ε = ln(1 + λV / (1 − λ));
    λ = (e^ε − 1) / (V − 1 + e^ε) is what ε allows. It is k-ary randomised response on the token that the model would
    have said, and its event says so.

    The assumption: readers see sampled tokens and nothing else of the model. Not its weights, not its logits or
    probabilities, not another decoder's output. Every token of every answer is charged, tokens that were thrown away
    because the text was not liked included. What is protected are the records the model learnt from, all of them at
    once: no training is trusted, any two models count as neighbours. The prompt and the vocabulary are public; a prompt
    made from protected records (retrieval) is covered only if they reach the output through the model alone.

    For a large vocabulary λ is tiny at small ε: with V = 50,000 and ε = 1 a token in 30,000 is the model's. Restrict
    the vocabulary by public means first.

    Guarantees: the coin for λ and the uniform token are exact; how well the model's own distribution is sampled has no
    part in the claim.
    """

    epsilon: float
    vocabulary: int

    def __post_init__(self) -> None:
        epsilon = target("epsilon", self.epsilon)
        if epsilon > _LARGEST_TOKEN_EPSILON:
            problem = f"exceeds {_LARGEST_TOKEN_EPSILON:g} for a single token"
            raise InvalidParameter("epsilon", epsilon, problem, "it would protect no one")
        object.__setattr__(self, "epsilon", epsilon)
        object.__setattr__(self, "vocabulary", whole_number("vocabulary", self.vocabulary, 2))
        if self.event_of_one().epsilon > epsilon * (1 + 1e-9) or self.weight <= 0:
            raise InvalidParameter("epsilon", epsilon, "is too small for this vocabulary", "allow a larger ε")

    @property
    def weight(self) -> float:
        """λ, the chance that the token is the model's, rounded down."""
        gained = math.expm1(self.epsilon) * (1 - 1e-13)
        return gained / (gained + self.vocabulary)

    def release(self, probabilities: ArrayLike, rng: RandomSource | None = None) -> int:
        """The index of one token. ``probabilities`` is the model's distribution; it need not sum to one exactly."""
        chances = _distribution(probabilities, self.vocabulary)
        source = choose_source(rng)
        sums = np.cumsum(chances)
        models = int(np.searchsorted(sums, source.uniforms(1)[0] * sums[-1], side="right"))
        anyone = _uniform(self.vocabulary, source)
        return min(models, self.vocabulary - 1) if source.coins(self.weight, 1)[0] else anyone

    def event_of_one(self) -> RandomizedResponse:
        """The event of one token."""
        weight = Fraction(self.weight)
        return RandomizedResponse(
            keep_probability=above(weight + (1 - weight) / self.vocabulary), categories=self.vocabulary
        )

    def event(self, tokens: int = 1) -> PrivacyEvent:
        """The event of an answer of so many tokens."""
        count = whole_number("tokens", tokens, 1)
        return self.event_of_one() if count == 1 else Repeated(times=count, event=self.event_of_one())


@final
@dataclass(frozen=True, kw_only=True)
class PosteriorSample:
    """One sample of a posterior over finitely many candidates, with bounded log-likelihoods (Dimitrakakis et al. 2014).

    P(θ) ∝ prior(θ) · exp(τ Σ ℓ(x, θ)) with each ℓ clamped to public ``bounds``. A row that comes or goes moves the sum
    by a number between the bounds, and what all candidates share cancels: one sample costs τ · (highest − lowest), a
    replaced row twice that. At τ = 1 the sample is the posterior's own; a smaller ``epsilon`` tempers it.

    The draw is exact, over a finite list. A Markov chain is refused: after finitely many steps it is off by a distance
    without a known bound, and that distance would be δ.

    Guarantees: pure ε with δ = ``failure(candidates)``; ``neighbours`` is the relation that the event holds for. NaN is
    refused; −∞ is clamped as any number is.
    """

    bounds: Bounds
    epsilon: float | None = None
    neighbours: Neighbours = Neighbours.ADD_REMOVE
    sampler: str = "exact"

    def __post_init__(self) -> None:
        if self.sampler != "exact":
            raise InvalidParameter(
                "sampler", self.sampler, "gives no guarantee: a chain that is stopped has a distance from the "
                "posterior without a known bound, and that distance is part of δ",
                "list finitely many candidates and draw exactly (sampler='exact')",
            )  # fmt: skip
        low, high = check_bounds(self.bounds)
        object.__setattr__(self, "bounds", (low, high))
        object.__setattr__(self, "neighbours", check_relation(self.neighbours))
        if self.epsilon is not None:
            object.__setattr__(self, "epsilon", target("epsilon", self.epsilon))
        target("epsilon", self._cost)  # the width of the bounds, if no ε was stated

    @property
    def temperature(self) -> float:
        """τ: 1 for the posterior itself, less where ε asks for it."""
        return min(1.0, self._cost / (self.bounds[1] - self.bounds[0]))

    @property
    def _cost(self) -> float:
        """What a row that comes or goes costs: ε, or the width of the bounds if that is less."""
        width = self.bounds[1] - self.bounds[0]
        if self.epsilon is None:
            return width
        return min(width, self.epsilon / (2 if self.neighbours is Neighbours.REPLACE_ONE else 1))

    def release(
        self, log_likelihoods: ArrayLike, rng: RandomSource | None = None, *, log_prior: ArrayLike | None = None
    ) -> int:
        """The index of one candidate. ``log_likelihoods`` has a row for each record and a column for each candidate."""
        try:
            table = np.asarray(log_likelihoods)
        except ValueError:  # rows of different lengths
            table = np.empty(0)
        if table.ndim != 2 or not table.shape[1] or (table.dtype.kind not in "fiu" and table.size):
            raise InvalidParameter(
                "log_likelihoods", f"{table.dtype} of shape {table.shape}", "is not a table of numbers",
                "pass one row for each record and one column for each candidate",
            )  # fmt: skip
        table = table.astype(np.float64)
        if np.isnan(table).any():
            raise InvalidParameter("log_likelihoods", "NaN", "is in the table", "clamp each by a rule of its own row")
        low, high = self.bounds
        grid = grid_for(high - low)
        rate = Fraction(self._cost) / grid.largest
        with np.errstate(over="ignore"):
            steps = bound_values(table - low, 0.0, high - low, grid).sum(axis=0)
        scores = [int(each) for each in steps]
        if log_prior is not None:
            scores = [score + more for score, more in zip(scores, _prior(log_prior, len(scores), rate), strict=True)]
        best, far = max(scores), math.ceil(800 / rate)
        distances = np.array([min(far, best - score) for score in scores], dtype=np.int64)
        return choose_index(distances, rate, choose_source(rng))

    def event(self) -> PureDP:
        """The event to account for, under ``neighbours``."""
        return PureDP(epsilon=self._cost * (2 if self.neighbours is Neighbours.REPLACE_ONE else 1))

    def failure(self, candidates: int) -> float:
        """Total variation distance of the draw from the ideal law, to be charged to δ."""
        return min(1.0, whole_number("candidates", candidates, 1) * _FAILURE)


def _distribution(probabilities: ArrayLike, size: int) -> NDArray[np.float64]:
    try:
        chances = np.asarray(probabilities)
    except ValueError:  # not a list
        chances = np.empty(0)
    if chances.shape != (size,) or chances.dtype.kind not in "fiu":
        problem = f"is not a list of {size} chances"
        raise InvalidParameter("probabilities", f"{chances.dtype} of shape {chances.shape}", problem)
    chances = chances.astype(np.float64)
    if not np.isfinite(chances).all() or (chances < 0).any() or not 0 < chances.sum() < math.inf:
        raise InvalidParameter("probabilities", "the model's distribution", "is none: negative, NaN, or all zero")
    return chances


def _uniform(size: int, rng: RandomSource) -> int:
    """Exactly uniform below ``size``: words beyond the last whole multiple of it are drawn again."""
    whole = (1 << 64) // size * size
    while (word := int(rng.words(1)[0])) >= whole:
        pass
    return word % size


def _prior(log_prior: ArrayLike, size: int, rate: Fraction) -> list[int]:
    """The prior in steps of the grid: what it adds to the scores. It is public, so rounding it costs nothing."""
    values = np.asarray(log_prior, dtype=np.float64)
    if values.shape != (size,) or not np.isfinite(values).all():
        raise InvalidParameter("log_prior", values.shape, f"is not a list of {size} finite numbers", "leave some out")
    return [round(Fraction(each) / rate) for each in values.tolist()]
