"""Secure aggregation in a resolved plan: the floor, who is honest at it, and charges that follow it."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from scipy.optimize import brentq
from scipy.special import ndtr

from quietsum.errors import PlanRefused
from quietsum.plan import (
    AggregationPlan,
    ClientPlan,
    FederationPlan,
    PartyFacts,
    PersonPlan,
    Plan,
    PrivacyPlan,
    RecordPlan,
    ResolvedPlan,
    SamplingPlan,
    StagePlan,
    TrainingPlan,
    resolve,
)
from quietsum.plan.promises import Style
from quietsum.plan.resolution.charging import observers
from quietsum.privacy.events import PoissonSampled, Repeated, Skellam
from quietsum.privacy.units import Neighbours, Observer, PrivacyUnit

SIZES = (900, 1000, 1100, 1200, 1300)
DIMENSION = 50


def banks(count: int = 5) -> list[PartyFacts]:
    return [PartyFacts(name=f"bank-{at}", dataset=f"cards-{at}", size=SIZES[at % 5]) for at in range(count)]


def clients(
    count: int = 20,
    noise: float | None = 4.0,
    rounds: int = 5,
    drawn: SamplingPlan | None = None,
    accounting: str = "exact",
    **keys: Any,
) -> ResolvedPlan:
    """A plan with clients' noise in shares."""
    promise: dict[str, Any] = {"noise_multiplier": noise} if noise is not None else {"epsilon": 4.0}
    plan = Plan(
        federation=FederationPlan(rounds=rounds, sampling=drawn or SamplingPlan()),
        training=TrainingPlan(sample_rate=0.5, local_steps=3),
        privacy=PrivacyPlan(
            style=Style.USER,
            neighbours=Neighbours.ZERO_OUT,
            accounting=accounting,
            client=ClientPlan(delta=1e-3, noise_at="distributed", max_norm=0.5, **promise),
        ),
        aggregation=AggregationPlan(secure=True, **({"drop_outs": 0.1} | keys)),
    )
    return resolve(plan, banks(count), DIMENSION)


def records(rate: float = 1.0, schedule: tuple[StagePlan, ...] = (), **keys: Any) -> ResolvedPlan:
    """A plan with records' noise in shares."""
    plan = Plan(
        federation=FederationPlan(rounds=6),
        training=TrainingPlan(sample_rate=rate, local_steps=1),
        privacy=PrivacyPlan(record=RecordPlan(noise_multiplier=5.0, delta=1e-5, noise_at="distributed")),
        aggregation=AggregationPlan(secure=True, **({"drop_outs": 0.2} | keys)),
        schedule=schedule,
    )
    return resolve(plan, banks(), DIMENSION)


def masked(count: int = 5, **keys: Any) -> ResolvedPlan:
    """A plan with masks alone."""
    plan = Plan(
        training=TrainingPlan(sample_rate=0.1, local_steps=2),
        privacy=PrivacyPlan(record=RecordPlan(noise_multiplier=5.0, delta=1e-5)),
        aggregation=AggregationPlan(secure=True, **keys),
    )
    return resolve(plan, banks(count), DIMENSION)


# ----------------------------------------------------------------------------------------------- the floor


@pytest.mark.parametrize(
    ("count", "keys", "threshold", "floor", "honest"),
    [
        (5, {"drop_outs": 0.2}, 4, 4, 3),
        (5, {"drop_outs": 0.0}, 4, 5, 4),
        (5, {"drop_outs": 0.4}, 3, 3, 2),
        (5, {"threshold": 3}, 3, 3, 2),  # unsaid drop-outs: as many as the threshold allows
        (5, {}, 4, 4, 3),
        (4, {}, 3, 3, 2),
        (10, {"drop_outs": 0.3, "colluders": 2}, 7, 7, 5),
        (5, {"drop_outs": 0.2, "adversary": "semi-malicious"}, 4, 4, 3),
    ],
)
def test_the_floor_is_the_smallest_cohort_and_honest_are_those_that_do_not_collude(
    count: int, keys: dict[str, Any], threshold: int, floor: int, honest: int
) -> None:
    found = masked(count, **keys).secure
    assert found is not None
    assert (found.parameters.threshold, found.floor, found.honest) == (threshold, floor, honest)
    assert found.honest == found.floor - found.colluders and found.may_drop == count - floor


def test_a_stated_minimum_raises_the_floor_that_parties_insist_on() -> None:
    from quietsum.party.secure import terms_of

    plan = records().plan
    wanted = dataclasses.replace(plan, federation=dataclasses.replace(plan.federation, minimum_parties=5))
    found = resolve(wanted, banks(), DIMENSION)
    assert found.secure is not None and (found.secure.floor, found.secure.honest, found.secure.may_drop) == (5, 4, 0)
    noise = found.noise_shares(PrivacyUnit.RECORD)
    assert noise is not None and noise.honest == 4
    assert terms_of(found, ("run", 1, 1), "0" * 64).floor == 5, "what parties hold is what is charged"
    assert terms_of(records(), ("run", 1, 1), "0" * 64).floor == 4


def test_a_cohort_of_a_fixed_size_has_its_own_floor() -> None:
    found = clients(30, drawn=SamplingPlan(kind="fixed-size", size=10)).secure
    assert found is not None and (found.cohort, found.floor, found.honest) == (10, 9, 8)


def test_many_parties_get_the_sparse_graph() -> None:
    found = masked(200, drop_outs=0.1, colluders=10).secure
    assert found is not None and not found.parameters.complete and found.parameters.neighbours < 100


def test_of_many_parties_a_threshold_may_lie_below_the_colluders_and_unsaid_drop_outs_are_a_tenth() -> None:
    """The table of degrees and thresholds: of 100 with 10 colluders and 10 drop-outs, 11 of 22 neighbours."""
    found = masked(100, colluders=10).secure
    assert found is not None and (found.parameters.threshold, found.parameters.neighbours) == (11, 22)
    assert found.may_drop == 10 and found.honest == 80
    stated = masked(100, colluders=10, threshold=11).secure
    assert stated is not None and stated == found


def test_what_no_graph_can_do_is_refused_with_a_way_out() -> None:
    with pytest.raises(PlanRefused, match="enrol more parties"):
        masked(6, drop_outs=0.5, adversary="semi-malicious")


def test_a_plan_without_masks_has_no_secure_part_and_masks_alone_change_no_charge() -> None:
    bare = resolve(dataclasses.replace(masked().plan, aggregation=AggregationPlan()), banks(), DIMENSION)
    assert bare.secure is None and bare.distributed_unit is None
    assert masked().charges() == bare.charges() and masked().limits == bare.limits


def test_dealt_out_parties_are_a_simulation() -> None:
    dealt = [dataclasses.replace(bank, dataset="cards", holder="registry") for bank in banks()]
    found = resolve(masked().plan, dealt, DIMENSION).secure
    assert found is not None and found.simulated
    own = masked().secure
    assert own is not None and not own.simulated


# ------------------------------------------------------------------------------------------- noise in shares


def skellam_epsilon(multiplier: float, sensitivity: float, dimension: int, rounds: int, delta: float) -> float:
    """An oracle of its own: Agarwal, Kairouz, Liu 2021, Theorem 3.5 in units of the grid, converted at whole orders."""
    steps = float(max(1 << 10, 1 << math.ceil(math.log2(1000 * math.sqrt(dimension)))))
    variance, two = (multiplier * steps) ** 2, sensitivity * steps
    one = two * min(math.sqrt(dimension), two)
    best = math.inf
    for order in range(2, 400):
        extra = min(((2 * order - 1) * two**2 + 6 * one) / (4 * variance**2), 3 * one / (2 * variance))
        renyi = rounds * (order * two**2 / (2 * variance) + extra)
        best = min(best, renyi + math.log(1 - 1 / order) - math.log(delta * order) / (order - 1))
    return best


def gaussian_epsilon(multiplier: float, sensitivity: float, rounds: int, delta: float) -> float:
    """Another: Balle and Wang 2018, Theorem 8, of so many Gaussian releases together."""
    mu = math.sqrt(rounds) * sensitivity / multiplier

    def excess(epsilon: float) -> float:
        low, high = -mu / 2 - epsilon / mu, mu / 2 - epsilon / mu
        return float(ndtr(high) - math.exp(epsilon) * ndtr(low)) - delta

    return float(brentq(excess, 0.0, 50.0, xtol=1e-12))


def test_a_client_charge_equals_a_recomputation_at_the_floor() -> None:
    resolved = clients()
    whole = resolved.forecast(()).whole
    noise = resolved.noise_shares(PrivacyUnit.CLIENT)
    assert noise is not None and noise.honest == 17 and noise.max_norm == 0.5  # 20 − 2 lost − 1 colluder
    steps = noise.scale * noise.max_norm
    told = skellam_epsilon(4.0, noise.l2_sensitivity / steps, DIMENSION, 5, 1e-3)
    assert {one.observer for one in whole} == set(Observer)
    exact = gaussian_epsilon(4.0, noise.l2_sensitivity / steps, 5, 1e-3)
    for one in whole:
        assert exact <= one.epsilon <= exact * 1.001 < told  # through the Gaussian next to it, and below the moments'
    by_moments = clients(accounting="rdp").forecast(()).whole
    assert [one.epsilon for one in by_moments] == pytest.approx([told] * len(by_moments), rel=2e-3)
    # the control: at the noise that all 20 would add, it would look cheaper by a tenth
    assert skellam_epsilon(4.0 * math.sqrt(20 / 17), noise.l2_sensitivity / steps, DIMENSION, 5, 1e-3) < 0.95 * told
    assert gaussian_epsilon(4.0 * math.sqrt(20 / 17), noise.l2_sensitivity / steps, 5, 1e-3) < 0.95 * exact


def test_the_variance_of_one_share_is_that_of_the_sum_over_the_honest_of_the_floor() -> None:
    noise = clients().noise_shares(PrivacyUnit.CLIENT)
    assert noise is not None
    assert noise.share_variance * 17 == pytest.approx((4.0 * 0.5 * noise.scale) ** 2)
    assert noise.deviation(17) == pytest.approx(4.0 * 0.5)


def test_clients_are_charged_unamplified_against_both_observers() -> None:
    resolved = clients(30, drawn=SamplingPlan(kind="fixed-size", size=10))
    (charge, *_) = resolved.charges()
    assert isinstance(charge.event, Repeated) and isinstance(charge.event.event, Skellam)
    assert set(charge.observers) == set(Observer) == set(observers(resolved, PrivacyUnit.CLIENT))
    assert len(resolved.charges()) == 30  # every registered party, whoever is drawn


def test_records_are_amplified_by_the_draw_inside_the_party_at_one_rate() -> None:
    resolved = records(rate=0.1)
    for charge in resolved.charges():
        assert isinstance(charge.event, Repeated) and charge.event.times == 1
        assert isinstance(charge.event.event, PoissonSampled) and charge.event.event.rate == 0.1
        assert charge.event.event.event == resolved.noise_shares(PrivacyUnit.RECORD).event()  # type: ignore[union-attr]
        assert set(charge.observers) == set(Observer)
    whole = resolved.forecast(()).whole
    assert len(whole) == 2 and whole[0].epsilon == whole[1].epsilon < records(rate=1.0).forecast(()).whole[0].epsilon


def test_fewer_drop_outs_allowed_for_cost_the_same_and_need_smaller_shares() -> None:
    """The price is that of the noise multiplier, at the floor; the floor decides how large each share is."""
    few, many = records(drop_outs=0.0), records(drop_outs=0.4)
    assert few.limits[0].epsilon == pytest.approx(many.limits[0].epsilon, rel=1e-6)
    shares = [plan.noise_shares(PrivacyUnit.RECORD) for plan in (few, many)]
    assert shares[0] is not None and shares[1] is not None
    assert shares[1].share_variance / shares[0].share_variance == pytest.approx(4 / 2)


def test_a_target_is_met_by_the_smallest_noise() -> None:
    resolved = clients(noise=None)
    assert resolved.client_noise is not None
    spent = resolved.forecast(()).whole[0].epsilon
    assert 4.0 * (1 - 1e-6) < spent <= 4.0
    less = dataclasses.replace(resolved, client_noise=resolved.client_noise * 0.999)
    assert less.forecast(()).whole[0].epsilon > 4.0


def test_the_guarantee_names_the_method_that_priced_it() -> None:
    resolved = clients()
    assert resolved.terms().accounting == "exact"
    assert "through the Gaussian" in resolved.forecast(()).whole[0].method
    moments = dataclasses.replace(resolved.plan, privacy=dataclasses.replace(resolved.plan.privacy, accounting="rdp"))
    other = resolve(moments, banks(20), DIMENSION).forecast(()).whole[0]
    assert other.method.startswith("Rényi") and other.epsilon > resolved.forecast(()).whole[0].epsilon


# ------------------------------------------------------------------------------------ what a party is told


def test_orders_hold_the_shares_and_no_other_noise() -> None:
    orders = records().orders("bank-0")
    assert orders.mechanism is None and orders.client is None and orders.steps == 1
    assert orders.distributed is not None and orders.summed == orders.distributed
    whole = clients().orders("bank-0")
    assert whole.distributed is not None and whole.client is None and whole.summed is None
    assert masked().orders("bank-0").distributed is None and masked().orders("bank-0").mechanism is not None


def test_the_server_adds_no_noise_of_its_own() -> None:
    assert clients().client_mechanism(1) is None and not clients().central_noise


def test_a_schedule_changes_the_noise_and_clip_of_the_shares() -> None:
    stages = (StagePlan(rounds=3), StagePlan(rounds=3, noise=2.0, clip=0.5))
    resolved = records(schedule=stages)
    first, last = (resolved.noise_shares(PrivacyUnit.RECORD, number) for number in (1, 6))
    assert first is not None and last is not None
    assert (last.noise_multiplier, last.max_norm) == (2 * first.noise_multiplier, first.max_norm / 2)
    assert resolved.noise_of(PrivacyUnit.RECORD) == 5.0


def test_the_ball_holds_the_longest_batch_and_the_sum_cannot_wrap() -> None:
    noise = records(rate=0.1).noise_shares(PrivacyUnit.RECORD)
    assert noise is not None and noise.ball is not None
    assert 130 < noise.ball < 260  # rate · size of the largest party, and a tail
    assert 5 * noise.largest < 2**31


def test_a_sum_that_would_wrap_is_refused() -> None:
    large = [dataclasses.replace(bank, size=10**8) for bank in banks()]
    privacy = PrivacyPlan(record=RecordPlan(noise_multiplier=5.0, delta=1e-9, noise_at="distributed"))
    plan = dataclasses.replace(records().plan, privacy=privacy)
    with pytest.raises(
        PlanRefused, match=r"leaves no room for the sum.*aggregation.max_update or a smaller sample_rate"
    ):
        resolve(plan, large, DIMENSION)
    bounded = dataclasses.replace(plan, aggregation=dataclasses.replace(plan.aggregation, max_update=1e4))
    noise = resolve(bounded, large, DIMENSION).noise_shares(PrivacyUnit.RECORD)
    assert noise is not None and noise.ball == 1e4 and 5 * noise.largest < 2**31


def test_a_stated_ball_is_never_smaller_than_the_clip_nor_larger_than_the_longest_batch() -> None:
    for stated, ball in ((0.1, 1.0), (7.0, 7.0), (1e9, max(SIZES))):
        noise = records(max_update=stated).noise_shares(PrivacyUnit.RECORD)
        assert noise is not None and noise.ball == ball


def test_a_narrow_sum_is_rotated_and_noise_on_every_rotated_coordinate_is_charged() -> None:
    wide, narrow = clients(), clients(bits=16)
    assert (wide.coordinates(PrivacyUnit.CLIENT), narrow.coordinates(PrivacyUnit.CLIENT)) == (50, 64)
    noise = narrow.noise_shares(PrivacyUnit.CLIENT)
    assert noise is not None and noise.dimension == 64 and noise.bits == 16
    assert narrow.charges()[0].failure == noise.failure(64) > noise.failure(50)


def test_the_divisor_is_made_of_public_numbers() -> None:
    some = ("bank-0", "bank-2")
    assert records(rate=0.1).divisor(some) == pytest.approx(0.1 * (900 + 1100))
    assert clients().divisor(some) == 2.0
    assert masked().divisor(some) == pytest.approx((900 + 1100) / sum(SIZES))


def test_a_person_is_charged_for_all_records_and_never_more_than_generic_group_privacy_says() -> None:
    """The oracle is Vadhan's lemma on the record's own curve, which knows nothing of the noise."""
    from quietsum.privacy.groups import group_guarantee
    from quietsum.privacy.renyi.accountant import RenyiAccountant
    from quietsum.privacy.units import Neighbours

    alone = records(rate=0.1)
    privacy = dataclasses.replace(
        alone.plan.privacy, person=PersonPlan(id="card", max_records=3), neighbours=Neighbours.ZERO_OUT
    )
    found = resolve(dataclasses.replace(alone.plan, privacy=privacy), banks(), DIMENSION)
    record, person = (found.limit_of(unit) for unit in (PrivacyUnit.RECORD, PrivacyUnit.PERSON))
    assert record is not None and person is not None and person.epsilon > record.epsilon
    event = next(one.event for one in found.all_charges() if one.unit is PrivacyUnit.RECORD)
    curve = RenyiAccountant(neighbours=Neighbours.ZERO_OUT).compose(event)  # type: ignore[arg-type]
    assert person.epsilon <= group_guarantee(curve, size=3, delta=1e-5).epsilon


# ------------------------------------------------------------------------------------------- whatever is asked


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Plans of which one in ten is let through; the others are refused, each for reasons of its own."""

    def choice(*values: Any) -> Any:
        return draw(st.sampled_from(values))

    style = choice("none", "sample", "sample", "user", "hybrid")
    noise, where = st.floats(0.3, 30), choice("party", "distributed", "distributed")
    record = RecordPlan(noise_multiplier=draw(noise), delta=1e-5, noise_at=where if style == "sample" else "party")
    at = choice("distributed", "distributed", "party", "server")
    client = ClientPlan(noise_multiplier=draw(noise), delta=1e-3, noise_at=at)
    privacy = PrivacyPlan(
        style=style,
        record=record if style in ("sample", "hybrid") else None,
        client=client if style in ("user", "hybrid") else None,
        person=choice(None, None, PersonPlan(id="card", max_records=2)) if style == "sample" else None,
        neighbours=choice("zero-out", "zero-out", "replace-one", "add-or-remove-one"),
        distributed_noise=choice("skellam", "discrete-gaussian"),
    )
    aggregation = AggregationPlan(
        secure=choice(True, True, True, True, False),
        threshold=choice(None, None, None, 3, 4, 9),
        adversary=choice("curious", "semi-malicious"),
        colluders=choice(1, 1, 1, 2, 3),
        drop_outs=choice(None, 0.0, 0.1, 0.25, 0.5),
        bits=choice(32, 32, 32, 24, 16),
        rule=choice("mean", "mean", "mean", "mean", "median"),
    )
    training = choice(
        *[TrainingPlan(sample_rate=0.2, local_steps=1)] * 3, TrainingPlan(sample_rate=1.0), TrainingPlan()
    )
    drawn = choice(SamplingPlan(), SamplingPlan(), SamplingPlan(kind="fixed-size", size=5))
    federation = FederationPlan(rounds=draw(st.integers(1, 3)), sampling=drawn)
    return Plan(federation=federation, training=training, privacy=privacy, aggregation=aggregation)


@settings(max_examples=300, deadline=None)
@given(plan=plans(), count=st.integers(2, 12))
def test_whatever_is_asked_ends_in_a_plan_that_holds_together_or_in_a_refusal(plan: Plan, count: int) -> None:
    from quietsum.plan.resolution.card import card

    assert Plan.from_dict(plan.to_dict()) == plan
    try:
        found = resolve(plan, banks(count), DIMENSION)
    except PlanRefused:
        return
    secure, unit = found.secure, found.distributed_unit
    assert (secure is not None) is plan.aggregation.secure
    orders = found.orders("bank-0")
    if secure is not None:
        assert secure.honest >= 2 and secure.cohort - secure.colluders >= 3 and plan.aggregation.rule == "mean"
        assert secure.colluders < secure.parameters.threshold <= secure.floor or not secure.parameters.complete
        assert not found.central_noise
    if unit is None:
        assert orders.distributed is None
    else:
        assert secure is not None and orders.distributed is not None and orders.distributed.honest == secure.honest
        assert {one.observer for one in found.forecast(()).whole if one.unit is unit} == set(Observer)
    assert card(found)["one-sum"].provided is plan.aggregation.secure
    for one in found.charges():
        if found.protected:
            assert one.event is not None
