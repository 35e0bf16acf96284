"""Shuffled batches: the attack's lower bound is real, known and written on every guarantee."""

from __future__ import annotations

import itertools
import math
import re

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.signal import fftconvolve

from quietsum.errors import InvalidParameter
from quietsum.privacy import events as ev
from quietsum.privacy.exact.accountant import ExactAccountant
from quietsum.privacy.guarantee import Guarantee
from quietsum.privacy.renyi.accountant import RenyiAccountant
from quietsum.privacy.shuffled import ShuffledEpochs, shuffled_epochs, shuffled_epsilon_lower
from quietsum.privacy.units import Neighbours

Law = NDArray[np.float64]
GAUSSIAN = ev.Gaussian(noise_multiplier=1.0)


def epoch(batches: int = 312, noise: float = 1.0) -> ev.Shuffled:
    return ev.Shuffled(batches=batches, event=ev.Gaussian(noise_multiplier=noise))


def gaussian_epsilon(mu: float, delta: float) -> float:
    """By bisection of the closed form, independent of the package."""
    low, high = 0.0, 1e4
    for _ in range(100):
        middle = (low + high) / 2
        first, second = (0.5 * math.erfc((middle / mu + sign * mu / 2) / math.sqrt(2)) for sign in (-1, 1))
        exact = first - (math.exp(middle + math.log(second)) if second > 0 else 0.0)
        low, high = (middle, high) if exact > delta else (low, middle)
    return high


# ---------------------------------------------------------------------------------------------- the bound


@pytest.mark.parametrize(
    ("noise", "epochs", "known", "poisson"),
    [(1.0, 1, 3.62, 0.32), (1.0, 100, 18.35, 3.17), (1.2, 100, 8.36, 2.33), (0.6, 100, 147.2, 12.0)],
)
def test_the_known_attacks_on_312_batches(noise: float, epochs: int, known: float, poisson: float) -> None:
    """Measured once elsewhere (pair of Chua et al. 2024, largest statistic); what Poisson would say is far below."""
    found = shuffled_epsilon_lower(noise_multiplier=noise, batches=312, epochs=epochs, delta=1e-5)
    assert found == pytest.approx(known, rel=1.5e-3)
    assert found > 3 * poisson
    run = ev.Repeated(
        times=312 * epochs, event=ev.PoissonSampled(rate=1 / 312, event=ev.Gaussian(noise_multiplier=noise))
    )
    assert ExactAccountant().compose(run).epsilon(delta=1e-5).epsilon == pytest.approx(poisson, rel=0.02)


def shuffled_laws(batches: int, sigma: float) -> tuple[Law, Law]:
    """One epoch in full: all ``batches`` sums on a grid, the record at +C among others at −C, or null."""
    at = np.linspace(-7 * sigma, 2 + 7 * sigma, {2: 401, 3: 111}[batches])

    def law(mine: float) -> Law:
        total = np.zeros((at.size,) * batches)
        for place in range(batches):
            parts = [np.exp(-((at - (mine if b == place else 0.0)) ** 2) / (2 * sigma**2)) for b in range(batches)]
            total += np.einsum(",".join("ijk"[:batches]) + "->" + "ijk"[:batches], *parts)
        return np.asarray(total.ravel() / total.sum())

    return law(2.0), law(1.0)


def hockey(p: Law, q: Law, epsilon: float) -> float:
    return float(np.maximum(p - math.exp(epsilon) * q, 0).sum())


@pytest.mark.parametrize("batches", [2, 3])
@pytest.mark.parametrize("sigma", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("delta", [1e-1, 1e-3, 1e-5])
def test_one_epoch_costs_at_least_the_bound(batches: int, sigma: float, delta: float) -> None:
    """At the bound the true δ, from all sums of the epoch by brute force, is still above δ."""
    bound = shuffled_epsilon_lower(noise_multiplier=sigma, batches=batches, delta=delta)
    quadrature = {2: 1e-3, 3: 2e-2}[batches]
    if bound > 0:
        assert hockey(*shuffled_laws(batches, sigma), bound) >= delta * (1 - quadrature)
    else:
        assert hockey(*shuffled_laws(batches, sigma), 0.2) < 2 * delta


@pytest.mark.parametrize("epochs", [2, 3])
def test_several_epochs_cost_at_least_the_bound(epochs: int) -> None:
    """The full losses of two batches, merged into fine cells (which only lowers δ), composed by convolution."""
    sigma, delta, spacing = 1.0, 1e-4, 1e-3
    bound = shuffled_epsilon_lower(noise_multiplier=sigma, batches=2, epochs=epochs, delta=delta)
    p, q = shuffled_laws(2, sigma)
    kept = (p > 1e-16) & (q > 1e-16)
    cells = np.floor(np.log(p[kept] / q[kept]) / spacing).astype(int)
    low = cells.min()
    mass = np.bincount(cells - low, p[kept])
    total = mass
    for _ in range(epochs - 1):
        total = fftconvolve(total, mass)
    losses = (low * epochs + np.arange(total.size)) * spacing  # rounded down: on the safe side
    delta_at_bound = float(total @ np.maximum(-np.expm1(bound - losses), 0.0))
    assert bound > 1
    assert delta_at_bound >= delta * (1 - 2e-3)


def test_an_attack_that_claims_two_percent_more_is_caught() -> None:
    """The negative control for the two tests above: with two batches the largest sum tells nearly everything."""
    bound = shuffled_epsilon_lower(noise_multiplier=0.5, batches=2, delta=1e-3)
    assert hockey(*shuffled_laws(2, 0.5), 1.02 * bound) < 1e-3


def test_one_batch_is_the_gaussian_itself() -> None:
    """Then the attack is optimal: N(2, σ²) against N(1, σ²), from below."""
    for noise, delta in itertools.product((0.5, 1.0, 4.0), (1e-3, 1e-6)):
        exact = gaussian_epsilon(1 / noise, delta)
        found = shuffled_epsilon_lower(noise_multiplier=noise, batches=1, delta=delta)
        assert 0.999 * exact - 1e-3 <= found <= exact


@pytest.mark.parametrize("noise", [0.3, 0.8, 1.5, 5.0])
@pytest.mark.parametrize("epochs", [1, 7, 300])
def test_the_bound_never_exceeds_the_unamplified_cost(noise: float, epochs: int) -> None:
    for batches, delta in itertools.product((2, 100, 10**5), (1e-3, 1e-9)):
        found = shuffled_epsilon_lower(noise_multiplier=noise, batches=batches, epochs=epochs, delta=delta)
        assert 0 <= found <= gaussian_epsilon(math.sqrt(epochs) / noise, delta)


def test_the_bound_grows_with_epochs_and_falls_with_noise_batches_and_delta() -> None:
    def bound(noise: float = 1.0, batches: int = 100, epochs: int = 10, delta: float = 1e-5) -> float:
        return shuffled_epsilon_lower(noise_multiplier=noise, batches=batches, epochs=epochs, delta=delta)

    assert bound() < bound(epochs=20) < bound(epochs=100)
    assert bound() > bound(noise=1.2) > bound(noise=2.0)
    assert bound() > bound(batches=1000)
    assert bound() > bound(delta=1e-3)


@pytest.mark.parametrize("noise", [1e-300, 1e-3, 1e3, 1e300])
@pytest.mark.parametrize(("batches", "epochs"), [(1, 1), (10**12, 3), (5, 10**9)])
def test_extreme_runs_give_a_number(noise: float, batches: int, epochs: int) -> None:
    for delta in (1e-30, 0.999):
        found = shuffled_epsilon_lower(noise_multiplier=noise, batches=batches, epochs=epochs, delta=delta)
        assert 0 <= found < math.inf


@pytest.mark.parametrize(
    ("name", "value"),
    [("noise_multiplier", 0.0), ("noise_multiplier", math.nan), ("batches", 0), ("epochs", 0), ("epochs", 1.5),
     ("delta", 0.0), ("delta", 1.0)],
)  # fmt: skip
def test_a_bad_question_is_refused_by_name(name: str, value: float) -> None:
    run = {"noise_multiplier": 1.0, "batches": 10, "epochs": 2, "delta": 1e-5, name: value}
    with pytest.raises(InvalidParameter) as caught:
        shuffled_epsilon_lower(**run)  # type: ignore[arg-type]
    assert caught.value.parameter == name


# ------------------------------------------------------------------------------------- a clip of whole batches


@pytest.mark.parametrize("sigma", [0.7, 1.5, 4.0])
def test_a_clip_of_one_batch_is_a_gaussian_of_twice_the_shift(sigma: float) -> None:
    found = shuffled_epsilon_lower(noise_multiplier=sigma, batches=1, delta=1e-5, batch_clip=True)
    exact = gaussian_epsilon(2 / sigma, 1e-5)
    assert exact - 2e-3 * exact < found <= exact


@pytest.mark.parametrize("sigma", [0.6, 1.0])
def test_of_two_clipped_batches_the_attack_shows_no_more_than_there_is(sigma: float) -> None:
    """In full on a grid: one of two numbers is N(2, σ²) on one dataset, both are N(0, σ²) on the other."""
    points = np.linspace(-9 * sigma, 2 + 9 * sigma, 1500)
    cell = (points[1] - points[0]) / (sigma * math.sqrt(2 * math.pi))
    high, zero = (cell * np.exp(-((points - centre) ** 2) / (2 * sigma**2)) for centre in (2.0, 0.0))
    mine = (np.outer(high, zero) + np.outer(zero, high)) / 2
    other = np.outer(zero, zero)
    for delta in (1e-5, 1e-3):
        low, up = 0.0, 60.0
        for _ in range(40):
            middle = (low + up) / 2
            shown = float(np.maximum(0.0, mine - math.exp(middle) * other).sum())
            low, up = (middle, up) if shown > delta else (low, middle)
        found = shuffled_epsilon_lower(noise_multiplier=sigma, batches=2, delta=delta, batch_clip=True)
        assert 0.7 * up < found <= up * (1 + 1e-3)
        plain = shuffled_epsilon_lower(noise_multiplier=sigma, batches=2, delta=delta)
        assert plain < found


# ------------------------------------------------------------------------------------------- the warning


def spent(*events: ev.PrivacyEvent, neighbours: Neighbours = Neighbours.ZERO_OUT) -> Guarantee:
    accountant = ExactAccountant(neighbours=neighbours)
    for event in events:
        accountant.compose(event)
    return accountant.epsilon(delta=1e-5)


def test_a_guarantee_for_shuffled_batches_carries_the_attack() -> None:
    for kind in (ExactAccountant, RenyiAccountant):
        guarantee = kind(neighbours=Neighbours.ZERO_OUT).compose(epoch(), 100).epsilon(delta=1e-5)
        (warning,) = guarantee.warnings
        assert re.fullmatch(
            r"100 epoch\(s\) of 312 shuffled batches get no amplification by sampling; sample with PoissonSampled to "
            r"have it \(an attack shows that these epochs alone cost at least ε = 18\.3\)",
            warning,
        )
        assert f"warning: {warning}" in str(guarantee)


def test_the_upper_bound_is_the_unamplified_one_and_above_the_attack() -> None:
    guarantee = spent(ev.Repeated(times=100, event=epoch()))
    assert guarantee.epsilon == pytest.approx(gaussian_epsilon(10.0, 1e-5), rel=1e-6)
    assert guarantee.epsilon > 18.3


def test_the_lower_bound_is_the_attacks_and_not_that_of_the_unamplified_pair() -> None:
    attack = shuffled_epsilon_lower(noise_multiplier=1.0, batches=312, epochs=100, delta=1e-5)
    for kind in (ExactAccountant, RenyiAccountant):
        guarantee = kind(neighbours=Neighbours.ZERO_OUT).compose(epoch(), 100).epsilon(delta=1e-5)
        assert guarantee.epsilon_lower == attack < guarantee.epsilon / 4
    assert spent(GAUSSIAN).epsilon_lower == pytest.approx(spent(GAUSSIAN).epsilon)  # the control: no batches
    assert spent(ev.Shuffled(batches=8, event=ev.Laplace(noise_multiplier=9.0))).epsilon_lower == 0


def test_epochs_composed_one_by_one_are_warned_about_together() -> None:
    together = spent(ev.Repeated(times=3, event=epoch()))
    assert spent(epoch(), epoch(), epoch()).warnings == together.warnings
    assert len(spent(epoch(), epoch(batches=10), epoch()).warnings) == 2


def test_nothing_shuffled_means_no_warning() -> None:
    for event in (GAUSSIAN, ev.Shuffled(batches=1, event=GAUSSIAN), ev.Repeated(times=0, event=epoch())):
        assert spent(event).warnings == ()


def test_other_noise_is_warned_about_without_a_number() -> None:
    (warning,) = spent(ev.Shuffled(batches=8, event=ev.Laplace(noise_multiplier=9.0))).warnings
    assert "1 epoch(s) of 8 shuffled batches get no amplification" in warning
    assert "attack" not in warning


@pytest.mark.parametrize(
    ("event", "found"),
    [
        (epoch(5), [ShuffledEpochs(1.0, 5, 2)]),
        (ev.Repeated(times=7, event=epoch(5)), [ShuffledEpochs(1.0, 5, 14)]),
        (ev.Composed(events=(epoch(5), GAUSSIAN, epoch(6))), [ShuffledEpochs(1.0, 5, 2), ShuffledEpochs(1.0, 6, 2)]),
        (ev.Group(size=3, event=epoch(5)), [ShuffledEpochs(1.0, 5, 2)]),
        (ev.FixedSizeSampled(rate=1.0, event=epoch(5)), [ShuffledEpochs(1.0, 5, 2)]),
        (ev.FixedSizeSampled(rate=0.1, event=epoch(5)), [ShuffledEpochs(None, 5, 2)]),
        (ev.PoissonSampled(rate=0.0, event=epoch(5)), []),
        (ev.Shuffled(batches=5, event=ev.Repeated(times=2, event=GAUSSIAN)), [ShuffledEpochs(None, 5, 2)]),
        (GAUSSIAN, []),
    ],
)
def test_every_shuffled_training_inside_an_event_is_found(event: ev.PrivacyEvent, found: list[ShuffledEpochs]) -> None:
    assert shuffled_epochs(event, 2) == found


def test_the_number_of_the_attack_is_not_claimed_for_a_sample_of_the_data() -> None:
    """Sampling first may really help; the attack knows that the record took part."""
    sampled = ev.FixedSizeSampled(rate=0.01, event=epoch(noise=0.5))
    guarantee = spent(sampled, neighbours=Neighbours.REPLACE_ONE)
    (warning,) = guarantee.warnings
    assert "attack" not in warning
    alone = shuffled_epsilon_lower(noise_multiplier=0.5, batches=312, delta=1e-5)
    assert guarantee.epsilon < 2 * alone + 20


def test_shuffled_batches_have_no_bound_under_add_or_remove() -> None:
    assert not ExactAccountant().supports(epoch())
