"""Users' classes as :class:`~quietsum.tasks.protocol.Task`: what a class has is used, what it lacks has a default.

:func:`as_task` chooses the adapter by what the class has: ``train`` (:class:`FederatedOwn`), a ``model``
(:class:`~quietsum.tasks.federated.FederatedTorch`) or ``gradients`` (:class:`FederatedNumpy`). Only adapters look for
optional parts, and each looks once, in :func:`optional_part`; all other code asks the :class:`Task`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, final

import numpy as np
from numpy.typing import NDArray

from quietsum.errors import InvalidParameter
from quietsum.learning import carry_steps, clipped_sum, gradients_of, private_steps
from quietsum.plan import PartyFacts
from quietsum.tasks.predictions import Predictions, answer_rows, fit_shape, refuse_without_onnx
from quietsum.tasks.protocol import ChangeRows, Fits, Floats, Metrics, NumpyTask, OwnTask, Rows, Slope, Task, TorchTask

if TYPE_CHECKING:
    from quietsum.aggregation import Trial
    from quietsum.learning import CanaryRound
    from quietsum.mechanisms import RandomSource
    from quietsum.plan import LocalOrders

__all__ = ["AnyTask", "FederatedNumpy", "FederatedOwn", "as_task", "optional_part"]

AnyTask = Task | NumpyTask | OwnTask | TorchTask
"""What a user may hand over as a task."""


def as_task(task: AnyTask) -> Task:
    """``task`` as a :class:`Task`: itself if it is one, else in the adapter of its kind.

    The records of a torch task lie at the sites that it names. Raises :class:`~quietsum.errors.InvalidParameter` if
    ``task`` has none of ``train``, ``model`` and ``gradients``.
    """
    if isinstance(task, Task):
        return task
    if optional_part(task, "train") is not None:
        return FederatedOwn(cast(OwnTask, task))
    if getattr(task, "model", None) is not None:
        from quietsum.tasks.federated import FederatedTorch

        return FederatedTorch(cast(TorchTask, task))
    if optional_part(task, "gradients") is None:
        remedy = "give it gradients() and rows() (numpy), model() and loss() (torch), or train()"
        raise InvalidParameter("task", type(task).__name__, "is no task", remedy)
    return FederatedNumpy(cast(NumpyTask, task))


def optional_part(task: object, name: str) -> Callable[..., Any] | None:
    """The method ``name`` of a user's class; None if it has no such method."""
    found = getattr(task, name, None)
    return found if callable(found) else None


class _Adapter(Task):
    """The parts that numpy classes and classes with a ``train`` of their own share: each the user's, or the default."""

    task: NumpyTask | OwnTask

    @property
    def name(self) -> str:
        """The user's own."""
        return self.task.name

    @property
    def title(self) -> str:
        """The user's own."""
        return self.task.title

    @property
    def dimension(self) -> int:
        """The user's own."""
        return self.task.dimension

    def parties(self) -> tuple[PartyFacts, ...]:
        """Who takes part, with declared public sizes."""
        return self.task.parties()

    def initial(self) -> Floats:
        """The first parameters."""
        return self.task.initial()

    def evaluate(self, params: Floats) -> Metrics:
        """Scores on data declared unprotected."""
        return self.task.evaluate(params)

    @property
    def person(self) -> str | None:
        """The user's ``person`` if there is a method ``people``; None otherwise."""
        return None if optional_part(self.task, "people") is None else str(getattr(self.task, "person", "") or "")

    def train_on_nothing(self, params: Floats, orders: LocalOrders, rng: RandomSource) -> Floats | None:
        """The user's own, or None."""
        own = optional_part(self.task, "train_on_nothing")
        return None if own is None else own(params, orders, rng)

    def look_for_data(self, party: str) -> None:
        """Raise what the user's own ``look_for_data`` raises, if there is one."""
        if (own := optional_part(self.task, "look_for_data")) is not None:
            own(party)

    def rehearse(self, orders: LocalOrders | None = None) -> None:
        """Call the user's own ``rehearse``, if there is one."""
        if (own := optional_part(self.task, "rehearse")) is not None:
            own(orders)

    def rehearse_unseen(self, orders: LocalOrders | None = None) -> None:
        """Call the user's own ``rehearse_unseen``, if there is one."""
        if (own := optional_part(self.task, "rehearse_unseen")) is not None:
            own(orders)

    def records_of(self, party: str) -> tuple[Any, ...] | None:
        """The user's ``records_of``, else features and labels of ``rows``, else None. Private."""
        if (own := optional_part(self.task, "records_of")) is not None:
            return tuple(own(party))
        if (own := optional_part(self.task, "rows")) is not None:
            rows = own(party)
            return rows.features, rows.labels
        return None

    def references(self, parties: Sequence[str]) -> Mapping[str, float]:
        """The user's own, or none."""
        own = optional_part(self.task, "references")
        return {} if own is None else own(parties)

    def class_rows(self) -> Mapping[str, NDArray[np.int64]]:
        """The user's own, or none."""
        own = optional_part(self.task, "class_rows")
        return {} if own is None else own()

    def confusion(self, params: Floats) -> NDArray[np.int64] | None:
        """The user's own, or None."""
        own = optional_part(self.task, "confusion")
        return None if own is None else own(params)

    def slopes(self, params: Floats, *, most: int) -> tuple[Slope, Floats, NDArray[np.int64]] | None:
        """The user's own, or None."""
        own = optional_part(self.task, "slopes")
        return None if own is None else own(params, most=most)

    def classes_of(self, params: Floats, features: NDArray[Any]) -> NDArray[np.int64] | None:
        """The user's own, or None."""
        own = optional_part(self.task, "classes_of")
        return None if own is None else own(params, features)

    def predict(self, params: Floats, rows: NDArray[Any]) -> Predictions | None:
        """The user's own ``answers`` or ``classes_of``; None if there is neither."""
        if (example := optional_part(self.task, "example")) is not None:
            fit_shape(rows, np.asarray(example().features).shape[1:])
        if (own := optional_part(self.task, "answers")) is not None:
            names = tuple(str(name) for name in getattr(self.task, "answer_names", ()))
            return answer_rows(rows, partial(own, params), names, chances=len(names) > 1)
        if (own := optional_part(self.task, "classes_of")) is not None:
            return answer_rows(rows, partial(own, params), ("prediction",), chances=False)
        return None

    def write_onnx(self, params: Floats, path: Path, about: Mapping[str, str]) -> bool:
        """From the user's own ``layers``; False without them."""
        own = optional_part(self.task, "layers")
        if own is None:
            return False
        refuse_without_onnx()
        from quietsum.tasks.exporting import write_layers

        names = tuple(str(name) for name in getattr(self.task, "answer_names", ()))
        write_layers(path, own(params), names, about)
        return True

    def encode_file(self, path: Path) -> NDArray[Any] | None:
        """The user's own, or None."""
        own = optional_part(self.task, "encode_file")
        return None if own is None else np.asarray(own(path))

    @property
    def root_size(self) -> int | None:
        """The user's own if there is a method ``trial`` too; None otherwise."""
        size = getattr(self.task, "root_size", None)
        return None if size is None or optional_part(self.task, "trial") is None else int(size)

    def trial(self, params: Floats, orders: LocalOrders, rng: RandomSource) -> Trial:
        """The user's own; raises if there is none."""
        own = optional_part(self.task, "trial")
        return super().trial(params, orders, rng) if own is None else own(params, orders, rng)


@final
class FederatedNumpy(_Adapter):
    """A numpy task whose parties train by the plan's steps on its rows and gradients.

    Guarantees: what :meth:`train` returns costs what ``orders`` say
    (:func:`~quietsum.learning.descent.private_steps`). At most ``orders.max_records`` rows of each person remain, and
    of these the ones that fit, before anything is drawn.
    """

    def __init__(self, task: NumpyTask) -> None:
        self.task: NumpyTask = task
        self._fits: Fits | None = None
        self._changed: Callable[[str], Rows] | None = None

    follows_orders = True
    sums_gradients = True
    carries_canaries = True
    leaves_out = True

    def train_with_canaries(
        self, party: str, params: Floats, orders: LocalOrders, rng: RandomSource, carried: CanaryRound
    ) -> Floats:
        """The same with canaries behind the party's rows."""
        assert orders.mechanism is not None
        return carry_steps(
            self.task,
            params,
            self._select(party, orders.max_records),
            carried,
            steps=orders.steps,
            sampling=orders.sampling,
            mechanism=orders.mechanism,
            expected_batch=orders.expected_batch,
            learning_rate=orders.learning_rate,
            momentum=orders.momentum,
            proximal=orders.proximal,
            rng=rng,
        )

    def train(self, party: str, params: Floats, orders: LocalOrders, rng: RandomSource) -> Floats:
        """One round of ``party``: new − old parameters."""
        return private_steps(
            self.task,
            params,
            self._select(party, orders.max_records),
            steps=orders.steps,
            sampling=orders.sampling,
            mechanism=orders.mechanism,
            expected_batch=orders.expected_batch,
            learning_rate=orders.learning_rate,
            momentum=orders.momentum,
            proximal=orders.proximal,
            rng=rng,
        )

    def clipped_sum(
        self, party: str, params: Floats, orders: LocalOrders, rng: RandomSource, *, max_norm: float
    ) -> Floats:
        """Σ clip(∇ℓ_i) over one batch of ``party``, without noise.

        The user's own sum is asked for if there is one, unless rows are left out or changed: it would read them all.
        """
        own = optional_part(self.task, "clipped_sum")
        if own is not None and self._fits is None and self._changed is None:
            return cast(Floats, own(party, params, orders, rng, max_norm=max_norm))
        rows = self._select(party, orders.max_records)
        return clipped_sum(self.task, params, rows, sampling=orders.sampling, max_norm=max_norm, rng=rng)

    def _rows(self, party: str) -> Rows:
        return self.task.rows(party) if self._changed is None else self._changed(party)

    def _select(self, party: str, most: int | None) -> Rows:
        """The rows to train on. A row that is left out keeps its place: no other row of its person comes in for it."""
        rows = self._rows(party)
        if most is None and self._fits is None:
            return rows
        kept = np.arange(len(rows)) if most is None else self._bound(party, rows, most)
        if self._fits is not None:
            kept = kept[self._fits((rows.features, rows.labels))[kept]]
        return Rows(features=rows.features[kept], labels=rows.labels[kept])

    def _bound(self, party: str, rows: Rows, most: int) -> NDArray[np.int64]:
        """The places of those ``rows`` that remain with at most ``most`` of each person."""
        own = optional_part(self.task, "people")
        if own is None:
            problem = f"cannot be kept: {self.name} does not say whose each row is"
            raise InvalidParameter("max_records", most, problem, "give the task people(party), or leave the person out")
        from quietsum.learning import bound_people

        people = own(party)
        if len(people) != len(rows):
            raise InvalidParameter("people", len(people), f"are not one for each of {party}'s rows", "name one per row")
        return bound_people(people, most=most)

    def leave_out(self, fits: Fits) -> None:
        """From now on every party trains on those of its rows alone for which ``fits`` holds.

        Guarantees: as private as before if ``fits`` looks at one row at a time. Sizes stay as they were declared.
        """
        self._fits = fits

    def rehearse(self, orders: LocalOrders | None = None) -> None:
        """Call the user's own ``rehearse``; without one, try ``gradients`` on the made-up rows of ``example``."""
        if (own := optional_part(self.task, "rehearse")) is not None:
            own(orders)
        else:
            self._try_example()

    def rehearse_unseen(self, orders: LocalOrders | None = None) -> None:
        """The same without a record: the user's own ``rehearse_unseen``, or ``gradients`` on made-up rows."""
        if (own := optional_part(self.task, "rehearse_unseen")) is not None:
            own(orders)
        elif optional_part(self.task, "rehearse") is None:
            self._try_example()

    def _try_example(self) -> None:
        if (example := optional_part(self.task, "example")) is not None:
            rows = example()
            gradients_of(self.task, np.asarray(self.initial(), dtype=np.float64), rows.features, rows.labels)

    def records_of(self, party: str) -> tuple[Any, ...] | None:
        """The user's ``records_of``, else the features and labels of the party's rows. Private."""
        if self._changed is None:
            return super().records_of(party)
        rows = self._changed(party)
        return rows.features, rows.labels

    def labels_of(self, party: str) -> NDArray[Any]:
        """The label of each of the party's rows. Private."""
        return self._rows(party).labels

    def with_rows(self, parties: Sequence[str], change: ChangeRows) -> FederatedNumpy:
        """The same task with the rows of ``parties`` replaced; each is changed once, when it is first read."""
        honest, made, known = self._rows, FederatedNumpy(self.task), dict[str, Rows]()

        def read(party: str) -> Rows:
            if party not in parties:
                return honest(party)
            if party not in known:
                rows = honest(party)
                features, labels = change(party, rows.features, rows.labels)
                known[party] = Rows(features=features, labels=labels)
            return known[party]

        made._fits, made._changed = self._fits, read
        return made


@final
class FederatedOwn(_Adapter):
    """A class that trains by code of its own, with the defaults of :class:`Task` for what it lacks."""

    def __init__(self, task: OwnTask) -> None:
        self.task: OwnTask = task

    def train(self, party: str, params: Floats, orders: LocalOrders, rng: RandomSource) -> Floats:
        """One round of ``party``, by the user's own code."""
        return self.task.train(party, params, orders, rng)

    @property
    def follows_orders(self) -> bool:
        """What the class says of itself; False if it says nothing."""
        return bool(getattr(self.task, "follows_orders", False))

    @property
    def sums_gradients(self) -> bool:
        """Whether there is a method ``clipped_sum``."""
        return optional_part(self.task, "clipped_sum") is not None

    def clipped_sum(
        self, party: str, params: Floats, orders: LocalOrders, rng: RandomSource, *, max_norm: float
    ) -> Floats:
        """The user's own; raises if there is none."""
        if (own := optional_part(self.task, "clipped_sum")) is None:
            self.refuse_sums()
        return cast(Floats, own(party, params, orders, rng, max_norm=max_norm))

    @property
    def trains_many(self) -> bool:
        """Whether there is a method ``train_many``."""
        return optional_part(self.task, "train_many") is not None

    def train_many(
        self, parties: Sequence[str], params: Floats, orders: Sequence[LocalOrders], rng: RandomSource
    ) -> Iterator[tuple[tuple[str, ...], Floats]]:
        """The user's own; raises if there is none."""
        own = optional_part(self.task, "train_many")
        return super().train_many(parties, params, orders, rng) if own is None else own(parties, params, orders, rng)

    @property
    def leaves_out(self) -> bool:
        """Whether there is a method ``leave_out``."""
        return optional_part(self.task, "leave_out") is not None

    def leave_out(self, fits: Fits) -> None:
        """Call the user's own; raises if there is none."""
        own = optional_part(self.task, "leave_out")
        super().leave_out(fits) if own is None else own(fits)

    def labels_of(self, party: str) -> NDArray[Any] | None:
        """The user's own, or None. Private."""
        own = optional_part(self.task, "labels_of")
        return None if own is None else own(party)

    def with_rows(self, parties: Sequence[str], change: ChangeRows) -> Task | None:
        """The user's own, or None."""
        own = optional_part(self.task, "with_rows")
        return None if own is None else as_task(own(parties, change))
