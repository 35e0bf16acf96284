"""One number, one text: how the figures of a report are rounded, wherever they stand.

An upper bound is rounded up and a lower bound down, to four decimals, or to four digits if the number is small, so that
what is printed is a bound, too. Sentences, tables, charts and the summary of a command all take their texts from here.
"""

from __future__ import annotations

import math

__all__ = ["percent", "plain", "read", "show_bound", "small"]


def show_bound(value: float | str | None, *, up: bool = True) -> str:
    """The text of a bound; ``up`` says whether it is an upper one.

    >>> show_bound(0.17402), show_bound(0.17402, up=False), show_bound(2.0), show_bound("Infinity")
    ('0.1741', '0.174', '2', '∞')
    """
    number = read(value)
    if math.isinf(number):
        return "∞"
    if number <= 0:
        return "0"
    digits = 4 if number >= 0.1 else min(300, 3 - math.floor(math.log10(number)))
    if number >= 1e8:
        return f"{number:.4g}"
    scaled = number * 10.0**digits
    nearest = round(scaled)
    if abs(scaled - nearest) > 1e-5:  # 2.5 stays 2.5, whatever its last bit says
        nearest = math.ceil(scaled) if up else math.floor(scaled)
    text = f"{nearest / 10.0**digits:.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def read(value: float | str | None) -> float:
    """The number that a report's value stands for: "Infinity" is a word there, and what is missing promises nothing."""
    if value is None or isinstance(value, str):
        return math.inf
    return float(value)


def small(value: float) -> str:
    """A δ or a rate, which stands as it was chosen.

    >>> small(1e-05), small(0.25)
    ('1e-05', '0.25')
    """
    return f"{value:.6g}"


def plain(value: float) -> str:
    """A noise multiplier or a norm, which is no bound: six digits.

    >>> plain(3.453384920451028)
    '3.45338'
    """
    return f"{value:.6g}"


def percent(share: float, *, up: bool = True) -> str:
    """A share in percent, rounded to a tenth, up unless ``up`` is False.

    >>> percent(0.5571), percent(1.0)
    ('55.8 %', '100.0 %')
    """
    scaled = min(1000.0, 1000.0 * share)
    return f"{(math.ceil(scaled - 1e-9) if up else math.floor(scaled + 1e-9)) / 10:.1f} %"
