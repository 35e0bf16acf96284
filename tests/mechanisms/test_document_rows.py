"""What the source documents describe about mechanisms and kinds of privacy, row by row, as a reader would try it.

Document 1 is the Rényi accountant's (decoding, score release, retrieval ranking), document 4 the notes on variants.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from typer import Typer
from typer.testing import CliRunner

from quietsum import (
    ExactAccountant,
    ExponentialMechanism,
    GaussianMechanism,
    LaplaceMechanism,
    RenyiAccountant,
    Repeated,
    compat,
)
from quietsum.errors import InvalidParameter
from quietsum.mechanisms import GaussianPrior, ObservedNorms, bayesian_loss, shuffled_epsilon
from quietsum.mechanisms.local import CountMeanSketch, KRandomizedResponse, Rappor, categories
from quietsum.mechanisms.queries import PosteriorSample, PrivateNextToken, PrivateRanking, ScoreRelease
from quietsum.privacy import ApproximateDP, ClassicalAccountant, PureDP

PAGES = Path(__file__).parents[2] / "docs" / "explanation"

# ----------------------------------------------------------------------------------------- document 1


def test_pure_laplace_queries_compose_by_the_basic_and_the_advanced_rule() -> None:
    ranking = PrivateRanking(epsilon=0.1, moves="one", sensitivity=1)
    basic, advanced = (
        ClassicalAccountant(rule=rule).compose(ranking.event(), times=50).epsilon(delta=1e-5).epsilon
        for rule in ("basic", "advanced")
    )
    assert basic == pytest.approx(5.0, rel=1e-6)
    assert advanced == pytest.approx(math.sqrt(2 * 50 * math.log(1e5)) * 0.1 + 50 * 0.1 * math.expm1(0.1), rel=1e-3)


def test_a_private_next_token_is_charged_for_each_token() -> None:
    decoder = PrivateNextToken(epsilon=3.0, vocabulary=8)
    tokens = [decoder.release(np.eye(8)[5]) for _ in range(400)]
    assert set(tokens) <= set(range(8)) and max(set(tokens), key=tokens.count) == 5
    spent = ClassicalAccountant(rule="basic").compose(decoder.event(tokens=4)).epsilon(delta=1e-9).epsilon
    assert spent == pytest.approx(12.0, rel=1e-6)


def test_fifty_releases_of_a_score_cost_what_the_document_s_fifty_rounds_cost() -> None:
    release = ScoreRelease(bounds=(0, 1), noise_multiplier=4.0)
    spent = RenyiAccountant().compose(release.event(), times=50).epsilon(delta=1e-5)
    document = RenyiAccountant().compose_gaussian(noise_multiplier=4.0, steps=50).epsilon(delta=1e-5)
    assert spent.epsilon == pytest.approx(document.epsilon)
    assert 0 <= release.release(0.7) <= 1


def test_a_retrieval_ranking_by_laplace_noise_is_pure_and_orders_by_score() -> None:
    ranking = PrivateRanking(epsilon=2.0, moves="one", sensitivity=1)
    assert ranking.release([0.0, 1000.0, -1000.0]) == [1, 0, 2]
    assert ExactAccountant().compose(ranking.event()).epsilon(delta=1e-12).epsilon == pytest.approx(2.0, rel=1e-6)


# ----------------------------------------------------------------------------------------- document 4


def test_the_import_line_of_the_variants_document_works() -> None:
    for name in ("PrivacyAccountant", "get_privacy_spent", "GaussianMechanism", "LaplaceMechanism"):
        assert getattr(compat, name).__name__ == name


def test_the_laplace_mechanism_adds_noise_of_scale_sensitivity_over_epsilon() -> None:
    mechanism = LaplaceMechanism(epsilon=0.5, sensitivity=1)
    noise = np.array([mechanism.release(10.0) - 10.0 for _ in range(4000)])
    assert np.abs(noise).mean() == pytest.approx(2.0, rel=0.08)
    assert ExactAccountant().compose(mechanism.event()).epsilon(delta=1e-12).epsilon == pytest.approx(0.5, rel=1e-6)


def test_the_exponential_mechanism_chooses_names_by_their_scores() -> None:
    mechanism = ExponentialMechanism(epsilon=4.0, sensitivity=1)
    chosen = [mechanism.release({"a": 0.0, "b": 3.0}) for _ in range(500)]
    share = chosen.count("b") / 500
    assert share == pytest.approx(1 / (1 + math.exp(-6.0)), abs=0.02)  # exp(εu/2Δ)


def test_the_gaussian_mechanism_takes_epsilon_and_delta_and_keeps_them() -> None:
    mechanism = GaussianMechanism(epsilon=1.0, delta=1e-5, sensitivity=1.0)
    spent = ExactAccountant().compose(mechanism.event()).epsilon(delta=1e-5).epsilon
    assert 0.99 < spent <= 1.0 + 1e-9
    textbook = math.sqrt(2 * math.log(1.25e5))
    noise = np.array([mechanism.release(0.0) for _ in range(2000)])
    assert noise.std() < 0.85 * textbook  # the document's σ is a quarter too large


def test_randomised_response_tells_the_truth_with_p_and_costs_the_log_of_the_odds() -> None:
    epsilon = math.log(0.75 / 0.25)
    coin = KRandomizedResponse(domain=categories(["yes", "no"]), epsilon=epsilon)
    reports = coin.privatize(["yes"] * 20_000)["answer"]
    assert float((reports == 0).mean()) == pytest.approx(0.75, abs=0.015)
    assert coin.event().epsilon == pytest.approx(epsilon, rel=1e-9)
    assert coin.estimate(coin.privatize(["yes"] * 14_000 + ["no"] * 6_000)).values[0] == pytest.approx(0.7, abs=0.04)


@pytest.mark.parametrize(
    "made",
    [
        Rappor(domain=categories(6), epsilon=3.0, seed=1),
        CountMeanSketch(domain=categories(6), epsilon=3.0, seed=1),
        CountMeanSketch(domain=categories(6), epsilon=3.0, seed=1, hadamard=True),
    ],
    ids=lambda made: made.name,
)
def test_rappor_and_count_mean_sketch_find_the_common_answer(made: Rappor | CountMeanSketch) -> None:
    found = made.estimate(made.privatize([2] * 6_000 + [4] * 2_000))
    assert int(found.values.argmax()) == 2
    assert abs(found.values[2] - 0.75) < 5 * found.standard_errors[2]


def test_local_reports_have_a_central_epsilon_after_a_shuffler_and_a_command_for_it() -> None:
    answer = shuffled_epsilon(epsilon0=1.0, n=10_000, delta=1e-6)
    assert answer.epsilon < 0.05 and answer.messages == 20_000 and "the shuffler" in answer.trusted[0]
    shown = CliRunner().invoke(quietsum_app(), ["local", "--help"]).stdout
    for command in ("privatize", "estimate", "simulate", "shuffle"):
        assert command in shown


def quietsum_app() -> Typer:
    from quietsum.cli.app import app

    return app


@pytest.mark.parametrize(
    ("page", "words"),
    [
        (
            "central-local-shuffled.md",
            ("what is trusted", "messages for n people", "local", "shuffled", "error of a count"),
        ),
        ("from-local-to-central.md", ("Post-processing", "secure aggregation", "Shuffling", "shares")),
        (
            "kinds-of-privacy.md",
            ("pure", "approximate", "Rényi", "zero-concentrated", "f-DP", "Bayesian", "composition"),
        ),
        ("kinds-of-privacy.md", ("record", "person", "client", "local", "shuffled")),
    ],
)
def test_the_comparisons_of_the_document_have_a_page(page: str, words: tuple[str, ...]) -> None:
    text = (PAGES / page).read_text(encoding="utf-8")
    assert all(word in text for word in words)


def test_one_posterior_sample_has_a_price_and_a_chain_is_refused() -> None:
    sample = PosteriorSample(bounds=(-1.0, 0.0))
    assert sample.event() == PureDP(epsilon=1.0)
    with pytest.raises(InvalidParameter, match="gives no guarantee"):
        PosteriorSample(bounds=(-1.0, 0.0), sampler="mcmc")


def test_data_dependent_bounds_are_below_the_worst_case_and_say_what_they_are() -> None:
    norms = np.abs(np.random.default_rng(2).normal(scale=0.1, size=2_000)).clip(max=1.0)
    seen = bayesian_loss(noise_multiplier=1.0, steps=10, delta=1e-5, prior=ObservedNorms(norms))
    assert seen.epsilon < seen.epsilon_by_moments < seen.epsilon_at_clip
    assert str(seen).startswith("not a worst-case guarantee")


def test_epsilon_is_a_random_variable_with_a_credible_interval_under_a_prior() -> None:
    look = bayesian_loss(noise_multiplier=1.0, delta=1e-5, prior=GaussianPrior(scale=0.2, dimension=2), level=0.9)
    low, high = look.epsilon_interval
    assert 0 < low < high < look.epsilon_at_clip
    assert look.loss.quantile(0.1) < look.loss.mean < look.loss.quantile(0.95)


def test_pure_and_approximate_privacy_are_events_that_compose() -> None:
    assert ClassicalAccountant(rule="basic").compose(Repeated(times=5, event=PureDP(epsilon=0.3))).epsilon(
        delta=1e-5
    ).epsilon == pytest.approx(1.5)
    event = ApproximateDP(epsilon=0.3, delta=1e-7)
    assert ClassicalAccountant(rule="basic").compose(event, times=5).delta(epsilon=1.5) == pytest.approx(5e-7)
