"""The page for people of older systems: what it names is there, and every name that can be imported stands on it."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from quietsum import compat
from quietsum.plan import Plan, keys_of
from scenes import quietsum

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "coming-from.md").read_text(encoding="utf-8")
CODE = re.findall(r"`([^`]+)`", re.sub(r"\{\w+\}`[^`]+`", "", PAGE))
NAMES = sorted({word for word in CODE if re.fullmatch(r"quietsum(\.\w+)+", word)})
COMMANDS = sorted({" ".join(word.split()[1:3]) for word in CODE if re.match(r"quietsum [a-z]", word)})
KEYS = sorted({word for word in CODE if re.fullmatch(r"(privacy|aggregation|federation|training)\.[a-z_.]+", word)})
TORCH = {"make_private", "PrivateTrainer", "PrivacyConfig"}


@pytest.mark.parametrize("name", NAMES)
def test_a_name_on_the_page_is_there(name: str) -> None:
    module, _, last = name.rpartition(".")
    assert hasattr(importlib.import_module(module), last), name


@pytest.mark.parametrize("words", COMMANDS)
def test_a_command_on_the_page_is_there(words: str) -> None:
    command = [word for word in words.split() if word.islower() and not word.startswith("-")]
    assert quietsum(*command, "--help").exit_code == 0 if command[0] != "explain" else quietsum(*command)


@pytest.mark.parametrize("key", KEYS)
def test_a_key_on_the_page_is_one_of_a_plan(key: str) -> None:
    assert any(known == key or known.startswith(f"{key}.") for known in keys_of(Plan))


def test_every_name_of_the_older_systems_stands_on_the_page() -> None:
    elsewhere = {"TrainingConfig", "ImportedHistory"}  # what two of them return
    missing = [name for name in compat.__all__ if name not in PAGE and name not in elsewhere]
    assert not missing


def test_a_page_that_is_linked_is_there() -> None:
    pages = [ROOT / "docs" / f"{target}.md" for target in re.findall(r"\{doc\}`([^`]+)`", PAGE)]
    assert len(pages) > 10 and all(page.is_file() for page in pages), pages


def test_the_control_something_was_found() -> None:
    assert len(NAMES) > 25 and len(COMMANDS) > 7 and len(KEYS) > 6
