"""Mixing before a rule: equal to byzfl and to naive versions, with facts and verdicts told for what was sent."""

from __future__ import annotations

import numpy as np
import pytest

from quietsum.aggregation.robust import RULES, Before, Verdict, find_rule
from quietsum.errors import InvalidParameter
from quietsum.mechanisms.rng import system_randomness

from .test_more_rules import sent_of

ROWS = np.arange(24.0).reshape(6, 4) ** 2 % 17
MIXED = [
    [6.25, 6.25, 4.0, 8.0], [8.25, 10.25, 5.75, 7.5], [11.5, 13.25, 8.5, 5.75], [11.5, 13.25, 8.5, 5.75],
    [4.5, 8.25, 5.5, 4.75], [11.5, 13.25, 8.5, 5.75],
]  # fmt: skip
"""What byzfl 0.0.11 makes of them: NNM(f=2)(ROWS)."""


class Seen:
    """A rule that keeps what it saw, and the rows that ``kept`` names."""

    name = "seen"
    facts = find_rule("median").facts

    def __init__(self, *kept: int) -> None:
        self.kept, self.rows = kept, np.zeros(0)

    def memory(self, registered: int, dimension: int) -> dict[str, np.ndarray]:
        return {}

    def combine(self, sent):  # type: ignore[no-untyped-def]
        self.rows, kept = sent.updates, np.zeros(len(sent), dtype=bool)
        kept[list(self.kept)] = True
        weights = kept / kept.sum()
        return Verdict(
            step=weights @ sent.updates, kept=kept, weights=weights, statistics={"place": np.arange(float(len(sent)))}
        )


def test_nearest_neighbour_mixing_is_byzfls() -> None:
    seen = Seen(0)
    found = Before(rule=seen, kind="nnm").combine(sent_of(ROWS, 2))
    np.testing.assert_allclose(seen.rows, MIXED)
    near = set(np.argsort(((ROWS - ROWS[0]) ** 2).sum(axis=1))[:4].tolist())
    assert set(np.flatnonzero(found.kept).tolist()) == near  # the rows in the mixed row that was kept
    assert found.weights is not None
    np.testing.assert_allclose(found.weights @ ROWS, found.step)
    assert set(found.reasons) == set(range(6)) - near and set(found.statistics) == {"mixed_place"}


def test_buckets_hold_every_row_once_and_are_drawn_anew() -> None:
    rows, drawn = np.random.default_rng(1).normal(size=(7, 3)), set()
    for _ in range(12):
        seen = Seen(0, 1, 2, 3)
        sent = sent_of(rows, 1, rng=system_randomness())
        found = Before(rule=seen, kind="bucketing").combine(sent)
        assert len(seen.rows) == 4 and found.kept.all() and found.weights is not None
        sizes = np.array([2, 2, 2, 1])
        np.testing.assert_allclose((seen.rows * sizes[:, None]).sum(axis=0), rows.sum(axis=0))
        pairs = [(one, other) for one in range(7) for other in range(one)]
        for bucket in seen.rows[:3]:
            [pair] = [pair for pair in pairs if np.allclose(rows[list(pair)].mean(axis=0), bucket)]
            drawn.add(pair)
    assert len(drawn) > 8


def test_facts_are_those_of_both_together() -> None:
    bucketing, mixing = Before(rule=find_rule("median"), kind="bucketing"), find_rule("median", "nnm")
    for attackers in range(5):
        least = bucketing.facts.least(attackers)
        buckets = lambda count: -(-count // 2)  # noqa: E731
        assert buckets(least) >= find_rule("median").facts.least(attackers) > buckets(least - 1)
        assert mixing.facts.least(attackers) == 2 * attackers + 1
    assert find_rule("foolsgold", "nnm").facts.least(4) == 9  # mixing needs a majority, whatever the rule does
    assert "after" in mixing.facts.title and "Allouah" in mixing.facts.source and mixing.facts.sensitivity is None
    with pytest.raises(InvalidParameter, match="remembers each of them"):
        find_rule("foolsgold", "bucketing")
    with pytest.raises(InvalidParameter, match="choose among nnm, bucketing"):
        find_rule("median", "blur")


@pytest.mark.parametrize("kind", ["nnm", "bucketing"])
@pytest.mark.parametrize("name", [name for name, rule in RULES.items() if not rule.facts.needs_trial])
def test_mixing_goes_with_every_rule_and_whatever_arrives(name: str, kind: str) -> None:
    if kind == "bucketing" and RULES[name].facts.remembers:
        return
    rule, rng = find_rule(name, kind), np.random.default_rng(3)
    memory = rule.memory(15, 5)
    for rows in (rng.normal(size=(15, 5)), np.zeros((15, 5)), np.full((15, 5), 8e307), np.ones((1, 5))):
        if len(rows) < rule.facts.least(0):
            continue
        some = sent_of(rows, 1 if len(rows) > 1 else 0, memory=memory, registered=15)
        order = rng.permutation(len(rows))
        found = rule.combine(some)
        other = rule.combine(sent_of(rows[order], some.attackers, memory=memory, registered=15, places=order))
        assert np.isfinite(found.step).all() and found.kept.shape == (len(rows),)
        np.testing.assert_allclose(other.step, found.step, rtol=1e-6, atol=1e-9)


def test_mixing_brings_unlike_honest_updates_together() -> None:
    rng = np.random.default_rng(6)
    honest = rng.normal(size=(8, 200)) + 0.5
    rows = np.concatenate([np.full((2, 200), -3.0), honest])
    seen = Seen(0)
    Before(rule=seen, kind="nnm").combine(sent_of(rows, 2))
    spread = lambda some: np.linalg.norm(some - honest.mean(axis=0), axis=1).mean()  # noqa: E731
    assert spread(seen.rows[2:]) < 0.5 * spread(honest)
