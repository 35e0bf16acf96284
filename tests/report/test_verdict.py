"""A score at chance, or without a baseline, is called so."""

from __future__ import annotations

import pytest

from quietsum.report.facts.verdict import judge_scores


def metric(name: str, value: float, **more: float) -> list[dict[str, object]]:
    return [{"name": name, "value": value, "on": "public rows", **more}]


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (metric("auc", 0.402), "No better than chance: auc 0.402"),
        (metric("auc", 0.51), "No better than chance"),
        (metric("accuracy", 0.98, chance=0.98), "No better than chance"),
        (metric("loss", 0.7, chance=0.69), "No better than chance"),
        (metric("accuracy", 0.98), "Without a baseline"),
        (metric("auc", 0.66), ""),
        (metric("accuracy", 0.9, chance=0.5), ""),
        (metric("loss", 0.3, chance=0.69), ""),
        ([], ""),
    ],
)
def test_a_score_is_called_what_it_is(found: list[dict[str, object]], said: str) -> None:
    sentence = judge_scores(found, {})
    assert sentence.startswith(said)
    assert bool(sentence) == bool(said)


def test_a_model_without_privacy_is_a_baseline_and_does_not_lift_a_score_above_chance() -> None:
    assert judge_scores(metric("dice", 0.8), {"without privacy": 0.87}) == ""
    assert judge_scores(metric("auc", 0.45), {"without privacy": 0.87}).startswith("No better than chance")
