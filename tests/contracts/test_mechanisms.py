"""Every central mechanism keeps the mechanisms' contract, and the contract catches mechanisms that do not."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from quietsum import L1, L2, ExponentialMechanism, Gaussian, GaussianMechanism, Laplace, LaplaceMechanism
from quietsum.contracts import MechanismContract
from quietsum.errors import InvalidParameter
from quietsum.mechanisms import (
    DiscreteGaussianMechanism,
    DiscreteLaplaceMechanism,
    LInf,
    PermuteAndFlip,
    ReportNoisyMax,
    SkellamMechanism,
)
from quietsum.mechanisms.rng import RandomSource, system_randomness
from quietsum.privacy import PureDP
from quietsum.privacy.events import PrivacyEvent

PROMISES = sorted(name for name in dir(MechanismContract) if name.startswith("test_"))
TWELVE = np.zeros(12)
ODD = {"value": 5.1, "neighbour": 5.4}
CHOICE = {"value": [0, 1, 2], "neighbour": [1, 0, 1], "numbers": False}
CASES: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "laplace": (lambda: LaplaceMechanism(epsilon=1, sensitivity=1), {}),
    "laplace, odd sensitivity": (lambda: LaplaceMechanism(epsilon=0.7, sensitivity=0.3), ODD),
    "laplace, vector": (
        lambda: LaplaceMechanism(epsilon=1, sensitivity=L1(1)), {"value": TWELVE, "neighbour": TWELVE + 1 / 12},
    ),
    "laplace, all coordinates": (
        lambda: LaplaceMechanism(epsilon=1, sensitivity=LInf(1)), {"value": TWELVE, "neighbour": TWELVE + 1},
    ),
    "gaussian": (lambda: GaussianMechanism(noise_multiplier=1, sensitivity=1), {}),
    "gaussian, vector": (
        lambda: GaussianMechanism(noise_multiplier=1, sensitivity=L2(1)),
        {"value": TWELVE, "neighbour": TWELVE + 1 / math.sqrt(12)},
    ),
    "gaussian, all coordinates": (
        lambda: GaussianMechanism(noise_multiplier=1, sensitivity=LInf(1)), {"value": TWELVE, "neighbour": TWELVE + 1},
    ),
    "exponential": (lambda: ExponentialMechanism(epsilon=1, sensitivity=1), CHOICE),
    "permute and flip": (lambda: PermuteAndFlip(epsilon=1, sensitivity=1), CHOICE),
    "report noisy max": (lambda: ReportNoisyMax(epsilon=1, sensitivity=1), CHOICE),
}  # fmt: skip
INTEGERS: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "discrete laplace": (lambda: DiscreteLaplaceMechanism(epsilon=1, sensitivity=1), {"value": 0, "neighbour": 1}),
    "discrete gaussian": (lambda: DiscreteGaussianMechanism(sigma=2, sensitivity=1), {"value": 0, "neighbour": 1}),
    "skellam": (lambda: SkellamMechanism(variance=4, sensitivity=1), {"value": 0, "neighbour": 1}),
}
CASES |= INTEGERS


def contract_of(make: Callable[[], Any], **fields: Any) -> MechanismContract:
    return type("Contract", (MechanismContract,), {"make": lambda self: make(), **fields})()


@pytest.mark.parametrize("promise", PROMISES)
@pytest.mark.parametrize("case", sorted(CASES))
def test_our_mechanisms_keep_the_contract(case: str, promise: str) -> None:
    make, fields = CASES[case]
    getattr(contract_of(make, **fields), promise)()


# -------------------------------------------------------------------------------------------------- broken mechanisms


class Broken:
    """A good mechanism but for one thing."""

    def __init__(self, **faults: Any) -> None:
        self.faults = faults
        self.made = GaussianMechanism(noise_multiplier=faults.get("real", 1.0), sensitivity=faults.get("for_", L2(1)))
        self.last = 1.0

    def release(self, value: Any, rng: RandomSource | None = None) -> Any:
        if "quotes" in self.faults and not np.isfinite(value).all():
            raise InvalidParameter("value", value, "is not finite")
        if "passes" in self.faults and not np.isfinite(value).all():
            return math.nan
        self.last = 1.0 + float(np.sum(value))
        if "floats" in self.faults:
            if not np.isfinite(value).all():
                raise InvalidParameter("value", "NaN", "is not finite")
            return value + float((rng or system_randomness()).normals(1)[0])
        if "numpys" in self.faults:
            return self.made.release(value + np.random.normal() * 1e-3, rng)
        if "constant" in self.faults:
            return value
        return self.made.release(value, rng)

    def event(self) -> PrivacyEvent:
        if "follows" in self.faults:
            return Gaussian(noise_multiplier=self.last)
        return self.faults.get("says", Gaussian(noise_multiplier=1.0))


BROKEN: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "noise at two thirds": ({"real": 2 / 3}, {}, "test_the_event_holds_for_the_two_neighbours"),
    "half the sensitivity": ({"for_": L2(0.5)}, {}, "test_the_event_holds_for_the_two_neighbours"),
    "an event of more noise": (
        {"says": Gaussian(noise_multiplier=2.0)}, {}, "test_the_event_holds_for_the_two_neighbours"),
    "laplace for an l2 bound": (
        {"says": Laplace(noise_multiplier=1.0), "real": 1.0},
        {"value": np.zeros(100), "neighbour": np.full(100, 0.5)}, "test_the_event_holds_for_the_two_neighbours"),
    "no noise": ({"constant": True}, {}, "test_all_chance_comes_from_the_coins_it_is_given"),
    "an event that follows the data": (
        {"follows": True}, {}, "test_the_event_does_not_depend_on_what_was_released"),
    "float noise": ({"floats": True}, {"value": 1 / 3, "neighbour": 4 / 3},
                    "test_the_set_of_outputs_does_not_tell_the_value"),
    "numpy's generator": ({"numpys": True}, {}, "test_all_chance_comes_from_the_coins_it_is_given"),
    "quotes what it refuses": ({"quotes": True}, {"value": TWELVE, "neighbour": TWELVE + 1},
                               "test_what_is_not_finite_is_refused_and_not_quoted"),
    "releases NaN": ({"passes": True}, {}, "test_what_is_not_finite_is_refused_and_not_quoted"),
    "no event": ({"says": "one epsilon"}, {}, "test_it_states_an_event_that_travels_and_is_priced"),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(BROKEN))
def test_the_contract_catches(name: str) -> None:
    faults, fields, promise = BROKEN[name]
    with pytest.raises(AssertionError):
        getattr(contract_of(lambda: Broken(**faults), **fields), promise)()


def test_the_contract_catches_a_choice_that_forgets_the_two() -> None:
    class Careless:
        def release(self, scores: Any, rng: RandomSource | None = None) -> int:
            return ExponentialMechanism(epsilon=2.0, sensitivity=1).release(scores, rng)

        def event(self) -> PrivacyEvent:
            return PureDP(epsilon=1.0)

    fields = {"value": [-2, 0], "neighbour": [-1, -1], "numbers": False}
    contract_of(
        lambda: ExponentialMechanism(epsilon=2.0, sensitivity=1), **fields
    ).test_the_event_holds_for_the_two_neighbours()
    with pytest.raises(AssertionError, match="the event says"):
        contract_of(Careless, **fields).test_the_event_holds_for_the_two_neighbours()


def test_the_contract_catches_a_generator_that_can_be_seeded() -> None:
    class Seeded:
        def release(self, value: float, rng: RandomSource | None = None) -> float:
            return value + float(np.random.normal())

        def event(self) -> PrivacyEvent:
            return Gaussian(noise_multiplier=1.0)

    with pytest.raises(AssertionError, match="seed"):
        contract_of(Seeded).test_without_coins_it_takes_the_systems()
