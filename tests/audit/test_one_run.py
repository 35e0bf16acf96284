"""The one-run bound: below the truth for mechanisms of known ε, near it for the worst of them, and a naive oracle."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from quietsum.audit.one_run import bound_epsilon, gaussian_least, one_run_bound, private_least, refutes, score_canaries
from quietsum.learning import CanaryRecord

CANARIES = 500


def refutes_naively(epsilon: float, delta: float, *, guesses: int, correct: int, canaries: int, level: float) -> bool:
    """The sums of the docstring, each least value found by bisection on the curve itself."""

    def most_right(wrong: float) -> float:
        return min(1.0, delta + math.exp(epsilon) * wrong, 1 - math.exp(-epsilon) * (1 - delta - wrong))

    def least_wrong(right: float) -> float:
        low, high = 0.0, 1.0
        if most_right(0.0) >= right:
            return 0.0
        for _ in range(80):
            middle = (low + high) / 2
            low, high = (middle, high) if most_right(middle) < right else (low, middle)
        return high

    right, wrong = level * correct / canaries, level * (guesses - correct) / canaries
    for place in range(correct - 1, -1, -1):
        extra = max(wrong, least_wrong(min(1.0, right))) - wrong
        probability = extra / ((guesses - place) / canaries)  # p_i, of which (r − i)/m is wrong and i/m is right
        wrong, right = wrong + extra, right + probability * place / canaries
    return right + wrong > guesses / canaries


@pytest.mark.parametrize("delta", [0.0, 1e-5, 1e-3])
@pytest.mark.parametrize("guesses, correct", [(500, 400), (500, 300), (100, 90), (50, 50)])
def test_a_refuted_epsilon_is_the_one_of_a_naive_computation(guesses: int, correct: int, delta: float) -> None:
    terms = {"guesses": guesses, "correct": correct, "canaries": CANARIES}
    bound = one_run_bound(**terms, delta=delta)
    assert bound > 0
    assert refutes_naively(bound * 0.999, delta, **terms, level=0.05)
    assert not refutes_naively(bound * 1.001, delta, **terms, level=0.05)


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_randomised_response_of_known_epsilon_is_refuted_once_in_twenty_at_most(epsilon: float) -> None:
    """The worst mechanism for a guess: coins that say the truth with e^ε/(1 + e^ε)."""
    right = math.exp(epsilon) / (1 + math.exp(epsilon))
    above, bounds = 0.0, []
    for correct in range(CANARIES + 1):
        chance = float(stats.binom.pmf(correct, CANARIES, right))
        if chance < 1e-6:
            continue
        bounds.append(one_run_bound(guesses=CANARIES, correct=correct, canaries=CANARIES, delta=0.0))
        above += chance * (bounds[-1] > epsilon)
    assert above <= 0.05
    assert max(bounds) > epsilon  # the control: the bound can be reached


def test_a_correct_guess_more_raises_the_bound_and_a_larger_delta_lowers_it() -> None:
    bounds = [
        one_run_bound(guesses=200, correct=correct, canaries=CANARIES, delta=1e-5) for correct in range(100, 201, 10)
    ]
    assert bounds == sorted(bounds) and bounds[0] == 0 and bounds[-1] > 3
    at = [one_run_bound(guesses=200, correct=190, canaries=CANARIES, delta=delta) for delta in (0.0, 1e-4, 1e-2)]
    assert at == sorted(at, reverse=True) and at[-1] < at[0]


def test_curves_leave_what_their_definitions_say() -> None:
    assert private_least(0.0, 0.0)(0.3) == pytest.approx(0.3)
    assert private_least(math.log(3), 0.0)(0.6) == pytest.approx(0.2)
    assert private_least(1.0, 0.1)(0.05) == 0
    assert gaussian_least(1.0)(stats.norm.cdf(1.0)) == pytest.approx(0.5)


def simulate(seed: int, noise: float, steps: int, rate: float) -> CanaryRecord:
    rng = np.random.default_rng(seed)
    included = rng.random(CANARIES) < 0.5
    drawn = (rng.random((steps, CANARIES)) < rate) & included
    released = (drawn + noise * rng.standard_normal(drawn.shape)).astype(np.float32)
    return CanaryRecord(included=included, steps=np.arange(steps, dtype=np.int64), drawn=drawn, released=released)


def test_scores_are_the_log_of_the_likelihood_ratio() -> None:
    record = simulate(1, 0.8, 5, 0.3)
    scores = score_canaries(record, noise=np.full(5, 0.8), rate=0.3)
    law = stats.norm(scale=0.8)
    for canary in range(10):
        seen = record.released[:, canary].astype(float)
        expected = np.log((0.7 * law.pdf(seen) + 0.3 * law.pdf(seen - 1)) / law.pdf(seen)).sum()
        assert scores[canary] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("noise, steps, rate", [(1.0, 1, 1.0), (2.0, 20, 0.5)])
def test_the_bound_of_a_gaussian_run_lies_below_its_exact_epsilon(noise: float, steps: int, rate: float) -> None:
    from quietsum import ExactAccountant, Gaussian, PoissonSampled

    event = Gaussian(noise_multiplier=noise) if rate == 1 else PoissonSampled(
        rate=rate, event=Gaussian(noise_multiplier=noise)
    )  # fmt: skip
    truth = ExactAccountant().compose(event, times=steps).epsilon(delta=1e-5).epsilon
    sigma = np.full(steps, noise)
    bounds = [
        bound_epsilon(simulate(seed, noise, steps, rate), noise=sigma, rate=rate, delta=1e-5) for seed in range(20)
    ]
    assert max(bounds) < truth and np.mean(bounds) > 0.05 * truth


def test_the_control_a_run_with_a_third_of_its_noise_is_refuted() -> None:
    from quietsum import ExactAccountant, Gaussian

    claimed = ExactAccountant().compose(Gaussian(noise_multiplier=3.0)).epsilon(delta=1e-5).epsilon
    found = bound_epsilon(simulate(0, 0.5, 1, 1.0), noise=np.full(1, 0.5), rate=1.0, delta=1e-5)
    assert found > claimed
    assert not refutes(gaussian_least(2.0), guesses=500, correct=300, canaries=500, level=0.05)
