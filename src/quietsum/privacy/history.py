"""What has been composed so far: the part that all accountants share."""

from __future__ import annotations

from typing import final

from quietsum.errors import InvalidParameter, MixedUnits
from quietsum.privacy.events import PrivacyEvent, require_event
from quietsum.privacy.guarantee import Guarantee
from quietsum.privacy.pairs import (
    Pair,
    bounded_contributions,
    fixed_size_draws,
    group_size,
    has_no_lower,
    reduce_event,
    unit_of,
)
from quietsum.privacy.shuffled import ShuffledEpochs, shuffled_epochs
from quietsum.privacy.units import Neighbours, Observer, PrivacyUnit
from quietsum.validate import open_probability, whole_number

__all__ = ["BOUNDED", "History"]

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
        for name, value, kind in (("neighbours", neighbours, Neighbours), ("observer", observer, Observer)):
            if not isinstance(value, kind):
                raise InvalidParameter(name, value, f"is not one of {[str(member) for member in kind]}")
        if unit is not None and not isinstance(unit, PrivacyUnit):
            raise InvalidParameter("unit", unit, f"is not one of {[str(member) for member in PrivacyUnit]}")
        self.neighbours = neighbours
        self.observer = observer
        self.counts: dict[Pair, int] = {}
        self.log: list[tuple[Pair, int]] = []
        self._unit = unit
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
        self._bounded = self._bounded or bounded_contributions(event)

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

        Bounds that cross by more than rounding are a bug of whoever computed them and never become a guarantee.
        """
        if epsilon_lower > epsilon * (1 + 1e-9) + 1e-12:
            raise ArithmeticError(
                f"the lower bound {epsilon_lower!r} on ε lies above the upper bound {epsilon!r} "
                f"({method}, δ = {delta:g}); please report the composed events"
            )
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
