"""Resolving a plan: one noise for all, calibrated to the worst party's whole plan, and charges that say the same."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from hypothesis import given, settings, strategies as st

from quietsum.errors import BudgetExhausted, InvalidParameter, PlanRefused
from quietsum.ledger import Ledger, MemoryStore
from quietsum.ledger.chain.keys import SigningKey
from quietsum.mechanisms.gaussian import ClippedSum, Mode
from quietsum.mechanisms.rng import system_randomness
from quietsum.plan import (
    AggregationPlan,
    FederationPlan,
    LifetimePlan,
    PartyFacts,
    Plan,
    PrivacyPlan,
    RecordPlan,
    ResolvedPlan,
    SamplingPlan,
    TrainingPlan,
    resolve,
)
from quietsum.plan.promises import Style
from quietsum.plan.resolution import resolved as resolved_module
from quietsum.plan.resolution.forecast import Profile, worst
from quietsum.privacy.events import Gaussian, PoissonSampled, Repeated
from quietsum.privacy.exact.accountant import ExactAccountant
from quietsum.privacy.units import Neighbours, Observer, PrivacyUnit
from quietsum.sampling import Everyone, Poisson

SIZES = {"cleveland": 199, "hungarian": 172, "switzerland": 30, "va": 85}


def sites(sizes: dict[str, int] | Sequence[int] = SIZES, public: str = "") -> tuple[PartyFacts, ...]:
    named = sizes if isinstance(sizes, dict) else {f"site-{index}": size for index, size in enumerate(sizes)}
    return tuple(
        PartyFacts(name=name, dataset=f"{name}-data", size=size, public=public) for name, size in named.items()
    )


def plan(
    *,
    rounds: int = 20,
    spare: int = 0,
    training: TrainingPlan | None = None,
    privacy: PrivacyPlan | None = None,
    federation: dict[str, Any] | None = None,
    weights: str = "size",
    **record: Any,
) -> Plan:
    promise = RecordPlan(**(record or {"epsilon": 1.0, "delta": 1e-4}))
    return Plan(
        federation=FederationPlan(rounds=rounds, spare_attempts=spare, **(federation or {})),
        training=training or TrainingPlan(batch_size=16),
        privacy=privacy or PrivacyPlan(record=promise),
        aggregation=AggregationPlan(weights=weights),
    )


def naive_epsilon(resolved: ResolvedPlan, party: str, rounds: int, delta: float) -> float:
    """Step after step through the accountant, from the declared numbers alone."""
    size = next(facts.size for facts in resolved.parties if facts.name == party)
    training = resolved.plan.training
    rate = training.sample_rate if training.sample_rate is not None else training.batch_size / size  # type: ignore[operator]
    steps = training.local_steps or math.ceil(1 / rate - 1e-9) * (training.local_epochs or 1)
    accountant = ExactAccountant(neighbours=resolved.plan.privacy.neighbours)
    noise = Gaussian(noise_multiplier=resolved.noise_multiplier or 0.0)
    for _ in range(rounds):
        for _ in range(steps):
            accountant.compose(PoissonSampled(rate=rate, event=noise))
    return accountant.epsilon(delta=delta).epsilon


def peer_epsilon(accountant: Any, rate: float, noise: float, steps: int, delta: float) -> float:
    event = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(noise))
    return float(accountant.compose(event, steps).get_epsilon(delta))


# -------------------------------------------------------------------------------------------- calibration


@pytest.mark.parametrize(
    "training",
    [
        TrainingPlan(batch_size=16),
        TrainingPlan(batch_size=30, local_epochs=2),
        TrainingPlan(sample_rate=0.5, local_steps=1),
        TrainingPlan(sample_rate=1.0, local_steps=2),
        TrainingPlan(sample_rate=0.3),
    ],
)
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 10.0])
def test_the_noise_is_the_least_with_which_the_worst_partys_whole_plan_fits(
    training: TrainingPlan, epsilon: float
) -> None:
    """First oracle: every step of every round composed one by one."""
    resolved = resolve(plan(rounds=5, spare=1, training=training, epsilon=epsilon, delta=1e-4), sites(), 15)
    spent = max(naive_epsilon(resolved, party, 6, 1e-4) for party in SIZES)
    assert spent <= epsilon
    assert spent == pytest.approx(epsilon, rel=1e-6)


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_another_library_confirms_the_noise(epsilon: float) -> None:
    """Second oracle: dp-accounting's loss distributions bound it closely, its Rényi divergences from further above."""
    training = TrainingPlan(sample_rate=0.2, local_steps=3)
    resolved = resolve(plan(rounds=10, training=training, epsilon=epsilon, delta=1e-5), sites(), 15)
    noise = resolved.noise_multiplier
    assert noise is not None
    close = peer_epsilon(PLDAccountant(value_discretization_interval=1e-4), 0.2, noise, 30, 1e-5)
    loose = peer_epsilon(RdpAccountant(), 0.2, noise, 30, 1e-5)
    assert epsilon * (1 - 1e-6) <= close <= epsilon * 1.01
    assert epsilon <= loose <= epsilon * 1.5
    less = peer_epsilon(PLDAccountant(value_discretization_interval=1e-4), 0.2, noise * 0.97, 30, 1e-5)
    assert less > epsilon * 1.02  # the negative control: with 3 % less noise the referee objects


@given(
    st.lists(st.integers(20, 3000), min_size=1, max_size=5),
    st.integers(1, 20),
    st.integers(1, 30),
    st.integers(0, 3),
    st.sampled_from([0.2, 1.0, 5.0]),
)
@settings(max_examples=25)
def test_no_party_ever_exceeds_the_promise(
    sizes: list[int], batch: int, rounds: int, spare: int, epsilon: float
) -> None:
    training = TrainingPlan(batch_size=batch, local_epochs=1)
    resolved = resolve(
        plan(rounds=rounds, spare=spare, training=training, epsilon=epsilon, delta=3e-5), sites(sizes), 3
    )
    for facts in resolved.parties:
        steps = math.ceil(facts.size / batch) * (rounds + spare)
        accountant = ExactAccountant()
        noise = Gaussian(noise_multiplier=resolved.noise_multiplier or 0.0)
        accountant.compose(PoissonSampled(rate=batch / facts.size, event=noise), steps)
        assert accountant.epsilon(delta=3e-5).epsilon <= epsilon


def test_record_level_epsilon_of_unequal_sites_is_the_worst_sites_not_the_mean() -> None:
    training = TrainingPlan(batch_size=20, local_steps=5)
    resolved = resolve(plan(training=training, noise_multiplier=2.0, delta=1e-4), sites(), 15)
    each = {party: naive_epsilon(resolved, party, 20, 1e-4) for party in SIZES}
    forecast = resolved.forecast()
    assert forecast.rows[-1].party == "switzerland" == max(each, key=lambda party: each[party])
    worst = each["switzerland"]
    assert worst <= forecast.rows[-1].epsilon <= worst * (1 + 1e-6)  # a millionth of δ is kept for the noise itself
    assert forecast.rows[-1].epsilon > 1.5 * sum(each.values()) / len(each)


def test_the_worst_party_may_change_with_the_rounds_and_every_row_has_its_own() -> None:
    """Few draws at a high rate against many at a low one."""
    profiles = [Profile(rate=0.5, steps=1), Profile(rate=0.1, steps=10)]
    assert set(worst(profiles)) == set(profiles)
    assert worst([Profile(rate=0.5, steps=1), Profile(rate=0.4, steps=1)]) == (Profile(rate=0.5, steps=1),)


def test_one_noise_multiplier_holds_for_all_parties() -> None:
    resolved = resolve(plan(), sites(), 15)
    noises = {charge.event.event.event.noise_multiplier for charge in resolved.all_charges()}  # type: ignore[union-attr]
    assert noises == {resolved.noise_multiplier}


def test_spare_attempts_are_paid_for_in_advance() -> None:
    without, with_spares = (resolve(plan(rounds=10, spare=spare), sites(), 15) for spare in (0, 5))
    longer = resolve(plan(rounds=15), sites(), 15)
    assert with_spares.noise_multiplier == longer.noise_multiplier
    assert (without.noise_multiplier or 0) < (with_spares.noise_multiplier or 0)
    forecast = with_spares.forecast()
    assert len(forecast.rows) == 10
    assert forecast.rows[-1].epsilon < forecast.whole[0].epsilon <= 1.0


def test_looser_accounting_asks_for_more_noise() -> None:
    noises = []
    for accounting in ("exact", "rdp", "moments"):
        privacy = PrivacyPlan(record=RecordPlan(epsilon=1, delta=1e-4), accounting=accounting)
        resolved = resolve(plan(privacy=privacy), sites(), 15)
        assert resolved.forecast([20]).whole[0].epsilon <= 1.0
        noises.append(resolved.noise_multiplier or 0.0)
    assert noises == sorted(noises) and noises[0] < noises[1] < noises[2]


def test_replace_one_needs_about_twice_the_noise_and_zero_out_the_same() -> None:
    noise = {}
    for neighbours in Neighbours:
        privacy = PrivacyPlan(record=RecordPlan(epsilon=1, delta=1e-4), neighbours=neighbours)
        resolved = resolve(plan(privacy=privacy), sites(), 15)
        spent = max(naive_epsilon(resolved, party, 20, 1e-4) for party in SIZES)
        assert 0.999 < spent <= 1.0
        noise[neighbours] = resolved.noise_multiplier or 0.0
        assert resolved.terms().neighbours is neighbours
    assert noise[Neighbours.ZERO_OUT] == noise[Neighbours.ADD_REMOVE]
    assert 1.8 < noise[Neighbours.REPLACE_ONE] / noise[Neighbours.ADD_REMOVE] < 2.2


def test_a_stated_noise_gives_the_epsilon_of_the_whole_plan() -> None:
    resolved = resolve(plan(spare=4, noise_multiplier=2.0, delta=1e-4), sites(), 15)
    assert resolved.noise_multiplier == 2.0
    assert resolved.limit is not None
    expected = max(naive_epsilon(resolved, party, 24, 1e-4) for party in SIZES)
    assert expected <= resolved.limit.epsilon <= expected * (1 + 1e-6)


def test_a_noise_that_protects_nobody_is_refused() -> None:
    with pytest.raises(PlanRefused, match=r"noise_multiplier = 0\.1 gives no guarantee"):
        resolve(plan(noise_multiplier=0.1, delta=1e-4), sites(), 15)


def test_a_promise_that_no_noise_can_keep_is_refused() -> None:
    training = TrainingPlan(sample_rate=1.0, local_steps=10**9)
    with pytest.raises(PlanRefused, match="no noise fits"):
        resolve(plan(rounds=10**6, training=training, epsilon=1e-6, delta=1e-12), sites(), 15)


# ------------------------------------------------------------------------- the noise that is really added


@dataclasses.dataclass(frozen=True, kw_only=True)
class OtherMechanism:
    """A mechanism with a flaw: it rounds its noise by a factor, or misses its law by some probability a draw."""

    max_norm: float = 1.0
    noise_multiplier: float = 1.0
    factor: float = 1.0
    miss: float = 0.0
    label: str = ""

    def event(self) -> Gaussian:
        return Gaussian(noise_multiplier=self.noise_multiplier * self.factor)

    def failure(self, coordinates: int) -> float:
        return coordinates * self.miss


def resolved_with(monkeypatch: pytest.MonkeyPatch, **flaw: Any) -> ResolvedPlan:
    monkeypatch.setattr(resolved_module, "_mechanism", lambda *about: OtherMechanism(noise_multiplier=about[2], **flaw))
    return resolve(plan(), sites(), 15)


@pytest.mark.parametrize("factor", [0.9999, 1.0, 1.01])
def test_charges_follow_the_noise_as_the_mechanism_rounds_it(monkeypatch: pytest.MonkeyPatch, factor: float) -> None:
    resolved = resolved_with(monkeypatch, factor=factor)
    assert resolved.mechanism is not None
    assert resolved.noise_multiplier == resolved.mechanism.event().noise_multiplier
    assert max(naive_epsilon(resolved, party, 20, 1e-4) for party in SIZES) <= 1.0
    for charge in resolved.charges():
        assert isinstance(charge.event, Repeated) and isinstance(charge.event.event, PoissonSampled)
        assert charge.event.event.event == resolved.mechanism.event()


def test_what_the_noise_misses_of_its_law_is_taken_off_delta(monkeypatch: pytest.MonkeyPatch) -> None:
    """δ = δ₀ + (1 + e^ε) η with η over all draws of the whole plan."""
    honest = resolve(plan(), sites(), 15)
    resolved = resolved_with(monkeypatch, miss=1e-10)
    assert (resolved.noise_multiplier or 0) > (honest.noise_multiplier or 0)
    for facts in resolved.parties:
        draws = 15 * 20 * math.ceil(facts.size / 16)
        left = 1e-4 - (1 + math.e) * 1e-10 * draws
        accountant = ExactAccountant().compose(
            PoissonSampled(rate=16 / facts.size, event=Gaussian(noise_multiplier=resolved.noise_multiplier or 0)),
            20 * math.ceil(facts.size / 16),
        )
        assert accountant.epsilon(delta=left).epsilon <= 1.0
    assert {charge.failure for charge in resolved.charges()} == {
        15 * math.ceil(facts.size / 16) * 1e-10 for facts in resolved.parties
    }


def test_noise_that_misses_its_law_by_more_than_delta_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from quietsum.errors import QuietsumError

    with pytest.raises(QuietsumError, match="no noise near"):
        resolved_with(monkeypatch, miss=1e-6)


def test_fast_noise_is_labelled_wherever_its_figure_stands() -> None:
    privacy = PrivacyPlan(record=RecordPlan(epsilon=1, delta=1e-4), noise="fast")
    resolved = resolve(plan(privacy=privacy), sites(), 15)
    assert resolved.mechanism is not None and resolved.mechanism.mode is Mode.FAST
    forecast = resolved.forecast()
    guarantees = [one for row in forecast.rows for one in row.guarantees] + list(forecast.whole)
    assert all("not floating-point safe" in guarantee.warnings for guarantee in guarantees)
    assert any("not floating-point safe" in warning for warning in resolved.warnings)
    quiet = resolve(plan(), sites(), 15)
    assert not any("floating" in one for row in quiet.forecast().rows for g in row.guarantees for one in g.warnings)


# ---------------------------------------------------------------------------- charges, terms and the ledger


def test_record_level_gets_no_amplification_from_cohort_sampling() -> None:
    """Rule 4. The steps of a round share one draw of the cohort, so a smaller rate would be a lie."""
    everyone = resolve(plan(), sites(), 15)
    drawn = resolve(plan(federation={"sampling": SamplingPlan(kind="poisson", rate=0.1)}), sites(), 15)
    assert drawn.noise_multiplier == everyone.noise_multiplier
    assert drawn.charges() == everyone.charges() and drawn.all_charges() == everyone.all_charges()
    assert [charge.party for charge in drawn.charges()] == list(SIZES)
    assert any("records gain nothing" in warning for warning in drawn.warnings)
    step = Gaussian(noise_multiplier=everyone.noise_multiplier or 0.0)
    steps = 20 * everyone.steps_of("switzerland")
    lie = ExactAccountant().compose(PoissonSampled(rate=0.1 * 16 / 30, event=step), steps).epsilon(delta=1e-4)
    assert lie.epsilon < 0.2  # the negative control: multiplied rates would report this instead of 1


def test_every_registered_party_is_charged_every_round() -> None:
    resolved = resolve(plan(), sites(), 15)
    assert [charge.party for charge in resolved.charges(["va", "cleveland"])] == ["va", "cleveland"]
    assert resolved.charges(resolved.parties) == resolved.charges()
    with pytest.raises(InvalidParameter, match="takes no part"):
        resolved.charges(["basel"])


def test_a_charge_says_all_of_it() -> None:
    resolved = resolve(plan(), sites(), 15)
    charge = resolved.charges(["switzerland"])[0]
    assert (charge.party, charge.dataset, charge.unit) == ("switzerland", "switzerland-data", PrivacyUnit.RECORD)
    assert charge.observers == (Observer.SERVER, Observer.RECIPIENTS)
    step = PoissonSampled(rate=16 / 30, event=Gaussian(noise_multiplier=resolved.noise_multiplier or 0.0))
    assert charge.event == Repeated(times=2, event=step)
    assert resolved.all_charges()[2].event == Repeated(times=40, event=step)
    assert charge.failure == ClippedSum(max_norm=1, noise_multiplier=1).failure(30)


@pytest.mark.parametrize(("spare", "extra"), [(0, 0), (3, 3)])
def test_the_ledger_lets_in_the_whole_plan_and_not_one_round_more(spare: int, extra: int) -> None:
    resolved = resolve(plan(rounds=6, spare=spare), sites(), 15)
    ledger = Ledger.begin(MemoryStore(), SigningKey.generate())
    ledger.open_run(
        "run", plan=resolved.plan.to_dict(), terms=resolved.terms(), planned=resolved.all_charges(),
        datasets=resolved.datasets(), lifetimes=resolved.lifetimes(),
    )  # fmt: skip
    for number in range(1, 7 + extra):
        ledger.commit(ledger.reserve("run", number, 1, resolved.charges()))
        if number <= 6:
            row = resolved.forecast([number]).rows[0]
            book = {guarantee.observer: guarantee.epsilon for guarantee in ledger.spending("run")}
            assert {one.observer: one.epsilon for one in row.guarantees} == book  # to the last bit
    with pytest.raises(BudgetExhausted):
        ledger.reserve("run", 7 + extra, 1, resolved.charges())


def test_a_stated_noise_also_gets_its_whole_plan_through_the_ledger() -> None:
    resolved = resolve(plan(rounds=4, noise_multiplier=1.5, delta=1e-4), sites(), 15)
    ledger = Ledger.begin(MemoryStore(), SigningKey.generate())
    ledger.open_run(
        "run", plan=resolved.plan.to_dict(), terms=resolved.terms(), planned=resolved.all_charges(),
        datasets=resolved.datasets(),
    )  # fmt: skip
    for number in range(1, 5):
        ledger.commit(ledger.reserve("run", number, 1, resolved.charges()))
    with pytest.raises(BudgetExhausted):
        ledger.reserve("run", 5, 1, resolved.charges())


def test_style_none_charges_without_an_event_and_promises_nothing() -> None:
    resolved = resolve(plan(privacy=PrivacyPlan(style="none")), sites(public="demo"), 15)  # type: ignore[arg-type]
    assert not resolved.protected
    assert [charge.event for charge in (*resolved.charges(), *resolved.all_charges())] == [None] * 8
    assert resolved.terms().limits == () and resolved.lifetimes() == ()
    assert (resolved.noise_multiplier, resolved.delta, resolved.limit, resolved.affordable_rounds) == (None,) * 4
    assert resolved.forecast().rows == () and resolved.signal() == ()
    assert not resolved.warnings


def test_style_none_warns_about_data_that_nobody_declared_public() -> None:
    resolved = resolve(plan(privacy=PrivacyPlan(style="none")), sites(), 15)  # type: ignore[arg-type]
    assert len(resolved.warnings) == 4


def test_datasets_carry_size_and_reason() -> None:
    resolved = resolve(plan(), sites(public="published"), 15)
    assert [(d.party, d.dataset, d.size, d.public) for d in resolved.datasets()] == [
        (name, f"{name}-data", size, "published") for name, size in SIZES.items()
    ]


def test_a_stated_lifetime_reaches_the_ledger_and_the_affordable_rounds() -> None:
    lifetime = LifetimePlan(epsilon=4.0, delta=1e-4)
    resolved = resolve(plan(epsilon=1.0, delta=1e-4, lifetime=lifetime), sites(), 15)
    assert resolved.lifetimes() == (lifetime.budget(),)
    assert resolved.limit is not None and resolved.limit.epsilon == 1.0
    rounds = resolved.affordable_rounds
    assert rounds is not None and rounds > 100
    assert max(naive_epsilon(resolved, party, rounds, 1e-4) for party in SIZES) <= 4.0
    assert max(naive_epsilon(resolved, party, rounds + 1, 1e-4) for party in SIZES) > 4.0


def test_a_calibrated_plan_affords_itself() -> None:
    assert resolve(plan(rounds=20), sites(), 15).affordable_rounds == 20
    assert resolve(plan(rounds=17, spare=3), sites(), 15).affordable_rounds == 20


# ---------------------------------------------------------------------------------- presets, sampling, signal


@pytest.mark.parametrize(
    ("preset", "size", "epsilon", "delta"),
    [
        ("privacy_high", 500, 0.1, 1e-6),
        ("privacy_medium", 500, 1.0, 1e-5),
        ("performance", 500, 10.0, 1e-4),
        ("privacy_medium", 50_000, 1.0, 2e-6),
        ("performance", 50_000, 10.0, 2e-6),
    ],
)
def test_presets_are_calibrated_from_declared_sizes(preset: str, size: int, epsilon: float, delta: float) -> None:
    resolved = resolve(plan(privacy=PrivacyPlan(preset=preset)), sites([40, size]), 15)
    assert resolved.limit is not None
    assert resolved.limit.epsilon == epsilon and resolved.limit.delta == pytest.approx(delta, rel=1e-12)
    assert resolved.forecast([20]).whole[0].epsilon == pytest.approx(epsilon, rel=1e-6)


def test_a_preset_keeps_the_clip_and_the_lifetime_of_its_record() -> None:
    record = RecordPlan(max_grad_norm=0.5, lifetime=LifetimePlan(epsilon=3, delta=1e-5))
    resolved = resolve(plan(privacy=PrivacyPlan(preset="privacy_medium", record=record)), sites(), 15)
    assert resolved.mechanism is not None and resolved.mechanism.max_norm == 0.5
    assert resolved.lifetimes()[0].epsilon == 3


@pytest.mark.parametrize(
    ("training", "rate", "steps"),
    [
        (TrainingPlan(batch_size=16), 16 / 85, 6),
        (TrainingPlan(batch_size=17), 17 / 85, 5),
        (TrainingPlan(batch_size=17, local_epochs=3), 17 / 85, 15),
        (TrainingPlan(batch_size=17, local_steps=3), 17 / 85, 3),
        (TrainingPlan(sample_rate=0.1), 0.1, 10),
        (TrainingPlan(sample_rate=0.3), 0.3, 4),
        (TrainingPlan(sample_rate=0.3, local_steps=7), 0.3, 7),
        (TrainingPlan(sample_rate=1.0), 1.0, 1),
    ],
)
def test_rates_and_steps_follow_from_declared_sizes(training: TrainingPlan, rate: float, steps: int) -> None:
    resolved = resolve(plan(training=training), sites({"va": 85}), 15)
    assert (resolved.rate_of("va"), resolved.steps_of("va")) == (rate, steps)
    assert resolved.sampling_of("va") == (Everyone() if rate == 1 else Poisson(rate=rate))
    assert resolved.batch_of("va") == pytest.approx(rate * 85)


def test_only_named_parties_take_part() -> None:
    resolved = resolve(plan(federation={"parties": ("va", "cleveland")}), sites(), 15)
    assert [facts.name for facts in resolved.parties] == ["cleveland", "va"]
    assert len(resolved.charges()) == len(resolved.all_charges()) == 2


def test_parties_that_take_no_part_do_not_decide_about_delta_or_batches() -> None:
    big = {**SIZES, "tiny": 3, "registry": 10**7}
    resolved = resolve(plan(federation={"parties": tuple(SIZES)}), sites(big), 15)
    assert resolved.noise_multiplier == resolve(plan(), sites(), 15).noise_multiplier


def test_noise_against_signal_is_what_the_mechanism_really_adds() -> None:
    """40,000 draws: their standard deviation is known to 0.4 %, and 5 % away is twelve of its own deviations."""
    resolved = resolve(plan(weights="equal", epsilon=1.0, delta=1e-4, max_grad_norm=2.0), sites(), 15)
    mechanism = resolved.mechanism
    assert mechanism is not None
    rng = system_randomness()
    rows: dict[str, Any] = {}
    for facts in resolved.parties:
        total = mechanism.sum(mechanism.bound(np.zeros((1, 40_000))))
        rows[facts.name] = mechanism.release(total, rng) / resolved.batch_of(facts.name)
    rows[""] = sum(rows.values()) / 4
    for signal in resolved.signal():
        assert np.std(rows[signal.party]) / 2.0 == pytest.approx(signal.coordinate, rel=0.05)
        assert signal.length == pytest.approx(signal.coordinate * math.sqrt(15))


def test_the_dimension_must_be_known() -> None:
    for dimension in (0, -1, 1.5, math.nan):
        with pytest.raises(InvalidParameter):
            resolve(plan(), sites(), dimension)  # type: ignore[arg-type]


def test_refusals_come_before_calibration() -> None:
    with pytest.raises(PlanRefused, match="together with"):
        resolve(plan(epsilon=1.0, noise_multiplier=1.0, delta=1e-4), sites(), 15)
    with pytest.raises(PlanRefused, match="without a number for clients"):
        resolve(plan(privacy=PrivacyPlan(style="user")), sites(), 15)  # type: ignore[arg-type]


@pytest.mark.parametrize(("attacking", "stated", "warned"), [(2, 1, True), (2, 2, False), (3, None, True)])
def test_a_drill_with_more_attackers_than_its_rule_is_set_up_for_is_said_to_be_one(
    attacking: int, stated: int | None, warned: bool
) -> None:
    from quietsum.plan import AggregationPlan
    from quietsum.plan.attack import AttackPlan

    sites = tuple(PartyFacts(name=f"s{at}", dataset=f"d{at}", size=50, public="made up") for at in range(9))
    plan = Plan(
        privacy=PrivacyPlan(style=Style.NONE), attack=AttackPlan(kind="sign-flip", parties=attacking),
        aggregation=AggregationPlan(rule="median", attackers=stated),
    )  # fmt: skip
    told = [one for one in resolve(plan, sites, 5).warnings if "is set up for aggregation.attackers" in one]
    assert bool(told) is warned
    assert not told or f"DRILL: {attacking} parties attack" in told[0]
