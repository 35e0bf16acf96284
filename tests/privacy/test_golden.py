"""Some 250 runs, judged by the truth and by what four other libraries say (see tests/golden/make_accounting.py)."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator
from pathlib import Path

import dp_accounting
import pytest
from dp_accounting.pld import privacy_loss_distribution

from privacy.referee import NoVerdict, true_epsilon
from quietsum import ExactAccountant, Gaussian, PoissonSampled, RenyiAccountant
from quietsum.privacy.guarantee import Guarantee

GOLDEN = Path(__file__).parents[1] / "golden" / "accounting.csv"
ROUNDING = 1e-12


class Run(dict[str, str]):
    """One row of the golden file; empty fields are None."""

    def __repr__(self) -> str:
        return f"{self['name']}: sigma {self['sigma']}, q {self['rate']}, T {self['steps']}, delta {self['delta']}"

    def number(self, column: str) -> float | None:
        return float(self[column]) if self[column] else None

    def bound(self, column: str) -> float | None:
        """A library's number, unless both of the referee's methods refute it as a bound; ``notes`` says by how much.

        All such rows have δ below 3e-8. dp-accounting's error there changes sign with its interval, as rounding would.
        """
        return None if f"{column} is no " in self["notes"] else self.number(column)

    @property
    def setting(self) -> tuple[float, float, int, float]:
        return float(self["sigma"]), float(self["rate"]), int(self["steps"]), float(self["delta"])


def golden() -> list[Run]:
    with GOLDEN.open(encoding="utf-8", newline="") as lines:
        return [Run(row) for row in csv.DictReader(line for line in lines if not line.startswith("#"))]


RUNS = golden()


def spent(
    accountant: ExactAccountant | RenyiAccountant, sigma: float, rate: float, steps: int, delta: float
) -> Guarantee:
    step = PoissonSampled(rate=rate, event=Gaussian(noise_multiplier=sigma))
    return accountant.compose(step, times=steps).epsilon(delta=delta)


def contradictions(run: Run, lower: float, upper: float) -> Iterator[str]:
    """Everything in ``run`` that [lower, upper] cannot be reconciled with: the judge of this file."""
    truth, off = run.number("referee"), run.number("referee_error") or 0.0
    room = off + ROUNDING * max(1.0, upper)
    if truth is not None and not lower - room <= truth:
        yield f"the lower bound {lower!r} is above the truth {truth!r}"
    if truth is not None and not truth <= upper + room:
        yield f"the upper bound {upper!r} is below the truth {truth!r}"
    if not upper - lower <= 1e-3 * max(1.0, upper):
        yield f"the bounds [{lower!r}, {upper!r}] are too far apart"
    pld_upper, prv_lower, prv_upper = run.bound("pld_upper"), run.bound("prv_lower"), run.bound("prv_upper")
    if pld_upper is not None and not lower <= pld_upper + room:
        yield f"the lower bound {lower!r} is above dp-accounting's upper bound {pld_upper!r}"
    if prv_lower is not None and not upper >= prv_lower - room:
        yield f"the upper bound {upper!r} is below prv-accountant's lower bound {prv_lower!r}"
    if prv_upper is not None and run["referee_direction"] == "remove" and not lower <= max(0.0, prv_upper) + room:
        yield f"the lower bound {lower!r} is above prv-accountant's upper bound {prv_upper!r}"


# ------------------------------------------------------------------------------- the file is worth its name


def test_the_file_covers_what_it_promises() -> None:
    sigmas, rates, steps, deltas = zip(*(run.setting for run in RUNS), strict=True)
    assert len(set(zip(sigmas, rates, steps, deltas, strict=True))) >= 224
    assert sum(count <= 60 for count in steps) >= 0.2 * len(RUNS)
    assert sum(rate == 1 for rate in rates) >= 0.05 * len(RUNS)
    assert min(deltas) <= 1e-10 and max(steps) > 5e4 and min(rates) < 2e-4
    known = [run for run in RUNS if run["referee"]]
    assert len(known) >= 0.9 * len(RUNS)
    assert sum("mpmath" in run["referee_method"] for run in known) >= 0.5 * len(RUNS)


def test_the_referee_is_sure_of_every_number_it_gives() -> None:
    for run in RUNS:
        truth, error = run.number("referee"), run.number("referee_error")
        if truth is not None:
            assert error is not None and 0 <= error <= 1e-6 * truth, run


def test_the_referee_overrules_a_library_only_with_a_second_opinion_and_seldom() -> None:
    overruled = [run for run in RUNS if " is no " in run["notes"]]
    assert len(overruled) <= 0.05 * len(RUNS)
    for run in overruled:
        assert {"contour", "grid"} <= set(run["referee_method"].split(", ")), run


def test_missing_numbers_are_explained() -> None:
    for run in RUNS:
        for column, library in [
            ("referee", "referee"), ("prv_upper", "prv"), ("pld_upper", "pld"),
            ("opacus_rdp", "opacus_rdp"), ("google_rdp", "google_rdp"),
        ]:  # fmt: skip
            assert run[column] or library in run["notes"], (run, column)


# ------------------------------------------------------------------------------------- ours on every row


@pytest.mark.parametrize("run", RUNS, ids=repr)
def test_the_exact_bounds_hold_the_truth_and_agree_with_every_library(run: Run) -> None:
    guarantee = spent(ExactAccountant(), *run.setting)
    assert list(contradictions(run, guarantee.epsilon_lower, guarantee.epsilon)) == []


@pytest.mark.parametrize("run", RUNS, ids=repr)
def test_the_renyi_bound_lies_above_the_truth_and_not_above_opacus(run: Run) -> None:
    epsilon = spent(RenyiAccountant(), *run.setting).epsilon
    truth, opacus = run.number("referee"), run.number("opacus_rdp")
    if truth is not None:
        assert epsilon >= truth * (1 - ROUNDING)
    if opacus is not None:
        assert epsilon <= max(0.0, opacus) * (1 + 1e-3) or opacus < (truth or 0.0)


# ---------------------------------------------------------------------- the judge can tell right from wrong


def wrong_noise(sigma: float, rate: float, steps: int, delta: float) -> tuple[float, float]:
    """Bounds for 2 % more noise than there was."""
    guarantee = spent(ExactAccountant(), 1.02 * sigma, rate, steps, delta)
    return guarantee.epsilon_lower, guarantee.epsilon


def wrong_step_count(sigma: float, rate: float, steps: int, delta: float) -> tuple[float, float]:
    """Bounds that forget two steps in a hundred."""
    guarantee = spent(ExactAccountant(), sigma, rate, math.floor(0.98 * steps), delta)
    return guarantee.epsilon_lower, guarantee.epsilon


def central_limit(sigma: float, rate: float, steps: int, delta: float) -> tuple[float, float]:
    """What the Gaussian central limit says (Bu, Dong, Long, Su 2020), which is no bound."""
    mu = rate * math.sqrt(steps * math.expm1(1 / sigma**2))
    guarantee = ExactAccountant().compose(Gaussian(noise_multiplier=1 / mu)).epsilon(delta=delta)
    return guarantee.epsilon_lower, guarantee.epsilon


def substantial(run: Run) -> bool:
    """Rows on which an error of two per cent shows beyond rounding."""
    return (run.number("referee") or 0.0) > 1e-6 and int(run["steps"]) >= 50


@pytest.mark.parametrize("bounds", [wrong_noise, wrong_step_count, central_limit], ids=lambda f: f.__name__)
def test_wrong_bounds_are_caught(bounds) -> None:  # type: ignore[no-untyped-def]
    rows = [run for run in RUNS if substantial(run)][::5]
    if bounds is central_limit:
        rows = [run for run in rows if float(run["sigma"]) < 2 and float(run["rate"]) < 0.5]
    missed = [run for run in rows if not any(contradictions(run, *bounds(*run.setting)))]
    assert rows and missed == []


def test_loose_bounds_are_caught() -> None:
    run = next(run for run in RUNS if run["name"] == "long run")
    assert any("too far apart" in problem for problem in contradictions(run, 0.0, 7.0))


# ------------------------------------------------------------------- twenty rows, recomputed now by the others


LIVE = [run for run in RUNS if run["referee"] and run["pld_upper"]][:: max(1, len(RUNS) // 21)]


@pytest.mark.slow
@pytest.mark.parametrize("run", LIVE, ids=repr)
@pytest.mark.some(6)
def test_dp_accounting_says_today_what_the_file_says_and_never_less_than_our_lower_bound(run: Run) -> None:
    sigma, rate, steps, delta = run.setting
    recorded, interval = run.number("pld_upper"), run.number("pld_interval")
    assert recorded is not None and interval is not None
    one = privacy_loss_distribution.from_gaussian_mechanism(
        sigma, value_discretization_interval=interval, sampling_prob=rate, use_connect_dots=True
    )
    upper = one.self_compose(steps).get_epsilon_for_delta(delta)
    assert upper == pytest.approx(recorded, rel=1e-6, abs=1e-9)
    assert spent(ExactAccountant(), *run.setting).epsilon_lower <= upper + ROUNDING


@pytest.mark.slow
@pytest.mark.parametrize("run", LIVE, ids=repr)
@pytest.mark.long
def test_the_referee_says_today_what_the_file_says(run: Run) -> None:
    recorded = run.number("referee")
    assert recorded is not None
    try:
        truth = true_epsilon(*run.setting, affordable=1e5, second_opinion=False)
    except NoVerdict as doubt:  # pragma: no cover
        pytest.fail(f"no verdict today: {doubt}")
    assert truth.epsilon == pytest.approx(recorded, rel=2e-6, abs=1e-15)


@pytest.mark.slow
@pytest.mark.parametrize("run", LIVE, ids=repr)
def test_dp_accountings_renyi_accountant_is_not_below_the_truth(run: Run) -> None:
    sigma, rate, steps, delta = run.setting
    event = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(sigma))
    bound = dp_accounting.rdp.RdpAccountant().compose(event, steps).get_epsilon(delta)
    assert bound == pytest.approx(run.number("google_rdp"), rel=1e-9)
    assert bound >= spent(ExactAccountant(), *run.setting).epsilon_lower
