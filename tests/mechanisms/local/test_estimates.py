"""Estimates on 100,000 people: unbiased, with the variance that the formula says and intervals that cover."""

from __future__ import annotations

import dataclasses
import functools
import math
import os
from collections.abc import Iterator
from unittest import mock

import numpy as np
import pytest
from numpy.typing import NDArray

from mechanisms.local.surveys import zipf
from quietsum.mechanisms.local import (
    Ball,
    FrequencyProtocol,
    HadamardResponse,
    Interval,
    MeanProtocol,
    PrivUnit,
    categories,
    choose,
    make_protocol,
    on_simplex,
)
from quietsum.mechanisms.rng import randomness_for_tests

USERS = 100_000
ANSWERS = 64
SHARES = {  # name: (ε, repetitions)
    "k-rr": (2.0, 120),
    "oue": (1.0, 100),
    "sue": (1.0, 100),
    "rappor": (2.0, 80),
    "olh": (1.0, 100),
    "hadamard": (3.0, 120),
    "cms": (2.0, 120),
    "hcms": (2.0, 150),
}
MEANS = ("duchi", "piecewise", "hybrid")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measured:
    """Squared errors by the formula's variance, how far means are off, and how often intervals held the truth."""

    ratio: float
    z: NDArray[np.float64]
    coverage: float


def measured(errors: NDArray[np.float64], variances: NDArray[np.float64], covered: NDArray[np.bool_]) -> Measured:
    """Repetitions × items, pooled."""
    means, spread = errors.mean(axis=0), errors.std(axis=0, ddof=1) / math.sqrt(len(errors))
    return Measured(
        ratio=float((errors**2).sum() / (len(errors) * variances.sum())), z=means / spread,
        coverage=float(covered.mean()),
    )  # fmt: skip


@functools.cache
def survey(name: str) -> Measured:
    """Many surveys of 100,000 people by one protocol; sketches take new hash functions each time."""
    epsilon, repetitions = SHARES[name]
    truth, shares = zipf(ANSWERS, USERS)
    errors, covered, variances = [], [], np.zeros(ANSWERS)
    for repetition in range(repetitions):
        seed = {"seed": repetition} if name in ("cms", "hcms") else {"seed": 1} if name == "rappor" else {}
        sizes = {"functions": 32, "width": 16} if name in ("cms", "hcms") else {}
        if name == "rappor":
            sizes = {"size": 32, "cohorts": 8}
        found = _protocol(name, epsilon, tuple({**seed, **sizes}.items()))
        estimate = found.estimate(found.privatize(truth, randomness_for_tests(1000 + repetition)))
        errors.append(estimate.values - shares)
        covered.append((estimate.low <= shares) & (shares <= estimate.high))
        variances = found.variances(USERS, shares)
    return measured(np.array(errors), variances, np.array(covered))


@functools.lru_cache(maxsize=4)
def _protocol(name: str, epsilon: float, parameters: tuple[tuple[str, int], ...]) -> FrequencyProtocol:
    found = make_protocol(name, ANSWERS, epsilon, **dict(parameters))
    assert isinstance(found, FrequencyProtocol)
    return found


@functools.cache
def means(method: str, epsilon: float) -> Measured:
    """The mean of numbers spread over the bounds, 1,500 times with 100,000 reports in all places of the scale."""
    found = MeanProtocol(domain=Interval(low=10, high=50), epsilon=epsilon, method=method)  # type: ignore[arg-type]
    values = 10 + 40 * np.linspace(0, 1, USERS) ** 2
    errors, covered = [], []
    for repetition in range(1500 // 5):
        reports = found.privatize(values, randomness_for_tests(repetition))
        for part in range(5):  # five surveys of every fifth person
            estimate, true = found.estimate(reports[part::5].copy()), values[part::5].mean()
            errors.append([estimate.values[0] - true])
            covered.append([estimate.low[0] <= true <= estimate.high[0]])
    variance = np.mean([found.variance(USERS // 5, value) for value in values[::100]])
    return measured(np.array(errors), np.array([variance]), np.array(covered))


@functools.cache
def vectors() -> Measured:
    """The mean of one vector by PrivUnit, from 100,000 reports, again and again."""
    found = PrivUnit(domain=Ball(dimension=8, radius=2.0), epsilon=3.0)
    vector = np.array([1.2, -0.5, 0.3, 0, 0, 0.1, 0, 0.4])
    errors, covered = [], []
    for repetition in range(12):
        reports = found.privatize(np.tile(vector, (USERS, 1)), randomness_for_tests(repetition))
        for part in range(50):
            estimate = found.estimate(reports[part::50].copy())
            errors.append(estimate.values - vector)
            covered.append((estimate.low <= vector) & (vector <= estimate.high))
    return measured(np.array(errors), found.variances(USERS // 50, vector), np.array(covered))


@pytest.fixture(autouse=True)
def seeds() -> Iterator[None]:
    with mock.patch.dict(os.environ, {"QUIETSUM_TEST_SEEDS": "1"}):
        yield


def every() -> list[object]:
    cases = [pytest.param(functools.partial(survey, name), id=name) for name in SHARES]
    cases += [pytest.param(functools.partial(means, name, 2.0), id=name) for name in MEANS]
    return [*cases, pytest.param(vectors, id="privunit")]


@pytest.mark.parametrize("case", every())
@pytest.mark.some(3)
def test_the_variance_is_within_five_percent_of_the_formula_and_ten_percent_more_is_rejected(case: object) -> None:
    ratio = case().ratio  # type: ignore[operator]
    assert 0.95 < ratio < 1.05
    assert not 0.95 < ratio / 1.1 < 1.05


@pytest.mark.parametrize("case", every())
@pytest.mark.some(3)
def test_estimates_are_unbiased(case: object) -> None:
    found = case()  # type: ignore[operator]
    assert np.abs(found.z).max() < 4


@pytest.mark.parametrize("case", every())
def test_intervals_cover_95_percent(case: object) -> None:
    most = 0.98 if "duchi" in repr(case) else 0.966  # Duchi's reports do not tell E[x²], so its interval is wider
    assert 0.94 < case().coverage < most  # type: ignore[operator]


def test_the_test_of_bias_sees_half_a_standard_error() -> None:
    """The negative control: the simplex moves estimates of rare answers up, and the same z is far above 4."""
    truth, shares = zipf(ANSWERS, 2000)
    found = _protocol("k-rr", 1.0, ())
    runs = [found.estimate(found.privatize(truth, randomness_for_tests(seed))) for seed in range(100)]
    unbiased = np.array([run.values - shares for run in runs])
    moved = np.array([run.on_simplex().values - shares for run in runs])
    variances = found.variances(2000, shares)
    none = np.zeros((1, 1), dtype=bool)
    assert np.abs(measured(unbiased, variances, none).z).max() < 4
    assert np.abs(measured(moved, variances, none).z).max() > 8


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 4.0])
def test_formulas_agree_with_the_published_ones_for_rare_answers(epsilon: float) -> None:
    """Wang et al. 2017, table 1."""
    e, half = math.exp(epsilon), math.exp(epsilon / 2)
    for size in (2, 10, 300):
        assert make_protocol("k-rr", size, epsilon).variance(1) == pytest.approx((size - 2 + e) / (e - 1) ** 2)  # type: ignore[attr-defined]
        assert make_protocol("sue", size, epsilon).variance(1) == pytest.approx(half / (half - 1) ** 2)  # type: ignore[attr-defined]
        assert make_protocol("oue", size, epsilon).variance(1) == pytest.approx(4 * e / (e - 1) ** 2)  # type: ignore[attr-defined]
        hashing = make_protocol("olh", size, epsilon).variance(1)  # type: ignore[attr-defined]
        assert hashing == pytest.approx(4 * e / (e - 1) ** 2, rel=0.02)  # g is a whole number
    hadamard = HadamardResponse(domain=categories(256), epsilon=epsilon)
    mass = 1 / hadamard.blocks
    formula = ((1 + e) * mass + 2 * (1 - mass)) * (e + 2 * hadamard.blocks - 1) / (e - 1) ** 2
    assert hadamard.variance(1, 1 / 256) == pytest.approx(formula - 1 / 256)


def test_duchi_and_piecewise_cross_at_129_and_the_hybrid_is_never_worse() -> None:
    domain = Interval(low=-1, high=1)

    def worst(method: str, epsilon: float) -> float:
        found = make_protocol(method, domain, epsilon)
        assert isinstance(found, MeanProtocol)
        return found.variance(1)

    assert worst("duchi", 1.28) < worst("piecewise", 1.28)
    assert worst("duchi", 1.30) > worst("piecewise", 1.30)
    for epsilon in (0.3, 0.61, 0.62, 1.0, 1.29, 2.0, 6.0):
        both = min(worst("duchi", epsilon), worst("piecewise", epsilon))
        assert worst("hybrid", epsilon) <= both * (1 + 1e-9)
    assert worst("hybrid", 0.6) == worst("duchi", 0.6)


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 2.0, 3.0])
def test_k_rr_is_chosen_up_to_three_e_to_the_epsilon_and_two(epsilon: float) -> None:
    edge = 3 * math.exp(epsilon) + 2
    assert choose(math.floor(edge), epsilon, 10_000).protocol.name == "k-rr"
    assert choose(math.ceil(edge) + 1, epsilon, 10_000).protocol.name in ("oue", "olh")


def test_the_choice_says_why_and_leaves_out_what_is_too_long_or_too_slow() -> None:
    long = choose(100_000, 1.0, 1000)
    assert long.protocol.name == "olh"
    assert "oue" in long.left_out and "bits" in long.reason
    slow = choose(100_000, 1.0, 10_000_000)
    assert slow.protocol.name == "hadamard"
    assert {"oue", "sue", "olh"} == set(slow.left_out)
    assert slow.standard_errors["hadamard"] == min(
        error for name, error in slow.standard_errors.items() if name not in slow.left_out
    )
    assert choose(Interval(low=0, high=1), 0.5, 100).protocol.name in ("duchi", "hybrid")
    assert choose(Interval(low=0, high=1), 3.0, 100).protocol.name == "hybrid"
    assert choose(Ball(dimension=10), 3.0, 100).protocol.name == "privunit"


def test_the_simplex_projection_is_the_nearest_point_of_all() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        values = rng.normal(0.2, 0.4, 5)
        found = on_simplex(values)
        assert found.min() >= 0
        assert found.sum() == pytest.approx(1)
        others = rng.dirichlet(np.ones(5), 2000)
        assert (np.square(others - values).sum(axis=1) >= np.square(found - values).sum() - 1e-12).all()


def test_tallies_of_pieces_add_up_to_the_tally_of_all() -> None:
    truth, _ = zipf(ANSWERS, 5000)
    for name in SHARES:
        found = make_protocol(name, ANSWERS, 1.0)
        reports = found.privatize(truth)
        pieces = found.tally(reports[:1700]) + found.tally(reports[1700:])
        whole = found.tally(reports)
        assert pieces.users == whole.users
        assert np.array_equal(pieces.sums, whole.sums)
