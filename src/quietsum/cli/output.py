"""What people and programs read: panels of at most 80 columns, or one JSON object."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from quietsum.privacy.guarantee import Guarantee
from quietsum.privacy.units import Observer

if TYPE_CHECKING:
    from rich.console import Console

    from quietsum.privacy.protocol import Accountant

__all__ = ["bounds", "console", "figure", "facts", "meaning", "print_json", "print_next", "renyi_line"]

WIDTH = 80


def console() -> Console:
    """A console for stdout that is no wider than 80 columns."""
    from rich.console import Console

    screen = Console(highlight=False, emoji=False)
    return screen if screen.width <= WIDTH else Console(highlight=False, emoji=False, width=WIDTH)


def print_json(values: Mapping[str, Any]) -> None:
    """One object in plain ASCII; infinities as the word "Infinity", never NaN."""
    print(json.dumps(_plain(values), indent=2, allow_nan=False))


def _plain(value: Any) -> Any:
    if isinstance(value, float) and math.isinf(value):
        return "Infinity"
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def figure(value: float) -> str:
    """An upper bound for people: four decimals, rounded up, never down."""
    if math.isinf(value):
        return "∞"
    if value == 0:
        return "0"
    digits = 4 if value >= 0.1 else 3 - math.floor(math.log10(value))
    scale = 10.0**digits
    return f"{math.ceil(value * scale - 1e-6) / scale:.{digits}f}" if value < 1e8 else f"{value:.6g}"


def bounds(guarantee: Guarantee) -> str:
    """ε from both sides in as many digits as they need to differ."""
    upper, lower = guarantee.epsilon, guarantee.epsilon_lower
    if lower <= 0 or math.isinf(upper):
        return f"ε ≤ {figure(upper)}"
    if guarantee.gap < 5e-5:
        return f"ε = {figure(upper)} (bounds {max(guarantee.gap, 1e-12):.0e} apart)"
    return f"{lower:.4f} ≤ ε ≤ {figure(upper)}"


def facts(guarantee: Guarantee) -> list[tuple[str, str]]:
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


def renyi_line(guarantee: Guarantee, renyi: Guarantee | None) -> str:
    """The Rényi bound beside the tight one."""
    if renyi is None:
        return "no bound for these events"
    order = f" at order {renyi.order:g}" if renyi.order is not None else ""
    looser = ""
    if 0 < guarantee.epsilon < renyi.epsilon < math.inf:
        looser = f", {100 * (renyi.epsilon / guarantee.epsilon - 1):.0f} % looser"
    return f"ε ≤ {figure(renyi.epsilon)}{order}{looser}"


def meaning(guarantee: Guarantee, accountant: Accountant | None) -> str:
    """What the best attacker can do, in one or two sentences."""
    from quietsum.privacy.tradeoff import attacker_advantage, true_positive_rate

    source = accountant if accountant is not None else guarantee
    right = 50 * (1 + attacker_advantage(source))
    found = 100 * true_positive_rate(source, 0.001)
    return (
        f"Whether a given {guarantee.unit.value} was used, nobody can guess right more often than {_percent(right)} of the time "
        f"(a coin: 50 %); who accuses 1 in 1000 wrongly finds at most {_percent(found)} of those used."
    )


def _percent(value: float) -> str:
    """Rounded up to a tenth of a percent."""
    return f"{min(100.0, math.ceil(value * 10 - 1e-9) / 10):.1f} %"


def print_next(words: Iterable[object]) -> None:
    """Name the next useful command, broken so that it can be copied."""
    lines, line = [], "next: quietsum"
    for word in (shlex.quote(str(word)) for word in words):
        if len(line) + len(word) + 3 > WIDTH:
            lines.append(f"{line} \\")
            line = "     "
        line = f"{line} {word}"
    print("\n".join([*lines, line]))
