"""Correct models are not accused: five kinds on a few seeds here, a hundred in ``benchmarks/selfcheck.py --honest``.

The other side, broken trainers that are accused, is in test_mutants.py.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from quietsum.learning.checks.before_training import while_checking  # noqa: E402
from quietsum.mechanisms.rng import randomness_for_tests  # noqa: E402
from quietsum.selfcheck import one_step, run_selfcheck  # noqa: E402

FIVE = ("MLP", "CNN", "spectral norm", "GPT", "embedding and LSTM")


@pytest.fixture(scope="module")
def models() -> Iterator[Any]:
    """The benchmark's own models, so that its table and these tests speak of the same."""
    path = Path(__file__).parents[2] / "benchmarks" / "selfcheck.py"
    spec = importlib.util.spec_from_file_location("selfcheck_benchmark", path)
    assert spec is not None and spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QUIETSUM_TEST_SEEDS", "1")
        spec.loader.exec_module(found)
        yield found


@pytest.mark.slow
@pytest.mark.parametrize("name", FIVE)
@pytest.mark.long
def test_a_correct_model_is_not_accused(models: Any, name: str) -> None:
    step, model = models.checked(name, 1)
    with while_checking(model):
        reports = [run_selfcheck(step, rng=randomness_for_tests(1001), seconds=0.2)]
    for seed in (2, 3):
        step, model = models.checked(name, seed)
        with while_checking(model):
            reports.append(one_step(step, rng=randomness_for_tests(2000 + seed)))
    assert all(report.passed for report in reports), "\n".join(line for report in reports for line in report.lines())
