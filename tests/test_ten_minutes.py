"""The tutorial runs as it stands, in its order, and a reader has at its end what it says."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from scenes import quietsum

PAGE = (Path(__file__).parents[1] / "docs" / "tutorial" / "ten-minutes.md").read_text(encoding="utf-8")


@pytest.mark.usefixtures("empty_folder")
def test_the_commands_of_the_tutorial_lead_from_nothing_to_predictions() -> None:
    lines = [line for block in re.findall(r"^```sh\n(.*?)^```", PAGE, re.M | re.S) for line in block.splitlines()]
    assert len(lines) > 10
    said = {}
    for line in lines:
        program, *words = shlex.split(line)
        if program == "quietsum":
            said[line] = quietsum(*words).stdout
        elif program == "echo":
            subprocess.run(["sh", "-c", line], check=True)
        else:
            assert line == "pip install quietsum"
    assert "Nothing here stops a run." in said["quietsum doctor"]
    assert "≤ ε ≤" in said["quietsum spend --noise-multiplier 1.1 --sample-rate 0.01 --steps 2000 --delta 1e-5"]
    assert "Nothing was spent." in said["quietsum plan run.toml"]
    assert Path("report.html").is_file()
    assert len(Path("out.csv").read_text(encoding="utf-8").splitlines()) == 1 + 2
    plan = Path("run.toml").read_text(encoding="utf-8")
    assert "rounds = 20" in plan and "epsilon = 1.0" in plan, "the page says what the plan holds"
