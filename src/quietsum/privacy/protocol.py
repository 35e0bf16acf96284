"""The one interface behind which every accountant stands."""

from __future__ import annotations

from typing import Protocol, Self, runtime_checkable

from quietsum.privacy.events import PrivacyEvent
from quietsum.privacy.guarantee import Guarantee

__all__ = ["Accountant"]


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
