"""What earlier versions priced differently: events that are never written, for books that were.

Entries of a ledger carry the version of the rules by which their ε was computed. What an entry states can only be
checked by the rules it was written under, so the old meaning of an event is kept here, under a name of its own, after
its price has changed. No accountant of today uses it for anything new, and it has no JSON form.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, final

from quietsum.privacy import events as ev
from quietsum.validate import probability, set_fields

__all__ = ["SingleBatch", "restate_by_old_rules"]


@final
@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class SingleBatch(ev.PrivacyEvent):
    """A fixed-size batch as it was priced first: every step at the worst pair of a single one.

    Guarantees: for one step the bound is right. Over several it is *not* proven: an attacker who steers the other
    records by what was released before exceeds it by a little. So it serves to check what was written, never as ε ≤.
    """

    kind: ClassVar[str] = "single-batch"
    rate: float
    event: ev.PrivacyEvent

    def __post_init__(self) -> None:
        set_fields(self, rate=probability("sample_rate", self.rate))
        ev.require_event("event", self.event, "pass an event")


def restate_by_old_rules(event: ev.PrivacyEvent) -> ev.PrivacyEvent:
    """``event`` as the first rules priced it; what they priced as we do is itself.

    Every fixed-size batch cost what the worst single one does, and a record cost the same whether or not its person's
    contributions were bounded.

    >>> step = ev.FixedSizeSampled(rate=0.1, event=ev.Gaussian(noise_multiplier=2.0))
    >>> restate_by_old_rules(ev.Repeated(times=3, event=step)).event
    SingleBatch(rate=0.1, event=Gaussian(noise_multiplier=2.0))
    """
    if isinstance(event, ev.OneInOneOut):
        return restate_by_old_rules(event.event)
    parts: dict[str, Any] = {}
    for field in dataclasses.fields(event):  # type: ignore[arg-type]  # every event is a dataclass
        value = getattr(event, field.name)
        if isinstance(value, ev.PrivacyEvent):
            value = restate_by_old_rules(value)
        elif isinstance(value, tuple):
            value = tuple(restate_by_old_rules(part) for part in value)
        parts[field.name] = value
    if isinstance(event, ev.FixedSizeSampled):
        return SingleBatch(**parts)
    unchanged = all(value is getattr(event, name) or value == getattr(event, name) for name, value in parts.items())
    return event if unchanged else type(event)(**parts)
