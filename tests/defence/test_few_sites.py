"""Four and ten sites at ε 8 per record, as benchmarks/few_sites.py measures them: floors, not digits."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="module")
def bench() -> Iterator[Any]:
    """The benchmark, as a module."""
    pytest.importorskip("sklearn")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QUIETSUM_TEST_SEEDS", "1")
        patch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
        yield importlib.import_module("few_sites")
    for name in ("few_sites", "robustness"):
        sys.modules.pop(name, None)


def accuracy(bench: Any, rule: str, attack: str, parties: int, attackers: int, task: str = "digits") -> float:
    cell = bench.Cell(
        task=task, parties=parties, attackers=attackers, rule=rule, attack=attack, noise=True, seed=0
    )  # fmt: skip
    return float(bench.train(cell)[1])


@pytest.mark.parametrize(("parties", "attackers"), [(4, 1), (4, 2), (4, 3)])
def test_trust_learns_under_noise_whatever_the_number_of_attackers(bench: Any, parties: int, attackers: int) -> None:
    assert accuracy(bench, "trust", "IPM 5", parties, attackers) > 0.8
    assert accuracy(bench, "mean", "IPM 5", parties, attackers) < 0.2  # the control


@pytest.mark.slow
@pytest.mark.parametrize("attack", ["sign flip", "LIE 1"])
@pytest.mark.parametrize("attackers", [2, 6])
@pytest.mark.some(2)
def test_so_it_does_with_ten_sites(bench: Any, attackers: int, attack: str) -> None:
    assert accuracy(bench, "trust", attack, 10, attackers) > 0.75


def test_made_up_patients_are_enough_for_heart(bench: Any) -> None:
    assert accuracy(bench, "trust made-up", "label flip", 4, 2, "heart") > 0.75
    assert accuracy(bench, "mean", "label flip", 4, 2, "heart") < 0.7  # the control
