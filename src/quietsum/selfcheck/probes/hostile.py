"""T5: rows that no honest data set holds, and any data set may. One of them must not decide the fate of the rest.

A NaN that reaches the sum turns the whole model into NaN, and everybody sees that the record was there; an exception
says the same in other words. So a broken row, wherever it stands, must move the sum by at most the sensitivity (ours
count as zero), and an empty batch must be a sum of zeros. No chance is involved.
"""

from __future__ import annotations

import numpy as np

from quietsum.mechanisms import RandomSource
from quietsum.selfcheck.probes.rounding import distance, forgiven, rounding
from quietsum.selfcheck.probes.rows import BROKEN, join, nothing, repeat, rows, spoil
from quietsum.selfcheck.protocol import Batch, Floats, StepUnderTest
from quietsum.selfcheck.report import CheckFinding, CheckVerdict

__all__ = ["hostile_rows"]


def hostile_rows(
    step: StepUnderTest, rng: RandomSource, *, everywhere: tuple[bool, ...] = (True, False)
) -> CheckFinding:
    """T5: NaN, infinities, huge, zero and equal rows, and no rows at all."""
    room = rounding(step, 5)
    limit = 1 + 1e-4 + room
    good = step.examples(4, rng)
    try:
        base = step.deterministic(good)
    except Exception as error:  # whatever a model raises
        return _fail("ordinary rows", f"made the step raise {type(error).__name__}", float("inf"), limit)
    worst, where = 0.0, ""
    cases = [
        (f"a row of {kind}" if whole else f"a row with one {kind}", spoil(rows(good, [0]), kind, everywhere=whole))
        for kind in BROKEN
        for whole in everywhere
    ]
    for what, record in cases:
        for place, whole in (("after", join(good, record)), ("before", join(record, good))):
            found = _move(step, whole, base, 1)
            if isinstance(found, str):
                return _fail(f"{what} {place} four ordinary ones", found, float("inf"), limit)
            if found > limit and _is_rounding(step, whole, good, 1, found - 1, rng):
                continue
            if found > worst:
                worst, where = found, what
    first = rows(good, [0])
    for what, batch, against, times in (
        ("no rows", nothing(good), good, 0),
        ("equal rows", repeat(first, 4), first, 4),
    ):
        found = _move(step, batch, base if against is good else step.deterministic(against), times)
        if isinstance(found, str):
            return _fail(what, found, float("inf"), limit)
        if found > room and not _is_rounding(step, batch, against, times, found, rng):
            return _fail(what, "did not give the sum they have", found, room)
    if worst > limit:
        return _fail(where, f"moved the sum by {worst:.3g} times the sensitivity", worst, limit)
    lesson = "Broken, huge and missing rows move the sum by no more than any other row."
    return CheckFinding(
        test="T5", name="hostile rows", verdict=CheckVerdict.PASS, lesson=lesson, statistic=worst, threshold=limit
    )


def _move(step: StepUnderTest, batch: Batch, base: Floats, times: int) -> float | str:
    """How far the sum of ``batch`` is from ``base`` so many times, in Δ, or in words why there is none."""
    try:
        total = step.deterministic(batch)
    except Exception as error:  # what a row raises is a fact about that row
        return f"made the step raise {type(error).__name__}"
    if total.shape != base.shape:
        return "gave a sum of another shape"
    if not np.isfinite(total).all():
        return "made the sum NaN or infinite"
    return distance(step, total, base if times == 1 else times * base)


def _is_rounding(
    step: StepUnderTest, batch: Batch, against: Batch, times: int, found: float, rng: RandomSource
) -> bool:
    """Whether ``found``, what is too much in that distance, is rounding."""
    return forgiven(
        step,
        batch,
        found,
        lambda twin: distance(step, twin.deterministic(batch), times * twin.deterministic(against)) - (times == 1),
        rng,
    )


def _fail(what: str, problem: str, statistic: float, limit: float) -> CheckFinding:
    lesson = (
        f"{what[0].upper()}{what[1:]} {problem}, so everybody can see whether such a record was there. Let an example "
        "whose gradient is not finite count as zero, and an empty batch be a sum of zeros."
    )
    return CheckFinding(
        test="T5", name="hostile rows", verdict=CheckVerdict.FAIL, lesson=lesson, statistic=statistic, threshold=limit
    )
