"""Privacy-loss distributions on a grid: two-sided bounds for every pair whose loss is known, by Fourier transform.

The referee beside the exact accountant, and its stand-in where there are only a few steps. The loss of each pair is put
on a grid twice (:mod:`~quietsum.privacy.pld.grid`): once so that δ can only grow, once so that it can only shrink; the
sums over all steps (:mod:`~quietsum.privacy.pld.convolution`) give an upper and a lower bound. Grid, window and tilt
are planned and refined until the bounds are close enough (:mod:`~quietsum.privacy.pld.refinement`). Both directions of
the relation are computed, and the worse one counts.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping
from typing import Self, final

import numpy as np

from quietsum.errors import MixedUnits, QuietsumError, UnsupportedEvent
from quietsum.privacy.accounting import History, check_delta
from quietsum.privacy.events import PrivacyEvent
from quietsum.privacy.guarantee import Guarantee
from quietsum.privacy.pairs import Pair, list_attained
from quietsum.privacy.pld.losses import Direction, cell_masses, refuse_unsupported, symmetric
from quietsum.privacy.pld.refinement import AtDelta, AtEpsilon, BoundQuery, Bounds, refine
from quietsum.privacy.units import Neighbours, Observer, PrivacyUnit
from quietsum.validate import non_negative, positive, whole_number

__all__ = ["PldAccountant", "pld_bounds", "pld_delta_bounds"]

MAX_POINTS = 1 << 21
_FIXED_POINTS = 1 << 24  # a grid somebody asked for may cost more
_ONE = 1 + 1e-12  # a δ that equals the mass at infinity up to rounding is taken to reach it


def pld_bounds(
    counts: Mapping[Pair, int], *, delta: float, tolerance: float = 5e-4, max_points: int = MAX_POINTS
) -> tuple[float, float]:
    """(lower, upper) bound on the ε at ``delta`` of all pairs, each used as often as ``counts`` says.

    The bounds are within tolerance · max(1, ε) where ``max_points`` grid points allow it.

    >>> from quietsum.privacy.pairs import GaussianPair
    >>> lower, upper = pld_bounds({GaussianPair(1.0): 1}, delta=1e-5)
    >>> lower <= 4.37717 <= upper <= lower + 1e-3
    True
    """
    bounds = _epsilon_bounds(counts, delta=delta, tolerance=tolerance, max_points=max_points)
    return bounds.lower, bounds.upper


def pld_delta_bounds(
    counts: Mapping[Pair, int], *, epsilon: float, tolerance: float = 1e-3, max_points: int = MAX_POINTS
) -> tuple[float, float]:
    """(lower, upper) bound on δ at ``epsilon``, within a factor 1 + tolerance where ``max_points`` allow it.

    For one sampled Gaussian with δ below about 1e-36 both bounds held in tests and lay orders of magnitude apart.
    """
    bounds = _delta_bounds(counts, epsilon=epsilon, tolerance=tolerance, max_points=max_points)
    return bounds.lower, bounds.upper


@final
class PldAccountant:
    """ε from privacy-loss distributions, from both sides.

    Guarantees: ``epsilon`` is an upper bound up to floating-point error, for which an allowance is added; the rounding
    to a grid, the finite window and the truncated tails are all inside. ``epsilon_lower`` holds in the same sense.

    ``grid`` fixes the spacing of the grid; by default it is chosen for each question.

    >>> from quietsum.privacy.events import Gaussian, PoissonSampled
    >>> step = PoissonSampled(rate=0.01, event=Gaussian(noise_multiplier=1.0))
    >>> spent = PldAccountant().compose(step, times=10_000).epsilon(delta=1e-5)
    >>> round(spent.epsilon, 2), spent.epsilon_lower <= 6.1877 <= spent.epsilon
    (6.19, True)
    """

    def __init__(
        self,
        *,
        grid: float | None = None,
        neighbours: Neighbours = Neighbours.ADD_REMOVE,
        unit: PrivacyUnit | None = None,
        observer: Observer = Observer.RECIPIENTS,
    ) -> None:
        self._grid = None if grid is None else positive("grid", grid, "pass a spacing such as 1e-4, or None")
        self.history = History(neighbours, unit, observer)

    def supports(self, event: PrivacyEvent) -> bool:
        """Whether the loss distribution of ``event`` is known under this accountant's relation."""
        try:
            for pair, _ in self.history.reduce(event):
                refuse_unsupported(pair)
        except (UnsupportedEvent, MixedUnits):
            return False
        return True

    def compose(self, event: PrivacyEvent, times: int = 1) -> Self:
        """Add ``event``, ``times`` times; an event without a known loss is refused and changes nothing."""
        pairs = self.history.reduce(event, times)
        for pair, _ in pairs:
            refuse_unsupported(pair)
        self.history.add(event, times, pairs)
        return self

    def epsilon(self, *, delta: float) -> Guarantee:
        """Both bounds on ε at ``delta``; nothing composed costs 0."""
        delta = check_delta(delta)
        counts = self.history.counts
        found = _epsilon_bounds(counts, delta=delta, grid=self._grid)
        lower = found.lower
        if list_attained(counts) != [counts]:  # an envelope's own ε bounds no mechanism from below
            lower = max(_epsilon_bounds(real, delta=delta, grid=self._grid).lower for real in list_attained(counts))
        return self.history.guarantee(
            epsilon=found.upper,
            epsilon_lower=min(lower, found.upper),
            delta=delta,
            method=f"pld: connect-the-dots, grid {found.spacing:.0e}" if found.spacing else "pld: nothing composed",
        )

    def delta(self, *, epsilon: float) -> float:
        """An upper bound on δ at ``epsilon``."""
        epsilon = non_negative("epsilon", epsilon)
        return _delta_bounds(self.history.counts, epsilon=epsilon, grid=self._grid).upper


def _epsilon_bounds(
    counts: Mapping[Pair, int],
    *,
    delta: float,
    tolerance: float = 5e-4,
    max_points: int = MAX_POINTS,
    grid: float | None = None,
) -> Bounds:
    delta = check_delta(delta)
    counts = _check_counts(counts)
    if not counts:
        return Bounds(0.0, 0.0, 0.0)
    with _representable():
        infinite = max(_infinite_mass(counts, direction) for direction in _directions(counts))
        if infinite > delta * _ONE:
            return Bounds(math.inf, math.inf, grid or 1.0)
        if infinite > 0:
            delta = min(delta * _ONE, 1.0)
        question = AtDelta(delta, positive("tolerance", tolerance), math.log(max(delta - infinite, 1e-13 * delta)))
        return _worse_direction(counts, question, max_points, grid)


def _delta_bounds(
    counts: Mapping[Pair, int],
    *,
    epsilon: float,
    tolerance: float = 1e-3,
    max_points: int = MAX_POINTS,
    grid: float | None = None,
) -> Bounds:
    epsilon = non_negative("epsilon", epsilon)
    counts = _check_counts(counts)
    if not counts:
        return Bounds(0.0, 0.0, 0.0)
    with _representable():
        return _worse_direction(counts, AtEpsilon(epsilon, positive("tolerance", tolerance)), max_points, grid)


@contextlib.contextmanager
def _representable() -> Iterator[None]:
    """Losses that no grid of floats can hold end in an error that says so, never in a number."""
    try:
        with np.errstate(all="ignore"):
            yield
    except QuietsumError:
        raise
    except (ArithmeticError, ValueError, IndexError, MemoryError) as problem:
        raise QuietsumError(
            f"the privacy losses of these events cannot be put on a grid of floats ({problem}); "
            "ask RenyiAccountant, or state noise and rates of a usual size"
        ) from problem


def _worse_direction(counts: Mapping[Pair, int], question: BoundQuery, max_points: int, grid: float | None) -> Bounds:
    limit = _FIXED_POINTS if grid is not None else whole_number("max_points", max_points, 1 << 10)
    worst = Bounds(0.0, 0.0, 0.0)
    for direction in _directions(counts):
        found = refine(counts, direction, question, max_points=limit, spacing=grid, at_least=worst.lower)
        spacing = found.spacing if found.upper > worst.upper or not worst.spacing else worst.spacing
        worst = Bounds(max(found.lower, worst.lower), max(found.upper, worst.upper), spacing)
    if math.isnan(worst.lower) or math.isnan(worst.upper):
        raise ArithmeticError("a bound is not a number")
    return Bounds(min(worst.lower, worst.upper), worst.upper, worst.spacing)


def _check_counts(counts: Mapping[Pair, int]) -> dict[Pair, int]:
    for pair, count in counts.items():
        refuse_unsupported(pair)
        whole_number("count", count)
    return {pair: count for pair, count in counts.items() if count}


def _directions(counts: Mapping[Pair, int]) -> tuple[Direction, ...]:
    return ("remove",) if all(symmetric(pair) for pair in counts) else ("remove", "add")


def _infinite_mass(counts: Mapping[Pair, int], direction: Direction) -> float:
    """What is certain to give a neighbour away: 1 − Π (1 − p_∞)."""
    masses = ((cell_masses(pair, np.zeros(1), direction).p_infinite, count) for pair, count in counts.items())
    return -math.expm1(math.fsum(count * math.log1p(-mass) if mass < 1 else -math.inf for mass, count in masses))
