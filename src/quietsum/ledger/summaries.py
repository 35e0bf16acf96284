"""A ledger in a few numbers, for people and programs that only look."""

from __future__ import annotations

import dataclasses
from typing import final

from quietsum.ledger.accounts import RunState

__all__ = ["Identity", "RunSummary", "summary_of"]


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Identity:
    """Who a ledger is: its name, which is derived from its public key, and the key in hexadecimal."""

    ledger: str
    public_key: str


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class RunSummary:
    """A run in a few numbers; ``sequence`` is the entry that opened it, ``pricing`` the version of its prices then."""

    run: str
    sequence: int
    plan_hash: str
    rounds: int
    attempts: int
    committed: int
    refunds: int
    datasets: tuple[tuple[str, str], ...]
    pricing: int


def summary_of(name: str, run: RunState) -> RunSummary:
    """The numbers of one run."""
    return RunSummary(
        run=name,
        sequence=run.entry,
        plan_hash=run.plan_hash,
        rounds=len(run.attempts),
        attempts=len(run.reserved),
        committed=run.committed,
        refunds=run.refunds,
        datasets=tuple(sorted(run.datasets.items())),
        pricing=run.pricing,
    )
