"""Words of the pages, messages and help: what a reader must not have to guess at."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
UNSAID = re.compile(r"\b(if|where|while) unsaid\b|\bunsaid,|\(unsaid\b", re.IGNORECASE)
"""How a key that was left out is not to be spoken of; "if omitted" is plain."""


@pytest.mark.parametrize("folder", ["src", "docs"])
def test_a_key_that_is_left_out_is_omitted_and_not_unsaid(folder: str) -> None:
    kinds = {".py", ".md", ".toml", ".html", ".js", ".json"}
    files = [path for path in sorted((ROOT / folder).rglob("*")) if path.suffix in kinds and path.is_file()]
    assert len(files) > 50
    found = [str(path.relative_to(ROOT)) for path in files if UNSAID.search(path.read_text(encoding="utf-8"))]
    assert not found


@pytest.mark.parametrize("text", ["The name; if unsaid, nobody logs in.", "Unsaid, the first one."])
def test_the_guard_finds_it(text: str) -> None:
    assert UNSAID.search(text)


VAGUE = re.compile(r"\b(nobody|whoever|whatever|told|unsaid)\b", re.IGNORECASE)
"""Words behind which a sentence hides who does what; the pages name the subject."""


def vague(text: str) -> list[str]:
    """The words in running text and tables. What a command prints stands in a fence, and is held by its own test."""
    return VAGUE.findall(re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL))


@pytest.mark.parametrize("folder", [".", "docs", "docs/explanation", "docs/how-to", "docs/tutorial", "examples"])
def test_sentences_of_the_pages_name_their_subject(folder: str) -> None:
    pages = sorted((ROOT / folder).glob("*.md"))
    pages = [page for page in pages if page.name != "CHANGELOG.md"]
    text = {page.name: page.read_text(encoding="utf-8") for page in pages}
    if "architecture.md" in text:  # its table quotes the source
        text["architecture.md"] = re.sub(
            r"<!-- rooms -->.*<!-- /rooms -->", "", text["architecture.md"], flags=re.DOTALL
        )
    assert pages and {name: found for name, page in text.items() if (found := vague(page))} == {}


def test_the_guard_finds_a_vague_word_outside_of_fences_only() -> None:
    assert vague("Nobody hears of it.\n```\nwhatever it prints\n```\nYou are told.\n") == ["Nobody", "told"]
