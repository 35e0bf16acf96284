"""T3 and T10: is the noise what it claims to be, fresh in every release and fresh after a restart?

Noise of the wrong scale or law is visible in a few ten thousand draws; noise that was used twice cancels when the two
releases are subtracted, and a model trained on it has no privacy at all. All statistics are exact or conservative (see
:mod:`quietsum.selfcheck.statistics`), at one in ten million for the whole test. With 60 000 draws a standard deviation
5 % too small lies seventeen standard errors from the claim: 0.0975 · √(60 000 / 2) = 16.9, and is always seen.

T3 looks at scale, law, mean, neighbours within one release, neighbouring releases, any two releases, every coordinate
by itself, values that return, at what is really added by a release, and at a count that is released with it. T10
compares the first noise and the first draws of a step with those of two restarts of it, and the books before with the
books after.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import special

from quietsum.mechanisms.rng import RandomSource
from quietsum.selfcheck.report import Finding, Verdict
from quietsum.selfcheck.rows import nothing, repeated, rows, scaled
from quietsum.selfcheck.seam import Floats, StepUnderTest
from quietsum.selfcheck.statistics import (
    FALSE_ALARM,
    binomial_p,
    block_p,
    kolmogorov_p,
    noise_scores,
    normal_p,
    spread_p,
)

__all__ = ["fresh_after_restart", "noise_law"]

_MORE = 0.01  # 1 % more noise than claimed is forgiven in any case
_WIDE = 50_000  # coordinates that are looked at in each release
_MOST = 20_000  # releases that are drawn
_COUNTS = 2000  # draws of a count that is released with the sum; half the noise lies 24 standard errors away


def noise_law(step: StepUnderTest, rng: RandomSource, *, draws: int, releases: int) -> Finding:
    """T3: scale, law and freshness of the noise; and of what a release really adds."""
    scale, more = step.noise_multiplier * step.sensitivity, _MORE + max(step.allowance, 0.0)
    first = np.asarray(step.noise(), dtype=np.float64)
    wanted = min(_MOST, max(releases, 2 + -(-draws // max(first.size, 1))))
    kept = _some(first.size, rng)
    seen, never_moved = [first[kept]], np.isfinite(first)
    whole = bool(never_moved.all())
    for number in range(wanted - 1):
        other = np.asarray(step.noise(), dtype=np.float64)
        whole = whole and other.shape == first.shape and bool(np.isfinite(other).all())
        if not whole:
            return _noise_finding("finite", 0.0, "The noise is not a finite vector of one length.")
        if number < 5:
            never_moved &= other == first
        seen.append(other[kept])
    if never_moved.any():  # on a grid of 2²⁴ steps: 1e-35 each
        return _noise_finding("everywhere", 0.0, "Some coordinates get no noise, or the same noise in each release.")
    drawn = np.stack(seen)
    found = _statistics(noise_scores(drawn, step.law, scale), more) | _added(step, rng, kept, releases, more)
    found |= _counted(np.asarray(step.beside(_COUNTS), dtype=np.float64), more)
    name, (p_value, lesson) = min(found.items(), key=lambda item: item[1][0])
    return _noise_finding(name, p_value, lesson, len(found))


def _some(size: int, rng: RandomSource) -> NDArray[np.int64]:
    """Places that are looked at, in order; chosen before, and without regard to, what is there."""
    if size <= 4 * _WIDE:
        return np.sort(rng.permutation(size)[:_WIDE])
    return np.unique((rng.uniforms(_WIDE) * size).astype(np.int64))


def _statistics(scores: Floats, more: float) -> dict[str, tuple[float, str]]:
    """p-values by name, each with what it would mean. Rows are releases, columns coordinates.

    Scores of noise that is wider by up to ``more`` are normal with that width, so whatever compares them with a
    standard normal divides by it first, or by the width that is seen where that is larger: conservative, and exact at
    the widest.
    """
    width = float(np.sqrt(np.mean(np.square(scores))))
    small, large = spread_p(scores, more)
    _, law = kolmogorov_p(scores, 0.25 * more)
    each = _each(scores, more)
    scores = scores / max(1 + more, width)
    mean = normal_p(float(scores.sum()) / np.sqrt(scores.size))
    even = scores.shape[1] // 2 * 2
    within = block_p(scores[:, 0:even:2], scores[:, 1:even:2])
    pairs = len(scores) // 2 * 2
    between = block_p(scores[0:pairs:2], scores[1:pairs:2])
    off = "A mechanism is accounted by its noise: add what is claimed, or claim what is added."
    again = "Noise used twice cancels when two releases are subtracted. Draw it fresh, from the operating system."
    return {
        "scale": (
            2 * min(small, large),
            f"The noise is {width:.3g} times as wide as claimed. "
            + ("The accounting is too good to be true. " if width < 1 else "That is private and useless. ")
            + off,
        ),
        "law": (law, f"The noise does not follow the claimed law, whatever its width. {off}"),
        "mean": (mean, f"The noise is not centred at zero. {off}"),
        "neighbouring coordinates": (
            within,
            f"Neighbouring coordinates share noise, so a difference has less. {again}",
        ),
        "neighbouring releases": (between, f"One release's noise tells about the next one's. {again}"),
        "any two releases": (_any_two(scores[:48]), f"Two releases share noise. {again}"),
        "every coordinate": (each, f"Some coordinates get noise of another width than claimed. {off}"),
        "values that return": (_returning(scores), f"The same noise came twice. {again}"),
    }


def _counted(scores: Floats, more: float) -> dict[str, tuple[float, str]]:
    """The noise of a count that is released with the sum. One coordinate among many, so it is drawn by itself."""
    if not scores.size:
        return {}
    if not np.isfinite(scores).all():
        return {"a count, finite": (0.0, "A count that is released with the sum is not finite.")}
    width, half = float(np.sqrt(np.mean(np.square(scores)))), scores.size // 2
    small, large = spread_p(scores, more)
    lesson = (
        f"The count that is released with the sum has {width:.3g} times its claimed noise, or another law. A count of "
        "protected records is a release like any other: noise it at the scale that the joint noise multiplier states."
    )
    return {
        "a count, scale": (2 * min(small, large), lesson),
        "a count, law": (kolmogorov_p(scores, 0.25 * more)[1], lesson),
        "a count, in a row": (block_p(scores[:half], scores[half : 2 * half]), f"{lesson} Draw it fresh each time."),
    }


def _any_two(one: Floats, other: Floats | None = None) -> float:
    """The most correlated pair of releases; ⟨a, b⟩ / ‖a‖ is standard normal given a. Bonferroni over the pairs."""
    lengths = np.linalg.norm(one, axis=1)
    table = np.abs(one @ (one if other is None else other).T) / np.where(lengths > 0, lengths, 1.0)[:, None]
    if other is None:  # each pair once, and none with itself
        table = np.triu(table, 1)
    return min(1.0, table.size * normal_p(float(table.max()))) if table.size else 1.0


def _each(scores: Floats, more: float) -> float:
    """The coordinate with the oddest spread: χ² for each, Bonferroni over them."""
    totals = np.square(scores).sum(axis=0)
    low = special.chdtr(len(scores), totals)
    high = special.chdtrc(len(scores), totals / (1 + more) ** 2)
    return float(min(1.0, 2 * scores.shape[1] * min(low.min(), high.min())))


def _returning(scores: Floats) -> float:
    """Whether four or more values in a row come again. On a grid of 2²⁴ steps that has a chance below 1e-20."""
    length = -(-4 // max(scores.shape[1], 1))
    count = len(scores) // length
    blocks = np.ascontiguousarray(scores[: count * length].reshape(count, -1))
    return 0.0 if len({block.tobytes() for block in blocks}) < count else 1.0


def _added(
    step: StepUnderTest, rng: RandomSource, kept: NDArray[np.int64], releases: int, more: float
) -> dict[str, tuple[float, str]]:
    """Release minus sum, on batches of several sizes: the claimed noise again, whatever the batch."""
    batch = scaled(step.examples(3, rng), 3.0)  # equal rows add up, so a sum that is not the shown one stands out
    batches = (repeated(batch, 8), nothing(batch), repeated(rows(batch, [0]), 8))
    rest: list[Floats] = []
    with np.errstate(all="ignore"):
        sums = [step.deterministic(some)[kept] for some in batches]
        for number in range(max(releases, min(200, 2000 // max(kept.size, 1)))):
            some, total = batches[number % 3], sums[number % 3]
            made = step.run([some]).releases if number % 2 else (step.release(some),)
            rest.extend(release[kept] - total for release in made)
    left = np.stack(rest)
    if not np.isfinite(left).all():
        return {"what a release adds": (0.0, "What is released is not finite.")}
    scores = noise_scores(left, step.law, step.noise_multiplier * step.sensitivity)
    small, large = spread_p(scores, more)
    width = float(np.sqrt(np.mean(np.square(scores))))
    thirds = [scores[start::3] for start in range(3)] if len(scores) % 3 == 0 else [scores]
    means = np.concatenate([part.sum(axis=0) / np.sqrt(len(part)) for part in thirds])
    sixes = (scores[: len(scores) // 6 * 6] / (1 + more)).reshape(-1, 2, 3 * scores.shape[1])  # each batch twice
    lesson = (
        f"A release differs from its sum by {width:.3g} times the claimed noise. Noise belongs on the sum, once, "
        "scaled to the sensitivity; a mean is that noisy sum divided by the public expected batch."
    )
    again = "Two releases of the same batch hold the same noise. Noise never depends on the data."
    return {
        "what a release adds, scale": (2 * min(small, large), lesson),
        "what a release adds, law": (kolmogorov_p(scores, 0.25 * more)[1], lesson),
        "what a release adds, on average": (
            spread_p(means, more)[1],
            "Releases of one batch do not scatter around its sum, so training uses another sum than the one that was "
            "shown. Let both come from the same code.",
        ),
        "what two releases add": (block_p(sixes[:, 0], sixes[:, 1]), again),
    }


def _noise_finding(name: str, p_value: float, lesson: str, tests: int = 1) -> Finding:
    limit = FALSE_ALARM / 16
    failed = p_value < limit
    return Finding(
        test="T3",
        name="noise",
        verdict=Verdict.FAIL if failed else Verdict.PASS,
        lesson=f"{lesson} (Seen in: {name}.)" if failed else "The noise is as claimed, and fresh in every release.",
        statistic=p_value,
        threshold=limit,
        p_value=min(1.0, tests * p_value),
    )


# ----------------------------------------------------------------------------------------------- after a restart


def fresh_after_restart(
    step: StepUnderTest,
    rng: RandomSource,
    *,
    before: Sequence[Floats],
    drawn: Sequence[NDArray[np.int64]],
    population: int,
) -> Finding:
    """T10: ``before`` are the first noises of the step and ``drawn`` its first batches; two restarts repeat neither.

    The books go on where they were: what was charged before the restart is still charged after it.
    """
    one, two = step.restarted(), step.restarted()
    scale = step.noise_multiplier * step.sensitivity
    count = max(len(before), -(-12 // max(before[0].size, 1)))
    scores = [
        _narrowed(noise_scores(np.stack(noises), step.law, scale), 1 + _MORE + max(step.allowance, 0.0))
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
    missing = _uncounted(step, rng)
    if missing:
        return _restart_finding(0.0, missing)
    lesson = (
        "Noise or draws after a restart repeat those from before, so the difference of two models is free of noise. "
        "Never save, restore or seed the generator of the noise."
    )
    return _restart_finding(p_value, lesson)


def _narrowed(scores: Floats, width: float) -> Floats:
    """Scores of a width of at most about 1, so that wide noise is not taken for repeated noise; T3 sees the width."""
    return np.asarray(scores / max(width, float(np.sqrt(np.mean(np.square(scores))))))


def _uncounted(step: StepUnderTest, rng: RandomSource) -> str:
    """Why the books are short after a restart; empty where they are not."""
    batch = step.examples(2, rng)
    before = step.run([]).charged
    charged = step.run([batch]).charged
    after = step.restarted().run([batch, nothing(batch)]).charged
    if charged >= before + 1 and after >= charged + 2:
        return ""
    return (
        f"{before + 3} steps were made, and after a restart the books hold {after}. Write the charge down, durably, "
        "before the step, and read it back before the next."
    )


def _restart_finding(p_value: float, lesson: str) -> Finding:
    limit = FALSE_ALARM / 8  # three pairs of noises, twice, and two pairs of draws
    failed = p_value < limit
    return Finding(
        test="T10",
        name="restart",
        verdict=Verdict.FAIL if failed else Verdict.PASS,
        lesson=lesson if failed else "After a restart noise and draws are new, and every step is in the books.",
        statistic=p_value,
        threshold=limit,
        p_value=min(1.0, 8 * p_value),
    )
