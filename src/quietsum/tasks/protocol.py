"""What a task is: who holds which rows, one gradient per example, and a score on data that nobody protects.

A task knows nothing of noise, rounds or budgets. Two of its answers decide whether a guarantee is true, so they are
spelt out here: the sizes in :meth:`NumpyTask.parties` are *declared* and public, never counted from protected rows;
and :meth:`NumpyTask.evaluate` looks at published or otherwise unprotected data only, because a score on protected rows
would have to be charged. Features may be computed from one row and public constants, never from several rows.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, final, runtime_checkable

import numpy as np
import numpy.typing as npt

from quietsum.errors import InvalidParameter
from quietsum.plan import PartyFacts

if TYPE_CHECKING:
    from quietsum.aggregation import Trial
    from quietsum.mechanisms import RandomSource
    from quietsum.plan import LocalOrders

__all__ = [
    "Comparable",
    "CountsConfusion",
    "FederatedTask",
    "HasClassRows",
    "HasSlopes",
    "HoldsRoot",
    "LeavesOut",
    "LooksForData",
    "Metrics",
    "NamesPeople",
    "NumpyTask",
    "Rehearsed",
    "Rehearses",
    "Rows",
    "SumsGradients",
    "TrainsMany",
    "TrainsOnNothing",
]

Floats = npt.NDArray[np.float64]
Slope = Callable[[Floats, int], tuple[Floats, Floats]]


@final
@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Rows:
    """The examples of one party: ``features`` (n, k) and ``labels`` (n,). Printing them shows their shape alone."""

    features: Floats
    labels: Floats

    def __post_init__(self) -> None:
        if self.features.ndim != 2 or self.labels.shape != self.features.shape[:1]:
            shapes = f"{self.features.shape} and {self.labels.shape}"
            raise InvalidParameter("rows", shapes, "do not fit together", "pass (n, k) features and (n,) labels")

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:  # rows are private: no value of theirs may reach a log or a traceback
        return f"Rows({self.features.shape[0]} examples, {self.features.shape[1]} features)"


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Metrics:
    """Scores by name, and the data ``on`` which they stand: a number without that is not printed anywhere.

    ``parts`` names the data of those scores that stand on other data, one site's share of it for instance. ``chance``
    is what a model that knows nothing would score there: the share of the largest class for an accuracy, say.
    """

    values: Mapping[str, float]
    on: str
    parts: Mapping[str, str] = dataclasses.field(default_factory=dict)
    chance: Mapping[str, float] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        finite = {name: float(value) for name, value in self.values.items() if math.isfinite(value)}
        object.__setattr__(self, "values", finite)  # a score that is not defined, an AUC of one class say, is left out
        object.__setattr__(self, "parts", {name: data for name, data in self.parts.items() if name in finite})
        object.__setattr__(
            self, "chance", {name: float(level) for name, level in self.chance.items() if name in finite}
        )
        if not self.on.strip() or not set(self.parts) <= set(self.values):
            raise InvalidParameter("on", self.on, "does not name the data of every score", "say which data it was")

    def stands_on(self, name: str) -> str:
        """The data on which the score ``name`` stands."""
        return self.parts.get(name, self.on)


class NumpyTask(Protocol):
    """All that a numpy user writes. The properties are read-only and known before any row is read."""

    @property
    def name(self) -> str:
        """The name in ``run.toml``."""
        ...

    @property
    def title(self) -> str:
        """One line for a report."""
        ...

    @property
    def dimension(self) -> int:
        """How many parameters the model has."""
        ...

    def parties(self) -> tuple[PartyFacts, ...]:
        """Who takes part, with declared public sizes."""
        ...

    def initial(self) -> Floats:
        """The first parameters, of shape (dimension,). No data is touched."""
        ...

    def rows(self, party: str) -> Rows:
        """The protected training rows of one party."""
        ...

    def gradients(self, params: Floats, features: Floats, labels: Floats) -> Floats:
        """One gradient of the loss per example, of shape (n, dimension).

        Row i depends on ``params`` and example i alone, to the last bit: beware of matrix products over the batch.
        """
        ...

    def evaluate(self, params: Floats) -> Metrics:
        """Scores on data declared unprotected."""
        ...


@runtime_checkable
class FederatedTask(Protocol):
    """What a federation asks of a task that does its own local work, any torch task for instance.

    :class:`quietsum.tasks.federated.FederatedTorch` makes one of a :class:`~quietsum.tasks.torch_protocol.TorchTask`.
    """

    @property
    def name(self) -> str:
        """The name in ``run.toml``."""
        ...

    @property
    def title(self) -> str:
        """One line for a report."""
        ...

    @property
    def dimension(self) -> int:
        """How many parameters the model has."""
        ...

    def parties(self) -> tuple[PartyFacts, ...]:
        """Who takes part, with declared public sizes."""
        ...

    def initial(self) -> Floats:
        """The first parameters, of shape (dimension,), the same in every process. No data is touched."""
        ...

    def evaluate(self, params: Floats) -> Metrics:
        """Scores on data declared unprotected."""
        ...

    def train(self, party: str, params: Floats, orders: LocalOrders, rng: RandomSource) -> Floats:
        """One round of one party: new − old parameters.

        Guarantees of whoever implements it: with ``orders.mechanism`` the result is a function of ``orders.steps``
        releases of it on batches of ``orders.sampling``; ``orders.max_records`` is kept before anything is drawn.
        ``orders.client`` is not its business: the party bounds and noises what this returns. What it raises stays at
        the party: where the plan promises anything, the plan's steps on no rows leave instead.
        """
        ...


@runtime_checkable
class TrainsOnNothing(Protocol):
    """A federated task whose numbers are made in another way than numpy's float64: it also says what no rows give.

    Without it, :func:`quietsum.party.work.on_no_rows` makes the steps that leave where :meth:`FederatedTask.train`
    failed. A model in single precision would show the difference in its last digits.
    """

    def train_on_nothing(self, params: Floats, orders: LocalOrders, rng: RandomSource) -> Floats:
        """What :meth:`FederatedTask.train` returns for a party without a record. Guarantees: no data is touched."""
        ...


@runtime_checkable
class SumsGradients(Protocol):
    """A federated task that can leave the noise to its party: for records whose noise is distributed."""

    def clipped_sum(
        self, party: str, params: Floats, orders: LocalOrders, rng: RandomSource, *, max_norm: float
    ) -> Floats:
        """Σ clip(∇ℓ_i) over one batch of ``orders.sampling``, without noise. Private.

        Guarantees of whoever implements it: one record moves the result by at most ``max_norm`` in L2;
        ``orders.max_records`` is kept before the batch is drawn.
        """
        ...


@runtime_checkable
class CountsConfusion(Protocol):
    """A task that counts which class a model takes for which, on data declared unprotected."""

    def confusion(self, params: Floats) -> npt.NDArray[np.int64] | None:
        """Rows by true class (first index) and answer; None where the task shows no such rows."""
        ...


@runtime_checkable
class HasSlopes(Protocol):
    """A task of several classes whose model says how its answers change with its input, on unprotected rows."""

    def slopes(self, params: Floats, *, most: int) -> tuple[Slope, Floats, npt.NDArray[np.int64]] | None:
        """The model's slope, ``most`` rows at most as (n, k), and their classes; None where the task shows none.

        The slope takes rows of that form and a class, and answers the scores, rows × classes, and the gradient of
        Σ −ln p(class) at each row.
        """
        ...


@runtime_checkable
class HasClassRows(Protocol):
    """A task that says which weights speak for which class, so that a flipped label shows where it acts."""

    def class_rows(self) -> Mapping[str, npt.NDArray[np.int64]]:
        """By class, the places of its row of the last layer in the vector of weights. No data is touched."""
        ...


@runtime_checkable
class LeavesOut(Protocol):
    """A federated task that can leave out records of a party one by one: those that do not fit a site's schema."""

    def leave_out(self, fits: Callable[[tuple[Any, ...]], npt.NDArray[np.bool_]]) -> None:
        """From now on train on those records alone for which ``fits``, a function of single records, holds."""
        ...


@runtime_checkable
class LooksForData(Protocol):
    """A task that can say that a party's files are not there, without reading any."""

    def look_for_data(self, party: str) -> None:
        """:class:`~quietsum.errors.DataMissing` where they are not there.

        Guarantees of whoever implements it: no record is read or counted, since this is said to everybody and never
        charged.
        """
        ...


@runtime_checkable
class HoldsRoot(Protocol):
    """A task with a root set for the server: a few rows that nobody protects, public or made up.

    Guarantees of whoever implements it: no protected row is in it, and no row of it is scored by ``evaluate``.
    """

    @property
    def root_size(self) -> int:
        """How many rows it has; 0 where the plan asks for none. No row is read for this."""
        ...

    def trial(self, params: Floats, orders: LocalOrders, rng: RandomSource) -> Trial:
        """The root set tried on the model ``params``, by a party's ``orders`` without their noise."""
        ...


@runtime_checkable
class TrainsMany(Protocol):
    """A federated task that trains many small parties faster together. Only for orders without a mechanism."""

    def train_many(
        self, parties: Sequence[str], params: Floats, orders: Sequence[LocalOrders], rng: RandomSource
    ) -> Iterator[tuple[tuple[str, ...], Floats]]:
        """Some parties at a time: their names, and a row of new − old parameters for each."""
        ...


@runtime_checkable
class Rehearses(Protocol):
    """A federated task that can try itself on made-up records before anything is charged."""

    def rehearse(self, orders: LocalOrders | None = None) -> None:
        """Raise what would go wrong in training with such ``orders``; nothing raised depends on a protected value."""
        ...


@runtime_checkable
class RehearsesUnseen(Protocol):
    """A federated task that can also try itself where no record may be read yet: at a site, before anything is paid."""

    def rehearse_unseen(self, orders: LocalOrders | None = None) -> None:
        """What :meth:`Rehearses.rehearse` does, as far as it can be done without a record, or the number of them."""
        ...


@runtime_checkable
class NamesPeople(Protocol):
    """A numpy task that knows whose each row is."""

    def people(self, party: str) -> npt.NDArray[Any]:
        """The person of each of the party's rows, in the order of :meth:`NumpyTask.rows`."""
        ...


@runtime_checkable
class Comparable(Protocol):
    """A task on public data that also knows what no privacy would buy. Never implement it for protected rows."""

    def references(self, parties: Sequence[str]) -> Mapping[str, float]:
        """The first metric of models without privacy, by a few words that say what each one is.

        ``parties`` are those of the plan: a run is compared with what its own parties could do, with nobody else.
        """
        ...


@runtime_checkable
class Rehearsed(Protocol):
    """A task with made-up examples, so that a mistake in its code is found before protected rows are touched.

    During training an exception is swallowed with its row (it would tell about that row), so without this a task that
    always raises trains on noise alone.
    """

    def example(self) -> Rows:
        """A few rows that nobody needs to protect, of the shape of the real ones."""
        ...
