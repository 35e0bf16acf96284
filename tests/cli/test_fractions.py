"""Numbers on the command line may be fractions."""

from __future__ import annotations

import json

import pytest

from quietsum.cli.shared.fractions import number
from scenes import invoke, quietsum

CALIBRATE = ("calibrate", "-e", 8, "-d", 1e-5, "-T", 1000, "--json")


def solved(*words: object) -> object:
    return json.loads(quietsum(*words).stdout)


def test_a_fraction_is_the_number_that_it_stands_for() -> None:
    assert solved(*CALIBRATE, "-q", "256/60000") == solved(*CALIBRATE, "-q", repr(256 / 60000))
    assert solved(*CALIBRATE, "-q", "256/60000") != solved(*CALIBRATE, "-q", "256/6000")


def test_every_option_that_takes_a_number_takes_a_fraction_below_groups_too() -> None:
    halves = solved("calibrate", "-e", "16/2", "-d", "1/100000", "-T", 1000, "-q", "1/100", "--json")
    assert halves == solved("calibrate", "-e", 8, "-d", 1e-5, "-T", 1000, "-q", 0.01, "--json")
    result = invoke("ledger", "raise", "--epsilon", "1/0")
    assert result.exit_code == 2 and "divides by zero" in result.stderr


@pytest.mark.parametrize(("text", "told"), [
    ("1/0", "divides by zero"), ("1/2/3", "is no fraction"), ("/", "is no fraction"), ("a/b", "write it as 256/60000"),
    ("256/60000/", "is no fraction"), ("x", "is not a valid float"),
])  # fmt: skip
def test_what_is_no_fraction_is_told_how_to_write_one(text: str, told: str) -> None:
    result = invoke(*CALIBRATE, "-q", text)
    assert result.exit_code == 2 and told in " ".join(result.stderr.split())


def test_a_rate_that_is_missing_is_told_its_option() -> None:
    result = invoke(*CALIBRATE)
    assert result.exit_code == 2 and "pass --sample-rate, as in -q 256/60000" in result.stderr


def test_a_whole_number_is_no_fraction() -> None:
    assert invoke("calibrate", "-e", 8, "-d", 1e-5, "-q", 0.1, "-T", "1000/2").exit_code == 2
    assert number("-3") == -3.0
