from __future__ import annotations

import dataclasses
import math
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from mechanisms.laws import FITS, MISSES
from quietsum import ExactAccountant, FixedSizeSampled, Gaussian, Neighbours, PoissonSampled
from quietsum.errors import InvalidParameter, UnsupportedEvent
from quietsum.mechanisms.rng import RandomSource, randomness_for_tests
from quietsum.sampling import Everyone, FixedSize, Poisson, Sampling

NOISE = Gaussian(noise_multiplier=1.0)


@pytest.fixture
def rng(monkeypatch: pytest.MonkeyPatch) -> RandomSource:
    monkeypatch.setenv("QUIETSUM_TEST_SEEDS", "1")
    return randomness_for_tests(12)


def memberships(sampling: Sampling, population: int, times: int, rng: RandomSource) -> NDArray[np.bool_]:
    """Who was drawn in each of many draws."""
    drawn = np.zeros((times, population), dtype=np.bool_)
    for row in drawn:
        row[sampling.draw(population, rng)] = True
    return drawn


def variance_p(sizes: NDArray[np.int64], population: int, rate: float) -> float:
    """Two-sided p-value of the sizes' spread against that of independent coins, N q (1 − q)."""
    from scipy import stats

    statistic = float(np.sum((sizes - population * rate) ** 2) / (population * rate * (1 - rate)))
    law = stats.chi2(sizes.size)
    return 2 * min(float(law.cdf(statistic)), float(law.sf(statistic)))


def test_poisson_batches_vary_as_independent_coins_do(rng: RandomSource) -> None:
    sizes = np.array([Poisson(rate=0.05).draw(1000, rng).size for _ in range(3000)])
    assert abs(sizes.mean() - 50) < 5 * math.sqrt(47.5 / 3000)
    assert variance_p(sizes, 1000, 0.05) > FITS


def test_batches_of_fixed_size_would_not_pass_for_poisson(rng: RandomSource) -> None:
    """The negative control of the test above."""
    sizes = np.array([FixedSize(size=50, population=1000).draw(1000, rng).size for _ in range(3000)])
    assert variance_p(sizes, 1000, 0.05) < MISSES


def test_poisson_draws_that_were_redrawn_when_empty_would_not_pass_either(rng: RandomSource) -> None:
    def redrawn() -> int:
        while (size := Poisson(rate=0.02).draw(100, rng).size) == 0:
            pass
        return size

    sizes = np.array([redrawn() for _ in range(3000)])
    assert variance_p(sizes, 100, 0.02) < 1e-4
    assert abs(sizes.mean() - 2) > 5 * math.sqrt(1.96 / 3000)


def pair_p(drawn: NDArray[np.bool_], chance_of_two: float) -> float:
    """p-value of the worst pair's joint inclusions, over all pairs (Bonferroni)."""
    from scipy import stats

    pairs = list(combinations(range(drawn.shape[1]), 2))
    counts = [int(np.count_nonzero(drawn[:, i] & drawn[:, j])) for i, j in pairs]
    return min(stats.binomtest(count, drawn.shape[0], chance_of_two).pvalue for count in counts) * len(pairs)


def test_two_units_join_independently_under_poisson_and_not_under_fixed_size(rng: RandomSource) -> None:
    coins = memberships(Poisson(rate=0.3), 8, 20_000, rng)
    fixed = memberships(FixedSize(size=3, population=10), 10, 20_000, rng)
    assert pair_p(coins, 0.3**2) > FITS
    assert pair_p(coins, 0.3**2 * 1.3) < MISSES
    assert pair_p(fixed, 3 * 2 / (10 * 9)) > FITS
    assert pair_p(fixed, 0.3**2) < MISSES


def test_steps_do_not_follow_one_another(rng: RandomSource) -> None:
    drawn = memberships(Poisson(rate=0.3), 8, 20_000, rng).astype(float)
    for lag in (1, 2, 5):
        for unit in range(8):
            assert abs(np.corrcoef(drawn[lag:, unit], drawn[:-lag, unit])[0, 1]) < 5 / math.sqrt(20_000)


def test_every_batch_of_fixed_size_is_equally_likely(rng: RandomSource) -> None:
    from scipy import stats

    rank = {batch: index for index, batch in enumerate(combinations(range(6), 3))}
    counts = np.zeros(len(rank))
    for _ in range(10_000):
        counts[rank[tuple(FixedSize(size=3, population=6).draw(6, rng).tolist())]] += 1
    assert stats.chisquare(counts).pvalue > FITS


class Told:
    def __init__(self, *answers: list[int]) -> None:
        self.answers = list(answers)

    def words(self, count: int) -> NDArray[np.uint64]:
        return np.array(self.answers.pop(0), dtype=np.uint64)


def test_keys_that_tie_at_the_edge_are_drawn_anew() -> None:
    tied: Any = Told([5, 5, 9], [7, 8, 6])
    assert FixedSize(size=1, population=3).draw(3, tied).tolist() == [2]
    inside: Any = Told([5, 5, 9])  # a tie that does not matter
    assert FixedSize(size=2, population=3).draw(3, inside).tolist() == [0, 1]


@pytest.mark.parametrize("sampling", [Poisson(rate=0.4), FixedSize(size=20, population=50), Everyone()])
def test_a_draw_is_sorted_distinct_and_within_the_population(sampling: Sampling, rng: RandomSource) -> None:
    for _ in range(50):
        drawn = sampling.draw(50, rng)
        assert drawn.dtype == np.int64
        assert np.array_equal(drawn, np.unique(drawn))
        assert drawn.size == 0 or (drawn[0] >= 0 and drawn[-1] < 50)


def test_an_empty_poisson_draw_is_an_answer() -> None:
    class Tails:
        calls = 0

        def coins(self, chance: float, count: int) -> NDArray[np.bool_]:
            self.calls += 1
            return np.zeros(count, dtype=np.bool_)

    tails: Any = Tails()
    assert Poisson(rate=0.5).draw(10, tails).size == 0
    assert tails.calls == 1  # never drawn again


def test_extremes(rng: RandomSource) -> None:
    assert Poisson(rate=1.0).draw(5, rng).tolist() == [0, 1, 2, 3, 4]
    assert Poisson(rate=0.0).draw(5, rng).size == 0
    assert Poisson(rate=0.5).draw(0, rng).size == 0
    assert FixedSize(size=5, population=5).draw(5, rng).tolist() == [0, 1, 2, 3, 4]
    assert FixedSize(size=0, population=5).draw(5, rng).size == 0
    assert Everyone().draw(3, rng).tolist() == [0, 1, 2]
    assert Everyone().draw(0, rng).size == 0


def test_the_sampler_states_its_own_amplification() -> None:
    assert Poisson(rate=0.1).amplify(NOISE) == PoissonSampled(rate=0.1, event=NOISE)
    assert FixedSize(size=5, population=50).amplify(NOISE) == FixedSizeSampled(rate=0.1, event=NOISE)
    assert Everyone().amplify(NOISE) is NOISE


def test_the_relations_a_sampler_names_are_those_its_event_is_accounted_under() -> None:
    for sampling in (Poisson(rate=0.1), FixedSize(size=5, population=50), Everyone()):
        for relation in Neighbours:
            accountant = ExactAccountant(neighbours=relation)
            if relation in sampling.neighbours:
                assert accountant.compose(sampling.amplify(NOISE)).epsilon(delta=1e-5).epsilon > 0
            else:
                with pytest.raises(UnsupportedEvent, match="fixed-size"):
                    accountant.compose(sampling.amplify(NOISE)).epsilon(delta=1e-5)


def test_the_expected_size_is_public_and_may_divide(rng: RandomSource) -> None:
    assert Poisson(rate=0.25).expected_size(40) == 10
    assert FixedSize(size=7, population=40).expected_size(40) == 7
    assert Everyone().expected_size(40) == 40


@pytest.mark.parametrize("rate", [-0.1, 1.1, math.nan, math.inf, "x", None, True])
def test_rates_outside_their_domain_are_refused(rate: Any) -> None:
    with pytest.raises(InvalidParameter, match="sample_rate"):
        Poisson(rate=rate)


def test_sizes_that_do_not_fit_are_refused(rng: RandomSource) -> None:
    for size, population in ((-1, 5), (6, 5), (1, 0), (1.5, 5)):
        wrong: Any = size
        with pytest.raises(InvalidParameter):
            FixedSize(size=wrong, population=population)
    with pytest.raises(InvalidParameter, match="really there"):
        FixedSize(size=3, population=10).draw(11, rng)
    with pytest.raises(InvalidParameter, match="really there"):
        FixedSize(size=3, population=10).expected_size(11)
    for sampling in (Poisson(rate=0.5), Everyone()):
        with pytest.raises(InvalidParameter, match="population"):
            sampling.draw(-1, rng)


def test_samplers_are_values() -> None:
    assert Poisson(rate=0.5) == Poisson(rate=0.5)
    assert hash(FixedSize(size=1, population=2)) == hash(FixedSize(size=1, population=2))
    with pytest.raises(dataclasses.FrozenInstanceError):
        Everyone().rate = 1  # type: ignore[attr-defined]
