"""Rankings and scores: the best k of many, an order for retrieval, one bounded score.

>>> TopK(k=2, epsilon=100.0, sensitivity=1).release({"asthma": 40, "gout": 3, "flu": 90})
['flu', 'asthma']
>>> ScoreRelease(bounds=(0, 1), noise_multiplier=4.0).event()
Gaussian(noise_multiplier=4.0)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal, TypeVar, final, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from quietsum.errors import InvalidParameter
from quietsum.mechanisms.central.additive import GaussianMechanism, LaplaceMechanism, target
from quietsum.mechanisms.central.lattice import numbers
from quietsum.mechanisms.central.selection import PermuteAndFlip
from quietsum.mechanisms.central.sensitivity import L1, L2, LInf, Norm, Sensitivity
from quietsum.mechanisms.queries.rows import Bounds, check_bounds
from quietsum.mechanisms.rng import RandomSource, choose_source
from quietsum.privacy import Gaussian, Laplace, PrivacyEvent, PureDP, Repeated
from quietsum.validate import whole_number

__all__ = ["PrivateRanking", "ScoreRelease", "TopK"]

Name = TypeVar("Name")


@final
@dataclass(frozen=True, kw_only=True)
class TopK:
    """The best k options in order, by peeling: choose one by permute-and-flip, take it away, and so on k times.

    One unit moves every score by at most ``sensitivity``; ``monotone`` if it only raises or only lowers them, as with
    counts. Each choice costs ε / k.

    Guarantees: pure ε for the whole list (k choices compose), under the relation that the sensitivity was stated for;
    scores are not released.
    """

    k: int
    epsilon: float
    sensitivity: Sensitivity
    monotone: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "k", whole_number("k", self.k, 1))
        object.__setattr__(self, "epsilon", target("epsilon", self.epsilon))
        object.__setattr__(self, "sensitivity", self._choice.sensitivity)

    @overload
    def release(self, scores: Mapping[Name, float], rng: RandomSource | None = None) -> list[Name]: ...
    @overload
    def release(self, scores: ArrayLike, rng: RandomSource | None = None) -> list[int]: ...
    def release(self, scores: Any, rng: RandomSource | None = None) -> list[Any]:
        """The chosen options, best first: indices, or names where ``scores`` has names."""
        names = list(scores) if isinstance(scores, Mapping) else None
        values = numbers([scores[name] for name in names] if names is not None else scores, "scores")
        if values.ndim != 1 or values.size < self.k:
            raise InvalidParameter("scores", values.shape, f"are fewer than k = {self.k} scores", "ask for fewer")
        source = choose_source(rng)
        left = list(range(values.size))
        chosen = []
        for _ in range(self.k):
            chosen.append(left.pop(self._choice.release(values[left], source)))
        return chosen if names is None else [names[index] for index in chosen]

    def event(self) -> PrivacyEvent:
        """The event to account for, of the whole list."""
        return Repeated(times=self.k, event=PureDP(epsilon=self._choice.epsilon))

    def failure(self, options: int) -> float:
        """Total variation distance of all choices from the ideal law, to be charged to δ."""
        return min(1.0, self.k * self._choice.failure(options))

    @property
    def _choice(self) -> PermuteAndFlip:
        return PermuteAndFlip(epsilon=_part(self.epsilon, self.k), sensitivity=self.sensitivity, monotone=self.monotone)


@final
@dataclass(frozen=True, kw_only=True)
class PrivateRanking:
    """An order of documents by their scores, for retrieval: which ones come first, and no score.

    What one protected unit can move decides the way. ``moves="all"``: a record behind the scores (a user's clicks, a
    row of the training data) may move every document's score by ``sensitivity``; then the first ``k`` are peeled off,
    at ε / k each. ``moves="one"``: the unit is a document and moves its own score alone; then every score gets Laplace
    noise of scale sensitivity / ε and the whole list is sorted, at ε in all, however long it is.

    Guarantees: pure ε. That a document is in the list at all is public, and so is the query that it is ranked for.
    """

    epsilon: float
    sensitivity: float
    moves: Literal["all", "one"] = "all"
    k: int | None = None

    def __post_init__(self) -> None:
        if self.moves not in ("all", "one"):
            raise InvalidParameter("moves", self.moves, "is unknown", "choose 'all' or 'one': what one unit can move")
        if self.moves == "all" and self.k is None:
            remedy = "state how many documents are shown; each place costs ε / k"
            raise InvalidParameter("k", None, "is missing where one unit moves all scores", remedy)
        if self.k is not None:
            object.__setattr__(self, "k", whole_number("k", self.k, 1))
        object.__setattr__(self, "epsilon", target("epsilon", self.epsilon))
        _ = self._way

    @overload
    def release(self, scores: Mapping[Name, float], rng: RandomSource | None = None) -> list[Name]: ...
    @overload
    def release(self, scores: ArrayLike, rng: RandomSource | None = None) -> list[int]: ...
    def release(self, scores: Any, rng: RandomSource | None = None) -> list[Any]:
        """The documents, best first, ``k`` of them or all: indices, or names where ``scores`` has names."""
        way = self._way
        if isinstance(way, TopK):
            return way.release(scores, rng)
        names = list(scores) if isinstance(scores, Mapping) else None
        noisy = way.release(_scores([scores[name] for name in names] if names is not None else scores), rng)
        order = [int(index) for index in np.argsort(-noisy, kind="stable")][: self.k]
        return order if names is None else [names[index] for index in order]

    def event(self) -> PrivacyEvent:
        """The event to account for, of the whole order."""
        return self._way.event()

    def failure(self, documents: int) -> float:
        """Total variation distance of all draws from the ideal law, to be charged to δ."""
        return self._way.failure(documents)

    @property
    def _way(self) -> TopK | LaplaceMechanism:
        if self.moves == "all":
            return TopK(k=self.k or 1, epsilon=self.epsilon, sensitivity=self.sensitivity)
        return LaplaceMechanism(epsilon=self.epsilon, sensitivity=L1(self.sensitivity))


@final
@dataclass(frozen=True, kw_only=True)
class ScoreRelease:
    """One score within public ``bounds``, or several, with Gaussian noise; made for many releases of one pipeline.

    Scores are clamped to the bounds before the noise, and so is the result. If omitted, ``sensitivity`` is all that can
    happen: one unit moves every score from one bound to the other. State ``noise_multiplier`` and compose the events in
    an accountant (many rounds), or ε and δ for a single release. ``noise="laplace"`` gives a pure ε instead.

    Guarantees: ``event()`` describes the noise really added. NaN is refused.
    """

    bounds: Bounds = (0.0, 1.0)
    epsilon: float | None = None
    delta: float | None = None
    noise_multiplier: float | None = None
    sensitivity: Norm | float | None = None
    noise: Literal["gaussian", "laplace"] = "gaussian"

    def __post_init__(self) -> None:
        low, high = check_bounds(self.bounds)
        object.__setattr__(self, "bounds", (low, high))
        if self.sensitivity is None:
            object.__setattr__(self, "sensitivity", LInf(high - low))
        elif not isinstance(self.sensitivity, L1 | L2 | LInf):
            object.__setattr__(self, "sensitivity", LInf(self.sensitivity))
        if self.noise not in ("gaussian", "laplace"):
            raise InvalidParameter("noise", self.noise, "is unknown", "choose 'gaussian' or 'laplace'")
        _ = self._mechanism

    @overload
    def release(self, score: float, rng: RandomSource | None = None) -> float: ...
    @overload
    def release(self, score: ArrayLike, rng: RandomSource | None = None) -> NDArray[np.float64]: ...
    def release(self, score: Any, rng: RandomSource | None = None) -> Any:
        """The noisy score, within the bounds."""
        low, high = self.bounds
        noisy = self._mechanism.release(np.clip(numbers(score, "score").astype(np.float64), low, high), rng)
        return float(np.clip(noisy, low, high)) if np.ndim(noisy) == 0 else np.clip(noisy, low, high)

    def event(self) -> Gaussian | Laplace:
        """The event to account for, of all scores of one release together."""
        return self._mechanism.event()

    def failure(self, scores: int = 1) -> float:
        """Total variation distance of the noise from the ideal law, to be charged to δ."""
        return self._mechanism.failure(scores)

    @property
    def _mechanism(self) -> GaussianMechanism | LaplaceMechanism:
        assert self.sensitivity is not None
        if self.noise == "gaussian":
            return GaussianMechanism(
                epsilon=self.epsilon, delta=self.delta, noise_multiplier=self.noise_multiplier,
                sensitivity=self.sensitivity,
            )  # fmt: skip
        for name in ("delta", "noise_multiplier"):
            if getattr(self, name) is not None:
                raise InvalidParameter(name, getattr(self, name), "has no place with Laplace noise", "state ε alone")
        return LaplaceMechanism(epsilon=self.epsilon, sensitivity=self.sensitivity)  # type: ignore[arg-type]


def _part(epsilon: float, parts: int) -> float:
    """ε / parts, rounded down."""
    share = epsilon / parts
    while Fraction(share) * parts > Fraction(epsilon):
        share = float(np.nextafter(share, 0.0))
    return share


def _scores(scores: ArrayLike) -> NDArray[Any]:
    values = numbers(scores, "scores")
    if values.ndim != 1 or not values.size:
        raise InvalidParameter("scores", values.shape, "is not a list of at least one score", "pass one a document")
    return values
