"""Clients, people and schedules in a plan: what they cost, by two ways of computing it, and who is charged."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest

from quietsum.errors import BudgetExhausted, PlanRefused
from quietsum.ledger import Ledger, MemoryStore
from quietsum.ledger.chain.export import export_ledger, verify_export
from quietsum.ledger.chain.keys import SigningKey
from quietsum.plan import (
    AdaptivePlan,
    ClientPlan,
    FederationPlan,
    LifetimePlan,
    PartyFacts,
    PersonPlan,
    Plan,
    PrivacyPlan,
    RecordPlan,
    ResolvedPlan,
    SamplingPlan,
    StagePlan,
    Style,
    TrainingPlan,
    resolve,
)
from quietsum.privacy.events import FixedSizeSampled, Gaussian, Group, PoissonSampled, Repeated
from quietsum.privacy.exact.accountant import ExactAccountant
from quietsum.privacy.pld.accountant import PldAccountant
from quietsum.privacy.renyi.accountant import RenyiAccountant
from quietsum.privacy.units import Neighbours, Observer, PrivacyUnit

RECORD, PERSON, CLIENT = PrivacyUnit.RECORD, PrivacyUnit.PERSON, PrivacyUnit.CLIENT


def clients(count: int, size: int = 20, holder: str = "phones") -> list[PartyFacts]:
    return [
        PartyFacts(name=f"client-{number:05d}", dataset="texts", size=size, holder=holder)
        for number in range(1, count + 1)
    ]


def plan(*, rounds: int = 10, rate: float | None = None, size: int | None = None, **parts: Any) -> Plan:
    kind = "poisson" if rate is not None else "fixed-size" if size is not None else "everyone"
    federation = FederationPlan(rounds=rounds, sampling=SamplingPlan(kind=kind, rate=rate, size=size))
    training = TrainingPlan(sample_rate=1.0, local_steps=1)
    return Plan(**{"federation": federation, "training": training, **parts})


def user(**numbers: Any) -> PrivacyPlan:
    return PrivacyPlan(style=Style.USER, client=ClientPlan(**{"delta": 1e-5, **numbers}))


def local(**numbers: Any) -> PrivacyPlan:
    """Noise at the party: who takes part is seen, what they hold is not."""
    return dataclasses.replace(user(noise_at="party", **numbers), neighbours=Neighbours.ZERO_OUT)


def in_ledger(resolved: ResolvedPlan, ledger: Ledger | None = None, run: str = "run") -> Ledger:
    ledger = ledger or Ledger.begin(MemoryStore(), SigningKey.generate())
    ledger.open_run(
        run, plan=resolved.plan.to_dict(), terms=resolved.terms(), planned=resolved.all_charges(),
        datasets=resolved.datasets(), lifetimes=resolved.lifetimes(),
    )  # fmt: skip
    return ledger


def epsilon(resolved: ResolvedPlan, unit: PrivacyUnit, observer: Observer = Observer.RECIPIENTS) -> float:
    found = [one for one in resolved.forecast(at=()).whole if one.unit is unit and one.observer is observer]
    assert len(found) == 1
    return found[0].epsilon


# ------------------------------------------------------------------------------------------------- clients


def test_a_thousand_rounds_at_noise_one_and_a_hundredth_of_the_clients_cost_1_83_not_0_38() -> None:
    """Rule 1: every registered party is charged every round. Charging those drawn alone would say .38."""
    resolved = resolve(plan(rounds=1000, rate=0.01, privacy=user(noise_multiplier=1.0)), clients(500), 7850)
    ledger = in_ledger(resolved)
    charges = resolved.charges([facts.name for facts in resolved.parties])
    for number in range(1, 1001):
        ledger.commit(ledger.reserve("run", number, 1, charges))
    (spent,) = ledger.spending("run")
    assert spent.unit is CLIENT and spent.observer is Observer.RECIPIENTS
    assert round(spent.epsilon, 2) == 1.83
    event = PoissonSampled(rate=0.01, event=Gaussian(noise_multiplier=1.0))
    referee = PldAccountant().compose(event, 1000).epsilon(delta=1e-5).epsilon
    assert spent.epsilon == pytest.approx(referee, rel=2e-3)
    drawn_only = ExactAccountant().compose(event, 10).epsilon(delta=1e-5).epsilon
    assert round(drawn_only, 2) == 0.38  # what a book of the ten rounds in which it was drawn would say


def test_the_noise_is_the_least_that_keeps_the_promise() -> None:
    resolved = resolve(plan(rounds=20, rate=0.1, privacy=user(epsilon=4.0)), clients(300), 100)
    noise = resolved.client_noise
    assert noise is not None

    def cost(noise: float) -> float:
        event = PoissonSampled(rate=0.1, event=Gaussian(noise_multiplier=noise))
        return ExactAccountant().compose(event, 20).epsilon(delta=1e-5).epsilon

    assert 4.0 * (1 - 1e-6) < cost(noise) <= 4.0
    assert cost(noise * 0.999) > 4.0
    assert epsilon(resolved, CLIENT) <= 4.0


def test_the_server_is_not_among_those_whom_its_own_noise_binds() -> None:
    resolved = resolve(plan(privacy=user(epsilon=8.0)), clients(100), 10)
    assert {one.observer for one in resolved.forecast(at=()).whole} == {Observer.RECIPIENTS}
    at_party = resolve(plan(privacy=local(epsilon=8.0)), clients(100), 10)
    assert {one.observer for one in at_party.forecast(at=()).whole} == set(Observer)


def test_noise_at_the_party_is_charged_without_amplification_and_travels_in_the_orders() -> None:
    resolved = resolve(plan(rate=0.1, privacy=local(noise_multiplier=5.0)), clients(100), 10)
    (charge,) = resolved.charges()
    assert charge.event == Repeated(times=1, event=Gaussian(noise_multiplier=5.0))
    orders = resolved.orders("client-00001")
    assert orders.client is not None and orders.client.event() == Gaussian(noise_multiplier=5.0)
    assert resolved.client_mechanism() is None
    assert any("amplifies nothing" in warning for warning in resolved.warnings)


def test_fixed_size_cohorts_cost_what_their_own_pair_costs() -> None:
    privacy = dataclasses.replace(user(noise_multiplier=2.0), neighbours=Neighbours.ZERO_OUT)
    resolved = resolve(plan(rounds=20, size=10, privacy=privacy), clients(100), 10)
    event = FixedSizeSampled(rate=0.1, event=Gaussian(noise_multiplier=2.0))
    assert resolved.charges()[0].event == Repeated(times=1, event=event)
    naive = RenyiAccountant(neighbours=Neighbours.ZERO_OUT).compose(event, 20).epsilon(delta=1e-5).epsilon
    assert 0.5 * naive < epsilon(resolved, CLIENT) < naive
    assert resolved.denominator == 10


def test_the_denominator_is_the_expected_cohort_and_public() -> None:
    parties = clients(200)
    assert resolve(plan(rate=0.1, privacy=user(epsilon=8.0)), parties, 5).denominator == pytest.approx(20)
    assert resolve(plan(privacy=user(epsilon=8.0)), parties, 5).denominator == 200


def test_all_clients_weigh_alike_whatever_they_hold() -> None:
    parties = [*clients(3), PartyFacts(name="giant", dataset="texts", size=10**6, holder="phones")]
    resolved = resolve(plan(privacy=user(epsilon=8.0, delta=1e-2)), parties, 5)
    assert {resolved.weight_of(facts.name) for facts in parties} == {0.25}


def test_a_holder_pays_once_for_all_its_clients_and_for_the_most_costly_of_them() -> None:
    """Each record is with one client, so the worst client's round is what any record pays."""
    parties = [dataclasses.replace(facts, size=10 * number) for number, facts in enumerate(clients(5), 2)]
    promise = PrivacyPlan(record=RecordPlan(noise_multiplier=1.5, delta=1e-4))
    resolved = resolve(plan(privacy=promise, training=TrainingPlan(batch_size=10)), parties, 5)
    (charge,) = resolved.charges()
    assert charge.party == "phones"
    assert charge.event == Repeated(times=6, event=PoissonSampled(rate=0.5, event=Gaussian(noise_multiplier=1.5)))
    assert [dataset.size for dataset in resolved.datasets()] == [200]
    alone = resolve(
        plan(privacy=promise, training=TrainingPlan(batch_size=10)),
        [dataclasses.replace(facts, holder="") for facts in parties], 5,
    )  # fmt: skip
    assert len(alone.charges()) == 5
    assert epsilon(resolved, RECORD) >= epsilon(alone, RECORD)


def test_ten_thousand_clients_are_one_charge() -> None:
    resolved = resolve(plan(rate=0.01, privacy=user(epsilon=8.0)), clients(10_000), 7850)
    assert len(resolved.charges([facts.name for facts in resolved.parties])) == 1


# -------------------------------------------------------------------------------------------------- hybrid


def hybrid(**numbers: Any) -> PrivacyPlan:
    return PrivacyPlan(
        style=Style.HYBRID,
        record=RecordPlan(noise_multiplier=numbers.pop("record", 1.0), delta=1e-6),
        client=ClientPlan(**{"noise_multiplier": 1.0, "delta": 1e-5, **numbers}),
    )


def test_hybrid_prints_two_units_and_never_a_sum() -> None:
    resolved = resolve(plan(rate=0.1, privacy=hybrid()), clients(200), 10)
    told = [(one.unit, one.observer) for one in resolved.forecast(at=()).whole]
    assert told == [(RECORD, Observer.SERVER), (RECORD, Observer.RECIPIENTS), (CLIENT, Observer.RECIPIENTS)]
    assert {charge.unit for charge in resolved.charges()} == {RECORD, CLIENT}
    assert [limit.unit for limit in resolved.limits] == [RECORD, CLIENT]


@pytest.mark.parametrize(("noise", "by_clients"), [(0.8, True), (50.0, False)])
def test_recipients_get_the_smaller_of_the_record_level_and_the_client_level_under_replace_one(
    noise: float, by_clients: bool
) -> None:
    resolved = resolve(plan(rate=0.1, privacy=hybrid(record=noise)), clients(200), 10)
    records = ExactAccountant().compose(Gaussian(noise_multiplier=noise), 10).epsilon(delta=1e-6).epsilon
    event = PoissonSampled(rate=0.1, event=Gaussian(noise_multiplier=1.0))
    replaced = ExactAccountant(neighbours=Neighbours.REPLACE_ONE).compose(event, 10).epsilon(delta=1e-6).epsilon
    assert (replaced < records) is by_clients
    assert epsilon(resolved, RECORD, Observer.SERVER) == pytest.approx(records, rel=1e-6)
    assert epsilon(resolved, RECORD, Observer.RECIPIENTS) == pytest.approx(min(records, replaced), rel=1e-6)
    method = next(
        one.method for one in resolved.forecast(at=()).whole if (one.unit, one.observer) == (RECORD, "recipients")
    )
    assert ("through the client level" in method) is by_clients


# -------------------------------------------------------------------------------------------------- people


def people(**numbers: Any) -> PrivacyPlan:
    record = numbers.pop("record", RecordPlan(noise_multiplier=4.0, delta=1e-6))
    return PrivacyPlan(record=record, person=PersonPlan(**{"id": "card", "max_records": 5, **numbers}))


def test_a_persons_epsilon_stands_beside_the_records_and_is_that_of_the_group() -> None:
    """One person with five records is not five strangers."""
    training = TrainingPlan(sample_rate=0.1, local_steps=3)
    resolved = resolve(plan(privacy=people(), training=training), clients(1, size=4000), 10)
    event = PoissonSampled(rate=0.1, event=Gaussian(noise_multiplier=4.0))
    replaced = ExactAccountant(neighbours=Neighbours.REPLACE_ONE)  # a record that leaves may let another in
    record = replaced.compose(event, 30).epsilon(delta=1e-6).epsilon
    person = ExactAccountant().compose(Group(size=5, event=event), 30).epsilon(delta=1e-6).epsilon
    assert epsilon(resolved, RECORD) == pytest.approx(record, rel=1e-6)
    assert epsilon(resolved, PERSON) == pytest.approx(person, rel=1e-6)
    assert person > 2 * record
    assert resolved.orders("client-00001").max_records == 5
    assert {charge.unit for charge in resolved.charges()} == {RECORD, PERSON}


def test_a_target_per_person_sets_the_noise() -> None:
    record = RecordPlan(delta=1e-6)
    resolved = resolve(plan(privacy=people(record=record, epsilon=2.0)), clients(1, size=4000), 10)
    assert 2.0 * (1 - 1e-6) < epsilon(resolved, PERSON) <= 2.0
    assert epsilon(resolved, RECORD) < 1.0
    both = resolve(
        plan(privacy=people(record=RecordPlan(epsilon=0.1, delta=1e-6), epsilon=2.0)), clients(1, size=4000), 10
    )
    assert epsilon(both, RECORD) <= 0.1 and epsilon(both, PERSON) < 2.0


def test_a_full_batch_counts_a_person_k_times() -> None:
    resolved = resolve(plan(privacy=people()), clients(1, size=4000), 10)
    expected = ExactAccountant().compose(Gaussian(noise_multiplier=4.0 / 5), 10).epsilon(delta=1e-6).epsilon
    assert epsilon(resolved, PERSON) == pytest.approx(expected, rel=1e-6)


# ------------------------------------------------------------------------------------------------ schedules


def test_a_schedule_is_a_heterogeneous_plan_round_by_round() -> None:
    stages = (
        StagePlan(rounds=4, noise=2.0, clip=0.5, learning_rate=3.0),
        StagePlan(rounds=6, noise=1.0, learning_rate=0.5),
    )
    privacy = PrivacyPlan(record=RecordPlan(noise_multiplier=1.5, delta=1e-5, max_grad_norm=0.4))
    resolved = resolve(plan(privacy=privacy, schedule=stages), clients(1, size=1000), 10)
    for number, noise, clip, rate in (
        (1, 3.0, 0.2, 1.5),
        (4, 3.0, 0.2, 1.5),
        (5, 1.5, 0.4, 0.25),
        (10, 1.5, 0.4, 0.25),
    ):
        orders = resolved.orders("client-00001", number)
        assert orders.mechanism is not None
        assert (orders.mechanism.noise_multiplier, orders.mechanism.max_norm) == pytest.approx((noise, clip))
        assert orders.learning_rate == pytest.approx(rate)
        (charge,) = resolved.charges(number=number)
        assert charge.event == Repeated(times=1, event=orders.mechanism.event())
    naive = ExactAccountant().compose(Gaussian(noise_multiplier=3.0), 4).compose(Gaussian(noise_multiplier=1.5), 6)
    assert epsilon(resolved, RECORD) == pytest.approx(naive.epsilon(delta=1e-5).epsilon, rel=1e-6)


def test_the_ledger_lets_a_schedule_run_to_its_end_and_no_further() -> None:
    stages = (StagePlan(rounds=2, noise=2.0), StagePlan(rounds=1))
    resolved = resolve(plan(rounds=3, privacy=user(epsilon=3.0), schedule=stages), clients(50), 10)
    ledger = in_ledger(resolved)
    for number in (1, 2, 3):
        ledger.commit(ledger.reserve("run", number, 1, resolved.charges(number=number)))
    assert 3.0 * (1 - 1e-6) < ledger.spending("run")[0].epsilon <= 3.0
    with pytest.raises(BudgetExhausted):
        ledger.reserve("run", 4, 1, resolved.charges(number=3))


def test_a_target_with_a_schedule_is_met_exactly() -> None:
    stages = (StagePlan(rounds=5, noise=1.0), StagePlan(rounds=5, noise=0.5))
    privacy = PrivacyPlan(record=RecordPlan(epsilon=2.0, delta=1e-5))
    resolved = resolve(plan(privacy=privacy, schedule=stages), clients(1, size=1000), 10)
    assert 2.0 * (1 - 1e-6) < epsilon(resolved, RECORD) <= 2.0


# ----------------------------------------------------------------------------------------- adaptive clipping


def test_update_and_count_together_cost_what_is_charged() -> None:
    """Andrew et al.: σ⁻² = σ_Δ⁻² + (2 σ_b)⁻²; the counts are bits less a half, so one client moves them by a half."""
    adaptive = AdaptivePlan(count_noise=5.0)
    resolved = resolve(plan(rate=0.1, privacy=user(noise_multiplier=2.0, adaptive=adaptive)), clients(1000), 10)
    server = resolved.client_mechanism(1, max_norm=0.3)
    assert server is not None and server.max_norm == 0.3
    joint = (server.noise_multiplier**-2 + (2 * 5.0) ** -2) ** -0.5
    assert 2.0 <= joint < 2.0 * (1 + 1e-9)
    event = PoissonSampled(rate=0.1, event=Gaussian(noise_multiplier=2.0))
    assert resolved.charges()[0].event == Repeated(times=1, event=event)


def test_a_count_that_costs_more_than_the_release_is_refused() -> None:
    adaptive = AdaptivePlan(count_noise=1.0)
    with pytest.raises(PlanRefused, match="alone costs more than the noise multiplier 2 of the whole release"):
        resolve(plan(rate=0.1, privacy=user(noise_multiplier=2.0, adaptive=adaptive)), clients(1000), 10)


def test_the_count_noise_is_a_twentieth_of_the_cohort_unless_stated() -> None:
    resolved = resolve(plan(rate=0.5, privacy=user(noise_multiplier=2.0, adaptive=AdaptivePlan())), clients(1000), 10)
    assert resolved.adaptive is not None and resolved.adaptive.count_noise == pytest.approx(25)


# ------------------------------------------------------------------------------------------ what it comes to


@pytest.mark.parametrize("rate", [None, 0.1])
def test_the_plan_says_how_many_parties_would_make_the_noise_bearable(rate: float | None) -> None:
    few = resolve(plan(rate=rate, privacy=user(epsilon=8.0, delta=1e-3)), clients(4), 1000)
    signal = few.client_signal()
    assert signal is not None and signal.length > 1 and signal.needed > 4
    enough = resolve(plan(rate=rate, privacy=user(epsilon=8.0, delta=1e-3)), clients(signal.needed), 1000)
    more = enough.client_signal()
    assert more is not None and 0.95 < more.length <= 1 and more.needed == signal.needed


def test_a_budget_of_one_unit_cannot_be_passed_by_with_a_run_of_another() -> None:
    """A run that protects clients alone would spend on records behind the back of their book."""
    lifetime = LifetimePlan(epsilon=5.0, delta=1e-5)
    records = PrivacyPlan(record=RecordPlan(epsilon=1.0, delta=1e-5, lifetime=lifetime))
    parties = [dataclasses.replace(facts, holder="") for facts in clients(3, size=1000)]
    ledger = in_ledger(resolve(plan(privacy=records), parties, 10))
    by_client = resolve(plan(privacy=user(epsilon=8.0, delta=1e-2)), parties, 10)
    with pytest.raises(PlanRefused, match="has a budget per record, and this plan would not be charged to it"):
        in_ledger(by_client, ledger, "second")
    both = PrivacyPlan(
        style=Style.HYBRID, record=RecordPlan(epsilon=1.0, delta=1e-5), client=ClientPlan(epsilon=8.0, delta=1e-2)
    )
    in_ledger(resolve(plan(privacy=both), parties, 10), ledger, "third")


def test_a_book_cannot_be_opened_after_runs_that_it_would_not_know_of() -> None:
    """What earlier runs cost a client was never bounded, so no lifetime per client can be promised any more."""
    parties = [dataclasses.replace(facts, holder="") for facts in clients(3, size=1000)]
    records = RecordPlan(epsilon=1.0, delta=1e-5, lifetime=LifetimePlan(epsilon=5.0, delta=1e-5))
    first = resolve(plan(privacy=PrivacyPlan(record=records)), parties, 10)
    ledger = in_ledger(first)
    ledger.commit(ledger.reserve("run", 1, 1, first.charges()))
    both = PrivacyPlan(style=Style.HYBRID, record=records, client=ClientPlan(epsilon=8.0, delta=1e-2))
    with pytest.raises(PlanRefused, match="which promised nothing per client"):
        in_ledger(resolve(plan(privacy=both), parties, 10), ledger, "second")
    in_ledger(first, ledger, "again")
    public = [dataclasses.replace(facts, public="made up") for facts in parties]
    open_data = resolve(plan(privacy=PrivacyPlan(record=RecordPlan(epsilon=1.0, delta=1e-5))), public, 10)
    other = in_ledger(open_data)
    other.commit(other.reserve("run", 1, 1, open_data.charges()))
    in_ledger(
        resolve(plan(privacy=dataclasses.replace(both, record=RecordPlan(epsilon=1.0, delta=1e-5))), public, 10),
        other,
        "2",
    )


def test_two_runs_that_are_open_at_once_cannot_pass_each_other_s_books_by() -> None:
    """Both were opened before either was charged; the one without a promise to clients is refused, whenever it asks."""
    parties = [dataclasses.replace(facts, holder="") for facts in clients(3, size=1000)]
    records = RecordPlan(epsilon=1.0, delta=1e-5, lifetime=LifetimePlan(epsilon=5.0, delta=1e-5))
    some = resolve(plan(privacy=PrivacyPlan(record=records)), parties, 10)
    hybrid = PrivacyPlan(style=Style.HYBRID, record=records, client=ClientPlan(epsilon=8.0, delta=1e-2))
    both = resolve(plan(privacy=hybrid), parties, 10)
    ledger = in_ledger(some, run="sample")
    in_ledger(both, ledger, "hybrid")
    for number in (1, 2):
        with pytest.raises(PlanRefused, match="per client"):
            ledger.reserve("sample", 1, 1, some.charges())
        ledger.commit(ledger.reserve("hybrid", number, 1, both.charges(number=number)))
    ledger.verify()


def test_a_party_that_refuses_every_round_does_not_close_its_own_books() -> None:
    """Its record charges go back, its client charges stay; the next round of the same plan is in order."""
    parties = [dataclasses.replace(facts, holder="") for facts in clients(3, size=1000)]
    both = PrivacyPlan(
        style=Style.HYBRID,
        record=RecordPlan(epsilon=1.0, delta=1e-5, lifetime=LifetimePlan(epsilon=5.0, delta=1e-5)),
        client=ClientPlan(epsilon=2.0, delta=1e-2, lifetime=LifetimePlan(epsilon=20.0, delta=1e-2)),
    )
    resolved = resolve(plan(privacy=both), parties, 10)
    ledger = in_ledger(resolved)
    for number in (1, 2, 3):
        receipt = ledger.reserve("run", number, 1, resolved.charges(number=number))
        ledger.refund(receipt, parties[0].name, "not today")
        ledger.commit(receipt)
    in_ledger(resolved, ledger, "next")


@pytest.mark.parametrize("factor", [1e-300, 1e300])
def test_a_stage_that_no_mechanism_can_have_is_refused_before_the_first_round(factor: float) -> None:
    stages = (StagePlan(rounds=5), StagePlan(rounds=5, clip=factor))
    with pytest.raises(PlanRefused, match=r"schedule\[1\] does not fit"):
        resolve(plan(privacy=user(epsilon=8.0), schedule=stages), clients(100), 10)


def test_infinite_costs_are_refused_by_unit() -> None:
    with pytest.raises(PlanRefused, match=r"privacy\.client\.noise_multiplier = 1e-05 gives no guarantee per client"):
        resolve(plan(privacy=user(noise_multiplier=1e-5)), clients(100), 10)
    assert math.isfinite(epsilon(resolve(plan(privacy=user(noise_multiplier=1.0)), clients(100), 10), CLIENT))


# ------------------------------------------------------------------------------------------------- rule 4


def test_drawing_parties_by_chance_earns_records_nothing() -> None:
    promise = PrivacyPlan(record=RecordPlan(noise_multiplier=1.0, delta=1e-5))
    training = TrainingPlan(sample_rate=0.1, local_steps=10)
    everyone = resolve(plan(privacy=promise, training=training), clients(10, size=100), 5)
    some = resolve(plan(rate=0.1, privacy=promise, training=training), clients(10, size=100), 5)
    assert some.charges() == everyone.charges()
    assert any("records gain nothing from that" in warning for warning in some.warnings)


@pytest.mark.parametrize("unit", [RECORD, PERSON])
def test_multiplied_rates_are_refused_by_the_ledger(unit: PrivacyUnit) -> None:
    """The steps of a round share one draw of parties; multiplying the rates would report 2.45 where 12.1 is true."""
    step = PoissonSampled(rate=0.1, event=Gaussian(noise_multiplier=1.0))
    promise = PrivacyPlan(record=RecordPlan(noise_multiplier=1.0, delta=1e-5))
    honest = resolve(plan(privacy=promise), clients(1, size=1000), 5)
    for event in (
        PoissonSampled(rate=0.1, event=step),
        Repeated(times=10, event=PoissonSampled(rate=0.1, event=step)),
        FixedSizeSampled(rate=0.1, event=Repeated(times=3, event=step)),
    ):
        charge = dataclasses.replace(honest.all_charges()[0], event=event, unit=unit)
        ledger = Ledger.begin(MemoryStore(), SigningKey.generate())
        with pytest.raises(PlanRefused, match=r"multiplied rates report 2\.45 where 12\.1 is true"):
            ledger.open_run(
                "run", plan=honest.plan.to_dict(), terms=honest.terms(), planned=[charge], datasets=honest.datasets()
            )


def test_an_export_with_withheld_refunds_is_not_blamed_for_what_it_cannot_show(tmp_path: Path) -> None:
    """Run one took all its charges back, so run two may promise more; the export does not show the refunds."""
    parties = [dataclasses.replace(facts, holder="") for facts in clients(2, size=1000)]
    records = RecordPlan(epsilon=1.0, delta=1e-5, lifetime=LifetimePlan(epsilon=5.0, delta=1e-5))
    first = resolve(plan(privacy=PrivacyPlan(record=records)), parties, 10)
    ledger = in_ledger(first, run="first")
    receipt = ledger.reserve("first", 1, 1, first.charges())
    for facts in parties:
        ledger.refund(receipt, facts.name, "not today")
    ledger.commit(receipt)
    hybrid = PrivacyPlan(style=Style.HYBRID, record=records, client=ClientPlan(epsilon=8.0, delta=1e-2))
    second = resolve(plan(privacy=hybrid), parties, 10)
    in_ledger(second, ledger, "second")
    ledger.commit(ledger.reserve("second", 1, 1, second.charges()))
    ledger.verify()
    export_ledger(ledger, tmp_path / "book.jsonl")
    verify_export(tmp_path / "book.jsonl")
