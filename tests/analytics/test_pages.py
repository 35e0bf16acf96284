"""The pages about questions run as they stand."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from lifelines.datasets import load_gbsg2
from lifelines.statistics import logrank_test
from typer.testing import CliRunner

from quietsum.analytics import parse_questions
from quietsum.analytics.questions import ASKED, QuestionFile, question_keys
from quietsum.cli.app import app
from quietsum.party.policy_file import first_policy, parse_policy
from quietsum.plan.text.reference import page

DOCS = Path(__file__).parents[2] / "docs"
TUTORIAL = (DOCS / "tutorial" / "survival.md").read_text(encoding="utf-8")


def blocks(text: str, kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def test_the_tutorial_runs_as_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("QUIETSUM_WORKSPACE", raising=False)
    (script,), (questions,) = blocks(TUTORIAL, "python"), blocks(TUTORIAL, "toml")
    Path("hospitals.py").write_text(script)
    Path("questions.toml").write_text(questions)
    said = {}
    for command in (line for block in blocks(TUTORIAL, "sh") for line in block.splitlines()):
        program, *words = command.split()
        if program == "python":
            subprocess.run([sys.executable, *words], check=True)
            continue
        result = CliRunner().invoke(app, words)
        assert result.exit_code == 0, result.output
        said[command] = result.output
    assert "test: χ²" in said["quietsum ask questions.toml --plot curve.svg"]
    assert Path("curve.svg").read_text().count("<polyline") == 2
    (answers,) = Path("quietsum-workspace/runs").glob("*/answers.json")
    assert json.loads(answers.read_text())["privacy"]["epsilon"] == 1.0
    assert "25.0 %" in said["quietsum ledger show"]


def test_what_nobody_may_ask_is_refused_in_the_tutorials_words(tmp_path: Path) -> None:
    path = tmp_path / "questions.toml"
    (text,) = blocks(TUTORIAL, "toml")
    path.write_text(text.replace('kind = "count"', 'kind = "count"\nwhere = { patient_id = "p17" }'))
    result = CliRunner().invoke(app, ["ask", str(path)])
    (told,) = blocks(TUTORIAL, "text")
    assert result.exit_code == 2
    assert told.split(": ", 2)[2].strip(" …\n") in " ".join(result.output.split())


def test_the_tutorials_p_without_privacy_is_that_of_lifelines() -> None:
    study = load_gbsg2()
    treated = study["horTh"] == "yes"
    found = logrank_test(
        study["time"][treated], study["time"][~treated], study["cens"][treated], study["cens"][~treated]
    )
    assert f"p = {found.p_value:.3f}" in TUTORIAL


def test_the_reference_states_every_key_and_every_kind() -> None:
    """Its tables are written by: python -m quietsum.analytics reference"""
    text = (DOCS / "reference" / "questions-toml.md").read_text(encoding="utf-8")
    assert text.endswith(page(QuestionFile))
    assert all(f"| `{key}` |" in text for key in question_keys())
    assert all(f"| `{kind}` |" in text for kind in ASKED)
    (example,) = blocks(text, "toml")
    assert len(parse_questions(example).questions) == 2


def test_the_policy_of_the_how_to_is_one() -> None:
    fragment, people = blocks((DOCS / "how-to" / "ask.md").read_text(encoding="utf-8"), "toml")
    (tutorial,) = blocks(TUTORIAL, "toml")
    begin, end = tutorial.index("[privacy]"), tutorial.index("[[sites]]")
    assert parse_questions(tutorial[:begin] + people + tutorial[end:]).privacy.person is not None
    whole = first_policy(path="p", name="Bern", address="h:1", dataset="visits", size=1000, task="heart")
    found = parse_policy(whole[: whole.index("[[tasks]]")] + fragment, "policy.toml")
    assert found.questions is not None and found.questions.day == 1.0 and not found.tasks
