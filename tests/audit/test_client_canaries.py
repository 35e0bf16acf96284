"""Random canary clients through a plan's aggregation: a correct one is consistent, faulty ones are contradicted."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import integrate, stats

from quietsum.aggregation import ClientSum, Combined
from quietsum.audit import ClientAudit, Conclusion, audit_clients, estimate_epsilon
from quietsum.errors import InvalidParameter, PlanRefused
from quietsum.mechanisms import ClippedSum, Mode, randomness_for_tests
from quietsum.plan import PartyFacts, ResolvedPlan, load_plan, resolve
from quietsum.privacy import PrivacyUnit, gaussian_epsilon

TOML = """
[task]
name = "tiny:TinyTask"
[federation]
rounds = {rounds}
sampling = {sampling}
[training]
sample_rate = 0.5
local_steps = 1
[privacy]
style = "{style}"
{record}
{client}
{rest}
"""
CLIENT = "client = {{ noise_multiplier = {noise}, delta = 1e-4, max_norm = 0.5{more} }}"
POISSON, EVERYONE = '{ kind = "poisson", rate = 0.2 }', '{ kind = "everyone" }'
ZERO = 'neighbours = "zero-out"'
DIMENSION = 300


@pytest.fixture(autouse=True)
def allow_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUIETSUM_TEST_SEEDS", "1")


def plan(
    *, rounds: int = 30, sampling: str = POISSON, noise: float = 1.0, style: str = "user", record: str = "",
    more: str = "", rest: str = "",
) -> ResolvedPlan:  # fmt: skip
    client = "" if style == "sample" else CLIENT.format(noise=noise, more=more)
    text = TOML.format(rounds=rounds, sampling=sampling, style=style, record=record, client=client, rest=rest)
    sites = tuple(PartyFacts(name=f"p{at}", dataset=f"d{at}", size=40) for at in range(200))
    return resolve(load_plan(text), sites, DIMENSION)


class Faulty:
    """The plan's own fold, with another sum."""

    def __init__(self, fold: ClientSum, release: Callable[[ClientSum, Any, Any], Combined]) -> None:
        self._fold, self._release = fold, release

    def __getattr__(self, name: str) -> Any:
        return getattr(self._fold, name)

    def finish(self, state: Any, rng: Any) -> Combined:
        return self._release(self._fold, state, rng)


def halve_noise(fold: ClientSum, state: Any, rng: Any) -> Combined:
    mechanism = dataclasses.replace(fold.mechanism, noise_multiplier=fold.mechanism.noise_multiplier / 2)
    return dataclasses.replace(fold, mechanism=mechanism).finish(state, rng)


def clip_sum(fold: ClientSum, state: Any, rng: Any) -> Combined:
    """A clip of the whole cohort's sum in place of one for each client."""
    total = state.total.astype(float)
    length = np.linalg.norm(total) / fold.mechanism.grid_norm
    state.total = (total / max(1.0, length)).astype(np.int64)
    return fold.finish(state, rng)


def repeat_noise(fold: ClientSum, state: Any, rng: Any) -> Combined:
    return fold.finish(state, randomness_for_tests(5))


def divide_by_replies(fold: ClientSum, state: Any, rng: Any) -> Combined:
    return dataclasses.replace(fold, denominator=max(1.0, len(state.kept))).finish(state, rng)


def audit(resolved: ResolvedPlan, fault: Any = None, seed: int = 3) -> ClientAudit:
    made = None if fault is None else lambda fold: Faulty(fold, fault)
    return audit_clients(resolved, canaries=150, made=made, rng=randomness_for_tests(seed))


@pytest.mark.parametrize(
    "change",
    [
        {}, {"sampling": EVERYONE, "noise": 4.0},
        {"style": "hybrid", "record": "record = { noise_multiplier = 3.0, delta = 1e-4 }"},
    ],
)  # fmt: skip
def test_the_plans_own_aggregation_is_consistent_with_the_plan(change: dict[str, Any]) -> None:
    found = audit(plan(**change))
    assert found.conclusion is Conclusion.CONSISTENT
    assert "canary clients" in found.sentence and "rounds" in found.sentence
    limit = plan(**change).limit_of(PrivacyUnit.CLIENT)
    assert limit is not None and found.tests.claim.epsilon == pytest.approx(limit.epsilon)
    assert found.tests.lower_bound < limit.epsilon


def test_every_round_is_held_to_the_noise_and_the_clip_of_its_stage() -> None:
    stages = "[[schedule]]\nrounds = 15\nnoise = 2.0\n[[schedule]]\nrounds = 15\nclip = 0.5\n"
    found = audit(plan(rest=stages))
    assert found.conclusion is Conclusion.CONSISTENT
    noise = found.tests.claim.noise
    assert isinstance(noise, tuple) and len(noise) == 30 and noise[0] == pytest.approx(2 * noise[-1])

    def forget(fold: ClientSum, state: Any, rng: Any) -> Combined:
        """The second stage's noise from the first round on."""
        mechanism = dataclasses.replace(fold.mechanism, noise_multiplier=1.0)
        return dataclasses.replace(fold, mechanism=mechanism).finish(state, rng)

    assert audit(plan(rest=stages), forget).conclusion is Conclusion.CONTRADICTED


@pytest.mark.parametrize(
    ("fault", "seen"),
    [(halve_noise, "noise"), (clip_sum, "contribution"), (repeat_noise, "replay"), (divide_by_replies, "noise")],
)
def test_a_faulty_aggregation_is_contradicted(fault: Any, seen: str) -> None:
    found = audit(plan(), fault)
    assert found.conclusion is Conclusion.CONTRADICTED
    assert seen in [one.name for one in found.tests.evidence if one.contradicts]


@pytest.mark.long
def test_no_correct_aggregation_is_accused_and_no_half_noise_passes() -> None:
    """More seeds could show a false alarm rate above 1e-6, or a fault that is seen less often than stated."""
    resolved = plan()
    assert all(audit(resolved, seed=seed).conclusion is not Conclusion.CONTRADICTED for seed in range(20))
    assert all(audit(resolved, halve_noise, seed).conclusion is Conclusion.CONTRADICTED for seed in range(20))


def test_few_canaries_and_rounds_are_inconclusive() -> None:
    found = audit_clients(plan(rounds=2), canaries=8, rng=randomness_for_tests(1))
    assert found.conclusion is Conclusion.INCONCLUSIVE and "too few" in found.sentence
    assert found.estimate is None and found.to_dict()["estimate_range"] is None
    told = " ".join([found.sentence, *(one.sentence for one in found.tests.powers)])
    assert "record" not in told and "batch" not in told and "a clip of the whole cohort" in told


@pytest.mark.parametrize("all_in", [True, False])
def test_coins_that_all_fall_alike_leave_an_audit_that_concludes_nothing(all_in: bool) -> None:
    class Alike:
        for_tests = True

        def __init__(self) -> None:
            self._rng = randomness_for_tests(7)

        def coins(self, rate: float, count: int) -> Any:
            return np.full(count, all_in)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._rng, name)

    found = audit_clients(plan(sampling=EVERYONE), canaries=50, rng=Alike())
    assert found.tests.included == 50 * all_in and found.estimate is None
    assert found.conclusion is (Conclusion.CONSISTENT if all_in else Conclusion.INCONCLUSIVE)


def test_the_estimate_is_near_the_claim_where_everybody_is_in_every_round() -> None:
    """The sum of T releases then tells all: N(T, T σ²) and N(0, T σ²), which is what the claim prices."""
    found = audit(plan(sampling=EVERYONE, noise=4.0))
    claimed = found.tests.claim.epsilon
    assert claimed is not None and found.estimate is not None and found.estimate_range is not None
    assert found.estimate_range[0] < claimed < found.estimate_range[1]
    less = audit(plan(sampling=EVERYONE, noise=4.0), halve_noise)
    assert less.estimate is not None and less.estimate > claimed * 1.5


def test_equal_normals_have_the_epsilon_of_the_gaussian_mechanism() -> None:
    quantiles = stats.norm.ppf((np.arange(20000) + 0.5) / 20000)
    quantiles /= np.std(quantiles, ddof=1)
    for mean in (0.5, 1.0, 2.0):
        found = estimate_epsilon(mean + quantiles, quantiles, delta=1e-4)
        assert found == pytest.approx(gaussian_epsilon(mean, 1e-4), rel=1e-3)


@pytest.mark.parametrize(("mean", "spread"), [(1.0, 1.2), (1.0, 0.8), (0.3, 2.0), (2.0, 0.5)])
def test_unequal_normals_have_the_epsilon_of_an_integral(mean: float, spread: float) -> None:
    quantiles = stats.norm.ppf((np.arange(20000) + 0.5) / 20000)
    quantiles /= np.std(quantiles, ddof=1)
    found = estimate_epsilon(mean + spread * quantiles, quantiles, delta=1e-3)
    assert found is not None
    one, other = stats.norm(mean, spread), stats.norm(0, math.sqrt(float(np.mean(quantiles**2))))

    def delta(first: Any, second: Any) -> float:
        grid = np.linspace(-40, 40, 400_001)
        return float(integrate.trapezoid(np.maximum(first.pdf(grid) - math.exp(found) * second.pdf(grid), 0), grid))

    assert max(delta(one, other), delta(other, one)) == pytest.approx(1e-3, rel=1e-2)


def test_too_little_makes_no_estimate() -> None:
    coins = np.tile([0.1, -0.1], 20)
    assert estimate_epsilon(coins[:19], coins, delta=1e-5) is None
    assert estimate_epsilon(np.ones(40), coins, delta=1e-5) is None
    assert estimate_epsilon(coins + 9, coins, delta=1e-5) is None  # beyond what is searched
    assert estimate_epsilon(coins, coins, delta=0.9) == 0.0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"style": "sample", "record": "record = { epsilon = 1.0, delta = 1e-4 }"}, "protects no clients"),
        ({"more": ', noise_at = "party"', "rest": ZERO}, "the parties add the noise"),
        ({"more": ", adaptive = { quantile = 0.5 }"}, "adapts its clip"),
        ({"sampling": '{ kind = "fixed-size", size = 20 }', "rest": ZERO}, "fixed size"),
    ],
)
def test_what_canary_clients_cannot_test_is_refused_with_the_reason(change: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanRefused, match=message):
        audit_clients(plan(**change))


def test_canaries_need_directions_of_their_own() -> None:
    with pytest.raises(InvalidParameter, match="at most 299 have directions"):
        audit_clients(plan(), canaries=300)
    with pytest.raises(InvalidParameter, match="load_plan"):
        audit_clients("run.toml")  # type: ignore[arg-type]


def test_fast_noise_is_audited_alike() -> None:
    resolved = plan(rest='noise = "fast"')
    mechanism = resolved.client_mechanism(1)
    assert isinstance(mechanism, ClippedSum) and mechanism.mode is Mode.FAST
    assert audit(resolved).conclusion is Conclusion.CONSISTENT
