"""Checks of parameters: what passes comes back in its plain type, what does not is named with its remedy."""

from __future__ import annotations

import dataclasses
import enum
import math
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from quietsum import validate
from quietsum.errors import InvalidParameter

NO_NUMBERS: tuple[Any, ...] = (
    None, "1", b"1", True, np.bool_(False), 1j, np.complex64(1), [], {}, object(), np.array([1.0, 2.0]),
)  # fmt: skip
CHECKS = (
    validate.finite_number, validate.positive, validate.non_negative, validate.probability, validate.open_probability,
    validate.whole_number,
)  # fmt: skip


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
        (validate.positive, (5e-324, 1e308), (0, -0.0, -1)),
        (validate.non_negative, (0, -0.0, 1e308), (-5e-324, -1)),
        (validate.probability, (0, 1, 0.5), (-5e-324, math.nextafter(1, 2))),
        (validate.open_probability, (5e-324, math.nextafter(1, 0)), (0, 1, -1, 2)),
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
        found = validate.whole_number("steps", value)
        assert (found, type(found)) == (3, int)
    assert validate.whole_number("steps", 2**70 + 1) == 2**70 + 1  # more digits than a float has


def test_whole_numbers_have_a_minimum_and_no_fractions() -> None:
    with pytest.raises(InvalidParameter, match=r"steps = 2.5 is not a whole number; pass a whole number of at least 0"):
        validate.whole_number("steps", 2.5)
    with pytest.raises(InvalidParameter, match="steps = 1 must be at least 2; pass a whole number of at least 2"):
        validate.whole_number("steps", 1, 2)
    with pytest.raises(InvalidParameter, match="; count them"):
        validate.whole_number("steps", -1, remedy="count them")


def test_a_bad_delta_hears_what_a_good_one_is() -> None:
    with pytest.raises(InvalidParameter, match=r"strictly between 0 and 1; .* at most 1 / \(10 n\)"):
        validate.open_probability("delta", 1)


def test_a_share_is_above_zero_and_up_to_one() -> None:
    assert validate.positive_share("rate", 1) == 1.0 and validate.positive_share("rate", 5e-324) == 5e-324
    with pytest.raises(InvalidParameter, match="rate = 0 draws nothing; pass a number above 0"):
        validate.positive_share("rate", 0)
    with pytest.raises(InvalidParameter, match="must lie in"):
        validate.positive_share("rate", 1.1)


def test_a_whole_number_may_have_a_largest_value() -> None:
    assert validate.whole_number("rounds", 1000, 1, most=1000) == 1000
    with pytest.raises(InvalidParameter, match="rounds = 1001 is more than 1,000; plan fewer"):
        validate.whole_number("rounds", 1001, 1, most=1000, too_many="plan fewer")


def test_a_flag_is_true_or_false_and_nothing_else() -> None:
    assert validate.flag("secure", True) is True and validate.flag("secure", False) is False
    for value in (0, 1, "true", None):
        with pytest.raises(InvalidParameter, match="is neither true nor false; write true or false"):
            validate.flag("secure", value)


def test_a_choice_comes_back_and_another_value_hears_all_choices() -> None:
    assert validate.choice("bits", 16, (8, 16, 32)) == 16
    with pytest.raises(InvalidParameter, match="mode = 'slow' is unknown; choose 'a', 'b' or 'c'"):
        validate.choice("mode", "slow", ("a", "b", "c"))
    with pytest.raises(InvalidParameter, match="; ask the operator"):
        validate.choice("mode", None, ("a", "b"), "ask the operator")
    with pytest.raises(InvalidParameter, match=r"choose 'a'$"):
        validate.choice("mode", ["a"], ("a",))


@pytest.mark.parametrize("value", [True, "1", 1.5, None, np.zeros(2)], ids=repr)
def test_a_choice_of_numbers_is_neither_a_flag_nor_a_text(value: Any) -> None:
    with pytest.raises(InvalidParameter, match="is unknown; choose 1 or 2"):
        validate.choice("level", value, (1, 2))


def test_a_member_is_found_by_itself_or_by_its_value() -> None:
    class Colour(enum.StrEnum):
        RED = "red"
        BLUE = "blue"

    assert validate.member("colour", "red", Colour) is validate.member("colour", Colour.RED, Colour) is Colour.RED
    with pytest.raises(InvalidParameter, match="colour = 'green' is unknown; choose 'red' or 'blue'"):
        validate.member("colour", "green", Colour)
    assert validate.strict_member("colour", Colour.RED, Colour) is Colour.RED
    with pytest.raises(InvalidParameter, match=r"colour = 'red' is not one of \['red', 'blue'\]"):
        validate.strict_member("colour", "red", Colour)


@pytest.mark.parametrize("value", ["", "  ", "a\nb", "\x1b[1m", 3, None], ids=repr)
def test_a_name_is_a_text_that_can_be_printed(value: Any) -> None:
    assert validate.printable_name("party", "Clinic 1", "name it") == "Clinic 1"
    with pytest.raises(InvalidParameter, match="is not a name; name it"):
        validate.printable_name("party", value, "name it")
    with pytest.raises(InvalidParameter, match=r"parties\[1\] = .* is not a name; name a party"):
        validate.names("parties", ["Clinic 1", value])


def test_a_text_is_no_list_of_names() -> None:
    assert validate.names("parties", iter(["a", "b"])) == ("a", "b")
    for value in ("ab", 3, None):
        with pytest.raises(InvalidParameter, match="is not a list of names"):
            validate.names("parties", value)


def test_an_optional_value_is_checked_if_it_is_there() -> None:
    assert validate.optional(validate.positive, "epsilon", None) is None
    assert validate.optional(validate.whole_number, "rounds", 3.0, 1, most=5) == 3
    with pytest.raises(InvalidParameter, match="epsilon = 0 must be greater than 0; spend something"):
        validate.optional(validate.positive, "epsilon", 0, "spend something")


def test_fields_of_a_frozen_value_are_set_while_it_is_made() -> None:
    @dataclasses.dataclass(frozen=True)
    class Rate:
        value: float

        def __post_init__(self) -> None:
            validate.set_fields(self, value=validate.probability("value", self.value))

    made = Rate(np.float32(0.5))  # type: ignore[arg-type]  # what numpy hands over
    assert (made.value, type(made.value)) == (0.5, float)
