"""What a party does in a round: look at the request, touch the data, add the noise, send.

Everything private ends here. What leaves a :class:`Site` is the change of the model: with noise on every step at the
record level, bounded and with noise of its own where the client level puts the noise at the party. Rows, drawn batches
and their sizes stay behind.

So does what rows do to the code (rule 17). A failure is a message: where anything is promised, work that raises, takes
too long or returns what is no update is replaced by the plan's own steps on no rows (:func:`on_no_rows`), which are
noise alone. Only the site itself hears of it, by the kind of the failure and the line of code.
"""

from __future__ import annotations

import hashlib
import logging
import math
import sys
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, final

import numpy as np
from numpy.typing import NDArray

from quietsum.errors import DataMissing, DataUnfit, InvalidParameter, QuietsumError
from quietsum.failpoints import reach
from quietsum.learning import private_steps
from quietsum.privacy import PrivacyUnit
from quietsum.sampling import Everyone
from quietsum.tasks import AnyTask, Rows, Task, as_task

if TYPE_CHECKING:
    from collections.abc import Callable

    from quietsum.learning import CanaryRound, PartyCanaries
    from quietsum.mechanisms import ClippedSum, DistributedNoise, RandomSource
    from quietsum.party.secure import Contribution
    from quietsum.plan import LocalOrders, ResolvedPlan

__all__ = [
    "AnsweredBefore", "NotTouched", "Site", "TooLate", "calmly", "failure", "look_for_data", "model_hash",
    "on_no_rows", "rehearse_task", "release",
]  # fmt: skip

log = logging.getLogger(__name__)

Vector = NDArray[np.float64]
Found = TypeVar("Found")


def model_hash(params: Vector) -> str:
    """SHA-256 of the model's exact bytes and shape: what names it in a request."""
    values = np.ascontiguousarray(params, dtype="<f8")
    return hashlib.sha256(f"{values.shape}".encode() + values.tobytes()).hexdigest()


class NotTouched(QuietsumError):
    """The party said no before it looked at its data, so nothing was spent."""


class AnsweredBefore(QuietsumError):
    """The same request came twice. The first answer was paid for; there is no second one, and no refund."""


class TooLate(QuietsumError):
    """The party's own work took longer than the deadline, so nothing of it leaves."""


class Panicked(QuietsumError):
    """The task ended in what is no Exception."""


class NoUpdate(QuietsumError):
    """The task returned what is no update of its model."""


@final
class Site:
    """One party of a federation.

    Guarantees: an answer is made by the plan's :class:`~quietsum.plan.orders.LocalOrders`, whose sampler and mechanism
    also state the charge. Attempts of a run are answered in increasing order, each once, with any model: never with
    fresh noise on the same charge (rule 10). Randomness comes from the operating system and is never restored. Where
    the plan promises anything, what leaves is what the plan says, also when the work failed, in any way, or took too
    long: the plan's steps on no rows. Whether it did may depend on data, so only ``tell`` hears of it, at the site. The
    ``deadline`` is counted from the moment its own work begins, so no other party can make it late. That hides a slow
    party where somebody waits for it, in one process; across machines its answer is late all the same, and everybody
    sees that. ``first`` is part of the work, before the training.
    """

    def __init__(
        self,
        name: str,
        *,
        task: AnyTask,
        resolved: ResolvedPlan,
        rng: RandomSource,
        refuses: str = "",
        deadline: float = math.inf,
        clock: Callable[[], float] = time.monotonic,
        first: Callable[[], None] | None = None,
        interruptible: bool = True,
        tell: Callable[[str, str], None] | None = None,
        canaries: PartyCanaries | None = None,
    ) -> None:
        self._canaries, self._asked = canaries, (0, 0)
        self.name, self._interruptible = name, interruptible
        self._tell = tell or _to_own_log
        self._deadline, self._clock, self._first = deadline, clock, first
        self._task, self._resolved, self._rng, self._refuses = as_task(task), resolved, rng, refuses
        self._answered: dict[str, tuple[int, int]] = {}
        if rng.for_tests and resolved.protected and not resolved.facts_of(name).public:
            raise InvalidParameter(
                "rng", "seeded", f"cannot protect the data of {name}", "use quietsum.mechanisms.rng.system_randomness()"
            )

    def answer(self, key: tuple[str, int, int, str], params: Vector) -> Vector:
        """The change of the model; :class:`NotTouched` where the party refuses before it looks at its data."""
        orders = self.begin(key)
        return self.finish(orders, self.work(params, orders))

    def check(self) -> None:
        """:class:`NotTouched` where the party would refuse; for a round whose first steps need no data."""
        if self._refuses:
            raise NotTouched(self._refuses)
        look_for_data(self._task, self.name)

    def contribution(self, key: tuple[str, int, int, str], params: Vector, how: Contribution) -> NDArray[np.uint32]:
        """What the party adds to a masked sum; the same bounds, noise and silence as an :meth:`answer`.

        Guarantees: work that failed adds what no rows give, on the same grid and with the same share of noise, where
        anything is promised (rule 17). The result is private until it is masked.
        """
        return how.of(self.name, self.answer(key, params), self._rng)

    def begin(self, key: tuple[str, int, int, str]) -> LocalOrders:
        """What to do for this request, which is answered from now on and never again.

        For code that trains several sites together: ``begin`` each, train, ``finish`` each. Neither is undone by a
        failure. Only a new process, which has no memory of this, can be asked again, and only by code that knows that
        nothing had left the first one.
        """
        if self._refuses:
            raise NotTouched(self._refuses)
        run, number, attempt, _ = key
        if (number, attempt) <= self._answered.get(run, (0, 0)):
            raise AnsweredBefore(f"round {number}, attempt {attempt} or a later one was answered before")
        orders = self._resolved.orders(self.name, number)
        look_for_data(self._task, self.name)
        reach("party:before-data")
        self._answered[run] = self._asked = number, attempt
        return orders

    def finish(self, orders: LocalOrders, delta: Vector) -> Vector:
        """What leaves: ``delta``, or with the client's noise at the party its bounded and noisy form."""
        if orders.client is not None:
            delta = release(orders.client, delta, self._task.dimension, self._rng)
        elif orders.mechanism is None and self._resolved.protected and _problem_with(delta, self._task.dimension):
            delta = np.zeros(self._task.dimension)  # trained side by side with others, so nobody has looked at it yet
        reach("party:before-send")
        return delta

    def work(self, params: Vector, orders: LocalOrders) -> Vector:
        """The change of the model by this party's data, for :meth:`finish`; of no rows, where its work failed.

        Only where nothing is promised is raised what the work raises, and :class:`TooLate`: words of the task are no
        refusal then, except that it has no data.
        """
        start = self._clock()
        try:
            delta = calmly(lambda: self._train(params, orders), interruptible=self._interruptible)
            if self._clock() - start > self._deadline:
                raise TooLate(f"its work took longer than the deadline of {self._deadline:g} s")
            if self._resolved.protected and (problem := _problem_with(delta, self._task.dimension)):
                raise NoUpdate(f"its update {problem}")
            return delta
        except (Exception, SystemExit) as error:
            if self._resolved.protected:
                self._tell(self.name, failure(error))
                return self.nothing(params, orders)
            if isinstance(error, DataMissing):  # where and why is the party's own business
                raise NotTouched("it has no data") from None
            if isinstance(error, NotTouched | AnsweredBefore):
                raise QuietsumError(f"the task raised {type(error).__name__}, which only the party may") from None
            raise

    def nothing(self, params: Vector, orders: LocalOrders) -> Vector:
        """What the plan's steps make of no rows, for :meth:`finish`."""
        return on_no_rows(self._task, self._task.dimension, params, orders, self._rng)

    def _train(self, params: Vector, orders: LocalOrders) -> Vector:
        task = self._task
        if self._first is not None:
            self._first()
        if (noise := _of_records(orders)) is not None:  # the party's share of noise comes with the grid of the sum
            return task.clipped_sum(self.name, params, orders, self._rng, max_norm=noise.max_norm)
        if self._canaries is not None and orders.mechanism is not None:
            carried = self._canaries.begin(*self._asked)
            delta = task.train_with_canaries(self.name, params, orders, self._rng, carried)
            self._keep(self._canaries, carried)
            return delta
        return task.train(self.name, params, orders, self._rng)

    def _keep(self, canaries: PartyCanaries, carried: CanaryRound) -> None:
        try:
            canaries.keep(carried)
        except (OSError, QuietsumError) as error:
            self._tell(self.name, f"a round is absent from the record of canaries ({type(error).__name__})")


def _of_records(orders: LocalOrders) -> DistributedNoise | None:
    """The noise in shares that protects records, where there is one."""
    noise = orders.distributed
    return noise if noise is not None and noise.unit is PrivacyUnit.RECORD else None


# ------------------------------------------------------------------------------------------ work that failed


@final
class _NoTask:
    """A task that is never asked, since there are no rows."""

    def gradients(self, params: Vector, features: Vector, labels: Vector) -> Vector:
        return np.zeros((len(labels), len(params)))


def on_no_rows(task: Task | None, dimension: int, params: Vector, orders: LocalOrders, rng: RandomSource) -> Vector:
    """What the steps of ``orders`` make of no rows at all: zeros without a mechanism, its noise alone with one.

    Guarantees: always an update, of the law that the plan's steps have where a site holds no record: as many releases
    of the same mechanism, through the same momentum, proximal term and rate. No data is touched. A task that computes
    otherwise than :func:`~quietsum.learning.descent.private_steps`, in single precision say, has a
    ``train_on_nothing``, so that its numbers look the same here; if that fails as well, the steps are made without it.
    """
    if orders.mechanism is None:
        return np.zeros(dimension)  # the mean gradient of nobody: no step
    if task is not None:
        try:
            delta = calmly(lambda: task.train_on_nothing(params.copy(), orders, rng))
            if delta is not None and not _problem_with(delta, dimension):
                return delta
        except (Exception, SystemExit) as error:
            log.warning("the task cannot train on no rows: %s", failure(error))
    try:
        return private_steps(
            _NoTask(),
            params,
            Rows(features=np.zeros((0, 1)), labels=np.zeros(0)),
            steps=orders.steps,
            sampling=Everyone(),  # of nobody
            mechanism=orders.mechanism,
            expected_batch=orders.expected_batch,
            learning_rate=orders.learning_rate,
            momentum=orders.momentum,
            proximal=orders.proximal,
            rng=rng,
        )
    except InvalidParameter:  # the noise by itself made the numbers overflow, at such a rate
        return np.zeros(dimension)


def _problem_with(delta: object, dimension: int) -> str:
    """Why ``delta`` is no update, or an empty text."""
    if not isinstance(delta, np.ndarray) or delta.shape != (dimension,):
        return f"is no vector of {dimension} numbers"
    if delta.dtype != np.float64 or not np.isfinite(delta).all():
        return "is not made of finite float64 numbers"
    return ""


def failure(error: BaseException) -> str:
    """What the site itself hears of work that failed: its kind and the line of code, no words, which may quote a row.

    The line is the last one of the task's own code, where there is any.
    """
    if isinstance(error, TooLate | NoUpdate | DataUnfit):
        return str(error)  # words of ours, in which no value stands
    if isinstance(error, Panicked) and error.__cause__ is not None:
        error = error.__cause__
    frames = traceback.extract_tb(error.__traceback__, limit=-50)
    own = [
        frame
        for frame in frames
        if not frame.filename.startswith((_PACKAGE, sys.prefix, sys.base_prefix, "<"))
        and not {"site-packages", "dist-packages"} & set(Path(frame.filename).parts)
    ]
    where = (own or list(frames))[-1:]
    return type(error).__name__ + "".join(f" in {Path(at.filename).name}, line {at.lineno} ({at.name})" for at in where)


_PACKAGE = str(Path(__file__).resolve().parents[1])


def _to_own_log(name: str, what: str) -> None:
    log.warning("for %s alone: its work failed, so what leaves holds nothing of its data (%s)", name, what)


def look_for_data(task: Task, party: str) -> None:
    """Raise :class:`NotTouched` if the party's files are not there. Nothing is read yet, so this may be said."""
    try:
        task.look_for_data(party)
    except DataMissing:
        raise NotTouched("it has no data") from None
    except Exception as error:
        log.warning("%s: the task cannot look for its data: %s", party, failure(error))


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
        raise Panicked(f"the task ended in a {type(panic).__name__}") from panic


def rehearse_task(task: AnyTask, resolved: ResolvedPlan, party: str, *, unseen: bool = False) -> None:
    """Try the task on made-up examples, so that mistakes in its code show before anything is charged.

    With ``unseen`` no record is read or counted, not even for its shape: for a site before its first charge, and for a
    coordinator, which holds no data. Raises InvalidParameter if the plan needs a part that the task does not have.
    """
    task, person, orders = as_task(task), resolved.plan.privacy.person, resolved.orders(party)
    if person is not None and task.person is None:
        problem = f"is promised something, and {task.name} does not say whose its rows are"
        raise InvalidParameter("privacy.person", person.id, problem, "remove it, or give the task people()")
    if _of_records(orders) is not None and not task.sums_gradients:
        task.refuse_sums()
    if orders.canaries and not task.carries_canaries:
        task.refuse_canaries()
    if unseen:
        task.rehearse_unseen(orders)
    else:
        task.rehearse(orders)


def release(mechanism: ClippedSum, delta: object, dimension: int, rng: RandomSource) -> Vector:
    """One release of ``mechanism``: of ``delta``, or of zeros where it is no vector of ``dimension`` numbers."""
    try:
        vector = np.asarray(delta, dtype=np.float64)
        bounded = mechanism.bound(vector if vector.shape == (dimension,) else np.zeros(dimension))
    except Exception:  # its shape and type may depend on data, too
        bounded = mechanism.bound(np.zeros(dimension))
    return mechanism.release(mechanism.sum(bounded), rng)
