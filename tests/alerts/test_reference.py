"""The page about alerts.toml says what this version reads, and the how-to's examples are read by it."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

from quietsum.alerts import AlertKind as Kind, AlertSettings
from quietsum.alerts.settings import alert_keys, reference

DOCS = Path(__file__).parents[2] / "docs"
PAGE, HOW_TO = DOCS / "reference" / "alerts-toml.md", DOCS / "how-to" / "alerts.md"


def test_the_reference_states_every_key_with_its_default_and_meaning() -> None:
    """Its tables are written by: python -m quietsum.alerts reference"""
    text = PAGE.read_text(encoding="utf-8")
    assert text.endswith(reference())
    assert sorted(re.findall(r"^\| `([\w.]+)` \|", text, re.MULTILINE)) == sorted(alert_keys())


def test_the_command_prints_the_tables_and_knows_nothing_else() -> None:
    command = [sys.executable, "-m", "quietsum.alerts"]
    done = subprocess.run([*command, "reference"], capture_output=True, check=True)
    assert done.stdout.decode("utf-8") == reference()
    assert subprocess.run([*command, "schema"], capture_output=True, check=False).returncode != 0


def test_the_examples_of_the_how_to_are_settings() -> None:
    blocks = re.findall(r"```toml\n(.*?)```", HOW_TO.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 3
    for block in blocks:
        values = tomllib.loads(block)
        assert AlertSettings.from_dict(values.get("alerts", values), site="alerts" in values) != AlertSettings()


def test_the_how_to_names_every_kind_of_alert() -> None:
    named = set(re.findall(r"^\| `([\w-]+)` \|", HOW_TO.read_text(encoding="utf-8"), re.MULTILINE))
    assert named == {kind.value for kind in Kind} - {"test"}
