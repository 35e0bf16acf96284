"""What holds for every core rule whatever is sent: hypothesis looks for the numbers that break it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings, strategies as st
from hypothesis.extra import numpy as arrays

from aggregation.robust.naive import Fixed, sent_of, verdict_of
from quietsum.aggregation.robust import RULES, find_rule
from quietsum.errors import InvalidParameter, TooFewParties

CORE = [
    "norm-bounded", "median", "trimmed-mean", "geometric-median", "krum", "multi-krum", "centered-clipping",
    "signguard", "signguard-sim", "signguard-dist",
]  # fmt: skip
ANY = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from([0.0, -0.0, 1.0, -1.0, 1.7e308, -1.7e308, 1e155, 1e-155, 5e-324, np.finfo(float).max]),
)
ORDINARY = st.floats(-8, 8).map(lambda value: round(value, 2))


def matrices(numbers: st.SearchStrategy[float], least: int = 1) -> st.SearchStrategy[np.ndarray]:
    shape = st.tuples(st.integers(least, 9), st.integers(1, 6))
    return shape.flatmap(lambda size: arrays.arrays(np.float64, size, elements=numbers))


@pytest.mark.parametrize("name", CORE)
@settings(max_examples=60)
@given(rows=matrices(ANY), place=st.floats(0, 0.999))
@example(rows=np.full((5, 3), 1.7e308), place=0.5)
@example(rows=np.array([[1.7e308, -1.7e308]] * 2 + [[-1.7e308, 1.7e308]] * 3), place=0.5)
@example(rows=np.array([[1e-300], [1e300], [-1e300], [2e-300]]), place=0.5)
@example(rows=np.array([[0.0], [5e-324], [1e-323], [2e-323], [1e-322], [1e300]]), place=0.5)
def test_finite_updates_have_a_finite_step_within_their_range(name: str, rows: np.ndarray, place: float) -> None:
    verdict = verdict_of(find_rule(name), rows, 0, rng=Fixed(place))
    assert np.isfinite(verdict.step).all()
    low, high = np.minimum(rows.min(axis=0), 0), np.maximum(rows.max(axis=0), 0)
    room = 1e-9 * np.maximum(-low / 2, high / 2)
    assert (verdict.step / 2 >= low / 2 - room).all() and (verdict.step / 2 <= high / 2 + room).all()


@pytest.mark.parametrize("name", CORE)
@settings(max_examples=60)
@given(rows=matrices(ORDINARY, least=2), data=st.data())
@example(rows=np.array([[1.0, 0.0], [0.0, 1.0]]), data=None)
@example(rows=np.array([[1.0], [1.0], [2.0], [2.0]]), data=None)
def test_the_order_of_updates_changes_nothing(name: str, rows: np.ndarray, data: st.DataObject | None) -> None:
    count = len(rows)
    order = np.arange(count)[::-1] if data is None else np.array(data.draw(st.permutations(range(count))))
    rule = find_rule(name)
    straight, turned = (verdict_of(rule, part, 0, rng=Fixed(0.3)) for part in (rows, rows[order]))
    np.testing.assert_allclose(turned.step, straight.step, rtol=0, atol=1e-6 * (1 + np.abs(rows).max()))


@pytest.mark.parametrize("name", CORE)
@settings(max_examples=40)
@given(
    honest=arrays.arrays(np.float64, st.tuples(st.integers(4, 8), st.just(5)), elements=st.floats(-1, 1)),
    attack=arrays.arrays(np.float64, (3, 5), elements=ANY),
    attackers=st.integers(1, 3),
)
def test_f_attackers_leave_the_step_bounded_by_honest_updates(
    name: str, honest: np.ndarray, attack: np.ndarray, attackers: int
) -> None:
    rule = find_rule(name)
    rows = np.concatenate([attack[:attackers], honest])
    count = len(rows)
    if count < rule.facts.least(attackers):
        with pytest.raises(TooFewParties):
            verdict_of(rule, rows, attackers)
        return
    step = verdict_of(rule, rows, attackers).step
    longest = np.linalg.norm(honest, axis=1).max()
    factor = 2 * (count - attackers) / (count - 2 * attackers)  # the geometric median's; the others' are smaller
    if name in ("krum", "multi-krum"):  # their score sums that of honest updates, which may be all but one apart
        factor = 2 * count
    assert np.abs(step).max() <= factor * longest * (1 + 1e-6) + 1e-12
    if name in ("median", "trimmed-mean"):
        assert (step >= honest.min(axis=0) - 1e-12).all() and (step <= honest.max(axis=0) + 1e-12).all()


@pytest.mark.parametrize("name", CORE)
def test_a_row_that_is_not_finite_is_left_out_and_counts_as_an_attacker(name: str) -> None:
    rows = np.random.default_rng(2).normal(size=(11, 30)) + 1
    clean = verdict_of(find_rule(name), rows[1:], 1, rng=Fixed(0.2))
    for bad in (np.nan, np.inf, -np.inf):
        for column in (0, 13, 29):
            spoilt = rows.copy()
            spoilt[0, column] = bad
            got = verdict_of(find_rule(name), spoilt, 2, rng=Fixed(0.2))
            np.testing.assert_allclose(got.step, clean.step, rtol=1e-12)
            assert not got.kept[0] and got.reasons[0] == "holds a value that is not finite"
    with pytest.raises(InvalidParameter, match="hold no row that is finite"):
        verdict_of(find_rule(name), np.full((5, 3), np.nan), 0)


@pytest.mark.parametrize("name", CORE)
def test_too_large_an_f_is_refused_by_the_rule_itself(name: str) -> None:
    rule = find_rule(name)
    for attackers in range(1, 5):
        count = rule.facts.least(attackers) - 1
        with pytest.raises(TooFewParties, match=f"needs {count + 1} to withstand {attackers}"):
            verdict_of(rule, np.ones((count, 3)), attackers)


def test_signguards_bounds_on_length_are_exclusive() -> None:
    rows = np.ones((7, 4)) * np.array([1, 1, 1, 0.1, 3.0, 0.1001, 2.999])[:, None]
    kept = verdict_of(find_rule("signguard"), rows, 2).kept
    assert kept.tolist() == [True, True, True, False, False, True, True]
    step = verdict_of(find_rule("signguard"), rows, 2).step
    np.testing.assert_allclose(step, np.mean([1, 1, 1, 0.1001, 1]), rtol=1e-12)  # shortened to the median


def test_signguard_with_nobody_left_leaves_the_model_as_it_is() -> None:
    """The largest cluster is too long, those of ordinary length have other signs."""
    rows = np.array([[9.0, 9.0]] * 3 + [[1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0], [1.0, 0.0]])
    verdict = verdict_of(find_rule("signguard"), rows, 2, rng=Fixed(0.0))
    if not verdict.kept.any():
        np.testing.assert_array_equal(verdict.step, 0)
    long = np.array([[1.0, 1.0]] * 4 + [[0.01, 0.01]] * 4)  # lengths 4 × 1 and 4 × 0.01: M lies between
    verdict = verdict_of(find_rule("signguard"), long, 1, rng=Fixed(0.0))
    assert np.isfinite(verdict.step).all() and verdict.kept.tolist() == [True] * 4 + [False] * 4


def test_signguard_of_zeros_is_zero_and_of_mostly_zeros_too() -> None:
    rows = np.zeros((5, 4))
    rows[0] = 1e9
    for name in ("signguard", "signguard-sim", "signguard-dist"):
        verdict = verdict_of(find_rule(name), rows, 2)
        np.testing.assert_array_equal(verdict.step, 0)
        assert verdict.kept.tolist() == [False, True, True, True, True]


def test_signguards_run_of_coordinates_is_drawn_anew_from_the_source() -> None:
    """Half of the coordinates have flipped signs in some rows: whether they are seen depends on the draw."""
    rows = np.random.default_rng(4).normal(size=(20, 1000)) * 0.1 + 1
    rows[:5, 500:] *= -1
    rule = find_rule("signguard")
    assert verdict_of(rule, rows, 5, rng=Fixed(0.0)).kept.sum() > 15
    assert not verdict_of(rule, rows, 5, rng=Fixed(0.99)).kept[:5].any()


def test_memory_stays_below_a_copy_of_the_matrix() -> None:
    import tracemalloc

    rows = np.random.default_rng(0).normal(size=(20, 60_000))
    for name in CORE:
        rule = RULES[name]
        sent = sent_of(rows, 2, memory=rule.memory(20, 60_000))
        tracemalloc.start()
        rule.combine(sent)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < rows.nbytes, f"{name}: {peak / rows.nbytes:.2f} copies"
