"""A plan in a notebook: what it states that differs from the defaults, its promises first, and its digest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from quietsum.notebook import show_table

if TYPE_CHECKING:
    from quietsum.plan.values import Plan

__all__ = ["show_plan"]

_FIRST = ("privacy", "task", "federation", "training", "aggregation")


def show_plan(plan: Plan) -> str:
    """The keys of ``plan`` that are not at their default, as a table of HTML."""
    usual = dict(_flatten(type(plan)().to_dict()))
    stated = {key: text for key, text in _flatten(plan.to_dict()) if usual.get(key) != text}
    stated.setdefault("privacy.style", dict(_flatten(plan.to_dict()))["privacy.style"])
    places = {name: place for place, name in enumerate(_FIRST)}
    rows = sorted(stated.items(), key=lambda row: (places.get(row[0].partition(".")[0], len(_FIRST)), row[0]))
    notes = [
        "All other keys are at their default. What it costs: quietsum.forecast(plan).",
        f"digest {plan.digest}",
    ]
    return show_table(
        f"Plan: {plan.task.name}, {plan.federation.rounds} rounds", rows, heads=("key", "value"), notes=notes
    )


def _flatten(values: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, str]]:
    """Dotted keys, and their values as TOML would write them."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", _write(value)


def _write(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{', '.join(_write(one) for one in value)}]"
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {_write(one)}" for key, one in value.items()) + " }"
    return str(value)
