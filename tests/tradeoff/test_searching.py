"""What a search costs: against mpmath, against dp_accounting, and against selections that are computed exactly."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import mpmath as mp
import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from dp_accounting.dp_event import RepeatAndSelectDpEvent
from dp_accounting.rdp import RdpAccountant

from quietsum.errors import InvalidParameter, QuietsumError, UnsupportedEvent
from quietsum.privacy.events import ApproximateDP, Gaussian, PoissonSampled, PrivacyEvent, Repeated
from quietsum.privacy.exact.accountant import ExactAccountant
from quietsum.privacy.renyi.accountant import RenyiAccountant
from quietsum.tradeoff.searching import geometric_curve, poisson_curve, search_cost


def training(noise: float, steps: int = 300, rate: float = 0.05) -> PrivacyEvent:
    return Repeated(times=steps, event=PoissonSampled(rate=rate, event=Gaussian(noise_multiplier=noise)))


# ------------------------------------------------------------------------------------------ oracle: mpmath


def gaussian_by_hand(law: str, noise: float, mean: int, delta: float) -> float:
    """The bound for a run that is one Gaussian mechanism, in 30 digits, over a fine grid of orders.

    D_α = α/2σ², δ̂(ε̂) by the closed form of Balle and Wang 2018, the conversion of Canonne, Kamath and Steinke 2020.
    """
    with mp.workdps(30):
        sigma, k = mp.mpf(noise), mp.mpf(mean)
        orders = [1 + mp.mpf(2) ** (mp.mpf(i) / 8) for i in range(-40, 90)]

        def divergence(order: mp.mpf) -> mp.mpf:
            return order / (2 * sigma**2)

        def hat(order: mp.mpf) -> mp.mpf:
            eps = mp.log(1 + 1 / (order - 1))
            return mp.ncdf(1 / (2 * sigma) - eps * sigma) - mp.exp(eps) * mp.ncdf(-1 / (2 * sigma) - eps * sigma)

        extra = min(2 * (1 - 1 / o) * divergence(o) + 2 * mp.log(k) / o for o in orders)
        best = mp.inf
        for o in orders:
            more = extra if law == "geometric" else k * hat(o)
            curve = divergence(o) + more + mp.log(k) / (o - 1)
            best = min(best, curve + mp.log((o - 1) / o) - (mp.log(delta) + mp.log(o)) / (o - 1))
        return float(best)


@pytest.mark.parametrize("noise", [0.8, 2.0, 5.0])
@pytest.mark.parametrize("mean", [2, 10, 1000])
def test_both_bounds_agree_with_thirty_digits_for_a_gaussian(noise: float, mean: int) -> None:
    cost = search_cost([Gaussian(noise_multiplier=noise)], delta=1e-6, trials=mean)
    for law, found in (("geometric", cost.geometric), ("poisson", cost.poisson)):
        assert found.epsilon == pytest.approx(gaussian_by_hand(law, noise, mean, 1e-6), rel=4e-3)


# ------------------------------------------------------------------------------------ oracle: dp_accounting


def referee(noise: float, mean: float, shape: float, delta: float) -> float:
    event = SelfComposedDpEvent(PoissonSampledDpEvent(0.05, GaussianDpEvent(noise)), 300)
    accountant = RdpAccountant(orders=list(RenyiAccountant().orders))
    return float(accountant.compose(RepeatAndSelectDpEvent(event, mean, shape)).get_epsilon(delta))


@pytest.mark.parametrize(("noise", "mean"), [(1.5, 3), (2.0, 10), (4.0, 100)])
def test_the_geometric_bound_agrees_with_dp_accounting(noise: float, mean: int) -> None:
    found = search_cost([training(noise)], delta=1e-5, trials=mean).geometric.epsilon
    assert found == pytest.approx(referee(noise, mean, 1.0, 1e-5), rel=2e-3)


@pytest.mark.parametrize(("noise", "mean"), [(1.5, 3), (2.0, 10), (4.0, 100)])
def test_the_poisson_bound_agrees_with_dp_accounting_when_it_takes_its_looser_deltas(noise: float, mean: int) -> None:
    """dp_accounting takes δ̂ from Rényi orders, we from the exact accountant, so ours is never above theirs."""
    accountant = RenyiAccountant().compose(training(noise))
    deltas = [accountant.delta(epsilon=math.log1p(1 / (order - 1))) for order in accountant.orders]
    curve = poisson_curve(accountant.orders, accountant.rdp_curve(), deltas, mean)
    same = RenyiAccountant().compose_rdp(curve).epsilon(delta=1e-5).epsilon
    theirs = referee(noise, mean, math.inf, 1e-5)
    assert same == pytest.approx(theirs, rel=2e-3)
    assert search_cost([training(noise)], delta=1e-5, trials=mean).poisson.epsilon <= theirs * (1 + 1e-9)


# ------------------------------------------------------------------------- oracle: selections computed exactly


def best_of(law: Callable[[Any], Any], chances: list[float]) -> list[Any]:
    """The law of the best of K draws, worst first; ``law`` is the generating function of K. K = 0 shows the worst."""
    exact = [mp.mpf(chance) for chance in chances]
    below = [law(mp.fsum(exact[:place])) for place in range(len(exact) + 1)]
    found = [high - low for low, high in itertools.pairwise(below)]
    found[0] += below[0]
    return found


def divergence(order: float, one: list[Any], two: list[Any]) -> float:
    terms = [mp.mpf(p) ** order * mp.mpf(q) ** (1 - order) for p, q in zip(one, two, strict=True)]
    return float(mp.log(mp.fsum(terms)) / (order - 1))


def hockey_stick(epsilon: float, one: list[float], two: list[float]) -> float:
    return max(
        sum(max(0.0, p - math.exp(epsilon) * q) for p, q in zip(a, b, strict=True)) for a, b in ((one, two), (two, one))
    )


CASES = [
    ([0.5, 0.3, 0.2], [0.2, 0.3, 0.5]), ([0.9, 0.1], [0.6, 0.4]), ([0.99, 0.01], [0.97, 0.03]),
    ([0.25, 0.25, 0.25, 0.25], [0.1, 0.2, 0.3, 0.4]),
]  # fmt: skip
ORDERS = [1.05, 1.2, 1.5, 2.0, 3.0, 5.0, 8.0, 16.0, 32.0]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("mean", [2.0, 5.0, 40.0])
def test_no_selection_that_can_be_computed_exceeds_the_bounds(
    case: tuple[list[float], list[float]], mean: float
) -> None:
    one, two = case
    curve = [max(divergence(order, one, two), divergence(order, two, one)) for order in ORDERS]
    deltas = [hockey_stick(math.log1p(1 / (order - 1)), one, two) for order in ORDERS]
    bounds = {
        "geometric": (geometric_curve(ORDERS, curve, mean), lambda s: s / (mean - (mean - 1) * s)),
        "poisson": (poisson_curve(ORDERS, curve, deltas, mean), lambda s: mp.exp(mean * (s - 1))),
    }
    for bound, law in bounds.values():
        chosen = best_of(law, one), best_of(law, two)
        for order, most in zip(ORDERS, bound, strict=True):
            assert divergence(order, *chosen) <= most and divergence(order, *reversed(chosen)) <= most


def test_charging_the_selection_like_a_single_run_would_be_exceeded() -> None:
    """The negative control: a selection does cost more than one run, and the exact computation sees it."""
    one, two = CASES[2]
    chosen = [best_of(lambda s: mp.exp(40 * (s - 1)), part) for part in (one, two)]
    assert divergence(8.0, *reversed(chosen)) > max(divergence(8.0, one, two), divergence(8.0, two, one))


# --------------------------------------------------------------------------------------------------- facts


def test_one_trial_costs_one_run() -> None:
    cost = search_cost([training(2.0)], delta=1e-5)
    assert cost.trials == 1 and cost.total.epsilon == pytest.approx(cost.single.epsilon)
    assert cost.geometric.epsilon == pytest.approx(RenyiAccountant().compose(training(2.0)).epsilon(delta=1e-5).epsilon)


def test_the_sum_is_the_exact_composition_of_all_runs() -> None:
    runs = [training(2.0), training(3.0), training(4.0)]
    together = ExactAccountant()
    for run in runs:
        together.compose(run)
    assert search_cost(runs, delta=1e-5).total.epsilon == pytest.approx(together.epsilon(delta=1e-5).epsilon)
    five = together.compose(runs[0]).compose(runs[1]).epsilon(delta=1e-5).epsilon
    assert search_cost(runs, delta=1e-5, trials=5).total.epsilon == pytest.approx(five)


def test_a_search_costs_as_if_every_draw_were_its_dearest_setting() -> None:
    mixed = search_cost([training(2.0), training(9.0)], delta=1e-5, trials=10)
    dear = search_cost([training(2.0)], delta=1e-5, trials=10)
    assert mixed.single.epsilon == dear.single.epsilon
    assert mixed.geometric.epsilon == pytest.approx(dear.geometric.epsilon)
    assert mixed.poisson.epsilon == pytest.approx(dear.poisson.epsilon)


def test_many_trials_are_cheaper_selected_than_shown() -> None:
    cost = search_cost([training(2.0)], delta=1e-5, trials=200)
    assert max(cost.geometric.epsilon, cost.poisson.epsilon) < cost.total.epsilon and cost.best is not cost.total
    assert "Papernot" in cost.poisson.method and cost.to_dict()["poisson"]["unit"] == "record"


@pytest.mark.parametrize(
    ("runs", "options"),
    [
        ([], {}), ([1.0], {}), ([training(2.0)], {"trials": 0}), ([training(2.0)], {"trials": 1.5}),
        ([training(2.0)], {"delta": 0.0}), ([training(2.0)], {"delta": math.nan}),
    ],
)  # fmt: skip
def test_a_search_that_makes_no_sense_is_refused(runs: list[PrivacyEvent], options: dict[str, float]) -> None:
    with pytest.raises(QuietsumError):
        search_cost(runs, **{"delta": 1e-5, **options})  # type: ignore[arg-type]


def test_an_event_that_may_fail_outright_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedEvent, match="may fail outright"):
        search_cost([ApproximateDP(epsilon=1.0, delta=1e-7)], delta=1e-5)


@pytest.mark.parametrize("mean", [0.5, math.nan, math.inf])
def test_less_than_one_run_on_average_is_refused(mean: float) -> None:
    with pytest.raises(InvalidParameter):
        geometric_curve([2.0], [0.1], mean)
