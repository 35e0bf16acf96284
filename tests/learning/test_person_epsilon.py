"""Noise calibrated to what a person pays, and an ε that promises nothing says so."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

from quietsum.errors import InvalidParameter, PlanRefused
from quietsum.learning.config import PrivacyConfig, TrainingSchedule, plan_training
from quietsum.learning.schedules import Growing
from quietsum.learning.spending import event_guarantee, person_guarantee
from quietsum.learning.trainer import PrivateTrainer
from quietsum.privacy import (
    Gaussian,
    Guarantee,
    Neighbours,
    PoissonSampled,
    Repeated,
    attacker_advantage,
    explain_no_promise,
)

SIZE = 400


def plan(size: int = SIZE, **values: Any) -> TrainingSchedule:
    asked = {"delta": 1e-4, "epochs": 2, "batch_size": 50, "public_size": SIZE, "noise": "fast", **values}
    return plan_training(PrivacyConfig(**asked), size=size)


def by_halving(target: float, most: int) -> float:
    """The noise by a naive search over the price of a group."""
    low, high = 0.2, 50.0
    for _ in range(30):
        middle = math.sqrt(low * high)
        event = Repeated(times=16, event=PoissonSampled(rate=0.125, event=Gaussian(noise_multiplier=middle)))
        fits = event_guarantee(event, size=most, delta=1e-4).epsilon <= target
        low, high = (low, middle) if fits else (middle, high)
    return high


@pytest.mark.parametrize(("target", "most"), [(4.0, 3), (8.0, 1)])
def test_the_noise_is_the_smallest_with_which_a_person_pays_no_more(target: float, most: int) -> None:
    found = plan(person_epsilon=target, max_records=most)
    assert found.stages[0].noise_multiplier == pytest.approx(by_halving(target, most), rel=2e-3)
    assert 0.99 * target < person_guarantee(found, size=most).epsilon <= target
    alike = plan(noise_multiplier=found.stages[0].noise_multiplier * 0.97, max_records=most)
    assert person_guarantee(alike, size=most).epsilon > target  # less noise would not do


@pytest.mark.parametrize("values", [
    {"noise": "secure"}, {"schedule": Growing(noise=1.5)}, {"privacy_accounting": "rdp"},
    {"neighbours": Neighbours.ZERO_OUT},
])  # fmt: skip
def test_schedules_accountants_and_relations_keep_the_promise(values: dict[str, Any]) -> None:
    found = plan(person_epsilon=5.0, max_records=2, **values)
    assert 4.9 < person_guarantee(found, size=2).epsilon <= 5.0


def test_a_trainer_states_the_person_s_epsilon_beside_the_record_s() -> None:
    config = PrivacyConfig(person_epsilon=4.0, max_records=4, epochs=1, batch_size=50, delta=1e-4, noise="fast")
    trainer = PrivateTrainer(nn.Linear(4, 2), config, selfcheck=False)
    people = [row // 8 for row in range(SIZE)]
    trainer.train(torch.randn(SIZE, 4), torch.arange(SIZE) % 2, people=people)
    whole, used = trainer.person_guarantee(), trainer.plan
    assert whole is not None and used is not None and 3.9 < whole.epsilon <= 4.0
    assert trainer.guarantee().epsilon < whole.epsilon
    assert used.size == SIZE // 2  # the records that max_records keeps


@pytest.mark.parametrize(("values", "told"), [
    ({"person_epsilon": 4.0}, "max_records = None is missing beside person_epsilon"),
    ({"person_epsilon": 4.0, "max_records": 2, "epsilon": 1.0}, "stands beside epsilon = 1"),
    ({"person_epsilon": 4.0, "max_records": 2, "noise_multiplier": 1.0}, "stands beside noise_multiplier = 1"),
    ({"person_epsilon": -1.0, "max_records": 2}, "must be greater than 0"),
])  # fmt: skip
def test_what_contradicts_it_is_refused(values: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidParameter, match=told):
        PrivacyConfig(**values)


def test_an_epsilon_out_of_reach_is_refused_with_one_that_is() -> None:
    with pytest.raises(PlanRefused, match=r"per person of at most 20 records is out of reach"):
        plan(person_epsilon=0.01, max_records=20)


# ----------------------------------------------------------------------------------------------- no promise at all


@pytest.mark.parametrize("delta", [1e-3, 1e-5, 1e-8])
def test_the_line_is_where_an_attacker_errs_as_rarely_as_the_promise_fails(delta: float) -> None:
    line = math.log((1 - delta) / delta - 1)
    below, above = (Guarantee(epsilon=line + side, delta=delta, method="test") for side in (-0.01, 0.01))
    assert explain_no_promise(below) == "" and "means nothing" in explain_no_promise(above)
    doubts = [(1 - attacker_advantage(guarantee)) / 2 for guarantee in (below, above)]
    assert doubts[0] > delta * (1 - 1e-6) and doubts[1] < delta * (1 + 1e-6)


def test_no_protection_and_pure_guarantees_have_a_line_too() -> None:
    assert explain_no_promise(Guarantee(epsilon=math.inf, delta=1e-5, method="none"))
    assert explain_no_promise(Guarantee(epsilon=30.0, delta=0.0, method="pure"))
    assert not explain_no_promise(Guarantee(epsilon=15.0, delta=0.0, method="pure"))


def test_a_person_s_and_a_record_s_empty_epsilon_say_so() -> None:
    found = plan(epsilon=8.0, max_records=20)
    whole = person_guarantee(found, size=20)
    assert whole.epsilon > 50 and "per person (up to 20 records) means nothing" in whole.warnings[-1]
    assert not any("means nothing" in told for told in found.forecast.warnings)
    loose = plan(noise_multiplier=0.2)
    assert "per record means nothing" in loose.forecast.warnings[-1]
