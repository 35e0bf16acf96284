"""What a party does in a round: look at the request, touch the data, add the noise, send.

Everything private ends here. What leaves a :class:`Site` is the change of the model: with noise on every step at the
record level, bounded and with noise of its own where the client level puts the noise at the party. Rows, drawn batches
and their sizes stay behind.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, TypeVar, final

import numpy as np
from numpy.typing import NDArray

from quietsum.errors import DataMissing, InvalidParameter, QuietsumError
from quietsum.failpoints import reach
from quietsum.learning.descent import gradients_of, private_steps
from quietsum.tasks.protocol import FederatedTask, NamesPeople, NumpyTask, Rehearsed, Rehearses, RehearsesUnseen, Rows

if TYPE_CHECKING:
    from collections.abc import Callable

    from quietsum.mechanisms.gaussian import GaussianMechanism
    from quietsum.mechanisms.rng import RandomSource
    from quietsum.plan import ResolvedPlan
    from quietsum.plan.orders import LocalOrders

__all__ = ["AnsweredBefore", "NotTouched", "Site", "Task", "TooLate", "calmly", "rehearse", "released"]

Vector = NDArray[np.float64]
Task = FederatedTask | NumpyTask
Found = TypeVar("Found")


class NotTouched(QuietsumError):
    """The party said no before it looked at its data, so nothing was spent."""


class AnsweredBefore(QuietsumError):
    """The same request came twice. The first answer was paid for; there is no second one, and no refund."""


class TooLate(QuietsumError):
    """The party's own work took longer than the deadline, so nothing of it leaves."""


@final
class Site:
    """One party of a federation.

    Guarantees: an answer is made by the plan's :class:`~quietsum.plan.orders.LocalOrders`, whose sampler and mechanism
    also state the charge. Attempts of a run are answered in increasing order, each once, whatever model comes with
    them: never with fresh noise on the same charge (rule 10). Randomness comes from the operating system and is never
    restored. Where the party itself adds the client's noise, what leaves is one release of ``orders.client``, also when
    its work failed, in whatever way, or took too long: whether it did may depend on its data. The ``deadline`` is
    counted from the moment its own work begins, so no other party can make it late. That hides a slow party where
    somebody waits for it, in one process; across machines its answer is late all the same, and everybody sees that.
    ``first`` is part of the work, before the training: what it raises is hidden or told in the same way.
    """

    def __init__(
        self,
        name: str,
        *,
        task: Task,
        resolved: ResolvedPlan,
        rng: RandomSource,
        refuses: str = "",
        deadline: float = math.inf,
        clock: Callable[[], float] = time.monotonic,
        first: Callable[[], None] | None = None,
        interruptible: bool = True,
    ) -> None:
        self.name, self._interruptible = name, interruptible
        self._deadline, self._clock, self._first = deadline, clock, first
        self._task, self._resolved, self._rng, self._refuses = task, resolved, rng, refuses
        self._answered: dict[str, tuple[int, int]] = {}
        if rng.for_tests and resolved.protected and not resolved.facts_of(name).public:
            raise InvalidParameter(
                "rng", "seeded", f"cannot protect the data of {name}", "use quietsum.mechanisms.rng.system_randomness()"
            )

    def answer(self, key: tuple[str, int, int, str], params: Vector) -> Vector:
        """The change of the model; :class:`NotTouched` where the party refuses before it looks at its data."""
        orders = self.begin(key)
        try:
            delta = self.work(params, orders)
        except DataMissing:  # where and why is the party's own business
            raise NotTouched("it has no data") from None
        return self.finish(orders, delta)

    def begin(self, key: tuple[str, int, int, str]) -> LocalOrders:
        """What to do for this request, which is answered from now on and never again.

        For whoever trains several sites together: ``begin`` each, train, ``finish`` each. Neither is undone by a
        failure. Only a new process, which has no memory of this, can be asked again, and only by whoever knows that
        nothing had left the first one.
        """
        if self._refuses:
            raise NotTouched(self._refuses)
        run, number, attempt, _ = key
        if (number, attempt) <= self._answered.get(run, (0, 0)):
            raise AnsweredBefore(f"round {number}, attempt {attempt} or a later one was answered before")
        orders = self._resolved.orders(self.name, number)
        reach("party:before-data")
        self._answered[run] = number, attempt
        return orders

    def finish(self, orders: LocalOrders, delta: Vector) -> Vector:
        """What leaves: ``delta``, or with the client's noise at the party its bounded and noisy form."""
        if orders.client is not None:
            delta = released(orders.client, delta, self._task.dimension, self._rng)
        reach("party:before-send")
        return delta

    def work(self, params: Vector, orders: LocalOrders) -> Vector:
        """The change of the model by this party's data, for :meth:`finish`.

        What the work raises is raised here, and :class:`TooLate`, unless the party hides that it failed: then nothing
        has changed.
        """
        start = self._clock()
        try:
            delta = calmly(lambda: self._trained(params, orders), interruptible=self._interruptible)
            if self._clock() - start > self._deadline:
                raise TooLate(f"its work took longer than the deadline of {self._deadline:g} s")
            return delta
        except DataMissing:
            if orders.client is None:
                raise
            return np.zeros(self._task.dimension)
        except (NotTouched, AnsweredBefore) as error:
            if orders.client is None:  # words of the task, which touched the data: no refusal
                raise QuietsumError(f"the task raised {type(error).__name__}, which only the party may") from None
            return np.zeros(self._task.dimension)
        except (Exception, SystemExit):
            if orders.client is None:
                raise
            return np.zeros(self._task.dimension)

    def _trained(self, params: Vector, orders: LocalOrders) -> Vector:
        task = self._task
        if self._first is not None:
            self._first()
        if isinstance(task, FederatedTask):
            return task.train(self.name, params, orders, self._rng)
        return private_steps(
            task,
            params,
            _bounded_rows(task, self.name, orders.max_records),
            steps=orders.steps,
            sampling=orders.sampling,
            mechanism=orders.mechanism,
            expected_batch=orders.expected_batch,
            learning_rate=orders.learning_rate,
            momentum=orders.momentum,
            proximal=orders.proximal,
            rng=self._rng,
        )


def calmly(work: Callable[[], Found], *, interruptible: bool = True) -> Found:
    """What ``work`` returns or raises; a library's panic, which is no Exception, becomes an ordinary failure.

    Where Ctrl-C is taken otherwise, nothing is ``interruptible``: then a KeyboardInterrupt is the task's own, too.
    """
    try:
        return work()
    except (Exception, SystemExit):
        raise
    except BaseException as panic:
        if interruptible and isinstance(panic, KeyboardInterrupt):
            raise
        raise QuietsumError(f"the task ended in a {type(panic).__name__}") from panic


def rehearse(task: Task, resolved: ResolvedPlan, party: str, *, unseen: bool = False) -> bool:
    """Try the task on made-up examples, so that its own mistakes are heard of; whether more can be tried once paid for.

    With ``unseen`` no record is read or counted, not even for its shape: so a site does before its first charge, and
    whoever holds no data.
    """
    person = resolved.plan.privacy.person
    if person is not None and not isinstance(task, FederatedTask | NamesPeople):
        problem = f"is promised something, and {task.name} does not say whose its rows are"
        raise InvalidParameter("privacy.person", person.id, problem, "remove it, or give the task people()")
    if isinstance(task, Rehearses):
        if not unseen:
            task.rehearse(resolved.orders(party))
        elif isinstance(task, RehearsesUnseen):
            task.rehearse_unseen(resolved.orders(party))
        return unseen
    if isinstance(task, Rehearsed) and not isinstance(task, FederatedTask):
        rows = task.example()
        gradients_of(task, np.asarray(task.initial(), dtype=np.float64), rows.features, rows.labels)
    return False


def released(mechanism: GaussianMechanism, delta: object, dimension: int, rng: RandomSource) -> Vector:
    """One release of ``mechanism``: of ``delta``, or of zeros where it is no vector of ``dimension`` numbers."""
    try:
        vector = np.asarray(delta, dtype=np.float64)
        bounded = mechanism.bound(vector if vector.shape == (dimension,) else np.zeros(dimension))
    except Exception:  # its shape and type may depend on data, too
        bounded = mechanism.bound(np.zeros(dimension))
    return mechanism.release(mechanism.sum(bounded), rng)


def _bounded_rows(task: NumpyTask, party: str, most: int | None) -> Rows:
    """The party's rows, at most ``most`` of each person; bounded before anything is drawn."""
    if most is None:
        return task.rows(party)
    if not isinstance(task, NamesPeople):
        problem = f"cannot be kept: {task.name} does not say whose each row is"
        raise InvalidParameter("max_records", most, problem, "give the task people(party), or leave the person out")
    from quietsum.learning.people import bounded

    rows, people = task.rows(party), task.people(party)
    if len(people) != len(rows):
        raise InvalidParameter("people", len(people), f"are not one for each of {party}'s rows", "name one per row")
    kept = bounded(people, most=most)
    return Rows(features=rows.features[kept], labels=rows.labels[kept])
