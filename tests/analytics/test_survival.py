"""Kaplan–Meier and log-rank: lifelines is the referee without noise; with it the test keeps its level."""

from __future__ import annotations

import math

import numpy as np
import pytest
from lifelines import KaplanMeierFitter
from lifelines.datasets import load_gbsg2
from lifelines.statistics import logrank_test, multivariate_logrank_test

from analytics.asking import SURVIVAL, design, holds, interval_of, people
from quietsum.analytics import answers_of
from quietsum.analytics.encode import counts_of, factor, longest_column
from quietsum.analytics.survival import curve_of, log_rank

CELLS = 12


def on_grid(weeks: np.ndarray) -> np.ndarray:
    """The right edge of each time's cell."""
    edges = np.linspace(0, 60, CELLS + 1)
    return edges[np.clip(np.searchsorted(edges[1:-1], weeks, side="left"), 0, CELLS - 1) + 1]


@pytest.mark.parametrize("seed", range(5))
def test_without_noise_curve_and_test_are_those_of_lifelines_on_the_grid(seed: int) -> None:
    texts = people(300, np.random.default_rng(seed), ratio=1.5)
    made = design(SURVIVAL)
    weeks, died = np.array(texts["weeks"], dtype=float), np.array(texts["died"]) == "1"
    arm, at = np.array(texts["arm"]), on_grid(np.array(texts["weeks"], dtype=float))
    (answer,) = answers_of(made, made.vectors(made.encode(texts)).sum(axis=0), deviation=1e-9)
    for group, name in enumerate(("old", "new")):
        fitted = KaplanMeierFitter().fit(at[arm == name], died[arm == name])
        mine = [one.value for one in answer.estimates[group * CELLS : (group + 1) * CELLS]]
        theirs = fitted.survival_function_at_times(np.linspace(0, 60, CELLS + 1)[1:]).to_numpy()
        assert mine == pytest.approx(theirs, abs=1e-7)
        low = fitted.confidence_interval_.iloc[:, 0]
        for index in (2, 5, 8):
            edge = np.linspace(0, 60, CELLS + 1)[index + 1]
            if edge in low.index:
                assert interval_of(answer.estimates[group * CELLS + index])[0] == pytest.approx(low[edge], abs=1e-4)
    theirs = logrank_test(at[arm == "old"], at[arm == "new"], died[arm == "old"], died[arm == "new"])
    assert answer.test is not None
    assert answer.test["statistic"] == pytest.approx(theirs.test_statistic, rel=1e-6)
    assert answer.test["p"] == pytest.approx(theirs.p_value, rel=1e-6)
    assert weeks.max() < 60


def test_three_groups_are_compared_as_lifelines_compares_them() -> None:
    rng = np.random.default_rng(4)
    group, cell, died = rng.integers(0, 3, 400), rng.integers(0, 10, 400), rng.integers(0, 2, 400)
    counts = np.zeros((3, 2, 10))
    np.add.at(counts, (group, 1 - died, cell), 1)
    found = log_rank(counts[:, 0], counts[:, 1], np.eye(10), 0.0)
    theirs = multivariate_logrank_test(cell, group, died)
    assert found["statistic"] == pytest.approx(theirs.test_statistic, rel=1e-9) and found["degrees"] == 2


def rejected(tau: float, stated: float, repeats: int, seed: int) -> float:
    """How often groups dealt out at random are told apart at 5 %, on the German breast cancer study."""
    data = load_gbsg2()
    rng, edges = np.random.default_rng(seed), np.linspace(0, 2700, 21)
    cell = np.clip(np.searchsorted(edges[1:-1], data["time"].to_numpy(), side="left"), 0, 19)
    died, matrix = data["cens"].to_numpy(), factor(20)
    scaled, hits = (matrix / longest_column(matrix)).T, 0
    for _ in range(repeats):
        counts = np.zeros((2, 2, 20))
        np.add.at(counts, (rng.permutation(len(cell)) % 2, 1 - died, cell), 1)
        noisy, decode = counts_of(counts @ scaled + rng.normal(0, tau, counts.shape))
        hits += log_rank(noisy[:, 0], noisy[:, 1], decode, stated)["p"] < 0.05
    return hits / repeats


@pytest.mark.parametrize("tau", [5.0, 8.0, 16.0])
def test_the_log_rank_test_keeps_its_level_under_noise(tau: float) -> None:
    assert rejected(tau, tau, 1500, 21) <= 0.057 + 2.5 * math.sqrt(0.05 * 0.95 / 1500)


def test_leaving_the_noise_out_of_the_variance_would_break_the_level() -> None:
    """Negative control: the same counts, judged as if they had hardly any noise."""
    assert rejected(16.0, 0.5, 300, 22) > 0.2


def test_a_hazard_ratio_of_two_is_found_at_two_thousand_patients_of_five_sites() -> None:
    """At ε = 0.5 and δ = 1e-5 the noise of five sites together has a deviation of 16; without privacy all are found."""
    rng, matrix = np.random.default_rng(23), factor(CELLS)
    hits = plain = 0
    for _ in range(100):
        texts = people(2000, rng, ratio=2.0)
        cell = (on_grid(np.array(texts["weeks"], dtype=float)) / 5).astype(int) - 1
        counts = np.zeros((2, 2, CELLS))
        np.add.at(
            counts,
            ((np.array(texts["arm"]) == "new").astype(int), (np.array(texts["died"]) == "0").astype(int), cell),
            1,
        )
        noise = rng.normal(0, 16.0, counts.shape)
        noisy, decode = counts_of(counts @ (matrix / longest_column(matrix)).T + noise)
        hits += log_rank(noisy[:, 0], noisy[:, 1], decode, 16.0)["p"] < 0.05
        plain += log_rank(counts[:, 0], counts[:, 1], np.eye(CELLS), 0.0)["p"] < 0.05
    assert hits >= 0.8 * plain >= 75


def _covered(texts: dict[str, list[str]], noise: float, repeats: int, seed: int) -> np.ndarray:
    """How often each point's noise interval holds the curve of the data itself, groups × cells."""
    rng, made = np.random.default_rng(seed), design(SURVIVAL)
    total = made.vectors(made.encode(texts)).sum(axis=0)
    truth = np.array([one.value for one in answers_of(made, total, deviation=1e-9)[0].estimates])
    hits = np.zeros(len(truth))
    for _ in range(repeats):
        (answer,) = answers_of(made, total + rng.normal(0, noise, made.dimension), deviation=noise)
        low, high = np.array([one.noise for one in answer.estimates]).T
        hits += (low <= truth + 1e-6) & (truth - 1e-6 <= high)
    return (hits / repeats).reshape(2, CELLS)


def test_curve_intervals_cover_the_datas_own_curve() -> None:
    found = _covered(people(1500, np.random.default_rng(31)), 8.0, 1000, 32)
    assert (found >= 0.95 - 3.3 * math.sqrt(0.95 * 0.05 / 1000)).all(), found.round(3)


@pytest.mark.parametrize(
    "case, changes",
    [
        ("nobody dies", {"died": ["0"] * 300}),
        ("all die at once", {"died": ["1"] * 300, "weeks": ["1"] * 300}),
        ("all die at last", {"died": ["1"] * 300, "weeks": ["58"] * 300}),
        ("few are left", {}),
    ],
)
@pytest.mark.parametrize("noise", [0.5, 5.0])
def test_curve_intervals_cover_at_the_ends_of_a_curve_too(
    case: str, changes: dict[str, list[str]], noise: float
) -> None:
    """At S = 1, at S = 0 and where nobody is at risk any more."""
    count = 300 if changes else 40
    found = _covered({**people(count, np.random.default_rng(1)), **changes}, noise, 300, 33)
    assert (found >= 0.95 - 3.3 * math.sqrt(0.95 * 0.05 / 300)).all(), found.round(3)


def test_an_interval_for_log_minus_log_alone_would_miss_a_curve_without_deaths() -> None:
    """Negative control: it never reaches 1, and noise puts about every second estimate below that."""
    rng, missed = np.random.default_rng(34), 0
    for _ in range(200):
        noisy, decode = counts_of(np.zeros((2, CELLS)) + rng.normal(0, 5.0, (2, CELLS)))
        noisy[1, -1] += 150
        curve = curve_of(noisy[0], noisy.sum(axis=0), decode, 5.0)
        missed += bool(curve.values[2] < 1)
        low, high = curve.interval(2, 1.96, population=False)
        assert 0 <= low <= curve.values[2] <= high <= 1
    assert missed > 50


def test_a_curve_of_noise_alone_is_still_a_curve() -> None:
    rng = np.random.default_rng(41)
    for _ in range(50):
        noisy, decode = counts_of(rng.normal(0, 20.0, (2, CELLS)))
        curve = curve_of(noisy[0], noisy.sum(axis=0), decode, 20.0)
        assert (np.diff(curve.values) <= 1e-12).all() and ((curve.values >= 0) & (curve.values <= 1)).all()
        for cell in range(CELLS):
            low, high = curve.interval(cell, 1.96, population=True)
            assert 0 <= low <= curve.values[cell] + 1e-9 and curve.values[cell] - 1e-9 <= high <= 1


def test_population_intervals_of_a_curve_cover_the_source() -> None:
    """New patients in every repetition; S(t) of the source is exp(−t / 25) in both arms, on the grid exactly."""
    made, rng = design(SURVIVAL), np.random.default_rng(51)
    edges = np.linspace(0, 60, CELLS + 1)[1:]
    hits = []
    for _ in range(300):
        total = made.vectors(made.encode(people(1200, rng))).sum(axis=0) + rng.normal(0, 8.0, made.dimension)
        (answer,) = answers_of(made, total, deviation=8.0)
        pairs = zip(answer.estimates, np.tile(np.exp(-edges / 25), 2), strict=True)
        hits.append([holds(interval_of(one), value) for one, value in pairs])
    found = np.array(hits).mean(axis=0).reshape(2, CELLS)
    assert (found[:, :8] >= 0.95 - 3.3 * math.sqrt(0.95 * 0.05 / 300)).all(), found.round(3)
