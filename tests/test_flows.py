"""The pictures of a round and of a charge are what the flows say, and say it in words as well."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parents[1]


def load(path: Path) -> ModuleType:
    specification = importlib.util.spec_from_file_location(path.stem, path)
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules[path.stem] = module
    specification.loader.exec_module(module)
    return module


flows = load(ROOT / "docs" / "flows.py")


def test_the_pictures_are_what_the_flows_say() -> None:
    assert flows.main(["--check"]) == 0, "run python docs/flows.py"


def test_the_control_an_altered_picture_is_noticed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert flows.main(["--check"], tmp_path) == 1
    assert flows.main([], tmp_path) == 0 == flows.main(["--check"], tmp_path)
    path = tmp_path / "round.svg"
    path.write_text(path.read_text(encoding="utf-8").replace("never less", "or less"), encoding="utf-8")
    assert flows.main(["--check"], tmp_path) == 1 and "round.svg" in capsys.readouterr().err


@pytest.mark.parametrize("flow", flows.FLOWS, ids=lambda flow: flow.name)
def test_a_picture_is_well_formed_reads_in_both_schemes_and_is_described(flow: object) -> None:
    text = flows.svg(flow)
    root = ElementTree.fromstring(text)
    space = "{http://www.w3.org/2000/svg}"
    about = root.findtext(f"{space}desc") or ""
    words = [element.text for element in root.iter(f"{space}text")]
    assert "prefers-color-scheme: dark" in text and "http" not in text.replace("http://www.w3.org/2000/svg", "")
    for step in flow.steps:  # type: ignore[attr-defined]
        assert step.text in about and step.text in words
    for box in root.iter(f"{space}rect"):  # no text leaves the picture
        left, width = float(box.get("x", 0)), float(box.get("width", 0))
        assert left >= 0 and left + width <= flows.WIDTH


@pytest.mark.parametrize("flow", flows.FLOWS, ids=lambda flow: flow.name)
def test_the_words_on_an_arrow_fit_between_its_ends(flow: object) -> None:
    lanes = flow.lanes  # type: ignore[attr-defined]
    gap = (flows.WIDTH - 2 * flows.SIDE) / (len(lanes) - 1)
    for step in flow.steps:  # type: ignore[attr-defined]
        if step.source != step.target:
            room = gap * abs(lanes.index(step.source) - lanes.index(step.target)) - 30
            assert 6.6 * len(step.text) < room, step.text


def test_the_page_shows_both_and_names_their_steps_by_number() -> None:
    page = (ROOT / "docs" / "explanation" / "flows.md").read_text(encoding="utf-8")
    for flow in flows.FLOWS:
        assert f"../_static/{flow.name}.svg" in page
    assert max(map(int, re.findall(r"\((\d+)\)", page))) <= max(len(flow.steps) for flow in flows.FLOWS)
