"""Every row of the table refuses the plan it is about, and lets that plan's good neighbour pass."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from typing import Any

import pytest

from quietsum.errors import PlanRefused
from quietsum.plan import (
    AdaptivePlan,
    AggregationPlan,
    ClientPlan,
    FederationPlan,
    LifetimePlan,
    PartyFacts,
    PersonPlan,
    Plan,
    PrivacyPlan,
    RecordPlan,
    SamplingPlan,
    SimulatePlan,
    StagePlan,
    TrainingPlan,
)
from quietsum.refusals import REFUSALS, check, found, taking_part, warnings
from quietsum.refusals.general import NEEDS_INDIVIDUALS

SITES = tuple(
    PartyFacts(name=name, dataset="heart", size=size, public="")
    for name, size in {"cleveland": 199, "hungarian": 172, "va": 85}.items()
)
PROMISE = RecordPlan(epsilon=1, delta=1e-4)


def plan(**parts: Any) -> Plan:
    return Plan(**{"privacy": PrivacyPlan(record=PROMISE), **parts})


def record(**numbers: Any) -> Plan:
    return plan(privacy=PrivacyPlan(record=RecordPlan(**numbers)))


def style(name: Any, **more: Any) -> PrivacyPlan:
    return PrivacyPlan(style=name, **more)


NUMBERS = ClientPlan(epsilon=8, delta=0.01)
LOCAL = ClientPlan(epsilon=8, delta=0.01, noise_at="party")
PERSON = PersonPlan(id="patient", max_records=3)


def client(stages: tuple[StagePlan, ...] = (), **numbers: Any) -> Plan:
    return plan(privacy=style("user", client=ClientPlan(**numbers)), schedule=stages)


def held(name: str, dataset: str) -> PartyFacts:
    return PartyFacts(name=name, dataset=dataset, size=100, holder="ward")


CLIENTS = client(epsilon=8, delta=0.01)

Case = tuple[Plan, Sequence[PartyFacts], str]

# name of the row: (a plan it refuses, the parties, what the message says), (the good neighbour, its parties)
ROWS: dict[str, list[tuple[Case, tuple[Plan, Sequence[PartyFacts]]]]] = {
    "no-client-promise": [
        ((plan(privacy=style("user")), SITES, "'user' without a number for clients"), (CLIENTS, SITES)),
        (
            (plan(privacy=style("hybrid", record=PROMISE)), SITES, "'hybrid' without a number for clients"),
            (CLIENTS, SITES),
        ),
    ],
    "no-client-delta": [
        ((client(epsilon=8), SITES, "privacy.client.delta is missing (1/(10 N) is 0.03 here)"), (CLIENTS, SITES)),
    ],
    "client-delta-too-large": [
        ((client(epsilon=8, delta=0.5), SITES, "not below 1/N for N = 3 clients"), (CLIENTS, SITES)),
        (
            (client(epsilon=8, delta=0.01, lifetime=LifetimePlan(epsilon=9, delta=0.9)), SITES, "lifetime.delta = 0.9"),
            (client(epsilon=8, delta=0.01, lifetime=LifetimePlan(epsilon=9, delta=0.01)), SITES),
        ),
    ],
    "client-noise-with-target": [
        (
            (
                client(epsilon=8, noise_multiplier=2, delta=0.01),
                SITES,
                "noise_multiplier = 2 together with epsilon = 8",
            ),
            (client(noise_multiplier=2, delta=0.01), SITES),
        ),
    ],
    "client-lifetime-below-plan": [
        (
            (client(epsilon=8, delta=0.01, lifetime=LifetimePlan(epsilon=4, delta=0.01)), SITES, "epsilon = 4 is less"),
            (client(epsilon=8, delta=0.01, lifetime=LifetimePlan(epsilon=8, delta=0.01)), SITES),
        ),
    ],
    "record-unasked": [
        (
            (
                plan(privacy=style("user", record=PROMISE, client=NUMBERS)),
                SITES,
                "privacy.record.epsilon and .delta beside",
            ),
            (plan(privacy=style("hybrid", record=PROMISE, client=NUMBERS)), SITES),
        ),
        (
            (plan(privacy=style("user", preset="performance", client=NUMBERS)), SITES, "privacy.preset beside"),
            (CLIENTS, SITES),
        ),
    ],
    "person-unasked": [
        (
            (plan(privacy=style("user", client=NUMBERS, person=PERSON)), SITES, "privacy.person beside"),
            (plan(privacy=style("sample", record=PROMISE, person=PERSON)), SITES),
        ),
        (
            (plan(privacy=style("none", person=PERSON)), SITES, "no noise for records"),
            (plan(privacy=style("none")), SITES),
        ),
    ],
    "against-the-server": [
        (
            (client(epsilon=8, delta=0.01, against="server"), SITES, "knows whom it drew"),
            (client(epsilon=8, delta=0.01, against="server", noise_at="party"), SITES),
        ),
    ],
    "central-noise-after-rule": [
        (
            (plan(privacy=style("user", client=NUMBERS), aggregation=AggregationPlan(rule="krum")), SITES, "'krum'"),
            (
                plan(
                    privacy=style("user", client=ClientPlan(epsilon=8, delta=0.01, noise_at="party")),
                    aggregation=AggregationPlan(rule="krum"),
                ),
                SITES,
            ),
        ),
    ],
    "adaptive-at-party": [
        (
            (
                client(epsilon=8, delta=0.01, noise_at="party", adaptive=AdaptivePlan()),
                SITES,
                "with noise_at = 'party'",
            ),
            (client(epsilon=8, delta=0.01, adaptive=AdaptivePlan()), SITES),
        ),
    ],
    "adaptive-with-clips": [
        (
            (
                client(stages=(StagePlan(rounds=20, clip=2),), epsilon=8, delta=0.01, adaptive=AdaptivePlan()),
                SITES,
                "two rules would set the same clip",
            ),
            (client(stages=(StagePlan(rounds=20, noise=2),), epsilon=8, delta=0.01, adaptive=AdaptivePlan()), SITES),
        ),
    ],
    "minimum-with-clients": [
        (
            (
                plan(
                    privacy=style("user", client=NUMBERS),
                    federation=FederationPlan(minimum_parties=2, sampling=SamplingPlan(kind="poisson", rate=0.5)),
                ),
                SITES,
                "tells how many there were, without noise",
            ),
            (plan(federation=FederationPlan(minimum_parties=2)), SITES),
        ),
    ],
    "fixed-size-neighbours": [
        (
            (
                plan(
                    privacy=style("user", client=NUMBERS),
                    federation=FederationPlan(sampling=SamplingPlan(kind="fixed-size", size=2)),
                ),
                SITES,
                "comes or goes",
            ),
            (
                plan(
                    privacy=style("user", client=NUMBERS, neighbours="zero-out"),
                    federation=FederationPlan(sampling=SamplingPlan(kind="fixed-size", size=2)),
                ),
                SITES,
            ),
        ),
    ],
    "cohort-too-large": [
        (
            (
                plan(federation=FederationPlan(sampling=SamplingPlan(kind="fixed-size", size=4))),
                SITES,
                "size = 4 with 3 parties",
            ),
            (plan(federation=FederationPlan(sampling=SamplingPlan(kind="fixed-size", size=3))), SITES),
        ),
    ],
    "other-batches": [
        (
            (plan(training=TrainingPlan(batches=kind)), SITES, "drawn by its own coin"),
            (plan(training=TrainingPlan(batches="poisson")), SITES),
        )
        for kind in ("shuffled", "fixed-size")
    ],
    "batches-without-privacy": [
        (
            (plan(privacy=style("none"), training=TrainingPlan(batches="shuffled")), SITES, "only Poisson batches"),
            (plan(privacy=style("none")), SITES),
        ),
    ],
    "party-noise-neighbours": [
        (
            (client(epsilon=8, delta=0.01, noise_at="party"), SITES, "which no noise hides"),
            (plan(privacy=style("user", client=LOCAL, neighbours="zero-out")), SITES),
        ),
    ],
    "dealt-out-clients": [
        (
            (
                plan(privacy=style("user", client=NUMBERS), federation=FederationPlan(split="iid", parties=3)),
                SITES,
                "stand for nobody",
            ),
            (
                plan(privacy=style("user", client=NUMBERS), federation=FederationPlan(split="iid", parties=3)),
                tuple(dataclasses.replace(site, public="made up") for site in SITES),
            ),
        ),
    ],
    "schedule-length": [
        (
            (
                plan(schedule=(StagePlan(rounds=5), StagePlan(rounds=5))),
                SITES,
                "has 10 rounds, federation.rounds says 20",
            ),
            (plan(schedule=(StagePlan(rounds=5), StagePlan(rounds=15))), SITES),
        ),
    ],
    "spare-with-schedule": [
        (
            (
                plan(schedule=(StagePlan(rounds=20, noise=2),), federation=FederationPlan(spare_attempts=1)),
                SITES,
                "cannot be paid for in advance",
            ),
            (plan(schedule=(StagePlan(rounds=20, clip=2),), federation=FederationPlan(spare_attempts=1)), SITES),
        ),
    ],
    "mixed-holder": [
        (
            (plan(), (held("a", "visits"), held("b", "scans")), "'ward' holds parties of different datasets"),
            (plan(), (held("a", "visits"), held("b", "visits"))),
        ),
    ],
    "client-unasked": [
        (
            (plan(privacy=PrivacyPlan(record=PROMISE, client=ClientPlan(epsilon=8))), SITES, "remove privacy.client"),
            (plan(), SITES),
        ),
    ],
    "promise-without-style": [
        (
            (plan(privacy=style("none", record=PROMISE)), SITES, "privacy.record.epsilon and .delta beside"),
            (plan(privacy=style("none", record=RecordPlan(max_grad_norm=2))), SITES),
        ),
        (
            (plan(privacy=style("none", preset="performance")), SITES, "privacy.preset beside"),
            (plan(privacy=style("none")), SITES),
        ),
    ],
    "no-promise": [
        ((plan(privacy=PrivacyPlan()), SITES, "without a number"), (plan(), SITES)),
        ((record(delta=1e-4), SITES, "preset = "), (plan(privacy=PrivacyPlan(preset="performance")), SITES)),
    ],
    "noise-with-target": [
        (
            (
                record(epsilon=1, noise_multiplier=2, delta=1e-4),
                SITES,
                "noise_multiplier = 2 together with epsilon = 1",
            ),
            (record(noise_multiplier=2, delta=1e-4), SITES),
        ),
    ],
    "preset-with-numbers": [
        (
            (
                plan(privacy=PrivacyPlan(preset="performance", record=RecordPlan(**{name: value}))),
                SITES,
                f"'performance' together with privacy.record.{name}",
            ),
            (plan(privacy=PrivacyPlan(preset="performance", record=RecordPlan(max_grad_norm=2))), SITES),
        )
        for name, value in {"epsilon": 1, "noise_multiplier": 1, "delta": 1e-5}.items()
    ],
    "no-delta": [
        ((record(epsilon=1), SITES, "is missing (1/(10 n) is 0.0005 here)"), (plan(), SITES)),
        ((record(noise_multiplier=1), SITES, "privacy.record.delta is missing"), (plan(), SITES)),
    ],
    "delta-too-large": [
        (
            (record(epsilon=1, delta=1 / 199), SITES, "not below 1/n for n = 199"),
            (record(epsilon=1, delta=0.0050), SITES),
        ),
        (
            (
                record(epsilon=1, delta=1e-4, lifetime=LifetimePlan(epsilon=2, delta=0.1)),
                SITES,
                "privacy.record.lifetime.delta = 0.1",
            ),
            (record(epsilon=1, delta=1e-4, lifetime=LifetimePlan(epsilon=2, delta=1e-4)), SITES),
        ),
    ],
    "lifetime-below-plan": [
        (
            (
                record(epsilon=1, delta=1e-4, lifetime=LifetimePlan(epsilon=0.5, delta=1e-4)),
                SITES,
                "lifetime.epsilon = 0.5",
            ),
            (record(epsilon=1, delta=1e-4, lifetime=LifetimePlan(epsilon=1, delta=1e-4)), SITES),
        ),
        (
            (
                record(epsilon=1, delta=1e-4, lifetime=LifetimePlan(epsilon=1, delta=1e-5)),
                SITES,
                "lifetime.delta = 1e-05",
            ),
            (record(epsilon=1, delta=1e-4, lifetime=LifetimePlan(epsilon=1, delta=1e-4)), SITES),
        ),
    ],
    "secure-aggregation": [
        ((plan(aggregation=AggregationPlan(secure=True)), SITES, "not in this version yet"), (plan(), SITES)),
    ],
    "secure-with-individuals": [
        (
            (plan(aggregation=AggregationPlan(secure=True, rule=rule)), SITES, "no single updates to judge"),
            (plan(aggregation=AggregationPlan(secure=True)), SITES),
        )
        for rule in sorted(NEEDS_INDIVIDUALS)
    ],
    "secure-with-few": [
        (
            (plan(aggregation=AggregationPlan(secure=True)), SITES[:2], "with 2 parties"),
            (plan(aggregation=AggregationPlan(secure=True)), SITES),
        ),
    ],
    "other-rule": [
        ((plan(aggregation=AggregationPlan(rule="krum")), SITES, "aggregation.rule = 'krum'"), (plan(), SITES)),
        ((plan(aggregation=AggregationPlan(rule="Mean")), SITES, "aggregation.rule = 'Mean'"), (plan(), SITES)),
    ],
    "private-weights": [
        (
            (plan(privacy=style("user"), aggregation=AggregationPlan(weights="size")), SITES, 'weights = "equal"'),
            (plan(privacy=style("user"), aggregation=AggregationPlan(weights="equal")), SITES),
        ),
        (
            (plan(privacy=style("hybrid"), aggregation=AggregationPlan(weights="size")), SITES, "style = 'hybrid'"),
            (plan(aggregation=AggregationPlan(weights="size")), SITES),
        ),
    ],
    "two-batches": [
        (
            (plan(training=TrainingPlan(batch_size=8, sample_rate=0.1)), SITES, "keep batch_size"),
            (plan(training=TrainingPlan(sample_rate=0.1)), SITES),
        ),
    ],
    "two-lengths": [
        (
            (plan(training=TrainingPlan(local_epochs=1, local_steps=3)), SITES, "keep local_epochs or local_steps"),
            (plan(training=TrainingPlan(local_steps=3)), SITES),
        ),
    ],
    "batch-too-large": [
        (
            (plan(training=TrainingPlan(batch_size=86)), SITES, "is more than the declared size of 'va' (85)"),
            (plan(training=TrainingPlan(batch_size=85)), SITES),
        ),
        (
            (plan(training=TrainingPlan(batch_size=180)), SITES, "'hungarian' (172) and 'va' (85)"),
            (plan(training=TrainingPlan(batch_size=180), federation=FederationPlan(parties=("cleveland",))), SITES),
        ),
    ],
    "duplicate-parties": [
        (
            (plan(federation=FederationPlan(parties=("va", "va"))), SITES, "names 'va' more than once"),
            (plan(federation=FederationPlan(parties=("va",))), SITES),
        ),
        ((plan(), (*SITES, SITES[0]), "the task names 'cleveland' more than once"), (plan(), SITES)),
        (
            (
                plan(federation=FederationPlan(simulate=SimulatePlan(refusing=("va", "va")))),
                SITES,
                "refusing names 'va'",
            ),
            (plan(federation=FederationPlan(simulate=SimulatePlan(refusing=("va",)))), SITES),
        ),
    ],
    "unknown-parties": [
        (
            (plan(federation=FederationPlan(parties=("clevland",))), SITES, "'clevland' (did you mean 'cleveland'?)"),
            (plan(federation=FederationPlan(parties=("cleveland",))), SITES),
        ),
        (
            (
                plan(federation=FederationPlan(simulate=SimulatePlan(refusing=("basel",)))),
                SITES,
                "federation.simulate.refusing names 'basel'",
            ),
            (plan(federation=FederationPlan(simulate=SimulatePlan(refusing=("va",)))), SITES),
        ),
    ],
    "no-parties": [((plan(), (), "task 'heart' declares no parties"), (plan(), SITES))],
    "no-data": [
        (
            (plan(), (*SITES, PartyFacts(name="basel", dataset="heart", size=0)), "'basel' declares no records"),
            (
                plan(federation=FederationPlan(parties=("va", "cleveland"))),
                (*SITES, PartyFacts(name="basel", dataset="heart", size=0)),
            ),
        ),
    ],
    "minimum-too-high": [
        (
            (plan(federation=FederationPlan(minimum_parties=4)), SITES, "minimum_parties = 4 with 3 parties"),
            (plan(federation=FederationPlan(minimum_parties=3)), SITES),
        ),
        (
            (plan(federation=FederationPlan(minimum_parties=2, parties=("va",))), SITES, "= 2 with 1 parties"),
            (plan(federation=FederationPlan(minimum_parties=1, parties=("va",))), SITES),
        ),
    ],
    "cohort-rate": [
        (
            (plan(federation=FederationPlan(sampling=SamplingPlan(kind="poisson"))), SITES, "'poisson' without a rate"),
            (plan(federation=FederationPlan(sampling=SamplingPlan(kind="poisson", rate=0.1))), SITES),
        ),
        (
            (plan(federation=FederationPlan(sampling=SamplingPlan(rate=0.1))), SITES, "'everyone' with a rate"),
            (plan(), SITES),
        ),
    ],
    "other-engine": [
        (
            (plan(training=TrainingPlan(engine="opacus")), SITES, "training.engine = 'opacus'"),
            (plan(training=TrainingPlan(engine="numpy")), SITES),
        ),
    ],
}

CASES = [(name, *pair) for name, pairs in ROWS.items() for pair in pairs]


@pytest.mark.parametrize(("name", "bad", "good"), CASES, ids=[name for name, *_ in CASES])
def test_a_row_refuses_its_plan_and_not_the_good_neighbour(
    name: str, bad: Case, good: tuple[Plan, Sequence[PartyFacts]]
) -> None:
    refused, parties, told = bad
    assert name in {row.name for row in found(refused, parties)}
    assert name not in {row.name for row in found(*good)}
    with pytest.raises(PlanRefused) as caught:
        check(refused, parties)
    row = next(row for row in REFUSALS if row.name == name)
    line = next(line for line in str(caught.value).splitlines() if row.why in line)
    assert told in line and row.instead in line


def test_every_row_has_a_case_and_every_case_a_row() -> None:
    assert sorted(ROWS) == sorted(row.name for row in REFUSALS)
    assert len({row.name for row in REFUSALS}) == len(REFUSALS)


@pytest.mark.parametrize("row", REFUSALS, ids=lambda row: row.name)
def test_every_row_says_why_and_what_instead(row: Any) -> None:
    assert len(row.why) > 15 and len(row.instead) > 10
    assert not re.search(r"[.;:]$", row.why) and not re.search(r"[.;:]$", row.instead)


def test_a_good_plan_is_refused_by_no_row() -> None:
    check(plan(), SITES)
    assert found(plan(), SITES) == ()


def test_all_reasons_are_told_at_once_one_a_line() -> None:
    bad = plan(
        federation=FederationPlan(minimum_parties=9, parties=("vaa", "va")),
        training=TrainingPlan(batch_size=1000, engine="torch"),
        aggregation=AggregationPlan(rule="median", secure=True),
        privacy=PrivacyPlan(record=RecordPlan(epsilon=1, noise_multiplier=1, delta=0.5)),
    )
    with pytest.raises(PlanRefused) as caught:
        check(bad, SITES)
    assert [row.name for row in found(bad, SITES)] == [
        "noise-with-target", "delta-too-large", "secure-aggregation", "secure-with-individuals", "secure-with-few",
        "other-rule", "batch-too-large", "unknown-parties", "minimum-too-high", "other-engine",
    ]  # fmt: skip
    assert len(str(caught.value).splitlines()) == 10


def test_delta_must_be_below_one_record_of_every_party_not_only_of_the_smallest() -> None:
    large = (*SITES, PartyFacts(name="registry", dataset="all", size=100_000))
    assert "delta-too-large" not in {row.name for row in found(plan(), SITES)}
    assert "delta-too-large" in {row.name for row in found(plan(), large)}


def test_a_delta_between_one_tenth_of_a_record_and_a_record_is_warned_about() -> None:
    assert not warnings(record(epsilon=1, delta=1 / 1990), SITES)
    told = warnings(record(epsilon=1, delta=1 / 1900), SITES)
    assert len(told) == 1 and "1/(10 n) = 0.000502513 for the 199 records" in told[0]


def test_style_none_is_not_asked_for_delta_or_noise() -> None:
    assert found(plan(privacy=style("none")), SITES) == ()


def test_parties_take_part_in_the_order_of_the_task() -> None:
    chosen = plan(federation=FederationPlan(parties=("va", "cleveland")))
    assert [facts.name for facts in taking_part(chosen, SITES)] == ["cleveland", "va"]
    assert taking_part(plan(), SITES) == SITES
