"""Wide integer noise priced through the Gaussian next to it: how close they are, and that no price is too low."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from quietsum.contracts import AccountantContract
from quietsum.errors import CorruptState, InvalidParameter, UnsupportedEvent
from quietsum.mechanisms.distributed import DistributedNoise
from quietsum.mechanisms.noise.rejection import WideGaussian, WideSkellam
from quietsum.privacy import events as ev
from quietsum.privacy.accounting import Accountant
from quietsum.privacy.exact.accountant import ExactAccountant
from quietsum.privacy.exact.near_gaussian import LEAST_VARIANCE, NearGaussianAccountant, Tape, as_gaussian
from quietsum.privacy.units import Neighbours

WIDE = ev.Skellam(variance=1.44e12, l1_sensitivity=1e8, l2_sensitivity=1e6, dimension=10_000)
SHARES = ev.DiscreteGaussianSum(sigma=6e5, shares=4, sensitivity=1e6, dimension=10_000)


class TestNearGaussianAccountant(AccountantContract):
    events = (*AccountantContract.events[:2], WIDE, SHARES, ev.PoissonSampled(rate=0.05, event=WIDE))

    def make(self, **options: Any) -> Accountant:
        return NearGaussianAccountant(**options)


def limit(x: np.ndarray) -> Any:
    """B(x) of the module's text."""
    return x**4 / 24 + 3 * x**2 / 8 + 5 / 24


@pytest.mark.parametrize("variance", [LEAST_VARIANCE, 3.3e7, 1e10])
def test_the_laws_are_as_close_as_stated_point_by_point_and_on_average(variance: float) -> None:
    deviation = math.sqrt(variance)
    k = np.unique(np.rint(np.linspace(0, 14, 40_001) * deviation))
    x = k / deviation
    skellam, gaussian = WideSkellam(variance).log_ratio(k), WideGaussian(deviation).log_ratio(k)
    for ratio in (skellam, gaussian):
        assert np.all(np.abs(ratio) * variance <= limit(x) * (1 + 1e-9) + 1e-6)
    assert limit(np.array(14.0)) < 1675
    if variance > LEAST_VARIANCE:
        return
    k = np.arange(0, math.floor(14 * deviation) + 1.0)
    x = k / deviation
    weights = (stats.norm.sf((k - 0.5) / deviation) - stats.norm.sf((k + 0.5) / deviation)) * np.where(k > 0, 2.0, 1.0)
    ratio = WideSkellam(variance).log_ratio(k)
    for law in (weights, weights * np.exp(ratio)):
        assert law.sum() == pytest.approx(1.0, abs=1e-9)
        assert 1.3 < law @ limit(x) ** 2 < 1.4
        assert law @ ratio**2 * variance**2 < 0.06 < 1.4  # the truth is 1/24
        assert abs(law @ ratio) * variance**2 < 1.4


def test_the_distance_is_bernsteins() -> None:
    tape = Tape(1e9, 1e9 * 1.4e-24, 1675e-12)
    eta, beta = tape.distance(1e-12), 1e-12 - 1e9 * 2 * math.exp(-97)
    beyond = eta - tape.second
    assert math.exp(-beyond * beyond / (2 * tape.second + 2 * tape.largest * beyond / 3)) == pytest.approx(
        beta, rel=1e-6
    )
    assert Tape().distance(1e-12) == 0.0
    assert math.isinf(Tape(1e60, 1.0, 1.0).distance(1e-12))
    assert Tape().plus(tape, 3).coordinates == 3e9


def test_noise_on_a_tape_is_no_farther_from_normals_than_stated() -> None:
    """Tapes of 2·10⁵ coordinates at the least variance: the log ratio stays within η(10⁻⁶), and is not zero."""
    rng = np.random.default_rng(3)
    size, eta = 200_000, Tape(2e5, 2e5 * 1.4 / LEAST_VARIANCE**2, 1675 / LEAST_VARIANCE).distance(1e-6)
    law, seen = WideSkellam(LEAST_VARIANCE), []
    for _ in range(20):
        k = np.abs(np.rint(rng.normal(size=size) * law.scale))
        seen.append(float(law.log_ratio(k).sum()))
    assert max(map(abs, seen)) < eta
    assert max(map(abs, seen)) > eta / 1000


@pytest.mark.parametrize("neighbours", list(Neighbours))
@pytest.mark.parametrize("event", [WIDE, SHARES], ids=lambda event: event.kind)
def test_the_price_is_the_exact_gaussians_and_a_hair(event: Any, neighbours: Neighbours) -> None:
    for times, wrap in (
        (200, lambda inner: ev.PoissonSampled(rate=0.02, event=inner)),
        (200, lambda inner: ev.OneInOneOut(event=ev.PoissonSampled(rate=0.02, event=inner))),
        (5, lambda inner: inner),
    ):
        mine = NearGaussianAccountant(neighbours=neighbours).compose(wrap(event), times)
        found = mine.epsilon(delta=1e-6)
        exact = ExactAccountant(neighbours=neighbours).compose(wrap(ev.Gaussian(noise_multiplier=1.2)), times)
        ideal = exact.epsilon(delta=1e-6).epsilon
        assert ideal < found.epsilon < ideal * 1.0001 + 1e-4
        assert found.epsilon < mine.by_moments.epsilon(delta=1e-6).epsilon
        assert "through the Gaussian" in found.method and found.epsilon_lower == 0 and not found.certified
        assert mine.delta(epsilon=found.epsilon) <= 1e-6 * 1.01


def test_in_one_dimension_the_bound_lies_above_the_laws_own_delta() -> None:
    """Brute force: Skellam noise of variance 2³⁰ on one integer, shifted by one deviation."""
    variance, shift = 2.0**30, 2**15
    k = np.arange(-9 * shift, 9 * shift + 1).astype(np.float64)
    law = WideSkellam(variance)
    normal = stats.norm.sf((np.abs(k) - 0.5) / law.scale) - stats.norm.sf((np.abs(k) + 0.5) / law.scale)
    noise = normal * np.exp(law.log_ratio(np.abs(k)))
    q, p = np.append(noise, np.zeros(shift)), np.append(np.zeros(shift), noise)
    event = ev.Skellam(variance=variance, l1_sensitivity=shift, l2_sensitivity=shift, dimension=1)
    for rate in (1.0, 0.1):
        mixed = (1 - rate) * q + rate * p
        run = NearGaussianAccountant().compose(ev.PoissonSampled(rate=rate, event=event))
        for epsilon in (0.2, 0.5, 1.0):
            truth = float(np.maximum(mixed - math.exp(epsilon) * q, 0).sum())
            assert truth <= run.delta(epsilon=epsilon) < truth * 1.01
    less = NearGaussianAccountant().compose(ev.Skellam(
        variance=variance * 1.03, l1_sensitivity=shift, l2_sensitivity=shift, dimension=1))  # fmt: skip
    assert less.delta(epsilon=1.0) < float(np.maximum(p - math.e * q, 0).sum())  # the control


def test_what_is_narrow_or_of_unknown_dimension_is_left_to_renyi() -> None:
    narrow = ev.Skellam(variance=LEAST_VARIANCE / 2, l1_sensitivity=1e4, l2_sensitivity=1e3, dimension=100)
    unknown = ev.Skellam(variance=1e12, l1_sensitivity=1e8, l2_sensitivity=1e6)
    shares = ev.DiscreteGaussianSum(sigma=1.2, shares=10**6, sensitivity=1e3, dimension=100)  # each far too narrow
    for event in (narrow, unknown, shares, ev.Repeated(times=2, event=narrow), ev.Composed(events=(WIDE, unknown))):
        assert as_gaussian(event) is None
        run = NearGaussianAccountant().compose(event)
        assert run.epsilon(delta=1e-5) == run.by_moments.epsilon(delta=1e-5)
        assert run.delta(epsilon=1.0) == run.by_moments.delta(epsilon=1.0)


def test_a_tape_that_is_too_long_is_left_to_renyi() -> None:
    event = ev.Skellam(variance=LEAST_VARIANCE, l1_sensitivity=1e8, l2_sensitivity=1e3, dimension=10**9)
    run = NearGaussianAccountant().compose(event, 1000)
    assert "Rényi, improved" in run.epsilon(delta=1e-5).method


def test_the_tape_counts_every_repetition() -> None:
    found = as_gaussian(ev.Repeated(times=3, event=ev.Composed(events=(WIDE, ev.Gaussian(noise_multiplier=1.0), WIDE))))
    assert found is not None
    assert found[1].coordinates == 6 * 10_000


def test_what_renyi_refuses_is_refused_and_changes_nothing() -> None:
    run = NearGaussianAccountant().compose(WIDE)
    before = run.epsilon(delta=1e-5)
    assert not run.supports(ev.FixedSizeSampled(rate=0.1, event=WIDE))
    with pytest.raises(UnsupportedEvent):
        run.compose(ev.FixedSizeSampled(rate=0.1, event=WIDE))
    assert run.epsilon(delta=1e-5) == before == run.copy().epsilon(delta=1e-5)


def test_distributed_noise_states_the_dimension_that_this_needs() -> None:
    noise = DistributedNoise(
        max_norm=1.0, noise_multiplier=1.0, honest=4, dimension=5000, unit="record", ball=50.0, parties=5
    )
    step = ev.PoissonSampled(rate=0.01, event=noise.event())
    run = NearGaussianAccountant().compose(step, 500)
    exact = ExactAccountant().compose(ev.PoissonSampled(rate=0.01, event=ev.Gaussian(noise_multiplier=1.0)), 500)
    assert run.epsilon(delta=1e-5).epsilon < 1.005 * exact.epsilon(delta=1e-5).epsilon


def test_an_open_dimension_is_left_out_of_the_json_as_it_always_was() -> None:
    old = '{"event": {"kind": "skellam", "l1_sensitivity": 3.0, "l2_sensitivity": 2.0, "variance": 10.0}, "version": 1}'
    assert ev.to_json(ev.from_json(old)) == old
    assert ev.from_json(ev.to_json(WIDE)) == WIDE
    for wrong in (0, -1, 1.5, "3", True, math.nan):
        with pytest.raises(InvalidParameter, match="dimension"):
            ev.Skellam(variance=1.0, l1_sensitivity=1.0, l2_sensitivity=1.0, dimension=wrong)  # type: ignore[arg-type]
    for wrong in ("null", "0", '"3"'):
        with pytest.raises(CorruptState):
            ev.from_json(old.replace('"kind"', f'"dimension": {wrong}, "kind"'))
