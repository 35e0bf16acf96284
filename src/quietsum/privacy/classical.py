"""The composition theorems of the textbooks, for events known only as ε-DP or (ε, δ)-DP.

Three rules, from loose to tight:

``basic``
    Sums: (Σ ε_i, Σ δ_i) (Dwork, Kenthapadi, McSherry, Mironov, Naor 2006, Theorem 1).
``advanced``
    √(2 ln(1/δ') Σ ε_i²) + Σ ε_i (e^{ε_i} − 1) at Σ δ_i + δ' (Dwork, Rothblum, Vadhan 2010, Theorem III.3; Azuma's
    inequality gives the same for different ε_i). The second sum is often forgotten; without it the formula claims
    24.0 for 100 uses at ε = 0.5 and δ = 1e-5, where 31.2 is the truth.
``optimal``
    The best that (ε_i, δ_i) alone allow. The worst event tells all with probability δ_i and otherwise has a loss of
    +ε_i with probability e^{ε_i}/(1 + e^{ε_i}), else −ε_i. Losses add up, so 1 − δ(ε) = Π(1 − δ_i)·(1 − h(ε)) with
    h(ε) = E[(1 − e^{ε−L})₊] for the sum L of independent two-point losses (Kairouz, Oh, Viswanath 2015, Theorem 3.3;
    with different ε_i Murtagh, Vadhan 2016).

A use at large ε: 100 events at ε = 1 cost 219.8 by the advanced rule and 100 by the basic one. Each rule reports its
own formula and nothing else, so that a reader can check it; who wants the best takes ``optimal``, never above either.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from typing import Literal, Self, final

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

from quietsum.errors import InvalidParameter, UnsupportedEvent
from quietsum.privacy import events as ev, pairs as pr
from quietsum.privacy.accounting import History, check_delta
from quietsum.privacy.guarantee import Guarantee
from quietsum.privacy.units import Neighbours, Observer, PrivacyUnit
from quietsum.validate import choice, non_negative, open_probability, positive

__all__ = ["ClassicalAccountant", "classical_gaussian_noise_multiplier"]

Rule = Literal["optimal", "basic", "advanced"]
RULES: tuple[Rule, ...] = ("optimal", "basic", "advanced")
Losses = NDArray[np.float64]

_MOST_COMBINATIONS = 2_000_000
_GRID_CELLS = 200_000
_MOST_GRID_WORK = 1_000_000_000


@final
class ClassicalAccountant:
    """Composes events that are ε-DP or (ε, δ)-DP by one of the three rules of the module's text.

    Laplace noise, discrete Laplace noise and randomised response enter with their pure ε, which forgets how they behave
    below their worst case: ExactAccountant says less for them. Gaussian noise has no (ε, δ) of its own and is refused.

    Guarantees: ε is an upper bound. Under ``optimal`` it is also a lower bound where every composed event *is* the
    worst of its kind by definition (PureDP, ApproximateDP, binary randomised response); else ``epsilon_lower`` is 0.
    The composition is the one of a fixed schedule: the ε_i must not depend on what was seen (see RenyiFilter).

    >>> from quietsum.privacy.events import PureDP
    >>> [round(ClassicalAccountant(rule=rule).compose(PureDP(epsilon=0.5), times=100).epsilon(delta=1e-5).epsilon, 1)
    ...  for rule in ("basic", "advanced", "optimal")]
    [50.0, 56.4, 31.2]
    """

    def __init__(
        self,
        *,
        rule: Rule = "optimal",
        neighbours: Neighbours = Neighbours.ADD_REMOVE,
        unit: PrivacyUnit | None = None,
        observer: Observer = Observer.RECIPIENTS,
    ) -> None:
        self.rule: Rule = choice("rule", rule, RULES)
        self.history = History(neighbours, unit, observer)
        self._worst_case = True
        self._totals: _Totals | None = None
        self._losses: _LossSum | None = None

    def supports(self, event: ev.PrivacyEvent) -> bool:
        """Whether every part of ``event`` has an ε and a δ of its own."""
        try:
            for pair, _ in pr.reduce_event(event, self.history.neighbours):
                _epsilon_delta(pair)
        except UnsupportedEvent:
            return False
        return True

    def compose(self, event: ev.PrivacyEvent, times: int = 1) -> Self:
        """Add ``times`` × ``event``; an event without an (ε, δ) is refused and changes nothing."""
        pairs = self.history.reduce(event, times)
        for pair, _ in pairs:
            _epsilon_delta(pair)
        self.history.add(event, times, pairs)
        self._worst_case = self._worst_case and (not pairs or _is_worst_case(event))
        self._totals = self._losses = None
        return self

    def epsilon(self, *, delta: float) -> Guarantee:
        """ε of everything composed at ``delta``; infinite where the δ_i alone are already above ``delta``."""
        delta = check_delta(delta)
        totals = self._sums()
        if self.rule == "basic":
            epsilon = totals.epsilon if totals.delta <= delta else math.inf
            return self.history.guarantee(epsilon=epsilon, delta=delta, method="basic composition")
        if self.rule == "advanced":
            epsilon = totals.dwork_epsilon(delta)
            return self.history.guarantee(epsilon=epsilon, delta=delta, method="advanced composition")
        epsilon, lower, method = self._optimal_epsilon(delta, totals)
        return self.history.guarantee(
            epsilon=epsilon, epsilon_lower=lower if self._worst_case else 0.0, delta=delta, method=method
        )

    def delta(self, *, epsilon: float) -> float:
        """The smallest δ that the rule shows at ``epsilon``."""
        epsilon = non_negative("epsilon", epsilon)
        totals = self._sums()
        if self.rule == "basic":
            return totals.delta if epsilon >= totals.epsilon else 1.0
        if self.rule == "advanced":
            return totals.dwork_delta(epsilon)
        if totals.hopeless:
            return 1.0
        hockey = min(totals.hoeffding(epsilon), 0.0 if epsilon >= totals.epsilon else 1.0)
        losses = self._loss_sum(totals)
        if losses is not None and hockey > losses.floor:
            hockey = min(hockey, losses.hockey_stick(epsilon))
        return -math.expm1(totals.log_kept + math.log1p(-hockey)) if hockey < 1 else 1.0

    def _sums(self) -> _Totals:
        if self._totals is None:
            self._totals = _Totals([(*_epsilon_delta(pair), count) for pair, count in self.history.counts.items()])
        return self._totals

    def _loss_sum(self, totals: _Totals) -> _LossSum | None:
        if self._losses is None:
            self._losses = _LossSum.of(totals)
        return self._losses

    def _optimal_epsilon(self, delta: float, totals: _Totals) -> tuple[float, float, str]:
        """(ε, lower bound, method): exact where the losses can be listed, the safe side elsewhere."""
        method = "optimal composition"
        if totals.hopeless:
            return math.inf, 0.0, method
        if totals.epsilon == 0 and totals.log_kept == 0:
            return 0.0, 0.0, method
        hockey = -math.expm1(math.log1p(-delta) - totals.log_kept)  # what is left of δ for the two-point losses
        if hockey < 0:
            return math.inf, 0.0, method
        if totals.epsilon == 0 or hockey == 0:
            return totals.epsilon, 0.0, method
        simple = min(totals.epsilon, totals.mean + math.sqrt(-2.0 * math.log(hockey)) * math.sqrt(totals.square))
        losses = self._loss_sum(totals)
        if losses is None or hockey < losses.floor:
            return simple, 0.0, f"{method}, closed form (too many different ε to list)"
        epsilon = min(simple, losses.epsilon(hockey, +1))
        if losses.exact:
            return epsilon, min(epsilon, losses.epsilon(hockey, -1)), method
        return epsilon, 0.0, f"{method}, each ε rounded up to a grid of {losses.grid:.3g}"


def _is_worst_case(event: ev.PrivacyEvent) -> bool:
    """Whether the two-point pair is what ``event`` is, and not only a bound on it."""
    match event:
        case ev.PureDP() | ev.ApproximateDP():
            return True
        case ev.RandomizedResponse(categories=categories):
            return categories == 2
        case ev.Repeated(event=inner):
            return _is_worst_case(inner)
        case ev.Composed(events=parts):
            return all(map(_is_worst_case, parts))
        case _:
            return False


def _epsilon_delta(pair: pr.Pair) -> tuple[float, float]:
    match pair:
        case pr.ApproximatePair(epsilon=epsilon, delta=delta):
            return epsilon, delta
        case pr.LaplacePair(scale=scale):
            return 1.0 / scale, 0.0
        case pr.DiscreteLaplacePair(scale=scale, shift=shift):
            return shift / scale, 0.0
        case pr.ResponsePair(keep=keep, categories=categories):
            return ev.RandomizedResponse(keep_probability=keep, categories=categories).epsilon, 0.0
        case _:
            raise UnsupportedEvent(
                f"{type(pair).__name__} has no (ε, δ) of its own, only a whole curve; use RenyiAccountant or "
                "ExactAccountant, or state one point of the curve as ApproximateDP"
            )


@final
class _Totals:
    """The sums over all events that the closed forms need."""

    def __init__(self, parts: list[tuple[float, float, int]]) -> None:
        counts: dict[float, int] = {}
        for epsilon, _, count in parts:
            if epsilon > 0:
                counts[epsilon] = counts.get(epsilon, 0) + count
        self.groups = sorted(counts.items(), reverse=True)
        self.epsilon = _sum(epsilon * count for epsilon, count in self.groups)
        self.delta = min(1.0, _sum(delta * count for _, delta, count in parts))
        self.square = _sum(epsilon * epsilon * count for epsilon, count in self.groups)
        self.mean = _sum(epsilon * math.tanh(epsilon / 2.0) * count for epsilon, count in self.groups)
        self.drift = _sum(epsilon * _expm1(epsilon) * count for epsilon, count in self.groups)
        # ln Π(1 − δ_i): the chance that nothing was told outright
        self.log_kept = _sum(_log1m(delta) * count for _, delta, count in parts if delta)
        self.hopeless = math.isinf(self.epsilon) or math.isinf(self.log_kept)

    def dwork_epsilon(self, delta: float) -> float:
        """The rule of Dwork, Rothblum, Vadhan with what Σ δ_i leaves of ``delta``."""
        if not self.groups:
            return 0.0 if self.delta <= delta else math.inf
        if self.delta >= delta:
            return math.inf
        return math.sqrt(-2.0 * math.log(delta - self.delta)) * math.sqrt(self.square) + self.drift

    def dwork_delta(self, epsilon: float) -> float:
        """The same rule solved for δ."""
        if not self.groups:
            return self.delta
        if epsilon <= self.drift:
            return 1.0
        excess = epsilon - self.drift
        return min(1.0, self.delta + math.exp(-0.5 * excess * (excess / self.square)))

    def hoeffding(self, epsilon: float) -> float:
        """P(L > ε) ≤ exp(−(ε − E L)² / 2 Σ ε_i²) with E L = Σ ε_i tanh(ε_i/2).

        Hoeffding's inequality on intervals of length 2 ε_i; a closed form of Kairouz, Oh, Viswanath 2015, Theorem 3.5.
        """
        if epsilon <= self.mean:
            return 1.0
        excess = epsilon - self.mean
        return math.exp(-0.5 * excess * (excess / self.square)) if self.square else 0.0


def _expm1(value: float) -> float:
    return math.expm1(value) if value < 700 else math.inf


def _log1m(probability: float) -> float:
    return math.log1p(-probability) if probability < 1 else -math.inf


def _sum(values: Iterable[float]) -> float:
    try:
        return math.fsum(values)
    except OverflowError:  # more than a float holds
        return math.inf


@final
@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _LossSum:
    """The law of a sum of independent two-point losses, as ln P(L ≥ ℓ) and ln Q(L ≥ ℓ) at its falling values ℓ.

    "Accuse when L ≥ ℓ" are the best tests (Neyman–Pearson), so E[(1 − e^{ε−L})₊] = max over ℓ of P(L ≥ ℓ) − e^ε Q(L ≥
    ℓ). ``slack`` bounds the relative error of the probabilities, and is always taken to the safe side.
    """

    loss: Losses
    log_p: Losses
    log_q: Losses
    slack: float
    grid: float = 0.0
    floor: float = 0.0

    @property
    def exact(self) -> bool:
        return self.grid == 0

    @classmethod
    def of(cls, totals: _Totals) -> _LossSum | None:
        """Exact where all combinations can be listed, on a grid where that is affordable, else None."""
        if math.prod(count + 1 for _, count in totals.groups) <= _MOST_COMBINATIONS:
            return cls._enumerate(totals.groups)
        steps = sum(count for _, count in totals.groups)
        return cls._on_grid(totals, steps) if steps * _GRID_CELLS <= _MOST_GRID_WORK else None

    @classmethod
    def _enumerate(cls, groups: list[tuple[float, int]]) -> _LossSum:
        """Binomial losses of each distinct ε, and all their combinations."""
        loss, log_mass = np.zeros(1), np.zeros(1)
        magnitude = 0.0
        for epsilon, count in groups:
            lost = np.arange(count + 1, dtype=np.float64)  # how many of them came out as −ε
            binomial = gammaln(count + 1.0) - gammaln(lost + 1.0) - gammaln(count - lost + 1.0)
            log_share = binomial - lost * epsilon - count * math.log1p(math.exp(-epsilon))
            loss = np.add.outer(loss, (count - 2.0 * lost) * epsilon).ravel()
            log_mass = np.add.outer(log_mass, log_share).ravel()
            magnitude += float(gammaln(count + 1.0)) + 2.0 * count * epsilon
        order = np.argsort(-loss, kind="stable")
        return cls._of_masses(loss[order], log_mass[order], slack=1e-15 * (10.0 + 4.0 * magnitude + 50.0 * loss.size))

    @classmethod
    def _on_grid(cls, totals: _Totals, steps: int) -> _LossSum:
        """Each ε rounded up to a multiple of a grid (an ε-DP event is ε'-DP for ε' ≥ ε), then one convolution an event.

        All terms are positive, so nothing cancels; what underflows is far below ``floor``.
        """
        grid = totals.epsilon / (_GRID_CELLS - steps)
        mass = np.ones(1)
        for epsilon, count in totals.groups:
            cells = math.ceil(epsilon / grid)
            won = 1.0 / (1.0 + math.exp(-cells * grid))
            for _ in range(count):
                longer = np.zeros(mass.size + cells)
                longer[: mass.size] = won * mass
                longer[cells:] += (1.0 - won) * mass
                mass = longer
        loss = (mass.size - 1 - 2.0 * np.arange(mass.size, dtype=np.float64)) * grid
        kept = mass > 0
        slack = 1e-15 * (10.0 + 4.0 * steps + 50.0 * mass.size)
        return cls._of_masses(loss[kept], np.log(mass[kept]), slack=slack, grid=grid, floor=1e-280)

    @classmethod
    def _of_masses(
        cls, loss: Losses, log_mass: Losses, slack: float, grid: float = 0.0, floor: float = 0.0
    ) -> _LossSum:
        log_p, log_q = np.logaddexp.accumulate(log_mass), np.logaddexp.accumulate(log_mass - loss)
        return cls(loss=loss, log_p=log_p, log_q=log_q, slack=slack, grid=grid, floor=floor)

    def hockey_stick(self, epsilon: float) -> float:
        """E[(1 − e^{ε−L})₊], rounded up."""
        tests = int(np.searchsorted(-self.loss, -epsilon))  # the losses above ε
        if tests == 0:
            return 0.0
        log_p, log_q = float(self.log_p[tests - 1]) + self.slack, float(self.log_q[tests - 1]) - self.slack + epsilon
        return min(1.0, max(0.0, -math.exp(log_p) * math.expm1(log_q - log_p)))

    def epsilon(self, delta: float, side: int) -> float:
        """The smallest ε ≥ 0 with E[(1 − e^{ε−L})₊] ≤ delta: an upper (side +1) or lower (side −1) bound on it."""
        log_p = self.log_p + side * self.slack
        useful = log_p > math.log(delta)
        if not useful.any():
            return 0.0
        log_excess = log_p[useful] + np.log1p(-np.exp(math.log(delta) - log_p[useful]))
        return max(0.0, float(np.max(log_excess - self.log_q[useful])) + side * self.slack)


def classical_gaussian_noise_multiplier(epsilon: float, delta: float) -> float:
    """σ / C = √(2 ln(1.25/δ)) / ε, the textbook Gaussian mechanism (Dwork, Roth 2014, Theorem A.1).

    Proven for ε ≤ 1 only, and false beyond: at ε = 10 the formula's noise has δ = 2.3e-5 where 1e-5 was asked. So
    larger ε are refused. Even at ε = 1 it wastes noise (4.84 where 3.73 suffices);
    :func:`quietsum.privacy.exact.closed_forms.gaussian_epsilon` is exact for every ε.

    >>> round(classical_gaussian_noise_multiplier(1.0, 1e-5), 3)
    4.845
    """
    epsilon, delta = positive("epsilon", epsilon), open_probability("delta", delta)
    if epsilon > 1:
        raise InvalidParameter(
            "epsilon", epsilon, "lies outside the classical Gaussian theorem, which is proven for ε ≤ 1 only",
            "calibrate with quietsum.privacy.compute_noise_multiplier, which is exact for every ε",
        )  # fmt: skip
    return math.sqrt(2.0 * math.log(1.25 / delta)) / epsilon
