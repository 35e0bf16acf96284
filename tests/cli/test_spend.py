"""``quietsum spend`` says what a run costs, to people and to programs."""

from __future__ import annotations

import json
from typing import Any

import pytest

from scenes import invoke


def spent(*arguments: object) -> dict[str, Any]:
    result = invoke("spend", *arguments, "--json")
    assert result.exit_code == 0, result.stderr
    values: dict[str, Any] = json.loads(result.stdout)
    return values


ONE_ROUND = ("--noise-multiplier", 1, "--sample-rate", 0.1, "--steps", 100, "--delta", 1e-5)


def test_one_round_of_a_hundred_steps_costs_seven_and_not_a_fraction() -> None:
    values = spent(*ONE_ROUND)
    assert values["epsilon"] == pytest.approx(7.0466, abs=2e-4)
    assert 0 <= values["epsilon"] - values["epsilon_lower"] < 1e-3
    assert values["delta"] == 1e-5
    assert (values["unit"], values["neighbours"], values["observer"]) == ("record", "add-or-remove-one", "recipients")
    assert values["renyi_epsilon"] == pytest.approx(7.90, abs=0.01)
    assert values["renyi_order"] > 1
    assert values["method"].startswith("exact")


def test_ten_rounds_cost_twenty_five() -> None:
    values = spent("--noise-multiplier", 1, "--sample-rate", 0.1, "--steps", 1000, "--delta", 1e-5)
    assert values["epsilon"] == pytest.approx(25.2046, abs=2e-4)


@pytest.mark.parametrize(
    ("arguments", "epsilon"),
    [
        (("-s", 4, "--sampling", "none", "-T", 50), 8.5959),  # closed form of the Gaussian
        (("-s", 1.2, "-q", 0.0032, "-T", 31200), 2.3208),
        (("-s", 1.2, "-q", 0.0032, "-T", 31200, "--sampling", "fixed"), 15.764),  # Poisson at half the noise is 11.976
        (("-s", 2.231, "-q", 0.0032, "-T", 31200, "--group", 3), 3.406),
        (("-s", 2.231, "-q", 0.0032, "-T", 31200, "--group", 10), 14.4),
        (("--mechanism", "randomized-response", "--keep-probability", 0.75, "--sampling", "none", "-T", 1), 1.0986),
        (("--mechanism", "pure", "--step-epsilon", 0.1, "--sampling", "none", "-T", 100), 4.31),  # optimal composition
        (("--mechanism", "laplace", "-s", 2, "--sampling", "none", "-T", 1), 0.5),
        (("--mechanism", "discrete-laplace", "-s", 2, "--sampling", "none", "-T", 1), 0.5),
    ],
)
def test_known_answers_of_other_settings(arguments: tuple[object, ...], epsilon: float) -> None:
    values = spent(*arguments, "--delta", 1e-5)
    assert values["epsilon"] == pytest.approx(epsilon, rel=3e-3)
    assert values["epsilon_lower"] <= values["epsilon"]


def test_the_discrete_gaussian_costs_what_the_gaussian_costs_when_its_grid_is_fine() -> None:
    discrete = spent("--mechanism", "discrete-gaussian", "-s", 5, "--sampling", "none", "-T", 4, "-d", 1e-5)
    plain = spent("-s", 5, "--sampling", "none", "-T", 4, "-d", 1e-5)
    assert discrete["epsilon"] == pytest.approx(plain["epsilon"], rel=0.02)


def test_skellam_noise_is_priced_by_renyi_sampled_or_not_and_nears_the_gaussian() -> None:
    for run in (("--sampling", "none", "-T", 4), ("-q", 0.1, "-T", 100), ("-q", 0.1, "-T", 100, "--group", 2)):
        skellam = spent("--mechanism", "skellam", "-s", 30, *run, "-d", 1e-5)
        plain = spent("-s", 30, *run, "-d", 1e-5)
        assert "Rényi" in skellam["method"]
        assert plain["epsilon"] < skellam["epsilon"] < 1.6 * plain["epsilon"]
    refused = invoke("spend", "--mechanism", "skellam", "-s", 30, "-q", 0.1, "-T", 9, "-d", 1e-5, "--sampling", "fixed")
    assert refused.exit_code == 2
    assert "fixed-size sampling of Skellam has no sound bound" in refused.stderr.replace("\n", " ")


def test_fixed_size_batches_mean_replace_one_unless_zero_out_is_stated() -> None:
    run = ("-s", 2, "-q", 0.01, "-T", 200, "-d", 1e-5, "--sampling", "fixed")
    assert spent(*run)["neighbours"] == "replace-one"
    assert spent(*run, "--neighbours", "zero-out")["neighbours"] == "zero-out"
    refused = invoke("spend", *run, "--neighbours", "add-or-remove-one")
    assert refused.exit_code == 2
    assert "replace" in refused.stderr.lower()


def test_replace_one_costs_what_half_the_noise_costs() -> None:
    replaced = spent("-s", 4, "--sampling", "none", "-T", 10, "-d", 1e-5, "--neighbours", "replace-one")
    halved = spent("-s", 2, "--sampling", "none", "-T", 10, "-d", 1e-5)
    assert replaced["epsilon"] == pytest.approx(halved["epsilon"], rel=1e-9)


def test_shuffled_batches_get_no_amplification_and_a_warning_with_the_attack() -> None:
    values = spent("-s", 1, "-q", 1 / 312, "-T", 31200, "-d", 1e-5, "--sampling", "shuffled")
    unsampled = spent("-s", 1, "--sampling", "none", "-T", 100, "-d", 1e-5)
    assert values["epsilon"] == pytest.approx(unsampled["epsilon"], rel=1e-9)
    assert "18.3" in " ".join(values["warnings"])


def test_a_group_wears_the_unit_person_and_its_size() -> None:
    values = spent("-s", 2, "-q", 0.01, "-T", 500, "-d", 1e-5, "--group", 3)
    assert (values["unit"], values["group_size"]) == ("person", 3)


def test_without_a_tight_group_bound_the_generic_one_is_used_and_named() -> None:
    one = spent("-s", 4, "-q", 0.01, "-T", 200, "-d", 1e-5, "--sampling", "fixed")
    group = spent("-s", 4, "-q", 0.01, "-T", 200, "-d", 1e-5, "--sampling", "fixed", "--group", 2)
    assert "generic group privacy" in group["method"]
    assert group["epsilon"] > 2 * one["epsilon"]
    assert group["renyi_epsilon"] is None


def test_people_read_the_bound_its_unit_its_meaning_and_the_next_command_in_80_columns() -> None:
    result = invoke("spend", *ONE_ROUND)
    assert result.exit_code == 0
    for words in ("7.0466", "1e-05", "one record", "add-or-remove-one", "Rényi", "looser", "a coin: 50 %"):
        assert words in result.stdout
    lines = result.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[-2].startswith("next: quietsum calibrate --epsilon 3")
    assert "\x1b" not in result.stdout


def test_the_next_command_works_when_copied() -> None:
    lines = invoke("spend", *ONE_ROUND).stdout.split("next: quietsum", 1)[1]
    assert invoke(*lines.replace("\\\n", " ").split()).exit_code == 0


def test_an_upper_bound_is_rounded_up_for_people() -> None:
    from quietsum.cli.shared.output import figure

    assert figure(1.00001) == "1.0001"
    assert figure(2.5) == "2.5000"
    assert figure(0.00012341) == "0.0001235"
    assert figure(0) == "0"
    assert figure(float("inf")) == "∞"
