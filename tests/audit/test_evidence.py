"""The ten tests: each p-value beside a naive one, exact under the claim, and as powerful as it says."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from quietsum.audit import CanaryClaim, Conclusion, forecast_power, judge_canaries
from quietsum.audit.evidence import LEVEL, TESTS, look_at_record
from quietsum.errors import CorruptState, InvalidParameter
from quietsum.learning import CanaryRecord

RATE = 0.1


def simulate(
    seed: int, *, canaries: int = 40, steps: int = 60, noise: float = 2.0, rate: float = RATE,
    less: float = 1.0, part: float = 1.0, shuffled: float = 0.0,
) -> CanaryRecord:  # fmt: skip
    """What a run would record; ``less``, ``part`` and ``shuffled`` are faults."""
    rng = np.random.default_rng(seed)
    included = rng.random(canaries) < 0.5
    drawn = rng.random((steps, canaries)) < rate
    length = round(1 / rate)
    for start in range(0, steps - length + 1, length):
        once = np.eye(length, dtype=bool)[rng.integers(0, length, canaries)].T
        which = rng.random(canaries) < shuffled
        drawn[start : start + length, which] = once[:, which]
    drawn &= included
    released = part * drawn + less * noise * rng.standard_normal((steps, canaries))
    return CanaryRecord(
        included=included, steps=np.arange(steps, dtype=np.int64), drawn=drawn, released=released.astype(np.float32)
    )


def look(record: CanaryRecord, noise: float = 2.0, rate: float = RATE) -> dict[str, Any]:
    found = look_at_record(record, noise=np.full(len(record.steps), noise), rate=rate)
    assert len(found) == TESTS
    return {one.name: one for one in found}


def two_sided(law: Any, value: float) -> float:
    return float(min(1.0, 2 * min(law.cdf(value), law.sf(value - 1) if isinstance(value, int) else law.sf(value))))


@pytest.mark.parametrize("seed", range(3))
def test_each_p_value_is_the_one_of_a_loop_over_every_number(seed: int) -> None:
    record = simulate(seed)
    found = look(record)
    squares, shift, information, others, scores = 0.0, 0.0, 0.0, [], []
    for step in range(60):
        for canary in range(40):
            score = (float(record.released[step, canary]) - record.drawn[step, canary]) / 2.0
            squares += score**2
            scores.append(score)
            if record.drawn[step, canary]:
                shift += score / 2.0
                information += 0.25
            else:
                others.append(score)
    inside = int(record.included.sum())
    count = int(record.drawn.sum())
    once = sum(
        sum(record.drawn[step, canary] for step in range(start, start + 10)) == 1
        for start in range(0, 60, 10)
        for canary in np.flatnonzero(record.included)
    )
    law = stats.binom(inside, RATE)
    low, high = int(law.ppf(0.25)), int(law.ppf(0.75))
    usual = sum(low <= record.drawn[step].sum() <= high for step in range(60))
    expected = {
        "noise": two_sided(stats.chi2(2400), squares),
        "contribution": 2 * stats.norm.sf(abs(shift / math.sqrt(information))),
        "absent": 2 * stats.norm.sf(abs(sum(others)) / math.sqrt(len(others))),
        "draws": two_sided(stats.binom(60 * inside, RATE), count),
        "once an epoch": two_sided(stats.binom(6 * inside, 10 * RATE * 0.9**9), int(once)),
        "together": two_sided(stats.binom(60, law.cdf(high) - law.cdf(low - 1)), int(usual)),
    }  # fmt: skip
    for name, p in expected.items():
        assert found[name].p == pytest.approx(p, rel=1e-6), name
    table = np.array(scores).reshape(60, 40) > 0
    for name, agree in {
        "replay": table[1:] == table[:-1], "replay later": table[10:] == table[:-10],
        "neighbours": table[:, 1:] == table[:, :-1],
    }.items():  # fmt: skip
        p = two_sided(stats.binom(agree.size, 0.5), int(agree.sum()))
        assert found[name].p == pytest.approx(p, rel=1e-6), name
    gap = stats.kstest(scores, "norm").statistic
    assert found["shape"].p == pytest.approx(min(1.0, 2 * math.exp(-2 * 2400 * gap**2)), rel=1e-6)


def test_under_the_claim_small_p_values_are_as_rare_as_they_say() -> None:
    runs = 600
    values: dict[str, list[float]] = {}
    for seed in range(runs):
        for name, one in look(simulate(1000 + seed, canaries=12, steps=40)).items():
            values.setdefault(name, []).append(one.p)
    for name, found in values.items():
        for level in (0.3, 0.05, 0.01):
            count = sum(p <= level for p in found)
            assert stats.binom.sf(count - 1, runs, level) > 1e-6, (name, level, count)


@pytest.mark.parametrize("noise, rate", [(2.0, 1.0), (0.3, 0.013), (30.0, 0.5)])
def test_every_rate_and_noise_has_its_laws(noise: float, rate: float) -> None:
    found = look(simulate(5, canaries=60, steps=160, noise=noise, rate=rate), noise=noise, rate=rate)
    assert all(one.p > LEVEL for one in found.values())


def test_the_controls_other_claims_are_refuted() -> None:
    record = simulate(1, canaries=400, steps=200)
    for wrong in (1.9, 2.1):
        assert look(record, noise=wrong)["noise"].contradicts
    assert look(record, rate=0.08)["draws"].contradicts
    quiet = look(simulate(1, canaries=400, steps=200, part=0.5))
    assert quiet["contribution"].contradicts and not quiet["noise"].contradicts


def test_noise_of_another_law_with_the_right_spread_is_refuted_by_its_shape() -> None:
    record = simulate(1, canaries=400, steps=200)
    rng = np.random.default_rng(1)
    flat = record.drawn + 2.0 * math.sqrt(3) * rng.uniform(-1, 1, record.drawn.shape)
    other = CanaryRecord(
        included=record.included, steps=record.steps, drawn=record.drawn, released=flat.astype(np.float32)
    )
    assert look(other)["shape"].contradicts


def test_epochs_that_were_not_recorded_as_a_whole_are_left_out_and_lags_are_those_of_the_steps() -> None:
    record = simulate(2, canaries=200, steps=100, shuffled=1.0)
    kept = np.r_[0:25, 30:100]
    gap = CanaryRecord(
        included=record.included, steps=record.steps[kept], drawn=record.drawn[kept], released=record.released[kept]
    )
    found = look(gap)["once an epoch"]
    assert found.contradicts and found.found.startswith("1.0000 were drawn exactly once")


def test_a_record_that_cannot_be_true_is_refused() -> None:
    record = simulate(3)
    with pytest.raises(CorruptState, match="do not fit together"):
        look_at_record(record, noise=np.ones(3), rate=RATE)
    whole: dict[str, NDArray[Any]] = {
        "included": record.included, "steps": record.steps, "drawn": record.drawn, "released": record.released
    }  # fmt: skip
    for change in (
        {"steps": record.steps[::-1]}, {"drawn": np.ones_like(record.drawn)}, {"released": record.released[:5]},
        {"released": np.full_like(record.released, np.nan)},
    ):  # fmt: skip
        with pytest.raises(CorruptState):
            CanaryRecord(**{**whole, **change})
    with pytest.raises(InvalidParameter, match="does not reach the last recorded step"):
        judge_canaries(record, CanaryClaim(noise=(1.0, 1.0), rate=RATE, delta=1e-5))


def test_no_recorded_step_is_inconclusive() -> None:
    nothing = CanaryRecord.join(np.ones(20, np.bool_), [])
    found = judge_canaries(nothing, CanaryClaim(noise=1.0, rate=RATE, delta=1e-5))
    assert found.conclusion is Conclusion.INCONCLUSIVE and found.lower_bound == 0


# ------------------------------------------------------------------------------------------------------ power


def chance_to_find(name: str, fault: Mapping[str, float]) -> float:
    runs = 60
    found = sum(
        look(record, noise=1.0)[name].contradicts
        for record in (simulate(seed, canaries=100, steps=100, noise=1.0, **fault) for seed in range(runs))
    )
    return found / runs


def test_the_smallest_fault_is_found_in_nine_runs_of_ten_and_half_of_it_is_not() -> None:
    powers = {one.fault: one for one in forecast_power(canaries=100, steps=100, noise=1.0, rate=RATE)}
    less, part = powers["less noise"].smallest, powers["another contribution of a record"].smallest
    shuffled = powers["records drawn once an epoch, as by shuffling"].smallest
    assert less is not None and part is not None and shuffled is not None
    for name, whole, half in (
        ("noise", {"less": 1 - less}, {"less": 1 - less / 2}),
        ("contribution", {"part": 1 - part}, {"part": 1 - part / 2}),
        ("once an epoch", {"shuffled": shuffled}, {"shuffled": shuffled / 2}),
    ):  # fmt: skip
        assert 0.75 < chance_to_find(name, whole) <= 1.0, name
        assert chance_to_find(name, half) < 0.3, name


def test_few_canaries_in_a_batch_cannot_show_a_clip_of_the_batch() -> None:
    """One canary alone in a batch is clipped to C either way."""
    few, many = (forecast_power(canaries=count, steps=2000, noise=0.5, rate=0.002) for count in (20, 2000))
    batch = [next(one for one in powers if one.fault == "a clip of the whole batch") for powers in (few, many)]
    assert not batch[0].enough and batch[1].enough
    assert "in 100 % of runs" in batch[1].sentence or "in 99" in batch[1].sentence
