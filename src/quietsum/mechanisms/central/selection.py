"""One choice of several: the exponential mechanism, permute-and-flip, report-noisy-max.

Each option has a score, and one unit moves every score by at most Δ. What is released is which option was chosen,
never its score.

>>> ExponentialMechanism(epsilon=20, sensitivity=1).release({"red": 3, "green": 40, "blue": 5})
'green'
>>> PermuteAndFlip(epsilon=1, sensitivity=1).release([3.0, 4.5, 4.0]) in (0, 1, 2)
True

The event is a pure ε. It holds for the relation that the sensitivity was stated for: unlike events of added noise it is
not doubled by an accountant that is asked about replaced units, so state how far a *replaced* unit moves a score there.

No float decides a draw that it cannot decide. Scores are rounded to a public grid, so that the distance k of a score
from the best is a whole number and its weight exp(−γk) has a rational γ. Weights are compared with random bits in
float64 first; where the two lie within a margin that covers every rounding error, 128 more bits are read and weights
are computed to 192 bits in integer arithmetic. All options are looked at in every draw, whichever is chosen.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate
from typing import Any, TypeVar, final, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from quietsum.errors import InvalidParameter
from quietsum.mechanisms.central.additive import check_noise, target
from quietsum.mechanisms.central.lattice import Lattice, above, numbers
from quietsum.mechanisms.central.sensitivity import L1, L2, LInf, Sensitivity
from quietsum.mechanisms.noise.laplace import DiscreteLaplaceNoise
from quietsum.mechanisms.noise.tables import BITS, exponential
from quietsum.mechanisms.rng import RandomSource, choose_source
from quietsum.privacy import PureDP
from quietsum.validate import whole_number

__all__ = ["ExponentialMechanism", "PermuteAndFlip", "ReportNoisyMax", "choose_index", "flips"]

Name = TypeVar("Name")

_FINE = 20  # bits of the sensitivity on the grid of scores
_NOTHING = 800  # e^-800 is nothing at 192 bits
_FAILURE = 2.0**-186
"""Per option: a weight is off by 2 units of 2⁻¹⁹², the total by as much for every option, a uniform has 192 bits."""


@final
@dataclass(frozen=True, kw_only=True)
class ExponentialMechanism:
    """Chooses option i with probability ∝ exp(ε · scoreᵢ / 2Δ) (McSherry, Talwar 2007).

    ``monotone`` drops the 2: one unit that comes or goes may only raise scores, or only lower them, as with counts.

    Guarantees: ε-differential privacy with δ = ``failure(options)``; the law is exact but for that, on scores rounded
    to Δ · 2⁻²⁰ or finer.
    """

    epsilon: float
    sensitivity: Sensitivity
    monotone: bool = False

    def __post_init__(self) -> None:
        _store(self)

    @overload
    def release(self, scores: Mapping[Name, float], rng: RandomSource | None = None) -> Name: ...
    @overload
    def release(self, scores: ArrayLike, rng: RandomSource | None = None) -> int: ...
    def release(self, scores: Any, rng: RandomSource | None = None) -> Any:
        """The chosen option: its index, or its name where ``scores`` has names. ``rng`` is the system's if omitted."""
        return _choose(scores, self, choose_index, rng)

    def event(self) -> PureDP:
        """The event to account for."""
        return PureDP(epsilon=self.epsilon)

    def failure(self, options: int) -> float:
        """Total variation distance of one choice among so many options from the ideal law, to be charged to δ."""
        return min(1.0, whole_number("options", options, 1) * _FAILURE)


@final
@dataclass(frozen=True, kw_only=True)
class PermuteAndFlip:
    """Looks at the options in random order, takes i with probability exp(−ε (best − scoreᵢ) / 2Δ), else goes on.

    Never worse than the exponential mechanism in expected score, and up to twice as near to the best (McKenna, Sheldon
    2020). ``monotone`` drops the 2.

    Guarantees: ε-differential privacy with δ = ``failure(options)``; the law is exact but for that, on scores rounded
    to Δ · 2⁻²⁰ or finer.
    """

    epsilon: float
    sensitivity: Sensitivity
    monotone: bool = False

    def __post_init__(self) -> None:
        _store(self)

    @overload
    def release(self, scores: Mapping[Name, float], rng: RandomSource | None = None) -> Name: ...
    @overload
    def release(self, scores: ArrayLike, rng: RandomSource | None = None) -> int: ...
    def release(self, scores: Any, rng: RandomSource | None = None) -> Any:
        """The chosen option: its index, or its name where ``scores`` has names. ``rng`` is the system's if omitted."""

        def first(distances: NDArray[np.int64], rate: Fraction, source: RandomSource) -> int:
            taken = flips(distances, rate, source)  # all coins are flipped, so that the time tells nothing
            order = source.permutation(taken.size)
            return int(order[np.argmax(taken[order])])

        return _choose(scores, self, first, rng)

    def event(self) -> PureDP:
        """The event to account for."""
        return PureDP(epsilon=self.epsilon)

    def failure(self, options: int) -> float:
        """Total variation distance of one choice among so many options from the ideal law, to be charged to δ."""
        return min(1.0, whole_number("options", options, 1) * _FAILURE)


@final
@dataclass(frozen=True, kw_only=True)
class ReportNoisyMax:
    """Adds discrete Laplace noise of scale 2Δ/ε to every score and reports the largest (Dwork, Roth 2014, §3.3).

    Of equal ones the first wins: for fixed noise on the others option i wins from some whole number of its own noise
    on, which a neighbour moves by at most 2Δ (Δ if ``monotone``), and the law's tail falls by no more than e^{−1/scale}
    a step. With Gumbel noise this would be the exponential mechanism, with exponential noise permute-and-flip.

    Guarantees: ε-differential privacy with δ = ``failure(options)``; scores are rounded to Δ · 2⁻²⁰ or finer.
    """

    epsilon: float
    sensitivity: Sensitivity
    monotone: bool = False

    def __post_init__(self) -> None:
        _store(self)

    @overload
    def release(self, scores: Mapping[Name, float], rng: RandomSource | None = None) -> Name: ...
    @overload
    def release(self, scores: ArrayLike, rng: RandomSource | None = None) -> int: ...
    def release(self, scores: Any, rng: RandomSource | None = None) -> Any:
        """The chosen option: its index, or its name where ``scores`` has names. ``rng`` is the system's if omitted."""

        def largest(distances: NDArray[np.int64], rate: Fraction, source: RandomSource) -> int:
            return int(np.argmax(self._noise(rate).sample(distances.shape, source) - distances))

        return _choose(scores, self, largest, rng)

    def event(self) -> PureDP:
        """The event to account for."""
        return PureDP(epsilon=self.epsilon)

    def failure(self, options: int) -> float:
        """Total variation distance of the noise on so many options from the ideal law, to be charged to δ."""
        return min(1.0, whole_number("options", options, 1) * self._noise(_grid(self)[1]).failure)

    @staticmethod
    def _noise(rate: Fraction) -> DiscreteLaplaceNoise:
        return DiscreteLaplaceNoise(scale=above(1 / rate))


Selection = ExponentialMechanism | PermuteAndFlip | ReportNoisyMax


def _store(mechanism: Selection) -> None:
    epsilon = target("epsilon", mechanism.epsilon)
    check_noise("epsilon", epsilon, 1 / epsilon)
    stated = mechanism.sensitivity
    object.__setattr__(mechanism, "epsilon", epsilon)
    object.__setattr__(mechanism, "sensitivity", LInf(stated.bound if isinstance(stated, L1 | L2 | LInf) else stated))
    if not isinstance(mechanism.monotone, bool):
        raise InvalidParameter("monotone", mechanism.monotone, "is neither True nor False")


def _grid(mechanism: Selection) -> tuple[Lattice, Fraction]:
    """The grid of scores, and γ: what one step of it costs."""
    assert isinstance(mechanism.sensitivity, LInf)
    return _find_grid(mechanism.sensitivity.bound, mechanism.epsilon, mechanism.monotone)


@functools.lru_cache(maxsize=64)
def _find_grid(bound: float, epsilon: float, monotone: bool) -> tuple[Lattice, Fraction]:
    lattice = Lattice(math.frexp(bound)[1] - 1 - _FINE)
    return lattice, Fraction(epsilon) / ((1 if monotone else 2) * lattice.steps_of(bound))


def _choose(
    scores: Any, mechanism: Selection, draw: Callable[[NDArray[np.int64], Fraction, RandomSource], int],
    rng: RandomSource | None,
) -> Any:  # fmt: skip
    """The option that ``draw`` chooses by the scores' distances from the best."""
    names = list(scores) if isinstance(scores, Mapping) else None
    values = numbers([scores[name] for name in names] if names is not None else scores, "scores")
    if values.ndim != 1 or not values.size:
        raise InvalidParameter(
            "scores", values.shape, "is not a list of at least one score", "pass one for each option"
        )
    lattice, rate = _grid(mechanism)
    index = draw(_distances(lattice.round(values), rate), rate, choose_source(rng))
    return index if names is None else names[index]


def _distances(steps: NDArray[Any], rate: Fraction) -> NDArray[np.int64]:
    """How far each score lies from the best, cut off where its weight is nothing at 192 bits."""
    far = math.ceil(_NOTHING / rate)
    best = int(steps.max())
    if steps.dtype == object:
        return np.array([min(far, best - int(entry)) for entry in steps], dtype=np.int64)
    return np.asarray(np.minimum(best - steps, far), dtype=np.int64)


# --------------------------------------------------------------------------------------------------- the draws


def choose_index(distances: NDArray[np.int64], rate: Fraction, rng: RandomSource, *, widen: float = 1.0) -> int:
    """An index with probability ∝ exp(−rate · distance), for whole distances of which one is zero.

    ``widen`` is for tests: with a wide margin every draw takes the exact path, to the same result on the same bits.
    """
    sums = np.cumsum(np.exp(-float(rate) * distances.astype(np.float64)))
    total = float(sums[-1])
    margin = widen * total * (1e-11 + distances.size * 2.0**-49)
    word = int(rng.words(1)[0])
    at = (word + 0.5) * 2.0**-64 * total
    index = int(np.searchsorted(sums, at, side="right"))
    near = np.abs(sums[max(0, index - 1) : index + 1] - at)
    if index < distances.size and not (near <= margin).any():
        return index
    more = rng.words(2).tolist()
    return _decide(distances, rate, (word << 128) | (more[0] << 64) | more[1])


def _decide(distances: NDArray[np.int64], rate: Fraction, uniform: int) -> int:
    """The same by integer weights of 192 bits and a uniform of as many."""
    weights = {distance: exponential(rate * distance) for distance in np.unique(distances).tolist()}
    sums = list(accumulate(weights[distance] for distance in distances.tolist()))
    target = uniform * sums[-1]
    return next(index for index, value in enumerate(sums) if target < value << BITS)


def flips(
    distances: NDArray[np.int64], rate: Fraction, rng: RandomSource, *, margin: float = 2.0**-38
) -> NDArray[np.bool_]:
    """Independent coins with chances exp(−rate · distance); one at distance zero always falls on True."""
    words = rng.words(distances.size)
    uniforms = words.astype(np.float64) * 2.0**-64
    chances = np.exp(-float(rate) * distances.astype(np.float64))
    taken = np.asarray(uniforms < chances)
    for index in np.flatnonzero((np.abs(uniforms - chances) <= margin) & (distances > 0)).tolist():
        more = rng.words(2).tolist()
        uniform = (int(words[index]) << 128) | (more[0] << 64) | more[1]
        taken[index] = uniform < exponential(rate * int(distances[index]))
    taken[distances == 0] = True
    return taken
