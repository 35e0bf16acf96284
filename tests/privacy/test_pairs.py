"""Every reduction of an event to a dominating pair, against what the mechanism really does.

The oracle is brute force: the real output laws of two neighbouring datasets on a fine grid or lattice, and the
hockey-stick divergence H_γ(P‖Q) = Σ (P − γ Q)₊ as a plain sum. A pair dominates when its own is nowhere smaller.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from quietsum.errors import InvalidParameter, MixedUnits, UnsupportedEvent
from quietsum.privacy import events as ev, pairs as pr
from quietsum.privacy.accounting import History
from quietsum.privacy.exact.accountant import ExactAccountant
from quietsum.privacy.old_rules import SingleBatch
from quietsum.privacy.pairs import reduce_event
from quietsum.privacy.pld.accountant import PldAccountant
from quietsum.privacy.units import Neighbours, Observer, PrivacyUnit

Law = NDArray[np.float64]
ADD, ZERO, REPLACE = Neighbours.ADD_REMOVE, Neighbours.ZERO_OUT, Neighbours.REPLACE_ONE
GAUSSIAN = ev.Gaussian(noise_multiplier=1.0)
LAPLACE = ev.Laplace(noise_multiplier=2.0)
ODDS = np.exp(np.concatenate([np.linspace(-3, 3, 25), [-0.01, 0.01, 5.0]]))


def gaussian(noise: float) -> ev.Gaussian:
    return ev.Gaussian(noise_multiplier=noise)


def poisson(rate: float, event: ev.PrivacyEvent) -> ev.PoissonSampled:
    return ev.PoissonSampled(rate=rate, event=event)


def fixed(rate: float, event: ev.PrivacyEvent) -> ev.FixedSizeSampled:
    return ev.FixedSizeSampled(rate=rate, event=event)


def single(rate: float, event: ev.PrivacyEvent) -> SingleBatch:
    return SingleBatch(rate=rate, event=event)


def group(size: int, event: ev.PrivacyEvent) -> ev.Group:
    return ev.Group(size=size, event=event)


def only(event: ev.PrivacyEvent, neighbours: Neighbours = ADD) -> pr.Pair:
    """The one pair of one use."""
    ((pair, count),) = reduce_event(event, neighbours)
    assert count == 1
    return pair


# ------------------------------------------------------------------------------------------ brute force


LINE = np.linspace(-30, 30, 24_001)
ERROR = 2e-6  # of a plain sum on the line: (P − γ Q)₊ has kinks, so it falls with the square of the spacing


def bell(centre: float, sigma: float) -> Law:
    return np.exp(-((LINE - centre) ** 2) / (2 * sigma**2)) * (LINE[1] - LINE[0]) / (sigma * math.sqrt(2 * math.pi))


def spike(centre: float, scale: float) -> Law:
    """Laplace noise; the mass of each cell is exact, so that the kink does no harm."""
    half = (LINE[1] - LINE[0]) / 2
    edges = np.append(LINE - half, LINE[-1] + half) - centre
    below = np.where(
        edges < 0, 0.5 * np.exp(np.minimum(edges, 0) / scale), 1 - 0.5 * np.exp(-np.maximum(edges, 0) / scale)
    )
    return np.diff(below)


def hockey(p: Law, q: Law, odds: float) -> float:
    return float(np.maximum(p - odds * q, 0).sum())


def drawn(rate: float, none: Law, one: Law) -> Law:
    return (1 - rate) * none + rate * one


def laws(pair: pr.Pair) -> tuple[Law, Law]:
    """P and Q of a pair, on the line, on a lattice or on a few points, straight from the pair's own docstring."""
    match pair:
        case pr.GaussianPair(sigma=sigma):
            return bell(1, sigma), bell(0, sigma)
        case pr.MixturePair(sigma=sigma, rate=rate, size=size):
            weights = [math.comb(size, j) * rate**j * (1 - rate) ** (size - j) for j in range(size + 1)]
            return sum(w * bell(j, sigma) for j, w in enumerate(weights)), bell(0, sigma)  # type: ignore[return-value]
        case pr.OppositePair(sigma=sigma, rate=rate):
            none = bell(0, sigma)
            return drawn(rate, none, bell(1, sigma)), drawn(rate, none, bell(-1, sigma))
        case pr.EnvelopePair(sigma=sigma, rate=rate, near=near):
            none = bell(0, sigma)
            p, q = drawn(rate, none, bell(1, sigma)), drawn(rate, none, bell(near, sigma))
            p, q = np.where(p > q, p, 0), np.where(p > q, q, 0)
            rest = [1 - p.sum() - q.sum()]
            return np.concatenate([p, q, rest]), np.concatenate([q, p, rest])
        case pr.LaplacePair(scale=scale):
            return spike(1, scale), spike(0, scale)
        case pr.DiscreteLaplacePair(scale=scale, shift=shift):
            return lattice(lambda k: -np.abs(k) / scale, shift)
        case pr.DiscreteGaussianPair(sigma=sigma, shift=shift):
            return lattice(lambda k: -(k**2) / (2 * sigma**2), shift)
        case pr.ResponsePair(keep=keep, categories=k):
            other = (1 - keep) / (k - 1)
            rest = [other] * (k - 2)
            return np.array([keep, other, *rest]), np.array([other, keep, *rest])
        case pr.ApproximatePair(epsilon=epsilon, delta=delta):
            high = 1 / (1 + math.exp(-epsilon))
            answers = (1 - delta) * np.array([high, 1 - high])
            return np.array([delta, 0.0, *answers]), np.array([0.0, delta, *answers[::-1]])
        case pr.SampledPair(rate=rate, base=base):
            p, q = laws(base)
            return drawn(rate, q, p), q
        case _:
            raise AssertionError(pair)


def lattice(log_mass: Any, shift: int) -> tuple[Law, Law]:
    k = np.arange(-600, 601)
    total = np.exp(log_mass(k.astype(float))).sum()
    return np.exp(log_mass((k - shift).astype(float))) / total, np.exp(log_mass(k.astype(float))) / total


def both_ways(pair: pr.Pair, odds: float) -> float:
    p, q = laws(pair)
    return max(hockey(p, q, odds), hockey(q, p, odds))


def assert_dominated(pair: pr.Pair, p: Law, q: Law, *, tight: bool = False, either: bool = False) -> None:
    """H_γ of (p, q) is nowhere above the pair's (in the worse direction: ``either``); ``tight``: nor below it."""
    for odds in ODDS:
        real = hockey(p, q, odds)
        claimed = both_ways(pair, odds) if either else hockey(*laws(pair), odds)
        assert real <= claimed + ERROR, (pair, odds)
        if tight:
            assert real == pytest.approx(claimed, abs=ERROR), (pair, odds)


def test_the_brute_force_integrals_know_the_closed_form_of_the_gaussian() -> None:
    """Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ), the oracle's own oracle."""
    for sigma, epsilon in itertools.product((0.5, 1.0, 3.0), (0.0, 0.5, 2.0)):
        mu = 1 / sigma
        first, second = (0.5 * math.erfc((epsilon / mu + sign * mu / 2) / math.sqrt(2)) for sign in (-1, 1))
        found = hockey(*laws(pr.GaussianPair(sigma)), math.exp(epsilon))
        assert found == pytest.approx(first - math.exp(epsilon) * second, abs=ERROR)


def test_a_pair_with_too_much_noise_is_caught() -> None:
    """The negative control: noise that is overstated by two percent does not dominate."""
    with pytest.raises(AssertionError):
        assert_dominated(pr.GaussianPair(1.02), bell(1, 1.0), bell(0, 1.0))


# ------------------------------------------------------------------------------------------- plain mechanisms


@pytest.mark.parametrize(
    ("event", "pair", "twice"),
    [
        (gaussian(3.0), pr.GaussianPair(3.0), pr.GaussianPair(1.5)),
        (ev.Laplace(noise_multiplier=3.0), pr.LaplacePair(3.0), pr.LaplacePair(1.5)),
        (ev.DiscreteLaplace(scale=3.0, sensitivity=2), pr.DiscreteLaplacePair(3.0, 2), pr.DiscreteLaplacePair(3.0, 4)),
        (ev.DiscreteGaussian(sigma=3.0), pr.DiscreteGaussianPair(3.0, 1), pr.DiscreteGaussianPair(3.0, 2)),
        (
            ev.DiscreteGaussian(sigma=3.0, sensitivity=1.5),
            pr.VectorDiscreteGaussianPair(3.0, 1.5),
            pr.VectorDiscreteGaussianPair(3.0, 3.0),
        ),
        (
            ev.DiscreteGaussian(sigma=3.0, sensitivity=2.0, dimension=5),
            pr.VectorDiscreteGaussianPair(3.0, 2.0),
            pr.VectorDiscreteGaussianPair(3.0, 4.0),
        ),
        (
            ev.Skellam(variance=9.0, l1_sensitivity=3.0, l2_sensitivity=2.0),
            pr.SkellamPair(9.0, 3.0, 2.0),
            pr.SkellamPair(9.0, 6.0, 4.0),
        ),
    ],
)
def test_noise_on_a_sum_sees_one_c_or_two(event: ev.PrivacyEvent, pair: pr.Pair, twice: pr.Pair) -> None:
    """A unit that comes, goes or becomes null moves the sum by C, one that is replaced by 2 C, two units likewise."""
    assert only(event, ADD) == only(event, ZERO) == pair
    assert only(event, REPLACE) == only(group(2, event), ADD) == only(group(2, event), ZERO) == twice
    assert only(group(2, event), REPLACE) == only(group(4, event), ADD)
    assert only(group(2, group(3, event)), ADD) == only(group(6, event), ADD)


@pytest.mark.parametrize("neighbours", Neighbours)
@pytest.mark.parametrize("event", [gaussian(1.7), LAPLACE, ev.DiscreteLaplace(scale=2.0, sensitivity=2)])
def test_shorter_contributions_are_dominated_by_full_ones(event: ev.PrivacyEvent, neighbours: Neighbours) -> None:
    """The real mechanism on neighbours of every length, one dimension."""
    pair = only(event, neighbours)
    reach = 2 if neighbours is REPLACE else 1
    for share in (0.0, 0.5, 1.0):
        match event:
            case ev.Gaussian(noise_multiplier=noise):
                p, q = bell(share * reach, noise), bell(0, noise)
            case ev.Laplace(noise_multiplier=noise):
                p, q = spike(share * reach, noise), spike(0, noise)
            case _:
                p, q = lattice(lambda k: -np.abs(k) / 2.0, round(2 * share * reach))
        assert_dominated(pair, p, q, tight=share == 1.0)


@pytest.mark.parametrize(("one", "other"), [(0.3, 0.7), (1.0, 1.0), (4.0, 2.0), (6.0, 6.0)])
def test_laplace_noise_on_a_vector_is_dominated_by_its_l1_norm_in_one_coordinate(one: float, other: float) -> None:
    """Laplace events speak of an L1 norm in any dimension: splitting the norm over coordinates hides better."""
    coarse = slice(None, None, 8)

    def losses(length: float) -> tuple[Law, Law]:
        edges = np.linspace(0, length, 1201)
        inner = np.diff(np.exp(edges - length)) / 2
        p = np.array([math.exp(-length) / 2, *inner, 0.5])
        return p, p[::-1]

    first, second = (np.multiply.outer(a[coarse], b).ravel() for a, b in zip(losses(one), losses(other), strict=True))
    for epsilon in np.linspace(-0.95, 0.95, 15) * (one + other):
        assert hockey(first, second, math.exp(epsilon)) <= hockey(*losses(one + other), math.exp(epsilon)) + 1e-9


def test_events_that_state_their_own_bound_state_it_for_the_runs_relation() -> None:
    for neighbours in Neighbours:
        assert only(ev.PureDP(epsilon=0.5), neighbours) == pr.ApproximatePair(0.5)
        assert only(ev.ApproximateDP(epsilon=0.5, delta=1e-6), neighbours) == pr.ApproximatePair(0.5, 1e-6)
        assert only(ev.Zcdp(rho=0.5), neighbours) == pr.ZcdpPair(0.5)
        assert only(ev.RandomizedResponse(keep_probability=0.8), neighbours) == pr.ResponsePair(0.8, 2)


def test_randomised_response_of_two_people_is_its_pair() -> None:
    """The answers of people in categories 0 and 1 of four, by definition; others tell nothing more."""
    pair = only(ev.RandomizedResponse(keep_probability=0.7, categories=4))
    first, second = np.full(4, 0.1), np.full(4, 0.1)
    first[0] = second[1] = 0.7
    assert_dominated(pair, first, second, tight=True)
    assert_dominated(pair, first, first)


# ------------------------------------------------------------------------------------------------- groups


def test_a_group_of_pure_events_multiplies_epsilon_and_of_zcdp_squares() -> None:
    assert only(group(3, ev.PureDP(epsilon=0.5))) == pr.ApproximatePair(1.5)
    assert only(group(3, ev.Zcdp(rho=0.5))) == pr.ZcdpPair(4.5)


@pytest.mark.parametrize("size", [1, 2, 3, 10])
@pytest.mark.parametrize("epsilon", [0.0, 1e-20, 1e-9, 0.3, 5.0, 800.0])
@pytest.mark.parametrize("delta", [0.0, 1e-300, 1e-6, 0.4, 1.0])
def test_a_group_of_approximate_events_sums_a_geometric_series(size: int, epsilon: float, delta: float) -> None:
    """δ Σ_{i<k} e^{iε}, one step of the chain of neighbours after the other, never above 1."""
    event = group(size, ev.ApproximateDP(epsilon=epsilon, delta=delta))
    if epsilon == delta == 0:
        assert reduce_event(event, ADD) == []
        return
    pair = only(event)
    assert isinstance(pair, pr.ApproximatePair)
    logs = [i * epsilon + math.log(delta) for i in range(size)] if delta else []
    expected = 1.0 if any(log > 0 for log in logs) else min(1.0, math.fsum(map(math.exp, logs)))
    assert pair.epsilon == size * epsilon
    assert pair.delta == pytest.approx(expected, rel=1e-12)


def test_a_group_whose_epsilon_no_float_holds_is_told_all() -> None:
    assert only(group(2, ev.PureDP(epsilon=1e308))) == pr.ApproximatePair(0.0, 1.0)


def test_each_member_of_a_group_answers_for_itself() -> None:
    response = ev.RandomizedResponse(keep_probability=0.8)
    assert reduce_event(group(3, response), ADD) == [(pr.ResponsePair(0.8, 2), 3)]
    assert reduce_event(ev.Repeated(times=5, event=group(3, response)), REPLACE) == [(pr.ResponsePair(0.8, 2), 15)]
    assert reduce_event(group(3, poisson(0.1, response)), ADD) == [(pr.SampledPair(0.1, pr.ResponsePair(0.8, 2)), 3)]


@pytest.mark.parametrize(
    ("event", "size"),
    [
        (GAUSSIAN, 1),
        (group(1, GAUSSIAN), 1),
        (group(3, group(2, GAUSSIAN)), 6),
        (ev.Repeated(times=9, event=poisson(0.1, group(4, GAUSSIAN))), 4),
        (ev.Composed(events=(group(2, GAUSSIAN), group(2, LAPLACE))), 2),
        (group(5, ev.Composed(events=(GAUSSIAN, LAPLACE))), 5),
        (ev.Composed(events=()), 1),
        (ev.Shuffled(batches=2, event=group(7, GAUSSIAN)), 7),
    ],
)
def test_the_size_of_the_group_an_event_speaks_of(event: ev.PrivacyEvent, size: int) -> None:
    assert pr.group_size(event) == size


def test_groups_of_different_sizes_in_one_composition_are_refused() -> None:
    with pytest.raises(MixedUnits, match=r"groups of \[1, 3\] units at once; wrap the whole composition"):
        pr.group_size(ev.Composed(events=(GAUSSIAN, group(3, GAUSSIAN))))


def test_a_unit_is_a_record_or_a_person_unless_stated() -> None:
    assert pr.unit_of(1, None) is PrivacyUnit.RECORD
    assert pr.unit_of(2, None) is PrivacyUnit.PERSON
    assert pr.unit_of(2, PrivacyUnit.CLIENT) is PrivacyUnit.CLIENT


# ------------------------------------------------------------------------------------- counting and free events


def test_counts_multiply_through_repetitions_and_add_up_over_compositions() -> None:
    run = ev.Repeated(times=4, event=ev.Composed(events=(GAUSSIAN, LAPLACE, ev.Repeated(times=2, event=GAUSSIAN))))
    assert reduce_event(run, ADD, 5) == [(pr.GaussianPair(1.0), 60), (pr.LaplacePair(2.0), 20)]


@pytest.mark.parametrize("times", [3, 3.0, np.int64(3)])
def test_counts_are_ints_whatever_times_was(times: Any) -> None:
    ((_, count),) = reduce_event(GAUSSIAN, ADD, times)
    assert (count, type(count)) == (3, int)


@pytest.mark.parametrize("neighbours", [ADD, ZERO, REPLACE])
@pytest.mark.parametrize(
    "event",
    [
        ev.Repeated(times=0, event=GAUSSIAN),
        ev.Composed(events=()),
        ev.PureDP(epsilon=0),
        ev.ApproximateDP(epsilon=0, delta=0),
        ev.Zcdp(rho=0),
        poisson(0.0, GAUSSIAN),
        poisson(0.5, ev.Repeated(times=0, event=GAUSSIAN)),
        poisson(0.5, ev.Composed(events=())),
        poisson(0.5, poisson(0.0, LAPLACE)),
    ],
)
def test_free_events_leave_nothing_behind(event: ev.PrivacyEvent, neighbours: Neighbours) -> None:
    assert reduce_event(event, neighbours, 7) == []
    assert reduce_event(GAUSSIAN, neighbours, 0) == []


def test_free_fixed_size_batches_leave_nothing_behind() -> None:
    for neighbours in (ZERO, REPLACE):
        assert reduce_event(fixed(0.0, GAUSSIAN), neighbours) == []
        assert reduce_event(fixed(0.5, ev.Repeated(times=0, event=GAUSSIAN)), neighbours) == []


@pytest.mark.parametrize("times", [-1, 1.5, math.nan, None, "2", True])
def test_bad_times_are_refused_by_name(times: Any) -> None:
    with pytest.raises(InvalidParameter, match="times"):
        reduce_event(GAUSSIAN, ADD, times)


def test_an_event_from_elsewhere_is_refused_by_name() -> None:
    class Exponential(ev.PrivacyEvent):
        pass

    for event in (Exponential(), poisson(0.1, Exponential()), ev.Composed(events=(GAUSSIAN, Exponential()))):
        with pytest.raises(UnsupportedEvent, match=r"Exponential is no event this version knows; .* PureDP"):
            reduce_event(event, ADD)


# ---------------------------------------------------------------------------------------------- Poisson sampling


@pytest.mark.parametrize("neighbours", [ADD, ZERO])
@pytest.mark.parametrize("rate", [0.02, 0.3, 0.9])
def test_a_poisson_sampled_sum_is_dominated_in_both_directions_whatever_the_others_do(
    neighbours: Neighbours, rate: float
) -> None:
    """Another record of the batch, with its own coin, only helps to hide; alone, the pair is attained."""
    for event, noise in ((gaussian(0.8), bell), (LAPLACE, spike)):
        scale = event.noise_multiplier
        pair = only(poisson(rate, event), neighbours)
        for mine, theirs in ((1.0, None), (1.0, 1.0), (1.0, -1.0), (0.4, 0.7)):
            if theirs is None:
                without, with_me = noise(0, scale), drawn(rate, noise(0, scale), noise(mine, scale))
            else:
                without = drawn(rate, noise(0, scale), noise(theirs, scale))
                with_me = drawn(rate, without, drawn(rate, noise(mine, scale), noise(mine + theirs, scale)))
            assert_dominated(pair, with_me, without, tight=theirs is None)
            for odds in ODDS:  # the other direction, a pair of its own
                p, q = laws(pair)
                assert hockey(without, with_me, odds) <= hockey(q, p, odds) + ERROR


@pytest.mark.parametrize(
    ("event", "base"),
    [
        (ev.DiscreteLaplace(scale=2.0), pr.DiscreteLaplacePair(2.0, 1)),
        (ev.DiscreteGaussian(sigma=2.0), pr.DiscreteGaussianPair(2.0, 1)),
        (ev.RandomizedResponse(keep_probability=0.7, categories=3), pr.ResponsePair(0.7, 3)),
    ],
)
def test_other_noise_is_mixed_with_its_own_absence(event: ev.PrivacyEvent, base: pr.Pair) -> None:
    for neighbours in (ADD, ZERO):
        pair = only(poisson(0.25, event), neighbours)
        assert pair == pr.SampledPair(0.25, base)
        p, q = laws(base)
        assert_dominated(pair, drawn(0.25, q, p), q, tight=True)


def test_a_sampled_statement_of_epsilon_and_delta_dominates_the_worst_mechanism_that_keeps_it() -> None:
    """Add-or-remove: whatever M(without me) is, M(with me) keeps (ε, δ) to it; Poisson mixes the two."""
    pair = only(poisson(0.2, ev.ApproximateDP(epsilon=1.0, delta=0.05)))
    assert pair == pr.SampledPair(0.2, pr.ApproximatePair(1.0, 0.05))
    rng = np.random.default_rng(1)
    for _ in range(40):  # random mechanisms on five answers that keep (1, 0.05) both ways
        q = rng.dirichlet(np.full(5, 0.5))
        p = q * np.exp(rng.uniform(-1, 1, 5))
        p /= p.sum()
        if max(hockey(p, q, math.e), hockey(q, p, math.e)) <= 0.05:
            assert_dominated(pair, drawn(0.2, q, p), q)
    worst_p, worst_q = laws(pr.ApproximatePair(1.0, 0.05))
    assert_dominated(pair, drawn(0.2, worst_q, worst_p), worst_q, tight=True)
    assert pr.amplify(0.2, 1.0, 0.05) == pytest.approx((math.log(1 + 0.2 * (math.e - 1)), 0.01))


def test_amplification_of_huge_epsilons_neither_overflows_nor_jumps() -> None:
    below, above = (pr.amplify(0.01, epsilon, 0.0)[0] for epsilon in (699.999999, 700.000001))
    assert above - below == pytest.approx(2e-6, rel=1e-3)
    assert pr.amplify(0.01, 1e6, 0.5) == (1e6 + math.log(0.01), 0.005)
    assert pr.amplify(1e-300, 800.0, 0.0)[0] == pytest.approx(math.log1p(math.exp(800 - 300 * math.log(10))))


def test_sampling_at_rate_one_is_no_sampling() -> None:
    for neighbours in Neighbours:
        assert reduce_event(poisson(1.0, group(2, GAUSSIAN)), neighbours) == reduce_event(
            group(2, GAUSSIAN), neighbours
        )
    for neighbours in (ZERO, REPLACE):
        for event in (GAUSSIAN, group(2, GAUSSIAN), ev.Composed(events=(GAUSSIAN, LAPLACE)), ev.PureDP(epsilon=1.0)):
            assert reduce_event(fixed(1.0, event), neighbours) == reduce_event(event, neighbours)


def test_a_coin_of_a_coin_is_a_coin() -> None:
    assert only(poisson(0.5, poisson(0.2, GAUSSIAN))) == pr.MixturePair(1.0, 0.1)
    assert only(poisson(0.5, poisson(0.2, GAUSSIAN)), REPLACE) == pr.OppositePair(1.0, 0.1)
    assert only(poisson(0.5, poisson(0.5, poisson(0.5, LAPLACE)))) == pr.SampledPair(0.125, pr.LaplacePair(2.0))
    twice = drawn(0.5, bell(0, 1.0), drawn(0.2, bell(0, 1.0), bell(1, 1.0)))
    assert_dominated(pr.MixturePair(1.0, 0.1), twice, bell(0, 1.0), tight=True)


@pytest.mark.parametrize("neighbours", [ADD, REPLACE])
def test_gaussian_steps_that_share_one_draw_are_one_gaussian(neighbours: Neighbours) -> None:
    """Two steps at σ and 2σ on one draw, brute force in the plane: the pair of the joint noise, exactly."""
    sigma = 1.4
    inner = ev.Composed(events=(gaussian(sigma), ev.Repeated(times=1, event=gaussian(2 * sigma))))
    pair = only(poisson(0.3, inner), neighbours)
    joint = 1 / math.hypot(1 / sigma, 0.5 / sigma)
    assert pair == (pr.MixturePair(joint, 0.3) if neighbours is ADD else pr.OppositePair(joint, 0.3))

    at = np.linspace(-14, 14, 561)
    x, y = np.meshgrid(at, 2 * at)

    def plane(centre: float) -> Law:
        density = np.exp(-((x - centre) ** 2) / (2 * sigma**2) - (y - centre) ** 2 / (8 * sigma**2))
        return np.asarray(density / density.sum())

    p = drawn(0.3, plane(0), plane(1))
    q = plane(0) if neighbours is ADD else drawn(0.3, plane(0), plane(-1))
    for odds in ODDS:
        assert hockey(p, q, odds) == pytest.approx(hockey(*laws(pair), odds), abs=2e-4)


def test_joint_noise_neither_overflows_nor_divides_by_zero() -> None:
    for noise in (1e-200, 1e200):
        pair = only(poisson(0.5, ev.Repeated(times=4, event=gaussian(noise))))
        assert isinstance(pair, pr.MixturePair)
        assert pair.sigma == pytest.approx(noise / 2)


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("neighbours", [ADD, ZERO])
def test_a_group_under_poisson_sampling_is_a_binomial_mixture(size: int, neighbours: Neighbours) -> None:
    """Each record of a person has its own coin; all directions of the records are dominated, equal ones attain it."""
    rate, sigma = 0.3, 1.2
    pair = only(group(size, poisson(rate, gaussian(sigma))), neighbours)
    assert pair == pr.MixturePair(sigma, rate, size)
    for signs in itertools.product((1.0, -1.0, 0.5), repeat=size):
        p = np.zeros_like(LINE)
        for coins in itertools.product((0, 1), repeat=size):
            chance = math.prod(rate if coin else 1 - rate for coin in coins)
            p += chance * bell(float(np.dot(coins, signs)), sigma)
        q = bell(0, sigma)
        assert_dominated(pair, p, q, tight=set(signs) == {1.0}, either=set(signs) != {1.0})


def test_a_group_of_sampled_pure_events_multiplies_the_amplified_epsilon() -> None:
    """Generic group privacy of the sampled event; the real mechanism with Laplace noise stays below."""
    pair = only(group(2, poisson(0.3, LAPLACE)))
    one = math.log(1 + 0.3 * math.expm1(0.5))
    assert pair == pr.ApproximatePair(pytest.approx(2 * one), 0.0)  # type: ignore[arg-type]
    q = spike(0, 2.0)
    p = 0.49 * q + 0.42 * spike(1, 2.0) + 0.09 * spike(2, 2.0)
    assert_dominated(pair, p, q)
    assert only(group(2, poisson(0.3, ev.DiscreteLaplace(scale=2.0)))) == pair
    both = only(group(2, poisson(0.3, ev.ApproximateDP(epsilon=0.5, delta=0.01))))
    assert isinstance(both, pr.ApproximatePair)
    assert both.delta == pytest.approx(0.003 * (1 + math.exp(one)))


def test_one_coin_for_a_whole_group_can_be_cheaper_than_a_coin_for_each_member() -> None:
    """Why a Group inside a sampler is refused: the two readings differ, and neither is always the safe one."""
    together = drawn(0.3, bell(0, 0.3), bell(3, 0.3))
    apart = laws(pr.MixturePair(0.3, 0.3, 3))[0]
    assert hockey(together, bell(0, 0.3), 1.5) < hockey(apart, bell(0, 0.3), 1.5)
    together = drawn(0.3, bell(0, 3.0), bell(3, 3.0))
    apart = laws(pr.MixturePair(3.0, 0.3, 3))[0]
    assert hockey(together, bell(0, 3.0), 1.5) > hockey(apart, bell(0, 3.0), 1.5)


# ------------------------------------------------------------------------------------- replace-one with Poisson


AT = np.linspace(-9, 9, 541)
IN_THE_PLANE = 1e-4
PLANE = np.meshgrid(AT, AT)


def disc(right: float, up: float, sigma: float) -> Law:
    density = np.exp(-((PLANE[0] - right) ** 2 + (PLANE[1] - up) ** 2) / (2 * sigma**2))
    return np.asarray(density * (AT[1] - AT[0]) ** 2 / (2 * math.pi * sigma**2))


@pytest.mark.parametrize("rate", [0.05, 0.5, 0.95])
@pytest.mark.parametrize("sigma", [0.7, 1.5])
def test_opposite_records_are_the_worst_ones_under_replace_one(rate: float, sigma: float) -> None:
    """All directions and lengths of the new record v′, by quadrature in the plane: none beats v′ = −v."""
    assert only(poisson(rate, gaussian(sigma)), REPLACE) == pr.OppositePair(sigma, rate)
    none = disc(0, 0, sigma)
    mine = drawn(rate, none, disc(1, 0, sigma))
    for odds in (1.0, 1.05, 1.5, 4.0):
        worst = hockey(*laws(pr.OppositePair(sigma, rate)), odds)
        found = {}
        for degrees, length in itertools.product(range(0, 181, 30), (0.5, 1.0)):
            angle = math.radians(degrees)
            theirs = drawn(rate, none, disc(length * math.cos(angle), length * math.sin(angle), sigma))
            found[degrees, length] = max(hockey(mine, theirs, odds), hockey(theirs, mine, odds))
        assert max(found.values()) == pytest.approx(worst, abs=IN_THE_PLANE)
        assert found[180, 1.0] == pytest.approx(worst, abs=IN_THE_PLANE)
        along = [found[degrees, 1.0] for degrees in range(0, 181, 30)]
        assert all(less <= more + IN_THE_PLANE for less, more in itertools.pairwise(along)), "more angle is never safer"
        if odds < 1.5:
            assert found[90, 1.0] < worst - 3 * IN_THE_PLANE


def test_the_opposite_pair_is_its_own_mirror_image_so_it_dominates_both_ways() -> None:
    p, q = laws(pr.OppositePair(1.3, 0.2))
    for odds in ODDS:
        assert hockey(p, q, odds) == pytest.approx(hockey(q, p, odds), abs=1e-12)


def test_replacing_costs_more_than_removing_and_less_than_half_the_noise() -> None:
    for odds in (1.0, 1.2, 2.0):
        replaced = both_ways(pr.OppositePair(1.0, 0.2), odds)
        assert both_ways(pr.MixturePair(1.0, 0.2), odds) < replaced <= both_ways(pr.MixturePair(0.5, 0.2), odds) + ERROR


# ------------------------------------------------------------------------------------------------- fixed size


def test_one_fixed_size_batch_is_as_bad_as_its_envelope_says() -> None:
    """One step, all triples (record, other record, whoever takes the place when neither is drawn) in one dimension."""
    rate, sigma = 0.25, 1.6
    for neighbours in (REPLACE, ZERO):
        pair = only(fixed(rate, gaussian(sigma)), neighbours)
        assert pair == pr.EnvelopePair(sigma / 2, rate, 0.5 if neighbours is ZERO else 0.0)
        for mine, theirs, third in itertools.product((-1.0, -0.3, 0.0, 1.0), repeat=3):
            if neighbours is ZERO and theirs != 0.0:
                continue
            rest = (1 - rate) * bell(third, sigma)
            p, q = rest + rate * bell(mine, sigma), rest + rate * bell(theirs, sigma)
            for odds in ODDS:
                worst = hockey(*laws(pair), odds)
                assert max(hockey(p, q, odds), hockey(q, p, odds)) <= worst + ERROR
                if odds >= 1 and (mine, theirs, third) == (1.0, 0.0 if neighbours is ZERO else -1.0, -1.0):
                    assert hockey(p, q, odds) == pytest.approx(worst, abs=ERROR)


def test_a_real_fixed_size_batch_of_two_among_four_is_dominated() -> None:
    """Enumerate the batches: 2 of 4 records, one of which is replaced."""
    others, sigma = (-1.0, -1.0, 0.5), 1.6

    def released(record: float) -> Law:
        batches = list(itertools.combinations((record, *others), 2))
        return sum(bell(a + b, sigma) for a, b in batches) / len(batches)  # type: ignore[return-value]

    pair = only(fixed(0.5, gaussian(sigma)), REPLACE)
    for mine, theirs in itertools.product((-1.0, 0.0, 1.0), repeat=2):
        for odds in ODDS:
            assert hockey(released(mine), released(theirs), odds) <= hockey(*laws(pair), odds) + ERROR


@pytest.mark.parametrize(
    ("event", "epsilon"),
    [
        (LAPLACE, 1.0),  # 2 C under replace-one
        (ev.DiscreteLaplace(scale=2.0), 1.0),
        (ev.RandomizedResponse(keep_probability=0.75), math.log(3)),
        (ev.PureDP(epsilon=1.0), 1.0),
        (fixed(0.5, LAPLACE), math.log(1 + 0.5 * math.expm1(1.0))),
    ],
)
def test_fixed_size_batches_of_pure_events_amplify_their_epsilon(event: ev.PrivacyEvent, epsilon: float) -> None:
    pair = only(fixed(0.25, event), REPLACE)
    assert isinstance(pair, pr.ApproximatePair)
    assert pair.epsilon == pytest.approx(math.log(1 + 0.25 * math.expm1(epsilon)))
    assert pair.delta == 0


def test_fixed_size_laplace_batches_are_dominated() -> None:
    pair = only(fixed(0.25, LAPLACE), REPLACE)
    for mine, theirs, third in itertools.product((-1.0, 0.0, 1.0), repeat=3):
        rest = 0.75 * spike(third, 2.0)
        assert_dominated(pair, rest + 0.25 * spike(mine, 2.0), rest + 0.25 * spike(theirs, 2.0))


@pytest.mark.parametrize("kind", [ExactAccountant, PldAccountant])
def test_no_lower_bound_is_claimed_where_only_an_epsilon_of_each_batch_is_composed(
    kind: type[ExactAccountant | PldAccountant],
) -> None:
    for event, claimed in ((LAPLACE, False), (ev.PureDP(epsilon=0.5), True), (GAUSSIAN, True)):
        accountant = kind(neighbours=REPLACE).compose(ev.Repeated(times=20, event=fixed(0.25, event)))
        assert (accountant.epsilon(delta=1e-5).epsilon_lower > 0) is claimed
    assert not (kind(neighbours=REPLACE).compose(fixed(0.25, LAPLACE)).epsilon(delta=1e-5).epsilon_lower > 0)


def test_fixed_size_batches_keep_an_approximate_events_delta_in_proportion() -> None:
    assert only(fixed(0.25, ev.ApproximateDP(epsilon=0.0, delta=0.1)), REPLACE) == pr.ApproximatePair(0.0, 0.025)


def test_a_fixed_size_sample_may_be_shuffled_afterwards() -> None:
    """The stand-in takes the record's place in the same batch, so shuffling changes nothing."""
    assert only(fixed(0.25, ev.Shuffled(batches=8, event=gaussian(2.0))), REPLACE) == pr.EnvelopePair(1.0, 0.25)


def test_many_fixed_size_batches_can_cost_a_little_more_than_the_worst_single_one_repeated() -> None:
    """The reason for the envelope: an attacker who turns the others after the first output beats two equal steps."""
    sigma, rate = 0.5, 0.1  # in units of 2 C
    p, q = laws(pr.MixturePair(sigma, rate))
    kept = (p > 1e-30) & (q > 1e-30)
    loss = np.log(p[kept] / q[kept])
    order = np.argsort(loss)
    steps = [(p[kept][order], q[kept][order]), (q[kept][order][::-1], p[kept][order][::-1])]  # remove, add

    def second(step: tuple[Law, Law], odds: Law) -> Law:
        """H of one more step at each of many odds."""
        above_p, above_q = (np.append(np.cumsum(law[::-1])[::-1], 0.0) for law in step)
        at = np.searchsorted(np.log(step[0] / step[1]), np.log(odds))
        return np.asarray(above_p[at] - odds * above_q[at])

    remaining = 3.0 * steps[0][1] / steps[0][0]
    same = float(steps[0][0] @ second(steps[0], remaining))
    turned = float(steps[0][0] @ np.maximum(second(steps[0], remaining), second(steps[1], remaining)))
    assert same < turned < 1.02 * same


def test_repeated_batches_priced_by_old_rules_are_never_called_certified_and_say_why() -> None:
    history = History(REPLACE, None, Observer.RECIPIENTS)
    step = SingleBatch(rate=0.25, event=GAUSSIAN)
    history.add(step, 1, history.reduce(step))
    once = history.guarantee(epsilon=1.0, delta=1e-5, method="test", certified=True)
    assert (once.certified, once.warnings) == (True, ())
    history.add(step, 4, history.reduce(step, 4))
    often = history.guarantee(epsilon=1.0, delta=1e-5, method="test", certified=True)
    assert not often.certified
    assert often.warnings[0].startswith("5 fixed-size batches are composed as the worst single one")
    assert history.copy().guarantee(epsilon=1.0, delta=1e-5, method="test", certified=True) == often


@pytest.mark.parametrize(
    ("event", "draws"),
    [
        (single(0.1, GAUSSIAN), 3),
        (single(0.1, ev.Repeated(times=2, event=GAUSSIAN)), 3),
        (ev.Repeated(times=4, event=ev.Composed(events=(single(0.1, GAUSSIAN), GAUSSIAN, single(0.2, GAUSSIAN)))), 24),
        (group(1, single(0.1, GAUSSIAN)), 3),
        (single(1.0, GAUSSIAN), 0),
        (single(0.0, GAUSSIAN), 0),
        (single(0.1, LAPLACE), 0),
        (fixed(0.1, GAUSSIAN), 0),
        (poisson(0.1, GAUSSIAN), 0),
        (ev.Repeated(times=0, event=single(0.1, GAUSSIAN)), 0),
        (ev.Composed(events=()), 0),
    ],
)
def test_draws_priced_by_old_rules_are_counted_where_noise_is_gaussian(event: ev.PrivacyEvent, draws: int) -> None:
    assert pr.fixed_size_draws(event, 3) == draws


# --------------------------------------------------------------------------------------------------- shuffling


@pytest.mark.parametrize("neighbours", [ZERO, REPLACE])
def test_a_shuffled_epoch_costs_one_unamplified_event(neighbours: Neighbours) -> None:
    epoch = ev.Shuffled(batches=50, event=gaussian(2.0))
    assert reduce_event(ev.Repeated(times=9, event=epoch), neighbours) == [(only(gaussian(2.0), neighbours), 9)]


def test_one_shuffled_batch_is_the_whole_data_under_any_relation() -> None:
    assert only(ev.Shuffled(batches=1, event=GAUSSIAN), ADD) == pr.GaussianPair(1.0)


@pytest.mark.parametrize(("first", "second"), [(1.0, 1.0), (2.0, 1.0)])
def test_a_group_that_falls_into_two_batches_hides_better_than_in_one(first: float, second: float) -> None:
    """Group(Shuffled): all k records in one batch is the worst case, which is what is charged."""
    sigma = 1.3
    pair = only(group(round(first + second), ev.Shuffled(batches=4, event=gaussian(sigma))), ZERO)
    assert pair == pr.GaussianPair(sigma / (first + second))
    p, q = disc(first, second, sigma), disc(0, 0, sigma)
    for odds in ODDS:
        assert hockey(p, q, odds) <= hockey(*laws(pair), odds) + IN_THE_PLANE


def test_a_shuffled_epoch_of_two_batches_is_dominated_by_one_event() -> None:
    """Both places of the record, each with chance ½, in the plane; the others contribute −1 each."""
    sigma = 1.0
    p, q = (0.5 * disc(at, 0, sigma) + 0.5 * disc(0, at, sigma) for at in (2.0, 1.0))
    for odds in ODDS:
        assert max(hockey(p, q, odds), hockey(q, p, odds)) <= hockey(*laws(pr.GaussianPair(sigma)), odds) + IN_THE_PLANE


# ---------------------------------------------------------------------------------------------------- refusals

ZCDP, PURE = ev.Zcdp(rho=0.1), ev.PureDP(epsilon=0.1)
SKELLAM = ev.Skellam(variance=9.0, l1_sensitivity=1.0, l2_sensitivity=1.0)
VECTOR = ev.DiscreteGaussian(sigma=3.0, dimension=2)
EPOCH = ev.Shuffled(batches=2, event=GAUSSIAN)
BOTH = ev.Composed(events=(GAUSSIAN, LAPLACE))


@pytest.mark.parametrize(
    ("event", "relations", "lesson"),
    [
        (EPOCH, [ADD], "one more record moves every batch boundary .*ZERO_OUT, or sample with PoissonSampled"),
        (fixed(0.1, GAUSSIAN), [ADD], "adding a unit changes the law of every batch; .*REPLACE_ONE"),
        (group(2, fixed(0.1, GAUSSIAN)), [ZERO, REPLACE], "no tight pair; .* quietsum.privacy.group_guarantee"),
        (fixed(0.1, group(2, GAUSSIAN)), [ZERO, REPLACE], "whether one coin draws the whole group; write Group"),
        (poisson(0.1, group(2, GAUSSIAN)), Neighbours, "whether one coin draws the whole group; write Group"),
        (poisson(0.1, ev.Repeated(times=1, event=group(2, LAPLACE))), [ADD, ZERO], "leaves open"),
        (poisson(0.1, BOTH), Neighbours, "share one draw .*Repeated around PoissonSampled"),
        (poisson(0.1, ev.Repeated(times=2, event=LAPLACE)), [ADD, ZERO], "share one draw"),
        (fixed(0.1, BOTH), [ZERO, REPLACE], "share one draw"),
        (poisson(0.1, ZCDP), [ADD, ZERO], "Poisson sampling of Zcdp has no sound bound here; use Gaussian noise"),
        (poisson(0.1, ev.Repeated(times=2, event=SKELLAM)), Neighbours, "share one draw"),
        (fixed(0.1, SKELLAM), [ZERO, REPLACE], "fixed-size sampling of Skellam has no sound bound"),
        (fixed(0.1, VECTOR), [ZERO, REPLACE], "fixed-size sampling of DiscreteGaussian has no sound bound"),
        (poisson(0.1, ev.Repeated(times=2, event=poisson(0.1, GAUSSIAN))), [ADD, ZERO], "share one draw"),
        (poisson(0.1, ev.Repeated(times=1, event=poisson(0.1, GAUSSIAN))), [ADD, ZERO], "Poisson sampling of Repeated"),
        (group(2, poisson(0.1, ev.DiscreteGaussian(sigma=3.0))), [ADD, ZERO], "DiscreteGaussian for a group of 2"),
        (poisson(0.1, LAPLACE), [REPLACE], "of Laplace under replace-one has no bound here; use the add-or-remove"),
        (poisson(0.1, PURE), [REPLACE], "of PureDP under replace-one"),
        (group(2, poisson(0.1, GAUSSIAN)), [REPLACE], "of Gaussian for a group of 2 under replace-one"),
        (poisson(0.1, PURE), [ZERO], "PureDP under zero-out: its ε compares a unit with a null one, .*ADD_REMOVE"),
        (poisson(0.1, ev.ApproximateDP(epsilon=0.1, delta=0.1)), [ZERO], "sampling of ApproximateDP under zero-out"),
        (fixed(0.1, PURE), [ZERO], "sampling of PureDP under zero-out"),
        (poisson(0.1, EPOCH), Neighbours, "around Shuffled: who is drawn changes the batches of all others"),
        (poisson(0.1, fixed(0.1, LAPLACE)), Neighbours, "around FixedSizeSampled: who is drawn changes"),
        (fixed(0.1, ZCDP), [ZERO, REPLACE], "fixed-size sampling of Zcdp has no sound bound here"),
        (fixed(0.1, ev.DiscreteGaussian(sigma=3.0)), [ZERO, REPLACE], "fixed-size sampling of DiscreteGaussian"),
        (fixed(0.1, poisson(0.1, GAUSSIAN)), [ZERO, REPLACE], "fixed-size sampling of PoissonSampled"),
        (fixed(0.1, fixed(0.1, GAUSSIAN)), [ZERO, REPLACE], "fixed-size sampling of FixedSizeSampled"),
    ],
)  # fmt: skip
def test_what_has_no_sound_bound_is_refused_with_a_way_out(
    event: ev.PrivacyEvent, relations: Sequence[Neighbours], lesson: str
) -> None:
    for neighbours in relations:
        with pytest.raises(UnsupportedEvent, match=lesson):
            reduce_event(event, neighbours)


def test_a_null_unit_that_is_drawn_is_not_an_absent_one_so_zero_out_amplifies_no_bare_statement() -> None:
    """The counterexample behind the refusal: a mechanism that shows its batch size, 0.5-DP for zero-out, sampled."""
    rate, high = 0.2, 1 / (1 + math.exp(-0.5))
    absent = np.array([1.0, 0, 0])  # "nobody was drawn", visible in the size of the batch
    p, q = (drawn(rate, absent, np.array([0, *answer])) for answer in ((high, 1 - high), (1 - high, high)))
    claimed = pr.SampledPair(rate, pr.ApproximatePair(0.5))
    odds = math.exp(0.3)
    assert hockey(p, q, odds) > 1.5 * both_ways(claimed, odds) + 1e-3


def test_pairs_without_an_epsilon_have_none() -> None:
    with pytest.raises(UnsupportedEvent, match="ZcdpPair is not"):
        pr._as_approximate(pr.ZcdpPair(1.0))
