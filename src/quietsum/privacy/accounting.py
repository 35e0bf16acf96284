"""Accounting: the interface of every accountant, how one is chosen by name, and what all of them keep.

An accountant accumulates privacy events and answers with guarantees. :func:`accountant_for` makes the one that a plan
names; :class:`History` holds what was composed so far, reduced to dominating pairs, and writes the unit, the relation
and the warnings into each guarantee. The mathematics of each accountant is a room of its own: ``exact``, ``renyi`` and
``pld``, and the modules ``concentrated`` and ``classical``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Protocol, Self, final, runtime_checkable

from quietsum.errors import InvalidParameter, MixedUnits
from quietsum.privacy.events import PrivacyEvent, require_event
from quietsum.privacy.guarantee import Guarantee
from quietsum.privacy.pairs import (
    Pair,
    bounds_contributions,
    fixed_size_draws,
    group_size,
    has_no_lower,
    has_only_moments,
    reduce_event,
    unit_of,
)
from quietsum.privacy.shuffled import ShuffledEpochs, shuffled_epochs
from quietsum.privacy.units import Neighbours, Observer, PrivacyUnit
from quietsum.validate import join_choices, open_probability, optional, strict_member, whole_number

__all__ = [
    "ACCOUNTING",
    "BOUNDED",
    "Accountant",
    "CopyableAccountant",
    "History",
    "accountant_for",
    "cache_clear",
    "check_delta",
]

ACCOUNTING = ("exact", "rdp", "moments")
"""The names that :func:`accountant_for` knows."""


@runtime_checkable
class Accountant(Protocol):
    """Accumulates events, answers with guarantees.

    :class:`quietsum.contracts.AccountantContract` is the shipped test suite that every implementation passes,
    ours or yours.
    """

    def supports(self, event: PrivacyEvent) -> bool:
        """Whether :meth:`compose` has a sound bound for ``event``."""
        ...

    def compose(self, event: PrivacyEvent, times: int = 1) -> Self:
        """Add ``event``, ``times`` times. An unknown event is refused by name and changes nothing."""
        ...

    def epsilon(self, *, delta: float) -> Guarantee:
        """What all composed events cost together at ``delta``. Nothing composed costs 0."""
        ...

    def delta(self, *, epsilon: float) -> float:
        """The smallest δ we can show at ``epsilon``."""
        ...


class CopyableAccountant(Accountant, Protocol):
    """An accountant of which a copy can be asked what more events would cost."""

    def copy(self) -> Self:
        """An independent accountant with the same history."""
        ...


def accountant_for(
    accounting: str,
    *,
    neighbours: Neighbours = Neighbours.ADD_REMOVE,
    unit: PrivacyUnit | None = None,
    observer: Observer = Observer.RECIPIENTS,
    events: Iterable[PrivacyEvent] = (),
) -> CopyableAccountant:
    """The accountant behind a name: ``exact``, ``rdp`` or ``moments``.

    Of integer noise in several dimensions (the shares of distributed noise) only moments are known. Where ``events``
    hold any, ``exact`` is the price of the Gaussian next to it where the noise is wide, as that of plans is, else
    Rényi's (:class:`~quietsum.privacy.exact.near_gaussian.NearGaussianAccountant`); guarantees say so in their method.
    """
    from quietsum.privacy.exact.accountant import ExactAccountant
    from quietsum.privacy.exact.near_gaussian import NearGaussianAccountant
    from quietsum.privacy.renyi.accountant import RenyiAccountant

    match accounting:
        case "exact" if any(has_only_moments(event) for event in events):
            return NearGaussianAccountant(neighbours=neighbours, unit=unit, observer=observer)
        case "exact":
            return ExactAccountant(neighbours=neighbours, unit=unit, observer=observer)
        case "rdp":
            return RenyiAccountant(neighbours=neighbours, unit=unit, observer=observer)
        case "moments":
            return RenyiAccountant.moments_accountant(neighbours=neighbours, unit=unit, observer=observer)
        case _:
            raise InvalidParameter("accounting", accounting, "is unknown", f"choose {join_choices(ACCOUNTING)}")


BOUNDED = {
    Neighbours.ADD_REMOVE: "a record that leaves may let another of its person in, and is priced so: one in, one out",
    Neighbours.REPLACE_ONE: "holds where a replaced record keeps its person",
}
"""What a guarantee per record says where contributions are bounded. Under zero-out no other record moves."""


@final
class History:
    """Pairs with their counts, in order of first use, under one relation and for one unit.

    ``add`` reduces an event and records it; an event that cannot be reduced, or that speaks of another group
    size than the earlier ones, raises and changes nothing.
    """

    def __init__(self, neighbours: Neighbours, unit: PrivacyUnit | None, observer: Observer) -> None:
        self.neighbours = strict_member("neighbours", neighbours, Neighbours)
        self.observer = strict_member("observer", observer, Observer)
        self.counts: dict[Pair, int] = {}
        self.log: list[tuple[Pair, int]] = []
        self._unit = optional(strict_member, "unit", unit, PrivacyUnit)
        self._size: int | None = None
        self._shuffled: dict[tuple[float | None, int], int] = {}  # (noise, batches) → epochs
        self._fixed_size = 0
        self._no_lower = False
        self._bounded = False

    def copy(self) -> History:
        """An independent history with the same contents."""
        other = History(self.neighbours, self._unit, self.observer)
        other.counts, other.log = dict(self.counts), list(self.log)
        other._size, other._shuffled, other._fixed_size = self._size, dict(self._shuffled), self._fixed_size
        other._no_lower = self._no_lower
        other._bounded = self._bounded
        return other

    @property
    def group_size(self) -> int:
        """The k of the groups composed so far; 1 without groups."""
        return self._size or 1

    @property
    def unit(self) -> PrivacyUnit:
        """The unit that guarantees made from this history wear."""
        return unit_of(self.group_size, self._unit)

    def reduce(self, event: PrivacyEvent, times: int = 1) -> list[tuple[Pair, int]]:
        """The pairs of ``event``, checked against this history's group size; nothing is recorded."""
        require_event("event", event)
        times = whole_number("times", times)
        self._require_size(group_size(event))
        return reduce_event(event, self.neighbours, times)

    def _require_size(self, size: int) -> None:
        if self._size is not None and size != self._size:
            raise MixedUnits(
                f"this accountant counts groups of {self._size}, the event speaks of {size}; wrap every event in "
                "Group(size=k, event=...) or keep one accountant a unit"
            )

    def add(self, event: PrivacyEvent, times: int, pairs: list[tuple[Pair, int]]) -> None:
        """Record ``pairs``, the reduction of ``times`` × ``event``."""
        if not pairs:
            return
        times = whole_number("times", times)
        self._size = group_size(event)
        for pair, count in pairs:
            self._count(pair, count)
        for epochs in shuffled_epochs(event, times):
            key = epochs.noise_multiplier, epochs.batches
            self._shuffled[key] = self._shuffled.get(key, 0) + epochs.epochs
        self._fixed_size += fixed_size_draws(event, times)
        self._no_lower = self._no_lower or has_no_lower(event)
        self._bounded = self._bounded or bounds_contributions(event)

    def add_pair(self, pair: Pair, count: int) -> None:
        """Record a pair of one unit directly; where groups were composed that raises and changes nothing."""
        self._require_size(1)
        self._size = 1
        self._count(pair, count)

    def _count(self, pair: Pair, count: int) -> None:
        self.counts[pair] = self.counts.get(pair, 0) + count
        self.log.append((pair, count))

    def _warnings(self, delta: float) -> tuple[str, ...]:
        found = [ShuffledEpochs(*key, epochs).warning(delta) for key, epochs in self._shuffled.items()]
        if self._fixed_size > 1:
            found.append(
                f"{self._fixed_size} fixed-size batches are composed as the worst single one; an attacker who steers "
                "all other records by what was released before gains more (0.02 to 0.05 in benchmarks/fixed_size.py)"
            )
        if self._bounded and self.neighbours in BOUNDED:
            found.append(BOUNDED[self.neighbours])
        return tuple(found)

    def guarantee(
        self,
        *,
        epsilon: float,
        delta: float,
        method: str,
        epsilon_lower: float = 0.0,
        order: float | None = None,
        certified: bool = False,
    ) -> Guarantee:
        """A guarantee that wears this history's unit, relation, observer and warnings.

        Raises ArithmeticError if the bounds cross by more than rounding: that is a fault of the accountant.
        """
        if epsilon_lower > epsilon * (1 + 1e-9) + 1e-12:
            raise ArithmeticError(
                f"the lower bound {epsilon_lower!r} on ε lies above the upper bound {epsilon!r} "
                f"({method}, δ = {delta:g}); please report the composed events"
            )
        if self._shuffled:  # the composed pair is an upper bound, and what is attained by it says nothing about batches
            epsilon_lower = max(ShuffledEpochs(*key, epochs).lower(delta) for key, epochs in self._shuffled.items())
        return Guarantee(
            epsilon=epsilon,
            epsilon_lower=0.0 if self._no_lower else min(epsilon_lower, epsilon),
            delta=delta,
            unit=self.unit,
            observer=self.observer,
            neighbours=self.neighbours,
            method=method,
            order=order,
            certified=certified and self._fixed_size <= 1,
            group_size=self.group_size,
            warnings=self._warnings(delta),
        )


def check_delta(delta: object) -> float:
    """``delta`` as a float strictly between 0 and 1."""
    return open_probability("delta", delta)


# Tables that depend on a grid of orders or nodes alone, not on any mechanism: constants of the method.
_TABLES = frozenset({"_binomial_terms", "_conversion_terms", "_frame", "_order_array", "_stretching"})


def cache_clear() -> None:
    """Forget everything computed for mechanisms, so that a benchmark's next timing starts cold.

    Tables of a method itself (binomial coefficients of the Rényi orders, nodes of a contour) stay.
    """
    for name, module in list(sys.modules.items()):
        if name.startswith("quietsum.privacy."):
            for key, value in list(vars(module).items()):
                clear = getattr(value, "cache_clear", None)
                if callable(clear) and key not in _TABLES:
                    clear()
