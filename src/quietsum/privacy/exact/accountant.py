"""The exact accountant: ε from both sides, in milliseconds, with every error inside the bounds.

For any composition, δ(ε) = (1/2πi) ∫ e^{K(z) − zε} / (z (z + 1)) dz along Re z = c, where K = Σ ln φ is additive over
steps (Alghamdi et al. 2023, arXiv 2208.09595; the formula is a Laplace inversion of (1 − e^{ε−L})₊). With nodes
t_k = k·s the trapezoid sum equals Σ_m δ(ε + mp) e^{cmp}, p = 2π/s (Poisson summation): all terms are
≥ 0, so discretisation alone never under-reports. What remains is bounded explicitly:

* truncation, by a bound on |φ| that holds for all t beyond the last node
  (:func:`quietsum.privacy.exact.contour.log_tail`);
* aliasing (it only widens the lower bound), by Chernoff bounds at other abscissae;
* quadrature and rounding of each node, by :class:`quietsum.privacy.exact.contour.Spectrum`.

Contours come from a fixed ladder of abscissae with s = c/κ, so that spectra are computed once for each distinct
mechanism and a round costs one multiply-add of a few dozen numbers.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Self, final

import numpy as np

from quietsum.errors import InvalidParameter, MixedUnits, QuietsumError, UnsupportedEvent
from quietsum.privacy.accounting import History, check_delta
from quietsum.privacy.events import PrivacyEvent
from quietsum.privacy.exact.closed_forms import GaussianCurve, SingleStepCurve, exponentials, joint_mu
from quietsum.privacy.exact.contour import has_contour
from quietsum.privacy.exact.envelopes import least_epsilon
from quietsum.privacy.exact.inversion import ContourLine, Inversion, log_weight
from quietsum.privacy.exact.mixtures import ROUNDING, Array, Direction
from quietsum.privacy.exact.moments import LADDER
from quietsum.privacy.exact.sums import RunningSums
from quietsum.privacy.guarantee import Guarantee
from quietsum.privacy.pairs import (
    EnvelopePair,
    GaussianPair,
    MergedPair,
    MixturePair,
    OppositePair,
    Pair,
    list_attained,
)
from quietsum.privacy.units import Neighbours, Observer, PrivacyUnit
from quietsum.validate import finite_number

__all__ = ["ExactAccountant"]

_MOST_NODES = 1 << 17
_MOST_STEPS = 1 << 53
_LOG_WEIGHT = log_weight(LADDER)
_WEIGHT_ROOM = 1e-14 * (LADDER + 1) * (1 + np.log1p(LADDER))
_SMOOTHING = (2e-5, 2e-4, 2e-3)  # what an extra Gaussian step may cost, as shares of ε
# Contours tried until the errors are small: (rungs down, factor on the density of nodes). More nodes mean less
# aliasing, lower rungs moments that are not about to explode.
_ATTEMPTS = ((0, 1), (1, 1), (0, 2), (1, 2), (0, 4), (1, 4), (2, 4), (0, 8), (3, 8), (4, 16))


class _Inconclusive(Exception):
    """The contour's certificate fails here; another method must answer."""


class _TooSlow(_Inconclusive):
    """The moment function falls so slowly along the contour that too many nodes would be needed."""


@final
class ExactAccountant:
    """Two-sided, certified ε of fixed schedules of Gaussian steps, plain, Poisson-sampled or on batches of fixed size,
    and of anything else that privacy-loss distributions can describe (then by :mod:`quietsum.privacy.pld.accountant`,
    which the method says).

    Guarantees: the schedule must not depend on what was released; use :class:`quietsum.privacy.RenyiFilter` if it does.

    >>> from quietsum import Gaussian, PoissonSampled
    >>> step = PoissonSampled(rate=0.01, event=Gaussian(noise_multiplier=1.0))
    >>> guarantee = ExactAccountant().compose(step, times=10_000).epsilon(delta=1e-5)
    >>> round(guarantee.epsilon, 4), guarantee.gap < 1e-6, guarantee.certified
    (6.1877, True, True)
    """

    def __init__(
        self,
        *,
        neighbours: Neighbours = Neighbours.ADD_REMOVE,
        unit: PrivacyUnit | None = None,
        observer: Observer = Observer.RECIPIENTS,
    ) -> None:
        self.history = History(neighbours, unit, observer)
        self._sums = RunningSums(self.history)

    def copy(self) -> ExactAccountant:
        """An independent accountant with the same history; what was computed is shared."""
        other = ExactAccountant(neighbours=self.history.neighbours, observer=self.history.observer)
        other.history = self.history.copy()
        other._sums = self._sums.copy(other.history)
        return other

    def supports(self, event: PrivacyEvent) -> bool:
        """Whether the contour or a privacy-loss distribution knows ``event`` under this relation."""
        try:
            self._reduce(event, 1)
        except (UnsupportedEvent, MixedUnits):
            return False
        return True

    def compose(self, event: PrivacyEvent, times: int = 1) -> Self:
        """Add ``times`` independent uses of ``event``; refused events change nothing."""
        self.history.add(event, times, self._reduce(event, times))
        return self

    def _reduce(self, event: PrivacyEvent, times: int) -> list[tuple[Pair, int]]:
        pairs = self.history.reduce(event, times)
        for pair, count in pairs:
            if count + self.history.counts.get(pair, 0) > _MOST_STEPS:
                raise InvalidParameter("times", times, "makes more steps than floats can count", "ask RenyiAccountant")
            if not has_contour(pair):
                from quietsum.privacy.pld.losses import refuse_unsupported

                refuse_unsupported(pair)
        return pairs

    # -------------------------------------------------------------------------------------- queries

    def epsilon(self, *, delta: float) -> Guarantee:
        """Upper and lower bound on the ε of everything composed, at ``delta``."""
        delta = check_delta(delta)
        counts = self.history.counts
        if not counts:
            return self.history.guarantee(epsilon=0.0, delta=delta, method="exact: nothing composed", certified=True)
        if all(isinstance(pair, GaussianPair) for pair in counts):
            bounds = GaussianCurve(self._gaussian_mu()).epsilon_bounds(delta)
            return self._certify(bounds, delta, "exact: closed form of the Gaussian")
        if self._has_envelopes() and self._single_step() is None:
            return self._between(delta)
        single = self._single_step()
        if single is not None:
            return self._certify(single.epsilon_bounds(delta), delta, "exact: closed form of one sampled step")
        if not all(map(has_contour, counts)):
            return self._fallback(delta, "not all events are Gaussian")
        if self._total_variation() <= delta:
            return self._certify((0.0, 0.0), delta, "exact: total variation below δ")
        try:
            return self._certify(self._contour_epsilon(delta), delta, "exact: contour")
        except (_Inconclusive, OverflowError) as reason:
            return self._fallback(delta, f"contour inconclusive: {reason}")

    def _between(self, delta: float) -> Guarantee:
        """ε of envelopes from above, ε of pairs that real datasets attain from below."""
        lower = self._lower_epsilon(delta)
        if not all(map(has_contour, self.history.counts)):
            return self._fallback(delta, "not all events are Gaussian", lower)
        if self._total_variation() <= delta:
            return self._certify((0.0, 0.0), delta, "exact: total variation below δ")
        try:
            try:
                upper, method = self._contour_epsilon(delta)[1], "exact: contour of the envelope"
            except _TooSlow:
                upper, method = self._smooth_epsilon(delta), "exact: contour of the envelope, smoothed"
        except (_Inconclusive, OverflowError) as reason:
            return self._fallback(delta, f"contour inconclusive: {reason}", lower)
        return self._certify((min(lower, upper), upper), delta, method)

    def _smooth_epsilon(self, delta: float) -> float:
        """An upper bound on ε for few steps, whose moments hardly fall along the contour because of the atoms at 0.

        One more Gaussian step of little μ never lowers ε, makes moments fall like e^{−μ²t²/2}, and costs about
        (c + 1) μ²/2 in ε: the least of some shares of it that lets the contour end.
        """
        log_delta = math.log(delta)
        rung, ceiling = max((self._chernoff(each, log_delta) for each in self._sums.directions()), key=lambda it: it[1])
        if not math.isfinite(ceiling):
            raise _Inconclusive("no finite moment")
        for share in _SMOOTHING:
            smooth = self.copy()
            mu = math.sqrt(2 * share * max(ceiling, 1e-6) / (1 + float(LADDER[rung])))
            smooth.history.add_pair(GaussianPair(1 / mu), 1)
            with contextlib.suppress(_TooSlow):
                return smooth._contour_epsilon(delta)[1]
        raise _Inconclusive("moments fall too slowly, smoothed or not")

    def _has_envelopes(self) -> bool:
        return any(isinstance(pair, EnvelopePair) for pair in self.history.counts)

    def _attaining_accountants(self) -> Iterator[ExactAccountant]:
        """The same history with pairs that real datasets attain in the place of envelopes."""
        for counts in list_attained(self.history.counts):
            other = ExactAccountant(neighbours=self.history.neighbours, observer=self.history.observer)
            for pair, count in counts.items():
                other.history.add_pair(pair, count)
            yield other

    def _lower_epsilon(self, delta: float) -> float:
        """A lower bound on ε: the best of what real datasets attain, as far as the contour can tell."""
        first, *others = self._attaining_accountants()
        lower = first.epsilon(delta=delta).epsilon_lower
        lower = max(
            lower, *(least_epsilon(pair, delta) for pair in self.history.counts if isinstance(pair, EnvelopePair))
        )
        for other in others if all(map(has_contour, self.history.counts)) else ():
            with contextlib.suppress(_Inconclusive, OverflowError):
                lower = max(lower, other._contour_epsilon(delta)[0])
        return lower

    def delta(self, *, epsilon: float) -> float:
        """An upper bound on δ(ε)."""
        return self.delta_bounds(epsilon=epsilon)[1]

    def delta_bounds(self, *, epsilon: float) -> tuple[float, float]:
        """A lower and an upper bound on δ(ε)."""
        epsilon = finite_number("epsilon", epsilon)
        counts = self.history.counts
        if not counts:
            value = max(0.0, -math.expm1(epsilon))
            return value, value
        if all(isinstance(pair, GaussianPair) for pair in counts):
            return GaussianCurve(self._gaussian_mu()).delta_bounds(epsilon)
        single = self._single_step()
        if single is not None:
            return single.delta_bounds(epsilon)
        if self._has_envelopes():
            lower, upper = (
                next(self._attaining_accountants()).delta_bounds(epsilon=epsilon)[0],
                self._worst_delta(epsilon)[1],
            )
            return min(lower, upper), upper
        return self._worst_delta(epsilon)

    def _worst_delta(self, epsilon: float) -> tuple[float, float]:
        """Bounds on δ(ε) of the pairs themselves: by the contour, else by privacy-loss distributions."""
        counts = self.history.counts
        if all(map(has_contour, counts)):
            try:
                return self._contour_delta(epsilon)
            except (_Inconclusive, OverflowError):
                pass
        from quietsum.privacy.pld.accountant import pld_delta_bounds

        with np.errstate(all="ignore"):
            lower, upper = pld_delta_bounds(counts, epsilon=abs(epsilon))
        if epsilon >= 0:
            return lower, upper
        odds = math.exp(epsilon)  # δ(−ε) = 1 − e^{−ε} (1 − δ(ε)), as the worse direction of both counts
        return -math.expm1(epsilon) + odds * lower, min(1.0, -math.expm1(epsilon) + odds * upper)

    # ------------------------------------------------------------------------------------- branches

    def _gaussian_mu(self) -> float:
        return joint_mu((p.sigma, n) for p, n in self.history.counts.items() if isinstance(p, GaussianPair))

    def _single_step(self) -> SingleStepCurve | None:
        if len(self.history.counts) == 1:
            ((pair, count),) = self.history.counts.items()
            if count == 1 and isinstance(pair, MixturePair) and pair.size == 1:
                return SingleStepCurve(pair)
            if count == 1 and isinstance(pair, EnvelopePair) and pair.near == 0:  # one step attains its envelope
                return SingleStepCurve(MixturePair(pair.sigma, pair.rate))
        return None

    def _total_variation(self) -> float:
        """An upper bound on δ(0): 1 − Π (1 − v), v being a step's own: that a unit is drawn, or its shift / (σ √2π)."""
        log_hidden = 0.0
        for pair, count in self.history.counts.items():
            if isinstance(pair, MixturePair):
                spared, shown = pair.size * math.log1p(-pair.rate), 0.4 * pair.rate * pair.size / pair.sigma
            elif isinstance(pair, EnvelopePair | MergedPair):
                spared, shown = math.log1p(-pair.rate), 0.4 * pair.rate * (1 - pair.near) / pair.sigma
            elif isinstance(pair, OppositePair):
                spared, shown = math.log1p(-pair.rate), 0.8 * pair.rate / pair.sigma
            else:
                assert isinstance(pair, GaussianPair)
                spared, shown = -math.inf, 0.4 / pair.sigma
            log_hidden += count * max(spared, math.log1p(-shown) if shown < 1 else -math.inf)
        return -math.expm1(log_hidden * (1 + 1e-9))

    def _certify(self, bounds: tuple[float, float], delta: float, method: str) -> Guarantee:
        lower, upper = bounds
        return self.history.guarantee(epsilon=upper, epsilon_lower=lower, delta=delta, method=method, certified=True)

    def _fallback(self, delta: float, reason: str, attained: float | None = None) -> Guarantee:
        from quietsum.privacy.pld.accountant import pld_bounds

        ceiling = self._ceiling(delta)
        method = "privacy-loss distribution"
        try:
            with np.errstate(all="ignore"):
                lower, upper = pld_bounds(self.history.counts, delta=delta)
        except QuietsumError:
            if not math.isfinite(ceiling):
                raise
            lower, upper = 0.0, math.inf
        lower = lower if attained is None else attained
        if ceiling < upper:
            upper, method = ceiling, "moment bound"
        return self.history.guarantee(
            epsilon=upper, epsilon_lower=min(lower, upper), delta=delta, method=f"exact: {method} ({reason})"
        )

    def _ceiling(self, delta: float) -> float:
        """An upper bound on ε that is always there: Chernoff's, or that of all units drawn in every step."""
        counts = self.history.counts
        if not all(map(has_contour, counts)):
            return math.inf
        mu = joint_mu((_without_sampling(pair), n) for pair, n in counts.items())
        best = GaussianCurve(mu).epsilon_bounds(delta)[1]
        try:
            return min(
                best, max(self._chernoff(direction, math.log(delta))[1] for direction in self._sums.directions())
            )
        except OverflowError:
            return best

    # ------------------------------------------------------------------------------------- contour

    def _contour_epsilon(self, delta: float) -> tuple[float, float]:
        log_delta = math.log(delta)
        lower = upper = 0.0
        for direction in self._sums.directions():
            rung, ceiling = self._chernoff(direction, log_delta)
            if not math.isfinite(ceiling):
                raise _Inconclusive("no finite moment")
            if min(ceiling, self._largest_loss(direction)) <= lower:  # this direction cannot be the worse one
                continue
            low, high = self._solve(direction, rung, log_delta, ceiling)
            lower, upper = max(lower, low), max(upper, high)
        return lower, upper

    def _chernoff(self, direction: Direction, log_delta: float) -> tuple[int, float]:
        """The best rung and Chernoff's upper bound on ε there, rounded up."""
        ladder = self._sums.ladder(direction)
        bounds = (ladder - log_delta - _LOG_WEIGHT + (1e-14 * (ladder - log_delta) + _WEIGHT_ROOM)) / LADDER
        rung = int(np.argmin(bounds))
        return rung, float(bounds[rung])

    def _largest_loss(self, direction: Direction) -> float:
        """No loss is larger: adding units is at most −k ln(1 − q) a step."""
        counts = self.history.counts
        if direction is Direction.REMOVE or not all(isinstance(pair, MixturePair) for pair in counts):
            return math.inf
        total = math.fsum(-n * p.size * math.log1p(-p.rate) for p, n in counts.items() if isinstance(p, MixturePair))
        return total * (1 + 1e-12)

    def _solve(self, direction: Direction, rung: int, log_delta: float, ceiling: float) -> tuple[float, float]:
        density = self._density(direction, rung, log_delta, ceiling)
        best: tuple[float, float] | None = None
        for inverse in self._inversions(direction, rung, density):
            centre = inverse.root(log_delta, ceiling)
            if (centre is None or centre <= 0) and inverse.bounds(0.0)[1] <= log_delta * (1 + 16 * ROUNDING):
                return 0.0, 0.0
            bounds = None if centre is None else inverse.bracket(centre, log_delta)
            if bounds is not None:
                best = bounds if best is None else (max(best[0], bounds[0]), min(best[1], bounds[1]))
                if best[1] - best[0] <= 1e-6 * max(best[1], 0.1):
                    break
        if best is None:
            raise _Inconclusive("the error bounds are too wide")
        return max(0.0, best[0]), max(0.0, best[1])

    def _density(self, direction: Direction, rung: int, log_delta: float, ceiling: float) -> int:
        """Nodes a unit of c that keep the expected aliasing near e^-16 of δ: the first contour then mostly serves."""
        density = 16 if log_delta > -18.5 else 20 if log_delta > -37 else 28
        c, above = LADDER[rung : rung + 2].tolist() if rung + 1 < LADDER.size else (1.0, 1.0)
        moment = float(self._sums.ladder(direction)[min(rung + 1, LADDER.size - 1)])
        if above > c and math.isfinite(moment):
            excess = moment - above * (ceiling - 2 / c) - float(_LOG_WEIGHT[rung + 1]) - log_delta + 16
            wanted = excess / (above - c) * c / (2 * math.pi)
            factor = next((factor for factor in (1, 2, 4) if density * factor >= wanted), 1)
            density *= factor
        return density

    def _contour_delta(self, epsilon: float) -> tuple[float, float]:
        lower = upper = 0.0
        for direction in self._sums.directions():
            chernoff = self._sums.ladder(direction) - LADDER * epsilon - _LOG_WEIGHT
            rung = int(np.argmin(chernoff))
            if not math.isfinite(chernoff[rung]):
                raise _Inconclusive("no finite moment")
            if self._largest_loss(direction) <= epsilon:
                continue
            if chernoff[rung] < -746:  # no float is as small as this
                upper = max(upper, 5e-324)
                continue
            low, high = self._evaluate(direction, rung, epsilon)
            lower, upper = max(lower, low), max(upper, high)
        return lower, min(1.0, upper)

    def _evaluate(self, direction: Direction, rung: int, epsilon: float) -> tuple[float, float]:
        low, high = -math.inf, math.inf
        for inverse in self._inversions(direction, rung, 16):
            bounds = inverse.bounds(epsilon)
            low, high = max(low, bounds[0]), min(high, bounds[1])
            if high - low <= 1e-3 or high < -690:
                return exponentials(low, high)
        raise _Inconclusive("the error bounds are too wide")

    def _inversions(self, direction: Direction, rung: int, density: int) -> Iterator[Inversion]:
        """One contour after the other, the cheapest first; those that would take too many nodes are left out."""
        for down, factor in _ATTEMPTS:
            most = _MOST_NODES if factor == 1 else _MOST_NODES // 4
            line = self._line(direction, max(0, rung - down), density * factor, most)
            if line is None and down == 0 and factor == 1:
                raise _TooSlow("the moment function decays too slowly along the contour, too few steps")
            if line is not None:
                yield Inversion(
                    line, self._sums.spectrum(line), self._sums.tail(line), self._sums.above(direction, line.c)
                )

    def _line(self, direction: Direction, rung: int, density: int, most: int) -> ContourLine | None:
        """The line with the fewest nodes whose tail certificate is good to about 1e-8 of the sum."""
        ladder = self._sums.ladder(direction)
        c = float(LADDER[rung])
        s = c / density
        nodes = 32
        curvature = _curvature(ladder, rung - 1)  # the lower neighbour's, moments may be about to explode above
        if curvature > 0:
            while nodes * s < math.sqrt(70 / curvature) and nodes < most:
                nodes *= 2
        while nodes <= most:
            line = ContourLine(direction, c, density, nodes)
            decay = self._sums.tail(line) - float(ladder[rung])
            wanted = -24 - math.log((c + 1) / (s * nodes))
            if decay <= wanted:
                return line
            nodes *= 4 if decay > wanted / 3 else 2  # the decay grows like t to t²
        return None


def _without_sampling(pair: Pair) -> float:
    """σ of the Gaussian that dominates ``pair``: a mixture of shifts is no worse than the largest shift."""
    assert isinstance(pair, GaussianPair | MixturePair | OppositePair | EnvelopePair | MergedPair)
    return pair.sigma / (pair.size if isinstance(pair, MixturePair) else 2 if isinstance(pair, OppositePair) else 1)


def _curvature(ladder: Array, rung: int) -> float:
    """K'' near a rung, from neighbouring ones; for planning only."""
    at = min(max(rung, 1), LADDER.size - 2)
    if not np.isfinite(ladder[at + 1]):
        at = max(1, at - 1)
    slopes = np.diff(ladder[at - 1 : at + 2]) / np.diff(LADDER[at - 1 : at + 2])
    return float(2 * (slopes[1] - slopes[0]) / (LADDER[at + 1] - LADDER[at - 1]))
