"""Shares of noise: what is added where, that h of them are worth what is charged, and that the norm is what it says."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray
from scipy import stats

from quietsum.errors import InvalidParameter
from quietsum.mechanisms.distributed import KINDS, DistributedNoise
from quietsum.mechanisms.rng import RandomSource, randomness_for_tests, system_randomness
from quietsum.privacy.events import DiscreteGaussianSum, Skellam
from quietsum.privacy.renyi.accountant import RenyiAccountant


@pytest.fixture
def rng(monkeypatch: pytest.MonkeyPatch) -> RandomSource:
    monkeypatch.setenv("QUIETSUM_TEST_SEEDS", "1")
    return randomness_for_tests(15)


def made(**changes: Any) -> DistributedNoise:
    values: dict[str, Any] = {
        "max_norm": 2.0,
        "noise_multiplier": 0.7,
        "honest": 4,
        "dimension": 50,
        "unit": "client",
    } | changes
    if values["unit"] == "record":
        values.setdefault("ball", 12.0)
    return DistributedNoise(**values)


def floats(size: int) -> Any:
    anything = st.floats(allow_nan=True, allow_infinity=True, width=64)
    return hnp.arrays(np.float64, size, elements=st.one_of(st.floats(-10, 10), anything))


# ------------------------------------------------------------------------------------------------ the norm


@given(vector=floats(7), steps=st.sampled_from([1, 3, 64, 4096]), norm=st.sampled_from([1e-6, 1.0, 3e40]))
@settings(max_examples=150, deadline=None)
def test_a_clients_integers_are_within_the_norm_that_is_charged_whatever_the_vector(
    vector: NDArray[np.float64], steps: int, norm: float
) -> None:
    noise = made(dimension=7, steps=steps, max_norm=norm, noise_multiplier=100.0)
    whole = noise.round_to_grid(vector, system_randomness())
    assert sum(int(k) ** 2 for k in whole) <= noise.l2_sensitivity**2
    assert sum(abs(int(k)) for k in whole) <= noise.l1_sensitivity
    assert np.abs(noise.share(vector, system_randomness())).max() <= noise.largest


def test_a_long_client_is_rounded_right_on_average_and_its_norm_is_met(rng: RandomSource) -> None:
    noise = made(dimension=400, steps=40, noise_multiplier=10.0)
    vector = np.full(400, 2.0 / 20)
    rounds = np.array([noise.round_to_grid(vector, rng) for _ in range(2000)])
    assert (rounds**2).sum(axis=1).max() <= noise.l2_sensitivity**2
    assert abs(rounds.mean() - 2.0) < 1e-9 + 0.01  # C s / √d = 2
    fraction = np.array([noise.round_to_grid(vector * 0.93, rng) for _ in range(2000)])
    assert abs(fraction.mean() - 1.86) < 5 * 0.35 / math.sqrt(fraction.size)


def test_plain_rounding_would_not_meet_the_norm() -> None:
    """The control: half a step more in every coordinate is beyond Δ₂ on a coarse grid."""
    noise = made(dimension=10_000, steps=200, noise_multiplier=10.0)
    up = np.ceil(np.full(10_000, 2.0 / 100 * noise.scale) + 0.5)
    assert (up**2).sum() > noise.l2_sensitivity**2
    assert noise.l2_sensitivity < 200 + 100 * 0.9  # and not the plain C s + √d


def test_a_rounding_that_is_always_too_long_ends_toward_zero() -> None:
    class High:
        for_tests = False

        def uniforms(self, count: int) -> NDArray[np.float64]:
            return np.zeros(count)  # every coordinate rounds up

    noise = made(dimension=10_000, steps=200, noise_multiplier=10.0)
    whole = noise._conditionally(noise.bound(np.full(10_000, 1.0)), High())  # type: ignore[arg-type]
    assert 0 < int((whole**2).sum()) <= noise.l2_sensitivity**2


@given(
    one=hnp.arrays(np.float64, 9, elements=st.floats(-30, 30)),
    change=hnp.arrays(np.float64, 9, elements=st.floats(-3, 3)),
    steps=st.sampled_from([1, 5, 1000, 2**20]),
)
@settings(max_examples=300, deadline=None)
def test_a_record_moves_the_integers_by_no_more_than_its_sensitivity(
    one: NDArray[np.float64], change: NDArray[np.float64], steps: int
) -> None:
    noise = made(dimension=9, steps=steps, unit="record", noise_multiplier=100.0)
    change = change * min(1.0, 2.0 / max(float(np.linalg.norm(change)), 1e-300)) * (1 - 1e-12)
    moved = noise.round_to_grid(one + change, system_randomness()) - noise.round_to_grid(one, system_randomness())
    assert math.sqrt(sum(int(k) ** 2 for k in moved)) <= noise.l2_sensitivity * (1 + 1e-9)
    assert sum(abs(int(k)) for k in moved) <= noise.l1_sensitivity * (1 + 1e-9)


def test_rounding_a_sum_does_move_it_farther_than_the_clip_norm() -> None:
    """The control: without √d the sensitivity would be too small."""
    noise = made(dimension=9, steps=4, unit="record", noise_multiplier=100.0)
    step = 1 / noise.scale
    one, other = np.full(9, 0.49 * step), np.full(9, 0.51 * step + 2.0 / 3 * 0.99)
    moved = noise.round_to_grid(other, system_randomness()) - noise.round_to_grid(one, system_randomness())
    assert np.linalg.norm(moved) > 4 + 1
    assert np.linalg.norm(moved) <= noise.l2_sensitivity


@pytest.mark.parametrize("unit", ["client", "record"])
def test_a_broken_vector_sends_noise_alone(unit: str, rng: RandomSource) -> None:
    noise = made(unit=unit)
    for broken in (np.nan, np.inf, -np.inf):
        vector = np.ones(50)
        vector[7] = broken
        assert not noise.round_to_grid(vector, rng).any()
        assert noise.share(vector, rng).any()


# ------------------------------------------------------------------------------------------------ the noise


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("unit", ["client", "record"])
@pytest.mark.parametrize("dropped", [0.0, 0.1, 0.3])
def test_the_noise_of_the_sum_has_the_claimed_variance_whoever_drops_out(
    kind: Any, unit: str, dropped: float, rng: RandomSource
) -> None:
    """Ten parties of which three may go and one may collude: h = 6."""
    parties, honest, size = 10, 6, 20_000
    noise = made(kind=kind, unit=unit, honest=honest, dimension=size, max_norm=3.0, parties=parties)
    survivors = parties - round(parties * dropped)
    vector = np.zeros(size)
    total = noise.decode(np.sum([noise.share(vector, rng) for _ in range(survivors)], axis=0))
    claimed = noise.deviation(survivors)
    assert claimed == pytest.approx(0.7 * 3.0 * math.sqrt(survivors / honest), rel=1e-12)
    assert abs(total.var() / claimed**2 - 1) < 5 * math.sqrt(2 / size)
    assert total.var() > (0.7 * 3.0) ** 2 * (1 - 5 * math.sqrt(2 / size))  # never below the floor's
    assert stats.kstest(total / claimed, "norm").pvalue > 1e-3


@pytest.mark.parametrize("kind", KINDS)
def test_shares_calibrated_to_all_who_enrol_are_caught(kind: Any, rng: RandomSource) -> None:
    """The mutant: h = n. What honest survivors bring is then below what the event of the right floor charges."""
    parties, honest, size = 10, 6, 20_000
    right = made(kind=kind, honest=honest, dimension=size)
    mutant = dataclasses.replace(right, honest=parties)
    total = mutant.decode(np.sum([mutant.share(np.zeros(size), rng) for _ in range(honest)], axis=0))
    assert total.var() < right.deviation(honest) ** 2 * (1 - 20 * math.sqrt(2 / size))


@pytest.mark.parametrize("kind", KINDS)
def test_the_charge_is_a_recomputation_from_the_floor(kind: Any) -> None:
    noise = made(kind=kind, honest=7, noise_multiplier=1.3, dimension=1000)
    event = noise.event()
    assert noise.steps is not None
    if isinstance(event, Skellam):
        assert event.variance <= 7 * noise.share_variance
        assert event.variance == pytest.approx((1.3 * noise.steps) ** 2, rel=1e-14)
        assert (event.l1_sensitivity, event.l2_sensitivity) == (noise.l1_sensitivity, noise.l2_sensitivity)
    else:
        expected = DiscreteGaussianSum(
            sigma=1.3 * noise.steps / math.sqrt(7), shares=7, sensitivity=noise.l2_sensitivity, dimension=1000
        )
        assert event.sigma == pytest.approx(expected.sigma, rel=1e-14)
        assert dataclasses.replace(event, sigma=expected.sigma) == expected
    paid = RenyiAccountant().compose(event).epsilon(delta=1e-5).epsilon
    gaussian = RenyiAccountant().compose_gaussian(noise_multiplier=1.3).epsilon(delta=1e-5).epsilon
    assert gaussian <= paid < 1.01 * gaussian
    for survivors in (7, 8, 20):  # the event knows nothing of who came
        assert dataclasses.replace(noise, parties=survivors).event() == event


def test_shares_of_two_parties_and_of_two_rounds_are_unrelated() -> None:
    noise = made(dimension=5000)
    shares = [noise.share(np.zeros(5000), system_randomness()).astype(float) for _ in range(4)]
    for one, other in itertools.combinations(shares, 2):
        assert abs(np.corrcoef(one, other)[0, 1]) < 6 / math.sqrt(5000)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("multiplier", "steps"), [(0.001, 100), (0.5, 8), (3.0, 1024), (1.0, 2**25)])
def test_shares_of_every_width_sum_to_their_variance(kind: Any, multiplier: float, steps: int) -> None:
    noise = made(kind=kind, noise_multiplier=multiplier, steps=steps, dimension=40_000, honest=3)
    rng = system_randomness()
    draws = noise.share(np.zeros(40_000), rng)
    kurtosis = 2 + 1 / max(noise.share_variance, 1e-9)
    assert abs(draws.var() / noise.share_variance - 1) < 6 * math.sqrt(kurtosis / 40_000) or multiplier == 0.001
    assert noise.failure(40_000) < 1e-25


# ------------------------------------------------------------------------------------------------- the grid


def test_the_grid_is_fine_enough_that_rounding_costs_a_thousandth() -> None:
    for dimension in (1, 100, 31_000, 10**6):
        noise = made(unit="record", dimension=dimension)
        assert noise.steps is not None
        assert math.sqrt(dimension) <= 1e-3 * noise.steps
        assert noise.l2_sensitivity <= noise.steps * 1.0011
        assert noise.l1_sensitivity <= math.sqrt(dimension) * noise.steps * 1.0011 + 1


def test_the_margin_of_a_float_sum_is_part_of_the_sensitivity() -> None:
    plain, wide = made(unit="record"), made(unit="record", margin=0.01)
    assert wide.steps is not None
    assert wide.l2_sensitivity - plain.l2_sensitivity == pytest.approx(0.01 * wide.steps, rel=1e-6)


def test_many_parties_get_a_coarser_grid_and_never_wrap_around() -> None:
    few = made(unit="record", dimension=10**6, ball=2.0 * 200, parties=5)
    many = made(unit="record", dimension=10**6, ball=2.0 * 200, parties=100, honest=80)
    assert few.steps is not None and many.steps is not None
    assert many.steps < few.steps == 2**20
    for noise, parties in ((few, 5), (many, 100)):
        assert parties * noise.largest < 2**31
    with pytest.raises(InvalidParameter, match="leaves no room for the sum of 5000 parties"):
        made(unit="record", dimension=10**6, ball=2.0 * 200, parties=5000)


@given(
    parties=st.integers(1, 2000),
    dimension=st.sampled_from([1, 10, 10_000, 10**6]),
    multiplier=st.floats(1e-4, 100.0),
    ball=st.floats(1.0, 500.0),
    kind=st.sampled_from(KINDS),
)
@settings(max_examples=150, deadline=None)
def test_whatever_is_accepted_never_wraps_around(
    parties: int, dimension: int, multiplier: float, ball: float, kind: Any
) -> None:
    try:
        noise = DistributedNoise(
            max_norm=3.0, noise_multiplier=multiplier, honest=max(1, parties - 1), dimension=dimension, unit="record",
            ball=3.0 * ball, parties=parties, kind=kind,
        )  # fmt: skip
    except InvalidParameter as error:
        assert error.parameter == "bits"
        return
    assert parties * noise.largest < 2**31


def test_a_grid_that_wraps_around_is_refused() -> None:
    with pytest.raises(InvalidParameter, match="wrap around"):
        made(steps=2**25, parties=100, honest=90, noise_multiplier=1.0)
    assert made(steps=2**15, parties=100, honest=90, noise_multiplier=1.0).steps == 2**15


@pytest.mark.parametrize("bits", [16, 20, 24])
def test_small_rings_get_a_coarser_grid_whose_price_is_charged(bits: int) -> None:
    noise = made(dimension=2**20, bits=bits, parties=100, honest=80, noise_multiplier=1.0)
    assert noise.steps is not None
    assert 2 * 1024 <= noise.steps <= 2**bits
    assert noise.steps < noise.l2_sensitivity < 1.05 * noise.steps


def test_decoding_undoes_the_scale() -> None:
    noise = made(dimension=3, noise_multiplier=1e-6, max_norm=5.0)
    vector = np.array([1.0, -2.0, 0.5])
    total = np.sum([noise.round_to_grid(vector, system_randomness()) for _ in range(3)], axis=0)
    assert np.allclose(noise.decode(total), 3 * vector, atol=3 / noise.scale)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"max_norm": 0.0}, "max_norm"), ({"max_norm": math.inf}, "max_norm"), ({"max_norm": 1e200}, "max_norm"),
        ({"noise_multiplier": 0.0}, "noise_multiplier"), ({"noise_multiplier": math.nan}, "noise_multiplier"),
        ({"honest": 0}, "honest"), ({"honest": 1.5}, "honest"), ({"honest": 6, "parties": 5}, "honest"),
        ({"dimension": 0}, "dimension"), ({"dimension": 10**10}, "dimension"), ({"unit": "site"}, "unit"),
        ({"kind": "gaussian"}, "kind"), ({"bits": 31}, "bits"), ({"unit": "record", "ball": None}, "ball"),
        ({"unit": "record", "ball": 1.0}, "ball"), ({"ball": 3.0}, "ball"), ({"margin": -0.1}, "margin"),
        ({"steps": 0}, "steps"), ({"steps": 2**26}, "steps"), ({"noise_multiplier": 1e30}, "variance"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused_by_name(changes: dict[str, Any], word: str) -> None:
    with pytest.raises(InvalidParameter, match=word):
        made(**changes)


def test_vectors_of_another_shape_or_kind_are_refused() -> None:
    noise = made()
    for wrong in (np.zeros(49), np.zeros((1, 50)), np.zeros(50, dtype=complex), np.array(["a"] * 50)):
        with pytest.raises(InvalidParameter, match="vector"):
            noise.share(wrong, system_randomness())
