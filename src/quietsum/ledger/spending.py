"""From charges to ε: multisets of events, and prices that are computed once.

A :class:`Tally` counts what was charged, event by event, in no particular order. Its ε is a function of those counts
alone, so equal histories have equal prices to the last bit, whoever computes them and whenever; :class:`Prices`
remembers them by history, which is what makes a ledger of a million entries cheap to verify.

**Imperfect randomness.** Charges say how far their noise may be, in total variation, from the law that their event
describes. With τ the sum over all charges, what really ran is within τ of a mechanism that is (ε, δ′)-private; then for
every set S and neighbours P, Q: P(S) ≤ P′(S) + τ ≤ e^ε Q′(S) + δ′ + τ ≤ e^ε Q(S) + δ′ + (1 + e^ε) τ. So ε is asked for
at δ′ = δ − (1 + e^ε) τ, and is infinite where nothing of δ is left.

**Versions.** Prices have a version, and entries say by which one they were written. A tally always holds events as
today's rules read them; :class:`Prices` of an older version map them to what that version priced, so that what an old
entry states comes out again (:mod:`quietsum.ledger.pricing`).
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterable
from typing import TypeVar, final

from quietsum.errors import InvalidParameter, UnsupportedEvent
from quietsum.ledger.charges import Charge
from quietsum.privacy.calibrate import Accounts, accountant_for
from quietsum.privacy.curves import failure_of
from quietsum.privacy.events import Composed, OneInOneOut, PrivacyEvent, Repeated
from quietsum.privacy.filters import RenyiFilter
from quietsum.privacy.groups import bounded_record_event
from quietsum.privacy.guarantee import Budget, Guarantee
from quietsum.privacy.old_rules import by_old_rules
from quietsum.privacy.pairs import group_size, reduce_event
from quietsum.privacy.renyi import RenyiAccountant
from quietsum.privacy.units import Neighbours, PrivacyUnit

__all__ = ["FIRST", "PRICING", "Cost", "Gate", "Prices", "Tally", "as_priced_first", "cost_of", "exceeds"]

PRICING = 2
"""The version of the prices that new entries are written by."""
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
    return Cost(_leaves(bounded_record_event(charge.event) if bounded else charge.event), charge.failure, True)


@final
class Tally:
    """How often each event was charged. Adding and taking back cancel exactly."""

    __slots__ = ("failures", "leaves", "unprotected")

    def __init__(self, costs: Iterable[Cost] = ()) -> None:
        self.leaves: dict[PrivacyEvent, int] = {}
        self.failures: dict[float, int] = {}
        self.unprotected = 0
        for cost in costs:
            self.add(cost)

    def copy(self) -> Tally:
        """An independent tally with the same counts."""
        other = Tally()
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

    def plus(self, costs: Iterable[Cost]) -> Tally:
        """A new tally with ``costs`` added."""
        other = self.copy()
        for cost in costs:
            other.add(cost)
        return other

    def merge(self, other: Tally) -> None:
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
    return by_old_rules(event)


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
        self.version, today = version, version == PRICING
        self.upper = functools.lru_cache(maxsize=remembered)(_upper if today else _upper_first)
        self._ideal = functools.lru_cache(maxsize=1 << 12)(_ideal)
        self.divergence = functools.lru_cache(maxsize=remembered)(_divergence if today else _divergence_first)
        self.gate = functools.lru_cache(maxsize=1024)(_gate)

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
        leaves = key[0] if self.version == PRICING else _first(key[0])
        ideal = self._ideal(leaves, accounting, neighbours, unit, delta)
        return dataclasses.replace(found, epsilon_lower=min(ideal.epsilon_lower, found.epsilon))


def _ideal(
    leaves: frozenset[tuple[PrivacyEvent, int]],
    accounting: str,
    neighbours: Neighbours,
    unit: PrivacyUnit,
    delta: float,
) -> Guarantee:
    """ε of the events alone, as if the randomness were perfect."""
    return _compose((leaves, 0.0, True), accounting, neighbours, unit).epsilon(delta=delta)


def _compose(key: Key, accounting: str, neighbours: Neighbours, unit: PrivacyUnit) -> Accounts:
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
        return Guarantee(
            epsilon=math.inf, delta=delta, unit=unit, neighbours=neighbours,
            method="no bound is known where a record that leaves lets another in",
        )  # fmt: skip
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


# ------------------------------------------------------------------------------------ the lifetime gate

FAILURE_SHARE = 1e-3
"""The share of a dataset's δ set aside for imperfect randomness under a filter; fixed before anything is charged."""


@final
@dataclasses.dataclass(frozen=True, slots=True)
class Gate:
    """What a budget alone fixes: the order of its Rényi filter, the divergence it allows and the failure it allows."""

    order: float
    divergence: float
    failure: float

    def used(self, tally: Tally, neighbours: Neighbours, prices: Prices) -> float:
        """The share of the gate that ``tally`` uses, rounded up; above 1 it does not fit."""
        if tally.unprotected or tally.failure > self.failure:
            return math.inf
        if len({group_size(event) for event in tally.leaves}) > 1:
            return math.inf  # groups of different sizes are different units
        total = 0.0
        for event, count in tally.leaves.items():
            part = math.nextafter(prices.divergence(event, self.order, neighbours) * count, math.inf)
            total = math.nextafter(total + part, math.inf)
        return total / self.divergence if self.divergence > 0 else math.inf if total else 0.0


def _gate(budget: Budget) -> Gate:
    """Failures may use δ·FAILURE_SHARE = (1 + e^ε) τ, the filter has the rest of δ."""
    inner = Budget(epsilon=budget.epsilon, delta=budget.delta * (1 - FAILURE_SHARE), unit=budget.unit)
    try:
        filter = RenyiFilter(budget=inner)
    except InvalidParameter:  # so small an ε that no order leaves anything
        return Gate(order=2.0, divergence=0.0, failure=0.0)
    allowed = budget.delta * FAILURE_SHARE / (1 + math.exp(min(budget.epsilon, 700.0)))
    return Gate(order=filter.order, divergence=filter.rdp_budget, failure=allowed)
