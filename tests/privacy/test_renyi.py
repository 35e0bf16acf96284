"""RenyiAccountant: conversions, bookkeeping, failures, and soundness against what is known to be a lower bound."""

from __future__ import annotations

import math
from typing import Any

import mpmath
import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
from dp_accounting.rdp import RdpAccountant
from hypothesis import given, strategies as st

from quietsum import (
    Composed,
    DiscreteGaussian,
    ExactAccountant,
    FixedSizeSampled,
    Gaussian,
    InvalidParameter,
    Laplace,
    Neighbours,
    PoissonSampled,
    PrivacyUnit,
    RenyiAccountant,
    Repeated,
)
from quietsum.errors import MixedUnits, UnsupportedEvent
from quietsum.privacy import (
    ApproximateDP,
    DiscreteLaplace,
    Group,
    Observer,
    PureDP,
    RandomizedResponse,
    Shuffled,
    Skellam,
    Zcdp,
    gaussian_rdp,
)
from quietsum.privacy.events import PrivacyEvent
from quietsum.privacy.renyi.curves import MOMENTS_ORDERS

ADD_REMOVE, ZERO_OUT, REPLACE = Neighbours.ADD_REMOVE, Neighbours.ZERO_OUT, Neighbours.REPLACE_ONE


def step(noise: float = 1.0, rate: float = 0.01) -> PoissonSampled:
    return PoissonSampled(rate=rate, event=Gaussian(noise_multiplier=noise))


def epsilon(event: PrivacyEvent, times: int = 1, delta: float = 1e-5, **options: Any) -> float:
    return RenyiAccountant(**options).compose(event, times).epsilon(delta=delta).epsilon


# ------------------------------------------------------------------------------------------------ conversions


def test_the_improved_conversion_is_the_best_of_canonne_kamath_and_steinke_over_all_orders() -> None:
    """min over real α of αρ + ln(1 − 1/α) − ln(αδ)/(α − 1), by mpmath; the grid misses it by less than 0.1 %."""
    rho, delta = 50 / 32, mpmath.mpf(10) ** -5

    def bound(alpha: Any) -> Any:
        return alpha * rho + mpmath.log(1 - 1 / alpha) - mpmath.log(alpha * delta) / (alpha - 1)

    best = min(bound(mpmath.mpf(1) + mpmath.mpf(k) / 1000) for k in range(500, 9000, 2))
    found = RenyiAccountant().compose_gaussian(noise_multiplier=4.0, steps=50).epsilon(delta=1e-5)
    assert best <= found.epsilon <= best * (1 + mpmath.mpf("1e-3"))
    assert found.order is not None and found.epsilon == pytest.approx(float(bound(mpmath.mpf(found.order))), rel=1e-12)


@pytest.mark.parametrize(
    ("noise", "rate", "steps", "delta"), [(1.0, 0.01, 10_000, 1e-5), (0.6, 0.1, 50, 1e-8), (4.0, 0.3, 200, 1e-3)]
)
def test_it_says_a_little_less_than_dp_accounting_and_opacus_and_no_less_than_the_truth(
    noise: float, rate: float, steps: int, delta: float
) -> None:
    ours = epsilon(step(noise, rate), steps, delta)
    google = RdpAccountant()
    google.compose(PoissonSampledDpEvent(rate, GaussianDpEvent(noise)), steps)
    opacus = pytest.importorskip("opacus.accountants").RDPAccountant()
    opacus.history = [(noise, rate, steps)]
    for theirs in (google.get_epsilon(delta), opacus.get_epsilon(delta)):
        assert 0.98 * theirs <= ours <= theirs * (1 + 1e-3)
    assert ours >= ExactAccountant().compose(step(noise, rate), steps).epsilon(delta=delta).epsilon_lower


def test_epsilon_and_delta_are_inverse_to_each_other() -> None:
    for conversion in ("improved", "mironov"):
        accountant = RenyiAccountant(conversion=conversion).compose(step(), 1000)
        found = accountant.epsilon(delta=1e-6).epsilon
        assert accountant.delta(epsilon=found) == pytest.approx(1e-6, rel=1e-9)
        assert accountant.delta(epsilon=found * 1.01) < 1e-6 < accountant.delta(epsilon=found * 0.99)


def test_the_moments_accountant_is_mironovs_conversion_on_the_orders_up_to_33() -> None:
    accountant = RenyiAccountant.moments_accountant(unit=PrivacyUnit.CLIENT, observer=Observer.SERVER)
    accountant.compose(step(1.2, 0.0032), 31_200)
    assert accountant.orders == MOMENTS_ORDERS == tuple(map(float, range(2, 34)))
    guarantee = accountant.epsilon(delta=1e-5)
    by_hand = min(r + math.log(1e5) / (a - 1) for a, r in zip(accountant.orders, accountant.rdp_curve(), strict=True))
    assert guarantee.epsilon == pytest.approx(by_hand, rel=1e-14)
    assert guarantee.epsilon == pytest.approx(2.925, abs=6e-3)  # what the same orders give elsewhere
    assert (guarantee.unit, guarantee.observer) == (PrivacyUnit.CLIENT, Observer.SERVER)


def test_the_grid_has_no_floor_worth_the_name() -> None:
    accountant = RenyiAccountant().compose_gaussian(noise_multiplier=300.0)
    exact = ExactAccountant().compose(Gaussian(noise_multiplier=300.0)).epsilon(delta=1e-6).epsilon
    assert exact <= accountant.epsilon(delta=1e-6).epsilon < 0.02
    quiet = RenyiAccountant().compose_gaussian(noise_multiplier=3000.0)
    assert 0 < quiet.epsilon(delta=1e-6).epsilon < 0.01


def test_a_run_that_delta_covers_alone_costs_nothing() -> None:
    """Total variation ≤ √(1 − e^{−KL}) ≤ δ; and what is a hair above it is not called nothing."""
    assert epsilon(Gaussian(noise_multiplier=1e6), delta=1e-3) == 0.0
    assert epsilon(Gaussian(noise_multiplier=1e3), delta=1e-4) > 0.0


@pytest.mark.parametrize("delta", [1e-3, 1e-10, 1e-30, 1e-300])
def test_tiny_deltas_make_sense(delta: float) -> None:
    guarantee = RenyiAccountant().compose(step(), 1000).epsilon(delta=delta)
    exact = ExactAccountant().compose(step(), 1000).epsilon(delta=max(delta, 1e-30)).epsilon_lower
    assert math.isfinite(guarantee.epsilon) and guarantee.epsilon >= exact


# ------------------------------------------------------------------------------------- soundness, every event

EVENTS: list[tuple[PrivacyEvent, int, Neighbours]] = [
    (Gaussian(noise_multiplier=2.0), 5, ADD_REMOVE),
    (Gaussian(noise_multiplier=2.0), 5, REPLACE),
    (step(0.8, 0.05), 300, ADD_REMOVE),
    (step(0.8, 0.05), 300, REPLACE),
    (FixedSizeSampled(rate=0.05, event=Gaussian(noise_multiplier=2.0)), 100, REPLACE),
    (Group(size=3, event=step(1.5, 0.05)), 300, ADD_REMOVE),
    (PoissonSampled(rate=0.1, event=Repeated(times=4, event=Gaussian(noise_multiplier=3.0))), 60, ADD_REMOVE),
    (Laplace(noise_multiplier=2.0), 20, ADD_REMOVE),
    (PoissonSampled(rate=0.1, event=Laplace(noise_multiplier=1.0)), 100, ADD_REMOVE),
    (DiscreteLaplace(scale=3.0, sensitivity=2), 10, ADD_REMOVE),
    (PoissonSampled(rate=0.2, event=DiscreteLaplace(scale=3.0)), 50, ADD_REMOVE),
    (DiscreteGaussian(sigma=4.0), 10, ADD_REMOVE),
    (PoissonSampled(rate=0.2, event=DiscreteGaussian(sigma=2.0)), 50, ADD_REMOVE),
    (RandomizedResponse(keep_probability=0.7, categories=3), 12, ADD_REMOVE),
    (PoissonSampled(rate=0.3, event=RandomizedResponse(keep_probability=0.8)), 30, ADD_REMOVE),
    (PureDP(epsilon=0.3), 40, ADD_REMOVE),
    (ApproximateDP(epsilon=0.3, delta=1e-7), 20, ADD_REMOVE),
    (PoissonSampled(rate=0.2, event=ApproximateDP(epsilon=1.0, delta=1e-6)), 10, ADD_REMOVE),
    (Shuffled(batches=10, event=Gaussian(noise_multiplier=2.0)), 3, ZERO_OUT),
    (Composed(events=(step(), Laplace(noise_multiplier=5.0), PureDP(epsilon=0.1))), 20, ADD_REMOVE),
]


@pytest.mark.parametrize(("event", "times", "neighbours"), EVENTS)
def test_no_event_costs_less_than_its_exact_lower_bound(
    event: PrivacyEvent, times: int, neighbours: Neighbours
) -> None:
    renyi = RenyiAccountant(neighbours=neighbours)
    exact = ExactAccountant(neighbours=neighbours)
    assert renyi.supports(event)
    for delta in (1e-2, 1e-5):
        found = renyi.copy().compose(event, times).epsilon(delta=delta)
        truth = exact.copy().compose(event, times).epsilon(delta=delta)
        assert found.epsilon >= truth.epsilon_lower
        assert found.epsilon <= 1.35 * truth.epsilon + 0.4  # and it is a useful bound
        assert found.neighbours is neighbours
        assert renyi.copy().compose(event, times).delta(epsilon=truth.epsilon_lower) >= delta * (1 - 1e-6)


def test_half_the_true_curve_would_be_caught_by_that_comparison() -> None:
    halved = RenyiAccountant()
    halved.compose_rdp([value / 2 for value in RenyiAccountant().compose(step(), 1000).rdp_curve()])
    assert (
        halved.epsilon(delta=1e-5).epsilon < ExactAccountant().compose(step(), 1000).epsilon(delta=1e-5).epsilon_lower
    )


def test_sums_in_many_dimensions_and_zcdp_have_curves_but_no_exact_answer() -> None:
    vector = DiscreteGaussian(sigma=10.0, sensitivity=3.5, dimension=100)
    skellam = Skellam(variance=100.0, l1_sensitivity=20.0, l2_sensitivity=4.0)
    assert epsilon(vector) == pytest.approx(epsilon(Gaussian(noise_multiplier=10 / 3.5)), rel=1e-12)
    assert epsilon(Zcdp(rho=0.02)) == pytest.approx(epsilon(Gaussian(noise_multiplier=5.0)), rel=1e-12)
    assert epsilon(skellam) > epsilon(Gaussian(noise_multiplier=10 / 4))
    assert not ExactAccountant().supports(vector) and not ExactAccountant().supports(skellam)


# ------------------------------------------------------------------------------------------------ bookkeeping


def test_composition_adds_up_and_returns_the_accountant() -> None:
    one = RenyiAccountant()
    assert one.compose(step(), 3).compose(step(), 4) is one
    np.testing.assert_allclose(one.rdp_curve(), RenyiAccountant().compose(step(), 7).rdp_curve(), rtol=1e-13)
    assert one.total_rdp_mass() == pytest.approx(sum(one.rdp_curve()), rel=1e-13)
    assert one.history.counts == {next(iter(one.history.counts)): 7}


@given(st.lists(st.tuples(st.floats(0.5, 5.0), st.floats(0.001, 1.0), st.integers(1, 500)), min_size=1, max_size=5))
def test_epsilon_never_falls_when_something_is_added(rounds: list[tuple[float, float, int]]) -> None:
    accountant, last = RenyiAccountant(), 0.0
    for noise, rate, steps in rounds:
        now = accountant.compose(step(noise, rate), steps).epsilon(delta=1e-5).epsilon
        assert now >= last
        last = now


def test_compose_gaussian_is_the_gaussian_event() -> None:
    for neighbours in Neighbours:
        short = RenyiAccountant(neighbours=neighbours).compose_gaussian(noise_multiplier=4.0, steps=50)
        event = RenyiAccountant(neighbours=neighbours).compose(Gaussian(noise_multiplier=4.0), 50)
        assert short.rdp_curve() == event.rdp_curve()
        assert short.history.counts == event.history.counts
    assert RenyiAccountant().compose_gaussian(noise_multiplier=4.0, steps=0).epsilon(delta=1e-5).epsilon == 0.0


def test_without_noise_everything_is_lost() -> None:
    accountant = RenyiAccountant().compose_gaussian(noise_multiplier=0.0)
    assert math.isinf(accountant.epsilon(delta=1e-5).epsilon) and accountant.delta(epsilon=100.0) == 1.0
    assert gaussian_rdp(2.0, 0.0) == gaussian_rdp(2.0, 1e-200) == math.inf
    assert gaussian_rdp(2.0, 4.0) == 2 / 32
    assert RenyiAccountant().compose_gaussian(noise_multiplier=0.0, steps=0).epsilon(delta=1e-5).epsilon == 0.0


def test_a_curve_of_ones_own_is_added_and_a_misaligned_one_refused() -> None:
    accountant = RenyiAccountant(orders=[2, 4, 8]).compose_rdp([0.1, 0.2, 0.4])
    assert accountant.rdp_curve() == (0.1, 0.2, 0.4) and accountant.rdp_at(4) == 0.2
    for wrong, problem in (
        ([0.1, 0.2], "does not align with 3 orders"),
        ([0.1, math.nan, 0.3], "NaN or negative"),
        ([0.1, -0.2, 0.3], "NaN or negative"),
        (["a", "b", "c"], "no list of numbers"),
        (None, "no list of numbers"),
        ([[0.1], [0.2], [0.3]], "does not align"),
    ):
        with pytest.raises(InvalidParameter, match=problem) as error:
            accountant.compose_rdp(wrong)  # type: ignore[arg-type]
        assert error.value.parameter == "rdp_per_order"
    assert accountant.rdp_curve() == (0.1, 0.2, 0.4)


def test_an_untracked_order_names_its_neighbour() -> None:
    with pytest.raises(InvalidParameter, match=r"order = 2.5 is not tracked; the nearest tracked order is 2"):
        RenyiAccountant(orders=[2, 4]).rdp_at(2.5)


@pytest.mark.parametrize("order", [1.0, 0.5, -3, math.nan, math.inf, "two", True])
def test_bad_orders_are_refused_wherever_they_appear(order: Any) -> None:
    for attempt in (
        lambda: RenyiAccountant(orders=[2.0, order]),
        lambda: RenyiAccountant().rdp_at(order),
        lambda: gaussian_rdp(order, 1.0),
    ):
        with pytest.raises(InvalidParameter) as error:
            attempt()
        assert error.value.parameter == "order"


def test_other_bad_input_names_the_parameter() -> None:
    accountant = RenyiAccountant().compose(step())
    before = accountant.rdp_curve()
    attempts: list[tuple[str, Any]] = [
        ("orders", lambda: RenyiAccountant(orders=[])),
        ("conversion", lambda: RenyiAccountant(conversion="best")),
        ("neighbours", lambda: RenyiAccountant(neighbours="add")),  # type: ignore[arg-type]
        ("noise_multiplier", lambda: accountant.compose_gaussian(noise_multiplier=-1.0)),
        ("noise_multiplier", lambda: accountant.compose_gaussian(noise_multiplier=math.nan)),
        ("steps", lambda: accountant.compose_gaussian(noise_multiplier=1.0, steps=-1)),
        ("steps", lambda: accountant.compose_gaussian(noise_multiplier=1.0, steps=1.5)),  # type: ignore[arg-type]
        ("times", lambda: accountant.compose(step(), -1)),
        ("times", lambda: accountant.compose(Repeated(times=10**200, event=Repeated(times=10**200, event=step())))),
        ("event", lambda: accountant.compose("gaussian")),  # type: ignore[arg-type]
        ("epsilon", lambda: accountant.delta(epsilon=math.nan)),
        *(("delta", lambda bad=bad: accountant.epsilon(delta=bad)) for bad in (0.0, 1.0, -0.1, 2.0, math.nan, "small")),
    ]
    for parameter, attempt in attempts:
        with pytest.raises(InvalidParameter) as error:
            attempt()
        assert error.value.parameter == parameter
    assert accountant.rdp_curve() == before


def test_refused_events_change_nothing() -> None:
    accountant = RenyiAccountant().compose(step())
    before = accountant.rdp_curve(), dict(accountant.history.counts)
    fixed = FixedSizeSampled(rate=0.1, event=Gaussian(noise_multiplier=1.0))
    assert not accountant.supports(fixed)
    with pytest.raises(UnsupportedEvent, match="REPLACE_ONE"):
        accountant.compose(Composed(events=(step(), fixed)))
    assert (accountant.rdp_curve(), dict(accountant.history.counts)) == before


def test_records_and_groups_do_not_mix_whichever_comes_first() -> None:
    group = Group(size=3, event=step())
    for first, second in (
        (lambda a: a.compose_gaussian(noise_multiplier=1.0), lambda a: a.compose(group)),
        (lambda a: a.compose(group), lambda a: a.compose_gaussian(noise_multiplier=1.0)),
        (lambda a: a.compose(step()), lambda a: a.compose(group)),
    ):
        accountant = RenyiAccountant()
        first(accountant)
        before = accountant.rdp_curve()
        with pytest.raises(MixedUnits):
            second(accountant)
        assert accountant.rdp_curve() == before


def test_a_copy_goes_its_own_way_and_keeps_its_unit() -> None:
    original = RenyiAccountant(orders=[2, 8], conversion="mironov", unit=PrivacyUnit.CLIENT).compose(step(), 5)
    twin = original.copy()
    twin.compose(step(), 5)
    assert original.rdp_at(2) * 2 == pytest.approx(twin.rdp_at(2), rel=1e-14)
    assert twin.epsilon(delta=1e-5).unit is PrivacyUnit.CLIENT
    assert twin.orders == original.orders and "mironov" in twin.epsilon(delta=1e-5).method


# ------------------------------------------------------------------------------------- failures take from δ


def test_approximate_events_use_up_delta_and_then_all_is_lost() -> None:
    accountant = RenyiAccountant().compose(ApproximateDP(epsilon=0.1, delta=1e-6), 5)
    assert math.isfinite(accountant.epsilon(delta=1e-5).epsilon)
    for delta in (4e-6, 4.99999e-6):
        guarantee = accountant.epsilon(delta=delta)
        assert math.isinf(guarantee.epsilon) and "δ is used up" in guarantee.method
    plain = RenyiAccountant().compose(PureDP(epsilon=0.1), 5)
    left = 1e-5 - (1 - (1 - 1e-6) ** 5)
    assert accountant.epsilon(delta=1e-5).epsilon == pytest.approx(plain.epsilon(delta=left).epsilon, rel=1e-7)
    assert accountant.delta(epsilon=0.5) == pytest.approx(plain.delta(epsilon=0.5) + 5e-6, rel=1e-5)


def test_events_that_only_fail_cost_delta_and_no_epsilon() -> None:
    for conversion in ("improved", "mironov"):
        accountant = RenyiAccountant(conversion=conversion).compose(ApproximateDP(epsilon=0.0, delta=1e-6), 3)
        guarantee = accountant.epsilon(delta=1e-5)
        assert guarantee.epsilon == 0.0 and "only failures" in guarantee.method
        assert accountant.delta(epsilon=1.0) == pytest.approx(3e-6, rel=1e-5)
    certain = RenyiAccountant().compose(ApproximateDP(epsilon=0.0, delta=1.0))
    assert math.isinf(certain.epsilon(delta=0.5).epsilon) and certain.delta(epsilon=1.0) == 1.0


def test_an_empty_accountant_knows_delta_for_negative_epsilon_too() -> None:
    accountant = RenyiAccountant()
    assert accountant.delta(epsilon=0.0) == 0.0
    assert accountant.delta(epsilon=-1.0) == pytest.approx(1 - math.exp(-1))
    assert "nothing composed" in accountant.epsilon(delta=1e-5).method
