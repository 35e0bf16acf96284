"""Chances of random groups against counting all draws and simulation; what a plan with groups says and costs."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from quietsum.errors import PlanRefused
from quietsum.plan import AggregationPlan, ClientPlan, PartyFacts, Plan, PrivacyPlan, RecordPlan, TrainingPlan, resolve
from quietsum.plan.groups import (
    CONTAMINATED,
    MASKS_FAIL,
    SESSIONS,
    alone,
    chances,
    count_unprotected,
    draws,
    inside,
    most_in_bound,
    nearest_groups,
    sizes,
)
from quietsum.plan.promises import Style
from quietsum.plan.resolution.card import card
from quietsum.privacy.units import Neighbours, Observer, PrivacyUnit
from quietsum.secagg.messages import DRAWS
from quietsum.secagg.parameters import SECURITY_FAILURE

CROWD = tuple(PartyFacts(name=f"p{place:03d}", dataset=f"d{place}", size=400) for place in range(100))


def every_draw(parties: int, groups: int, special: int) -> list[tuple[tuple[int, int], ...]]:
    """(size, special members) of every group, for each way to choose who is special: the naive answer."""
    seats = [number for number, size in enumerate(_listed(parties, groups)) for _ in range(size)]
    found = []
    for chosen in itertools.combinations(range(parties), special):
        held = [sum(seats[place] == number for place in chosen) for number in range(groups)]
        found.append(tuple(zip(_listed(parties, groups), held, strict=True)))
    return found


def _listed(parties: int, groups: int) -> list[int]:
    return [size for size, count in sizes(parties, groups).items() for _ in range(count)]


SHAPES = [(8, 2, 3), (9, 3, 4), (10, 3, 2), (11, 4, 5), (12, 3, 6), (7, 3, 7), (9, 2, 0)]


@pytest.mark.parametrize(("parties", "groups", "special"), SHAPES)
def test_all_chances_are_those_of_counting_every_draw(parties: int, groups: int, special: int) -> None:
    every = every_draw(parties, groups, special)

    def share(fact: Any) -> float:
        return sum(bool(fact(draw)) for draw in every) / len(every)

    found = chances(parties, groups, attackers=special)
    touched = [sum(held > 0 for _, held in draw) for draw in every]
    assert found.share == pytest.approx(np.mean(touched) / groups, abs=1e-12)
    for k in range(groups + 1):
        assert found.beyond(k) == pytest.approx(np.mean([count > k for count in touched]), abs=1e-12)
    assert found.half == pytest.approx(np.mean([2 * count >= groups for count in touched]), abs=1e-12)
    assert found.majority == pytest.approx(np.mean([2 * count > groups for count in touched]), abs=1e-12)
    for honest in (1, 2):
        naive = share(lambda draw, honest=honest: any(0 < size - held <= honest for size, held in draw))
        assert alone(parties, groups, special, honest=honest) == pytest.approx(naive, abs=1e-12)
        floor = parties // groups - 1
        lost = share(
            lambda draw, honest=honest, floor=floor: any(
                held < size and max(floor - held, 1) <= honest for size, held in draw
            )
        )
        assert alone(parties, groups, special, honest=honest, floor=floor) == pytest.approx(lost, abs=1e-12)
    for x in range(special):
        naive = float(np.mean([sum(size - held for size, held in draw if held > x) for draw in every]))
        assert count_unprotected(parties, groups, special, x) == pytest.approx(naive, abs=1e-12)


def test_chances_agree_with_simulation() -> None:
    rng, times = np.random.default_rng(5), 20_000
    special, group = np.arange(100) < 10, np.repeat(np.arange(20), 5)
    touched = np.array([len(set(group[rng.permutation(100)[:10]])) for _ in range(times)])
    found = chances(100, 20, attackers=10)
    assert special.sum() == 10
    for value, seen in ((found.share, touched.mean() / 20), (found.half, float((touched >= 10).mean()))):
        assert abs(value - seen) < 5 * math.sqrt(max(value * (1 - value), 1e-3) / times)


@pytest.mark.parametrize(
    ("parties", "colluders", "size", "printed"),
    [(100, 5, 5, 1e-4), (100, 10, 5, 5e-3), (1000, 50, 10, 9e-10), (1000, 100, 5, 0.09)],
)
def test_the_chance_to_sit_alone_among_colluders_is_that_of_the_literature(
    parties: int, colluders: int, size: int, printed: float
) -> None:
    """Four figures, each to the digit that was printed; the last one as union bound, .086, and exactly, .082."""
    groups = parties // size
    found = alone(parties, groups, colluders)
    union = groups * math.comb(colluders, size - 1) * (parties - colluders) / math.comb(parties, size)
    assert found <= union * (1 + 1e-9)
    assert float(f"{union:.1g}") == printed or abs(found / printed - 1) < 0.3
    assert abs(found / printed - 1) < 0.3


@pytest.mark.parametrize(
    ("attackers", "size", "allowed"),
    [(5, 10, True), (10, 2, True), (10, 5, True), (10, 10, False), (20, 2, True), (20, 4, False)],
)
def test_the_bound_allows_the_rows_of_the_table_that_held_and_refuses_those_that_fell(
    attackers: int, size: int, allowed: bool
) -> None:
    found = chances(100, 100 // size, attackers=attackers)
    assert found.in_bound is allowed
    assert abs(found.share - (1 - (1 - attackers / 100) ** size)) < 0.025


@settings(max_examples=60, deadline=None)
@given(st.integers(8, 200), st.integers(2, 30), st.integers(1, 40))
def test_more_attackers_touch_more_groups_and_the_nearest_plans_are_within_the_bound(
    parties: int, groups: int, attackers: int
) -> None:
    groups, attackers = min(groups, parties // 2), min(attackers, parties - 1)
    here, more = (chances(parties, groups, attackers=count) for count in (attackers, attackers + 1))
    assert here.share <= more.share + 1e-12 and here.half <= more.half + 1e-9
    assert sum(here._counts) == pytest.approx(1, abs=1e-12) and 0 <= here.majority <= here.half <= 1
    most = most_in_bound(parties, groups)
    assert not most or chances(parties, groups, attackers=most).in_bound
    near = nearest_groups(parties, attackers)
    assert near is None or chances(parties, near, attackers=attackers).share <= CONTAMINATED


@settings(max_examples=60, deadline=None)
@given(st.integers(8, 300), st.integers(2, 30), st.integers(1, 60), st.sampled_from([1e-12, 1e-6, 1e-3]))
def test_the_colluders_of_one_group_are_the_fewest_that_the_chance_allows(
    parties: int, groups: int, colluders: int, chance: float
) -> None:
    groups, colluders = min(groups, parties // 2), min(colluders, parties - 1)
    found = inside(parties, groups, colluders, chance)
    assert count_unprotected(parties, groups, colluders, found) <= chance
    assert found == 1 or count_unprotected(parties, groups, colluders, found - 1) > chance
    assert count_unprotected(parties, groups, colluders, colluders) == 0


def test_no_split_of_the_views_gives_an_honest_party_a_larger_chance_than_the_bound() -> None:
    """A server that shows each honest party another list makes one draw for each: β is the sum of their chances."""
    parties, groups, colluders, x = 100, 20, 10, 3
    one = sum(
        math.comb(colluders, held) * math.comb(parties - 1 - colluders, 4 - held) / math.comb(parties - 1, 4)
        for held in range(x + 1, 5)
    )
    assert count_unprotected(parties, groups, colluders, x) == pytest.approx((parties - colluders) * one, rel=1e-9)


# ------------------------------------------------------------------------------------------------- a plan


def plan_of(privacy: PrivacyPlan | None = None, **keys: Any) -> Plan:
    usual: dict[str, Any] = {"secure": True, "rule": "median", "groups": 20, "drop_outs": 0.0}
    aggregation = AggregationPlan(**usual | keys)
    training = TrainingPlan(sample_rate=0.1, local_steps=1)
    return Plan(
        privacy=privacy or PrivacyPlan(record=RecordPlan(epsilon=1, delta=1e-5)), aggregation=aggregation,
        training=training,
    )  # fmt: skip


SHARES = PrivacyPlan(record=RecordPlan(noise_multiplier=3.0, delta=1e-5, noise_at="distributed"))
CLIENTS = PrivacyPlan(
    style=Style.USER,
    neighbours=Neighbours.ZERO_OUT,
    client=ClientPlan(noise_multiplier=5.0, delta=1e-4, noise_at="distributed"),
)


def test_a_plan_without_groups_has_the_digest_it_had() -> None:
    plain = Plan(aggregation=AggregationPlan(secure=True))
    assert "groups" not in plain.to_dict()["aggregation"]
    assert Plan.from_dict(plan_of().to_dict()).aggregation.groups == 20


def test_floor_and_honest_are_those_of_one_group() -> None:
    found = resolve(plan_of(drop_outs=0.2), CROWD, 10).secure
    assert found is not None and found.grouping is not None
    assert (found.seats, found.floor, found.colluders, found.honest, found.may_drop) == (5, 4, 1, 3, 1)
    assert found.grouping.chance == 0 and found.cohort == 100


def test_draws_of_a_run_count_every_session_that_parties_take_part_in() -> None:
    assert draws(plan_of()) == DRAWS * SESSIONS * 20 == 120


def test_with_many_colluders_the_chance_is_bounded_over_the_run() -> None:
    found = resolve(plan_of(groups=10, colluders=5), CROWD, 10).secure
    assert found is not None and found.grouping is not None
    seated = found.grouping
    assert seated.inside == found.colluders == 5 and seated.chance_of_run <= MASKS_FAIL
    large = [dataclasses.replace(CROWD[0], name=f"q{place:04d}") for place in range(1000)]
    found = resolve(plan_of(groups=100, colluders=50), large, 10).secure
    assert found is not None and found.grouping is not None
    seated = found.grouping
    assert seated.inside == 6 and 0 < seated.chance_of_run <= MASKS_FAIL and found.honest == 4


@pytest.mark.parametrize(("privacy", "unit"), [(SHARES, PrivacyUnit.RECORD), (CLIENTS, PrivacyUnit.CLIENT)])
def test_what_the_draw_may_do_to_the_noise_is_in_the_charge(privacy: PrivacyPlan, unit: PrivacyUnit) -> None:
    large = [dataclasses.replace(CROWD[0], name=f"q{place:04d}", dataset=f"q{place}") for place in range(1000)]
    found = resolve(plan_of(privacy, groups=10, colluders=50), large, 10)
    assert found.secure is not None and found.secure.grouping is not None
    seated = found.secure.grouping
    assert 0 < seated.chance <= SECURITY_FAILURE and seated.inside < 50
    charge = next(one for one in found.charges() if one.unit is unit)
    plain = resolve(plan_of(privacy, groups=10), large, 10)  # one colluder: nothing is left to chance
    less = next(one for one in plain.charges() if one.unit is unit)
    assert charge.failure - less.failure == pytest.approx(DRAWS * SESSIONS * seated.chance, rel=0.5)
    assert less.failure < charge.failure


def test_noise_at_each_party_costs_the_same_in_groups() -> None:
    grouped = resolve(plan_of(), CROWD, 10)
    plain = resolve(dataclasses.replace(plan_of(), aggregation=AggregationPlan(secure=True)), CROWD, 10)
    assert grouped.record_noise == plain.record_noise
    assert grouped.charges()[0].event == plain.charges()[0].event and grouped.charges()[0].failure == plain.charges()[
        0
    ].failure  # fmt: skip


def test_epsilon_is_that_of_a_group_sum_for_server_and_recipients() -> None:
    """h honest of a group make σ, as h honest of a cohort of their own would: one group alone is priced the same."""
    grouped = resolve(plan_of(CLIENTS, groups=20), CROWD, 10)
    alone_ = Plan(
        privacy=CLIENTS, aggregation=AggregationPlan(secure=True, drop_outs=0.0),
        training=TrainingPlan(sample_rate=0.1, local_steps=1),
    )  # fmt: skip
    single = resolve(alone_, CROWD[:5], 10)
    assert grouped.secure is not None and single.secure is not None
    assert grouped.secure.honest == single.secure.honest == 4
    assert grouped.charges()[0].event == single.charges()[0].event
    both = {one.observer: one.epsilon for one in grouped.forecast(()).whole}
    assert both[Observer.SERVER] == both[Observer.RECIPIENTS] == single.forecast(()).whole[0].epsilon


def test_each_share_is_longer_by_the_root_of_the_number_of_groups() -> None:
    grouped = resolve(plan_of(CLIENTS, groups=20), CROWD, 10).orders("p000").distributed
    plain = dataclasses.replace(plan_of(CLIENTS), aggregation=AggregationPlan(secure=True, drop_outs=0.0))
    whole = resolve(plain, CROWD, 10).orders("p000").distributed
    assert grouped is not None and whole is not None
    ratio = grouped.deviation(1) / whole.deviation(1)
    assert ratio == pytest.approx(math.sqrt(99 / 4), rel=1e-3) and abs(ratio - math.sqrt(20)) < 0.6


def test_unstated_attackers_are_what_groups_and_rule_bear() -> None:
    found = resolve(plan_of(), CROWD, 10)
    assert found.attackers == 9 and not any("attackers" in told for told in found.warnings)
    told = resolve(plan_of(groups=10, attackers=5), CROWD, 10).warnings
    assert any("in 33 % of rounds" in one for one in told)


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"groups": 10, "attackers": 10}, r"67 % of the groups.*20 groups, of 5 or so, would do; 10 groups bear 5"),
        ({"groups": 2, "attackers": 1}, r"50 % of the groups.*3 groups"),
        ({"groups": 30}, r"leaves 3 in a group \(25 groups"),
        ({"groups": 20, "colluders": 5}, r"4 of them may sit in one group.*1 honest \(14 groups would do\)"),
        ({"groups": 20, "drop_outs": 0.4}, r"smallest sum would hold 2 honest"),
        ({"rule": "mean"}, r"groups = 20 with rule = 'mean'"),
        ({"secure": False, "drop_outs": None}, r"groups without secure"),
    ],
)
def test_impossible_groups_are_refused_with_the_nearest_plan(keys: dict[str, Any], told: str) -> None:
    with pytest.raises(PlanRefused, match=told):
        resolve(plan_of(**keys), CROWD, 10)


def test_the_nearest_plans_that_are_named_are_possible() -> None:
    possible: tuple[dict[str, Any], ...] = (
        {"groups": 20, "attackers": 10},
        {"groups": 10, "attackers": 5},
        {"groups": 3, "attackers": 1},
        {"groups": 25},
        {"groups": 14, "colluders": 5},
    )
    for keys in possible:
        assert resolve(plan_of(**keys), CROWD, 10).secure is not None


def test_central_noise_stays_refused_in_groups() -> None:
    privacy = PrivacyPlan(style=Style.USER, client=ClientPlan(epsilon=8, delta=1e-3, noise_at="server"))
    with pytest.raises(PlanRefused, match="noise_at = 'server'"):
        resolve(plan_of(privacy), CROWD, 10)


def test_groups_are_named_as_the_way_where_a_rule_meets_one_sum() -> None:
    with pytest.raises(PlanRefused, match="say groups = "):
        resolve(plan_of(groups=1), CROWD, 10)


def test_the_card_says_what_groups_hide_and_what_they_rest_on() -> None:
    large = [dataclasses.replace(CROWD[0], name=f"q{place:04d}", dataset=f"q{place}") for place in range(1000)]
    found = card(resolve(plan_of(groups=100, colluders=50, attackers=40), large, 10))
    seen = found["one-sum"]
    assert seen.provided and seen.title == "The server sees 100 sums of random groups a round, no single update"
    assert "at least 4 honest updates" in seen.text and "over the run" in seen.text
    assert any(
        "at most 50 of 1000 parties collude" in one and "at most 6 of one random group (but for a chance of" in one
        for one in seen.assuming
    )
    assert "no group's sum is unmasked" in found["floor"].text
    assert "between the means of 100 random groups" in found["robust-rule"].text
    assert not found["bounded-influence"].provided and "its group's sum" in found["bounded-influence"].text


def test_the_card_of_one_sum_is_not_changed_by_what_it_says_of_groups() -> None:
    plain = dataclasses.replace(plan_of(), aggregation=AggregationPlan(secure=True))
    found = card(resolve(plain, CROWD, 10))
    assert found["one-sum"].title == "The server sees one sum a round, no single update"
    assert not any("group" in clause.text for clause in found.clauses)
