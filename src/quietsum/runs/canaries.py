"""The canaries of a run on this machine: a folder for each party, beside its checkpoints.

What they record stays with the holder of the data, who on one machine is whoever holds the workspace: the folders are
for their owner alone, and no report shows them. Sites on other machines carry none.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from quietsum.errors import PlanRefused
from quietsum.learning import PartyCanaries
from quietsum.mechanisms import system_randomness

if TYPE_CHECKING:
    from quietsum.mechanisms import RandomSource
    from quietsum.plan import ResolvedPlan

__all__ = ["CANARIES", "canaries_of", "label_of", "party_folder", "refuse_elsewhere"]

CANARIES = "canaries"


def party_folder(run: Path, place: int) -> Path:
    """Where the party at this place of the plan keeps its canaries; a party's name need not be the name of a folder."""
    return run / CANARIES / f"party-{place + 1:05d}"


def label_of(run: str, party: str) -> str:
    """Whose record a file is."""
    return f"{run}: {party}"


def canaries_of(
    resolved: ResolvedPlan, folder: Path, run: str, rng: RandomSource | None = None
) -> Mapping[str, PartyCanaries] | None:
    """The canaries of each party, new ones or those that were thrown before; None if the plan has none."""
    count = resolved.plan.training.canaries
    if not count:
        return None
    source = system_randomness() if rng is None else rng
    return {
        party.name: PartyCanaries(party_folder(folder, place), label_of(run, party.name), count=count, rng=source)
        for place, party in enumerate(resolved.parties)
    }


def refuse_elsewhere(resolved: ResolvedPlan) -> None:
    """PlanRefused where parties that this process did not make would have to carry canaries."""
    if resolved.plan.training.canaries:
        raise PlanRefused(
            f"training.canaries = {resolved.plan.training.canaries}: canaries go through the steps of parties in this "
            "process, and sites elsewhere carry none; leave it out, or rehearse the run on this machine with it"
        )
