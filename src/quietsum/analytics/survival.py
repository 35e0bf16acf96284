"""Kaplan–Meier curves and the log-rank test from noisy counts of deaths and censorings on a public grid of times.

What is noised is how many of each group died, and how many were censored, in each cell of the grid; never the curve.
Everything here comes after, with c = 1, …, m the cells, d_c deaths, e_c exits (deaths and censorings) and
n_c = Σ_{s ≥ c} e_s at risk at the beginning of cell c:

    S(c) = Π_{s ≤ c} (1 − d_s / n_s)                                        (Kaplan and Meier 1958)
    U_g  = Σ_c (d_{gc} − n_{gc} d_c / n_c)                                  (Mantel 1966, one for each group g)

Deaths come before censorings of the same cell, so without noise both are those of any library for times that are
rounded up to their cell's right edge.

**The curve.** Numbers at risk that never rise are made first (isotonic regression), then the product, then a curve that
never rises. Deaths are not cut to lie between 0 and the exits of their cell before that: where hardly anybody was
censored, such a cut would lose deaths in half of all cells. Where hardly more are at risk than the noise alone would
show, a cell's hazard is drawn towards that of all cells, by n² / (n² + Var n). A point's interval is symmetric for
log(−log S), with

    Var log S(c) = Σ_{s ≤ c} d_s / (n_s (n_s − d_s))                        (Greenwood 1926: the population's)
                 + τ² ‖∇ log S(c) M‖²                                       (the noise's, by the delta method)

where the counts' noise is M z, z independent of deviation τ (:func:`quietsum.analytics.encode.counts_of`).

**The test.** U is compared with the covariance of what moves it: the hypergeometric covariance of the deaths, and the
noise. U depends on the noise almost linearly,

    dU = Σ_c (dd_{gc} − p_{gc} dd_c) − Σ_c h_c (dn_{gc} − p_{gc} dn_c),     p_{gc} = n_{gc} / n_c,  h_c = d_c / n_c,

so its noise has the covariance τ² J M (J M)ᵀ. What is left is the product of the errors of p and of d, which is small
where the numbers at risk are many times their own noise: later cells are left out of the test (public numbers and the
noisy counts decide, so this is post-processing), and a variance for the product is added. p is never outside [0, 1].
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, final

import numpy as np
import numpy.typing as npt

from quietsum.analytics.answers import NoisyValue, hotelling_test
from quietsum.analytics.encode import counts_of

if TYPE_CHECKING:
    from quietsum.analytics.answers import Answer
    from quietsum.analytics.encode import Design
    from quietsum.analytics.questions import Question

__all__ = ["Curve", "Survival", "curve_of", "curves_of", "log_rank", "series_of"]

Floats = npt.NDArray[np.float64]
SAFE = 3.0
"""A cell is in the test while the smallest group's share of those at risk is so many deviations of its own noise."""


KNOWN = 2.0
"""The same for a point of one curve to have an interval of its own."""


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Curve:
    """S at the right edge of each cell, and the variance of log S by noise and by sampling.

    ``known`` cells have more at risk than two deviations of the noise in that number; behind them nothing is known of S
    but that it falls.
    """

    values: Floats
    noise: Floats
    sampling: Floats
    known: int

    def interval(self, cell: int, z: float, *, population: bool) -> tuple[float, float]:
        """For one point: symmetric for log(−log S), with what the noise moves S itself by, within [0, 1].

        The first alone never reaches the ends: without a death S is 1, and noise alone puts the estimate below it.
        """
        if cell >= self.known:
            return 0.0, self.interval(self.known - 1, z, population=population)[1] if self.known else 1.0
        value = float(self.values[cell])
        variance = float(self.noise[cell] + (self.sampling[cell] if population else 0.0))
        if not math.isfinite(variance):
            return 0.0, 1.0
        if value >= 1.0 or value <= 0.0:  # no curvature to go by: on the scale of S itself
            spread = z * math.sqrt(variance) * max(value, 0.05)
            return max(0.0, value - spread), min(1.0, value + spread)
        centre, spread = math.log(-math.log(value)), z * math.sqrt(variance) / abs(math.log(value))
        low, high = (math.exp(-math.exp(min(centre + sign * spread, 700.0))) for sign in (1, -1))
        reach = z * math.sqrt(float(self.noise[cell])) * value
        return max(0.0, min(low, value - reach)), min(1.0, max(high, value + reach))


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Survival:
    """All curves of one question as estimates, group by group, and their comparison."""

    estimates: tuple[NoisyValue, ...]
    test: dict[str, float] | None
    remarks: tuple[str, ...] = ()


def curve_of(deaths: Floats, exits: Floats, decode: Floats, noise: float) -> Curve:
    """The curve of one group, from its noisy deaths and exits; both have the noise ``noise`` · ``decode`` z.

    ``exits`` are deaths and censorings together, so their noise is that of two independent counts.
    """
    cells = len(deaths)
    later = np.triu(np.ones((cells, cells)))
    risk = _falling(np.maximum(later @ exits, 0.0))
    deviation = math.sqrt(2) * noise * np.linalg.norm(later @ decode, axis=1)
    died, safe = np.minimum(deaths, risk), np.maximum(risk, 1e-9)
    # a cell's own hazard as far as its number at risk stands out from the noise, else that of all cells that do
    trusted = np.where(risk > 0, safe**2 / (safe**2 + deviation**2), 0.0)
    usual = float(np.clip((trusted * died).sum() / max((trusted * risk).sum(), 1e-9), 0.0, 1.0))
    hazard = trusted * np.clip(died / safe, -1.0, 1.0) + (1 - trusted) * usual * (deviation > 0.5)
    values = np.asarray(np.clip(_falling(np.cumprod(1 - hazard, dtype=np.float64)), 0.0, 1.0), dtype=np.float64)
    died = np.maximum(died, 0.0)
    left = np.maximum(risk - died, 0.0)
    ended = (left <= 0) & (died > 0)
    greenwood = np.where(ended, np.inf, died / (safe * np.maximum(left, 1e-9)))
    # log(1 − d/n): by d it falls by 1/(n − d), by n it rises by d/(n (n − d)); n is made of deaths and censorings
    floor = np.maximum(left, 1.0)
    of_deaths, of_risk = -1 / floor, died / (np.maximum(risk, 1.0) * floor)
    upto = np.tril(np.ones((cells, cells)))
    by_risk = (upto * of_risk) @ later  # row c: by each exit, through all numbers at risk up to cell c
    by_death = upto * of_deaths + by_risk
    variance = noise**2 * (np.square(by_death @ decode).sum(axis=1) + np.square(by_risk @ decode).sum(axis=1))
    sure = risk > KNOWN * math.sqrt(2) * noise * np.linalg.norm(later @ decode, axis=1)
    known = cells if sure.all() or not noise else int(np.argmin(sure))
    return Curve(values=values, noise=variance, sampling=np.cumsum(greenwood), known=known)


def _falling(values: Floats) -> Floats:
    """The nearest sequence that never rises (pool adjacent violators)."""
    sums: list[list[float]] = []
    for value in values:
        sums.append([float(value), 1.0])
        while len(sums) > 1 and sums[-2][0] / sums[-2][1] < sums[-1][0] / sums[-1][1]:
            total, count = sums.pop()
            sums[-1][0] += total
            sums[-1][1] += count
    return np.concatenate([np.full(int(count), total / count) for total, count in sums])


def log_rank(deaths: Floats, censored: Floats, decode: Floats, noise: float) -> dict[str, float]:
    """Mantel's test that all groups have one curve, with the noise inside: statistic, degrees of freedom and p.

    ``deaths`` and ``censored`` are noisy counts, a row a group. With no noise it is the usual log-rank test.
    """
    groups, cells = deaths.shape
    later = np.triu(np.ones((cells, cells)))
    risk = (deaths + censored) @ later.T
    deviation = math.sqrt(2) * noise * np.linalg.norm(later @ decode, axis=1)
    # the numbers at risk of all groups decide, by the groups' first shares: their noise has next to nothing to do with
    # the differences between groups, so that stopping early favours no outcome
    least = float(np.clip(risk[:, 0] / max(risk[:, 0].sum(), 1e-9), 0.0, 1.0).min())
    enough = least * risk.sum(axis=0) > np.maximum(SAFE * deviation, 0.5 * least)
    used = int(np.argmin(enough)) if not enough.all() else cells
    if not used:
        return {"statistic": 0.0, "degrees": float(groups - 1), "p": 1.0, "cells": 0.0}
    d, n = deaths[:, :used], np.maximum(risk[:, :used], 0.0)
    whole = np.maximum(n.sum(axis=0), 1e-9)
    p, died = n / whole, d.sum(axis=0)
    hazard = np.clip(died / whole, 0.0, 1.0)
    u = (d - p * died).sum(axis=1)
    # the deaths of a cell, given how many there are and who is at risk (hypergeometric); a standard error more of them
    # all, spread like those at risk, so that a variance that the noise has made small rejects nothing
    error = noise * math.sqrt(groups) * float(np.linalg.norm(decode[:used].sum(axis=0)))
    likely = np.clip(died + error * whole / whole.sum(), 0.0, whole)
    spread = likely * np.where(whole > 1, (whole - likely) / np.maximum(whole - 1, 1e-9), 0.0)
    covariance = np.zeros((groups, groups))
    for one in range(groups):
        for other in range(groups):
            covariance[one, other] = (spread * p[one] * ((one == other) - p[other])).sum()
    if noise:
        covariance += _noise(p, hazard, whole, later[:used], decode, noise, deviation[:used])
    found = hotelling_test(u, covariance, groups - 1)
    return {**found, "cells": float(used)}


def _noise(
    p: Floats, hazard: Floats, whole: Floats, later: Floats, decode: Floats, noise: float, deviation: Floats
) -> Floats:
    """The covariance of U by the noise of the counts."""
    groups, used = p.shape
    cells = len(decode)
    here = np.eye(used, cells)
    found = np.zeros((groups, groups))
    for source in range(groups):  # noise in this group's deaths, then in its censorings
        direct, through = np.zeros((groups, cells)), np.zeros((groups, cells))
        for g in range(groups):
            weight = (g == source) - p[g]
            direct[g] = weight @ here
            through[g] = (hazard * weight) @ later
        for part in (direct - through, -through):
            moved = part @ decode
            found += noise**2 * moved @ moved.T
    # the product of the errors of p and of the cell's deaths, as if independent
    own = noise * np.linalg.norm(decode, axis=1)[:used]
    for g in range(groups):
        error = deviation**2 * ((1 - p[g]) ** 2 + (groups - 1) * p[g] ** 2) / whole**2
        found[g, g] += float((error * groups * own**2).sum())
    return found


# ----------------------------------------------------------------------------------------------- an answer


def curves_of(design: Design, question: Question, sums: Floats, noise: float, z: float) -> Survival:
    """The answer to one survival question, from its block's noisy sums of shape (groups, 2, cells)."""
    counts, decode = counts_of(sums)
    deaths, censored = counts[:, 0], counts[:, 1]
    column = design.by_name[question.time]
    names = design.by_name[question.group].categories if question.group else ("",)
    found: list[NoisyValue] = []
    for group, name in enumerate(names):
        curve = curve_of(deaths[group], deaths[group] + censored[group], decode, noise)
        for cell, edge in enumerate(column.edges[1:]):
            found.append(
                NoisyValue(
                    label=f"{name} at {edge:g}".strip(), value=float(curve.values[cell]),
                    noise=curve.interval(cell, z, population=False),
                    population=curve.interval(cell, z, population=True),
                )
            )  # fmt: skip
    if len(names) < 2:
        return Survival(estimates=tuple(found), test=None)
    test = log_rank(deaths, censored, decode, noise)
    used = int(test["cells"])
    if used < len(column.edges) - 1:
        last = f"{column.edges[used]:g}"
        remark = (
            f"the log-rank test looks at {question.time} up to {last}: later, too few at risk stand out from the noise"
        )
        if not used:
            remark = "the log-rank test looks at nothing: nowhere do those at risk stand out from the noise"
        return Survival(estimates=tuple(found), test=test, remarks=(remark,))
    return Survival(estimates=tuple(found), test=test)


def series_of(
    design: Design, question: Question, answer: Answer
) -> list[tuple[str, tuple[tuple[float, float], ...], tuple[tuple[float, float], ...]]]:
    """For a chart: each group's name, its points from S = 1 on, and its population intervals."""
    column = design.by_name[question.time]
    names = design.by_name[question.group].categories if question.group else ("",)
    cells, found = len(column.labels), []
    for group, name in enumerate(names):
        mine: Sequence[NoisyValue] = answer.estimates[group * cells : (group + 1) * cells]
        points = ((column.edges[0], 1.0), *zip(column.edges[1:], (one.value for one in mine), strict=True))
        bars = ((1.0, 1.0), *(one.population or one.noise for one in mine))
        found.append((name, points, bars))
    return found
