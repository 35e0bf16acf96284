"""``quietsum calibrate`` finds what fits a budget and never overspends."""

from __future__ import annotations

import json
from typing import Any

import pytest

from scenes import invoke


def values_of(*arguments: object) -> dict[str, Any]:
    result = invoke(*arguments, "--json")
    assert result.exit_code == 0, result.stderr
    values: dict[str, Any] = json.loads(result.stdout)
    return values


@pytest.mark.parametrize(
    ("arguments", "noise"),
    [
        (("-e", 8, "-d", 1e-5, "-q", 0.1, "-T", 1000), 2.051),
        (("-e", 8, "-d", 1e-5, "-q", 0.1, "--rounds", 10, "--steps-per-round", 100), 2.051),
        (("-e", 1, "-d", 1e-5, "-q", 0.0032, "-T", 31200), 2.231),
        (("-e", 0.1, "-d", 1e-6, "-q", 0.0032, "-T", 31200), 20.543),
        (("-e", 10, "-d", 1e-4, "-q", 0.0032, "-T", 31200), 0.607),
        (("-e", 3, "-d", 1e-5, "-q", 0.01, "-T", 10000), 1.56497),
        (("-e", 1, "-d", 1e-5, "--sampling", "none", "-T", 1), 3.731),  # analytic Gaussian
        (("-e", 8, "-d", 1e-5, "-q", 0.1, "-T", 1000, "--accounting", "rdp"), 2.172),
    ],
)
def test_known_noise_is_found_and_stays_within_the_budget(arguments: tuple[object, ...], noise: float) -> None:
    values = values_of("calibrate", *arguments)
    assert values["noise_multiplier"] == pytest.approx(noise, rel=1e-3)
    assert values["epsilon"] <= values["target_epsilon"]
    assert values["epsilon"] == pytest.approx(values["target_epsilon"], rel=1e-4)


def test_spend_confirms_what_calibrate_found() -> None:
    run = ("-q", 0.02, "-T", 700, "-d", 1e-6)
    noise = values_of("calibrate", "-e", 2, *run)["noise_multiplier"]
    assert 1.999 < values_of("spend", "-s", noise, *run)["epsilon"] <= 2


def test_fixed_size_batches_need_more_than_twice_the_noise() -> None:
    run = ("-e", 2, "-q", 0.02, "-T", 700, "-d", 1e-6)
    fixed = values_of("calibrate", *run, "--sampling", "fixed")
    poisson = values_of("calibrate", *run)["noise_multiplier"]
    assert 2 * poisson < fixed["noise_multiplier"] < 2.3 * poisson
    assert fixed["neighbours"] == "replace-one"


def test_a_looser_accounting_asks_for_more_noise() -> None:
    run = ("-e", 1, "-d", 1e-5, "-q", 0.01, "-T", 1000)
    exact, rdp, moments = (
        values_of("calibrate", *run, "--accounting", name)["noise_multiplier"] for name in ("exact", "rdp", "moments")
    )
    assert exact < rdp < moments


def test_the_most_steps_rounds_and_rate_fit_and_one_more_does_not() -> None:
    budget = ("-e", 3, "-d", 1e-5, "-s", 1)
    found = values_of("calibrate", *budget, "-q", 0.01, "--solve", "steps")
    assert found["epsilon"] <= 3
    assert values_of("spend", "-s", 1, "-q", 0.01, "-T", found["steps"] + 1, "-d", 1e-5)["epsilon"] > 3
    rounds = values_of("calibrate", *budget, "-q", 0.01, "--solve", "rounds", "--steps-per-round", 100)
    assert rounds["rounds"] == found["steps"] // 100
    assert rounds["steps"] == 100 * rounds["rounds"]
    rate = values_of("calibrate", *budget, "-T", 2000, "--solve", "rate")["sample_rate"]
    assert values_of("spend", "-s", 1, "-q", rate, "-T", 2000, "-d", 1e-5)["epsilon"] <= 3
    assert values_of("spend", "-s", 1, "-q", 1.001 * rate, "-T", 2000, "-d", 1e-5)["epsilon"] > 3


def test_the_noise_printed_for_people_is_rounded_up_so_that_it_fits() -> None:
    shown = invoke("calibrate", "-e", 8, "-d", 1e-5, "-q", 0.1, "-T", 1000).stdout
    printed = float(shown.split("noise_multiplier = ")[1].split()[0])
    assert values_of("spend", "-s", printed, "-q", 0.1, "-T", 1000, "-d", 1e-5)["epsilon"] <= 8
    assert "next: quietsum curve" in shown
    assert max(map(len, shown.splitlines())) <= 80


@pytest.mark.parametrize(
    ("arguments", "lesson"),
    [
        (("-e", 0, "-d", 1e-5, "-q", 0.1, "-T", 10), "epsilon = 0.0 must be greater than 0"),
        (("-e", "nan", "-d", 1e-5, "-q", 0.1, "-T", 10), "not finite"),
        (("-e", 1, "-d", 2, "-q", 0.1, "-T", 10), "delta = 2.0"),
        (("-e", 1, "-d", 1e-5, "-q", 0, "-T", 10), "sample_rate = 0"),
        (("-e", 1, "-d", 1e-5, "-T", 10), "sample_rate = None is missing"),
        (("-e", 1, "-d", 1e-5, "-q", 0.1), "steps = None is missing"),
        (("-e", 1, "-d", 1e-5, "-q", 0.1, "--rounds", 3), "steps_per_round = None is missing"),
        (("-e", 1, "-d", 1e-5, "-q", 0.1, "-T", 10, "--rounds", 3, "--steps-per-round", 7), "= 21"),
        (("-e", 1, "-d", 1e-5, "-q", 0.1, "-T", 10, "-s", 1), "is what shall be found"),
        (("-e", 1, "-d", 1e-5, "-q", 0.1, "--solve", "steps"), "noise_multiplier = None is missing"),
        (("-e", 1, "-d", 1e-5, "-q", 0.1, "-T", 10, "--solve", "steps", "-s", 1), "steps = 10 is what shall be found"),
        (("-e", 1, "-d", 1e-5, "-q", 0.1, "--solve", "rounds", "-s", 1), "steps_per_round = None"),
        (("-e", 0.01, "-d", 1e-5, "-q", 0.5, "--solve", "steps", "-s", 1), "single step"),
        (("-e", 1, "-d", 1e-5, "-T", 10, "--sampling", "none", "--solve", "rate", "-s", 1), "contradicts"),
        (("-e", 1, "-d", 1e-5, "-q", 0.1, "-T", 10, "--sampling", "shuffled"), "no amplification"),
        (("-e", 1, "-d", 1e-5, "-q", 0.1, "-T", 10, "--accounting", "magic"), "magic"),
        (("-e", 1, "-d", 1e-5, "-q", 0.1, "-T", 10**13), "1e+12"),
    ],
)
def test_a_question_without_an_answer_is_refused_with_a_reason(arguments: tuple[object, ...], lesson: str) -> None:
    result = invoke("calibrate", *arguments)
    assert result.exit_code == 2
    assert lesson in result.stderr
    assert result.stderr.startswith("error: ")
    assert result.stdout == ""
