"""Numbers on the command line may be fractions: a rate is known as batch size over records, ``-q 256/60000``.

>>> number("256/60000") == 256 / 60000, number("0.5"), number("1e-5/2")
(True, 0.5, 5e-06)
>>> number("1/2/3")
Traceback (most recent call last):
...
ValueError: '1/2/3' is no fraction; write it as 256/60000
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

__all__ = ["number", "take_fractions"]


def number(text: str) -> float:
    """The number that ``text`` is, or the quotient of the two that it holds; anything else raises ValueError."""
    above, slash, below = text.partition("/")
    if not slash:
        return float(text)
    try:
        return float(above) / float(below)
    except ZeroDivisionError:
        raise ValueError(f"{text!r} divides by zero") from None
    except ValueError:
        raise ValueError(f"{text!r} is no fraction; write it as 256/60000") from None


def take_fractions(command: Any) -> None:
    """Let each option of ``command``, and of the commands below it, that takes a number take a fraction as well."""
    for one in _all(command):
        for option in one.params:
            if getattr(option.type, "name", "") == "float" and not hasattr(option.type, "takes_fractions"):
                option.type = _fractional(option.type)


def _all(command: Any) -> Iterator[Any]:
    yield command
    for below in getattr(command, "commands", {}).values():
        yield from _all(below)


def _fractional(kind: Any) -> Any:
    """A type of options like ``kind``. Its class is that of typer's release, which has no public name."""

    def convert(self: Any, value: Any, option: Any, context: Any) -> Any:
        if isinstance(value, str) and "/" in value:
            try:
                return number(value)
            except ValueError as error:
                self.fail(str(error), option, context)
        return kind.convert(value, option, context)

    return type(type(kind).__name__, (type(kind),), {"convert": convert, "takes_fractions": True})()
