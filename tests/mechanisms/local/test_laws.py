"""Every protocol draws from its law, and its law keeps the ε that it claims, in fractions."""

from __future__ import annotations

import collections
import math
from fractions import Fraction

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, strategies
from scipy import stats

from mechanisms.laws import FITS, MISSES
from mechanisms.local.surveys import WORD, Law, law_of, report_tuples, small, window_weights
from quietsum.errors import InvalidParameter
from quietsum.mechanisms.local import (
    Ball,
    Interval,
    LocalHashing,
    MeanProtocol,
    PrivUnit,
    Rappor,
    categories,
    make_protocol,
)
from quietsum.mechanisms.local.exact import Cells, coins, exp_below
from quietsum.mechanisms.local.mean import Window
from quietsum.mechanisms.local.vectors import draw_directions
from quietsum.mechanisms.rng import randomness_for_tests

LISTED = ("k-rr", "oue", "sue", "rappor", "hadamard", "cms", "hcms")
EPSILONS = (0.1, 1.0, math.pi, 12.0)


@pytest.fixture(autouse=True)
def seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUIETSUM_TEST_SEEDS", "1")


def exp(epsilon: float) -> mp.mpf:
    """e^ε by another library, to 80 digits."""
    with mp.workdps(80):
        return mp.exp(mp.mpf(epsilon))


def keeps(ratio: Fraction, epsilon: float) -> bool:
    """Whether a likelihood ratio is at most e^ε."""
    with mp.workdps(80):
        return bool(mp.mpf(ratio.numerator) / mp.mpf(ratio.denominator) <= exp(epsilon))


def worst(laws: list[Law]) -> Fraction:
    """The largest ratio of one report's chances under two answers."""
    return max(one[report] / other[report] for one in laws for other in laws for report in one)


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("name", LISTED)
def test_no_report_is_more_than_e_to_the_epsilon_times_as_likely_under_one_answer_than_another(
    name: str, epsilon: float
) -> None:
    laws = [law_of(small(name, epsilon), value) for value in range(3)]
    assert all(sum(law.values()) == 1 for law in laws)
    ratio = worst(laws)
    assert keeps(ratio, epsilon)
    if name not in ("rappor",):  # there answers may share bits, and then cost less
        assert not keeps(ratio * (1 + Fraction(1, 10**6)), epsilon)


@pytest.mark.parametrize("name", LISTED)
def test_a_protocol_with_five_percent_more_than_it_claims_is_found_out(name: str) -> None:
    laws = [law_of(small(name, 1.05), value) for value in range(3)]
    assert not keeps(worst(laws), 1.0)


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_hashing_and_means_keep_their_epsilon_in_integers(epsilon: float) -> None:
    hashing = LocalHashing(domain=categories(7), epsilon=epsilon)
    assert hashing.cells.high + hashing.cells.others * hashing.cells.low == WORD
    assert hashing.cells.others == hashing.values - 1
    assert keeps(Fraction(hashing.cells.high, hashing.cells.low), epsilon)
    mean = MeanProtocol(domain=Interval(low=-1, high=1), epsilon=epsilon, method="hybrid")
    window = mean.window
    left, right = window_weights(mean, 0), window_weights(mean, window.outside)
    assert sum(left) == sum(right) == WORD
    ratio = max(Fraction(one, other) for one, other in set(zip(left.tolist(), right.tolist(), strict=True)))
    assert keeps(ratio, epsilon)
    assert not keeps(ratio * (1 + Fraction(1, 10**3)), epsilon)
    assert keeps(Fraction(WORD - mean.low, mean.low), epsilon)  # Duchi's chances lie between low and 1 − low
    for fields in ({"method": "duchi"}, {"method": "hybrid"}):
        wider = MeanProtocol(domain=mean.domain, epsilon=1.05 * epsilon, **fields)  # type: ignore[arg-type]
        assert not keeps(Fraction(WORD - wider.low, wider.low), epsilon)


def test_duchis_chances_never_leave_their_bounds_at_the_ends() -> None:
    """At ±1 the chance of a + is 1 − low and low up to a float's last bits, which never push it beyond."""
    mean = MeanProtocol(domain=Interval(low=-1, high=1), epsilon=20.0, method="duchi")

    class Fixed:
        """A source whose next word is the first beyond the smaller chance."""

        def __init__(self, word: int) -> None:
            self.word = word

        def words(self, count: int) -> np.ndarray:
            return np.full(count, self.word, dtype=np.uint64)

    ends = np.array([-1.0, 1.0])
    assert mean._signs(ends, Fixed(mean.low + 1024)).tolist() == [0, 1]  # type: ignore[arg-type]
    assert mean._signs(ends, Fixed(mean.low - 1)).tolist() == [1, 1]  # type: ignore[arg-type]
    assert mean._signs(ends, Fixed(WORD - mean.low)).tolist() == [0, 0]  # type: ignore[arg-type]


@pytest.mark.parametrize(("dimension", "epsilon"), [(1, 1.0), (2, 0.5), (16, 4.0), (200, 8.0)])
def test_privunit_keeps_its_epsilon_with_the_cap_by_another_library(dimension: int, epsilon: float) -> None:
    found = PrivUnit(domain=Ball(dimension=dimension), epsilon=epsilon)
    gamma, chance = found.cap

    def ratio(words: int) -> mp.mpf:
        inside = mp.betainc(mp.mpf(dimension) / 2, 0.5, 0, 1 - mp.mpf(gamma) ** 2, regularized=True) / 2
        p = mp.mpf(words) / WORD
        return p / (1 - p) * (1 - inside) / inside

    assert ratio(chance) <= mp.exp(epsilon)
    assert ratio(chance) >= mp.exp(epsilon) * (1 - mp.mpf(1e-5))
    wider = PrivUnit(domain=found.domain, epsilon=1.05 * epsilon)
    gamma, chance = wider.cap
    assert ratio(chance) > mp.exp(epsilon)


@pytest.mark.parametrize("dimension", [10, 1000, 100_000])
def test_privunit_keeps_its_epsilon_where_seeds_lie_as_unevenly_as_all_directions_allow(
    dimension: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def worst(found: PrivUnit) -> mp.mpf:
        gamma, chance = found.cap
        share = mp.betainc(mp.mpf(dimension) / 2, 0.5, 0, 1 - mp.mpf(gamma) ** 2, regularized=True) / 2
        many = (dimension + 2) * mp.log(2 * mp.e * WORD) + mp.log(4) + 128 * mp.log(2)
        fewest = share * (1 - 2 * mp.sqrt(many / (WORD * share)))
        p = mp.mpf(chance) / WORD
        return p / (1 - p) * (1 - fewest) / fewest

    assert worst(PrivUnit(domain=Ball(dimension=dimension), epsilon=8.0)) <= mp.exp(8)
    monkeypatch.setattr(PrivUnit, "_uneven", lambda self, share: 0.0)  # the control: room for rounding alone
    assert (worst(PrivUnit(domain=Ball(dimension=dimension), epsilon=8.0)) > mp.exp(8)) == (dimension > 10)


def test_privunit_refuses_an_epsilon_that_the_unevenness_of_seeds_exceeds() -> None:
    assert PrivUnit(domain=Ball(dimension=10), epsilon=1e-5).cap
    with pytest.raises(InvalidParameter, match="too small for 1000000 coordinates"):
        PrivUnit(domain=Ball(dimension=1_000_000), epsilon=1e-5).length  # noqa: B018


def test_rappor_states_and_keeps_one_epsilon_for_a_report_and_one_for_ever() -> None:
    found = Rappor(domain=categories(3), epsilon=1.0, permanent_epsilon=3.0, size=64, hashes=2, cohorts=1, seed=1)
    first, wrong = Fraction(found.flips[0], WORD), found.wrong
    most = 2 * found.hashes  # bits in which two answers may differ
    assert keeps(((1 - wrong) / wrong) ** most, 1.0)
    assert not keeps(((1 - wrong) / wrong) ** most * Fraction(1001, 1000), 1.0)
    assert keeps(((1 - first) / first) ** most, 3.0)
    assert not keeps(((1 - first) / first) ** most * Fraction(1001, 1000), 3.0)
    assert found.event().epsilon == 1.0  # type: ignore[attr-defined]
    assert found.event_forever().epsilon == 3.0  # type: ignore[attr-defined]
    assert [found.longitudinal_epsilon(count) for count in (1, 2, 3, 10**6)] == [1, 2, 3, 3]


def test_the_papers_rappor_has_the_papers_prices() -> None:
    """f = ½, q = ¾, p = ½ and h = 2: 4 ln 3 for ever (Erlingsson et al. 2014, section 3.2); ours with that ε∞."""
    found = Rappor(domain=categories(3), epsilon=1.0, permanent_epsilon=4 * math.log(3), hashes=2)
    assert found.flips[0] / WORD == pytest.approx(0.25, abs=1e-12)  # f/2


def test_many_reports_of_one_permanent_response_tell_it_and_no_more() -> None:
    """Averaging undoes the second flip and stops at the permanent response."""
    rng = randomness_for_tests(3)
    found = Rappor(domain=categories(3), epsilon=0.5, permanent_epsilon=2.0, size=64, cohorts=1, seed=1)
    kept = found.permanent(["0"] * 50, rng)
    total = np.zeros((50, 64), dtype=int)
    for _ in range(2000):
        total += np.unpackbits(found.report(kept, rng)["bits"], axis=1)
    told = total > 1000
    permanent = np.unpackbits(kept["bits"], axis=1).astype(bool)
    assert (told == permanent).mean() > 0.999
    assert 0.2 < (permanent != found.filters[0, 0]).mean() < 0.5  # which is not the answer


@pytest.mark.parametrize("name", LISTED)
def test_reports_follow_the_law_and_not_one_with_five_percent_more(name: str) -> None:
    epsilon = 6.0 if name == "rappor" else 1.0  # there ε is shared by four bits
    found, rng = small(name, epsilon), randomness_for_tests(11)
    counts = collections.Counter(report_tuples(found, found.privatize(np.full(200_000, 1), rng)))

    def fit(law: Law) -> float:
        assert set(counts) <= set(law)
        observed = np.array([counts[report] for report in law])
        return float(stats.chisquare(observed, np.array([float(chance) for chance in law.values()]) * 200_000).pvalue)

    assert fit(law_of(found, 1)) > FITS
    assert fit(law_of(small(name, 1.05 * epsilon), 1)) < MISSES
    assert fit(law_of(small(name, 0.95 * epsilon), 1)) < MISSES


def test_hashed_answers_follow_randomised_response_on_the_hash() -> None:
    found, rng = LocalHashing(domain=categories(50), epsilon=1.5), randomness_for_tests(12)
    reports = found.privatize(np.full(200_000, 17), rng)
    hashed = [
        ((int(a) * 17 + int(b)) % 2**64 // 2**32) * found.values // 2**32
        for a, b in zip(reports["a"][:200_000].tolist(), reports["b"].tolist(), strict=True)
    ]
    shift = (reports["answer"].astype(np.int64) - np.array(hashed)) % found.values
    observed = np.bincount(shift, minlength=found.values)

    def fit(cells: Cells) -> float:
        chances = np.array([cells.high, *[cells.low] * cells.others], dtype=float) / WORD
        return float(stats.chisquare(observed, chances * 200_000).pvalue)

    assert fit(found.cells) > FITS
    assert fit(Cells.private(1.5 * 1.05, others=found.values - 1)) < MISSES


@pytest.mark.parametrize("number", [-1.0, -0.3, 0.0, 0.7, 1.0])
def test_piecewise_reports_follow_the_papers_density(number: float) -> None:
    """Against the continuous distribution function of Wang et al. 2019, equation 5, at the middle of each cell."""
    epsilon = 1.0
    found, rng = (
        MeanProtocol(domain=Interval(low=-1, high=1), epsilon=epsilon, method="piecewise"),
        randomness_for_tests(4),
    )
    cells = found.privatize(np.full(100_000, number), rng)["cell"].astype(np.int64)

    def cdf(t: np.ndarray, epsilon: float) -> np.ndarray:
        root = math.exp(epsilon / 2)
        reach = (root + 1) / (root - 1)
        density = (math.exp(epsilon) - root) / (2 * root + 2)
        left = (reach + 1) / 2 * number - (reach - 1) / 2
        inside = np.clip(t - left, 0, reach - 1)
        return density * inside + density / math.exp(epsilon) * (np.clip(t + reach, 0, 2 * reach) - inside)

    values = found._stand_ins(cells)
    assert stats.kstest(values, lambda t: cdf(t, epsilon)).pvalue > FITS
    assert stats.kstest(values, lambda t: cdf(t, 1.05 * epsilon)).pvalue < MISSES


def test_duchis_reports_are_plus_with_its_chance() -> None:
    found = MeanProtocol(domain=Interval(low=-1, high=1), epsilon=1.0, method="duchi")
    plus = int(found.privatize(np.full(400_000, 0.5), randomness_for_tests(6))["cell"].sum())
    chance = 0.5 + 0.5 * (math.e - 1) / (2 * (math.e + 1))
    assert stats.binomtest(plus, 400_000, chance).pvalue > FITS
    assert stats.binomtest(plus, 400_000, 0.5 + 0.5 * math.tanh(1.05 / 2) / 2).pvalue < MISSES


def test_privunits_directions_lie_in_the_cap_as_often_as_the_coin_says() -> None:
    found, rng = PrivUnit(domain=Ball(dimension=5), epsilon=2.0), randomness_for_tests(7)
    gamma, chance = found.cap
    seeds = found.privatize(np.tile([1.0, 0, 0, 0, 0], (50_000, 1)), rng)["seed"]
    inside = int((draw_directions(seeds, 6)[:, 0] >= gamma).sum())
    assert stats.binomtest(inside, 50_000, chance / WORD).pvalue > FITS
    wider = PrivUnit(domain=found.domain, epsilon=2.1)
    assert stats.binomtest(inside, 50_000, wider._chance(gamma) / WORD).pvalue < FITS


def test_directions_of_seeds_are_uniform_on_the_sphere() -> None:
    drawn = draw_directions(randomness_for_tests(8).words(40_000), 4)
    assert np.abs(np.linalg.norm(drawn, axis=1) - 1).max() < 1e-12
    for place in range(4):  # (t + 1) / 2 has a Beta law
        assert stats.kstest((drawn[:, place] + 1) / 2, stats.beta(1.5, 1.5).cdf).pvalue > FITS
    assert np.abs(drawn.T @ drawn / 40_000 - np.eye(4) / 4).max() < 0.006


@pytest.mark.parametrize("threshold", [1 << 20, (1 << 63) + 12345, WORD - (1 << 40), 3 << 48])
def test_coins_of_16_bits_fall_as_often_as_their_64_say(threshold: int) -> None:
    heads = int(coins(randomness_for_tests(9), threshold, 1_000_000).sum())
    assert stats.binomtest(heads, 1_000_000, threshold / WORD).pvalue > FITS


def test_where_16_bits_tie_the_other_48_decide() -> None:
    """A threshold whose first 16 bits are 0 is decided by ties alone."""

    class Counting:
        """Words of which the first 16 bits are 0, then words around the threshold."""

        def __init__(self) -> None:
            self.calls = 0

        def words(self, count: int) -> np.ndarray:
            self.calls += 1
            if self.calls == 1:
                return np.zeros(count, dtype=np.uint64)
            return (np.array([999, 1000, 1001, 1002], dtype=np.uint64) << np.uint64(16))[:count]

    assert coins(Counting(), 1000 << 0, 4).tolist() == [True, False, False, False]  # type: ignore[arg-type]


@given(epsilon=strategies.floats(1e-6, 20), others=strategies.integers(1, 1 << 20))
def test_cells_keep_any_epsilon_for_any_number_of_answers(epsilon: float, others: int) -> None:
    cells = Cells.private(epsilon, others=others)
    assert cells.high + others * cells.low == WORD
    assert cells.high > cells.low > 0
    assert keeps(Fraction(cells.high, cells.low), epsilon)
    assert not keeps(Fraction(cells.high + others + 1, cells.low - 1), epsilon)  # no larger share would


@given(epsilon=strategies.floats(1e-6, 20))
def test_windows_keep_any_epsilon_and_fill_the_word(epsilon: float) -> None:
    window = Window.private(epsilon)
    assert window.inside * window.high + window.outside * window.low == WORD
    assert keeps(Fraction(window.high, window.low), epsilon)


def test_the_lower_bound_of_e_to_the_epsilon_is_one() -> None:
    for epsilon in (1e-6, 0.1, 1.0, 19.99):
        below = exp_below(epsilon)
        assert keeps(below, epsilon)
        assert not keeps(below * (1 + Fraction(1, 10**50)), epsilon)


def test_an_event_prices_no_less_than_what_is_drawn() -> None:
    for size, epsilon in ((2, 0.5), (5, 1.0), (100, 3.0)):
        found = make_protocol("k-rr", size, epsilon)
        event = found.event()
        assert event.epsilon == pytest.approx(epsilon, rel=1e-12)  # type: ignore[attr-defined]
        exact = Fraction(found.cells.high, found.cells.low)  # type: ignore[attr-defined]
        with mp.workdps(60):
            assert mp.mpf(event.epsilon) >= mp.log(mp.mpf(exact.numerator) / exact.denominator) * (1 - mp.mpf(2) ** -50)  # type: ignore[attr-defined]
