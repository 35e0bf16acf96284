"""The promises of every task, as tests that a task of your own can run as well.

A task is the one part of a run that a user writes, and the trainer cannot look inside it: sizes counted from protected
rows, features over the whole batch, a score on training rows or noise from another generator break a guarantee, and the
run looks as good as before, often better. The suite asks what :class:`~quietsum.tasks.Task` says of each method. It
takes what a user writes (numpy, torch or code of one's own) as it is and puts it into its adapter.

Whether a training step is as private as it claims is another question: :mod:`quietsum.selfcheck` asks it.
"""

from __future__ import annotations

import random
import sys
import unittest
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from quietsum.contracts.rules import repeat_coins
from quietsum.errors import DataMissing, InvalidParameter
from quietsum.mechanisms import ClippedSum, Mode
from quietsum.plan import LocalOrders, PartyFacts
from quietsum.sampling import Everyone, Poisson
from quietsum.tasks import AnyTask, Metrics, Task, as_task, optional_part

__all__ = ["TaskContract"]

Floats = NDArray[np.float64]

PRIVATE = (
    "rows", "records", "people", "sites", "records_of", "labels_of", "people_of", "train", "train_many", "clipped_sum",
)  # fmt: skip
"""The methods of a user's class, and of a task, that look at records."""


class TaskContract:
    """The suite. A subclass says how its task is made: anew for each call, and of public options alone.

    ``tolerance`` is what one record's loss or gradient may differ by beside other records, and two trainings with the
    same coins, relative to the largest number among them; 0, the default, asks for the same bits, as a numpy task can
    give them. Single precision needs 1e-5 or so. ``parties_tried`` is how many of the parties are tried.
    """

    tolerance = 0.0
    parties_tried = 3

    def make(self) -> AnyTask:
        """The task under test, a new object each time."""
        raise NotImplementedError("say in a subclass how your task is made")

    def orders(self, **changes: Any) -> LocalOrders:
        """Two steps on all records of a party, without noise; ``changes`` replace fields."""
        values: dict[str, Any] = {"steps": 2, "sampling": Everyone(), "expected_batch": 16.0, "learning_rate": 0.1}
        return LocalOrders(**{**values, **changes})

    # ------------------------------------------------------------------------------- words for the tests

    noise = ClippedSum(max_norm=0.5, noise_multiplier=2.0, mode=Mode.FAST)
    no_record = Poisson(rate=1e-12)

    def task(self) -> Task:
        """The task under test, in its adapter if it needs one."""
        return as_task(self.make())

    def lock(self) -> Task:
        """The task with records that cannot be read: a method that reads them fails the test.

        The records of a public torch task may be counted, so its ``sites`` and ``people`` remain.
        """
        task = self.task()
        own = getattr(task, "task", task)
        public = bool(str(getattr(own, "public", "")).strip())
        for name in PRIVATE:
            if callable(getattr(own, name, None)) and not (public and name in ("sites", "people")):
                try:
                    object.__setattr__(own, name, _refuse_to_read(name))
                except AttributeError:
                    raise unittest.SkipTest("records cannot be locked in a class with __slots__") from None
        return task

    def names(self, task: Task) -> tuple[str, ...]:
        """The parties that are tried."""
        return tuple(party.name for party in task.parties()[: self.parties_tried])

    def check_change(self, task: Task, change: object) -> Floats:
        """``change`` is a finite float64 vector with a number for each parameter."""
        assert isinstance(change, np.ndarray) and change.dtype == np.float64, "a change is a float64 array"
        assert change.shape == (task.dimension,), f"a change has shape ({task.dimension},), not {change.shape}"
        assert np.isfinite(change).all(), "a change is finite"
        return change

    def check_same(self, one: Floats, other: Floats) -> None:
        """Both are equal up to the tolerance."""
        largest = float(np.abs(other).max(initial=0.0))
        np.testing.assert_allclose(one, other, rtol=0, atol=self.tolerance * largest)

    # ---------------------------------------------------------------------------------- what it says of itself

    def test_it_has_a_name_and_a_title(self) -> None:
        """One line each."""
        task = self.task()
        for text in (task.name, task.title):
            assert isinstance(text, str) and text.strip() and text.isprintable(), "a name and a title are one line"

    def test_the_description_reads_no_record(self) -> None:
        """Name, sizes, first parameters and announcements are public, so no protected value may be behind them."""
        task = self.lock()
        facts, first = task.parties(), task.initial()
        assert facts and first.shape == (task.dimension,), "parties and parameters are known without a record"
        _ = (task.name, task.title, task.person, task.root_size, task.follows_orders, task.sums_gradients)
        _ = (task.trains_many, task.leaves_out, task.class_rows())
        for party in self.names(task):
            with suppress(DataMissing):  # its files may be elsewhere
                task.look_for_data(party)

    def test_a_rehearsal_unseen_reads_no_record(self) -> None:
        """Neither does training on nothing, which stands in for training that failed."""
        task, orders = self.lock(), self.orders(mechanism=self.noise)
        task.rehearse_unseen()
        task.rehearse_unseen(orders)
        change = task.train_on_nothing(task.initial(), orders, repeat_coins(1))
        if change is not None:
            assert self.check_change(task, change).any(), "training on nothing is the noise of its steps"

    def test_sizes_are_declared(self) -> None:
        """There is a party, each is named once and has a size above zero, and two processes are given the same."""
        facts = tuple(self.task().parties())
        assert facts and all(isinstance(party, PartyFacts) for party in facts), "parties() names at least one party"
        assert len({party.name for party in facts}) == len(facts), "each party is named once"
        assert all(party.size > 0 for party in facts), "a declared size is above zero"
        assert facts == tuple(self.task().parties()), "another process gets the same facts"

    def test_every_process_starts_from_the_same_parameters(self) -> None:
        """Finite ones, in any random state of the process, and the caller may write into them."""
        found = []
        for seed in (1, 2):
            with _seed(seed):
                task = self.task()
                first = task.initial()
            assert isinstance(first, np.ndarray) and first.dtype == np.float64, "parameters are a float64 array"
            assert first.shape == (task.dimension,) and np.isfinite(first).all(), "one finite number for each"
            before = first.copy()
            first += 1
            np.testing.assert_array_equal(task.initial(), before)
            found.append(before)
        np.testing.assert_array_equal(found[0], found[1])

    # -------------------------------------------------------------------------------------------- training

    def test_training_returns_a_finite_change(self) -> None:
        """With and without record-level noise, at each party; the parameters it was given stay as they were."""
        task = self.task()
        for party in self.names(task):
            for mechanism in (None, self.noise):
                params = task.initial()
                self.check_change(task, task.train(party, params, self.orders(mechanism=mechanism), repeat_coins(1)))
                np.testing.assert_array_equal(params, task.initial())

    def test_an_empty_batch_is_noise_alone(self) -> None:
        """Without a record drawn, the noise is added all the same: that none was drawn is private."""
        task = self.task()
        party, params = self.names(task)[0], task.initial()
        noisy = self.orders(mechanism=self.noise, sampling=self.no_record)
        change = self.check_change(task, task.train(party, params, noisy, repeat_coins(1)))
        assert change.any(), "a step on no records is noise, not nothing"
        if task.follows_orders:
            plain = task.train(party, params, self.orders(sampling=self.no_record), repeat_coins(1))
            assert not self.check_change(task, plain).any(), "a step on no records changes nothing without noise"

    def test_the_noise_is_that_of_the_orders(self) -> None:
        """A step on no records is − rate · noise / expected batch, whose deviation is known."""
        task = self.task()
        if not task.follows_orders:
            raise unittest.SkipTest("the steps of this task are its own")
        orders = self.orders(steps=1, mechanism=self.noise, sampling=self.no_record)
        party, params = self.names(task)[0], task.initial()
        draws = max(1, -(-600 // task.dimension))
        noise = np.concatenate([task.train(party, params, orders, repeat_coins(seed)) for seed in range(draws)])
        expected = orders.learning_rate * self.noise.noise_multiplier * self.noise.max_norm / orders.expected_batch
        ratio = float(noise.std()) / expected
        assert 0.8 < ratio < 1.25, f"the noise has {ratio:.2f} times the deviation that the orders ask for"

    def test_all_randomness_is_that_of_the_source(self) -> None:
        """The same coins give the same change, and others another one."""
        task = self.task()
        party, params, orders = self.names(task)[0], task.initial(), self.orders(mechanism=self.noise)
        one, same, other = (task.train(party, params, orders, repeat_coins(seed)) for seed in (7, 7, 8))
        self.check_same(one, same)
        assert (one != other).any(), "other coins give other noise"

    def test_random_states_of_the_process_are_left_alone(self) -> None:
        """Python's, numpy's and torch's: another part of the program may have seeded them, or may draw from them."""
        before = _random_states()
        task = self.task()
        params = task.initial()
        for mechanism in (None, self.noise):
            task.train(self.names(task)[0], params, self.orders(mechanism=mechanism), repeat_coins(1))
        task.evaluate(params)
        after = _random_states()
        for name, state in before.items():
            assert repr(state) == repr(after[name]), f"the random state of {name} was moved or seeded"

    # ------------------------------------------------------------------------------------- single records

    def test_a_record_has_a_gradient_of_its_own(self) -> None:
        """Its loss or its gradient is what it is without the others: a mean over the batch would carry them."""
        together, alone = self._pieces()
        assert len(together) == len(alone), f"{len(alone)} records have one row each, not {len(together)}"
        self.check_same(together, alone)

    def _pieces(self, count: int = 6) -> tuple[Floats, Floats]:
        """Losses (torch) or gradients (numpy) of some records, asked for together and one by one."""
        task = self.task()
        own: Any = getattr(task, "task", task)
        records = task.records_of(self.names(task)[0])
        loss, gradients = optional_part(own, "loss"), optional_part(own, "gradients")
        if records is None or (gradients is None and loss is None):
            raise unittest.SkipTest("this task shows neither records nor a loss or gradient of each")
        parts = [tuple(part[some] for part in records) for some in (slice(0, count), *map(_only, range(count)))]
        parts = [part for part in parts if len(part[0])]
        if gradients is not None:
            params = task.initial() + 0.01
            found = [np.asarray(gradients(params, *part), dtype=np.float64) for part in parts]
        else:
            assert loss is not None
            model = own.model()
            found = [loss(model, part).detach().double().cpu().numpy() for part in parts]
            again = loss(model, parts[0]).detach().double().cpu().numpy()
            if not np.allclose(found[0], again, rtol=0, atol=self.tolerance * float(np.abs(again).max(initial=0.0))):
                raise unittest.SkipTest("this model draws dropout anew for each batch")
        return found[0], np.concatenate(found[1:])

    def test_one_record_moves_a_sum_by_its_bound(self) -> None:
        """Where gradients are summed and records may be left out: the sum with one record, and without it."""
        task = self.task()
        if not (task.sums_gradients and task.leaves_out):
            raise unittest.SkipTest("this task sums no gradients, or leaves no records out")
        party, params, bound = self.names(task)[0], task.initial(), 0.25
        whole = self.check_change(task, task.clipped_sum(party, params, self.orders(), repeat_coins(1), max_norm=bound))
        task.leave_out(lambda records: np.arange(len(records[0])) > 0)
        others = task.clipped_sum(party, params, self.orders(), repeat_coins(1), max_norm=bound)
        moved = float(np.linalg.norm(whole - self.check_change(task, others)))
        assert moved <= bound * (1 + 1e-5), f"one record moves the sum by {moved:.4g}, its bound is {bound}"

    # ---------------------------------------------------------------------------------- what may be offered

    def test_what_is_not_announced_is_refused(self) -> None:
        """With :class:`~quietsum.errors.InvalidParameter`, so that a plan is never run without a part that it needs."""
        task = self.task()
        party, params, orders = self.names(task)[0], task.initial(), self.orders()
        unoffered: list[Callable[[], object]] = []
        if not task.sums_gradients:
            unoffered.append(lambda: task.clipped_sum(party, params, orders, repeat_coins(1), max_norm=1.0))
        if not task.trains_many:
            unoffered.append(lambda: list(task.train_many([party], params, [orders], repeat_coins(1))))
        if not task.leaves_out:
            unoffered.append(lambda: task.leave_out(lambda records: np.ones(len(records[0]), dtype=np.bool_)))
        if task.root_size is None:
            unoffered.append(lambda: task.trial(params, orders, repeat_coins(1)))
        for ask in unoffered:
            try:
                ask()
            except InvalidParameter:
                continue
            raise AssertionError("a part that is not announced must raise InvalidParameter")

    def test_what_is_announced_is_there(self) -> None:
        """A sum of clipped gradients, training side by side, leaving records out, a trial on a root set."""
        task = self.task()
        names, params, orders = self.names(task), task.initial(), self.orders()
        if task.sums_gradients:
            empty = self.orders(sampling=self.no_record)
            total = self.check_change(task, task.clipped_sum(names[0], params, empty, repeat_coins(1), max_norm=1.0))
            assert not total.any(), "the sum over no records is zero"
        if task.trains_many:
            found: dict[str, Floats] = {}
            for some, changes in task.train_many(names, params, [orders] * len(names), repeat_coins(1)):
                assert len(some) == len(changes) and not set(some) & set(found), "each party is trained once"
                found.update(zip(some, np.asarray(changes, dtype=np.float64), strict=True))
            assert set(found) == set(names), "every party is trained"
            for party in names:
                alone = task.train(party, params, orders, repeat_coins(1))
                np.testing.assert_allclose(self.check_change(task, found[party]), alone, rtol=1e-3, atol=1e-5)
        if task.leaves_out:
            task.leave_out(lambda records: np.zeros(len(records[0]), dtype=np.bool_))
            change = self.check_change(task, task.train(names[0], params, orders, repeat_coins(1)))
            assert not change.any(), "with all records left out there is nothing to learn from"
        if task.root_size:
            trial = self.task().trial(params, orders, repeat_coins(1))
            self.check_change(task, trial.update())
            assert np.isfinite(trial.losses(np.zeros((2, task.dimension)))).all(), "losses of the root set are finite"

    def test_shown_records_belong_together(self) -> None:
        """``records_of`` has parts of one length, and ``labels_of`` a label for each."""
        task = self.task()
        for party in self.names(task):
            records = task.records_of(party)
            if records is None:
                continue
            assert len({len(part) for part in records}) == 1, "row i of every part is record i"
            try:
                labels = task.labels_of(party)
            except InvalidParameter:  # records without a single label
                continue
            assert labels is None or len(labels) == len(records[0]), "there is a label for each record"

    def test_replaced_rows_are_those_of_the_copy(self) -> None:
        """``with_rows`` leaves the task as it was; unchanged rows train as before."""
        task = self.task()
        party, params, orders = self.names(task)[0], task.initial(), self.orders()
        expected = task.train(party, params, orders, repeat_coins(1))
        try:
            same = task.with_rows([party], lambda name, features, labels: (features, labels))
        except InvalidParameter:  # its records have no labels, a text's next bytes for instance
            same = None
        if same is None:
            raise unittest.SkipTest("the records of this task cannot be replaced")
        self.check_same(same.train(party, params, orders, repeat_coins(1)), expected)
        other = task.with_rows([party], lambda name, features, labels: (0 * features + 1, labels))
        assert other is not None
        other.train(party, params, orders, repeat_coins(1))
        self.check_same(task.train(party, params, orders, repeat_coins(1)), expected)

    def test_answers_fit_the_parameters(self) -> None:
        """Rows of the last layer lie in the vector and apart; a table of confusion is square and counts."""
        task = self.task()
        rows = [np.asarray(places) for places in task.class_rows().values()]
        if rows:
            places = np.concatenate(rows)
            assert places.min() >= 0 and places.max() < task.dimension, "a place lies in the vector of parameters"
            assert len(np.unique(places)) == len(places), "no parameter belongs to two classes"
        confusion = task.confusion(task.initial())
        if confusion is not None:
            assert confusion.ndim == 2 and confusion.shape[0] == confusion.shape[1], "classes by classes"
            assert (confusion >= 0).all() and confusion.sum() > 0, "it counts rows"
        slopes = task.slopes(task.initial(), most=5)
        if slopes is not None:
            slope, features, labels = slopes
            assert 0 < len(features) == len(labels) <= 5, "at most so many rows as are asked for"
            scores, gradient = slope(features, int(labels[0]))
            assert len(scores) == len(features) and gradient.shape == features.shape, "a slope for each row"

    # ----------------------------------------------------------------------------------------------- scores

    def test_scores_are_not_those_of_protected_records(self) -> None:
        """``evaluate`` says on which data it stands, and reads no training record: that would have to be charged."""
        task = self.lock()
        metrics = task.evaluate(task.initial())
        assert isinstance(metrics, Metrics) and metrics.values, "there is a score"
        assert all(metrics.stands_on(name).strip() for name in metrics.values), "every score names its data"

    def test_a_score_changes_nothing(self) -> None:
        """Neither the parameters, nor the next score, nor the training after it."""
        task = self.task()
        party, params, orders = self.names(task)[0], task.initial(), self.orders()
        expected, scores = task.train(party, params, orders, repeat_coins(1)), task.evaluate(params).values
        other = params + 0.5
        task.evaluate(other)
        np.testing.assert_array_equal(other, params + 0.5)
        assert task.evaluate(params).values == scores, "the same parameters have the same score"
        self.check_same(task.train(party, params, orders, repeat_coins(1)), expected)


def _only(place: int) -> slice:
    return slice(place, place + 1)


def _refuse_to_read(name: str) -> Callable[..., NoReturn]:
    def refuse(*values: object, **named: object) -> NoReturn:
        raise AssertionError(f"{name}() was called, and nothing here may look at a record")

    return refuse


def _random_states() -> dict[str, object]:
    states: dict[str, object] = {"Python": random.getstate(), "numpy": _numpy_state()}
    if (torch := sys.modules.get("torch")) is not None:
        states["torch"] = torch.get_rng_state().numpy().tobytes()
    return states


def _numpy_state() -> tuple[bytes, int]:
    state = np.random.get_state(legacy=False)
    assert isinstance(state, dict)
    return state["state"]["key"].tobytes(), int(state["state"]["pos"])


@contextmanager
def _seed(seed: int) -> Iterator[None]:
    """Global generators in another state, for code that would draw from them; afterwards they are as they were."""
    python, arrays, torch = random.getstate(), np.random.get_state(), sys.modules.get("torch")
    tensors = None if torch is None else torch.get_rng_state()
    random.seed(seed)
    np.random.seed(seed)
    if torch is not None:
        torch.manual_seed(seed)
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(arrays)
        if torch is not None:
            torch.set_rng_state(tensors)
