"""The reference that is made from code: each command, option and name at a door says what it is, and has its page."""

from __future__ import annotations

import importlib.util
import re
import sys
import types
from pathlib import Path
from types import ModuleType

import pytest

from scenes import quietsum

ROOT = Path(__file__).parents[1]


def load(path: Path) -> ModuleType:
    specification = importlib.util.spec_from_file_location(f"docs_{path.stem}", path)
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules[module.__name__] = module  # where dataclasses look for their annotations
    specification.loader.exec_module(module)
    return module


for needed in ("torch", "sklearn"):  # doors show trainers, too
    pytest.importorskip(needed)
generate = load(ROOT / "docs" / "generate.py")
COMMANDS = generate.list_commands()
ROOMS = generate.list_rooms()


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_a_command_says_what_it_does_and_what_each_word_is_for(command: object) -> None:
    found = command
    assert found.about and found.panel  # type: ignore[attr-defined]
    lacking = [one.names for one in found.parameters if not one.about]  # type: ignore[attr-defined]
    assert lacking == []


@pytest.mark.parametrize("room", ROOMS)
def test_every_name_at_a_door_has_a_sentence_of_its_own(room: str) -> None:
    assert [one.name for one in ROOMS[room] if not one.about] == [], "give each a docstring, or a string below it"


def test_the_rooms_and_their_inner_doors_are_all_seen() -> None:
    rooms = {path.parent.name for path in (ROOT / "src" / "quietsum").glob("*/__init__.py")} - {"__pycache__"}
    assert rooms <= set(ROOMS), rooms - set(ROOMS)
    assert {"defence.detection", "mechanisms.local", "aggregation.robust"} <= set(ROOMS)
    assert sum(map(len, ROOMS.values())) > 800 and len(COMMANDS) > 40


def test_the_control_a_name_without_a_docstring_is_noticed() -> None:
    room = types.ModuleType("room")

    def silent() -> None: ...

    room.silent = silent  # type: ignore[attr-defined]
    assert generate._name(room, "silent").about == ""
    silent.__doc__ = "Says nothing.\n\nAt length."
    assert generate._name(room, "silent").about == "Says nothing."


def test_a_page_holds_what_help_shows(tmp_path: Path) -> None:
    generate.write(tmp_path)
    pages = {path.name for path in (tmp_path / "commands").glob("*.md")}
    assert pages == {f"{command.page}.md" for command in COMMANDS}
    for command in COMMANDS:
        text = (tmp_path / "commands" / f"{command.page}.md").read_text(encoding="utf-8")
        assert text.startswith(f"# {command.name}\n") and f"```text\n{command.usage}\n```" in text
        for one in command.parameters:
            assert all(f"`{name}`" in text for name in one.names)
    assert "and `--resume` goes on" in (tmp_path / "commands" / "run.md").read_text(encoding="utf-8")
    rooms = {path.name for path in (tmp_path / "rooms").glob("*.md")}
    assert rooms == {f"{room.replace('.', '-')}.md" for room in ROOMS}
    assert "| `FedAvg` | params ←" in (tmp_path / "rooms" / "aggregation.md").read_text(encoding="utf-8")


def test_a_second_build_leaves_no_page_of_a_command_that_is_gone(tmp_path: Path) -> None:
    (tmp_path / "commands").mkdir()
    (tmp_path / "commands" / "gone.md").touch()
    generate.write(tmp_path)
    assert not (tmp_path / "commands" / "gone.md").exists()


def test_help_says_what_an_argument_is_for() -> None:
    assert re.search(r"name +\[NAME\] +One of the sets\.", quietsum("datasets", "--help").stdout)


def test_the_build_makes_the_pages_and_the_index_leads_to_them() -> None:
    conf = (ROOT / "docs" / "conf.py").read_text(encoding="utf-8")
    assert "generate.write" in conf and '"builder-inited"' in conf
    for page in ("commands", "rooms"):
        text = (ROOT / "docs" / "reference" / f"{page}.md").read_text(encoding="utf-8")
        assert f"\n{page}/*\n" in text and ":glob:" in text
        assert f"docs/reference/{page}/" in (ROOT / ".gitignore").read_text(encoding="utf-8")
        assert f"reference/{page}\n" in (ROOT / "docs" / "index.md").read_text(encoding="utf-8")


EXIT_CODES = {"0", "1", "2", "3", "4", "5", "6", "130", "141"}


def test_the_page_on_commands_names_every_exit_code_of_our_errors() -> None:
    from quietsum import errors

    codes = {
        str(kind.exit_code) for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, errors.QuietsumError)
    }  # fmt: skip
    text = (ROOT / "docs" / "reference" / "commands.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| (\d+) \|", text, re.MULTILINE)) == EXIT_CODES >= codes
