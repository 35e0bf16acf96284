"""Canary clients in a live run: made-up clients in coordinates of their own behind the sum of whole clients.

A canary client sends an update that is three times as long as the clip bound C, in one coordinate that no party's
update has. It is drawn by the plan's own sampler together with the registered parties, clipped by the plan's own
mechanism, joined to their sum, and noise is drawn for both at once. What a round releases in its coordinate, in units
of C, is 1 or 0 for drawn or not, plus N(0, σ²), if the aggregation is what the plan claims.

Guarantees: the model's own part of a round's release has the law that it has without canaries: their updates are zero
there, parties' are zero in theirs, noise of different coordinates is independent, and neither the chance of a party to
be drawn nor the divisor knows of them. They hold no data, so they are not registered and nothing is charged for them.
The record is the coordinator's own, for its owner alone: it says when canaries were drawn, and of no party anything.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import numpy as np
from numpy.typing import NDArray

from quietsum.aggregation import ClientSum, Combined
from quietsum.errors import QuietsumError
from quietsum.learning import CANARIES, PartyCanaries

if TYPE_CHECKING:
    from quietsum.mechanisms import RandomSource
    from quietsum.plan import ResolvedPlan

__all__ = ["CarriedClients", "ClientCanaries", "clients_folder", "clients_label"]

log = logging.getLogger(__name__)

_LENGTH = 3.0  # of a canary's update, in clip bounds


def clients_folder(run: Path) -> Path:
    """Where a run keeps what was recorded of its canary clients."""
    return run / CANARIES / "clients"


def clients_label(run: str) -> str:
    """Whose record it is."""
    return f"{run}: canary clients"


@final
class ClientCanaries:
    """The canary clients of one run; which are in is a fair coin each, thrown before the first round and kept."""

    def __init__(self, folder: Path, run: str, *, count: int, rng: RandomSource) -> None:
        self._kept = PartyCanaries(clients_folder(folder), clients_label(run), count=count, rng=rng)

    @classmethod
    def of(cls, resolved: ResolvedPlan, folder: Path, run: str, rng: RandomSource) -> ClientCanaries | None:
        """Those of a run, new ones or those that were thrown before; None if its plan has none."""
        client = resolved.plan.privacy.client
        if client is None or not client.canaries:
            return None
        return cls(folder, run, count=client.canaries, rng=rng)

    @property
    def inside(self) -> int:
        """How many are in, and drawn behind the registered parties."""
        return int(self._kept.included.sum())

    def carry(self, drawn: NDArray[np.int64], *, number: int, attempt: int) -> CarriedClients:
        """The canaries of one round, of which those at the places ``drawn`` among the included ones were drawn."""
        return CarriedClients(kept=self._kept, drawn=drawn, number=number, attempt=attempt)


@final
@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class CarriedClients:
    """One round with canary clients."""

    kept: PartyCanaries
    drawn: NDArray[np.int64]
    number: int
    attempt: int

    def finish(self, fold: ClientSum, state: Any, rng: RandomSource) -> Combined:
        """What ``fold`` makes of ``state``, with the drawn canaries in coordinates behind it; these are taken out again
        and recorded. A record that cannot be written costs no round (rule 22).
        """
        own, count = fold.dimension, len(self.kept.included)
        made = self.kept.begin(self.number, self.attempt)
        places = made.coordinates[self.drawn]
        wide = dataclasses.replace(fold, dimension=own + count)
        beside = dataclasses.replace(state, total=np.concatenate([state.total, np.zeros(count, state.total.dtype)]))
        rows = np.zeros((len(places), own + count))
        rows[np.arange(len(places)), own + places] = _LENGTH * fold.mechanism.max_norm
        names = [f"canary {place}" for place in places.tolist()]
        parties: Mapping[str, None] = dict(state.kept)
        if names:
            beside, _ = wide.add_many(beside, names, rows)
        found = wide.finish(beside, rng)
        made.take(places, found.step[own:] * (fold.denominator / fold.mechanism.max_norm))
        try:
            self.kept.keep(made)
        except (OSError, QuietsumError) as error:
            log.warning("round %d is absent from the record of canary clients (%s)", self.number, error)
        return dataclasses.replace(found, step=found.step[:own], kept=tuple(parties))
