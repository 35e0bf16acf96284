"""T4: are batches drawn as accounted, every record by a coin of its own, and is every draw a step?

Amplification by sampling is proved for Poisson batches. A shuffled data loader looks alike and is worth less: its
batches all have the same size, and a record that was in one batch is in no other until the epoch ends (the true ε can
be several times the accounted one; Chua et al. 2024). Under the claim each coin is independent, so sizes are binomial
over records, counts are binomial over draws, and two draws share a binomial number of records at rate q². Each is
compared exactly: in all, by stretches of draws and of records, in every other draw.

Two records that come together, or never do, count as one. All pairs are compared, and so are all distances between
records, and between draws: the coins are split into two parts, and given the first part, how many of the second part's
hits stand at a certain distance from a hit of the first is binomial, for every distance.

An empty draw is a step of noise alone. A sampler that draws again, or a loop that skips the step, changes the law
of what is released by whether one record was there; populations so small that a third of the draws are empty, or hold
one or two records, show it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import fft, special

from quietsum.mechanisms import RandomSource
from quietsum.selfcheck.probes.dependence import lags_p
from quietsum.selfcheck.probes.rounding import distance
from quietsum.selfcheck.probes.rows import largest_tested_batch, nothing, rows, tile
from quietsum.selfcheck.probes.shape import intervals
from quietsum.selfcheck.protocol import StepUnderTest
from quietsum.selfcheck.report import CheckFinding, CheckVerdict
from quietsum.selfcheck.statistics import (
    FALSE_ALARM,
    binomial_p,
    binomial_scores,
    block_p,
    kolmogorov_p,
    spread_p,
)

__all__ = ["find_population", "sampling"]

_LIMIT = FALSE_ALARM / 20  # statistics at most
_COINS = 1 << 19  # that are compared at all distances
_SEEN = 1 << 22  # coins that are kept
_PAIRS = 1024  # records all pairs of which are compared


def find_population(step: StepUnderTest) -> int:
    """How many records to draw from in the test: all, or as many as give batches of about 64."""
    return max(1, min(step.population, int(np.ceil(64 / max(step.rate, 1e-6)))))


def sampling(step: StepUnderTest, rng: RandomSource, *, draws: int) -> CheckFinding:
    """T4: sizes, counts, overlaps, empty draws and skipped steps."""
    population, rate = find_population(step), step.rate
    draws = max(draws, min(4 * draws, 1500, int(np.ceil(1.2 / max(rate, 1e-6)))))
    batches = [np.asarray(step.sample(population)) for _ in range(draws)]
    if any(_not_a_draw(batch, population) for batch in batches):
        return _finding(0.0, "A record was drawn twice in one batch, or an index is no record. Toss one coin a record.")
    found = _statistics(batches, population, rate, rng) | _in_parts(batches, population, rate, rng)
    found |= _rate(step, batches, population, min(2 * draws, _SEEN // population)) | _small(step, draws)
    name, (p_value, lesson) = min(found.items(), key=lambda item: item[1][0])
    skipped = _find_skips(step, rng)
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
        "law of sizes": (
            kolmogorov_p(by_size)[1],
            f"Batch sizes do not follow the binomial law that coins give, even where their spread is right. {poisson}",
        ),
        "sizes in a row": (lags_p(by_size, rng), f"The size of one batch tells about another's. {poisson}"),
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


def _rate(
    step: StepUnderTest, batches: list[NDArray[np.int64]], population: int, more: int
) -> dict[str, tuple[float, str]]:
    """How many records are drawn in all: here, and in further draws that are only counted, which costs little."""
    sizes = [batch.size for batch in batches] + [np.asarray(step.sample(population)).size for _ in range(more)]
    lesson = (
        f"Batches hold {np.mean(sizes):.4g} records where {population * step.rate:.4g} are accounted for. Draw each "
        "record by its own coin, or account for the draw that is made."
    )
    return {"rate": (binomial_p(sum(sizes), population * len(sizes), step.rate), lesson)}


def _largest(counts: NDArray[np.int64], trials: int, chance: float) -> float:
    """The chance that the largest of that many binomial counts is no larger than seen."""
    top = int(counts.max())
    return float(special.bdtr(float(top), trials, chance)) ** len(counts) if top < trials else 1.0


def _in_parts(
    batches: list[NDArray[np.int64]], population: int, rate: float, rng: RandomSource
) -> dict[str, tuple[float, str]]:
    """Rates of single records, of stretches of records and of draws, and what one coin tells about another."""
    width = min(population, max(_PAIRS, _SEEN // len(batches)))
    start = int(rng.uniforms(1)[0] * (population - width + 1))  # a window of records, where there are many
    drawn = np.zeros((len(batches), width), dtype=np.bool_)
    for number, batch in enumerate(batches):
        drawn[number, batch[(batch >= start) & (batch < start + width)] - start] = True
    coin = "Toss a coin for each record and each draw, alone."
    sizes = np.array([batch.size for batch in batches], dtype=np.int64)
    middle = len(batches) // 2
    counts = [
        (np.bincount(np.concatenate(part), minlength=population), len(part))
        for part in (batches, batches[:middle], batches[middle:], batches[::2], batches[1::2])
        if part
    ]
    each = min(_oddest(times, count, rate) for times, count in counts)
    early, late = (binomial_scores(times, count, rate, rng) for times, count in counts[1:3])
    few = drawn[: max(2, _COINS // width)]
    return {
        "every record": (min(1.0, 5 * each), f"A record is drawn more often, or less, than the others. {coin}"),
        "records that stay frequent": (
            block_p(early - early.mean(), late),
            f"Records that were drawn often before are drawn often again: rates differ. {coin}",
        ),
        "stretches of records": (
            _stretches(counts[0][0], len(batches), rate),
            f"Some stretches of records are drawn at another rate. {coin}",
        ),
        "stretches of draws": (
            _stretches(sizes, population, rate),
            f"Some draws are made at another rate than others. {coin}",
        ),
        "every k-th draw": (
            _periods(sizes, population, rate),
            f"Some draws are made at another rate than others, by turns. {coin}",
        ),
        "any two records": (
            _together(drawn[:, :_PAIRS], rate),
            f"Two records are drawn together too often, or too seldom, and so stand for each other. {coin}",
        ),
        "records at a distance": (
            _distances(few, rate, rng),
            f"Records at some distance in the data are drawn together too often, or too seldom. {coin}",
        ),
        "draws at a distance": (
            _distances(few.T, rate, rng),
            f"A record's draw tells about its draw some steps later. {coin}",
        ),
    }


def _oddest(counts: NDArray[np.int64], trials: NDArray[np.int64] | int, chance: float) -> float:
    """The smallest two-sided p-value of binomial counts, times their number."""
    tries = np.broadcast_to(np.asarray(trials, dtype=np.int64), counts.shape)
    if not counts.size or not tries.all():
        return 1.0
    if chance == 1:
        return 1.0 if (counts == tries).all() else 0.0
    low = np.where(counts < tries, special.bdtr(np.minimum(counts, tries - 1).astype(float), tries, chance), 1.0)
    high = np.where(counts > 0, special.bdtrc(np.maximum(counts - 1, 0).astype(float), tries, chance), 1.0)
    return float(min(1.0, 2 * counts.size * min(low.min(), high.min())))


def _stretches(counts: NDArray[np.int64], trials: int, rate: float) -> float:
    places = intervals(counts.size)
    running = np.concatenate([[0], np.cumsum(counts)])
    totals = running[places[:, 1]] - running[places[:, 0]]
    return _oddest(totals, trials * (places[:, 1] - places[:, 0]), rate)


def _periods(counts: NDArray[np.int64], trials: int, rate: float) -> float:
    """Residue classes of draws modulo 2 … 16."""
    parts = [counts[first::period] for period in range(2, min(16, counts.size) + 1) for first in range(period)]
    if not parts:
        return 1.0
    return _oddest(np.array([part.sum() for part in parts]), np.array([trials * part.size for part in parts]), rate)


def _together(drawn: NDArray[np.bool_], rate: float) -> float:
    """How often each pair of records came together: binomial at rate², for every pair."""
    counts = drawn.astype(np.float32)
    table = np.rint(counts.T @ counts).astype(np.int64)
    pairs = table[np.triu_indices(len(table), 1)]
    if not pairs.size:
        return 1.0
    extremes = np.array([pairs.min(), pairs.max()])
    return float(min(1.0, pairs.size / 2 * _oddest(extremes, len(drawn), rate * rate)))


def _distances(drawn: NDArray[np.bool_], rate: float, rng: RandomSource) -> float:
    """Hits of one part of the coins at each distance, along a row, from hits of the other part: binomial given those.

    Rows are independent of each other in this count, and each coin of the second part is counted once for a distance.
    """
    if drawn.shape[1] < 2 or rate >= 1:
        return 1.0
    first = rng.coins(0.5, drawn.size).reshape(drawn.shape)
    length = fft.next_fast_len(2 * drawn.shape[1], real=True)
    starts = np.conj(fft.rfft(drawn & first, length, axis=1))
    hits = _count((starts * fft.rfft(drawn & ~first, length, axis=1)).sum(axis=0), length)
    tries = _count((starts * fft.rfft(~first, length, axis=1)).sum(axis=0), length)
    useful = tries > 0
    useful[0] = False
    return _oddest(hits[useful], tries[useful], rate)


def _count(spectrum: NDArray[np.complex128], length: int) -> NDArray[np.int64]:
    return np.asarray(np.rint(fft.irfft(spectrum, length)), dtype=np.int64)


def _small(step: StepUnderTest, draws: int) -> dict[str, tuple[float, str]]:
    """Draws from one record, from so few that a third are empty, and from four times as many: each size in turn."""
    lesson = "Empty draws are missing: who draws again until somebody comes tells that somebody was there."
    if step.rate >= 0.75:
        return {}
    found, rate = {}, step.rate
    few = max(1, min(find_population(step), round(1 / rate)))
    for name, population in (("empty draws", few), ("small draws", 4 * few), ("draws from one", 1)):
        population = min(population, max(step.population, 1))
        sizes = np.array([np.asarray(step.sample(population)).size for _ in range(draws)])
        classes = np.arange(min(population, 12) + 1)
        chances = np.exp(
            special.gammaln(population + 1) - special.gammaln(classes + 1) - special.gammaln(population - classes + 1)
            + classes * np.log(rate) + (population - classes) * np.log1p(-rate)
        )  # fmt: skip
        seen = [binomial_p(int((sizes == size).sum()), draws, float(chance)) for size, chance in enumerate(chances)]
        found[name] = (min(1.0, len(seen) * min(seen)), lesson)
        lesson = "Small batches come too seldom or too often: a draw that is thrown away tells how many were there."
    return found


def _find_skips(step: StepUnderTest, rng: RandomSource) -> str:
    """What is wrong with a run on full and empty batches; nothing where each made a noisy release and was charged."""
    batch = step.examples(3, rng)
    offered = [batch, nothing(batch), rows(batch, [0]), nothing(batch), rows(batch, [0, 1]), tile(batch, 7)]
    offered += [tile(batch, largest_tested_batch(step, batch))]
    before = step.run([]).charged
    outcome = step.run(offered)
    if len(outcome.releases) != len(offered):
        return (
            f"{len(offered)} batches, from empty to the largest, made {len(outcome.releases)} releases. An empty batch "
            "is a step of noise alone; leaving one out tells how many were drawn."
        )
    if outcome.charged - before < len(offered):
        return f"{len(offered)} steps were made and {outcome.charged - before} charged. Charge every draw, empty too."
    for number, release in enumerate(outcome.releases):
        if not np.isfinite(release).all() or distance(step, release, step.deterministic(offered[number])) == 0:
            return "A step was released without noise. Empty batches need noise like all others."
    return ""


def _finding(p_value: float, lesson: str, tests: int = 1) -> CheckFinding:
    failed = p_value < _LIMIT
    return CheckFinding(
        test="T4",
        name="sampling and steps",
        verdict=CheckVerdict.FAIL if failed else CheckVerdict.PASS,
        lesson=lesson if failed else "Batches are drawn by coins at the stated rate, and every draw is a step.",
        statistic=p_value,
        threshold=_LIMIT,
        p_value=min(1.0, tests * p_value),
    )
