"""Shuffled reports: the bound against brute force, against real randomisers, and against published numbers."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Sequence

import mpmath as mp
import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats
from scipy.special import betainc

from quietsum.errors import InvalidParameter
from quietsum.mechanisms.shuffle_model import (
    ShuffledReports,
    kary_blanket,
    largest_local_epsilon,
    shuffled_delta,
    shuffled_epsilon,
)
from quietsum.privacy.units import Neighbours, Observer

Law = dict[tuple[int, ...], float]
Pairs = dict[tuple[int, int], mp.mpf]
Array = npt.NDArray[np.float64]


def clone_laws(n: int, epsilon0: float, chance: float) -> tuple[Pairs, Pairs]:
    """P and Q of the clone argument as the papers write them: (A + Δ, C − A + 1 − Δ) and (A + 1 − Δ, C − A + Δ)."""
    keep = 1 / (1 + mp.exp(-mp.mpf(epsilon0)))
    first: Pairs = Counter()
    second: dict[tuple[int, int], mp.mpf] = Counter()
    p = mp.mpf(chance)
    for c in range(n):
        weight = mp.binomial(n - 1, c) * p**c * (1 - p) ** (n - 1 - c)
        for a in range(c + 1):
            mass = weight * mp.binomial(c, a) / mp.mpf(2) ** c
            first[a + 1, c - a] += mass * keep
            first[a, c - a + 1] += mass * (1 - keep)
            second[a + 1, c - a] += mass * (1 - keep)
            second[a, c - a + 1] += mass * keep
    return first, second


def divergence(one: Pairs, other: Pairs, epsilon: float) -> mp.mpf:
    factor = mp.exp(mp.mpf(epsilon))
    return mp.fsum(max(one[key] - factor * other[key], 0) for key in one)


@pytest.mark.parametrize("n", [1, 2, 3, 7, 20, 45])
@pytest.mark.parametrize("epsilon0", [1e-7, 0.1, 1.0, 4.0, 40.0])
@pytest.mark.some(10)
def test_delta_is_the_divergence_of_the_two_laws_of_the_papers_in_both_directions(n: int, epsilon0: float) -> None:
    with mp.workdps(30):
        one, other = clone_laws(n, epsilon0, 2 / (mp.exp(mp.mpf(epsilon0)) + 1))
        for share in (0.02, 0.3, 0.9, 0.99):
            epsilon = share * epsilon0
            forward, backward = divergence(one, other, epsilon), divergence(other, one, epsilon)
            ours = shuffled_delta(epsilon0=epsilon0, n=n, epsilon=epsilon)
            assert max(forward, backward) <= ours
            assert ours <= max(forward, backward) * (1 + 1e-7) + mp.mpf(1e-30)


def naive_delta(n: int, epsilon0: float, epsilon: float, chance: float) -> float:
    """The clone's δ summed term by term over every C and A that matter, without blocks or incomplete beta functions."""
    keep = 1 / (1 + math.exp(-epsilon0))
    spread = 9 * math.sqrt((n - 1) * chance)
    total = 0.0
    for c in range(max(0, int((n - 1) * chance - spread)), min(n - 1, int((n - 1) * chance + spread)) + 1):
        a = np.arange(c + 2)
        there, before = stats.binom.pmf(a - 1, c, 0.5), stats.binom.pmf(a, c, 0.5)
        p, q = keep * there + (1 - keep) * before, (1 - keep) * there + keep * before
        total += stats.binom.pmf(c, n - 1, chance) * float(np.maximum(p - math.exp(epsilon) * q, 0).sum())
    return total


def test_blocks_and_tails_agree_with_a_sum_over_every_count_at_ten_thousand_reports() -> None:
    chance = 2 / (math.e + 1)
    naive = naive_delta(10_000, 1.0, 0.0432, chance)
    assert naive <= shuffled_delta(epsilon0=1.0, n=10_000, epsilon=0.0432) <= naive * 1.002


def test_ten_thousand_reports_at_one_cost_far_less_than_the_closed_form_says() -> None:
    closed = shuffled_epsilon(epsilon0=1.0, n=10_000, delta=1e-6, method="closed form").epsilon
    assert closed == pytest.approx(0.214, abs=5e-4)
    assert shuffled_epsilon(epsilon0=1.0, n=10_000, delta=1e-6).epsilon == pytest.approx(0.0432, abs=5e-5)


def test_the_published_interval_of_the_first_clone_is_met_and_the_stronger_clone_lies_below_it() -> None:
    # apple/ml-shuffling-amplification prints 0.16754 … 0.17279 for these, with C ~ Bin(n − 1, e^{−ε₀}).
    n, epsilon0, chance = 100_000, 4.0, math.exp(-4.0)
    assert naive_delta(n, epsilon0, 0.1675385583317841, chance) >= 1e-6 >= naive_delta(n, epsilon0, 0.1727905, chance)
    assert shuffled_epsilon(epsilon0=epsilon0, n=n, delta=1e-6).epsilon < 0.1675


@pytest.mark.parametrize("epsilon0", [0.05, 0.5, 1.0, 2.0, 4.0, 6.0])
@pytest.mark.parametrize("n", [1_000, 10**5, 10**8])
@pytest.mark.parametrize("delta", [1e-4, 1e-9])
@pytest.mark.some(12)
def test_the_numerical_bound_is_never_above_the_closed_form(epsilon0: float, n: int, delta: float) -> None:
    found = shuffled_epsilon(epsilon0=epsilon0, n=n, delta=delta)
    assert found.epsilon <= epsilon0
    assert "numerical" in found.guarantee.method  # the closed form would have been taken, had it been smaller
    if epsilon0 <= math.log(n / (16 * math.log(4 / delta))):
        assert found.epsilon < shuffled_epsilon(epsilon0=epsilon0, n=n, delta=delta, method="closed form").epsilon


def test_with_more_reports_than_numbers_resolve_the_closed_form_takes_over() -> None:
    found = shuffled_epsilon(epsilon0=1.0, n=10**18, delta=1e-6)
    closed = shuffled_epsilon(epsilon0=1.0, n=10**18, delta=1e-6, method="closed form")
    assert found.epsilon == closed.epsilon and found.guarantee.method == closed.guarantee.method


# ------------------------------------------------------------------------------- against real randomisers


def shuffled_law(rows: Sequence[Sequence[float]]) -> Law:
    """The exact law of the histogram of one report from each row."""
    law: Law = {(0,) * len(rows[0]): 1.0}
    for row in rows:
        grown: defaultdict[tuple[int, ...], float] = defaultdict(float)
        for counts, mass in law.items():
            for place, chance in enumerate(row):
                grown[(*counts[:place], counts[place] + 1, *counts[place + 1 :])] += mass * chance
        law = grown
    return law


def worst_delta(channel: Sequence[Sequence[float]], n: int, epsilon: float) -> float:
    """The exact δ of n shuffled reports, over all values of everybody."""
    worst = 0.0
    for others in itertools.combinations_with_replacement(channel, n - 1):
        laws = [shuffled_law([row, *others]) for row in channel]
        for one, other in itertools.permutations(laws, 2):
            worst = max(worst, sum(max(mass - math.exp(epsilon) * other[key], 0.0) for key, mass in one.items()))
    return worst


def kary(epsilon0: float, k: int) -> list[list[float]]:
    low = 1 / (math.exp(epsilon0) + k - 1)
    return [[math.exp(epsilon0) * low if x == y else low for y in range(k)] for x in range(k)]


def unary(epsilon0: float, k: int) -> list[list[float]]:
    """Optimised unary encoding: the own bit is one half, the others are set with chance 1/(e^{ε₀} + 1)."""
    q = 1 / (math.exp(epsilon0) + 1)
    reports = list(itertools.product((0, 1), repeat=k))
    return [
        [math.prod(0.5 if j == x else (q if bit else 1 - q) for j, bit in enumerate(report)) for report in reports]
        for x in range(k)
    ]


def test_no_randomiser_among_many_exceeds_the_bound_and_some_reach_it() -> None:
    rng, nearest = np.random.default_rng(17), 0.0
    for trial in range(120):
        shape = int(rng.integers(2, 5)), int(rng.integers(2, 5))
        spread = rng.uniform(0.2, 3.0)
        weights = rng.uniform(0, spread, shape) if trial % 2 else spread * rng.integers(0, 2, shape)
        channel = np.exp(weights)
        channel /= channel.sum(axis=1, keepdims=True)
        epsilon0 = float(np.log(channel.max(axis=0) / channel.min(axis=0)).max())
        if epsilon0 < 0.05:
            continue
        n, epsilon = int(rng.integers(2, 4)), epsilon0 * rng.uniform(0.05, 0.9)
        true = worst_delta(channel.tolist(), n, epsilon)
        bound = shuffled_delta(epsilon0=epsilon0, n=n, epsilon=epsilon)
        assert true <= bound * (1 + 1e-12)
        nearest = max(nearest, true / bound)
    assert nearest > 0.999


@pytest.mark.parametrize("epsilon0", [0.3, 1.0, 3.0])
def test_every_law_of_ratios_is_below_the_binary_one_in_the_convex_order(epsilon0: float) -> None:
    """Steps 3 and 4 of the proof: E(Z − t)₊ for every t, Z of a random randomiser against that of binary response."""
    rng = np.random.default_rng(23)
    growth = math.exp(epsilon0)

    def above(ratios: Array, masses: Array, blanket: Array, epsilon: float, t: Array) -> Array:
        """E(Z − t)₊, where a ratio r = R(x)/R(x') has the mass given under R(x'), and the blanket that given."""
        values = (ratios - math.exp(epsilon)) / blanket
        covered = (masses * blanket) @ np.maximum(values[:, None] - t, 0)
        return covered + (1 - masses @ blanket) * np.maximum(-t, 0)

    ends, weights = np.array([1 / growth, growth]), np.array([growth, 1.0]) / (growth + 1)
    caught = 0
    for _ in range(200):
        epsilon = epsilon0 * rng.uniform(0, 1)
        t = np.linspace(-growth * math.exp(epsilon), growth, 400)
        low, high = np.sort(rng.uniform(1 / growth, 1, 3)), np.sort(rng.uniform(1, growth, 3))
        ratios, masses = np.concatenate([low, high]), rng.dirichlet(np.full(6, 0.5))
        up, down = masses[3:] @ (high - 1), masses[:3] @ (1 - low)
        masses[3:] *= down  # so that the mean ratio is one
        masses[:3] *= up
        masses /= masses.sum()
        binary = above(ends, weights, np.maximum(ends, 1) / growth, epsilon, t)
        assert np.all(above(ratios, masses, np.maximum(ratios, 1) / growth, epsilon, t) <= binary + 1e-12)
        # Negative control: with half the blanket, Z is too wide for the binary law.
        caught += bool(np.any(above(ends, weights, 0.5 * np.maximum(ends, 1) / growth, epsilon, t) > binary + 1e-9))
    assert caught > 150


@pytest.mark.parametrize(
    ("n", "epsilon0", "delta"), [(2, 1.0, 1e-3), (9, 0.5, 1e-2), (30, 2.0, 1e-3), (300, 1.0, 1e-5)]
)
def test_the_lower_bound_is_an_attack_on_binary_response(n: int, epsilon0: float, delta: float) -> None:
    q = 1 / (math.exp(epsilon0) + 1)
    answer = shuffled_epsilon(epsilon0=epsilon0, n=n, delta=delta).guarantee
    others = stats.binom.pmf(np.arange(n), n - 1, q)
    one, zero = np.convolve(others, [q, 1 - q]), np.convolve(others, [1 - q, q])

    def true_delta(epsilon: float) -> float:
        factor = math.exp(epsilon)
        return max(float(np.maximum(a - factor * b, 0).sum()) for a, b in ((one, zero), (zero, one)))

    assert true_delta(answer.epsilon_lower * (1 - 1e-5)) > delta >= true_delta(answer.epsilon)
    assert 0 < answer.epsilon_lower <= answer.epsilon


def test_at_ten_thousand_reports_the_two_bounds_are_a_fifth_apart() -> None:
    answer = shuffled_epsilon(epsilon0=1.0, n=10_000, delta=1e-6).guarantee
    assert 0.8 * answer.epsilon < answer.epsilon_lower < answer.epsilon
    assert shuffled_epsilon(epsilon0=1.0, n=10_000, delta=1e-6, categories=5).guarantee.epsilon_lower == 0


@pytest.mark.parametrize("epsilon0", [0.5, 2.0])
def test_kary_response_and_unary_encoding_keep_to_their_own_smaller_bound(epsilon0: float) -> None:
    growth = math.exp(epsilon0)
    for share in (0.05, 0.3, 0.7):
        epsilon = share * epsilon0
        for k, n in ((3, 5), (4, 4), (5, 3)):
            own = shuffled_delta(epsilon0=epsilon0, n=n, epsilon=epsilon, categories=k)
            assert worst_delta(kary(epsilon0, k), n, epsilon) <= own * (1 + 1e-12)
            assert own < shuffled_delta(epsilon0=epsilon0, n=n, epsilon=epsilon)
        own = shuffled_delta(epsilon0=epsilon0, n=3, epsilon=epsilon, blanket=(growth + 1) / (2 * growth))
        assert worst_delta(unary(epsilon0, 2), 3, epsilon) <= own * (1 + 1e-12)
        assert worst_delta(unary(epsilon0, 3), 2, epsilon) <= shuffled_delta(
            epsilon0=epsilon0, n=2, epsilon=epsilon, blanket=(growth + 1) / (2 * growth)
        ) * (1 + 1e-12)


def test_a_blanket_that_is_claimed_too_large_is_caught_by_the_same_comparison() -> None:
    # Negative control: 3-ary response does not have the blanket of 8-ary response.
    wrong = shuffled_delta(epsilon0=2.0, n=4, epsilon=0.5, categories=8)
    assert worst_delta(kary(2.0, 3), 4, 0.5) > wrong


@pytest.mark.parametrize(("epsilon0", "epsilon"), [(1.0, 0.25), (1e-6, 2e-7), (6.0, 3.0)])
def test_the_sum_over_three_outcomes_matches_a_direct_multinomial_sum(epsilon0: float, epsilon: float) -> None:
    n, k = 40, 4
    gamma, each = kary_blanket(epsilon0=epsilon0, categories=k), 1 / (math.exp(epsilon0) + k - 1)
    total = 0.0
    for a in range(n + 1):
        for b in range(n + 1 - a):
            s = np.arange(n + 1 - a - b)
            value = math.exp(epsilon) * math.expm1(epsilon0 - epsilon) * a - math.expm1(epsilon0 + epsilon) * b
            chance = stats.multinomial.pmf(
                np.stack([np.full_like(s, a), np.full_like(s, b), s, n - a - b - s], axis=1),
                n,
                [each, each, gamma - 2 * each, 1 - gamma],
            )
            total += float(np.sum(chance * np.maximum(value - math.expm1(epsilon) * s, 0))) / n
    ours = shuffled_delta(epsilon0=epsilon0, n=n, epsilon=epsilon, categories=k)
    assert total <= ours <= total * 1.001


# --------------------------------------------------------------------------------------------- the answers


def test_scipy_s_binomial_tails_are_ten_times_better_than_the_margin() -> None:
    with mp.workdps(30):
        for trials, chance, spread in ((1_000, 0.5, 6), (10**6, 0.1, 4), (10**8, 0.5, 5)):
            k = int(trials * chance + spread * math.sqrt(trials * chance * (1 - chance)))
            p, total, j = mp.mpf(chance), mp.mpf(0), k
            term = mp.binomial(trials, k) * p**k * (1 - p) ** (trials - k)
            while term > total * mp.mpf(10) ** -16:
                total += term
                term, j = term * (trials - j) / (j + 1) * p / (1 - p), j + 1
            assert abs(betainc(k, trials - k + 1, chance) / float(total) - 1) < 1e-11


def test_more_reports_more_categories_and_fewer_colluders_never_cost_more() -> None:
    by_n = [shuffled_epsilon(epsilon0=2.0, n=n, delta=1e-6).epsilon for n in (1, 10, 300, 10_000, 10**6, 10**12)]
    assert by_n == sorted(by_n, reverse=True) and by_n[0] == 2.0
    by_k = [shuffled_epsilon(epsilon0=1.0, n=400, delta=1e-4, categories=k).epsilon for k in (2, 3, 8, 40)]
    assert by_k == sorted(by_k, reverse=True)
    known = shuffled_epsilon(epsilon0=1.0, n=2_000, delta=1e-5, colluders=1_000)
    assert known.epsilon == shuffled_epsilon(epsilon0=1.0, n=1_000, delta=1e-5).epsilon
    assert known.n == 2_000 and "1000 of them known" in str(known)


@pytest.mark.parametrize("categories", [None, 5])
def test_the_largest_local_epsilon_fits_and_one_percent_more_does_not(categories: int | None) -> None:
    local = largest_local_epsilon(epsilon=0.2, n=150, delta=1e-5, categories=categories)
    assert shuffled_epsilon(epsilon0=local, n=150, delta=1e-5, categories=categories).epsilon <= 0.2
    assert shuffled_epsilon(epsilon0=local * 1.01, n=150, delta=1e-5, categories=categories).epsilon > 0.2
    assert largest_local_epsilon(epsilon=0.2, n=1, delta=1e-5, categories=categories) == 0.2


def test_the_answer_says_of_whom_against_whom_and_on_whose_word() -> None:
    answer = shuffled_epsilon(epsilon0=1.0, n=10_000, delta=1e-6)
    assert isinstance(answer, ShuffledReports)
    assert answer.guarantee.neighbours is Neighbours.REPLACE_ONE and answer.guarantee.observer is Observer.RECIPIENTS
    assert answer.messages == 20_000 and answer.delta == 1e-6
    assert "the shuffler" in answer.trusted[0] and "trusted: the shuffler" in str(answer)
    assert answer.to_dict()["guarantee"]["epsilon"] == answer.epsilon
    with pytest.raises(dataclasses.FrozenInstanceError):
        answer.n = 5  # type: ignore[misc]


@pytest.mark.parametrize("epsilon0", [1e-3, 0.2, 3.0, 9.0, 20.0, 40.0, 200.0])
@pytest.mark.parametrize("n", [1, 5, 100, 10**5, 10**9])
@pytest.mark.parametrize("delta", [0.1, 1e-3, 1e-12])
@pytest.mark.some(20)
def test_the_two_bounds_never_contradict_each_other(epsilon0: float, n: int, delta: float) -> None:
    answer = shuffled_epsilon(epsilon0=epsilon0, n=n, delta=delta).guarantee  # which raises where they do
    assert 0 <= answer.epsilon_lower <= answer.epsilon <= epsilon0


@pytest.mark.parametrize("epsilon0", [30.0, 36.7, 37.5, 60.0, 500.0])
@pytest.mark.parametrize("categories", [None, 4])
def test_a_local_epsilon_that_hides_nothing_stays_as_large_among_a_thousand(
    epsilon0: float, categories: int | None
) -> None:
    answer = shuffled_epsilon(epsilon0=epsilon0, n=1_000, delta=1e-6, categories=categories)
    assert answer.epsilon > 0.9 * epsilon0


def test_what_buys_nothing_and_a_large_delta_are_said() -> None:
    assert "too few to buy anything" in str(shuffled_epsilon(epsilon0=3.0, n=1, delta=1e-6))
    assert "not below 1/n" in str(shuffled_epsilon(epsilon0=1.0, n=10_000, delta=1e-3))


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"epsilon0": 0.0}, "epsilon0"),
        ({"epsilon0": math.nan}, "epsilon0"),
        ({"epsilon0": 1e4}, "hides nothing"),
        ({"n": 0}, "n = 0"),
        ({"n": 2.5}, "n = 2.5"),
        ({"delta": 0.0}, "delta"),
        ({"delta": 1.0}, "delta"),
        ({"categories": 1}, "categories"),
        ({"blanket": 1.5}, "blanket"),
        ({"categories": 3, "blanket": 0.9}, "state one of the two"),
        ({"colluders": 100}, "leaves no other"),
        ({"method": "guess"}, "is no bound"),
        ({"method": "closed form"}, "outside the closed form"),
    ],
)
def test_what_has_no_meaning_is_refused(changes: dict[str, object], match: str) -> None:
    arguments: dict[str, object] = {"epsilon0": 1.0, "n": 100, "delta": 1e-6} | changes
    with pytest.raises(InvalidParameter, match=match):
        shuffled_epsilon(**arguments)  # type: ignore[arg-type]
    with pytest.raises(InvalidParameter, match="epsilon"):
        shuffled_delta(epsilon0=1.0, n=10, epsilon=-0.1)
