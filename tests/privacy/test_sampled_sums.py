"""Sampled sums of integers: every bound lies above brute force, in both directions, and near it where noise is wide."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import gammaln, logsumexp

from quietsum.errors import UnsupportedEvent
from quietsum.privacy import events as ev, pairs as pr
from quietsum.privacy.concentrated import ConcentratedAccountant
from quietsum.privacy.exact.accountant import ExactAccountant
from quietsum.privacy.guarantee import Budget
from quietsum.privacy.pairs import has_only_moments, reduce_event
from quietsum.privacy.pld.accountant import PldAccountant
from quietsum.privacy.renyi.accountant import RenyiAccountant
from quietsum.privacy.renyi.curves import rdp_of
from quietsum.privacy.renyi.filters import RenyiFilter, RenyiOdometer
from quietsum.privacy.units import Neighbours, PrivacyUnit

Array = NDArray[np.float64]
ADD, ZERO, REPLACE = Neighbours.ADD_REMOVE, Neighbours.ZERO_OUT, Neighbours.REPLACE_ONE
NEARLY = 1 + 1e-9  # brute force is summed in floats


# ------------------------------------------------------------------------------------------- brute force


def log_skellam(variance: float, reach: int) -> Array:
    """ln P(k) for |k| ≤ reach, by the power series of the Bessel function."""
    k, m = np.arange(reach + 1)[:, None], np.arange(int(variance / 2 + 15 * math.sqrt(variance) + 60))[None, :]
    terms = (2 * m + k) * math.log(variance / 2) - gammaln(m + 1) - gammaln(m + k + 1)
    half = logsumexp(terms, axis=1) - variance
    return np.concatenate([half[:0:-1], half])


def log_discrete_gaussian(sigma: float, reach: int) -> Array:
    k = np.arange(-reach, reach + 1)
    logs = -k * k / (2 * sigma * sigma)
    return np.asarray(logs - logsumexp(logs))


def log_sum_of(log_share: Array, shares: int) -> Array:
    """The law of a sum of shares, convolved without underflow: relative to its discrete Gaussian's tilt."""
    total = log_share
    for _ in range(shares - 1):
        size = total.size + log_share.size - 1
        table = np.full((total.size, size), -np.inf)
        for index in range(total.size):
            table[index, index : index + log_share.size] = total[index] + log_share
        total = np.asarray(logsumexp(table, axis=0))
    return total


def shifted(log_law: Array, by: int) -> Array:
    moved = np.full(log_law.shape, -np.inf)
    if by >= 0:
        moved[by:] = log_law[: log_law.size - by]
    else:
        moved[:by] = log_law[-by:]
    return moved


def drawn(log_law: Array, shifts: list[int], rate: float) -> Array:
    """The law with each shift added by a coin of its own."""
    parts = []
    for coins in itertools.product((0, 1), repeat=len(shifts)):
        chance = math.prod(rate if coin else 1 - rate for coin in coins)
        parts.append(shifted(log_law, sum(s for s, coin in zip(shifts, coins, strict=True) if coin)) + math.log(chance))
    return np.asarray(logsumexp(parts, axis=0))


def brute(log_p: Array, log_q: Array, order: float) -> float:
    """D_α where both laws are known; cells at the rim, where one was cut off, are left out of both sums."""
    known = np.isfinite(log_p) & np.isfinite(log_q)
    return float(logsumexp(order * log_p[known] + (1 - order) * log_q[known])) / (order - 1)


def worst(log_p: Array, log_q: Array, order: float) -> float:
    return max(brute(log_p, log_q, order), brute(log_q, log_p, order))


def bound(event: ev.PrivacyEvent, order: float, neighbours: Neighbours = ADD) -> float:
    ((pair, count),) = reduce_event(event, neighbours)
    return float(rdp_of(pair, (order,))[0]) * count


def sampled(rate: float, event: ev.PrivacyEvent) -> ev.PoissonSampled:
    return ev.PoissonSampled(rate=rate, event=event)


def skellam(variance: float, shift: float) -> ev.Skellam:
    return ev.Skellam(variance=variance, l1_sensitivity=shift, l2_sensitivity=shift)


def vector(sigma: float, shift: float) -> ev.DiscreteGaussian:
    return ev.DiscreteGaussian(sigma=sigma, sensitivity=shift, dimension=2)


ORDERS = [1.1, 1.5, 2.0, 2.7, 4.0, 7.3, 16.0]


def settings(seed: int, count: int) -> list[tuple[float, int, float, float]]:
    """(variance, shift, rate, order) at random, where brute force can sum it."""
    rng = np.random.default_rng(seed)
    return [
        (
            float(np.exp(rng.uniform(math.log(0.8), math.log(900.0)))),
            int(rng.integers(1, 9)),
            float(np.exp(rng.uniform(math.log(1e-4), math.log(0.9)))),
            float(rng.choice(ORDERS)),
        )
        for _ in range(count)
    ]


def reach_of(variance: float, shift: float, order: float) -> int:
    return int(14 * math.sqrt(variance) + 3 * abs(shift) * (order + 2) + 40)


@pytest.mark.parametrize(("variance", "shift", "rate", "order"), settings(1, 60))
def test_sampled_skellam_is_bounded_in_both_directions(variance: float, shift: int, rate: float, order: float) -> None:
    law = log_skellam(variance, reach_of(variance, shift, order))
    mixed = drawn(law, [shift], rate)
    remove, add = brute(mixed, law, order), brute(law, mixed, order)
    assert add <= remove * NEARLY + 1e-13  # the lemma behind the other direction
    assert remove <= bound(sampled(rate, skellam(variance, shift)), order) * NEARLY + 1e-13


@pytest.mark.parametrize(("variance", "shift", "rate", "order"), settings(2, 40))
def test_sampled_discrete_gaussians_are_bounded_in_both_directions(
    variance: float, shift: int, rate: float, order: float
) -> None:
    sigma = math.sqrt(variance)
    law = log_discrete_gaussian(sigma, reach_of(variance, shift, order))
    mixed = drawn(law, [shift], rate)
    paid = bound(sampled(rate, vector(sigma, shift)), order)
    assert worst(mixed, law, order) <= paid * NEARLY + 1e-13
    if order == int(order):  # k shifts end on the lattice: nothing is lost at whole orders
        assert brute(mixed, law, order) >= min(paid, bound(vector(sigma, shift), order) * 0.999) * (1 - 1e-6)


@pytest.mark.parametrize(("variance", "shift", "rate", "order"), settings(3, 24))
@pytest.mark.parametrize("units", [[1, 1], [1, -1], [1, 1, 1], [1, 0, -1]])
def test_groups_are_bounded_in_both_directions(
    units: list[int], variance: float, shift: int, rate: float, order: float
) -> None:
    law = log_skellam(variance, reach_of(variance, len(units) * shift, order))
    mixed = drawn(law, [shift * unit for unit in units], rate)
    event = ev.Group(size=len(units), event=sampled(rate, skellam(variance, shift)))
    for neighbours in (ADD, ZERO):
        assert worst(mixed, law, order) <= bound(event, order, neighbours) * NEARLY + 1e-13


@pytest.mark.parametrize(("variance", "shift", "rate", "order"), settings(4, 40))
def test_replaced_units_are_bounded_whichever_takes_the_place(
    variance: float, shift: int, rate: float, order: float
) -> None:
    law = log_skellam(variance, reach_of(variance, 2 * shift, order))
    paid = bound(sampled(rate, skellam(variance, shift)), order, REPLACE)
    for other in (-shift, 0, shift - 1, -1):
        assert worst(drawn(law, [shift], rate), drawn(law, [other], rate), order) <= paid * NEARLY + 1e-13
    inside = ev.OneInOneOut(event=sampled(rate, skellam(variance, shift)))
    assert bound(inside, order) == paid
    assert bound(inside, order, ZERO) == bound(sampled(rate, skellam(variance, shift)), order, ZERO)


def test_a_pair_of_replaced_people_is_bounded() -> None:
    law = log_skellam(60.0, 400)
    event = ev.Group(size=2, event=sampled(0.1, skellam(60.0, 2)))
    for order in (1.5, 2.0, 3.0, 5.0):
        one, other = drawn(law, [2, 2], 0.1), drawn(law, [-2, -2], 0.1)
        assert worst(one, other, order) <= bound(event, order, REPLACE)


@pytest.mark.parametrize(("variance", "shift", "rate", "order"), settings(5, 10))
def test_two_coordinates_are_bounded_by_their_norms(variance: float, shift: int, rate: float, order: float) -> None:
    variance, order = min(variance, 30.0), min(order, 4.0)
    law = log_skellam(variance, reach_of(variance, shift, order))
    plane = law[:, None] + law[None, :]
    moved = shifted(law, shift)[:, None] + shifted(law, -1)[None, :]
    mixed = np.logaddexp(plane + math.log1p(-rate), moved + math.log(rate))
    event = ev.Skellam(variance=variance, l1_sensitivity=shift + 1.0, l2_sensitivity=math.hypot(shift, 1))
    assert worst(mixed.ravel(), plane.ravel(), order) <= bound(sampled(rate, event), order) * NEARLY + 1e-13


@pytest.mark.parametrize(("sigma", "shares"), [(0.6, 2), (0.7, 3), (0.8, 5), (1.0, 4), (2.0, 3)])
@pytest.mark.parametrize("shift", [1, 3])
def test_sums_of_discrete_gaussians_are_bounded_sampled_or_not(sigma: float, shares: int, shift: int) -> None:
    share = log_discrete_gaussian(sigma, int(14 * sigma) + 30)
    law = log_sum_of(share, shares)
    event = ev.DiscreteGaussianSum(sigma=sigma, shares=shares, sensitivity=float(shift), dimension=1)
    for order in (1.5, 2.0, 3.0, 6.0):
        assert worst(shifted(law, shift), law, order) <= bound(event, order) * NEARLY
        assert worst(drawn(law, [shift], 0.1), law, order) <= bound(sampled(0.1, event), order) * NEARLY


def test_a_sum_of_discrete_gaussians_is_none_and_the_price_of_one_would_be_too_low() -> None:
    """The control: narrow shares do cost more than the discrete Gaussian of the same variance."""
    law = log_sum_of(log_discrete_gaussian(0.35, 40), 3)
    truth, plain = worst(shifted(law, 1), law, 3.0), 3.0 / (2 * 3 * 0.35**2)
    event = ev.DiscreteGaussianSum(sigma=0.35, shares=3, sensitivity=1.0)
    assert plain * 1.2 < truth <= bound(event, 3.0)
    assert bound(ev.DiscreteGaussianSum(sigma=0.1, shares=2), 2.0) == math.inf  # no promise at all


def test_one_share_is_the_discrete_gaussian() -> None:
    one = ev.DiscreteGaussianSum(sigma=3.0, shares=1, sensitivity=2.0, dimension=5)
    assert reduce_event(one, ADD) == reduce_event(ev.DiscreteGaussian(sigma=3.0, sensitivity=2.0, dimension=5), ADD)


# ----------------------------------------------------------------------------- negative controls and limits


def test_charging_a_direction_or_half_the_rate_would_be_seen() -> None:
    """What the brute force can tell: less noise, a smaller shift or a smaller rate all fall below it."""
    law = log_skellam(400.0, 900)
    truth = worst(drawn(law, [20], 0.2), law, 4.0)
    assert bound(sampled(0.2, skellam(400.0, 20)), 4.0) == pytest.approx(truth, rel=0.03)
    for wrong in (
        sampled(0.18, skellam(400.0, 20)),
        sampled(0.2, skellam(440.0, 20)),
        sampled(0.2, skellam(400.0, 19)),
    ):
        assert bound(wrong, 4.0) < truth


@pytest.mark.parametrize("neighbours", [ADD, ZERO])
@pytest.mark.parametrize("rate", [1e-3, 0.05, 0.5])
def test_wide_noise_costs_what_the_sampled_gaussian_costs(rate: float, neighbours: Neighbours) -> None:
    orders = (2.0, 3.0, 8.0, 32.0, 64.0)
    gaussian = rdp_of(reduce_event(sampled(rate, ev.Gaussian(noise_multiplier=1.5)), neighbours)[0][0], orders)
    wide = ev.Skellam(variance=1.5e12**2, l1_sensitivity=1e15, l2_sensitivity=1e12)
    sums = ev.DiscreteGaussianSum(sigma=1.5e6 / math.sqrt(7), shares=7, sensitivity=1e6, dimension=10**6)
    for event in (wide, sums):
        mine = rdp_of(reduce_event(sampled(rate, event), neighbours)[0][0], orders)
        assert np.allclose(mine, gaussian, rtol=1e-6)
        assert np.all(mine >= gaussian * (1 - 1e-9))


def test_dp_accounting_has_the_same_figures_at_whole_orders() -> None:
    from dp_accounting import dp_event
    from dp_accounting.rdp import rdp_privacy_accountant as theirs

    orders = [2, 3, 5, 8, 16, 32]
    other = theirs.RdpAccountant(orders)
    other.compose(dp_event.PoissonSampledDpEvent(0.03, dp_event.GaussianDpEvent(1.2)))
    mine = rdp_of(reduce_event(sampled(0.03, vector(1.2e3, 1e3)), ADD)[0][0], tuple(float(n) for n in orders))
    assert np.allclose(mine, other._rdp, rtol=1e-9)


def test_a_rate_of_one_is_no_sampling_and_a_rate_of_zero_is_free() -> None:
    assert reduce_event(sampled(1.0, skellam(9.0, 2)), ADD) == [(pr.SkellamPair(9.0, 2.0, 2.0), 1)]
    assert reduce_event(sampled(0.0, skellam(9.0, 2)), ADD) == []


@pytest.mark.parametrize("neighbours", list(Neighbours))
@pytest.mark.parametrize("size", [1, 3])
def test_sampling_never_costs_more_and_falls_with_the_rate(neighbours: Neighbours, size: int) -> None:
    event = skellam(50.0, 3)
    full = bound(ev.Group(size=size, event=event), 3.0, neighbours)
    costs = [
        bound(ev.Group(size=size, event=sampled(rate, event)), 3.0, neighbours) for rate in (1e-6, 0.01, 0.3, 0.99)
    ]
    assert costs == sorted(costs)
    assert costs[-1] <= full
    assert costs[0] < 1e-8 * full


def test_every_order_has_a_figure_and_curves_grow_with_it() -> None:
    ((pair, _),) = reduce_event(sampled(0.01, ev.Skellam(variance=1e8, l1_sensitivity=1e6, l2_sensitivity=1e4)), ADD)
    orders = (1.0001, 1.3, 2.0, 2.5, 3.0, 63.0, 63.7, 64.0, 1500.0, 4096.0, 5000.5, 8000.0)
    curve = rdp_of(pair, orders)
    assert np.all(np.isfinite(curve))
    assert np.all(np.diff(curve) >= 0)
    assert math.isinf(rdp_of(pair, (1e8,))[0])  # refused, not guessed


def test_tiny_rates_keep_their_digits() -> None:
    event = ev.Skellam(variance=1e12, l1_sensitivity=1e9, l2_sensitivity=1e6)
    small, smaller = (bound(sampled(rate, event), 2.0) for rate in (1e-7, 1e-9))
    assert small / smaller == pytest.approx(1e4, rel=1e-6)
    assert smaller == pytest.approx(1e-18 * math.expm1(1.0), rel=1e-3)


# ------------------------------------------------------------------------------------ who takes such events

SAMPLED = [
    sampled(0.1, skellam(100.0, 2)),
    sampled(0.1, vector(10.0, 2.0)),
    sampled(0.1, ev.DiscreteGaussianSum(sigma=5.0, shares=4, sensitivity=2.0, dimension=3)),
]


@pytest.mark.parametrize("event", SAMPLED, ids=lambda event: event.event.kind)
def test_exact_pld_and_zcdp_refuse_them_by_name_and_renyi_takes_them(event: Any) -> None:
    for accountant in (ExactAccountant(), PldAccountant(), ConcentratedAccountant()):
        assert not accountant.supports(event)
        with pytest.raises(UnsupportedEvent, match="RenyiAccountant"):
            accountant.compose(event)
    guarantee = RenyiAccountant().compose(event, 50).epsilon(delta=1e-5)
    assert 0.1 < guarantee.epsilon < 10
    assert "Rényi" in guarantee.method
    assert has_only_moments(ev.Repeated(times=3, event=event))


def test_what_has_more_than_moments_is_told_apart() -> None:
    for plain in (ev.Gaussian(noise_multiplier=1.0), ev.DiscreteGaussian(sigma=3.0, sensitivity=2.0), ev.Zcdp(rho=0.1)):
        assert not has_only_moments(sampled(0.1, plain))


@pytest.mark.parametrize("event", SAMPLED, ids=lambda event: event.event.kind)
def test_filters_and_odometers_take_them(event: Any) -> None:
    limit = RenyiFilter(budget=Budget(epsilon=2.0, delta=1e-5, unit=PrivacyUnit.RECORD), expected=event)
    spent = 0
    while limit.allows(event) and spent < 1000:
        limit.spend(event)
        spent += 1
    assert 0 < spent < 1000
    assert RenyiAccountant().compose(event, spent).epsilon(delta=1e-5).epsilon <= 2.0
    assert RenyiOdometer(delta=1e-5).compose(event, 3).epsilon().epsilon > 0


def test_steps_that_share_one_draw_and_fixed_sizes_stay_refused() -> None:
    twice = ev.Repeated(times=2, event=skellam(100.0, 2))
    with pytest.raises(UnsupportedEvent, match="share one draw"):
        reduce_event(sampled(0.1, twice), ADD)
    with pytest.raises(UnsupportedEvent, match="fixed-size sampling of Skellam has no sound bound"):
        reduce_event(ev.FixedSizeSampled(rate=0.1, event=skellam(100.0, 2)), REPLACE)


def test_a_change_of_any_field_is_another_pair() -> None:
    ((pair, _),) = reduce_event(SAMPLED[2], ADD)
    assert isinstance(pair, pr.SampledSumPair)
    assert dataclasses.replace(pair, size=2) != pair
    ((same, _),) = reduce_event(SAMPLED[2], ADD)
    assert same == pair and hash(same) == hash(pair)
