"""The house plan lists what is refused (§6b); here every line of it is provoked, and its sentence is read."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from quietsum.errors import InvalidParameter, MixedUnits, PlanRefused, QuietsumError
from quietsum.ledger import Ledger, MemoryStore
from quietsum.ledger.chain.keys import SigningKey
from quietsum.plan import (
    AggregationPlan,
    ClientPlan,
    FederationPlan,
    PartyFacts,
    Plan,
    PrivacyPlan,
    RecordPlan,
    SamplingPlan,
    Style,
    TrainingPlan,
    resolve,
)
from quietsum.privacy.events import Gaussian, PoissonSampled
from quietsum.privacy.exact.accountant import ExactAccountant
from quietsum.privacy.units import Neighbours, PrivacyUnit

SITES = [PartyFacts(name=f"site-{number}", dataset=f"visits-{number}", size=200) for number in range(4)]
RECORD = RecordPlan(epsilon=1.0, delta=1e-4)
CLIENT = ClientPlan(epsilon=8.0, delta=1e-2)


def refused(parties: list[PartyFacts] = SITES, **parts: Any) -> Callable[[], object]:
    return lambda: resolve(Plan(**{"privacy": PrivacyPlan(record=RECORD), **parts}), parties, 10)


def both(**numbers: Any) -> PrivacyPlan:
    return PrivacyPlan(style=Style.USER, client=dataclasses.replace(CLIENT, **numbers))


def multiplied() -> None:
    honest = resolve(Plan(privacy=PrivacyPlan(record=RECORD)), SITES[:1], 10)
    event = PoissonSampled(rate=0.5, event=PoissonSampled(rate=0.1, event=Gaussian(noise_multiplier=1.0)))
    charge = dataclasses.replace(honest.all_charges()[0], event=event)
    ledger = Ledger.begin(MemoryStore(), SigningKey.generate())
    ledger.open_run(
        "run", plan=honest.plan.to_dict(), terms=honest.terms(), planned=[charge], datasets=honest.datasets()
    )


def added() -> None:
    accountant = ExactAccountant().compose(Gaussian(noise_multiplier=2.0))
    record = accountant.epsilon(delta=1e-5)
    record + dataclasses.replace(record, unit=PrivacyUnit.CLIENT)


def mixing_model() -> None:
    torch = pytest.importorskip("torch")
    from quietsum.learning.clients.local import LocalSteps
    from quietsum.learning.step import cross_entropy

    LocalSteps(torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2)), cross_entropy)


def laplace_with_another_clip() -> None:
    pytest.importorskip("torch")
    from quietsum.learning.config import PrivacyConfig

    PrivacyConfig(epsilon=1.0, noise_type="laplace", clipping="automatic")


REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "secure aggregation with a rule that needs individuals": (
        refused(aggregation=AggregationPlan(secure=True, rule="median")),
        "this rule has no single updates to judge",
    ),
    "secure aggregation with fewer than three parties": (
        refused(SITES[:2], aggregation=AggregationPlan(secure=True)),
        "of a sum of two, each knows the other's share",
    ),
    "central client-level noise after a rule without sensitivity": (
        refused(privacy=both(), aggregation=AggregationPlan(rule="signguard")),
        "has no bound on how far one client moves its result",
    ),
    "Poisson amplification for shuffled batches": (
        refused(training=TrainingPlan(batches="shuffled")),
        "counts on every record being drawn by its own coin",
    ),
    "Poisson amplification for batches of a fixed size": (
        refused(training=TrainingPlan(batches="fixed-size")),
        "counts on every record being drawn by its own coin",
    ),
    "amplification by the cohort against the server": (
        refused(
            privacy=both(against="server"),
            federation=FederationPlan(sampling=SamplingPlan(kind="poisson", rate=0.5)),
        ),
        "sees every update before its noise and knows whom it drew",
    ),
    "amplification by the cohort for records": (multiplied, "multiplied rates report 2.45 where 12.1 is true"),
    "δ of 1/n per record": (
        refused(privacy=PrivacyPlan(record=RecordPlan(epsilon=1.0, delta=1 / 200))),
        "may publish one record in full",
    ),
    "δ of 1/N per client": (refused(privacy=both(delta=0.25)), "may give one client away in full"),
    "secure aggregation with fewer than three honest parties": (
        refused(SITES, aggregation=AggregationPlan(secure=True, colluders=2)),
        "fewer than three honest parties hide no update",
    ),
    "distributed noise without a floor for drop-outs": (
        refused(
            privacy=PrivacyPlan(record=dataclasses.replace(RECORD, noise_at="distributed")),
            aggregation=AggregationPlan(secure=True),
            training=TrainingPlan(sample_rate=0.1, local_steps=1),
        ),
        "parties that drop out take their noise along",
    ),
    "BatchNorm under record-level privacy": (mixing_model, "BatchNorm"),
    "Laplace noise with an L2 clip": (laplace_with_another_clip, "Laplace noise is scaled by the L1 norm"),
    "weights from private example counts": (
        refused(privacy=both(), aggregation=AggregationPlan(weights="size")),
        "a client's number of records is its own secret",
    ),
    "a noise multiplier with a target ε per record": (
        refused(privacy=PrivacyPlan(record=dataclasses.replace(RECORD, noise_multiplier=1.0))),
        "one of them would be wrong",
    ),
    "a noise multiplier with a target ε per client": (
        refused(privacy=both(noise_multiplier=1.0)),
        "one of them would be wrong",
    ),
    "epsilons of different units added": (added, "ε of different units have no common meaning"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_every_line_of_the_house_plan_is_refused_with_its_sentence(name: str) -> None:
    provoke, sentence = REFUSED[name]
    with pytest.raises((PlanRefused, InvalidParameter, MixedUnits, QuietsumError)) as caught:
        provoke()
    assert sentence in str(caught.value)


def test_their_good_neighbours_pass() -> None:
    """The control: what differs from a refused plan in the refused point alone is let through."""
    refused()()
    refused(privacy=both())()
    refused(
        privacy=dataclasses.replace(both(noise_at="party", against="server"), neighbours=Neighbours.ZERO_OUT),
        federation=FederationPlan(sampling=SamplingPlan(kind="poisson", rate=0.5)),
    )()
    refused(privacy=PrivacyPlan(record=RecordPlan(noise_multiplier=1.0, delta=1e-4)))()
