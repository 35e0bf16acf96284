"""From noisy sums to answers, each with two intervals: for the data at hand, and for where the data came from.

The *noise* interval is about the sites' own records: how far the noise may have moved the answer that a look at all
tables would give. The *population* interval also carries that those records are a sample: what another draw of as many
records from the same source would have given. Both come from public numbers and the noisy sums, so they cost nothing.
Nothing here is cut to look well before its interval is made: counts may be negative, since a cut one is biased. What is
known beyond doubt, that a mean lies within the column's bounds, narrows an interval at the end.

Ratios (means) use Fieller's interval: all values r with (B − rA)² ≤ z² Var(B − rA), which covers at its level however
noisy A is. Variances and correlations use the delta method. A quantile's interval is the hull of all cells in which it
may lie: of those for which neither "it lies further left" nor "further right" is rejected.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, final

import numpy as np
import numpy.typing as npt

from quietsum.analytics.columns import Column
from quietsum.analytics.encode import CORRELATION, MEAN, VARIANCE, Block, Design, counts_of, largest_value

__all__ = ["Answer", "NoisyValue", "answers_of", "quantile_of_normal"]

Floats = npt.NDArray[np.float64]
FEWEST = 5.0
"""Records to a cell of a table, on average, below which it is not tested."""
Interval = tuple[float, float]


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class NoisyValue:
    """One number: what it is, its ``noise`` interval, and its ``population`` interval where there is one."""

    label: str
    value: float
    noise: Interval
    population: Interval | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain values; infinite ends are null."""

        def plain(interval: Interval) -> list[float | None]:
            return [end if math.isfinite(end) else None for end in interval]

        found: dict[str, Any] = {"label": self.label, "value": self.value if math.isfinite(self.value) else None}
        found["noise"] = plain(self.noise)
        return {**found, "population": plain(self.population)} if self.population is not None else found


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Answer:
    """The answer to one question. ``deviation`` is that of the noise in a count of it; ``test`` a comparison's."""

    name: str
    kind: str
    sentence: str
    deviation: float
    estimates: tuple[NoisyValue, ...]
    test: dict[str, float] | None = None
    remarks: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        found: dict[str, Any] = {
            "name": self.name, "kind": self.kind, "asks": self.sentence, "deviation": self.deviation,
            "estimates": [one.to_dict() for one in self.estimates],
        }  # fmt: skip
        if self.test is not None:
            found["test"] = self.test
        return {**found, "remarks": list(self.remarks)} if self.remarks else found


def quantile_of_normal(level: float) -> float:
    """z with P(|Z| ≤ z) = ``level``.

    >>> round(quantile_of_normal(0.95), 4)
    1.96
    """
    from scipy.special import ndtri

    return float(ndtri((1 + level) / 2))


def answers_of(design: Design, total: Floats, *, deviation: float, level: float = 0.95) -> tuple[Answer, ...]:
    """All answers, from the noisy sum of all records' vectors with independent noise of ``deviation``."""
    z = quantile_of_normal(level)
    return tuple(_answer(design, block, block.of(total), deviation / block.scale, z) for block in design.blocks)


def _answer(design: Design, block: Block, sums: Floats, noise: float, z: float) -> Answer:
    question, test = block.question, None
    remarks: tuple[str, ...] = ()
    match question.kind:
        case "count":
            found = [_count("records", float(sums[0]), noise, z)]
        case "sum":
            unit = largest_value(design.by_name[question.column])
            value, spread = float(sums[0]) * unit, z * noise * unit
            found = [NoisyValue(label=question.column, value=value, noise=(value - spread, value + spread))]
        case "mean":
            found = list(_moments(design.by_name[question.column], sums, noise, z, MEAN))[:1]
        case "variance":
            found = list(_moments(design.by_name[question.column], sums, noise, z, VARIANCE))
        case "correlation":
            found = [_correlation(question.columns, sums, noise, z)]
        case "histogram":
            labels = design.by_name[question.column].labels
            found = [_count(label, float(one), noise, z) for label, one in zip(labels, sums, strict=True)]
        case "contingency":
            one, other = (design.by_name[name].labels for name in question.columns)
            labels = tuple(f"{first} and {second}" for first in one for second in other)
            found = [_count(label, float(cell), noise, z) for label, cell in zip(labels, sums.ravel(), strict=True)]
            test = _independence(sums, noise)
            if test["p"] == 1.0 and float(sums.sum()) <= FEWEST * sums.size:
                remarks = (f"no test: there are fewer than {FEWEST:g} records to a cell",)
        case "quantiles":
            found = _quantiles(design.by_name[question.column], question.at, sums, noise, z)
        case _:
            from quietsum.analytics.survival import curves_of

            survival = curves_of(design, question, sums, noise, z)
            found, test, remarks = list(survival.estimates), survival.test, survival.remarks
    return Answer(
        name=question.name, kind=question.kind, sentence=question.sentence, deviation=noise,
        estimates=tuple(found), test=test, remarks=remarks,
    )  # fmt: skip


def _count(label: str, value: float, noise: float, z: float) -> NoisyValue:
    """A count; for the population as a Poisson count, whose variance is about itself."""
    own, wide = z * noise, z * math.sqrt(noise**2 + max(value, 0.0))
    population = max(0.0, value - wide), max(0.0, value + wide)
    return NoisyValue(label=label, value=value, noise=(value - own, value + own), population=population)


# ------------------------------------------------------------------------------------------ means and variances


def _moments(
    column: Column, sums: Floats, noise: float, z: float, shares: Sequence[float]
) -> tuple[NoisyValue, NoisyValue]:
    """Mean and variance from noisy n, Σx and ΣT₂(x)."""
    own = noise / np.sqrt(np.array(shares))
    count, first, second = (float(one) for one in sums / np.sqrt(np.array(shares)))
    assert column.bounds is not None
    low, high = column.bounds
    middle, half = (low + high) / 2, (high - low) / 2
    mean = min(1.0, max(-1.0, first / count)) if count > 0 else 0.0

    def spread_at(values: Floats) -> Floats:
        n, x, t = values
        return np.array([(t / n + 1) / 2 - (x / n) ** 2])

    there = count > 2 * own[0]
    spread, error = 1.0, 1.0
    if there:
        values = np.array([count, first, second])
        spread = float(spread_at(values)[0])
        error = math.sqrt(float(np.square(_gradient(spread_at, values)[0] * own).sum()))
    # a record's own deviation, at most that of bounds; a standard error more, since it is itself noisy
    each = min(max(spread, 0.0) + error, 1 - mean**2 + 1e-9)
    ends = [
        _fieller(first, count, own[1] ** 2 + more, own[0] ** 2, z, (-1.0, 1.0))
        for more in (0.0, max(count, 1.0) * each)
    ]
    means = NoisyValue(
        label="mean", value=middle + half * mean,
        noise=(middle + half * ends[0][0], middle + half * ends[0][1]),
        population=(middle + half * ends[1][0], middle + half * ends[1][1]),
    )  # fmt: skip
    # Bhatia and Davis: a variable in [0, m] with mean v has a variance of at most v (m − v)
    fourth = max(max(spread, 0.0) * ((1 + abs(mean)) ** 2 - max(spread, 0.0)), 0.0)
    wide = math.sqrt(error**2 + (fourth / count if there else 1.0))
    return means, NoisyValue(
        label="variance", value=max(spread, 0.0) * half**2,
        noise=_within((spread - z * error, spread + z * error), (0.0, 1.0), half**2),
        population=_within((spread - z * wide, spread + z * wide), (0.0, 1.0), half**2),
    )  # fmt: skip


def _within(interval: Interval, limits: Interval, unit: float) -> Interval:
    low, high = (min(max(end, limits[0]), limits[1]) * unit for end in interval)
    return low, high


def _fieller(
    top: float, bottom: float, top_variance: float, bottom_variance: float, z: float, limits: Interval
) -> Interval:
    """All r within ``limits`` with (top − r·bottom)² ≤ z² (top_variance + r² bottom_variance), as one interval."""
    square = bottom**2 - z**2 * bottom_variance
    if square <= 0 or bottom <= 0:  # the bottom may be zero: nothing is known but the limits
        return limits
    middle, root = top * bottom / square, top**2 - z**2 * top_variance
    inside = (top * bottom) ** 2 - square * root
    half = math.sqrt(max(inside, 0.0)) / square
    low, high = max(middle - half, limits[0]), min(middle + half, limits[1])
    return (low, high) if low <= high else (min(max(middle, limits[0]), limits[1]),) * 2


def _gradient(function: Callable[[Floats], Floats], at: Floats) -> Floats:
    """Derivatives by central differences, one row for each value of ``function``."""
    steps = 1e-5 * np.maximum(np.abs(at), 1.0)
    columns = []
    for index, step in enumerate(steps):
        moved = np.zeros_like(at)
        moved[index] = step
        columns.append((function(at + moved) - function(at - moved)) / (2 * step))
    return np.column_stack(columns)


def _correlation(names: Sequence[str], sums: Floats, noise: float, z: float) -> NoisyValue:
    """Pearson's r; its population interval by Fisher's transformation, for data that is about normal."""
    own, values = noise / np.sqrt(np.array(CORRELATION)), sums / np.sqrt(np.array(CORRELATION))
    label = f"correlation of {' and '.join(names)}"

    def parts(found: Floats) -> tuple[float, float, float]:
        n, x, y, tx, ty, xy = found
        mx, my = x / n, y / n
        return (tx / n + 1) / 2 - mx**2, (ty / n + 1) / 2 - my**2, xy / n - mx * my

    def r(found: Floats) -> Floats:
        first, second, both = parts(found)
        return np.array([both / math.sqrt(max(first, 1e-12) * max(second, 1e-12))])

    count = float(values[0])
    first, second, _ = parts(values) if count > 2 * own[0] else (0.0, 0.0, 0.0)
    if count <= 2 * own[0] or min(first, second) <= 0:
        return NoisyValue(label=label, value=math.nan, noise=(-1.0, 1.0), population=(-1.0, 1.0))
    value = float(np.clip(r(values)[0], -1.0, 1.0))
    error = math.sqrt(float(np.square(_gradient(r, values)[0] * own).sum()))
    inner = max(1 - value**2, 1e-6)
    wide = math.sqrt((error / inner) ** 2 + 1 / max(count - 3, 1.0))
    centre = math.atanh(min(max(value, -1 + 1e-12), 1 - 1e-12))
    return NoisyValue(
        label=label, value=value, noise=_within((value - z * error, value + z * error), (-1.0, 1.0), 1.0),
        population=(math.tanh(centre - z * wide), math.tanh(centre + z * wide)),
    )  # fmt: skip


# ---------------------------------------------------------------------------------------- quantiles and tables


def _quantiles(column: Column, at: Sequence[float], sums: Floats, noise: float, z: float) -> list[NoisyValue]:
    """Quantiles on the grid, linear inside a cell."""
    counts, decode = counts_of(sums)
    edges, cells = np.array(column.edges), len(counts)
    below = np.tril(np.ones((cells, cells)))  # row t: all cells up to t
    whole, found = np.ones(cells), []
    upto = np.maximum.accumulate(np.maximum(below @ counts, 0.0))
    for share in at:
        weights = below - share * whole  # F_t − q n, as a sum of counts
        values, errors = weights @ counts, noise * np.linalg.norm(weights @ decode, axis=1)
        size = max(float(counts.sum()), 1.0)
        wide = np.sqrt(errors**2 + size * share * (1 - share))
        place = min(int(np.searchsorted(upto, share * upto[-1], side="left")), cells - 1)
        before = upto[place - 1] if place else 0.0
        inside = upto[place] - before
        part = min(max((share * upto[-1] - before) / inside, 0.0), 1.0) if inside > 0 else 0.5
        value = float(edges[place] + part * (edges[place + 1] - edges[place]))
        ends = [_hull(values, z * spread, edges, value) for spread in (errors, wide)]
        found.append(NoisyValue(label=f"quantile {share:g}", value=value, noise=ends[0], population=ends[1]))
    return found


def _hull(values: Floats, reach: Floats, edges: Floats, value: float) -> Interval:
    """The hull of the cells in which F crosses its target for all that is known: none of F_{t−1} < target ≤ F_t is
    rejected. Values at the last edge are 0 by definition."""
    left_ok = np.array([True, *(values[:-1] <= reach[:-1])])
    right_ok = np.array([*(values[:-1] >= -reach[:-1]), True])
    kept = np.flatnonzero(left_ok & right_ok)
    if not len(kept):
        return value, value
    return min(float(edges[kept[0]]), value), max(float(edges[kept[-1] + 1]), value)


def _independence(table: Floats, noise: float) -> dict[str, float]:
    """A test whether two columns go together: the squared deviations from what their margins say, over their variance.

    Pearson's statistic with the noise inside: deviations from the margins are, to first order, a linear map of the
    table, and its covariance is that of the sampling plus that of the noise. That needs some records a cell: with fewer
    than :data:`FEWEST` on average nothing is claimed, p is 1 (the noisy table decides, so this is post-processing).
    """
    rows, columns = table.shape
    size = float(table.sum())
    if size <= max(2 * noise * math.sqrt(table.size), FEWEST * table.size):
        return {"statistic": 0.0, "degrees": float((rows - 1) * (columns - 1)), "p": 1.0}
    p, q = (np.maximum(table.sum(axis=axis), 0.0) for axis in (1, 0))
    p, q = p / max(p.sum(), 1e-9), q / max(q.sum(), 1e-9)
    residual = (table - size * np.outer(p, q)).ravel()
    # the deviations from margins are a linear map of the table, to first order: residual = (I − P)⊗(I − Q) table
    one, other = np.eye(rows) - np.outer(p, np.ones(rows)), np.eye(columns) - np.outer(q, np.ones(columns))
    linear = np.kron(one, other)
    sampling = linear @ np.diag(size * np.outer(p, q).ravel()) @ linear.T
    covariance = sampling + noise**2 * linear @ linear.T
    return hotelling_test(residual, covariance, (rows - 1) * (columns - 1))


def hotelling_test(values: Floats, covariance: Floats, degrees: int) -> dict[str, float]:
    """Hotelling's statistic of ``values`` with this covariance, by its ``degrees`` largest directions."""
    from scipy.special import chdtrc

    kept, directions = np.linalg.eigh(covariance)
    kept, directions = kept[::-1][:degrees], directions[:, ::-1][:, :degrees]
    usable = kept > max(float(kept[0]), 0.0) * 1e-9
    if not usable.any():
        return {"statistic": 0.0, "degrees": float(degrees), "p": 1.0}
    along = directions[:, usable].T @ values
    statistic = float((along**2 / kept[usable]).sum())
    return {
        "statistic": statistic,
        "degrees": float(usable.sum()),
        "p": float(chdtrc(int(usable.sum()), statistic)),
    }
