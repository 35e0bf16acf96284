"""Old entries are priced by the rules of their time, to the last bit."""

from __future__ import annotations

import pytest

from quietsum.errors import CorruptState, InvalidParameter, UnsupportedEvent
from quietsum.privacy import events as ev
from quietsum.privacy.exact.accountant import ExactAccountant
from quietsum.privacy.old_rules import SingleBatch, restate_by_old_rules
from quietsum.privacy.pairs import reduce_event
from quietsum.privacy.renyi.accountant import RenyiAccountant
from quietsum.privacy.units import Neighbours

REPLACE, ZERO = Neighbours.REPLACE_ONE, Neighbours.ZERO_OUT


def noise(multiplier: float) -> ev.PrivacyEvent:
    return ev.Gaussian(noise_multiplier=multiplier)


def batch(rate: float, event: ev.PrivacyEvent) -> ev.PrivacyEvent:
    return ev.FixedSizeSampled(rate=rate, event=event)


GAUSSIAN = ev.Repeated(times=100, event=batch(0.1, noise(2.0)))
WHOLE = ev.Repeated(times=5, event=batch(1.0, noise(4.0)))
LAPLACE = ev.Repeated(times=20, event=batch(0.05, ev.Laplace(noise_multiplier=2.0)))
MIXED = ev.Composed(
    events=(batch(0.1, noise(2.0)), batch(0.2, ev.Composed(events=(noise(3.0), noise(4.0)))), noise(9.0))
)

# What version 1 of the prices said, exact and Rényi, at δ = 1e-5.
STATED = [
    (GAUSSIAN, REPLACE, 7.046602616992757, 7.899255002441976),
    (GAUSSIAN, ZERO, 7.046602616992757, 7.899255002441976),
    (batch(0.1, noise(1.0)), REPLACE, 6.575539806277748, 7.35527276006619),
    (WHOLE, REPLACE, 4.983306405970807, 5.377728336819823),
    (WHOLE, ZERO, 2.258145363373801, 2.451506386226333),
    (LAPLACE, REPLACE, 1.3097100502088885, 1.3940685328416387),
    (MIXED, REPLACE, 2.1383168698316863, 2.6079785636466926),
    (MIXED, ZERO, 2.0345739435162953, 2.504274859942989),
]


@pytest.mark.parametrize(("event", "neighbours", "exact", "renyi"), STATED)
def test_fixed_size_batches_of_old_entries_cost_what_was_stated(
    event: ev.PrivacyEvent, neighbours: Neighbours, exact: float | None, renyi: float | None
) -> None:
    old = restate_by_old_rules(event)
    assert ExactAccountant(neighbours=neighbours).compose(old).epsilon(delta=1e-5).epsilon == exact
    assert RenyiAccountant(neighbours=neighbours).compose(old).epsilon(delta=1e-5).epsilon == renyi


def test_nested_batches_are_mapped_wherever_they_stand() -> None:
    inner = batch(0.5, noise(1.0))
    event = ev.Group(size=1, event=ev.Composed(events=(ev.Repeated(times=2, event=batch(0.5, inner)), noise(3.0))))
    single = SingleBatch(rate=0.5, event=SingleBatch(rate=0.5, event=noise(1.0)))
    wanted = ev.Group(size=1, event=ev.Composed(events=(ev.Repeated(times=2, event=single), noise(3.0))))
    assert restate_by_old_rules(event) == wanted


def test_an_event_without_fixed_size_batches_is_itself() -> None:
    event = ev.Repeated(times=3, event=ev.PoissonSampled(rate=0.1, event=noise(1.0)))
    assert restate_by_old_rules(event) is event


def test_the_old_event_has_no_json_form() -> None:
    old = restate_by_old_rules(GAUSSIAN)
    with pytest.raises(InvalidParameter, match="is not an event"):
        ev.to_dict(old)
    with pytest.raises(CorruptState, match="unknown event kind"):
        ev.from_dict({"kind": "single-batch", "rate": 0.1, "event": noise(1.0).to_dict()})


def test_what_was_refused_by_old_rules_is_refused_still() -> None:
    single = SingleBatch(rate=0.1, event=noise(1.0))
    with pytest.raises(UnsupportedEvent, match="add-or-remove"):
        reduce_event(single, Neighbours.ADD_REMOVE)
    with pytest.raises(UnsupportedEvent, match="group of units"):
        reduce_event(ev.Group(size=2, event=single), REPLACE)
    with pytest.raises(UnsupportedEvent, match="SingleBatch"):
        reduce_event(ev.PoissonSampled(rate=0.5, event=single), REPLACE)
    with pytest.raises(InvalidParameter):
        SingleBatch(rate=1.5, event=noise(1.0))
    with pytest.raises(InvalidParameter):
        SingleBatch(rate=0.5, event="noise")  # type: ignore[arg-type]
