"""The rows of attackers in a drill: the same task, with other rows at those parties that attack.

What the attackers do with their rows is the plan's own training, so clip, noise and charges are those of everybody.
Tables (:class:`~quietsum.tasks.protocol.NumpyTask`) and torch tasks with one label a record can be poisoned; a task
that trains by code of its own shows nobody its rows, so it is refused.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from quietsum.defence.poison import Trigger, backdoored, flip_labels
from quietsum.errors import PlanRefused
from quietsum.tasks import FederatedTask, NumpyTask, Rows

if TYPE_CHECKING:
    from quietsum.plan import AttackPlan

__all__ = ["poisoned", "trigger_of"]

Task = FederatedTask | NumpyTask


@runtime_checkable
class ShowsRows(Protocol):
    """A federated task whose rows can be exchanged for others, in a copy of it."""

    def with_rows(self, parties: Sequence[str], change: Any) -> Any:
        """The same task where the rows of ``parties`` are what ``change(party, features, labels)`` makes of them."""
        ...

    def labels_of(self, party: str) -> NDArray[Any]:
        """One label for each of its rows; raises where there is none."""
        ...


def poisoned(task: Task, attack: AttackPlan, attackers: Sequence[str]) -> Task:
    """``task`` with the rows that ``attack`` leaves at ``attackers``; the task itself for an attack on updates.

    Guarantees: the rows of all other parties are the very same. The change is the same in every process.
    """
    if not attack.on_rows:
        return task
    if isinstance(task, ShowsRows):
        classes = _classes([task.labels_of(party) for party in attackers], attack)
        changed: Task = task.with_rows(attackers, functools.partial(_changed, attack, tuple(attackers), classes))
        return changed
    if isinstance(task, FederatedTask):
        raise PlanRefused(
            f"attack.kind = '{attack.kind}' changes rows, and {task.name} trains by code of its own, which shows none; "
            "choose an attack on updates, sign-flip or lie for instance"
        )
    return _table(task, attack, tuple(attackers))


def trigger_of(attack: AttackPlan) -> Trigger:
    """The whole trigger of a backdoor."""
    return Trigger(places=attack.trigger, value=attack.mark)


def _table(task: NumpyTask, attack: AttackPlan, attackers: tuple[str, ...]) -> NumpyTask:
    honest = task.rows
    classes = functools.cache(lambda: _classes([honest(party).labels for party in attackers], attack))

    @functools.cache
    def theirs(party: str) -> Rows:
        rows = honest(party)
        features, labels = _changed(attack, attackers, classes(), party, rows.features, rows.labels)
        return Rows(features=features, labels=labels)

    made = copy.copy(task)
    try:
        made.rows = lambda party: theirs(party) if party in attackers else honest(party)  # type: ignore[method-assign]
    except AttributeError:  # slots, or a frozen value
        raise PlanRefused(
            f"attack.kind = '{attack.kind}' changes rows, and {task.name} does not let a copy of it have others"
        ) from None
    return made


def _changed(
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
    return backdoored(features, labels, trigger, target=attack.target or 0, share=attack.share)


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
