from __future__ import annotations

import math
import random
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from numpy.typing import NDArray
from scipy.special import ive, ndtr

from mechanisms.laws import FITS, MISSES, chi_square_p, ks_p
from quietsum import L1, L2, ExactAccountant, Gaussian, GaussianMechanism, Laplace, LaplaceMechanism, RenyiAccountant
from quietsum.errors import InvalidParameter, QuietsumError
from quietsum.mechanisms import (
    DiscreteGaussianMechanism,
    DiscreteLaplaceMechanism,
    LInf,
    PermuteAndFlip,
    SkellamMechanism,
)
from quietsum.mechanisms.central.additive import _gaussian_grid, _laplace_grid
from quietsum.mechanisms.central.lattice import Lattice, integers, numbers
from quietsum.mechanisms.noise.laplace import DiscreteLaplaceNoise
from quietsum.mechanisms.rng import RandomSource, randomness_for_tests
from quietsum.privacy import ClassicalAccountant

N = 200_000
FACTORS = ((1.0, True), (0.95, False), (1.05, False))


@pytest.fixture
def rng(monkeypatch: pytest.MonkeyPatch) -> RandomSource:
    monkeypatch.setenv("QUIETSUM_TEST_SEEDS", "1")
    return randomness_for_tests(23)


def same_coins() -> RandomSource:
    return randomness_for_tests(5)


# ----------------------------------------------------------------------------------------------- the laws


def laplace(draws: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.where(draws < 0, np.exp(-np.abs(draws)) / 2, 1 - np.exp(-np.abs(draws)) / 2)


@pytest.mark.parametrize(("epsilon", "sensitivity"), [(0.1, 0.3), (5.0, 1e-9)])
def test_laplace_releases_fit_their_law_and_not_that_of_another_scale(
    rng: RandomSource, epsilon: float, sensitivity: float
) -> None:
    mechanism = LaplaceMechanism(epsilon=epsilon, sensitivity=LInf(sensitivity / N))
    draws = mechanism.release(np.full(N, 7 * sensitivity), rng) - 7 * sensitivity
    for factor, fits in FACTORS:
        p = ks_p(draws / (factor * sensitivity / epsilon), laplace)
        assert p > FITS if fits else p < MISSES


@pytest.mark.parametrize(("epsilon", "delta", "sensitivity"), [(0.1, 1e-9, 0.3), (8.0, 1e-3, 1e6)])
def test_gaussian_releases_fit_their_law_and_not_that_of_another_scale(
    rng: RandomSource, epsilon: float, delta: float, sensitivity: float
) -> None:
    mechanism = GaussianMechanism(epsilon=epsilon, delta=delta, sensitivity=L2(sensitivity))
    draws = mechanism.release(np.full(N, 7 * sensitivity), rng) - 7 * sensitivity
    sigma = mechanism.event().noise_multiplier * sensitivity
    for factor, fits in FACTORS:
        p = ks_p(draws / (factor * sigma), ndtr)
        assert p > FITS if fits else p < MISSES


def skellam_pmf(variance: float) -> Callable[[int], float]:
    return lambda k: float(ive(abs(k), variance))


def gaussian_pmf(sigma: float) -> Callable[[int], float]:
    total = math.fsum(
        math.exp(-0.5 * (k / sigma) ** 2) for k in range(-math.ceil(40 * sigma), math.ceil(40 * sigma) + 1)
    )
    return lambda k: math.exp(-0.5 * (k / sigma) ** 2) / total


@pytest.mark.parametrize(
    ("mechanism", "pmf", "scale"),
    [
        (
            DiscreteLaplaceMechanism(epsilon=0.3, sensitivity=1),
            lambda scale: DiscreteLaplaceNoise(scale=scale).pmf,
            1 / 0.3,
        ),
        (DiscreteGaussianMechanism(sigma=2.5, sensitivity=L2(1), dimension=N), gaussian_pmf, 2.5),
        (DiscreteGaussianMechanism(sigma=70, sensitivity=L2(1), dimension=N), gaussian_pmf, 70.0),
        (SkellamMechanism(variance=6.25, dimension=N, sensitivity=1), lambda scale: skellam_pmf(scale**2), 2.5),
        (SkellamMechanism(variance=4900, dimension=N, sensitivity=1), lambda scale: skellam_pmf(scale**2), 70.0),
    ],
    ids=["discrete laplace", "discrete gaussian", "wide discrete gaussian", "skellam", "wide skellam"],
)
def test_releases_of_integers_fit_the_exact_pmf_and_not_that_of_another_scale(
    rng: RandomSource, mechanism: Any, pmf: Callable[[float], Callable[[int], float]], scale: float
) -> None:
    draws = mechanism.release(np.full(N, 1000), rng) - 1000
    for factor, fits in FACTORS:
        p = chi_square_p(draws, pmf(scale * factor))
        assert p > FITS if fits else p < MISSES


# --------------------------------------------------------------------------------- what the claim stands on


def test_events_cost_what_was_asked_for() -> None:
    assert LaplaceMechanism(epsilon=0.5, sensitivity=3).event() == Laplace(noise_multiplier=2.0)
    for epsilon in (1e-3, 0.1, 1 / 3, 1.0, 7.7):
        event = LaplaceMechanism(epsilon=epsilon, sensitivity=0.7).event()
        assert 1 / Fraction(event.noise_multiplier) <= Fraction(epsilon)
        price = ClassicalAccountant(rule="basic").compose(event).epsilon(delta=1e-12).epsilon
        assert price == pytest.approx(epsilon, rel=1e-12) and price <= epsilon
    gaussian = GaussianMechanism(epsilon=1, delta=1e-5, sensitivity=2)
    assert gaussian.event().noise_multiplier == pytest.approx(3.7306, abs=1e-4)
    assert ExactAccountant().compose(gaussian.event()).delta(epsilon=1) + gaussian.failure(10**6) <= 1e-5
    assert GaussianMechanism(noise_multiplier=4, sensitivity=2).event() == Gaussian(noise_multiplier=4)


@pytest.mark.parametrize(("epsilon", "delta"), [(0.1, 1e-6), (1.0, 1e-5), (4.0, 1e-3)])
def test_calibrated_integers_cost_what_was_asked_for_and_hardly_less(epsilon: float, delta: float) -> None:
    one = DiscreteGaussianMechanism(epsilon=epsilon, delta=delta, sensitivity=2)
    assert 0.995 * delta < ExactAccountant().compose(one.event()).delta(epsilon=epsilon) + one.failure() <= delta
    several = DiscreteGaussianMechanism(epsilon=epsilon, delta=delta, sensitivity=L2(3), dimension=50)
    skellam = SkellamMechanism(epsilon=epsilon, delta=delta, sensitivity=L2(3), dimension=50)
    for event in (several.event(), skellam.event()):
        assert 0.99 * epsilon < RenyiAccountant().compose(event).epsilon(delta=delta).epsilon <= epsilon


@given(st.floats(-1e12, 1e12), st.floats(-1e12, 1e12), st.integers(-60, 60))
def test_rounding_moves_two_numbers_apart_by_less_than_a_step(one: float, other: float, exponent: int) -> None:
    lattice = Lattice(exponent)
    apart = abs(Fraction(one) - Fraction(other)) / Fraction(2) ** exponent
    rounded = lattice.round(np.array([one, other]))
    assert abs(int(rounded[0]) - int(rounded[1])) <= math.ceil(apart)
    for value, steps in zip((one, other), rounded, strict=True):
        assert -Fraction(1, 2) < int(steps) - Fraction(value) / Fraction(2) ** exponent + 0 <= Fraction(1, 2)


def test_rounding_to_even_would_move_two_numbers_too_far_apart() -> None:
    """The negative control: 0.5 and 1.5 are one step apart, and two when halves go to the even neighbour."""
    halves = np.array([0.5, 1.5])
    assert np.diff(np.rint(halves)).tolist() == [2]
    assert np.diff(Lattice(0).round(halves)).tolist() == [1]
    assert Lattice(0).round(np.array([0.49999999999999994])).tolist() == [0]  # where floor(x + 0.5) says 1


def moved(one: NDArray[Any], other: NDArray[Any]) -> NDArray[Any]:
    return np.abs(one.astype(object) - other.astype(object))


@pytest.mark.parametrize("size", [1, 2, 37, 1000])
@pytest.mark.parametrize("bound", [1.0, 0.1, 3e-7, 12345.678])
def test_what_neighbours_are_apart_on_the_grid_is_what_the_noise_is_made_for(size: int, bound: float) -> None:
    """Hostile neighbours that each coordinate rounds apart: the noise's scale over the distance is the multiplier."""
    generator = np.random.default_rng(1)
    for trial in range(20):
        weights = generator.dirichlet(np.full(size, 0.3)) if trial else np.full(size, 1 / size)
        lattice, scale = _laplace_grid(L1(bound), 0.5, size)
        base = (generator.integers(-99, 99, size) + 0.5 - 1e-9) * lattice.step  # just below a boundary
        far = moved(lattice.round(base), lattice.round(base + weights * bound * (1 - 1e-9)))
        assert Fraction(scale) >= Fraction(1, 2) * int(far.sum())
        lattice, scale = _laplace_grid(LInf(bound), 0.5, size)
        far = moved(lattice.round(base), lattice.round(base + bound * (1 - 1e-9)))
        assert Fraction(scale) >= Fraction(1, 2) * int(far.sum())
        for norm, shift in ((L2(bound), np.sqrt(weights)), (LInf(bound), np.ones(size)), (L1(bound), weights)):
            lattice, scale = _gaussian_grid(norm, 0.5, size)
            base = (generator.integers(-99, 99, size) + 0.5 - 1e-9) * lattice.step
            far = moved(lattice.round(base), lattice.round(base + shift * bound * (1 - 1e-9)))
            assert Fraction(scale) ** 2 >= Fraction(1, 4) * int((far * far).sum())


def test_noise_is_hardly_more_than_without_a_grid() -> None:
    assert LaplaceMechanism(epsilon=1, sensitivity=1).scale == 1.0
    assert LaplaceMechanism(epsilon=0.1, sensitivity=0.1).scale == pytest.approx(1.0, rel=1e-4)
    for size in (10, 10_000, 1_000_000):
        for norm, width in ((L1(0.3), 0.3), (LInf(0.3), 0.3 * size)):
            lattice, scale = _laplace_grid(norm, 1.0, size)
            assert width <= scale * lattice.step < width * 1.0002
        for norm, width in ((L2(0.3), 0.3), (LInf(0.3), 0.3 * math.sqrt(size))):  # type: ignore[assignment]
            lattice, scale = _gaussian_grid(norm, 1.0, size)
            assert width <= scale * lattice.step < width * 1.0002


@pytest.mark.usefixtures("rng")
def test_with_the_same_coins_neighbours_differ_by_at_most_the_sensitivity() -> None:
    for mechanism in (
        LaplaceMechanism(epsilon=1, sensitivity=0.3),
        GaussianMechanism(epsilon=1, delta=1e-5, sensitivity=0.3),
    ):
        for value in (0.0, -7.77, 1e6 / 3, 1e15, -3e20, 1e300):
            neighbour = value + 0.3
            one, other = (mechanism.release(each, same_coins()) for each in (value, neighbour))
            if abs(value) < 1e6:
                assert abs(one - other) <= 0.3 * (1 + 2.0**-13)
            assert abs(one - other) <= 2 * max(0.3, math.ulp(value))


def test_every_output_is_a_multiple_of_the_step_whatever_the_value(rng: RandomSource) -> None:
    """Naive float noise fails this: then the set of possible outputs tells the value (Mironov 2012)."""
    mechanism = LaplaceMechanism(epsilon=1, sensitivity=1)
    step = _laplace_grid(L1(1.0), 1.0, 1)[0].step
    for value in (0.0, 1 / 3, -1e-30, 123.456, math.pi):
        released = [mechanism.release(value, rng) for _ in range(200)]
        assert all((Fraction(each) / Fraction(step)).denominator == 1 for each in released)
    naive = np.random.default_rng(1).laplace(size=200) + 1 / 3
    assert not all((Fraction(each) / Fraction(step)).denominator == 1 for each in naive.tolist())


def test_integers_beyond_a_floats_digits_keep_their_distance() -> None:
    lattice = Lattice(-14)
    for value in (2**53, 2**53 + 1, 2**62, 2**63 - 1, -(2**63)):
        rounded = lattice.round(np.array([value, value - 1 if value > 0 else value + 1], dtype=np.int64))
        assert abs(int(rounded[0]) - int(rounded[1])) == 2**14
    assert int(Lattice(3).round(np.array([2**70 + 4], dtype=object))[0]) == 2**67 + 1


# ------------------------------------------------------------------------------------------------ what comes in


def test_shapes_and_kinds_come_back(rng: RandomSource) -> None:
    for mechanism in (
        LaplaceMechanism(epsilon=1, sensitivity=1),
        GaussianMechanism(epsilon=1, delta=1e-5, sensitivity=1),
    ):
        assert type(mechanism.release(3, rng)) is float
        released: object = mechanism.release(np.float32(3.5), rng)
        assert type(released) is float
        assert mechanism.release([1, 2], rng).shape == (2,)
        assert mechanism.release(np.zeros((2, 0)), rng).shape == (2, 0)
        assert mechanism.release(np.zeros((2, 3), dtype=np.float32), rng).dtype == np.float64
        assert mechanism.release(-1.7e308, rng) == -1.7e308
        assert math.isfinite(mechanism.release(10**200, rng))
        assert mechanism.release(-(10**400), rng) == -np.finfo(np.float64).max  # clamped to the floats
    for whole in (
        DiscreteLaplaceMechanism(epsilon=1, sensitivity=1),
        DiscreteGaussianMechanism(sigma=3, sensitivity=1),
        SkellamMechanism(variance=9, sensitivity=1),
    ):
        assert type(whole.release(3, rng)) is int
        assert whole.release(np.array([3]), rng).dtype == np.int64
        assert whole.release(10**30, rng) == pytest.approx(2**62, rel=1e-9)  # clamped
        assert whole.release(np.array([2**64 - 1], dtype=np.uint64), rng)[0] == pytest.approx(2**62, rel=1e-9)
    assert DiscreteLaplaceMechanism(epsilon=1, sensitivity=1).release(np.zeros((2, 3), dtype=np.int32), rng).shape == (
        2,
        3,
    )


@pytest.mark.parametrize(
    "bad", [math.nan, math.inf, -math.inf, "3", True, None, 1j, np.array([1.0, np.nan]), [True], [[1], [1, 2]]]
)
def test_what_is_no_finite_number_is_refused_without_being_quoted(bad: object) -> None:
    for mechanism in (
        LaplaceMechanism(epsilon=1, sensitivity=1),
        GaussianMechanism(epsilon=1, delta=1e-5, sensitivity=1),
    ):
        with pytest.raises(InvalidParameter, match="value"):
            mechanism.release(bad)  # type: ignore[call-overload]
    with pytest.raises(InvalidParameter, match=r"whole numbers|rectangle"):
        DiscreteLaplaceMechanism(epsilon=1, sensitivity=1).release(bad)  # type: ignore[call-overload]
    with pytest.raises(InvalidParameter, match="whole numbers"):
        DiscreteLaplaceMechanism(epsilon=1, sensitivity=1).release(2.0)


def test_a_refused_number_is_not_in_the_message() -> None:
    with pytest.raises(InvalidParameter) as error:
        LaplaceMechanism(epsilon=1, sensitivity=1).release(np.array([1234.5, np.nan]))
    assert "1234" not in str(error.value) and "bound every unit" in str(error.value)


@pytest.mark.parametrize("epsilon", [0, -1, math.nan, math.inf, "1", None, True, 1e10, 1e-9, 5e-324])
def test_an_epsilon_outside_its_domain_is_refused(epsilon: Any) -> None:
    for make in (
        lambda: LaplaceMechanism(epsilon=epsilon, sensitivity=1),
        lambda: GaussianMechanism(epsilon=epsilon, delta=1e-12, sensitivity=1),
        lambda: DiscreteLaplaceMechanism(epsilon=epsilon, sensitivity=1),
    ):
        with pytest.raises(QuietsumError, match=r"epsilon|ε"):
            make()


@pytest.mark.parametrize("delta", [0, 1, -1, math.nan, None])
def test_a_delta_outside_its_domain_is_refused(delta: Any) -> None:
    for kind in (GaussianMechanism, DiscreteGaussianMechanism, SkellamMechanism):
        with pytest.raises(InvalidParameter, match="delta"):
            kind(epsilon=1.0, delta=delta, sensitivity=1)


@pytest.mark.parametrize("sensitivity", [0, -1, math.nan, math.inf, "1", None, True, 1e300])
def test_a_sensitivity_outside_its_domain_is_refused(sensitivity: Any) -> None:
    for make in (
        lambda: LaplaceMechanism(epsilon=1, sensitivity=sensitivity),
        lambda: GaussianMechanism(noise_multiplier=1, sensitivity=sensitivity),
        lambda: L2(sensitivity),
        lambda: SkellamMechanism(variance=9, sensitivity=sensitivity),
    ):
        with pytest.raises(InvalidParameter, match="sensitivity"):
            make()


def test_laplace_noise_for_an_l2_bound_is_refused_with_the_reason() -> None:
    for kind in (LaplaceMechanism, DiscreteLaplaceMechanism):
        with pytest.raises(InvalidParameter, match=r"√d times as long.*GaussianMechanism"):
            kind(epsilon=1, sensitivity=L2(1))
    assert GaussianMechanism(noise_multiplier=1, sensitivity=L1(2)).sensitivity == L1(2)  # an L1 bound is an L2 bound


def test_a_target_beside_the_noise_itself_is_refused() -> None:
    with pytest.raises(InvalidParameter, match="beside a target"):
        GaussianMechanism(epsilon=1, delta=1e-5, noise_multiplier=3, sensitivity=1)
    with pytest.raises(InvalidParameter, match="beside a target"):
        DiscreteGaussianMechanism(epsilon=1, delta=1e-5, sigma=3, sensitivity=1)
    with pytest.raises(InvalidParameter, match="beside a target"):
        SkellamMechanism(epsilon=1, variance=3, sensitivity=1)


def test_integer_noise_takes_whole_sensitivities_and_its_own_dimension() -> None:
    for make in (
        lambda: DiscreteLaplaceMechanism(epsilon=1, sensitivity=1.5),
        lambda: DiscreteGaussianMechanism(sigma=3, sensitivity=0.5),
        lambda: SkellamMechanism(variance=9, sensitivity=LInf(0.5), dimension=9),
    ):
        with pytest.raises(InvalidParameter, match="whole"):
            make()
    with pytest.raises(InvalidParameter, match="dimension=5"):
        DiscreteGaussianMechanism(sigma=3, sensitivity=1).release(np.zeros(5, dtype=np.int64))
    three = DiscreteLaplaceMechanism(epsilon=1, sensitivity=LInf(2), dimension=3)
    assert three.event().sensitivity == 6 and three.scale == 6.0
    with pytest.raises(InvalidParameter, match="dimension=5"):  # its noise is for three
        three.release(np.zeros(5, dtype=np.int64))
    event = SkellamMechanism(variance=9, sensitivity=L2(3), dimension=4).event()
    assert (event.l1_sensitivity, event.l2_sensitivity, event.dimension) == (6.0, 3.0, 4)
    assert SkellamMechanism(variance=9, sensitivity=L1(3), dimension=4).event().l1_sensitivity == 3


def test_coins_come_from_the_system_unless_others_are_given() -> None:
    mechanism = LaplaceMechanism(epsilon=1, sensitivity=1)
    assert len({mechanism.release(0.0) for _ in range(20)}) > 15


@pytest.mark.parametrize("generator", [np.random.default_rng(1), random.Random(1), 7, "seed"])
def test_a_generator_that_can_be_replayed_is_refused(generator: Any) -> None:
    for mechanism in (LaplaceMechanism(epsilon=1, sensitivity=1), GaussianMechanism(noise_multiplier=1, sensitivity=1)):
        with pytest.raises(InvalidParameter, match="subtract the noise"):
            mechanism.release(1.0, generator)
    with pytest.raises(InvalidParameter, match="subtract the noise"):
        PermuteAndFlip(epsilon=1, sensitivity=1).release([1, 2], generator)


def test_failures_add_up_and_stay_far_below_any_delta() -> None:
    assert 0 < LaplaceMechanism(epsilon=1, sensitivity=1).failure() < 1e-30
    assert LaplaceMechanism(epsilon=1, sensitivity=1).failure(10**6) < 1e-27
    assert GaussianMechanism(noise_multiplier=1, sensitivity=1).failure(10**6) < 1e-32
    assert DiscreteLaplaceMechanism(epsilon=1, sensitivity=1).failure(1000) == pytest.approx(
        1000 * DiscreteLaplaceMechanism(epsilon=1, sensitivity=1).failure()
    )
    assert (
        DiscreteGaussianMechanism(sigma=3, dimension=7, sensitivity=1).failure()
        == 7 * DiscreteGaussianMechanism(sigma=3, sensitivity=1).failure()
    )
    assert SkellamMechanism(variance=9, dimension=7, sensitivity=1).failure() < 1e-30


def test_the_names_that_a_reader_of_textbooks_imports_are_there() -> None:
    from quietsum import GaussianMechanism, LaplaceMechanism
    from quietsum.privacy import PrivacyAccountant, get_privacy_spent

    assert all((GaussianMechanism, LaplaceMechanism, PrivacyAccountant, get_privacy_spent))


@pytest.mark.parametrize("beside", [-1, 0.5, 2.0**70])
def test_large_integers_of_a_list_stay_as_far_apart_as_they_are_whatever_stands_beside_them(beside: float) -> None:
    """Numpy would make floats of them, and 2⁶³ + 1024 and its neighbour would be 2,048 apart."""
    one, other = 2**63 + 1024, 2**63 + 1025
    assert np.asarray([other, -1])[0] - np.asarray([one, -1])[0] == 2048  # what must not happen
    grid = Lattice(-15)
    for changed in (other, np.uint64(other)):
        moved = grid.round(numbers([changed, beside]))[0] - grid.round(numbers([one, beside]))[0]
        assert moved == grid.steps_of(1.0)
    assert integers([one, -1])[0].tolist() == [2**62, -1]
    released = LaplaceMechanism(epsilon=1.0, sensitivity=1.0).release([one, beside])
    assert released.shape == (2,) and np.isfinite(released).all()


@pytest.mark.parametrize("wild", [[math.nan, 2**63], [math.inf, 1], [1e308, math.inf]])
def test_what_is_not_finite_is_refused_also_among_large_integers(wild: list[float]) -> None:
    with pytest.raises(InvalidParameter, match="NaN or an infinity"):
        LaplaceMechanism(epsilon=1.0, sensitivity=1).release(wild)


def test_no_mechanism_assumes_a_sensitivity() -> None:
    for kind in (LaplaceMechanism, GaussianMechanism, DiscreteLaplaceMechanism, PermuteAndFlip):
        with pytest.raises(TypeError, match="sensitivity"):
            kind(epsilon=1.0)  # type: ignore[call-arg]
