"""The shape of noise: its tails, its largest value, values that come twice, and its scale in every part of a stream.

All take scores that are standard normal under the claim, one row a release and one column a coordinate. Noise may be
wider than claimed by a part ``more``; what asks for *too little* noise compares with width 1, what asks for too
much with width 1 + ``more``, so that both are conservative. Families of many comparisons are paid for by their number
(Bonferroni), so that every function returns one p-value.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import special

from quietsum.selfcheck.protocol import Floats

__all__ = ["classes_p", "intervals", "intervals_p", "largest_p", "repeats_p", "sums_p", "tails_p"]

_LEVELS = (0.05, 0.25, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0)
_LONGEST = 16  # period of a pattern that is looked for
_INTERVALS = 4096


def tails_p(scores: Floats, more: float) -> float:
    """How many scores lie beyond ten fixed levels, each count binomial: two scales in one, too light, too heavy."""
    sizes, n, found = np.abs(scores).ravel(), scores.size, 1.0
    for level in _LEVELS:
        count = int(np.count_nonzero(sizes > level))
        few = float(special.bdtr(float(count), n, 2 * special.ndtr(-level))) if count < n else 1.0
        many = float(special.bdtrc(float(count - 1), n, 2 * special.ndtr(-level / (1 + more)))) if count else 1.0
        found = min(found, few, many)
    return min(1.0, 2 * len(_LEVELS) * found)


def largest_p(scores: Floats, more: float) -> float:
    """The largest |score|: P(max ≤ m) = (1 − 2Φ(−m))ⁿ where noise is cut off, n · 2Φ(−m) where it is not normal."""
    top = float(np.abs(scores).max(initial=0.0))
    small = float(np.exp(scores.size * np.log1p(-min(2 * special.ndtr(-top), 1 - 1e-16))))
    large = float(scores.size * 2 * special.ndtr(-top / (1 + more)))
    return min(1.0, 2 * min(small, large))


def repeats_p(values: Floats, most_likely: float, width: float = 0.0) -> float:
    """How many |values| come again, where no value has a chance above ``most_likely``.

    The i-th value meets one of the i before it with a chance of at most i · ``most_likely``, for any others. So the
    number of repeats is no larger, in law, than a sum of independent coins with mean λ = n(n − 1)/2 · ``most_likely``,
    and P(≥ k) ≤ e^−λ (eλ/k)^k (Chernoff). Values within ``width`` of each other count as equal; ``most_likely`` is
    then the chance of 2 · ``width``, and as one value may close two gaps, half of the gaps are counted.
    """
    ordered = np.sort(np.abs(values), axis=None)
    repeats = int(np.count_nonzero(np.diff(ordered) <= width)) // (2 if width > 0 else 1)
    mean = ordered.size * (ordered.size - 1) / 2 * most_likely
    if repeats <= mean or repeats == 0:
        return 1.0
    return float(np.exp(min(0.0, repeats - mean + repeats * np.log(mean / repeats)))) if mean > 0 else 0.0


# --------------------------------------------------------------------------------------------- parts of a stream


def intervals(count: int) -> NDArray[np.int64]:
    """Stretches [start, end) of ``count`` places: dyadic ones that overlap by half, beginnings and ends.

    At most some thousand; among many places the short stretches are left out.
    """
    shortest = max(1, 1 << max(0, int(np.ceil(np.log2(max(count, 1) * 6 / _INTERVALS)))))
    found, length = [(0, count)], shortest
    while length < count:
        step = max(length // 2, 1)
        found += [(start, min(start + length, count)) for start in range(0, count, step)]
        length *= 2
    found += [(0, end) for end in range(shortest, count, shortest)]
    found += [(start, count) for start in range(shortest, count, shortest)]
    return np.unique(np.array(found, dtype=np.int64), axis=0)


def intervals_p(energies: Floats, degrees: float, more: float) -> float:
    """The oddest stretch: χ² of the summed energies, ``degrees`` of freedom a place. One short layer, one long step."""
    places = intervals(energies.size)
    running = np.concatenate([[0.0], np.cumsum(energies)])
    totals = running[places[:, 1]] - running[places[:, 0]]
    return _oddest(totals, degrees * (places[:, 1] - places[:, 0]).astype(np.float64), more)


def classes_p(energies: Floats, degrees: float, more: float) -> float:
    """The oddest residue class of places modulo 2 … 16: every other step, every third coordinate."""
    totals, sizes = [], []
    for period in range(2, min(_LONGEST, energies.size) + 1):
        for first in range(period):
            part = energies[first::period]
            totals.append(part.sum())
            sizes.append(part.size)
    if not totals:
        return 1.0
    return _oddest(np.array(totals), degrees * np.array(sizes, dtype=np.float64), more)


def sums_p(scores: Floats, more: float) -> float:
    """Sums over stretches of columns: Σ/√length is standard normal, χ² over the rows. Noise shared by neighbours."""
    places = intervals(scores.shape[1])
    places = places[places[:, 1] - places[:, 0] > 1]
    places = places[:: -(-len(places) // 512)] if len(places) else places
    if not len(places):
        return 1.0
    running = np.concatenate([np.zeros((len(scores), 1)), np.cumsum(scores, axis=1)], axis=1)
    totals = np.zeros(len(places))
    for number, (start, end) in enumerate(places.tolist()):
        totals[number] = np.square(running[:, end] - running[:, start]).sum() / (end - start)
    return _oddest(totals, np.full(len(places), float(len(scores))), more)


def _oddest(totals: Floats, degrees: Floats, more: float) -> float:
    """The smallest of the two-sided p-values of these χ² totals, times their number."""
    low = special.chdtr(degrees, totals)
    high = special.chdtrc(degrees, totals / (1 + more) ** 2)
    return float(min(1.0, 2 * totals.size * min(low.min(), high.min())))
