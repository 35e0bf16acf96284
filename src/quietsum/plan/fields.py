"""How the values of a plan check their fields: each check returns the value, or raises with what to write instead."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from quietsum.errors import InvalidParameter
from quietsum.validate import probability, whole_number

__all__ = [
    "MOST_ROUNDS",
    "MOST_STEPS",
    "chosen",
    "count",
    "later",
    "maybe",
    "named",
    "names",
    "share",
    "store",
    "unused",
]

MOST_ROUNDS = 10**6
"""More rounds than this are a slip of the pen."""
MOST_STEPS = 10**9
"""So are more local steps or epochs than this."""


def store(value: object, **fields: object) -> None:
    """Set fields of a frozen value while it is made."""
    for name, field in fields.items():
        object.__setattr__(value, name, field)


_LATER = "later"


def later(default: Any) -> Any:
    """A field that came after plans were first written: at its default it is left out of files and digests."""
    return dataclasses.field(default=default, metadata={_LATER: True})


def unused(field: dataclasses.Field[Any], value: object) -> bool:
    """Whether ``field`` came later and is at its default."""
    return bool(field.metadata.get(_LATER)) and value == field.default


def chosen(parameter: str, value: object, choices: Iterable[str]) -> str:
    """One of some words."""
    known = tuple(choices)
    if not isinstance(value, str) or value not in known:
        raise InvalidParameter(parameter, value, "is unknown", f"choose {either(known)}")
    return str(value)


def either(words: tuple[str, ...]) -> str:
    quoted = [f"'{word}'" for word in words]
    return quoted[0] if len(quoted) == 1 else f"{', '.join(quoted[:-1])} or {quoted[-1]}"


def named(parameter: str, value: object, remedy: str) -> str:
    """A name that can be printed."""
    if not isinstance(value, str) or not value.strip() or not value.isprintable():
        raise InvalidParameter(parameter, value, "is not a name", remedy)
    return value


def names(parameter: str, values: object) -> tuple[str, ...]:
    """A list of names."""
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise InvalidParameter(parameter, values, "is not a list of names", 'write it as ["first", "second"]')
    return tuple(named(f"{parameter}[{index}]", name, "name a party") for index, name in enumerate(values))


def count(parameter: str, value: object, minimum: int, most: int, remedy: str = "") -> int:
    """A whole number within bounds."""
    number = whole_number(parameter, value, minimum, remedy)
    if number > most:
        raise InvalidParameter(parameter, value, f"is more than {most:,}", "check it; no training takes so many")
    return number


def share(parameter: str, value: object, remedy: str) -> float:
    """A probability above 0."""
    number = probability(parameter, value, remedy)
    if number == 0:
        raise InvalidParameter(parameter, value, "draws nobody", remedy)
    return number


def maybe(check: Any, parameter: str, value: object, *more: Any) -> Any:
    """The check's answer, or None for what is not stated."""
    return None if value is None else check(parameter, value, *more)
