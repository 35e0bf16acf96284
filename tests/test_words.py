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
