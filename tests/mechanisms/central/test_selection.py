from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from mechanisms.central.laws import exponential_law, noisy_max_law, permute_and_flip_law
from mechanisms.laws import FITS, MISSES
from quietsum import ExponentialMechanism
from quietsum.errors import InvalidParameter
from quietsum.mechanisms import LInf, PermuteAndFlip, ReportNoisyMax
from quietsum.mechanisms.central.selection import choose_index, flips
from quietsum.mechanisms.rng import RandomSource, randomness_for_tests
from quietsum.privacy import PureDP

SCORES = np.arange(12.0)
EPSILON = 1.0
N = 40_000
KINDS: tuple[tuple[Any, Callable[[NDArray[np.float64], float], NDArray[np.float64]]], ...] = (
    (ExponentialMechanism, exponential_law),
    (PermuteAndFlip, permute_and_flip_law),
    (ReportNoisyMax, noisy_max_law),
)


@pytest.fixture
def rng(monkeypatch: pytest.MonkeyPatch) -> RandomSource:
    monkeypatch.setenv("QUIETSUM_TEST_SEEDS", "1")
    return randomness_for_tests(41)


def fit(counts: NDArray[np.int64], law: NDArray[np.float64]) -> float:
    from scipy import stats

    kept = law * counts.sum() >= 5
    observed = np.append(counts[kept], counts[~kept].sum())
    expected = np.append(law[kept], law[~kept].sum()) * counts.sum()
    good = expected > 1e-9
    return float(stats.chisquare(observed[good], expected[good] * (observed[good].sum() / expected[good].sum())).pvalue)


@pytest.mark.parametrize(("kind", "law"), KINDS)
@pytest.mark.some(1)
def test_choices_fit_their_law_and_not_that_of_another_epsilon(rng: RandomSource, kind: Any, law: Any) -> None:
    mechanism = kind(epsilon=EPSILON, sensitivity=1)
    counts = np.bincount([mechanism.release(SCORES, rng) for _ in range(N)], minlength=SCORES.size)
    for factor, fits in ((1.0, True), (0.95, False), (1.05, False)):
        p = fit(counts, law(SCORES, EPSILON * factor / 2))
        assert p > FITS if fits else p < MISSES


@pytest.mark.parametrize(("kind", "law"), KINDS)
def test_the_sensitivity_is_the_unit_of_the_scores_and_monotone_drops_the_two(
    rng: RandomSource, kind: Any, law: Any
) -> None:
    mechanism = kind(epsilon=EPSILON, sensitivity=LInf(0.1), monotone=True)
    counts = np.bincount([mechanism.release(SCORES * 0.05 - 3, rng) for _ in range(4000)], minlength=SCORES.size)
    assert fit(counts, law(SCORES, EPSILON / 2)) > FITS


def test_the_exact_path_and_the_quick_one_choose_the_same_on_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUIETSUM_TEST_SEEDS", "1")
    distances = np.array([0, 3, 3, 7, 40, 2, 1000, 10**15])
    for rate in (Fraction(1, 3), Fraction(1, 50), Fraction(17, 10)):
        for seed in range(300):
            quick = choose_index(distances, rate, randomness_for_tests(seed))
            assert choose_index(distances, rate, randomness_for_tests(seed), widen=1e20) == quick
            slow = flips(distances, rate, randomness_for_tests(seed), margin=2.0)
            assert np.array_equal(flips(distances, rate, randomness_for_tests(seed)), slow)


class Told:
    """A random source that says what it is told."""

    def __init__(self, *answers: list[int]) -> None:
        self.answers = list(answers)

    def words(self, count: int) -> NDArray[np.uint64]:
        answer = self.answers.pop(0)
        assert len(answer) == count
        return np.array(answer, dtype=np.uint64)


def test_a_word_that_ties_with_a_boundary_is_decided_by_further_bits() -> None:
    """Weights 1 and e^−1: the boundary is 1/(1 + e^−1), whose bits beyond 64 decide."""
    distances, rate = np.array([0, 1]), Fraction(1)
    boundary = int(Fraction(10**60, 1) / Fraction(10**60 + int(Fraction(math.exp(-1)) * 10**60)) * 2**64)
    import mpmath as mp

    with mp.workprec(300):
        exact = int(mp.floor(1 / (1 + mp.exp(-1)) * mp.mpf(2) ** 128))
    word, rest = exact >> 64, exact & (2**64 - 1)
    assert abs(word - boundary) < 2**15
    assert choose_index(distances, rate, Told([word], [rest - 1, 0])) == 0  # type: ignore[arg-type]
    assert choose_index(distances, rate, Told([word], [rest + 1, 0])) == 1  # type: ignore[arg-type]
    with mp.workprec(300):
        exact = int(mp.floor(mp.exp(-1) * mp.mpf(2) ** 128))
    word, rest = exact >> 64, exact & (2**64 - 1)
    assert flips(distances[1:], rate, Told([word], [rest - 1, 0])).tolist() == [True]  # type: ignore[arg-type]
    assert flips(distances[1:], rate, Told([word], [rest + 1, 0])).tolist() == [False]  # type: ignore[arg-type]


def test_weights_in_floats_are_nearer_to_the_truth_than_the_margins_allow_for() -> None:
    """Against mpmath: eight times nearer than choose() and flips() assume before they turn to integers."""
    import mpmath as mp

    generator = np.random.default_rng(9)
    with mp.workprec(200):
        for _ in range(400):
            rate = Fraction(float(10.0 ** generator.uniform(-16, 1)))
            distance = int(generator.integers(0, math.ceil(800 / rate)))
            exact = mp.exp(-mp.mpf(rate.numerator) / rate.denominator * distance)
            quick = mp.mpf(float(np.exp(-float(rate) * np.array([distance]).astype(np.float64))[0]))
            assert abs(quick - exact) <= exact * mp.mpf(1e-11) / 8 + mp.mpf(5e-324)
            assert abs(quick - exact) <= mp.mpf(2) ** -38 / 8


def test_scores_of_any_size_are_chosen_from(rng: RandomSource) -> None:
    for kind, _ in KINDS:
        mechanism = kind(epsilon=50, sensitivity=1)
        assert mechanism.release([1e300, -1e300, 5], rng) == 0
        assert mechanism.release([-(10**60), 10**40, 5], rng) == 1
        assert mechanism.release([7], rng) == 0
        assert mechanism.release({"a": 1, "b": 900}, rng) == "b"
        assert mechanism.release([-(2.0**60), 2.0**60], rng) == 1
        assert mechanism.event() == PureDP(epsilon=50)
        assert 0 < mechanism.failure(1000) < 1e-28


@pytest.mark.parametrize("bad", [[], [math.nan, 1], [math.inf], ["a"], {}, [[1, 2]], 3, None])
def test_what_is_no_list_of_finite_scores_is_refused(bad: Any) -> None:
    for kind, _ in KINDS:
        with pytest.raises(InvalidParameter):
            kind(epsilon=1, sensitivity=1).release(bad)


@pytest.mark.parametrize("epsilon", [0, -1, math.nan, math.inf, "1", 1e10, 1e-9])
def test_an_epsilon_outside_its_domain_is_refused(epsilon: Any) -> None:
    for kind, _ in KINDS:
        with pytest.raises(InvalidParameter, match="epsilon"):
            kind(epsilon=epsilon, sensitivity=1)


def test_permute_and_flip_is_never_further_from_the_best_than_the_exponential_mechanism() -> None:
    """McKenna, Sheldon 2020, Theorem 2, by the exact laws."""
    generator = np.random.default_rng(3)
    for _ in range(50):
        scores = generator.normal(size=generator.integers(2, 9)) * 5
        rate = float(generator.uniform(0.05, 2))
        assert permute_and_flip_law(scores, rate) @ scores >= exponential_law(scores, rate) @ scores - 1e-12
