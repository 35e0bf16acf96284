"""Bulyan, DnC, FoolsGold and FLAME-style clustering against other libraries and naive versions."""

from __future__ import annotations

import os
from collections.abc import Mapping
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from quietsum.aggregation.robust import Rule, Sent, find_rule, most_attackers
from quietsum.aggregation.robust.rules.dnc import DivideAndConquer, outlier_scores
from quietsum.aggregation.robust.rules.flame import densest_majority
from quietsum.aggregation.robust.rules.foolsgold import sybil_weights
from quietsum.errors import TooFewParties
from quietsum.mechanisms.rng import randomness_for_tests

HERE = ("bulyan", "dnc", "foolsgold", "flame")


def sent_of(updates: np.ndarray, attackers: int = 0, **fields: object) -> Sent:
    rows = np.asarray(updates, dtype=np.float64)
    with mock.patch.dict(os.environ, {"QUIETSUM_TEST_SEEDS": "1"}):
        rng = randomness_for_tests(3)
    values = {
        "updates": rows, "attackers": attackers, "places": np.arange(len(rows)), "registered": len(rows),
        "rng": rng, **fields,
    }  # fmt: skip
    return Sent(**values)  # type: ignore[arg-type]


def step_of(rule: str | Rule, updates: np.ndarray, attackers: int = 0) -> np.ndarray:
    found = find_rule(rule) if isinstance(rule, str) else rule
    return found.combine(sent_of(updates, attackers)).step


@pytest.mark.parametrize(("count", "attackers"), [(7, 1), (11, 2), (12, 2), (15, 3), (5, 0)])
def test_bulyan_is_flowers_with_its_krum_convention(count: int, attackers: int) -> None:
    pytest.importorskip("flwr")
    from flwr.common import Array, ArrayRecord, RecordDict
    from flwr.serverapp.strategy.bulyan import aggregate_n_closest_weights
    from flwr.serverapp.strategy.multikrum import select_multikrum

    rows = np.random.default_rng(count).normal(size=(count, 23))
    rows[:attackers] += 4
    contents = [RecordDict({"arrays": ArrayRecord({"w": Array(row)})}) for row in rows]
    chosen = select_multikrum(contents, attackers, count - 2 * attackers)
    arrays = [content["arrays"] for content in chosen]
    some = [one.to_numpy_ndarrays() for one in arrays if isinstance(one, ArrayRecord)]
    assert len(some) == len(chosen)
    middle = [np.median(np.stack([one[0] for one in some]), axis=0)]
    theirs = aggregate_n_closest_weights(middle, some, count - 4 * attackers)[0]
    np.testing.assert_allclose(step_of("bulyan", rows, attackers), theirs, atol=1e-12)


def test_dnc_is_the_mean_of_what_the_first_singular_vector_leaves() -> None:
    rng = np.random.default_rng(5)
    rows = rng.normal(size=(20, 40))
    rows[:4] += 3 * rng.normal(size=40)
    centred = rows - rows.mean(axis=0)
    first = np.linalg.svd(centred, full_matrices=False)[2][0]
    scores = (centred @ first) ** 2
    np.testing.assert_allclose(outlier_scores(rows) ** 2, scores, rtol=1e-7)
    left = np.argsort(scores)[:16]
    np.testing.assert_allclose(step_of("dnc", rows, 4), rows[left].mean(axis=0), atol=1e-12)
    assert set(left.tolist()) == set(range(4, 20))
    drawn = DivideAndConquer(coordinates=12).combine(sent_of(rows, 4))
    assert not drawn.kept[:4].any() and drawn.kept.sum() >= 8 and set(drawn.reasons) == set(np.flatnonzero(~drawn.kept))


def naive_foolsgold(histories: list[np.ndarray]) -> list[float]:
    """The authors' pseudo-code, line by line."""
    count = len(histories)
    similar = [[float(a @ b / np.linalg.norm(a) / np.linalg.norm(b)) for b in histories] for a in histories]
    nearest = [max(similar[i][j] for j in range(count) if j != i) for i in range(count)]
    for i in range(count):
        for j in range(count):
            if i != j and nearest[j] > nearest[i]:
                similar[i][j] *= nearest[i] / nearest[j]
    say = [min(max(1 - max(similar[i][j] for j in range(count) if j != i), 0.0), 1.0) for i in range(count)]
    top = max(say)
    say = [min(one / top, 0.99) for one in say]
    return [min(max(float(np.log(one / (1 - one))) + 0.5, 0.0), 1.0) if one > 0 else 0.0 for one in say]


def test_foolsgold_is_the_published_one_and_remembers_every_party() -> None:
    rng = np.random.default_rng(8)
    rule, histories = find_rule("foolsgold"), [np.zeros(9) for _ in range(6)]
    memory: Mapping[str, np.ndarray] = {}
    sybil = rng.normal(size=9)
    for number in range(3):
        rows = rng.normal(size=(6, 9)) + 0.3
        rows[:3] = sybil + 0.01 * rng.normal(size=(3, 9))
        here = np.arange(6) if number != 1 else np.array([0, 1, 2, 4, 5])  # one is not there once
        for place in here:
            histories[place] = histories[place] + rows[place]
        found = rule.combine(sent_of(rows[here], places=here, registered=6, memory=memory))
        memory = found.memory
        say = np.array(naive_foolsgold([histories[place] for place in here]))
        np.testing.assert_allclose(found.statistics["say"], say, atol=1e-9)
        np.testing.assert_allclose(found.step, say @ rows[here] / say.sum(), atol=1e-9)
        assert not found.kept[:3].any() and found.kept[3:].any()
    np.testing.assert_allclose(memory["history"].reshape(6, 9), np.stack(histories))
    assert sybil_weights(np.ones((1, 1))).tolist() == [1.0]


@given(seed=st.integers(0, 10**6), count=st.integers(3, 24), decimals=st.sampled_from([1, 2, 8]))
@settings(max_examples=60, deadline=None)
def test_the_cluster_of_the_majority_is_hdbscans(seed: int, count: int, decimals: int) -> None:
    cluster = pytest.importorskip("sklearn.cluster")
    rng = np.random.default_rng(seed)
    points = rng.normal(size=(count, 3))
    points[: count // 3] += 3
    apart = np.linalg.norm(points[:, None] - points[None, :], axis=2).round(decimals)  # rounded ones tie
    theirs = cluster.HDBSCAN(
        min_cluster_size=count // 2 + 1, min_samples=1, metric="precomputed", allow_single_cluster=True, copy=True
    ).fit(apart)
    np.testing.assert_array_equal(densest_majority(apart), theirs.labels_ == 0)


def test_flame_cuts_the_majority_to_the_median_length() -> None:
    rng = np.random.default_rng(2)
    rows = np.ones((7, 5)) + 0.1 * rng.normal(size=(7, 5))
    rows[5:] = -50 * rows[5:]
    rows[0] *= 20
    found = find_rule("flame").combine(sent_of(rows, 2))
    size = np.linalg.norm(rows, axis=1)
    cut = rows * np.minimum(1, np.median(size) / size)[:, None]
    assert found.kept.sum() == 4 and not found.kept[5:].any()  # no more than it takes for a majority
    np.testing.assert_allclose(found.step, cut[found.kept].mean(axis=0), atol=1e-12)


# ------------------------------------------------------------------------------- whatever arrives


@pytest.mark.parametrize("name", HERE)
@given(seed=st.integers(0, 10**6), count=st.integers(1, 12), attackers=st.integers(0, 6))
@settings(max_examples=25, deadline=None)
def test_the_order_of_rows_changes_nothing(name: str, seed: int, count: int, attackers: int) -> None:
    rng = np.random.default_rng(seed)
    rows = rng.integers(-2, 3, size=(count, 4)).astype(float)  # many ties, many zeros
    order = rng.permutation(count)
    rule = find_rule(name)
    attackers = min(attackers, most_attackers(rule, count))
    if attackers < 0:
        return
    one = rule.combine(sent_of(rows, attackers))
    other = rule.combine(sent_of(rows[order], attackers, places=order))
    np.testing.assert_allclose(one.step, other.step, atol=1e-9)
    assert np.isfinite(one.step).all() and one.kept.any()


@pytest.mark.parametrize("name", HERE)
@pytest.mark.parametrize("huge", [1e160, 1.7e308, -1.7e308])
def test_huge_rows_leave_a_finite_step(name: str, huge: float) -> None:
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(11, 6)) + 5
    rows[:2] = huge
    found = find_rule(name).combine(sent_of(rows, 2))
    assert np.isfinite(found.step).all() and all(np.isfinite(v).all() for v in found.statistics.values())
    if name != "foolsgold":  # two that push the same way are all it looks for
        assert np.abs(found.step).max() < 10
        assert name == "flame" or not found.kept[:2].any()  # flame looks at directions, and cuts what is too long
    assert np.isfinite(step_of(name, np.full((7, 3), huge), 1)).all()


@pytest.mark.parametrize("name", HERE)
def test_zeros_identical_rows_and_a_single_row_have_a_step(name: str) -> None:
    np.testing.assert_array_equal(step_of(name, np.zeros((7, 4)), 1), np.zeros(4))
    np.testing.assert_allclose(step_of(name, np.tile([1.0, -2.0, 3.0], (7, 1)), 1), [1.0, -2.0, 3.0])
    if find_rule(name).facts.least(0) == 1:
        np.testing.assert_allclose(step_of(name, np.array([[4.0, 5.0]]), 0), [4.0, 5.0])
    with pytest.raises(TooFewParties, match="too few"):
        step_of(name, np.array([[4.0, 5.0]]), 3)
    rows = np.random.default_rng(4).normal(size=(9, 5))
    rows[3] = 0
    before = rows.copy()
    assert np.isfinite(step_of(name, rows, 1)).all()
    np.testing.assert_array_equal(rows, before)


@pytest.mark.parametrize("name", ["bulyan", "dnc", "flame"])
@given(seed=st.integers(0, 10**6), scale=st.sampled_from([3.0, 100.0, 1e12]))
@settings(max_examples=20, deadline=None)
def test_the_stated_attackers_do_not_carry_the_step_away(name: str, seed: int, scale: float) -> None:
    rng = np.random.default_rng(seed)
    honest = rng.normal(size=(9, 30)) * 0.1 + 1
    bad = scale * rng.normal(size=30) + np.zeros((2, 1))
    rows = np.concatenate([bad, honest])
    step = step_of(name, rows, 2)
    assert np.linalg.norm(step - honest.mean(axis=0)) < 1.0
