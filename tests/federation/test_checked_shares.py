"""The self-check on the sum of parties' noise shares, and on shares that somebody got wrong."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from quietsum.federation.checks.shares import CheckedShares, Share
from quietsum.mechanisms.distributed import DistributedNoise
from quietsum.mechanisms.rng import RandomSource, randomness_for_tests
from quietsum.selfcheck import CheckReport, run_selfcheck

PARTIES, HONEST, DIMENSION = 7, 4, 240


@pytest.fixture(autouse=True)
def seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUIETSUM_TEST_SEEDS", "1")


def claim(unit: str, kind: Any = "skellam") -> DistributedNoise:
    return DistributedNoise(
        max_norm=0.8, noise_multiplier=1.5, honest=HONEST, dimension=DIMENSION, unit=unit, kind=kind,
        ball=None if unit == "client" else 20.0, parties=PARTIES,
    )  # fmt: skip


def checked(unit: str, share: Share | None = None, kind: Any = "skellam", **options: Any) -> CheckReport:
    more: dict[str, Any] = {} if share is None else {"share": share}
    step = CheckedShares(
        claim(unit, kind), rate=0.1 if unit == "record" else 1.0, population=200 if unit == "record" else HONEST + 2,
        rng=randomness_for_tests(8), **more,
    )  # fmt: skip
    return run_selfcheck(step, rng=randomness_for_tests(9), seconds=0.3, **options)


@pytest.mark.parametrize("kind", ["skellam", "discrete-gaussian"])
@pytest.mark.parametrize("unit", ["record", "client"])
@pytest.mark.some(2)
def test_a_sum_of_shares_is_what_it_claims_to_be(unit: str, kind: Any) -> None:
    report = checked(unit, kind=kind)
    assert report.passed, [(found.test, found.lesson) for found in report.failures]


def calibrated_to_all(claim: DistributedNoise, party: int, vector: Any, rng: RandomSource) -> NDArray[np.int64]:
    return dataclasses.replace(claim, honest=PARTIES).share(vector, rng)


def one_without(claim: DistributedNoise, party: int, vector: Any, rng: RandomSource) -> NDArray[np.int64]:
    return claim.share(vector, rng) if party else claim.round_to_grid(vector, rng)


SEEDS: list[int] = []


def one_noise_for_all(claim: DistributedNoise, party: int, vector: Any, rng: RandomSource) -> NDArray[np.int64]:
    """All parties seed their generators alike, so h shares are one share h times."""
    if party == 0:
        SEEDS.append(int(rng.words(1)[0]))
    return claim.round_to_grid(vector, rng) + claim._noise.sample(claim.dimension, randomness_for_tests(SEEDS[-1]))


def the_same_every_round(claim: DistributedNoise, party: int, vector: Any, rng: RandomSource) -> NDArray[np.int64]:
    return claim.round_to_grid(vector, rng) + claim._noise.sample(claim.dimension, randomness_for_tests(party))


def one_coordinate_bare(claim: DistributedNoise, party: int, vector: Any, rng: RandomSource) -> NDArray[np.int64]:
    share = claim.share(vector, rng)
    share[-1] = claim.round_to_grid(vector, rng)[-1]
    return share


def no_bound(claim: DistributedNoise, party: int, vector: Any, rng: RandomSource) -> NDArray[np.int64]:
    """The vector goes onto the grid as it is, and wraps around or not."""
    return np.rint(np.asarray(vector) * claim.scale * 3).astype(np.int64) + claim._noise.sample(claim.dimension, rng)


@pytest.mark.parametrize("unit", ["record", "client"])
@pytest.mark.parametrize(
    "share", [calibrated_to_all, one_without, one_noise_for_all, the_same_every_round, one_coordinate_bare, no_bound]
)
@pytest.mark.some(4)
def test_shares_that_are_wrong_are_caught(unit: str, share: Share) -> None:
    report = checked(unit, share, only=("T3",))
    assert "T3" in report.caught_by, report.caught_by


def test_an_event_that_says_more_noise_than_the_floor_has_is_caught() -> None:
    class Boasting:
        """The event of all who enrolled, beside the floor's noise."""

        def __init__(self, step: CheckedShares) -> None:
            self._step = step

        def __getattr__(self, name: str) -> Any:
            return getattr(self._step, name)

        def event(self) -> Any:
            event: Any = claim("client").event()
            return dataclasses.replace(event, variance=event.variance * 7 / 4)

    honest = CheckedShares(claim("client"), rate=1.0, population=5, rng=randomness_for_tests(8))
    report = run_selfcheck(Boasting(honest), rng=randomness_for_tests(9), only=("T8",))
    assert report.caught_by == ("T8",)
    assert run_selfcheck(honest, rng=randomness_for_tests(9), only=("T8",)).passed
