"""How a guarantee is put into words: one number, one text, in a terminal as in a notebook.

An upper bound is rounded up and a lower bound down, so that what is printed is a bound, too.

>>> from quietsum.privacy.guarantee import Guarantee
>>> found = Guarantee(epsilon=0.17402, epsilon_lower=0.17401, delta=1e-5, method="contour")
>>> bounds_of(found)
'0.1740 ≤ ε ≤ 0.1741'
>>> facts_of(found)[0]
('protects', 'one record, against recipients of the model')
"""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from typing import TYPE_CHECKING

from quietsum.privacy.units import Observer

if TYPE_CHECKING:
    from quietsum.privacy.guarantee import Guarantee

__all__ = ["bounds_of", "digits_of", "facts_of", "figure_of"]


def figure_of(value: float, *, up: bool = True) -> str:
    """A bound for people: four decimals, or four digits when small; rounded up, or down for a lower bound."""
    if math.isinf(value):
        return "∞"
    if value == 0:
        return "0"
    digits = 4 if value >= 0.1 else min(300, 3 - math.floor(math.log10(value)))
    if value >= 1e8:
        return f"{value:.6g}"
    scaled = value * 10.0**digits
    nearest = round(scaled)
    if abs(scaled - nearest) > 1e-6:  # 2.5 stays 2.5, whatever its last bit says
        nearest = math.ceil(scaled) if up else math.floor(scaled)
    return f"{nearest / 10.0**digits:.{digits}f}"


def digits_of(value: float, *, up: bool = True) -> str:
    """Six digits of a bound, rounded up, or down for a lower bound; the last bits of a float count for nothing.

    >>> digits_of(1.2500004), digits_of(1.2500004, up=False), digits_of(2.0000000000000004)
    ('1.25001', '1.25', '2')
    """
    if math.isinf(value) or value == 0:
        return f"{value:.6g}"
    context = Context(prec=6, rounding=ROUND_CEILING if up else ROUND_FLOOR)
    return f"{float(context.plus(Decimal(f'{value:.12e}'))):.6g}"


def bounds_of(guarantee: Guarantee) -> str:
    """ε from both sides."""
    if guarantee.epsilon_lower <= 0 or math.isinf(guarantee.epsilon):
        return f"ε ≤ {figure_of(guarantee.epsilon)}"
    lower, upper = figure_of(guarantee.epsilon_lower, up=False), figure_of(guarantee.epsilon)
    return f"ε = {upper}" if lower == upper else f"{lower} ≤ ε ≤ {upper}"


def facts_of(guarantee: Guarantee) -> list[tuple[str, str]]:
    """What a guarantee is about, as name and text."""
    against = "the server" if guarantee.observer is Observer.SERVER else "recipients of the model"
    method = guarantee.method + (f", order {guarantee.order:g}" if guarantee.order is not None else "")
    kind = "two-sided, every error inside the bounds" if guarantee.certified else "numerical bound"
    if not guarantee.certified and guarantee.epsilon_lower > 0:
        kind = "two-sided numerical bounds"
    return [
        ("protects", f"one {guarantee.whom}, against {against}"),
        ("neighbours", str(guarantee.neighbours.value)),
        ("method", f"{method} ({kind})"),
    ]
