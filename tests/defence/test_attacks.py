"""Attacks on updates: each against a naive version, the constraints of those that hide, and what they do to a mean."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scipy.stats import norm

from quietsum.aggregation.robust import Sent, find_rule
from quietsum.defence.attacks import ATTACKS, DIRECTIONS, Seen, attack_named, lie_deviations, perturbation, widest
from quietsum.errors import InvalidParameter
from quietsum.mechanisms.rng import randomness_for_tests

Floats = np.ndarray


@pytest.fixture(scope="module", autouse=True)
def seeds_are_allowed() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QUIETSUM_TEST_SEEDS", "1")
        yield


def seen(parties: int = 12, attackers: int = 3, dimension: int = 6, seed: int = 0, **more: object) -> Seen:
    draws = np.random.default_rng(seed)
    rows = 1 + draws.normal(size=(parties, dimension)) * np.arange(1, dimension + 1) / dimension
    return Seen(honest=rows[attackers:], own=rows[:attackers], rng=randomness_for_tests(seed), **more)  # type: ignore[arg-type]


def furthest(rows: Floats) -> float:
    return max(float(np.linalg.norm(a - b)) for a, b in itertools.combinations(rows, 2))


def by_bisection(keeps: object) -> float:
    """The largest factor that keeps a constraint, as the paper looks for it: with no formula."""
    low, high = 0.0, 1.0
    while keeps(high):  # type: ignore[operator]
        high *= 2
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if keeps(middle) else (low, middle)  # type: ignore[operator]
    return low


@pytest.mark.parametrize("name", ATTACKS)
def test_every_attack_sends_one_finite_update_for_each_attacker_and_changes_nothing_it_was_shown(name: str) -> None:
    shown = seen(last=np.arange(6.0), rule=find_rule("median"))
    before = shown.honest.copy(), shown.own.copy()
    sent = attack_named(name)(shown)
    assert sent.shape == (3, 6)
    assert np.isfinite(sent).all()
    assert (shown.honest == before[0]).all()
    assert (shown.own == before[1]).all()


@pytest.mark.parametrize("name", ATTACKS)
@pytest.mark.parametrize("honest", [np.zeros((4, 3)), np.ones((1, 3)), np.zeros((0, 3))])
def test_every_attack_has_an_answer_where_honest_updates_are_zero_or_one_or_none(name: str, honest: Floats) -> None:
    shown = Seen(honest=honest, own=np.ones((1, 3)), rng=randomness_for_tests(1))
    assert np.isfinite(attack_named(name)(shown)).all()


def test_known_answers_of_the_attacks_with_a_formula() -> None:
    shown = Seen(
        honest=np.array([[1.0, 0.0], [3.0, 4.0]]), own=np.array([[2.0, 2.0]]), rng=randomness_for_tests(0),
        last=np.array([5.0, 6.0]),
    )  # fmt: skip
    answers: dict[tuple[str, float | None], list[float]] = {
        ("sign-flip", 2.0): [-4, -4],
        ("lie", 1.5): [2 + 1.5 * 2**0.5, 2 + 1.5 * 8**0.5],
        ("ipm", 0.5): [-1, -1],
        ("model-replacement", None): [6, 6],
        ("zero", None): [0, 0],
        ("free-rider", 0.0): [5, 6],
    }
    for (name, strength), expected in answers.items():
        np.testing.assert_allclose(attack_named(name)(shown, strength), [expected], rtol=1e-12, err_msg=name)


@pytest.mark.parametrize(("parties", "attackers"), [(50, 10), (20, 4), (51, 20), (10, 4)])
def test_the_z_of_lie_is_the_quantile_of_the_paper(parties: int, attackers: int) -> None:
    supporters = int(np.floor(parties / 2 + 1)) - attackers
    naive = norm.ppf((parties - attackers - supporters) / (parties - attackers))
    assert lie_deviations(parties, attackers) == pytest.approx(max(naive, 0.0), abs=1e-12)


@pytest.mark.parametrize("direction", DIRECTIONS)
@settings(max_examples=25)
@given(seed=st.integers(0, 10**6), parties=st.integers(4, 12), dimension=st.integers(1, 9))
def test_min_max_is_the_furthest_push_that_keeps_its_constraint(
    direction: str, seed: int, parties: int, dimension: int
) -> None:
    shown = seen(parties=parties, attackers=1, dimension=dimension, seed=seed, direction=direction)
    rows, push, mean = shown.honest, perturbation(shown), shown.mean
    allowed = furthest(rows)

    def keeps(factor: float) -> bool:
        return bool(np.linalg.norm(mean + factor * push - rows, axis=1).max() <= allowed)

    factor = widest(rows, push, sums=False)
    assert factor == pytest.approx(by_bisection(keeps), rel=1e-6, abs=1e-9)
    sent = attack_named("min-max")(shown)[0]
    reach = max(np.linalg.norm(sent - row) for row in rows)
    assert reach == pytest.approx(furthest(rows), rel=1e-9), "the constraint holds with nothing to spare"
    further = max(np.linalg.norm(shown.mean + 1.01 * factor * push - row) for row in rows)
    assert further > furthest(rows), "a push of one percent more breaks it"


@pytest.mark.parametrize("direction", DIRECTIONS)
@settings(max_examples=25)
@given(seed=st.integers(0, 10**6), parties=st.integers(4, 12), dimension=st.integers(1, 9))
def test_min_sum_is_the_furthest_push_that_keeps_its_constraint(
    direction: str, seed: int, parties: int, dimension: int
) -> None:
    shown = seen(parties=parties, attackers=1, dimension=dimension, seed=seed, direction=direction)
    rows, push, mean = shown.honest, perturbation(shown), shown.mean
    allowed = max(sum(float(np.sum((a - b) ** 2)) for b in rows) for a in rows)

    def total(factor: float) -> float:
        return float(np.sum((mean + factor * push - rows) ** 2))

    factor = widest(rows, push, sums=True)
    assert factor == pytest.approx(by_bisection(lambda value: total(value) <= allowed), rel=1e-6, abs=1e-9)
    assert total(factor) == pytest.approx(allowed, rel=1e-9)
    assert total(1.01 * factor) > allowed


@pytest.mark.parametrize(("parties", "attackers"), [(12, 3), (10, 4), (7, 1)])
def test_the_mean_of_all_becomes_the_lie_that_byzmean_wants(parties: int, attackers: int) -> None:
    shown = seen(parties=parties, attackers=attackers)
    sent = attack_named("byzmean")(shown, 0.7)
    all_rows = np.concatenate([shown.honest, sent])
    np.testing.assert_allclose(
        all_rows.mean(axis=0), shown.honest.mean(axis=0) + 0.7 * shown.honest.std(axis=0, ddof=1)
    )


def test_ipm_turns_the_mean_round_only_above_honest_over_attackers() -> None:
    shown = seen(parties=12, attackers=3)
    for strength, backwards in ((2.9, False), (3.1, True)):
        step = np.concatenate([shown.honest, attack_named("ipm")(shown, strength)]).mean(axis=0)
        assert bool(step @ shown.mean < 0) is backwards


def test_mimic_repeats_one_honest_update_the_furthest_out_along_the_widest_direction() -> None:
    shown = seen(parties=15, attackers=2, dimension=8)
    centred = shown.honest - shown.honest.mean(axis=0)
    top = np.linalg.svd(centred)[2][0]
    expected = shown.honest[np.abs(centred @ top).argmax()]
    assert (attack_named("mimic")(shown) == expected).all()


def test_matched_signs_have_the_median_counts_and_length_of_honest_updates() -> None:
    shown = seen(parties=20, attackers=4, dimension=300)
    sent = attack_named("sign-matched")(shown)
    assert (sent[0] > 0).sum() == int(np.median((shown.honest > 0).sum(axis=1)))
    lengths = np.linalg.norm(shown.honest, axis=1)
    np.testing.assert_allclose(np.linalg.norm(sent, axis=1), np.median(lengths))


def test_gaussian_noise_has_the_stated_deviation() -> None:
    shown = seen(parties=6, attackers=2, dimension=4000)
    rms = np.sqrt(np.mean(shown.honest**2))
    assert attack_named("gaussian")(shown, 3.0).std() == pytest.approx(3 * rms, rel=0.05)


def test_the_adaptive_attack_turns_a_mean_round() -> None:
    shown = seen(parties=20, attackers=4, dimension=40)
    step = np.concatenate([shown.honest, attack_named("adaptive")(shown)]).mean(axis=0)
    assert step @ shown.mean < 0


def test_the_adaptive_attack_costs_a_rule_no_less_than_ipm_and_lie_do() -> None:
    """By progress where it can take half of that, by distance elsewhere."""
    for rule, attackers in (("median", 6), ("median", 9), ("trimmed-mean", 4)):
        found = {}
        for name in ("adaptive", "ipm", "lie"):
            shown = seen(parties=20, attackers=attackers, dimension=40, rule=find_rule(rule), stated=attackers)
            rows = np.concatenate([shown.honest, attack_named(name)(shown)])
            sent = Sent(updates=rows, attackers=attackers, places=np.arange(20), registered=20, rng=shown.rng)
            step, mean = find_rule(rule).combine(sent).step, shown.mean
            found[name] = 1 - float(step @ mean) / float(mean @ mean), float(np.linalg.norm(step - mean))
        measure = 0 if found["adaptive"][0] >= 0.5 else 1
        assert found["adaptive"][measure] >= max(found["ipm"][measure], found["lie"][measure])


def test_the_adaptive_attack_gives_the_rule_its_rows_in_registered_order() -> None:
    places = np.array([4, 0, 2, 3, 1])
    looked: list[tuple[list[int], Floats]] = []
    median = find_rule("median")

    class Looking:
        name, facts, memory = median.name, median.facts, median.memory

        def combine(self, sent: object) -> object:
            looked.append((sent.places.tolist(), sent.updates.copy()))  # type: ignore[attr-defined]
            return median.combine(sent)  # type: ignore[arg-type]

    shown = Seen(
        honest=np.arange(8.0).reshape(4, 2), own=np.ones((1, 2)), rng=randomness_for_tests(0), places=places,
        registered=6, rule=Looking(),  # type: ignore[arg-type]
    )  # fmt: skip
    attack_named("adaptive")(shown)
    assert all(order == [0, 1, 2, 3, 4] for order, _ in looked)
    assert (looked[0][1][[4, 0, 2, 3]] == shown.honest).all()


@pytest.mark.parametrize("strength", [-1.0, float("nan"), float("inf")])
def test_a_strength_that_is_none_is_refused(strength: float) -> None:
    with pytest.raises(InvalidParameter, match="strength"):
        attack_named("ipm")(seen(), strength)


def test_an_unknown_attack_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InvalidParameter, match="sign-flip"):
        attack_named("charm")
