"""Zero-concentrated differential privacy: one number, ρ, that adds up.

A mechanism is ρ-zCDP when its Rényi divergence of every order α > 1 is at most α·ρ (Bun, Steinke 2016, Definition 1.1).
ρ adds up under composition, also when later mechanisms look at earlier answers (their Lemma 2.3), so a whole run is
one running sum. The price is that nothing sampled has a useful ρ; such events are refused, not guessed.

What each pair costs:

* Gaussian noise: 1 / 2σ² (their Proposition 1.6); the discrete Gaussian costs no more (Canonne, Kamath, Steinke 2020,
  Theorem 4, and Theorem 14 for vectors).
* ε-DP: ε·tanh(ε/2), which is below both ε²/2 (Bun, Steinke 2016, Proposition 1.4) and ε. It is the smallest ρ that
  fits all ε-DP mechanisms. Proof: the worst of them answers at odds e^ε (Kairouz, Oh, Viswanath 2015), and with
  u = α − 1/2 its divergence is D_α / α = [g(u²) − g(1/4)] / [u² − 1/4], g(s) = ln cosh(ε√s). As tanh(x)/x falls, g is
  concave, the chord's slope falls in u, and its supremum is the slope at α → 1, g'(1/4) = ε·tanh(ε/2).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, Self, final

from quietsum.errors import UnsupportedEvent
from quietsum.privacy import pairs as pr
from quietsum.privacy.accounting import History, check_delta
from quietsum.privacy.events import PrivacyEvent, RandomizedResponse
from quietsum.privacy.guarantee import Guarantee
from quietsum.privacy.units import Neighbours, Observer, PrivacyUnit
from quietsum.validate import choice, non_negative

__all__ = ["ConcentratedAccountant", "concentrated_delta", "concentrated_epsilon", "pair_rho"]

Conversion = Literal["tight", "standard"]
CONVERSIONS: tuple[Conversion, ...] = ("tight", "standard")


@final
class ConcentratedAccountant:
    """Adds up ρ and converts it to (ε, δ) at the end.

    ``conversion="standard"`` is ε = ρ + 2√(ρ ln 1/δ) (Bun, Steinke 2016, Proposition 1.3), the formula of most
    textbooks; ``"tight"`` takes the best order of Canonne, Kamath, Steinke 2020, Corollary 13, and never says more.

    Guarantees: the reported ε is an upper bound for the composed events, in any order and chosen adaptively as
    long as the total ρ was fixed beforehand. There is no lower bound; a Gaussian costs less than its ρ says.

    >>> from quietsum.privacy.events import Gaussian
    >>> run = ConcentratedAccountant().compose(Gaussian(noise_multiplier=4.0), times=50)
    >>> run.rho, round(run.epsilon(delta=1e-5).epsilon, 2)
    (1.5625, 9.23)
    """

    def __init__(
        self,
        *,
        conversion: Conversion = "tight",
        neighbours: Neighbours = Neighbours.ADD_REMOVE,
        unit: PrivacyUnit | None = None,
        observer: Observer = Observer.RECIPIENTS,
    ) -> None:
        self.conversion: Conversion = choice("conversion", conversion, CONVERSIONS)
        self.history = History(neighbours, unit, observer)

    @property
    def rho(self) -> float:
        """The total ρ of everything composed."""
        try:
            return math.fsum(pair_rho(pair) * count for pair, count in self.history.counts.items())
        except OverflowError:  # more than a float holds
            return math.inf

    def supports(self, event: PrivacyEvent) -> bool:
        """Whether every part of ``event`` has a ρ."""
        try:
            for pair, _ in pr.reduce_event(event, self.history.neighbours):
                pair_rho(pair)
        except UnsupportedEvent:
            return False
        return True

    def compose(self, event: PrivacyEvent, times: int = 1) -> Self:
        """Add ``times`` × ``event``; an event without a ρ is refused and changes nothing."""
        pairs = self.history.reduce(event, times)
        for pair, _ in pairs:
            pair_rho(pair)
        self.history.add(event, times, pairs)
        return self

    def epsilon(self, *, delta: float) -> Guarantee:
        """ε of everything composed; ``order`` is the α of the tight conversion."""
        delta = check_delta(delta)
        epsilon, order = concentrated_epsilon(self.rho, delta, self.conversion)
        method = f"zCDP, {self.conversion} conversion"
        return self.history.guarantee(epsilon=epsilon, delta=delta, method=method, order=order)

    def delta(self, *, epsilon: float) -> float:
        """The smallest δ that the conversion shows at ``epsilon``."""
        return concentrated_delta(self.rho, epsilon, self.conversion)


def pair_rho(pair: pr.Pair) -> float:
    """The ρ of one use of ``pair``; pairs that zCDP cannot describe raise UnsupportedEvent."""
    match pair:
        case pr.GaussianPair(sigma=sigma):
            return _half_square(1.0 / sigma)
        case pr.DiscreteGaussianPair(sigma=sigma, shift=shift):
            return _half_square(shift / sigma)
        case pr.VectorDiscreteGaussianPair(sigma=sigma, shift=distance):
            return _half_square(distance / sigma)
        case pr.ZcdpPair(rho=rho):
            return rho
        case pr.LaplacePair(scale=scale):
            return _pure_rho(1.0 / scale)
        case pr.DiscreteLaplacePair(scale=scale, shift=shift):
            return _pure_rho(shift / scale)
        case pr.ResponsePair(keep=keep, categories=categories):
            return _pure_rho(RandomizedResponse(keep_probability=keep, categories=categories).epsilon)
        case pr.ApproximatePair(epsilon=epsilon, delta=0):
            return _pure_rho(epsilon)
        case pr.ApproximatePair():
            raise UnsupportedEvent(
                "an (ε, δ)-private event with δ > 0 has no ρ: its Rényi divergence is infinite; use ExactAccountant or "
                "ClassicalAccountant, or state the event as PureDP or Zcdp if you can prove that"
            )
        case pr.MixturePair() | pr.OppositePair() | pr.EnvelopePair() | pr.SampledPair() | pr.SampledSumPair():
            raise UnsupportedEvent(
                "zCDP knows no amplification by sampling: the Rényi divergence of a sampled event is no line in α; "
                "use RenyiAccountant or ExactAccountant, or compose the event without its sampling"
            )
        case _:
            raise UnsupportedEvent(
                f"{type(pair).__name__} has no known ρ; use RenyiAccountant, or state what you can prove as Zcdp"
            )


def _half_square(ratio: float) -> float:
    return 0.5 * ratio * ratio


def _pure_rho(epsilon: float) -> float:
    return epsilon * math.tanh(epsilon / 2.0)


def concentrated_epsilon(rho: float, delta: float, conversion: Conversion = "tight") -> tuple[float, float | None]:
    """(ε, order) of ρ-zCDP at δ.

    The tight conversion is the least αρ + ln(1/αδ)/(α − 1) + ln(1 − 1/α) over α > 1. Its derivative vanishes where
    (α − 1)²ρ + ln α = ln 1/δ, an increasing function of α, so the best order is one bisection. Every α gives a valid ε:
    the bound stands however well the bisection went.

    >>> concentrated_epsilon(1.5625, 1e-5, "standard")[0]
    10.045...
    """
    rho, delta = _check_rho(rho), check_delta(delta)
    if rho == 0:
        return 0.0, None
    if math.isinf(rho):
        return math.inf, None
    log_inverse = -math.log(delta)
    if conversion == "standard":
        return rho + 2.0 * math.sqrt(rho) * math.sqrt(log_inverse), None

    above = _bisect_log(lambda x: x * x * rho + math.log1p(x) - log_inverse)  # x = α − 1
    epsilon = (1.0 + above) * rho + (log_inverse - math.log1p(above)) / above - math.log1p(1.0 / above)
    return max(0.0, epsilon), 1.0 + above


def concentrated_delta(rho: float, epsilon: float, conversion: Conversion = "tight") -> float:
    """δ of ρ-zCDP at ε: the least e^{(α−1)(αρ−ε)} (1 − 1/α)^{α−1} / α over α > 1, or e^{−(ε−ρ)²/4ρ} (standard).

    The logarithm of the first is convex in α with slope (2α − 1)ρ + ln(1 − 1/α) − ε, so its minimum is one bisection.
    """
    rho, epsilon = _check_rho(rho), non_negative("epsilon", epsilon)
    if rho == 0:
        return 0.0
    if math.isinf(rho):
        return 1.0
    if conversion == "standard":
        return math.exp(-(epsilon - rho) / rho * (epsilon - rho) / 4.0) if epsilon > rho else 1.0

    above = _bisect_log(lambda x: (1.0 + 2.0 * x) * rho - math.log1p(1.0 / x) - epsilon)
    log_delta = above * ((1.0 + above) * rho - epsilon - math.log1p(1.0 / above)) - math.log1p(above)
    return math.exp(min(0.0, log_delta))


def _check_rho(rho: float) -> float:
    return math.inf if rho == math.inf else non_negative("rho", rho)


def _bisect_log(increasing: Callable[[float], float]) -> float:
    """The positive root of an increasing function, by bisection of ln x; the ends of the range of floats otherwise."""
    low, high = -700.0, 700.0
    while high - low > 1e-13 * max(1.0, abs(low)):
        middle = 0.5 * (low + high)
        if increasing(math.exp(middle)) < 0:
            low = middle
        else:
            high = middle
    return math.exp(high)
