from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, strategies as st
from numpy.typing import NDArray
from scipy.special import ndtr

from mechanisms.laws import FITS, MISSES, ks_p
from quietsum import ExactAccountant, Gaussian, Neighbours
from quietsum.errors import InvalidParameter, QuietsumError
from quietsum.mechanisms import clipping
from quietsum.mechanisms.gaussian import ClippedSum, Mode
from quietsum.mechanisms.noise.rounded_normal import FAILURE_PER_DRAW
from quietsum.mechanisms.rng import RandomSource, randomness_for_tests, system_randomness

SECURE = ClippedSum(max_norm=1.5, noise_multiplier=0.8)
FAST = ClippedSum(max_norm=1.5, noise_multiplier=0.8, mode=Mode.FAST)


@pytest.fixture
def rng(monkeypatch: pytest.MonkeyPatch) -> RandomSource:
    monkeypatch.setenv("QUIETSUM_TEST_SEEDS", "1")
    return randomness_for_tests(4)


def spread(shape: tuple[int, ...], scale: float = 1.0, seed: int = 9) -> NDArray[np.float64]:
    return np.random.default_rng(seed).normal(size=shape) * scale


# ------------------------------------------------------------------------------------- sensitivity, replayed


def hostile_rows(width: int) -> list[NDArray[np.float64]]:
    """Rows that break a careless clip."""
    dense = spread((width,))
    rows = [
        np.full(width, np.nan),
        np.full(width, np.inf),
        np.full(width, -np.inf),
        np.full(width, 1e308),
        np.full(width, -1.7976931348623157e308),
        np.full(width, 5e-324),
        np.full(width, 1e-310),
        np.full(width, 1e-160),
        np.full(width, 1e200),
        np.zeros(width),
        -np.zeros(width),
        np.where(np.arange(width) % 2, 1e308, -1e-308),
        np.where(np.arange(width) == 0, np.nan, 1.0),
        np.where(np.arange(width) == 0, np.inf, 1e308),
        np.where(np.arange(width) == 0, 1e30, 1.0),
        dense,
        dense / np.linalg.norm(dense) * SECURE.max_norm,
        dense / np.linalg.norm(dense) * np.nextafter(SECURE.max_norm, 9),
        np.full(width, SECURE.max_norm),
        np.full(width, SECURE.max_norm / math.sqrt(width)),
    ]
    return rows + [spread((width,), 10.0**power, seed=power + 99) for power in range(-12, 13, 3)]


Summed = Callable[[NDArray[np.float64]], NDArray[np.int64]]


def furthest_move(summed: Summed, width: int) -> int:
    """The largest squared distance, in exact integers, by which one more hostile row moves the sum of others."""
    batch = np.concatenate([spread((7, width)), np.array([row for row in hostile_rows(width)])])
    furthest = 0
    for row in hostile_rows(width):
        for others in (batch, batch[:1], batch[:0]):
            before, after = summed(others), summed(np.concatenate([others[:3], row[None], others[3:]]))
            furthest = max(furthest, sum((int(a) - int(b)) ** 2 for a, b in zip(after, before, strict=True)))
    return furthest


def honest(rows: NDArray[np.float64]) -> NDArray[np.int64]:
    return np.asarray(SECURE.bound(rows).sum(axis=0), dtype=np.int64)  # without the second look that sum() takes


@pytest.mark.parametrize("width", [1, 2, 13, 200])
def test_one_row_moves_the_integer_sum_by_at_most_the_norm(width: int) -> None:
    assert 0 < furthest_move(honest, width) <= SECURE.grid_norm**2


def test_a_clip_of_the_batch_mean_is_caught() -> None:
    def mutant(rows: NDArray[np.float64]) -> NDArray[np.int64]:
        kept = rows[np.isfinite(rows).all(axis=1) & (np.abs(rows).max(axis=1) < 1e100)]
        if not len(kept):
            return np.zeros(rows.shape[1], dtype=np.int64)
        mean = kept.mean(axis=0)
        clipped = mean * min(1.0, SECURE.max_norm / max(float(np.linalg.norm(mean)), 1e-300))
        return np.asarray(np.trunc(clipped * len(kept) / SECURE.grid_unit), dtype=np.int64)

    assert furthest_move(mutant, 13) > SECURE.grid_norm**2


def test_rounding_to_nearest_without_verification_is_caught() -> None:
    def mutant(rows: NDArray[np.float64]) -> NDArray[np.int64]:
        clipped = FAST.bound(rows)
        return np.asarray(np.rint(clipped / SECURE.grid_unit).sum(axis=0), dtype=np.int64)

    assert furthest_move(mutant, 13) > SECURE.grid_norm**2


def test_skipping_the_verification_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut toward zero, a float norm that came out too small still lets rows through that are too long."""
    monkeypatch.setattr(clipping, "_shrink_to_norm", lambda rows, norm: rows)
    original = clipping._norms
    monkeypatch.setattr(clipping, "_norms", lambda rows, powers: original(rows, powers) * (1 - 1e-5))
    assert furthest_move(honest, 13) > SECURE.grid_norm**2
    monkeypatch.undo()
    monkeypatch.setattr(clipping, "_norms", lambda rows, powers: original(rows, powers) * (1 - 1e-5))
    assert furthest_move(honest, 13) <= SECURE.grid_norm**2  # the verification needs no good norm


def test_a_norm_that_is_wildly_wrong_is_repaired_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clipping, "_norms", lambda rows, powers: np.full(len(rows), 1e-6))
    assert furthest_move(honest, 13) <= SECURE.grid_norm**2


@given(
    rows=st.lists(st.lists(st.floats(width=64), min_size=3, max_size=3), min_size=1, max_size=6),
    norm=st.floats(1e-90, 1e90),
    noise=st.floats(1e-3, 1e6),
)
def test_any_floats_at_all_stay_within_the_norm(rows: list[list[float]], norm: float, noise: float) -> None:
    mechanism = ClippedSum(max_norm=norm, noise_multiplier=noise)
    for given_row, bounded in zip(rows, mechanism.bound(np.array(rows)).tolist(), strict=True):
        assert sum(k * k for k in bounded) <= mechanism.grid_norm**2
        if not all(map(math.isfinite, given_row)):
            assert bounded == [0, 0, 0]


def test_long_vectors_stay_within_the_norm_and_close_to_it() -> None:
    rows = spread((2, 300_000))
    rows[1, 5] = 1e7  # one coordinate towers over all others
    for row in SECURE.bound(rows):
        square = sum(int(k) * int(k) for k in row)
        assert (1 - 1e-3) * SECURE.grid_norm**2 < square <= SECURE.grid_norm**2


def test_sums_of_squares_beyond_what_floats_hold_are_never_mistaken_for_short() -> None:
    rows = np.full((1, 1 << 14), float(1 << 26))
    assert clipping._squares(rows)[0] >= 2.0**53
    bounded = clipping._shrink_to_norm(rows.copy(), 1 << 24)
    assert sum(int(k) ** 2 for k in bounded[0]) <= 1 << 48


# ------------------------------------------------------------------------------------------------ what bound does


def test_rows_are_clipped_to_the_norm_and_short_ones_left_alone() -> None:
    rows = np.array([[3.0, 4.0], [0.3, -0.4], [1e308, 1e308], [0.0, 0.0], [5e-324, 0.0], [-1e200, 1e-200]])
    half = 1.5 / math.sqrt(2)
    wanted = np.array([[0.9, 1.2], [0.3, -0.4], [half, half], [0, 0], [0, 0], [-1.5, 0]])
    assert np.abs(SECURE.bound(rows) * SECURE.grid_unit - wanted).max() <= 2 * SECURE.grid_unit
    assert np.abs(FAST.bound(rows) - wanted).max() < 1e-15


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("mechanism", [SECURE, FAST])
def test_a_row_that_is_not_finite_becomes_zero_and_touches_no_other(mechanism: ClippedSum, bad: float) -> None:
    rows = spread((4, 3))
    broken = rows.copy()
    broken[2, 1] = bad
    bounded = mechanism.bound(broken)
    assert not bounded[2].any()
    kept = [0, 1, 3]
    assert np.array_equal(bounded[kept], mechanism.bound(rows)[kept])


@pytest.mark.parametrize("width", [1, 2, 3, 17, 1000])
def test_a_row_is_bounded_the_same_whatever_stands_beside_it_and_however_it_is_stored(width: int) -> None:
    rows = spread((41, width), 3.0)
    bounded = SECURE.bound(rows)
    wide = np.zeros((41, 2 * width))
    wide[:, ::2] = rows
    for same in (np.asfortranarray(rows), wide[:, ::2], rows[::-1][::-1], rows.copy()):
        assert np.array_equal(SECURE.bound(same), bounded)
    for index, row in enumerate(rows):
        assert np.array_equal(SECURE.bound(row), bounded[index])
        assert np.array_equal(SECURE.bound(rows[index : index + 5])[0], bounded[index])
    assert np.array_equal(SECURE.bound(rows[::-1]), bounded[::-1])


def test_bounding_is_deterministic_and_leaves_its_input_alone() -> None:
    for mechanism in (SECURE, FAST):
        rows = spread((5, 4))
        before = rows.copy()
        assert np.array_equal(mechanism.bound(rows), mechanism.bound(rows))
        assert np.array_equal(rows, before)


def test_other_number_types_are_taken_as_float64() -> None:
    assert SECURE.bound(np.array([1, 0])).dtype == np.int64
    assert np.array_equal(SECURE.bound(np.array([0.5], dtype=np.float32)), SECURE.bound(np.array([0.5])))
    for wrong in (np.array(["a"]), np.array([1j]), np.array([None]), np.array([True])):
        with pytest.raises(InvalidParameter, match="real numbers"):
            SECURE.bound(wrong)
    for shape in ((), (2, 2, 2)):
        with pytest.raises(InvalidParameter, match="shape"):
            SECURE.bound(np.zeros(shape))


def test_no_rows_and_no_coordinates_are_fine() -> None:
    for mechanism in (SECURE, FAST):
        assert mechanism.sum(mechanism.bound(np.zeros((0, 3)))).tolist() == [0, 0, 0]
        assert mechanism.bound(np.zeros((3, 0))).shape == (3, 0)
        assert mechanism.release(mechanism.sum(mechanism.bound(np.zeros((0, 3)))), system_randomness()).shape == (3,)


def test_one_vector_is_a_sum_already() -> None:
    bounded = SECURE.bound(np.array([0.5, -0.5]))
    total = SECURE.sum(bounded)
    assert np.array_equal(total, bounded)
    assert total is not bounded


# ------------------------------------------------------------------------------------------------------ release


@pytest.mark.parametrize("mode", list(Mode))
def test_the_noise_fits_what_the_event_says_and_nothing_else(rng: RandomSource, mode: Mode) -> None:
    mechanism = ClippedSum(max_norm=2.0, noise_multiplier=0.7, mode=mode)
    total = mechanism.sum(mechanism.bound(np.ones((3, 200_000))))
    clean = total * (mechanism.grid_unit if mode is Mode.SECURE else 1.0)
    noise = (mechanism.release(total, rng) - clean) / (mechanism.event().noise_multiplier * mechanism.max_norm)
    assert ks_p(noise, ndtr) > FITS
    assert ks_p(noise * 0.95, ndtr) < MISSES
    assert ks_p(noise * 1.05, ndtr) < MISSES


def test_secure_releases_lie_on_the_public_grid_and_fast_ones_do_not(rng: RandomSource) -> None:
    """Which floats can occur must not depend on the data (Mironov 2012)."""
    for mechanism, on_grid in ((SECURE, True), (FAST, False)):
        steps = mechanism.release(mechanism.sum(mechanism.bound(spread((5, 300)))), rng) / SECURE.grid_unit
        assert np.array_equal(steps, np.rint(steps)) is on_grid


def test_two_releases_differ(rng: RandomSource) -> None:
    total = SECURE.sum(SECURE.bound(np.ones((1, 5))))
    assert not np.array_equal(SECURE.release(total, rng), SECURE.release(total, rng))


def test_a_sum_that_could_wrap_around_is_refused(rng: RandomSource) -> None:
    edge = np.array([1 << 62, 0], dtype=np.int64)
    assert SECURE.release(edge, rng).shape == (2,)
    for beyond in (edge + 1, -edge - 1, np.array([np.iinfo(np.int64).min, 0])):
        with pytest.raises(QuietsumError, match="wraps around"):
            SECURE.release(beyond, rng)
    many = np.broadcast_to(np.zeros(1, dtype=np.int64), ((1 << 38) + 1, 1))
    with pytest.raises(QuietsumError, match="wraps around"):
        dataclasses.replace(SECURE).sum(_Claims(many))  # type: ignore[arg-type]


class _Claims:
    """Rows too many for any memory: what sum() asks of them before it would add them up."""

    dtype, ndim, size = np.dtype(np.int64), 2, 1

    def __init__(self, rows: NDArray[np.int64]) -> None:
        self.shape = rows.shape

    def max(self) -> int:
        return 0

    min = max


def test_unbounded_rows_and_foreign_types_are_refused(rng: RandomSource) -> None:
    with pytest.raises(InvalidParameter, match="exceeds the norm"):
        SECURE.sum(np.array([[SECURE.grid_norm + 1]]))
    with pytest.raises(InvalidParameter, match="float64"):
        SECURE.release(np.zeros(3), rng)
    with pytest.raises(InvalidParameter, match="int64"):
        FAST.release(np.zeros(3, dtype=np.int64), rng)
    with pytest.raises(InvalidParameter, match="non-finite"):
        FAST.release(np.array([np.nan]), rng)
    with pytest.raises(InvalidParameter, match="rows"):
        SECURE.sum(np.zeros((1, 1, 1), dtype=np.int64))
    wrong: Any = [1, 2]
    with pytest.raises(InvalidParameter, match="list"):
        SECURE.release(wrong, rng)


# ------------------------------------------------------------------------------------------------ what it costs


@pytest.mark.parametrize("noise", [1e-9, 0.01, 0.3, 1.0, 1.1, 1023.9, 1024.1, 77_777.7, 2.0**26])
def test_the_event_is_the_noise_asked_for_and_the_grid_is_public(noise: float) -> None:
    mechanism = ClippedSum(max_norm=0.37, noise_multiplier=noise)
    assert mechanism.event() == Gaussian(noise_multiplier=noise)
    assert mechanism.grid_scale / mechanism.grid_norm == noise
    assert mechanism.grid_unit * mechanism.grid_norm == mechanism.max_norm
    assert mechanism.grid_scale <= 2.0**34
    assert 2**8 <= mechanism.grid_norm <= 2**24


def delta_by_mpmath(noise: float, epsilon: float) -> mp.mpf:
    mu, eps = 1 / mp.mpf(noise), mp.mpf(epsilon)
    return mp.ncdf(mu / 2 - eps / mu) - mp.exp(eps) * mp.ncdf(-mu / 2 - eps / mu)


@pytest.mark.parametrize("epsilon", [1e-4, 0.1, 1.0, 8.0, 100.0])
@pytest.mark.parametrize("delta", [1e-12, 1e-5, 0.1])
def test_calibration_spends_the_budget_and_no_more(epsilon: float, delta: float) -> None:
    mp.mp.prec = 300
    noise = ClippedSum.calibrated(epsilon=epsilon, delta=delta, max_norm=1.0).noise_multiplier
    assert delta_by_mpmath(noise, epsilon) <= delta < delta_by_mpmath(noise * (1 - 1e-7), epsilon)


@pytest.mark.parametrize(("epsilon", "delta"), [(0.1, 1e-6), (1.0, 1e-5), (10.0, 1e-4)])
def test_calibration_agrees_with_dp_accounting_and_with_our_own_accountant(epsilon: float, delta: float) -> None:
    from dp_accounting.pld import common, privacy_loss_mechanism

    guarantee = common.DifferentialPrivacyParameters(epsilon, delta)
    theirs = privacy_loss_mechanism.GaussianPrivacyLoss.from_privacy_guarantee(guarantee).standard_deviation
    mechanism = ClippedSum.calibrated(epsilon=epsilon, delta=delta, max_norm=3.0)
    assert mechanism.noise_multiplier == pytest.approx(theirs, rel=1e-5)
    spent = ExactAccountant().compose(mechanism.event()).epsilon(delta=delta).epsilon
    assert 0.999999 * epsilon < spent <= epsilon


def test_calibration_leaves_room_for_the_failure_and_doubles_for_replacement() -> None:
    mechanism = ClippedSum.calibrated(epsilon=1.0, delta=1e-10, max_norm=1.0)
    room = 1e-10 - float(delta_by_mpmath(mechanism.noise_multiplier, 1.0))
    assert mechanism.failure(10**12) < room
    replaced = ClippedSum.calibrated(
        epsilon=1.0, delta=1e-10, max_norm=1.0, neighbours=Neighbours.REPLACE_ONE, mode=Mode.FAST
    )
    assert replaced.noise_multiplier == 2 * mechanism.noise_multiplier
    assert replaced.mode is Mode.FAST


def test_what_no_noise_can_reach_is_refused() -> None:
    with pytest.raises(QuietsumError, match="allow a larger"):
        ClippedSum.calibrated(epsilon=1e-9, delta=1e-12, max_norm=1.0)
    for epsilon, delta in ((0.0, 1e-5), (-1.0, 1e-5), (1.0, 0.0), (1.0, 1.0), (math.nan, 1e-5)):
        with pytest.raises(InvalidParameter):
            ClippedSum.calibrated(epsilon=epsilon, delta=delta, max_norm=1.0)


def test_failure_and_label() -> None:
    assert SECURE.failure(1000) == 1000 * FAILURE_PER_DRAW
    assert SECURE.failure(0) == 0
    assert FAST.failure(1000) == 0
    assert (SECURE.label, FAST.label) == ("", "not floating-point safe")
    with pytest.raises(InvalidParameter):
        SECURE.failure(-1)


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf, 1e300, 1e-300, "1", None, True])
def test_parameters_outside_their_domain_are_refused(value: Any) -> None:
    with pytest.raises(InvalidParameter, match="max_norm"):
        ClippedSum(max_norm=value, noise_multiplier=1.0)
    with pytest.raises(InvalidParameter, match="noise_multiplier"):
        ClippedSum(max_norm=1.0, noise_multiplier=value)


def test_a_mechanism_is_a_value() -> None:
    by_name: Any = "fast"
    assert ClippedSum(max_norm=1.5, noise_multiplier=0.8, mode=by_name) == FAST
    assert repr(SECURE) == "ClippedSum(max_norm=1.5, noise_multiplier=0.8, mode=<Mode.SECURE: 'secure'>)"
    unknown: Any = "quick"
    with pytest.raises(InvalidParameter, match="choose 'secure' or 'fast'"):
        ClippedSum(max_norm=1.5, noise_multiplier=0.8, mode=unknown)
    with pytest.raises(dataclasses.FrozenInstanceError):
        SECURE.max_norm = 2.0  # type: ignore[misc]
