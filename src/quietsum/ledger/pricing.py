"""How an ε comes about, from a charge to what an attacker can do with it. This is the one place where it is computed.

1. A **charge** (:class:`~quietsum.ledger.charges.Charge`) names a dataset, a unit and an event. It holds no ε.
2. Its **leaf events** are what is left when repetitions and compositions are written as counts: 6 × Gaussian(4.0).
3. Its **cost** (:func:`cost_of`) is those counts, with the distance of the noise from its ideal law (*failure*), and
   whether there is any protection at all.
4. A **tally** (:class:`CostTally`) adds costs up, in no particular order. A refund takes one back exactly.
5. The **price** (:class:`Prices`) of a tally is its ε at some δ, by the accountant that the run's terms name. It
   depends on the counts alone, so equal histories have equal prices to the last bit, and each is computed once; that
   makes a ledger of a million entries cheap to verify. :func:`price_charge` prices one charge, for a forecast, and
   :func:`price_event` an event that no ledger charges.
6. The **gate** of a lifetime (:class:`Gate`) admits charges from the second plan on: a Rényi filter, whose order and
   bounds are fixed before any data is seen (:mod:`quietsum.ledger.books`).
7. The **claim** (:func:`claim_guarantees`) is what may be said about the models of a run: the ε of its whole plan, also
   if only a part of it ran.
8. The **advantage** (:func:`bound_advantage`) is how much better than a coin the best attacker is who wants to know
   whether a unit took part.

**Imperfect randomness.** Charges say how far their noise may be, in total variation, from the law that their event
describes. With τ the sum over all charges, what really ran is within τ of a mechanism that is (ε, δ′)-private; then for
every set S and neighbours P, Q: P(S) ≤ P′(S) + τ ≤ e^ε Q′(S) + δ′ + τ ≤ e^ε Q(S) + δ′ + (1 + e^ε) τ. So ε is asked for
at δ′ = δ − (1 + e^ε) τ, and is infinite if nothing of δ is left. An advantage is a total variation, so it grows by 2τ.

**Versions.** Prices have a version, and entries say by which one they were written. A tally always holds events as
today's rules read them; :class:`Prices` of an older version map them to what that version priced, so that what an old
entry states comes out again (:mod:`quietsum.ledger.versions`).
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterable, Sequence
from typing import TypeVar, final

from quietsum.errors import InvalidParameter, UnsupportedEvent
from quietsum.ledger.charges import Charge
from quietsum.privacy import (
    Budget,
    Composed,
    CopyableAccountant,
    Guarantee,
    Neighbours,
    OneInOneOut,
    PrivacyEvent,
    PrivacyUnit,
    RenyiAccountant,
    RenyiFilter,
    Repeated,
    accountant_for,
    attacker_advantage,
    best_order,
    bound_record_event,
    bounds_contributions,
    failure_of,
    group_size,
    reduce_event,
    restate_by_old_rules,
)

__all__ = [
    "FIRST",
    "PRICING",
    "WHOLE_PLAN",
    "Cost",
    "CostTally",
    "Gate",
    "Prices",
    "as_priced_first",
    "bound_advantage",
    "claim_guarantees",
    "cost_of",
    "exceeds",
    "price_charge",
    "price_event",
]

PRICING = 3
"""The version of the prices that new entries are written by. It prices events as the second one did; the filter of a
lifetime is chosen by the budget and the first plan (:meth:`Prices.gate_after`), no longer by the budget alone."""
FIRST = 1
"""The version of entries that state none. Fixed-size batches cost what the worst single one does over and over, and a
record cost the same whether or not a person's records were bounded."""

Leaves = tuple[tuple[PrivacyEvent, int], ...]
Key = tuple[frozenset[tuple[PrivacyEvent, int]], float, bool]
Counted = TypeVar("Counted")
_SLACK = 1e-9
_SET_ASIDE = 1e-6  # of δ: pays for good samplers at one evaluation; what is left out moves ε by about as little
_UNNOTICED = 1e-3  # of δ: less than this is nothing to warn people of
_CLOSER = 60
_NO_BOUND = "no bound is known where a record that leaves lets another in"


def exceeds(epsilon: float, limit: float) -> bool:
    """Whether ε lies above a limit by more than rounding: the same plan may be added up in two orders."""
    return not epsilon <= limit * (1 + _SLACK)


@final
@dataclasses.dataclass(frozen=True, slots=True)
class Cost:
    """One charge in the form that is counted: events without their repetitions, failure, protection at all."""

    leaves: Leaves
    failure: float
    protected: bool


@functools.lru_cache(maxsize=1 << 14)
def _leaves(event: PrivacyEvent) -> Leaves:
    found: dict[PrivacyEvent, int] = {}
    _collect(event, 1, found)
    return tuple(found.items())


def _collect(event: PrivacyEvent, times: int, found: dict[PrivacyEvent, int]) -> None:
    if times == 0:
        return
    match event:
        case Repeated(times=more, event=inner):
            _collect(inner, times * more, found)
        case Composed(events=parts):
            for part in parts:
                _collect(part, times, found)
        case _:
            found[event] = found.get(event, 0) + times


def cost_of(charge: Charge, *, bounded: bool = False) -> Cost:
    """The charge in countable form; ``bounded`` reads it as that of a record where people's records are bounded.

    >>> from quietsum import Gaussian
    >>> event = Repeated(times=3, event=Repeated(times=2, event=Gaussian(noise_multiplier=4.0)))
    >>> cost_of(Charge(party="a", dataset="d", unit=PrivacyUnit.RECORD, event=event)).leaves
    ((Gaussian(noise_multiplier=4.0), 6),)
    """
    if charge.event is None:
        return Cost((), charge.failure, False)
    return Cost(_leaves(bound_record_event(charge.event) if bounded else charge.event), charge.failure, True)


@final
class CostTally:
    """How often each event was charged. Adding and taking back cancel exactly."""

    __slots__ = ("failures", "leaves", "unprotected")

    def __init__(self, costs: Iterable[Cost] = ()) -> None:
        self.leaves: dict[PrivacyEvent, int] = {}
        self.failures: dict[float, int] = {}
        self.unprotected = 0
        for cost in costs:
            self.add(cost)

    def copy(self) -> CostTally:
        """An independent tally with the same counts."""
        other = CostTally()
        other.leaves, other.failures, other.unprotected = dict(self.leaves), dict(self.failures), self.unprotected
        return other

    def add(self, cost: Cost, times: int = 1) -> None:
        """Count ``cost``; ``times`` = −1 takes one back."""
        for event, count in cost.leaves:
            _change(self.leaves, event, count * times)
        if cost.failure:
            _change(self.failures, cost.failure, times)
        if not cost.protected:
            self.unprotected += times

    def plus(self, costs: Iterable[Cost]) -> CostTally:
        """A new tally with ``costs`` added."""
        other = self.copy()
        for cost in costs:
            other.add(cost)
        return other

    def merge(self, other: CostTally) -> None:
        """Count everything that ``other`` counts."""
        for event, count in other.leaves.items():
            _change(self.leaves, event, count)
        for failure, count in other.failures.items():
            _change(self.failures, failure, count)
        self.unprotected += other.unprotected

    @property
    def failure(self) -> float:
        """The total variation of everything counted, rounded up."""
        if not self.failures:
            return 0.0
        total = math.fsum(failure * count for failure, count in sorted(self.failures.items()))
        return math.nextafter(total, math.inf) if total else 0.0

    def key(self) -> Key:
        """What the price depends on."""
        return frozenset(self.leaves.items()), self.failure, self.unprotected == 0


def _change(counts: dict[Counted, int], key: Counted, by: int) -> None:
    after = counts.get(key, 0) + by
    if after:
        counts[key] = after
    else:
        counts.pop(key, None)


@functools.lru_cache(maxsize=1 << 14)
def as_priced_first(event: PrivacyEvent) -> PrivacyEvent:
    """What the first version priced ``event`` as; itself where nothing has changed."""
    return restate_by_old_rules(event)


def _first(leaves: frozenset[tuple[PrivacyEvent, int]]) -> frozenset[tuple[PrivacyEvent, int]]:
    found: dict[PrivacyEvent, int] = {}
    for event, count in leaves:
        _change(found, as_priced_first(event), count)
    return frozenset(found.items())


@final
class Prices:
    """ε and Rényi divergences, each computed once. A verifier starts with an empty one.

    ``upper(key, accounting, neighbours, unit, delta)`` is what gates and entries go by, by the rules of
    ``version``.
    """

    def __init__(self, remembered: int = 1 << 16, *, version: int = PRICING) -> None:
        self.version, today = version, version != FIRST
        self.upper = functools.lru_cache(maxsize=remembered)(_upper if today else _upper_first)
        self._ideal = functools.lru_cache(maxsize=1 << 12)(_ideal)
        self.divergence = functools.lru_cache(maxsize=remembered)(_divergence if today else _divergence_first)
        self.gate = functools.lru_cache(maxsize=1024)(_gate)
        self._older_gate = functools.lru_cache(maxsize=1024)(_older_gate)
        self._most_useful = functools.lru_cache(maxsize=1024)(self._find_most_useful)

    @property
    def computed(self) -> int:
        """How many different histories had to be priced."""
        return self.upper.cache_info().misses

    def guarantee(
        self, key: Key, accounting: str, neighbours: Neighbours, unit: PrivacyUnit, delta: float
    ) -> Guarantee:
        """The ε of ``upper``, with a lower bound beside it: that of the events as they are described."""
        found = self.upper(key, accounting, neighbours, unit, delta)
        if not key[1] or not math.isfinite(found.epsilon):
            return found
        leaves = _first(key[0]) if self.version == FIRST else key[0]
        ideal = self._ideal(leaves, accounting, neighbours, unit, delta)
        return dataclasses.replace(found, epsilon_lower=min(ideal.epsilon_lower, found.epsilon))

    def gate_after(self, budget: Budget, first: CostTally, neighbours: Neighbours, version: int = PRICING) -> Gate:
        """The gate of a lifetime whose first plan is ``first``, opened under ``version`` of the prices.

        What is (ε′, δ)-private is (ε, δ)-private for every ε ≥ ε′, so a gate for any ε′ ≤ ε keeps the promise, where
        ε′ is chosen before any data is seen. The failure that δ can pay for falls as e^−ε′, the divergence that is
        allowed grows with ε′. So ε′ is the smaller of ε and the one at which the first plan uses the same share of
        both, beyond which a larger ε′ would allow less. That one depends on δ and the first plan alone: a larger
        lifetime allows no less of plans whose noise is, for its divergence, no further from its law than the first
        plan's, or than :data:`ORDINARY` where that leaves the first plan half of the gate. After a first plan that
        states no failure at all the gate is that of ε.

        Books whose first plan was opened under an older version keep the gate of ε itself where that plan fits it.
        """
        if version < PRICING:
            older = self._older_gate(budget)
            if older.usage(first, neighbours, self) <= 1:
                return older
        whole = self.gate(budget)
        if not first.failure or not whole.is_short_of_failure(first, max(first.failure, ORDINARY), neighbours, self):
            return whole
        most = self._most_useful(tuple(first.leaves.items()), first.failure, neighbours, budget.delta)
        return self.gate(dataclasses.replace(budget, epsilon=min(budget.epsilon, most)))

    def _find_most_useful(self, leaves: Leaves, failure: float, neighbours: Neighbours, delta: float) -> float:
        """The ε′ beyond which a gate of ``delta`` would allow less of plans like this one."""
        plan = CostTally()
        plan.leaves = dict(leaves)
        found = self._balance(plan, max(failure, ORDINARY), neighbours, delta)
        gate = self.gate(Budget(epsilon=found, delta=delta))
        if failure < ORDINARY and not gate.divergence_usage(plan, neighbours, self) <= 0.5:
            return self._balance(plan, failure, neighbours, delta)
        return found

    def _balance(self, plan: CostTally, failure: float, neighbours: Neighbours, delta: float) -> float:
        """The ε at which a plan uses the same share of the divergence and of the failure that its gate allows."""
        low, high = _LEAST, _MOST
        while high > low * (1 + 1e-12):
            middle = math.sqrt(low * high)
            if not low < middle < high:
                break
            short = self.gate(Budget(epsilon=middle, delta=delta)).is_short_of_failure(plan, failure, neighbours, self)
            low, high = (low, middle) if short else (middle, high)
        return low


def _ideal(
    leaves: frozenset[tuple[PrivacyEvent, int]],
    accounting: str,
    neighbours: Neighbours,
    unit: PrivacyUnit,
    delta: float,
) -> Guarantee:
    """ε of the events alone, as if the randomness were perfect."""
    return _compose((leaves, 0.0, True), accounting, neighbours, unit).epsilon(delta=delta)


def _compose(key: Key, accounting: str, neighbours: Neighbours, unit: PrivacyUnit) -> CopyableAccountant:
    accountant = accountant_for(accounting, neighbours=neighbours, unit=unit, events=[event for event, _ in key[0]])
    for event, count in sorted(key[0], key=repr):
        accountant.compose(event, count)
    return accountant


def _upper_first(key: Key, accounting: str, neighbours: Neighbours, unit: PrivacyUnit, delta: float) -> Guarantee:
    return _upper((_first(key[0]), *key[1:]), accounting, neighbours, unit, delta)


def _divergence_first(event: PrivacyEvent, order: float, neighbours: Neighbours) -> float:
    return _divergence(as_priced_first(event), order, neighbours)


def _upper(key: Key, accounting: str, neighbours: Neighbours, unit: PrivacyUnit, delta: float) -> Guarantee:
    """ε of a history at ``delta``: an upper bound, failures included, and no lower one where there are any.

    A record whose leaving lets another in may have no bound at all (Laplace noise on Poisson batches). Old books hold
    such records, so their ε is infinite; it is no error.
    """
    _, failure, protected = key
    try:
        accountant = _compose(key, accounting, neighbours, unit)
    except UnsupportedEvent:
        if not any(isinstance(event, OneInOneOut) for event, _ in key[0]):
            raise
        return Guarantee(epsilon=math.inf, delta=delta, unit=unit, neighbours=neighbours, method=_NO_BOUND)
    found = accountant.epsilon(delta=delta * (1 - _SET_ASIDE) if failure else delta)
    if not protected:
        return dataclasses.replace(
            found,
            delta=delta,
            epsilon=math.inf,
            epsilon_lower=math.inf,
            method="a release without protection",
            order=None,
            certified=True,
        )
    if not failure:
        return found
    found = dataclasses.replace(found, epsilon_lower=0.0)
    if (1 + math.exp(min(found.epsilon, 700.0))) * failure <= delta * _SET_ASIDE * (1 - 1e-9):
        return dataclasses.replace(found, delta=delta)
    for _ in range(_CLOSER):
        if found.epsilon == math.inf:
            break
        ceiling = found.epsilon * (1 + 1e-6) + 1e-9
        left = math.nextafter(delta - (1 + math.exp(min(ceiling, 700.0))) * failure * (1 + 1e-9), 0.0)
        if not left > 0:
            break
        found = dataclasses.replace(accountant.epsilon(delta=left), epsilon_lower=0.0)
        if found.epsilon <= ceiling:
            return dataclasses.replace(found, delta=delta, warnings=(*found.warnings, *_worth_saying(delta, left)))
    return dataclasses.replace(
        found, epsilon=math.inf, delta=delta, method="the noise's distance from its ideal law uses up δ", order=None
    )


def _worth_saying(delta: float, left: float) -> tuple[str, ...]:
    if left > (1 - _UNNOTICED) * delta:
        return ()
    return (f"{100 * (1 - left / delta):.2g} % of δ pays for the noise's distance from its ideal law",)


def _divergence(event: PrivacyEvent, order: float, neighbours: Neighbours) -> float:
    """The Rényi divergence of one event, infinite where it has none."""
    try:
        if any(failure_of(pair) > 0 for pair, _ in reduce_event(event, neighbours, 1)):
            return math.inf
        return float(RenyiAccountant(orders=[order], neighbours=neighbours).compose(event).rdp_at(order))
    except UnsupportedEvent:
        return math.inf


# ------------------------------------------------------------------------------------ single prices


def price_charge(
    charge: Charge, *, delta: float, accounting: str, neighbours: Neighbours, version: int = PRICING
) -> Guarantee:
    """The price of one charge at ``delta``. A forecast by it and the ledger agree to the last bit.

    ``version`` is an older version of the prices, for what a run stated then.
    """
    key = CostTally([cost_of(charge)]).key()
    return _prices(version).guarantee(key, accounting, neighbours, charge.unit, delta)


@functools.cache
def _prices(version: int) -> Prices:
    return Prices(version=version)


def price_event(
    event: PrivacyEvent,
    *,
    delta: float,
    accounting: str = "exact",
    neighbours: Neighbours = Neighbours.ADD_REMOVE,
    unit: PrivacyUnit = PrivacyUnit.RECORD,
) -> Guarantee:
    """The ε of one event as it is described, for a training that need not have a ledger.

    It is infinite if a record that leaves may let another in and no bound is known for that.
    """
    try:
        return accountant_for(accounting, neighbours=neighbours, unit=unit).compose(event).epsilon(delta=delta)
    except UnsupportedEvent:
        if not bounds_contributions(event):
            raise
        return Guarantee(epsilon=math.inf, delta=delta, unit=unit, neighbours=neighbours, method=_NO_BOUND)


# ------------------------------------------------------------------------------------ the lifetime gate

FAILURE_SHARE = 1e-3
"""The share of a dataset's δ set aside for imperfect randomness under a filter; fixed before anything is charged."""
ORDINARY = 1e-28
"""How far the secure noise of an ordinary plan is from its law, at most: ten billion draws, each within 1e-38."""


@final
@dataclasses.dataclass(frozen=True, slots=True)
class Gate:
    """A Rényi filter before anything is charged: its order, the divergence it allows and the failure it allows."""

    order: float
    divergence: float
    failure: float

    def usage(self, tally: CostTally, neighbours: Neighbours, prices: Prices) -> float:
        """The share of the gate that ``tally`` uses, rounded up; above 1 it does not fit."""
        if tally.unprotected or tally.failure > self.failure:
            return math.inf
        return self.divergence_usage(tally, neighbours, prices)

    def divergence_usage(self, tally: CostTally, neighbours: Neighbours, prices: Prices) -> float:
        """The share of the divergence alone, rounded up."""
        if len({group_size(event) for event in tally.leaves}) > 1:
            return math.inf  # groups of different sizes are different units
        total = 0.0
        for event, count in tally.leaves.items():
            part = math.nextafter(prices.divergence(event, self.order, neighbours) * count, math.inf)
            total = math.nextafter(total + part, math.inf)
        return total / self.divergence if self.divergence > 0 else math.inf if total else 0.0

    def is_short_of_failure(self, tally: CostTally, failure: float, neighbours: Neighbours, prices: Prices) -> bool:
        """Whether ``tally`` with this ``failure``, over and over, would use up the failure before the divergence."""
        return not tally.unprotected and not failure <= self.failure * self.divergence_usage(tally, neighbours, prices)


_LEAST, _MOST = 1e-6, 690.0  # between them lies every ε′ that a gate is chosen for; e^690 is still a number


def _gate(budget: Budget) -> Gate:
    """Failures may use δ·FAILURE_SHARE = (1 + e^ε) τ, the filter has the rest of δ at the best order for Gaussians."""
    inner = Budget(epsilon=budget.epsilon, delta=budget.delta * (1 - FAILURE_SHARE), unit=budget.unit)
    filter = RenyiFilter(budget=inner, order=best_order(inner))
    small = math.exp(-budget.epsilon)
    return Gate(
        order=filter.order, divergence=filter.rdp_budget, failure=budget.delta * FAILURE_SHARE * small / (1 + small)
    )


def _older_gate(budget: Budget) -> Gate:
    """The gate of versions before 3: the order is one of a grid, so that between two of them a larger ε allows less."""
    inner = Budget(epsilon=budget.epsilon, delta=budget.delta * (1 - FAILURE_SHARE), unit=budget.unit)
    try:
        filter = RenyiFilter(budget=inner)
    except InvalidParameter:  # so small an ε that no order leaves anything
        return Gate(order=2.0, divergence=0.0, failure=0.0)
    allowed = budget.delta * FAILURE_SHARE / (1 + math.exp(min(budget.epsilon, 700.0)))
    return Gate(order=filter.order, divergence=filter.rdp_budget, failure=allowed)


# ------------------------------------------------------------------------------------ claim and advantage

WHOLE_PLAN = "the whole plan, however much of it ran"
"""How the method of a guarantee says that it has no lower bound: see :func:`claim_guarantees`."""


def claim_guarantees(
    forecast: Sequence[Guarantee], *, finished: bool, spare_attempts: int = 0
) -> tuple[Guarantee, ...]:
    """What may be said about the models of a run, from the ``forecast`` of its whole plan, spare attempts included.

    Guarantees: ε is that of the whole plan. How many attempts a run took, which parties refused and when it stopped may
    have been decided by people who saw results, so nothing smaller is claimed (rule 3); and a smaller number would show
    who took part (rule 5). The lower bound is kept only if the run ``finished`` and had no ``spare_attempts``.
    A plan without protection has no forecast, and claims nothing.
    """
    if finished and not spare_attempts:
        return tuple(forecast)
    return tuple(dataclasses.replace(one, epsilon_lower=0.0, method=f"{one.method}; {WHOLE_PLAN}") for one in forecast)


def bound_advantage(guarantee: Guarantee, planned: Iterable[Charge], *, neighbours: Neighbours) -> float:
    """The best attacker's advantage against ``guarantee``: the smaller of two bounds.

    One is from (ε, δ) alone. The other is from the whole curve of the ``planned`` charges for the same unit, of the
    worst party; it is left out if there is no such charge, or if one of them has no protection.
    """
    alone, worst = attacker_advantage(guarantee), 0.0
    for charge in planned:
        if charge.unit is not guarantee.unit:
            continue
        if charge.event is None:
            return alone
        accountant = accountant_for("exact", neighbours=neighbours, unit=charge.unit, events=[charge.event])
        worst = max(worst, attacker_advantage(accountant.compose(charge.event)) + 2 * charge.failure)
    return min(alone, worst) if worst else alone
