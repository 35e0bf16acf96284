"""A fold over updates: the server takes each as it arrives, so that memory does not grow with the cohort.

A fold is a value that holds public numbers only; the updates that it has folded are a separate state. States are plain
data: they can be pickled, and two of them merged, so that a worker process may fold the updates of its own clients and
send one sum. The state that is passed to ``add``, ``add_many`` or ``merge`` is used up; go on with the one returned.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar, final

import numpy as np
from numpy.typing import NDArray

from quietsum.errors import InvalidParameter

if TYPE_CHECKING:
    from quietsum.mechanisms import RandomSource

__all__ = ["Combined", "Fold", "FoldState", "Vector", "problem_with_update", "usable_rows"]

Vector = NDArray[np.float64]


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Combined:
    """The result of a fold: the step, and the parties in it (``kept``, which only the operator may see).

    ``clip`` is the bound for the next round if it adapts, else None. A robust rule also states which parties it
    ``rejected`` and why, ``statistics`` by name and party (both operator only), and the ``memory`` of its next round.
    """

    step: Vector
    kept: tuple[str, ...]
    clip: float | None = None
    rejected: Mapping[str, str] = dataclasses.field(default_factory=dict, repr=False)
    statistics: Mapping[str, Mapping[str, float]] = dataclasses.field(default_factory=dict, repr=False)
    memory: Mapping[str, Vector] = dataclasses.field(default_factory=dict, repr=False)


class FoldState(Protocol):
    """What has been folded so far."""

    @property
    def kept(self) -> Mapping[str, None]:
        """The parties in it, in the order of their arrival."""
        ...


S = TypeVar("S", bound=FoldState)


class Fold(Protocol[S]):
    """How updates become one step.

    Guarantees asked of every implementation, and tested by :class:`quietsum.contracts.FoldContract`: ``merge`` of two
    states is the state of all their updates together; an update with a problem raises in ``add`` and is named by
    ``add_many``, and changes nothing either way.
    """

    @property
    def dimension(self) -> int:
        """Numbers in an update."""
        ...

    @property
    def needs_individuals(self) -> bool:
        """Whether it needs single updates, which secure aggregation does not show."""
        ...

    @property
    def needs_updates(self) -> bool:
        """Whether there is no step without an update; a fold that adds noise has a step all the same."""
        ...

    def start(self) -> S:
        """Nothing folded yet."""
        ...

    def problem_with(self, update: object, party: str = "") -> str:
        """Why ``update`` of ``party`` cannot be used, or an empty text."""
        ...

    def add(self, state: S, party: str, update: Vector) -> S:
        """``state`` with one more update."""
        ...

    def add_many(self, state: S, parties: Sequence[str], updates: Vector) -> tuple[S, dict[str, str]]:
        """``state`` with the usable rows of ``updates``, and by party the problem of each other row."""
        ...

    def merge(self, one: S, other: S) -> S:
        """Both together. Raises if a party is in both, or if ``other`` cannot be a state; then nothing changes."""
        ...

    def finish(self, state: S, rng: RandomSource) -> Combined:
        """The step, with the noise that this fold adds, if any."""
        ...


# ------------------------------------------------------------------------------------ shared by folds


def problem_with_update(update: object, dimension: int) -> str:
    """Why ``update`` is no vector of ``dimension`` finite float64 numbers, or an empty text."""
    if not isinstance(update, np.ndarray):
        return f"is a {type(update).__name__}, not an array"
    if update.dtype != np.float64:
        return f"has type {update.dtype}, not float64"
    if update.shape != (dimension,):
        return f"has shape {update.shape}, not ({dimension},)"
    if not np.all(np.isfinite(update)):
        return "holds a value that is not finite"
    return ""


def length_of(update: Vector) -> float:
    """|update|, also if its square is beyond float64."""
    largest = float(np.abs(update).max(initial=0.0))
    if not 0 < largest < np.inf:
        return largest
    return largest * float(np.linalg.norm(update / largest))


def usable_rows(
    parties: Sequence[str], updates: object, dimension: int, kept: Mapping[str, None]
) -> tuple[list[int], dict[str, str]]:
    """The places of the rows of ``updates`` that can be folded, and by party the problem of each other row.

    Raises :class:`~quietsum.errors.InvalidParameter` if a party is named twice or was folded before.
    """
    refuse_twice(parties, kept)
    shape = (len(parties), dimension)
    if not isinstance(updates, np.ndarray) or updates.dtype != np.float64 or updates.shape != shape:
        kind = type(updates).__name__
        given = f"{updates.dtype} of shape {updates.shape}" if isinstance(updates, np.ndarray) else f"a {kind}"
        raise InvalidParameter("updates", given, f"is not float64 of shape {shape}", "pass one row a party")
    finite = np.isfinite(updates).all(axis=1)
    broken = {parties[index]: "holds a value that is not finite" for index in np.flatnonzero(~finite).tolist()}
    return np.flatnonzero(finite).tolist(), broken


def refuse_twice(parties: Iterable[str], kept: Mapping[str, None]) -> None:
    """Raises if a party is named twice: a second update would double its influence."""
    seen: set[str] = set()
    for party in parties:
        if party in kept or party in seen:
            raise InvalidParameter("party", party, "has already replied in this round", "count each party once")
        seen.add(party)
