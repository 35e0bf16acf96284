"""The promises of every robust rule, as tests that a rule of your own can run as well."""

from __future__ import annotations

import dataclasses
import os
import unittest
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from quietsum.aggregation import Matrix, RobustFold, Rule, Sent, Trial, Vector, Verdict, most_attackers
from quietsum.errors import QuietsumError, TooFewParties
from quietsum.mechanisms import TEST_SWITCH, RandomSource, randomness_for_tests

__all__ = ["HonestTrial", "RuleContract", "repeat_coins"]

HUGE = 1.7e308


class HonestTrial:
    """A root set whose honest update is ``centre``; the loss of a step is its squared distance from it."""

    def __init__(self, centre: Vector) -> None:
        self.centre = centre

    def update(self) -> Vector:
        """The honest update."""
        return self.centre.copy()

    def losses(self, steps: Matrix) -> Vector:
        """Squared distances, finite."""
        with np.errstate(over="ignore"):
            squares = np.sum((np.asarray(steps, dtype=np.float64) - self.centre) ** 2, axis=1)
        return np.asarray(np.minimum(squares, HUGE))


class RuleContract:
    """The suite. A subclass says how its rule is made.

    ``count`` rows of ``dimension`` numbers are sent. ``bounded`` is how many times the longest honest update the step
    may lie from the honest mean under attack; it grows with (n − f)/(n − 2f), as it must for the best of rules.
    ``averages`` says that updates which are all the same have themselves as step. ``tolerance`` is what two orders of
    the same rows may differ by, relative to the longest of them. ``withstands`` is False for a rule whose facts promise
    no bound under attack, ``shuffles`` True for one that draws groups of rows, ``alone`` True for one that also
    leaves out or refuses rows that are not finite where no fold did so before it.
    """

    count = 21
    dimension = 40
    bounded = 3.0
    averages = True
    tolerance = 1e-9
    withstands = True
    shuffles = False
    alone = False

    def make(self) -> Rule:
        """The rule under test."""
        raise NotImplementedError("say in a subclass how your rule is made")

    # ------------------------------------------------------------------------------- words for the tests

    def honest(self, count: int | None = None, seed: int = 0) -> Matrix:
        """Updates that agree on a direction, with noise of the same size."""
        rng = np.random.default_rng([seed, 7])
        centre = 0.5 * rng.normal(size=self.dimension)
        return np.asarray(centre + 0.5 * rng.normal(size=(count or self.count, self.dimension)))

    def trial(self, updates: Matrix) -> Trial | None:
        """What a rule that asks for a trial gets: an honest root set."""
        return HonestTrial(np.asarray(self.honest().mean(axis=0))[: updates.shape[1]])

    def send(
        self, updates: Matrix, attackers: int = 0, *, places: NDArray[np.int64] | None = None, rng: int = 1
    ) -> Sent:
        """``updates`` of as many parties; the same coins for the same ``rng``."""
        rule = self.make()
        registered = self.count + len(updates)
        return Sent(
            updates=updates, attackers=attackers, registered=registered, rng=repeat_coins(rng),
            places=np.arange(len(updates)) if places is None else places,
            memory=rule.memory(registered, updates.shape[1]),
            trial=self.trial(updates) if rule.facts.needs_trial else None,
        )  # fmt: skip

    def most(self, count: int | None = None) -> int:
        """The largest f that the rule states for so many rows; skips the test if it does not work with so few."""
        found = most_attackers(self.make(), count or self.count)
        if found < 0:
            raise unittest.SkipTest("the rule does not work with so few rows, and says so")
        return found

    def check(self, sent: Sent, verdict: Verdict) -> Verdict:
        """``verdict``, whose parts have the right shapes and hold numbers."""
        count, dimension = sent.updates.shape
        assert verdict.step.shape == (dimension,) and verdict.step.dtype == np.float64, "the step is a float64 vector"
        assert np.isfinite(verdict.step).all(), "the step is finite"
        assert verdict.kept.shape == (count,) and verdict.kept.dtype == np.bool_, "kept marks rows"
        if verdict.weights is not None:
            assert verdict.weights.shape == (count,) and (verdict.weights >= 0).all(), "a weight a row"
        for name, values in verdict.statistics.items():
            assert values.shape == (count,), f"{name} is one number a row"
        assert all(not verdict.kept[row] and text for row, text in verdict.reasons.items()), (
            "reasons are for the left out"
        )
        expected = self.make().memory(sent.registered, dimension)
        assert set(verdict.memory) == set(expected), "memory keeps its slots"
        for slot, values in verdict.memory.items():
            assert values.shape == expected[slot].shape and np.isfinite(values).all(), f"{slot} keeps its shape"
        return verdict

    def run(
        self, updates: Matrix, attackers: int = 0, *, places: NDArray[np.int64] | None = None, rng: int = 1
    ) -> Verdict:
        """The checked verdict on ``updates``."""
        sent = self.send(updates, attackers, places=places, rng=rng)
        return self.check(sent, self.make().combine(sent))

    # ------------------------------------------------------------------------------- the promises

    def test_it_states_its_facts(self) -> None:
        """A name, texts, and a least n that grows with f."""
        rule = self.make()
        assert rule.name and rule.facts.title and rule.facts.source and rule.facts.breakdown
        least = [rule.facts.least(attackers) for attackers in range(12)]
        assert least[0] >= 0 and least == sorted(least) and least[-1] > least[0], "more attackers need more rows"
        assert rule.facts.sensitivity is None or rule.facts.sensitivity

    def test_neither_order_nor_names_change_anything(self) -> None:
        """The same rows in another order, or of other parties, have the same step, also under attack and with ties."""
        rng = np.random.default_rng(3)
        honest = self.honest()
        attacked = honest.copy()
        few = min(self.most(), 2)
        attacked[:few] = -4 * honest[:few]
        twice = honest.copy()
        twice[: self.count // 2] = twice[self.count // 2 : 2 * (self.count // 2)]
        for rows in (honest, attacked, twice):
            order = rng.permutation(len(rows))
            straight, found = self.run(rows, few), self.run(rows[order], few, places=order)
            others = self.run(rows, few, places=order + self.count)
            room = self.tolerance * float(np.abs(rows).max())
            np.testing.assert_allclose(found.step, straight.step, rtol=0, atol=room)
            np.testing.assert_allclose(others.step, straight.step, rtol=0, atol=room)
            kept, again = rows[straight.kept], rows[order][found.kept]
            np.testing.assert_array_equal(np.sort(kept, axis=0), np.sort(again, axis=0))

    def test_nothing_is_changed_in_place(self) -> None:
        """Neither the updates nor the memory, and both may be read-only."""
        rows = self.honest()
        sent = self.send(rows, min(self.most(), 2))
        before = {slot: values.copy() for slot, values in sent.memory.items()}
        rows_before = rows.copy()
        self.check(sent, self.make().combine(sent))
        np.testing.assert_array_equal(rows, rows_before)
        for slot, values in before.items():
            np.testing.assert_array_equal(sent.memory[slot], values)
        for values in (rows, *sent.memory.values()):
            values.setflags(write=False)
        self.check(sent, self.make().combine(sent))

    def test_the_same_coins_make_the_same_step(self) -> None:
        """All randomness is the source's."""
        rows = self.honest()
        np.testing.assert_array_equal(self.run(rows, rng=5).step, self.run(rows, rng=5).step)

    def test_a_round_goes_on_from_the_memory_of_the_last(self) -> None:
        """What a rule remembers is what it can start from."""
        memory = None
        for number in range(3):
            sent = self.send(self.honest(seed=number), min(self.most(), 2), rng=number)
            if memory is not None:
                sent = dataclasses.replace(sent, memory=memory)
            memory = self.check(sent, self.make().combine(sent)).memory

    def test_attackers_within_the_stated_number_cannot_carry_the_step_away(self) -> None:
        """The step stays among honest updates, no matter what up to f rows hold."""
        most = self.most()
        if not self.withstands:
            raise unittest.SkipTest("the rule states no bound under attack")
        for attackers in sorted({min(1, most), most // 2, most} - {0}):
            rows = self.honest()
            honest = rows[attackers:]
            room = self.bounded + 2 * (self.count - attackers) / max(self.count - 2 * attackers, 1)
            room *= float(np.linalg.norm(honest, axis=1).max())
            rng = np.random.default_rng(attackers)
            direction = rng.normal(size=self.dimension)
            for attack in (
                -100 * honest.mean(axis=0),
                1e6 * direction,
                1e150 * direction,
                np.full(self.dimension, HUGE),
                HUGE * np.sign(direction),
                1e4 * rng.normal(size=(attackers, self.dimension)),
                np.zeros(self.dimension),
            ):
                rows[:attackers] = attack
                step = self.run(rows, attackers).step
                away = _length(step - honest.mean(axis=0))
                assert away <= room, (
                    f"{attackers} of {self.count} carried the step {away:.3g} away, {room:.3g} is allowed"
                )

    def test_any_finite_numbers_have_a_finite_step(self) -> None:
        """The largest and the smallest float64, mixed and alone."""
        rng = np.random.default_rng(9)
        signs = rng.choice([-1.0, 1.0], size=(self.count, self.dimension))
        mixed = signs * 10.0 ** rng.uniform(-300, 300, size=signs.shape)
        for rows in (HUGE * signs, np.abs(HUGE * signs), 1e-310 * signs, 5e-324 * signs, mixed, 1e160 * signs):
            self.run(np.ascontiguousarray(rows))

    def test_rows_of_zeros_and_rows_that_are_the_same_have_a_step(self) -> None:
        """Zeros make zeros; identical rows make that row if the rule averages."""
        zeros = np.zeros((self.count, self.dimension))
        np.testing.assert_array_equal(self.run(zeros, min(self.most(), 2)).step, zeros[0])
        some = self.honest()
        some[: self.count // 3] = 0
        self.run(some)
        for scale in (1.0, 1e-200, 1e200):
            same = np.tile(scale * self.honest()[0], (self.count, 1))
            step = self.run(same, min(self.most(), 2)).step
            if self.averages:
                np.testing.assert_allclose(step, same[0], rtol=1e-9)

    def test_a_single_row_is_a_step_or_too_few(self) -> None:
        """Small cohorts work, or are refused by the stated least n."""
        rule = self.make()
        for count in (1, 2, 3, 4):
            rows = self.honest(count)
            if count < rule.facts.least(0):
                continue
            step = self.run(rows).step
            if count == 1 and self.averages:
                np.testing.assert_allclose(step, rows[0], rtol=1e-9)

    def test_more_attackers_than_stated_have_no_step(self) -> None:
        """A round with too few rows for f is refused."""
        most = self.most()
        names = tuple(f"p{index}" for index in range(self.count))
        fold = RobustFold(rule=self.make(), registered=names, attackers=most + 1, dimension=self.dimension)
        state, _ = fold.add_many(fold.start(), names, self.honest())
        try:
            fold.finish(state, repeat_coins(1))
        except TooFewParties:
            return
        raise AssertionError(f"{most + 1} attackers among {self.count} are more than the rule withstands")

    def test_rows_that_are_no_numbers_never_reach_the_step(self) -> None:
        """A fold leaves them out; a rule that is handed one refuses it, or has a finite step."""
        rows = self.honest()
        few = max(self.most() - 1, 0)
        names = tuple(f"p{index}" for index in range(self.count))
        rule = self.make()
        fold = RobustFold(
            rule=rule, registered=names, attackers=few, dimension=self.dimension,
            memory=rule.memory(self.count, self.dimension),
            trial=self.trial(rows) if rule.facts.needs_trial else None,
        )  # fmt: skip
        for bad in (np.nan, np.inf, -np.inf):
            for column in (0, self.dimension // 2, self.dimension - 1):
                spoilt = rows.copy()
                spoilt[1, column] = bad
                state, broken = fold.add_many(fold.start(), names, spoilt)
                assert set(broken) == {names[1]}
                assert np.isfinite(fold.finish(state, repeat_coins(1)).step).all()
                if self.alone:
                    try:
                        step = rule.combine(self.send(spoilt, few)).step
                    except QuietsumError:
                        continue
                    assert np.isfinite(step).all(), f"{bad} in one row is in the step"

    def test_single_precision_is_accepted(self) -> None:
        """The step is float64, and close to that of the same numbers in double precision."""
        rows = self.honest().astype(np.float32)
        few = min(self.most(), 2)
        step = self.run(rows, few).step
        if not self.shuffles:
            np.testing.assert_allclose(step, self.run(rows.astype(np.float64), few).step, rtol=1e-4, atol=1e-5)


def _length(vector: Vector) -> float:
    largest = float(np.abs(vector).max())
    return largest * float(np.linalg.norm(vector / largest)) if 0 < largest < np.inf else largest


def repeat_coins(seed: int) -> RandomSource:
    """Randomness that a test can repeat; never for anything that is released."""
    with _seeds_allowed():
        return randomness_for_tests(seed)


@contextmanager
def _seeds_allowed() -> Iterator[None]:
    before = os.environ.get(TEST_SWITCH)
    os.environ[TEST_SWITCH] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[TEST_SWITCH]
        else:
            os.environ[TEST_SWITCH] = before
