"""Filters and odometers: budgets and readings that stay valid when the next step depends on the last answers.

An accountant's ε holds for a schedule fixed in advance. Choosing the next noise, rate or plan after seeing results, or
stopping when the reading is favourable, breaks that assumption: the "natural" filter on privacy-loss distributions or
trade-off functions is then *invalid* (Tran, Koskela, Räisä, Honkela 2026, arXiv 2602.06756), while Rényi divergences of
one order still just add up. Two tools:

:class:`RenyiFilter`
    A gate in front of every step. All that it let through is (ε, δ)-private, however steps were chosen and when the run
    stopped (Feldman, Zrnic 2021, arXiv 2008.11193, section 4).
:class:`RenyiOdometer`
    A reading of ε that may be taken at any time, also to decide when to stop (Rogers, Roth, Ullman, Vadhan 2016).

Both rest on one fact. Let L_t be the privacy loss after t steps and R_t(α) the sum of their Rényi divergences of
order α, each chosen before its step. Then exp((α − 1)(L_t − R_t(α))) is a supermartingale that starts at 1: no
adaptive choice makes it grow on average. Steps that keep a constant noise multiplier, such as adaptive clipping, need
neither; use ExactAccountant for them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Self, final

import numpy as np
from numpy.typing import NDArray

from quietsum.errors import BudgetExhausted, InvalidParameter, UnsupportedEvent
from quietsum.privacy.accounting import History, check_delta
from quietsum.privacy.events import PrivacyEvent
from quietsum.privacy.guarantee import Budget, Guarantee
from quietsum.privacy.pairs import Pair
from quietsum.privacy.renyi.accountant import RenyiAccountant, check_order
from quietsum.privacy.renyi.curves import failure_of
from quietsum.privacy.units import Neighbours, Observer, PrivacyUnit
from quietsum.validate import whole_number

__all__ = ["RenyiFilter", "RenyiOdometer"]

Array = NDArray[np.float64]

ODOMETER_ORDERS = (
    *(1.0 + 2.0 ** (k / 2) for k in range(-4, 7)),
    *(float(round(1.0 + 2.0 ** (k / 2))) for k in range(7, 21)),
)
"""1.25 … 1025, growing by √2: few enough that weighing them costs little, wide enough for ε from 0.02 to hundreds."""


@final
class RenyiFilter:
    """Lets events through while their Rényi divergences of one order stay within what the budget allows.

    The order α is chosen once, before the first step; it turns the budget (ε, δ) into a Rényi budget B = ε − ln(1 −
    1/α) + ln(αδ)/(α − 1), the inverse of the conversion of Canonne, Kamath, Steinke 2020, Proposition 12. Left open,
    it is the best one for the ``expected`` event (say, one planned run), else the best for Gaussian noise. A poor
    order wastes budget; it never breaks the promise.

    Guarantees: all that was ever let through is (ε, δ)-private together, however noise, rate, number and end of the
    steps were decided. ``guarantee()`` is the whole budget even when part of it is unspent: what remains may have
    steered the run.

    >>> from quietsum.privacy.events import Gaussian
    >>> gate = RenyiFilter(budget=Budget(epsilon=8.0, delta=1e-5))
    >>> gate.spend(Gaussian(noise_multiplier=4.0), times=30)
    >>> gate.allows(Gaussian(noise_multiplier=1.0)), gate.allows(Gaussian(noise_multiplier=4.0), times=5)
    (False, True)
    """

    def __init__(
        self,
        *,
        budget: Budget,
        order: float | None = None,
        expected: PrivacyEvent | None = None,
        neighbours: Neighbours = Neighbours.ADD_REMOVE,
        observer: Observer = Observer.RECIPIENTS,
    ) -> None:
        if not isinstance(budget, Budget):
            raise InvalidParameter("budget", budget, "is not a budget", "pass Budget(epsilon=..., delta=...)")
        if order is not None and expected is not None:
            raise InvalidParameter("order", order, "was given together with an expected event", "give one of the two")
        self.budget = budget
        self.history = History(neighbours, budget.unit, observer)
        if order is not None:
            self.order = check_order(order)
        elif expected is not None:
            self.order = _best_order_for(expected, budget, neighbours)
        else:
            self.order = _best_order_for_gaussians(budget)
        self.rdp_budget = float(_rdp_budget(np.array([self.order]), budget)[0])
        if not self.rdp_budget > 0:
            raise InvalidParameter(
                "order", self.order, f"leaves nothing to spend of ε = {budget.epsilon:g} at δ = {budget.delta:g}",
                "choose a larger order, or leave the choice to the filter",
            )  # fmt: skip
        self._spent = 0.0
        self._costs: dict[PrivacyEvent, float] = {}

    @property
    def remaining_rdp(self) -> float:
        """What may still be spent, as a Rényi divergence of the filter's order."""
        return max(0.0, self.rdp_budget - self._spent)

    @property
    def spent_fraction(self) -> float:
        """The share of the budget that is gone, between 0 and 1."""
        return min(1.0, self._spent / self.rdp_budget)

    def allows(self, event: PrivacyEvent, times: int = 1) -> bool:
        """Whether ``times`` × ``event`` still fits. Asking costs nothing and may be done as often as one likes."""
        return self._after(event, times) <= self.rdp_budget

    def spend(self, event: PrivacyEvent, times: int = 1) -> None:
        """Charge ``times`` × ``event``, before it runs; BudgetExhausted where it does not fit, and nothing changes."""
        after = self._after(event, times)
        if not after <= self.rdp_budget:
            raise BudgetExhausted(
                f"this step would use {after / self.rdp_budget:.4g} of the budget ε = {self.budget.epsilon:g} "
                f"per {self.budget.unit} at δ = {self.budget.delta:g}, of which {self.spent_fraction:.4g} is spent; "
                "nothing was charged: add more noise, take fewer steps, or stop here"
            )
        self.history.add(event, times, _reduce(self.history, event, times))
        self._spent = after

    def guarantee(self) -> Guarantee:
        """The promise about everything this filter has let through and will let through."""
        return self.history.guarantee(
            epsilon=self.budget.epsilon, delta=self.budget.delta, method="Rényi filter", order=self.order
        )

    def _after(self, event: PrivacyEvent, times: int) -> float:
        """The divergence spent after ``times`` × ``event``, rounded up."""
        if not _reduce(self.history, event, times):
            return self._spent
        if event not in self._costs:
            one = RenyiAccountant(orders=[self.order], neighbours=self.history.neighbours).compose(event)
            self._costs[event] = float(one.rdp_at(self.order))
        return _add_up(self._spent, _multiply_up(self._costs[event], times))


@final
class RenyiOdometer:
    """A reading of ε that holds at all times at once, for events chosen as one goes.

    With weights w_j on orders α_j the mixture Σ_j w_j exp((α_j − 1)(L_t − R_t(α_j))) is a supermartingale as well,
    and Ville's inequality says that it ever reaches 1/δ with probability ≤ δ only. So the reading is the ε with Σ_j
    w_j exp((α_j − 1)(ε − R_t(α_j))) = 1/δ. (Time-uniform bounds: Whitehouse, Ramdas, Rogers, Wu 2023; by filters on a
    grid: Feldman, Zrnic 2021, section 4, and Lécuyer 2021. The mixture is never above the union bound over the same
    orders.)

    Guarantees: with probability ≥ 1 − δ the privacy loss never exceeds the reading, at any time; hence a run that
    stops by any rule that keeps the reading ≤ ε is (ε, δ)-private. The price is a reading above the ε of the same
    events as a fixed schedule.

    >>> from quietsum.privacy.events import Gaussian
    >>> gauge = RenyiOdometer(delta=1e-5).compose(Gaussian(noise_multiplier=4.0), times=50)
    >>> round(gauge.epsilon().epsilon, 1)
    11.1
    """

    def __init__(
        self,
        *,
        delta: float,
        orders: Iterable[float] | None = None,
        neighbours: Neighbours = Neighbours.ADD_REMOVE,
        unit: PrivacyUnit | None = None,
        observer: Observer = Observer.RECIPIENTS,
    ) -> None:
        self.delta = check_delta(delta)
        self.orders = tuple(sorted({check_order(order) for order in (ODOMETER_ORDERS if orders is None else orders)}))
        if not self.orders:
            raise InvalidParameter("orders", orders, "is empty", "pass at least one order above 1")
        self._accountant = RenyiAccountant(orders=self.orders, neighbours=neighbours, unit=unit, observer=observer)

    @property
    def history(self) -> History:
        """What has been composed so far."""
        return self._accountant.history

    def compose(self, event: PrivacyEvent, times: int = 1) -> Self:
        """Add ``times`` × ``event``, which may have been chosen after looking at everything before it."""
        _reduce(self.history, event, times)
        self._accountant.compose(event, times)
        return self

    def epsilon(self) -> Guarantee:
        """The reading. Nothing composed reads 0."""
        spent = np.array([self._accountant.rdp_at(order) for order in self.orders])
        epsilon = self._reading(spent) if self.history.counts else 0.0
        return self.history.guarantee(epsilon=epsilon, delta=self.delta, method="Rényi odometer, valid at any time")

    def _reading(self, spent: Array) -> float:
        usable = np.isfinite(spent)
        if not usable.any():
            return math.inf
        above = np.array(self.orders)[usable] - 1.0
        spent = spent[usable]
        log_weight = -math.log(len(self.orders))
        target = -math.log(self.delta)
        low, high = 0.0, float(np.min(spent + (target - log_weight) / above))  # high is the union bound
        while high - low > 1e-12 * high:
            middle = 0.5 * (low + high)
            reached = np.logaddexp.reduce(above * (middle - spent)) + log_weight >= target
            low, high = (low, middle) if reached else (middle, high)
        return high


def _reduce(history: History, event: PrivacyEvent, times: int) -> list[tuple[Pair, int]]:
    """The pairs of ``event``, where each has a finite Rényi divergence."""
    pairs = history.reduce(event, times)
    for pair, _ in pairs:
        if failure_of(pair) > 0:
            raise UnsupportedEvent(
                "an (ε, δ)-private event with δ > 0 has an infinite Rényi divergence, so filters and odometers refuse "
                "it; state it as PureDP or Zcdp if you can prove that, or plan a fixed schedule with ExactAccountant"
            )
    return pairs


# -------------------------------------------------------------------------------------------- orders


def _rdp_budget(orders: Array, budget: Budget) -> Array:
    """B = ε − ln(1 − 1/α) + ln(αδ)/(α − 1) for each order α."""
    above = orders - 1.0
    result: Array = budget.epsilon + np.log1p(1.0 / above) + (math.log(budget.delta) + np.log(orders)) / above
    return result


def _best_order_for_gaussians(budget: Budget) -> float:
    """Gaussian divergences are proportional to α, so the best order has the largest B/α."""
    orders = np.concatenate((1.0 + np.geomspace(1e-3, 10.0, 2000), np.unique(np.rint(np.geomspace(12.0, 1e8, 2000)))))
    return float(orders[np.argmax(_rdp_budget(orders, budget) / orders)])


def best_order(budget: Budget) -> float:
    """The best order for Gaussian noise, as :class:`RenyiFilter` chooses it, without a grid.

    B/α is largest where B = α B′ with B′ = −ln(αδ)/(α − 1)², that is −ln(αδ)(2α − 1)/(α − 1)² = ε + ln(α/(α − 1)).
    The left side falls from ∞ to 0 between α = 1 and α = 1/δ, so a root lies between, and B = α B′ is positive there.
    The order falls as ε grows (∂²(B/α)/∂α∂ε = −1/α² < 0) and B grows, so a larger ε allows no less of any event.

    >>> round(best_order(Budget(epsilon=8.0, delta=1e-5)), 3)
    3.874
    """
    log_delta = math.log(budget.delta)

    def excess(log_above: float) -> float:
        above = math.exp(log_above)
        left = -(log_delta + math.log1p(above)) * (2.0 + 1.0 / above) / above
        return left - budget.epsilon - math.log1p(1.0 / above)

    low, high = -40.0, math.log(1.0 / budget.delta - 1.0)
    while True:
        middle = 0.5 * (low + high)
        if not low < middle < high:
            return 1.0 + math.exp(low)
        low, high = (middle, high) if excess(middle) > 0 else (low, middle)


def _best_order_for(expected: PrivacyEvent, budget: Budget, neighbours: Neighbours) -> float:
    """The order of the accountant's own grid at which ``expected`` fits most often."""
    accountant = RenyiAccountant(neighbours=neighbours).compose(expected)
    orders = np.asarray(accountant.orders, dtype=np.float64)
    costs = np.array([accountant.rdp_at(order) for order in orders.tolist()])
    if not np.any(costs > 0):
        return _best_order_for_gaussians(budget)
    with np.errstate(divide="ignore", invalid="ignore"):
        fits = np.where(costs > 0, _rdp_budget(orders, budget) / costs, -np.inf)
    return float(orders[np.argmax(fits)])


def _add_up(left: float, right: float) -> float:
    return math.nextafter(left + right, math.inf) if right else left


def _multiply_up(cost: float, times: int) -> float:
    return math.nextafter(cost * whole_number("times", times), math.inf)
