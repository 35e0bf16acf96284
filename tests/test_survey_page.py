"""The tutorial on an anonymous survey runs as it stands, and its estimates are near the truth that it states."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from quietsum.cli.app import app

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "tutorial" / "anonymous-survey.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)
COMMANDS = [line for language, block in BLOCKS if not language for line in block.splitlines()]


def test_every_command_of_the_page_runs_and_the_truth_lies_near_the_estimates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert sum(command.startswith("quietsum local") for command in COMMANDS) >= 8
    for command in COMMANDS:
        words = shlex.split(command)
        if words[0] == "python":
            made = subprocess.run(
                [sys.executable, str(ROOT / words[1]), *words[2:]], capture_output=True, text=True, check=True
            )
            for line in made.stdout.splitlines():
                assert line in PAGE
            continue
        assert words[0] == "quietsum"
        result = CliRunner().invoke(app, words[1:])
        assert result.exit_code == 0, f"{command}: {result.stderr}"
    for picture in ("smokes.svg", "ages.svg"):
        assert ElementTree.parse(picture).getroot().tag.endswith("svg")
    for name in ("smokes.csv", "age.csv"):
        values = json.loads(CliRunner().invoke(app, ["local", "estimate", name, "--json"]).stdout)
        for one in values["estimates"]:
            stated = re.search(rf"{one['label']}(?: age)? (\d+\.\d+)", PAGE)
            assert stated is not None
            assert abs(one["value"] - float(stated[1])) < 6 * one["standard_error"]


def test_the_references_table_names_every_protocol_and_every_option() -> None:
    from quietsum.mechanisms.local import NAMES

    page = (ROOT / "docs" / "reference" / "local.md").read_text(encoding="utf-8")
    assert all(f"`{name}`" in page for name in NAMES)
    shown = CliRunner().invoke(app, ["local", "privatize", "--help"]).stdout
    for option in sorted(set(re.findall(r"--[a-z-]+", shown)) - {"--help"}):
        assert option in page, option
