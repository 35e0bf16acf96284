"""Every rule equals a reference: Flower's function, scikit-learn's clustering, or a naive version of the paper."""

from __future__ import annotations

import numpy as np
import pytest

from aggregation.robust.naive import (
    Fixed,
    centered_clipping,
    geometric_median,
    krum_order,
    norm_bounded,
    signguard,
    verdict_of,
)
from quietsum.aggregation.robust import CenteredClipping, NormBounded, find_rule
from quietsum.aggregation.robust.rows.distances import pairwise_distances, rough_distances
from quietsum.aggregation.robust.rows.meanshift import bandwidth_of, largest_cluster, mean_shift
from quietsum.aggregation.robust.rules.krum import krum_scores

SIZES = [(3, 0, 5), (7, 2, 1), (10, 2, 40), (23, 5, 300), (50, 10, 1000)]


def matrix(count: int, dimension: int, seed: int = 0, dtype: type = np.float64) -> np.ndarray:
    rng = np.random.default_rng([seed, count, dimension])
    return (rng.normal(size=dimension) + rng.normal(size=(count, dimension))).astype(dtype)


def as_flower(rows: np.ndarray) -> list[tuple[list[np.ndarray], int]]:
    return [([row], 1) for row in rows]


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize(("count", "attackers", "dimension"), SIZES)
def test_median_and_trimmed_mean_are_numpys_and_flowers(
    count: int, attackers: int, dimension: int, dtype: type
) -> None:
    flwr = pytest.importorskip("flwr.server.strategy.aggregate")
    aggregate_median, aggregate_trimmed_avg = flwr.aggregate_median, flwr.aggregate_trimmed_avg
    rows = matrix(count, dimension, dtype=dtype)
    median = verdict_of(find_rule("median"), rows, attackers)
    np.testing.assert_array_equal(median.step, np.median(rows.astype(np.float64), axis=0))
    np.testing.assert_allclose(median.step, aggregate_median(as_flower(rows))[0], rtol=1e-6)
    trimmed = verdict_of(find_rule("trimmed-mean"), rows, attackers)
    ordered = np.sort(rows.astype(np.float64), axis=0)
    np.testing.assert_allclose(trimmed.step, ordered[attackers : count - attackers].mean(axis=0), rtol=1e-12)
    flower = aggregate_trimmed_avg(as_flower(rows.astype(np.float64)), attackers / count + 1e-9)[0]
    np.testing.assert_allclose(trimmed.step, flower, rtol=1e-12)
    assert median.step.dtype == trimmed.step.dtype == np.float64 and median.kept.all() and trimmed.kept.all()


@pytest.mark.parametrize(("count", "attackers", "dimension"), SIZES)
def test_krum_is_flowers_with_n_minus_f_minus_two_neighbours(count: int, attackers: int, dimension: int) -> None:
    aggregate_krum = pytest.importorskip("flwr.server.strategy.aggregate").aggregate_krum
    rows = matrix(count, dimension, seed=1)
    krum = verdict_of(find_rule("krum"), rows, attackers)
    np.testing.assert_array_equal(krum.step, rows[krum_order(rows, attackers)[0]])
    np.testing.assert_allclose(krum.step, aggregate_krum(as_flower(rows), attackers, 0)[0])
    multi = verdict_of(find_rule("multi-krum"), rows, attackers)
    chosen = krum_order(rows, attackers)[: count - attackers]
    np.testing.assert_array_equal(np.flatnonzero(multi.kept), np.sort(chosen))
    np.testing.assert_allclose(multi.step, rows[chosen].mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(multi.step, aggregate_krum(as_flower(rows), attackers, count - attackers)[0])
    assert krum.kept.sum() == 1 and len(multi.reasons) == attackers


def test_byzfl_counts_one_neighbour_more_and_can_choose_another_update() -> None:
    """The convention matters: with n − f − 1 neighbours this matrix has another winner than with n − f − 2."""
    rows = np.array([[0.0], [1.0], [2.1], [5.0], [6.4]])
    squares = np.sort((rows - rows.T) ** 2, axis=1)
    assert np.argmin(squares[:, 1:3].sum(axis=1)) == 1  # n − f − 2 = 2 for f = 1
    np.testing.assert_array_equal(verdict_of(find_rule("krum"), rows, 1).step, rows[1])
    assert np.argmin(squares[:, 1:4].sum(axis=1)) == 2  # n − f − 1 = 3


@pytest.mark.parametrize("shift", [0.0, 1e6])
@pytest.mark.parametrize(("count", "far"), [(3, 0), (8, 0), (15, 3), (40, 15)])
@pytest.mark.some(2)
def test_the_geometric_median_is_weiszfelds_in_the_space_of_updates(count: int, far: int, shift: float) -> None:
    rows = matrix(count, 60, seed=2) + shift
    rows[:far] += 1e4 * matrix(1, 60, seed=3)
    got = verdict_of(find_rule("geometric-median"), rows, far)
    expected = geometric_median(rows)
    np.testing.assert_allclose(got.step - shift, expected - shift, atol=2e-9 if shift else 1e-10)
    assert got.weights is not None and abs(got.weights.sum() - 1) < 1e-12
    np.testing.assert_allclose(got.statistics["distance"], np.linalg.norm(rows - expected, axis=1), rtol=1e-6)


@pytest.mark.parametrize("radius", [None, 3.0])
@pytest.mark.parametrize("iterations", [1, 3])
def test_centered_clipping_is_the_papers(radius: float | None, iterations: int) -> None:
    rule = CenteredClipping(radius=radius, iterations=iterations)
    for count, attackers, dimension in SIZES:
        rows, last = matrix(count, dimension, seed=4), matrix(1, dimension, seed=5)[0]
        rows[:attackers] *= 50
        got = verdict_of(rule, rows, attackers, memory={"last": last})
        np.testing.assert_allclose(got.step, centered_clipping(rows, last, iterations, radius), rtol=1e-10, atol=1e-12)
        np.testing.assert_array_equal(got.memory["last"], got.step)


@pytest.mark.parametrize("bound", [None, 2.5])
def test_the_norm_bounded_mean_is_the_naive_one_also_as_a_stream(bound: float | None) -> None:
    rule = NormBounded(bound=bound)
    for count, attackers, dimension in SIZES:
        rows = matrix(count, dimension, seed=6)
        rows[:attackers] *= 50
        step = verdict_of(rule, rows, attackers).step
        np.testing.assert_allclose(step, norm_bounded(rows, bound), rtol=1e-11, atol=1e-13)
        if bound is not None:
            np.testing.assert_allclose(rule.stream(iter(rows)), step, rtol=1e-11, atol=1e-13)


def test_a_constant_bound_is_what_one_update_moves_the_mean_by() -> None:
    rule, rows = NormBounded(bound=2.0), matrix(10, 20)
    other = rows.copy()
    other[0] = -1e9 * rows[0]
    moved = np.linalg.norm(verdict_of(rule, rows).step - verdict_of(rule, other).step)
    assert 0.39 < moved <= 2 * 2.0 / 10 + 1e-12 and rule.facts.sensitivity == "2 · 2 / n"
    assert NormBounded().facts.sensitivity is None


@pytest.mark.parametrize("shift", [0.0, 1e3, 1e6, 1e9])
@pytest.mark.parametrize("spread", [1.0, 1e-3])
def test_distances_of_near_identical_updates_keep_their_digits(shift: float, spread: float) -> None:
    rng = np.random.default_rng(5)
    rows = shift * rng.normal(size=200) + spread * rng.normal(size=(12, 200))
    rows[-1] = -30 * shift  # a distant row as a possible centre
    exact = rows.astype(np.longdouble)
    expected = np.sqrt(((exact[:, None] - exact[None]) ** 2).sum(axis=2)).astype(np.float64)
    np.testing.assert_allclose(pairwise_distances(rows), expected, rtol=1e-10)
    products = rows @ rows.T
    plain = np.sqrt(np.abs(np.add.outer(np.diag(products), np.diag(products)) - 2 * products))
    if shift / spread >= 1e9:  # without a centre, nothing is left of them
        assert np.abs(plain - expected).max() > 0.1 * np.median(expected)


def test_large_matrices_are_ranked_in_single_precision_only_where_it_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quietsum.aggregation.robust.rules.krum._LARGE", 1)
    rows = matrix(42, 5000, seed=8)
    exact = pairwise_distances(rows)
    rough = rough_distances(rows)
    assert rough is not None
    off_diagonal = ~np.eye(42, dtype=bool)
    assert np.abs(rough[off_diagonal] / exact[off_diagonal] - 1).max() < 1e-6
    order = np.argsort(krum_scores(exact, 8))
    assert np.flatnonzero(verdict_of(find_rule("krum"), rows, 8).kept).tolist() == [order[0]]
    chosen = np.flatnonzero(verdict_of(find_rule("multi-krum"), rows, 8).kept)
    np.testing.assert_array_equal(chosen, np.sort(order[:34]))
    rows[:20] = rows[0] + 1e-6 * rows[:20]
    rows[20:] = rows[20] + 1e-6 * rows[20:]
    assert rough_distances(rows) is None, "rows that are closer to each other than to the centre"
    order = np.argsort(krum_scores(pairwise_distances(rows), 8))
    assert verdict_of(find_rule("krum"), rows, 8).kept[order[0]]


def test_clusters_within_clusters_are_resolved_one_after_another() -> None:
    rng = np.random.default_rng(6)
    rows = np.concatenate([1e9 * k + 1e3 * j + 1e-4 * rng.normal(size=(3, 50)) for k in range(3) for j in range(3)])
    exact = rows.astype(np.longdouble)
    expected = np.sqrt(((exact[:, None] - exact[None]) ** 2).sum(axis=2)).astype(np.float64)
    np.testing.assert_allclose(pairwise_distances(rows), expected, rtol=1e-9)


@pytest.mark.parametrize("scale", [1e-300, 1e-160, 1e160, 1e307])
def test_distances_at_the_ends_of_float64_do_not_leave_it(scale: float) -> None:
    rows = np.clip(matrix(9, 30), -1.5, 1.5)
    np.testing.assert_allclose(pairwise_distances(scale * rows) / scale, pairwise_distances(rows), rtol=1e-9)
    mixed = np.concatenate([rows, scale * rows])
    found = pairwise_distances(mixed)
    np.testing.assert_allclose(found[:9, :9], pairwise_distances(rows), rtol=1e-9)
    if scale > 1:
        np.testing.assert_allclose(found[9:, 9:] / scale, pairwise_distances(rows), rtol=1e-9)


@pytest.mark.parametrize("form", ["", "sim", "dist"])
@pytest.mark.parametrize("place", [0.0, 1 - 2**-53])
def test_signguard_is_the_authors_with_scikit_learns_mean_shift(form: str, place: float) -> None:
    rule = find_rule(f"signguard-{form}" if form else "signguard")
    for seed, (count, attackers) in enumerate([(10, 2), (60, 12)]):
        rows = 0.3 * matrix(count, 2000, seed=seed)
        rows[:attackers] *= -1
        rows[attackers] *= 0.01
        rows[attackers + 1] *= 40
        rows[:, ::7] = 0
        start = min(int(place * 1801), 1800)
        for last in (np.zeros(2000), rows[-5:].mean(axis=0)):
            step, kept = signguard(rows, slice(start, start + 200), form, last)
            got = verdict_of(rule, rows, attackers, rng=Fixed(place), memory={"last": last} if form else {})
            assert np.flatnonzero(got.kept).tolist() == kept
            np.testing.assert_allclose(got.step, step, rtol=1e-12, atol=1e-15)
            if form:
                np.testing.assert_array_equal(got.memory["last"], got.step)


def test_our_mean_shift_has_scikit_learns_labels() -> None:
    from sklearn.cluster import MeanShift, estimate_bandwidth

    rng = np.random.default_rng(3)
    for trial in range(16):
        count, dimension = int(rng.integers(4, 70)), int(rng.integers(3, 5))
        points = rng.normal(size=(count, dimension)) * rng.choice([0.01, 1.0])
        points[: count // 3] += rng.normal(size=dimension)
        bandwidth = estimate_bandwidth(points, quantile=0.5)
        np.testing.assert_allclose(bandwidth_of(points), bandwidth, rtol=1e-12)
        model = MeanShift(bandwidth=bandwidth, bin_seeding=True, cluster_all=False)
        labels = model.fit(points).labels_
        centres, ours = mean_shift(points, bandwidth)
        np.testing.assert_array_equal(ours, labels, err_msg=str(trial))
        np.testing.assert_allclose(centres, model.cluster_centers_, rtol=1e-9)
        largest = labels == np.argmax(np.bincount(labels[labels >= 0]))
        np.testing.assert_array_equal(largest_cluster(points), largest)


def test_points_without_a_kernel_are_judged_by_equality() -> None:
    same = np.ones((5, 3))
    assert largest_cluster(same).all()
    assert largest_cluster(np.array([[1.0, 0, 0], [1, 0, 0], [0, 1, 0]])).tolist() == [True, True, False]
    assert largest_cluster(np.array([[1.0, 0, 0], [0, 1, 0]])).all(), "two that differ: neither is the larger"
    assert largest_cluster(np.eye(3)).all()
