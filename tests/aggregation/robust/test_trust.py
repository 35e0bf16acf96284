"""FLTrust and trust from trials: what a root set decides, alone against a majority, and what it cannot see."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from quietsum.aggregation.robust import Rule, TrustedByTrial, find_rule
from quietsum.errors import InvalidParameter

from .test_more_rules import sent_of

DIMENSION = 40
BEST = np.linspace(-1, 1, DIMENSION)


class Bowl:
    """L(w) = |w − best|² / 2 on the root set, whose own update goes a tenth of the way."""

    def __init__(self, params: np.ndarray, best: np.ndarray = BEST) -> None:
        self.params, self.best = params, best

    def update(self) -> np.ndarray:
        return 0.1 * (self.best - self.params)

    def losses(self, steps: np.ndarray) -> np.ndarray:
        with np.errstate(over="ignore", invalid="ignore"):
            return ((self.params + steps - self.best) ** 2).sum(axis=1) / 2


def trained(
    rule: Rule, craft: Any, *, count: int, attackers: int, noise: float = 0.0, stated: int | None = None
) -> np.ndarray:
    """The model after some rounds, in which the first parties send what ``craft`` makes of the honest updates."""
    rng = np.random.default_rng([count, attackers])
    params, memory = np.zeros(DIMENSION), dict(rule.memory(count, DIMENSION))
    for _ in range(40):
        honest = 0.1 * (BEST - params) + rng.normal(size=(count - attackers, DIMENSION)) * (noise + 0.002)
        rows = np.concatenate([craft(honest, rng, attackers), honest])
        found = rule.combine(sent_of(rows, attackers if stated is None else stated, memory=memory, trial=Bowl(params)))
        params, memory = params + found.step, dict(found.memory)
    return params


ATTACKS = {
    "sign flip": lambda honest, rng, count: -4 * np.tile(honest.mean(axis=0), (count, 1)),
    "small and opposed": lambda honest, rng, count: -0.5 * np.tile(honest.mean(axis=0), (count, 1)),
    "somewhere else": lambda honest, rng, count: np.tile(-0.3 * np.sign(BEST), (count, 1)),
    "Gaussian": lambda honest, rng, count: 5 * rng.normal(size=(count, DIMENSION)),
}


@pytest.mark.parametrize(("count", "attackers"), [(4, 1), (4, 3), (10, 2), (10, 6)])
@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("noise", [0.0, 0.05])
def test_trust_arrives_also_against_a_majority(attack: str, count: int, attackers: int, noise: float) -> None:
    """With noise 0.05 an honest update is shorter than its noise from the first round on."""
    away = np.linalg.norm(
        trained(TrustedByTrial(), ATTACKS[attack], count=count, attackers=attackers, noise=noise) - BEST
    )
    begin = np.linalg.norm(BEST)
    assert away < (0.1 if not noise else 0.35) * begin


def test_the_median_does_not() -> None:
    """The negative control: the same attacks carry it away."""
    for attack in ("sign flip", "somewhere else"):
        away = trained(find_rule("median"), ATTACKS[attack], count=4, attackers=3, stated=1)
        assert np.linalg.norm(away - BEST) > np.linalg.norm(BEST)


def test_fltrust_is_the_published_formula() -> None:
    rng = np.random.default_rng(3)
    rows, trial = rng.normal(size=(6, DIMENSION)) + BEST, Bowl(np.zeros(DIMENSION))
    rows[0] *= -7
    root = trial.update()
    cosine = rows @ root / np.linalg.norm(rows, axis=1) / np.linalg.norm(root)
    trust = np.maximum(cosine, 0)
    scaled = rows * (np.linalg.norm(root) / np.linalg.norm(rows, axis=1))[:, None]
    found = find_rule("fltrust").combine(sent_of(rows, 1, trial=trial))
    np.testing.assert_allclose(found.step, trust @ scaled / trust.sum(), atol=1e-12)
    np.testing.assert_allclose(found.statistics["root_cosine"], cosine, atol=1e-12)
    assert not found.kept[0] and "away from the root update" in found.reasons[0]
    nobody = find_rule("fltrust").combine(sent_of(-np.tile(root, (3, 1)), 0, trial=trial))
    np.testing.assert_array_equal(nobody.step, np.zeros(DIMENSION))


def test_where_nobody_is_trusted_the_root_decides_alone() -> None:
    trial, rule = Bowl(np.zeros(DIMENSION)), find_rule("trust")
    found = rule.combine(sent_of(-np.tile(BEST, (4, 1)), 3, trial=trial))
    np.testing.assert_array_equal(found.step, trial.update())
    assert not found.kept.any() and set(found.reasons) == {0, 1, 2, 3}


def test_trust_cannot_be_saved_up() -> None:
    rule = TrustedByTrial()
    memory: Mapping[str, np.ndarray] = {}
    good = 0.1 * np.tile(BEST, (4, 1))
    for _ in range(30):
        memory = rule.combine(sent_of(good, 1, memory=memory, trial=Bowl(np.zeros(DIMENSION)))).memory
    turned = good.copy()
    turned[0] = -turned[0]
    found = rule.combine(sent_of(turned, 1, memory=memory, trial=Bowl(np.zeros(DIMENSION))))
    assert found.kept.tolist() == [False, True, True, True] and "in this round" in found.reasons[0]


def test_memory_belongs_to_parties_and_waits_for_those_who_are_not_there() -> None:
    rule, trial = TrustedByTrial(), Bowl(np.zeros(DIMENSION))
    rows = np.stack([BEST, -BEST, BEST])
    found = rule.combine(sent_of(rows, 1, places=np.array([4, 1, 0]), registered=5, trial=trial))
    assert found.memory["merit"][[0, 4]].min() > 0 > found.memory["merit"][1]
    assert found.memory["evidence"][[2, 3]].tolist() == [0, 0]


def test_no_update_counts_for_more_than_the_longest_honest_one() -> None:
    trial, rule = Bowl(np.zeros(DIMENSION)), TrustedByTrial()
    rows = np.tile(0.2 * BEST, (4, 1))
    rows[:3] *= 1e6  # in the right direction, and far too long; three of four
    step = rule.combine(sent_of(rows, 3, trial=trial)).step
    assert np.linalg.norm(step) <= np.linalg.norm(0.2 * BEST) + 1e-9


def test_what_does_not_hurt_the_root_set_is_not_noticed() -> None:
    """Said by the facts, and kept here: a direction that the root set does not look at gets through."""
    half = np.where(np.arange(DIMENSION) < DIMENSION // 2, 1.0, 0.0)

    class HalfBlind(Bowl):
        def losses(self, steps: np.ndarray) -> np.ndarray:
            return (half * (self.params + steps - self.best) ** 2).sum(axis=1) / 2

    rows = np.tile(0.1 * BEST, (4, 1))
    rows[0] += 5 * (1 - half)
    found = TrustedByTrial().combine(sent_of(rows, 1, trial=HalfBlind(np.zeros(DIMENSION))))
    assert found.kept.all() and "backdoor" in find_rule("trust").facts.limits


@pytest.mark.parametrize("name", ["fltrust", "trust"])
@given(seed=st.integers(0, 10**6), count=st.integers(1, 8), attackers=st.integers(0, 9))
@settings(max_examples=15, deadline=None)
def test_whatever_arrives_has_a_finite_step_in_any_order(name: str, seed: int, count: int, attackers: int) -> None:
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(count, DIMENSION)) * 10.0 ** rng.integers(-3, 3, size=(count, 1))
    rows[rng.random(count) < 0.2] = 0
    rows[rng.random(count) < 0.2] = 1.7e308 * rng.choice([-1, 1])
    rule, trial, order = find_rule(name), Bowl(np.zeros(DIMENSION)), rng.permutation(count)
    attackers = min(attackers, count - 1)
    one = rule.combine(sent_of(rows, attackers, trial=trial))
    other = rule.combine(sent_of(rows[order], attackers, trial=trial, places=order))
    assert np.isfinite(one.step).all() and all(np.isfinite(values).all() for values in one.statistics.values())
    np.testing.assert_allclose(one.step, other.step, rtol=1e-6, atol=1e-9)
    for slot, values in one.memory.items():
        np.testing.assert_allclose(values, other.memory[slot], atol=1e-9)


@pytest.mark.parametrize("name", ["fltrust", "trust"])
def test_a_root_set_that_wants_no_step_or_has_no_loss_ends_nothing(name: str) -> None:
    rows = np.ones((3, DIMENSION))
    still = find_rule(name).combine(sent_of(rows, 1, trial=Bowl(BEST)))
    np.testing.assert_array_equal(still.step, np.zeros(DIMENSION))

    class Broken(Bowl):
        def losses(self, steps: np.ndarray) -> np.ndarray:
            return np.full(len(steps), np.nan)

    assert np.isfinite(find_rule(name).combine(sent_of(rows, 1, trial=Broken(np.zeros(DIMENSION)))).step).all()


@pytest.mark.parametrize("name", ["fltrust", "trust"])
def test_without_a_root_set_there_is_an_error_that_says_what_to_do(name: str) -> None:
    with pytest.raises(InvalidParameter, match=r"options = \{ root = 100 \}"):
        find_rule(name).combine(sent_of(np.ones((3, 4)), 1))


def test_odd_settings_are_refused() -> None:
    for fields in ({"keeps": 1.0}, {"keeps": -0.1}, {"directions": 1}, {"reaches": ()}, {"reaches": (0.0,)}):
        with pytest.raises(InvalidParameter):
            TrustedByTrial(**fields)
