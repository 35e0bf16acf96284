"""The threat-model page names settings and tests that exist, for every attack and every layer it promises."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from quietsum.alerts.settings import alert_keys as alert_keys
from quietsum.party.policy_file import policy_keys
from quietsum.plan import keys as plan_keys
from quietsum.plan.resolution.layers import LAYERS

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "explanation" / "threat-model.md").read_text(encoding="utf-8")
ATTACKS = {
    "curious server", "malicious client", "data poisoning", "model poisoning", "backdoor", "label flipping",
    "collusion with the server", "collusion of attackers",
}  # fmt: skip


def rows(heading: str) -> dict[str, list[str]]:
    """The cells of a section's table, by its first column."""
    section = PAGE.split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]
    found = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line[:3] == "| *"
    ]
    return {cells[0].strip("*"): cells[1:] for cells in found}


ROWS = {**{f"attack: {name}": cells[1:] for name, cells in rows("Attacks, row by row").items()},
        **{f"layer: {name}": cells for name, cells in rows("Five layers").items()}}  # fmt: skip


def test_the_page_has_every_attack_and_every_layer() -> None:
    assert set(rows("Attacks, row by row")) >= ATTACKS
    assert list(rows("Five layers")) == list(LAYERS)


@pytest.mark.parametrize("name", ROWS)
def test_a_row_names_keys_that_exist(name: str) -> None:
    known = {"run.toml": plan_keys(), "policy.toml": policy_keys(), "alerts.toml": alert_keys()}
    stated = re.findall(r"`(\w+\.toml): ([\w.]+)`", ROWS[name][0])
    assert stated
    for file, key in stated:
        assert key in known[file], f"{file} has no {key}"


@pytest.mark.parametrize("name", ROWS)
def test_a_row_names_a_test_that_exists(name: str) -> None:
    stated = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", ROWS[name][1])
    assert stated
    for path, test in stated:
        assert re.search(rf"^def {test}\(", (ROOT / path).read_text(encoding="utf-8"), flags=re.MULTILINE), test


@pytest.mark.parametrize("name", ROWS)
def test_a_row_says_what_remains(name: str) -> None:
    assert len(ROWS[name][2]) > 20


def test_a_wrong_name_would_be_noticed() -> None:
    assert "aggregation.rules" not in plan_keys() and "rules.rule" in policy_keys()
