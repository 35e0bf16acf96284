from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest

from mechanisms.central.laws import permute_and_flip_law
from mechanisms.laws import FITS
from quietsum import L2, Gaussian, GaussianMechanism
from quietsum.errors import InvalidParameter, QuietsumError
from quietsum.mechanisms import LInf
from quietsum.mechanisms.queries import PrivateRanking, ScoreRelease, TopK
from quietsum.mechanisms.rng import RandomSource, randomness_for_tests
from quietsum.privacy import ClassicalAccountant


@pytest.fixture
def rng(monkeypatch: pytest.MonkeyPatch) -> RandomSource:
    monkeypatch.setenv("QUIETSUM_TEST_SEEDS", "1")
    return randomness_for_tests(6)


def price(query: Any) -> float:
    return ClassicalAccountant(rule="basic").compose(query.event()).epsilon(delta=1e-12).epsilon


def peeled_law(scores: np.ndarray[Any, Any], rate: float, k: int) -> dict[tuple[int, ...], float]:
    """The chance of every ordered list, by the chain of choices."""
    chances = {}
    for chosen in itertools.permutations(range(len(scores)), k):
        left, chance = list(range(len(scores))), 1.0
        for index in chosen:
            chance *= permute_and_flip_law(scores[left], rate)[left.index(index)]
            left.remove(index)
        chances[chosen] = chance
    return chances


def test_peeling_costs_epsilon_in_all_and_has_the_law_of_k_choices(rng: RandomSource) -> None:
    from scipy import stats

    scores = np.array([0.0, 2.0, 5.0, 4.0])
    query = TopK(k=2, epsilon=2.0, sensitivity=1.0)
    assert price(query) == pytest.approx(2.0) and price(TopK(k=7, epsilon=0.1, sensitivity=1)) <= 0.1
    law = peeled_law(scores, 1.0 / 2, 2)
    assert math.isclose(sum(law.values()), 1.0)
    counts = dict.fromkeys(law, 0)
    for _ in range(8000):
        counts[tuple(query.release(scores, rng))] += 1
    assert stats.chisquare(list(counts.values()), np.array(list(law.values())) * 8000).pvalue > FITS
    wrong = peeled_law(scores, 1.2 / 2, 2)
    assert stats.chisquare(list(counts.values()), np.array(list(wrong.values())) * 8000).pvalue < 1e-6


def test_the_law_of_the_list_holds_what_the_event_says() -> None:
    worst = 0.0
    for scores in ((0.0, 2.0, 3.0), (0.0, 0.0, 4.0)):
        base = peeled_law(np.array(scores), 0.3, 2)  # ε = 2 · 2 · 0.3
        for move in itertools.product((-1, 0, 1), repeat=3):
            moved = peeled_law(np.array(scores) + move, 0.3, 2)
            worst = max(worst, *(abs(math.log(moved[key] / base[key])) for key in base))
    assert 0.6 < worst <= 1.2


def test_names_come_back_and_no_option_twice(rng: RandomSource) -> None:
    found = TopK(k=3, epsilon=0.01, sensitivity=1).release({"a": 1, "b": 2, "c": 3}, rng)
    assert sorted(found) == ["a", "b", "c"]
    assert TopK(k=2, epsilon=100, monotone=True, sensitivity=1).release([1, 50, 100], rng) == [2, 1]


def test_a_ranking_where_one_unit_moves_all_scores_peels_and_else_sorts_noisy_scores(rng: RandomSource) -> None:
    scores = np.array([0.1, 0.9, 0.5, 0.7])
    assert PrivateRanking(epsilon=500, sensitivity=0.1, k=2).release(scores, rng) == [1, 3]
    assert PrivateRanking(epsilon=500, sensitivity=0.1, moves="one").release(scores, rng) == [1, 3, 2, 0]
    assert PrivateRanking(epsilon=500, sensitivity=0.1, moves="one", k=1).release(scores, rng) == [1]
    assert price(PrivateRanking(epsilon=0.5, k=5, sensitivity=1)) == pytest.approx(0.5)
    assert price(PrivateRanking(epsilon=0.5, moves="one", sensitivity=1)) == pytest.approx(0.5)
    assert PrivateRanking(epsilon=0.5, moves="one", sensitivity=1).failure(1000) < 1e-28
    for bad in ([], [math.nan], "ab", [[1.0]]):
        for query in (
            PrivateRanking(epsilon=1, k=1, sensitivity=1),
            PrivateRanking(epsilon=1, moves="one", sensitivity=1),
        ):
            with pytest.raises(InvalidParameter):
                query.release(bad, rng)


def test_a_score_stays_within_its_bounds_and_costs_its_range(rng: RandomSource) -> None:
    query = ScoreRelease(bounds=(0, 1), noise_multiplier=4.0)
    assert query.event() == Gaussian(noise_multiplier=4.0) and query.sensitivity == LInf(1.0)
    assert all(0 <= query.release(0.5, rng) <= 1 for _ in range(50))
    assert query.release(np.full(3, 7.0), rng).shape == (3,)
    one = ScoreRelease(bounds=(0, 1), epsilon=1, delta=1e-5, sensitivity=0.01)
    assert one.event() == GaussianMechanism(epsilon=1, delta=1e-5, sensitivity=L2(0.01)).event()
    assert one.release(0.5, rng) == pytest.approx(0.5, abs=0.3)
    assert price(ScoreRelease(epsilon=0.5, noise="laplace")) == 0.5


@pytest.mark.parametrize(
    "make",
    [
        lambda: TopK(k=0, epsilon=1, sensitivity=1),
        lambda: TopK(k=1, epsilon=0, sensitivity=1),
        lambda: TopK(k=3, epsilon=1, sensitivity=1).release([1, 2]),
        lambda: TopK(k=1, epsilon=1, sensitivity=0),
        lambda: PrivateRanking(epsilon=1, sensitivity=1),
        lambda: PrivateRanking(epsilon=1, k=2, moves="none", sensitivity=1),  # type: ignore[arg-type]
        lambda: PrivateRanking(epsilon=1, k=2, sensitivity=math.inf),
        lambda: ScoreRelease(),
        lambda: ScoreRelease(epsilon=1, delta=1e-5, noise="laplace"),
        lambda: ScoreRelease(epsilon=1, noise="laplace", sensitivity=L2(1)),
        lambda: ScoreRelease(epsilon=1, delta=1e-5, noise="gumbel"),  # type: ignore[arg-type]
        lambda: ScoreRelease(epsilon=1, delta=1e-5, bounds=(1, 0)),
        lambda: ScoreRelease(epsilon=1, delta=1e-5).release(math.nan),
    ],
)
def test_what_makes_no_sense_is_refused(make: Any) -> None:
    with pytest.raises(QuietsumError):
        make()
