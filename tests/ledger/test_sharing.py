"""Two coordinators on one PostgreSQL ledger: exactly what the budget has room for, and no entry lost."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from ledger.build import open_run, reserve
from ledger.postgres import GIVEN, server
from quietsum.ledger import Ledger

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "shared_ledger.py"


def run(count: int) -> str:
    """The benchmark, which looks at its own totals and ends with 1 where they do not fit."""
    done = subprocess.run(
        [sys.executable, str(BENCHMARK), "--only", "postgresql", "--reservations", str(count)],
        env={**os.environ, GIVEN: server().base}, capture_output=True, text=True, timeout=500,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_two_coordinators_get_what_the_budget_has_room_for() -> None:
    said = run(400)
    assert "no overspend, no lost entry" in said


@pytest.mark.slow
@pytest.mark.long
def test_ten_thousand_reservations_at_once() -> None:
    said = run(10_000)
    assert "ask for 10,000" in said and "no overspend, no lost entry" in said


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    spec = importlib.util.spec_from_file_location("shared_ledger", BENCHMARK)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_the_totals_are_able_to_fail(benchmark: ModuleType, tmp_path: Path) -> None:
    """The control: too many, too few, an entry that is gone, one that nobody asked for, one counted twice."""
    place = tmp_path / "ledger.db"
    with Ledger.open(place, create=True) as ledger:
        open_run(ledger)
        told = [[receipt.sequence, receipt.head.hash] for receipt in (reserve(ledger), reserve(ledger, round=2))]

    def problems(first: list[list[object]], second: list[list[object]], refused: int = 1, room: int = 2) -> str:
        found = [{"told": first, "refused": refused}, {"told": second, "refused": 0}]
        return "; ".join(benchmark.check(place, found, 3, room))

    assert problems(told[:1], told[1:]) == ""
    assert "has room for 1" in problems(told[:1], told[1:], room=1)
    assert "has room for 3" in problems(told[:1], told[1:], room=3)
    assert "answers to 3" in problems(told[:1], told[1:], refused=0)
    assert "1 entries were lost" in problems(told, [[99, "0" * 64]])
    assert "1 were written unasked" in problems(told[:1], [])
    assert "told of the same entry" in problems(told, told[1:])


def test_the_room_is_what_the_filter_says(benchmark: ModuleType) -> None:
    epsilon = benchmark.lifetime_for(70)
    room = benchmark.room_in(epsilon)
    assert 70 <= room < 80
    assert benchmark.room_in(2 * epsilon) > room
