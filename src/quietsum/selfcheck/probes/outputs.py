"""T11: what the trainer says besides the model.

The attacker of T6 reads everything else that leaves (:mod:`quietsum.selfcheck.probes.listening`). A step is run on a
batch, on the same batch with a record far out, and with a record of NaN, in an order drawn by lot, so that a step's
number or the time of day tell nothing. For each number that is heard a rule "accuse when the value lies beyond t" is
chosen on the first runs and judged on the others. All functions of the noisy sum pass, since they tell
no more than the sum; a loss of the batch does not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from quietsum.mechanisms import RandomSource
from quietsum.selfcheck.probes.attack import lower_bound
from quietsum.selfcheck.probes.listening import listening
from quietsum.selfcheck.probes.rows import join, rows, scale_rows, spoil
from quietsum.selfcheck.protocol import Floats, StepUnderTest
from quietsum.selfcheck.report import CheckFinding, CheckVerdict
from quietsum.selfcheck.statistics import FALSE_ALARM, best_error, clopper_pearson_upper

__all__ = ["compare_outputs"]

_OUTPUTS = 256  # numbers that are listened to; the level is shared among them
_MOST = 6000


def compare_outputs(step: StepUnderTest, rng: RandomSource) -> CheckFinding:
    """T11: what is returned, printed, logged, warned or written tells no more than the noisy sum does."""
    batch = step.examples(4, rng)
    without = rows(batch, [0, 1, 2])
    last = rows(batch, [3])
    sure, wrong = scale_rows(last, 100.0), scale_rows(last, -100.0)
    records = [sure, wrong, spoil(last, "NaN", everywhere=True)]
    batches = [without, *(join(without, record) for record in records)]
    alpha = FALSE_ALARM / (2 * len(records) * _OUTPUTS)
    count = _enough(step, alpha)
    chosen = max(16, count // 3)  # runs on which the rule is chosen
    heard: list[list[dict[str, float]]] = [[] for _ in batches]
    with listening() as listener:
        listener.hear(step, without)  # what happens only once is no output of a step
        for kind in rng.permutation(len(batches) * (chosen + count)) % len(batches):
            heard[kind].append(listener.hear(step, batches[kind]))
    worst, name = 0.0, ""
    often = Counter(key for runs in heard for said in runs[:chosen] for key in said)
    keys = sorted(often, key=lambda key: (-often[key], key))[:_OUTPUTS]  # what other programs write comes and goes
    for joint in heard[1:]:
        for key in keys:
            found = _tells(step, _column(heard[0], key), _column(joint, key), chosen, alpha)
            if found > worst:
                worst, name = found, key
    failed = bool(name)
    lesson = (
        f"{name[:1].upper()}{name[1:]} tells whether a record was there, better than the noisy sum may (a lower bound "
        f"of {worst:.3g}). No loss, count or metric of protected records may leave the trainer, in any way, "
        "unless it is noised and charged."
    )
    return CheckFinding(
        test="T11",
        name="other outputs",
        verdict=CheckVerdict.FAIL if failed else CheckVerdict.PASS,
        lesson=lesson if failed else "What is said besides the model tells nothing that the noisy sum does not.",
        statistic=worst,
        threshold=1 / step.noise_multiplier,
        p_value=FALSE_ALARM if failed else 1.0,
    )


def _enough(step: StepUnderTest, alpha: float) -> int:
    """How many runs it takes to convict an output without noise: a perfect score must refute 1.2 times the claim."""
    for count in (32, 48, 56, 64, 72, 80, 96, 128, 192, 256, 384, 512, 768, 1024, 2048, 4096):
        error = clopper_pearson_upper(0, count, alpha)
        if error < best_error(step.law, step.noise_multiplier / 1.2, error):
            return count
    return _MOST


def _tells(step: StepUnderTest, plain: Floats, joint: Floats, chosen: int, alpha: float) -> float:
    """The attacker's lower bound where it refutes the claim, else 0. The rule comes from the first ``chosen`` runs."""
    values = np.unique(np.concatenate([plain[:chosen], joint[:chosen]]))
    if len(values) < 2:
        return 0.0
    cuts = (values[1:] + values[:-1]) / 2
    cuts = cuts[np.linspace(0, len(cuts) - 1, min(len(cuts), 64)).astype(int)]
    gains = (joint[:chosen, None] > cuts).mean(axis=0) - (plain[:chosen, None] > cuts).mean(axis=0)
    best = int(np.argmax(np.abs(gains)))
    cut, above = float(cuts[best]), bool(gains[best] > 0)
    accused, right = (plain[chosen:] > cut) == above, (joint[chosen:] > cut) == above
    wrong = clopper_pearson_upper(int(accused.sum()), accused.size, alpha)
    overlooked = clopper_pearson_upper(int((~right).sum()), right.size, alpha)
    if overlooked >= best_error(step.law, step.noise_multiplier, wrong):
        return 0.0
    return max(lower_bound(step.law, wrong, overlooked), 1e-9)


def _column(heard: Sequence[dict[str, float]], key: str) -> Floats:
    """One output over all runs. Missing, NaN and infinite are values like others, far out and apart from each other."""
    values = np.array([said.get(key, -4e300) for said in heard], dtype=np.float64)
    return np.nan_to_num(values, nan=-2e300, posinf=2e300, neginf=-3e300)
