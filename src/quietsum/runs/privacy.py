"""The readable privacy block of a checkpoint, and the check that it is still true when a run goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from quietsum.errors import CorruptState, LedgerBroken
from quietsum.privacy.events import Gaussian, PoissonSampled, PrivacyEvent
from quietsum.privacy.units import PrivacyUnit

if TYPE_CHECKING:
    from quietsum.ledger.history import RunHistory
    from quietsum.plan import ResolvedPlan
    from quietsum.runs.checkpoint import Checkpoint

__all__ = ["block", "check"]

TOLERANCE = 1e-6


def block(history: RunHistory, resolved: ResolvedPlan) -> dict[str, Any]:
    """What ``history`` has seen so far, in words people know; every reservation counts.

    ``sample_history`` and ``user_history`` list (noise multiplier, sample rate, steps) for each party; the two ε are
    those of the worst party. A run without privacy has no δ and no ε.
    """
    return {
        "target_delta": resolved.delta,
        "sample_history": _history(history, PrivacyUnit.RECORD),
        "user_history": _history(history, PrivacyUnit.CLIENT),
        "cumulative_sample_epsilon": history.epsilon(PrivacyUnit.RECORD) if resolved.protected else None,
        "cumulative_user_epsilon": history.epsilon(PrivacyUnit.CLIENT) if resolved.protected else None,
    }


def _history(history: RunHistory, wanted: PrivacyUnit) -> list[dict[str, Any]]:
    return [
        {"party": party, **_described(event), "steps": times}
        for (party, unit), events in sorted(history.paid.items())
        for event, times in sorted(events.items(), key=lambda item: repr(item[0]))
        if unit is wanted
    ]


def _described(event: PrivacyEvent) -> dict[str, Any]:
    match event:
        case Gaussian(noise_multiplier=noise):
            return {"noise_multiplier": noise, "sample_rate": 1.0}
        case PoissonSampled(rate=rate, event=Gaussian(noise_multiplier=noise)):
            return {"noise_multiplier": noise, "sample_rate": rate}
    return {"event": event.to_dict()}


def check(checkpoint: Checkpoint, history: RunHistory, resolved: ResolvedPlan) -> None:
    """Compare a checkpoint's privacy block with ``history``, which was read up to the checkpoint's head.

    Guarantees: a block that was edited (:class:`~quietsum.errors.CorruptState`) or a ledger that never charged what the
    block says (:class:`~quietsum.errors.LedgerBroken`) stops the run before anything is asked of a party.
    """
    saved = checkpoint.privacy
    now = block(history, resolved)
    if set(saved) != set(now):
        raise CorruptState(f"the privacy block of round {checkpoint.round} has other keys than {sorted(now)}")
    if saved["target_delta"] != now["target_delta"]:
        raise CorruptState(
            f"the checkpoint of round {checkpoint.round} was made for δ = {saved['target_delta']}, the plan says "
            f"{now['target_delta']}; a run keeps its δ"
        )
    for name in ("sample_history", "user_history"):
        if saved[name] != now[name]:
            raise LedgerBroken(
                f"and the checkpoint of round {checkpoint.round} disagree about {name.replace('_', ' ')}",
                at=checkpoint.head.sequence,
                remedy="one of them was altered: run quietsum ledger verify, restore what it names, then resume",
            )
    for name in ("cumulative_sample_epsilon", "cumulative_user_epsilon"):
        before, after = saved[name], now[name]
        if before is None and after is None:
            continue
        if not isinstance(before, int | float) or abs(before - after) > TOLERANCE * max(1.0, after):
            raise CorruptState(
                f"the checkpoint of round {checkpoint.round} states {name.replace('_', ' ')} = {before}, which comes "
                f"out as {after}; it was altered: restore it, or delete it to go on from the one before"
            )
