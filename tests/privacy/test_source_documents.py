"""Every number that five earlier systems' documents state about privacy, beside the true one.

Their claims were checked one by one; most are wrong, some by a factor of several hundred. Each test names the claim and
states the truth. Oracles: the golden file (an mpmath referee and prv-accountant's bounds for the same settings), and
closed forms written out here.
"""

from __future__ import annotations

import csv
import inspect
import json
import math
from pathlib import Path
from typing import Any

import mpmath
import pytest

from quietsum import (
    ExactAccountant,
    FixedSizeSampled,
    Gaussian,
    InvalidParameter,
    Laplace,
    Neighbours,
    PoissonSampled,
    PrivacyUnit,
    RenyiAccountant,
    Repeated,
    calibrate_noise,
    calibrate_rate,
)
from quietsum.errors import MixedUnits
from quietsum.privacy import (
    ApproximateDP,
    ClassicalAccountant,
    ConcentratedAccountant,
    Group,
    PrivacyAccountant,
    PureDP,
    Shuffled,
    compute_noise_multiplier,
    gaussian_rdp,
    get_privacy_spent,
    group_guarantee,
)
from quietsum.privacy.classical import classical_gaussian_noise_multiplier
from quietsum.privacy.guarantee import Guarantee
from quietsum.privacy.pairs import reduce_event
from quietsum.privacy.shuffled import shuffled_epsilon_lower

GOLDEN = Path(__file__).parents[1] / "golden" / "accounting.csv"
FRAUD = (0.0032, 31_200)  # batches of 32 out of 10,000 transactions, 100 rounds of 312 steps


def step(noise: float, rate: float) -> PoissonSampled:
    return PoissonSampled(rate=rate, event=Gaussian(noise_multiplier=noise))


def spent(noise: float, rate: float, steps: int, delta: float = 1e-5) -> Guarantee:
    return ExactAccountant().compose(step(noise, rate), steps).epsilon(delta=delta)


def golden_row(noise: float, rate: float, steps: int, delta: float) -> dict[str, str]:
    with GOLDEN.open(encoding="utf-8", newline="") as lines:
        for row in csv.DictReader(line for line in lines if not line.startswith("#")):
            if (float(row["sigma"]), float(row["rate"]), int(row["steps"]), float(row["delta"])) == (
                noise,
                rate,
                steps,
                delta,
            ):
                return row
    raise AssertionError(f"the golden file lacks {noise, rate, steps, delta}")


# ------------------------------------------------------------------------ ε of the documents' own examples

EXAMPLES = [  # what runs, what the document says, what is true
    pytest.param((1.0, 0.1, 1, 1e-5), None, 1.685, id="one single step costs more than the 0.85 claimed for a round"),
    pytest.param((1.0, 0.1, 100, 1e-5), 0.85, 7.047, id="round 1"),
    pytest.param((1.0, 0.1, 200, 1e-5), 1.20, 9.971, id="round 2"),
    pytest.param((1.0, 0.1, 300, 1e-5), 1.47, 12.398, id="round 3"),
    pytest.param((1.0, 0.1, 400, 1e-5), 1.70, 14.564, id="round 4"),
    pytest.param((1.0, 0.1, 500, 1e-5), 1.90, 16.562, id="round 5"),
    pytest.param((1.0, 0.1, 1000, 1e-5), 2.68, 25.205, id="round 10"),
    pytest.param((0.5, 0.8, 1, 1e-5), 0.3, 9.671, id="user level, one round"),
    pytest.param((0.5, 0.8, 10, 1e-5), 0.3, 41.130, id="user level, ten rounds"),
    pytest.param((1.2, *FRAUD, 1e-5), 1.0, 2.321, id="fraud scenario, noise 1.2"),
    pytest.param((1.0, *FRAUD, 1e-5), 0.95, 3.167, id="fraud report, noise 1.0"),
    pytest.param((0.5, *FRAUD, 1e-5), 5.0, 24.111, id="fraud guideline table, noise 0.5"),
    pytest.param((5.0, *FRAUD, 1e-5), 0.1, 0.394, id="fraud guideline table, noise 5"),
    pytest.param(
        (0.6, *FRAUD, 1e-5), 1.0, 11.976, id="clipping the batch doubles the sensitivity, so noise 1.2 is 0.6"
    ),
    pytest.param((1.0, 0.01, 10_000, 1e-5), None, 6.188, id="10,000 steps at 1 %"),
    pytest.param((1.0, 0.01, 1000, 1e-30), None, 9.342, id="a tiny delta"),
]


@pytest.mark.parametrize(("run", "claim", "truth"), EXAMPLES)
def test_an_example_costs_what_is_true_and_not_what_was_claimed(
    run: tuple[float, float, int, float], claim: float | None, truth: float
) -> None:
    guarantee = spent(*run)
    row = golden_row(*run)
    assert guarantee.epsilon == pytest.approx(truth, abs=6e-4)
    assert guarantee.epsilon_lower <= float(row["referee"]) + float(row["referee_error"]) * 2
    assert float(row["referee"]) <= guarantee.epsilon + float(row["referee_error"]) * 2
    if row["prv_upper"]:
        assert float(row["prv_lower"]) <= guarantee.epsilon <= float(row["prv_upper"])
    if claim is not None:
        assert claim < guarantee.epsilon_lower  # the claim is refuted, not only less tight


def test_the_claimed_rounds_are_a_square_root_and_the_true_ones_are_not() -> None:
    claims = {1: 0.85, 2: 1.20, 3: 1.47, 4: 1.70, 5: 1.90, 10: 2.68}
    assert all(abs(claim - 0.85 * math.sqrt(rounds)) < 0.01 for rounds, claim in claims.items())
    truth = {rounds: spent(1.0, 0.1, 100 * rounds).epsilon for rounds in (1, 5, 10)}
    assert truth[10] / truth[1] == pytest.approx(3.58, abs=0.01)  # √10 is 3.16
    assert truth[10] / truth[5] == pytest.approx(1.52, abs=0.01)  # √2 is 1.41


def test_what_was_claimed_for_round_one_holds_for_a_rate_eight_times_smaller() -> None:
    rate = calibrate_rate(target_epsilon=0.85, target_delta=1e-5, noise_multiplier=1.0, steps=100)
    assert rate == pytest.approx(0.0118, abs=1e-4)


def test_typical_user_level_noise_is_no_protection() -> None:
    assert spent(0.1, 0.8, 10).epsilon_lower > 600
    assert spent(1.0, 0.8, 10).epsilon == pytest.approx(15.1, abs=0.05)


# ------------------------------------------------------------------------------------------- calibration


@pytest.mark.parametrize(
    ("budget", "run", "claim", "exact", "renyi"),
    [
        pytest.param((8.0, 1e-5), (0.1, 1000), 1.0, 2.051, 2.172, id="ten rounds of 100 steps"),
        pytest.param((1.0, 1e-5), FRAUD, 1.2, 2.230, 2.402, id="privacy_medium"),
        pytest.param((0.1, 1e-6), FRAUD, None, 20.543, 22.415, id="privacy_high is reachable"),
        pytest.param((10.0, 1e-4), FRAUD, None, 0.607, 0.627, id="performance"),
        pytest.param((3.0, 1e-5), (0.01, 10_000), None, 1.565, 1.662, id="10,000 steps at 1 %"),
    ],
)
def test_a_budget_needs_this_much_noise(
    budget: tuple[float, float], run: tuple[float, int], claim: float | None, exact: float, renyi: float
) -> None:
    goal = {"target_epsilon": budget[0], "target_delta": budget[1], "sample_rate": run[0], "steps": run[1]}
    found = calibrate_noise(**goal)  # type: ignore[arg-type]
    assert found == pytest.approx(exact, abs=6e-4)
    assert calibrate_noise(**goal, accounting="rdp") == pytest.approx(renyi, abs=6e-4)  # type: ignore[arg-type]
    assert spent(found, *run, budget[1]).epsilon <= budget[0]
    if claim is not None:
        assert spent(claim, *run, budget[1]).epsilon_lower > 2 * budget[0]


def test_compute_noise_multiplier_answers_two_and_not_one() -> None:
    noise = compute_noise_multiplier(
        target_epsilon=8.0,
        target_delta=1e-5,
        sample_rate=0.1,
        steps_per_round=100,
        num_rounds=10,
    )
    assert noise == pytest.approx(2.05, abs=0.005)
    assert get_privacy_spent(noise_multiplier=noise, sample_rate=0.1, steps=1000, delta=1e-5)[0] <= 8.0
    assert get_privacy_spent(noise_multiplier=1.0, sample_rate=0.1, steps=1000, delta=1e-5)[0] == pytest.approx(
        25.2, abs=0.05
    )


def test_noise_is_not_inversely_proportional_to_epsilon() -> None:
    goals = {"target_delta": 1e-5, "sample_rate": FRAUD[0], "steps": FRAUD[1]}
    weak, strong = (calibrate_noise(target_epsilon=e, **goals) for e in (10.0, 1.0))  # type: ignore[arg-type]
    assert strong / weak < 4  # not 10


# ---------------------------------------------------------------------------- α q² / 2σ² is not a bound


def claimed_epsilon(noise: float, rate: float, steps: int, delta: float = 1e-5) -> float:
    """Document 0: RDP_α = α q² T / 2σ², ε = min over α = 2 … 64 of RDP_α + ln(1/δ)/(α − 1)."""
    return min(a * rate**2 * steps / (2 * noise**2) + math.log(1 / delta) / (a - 1) for a in range(2, 65))


@pytest.mark.parametrize(
    ("run", "claim", "truth"),
    [((1.0, 0.1, 100), 5.303, 7.047), ((1.0, 0.1, 1000), 20.76, 25.205), ((0.5, *FRAUD), 6.07, 24.111)],
)
def test_the_quadratic_formula_reports_less_than_the_certified_lower_bound(
    run: tuple[float, float, int], claim: float, truth: float
) -> None:
    assert claimed_epsilon(*run) == pytest.approx(claim, abs=0.005)
    guarantee = spent(*run)
    assert guarantee.epsilon_lower == pytest.approx(truth, abs=6e-4)
    assert claimed_epsilon(*run) < guarantee.epsilon_lower


@pytest.mark.parametrize(("noise", "rate"), [(1.0, 0.1), (0.5, 0.0032), (2.0, 0.01)])
def test_at_order_two_the_true_divergence_has_a_closed_form_above_the_quadratic_formula(
    noise: float, rate: float
) -> None:
    ours = RenyiAccountant(orders=[2]).compose(step(noise, rate)).rdp_at(2)
    truth = math.log1p(rate**2 * math.expm1(1 / noise**2))
    with mpmath.workdps(30):  # E_Q[(1 − q + q e^{(2x−1)/2σ²})²] by quadrature

        def integrand(x: Any) -> Any:
            return mpmath.npdf(x, 0, noise) * (1 - rate + rate * mpmath.exp((2 * x - 1) / (2 * noise**2))) ** 2

        moment = mpmath.quad(integrand, mpmath.linspace(-12 * noise, 2 + 12 * noise, 13))
    assert ours == pytest.approx(truth, rel=1e-11)
    assert ours == pytest.approx(float(mpmath.log(moment)), rel=1e-11)
    assert ours > 2 * rate**2 / (2 * noise**2)


def test_the_published_closed_form_is_four_times_the_quadratic_formula() -> None:
    """Mironov, Talwar, Zhang 2019 prove 2αq²/σ² for q, σ and α in a certain range; a quarter of it is no bound."""
    noise, rate, order = 4.0, 0.005, 8.0
    truth = RenyiAccountant(orders=[order]).compose(step(noise, rate)).rdp_at(order)
    assert order * rate**2 / (2 * noise**2) < truth <= 2 * order * rate**2 / noise**2


# -------------------------------------------------------------------- conversions and the floor of a grid


def test_fifty_full_batch_steps_cost_ten_by_mironov_nine_by_the_improved_conversion_and_8_6_in_truth() -> None:
    mironov = RenyiAccountant(conversion="mironov").compose_gaussian(noise_multiplier=4.0, steps=50)
    improved = RenyiAccountant().compose_gaussian(noise_multiplier=4.0, steps=50)
    exact = ExactAccountant().compose(Gaussian(noise_multiplier=4.0), 50)
    found = [accountant.epsilon(delta=1e-5).epsilon for accountant in (mironov, improved, exact)]
    assert found == pytest.approx([10.05, 9.235, 8.596], abs=6e-3)
    rho, log = 50 / 32, math.log(1e5)
    assert found[0] >= rho + 2 * math.sqrt(rho * log)  # the best real order of Mironov's conversion
    assert exact.epsilon(delta=1e-5).epsilon == pytest.approx(
        float(golden_row(4.0, 1.0, 50, 1e-5)["referee"]), rel=1e-11
    )


def test_zcdp_converts_to_the_same_two_numbers() -> None:
    for conversion, epsilon in (("standard", 10.045), ("tight", 9.23)):
        accountant = ConcentratedAccountant(conversion=conversion)  # type: ignore[arg-type]
        found = accountant.compose(Gaussian(noise_multiplier=4.0), 50).epsilon(delta=1e-5).epsilon
        assert found == pytest.approx(epsilon, abs=6e-3)


@pytest.mark.parametrize(("delta", "floor"), [(1e-5, 0.186), (1e-6, 0.223)])
def test_orders_up_to_63_cannot_report_less_than_a_floor_that_the_default_grid_is_without(
    delta: float, floor: float
) -> None:
    orders = [1 + k / 10 for k in range(1, 100)] + [float(n) for n in range(11, 64)]
    coarse = RenyiAccountant(orders, conversion="mironov").compose_gaussian(noise_multiplier=1e4)
    assert coarse.epsilon(delta=delta).epsilon == pytest.approx(floor, abs=6e-4)
    for conversion in ("mironov", "improved"):
        fine = RenyiAccountant(conversion=conversion).compose_gaussian(noise_multiplier=1e4)
        assert fine.epsilon(delta=1e-6).epsilon < 0.01


def test_nothing_composed_costs_nothing() -> None:
    for accountant in (RenyiAccountant(), RenyiAccountant(conversion="mironov"), ExactAccountant()):
        assert accountant.epsilon(delta=1e-5).epsilon == 0.0


def test_the_linear_formula_says_570_where_2_3_is_true_and_would_ask_for_noise_684() -> None:
    """Document 2: ε(α) = q √(2 ln(1.25/δ)) / σ · √α · steps, then the minimum over α, which is always at α = 2."""

    def claimed(noise: float) -> float:
        return min(
            FRAUD[0] * math.sqrt(2 * math.log(1.25 / 1e-5)) / noise * math.sqrt(a) * FRAUD[1] for a in range(2, 101)
        )

    assert claimed(1.2) == pytest.approx(570, abs=1)
    assert claimed(684) == pytest.approx(1.0, abs=0.01)
    assert spent(1.2, *FRAUD).epsilon < 2.33


# ------------------------------------------------------------------------------------- units and samplers


def test_epsilons_of_records_and_clients_are_listed_and_never_added() -> None:
    accountant = PrivacyAccountant(delta=1e-5)
    accountant.record_round(
        round_num=1,
        noise_multiplier_sample=1.0, sample_rate_sample=0.1, steps_sample=100,
        noise_multiplier_user=0.5, sample_rate_user=0.8, steps_user=1,
    )  # fmt: skip
    records, clients = accountant.guarantees()
    assert (records.unit, clients.unit) == (PrivacyUnit.RECORD, PrivacyUnit.CLIENT)
    assert (records.epsilon, clients.epsilon) == pytest.approx((7.047, 9.671), abs=6e-4)
    with pytest.raises(MixedUnits, match="not added"):
        records + clients


def test_k_of_n_clients_is_fixed_size_sampling_and_costs_more_than_poisson_at_half_the_noise() -> None:
    fixed = FixedSizeSampled(rate=0.1, event=Gaussian(noise_multiplier=1.0))
    replaced = ExactAccountant(neighbours=Neighbours.REPLACE_ONE).compose(fixed, 100).epsilon(delta=1e-5)
    assert replaced.epsilon_lower == pytest.approx(spent(0.5, 0.1, 100).epsilon, rel=1e-9)
    assert replaced.epsilon_lower < replaced.epsilon < 1.15 * replaced.epsilon_lower
    assert replaced.epsilon_lower > 2 * spent(1.0, 0.1, 100).epsilon
    assert not ExactAccountant().supports(fixed)  # under add-or-remove a fixed size says how many there are


def test_the_cost_does_not_depend_on_the_clip_norm_so_nobody_is_asked_for_it() -> None:
    for function in (compute_noise_multiplier, get_privacy_spent, PrivacyAccountant, PrivacyAccountant.record_round):
        assert not [name for name in inspect.signature(function).parameters if "norm" in name or "clip" in name]


@pytest.mark.parametrize(("size", "epsilon"), [(1, 0.999), (3, 3.406), (10, 14.426)])
def test_a_customer_with_many_transactions_is_protected_less_than_one_transaction(size: int, epsilon: float) -> None:
    event = Group(size=size, event=step(2.231, FRAUD[0]))
    guarantee = ExactAccountant().compose(event, FRAUD[1]).epsilon(delta=1e-5)
    assert guarantee.epsilon == pytest.approx(epsilon, abs=6e-4)
    assert guarantee.group_size == size
    generic = group_guarantee(ExactAccountant().compose(step(2.231, FRAUD[0]), FRAUD[1]), size=size, delta=1e-5)
    assert generic.epsilon >= guarantee.epsilon_lower
    if size == 10:
        assert generic.epsilon == pytest.approx(18.2, abs=0.15)


def test_multiplying_epsilon_by_the_group_forgets_delta() -> None:
    """(ε, δ) for one is (kε, δ (e^{kε} − 1)/(e^ε − 1)) for k."""
    ((pair, _),) = reduce_event(Group(size=3, event=ApproximateDP(epsilon=1.0, delta=1e-6)), Neighbours.ADD_REMOVE)
    assert pair.epsilon == 3.0  # type: ignore[attr-defined]
    assert pair.delta == pytest.approx(1e-6 * (1 + math.e + math.e**2), rel=1e-12)  # type: ignore[attr-defined]
    group = ClassicalAccountant().compose(Group(size=3, event=ApproximateDP(epsilon=1.0, delta=1e-6)))
    assert math.isinf(group.epsilon(delta=1e-5).epsilon)
    assert group.epsilon(delta=1.2e-5).epsilon <= 3.0


@pytest.mark.parametrize(
    ("noise", "epochs", "shuffled", "poisson"),
    [(1.0, 1, 3.62, 0.32), (1.0, 100, 18.3, 3.17), (1.2, 100, 8.36, 2.32), (0.6, 100, 147, 12.0)],
)
def test_an_ordinary_loader_shuffles_and_its_epochs_cost_at_least_this(
    noise: float, epochs: int, shuffled: float, poisson: float
) -> None:
    lower = shuffled_epsilon_lower(noise_multiplier=noise, batches=312, epochs=epochs, delta=1e-5)
    assert lower == pytest.approx(shuffled, rel=5e-3)
    assert spent(noise, 1 / 312, 312 * epochs).epsilon == pytest.approx(poisson, rel=1e-2)
    accountant = ExactAccountant(neighbours=Neighbours.ZERO_OUT)
    event = Shuffled(batches=312, event=Gaussian(noise_multiplier=noise))
    guarantee = accountant.compose(event, epochs).epsilon(delta=1e-5)
    assert guarantee.epsilon > lower > 1.7 * poisson
    assert "no amplification" in guarantee.warnings[0]


def test_a_delta_of_one_in_n_lets_a_random_record_be_published() -> None:
    """Publishing each of n records with chance 1/n reveals everything about some, and costs ε = 0 at δ = 1/n."""
    publish = ApproximateDP(epsilon=0.0, delta=1.0)
    assert RenyiAccountant().compose(PoissonSampled(rate=1e-4, event=publish)).epsilon(delta=1.01e-4).epsilon < 0.01
    assert math.isinf(RenyiAccountant().compose(PoissonSampled(rate=1e-4, event=publish)).epsilon(delta=1e-5).epsilon)


def test_laplace_noise_after_an_l2_clip_costs_the_root_of_the_dimension_each_step() -> None:
    """The L1 sensitivity of a vector clipped to L2 norm C is √d · C; Laplace noise of scale C then has ε = √d."""
    dimension = 100_000
    event = Laplace(noise_multiplier=1 / math.sqrt(dimension))
    assert RenyiAccountant().compose(event).epsilon(delta=1e-9).epsilon == pytest.approx(316.2, abs=0.1)
    assert ClassicalAccountant(rule="basic").compose(event).epsilon(delta=1e-9).epsilon == pytest.approx(316.2, abs=0.1)
    assert spent(1.0, 1.0, 1, 1e-9).epsilon < 7  # what Gaussian accounting would have said


# ------------------------------------------------------------------------------------- composition theorems


@pytest.mark.parametrize(
    ("epsilon", "claim", "optimal", "advanced", "basic"),
    [(0.5, 24.0, 31.2, 56.4, 50.0), (1.0, 48.0, 79.8, 219.8, 100.0), (0.1, 4.80, 4.31, 5.85, 10.0)],
)
def test_advanced_composition_without_its_second_term_claims_less_than_the_optimum(
    epsilon: float, claim: float, optimal: float, advanced: float, basic: float
) -> None:
    found = {
        rule: ClassicalAccountant(rule=rule).compose(PureDP(epsilon=epsilon), 100).epsilon(delta=1e-5)
        for rule in ("optimal", "advanced", "basic")
    }
    missing_term = epsilon * math.sqrt(2 * 100 * math.log(1e5))
    assert missing_term == pytest.approx(claim, abs=0.05)
    assert found["optimal"].epsilon == pytest.approx(optimal, abs=0.05)
    assert found["advanced"].epsilon == pytest.approx(advanced, abs=0.05)
    assert found["advanced"].epsilon == pytest.approx(missing_term + 100 * epsilon * math.expm1(epsilon), rel=1e-12)
    assert found["basic"].epsilon == pytest.approx(basic, abs=1e-9)
    if epsilon >= 0.5:
        assert missing_term < found["optimal"].epsilon_lower  # so the short formula is false
    by_losses = ExactAccountant().compose(PureDP(epsilon=epsilon), 100).epsilon(delta=1e-5)
    assert by_losses.epsilon_lower - 1e-3 <= found["optimal"].epsilon <= by_losses.epsilon + 1e-3


def test_the_textbook_gaussian_wastes_noise_at_one_and_breaks_its_promise_at_ten() -> None:
    assert classical_gaussian_noise_multiplier(1.0, 1e-5) == pytest.approx(4.845, abs=5e-4)
    enough = calibrate_noise(target_epsilon=1.0, target_delta=1e-5, sample_rate=1.0, steps=1)
    assert enough == pytest.approx(3.731, abs=6e-4)
    for epsilon, delta in ((10.0, 2.3e-5), (16.0, 3.4e-4)):
        noise = math.sqrt(2 * math.log(1.25e5)) / epsilon
        true_delta = ExactAccountant().compose(Gaussian(noise_multiplier=noise)).delta(epsilon=epsilon)
        assert true_delta == pytest.approx(delta, rel=0.03) and true_delta > 2 * 1e-5
        with mpmath.workdps(30):  # Balle, Wang 2018, Theorem 8
            mu = 1 / mpmath.mpf(noise)
            truth = mpmath.ncdf(mu / 2 - epsilon / mu) - mpmath.exp(epsilon) * mpmath.ncdf(-mu / 2 - epsilon / mu)
        assert true_delta == pytest.approx(float(truth), rel=1e-9)
        with pytest.raises(InvalidParameter, match="ε ≤ 1"):
            classical_gaussian_noise_multiplier(epsilon, 1e-5)


def test_the_central_limit_theorem_under_reports() -> None:
    """0.8, 1 %, 1000 steps, δ = 1e-6: a Gaussian with μ = q √(T (e^{1/σ²} − 1)) says 2.83, the lower bound 3.706."""
    mu = 0.01 * math.sqrt(1000 * math.expm1(1 / 0.8**2))
    limit = ExactAccountant().compose(Gaussian(noise_multiplier=1 / mu)).epsilon(delta=1e-6).epsilon
    guarantee = spent(0.8, 0.01, 1000, 1e-6)
    assert limit == pytest.approx(2.828, abs=5e-3)
    assert guarantee.epsilon_lower == pytest.approx(3.7062, abs=1e-4)
    assert limit < guarantee.epsilon_lower


# ------------------------------------------------------------------------------ rules of honest accounting


def test_charging_only_those_drawn_reports_a_fifth() -> None:
    """An amplified client charge falls on everybody in every round; 10 of 1000 rounds would look like 0.38."""
    assert spent(1.0, 0.01, 10).epsilon == pytest.approx(0.38, abs=5e-3)
    assert spent(1.0, 0.01, 1000).epsilon_lower == pytest.approx(1.83, abs=5e-3)


def test_rates_of_cohort_and_batch_are_not_multiplied_because_a_round_shares_one_draw() -> None:
    """A site is drawn with 10 % and then takes 20 full-batch steps: that is one draw of a 20 times larger leak."""
    steps, rounds, noise = 20, 30, 4.0
    multiplied = spent(noise, 0.1, steps * rounds)
    shared = PoissonSampled(rate=0.1, event=Repeated(times=steps, event=Gaussian(noise_multiplier=noise)))
    truth = ExactAccountant().compose(shared, rounds).epsilon(delta=1e-5)
    assert truth.epsilon_lower > 2 * multiplied.epsilon
    unamplified = ExactAccountant().compose(Gaussian(noise_multiplier=noise), steps * rounds).epsilon(delta=1e-5)
    assert unamplified.epsilon > truth.epsilon  # what a record is charged: nothing off for the cohort


# --------------------------------------------------------- the documents' code, as written but for import names


def test_document_0_records_rounds_and_saves_a_checkpoint() -> None:
    accountant = PrivacyAccountant(delta=1e-5)
    target_eps, printed = 8.0, []
    for r in range(1, 3):
        accountant.record_round(
            round_num=r,
            noise_multiplier_sample=1.0,  # σ
            sample_rate_sample=0.1,  # q (batch_size / dataset_size)
            steps_sample=100,  # T
            noise_multiplier_user=0.5,  # σ_user
            sample_rate_user=0.8,  # k/n
            steps_user=1,  # 1 step per round
        )
        cumulative_eps = accountant.get_cumulative_sample_epsilon()
        printed.append(f"Round {r}: ε = {cumulative_eps:.2f} (target: {target_eps})")
        if cumulative_eps > target_eps:
            printed.append("WARNING: Privacy budget exceeded!")
    assert printed == [
        "Round 1: ε = 7.05 (target: 8.0)", "Round 2: ε = 9.97 (target: 8.0)", "WARNING: Privacy budget exceeded!"
    ]  # fmt: skip
    checkpoint = json.loads(json.dumps({"privacy": accountant.state_dict()}))["privacy"]
    assert checkpoint["target_delta"] == 1e-5
    assert accountant.sample_history == [(1.0, 0.1, 100), (1.0, 0.1, 100)]
    assert accountant.user_history == [(0.5, 0.8, 1), (0.5, 0.8, 1)]
    assert checkpoint["cumulative_sample_epsilon"] == accountant.get_cumulative_sample_epsilon()
    assert checkpoint["cumulative_user_epsilon"] == accountant.get_cumulative_user_epsilon()
    resumed = PrivacyAccountant()
    resumed.load_state_dict(checkpoint)
    assert resumed.get_cumulative_sample_epsilon() == accountant.get_cumulative_sample_epsilon()


def test_document_1_composes_fifty_rounds_of_the_gaussian_mechanism() -> None:
    accountant = RenyiAccountant()
    # 50 rounds of the Gaussian mechanism at noise multiplier z = σ/Δ = 4.0.
    accountant.compose_gaussian(noise_multiplier=4.0, steps=50)

    guarantee = accountant.epsilon(delta=1e-5)
    assert guarantee.epsilon == pytest.approx(9.23, abs=6e-3) and guarantee.order == pytest.approx(3.55, abs=0.2)
    assert guarantee.to_dict()["epsilon"] == guarantee.epsilon
    assert accountant.rdp_at(2.0) == pytest.approx(50 * gaussian_rdp(2.0, 4.0))
    assert len(accountant.rdp_curve()) == len(accountant.orders)
    assert accountant.total_rdp_mass() == pytest.approx(sum(accountant.rdp_curve()))
    assert gaussian_rdp(2.0, 0.0) == math.inf
    more = accountant.compose_rdp([0.0] * len(accountant.orders)).compose_gaussian(noise_multiplier=4.0)
    assert more is accountant


def test_document_2_steps_through_rounds_and_checks_the_budget() -> None:
    target_epsilon, target_delta, n_rounds, num_steps = 3.0, 1e-5, 100, 312
    accountant = PrivacyAccountant(
        noise_multiplier=1.2, sample_rate=0.0032, delta=target_delta, max_epsilon=target_epsilon
    )
    metrics, warned = [], False
    for round in range(n_rounds):
        # Training step
        epsilon, delta = accountant.step(num_steps)

        metrics.append({"privacy_epsilon": epsilon, "privacy_delta": delta, "step": round})

        # Check budget
        if accountant.is_budget_exhausted():
            warned = True
            break
    epsilon, delta = accountant.get_budget_spent()

    assert epsilon <= target_epsilon, "Privacy budget exceeded!"
    assert delta == target_delta, "Delta mismatch!"
    assert not warned and epsilon == pytest.approx(2.321, abs=6e-4)
    assert metrics[-1] == {"privacy_epsilon": epsilon, "privacy_delta": delta, "step": 99}


def test_document_3_asks_for_the_privacy_spent_under_either_accounting() -> None:
    for privacy_accounting, expected in (("rdp", 2.525), ("moments", 2.93), ("exact", 2.321)):
        current_epsilon, current_delta = get_privacy_spent(
            noise_multiplier=1.2, sample_rate=0.0032, steps=31_200, delta=1e-5, accounting=privacy_accounting
        )
        assert f"ε={current_epsilon:.4f}, δ={current_delta:.5f}".endswith("δ=0.00001")
        assert current_epsilon == pytest.approx(expected, abs=6e-3)


def test_document_4_trains_until_the_budget_is_exceeded() -> None:
    accountant = PrivacyAccountant(
        noise_multiplier=1.0,
        sample_rate=0.01,
        delta=1e-5,
        max_epsilon=10.0,
    )
    dataloader = range(1000)

    # Track privacy over training
    for _epoch in range(100):
        accountant.step(num_steps=len(dataloader))
        if accountant.is_budget_exceeded():
            break

    epsilon = accountant.get_epsilon()
    assert (
        len(accountant.sample_history) == 23 and 10.0 < epsilon < 10.3
    )  # it stops after the fact; is_budget_exhausted() stops before
