"""Is every event true? The exact hockey-stick divergence of the worst neighbours against δ(ε) of the event.

The laws are summed in float64 over every integer that has a chance above 1e-30, so that sums are right to 1e-12. For a
mechanism that is priced by its own pair the divergence must also be at least half of what is claimed: a test that
nothing could fail would show nothing.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import ive, ndtr

from mechanisms.central.laws import exponential_law, noisy_max_law, permute_and_flip_law
from quietsum import L1, ExactAccountant, ExponentialMechanism, GaussianMechanism, LaplaceMechanism, RenyiAccountant
from quietsum.mechanisms import (
    DiscreteGaussianMechanism,
    DiscreteLaplaceMechanism,
    PermuteAndFlip,
    ReportNoisyMax,
    SkellamMechanism,
)
from quietsum.mechanisms.central.additive import _gaussian_grid, _laplace_grid
from quietsum.mechanisms.central.lattice import Lattice
from quietsum.mechanisms.central.sensitivity import L2
from quietsum.privacy import ClassicalAccountant
from quietsum.privacy.events import PrivacyEvent

Masses = NDArray[np.float64]
ROUNDING = 1e-11


def hockey_stick(p: Masses, q: Masses, epsilon: float) -> float:
    """sup over sets of P(S) − e^ε Q(S)."""
    return float(np.maximum(p - math.exp(epsilon) * q, 0.0).sum())


def neighbours(lattice: Lattice, sensitivity: float, reach: float) -> tuple[NDArray[np.int64], int, int]:
    """The integers in reach, and where two numbers lie that are ``sensitivity`` apart and round as far as can be."""
    value = (0.5 - 1e-9) * lattice.step  # just below a boundary: its neighbour crosses one more
    one, other = (int(lattice.round(np.array([each]))[0]) for each in (value, value + sensitivity))
    return np.arange(math.floor(one - reach), math.ceil(other + reach) + 1), one, other


def laplace_masses(at: NDArray[np.int64], scale: float) -> Masses:
    return np.where(
        at == 0, -math.expm1(-0.5 / scale), np.exp(-np.abs(at) / scale) * math.sinh(0.5 / scale)
    )  # round(scale · Laplace)


def normal_masses(at: NDArray[np.int64], scale: float) -> Masses:
    low, high = (np.abs(at) - 0.5) / scale, (np.abs(at) + 0.5) / scale
    return np.asarray(np.where(at == 0, ndtr(0.5 / scale) - ndtr(-0.5 / scale), ndtr(-low) - ndtr(-high)))


def discrete_laplace_masses(at: NDArray[np.int64], scale: float) -> Masses:
    return np.asarray(math.tanh(0.5 / scale) * np.exp(-np.abs(at) / scale))


def discrete_gaussian_masses(at: NDArray[np.int64], sigma: float) -> Masses:
    weights = np.exp(-0.5 * (at / sigma) ** 2)
    around = np.arange(-math.ceil(40 * sigma), math.ceil(40 * sigma) + 1)
    return np.asarray(weights / np.exp(-0.5 * (around / sigma) ** 2).sum())


def skellam_masses(at: NDArray[np.int64], variance: float) -> Masses:
    return np.asarray(ive(np.abs(at).astype(np.float64), variance))


def claimed(event: PrivacyEvent, epsilon: float) -> float:
    return ExactAccountant().compose(event).delta(epsilon=epsilon)


@pytest.mark.parametrize(("epsilon", "sensitivity"), [(0.4, 1.0), (1.0, 0.3), (3.0, 17.0)])
def test_the_laplace_mechanisms_event_holds_and_is_its_own(epsilon: float, sensitivity: float) -> None:
    mechanism = LaplaceMechanism(epsilon=epsilon, sensitivity=sensitivity)
    lattice, scale = _laplace_grid(L1(sensitivity), mechanism.noise_multiplier, 1)
    at, one, other = neighbours(lattice, sensitivity, 45 * scale)
    p, q = laplace_masses(at - one, scale), laplace_masses(at - other, scale)
    assert p.sum() == pytest.approx(1, abs=1e-11)
    for share in (0.0, 0.3, 0.8):
        exact = max(hockey_stick(p, q, share * epsilon), hockey_stick(q, p, share * epsilon))
        closed = -math.expm1((share - 1) * epsilon / 2)  # the ideal mechanism's
        assert 0.999 * closed < exact <= closed + ROUNDING
        assert 0.5 * claimed(mechanism.event(), share * epsilon) <= exact
        assert exact <= claimed(mechanism.event(), share * epsilon) + ROUNDING
    assert max(hockey_stick(p, q, epsilon), hockey_stick(q, p, epsilon)) <= mechanism.failure() + ROUNDING


def test_laplace_noise_of_nine_tenths_of_its_scale_is_caught() -> None:
    mechanism = LaplaceMechanism(epsilon=1.0, sensitivity=1.0)
    lattice, scale = _laplace_grid(L1(1.0), mechanism.noise_multiplier, 1)
    at, one, other = neighbours(lattice, 1.0, 45 * scale)
    p, q = laplace_masses(at - one, 0.9 * scale), laplace_masses(at - other, 0.9 * scale)
    assert hockey_stick(q, p, 0.5) > claimed(mechanism.event(), 0.5) + 0.01


@pytest.mark.parametrize(("epsilon", "delta", "sensitivity"), [(0.5, 1e-6, 1.0), (2.0, 1e-4, 0.3)])
def test_the_gaussian_mechanisms_event_holds_and_is_its_own(epsilon: float, delta: float, sensitivity: float) -> None:
    mechanism = GaussianMechanism(epsilon=epsilon, delta=delta, sensitivity=sensitivity)
    lattice, scale = _gaussian_grid(L2(sensitivity), mechanism.event().noise_multiplier, 1)
    at, one, other = neighbours(lattice, sensitivity, 9 * scale)
    p, q = normal_masses(at - one, scale), normal_masses(at - other, scale)
    for at_epsilon in (0.0, epsilon / 2, epsilon):
        exact = max(hockey_stick(p, q, at_epsilon), hockey_stick(q, p, at_epsilon))
        assert 0.5 * claimed(mechanism.event(), at_epsilon) <= exact
        assert exact <= claimed(mechanism.event(), at_epsilon) + ROUNDING
    assert 0.99 * delta < exact <= delta
    less, more = normal_masses(at - one, 0.9 * scale), normal_masses(at - other, 0.9 * scale)
    assert hockey_stick(less, more, epsilon) > delta  # the negative control


@pytest.mark.parametrize(("epsilon", "sensitivity"), [(0.2, 1), (1.0, 3), (2.5, 2)])
def test_the_discrete_laplace_mechanisms_event_holds_and_is_its_own(epsilon: float, sensitivity: int) -> None:
    mechanism = DiscreteLaplaceMechanism(epsilon=epsilon, sensitivity=sensitivity)
    at = np.arange(-math.ceil(50 * mechanism.scale), math.ceil(50 * mechanism.scale) + 1)
    p, q = (discrete_laplace_masses(at - shift, mechanism.scale) for shift in (0, sensitivity))
    for share in (0.0, 0.4, 0.9):
        exact = hockey_stick(p, q, share * epsilon)
        assert 0.5 * claimed(mechanism.event(), share * epsilon) <= exact
        assert exact <= claimed(mechanism.event(), share * epsilon) + ROUNDING
    assert hockey_stick(p, q, epsilon) <= ROUNDING
    p, q = (discrete_laplace_masses(at - shift, 0.9 * mechanism.scale) for shift in (0, sensitivity))
    assert hockey_stick(p, q, epsilon) > 1e-3


@pytest.mark.parametrize("parts", [(1, 5), (3, 3), (2, 4), (2, 2, 2), (1, 1, 4)])
@pytest.mark.parametrize("scale", [1.5, 6.0, 25.0])
def test_a_move_in_several_coordinates_costs_no_more_than_one_in_a_single_one(
    parts: tuple[int, ...], scale: float
) -> None:
    """Why one number prices a vector of Laplace noise: an L1 move of six is worst in one coordinate."""
    reach = 6
    ratio = math.exp(-1 / scale)

    def folded(shift: int) -> tuple[Masses, Masses]:
        """P and Q of one coordinate, with all that lies beyond both centres in two atoms of equal loss."""
        at = np.arange(0, shift + 1)
        p, q = (discrete_laplace_masses(at - centre, scale) for centre in (0, shift))
        tail = discrete_laplace_masses(np.array([1]), scale)[0] / (1 - ratio)
        p[0] += tail
        q[0] += tail * ratio**shift
        p[-1] += tail * ratio**shift
        q[-1] += tail
        return p, q

    joint_p, joint_q = np.ones(1), np.ones(1)
    for part in parts:
        p, q = folded(part)
        joint_p, joint_q = np.outer(joint_p, p).ravel(), np.outer(joint_q, q).ravel()
    one_p, one_q = folded(reach)
    assert joint_p.sum() == pytest.approx(1, abs=1e-12) and sum(parts) == reach
    for share in np.linspace(0, 1, 21):
        epsilon = float(share) * reach / scale
        assert hockey_stick(joint_p, joint_q, epsilon) <= hockey_stick(one_p, one_q, epsilon) + 1e-13


@pytest.mark.parametrize(("epsilon", "delta", "sensitivity"), [(1.0, 1e-5, 1), (0.3, 1e-3, 4), (3.0, 1e-6, 2)])
def test_the_discrete_gaussian_mechanisms_event_holds_and_is_its_own(
    epsilon: float, delta: float, sensitivity: int
) -> None:
    mechanism = DiscreteGaussianMechanism(epsilon=epsilon, delta=delta, sensitivity=sensitivity)
    sigma = mechanism.scale
    at = np.arange(-math.ceil(40 * sigma), math.ceil(40 * sigma) + 1)
    p, q = (discrete_gaussian_masses(at - shift, sigma) for shift in (0, sensitivity))
    for at_epsilon in (0.0, epsilon / 2, epsilon):
        exact = hockey_stick(p, q, at_epsilon)
        assert 0.5 * claimed(mechanism.event(), at_epsilon) <= exact
        assert exact <= claimed(mechanism.event(), at_epsilon) + ROUNDING
    assert 0.99 * delta < exact <= delta
    p, q = (discrete_gaussian_masses(at - shift, 0.9 * sigma) for shift in (0, sensitivity))
    assert hockey_stick(p, q, epsilon) > delta


@pytest.mark.parametrize(("epsilon", "delta", "sensitivity"), [(1.0, 1e-5, 1), (0.3, 1e-3, 4), (3.0, 1e-6, 2)])
def test_the_skellam_mechanisms_event_holds(epsilon: float, delta: float, sensitivity: int) -> None:
    mechanism = SkellamMechanism(epsilon=epsilon, delta=delta, sensitivity=sensitivity)
    variance = mechanism.scale**2
    at = np.arange(-math.ceil(40 * mechanism.scale), math.ceil(40 * mechanism.scale) + 1)
    p, q = (skellam_masses(at - shift, variance) for shift in (0, sensitivity))
    for at_epsilon in (epsilon / 2, epsilon):
        exact = hockey_stick(p, q, at_epsilon)
        assert exact <= RenyiAccountant().compose(mechanism.event()).delta(epsilon=at_epsilon)
    assert 0 < exact <= delta
    p, q = (skellam_masses(at - shift, variance / 4) for shift in (0, sensitivity))
    assert hockey_stick(p, q, epsilon) > delta


# --------------------------------------------------------------------------------------------------- choices

Law = Callable[[NDArray[np.float64], float], NDArray[np.float64]]


def worst_loss(law: Law, rate: float, monotone: bool) -> float:
    """The largest |ln P/Q| over small lists of scores and all their neighbours, each score moved by 1, 0 or −1."""
    worst = 0.0
    moves: tuple[int, ...] = (0, 1) if monotone else (-1, 0, 1)
    for scores in ((0.0, 0.0), (0.0, 6.0), (-8.0, 0.0, 0.0), (0.0, 1.0, 5.0), (0.0, -3.0, -3.0, -3.0, -3.0)):
        base = np.log(law(np.array(scores), rate))
        for move in itertools.product(moves, repeat=len(scores)):
            worst = max(worst, float(np.abs(np.log(law(np.array(scores) + move, rate)) - base).max()))
    return worst


@pytest.mark.parametrize("monotone", [False, True])
@pytest.mark.parametrize(
    ("kind", "law"),
    [(ExponentialMechanism, exponential_law), (PermuteAndFlip, permute_and_flip_law), (ReportNoisyMax, noisy_max_law)],
)
@pytest.mark.some(3)
def test_no_neighbour_changes_the_chance_of_a_choice_by_more_than_the_event_says(
    kind: Any, law: Law, monotone: bool
) -> None:
    mechanism = kind(epsilon=1.2, sensitivity=1, monotone=monotone)
    epsilon = ClassicalAccountant(rule="basic").compose(mechanism.event()).epsilon(delta=1e-12).epsilon
    rate = mechanism.epsilon * (1 if monotone else 0.5)
    worst = worst_loss(law, rate, monotone)
    assert 0.5 * epsilon < worst <= epsilon + 1e-9
    assert worst_loss(law, 2 * rate, monotone) > epsilon  # dropping the two where it is needed
