"""What every accountant promises, as tests that anyone's accountant can run."""

from __future__ import annotations

import itertools
import math
import unittest
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from quietsum.errors import InvalidParameter, MixedUnits, UnsupportedEvent
from quietsum.privacy import (
    Accountant,
    Composed,
    Gaussian,
    Group,
    Guarantee,
    Laplace,
    Neighbours,
    Observer,
    PoissonSampled,
    PrivacyEvent,
    PrivacyUnit,
    PureDP,
    Repeated,
)

__all__ = ["AccountantContract"]

DELTAS = (1e-2, 1e-5, 1e-9)
NO_NUMBERS = (math.nan, math.inf, -math.inf, "0.5", None, True)


class Unheard(PrivacyEvent):
    """An event that no accountant has met."""

    kind = "unheard"


class AccountantContract:
    """The suite. A subclass says how its accountant is made, and perhaps which events it should be tried with.

    ``events`` are events that the accountant supports under add-or-remove. ``tolerance`` is the error, relative to
    max(1, ε), that two ways to the same answer may show; ``delta_tolerance`` is how far, relatively, δ at the reported
    ε may lie above the δ asked for.
    """

    events: Sequence[PrivacyEvent] = (
        Gaussian(noise_multiplier=2.0),
        PoissonSampled(rate=0.05, event=Gaussian(noise_multiplier=1.0)),
        Laplace(noise_multiplier=4.0),
        PureDP(epsilon=0.3),
    )
    tolerance: float = 1e-6
    delta_tolerance: float = 5e-3

    def make(self, **options: Any) -> Accountant:
        """A fresh accountant; ``options`` are among ``neighbours``, ``unit`` and ``observer``."""
        raise NotImplementedError("say in a subclass how your accountant is made")

    # ------------------------------------------------------------------------------- words for the tests

    def _spend(self, *events: PrivacyEvent, delta: float = 1e-5, **options: Any) -> Guarantee:
        accountant = self.make(**options)
        for event in events:
            accountant.compose(event)
        return accountant.epsilon(delta=delta)

    def _same(self, one: Guarantee, other: Guarantee) -> bool:
        return self._close(one.epsilon, other.epsilon) and self._close(one.epsilon_lower, other.epsilon_lower)

    def _close(self, one: float, other: float) -> bool:
        return one == other or abs(one - other) <= self.tolerance * max(1.0, abs(one), abs(other))

    def _gaussians(self) -> Iterator[tuple[float, int]]:
        """(noise multiplier, steps) for what is known in closed form; skips where Gaussian noise is not supported."""
        if not self.make().supports(Gaussian(noise_multiplier=1.0)):
            raise unittest.SkipTest("this accountant knows no Gaussian noise")
        return itertools.product((0.7, 2.0, 30.0), (1, 12))

    # ---------------------------------------------------------------------------------------- the empty run

    def test_nothing_composed_costs_nothing(self) -> None:
        """ε = 0 and δ(ε) = 0 before anything happened."""
        for delta in DELTAS:
            guarantee = self.make().epsilon(delta=delta)
            assert (guarantee.epsilon, guarantee.epsilon_lower) == (0.0, 0.0), guarantee
        for epsilon in (0.0, 1.0, 50.0):
            assert self.make().delta(epsilon=epsilon) == 0.0

    def test_free_events_cost_nothing(self) -> None:
        """Zero repetitions, an empty composition and a rate of zero leave ε = 0."""
        for event in self.events:
            for free in (Repeated(times=0, event=event), Composed(events=()), PoissonSampled(rate=0.0, event=event)):
                assert self._spend(free).epsilon == 0.0, free

    # -------------------------------------------------------------------------------------------- composing

    def test_it_is_an_accountant_and_supports_its_own_events(self) -> None:
        """The Protocol's methods are there, and ``supports`` keeps its word."""
        assert isinstance(self.make(), Accountant)
        assert self.events, "name at least one supported event"
        for event in self.events:
            assert self.make().supports(event) is True, event
            self.make().compose(event)

    def test_compose_returns_the_accountant_itself(self) -> None:
        """So that calls chain and no caller composes into a copy."""
        for event in self.events:
            accountant = self.make()
            assert accountant.compose(event) is accountant
            assert accountant.compose(event, times=0) is accountant

    def test_every_supported_event_costs_something(self) -> None:
        """No event of the list is silently free."""
        for event in self.events:
            assert self._spend(event, delta=1e-9).epsilon > 0, event

    def test_more_steps_never_cost_less(self) -> None:
        """ε grows with every composed step."""
        for event in self.events:
            accountant, before = self.make(), 0.0
            for _ in range(4):
                after = accountant.compose(event, 3).epsilon(delta=1e-5).epsilon
                assert after >= before * (1 - self.tolerance), event
                before = after
            assert before > self._spend(event).epsilon, event

    def test_three_times_is_once_and_once_and_once_and_is_repeated_three_times(self) -> None:
        """The three ways to say the same give the same."""
        for event in self.events:
            counted = self.make().compose(event, 3).epsilon(delta=1e-5)
            assert self._same(counted, self._spend(event, event, event)), event
            assert self._same(counted, self._spend(Repeated(times=3, event=event))), event
            assert self._same(counted, self._spend(Composed(events=(event, event, event)))), event

    def test_zero_times_changes_nothing(self) -> None:
        """Neither before nor after other events."""
        for event in self.events:
            assert self.make().compose(event, 0).epsilon(delta=1e-5).epsilon == 0.0, event
            accountant = self.make().compose(event)
            before = accountant.epsilon(delta=1e-5)
            assert accountant.compose(event, 0).epsilon(delta=1e-5) == before, event

    def test_the_order_of_composition_does_not_matter(self) -> None:
        """Forwards and backwards cost the same."""
        assert self._same(self._spend(*self.events), self._spend(*reversed(self.events)))

    def test_different_events_together_cost_at_least_the_dearest_and_a_finite_amount(self) -> None:
        """Mixing kinds of events neither hides one of them nor loses the bound."""
        parts = [self._spend(event) for event in self.events]
        together = self._spend(*self.events)
        assert together.epsilon >= max(part.epsilon_lower for part in parts)
        if all(math.isfinite(part.epsilon) for part in parts):
            assert together.epsilon <= 2 * sum(part.epsilon for part in parts), together

    def test_asking_changes_nothing(self) -> None:
        """An answer is the same the second time, and questions in between do not disturb it."""
        for event in self.events:
            accountant = self.make().compose(event, 5)
            before = accountant.epsilon(delta=1e-5)
            accountant.epsilon(delta=1e-9), accountant.delta(epsilon=0.5), accountant.supports(event)
            assert accountant.epsilon(delta=1e-5) == before, event

    # ------------------------------------------------------------------------------------------------ refusing

    def test_an_unknown_event_is_refused_by_name_and_changes_nothing(self) -> None:
        """Never guessed, never swallowed, wherever it hides."""
        known = self.events[0]
        accountant = self.make().compose(known)
        before = accountant.epsilon(delta=1e-5), accountant.delta(epsilon=0.1)
        for event in (
            Unheard(),
            Repeated(times=2, event=Unheard()),
            PoissonSampled(rate=0.5, event=Unheard()),
            Composed(events=(known, Unheard())),
        ):
            assert accountant.supports(event) is False, event
            error = _catch(UnsupportedEvent, accountant.compose, event)
            assert "Unheard" in str(error), f"the refusal does not name the event: {error}"
        assert (accountant.epsilon(delta=1e-5), accountant.delta(epsilon=0.1)) == before

    def test_what_it_does_not_support_it_refuses(self) -> None:
        """``supports`` and ``compose`` never disagree."""
        for event in AccountantContract.events:
            if not self.make().supports(event):
                _catch(UnsupportedEvent, self.make().compose, event)

    def test_what_is_no_event_is_an_error_that_names_the_parameter(self) -> None:
        """Text, numbers and classes are no events."""
        for value in ("gaussian", 3, None, Gaussian):
            error = _catch(InvalidParameter, self.make().compose, value)
            assert error.parameter == "event", error

    def test_bad_times_are_an_error_that_names_the_parameter_and_change_nothing(self) -> None:
        """Counts are whole numbers from zero on."""
        event = self.events[0]
        accountant = self.make().compose(event)
        before = accountant.epsilon(delta=1e-5)
        for times in (-1, 1.5, *NO_NUMBERS):
            error = _catch(InvalidParameter, accountant.compose, event, times)
            assert error.parameter == "times", error
        assert accountant.epsilon(delta=1e-5) == before

    def test_a_bad_delta_is_an_error_that_names_the_parameter(self) -> None:
        """δ lies strictly between 0 and 1, also before anything was composed."""
        for accountant in (self.make(), self.make().compose(self.events[0])):
            for delta in (0.0, 1.0, -1e-5, 1.5, *NO_NUMBERS):
                error = _catch(InvalidParameter, accountant.epsilon, delta=delta)
                assert error.parameter == "delta", error

    def test_a_bad_epsilon_is_an_error_that_names_the_parameter(self) -> None:
        """ε is a finite number, also before anything was composed."""
        for accountant in (self.make(), self.make().compose(self.events[0])):
            for epsilon in NO_NUMBERS:
                error = _catch(InvalidParameter, accountant.delta, epsilon=epsilon)
                assert error.parameter == "epsilon", error

    # ------------------------------------------------------------------------------------- what ε and δ are like

    def test_a_smaller_delta_never_costs_less(self) -> None:
        """ε falls with δ."""
        for event in self.events:
            accountant = self.make().compose(event, 10)
            costs = [accountant.epsilon(delta=delta).epsilon for delta in (1e-30, 1e-12, 1e-6, 1e-3, 0.1, 0.9)]
            for dear, cheap in itertools.pairwise(costs):
                assert dear >= cheap or self._close(dear, cheap), event

    def test_a_larger_epsilon_never_needs_a_larger_delta(self) -> None:
        """δ(ε) is a probability and falls with ε."""
        for event in self.events:
            accountant = self.make().compose(event, 10)
            found = [accountant.delta(epsilon=epsilon) for epsilon in (0.0, 0.1, 1.0, 3.0, 10.0, 1e3, 1e6)]
            assert all(0 <= delta <= 1 for delta in found), event
            for more, less in itertools.pairwise(found):
                assert less <= more * (1 + self.delta_tolerance), event

    def test_bounds_are_numbers_from_zero_up_and_do_not_cross(self) -> None:
        """No NaN, nothing negative, lower ≤ upper; down to δ = 1e-30 and for one step or a thousand."""
        for event, times, delta in itertools.product(self.events, (1, 1000), (1e-30, 1e-5, 0.5)):
            guarantee = self.make().compose(event, times).epsilon(delta=delta)
            assert 0 <= guarantee.epsilon_lower <= guarantee.epsilon, (event, times, guarantee)
            assert guarantee.delta == delta

    def test_delta_at_the_reported_epsilon_is_not_above_the_delta_asked_for(self) -> None:
        """The two questions agree: (ε, δ) is a point of one curve."""
        for event, delta in itertools.product(self.events, DELTAS):
            accountant = self.make().compose(event, 10)
            epsilon = accountant.epsilon(delta=delta).epsilon
            if math.isfinite(epsilon):
                assert accountant.delta(epsilon=epsilon) <= delta * (1 + self.delta_tolerance), (event, delta)

    def test_gaussian_noise_is_never_under_reported(self) -> None:
        """The Gaussian's exact δ(ε) (Balle, Wang 2018) is ≤ δ at the upper bound and ≥ δ at the lower one."""
        for (noise, steps), delta in itertools.product(self._gaussians(), DELTAS):
            guarantee = self.make().compose(Gaussian(noise_multiplier=noise), steps).epsilon(delta=delta)
            mu = math.sqrt(steps) / noise
            assert _gaussian_delta(mu, guarantee.epsilon) <= delta * (1 + 1e-6), (noise, steps, guarantee)
            if guarantee.epsilon_lower > 0:
                assert _gaussian_delta(mu, guarantee.epsilon_lower) >= delta * (1 - 1e-6), (noise, steps, guarantee)

    def test_a_sampled_gaussian_step_is_never_under_reported(self) -> None:
        """One step at rate q: δ'(ln(1 + q (e^ε − 1))) = q δ(ε) (Balle, Barthe, Gaboardi 2018, Theorem 8)."""
        for (noise, _), rate, delta in itertools.product(self._gaussians(), (0.01, 0.5), DELTAS):
            event = PoissonSampled(rate=rate, event=Gaussian(noise_multiplier=noise))
            if not self.make().supports(event):
                raise unittest.SkipTest("this accountant knows no sampled Gaussian")
            guarantee = self.make().compose(event).epsilon(delta=delta)
            unsampled = math.log1p(math.expm1(guarantee.epsilon) / rate)
            assert rate * _gaussian_delta(1 / noise, unsampled) <= delta * (1 + 1e-6), (noise, rate, guarantee)

    # ------------------------------------------------------------------------------ units, observers, relations

    def test_a_guarantee_wears_its_unit_observer_and_relation(self) -> None:
        """As stated to the accountant, with the δ asked for and the name of a method."""
        for unit, observer, neighbours in itertools.product(PrivacyUnit, Observer, Neighbours):
            accountant = self.make(unit=unit, observer=observer, neighbours=neighbours)
            for guarantee in (accountant.epsilon(delta=1e-5), accountant.compose(self.events[0]).epsilon(delta=1e-3)):
                found = guarantee.unit, guarantee.observer, guarantee.neighbours
                assert found == (unit, observer, neighbours), guarantee
                assert guarantee.method

    def test_unless_stated_it_speaks_of_a_record_against_recipients_under_add_or_remove(self) -> None:
        """The defaults are the same everywhere."""
        guarantee = self._spend(self.events[0])
        found = guarantee.unit, guarantee.observer, guarantee.neighbours, guarantee.group_size
        assert found == (PrivacyUnit.RECORD, Observer.RECIPIENTS, Neighbours.ADD_REMOVE, 1)

    def test_replace_one_costs_what_half_the_noise_costs(self) -> None:
        """One sensitivity convention: replacing a unit moves the sum by 2 C."""
        for noise, steps in self._gaussians():
            whole, half = (Repeated(times=steps, event=Gaussian(noise_multiplier=n)) for n in (noise, noise / 2))
            assert self._same(self._spend(whole, neighbours=Neighbours.REPLACE_ONE), self._spend(half)), (noise, steps)

    def test_zero_out_costs_what_add_or_remove_costs(self) -> None:
        """A unit that becomes null moves a sum as far as one that goes."""
        for event in self.events:
            if self.make(neighbours=Neighbours.ZERO_OUT).supports(event):
                assert self._same(self._spend(event, neighbours=Neighbours.ZERO_OUT), self._spend(event)), event

    def test_a_group_of_k_costs_more_than_one_and_wears_its_size(self) -> None:
        """The unit of a group's guarantee is a person with up to k records; ε is at least that of one record."""
        for event in self.events:
            group = Group(size=3, event=event)
            if self.make().supports(group):
                one, three = self._spend(event), self._spend(group)
                assert (three.unit, three.group_size) == (PrivacyUnit.PERSON, 3), three
                assert three.epsilon > one.epsilon, event

    def test_a_group_under_gaussian_noise_costs_what_noise_divided_by_its_size_costs(self) -> None:
        """k records move the sum by k C."""
        for noise, steps in self._gaussians():
            group = Group(size=3, event=Repeated(times=steps, event=Gaussian(noise_multiplier=noise)))
            louder = Repeated(times=steps, event=Gaussian(noise_multiplier=noise / 3))
            assert self._same(self._spend(group), self._spend(louder)), (noise, steps)

    def test_groups_of_different_sizes_are_never_mixed(self) -> None:
        """In one event or one after the other: MixedUnits, and nothing changes."""
        event = self.events[0]
        pair, triple = Group(size=2, event=event), Group(size=3, event=event)
        accountant = self.make().compose(pair)
        before = accountant.epsilon(delta=1e-5)
        for other in (event, triple, Composed(events=(pair, triple)), Composed(events=(pair, event))):
            _catch(MixedUnits, accountant.compose, other)
        assert accountant.epsilon(delta=1e-5) == before


Error = TypeVar("Error", bound=Exception)


def _catch(kind: type[Error], action: Callable[..., object], *arguments: Any, **options: Any) -> Error:
    """The error of this kind that ``action`` raises."""
    try:
        action(*arguments, **options)
    except kind as error:
        return error
    raise AssertionError(f"{kind.__name__} was not raised for {arguments or options}")


def _gaussian_delta(mu: float, epsilon: float) -> float:
    """Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ), by the error function alone."""
    first = math.erfc((epsilon / mu - mu / 2) / math.sqrt(2)) / 2
    second = math.erfc((epsilon / mu + mu / 2) / math.sqrt(2)) / 2
    return first - (math.exp(epsilon + math.log(second)) if second > 0 else 0.0)
