"""ln φ(c + it) against mpmath: every value within its stated error, every tail below its stated bound."""

from __future__ import annotations

import fractions
import itertools
import math

import mpmath as mp
import numpy as np
import pytest

from privacy.oracle import Step, log_phi, phi
from quietsum.privacy.exact import contour, mixtures
from quietsum.privacy.exact.contour import Direction, Spectrum, grid, has_contour, log_tail, spectrum
from quietsum.privacy.exact.mixtures import ROUNDING, integrand, log_ratio, window
from quietsum.privacy.pairs import GaussianPair, LaplacePair, MixturePair, OppositePair, Pair

REMOVE, ADD = Direction.REMOVE, Direction.ADD

# (pair, direction, c, distance of nodes); the last node of 64 is at 63 s, where some φ are long lost in rounding
CASES = [
    (MixturePair(1.0, 0.01), REMOVE, 3.0, 0.4),
    (MixturePair(1.0, 0.01), ADD, 3.0, 0.4),
    (MixturePair(1.0, 0.01), REMOVE, 0.01, 20.0),
    (MixturePair(1.0, 0.01), REMOVE, 16.0, 1.0),
    (MixturePair(1.0, 1e-6), REMOVE, 8.0, 5e4),
    (MixturePair(1.0, 1e-6), ADD, 8.0, 5e4),
    (MixturePair(0.3, 0.05), REMOVE, 1.5, 0.2),
    (MixturePair(0.3, 0.05), ADD, 4.0, 1.0),
    (MixturePair(0.3, 1e-6), REMOVE, 2.5, 0.1),
    (MixturePair(50.0, 0.2), REMOVE, 2000.0, 40.0),
    (MixturePair(50.0, 0.2), ADD, 2000.0, 40.0),
    (MixturePair(50.0, 1e-6), REMOVE, 5e4, 1e5),
    (MixturePair(0.7, 0.9), REMOVE, 1.0, 0.05),
    (MixturePair(0.7, 0.9), ADD, 1.0, 0.1),
    (MixturePair(0.5, 0.999999), ADD, 3.0, 0.25),
    (MixturePair(0.5, 1 - 1e-12), ADD, 3.0, 0.25),
    (MixturePair(0.3, 1 - 1e-12), REMOVE, 0.5, 0.02),
    (MixturePair(2.0, 0.1, 3), REMOVE, 4.0, 0.2),
    (MixturePair(2.0, 0.1, 3), ADD, 4.0, 0.4),
    (MixturePair(2.231, 0.0032, 10), REMOVE, 1.0, 0.5),
    (MixturePair(2.231, 0.0032, 10), ADD, 2.0, 2.0),
    (MixturePair(6.0, 0.9, 10), ADD, 1.0, 0.05),
    (OppositePair(1.0, 0.1), REMOVE, 3.0, 0.4),
    (OppositePair(1.0, 0.1), ADD, 3.0, 0.4),
    (OppositePair(0.4, 0.01), REMOVE, 1.0, 0.3),
    (OppositePair(20.0, 1e-4), REMOVE, 900.0, 5e3),
    (OppositePair(0.6, 0.999), REMOVE, 0.7, 0.03),
    (MixturePair(0.07, 0.01), REMOVE, 0.3, 0.01),  # exponents beyond 300
    (MixturePair(0.25, 0.01, 3), REMOVE, 1.0, 0.02),
]


def true_step(pair: Pair, direction: Direction) -> Step:
    if isinstance(pair, OppositePair):
        return Step(pair.sigma, pair.rate, "opposite")
    if isinstance(pair, GaussianPair):
        return Step(pair.sigma, 1.0)
    assert isinstance(pair, MixturePair)
    return Step(pair.sigma, pair.rate, direction.value, pair.size)


def worst_excess(pair: Pair, direction: Direction, c: float, s: float, found: Spectrum) -> float:
    """By how much the error of some value exceeds what is stated for it (≤ 0 if all is well)."""
    worst = -math.inf
    for k in (0, 1, 2, 5, 13, 30, 63):
        truth = log_phi(true_step(pair, direction), mp.mpc(c, k * mp.mpf(s)))
        value = mp.mpc(complex(found.log_phi[k]))
        if found.error[k] > 1:  # lost: only |φ| ≤ e^Re is claimed
            worst = max(worst, float(mp.re(truth) - mp.re(value)) - float(found.error[k] - math.log(3)))
            continue
        off = value - truth
        off = mp.mpc(mp.re(off), mp.im(off) - 2 * mp.pi * mp.nint(mp.im(off) / (2 * mp.pi)))
        worst = max(worst, float(abs(off)) - float(found.error[k]))
    return worst


@pytest.mark.parametrize(("pair", "direction", "c", "s"), CASES)
@pytest.mark.some(8)
def test_every_value_is_within_its_stated_error(pair: Pair, direction: Direction, c: float, s: float) -> None:
    found = spectrum(pair, direction, c, s, 64)
    assert worst_excess(pair, direction, c, s, found) <= 0
    assert found.error[0] < 2e-11 * (1 + abs(found.log_phi[0]))  # and the error is not an excuse


@pytest.mark.parametrize(("pair", "direction", "c", "s"), CASES)
@pytest.mark.some(8)
def test_tails_bound_everything_beyond(pair: Pair, direction: Direction, c: float, s: float) -> None:
    step = true_step(pair, direction)
    for t in (s / 2, 5 * s, 60 * s):
        bound = log_tail(pair, direction, c, t)
        beyond = [float(mp.re(log_phi(step, mp.mpc(c, mp.mpf(t) * f)))) for f in (1, 1.03, 1.7, 10)]
        assert bound >= max(beyond)
        assert bound <= float(log_phi(step, mp.mpf(c)).real) + 1e-11


def test_tails_are_close_enough_to_be_useful() -> None:
    for pair, t, allowed in ((MixturePair(1.0, 0.01), 100.0, 0.05), (MixturePair(1.0, 1e-6), 1e6, 0.05)):
        truth = float(mp.re(log_phi(true_step(pair, REMOVE), mp.mpc(8, t))))
        assert truth <= log_tail(pair, REMOVE, 8.0, t) <= truth + allowed * (1 + abs(truth))


@pytest.mark.parametrize(("pair", "direction", "c", "s"), CASES[::3])
def test_tail_bounds_never_rise_with_t(pair: Pair, direction: Direction, c: float, s: float) -> None:
    bounds = [log_tail(pair, direction, c, s * t) for t in np.geomspace(0.1, 1e4, 60)]
    assert all(later <= earlier + 1e-12 for earlier, later in itertools.pairwise(bounds))


def test_the_oracle_agrees_with_itself_on_other_lines_and_with_adaptive_quadrature() -> None:
    """Three lines, and mpmath's own integrator on the real line: 30 digits each time."""
    for step in (Step(1.0, 0.01), Step(0.7, 0.9, "add"), Step(2.0, 0.1, "remove", 3), Step(1.0, 0.1, "opposite")):
        z = mp.mpc(2, 3)
        values = [phi(step, z), phi(step, z, height=0.17, digits=85), phi(step, z, height=0.0, digits=90)]
        with mp.workdps(40):
            low, high = step.window(mp.mpf(2))
            panels = mp.linspace(low, high, 60)
            by_quad = mp.quad(lambda x, s=step, z=z: mp.exp(s.log_integrand(x, z)[0]), panels)
            values.append(by_quad / (mp.sqrt(2 * mp.pi) * mp.mpf(step.sigma)))
            assert max(abs(value / values[0] - 1) for value in values) < 1e-30


@pytest.mark.parametrize(("pair", "direction", "c", "s"), CASES)
@pytest.mark.some(8)
def test_windows_hold_all_but_e_to_the_minus_51(pair: Pair, direction: Direction, c: float, s: float) -> None:
    assert isinstance(pair, MixturePair | OppositePair)
    step, sigma = true_step(pair, direction), mp.mpf(pair.sigma)
    low, high = window(pair, direction, c)
    with mp.workdps(40):

        def density(x: mp.mpf) -> mp.mpf:
            return mp.exp(step.log_integrand(x, mp.mpf(c))[0])

        pieces = mp.linspace(0, 4, 9)
        left = mp.quad(lambda u: density(low - u * sigma), pieces) * sigma
        right = mp.quad(lambda u: density(high + u * sigma), pieces) * sigma
        whole = mp.re(phi(step, mp.mpf(c))) * mp.sqrt(2 * mp.pi) * sigma
        assert (left + right) / whole < mp.exp(-51)


def test_opposite_pairs_are_the_same_in_both_directions() -> None:
    """Once their conjugate was taken in the add direction, although their line lies above the axis in both."""
    pair = OppositePair(1.0, 0.1)
    one, other = (spectrum(pair, direction, 3.0, 0.5, 32).log_phi for direction in (REMOVE, ADD))
    assert np.array_equal(one, other)


def test_gaussian_pairs_follow_their_closed_form() -> None:
    found = spectrum(GaussianPair(0.7), REMOVE, 2.5, 0.3, 64)
    z = 2.5 + 1j * 0.3 * np.arange(64)
    assert np.allclose(found.log_phi, z * (z + 1) / (2 * 0.49), rtol=1e-14, atol=0)
    for k in (0, 10, 63):
        exact = mp.mpc(2.5, k * mp.mpf(0.3)) * mp.mpc(3.5, k * mp.mpf(0.3)) / (2 * mp.mpf(0.7) ** 2)
        assert abs(mp.mpc(complex(found.log_phi[k])) - exact) <= found.error[k]
        assert log_tail(GaussianPair(0.7), REMOVE, 2.5, 0.3 * k + 1e-9) >= float(mp.re(exact)) - 1e-7
    truth = mp.re(mp.mpc(2.5, 30) * mp.mpc(3.5, 30)) / (2 * mp.mpf(0.7) ** 2)
    assert log_tail(GaussianPair(0.7), REMOVE, 2.5, 30.0) >= truth


def test_a_mixture_at_rate_one_is_a_gaussian() -> None:
    """As q → 1 the mixture's φ tends to the closed form of N(1) against N(0)."""
    for direction in (REMOVE, ADD):
        found = spectrum(MixturePair(1.0, 1 - 1e-13), direction, 1.0, 0.25, 8)
        closed = spectrum(GaussianPair(1.0), direction, 1.0, 0.25, 8)
        assert np.abs(found.log_phi - closed.log_phi).max() < 1e-11


# --------------------------------------------------------------------- the likelihood ratio and its error


@pytest.mark.parametrize(
    "pair",
    [
        MixturePair(1.0, 0.01), MixturePair(1.0, 1e-9), MixturePair(0.3, 0.999999), MixturePair(0.04, 0.3),
        MixturePair(2.0, 0.1, 10), MixturePair(2.0, 0.97, 10), MixturePair(0.2, 0.01, 4), MixturePair(9.0, 1e-4, 200),
    ],
)  # fmt: skip
def test_the_ratio_is_within_its_stated_error(pair: MixturePair) -> None:
    step = Step(pair.sigma, pair.rate, "remove", pair.size)
    x, _ = grid(-9 * pair.sigma, 2 + pair.size + 9 * pair.sigma, pair.sigma / 2)
    for theta in (0.0, 0.3 / pair.size, 1.3 / pair.size):
        error, log_abs, angle = log_ratio(pair, x, theta)
        assert (error >= 0).all()
        assert (angle >= 0).all()
        with mp.workdps(40):
            for j in range(0, x.size, max(1, x.size // 12)):
                at = mp.mpc(float(x[j]), mp.mpf(theta) * mp.mpf(pair.sigma) ** 2)
                truth = mp.log(step.ratio(at))
                assert abs(mp.mpc(float(log_abs[j]), float(angle[j])) - truth) <= ROUNDING * error[j]


def test_small_rates_keep_their_relative_accuracy() -> None:
    x, _ = grid(-5.0, 5.0, 0.5)
    error, log_abs, angle = log_ratio(MixturePair(1.0, 1e-12), x, 0.5)
    assert (error <= 1e3 * (np.abs(log_abs) + angle) + 1e3 * 1e-12).all()


def test_points_of_a_grid_are_exact_multiples() -> None:
    for low, high, step in ((-3.7, 12.1, 0.2213), (-1e6, 1e7, 331.123456789), (-1e-3, 1e-2, 1.1e-6)):
        x, shorter = grid(low, high, step)
        assert step * (1 - 1e-6) < shorter <= step
        assert x[0] <= low
        assert x[-1] >= high
        first = round(float(x[0]) / shorter)
        assert all(
            fractions.Fraction(float(x[j])) == (first + j) * fractions.Fraction(shorter) for j in range(0, x.size, 37)
        )


def test_grids_that_would_be_endless_are_refused() -> None:
    with pytest.raises(OverflowError, match="points"):
        grid(-1.0, 1.0, 1e-9)
    with pytest.raises(OverflowError, match="points"):
        grid(1e9, 1e9 + 1, 1e-3)


@pytest.mark.parametrize("sigma", [1e-160, 1e160])
def test_noise_beyond_all_measure_is_refused(sigma: float) -> None:
    for pair in (GaussianPair(sigma), MixturePair(sigma, 0.1), OppositePair(sigma, 0.1)):
        with pytest.raises(OverflowError):
            spectrum(pair, REMOVE, 1.0, 0.1, 8)
        with pytest.raises(OverflowError):
            log_tail(pair, REMOVE, 1.0, 0.1)


def test_too_many_exponentials_are_refused() -> None:
    with pytest.raises(OverflowError, match="nodes"):
        spectrum(MixturePair(0.03, 0.1), REMOVE, 1.0, 0.1, 1 << 17)


def test_exponents_too_large_for_their_rounding_are_refused() -> None:
    with pytest.raises(OverflowError, match="rounding"):
        spectrum(MixturePair(1.0, 0.1), REMOVE, 1.0, 1e14, 8)


def test_long_tails_are_not_cached() -> None:
    contour._cached_fan.cache_clear()
    log_tail(MixturePair(0.05, 0.1), REMOVE, 1.0, 1.0)
    assert contour._cached_fan.cache_info().currsize == 0
    log_tail(MixturePair(1.0, 0.1), REMOVE, 1.0, 1.0)
    assert contour._cached_fan.cache_info().currsize == 1


def test_only_gaussian_pairs_of_reasonable_groups_have_a_contour() -> None:
    assert has_contour(GaussianPair(1.0))
    assert has_contour(OppositePair(1.0, 0.1))
    assert has_contour(MixturePair(1.0, 0.1, 1000))
    assert not has_contour(MixturePair(1.0, 0.1, 1001))
    assert not has_contour(LaplacePair(1.0))


# ------------------------------------------------------------------------------------ what is assumed


def test_numpy_keeps_its_promise_of_four_units_in_the_last_place() -> None:
    rng = np.random.default_rng(5)
    small, wide = rng.uniform(-1, 1, 400), rng.uniform(-40, 40, 400)
    cases = [
        (np.exp, mp.exp, wide), (np.log1p, mp.log1p, small), (np.cos, mp.cos, wide * 1e3), (np.sin, mp.sin, wide * 1e3),
        (np.log, mp.log, np.abs(wide)), (np.expm1, mp.expm1, small),
    ]  # fmt: skip
    with mp.workdps(40):
        for ours, true, points in cases:
            values = ours(points)
            for value, x in zip(values.tolist(), points.tolist(), strict=True):
                assert abs(mp.mpf(value) - true(mp.mpf(x))) <= 4 * np.spacing(abs(value))
        turns = np.exp(1j * wide * 1e3)
        for value, x in zip(turns.tolist(), (wide * 1e3).tolist(), strict=True):
            assert abs(mp.mpc(value) - mp.expj(mp.mpf(x))) <= 8 * ROUNDING


# ---------------------------------------------------------------------------------- negative controls


def broken_cases(monkeypatch: pytest.MonkeyPatch) -> int:
    """In how many cases a value lies outside of its stated error."""
    contour._line.cache_clear()
    window.cache_clear()
    bad = sum(worst_excess(*case, spectrum(*case, 64)) > 0 for case in CASES[:12])
    monkeypatch.undo()
    contour._line.cache_clear()
    window.cache_clear()
    return bad


def test_a_coarser_step_in_x_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = contour.grid
    monkeypatch.setattr(contour, "grid", lambda low, high, step: plain(low, high, 3 * step))
    assert broken_cases(monkeypatch) >= 10


def test_a_shorter_window_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mixtures, "_REACH", 6.0)
    assert broken_cases(monkeypatch) >= 10


def test_an_error_bound_a_thousand_times_too_small_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contour, "ROUNDING", ROUNDING / 3000)
    assert broken_cases(monkeypatch) >= 4


def test_a_missing_conjugate_is_noticed() -> None:
    pair = MixturePair(1.0, 0.01)
    right = spectrum(pair, ADD, 3.0, 0.4, 64)
    wrong = Spectrum(right.log_phi.conj(), right.error)
    assert worst_excess(pair, ADD, 3.0, 0.4, wrong) > 0.01


def test_taking_the_ratio_around_one_where_it_is_small_is_noticed() -> None:
    """ln m through |m|² − 1 loses half of the digits at q = 1 − 1e-6, far more than any stated error."""
    pair = MixturePair(0.5, 0.999999)
    x, _ = grid(-5.0, -3.0, 0.1)
    error, log_abs, _ = log_ratio(pair, x, 0.5)
    weight = pair.rate * np.exp((x - 0.5) / pair.sigma**2)
    real, imag = weight * math.cos(0.5) - pair.rate, weight * math.sin(0.5)
    naive = 0.5 * np.log1p(2 * real + real * real + imag * imag)
    assert np.abs(naive - log_abs).max() > 1e3 * ROUNDING * error.max()


def test_integrands_describe_p_and_q_themselves() -> None:
    """At power 0 an integrand is Q, at power 1 it is P, and both integrate to 1 along any line."""
    for pair in (MixturePair(1.0, 0.2, 2), OppositePair(1.0, 0.2)):
        x, step = grid(-14.0, 16.0, 0.05)
        f = integrand(pair, REMOVE, 3.0, x, 0.4)
        for power in (0.0, 1.0):
            density = np.exp(f.base_real + power * f.odds + 1j * (f.base_imag + power * f.angle))
            assert abs(density.sum() * step / math.sqrt(2 * math.pi) - 1) < 1e-13
