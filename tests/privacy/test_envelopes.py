"""Fixed-size batches: the envelope is a pair, it dominates every step in both directions, no attack exceeds its ε."""

from __future__ import annotations

import functools
import importlib.util
import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mpmath as mp
import numpy as np
import numpy.typing as npt
import pytest
from dp_accounting.pld import pld_pmf, privacy_loss_distribution
from scipy.special import ndtr

from quietsum import Budget
from quietsum.errors import UnsupportedEvent
from quietsum.ledger.pricing import Prices
from quietsum.privacy import RenyiFilter
from quietsum.privacy.concentrated import ConcentratedAccountant
from quietsum.privacy.events import FixedSizeSampled, Gaussian, Laplace, PoissonSampled, PrivacyEvent, Repeated
from quietsum.privacy.exact.accountant import ExactAccountant
from quietsum.privacy.exact.contour import Spectrum, log_tail, spectrum
from quietsum.privacy.exact.envelopes import envelope_atom, envelope_moments
from quietsum.privacy.exact.mixtures import Direction
from quietsum.privacy.old_rules import SingleBatch
from quietsum.privacy.pairs import (
    EnvelopePair,
    GaussianPair,
    MergedPair,
    MixturePair,
    Pair,
    list_attained,
    reduce_event,
)
from quietsum.privacy.pld.accountant import PldAccountant, pld_bounds
from quietsum.privacy.pld.losses import cell_masses
from quietsum.privacy.renyi.accountant import RenyiAccountant
from quietsum.privacy.units import Neighbours

Array = npt.NDArray[np.float64]
BENCHMARK = importlib.util.spec_from_file_location(
    "fixed_size_benchmark", Path(__file__).parents[2] / "benchmarks" / "fixed_size.py"
)
assert BENCHMARK is not None and BENCHMARK.loader is not None
fixed_size: Any = importlib.util.module_from_spec(BENCHMARK)
BENCHMARK.loader.exec_module(fixed_size)
REPLACE, ZERO = Neighbours.REPLACE_ONE, Neighbours.ZERO_OUT
NEAR = {REPLACE: 0.0, ZERO: 0.5}
SETTINGS = [(1.0, 0.1), (0.6, 0.0032), (0.5, 0.01), (2.0, 0.5), (0.25, 0.9), (4.0, 0.01)]


def fixed(noise: float, rate: float) -> PrivacyEvent:
    return FixedSizeSampled(rate=rate, event=Gaussian(noise_multiplier=noise))


def spent(noise: float, rate: float, steps: int, neighbours: Neighbours = REPLACE, delta: float = 1e-5) -> Any:
    return ExactAccountant(neighbours=neighbours).compose(fixed(noise, rate), steps).epsilon(delta=delta)


# ------------------------------------------------------------------------------ one step, by mpmath


def hockey_mp(noise: float, rate: float, one: float, other: float, third: float, odds: Any) -> Any:
    """H_odds of (1 − q) N(third) + q N(one) against the same with N(other), on the line, by distribution functions."""
    q, root = mp.mpf(rate), 1 / mp.mpf(noise)

    def value(x: Any) -> Any:
        common, first, second = (mp.npdf(x, m, noise) for m in (third, one, other))
        return (1 - q) * (1 - odds) * common + q * first - odds * q * second

    ends = [-1 - 12 * noise, *np.linspace(-1 - 8 * noise, 1 + 8 * noise, 120).tolist(), 1 + 12 * noise]
    cuts = [float(ends[0])]
    for low, high in itertools.pairwise(ends):
        if value(low) * value(high) < 0:
            cuts.append(mp.findroot(value, (low, high), solver="anderson"))
    cuts.append(float(ends[-1]))

    def mass(low: Any, high: Any) -> Any:
        common, first, second = (mp.ncdf((high - m) * root) - mp.ncdf((low - m) * root) for m in (third, one, other))
        return (1 - q) * (1 - odds) * common + q * first - odds * q * second

    return mp.fsum(max(mass(low, high), mp.mpf(0)) for low, high in itertools.pairwise(cuts))


@functools.cache
def profile(pair: EnvelopePair) -> Callable[[float], float]:
    """H_odds of the envelope from its cells alone."""
    ends = np.concatenate([-np.geomspace(60, 1e-7, 30_000), [0.0], np.geomspace(1e-7, 60, 30_000)])
    cells = cell_masses(pair, ends)
    return lambda odds: float(np.maximum(cells.p - odds * cells.q, 0).sum())


@pytest.mark.parametrize("neighbours", [REPLACE, ZERO])
@pytest.mark.parametrize(("sigma", "rate"), SETTINGS)
def test_the_envelope_is_a_pair_of_distributions(sigma: float, rate: float, neighbours: Neighbours) -> None:
    pair = EnvelopePair(sigma, rate, NEAR[neighbours])
    edges = np.linspace(-3, 3, 1001)
    cells = cell_masses(pair, edges)
    assert cells.p.sum() == pytest.approx(1, abs=1e-12)
    assert cells.q.sum() == pytest.approx(1, abs=1e-12)
    low, high = edges[:-1], edges[1:]
    for p, q, a, b in zip(cells.p[1:-1], cells.q[1:-1], low, high, strict=True):
        if p > 1e-200:
            assert a - 1e-9 <= math.log(p / q) <= b + 1e-9
    mirrored = cell_masses(pair, edges, "add")
    np.testing.assert_allclose(mirrored.p, cells.p, atol=envelope_atom(pair) * 1.01)  # but for the atom on an edge
    np.testing.assert_allclose(np.cumsum(mirrored.p)[::50], np.cumsum(cells.p)[::50], atol=1e-12 + envelope_atom(pair))
    # what lies above 0 in P is what lies below 0 in Q
    assert cells.p[501:].sum() == pytest.approx(cell_masses(pair, edges - 1e-12).q[:501].sum(), rel=1e-9)


@pytest.mark.parametrize(("noise", "rate"), [(2.0, 0.1), (1.2, 0.3), (0.7, 0.02)])
def test_one_step_attains_its_envelope_and_no_direction_exceeds_it(noise: float, rate: float) -> None:
    """By mpmath: for odds ≥ 1 the remove direction is the larger one, and the envelope is just that."""
    for odds in (1.0, 1.05, 1.5, 4.0, 30.0):
        remove = hockey_mp(noise, rate, 1, -1, -1, odds)
        add = hockey_mp(noise, rate, -1, 1, -1, odds)
        assert add <= remove * (1 + mp.mpf("1e-9")) + mp.mpf("1e-12")
        assert profile(EnvelopePair(noise / 2, rate))(odds) == pytest.approx(float(remove), rel=2e-4, abs=1e-9)
        far = hockey_mp(noise, rate, 1, 0, -1, odds)  # zero-out: the displaced record is opposite
        assert hockey_mp(noise, rate, 0, 1, -1, odds) <= far * (1 + mp.mpf("1e-9")) + mp.mpf("1e-12")
        assert profile(EnvelopePair(noise / 2, rate, 0.5))(odds) == pytest.approx(float(far), rel=2e-4, abs=1e-9)


def test_every_triple_of_records_in_the_plane_is_dominated_in_both_orders() -> None:
    rng = np.random.default_rng(3)
    axis = np.linspace(-9, 9, 361)
    x, y = np.meshgrid(axis, axis)

    def bell(centre: Array, noise: float) -> Array:
        area = (axis[1] - axis[0]) ** 2
        squares = (x - centre[0]) ** 2 + (y - centre[1]) ** 2
        return np.asarray(np.exp(-squares / (2 * noise**2)) * area / (2 * math.pi * noise**2))

    def record(angle: float, length: float) -> Array:
        return length * np.array([math.cos(angle), math.sin(angle)])

    for noise, rate in ((1.5, 0.2), (1.1, 0.5)):
        tops = {neighbours: profile(EnvelopePair(noise / 2, rate, near)) for neighbours, near in NEAR.items()}
        corners = [(0.0, math.pi, math.pi), (0.0, math.pi, 0.0), (0.0, 2 * math.pi / 3, 4 * math.pi / 3)]
        for case in range(12):
            angles = corners[case] if case < 3 else tuple(rng.uniform(0, 2 * math.pi, 3))
            lengths = (1.0, 1.0, 1.0) if case < 7 else tuple(rng.uniform(0, 1, 3))
            mine, theirs, third = (record(*each) for each in zip(angles, lengths, strict=True))
            for neighbours in (REPLACE, ZERO):
                other = theirs if neighbours is REPLACE else np.zeros(2)
                rest = (1 - rate) * bell(third, noise)
                p, q = rest + rate * bell(mine, noise), rest + rate * bell(other, noise)
                for odds in (0.3, 0.8, 1.0, 1.3, 3.0):
                    worst = tops[neighbours](odds) + 1e-4
                    assert np.maximum(p - odds * q, 0).sum() <= worst
                    assert np.maximum(q - odds * p, 0).sum() <= worst


def test_zero_out_costs_less_than_replace_one_and_at_least_what_null_others_show() -> None:
    for noise, rate, steps in ((2.0, 0.01, 1000), (2.0, 0.1, 100), (4.0, 0.5, 50)):
        zero, replaced = (spent(noise, rate, steps, neighbours) for neighbours in (ZERO, REPLACE))
        assert zero.certified and zero.epsilon < 0.7 * replaced.epsilon
        poisson = ExactAccountant().compose(PoissonSampled(rate=rate, event=Gaussian(noise_multiplier=noise)), steps)
        assert zero.epsilon_lower > 1.05 * poisson.epsilon(delta=1e-5).epsilon  # null others are not the worst


# ------------------------------------------------------------------------------------ on the contour


def phi_mp(pair: EnvelopePair | MergedPair, z: Any) -> Any:
    s, q, h = mp.mpf(pair.sigma), mp.mpf(pair.rate), mp.mpf(pair.near)
    start = (1 + h) / 2

    def mixture(x: Any, shift: Any) -> Any:
        return 1 - q + q * mp.exp((shift * x - shift**2 / 2) / s**2)

    def both(x: Any) -> Any:
        one, half = mixture(x, mp.mpf(1)), mixture(x, h)
        return mp.npdf(x, 0, s) * (one ** (z + 1) * half ** (-z) + half ** (z + 1) * one ** (-z))

    end = max(float(mp.re(z)) + 1, 1.0) + 13 * pair.sigma
    if isinstance(pair, EnvelopePair):
        return (1 - q) * mp.erf(start / s / mp.sqrt(2)) + mp.quad(both, mp.linspace(start, end, 25))
    common, far, half = (mp.ncdf((start - m) / s) for m in (0, 1, h))
    rest, other = (1 - q) * common + q * far, (1 - q) * common + q * half

    def shown(x: Any) -> Any:
        one, half = mixture(x, mp.mpf(1)), mixture(x, h)
        return mp.npdf(x, 0, s) * one ** (z + 1) * half ** (-z)

    return rest ** (z + 1) * other ** (-z) + mp.quad(shown, mp.linspace(start, end, 25))


CONTOURS = [
    (EnvelopePair(1.0, 0.1), 2.0, 0.5),
    (EnvelopePair(1.0, 0.1, 0.5), 2.0, 0.5),
    (EnvelopePair(0.6, 0.0032), 3.0, 1.0),
    (EnvelopePair(0.5, 0.3, 0.5), 0.7, 2.0),
    (EnvelopePair(4.0, 0.01, 0.5), 40.0, 7.0),
    (MergedPair(1.0, 0.1, 0.5), 2.0, 0.5),
    (MergedPair(0.6, 0.01, 0.5), 3.0, 2.0),
]


@pytest.mark.parametrize(("pair", "c", "s"), CONTOURS)
@pytest.mark.some(3)
def test_log_moments_lie_within_their_errors_and_below_their_tail_bound(
    pair: EnvelopePair | MergedPair, c: float, s: float
) -> None:
    found: Spectrum = spectrum(pair, Direction.REMOVE, c, s, 40)
    if isinstance(pair, EnvelopePair):
        assert log_tail(pair, Direction.REMOVE, c, 1e9) < math.log(envelope_atom(pair)) + 1e-4
    for k in (0, 1, 4, 39):
        truth = complex(mp.log(phi_mp(pair, mp.mpc(c, k * s))))
        apart = truth - complex(found.log_phi[k])
        assert abs(apart - 2j * math.pi * round(apart.imag / (2 * math.pi))) <= found.error[k]
        assert found.error[k] < 1e-8
        for t in (k * s / 9, k * s / 2, k * s):
            assert k == 0 or truth.real <= log_tail(pair, Direction.REMOVE, c, t)
    exact = float(mp.log(phi_mp(pair, mp.mpf(c))))
    assert exact <= envelope_moments(pair, Direction.REMOVE, np.array([c / 2, c]))[1] <= exact + 1e-11
    assert exact > envelope_moments(pair, Direction.REMOVE, np.array([0.99 * c]))[0]  # and the check can fail


def test_renyi_divergences_are_at_least_the_truth() -> None:
    for pair, order in ((EnvelopePair(1.0, 0.1), 3.0), (EnvelopePair(0.6, 0.0032, 0.5), 2.5)):
        noise, neighbours = 2 * pair.sigma, REPLACE if pair.near == 0 else ZERO
        found = RenyiAccountant([order], neighbours=neighbours).compose(fixed(noise, pair.rate)).rdp_at(order)
        truth = float(mp.log(phi_mp(pair, mp.mpf(order - 1))) / (order - 1))
        assert truth <= found <= truth * (1 + 1e-9)


def test_orders_too_high_for_quadrature_keep_a_bound() -> None:
    orders = [60.0, 4000.0, 100_000.0]
    curve = RenyiAccountant(orders, neighbours=REPLACE).compose(fixed(0.4, 0.05)).rdp_curve()
    batch = SingleBatch(rate=0.05, event=Gaussian(noise_multiplier=0.4))
    single = RenyiAccountant(orders, neighbours=REPLACE).compose(batch)
    assert all(low <= high < math.inf for low, high in zip(single.rdp_curve(), curve, strict=True))
    assert all(a <= b for a, b in itertools.pairwise(curve))


# ------------------------------------------------------------------------------------- many steps


def losses(noise: float, rate: float, near: float, spacing: float) -> tuple[Array, Array]:
    """(losses rounded up to a grid, their masses): from cells of x, with no inverse and no code of the package."""
    sigma = noise / 2
    x = np.linspace(0.5 * (1 + near), 1 + 14 * sigma, 200_001)
    common, far, half = (-np.diff(ndtr(-(x - shift) / sigma)) for shift in (0.0, 1.0, near))
    p, q = (1 - rate) * common + rate * far, (1 - rate) * common + rate * half
    above, below = (1 - rate + rate * np.exp(shift * (x - shift / 2) / sigma**2) for shift in (1.0, near))
    edge = np.log(above / below)
    up = np.ceil(edge[1:] / spacing).astype(int)  # positive losses: the cell's upper end
    down = np.ceil(-edge[:-1] / spacing).astype(int)  # mirrored: upper end is minus the lower one
    top = int(up.max())
    law = np.zeros(2 * top + 1)
    np.add.at(law, top + up, p)
    np.add.at(law, top + down, q)
    law[top] += 1 - p.sum() - q.sum()
    return np.asarray(spacing * np.arange(-top, top + 1), dtype=np.float64), law


def naive_epsilon(loss: Array, law: Array, steps: int, delta: float) -> float:
    """ε of ``steps`` rounded losses by plain convolutions, one step after the other."""
    total, spacing = law, loss[1] - loss[0]
    for _ in range(steps - 1):
        total = np.convolve(total, law)
    at = spacing * (np.arange(len(total)) - len(total) // 2)
    low, high = 0.0, float(at[-1])
    for _ in range(60):
        middle = (low + high) / 2
        value = float((total * np.maximum(0.0, -np.expm1(np.minimum(middle - at, 0.0)))).sum())
        low, high = (middle, high) if value > delta else (low, middle)
    return high


@pytest.mark.parametrize("neighbours", [REPLACE, ZERO])
@pytest.mark.parametrize(("noise", "rate", "steps"), [(2.0, 0.1, 2), (3.0, 0.3, 5), (4.0, 0.5, 20)])
def test_composition_agrees_with_naive_convolution(
    noise: float, rate: float, steps: int, neighbours: Neighbours
) -> None:
    spacing = 4e-3
    loss, law = losses(noise, rate, NEAR[neighbours], spacing)
    upper = naive_epsilon(loss, law, steps, 1e-5)  # too high by at most a spacing a step
    found = spent(noise, rate, steps, neighbours).epsilon
    assert upper - spacing * steps * 1.05 <= found <= upper * (1 + 3e-4) + 1e-6


@pytest.mark.parametrize("neighbours", [REPLACE, ZERO])
def test_another_library_composes_our_losses_to_the_same_epsilon(neighbours: Neighbours) -> None:
    noise, rate, steps, spacing = 2.0, 0.1, 100, 2e-4
    loss, law = losses(noise, rate, NEAR[neighbours], spacing)
    pmf = pld_pmf.SparsePLDPmf(
        {round(at / spacing): float(mass) for at, mass in zip(loss, law, strict=True) if mass > 0}, spacing, 0.0, True
    )
    theirs = privacy_loss_distribution.PrivacyLossDistribution(pmf).self_compose(steps).get_epsilon_for_delta(1e-5)
    ours = spent(noise, rate, steps, neighbours)
    assert ours.epsilon <= theirs <= ours.epsilon + 1.2 * spacing * steps


# σ, q, steps, and ε of the envelope on a pessimistic grid: absolute, or as a factor on the worst single batch repeated
ROWS = [
    (2.0, 0.1, 100, 7.806), (1.2, 0.0032, 1000, 3.322), (1.0, 0.01, 300, 9.170), (4.0, 0.5, 50, 9.474 * 1.038),
    (8.0, 0.5, 200, 8.819 * 1.036), (1.5, 0.5, 10, 16.26 * 1.015), (2.0, 0.01, 1000, 2.202), (4.0, 0.1, 1000, 9.526),
]  # fmt: skip


@pytest.mark.parametrize(("noise", "rate", "steps", "grid"), ROWS)
def test_the_bound_is_certified_and_not_above_a_pessimistic_grid(
    noise: float, rate: float, steps: int, grid: float
) -> None:
    found = spent(noise, rate, steps)
    assert found.certified and not found.warnings and found.method.startswith("exact: contour of the envelope")
    assert grid * (1 - 3e-3) <= found.epsilon <= grid * (1 + 6e-4)
    old = ExactAccountant(neighbours=REPLACE).compose(
        SingleBatch(rate=rate, event=Gaussian(noise_multiplier=noise)), steps
    )
    assert found.epsilon_lower == pytest.approx(old.epsilon(delta=1e-5).epsilon_lower, rel=1e-9)
    assert not old.epsilon(delta=1e-5).certified


def test_one_batch_costs_what_it_always_did() -> None:
    poisson = PoissonSampled(rate=0.1, event=Gaussian(noise_multiplier=1.0))
    assert spent(2.0, 0.1, 1).epsilon == ExactAccountant().compose(poisson).epsilon(delta=1e-5).epsilon
    assert spent(2.0, 0.1, 1).gap < 1e-9


@pytest.mark.parametrize("steps", [1, 2, 7])
def test_few_steps_are_smoothed_and_stay_certified(steps: int) -> None:
    for noise, rate in ((1.0, 0.05), (0.5, 0.01), (3.0, 0.2)):
        found = spent(noise, rate, steps, ZERO)
        lower, upper = referee(noise, rate, steps, ZERO)
        assert found.certified
        assert lower <= found.epsilon <= upper * (1 + 1e-3)


def referee(noise: float, rate: float, steps: int, neighbours: Neighbours) -> tuple[float, float]:
    return pld_bounds(dict(reduce_event(fixed(noise, rate), neighbours, steps)), delta=1e-5)


@pytest.mark.parametrize("neighbours", [REPLACE, ZERO])
def test_all_accountants_agree(neighbours: Neighbours) -> None:
    event = fixed(2.0, 0.02)
    exact = ExactAccountant(neighbours=neighbours).compose(event, 300).epsilon(delta=1e-6)
    pld = PldAccountant(neighbours=neighbours).compose(event, 300).epsilon(delta=1e-6)
    renyi = RenyiAccountant(neighbours=neighbours).compose(event, 300).epsilon(delta=1e-6)
    assert exact.epsilon <= pld.epsilon <= exact.epsilon * (1 + 2e-3)
    assert pld.epsilon_lower <= exact.epsilon_lower * (1 + 1e-9) and pld.epsilon_lower >= 0.99 * exact.epsilon_lower
    assert exact.epsilon < renyi.epsilon < 1.4 * exact.epsilon
    with pytest.raises(UnsupportedEvent, match="no amplification by sampling"):
        ConcentratedAccountant(neighbours=neighbours).compose(event)


@pytest.mark.parametrize("neighbours", [REPLACE, ZERO])
@pytest.mark.parametrize(
    ("other", "certified"),
    [
        (Repeated(times=5, event=Gaussian(noise_multiplier=20.0)), True),
        (Repeated(times=50, event=PoissonSampled(rate=0.05, event=Gaussian(noise_multiplier=2.0))), True),
        (Laplace(noise_multiplier=8.0), False),
    ],
)
def test_batches_of_fixed_size_mix_with_other_events(
    neighbours: Neighbours, other: PrivacyEvent, certified: bool
) -> None:
    alone = spent(2.0, 0.05, 50, neighbours)
    mixed = ExactAccountant(neighbours=neighbours).compose(fixed(2.0, 0.05), 50).compose(other)
    found = mixed.epsilon(delta=1e-5)
    pld = PldAccountant(neighbours=neighbours).compose(fixed(2.0, 0.05), 50).compose(other).epsilon(delta=1e-5)
    assert alone.epsilon < found.epsilon < alone.epsilon + 3
    assert found.certified is certified
    assert pld.epsilon_lower <= found.epsilon <= pld.epsilon * (1 + 1e-3)
    low, high = mixed.delta_bounds(epsilon=found.epsilon)
    assert low < high == pytest.approx(1e-5, rel=2e-2)


def test_budgets_and_filters_go_by_the_envelope() -> None:
    assert not Budget(epsilon=7.05, delta=1e-5).allows(spent(2.0, 0.1, 100))
    assert Budget(epsilon=7.81, delta=1e-5).allows(spent(2.0, 0.1, 100))
    gate = RenyiFilter(budget=Budget(epsilon=8.0, delta=1e-5), order=4.0, neighbours=REPLACE)
    gate.spend(fixed(2.0, 0.1), 10)
    cost = 10 * RenyiAccountant([4.0], neighbours=REPLACE).compose(fixed(2.0, 0.1)).rdp_at(4.0)
    assert gate.rdp_budget - gate.remaining_rdp == pytest.approx(cost, rel=1e-12)
    lifetime = Prices().divergence(fixed(2.0, 0.1), 4.0, REPLACE)  # what a dataset's lifetime is charged
    single = RenyiAccountant([4.0], neighbours=REPLACE).compose(
        SingleBatch(rate=0.1, event=Gaussian(noise_multiplier=2.0))
    )
    assert lifetime == pytest.approx(cost / 10, rel=1e-12) and lifetime > 1.01 * single.rdp_at(4.0)


def test_noise_far_too_small_is_no_error() -> None:
    found = spent(0.02, 0.1, 3, REPLACE, 1e-20)
    assert found.epsilon > 1000 and found.epsilon_lower > 1000


def test_lower_bounds_come_from_pairs_that_real_data_attain() -> None:
    plain: dict[Pair, int] = {GaussianPair(1.0): 1, MixturePair(2.0, 0.1): 1}
    assert list_attained(plain) == [plain]
    assert list_attained({EnvelopePair(1.0, 0.1): 3, **plain}) == [{MixturePair(1.0, 0.1): 3, **plain}]
    null, opposite = list_attained({EnvelopePair(1.0, 0.1, 0.5): 3, **plain})
    assert null == {MixturePair(2.0, 0.1): 4, GaussianPair(1.0): 1}
    assert opposite == {MergedPair(1.0, 0.1, 0.5): 3, **plain}


def test_lower_bounds_under_zero_out_are_those_of_losses_that_real_records_show() -> None:
    """Naively: P and Q of the opposite displaced record on a line, all losses ≤ 0 in one place, rounded down."""
    noise, rate, steps, spacing = 2.0, 0.1, 20, 2e-3
    x = np.linspace(-1 - 14 * noise, 1 + 14 * noise, 400_001)
    common, mine, null = (np.diff(ndtr((x - m) / noise)) for m in (-1.0, 1.0, 0.0))
    p, q = (1 - rate) * common + rate * mine, (1 - rate) * common + rate * null
    p, q = p[q > 1e-290], q[q > 1e-290]
    shown = p > q
    loss = np.append(np.log(p[shown] / q[shown]), math.log(p[~shown].sum() / q[~shown].sum()))
    index = np.floor(loss / spacing).astype(int)
    top = int(index.max())
    law = np.zeros(2 * top + 1)
    np.add.at(law, top + index, np.append(p[shown], p[~shown].sum()))
    naive = naive_epsilon(
        np.asarray(spacing * np.arange(-top, top + 1), dtype=np.float64), law, steps, 1e-5
    )  # too low by at most a spacing a step
    pld = pld_bounds({MergedPair(noise / 2, rate, 0.5): steps}, delta=1e-5)
    assert naive <= pld[1] and pld[0] <= naive + spacing * steps * 1.05
    many = spent(noise, rate, 100, ZERO)
    lower, upper = pld_bounds({MergedPair(noise / 2, rate, 0.5): 100}, delta=1e-5)
    assert lower <= many.epsilon_lower <= upper


def test_one_step_under_zero_out_is_known_from_both_sides() -> None:
    for noise, rate in ((2.0, 0.1), (0.7, 0.02), (5.0, 0.6)):
        found = spent(noise, rate, 1, ZERO)
        assert found.certified and 0 <= found.gap < 1e-3 * max(0.1, found.epsilon)
        for epsilon, at_most in ((found.epsilon, True), (found.epsilon_lower, False)):
            delta = float(hockey_mp(noise, rate, 1, 0, -1, mp.exp(epsilon)))
            assert delta <= 1e-5 if at_most else delta >= 1e-5


# ----------------------------------------------------------------------------------------- attacks


def test_an_attacker_who_steers_the_others_exceeds_the_old_figure_and_not_the_new_one() -> None:
    """The negative control: the same attack that stays below the envelope is above the worst single batch repeated."""
    found = spent(2.0, 0.1, 100)
    attack = fixed_size.best_epsilon(2.0, 0.1, 100, 1e-5, fixed_size.REPLACED, 1e-2)
    assert found.epsilon_lower + 0.02 < attack < found.epsilon


@pytest.mark.parametrize("neighbours", [REPLACE, ZERO])
@pytest.mark.some(1)
def test_no_attack_on_random_settings_exceeds_the_bound(neighbours: Neighbours) -> None:
    for noise, rate, steps in fixed_size.random_settings(8, seed=7, most_steps=30):
        found = spent(noise, rate, steps, neighbours)
        attack, error = fixed_size.strongest(noise, rate, steps, found, 1e-2)
        assert found.certified
        assert error < 0.02 and attack <= found.epsilon + 2 * error + 1e-6
