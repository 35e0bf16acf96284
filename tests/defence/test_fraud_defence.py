"""Ten banks, two of which flip every label: plan, drill, rule, alerts. More of it: benchmarks/fraud_defence.py.

The made-up table is for machines without the card payments: rare frauds, and a model that begins by expecting none. All
noise comes from the operating system, so bounds here leave room; the benchmark prints means and spreads.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quietsum.aggregation.robust import Sent, find_rule
from quietsum.mechanisms.rng import randomness_for_tests
from quietsum.plan import (
    AggregationPlan,
    FederationPlan,
    OptimizerPlan,
    PartyFacts,
    Plan,
    PrivacyPlan,
    RecordPlan,
    TaskPlan,
    TrainingPlan,
    resolve,
)
from quietsum.tasks import Metrics, Rows
from quietsum.tasks.scores import average_precision

ROOT = Path(__file__).parents[2]
ROWS, FEATURES, BANKS, RARE = 5000, 31, 10, 0.004


def benchmark() -> Any:
    """benchmarks/fraud_defence.py as a module."""
    if "fraud_defence" not in sys.modules:
        found = importlib.util.spec_from_file_location("fraud_defence", ROOT / "benchmarks" / "fraud_defence.py")
        assert found is not None and found.loader is not None
        made = importlib.util.module_from_spec(found)
        sys.modules["fraud_defence"] = made
        found.loader.exec_module(made)
    return sys.modules["fraud_defence"]


class MadeUpBanks:
    """Payments that nobody made: four in a thousand are fraud, and lies elsewhere. A logistic model with a bias."""

    name, title, dimension = "made-up", "made-up payments at ten banks", FEATURES + 1
    public = "the payments are made up"

    def __init__(self) -> None:
        rng = np.random.default_rng(7)
        self.direction = rng.choice([-1.0, 1.0], FEATURES) * np.linspace(0.1, 1.0, FEATURES)
        self.held = {f"client-{at + 1:04d}": self._drawn(rng, ROWS) for at in range(BANKS)}
        self.test = self._drawn(rng, 20_000)

    def _drawn(self, rng: np.random.Generator, count: int) -> tuple[Any, Any]:
        labels = (rng.uniform(size=count) < RARE).astype(np.float64)
        features = np.tanh(0.7 * rng.standard_normal((count, FEATURES)) + 0.8 * labels[:, None] * self.direction)
        return np.column_stack([features, np.ones(count)]), labels

    def parties(self) -> tuple[PartyFacts, ...]:
        return tuple(
            PartyFacts(name=name, dataset=f"cards-{name}", size=ROWS, public=self.public) for name in self.held
        )

    def initial(self) -> Any:
        start = np.zeros(self.dimension)
        start[-1] = np.log(RARE / (1 - RARE))
        return start

    def rows(self, party: str) -> Rows:
        features, labels = self.held[party]
        return Rows(features=features, labels=labels)

    def gradients(self, params: Any, features: Any, labels: Any) -> Any:
        chance = 1 / (1 + np.exp(-features @ params))
        return (chance - labels)[:, None] * features

    def evaluate(self, params: Any) -> Metrics:
        features, labels = self.test
        return Metrics(values={"auprc": average_precision(labels, features @ params)}, on="made-up payments")


PLAN = Plan(
    task=TaskPlan(name="made-up:MadeUpBanks"),
    federation=FederationPlan(rounds=12),
    training=TrainingPlan(sample_rate=1.0, local_steps=1, optimizer=OptimizerPlan(learning_rate=100.0)),
    privacy=PrivacyPlan(record=RecordPlan(epsilon=8.0, delta=1e-6, max_grad_norm=0.5)),
    aggregation=AggregationPlan(rule="signguard", attackers=2),
)


def made_up(arm: str, *, epsilon: float = 8.0, rule: str = "signguard", rounds: int = 12) -> Any:
    tool = benchmark()
    plan = tool.planned(PLAN, epsilon=epsilon, rule=rule, arm=arm, seed=0, rounds=rounds)
    plan = dataclasses.replace(plan, task=PLAN.task)  # it has one split
    return tool.ran(plan, MadeUpBanks())


def test_two_banks_that_flip_every_label_are_rejected_named_and_logged_and_the_model_keeps_its_score() -> None:
    quiet, attacked = made_up("none"), made_up("flip")
    assert attacked.both >= 0.9 and attacked.honest <= 0.5
    assert attacked.auprc > quiet.auprc - 0.06
    assert attacked.named == set(benchmark().ATTACKERS)
    assert sum(attacked.alerts.values()) == attacked.logged > 0
    assert quiet.alerts == {} and quiet.logged == 0 and quiet.named == frozenset()


def test_a_plain_mean_loses_to_the_same_two_banks() -> None:
    assert made_up("flip", rule="mean").auprc < made_up("none", rule="mean").auprc - 0.1


# ------------------------------------------------------------------------------------ what noise hides from signs


def seen_by_signs(epsilon: float, rule: str = "signguard", rounds: int = 400) -> tuple[float, float]:
    """Shares of flippers' and of honest updates that are left out at the first model, with fresh noise in each round.

    Flippers send updates of the usual length, so that signs and directions are all there is to go by.
    """
    task, rng, own = MadeUpBanks(), np.random.default_rng(3), randomness_for_tests(3)
    record = dataclasses.replace(PLAN.privacy.record or RecordPlan(), epsilon=epsilon)
    plan = dataclasses.replace(PLAN, privacy=dataclasses.replace(PLAN.privacy, record=record))
    noise, clip = resolve(plan, task.parties(), task.dimension).noise_multiplier or 0.0, record.max_grad_norm
    means = []
    for place, (features, labels) in enumerate(task.held.values()):
        steep = task.gradients(task.initial(), features, 1 - labels if place < 2 else labels)
        steep *= np.minimum(1, clip / np.linalg.norm(steep, axis=1))[:, None]
        means.append(steep.mean(axis=0))
    out = np.zeros(BANKS)
    for _ in range(rounds):
        updates = np.stack(means) + noise * clip / ROWS * rng.standard_normal((BANKS, task.dimension))
        lengths = np.linalg.norm(updates, axis=1)
        updates[:2] *= (np.median(lengths[2:]) / lengths[:2])[:, None]
        memory = {"last": updates[2:].mean(axis=0)}
        sent = Sent(updates=updates, attackers=2, places=np.arange(BANKS), registered=BANKS, rng=own, memory=memory)
        out += ~find_rule(rule).combine(sent).kept
    return float(out[:2].mean() / rounds), float(out[2:].mean() / rounds)


@pytest.mark.parametrize("rule", ["signguard", "signguard-sim"])
def test_at_epsilon_1_record_noise_hides_label_flippers_from_sign_statistics(
    rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative result, and its control: the same flippers are seen with little noise, and somewhat at ε 8."""
    monkeypatch.setenv("QUIETSUM_TEST_SEEDS", "1")
    clear, some, hidden = (seen_by_signs(epsilon, rule) for epsilon in (64.0, 8.0, 1.0))
    assert clear[0] - clear[1] > 0.4
    assert some[0] - some[1] > 0.07
    assert hidden[0] - hidden[1] < 0.05


def test_the_plan_says_beforehand_where_signs_are_hidden() -> None:
    def told(epsilon: float) -> bool:
        record = RecordPlan(epsilon=epsilon, delta=1e-6, max_grad_norm=0.5)
        plan = dataclasses.replace(PLAN, privacy=PrivacyPlan(record=record))
        resolved = resolve(plan, MadeUpBanks().parties(), MadeUpBanks.dimension)
        return any("noise hides signs" in text for text in resolved.warnings)

    assert [told(epsilon) for epsilon in (64.0, 8.0, 1.0)] == [False, False, True]


# ------------------------------------------------------------------------------------------------- card payments

needs_payments = pytest.mark.skipif(
    not os.environ.get("QUIETSUM_DATA"), reason="QUIETSUM_DATA names no folder with the downloaded data"
)


@needs_payments
@pytest.mark.slow
@pytest.mark.long
def test_on_card_payments_the_ready_plan_rejects_both_keeps_its_score_and_alarms_only_under_attack() -> None:
    """One split here, and bounds with room for one run; docs/benchmarks.md has five."""
    tool = benchmark()
    base = tool.read_plan(tool.EXAMPLE)
    quiet, attacked = (
        tool.ran(tool.planned(base, epsilon=8.0, rule="signguard", arm=arm, seed=0)) for arm in ("none", "flip")
    )
    assert attacked.both >= 0.9 and attacked.honest <= 0.5
    assert attacked.auprc > quiet.auprc - 0.06
    assert attacked.named == set(tool.ATTACKERS) and attacked.logged == sum(attacked.alerts.values()) > 0
    assert quiet.alerts == {} and quiet.logged == 0


def test_the_ready_plan_is_the_one_that_the_page_and_the_benchmark_speak_of() -> None:
    tool = benchmark()
    plan = tool.read_plan(tool.EXAMPLE)
    assert (plan.aggregation.rule, plan.aggregation.attackers, plan.federation.parties) == ("signguard", 2, 10)
    assert plan.privacy.record is not None and plan.privacy.record.epsilon == 8.0
    assert "examples/defended.toml" in (ROOT / "docs" / "how-to" / "defend.md").read_text(encoding="utf-8")
