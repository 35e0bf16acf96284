"""The contract's task under a name of our own, since other processes make it by its name."""

from __future__ import annotations

from quietsum.contracts.exchanges import KnownUpdates


class Updates(KnownUpdates):
    """The same updates."""
