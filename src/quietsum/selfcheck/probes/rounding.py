"""Rounding or a fault? Floats err, and a check that takes their errors for faults accuses correct steps.

In float32 a sum of n clipped terms is off by some 1e-6 · n, for which :func:`rounding` leaves room. Some models magnify
that. The gradient of a group norm over two channels is a difference of terms that nearly cancel; where the row is
large, hardly a digit is left, and which one depends on how many rows were computed at once. The sum then moves by a
tenth of the sensitivity, and nothing is wrong with the step. A kink (ReLU, max) does the same in one row of a million.

So a deviation beyond the ordinary room is put to copies of the step, its *twin*, and is forgiven only when

* **it vanishes in float64**: on the same rows the copy in float64 deviates by less than a hundredth of it. What
  mixes examples does so in any precision;
* **and rounding explains it**: moving weights and rows by eight units in the last place, sixteen times, moves the sum
  of these very rows, in the step's own precision, by at least a quarter of it. A fault that exists in float32 alone
  shows on rows that shaking leaves in place.

A step without a twin is forgiven nothing. What passes without asking the twin passes as it did.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from quietsum.mechanisms import RandomSource
from quietsum.selfcheck.protocol import Batch, Floats, Law, StepUnderTest, Twin

__all__ = ["distance", "forgiven", "rounding"]

_SHAKES, _WIDTH = 16, 8.0  # how often, and by how many units in the last place
_ROOM = 4.0  # times the largest movement that shaking showed
_VANISHED = 1e-2
_PIECE = 1 << 15  # numbers that stay in the processor's cache


def distance(step: StepUnderTest, one: Floats, other: Floats) -> float:
    """How far apart two sums are, in the norm of the claim and as a part of the sensitivity; infinite for NaN."""
    return _length(one, other, step.law) / step.sensitivity


def _length(one: Floats, other: Floats, law: Law) -> float:
    if one.shape != other.shape:
        return float("inf")
    total = 0.0
    with np.errstate(all="ignore"):
        for start in range(0, one.size, _PIECE):
            gap = one[start : start + _PIECE] - other[start : start + _PIECE]
            total += float(gap @ gap) if law.order == 2 else float(np.abs(gap).sum())
    length = total**0.5 if law.order == 2 else total
    return length if np.isfinite(length) else float("inf")


def rounding(step: StepUnderTest, count: int) -> float:
    """What floats may lose in a sum of ``count`` clipped terms, as a part of the sensitivity, with room to spare."""
    return max(1e-8, 2000 * step.precision) * max(count, 1)


def forgiven(
    step: StepUnderTest, batch: Batch, found: float, again: Callable[[Twin], float], rng: RandomSource
) -> bool:
    """Whether a deviation ``found`` on the rows of ``batch``, as a part of the sensitivity, is rounding and no fault.

    ``again`` measures the same deviation on the twin. Both conditions above must hold.
    """
    twin = step.twin
    if twin is None or not np.isfinite(found):
        return False
    if twin.precision < step.precision and again(twin) > _VANISHED * found:
        return False
    still, width = twin.shaken(batch, 0.0, rng), _WIDTH * step.precision
    return any(_ROOM * distance(step, twin.shaken(batch, width, rng), still) >= found for _ in range(_SHAKES))
