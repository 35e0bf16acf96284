"""The page about robust rules says what the rules say."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from aggregation.robust.naive import sent_of, verdict_of
from quietsum.aggregation.robust import RULES, Rule, find_rule

PAGE = Path(__file__).parents[3] / "docs" / "explanation" / "robust-rules.md"
HEAD = ["| rule | source | n for f = 1, 2 | what holds | what it does not do |", "|---|---|---|---|---|"]


def line(rule: Rule) -> str:
    facts = rule.facts
    cells = (f"`{rule.name}`", facts.source, f"{facts.least(1)}, {facts.least(2)}", facts.breakdown, facts.limits)
    return "| " + " | ".join(cells) + " |"


def test_the_table_of_facts_is_that_of_the_rules() -> None:
    """To renew it: python tests/aggregation/robust/test_page.py, then paste."""
    page = PAGE.read_text(encoding="utf-8").splitlines()
    assert all(head in page for head in HEAD)
    missing = [name for name, rule in RULES.items() if line(rule) not in page]
    assert not missing, "\n".join(line(RULES[name]) for name in missing)


def test_only_a_constant_bound_has_a_sensitivity_and_all_need_single_updates() -> None:
    for rule in RULES.values():
        assert rule.facts.sensitivity is None and rule.facts.needs_individuals, rule.name


@pytest.mark.parametrize("name", ["signguard", "signguard-sim", "signguard-dist"])
def test_signguard_needs_numpy_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    for module in ("sklearn", "sklearn.cluster", "torch", "flwr"):
        monkeypatch.setitem(sys.modules, module, None)
    rows = np.random.default_rng(0).normal(size=(8, 50)) + 1
    assert verdict_of(find_rule(name), rows, 2).kept.any()
    assert len(sent_of(rows)) == 8


if __name__ == "__main__":
    print("\n".join([*HEAD, *(line(rule) for rule in RULES.values())]))
