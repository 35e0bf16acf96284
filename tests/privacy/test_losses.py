"""Loss cells: masses of P and Q between two values of the privacy loss, against naive and high-precision sums."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from quietsum.errors import UnsupportedEvent
from quietsum.privacy import pairs as pr
from quietsum.privacy.pld.losses import (
    Direction,
    cell_masses,
    few_atoms,
    loss_lattice,
    loss_points,
    normal_cells,
    refuse_unsupported,
    symmetric,
)

BASES = [
    pr.LaplacePair(1.5),
    pr.DiscreteLaplacePair(2.0, 1),
    pr.DiscreteLaplacePair(2.0, 5),
    pr.DiscreteGaussianPair(1.5, 1),
    pr.DiscreteGaussianPair(4.0, 3),
    pr.DiscreteGaussianPair(3000.0, 200),
    pr.ResponsePair(0.75, 2),
    pr.ResponsePair(0.1, 5),
    pr.ApproximatePair(0.7, 0.0),
    pr.ApproximatePair(0.7, 0.01),
]
PAIRS = [
    pr.GaussianPair(0.8),
    pr.MixturePair(0.8, 0.1),
    pr.MixturePair(1.2, 0.3, 4),
    pr.OppositePair(0.9, 0.2),
    *BASES,
    *(pr.SampledPair(0.2, base) for base in BASES),
]
names = repr


def naive_table(pair: pr.Pair) -> tuple[np.ndarray, np.ndarray]:
    """P and Q as masses on outcomes, written down from the definitions; densities on a fine grid."""
    fine = np.linspace(-25.0, 25.0, 400_001)

    def normal(shift: float, sigma: float) -> np.ndarray:
        density = np.exp(-((fine - shift) ** 2) / (2 * sigma**2))
        return density / density.sum()

    match pair:
        case pr.GaussianPair(sigma=sigma):
            return normal(1, sigma), normal(0, sigma)
        case pr.MixturePair(sigma=sigma, rate=rate, size=size):
            chances = [math.comb(size, j) * rate**j * (1 - rate) ** (size - j) for j in range(size + 1)]
            mixed = np.sum([chance * normal(j, sigma) for j, chance in enumerate(chances)], axis=0)
            return mixed, normal(0, sigma)
        case pr.OppositePair(sigma=sigma, rate=rate):
            left, right = ((1 - rate) * normal(0, sigma) + rate * normal(side, sigma) for side in (1, -1))
            return left, right
        case pr.LaplacePair(scale=scale):
            densities = [np.exp(-np.abs(fine - shift) / scale) for shift in (1, 0)]
            return densities[0] / densities[0].sum(), densities[1] / densities[1].sum()
        case pr.DiscreteLaplacePair(scale=scale, shift=shift):
            at = np.arange(-400, 401)
            masses = [np.exp(-np.abs(at - centre) / scale) for centre in (shift, 0)]
            return tuple(mass / mass.sum() for mass in masses)
        case pr.DiscreteGaussianPair(sigma=sigma, shift=shift):
            at = np.arange(-round(15 * sigma) - 10, round(15 * sigma) + 11)
            masses = [np.exp(-((at - centre) ** 2) / (2 * sigma**2)) for centre in (shift, 0)]
            return tuple(mass / mass.sum() for mass in masses)
        case pr.ResponsePair(keep=keep, categories=categories):
            other = (1 - keep) / (categories - 1)
            first = np.full(categories, other)
            first[0] = keep
            return first, np.roll(first, 1)
        case pr.ApproximatePair(epsilon=epsilon, delta=delta):
            high = math.exp(epsilon) / (1 + math.exp(epsilon))
            first = np.array([delta, (1 - delta) * high, (1 - delta) * (1 - high), 0.0])
            return first, first[::-1]
        case pr.SampledPair(rate=rate, base=base):
            first, second = naive_table(base)
            return (1 - rate) * second + rate * first, second
    raise AssertionError(pair)


@pytest.mark.parametrize("direction", ["remove", "add"])
@pytest.mark.parametrize("pair", PAIRS, ids=names)
def test_hockey_stick_at_any_epsilon_is_the_one_of_the_definition(pair: pr.Pair, direction: Direction) -> None:
    """P(L > ε) − e^ε Q(L > ε) = Σ (P − e^ε Q)₊, with P and Q written down naively."""
    first, second = naive_table(pair) if direction == "remove" else naive_table(pair)[::-1]
    for epsilon in (-0.31, 0.0, 0.0123, 0.37, 0.73, 1.9):
        cells = cell_masses(pair, np.array([epsilon]), direction)
        ours = cells.p[1] + cells.p_infinite - math.exp(epsilon) * cells.q[1]
        naive = np.maximum(first - math.exp(epsilon) * second, 0).sum()
        assert ours == pytest.approx(naive, rel=2e-6, abs=1e-9)


@pytest.mark.parametrize("direction", ["remove", "add"])
@pytest.mark.parametrize("pair", PAIRS, ids=names)
def test_all_mass_is_somewhere(pair: pr.Pair, direction: Direction) -> None:
    cells = cell_masses(pair, np.linspace(-3, 3, 50), direction)
    assert cells.p.sum() + cells.p_infinite == pytest.approx(1, abs=1e-12)
    assert cells.q.sum() + cells.q_infinite == pytest.approx(1, abs=1e-12)
    assert (cells.p >= 0).all() and (cells.q >= 0).all()


@pytest.mark.parametrize("direction", ["remove", "add"])
@pytest.mark.parametrize("pair", PAIRS, ids=names)
def test_the_ratio_of_masses_lies_inside_its_cell(pair: pr.Pair, direction: Direction) -> None:
    """That is what a loss is: e^{low} Q ≤ P ≤ e^{high} Q on every cell."""
    edges = np.linspace(-4, 4, 1001)
    cells = cell_masses(pair, edges, direction)
    p, q = cells.p[1:-1], cells.q[1:-1]
    assert (p <= q * np.exp(edges[1:]) * (1 + 1e-9) + 1e-290).all()
    assert (p >= q * np.exp(edges[:-1]) * (1 - 1e-9) - 1e-290).all()


@given(
    st.floats(0.2, 20), st.floats(1e-5, 0.99), st.integers(1, 12), st.floats(-3, 12), st.sampled_from(["remove", "add"])
)
@settings(deadline=None, max_examples=60)
def test_mixture_cells_have_the_right_ratio_for_any_parameters(
    sigma: float, rate: float, size: int, start: float, direction: Direction
) -> None:
    edges = np.sort(start + np.linspace(0, 1, 30))
    cells = cell_masses(pr.MixturePair(sigma, rate, size), edges, direction)
    p, q = cells.p[1:-1], cells.q[1:-1]
    assert (p <= q * np.exp(edges[1:]) * (1 + 1e-8) + 1e-280).all()
    assert (p >= q * np.exp(edges[:-1]) * (1 - 1e-8) - 1e-280).all()


def test_far_normal_tails_keep_their_relative_accuracy() -> None:
    edges = np.array([-37.0, -36.999, -30.0, -8.0, 0.0, 1e-9, 8.0, 30.0, 36.999, 37.0])
    ours = normal_cells(edges)
    mpmath.mp.dps = 60
    bounds = [-mpmath.inf, *map(mpmath.mpf, edges.tolist()), mpmath.inf]
    for mass, low, high in zip(ours, bounds[:-1], bounds[1:], strict=True):
        low, high = (low, high) if low < 0 else (-high, -low)
        exact = (mpmath.erfc(-high / mpmath.sqrt(2)) - mpmath.erfc(-low / mpmath.sqrt(2))) / 2
        assert mass == pytest.approx(float(exact), rel=3e-13)


def test_far_cells_of_a_sampled_gaussian_match_high_precision() -> None:
    pair, edges = pr.MixturePair(0.7, 0.01), np.array([9.0, 9.001, 20.0])
    mpmath.mp.dps = 60
    sigma, rate = mpmath.mpf(0.7), mpmath.mpf(0.01)
    at = [mpmath.mpf(1) / 2 + sigma**2 * mpmath.log((mpmath.exp(mpmath.mpf(e)) - 1 + rate) / rate) for e in edges]
    tail = [(1 - rate) * mpmath.ncdf(-x / sigma) + rate * mpmath.ncdf((1 - x) / sigma) for x in at]
    cells = cell_masses(pair, edges)
    for ours, exact in zip(cells.p[1:], (tail[0] - tail[1], tail[1] - tail[2], tail[2]), strict=True):
        assert ours == pytest.approx(float(exact), rel=1e-10)


def test_large_discrete_gaussians_are_summed_as_accurately_as_small_ones() -> None:
    """Euler–Maclaurin against the plain sum over every integer, cell by cell and out in the tails."""
    sigma, shift = 2500.0, 37
    edges = np.linspace(-0.2, 0.2, 400)
    cells = cell_masses(pr.DiscreteGaussianPair(sigma, shift), edges)
    at = np.arange(-40_000, 40_001)
    total = np.exp(-(at**2) / (2 * sigma**2)).sum()
    cell = np.searchsorted(edges, shift * (2 * at - shift) / (2 * sigma**2))
    for masses, centre in ((cells.p, shift), (cells.q, 0)):
        naive = np.bincount(cell, np.exp(-((at - centre) ** 2) / (2 * sigma**2)) / total, len(edges) + 1)
        kept = naive > 1e-200
        assert np.allclose(masses[kept], naive[kept], rtol=1e-9, atol=0)


@pytest.mark.parametrize("pair", [pair for pair in PAIRS if symmetric(pair)], ids=names)
def test_symmetric_pairs_have_one_loss_law(pair: pr.Pair) -> None:
    edges = np.linspace(-2 - math.pi / 1000, 2 + math.e / 1000, 77)  # no atom on an edge
    there, back = cell_masses(pair, edges, "remove"), cell_masses(pair, edges, "add")
    assert np.allclose(there.p, back.p, atol=1e-12) and np.allclose(there.q, back.q, atol=1e-12)


def test_sampled_pairs_are_not_symmetric() -> None:
    edges = np.linspace(-1, 1, 9)
    for pair in (pr.MixturePair(1.0, 0.1), pr.SampledPair(0.1, pr.LaplacePair(1.0))):
        assert not symmetric(pair)
        assert not np.allclose(cell_masses(pair, edges, "remove").p, cell_masses(pair, edges, "add").p)


@pytest.mark.parametrize("direction", ["remove", "add"])
@pytest.mark.parametrize("pair", PAIRS, ids=names)
def test_points_are_increasing_and_hold_nearly_all_mass(pair: pr.Pair, direction: Direction) -> None:
    points = loss_points(pair, direction, reach=9.0, count=300)
    assert (np.diff(points) > 0).all() and len(points) < 700
    cells = cell_masses(pair, points, direction)
    assert cells.p[0] + cells.p[-1] < 1e-15


@pytest.mark.parametrize("direction", ["remove", "add"])
@pytest.mark.parametrize("pair", [pair for pair in PAIRS if loss_lattice(pair, "remove")], ids=names)
def test_atoms_lie_on_the_stated_lattice(pair: pr.Pair, direction: Direction) -> None:
    lattice = loss_lattice(pair, direction)
    assert lattice is not None
    offset, unit, only_atoms = lattice
    if only_atoms and few_atoms(pair):
        atoms = loss_points(pair, direction, reach=9.0, count=300)[1:-1]
        held = cell_masses(pair, np.sort(np.concatenate([atoms - 1e-7, atoms + 1e-7])), direction)
        assert held.p[1::2].sum() + held.p_infinite == pytest.approx(1, abs=1e-12)
        loaded = atoms[held.p[1::2] > 0]
        steps = (loaded - offset) / unit
        assert np.allclose(steps, steps.round(), atol=1e-7)
    else:
        for atom in (offset, offset + unit):
            around = cell_masses(pair, np.array([atom - 1e-9, atom + 1e-9]), direction)
            assert around.p[1] > 1e-4 or not isinstance(pair, pr.LaplacePair | pr.SampledPair)


def test_three_sampled_atoms_have_no_lattice_and_an_even_answer_is_no_lattice_of_tiny_units() -> None:
    assert loss_lattice(pr.SampledPair(0.1, pr.ResponsePair(0.7, 3)), "remove") is None
    assert loss_lattice(pr.ResponsePair(1 / 3, 3), "remove") in (None, (0.0, 1.0, True))
    assert loss_lattice(pr.SampledPair(0.1, pr.ApproximatePair(1.0, 0.1)), "remove") is None


@pytest.mark.parametrize(
    "pair",
    [
        pr.VectorDiscreteGaussianPair(1.0, 1.0),
        pr.SkellamPair(10.0, 1.0, 1.0),
        pr.ZcdpPair(0.1),
        pr.SampledPair(0.1, pr.ZcdpPair(0.1)),
    ],
    ids=names,
)
def test_pairs_with_moments_only_are_refused_and_told_where_to_go(pair: pr.Pair) -> None:
    for refuse in (refuse_unsupported, lambda one: cell_masses(one, np.zeros(1))):
        with pytest.raises(UnsupportedEvent, match="RenyiAccountant") as caught:
            refuse(pair)
        assert "ConcentratedAccountant" in str(caught.value)


def test_an_unknown_pair_is_refused() -> None:
    class Mystery(pr.Pair):
        pass

    with pytest.raises(UnsupportedEvent, match="Mystery"):
        refuse_unsupported(Mystery())
