"""Scores from group flags: Bayes' rule by hand, the figures of simulation, and what they must not depend on."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, strategies as st

from quietsum.defence.attribution import Flag, Rates, scores

NAMES = [f"p{place:03d}" for place in range(100)]


def drawn(rounds: int, rates: Rates, seed: int, *, attackers: int = 10, size: int = 5) -> list[Flag]:
    """Flags of a rule with these rates; the first ``attackers`` names attack."""
    rng, found = np.random.default_rng(seed), []
    for _ in range(rounds):
        order = rng.permutation(len(NAMES))
        for begin in range(0, len(NAMES), size):
            members = order[begin : begin + size]
            chance = rates.true_positive if np.any(members < attackers) else rates.false_positive
            found.append(Flag(members=tuple(NAMES[at] for at in members), flagged=bool(rng.random() < chance)))
    return found


def auc(flags: list[Flag], rates: Rates, attackers: int = 10) -> float:
    """The chance that an attacker's score is above an honest party's, ties counted half: the Mann-Whitney statistic."""
    found = {one.party: one.score for one in scores(flags, parties=100, attackers=attackers, rates=rates)}
    bad, good = NAMES[:attackers], NAMES[attackers:]
    wins = [(found[a] > found[b]) + 0.5 * (found[a] == found[b]) for a, b in itertools.product(bad, good)]
    return float(np.mean(wins))


@pytest.mark.parametrize(
    ("rates", "rounds", "printed"),
    [((0.99, 0.02), 5, 0.996), ((0.9, 0.2), 10, 0.991), ((0.6, 0.25), 40, 0.983)],
)
def test_attackers_stand_out_as_fast_as_the_literature_says(
    rates: tuple[float, float], rounds: int, printed: float
) -> None:
    """Area under the curve with 100 parties, 10 attackers and groups of 5, mean of 20 simulated runs."""
    assumed = Rates(true_positive=rates[0], false_positive=rates[1])
    found = [auc(drawn(rounds, assumed, seed), assumed) for seed in range(20)]
    assert abs(np.mean(found) - printed) < max(0.006, 4 * float(np.std(found)) / math.sqrt(20))


def test_scores_are_bayes_rule_over_all_ways_to_place_the_attackers_up_to_independence() -> None:
    """One round: the posterior of every party by counting all sets of attackers. With one flag it is exact."""
    names, rates = ["a", "b", "c", "d", "e", "f"], Rates(true_positive=0.8, false_positive=0.1)
    flag = Flag(members=("a", "b", "c"), flagged=True)
    ways = list(itertools.combinations(names, 2))
    weight = [rates.true_positive if set(way) & set(flag.members) else rates.false_positive for way in ways]
    found = {one.party: one.score for one in scores([flag], parties=6, attackers=2, rates=rates)}
    for name in flag.members:
        exact = sum(w for w, way in zip(weight, ways, strict=True) if name in way) / sum(weight)
        assert found[name] == pytest.approx(exact, rel=1e-12)


def test_a_rule_that_flags_at_random_tells_nothing() -> None:
    """The negative control: with equal rates every score is the prior, whatever was flagged."""
    rates = Rates(true_positive=0.3, false_positive=0.3)
    found = scores(drawn(20, rates, 1), parties=100, attackers=10, rates=rates)
    assert all(one.score == pytest.approx(0.1) for one in found)


def test_honest_parties_are_rarely_suspected_where_nobody_attacks() -> None:
    """Ten rounds without an attacker, flags at the assumed false rate: no score above one half in nine of ten runs."""
    rates = Rates()
    worst = [
        max(one.score for one in scores(drawn(10, rates, seed, attackers=0), parties=100, attackers=10, rates=rates))
        for seed in range(10)
    ]
    assert sum(one > 0.9 for one in worst) <= 1


@given(st.permutations(range(12)), st.integers(0, 5))
def test_the_order_of_groups_and_members_changes_nothing(order: list[int], seed: int) -> None:
    flags = drawn(1, Rates(), seed)[:12]
    turned = [Flag(members=flags[at].members[::-1], flagged=flags[at].flagged) for at in order]
    one, two = (scores(each, parties=100, attackers=10, rates=Rates()) for each in (flags, turned))
    assert [(each.party, round(each.score, 12)) for each in one] == [
        (each.party, round(each.score, 12)) for each in two
    ]


def test_being_flagged_more_often_raises_a_score_and_more_rounds_without_lower_it() -> None:
    flags = [Flag(members=("a", "b"), flagged=True), Flag(members=("a", "c"), flagged=True),
             Flag(members=("b", "d"), flagged=False), Flag(members=("c", "d"), flagged=False)]  # fmt: skip
    found = scores(flags, parties=10, attackers=1, rates=Rates())
    assert [one.party for one in found] == ["a", "b", "c", "d"]
    assert (found[0].rounds, found[0].flagged, found[3].flagged) == (2, 2, 0)
    assert all("malicious" not in str(one.to_dict()) for one in found)
