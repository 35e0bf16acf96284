"""Schedules: noise and clip over epochs, priced as what they are."""

from __future__ import annotations

import dp_accounting
import pytest
from dp_accounting.pld import PLDAccountant

from quietsum import PldAccountant
from quietsum.errors import InvalidParameter
from quietsum.learning.config import PrivacyConfig, plan_training
from quietsum.learning.schedules import (
    Constant,
    Growing,
    Schedule,
    Stepwise,
    beginning,
    calibrate_schedule,
    find_longest,
    run_event,
    schedule_named,
    stages,
)
from quietsum.ledger import price_event

RATE, EPOCHS, STEPS, DELTA = 0.05, 6, 10, 1e-5
SCHEDULES = [Constant(), Stepwise(every=2, noise=1.3, clip=0.8), Growing(noise=2.0, clip=0.5), Growing(noise=0.5)]


def run(schedule: Schedule, noise: float) -> list[tuple[float, int]]:
    found = stages(schedule, epochs=EPOCHS, steps_per_epoch=STEPS, noise=noise, clip=1.0)
    return [(stage.noise_multiplier, stage.steps) for stage in found]


def reference(schedule: Schedule, noise: float) -> float:
    """Google's accountant on the same list of steps."""
    accountant = PLDAccountant(value_discretization_interval=1e-3)
    for sigma, steps in run(schedule, noise):
        gaussian = dp_accounting.GaussianDpEvent(sigma)
        accountant.compose(dp_accounting.PoissonSampledDpEvent(RATE, gaussian), steps)
    return float(accountant.get_epsilon(DELTA))


def test_schedules_say_what_they_say() -> None:
    assert [Constant().factors(e, 4) for e in range(4)] == [(1.0, 1.0)] * 4
    assert [Stepwise(every=2, noise=2.0, clip=0.5).factors(e, 5)[0] for e in range(5)] == [1, 1, 2, 2, 4]
    assert [Stepwise(every=2, noise=2.0, clip=0.5).factors(e, 5)[1] for e in range(5)] == [1, 1, 0.5, 0.5, 0.25]
    growing = [Growing(noise=4.0, clip=0.25).factors(e, 3) for e in range(3)]
    assert growing == [(1.0, 1.0), (2.0, 0.5), (4.0, 0.25)]
    assert Growing(noise=4.0).factors(0, 1) == (1.0, 1.0)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.some(1)
def test_a_calibrated_schedule_fits_the_budget_and_hardly_less_noise_does(schedule: Schedule) -> None:
    terms = {"epochs": EPOCHS, "steps_per_epoch": STEPS, "rate": RATE, "delta": DELTA}
    noise = calibrate_schedule(schedule, epsilon=2.0, **terms)  # type: ignore[arg-type]

    def cost(sigma: float) -> float:
        event = run_event(stages(schedule, epochs=EPOCHS, steps_per_epoch=STEPS, noise=sigma, clip=1.0), RATE)
        return price_event(event, delta=DELTA).epsilon

    assert cost(noise) <= 2.0 < cost(noise * 0.999)
    assert reference(schedule, noise) == pytest.approx(2.0, rel=5e-3)
    event = run_event(stages(schedule, epochs=EPOCHS, steps_per_epoch=STEPS, noise=noise, clip=1.0), RATE)
    assert PldAccountant().compose(event).epsilon(delta=DELTA).epsilon == pytest.approx(2.0, rel=5e-3)


def test_the_control_a_growing_schedule_priced_as_a_constant_one_would_be_wrong() -> None:
    noise = calibrate_schedule(
        Growing(noise=0.5), epochs=EPOCHS, steps_per_epoch=STEPS, rate=RATE, epsilon=2.0, delta=DELTA
    )
    constant = run_event(stages(Constant(), epochs=EPOCHS, steps_per_epoch=STEPS, noise=noise, clip=1.0), RATE)
    assert price_event(constant, delta=DELTA).epsilon < 1.6


@pytest.mark.parametrize("accounting", ["exact", "rdp", "moments"])
@pytest.mark.parametrize("law", ["gaussian", "laplace"])
def test_every_accountant_calibrates_every_law(accounting: str, law: str) -> None:
    terms = {"epochs": 2, "steps_per_epoch": 5, "rate": 0.1, "delta": 1e-5, "law": law, "accounting": accounting}
    noise = calibrate_schedule(Constant(), epsilon=2.0, **terms)  # type: ignore[arg-type]
    event = run_event(stages(Constant(), epochs=2, steps_per_epoch=5, noise=noise, clip=1.0), 0.1, law)
    assert price_event(event, delta=1e-5, accounting=accounting).epsilon <= 2.0


def test_a_run_is_cut_before_the_step_that_would_overspend() -> None:
    whole = stages(Growing(noise=1.5), epochs=EPOCHS, steps_per_epoch=STEPS, noise=0.8, clip=1.0)
    kept = find_longest(whole, rate=RATE, epsilon=2.0, delta=DELTA)
    count = sum(stage.steps for stage in kept)
    assert 0 < count < EPOCHS * STEPS
    assert price_event(run_event(kept, RATE), delta=DELTA).epsilon <= 2.0
    one_more = run_event(beginning(whole, count + 1), RATE)
    assert price_event(one_more, delta=DELTA).epsilon > 2.0
    assert find_longest(whole, rate=RATE, epsilon=100.0, delta=DELTA) == whole
    assert find_longest(whole, rate=RATE, epsilon=1e-3, delta=DELTA) == ()


def test_equal_steps_are_counted_together() -> None:
    event = run_event(stages(Constant(), epochs=3, steps_per_epoch=5, noise=1.0, clip=1.0), 0.1)
    assert event.to_dict()["times"] == 15


def test_names_and_bad_values() -> None:
    assert schedule_named("growing", noise=2.0) == Growing(noise=2.0)
    with pytest.raises(InvalidParameter, match="constant, step or growing"):
        schedule_named("stepped")
    with pytest.raises(InvalidParameter):
        schedule_named("constant", noise=2.0)
    for bad in (0.0, -1.0, float("nan")):
        with pytest.raises(InvalidParameter):
            Growing(noise=bad)


def test_schedules_that_leave_the_floats_are_refused_and_long_gentle_ones_are_not() -> None:
    for schedule in (Stepwise(every=1, clip=0.1), Stepwise(every=1, noise=10.0), Stepwise(every=1, noise=1e300)):
        with pytest.raises(InvalidParameter, match="less often or by less"):
            stages(schedule, epochs=400, steps_per_epoch=10, noise=1.0, clip=1.0)
        with pytest.raises(InvalidParameter, match="less often or by less"):
            plan_training(PrivacyConfig(epsilon=3.0, batch_size=40, epochs=400, schedule=schedule), size=400)
    assert len(stages(Stepwise(every=40, clip=0.5), epochs=400, steps_per_epoch=10, noise=1.0, clip=1.0)) == 400


def test_so_many_epochs_that_planning_them_takes_a_minute_are_refused_in_words() -> None:
    for epochs in (10**7, 100_001):
        with pytest.raises(InvalidParameter, match="larger batches, or fewer epochs"):
            PrivacyConfig(noise_multiplier=1.0, epochs=epochs, batch_size=40)
        with pytest.raises(InvalidParameter, match="larger batches, or fewer epochs"):
            plan_training(PrivacyConfig(noise_multiplier=1.0, batch_size=40), size=400, epochs=epochs)


def test_the_stage_of_a_step_is_found_wherever_it_lies() -> None:
    config = PrivacyConfig(noise_multiplier=1.0, epochs=4, batch_size=40, schedule=Growing(noise=2.0))
    plan = plan_training(config, size=400)
    found = [plan.stage_at(step) for step in range(plan.steps)]
    assert [stage for stage, _ in found] == [stage for stage in plan.stages for _ in range(10)]
    assert [left for _, left in found] == [10 - step % 10 for step in range(40)]
    with pytest.raises(InvalidParameter, match="beyond the plan"):
        plan.stage_at(40)
