"""Numbers on the command line may be fractions: a rate is known as batch size over records, ``-q 256/60000``.

>>> number("256/60000") == 256 / 60000, number("0.5"), number("1e-5/2")
(True, 0.5, 5e-06)
>>> number("1/2/3")
Traceback (most recent call last):
...
ValueError: '1/2/3' is no fraction; write it as 256/60000
"""

from __future__ import annotations

import typing
from collections.abc import Sequence
from typing import Any

from quietsum.errors import InvalidParameter

__all__ = ["number", "resolve_fractions"]


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


def resolve_fractions(command: Any, words: Sequence[str]) -> list[str]:
    """``words`` of a command line, with each fraction behind an option that takes a number as that number.

    Raises InvalidParameter, with the option's name, if what stands there has a slash and is no fraction.
    """
    below, resolved, option = command, list[str](), ""
    for word in words:
        name, sign, value = word.partition("=")
        if option and "/" in word:
            word = _quotient(option, word)
        elif sign and name in _numeric(below) and "/" in value:
            word = f"{name}={_quotient(name, value)}"
        elif not word.startswith("-"):
            below = getattr(below, "commands", {}).get(word, below)
        option = word if word in _numeric(below) else ""
        resolved.append(word)
    return resolved


def _quotient(option: str, text: str) -> str:
    try:
        return repr(number(text))
    except ValueError as error:
        raise InvalidParameter(option, text, f"is no number ({error})") from None


def _numeric(command: Any) -> set[str]:
    """The options of ``command`` that take a number."""
    return {name for option in getattr(command, "params", ()) if _takes_number(option) for name in option.opts}


def _takes_number(option: Any) -> bool:
    """Whether ``option`` takes a float. Releases of typer say it in one of two ways; in another way, none does."""
    kind = getattr(getattr(option, "type", None), "name", "")
    annotation = getattr(getattr(option, "type_descriptor", None), "annotation", None)
    return kind == "float" or float in (annotation, *typing.get_args(annotation))
