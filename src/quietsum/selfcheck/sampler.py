"""T4: are batches drawn as accounted, every record by a coin of its own, and is every draw a step?

Amplification by sampling is proved for Poisson batches. A shuffled data loader looks alike and is worth less: its
batches all have the same size, and a record that was in one batch is in no other until the epoch ends (the true ε can
be several times the accounted one; Chua et al. 2024). Under the claim each coin is independent, so sizes are binomial
over records, counts are binomial over draws, and two draws share a binomial number of records at rate q². Each is
compared exactly.

A draw of nobody is a step of noise alone. A sampler that draws again, or a loop that skips the step, changes the law
of what is released by whether one record was there; a population small enough that a third of the draws are empty
shows it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import special

from quietsum.mechanisms.rng import RandomSource
from quietsum.selfcheck.report import Finding, Verdict
from quietsum.selfcheck.rounding import distance
from quietsum.selfcheck.rows import nothing, rows
from quietsum.selfcheck.seam import StepUnderTest
from quietsum.selfcheck.statistics import FALSE_ALARM, binomial_p, binomial_scores, block_p, spread_p

__all__ = ["sampling", "tested_population"]

_LIMIT = FALSE_ALARM / 12


def tested_population(step: StepUnderTest) -> int:
    """How many records to draw from in the test: all, or as many as give batches of about 64."""
    return max(1, min(step.population, int(np.ceil(64 / max(step.rate, 1e-6)))))


def sampling(step: StepUnderTest, rng: RandomSource, *, draws: int) -> Finding:
    """T4: sizes, counts, overlaps, empty draws and skipped steps."""
    population, rate = tested_population(step), step.rate
    draws = max(draws, min(4 * draws, 1500, int(np.ceil(1.2 / max(rate, 1e-6)))))
    batches = [np.asarray(step.sample(population)) for _ in range(draws)]
    if any(_not_a_draw(batch, population) for batch in batches):
        return _finding(0.0, "A record was drawn twice in one batch, or an index is no record. Toss one coin a record.")
    found = _statistics(batches, population, rate, rng)
    found["draws of nobody"] = _empty(step, draws)
    name, (p_value, lesson) = min(found.items(), key=lambda item: item[1][0])
    skipped = _skipped(step, rng)
    if skipped:
        return _finding(0.0, skipped)
    return _finding(p_value, f"{lesson} (Seen in: {name}.)", len(found))


def _not_a_draw(batch: NDArray[np.int64], population: int) -> bool:
    if batch.size == 0:
        return False
    return bool(batch.min() < 0 or batch.max() >= population or np.unique(batch).size < batch.size)


def _statistics(
    batches: list[NDArray[np.int64]], population: int, rate: float, rng: RandomSource
) -> dict[str, tuple[float, str]]:
    sizes = np.array([batch.size for batch in batches], dtype=np.int64)
    counts = np.bincount(np.concatenate(batches), minlength=population).astype(np.int64)
    by_size = binomial_scores(sizes, population, rate, rng)
    by_record = binomial_scores(counts, len(batches), rate, rng)
    half = len(batches) // 2
    shared = [np.intersect1d(batches[2 * i], batches[2 * i + 1]).size for i in range(half)]
    expected, spread = population * rate, float(np.var(sizes)) if len(sizes) else 0.0
    poisson = "Draw each record by its own coin, or account for the draw that is made."
    return {
        "rate": (
            binomial_p(int(sizes.sum()), population * len(batches), rate),
            f"Batches hold {sizes.mean():.4g} records where {expected:.4g} are accounted for. {poisson}",
        ),
        "sizes": (
            2 * min(spread_p(by_size)),
            f"Batch sizes vary by {spread:.3g} where coins give {expected * (1 - rate):.3g}: these are not Poisson "
            f"batches, and their amplification does not hold. {poisson}",
        ),
        "largest and smallest": (
            2 * min(_largest(sizes, population, rate), _largest(population - sizes, population, 1 - rate)),
            f"No batch holds more than {sizes.max()} records, or fewer than {sizes.min()}: who does not fit is "
            f"cut off, so one record drives out another. {poisson}",
        ),
        "sizes in a row": (block_p(by_size[0 : 2 * half : 2], by_size[1 : 2 * half : 2]), f"Sizes repeat. {poisson}"),
        "counts": (
            2 * min(spread_p(by_record)),
            "Records are drawn more evenly, or less, than by coins, as when an epoch is shuffled and cut into "
            f"batches. {poisson}",
        ),
        "overlap": (
            binomial_p(int(sum(shared)), population * half, rate * rate),
            f"Two draws share {sum(shared)} records where coins share about {population * half * rate * rate:.4g}: one "
            f"draw depends on the last. {poisson}",
        ),
    }


def _largest(counts: NDArray[np.int64], trials: int, chance: float) -> float:
    """The chance that the largest of that many binomial counts is no larger than seen."""
    top = int(counts.max())
    return float(special.bdtr(float(top), trials, chance)) ** len(counts) if top < trials else 1.0


def _empty(step: StepUnderTest, draws: int) -> tuple[float, str]:
    """Draws from so few records that a third of them should be empty."""
    lesson = "Empty draws are missing: who draws again until somebody comes tells that somebody was there."
    if step.rate >= 0.75:
        return 1.0, lesson
    few = max(1, min(tested_population(step), round(1 / step.rate)))
    chance = float(np.exp(few * special.log1p(-step.rate)))
    empty = sum(int(np.asarray(step.sample(few)).size == 0) for _ in range(draws))
    return binomial_p(empty, draws, chance), lesson


def _skipped(step: StepUnderTest, rng: RandomSource) -> str:
    """What is wrong with a run on full and empty batches; nothing where each made a noisy release and was charged."""
    batch = step.examples(3, rng)
    offered = [batch, nothing(batch), rows(batch, [0]), nothing(batch)]
    before = step.run([]).charged
    outcome = step.run(offered)
    if len(outcome.releases) != len(offered):
        return (
            f"{len(offered)} batches, two of them empty, made {len(outcome.releases)} releases. An empty batch is a "
            "step of noise alone; leaving it out tells that nobody was drawn."
        )
    if outcome.charged - before < len(offered):
        return f"{len(offered)} steps were made and {outcome.charged - before} charged. Charge every draw, empty too."
    for number, release in enumerate(outcome.releases):
        if not np.isfinite(release).all() or distance(step, release, step.deterministic(offered[number])) == 0:
            return "A step was released without noise. Empty batches need noise like all others."
    return ""


def _finding(p_value: float, lesson: str, tests: int = 1) -> Finding:
    failed = p_value < _LIMIT
    return Finding(
        test="T4",
        name="sampling and steps",
        verdict=Verdict.FAIL if failed else Verdict.PASS,
        lesson=lesson if failed else "Batches are drawn by coins at the stated rate, and every draw is a step.",
        statistic=p_value,
        threshold=_LIMIT,
        p_value=min(1.0, tests * p_value),
    )
