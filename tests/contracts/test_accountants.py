"""Every accountant of ours keeps the accountants' contract, and the contract catches accountants that do not."""

from __future__ import annotations

import dataclasses
import unittest
from typing import Any, Self

import pytest

from quietsum.contracts import AccountantContract
from quietsum.errors import UnsupportedEvent
from quietsum.privacy import events as ev
from quietsum.privacy.accounting import Accountant
from quietsum.privacy.classical import ClassicalAccountant
from quietsum.privacy.concentrated import ConcentratedAccountant
from quietsum.privacy.exact.accountant import ExactAccountant
from quietsum.privacy.guarantee import Guarantee
from quietsum.privacy.pld.accountant import PldAccountant
from quietsum.privacy.renyi.accountant import RenyiAccountant
from quietsum.privacy.units import Neighbours, PrivacyUnit

GAUSSIAN = ev.Gaussian(noise_multiplier=2.0)
SAMPLED = ev.PoissonSampled(rate=0.05, event=ev.Gaussian(noise_multiplier=1.0))
RESPONSE = ev.RandomizedResponse(keep_probability=0.6, categories=3)
PURE = ev.PureDP(epsilon=0.3)


class TestRenyiAccountant(AccountantContract):
    events = (
        *AccountantContract.events,
        ev.DiscreteGaussian(sigma=3.0, sensitivity=2.5, dimension=4),
        ev.Skellam(variance=100.0, l1_sensitivity=3.0, l2_sensitivity=2.0),
        ev.Zcdp(rho=0.02),
        ev.PoissonSampled(rate=0.2, event=ev.ApproximateDP(epsilon=0.2, delta=1e-12)),
        RESPONSE,
    )

    def make(self, **options: Any) -> Accountant:
        return RenyiAccountant(**options)


class TestMomentsAccountant(AccountantContract):
    def make(self, **options: Any) -> Accountant:
        return RenyiAccountant.moments_accountant(**options)


class TestExactAccountant(AccountantContract):
    events = (*AccountantContract.events[:2], RESPONSE)

    def make(self, **options: Any) -> Accountant:
        return ExactAccountant(**options)


class TestPldAccountant(AccountantContract):
    events = (
        *AccountantContract.events,
        ev.DiscreteGaussian(sigma=3.0),
        ev.ApproximateDP(epsilon=0.2, delta=1e-12),
        ev.PoissonSampled(rate=0.2, event=ev.Laplace(noise_multiplier=2.0)),
        RESPONSE,
    )

    def make(self, **options: Any) -> Accountant:
        return PldAccountant(**options)


class TestConcentratedAccountant(AccountantContract):
    events = (GAUSSIAN, ev.DiscreteGaussian(sigma=3.0), ev.Laplace(noise_multiplier=4.0), PURE, ev.Zcdp(rho=0.02))

    def make(self, **options: Any) -> Accountant:
        return ConcentratedAccountant(**options)


class TestClassicalAccountant(AccountantContract):
    events = (PURE, ev.ApproximateDP(epsilon=0.2, delta=1e-12), ev.DiscreteLaplace(scale=4.0), RESPONSE)

    def make(self, **options: Any) -> Accountant:
        return ClassicalAccountant(**options)


# ------------------------------------------------------------------------- accountants that break the contract


class Wrapped:
    """An accountant that passes everything on to an exact one; each control below breaks one promise."""

    def __init__(self, **options: Any) -> None:
        self.inner = ExactAccountant(**options)

    def supports(self, event: ev.PrivacyEvent) -> bool:
        return self.inner.supports(event)

    def compose(self, event: ev.PrivacyEvent, times: int = 1) -> Self:
        self.inner.compose(event, times)
        return self

    def epsilon(self, *, delta: float) -> Guarantee:
        return self.inner.epsilon(delta=delta)

    def delta(self, *, epsilon: float) -> float:
        return self.inner.delta(epsilon=epsilon)


class IgnoresTimes(Wrapped):
    def compose(self, event: ev.PrivacyEvent, times: int = 1) -> Self:
        return super().compose(event, min(times, 1))


class UnderReports(Wrapped):
    def epsilon(self, *, delta: float) -> Guarantee:
        found = super().epsilon(delta=delta)
        return dataclasses.replace(found, epsilon=0.99 * found.epsilon, epsilon_lower=0.99 * found.epsilon_lower)


class OverstatesItsLowerBound(Wrapped):
    def epsilon(self, *, delta: float) -> Guarantee:
        found = super().epsilon(delta=delta)
        return dataclasses.replace(found, epsilon=1.02 * found.epsilon, epsilon_lower=1.01 * found.epsilon_lower)


class SwallowsTheUnknown(Wrapped):
    def supports(self, event: ev.PrivacyEvent) -> bool:
        return True

    def compose(self, event: ev.PrivacyEvent, times: int = 1) -> Self:
        try:
            return super().compose(event, times)
        except UnsupportedEvent:
            return self


class RefusesAfterCharging(Wrapped):
    def compose(self, event: ev.PrivacyEvent, times: int = 1) -> Self:
        if isinstance(event, ev.Composed):
            for part in event.events:
                super().compose(part, times)
            return self
        return super().compose(event, times)


class ForgetsGroups(Wrapped):
    """It reports the ε of one record for a person with three."""

    def compose(self, event: ev.PrivacyEvent, times: int = 1) -> Self:
        return super().compose(event.event if isinstance(event, ev.Group) else event, times)


class WearsTheWrongUnit(Wrapped):
    def epsilon(self, *, delta: float) -> Guarantee:
        return dataclasses.replace(super().epsilon(delta=delta), unit=PrivacyUnit.CLIENT)


class KnowsOneRelation(Wrapped):
    def __init__(self, **options: Any) -> None:
        super().__init__(**{**options, "neighbours": Neighbours.ADD_REMOVE})


class ReturnsACopy(Wrapped):
    def compose(self, event: ev.PrivacyEvent, times: int = 1) -> Self:
        other = type(self)()
        other.inner = self.inner.copy()
        other.inner.compose(event, times)
        return other


class MixesUpItsQuestions(Wrapped):
    def delta(self, *, epsilon: float) -> float:
        return super().delta(epsilon=0.9 * epsilon)


def failures(contract: AccountantContract) -> set[str]:
    """The names of the contract's tests that ``contract`` does not pass."""
    failed = set()
    for name in dir(contract):
        if name.startswith("test_"):
            try:
                getattr(contract, name)()
            except unittest.SkipTest:
                pass
            except Exception:
                failed.add(name)
    return failed


def contract_of(kind: type[Wrapped]) -> AccountantContract:
    class Contract(AccountantContract):
        events = (GAUSSIAN, SAMPLED)

        def make(self, **options: Any) -> Accountant:
            return kind(**options)

    return Contract()


def test_a_wrapper_that_changes_nothing_passes() -> None:
    """The control of the controls: what fails below fails for what each class breaks."""
    assert failures(contract_of(Wrapped)) == set()


@pytest.mark.parametrize(
    ("broken", "caught_by"),
    [
        (IgnoresTimes, "test_three_times_is_once_and_once_and_once_and_is_repeated_three_times"),
        (UnderReports, "test_gaussian_noise_is_never_under_reported"),
        (UnderReports, "test_a_sampled_gaussian_step_is_never_under_reported"),
        (UnderReports, "test_delta_at_the_reported_epsilon_is_not_above_the_delta_asked_for"),
        (OverstatesItsLowerBound, "test_gaussian_noise_is_never_under_reported"),
        (SwallowsTheUnknown, "test_an_unknown_event_is_refused_by_name_and_changes_nothing"),
        (RefusesAfterCharging, "test_an_unknown_event_is_refused_by_name_and_changes_nothing"),
        (ForgetsGroups, "test_a_group_under_gaussian_noise_costs_what_noise_divided_by_its_size_costs"),
        (ForgetsGroups, "test_a_group_of_k_costs_more_than_one_and_wears_its_size"),
        (ForgetsGroups, "test_groups_of_different_sizes_are_never_mixed"),
        (WearsTheWrongUnit, "test_a_guarantee_wears_its_unit_observer_and_relation"),
        (KnowsOneRelation, "test_replace_one_costs_what_half_the_noise_costs"),
        (ReturnsACopy, "test_compose_returns_the_accountant_itself"),
        (MixesUpItsQuestions, "test_delta_at_the_reported_epsilon_is_not_above_the_delta_asked_for"),
    ],
)
def test_a_broken_accountant_is_caught(broken: type[Wrapped], caught_by: str) -> None:
    with pytest.raises((AssertionError, UnsupportedEvent)):
        getattr(contract_of(broken), caught_by)()


def test_the_contract_says_that_make_is_missing() -> None:
    with pytest.raises(NotImplementedError, match="subclass"):
        AccountantContract().make()


def test_an_accountant_without_gaussian_noise_skips_what_only_gaussians_can_show() -> None:
    with pytest.raises(unittest.SkipTest):
        TestClassicalAccountant().test_gaussian_noise_is_never_under_reported()
    with pytest.raises(unittest.SkipTest):
        TestConcentratedAccountant().test_a_sampled_gaussian_step_is_never_under_reported()
