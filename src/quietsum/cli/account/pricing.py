"""From charges to guarantees, with the Rényi bound beside the exact one."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, final

from quietsum import privacy
from quietsum.errors import UnsupportedEvent
from quietsum.privacy import Guarantee, Neighbours, PrivacyUnit

if TYPE_CHECKING:
    from quietsum.privacy import Accountant

__all__ = ["Charge", "Priced", "account", "exact_accountant", "renyi_guarantee"]

Charge = tuple[privacy.PrivacyEvent, int]
"""An event and how often it ran."""


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Priced:
    """The tightest guarantee we have, the Rényi one where it exists, and the accountant that knows the whole curve."""

    guarantee: Guarantee
    renyi: Guarantee | None
    accountant: Accountant | None


def account(
    charges: Iterable[Charge],
    *,
    delta: float,
    neighbours: Neighbours,
    unit: PrivacyUnit | None = None,
    group: int = 1,
) -> Priced:
    """What ``charges`` cost together, for a group of ``group`` units."""
    merged = _merge(charges)
    grouped = merged if group == 1 else [(privacy.Group(size=group, event=event), times) for event, times in merged]
    try:
        accountant: Accountant | None = exact_accountant(grouped, neighbours=neighbours, unit=unit)
    except UnsupportedEvent:
        if group == 1:
            raise
        accountant = None
    if accountant is not None:
        guarantee = accountant.epsilon(delta=delta)
    else:  # no tight pair for this group: the generic rule on the single unit
        from quietsum.privacy import group_guarantee

        guarantee = group_guarantee(exact_accountant(merged, neighbours=neighbours, unit=unit), size=group, delta=delta)
    renyi = renyi_guarantee(grouped, delta=delta, neighbours=neighbours, unit=unit)
    if renyi is not None and renyi.epsilon < guarantee.epsilon:  # both are upper bounds; the smaller one counts
        method = f"{guarantee.method}; upper bound by {renyi.method}"
        lower = min(guarantee.epsilon_lower, renyi.epsilon)
        guarantee = dataclasses.replace(guarantee, epsilon=renyi.epsilon, epsilon_lower=lower, method=method)
    return Priced(guarantee=guarantee, renyi=renyi, accountant=accountant)


def exact_accountant(
    charges: Sequence[Charge], *, neighbours: Neighbours, unit: PrivacyUnit | None = None
) -> Accountant:
    """An accountant that has composed ``charges``: the exact one, or Rényi's where only moments are known."""
    from quietsum.privacy import ExactAccountant, RenyiAccountant

    exact = ExactAccountant(neighbours=neighbours, unit=unit)
    renyi = RenyiAccountant(neighbours=neighbours, unit=unit)
    moments_only = not all(exact.supports(event) for event, _ in charges)
    accountant = renyi if moments_only and all(renyi.supports(event) for event, _ in charges) else exact
    for event, times in charges:
        accountant.compose(event, times)
    return accountant


def renyi_guarantee(
    charges: Sequence[Charge], *, delta: float, neighbours: Neighbours, unit: PrivacyUnit | None = None
) -> Guarantee | None:
    """The Rényi bound, or None where an event has none."""
    from quietsum.privacy import RenyiAccountant

    accountant = RenyiAccountant(neighbours=neighbours, unit=unit)
    try:
        for event, times in charges:
            accountant.compose(event, times)
    except UnsupportedEvent:
        return None
    return accountant.epsilon(delta=delta)


def _merge(charges: Iterable[Charge]) -> list[Charge]:
    """Equal events once, with the sum of their counts."""
    counts: dict[privacy.PrivacyEvent, int] = {}
    for event, times in charges:
        counts[event] = counts.get(event, 0) + times
    return [(event, times) for event, times in counts.items() if times]
