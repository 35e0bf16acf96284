"""What privacy costs in score: one row for each ε, paired with the run without privacy.

Results of several seeds go in; out come means with intervals, the ε that was really spent, and *privacy efficiency*,
the share of the non-private score that is kept. Intervals are over seeds (:mod:`quietsum.tradeoff.intervals`): they say
how much another training run would differ, not what other test rows would show, unless seeds stand for splits.

>>> from quietsum.privacy.guarantee import Guarantee
>>> def scored(epsilon, seed, value):
...     spent = epsilon and Guarantee(epsilon=epsilon, delta=1e-5, method="example")
...     delta = epsilon and 1e-5
...     return Outcome(
...         task="digits", epsilon=epsilon, delta=delta, guarantee=spent, seed=seed, metric="accuracy", value=value,
...         on="445 published rows",
...     )
>>> results = [scored(None, 0, 0.97), scored(None, 1, 0.98), scored(1.0, 0, 0.90), scored(1.0, 1, 0.92),
...            scored(8.0, 0, 0.96), scored(8.0, 1, 0.97)]
>>> found = analyze_privacy_utility_tradeoff(results)
>>> [(row.epsilon, round(row.mean, 3), round(row.efficiency, 3)) for row in found.rows]
[(1.0, 0.91, 0.933), (8.0, 0.965, 0.99)]
>>> found.plain.mean, found.monotone
(0.975, True)
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable
from typing import Any, final

from quietsum.charts import html_table
from quietsum.errors import InvalidParameter, MixedUnits
from quietsum.privacy import Guarantee
from quietsum.tradeoff.intervals import LEVEL, Interval, difference_interval, mean_interval, ratio_interval
from quietsum.tradeoff.outcomes import Outcome

__all__ = ["PlainRow", "PrivateRow", "Tradeoff", "analyze_privacy_utility_tradeoff"]


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class PlainRow:
    """The runs without privacy."""

    mean: float
    interval: Interval | None
    values: tuple[float, ...]


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class PrivateRow:
    """The runs at one ε. ``guarantee`` is the worst of them; ``efficiency`` the share of the plain score kept.

    ``difference`` is the mean of private − plain, seed by seed. The last four are None without plain runs, intervals
    also where there is one seed only.
    """

    epsilon: float
    guarantee: Guarantee
    mean: float
    interval: Interval | None
    values: tuple[float, ...]
    difference: float | None
    difference_interval: Interval | None
    efficiency: float | None
    efficiency_interval: Interval | None


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Tradeoff:
    """All rows of one task, ε upwards. ``monotone`` is None where one seed leaves no error bars.

    ``monotone`` is False where some larger ε scores *worse* than a smaller one by more than chance allows: the interval
    of the paired difference, at level 1 − 0.05/(number of pairs), lies below zero.
    """

    task: str
    metric: str
    on: tuple[str, ...]
    seeds: tuple[int, ...]
    level: float
    plain: PlainRow | None
    rows: tuple[PrivateRow, ...]
    monotone: bool | None

    def _repr_html_(self) -> str:
        def cells(name: str, mean: float, interval: Interval | None) -> tuple[str, ...]:
            return name, f"{mean:.4f}", "" if interval is None else f"{interval[0]:.4f} – {interval[1]:.4f}"

        plain = [] if self.plain is None else [cells("none", self.plain.mean, self.plain.interval)]
        private = [cells(f"ε ≤ {row.guarantee.epsilon:.4g}", row.mean, row.interval) for row in self.rows]
        return html_table(("privacy", self.metric, "interval"), [*plain, *private])

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        values = dataclasses.asdict(self)
        for row, written in zip(self.rows, values["rows"], strict=True):
            written["guarantee"] = row.guarantee.to_dict()
        return values


def analyze_privacy_utility_tradeoff(results: Iterable[Outcome], *, level: float = LEVEL) -> Tradeoff:
    """Final score, final ε and privacy efficiency for every ε in ``results``, with intervals over seeds.

    All results are of one task and one metric, where more is better; every ε has the same seeds. Runs without privacy
    (``epsilon=None``) may be missing; then nothing is said about efficiency.
    """
    given = list(results)
    if not given or not all(isinstance(result, Outcome) for result in given):
        raise InvalidParameter("results", given[:3], "holds no outcomes", "pass one Outcome per run")
    _one("task", {result.task for result in given})
    _one("metric", {result.metric for result in given})
    runs: dict[float | None, dict[int, Outcome]] = {}
    for result in given:
        of_seed = runs.setdefault(result.epsilon, {})
        if result.seed in of_seed:
            what = "without privacy" if result.epsilon is None else f"at ε = {result.epsilon:g}"
            raise InvalidParameter("results", f"seed {result.seed} {what}", "comes twice", "count each run once")
        of_seed[result.seed] = result
    seeds = tuple(sorted(next(iter(runs.values()))))
    for epsilon, of_seed in runs.items():
        if tuple(sorted(of_seed)) != seeds:
            what = "without privacy" if epsilon is None else f"at ε = {epsilon:g}"
            problem = f"has the seeds {sorted(of_seed)} {what} and {list(seeds)} elsewhere, so runs do not pair"
            raise InvalidParameter("results", given[0].task, problem, "run every ε with the same seeds")
    plain = None
    if None in runs:
        values = _values(runs.pop(None), seeds)
        plain = PlainRow(mean=_mean(values), interval=mean_interval(values, level), values=values)
    if not runs:
        raise InvalidParameter("results", given[0].task, "has no private run", "add runs with an epsilon")
    rows = tuple(_row(epsilon, runs[epsilon], seeds, plain, level) for epsilon in sorted(runs, key=lambda e: e or 0.0))
    return Tradeoff(
        task=given[0].task, metric=given[0].metric, on=tuple(dict.fromkeys(result.on for result in given)),
        seeds=seeds, level=level, plain=plain, rows=rows, monotone=_monotone(rows),
    )  # fmt: skip


def _one(name: str, found: set[str]) -> None:
    if len(found) != 1:
        remedy = "analyse one task and one metric at a time"
        raise InvalidParameter(name, sorted(found), "are compared in one table", remedy)


def _values(of_seed: dict[int, Outcome], seeds: tuple[int, ...]) -> tuple[float, ...]:
    return tuple(of_seed[seed].value for seed in seeds)


def _mean(values: tuple[float, ...]) -> float:
    return math.fsum(values) / len(values)


def _row(
    epsilon: float | None, of_seed: dict[int, Outcome], seeds: tuple[int, ...], plain: PlainRow | None, level: float
) -> PrivateRow:
    guarantees = [result.guarantee for result in of_seed.values() if result.guarantee is not None]
    assert epsilon is not None and len(guarantees) == len(seeds)
    if len({(each.unit, each.group_size, each.neighbours) for each in guarantees}) != 1:
        raise MixedUnits(f"the runs at ε = {epsilon:g} protect different units or relations; compare like with like")
    worst = max(guarantees, key=lambda each: each.epsilon)
    worst = dataclasses.replace(worst, delta=max(each.delta for each in guarantees))
    values = _values(of_seed, seeds)
    return PrivateRow(
        epsilon=epsilon, guarantee=worst, mean=_mean(values), interval=mean_interval(values, level), values=values,
        difference=None if plain is None else _mean(values) - plain.mean,
        difference_interval=None if plain is None else difference_interval(values, plain.values, level),
        efficiency=None if plain is None or plain.mean == 0 else _mean(values) / plain.mean,
        efficiency_interval=None if plain is None else ratio_interval(values, plain.values, level),
    )  # fmt: skip


def _monotone(rows: tuple[PrivateRow, ...]) -> bool | None:
    """Whether no larger ε is worse beyond chance, all pairs together at 5 %."""
    pairs = list(itertools.combinations(rows, 2))
    if not pairs:
        return True if len(rows[0].values) > 1 else None
    if len(rows[0].values) < 2:
        return None
    level = 1 - 0.05 / len(pairs)
    gains = [difference_interval(larger.values, smaller.values, level) for smaller, larger in pairs]
    return all(gain is not None and gain[1] >= -1e-12 for gain in gains)  # rounding is no fall
