"""T7 and T8: the numbers around the step. Public ones must not know the data; the accountant must hear the truth."""

from __future__ import annotations

import math

from quietsum.privacy import (
    DiscreteGaussianSum,
    Gaussian,
    Laplace,
    PoissonSampled,
    PrivacyEvent,
    Skellam,
    gaussian_epsilon,
)
from quietsum.selfcheck.protocol import Law, StepUnderTest
from quietsum.selfcheck.report import CheckFinding, CheckVerdict

__all__ = ["check_accounting", "public_constants"]

_DELTA = 1e-5


def public_constants(step: StepUnderTest) -> CheckFinding:
    """T7: rate, divisor, steps, noise and norm are the same when one record is gone. No chance is involved.

    A divisor computed from the size of the data doubles when the size crosses a boundary; then the whole model shows
    one record. Sizes that steer a run are declared, not counted.
    """
    here, gone = step.public_constants(step.population), step.public_constants(max(step.population - 1, 0))
    changed = sorted(name for name in {*here, *gone} if _differ(here.get(name), gone.get(name)))
    lesson = "No constant of the run knows how many records there are."
    if changed:
        lesson = (
            f"{', '.join(changed)} changed when one record was taken away, and everybody sees it. Derive public "
            "constants from a declared size, or declare that the size is public (zero-out neighbours)."
        )
    return CheckFinding(
        test="T7",
        name="public constants",
        verdict=CheckVerdict.FAIL if changed else CheckVerdict.PASS,
        lesson=lesson,
        statistic=float(len(changed)),
        threshold=0.0,
    )


def _differ(one: float | None, other: float | None) -> bool:
    return one is None or other is None or one != other


def check_accounting(step: StepUnderTest) -> CheckFinding:
    """T8: the event is the claim under test, and one unsampled step of it costs what the closed form says."""
    event = step.event()
    rate, inner = (event.rate, event.event) if isinstance(event, PoissonSampled) else (1.0, event)
    told = _noise_multiplier(inner)
    if told is None or isinstance(inner, Laplace) != (step.law is Law.LAPLACE):
        return _finding(math.inf, f"The event states {type(inner).__name__} noise, the step claims {step.law}.")
    gap = max(
        0.0,
        told / step.noise_multiplier - 1,  # an event with more noise than is added
        1 - rate / step.rate if step.rate else 0.0,  # or with fewer draws than are made
    )
    if gap > 1e-9:
        return _finding(gap, "The event states more noise, or a smaller rate, than the step uses.")
    return _finding(_accountant_gap(inner), "The accountant does not return the closed form of one step.")


def _noise_multiplier(event: PrivacyEvent) -> float | None:
    """The standard deviation over the L2 sensitivity (Laplace: the scale over the L1 sensitivity) that is accounted."""
    match event:
        case Gaussian(noise_multiplier=told) | Laplace(noise_multiplier=told):
            return told
        case Skellam(variance=variance, l2_sensitivity=reach):
            return math.sqrt(variance) / reach
        case DiscreteGaussianSum(sigma=sigma, shares=shares, sensitivity=reach):
            return sigma * math.sqrt(shares) / reach
        case _:
            return None


def _accountant_gap(event: PrivacyEvent) -> float:
    """How far the accountant falls below the closed form for one step, as a part of it; 0 where it does not.

    Shares of distributed noise are as wide as a Gaussian, which nothing of their width undercuts by more than rounding.
    """
    from quietsum.privacy import accountant_for

    noise = _noise_multiplier(event)
    if noise is None or isinstance(event, Laplace):
        return 0.0
    told = accountant_for("exact", events=[event]).compose(event).epsilon(delta=_DELTA).epsilon
    true = gaussian_epsilon(1 / noise, _DELTA)
    return max(0.0, 1 - told / true) if true > 0 else 0.0


def _finding(gap: float, lesson: str) -> CheckFinding:
    failed = gap > 1e-6
    return CheckFinding(
        test="T8",
        name="accounting",
        verdict=CheckVerdict.FAIL if failed else CheckVerdict.PASS,
        lesson=f"{lesson} Let the object that adds the noise and draws the batch state the event."
        if failed
        else "The event is the step's own, and the accountant knows what it costs.",
        statistic=gap,
        threshold=1e-6,
    )
