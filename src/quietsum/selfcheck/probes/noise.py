"""T3: is the noise what it claims to be, in every coordinate, fresh in every release?

Noise of the wrong scale or law is visible in some ten thousand draws; noise that was used twice cancels when the two
releases are combined, and a model trained on it has no privacy at all. Every statistic is exact or conservative (see
:mod:`~quietsum.selfcheck.statistics`, :mod:`~quietsum.selfcheck.probes.shape`,
:mod:`~quietsum.selfcheck.probes.dependence`), at one in ten million for the whole test. With 60 000 draws a standard
deviation 5 % too small lies seventeen standard errors from the claim: 0.0975 · √(60 000 / 2) = 16.9, and is always
seen.

T3 looks at

* the law: scale, distribution, mean, tails, the largest value, values that come twice (noise that was used again, or
  was drawn on a coarser grid than the sum it hides);
* parts: every coordinate, stretches of coordinates and of releases, every k-th of them, and whether what is loud stays
  loud, so that two scales which average to the claim are seen;
* dependence: all lags of the whole stream, with signs and without, all pairs of coordinates and of releases (up to 512
  of each), sums of neighbours, and combinations without noise;
* what a release adds to its sum, on batches from empty to the largest that will be drawn, and the noise of a count
  that is released with it.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy import special

from quietsum.mechanisms import RandomSource
from quietsum.selfcheck.probes.dependence import combinations_p, lags_p, magnitudes, pairs_p, persistence_p
from quietsum.selfcheck.probes.rows import largest_tested_batch, nothing, repeat, rows, scale_rows, tile
from quietsum.selfcheck.probes.shape import classes_p, intervals_p, largest_p, repeats_p, sums_p, tails_p
from quietsum.selfcheck.protocol import Floats, Law, OnAGrid, StepUnderTest
from quietsum.selfcheck.report import CheckFinding, CheckVerdict
from quietsum.selfcheck.statistics import FALSE_ALARM, block_p, kolmogorov_p, noise_scores, normal_p, spread_p

__all__ = ["FORGIVEN", "noise_law"]

FORGIVEN = 0.01
"""By which part noise may be wider than claimed in any case."""

_WIDE = 50_000  # coordinates that are looked at in each release
_MOST, _MANY = 20_000, 3000  # releases that are drawn, and that are drawn for more than is asked for
_LONG = 60_000  # draws of the long check
_COUNTS = 2000  # draws of a count that is released with the sum; half the noise lies 24 standard errors away
_PAIRS = 512  # coordinates or releases all pairs of which are compared
_STATISTICS = 40  # at most; the level of the test is shared among them
_COARSE = 2.0**-8  # of the sensitivity: the coarsest grid that noise may lie on

_Found: TypeAlias = dict[str, tuple[float, str]]
"""p-values by name, each with what it would mean."""

_OFF = "A mechanism is accounted by its noise: add what is claimed, or claim what is added."
_AGAIN = "Noise used twice cancels when releases are combined. Draw it fresh, from the operating system."


def noise_law(step: StepUnderTest, rng: RandomSource, *, draws: int, releases: int) -> CheckFinding:
    """T3: scale, law and freshness of the noise; and of what a release really adds."""
    scale, more = step.noise_multiplier * step.sensitivity, FORGIVEN + max(step.allowance, 0.0)
    first = np.asarray(step.noise(), dtype=np.float64)
    wanted = _count_releases(first.size, draws, releases)
    kept = _some(first.size, rng)
    seen, never_moved = [first[kept]], np.isfinite(first)
    whole = bool(never_moved.all())
    energies = _energies(first, step.law, scale) if first.size > kept.size else np.empty(0)
    for number in range(wanted - 1):
        other = np.asarray(step.noise(), dtype=np.float64)
        whole = whole and other.shape == first.shape and bool(np.isfinite(other).all())
        if not whole:
            return _noise_finding("finite", 0.0, "The noise is not a finite vector of one length.")
        if number < 5:
            never_moved &= other == first
        if energies.size:
            energies += _energies(other, step.law, scale)
        seen.append(other[kept])
    if never_moved.any():  # on a grid of 2²⁴ steps: 1e-35 each
        return _noise_finding("everywhere", 0.0, "Some coordinates get no noise, or the same noise in each release.")
    drawn, grain = np.stack(seen), _grain(step)
    scores = noise_scores(drawn, step.law, scale)
    found = _law(drawn, scores, step, more, grain) | _parts(scores, more) | _dependence(scores, more, rng)
    if energies.size:
        freedom = wanted * (1.0 if step.law is Law.GAUSSIAN else 2.0)
        part = min(intervals_p(energies, freedom, more), _each(energies, freedom, more))
        found["every coordinate of many"] = (2 * part, f"Some coordinates get noise of another width. {_OFF}")
    found |= _judge_added(step, rng, kept, releases, more, grain)
    found |= _judge_count(np.asarray(step.beside(_COUNTS), dtype=np.float64), more, rng)
    name, (p_value, lesson) = min(found.items(), key=lambda item: item[1][0])
    return _noise_finding(name, p_value, lesson, len(found))


def _count_releases(size: int, draws: int, releases: int) -> int:
    """How many releases to draw: for ``draws`` values, and for four times as many where few releases hold them."""
    enough = 2 + -(-draws // max(size, 1))
    return max(releases, min(_MOST, enough), min(_MANY, 4 * enough) if draws >= _LONG else 0)


def _some(size: int, rng: RandomSource) -> NDArray[np.int64]:
    """Places that are looked at, in order; chosen before, and without regard to, what is there."""
    if size <= 4 * _WIDE:
        return np.sort(rng.permutation(size)[:_WIDE])
    return np.unique((rng.uniforms(_WIDE) * size).astype(np.int64))


def _energies(noise: Floats, law: Law, scale: float) -> Floats:
    """x²/σ² is χ² with one degree of freedom, 2|x|/b of Laplace noise with two."""
    return np.asarray(np.square(noise / scale) if law is Law.GAUSSIAN else 2 * np.abs(noise / scale))


def _grain(step: StepUnderTest) -> float:
    """The spacing of the grid on which the noise lies by design, in units of its scale; 0 where it lies on none."""
    grain = float(step.grain) if isinstance(step, OnAGrid) else 0.0
    if not 0 <= grain <= _COARSE * step.sensitivity:
        raise ValueError(f"noise on a grid of {grain:g}, more than {_COARSE:g} of the sensitivity, hides too little")
    return grain / (step.noise_multiplier * step.sensitivity)


def _law(drawn: Floats, scores: Floats, step: StepUnderTest, more: float, grain: float) -> _Found:
    """One value at a time: scale, distribution, mean, tails, extremes, repeats."""
    width = float(np.sqrt(np.mean(np.square(scores))))
    small, large = spread_p(scores, more)
    narrow = scores / max(1 + more, width)
    means = np.abs(narrow.sum(axis=0)) / np.sqrt(len(scores))
    return {
        "scale": (
            2 * min(small, large),
            f"The noise is {width:.3g} times as wide as claimed. "
            + ("The accounting is too good to be true. " if width < 1 else "That is private and useless. ")
            + _OFF,
        ),
        "law": (
            kolmogorov_p(scores, 0.25 * more)[1],
            f"The noise does not follow the claimed law, at any width. {_OFF}",
        ),
        "tails": (
            tails_p(scores, more),
            f"Small or large values come too seldom or too often: another law, or several scales. {_OFF}",
        ),
        "largest": (
            largest_p(scores, more),
            f"The largest noise is {np.abs(scores).max():.3g} standard deviations, which so many draws do not have "
            f"by chance: it is cut off, or has heavy tails. {_OFF}",
        ),
        "mean": (normal_p(float(narrow.sum()) / np.sqrt(scores.size)), f"The noise is not centred at zero. {_OFF}"),
        "mean of a coordinate": (
            min(1.0, means.size * normal_p(float(means.max(initial=0.0)))),
            f"The noise of a coordinate is not centred at zero. {_OFF}",
        ),
        "values that return": (
            repeats_p(drawn, max(step.precision, 1e-15) + grain),
            f"Values come again that a fine law never repeats: noise that was used twice, or drawn on a coarser grid "
            f"than the sum it hides, whose last digits then show the sum. {_AGAIN}",
        ),
    }


def _parts(scores: Floats, more: float) -> _Found:
    """The width in every part of the stream. Rows are releases, columns coordinates."""
    squares = np.square(scores)
    by_place, by_release = squares.sum(axis=0), squares.sum(axis=1)
    releases, places = scores.shape
    early, left = releases // 2, places // 2
    wide = f"Some coordinates get noise of another width than claimed. {_OFF}"
    long = f"Some releases get noise of another width than others. {_OFF}"
    stay = persistence_p(
        squares[:early].sum(axis=0), squares[early:].sum(axis=0), (float(early), float(releases - early)), more
    )
    steady = persistence_p(
        squares[:, :left].sum(axis=1), squares[:, left:].sum(axis=1), (float(left), float(places - left)), more
    )
    return {
        "every coordinate": (_each(by_place, float(releases), more), wide),
        "stretches of coordinates": (intervals_p(by_place, float(releases), more), wide),
        "every k-th coordinate": (classes_p(by_place, float(releases), more), wide),
        "coordinates that stay loud": (stay if early else 1.0, wide),
        "every release": (_each(by_release, float(places), more), long),
        "stretches of releases": (intervals_p(by_release, float(places), more), long),
        "every k-th release": (classes_p(by_release, float(places), more), long),
        "releases that are loud throughout": (steady if left else 1.0, long),
    }


def _each(energies: Floats, degrees: float, more: float) -> float:
    """The place with the oddest spread: χ² for each, Bonferroni over them."""
    low = float(special.chdtr(degrees, energies.min()))
    high = float(special.chdtrc(degrees, energies.max() / (1 + more) ** 2))
    return min(1.0, 2 * energies.size * min(low, high))


def _dependence(scores: Floats, more: float, rng: RandomSource) -> _Found:
    """What one value tells about another.

    Scores of noise that is wider by up to ``more`` are normal with that width, so what compares them with a
    standard normal divides by it first, or by the width that is seen where that is larger: conservative, and exact at
    the widest.
    """
    narrow = scores / max(1 + more, float(np.sqrt(np.mean(np.square(scores)))))
    across = min(scores.shape) <= _PAIRS
    return {
        "all lags": (
            lags_p(narrow.ravel(), rng),
            f"Noise returns after a while, as it was or with its sign turned. {_AGAIN}",
        ),
        "all lags of magnitudes": (
            lags_p(magnitudes(scores).ravel(), rng),
            f"The size of the noise returns after a while, with other signs or the same. {_AGAIN}",
        ),
        "any two coordinates": (
            pairs_p(narrow[:, :_PAIRS]),
            f"Coordinates share noise, so a difference has less. {_AGAIN}",
        ),
        "any two releases": (pairs_p(narrow[:_PAIRS].T), f"Two releases share noise. {_AGAIN}"),
        "sums of coordinates": (
            sums_p(scores, more),
            f"Neighbouring coordinates share noise, so their sum or their differences have less. {_AGAIN}",
        ),
        "sums of releases": (
            sums_p(scores.T, more),
            f"Consecutive releases share noise, so their sum or their differences have less. {_AGAIN}",
        ),
        "any combination": (
            combinations_p(scores, more) if across else 1.0,
            f"Some combination of coordinates or of releases has too little noise, or too much. {_AGAIN}",
        ),
    }


def _judge_count(scores: Floats, more: float, rng: RandomSource) -> _Found:
    """The noise of a count that is released with the sum. One coordinate among many, so it is drawn by itself."""
    if not scores.size:
        return {}
    if not np.isfinite(scores).all():
        return {"a count, finite": (0.0, "A count that is released with the sum is not finite.")}
    width = float(np.sqrt(np.mean(np.square(scores))))
    small, large = spread_p(scores, more)
    lesson = (
        f"The count that is released with the sum has {width:.3g} times its claimed noise, or another law. A count of "
        "protected records is a release like any other: noise it at the scale that the joint noise multiplier states."
    )
    return {
        "a count, scale": (2 * min(small, large), lesson),
        "a count, law": (kolmogorov_p(scores, 0.25 * more)[1], lesson),
        "a count, tails": (2 * min(tails_p(scores, more), largest_p(scores, more)), lesson),
        "a count, in a row": (lags_p(scores / max(1 + more, width), rng), f"{lesson} Draw it fresh each time."),
    }


# ------------------------------------------------------------------------------------------ what a release adds


def _judge_added(
    step: StepUnderTest, rng: RandomSource, kept: NDArray[np.int64], releases: int, more: float, grain: float
) -> _Found:
    """Release minus sum, on batches of several sizes: the claimed noise again, for each batch.

    Each batch is released twice in a row, once by itself and once in a run.
    """
    batch = scale_rows(step.examples(3, rng), 3.0)  # equal rows add up, so a sum that is not the shown one stands out
    many = tile(step.examples(16, rng), largest_tested_batch(step, batch))
    batches = (repeat(batch, 8), nothing(batch), repeat(rows(batch, [0]), 8), rows(batch, [0]), many)
    count = max(releases, min(200, max(2000, 200 * releases) // max(kept.size, 1)))  # small models: more releases
    rest: list[Floats] = []
    scale = step.noise_multiplier * step.sensitivity
    with np.errstate(all="ignore"):
        sums = [step.deterministic(some)[kept] for some in batches]
        for number in range(max(1, round(count / 2 / len(batches))) * len(batches)):
            some, total = batches[number % len(batches)], sums[number % len(batches)]
            for made in (step.release(some), *step.run([some]).releases[:1]):
                rest.append(made[kept] - total)
    left = np.stack(rest)
    if not np.isfinite(left).all() or len(left) % (2 * len(batches)):
        return {"what a release adds": (0.0, "What is released is not finite, or a step makes no release.")}
    scores = noise_scores(left, step.law, scale)
    small, large = spread_p(scores, more)
    width = float(np.sqrt(np.mean(np.square(scores))))
    pairs = (scores / (1 + more)).reshape(-1, 2, scores.shape[1])
    kinds = [pairs[kind :: len(batches)].reshape(-1, scores.shape[1]) for kind in range(len(batches))]
    energies = np.array([np.square((1 + more) * kind).sum() for kind in kinds])
    along = [kind @ total / np.linalg.norm(total) for kind, total in zip(kinds, sums, strict=True) if total.any()]
    averages = min(spread_p(kind.sum(axis=0) / np.sqrt(len(kind)))[1] for kind in kinds)
    # In float32 a release is only as fine as the numbers in it.
    fine = 8 * max(step.precision, 2.3e-16) * (1 + max(float(np.abs(total).max(initial=0.0)) for total in sums) / scale)
    lesson = (
        f"A release differs from its sum by {width:.3g} times the claimed noise. Noise belongs on the sum, once, "
        "scaled to the sensitivity; a mean is that noisy sum divided by the public expected batch."
    )
    return {
        "what a release adds, scale": (2 * min(small, large), lesson),
        "what a release adds, law": (kolmogorov_p(scores, 0.25 * more)[1], lesson),
        "what a release adds, tails": (2 * min(tails_p(scores, more), largest_p(scores, more)), lesson),
        "what a release adds, by batch": (
            _each(energies, float(kinds[0].size), more),
            "The noise is wider for some batches than for others. Noise never depends on the data.",
        ),
        "what a release adds, on average": (
            min(1.0, len(kinds) * averages),
            "Releases of one batch do not scatter around its sum, so training uses another sum than the one that was "
            "shown. Let both come from the same code.",
        ),
        "what a release adds, along the sum": (
            _along(along, more),
            "In the direction of the sum there is another noise than elsewhere. Noise never depends on the data.",
        ),
        "what a release adds, again": (
            repeats_p(left / scale, 2 * fine + grain, fine),
            f"Values come again in what is added to a sum: noise of a coarse grid, or used twice. {_AGAIN}",
        ),
        "what two releases add": (
            block_p(pairs[:, 0], pairs[:, 1]),
            "Two releases of the same batch hold the same noise. Noise never depends on the data.",
        ),
    }


def _along(scores: list[Floats], more: float) -> float:
    """Normal scores of several batches: their spread and their mean, too small (before narrowing) or too large."""
    if not scores:
        return 1.0
    joint = np.concatenate(scores)
    little = spread_p((1 + more) * joint)[0]
    return min(1.0, 3 * min(little, spread_p(joint)[1], normal_p(float(joint.sum()) / np.sqrt(joint.size))))


def _noise_finding(name: str, p_value: float, lesson: str, tests: int = 1) -> CheckFinding:
    limit = FALSE_ALARM / _STATISTICS
    failed = p_value < limit
    return CheckFinding(
        test="T3",
        name="noise",
        verdict=CheckVerdict.FAIL if failed else CheckVerdict.PASS,
        lesson=f"{lesson} (Seen in: {name}.)" if failed else "The noise is as claimed, and fresh in every release.",
        statistic=p_value,
        threshold=limit,
        p_value=min(1.0, tests * p_value),
    )
