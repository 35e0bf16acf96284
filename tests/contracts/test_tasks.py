"""Tasks of ours and of users keep the tasks' contract, and the contract catches tasks that do not."""

from __future__ import annotations

import unittest
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from quietsum.contracts import TaskContract
from quietsum.learning import clipped_sum, cross_entropy, private_steps
from quietsum.mechanisms import RandomSource
from quietsum.plan import LocalOrders, PartyFacts
from quietsum.tasks import AnyTask, FederatedNumpy, FederatedTorch, Metrics, Rows, Settings, Task
from quietsum.tasks.gallery.digits import DigitsTask
from quietsum.tasks.gallery.heart import HeartTask

PROMISES = sorted(name for name in dir(TaskContract) if name.startswith("test_"))
Floats = NDArray[np.float64]
Fits = Callable[[tuple[Any, ...]], NDArray[np.bool_]]
SIZES = {"north": 20, "south": 12}


# -------------------------------------------------------------------------------- honest tasks, one of each kind


class Numbers:
    """A numpy task: least squares on three features."""

    name, title = "numbers", "a line through made-up points"
    dimension = 3

    def parties(self) -> tuple[PartyFacts, ...]:
        return tuple(PartyFacts(name=name, dataset=f"points-{name}", size=size) for name, size in SIZES.items())

    def initial(self) -> Floats:
        return np.zeros(3)

    def draw(self, seed: int, count: int) -> Rows:
        rng = np.random.default_rng(seed)
        features = rng.normal(size=(count, 3))
        return Rows(features=features, labels=features @ np.array([1.0, -2.0, 0.5]) + rng.normal(size=count))

    def rows(self, party: str) -> Rows:
        return self.draw(len(party), SIZES[party])

    def gradients(self, params: Floats, features: Floats, labels: Floats) -> Floats:
        misses = (features * params).sum(axis=1) - labels
        return np.asarray(misses[:, None] * features)

    def example(self) -> Rows:
        return Rows(features=np.ones((2, 3)), labels=np.zeros(2))

    def evaluate(self, params: Floats) -> Metrics:
        public = self.draw(7, 50)
        error = float(np.square(public.features @ params - public.labels).mean())
        return Metrics(values={"error": error}, on="50 made-up points that need no protection")


class Own(Numbers):
    """A task that trains by code of its own, with every part that such a class may have."""

    follows_orders = True

    def __init__(self) -> None:
        self.fits: Fits | None = None
        self.changed: dict[str, Rows] = {}

    def kept(self, party: str) -> Rows:
        rows = self.changed[party] if party in self.changed else self.rows(party)
        if self.fits is None:
            return rows
        chosen = self.fits((rows.features, rows.labels))
        return Rows(features=rows.features[chosen], labels=rows.labels[chosen])

    def train(self, party: str, params: Floats, orders: LocalOrders, rng: RandomSource) -> Floats:
        return self.steps(self.kept(party), params, orders, rng)

    def steps(self, rows: Rows, params: Floats, orders: LocalOrders, rng: RandomSource) -> Floats:
        return private_steps(
            self, params, rows, steps=orders.steps, sampling=orders.sampling, mechanism=orders.mechanism,
            expected_batch=orders.expected_batch, learning_rate=orders.learning_rate, momentum=orders.momentum, rng=rng,
        )  # fmt: skip

    def clipped_sum(
        self, party: str, params: Floats, orders: LocalOrders, rng: RandomSource, *, max_norm: float
    ) -> Floats:
        return clipped_sum(self, params, self.kept(party), sampling=orders.sampling, max_norm=max_norm, rng=rng)

    def train_many(
        self, parties: Sequence[str], params: Floats, orders: Sequence[LocalOrders], rng: RandomSource
    ) -> Any:
        for party, each in zip(parties, orders, strict=True):
            yield (party,), self.train(party, params, each, rng)[None]

    def leave_out(self, fits: Fits) -> None:
        self.fits = fits

    def labels_of(self, party: str) -> Floats:
        return self.rows(party).labels

    def with_rows(self, parties: Sequence[str], change: Callable[..., Any]) -> Own:
        other = type(self)()
        for party in parties:
            rows = self.rows(party)
            features, labels = change(party, rows.features, rows.labels)
            other.changed[party] = Rows(features=features, labels=labels)
        return other

    def class_rows(self) -> Mapping[str, NDArray[np.int64]]:
        return {"class 0": np.array([0]), "class 1": np.array([1, 2])}

    def confusion(self, params: Floats) -> NDArray[np.int64]:
        return np.array([[20, 5], [4, 21]])


class Alone(Own):
    """A class with nothing but the required parts; ``None`` hides a part of :class:`Own`."""

    follows_orders = False
    clipped_sum = train_many = leave_out = labels_of = with_rows = None  # type: ignore[assignment]


class Clinics:
    """A torch task with protected records at two sites, whose sizes are declared."""

    name, title, size, public = "clinics", "made-up visits", 40, ""
    loss = staticmethod(cross_entropy)
    settings = Settings(learning_rate=1.0, optimizer="sgd", training={"batch_size": 10, "epochs": 1})
    site_sizes: Mapping[str, int] = {"east": 25, "west": 20}

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2))

    def draw(self, seed: int) -> tuple[Tensor, Tensor]:
        labels = torch.arange(40) % 2
        return torch.randn(40, 4, generator=torch.Generator().manual_seed(seed)) + labels[:, None], labels

    def records(self) -> tuple[Tensor, ...]:
        return self.draw(1)

    def sites(self) -> Sequence[str]:
        return ["east"] * 22 + ["west"] * 18

    def example(self) -> tuple[Tensor, ...]:
        return torch.zeros(1, 4), torch.zeros(1, dtype=torch.int64)

    def evaluate(self, model: nn.Module) -> Metrics:
        values, labels = self.draw(2)
        with torch.no_grad():
            right = (model(values).argmax(1) == labels).double().mean()
        return Metrics(values={"accuracy": float(right)}, on="40 made-up visits")


def federated_digits() -> AnyTask:
    return FederatedTorch(DigitsTask(), split="iid", parties=8)


SINGLE = {"tolerance": 1e-5}
CASES: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "heart": (HeartTask.from_package, {"parties_tried": 4}),
    "heart, root set": (lambda: HeartTask.from_options({"root": "made-up"}), {}),
    "digits": (federated_digits, SINGLE),
    "numpy": (Numbers, {}),
    "own code": (Own, {}),
    "own code, required parts": (Alone, {}),
    "torch": (Clinics, SINGLE),
}
SKIPPED = {
    ("own code, required parts", "test_one_record_moves_a_sum_by_its_bound"),
    ("own code, required parts", "test_replaced_rows_are_those_of_the_copy"),
    ("own code, required parts", "test_the_noise_is_that_of_the_orders"),
}


def contract_of(make: Callable[[], Any], **fields: Any) -> TaskContract:
    contract: TaskContract = type("Contract", (TaskContract,), {"make": lambda self: make(), **fields})()
    return contract


@pytest.mark.parametrize(("case", "promise"), [(case, promise) for case in CASES for promise in PROMISES])
def test_honest_tasks_keep_the_contract(case: str, promise: str) -> None:
    make, fields = CASES[case]
    try:
        getattr(contract_of(make, **fields), promise)()
    except unittest.SkipTest as skipped:  # a suite that skipped by itself would look like one that passes
        assert (case, promise) in SKIPPED, f"{promise} was skipped: {skipped}"
    else:
        assert (case, promise) not in SKIPPED, "the table of what is skipped is out of date"


# ------------------------------------------------------------------------------------------------- broken tasks


class Nameless(Numbers):
    """Its title would break a report."""

    title = "two\nlines"


class CountsItsRows(Numbers):
    """Its size tells how many rows there are."""

    def parties(self) -> tuple[PartyFacts, ...]:
        return (PartyFacts(name="north", dataset="points", size=len(self.rows("north"))),)


class LearnsItsStart(Numbers):
    """Its first parameters are means of protected rows."""

    def initial(self) -> Floats:
        return self.rows("north").features.mean(axis=0)


class RehearsesOnRows(Numbers):
    """The coordinator, which has no rows, could not rehearse it; a site would read rows before they are charged."""

    def rehearse_unseen(self, orders: LocalOrders | None = None) -> None:
        rows = self.rows("north")
        self.gradients(self.initial(), rows.features, rows.labels)


class Nothing(Numbers):
    """A declared size of zero has no sample rate."""

    def parties(self) -> tuple[PartyFacts, ...]:
        return (PartyFacts(name="north", dataset="points", size=0),)


class Twins(Numbers):
    """Two parties of one name share an account."""

    def parties(self) -> tuple[PartyFacts, ...]:
        return super().parties() + super().parties()


class RandomStart(Numbers):
    """Every process starts from other parameters."""

    def initial(self) -> Floats:
        return np.random.normal(size=3)


class SharedStart(Numbers):
    """Who writes into the first parameters changes those of everyone."""

    def __init__(self) -> None:
        self.first = np.zeros(3)

    def initial(self) -> Floats:
        return self.first


class EndlessStart(Numbers):
    """A parameter is infinite."""

    def initial(self) -> Floats:
        return np.array([0.0, np.inf, 0.0])


class CentresItsBatch(Numbers):
    """Features minus the mean of the batch: every record is in every gradient."""

    def gradients(self, params: Floats, features: Floats, labels: Floats) -> Floats:
        return super().gradients(params, features - features.mean(axis=0), labels)


class AveragesItsLoss(Clinics):
    """The loss of the batch at each record."""

    loss = staticmethod(lambda model, batch: cross_entropy(model, batch).mean().expand(len(batch[0])))


class NormsItsBatch(Clinics):
    """Batch norm written by hand, where no layer would give it away."""

    loss = staticmethod(lambda model, batch: cross_entropy(model, (batch[0] - batch[0].mean(0), batch[1])))


class ScoresItsRows(Numbers):
    """A score on protected rows would have to be charged."""

    def evaluate(self, params: Floats) -> Metrics:
        rows = self.rows("north")
        return Metrics(values={"error": float(np.abs(rows.features @ params - rows.labels).mean())}, on="points")


class ScoresNothing(Numbers):
    """A score that is not defined is left out, and no other one is there."""

    def evaluate(self, params: Floats) -> Metrics:
        return Metrics(values={"auc": float("nan")}, on="50 points of one class")


class WritesWhileScoring(Numbers):
    """It normalises the parameters that it was given."""

    def evaluate(self, params: Floats) -> Metrics:
        found = super().evaluate(params)
        params *= 0.5
        return found


class Seeds(Numbers):
    """It makes itself repeatable at the cost of everyone else in the process."""

    def rows(self, party: str) -> Rows:
        np.random.seed(0)
        return super().rows(party)


class SinglePrecision(Own):
    """Its change is in float32."""

    def train(self, party: str, params: Floats, orders: LocalOrders, rng: RandomSource) -> Any:
        return super().train(party, params, orders, rng).astype(np.float32)


class MovesTheModel(Own):
    """It trains in place."""

    def train(self, party: str, params: Floats, orders: LocalOrders, rng: RandomSource) -> Floats:
        change = super().train(party, params, orders, rng)
        params += change
        return change


class QuietWhenEmpty(Own):
    """Without a record drawn it sends zeros, which tells that none was drawn."""

    def train(self, party: str, params: Floats, orders: LocalOrders, rng: RandomSource) -> Floats:
        if not len(orders.sampling.draw(len(self.kept(party)), rng)):
            return np.zeros(3)
        return super().train(party, params, orders, rng)


class HalfTheNoise(Own):
    """It divides by twice the expected batch and doubles the rest, so that the noise is half."""

    def train(self, party: str, params: Floats, orders: LocalOrders, rng: RandomSource) -> Floats:
        change = super().train(party, params, orders, rng)
        return change if orders.mechanism is None else change / 2


class OwnCoins(Own):
    """Its noise comes from another generator than the one it is given."""

    def train(self, party: str, params: Floats, orders: LocalOrders, rng: RandomSource) -> Floats:
        change = super().train(party, params, orders, rng)
        return change if orders.mechanism is None else change + np.random.default_rng().normal(size=3)


class ClipsNothing(Own):
    """Its sum is of gradients as long as they are."""

    def clipped_sum(
        self, party: str, params: Floats, orders: LocalOrders, rng: RandomSource, *, max_norm: float
    ) -> Floats:
        return super().clipped_sum(party, params, orders, rng, max_norm=100 * max_norm)


class KeepsAll(Own):
    """What it was told to leave out is trained on."""

    def leave_out(self, fits: Fits) -> None: ...


class ForgetsOne(Own):
    """The last of the parties side by side is not trained."""

    def train_many(
        self, parties: Sequence[str], params: Floats, orders: Sequence[LocalOrders], rng: RandomSource
    ) -> Any:
        return super().train_many(parties[:-1], params, orders[:-1], rng)


class OddLabels(Own):
    """It has a label too few."""

    def labels_of(self, party: str) -> Floats:
        return super().labels_of(party)[1:]


class ChangesItself(Own):
    """The drill's rows are the task's own from then on."""

    def with_rows(self, parties: Sequence[str], change: Callable[..., Any]) -> Own:
        other = super().with_rows(parties, change)
        self.changed = other.changed
        return other


class SharesAPlace(Own):
    """A parameter belongs to two classes."""

    def class_rows(self) -> Mapping[str, NDArray[np.int64]]:
        return {"class 0": np.array([0, 1]), "class 1": np.array([1, 2])}


MUTANTS: dict[type[Numbers] | type[Clinics], str] = {
    Nameless: "test_it_has_a_name_and_a_title",
    CountsItsRows: "test_the_description_reads_no_record",
    LearnsItsStart: "test_the_description_reads_no_record",
    RehearsesOnRows: "test_a_rehearsal_unseen_reads_no_record",
    Nothing: "test_sizes_are_declared",
    Twins: "test_sizes_are_declared",
    RandomStart: "test_every_process_starts_from_the_same_parameters",
    SharedStart: "test_every_process_starts_from_the_same_parameters",
    EndlessStart: "test_every_process_starts_from_the_same_parameters",
    CentresItsBatch: "test_a_record_has_a_gradient_of_its_own",
    AveragesItsLoss: "test_a_record_has_a_gradient_of_its_own",
    NormsItsBatch: "test_a_record_has_a_gradient_of_its_own",
    ScoresItsRows: "test_scores_are_not_those_of_protected_records",
    ScoresNothing: "test_scores_are_not_those_of_protected_records",
    WritesWhileScoring: "test_a_score_changes_nothing",
    Seeds: "test_random_states_of_the_process_are_left_alone",
    SinglePrecision: "test_training_returns_a_finite_change",
    MovesTheModel: "test_training_returns_a_finite_change",
    QuietWhenEmpty: "test_an_empty_batch_is_noise_alone",
    HalfTheNoise: "test_the_noise_is_that_of_the_orders",
    OwnCoins: "test_all_randomness_is_that_of_the_source",
    ClipsNothing: "test_one_record_moves_a_sum_by_its_bound",
    KeepsAll: "test_what_is_announced_is_there",
    ForgetsOne: "test_what_is_announced_is_there",
    OddLabels: "test_shown_records_belong_together",
    ChangesItself: "test_replaced_rows_are_those_of_the_copy",
    SharesAPlace: "test_answers_fit_the_parameters",
}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_task_that_breaks_a_promise_is_caught(mutant: type[Any]) -> None:
    fields = SINGLE if issubclass(mutant, Clinics) else {}
    with pytest.raises(AssertionError):
        getattr(contract_of(mutant, **fields), MUTANTS[mutant])()


def test_a_task_that_does_what_it_does_not_announce_is_caught() -> None:
    """Adapters announce what is there, so only a class with :class:`~quietsum.tasks.Task` as its base can do this."""

    class Unannounced(Task):
        name, title, dimension = "numbers", "a line through made-up points", 3
        own = FederatedNumpy(Numbers())

        def parties(self) -> tuple[PartyFacts, ...]:
            return self.own.parties()

        def initial(self) -> Floats:
            return self.own.initial()

        def evaluate(self, params: Floats) -> Metrics:
            return self.own.evaluate(params)

        def train(self, party: str, params: Floats, orders: LocalOrders, rng: RandomSource) -> Floats:
            return self.own.train(party, params, orders, rng)

    contract_of(Unannounced).test_what_is_not_announced_is_refused()  # the control

    class Answers(Unannounced):
        def leave_out(self, fits: Fits) -> None: ...

    with pytest.raises(AssertionError, match="not announced"):
        contract_of(Answers).test_what_is_not_announced_is_refused()


def test_every_promise_has_a_broken_task_that_it_catches() -> None:
    assert {*MUTANTS.values(), "test_what_is_not_announced_is_refused"} == set(PROMISES)
