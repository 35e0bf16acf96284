"""What a rule can see through the noise: public numbers before a run, and what ten parties measure in it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from quietsum.plan import (
    AggregationPlan,
    ClientPlan,
    FederationPlan,
    OptimizerPlan,
    PartyFacts,
    Plan,
    PrivacyPlan,
    RecordPlan,
    ResolvedPlan,
    TrainingPlan,
    resolve,
)
from quietsum.plan.promises import Style
from quietsum.plan.resolution.sight import FAINT, list_sight_warnings, sight
from quietsum.privacy.units import Neighbours

BANKS = tuple(PartyFacts(name=f"bank-{at}", dataset=f"cards-{at}", size=19_931) for at in range(10))


def fraud(epsilon: float, rounds: int = 30, rule: str = "signguard", **training: Any) -> ResolvedPlan:
    """The plan of docs/how-to/defend.md, for a model of 32 weights."""
    plan = Plan(
        federation=FederationPlan(rounds=rounds),
        training=TrainingPlan(**{"sample_rate": 1.0, "local_steps": 1, **training}),
        privacy=PrivacyPlan(record=RecordPlan(epsilon=epsilon, delta=4e-7, max_grad_norm=0.5)),
        aggregation=AggregationPlan(rule=rule),
    )
    return resolve(plan, BANKS, 32)


def test_at_epsilon_1_the_plan_says_that_noise_hides_signs_and_at_8_it_does_not() -> None:
    """κ = σ√(d/n): 0.15 and 0.97 by hand."""
    quiet, loud = fraud(8.0), fraud(1.0)
    for resolved, expected in ((quiet, 0.148), (loud, 0.968)):
        seen, noise = sight(resolved), resolved.noise_multiplier
        assert seen is not None and noise is not None
        assert seen.against_chance == pytest.approx(noise * math.sqrt(32 / 19_931)) == pytest.approx(expected, rel=0.01)
    assert not any("hides signs" in text for text in quiet.warnings)
    (told,) = [text for text in loud.warnings if "hides signs" in text]
    assert "0.97 times" in told and "only an update's length still tells" in told


def test_noise_at_the_party_for_whole_clients_hides_every_direction_whatever_the_data() -> None:
    client = ClientPlan(noise_multiplier=1.0, delta=1e-3, noise_at="party")
    plan = Plan(privacy=PrivacyPlan(style=Style.USER, client=client, neighbours=Neighbours.ZERO_OUT),
                aggregation=AggregationPlan(rule="signguard"))  # fmt: skip
    seen = sight(resolve(plan, BANKS, 10_000))
    assert seen is not None and seen.noise == pytest.approx(100, rel=1e-3) and seen.cosine < 1e-4
    assert "for all data" in list_sight_warnings(resolve(plan, BANKS, 10_000))[0]


@pytest.mark.parametrize("rule", ["mean", "norm-bounded"])
def test_a_rule_that_compares_no_directions_is_told_nothing(rule: str) -> None:
    assert sight(fraud(1.0, rule=rule)) is None and not list_sight_warnings(fraud(1.0, rule=rule))


def test_without_noise_on_updates_there_is_nothing_to_say() -> None:
    public = tuple(PartyFacts(name=bank.name, dataset=bank.dataset, size=bank.size, public="made up") for bank in BANKS)
    plan = Plan(privacy=PrivacyPlan(style=Style.NONE), aggregation=AggregationPlan(rule="signguard"))
    assert sight(resolve(plan, public, 32)) is None


def test_more_local_steps_at_the_same_promise_are_as_visible_as_one() -> None:
    """Four steps pull four times as far and have twice the noise, and cost what four rounds do: σ is twice as large."""
    one, four = sight(fraud(8.0)), sight(fraud(8.0, local_steps=4))
    assert one is not None and four is not None
    assert four.against_chance == pytest.approx(one.against_chance, rel=1e-3)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("steps", [1, 5])
def test_the_cosine_is_what_updates_with_that_noise_and_the_longest_common_part_have(
    momentum: float, steps: int
) -> None:
    """An oracle by simulation: gradients that all point one way, noise as ordered, steps with momentum."""
    plan = Plan(
        training=TrainingPlan(sample_rate=1.0, local_steps=steps,
                              optimizer=OptimizerPlan(learning_rate=0.3, momentum=momentum)),
        privacy=PrivacyPlan(record=RecordPlan(noise_multiplier=20.0, delta=1e-3)),
        aggregation=AggregationPlan(rule="signguard"),
    )  # fmt: skip
    sites = tuple(PartyFacts(name=str(at), dataset=str(at), size=500) for at in range(5))
    resolved, rng, dimension = resolve(plan, sites, 900), np.random.default_rng(1), 900
    orders = resolved.orders("0")
    assert orders.mechanism is not None
    common = np.zeros(dimension)
    common[0] = orders.mechanism.max_norm
    updates = []
    for _ in range(40):
        place, velocity = np.zeros(dimension), np.zeros(dimension)
        for _ in range(steps):
            deviation = orders.mechanism.max_norm * orders.mechanism.noise_multiplier / orders.expected_batch
            velocity = momentum * velocity + common + deviation * rng.standard_normal(dimension)
            place = place - 0.3 * velocity
        updates.append(place / np.linalg.norm(place))
    matrix = np.stack(updates)
    found = (matrix @ matrix.T)[np.triu_indices(40, 1)].mean()
    seen = sight(resolved)
    assert seen is not None and found == pytest.approx(seen.cosine, abs=0.02)


def test_the_threshold_lies_between_what_was_seen_and_what_was_hidden() -> None:
    """docs/benchmarks.md: signs see at κ = 0.15 (ε 8, 30 rounds) and no longer at 0.27 (ε 8, 100 rounds)."""
    seen, hidden = sight(fraud(8.0)), sight(fraud(8.0, rounds=100))
    assert seen is not None and hidden is not None
    assert seen.against_chance is not None and hidden.against_chance is not None
    assert seen.against_chance < FAINT < hidden.against_chance


@pytest.mark.parametrize("shares", [False, True])
def test_of_groups_the_rule_sees_means_with_less_noise_each_and_as_much_against_chance(shares: bool) -> None:
    """Noise at each of five members: √5 shorter on their mean. Noise in shares: all of it once, five times shorter."""
    sites = tuple(PartyFacts(name=f"s-{at}", dataset=f"d-{at}", size=400) for at in range(25))
    record = RecordPlan(noise_multiplier=2.0, delta=1e-4, noise_at="distributed" if shares else "party")

    def seen(**aggregation: Any) -> float:
        plan = Plan(
            federation=FederationPlan(rounds=2), training=TrainingPlan(sample_rate=1.0, local_steps=1),
            privacy=PrivacyPlan(record=record), aggregation=AggregationPlan(rule="median", **aggregation),
        )  # fmt: skip
        found = sight(resolve(plan, sites, 16))
        assert found is not None and found.against_chance is not None
        assert found.against_chance == pytest.approx(found.noise * math.sqrt(found.records or 0))
        return found.noise

    grouped = seen(secure=True, groups=5, attackers=1, drop_outs=0.0)
    assert grouped == pytest.approx(2.0 * 4 / 400 / (5 if shares else math.sqrt(5)), rel=1e-2)
