"""The first page of the documentation leads to every other page, once."""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"


def faults_of(page: str, pages: set[str]) -> list[str]:
    """What of ``pages`` is not linked, linked twice, or in no list of contents."""
    told, *trees = page.split("```{toctree}")
    linked = re.findall(r"\]\(([^)]+)\.md\)", told)
    listed = {line for tree in trees for line in tree.split("```")[0].splitlines()}
    return [
        *(f"{name} is linked {linked.count(name)} times" for name in sorted(pages) if linked.count(name) != 1),
        *(f"{name} is in no list" for name in sorted(pages - listed)),
        *(f"there is no {name}" for name in linked if name not in pages),
    ]


def pages_of() -> set[str]:
    found = {str(path.relative_to(DOCS).with_suffix("")) for path in DOCS.rglob("*.md")}
    made = ("decisions/", "reference/commands/", "reference/rooms/")
    return {name for name in found if name != "index" and not name.startswith(made)}


def test_every_page_is_linked_once_and_listed() -> None:
    assert faults_of((DOCS / "index.md").read_text(encoding="utf-8"), pages_of()) == []


def test_the_control_a_page_that_is_linked_twice_or_not_at_all_is_found() -> None:
    page = "[a](one.md), [a](one.md), [b](gone.md)\n```{toctree}\none\n```"
    assert faults_of(page, {"one", "two"}) == [
        "one is linked 2 times", "two is linked 0 times", "two is in no list", "there is no gone",
    ]  # fmt: skip
