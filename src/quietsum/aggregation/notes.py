"""A fold that also notes, of each update that it folds, its length and how far it goes along the last step.

A search for odd updates needs a few numbers of each, and a mean keeps none. :class:`NotingFold` wraps the round's fold
and notes two numbers for each update and part of the model when the update arrives, also in a worker process. With
``keep`` the updates themselves are kept until the round is over; that is for rounds which fit into memory.

Guarantees: the step is the wrapped fold's own, to the last bit. Nothing is noted of an update that was not folded, and
no note can stop a round. Notes reveal who took part and how long each update was: operator only (rule 5).

>>> import numpy as np
>>> from quietsum.aggregation import WeightedMean
>>> from quietsum.mechanisms.rng import system_randomness
>>> fold = NotingFold(fold=WeightedMean(weights={"a": 1.0, "b": 1.0}, dimension=2), towards=np.array([1.0, 0.0]))
>>> state, _ = fold.add_many(fold.start(), ("a", "b"), np.array([[3.0, 4.0], [0.0, 2.0]]))
>>> state.notes["a"]  # |update|, and its component along the last step
array([[5., 3.]])
>>> fold.finish(state, system_randomness()).step
array([1.5, 3. ])
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, final

import numpy as np
from numpy.typing import NDArray

from quietsum.aggregation.fold import Combined, Fold, Vector, length_of
from quietsum.errors import InvalidParameter

if TYPE_CHECKING:
    from quietsum.mechanisms import RandomSource

__all__ = ["NotingFold", "NotingState", "Part"]

Part = slice | NDArray[np.int64]
"""Which numbers of an update belong together: a class's row of the last layer, for instance."""


@final
@dataclasses.dataclass(kw_only=True)
class NotingState:
    """The wrapped fold's state, the notes by party, and the updates if they are kept."""

    inner: Any
    notes: dict[str, Vector]
    rows: dict[str, Vector]

    @property
    def kept(self) -> dict[str, None]:
        """The parties in it."""
        kept: dict[str, None] = self.inner.kept
        return kept


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class NotingFold:
    """``fold``, and (length, component along ``towards``) of each update: of all of it, then of each of the parts."""

    fold: Fold[Any]
    towards: Vector | None = None
    parts: tuple[Part, ...] = ()
    keep: bool = False

    @property
    def dimension(self) -> int:
        """Numbers in an update."""
        return self.fold.dimension

    @property
    def needs_individuals(self) -> bool:
        """As the wrapped fold says."""
        return self.fold.needs_individuals

    @property
    def needs_updates(self) -> bool:
        """As the wrapped fold says."""
        return self.fold.needs_updates

    def start(self) -> NotingState:
        """Nothing folded yet."""
        return NotingState(inner=self.fold.start(), notes={}, rows={})

    def problem_with(self, update: object, party: str = "") -> str:
        """Why the wrapped fold cannot use ``update``, or an empty text."""
        return self.fold.problem_with(update, party)

    def add(self, state: NotingState, party: str, update: Vector) -> NotingState:
        """``state`` with one more update."""
        state.inner = self.fold.add(state.inner, party, update)
        self._note(state, (party,), (update,))
        return state

    def add_many(
        self, state: NotingState, parties: Sequence[str], updates: Vector
    ) -> tuple[NotingState, dict[str, str]]:
        """``state`` with the usable rows of ``updates``, and by party what is wrong with the others."""
        state.inner, broken = self.fold.add_many(state.inner, parties, updates)
        there = [place for place, party in enumerate(parties) if party not in broken]
        self._note(state, [parties[place] for place in there], (updates[place] for place in there))
        return state, broken

    def merge(self, one: NotingState, other: NotingState) -> NotingState:
        """Both together. Malformed notes are left out; the wrapped fold alone takes or refuses the sum."""
        if type(other.inner) is not type(one.inner):
            raise InvalidParameter("sum", "of several parties", "is no sum of this round")
        kept = dict(other.kept)
        one.inner = self.fold.merge(one.inner, other.inner)
        shape = (1 + len(self.parts), 2)
        for party, note in _pairs(other.notes):
            if party in kept and note.shape == shape and np.isfinite(note).all():
                one.notes[party] = note
        for party, row in _pairs(other.rows):
            if self.keep and party in kept and not self.fold.problem_with(row, party):
                one.rows[party] = row
        return one

    def finish(self, state: NotingState, rng: RandomSource) -> Combined:
        """The wrapped fold's step."""
        return self.fold.finish(state.inner, rng)

    def _note(self, state: NotingState, parties: Sequence[str], updates: Iterable[Vector]) -> None:
        everything: tuple[Part, ...] = (slice(None), *self.parts)
        for party, update in zip(parties, updates, strict=True):
            with np.errstate(all="ignore"):
                note = np.array([_note_of(update[part], self._towards(part)) for part in everything])
            state.notes[party] = np.nan_to_num(note, posinf=np.finfo(np.float64).max)
            if self.keep:
                state.rows[party] = update if update.base is None else update.copy()

    def _towards(self, part: Part) -> Vector | None:
        return None if self.towards is None else self.towards[part]


def _note_of(update: Vector, towards: Vector | None) -> tuple[float, float]:
    length = length_of(update)
    if towards is None or not 0 < length < np.inf or not (size := length_of(towards)):
        return length, 0.0
    return length, float((update / length) @ (towards / size)) * length


def _pairs(values: object) -> Iterable[tuple[str, Vector]]:
    """The float64 arrays by name in what another process sent beside its sum."""
    if not isinstance(values, Mapping):
        return ()
    return [
        (name, value)
        for name, value in values.items()
        if isinstance(name, str) and isinstance(value, np.ndarray) and value.dtype == np.float64
    ]
