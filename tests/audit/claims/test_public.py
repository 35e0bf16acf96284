"""The table of public configurations is what the program makes of the files, and each file names its source."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from quietsum.audit import Ruling

ROOT = Path(__file__).parents[3]


def benchmark() -> ModuleType:
    spec = importlib.util.spec_from_file_location("claims_of_others", ROOT / "benchmarks" / "claims.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


CLAIMS = benchmark()
CHECKED = {path.stem: claim for path, claim in CLAIMS.checked()}


def test_at_least_ten_configurations_stand_there_each_with_its_source() -> None:
    assert len(CHECKED) >= 10
    for name, claim in CHECKED.items():
        assert claim.file.title and claim.file.source, name


def test_the_page_is_up_to_date() -> None:
    assert CLAIMS.PAGE.read_text(encoding="utf-8") == CLAIMS.page_with(CLAIMS.table())


def test_the_control_another_figure_would_be_seen() -> None:
    page = CLAIMS.PAGE.read_text(encoding="utf-8")
    assert CLAIMS.page_with(CLAIMS.table().replace("2.92", "2.93")) != page


def test_they_are_told_apart() -> None:
    """Some hold, some do not, some hang on an assumption: a checker that always says the same would be no use."""
    answers = [line.ruling for claim in CHECKED.values() for line in claim.lines]
    assert set(answers) == set(Ruling)


@pytest.mark.parametrize("name", CHECKED)
def test_dp_accounting_agrees_where_it_knows_the_events(name: str) -> None:
    pytest.importorskip("dp_accounting")
    for line in CHECKED[name].lines:
        other = CLAIMS.theirs(line)
        if other is not None:
            assert line.epsilon == pytest.approx(other, rel=0.01, abs=0.02)
            assert line.epsilon_lower <= other + 1e-6
