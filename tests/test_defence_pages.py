"""What the pages on the defence tell a newcomer to write and to type works as it stands there."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from quietsum import load_model
from quietsum.plan import load_plan, resolve
from quietsum.tasks import task_of
from scenes import invoke, needs_data, one_line, quietsum

ROOT = Path(__file__).parent.parent
HOW_TO = ROOT / "docs" / "how-to"


pytestmark = pytest.mark.usefixtures("empty_folder")


def blocks(page: str, kind: str) -> list[str]:
    """The fenced blocks of one kind on a page, in their order."""
    text = (HOW_TO / page).read_text(encoding="utf-8")
    found = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [block for fence, block in found if fence == kind]


def block(page: str, kind: str, word: str) -> str:
    """The one block that holds ``word``."""
    (found,) = (text for text in blocks(page, kind) if word in text)
    return found


@needs_data
def test_the_plan_with_groups_runs_and_its_rule_sees_through_the_noise() -> None:
    text = block("secure-aggregation.md", "toml", "groups = 20")
    plan = load_plan(text)
    task = task_of(plan)
    resolved = resolve(plan, task.parties(), task.dimension)
    assert not [warning for warning in resolved.warnings if "noise hides" in warning]
    Path("run.toml").write_text(text.replace("rounds = 10", "rounds = 1"), encoding="utf-8")
    printed = quietsum("run", "run.toml", "--name", "first").stdout
    assert re.search(r"round 1/1 · \d+ of 20 groups.* · auprc", printed), printed
    assert "of 20 groups were left out" in quietsum("suspects", "first").stdout
    said = json.loads(quietsum("show", "first", "--json").stdout)
    assert said["operator_only"]["groups"]["judged"] == 20


def test_the_drill_page_s_plan_and_its_trigger_make_the_line_about_the_trigger() -> None:
    plan, *_ = blocks("drill.md", "toml")
    attack = block("drill.md", "toml", "trigger = ")
    Path("drill.toml").write_text(plan[: plan.index("[attack]")] + attack, encoding="utf-8")
    printed = quietsum("drill", "drill.toml", "--rules", "mean", "--attacks", "backdoor:4", "--rounds", "3").stdout
    assert re.search(r"the trigger of backdoor:4 wins, in percent: mean \d", printed), printed


def test_the_model_of_a_run_is_loaded_as_the_page_says_and_has_the_score_of_the_report() -> None:
    plan, *_ = blocks("drill.md", "toml")
    text = plan[: plan.index("[attack]")].replace("rounds = 15", "rounds = 1")
    Path("run.toml").write_text(text, encoding="utf-8")
    quietsum("run", "run.toml", "--name", "first")
    assert "model.safetensors in it" in quietsum("show", "first").stdout
    model = load_model("first")  # as the page names it
    assert isinstance(model, torch.nn.Module)
    task = task_of(load_plan(text))
    score = task.evaluate(np.asarray(torch.nn.utils.parameters_to_vector(model.parameters()).detach().double()))
    report = json.loads(Path("quietsum-workspace/runs/first/report.json").read_text(encoding="utf-8"))
    assert score.values[report["metrics"][0]["name"]] == pytest.approx(report["metrics"][0]["value"], abs=1e-9)


@pytest.mark.parametrize(
    ("begins", "changes"),
    [
        ("error: ", [('rule = "signguard"', 'rule = "multi-krum"'), ("attackers = 2 ", "attackers = 4 ")]),
        ("warning: noise hides", [("epsilon = 8.0", "epsilon = 1.0")]),
    ],
)
def test_what_the_page_shows_of_the_plan_is_what_the_plan_prints(begins: str, changes: list[tuple[str, str]]) -> None:
    text = (ROOT / "examples" / "defended.toml").read_text(encoding="utf-8")
    for old, new in changes:
        assert text.count(old) == 1
        text = text.replace(old, new)
    Path("run.toml").write_text(text, encoding="utf-8")
    printed = one_line(invoke("plan", "run.toml").output)
    (shown,) = (block for block in blocks("defend.md", "") if block.startswith(begins))
    assert one_line(shown) in printed


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_the_defence_is_one_click_away(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    assert re.search(r"\]\((docs/)?how-to/defend\.md\)", text)
    assert {"few-sites.md", "drill.md", "alerts.md", "check-data.md"} <= set(re.findall(r"how-to/([\w-]+\.md)", text))


def test_the_commented_plan_of_the_page_is_the_ready_one() -> None:
    """The two keys that docs/how-to/defend.md adds are those of examples/defended.toml."""
    ready = load_plan(ROOT / "examples" / "defended.toml").aggregation
    assert (ready.rule, ready.attackers) == ("signguard", 2)
    assert 'rule = "signguard"\nattackers = 2' in (HOW_TO / "defend.md").read_text(encoding="utf-8")
