"""Root sets: a few rows that need no protection, held by the server, on which it tries what parties send.

``[task] options = { root = 100 }`` takes that many rows of those that the task would be scored on, which are published
or otherwise unprotected; a protected row never comes into a root set. They are no longer scored, so that no score
stands on rows that have chosen the model. Which rows they are is a public rule: evenly spaced in the order of the file,
of each class as many as its share, and at least one.

``root = "made-up"`` asks for rows that the task makes from public constants. Few tasks can: heart makes patients from
the ranges of clinical practice; pictures, payments and motions have no such constants, and their tasks say so.

The update of a root set is what an honest party of its size would send without noise: the plan's steps, rate, momentum
and clip, batches as large as a party's as far as there are rows. It costs nothing, because no protected record is in
it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, final

import numpy as np
import numpy.typing as npt

from quietsum.errors import InvalidParameter, PlanRefused
from quietsum.learning import private_steps
from quietsum.sampling import Everyone, Poisson
from quietsum.tasks.protocol import Rows, Task
from quietsum.validate import whole_number

if TYPE_CHECKING:
    from quietsum.aggregation import Trial
    from quietsum.mechanisms import RandomSource
    from quietsum.plan import LocalOrders, ResolvedPlan

__all__ = [
    "MADE_UP", "RowsTrial", "bound_update", "check_root", "refuse_without_root", "rehearse_root", "root_orders",
    "root_rows", "split_root", "trial_for",
]  # fmt: skip

Floats = npt.NDArray[np.float64]
Part = TypeVar("Part")

MADE_UP = "made-up"


def check_root(root: object, task: str, *, why_not: str = "") -> int:
    """``root`` as a number of rows; ``why_not`` is why the task makes none up.

    >>> check_root("made-up", "digits", why_not="no constants draw a digit")
    Traceback (most recent call last):
    ...
    quietsum.errors.InvalidParameter: root = 'made-up' is not offered by digits: no constants draw a digit; state how \
many published rows, root = 100 for instance
    """
    if root == MADE_UP:
        problem = f"is not offered by {task}: {why_not}"
        raise InvalidParameter("root", root, problem, "state how many published rows, root = 100 for instance")
    return whole_number("root", root, 0, "so many published rows are for trials; 0 is none")


def root_rows(labels: npt.NDArray[Any], count: int) -> npt.NDArray[np.bool_]:
    """Which of some public rows are the root set: ``count`` of them, of each class its share and at least one.

    >>> np.flatnonzero(root_rows(np.array([0, 0, 0, 0, 0, 0, 1, 1]), 3)).tolist()
    [1, 4, 7]
    """
    chosen = np.zeros(len(labels), dtype=np.bool_)
    if not count:
        return chosen
    if 2 * count > len(labels):
        problem = f"is more than half of the {len(labels):,} rows that need no protection"
        raise InvalidParameter("root", count, problem, f"leave rows to score: at most {len(labels) // 2}")
    classes, sizes = np.unique(labels, return_counts=True)
    if len(classes) > count:
        raise InvalidParameter("root", count, f"is too small for {len(classes)} classes", "take one of each at least")
    share = np.maximum(np.floor(sizes * count / sizes.sum()).astype(int), 1)
    for place in np.argsort(share - sizes * count / sizes.sum(), kind="stable"):  # those that lost most by rounding
        share[place] += share.sum() < count
    while share.sum() > count:
        share[int(np.argmax(share))] -= 1
    for label, size, some in zip(classes, sizes, share, strict=True):
        own = np.flatnonzero(labels == label)
        chosen[own[((np.arange(some) + 0.5) * size / some).astype(int)]] = True
    return chosen


def split_root(parts: tuple[Part, ...], count: int) -> tuple[tuple[Part, ...], tuple[Part, ...]]:
    """The root set and the rest of some public records; by the last part where it holds one label a record."""
    if not count:
        return tuple(part[:0] for part in parts), parts  # type: ignore[index]
    last: Any = parts[-1]
    labels = np.asarray(last) if getattr(last, "ndim", 0) == 1 else np.zeros(len(last), dtype=np.int64)
    chosen = root_rows(labels, count)
    return tuple(part[chosen] for part in parts), tuple(part[~chosen] for part in parts)  # type: ignore[index]


# ------------------------------------------------------------------------------------------- the root's own update


def root_orders(orders: LocalOrders, size: int) -> LocalOrders:
    """What a party's ``orders`` are for a root set of ``size`` rows: as many steps, batches as large, no noise."""
    rate = min(1.0, orders.expected_batch / size)
    return dataclasses.replace(
        orders, sampling=Everyone() if rate == 1 else Poisson(rate=rate), expected_batch=rate * size, mechanism=None,
        max_records=None, client=None, distributed=None,
    )  # fmt: skip


def bound_update(orders: LocalOrders, update: Floats) -> Floats:
    """``update`` as a party would bound it at the client level, without its noise."""
    if orders.client is None:
        return update
    length = float(np.linalg.norm(update))
    return update * min(1.0, orders.client.max_norm / length) if length > 0 else update


class HasLosses(Protocol):
    """A numpy task that also knows the loss of each example."""

    def gradients(self, params: Floats, features: Floats, labels: Floats) -> Floats:
        """One gradient per example."""
        ...

    def losses(self, params: Floats, features: Floats, labels: Floats) -> Floats:
        """One loss per example."""
        ...


@final
class RowsTrial:
    """A root set of numpy rows, tried on the model ``params``. Guarantees: no other row is looked at."""

    def __init__(self, task: HasLosses, rows: Rows, params: Floats, orders: LocalOrders, rng: RandomSource) -> None:
        self._task, self._rows, self._params, self._orders, self._rng = task, rows, params, orders, rng

    def update(self) -> Floats:
        """What an honest party with these rows would send, without noise; zeros where its numbers overflow."""
        own, clip = root_orders(self._orders, len(self._rows)), self._orders.mechanism
        try:
            found = private_steps(
                self if clip is not None else self._task, self._params, self._rows, steps=own.steps,
                sampling=own.sampling, mechanism=None, expected_batch=own.expected_batch,
                learning_rate=own.learning_rate, momentum=own.momentum, proximal=own.proximal, rng=self._rng,
            )  # fmt: skip
        except InvalidParameter:
            return np.zeros_like(self._params)
        return bound_update(self._orders, found)

    def gradients(self, params: Floats, features: Floats, labels: Floats) -> Floats:
        """The task's, each cut as a party cuts it."""
        found, clip = self._task.gradients(params, features, labels), self._orders.mechanism
        assert clip is not None
        length = np.linalg.norm(found, axis=1, keepdims=True)
        return np.asarray(found * np.minimum(1.0, clip.max_norm / np.maximum(length, 1e-300)))

    def losses(self, steps: Floats) -> Floats:
        """The mean loss of model + step for each row of ``steps``."""
        rows = self._rows
        with np.errstate(over="ignore", invalid="ignore"):
            found = [self._task.losses(self._params + step, rows.features, rows.labels).mean() for step in steps]
        return np.asarray(found, dtype=np.float64)


# ------------------------------------------------------------------------------------------------ in a run


def refuse_without_root(task: Task, resolved: ResolvedPlan) -> None:
    """:class:`~quietsum.errors.PlanRefused` where the rule tries updates and the task has nothing to try them on."""
    if resolved.robust is None or not resolved.robust.facts.needs_trial:
        return
    rule = resolved.plan.aggregation.rule
    if task.root_size is None:
        raise PlanRefused(
            f"aggregation.rule = '{rule}' tries updates on a root set, and {task.name} holds none: give it root_size "
            "and trial() (quietsum.tasks.Task), or choose a rule that compares updates with each other"
        )
    if not task.root_size:
        raise PlanRefused(
            f"aggregation.rule = '{rule}' tries updates on a root set, and the task was given none: say [task] "
            "options = { root = 100 }, or choose a rule that compares updates with each other"
        )


def rehearse_root(task: Task, resolved: ResolvedPlan) -> None:
    """Read the root set where the rule needs one, and try it, before anything is charged."""
    from quietsum.mechanisms import system_randomness

    refuse_without_root(task, resolved)
    if (tried := trial_for(task, resolved, 1)) is not None:
        params = np.asarray(task.initial(), dtype=np.float64)
        found = tried(params, system_randomness()).losses(np.zeros((1, len(params))))
        if not np.isfinite(found).all():
            raise PlanRefused("the loss of the first model on the root set is not finite; look at the task's root rows")


def trial_for(task: Task, resolved: ResolvedPlan, number: int) -> Callable[[Floats, RandomSource], Trial] | None:
    """How round ``number`` tries updates: from a model and a source to a trial; None where the rule needs none.

    The root set trains by the orders of the party of middle size.
    """
    if resolved.robust is None or not resolved.robust.facts.needs_trial:
        return None
    middle = sorted(resolved.parties, key=lambda party: party.size)[len(resolved.parties) // 2]
    return lambda params, rng: task.trial(params, resolved.orders(middle.name, number), rng)
