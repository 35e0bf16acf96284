"""Whether a score says anything: one sentence beside it where it does not.

A score is no news by itself. One that a model would have by chance, or that has nothing beside it, is called so
wherever it is printed: in ``quietsum run``, in ``quietsum show`` and in the report.

>>> judge_scores([{"name": "auc", "value": 0.402, "on": "later payments"}], {})
'No better than chance: auc 0.402 on later payments, where a model that knows nothing scores 0.500.'
>>> judge_scores([{"name": "accuracy", "value": 0.9, "on": "public rows", "chance": 0.5}], {})
''
>>> judge_scores([{"name": "accuracy", "value": 0.9, "on": "public rows"}], {})
'Without a baseline: nothing says what a model that knows nothing would score in accuracy on public rows.'
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from quietsum.alerts import CHANCE_LEVELS, SCORES

__all__ = ["judge_scores"]

_MARGIN = 0.02  # as far above chance as an alert asks for


def judge_scores(metrics: Sequence[Mapping[str, Any]], references: Mapping[str, float]) -> str:
    """A sentence about the first score; empty where it is better than chance, or where there is no score.

    A score whose direction is unknown is compared with nothing; models for comparison are a baseline, too.
    """
    if not metrics:
        return ""
    first = metrics[0]
    plain = str(first["name"]).replace("_", " ").lower()
    level = first.get("chance", CHANCE_LEVELS.get(plain))
    shown = f"{first['name'].replace('_', ' ')}"
    if level is None:
        if references:
            return ""
        return (
            f"Without a baseline: nothing says what a model that knows nothing would score in {shown} on {first['on']}."
        )
    better, value = SCORES.get(plain, True), float(first["value"])
    if value > level + _MARGIN if better else value < level - _MARGIN * abs(level):
        return ""
    return (
        f"No better than chance: {shown} {value:.3f} on {first['on']}, where a model that knows nothing scores "
        f"{level:.3f}."
    )
