"""The page about policy.toml and the example say what this version reads."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from quietsum.party.policy import Policy
from quietsum.party.policy_file import load_policy, parse_policy, policy_keys
from quietsum.plan import page

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs" / "reference" / "policy-toml.md"


def test_the_reference_states_every_key_with_its_default_and_meaning() -> None:
    """Its tables are written by: python -m quietsum.party reference"""
    assert REFERENCE.read_text(encoding="utf-8").endswith(page(Policy))


def test_the_reference_names_every_key_once_and_no_other() -> None:
    documented = re.findall(r"^\| `([\w.]+)` \|", REFERENCE.read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(documented) == sorted(policy_keys())


def test_the_command_prints_the_tables_and_knows_nothing_else() -> None:
    command = [sys.executable, "-m", "quietsum.party"]
    done = subprocess.run([*command, "reference"], capture_output=True, check=True)
    assert done.stdout.decode("utf-8") == page(Policy)
    assert subprocess.run([*command, "schema"], capture_output=True, check=False).returncode != 0


def test_the_example_is_a_policy_that_takes_the_example_plan() -> None:
    from quietsum.plan import load_plan, resolve
    from quietsum.tasks import task_of

    policy, plan = load_policy(ROOT / "examples" / "policy.toml"), load_plan(ROOT / "examples" / "heart.toml")
    task = task_of(plan)
    policy.check(resolve(plan, task.parties(), task.dimension))


def test_what_the_example_leaves_out_by_a_comment_is_right_as_well() -> None:
    text = (ROOT / "examples" / "policy.toml").read_text(encoding="utf-8")
    whole = re.sub(r"^# (?=\[|[a-z_]+ = (?!\"…))", "", text, flags=re.MULTILINE)
    found = parse_policy(whole, "policy.toml")
    assert found.data is not None and found.data.on_failure == "drop" and found.alerts.email[0].to
    assert "signguard" in found.rules.rule and found != parse_policy(text, "policy.toml")
