"""Checks of parameters: each returns the value in its plain type, or raises with what to write instead.

Every check takes the parameter's name and its value first and raises :class:`~quietsum.errors.InvalidParameter`, which
names both, the problem and the remedy. ``remedy`` replaces the general advice where a better one is known. NaN,
infinities, booleans and numpy's complex numbers are no numbers here, so a value that has passed needs no further look.

>>> whole_number("rounds", 20.0, 1), choice("noise", "fast", ("secure", "fast")), optional(positive, "epsilon", None)
(20, 'fast', None)
>>> choice("noise", "slow", ("secure", "fast"))
Traceback (most recent call last):
...
quietsum.errors.InvalidParameter: noise = 'slow' is unknown; choose 'secure' or 'fast'
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from quietsum.errors import InvalidParameter

__all__ = [
    "choice",
    "finite_number",
    "flag",
    "join_choices",
    "member",
    "names",
    "non_negative",
    "open_probability",
    "optional",
    "positive",
    "positive_share",
    "printable_name",
    "probability",
    "set_fields",
    "strict_member",
    "whole_number",
]

_T = TypeVar("_T")
_Member = TypeVar("_Member", bound=enum.Enum)


def finite_number(parameter: str, value: object, remedy: str = "pass a finite number") -> float:
    """``value`` as a finite float."""
    kind = getattr(getattr(value, "dtype", None), "kind", "")  # float() would accept numpy's bool and complex
    if isinstance(value, bool) or kind in ("b", "c") or not hasattr(value, "__float__"):
        raise InvalidParameter(parameter, value, "is not a number", remedy)
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise InvalidParameter(parameter, value, "is not a number", remedy) from None
    if not math.isfinite(number):
        raise InvalidParameter(parameter, value, "is not finite", remedy)
    return number


def positive(parameter: str, value: object, remedy: str = "pass a positive number") -> float:
    """``value`` as a float above zero."""
    number = finite_number(parameter, value, remedy)
    if number <= 0:
        raise InvalidParameter(parameter, value, "must be greater than 0", remedy)
    return number


def non_negative(parameter: str, value: object, remedy: str = "pass zero or a positive number") -> float:
    """``value`` as a float of at least zero."""
    number = finite_number(parameter, value, remedy)
    if number < 0:
        raise InvalidParameter(parameter, value, "must not be negative", remedy)
    return number


def probability(parameter: str, value: object, remedy: str = "pass a number between 0 and 1") -> float:
    """``value`` as a float in [0, 1]."""
    number = finite_number(parameter, value, remedy)
    if not 0 <= number <= 1:
        raise InvalidParameter(parameter, value, "must lie in [0, 1]", remedy)
    return number


def positive_share(parameter: str, value: object, remedy: str = "pass a number above 0 and up to 1") -> float:
    """``value`` as a float in (0, 1]: a rate at which something is drawn."""
    number = probability(parameter, value, remedy)
    if number == 0:
        raise InvalidParameter(parameter, value, "draws nothing", remedy)
    return number


def open_probability(
    parameter: str, value: object, remedy: str = "for delta, choose at most 1 / (10 n) for n protected units"
) -> float:
    """``value`` as a float strictly between 0 and 1."""
    number = finite_number(parameter, value, remedy)
    if not 0 < number < 1:
        raise InvalidParameter(parameter, value, "must lie strictly between 0 and 1", remedy)
    return number


def whole_number(
    parameter: str,
    value: object,
    minimum: int = 0,
    remedy: str = "",
    *,
    most: int | None = None,
    too_many: str = "check it",
) -> int:
    """``value`` as an int of at least ``minimum``, and at most ``most`` if that is given, whose remedy is ``too_many``.

    3.0 is accepted; 3.5 and True are not.
    """
    remedy = remedy or f"pass a whole number of at least {minimum}"
    number = finite_number(parameter, value, remedy)
    if number != int(number):
        raise InvalidParameter(parameter, value, "is not a whole number", remedy)
    whole = value if isinstance(value, int) else int(number)  # an int may have more digits than a float
    if whole < minimum:
        raise InvalidParameter(parameter, value, f"must be at least {minimum}", remedy)
    if most is not None and whole > most:
        raise InvalidParameter(parameter, value, f"is more than {most:,}", too_many)
    return whole


def flag(parameter: str, value: object) -> bool:
    """``value`` as it is, True or False; 0, 1 and texts are refused."""
    if not isinstance(value, bool):
        raise InvalidParameter(parameter, value, "is neither true nor false", "write true or false")
    return value


def choice(parameter: str, value: object, choices: Iterable[_T], remedy: str = "") -> _T:
    """The one of ``choices`` that equals ``value``; True is not 1, and a text is never a number."""
    known = tuple(choices)
    for one in known:
        if isinstance(value, type(one)) and isinstance(value, bool) == isinstance(one, bool) and value == one:
            return one
    raise InvalidParameter(parameter, value, "is unknown", remedy or f"choose {join_choices(known)}")


def member(parameter: str, value: object, kind: type[_Member], remedy: str = "") -> _Member:
    """The member of the enumeration ``kind`` that ``value`` is, or is the value of."""
    try:
        return kind(value)
    except ValueError:
        known = [one.value for one in kind]
        raise InvalidParameter(parameter, value, "is unknown", remedy or f"choose {join_choices(known)}") from None


def strict_member(parameter: str, value: object, kind: type[_Member]) -> _Member:
    """``value``, if it is a member of ``kind``; the text of a member is refused."""
    if not isinstance(value, kind):
        raise InvalidParameter(parameter, value, f"is not one of {[str(one) for one in kind]}")
    return value


def join_choices(choices: Iterable[object]) -> str:
    """The choices in words: ``'mean', 'median' or 'krum'``."""
    quoted = [repr(one) for one in choices]
    return quoted[0] if len(quoted) == 1 else f"{', '.join(quoted[:-1])} or {quoted[-1]}"


def printable_name(parameter: str, value: object, remedy: str) -> str:
    """``value``, if it is a text that can be printed and is not blank."""
    if not isinstance(value, str) or not value.strip() or not value.isprintable():
        raise InvalidParameter(parameter, value, "is not a name", remedy)
    return value


def names(parameter: str, values: object, remedy: str = "name a party") -> tuple[str, ...]:
    """The names in a list, each printable; ``remedy`` is for a single one."""
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise InvalidParameter(parameter, values, "is not a list of names", 'write it as ["first", "second"]')
    return tuple(printable_name(f"{parameter}[{index}]", name, remedy) for index, name in enumerate(values))


def optional(check: Callable[..., _T], parameter: str, value: object, *more: Any, **options: Any) -> _T | None:
    """None if ``value`` is None, else the result of ``check`` with the arguments that follow."""
    return None if value is None else check(parameter, value, *more, **options)


def set_fields(value: object, /, **fields: object) -> None:
    """Set fields of a frozen dataclass while it is made, in ``__post_init__``: what a check has returned."""
    for name, field in fields.items():
        object.__setattr__(value, name, field)
