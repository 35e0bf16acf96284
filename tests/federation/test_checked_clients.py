"""The self-check on the clipped client sum, with unequal sizes and drop-outs, and on ten sums that are wrong."""

from __future__ import annotations

from typing import Any

import pytest

from federation.client_mutants import MUTANTS, Mutant, claim
from quietsum.federation.checks.clients import CheckedClients, Made
from quietsum.mechanisms.rng import randomness_for_tests
from quietsum.selfcheck import CheckReport, run_selfcheck


@pytest.fixture(autouse=True)
def seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUIETSUM_TEST_SEEDS", "1")


def checked(made: Made | None = None, *, adapts: bool = False, secure: bool = True, rate: float = 0.1) -> CheckReport:
    more: dict[str, Any] = {} if made is None else {"made": made}
    step = CheckedClients(
        claim(adapts=adapts, secure=secure), rate=rate, population=200, rng=randomness_for_tests(5), **more
    )
    return run_selfcheck(step, rng=randomness_for_tests(6), seconds=0.3)


@pytest.mark.parametrize("rate", [0.1, 1.0])
@pytest.mark.parametrize("secure", [True, False], ids=["secure", "fast"])
@pytest.mark.parametrize("adapts", [False, True], ids=["fixed", "adaptive"])
@pytest.mark.some(3)
def test_the_client_sum_is_what_it_claims_to_be(adapts: bool, secure: bool, rate: float) -> None:
    report = checked(adapts=adapts, secure=secure, rate=rate)
    assert report.passed, [(found.test, found.lesson) for found in report.failures]


@pytest.mark.parametrize("adapts", [False, True], ids=["fixed", "adaptive"])
def test_the_control_the_mutants_without_a_mistake_pass_too(adapts: bool) -> None:
    """So it is the mistake that is seen, not the way in which mutants are written."""
    report = checked(Mutant, adapts=adapts, secure=False)
    assert report.passed, [(found.test, found.lesson) for found in report.failures]


@pytest.mark.parametrize("name", sorted(MUTANTS))
@pytest.mark.some(4)
def test_a_wrong_client_sum_is_caught(name: str) -> None:
    made, adapts, accuser = MUTANTS[name]
    report = checked(made, adapts=adapts, secure=False)
    assert accuser in {found.test for found in report.failures}, report.failures
