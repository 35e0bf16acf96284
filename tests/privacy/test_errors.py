"""Errors are lessons: each names the parameter, the value and the remedy."""

from __future__ import annotations

import math
import pickle
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import quietsum
from quietsum import errors
from quietsum.errors import InvalidParameter

NO_NUMBERS: tuple[Any, ...] = (
    None, "1", b"1", True, np.bool_(False), 1j, np.complex64(1), [], {}, object(), np.array([1.0, 2.0]),
)  # fmt: skip
CHECKS = (
    errors.finite_number, errors.positive, errors.non_negative, errors.probability, errors.open_probability,
    errors.whole_number,
)  # fmt: skip


def test_every_error_can_be_caught_as_one_and_as_what_it_is_in_python() -> None:
    for name in errors.__all__:
        assert issubclass(getattr(errors, name), errors.QuietsumError)
        assert getattr(quietsum, name) is getattr(errors, name)
    assert issubclass(errors.InvalidParameter, ValueError)
    assert issubclass(errors.CorruptState, ValueError)
    assert issubclass(errors.UnsupportedEvent, TypeError)
    assert issubclass(errors.MixedUnits, TypeError)


def test_an_invalid_parameter_says_name_value_problem_and_remedy() -> None:
    error = InvalidParameter("sample_rate", "high", "is not a number", "use batch_size / dataset_size")
    assert str(error) == "sample_rate = 'high' is not a number; use batch_size / dataset_size"
    assert (error.parameter, error.value, error.problem, error.remedy) == (
        "sample_rate", "high", "is not a number", "use batch_size / dataset_size",
    )  # fmt: skip
    assert str(InvalidParameter("k", 0, "is empty")) == "k = 0 is empty"


def test_an_invalid_parameter_survives_pickling_with_its_parts() -> None:
    error = pickle.loads(pickle.dumps(InvalidParameter("delta", 2, "is no probability", "pass 1e-5")))
    assert (error.parameter, error.value, error.problem, error.remedy) == ("delta", 2, "is no probability", "pass 1e-5")
    assert str(error) == "delta = 2 is no probability; pass 1e-5"


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("value", NO_NUMBERS, ids=lambda value: type(value).__name__)
def test_what_is_no_number_is_refused(check: Any, value: Any) -> None:
    with pytest.raises(InvalidParameter, match=r"x = .* is not a number; .") as caught:
        check("x", value)
    assert caught.value.parameter == "x"


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, np.float64("nan"), Decimal("NaN")], ids=repr)
def test_what_is_not_finite_is_refused(check: Any, value: Any) -> None:
    with pytest.raises(InvalidParameter, match="is not finite"):
        check("x", value)


def test_a_number_too_large_for_a_float_is_refused() -> None:
    for check in CHECKS:
        with pytest.raises(InvalidParameter):
            check("x", 10**400)


@pytest.mark.parametrize("value", [0.5, np.float32(0.5), np.asarray(0.5), Fraction(1, 2), Decimal("0.5")], ids=repr)
def test_numbers_of_any_make_become_floats(value: Any) -> None:
    for check in CHECKS[:5]:
        found = check("x", value)
        assert (found, type(found)) == (0.5, float)


@pytest.mark.parametrize(
    ("check", "inside", "outside"),
    [
        (errors.positive, (5e-324, 1e308), (0, -0.0, -1)),
        (errors.non_negative, (0, -0.0, 1e308), (-5e-324, -1)),
        (errors.probability, (0, 1, 0.5), (-5e-324, math.nextafter(1, 2))),
        (errors.open_probability, (5e-324, math.nextafter(1, 0)), (0, 1, -1, 2)),
    ],
)
def test_each_domain_ends_where_it_says(check: Any, inside: tuple[float, ...], outside: tuple[float, ...]) -> None:
    for value in inside:
        assert check("x", value) == value
    for value in outside:
        with pytest.raises(InvalidParameter, match=r"x = .* must .*; ."):
            check("x", value)


def test_whole_numbers_are_ints_whatever_they_came_as() -> None:
    for value in (3, 3.0, np.int8(3), np.float64(3), Fraction(3), Decimal(3)):
        found = errors.whole_number("steps", value)
        assert (found, type(found)) == (3, int)
    assert errors.whole_number("steps", 2**70 + 1) == 2**70 + 1  # more digits than a float has


def test_whole_numbers_have_a_minimum_and_no_fractions() -> None:
    with pytest.raises(InvalidParameter, match=r"steps = 2.5 is not a whole number; pass a whole number of at least 0"):
        errors.whole_number("steps", 2.5)
    with pytest.raises(InvalidParameter, match="steps = 1 must be at least 2; pass a whole number of at least 2"):
        errors.whole_number("steps", 1, 2)
    with pytest.raises(InvalidParameter, match="; count them"):
        errors.whole_number("steps", -1, remedy="count them")


def test_a_bad_delta_hears_what_a_good_one_is() -> None:
    with pytest.raises(InvalidParameter, match=r"strictly between 0 and 1; .* at most 1 / \(10 n\)"):
        errors.open_probability("delta", 1)
