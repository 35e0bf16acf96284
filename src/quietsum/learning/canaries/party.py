"""Canaries at a party of a federation: its coins, and what the steps of each of its rounds released of them.

The canaries of a training at one site (:mod:`quietsum.learning.canaries.carrying`) go through every step of one loop.
Those of a federation's party go through the steps of its rounds, in numpy or torch. Their coins are
thrown once a run, before the first round. A round's record is written when the round's update is made; a round that
fails or is lost is absent.

The record stays with the party: one folder for each, with files for their owner alone.
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import numpy as np
from numpy.typing import NDArray

from quietsum.errors import CorruptState
from quietsum.learning.canaries.record import (
    CanaryRecord,
    read_included,
    read_tensors,
    write_included,
    write_tensors,
)
from quietsum.learning.descent import Differentiable, Examples, private_steps
from quietsum.mechanisms import ClippedSum, RandomSource, system_randomness
from quietsum.sampling import Sampling

if TYPE_CHECKING:
    from quietsum.plan import ResolvedPlan

__all__ = [
    "CANARIES", "CanaryRound", "PartyCanaries", "PartyRecord", "canaries_of", "carry_steps", "label_of",
    "party_folder", "read_party", "site_folder",
]  # fmt: skip

CANARIES = "canaries"
"""The folder in a run's folder."""

Floats = NDArray[np.float64]

_ABOVE = 2.0**14  # a canary's gradient over the clip bound
_ROUND = re.compile(r"round-(\d{6,})-(\d{3,})\.safetensors")


@final
class CanaryRound:
    """One round of one party: which canaries are in, and what was released of them so far."""

    def __init__(self, included: NDArray[np.bool_], *, number: int, attempt: int) -> None:
        self.included, self.number, self.attempt = included, number, attempt
        self.coordinates = np.flatnonzero(included).astype(np.int64)
        self.more = 1.0
        """How many times the noise is that which its clip needs; the grid of secure noise in torch makes it so."""
        self._drawn: list[NDArray[np.bool_]] = []
        self._released: list[NDArray[np.float32]] = []

    def take(self, coordinates: NDArray[np.int64], released: NDArray[np.floating[Any]]) -> None:
        """Record a step: the coordinates of the canaries that were drawn, and all releases in units of the clip."""
        drawn = np.zeros(len(self.included), dtype=np.bool_)
        drawn[coordinates] = True
        self._drawn.append(drawn)
        self._released.append(np.asarray(released, dtype=np.float32))

    def tensors(self) -> dict[str, NDArray[Any]]:
        """What is kept."""
        width = len(self.included)
        return {
            "drawn": np.packbits(np.array(self._drawn, dtype=np.bool_).reshape(-1, width), axis=1),
            "released": np.array(self._released, dtype=np.float32).reshape(-1, width),
            "more": np.array([self.more]),
        }


@final
class PartyCanaries:
    """The canaries of one party in one run; ``folder`` is the party's own.

    Guarantees: the coins are thrown and written down before the first round, and read again by a run that goes on.
    """

    def __init__(self, folder: Path, label: str, *, count: int, rng: RandomSource) -> None:
        self._folder, self._label = folder, label
        found = read_included(folder, label)
        if found is None:
            found = rng.uniforms(count) < 0.5
            write_included(folder, label, found)
        elif len(found) != count:
            raise CorruptState(f"{folder} does not hold the {count} canaries of {label}; restore it from a backup")
        self.included: NDArray[np.bool_] = found

    def begin(self, number: int, attempt: int) -> CanaryRound:
        """An empty record of a round."""
        return CanaryRound(self.included, number=number, attempt=attempt)

    def keep(self, made: CanaryRound) -> None:
        """Write down what a round released."""
        path = self._folder / f"round-{made.number:06d}-{made.attempt:03d}.safetensors"
        write_tensors(path, self._label, made.tensors(), len(made.included))


@final
@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class PartyRecord:
    """What one party recorded: ``rounds`` and ``more`` are by step, and steps are counted on without gaps."""

    record: CanaryRecord
    rounds: NDArray[np.int64]
    more: Floats


def read_party(folder: Path, label: str) -> PartyRecord | None:
    """The record of a party in ``folder``; None if there is none. Raises CorruptState if it was altered."""
    included = read_included(folder, label)
    if included is None:
        return None
    try:
        chunks, rounds, more, step = [], [np.empty(0, np.int64)], [np.empty(0)], 0
        for path in sorted(folder.glob("round-*.safetensors")):
            name, found = _ROUND.fullmatch(path.name), read_tensors(path, label)
            if name is None:
                raise ValueError(f"{path.name} is the name of no round")
            drawn = np.unpackbits(found["drawn"], axis=1, count=len(included)).astype(np.bool_)
            steps = np.arange(step, step + len(drawn), dtype=np.int64)
            step += len(drawn)
            chunks.append({"steps": steps, "drawn": drawn, "released": found["released"]})
            rounds.append(np.full(len(drawn), int(name[1]), dtype=np.int64))
            more.append(np.full(len(drawn), float(found["more"][0])))
        whole = np.concatenate(more)
        if not (np.isfinite(whole).all() and (whole >= 1).all()):
            raise ValueError("its noise is said to be less than its clip needs")
        return PartyRecord(record=CanaryRecord.join(included, chunks), rounds=np.concatenate(rounds), more=whole)
    except (LookupError, ValueError, TypeError) as error:
        raise CorruptState(f"{folder} holds no record of canaries ({error}); restore it from a backup") from None


# ------------------------------------------------------------------------------------------- the parties of a run


def party_folder(run: Path, place: int) -> Path:
    """Where the party at this place of the plan keeps its canaries; a party's name need not be the name of a folder."""
    return run / CANARIES / f"party-{place + 1:05d}"


def site_folder(place: Path, run: str, digest: str) -> Path:
    """Where a site keeps its canaries of the run that its books call ``run``, beside its other runs' in ``place``.

    The name of a run comes from elsewhere and need not be the name of a folder; ``digest`` is its plan's.
    """
    return place / hashlib.sha256(f"{run}\n{digest}".encode()).hexdigest()[:32]


def label_of(run: str, party: str) -> str:
    """Whose record a file is."""
    return f"{run}: {party}"


def canaries_of(resolved: ResolvedPlan, folder: Path, run: str) -> Mapping[str, PartyCanaries] | None:
    """The canaries of each party, new ones or those that were thrown before; None if the plan has none.

    ``folder`` is the run's; on one machine its holder holds the data of all parties.
    """
    count = resolved.plan.training.canaries
    if not count:
        return None
    rng = system_randomness()
    return {
        party.name: PartyCanaries(party_folder(folder, place), label_of(run, party.name), count=count, rng=rng)
        for place, party in enumerate(resolved.parties)
    }


# ------------------------------------------------------------------------------------------- numpy's steps with them


def carry_steps(
    task: Differentiable,
    params: Floats,
    rows: Examples,
    carried: CanaryRound,
    *,
    steps: int,
    sampling: Sampling,
    mechanism: ClippedSum,
    expected_batch: float,
    learning_rate: float,
    momentum: float,
    proximal: float,
    rng: RandomSource,
) -> Floats:
    """What :func:`~quietsum.learning.descent.private_steps` returns, with canaries behind the rows.

    Guarantees: the result has the law that it has without them.
    """
    both = _CarriedRows(task, rows, carried, mechanism)
    return both.narrow(private_steps(
        both, both.widen(params), both, steps=steps, sampling=sampling, mechanism=mechanism,
        expected_batch=expected_batch, learning_rate=learning_rate, momentum=momentum, proximal=proximal, rng=rng,
        take=both.take,
    ))  # fmt: skip


@final
class _CarriedRows:
    """Rows of a numpy task with canaries behind them: task and rows at once.

    The parameters have a number more for each canary; a canary's gradient is far longer than the clip, in its own
    number alone, and a row's is zero there. :meth:`take` records those numbers of a release and sets them to zero, so
    that they stay zero in the parameters.
    """

    def __init__(self, task: Differentiable, rows: Examples, carried: CanaryRound, mechanism: ClippedSum) -> None:
        self._task, self._carried, self._mechanism = task, carried, mechanism
        inside = carried.coordinates
        self._count = len(carried.included)
        self._own = len(rows.labels)
        marks = np.concatenate([np.zeros(self._own), inside + 1.0])
        padding = np.zeros((len(inside), rows.features.shape[1]))
        self.features = np.column_stack([np.concatenate([rows.features, padding]), marks])
        self.labels = np.concatenate([rows.labels, np.zeros(len(inside))])
        self._pull = _ABOVE * mechanism.max_norm

    def widen(self, params: Floats) -> Floats:
        """``params`` with a zero for each canary."""
        return np.concatenate([params, np.zeros(self._count)])

    def narrow(self, params: Floats) -> Floats:
        """The task's own part of them."""
        return params[: len(params) - self._count]

    def gradients(self, params: Floats, features: Floats, labels: Floats) -> Floats:
        """The task's gradients of its rows, and the canaries' own."""
        marks = features[:, -1].astype(np.int64)
        found = np.zeros((len(marks), len(params)))
        own = marks == 0
        if own.any():
            found[np.ix_(own, np.arange(len(params) - self._count))] = self._task.gradients(
                self.narrow(params), features[own, :-1], labels[own]
            )
        places = np.flatnonzero(~own)
        found[places, len(params) - self._count - 1 + marks[places]] = self._pull
        return found

    def take(self, drawn: NDArray[np.int64], total: Floats) -> Floats:
        """Record what a step has released of the canaries; returns the release with zeros in their place."""
        behind = drawn[drawn >= self._own] - self._own
        self._carried.take(self._carried.coordinates[behind], total[-self._count :] / self._mechanism.max_norm)
        return self.widen(self.narrow(total))
