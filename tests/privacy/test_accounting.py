"""What all accountants share: counts, one relation, one unit, and a refusal that changes nothing."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import pytest

from quietsum.errors import InvalidParameter, MixedUnits, UnsupportedEvent
from quietsum.privacy import accounting, events as ev
from quietsum.privacy.accounting import History, check_delta
from quietsum.privacy.pairs import GaussianPair, LaplacePair
from quietsum.privacy.units import Neighbours, Observer, PrivacyUnit

GAUSSIAN, LAPLACE = ev.Gaussian(noise_multiplier=1.0), ev.Laplace(noise_multiplier=1.0)


def history(
    neighbours: Neighbours = Neighbours.ADD_REMOVE,
    unit: PrivacyUnit | None = None,
    observer: Observer = Observer.RECIPIENTS,
) -> History:
    return History(neighbours, unit, observer)


def add(to: History, event: ev.PrivacyEvent, times: int = 1) -> None:
    to.add(event, times, to.reduce(event, times))


def state(of: History) -> tuple[Any, ...]:
    return dict(of.counts), list(of.log), of.group_size, of.unit


def test_counts_are_totals_and_the_log_is_the_order() -> None:
    run = history()
    add(run, GAUSSIAN, 2)
    add(run, LAPLACE)
    add(run, GAUSSIAN, 3)
    assert run.counts == {GaussianPair(1.0): 5, LaplacePair(1.0): 1}
    assert run.log == [(GaussianPair(1.0), 2), (LaplacePair(1.0), 1), (GaussianPair(1.0), 3)]


def test_a_copy_goes_its_own_way() -> None:
    run = history(unit=PrivacyUnit.CLIENT, observer=Observer.SERVER)
    add(run, GAUSSIAN)
    other = run.copy()
    assert state(other) == state(run)
    assert (other.neighbours, other.observer, other.unit) == (run.neighbours, run.observer, run.unit)
    add(other, LAPLACE)
    assert state(run) == ({GaussianPair(1.0): 1}, [(GaussianPair(1.0), 1)], 1, PrivacyUnit.CLIENT)


def test_the_first_charge_decides_the_size_of_the_group_and_free_events_do_not() -> None:
    run = history()
    add(run, ev.Repeated(times=0, event=ev.Group(size=5, event=GAUSSIAN)))
    assert (run.group_size, run.unit) == (1, PrivacyUnit.RECORD)
    add(run, ev.Group(size=3, event=GAUSSIAN))
    assert (run.group_size, run.unit) == (3, PrivacyUnit.PERSON)


@pytest.mark.parametrize(
    ("event", "error"),
    [
        (GAUSSIAN, MixedUnits),
        (ev.Group(size=3, event=GAUSSIAN), MixedUnits),
        (ev.Group(size=2, event=ev.FixedSizeSampled(rate=0.1, event=GAUSSIAN)), UnsupportedEvent),
        ("gaussian", InvalidParameter),
    ],
)
def test_what_is_refused_changes_nothing(event: Any, error: type[Exception]) -> None:
    run = history()
    add(run, ev.Group(size=2, event=GAUSSIAN))
    before = state(run)
    with pytest.raises(error):
        add(run, event)
    assert state(run) == before


def test_a_pair_recorded_directly_speaks_of_one_unit() -> None:
    run = history()
    run.add_pair(GaussianPair(1.0), 4)
    assert run.counts == {GaussianPair(1.0): 4}
    with pytest.raises(MixedUnits, match="counts groups of 1, the event speaks of 2"):
        run.reduce(ev.Group(size=2, event=GAUSSIAN))
    groups = history()
    add(groups, ev.Group(size=2, event=GAUSSIAN))
    before = state(groups)
    with pytest.raises(MixedUnits, match="counts groups of 2, the event speaks of 1"):
        groups.add_pair(GaussianPair(1.0), 1)
    assert state(groups) == before


@pytest.mark.parametrize(
    ("name", "value"),
    [("neighbours", "zero-out"), ("neighbours", None), ("unit", "record"), ("unit", 1), ("observer", "server"),
     ("observer", PrivacyUnit.CLIENT)],
)  # fmt: skip
def test_relation_unit_and_observer_are_chosen_from_their_lists(name: str, value: Any) -> None:
    with pytest.raises(InvalidParameter, match="is not one of") as caught:
        history(**{name: value})
    assert caught.value.parameter == name


def test_a_guarantee_wears_what_the_history_knows() -> None:
    run = history(Neighbours.ZERO_OUT, None, Observer.SERVER)
    add(run, ev.Group(size=3, event=GAUSSIAN))
    found = run.guarantee(epsilon=2.0, delta=1e-5, method="test", epsilon_lower=1.0, order=4.0, certified=True)
    assert (found.unit, found.group_size, found.observer, found.neighbours) == (
        PrivacyUnit.PERSON, 3, Observer.SERVER, Neighbours.ZERO_OUT,
    )  # fmt: skip
    assert (found.epsilon, found.epsilon_lower, found.order, found.certified) == (2.0, 1.0, 4.0, True)


def test_bounds_that_touch_are_made_to_agree_and_bounds_that_cross_are_a_bug() -> None:
    run = history()
    touching = run.guarantee(epsilon=2.0, epsilon_lower=2.0 + 1e-13, delta=1e-5, method="test")
    assert touching.epsilon_lower == touching.epsilon == 2.0
    with pytest.raises(ArithmeticError, match=r"lower bound 2\.1 on ε lies above the upper bound 2\.0"):
        run.guarantee(epsilon=2.0, epsilon_lower=2.1, delta=1e-5, method="test")


def test_delta_lies_strictly_between_zero_and_one() -> None:
    assert check_delta(1e-300) == 1e-300
    for delta in (0, 1, None):
        with pytest.raises(InvalidParameter, match="delta"):
            check_delta(delta)


def test_the_tables_that_stay_when_caches_are_cleared_exist() -> None:
    """A renamed table would be cleared, and the next timing would count what belongs to the method."""
    for module in ("exact.accountant", "pld.accountant", "renyi.accountant"):
        importlib.import_module(f"quietsum.privacy.{module}")
    cached = {
        name
        for module in list(sys.modules.values())
        if getattr(module, "__name__", "").startswith("quietsum.privacy.")
        for name, value in vars(module).items()
        if hasattr(value, "cache_clear")
    }
    assert cached >= accounting._TABLES
