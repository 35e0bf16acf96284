"""What ε means to an attacker: error rates, advantage, and how far a belief can move.

An attacker who wants to know whether a unit took part runs a test with a false-positive rate α and a false-negative
rate β. Under (ε, δ)-DP no test beats β ≥ max(0, 1 − δ − e^ε α, e^{−ε}(1 − δ − α)) (Wasserman, Zhou 2010; Kairouz, Oh,
Viswanath 2015); a whole curve δ(ε) gives the best of these lines, the trade-off function f (Dong, Roth, Su 2022).

**Guarantees.** Every number here is a bound on *any* attacker: false-negative rates are lower bounds, true-positive
rates and advantages upper bounds. Each ε that is asked adds one valid line, so leaving some out only makes the bound
more careful. An accountant gives its whole curve and hence a much sharper answer than a single
:class:`~quietsum.privacy.guarantee.Guarantee`.
"""

from __future__ import annotations

import dataclasses
import math
from typing import final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from quietsum.errors import InvalidParameter
from quietsum.privacy.accounting import Accountant
from quietsum.privacy.guarantee import Guarantee
from quietsum.validate import non_negative, probability

__all__ = [
    "Posterior",
    "attacker_advantage",
    "explain_no_promise",
    "posterior_odds",
    "tradeoff_curve",
    "true_positive_rate",
]

Rates = NDArray[np.float64]

_FIRST_POINTS = 33
_MOST_POINTS = 600
_NARROW = 1e-4  # leaves relative errors of 1e-4 at a kink of δ(ε), of 1e-8 where δ is smooth


def tradeoff_curve(source: Accountant | Guarantee, false_positive_rates: ArrayLike) -> Rates:
    """The smallest false-negative rate that any attacker can reach at each false-positive rate.

    >>> from quietsum.privacy.guarantee import Guarantee
    >>> tradeoff_curve(Guarantee(epsilon=1.0, delta=0.0, method="example"), [0.0, 0.1, 0.5]).round(3)
    array([1.   , 0.728, 0.184])
    """
    return 1.0 - _largest_true_positive_rates(source, _rates(false_positive_rates))


def true_positive_rate(source: Accountant | Guarantee, false_positive_rate: float) -> float:
    """The largest share of members that any attacker can spot while wrongly accusing at most the given share.

    >>> from quietsum.privacy.guarantee import Guarantee
    >>> round(true_positive_rate(Guarantee(epsilon=1.0, delta=0.0, method="example"), 0.01), 4)
    0.0272
    """
    rate = probability("false_positive_rate", false_positive_rate)
    return float(_largest_true_positive_rates(source, np.array([rate]))[0])


def attacker_advantage(source: Accountant | Guarantee) -> float:
    """The largest true-positive rate minus false-positive rate over all tests: total variation.

    This is δ(0) of an accountant; (ε, δ) alone show (e^ε − 1 + 2δ) / (e^ε + 1) (Kairouz, Oh, Viswanath 2015). A coin
    has 0.

    >>> from quietsum.privacy.guarantee import Guarantee
    >>> round(attacker_advantage(Guarantee(epsilon=1.0, delta=0.0, method="example")), 4)
    0.4621
    """
    if isinstance(source, Guarantee):
        if math.isinf(source.epsilon):
            return 1.0
        shrink = math.exp(-source.epsilon)
        return min(1.0, (-math.expm1(-source.epsilon) + 2.0 * source.delta * shrink) / (1.0 + shrink))
    return _delta_of(source, 0.0)


_NO_DOUBT = 1e-9  # a chance that is none, where δ is smaller still


def explain_no_promise(guarantee: Guarantee) -> str:
    """One sentence if ``guarantee`` promises nothing that an attacker would notice; empty if it does promise something.

    Asked to guess from the output whether a unit took part, as likely as not, an attacker errs with a chance of at
    least (1 − δ) / (1 + e^ε), by the bound of :func:`attacker_advantage`. Where that is no more than δ, the chance that
    the promise leaves out anyway, nothing is promised. It is so from ε ≈ ln(1/δ) on: 11.5 at δ = 1e-5.

    >>> from quietsum.privacy.guarantee import Guarantee
    >>> explain_no_promise(Guarantee(epsilon=11.0, delta=1e-5, method="example"))
    ''
    >>> explain_no_promise(Guarantee(epsilon=572.0, delta=1e-5, method="example"))
    'ε = 572 per record means nothing: an attacker may be all but certain who took part (ε from 11.5 on says no more)'
    """
    least = max(guarantee.delta, _NO_DOUBT)
    shrink = math.exp(-guarantee.epsilon)
    if (1.0 - guarantee.delta) * shrink / (1.0 + shrink) > least:
        return ""
    line = math.log(max(1.0, (1.0 - guarantee.delta) / least - 1.0))
    return (
        f"ε = {guarantee.epsilon:.3g} per {guarantee.whom} means nothing: an attacker may be all but certain who took "
        f"part (ε from {line:.3g} on says no more)"
    )


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Posterior:
    """What an attacker may believe after he saw the output, who believed ``prior`` before.

    His odds can grow or shrink by a factor e^ε, so his belief stays between ``lowest`` and ``highest``. For pure DP
    (δ = 0) that holds for every output. With δ > 0 some outputs may move him further, but by more than a factor 2e^ε
    only with probability 2δ: δ ≥ E[(1 − e^{ε−L})₊] ≥ P(L > ε + ln 2) / 2.
    """

    prior: float
    lowest: float
    highest: float
    delta: float

    @property
    def odds(self) -> float:
        """The highest belief as odds; infinite where nothing is hidden."""
        return self.highest / (1.0 - self.highest) if self.highest < 1 else math.inf

    def __str__(self) -> str:
        text = f"a belief of {self.prior:.3g} can move to between {self.lowest:.3g} and {self.highest:.3g}"
        if self.delta == 0:
            return text
        return f"{text}; odds move by more than twice that factor with probability at most {2 * self.delta:.3g}"


def posterior_odds(source: Guarantee | float, prior: float) -> Posterior:
    """How far Bayes' rule can move a belief: prior·e^ε / (1 + prior·(e^ε − 1)), and the same with −ε.

    ``source`` is a guarantee, or a plain ε of pure DP. Read the text of :class:`Posterior` for what δ means here.

    >>> print(posterior_odds(1.0, prior=0.5))
    a belief of 0.5 can move to between 0.269 and 0.731
    """
    prior = probability("prior", prior)
    if isinstance(source, Guarantee):
        epsilon, delta = source.epsilon, source.delta
    else:
        epsilon, delta = non_negative("epsilon", source), 0.0
    shrink = math.exp(-epsilon)
    # prior / (prior + (1 − prior) e^{∓ε}), so that nothing overflows
    highest = prior / (prior + (1.0 - prior) * shrink) if prior else 0.0
    lowest = prior * shrink / (prior * shrink + (1.0 - prior)) if prior < 1 else 1.0
    return Posterior(prior=prior, lowest=lowest, highest=highest, delta=delta)


# --------------------------------------------------------------------------------------------- curves


def _rates(values: ArrayLike) -> Rates:
    try:
        rates = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise InvalidParameter("false_positive_rates", values, "are not numbers", "pass rates in [0, 1]") from None
    if rates.size == 0:
        raise InvalidParameter("false_positive_rates", values, "is empty", "pass at least one rate, such as 0.001")
    if not np.all((rates >= 0) & (rates <= 1)):  # NaN fails, too
        raise InvalidParameter("false_positive_rates", values, "must all lie in [0, 1]")
    return rates


def _largest_true_positive_rates(source: Accountant | Guarantee, rates: Rates) -> Rates:
    if isinstance(source, Guarantee):
        epsilons, deltas = np.array([source.epsilon]), np.array([source.delta])
    else:
        epsilons, deltas = _lines_for(source, rates.ravel())
    best, _ = _best_lines(epsilons, deltas, rates.ravel())
    return best.reshape(rates.shape)


def _best_lines(epsilons: Rates, deltas: Rates, rates: Rates) -> tuple[Rates, NDArray[np.intp]]:
    """(the smallest bound on the true-positive rate, the lines that give it), for each false-positive rate.

    1 − β ≤ δ + e^ε α and 1 − β ≤ 1 − e^{−ε}(1 − δ − α).
    """
    with np.errstate(over="ignore", invalid="ignore"):
        steep = np.exp(epsilons)[:, None] * rates
    steep = deltas[:, None] + np.where(rates > 0, steep, 0.0)
    flat = 1.0 - np.exp(-epsilons)[:, None] * (1.0 - deltas[:, None] - rates)
    both = np.clip(np.concatenate((steep, flat)), rates, 1.0)  # a guess at random already reaches α
    winners = np.argmin(both, axis=0)
    return both[winners, np.arange(rates.size)], np.unique(winners % epsilons.size)


def _delta_of(source: Accountant, epsilon: float) -> float:
    if not isinstance(source, Accountant):
        raise InvalidParameter(
            "source", source, "is neither an accountant nor a guarantee", "pass one or the other, an accountant is best"
        )
    return min(1.0, source.delta(epsilon=epsilon))


def _lines_for(source: Accountant, rates: Rates) -> tuple[Rates, Rates]:
    """(ε, δ(ε)) at points that grow denser around the lines that matter for ``rates``.

    The bounds are concave in e^ε and e^{−ε}, as δ is convex in e^ε, so each rate has one best line and halving the
    intervals beside the best one so far finds it.
    """
    smallest = float(rates[rates > 0].min(initial=1.0))
    largest = float(rates[rates < 1].max(initial=0.0))
    top = min(700.0, max(1.0, -math.log(smallest)))  # beyond, e^ε α is above 1
    negligible = 1e-6 * min(smallest, 1.0 - largest) if rates.min() > 0 else 1e-15  # larger ε add nothing
    wanted = {0.0, *np.linspace(0.0, top, _FIRST_POINTS).tolist(), *(2.0**power for power in range(-10, 10))}
    known: dict[float, float] = {}
    while True:
        for epsilon in sorted(wanted):
            known[epsilon] = _delta_of(source, epsilon)
            if known[epsilon] <= negligible:
                break
        epsilons = np.array(sorted(known))
        deltas = np.array([known[epsilon] for epsilon in epsilons.tolist()])
        _, winners = _best_lines(epsilons, deltas, rates)
        left = np.unique(np.concatenate((winners, winners[winners > 0] - 1)))
        left = left[left < epsilons.size - 1]
        left = left[epsilons[left + 1] - epsilons[left] > _NARROW]
        wanted = set((0.5 * (epsilons[left] + epsilons[left + 1])).tolist())
        if not wanted or len(known) + len(wanted) > _MOST_POINTS:
            break
    return epsilons, deltas
