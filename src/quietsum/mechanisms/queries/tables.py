"""Counts, sums, means, histograms and quantiles of one column.

With ``epsilon`` alone the noise is Laplace's, with ``delta`` too it is Gaussian and calibrated exactly. Bounds and
categories are public; values are clamped to them. NaN and infinities are refused unless ``missing`` states what becomes
of them, row by row.

>>> NoisyCount(epsilon=0.5).event()
DiscreteLaplace(scale=2.0, sensitivity=1)
>>> NoisySum(epsilon=1.0, delta=1e-5, bounds=(0, 10)).event()
Gaussian(noise_multiplier=3.7306...)
>>> NoisyHistogram(epsilon=1.0, categories=("A", "B", "AB", "0")).release(["A", "A", "0"]).shape
(4,)
>>> NoisyQuantile(epsilon=50.0, candidates=range(100)).release([30.0] * 60 + [31.0] * 40)
30.0
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from quietsum.errors import InvalidParameter
from quietsum.mechanisms.central.additive import check_noise, target
from quietsum.mechanisms.central.integers import DiscreteGaussianMechanism, DiscreteLaplaceMechanism
from quietsum.mechanisms.central.lattice import above
from quietsum.mechanisms.central.selection import PermuteAndFlip
from quietsum.mechanisms.central.sensitivity import L2
from quietsum.mechanisms.gaussian import least_noise
from quietsum.mechanisms.noise.laplace import RoundedLaplaceNoise
from quietsum.mechanisms.noise.rounded_normal import FAILURE_PER_DRAW
from quietsum.mechanisms.queries.rows import (
    Bounds,
    Missing,
    bound_values,
    check_bounds,
    check_missing,
    check_relation,
    column,
    grid_for,
    list_values,
    total,
)
from quietsum.mechanisms.rng import RandomSource, choose_source
from quietsum.privacy import Composed, Gaussian, Laplace, Neighbours, PrivacyEvent, PureDP
from quietsum.validate import finite_number, open_probability, whole_number

__all__ = ["NoisyCount", "NoisyHistogram", "NoisyMean", "NoisyQuantile", "NoisySum"]


@final
@dataclass(frozen=True, kw_only=True)
class NoisyCount:
    """How many rows there are, or how many of them are True: an integer with discrete noise.

    Guarantees: one row moves the count by at most 1; ``event()`` describes the noise.
    """

    epsilon: float
    delta: float | None = None

    def __post_init__(self) -> None:
        _ = self._mechanism

    def release(self, rows: int | ArrayLike, rng: RandomSource | None = None) -> int:
        """The noisy count of a number that was counted already, or of the True among flags."""
        if isinstance(rows, int | np.integer) and not isinstance(rows, bool):
            counted = whole_number("rows", rows)
        else:
            flags = np.asarray(rows)
            if flags.ndim != 1 or (flags.dtype != np.bool_ and flags.size):
                problem = "is neither a count nor a list of flags"
                raise InvalidParameter("rows", f"{flags.dtype} of shape {flags.shape}", problem, "pass len(rows)")
            counted = int(np.count_nonzero(flags))
        return int(self._mechanism.release(counted, rng))

    def event(self) -> PrivacyEvent:
        """The event to account for."""
        return self._mechanism.event()

    def failure(self) -> float:
        """Total variation distance of the noise from the ideal law, to be charged to δ."""
        return self._mechanism.failure()

    @functools.cached_property
    def _mechanism(self) -> DiscreteLaplaceMechanism | DiscreteGaussianMechanism:
        if self.delta is None:
            return DiscreteLaplaceMechanism(epsilon=self.epsilon, sensitivity=1)
        return DiscreteGaussianMechanism(epsilon=self.epsilon, delta=self.delta, sensitivity=1)


@final
@dataclass(frozen=True, kw_only=True)
class NoisySum:
    """The sum of rows clamped to public ``bounds``.

    Guarantees: one row moves the sum by at most ``max(|lowest|, |highest|)``, verified in integers; float sums, whose
    rounding depends on all rows, take no part. ``event()`` describes the noise.
    """

    epsilon: float
    bounds: Bounds
    delta: float | None = None
    missing: Missing = "refuse"

    def __post_init__(self) -> None:
        _store(self)

    def release(self, rows: ArrayLike, rng: RandomSource | None = None) -> float:
        """The noisy sum."""
        low, high = self.bounds
        values, counts = column(rows, self.missing)
        grid = grid_for(max(abs(low), abs(high)))
        steps = total(bound_values(values, low, high, grid)[counts])
        return _float(steps + self._noise.draw(grid.largest, rng), grid.lattice.exponent)

    def event(self) -> PrivacyEvent:
        """The event to account for."""
        return self._noise.event

    def failure(self) -> float:
        """Total variation distance of the noise from the ideal law, to be charged to δ."""
        return self._noise.failure

    @functools.cached_property
    def _noise(self) -> _Noise:
        return _Noise.for_target(self.epsilon, self.delta, 1)


@final
@dataclass(frozen=True, kw_only=True)
class NoisyMean:
    """The mean of rows clamped to public ``bounds``.

    With ``size``, the public number of rows, it is a noisy sum over it. Without, half of ε (or half of the squared
    Gaussian cost) goes to the count; sums are taken from the middle of the bounds, which halves what one row can move.
    The result is clamped to the bounds.

    Guarantees: one row moves sum and count by at most half the width of the bounds and 1; ``event()`` holds both. A
    stated ``size`` must be public: account for it under zero-out or replace-one.
    """

    epsilon: float
    bounds: Bounds
    delta: float | None = None
    size: int | None = None
    missing: Missing = "refuse"

    def __post_init__(self) -> None:
        _store(self)
        if self.size is not None:
            object.__setattr__(self, "size", whole_number("size", self.size, 1))

    def release(self, rows: ArrayLike, rng: RandomSource | None = None) -> float:
        """The noisy mean."""
        low, high = self.bounds
        middle, half = low / 2 + high / 2, high / 2 - low / 2
        values, counts = column(rows, self.missing)
        grid = grid_for(half)
        with np.errstate(over="ignore"):
            steps = total(bound_values(values - middle, -half, half, grid)[counts])
        source = choose_source(rng)
        noisy = _float(steps + self._noise.draw(grid.largest, source), grid.lattice.exponent)
        number = self.size
        if number is None:
            number = max(1, int(np.count_nonzero(counts)) + self._noise.draw(1, source))
        return min(high, max(low, middle + noisy / number))

    def event(self) -> PrivacyEvent:
        """The event to account for: of the sum, and of the count unless the size is public."""
        return self._noise.event if self.size is not None else Composed(events=(self._noise.event,) * 2)

    def failure(self) -> float:
        """Total variation distance of the noise from the ideal law, to be charged to δ."""
        return self._noise.failure * (1 if self.size is not None else 2)

    @functools.cached_property
    def _noise(self) -> _Noise:
        return _Noise.for_target(self.epsilon, self.delta, 1 if self.size is not None else 2)


@final
@dataclass(frozen=True, kw_only=True)
class NoisyHistogram:
    """How many rows fall into each cell of a public list: ``categories``, or intervals between ``edges``.

    The i-th interval holds edges[i] ≤ x < edges[i + 1], the last one its upper edge too. ``outside`` says what becomes
    of a row that lies in no cell: an error (``"refuse"``), nothing (``"skip"``), or the nearest interval (``"clamp"``);
    NaN and infinities are near none. Cells without rows have noise too, so which cells appear tells nothing.

    Guarantees: one row moves one cell by 1; ``event()`` describes the noise on all cells together.
    """

    epsilon: float
    delta: float | None = None
    categories: Sequence[Hashable] | None = None
    edges: Sequence[float] | None = None
    outside: Literal["refuse", "skip", "clamp"] = "refuse"

    def __post_init__(self) -> None:
        if (self.categories is None) == (self.edges is None):
            raise InvalidParameter("categories", self.categories, "or edges must be given, and not both")
        if self.categories is not None:
            names = tuple(list_values("categories", self.categories, "list the public categories"))
            if not all(isinstance(name, Hashable) for name in names):
                raise InvalidParameter("categories", names, "are not distinct", "use strings or numbers")
            if not names or len(set(names)) != len(names):
                raise InvalidParameter("categories", names, "are empty or repeat", "list each public category once")
            object.__setattr__(self, "categories", names)
        if self.edges is not None:
            given = list_values("edges", self.edges, "list public edges")
            edges = tuple(finite_number("edges", edge) for edge in given)
            if len(edges) < 2 or any(a >= b for a, b in itertools.pairwise(edges)):
                raise InvalidParameter("edges", edges, "do not increase", "list two or more public edges in order")
            object.__setattr__(self, "edges", edges)
        allowed = ("refuse", "skip") if self.edges is None else ("refuse", "skip", "clamp")
        if self.outside not in allowed:
            raise InvalidParameter("outside", self.outside, "is unknown here", f"choose one of {', '.join(allowed)}")
        _ = self._mechanism

    @property
    def cells(self) -> int:
        """How many cells there are."""
        return len(self.categories) if self.categories is not None else len(self.edges or ()) - 1

    def release(self, rows: Iterable[Any], rng: RandomSource | None = None) -> NDArray[np.int64]:
        """The noisy counts of all cells, in their public order."""
        given = rows if isinstance(rows, np.ndarray) else list_values("rows", rows, "pass one value a row")
        cells = self._places(given)
        if (cells < 0).any():
            if self.outside == "refuse":
                raise InvalidParameter(
                    "rows", "a value", "lies in no cell", "list its cell, or state outside='skip' (or 'clamp')"
                )
            cells = cells[cells >= 0]
        return np.asarray(self._mechanism.release(np.bincount(cells, minlength=self.cells), rng))

    def event(self) -> PrivacyEvent:
        """The event to account for, of all cells together."""
        return self._mechanism.event()

    def failure(self) -> float:
        """Total variation distance of the noise from the ideal law, to be charged to δ."""
        return self._mechanism.failure(self.cells)

    def _places(self, rows: list[Any] | NDArray[Any]) -> NDArray[np.int64]:
        """The cell of each row, −1 for none."""
        if self.categories is not None:
            where = {name: index for index, name in enumerate(self.categories)}
            places = [where.get(row, -1) if isinstance(row, Hashable) else -1 for row in rows]
            return np.array(places, dtype=np.int64)
        edges = np.array(self.edges)
        values, good = column(rows, "skip")
        if self.outside == "clamp":
            values = np.clip(values, edges[0], edges[-1])
        cells = np.searchsorted(edges, values, side="right") - 1
        cells = np.where(values == edges[-1], self.cells - 1, cells)
        return np.where(good & (values >= edges[0]) & (values <= edges[-1]), cells, -1).astype(np.int64)

    @functools.cached_property
    def _mechanism(self) -> DiscreteLaplaceMechanism | DiscreteGaussianMechanism:
        if self.delta is None:
            return DiscreteLaplaceMechanism(epsilon=self.epsilon, sensitivity=1)
        return DiscreteGaussianMechanism(
            epsilon=self.epsilon, delta=self.delta, sensitivity=L2(1), dimension=self.cells
        )


@final
@dataclass(frozen=True, kw_only=True)
class NoisyQuantile:
    """A quantile, chosen from public ``candidates`` by permute-and-flip.

    The score of a candidate c is −|(1 − q) · #{x < c} − q · #{x > c}|, in whole numbers: zero where c splits the rows
    as the quantile q says (Smith 2011, with candidates for intervals). A row that comes or goes moves it by at most
    max(q, 1 − q), a replaced one by at most 1.

    Guarantees: pure ε under ``neighbours``, the relation to account under; the answer is one of the candidates,
    for all rows.
    """

    epsilon: float
    candidates: Sequence[float]
    quantile: float = 0.5
    missing: Missing = "refuse"
    neighbours: Neighbours = Neighbours.ADD_REMOVE

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", target("epsilon", self.epsilon))
        object.__setattr__(self, "neighbours", check_relation(self.neighbours))
        given = list_values("candidates", self.candidates, "list public values that the quantile may take")
        chosen = tuple(sorted({finite_number("candidates", each) for each in given}))
        if not chosen:
            raise InvalidParameter("candidates", (), "are none", "list public values that the quantile may take")
        object.__setattr__(self, "candidates", chosen)
        open_probability("quantile", self.quantile, "0.5 is the median")
        object.__setattr__(self, "missing", check_missing(self.missing))
        _ = self._mechanism

    def release(self, rows: ArrayLike, rng: RandomSource | None = None) -> float:
        """The chosen candidate."""
        values, counts = column(rows, self.missing)
        ordered = np.sort(values[counts])
        below = np.searchsorted(ordered, self.candidates, side="left").astype(np.int64)
        beyond = ordered.size - np.searchsorted(ordered, self.candidates, side="right").astype(np.int64)
        share = self._share
        scores = -np.abs((share.denominator - share.numerator) * below - share.numerator * beyond)
        return float(self.candidates[self._mechanism.release(scores, rng)])

    def event(self) -> PureDP:
        """The event to account for."""
        return self._mechanism.event()

    def failure(self) -> float:
        """Total variation distance of the choice from the ideal law, to be charged to δ."""
        return self._mechanism.failure(len(self.candidates))

    @property
    def _share(self) -> Fraction:
        return max(Fraction(1, 1 << 20), Fraction(self.quantile).limit_denominator(1 << 20))

    @functools.cached_property
    def _mechanism(self) -> PermuteAndFlip:
        share = self._share
        most = max(share.numerator, share.denominator - share.numerator)
        if self.neighbours is Neighbours.REPLACE_ONE:  # from one side of a candidate to the other
            most = share.denominator
        return PermuteAndFlip(epsilon=self.epsilon, sensitivity=most)


# ------------------------------------------------------------------------------------------- what they share


@final
@dataclass(frozen=True, kw_only=True)
class _Noise:
    """Noise on an exact integer sum: rounded Laplace or rounded normal, with the event of one such sum."""

    multiplier: float
    gaussian: bool

    @classmethod
    def for_target(cls, epsilon: float, delta: float | None, sums: int) -> _Noise:
        """The noise with which so many sums of the same rows are within the target together."""
        if delta is None:
            return cls(multiplier=above(sums / Fraction(target("epsilon", epsilon))), gaussian=False)
        noise = least_noise(target("epsilon", epsilon), open_probability("delta", delta))
        return cls(multiplier=noise * math.sqrt(sums) * (1 + 1e-15 * (sums - 1)), gaussian=True)

    def draw(self, largest: int, rng: RandomSource | None) -> int:
        """One draw for a sum that one row moves by at most ``largest``."""
        scale = above(Fraction(self.multiplier) * largest)
        source = choose_source(rng)
        if self.gaussian:
            return int(source.rounded_normals(scale, 1)[0])
        return int(RoundedLaplaceNoise(scale=scale).sample(1, source)[0])

    @property
    def event(self) -> PrivacyEvent:
        kind = Gaussian if self.gaussian else Laplace
        return kind(noise_multiplier=self.multiplier)

    @property
    def failure(self) -> float:
        """Of one draw: the bound for rounded normals also covers the digits of Laplace noise of any width, 2⁻¹⁰⁸."""
        return FAILURE_PER_DRAW if self.gaussian else _LAPLACE_FAILURE


_LAPLACE_FAILURE = 2.0**-108
_MOST_GAUSSIAN = 2.0**18  # 2^21 steps to a row's largest magnitude, and at most 2^40 to the noise


def _store(query: NoisySum | NoisyMean) -> None:
    object.__setattr__(query, "bounds", check_bounds(query.bounds))
    object.__setattr__(query, "missing", check_missing(query.missing))
    object.__setattr__(query, "epsilon", target("epsilon", query.epsilon))
    noise = query._noise
    check_noise("epsilon", query.epsilon, noise.multiplier)
    if noise.gaussian and noise.multiplier > _MOST_GAUSSIAN:
        problem = f"means noise of more than {_MOST_GAUSSIAN:g} times what a row moves"
        raise InvalidParameter("epsilon", query.epsilon, problem, "nothing would be left to see")


def _float(steps: int, exponent: int) -> float:
    return math.ldexp(float(steps), exponent)
