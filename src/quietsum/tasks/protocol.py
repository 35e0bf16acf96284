"""What a task is: who holds which rows, how a party trains on them, and a score on data declared unprotected.

A user writes one of three small classes: :class:`NumpyTask` (rows and one gradient per row), :class:`TorchTask` (a
model, one loss per record, records) or :class:`OwnTask` (a ``train`` method). A run asks one thing only,
:class:`Task`: :func:`quietsum.tasks.as_task` makes it of any of the three, and each optional part has a default.

A task knows nothing of noise, rounds or budgets. Two of its answers decide whether a guarantee is true: the sizes in
``parties()`` are *declared* and public, never counted from protected rows; and ``evaluate`` looks at published or
otherwise unprotected data only, because a score on protected rows would have to be charged. Features may be computed
from one row and public constants, never from several rows.
"""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, final

import numpy as np
import numpy.typing as npt

from quietsum.errors import InvalidParameter
from quietsum.plan import PartyFacts
from quietsum.tasks.predictions import Predictions

if TYPE_CHECKING:
    from torch import Tensor, nn

    from quietsum.aggregation import Trial
    from quietsum.learning import CanaryRound, Footprint
    from quietsum.mechanisms import RandomSource
    from quietsum.plan import LocalOrders

__all__ = ["Metrics", "NumpyTask", "OwnTask", "Rows", "Settings", "Task", "TorchTask"]

Floats = npt.NDArray[np.float64]
Slope = Callable[[Floats, int], tuple[Floats, Floats]]
Fits = Callable[[tuple[Any, ...]], npt.NDArray[np.bool_]]
"""Which of some records fit: a function of single records."""
ChangeRows = Callable[[str, npt.NDArray[Any], npt.NDArray[Any]], tuple[npt.NDArray[Any], npt.NDArray[Any]]]
"""From a party, its features and its labels to other ones."""


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


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """How a task is best trained, chosen without its test rows; ``training`` is what PrivacyConfig takes besides ε.

    ``Settings()`` leaves all of it to :mod:`quietsum.learning.defaults`, which is what a task of one's own begins with.
    """

    learning_rate: float | None = None
    optimizer: str | None = None
    training: dict[str, Any] = dataclasses.field(default_factory=dict)


# ------------------------------------------------------------------------------------------------ what a run asks


class _Described(Protocol):
    """What every federated task says of itself before any row is read, and its score."""

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """The name in ``run.toml``."""
        ...

    @property
    @abc.abstractmethod
    def title(self) -> str:
        """One line for a report."""
        ...

    @property
    @abc.abstractmethod
    def dimension(self) -> int:
        """How many parameters the model has."""
        ...

    @abc.abstractmethod
    def parties(self) -> tuple[PartyFacts, ...]:
        """Who takes part, with declared public sizes."""
        ...

    @abc.abstractmethod
    def initial(self) -> Floats:
        """The first parameters, of shape (dimension,), the same in every process. No data is touched."""
        ...

    @abc.abstractmethod
    def evaluate(self, params: Floats) -> Metrics:
        """Scores on data declared unprotected."""
        ...


class Task(_Described):
    """The one interface that a run asks: a description, :meth:`train`, and optional parts with defaults.

    Every default means "not offered", in one of two ways. An answer that the task does not have is None or empty. Work
    that it cannot do is announced by a property that is False (``sums_gradients``, ``trains_many``, ``leaves_out``) and
    raises :class:`~quietsum.errors.InvalidParameter` with a remedy if it is asked for all the same. So a plan that
    needs a part which the task lacks is refused, never run without it.
    """

    @abc.abstractmethod
    def train(self, party: str, params: Floats, orders: LocalOrders, rng: RandomSource) -> Floats:
        """Train one round at one party and return new − old parameters.

        Guarantees of the implementation: with ``orders.mechanism`` the result is a function of ``orders.steps``
        releases of it on batches of ``orders.sampling``; ``orders.max_records`` is kept before anything is drawn.
        ``orders.client`` is not its business: the party bounds and noises what this returns. What it raises stays at
        the party: where the plan promises anything, the plan's steps on no rows leave instead.
        """
        ...

    @property
    def follows_orders(self) -> bool:
        """Whether :meth:`train` takes exactly the steps of ``orders``, so that a plan bounds an update's length."""
        return False

    @property
    def person(self) -> str | None:
        """What the task calls the person behind a record; empty if it has no word, None if it does not know people."""
        return None

    @property
    def base(self) -> str:
        """SHA-256 of the weights that the model has and that are not trained; empty if all are, or if there are none.

        They stay where they are: an update holds the trained ones alone. So a plan names this hash, and
        every process that makes the task compares it (:func:`quietsum.tasks.task_of`).
        """
        return ""

    @property
    def footprint(self) -> Footprint | None:
        """The memory that a party's work takes; None if it is not known. Guarantees: no record is read."""
        return None

    # ------------------------------------------------------------------------------------- other ways to train

    def train_on_nothing(self, params: Floats, orders: LocalOrders, rng: RandomSource) -> Floats | None:
        """What :meth:`train` returns for a party without a record; None: numpy's float64 steps on no rows serve.

        For a task whose numbers look different from those, a model in single precision for instance: they leave where
        :meth:`train` failed. Guarantees of the implementation: no data is touched.
        """
        return None

    @property
    def carries_canaries(self) -> bool:
        """Whether :meth:`train_with_canaries` is offered: for runs that can be audited."""
        return False

    def train_with_canaries(
        self, party: str, params: Floats, orders: LocalOrders, rng: RandomSource, carried: CanaryRound
    ) -> Floats:
        """What :meth:`train` returns, with the canaries of ``carried`` behind the party's rows in every draw.

        Guarantees of the implementation: the result has the law that it has without them.
        """
        self.refuse_canaries()

    def refuse_canaries(self) -> NoReturn:
        """Raise :class:`~quietsum.errors.InvalidParameter`: this task has no :meth:`train_with_canaries`."""
        problem = "trains by code of its own, so canaries cannot go through its steps"
        raise InvalidParameter("task", self.name, problem, "leave training.canaries out")

    @property
    def sums_gradients(self) -> bool:
        """Whether :meth:`clipped_sum` is offered: for records whose noise is distributed over the parties."""
        return False

    def clipped_sum(
        self, party: str, params: Floats, orders: LocalOrders, rng: RandomSource, *, max_norm: float
    ) -> Floats:
        """Σ clip(∇ℓ_i) over one batch of ``orders.sampling``, without noise. Private.

        Guarantees of the implementation: one record moves the result by at most ``max_norm`` in L2;
        ``orders.max_records`` is kept before the batch is drawn.
        """
        self.refuse_sums()

    def refuse_sums(self) -> NoReturn:
        """Raise :class:`~quietsum.errors.InvalidParameter`: this task has no :meth:`clipped_sum`."""
        problem = "trains by code of its own and cannot say what a batch's clipped gradients add up to"
        raise InvalidParameter(
            "task", self.name, problem, "give it clipped_sum(), or choose privacy.record.noise_at = 'party'"
        )

    @property
    def trains_many(self) -> bool:
        """Whether :meth:`train_many` is offered."""
        return False

    def train_many(
        self, parties: Sequence[str], params: Floats, orders: Sequence[LocalOrders], rng: RandomSource
    ) -> Iterator[tuple[tuple[str, ...], Floats]]:
        """Train small parties side by side, for orders without a mechanism.

        Yields some parties at a time: their names, and a row of new − old parameters for each.
        """
        raise InvalidParameter("task", self.name, "does not train many parties at once", "call train() for each party")

    @property
    def leaves_out(self) -> bool:
        """Whether :meth:`leave_out` is offered."""
        return False

    def leave_out(self, fits: Fits) -> None:
        """From now on train on those records alone for which ``fits``, a function of single records, holds."""
        problem = "trains by code of its own and cannot leave records out"
        raise InvalidParameter("task", self.name, problem, "choose another on_failure for the data check")

    # ---------------------------------------------------------------------------------------- before training

    def look_for_data(self, party: str) -> None:
        """Raise :class:`~quietsum.errors.DataMissing` if the party's files are known to be missing.

        Guarantees of the implementation: no record is read or counted, since this is public and never charged.
        """
        return None

    def rehearse(self, orders: LocalOrders | None = None) -> None:
        """Raise what would go wrong in training with such ``orders``; nothing raised depends on a protected value."""
        return None

    def rehearse_unseen(self, orders: LocalOrders | None = None) -> None:
        """Do what :meth:`rehearse` does, as far as it can be done without a record or the number of records."""
        return None

    # ----------------------------------------------------------------------------------- records, for drills

    def records_of(self, party: str) -> tuple[Any, ...] | None:
        """The records of ``party``, row i of every part together; None if the task shows none. Private."""
        return None

    def labels_of(self, party: str) -> npt.NDArray[Any] | None:
        """One label for each of its records; None if the task shows none. Private."""
        return None

    def with_rows(self, parties: Sequence[str], change: ChangeRows) -> Task | None:
        """The same task with the records of ``parties`` replaced by ``change(party, features, labels)``.

        Returns None if the task's records cannot be replaced.
        """
        return None

    # ------------------------------------------------------------------------ answers on unprotected data

    def references(self, parties: Sequence[str]) -> Mapping[str, float]:
        """The first metric of models without privacy, by a few words that say what each is. For public data only.

        ``parties`` are those of the plan: a run is compared with what its own parties could do. Empty if not offered.
        """
        return {}

    def class_rows(self) -> Mapping[str, npt.NDArray[np.int64]]:
        """By class, the places of its row of the last layer in the vector of weights. No data is touched.

        Empty if not offered. Detection uses it: a flipped label shows in the row of its class.
        """
        return {}

    def confusion(self, params: Floats) -> npt.NDArray[np.int64] | None:
        """Unprotected rows by true class (first index) and answer; None if the task shows no such rows."""
        return None

    def slopes(self, params: Floats, *, most: int) -> tuple[Slope, Floats, npt.NDArray[np.int64]] | None:
        """The model's slope, at most ``most`` unprotected rows as (n, k), and their classes; None if not offered.

        The slope takes rows of that form and a class, and returns the scores, rows × classes, and the gradient of
        Σ −ln p(class) at each row.
        """
        return None

    def classes_of(self, params: Floats, features: npt.NDArray[Any]) -> npt.NDArray[np.int64] | None:
        """The class that the model ``params`` answers for each example; None if not offered."""
        return None

    # ------------------------------------------------------------------------------------- a finished model

    def module(self, params: Floats) -> nn.Module | None:
        """The torch model with the weights ``params``, ready to answer; None if the task has none."""
        return None

    def named_weights(self, params: Floats) -> Mapping[str, npt.NDArray[Any]] | None:
        """The state dict of that model, as arrays; None if the task has no torch model."""
        return None

    def predict(self, params: Floats, rows: npt.NDArray[Any]) -> Predictions | None:
        """What the model ``params`` answers for ``rows``, in the form of the task's records; None if not offered."""
        return None

    def write_onnx(self, params: Floats, path: Path, about: Mapping[str, str]) -> bool:
        """Write the model ``params`` as ONNX to ``path``, with ``about`` in its metadata; False if not offered.

        Raises :class:`~quietsum.errors.QuietsumError` if what writes ONNX is not installed.
        """
        return False

    def encode_file(self, path: Path) -> npt.NDArray[Any] | None:
        """The rows of the CSV file at ``path``, without labels, as :meth:`predict` takes them; None if not offered.

        Row i is what stands in line i of those that are not empty and not the first; NaN if that line is no record.
        """
        return None

    # --------------------------------------------------------------------------------- a root set at the server

    @property
    def root_size(self) -> int | None:
        """How many unprotected rows are kept for trials at the server; 0 if the plan asks for none, None if it cannot.

        Guarantees of the implementation: no protected row is among them, and ``evaluate`` scores none of them. No row
        is read for this number.
        """
        return None

    def trial(self, params: Floats, orders: LocalOrders, rng: RandomSource) -> Trial:
        """The root set tried on the model ``params``, by a party's ``orders`` without their noise."""
        problem = "holds no root set on which updates could be tried"
        raise InvalidParameter("task", self.name, problem, "give it root_size and trial(), or choose another rule")


# ------------------------------------------------------------------------------------------------ what a user writes


class NumpyTask(_Described, Protocol):
    """What a numpy user writes. The properties are read-only and known before any row is read.

    :class:`~quietsum.tasks.adapters.FederatedNumpy` makes a :class:`Task` of it. Optional parts, each used if it is
    there: ``people(party)``, one person per row, and ``person``, what they are called; ``example()``, made-up
    :class:`Rows` on which ``gradients`` is tried before a protected row is read; ``answers(params, features)``, what
    the model says of rows without labels, a column for each of ``answer_names`` (classes, of which it gives the
    chances, or one number); and the optional parts of :class:`Task`, under the same names.
    """

    @abc.abstractmethod
    def rows(self, party: str) -> Rows:
        """The protected training rows of one party."""
        ...

    @abc.abstractmethod
    def gradients(self, params: Floats, features: Floats, labels: Floats) -> Floats:
        """One gradient of the loss per example, of shape (n, dimension).

        Row i depends on ``params`` and example i alone, to the last bit: beware of matrix products over the batch.
        """
        ...


class OwnTask(_Described, Protocol):
    """A class with a ``train`` method of its own, with or without :class:`Task` as its base.

    Without that base, :class:`~quietsum.tasks.adapters.FederatedOwn` adds the defaults of :class:`Task`.
    """

    @abc.abstractmethod
    def train(self, party: str, params: Floats, orders: LocalOrders, rng: RandomSource) -> Floats:
        """Train one round at one party and return new − old parameters; :meth:`Task.train` says what it guarantees."""
        ...


class TorchTask(Protocol):
    """What a torch user writes; :class:`~quietsum.tasks.federated.FederatedTorch` makes a :class:`Task` of it.

    Optional parts, each used if it is there:

    * ``sites()``: the site of each record, so that ``split = "natural"`` can deal them out; ``without_sites`` says why
      there are none; ``one_holder = True`` if one holder has the records of all sites;
    * ``site_sizes``: the declared size of each site with protected records, by name;
    * ``people()``: the person of each record, who then stays at one party; ``person``: what they are called;
    * ``example()``: made-up records of the shape and type of the real ones, tried before a record is read and paid for;
    * ``look_for_data(party)``: as :meth:`Task.look_for_data`;
    * ``root_size`` and ``root()``: how many public records are kept for trials at the server, and those records;
      ``evaluate`` scores none of them;
    * ``hold_out()``: the unprotected rows that a model is scored on and their classes from zero, for detection;
    * ``classes``: the names of the classes whose scores the model answers, for predictions. Without them the classes
      are numbered if ``loss`` is :func:`quietsum.learning.cross_entropy` or ``binary_cross_entropy`` of the tasks here,
      and otherwise a prediction is what the model answers;
    * ``encode_file(path)``: the rows of a CSV file without labels, in the form of the first part of ``records()``.
    """

    @property
    def name(self) -> str:
        """The name on the command line."""
        ...

    @property
    def title(self) -> str:
        """One line that describes the task."""
        ...

    @property
    def size(self) -> int:
        """The declared, public number of training records."""
        ...

    @property
    def public(self) -> str:
        """Why the records need no protection; empty if they do."""
        ...

    @property
    def settings(self) -> Settings:
        """Batch, epochs, clip and learning rate to begin with."""
        ...

    def model(self) -> nn.Module:
        """A fresh model. No data is touched."""
        ...

    def loss(self, model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        """One value per example."""
        ...

    def records(self) -> tuple[Tensor, ...]:
        """The protected training records: row i of every tensor is record i."""
        ...

    def evaluate(self, model: nn.Module) -> Metrics:
        """Scores on data declared unprotected."""
        ...
