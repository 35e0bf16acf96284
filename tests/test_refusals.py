"""Every row of the table refuses the plan it is about, and lets that plan's good neighbour pass."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from typing import Any, cast

import pytest

from quietsum.errors import PlanRefused
from quietsum.plan import (
    AdaptivePlan,
    AggregationPlan,
    AttackPlan,
    ClientPlan,
    FederationPlan,
    LifetimePlan,
    OptimizerPlan,
    PartyFacts,
    PersonPlan,
    Plan,
    PrivacyPlan,
    RecordPlan,
    SamplingPlan,
    SimulatePlan,
    StagePlan,
    TaskPlan,
    TrainingPlan,
)
from quietsum.plan.refusals import REFUSALS, check_plan, find_refusals, taking_part, warnings
from quietsum.plan.refusals.general import NEEDS_INDIVIDUALS

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
CARRYING = TrainingPlan(canaries=100)


def client(stages: tuple[StagePlan, ...] = (), **numbers: Any) -> Plan:
    return plan(privacy=style("user", client=ClientPlan(**numbers)), schedule=stages)


def held(name: str, dataset: str) -> PartyFacts:
    return PartyFacts(name=name, dataset=dataset, size=100, holder="ward")


CLIENTS = client(epsilon=8, delta=0.01)
BANKS = tuple(PartyFacts(name=f"bank-{at}", dataset=f"cards-{at}", size=200 + 75 * at) for at in range(5))
CROWD = tuple(PartyFacts(name=f"phone-{at}", dataset=f"phone-{at}", size=400) for at in range(200))
EVEN = tuple(dataclasses.replace(bank, size=400) for bank in BANKS)
RECORDS = RecordPlan(epsilon=1, delta=1e-4, noise_at="distributed")
SHARED = PrivacyPlan(record=RECORDS)
IN_SHARES = ClientPlan(epsilon=8, delta=0.01, noise_at="distributed")
ONE_STEP = TrainingPlan(sample_rate=0.1, local_steps=1)
COINS = FederationPlan(sampling=SamplingPlan(kind="poisson", rate=0.1))
UNLUCKY = FederationPlan(simulate=SimulatePlan(drop_outs=0.3, stragglers=0.3))


def secure(privacy: PrivacyPlan | None = None, drawn: SamplingPlan | None = None, **keys: Any) -> Plan:
    """A plan with secure aggregation."""
    return plan(
        privacy=privacy or PrivacyPlan(record=PROMISE),
        aggregation=AggregationPlan(secure=True, **keys),
        federation=FederationPlan(sampling=drawn or SamplingPlan()),
        training=ONE_STEP,
    )


def shared(training: TrainingPlan = ONE_STEP) -> Plan:
    """A good plan with records' noise in shares."""
    return dataclasses.replace(secure(privacy=SHARED, drop_outs=0.2), training=training)


def opened(parties: Sequence[PartyFacts]) -> tuple[PartyFacts, ...]:
    """The same parties with rows that nobody protects."""
    return tuple(dataclasses.replace(party, public="made up") for party in parties)


def attacked(base: Plan | None = None, kind: str = "lie", **keys: Any) -> Plan:
    """A plan in which somebody attacks, for a drill."""
    return dataclasses.replace(base or plan(), attack=AttackPlan(kind=kind, **keys))


Case = tuple[Plan, Sequence[PartyFacts], str]

# name of the row: (a plan it refuses, the parties, what the message says), (the good neighbour, its parties)
FEW = "needs 5 parties, and a round asks 3, of which it withstands"

ROWS: dict[str, list[tuple[Case, tuple[Plan, Sequence[PartyFacts]]]]] = {
    "attack-on-protected": [
        ((attacked(), SITES, "protected rows at 'cleveland', 'hungarian' and 'va'"), (attacked(), opened(SITES))),
        ((attacked(), (*opened(SITES)[1:], SITES[0]), "rows at 'cleveland'"), (plan(), SITES)),
    ],
    "attack-by-strangers": [
        (
            (attacked(parties=("va", "basel")), opened(SITES), "attack.parties names basel"),
            (attacked(parties=("va",)), opened(SITES)),
        ),
    ],
    "attack-by-all": [
        ((attacked(parties=3), opened(SITES), "attackers of all 3 parties"), (attacked(parties=2), opened(SITES))),
    ],
    "attack-behind-masks": [
        (
            (attacked(secure()), opened(BANKS), "kind = 'lie' with aggregation.secure = true"),
            (attacked(secure(), kind="label-flip"), opened(BANKS)),
        ),
        (
            (
                attacked(secure(), kind="backdoor", strength=10),
                opened(BANKS),
                "strength = 10 with aggregation.secure = true",
            ),
            (attacked(kind="backdoor", strength=10), opened(BANKS)),
        ),
    ],
    "attack-on-rows-for-some-rounds": [
        (
            (
                attacked(kind="label-flip", from_round=2),
                opened(SITES),
                "from_round or .to_round with kind = 'label-flip'",
            ),
            (attacked(from_round=2, to_round=3), opened(SITES)),
        ),
    ],
    "attack-after-the-end": [
        (
            (attacked(from_round=21), opened(SITES), "from_round = 21 of 20 rounds"),
            (attacked(from_round=20), opened(SITES)),
        ),
    ],
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
    "canaries-without-noise": [
        (
            (plan(privacy=style("none"), training=CARRYING), SITES, "training.canaries = 100 under"),
            (plan(training=CARRYING), SITES),
        ),
        (
            (shared(dataclasses.replace(ONE_STEP, canaries=100)), BANKS, "noise_at = 'distributed'"),
            (shared(), BANKS),
        ),
    ],
    "few-canaries": [
        (
            (plan(training=TrainingPlan(canaries=15)), SITES, "carry 16 or more"),
            (plan(training=TrainingPlan(canaries=16)), SITES),
        ),
    ],
    "canary-clients-without-noise": [
        (
            (client(epsilon=8, delta=0.01, noise_at="party", canaries=100), SITES, "noise_at = 'party'"),
            (client(epsilon=8, delta=0.01, canaries=100), SITES),
        ),
    ],
    "canary-clients-of-fixed-cohorts": [
        (
            (
                dataclasses.replace(
                    client(epsilon=8, delta=0.01, canaries=100),
                    federation=FederationPlan(sampling=SamplingPlan(kind="fixed-size", size=2)),
                ),
                SITES,
                "cohorts of a fixed size",
            ),
            (client(epsilon=8, delta=0.01, canaries=100), SITES),
        ),
    ],
    "few-canary-clients": [
        (
            (client(epsilon=8, delta=0.01, canaries=15), SITES, "privacy.client.canaries = 15"),
            (client(epsilon=8, delta=0.01, canaries=16), SITES),
        ),
    ],
    "canaries-in-drill": [
        (
            (attacked(plan(training=CARRYING)), opened(SITES), "training.canaries = 100 beside [attack]"),
            (attacked(plan()), opened(SITES)),
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
                "stand for no person or site",
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
                plan(privacy=PrivacyPlan(preset="performance", record=RecordPlan(**cast("Any", {name: value})))),
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
    "secure-unasked": [
        (
            (
                plan(aggregation=AggregationPlan(threshold=3, drop_outs=0.1)),
                BANKS,
                "threshold and aggregation.drop_outs",
            ),
            (secure(threshold=3), BANKS),
        ),
        ((plan(aggregation=AggregationPlan(colluders=2)), BANKS, "colluders without"), (plan(), BANKS)),
    ],
    "too-few-honest": [
        ((secure(), SITES, "3 parties of which 1 may collude"), (secure(), BANKS[:4])),
        ((secure(colluders=3), BANKS, "5 parties of which 3 may collude"), (secure(colluders=2), BANKS)),
    ],
    "floor-too-low": [
        ((secure(drop_outs=0.6), BANKS, "leaves a sum of 1 honest"), (secure(drop_outs=0.4), BANKS)),
        ((secure(drop_outs=0.4, colluders=2), BANKS, "sum of 1 honest"), (secure(drop_outs=0.2, colluders=2), BANKS)),
        ((secure(threshold=2), BANKS, "3 may be lost"), (secure(threshold=3), BANKS)),
    ],
    "threshold-too-low": [
        ((secure(threshold=1), BANKS, "threshold = 1 with 1 that may collude"), (secure(threshold=3), BANKS)),
        ((secure(threshold=2, colluders=2), BANKS, "threshold = 2"), (secure(threshold=4, colluders=2), BANKS)),
        ((secure(threshold=2, colluders=2), BANKS, "threshold = 2"), (secure(threshold=15, colluders=20), CROWD)),
    ],
    "threshold-for-lies": [
        (
            (secure(threshold=3, adversary="semi-malicious"), BANKS, "6 is not more than 5 + 1"),
            (secure(threshold=4, adversary="semi-malicious"), BANKS),
        ),
        ((secure(threshold=3, adversary="semi-malicious"), BANKS, "semi-malicious"), (secure(threshold=3), BANKS)),
    ],
    "threshold-too-high": [
        (
            (secure(threshold=5, drop_outs=0.2), BANKS, "4 of 5 parties left"),
            (secure(threshold=4, drop_outs=0.2), BANKS),
        ),
        ((secure(threshold=6), BANKS, "5 of 5 parties left"), (secure(threshold=5), BANKS)),
    ],
    "secure-coin-cohort": [
        (
            (secure(drawn=SamplingPlan(kind="poisson", rate=0.5)), BANKS, "kind 'poisson'"),
            (secure(drawn=SamplingPlan(kind="fixed-size", size=4)), BANKS),
        ),
    ],
    "secure-with-central-noise": [
        (
            (secure(privacy=style("user", client=NUMBERS)), BANKS, "noise_at = 'server'"),
            (secure(privacy=style("user", client=LOCAL, neighbours="zero-out")), BANKS),
        ),
    ],
    "groups-with-mean": [
        ((secure(groups=20), CROWD, "groups = 20 with rule = 'mean'"), (secure(groups=40, rule="median"), CROWD)),
    ],
    "groups-too-small": [
        (
            (secure(groups=60, rule="median"), CROWD, "leaves 3 in a group (50 groups"),
            (secure(groups=50, rule="median"), CROWD),
        ),
    ],
    "groups-few-honest": [
        (
            (secure(groups=40, rule="median", colluders=9), CROWD, "4 of them may sit in one group"),
            (secure(groups=20, rule="median", colluders=9), CROWD),
        ),
        (
            (secure(groups=40, rule="median", drop_outs=0.4), CROWD, "smallest sum would hold 2 honest"),
            (secure(groups=40, rule="median", drop_outs=0.2), CROWD),
        ),
    ],
    "groups-contaminated": [
        (
            (secure(groups=20, rule="median", attackers=20), CROWD, "66 % of the groups"),
            (secure(groups=40, rule="median", attackers=20), CROWD),
        ),
        (
            (secure(groups=20, rule="median", attackers=20), CROWD, "20 groups bear 10"),
            (secure(groups=20, rule="median", attackers=10), CROWD),
        ),
    ],
    "groups-few-for-rule": [
        (
            (secure(groups=4, rule="krum", attackers=1), CROWD, "groups = 4 with rule = 'krum', which needs 5"),
            (secure(groups=5, rule="krum", attackers=1), CROWD),
        ),
    ],
    "groups-with-memory": [
        (
            (secure(groups=40, rule="foolsgold"), CROWD, "with rule = 'foolsgold'"),
            (secure(groups=40, rule="median"), CROWD),
        ),
    ],
    "narrow-without-noise": [
        ((secure(bits=16), BANKS, "bits = 16"), (secure(privacy=SHARED, bits=16, drop_outs=0.2), BANKS)),
    ],
    "two-balls": [
        (
            (
                secure(privacy=style("user", client=IN_SHARES, neighbours="zero-out"), drop_outs=0.2, max_update=3.0),
                BANKS,
                "max_update = 3",
            ),
            (secure(privacy=SHARED, drop_outs=0.2, max_update=3.0), BANKS),
        ),
    ],
    "distributed-without-secure": [
        ((plan(privacy=SHARED), BANKS, "record.noise_at = 'distributed' without"), (shared(), BANKS)),
        (
            (plan(privacy=style("user", client=IN_SHARES, neighbours="zero-out")), BANKS, "client.noise_at"),
            (secure(privacy=style("user", client=IN_SHARES, neighbours="zero-out"), drop_outs=0.2), BANKS),
        ),
    ],
    "distributed-without-floor": [
        (  # of many parties, only a party's neighbours count for the threshold
            (secure(privacy=SHARED, threshold=12), CROWD, "without a floor for drop-outs"),
            (secure(privacy=SHARED, threshold=12, drop_outs=0.1), CROWD),
        ),
        ((secure(privacy=SHARED), BANKS, "without a floor for drop-outs"), (shared(), BANKS)),
        (
            (secure(privacy=SHARED), BANKS, "without a floor for drop-outs"),
            (secure(privacy=SHARED, threshold=4), BANKS),
        ),
    ],
    "distributed-unasked": [
        (
            (plan(privacy=style("none", record=RecordPlan(noise_at="distributed"))), BANKS, "'none'"),
            (plan(privacy=style("none")), BANKS),
        ),
    ],
    "distributed-steps": [
        ((shared(TrainingPlan(sample_rate=0.1, local_steps=2)), BANKS, "local_steps = 2"), (shared(), BANKS)),
        (
            (shared(TrainingPlan(sample_rate=0.5)), BANKS, "local_epochs = 1"),
            (shared(TrainingPlan(sample_rate=1.0)), BANKS),
        ),
    ],
    "distributed-rates": [
        (
            (shared(TrainingPlan(batch_size=50, local_steps=1)), BANKS, "from 0.1 to 0.25 (sample_rate = 0.143 draws"),
            (shared(TrainingPlan(batch_size=50, local_steps=1)), EVEN),
        ),
        ((shared(TrainingPlan(batch_size=50, local_steps=1)), BANKS, "rates"), (shared(), BANKS)),
    ],
    "distributed-momentum": [
        (
            (shared(TrainingPlan(sample_rate=0.1, local_steps=1, proximal=0.1)), BANKS, "training.proximal with"),
            (shared(), BANKS),
        ),
        (
            (
                shared(TrainingPlan(sample_rate=0.1, local_steps=1, optimizer=OptimizerPlan(momentum=0.9))),
                BANKS,
                "training.optimizer.momentum",
            ),
            (shared(), BANKS),
        ),
    ],
    "distributed-hybrid": [
        (
            (
                secure(privacy=style("hybrid", record=RECORDS, client=IN_SHARES, neighbours="zero-out"), drop_outs=0.2),
                BANKS,
                "style = 'hybrid'",
            ),
            (
                secure(privacy=style("hybrid", record=PROMISE, client=IN_SHARES, neighbours="zero-out"), drop_outs=0.2),
                BANKS,
            ),
        ),
    ],
    "distributed-weights": [
        ((secure(privacy=SHARED, drop_outs=0.2, weights="equal"), BANKS, "'equal'"), (shared(), BANKS)),
    ],
    "distributed-fast": [
        (
            (secure(privacy=dataclasses.replace(SHARED, noise="fast"), drop_outs=0.2), BANKS, "noise = 'fast'"),
            (shared(), BANKS),
        ),
    ],
    "other-rule": [
        ((plan(aggregation=AggregationPlan(rule="best")), SITES, "aggregation.rule = 'best'"), (plan(), SITES)),
        ((plan(aggregation=AggregationPlan(rule="Mean")), SITES, "aggregation.rule = 'Mean'"), (plan(), SITES)),
    ],
    "few-for-rule": [
        (
            (
                plan(aggregation=AggregationPlan(rule="median", attackers=2)),
                SITES,
                FEW,
            ),
            (plan(aggregation=AggregationPlan(rule="median", attackers=1)), SITES),
        ),
        (
            (
                plan(aggregation=AggregationPlan(rule="median", attackers=1, before="bucketing")),
                SITES,
                FEW,
            ),
            (plan(aggregation=AggregationPlan(rule="median", attackers=1, before="nnm")), SITES),
        ),
    ],
    "short-cohort-for-rule": [
        (
            (plan(aggregation=AggregationPlan(rule="median", attackers=10), federation=COINS), CROWD, "bring fewer"),
            (plan(aggregation=AggregationPlan(rule="median", attackers=3), federation=COINS), CROWD),
        ),
        (
            (plan(aggregation=AggregationPlan(rule="median", attackers=2), federation=UNLUCKY), BANKS, "97.2 % of"),
            (plan(aggregation=AggregationPlan(attackers=0), federation=UNLUCKY), BANKS),
        ),
    ],
    "rule-with-weights": [
        (
            (plan(aggregation=AggregationPlan(rule="median", weights="size")), SITES, "would be a lever"),
            (plan(aggregation=AggregationPlan(rule="median", weights="equal")), SITES),
        ),
    ],
    "rule-without-root": [
        (
            (plan(aggregation=AggregationPlan(rule="trust")), SITES, "options = { root = 100 }"),
            (plan(task=TaskPlan(options={"root": 50}), aggregation=AggregationPlan(rule="trust")), SITES),
        ),
        (
            (plan(aggregation=AggregationPlan(rule="fltrust")), SITES, "held by the server"),
            (plan(task=TaskPlan(name="mine:Task"), aggregation=AggregationPlan(rule="fltrust")), SITES),
        ),
    ],
    "before-of-mean": [
        (
            (plan(aggregation=AggregationPlan(before="nnm")), SITES, "goes wherever a single one of them pulls it"),
            (plan(aggregation=AggregationPlan(before="nnm", rule="median")), SITES),
        ),
    ],
    "bucketing-with-memory": [
        (
            (plan(aggregation=AggregationPlan(before="bucketing", rule="foolsgold")), SITES, "belong to no party"),
            (plan(aggregation=AggregationPlan(before="nnm", rule="foolsgold")), SITES),
        ),
    ],
    "attackers-of-mean": [
        (
            (plan(aggregation=AggregationPlan(attackers=1)), SITES, "it withstands none"),
            (plan(aggregation=AggregationPlan(attackers=0)), SITES),
        ),
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
    assert name in {row.name for row in find_refusals(refused, parties)}
    assert name not in {row.name for row in find_refusals(*good)}
    with pytest.raises(PlanRefused) as caught:
        check_plan(refused, parties)
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
    check_plan(plan(), SITES)
    assert find_refusals(plan(), SITES) == ()


def test_all_reasons_are_told_at_once_one_a_line() -> None:
    bad = plan(
        federation=FederationPlan(minimum_parties=9, parties=("vaa", "va")),
        training=TrainingPlan(batch_size=1000, engine="torch"),
        aggregation=AggregationPlan(rule="median", secure=True),
        privacy=PrivacyPlan(record=RecordPlan(epsilon=1, noise_multiplier=1, delta=0.5)),
    )
    with pytest.raises(PlanRefused) as caught:
        check_plan(bad, SITES)
    assert [row.name for row in find_refusals(bad, SITES)] == [
        "noise-with-target", "delta-too-large", "batch-too-large", "unknown-parties", "minimum-too-high",
        "other-engine", "secure-with-individuals", "secure-with-few",
    ]  # fmt: skip
    assert (
        len([line for line in str(caught.value).splitlines() if not line.startswith("  nearest possible plan:")]) == 8
    )


def test_good_plans_with_masked_sums_and_noise_in_shares_are_refused_by_no_row() -> None:
    in_shares = style("user", client=IN_SHARES, neighbours="zero-out")
    for good in (secure(), shared(), secure(privacy=in_shares, drop_outs=0), secure(privacy=style("none"))):
        assert find_refusals(good, BANKS) == ()
    assert [row.name for row in find_refusals(secure(privacy=style("user", client=IN_SHARES), drop_outs=0), BANKS)] == [
        "party-noise-neighbours"
    ]


def test_parties_that_one_holder_deals_out_are_told_to_be_a_simulation() -> None:
    dealt = [dataclasses.replace(bank, dataset="cards", holder="registry") for bank in BANKS]
    assert any("'registry' deals out itself is a simulation" in text for text in warnings(secure(), dealt))
    assert not any("simulation" in text for text in warnings(secure(), BANKS))
    assert not any("simulation" in text for text in warnings(plan(), dealt))


def test_a_simulation_that_loses_more_than_a_round_survives_is_warned_about() -> None:
    """Of five, with one allowed for: 1 − 0.7⁵ − 5·0.3·0.7⁴ = 0.47."""

    def lossy(chance: float) -> Plan:
        unlucky = FederationPlan(simulate=SimulatePlan(drop_outs=chance))
        return dataclasses.replace(secure(drop_outs=0.2), federation=unlucky)

    assert any("loses more than 1 of 5 parties in 47 % of rounds" in text for text in warnings(lossy(0.3), BANKS))
    assert not any("loses more" in text for text in (*warnings(lossy(0.01), BANKS), *warnings(lossy(0.0), BANKS)))


def test_delta_must_be_below_one_record_of_every_party_not_only_of_the_smallest() -> None:
    large = (*SITES, PartyFacts(name="registry", dataset="all", size=100_000))
    assert "delta-too-large" not in {row.name for row in find_refusals(plan(), SITES)}
    assert "delta-too-large" in {row.name for row in find_refusals(plan(), large)}


def test_a_delta_between_one_tenth_of_a_record_and_a_record_is_warned_about() -> None:
    assert not warnings(record(epsilon=1, delta=1 / 1990), SITES)
    told = warnings(record(epsilon=1, delta=1 / 1900), SITES)
    assert len(told) == 1 and "1/(10 n) = 0.000502513 for the 199 records" in told[0]


def test_style_none_is_not_asked_for_delta_or_noise() -> None:
    assert find_refusals(plan(privacy=style("none")), SITES) == ()


def test_parties_take_part_in_the_order_of_the_task() -> None:
    chosen = plan(federation=FederationPlan(parties=("va", "cleveland")))
    assert [facts.name for facts in taking_part(chosen, SITES)] == ["cleveland", "va"]
    assert taking_part(plan(), SITES) == SITES
