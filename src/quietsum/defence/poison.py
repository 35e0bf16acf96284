"""Attacks on rows, for drills and benchmarks: labels that are flipped, triggers that are hidden in training data.

The attackers train as the plan says, on rows that they changed; what they send is made by honest code. A backdoor is a
:class:`Trigger`, a few coordinates with a value that no honest row has there, and a class that the model shall answer
whenever it sees them. In the distributed form every attacker holds a part of the trigger, and the whole of it is shown
only to the finished model (Xie, Huang, Chen, Li 2020).

>>> import numpy as np
>>> flip_labels(np.array([0, 1, 9]), classes=10)
array([9, 8, 0])
>>> Trigger(places=(0, 1), value=5.0).stamp(np.zeros((1, 3)))
array([[5., 5., 0.]])
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, TypeVar, final

import numpy as np
from numpy.typing import NDArray

from quietsum.errors import InvalidParameter
from quietsum.validate import probability, whole_number

if TYPE_CHECKING:
    from quietsum.mechanisms import RandomSource

__all__ = ["DATA_ATTACKS", "Trigger", "flip_labels", "plant_backdoor"]

DATA_ATTACKS = {
    "label-flip": ("label flip", "Tolpegin, Truex, Gursoy, Liu 2020"),
    "backdoor": ("pixel backdoor", "Gu, Dolan-Gavitt, Garg 2017; Bagdasaryan et al. 2020"),
    "distributed-backdoor": ("distributed backdoor", "Xie, Huang, Chen, Li 2020"),
}
"""Attacks on rows by name: a title and a source."""

Labels = TypeVar("Labels", bound=NDArray[Any])


def flip_labels(labels: Labels, *, classes: int, source: int | None = None, target: int | None = None) -> Labels:
    """Labels y → classes − 1 − y; with a ``target`` all of them, or those of ``source`` alone, become that class.

    The type of the labels is kept: floats stay floats.
    """
    count = whole_number("classes", classes, 2)
    _check_class("source", source, count)
    _check_class("target", target, count)
    if source is not None and target is None:
        target = count - 1 - source
    flipped: Any = labels.copy()
    if target is None:
        flipped[...] = count - 1 - labels
    else:
        chosen = np.ones(labels.shape, dtype=np.bool_) if source is None else np.equal(labels, source)
        flipped[chosen] = target
    return flipped  # type: ignore[no-any-return]


def _check_class(name: str, value: int | None, classes: int) -> None:
    if value is not None and not 0 <= whole_number(name, value, 0) < classes:
        raise InvalidParameter(name, value, "is no class", f"there are {classes}, counted from 0")


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Trigger:
    """Coordinates of an example that are set to ``value``; None for the largest number of that example itself.

    Coordinates are counted in the flattened example. Both forms look at one row alone.
    """

    places: tuple[int, ...] = (0, 1, 2)
    value: float | None = None

    def __post_init__(self) -> None:
        if not self.places or len(set(self.places)) != len(self.places) or min(self.places) < 0:
            raise InvalidParameter("trigger", self.places, "is no set of coordinates", "write it as [0, 1, 2]")

    def stamp(self, features: NDArray[Any]) -> NDArray[Any]:
        """The examples with the trigger in them; what came is not changed."""
        flat = features.reshape(len(features), -1).copy()
        if flat.shape[1] <= max(self.places):
            problem = f"lies outside of an example of {flat.shape[1]} numbers"
            raise InvalidParameter("trigger", list(self.places), problem, "choose smaller coordinates")
        value = flat.max(axis=1, keepdims=True) if self.value is None and len(flat) else self.value
        flat[:, list(self.places)] = 0.0 if value is None else value
        return flat.reshape(features.shape)

    def part(self, number: int, of: int) -> Trigger:
        """The part of attacker ``number``, from 0, among ``of``: every coordinate is somebody's; none has nothing."""
        parts = min(whole_number("of", of, 1), len(self.places))
        return dataclasses.replace(self, places=self.places[number % parts :: parts])


def plant_backdoor(
    features: NDArray[Any], labels: Labels, trigger: Trigger, *, target: int, share: float,
    rng: RandomSource | None = None,
) -> tuple[NDArray[Any], Labels]:  # fmt: skip
    """The rows of an attacker: a ``share`` of them bears the trigger and the label ``target``.

    Each by its own coin; without ``rng`` evenly spread over the rows, the same ones every time.
    """
    probability("share", share, "how many of its rows bear the trigger")
    steps = np.floor(np.arange(len(labels) + 1) * share + 1e-9)
    chosen = np.diff(steps) > 0 if rng is None else rng.coins(share, len(labels))
    stamped, told = features.copy(), labels.copy()
    if chosen.any():
        stamped[chosen] = trigger.stamp(features[chosen])
        told[chosen] = target
    return stamped, told
