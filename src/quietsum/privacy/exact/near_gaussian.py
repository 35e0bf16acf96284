"""Exact prices for wide integer noise, through the Gaussian that it is next to.

Of vector Skellam noise and of sums of discrete Gaussians only moments are known, so exact accounting refuses them. But
on a fine grid they hardly differ from a rounded normal of the same variance μ, and rounding is post-processing of the
Gaussian mechanism, of which everything is known. The noise of all steps and coordinates together is one tape, drawn
without looking at the data. If the tape S and the tape G of rounded normals are close,

    S(A) ≤ e^η G(A) + β    and    G(A) ≤ e^η S(A) + β    for every set A of tapes,

then so are the runs that read them, on any data, however later steps depend on earlier answers. Hence, when the run
with Gaussian noise is (ε, δ′)-private, the run with integer noise is (ε + 2η, e^η δ′ + β (1 + e^{ε+2η}))-private.

How close: let k be one coordinate, x = k/√μ, and L = ln S(k)/G(k). For |x| ≤ 14 and μ ≥ 2²⁰,

    |L| ≤ B(x)/μ,    B(x) = x⁴/24 + 3x²/8 + 5/24        (docs/explanation/distributed-noise.md),

so |L| ≤ r = 1675/μ, and E[B(x)²] ≤ 1.4 under both laws, hence E[L²] ≤ v = 1.4/μ² and |E[L]| ≤ v. By Bernstein's
inequality the sum of N such L is at most η = Nv + t with probability ≥ 1 − exp(−t²/(2Nv + 2rt/3)); beyond |x| = 14 lies
less than 2e⁻⁹⁷ of either law. For a million coordinates and a thousand steps on our grid η is below 10⁻⁵.

The answer is the smaller one of this and Rényi's, which stands in any case; the method says which.

>>> from quietsum.privacy.events import PoissonSampled, Skellam
>>> wide = Skellam(variance=1e12, l1_sensitivity=1e8, l2_sensitivity=1e6, dimension=10_000)
>>> run = NearGaussianAccountant().compose(PoissonSampled(rate=0.01, event=wide), times=1000)
>>> round(run.epsilon(delta=1e-5).epsilon, 4), round(run.by_moments.epsilon(delta=1e-5).epsilon, 2)
(1.8282, 2.11)
"""

from __future__ import annotations

import dataclasses
import math
from typing import Self, final

from quietsum.errors import MixedUnits, UnsupportedEvent
from quietsum.privacy import events as ev
from quietsum.privacy.accounting import History, check_delta
from quietsum.privacy.exact.accountant import ExactAccountant
from quietsum.privacy.guarantee import Guarantee
from quietsum.privacy.renyi.accountant import RenyiAccountant
from quietsum.privacy.renyi.curves import sum_distance
from quietsum.privacy.units import Neighbours, Observer, PrivacyUnit

__all__ = ["LEAST_VARIANCE", "NearGaussianAccountant", "Tape", "as_gaussian"]

LEAST_VARIANCE = 2.0**20
"""Narrower noise is left to Rényi."""

_SECOND = 1.4  # μ² E[L²]
_LARGEST = 1675.0  # μ |L| within 14 deviations
_BEYOND = 2 * math.exp(-97.0)  # of a law, beyond 14 deviations
_SET_ASIDE = 1e-4  # of δ, for β
_METHOD = "exact, through the Gaussian that this noise is next to"


@final
@dataclasses.dataclass(frozen=True, slots=True)
class Tape:
    """How much integer noise was read: coordinates, the sum of v over them, and the largest r."""

    coordinates: float = 0.0
    second: float = 0.0
    largest: float = 0.0

    def plus(self, other: Tape, times: int = 1) -> Tape:
        """Both, ``other`` ``times`` times."""
        if not times or not other.coordinates:
            return self
        return Tape(
            self.coordinates + times * other.coordinates,
            (self.second + times * other.second) * (1 + 1e-12),
            max(self.largest, other.largest),
        )

    def distance(self, beta: float) -> float:
        """η with which this tape and that of rounded normals are (η, beta)-close; infinite where there is none."""
        left = beta - self.coordinates * _BEYOND
        if not self.coordinates:
            return 0.0
        if not left > 0:
            return math.inf
        nats = -math.log(left)
        half = self.largest * nats / 3
        return (self.second + half + math.sqrt(half * half + 2 * self.second * nats)) * (1 + 1e-9)


def as_gaussian(event: ev.PrivacyEvent) -> tuple[ev.PrivacyEvent, Tape] | None:
    """``event`` with Gaussian noise of the same width in place of integer noise, and the tape that it reads.

    None where the noise is too narrow, or where its dimension is not stated.
    """
    match event:
        case ev.Skellam(variance=variance, l2_sensitivity=reach, dimension=dimension):
            return None if dimension is None else _wide(variance, reach, dimension)
        case ev.DiscreteGaussianSum(sigma=sigma, shares=shares, sensitivity=reach, dimension=dimension):
            variance = math.nextafter(sigma * sigma * shares, 0.0)
            return _wide(variance, reach, dimension) if sum_distance(sigma, shares) <= 0.1 / variance else None
        case ev.DiscreteGaussian(sigma=sigma, sensitivity=reach, dimension=dimension) if dimension > 1:
            return _wide(math.nextafter(sigma * sigma, 0.0), reach, dimension)
        case ev.Composed(events=parts):
            found = [as_gaussian(part) for part in parts]
            tape = Tape()
            for part in found:
                if part is None:
                    return None
                tape = tape.plus(part[1])
            return ev.Composed(events=tuple(part[0] for part in found if part is not None)), tape
        case ev.Repeated(times=times) | ev.Shuffled(batches=times):
            inner = as_gaussian(event.event)
            return None if inner is None else (dataclasses.replace(event, event=inner[0]), Tape().plus(inner[1], times))
        case ev.PoissonSampled() | ev.FixedSizeSampled() | ev.Group() | ev.OneInOneOut():
            inner = as_gaussian(event.event)
            return None if inner is None else (dataclasses.replace(event, event=inner[0]), inner[1])
        case _:
            return event, Tape()


def _wide(variance: float, reach: float, dimension: int) -> tuple[ev.PrivacyEvent, Tape] | None:
    if variance < LEAST_VARIANCE:
        return None
    tape = Tape(float(dimension), dimension * _SECOND / variance / variance, _LARGEST / variance)
    return ev.Gaussian(noise_multiplier=math.sqrt(variance) / reach * (1 - 1e-15)), tape


@final
class NearGaussianAccountant:
    """Events with integer noise beside others: the exact price through Gaussians, or Rényi's where that is smaller.

    Guarantees: an upper bound for schedules that do not depend on what was released, as of
    :class:`~quietsum.privacy.exact.accountant.ExactAccountant`; no lower bound. It takes what the Rényi accountant
    takes.
    """

    def __init__(
        self,
        *,
        neighbours: Neighbours = Neighbours.ADD_REMOVE,
        unit: PrivacyUnit | None = None,
        observer: Observer = Observer.RECIPIENTS,
    ) -> None:
        self.by_moments = RenyiAccountant(neighbours=neighbours, unit=unit, observer=observer)
        self._exact: ExactAccountant | None = ExactAccountant(neighbours=neighbours, unit=unit, observer=observer)
        self._tape = Tape()

    def copy(self) -> NearGaussianAccountant:
        """An independent accountant with the same history."""
        other = NearGaussianAccountant()
        other.by_moments, other._tape = self.by_moments.copy(), self._tape
        other._exact = None if self._exact is None else self._exact.copy()
        return other

    @property
    def history(self) -> History:
        """What has been composed so far."""
        return self.by_moments.history

    def supports(self, event: ev.PrivacyEvent) -> bool:
        """Whether a Rényi curve of ``event`` is known under this accountant's relation."""
        return self.by_moments.supports(event)

    def compose(self, event: ev.PrivacyEvent, times: int = 1) -> Self:
        """Add ``times`` independent uses of ``event``; refused events change nothing."""
        self.by_moments.compose(event, times)
        near = as_gaussian(event)
        if self._exact is not None:
            try:
                self._exact = None if near is None else self._exact.compose(near[0], times)
            except (UnsupportedEvent, MixedUnits):
                self._exact = None
        if near is not None:
            self._tape = self._tape.plus(near[1], times)
        return self

    def epsilon(self, *, delta: float) -> Guarantee:
        """The smaller of the two bounds on the ε of everything composed."""
        delta = check_delta(delta)
        moments = self.by_moments.epsilon(delta=delta)
        if self._exact is None or not math.isfinite(moments.epsilon):
            return moments
        # β costs its share of δ at the largest ε that the answer can have.
        beta = _SET_ASIDE * delta / (1 + math.exp(min(moments.epsilon, 700.0)))
        eta = self._tape.distance(beta)
        if not eta < moments.epsilon:
            return moments
        found = self._exact.epsilon(delta=delta * (1 - _SET_ASIDE) * math.exp(-eta) * (1 - 1e-12))
        epsilon = (found.epsilon + 2 * eta) * (1 + 1e-14)
        if not epsilon < moments.epsilon:
            return moments
        return dataclasses.replace(
            moments, epsilon=epsilon, epsilon_lower=0.0, order=None, method=f"{_METHOD}; Rényi's is larger"
        )

    def delta(self, *, epsilon: float) -> float:
        """The smaller of the two bounds on δ at ``epsilon``."""
        moments = self.by_moments.delta(epsilon=epsilon)
        if self._exact is None:
            return moments
        beta = 1e-20 / (1 + math.exp(min(epsilon, 700.0)))
        eta = self._tape.distance(beta)
        if not 2 * eta < 1:
            return moments
        found = self._exact.delta(epsilon=max(0.0, epsilon - 2 * eta))
        more = 0.0 if epsilon >= 2 * eta else math.expm1(2 * eta)  # δ at a negative ε is at most δ(0) + 1 − e^ε
        return min(moments, 1.0, math.exp(eta) * (found + more) + beta * (1 + math.exp(min(epsilon, 700.0))))
