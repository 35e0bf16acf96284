"""The shuffle model: what a local ε₀ becomes when reports cannot be linked to their senders.

n people randomise their own value by one ε₀-DP randomiser R, and a *shuffler* hands on the reports in random order.
A reader of the shuffled reports learns far less about one person than ε₀ allows, since everybody else's report might
be hers. (Shuffled *batches* in training, :mod:`quietsum.privacy.shuffled`, are another thing, and amplify nothing.)

**The bound.** Let x and x' be two values of one person and b a measure with b ≤ R(y) for every value y, for instance
b = e^{−ε₀} max(R(x), R(x')). Another person's report comes from b, the *blanket*, with probability b(all), and tells
nothing of its sender then. Let the observer know who was not covered by the blanket and what they sent: that only helps
him. What is left (Balle, Bell, Gascón, Nissim 2019, arXiv 1903.02837, section 5, summed over the number covered) is

    δ(ε) ≤ E[(Z₁ + … + Z_n)₊] / n,   Z = (R(x) − e^ε R(x')) / b at a point from b, and 0 with probability 1 − b(all).

A wider Z in the convex order gives a larger δ. Among all ε₀-DP randomisers the widest Z is that of binary randomised
response (the proof is in docs/explanation/shuffle-model.md): e^{ε₀} − e^ε or 1 − e^{ε₀+ε}, with probability
1/(e^{ε₀} + 1) each. So with γ = 2/(e^{ε₀} + 1)

    δ(ε) ≤ E[((e^{ε₀} − e^ε) A − (e^{ε₀+ε} − 1) B)₊] / n,   A + B ~ Bin(n, γ),   A ~ Bin(A + B, ½).

This is the *stronger clone* of Feldman, McMillan, Talwar (2023, arXiv 2208.04591, where C ~ Bin(n − 1, γ)). Their
erratum names an error in the proof of their Lemma 3.5, which spoke of randomisers chosen one after the other. For one
randomiser that everyone uses, the argument above does without the lemma. The mirrored pair has the same δ.

**Two levels.** k-ary randomised response and its kin (unary encodings, local hashing, Hadamard response) give every
report y one of two probabilities, l(y) or e^{ε₀} l(y), for every value. With γ = l(all), Z has a third outcome
1 − e^ε, of probability γ − 2(1 − γ)/(e^{ε₀} − 1); a larger γ means a smaller δ. k-ary response has
γ = k/(e^{ε₀} + k − 1).

**Numbers.** Given the number N of blanket reports, the expectation is a difference of two binomial tails (with two
levels: one difference for each B). It falls with N, since one more blanket report is post-processing. So N is cut into
blocks, each taken at its lower end; what lies below the first block is charged in full. Every tail is moved by 1e-10 of
itself to the unfavourable side, ten times the error of SciPy's incomplete beta function against thirty digits at
n = 10⁸; above n = 10⁹, n = 10⁹ is used.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, Literal, final

import numpy as np
import numpy.typing as npt
from scipy.special import betainc

from quietsum.errors import InvalidParameter, QuietsumError
from quietsum.privacy import Guarantee, Neighbours, Observer, PrivacyUnit
from quietsum.validate import finite_number, open_probability, positive, whole_number

__all__ = ["ShuffledReports", "kary_blanket", "largest_local_epsilon", "shuffled_delta", "shuffled_epsilon"]

Array = npt.NDArray[np.float64]
Method = Literal["numerical", "closed form"]
CLOSED = "closed form of the clone (2021)"

_MOST_LOCAL = 500.0  # beyond it e^ε₀ leaves no blanket for any n that exists
_MOST_USERS = 10**9
_MARGIN = 1e-10
_STEPS = 60

TRUST = (
    "the shuffler: it sees who sent what (ε₀ against it), permutes uniformly, drops names, times and order, and shares "
    "them with no recipient",
    "the n who are counted: each used the same randomiser once, with fresh coins, and tells no recipient what it sent",
)
"""What the central ε rests on."""


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class ShuffledReports:
    """What shuffling buys: the central guarantee, the local ε₀ that stays, and whom one has to trust for it.

    ``guarantee`` holds against recipients of the shuffled reports, for one report exchanged for another (replace-one).
    Against the shuffler itself, and if the shuffler fails, only ``local_epsilon`` holds.

    >>> print(shuffled_epsilon(epsilon0=1.0, n=10_000, delta=1e-6))  # doctest: +ELLIPSIS
    ε ≤ 0.043... at δ = 1e-06 per record against recipients of 10000 shuffled reports (ε₀ = 1 against the shuffler)...
    """

    local_epsilon: float
    n: int
    colluders: int = 0
    guarantee: Guarantee
    blanket: float

    @property
    def epsilon(self) -> float:
        """The central ε, an upper bound."""
        return self.guarantee.epsilon

    @property
    def delta(self) -> float:
        """The δ at which :attr:`epsilon` holds."""
        return self.guarantee.delta

    @property
    def trusted(self) -> tuple[str, ...]:
        """What the central ε rests on, in words."""
        return TRUST

    @property
    def messages(self) -> int:
        """How many messages travel: one from each person to the shuffler, one each from there to the recipient."""
        return 2 * self.n

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON-ready values."""
        return {
            "local_epsilon": self.local_epsilon,
            "n": self.n,
            "colluders": self.colluders,
            "blanket": self.blanket,
            "guarantee": self.guarantee.to_dict(),
            "trusted": list(TRUST),
            "messages": self.messages,
        }

    def __str__(self) -> str:
        who = f", {self.colluders} of them known to the recipient" if self.colluders else ""
        lines = [
            f"ε ≤ {self.epsilon:.6g} at δ = {self.delta:g} per {self.guarantee.whom} against recipients of {self.n} "
            f"shuffled reports{who} (ε₀ = {self.local_epsilon:g} against the shuffler), "
            f"{self.guarantee.neighbours.value} neighbours; {self.guarantee.method}",
            *(f"trusted: {trust}" for trust in TRUST),
            f"cost: {self.messages} messages, two for each report",
            *(f"warning: {warning}" for warning in self.guarantee.warnings),
        ]
        return "\n".join(lines)


def kary_blanket(*, epsilon0: float, categories: int) -> float:
    """The mass of the blanket of k-ary randomised response, k/(e^{ε₀} + k − 1).

    >>> round(kary_blanket(epsilon0=1.0, categories=10), 4)
    0.8534
    """
    epsilon0, k = _local(epsilon0), whole_number("categories", categories, 2)
    return k / (math.exp(epsilon0) + k - 1)


def shuffled_epsilon(
    *,
    epsilon0: float,
    n: int,
    delta: float,
    categories: int | None = None,
    blanket: float | None = None,
    colluders: int = 0,
    method: Method = "numerical",
    unit: PrivacyUnit = PrivacyUnit.RECORD,
) -> ShuffledReports:
    """The central ε of ``n`` shuffled reports, each made by the same ``epsilon0``-DP randomiser.

    ``n`` is a public or declared number; with a private one the ε itself would tell. ``colluders`` of them may tell the
    recipient what they sent, and protect no one. ``categories`` is the k of k-ary randomised response, ``blanket`` the
    mass γ of the lower level of another two-level randomiser (see the module's text); without either the bound holds
    for every pure ε₀-DP randomiser. Gaussian noise is none: at δ₀ = 0 its ε₀ is infinite.

    ``method="closed form"`` is Theorem 3.1 of Feldman, McMillan, Talwar (2021, arXiv 2012.12803),
    log(1 + (e^{ε₀} − 1)/(e^{ε₀} + 1) · (8 √(e^{ε₀} log(4/δ)/n) + 8 e^{ε₀}/n)), for ε₀ ≤ log(n / (16 log(4/δ))); other
    arguments are refused. It needs no computer and is several times larger.

    Guarantees: an upper bound, for one person who exchanges her value for another one while the others keep theirs.
    ``guarantee.epsilon_lower`` is what an attack on binary randomised response shows: no bound for every ε₀-DP
    randomiser can be smaller (0 for a stated randomiser, of which this attack says nothing).

    >>> numerical = shuffled_epsilon(epsilon0=1.0, n=10_000, delta=1e-6)
    >>> closed = shuffled_epsilon(epsilon0=1.0, n=10_000, delta=1e-6, method="closed form")
    >>> print(f"{numerical.epsilon:.4f} {closed.epsilon:.3f}")
    0.0432 0.214
    """
    law = _Law.of(epsilon0=epsilon0, n=n, categories=categories, blanket=blanket, colluders=colluders)
    delta, lower = open_probability("delta", delta), 0.0
    if method == "closed form":
        epsilon, how = _closed_form(law, delta), CLOSED
    elif method == "numerical":
        epsilon = _smallest(law, delta)
        if law.binary and law.n <= _MOST_USERS:
            lower = _attack(law, delta)
            if lower > epsilon:
                raise QuietsumError(
                    f"the bounds {lower} and {epsilon} contradict each other; please report the arguments"
                )
        how = "stronger clone, numerical" if law.binary else "blanket of a two-level randomiser, numerical"
        if _closed_form_holds(law, delta) and (closed := _closed_form(law, delta)) < epsilon:
            epsilon, how = closed, CLOSED  # n so large that the margins of the numbers weigh more than the formula
    else:
        raise InvalidParameter("method", method, "is no bound", "choose 'numerical' or 'closed form'")
    guarantee = Guarantee(
        epsilon=epsilon,
        epsilon_lower=lower,
        delta=delta,
        unit=unit,
        observer=Observer.RECIPIENTS,
        neighbours=Neighbours.REPLACE_ONE,
        method=how,
        warnings=_warnings(law, epsilon, delta),
    )
    return ShuffledReports(
        local_epsilon=law.epsilon0,
        n=law.n + law.colluders,
        colluders=law.colluders,
        guarantee=guarantee,
        blanket=law.blanket,
    )


def shuffled_delta(
    *,
    epsilon0: float,
    n: int,
    epsilon: float,
    categories: int | None = None,
    blanket: float | None = None,
    colluders: int = 0,
) -> float:
    """The δ at which the shuffled reports are (``epsilon``, δ)-private: an upper bound, 0 from ε₀ on.

    >>> shuffled_delta(epsilon0=1.0, n=10_000, epsilon=0.0433) <= 1e-6
    True
    """
    law = _Law.of(epsilon0=epsilon0, n=n, categories=categories, blanket=blanket, colluders=colluders)
    value = finite_number("epsilon", epsilon)
    if value < 0:
        raise InvalidParameter("epsilon", epsilon, "is negative", "ask for ε ≥ 0")
    return law.delta(value, fine=True)


def largest_local_epsilon(
    *, epsilon: float, n: int, delta: float, categories: int | None = None, colluders: int = 0
) -> float:
    """The largest ε₀ whose ``n`` shuffled reports are (``epsilon``, ``delta``)-private: the inverse, rounded down.

    Never below ``epsilon``, which needs no shuffler.

    >>> local = largest_local_epsilon(epsilon=0.1, n=10_000, delta=1e-6)
    >>> local > 1.0 and shuffled_epsilon(epsilon0=local, n=10_000, delta=1e-6).epsilon <= 0.1
    True
    """
    epsilon, delta = positive("epsilon", epsilon), open_probability("delta", delta)

    def fits(epsilon0: float) -> bool:
        law = _Law.of(epsilon0=epsilon0, n=n, categories=categories, blanket=None, colluders=colluders)
        return law.delta(epsilon * (1 - 2 * law.tolerance), fine=True) <= delta  # what shuffled_epsilon rounds up

    # A weaker randomiser is also ε₀'-DP for every ε₀' ≥ ε₀, and its blanket only shrinks: what fits is an interval.
    low = _local(epsilon)
    high = min(_MOST_LOCAL, low + math.log(n) + 2.0) if n > 1 else low
    if fits(high):
        return high
    for _ in range(_STEPS):
        if high - low <= (1e-6 if categories is None else 1e-4) * low:
            break
        middle = 0.5 * (low + high)
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


# ------------------------------------------------------------------------------------------- the law of Z


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class _Law:
    """n reports at ε₀, the blanket's mass γ, and whether Z has two outcomes beside 0 (``binary``) or three."""

    epsilon0: float
    n: int
    blanket: float
    binary: bool
    colluders: int = 0

    @classmethod
    def of(cls, *, epsilon0: float, n: int, categories: int | None, blanket: float | None, colluders: int = 0) -> _Law:
        epsilon0 = _local(epsilon0)
        n, colluders = whole_number("n", n, 1), whole_number("colluders", colluders, 0)
        if colluders >= n:
            raise InvalidParameter(
                "colluders", colluders, f"leaves no other of {n} to hide among", "count at least one honest report"
            )
        least = 2 / (math.exp(epsilon0) + 1)
        if categories is not None and blanket is not None:
            raise InvalidParameter("blanket", blanket, "is known from categories", "state one of the two")
        if categories is not None:
            blanket = kary_blanket(epsilon0=epsilon0, categories=categories)
        # Rounded down: a smaller blanket is the safe side, and 1 − γ is what counts where ε₀ is tiny.
        mass = least if blanket is None else open_probability("blanket", blanket) * (1 - 1e-15)
        # A smaller lower level is possible (large overlapping sets); the general bound covers it.
        binary = mass <= least * (1 + 1e-12)
        return cls(
            epsilon0=epsilon0,
            n=n - colluders,
            blanket=least if binary else mass,
            binary=binary,
            colluders=colluders,
        )

    def delta(self, epsilon: float, *, fine: bool) -> float:
        """An upper bound of δ(ε)."""
        if epsilon >= self.epsilon0:
            return 0.0
        if self.binary:
            return self._total(epsilon, 512, self._two_outcomes)
        # What holds for every randomiser holds here too, and is finer where the blanket is nearly the same.
        mean = min(self.n, _MOST_USERS) * self.blanket
        blocks = int(min(max((8000 if fine else 2000) / math.sqrt(mean), 12.0), 200.0))
        special = self._total(
            epsilon, blocks, lambda counts, at: self._three_outcomes(counts, at, 600 if fine else 150)
        )
        return min(special, dataclasses.replace(self, binary=True, blanket=self.least).delta(epsilon, fine=fine))

    @property
    def tolerance(self) -> float:
        """By how much of itself an ε is rounded up: three outcomes take longer."""
        return 1e-6 if self.binary else 1e-4

    @property
    def least(self) -> float:
        """The smallest γ of any randomiser, that of binary randomised response."""
        return 2 / (math.exp(self.epsilon0) + 1)

    def _total(self, epsilon: float, blocks: int, given: Callable[[Array, float], Array]) -> float:
        """The expectation of ``given``, the divergence at a count of blanket reports, over that count."""
        counts, below = _blocks(min(self.n, _MOST_USERS) - 1, self.blanket, blocks)
        divergence = given(counts + 1, epsilon)
        # Exactly, the divergence falls with the count; so does this running minimum of upper bounds.
        divergence = np.minimum.accumulate(np.maximum(divergence, 0.0))
        total = divergence[-1] + float(np.sum((divergence[:-1] - divergence[1:]) * below[1:] * (1 + _MARGIN)))
        return min(1.0, float(total) * (1 + _MARGIN))

    def _two_outcomes(self, counts: Array, epsilon: float) -> Array:
        """γ E[(c₁ A − c₂ (N − A))₊] / N, A ~ Bin(N, ½): γ/2 (c₁ P(A' ≥ k − 1) − c₂ P(A' ≥ k)), A' ~ Bin(N − 1, ½)."""
        scale = 1 + math.exp(-self.epsilon0)
        gain = -math.expm1(epsilon - self.epsilon0) / scale  # c₁ γ/2
        loss = (math.expm1(epsilon) - math.expm1(-self.epsilon0)) / scale  # c₂ γ/2
        best = np.zeros_like(counts)
        for least in _just_above(counts * (loss / (gain + loss))):  # the smallest A with c₁ A > c₂ (N − A)
            upper = gain * _at_least(least - 1, counts - 1, 0.5) * (1 + _MARGIN)
            best = np.maximum(best, upper - loss * _at_least(least, counts - 1, 0.5) * (1 - _MARGIN))
        return best

    def _three_outcomes(self, counts: Array, epsilon: float, blocks: int) -> Array:
        """γ E[((e^{ε₀} − 1)(A − e^ε B) − N (e^ε − 1))₊] / N, where N reports fall on A and B equally often.

        Given B = b, A is binomial; the expectation falls with b, so that blocks of b are taken at their lower end.
        """
        return np.array([self._delta_given(float(count), epsilon, blocks) for count in counts])

    def _delta_given(self, count: float, epsilon: float, blocks: int) -> float:
        ratio = math.expm1(self.epsilon0)
        each = (1 - self.blanket) / ratio / self.blanket  # P(A) = P(B), of a blanket report
        b, below = _blocks(int(count), each, blocks, above=1.5)
        rest, share = count - b, each / (1 - each)
        needed = math.exp(epsilon) * b + count * (math.expm1(epsilon) / ratio)  # A must exceed it
        value = np.zeros_like(b)
        for least in _just_above(needed):
            mean = rest * share * _at_least(least - 1, rest - 1, share) * (1 + _MARGIN)
            value = np.maximum(value, mean - needed * _at_least(least, rest, share) * (1 - _MARGIN))
        value = np.minimum.accumulate(value)
        total = value[-1] + float(np.sum((value[:-1] - value[1:]) * below[1:] * (1 + _MARGIN)))
        return self.blanket * ratio * float(total) / count


def _just_above(bound: Array) -> list[Array]:
    """The smallest integers above ``bound``; where rounding could have moved one across, its neighbours too.

    An expectation of a positive part is the largest over all sets {A ≥ k}, so a wrong k among others does no harm, and
    a right one must be there. Below 10⁹ a bound is off by less than 1e-5.
    """
    low, high = np.floor(bound - 1e-5) + 1, np.floor(bound + 1e-5) + 1
    return [low] if np.array_equal(low, high) else [low, high]


def _at_least(k: Array, trials: Array, chance: float) -> Array:
    """P(Bin(trials, chance) ≥ k)."""
    inside = (k > 0) & (k <= trials)
    first, last = np.where(inside, k, 1.0), np.where(inside, trials - k + 1, 1.0)
    return np.where(inside, betainc(first, last, chance), np.where(k <= 0, 1.0, 0.0))


def _blocks(trials: int, chance: float, blocks: int, above: float = 8.0) -> tuple[Array, Array]:
    """First members of consecutive blocks of 0…trials, and the chance that Bin(trials, chance) lies below each.

    Every number is a block of its own where that is cheap. Below the mean the blocks reach as far as any δ in use.
    """
    if trials <= 2 * blocks:
        first = np.arange(trials + 1, dtype=np.float64)
    else:
        mean = trials * chance
        spread = math.sqrt(mean)
        low, high = max(0.0, mean - 12 * spread), min(float(trials), mean + above * spread)
        first = np.unique(np.concatenate([[0.0], np.floor(np.linspace(low, high, blocks))]))
    below = 1 - _at_least(first, np.full_like(first, trials), chance)
    small = below < 0.5  # computed from the other side, without cancellation
    below[small] = _at_least(trials - first[small] + 1, np.full_like(first[small], trials), 1 - chance)
    return first, below


# ------------------------------------------------------------------------------------------- from δ to ε


def _smallest(law: _Law, delta: float) -> float:
    """The smallest ε, rounded up by at most the law's tolerance, whose δ is at most ``delta``."""
    general = dataclasses.replace(law, binary=True, blanket=law.least)
    epsilon = _bisect(lambda value: general.delta(value, fine=True) <= delta, 0.0, law.epsilon0, general.tolerance)
    if law.binary or epsilon == 0:
        return epsilon
    epsilon = _bisect(lambda value: law.delta(value, fine=False) <= delta, 0.0, epsilon, 1e-3)
    return _bisect(lambda value: law.delta(value, fine=True) <= delta, 0.96 * epsilon, epsilon, law.tolerance)


def _attack(law: _Law, delta: float) -> float:
    """An ε below which no bound for every ε₀-DP randomiser can go: what binary randomised response really costs.

    All others hold 0 and report 1 with chance q = 1/(e^{ε₀} + 1). The recipient counts ones and asks whether there are
    at least k, or fewer. With S(k) = P(Bin(n − 1, q) ≥ k) the answer is yes with probability p S(k − 1) + q S(k) if the
    person holds 1, and q S(k − 1) + p S(k) if she holds 0.
    """
    q = 1 / (math.exp(law.epsilon0) + 1)
    p, others = 1 - q, law.n - 1
    centre, spread = others * q, math.sqrt(others * q * p)
    k = np.unique(np.floor(np.linspace(max(0.0, centre - 9 * spread), min(others, centre + 9 * spread) + 1, 4096)))
    trials = np.full_like(k, others)
    before, here = _at_least(k - 1, trials, q), _at_least(k, trials, q)
    fewer, few = _at_least(trials - k + 2, trials, p), _at_least(trials - k + 1, trials, p)  # 1 − before, 1 − here
    yes = p * before + q * here, q * before + p * here
    no = q * fewer + p * few, p * fewer + q * few

    def fits(epsilon: float) -> bool:
        """Whether no such question shows more than δ; the margin is on the other side here."""
        factor = math.exp(epsilon) * (1 + _MARGIN)
        return all(float((one * (1 - _MARGIN) - factor * other).max()) <= delta for one, other in (yes, no))

    epsilon = _bisect(fits, 0.0, law.epsilon0, 1e-6)
    return max(0.0, epsilon * (1 - 2e-6))


def _bisect(fits: Callable[[float], bool], low: float, high: float, tolerance: float) -> float:
    """The smallest value that fits, from above; ``high`` fits."""
    if fits(low):
        return low
    for _ in range(_STEPS):
        if high - low <= tolerance * high:
            break
        middle = 0.5 * (low + high)
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high


def _closed_form_holds(law: _Law, delta: float) -> bool:
    most = law.n / (16 * math.log(4 / delta))
    return most > 1 and law.epsilon0 <= math.log(most)


def _closed_form(law: _Law, delta: float) -> float:
    most = law.n / (16 * math.log(4 / delta))
    if not _closed_form_holds(law, delta):
        allowed = f"ε₀ ≤ {math.log(most):.3g}" if most > 1 else "no ε₀ at all"
        raise InvalidParameter(
            "epsilon0",
            law.epsilon0,
            f"is outside the closed form, which needs ε₀ ≤ log(n / (16 log(4/δ))): {allowed} at n = {law.n}, "
            f"δ = {delta:g}",
            "use method='numerical', which holds for every ε₀, or more reports",
        )
    growth = math.exp(law.epsilon0)
    spread = 8 * math.sqrt(growth * math.log(4 / delta) / law.n) + 8 * growth / law.n
    return min(law.epsilon0, math.log1p((growth - 1) / (growth + 1) * spread))


def _warnings(law: _Law, epsilon: float, delta: float) -> tuple[str, ...]:
    found = []
    if delta * law.n >= 1:
        found.append(
            f"δ = {delta:g} is not below 1/n: one of {law.n} people may be shown entirely; choose δ ≤ 1/(10 n)"
        )
    if epsilon >= law.epsilon0:
        found.append(
            f"{law.n} reports are too few to buy anything at ε₀ = {law.epsilon0:g}: the central ε is the local one"
        )
    return tuple(found)


def _local(epsilon0: float) -> float:
    value = positive("epsilon0", epsilon0, "state the pure ε of one report")
    if value > _MOST_LOCAL:
        raise InvalidParameter(
            "epsilon0", epsilon0, "hides nothing", f"the shuffle model speaks of ε₀ ≤ {_MOST_LOCAL:g}; use one below 10"
        )
    return value
