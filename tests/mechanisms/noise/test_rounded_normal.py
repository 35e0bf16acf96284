from __future__ import annotations

import math
from collections.abc import Callable

import mpmath as mp
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from mechanisms.laws import FITS, MISSES, chi_square_p
from quietsum.errors import InvalidParameter
from quietsum.mechanisms.noise import rounded_normal
from quietsum.mechanisms.noise.rounded_normal import FAILURE_PER_DRAW, MARGIN, decide, rounded_normals, tail_bits
from quietsum.mechanisms.rng import RandomSource, randomness_for_tests
from quietsum.privacy.exact.closed_forms import gaussian_delta

N = 200_000


@pytest.fixture
def rng(monkeypatch: pytest.MonkeyPatch) -> RandomSource:
    monkeypatch.setenv("QUIETSUM_TEST_SEEDS", "1")
    return randomness_for_tests(77)


def rounded_pmf(scale: float) -> Callable[[int], float]:
    def pmf(k: int) -> float:
        k = abs(k)  # in the upper tail, where nothing cancels
        return float(ndtr(-(k - 0.5) / scale) - ndtr(-(k + 0.5) / scale))

    return pmf


@pytest.mark.parametrize("scale", [0.3, 1.0, 2.5, 40.0])
def test_draws_fit_their_law_and_not_that_of_another_scale(rng: RandomSource, scale: float) -> None:
    draws = rng.rounded_normals(scale, N)
    assert chi_square_p(draws, rounded_pmf(scale)) > FITS
    assert chi_square_p(draws, rounded_pmf(scale * 0.95)) < MISSES
    assert chi_square_p(draws, rounded_pmf(scale * 1.05)) < MISSES


def test_the_slow_path_alone_fits_too(rng: RandomSource) -> None:
    draws = rounded_normals(2.5, 20_000, rng.words, margin=1.0)
    assert chi_square_p(draws, rounded_pmf(2.5)) > FITS
    assert chi_square_p(draws, rounded_pmf(2.5 * 0.9)) < MISSES


def test_draws_do_not_follow_one_another(rng: RandomSource) -> None:
    draws = rng.rounded_normals(2.0**20, N).astype(np.float64)
    for lag in (1, 2, 7, 2048):
        assert abs(np.corrcoef(draws[lag:], draws[:-lag])[0, 1]) < 5 / math.sqrt(N)


@pytest.mark.parametrize(("scale", "move"), [(0.5, 1), (3.0, 2), (3.0, 5), (40.0, 33)])
def test_on_integers_rounded_noise_costs_at_most_what_the_gaussian_costs(scale: float, move: int) -> None:
    """Rounding is post-processing: P(A) ≤ e^ε Q(A) + δ with the Gaussian's δ, summed over all integers."""
    pmf = rounded_pmf(scale)
    reach = int(14 * scale) + move
    for epsilon in (0.0, 0.1, 1.0, 3.0):
        cost = sum(max(0.0, pmf(k - move) - math.exp(epsilon) * pmf(k)) for k in range(-reach, reach + 1))
        ideal = gaussian_delta(move / scale, epsilon)
        assert cost <= ideal * (1 + 1e-9)
        assert cost > gaussian_delta(0.9 * move / scale, epsilon) or scale < 10  # and on a fine grid hardly less


class Replayed:
    """The same first bits for every caller; bits that come later are of no consequence to the result."""

    def __init__(self, first: NDArray[np.uint64], rng: RandomSource) -> None:
        self.first, self.rng = first, rng
        self.calls = 0

    def __call__(self, count: int) -> NDArray[np.uint64]:
        self.calls += 1
        return self.first if self.calls == 1 else self.rng.words(count)


@pytest.mark.parametrize("scale", [1e-3, 0.7, 1.0, 300.5, 2.0**24, 3e9])
def test_slow_and_fast_path_agree_on_the_same_bits(rng: RandomSource, scale: float) -> None:
    bits = rng.words(3000)
    bits = bits[(bits >> np.uint64(1)) >= rounded_normal._TAIL]  # one word each
    fast, slow = Replayed(bits, rng), Replayed(bits, rng)
    quick = rounded_normals(scale, bits.size, fast)
    assert np.array_equal(quick, rounded_normals(scale, bits.size, slow, margin=2.0 / scale))
    assert slow.calls > bits.size  # every draw read on
    assert fast.calls < 10  # hardly any did


def test_floats_alone_would_round_some_draws_wrongly(rng: RandomSource) -> None:
    """The negative control of the margin: without it, a wide grid gets wrong integers."""
    wrong = 0
    for _ in range(6):
        bits = rng.words(rounded_normal._CHUNK)
        bits[(bits >> np.uint64(1)) < rounded_normal._TAIL] |= np.uint64(1 << 62)
        right = rounded_normals(2.0**40, bits.size, Replayed(bits, rng))
        trusting = rounded_normals(2.0**40, bits.size, Replayed(bits, rng), margin=0.0)
        wrong += int(np.count_nonzero(right != trusting))
        assert np.max(np.abs(right - trusting)) <= 1
    assert 0 < wrong < bits.size / 100


def test_scipys_ndtri_is_far_better_than_the_margin() -> None:
    """The one thing the fast path believes, against mpmath: Newton's step from scipy's answer to the root."""
    mp.mp.prec = 160
    spread = np.random.default_rng(5)
    points = np.concatenate(
        [
            spread.uniform(0, 0.5, 600),
            2.0 ** -spread.uniform(1, 128, 600),
            0.5 - 2.0 ** -spread.uniform(2, 50, 200),
            math.exp(-2) * (1 + 1e-6 * spread.uniform(-1, 1, 100)),  # where its approximation changes
            math.exp(-32) * (1 + 1e-6 * spread.uniform(-1, 1, 100)),
        ]
    )
    worst = 0.0
    for u in points.tolist():
        x = mp.mpf(float(ndtri(u)))
        root = x - (mp.ncdf(x) - mp.mpf(u)) / mp.npdf(x)
        worst = max(worst, float(abs(root - x) / (1 + abs(root))))
    bits_of_u = 3 * 2.0**-53 * 1.2534  # two roundings and the digits not read; Mills' ratio is largest at zero
    product = 2.0**-52
    assert worst + bits_of_u + product < MARGIN / 16


@pytest.mark.parametrize(
    ("halves", "scale"),
    [(1, 0.3), (3, 1.0), (7, 1.5), (31, 1.0), (33, 1.0), (1, 2.0**40), (2**42 + 1, 2.0**40), (999, 77.7), (5, 1e-3)],
)
def test_tail_probabilities_against_mpmath(halves: int, scale: float) -> None:
    mp.mp.prec = 900
    ideal = mp.erfc(mp.mpf(halves) / (2 * mp.mpf(scale)) / mp.sqrt(2)) / 2 * mp.mpf(2) ** 192
    assert abs(tail_bits(halves, scale) - ideal) <= 1


@pytest.mark.parametrize("scale", [0.9, 12.25, 2.0**24, 2.0**40])
def test_more_bits_decide_at_the_very_boundary(scale: float) -> None:
    boundary = max(1, int(1.7 * scale))  # between boundary − 1 and boundary
    edge = tail_bits(2 * boundary - 1, scale)
    for candidate in (boundary - 1, boundary, boundary + 1, max(boundary - 2, 0)):
        assert decide(candidate, scale, edge - 1) == boundary
        assert decide(candidate, scale, edge) == boundary - 1


def test_bits_that_run_out_end_the_search_instead_of_running_forever() -> None:
    assert 15 < decide(15, 1.0, 0) <= 17
    assert decide(0, 1e-6, 0) == 0


def test_a_first_word_of_zeros_reads_on() -> None:
    answers = iter([[0], [2**63], [5]])
    drawn = rounded_normals(1.0, 1, lambda count: np.array(next(answers), dtype=np.uint64))
    mp.mp.prec = 200
    reach = mp.findroot(lambda x: mp.erfc(x / mp.sqrt(2)) / 2 - mp.mpf(2) ** -65, 9)
    assert drawn.tolist() == [round(float(reach))]


def test_the_failure_covers_every_boundary_in_reach() -> None:
    boundaries = 2 * 17 * 2.0**40 + 1
    per_boundary = 2 * 2.0**-190
    assert boundaries * per_boundary + 2.0**-190 < FAILURE_PER_DRAW


@pytest.mark.parametrize("scale", [0.0, -1.0, math.nan, math.inf, 2.0**41, "1", None])
def test_scales_outside_the_domain_are_refused(rng: RandomSource, scale: float) -> None:
    with pytest.raises(InvalidParameter, match="scale"):
        rng.rounded_normals(scale, 3)


def test_tiny_scales_round_to_zero(rng: RandomSource) -> None:
    assert not rng.rounded_normals(1e-300, 1000).any()
    assert not rng.rounded_normals(5e-324, 1000).any()
