"""What is written down beside the code has one form: decisions, and the changes of the next release."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DECISIONS = sorted((ROOT / "docs" / "decisions").glob("0*.md"))
PARTS = ["Context", "Choice", "Price"]
KINDS = {"security", "added", "changed", "fixed", "removed"}


def faults_of_decision(text: str, number: int) -> list[str]:
    """What keeps ``text`` from being a decision record of that number."""
    faults = []
    if not re.match(rf"# {number}\. \S", text):
        faults.append(f"its title does not begin with {number}.")
    if re.findall(r"^## (.*)$", text, re.MULTILINE) != PARTS:
        faults.append(f"its parts are not {PARTS}")
    faults += [f"{part} is empty" for part in PARTS if re.search(rf"^## {part}\n+(## |\Z)", text, re.MULTILINE)]
    return faults


@pytest.mark.parametrize("page", DECISIONS, ids=lambda page: page.stem)
def test_a_decision_has_context_choice_and_price(page: Path) -> None:
    assert not faults_of_decision(page.read_text(encoding="utf-8"), int(page.stem[:4]))


def test_no_two_decisions_have_the_same_number() -> None:
    """Gaps may be: numbers are handed out to those who work at the same time."""
    assert twice(DECISIONS) == []


def test_the_control_a_number_that_is_taken_is_found() -> None:
    assert twice([*DECISIONS, DECISIONS[3].with_name(f"{DECISIONS[3].stem[:4]}-another.md")]) == [4]


def twice(pages: Sequence[Path]) -> list[int]:
    counts = Counter(int(page.stem[:4]) for page in pages)
    return [number for number, count in counts.items() if count > 1]


@pytest.mark.parametrize(
    "text",
    [
        "# 8. A title\n\n## Context\n\nA\n\n## Choice\n\nB\n\n## Price\n\nC\n",
        "# 7. A title\n\n## Context\n\nA\n\n## Price\n\nC\n",
        "# 7. A title\n\n## Context\n\nA\n\n## Choice\n\n## Price\n\nC\n",
        "# 7. A title\n\n**Question.** A\n\n**Decision.** B\n",
    ],
)
def test_the_control_another_form_is_a_fault(text: str) -> None:
    assert faults_of_decision(text, 7)


def fragments(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.iterdir()) if path.name != "README.md"]


def test_every_change_says_its_kind_and_is_short() -> None:
    for path in fragments(ROOT / "changelog.d"):
        assert re.fullmatch(rf"\+[a-z0-9-]+\.({'|'.join(sorted(KINDS))})\.md", path.name), path.name
        assert 20 < len(path.read_text(encoding="utf-8")) < 800, path.name


def test_the_next_release_lists_every_change(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "towncrier", "build", "--draft", "--version", "next", "--date", "today"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    listed = " ".join(done.stdout.split())
    assert "## next (today)" in listed
    for path in fragments(ROOT / "changelog.d"):
        assert " ".join(path.read_text(encoding="utf-8").split()[:8]) in listed, path.name
