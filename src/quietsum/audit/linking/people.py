"""Whose recording is this? Answers of a model about recordings, matched with answers about known people's.

**Temporal re-identification**: a person was recorded doing something, and does it again at another time. Of all first
recordings of the same action, the one with the nearest answers is taken. **Subject re-identification**: no recording of
the same action is known, so the person's other actions are used, each less what is usual for it.

A model's answer about a recording is computed from the recording, and holds something of how this person moves however
the model was trained. So **differential privacy of the training does not promise to stop it**; it bounds what the model
adds for people who trained. Who must not be linked should not have outputs about single recordings published.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from quietsum.audit.outcome import AttackOutcome
from quietsum.errors import InvalidParameter

__all__ = ["link_people", "link_recordings"]

Floats = NDArray[np.float64]


def link_recordings(
    outputs: ArrayLike, people: ArrayLike, actions: ArrayLike, known: ArrayLike, *, on: str = ""
) -> AttackOutcome:
    """Match each recording that is not ``known`` with those of the same action that are.

    ``outputs`` is (recordings, numbers). A recording whose own person is not among the known ones is left out, and so
    is one with a single candidate. Guessing takes any of the candidates.

    >>> link_recordings([[0.0], [1.0], [0.1], [0.9]], [1, 2, 1, 2], [7, 7, 7, 7], [True, True, False, False]).successes
    2
    """
    rows, person, action, given = _check(outputs, people, actions, known)
    right, chances = 0, []
    for probe in np.flatnonzero(~given):
        there = np.flatnonzero(given & (action == action[probe]))
        own = person[there] == person[probe]
        if not own.any() or own.all():
            continue
        nearest = np.linalg.norm(rows[there] - rows[probe], axis=1).argmin()
        right += int(own[nearest])
        chances.append(float(own.mean()))
    return _outcome("temporal re-identification", on, right, chances)


def link_people(outputs: ArrayLike, people: ArrayLike, actions: ArrayLike, *, on: str = "") -> AttackOutcome:
    """Name the person of each recording from all recordings of *other* actions, by the nearest person's mean.

    From each answer the mean of its action over all others is taken away. Guessing names any of the people.
    """
    rows, person, action, _ = _check(outputs, people, actions, None)
    names = np.unique(person)
    centred = rows.copy()
    for one in np.unique(action):
        same = action == one
        usual = (rows[same].sum(axis=0) - rows[same]) / max(1, int(same.sum()) - 1)  # without the recording itself
        centred[same] = rows[same] - usual
    right, chances = 0, []
    for probe in range(len(rows)):
        others = action != action[probe]
        known = [others & (person == name) for name in names]
        if len(names) < 2 or not all(one.any() for one in known):
            continue
        means = np.stack([centred[one].mean(axis=0) for one in known])
        nearest = names[np.linalg.norm(means - centred[probe], axis=1).argmin()]
        right += int(nearest == person[probe])
        chances.append(1 / len(names))
    return _outcome("subject re-identification", on, right, chances)


def _outcome(attack: str, on: str, right: int, chances: list[float]) -> AttackOutcome:
    if not chances:
        remedy = "pass recordings of two people or more, of the same actions"
        raise InvalidParameter("people", "the recordings", "leave nothing to link", remedy)
    return AttackOutcome(
        attack=attack, on=on or f"{len(chances)} recordings", successes=right, trials=len(chances),
        chance=float(np.mean(chances)),
    )  # fmt: skip


def _check(
    outputs: ArrayLike, people: ArrayLike, actions: ArrayLike, known: ArrayLike | None
) -> tuple[Floats, NDArray[np.generic], NDArray[np.generic], NDArray[np.bool_]]:
    rows = np.asarray(outputs, dtype=np.float64)
    person, action = np.asarray(people), np.asarray(actions)
    given = np.zeros(len(rows), dtype=np.bool_) if known is None else np.asarray(known, dtype=np.bool_)
    if rows.ndim != 2 or not rows.size or not np.isfinite(rows).all():
        problem = "are no finite numbers, one row a recording"
        raise InvalidParameter("outputs", f"of shape {rows.shape}", problem, "pass (recordings, numbers)")
    for name, values in (("people", person), ("actions", action), ("known", given)):
        if values.shape != (len(rows),):
            problem = f"does not fit {len(rows)} recordings"
            raise InvalidParameter(name, f"of shape {values.shape}", problem, "pass one for each")
    return rows, person, action, given
