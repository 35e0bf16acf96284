"""Charges of distributed noise in the books: priced by the Gaussian next to it, or by Rényi, and verified again."""

from __future__ import annotations

import dataclasses

import pytest

from ledger.build import STEPS, memory_ledger, open_run, reserve
from quietsum.errors import PlanUnderstates
from quietsum.ledger.charges import Charge
from quietsum.ledger.pricing import CostTally, Prices, cost_of
from quietsum.mechanisms.distributed import DistributedNoise
from quietsum.privacy.calibration import calibrate
from quietsum.privacy.events import Gaussian, Group, OneInOneOut, PoissonSampled, PrivacyEvent, Repeated
from quietsum.privacy.exact.near_gaussian import NearGaussianAccountant
from quietsum.privacy.guarantee import Budget
from quietsum.privacy.renyi.accountant import RenyiAccountant
from quietsum.privacy.units import Neighbours, PrivacyUnit

ADD = Neighbours.ADD_REMOVE
NOISE = DistributedNoise(max_norm=1.0, noise_multiplier=2.0, honest=4, dimension=1000, unit="record", ball=50.0)


def step(noise: DistributedNoise = NOISE, rate: float = 0.05) -> PrivacyEvent:
    return PoissonSampled(rate=rate, event=noise.event())


def charge(event: PrivacyEvent, unit: PrivacyUnit = PrivacyUnit.RECORD, times: int = 100) -> Charge:
    failure = times * NOISE.failure(NOISE.dimension)
    return Charge(party="north", dataset="d", unit=unit, event=Repeated(times=times, event=event), failure=failure)


@pytest.mark.parametrize("kind", ["skellam", "discrete-gaussian"])
@pytest.mark.parametrize("neighbours", list(Neighbours))
def test_exact_accounting_goes_by_the_gaussian_next_to_the_noise_and_says_so(kind: str, neighbours: Neighbours) -> None:
    event = step(dataclasses.replace(NOISE, kind=kind))  # type: ignore[arg-type]
    for wrapped, unit in (
        (event, PrivacyUnit.RECORD), (OneInOneOut(event=event), PrivacyUnit.RECORD),
        (Group(size=2, event=event), PrivacyUnit.PERSON),
    ):  # fmt: skip
        key = CostTally([cost_of(charge(wrapped, unit))]).key()
        exact, rdp = (Prices().guarantee(key, name, neighbours, unit, 1e-5) for name in ("exact", "rdp"))
        grouped = unit is PrivacyUnit.PERSON and neighbours is Neighbours.REPLACE_ONE  # no exact price of Gaussians
        assert exact == rdp if grouped else exact.epsilon < rdp.epsilon
        assert ("through the Gaussian" in exact.method) != grouped and rdp.method.startswith("Rényi")
        for kind_of, found in ((NearGaussianAccountant, exact), (RenyiAccountant, rdp)):
            plain = kind_of(neighbours=neighbours).compose(wrapped, 100).epsilon(delta=1e-5).epsilon
            assert plain <= found.epsilon <= plain * (1 + 1e-4)


def test_gaussians_beside_them_are_priced_with_them_and_alone_as_ever() -> None:
    gaussian = charge(PoissonSampled(rate=0.05, event=Gaussian(noise_multiplier=2.0)))
    both = CostTally([cost_of(gaussian), cost_of(charge(step()))])
    assert "through the Gaussian" in Prices().upper(both.key(), "exact", ADD, PrivacyUnit.RECORD, 1e-5).method
    alone = Prices().upper(CostTally([cost_of(gaussian)]).key(), "exact", ADD, PrivacyUnit.RECORD, 1e-5)
    assert "exact" in alone.method


def test_a_lifetime_takes_them() -> None:
    prices = Prices()
    gate = prices.gate(Budget(epsilon=8.0, delta=1e-5, unit=PrivacyUnit.RECORD))
    used = gate.usage(CostTally([cost_of(charge(step()))]), ADD, prices)
    assert 0 < used < 1
    assert gate.usage(CostTally([cost_of(charge(step(), times=300))]), ADD, prices) == pytest.approx(3 * used, rel=1e-9)


def test_noise_is_calibrated_through_the_same_event() -> None:
    def run(multiplier: float) -> PrivacyEvent:
        return Repeated(times=200, event=step(dataclasses.replace(NOISE, noise_multiplier=multiplier)))

    found = calibrate(run, target_epsilon=1.0, target_delta=1e-5, guess=2.0)
    assert 0.99 < NearGaussianAccountant().compose(run(found)).epsilon(delta=1e-5).epsilon <= 1.0
    assert NearGaussianAccountant().compose(run(found * 0.999)).epsilon(delta=1e-5).epsilon > 1.0


def test_a_ledger_keeps_verifies_and_limits_such_charges() -> None:
    ledger = memory_ledger()
    open_run(ledger, step=step(), rounds=4)
    for round in (1, 2):
        receipt = reserve(ledger, round=round, step=step())
        ledger.commit(receipt)
    assert ledger.verify().entries > 4
    paid = NearGaussianAccountant().compose(step(), 2 * STEPS).epsilon(delta=1e-5).epsilon
    (book,) = ledger.lifetime()
    assert book.guarantee is not None
    assert book.guarantee.epsilon == pytest.approx(paid, rel=1e-9)
    with pytest.raises(PlanUnderstates, match="the plan costs"):
        open_run(memory_ledger(), step=step(rate=0.9), rounds=400, limit=0.1)
