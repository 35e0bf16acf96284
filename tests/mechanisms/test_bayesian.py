"""Bayesian diagnostics: right by two oracles, labelled everywhere, and refused wherever privacy is charged."""

from __future__ import annotations

import json
import math
from collections.abc import Callable

import mpmath as mp
import numpy as np
import pytest
from scipy import stats

from ledger.build import memory_ledger, open_run, reserve
from quietsum.errors import CorruptState, InvalidParameter, QuietsumError
from quietsum.ledger.charges import Charge
from quietsum.mechanisms.bayesian import LABEL, BayesianDiagnostic, GaussianPrior, ObservedNorms, bayesian_loss
from quietsum.privacy import events as ev
from quietsum.privacy.classical import ClassicalAccountant
from quietsum.privacy.concentrated import ConcentratedAccountant
from quietsum.privacy.exact.accountant import ExactAccountant
from quietsum.privacy.guarantee import Budget, Guarantee
from quietsum.privacy.pld.accountant import PldAccountant
from quietsum.privacy.renyi.accountant import RenyiAccountant
from quietsum.privacy.renyi.filters import RenyiFilter, RenyiOdometer
from quietsum.privacy.units import PrivacyUnit


def diagnostic() -> BayesianDiagnostic:
    return bayesian_loss(noise_multiplier=1.0, steps=10, delta=1e-5, prior=GaussianPrior(scale=0.1, dimension=2))


@pytest.mark.parametrize(("scale", "dimension"), [(0.1, 1), (0.3, 2), (0.05, 7)])
def test_the_distribution_of_the_loss_is_the_integral_over_the_prior(scale: float, dimension: int) -> None:
    loss = bayesian_loss(
        noise_multiplier=1.5, steps=4, delta=1e-5, prior=GaussianPrior(scale=scale, dimension=dimension)
    ).loss
    growth = 4 * scale**2 / 1.5**2

    def chance(epsilon: float) -> mp.mpf:
        def density(t: mp.mpf) -> mp.mpf:  # of χ, times the chance that N(R²/2, R²) exceeds ε
            law = (
                t ** (dimension - 1) * mp.exp(-t * t / 2) / (mp.mpf(2) ** (dimension / 2 - 1) * mp.gamma(dimension / 2))
            )
            spread = mp.sqrt(growth) * t
            return law * mp.erfc((epsilon - spread**2 / 2) / spread / mp.sqrt(2)) / 2

        return mp.quad(density, [mp.mpf("1e-12"), 0.1, 1, 3, 6, 10, 20])

    for epsilon in (-0.2, 0.3, 1.5):
        assert loss.exceeds(epsilon) == pytest.approx(float(chance(epsilon)), rel=1e-6)
        assert loss.log_exceeds(epsilon) == pytest.approx(math.log(chance(epsilon)), abs=1e-6)


def test_moments_under_a_gaussian_prior_are_the_closed_form() -> None:
    prior, sigma, steps, delta = GaussianPrior(scale=0.2, dimension=3), 2.0, 5, 1e-6
    variance = steps * prior.scale**2 / sigma**2
    orders = np.linspace(0.01, 10, 20_000)
    orders = orders[orders * (orders + 1) * variance < 1]
    bounds = (-1.5 * np.log1p(-orders * (orders + 1) * variance) - math.log(delta)) / orders
    ours = bayesian_loss(noise_multiplier=sigma, steps=steps, delta=delta, prior=prior).epsilon_by_moments
    assert bounds.min() <= ours <= bounds.min() * 1.01


def test_monte_carlo_over_coins_and_units_finds_the_stated_share_above_epsilon() -> None:
    rng = np.random.default_rng(5)
    answer = bayesian_loss(noise_multiplier=1.0, delta=0.01, prior=GaussianPrior(scale=0.5, dimension=3))
    contributions = rng.normal(scale=0.5, size=(400_000, 3))
    coins = rng.normal(size=contributions.shape)
    # The loss of release w = x + g against w without x, from the two densities themselves.
    losses = 0.5 * ((contributions + coins) ** 2).sum(axis=1) - 0.5 * (coins**2).sum(axis=1)
    share = float(np.mean(losses >= answer.epsilon))
    deviation = math.sqrt(0.01 * 0.99 / 400_000)
    assert abs(share - 0.01) < 4 * deviation
    assert np.mean(losses >= 0.95 * answer.epsilon) > 0.01 + 4 * deviation  # negative control
    assert answer.loss.mean == pytest.approx(losses.mean(), abs=4 * losses.std() / math.sqrt(400_000))
    assert answer.loss.quantile(0.5) == pytest.approx(float(np.median(losses)), abs=0.005)


def test_a_sample_from_a_prior_comes_near_the_prior() -> None:
    rng = np.random.default_rng(8)
    norms = np.abs(rng.normal(scale=0.1, size=20_000))
    known = bayesian_loss(noise_multiplier=1.0, steps=10, delta=1e-3, prior=GaussianPrior(scale=0.1, dimension=1))
    seen = bayesian_loss(noise_multiplier=1.0, steps=10, delta=1e-3, prior=ObservedNorms(norms))
    assert seen.epsilon == pytest.approx(known.epsilon, rel=0.05)
    assert seen.epsilon_interval == pytest.approx(known.epsilon_interval, rel=0.1)
    assert seen.mean_loss_interval is not None
    assert seen.mean_loss_interval[0] < known.loss.mean < seen.mean_loss_interval[1]


@pytest.mark.long
def test_the_credible_interval_of_the_mean_loss_covers_at_its_level() -> None:
    rng, hits = np.random.default_rng(11), 0
    truth = 0.5 * (1 / 3)  # r uniform on [0, 1], σ = T = 1
    for _ in range(300):
        prior = ObservedNorms(rng.uniform(size=60))
        low, high = bayesian_loss(noise_multiplier=1.0, delta=1e-3, prior=prior, level=0.9).mean_loss_interval or (0, 0)
        hits += low <= truth <= high
    assert stats.binomtest(hits, 300, 0.9).pvalue > 1e-3


def test_units_that_all_have_the_full_norm_have_the_worst_case() -> None:
    answer = bayesian_loss(noise_multiplier=2.0, steps=3, delta=1e-5, prior=ObservedNorms([1.0] * 50))
    assert answer.epsilon_interval == pytest.approx((answer.epsilon_at_clip, answer.epsilon_at_clip))
    exact = ExactAccountant().compose(ev.Gaussian(noise_multiplier=2.0), times=3).epsilon(delta=1e-5)
    assert answer.epsilon_at_clip == pytest.approx(exact.epsilon, rel=1e-6)
    assert answer.epsilon <= answer.epsilon_by_moments
    assert answer.epsilon >= answer.epsilon_at_clip  # the tail of the loss is above the hockey stick


def test_more_credibility_and_more_steps_never_lower_the_estimate() -> None:
    norms = np.linspace(0, 1, 40) ** 3
    by_level = [
        bayesian_loss(noise_multiplier=1.0, delta=1e-5, prior=ObservedNorms(norms), level=level).epsilon_by_moments
        for level in (0.6, 0.9, 0.99)
    ]
    by_steps = [
        bayesian_loss(noise_multiplier=1.0, delta=1e-5, prior=ObservedNorms(norms), steps=steps).epsilon
        for steps in (1, 4, 30)
    ]
    assert by_level == sorted(by_level) and by_steps == sorted(by_steps)


def test_units_that_contribute_nothing_lose_nothing() -> None:
    answer = bayesian_loss(noise_multiplier=1.0, delta=1e-5, prior=ObservedNorms([0.0, 0.0, 0.0]))
    assert answer.epsilon == pytest.approx(0.0, abs=1e-12) and answer.epsilon_interval == (0.0, 0.0)


# ------------------------------------------------------------------------------------- label and refusals


def test_every_rendering_says_that_it_is_no_worst_case_guarantee() -> None:
    answer = diagnostic()
    for text in (str(answer), repr(answer), f"{answer}", answer._repr_html_(), json.dumps(answer.to_dict())):
        assert LABEL in text
    assert next(iter(answer.to_dict())) == "label"
    seen = bayesian_loss(noise_multiplier=1.0, delta=1e-5, prior=ObservedNorms([0.1, 0.9]))
    assert "no guarantee covers" in str(seen) and "no guarantee covers" not in str(answer)


def test_a_diagnostic_is_neither_event_nor_guarantee() -> None:
    answer = diagnostic()
    assert not isinstance(answer, ev.PrivacyEvent | Guarantee)
    with pytest.raises(InvalidParameter, match=LABEL):
        Budget(epsilon=100.0, delta=1e-5).allows(answer)  # type: ignore[arg-type]
    with pytest.raises(CorruptState):
        Guarantee.from_dict(answer.to_dict())
    with pytest.raises(CorruptState):
        ev.from_dict(answer.to_dict())


def _charge(event: object) -> object:
    return Charge(party="a", dataset="d", unit=PrivacyUnit.RECORD, event=event)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "takes",
    [
        lambda event: RenyiAccountant().compose(event),
        lambda event: ExactAccountant().compose(event),
        lambda event: PldAccountant().compose(event),
        lambda event: ConcentratedAccountant().compose(event),
        lambda event: RenyiFilter(budget=Budget(epsilon=50.0, delta=1e-5)).spend(event),
        lambda event: RenyiOdometer(delta=1e-5).compose(event),
        lambda event: ev.Repeated(times=2, event=event),
        lambda event: ev.Composed(events=(event,)),
        lambda event: ev.PoissonSampled(rate=0.1, event=event),
        lambda event: ev.Group(size=2, event=event),
        _charge,
    ],
)
def test_whatever_charges_or_composes_refuses_a_diagnostic_by_name(takes: Callable[[object], object]) -> None:
    with pytest.raises(InvalidParameter, match="BayesianDiagnostic, which is no privacy event"):
        takes(diagnostic())
    takes(ev.Gaussian(noise_multiplier=1.0))  # negative control: the mechanism's own event is taken


def test_a_ledger_writes_nothing_for_a_diagnostic_in_place_of_a_charge() -> None:
    ledger = memory_ledger()
    open_run(ledger)
    before = len(list(ledger.entries()))
    with pytest.raises(InvalidParameter, match="BayesianDiagnostic, which is no privacy event"):
        ledger.reserve("first", 1, 1, [diagnostic()])  # type: ignore[list-item]
    assert len(list(ledger.entries())) == before
    reserve(ledger, round=1)  # negative control: a charge is written
    assert len(list(ledger.entries())) > before


def test_the_classical_accountant_refuses_it_by_name_as_well() -> None:
    with pytest.raises(InvalidParameter, match="BayesianDiagnostic, which is no privacy event"):
        ClassicalAccountant().compose(diagnostic())  # type: ignore[arg-type]
    ClassicalAccountant().compose(ev.PureDP(epsilon=1.0))


@pytest.mark.parametrize(
    "make",
    [
        lambda: GaussianPrior(scale=0.0, dimension=1),
        lambda: GaussianPrior(scale=1.0, dimension=0),
        lambda: ObservedNorms([0.5]),
        lambda: ObservedNorms([0.5, math.nan]),
        lambda: ObservedNorms([0.5, 1.5]),
        lambda: ObservedNorms([0.5, -0.1]),
        lambda: bayesian_loss(noise_multiplier=0.0, delta=1e-5, prior=ObservedNorms([0.1, 0.2])),
        lambda: bayesian_loss(noise_multiplier=1.0, delta=0.0, prior=ObservedNorms([0.1, 0.2])),
        lambda: bayesian_loss(noise_multiplier=1.0, delta=1e-5, prior=ObservedNorms([0.1, 0.2]), level=1.0),
        lambda: bayesian_loss(noise_multiplier=1.0, delta=1e-5, prior=ObservedNorms([0.1, 0.2]), steps=0),
        lambda: bayesian_loss(noise_multiplier=1.0, delta=1e-5, prior="flat"),  # type: ignore[arg-type]
    ],
)
def test_what_states_no_prior_or_no_mechanism_is_refused(make: Callable[[], object]) -> None:
    with pytest.raises(QuietsumError):
        make()
