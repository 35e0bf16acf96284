"""T6 and T11: an attacker who knows everything but the noise, and what the trainer says besides the model.

**T6.** The claim bounds every attacker: with noise multiplier σ and no sampling his two error rates satisfy Φ⁻¹(1 −
α) − Φ⁻¹(β) ≤ 1/σ =: μ. So let him try. On the worst pair of batches that T1 found he projects each release on the
direction in which the pair differs and accuses beyond the middle. His errors on many releases are bounded by Clopper
and Pearson; when even the bounds are better than the claim allows, the claim is false: a lower bound on μ beside the
claimed 1/σ. This multiplies what T1 and T3 see, so it finds a step in which both are a little off.

**T11.** The same attacker reads everything else that leaves: returned numbers, prints, logs, warnings. For each of
them a rule "accuse when the value lies beyond t" is chosen on half of the runs and judged on the other half.
Functions of the noisy sum pass, whatever they are, since they tell no more than the sum; a loss of the batch does
not.
"""

from __future__ import annotations

import contextlib
import io
import logging
import re
import time
import warnings
from collections.abc import Sequence

import numpy as np
from scipy import special

from quietsum.mechanisms.rng import RandomSource
from quietsum.selfcheck.replay import WorstPair
from quietsum.selfcheck.report import Finding, Verdict
from quietsum.selfcheck.rows import broken, joined, rows, scaled
from quietsum.selfcheck.seam import Batch, Floats, Law, StepUnderTest
from quietsum.selfcheck.statistics import FALSE_ALARM, best_error, clopper_pearson_upper

__all__ = ["attack", "outputs"]

_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|\bnan\b|\binf\b", re.IGNORECASE)
_FEWEST, _MOST = 100, 6000
_OUTPUTS = 64  # numbers that are listened to; the level is shared among them


def attack(step: StepUnderTest, pair: WorstPair, *, releases: int, seconds: float) -> Finding:
    """T6: a lower bound on μ (on ε for Laplace noise) from releases on the worst pair, beside the claim."""
    claimed = 1 / step.noise_multiplier
    base, moved = step.deterministic(pair.without), step.deterministic(pair.within)
    with np.errstate(all="ignore"):
        difference = moved - base
        length = float(np.linalg.norm(difference))
    if not np.isfinite(length) or length == 0:
        lesson = "There is no pair of batches with finite and different sums to tell apart."
        return Finding(test="T6", name="attack", verdict=Verdict.SKIPPED, lesson=lesson, threshold=claimed)
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
    bound = _lower_bound(step.law, accused, overlooked)
    failed = overlooked < best_error(step.law, step.noise_multiplier, accused)
    symbol = "μ" if step.law is Law.GAUSSIAN else "ε"
    lesson = (
        f"An attacker told the two batches apart with {symbol} ≥ {bound:.3g} where the noise claims {symbol} ≤ "
        f"{claimed:.3g}, per record and step. Sensitivity and noise together do not keep the promise."
    )
    return Finding(
        test="T6",
        name="attack",
        verdict=Verdict.FAIL if failed else Verdict.PASS,
        lesson=lesson if failed else f"The best attack on the worst pair stays within {symbol} = {claimed:.3g}.",
        statistic=bound,
        threshold=claimed,
        p_value=FALSE_ALARM if failed else 1.0,
    )


def _beyond(release: Floats, direction: Floats, middle: float) -> int:
    score = float(direction @ release)
    return int(score > middle or not np.isfinite(score))


def _lower_bound(law: Law, accused: float, overlooked: float) -> float:
    """The least μ or ε under which both error rates could be so small."""
    if law is Law.GAUSSIAN:
        bound = -special.ndtri(accused) - special.ndtri(overlooked)
    else:
        pairs = ((1 - overlooked, accused), (1 - accused, overlooked))
        bound = max((np.log(right / wrong) for right, wrong in pairs if right > 0), default=0.0)
    return float(max(bound, 0.0))


# ----------------------------------------------------------------------------------------------- everything else


def outputs(step: StepUnderTest, rng: RandomSource, *, seconds: float) -> Finding:
    """T11: what is returned, printed, logged or warned tells no more than the noisy sum does."""
    batch = step.examples(4, rng)
    records = [scaled(rows(batch, [3]), 100.0), broken(rows(batch, [3]), "NaN", everywhere=True)]
    without = rows(batch, [0, 1, 2])
    first = _heard(step, without)
    alpha = FALSE_ALARM / (2 * len(records) * _OUTPUTS)
    count = _enough(step, alpha)
    start = time.perf_counter()
    _heard(step, joined(without, records[0]))
    each = max(time.perf_counter() - start, 1e-9)
    if 2 * count * (1 + len(records)) * each > 4 * seconds:
        records = records[:1]
    plain = [_heard(step, without) for _ in range(2 * count)]
    worst, name, keys = 0.0, "", set(first)
    for record in records:
        joint = [_heard(step, joined(without, record)) for _ in range(2 * count)]
        keys |= {key for heard in (*plain[:count], *joint[:count]) for key in heard}
        for key in sorted(keys)[:_OUTPUTS]:
            found = _tells(step, _column(plain, key), _column(joint, key), alpha)
            if found > worst:
                worst, name = found, key
    failed = bool(name)
    lesson = (
        f"{name} tells whether a record was there, better than the noisy sum may (a lower bound of {worst:.3g}). "
        "No loss, count or metric of protected records may leave the trainer unless it is noised and charged."
    )
    return Finding(
        test="T11",
        name="other outputs",
        verdict=Verdict.FAIL if failed else Verdict.PASS,
        lesson=lesson if failed else "What is said besides the model tells nothing that the noisy sum does not.",
        statistic=worst,
        threshold=1 / step.noise_multiplier,
        p_value=FALSE_ALARM if failed else 1.0,
    )


def _enough(step: StepUnderTest, alpha: float) -> int:
    """How many runs it takes to convict an output without noise: a perfect score must refute 1.2 times the claim."""
    for count in (64, 96, 128, 192, 256, 384, 512, 768, 1024, 2048, 4096):
        error = clopper_pearson_upper(0, count, alpha)
        if error < best_error(step.law, step.noise_multiplier / 1.2, error):
            return count
    return _MOST


def _tells(step: StepUnderTest, plain: Floats, joint: Floats, alpha: float) -> float:
    """The attacker's lower bound where it refutes the claim, else 0. The rule comes from the first half of the runs."""
    half = len(plain) // 2
    best, rule = -1.0, (0.0, 1)
    values = np.unique(np.concatenate([plain[:half], joint[:half]]))
    cuts = (values[1:] + values[:-1]) / 2 if len(values) > 1 else values
    cuts = cuts[np.linspace(0, len(cuts) - 1, min(len(cuts), 64)).astype(int)]
    for cut in cuts:
        for sign in (1, -1):
            gain = float(np.mean(sign * joint[:half] > sign * cut) - np.mean(sign * plain[:half] > sign * cut))
            if gain > best:
                best, rule = gain, (float(cut), sign)
    cut, sign = rule
    accused = clopper_pearson_upper(int(np.sum(sign * plain[half:] > sign * cut)), len(plain) - half, alpha)
    overlooked = clopper_pearson_upper(int(np.sum(sign * joint[half:] <= sign * cut)), len(joint) - half, alpha)
    if overlooked >= best_error(step.law, step.noise_multiplier, accused):
        return 0.0
    return max(_lower_bound(step.law, accused, overlooked), 1e-9)


def _column(heard: Sequence[dict[str, float]], key: str) -> Floats:
    """One output over all runs. Missing, NaN and infinite are values like others, far out and apart from each other."""
    values = np.array([said.get(key, -4e300) for said in heard], dtype=np.float64)
    return np.nan_to_num(values, nan=-2e300, posinf=2e300, neginf=-3e300)


def _heard(step: StepUnderTest, batch: Batch) -> dict[str, float]:
    """Everything but the release that one step on ``batch`` lets out, as numbers by name."""
    screen = io.StringIO()
    handler = logging.StreamHandler(screen)
    root = logging.getLogger()
    level = root.level
    root.addHandler(handler)
    try:
        with (
            contextlib.redirect_stdout(screen),
            contextlib.redirect_stderr(screen),
            warnings.catch_warnings(record=True) as warned,
        ):
            warnings.simplefilter("always")
            root.setLevel(logging.INFO)
            try:
                outcome = step.run([batch])
                heard = {f"the returned {name}": float(value) for name, value in outcome.said.items()}
                heard["the number of releases"] = float(len(outcome.releases))
            except Exception as error:  # an error that depends on a record tells about it
                heard = {"the error": float(len(type(error).__name__) + 1)}
    finally:
        root.removeHandler(handler)
        root.setLevel(level)
    text = screen.getvalue() + "".join(str(warning.message) for warning in warned)
    numbers = [float(number) for number in _NUMBER.findall(text)]
    heard["the printed text"] = float(len(_NUMBER.sub("#", text)))
    return heard | {f"printed number {place + 1}": number for place, number in enumerate(numbers[:8])}
