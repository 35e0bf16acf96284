"""T6: an attacker who knows everything but the noise.

The claim bounds every attacker: with noise multiplier σ and no sampling his two error rates satisfy Φ⁻¹(1 − α) − Φ⁻¹(β)
≤ 1/σ =: μ. So let him try. On the worst pair of batches that T1 found he projects each release on the direction in
which the pair differs and accuses beyond the middle. His errors on many releases are bounded by Clopper and Pearson;
when even the bounds are better than the claim allows, the claim is false: a lower bound on μ beside the claimed 1/σ.
This multiplies what T1 and T3 see, so it finds a step in which both are a little off.
"""

from __future__ import annotations

import time

import numpy as np
from scipy import special

from quietsum.selfcheck.probes.replay import WorstPair
from quietsum.selfcheck.protocol import Floats, Law, StepUnderTest
from quietsum.selfcheck.report import CheckFinding, CheckVerdict
from quietsum.selfcheck.statistics import FALSE_ALARM, best_error, clopper_pearson_upper

__all__ = ["lower_bound", "measure_attack"]

_FEWEST = 100


def measure_attack(step: StepUnderTest, pair: WorstPair, *, releases: int, seconds: float) -> CheckFinding:
    """T6: a lower bound on μ (on ε for Laplace noise) from releases on the worst pair, beside the claim."""
    claimed = 1 / step.noise_multiplier
    base, moved = step.deterministic(pair.without), step.deterministic(pair.within)
    with np.errstate(all="ignore"):
        difference = moved - base
        length = float(np.linalg.norm(difference))
    if not np.isfinite(length) or length == 0:
        lesson = "There is no pair of batches with finite and different sums to tell apart."
        return CheckFinding(test="T6", name="attack", verdict=CheckVerdict.SKIPPED, lesson=lesson, threshold=claimed)
    start = time.perf_counter()
    step.release(pair.within)
    step.release(pair.within)
    each = (time.perf_counter() - start) / 2
    count = int(min(releases, max(_FEWEST, seconds / 2 / max(each, 1e-9))))  # settled before any release is looked at
    direction = difference / length if step.law is Law.GAUSSIAN else np.sign(difference)  # in L1 all coordinates add up
    middle = float(direction @ (base + moved)) / 2
    wrong = sum(_beyond(step.release(pair.without), direction, middle) for _ in range(count))
    missed = count - sum(_beyond(step.release(pair.within), direction, middle) for _ in range(count))
    alpha = FALSE_ALARM / 2
    accused = clopper_pearson_upper(wrong, count, alpha)
    overlooked = clopper_pearson_upper(missed, count, alpha)
    bound = lower_bound(step.law, accused, overlooked)
    failed = overlooked < best_error(step.law, step.noise_multiplier, accused)
    symbol = "μ" if step.law is Law.GAUSSIAN else "ε"
    lesson = (
        f"An attacker distinguishes the two batches with {symbol} ≥ {bound:.3g} where the noise claims {symbol} ≤ "
        f"{claimed:.3g}, per record and step. Sensitivity and noise together do not keep the promise."
    )
    return CheckFinding(
        test="T6",
        name="attack",
        verdict=CheckVerdict.FAIL if failed else CheckVerdict.PASS,
        lesson=lesson if failed else f"The best attack on the worst pair stays within {symbol} = {claimed:.3g}.",
        statistic=bound,
        threshold=claimed,
        p_value=FALSE_ALARM if failed else 1.0,
    )


def _beyond(release: Floats, direction: Floats, middle: float) -> int:
    score = float(direction @ release)
    return int(score > middle or not np.isfinite(score))


def lower_bound(law: Law, accused: float, overlooked: float) -> float:
    """The least μ or ε under which both error rates could be so small."""
    if law is Law.GAUSSIAN:
        bound = -special.ndtri(accused) - special.ndtri(overlooked)
    else:
        pairs = ((1 - overlooked, accused), (1 - accused, overlooked))
        bound = max((np.log(right / wrong) for right, wrong in pairs if right > 0), default=0.0)
    return float(max(bound, 0.0))
