"""Outcomes: an attack succeeds, was not seen, or had too few trials, and its power is what it says."""

from __future__ import annotations

import json
import math
import stat
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from quietsum.audit import AttackOutcome, Success, write_outcomes
from quietsum.audit.outcome import find_least_count, find_least_success
from quietsum.errors import InvalidParameter


def outcome(successes: int, trials: int, chance: float = 0.2) -> AttackOutcome:
    return AttackOutcome(attack="guess", on="things", successes=successes, trials=trials, chance=chance)


def test_success_is_what_the_interval_says() -> None:
    assert outcome(40, 100).conclusion is Success.SUCCEEDS
    assert outcome(25, 100).conclusion is Success.NOT_SEEN and "would have been" in outcome(25, 100).sentence
    assert outcome(1, 4).conclusion is Success.INCONCLUSIVE and "too few trials" in outcome(1, 4).sentence
    assert outcome(0, 2, 0.5).smallest is None and outcome(2, 2, 0.5).conclusion is Success.INCONCLUSIVE
    low, high = outcome(40, 100).interval
    assert stats.binom.sf(39, 100, low) == pytest.approx(0.025) and stats.binom.cdf(40, 100, high) == pytest.approx(
        0.025
    )


@pytest.mark.parametrize(("trials", "chance"), [(10, 0.1), (100, 0.5), (1000, 0.01), (4, 0.3)])
def test_the_least_count_and_the_least_chance_are_the_least(trials: int, chance: float) -> None:
    count = find_least_count(trials, chance, level=0.025)
    assert stats.binom.sf(count - 1, trials, chance) <= 0.025 < stats.binom.sf(count - 2, trials, chance)
    smallest = find_least_success(count, trials)
    assert smallest is not None and stats.binom.sf(count - 1, trials, smallest) == pytest.approx(0.9)


def test_guessing_succeeds_once_in_forty_at_most() -> None:
    counts = np.random.default_rng(0).binomial(60, 0.2, 4000)
    seen = sum(outcome(int(count), 60).conclusion is Success.SUCCEEDS for count in counts)
    assert seen <= 4000 * 0.025 + 4 * math.sqrt(4000 * 0.025)


@pytest.mark.parametrize("change", [
    {"trials": 0}, {"successes": 5, "trials": 4}, {"chance": 0.0}, {"chance": 1.0}, {"chance": math.nan},
    {"successes": -1}, {"confidence": 1.0},
])  # fmt: skip
def test_what_is_no_outcome_is_refused(change: dict[str, float]) -> None:
    values = {"attack": "x", "on": "y", "successes": 1, "trials": 4, "chance": 0.5, **change}
    with pytest.raises(InvalidParameter):
        AttackOutcome(**values)  # type: ignore[arg-type]


def test_results_are_for_their_owner_alone_and_say_so(tmp_path: Path) -> None:
    path = tmp_path / "attacks.json"
    write_outcomes(path, {"outcomes": [outcome(40, 100).to_dict()]})
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    values = json.loads(path.read_text(encoding="utf-8"))
    assert "stays with their holder" in values["stays"] and values["outcomes"][0]["conclusion"] == "succeeds"
