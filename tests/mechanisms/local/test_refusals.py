"""What a protocol refuses: values outside the declared domain, impossible parameters, reports of others."""

from __future__ import annotations

import math
import pickle

import numpy as np
import pytest

from quietsum.errors import InvalidParameter
from quietsum.mechanisms.local import NAMES, Ball, Bins, Categories, Interval, Unfit, categories, make_protocol

DOMAINS = {"duchi": Interval(low=0, high=1), "piecewise": Interval(low=0, high=1), "hybrid": Interval(low=0, high=1)}


@pytest.mark.parametrize("epsilon", [0, -1, math.nan, math.inf, 21, 1e-9, True, "1"])
@pytest.mark.parametrize("name", NAMES)
def test_an_epsilon_that_promises_nothing_or_everything_is_refused(name: str, epsilon: object) -> None:
    domain = Ball(dimension=2) if name == "privunit" else DOMAINS.get(name, 4)
    with pytest.raises(InvalidParameter, match="epsilon"):
        make_protocol(name, domain, epsilon)  # type: ignore[arg-type]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, -0.01, 1.01])
@pytest.mark.parametrize("name", DOMAINS)
def test_numbers_that_are_not_finite_or_out_of_bounds_are_refused_by_place_without_being_quoted(
    name: str, bad: float
) -> None:
    with pytest.raises(Unfit, match=r"^answer 3 ") as caught:
        make_protocol(name, DOMAINS[name], 1.0).privatize([0.1, 0.2, bad])
    assert str(bad) not in str(caught.value).replace("answer 3", "")
    assert caught.value.row == 2
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_answers_outside_the_list_are_refused_by_place_without_being_quoted() -> None:
    found = make_protocol("k-rr", ["yes", "no"], 1.0)
    with pytest.raises(Unfit, match=r"^answer 2 is not in the domain") as caught:
        found.privatize(["yes", "HIV-positive"])
    assert "HIV" not in str(caught.value)
    with pytest.raises(Unfit):
        make_protocol("oue", 4, 1.0).privatize(np.array([0, 4]))
    with pytest.raises(Unfit):
        make_protocol("oue", 4, 1.0).privatize(np.array([0, -1]))
    with pytest.raises(Unfit):
        make_protocol("oue", 4, 1.0).privatize(np.array([0.0, math.nan]))


def test_vectors_longer_than_the_radius_or_not_finite_are_refused() -> None:
    found = make_protocol("privunit", Ball(dimension=2), 1.0)
    for bad in ([[1.0, 1.0]], [[math.nan, 0.0]], [[0.1]], [0.1, 0.2]):
        with pytest.raises(InvalidParameter):
            found.privatize(bad)


def test_domains_that_are_none_are_refused() -> None:
    for labels in (("only",), ("a", "a"), ("a", "b\nc"), ("a", "\ud800")):
        with pytest.raises(InvalidParameter):
            Categories(labels=labels)
    for edges in ((0, 1), (0, 2, 1), (0, math.nan, 1)):
        with pytest.raises(InvalidParameter):
            Bins(edges=edges)
    for low, high in ((1, 1), (2, 1), (0, math.inf), (-1.7e308, 1.7e308)):
        with pytest.raises(InvalidParameter):
            Interval(low=low, high=high)
    with pytest.raises(InvalidParameter):
        categories("yes")


@pytest.mark.parametrize(("low", "high"), [(-8e307, 8e307), (0.0, 1e200), (-1e101, 0.0)])
def test_bounds_whose_errors_have_no_square_are_refused_before_anybody_answers(low: float, high: float) -> None:
    with pytest.raises(InvalidParameter, match=r"beyond 1e\+100"):
        Interval(low=low, high=high)
    with pytest.raises(InvalidParameter, match=r"beyond 1e\+100"):
        Ball(dimension=2, radius=high - low)
    widest = make_protocol("duchi", Interval(low=-1e100, high=1e100), 1e-6)
    found = widest.estimate(widest.privatize([0.0] * 3))
    assert np.isfinite([found.values, found.standard_errors, found.low, found.high]).all()


def test_a_protocol_for_shares_wants_a_list_and_one_for_means_an_interval() -> None:
    for name, domain in (("k-rr", Interval(low=0, high=1)), ("duchi", 3), ("privunit", 3)):
        with pytest.raises(InvalidParameter, match="needs"):
            make_protocol(name, domain, 1.0)
    with pytest.raises(InvalidParameter, match="is not known"):
        make_protocol("warner", 3, 1.0)
    with pytest.raises(InvalidParameter, match="means nothing"):
        make_protocol("k-rr", 3, 1.0, seed=1)


def test_reports_of_another_protocol_or_beyond_the_domain_are_refused() -> None:
    four, ten = make_protocol("k-rr", 4, 1.0), make_protocol("k-rr", 10, 1.0)
    with pytest.raises(InvalidParameter, match="are not reports of"):
        four.estimate(make_protocol("olh", 4, 1.0).privatize(np.arange(4)))
    with pytest.raises(InvalidParameter, match="no answer"):
        four.estimate(ten.privatize(np.full(200, 9)))
    with pytest.raises(InvalidParameter, match="beyond the domain"):
        reports = make_protocol("oue", 12, 1.0).privatize(np.arange(12))
        reports["bits"][:, 1] = 255
        make_protocol("oue", 12, 1.0).estimate(reports)
    for name in NAMES:
        found = make_protocol(name, Ball(dimension=2) if name == "privunit" else DOMAINS.get(name, 5), 1.0)
        with pytest.raises(InvalidParameter):
            found.estimate(np.empty(0, dtype=found.layout))


def test_rappor_refuses_a_permanent_price_below_that_of_one_report() -> None:
    with pytest.raises(InvalidParameter, match="permanent_epsilon"):
        make_protocol("rappor", 4, 2.0, permanent_epsilon=1.0)
    with pytest.raises(InvalidParameter, match="permanent_epsilon"):
        make_protocol("rappor", 4, 2.0, permanent_epsilon=0)


def test_a_filter_that_cannot_tell_answers_apart_is_refused() -> None:
    with pytest.raises(InvalidParameter, match="share all their bits"):
        found = make_protocol("rappor", 60, 2.0, size=8, cohorts=1, seed=1)
        found.estimate(found.privatize(np.arange(60)))


@pytest.mark.parametrize("name", NAMES)
def test_a_generator_that_can_be_replayed_is_refused(name: str) -> None:
    found = make_protocol(name, Ball(dimension=2) if name == "privunit" else DOMAINS.get(name, 5), 1.0)
    values: object = [[0.1, 0.2]] if name == "privunit" else [1]
    with pytest.raises(InvalidParameter, match="rng"):
        found.privatize(values, np.random.default_rng(1))  # type: ignore[arg-type]
