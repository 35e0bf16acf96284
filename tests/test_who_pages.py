"""The page on who is who: its words are explained, and the keys, files and commands that it names exist."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import typer

from quietsum.cli.app import app
from quietsum.glossary import look_up
from quietsum.party.policy_file import policy_keys
from quietsum.plan import PartyFacts, load_plan

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "explanation" / "who-is-who.md").read_text(encoding="utf-8")
WORDS = ("party", "site", "node", "client", "account", "holder", "coordinator")


def rows(page: str) -> dict[str, str]:
    return dict(re.findall(r"^\| \*\*(\w+)\*\* \|.*\|(.*)\|$", page, flags=re.MULTILINE))


@pytest.mark.parametrize("word", [*WORDS, "cohort"])
def test_a_word_of_the_page_has_a_paragraph_and_an_entry_of_its_own(word: str) -> None:
    assert f"\n## {word.capitalize()}\n" in PAGE
    assert look_up(word).name == word
    assert set(rows(PAGE)) == set(WORDS)


def commands(text: str) -> list[list[str]]:
    """The words of the commands in ``text``; ``quietsum party serve`, `party check`` names two."""
    quoted = re.findall(r"`([^`]+)`", text)
    groups = {words.split()[1] for words in quoted if words.startswith("quietsum ")}
    return [
        words.removeprefix("quietsum ").split()
        for words in quoted
        if words.startswith("quietsum ") or (words.split()[0] in groups and " " in words)
    ]


def check(words: list[str]) -> None:
    command: Any = typer.main.get_command(app)
    while words and hasattr(command, "commands"):
        assert words[0] in command.commands, words
        command, words = command.commands[words[0]], words[1:]
    assert not words or words[0] in {option for one in command.params for option in one.opts}, words


def test_the_commands_of_the_table_exist() -> None:
    found = [words for where in rows(PAGE).values() for words in commands(where)]
    assert ["party", "serve"] in found and ["keys", "make", "--party"] in found and ["party", "status"] in found
    for words in found:
        check(words)


@pytest.mark.parametrize(
    "wrong", ["`quietsum party sreve`", "`quietsum keys node`, `keys mkae`", "`quietsum run --no`"]
)
def test_a_command_that_is_none_would_be_found(wrong: str) -> None:
    with pytest.raises(AssertionError):
        for words in commands(wrong):
            check(words)


def test_the_keys_of_the_table_exist_and_books_are_kept_under_the_holders_name() -> None:
    assert "coordinator.node_key" in policy_keys() and "`coordinator.node_key`" in PAGE
    plan = load_plan('federation = { parties = ["one"], minimum_parties = 1, rounds = 1 }\nprivacy.style = "none"')
    assert plan.federation.parties == ("one",) and "`federation.parties`, `minimum_parties`" in PAGE
    made = PartyFacts(name="party-1", dataset="cards", size=10, holder="cards")
    assert made.account == "cards" and PartyFacts(name="basel", dataset="heart", size=10).account == "basel"
