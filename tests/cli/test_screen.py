"""Texts that others choose do nothing to a terminal; and what verify says beside the entries."""

from __future__ import annotations

import ast
import io
import json
import os
import pty
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import quietsum.cli
from ledger.build import sample
from ledger.postgres import server
from quietsum.cli.app import app
from quietsum.cli.shared.screen import Screen
from quietsum.errors import printable
from quietsum.ledger import Ledger
from quietsum.ledger.chain.keys import key_path
from quietsum.ledger.chain.verify import verify_file
from quietsum.ledger.stores.location import write_url
from quietsum.runs.facts import TaskFacts
from quietsum.runs.folder import Workspace
from scenes import tiny_toml

EVIL = (
    "\x1b]0;title\x07", "\x1b]52;c;aGk=\x1b\\", "\x1b[2J", "\x1b[8m", "\x1b[5;1H", "\x9b2J", "\x07", "\x00", "\r",
    "\x1bc", "\x1b(0", "\x1bPq\x1b\\", "\u202e", "\x1b]8;;http://x\x07",
)  # fmt: skip
TINY = tiny_toml(options='{ public = "made up for a test" }', rounds=1)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("evil", EVIL, ids=repr)
def test_a_text_keeps_its_words_and_nothing_that_a_terminal_obeys(evil: str) -> None:
    assert printable(f"Heart{evil} disease").replace(" ", "") == "Heartdisease"
    pipe = io.StringIO()
    Screen(pipe).write(f"Heart{evil} disease\n")
    assert pipe.getvalue().replace("\r", "") == "Heart disease\n"


def test_an_escape_at_the_end_is_one_too() -> None:
    assert (
        printable("Heart\x1b") == printable("Heart\x1b[") == "Heart" and printable("Zürich, δ = 1") == "Zürich, δ = 1"
    )


def test_a_terminal_gets_colours_and_progress_bars_and_nothing_else() -> None:
    terminal = Terminal()
    ours = "\x1b[1;31mred\x1b[0m\r\x1b[2K\x1b[1A\x1b[?25l\x1b[?25h\n\tend"
    assert Screen(terminal).write(ours) == len(ours)
    assert terminal.getvalue() == ours
    for evil in EVIL[:3]:
        Screen(terminal).write(evil)
    assert terminal.getvalue().removeprefix(ours) in ("", "\x1b[2J")
    pipe = io.StringIO()
    Screen(pipe).write(ours)
    assert "\x1b" not in pipe.getvalue()  # the control: into a file goes none of it


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("QUIETSUM_WORKSPACE", raising=False)
    Path("run.toml").write_text(TINY, encoding="utf-8")
    result = CliRunner().invoke(app, ["run", "run.toml", "--name", "first"])
    assert result.exit_code == 0, result.output
    place = Workspace.at()
    facts = TaskFacts.read(place.runs / "first")
    assert facts is not None
    TaskFacts(title="".join(f"word{evil}" for evil in EVIL), dimension=facts.dimension, parties=facts.parties).write(
        place.runs / "first"
    )
    with Ledger.open(place.ledger) as ledger:
        ledger.declare_public(party="Basel", dataset="heart", reason="".join(f"why{evil}" for evil in EVIL))
    return tmp_path


COMMANDS = (("show", "first"), ("runs",), ("ledger", "show"), ("ledger", "verify"), ("show", "\x1b]0;no\x07"))


@pytest.mark.parametrize("command", COMMANDS, ids=repr)
def test_no_command_passes_an_escape_on(workspace: Path, command: tuple[str, ...]) -> None:
    result = CliRunner().invoke(app, list(command))
    assert result.output and not set("\x1b\x07\x9b\x00\u202e") & set(result.output)


def test_on_a_real_terminal_a_title_is_words(workspace: Path) -> None:
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "PYTHONPATH": str(Path(__file__).parents[1])}
    process = subprocess.Popen(
        [sys.executable, "-m", "quietsum", "show", "first"], stdout=theirs, stderr=theirs, env=environment
    )
    os.close(theirs)
    seen = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        seen += part
    os.close(ours)
    assert process.wait() == 0, seen
    assert b"wordwordword" in seen
    for evil in ("\x1b]", "\x1b[2J", "\x1b[8m", "\x9b", "\x07", "\x1bc", "\x1bP"):
        assert evil.encode() not in seen, evil


# ------------------------------------------------------------------------------------------------- verify


def warned(folder: Path) -> str:
    result = CliRunner().invoke(app, ["ledger", "verify", "--workspace", str(folder)])
    assert result.exit_code == 0, result.output
    values = json.loads(CliRunner().invoke(app, ["ledger", "verify", "--json", "--workspace", str(folder)]).stdout)
    assert bool(values["warnings"]) == ("warning" in result.stdout)
    return " ".join(result.stdout.split())


def test_verify_warns_of_a_key_that_is_missing_or_open_and_of_dropped_triggers(tmp_path: Path) -> None:
    path = sample(tmp_path / "ledger.db")
    assert "warning" not in warned(tmp_path)  # the control
    key = key_path(path)
    for mode in (0o640, 0o604):
        key.chmod(mode)
        assert "can be read by others" in warned(tmp_path)
    key.rename(tmp_path / "elsewhere.key")
    assert "is missing" in warned(tmp_path)
    (tmp_path / "elsewhere.key").rename(key)
    key.chmod(0o600)
    connection = sqlite3.connect(path)
    connection.execute("DROP TRIGGER entries_are_never_changed")
    connection.commit()
    assert "(entries_are_never_changed)" in warned(tmp_path)
    connection.execute(
        "CREATE TRIGGER entries_are_never_changed BEFORE UPDATE ON entries WHEN 0 BEGIN SELECT RAISE(ABORT, 'no'); END"
    )
    connection.commit()
    connection.close()
    assert "(entries_are_never_changed)" in warned(tmp_path)


def test_verify_warns_of_triggers_that_a_server_no_longer_fires(tmp_path: Path) -> None:
    path, address = tmp_path / "ledger.db", server().schema()
    write_url(path, address)
    Ledger.open(path, create=True).close()
    assert verify_file(path).warnings == ()
    schema = address.split("schema=")[1]
    server().sql(f"ALTER TABLE {schema}.entries DISABLE TRIGGER entries_are_never_changed")
    (warning,) = verify_file(path).warnings
    assert "(entries_are_never_changed)" in warning


def _widths_by_hand(source: str) -> list[int]:
    """The lines of a source that fold words at a width that stands there as a number."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("textwrap.fill", "textwrap.wrap"):
            given = [*node.args[1:2], *(one.value for one in node.keywords if one.arg == "width")]
            if not given or any(isinstance(one, ast.Constant) for one in given):
                found.append(node.lineno)
    return found


def test_no_command_folds_its_words_at_a_width_of_its_own() -> None:
    commands = Path(quietsum.cli.__file__).parent
    assert {path.name: lines for path in commands.rglob("*.py") if (lines := _widths_by_hand(path.read_text()))} == {}


def test_the_control_a_width_that_is_typed_or_left_out_is_found() -> None:
    by_hand = "import textwrap\ntextwrap.fill(a, 80)\ntextwrap.wrap(a)\ntextwrap.fill(a, width=9)"
    assert _widths_by_hand(by_hand) == [2, 3, 4]
    assert _widths_by_hand("import textwrap\ntextwrap.fill(a, text_width())") == []
