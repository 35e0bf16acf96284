"""T10: are noise and draws new after a restart, and the books complete?

The first noise and the first draws of a step are compared with those of two restarts of it, and the books before with
the books after. A generator that is saved, restored or seeded repeats itself, and the difference of two models is then
free of noise.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from quietsum.mechanisms import RandomSource
from quietsum.selfcheck.probes.noise import FORGIVEN
from quietsum.selfcheck.probes.rows import nothing
from quietsum.selfcheck.protocol import Floats, StepUnderTest
from quietsum.selfcheck.report import CheckFinding, CheckVerdict
from quietsum.selfcheck.statistics import FALSE_ALARM, binomial_p, block_p, noise_scores, normal_p

__all__ = ["fresh_after_restart"]


def fresh_after_restart(
    step: StepUnderTest,
    rng: RandomSource,
    *,
    before: Sequence[Floats],
    drawn: Sequence[NDArray[np.int64]],
    population: int,
) -> CheckFinding:
    """T10: ``before`` are the first noises of the step and ``drawn`` its first batches; two restarts repeat neither.

    The books go on where they were: what was charged before the restart is still charged after it.
    """
    one, two = step.restart(), step.restart()
    scale = step.noise_multiplier * step.sensitivity
    count = max(len(before), -(-12 // max(before[0].size, 1)))
    scores = [
        _narrow(noise_scores(np.stack(noises), step.law, scale), 1 + FORGIVEN + max(step.allowance, 0.0))
        for noises in (before, [one.noise() for _ in range(count)], [two.noise() for _ in range(count)])
    ]
    p_value = 1.0
    for a, b in ((scores[0], scores[1]), (scores[0], scores[2]), (scores[1], scores[2])):
        same = min(len(a), len(b))
        p_value = min(p_value, _any_two(a, b), block_p(a[:same], b[:same]))
        if a.shape[1] * same >= 4 and np.array_equal(a[:same], b[:same]):
            p_value = 0.0
    for restarted in (one, two):
        together = [np.intersect1d(batch_then, restarted.sample(population)).size for batch_then in drawn]
        p_value = min(p_value, binomial_p(int(sum(together)), population * len(drawn), step.rate**2))
    missing = _find_uncounted(step, rng)
    if missing:
        return _restart_finding(0.0, missing)
    lesson = (
        "Noise or draws after a restart repeat those from before, so the difference of two models is free of noise. "
        "Never save, restore or seed the generator of the noise."
    )
    return _restart_finding(p_value, lesson)


def _any_two(one: Floats, other: Floats) -> float:
    """The most correlated pair of releases; ⟨a, b⟩ / ‖a‖ is standard normal given a. Bonferroni over the pairs."""
    lengths = np.linalg.norm(one, axis=1)
    table = np.abs(one @ other.T) / np.where(lengths > 0, lengths, 1.0)[:, None]
    return min(1.0, table.size * normal_p(float(table.max()))) if table.size else 1.0


def _narrow(scores: Floats, width: float) -> Floats:
    """Scores of a width of at most about 1, so that wide noise is not taken for repeated noise; T3 sees the width."""
    return np.asarray(scores / max(width, float(np.sqrt(np.mean(np.square(scores))))))


def _find_uncounted(step: StepUnderTest, rng: RandomSource) -> str:
    """Why the books are short after a restart; empty where they are not."""
    batch = step.examples(2, rng)
    before = step.run([]).charged
    charged = step.run([batch]).charged
    after = step.restart().run([batch, nothing(batch)]).charged
    if charged >= before + 1 and after >= charged + 2:
        return ""
    return (
        f"{before + 3} steps were made, and after a restart the books hold {after}. Write the charge down, durably, "
        "before the step, and read it back before the next."
    )


def _restart_finding(p_value: float, lesson: str) -> CheckFinding:
    limit = FALSE_ALARM / 8  # three pairs of noises, twice, and two pairs of draws
    failed = p_value < limit
    return CheckFinding(
        test="T10",
        name="restart",
        verdict=CheckVerdict.FAIL if failed else CheckVerdict.PASS,
        lesson=lesson if failed else "After a restart noise and draws are new, and every step is in the books.",
        statistic=p_value,
        threshold=limit,
        p_value=min(1.0, 8 * p_value),
    )
