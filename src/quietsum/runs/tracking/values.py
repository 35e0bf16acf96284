"""What a run writes into an MLflow store: numbers and tags of a round, and a plan as parameters."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

from quietsum.privacy import Guarantee, Observer, PrivacyUnit

__all__ = ["LONGEST_VALUE", "collect_spent", "flatten_plan", "round_values"]

LONGEST_VALUE = 500
"""What every server of MLflow 2 and 3 takes as a parameter's value; plan.toml has the whole."""


def round_values(
    number: int, reserved: Iterable[Guarantee], metrics: Mapping[str, float], metrics_on: Mapping[str, str]
) -> tuple[dict[str, float], dict[str, str]]:
    """Metrics and tags of round ``number``: what is reserved, never what is spent, which tells who refused."""
    numbers, tags = collect_spent(tuple(reserved))
    for name, value in metrics.items():
        key = make_key(name)
        tags[f"quietsum.metric.{key}.on"] = metrics_on[name]
        if math.isfinite(value):
            numbers[key] = float(value)
        else:
            tags[f"quietsum.metric.{key}.not_finite"] = f"round {number}"
    return numbers, tags


def collect_spent(spent: tuple[Guarantee, ...]) -> tuple[dict[str, float], dict[str, str]]:
    """Metrics and tags of what is reserved: for each unit the largest ε, with its δ, and against whom it holds."""
    numbers: dict[str, float] = {}
    tags: dict[str, str] = {}
    for unit in PrivacyUnit:
        found = [guarantee for guarantee in spent if guarantee.unit is unit]
        if not found:
            continue
        worst = max(found, key=lambda guarantee: guarantee.epsilon)
        who = {one.observer for one in found if one.epsilon == worst.epsilon}
        texts = {Observer.SERVER: "the server", Observer.RECIPIENTS: "recipients of the model"}
        against = " and ".join(text for observer, text in texts.items() if observer in who)
        if math.isinf(worst.epsilon):
            tags[f"quietsum.privacy.{unit.value}"] = f"no guarantee per {worst.whom} against {against}"
            continue
        tags[f"quietsum.privacy.{unit.value}"] = f"per {worst.whom}, against {against}, if the schedule runs as planned"
        numbers[f"privacy_epsilon/{unit.value}"] = worst.epsilon
        numbers[f"privacy_delta/{unit.value}"] = worst.delta
    return numbers, tags


def flatten_plan(values: Mapping[str, Any], before: str = "") -> dict[str, str]:
    """A plan's values as parameters, ``privacy.record.epsilon`` for instance; long ones are cut, absent ones left out.

    >>> flatten_plan({"privacy": {"record": {"epsilon": 1.0}, "client": None}, "tags": ["a"]})
    {'privacy.record.epsilon': '1.0', 'tags': '["a"]'}
    """
    found: dict[str, str] = {}
    for name, value in values.items():
        key = f"{before}{make_key(str(name))}"
        if isinstance(value, Mapping):
            found.update(flatten_plan(value, f"{key}."))
        elif value is not None:
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
            found[key[:250]] = text if len(text) <= LONGEST_VALUE else text[: LONGEST_VALUE - 1] + "…"
    return found


def make_key(name: str) -> str:
    return re.sub(r"[^\w\-. /]", "_", name, flags=re.ASCII)[:200]
