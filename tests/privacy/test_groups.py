"""Generic group privacy: what one person with several records is promised by any accountant."""

from __future__ import annotations

import math

import mpmath
import pytest
from dp_accounting.pld import privacy_loss_distribution

from privacy.referee import true_epsilon
from quietsum.errors import InvalidParameter
from quietsum.privacy import events as ev
from quietsum.privacy.classical import ClassicalAccountant
from quietsum.privacy.concentrated import ConcentratedAccountant
from quietsum.privacy.exact.accountant import ExactAccountant
from quietsum.privacy.exact.closed_forms import gaussian_epsilon
from quietsum.privacy.groups import group_guarantee
from quietsum.privacy.units import Neighbours, Observer, PrivacyUnit

STEP = ev.PoissonSampled(rate=0.0032, event=ev.Gaussian(noise_multiplier=2.231))
TRAINING = ExactAccountant().compose(STEP, times=31_200)


def factor(epsilon: float, size: int) -> float:
    return math.fsum(math.exp(j * epsilon) for j in range(size))


@pytest.mark.parametrize(("size", "tight", "generic"), [(3, 3.41, 3.50), (10, 14.4, 18.2)])
def test_ten_records_at_one_each_cost_far_more_than_one_and_a_tight_pair_knows_it_better(
    size: int, tight: float, generic: float
) -> None:
    grouped = ExactAccountant().compose(ev.Group(size=size, event=STEP), times=31_200).epsilon(delta=1e-5)
    found = group_guarantee(TRAINING, size=size, delta=1e-5)
    assert TRAINING.epsilon(delta=1e-5).epsilon == pytest.approx(1.0, abs=1e-3)
    assert grouped.epsilon == pytest.approx(tight, abs=0.05)
    assert found.epsilon == pytest.approx(generic, abs=0.05)
    assert size * 1.0 < grouped.epsilon < found.epsilon  # "multiply ε by k" is below even the tight answer


@pytest.mark.parametrize("size", [3, 10])
def test_the_point_taken_lies_on_the_true_curve_of_one_record(size: int) -> None:
    one = group_guarantee(TRAINING, size=size, delta=1e-5).epsilon / size
    truth = true_epsilon(2.231, 0.0032, 31_200, 1e-5 / factor(one, size), second_opinion=False)
    assert truth.epsilon == pytest.approx(one, rel=1e-6)


def test_googles_curve_gives_the_same_group_of_three() -> None:
    """Their mass is cut off at 1e-15 a side, which is too coarse for a group of ten but fine for three."""
    pld = privacy_loss_distribution.from_gaussian_mechanism(
        2.231, value_discretization_interval=5e-5, sampling_prob=0.0032
    ).self_compose(31_200)
    low, high = 0.5, 2.0
    for _ in range(40):
        middle = (low + high) / 2
        enough = float(pld.get_delta_for_epsilon(middle)) * factor(middle, 3) <= 1e-5
        low, high = (low, middle) if enough else (middle, high)
    assert group_guarantee(TRAINING, size=3, delta=1e-5).epsilon == pytest.approx(3 * high, rel=2e-3)


@pytest.mark.parametrize(("mu", "size"), [(0.05, 2), (0.05, 40), (0.5, 2), (0.5, 15), (1.0, 2), (1.0, 8)])
def test_a_gaussian_group_is_bounded_from_the_safe_side_and_solved_to_the_end(mu: float, size: int) -> None:
    accountant = ExactAccountant().compose(ev.Gaussian(noise_multiplier=1 / mu))
    found = group_guarantee(accountant, size=size, delta=1e-6).epsilon
    assert found >= gaussian_epsilon(size * mu, 1e-6)
    with mpmath.workdps(60):

        def overshoot(epsilon: mpmath.mpf) -> mpmath.mpf:
            curve = mpmath.ncdf(mu / 2 - epsilon / mu) - mpmath.exp(epsilon) * mpmath.ncdf(-mu / 2 - epsilon / mu)
            return curve * mpmath.fsum(mpmath.exp(j * epsilon) for j in range(size)) - mpmath.mpf("1e-6")

        one = mpmath.mpf(found) / size
        assert overshoot(one * (1 + mpmath.mpf("1e-8"))) <= 0
        assert overshoot(one * (1 - mpmath.mpf("1e-6"))) > 0


def test_pure_privacy_of_a_group_is_k_times_epsilon() -> None:
    accountant = ClassicalAccountant().compose(ev.PureDP(epsilon=0.5))
    assert group_guarantee(accountant, size=4, delta=1e-12).epsilon == pytest.approx(2.0, rel=1e-6)


def test_multiplying_epsilon_by_k_at_the_same_delta_promises_too_much() -> None:
    accountant = ConcentratedAccountant().compose(ev.Zcdp(rho=0.1))
    single = accountant.epsilon(delta=1e-5).epsilon
    assert group_guarantee(accountant, size=3, delta=1e-5).epsilon > 3 * single
    exact = ExactAccountant().compose(ev.Gaussian(noise_multiplier=1.0))
    assert gaussian_epsilon(3.0, 1e-5) > 3 * exact.epsilon(delta=1e-5).epsilon  # true even of the tight answer


def test_the_guarantee_says_of_whom_and_how() -> None:
    accountant = ExactAccountant(neighbours=Neighbours.ZERO_OUT, observer=Observer.SERVER)
    found = group_guarantee(accountant.compose(ev.Gaussian(noise_multiplier=5.0)), size=3, delta=1e-5)
    assert (found.unit, found.group_size, found.epsilon_lower) == (PrivacyUnit.PERSON, 3, 0.0)
    assert (found.neighbours, found.observer) == (Neighbours.ZERO_OUT, Observer.SERVER)
    assert "generic group privacy" in found.method
    assert found.whom == "person (up to 3 records)"


def test_a_group_of_clients_stays_a_group_of_clients_and_groups_multiply() -> None:
    clients = ExactAccountant(unit=PrivacyUnit.CLIENT).compose(ev.Gaussian(noise_multiplier=5.0))
    assert group_guarantee(clients, size=2, delta=1e-5).whom == "group (up to 2 clients)"
    pairs = ExactAccountant().compose(ev.Group(size=2, event=ev.Gaussian(noise_multiplier=50.0)))
    assert group_guarantee(pairs, size=3, delta=1e-5).group_size == 6


def test_warnings_about_shuffled_batches_travel_along() -> None:
    epoch = ev.Shuffled(batches=10, event=ev.Gaussian(noise_multiplier=5.0))
    accountant = ExactAccountant(neighbours=Neighbours.ZERO_OUT).compose(epoch)
    assert group_guarantee(accountant, size=2, delta=1e-5).warnings


def test_a_group_of_one_is_the_accountants_own_answer() -> None:
    assert group_guarantee(TRAINING, size=1, delta=1e-5) == TRAINING.epsilon(delta=1e-5)


def test_nothing_composed_costs_a_group_nothing() -> None:
    assert group_guarantee(ExactAccountant(), size=5, delta=1e-5).epsilon == 0


def test_where_delta_has_a_floor_no_epsilon_is_promised() -> None:
    leaky = ClassicalAccountant().compose(ev.ApproximateDP(epsilon=0.5, delta=1e-6))
    assert group_guarantee(leaky, size=100, delta=1e-5).epsilon == math.inf
    assert group_guarantee(leaky, size=2, delta=1e-5).epsilon < math.inf


def test_a_delta_that_was_rounded_to_zero_buys_no_group() -> None:
    """At ε = 50 one unit's δ is far below the smallest float; e^{99·50} times nothing is not nothing."""
    accountant = ExactAccountant().compose(ev.Gaussian(noise_multiplier=1.0))
    assert accountant.delta(epsilon=50.0) <= 5e-324
    assert gaussian_epsilon(100.0, 1e-5) > 5000
    assert group_guarantee(accountant, size=100, delta=1e-5).epsilon == math.inf


@pytest.mark.parametrize("size", [0, -1, 2.5, True, math.nan])
def test_sizes_that_are_no_sizes_are_named(size: float) -> None:
    with pytest.raises(InvalidParameter, match="size"):
        group_guarantee(TRAINING, size=size, delta=1e-5)  # type: ignore[arg-type]


def test_other_bad_input_is_named() -> None:
    with pytest.raises(InvalidParameter, match="accountant"):
        group_guarantee("exact", size=2, delta=1e-5)  # type: ignore[arg-type]
    with pytest.raises(InvalidParameter, match="delta"):
        group_guarantee(TRAINING, size=2, delta=0.0)
