from __future__ import annotations

import itertools
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from numpy.typing import NDArray

from mechanisms.central.laws import permute_and_flip_law
from mechanisms.laws import FITS, MISSES, chi_square_p, ks_p
from quietsum import ExactAccountant, Laplace, Neighbours, RenyiAccountant
from quietsum.errors import InvalidParameter, QuietsumError
from quietsum.mechanisms.noise.laplace import DiscreteLaplaceNoise, RoundedLaplaceNoise
from quietsum.mechanisms.queries import NoisyCount, NoisyHistogram, NoisyMean, NoisyQuantile, NoisySum
from quietsum.mechanisms.queries.rows import bound_values, grid_for, total
from quietsum.mechanisms.queries.tables import _LAPLACE_FAILURE
from quietsum.mechanisms.rng import RandomSource, randomness_for_tests
from quietsum.privacy import ClassicalAccountant

N = 20_000
QUERIES: tuple[Any, ...] = (
    NoisyCount(epsilon=0.7),
    NoisySum(epsilon=0.7, bounds=(-3, 10)),
    NoisyMean(epsilon=0.7, bounds=(-3, 10)),
    NoisyMean(epsilon=0.7, bounds=(-3, 10), size=50),
    NoisyHistogram(epsilon=0.7, edges=(0, 1, 5, 9)),
    NoisyQuantile(epsilon=0.7, candidates=range(10)),
)


@pytest.fixture
def rng(monkeypatch: pytest.MonkeyPatch) -> RandomSource:
    monkeypatch.setenv("QUIETSUM_TEST_SEEDS", "1")
    return randomness_for_tests(77)


# ------------------------------------------------------------------------------------------------------ what it costs


def test_queries_cost_what_was_asked_for() -> None:
    for query in QUERIES:
        price = ClassicalAccountant(rule="basic").compose(query.event()).epsilon(delta=1e-12).epsilon
        assert price == pytest.approx(0.7, rel=1e-12) and price <= 0.7 * (1 + 1e-15)
        assert 0 <= query.failure() < 1e-30
    for made in (
        NoisyCount(epsilon=1.0, delta=1e-6),
        NoisySum(epsilon=1.0, delta=1e-6, bounds=(0, 1)),
        NoisyMean(epsilon=1.0, delta=1e-6, bounds=(0, 1)),
    ):
        event = made.event()
        assert 0.99e-6 < ExactAccountant().compose(event).delta(epsilon=1.0) <= 1e-6
    event = NoisyHistogram(epsilon=1.0, delta=1e-6, categories="abc").event()
    assert 0.99 < RenyiAccountant().compose(event).epsilon(delta=1e-6).epsilon <= 1.0


def test_a_replaced_row_costs_twice() -> None:
    for query in (NoisyCount(epsilon=0.5), NoisyHistogram(epsilon=0.5, categories="ab")):
        accountant = ClassicalAccountant(rule="basic", neighbours=Neighbours.REPLACE_ONE)
        assert accountant.compose(query.event()).epsilon(delta=1e-12).epsilon == pytest.approx(1.0)


def test_the_failure_of_sums_covers_laplace_noise_of_any_width() -> None:
    for scale in (0.1, 1.0, 40.0, 2.0**20, 1e9, 2.0**47):
        assert RoundedLaplaceNoise(scale=scale).failure <= _LAPLACE_FAILURE
    with pytest.raises(AssertionError):
        assert RoundedLaplaceNoise(scale=1e9).failure * 1000 <= _LAPLACE_FAILURE


# ------------------------------------------------------------------------------------------------------- sensitivity


rows = st.lists(st.floats(allow_nan=False, width=64), max_size=8)


@given(rows, st.floats(allow_nan=False), st.floats(-1e6, 1e6), st.floats(1e-3, 1e6))
@settings(max_examples=150)
def test_one_row_moves_the_integer_sum_by_at_most_the_bound(
    others: list[float], row: float, low: float, width: float
) -> None:
    high = low + width
    grid = grid_for(max(abs(low), abs(high)))

    def summed(values: list[float]) -> int:
        return total(bound_values(np.array(values, dtype=np.float64), low, high, grid))

    assert abs(summed([*others, row]) - summed(others)) <= grid.largest
    assert Fraction(grid.largest) * Fraction(grid.lattice.step) <= Fraction(max(abs(low), abs(high))) * (
        1 + Fraction(1, 2**19)
    )


@pytest.mark.usefixtures("rng")
def test_with_the_same_coins_one_row_moves_the_release_by_no_more_than_the_noise_is_for() -> None:
    generator = np.random.default_rng(4)
    query = NoisySum(epsilon=1, bounds=(-3, 10))
    size = NoisyMean(epsilon=1, bounds=(-3, 10), size=20)
    for _ in range(50):
        values = generator.normal(size=20) * 30
        one, other = (query.release(each, randomness_for_tests(1)) for each in (values, values[:-1]))
        assert abs(one - other) <= 10 * (1 + 1e-6)
        changed = np.append(values[:-1], generator.normal() * 30)
        one, other = (size.release(each, randomness_for_tests(1)) for each in (values, changed))
        assert abs(one - other) <= 13 / 20 * (1 + 1e-6)


def test_a_float_sum_is_moved_by_more_than_one_row_may() -> None:
    """The negative control: rounding the sum adds to what a row bounded by 0.1 moves; on the grid it does not."""
    floats = list(itertools.accumulate([0.1] * 1000))
    assert max(Fraction(b) - Fraction(a) for a, b in itertools.pairwise(floats)) > Fraction(0.1)
    grid = grid_for(0.1)
    steps = [total(bound_values(np.full(count, 0.1), -0.1, 0.1, grid)) for count in range(100)]
    assert {b - a for a, b in itertools.pairwise(steps)} <= {grid.largest, grid.largest - 1}


# -------------------------------------------------------------------------------------------------------------- laws


def laplace(draws: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.where(draws < 0, np.exp(-np.abs(draws)) / 2, 1 - np.exp(-np.abs(draws)) / 2)


def test_counts_and_histograms_have_discrete_laplace_noise(rng: RandomSource) -> None:
    draws = np.array([NoisyCount(epsilon=0.5).release(30, rng) for _ in range(N)]) - 30
    histogram = NoisyHistogram(epsilon=0.5, edges=range(N + 1))
    cells = histogram.release(np.arange(N) + 0.5, rng) - 1
    for noise in (draws, cells):
        assert chi_square_p(noise, DiscreteLaplaceNoise(scale=2.0).pmf) > FITS
        assert chi_square_p(noise, DiscreteLaplaceNoise(scale=2.4).pmf) < MISSES


def test_sums_have_laplace_noise_of_the_largest_magnitude(rng: RandomSource) -> None:
    query = NoisySum(epsilon=0.5, bounds=(-4, 1))
    draws = (np.array([query.release([-9.0, 0.5], rng) for _ in range(N)]) + 3.5) / 8
    assert ks_p(draws, laplace) > FITS
    assert ks_p(draws / 1.2, laplace) < MISSES
    assert query.event() == Laplace(noise_multiplier=2.0)


def test_a_mean_of_many_rows_is_near_the_truth(rng: RandomSource) -> None:
    values = np.random.default_rng(8).uniform(20, 60, size=50_000)
    for query in (
        NoisyMean(epsilon=1, bounds=(0, 100)),
        NoisyMean(epsilon=1, delta=1e-6, bounds=(0, 100)),
        NoisyMean(epsilon=1, bounds=(0, 100), size=50_000),
    ):
        assert query.release(values, rng) == pytest.approx(values.mean(), abs=0.05)
    assert 0 <= NoisyMean(epsilon=1e-3, bounds=(0, 100)).release([], rng) <= 100


def test_quantiles_have_the_law_of_permute_and_flip(rng: RandomSource) -> None:
    from scipy import stats

    values, candidates = np.array([1.0, 2, 2, 3, 5, 8, 9]), np.arange(10.0)
    query = NoisyQuantile(epsilon=2.0, candidates=candidates.tolist(), quantile=0.25)
    counts = np.bincount([int(query.release(values, rng)) for _ in range(N)], minlength=10)
    score = -np.abs([0.75 * (values < c).sum() - 0.25 * (values > c).sum() for c in candidates])
    assert stats.chisquare(counts, permute_and_flip_law(score, 2.0 / (2 * 0.75)) * N).pvalue > FITS
    assert stats.chisquare(counts, permute_and_flip_law(score, 1.05 * 2.0 / (2 * 0.75)) * N).pvalue < 1e-4


@given(
    st.lists(st.floats(0, 9), min_size=1, max_size=12), st.floats(0, 9), st.sampled_from([0.1, 0.25, 0.5, 0.9, 1 / 3]),
    st.sampled_from([Neighbours.ADD_REMOVE, Neighbours.REPLACE_ONE]),
)  # fmt: skip
@settings(max_examples=100)
def test_one_row_moves_the_score_of_a_candidate_by_at_most_the_sensitivity(
    values: list[float], row: float, quantile: float, relation: Neighbours
) -> None:
    query = NoisyQuantile(epsilon=1.0, candidates=range(10), quantile=quantile, neighbours=relation)
    seen: list[NDArray[np.int64]] = []

    class Spy:
        def release(self, scores: NDArray[np.int64], rng: object) -> int:
            seen.append(scores)
            return 0

    sensitivity = query._mechanism.sensitivity
    query.__dict__["_mechanism"] = Spy()
    query.release(values)
    query.release([*values, row] if relation is Neighbours.ADD_REMOVE else [*values[1:], row])
    assert np.abs(seen[0] - seen[1]).max() <= sensitivity.bound  # type: ignore[union-attr]


# ---------------------------------------------------------------------------------------------------- what comes in


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_rows_that_are_no_finite_numbers_follow_the_declared_rule(rng: RandomSource, bad: float) -> None:
    values = [5.0] * 1000 + [bad] * 500
    for kind in (NoisySum, NoisyMean):
        with pytest.raises(InvalidParameter, match="missing='skip'") as error:
            kind(epsilon=20, bounds=(0, 10)).release(values, rng)
        assert "5.0" not in str(error.value) and "1000" not in str(error.value)
    assert NoisySum(epsilon=20, bounds=(0, 10), missing="skip").release(values, rng) == pytest.approx(5000, abs=20)
    assert NoisySum(epsilon=20, bounds=(0, 10), missing=2).release(values, rng) == pytest.approx(6000, abs=20)
    assert NoisyMean(epsilon=20, bounds=(0, 10), missing="skip").release(values, rng) == pytest.approx(5, abs=0.1)
    assert NoisyQuantile(epsilon=20, candidates=range(10), missing="skip").release(values, rng) == 5
    histogram = NoisyHistogram(epsilon=20, edges=(0, 6, 10), outside="skip").release(values, rng)
    assert histogram.tolist() == pytest.approx([1000, 0], abs=5)
    with pytest.raises(InvalidParameter, match="no cell"):
        NoisyHistogram(epsilon=20, edges=(0, 6, 10)).release(values, rng)


def test_values_outside_the_domain_are_clamped_skipped_or_refused_as_declared(rng: RandomSource) -> None:
    values = [-5.0, 0.0, 9.999, 10.0, 11.0]
    edges = {"epsilon": 50.0, "edges": (0, 5, 10)}
    assert NoisyHistogram(**edges, outside="clamp").release(values, rng).tolist() == [2, 3]  # type: ignore[arg-type]
    assert NoisyHistogram(**edges, outside="skip").release(values, rng).tolist() == [1, 2]  # type: ignore[arg-type]
    blood = NoisyHistogram(epsilon=50, categories=("A", "B"), outside="skip")
    assert blood.release(["A", "C", None, "A", ["B"]], rng).tolist() == [2, 0]
    with pytest.raises(InvalidParameter, match="no cell") as error:
        NoisyHistogram(epsilon=50, categories=("A", "B")).release(["A", "secret"], rng)
    assert "secret" not in str(error.value)


def test_counts_take_a_number_or_flags(rng: RandomSource) -> None:
    query = NoisyCount(epsilon=100)
    assert (
        query.release(7, rng) == query.release(np.arange(9) < 7, rng) == query.release([True] * 7 + [False], rng) == 7
    )
    assert query.release([], rng) == 0
    for bad in (-1, 2.5, [1, 2], True, math.nan, None):
        with pytest.raises(InvalidParameter):
            query.release(bad, rng)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "make",
    [
        lambda: NoisyCount(epsilon=0),
        lambda: NoisyCount(epsilon=1, delta=2),
        lambda: NoisySum(epsilon=-1, bounds=(0, 1)),
        lambda: NoisySum(epsilon=math.nan, bounds=(0, 1)),
        lambda: NoisySum(epsilon=1, bounds=(1, 0)),
        lambda: NoisySum(epsilon=1, bounds=(0, math.inf)),
        lambda: NoisySum(epsilon=1, bounds=5),  # type: ignore[arg-type]
        lambda: NoisySum(epsilon=1, bounds=(0, 1), missing="zero"),  # type: ignore[arg-type]
        lambda: NoisySum(epsilon=1e-9, bounds=(0, 1)),
        lambda: NoisySum(epsilon=1e-6, delta=1e-12, bounds=(0, 1)),
        lambda: NoisyMean(epsilon=1, bounds=(0, 1), size=0),
        lambda: NoisyHistogram(epsilon=1),
        lambda: NoisyHistogram(epsilon=1, categories="aa"),
        lambda: NoisyHistogram(epsilon=1, edges=(1, 1)),
        lambda: NoisyHistogram(epsilon=1, categories="ab", outside="clamp"),
        lambda: NoisyQuantile(epsilon=1, candidates=()),
        lambda: NoisyQuantile(epsilon=1, candidates=5),  # type: ignore[arg-type]
        lambda: NoisyQuantile(epsilon=1, candidates=(1,), neighbours="nearby"),  # type: ignore[arg-type]
        lambda: NoisyHistogram(epsilon=1, categories=5),  # type: ignore[arg-type]
        lambda: NoisyHistogram(epsilon=1, categories=[[1]]),  # type: ignore[list-item]
        lambda: NoisyHistogram(epsilon=1, categories="ab").release(None),  # type: ignore[arg-type]
        lambda: NoisyMean(epsilon=1, bounds=(0, 1)).release([[1.0], [1.0, 2.0]]),
        lambda: NoisySum(epsilon=5e-324, bounds=(0, 1)),
        lambda: NoisyQuantile(epsilon=1, candidates=(1, math.nan)),
        lambda: NoisyQuantile(epsilon=1, candidates=(1, 2), quantile=1),
    ],
)
def test_a_query_that_makes_no_sense_is_refused_before_any_row_is_seen(make: Any) -> None:
    with pytest.raises(QuietsumError):
        make()
