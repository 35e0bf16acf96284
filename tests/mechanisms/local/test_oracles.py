"""Estimates beside naive ones, person by person, written down from the papers."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest
from scipy.linalg import hadamard

from mechanisms.local.surveys import zipf
from quietsum.mechanisms.local import (
    CountMeanSketch,
    HadamardResponse,
    Interval,
    KRandomizedResponse,
    LocalHashing,
    MeanProtocol,
    Rappor,
    UnaryEncoding,
    categories,
)
from quietsum.mechanisms.rng import RandomSource, randomness_for_tests

ANSWERS, USERS, EPSILON = 13, 400, 1.5


@pytest.fixture
def rng(monkeypatch: pytest.MonkeyPatch) -> Iterator[RandomSource]:
    monkeypatch.setenv("QUIETSUM_TEST_SEEDS", "1")
    yield randomness_for_tests(5)


def test_randomised_response_and_unary_encodings_beside_their_textbook_corrections(rng: RandomSource) -> None:
    truth, _ = zipf(ANSWERS, USERS)
    e = math.exp(EPSILON)
    direct = KRandomizedResponse(domain=categories(ANSWERS), epsilon=EPSILON)
    reports = direct.privatize(truth, rng)
    p, q = e / (e + ANSWERS - 1), 1 / (e + ANSWERS - 1)
    naive = [(np.mean(reports["answer"] == value) - q) / (p - q) for value in range(ANSWERS)]
    assert direct.estimate(reports).values == pytest.approx(naive)
    for optimised in (True, False):
        unary = UnaryEncoding(domain=categories(ANSWERS), epsilon=EPSILON, optimised=optimised)
        sent = unary.privatize(truth, rng)
        q = 1 / (e + 1) if optimised else 1 / (math.exp(EPSILON / 2) + 1)
        p = 0.5 if optimised else 1 - q
        bits = np.array([[row[value // 8] >> (7 - value % 8) & 1 for value in range(ANSWERS)] for row in sent["bits"]])
        assert unary.estimate(sent).values == pytest.approx((bits.mean(axis=0) - q) / (p - q))


def test_local_hashing_beside_a_loop_over_people_and_answers(rng: RandomSource) -> None:
    truth, _ = zipf(ANSWERS, USERS)
    found = LocalHashing(domain=categories(ANSWERS), epsilon=EPSILON)
    reports = found.privatize(truth, rng)
    g, e = found.values, math.exp(EPSILON)
    support = [0] * ANSWERS
    for a, b, answer in reports.tolist():
        for value in range(ANSWERS):
            support[value] += ((a * value + b) % 2**64 // 2**32) * g // 2**32 == answer
    p = e / (e + g - 1)
    naive = (np.array(support) / USERS - 1 / g) / (p - 1 / g)
    assert found.estimate(reports).values == pytest.approx(naive, abs=1e-6)


@pytest.mark.parametrize("epsilon", [1.0, 4.0])
def test_hadamard_response_beside_the_dense_matrix(rng: RandomSource, epsilon: float) -> None:
    truth, _ = zipf(ANSWERS, USERS)
    found = HadamardResponse(domain=categories(ANSWERS), epsilon=epsilon)
    reports = found.privatize(truth, rng)
    matrix, e = hadamard(found.width), math.exp(epsilon)
    gain = (e - 1) / (e + 2 * found.blocks - 1)
    naive = np.zeros(ANSWERS)
    for signal in reports["signal"].tolist():
        block, place = divmod(signal, found.width)
        for value in range(ANSWERS):
            if value % found.blocks == block:
                naive[value] += matrix[value // found.blocks + 1, place] / gain / USERS
    assert found.estimate(reports).values == pytest.approx(naive)


@pytest.mark.parametrize("form", [False, True])
def test_sketches_beside_apples_algorithms(rng: RandomSource, form: bool) -> None:
    """Client and server of the paper: x̃ = k (c/2 · ṽ + ½ · 1), or k c ṽ and one inverse transform; then debias."""
    truth, _ = zipf(ANSWERS, USERS)
    k, m = 8, 16
    found = CountMeanSketch(
        domain=categories(ANSWERS), epsilon=EPSILON, functions=k, width=m, hadamard=form, seed=3
    )  # fmt: skip
    reports = found.privatize(truth, rng)
    e = math.exp(EPSILON if form else EPSILON / 2)
    c = (e + 1) / (e - 1)
    sketch = np.zeros((k, m))
    for report in reports:
        if form:
            sketch[report["function"], report["index"]] += k * c * (1 - 2 * int(report["bit"]))
        else:
            vector = 2 * np.unpackbits(report["bits"]).astype(float) - 1
            sketch[report["function"]] += k * (c / 2 * vector + 0.5)
    if form:
        sketch = sketch @ hadamard(m).T
    naive = [
        m / (m - 1) * (np.mean([sketch[row, found.places[value, row]] for row in range(k)]) - USERS / m) / USERS
        for value in range(ANSWERS)
    ]
    assert found.estimate(reports).values == pytest.approx(naive)


def test_rappor_beside_least_squares_on_corrected_bits(rng: RandomSource) -> None:
    truth, _ = zipf(ANSWERS, USERS)
    found = Rappor(
        domain=categories(ANSWERS), epsilon=3.0, permanent_epsilon=6.0, size=16, hashes=2, cohorts=4, seed=2
    )  # fmt: skip
    reports = found.privatize(truth, rng)
    odds = math.exp(3.0 / 4)  # of a bit, two hashes
    wrong = 1 / (1 + odds)
    rows, counts = [], []
    for cohort in range(4):
        bits = np.unpackbits(reports["bits"][reports["cohort"] == cohort], axis=1)
        counts.append((bits.sum(axis=0) - wrong * len(bits)) / (1 - 2 * wrong) * 4 / USERS)
        rows.append(found.filters[cohort].T)
    naive, *_ = np.linalg.lstsq(np.concatenate(rows).astype(float), np.concatenate(counts), rcond=None)
    assert found.estimate(reports).values == pytest.approx(naive)


@pytest.mark.parametrize("method", ["duchi", "piecewise", "hybrid"])
def test_means_beside_the_mean_of_what_reports_stand_for(rng: RandomSource, method: str) -> None:
    values = np.linspace(2, 8, USERS)
    found = MeanProtocol(domain=Interval(low=0, high=10), epsilon=EPSILON, method=method)  # type: ignore[arg-type]
    reports = found.privatize(values, rng)
    e, root = math.exp(EPSILON), math.exp(EPSILON / 2)
    c, reach = (e + 1) / (e - 1), (root + 1) / (root - 1)
    total = 0.0
    for cell in reports["cell"].tolist():
        if cell >= found.cells:
            total += c if cell - found.cells else -c
        else:  # cells lie evenly over [−C, C]
            total += reach * (2 * (cell + 0.5) / found.cells - 1)
    assert found.estimate(reports).values[0] == pytest.approx(5 + 5 * total / USERS, abs=1e-3)


def test_a_filter_or_a_sketch_that_would_fill_the_memory_is_refused() -> None:
    from quietsum.errors import InvalidParameter
    from quietsum.mechanisms.local import Ball

    for make in (
        lambda: Rappor(domain=categories(1000), epsilon=1.0, size=1 << 16, cohorts=1024),
        lambda: CountMeanSketch(domain=categories(10), epsilon=1.0, functions=1 << 16, width=1 << 16),
        lambda: CountMeanSketch(domain=categories(1 << 20), epsilon=1.0, functions=1 << 10),
        lambda: Ball(dimension=10**12),
    ):
        with pytest.raises(InvalidParameter):
            make()
