"""The promises of every fold over updates, as tests that a fold of your own can run as well.

A server folds updates as they arrive, and worker processes fold those of their own clients and send one state. That is
only right if neither the order nor the parts matter, if an update with a problem leaves no trace, and if no party
counts twice. A fold with a bug in one of these still returns a plausible step, so the suite looks for each of them.
"""

from __future__ import annotations

import functools
import pickle
import unittest
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from quietsum.aggregation import Combined, Fold, Vector
from quietsum.contracts.rules import repeat_coins
from quietsum.errors import QuietsumError, TooFewParties

__all__ = ["FoldContract"]


class FoldContract:
    """The suite. A subclass says how its fold is made, for the parties of :attr:`parties`.

    ``count`` parties send ``dimension`` numbers each. ``tolerance`` is what two orders of the same updates may differ
    by, relative to the largest number in the step; 0 asks for the same bits. ``grows`` is True for a fold whose state
    holds single updates, such as a robust rule's; otherwise a party may add ``bytes_a_party`` to a pickled state,
    besides its name. A fold that draws noise is compared under the same coins.
    """

    count = 11
    dimension = 64
    tolerance = 1e-12
    grows = False
    bytes_a_party = 32

    def make(self) -> Fold[Any]:
        """The fold under test."""
        raise NotImplementedError("say in a subclass how your fold is made")

    def forge(self, state: Any) -> Iterable[Any]:
        """States that no updates of their parties can make, for ``merge`` to refuse; none if omitted."""
        return ()

    # ------------------------------------------------------------------------------- words for the tests

    @property
    def parties(self) -> tuple[str, ...]:
        """The registered parties."""
        return tuple(f"party {index}" for index in range(self.count))

    def updates(self, seed: int = 0) -> Vector:
        """One usable update a party, all different."""
        rng = np.random.default_rng([seed, 11])
        return np.asarray(0.05 * (1 + rng.normal(size=(self.count, self.dimension))))

    def fold(self, order: Sequence[int] | None = None, updates: Vector | None = None) -> Any:
        """The state of the parties in ``order`` (all if omitted), added one by one."""
        fold, rows = self.make(), self.updates() if updates is None else updates
        state = fold.start()
        for index in range(self.count) if order is None else order:
            state = fold.add(state, self.parties[index], rows[index].copy())
        return state

    def finish(self, state: Any, rng: int = 1) -> Combined:
        """The result of ``state``; the same coins for the same ``rng``."""
        return self.make().finish(state, repeat_coins(rng))

    def check_same(self, state: Any, expected: Combined) -> None:
        """``state`` has the step of ``expected`` up to the tolerance, of the same parties."""
        result = self.finish(state)
        largest = float(np.abs(expected.step).max())
        np.testing.assert_allclose(result.step, expected.step, rtol=0, atol=self.tolerance * largest)
        assert set(result.kept) == set(expected.kept), "the same parties are in the step"
        assert (result.clip is None) == (expected.clip is None)
        if result.clip is not None and expected.clip is not None:
            np.testing.assert_allclose(result.clip, expected.clip, rtol=self.tolerance)

    def check_refused(self, work: Callable[[], object]) -> None:
        """``work`` raises an error that says what is wrong."""
        try:
            work()
        except QuietsumError as error:
            assert str(error), "a refusal says what is wrong"
            return
        raise AssertionError("this must be refused")

    # ------------------------------------------------------------------------------- the promises

    def test_the_step_is_a_finite_vector(self) -> None:
        """Of the stated dimension, in float64; no party that was folded is named twice or missing."""
        fold, result = self.make(), self.finish(self.fold())
        assert fold.dimension == self.dimension, "make() gives a fold of the stated dimension"
        assert result.step.shape == (self.dimension,) and result.step.dtype == np.float64, "a float64 vector"
        assert np.isfinite(result.step).all(), "the step is finite"
        assert not set(result.kept) & set(result.rejected), "a party is in the step or left out, not both"
        assert sorted([*result.kept, *result.rejected]) == sorted(self.parties), "every party is named once"

    def test_the_state_names_the_parties_in_order_of_arrival(self) -> None:
        """``kept`` is the state's own, in the order of ``add``."""
        order = [3, 0, 2]
        assert list(self.fold(order).kept) == [self.parties[index] for index in order]

    def test_neither_order_nor_parts_change_the_step(self) -> None:
        """One by one in three orders, all at once, and in two parts."""
        expected = self.finish(self.fold())
        rng = np.random.default_rng(5)
        for order in (range(self.count)[::-1], rng.permutation(self.count), rng.permutation(self.count)):
            self.check_same(self.fold([int(index) for index in order]), expected)
        for cuts in ((), (1,), (self.count // 2,)):
            fold, rows = self.make(), self.updates()
            state = fold.start()
            for part in np.split(np.arange(self.count), cuts):
                state, broken = fold.add_many(state, [self.parties[index] for index in part], rows[part].copy())
                assert broken == {}, "every one of these updates is usable"
            self.check_same(state, expected)

    def test_a_merge_is_the_fold_of_all(self) -> None:
        """Of three parts, in two orders, one of which came from another process; and with an empty state."""
        expected = self.finish(self.fold())
        cuts = [list(map(int, part)) for part in np.split(np.arange(self.count), (2, self.count // 2))]
        for order in ((0, 1, 2), (2, 0, 1)):
            fold = self.make()
            parts = [self.fold(cuts[place]) for place in order]
            state = fold.merge(parts[0], pickle.loads(pickle.dumps(parts[1])))
            state = fold.merge(fold.merge(state, fold.start()), parts[2])
            self.check_same(state, expected)
            self.check_same(fold.merge(fold.start(), state), expected)

    def test_a_fold_and_its_state_can_travel(self) -> None:
        """Both are pickled to a worker process and back; a fold need not carry what only ``finish`` uses."""
        expected = self.finish(self.fold())
        away: Fold[Any] = pickle.loads(pickle.dumps(self.make()))
        state = away.start()
        for party, row in zip(self.parties, self.updates(), strict=True):
            state = away.add(state, party, row)
        self.check_same(pickle.loads(pickle.dumps(state)), expected)

    def test_an_update_with_a_problem_changes_nothing(self) -> None:
        """``problem_with`` and ``add`` say so; the step is that of the others."""
        others = [index for index in range(self.count) if index != 1]
        expected, good = self.finish(self.fold(others)), self.updates()[1]
        spoilt: list[Any] = [good[:-1], good[None, :], good.astype(np.float32), good.tolist(), None]
        for value in (np.nan, np.inf, -np.inf):
            for place in (0, self.dimension - 1):
                spoilt.append(good.copy())
                spoilt[-1][place] = value
        for update in spoilt:
            fold, party = self.make(), self.parties[1]
            assert fold.problem_with(good, party) == "", "a usable update has no problem"
            assert fold.problem_with(update, party), "an update that is no finite float64 vector has a problem"
            state = self.fold(others)
            self.check_refused(functools.partial(fold.add, state, party, update))
            assert party not in state.kept, "a refused update is not counted"
            self.check_same(state, expected)

    def test_add_many_leaves_out_rows_with_a_problem(self) -> None:
        """And names them; their parties are not counted, and the step is that of the others."""
        others = [index for index in range(self.count) if index not in (1, 4)]
        expected = self.finish(self.fold(others))
        rows = self.updates()
        rows[1, 0], rows[4, -1] = np.nan, -np.inf
        fold = self.make()
        state, broken = fold.add_many(fold.start(), self.parties, rows)
        assert set(broken) == {self.parties[1], self.parties[4]} and all(broken.values()), (
            "each is named, with a reason"
        )
        assert list(state.kept) == [self.parties[index] for index in others], "only the others are counted"
        self.check_same(state, expected)

    def test_no_party_counts_twice(self) -> None:
        """By ``add``, in one ``add_many``, over two of them, and by ``merge``; each time nothing is changed."""
        expected, rows = self.finish(self.fold()), self.updates()
        twice = (self.parties[0], self.parties[0])
        fold, state = self.make(), self.fold()
        self.check_refused(lambda: fold.add(state, self.parties[0], rows[0]))
        self.check_refused(lambda: fold.add_many(state, self.parties[:2], rows[:2]))
        self.check_refused(lambda: fold.merge(state, self.fold([0])))
        self.check_same(state, expected)
        self.check_refused(lambda: fold.add_many(fold.start(), twice, rows[:2]))

    def test_updates_are_left_as_they_were(self) -> None:
        """They are the caller's, and may be read-only."""
        for several in (False, True):
            rows = self.updates()
            rows.setflags(write=False)
            fold = self.make()
            state = fold.start()
            if several:
                state, _ = fold.add_many(state, self.parties, rows)
            else:
                for party, row in zip(self.parties, rows, strict=True):
                    state = fold.add(state, party, row)
            self.finish(state)
            np.testing.assert_array_equal(rows, self.updates())

    def test_every_start_begins_anew(self) -> None:
        """The fold is a value: it holds nothing of what it has folded."""
        expected, fold, rows = self.finish(self.fold()), self.make(), self.updates()
        for update in (self.updates(seed=1), rows):
            state = fold.start()
            assert list(state.kept) == [], "nothing is folded yet"
            state, _ = fold.add_many(state, self.parties, update.copy())
        self.check_same(state, expected)

    def test_memory_does_not_grow_with_the_cohort(self) -> None:
        """A state is as large for many parties as for few, but for their names."""
        if self.grows:
            raise unittest.SkipTest("this fold compares single updates, so it keeps them")
        few, many = (len(pickle.dumps(self.fold(range(count)))) for count in (3, self.count))
        names = sum(len(pickle.dumps(party)) for party in self.parties[3:])
        room = names + self.bytes_a_party * (self.count - 3)
        assert many - few <= room, f"{self.count - 3} more parties add {many - few} bytes, {room} are allowed"

    def test_the_same_coins_make_the_same_step(self) -> None:
        """All randomness is that of the source."""
        one, other = self.finish(self.fold(), rng=5), self.finish(self.fold(), rng=5)
        np.testing.assert_array_equal(one.step, other.step)
        assert one.clip == other.clip

    def test_no_update_is_no_step_or_noise_alone(self) -> None:
        """As ``needs_updates`` says."""
        fold = self.make()
        try:
            result = fold.finish(fold.start(), repeat_coins(1))
        except TooFewParties:
            assert fold.needs_updates, "a fold without need of updates has a step all the same"
            return
        assert not fold.needs_updates, "without an update there is nothing to average"
        assert result.kept == () and np.isfinite(result.step).all()

    def test_a_forged_state_is_refused(self) -> None:
        """What comes from another process is checked in ``merge``; a refused state changes nothing."""
        forged = list(self.forge(self.fold(range(3))))
        if not forged:
            raise unittest.SkipTest("forge() names no forged states")
        rest = list(range(3, self.count))
        expected = self.finish(self.fold(rest))
        for other in forged:
            state = self.fold(rest)
            self.check_refused(functools.partial(self.make().merge, state, other))
            self.check_same(state, expected)
