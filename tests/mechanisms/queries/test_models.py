from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest

from mechanisms.laws import FITS, MISSES
from quietsum import ExactAccountant, Neighbours, Repeated
from quietsum.errors import InvalidParameter, QuietsumError
from quietsum.mechanisms.queries import PosteriorSample, PrivateNextToken
from quietsum.mechanisms.rng import RandomSource, randomness_for_tests
from quietsum.privacy import ClassicalAccountant, PureDP, RandomizedResponse

N = 20_000


@pytest.fixture
def rng(monkeypatch: pytest.MonkeyPatch) -> RandomSource:
    monkeypatch.setenv("QUIETSUM_TEST_SEEDS", "1")
    return randomness_for_tests(12)


# ------------------------------------------------------------------------------------------------------------ tokens


def mixture(query: PrivateNextToken, model: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return query.weight * model + (1 - query.weight) / query.vocabulary


def test_tokens_have_the_mixture_as_their_law(rng: RandomSource) -> None:
    from scipy import stats

    query, model = PrivateNextToken(epsilon=4.0, vocabulary=50), np.eye(1, 50)[0] * 0.7 + np.eye(1, 50, 7)[0] * 0.3
    counts = np.bincount([query.release(model, rng) for _ in range(N)], minlength=50)
    assert stats.chisquare(counts, mixture(query, model) * N).pvalue > FITS
    for factor in (0.95, 1.05):
        other = mixture(PrivateNextToken(epsilon=4.0 * factor, vocabulary=50), model)
        assert stats.chisquare(counts, other * N).pvalue < MISSES


def test_the_worst_two_models_differ_by_what_the_event_says_exactly() -> None:
    for epsilon, size in ((0.1, 2), (1.0, 50), (5.0, 1000), (12.0, 50_000)):
        query = PrivateNextToken(epsilon=epsilon, vocabulary=size)
        p, q = (mixture(query, np.eye(1, size, at)[0]) for at in (0, 1))
        assert np.log(p / q).max() == pytest.approx(epsilon, rel=1e-9)
        event = query.event()
        assert isinstance(event, RandomizedResponse) and event.epsilon == pytest.approx(epsilon, rel=1e-9)
        for share in (0.0, 0.5, 0.9):
            exact = float(np.maximum(p - math.exp(share * epsilon) * q, 0).sum())
            claimed = ExactAccountant().compose(event).delta(epsilon=share * epsilon)
            assert 0.5 * claimed <= exact <= claimed + 1e-11


def test_no_other_two_models_differ_by_more() -> None:
    query, generator = PrivateNextToken(epsilon=1.5, vocabulary=8), np.random.default_rng(2)
    worst = 0.0
    for _ in range(300):
        p, q = (mixture(query, model) for model in generator.dirichlet(np.full(8, 0.05), size=2))
        worst = max(worst, float(np.abs(np.log(p / q)).max()))
    assert 0.75 < worst <= 1.5 + 1e-12


def test_an_answer_costs_every_token() -> None:
    query = PrivateNextToken(epsilon=0.25, vocabulary=100)
    assert isinstance(query.event(tokens=20), Repeated)
    price = ClassicalAccountant(rule="basic").compose(query.event(tokens=20)).epsilon(delta=1e-12).epsilon
    assert price == pytest.approx(5.0)
    assert PrivateNextToken(epsilon=1.0, vocabulary=50_000).weight == pytest.approx((math.e - 1) / (49_999 + math.e))


def test_the_assumption_is_said() -> None:
    text = " ".join((PrivateNextToken.__doc__ or "").split())
    assert "readers see sampled tokens and nothing else of the model" in text
    assert "The prompt and the vocabulary are public" in text


@pytest.mark.parametrize(
    "bad", [[1.0], [0.0] * 4, [math.nan, 1, 1, 1], [-1, 1, 1, 1], [math.inf, 1, 1, 1], "abcd", None]
)
def test_what_is_no_distribution_is_refused(bad: Any) -> None:
    with pytest.raises(InvalidParameter, match="probabilities"):
        PrivateNextToken(epsilon=1, vocabulary=4).release(bad)


@pytest.mark.parametrize(("epsilon", "vocabulary"), [(0, 4), (-1, 4), (math.nan, 4), (31, 4), (1, 1), (1, 2.5)])
def test_a_decoder_that_makes_no_sense_is_refused(epsilon: Any, vocabulary: Any) -> None:
    with pytest.raises(InvalidParameter):
        PrivateNextToken(epsilon=epsilon, vocabulary=vocabulary)


# ------------------------------------------------------------------------------------------------------- posteriors


def posterior(table: np.ndarray[Any, Any], low: float, high: float, power: float, prior: Any = 0.0) -> Any:
    scores = power * np.clip(table, low, high).sum(axis=0) + prior
    weights = np.exp(scores - scores.max())
    return weights / weights.sum()


def test_samples_have_the_posterior_as_their_law(rng: RandomSource) -> None:
    from scipy import stats

    table = np.random.default_rng(3).normal(size=(30, 5)) * 0.4 - 1
    table[0, 0], table[1, 1] = -math.inf, 50.0
    prior = np.log([0.1, 0.2, 0.3, 0.2, 0.2])
    query = PosteriorSample(bounds=(-2, 0))
    counts = np.bincount([query.release(table, rng, log_prior=prior) for _ in range(N)], minlength=5)
    assert stats.chisquare(counts, posterior(table, -2, 0, 1.0, prior) * N).pvalue > FITS
    assert stats.chisquare(counts, posterior(table, -2, 0, 1.2, prior) * N).pvalue < 1e-6
    tempered = PosteriorSample(bounds=(-2, 0), epsilon=0.5)
    assert tempered.temperature == 0.25
    counts = np.bincount([tempered.release(table, rng) for _ in range(N)], minlength=5)
    assert stats.chisquare(counts, posterior(table, -2, 0, 0.25) * N).pvalue > FITS


def test_no_row_changes_the_chance_of_a_sample_by_more_than_the_event_says() -> None:
    low, high, power = -1.0, 0.5, 0.4
    query = PosteriorSample(bounds=(low, high), epsilon=power * 1.5)
    base = np.random.default_rng(5).uniform(low, high, size=(4, 4))
    rows = [np.array(row) for row in itertools.product((low, high), repeat=4)]
    added = [np.log(posterior(np.vstack([base, row]), low, high, power)) for row in rows]
    alone = np.log(posterior(base, low, high, power))
    coming = max(float(np.abs(each - alone).max()) for each in added)
    replaced = max(float(np.abs(a - b).max()) for a, b in itertools.combinations(added, 2))
    assert query.event() == PureDP(epsilon=power * 1.5)
    assert 0.5 * 0.6 < coming <= 0.6 + 1e-12
    assert 0.6 < replaced <= 1.2 + 1e-12
    twice = PosteriorSample(bounds=(low, high), epsilon=0.6, neighbours=Neighbours.REPLACE_ONE)
    assert twice.event() == PureDP(epsilon=0.6) and twice.temperature == pytest.approx(0.2)
    assert PosteriorSample(bounds=(low, high), neighbours=Neighbours.REPLACE_ONE).event() == PureDP(epsilon=3.0)


def test_a_markov_chain_is_refused_with_the_reason() -> None:
    with pytest.raises(InvalidParameter, match=r"distance from the posterior.*part of δ.*candidates"):
        PosteriorSample(bounds=(-1, 0), sampler="mcmc")


@pytest.mark.parametrize("bad", [[[math.nan, 1.0]], [1.0, 2.0], [[]], "a", [["a"]]])
def test_what_is_no_table_of_likelihoods_is_refused(bad: Any) -> None:
    with pytest.raises(QuietsumError, match="log_likelihoods"):
        PosteriorSample(bounds=(-1, 0)).release(bad)


def test_a_prior_of_another_length_is_refused_and_no_rows_leave_the_prior() -> None:
    query = PosteriorSample(bounds=(-1, 0))
    with pytest.raises(InvalidParameter, match="log_prior"):
        query.release(np.zeros((2, 3)), log_prior=[0.0])
    assert query.release(np.zeros((0, 3)), log_prior=[0.0, 900.0, 0.0]) == 1
    assert query.failure(1000) < 1e-50
