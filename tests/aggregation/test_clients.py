"""The clipped client sum: equal weights, noise that knows nobody, a public divisor; and the bound that adapts."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from numpy.typing import NDArray

from quietsum.aggregation import ClientSum
from quietsum.aggregation.clients import ClientState
from quietsum.errors import InvalidParameter
from quietsum.learning.checks.numpy_step import Silent
from quietsum.mechanisms.gaussian import ClippedSum, Mode
from quietsum.mechanisms.quantile import QuantileRule
from quietsum.mechanisms.rng import randomness_for_tests, system_randomness

Floats = NDArray[np.float64]
CLIP, EXPECTED = 0.5, 40.0
MODES = [Mode.SECURE, Mode.FAST]


@pytest.fixture(autouse=True)
def _seeds_are_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUIETSUM_TEST_SEEDS", "1")


def client_sum(mode: Mode = Mode.SECURE, dimension: int = 3, noise: float = 1.0, **more: Any) -> ClientSum:
    mechanism = ClippedSum(max_norm=more.pop("clip", CLIP), noise_multiplier=noise, mode=mode)
    return ClientSum(mechanism=mechanism, denominator=EXPECTED, dimension=dimension, **more)


def folded(fold: ClientSum, rows: Floats, first: int = 0) -> ClientState:
    names = [f"c{index}" for index in range(first, first + len(rows))]
    return fold.add_many(fold.start(), names, rows)[0]


def silent(fold: ClientSum, rows: Floats) -> Floats:
    """The step without its noise."""
    return fold.finish(folded(fold, rows), Silent()).step


@pytest.mark.parametrize("mode", MODES)
def test_the_step_is_the_clipped_sum_over_the_public_denominator(mode: Mode) -> None:
    rows = np.array([[3.0, 4.0, 0.0], [0.1, 0.0, 0.2], [0.0, -9.0, 0.0]])
    expected = (np.array([0.3, 0.4, 0.0]) + rows[1] + np.array([0.0, -0.5, 0.0])) / EXPECTED
    np.testing.assert_allclose(silent(client_sum(mode), rows), expected, atol=1e-7)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("size", [1.0, 1e6, 1e300])
def test_one_client_moves_the_mean_by_at_most_the_clip_over_the_expected_cohort(mode: Mode, size: float) -> None:
    """However many examples stand behind an update: here as many times its length."""
    others = np.random.default_rng(1).normal(size=(19, 3))
    giant = np.array([[1.0, -2.0, 2.0]]) * size
    moved = silent(client_sum(mode), np.vstack([others, giant])) - silent(client_sum(mode), others)
    assert np.linalg.norm(moved) <= CLIP / EXPECTED * (1 + 1e-12)
    assert np.linalg.norm(moved) >= 0.999 * CLIP / EXPECTED  # and it is heard


@pytest.mark.parametrize("mode", MODES)
def test_half_of_the_cohort_dropping_out_leaves_the_noise_as_it_was(mode: Mode) -> None:
    """Measured: 60,000 draws a case; 3 % of a standard deviation lie more than ten standard errors away."""
    wide, rng = client_sum(mode, dimension=20_000), randomness_for_tests(11)
    rows = np.zeros((40, 20_000))
    rows[:, 0] = 1.0
    for replies in (40, 20, 1, 0):
        state = folded(wide, rows[:replies])
        noises = [wide.finish(folded(wide, rows[:replies]), rng).step[1:] * EXPECTED for _ in range(3)]
        assert len(state.kept) == replies
        assert np.std(np.concatenate(noises)) == pytest.approx(1.0 * CLIP, rel=0.03)


def test_the_control_noise_that_follows_the_replies_would_be_seen() -> None:
    wide, rng = client_sum(dimension=60_000), randomness_for_tests(12)
    noise = wide.finish(wide.start(), rng).step * EXPECTED
    assert np.std(noise * np.sqrt(20 / 40)) != pytest.approx(1.0 * CLIP, rel=0.03)


@given(
    rows=st.lists(st.lists(st.floats(-1e3, 1e3), min_size=3, max_size=3), min_size=1, max_size=9),
    cut=st.integers(0, 9),
    seed=st.integers(0, 99),
)
def test_in_secure_mode_order_and_parts_change_no_bit(rows: list[list[float]], cut: int, seed: int) -> None:
    fold, table = client_sum(adaptive=QuantileRule(count_noise=2.0)), np.array(rows)
    whole = folded(fold, table)
    order = np.random.default_rng(seed).permutation(len(table))
    one_by_one = fold.start()
    for index in order:
        one_by_one = fold.add(one_by_one, f"c{index}", table[index])
    first, second = folded(fold, table[:cut]), folded(fold, table[cut:], first=cut)
    merged = fold.merge(second, pickle.loads(pickle.dumps(first)))
    for other in (one_by_one, merged):
        np.testing.assert_array_equal(other.total, whole.total)
        assert other.doubled == whole.doubled
        assert set(other.kept) == set(whole.kept)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("mode", MODES)
def test_a_broken_update_is_left_out_by_name_and_changes_nothing(mode: Mode, value: float) -> None:
    fold = client_sum(mode, adaptive=QuantileRule(count_noise=2.0))
    rows = np.array([[0.1, 0.2, 0.3], [value, 0.0, 0.0], [0.3, 0.0, 0.0]])
    state, broken = fold.add_many(fold.start(), ("a", "b", "c"), rows)
    assert list(broken) == ["b"]
    assert list(state.kept) == ["a", "c"]
    without, _ = fold.add_many(fold.start(), ("a", "c"), rows[[0, 2]])
    np.testing.assert_array_equal(state.total, without.total)
    assert state.doubled == without.doubled
    with pytest.raises(InvalidParameter, match="not finite"):
        fold.add(state, "b", rows[1])
    assert list(state.kept) == ["a", "c"]


@pytest.mark.parametrize("update", [np.zeros(2), np.zeros((1, 3)), np.zeros(3, dtype=np.float32), [0.0] * 3, None])
def test_a_misshapen_update_is_no_update(update: Any) -> None:
    fold = client_sum()
    assert fold.problem_with(update)
    with pytest.raises(InvalidParameter):
        fold.add(fold.start(), "a", update)


def test_a_client_counts_once() -> None:
    fold = client_sum()
    with pytest.raises(InvalidParameter, match="already replied"):
        fold.add_many(fold.start(), ("a", "a"), np.zeros((2, 3)))
    state = fold.add(fold.start(), "a", np.zeros(3))
    with pytest.raises(InvalidParameter, match="already replied"):
        fold.add(state, "a", np.zeros(3))
    with pytest.raises(InvalidParameter, match="already replied"):
        fold.merge(state, fold.add(fold.start(), "a", np.zeros(3)))


def _with(**changes: Any) -> ClientState:
    honest: dict[str, Any] = {"total": np.array([1, 0, 0]), "doubled": 0, "kept": {"b": None}}
    return ClientState(**{**honest, **changes})


@pytest.mark.parametrize(
    ("other", "problem"),
    [
        (_with(total=np.array([2**24 + 1, 0, 0])), "longer"),
        (_with(total=np.array([0, 0, -(2**62)])), "longer"),
        (_with(total=np.array([2**24, 2**24, 2**24])), "longer"),
        (_with(total=np.array([1.0, 0.0, 0.0])), "int64"),
        (_with(total=np.zeros(4, dtype=np.int64)), "int64 vector of 3"),
        (_with(doubled=1), "counts more norms"),
        (_with(kept={}), "longer"),
    ],
)
def test_a_sum_that_so_many_clipped_updates_cannot_have_is_refused(other: ClientState, problem: str) -> None:
    fold = client_sum()
    state = fold.add(fold.start(), "a", np.array([0.1, 0.0, 0.0]))
    before = state.total.copy()
    with pytest.raises(InvalidParameter, match=problem):
        fold.merge(state, other)
    np.testing.assert_array_equal(state.total, before)
    fold.merge(state, _with())  # the control


def test_floats_that_are_not_numbers_are_no_sum() -> None:
    fold = client_sum(Mode.FAST)
    with pytest.raises(InvalidParameter, match="longer"):
        fold.merge(fold.start(), _with(total=np.array([np.nan, 0.0, 0.0])))


@pytest.mark.parametrize("denominator", [0.0, -1.0, float("nan"), float("inf")])
def test_the_denominator_is_a_positive_number(denominator: float) -> None:
    with pytest.raises(InvalidParameter, match="denominator"):
        ClientSum(mechanism=client_sum().mechanism, denominator=denominator, dimension=3)


def test_nobody_at_all_is_a_step_of_noise() -> None:
    fold = client_sum(dimension=100)
    combined = fold.finish(fold.start(), system_randomness())
    assert combined.kept == ()
    assert np.count_nonzero(combined.step) == 100


# ------------------------------------------------------------------------------------------- adaptive clipping


def tracked(start: float, *, rounds: int, rate: float = 0.2, quantile: float = 0.5) -> float:
    """The bound after so many rounds of 1000 clients with norms evenly from .5 to 1.5, without noise."""
    norms = 0.5 + (np.arange(1000) + 0.5) / 1000
    rows, names = np.column_stack([norms, np.zeros(1000)]), [f"c{index}" for index in range(1000)]
    rule, clip = QuantileRule(count_noise=50.0, quantile=quantile, learning_rate=rate), start
    for _ in range(rounds):
        mechanism = ClippedSum(max_norm=clip, noise_multiplier=1.0)
        fold = ClientSum(mechanism=mechanism, denominator=1000.0, dimension=2, adaptive=rule)
        state, _broken = fold.add_many(fold.start(), names, rows)
        moved = fold.finish(state, Silent()).clip
        assert moved is not None
        clip = moved
    return clip


@pytest.mark.parametrize("start", [0.1, 10.0])
def test_the_bound_finds_the_median_norm_within_sixty_rounds(start: float) -> None:
    """At the rate .2 of Andrew et al.; the median of the norms is 1."""
    assert 0.995 <= tracked(start, rounds=60) <= 1.005


def test_the_control_a_slower_rule_has_not_arrived() -> None:
    assert not 0.995 <= tracked(10.0, rounds=60, rate=0.05) <= 1.005


def test_other_quantiles_are_found_too() -> None:
    assert tracked(0.1, rounds=80, quantile=0.8) == pytest.approx(1.3, rel=0.01)


def test_the_count_is_divided_by_the_public_cohort_not_by_the_replies() -> None:
    """Twenty of forty reply, all within the bound: b̃ = ½ + 20 · ½ / 40 = ¾, not 1."""
    fold = client_sum(dimension=1, clip=2.0, adaptive=QuantileRule(count_noise=2.0, learning_rate=0.2))
    combined = fold.finish(folded(fold, np.full((20, 1), 0.1)), Silent())
    assert combined.clip == pytest.approx(2.0 * np.exp(-0.2 * 0.25), rel=1e-12)


def test_the_count_has_noise_of_its_own() -> None:
    """4000 draws: a twentieth of the standard deviation lies more than four standard errors away."""
    rule, rng = QuantileRule(count_noise=3.0, learning_rate=0.1), randomness_for_tests(13)
    fold = client_sum(dimension=1, clip=1.0, adaptive=rule)
    logs = [np.log(fold.finish(fold.start(), rng).clip or 0.0) for _ in range(4000)]
    assert np.std(logs) == pytest.approx(0.1 * 3.0 / EXPECTED, rel=0.07)


def test_whether_a_norm_is_small_depends_on_its_own_row_alone() -> None:
    from quietsum.mechanisms.quantile import within

    rows = np.random.default_rng(5).normal(size=(64, 7850))
    edge = float(np.linalg.norm(rows[0]))
    alone = [within(row[None, :], edge) for row in rows]
    assert within(rows, edge) == sum(alone)
    assert within(np.asfortranarray(rows), edge) == sum(alone)


@pytest.mark.parametrize("noise", [0.5, 1.0, 3.0])
def test_sum_and_count_together_cost_what_was_asked(noise: float) -> None:
    rule = QuantileRule(count_noise=5.0)
    assert rule.joint_noise(rule.sum_noise(noise)) == pytest.approx(noise, rel=1e-9)
    assert rule.joint_noise(rule.sum_noise(noise)) >= noise
    assert rule.sum_noise(noise) > noise


def test_a_count_that_costs_too_much_is_refused() -> None:
    with pytest.raises(InvalidParameter, match="alone costs more"):
        QuantileRule(count_noise=0.5).sum_noise(1.0)
