"""A plan is a frozen value: it checks itself, reads back what it wrote, and its digest ignores the order of keys."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import json
import math
import pickle
from typing import Any

import pytest
from hypothesis import given, strategies as st

from quietsum.errors import InvalidParameter
from quietsum.plan import (
    PRESETS,
    AggregationPlan,
    ClientPlan,
    FederationPlan,
    LifetimePlan,
    OptimizerPlan,
    Options,
    PartyFacts,
    Plan,
    PrivacyPlan,
    RecordPlan,
    SamplingPlan,
    SimulatePlan,
    Style,
    TaskPlan,
    TrainingPlan,
    load_plan,
    safe_delta,
)
from quietsum.privacy.units import Neighbours

names = st.text(st.characters(categories=["L", "N", "P"]), min_size=1, max_size=12)
positives = st.floats(1e-9, 1e9, allow_nan=False)
shares = st.floats(0, 1, exclude_min=True)
deltas = st.floats(0, 1, exclude_min=True, exclude_max=True)
counts = st.integers(1, 10**6)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
scalars = st.one_of(
    texts, st.booleans(), st.integers(-(10**30), 10**30), st.floats(allow_nan=False, allow_infinity=False)
)
option_values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3), max_leaves=8
)


def maybe(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | strategy


records = st.builds(
    RecordPlan,
    epsilon=maybe(positives),
    noise_multiplier=maybe(positives),
    delta=maybe(deltas),
    max_grad_norm=positives,
    lifetime=maybe(st.builds(LifetimePlan, epsilon=positives, delta=deltas)),
)
clients = st.builds(
    ClientPlan, epsilon=maybe(positives), noise_multiplier=maybe(positives), delta=maybe(deltas), max_norm=positives
)
plans = st.builds(
    Plan,
    task=st.builds(TaskPlan, name=names, options=st.dictionaries(texts, option_values, max_size=3)),
    federation=st.builds(
        FederationPlan,
        rounds=counts,
        sampling=st.builds(SamplingPlan, kind=st.sampled_from(["everyone", "poisson"]), rate=maybe(shares)),
        parties=st.lists(names, max_size=4).map(tuple),
        minimum_parties=counts,
        deadline=maybe(positives),
        spare_attempts=st.integers(0, 10**6),
        simulate=st.builds(SimulatePlan, drop_outs=st.floats(0, 1), refusing=st.lists(names, max_size=2).map(tuple)),
    ),
    training=st.builds(
        TrainingPlan,
        engine=names,
        batch_size=maybe(counts),
        sample_rate=maybe(shares),
        local_epochs=maybe(counts),
        local_steps=maybe(counts),
        optimizer=st.builds(OptimizerPlan, learning_rate=positives, momentum=st.floats(0, 1, exclude_max=True)),
    ),
    privacy=st.builds(
        PrivacyPlan,
        style=st.sampled_from(Style),
        record=maybe(records),
        client=maybe(clients),
        preset=maybe(st.sampled_from(sorted(PRESETS))),
        accounting=st.sampled_from(["exact", "rdp", "moments"]),
        neighbours=st.sampled_from(Neighbours),
        noise=st.sampled_from(["secure", "fast"]),
    ),
    aggregation=st.builds(
        AggregationPlan, rule=names, weights=st.sampled_from(["size", "equal"]), secure=st.booleans()
    ),
)


@given(plans)
def test_a_plan_reads_back_from_its_own_toml(plan: Plan) -> None:
    again = load_plan(plan.to_toml())
    assert again == plan
    assert again.digest == plan.digest
    assert hash(again) == hash(plan)


@given(plans)
def test_a_plan_reads_back_from_plain_values_json_and_pickle(plan: Plan) -> None:
    assert Plan.from_dict(plan.to_dict()) == plan
    assert Plan.from_dict(json.loads(plan.to_json())) == plan
    assert pickle.loads(pickle.dumps(plan)) == plan
    assert copy.deepcopy(plan) == plan


def reversed_keys(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: reversed_keys(item) for key, item in reversed(value.items())}
    return [reversed_keys(item) for item in value] if isinstance(value, list) else value


@given(plans)
def test_the_digest_does_not_depend_on_the_order_of_keys(plan: Plan) -> None:
    assert Plan.from_dict(reversed_keys(plan.to_dict())).digest == plan.digest


def test_the_digest_is_the_sha256_of_sorted_json_without_spaces() -> None:
    plan = Plan(privacy=PrivacyPlan(preset="performance"))
    text = json.dumps(plan.to_dict(), sort_keys=True, separators=(",", ":"))
    assert plan.digest == hashlib.sha256(text.encode()).hexdigest()


def test_every_change_of_a_value_changes_the_digest() -> None:
    plan = Plan(privacy=PrivacyPlan(record=RecordPlan(epsilon=1, delta=1e-5)))
    others = [
        dataclasses.replace(plan, federation=FederationPlan(rounds=21)),
        dataclasses.replace(plan, task=TaskPlan(options={"fold": 1})),
        dataclasses.replace(plan, training=TrainingPlan(batch_size=31)),
        dataclasses.replace(plan, privacy=PrivacyPlan(record=RecordPlan(epsilon=1, delta=1.0000001e-5))),
        dataclasses.replace(plan, aggregation=AggregationPlan(weights="equal")),
    ]
    assert len({plan.digest, *(other.digest for other in others)}) == 6


def test_one_and_one_point_zero_are_the_same_plan() -> None:
    whole = load_plan("[privacy]\nrecord = { epsilon = 1, delta = 1e-5 }\n")
    real = load_plan("[privacy]\nrecord = { epsilon = 1.0, delta = 0.00001 }\n")
    assert whole == real and whole.digest == real.digest


def test_minus_zero_is_zero() -> None:
    text = "[federation.simulate]\ndrop_outs = -0.0\n[training.optimizer]\nmomentum = -0.0\n"
    assert load_plan(text).digest == Plan().digest


def test_a_plan_cannot_be_changed() -> None:
    plan = Plan(task=TaskPlan(options={"folds": [1, 2]}))
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan.task = TaskPlan()  # type: ignore[misc]
    with pytest.raises(TypeError):
        plan.task.options["folds"] = (3,)  # type: ignore[index]
    assert plan.task.options["folds"] == (1, 2)


def test_options_do_not_follow_the_dict_they_were_made_from() -> None:
    given_options: dict[str, Any] = {"inner": {"list": [1]}}
    task = TaskPlan(options=given_options)
    given_options["inner"]["list"].append(2)
    assert task.options == Options({"inner": {"list": [1]}})


def test_unsaid_means_batches_of_32_and_one_epoch() -> None:
    training = TrainingPlan()
    assert (training.batch_size, training.sample_rate) == (32, None)
    assert (training.local_epochs, training.local_steps) == (1, None)
    said = TrainingPlan(sample_rate=0.5, local_steps=3)
    assert (said.batch_size, said.local_epochs) == (None, None)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, -1.0, 0.0, "1", True, None.__class__, 1j])
@pytest.mark.parametrize(
    "make",
    [
        lambda x: RecordPlan(epsilon=x),
        lambda x: RecordPlan(noise_multiplier=x),
        lambda x: RecordPlan(delta=x),
        lambda x: RecordPlan(max_grad_norm=x),
        lambda x: LifetimePlan(epsilon=x, delta=0.1),
        lambda x: LifetimePlan(epsilon=1, delta=x),
        lambda x: ClientPlan(max_norm=x),
        lambda x: OptimizerPlan(learning_rate=x),
        lambda x: TrainingPlan(batch_size=x),
        lambda x: TrainingPlan(sample_rate=x),
        lambda x: TrainingPlan(local_epochs=x),
        lambda x: TrainingPlan(local_steps=x),
        lambda x: FederationPlan(rounds=x),
        lambda x: FederationPlan(minimum_parties=x),
        lambda x: FederationPlan(deadline=x),
        lambda x: SamplingPlan(kind="poisson", rate=x),
    ],
)
def test_no_value_takes_a_number_outside_its_domain(make: Any, bad: object) -> None:
    with pytest.raises(InvalidParameter):
        make(bad)


@pytest.mark.parametrize(
    "make",
    [
        lambda: TaskPlan(name=""),
        lambda: TaskPlan(name="a\nb"),
        lambda: TaskPlan(options={"x": math.nan}),
        lambda: TaskPlan(options={"x": object()}),
        lambda: TaskPlan(options={1: 2}),  # type: ignore[dict-item]
        lambda: TaskPlan(options={"x": "\ud800"}),
        lambda: SamplingPlan(kind="often"),
        lambda: SamplingPlan(kind="poisson", rate=1.5),
        lambda: SimulatePlan(drop_outs=1.5),
        lambda: SimulatePlan(refusing="va"),  # type: ignore[arg-type]
        lambda: FederationPlan(parties="va"),  # type: ignore[arg-type]
        lambda: FederationPlan(parties=("",)),
        lambda: FederationPlan(rounds=10**7),
        lambda: FederationPlan(spare_attempts=-1),
        lambda: OptimizerPlan(kind="adam"),
        lambda: OptimizerPlan(momentum=1.0),
        lambda: RecordPlan(delta=1.0),
        lambda: PrivacyPlan(style="secret"),  # type: ignore[arg-type]
        lambda: PrivacyPlan(preset="privacy_low"),
        lambda: PrivacyPlan(accounting="guess"),
        lambda: PrivacyPlan(noise="loud"),
        lambda: PrivacyPlan(neighbours="friends"),  # type: ignore[arg-type]
        lambda: AggregationPlan(weights="age"),
        lambda: AggregationPlan(secure=1),  # type: ignore[arg-type]
        lambda: PartyFacts(name="a", dataset="", size=1),
        lambda: PartyFacts(name="a", dataset="d", size=-1),
        lambda: PartyFacts(name="a", dataset="d", size=1.5),  # type: ignore[arg-type]
    ],
)
def test_no_value_takes_what_it_cannot_mean(make: Any) -> None:
    with pytest.raises(InvalidParameter):
        make()


def test_presets_are_as_documented() -> None:
    stated = {name: (preset.epsilon, preset.delta) for name, preset in PRESETS.items()}
    assert stated == {"privacy_high": (0.1, 1e-6), "privacy_medium": (1.0, 1e-5), "performance": (10.0, 1e-4)}


@given(st.lists(st.integers(1, 10**9), min_size=1), st.sampled_from(sorted(PRESETS)))
def test_a_presets_delta_is_small_against_one_record_at_every_party(sizes: list[int], name: str) -> None:
    delta = PRESETS[name].delta_for(sizes)
    assert delta <= PRESETS[name].delta
    assert all(delta * size <= 0.1 * (1 + 1e-12) for size in sizes)
    assert delta in (PRESETS[name].delta, safe_delta(sizes))


def test_the_largest_party_decides_about_delta_not_the_smallest() -> None:
    """With the smallest site's 1/(10 n) the largest one could publish a record of every hundred."""
    sizes = [50, 1_000_000]
    assert PRESETS["performance"].delta_for(sizes) == 1e-7
    assert 1 / (10 * min(sizes)) * max(sizes) > 1  # the negative control
