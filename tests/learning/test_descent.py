from __future__ import annotations

import dataclasses
import warnings
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, strategies as st
from hypothesis.extra import numpy as some

from learning.step_facts import (
    EXPECTED,
    LEARNING_RATE,
    MUTANTS,
    NORM,
    UNCHANGED,
    Linear,
    Scripted,
    broken_fact,
    clipped,
    examples,
    pile,
    run,
)
from quietsum.errors import InvalidParameter
from quietsum.learning import private_steps
from quietsum.learning.descent import clipped_sum
from quietsum.mechanisms.gaussian import ClippedSum, Mode
from quietsum.mechanisms.rng import RandomSource, randomness_for_tests, system_randomness
from quietsum.privacy.events import Gaussian, PoissonSampled
from quietsum.sampling import Everyone, FixedSize, Poisson
from quietsum.tasks import Rows
from quietsum.tasks.gallery.heart import HeartTask


def scripted(seed: int) -> RandomSource:
    """A scripted source, which has the methods that a step asks for and no others."""
    return cast(RandomSource, Scripted(seed))


# ------------------------------------------------------------------------------------- the facts, and what breaks them


def test_the_step_keeps_every_fact() -> None:
    assert broken_fact(private_steps) is None


@pytest.mark.parametrize("name", MUTANTS)
@pytest.mark.some(2)
def test_each_mutant_breaks_its_fact(name: str) -> None:
    assert broken_fact(UNCHANGED) is None  # the mutants' frame itself is sound
    step, fact = MUTANTS[name]
    assert broken_fact(step) == fact


wild = st.floats(allow_nan=True, allow_infinity=True, width=64)


@given(some.arrays(np.float64, (6, 3), elements=wild), some.arrays(np.float64, 3, elements=wild), st.booleans())
def test_no_record_however_wild_moves_the_sum_beyond_the_bound(rows: Any, record: Any, secure: bool) -> None:
    mechanism = ClippedSum(max_norm=NORM, noise_multiplier=1.5, mode=Mode.SECURE if secure else Mode.FAST)
    settings: dict[str, Any] = {"mechanism": mechanism, "sampling": Everyone()}
    with_it, asked = run(private_steps, np.vstack([rows, record]), **settings)
    without, asked_without = run(private_steps, rows, **settings)
    assert np.linalg.norm(with_it - without) * EXPECTED / LEARNING_RATE <= NORM * (1 + 1e-9)
    assert asked.asked == asked_without.asked


def test_nothing_about_the_true_size_steers_the_steps() -> None:
    """Twenty steps with momentum on D and on D without a row: equal rate, number of steps, noise scale and shape."""
    rows = examples(3)
    moved, asked = run(private_steps, rows, steps=20, momentum=0.5)
    moved_without, asked_without = run(private_steps, rows[:-1], steps=20, momentum=0.5)
    assert asked.asked == asked_without.asked
    assert [kind for kind, _ in asked.asked] == ["coins", "rounded_normals"] * 20
    assert not np.array_equal(moved, moved_without)  # the row was drawn at some step, so this compares something


def test_heart_itself_moves_by_at_most_the_bound() -> None:
    """Through the real task, test randomness and secure noise: each of some patients is taken away once."""
    task = HeartTask.from_package()
    rows = task.rows("switzerland")
    mechanism = ClippedSum(max_norm=1.0, noise_multiplier=3.0)
    start = np.random.default_rng(0).normal(size=task.dimension)

    def moved(kept: np.ndarray, seed: int = 7) -> np.ndarray:
        return private_steps(
            task, start, pile_like(rows, kept), steps=1, sampling=Everyone(), mechanism=mechanism,
            expected_batch=30.0, learning_rate=0.5, momentum=0.0, rng=scripted(seed),
        )  # fmt: skip

    whole = moved(np.arange(30))
    distances = [np.linalg.norm(whole - moved(np.delete(np.arange(30), row))) * 30 / 0.5 for row in range(30)]
    assert max(distances) <= 1 + 1e-9
    assert max(distances) > 0.99  # the bound is reached: somebody was clipped


def pile_like(rows: Any, kept: np.ndarray) -> Any:
    return dataclasses.replace(pile(rows.features[kept]), labels=rows.labels[kept])


# ---------------------------------------------------------------------------------------------------- what it computes


def naive(rows: np.ndarray, seed: int, steps: int, rate: float, momentum: float, noise: float) -> np.ndarray:
    """The same steps, one example and one coordinate at a time."""
    source, params, velocity = Scripted(seed), np.zeros(rows.shape[1]), np.zeros(rows.shape[1])
    for _ in range(steps):
        total = np.zeros(rows.shape[1])
        for row, heads in zip(rows, source.coins(rate, len(rows)), strict=True):
            if heads:
                total += clipped(row)
        total += source.normals(total.shape) * noise * NORM
        velocity = momentum * velocity + total / EXPECTED
        params = params - LEARNING_RATE * velocity
    return params


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_steps_agree_with_a_naive_loop(mode: Mode, momentum: float) -> None:
    rows = examples(11)
    rows[3, 2] = np.nan
    mechanism = ClippedSum(max_norm=NORM, noise_multiplier=1.5, mode=mode)
    found, _ = run(private_steps, rows, steps=7, seed=4, momentum=momentum, mechanism=mechanism)
    assert found == pytest.approx(naive(rows, 4, 7, 0.5, momentum, 1.5), abs=1e-5)


def test_some_rows_at_a_time_give_the_sum_of_all_to_the_last_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    """So the memory that a step takes does not grow with the rows: one that runs out of it would tell how many."""
    rows = Rows(features=np.random.default_rng(5).normal(0, 3, (50, 3)), labels=np.zeros(50))
    sizes: list[int] = []

    class Counted(Linear):
        def gradients(self, params: Any, features: Any, labels: Any) -> Any:
            sizes.append(len(labels))
            return features

    def both() -> list[Any]:
        whole = clipped_sum(Counted(), np.zeros(3), rows, sampling=Everyone(), max_norm=NORM, rng=scripted(1))
        steps = private_steps(
            Counted(), np.zeros(3), rows, steps=1, sampling=Everyone(), expected_batch=EXPECTED, momentum=0.0,
            mechanism=ClippedSum(max_norm=NORM, noise_multiplier=1.5), learning_rate=1.0, rng=scripted(2),
        )  # fmt: skip
        return [whole, steps]

    at_once = both()
    assert set(sizes) == {50}
    sizes.clear()
    monkeypatch.setattr("quietsum.learning.descent._PIECE", 21)
    for some_at_a_time, all_at_once in zip(both(), at_once, strict=True):
        assert np.array_equal(some_at_a_time, all_at_once)
    assert max(sizes) == 7 and sum(sizes) == 100


def test_without_a_mechanism_the_same_steps_run_bare() -> None:
    rows = examples(5)
    rows[0, 0], rows[1, 1] = np.nan, np.inf
    found, source = run(private_steps, rows, mechanism=None, sampling=Everyone())
    assert found == pytest.approx(-LEARNING_RATE * rows[2:].sum(axis=0) / EXPECTED)
    assert source.asked == []
    partly, source = run(private_steps, rows, mechanism=None)
    drawn = Scripted(1).coins(0.5, len(rows))
    drawn[:2] = False
    assert partly == pytest.approx(-LEARNING_RATE * rows[drawn].sum(axis=0) / EXPECTED)  # the public divisor here too
    assert [kind for kind, _ in source.asked] == ["coins"]


def test_later_steps_see_earlier_ones() -> None:
    """Descent on |params − x|² / 2 ends at the mean: gradients are taken where the parameters are now."""

    class Quadratic:
        def gradients(self, params: Any, features: Any, labels: Any) -> Any:
            return params - features

    rows = pile(examples(2, count=20, wide=1.0))
    moved = private_steps(
        Quadratic(), np.full(4, 5.0), rows, steps=300, sampling=Everyone(), mechanism=None, expected_batch=20.0,
        learning_rate=0.1, momentum=0.0, rng=system_randomness(),
    )  # fmt: skip
    assert moved + 5.0 == pytest.approx(rows.features.mean(axis=0))


def test_a_party_without_rows_sends_noise() -> None:
    moved, _ = run(private_steps, np.zeros((0, 4)), steps=2)
    assert (moved != 0).all()
    bare, _ = run(private_steps, np.zeros((0, 4)), steps=2, mechanism=None)
    assert (bare == 0).all()


def test_the_given_parameters_are_left_alone() -> None:
    start = np.ones(4)
    private_steps(
        Linear(), start, pile(examples(1)), steps=2, sampling=Everyone(), mechanism=None, expected_batch=40.0,
        learning_rate=0.1, momentum=0.0, rng=system_randomness(),
    )  # fmt: skip
    assert (start == 1).all()


def test_real_randomness_never_repeats_and_test_randomness_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUIETSUM_TEST_SEEDS", "1")
    rows = examples(8)
    seeded = [run(private_steps, rows, rng=randomness_for_tests(5))[0] for _ in range(2)]
    assert np.array_equal(seeded[0], seeded[1])
    fresh = [run(private_steps, rows, rng=system_randomness())[0] for _ in range(2)]
    assert not np.array_equal(fresh[0], fresh[1])


def test_what_was_drawn_and_what_was_added_state_their_own_cost() -> None:
    sampling, mechanism = Poisson(rate=0.5), ClippedSum(max_norm=NORM, noise_multiplier=1.5)
    assert sampling.amplify(mechanism.event()) == PoissonSampled(rate=0.5, event=Gaussian(noise_multiplier=1.5))
    _, source = run(private_steps, examples(1), sampling=sampling, mechanism=mechanism)
    assert source.asked == [("coins", 0.5), ("rounded_normals", (mechanism.grid_scale, (4,)))]


def test_twenty_rounds_of_four_hospitals_learn() -> None:
    """At ε 10 per record the demo's model is well above chance; five standard deviations below its mean still pass."""
    task = HeartTask.from_package()
    mechanism = ClippedSum(max_norm=1.0, noise_multiplier=2.1)  # ε 10 at δ 1e-4 over 20 full-batch rounds
    params, rng = task.initial(), system_randomness()
    total = sum(party.size for party in task.parties())
    for _ in range(20):
        params = params + sum(
            party.size / total * private_steps(
                task, params, task.rows(party.name), steps=1, sampling=Everyone(), mechanism=mechanism,
                expected_batch=party.size, learning_rate=0.2, momentum=0.0, rng=rng,
            )
            for party in task.parties()
        )  # fmt: skip
    assert task.evaluate(params).values["accuracy"] > 0.75


# ----------------------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("changes", "lesson"),
    [
        ({"steps": 0}, "steps"),
        ({"steps": 1.5}, "steps"),
        ({"expected_batch": 0.0}, "declared size"),
        ({"expected_batch": float("nan")}, "expected_batch"),
        ({"learning_rate": -1.0}, "learning_rate"),
        ({"learning_rate": float("inf")}, "learning_rate"),
        ({"learning_rate": 1e308, "expected_batch": 1e-3}, "overflow"),
        ({"momentum": 1.0}, "never forgets"),
        ({"momentum": -0.1}, "momentum"),
        ({"sampling": FixedSize(size=3, population=10)}, "population"),
    ],
)
def test_bad_settings_are_refused(changes: dict[str, Any], lesson: str) -> None:
    with pytest.raises(InvalidParameter, match=lesson):
        run(private_steps, examples(1), **changes)


@pytest.mark.parametrize("start", [np.full(4, np.nan), np.zeros((2, 2)), np.array([np.inf, 0, 0, 0])])
def test_broken_parameters_are_refused(start: np.ndarray) -> None:
    with pytest.raises(InvalidParameter, match="finite vector"):
        private_steps(
            Linear(), start, pile(examples(1)), steps=1, sampling=Everyone(), mechanism=None, expected_batch=1.0,
            learning_rate=1.0, momentum=0.0, rng=system_randomness(),
        )  # fmt: skip


def test_a_task_that_sums_its_gradients_is_refused() -> None:
    class Summed:
        def gradients(self, params: Any, features: Any, labels: Any) -> Any:
            return features.sum(axis=0, keepdims=True)

    with pytest.raises(InvalidParameter, match="one gradient per example"):
        private_steps(
            Summed(), np.zeros(4), pile(examples(1)), steps=1, sampling=Everyone(), mechanism=None, expected_batch=1.0,
            learning_rate=1.0, momentum=0.0, rng=system_randomness(),
        )  # fmt: skip


# ------------------------------------------------------------------------------------------------ poison


POISON = 4711.0


class Poisoned:
    """A task that fails on one record, in one of the ways in which tasks fail."""

    def __init__(self, how: str) -> None:
        self.how = how

    def gradients(self, params: Any, features: Any, labels: Any) -> Any:
        bad = features[:, 0] == POISON
        if bad.any():
            match self.how:
                case "arithmetic":
                    raise ZeroDivisionError("4711")
                case "value":
                    raise ValueError("4711")
                case "shape":
                    return np.zeros((1, 1))
                case "warning":
                    warnings.warn("row 4711", stacklevel=1)
                    return np.where(bad[:, None], np.float64(1.0) / np.zeros_like(features), params - features)
        return params - features


@pytest.mark.parametrize("how", ["arithmetic", "value", "shape", "warning"])
def test_a_poison_record_is_a_row_of_zeros_and_nobody_hears_of_it(
    how: str, recwarn: pytest.WarningsRecorder, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUIETSUM_TEST_SEEDS", "1")
    rows = np.vstack([examples(3), [POISON, 0.0, 0.0, 0.0]])
    settings: dict[str, Any] = {
        "steps": 1, "sampling": Everyone(), "mechanism": ClippedSum(max_norm=NORM, noise_multiplier=1.0),
        "expected_batch": 10.0, "learning_rate": 1.0, "momentum": 0.0,
    }  # fmt: skip
    moves = [
        private_steps(
            Poisoned(how), np.zeros(4), Rows(features=kept, labels=np.zeros(len(kept))),
            rng=randomness_for_tests(5), **settings,
        )
        for kept in (rows, rows[:-1])
    ]  # fmt: skip
    np.testing.assert_array_equal(moves[0], moves[1])
    assert not recwarn.list
    assert capfd.readouterr() == ("", "")


def test_without_a_guarantee_the_task_s_own_error_is_heard() -> None:
    rows = np.vstack([examples(3), [POISON, 0.0, 0.0, 0.0]])
    with pytest.raises(ZeroDivisionError):
        private_steps(
            Poisoned("arithmetic"), np.zeros(4), Rows(features=rows, labels=np.zeros(len(rows))),
            steps=1, sampling=Everyone(), mechanism=None, expected_batch=10.0, learning_rate=1.0, momentum=0.0,
            rng=system_randomness(),
        )  # fmt: skip
