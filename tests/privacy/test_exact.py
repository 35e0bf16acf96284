"""The exact accountant: the truth, found in mpmath, lies between its bounds; and the bounds are close together."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from privacy.oracle import Step, delta, delta_mp
from quietsum.errors import InvalidParameter, QuietsumError, UnsupportedEvent
from quietsum.privacy.events import (
    Composed,
    Gaussian,
    Group,
    Laplace,
    PoissonSampled,
    PrivacyEvent,
    PureDP,
    Repeated,
    Zcdp,
)
from quietsum.privacy.exact import accountant as exact, sums as running
from quietsum.privacy.exact.accountant import ExactAccountant
from quietsum.privacy.exact.closed_forms import gaussian_epsilon
from quietsum.privacy.exact.contour import Spectrum
from quietsum.privacy.exact.inversion import ContourLine, Inversion
from quietsum.privacy.exact.mixtures import Direction
from quietsum.privacy.exact.moments import LADDER
from quietsum.privacy.guarantee import Guarantee
from quietsum.privacy.old_rules import SingleBatch
from quietsum.privacy.pairs import GaussianPair, MixturePair, OppositePair
from quietsum.privacy.units import Neighbours, PrivacyUnit

REMOVE, ADD = Direction.REMOVE, Direction.ADD


def sampled(sigma: float, rate: float, size: int = 1) -> PrivacyEvent:
    event = PoissonSampled(rate=rate, event=Gaussian(noise_multiplier=sigma))
    return Group(size=size, event=event) if size > 1 else event


def spent(sigma: float, rate: float, steps: int, at: float, size: int = 1) -> Guarantee:
    return ExactAccountant().compose(sampled(sigma, rate, size), steps).epsilon(delta=at)


def parts(accountant: ExactAccountant, direction: Direction) -> list[tuple[Step, int]]:
    """The accountant's history for the oracle."""
    found = []
    for pair, count in accountant.history.counts.items():
        if isinstance(pair, GaussianPair):
            found.append((Step(pair.sigma, 1.0), count))
        elif isinstance(pair, OppositePair):
            found.append((Step(pair.sigma, pair.rate, "opposite"), count))
        else:
            assert isinstance(pair, MixturePair)
            found.append((Step(pair.sigma, pair.rate, direction.value, pair.size), count))
    return found


def true_delta(accountant: ExactAccountant, epsilon: float, directions: Sequence[Direction] = (REMOVE, ADD)) -> float:
    """δ(ε) by the oracle, each direction on a contour a little left of the package's own."""
    worst = 0.0
    for direction in directions:
        if accountant._largest_loss(direction) <= epsilon:
            continue
        ladder = accountant._sums.ladder(direction) - LADDER * epsilon - exact._LOG_WEIGHT
        c = float(LADDER[int(np.argmin(ladder))]) * 0.8
        worst = max(worst, delta(parts(accountant, direction), epsilon, c=c))
    return worst


def holds(accountant: ExactAccountant, guarantee: Guarantee) -> bool:
    """Whether δ(upper) ≤ δ ≤ δ(lower): all that two-sided bounds claim."""
    directions = (REMOVE,) if guarantee.epsilon > 2 else (REMOVE, ADD)  # adding is the milder one by far there
    low_enough = true_delta(accountant, guarantee.epsilon, directions) <= guarantee.delta
    if guarantee.epsilon_lower == 0:
        return bool(low_enough)
    return bool(low_enough and true_delta(accountant, guarantee.epsilon_lower, directions) >= guarantee.delta)


# ------------------------------------------------------------------------------------------ known values


@pytest.mark.parametrize(
    ("sigma", "rate", "steps", "at", "epsilon"),
    [
        (1, 0.1, 100, 1e-5, 7.0466), (1, 0.1, 1000, 1e-5, 25.2046),
        (0.5, 0.8, 1, 1e-5, 9.6715), (0.5, 0.8, 10, 1e-5, 41.1301),
        (4, 1, 50, 1e-5, 8.5959), (1.2, 0.0032, 31200, 1e-5, 2.3208), (1, 0.0032, 31200, 1e-5, 3.1672),
        (0.5, 0.0032, 31200, 1e-5, 24.1112), (5, 0.0032, 31200, 1e-5, 0.3944), (0.6, 0.0032, 31200, 1e-5, 11.9759),
        (1, 0.01, 10000, 1e-5, 6.1877), (0.8, 0.01, 1000, 1e-6, 3.7062), (1, 0.01, 1000, 1e-30, 9.3419),
    ],
)  # fmt: skip
def test_measured_values_come_out_with_both_bounds(
    sigma: float, rate: float, steps: int, at: float, epsilon: float
) -> None:
    guarantee = spent(sigma, rate, steps, at)
    assert guarantee.epsilon == pytest.approx(epsilon, abs=6e-5)
    assert guarantee.gap <= 1e-6 * max(1, guarantee.epsilon)
    assert guarantee.certified
    assert guarantee.method.startswith("exact: c")  # contour or closed form


def test_groups_have_a_price_of_their_own() -> None:
    assert spent(2.231, 0.0032, 31200, 1e-5).epsilon == pytest.approx(0.9994, abs=1e-3)
    three, ten = (spent(2.231, 0.0032, 31200, 1e-5, size) for size in (3, 10))
    assert three.epsilon == pytest.approx(3.406, abs=1e-3)  # 3.42 by a rounded-up loss distribution
    assert ten.epsilon == pytest.approx(14.43, abs=5e-3)
    assert (three.unit, three.group_size, three.certified) == (PrivacyUnit.PERSON, 3, True)


def test_removing_a_unit_costs_more_than_adding_one() -> None:
    accountant = ExactAccountant().compose(sampled(1.0, 0.1), 100)
    found = {}
    for direction in (REMOVE, ADD):
        rung, ceiling = accountant._chernoff(direction, math.log(1e-5))
        found[direction] = accountant._solve(direction, rung, math.log(1e-5), ceiling)
    assert found[REMOVE][1] == pytest.approx(7.05, abs=5e-3)
    assert found[ADD][1] == pytest.approx(3.99, abs=5e-3)
    assert accountant.epsilon(delta=1e-5).epsilon == found[REMOVE][1]


# ----------------------------------------------------------------------------------- two oracles and more

SETTINGS: list[tuple[list[tuple[PrivacyEvent, int]], float]] = [
    ([(sampled(1.0, 0.1), 100)], 1e-5),
    ([(sampled(1.0, 0.01), 1000)], 1e-30),
    ([(sampled(1.2, 0.0032), 31200)], 1e-5),
    ([(sampled(0.5, 0.8), 10)], 1e-5),
    ([(sampled(10.0, 0.2), 400)], 1e-6),
    ([(sampled(1.0, 0.9), 30)], 0.3),
    ([(sampled(2.0, 0.3), 12), (sampled(1.0, 0.1), 30), (Gaussian(noise_multiplier=6.0), 3)], 1e-5),
    ([(sampled(3.0, 0.05), 500), (sampled(0.9, 0.01), 800)], 1e-9),
    ([(sampled(4.0, 0.05, 3), 300)], 1e-6),
    ([(sampled(12.0, 0.1, 10), 60), (Group(size=10, event=Gaussian(noise_multiplier=40.0)), 2)], 1e-4),
]


@pytest.mark.parametrize(("history", "at"), SETTINGS)
def test_the_truth_lies_between_the_bounds(history: list[tuple[PrivacyEvent, int]], at: float) -> None:
    accountant = ExactAccountant()
    for event, times in history:
        accountant.compose(event, times)
    guarantee = accountant.epsilon(delta=at)
    assert guarantee.method == "exact: contour"
    assert guarantee.gap <= 1e-5 * max(1, guarantee.epsilon)
    assert holds(accountant, guarantee)


@pytest.mark.parametrize(("index", "c"), [(0, 1.9), (3, 0.7), (6, 2.5), (8, 3.0)])
@pytest.mark.some(2)
def test_the_truth_in_thirty_digits_lies_between_the_bounds(index: int, c: float) -> None:
    history, at = SETTINGS[index]
    accountant = ExactAccountant()
    for event, times in history:
        accountant.compose(event, times)
    guarantee = accountant.epsilon(delta=at)
    known = parts(accountant, REMOVE)
    assert delta_mp(known, guarantee.epsilon, c) <= at <= delta_mp(known, guarantee.epsilon_lower, c)
    assert delta(known, guarantee.epsilon, 1.1 * c) == pytest.approx(delta_mp(known, guarantee.epsilon, c), rel=1e-12)


@pytest.mark.parametrize(
    ("events", "at"),
    [
        ([(sampled(1.0, 0.1), 100)], 1e-5),
        ([(sampled(1.5, 0.2), 40), (Gaussian(noise_multiplier=8.0), 2)], 1e-6),
        ([(SingleBatch(rate=0.05, event=Gaussian(noise_multiplier=2.0)), 200)], 1e-5),
        (  # opposite pairs and mixtures together: both directions, one of them the mirror image for half of the steps
            [(sampled(1.5, 0.2), 30), (SingleBatch(rate=0.2, event=Gaussian(noise_multiplier=3.0)), 30)],
            1e-5,
        ),
    ],
)
def test_replaced_records_have_their_own_pairs(events: list[tuple[PrivacyEvent, int]], at: float) -> None:
    accountant = ExactAccountant(neighbours=Neighbours.REPLACE_ONE)
    for event, times in events:
        accountant.compose(event, times)
    guarantee = accountant.epsilon(delta=at)
    assert guarantee.method == "exact: contour"
    assert holds(accountant, guarantee)
    for direction in accountant._sums.directions():  # the milder direction must be right too
        rung, ceiling = accountant._chernoff(direction, math.log(at))
        lower, upper = accountant._solve(direction, rung, math.log(at), ceiling)
        assert true_delta(accountant, upper, (direction,)) <= at <= true_delta(accountant, lower, (direction,))


def test_two_steps_agree_with_direct_integration() -> None:
    """δ₂(ε) = E_{x ~ P}[δ₁(ε − L(x))], the inner δ by its threshold: no Fourier transform anywhere."""
    sigma, rate = mp.mpf(1), mp.mpf("0.5")

    def loss(x: Any) -> Any:
        return mp.log(1 - rate + rate * mp.exp((x - 0.5) / sigma**2))

    def one(epsilon: Any) -> Any:
        inside = (mp.exp(epsilon) - 1 + rate) / rate
        if inside <= 0:
            return 1 - mp.exp(epsilon)
        x = sigma**2 * mp.log(inside) + 0.5
        drawn, other = mp.ncdf((1 - x) / sigma), mp.ncdf(-x / sigma)
        return (1 - rate) * other + rate * drawn - mp.exp(epsilon) * other

    def two(epsilon: Any) -> Any:
        def density(x: Any) -> Any:
            return (1 - rate) * mp.npdf(x, 0, sigma) + rate * mp.npdf(x, 1, sigma)

        kink = sigma**2 * mp.log((mp.exp(epsilon) / (1 - rate) - 1 + rate) / rate) + 0.5
        return mp.quad(lambda x: density(x) * one(epsilon - loss(x)), [-12, -6, -2, 0, 2, kink, kink + 2, 8, 13])

    for at in (1e-2, 1e-5):
        guarantee = spent(1.0, 0.5, 2, at)
        assert guarantee.gap <= 1e-3
        with mp.workdps(20):
            assert two(mp.mpf(guarantee.epsilon)) <= at <= two(mp.mpf(guarantee.epsilon_lower))


def test_one_step_on_the_contour_agrees_with_its_closed_form() -> None:
    accountant = ExactAccountant().compose(sampled(1.0, 0.5))
    closed = accountant.delta_bounds(epsilon=1.0)
    lower, upper = accountant._contour_delta(1.0)
    assert lower <= closed[1]
    assert closed[0] <= upper
    assert upper - lower < 1e-6 * upper


def test_gaussian_steps_on_the_contour_agree_with_their_closed_form() -> None:
    accountant = ExactAccountant().compose(Gaussian(noise_multiplier=4.0), 50)
    lower, upper = accountant._contour_epsilon(1e-5)
    assert lower <= gaussian_epsilon(math.sqrt(50) / 4, 1e-5) <= upper
    assert upper - lower < 1e-9


def test_the_limit_of_rate_one_is_the_gaussian() -> None:
    almost = spent(4.0, 1 - 1e-12, 50, 1e-5)
    assert almost.method == "exact: contour"
    assert almost.epsilon == pytest.approx(spent(4.0, 1.0, 50, 1e-5).epsilon, abs=1e-9)


def test_other_libraries_bounds_overlap() -> None:
    from dp_accounting import dp_event, pld

    for sigma, rate, steps, at in ((1.0, 0.01, 1000, 1e-5), (0.8, 0.05, 200, 1e-6)):
        guarantee = spent(sigma, rate, steps, at)
        event = dp_event.PoissonSampledDpEvent(rate, dp_event.GaussianDpEvent(sigma))
        other = pld.PLDAccountant().compose(event, steps).get_epsilon(at)
        assert guarantee.epsilon_lower <= other <= guarantee.epsilon + 0.02


def test_prv_accountant_agrees_within_its_own_error() -> None:
    from prv_accountant import PoissonSubsampledGaussianMechanism, PRVAccountant

    mechanism = PoissonSubsampledGaussianMechanism(noise_multiplier=1.0, sampling_probability=0.01)
    other = PRVAccountant(prvs=[mechanism], max_self_compositions=[1000], eps_error=0.01, delta_error=1e-10)
    low, _, high = other.compute_epsilon(delta=1e-5, num_self_compositions=[1000])
    guarantee = spent(1.0, 0.01, 1000, 1e-5)
    assert low <= guarantee.epsilon
    assert guarantee.epsilon_lower <= high


# ---------------------------------------------------------------------------------------- δ at a given ε


@pytest.mark.parametrize("epsilon", [-2.0, -0.3, 0.0, 0.5, 3.0, 9.0])
def test_delta_bounds_hold_the_truth_for_every_sign_of_epsilon(epsilon: float) -> None:
    accountant = ExactAccountant().compose(sampled(1.0, 0.1), 60)
    lower, upper = accountant.delta_bounds(epsilon=epsilon)
    assert lower <= true_delta(accountant, epsilon) <= upper
    assert upper - lower <= 1e-3 * upper
    assert accountant.delta(epsilon=epsilon) == upper


def test_delta_and_epsilon_are_inverse() -> None:
    accountant = ExactAccountant().compose(sampled(1.0, 0.01), 1000)
    for at in (1e-3, 1e-6, 1e-15):
        guarantee = accountant.epsilon(delta=at)
        assert accountant.delta_bounds(epsilon=guarantee.epsilon)[0] <= at
        assert accountant.delta_bounds(epsilon=guarantee.epsilon_lower)[1] >= at


def test_delta_at_an_epsilon_beyond_all_floats_is_the_smallest_float() -> None:
    assert ExactAccountant().compose(sampled(1.0, 0.01), 100).delta_bounds(epsilon=1e4) == (0.0, 5e-324)


def test_delta_of_nothing_is_one_minus_e_to_a_negative_epsilon() -> None:
    assert ExactAccountant().delta(epsilon=0.0) == 0
    assert ExactAccountant().delta(epsilon=-1.0) == pytest.approx(1 - math.exp(-1))


def test_delta_falls_back_and_mirrors_negative_epsilons() -> None:
    """δ(−ε) = 1 − e^{−ε} + e^{−ε} δ(ε), as both directions count."""
    accountant = ExactAccountant().compose(Laplace(noise_multiplier=1.0), 2)
    low, high = accountant.delta_bounds(epsilon=0.5)
    mirrored = accountant.delta_bounds(epsilon=-0.5)
    assert mirrored[0] == pytest.approx(1 - math.exp(-0.5) + math.exp(-0.5) * low)
    assert mirrored[1] == pytest.approx(1 - math.exp(-0.5) + math.exp(-0.5) * high)
    few = ExactAccountant().compose(sampled(0.5, 1e-4), 5)
    assert 0 < few.delta_bounds(epsilon=0.5)[0] <= few.delta(epsilon=0.5) < 1e-3


@pytest.mark.parametrize("bad", [math.nan, math.inf, "1", None])
def test_an_epsilon_that_is_no_number_is_refused(bad: Any) -> None:
    with pytest.raises(InvalidParameter, match="epsilon"):
        ExactAccountant().delta(epsilon=bad)


@pytest.mark.parametrize("bad", [0.0, 1.0, -1e-5, math.nan, math.inf])
def test_a_delta_outside_of_zero_to_one_is_refused(bad: float) -> None:
    with pytest.raises(InvalidParameter, match="delta"):
        ExactAccountant().epsilon(delta=bad)


# -------------------------------------------------------------------------------------- small epsilons


def test_nothing_composed_costs_nothing() -> None:
    guarantee = ExactAccountant().epsilon(delta=1e-6)
    assert (guarantee.epsilon, guarantee.certified) == (0.0, True)


def test_a_tiny_epsilon_keeps_its_digits() -> None:
    accountant = ExactAccountant().compose(sampled(10.0, 1e-4), 20)
    guarantee = accountant.epsilon(delta=1e-5)
    assert 1.9e-5 < guarantee.epsilon < 2e-5
    assert guarantee.gap < 1e-8
    assert holds(accountant, guarantee)


def test_below_the_total_variation_the_cost_is_exactly_zero() -> None:
    for accountant in (
        ExactAccountant().compose(sampled(1.0, 1e-9), 100),
        ExactAccountant().compose(sampled(1.0, 1e-9, 5), 10),
        ExactAccountant(neighbours=Neighbours.REPLACE_ONE).compose(sampled(1e6, 0.9), 2),
        ExactAccountant().compose(sampled(1e6, 0.9), 2).compose(Gaussian(noise_multiplier=1e7)),
    ):
        guarantee = accountant.epsilon(delta=1e-5)
        assert (guarantee.epsilon, guarantee.certified) == (0.0, True)
        assert "total variation" in guarantee.method


def test_zero_is_also_found_on_the_contour() -> None:
    """The crude bound on the total variation is too large here; δ(0) itself is below δ."""
    accountant = ExactAccountant().compose(sampled(2.0, 0.05), 100)
    assert accountant._total_variation() > 0.2
    at = float(accountant.delta(epsilon=0.0)) * 1.01
    guarantee = accountant.epsilon(delta=at)
    assert (guarantee.epsilon, guarantee.epsilon_lower, guarantee.method) == (0.0, 0.0, "exact: contour")
    assert true_delta(accountant, 0.0) <= at
    assert accountant.epsilon(delta=at / 1.03).epsilon > 0


def test_the_total_variation_is_a_bound() -> None:
    for event, times in ((sampled(1.0, 0.3), 8), (sampled(3.0, 0.2, 4), 6), (sampled(20.0, 0.5), 40)):
        accountant = ExactAccountant().compose(event, times)
        assert true_delta(accountant, 0.0, (REMOVE,)) <= accountant._total_variation() < 1


# ----------------------------------------------------------------------------------- histories that grow


def test_round_by_round_equals_all_at_once() -> None:
    steps = [(1.0, 0.01, 40), (1.5, 0.02, 70), (1.0, 0.01, 100), (0.8, 0.005, 50), (1.5, 0.02, 10)] * 3
    grown = ExactAccountant()
    for sigma, rate, times in steps:
        grown.compose(sampled(sigma, rate), times)
        last = grown.epsilon(delta=1e-5)
        fresh = ExactAccountant()
        for pair, count in grown.history.counts.items():
            fresh.history.add_pair(pair, count)
        assert last.epsilon == pytest.approx(fresh.epsilon(delta=1e-5).epsilon, rel=1e-8, abs=1e-9)
    assert last.certified
    assert holds(grown, last)


def test_the_order_of_steps_does_not_matter() -> None:
    steps = [(sampled(1.0, 0.02), 30), (sampled(2.0, 0.1), 50), (Gaussian(noise_multiplier=9.0), 2)]
    forward, backward = ExactAccountant(), ExactAccountant()
    for event, times in steps:
        forward.compose(event, times)
    for event, times in reversed(steps):
        backward.compose(event, times)
    one, other = forward.epsilon(delta=1e-6), backward.epsilon(delta=1e-6)
    assert one.epsilon == pytest.approx(other.epsilon, rel=1e-10)
    assert one.epsilon_lower <= other.epsilon
    assert other.epsilon_lower <= one.epsilon


def test_repetitions_and_compositions_are_sums() -> None:
    event = sampled(1.0, 0.05)
    one = ExactAccountant().compose(Repeated(times=20, event=event), 5).epsilon(delta=1e-5)
    other = ExactAccountant().compose(Composed(events=(event, event)), 50).epsilon(delta=1e-5)
    assert one.epsilon == other.epsilon


def test_more_steps_never_cost_less() -> None:
    accountant = ExactAccountant()
    last = 0.0
    for _ in range(12):
        guarantee = accountant.compose(sampled(1.0, 0.05), 40).epsilon(delta=1e-5)
        assert guarantee.epsilon_lower >= last
        last = guarantee.epsilon


def test_copies_go_their_own_way() -> None:
    accountant = ExactAccountant(unit=PrivacyUnit.CLIENT).compose(sampled(1.0, 0.05), 40)
    before = accountant.epsilon(delta=1e-5)
    copy = accountant.copy()
    assert copy.epsilon(delta=1e-5) == before
    assert copy.epsilon(delta=1e-5).unit is PrivacyUnit.CLIENT
    more = copy.compose(sampled(1.0, 0.05), 40).epsilon(delta=1e-5)
    assert more.epsilon > before.epsilon
    assert accountant.epsilon(delta=1e-5) == before
    assert more.epsilon == pytest.approx(spent(1.0, 0.05, 80, 1e-5).epsilon, rel=1e-9)


def test_many_contours_do_not_pile_up() -> None:
    accountant = ExactAccountant().compose(sampled(1.0, 0.05), 200)
    for power in np.linspace(1, 28, 50):
        accountant.epsilon(delta=float(10**-power))
    assert len(accountant._sums._spectra) <= 17


def test_what_no_loss_describes_is_refused_and_changes_nothing() -> None:
    accountant = ExactAccountant().compose(sampled(1.0, 0.05), 40)
    before = accountant.epsilon(delta=1e-5)
    assert not accountant.supports(Zcdp(rho=0.1))
    assert accountant.supports(Laplace(noise_multiplier=2.0))
    with pytest.raises(UnsupportedEvent):
        accountant.compose(Zcdp(rho=0.1))
    assert accountant.epsilon(delta=1e-5) == before


# ----------------------------------------------------------------------------------------- falling back


def test_a_few_steps_fall_back_to_loss_distributions_and_say_so() -> None:
    guarantee = spent(0.5, 1e-4, 5, 1e-8)
    assert guarantee.method.startswith("exact: privacy-loss distribution (contour inconclusive: ")
    assert not guarantee.certified
    assert guarantee.epsilon_lower <= 0.95188 <= guarantee.epsilon
    assert guarantee.gap <= 1e-3


def test_other_noise_falls_back_and_says_so() -> None:
    mixed = ExactAccountant().compose(Laplace(noise_multiplier=2.0), 4).compose(sampled(1.0, 0.1))
    guarantee = mixed.epsilon(delta=1e-5)
    assert guarantee.method == "exact: privacy-loss distribution (not all events are Gaussian)"
    assert guarantee.gap <= 1e-3
    pure = ExactAccountant().compose(PureDP(epsilon=0.3), 2).epsilon(delta=1e-9)
    assert pure.epsilon == pytest.approx(0.6, abs=1e-6)


def test_a_moment_bound_replaces_loss_distributions_that_give_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quietsum.privacy.pld.accountant.pld_bounds", lambda counts, delta: (0.1, math.inf))
    guarantee = spent(0.5, 1e-4, 5, 1e-8)
    assert guarantee.method.startswith("exact: moment bound (")
    assert 0.9519 <= guarantee.epsilon < 10
    assert guarantee.epsilon_lower == 0.1


def test_a_moment_bound_replaces_loss_distributions_that_refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(counts: object, delta: float) -> None:
        raise QuietsumError("no grid")

    monkeypatch.setattr("quietsum.privacy.pld.accountant.pld_bounds", refuse)
    tiny = spent(1e-3, 0.5, 4, 1e-8)  # no finite moment: as if all units were drawn every time
    assert tiny.epsilon == pytest.approx(gaussian_epsilon(2000.0, 1e-8), rel=1e-6)
    assert tiny.epsilon_lower == 0
    with pytest.raises(QuietsumError, match="no grid"):
        ExactAccountant().compose(Laplace(noise_multiplier=1.0)).epsilon(delta=1e-6)
    with pytest.raises(QuietsumError, match="no grid"):
        spent(1e-200, 0.5, 3, 1e-8)


# --------------------------------------------------------------------------------------------- extremes


@pytest.mark.parametrize(
    ("sigma", "rate", "steps", "at"),
    [
        (1e-3, 1.0, 10**9, 1e-5), (1e6, 0.5, 10**9, 1e-5), (1e6, 1e-12, 10**9, 1e-5), (50.0, 1e-12, 10**9, 1e-5),
        (0.5, 1e-3, 10**9, 1e-5), (1.0, 0.5, 10**9, 1e-10), (1.0, 0.5, 10**6, 0.1), (1e6, 0.9, 7, 1e-10),
        (1e-3, 0.3, 1, 1e-5), (1e150, 0.5, 10, 1e-5), (0.3, 1 - 1e-9, 10**5, 1e-10), (3.0, 1e-5, 10**7, 1e-7),
    ],
)  # fmt: skip
def test_extreme_settings_get_a_sound_answer(sigma: float, rate: float, steps: int, at: float) -> None:
    guarantee = spent(sigma, rate, steps, at)
    assert math.isfinite(guarantee.epsilon)
    assert guarantee.gap <= 1e-3 * max(1, guarantee.epsilon)
    unsampled = gaussian_epsilon(math.sqrt(steps) / sigma, at)
    assert guarantee.epsilon <= unsampled * (1 + 1e-9) + 1e-9
    if steps > 1 and 1e-3 < rate < 1 and sigma < 1e5:
        assert guarantee.epsilon_lower > 0 or at > 0.5


@pytest.mark.slow
@pytest.mark.parametrize(("sigma", "rate", "steps"), [(1e-3, 0.5, 3), (0.05, 0.3, 10**9), (0.3, 1e-12, 10**9)])
@pytest.mark.some(1)
def test_settings_beyond_the_contour_still_get_an_answer(sigma: float, rate: float, steps: int) -> None:
    guarantee = spent(sigma, rate, steps, 1e-10)
    assert 0 <= guarantee.epsilon_lower <= guarantee.epsilon < math.inf
    assert guarantee.method != "exact: contour" or guarantee.certified


def test_large_groups_go_to_loss_distributions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quietsum.privacy.pld.accountant.pld_bounds", lambda counts, delta: (0.25, 0.5))
    guarantee = ExactAccountant().compose(sampled(100.0, 1e-3, 1001), 10).epsilon(delta=1e-5)
    assert (guarantee.epsilon_lower, guarantee.epsilon) == (0.25, 0.5)


def test_a_history_of_mixed_scales_is_one_sum() -> None:
    accountant = ExactAccountant().compose(sampled(1.0, 0.01), 1000).compose(sampled(1e5, 1e-6), 5)
    alone = spent(1.0, 0.01, 1000, 1e-5)
    both = accountant.epsilon(delta=1e-5)
    assert both.method == "exact: contour"
    assert alone.epsilon_lower <= both.epsilon <= alone.epsilon + 1e-5


# ------------------------------------------------------------------------------------ negative controls


def test_a_tail_that_is_cut_without_a_certificate_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight nodes and a tail bound that lies: the bounds are narrow, and wrong."""

    def short(self: ExactAccountant, direction: Direction, rung: int, density: int, most: int) -> ContourLine:
        return ContourLine(direction, float(LADDER[rung]), density, 8)

    monkeypatch.setattr(ExactAccountant, "_line", short)
    monkeypatch.setattr(running, "_log_tail", lambda pair, direction, c, t: -1e6)
    accountant = ExactAccountant().compose(sampled(1.0, 0.05), 60)
    lower, upper = accountant._contour_epsilon(1e-5)
    monkeypatch.undo()
    honest = spent(1.0, 0.05, 60, 1e-5)
    assert not lower <= honest.epsilon <= upper
    assert not holds(accountant, Guarantee(epsilon=upper, epsilon_lower=lower, delta=1e-5, method="cut"))


def coarse(direction: Direction, accountant: ExactAccountant, density: int) -> Inversion:
    """A contour of few nodes, whose aliases matter."""
    rung, _ = accountant._chernoff(direction, math.log(1e-5))
    line = ContourLine(direction, float(LADDER[rung]), density, 64)
    sums = accountant._sums
    return Inversion(line, sums.spectrum(line), sums.tail(line), sums.above(direction, line.c))


def test_the_trapezoid_sum_only_ever_over_reports() -> None:
    accountant = ExactAccountant().compose(sampled(1.0, 0.1), 100)
    for density in (2, 3, 4, 6):
        inverse = coarse(REMOVE, accountant, density)
        for epsilon in (1.0, 4.0, 7.0):
            truth = math.log(true_delta(accountant, epsilon, (REMOVE,)))
            lower, upper = inverse.bounds(epsilon)
            assert lower <= truth <= upper
            assert inverse.log_delta(epsilon)[0] >= truth - 1e-8


def test_aliases_that_are_forgotten_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    accountant = ExactAccountant().compose(sampled(1.0, 0.1), 100)
    inverse = coarse(REMOVE, accountant, 3)
    truth = math.log(true_delta(accountant, 7.0, (REMOVE,)))
    monkeypatch.setattr(Inversion, "_log_aliases", lambda self, epsilon: -math.inf)
    assert inverse.bounds(7.0)[0] > truth


def test_a_direction_that_is_forgotten_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Removing is the worse direction for every ε ≥ 0 that was ever found; for ε < 0 it is adding."""
    accountant = ExactAccountant().compose(sampled(1.0, 0.1), 60)
    monkeypatch.setattr(running.RunningSums, "directions", lambda self: (REMOVE,))
    assert accountant.delta(epsilon=-1.0) < true_delta(accountant, -1.0) * 0.9999
    monkeypatch.setattr(running.RunningSums, "directions", lambda self: (ADD,))
    assert accountant.epsilon(delta=1e-5).epsilon < 0.7 * spent_remove()
    assert accountant.delta(epsilon=1.0) < 0.7 * true_delta(accountant, 1.0)


def spent_remove() -> float:
    accountant = ExactAccountant().compose(sampled(1.0, 0.1), 60)
    rung, ceiling = accountant._chernoff(REMOVE, math.log(1e-5))
    return accountant._solve(REMOVE, rung, math.log(1e-5), ceiling)[1]


def test_rounding_errors_that_are_forgotten_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A billion steps multiply the error of one node; without it the bounds are narrower than their own error."""
    plain = running._long_spectrum.__wrapped__

    def boastful(*arguments: Any) -> Spectrum:
        found = plain(*arguments)
        return Spectrum(found.log_phi, np.zeros_like(found.error))

    monkeypatch.setattr(running, "_spectrum", boastful)
    monkeypatch.setattr(running, "_long_spectrum", boastful)
    accountant = ExactAccountant().compose(sampled(40.0, 1e-3), 10**9)
    lower, upper = accountant._contour_epsilon(1e-6)
    monkeypatch.undo()
    honest = spent(40.0, 1e-3, 10**9, 1e-6)
    assert honest.gap > 2 * (upper - lower)
    assert honest.epsilon_lower <= upper
    assert not holds(accountant, Guarantee(epsilon=upper, epsilon_lower=lower, delta=1e-6, method="boastful"))
    assert holds(accountant, honest)


def test_a_moment_function_off_by_a_millionth_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = running._spectrum.__wrapped__

    def wrong(*arguments: Any) -> Spectrum:
        found = plain(*arguments)
        return Spectrum(found.log_phi * (1 - 1e-6), found.error)

    monkeypatch.setattr(running, "_spectrum", wrong)
    accountant = ExactAccountant().compose(sampled(1.0, 0.1), 100)
    guarantee = accountant.epsilon(delta=1e-5)
    assert not holds(accountant, guarantee)


# --------------------------------------------------------------------------------------- random settings


def histories() -> Iterator[tuple[list[tuple[float, float, int]], int, float]]:
    rng = np.random.default_rng(20)
    for _ in range(30):
        size = int(rng.choice([1, 1, 2, 4]))
        history = [
            (
                float(np.exp(rng.uniform(math.log(0.6), math.log(8)))) * math.sqrt(size),
                float(np.exp(rng.uniform(math.log(0.003), math.log(0.9)))),
                int(np.exp(rng.uniform(math.log(20), math.log(3e4)))),
            )
            for _ in range(int(rng.choice([1, 1, 2, 3])))
        ]
        yield history, size, float(10 ** rng.uniform(-12, -2))


@pytest.mark.parametrize(("history", "size", "at"), list(histories()))
def test_random_histories_are_bounded_on_both_sides(
    history: list[tuple[float, float, int]], size: int, at: float
) -> None:
    accountant = ExactAccountant()
    for sigma, rate, steps in history:
        accountant.compose(sampled(sigma, rate, size), steps)
    guarantee = accountant.epsilon(delta=at)
    assert guarantee.gap <= 1e-3 * max(1, guarantee.epsilon)
    assert holds(accountant, guarantee)


@given(
    sigma=st.floats(0.5, 10),
    rate=st.floats(-4, 0).map(lambda power: 10**power),
    steps=st.floats(0, 5).map(lambda power: int(10**power)),
    at=st.floats(-10, -3).map(lambda power: 10**power),
)
@settings(max_examples=40)
def test_bounds_are_ordered_close_and_consistent(sigma: float, rate: float, steps: int, at: float) -> None:
    accountant = ExactAccountant().compose(sampled(sigma, rate), steps)
    guarantee = accountant.epsilon(delta=at)
    assert 0 <= guarantee.epsilon_lower <= guarantee.epsilon < math.inf
    assert guarantee.gap <= 1e-3 * max(1, guarantee.epsilon)
    assert accountant.delta_bounds(epsilon=guarantee.epsilon)[0] <= at * (1 + 1e-9)
