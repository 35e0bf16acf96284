"""Calibration: known settings, never too much spent, hardly anything left over, and few evaluations."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import dp_accounting
import pytest
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from hypothesis import HealthCheck, given, settings, strategies as st

import quietsum.privacy.calibration as calibration
from quietsum import (
    Composed,
    ExactAccountant,
    FixedSizeSampled,
    Gaussian,
    Guarantee,
    InvalidParameter,
    Laplace,
    Neighbours,
    PoissonSampled,
    QuietsumError,
    RenyiAccountant,
    Repeated,
    calibrate_noise,
    calibrate_rate,
    calibrate_rounds,
    calibrate_steps,
)
from quietsum.privacy import PureDP, compute_noise_multiplier
from quietsum.privacy.accounting import CopyableAccountant, accountant_for
from quietsum.privacy.calibration import calibrate, most_steps, smallest_parameter


def spent(noise: float, rate: float, steps: int, delta: float = 1e-5, accounting: str = "exact") -> float:
    event = PoissonSampled(rate=rate, event=Gaussian(noise_multiplier=noise))
    return accountant_for(accounting).compose(event, steps).epsilon(delta=delta).epsilon


@pytest.fixture
def evaluations(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Every accountant that calibration asks for."""
    made: list[str] = []

    def counted(accounting: str, **options: Any) -> CopyableAccountant:
        made.append(accounting)
        return accountant_for(accounting, **options)

    monkeypatch.setattr(calibration, "accountant_for", counted)
    yield made


# ------------------------------------------------------------------------------------------ known settings


@pytest.mark.parametrize(
    ("epsilon", "delta", "rate", "steps", "exact", "renyi"),
    [
        (8.0, 1e-5, 0.1, 1000, 2.0507, 2.1721),
        (1.0, 1e-5, 0.0032, 31_200, 2.2299, 2.4018),
        (10.0, 1e-4, 0.0032, 31_200, 0.6070, 0.6268),
        (3.0, 1e-5, 0.01, 10_000, 1.5650, 1.6619),
        (1.0, 1e-5, 1.0, 1, 3.7306, None),
    ],
)
def test_known_noise_is_found_again(
    epsilon: float, delta: float, rate: float, steps: int, exact: float, renyi: float | None
) -> None:
    goal: dict[str, Any] = {"target_epsilon": epsilon, "target_delta": delta, "sample_rate": rate, "steps": steps}
    found = calibrate_noise(**goal)
    assert found == pytest.approx(exact, abs=6e-5)
    assert spent(found, rate, steps, delta) <= epsilon < spent(found * (1 - 1e-5), rate, steps, delta)
    if renyi is not None:
        assert calibrate_noise(**goal, accounting="rdp") == pytest.approx(renyi, abs=6e-5)


def test_dp_accounting_and_opacus_need_a_little_more_noise_by_renyi_and_the_same_by_loss_distributions() -> None:
    def run(noise: float) -> dp_accounting.DpEvent:
        step = dp_accounting.PoissonSampledDpEvent(0.01, dp_accounting.GaussianDpEvent(noise))
        return dp_accounting.SelfComposedDpEvent(step, 10_000)

    bracket = dp_accounting.ExplicitBracketInterval(0.5, 5.0)
    goal: dict[str, Any] = {"target_epsilon": 3.0, "target_delta": 1e-5, "sample_rate": 0.01, "steps": 10_000}
    by_loss, by_renyi = (
        dp_accounting.calibrate_dp_mechanism(kind, run, 3.0, 1e-5, bracket, tol=1e-3)
        for kind in (PLDAccountant, RdpAccountant)
    )
    utils = pytest.importorskip("opacus.accountants.utils")
    opacus = utils.get_noise_multiplier(
        target_epsilon=3.0, target_delta=1e-5, sample_rate=0.01, steps=10_000, accountant="rdp", epsilon_tolerance=1e-3
    )
    assert calibrate_noise(**goal) == pytest.approx(by_loss, rel=3e-3)
    assert calibrate_noise(**goal, accounting="rdp") == pytest.approx(by_renyi, rel=2e-3)
    assert calibrate_noise(**goal, accounting="rdp") == pytest.approx(opacus, rel=4e-3)


def test_compute_noise_multiplier_multiplies_rounds_and_steps() -> None:
    goal: dict[str, Any] = {"target_epsilon": 8.0, "target_delta": 1e-5, "sample_rate": 0.1}
    found = compute_noise_multiplier(**goal, steps_per_round=100, num_rounds=10)
    assert (
        found
        == calibrate_noise(**goal, steps=1000)
        == compute_noise_multiplier(**goal, steps_per_round=1000, num_rounds=1)
    )
    assert compute_noise_multiplier(**goal, steps_per_round=100, num_rounds=10, accounting="rdp") > found


def test_other_samplers_and_relations_are_calibrated_as_what_they_are() -> None:
    goal: dict[str, Any] = {"target_epsilon": 2.0, "target_delta": 1e-5, "sample_rate": 0.05, "steps": 500}
    poisson, fixed, full = (calibrate_noise(**goal, sampling=kind) for kind in ("poisson", "fixed", "none"))
    assert 2 * poisson < fixed < 2.3 * poisson  # replace-one at half the noise, and its envelope
    fixed_event = FixedSizeSampled(rate=0.05, event=Gaussian(noise_multiplier=fixed))
    replaced = ExactAccountant(neighbours=Neighbours.REPLACE_ONE).compose(fixed_event, 500)
    assert 2.0 * (1 - 1e-5) <= replaced.epsilon(delta=1e-5).epsilon <= 2.0
    assert full == pytest.approx(math.sqrt(500) * calibrate_noise(**{**goal, "sample_rate": 1.0, "steps": 1}), rel=1e-6)
    opposite = calibrate_noise(**goal, neighbours=Neighbours.REPLACE_ONE)
    assert poisson < opposite < fixed


def test_any_run_with_one_noise_parameter_can_be_calibrated() -> None:
    def schedule(x: float) -> Composed:
        early = Repeated(times=100, event=PoissonSampled(rate=0.05, event=Gaussian(noise_multiplier=2 * x)))
        late = Repeated(times=100, event=PoissonSampled(rate=0.05, event=Gaussian(noise_multiplier=x)))
        return Composed(events=(early, late))

    found = calibrate(schedule, target_epsilon=2.0, target_delta=1e-5, guess=30.0)
    assert 2.0 * (1 - 1e-6) <= ExactAccountant().compose(schedule(found)).epsilon(delta=1e-5).epsilon <= 2.0

    def laplace(x: float) -> Repeated:
        return Repeated(times=10, event=Laplace(noise_multiplier=x))

    found = calibrate(laplace, target_epsilon=1.0, target_delta=1e-6, guess=1.0, accounting="rdp")
    assert RenyiAccountant().compose(laplace(found)).epsilon(delta=1e-6).epsilon <= 1.0
    assert RenyiAccountant().compose(laplace(found * 0.999)).epsilon(delta=1e-6).epsilon > 1.0


# ------------------------------------------------------------------------------- never too much, hardly less


@settings(max_examples=40)
@given(
    log_epsilon=st.floats(-1.0, 1.3),
    log_delta=st.floats(-9.0, -4.0),
    log_rate=st.floats(-3.0, 0.0),
    log_steps=st.floats(0.0, 4.5),
    accounting=st.sampled_from(["exact", "exact", "rdp"]),
)
def test_calibrated_noise_never_overspends_and_a_hair_less_would(
    log_epsilon: float, log_delta: float, log_rate: float, log_steps: float, accounting: str
) -> None:
    target, delta, rate, steps = 10**log_epsilon, 10**log_delta, 10**log_rate, int(10**log_steps)
    found = calibrate_noise(
        target_epsilon=target, target_delta=delta, sample_rate=rate, steps=steps, accounting=accounting
    )
    assert spent(found, rate, steps, delta, accounting) <= target
    if found > 1e-3:  # else δ covers the run without any noise
        # 1e-5 less overspends; where only wide bounds are known, a part of their width less.
        event = PoissonSampled(rate=rate, event=Gaussian(noise_multiplier=found))
        guarantee = accountant_for(accounting).compose(event, steps).epsilon(delta=delta)
        slack = 1e-5 + (guarantee.gap / guarantee.epsilon if guarantee.epsilon_lower > 0 else 0.0)
        assert spent(found * (1 - slack), rate, steps, delta, accounting) > target * (1 - 1e-9)


@settings(max_examples=20)
@given(epsilon=st.floats(0.5, 10.0), noise=st.floats(0.8, 4.0), rate=st.floats(0.003, 0.3))
def test_calibrated_steps_fit_and_one_more_does_not(epsilon: float, noise: float, rate: float) -> None:
    found = calibrate_steps(target_epsilon=epsilon, target_delta=1e-5, noise_multiplier=noise, sample_rate=rate)
    if found:
        assert spent(noise, rate, found) <= epsilon
    assert spent(noise, rate, found + 1) > epsilon


@settings(max_examples=15)
@given(epsilon=st.floats(0.5, 10.0), noise=st.floats(0.8, 4.0), steps=st.integers(100, 20_000))
def test_a_calibrated_rate_fits_and_a_hair_more_does_not(epsilon: float, noise: float, steps: int) -> None:
    found = calibrate_rate(target_epsilon=epsilon, target_delta=1e-5, noise_multiplier=noise, steps=steps)
    assert spent(noise, found, steps) <= epsilon
    assert found == 1.0 or spent(noise, min(1.0, found * (1 + 1e-4)), steps) > epsilon


def test_rounds_are_whole() -> None:
    goal: dict[str, Any] = {"target_epsilon": 3.0, "target_delta": 1e-5, "noise_multiplier": 1.0, "sample_rate": 0.01}
    steps = calibrate_steps(**goal)
    assert steps == 2666
    assert calibrate_rounds(**goal, steps_per_round=100) == 26
    assert spent(1.0, 0.01, 2600) <= 3.0 < spent(1.0, 0.01, 2700)
    assert calibrate_rounds(**goal, steps_per_round=2666) == 1
    assert calibrate_rounds(**goal, steps_per_round=2667) == 0


def test_the_ends_of_the_ranges_are_answers_too() -> None:
    assert calibrate_rate(target_epsilon=50.0, target_delta=1e-5, noise_multiplier=5.0, steps=10) == 1.0
    assert calibrate_steps(target_epsilon=0.1, target_delta=1e-5, noise_multiplier=0.5, sample_rate=0.5) == 0
    assert calibrate_steps(target_epsilon=1.68, target_delta=1e-5, noise_multiplier=1.0, sample_rate=0.1) == 0
    assert calibrate_steps(target_epsilon=1.69, target_delta=1e-5, noise_multiplier=1.0, sample_rate=0.1) == 1
    # a unit that is drawn less often than δ needs no noise at all
    assert calibrate_noise(target_epsilon=1.0, target_delta=1e-3, sample_rate=1e-5, steps=10) == pytest.approx(1e-4)
    goal: dict[str, Any] = {"target_epsilon": 2.0, "target_delta": 1e-5, "noise_multiplier": 3.0}
    full = calibrate_steps(**goal, sample_rate=1.0, sampling="none")
    assert full == calibrate_steps(**goal, sample_rate=1.0)
    assert calibrate_steps(**goal, sample_rate=0.1, sampling="fixed") < calibrate_steps(**goal, sample_rate=0.1)


# ---------------------------------------------------------------------------------------------- evaluations


@pytest.mark.parametrize(
    ("epsilon", "delta", "rate", "steps"),
    [(8.0, 1e-5, 0.1, 1000), (1.0, 1e-5, 0.0032, 31_200), (0.1, 1e-6, 0.0032, 31_200), (10.0, 1e-4, 0.0032, 31_200),
     (3.0, 1e-5, 0.01, 10_000), (1.0, 1e-5, 1.0, 50), (0.5, 1e-7, 0.001, 500), (20.0, 1e-9, 0.3, 20)],
)  # fmt: skip
@pytest.mark.parametrize(("accounting", "most"), [("exact", 12), ("rdp", 20)])  # Rényi bounds have kinks between orders
def test_noise_takes_a_dozen_evaluations_at_most(
    evaluations: list[str], epsilon: float, delta: float, rate: float, steps: int, accounting: str, most: int
) -> None:
    calibrate_noise(target_epsilon=epsilon, target_delta=delta, sample_rate=rate, steps=steps, accounting=accounting)
    assert 2 <= len(evaluations) <= most and set(evaluations) == {accounting}


def test_steps_and_rates_take_a_dozen_evaluations_at_most(evaluations: list[str]) -> None:
    for epsilon in (0.5, 3.0, 10.0):
        for noise in (0.7, 1.0, 4.0):
            del evaluations[:]
            calibrate_steps(target_epsilon=epsilon, target_delta=1e-5, noise_multiplier=noise, sample_rate=0.01)
            assert len(evaluations) <= 12
            del evaluations[:]
            calibrate_rate(target_epsilon=epsilon, target_delta=1e-5, noise_multiplier=noise, steps=5000)
            assert len(evaluations) <= 12


# ------------------------------------------------------------------------------------------------- searches


def spending(epsilon: Callable[[float], float], lower: float = 0.0) -> Callable[[float], Guarantee]:
    def spend(parameter: float) -> Guarantee:
        value = epsilon(parameter)
        return Guarantee(epsilon=value, epsilon_lower=value * lower if lower else 0.0, delta=1e-5, method="made up")

    return spend


@settings(suppress_health_check=[HealthCheck.differing_executors], max_examples=60)
@given(root=st.floats(1e-3, 1e6), slope=st.floats(0.2, 6.0), guess=st.floats(1e-3, 1e6), bend=st.floats(0.0, 1.0))
def test_the_search_finds_the_edge_from_any_guess(root: float, slope: float, guess: float, bend: float) -> None:
    def epsilon(x: float) -> float:
        distance = math.log(root / x)
        return math.exp(min(600.0, slope * distance + bend * max(0.0, distance) ** 2))

    found = smallest_parameter(spending(epsilon), 1.0, guess, 1e-4, 1e7)
    assert found is not None and epsilon(found) <= 1.0
    assert found == pytest.approx(root, rel=1e-5)


@given(most_fitting=st.integers(0, 10**8), guess=st.floats(0.0, 1e9), power=st.floats(0.3, 1.5))
def test_the_search_for_steps_finds_the_last_one_that_fits(most_fitting: int, guess: float, power: float) -> None:
    def epsilon(steps: float) -> float:
        return ((steps) / (most_fitting + 0.5)) ** power

    assert most_steps(spending(epsilon), 1.0, guess, 10**9) == most_fitting


@given(steps=st.integers(1, 10**6), wobble=st.floats(0.0, 0.05))
def test_a_search_over_a_jagged_edge_still_returns_something_that_fits_beside_something_that_does_not(
    steps: int, wobble: float
) -> None:
    def epsilon(count: float) -> float:
        return math.sqrt(count / steps) * (1 + wobble * math.sin(1e3 * count))

    found = most_steps(spending(epsilon), 1.0, 5.0, 10**9)
    assert found is not None and epsilon(found + 1) > 1.0
    assert found == 0 or epsilon(found) <= 1.0
    noise = smallest_parameter(spending(lambda x: epsilon(steps / x**2)), 1.0, 1.0, 1e-4, 1e7)
    assert noise is not None and epsilon(steps / noise**2) <= 1.0


def test_a_search_stops_where_the_bounds_are_wider_than_what_is_left() -> None:
    tried = []

    def epsilon(x: float) -> float:
        tried.append(x)
        return (1 + 1e-4 * math.sin(1e9 * x)) / x  # noise that no search can resolve

    found = smallest_parameter(spending(epsilon, lower=0.999), 1.0, 3.0, 1e-4, 1e7)
    assert found == pytest.approx(1.0, abs=2e-3) and len(tried) <= 12


def test_steps_of_infinite_and_of_no_cost_are_found() -> None:
    assert most_steps(spending(lambda n: math.inf if n > 70 else 0.0), 1.0, 1e6, 10**9) == 70
    assert most_steps(spending(lambda n: 0.0), 1.0, 10.0, 1000) is None
    assert smallest_parameter(spending(lambda x: math.inf), 1.0, 1.0, 1e-4, 1e7) is None
    assert smallest_parameter(spending(lambda x: 0.0 if x > 2 else math.inf), 1.0, 1e3, 1e-4, 1e7) == pytest.approx(
        2, rel=1e-6
    )
    assert smallest_parameter(spending(lambda x: 0.0), 1.0, 1e3, 1e-4, 1e7) == pytest.approx(1e-4)


# ----------------------------------------------------------------------------------------------- bad input


def test_what_no_noise_can_reach_says_so() -> None:
    with pytest.raises(QuietsumError, match="allow a larger ε or δ"):
        calibrate(lambda x: PureDP(epsilon=2.0), target_epsilon=1.0, target_delta=1e-9, guess=1.0)
    with pytest.raises(QuietsumError, match="add noise or take fewer steps"):
        calibrate_rate(target_epsilon=1e-6, target_delta=1e-15, noise_multiplier=0.3, steps=10**8, accounting="rdp")
    with pytest.raises(InvalidParameter, match="still fit"):
        calibrate_steps(target_epsilon=10.0, target_delta=1e-5, noise_multiplier=10.0, sample_rate=0.01, most=100)
    with pytest.raises(InvalidParameter, match="still fit"):
        calibrate_steps(target_epsilon=1.0, target_delta=1e-5, noise_multiplier=1.0, sample_rate=0.0)


NOISE: dict[str, Any] = {"target_epsilon": 1.0, "target_delta": 1e-5, "sample_rate": 0.1, "steps": 10}
STEPS: dict[str, Any] = {"target_epsilon": 1.0, "target_delta": 1e-5, "sample_rate": 0.1, "noise_multiplier": 1.0}
RATE: dict[str, Any] = {"target_epsilon": 1.0, "target_delta": 1e-5, "steps": 10, "noise_multiplier": 1.0}
ROUNDS: dict[str, Any] = {**STEPS, "steps_per_round": 5}
COMPUTE: dict[str, Any] = {
    "target_epsilon": 1.0,
    "target_delta": 1e-5,
    "sample_rate": 0.1,
    "steps_per_round": 5,
    "num_rounds": 2,
}
BAD: dict[str, list[Any]] = {
    "target_epsilon": [0.0, -1.0, math.nan, math.inf, "one"],
    "target_delta": [0.0, 1.0, math.nan],
    "sample_rate": [-0.1, 1.1, math.nan],
    "steps": [0, -5, 1.5],
    "noise_multiplier": [0.0, -1.0, math.nan],
    "steps_per_round": [0, -1],
    "num_rounds": [0, 0.5],
}


@pytest.mark.parametrize(
    ("function", "good"),
    [(calibrate_noise, NOISE), (calibrate_steps, STEPS), (calibrate_rate, RATE), (calibrate_rounds, ROUNDS),
     (compute_noise_multiplier, COMPUTE)],
)  # fmt: skip
def test_bad_input_names_the_parameter(function: Callable[..., Any], good: dict[str, Any]) -> None:
    for parameter in good:
        for bad in BAD[parameter]:
            with pytest.raises(InvalidParameter) as error:
                function(**{**good, parameter: bad})
            assert error.value.parameter == parameter
    with pytest.raises(InvalidParameter, match="accounting"):
        function(**good, accounting="guess")


def test_other_bad_input_is_named_too() -> None:
    for function, good in ((calibrate_noise, NOISE), (calibrate_steps, STEPS), (calibrate_rate, RATE)):
        with pytest.raises(InvalidParameter, match="sampling"):
            function(**good, sampling="shuffled")
    with pytest.raises(InvalidParameter, match="no rate to calibrate"):
        calibrate_rate(**RATE, sampling="none")
    with pytest.raises(InvalidParameter, match="draws no record"):
        calibrate_noise(**{**NOISE, "sample_rate": 0.0})
    with pytest.raises(InvalidParameter, match="most"):
        calibrate_steps(**STEPS, most=0)
    known: dict[str, Any] = {"target_epsilon": 1.0, "target_delta": 1e-5, "guess": 1.0}
    for name, bad in (("guess", 0.0), ("lowest", -1.0), ("highest", 1e-9)):
        with pytest.raises(InvalidParameter, match=name):
            calibrate(
                lambda x: Gaussian(noise_multiplier=x),
                **{**known, name: bad},
            )
