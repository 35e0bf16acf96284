"""K(c) = ln E_P[e^{cL}] on the real axis: upper bounds, and no looser than they need be."""

from __future__ import annotations

import math

import mpmath as mp
import numpy as np
import pytest

from privacy.oracle import Step, log_phi
from quietsum.privacy.exact import contour, moments
from quietsum.privacy.exact.mixtures import Direction
from quietsum.privacy.exact.moments import LADDER, STEPS, ladder_moments, log_moments, step_moments
from quietsum.privacy.pairs import GaussianPair, MixturePair, OppositePair, Pair

REMOVE, ADD = Direction.REMOVE, Direction.ADD

PAIRS: list[tuple[MixturePair | OppositePair, Direction]] = [
    (MixturePair(1.0, 0.01), REMOVE), (MixturePair(1.0, 0.01), ADD), (MixturePair(0.3, 0.2), REMOVE),
    (MixturePair(0.3, 0.2), ADD), (MixturePair(20.0, 1e-5), REMOVE), (MixturePair(20.0, 1e-5), ADD),
    (MixturePair(0.6, 0.9999), ADD), (MixturePair(2.0, 0.05, 3), REMOVE), (MixturePair(2.0, 0.05, 3), ADD),
    (MixturePair(3.0, 0.01, 10), REMOVE), (OppositePair(1.0, 0.1), REMOVE), (OppositePair(1.0, 0.1), ADD),
    (OppositePair(0.5, 0.95), REMOVE),
]  # fmt: skip


def true_moment(pair: Pair, direction: Direction, c: float) -> mp.mpf:
    if isinstance(pair, GaussianPair):
        return mp.mpf(c) * (mp.mpf(c) + 1) / (2 * mp.mpf(pair.sigma) ** 2)
    assert isinstance(pair, MixturePair | OppositePair)
    kind = "opposite" if isinstance(pair, OppositePair) else direction.value
    step = Step(pair.sigma, pair.rate, kind, pair.size if isinstance(pair, MixturePair) else 1)
    return mp.re(log_phi(step, mp.mpf(c)))


@pytest.mark.parametrize(("pair", "direction"), PAIRS)
@pytest.mark.some(4)
def test_moments_are_upper_bounds_and_close(pair: MixturePair | OppositePair, direction: Direction) -> None:
    c = np.array([1e-3, 0.1, 1.0, 3.7, 9.0])
    for value, at in zip(log_moments(pair, direction, c), c.tolist(), strict=True):
        truth = true_moment(pair, direction, at)
        assert truth <= value
        assert value <= truth + mp.mpf(1e-12) * (1 + abs(truth))


@pytest.mark.parametrize(("pair", "direction"), [*PAIRS[::4], (GaussianPair(0.7), REMOVE)])
@pytest.mark.some(1)
def test_ladders_and_steps_hold_the_same_bounds(pair: Pair, direction: Direction) -> None:
    ladder = ladder_moments(pair, direction)
    assert ladder.shape == LADDER.shape
    for rung in (0, 12, 40, 50):
        truth = true_moment(pair, direction, float(LADDER[rung]))
        if math.isfinite(ladder[rung]):
            assert truth <= ladder[rung] <= truth + mp.mpf(1e-12) * (1 + abs(truth))
    for value, factor in zip(step_moments(pair, direction, 2.0), STEPS.tolist(), strict=True):
        truth = true_moment(pair, direction, 2 * factor)
        assert truth <= value <= truth + mp.mpf(1e-12) * (1 + abs(truth))


def test_moments_grow_with_c_and_never_fall_below_zero() -> None:
    for pair, direction in PAIRS:
        ladder = ladder_moments(pair, direction)
        finite = ladder[np.isfinite(ladder)]
        assert finite.size > 20
        assert (finite >= 0).all()
        assert (np.diff(finite) >= -1e-13 * (1 + finite[1:])).all()


def test_moments_are_infinite_beyond_what_can_matter_and_where_the_grid_would_be_endless() -> None:
    assert np.isinf(ladder_moments(MixturePair(1.0, 0.01), REMOVE)[-1])
    assert np.isinf(log_moments(MixturePair(0.001, 0.01), REMOVE, np.array([0.5, 1.0]))).all()
    some = log_moments(MixturePair(0.05, 0.01), REMOVE, np.array([0.1, 2.0, 10.0]))
    assert np.isfinite(some[0])
    assert np.isinf(some[-1])


def test_a_coarse_rule_would_not_be_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: a step of twice the length leaves the stated error."""
    plain = contour.grid
    monkeypatch.setattr(moments, "grid", lambda low, high, step: plain(low, high, 2.2 * step))
    wrong = 0
    for pair, direction in PAIRS[:6]:
        c = np.array([0.1, 1.0, 9.0])
        for value, at in zip(log_moments(pair, direction, c), c.tolist(), strict=True):
            truth = true_moment(pair, direction, at)
            wrong += not truth <= value <= truth + mp.mpf(1e-12) * (1 + abs(truth))
    assert wrong >= 3
