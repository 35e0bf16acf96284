"""The rows of attackers in a drill: the same task, with other rows at those parties that attack.

What the attackers do with their rows is the plan's own training, so clip, noise and charges are those of everybody.
Tables (:class:`~quietsum.tasks.protocol.NumpyTask`) and torch tasks with one label a record can be poisoned; a task
that trains by code of its own shows its rows to no other code, so it is refused.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from quietsum.defence.poison import Trigger, flip_labels, plant_backdoor
from quietsum.errors import PlanRefused
from quietsum.tasks import AnyTask, Task, as_task

if TYPE_CHECKING:
    from quietsum.plan import AttackPlan

__all__ = ["poison_task", "trigger_of"]


def poison_task(task: AnyTask, attack: AttackPlan, attackers: Sequence[str]) -> Task:
    """``task`` with the rows that ``attack`` leaves at ``attackers``; the task itself for an attack on updates.

    Guarantees: the rows of all other parties are the very same. The change is the same in every process. Raises
    :class:`~quietsum.errors.PlanRefused` if the attack changes rows and the task does not show its own.
    """
    task = as_task(task)
    if not attack.on_rows:
        return task

    @functools.cache
    def classes() -> int:
        found = [task.labels_of(party) for party in attackers]
        return _classes([labels for labels in found if labels is not None], attack)

    def change(party: str, features: NDArray[Any], labels: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        return _change(attack, tuple(attackers), classes(), party, features, labels)

    made = task.with_rows(attackers, change)
    if made is None:
        raise PlanRefused(
            f"attack.kind = '{attack.kind}' changes rows, and {task.name} trains by code of its own, which shows none; "
            "choose an attack on updates, sign-flip or lie for instance"
        )
    return made


def trigger_of(attack: AttackPlan) -> Trigger:
    """The whole trigger of a backdoor."""
    return Trigger(places=attack.trigger, value=attack.mark)


def _change(
    attack: AttackPlan,
    attackers: tuple[str, ...],
    classes: int,
    party: str,
    features: NDArray[Any],
    labels: NDArray[Any],
) -> tuple[NDArray[Any], NDArray[Any]]:
    """One attacker's rows."""
    if attack.kind == "label-flip":
        return features, flip_labels(labels, classes=classes, source=attack.source, target=attack.target)
    trigger = trigger_of(attack)
    if attack.kind == "distributed-backdoor":
        trigger = trigger.part(attackers.index(party), len(attackers))
    return plant_backdoor(features, labels, trigger, target=attack.target or 0, share=attack.share)


def _classes(labels: Sequence[NDArray[Any]], attack: AttackPlan) -> int:
    """How many classes the attackers know of: from their own rows, and what the plan names."""
    found = [int(np.max(part)) for part in labels if len(part)]
    whole = all(part.ndim == 1 and np.equal(part, np.round(part)).all() and (part >= 0).all() for part in labels)
    if not whole:
        raise PlanRefused(
            f"attack.kind = '{attack.kind}' needs one class for each row, counted from 0, and the labels of this task "
            "are none; choose an attack on updates, sign-flip or lie for instance"
        )
    return max([1, attack.source or 0, attack.target or 0, *found]) + 1
