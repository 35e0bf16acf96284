"""The table of a trade-off: means, shares kept, and whether more ε ever hurts."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping

import pytest

from quietsum.errors import CorruptState, InvalidParameter, MixedUnits
from quietsum.privacy.guarantee import Guarantee
from quietsum.privacy.units import PrivacyUnit
from quietsum.tradeoff import Outcome, analyze_privacy_utility_tradeoff

SCORES = {
    None: (0.96, 0.97, 0.98),
    1.0: (0.85, 0.87, 0.86),
    8.0: (0.94, 0.95, 0.96),
}

Scores = Mapping[float | None, tuple[float, ...]]


def outcome(
    epsilon: float | None, seed: int, value: float, *, spent: float | None = None, task: str = "digits"
) -> Outcome:
    guarantee = None
    if epsilon is not None:
        guarantee = Guarantee(epsilon=spent or epsilon, delta=1e-5, method="exact")
    return Outcome(
        task=task, epsilon=epsilon, delta=None if epsilon is None else 1e-5, guarantee=guarantee, seed=seed,
        metric="accuracy", value=value, on="445 published rows",
    )  # fmt: skip


def results(scores: Scores = SCORES) -> list[Outcome]:
    return [outcome(epsilon, seed, value) for epsilon, values in scores.items() for seed, value in enumerate(values)]


def test_every_epsilon_has_its_mean_its_cost_and_the_share_that_it_keeps() -> None:
    found = analyze_privacy_utility_tradeoff(results())
    assert found.plain is not None and found.plain.mean == pytest.approx(0.97)
    assert [row.epsilon for row in found.rows] == [1.0, 8.0]
    last = found.rows[-1]
    assert last.mean == pytest.approx(0.95) and last.efficiency == pytest.approx(0.95 / 0.97)
    assert last.difference == pytest.approx(-0.02) and last.guarantee.unit is PrivacyUnit.RECORD
    assert last.difference_interval == pytest.approx((-0.02, -0.02))  # seed by seed the loss is the same
    assert last.efficiency_interval is not None and last.interval is not None
    assert last.efficiency_interval[1] - last.efficiency_interval[0] < last.interval[1] - last.interval[0]


def test_the_order_of_results_does_not_matter() -> None:
    assert analyze_privacy_utility_tradeoff(reversed(results())) == analyze_privacy_utility_tradeoff(results())


def test_the_guarantee_of_a_row_is_the_worst_of_its_runs() -> None:
    some = [outcome(2.0, 0, 0.9, spent=1.5), outcome(2.0, 1, 0.9, spent=1.9)]
    assert analyze_privacy_utility_tradeoff(some).rows[0].guarantee.epsilon == 1.9


def test_more_epsilon_that_scores_worse_beyond_chance_is_not_monotone() -> None:
    worse: Scores = {1.0: (0.950, 0.951, 0.949), 8.0: (0.800, 0.801, 0.799)}
    assert analyze_privacy_utility_tradeoff(results(worse)).monotone is False
    within: Scores = {1.0: (0.90, 0.80, 0.95), 8.0: (0.85, 0.88, 0.86)}
    assert analyze_privacy_utility_tradeoff(results(within)).monotone is True


def test_one_seed_leaves_intervals_and_monotony_open() -> None:
    found = analyze_privacy_utility_tradeoff(results({None: (0.9,), 1.0: (0.8,), 2.0: (0.7,)}))
    assert found.monotone is None and found.rows[0].interval is None and found.rows[0].efficiency_interval is None


def test_without_plain_runs_nothing_is_said_about_efficiency() -> None:
    row = analyze_privacy_utility_tradeoff(results({1.0: (0.8, 0.9)})).rows[0]
    assert row.efficiency is None and row.difference is None and row.efficiency_interval is None


def test_it_speaks_json() -> None:
    found = analyze_privacy_utility_tradeoff(results())
    assert json.loads(json.dumps(found.to_dict()))["rows"][0]["guarantee"]["unit"] == "record"


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ([], "holds no outcomes"),
        ([0.9, 0.8], "holds no outcomes"),
        (results({None: (0.9, 0.9)}), "has no private run"),
        ([*results(), outcome(1.0, 0, 0.9)], "comes twice"),
        ([*results(), outcome(4.0, 0, 0.9)], "do not pair"),
        ([*results(), outcome(1.0, 3, 0.9, task="mnist")], "in one table"),
    ],
)
def test_results_that_cannot_be_compared_are_refused(bad: list[Outcome], said: str) -> None:
    with pytest.raises(InvalidParameter, match=said):
        analyze_privacy_utility_tradeoff(bad)


def test_guarantees_of_different_units_are_not_put_into_one_row() -> None:
    one, two = outcome(1.0, 0, 0.9), outcome(1.0, 1, 0.9)
    assert two.guarantee is not None
    other = dataclasses.replace(two, guarantee=dataclasses.replace(two.guarantee, unit=PrivacyUnit.CLIENT))
    with pytest.raises(MixedUnits, match="different units"):
        analyze_privacy_utility_tradeoff([one, other])


# ---------------------------------------------------------------------------------------------- outcomes


@pytest.mark.parametrize("epsilon", [None, 2.0])
def test_an_outcome_survives_json(epsilon: float | None) -> None:
    before = outcome(epsilon, 3, 0.91)
    assert Outcome.from_dict(json.loads(json.dumps(before.to_dict()))) == before


@pytest.mark.parametrize(
    "changed",
    [
        {"value": math.nan}, {"value": "high"}, {"seed": -1}, {"on": " "}, {"metric": ""}, {"epsilon": -1.0},
        {"epsilon": None}, {"delta": 0.0}, {"guarantee": None}, {"epsilon": 0.5}, {"delta": 1e-9},
    ],
)  # fmt: skip
def test_an_outcome_that_claims_what_it_cannot_know_is_refused(changed: dict[str, object]) -> None:
    with pytest.raises(InvalidParameter):
        dataclasses.replace(outcome(1.0, 0, 0.9), **changed)  # type: ignore[arg-type]


@pytest.mark.parametrize("bad", [{}, [], {**outcome(1.0, 0, 0.9).to_dict(), "extra": 1}])
def test_what_is_no_outcome_is_not_read(bad: object) -> None:
    with pytest.raises(CorruptState):
        Outcome.from_dict(bad)  # type: ignore[arg-type]
