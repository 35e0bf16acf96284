"""The page on a table of one's own: its commands run as they stand there, on files like those that it describes."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import numpy as np
import pytest

from scenes import invoke

PAGE = Path(__file__).parents[1] / "docs" / "how-to" / "your-own-table.md"
CLINICS = ("north", "south", "east", "west", "centre")


def commands() -> list[list[str]]:
    """The page's commands, in their order."""
    blocks = re.findall(r"^```sh\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    return [shlex.split(line)[1:] for line in lines if line.startswith("quietsum ")]


def write_files() -> None:
    draw = np.random.default_rng(0)
    for name, rows in (("visits.csv", 1000), ("volunteers.csv", 300)):
        lines = ["patient,clinic,age,pressure,ward,back"]
        for place in range(rows):
            back = int(draw.integers(0, 2))
            age, pressure = draw.normal(50 + 15 * back, 10), draw.normal(125 + 20 * back, 15)
            clinic, ward = CLINICS[place // 2 % 5], "abc"[place % 3]
            lines.append(f"p{place // 2:04},{clinic},{age:.0f},{pressure:.0f},{ward},{('no', 'yes')[back]}")
        Path(name).write_text("\n".join([*lines, ""]))
    Path("new-visits.csv").write_text("age,pressure,ward\n75,160,a\n28,101,c\n")
    for kind in ("ill", "well"):
        (Path("scans") / kind).mkdir(parents=True)
    np.savez("moves.npz", landmarks=np.zeros((4, 8, 33, 3)), labels=np.array(["rest", "wave"] * 2))


@pytest.mark.usefixtures("empty_folder")
def test_the_commands_of_the_page_lead_from_a_file_to_a_report() -> None:
    write_files()
    told = [" ".join(command[:2]) for command in commands()]
    assert told == ["new run.toml", "new run.toml", "plan run.toml", "run run.toml", "predict latest", "new scans.toml",
                    "new moves.toml"]  # fmt: skip
    for place, command in enumerate(commands()):
        result = invoke(*command)
        assert result.exit_code == 0, f"{command}: {result.output}"
        if place == 0:  # its plan has blanks
            assert invoke("plan", "run.toml").exit_code == 2
    assert Path("out.csv").read_text().splitlines()[0] == "row,prediction,p_no,p_yes"
    assert list(Path("quietsum-workspace/runs").glob("*/report.html"))
