"""The readable privacy block of a checkpoint, and the check that it is still true when a run goes on."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from quietsum.errors import CorruptState, LedgerBroken
from quietsum.privacy import FixedSizeSampled, Gaussian, OneInOneOut, PoissonSampled, PrivacyEvent, PrivacyUnit

if TYPE_CHECKING:
    from quietsum.ledger import RunHistory
    from quietsum.plan import ResolvedPlan
    from quietsum.runs.checkpoint import RunCheckpoint

__all__ = ["block", "check_block"]

TOLERANCE = 1e-6


_NAMES = {PrivacyUnit.RECORD: "sample", PrivacyUnit.PERSON: "person", PrivacyUnit.CLIENT: "user"}


def block(
    history: RunHistory, resolved: ResolvedPlan, *, as_stated_at: int | None = None, refunds: bool = False
) -> dict[str, Any]:
    """What ``history`` has seen so far, in words people know; every reservation counts.

    A refund changes nothing in it, so that who opens a checkpoint does not see who refused (rule 5); with ``refunds``
    it is the block that checkpoints of before 0.1.0 hold.

    ``sample_history`` and ``user_history`` list (noise multiplier, sample rate, steps) for each party; the two ε are
    those of the worst party. A run without privacy has no δ and no ε. People have a history and an ε of their own where
    something is promised to them, and units after the first a δ of their own. ``as_stated_at`` is an entry of the
    ledger: ε is then by the prices of that time.
    """
    units = [PrivacyUnit.RECORD, PrivacyUnit.CLIENT]
    if resolved.limit_of(PrivacyUnit.PERSON) is not None:
        units.insert(1, PrivacyUnit.PERSON)
    values: dict[str, Any] = {"target_delta": resolved.delta}
    for limit in resolved.limits[1:]:
        values[f"target_{_NAMES[limit.unit]}_delta"] = limit.delta
    for unit in units:
        values[f"{_NAMES[unit]}_history"] = _history(history.paid if refunds else history.charged, unit)
    for unit in units:
        found = history.epsilon(unit, as_stated_at=as_stated_at, refunds=refunds) if resolved.protected else math.inf
        values[f"cumulative_{_NAMES[unit]}_epsilon"] = found if math.isfinite(found) else None
    return values


def _history(
    charged: Mapping[tuple[str, PrivacyUnit], Mapping[PrivacyEvent, int]], wanted: PrivacyUnit
) -> list[dict[str, Any]]:
    return [
        {"party": party, **_describe(event), "steps": times}
        for (party, unit), events in sorted(charged.items())
        for event, times in sorted(events.items(), key=lambda item: repr(item[0]))
        if unit is wanted
    ]


def _describe(event: PrivacyEvent) -> dict[str, Any]:
    match event:
        case OneInOneOut(event=inner):
            return _describe(inner)
        case Gaussian(noise_multiplier=noise):
            return {"noise_multiplier": noise, "sample_rate": 1.0}
        case PoissonSampled(rate=rate, event=Gaussian(noise_multiplier=noise)):
            return {"noise_multiplier": noise, "sample_rate": rate}
        case FixedSizeSampled(rate=rate, event=Gaussian(noise_multiplier=noise)):
            return {"noise_multiplier": noise, "sample_rate": rate, "sampling": "fixed-size"}
    return {"event": event.to_dict()}


def check_block(checkpoint: RunCheckpoint, history: RunHistory, resolved: ResolvedPlan) -> None:
    """Compare a checkpoint's privacy block with ``history``, which was read up to the checkpoint's head.

    Guarantees: a block that was edited (:class:`~quietsum.errors.CorruptState`) or a ledger that never charged what the
    block says (:class:`~quietsum.errors.LedgerBroken`) stops the run before anything is asked of a party.
    """
    saved = checkpoint.privacy
    now = block(history, resolved, as_stated_at=checkpoint.head.sequence)
    if saved != now:  # one of before, from which refunds were taken off
        earlier = block(history, resolved, as_stated_at=checkpoint.head.sequence, refunds=True)
        if all(saved.get(name) == earlier[name] for name in earlier if name.endswith("_history")):
            now = earlier
    if set(saved) != set(now):
        raise CorruptState(f"the privacy block of round {checkpoint.round} has other keys than {sorted(now)}")
    for name in (name for name in now if name.endswith("_delta")):
        if saved[name] != now[name]:
            raise CorruptState(
                f"the checkpoint of round {checkpoint.round} was made for δ = {saved[name]}, the plan says "
                f"{now[name]}; a run keeps its δ"
            )
    for name in (name for name in now if name.endswith("_history")):
        if saved[name] != now[name]:
            raise LedgerBroken(
                f"and the checkpoint of round {checkpoint.round} disagree about {name.replace('_', ' ')}",
                at=checkpoint.head.sequence,
                remedy="one of them was altered: run quietsum ledger verify, restore what it names, then resume",
            )
    for name in (name for name in now if name.startswith("cumulative_")):
        before, after = saved[name], now[name]
        if before is None and after is None:
            continue
        if not _number(before) or not _number(after) or abs(before - after) > TOLERANCE * max(1.0, after):
            raise CorruptState(
                f"the checkpoint of round {checkpoint.round} states {name.replace('_', ' ')} = {before}, which comes "
                f"out as {after}; it was altered: restore it, or delete it to go on from the one before"
            )


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
