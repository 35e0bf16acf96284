"""What a refusal proposes is accepted: by every row of the table, and by resolving it."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from quietsum.aggregation.robust import RULES
from quietsum.errors import InvalidParameter, PlanRefused
from quietsum.plan import (
    AggregationPlan,
    ClientPlan,
    FederationPlan,
    PartyFacts,
    Plan,
    PrivacyPlan,
    RecordPlan,
    SamplingPlan,
    SimulatePlan,
    TaskPlan,
    TrainingPlan,
    resolve,
)
from quietsum.plan.promises import Style
from quietsum.plan.refusals import REFUSALS, Change, check_plan, find_refusals, nearest
from quietsum.plan.refusals.nearest import MOVES, PARAMETERS
from quietsum.plan.refusals.robust import attackers_of, run_ends
from quietsum.privacy.units import Neighbours
from test_refusals import CASES, PROMISE


def banks(count: int) -> tuple[PartyFacts, ...]:
    return tuple(PartyFacts(name=f"bank-{at}", dataset=f"cards-{at}", size=400) for at in range(count))


def robust(rule: str, attackers: int | None = None, federation: FederationPlan | None = None, **keys: Any) -> Plan:
    return Plan(
        privacy=PrivacyPlan(record=PROMISE), federation=federation or FederationPlan(),
        aggregation=AggregationPlan(rule=rule, attackers=attackers, **keys),
    )  # fmt: skip


def proposed(plan: Plan, parties: tuple[PartyFacts, ...]) -> list[str]:
    return [str(change) for change in nearest(plan, parties)]


def test_too_many_attackers_for_a_rule_are_answered_with_how_many_it_withstands() -> None:
    assert "aggregation.attackers = 2" in proposed(robust("median", 3), banks(5))
    assert proposed(robust("median", 2), banks(5)) == []  # nothing to answer


def test_no_rule_is_proposed_that_only_bounds_lengths_or_knows_one_attack() -> None:
    told = " ".join(proposed(robust("multi-krum", 5), banks(10)))
    assert "aggregation.attackers = 3" in told and "foolsgold" not in told and "norm-bounded" not in told
    assert 'aggregation.rule = "signguard"' in proposed(robust("multi-krum", 4), banks(10))


def test_the_nearest_plan_stands_in_the_refusal_and_in_its_values() -> None:
    with pytest.raises(PlanRefused, match=r"nearest possible plan: aggregation.attackers = 2") as caught:
        check_plan(robust("median", 3), banks(5))
    assert {"aggregation.attackers": 2} in caught.value.nearest


def test_a_rule_under_masks_is_answered_with_both_ways_out_and_what_each_gives_up() -> None:
    told = proposed(robust("median", 1, secure=True), banks(6))
    assert any('aggregation.rule = "mean"' in one and "withstands no attacker" in one for one in told)
    assert any("aggregation.secure = false (the server then sees single updates)" in one for one in told)


@pytest.mark.parametrize("attackers", [None, 0, 3, 6])
def test_no_proposal_holds_another_one_and_more(attackers: int | None) -> None:
    plan = robust("median", attackers, groups=50, secure=True)
    offered = nearest(plan, banks(100))
    assert offered and {"aggregation.groups": 25} in [change.keys for change in offered]
    for change in offered:
        assert not any(one is not change and one.keys.items() <= change.keys.items() for one in offered)


def test_central_noise_after_a_rule_is_answered_with_noise_at_the_parties_or_the_mean() -> None:
    client = ClientPlan(epsilon=8, delta=0.01)
    plan = Plan(privacy=PrivacyPlan(style=Style.USER, client=client, neighbours=Neighbours.ZERO_OUT),
                aggregation=AggregationPlan(rule="median", attackers=1))  # fmt: skip
    told = proposed(plan, banks(6))
    assert any('privacy.client.noise_at = "party"' in one for one in told)
    assert nearest(dataclasses.replace(plan, aggregation=AggregationPlan()), banks(6)) == ()


def test_one_change_that_needs_another_brings_it_along() -> None:
    """Noise at the parties hides no participation, so the neighbours change with it."""
    plan = Plan(privacy=PrivacyPlan(style=Style.USER, client=ClientPlan(epsilon=8, delta=0.01, against="server")))
    assert {"privacy.client.noise_at": "party", "privacy.neighbours": "zero-out"} in [
        dict(change.keys) for change in nearest(plan, banks(6))
    ]


def test_a_poisson_draw_that_is_often_too_small_is_refused_with_its_chance_and_a_rate_that_does() -> None:
    """P(Bin(40, ¼) < 11) = 0.583…: exact, and a run of 20 rounds never gets through."""
    from math import comb

    drawn = FederationPlan(sampling=SamplingPlan(kind="poisson", rate=0.25))
    plan = robust("median", 5, drawn)
    exact = sum(comb(40, k) * 0.25**k * 0.75 ** (40 - k) for k in range(11))
    short, ends = run_ends(plan, banks(40))
    assert short == pytest.approx(exact, rel=1e-12) and ends == pytest.approx(1 - (1 - exact) ** 20, rel=1e-9)
    with pytest.raises(PlanRefused, match=f"{100 * exact:.3g} % of rounds bring fewer"):
        check_plan(plan, banks(40))
    rates = [change.keys["federation.sampling.rate"] for change in nearest(plan, banks(40))
             if change.keys.get("federation.sampling.rate")]  # fmt: skip
    assert rates and all(rate > 0.25 for rate in rates)


def test_spare_attempts_pay_for_rounds_that_come_short() -> None:
    drawn = FederationPlan(sampling=SamplingPlan(kind="poisson", rate=0.5), rounds=20)
    plan = robust("median", 6, drawn)
    with_spares = dataclasses.replace(plan, federation=dataclasses.replace(drawn, spare_attempts=5))
    assert run_ends(with_spares, banks(40))[1] < run_ends(plan, banks(40))[1]


def test_unsaid_attackers_of_a_drawn_round_are_a_quarter_of_those_expected_not_of_those_registered() -> None:
    drawn = FederationPlan(sampling=SamplingPlan(kind="poisson", rate=0.1))
    assert attackers_of(robust("median", None, drawn), banks(200)) == 5
    assert attackers_of(robust("median"), banks(200)) == 50
    assert attackers_of(Plan(), banks(200)) == 0


@pytest.mark.parametrize("rule", ["trust", "fltrust"])
@pytest.mark.parametrize(("count", "attackers"), [(4, 3), (4, 1), (10, 6), (2, 1)])
def test_a_rule_without_its_root_set_is_answered_with_one_also_where_no_other_rule_withstands_as_many(
    rule: str, count: int, attackers: int
) -> None:
    plan = dataclasses.replace(robust(rule, attackers), task=TaskPlan(options={"l2": 0.1}))
    told = proposed(plan, banks(count))
    assert told[0] == "task.options = { l2 = 0.1, root = 100 } (100 published rows are then tried and not scored)"
    others = [name for name in ("signguard", "median") if RULES[name].facts.least(attackers) <= count]
    assert ('aggregation.rule = "signguard"' in told) == bool(others)
    with pytest.raises(PlanRefused) as caught:
        check_plan(plan, banks(count))
    assert {"task.options": {"l2": 0.1, "root": 100}} in caught.value.nearest
    assert others or "signguard" not in str(caught.value)
    public = dataclasses.replace(plan, task=TaskPlan(options={"start": "public"}))
    assert not any("root" in one for one in proposed(public, banks(count)))


@pytest.mark.parametrize("task", ["heart", "digits"])
def test_a_task_accepts_the_root_set_that_is_proposed(task: str) -> None:
    from quietsum.tasks import task_of

    dealt = FederationPlan() if task == "heart" else FederationPlan(parties=10, split="iid")
    plan = dataclasses.replace(robust("trust", 1, dealt), task=TaskPlan(name=task))
    change = nearest(plan, banks(10))[0]
    assert task_of(change.apply(plan)).root_size == 100


def test_moves_name_rows_that_exist() -> None:
    assert set(MOVES) - {PARAMETERS} <= {row.name for row in REFUSALS}


@pytest.mark.parametrize(("name", "bad"), [(name, bad) for name, bad, _ in CASES], ids=[name for name, *_ in CASES])
def test_no_row_refuses_what_is_proposed_for_another(name: str, bad: Any) -> None:
    plan, parties, _ = bad
    for change in nearest(plan, parties):
        assert find_refusals(change.apply(plan), parties) == ()
        after = change.apply(plan)
        assert "privacy.style" not in change.keys or not plan.privacy.style.clients or after.privacy.style.clients
        assert after.privacy.style != "none" or plan.privacy.style == "none"
        for unit in ("record", "client"):  # a promise is added where there is none, and none is changed
            before = getattr(plan.privacy, unit)
            stated = None if before is None else before.epsilon
            kept = stated is None or f"privacy.{unit}.epsilon" not in change.keys
            assert kept or name == "preset-with-numbers"  # there either of two promises may stay


def test_every_row_of_the_table_has_a_way_out_but_those_that_lack_a_party_or_a_site() -> None:
    without = {name for name, bad, _ in CASES if not nearest(bad[0], bad[1])}
    assert without <= {"no-parties", "mixed-holder", "dealt-out-clients", "duplicate-parties"}


def test_rules_masks_noise_and_draws_that_do_not_fit_always_get_a_way_out() -> None:
    """Every pair of them: whatever is refused is answered."""
    for rule in ("mean", *sorted(RULES)):
        for secure in (False, True):
            for where in ("record", "server", "party", "distributed"):
                for drawn in (SamplingPlan(), SamplingPlan(kind="poisson", rate=0.5),
                              SamplingPlan(kind="fixed-size", size=6)):  # fmt: skip
                    privacy = _privacy(where)
                    plan = Plan(
                        privacy=privacy, federation=FederationPlan(sampling=drawn, rounds=2),
                        training=TrainingPlan(sample_rate=0.5, local_steps=1),
                        aggregation=AggregationPlan(rule=rule, secure=secure, attackers=1 if rule != "mean" else None),
                    )  # fmt: skip
                    rows = [row.name for row in find_refusals(plan, banks(12))]
                    if rows and "trial" not in " ".join(rows):
                        assert nearest(plan, banks(12)), (rule, secure, where, drawn, rows)


def _privacy(where: str) -> PrivacyPlan:
    if where == "record":
        return PrivacyPlan(record=RecordPlan(noise_multiplier=1.0, delta=1e-4))
    return PrivacyPlan(
        style=Style.USER,
        client=ClientPlan(noise_multiplier=1.0, delta=0.01, noise_at=where),
        neighbours=Neighbours.ZERO_OUT,
    )


PLANS = st.builds(
    lambda rule, attackers, weights, secure, colluders, threshold, drop_outs, where, shared, kind, rate, size, least,
           lost, rounds, groups, before: Plan(
        privacy=PrivacyPlan(record=RecordPlan(noise_multiplier=1.0, delta=1e-4,
                                              noise_at="distributed" if shared else "party"))
        if where == "record" else _privacy(where),
        federation=FederationPlan(
            rounds=rounds, minimum_parties=least, simulate=SimulatePlan(drop_outs=lost),
            sampling=SamplingPlan(kind=kind, rate=rate if kind == "poisson" else None,
                                  size=size if kind == "fixed-size" else None)),
        training=TrainingPlan(sample_rate=0.5, local_steps=1),
        aggregation=AggregationPlan(rule=rule, attackers=attackers, weights=weights, secure=secure,
                                    colluders=colluders, threshold=threshold, drop_outs=drop_outs,
                                    groups=groups, before=before),
    ),
    rule=st.sampled_from(["mean", *sorted(RULES)]), attackers=st.none() | st.integers(0, 8),
    weights=st.sampled_from([None, "size", "equal"]), secure=st.booleans(), colluders=st.integers(1, 4),
    threshold=st.none() | st.integers(1, 12), drop_outs=st.none() | st.sampled_from([0.0, 0.1, 0.5, 0.8]),
    where=st.sampled_from(["record", "server", "party", "distributed"]), shared=st.booleans(),
    kind=st.sampled_from(["everyone", "poisson", "fixed-size"]), rate=st.sampled_from([0.1, 0.5, 0.9]),
    size=st.integers(1, 14), least=st.integers(1, 12), lost=st.sampled_from([0.0, 0.0, 0.2]), rounds=st.integers(1, 5),
    groups=st.sampled_from([1, 1, 1, 2, 3, 4, 6]), before=st.sampled_from(["", "", "nnm", "bucketing"]),
)  # fmt: skip


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(plan=PLANS, count=st.integers(1, 30))
def test_whatever_is_proposed_resolves(plan: Plan, count: int) -> None:
    parties = banks(count)
    for change in nearest(plan, parties) if find_refusals(plan, parties) else ():
        resolve(change.apply(plan), parties, 10)


def test_a_change_with_an_impossible_value_is_an_error_and_never_a_plan() -> None:
    with pytest.raises(InvalidParameter):
        Change(keys={"federation.rounds": 0}).apply(Plan())
