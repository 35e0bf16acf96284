"""What lies beside a ledger and says that there was one: a key, a high-water mark, runs that were paid from it.

A ledger that is missing or has no entry is one of two things. It was never begun, or its first start was ended (a kill,
a full disk) before the first entry was there: then nothing was ever spent, and the next start begins it. Or it was
lost: then a new one would forget what was spent. The genesis entry is written before the key gets its final name, and
everything else here is written later still, so any of these files beside a ledger without entries means the second.
"""

from __future__ import annotations

from pathlib import Path

from quietsum.errors import LedgerBroken
from quietsum.ledger.stores.protocol import NoLedger

__all__ = ["lost_ledger", "missing_ledger", "remains_of", "require_nothing_left"]


def remains_of(ledger: Path) -> Path | None:
    """The first thing beside ``ledger`` that only comes after its first entry; None where there is none."""
    for end in (".key", ".head", ".snapshot"):
        path = ledger.with_name(ledger.name + end)
        if path.exists():
            return path
    for pattern in ("runs/*/run.json", "training/*/checkpoint.safetensors"):
        for path in sorted(ledger.parent.glob(pattern)):
            return path
    return None


def require_nothing_left(ledger: Path) -> None:
    """LedgerBroken where something is left of a ledger that is missing, so that a new one is not begun."""
    left = remains_of(ledger)
    if left is not None:
        raise lost_ledger(ledger, left)


def lost_ledger(ledger: Path, left: Path) -> LedgerBroken:
    """What ``run``, ``verify`` and ``show`` say of a ledger that is no longer there."""
    what = "is empty" if ledger.exists() else "is gone"
    return LedgerBroken(
        f"{ledger} {what}, but {left} is still there",
        remedy="put the ledger back, restored from its copy; a new one would forget what was spent",
    )


def missing_ledger(ledger: Path, place: str) -> LedgerBroken | NoLedger:
    """The error for a ledger without a single entry at ``place``: lost, or never begun."""
    left = remains_of(ledger)
    if left is not None:
        return lost_ledger(ledger, left)
    if ledger.exists():
        return NoLedger(
            f"the ledger at {place} was never begun: it has no entry, and nothing beside it says that it had one. A "
            "start was ended before anything was spent; the next `quietsum run` begins it. If there was a ledger, "
            "restore it from its copy"
        )
    return NoLedger(
        f"there is no ledger at {place}; the first `quietsum run` makes one, or point --workspace at the folder that "
        "holds it"
    )
