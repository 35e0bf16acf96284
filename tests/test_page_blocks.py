"""Every code block of the pages is read: Python runs or compiles, TOML has known keys, commands and options exist.

``>>>`` blocks run as doctests. Blocks of Python without a prompt are excerpts: they compile, and what they import from
quietsum is there. Commands are parsed by the command line itself and not run; pages whose commands run as they stand
have tests of their own.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import re
import shlex
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import typer

from quietsum.alerts.settings import alert_keys
from quietsum.analytics.questions import question_keys
from quietsum.audit import ClaimFile, Stated, list_systems
from quietsum.cli.app import app
from quietsum.defence.validation.schema_file import schema_keys
from quietsum.party.policy_file import policy_keys
from quietsum.plan.text.reference import keys as plan_keys

ROOT = Path(__file__).parents[1]
PAGES = sorted([
    *(path for path in (ROOT / "docs").rglob("*.md") if path.parent.name not in ("commands", "rooms")),
    *ROOT.glob("*.md"), *(ROOT / "examples").rglob("*.md"), *(ROOT / "deploy").rglob("*.md"),
])  # fmt: skip
CODE = ("python", "toml", "sh", "bash", "console", "")
"""Languages of what a reader copies; a fence without one holds commands, or what they print."""
OTHER = ("text", "sql", "html", "ini", "dockerfile", "yaml", "{eval-rst}", "{toctree}", "{include}")
ROOTS: Mapping[str, set[str]] = {
    "run.toml": {*plan_keys()},
    "policy.toml": {*policy_keys(), *(f"alerts.{key}" for key in alert_keys())},
    "alerts.toml": {*alert_keys()},
    "questions.toml": {*question_keys()},
    "data.toml": {*schema_keys()},
    "claim.toml": {
        *(one.name for one in dataclasses.fields(ClaimFile)),
        *(f"claim.{one.name}" for one in dataclasses.fields(Stated)),
        *(f"settings.{one.name}" for system in list_systems() for one in dataclasses.fields(system.settings)),
    },
}
FREE = ("options", "rules.chance", "label.shares", "tasks.here", "questions.where")
"""Tables whose keys are names of the user's own: options of a task, scores, classes, columns."""


class Block(NamedTuple):
    """A fenced block: its page, its language and its text."""

    page: str
    language: str
    text: str


def blocks_of(text: str, page: str = "") -> list[Block]:
    found = re.findall(r"^([ >]*)```([^\n`]*)\n(.*?)^\1```[ ]*$", text, re.MULTILINE | re.DOTALL)
    return [Block(page, language.strip(), body) for _, language, body in found]


BLOCKS = [block for path in PAGES for block in blocks_of(path.read_text(encoding="utf-8"), str(path.relative_to(ROOT)))]
ROOT_COMMAND: Any = typer.main.get_command(app)


def named(blocks: list[Block]) -> list[Any]:
    """As parameters, each with its page and its first line."""
    return [pytest.param(one, id=f"{one.page}: {one.text.strip().splitlines()[0][:50]}") for one in blocks]


def test_every_language_is_known_and_something_was_seen() -> None:
    assert {block.language for block in BLOCKS} <= {*CODE, *OTHER}
    count = {kind: sum(block.language == kind for block in BLOCKS) for kind in CODE}
    assert count["python"] > 90 and count["toml"] > 40 and count["sh"] + count["bash"] > 30


# ------------------------------------------------------------------------------------------------- Python


def problems_of_python(text: str) -> list[str]:
    """What is wrong with an excerpt: it does not compile, or imports what is not there."""
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        return [str(error)]
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "quietsum":
            module = importlib.import_module(str(node.module))
            found += [f"{node.module}.{one.name}" for one in node.names if not hasattr(module, one.name)]
    return found


@pytest.mark.parametrize("block", named([one for one in BLOCKS if one.language == "python" and ">>>" not in one.text]))
def test_an_excerpt_compiles_and_imports_what_is_there(block: Block) -> None:
    if "torch" in block.text or "quietsum.learning" in block.text:
        pytest.importorskip("torch")
    assert problems_of_python(block.text) == []


@pytest.mark.parametrize("block", [one for one in BLOCKS if one.language == "python" and ">>>" in one.text])
def test_a_doctest_begins_with_its_prompt_and_ends_with_an_empty_line(block: Block) -> None:
    assert block.text.lstrip().startswith(">>>") and re.search(r"\n *\n$", block.text), block


# ------------------------------------------------------------------------------------------------- TOML


def flatten(values: Mapping[str, Any], before: str = "") -> Iterator[str]:
    """Dotted keys; tables in a list share the names of their keys."""
    for key, value in values.items():
        inner = value if isinstance(value, list) else [value]
        tables = [one for one in inner if isinstance(one, Mapping)]
        if tables:
            for table in tables:
                yield from flatten(table, f"{before}{key}.")
        else:
            yield f"{before}{key}"


def problems_of_toml(text: str) -> list[str]:
    """The keys that no single kind of file knows; of the kind that knows most of them."""
    try:
        stated = list(flatten(tomllib.loads(text)))
    except tomllib.TOMLDecodeError as error:
        return [str(error)]
    unknown = [[key for key in stated if not is_known(key, known)] for known in ROOTS.values()]
    return min(unknown, key=len)


def is_known(key: str, known: set[str]) -> bool:
    """Whether a file knows ``key``; a name in angle brackets stands for any."""
    return any(re.fullmatch(_pattern(one), key) for one in known)


def _pattern(key: str) -> str:
    parts = [r"[^.]+" if part.startswith("<") else re.escape(part) for part in key.split(".")]
    return r"\.".join(parts) + (r"(\..+)?" if key.endswith(FREE) else "")


@pytest.mark.parametrize("block", named([one for one in BLOCKS if one.language == "toml"]))
def test_every_key_of_a_file_is_known(block: Block) -> None:
    assert problems_of_toml(block.text) == []


# ------------------------------------------------------------------------------------------------- commands


def commands_of(text: str) -> list[str]:
    """The lines that call quietsum, continued ones joined, without prompts, comments and what stands behind a pipe."""
    lines = re.sub(r" *\\\n *", " ", text).splitlines()
    found = [re.sub(r"^(\$|sudo -u \w+|\w+=\S+) +", "", line.strip()) for line in lines]
    return [re.split(r" +(?:#|\||>|&&|;|2>)(?: |$)", line)[0] for line in found if line.startswith("quietsum ")]


def problem_with_command(line: str) -> str:
    """Why the command line does not take this; "" if it does. An ellipsis stands for more words."""
    words = shlex.split(line)[1:]
    command, names = ROOT_COMMAND, ["quietsum"]
    while words and hasattr(command, "commands") and not words[0].startswith("-"):
        if words[0] not in command.commands:
            return f"{words[0]} is no command of {' '.join(names)}"
        names.append(words[0])
        command, words = command.commands[words[0]], words[1:]
    if hasattr(command, "commands"):
        return "" if set(words) <= {"--help", "--version", "-h"} else f"{line} names no command"
    if "…" in line or "..." in line:
        options = {name for one in command.params for name in (*one.opts, *one.secondary_opts)} | {"--help"}
        return ", ".join(word for word in words if re.match(r"--?[a-z]", word) and word.split("=")[0] not in options)
    try:
        command.make_context(" ".join(names), list(words))
    except Exception as error:
        return f"{line}: {error}"
    return ""


@pytest.mark.parametrize("block", named([one for one in BLOCKS if one.language in CODE and commands_of(one.text)]))
def test_the_command_line_takes_every_command(block: Block) -> None:
    assert [problem for line in commands_of(block.text) if (problem := problem_with_command(line))] == []


def quoted(text: str) -> list[str]:
    """Commands in running text, as ``quietsum ledger show --run``."""
    plain = re.sub(r"^[ >]*```.*?^[ >]*```", "", text, flags=re.MULTILINE | re.DOTALL)
    return [one for one in re.findall(r"`(quietsum [a-z][^`]*)`", plain.replace("\n", " "))]


def problem_with_quoted(line: str) -> str:
    """Why a command in running text is none: an unknown command or an unknown option. Values may be left out."""
    words = line.split()[1:]
    command: Any = ROOT_COMMAND
    while words and hasattr(command, "commands") and words[0] in command.commands:
        command, words = command.commands[words[0]], words[1:]
    if hasattr(command, "commands") and words and re.fullmatch(r"[a-z-]+", words[0]):
        return f"{words[0]} in {line}"
    options = {name for one in command.params for name in (*one.opts, *one.secondary_opts)} | {"--help", "--version"}
    return ", ".join(word for word in words if word.startswith("--") and word.split("=")[0].rstrip(",.") not in options)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_in_running_text_exist_with_their_options(path: Path) -> None:
    lines = quoted(path.read_text(encoding="utf-8"))
    assert [problem for line in lines if (problem := problem_with_quoted(line))] == []


# ------------------------------------------------------------------------------------------------- controls


def test_the_controls_each_kind_of_mistake_is_found() -> None:
    assert problems_of_python("from quietsum import Gausian\n") == ["quietsum.Gausian"]
    assert problems_of_python("def f(:\n") and not problems_of_python("import quietsum as qs\nqs.run(plan)\n")
    assert problems_of_toml("[federation]\nround = 3\n") == ["federation.round"]
    assert problems_of_toml("[federation\n") and not problems_of_toml("[federation]\nrounds = 3\n")
    for wrong in ("quietsum rnu run.toml", "quietsum run --rezume latest", "quietsum spend --steps many", "quietsum"):
        assert problem_with_command(wrong) or not commands_of(wrong), wrong
    assert not problem_with_command("quietsum run run.toml --name first")
    assert problem_with_command("quietsum train --taks digits …") == "--taks"
    assert problem_with_quoted("quietsum ledger shwo") and problem_with_quoted("quietsum show --jsn") == "--jsn"
    assert not problem_with_quoted("quietsum ledger show --run")
    joined = commands_of("$ quietsum drill d.toml \\\n    --rules mean  # now\nquietsum show | head\nprinted\n")
    assert joined == ["quietsum drill d.toml --rules mean", "quietsum show"]
