"""Rényi curves of single steps, against mpmath (integrals and sums written out here) and two other libraries."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import mpmath
import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, LaplaceDpEvent, PoissonSampledDpEvent
from dp_accounting.rdp import RdpAccountant
from hypothesis import given, settings, strategies as st
from mpmath import mpf

from quietsum.errors import UnsupportedEvent
from quietsum.privacy.pairs import (
    ApproximatePair,
    DiscreteGaussianPair,
    DiscreteLaplacePair,
    GaussianPair,
    LaplacePair,
    MixturePair,
    OppositePair,
    Pair,
    ResponsePair,
    SampledPair,
    SkellamPair,
    VectorDiscreteGaussianPair,
    ZcdpPair,
)
from quietsum.privacy.renyi.curves import DEFAULT_ORDERS, failure_of, rdp_of, require_rdp

SAFE = 1e-9  # curves are rounded up by about 4e-11 at the smallest order, less elsewhere


def divergence(pair: Pair, order: float) -> float:
    return float(rdp_of(pair, (order,))[0])


def just_above(value: float, truth: Any, tolerance: float = SAFE) -> bool:
    """At least the truth, and hardly more."""
    return bool(truth * (1 - mpf(10) ** -13) <= value <= truth * (1 + mpf(tolerance)))


def mixture_divergence(p_shares: dict[int, Any], q_shares: dict[int, Any], sigma: float, order: float) -> Any:
    """D_α(P‖Q) of two mixtures of N(j, σ²) with shares b_j, as ln(1 + ∫ N (p^α q^{1−α} − q − α (p − q))) / (α − 1)."""
    with mpmath.workdps(30):
        variance, alpha = mpf(sigma) ** 2, mpf(order)

        def density(shares: dict[int, Any], x: Any) -> Any:
            return sum(b * mpmath.exp((2 * j * x - j * j) / (2 * variance)) for j, b in shares.items())

        def integrand(x: Any) -> Any:
            p, q = density(p_shares, x), density(q_shares, x)
            return mpmath.npdf(x, 0, sigma) * (p**alpha * q ** (1 - alpha) - q - alpha * (p - q))

        reach = 2 * order * max(max(map(abs, p_shares)), max(map(abs, q_shares)))
        low, high = -reach - 12 * sigma, reach + 12 * sigma
        panels = min(60, int((high - low) / (2.5 * sigma)) + 4)
        cuts = mpmath.linspace(low, high, panels + 1)
        return mpmath.log1p(mpmath.quad(integrand, cuts, method="gauss-legendre", maxdegree=4)) / (alpha - 1)


def binomial(size: int, rate: float) -> dict[int, Any]:
    q = mpf(rate)
    return {j: mpmath.binomial(size, j) * q**j * (1 - q) ** (size - j) for j in range(size + 1)}


def listed_divergence(p: Sequence[Any], q: Sequence[Any], rate: float, order: float) -> Any:
    """The larger of both directions of (1 − rate) Q + rate P against Q, for two lists of masses."""
    with mpmath.workdps(40):
        alpha, share = mpf(order), mpf(rate)
        mixed = [(1 - share) * b + share * a for a, b in zip(p, q, strict=True)]
        both = (
            mpmath.fsum(m**alpha * b ** (1 - alpha) for m, b in zip(mixed, q, strict=True)),
            mpmath.fsum(b**alpha * m ** (1 - alpha) for m, b in zip(mixed, q, strict=True)),
        )
        return mpmath.log(max(both)) / (alpha - 1)


# ------------------------------------------------------------------------------ the Poisson-sampled Gaussian


@pytest.mark.parametrize(
    ("sigma", "rate"),
    [(1.0, 0.01), (0.3, 0.1), (50.0, 0.1), (1.0, 1e-6), (50.0, 1e-6), (2.0, 0.5), (0.7, 1e-10), (0.3, 1e-6)],
)
@pytest.mark.parametrize("order", [1.005, 2.0, 3.7, 11.9, 12.0])
@pytest.mark.some(16)
def test_the_sampled_gaussian_agrees_with_quadrature_at_whole_and_broken_orders(
    sigma: float, rate: float, order: float
) -> None:
    truth = mixture_divergence(binomial(1, rate), {0: mpf(1)}, sigma, order)
    assert just_above(divergence(MixturePair(sigma, rate), order), truth)


@pytest.mark.parametrize(("sigma", "rate"), [(1.0, 0.01), (0.5, 0.3), (4.0, 1e-4), (0.3, 1e-6), (50.0, 0.9)])
def test_opacus_and_dp_accounting_agree_at_whole_orders(sigma: float, rate: float) -> None:
    opacus = pytest.importorskip("opacus.accountants.analysis").rdp
    orders = tuple(float(n) for n in (2, 3, 5, 8, 11, 12, 13, 32, 64, 129, 256))
    ours = rdp_of(MixturePair(sigma, rate), orders)
    google = RdpAccountant(list(orders))
    google.compose(PoissonSampledDpEvent(rate, GaussianDpEvent(sigma)))
    for theirs in (google.rdp, opacus.compute_rdp(q=rate, noise_multiplier=sigma, steps=1, orders=list(orders))):
        # They take the logarithm of a sum near 1, so a small divergence keeps only absolute accuracy.
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=3e-15)


@pytest.mark.parametrize(
    ("sigma", "rate"), [(1.0, 0.01), (4.0, 0.03), (4.0, 1e-4), (3.0, 0.5), (0.3, 1e-6), (50.0, 0.9)]
)
@pytest.mark.some(3)
def test_long_binomial_sums_are_not_shortened_at_the_cost_of_the_bound(sigma: float, rate: float) -> None:
    """Σ_k C(α, k) (1 − q)^{α−k} q^k e^{k(k−1)/2σ²}, every term of it."""
    for order in (128, 129, 304, 2048):
        with mpmath.workdps(40):
            q, odds = mpf(rate), 2 * mpf(sigma) ** 2
            moment = mpmath.fsum(
                mpmath.binomial(order, k) * (1 - q) ** (order - k) * q**k * mpmath.exp(k * (k - 1) / odds)
                for k in range(order + 1)
            )
            truth = mpmath.log(moment) / (order - 1)
        assert just_above(divergence(MixturePair(sigma, rate), float(order)), truth)


def test_ten_percent_more_noise_would_be_noticed() -> None:
    truth = mixture_divergence(binomial(1, 0.01), {0: mpf(1)}, 1.0, 3.7)
    assert not just_above(divergence(MixturePair(1.1, 0.01), 3.7), truth)
    assert divergence(MixturePair(1.1, 0.01), 3.7) < truth


@pytest.mark.parametrize(("sigma", "rate", "order"), [(1.0, 0.1, 1.5), (0.5, 0.5, 3.0), (2.0, 0.9, 8.0)])
def test_removing_a_record_is_the_worse_direction(sigma: float, rate: float, order: float) -> None:
    add = mixture_divergence({0: mpf(1)}, binomial(1, rate), sigma, order)
    assert add < divergence(MixturePair(sigma, rate), order)


@pytest.mark.parametrize(("sigma", "order"), [(0.02, 1.5), (0.02, 11.5), (0.05, 2.0)])
def test_too_little_noise_for_the_quadrature_still_gets_an_upper_bound(sigma: float, order: float) -> None:
    """At such noise D_α is α/2σ² but for a few units: the closed bound misses at most ln(1/q) α/(α − 1)."""
    rate = 0.1
    truth_at_most = order / (2 * sigma**2)
    truth_at_least = truth_at_most + order / (order - 1) * math.log(rate)
    assert truth_at_least <= divergence(MixturePair(sigma, rate), order) <= truth_at_most * (1 + 1e-9)


def test_noise_beyond_all_measure_costs_infinitely_much_or_next_to_nothing() -> None:
    for kind in (
        GaussianPair,
        lambda s: MixturePair(s, 0.1),
        lambda s: MixturePair(s, 0.1, 3),
        lambda s: OppositePair(s, 0.1),
    ):
        assert np.isinf(rdp_of(kind(1e-200), DEFAULT_ORDERS)).all()
        tiny = rdp_of(kind(1e200), DEFAULT_ORDERS)
        assert (tiny > 0).all() and (tiny < 1e-150).all()  # never a silent zero


# -------------------------------------------------------------------------------- groups and replaced records


@pytest.mark.parametrize(("sigma", "rate", "size"), [(2.2, 0.0032, 10), (1.0, 0.1, 3), (5.0, 1e-5, 4)])
@pytest.mark.parametrize("order", [1.005, 2.0, 5.5])
@pytest.mark.some(4)
def test_a_group_is_a_binomial_mixture_in_its_worse_direction(
    sigma: float, rate: float, size: int, order: float
) -> None:
    shares, nobody = binomial(size, rate), {0: mpf(1)}
    truth = max(mixture_divergence(shares, nobody, sigma, order), mixture_divergence(nobody, shares, sigma, order))
    assert just_above(divergence(MixturePair(sigma, rate, size), order), truth)


def test_a_group_of_one_is_a_record() -> None:
    both = [rdp_of(MixturePair(1.3, 0.02, 1), DEFAULT_ORDERS)]
    both.append(np.asarray([max(_mixture(1.3, 0.02, order)) for order in DEFAULT_ORDERS]))
    np.testing.assert_allclose(both[0], both[1], rtol=1e-9)


def _mixture(sigma: float, rate: float, order: float) -> list[float]:
    from quietsum.privacy.exact.contour import Direction
    from quietsum.privacy.renyi.moments import mixture_curve

    return [float(mixture_curve(MixturePair(sigma, rate, 1), each, np.array([order]))[0]) for each in Direction]


def test_groups_with_little_noise_and_large_groups_have_finite_curves() -> None:
    for pair in (MixturePair(0.5, 0.1, 10), MixturePair(0.1, 0.5, 3), MixturePair(1.0, 0.01, 200)):
        curve = rdp_of(pair, DEFAULT_ORDERS)
        assert np.isfinite(curve).all()
        assert (np.diff(curve) >= -1e-9 * curve[1:]).all()
        assert (curve <= np.array(DEFAULT_ORDERS) * (pair.size / pair.sigma) ** 2 / 2 * (1 + 1e-9)).all()


@pytest.mark.parametrize(("sigma", "rate"), [(1.0, 0.01), (0.5, 0.2), (3.0, 1e-5)])
@pytest.mark.parametrize("order", [1.005, 2.0, 5.5, 20.0])
@pytest.mark.some(5)
def test_replacing_a_record_compares_opposite_mixtures(sigma: float, rate: float, order: float) -> None:
    q = mpf(rate)
    truth = mixture_divergence({0: 1 - q, 1: q}, {0: 1 - q, -1: q}, sigma, order)
    assert just_above(divergence(OppositePair(sigma, rate), order), truth)


# ---------------------------------------------------------------------------------------------- closed forms


def test_gaussian_discrete_gaussian_and_zcdp_are_lines() -> None:
    orders = (1.5, 2.0, 64.0)
    for pair, rho in (
        (GaussianPair(4.0), 1 / 32),
        (DiscreteGaussianPair(4.0, 2), 4 / 32),
        (VectorDiscreteGaussianPair(4.0, 1.5), 1.5**2 / 32),
        (ZcdpPair(0.3), 0.3),
    ):
        np.testing.assert_allclose(rdp_of(pair, orders), [order * rho for order in orders], rtol=1e-14)


@pytest.mark.parametrize("scale", [0.1, 1.0, 30.0, 1e6])
@pytest.mark.parametrize("order", [1.005, 2.0, 7.3, 64.0])
@pytest.mark.some(6)
def test_laplace_agrees_with_its_integral(scale: float, order: float) -> None:
    with mpmath.workdps(40):
        b, alpha = mpf(scale), mpf(order)

        def integrand(x: Any) -> Any:
            return mpmath.exp(-alpha * abs(x - 1) / b - (1 - alpha) * abs(x) / b) / (2 * b)

        moment = mpmath.quad(integrand, [-mpmath.inf, 0, 0.5, 1, mpmath.inf])
        truth = mpmath.log(moment) / (alpha - 1)
    assert just_above(divergence(LaplacePair(scale), order), truth)


def test_laplace_agrees_with_dp_accounting() -> None:
    orders = (2.0, 3.0, 16.0, 64.0)
    google = RdpAccountant(list(orders))
    google.compose(LaplaceDpEvent(2.0))
    np.testing.assert_allclose(rdp_of(LaplacePair(2.0), orders), google.rdp, rtol=1e-10)


@pytest.mark.parametrize("variance", [0.2, 4.0, 30.0, 200.0])
@pytest.mark.parametrize("shift", [1, 2, 5])
@pytest.mark.some(4)
def test_skellam_noise_costs_no_more_than_its_bound(variance: float, shift: int) -> None:
    """One dimension, where the truth is a sum over Bessel functions: P(k) = e^{−μ} I_k(μ)."""
    for order in (2, 3, 8, 20):
        with mpmath.workdps(40):
            reach = int(12 * math.sqrt(variance) + 40 + 3 * order * shift)
            log_mass = [mpmath.log(mpmath.besseli(k, variance)) - variance for k in range(reach + shift + 1)]
            moment = mpmath.fsum(
                mpmath.exp(order * log_mass[abs(k - shift)] + (1 - order) * log_mass[abs(k)])
                for k in range(-reach, reach + 1)
            )
            truth = mpmath.log(moment) / (order - 1)
        bound = divergence(SkellamPair(variance, shift, shift), float(order))
        assert truth < bound
        if variance == 200 and order <= 8:
            assert bound < truth * 1.02  # and it is a useful bound where the noise is
        assert divergence(SkellamPair(variance, shift, shift), order - 0.5) == bound  # shown for whole orders only


# ------------------------------------------------------------------------------- losses with few values

RESPONSES = [(0.7, 2), (0.2, 10), (0.1, 3)]


def response_masses(keep: float, categories: int) -> tuple[list[Any], list[Any]]:
    with mpmath.workdps(40):
        kept, other = mpf(keep), (1 - mpf(keep)) / (categories - 1)
        rest = [other] * (categories - 2)
        return [kept, other, *rest], [other, kept, *rest]


@pytest.mark.parametrize(("keep", "categories"), RESPONSES)
@pytest.mark.parametrize("rate", [1.0, 0.5, 0.01])
def test_randomised_response_agrees_with_the_sum_over_its_answers(keep: float, categories: int, rate: float) -> None:
    pair = ResponsePair(keep, categories)
    for order in (1.005, 2.0, 7.3, 64.0, 2048.0):
        truth = listed_divergence(*response_masses(keep, categories), rate, order)
        assert just_above(divergence(SampledPair(rate, pair) if rate < 1 else pair, order), truth)


@pytest.mark.parametrize("epsilon", [1e-6, 0.5, 3.0, 50.0])
def test_pure_dp_is_its_worst_randomised_response(epsilon: float) -> None:
    with mpmath.workdps(60):
        keep = 1 / (1 + mpmath.exp(-mpf(epsilon)))
        for order in (1.005, 2.0, 64.0, 2048.0):
            truth = listed_divergence([keep, 1 - keep], [1 - keep, keep], 1.0, order)
            assert just_above(divergence(ApproximatePair(epsilon), order), truth)


def test_pure_dp_of_a_thousand_neither_overflows_nor_exceeds_a_thousand() -> None:
    for pair in (ApproximatePair(1000.0), LaplacePair(1e-3), LaplacePair(1e-9), DiscreteLaplacePair(1e-3, 1)):
        curve = rdp_of(pair, DEFAULT_ORDERS)
        epsilon = 1 / pair.scale if isinstance(pair, LaplacePair) else 1000.0
        sampled = rdp_of(SampledPair(0.1, pair), DEFAULT_ORDERS)
        assert (sampled <= curve).all() and sampled[-1] == pytest.approx(epsilon + math.log(0.1), rel=1e-2)
        assert np.isfinite(curve).all() and (curve <= epsilon * (1 + 1e-9)).all()
        assert curve[-1] == pytest.approx(epsilon, rel=1e-2)


def discrete_laplace(scale: float, shift: int) -> tuple[list[Any], list[Any]]:
    with mpmath.workdps(40):
        reach = int(60 * scale) + shift + 5
        unit = mpmath.tanh(1 / (2 * mpf(scale)))
        return tuple(  # type: ignore[return-value]
            [unit * mpmath.exp(-abs(k - centre) / mpf(scale)) for k in range(-reach, reach + shift)]
            for centre in (shift, 0)
        )


@pytest.mark.parametrize(("scale", "shift"), [(2.0, 1), (5.0, 3), (0.3, 2)])
@pytest.mark.parametrize("rate", [1.0, 0.5, 0.01])
def test_discrete_laplace_agrees_with_the_sum_over_the_integers(scale: float, shift: int, rate: float) -> None:
    p, q = discrete_laplace(scale, shift)
    pair = DiscreteLaplacePair(scale, shift)
    for order in (1.005, 2.0, 20.0):
        truth = listed_divergence(p, q, rate, order)
        assert just_above(divergence(SampledPair(rate, pair) if rate < 1 else pair, order), truth)


def test_a_huge_shift_of_discrete_laplace_noise_is_charged_as_pure_dp() -> None:
    many = rdp_of(DiscreteLaplacePair(1e5, 50_000), DEFAULT_ORDERS)
    listed = rdp_of(DiscreteLaplacePair(2e4, 10_000), DEFAULT_ORDERS)
    np.testing.assert_allclose(many, rdp_of(ApproximatePair(0.5), DEFAULT_ORDERS), rtol=1e-12)
    assert (many > listed).all()


@pytest.mark.parametrize(("scale", "tolerance"), [(1.0, 1e-6), (0.1, 1e-5), (30.0, 1e-7)])
@pytest.mark.parametrize("rate", [0.5, 0.01])
@pytest.mark.some(2)
def test_sampled_laplace_is_never_below_its_integral_and_hardly_above(
    scale: float, tolerance: float, rate: float
) -> None:
    with mpmath.workdps(30):
        b, share = mpf(scale), mpf(rate)

        def laws(x: Any) -> tuple[Any, Any]:
            q = mpmath.exp(-abs(x) / b) / (2 * b)
            return (1 - share) * q + share * mpmath.exp(-abs(x - 1) / b) / (2 * b), q

        def moment(first: int, alpha: Any) -> Any:
            def integrand(x: Any) -> Any:
                p, q = laws(x) if first == 0 else laws(x)[::-1]
                return p**alpha * q ** (1 - alpha)

            return mpmath.quad(integrand, [-mpmath.inf, 0, *(mpf(i) / 8 for i in range(1, 9)), mpmath.inf])

        for order in (1.05, 2.0, 20.0):
            remove, add = (mpmath.log(moment(first, mpf(order))) / (mpf(order) - 1) for first in (0, 1))
            assert add <= remove
            assert just_above(divergence(SampledPair(rate, LaplacePair(scale)), order), remove, tolerance)


def discrete_gaussian(sigma: float, shift: int, order: float) -> tuple[list[Any], list[Any]]:
    with mpmath.workdps(40):
        s = mpf(sigma)
        reach = int(15 * sigma) + 3
        total = mpmath.fsum(mpmath.exp(-(mpf(k) ** 2) / (2 * s * s)) for k in range(-reach, reach + 1))
        support = range(-reach, reach + int(order * shift) + shift + 1)
        return tuple(  # type: ignore[return-value]
            [mpmath.exp(-(mpf(k - centre) ** 2) / (2 * s * s)) / total for k in support] for centre in (shift, 0)
        )


@pytest.mark.parametrize(("sigma", "shift"), [(1.0, 1), (5.0, 3), (0.3, 1), (0.6, 2), (12.0, 1)])
def test_discrete_gaussian_agrees_with_the_sum_over_the_integers(sigma: float, shift: int) -> None:
    for order in (1.005, 1.7, 2.0, 5.5, 12.0, 12.5):
        p, q = discrete_gaussian(sigma, shift, order)
        for rate in (0.5, 0.01):
            truth = listed_divergence(p, q, rate, order)
            assert just_above(divergence(SampledPair(rate, DiscreteGaussianPair(sigma, shift)), order), truth)
        assert listed_divergence(p, q, 1.0, order) <= divergence(DiscreteGaussianPair(sigma, shift), order) * (
            1 + 1e-12
        )


def test_sampled_discrete_and_continuous_gaussian_share_whole_orders() -> None:
    orders = (2.0, 3.0, 12.0, 64.0)
    np.testing.assert_allclose(
        rdp_of(SampledPair(0.1, DiscreteGaussianPair(2.0, 2)), orders), rdp_of(MixturePair(1.0, 0.1), orders), rtol=1e-9
    )


@pytest.mark.parametrize(("epsilon", "delta", "rate"), [(1.0, 1e-3, 0.3), (0.2, 0.1, 0.5), (3.0, 1e-6, 0.01)])
def test_a_sampled_approximate_event_fails_with_its_share_of_delta_and_has_a_bounded_rest(
    epsilon: float, delta: float, rate: float
) -> None:
    """Remove: what P' puts where Q is positive, against Q. Add: Q against P', which has no failure at all."""
    pair = SampledPair(rate, ApproximatePair(epsilon, delta))
    assert failure_of(pair) == pytest.approx(rate * delta)
    with mpmath.workdps(40):
        d, share, odds = mpf(delta), mpf(rate), mpmath.exp(mpf(epsilon))
        q = [d, (1 - d) * odds / (1 + odds), (1 - d) / (1 + odds)]  # told all, the two answers
        p = [mpf(0), q[2], q[1]]
        mixed = [(1 - share) * b + share * a for a, b in zip(p, q, strict=True)]
        for order in (1.5, 2.0, 20.0, 300.0):
            alpha = mpf(order)
            rest = mpmath.fsum(m**alpha * b ** (1 - alpha) for m, b in zip(mixed, q, strict=True))
            add = mpmath.fsum(b**alpha * m ** (1 - alpha) for m, b in zip(mixed, q, strict=True))
            truth = mpmath.log(max(rest, add, mpf(1))) / (alpha - 1)
            bound = divergence(pair, order)
            assert truth * (1 - mpf(10) ** -12) <= bound
            assert bound <= truth + 2 * rate * delta * order / (order - 1) + 1e-12  # Σ P' < 1 is not made use of


def test_an_event_that_only_fails_has_an_empty_curve() -> None:
    assert not rdp_of(ApproximatePair(0.0, 0.1), DEFAULT_ORDERS).any()
    assert failure_of(ApproximatePair(0.0, 0.1)) == 0.1
    assert failure_of(GaussianPair(1.0)) == 0.0


# ------------------------------------------------------------------------------------------------ properties

PAIRS: dict[str, Callable[[float, float], Pair]] = {
    "sampled gaussian": lambda noise, rate: MixturePair(noise, rate),
    "group": lambda noise, rate: MixturePair(noise, rate, 3),
    "replaced": lambda noise, rate: OppositePair(noise, rate),
    "laplace": lambda noise, rate: SampledPair(rate, LaplacePair(noise)),
    "discrete laplace": lambda noise, rate: SampledPair(rate, DiscreteLaplacePair(noise, 2)),
    "discrete gaussian": lambda noise, rate: SampledPair(rate, DiscreteGaussianPair(noise, 1)),
    "pure": lambda noise, rate: SampledPair(rate, ApproximatePair(1 / noise)),
}


@pytest.mark.parametrize("kind", PAIRS)
@settings(max_examples=30)
@given(noise=st.floats(0.2, 100.0), rate=st.floats(1e-12, 0.99))
def test_curves_grow_with_the_order_and_the_rate_and_fall_with_the_noise(kind: str, noise: float, rate: float) -> None:
    orders = DEFAULT_ORDERS[::12]
    curve = rdp_of(PAIRS[kind](noise, rate), orders)
    assert np.isfinite(curve).all() and (curve > 0).all()
    assert (np.diff(curve) >= -1e-9 * curve[1:]).all()
    assert (rdp_of(PAIRS[kind](noise, rate / 2), orders) <= curve * (1 + 1e-9)).all()
    assert (rdp_of(PAIRS[kind](noise * 1.5, rate), orders) <= curve * (1 + 1e-9)).all()


def test_curves_cannot_be_altered_by_who_reads_them() -> None:
    with pytest.raises(ValueError, match="read-only"):
        rdp_of(GaussianPair(1.0), (2.0,))[0] = 0.0


def test_unknown_pairs_are_refused_by_name() -> None:
    class Unknown(Pair):
        pass

    for pair, name in ((Unknown(), "Unknown"), (SampledPair(0.1, GaussianPair(1.0)), "GaussianPair under sampling")):
        with pytest.raises(UnsupportedEvent, match=name):
            require_rdp(pair)


def test_the_default_orders_are_whole_up_to_64_and_reach_far_to_both_sides() -> None:
    assert list(DEFAULT_ORDERS) == sorted(set(DEFAULT_ORDERS))
    assert {float(n) for n in range(2, 65)} <= set(DEFAULT_ORDERS)
    assert DEFAULT_ORDERS[0] <= 1.005 and DEFAULT_ORDERS[-1] == 2048
